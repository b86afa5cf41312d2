// Written by `cargo xtask build-kernels`. Do not edit.

/// The images of a kernel: `append_e4m3_w4_ptx.zst`.
pub static APPEND_E4M3_W4_PTX: [u8; 19116] = *include_bytes!("../../images/append_e4m3_w4_ptx.zst");

/// The images of a kernel: `append_w4_ptx.zst`.
pub static APPEND_W4_PTX: [u8; 11228] = *include_bytes!("../../images/append_w4_ptx.zst");

/// The images of a kernel: `dbias_d256_32x32_w4_s2_ptx.zst`.
pub static DBIAS_D256_32X32_W4_S2_PTX: [u8; 23996] = *include_bytes!("../../images/dbias_d256_32x32_w4_s2_ptx.zst");

/// The images of a kernel: `dbias_d256_64x64_w4_s3_ptx.zst`.
pub static DBIAS_D256_64X64_W4_S3_PTX: [u8; 26228] = *include_bytes!("../../images/dbias_d256_64x64_w4_s3_ptx.zst");

/// The images of a kernel: `decode_d128_16x128_w4_s2_e4m3_ptx.zst`.
pub static DECODE_D128_16X128_W4_S2_E4M3_PTX: [u8; 62261] = *include_bytes!("../../images/decode_d128_16x128_w4_s2_e4m3_ptx.zst");

/// The images of a kernel: `decode_d128_16x64_w4_s2_ptx.zst`.
pub static DECODE_D128_16X64_W4_S2_PTX: [u8; 38196] = *include_bytes!("../../images/decode_d128_16x64_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d128_32x64_w4_s2_ptx.zst`.
pub static DECODE_D128_32X64_W4_S2_PTX: [u8; 24455] = *include_bytes!("../../images/decode_d128_32x64_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d128_64x64_w4_s2_ptx.zst`.
pub static DECODE_D128_64X64_W4_S2_PTX: [u8; 50586] = *include_bytes!("../../images/decode_d128_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d256_16x32_w2_s2_ptx.zst`.
pub static DECODE_D256_16X32_W2_S2_PTX: [u8; 40144] = *include_bytes!("../../images/decode_d256_16x32_w2_s2_ptx.zst");

/// The images of a kernel: `decode_d256_16x64_w2_s2_e4m3_ptx.zst`.
pub static DECODE_D256_16X64_W2_S2_E4M3_PTX: [u8; 62662] = *include_bytes!("../../images/decode_d256_16x64_w2_s2_e4m3_ptx.zst");

/// The images of a kernel: `decode_d512_16x16_w4_s2_ptx.zst`.
pub static DECODE_D512_16X16_W4_S2_PTX: [u8; 40909] = *include_bytes!("../../images/decode_d512_16x16_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s2_ptx.zst`.
pub static DECODE_D64_16X128_W4_S2_PTX: [u8; 40710] = *include_bytes!("../../images/decode_d64_16x128_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s4_e4m3_ptx.zst`.
pub static DECODE_D64_16X128_W4_S4_E4M3_PTX: [u8; 55203] = *include_bytes!("../../images/decode_d64_16x128_w4_s4_e4m3_ptx.zst");

/// The images of a kernel: `decode_d64_32x128_w4_s2_ptx.zst`.
pub static DECODE_D64_32X128_W4_S2_PTX: [u8; 25608] = *include_bytes!("../../images/decode_d64_32x128_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d64_64x64_w4_s4_ptx.zst`.
pub static DECODE_D64_64X64_W4_S4_PTX: [u8; 47660] = *include_bytes!("../../images/decode_d64_64x64_w4_s4_ptx.zst");

/// The images of a kernel: `dkv_d128_32x32_w4_s1_ptx.zst`.
pub static DKV_D128_32X32_W4_S1_PTX: [u8; 17275] = *include_bytes!("../../images/dkv_d128_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `dkv_d128_64x64_w4_s1_ptx.zst`.
pub static DKV_D128_64X64_W4_S1_PTX: [u8; 59579] = *include_bytes!("../../images/dkv_d128_64x64_w4_s1_ptx.zst");

/// The images of a kernel: `dkv_d192_32x64_w8_s1_ptx.zst`.
pub static DKV_D192_32X64_W8_S1_PTX: [u8; 31609] = *include_bytes!("../../images/dkv_d192_32x64_w8_s1_ptx.zst");

/// The images of a kernel: `dkv_d256_16x16_w4_s1_ptx.zst`.
pub static DKV_D256_16X16_W4_S1_PTX: [u8; 17370] = *include_bytes!("../../images/dkv_d256_16x16_w4_s1_ptx.zst");

/// The images of a kernel: `dkv_d256_32x32_w4_s1_ptx.zst`.
pub static DKV_D256_32X32_W4_S1_PTX: [u8; 49387] = *include_bytes!("../../images/dkv_d256_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `dkv_d64_32x32_w4_s1_ptx.zst`.
pub static DKV_D64_32X32_W4_S1_PTX: [u8; 16060] = *include_bytes!("../../images/dkv_d64_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `dkv_d64_64x64_w4_s2_ptx.zst`.
pub static DKV_D64_64X64_W4_S2_PTX: [u8; 52995] = *include_bytes!("../../images/dkv_d64_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `dkv_d96_64x64_w4_s2_ptx.zst`.
pub static DKV_D96_64X64_W4_S2_PTX: [u8; 20266] = *include_bytes!("../../images/dkv_d96_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `dq_d128_32x32_w4_s1_ptx.zst`.
pub static DQ_D128_32X32_W4_S1_PTX: [u8; 15418] = *include_bytes!("../../images/dq_d128_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d128_64x64_w4_s1_ptx.zst`.
pub static DQ_D128_64X64_W4_S1_PTX: [u8; 50260] = *include_bytes!("../../images/dq_d128_64x64_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d192_64x32_w4_s1_ptx.zst`.
pub static DQ_D192_64X32_W4_S1_PTX: [u8; 39577] = *include_bytes!("../../images/dq_d192_64x32_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d256_16x16_w4_s1_ptx.zst`.
pub static DQ_D256_16X16_W4_S1_PTX: [u8; 14934] = *include_bytes!("../../images/dq_d256_16x16_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d256_64x16_w4_s1_ptx.zst`.
pub static DQ_D256_64X16_W4_S1_PTX: [u8; 44974] = *include_bytes!("../../images/dq_d256_64x16_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d256_64x32_w4_s1_ptx.zst`.
pub static DQ_D256_64X32_W4_S1_PTX: [u8; 22956] = *include_bytes!("../../images/dq_d256_64x32_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d64_128x64_w4_s2_ptx.zst`.
pub static DQ_D64_128X64_W4_S2_PTX: [u8; 23141] = *include_bytes!("../../images/dq_d64_128x64_w4_s2_ptx.zst");

/// The images of a kernel: `dq_d64_32x32_w4_s1_ptx.zst`.
pub static DQ_D64_32X32_W4_S1_PTX: [u8; 14136] = *include_bytes!("../../images/dq_d64_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d64_64x64_w4_s2_ptx.zst`.
pub static DQ_D64_64X64_W4_S2_PTX: [u8; 43264] = *include_bytes!("../../images/dq_d64_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `dq_d96_64x64_w4_s2_ptx.zst`.
pub static DQ_D96_64X64_W4_S2_PTX: [u8; 18368] = *include_bytes!("../../images/dq_d96_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `dsinks_w8_ptx.zst`.
pub static DSINKS_W8_PTX: [u8; 2487] = *include_bytes!("../../images/dsinks_w8_ptx.zst");

/// The images of a kernel: `merge_w4_ptx.zst`.
pub static MERGE_W4_PTX: [u8; 8162] = *include_bytes!("../../images/merge_w4_ptx.zst");

/// The images of a kernel: `mma_d128_128x64_w4_s2_ptx.zst`.
pub static MMA_D128_128X64_W4_S2_PTX: [u8; 35011] = *include_bytes!("../../images/mma_d128_128x64_w4_s2_ptx.zst");

/// The images of a kernel: `mma_d128_64x64_w4_s2_ptx.zst`.
pub static MMA_D128_64X64_W4_S2_PTX: [u8; 193414] = *include_bytes!("../../images/mma_d128_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `mma_d192_64x64_w4_s1_ptx.zst`.
pub static MMA_D192_64X64_W4_S1_PTX: [u8; 216362] = *include_bytes!("../../images/mma_d192_64x64_w4_s1_ptx.zst");

/// The images of a kernel: `mma_d256_64x64_w4_s1_ptx.zst`.
pub static MMA_D256_64X64_W4_S1_PTX: [u8; 268637] = *include_bytes!("../../images/mma_d256_64x64_w4_s1_ptx.zst");

/// The images of a kernel: `mma_d32_128x64_w4_s2_ptx.zst`.
pub static MMA_D32_128X64_W4_S2_PTX: [u8; 128389] = *include_bytes!("../../images/mma_d32_128x64_w4_s2_ptx.zst");

/// The images of a kernel: `mma_d512_32x32_w4_s1_ptx.zst`.
pub static MMA_D512_32X32_W4_S1_PTX: [u8; 133975] = *include_bytes!("../../images/mma_d512_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `mma_d64_128x32_w4_s4_ptx.zst`.
pub static MMA_D64_128X32_W4_S4_PTX: [u8; 25923] = *include_bytes!("../../images/mma_d64_128x32_w4_s4_ptx.zst");

/// The images of a kernel: `mma_d64_128x64_w4_s2_ptx.zst`.
pub static MMA_D64_128X64_W4_S2_PTX: [u8; 185167] = *include_bytes!("../../images/mma_d64_128x64_w4_s2_ptx.zst");

/// The images of a kernel: `mma_d64_64x64_w4_s2_ptx.zst`.
pub static MMA_D64_64X64_W4_S2_PTX: [u8; 169908] = *include_bytes!("../../images/mma_d64_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `mma_d96_128x32_w4_s3_ptx.zst`.
pub static MMA_D96_128X32_W4_S3_PTX: [u8; 107372] = *include_bytes!("../../images/mma_d96_128x32_w4_s3_ptx.zst");

/// The images of a kernel: `prepass_w4_ptx.zst`.
pub static PREPASS_W4_PTX: [u8; 5144] = *include_bytes!("../../images/prepass_w4_ptx.zst");

/// The images of a kernel: `runs_w16_ptx.zst`.
pub static RUNS_W16_PTX: [u8; 4172] = *include_bytes!("../../images/runs_w16_ptx.zst");

/// The images of a kernel: `scalar_d128_32x64_w4_s1_ptx.zst`.
pub static SCALAR_D128_32X64_W4_S1_PTX: [u8; 106457] = *include_bytes!("../../images/scalar_d128_32x64_w4_s1_ptx.zst");

/// The images of a kernel: `scalar_d128_48x32_w8_s2_ptx.zst`.
pub static SCALAR_D128_48X32_W8_S2_PTX: [u8; 15547] = *include_bytes!("../../images/scalar_d128_48x32_w8_s2_ptx.zst");

/// The images of a kernel: `scalar_d192_32x32_w4_s1_ptx.zst`.
pub static SCALAR_D192_32X32_W4_S1_PTX: [u8; 43677] = *include_bytes!("../../images/scalar_d192_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `scalar_d256_16x32_w4_s1_ptx.zst`.
pub static SCALAR_D256_16X32_W4_S1_PTX: [u8; 27322] = *include_bytes!("../../images/scalar_d256_16x32_w4_s1_ptx.zst");

/// The images of a kernel: `scalar_d256_32x32_w4_s1_ptx.zst`.
pub static SCALAR_D256_32X32_W4_S1_PTX: [u8; 64407] = *include_bytes!("../../images/scalar_d256_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `scalar_d32_32x64_w4_s2_ptx.zst`.
pub static SCALAR_D32_32X64_W4_S2_PTX: [u8; 42786] = *include_bytes!("../../images/scalar_d32_32x64_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_16x64_w4_s2_ptx.zst`.
pub static SCALAR_D64_16X64_W4_S2_PTX: [u8; 16109] = *include_bytes!("../../images/scalar_d64_16x64_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_32x128_w4_s2_ptx.zst`.
pub static SCALAR_D64_32X128_W4_S2_PTX: [u8; 38667] = *include_bytes!("../../images/scalar_d64_32x128_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_32x32_w4_s2_ptx.zst`.
pub static SCALAR_D64_32X32_W4_S2_PTX: [u8; 15247] = *include_bytes!("../../images/scalar_d64_32x32_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_32x64_w4_s1_ptx.zst`.
pub static SCALAR_D64_32X64_W4_S1_PTX: [u8; 21096] = *include_bytes!("../../images/scalar_d64_32x64_w4_s1_ptx.zst");

/// The images of a kernel: `scalar_d64_32x64_w4_s2_ptx.zst`.
pub static SCALAR_D64_32X64_W4_S2_PTX: [u8; 21942] = *include_bytes!("../../images/scalar_d64_32x64_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_48x64_w8_s2_ptx.zst`.
pub static SCALAR_D64_48X64_W8_S2_PTX: [u8; 19183] = *include_bytes!("../../images/scalar_d64_48x64_w8_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_64x64_w4_s2_ptx.zst`.
pub static SCALAR_D64_64X64_W4_S2_PTX: [u8; 74211] = *include_bytes!("../../images/scalar_d64_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_64x64_w8_s2_ptx.zst`.
pub static SCALAR_D64_64X64_W8_S2_PTX: [u8; 22161] = *include_bytes!("../../images/scalar_d64_64x64_w8_s2_ptx.zst");

/// The images of a kernel: `scalar_d96_64x32_w4_s2_ptx.zst`.
pub static SCALAR_D96_64X32_W4_S2_PTX: [u8; 53171] = *include_bytes!("../../images/scalar_d96_64x32_w4_s2_ptx.zst");

/// The images of a kernel: `wmma_d128_48x32_w8_s2_ptx.zst`.
pub static WMMA_D128_48X32_W8_S2_PTX: [u8; 19584] = *include_bytes!("../../images/wmma_d128_48x32_w8_s2_ptx.zst");

/// The images of a kernel: `wmma_d64_16x64_w4_s2_ptx.zst`.
pub static WMMA_D64_16X64_W4_S2_PTX: [u8; 14971] = *include_bytes!("../../images/wmma_d64_16x64_w4_s2_ptx.zst");

/// The images of a kernel: `wmma_d64_32x32_w4_s2_ptx.zst`.
pub static WMMA_D64_32X32_W4_S2_PTX: [u8; 14517] = *include_bytes!("../../images/wmma_d64_32x32_w4_s2_ptx.zst");

/// The images of a kernel: `wmma_d64_32x64_w4_s1_ptx.zst`.
pub static WMMA_D64_32X64_W4_S1_PTX: [u8; 16197] = *include_bytes!("../../images/wmma_d64_32x64_w4_s1_ptx.zst");

/// The images of a kernel: `wmma_d64_32x64_w4_s2_ptx.zst`.
pub static WMMA_D64_32X64_W4_S2_PTX: [u8; 16277] = *include_bytes!("../../images/wmma_d64_32x64_w4_s2_ptx.zst");

/// The images of a kernel: `wmma_d64_48x64_w8_s2_ptx.zst`.
pub static WMMA_D64_48X64_W8_S2_PTX: [u8; 18398] = *include_bytes!("../../images/wmma_d64_48x64_w8_s2_ptx.zst");

/// The images of a kernel: `wmma_d64_64x64_w8_s2_ptx.zst`.
pub static WMMA_D64_64X64_W8_S2_PTX: [u8; 16071] = *include_bytes!("../../images/wmma_d64_64x64_w8_s2_ptx.zst");
