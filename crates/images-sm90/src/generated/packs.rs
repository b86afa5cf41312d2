// Written by `cargo xtask build-kernels`. Do not edit.

/// The images of a kernel: `append_e4m3_w4_sm_90.zst`.
pub static APPEND_E4M3_W4_SM_90: [u8; 19239] = *include_bytes!("../../images/append_e4m3_w4_sm_90.zst");

/// The images of a kernel: `append_w4_sm_90.zst`.
pub static APPEND_W4_SM_90: [u8; 11966] = *include_bytes!("../../images/append_w4_sm_90.zst");

/// The images of a kernel: `dbias_d256_32x32_w4_s2_sm_90.zst`.
pub static DBIAS_D256_32X32_W4_S2_SM_90: [u8; 17397] = *include_bytes!("../../images/dbias_d256_32x32_w4_s2_sm_90.zst");

/// The images of a kernel: `dbias_d256_64x64_w4_s3_sm_90.zst`.
pub static DBIAS_D256_64X64_W4_S3_SM_90: [u8; 23394] = *include_bytes!("../../images/dbias_d256_64x64_w4_s3_sm_90.zst");

/// The images of a kernel: `decode_d128_16x128_w8_s2_sm_90.zst`.
pub static DECODE_D128_16X128_W8_S2_SM_90: [u8; 80501] = *include_bytes!("../../images/decode_d128_16x128_w8_s2_sm_90.zst");

/// The images of a kernel: `decode_d128_16x256_w8_s2_e4m3_sm_90.zst`.
pub static DECODE_D128_16X256_W8_S2_E4M3_SM_90: [u8; 67644] = *include_bytes!("../../images/decode_d128_16x256_w8_s2_e4m3_sm_90.zst");

/// The images of a kernel: `decode_d128_16x64_w4_s2_sm_90.zst`.
pub static DECODE_D128_16X64_W4_S2_SM_90: [u8; 64685] = *include_bytes!("../../images/decode_d128_16x64_w4_s2_sm_90.zst");

/// The images of a kernel: `decode_d128_32x128_w8_s2_sm_90.zst`.
pub static DECODE_D128_32X128_W8_S2_SM_90: [u8; 80309] = *include_bytes!("../../images/decode_d128_32x128_w8_s2_sm_90.zst");

/// The images of a kernel: `decode_d128_32x64_w4_s2_sm_90.zst`.
pub static DECODE_D128_32X64_W4_S2_SM_90: [u8; 26147] = *include_bytes!("../../images/decode_d128_32x64_w4_s2_sm_90.zst");

/// The images of a kernel: `decode_d128_64x128_w8_s2_sm_90.zst`.
pub static DECODE_D128_64X128_W8_S2_SM_90: [u8; 51159] = *include_bytes!("../../images/decode_d128_64x128_w8_s2_sm_90.zst");

/// The images of a kernel: `decode_d128_64x64_w4_s2_sm_90.zst`.
pub static DECODE_D128_64X64_W4_S2_SM_90: [u8; 55297] = *include_bytes!("../../images/decode_d128_64x64_w4_s2_sm_90.zst");

/// The images of a kernel: `decode_d256_16x128_w4_s2_e4m3_sm_90.zst`.
pub static DECODE_D256_16X128_W4_S2_E4M3_SM_90: [u8; 51841] = *include_bytes!("../../images/decode_d256_16x128_w4_s2_e4m3_sm_90.zst");

/// The images of a kernel: `decode_d256_16x32_w2_s2_sm_90.zst`.
pub static DECODE_D256_16X32_W2_S2_SM_90: [u8; 36498] = *include_bytes!("../../images/decode_d256_16x32_w2_s2_sm_90.zst");

/// The images of a kernel: `decode_d256_16x64_w4_s2_sm_90.zst`.
pub static DECODE_D256_16X64_W4_S2_SM_90: [u8; 85495] = *include_bytes!("../../images/decode_d256_16x64_w4_s2_sm_90.zst");

/// The images of a kernel: `decode_d512_16x16_w4_s2_sm_90.zst`.
pub static DECODE_D512_16X16_W4_S2_SM_90: [u8; 37406] = *include_bytes!("../../images/decode_d512_16x16_w4_s2_sm_90.zst");

/// The images of a kernel: `decode_d512_16x32_w8_s2_sm_90.zst`.
pub static DECODE_D512_16X32_W8_S2_SM_90: [u8; 85774] = *include_bytes!("../../images/decode_d512_16x32_w8_s2_sm_90.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s2_sm_90.zst`.
pub static DECODE_D64_16X128_W4_S2_SM_90: [u8; 42091] = *include_bytes!("../../images/decode_d64_16x128_w4_s2_sm_90.zst");

/// The images of a kernel: `decode_d64_16x256_w8_s2_sm_90.zst`.
pub static DECODE_D64_16X256_W8_S2_SM_90: [u8; 91167] = *include_bytes!("../../images/decode_d64_16x256_w8_s2_sm_90.zst");

/// The images of a kernel: `decode_d64_16x256_w8_s4_e4m3_sm_90.zst`.
pub static DECODE_D64_16X256_W8_S4_E4M3_SM_90: [u8; 65516] = *include_bytes!("../../images/decode_d64_16x256_w8_s4_e4m3_sm_90.zst");

/// The images of a kernel: `decode_d64_32x128_w4_s2_sm_90.zst`.
pub static DECODE_D64_32X128_W4_S2_SM_90: [u8; 27089] = *include_bytes!("../../images/decode_d64_32x128_w4_s2_sm_90.zst");

/// The images of a kernel: `decode_d64_64x128_w8_s4_sm_90.zst`.
pub static DECODE_D64_64X128_W8_S4_SM_90: [u8; 47883] = *include_bytes!("../../images/decode_d64_64x128_w8_s4_sm_90.zst");

/// The images of a kernel: `decode_d64_64x64_w4_s4_sm_90.zst`.
pub static DECODE_D64_64X64_W4_S4_SM_90: [u8; 55858] = *include_bytes!("../../images/decode_d64_64x64_w4_s4_sm_90.zst");

/// The images of a kernel: `dkv_d128_32x32_w4_s1_sm_90.zst`.
pub static DKV_D128_32X32_W4_S1_SM_90: [u8; 16249] = *include_bytes!("../../images/dkv_d128_32x32_w4_s1_sm_90.zst");

/// The images of a kernel: `dkv_d128_64x128_w8_s2_sm_90.zst`.
pub static DKV_D128_64X128_W8_S2_SM_90: [u8; 24949] = *include_bytes!("../../images/dkv_d128_64x128_w8_s2_sm_90.zst");

/// The images of a kernel: `dkv_d128_64x64_w4_s1_sm_90.zst`.
pub static DKV_D128_64X64_W4_S1_SM_90: [u8; 54383] = *include_bytes!("../../images/dkv_d128_64x64_w4_s1_sm_90.zst");

/// The images of a kernel: `dkv_d192_32x64_w8_s1_sm_90.zst`.
pub static DKV_D192_32X64_W8_S1_SM_90: [u8; 18380] = *include_bytes!("../../images/dkv_d192_32x64_w8_s1_sm_90.zst");

/// The images of a kernel: `dkv_d192_64x64_w8_s2_sm_90.zst`.
pub static DKV_D192_64X64_W8_S2_SM_90: [u8; 32695] = *include_bytes!("../../images/dkv_d192_64x64_w8_s2_sm_90.zst");

/// The images of a kernel: `dkv_d256_16x16_w4_s1_sm_90.zst`.
pub static DKV_D256_16X16_W4_S1_SM_90: [u8; 14953] = *include_bytes!("../../images/dkv_d256_16x16_w4_s1_sm_90.zst");

/// The images of a kernel: `dkv_d256_32x32_w4_s1_sm_90.zst`.
pub static DKV_D256_32X32_W4_S1_SM_90: [u8; 26669] = *include_bytes!("../../images/dkv_d256_32x32_w4_s1_sm_90.zst");

/// The images of a kernel: `dkv_d256_64x64_w8_s2_sm_90.zst`.
pub static DKV_D256_64X64_W8_S2_SM_90: [u8; 34987] = *include_bytes!("../../images/dkv_d256_64x64_w8_s2_sm_90.zst");

/// The images of a kernel: `dkv_d64_32x32_w4_s1_sm_90.zst`.
pub static DKV_D64_32X32_W4_S1_SM_90: [u8; 15645] = *include_bytes!("../../images/dkv_d64_32x32_w4_s1_sm_90.zst");

/// The images of a kernel: `dkv_d64_64x128_w4_s2_sm_90.zst`.
pub static DKV_D64_64X128_W4_S2_SM_90: [u8; 23120] = *include_bytes!("../../images/dkv_d64_64x128_w4_s2_sm_90.zst");

/// The images of a kernel: `dkv_d64_64x64_w4_s2_sm_90.zst`.
pub static DKV_D64_64X64_W4_S2_SM_90: [u8; 48140] = *include_bytes!("../../images/dkv_d64_64x64_w4_s2_sm_90.zst");

/// The images of a kernel: `dkv_d96_64x128_w8_s2_sm_90.zst`.
pub static DKV_D96_64X128_W8_S2_SM_90: [u8; 23405] = *include_bytes!("../../images/dkv_d96_64x128_w8_s2_sm_90.zst");

/// The images of a kernel: `dkv_d96_64x64_w4_s2_sm_90.zst`.
pub static DKV_D96_64X64_W4_S2_SM_90: [u8; 31685] = *include_bytes!("../../images/dkv_d96_64x64_w4_s2_sm_90.zst");

/// The images of a kernel: `dq_d128_128x64_w4_s1_sm_90.zst`.
pub static DQ_D128_128X64_W4_S1_SM_90: [u8; 24275] = *include_bytes!("../../images/dq_d128_128x64_w4_s1_sm_90.zst");

/// The images of a kernel: `dq_d128_32x32_w4_s1_sm_90.zst`.
pub static DQ_D128_32X32_W4_S1_SM_90: [u8; 13837] = *include_bytes!("../../images/dq_d128_32x32_w4_s1_sm_90.zst");

/// The images of a kernel: `dq_d128_64x64_w4_s1_sm_90.zst`.
pub static DQ_D128_64X64_W4_S1_SM_90: [u8; 43492] = *include_bytes!("../../images/dq_d128_64x64_w4_s1_sm_90.zst");

/// The images of a kernel: `dq_d192_64x32_w4_s1_sm_90.zst`.
pub static DQ_D192_64X32_W4_S1_SM_90: [u8; 32513] = *include_bytes!("../../images/dq_d192_64x32_w4_s1_sm_90.zst");

/// The images of a kernel: `dq_d256_16x16_w4_s1_sm_90.zst`.
pub static DQ_D256_16X16_W4_S1_SM_90: [u8; 16828] = *include_bytes!("../../images/dq_d256_16x16_w4_s1_sm_90.zst");

/// The images of a kernel: `dq_d256_64x32_w4_s1_sm_90.zst`.
pub static DQ_D256_64X32_W4_S1_SM_90: [u8; 42911] = *include_bytes!("../../images/dq_d256_64x32_w4_s1_sm_90.zst");

/// The images of a kernel: `dq_d64_128x64_w4_s2_sm_90.zst`.
pub static DQ_D64_128X64_W4_S2_SM_90: [u8; 22829] = *include_bytes!("../../images/dq_d64_128x64_w4_s2_sm_90.zst");

/// The images of a kernel: `dq_d64_32x32_w4_s1_sm_90.zst`.
pub static DQ_D64_32X32_W4_S1_SM_90: [u8; 12949] = *include_bytes!("../../images/dq_d64_32x32_w4_s1_sm_90.zst");

/// The images of a kernel: `dq_d64_64x64_w4_s2_sm_90.zst`.
pub static DQ_D64_64X64_W4_S2_SM_90: [u8; 38071] = *include_bytes!("../../images/dq_d64_64x64_w4_s2_sm_90.zst");

/// The images of a kernel: `dq_d96_128x64_w4_s1_sm_90.zst`.
pub static DQ_D96_128X64_W4_S1_SM_90: [u8; 22978] = *include_bytes!("../../images/dq_d96_128x64_w4_s1_sm_90.zst");

/// The images of a kernel: `dq_d96_64x64_w4_s2_sm_90.zst`.
pub static DQ_D96_64X64_W4_S2_SM_90: [u8; 31658] = *include_bytes!("../../images/dq_d96_64x64_w4_s2_sm_90.zst");

/// The images of a kernel: `dqkv_d128_64x128_w12_s2_sm_90.zst`.
pub static DQKV_D128_64X128_W12_S2_SM_90: [u8; 62051] = *include_bytes!("../../images/dqkv_d128_64x128_w12_s2_sm_90.zst");

/// The images of a kernel: `dqkv_d64_64x192_w16_s2_sm_90.zst`.
pub static DQKV_D64_64X192_W16_S2_SM_90: [u8; 52855] = *include_bytes!("../../images/dqkv_d64_64x192_w16_s2_sm_90.zst");

/// The images of a kernel: `dqkv_d96_64x128_w12_s2_sm_90.zst`.
pub static DQKV_D96_64X128_W12_S2_SM_90: [u8; 51074] = *include_bytes!("../../images/dqkv_d96_64x128_w12_s2_sm_90.zst");

/// The images of a kernel: `dqsum_d128_64x128_w4_s1_sm_90.zst`.
pub static DQSUM_D128_64X128_W4_S1_SM_90: [u8; 6445] = *include_bytes!("../../images/dqsum_d128_64x128_w4_s1_sm_90.zst");

/// The images of a kernel: `dqsum_d64_64x192_w4_s1_sm_90.zst`.
pub static DQSUM_D64_64X192_W4_S1_SM_90: [u8; 5816] = *include_bytes!("../../images/dqsum_d64_64x192_w4_s1_sm_90.zst");

/// The images of a kernel: `dqsum_d96_64x128_w4_s1_sm_90.zst`.
pub static DQSUM_D96_64X128_W4_S1_SM_90: [u8; 6304] = *include_bytes!("../../images/dqsum_d96_64x128_w4_s1_sm_90.zst");

/// The images of a kernel: `dsinks_w8_sm_90.zst`.
pub static DSINKS_W8_SM_90: [u8; 3845] = *include_bytes!("../../images/dsinks_w8_sm_90.zst");

/// The images of a kernel: `merge_w4_sm_90.zst`.
pub static MERGE_W4_SM_90: [u8; 9544] = *include_bytes!("../../images/merge_w4_sm_90.zst");

/// The images of a kernel: `mma_d128_128x64_w4_s2_sm_90.zst`.
pub static MMA_D128_128X64_W4_S2_SM_90: [u8; 31612] = *include_bytes!("../../images/mma_d128_128x64_w4_s2_sm_90.zst");

/// The images of a kernel: `mma_d128_64x64_w4_s2_sm_90.zst`.
pub static MMA_D128_64X64_W4_S2_SM_90: [u8; 155283] = *include_bytes!("../../images/mma_d128_64x64_w4_s2_sm_90.zst");

/// The images of a kernel: `mma_d192_128x64_w8_s2_sm_90.zst`.
pub static MMA_D192_128X64_W8_S2_SM_90: [u8; 24229] = *include_bytes!("../../images/mma_d192_128x64_w8_s2_sm_90.zst");

/// The images of a kernel: `mma_d192_64x64_w4_s1_sm_90.zst`.
pub static MMA_D192_64X64_W4_S1_SM_90: [u8; 175260] = *include_bytes!("../../images/mma_d192_64x64_w4_s1_sm_90.zst");

/// The images of a kernel: `mma_d256_64x64_w4_s1_sm_90.zst`.
pub static MMA_D256_64X64_W4_S1_SM_90: [u8; 182727] = *include_bytes!("../../images/mma_d256_64x64_w4_s1_sm_90.zst");

/// The images of a kernel: `mma_d32_128x64_w4_s2_sm_90.zst`.
pub static MMA_D32_128X64_W4_S2_SM_90: [u8; 117763] = *include_bytes!("../../images/mma_d32_128x64_w4_s2_sm_90.zst");

/// The images of a kernel: `mma_d512_32x32_w4_s1_sm_90.zst`.
pub static MMA_D512_32X32_W4_S1_SM_90: [u8; 67969] = *include_bytes!("../../images/mma_d512_32x32_w4_s1_sm_90.zst");

/// The images of a kernel: `mma_d512_64x64_w8_s1_sm_90.zst`.
pub static MMA_D512_64X64_W8_S1_SM_90: [u8; 24529] = *include_bytes!("../../images/mma_d512_64x64_w8_s1_sm_90.zst");

/// The images of a kernel: `mma_d64_128x32_w4_s4_sm_90.zst`.
pub static MMA_D64_128X32_W4_S4_SM_90: [u8; 24048] = *include_bytes!("../../images/mma_d64_128x32_w4_s4_sm_90.zst");

/// The images of a kernel: `mma_d64_128x64_w4_s2_sm_90.zst`.
pub static MMA_D64_128X64_W4_S2_SM_90: [u8; 172225] = *include_bytes!("../../images/mma_d64_128x64_w4_s2_sm_90.zst");

/// The images of a kernel: `mma_d64_64x64_w4_s2_sm_90.zst`.
pub static MMA_D64_64X64_W4_S2_SM_90: [u8; 162945] = *include_bytes!("../../images/mma_d64_64x64_w4_s2_sm_90.zst");

/// The images of a kernel: `mma_d96_128x32_w4_s4_sm_90.zst`.
pub static MMA_D96_128X32_W4_S4_SM_90: [u8; 121205] = *include_bytes!("../../images/mma_d96_128x32_w4_s4_sm_90.zst");

/// The images of a kernel: `prepass_w4_sm_90.zst`.
pub static PREPASS_W4_SM_90: [u8; 6889] = *include_bytes!("../../images/prepass_w4_sm_90.zst");

/// The images of a kernel: `runs_w16_sm_90.zst`.
pub static RUNS_W16_SM_90: [u8; 5414] = *include_bytes!("../../images/runs_w16_sm_90.zst");

/// The images of a kernel: `scalar_d128_32x64_w4_s1_sm_90.zst`.
pub static SCALAR_D128_32X64_W4_S1_SM_90: [u8; 56687] = *include_bytes!("../../images/scalar_d128_32x64_w4_s1_sm_90.zst");

/// The images of a kernel: `scalar_d128_48x32_w8_s2_sm_90.zst`.
pub static SCALAR_D128_48X32_W8_S2_SM_90: [u8; 16048] = *include_bytes!("../../images/scalar_d128_48x32_w8_s2_sm_90.zst");

/// The images of a kernel: `scalar_d192_32x32_w4_s1_sm_90.zst`.
pub static SCALAR_D192_32X32_W4_S1_SM_90: [u8; 35319] = *include_bytes!("../../images/scalar_d192_32x32_w4_s1_sm_90.zst");

/// The images of a kernel: `scalar_d256_16x32_w4_s1_sm_90.zst`.
pub static SCALAR_D256_16X32_W4_S1_SM_90: [u8; 25420] = *include_bytes!("../../images/scalar_d256_16x32_w4_s1_sm_90.zst");

/// The images of a kernel: `scalar_d256_32x32_w4_s1_sm_90.zst`.
pub static SCALAR_D256_32X32_W4_S1_SM_90: [u8; 37855] = *include_bytes!("../../images/scalar_d256_32x32_w4_s1_sm_90.zst");

/// The images of a kernel: `scalar_d32_32x64_w4_s2_sm_90.zst`.
pub static SCALAR_D32_32X64_W4_S2_SM_90: [u8; 32183] = *include_bytes!("../../images/scalar_d32_32x64_w4_s2_sm_90.zst");

/// The images of a kernel: `scalar_d64_16x64_w4_s2_sm_90.zst`.
pub static SCALAR_D64_16X64_W4_S2_SM_90: [u8; 28048] = *include_bytes!("../../images/scalar_d64_16x64_w4_s2_sm_90.zst");

/// The images of a kernel: `scalar_d64_32x128_w4_s2_sm_90.zst`.
pub static SCALAR_D64_32X128_W4_S2_SM_90: [u8; 25412] = *include_bytes!("../../images/scalar_d64_32x128_w4_s2_sm_90.zst");

/// The images of a kernel: `scalar_d64_32x32_w4_s2_sm_90.zst`.
pub static SCALAR_D64_32X32_W4_S2_SM_90: [u8; 16428] = *include_bytes!("../../images/scalar_d64_32x32_w4_s2_sm_90.zst");

/// The images of a kernel: `scalar_d64_32x64_w4_s1_sm_90.zst`.
pub static SCALAR_D64_32X64_W4_S1_SM_90: [u8; 20003] = *include_bytes!("../../images/scalar_d64_32x64_w4_s1_sm_90.zst");

/// The images of a kernel: `scalar_d64_32x64_w4_s2_sm_90.zst`.
pub static SCALAR_D64_32X64_W4_S2_SM_90: [u8; 20948] = *include_bytes!("../../images/scalar_d64_32x64_w4_s2_sm_90.zst");

/// The images of a kernel: `scalar_d64_48x64_w8_s2_sm_90.zst`.
pub static SCALAR_D64_48X64_W8_S2_SM_90: [u8; 18712] = *include_bytes!("../../images/scalar_d64_48x64_w8_s2_sm_90.zst");

/// The images of a kernel: `scalar_d64_64x64_w4_s2_sm_90.zst`.
pub static SCALAR_D64_64X64_W4_S2_SM_90: [u8; 56267] = *include_bytes!("../../images/scalar_d64_64x64_w4_s2_sm_90.zst");

/// The images of a kernel: `scalar_d64_64x64_w8_s2_sm_90.zst`.
pub static SCALAR_D64_64X64_W8_S2_SM_90: [u8; 21162] = *include_bytes!("../../images/scalar_d64_64x64_w8_s2_sm_90.zst");

/// The images of a kernel: `scalar_d96_64x32_w4_s2_sm_90.zst`.
pub static SCALAR_D96_64X32_W4_S2_SM_90: [u8; 39020] = *include_bytes!("../../images/scalar_d96_64x32_w4_s2_sm_90.zst");

/// The images of a kernel: `wdkv_d192_64x64_w12_s3_sm_90.zst`.
pub static WDKV_D192_64X64_W12_S3_SM_90: [u8; 53944] = *include_bytes!("../../images/wdkv_d192_64x64_w12_s3_sm_90.zst");

/// The images of a kernel: `wdkv_d192_64x64_w16_s3_sm_90.zst`.
pub static WDKV_D192_64X64_W16_S3_SM_90: [u8; 28874] = *include_bytes!("../../images/wdkv_d192_64x64_w16_s3_sm_90.zst");

/// The images of a kernel: `wdkv_d256_64x64_w12_s3_sm_90.zst`.
pub static WDKV_D256_64X64_W12_S3_SM_90: [u8; 80062] = *include_bytes!("../../images/wdkv_d256_64x64_w12_s3_sm_90.zst");

/// The images of a kernel: `wdq_d192_128x64_w12_s3_sm_90.zst`.
pub static WDQ_D192_128X64_W12_S3_SM_90: [u8; 48437] = *include_bytes!("../../images/wdq_d192_128x64_w12_s3_sm_90.zst");

/// The images of a kernel: `wdq_d192_128x64_w16_s3_sm_90.zst`.
pub static WDQ_D192_128X64_W16_S3_SM_90: [u8; 23807] = *include_bytes!("../../images/wdq_d192_128x64_w16_s3_sm_90.zst");

/// The images of a kernel: `wdq_d256_128x64_w12_s2_sm_90.zst`.
pub static WDQ_D256_128X64_W12_S2_SM_90: [u8; 64156] = *include_bytes!("../../images/wdq_d256_128x64_w12_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d128_128x128_w12_s2_sm_90.zst`.
pub static WGMMA_D128_128X128_W12_S2_SM_90: [u8; 255395] = *include_bytes!("../../images/wgmma_d128_128x128_w12_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d128_128x64_w12_s3_sm_90.zst`.
pub static WGMMA_D128_128X64_W12_S3_SM_90: [u8; 51652] = *include_bytes!("../../images/wgmma_d128_128x64_w12_s3_sm_90.zst");

/// The images of a kernel: `wgmma_d128_192x64_w16_s4_sm_90.zst`.
pub static WGMMA_D128_192X64_W16_S4_SM_90: [u8; 167806] = *include_bytes!("../../images/wgmma_d128_192x64_w16_s4_sm_90.zst");

/// The images of a kernel: `wgmma_d128_192x80_w16_s3_sm_90.zst`.
pub static WGMMA_D128_192X80_W16_S3_SM_90: [u8; 69810] = *include_bytes!("../../images/wgmma_d128_192x80_w16_s3_sm_90.zst");

/// The images of a kernel: `wgmma_d128_64x128_w8_s2_sm_90.zst`.
pub static WGMMA_D128_64X128_W8_S2_SM_90: [u8; 180398] = *include_bytes!("../../images/wgmma_d128_64x128_w8_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d160_192x64_w16_s3_sm_90.zst`.
pub static WGMMA_D160_192X64_W16_S3_SM_90: [u8; 25700] = *include_bytes!("../../images/wgmma_d160_192x64_w16_s3_sm_90.zst");

/// The images of a kernel: `wgmma_d192_128x64_w12_s3_sm_90.zst`.
pub static WGMMA_D192_128X64_W12_S3_SM_90: [u8; 248870] = *include_bytes!("../../images/wgmma_d192_128x64_w12_s3_sm_90.zst");

/// The images of a kernel: `wgmma_d192_64x112_w8_s2_sm_90.zst`.
pub static WGMMA_D192_64X112_W8_S2_SM_90: [u8; 49251] = *include_bytes!("../../images/wgmma_d192_64x112_w8_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d192v128_128x128_w12_s2_sm_90.zst`.
pub static WGMMA_D192V128_128X128_W12_S2_SM_90: [u8; 57564] = *include_bytes!("../../images/wgmma_d192v128_128x128_w12_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d192v128_192x80_w16_s3_sm_90.zst`.
pub static WGMMA_D192V128_192X80_W16_S3_SM_90: [u8; 26223] = *include_bytes!("../../images/wgmma_d192v128_192x80_w16_s3_sm_90.zst");

/// The images of a kernel: `wgmma_d256_128x64_w12_s2_sm_90.zst`.
pub static WGMMA_D256_128X64_W12_S2_SM_90: [u8; 312245] = *include_bytes!("../../images/wgmma_d256_128x64_w12_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d64_128x128_w12_s2_sm_90.zst`.
pub static WGMMA_D64_128X128_W12_S2_SM_90: [u8; 222337] = *include_bytes!("../../images/wgmma_d64_128x128_w12_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d64_192x128_w16_s3_sm_90.zst`.
pub static WGMMA_D64_192X128_W16_S3_SM_90: [u8; 116402] = *include_bytes!("../../images/wgmma_d64_192x128_w16_s3_sm_90.zst");

/// The images of a kernel: `wgmma_d64_192x96_w16_s3_sm_90.zst`.
pub static WGMMA_D64_192X96_W16_S3_SM_90: [u8; 51682] = *include_bytes!("../../images/wgmma_d64_192x96_w16_s3_sm_90.zst");

/// The images of a kernel: `wgmma_d64_256x64_w20_s6_sm_90.zst`.
pub static WGMMA_D64_256X64_W20_S6_SM_90: [u8; 99218] = *include_bytes!("../../images/wgmma_d64_256x64_w20_s6_sm_90.zst");

/// The images of a kernel: `wgmma_d64_64x128_w8_s2_sm_90.zst`.
pub static WGMMA_D64_64X128_W8_S2_SM_90: [u8; 284436] = *include_bytes!("../../images/wgmma_d64_64x128_w8_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d64_64x64_w8_s2_sm_90.zst`.
pub static WGMMA_D64_64X64_W8_S2_SM_90: [u8; 22938] = *include_bytes!("../../images/wgmma_d64_64x64_w8_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d64_64x80_w8_s2_sm_90.zst`.
pub static WGMMA_D64_64X80_W8_S2_SM_90: [u8; 23176] = *include_bytes!("../../images/wgmma_d64_64x80_w8_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d96_128x128_w12_s2_sm_90.zst`.
pub static WGMMA_D96_128X128_W12_S2_SM_90: [u8; 195543] = *include_bytes!("../../images/wgmma_d96_128x128_w12_s2_sm_90.zst");

/// The images of a kernel: `wgmma_d96_192x96_w16_s3_sm_90.zst`.
pub static WGMMA_D96_192X96_W16_S3_SM_90: [u8; 90259] = *include_bytes!("../../images/wgmma_d96_192x96_w16_s3_sm_90.zst");

/// The images of a kernel: `wgmma_d96_64x128_w8_s2_sm_90.zst`.
pub static WGMMA_D96_64X128_W8_S2_SM_90: [u8; 170365] = *include_bytes!("../../images/wgmma_d96_64x128_w8_s2_sm_90.zst");

/// The images of a kernel: `wmma_d128_48x32_w8_s2_sm_90.zst`.
pub static WMMA_D128_48X32_W8_S2_SM_90: [u8; 18053] = *include_bytes!("../../images/wmma_d128_48x32_w8_s2_sm_90.zst");

/// The images of a kernel: `wmma_d64_16x64_w4_s2_sm_90.zst`.
pub static WMMA_D64_16X64_W4_S2_SM_90: [u8; 15331] = *include_bytes!("../../images/wmma_d64_16x64_w4_s2_sm_90.zst");

/// The images of a kernel: `wmma_d64_32x32_w4_s2_sm_90.zst`.
pub static WMMA_D64_32X32_W4_S2_SM_90: [u8; 14843] = *include_bytes!("../../images/wmma_d64_32x32_w4_s2_sm_90.zst");

/// The images of a kernel: `wmma_d64_32x64_w4_s1_sm_90.zst`.
pub static WMMA_D64_32X64_W4_S1_SM_90: [u8; 16307] = *include_bytes!("../../images/wmma_d64_32x64_w4_s1_sm_90.zst");

/// The images of a kernel: `wmma_d64_32x64_w4_s2_sm_90.zst`.
pub static WMMA_D64_32X64_W4_S2_SM_90: [u8; 16405] = *include_bytes!("../../images/wmma_d64_32x64_w4_s2_sm_90.zst");

/// The images of a kernel: `wmma_d64_48x64_w8_s2_sm_90.zst`.
pub static WMMA_D64_48X64_W8_S2_SM_90: [u8; 18440] = *include_bytes!("../../images/wmma_d64_48x64_w8_s2_sm_90.zst");

/// The images of a kernel: `wmma_d64_64x64_w8_s2_sm_90.zst`.
pub static WMMA_D64_64X64_W8_S2_SM_90: [u8; 16115] = *include_bytes!("../../images/wmma_d64_64x64_w8_s2_sm_90.zst");
