// Written by `cargo xtask build-kernels`. Do not edit.

/// The images of a kernel: `append_e4m3_w4_sm_120.zst`.
pub static APPEND_E4M3_W4_SM_120: [u8; 18953] = *include_bytes!("../../images/append_e4m3_w4_sm_120.zst");

/// The images of a kernel: `append_w4_sm_120.zst`.
pub static APPEND_W4_SM_120: [u8; 13873] = *include_bytes!("../../images/append_w4_sm_120.zst");

/// The images of a kernel: `dbias_d256_32x32_w4_s2_sm_120.zst`.
pub static DBIAS_D256_32X32_W4_S2_SM_120: [u8; 19386] = *include_bytes!("../../images/dbias_d256_32x32_w4_s2_sm_120.zst");

/// The images of a kernel: `dbias_d256_64x64_w4_s3_sm_120.zst`.
pub static DBIAS_D256_64X64_W4_S3_SM_120: [u8; 24856] = *include_bytes!("../../images/dbias_d256_64x64_w4_s3_sm_120.zst");

/// The images of a kernel: `decode_d128_16x128_w4_s2_e4m3_sm_120.zst`.
pub static DECODE_D128_16X128_W4_S2_E4M3_SM_120: [u8; 49088] = *include_bytes!("../../images/decode_d128_16x128_w4_s2_e4m3_sm_120.zst");

/// The images of a kernel: `decode_d128_16x64_w4_s2_sm_120.zst`.
pub static DECODE_D128_16X64_W4_S2_SM_120: [u8; 39642] = *include_bytes!("../../images/decode_d128_16x64_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d128_32x64_w4_s2_sm_120.zst`.
pub static DECODE_D128_32X64_W4_S2_SM_120: [u8; 31224] = *include_bytes!("../../images/decode_d128_32x64_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d128_64x64_w4_s2_sm_120.zst`.
pub static DECODE_D128_64X64_W4_S2_SM_120: [u8; 62497] = *include_bytes!("../../images/decode_d128_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d256_16x32_w2_s2_sm_120.zst`.
pub static DECODE_D256_16X32_W2_S2_SM_120: [u8; 37427] = *include_bytes!("../../images/decode_d256_16x32_w2_s2_sm_120.zst");

/// The images of a kernel: `decode_d256_16x64_w2_s2_e4m3_sm_120.zst`.
pub static DECODE_D256_16X64_W2_S2_E4M3_SM_120: [u8; 47509] = *include_bytes!("../../images/decode_d256_16x64_w2_s2_e4m3_sm_120.zst");

/// The images of a kernel: `decode_d512_16x16_w4_s2_sm_120.zst`.
pub static DECODE_D512_16X16_W4_S2_SM_120: [u8; 39533] = *include_bytes!("../../images/decode_d512_16x16_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s2_sm_120.zst`.
pub static DECODE_D64_16X128_W4_S2_SM_120: [u8; 44449] = *include_bytes!("../../images/decode_d64_16x128_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s4_e4m3_sm_120.zst`.
pub static DECODE_D64_16X128_W4_S4_E4M3_SM_120: [u8; 40415] = *include_bytes!("../../images/decode_d64_16x128_w4_s4_e4m3_sm_120.zst");

/// The images of a kernel: `decode_d64_32x128_w4_s2_sm_120.zst`.
pub static DECODE_D64_32X128_W4_S2_SM_120: [u8; 32202] = *include_bytes!("../../images/decode_d64_32x128_w4_s2_sm_120.zst");

/// The images of a kernel: `decode_d64_64x64_w4_s4_sm_120.zst`.
pub static DECODE_D64_64X64_W4_S4_SM_120: [u8; 50030] = *include_bytes!("../../images/decode_d64_64x64_w4_s4_sm_120.zst");

/// The images of a kernel: `dkv_d128_32x32_w4_s1_sm_120.zst`.
pub static DKV_D128_32X32_W4_S1_SM_120: [u8; 16942] = *include_bytes!("../../images/dkv_d128_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dkv_d128_64x64_w4_s1_sm_120.zst`.
pub static DKV_D128_64X64_W4_S1_SM_120: [u8; 38744] = *include_bytes!("../../images/dkv_d128_64x64_w4_s1_sm_120.zst");

/// The images of a kernel: `dkv_d192_32x64_w8_s1_sm_120.zst`.
pub static DKV_D192_32X64_W8_S1_SM_120: [u8; 19764] = *include_bytes!("../../images/dkv_d192_32x64_w8_s1_sm_120.zst");

/// The images of a kernel: `dkv_d256_16x16_w4_s1_sm_120.zst`.
pub static DKV_D256_16X16_W4_S1_SM_120: [u8; 17389] = *include_bytes!("../../images/dkv_d256_16x16_w4_s1_sm_120.zst");

/// The images of a kernel: `dkv_d256_32x32_w4_s1_sm_120.zst`.
pub static DKV_D256_32X32_W4_S1_SM_120: [u8; 31606] = *include_bytes!("../../images/dkv_d256_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dkv_d64_32x32_w4_s1_sm_120.zst`.
pub static DKV_D64_32X32_W4_S1_SM_120: [u8; 16763] = *include_bytes!("../../images/dkv_d64_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dkv_d64_64x64_w4_s2_sm_120.zst`.
pub static DKV_D64_64X64_W4_S2_SM_120: [u8; 37387] = *include_bytes!("../../images/dkv_d64_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `dkv_d96_64x64_w4_s2_sm_120.zst`.
pub static DKV_D96_64X64_W4_S2_SM_120: [u8; 21700] = *include_bytes!("../../images/dkv_d96_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `dq_d128_32x32_w4_s1_sm_120.zst`.
pub static DQ_D128_32X32_W4_S1_SM_120: [u8; 16070] = *include_bytes!("../../images/dq_d128_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d128_64x64_w4_s1_sm_120.zst`.
pub static DQ_D128_64X64_W4_S1_SM_120: [u8; 31511] = *include_bytes!("../../images/dq_d128_64x64_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d192_64x32_w4_s1_sm_120.zst`.
pub static DQ_D192_64X32_W4_S1_SM_120: [u8; 21484] = *include_bytes!("../../images/dq_d192_64x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d256_16x16_w4_s1_sm_120.zst`.
pub static DQ_D256_16X16_W4_S1_SM_120: [u8; 16319] = *include_bytes!("../../images/dq_d256_16x16_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d256_64x16_w4_s1_sm_120.zst`.
pub static DQ_D256_64X16_W4_S1_SM_120: [u8; 32461] = *include_bytes!("../../images/dq_d256_64x16_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d64_128x64_w4_s2_sm_120.zst`.
pub static DQ_D64_128X64_W4_S2_SM_120: [u8; 22451] = *include_bytes!("../../images/dq_d64_128x64_w4_s2_sm_120.zst");

/// The images of a kernel: `dq_d64_32x32_w4_s1_sm_120.zst`.
pub static DQ_D64_32X32_W4_S1_SM_120: [u8; 15109] = *include_bytes!("../../images/dq_d64_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `dq_d64_64x64_w4_s2_sm_120.zst`.
pub static DQ_D64_64X64_W4_S2_SM_120: [u8; 29608] = *include_bytes!("../../images/dq_d64_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `dq_d96_64x64_w4_s2_sm_120.zst`.
pub static DQ_D96_64X64_W4_S2_SM_120: [u8; 19392] = *include_bytes!("../../images/dq_d96_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `dsinks_w8_sm_120.zst`.
pub static DSINKS_W8_SM_120: [u8; 4805] = *include_bytes!("../../images/dsinks_w8_sm_120.zst");

/// The images of a kernel: `merge_w4_sm_120.zst`.
pub static MERGE_W4_SM_120: [u8; 12003] = *include_bytes!("../../images/merge_w4_sm_120.zst");

/// The images of a kernel: `mma_d128_128x64_w4_s2_sm_120.zst`.
pub static MMA_D128_128X64_W4_S2_SM_120: [u8; 36667] = *include_bytes!("../../images/mma_d128_128x64_w4_s2_sm_120.zst");

/// The images of a kernel: `mma_d128_64x64_w4_s2_sm_120.zst`.
pub static MMA_D128_64X64_W4_S2_SM_120: [u8; 128179] = *include_bytes!("../../images/mma_d128_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `mma_d192_64x64_w4_s1_sm_120.zst`.
pub static MMA_D192_64X64_W4_S1_SM_120: [u8; 128103] = *include_bytes!("../../images/mma_d192_64x64_w4_s1_sm_120.zst");

/// The images of a kernel: `mma_d256_64x64_w4_s1_sm_120.zst`.
pub static MMA_D256_64X64_W4_S1_SM_120: [u8; 168416] = *include_bytes!("../../images/mma_d256_64x64_w4_s1_sm_120.zst");

/// The images of a kernel: `mma_d32_128x64_w4_s2_sm_120.zst`.
pub static MMA_D32_128X64_W4_S2_SM_120: [u8; 108455] = *include_bytes!("../../images/mma_d32_128x64_w4_s2_sm_120.zst");

/// The images of a kernel: `mma_d512_32x32_w4_s1_sm_120.zst`.
pub static MMA_D512_32X32_W4_S1_SM_120: [u8; 72338] = *include_bytes!("../../images/mma_d512_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `mma_d64_128x32_w4_s4_sm_120.zst`.
pub static MMA_D64_128X32_W4_S4_SM_120: [u8; 28391] = *include_bytes!("../../images/mma_d64_128x32_w4_s4_sm_120.zst");

/// The images of a kernel: `mma_d64_128x64_w4_s2_sm_120.zst`.
pub static MMA_D64_128X64_W4_S2_SM_120: [u8; 161351] = *include_bytes!("../../images/mma_d64_128x64_w4_s2_sm_120.zst");

/// The images of a kernel: `mma_d64_64x64_w4_s2_sm_120.zst`.
pub static MMA_D64_64X64_W4_S2_SM_120: [u8; 130287] = *include_bytes!("../../images/mma_d64_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `mma_d96_128x32_w4_s4_sm_120.zst`.
pub static MMA_D96_128X32_W4_S4_SM_120: [u8; 124577] = *include_bytes!("../../images/mma_d96_128x32_w4_s4_sm_120.zst");

/// The images of a kernel: `prepass_w4_sm_120.zst`.
pub static PREPASS_W4_SM_120: [u8; 9536] = *include_bytes!("../../images/prepass_w4_sm_120.zst");

/// The images of a kernel: `runs_w16_sm_120.zst`.
pub static RUNS_W16_SM_120: [u8; 7098] = *include_bytes!("../../images/runs_w16_sm_120.zst");

/// The images of a kernel: `scalar_d128_32x64_w4_s1_sm_120.zst`.
pub static SCALAR_D128_32X64_W4_S1_SM_120: [u8; 68449] = *include_bytes!("../../images/scalar_d128_32x64_w4_s1_sm_120.zst");

/// The images of a kernel: `scalar_d192_32x32_w4_s1_sm_120.zst`.
pub static SCALAR_D192_32X32_W4_S1_SM_120: [u8; 37940] = *include_bytes!("../../images/scalar_d192_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `scalar_d256_16x32_w4_s1_sm_120.zst`.
pub static SCALAR_D256_16X32_W4_S1_SM_120: [u8; 26256] = *include_bytes!("../../images/scalar_d256_16x32_w4_s1_sm_120.zst");

/// The images of a kernel: `scalar_d256_32x32_w4_s1_sm_120.zst`.
pub static SCALAR_D256_32X32_W4_S1_SM_120: [u8; 30243] = *include_bytes!("../../images/scalar_d256_32x32_w4_s1_sm_120.zst");

/// The images of a kernel: `scalar_d32_32x64_w4_s2_sm_120.zst`.
pub static SCALAR_D32_32X64_W4_S2_SM_120: [u8; 45229] = *include_bytes!("../../images/scalar_d32_32x64_w4_s2_sm_120.zst");

/// The images of a kernel: `scalar_d64_32x128_w4_s2_sm_120.zst`.
pub static SCALAR_D64_32X128_W4_S2_SM_120: [u8; 43600] = *include_bytes!("../../images/scalar_d64_32x128_w4_s2_sm_120.zst");

/// The images of a kernel: `scalar_d64_64x64_w4_s2_sm_120.zst`.
pub static SCALAR_D64_64X64_W4_S2_SM_120: [u8; 39813] = *include_bytes!("../../images/scalar_d64_64x64_w4_s2_sm_120.zst");

/// The images of a kernel: `scalar_d96_64x32_w4_s2_sm_120.zst`.
pub static SCALAR_D96_64X32_W4_S2_SM_120: [u8; 49612] = *include_bytes!("../../images/scalar_d96_64x32_w4_s2_sm_120.zst");
