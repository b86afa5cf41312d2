// Written by `cargo xtask build-kernels`. Do not edit.

/// The images of a kernel: `append_e4m3_w4_sm_120.zst`.
pub static APPEND_E4M3_W4_SM_120: [u8; 18920] = *include_bytes!("../../images/append_e4m3_w4_sm_120.zst");

/// The images of a kernel: `append_w4_sm_120.zst`.
pub static APPEND_W4_SM_120: [u8; 13793] = *include_bytes!("../../images/append_w4_sm_120.zst");

/// The images of a kernel: `dbias_d256_32x32_w4_s2_sm_120.zst`.
pub static DBIAS_D256_32X32_W4_S2_SM_120: [u8; 19410] = *include_bytes!("../../images/dbias_d256_32x32_w4_s2_sm_120.zst");

/// The images of a kernel: `dbias_d256_64x64_w4_s3_sm_120.zst`.
pub static DBIAS_D256_64X64_W4_S3_SM_120: [u8; 24717] = *include_bytes!("../../images/dbias_d256_64x64_w4_s3_sm_120.zst");

/// The images of a kernel: `decode_d128_16x128_w4_s2_e4m3_sm_120.zst`.
pub static DECODE_D128_16X128_W4_S2_E4M3_SM_120: [u8; 48930] = *include_bytes!("../../images/decode_d128_16x128_w4_s2_e4m3_sm_120.zst");

/// The images of a kernel: `decode_d128_16x64_w4_s2_sm_120.zst`.
pub static DECODE_D128_16X64_W4_S2_SM_120: [u8; 39563] = *include_bytes!("../../images/decode_d128_16x64_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d128_32x64_w4_s2_sm_120.zst`.
pub static DECODE_D128_32X64_W4_S2_SM_120: [u8; 31200] = *include_bytes!("../../images/decode_d128_32x64_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d128_64x64_w4_s2_sm_120.zst`.
pub static DECODE_D128_64X64_W4_S2_SM_120: [u8; 62375] = *include_bytes!("../../images/decode_d128_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d256_16x32_w2_s2_sm_120.zst`.
pub static DECODE_D256_16X32_W2_S2_SM_120: [u8; 37421] = *include_bytes!("../../images/decode_d256_16x32_w2_s2_sm_120.zst");

/// The images of a kernel: `decode_d256_16x64_w2_s2_e4m3_sm_120.zst`.
pub static DECODE_D256_16X64_W2_S2_E4M3_SM_120: [u8; 47268] = *include_bytes!("../../images/decode_d256_16x64_w2_s2_e4m3_sm_120.zst");

/// The images of a kernel: `decode_d512_16x16_w4_s2_sm_120.zst`.
pub static DECODE_D512_16X16_W4_S2_SM_120: [u8; 39546] = *include_bytes!("../../images/decode_d512_16x16_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s2_sm_120.zst`.
pub static DECODE_D64_16X128_W4_S2_SM_120: [u8; 44549] = *include_bytes!("../../images/decode_d64_16x128_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s4_e4m3_sm_120.zst`.
pub static DECODE_D64_16X128_W4_S4_E4M3_SM_120: [u8; 40142] = *include_bytes!("../../images/decode_d64_16x128_w4_s4_e4m3_sm_120.zst");

/// The images of a kernel: `decode_d64_32x128_w4_s2_sm_120.zst`.
pub static DECODE_D64_32X128_W4_S2_SM_120: [u8; 32154] = *include_bytes!("../../images/decode_d64_32x128_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d64_64x64_w4_s4_sm_120.zst`.
pub static DECODE_D64_64X64_W4_S4_SM_120: [u8; 49998] = *include_bytes!("../../images/decode_d64_64x64_w4_s4_sm_120.zst");

/// The images of a kernel: `dkv_d128_32x32_w4_s1_sm_120.zst`.
pub static DKV_D128_32X32_W4_S1_SM_120: [u8; 16904] = *include_bytes!("../../images/dkv_d128_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dkv_d128_64x64_w4_s1_sm_120.zst`.
pub static DKV_D128_64X64_W4_S1_SM_120: [u8; 50808] = *include_bytes!("../../images/dkv_d128_64x64_w4_s1_sm_120.zst");

/// The images of a kernel: `dkv_d192_32x64_w8_s1_sm_120.zst`.
pub static DKV_D192_32X64_W8_S1_SM_120: [u8; 31587] = *include_bytes!("../../images/dkv_d192_32x64_w8_s1_sm_120.zst");

/// The images of a kernel: `dkv_d256_16x16_w4_s1_sm_120.zst`.
pub static DKV_D256_16X16_W4_S1_SM_120: [u8; 17369] = *include_bytes!("../../images/dkv_d256_16x16_w4_s1_sm_120.zst");

/// The images of a kernel: `dkv_d256_32x32_w4_s1_sm_120.zst`.
pub static DKV_D256_32X32_W4_S1_SM_120: [u8; 44699] = *include_bytes!("../../images/dkv_d256_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dkv_d64_32x32_w4_s1_sm_120.zst`.
pub static DKV_D64_32X32_W4_S1_SM_120: [u8; 16833] = *include_bytes!("../../images/dkv_d64_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dkv_d64_64x64_w4_s2_sm_120.zst`.
pub static DKV_D64_64X64_W4_S2_SM_120: [u8; 51014] = *include_bytes!("../../images/dkv_d64_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `dkv_d96_64x64_w4_s2_sm_120.zst`.
pub static DKV_D96_64X64_W4_S2_SM_120: [u8; 21721] = *include_bytes!("../../images/dkv_d96_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `dq_d128_32x32_w4_s1_sm_120.zst`.
pub static DQ_D128_32X32_W4_S1_SM_120: [u8; 16030] = *include_bytes!("../../images/dq_d128_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d128_64x64_w4_s1_sm_120.zst`.
pub static DQ_D128_64X64_W4_S1_SM_120: [u8; 44928] = *include_bytes!("../../images/dq_d128_64x64_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d192_64x32_w4_s1_sm_120.zst`.
pub static DQ_D192_64X32_W4_S1_SM_120: [u8; 36339] = *include_bytes!("../../images/dq_d192_64x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d256_16x16_w4_s1_sm_120.zst`.
pub static DQ_D256_16X16_W4_S1_SM_120: [u8; 16302] = *include_bytes!("../../images/dq_d256_16x16_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d256_64x16_w4_s1_sm_120.zst`.
pub static DQ_D256_64X16_W4_S1_SM_120: [u8; 44733] = *include_bytes!("../../images/dq_d256_64x16_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d64_128x64_w4_s2_sm_120.zst`.
pub static DQ_D64_128X64_W4_S2_SM_120: [u8; 22423] = *include_bytes!("../../images/dq_d64_128x64_w4_s2_sm_120.zst");

/// The images of a kernel: `dq_d64_32x32_w4_s1_sm_120.zst`.
pub static DQ_D64_32X32_W4_S1_SM_120: [u8; 15088] = *include_bytes!("../../images/dq_d64_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d64_64x64_w4_s2_sm_120.zst`.
pub static DQ_D64_64X64_W4_S2_SM_120: [u8; 42850] = *include_bytes!("../../images/dq_d64_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `dq_d96_64x64_w4_s2_sm_120.zst`.
pub static DQ_D96_64X64_W4_S2_SM_120: [u8; 19321] = *include_bytes!("../../images/dq_d96_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `dsinks_w8_sm_120.zst`.
pub static DSINKS_W8_SM_120: [u8; 4798] = *include_bytes!("../../images/dsinks_w8_sm_120.zst");

/// The images of a kernel: `merge_w4_sm_120.zst`.
pub static MERGE_W4_SM_120: [u8; 11927] = *include_bytes!("../../images/merge_w4_sm_120.zst");

/// The images of a kernel: `mma_d128_128x64_w4_s2_sm_120.zst`.
pub static MMA_D128_128X64_W4_S2_SM_120: [u8; 36613] = *include_bytes!("../../images/mma_d128_128x64_w4_s2_sm_120.zst");

/// The images of a kernel: `mma_d128_64x64_w4_s2_sm_120.zst`.
pub static MMA_D128_64X64_W4_S2_SM_120: [u8; 156622] = *include_bytes!("../../images/mma_d128_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `mma_d192_64x64_w4_s1_sm_120.zst`.
pub static MMA_D192_64X64_W4_S1_SM_120: [u8; 158405] = *include_bytes!("../../images/mma_d192_64x64_w4_s1_sm_120.zst");

/// The images of a kernel: `mma_d256_64x64_w4_s1_sm_120.zst`.
pub static MMA_D256_64X64_W4_S1_SM_120: [u8; 198202] = *include_bytes!("../../images/mma_d256_64x64_w4_s1_sm_120.zst");

/// The images of a kernel: `mma_d32_128x64_w4_s2_sm_120.zst`.
pub static MMA_D32_128X64_W4_S2_SM_120: [u8; 108182] = *include_bytes!("../../images/mma_d32_128x64_w4_s2_sm_120.zst");

/// The images of a kernel: `mma_d512_32x32_w4_s1_sm_120.zst`.
pub static MMA_D512_32X32_W4_S1_SM_120: [u8; 72235] = *include_bytes!("../../images/mma_d512_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `mma_d64_128x32_w4_s4_sm_120.zst`.
pub static MMA_D64_128X32_W4_S4_SM_120: [u8; 28192] = *include_bytes!("../../images/mma_d64_128x32_w4_s4_sm_120.zst");

/// The images of a kernel: `mma_d64_128x64_w4_s2_sm_120.zst`.
pub static MMA_D64_128X64_W4_S2_SM_120: [u8; 161485] = *include_bytes!("../../images/mma_d64_128x64_w4_s2_sm_120.zst");

/// The images of a kernel: `mma_d64_64x64_w4_s2_sm_120.zst`.
pub static MMA_D64_64X64_W4_S2_SM_120: [u8; 155157] = *include_bytes!("../../images/mma_d64_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `mma_d96_128x32_w4_s4_sm_120.zst`.
pub static MMA_D96_128X32_W4_S4_SM_120: [u8; 124284] = *include_bytes!("../../images/mma_d96_128x32_w4_s4_sm_120.zst");

/// The images of a kernel: `prepass_w4_sm_120.zst`.
pub static PREPASS_W4_SM_120: [u8; 9565] = *include_bytes!("../../images/prepass_w4_sm_120.zst");

/// The images of a kernel: `runs_w16_sm_120.zst`.
pub static RUNS_W16_SM_120: [u8; 7086] = *include_bytes!("../../images/runs_w16_sm_120.zst");

/// The images of a kernel: `scalar_d128_32x64_w4_s1_sm_120.zst`.
pub static SCALAR_D128_32X64_W4_S1_SM_120: [u8; 68421] = *include_bytes!("../../images/scalar_d128_32x64_w4_s1_sm_120.zst");

/// The images of a kernel: `scalar_d192_32x32_w4_s1_sm_120.zst`.
pub static SCALAR_D192_32X32_W4_S1_SM_120: [u8; 37880] = *include_bytes!("../../images/scalar_d192_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `scalar_d256_16x32_w4_s1_sm_120.zst`.
pub static SCALAR_D256_16X32_W4_S1_SM_120: [u8; 26248] = *include_bytes!("../../images/scalar_d256_16x32_w4_s1_sm_120.zst");

/// The images of a kernel: `scalar_d256_32x32_w4_s1_sm_120.zst`.
pub static SCALAR_D256_32X32_W4_S1_SM_120: [u8; 30225] = *include_bytes!("../../images/scalar_d256_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `scalar_d32_32x64_w4_s2_sm_120.zst`.
pub static SCALAR_D32_32X64_W4_S2_SM_120: [u8; 45227] = *include_bytes!("../../images/scalar_d32_32x64_w4_s2_sm_120.zst");

/// The images of a kernel: `scalar_d64_32x128_w4_s2_sm_120.zst`.
pub static SCALAR_D64_32X128_W4_S2_SM_120: [u8; 43514] = *include_bytes!("../../images/scalar_d64_32x128_w4_s2_sm_120.zst");

/// The images of a kernel: `scalar_d64_64x64_w4_s2_sm_120.zst`.
pub static SCALAR_D64_64X64_W4_S2_SM_120: [u8; 39773] = *include_bytes!("../../images/scalar_d64_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `scalar_d96_64x32_w4_s2_sm_120.zst`.
pub static SCALAR_D96_64X32_W4_S2_SM_120: [u8; 49570] = *include_bytes!("../../images/scalar_d96_64x32_w4_s2_sm_120.zst");
