// Written by `cargo xtask build-kernels`. Do not edit.

/// The images of a kernel: `append_e4m3_w4_ptx.zst`.
pub static APPEND_E4M3_W4_PTX: [u8; 19124] = *include_bytes!("../../images/append_e4m3_w4_ptx.zst");

/// The images of a kernel: `append_w4_ptx.zst`.
pub static APPEND_W4_PTX: [u8; 11242] = *include_bytes!("../../images/append_w4_ptx.zst");

/// The images of a kernel: `dbias_d256_32x32_w4_s2_ptx.zst`.
pub static DBIAS_D256_32X32_W4_S2_PTX: [u8; 24017] = *include_bytes!("../../images/dbias_d256_32x32_w4_s2_ptx.zst");

/// The images of a kernel: `dbias_d256_64x64_w4_s3_ptx.zst`.
pub static DBIAS_D256_64X64_W4_S3_PTX: [u8; 26235] = *include_bytes!("../../images/dbias_d256_64x64_w4_s3_ptx.zst");

/// The images of a kernel: `decode_d128_16x128_w4_s2_e4m3_ptx.zst`.
pub static DECODE_D128_16X128_W4_S2_E4M3_PTX: [u8; 62306] = *include_bytes!("../../images/decode_d128_16x128_w4_s2_e4m3_ptx.zst");

/// The images of a kernel: `decode_d128_16x64_w4_s2_ptx.zst`.
pub static DECODE_D128_16X64_W4_S2_PTX: [u8; 38178] = *include_bytes!("../../images/decode_d128_16x64_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d128_32x64_w4_s2_ptx.zst`.
pub static DECODE_D128_32X64_W4_S2_PTX: [u8; 24478] = *include_bytes!("../../images/decode_d128_32x64_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d128_64x64_w4_s2_ptx.zst`.
pub static DECODE_D128_64X64_W4_S2_PTX: [u8; 50509] = *include_bytes!("../../images/decode_d128_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d256_16x32_w2_s2_ptx.zst`.
pub static DECODE_D256_16X32_W2_S2_PTX: [u8; 40181] = *include_bytes!("../../images/decode_d256_16x32_w2_s2_ptx.zst");

/// The images of a kernel: `decode_d256_16x64_w2_s2_e4m3_ptx.zst`.
pub static DECODE_D256_16X64_W2_S2_E4M3_PTX: [u8; 62657] = *include_bytes!("../../images/decode_d256_16x64_w2_s2_e4m3_ptx.zst");

/// The images of a kernel: `decode_d512_16x16_w4_s2_ptx.zst`.
pub static DECODE_D512_16X16_W4_S2_PTX: [u8; 40901] = *include_bytes!("../../images/decode_d512_16x16_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s2_ptx.zst`.
pub static DECODE_D64_16X128_W4_S2_PTX: [u8; 40705] = *include_bytes!("../../images/decode_d64_16x128_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s4_e4m3_ptx.zst`.
pub static DECODE_D64_16X128_W4_S4_E4M3_PTX: [u8; 55201] = *include_bytes!("../../images/decode_d64_16x128_w4_s4_e4m3_ptx.zst");

/// The images of a kernel: `decode_d64_32x128_w4_s2_ptx.zst`.
pub static DECODE_D64_32X128_W4_S2_PTX: [u8; 25664] = *include_bytes!("../../images/decode_d64_32x128_w4_s2_ptx.zst");

/// The images of a kernel: `decode_d64_64x64_w4_s4_ptx.zst`.
pub static DECODE_D64_64X64_W4_S4_PTX: [u8; 47711] = *include_bytes!("../../images/decode_d64_64x64_w4_s4_ptx.zst");

/// The images of a kernel: `dkv_d128_32x32_w4_s1_ptx.zst`.
pub static DKV_D128_32X32_W4_S1_PTX: [u8; 17283] = *include_bytes!("../../images/dkv_d128_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `dkv_d128_64x64_w4_s1_ptx.zst`.
pub static DKV_D128_64X64_W4_S1_PTX: [u8; 41911] = *include_bytes!("../../images/dkv_d128_64x64_w4_s1_ptx.zst");

/// The images of a kernel: `dkv_d192_32x64_w8_s1_ptx.zst`.
pub static DKV_D192_32X64_W8_S1_PTX: [u8; 17814] = *include_bytes!("../../images/dkv_d192_32x64_w8_s1_ptx.zst");

/// The images of a kernel: `dkv_d256_16x16_w4_s1_ptx.zst`.
pub static DKV_D256_16X16_W4_S1_PTX: [u8; 17387] = *include_bytes!("../../images/dkv_d256_16x16_w4_s1_ptx.zst");

/// The images of a kernel: `dkv_d256_32x32_w4_s1_ptx.zst`.
pub static DKV_D256_32X32_W4_S1_PTX: [u8; 33614] = *include_bytes!("../../images/dkv_d256_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `dkv_d64_32x32_w4_s1_ptx.zst`.
pub static DKV_D64_32X32_W4_S1_PTX: [u8; 16084] = *include_bytes!("../../images/dkv_d64_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `dkv_d64_64x64_w4_s2_ptx.zst`.
pub static DKV_D64_64X64_W4_S2_PTX: [u8; 36898] = *include_bytes!("../../images/dkv_d64_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `dkv_d96_64x64_w4_s2_ptx.zst`.
pub static DKV_D96_64X64_W4_S2_PTX: [u8; 20282] = *include_bytes!("../../images/dkv_d96_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `dq_d128_32x32_w4_s1_ptx.zst`.
pub static DQ_D128_32X32_W4_S1_PTX: [u8; 15440] = *include_bytes!("../../images/dq_d128_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d128_64x64_w4_s1_ptx.zst`.
pub static DQ_D128_64X64_W4_S1_PTX: [u8; 34099] = *include_bytes!("../../images/dq_d128_64x64_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d192_64x32_w4_s1_ptx.zst`.
pub static DQ_D192_64X32_W4_S1_PTX: [u8; 21453] = *include_bytes!("../../images/dq_d192_64x32_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d256_16x16_w4_s1_ptx.zst`.
pub static DQ_D256_16X16_W4_S1_PTX: [u8; 14933] = *include_bytes!("../../images/dq_d256_16x16_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d256_64x16_w4_s1_ptx.zst`.
pub static DQ_D256_64X16_W4_S1_PTX: [u8; 30605] = *include_bytes!("../../images/dq_d256_64x16_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d256_64x32_w4_s1_ptx.zst`.
pub static DQ_D256_64X32_W4_S1_PTX: [u8; 22966] = *include_bytes!("../../images/dq_d256_64x32_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d64_128x64_w4_s2_ptx.zst`.
pub static DQ_D64_128X64_W4_S2_PTX: [u8; 23198] = *include_bytes!("../../images/dq_d64_128x64_w4_s2_ptx.zst");

/// The images of a kernel: `dq_d64_32x32_w4_s1_ptx.zst`.
pub static DQ_D64_32X32_W4_S1_PTX: [u8; 14152] = *include_bytes!("../../images/dq_d64_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `dq_d64_64x64_w4_s2_ptx.zst`.
pub static DQ_D64_64X64_W4_S2_PTX: [u8; 29691] = *include_bytes!("../../images/dq_d64_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `dq_d96_64x64_w4_s2_ptx.zst`.
pub static DQ_D96_64X64_W4_S2_PTX: [u8; 18397] = *include_bytes!("../../images/dq_d96_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `dsinks_w8_ptx.zst`.
pub static DSINKS_W8_PTX: [u8; 2491] = *include_bytes!("../../images/dsinks_w8_ptx.zst");

/// The images of a kernel: `merge_w4_ptx.zst`.
pub static MERGE_W4_PTX: [u8; 8170] = *include_bytes!("../../images/merge_w4_ptx.zst");

/// The images of a kernel: `mma_d128_128x64_w4_s2_ptx.zst`.
pub static MMA_D128_128X64_W4_S2_PTX: [u8; 35019] = *include_bytes!("../../images/mma_d128_128x64_w4_s2_ptx.zst");

/// The images of a kernel: `mma_d128_64x64_w4_s2_ptx.zst`.
pub static MMA_D128_64X64_W4_S2_PTX: [u8; 165112] = *include_bytes!("../../images/mma_d128_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `mma_d192_64x64_w4_s1_ptx.zst`.
pub static MMA_D192_64X64_W4_S1_PTX: [u8; 185108] = *include_bytes!("../../images/mma_d192_64x64_w4_s1_ptx.zst");

/// The images of a kernel: `mma_d256_64x64_w4_s1_ptx.zst`.
pub static MMA_D256_64X64_W4_S1_PTX: [u8; 235118] = *include_bytes!("../../images/mma_d256_64x64_w4_s1_ptx.zst");

/// The images of a kernel: `mma_d32_128x64_w4_s2_ptx.zst`.
pub static MMA_D32_128X64_W4_S2_PTX: [u8; 128119] = *include_bytes!("../../images/mma_d32_128x64_w4_s2_ptx.zst");

/// The images of a kernel: `mma_d512_32x32_w4_s1_ptx.zst`.
pub static MMA_D512_32X32_W4_S1_PTX: [u8; 130095] = *include_bytes!("../../images/mma_d512_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `mma_d64_128x32_w4_s4_ptx.zst`.
pub static MMA_D64_128X32_W4_S4_PTX: [u8; 25878] = *include_bytes!("../../images/mma_d64_128x32_w4_s4_ptx.zst");

/// The images of a kernel: `mma_d64_128x64_w4_s2_ptx.zst`.
pub static MMA_D64_128X64_W4_S2_PTX: [u8; 185308] = *include_bytes!("../../images/mma_d64_128x64_w4_s2_ptx.zst");

/// The images of a kernel: `mma_d64_64x64_w4_s2_ptx.zst`.
pub static MMA_D64_64X64_W4_S2_PTX: [u8; 147458] = *include_bytes!("../../images/mma_d64_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `mma_d96_128x32_w4_s3_ptx.zst`.
pub static MMA_D96_128X32_W4_S3_PTX: [u8; 107184] = *include_bytes!("../../images/mma_d96_128x32_w4_s3_ptx.zst");

/// The images of a kernel: `prepass_w4_ptx.zst`.
pub static PREPASS_W4_PTX: [u8; 5159] = *include_bytes!("../../images/prepass_w4_ptx.zst");

/// The images of a kernel: `runs_w16_ptx.zst`.
pub static RUNS_W16_PTX: [u8; 4176] = *include_bytes!("../../images/runs_w16_ptx.zst");

/// The images of a kernel: `scalar_d128_32x64_w4_s1_ptx.zst`.
pub static SCALAR_D128_32X64_W4_S1_PTX: [u8; 106569] = *include_bytes!("../../images/scalar_d128_32x64_w4_s1_ptx.zst");

/// The images of a kernel: `scalar_d128_48x32_w8_s2_ptx.zst`.
pub static SCALAR_D128_48X32_W8_S2_PTX: [u8; 15543] = *include_bytes!("../../images/scalar_d128_48x32_w8_s2_ptx.zst");

/// The images of a kernel: `scalar_d192_32x32_w4_s1_ptx.zst`.
pub static SCALAR_D192_32X32_W4_S1_PTX: [u8; 43620] = *include_bytes!("../../images/scalar_d192_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `scalar_d256_16x32_w4_s1_ptx.zst`.
pub static SCALAR_D256_16X32_W4_S1_PTX: [u8; 27323] = *include_bytes!("../../images/scalar_d256_16x32_w4_s1_ptx.zst");

/// The images of a kernel: `scalar_d256_32x32_w4_s1_ptx.zst`.
pub static SCALAR_D256_32X32_W4_S1_PTX: [u8; 64499] = *include_bytes!("../../images/scalar_d256_32x32_w4_s1_ptx.zst");

/// The images of a kernel: `scalar_d32_32x64_w4_s2_ptx.zst`.
pub static SCALAR_D32_32X64_W4_S2_PTX: [u8; 42810] = *include_bytes!("../../images/scalar_d32_32x64_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_16x64_w4_s2_ptx.zst`.
pub static SCALAR_D64_16X64_W4_S2_PTX: [u8; 16110] = *include_bytes!("../../images/scalar_d64_16x64_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_32x128_w4_s2_ptx.zst`.
pub static SCALAR_D64_32X128_W4_S2_PTX: [u8; 38649] = *include_bytes!("../../images/scalar_d64_32x128_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_32x32_w4_s2_ptx.zst`.
pub static SCALAR_D64_32X32_W4_S2_PTX: [u8; 15249] = *include_bytes!("../../images/scalar_d64_32x32_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_32x64_w4_s1_ptx.zst`.
pub static SCALAR_D64_32X64_W4_S1_PTX: [u8; 21099] = *include_bytes!("../../images/scalar_d64_32x64_w4_s1_ptx.zst");

/// The images of a kernel: `scalar_d64_32x64_w4_s2_ptx.zst`.
pub static SCALAR_D64_32X64_W4_S2_PTX: [u8; 21957] = *include_bytes!("../../images/scalar_d64_32x64_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_48x64_w8_s2_ptx.zst`.
pub static SCALAR_D64_48X64_W8_S2_PTX: [u8; 19191] = *include_bytes!("../../images/scalar_d64_48x64_w8_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_64x64_w4_s2_ptx.zst`.
pub static SCALAR_D64_64X64_W4_S2_PTX: [u8; 73976] = *include_bytes!("../../images/scalar_d64_64x64_w4_s2_ptx.zst");

/// The images of a kernel: `scalar_d64_64x64_w8_s2_ptx.zst`.
pub static SCALAR_D64_64X64_W8_S2_PTX: [u8; 22177] = *include_bytes!("../../images/scalar_d64_64x64_w8_s2_ptx.zst");

/// The images of a kernel: `scalar_d96_64x32_w4_s2_ptx.zst`.
pub static SCALAR_D96_64X32_W4_S2_PTX: [u8; 53041] = *include_bytes!("../../images/scalar_d96_64x32_w4_s2_ptx.zst");

/// The images of a kernel: `wmma_d128_48x32_w8_s2_ptx.zst`.
pub static WMMA_D128_48X32_W8_S2_PTX: [u8; 19581] = *include_bytes!("../../images/wmma_d128_48x32_w8_s2_ptx.zst");

/// The images of a kernel: `wmma_d64_16x64_w4_s2_ptx.zst`.
pub static WMMA_D64_16X64_W4_S2_PTX: [u8; 14976] = *include_bytes!("../../images/wmma_d64_16x64_w4_s2_ptx.zst");

/// The images of a kernel: `wmma_d64_32x32_w4_s2_ptx.zst`.
pub static WMMA_D64_32X32_W4_S2_PTX: [u8; 14519] = *include_bytes!("../../images/wmma_d64_32x32_w4_s2_ptx.zst");

/// The images of a kernel: `wmma_d64_32x64_w4_s1_ptx.zst`.
pub static WMMA_D64_32X64_W4_S1_PTX: [u8; 16208] = *include_bytes!("../../images/wmma_d64_32x64_w4_s1_ptx.zst");

/// The images of a kernel: `wmma_d64_32x64_w4_s2_ptx.zst`.
pub static WMMA_D64_32X64_W4_S2_PTX: [u8; 16277] = *include_bytes!("../../images/wmma_d64_32x64_w4_s2_ptx.zst");

/// The images of a kernel: `wmma_d64_48x64_w8_s2_ptx.zst`.
pub static WMMA_D64_48X64_W8_S2_PTX: [u8; 18415] = *include_bytes!("../../images/wmma_d64_48x64_w8_s2_ptx.zst");

/// The images of a kernel: `wmma_d64_64x64_w8_s2_ptx.zst`.
pub static WMMA_D64_64X64_W8_S2_PTX: [u8; 16064] = *include_bytes!("../../images/wmma_d64_64x64_w8_s2_ptx.zst");
