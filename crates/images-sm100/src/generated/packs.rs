// Written by `cargo xtask build-kernels`. Do not edit.

/// The images of a kernel: `append_e4m3_w4_sm_100.zst`.
pub static APPEND_E4M3_W4_SM_100: [u8; 17914] = *include_bytes!("../../images/append_e4m3_w4_sm_100.zst");

/// The images of a kernel: `append_w4_sm_100.zst`.
pub static APPEND_W4_SM_100: [u8; 14136] = *include_bytes!("../../images/append_w4_sm_100.zst");

/// The images of a kernel: `dbias_d256_32x32_w4_s2_sm_100.zst`.
pub static DBIAS_D256_32X32_W4_S2_SM_100: [u8; 18911] = *include_bytes!("../../images/dbias_d256_32x32_w4_s2_sm_100.zst");

/// The images of a kernel: `dbias_d256_64x64_w4_s3_sm_100.zst`.
pub static DBIAS_D256_64X64_W4_S3_SM_100: [u8; 26817] = *include_bytes!("../../images/dbias_d256_64x64_w4_s3_sm_100.zst");

/// The images of a kernel: `decode_d128_16x128_w8_s2_sm_100.zst`.
pub static DECODE_D128_16X128_W8_S2_SM_100: [u8; 41249] = *include_bytes!("../../images/decode_d128_16x128_w8_s2_sm_100.zst");

/// The images of a kernel: `decode_d128_16x256_w8_s2_e4m3_sm_100.zst`.
pub static DECODE_D128_16X256_W8_S2_E4M3_SM_100: [u8; 62924] = *include_bytes!("../../images/decode_d128_16x256_w8_s2_e4m3_sm_100.zst");

/// The images of a kernel: `decode_d128_16x64_w4_s2_sm_100.zst`.
pub static DECODE_D128_16X64_W4_S2_SM_100: [u8; 40237] = *include_bytes!("../../images/decode_d128_16x64_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d128_32x128_w8_s2_sm_100.zst`.
pub static DECODE_D128_32X128_W8_S2_SM_100: [u8; 33986] = *include_bytes!("../../images/decode_d128_32x128_w8_s2_sm_100.zst");

/// The images of a kernel: `decode_d128_32x64_w4_s2_sm_100.zst`.
pub static DECODE_D128_32X64_W4_S2_SM_100: [u8; 31138] = *include_bytes!("../../images/decode_d128_32x64_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d128_64x128_w8_s2_sm_100.zst`.
pub static DECODE_D128_64X128_W8_S2_SM_100: [u8; 37567] = *include_bytes!("../../images/decode_d128_64x128_w8_s2_sm_100.zst");

/// The images of a kernel: `decode_d128_64x64_w4_s2_sm_100.zst`.
pub static DECODE_D128_64X64_W4_S2_SM_100: [u8; 33992] = *include_bytes!("../../images/decode_d128_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d256_16x128_w4_s2_e4m3_sm_100.zst`.
pub static DECODE_D256_16X128_W4_S2_E4M3_SM_100: [u8; 58285] = *include_bytes!("../../images/decode_d256_16x128_w4_s2_e4m3_sm_100.zst");

/// The images of a kernel: `decode_d256_16x32_w2_s2_sm_100.zst`.
pub static DECODE_D256_16X32_W2_S2_SM_100: [u8; 37989] = *include_bytes!("../../images/decode_d256_16x32_w2_s2_sm_100.zst");

/// The images of a kernel: `decode_d256_16x64_w4_s2_sm_100.zst`.
pub static DECODE_D256_16X64_W4_S2_SM_100: [u8; 38717] = *include_bytes!("../../images/decode_d256_16x64_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d512_16x16_w4_s2_sm_100.zst`.
pub static DECODE_D512_16X16_W4_S2_SM_100: [u8; 39514] = *include_bytes!("../../images/decode_d512_16x16_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d512_16x32_w8_s2_sm_100.zst`.
pub static DECODE_D512_16X32_W8_S2_SM_100: [u8; 42084] = *include_bytes!("../../images/decode_d512_16x32_w8_s2_sm_100.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s2_sm_100.zst`.
pub static DECODE_D64_16X128_W4_S2_SM_100: [u8; 42727] = *include_bytes!("../../images/decode_d64_16x128_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d64_16x256_w8_s2_sm_100.zst`.
pub static DECODE_D64_16X256_W8_S2_SM_100: [u8; 45395] = *include_bytes!("../../images/decode_d64_16x256_w8_s2_sm_100.zst");

/// The images of a kernel: `decode_d64_16x256_w8_s4_e4m3_sm_100.zst`.
pub static DECODE_D64_16X256_W8_S4_E4M3_SM_100: [u8; 58521] = *include_bytes!("../../images/decode_d64_16x256_w8_s4_e4m3_sm_100.zst");

/// The images of a kernel: `decode_d64_32x128_w4_s2_sm_100.zst`.
pub static DECODE_D64_32X128_W4_S2_SM_100: [u8; 32814] = *include_bytes!("../../images/decode_d64_32x128_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d64_64x128_w8_s4_sm_100.zst`.
pub static DECODE_D64_64X128_W8_S4_SM_100: [u8; 35121] = *include_bytes!("../../images/decode_d64_64x128_w8_s4_sm_100.zst");

/// The images of a kernel: `decode_d64_64x64_w4_s4_sm_100.zst`.
pub static DECODE_D64_64X64_W4_S4_SM_100: [u8; 55321] = *include_bytes!("../../images/decode_d64_64x64_w4_s4_sm_100.zst");

/// The images of a kernel: `dkv_d128_32x32_w4_s1_sm_100.zst`.
pub static DKV_D128_32X32_W4_S1_SM_100: [u8; 17257] = *include_bytes!("../../images/dkv_d128_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dkv_d128_64x64_w4_s1_sm_100.zst`.
pub static DKV_D128_64X64_W4_S1_SM_100: [u8; 57706] = *include_bytes!("../../images/dkv_d128_64x64_w4_s1_sm_100.zst");

/// The images of a kernel: `dkv_d192_32x64_w8_s1_sm_100.zst`.
pub static DKV_D192_32X64_W8_S1_SM_100: [u8; 35169] = *include_bytes!("../../images/dkv_d192_32x64_w8_s1_sm_100.zst");

/// The images of a kernel: `dkv_d256_16x16_w4_s1_sm_100.zst`.
pub static DKV_D256_16X16_W4_S1_SM_100: [u8; 17235] = *include_bytes!("../../images/dkv_d256_16x16_w4_s1_sm_100.zst");

/// The images of a kernel: `dkv_d256_32x32_w4_s1_sm_100.zst`.
pub static DKV_D256_32X32_W4_S1_SM_100: [u8; 51697] = *include_bytes!("../../images/dkv_d256_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dkv_d64_32x32_w4_s1_sm_100.zst`.
pub static DKV_D64_32X32_W4_S1_SM_100: [u8; 17444] = *include_bytes!("../../images/dkv_d64_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dkv_d64_64x64_w4_s2_sm_100.zst`.
pub static DKV_D64_64X64_W4_S2_SM_100: [u8; 52812] = *include_bytes!("../../images/dkv_d64_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `dkv_d96_64x64_w4_s2_sm_100.zst`.
pub static DKV_D96_64X64_W4_S2_SM_100: [u8; 25036] = *include_bytes!("../../images/dkv_d96_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `dq_d128_32x32_w4_s1_sm_100.zst`.
pub static DQ_D128_32X32_W4_S1_SM_100: [u8; 16814] = *include_bytes!("../../images/dq_d128_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d128_64x64_w4_s1_sm_100.zst`.
pub static DQ_D128_64X64_W4_S1_SM_100: [u8; 47152] = *include_bytes!("../../images/dq_d128_64x64_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d192_64x32_w4_s1_sm_100.zst`.
pub static DQ_D192_64X32_W4_S1_SM_100: [u8; 38659] = *include_bytes!("../../images/dq_d192_64x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d256_16x16_w4_s1_sm_100.zst`.
pub static DQ_D256_16X16_W4_S1_SM_100: [u8; 16225] = *include_bytes!("../../images/dq_d256_16x16_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d256_64x32_w4_s1_sm_100.zst`.
pub static DQ_D256_64X32_W4_S1_SM_100: [u8; 53079] = *include_bytes!("../../images/dq_d256_64x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d64_128x64_w4_s2_sm_100.zst`.
pub static DQ_D64_128X64_W4_S2_SM_100: [u8; 25286] = *include_bytes!("../../images/dq_d64_128x64_w4_s2_sm_100.zst");

/// The images of a kernel: `dq_d64_32x32_w4_s1_sm_100.zst`.
pub static DQ_D64_32X32_W4_S1_SM_100: [u8; 17067] = *include_bytes!("../../images/dq_d64_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d64_64x64_w4_s2_sm_100.zst`.
pub static DQ_D64_64X64_W4_S2_SM_100: [u8; 46862] = *include_bytes!("../../images/dq_d64_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `dq_d96_64x64_w4_s2_sm_100.zst`.
pub static DQ_D96_64X64_W4_S2_SM_100: [u8; 20240] = *include_bytes!("../../images/dq_d96_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `dsinks_w8_sm_100.zst`.
pub static DSINKS_W8_SM_100: [u8; 4870] = *include_bytes!("../../images/dsinks_w8_sm_100.zst");

/// The images of a kernel: `merge_w4_sm_100.zst`.
pub static MERGE_W4_SM_100: [u8; 12246] = *include_bytes!("../../images/merge_w4_sm_100.zst");

/// The images of a kernel: `mma_d128_128x64_w8_s2_sm_100.zst`.
pub static MMA_D128_128X64_W8_S2_SM_100: [u8; 25455] = *include_bytes!("../../images/mma_d128_128x64_w8_s2_sm_100.zst");

/// The images of a kernel: `mma_d128_64x64_w4_s2_sm_100.zst`.
pub static MMA_D128_64X64_W4_S2_SM_100: [u8; 169886] = *include_bytes!("../../images/mma_d128_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `mma_d192_128x64_w8_s2_sm_100.zst`.
pub static MMA_D192_128X64_W8_S2_SM_100: [u8; 28900] = *include_bytes!("../../images/mma_d192_128x64_w8_s2_sm_100.zst");

/// The images of a kernel: `mma_d192_64x64_w4_s1_sm_100.zst`.
pub static MMA_D192_64X64_W4_S1_SM_100: [u8; 179687] = *include_bytes!("../../images/mma_d192_64x64_w4_s1_sm_100.zst");

/// The images of a kernel: `mma_d256_64x64_w4_s1_sm_100.zst`.
pub static MMA_D256_64X64_W4_S1_SM_100: [u8; 219580] = *include_bytes!("../../images/mma_d256_64x64_w4_s1_sm_100.zst");

/// The images of a kernel: `mma_d32_128x64_w4_s2_sm_100.zst`.
pub static MMA_D32_128X64_W4_S2_SM_100: [u8; 123853] = *include_bytes!("../../images/mma_d32_128x64_w4_s2_sm_100.zst");

/// The images of a kernel: `mma_d512_32x32_w4_s1_sm_100.zst`.
pub static MMA_D512_32X32_W4_S1_SM_100: [u8; 75538] = *include_bytes!("../../images/mma_d512_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `mma_d512_64x64_w8_s1_sm_100.zst`.
pub static MMA_D512_64X64_W8_S1_SM_100: [u8; 32226] = *include_bytes!("../../images/mma_d512_64x64_w8_s1_sm_100.zst");

/// The images of a kernel: `mma_d64_128x32_w4_s4_sm_100.zst`.
pub static MMA_D64_128X32_W4_S4_SM_100: [u8; 28049] = *include_bytes!("../../images/mma_d64_128x32_w4_s4_sm_100.zst");

/// The images of a kernel: `mma_d64_128x64_w4_s2_sm_100.zst`.
pub static MMA_D64_128X64_W4_S2_SM_100: [u8; 172979] = *include_bytes!("../../images/mma_d64_128x64_w4_s2_sm_100.zst");

/// The images of a kernel: `mma_d64_64x64_w4_s2_sm_100.zst`.
pub static MMA_D64_64X64_W4_S2_SM_100: [u8; 170896] = *include_bytes!("../../images/mma_d64_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `mma_d96_128x32_w4_s4_sm_100.zst`.
pub static MMA_D96_128X32_W4_S4_SM_100: [u8; 128610] = *include_bytes!("../../images/mma_d96_128x32_w4_s4_sm_100.zst");

/// The images of a kernel: `prepass_w4_sm_100.zst`.
pub static PREPASS_W4_SM_100: [u8; 9571] = *include_bytes!("../../images/prepass_w4_sm_100.zst");

/// The images of a kernel: `runs_w16_sm_100.zst`.
pub static RUNS_W16_SM_100: [u8; 6594] = *include_bytes!("../../images/runs_w16_sm_100.zst");

/// The images of a kernel: `scalar_d128_32x64_w4_s1_sm_100.zst`.
pub static SCALAR_D128_32X64_W4_S1_SM_100: [u8; 70187] = *include_bytes!("../../images/scalar_d128_32x64_w4_s1_sm_100.zst");

/// The images of a kernel: `scalar_d192_32x32_w4_s1_sm_100.zst`.
pub static SCALAR_D192_32X32_W4_S1_SM_100: [u8; 37473] = *include_bytes!("../../images/scalar_d192_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `scalar_d256_16x32_w4_s1_sm_100.zst`.
pub static SCALAR_D256_16X32_W4_S1_SM_100: [u8; 26757] = *include_bytes!("../../images/scalar_d256_16x32_w4_s1_sm_100.zst");

/// The images of a kernel: `scalar_d256_32x32_w4_s1_sm_100.zst`.
pub static SCALAR_D256_32X32_W4_S1_SM_100: [u8; 45641] = *include_bytes!("../../images/scalar_d256_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `scalar_d32_32x64_w4_s2_sm_100.zst`.
pub static SCALAR_D32_32X64_W4_S2_SM_100: [u8; 43743] = *include_bytes!("../../images/scalar_d32_32x64_w4_s2_sm_100.zst");

/// The images of a kernel: `scalar_d64_32x128_w4_s2_sm_100.zst`.
pub static SCALAR_D64_32X128_W4_S2_SM_100: [u8; 41232] = *include_bytes!("../../images/scalar_d64_32x128_w4_s2_sm_100.zst");

/// The images of a kernel: `scalar_d64_64x64_w4_s2_sm_100.zst`.
pub static SCALAR_D64_64X64_W4_S2_SM_100: [u8; 72383] = *include_bytes!("../../images/scalar_d64_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `scalar_d96_64x32_w4_s2_sm_100.zst`.
pub static SCALAR_D96_64X32_W4_S2_SM_100: [u8; 51874] = *include_bytes!("../../images/scalar_d96_64x32_w4_s2_sm_100.zst");
