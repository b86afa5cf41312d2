// Written by `cargo xtask build-kernels`. Do not edit.

/// The images of a kernel: `append_e4m3_w4_sm_80.zst`.
pub static APPEND_E4M3_W4_SM_80: [u8; 13996] = *include_bytes!("../../images/append_e4m3_w4_sm_80.zst");

/// The images of a kernel: `append_w4_sm_80.zst`.
pub static APPEND_W4_SM_80: [u8; 11865] = *include_bytes!("../../images/append_w4_sm_80.zst");

/// The images of a kernel: `dbias_d256_32x32_w4_s2_sm_80.zst`.
pub static DBIAS_D256_32X32_W4_S2_SM_80: [u8; 15085] = *include_bytes!("../../images/dbias_d256_32x32_w4_s2_sm_80.zst");

/// The images of a kernel: `dbias_d256_64x64_w4_s3_sm_80.zst`.
pub static DBIAS_D256_64X64_W4_S3_SM_80: [u8; 21207] = *include_bytes!("../../images/dbias_d256_64x64_w4_s3_sm_80.zst");

/// The images of a kernel: `decode_d128_16x128_w4_s2_e4m3_sm_80.zst`.
pub static DECODE_D128_16X128_W4_S2_E4M3_SM_80: [u8; 59577] = *include_bytes!("../../images/decode_d128_16x128_w4_s2_e4m3_sm_80.zst");

/// The images of a kernel: `decode_d128_16x64_w4_s2_sm_80.zst`.
pub static DECODE_D128_16X64_W4_S2_SM_80: [u8; 30402] = *include_bytes!("../../images/decode_d128_16x64_w4_s2_sm_80.zst");

/// The images of a kernel: `decode_d128_32x64_w4_s2_sm_80.zst`.
pub static DECODE_D128_32X64_W4_S2_SM_80: [u8; 23998] = *include_bytes!("../../images/decode_d128_32x64_w4_s2_sm_80.zst");

/// The images of a kernel: `decode_d128_64x64_w4_s2_sm_80.zst`.
pub static DECODE_D128_64X64_W4_S2_SM_80: [u8; 48837] = *include_bytes!("../../images/decode_d128_64x64_w4_s2_sm_80.zst");

/// The images of a kernel: `decode_d256_16x32_w2_s2_sm_80.zst`.
pub static DECODE_D256_16X32_W2_S2_SM_80: [u8; 35499] = *include_bytes!("../../images/decode_d256_16x32_w2_s2_sm_80.zst");

/// The images of a kernel: `decode_d256_16x64_w2_s2_e4m3_sm_80.zst`.
pub static DECODE_D256_16X64_W2_S2_E4M3_SM_80: [u8; 54888] = *include_bytes!("../../images/decode_d256_16x64_w2_s2_e4m3_sm_80.zst");

/// The images of a kernel: `decode_d512_16x16_w4_s2_sm_80.zst`.
pub static DECODE_D512_16X16_W4_S2_SM_80: [u8; 31540] = *include_bytes!("../../images/decode_d512_16x16_w4_s2_sm_80.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s2_sm_80.zst`.
pub static DECODE_D64_16X128_W4_S2_SM_80: [u8; 38532] = *include_bytes!("../../images/decode_d64_16x128_w4_s2_sm_80.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s4_e4m3_sm_80.zst`.
pub static DECODE_D64_16X128_W4_S4_E4M3_SM_80: [u8; 44897] = *include_bytes!("../../images/decode_d64_16x128_w4_s4_e4m3_sm_80.zst");

/// The images of a kernel: `decode_d64_32x128_w4_s2_sm_80.zst`.
pub static DECODE_D64_32X128_W4_S2_SM_80: [u8; 25421] = *include_bytes!("../../images/decode_d64_32x128_w4_s2_sm_80.zst");

/// The images of a kernel: `decode_d64_64x64_w4_s4_sm_80.zst`.
pub static DECODE_D64_64X64_W4_S4_SM_80: [u8; 47281] = *include_bytes!("../../images/decode_d64_64x64_w4_s4_sm_80.zst");

/// The images of a kernel: `dkv_d128_32x32_w4_s1_sm_80.zst`.
pub static DKV_D128_32X32_W4_S1_SM_80: [u8; 15440] = *include_bytes!("../../images/dkv_d128_32x32_w4_s1_sm_80.zst");

/// The images of a kernel: `dkv_d128_64x128_w8_s1_sm_80.zst`.
pub static DKV_D128_64X128_W8_S1_SM_80: [u8; 22681] = *include_bytes!("../../images/dkv_d128_64x128_w8_s1_sm_80.zst");

/// The images of a kernel: `dkv_d128_64x64_w4_s1_sm_80.zst`.
pub static DKV_D128_64X64_W4_S1_SM_80: [u8; 51324] = *include_bytes!("../../images/dkv_d128_64x64_w4_s1_sm_80.zst");

/// The images of a kernel: `dkv_d192_32x64_w8_s1_sm_80.zst`.
pub static DKV_D192_32X64_W8_S1_SM_80: [u8; 27485] = *include_bytes!("../../images/dkv_d192_32x64_w8_s1_sm_80.zst");

/// The images of a kernel: `dkv_d256_16x16_w4_s1_sm_80.zst`.
pub static DKV_D256_16X16_W4_S1_SM_80: [u8; 14771] = *include_bytes!("../../images/dkv_d256_16x16_w4_s1_sm_80.zst");

/// The images of a kernel: `dkv_d256_32x32_w4_s1_sm_80.zst`.
pub static DKV_D256_32X32_W4_S1_SM_80: [u8; 35940] = *include_bytes!("../../images/dkv_d256_32x32_w4_s1_sm_80.zst");

/// The images of a kernel: `dkv_d256_64x64_w8_s1_sm_80.zst`.
pub static DKV_D256_64X64_W8_S1_SM_80: [u8; 22021] = *include_bytes!("../../images/dkv_d256_64x64_w8_s1_sm_80.zst");

/// The images of a kernel: `dkv_d64_32x32_w4_s1_sm_80.zst`.
pub static DKV_D64_32X32_W4_S1_SM_80: [u8; 14553] = *include_bytes!("../../images/dkv_d64_32x32_w4_s1_sm_80.zst");

/// The images of a kernel: `dkv_d64_64x64_w4_s2_sm_80.zst`.
pub static DKV_D64_64X64_W4_S2_SM_80: [u8; 49978] = *include_bytes!("../../images/dkv_d64_64x64_w4_s2_sm_80.zst");

/// The images of a kernel: `dkv_d96_64x64_w4_s2_sm_80.zst`.
pub static DKV_D96_64X64_W4_S2_SM_80: [u8; 19729] = *include_bytes!("../../images/dkv_d96_64x64_w4_s2_sm_80.zst");

/// The images of a kernel: `dq_d128_32x32_w4_s1_sm_80.zst`.
pub static DQ_D128_32X32_W4_S1_SM_80: [u8; 12664] = *include_bytes!("../../images/dq_d128_32x32_w4_s1_sm_80.zst");

/// The images of a kernel: `dq_d128_64x64_w4_s1_sm_80.zst`.
pub static DQ_D128_64X64_W4_S1_SM_80: [u8; 42436] = *include_bytes!("../../images/dq_d128_64x64_w4_s1_sm_80.zst");

/// The images of a kernel: `dq_d192_64x32_w4_s1_sm_80.zst`.
pub static DQ_D192_64X32_W4_S1_SM_80: [u8; 31413] = *include_bytes!("../../images/dq_d192_64x32_w4_s1_sm_80.zst");

/// The images of a kernel: `dq_d256_16x16_w4_s1_sm_80.zst`.
pub static DQ_D256_16X16_W4_S1_SM_80: [u8; 15216] = *include_bytes!("../../images/dq_d256_16x16_w4_s1_sm_80.zst");

/// The images of a kernel: `dq_d256_64x16_w4_s1_sm_80.zst`.
pub static DQ_D256_64X16_W4_S1_SM_80: [u8; 40185] = *include_bytes!("../../images/dq_d256_64x16_w4_s1_sm_80.zst");

/// The images of a kernel: `dq_d256_64x32_w4_s1_sm_80.zst`.
pub static DQ_D256_64X32_W4_S1_SM_80: [u8; 19868] = *include_bytes!("../../images/dq_d256_64x32_w4_s1_sm_80.zst");

/// The images of a kernel: `dq_d64_128x64_w4_s2_sm_80.zst`.
pub static DQ_D64_128X64_W4_S2_SM_80: [u8; 21293] = *include_bytes!("../../images/dq_d64_128x64_w4_s2_sm_80.zst");

/// The images of a kernel: `dq_d64_32x32_w4_s1_sm_80.zst`.
pub static DQ_D64_32X32_W4_S1_SM_80: [u8; 12132] = *include_bytes!("../../images/dq_d64_32x32_w4_s1_sm_80.zst");

/// The images of a kernel: `dq_d64_64x64_w4_s2_sm_80.zst`.
pub static DQ_D64_64X64_W4_S2_SM_80: [u8; 42767] = *include_bytes!("../../images/dq_d64_64x64_w4_s2_sm_80.zst");

/// The images of a kernel: `dq_d96_64x64_w4_s2_sm_80.zst`.
pub static DQ_D96_64X64_W4_S2_SM_80: [u8; 18345] = *include_bytes!("../../images/dq_d96_64x64_w4_s2_sm_80.zst");

/// The images of a kernel: `dsinks_w8_sm_80.zst`.
pub static DSINKS_W8_SM_80: [u8; 3629] = *include_bytes!("../../images/dsinks_w8_sm_80.zst");

/// The images of a kernel: `merge_w4_sm_80.zst`.
pub static MERGE_W4_SM_80: [u8; 9403] = *include_bytes!("../../images/merge_w4_sm_80.zst");

/// The images of a kernel: `mma_d128_128x64_w4_s2_sm_80.zst`.
pub static MMA_D128_128X64_W4_S2_SM_80: [u8; 31055] = *include_bytes!("../../images/mma_d128_128x64_w4_s2_sm_80.zst");

/// The images of a kernel: `mma_d128_64x64_w4_s2_sm_80.zst`.
pub static MMA_D128_64X64_W4_S2_SM_80: [u8; 153187] = *include_bytes!("../../images/mma_d128_64x64_w4_s2_sm_80.zst");

/// The images of a kernel: `mma_d192_128x64_w8_s2_sm_80.zst`.
pub static MMA_D192_128X64_W8_S2_SM_80: [u8; 23707] = *include_bytes!("../../images/mma_d192_128x64_w8_s2_sm_80.zst");

/// The images of a kernel: `mma_d192_64x64_w4_s1_sm_80.zst`.
pub static MMA_D192_64X64_W4_S1_SM_80: [u8; 171871] = *include_bytes!("../../images/mma_d192_64x64_w4_s1_sm_80.zst");

/// The images of a kernel: `mma_d256_64x64_w4_s1_sm_80.zst`.
pub static MMA_D256_64X64_W4_S1_SM_80: [u8; 173830] = *include_bytes!("../../images/mma_d256_64x64_w4_s1_sm_80.zst");

/// The images of a kernel: `mma_d32_128x64_w4_s2_sm_80.zst`.
pub static MMA_D32_128X64_W4_S2_SM_80: [u8; 120669] = *include_bytes!("../../images/mma_d32_128x64_w4_s2_sm_80.zst");

/// The images of a kernel: `mma_d512_32x32_w4_s1_sm_80.zst`.
pub static MMA_D512_32X32_W4_S1_SM_80: [u8; 64372] = *include_bytes!("../../images/mma_d512_32x32_w4_s1_sm_80.zst");

/// The images of a kernel: `mma_d64_128x32_w4_s4_sm_80.zst`.
pub static MMA_D64_128X32_W4_S4_SM_80: [u8; 23746] = *include_bytes!("../../images/mma_d64_128x32_w4_s4_sm_80.zst");

/// The images of a kernel: `mma_d64_128x64_w4_s2_sm_80.zst`.
pub static MMA_D64_128X64_W4_S2_SM_80: [u8; 168950] = *include_bytes!("../../images/mma_d64_128x64_w4_s2_sm_80.zst");

/// The images of a kernel: `mma_d64_64x64_w4_s2_sm_80.zst`.
pub static MMA_D64_64X64_W4_S2_SM_80: [u8; 149388] = *include_bytes!("../../images/mma_d64_64x64_w4_s2_sm_80.zst");

/// The images of a kernel: `mma_d96_128x32_w4_s4_sm_80.zst`.
pub static MMA_D96_128X32_W4_S4_SM_80: [u8; 112219] = *include_bytes!("../../images/mma_d96_128x32_w4_s4_sm_80.zst");

/// The images of a kernel: `prepass_w4_sm_80.zst`.
pub static PREPASS_W4_SM_80: [u8; 6675] = *include_bytes!("../../images/prepass_w4_sm_80.zst");

/// The images of a kernel: `runs_w16_sm_80.zst`.
pub static RUNS_W16_SM_80: [u8; 5133] = *include_bytes!("../../images/runs_w16_sm_80.zst");

/// The images of a kernel: `scalar_d128_32x64_w4_s1_sm_80.zst`.
pub static SCALAR_D128_32X64_W4_S1_SM_80: [u8; 57399] = *include_bytes!("../../images/scalar_d128_32x64_w4_s1_sm_80.zst");

/// The images of a kernel: `scalar_d128_48x32_w8_s2_sm_80.zst`.
pub static SCALAR_D128_48X32_W8_S2_SM_80: [u8; 15345] = *include_bytes!("../../images/scalar_d128_48x32_w8_s2_sm_80.zst");

/// The images of a kernel: `scalar_d192_32x32_w4_s1_sm_80.zst`.
pub static SCALAR_D192_32X32_W4_S1_SM_80: [u8; 34350] = *include_bytes!("../../images/scalar_d192_32x32_w4_s1_sm_80.zst");

/// The images of a kernel: `scalar_d256_16x32_w4_s1_sm_80.zst`.
pub static SCALAR_D256_16X32_W4_S1_SM_80: [u8; 24084] = *include_bytes!("../../images/scalar_d256_16x32_w4_s1_sm_80.zst");

/// The images of a kernel: `scalar_d256_32x32_w4_s1_sm_80.zst`.
pub static SCALAR_D256_32X32_W4_S1_SM_80: [u8; 42107] = *include_bytes!("../../images/scalar_d256_32x32_w4_s1_sm_80.zst");

/// The images of a kernel: `scalar_d32_32x64_w4_s2_sm_80.zst`.
pub static SCALAR_D32_32X64_W4_S2_SM_80: [u8; 31331] = *include_bytes!("../../images/scalar_d32_32x64_w4_s2_sm_80.zst");

/// The images of a kernel: `scalar_d64_16x64_w4_s2_sm_80.zst`.
pub static SCALAR_D64_16X64_W4_S2_SM_80: [u8; 16019] = *include_bytes!("../../images/scalar_d64_16x64_w4_s2_sm_80.zst");

/// The images of a kernel: `scalar_d64_32x128_w4_s2_sm_80.zst`.
pub static SCALAR_D64_32X128_W4_S2_SM_80: [u8; 24934] = *include_bytes!("../../images/scalar_d64_32x128_w4_s2_sm_80.zst");

/// The images of a kernel: `scalar_d64_32x32_w4_s2_sm_80.zst`.
pub static SCALAR_D64_32X32_W4_S2_SM_80: [u8; 15937] = *include_bytes!("../../images/scalar_d64_32x32_w4_s2_sm_80.zst");

/// The images of a kernel: `scalar_d64_32x64_w4_s1_sm_80.zst`.
pub static SCALAR_D64_32X64_W4_S1_SM_80: [u8; 19681] = *include_bytes!("../../images/scalar_d64_32x64_w4_s1_sm_80.zst");

/// The images of a kernel: `scalar_d64_32x64_w4_s2_sm_80.zst`.
pub static SCALAR_D64_32X64_W4_S2_SM_80: [u8; 20575] = *include_bytes!("../../images/scalar_d64_32x64_w4_s2_sm_80.zst");

/// The images of a kernel: `scalar_d64_48x64_w8_s2_sm_80.zst`.
pub static SCALAR_D64_48X64_W8_S2_SM_80: [u8; 17985] = *include_bytes!("../../images/scalar_d64_48x64_w8_s2_sm_80.zst");

/// The images of a kernel: `scalar_d64_64x64_w4_s2_sm_80.zst`.
pub static SCALAR_D64_64X64_W4_S2_SM_80: [u8; 55112] = *include_bytes!("../../images/scalar_d64_64x64_w4_s2_sm_80.zst");

/// The images of a kernel: `scalar_d64_64x64_w8_s2_sm_80.zst`.
pub static SCALAR_D64_64X64_W8_S2_SM_80: [u8; 20509] = *include_bytes!("../../images/scalar_d64_64x64_w8_s2_sm_80.zst");

/// The images of a kernel: `scalar_d96_64x32_w4_s2_sm_80.zst`.
pub static SCALAR_D96_64X32_W4_S2_SM_80: [u8; 39021] = *include_bytes!("../../images/scalar_d96_64x32_w4_s2_sm_80.zst");

/// The images of a kernel: `wmma_d128_48x32_w8_s2_sm_80.zst`.
pub static WMMA_D128_48X32_W8_S2_SM_80: [u8; 18823] = *include_bytes!("../../images/wmma_d128_48x32_w8_s2_sm_80.zst");

/// The images of a kernel: `wmma_d64_16x64_w4_s2_sm_80.zst`.
pub static WMMA_D64_16X64_W4_S2_SM_80: [u8; 15428] = *include_bytes!("../../images/wmma_d64_16x64_w4_s2_sm_80.zst");

/// The images of a kernel: `wmma_d64_32x32_w4_s2_sm_80.zst`.
pub static WMMA_D64_32X32_W4_S2_SM_80: [u8; 14950] = *include_bytes!("../../images/wmma_d64_32x32_w4_s2_sm_80.zst");

/// The images of a kernel: `wmma_d64_32x64_w4_s1_sm_80.zst`.
pub static WMMA_D64_32X64_W4_S1_SM_80: [u8; 16535] = *include_bytes!("../../images/wmma_d64_32x64_w4_s1_sm_80.zst");

/// The images of a kernel: `wmma_d64_32x64_w4_s2_sm_80.zst`.
pub static WMMA_D64_32X64_W4_S2_SM_80: [u8; 16388] = *include_bytes!("../../images/wmma_d64_32x64_w4_s2_sm_80.zst");

/// The images of a kernel: `wmma_d64_48x64_w8_s2_sm_80.zst`.
pub static WMMA_D64_48X64_W8_S2_SM_80: [u8; 19099] = *include_bytes!("../../images/wmma_d64_48x64_w8_s2_sm_80.zst");

/// The images of a kernel: `wmma_d64_64x64_w8_s2_sm_80.zst`.
pub static WMMA_D64_64X64_W8_S2_SM_80: [u8; 16130] = *include_bytes!("../../images/wmma_d64_64x64_w8_s2_sm_80.zst");
