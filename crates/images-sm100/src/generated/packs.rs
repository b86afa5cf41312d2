// Written by `cargo xtask build-kernels`. Do not edit.

/// The images of a kernel: `append_e4m3_w4_sm_100.zst`.
pub static APPEND_E4M3_W4_SM_100: [u8; 17941] = *include_bytes!("../../images/append_e4m3_w4_sm_100.zst");

/// The images of a kernel: `append_w4_sm_100.zst`.
pub static APPEND_W4_SM_100: [u8; 14177] = *include_bytes!("../../images/append_w4_sm_100.zst");

/// The images of a kernel: `dbias_d256_32x32_w4_s2_sm_100.zst`.
pub static DBIAS_D256_32X32_W4_S2_SM_100: [u8; 18950] = *include_bytes!("../../images/dbias_d256_32x32_w4_s2_sm_100.zst");

/// The images of a kernel: `dbias_d256_64x64_w4_s3_sm_100.zst`.
pub static DBIAS_D256_64X64_W4_S3_SM_100: [u8; 27002] = *include_bytes!("../../images/dbias_d256_64x64_w4_s3_sm_100.zst");

/// The images of a kernel: `decode_d128_16x128_w8_s2_sm_100.zst`.
pub static DECODE_D128_16X128_W8_S2_SM_100: [u8; 41358] = *include_bytes!("../../images/decode_d128_16x128_w8_s2_sm_100.zst");

/// The images of a kernel: `decode_d128_16x256_w8_s2_e4m3_sm_100.zst`.
pub static DECODE_D128_16X256_W8_S2_E4M3_SM_100: [u8; 62891] = *include_bytes!("../../images/decode_d128_16x256_w8_s2_e4m3_sm_100.zst");

/// The images of a kernel: `decode_d128_16x64_w4_s2_sm_100.zst`.
pub static DECODE_D128_16X64_W4_S2_SM_100: [u8; 40240] = *include_bytes!("../../images/decode_d128_16x64_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d128_32x128_w8_s2_sm_100.zst`.
pub static DECODE_D128_32X128_W8_S2_SM_100: [u8; 34093] = *include_bytes!("../../images/decode_d128_32x128_w8_s2_sm_100.zst");

/// The images of a kernel: `decode_d128_32x64_w4_s2_sm_100.zst`.
pub static DECODE_D128_32X64_W4_S2_SM_100: [u8; 31149] = *include_bytes!("../../images/decode_d128_32x64_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d128_64x128_w8_s2_sm_100.zst`.
pub static DECODE_D128_64X128_W8_S2_SM_100: [u8; 37629] = *include_bytes!("../../images/decode_d128_64x128_w8_s2_sm_100.zst");

/// The images of a kernel: `decode_d128_64x64_w4_s2_sm_100.zst`.
pub static DECODE_D128_64X64_W4_S2_SM_100: [u8; 34056] = *include_bytes!("../../images/decode_d128_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d256_16x128_w4_s2_e4m3_sm_100.zst`.
pub static DECODE_D256_16X128_W4_S2_E4M3_SM_100: [u8; 58658] = *include_bytes!("../../images/decode_d256_16x128_w4_s2_e4m3_sm_100.zst");

/// The images of a kernel: `decode_d256_16x32_w2_s2_sm_100.zst`.
pub static DECODE_D256_16X32_W2_S2_SM_100: [u8; 37981] = *include_bytes!("../../images/decode_d256_16x32_w2_s2_sm_100.zst");

/// The images of a kernel: `decode_d256_16x64_w4_s2_sm_100.zst`.
pub static DECODE_D256_16X64_W4_S2_SM_100: [u8; 38695] = *include_bytes!("../../images/decode_d256_16x64_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d512_16x16_w4_s2_sm_100.zst`.
pub static DECODE_D512_16X16_W4_S2_SM_100: [u8; 39548] = *include_bytes!("../../images/decode_d512_16x16_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d512_16x32_w8_s2_sm_100.zst`.
pub static DECODE_D512_16X32_W8_S2_SM_100: [u8; 42092] = *include_bytes!("../../images/decode_d512_16x32_w8_s2_sm_100.zst");

/// The images of a kernel: `decode_d64_16x128_w4_s2_sm_100.zst`.
pub static DECODE_D64_16X128_W4_S2_SM_100: [u8; 42784] = *include_bytes!("../../images/decode_d64_16x128_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d64_16x256_w8_s2_sm_100.zst`.
pub static DECODE_D64_16X256_W8_S2_SM_100: [u8; 45407] = *include_bytes!("../../images/decode_d64_16x256_w8_s2_sm_100.zst");

/// The images of a kernel: `decode_d64_16x256_w8_s4_e4m3_sm_100.zst`.
pub static DECODE_D64_16X256_W8_S4_E4M3_SM_100: [u8; 58775] = *include_bytes!("../../images/decode_d64_16x256_w8_s4_e4m3_sm_100.zst");

/// The images of a kernel: `decode_d64_32x128_w4_s2_sm_100.zst`.
pub static DECODE_D64_32X128_W4_S2_SM_100: [u8; 32821] = *include_bytes!("../../images/decode_d64_32x128_w4_s2_sm_100.zst");

/// The images of a kernel: `decode_d64_64x128_w8_s4_sm_100.zst`.
pub static DECODE_D64_64X128_W8_S4_SM_100: [u8; 35154] = *include_bytes!("../../images/decode_d64_64x128_w8_s4_sm_100.zst");

/// The images of a kernel: `decode_d64_64x64_w4_s4_sm_100.zst`.
pub static DECODE_D64_64X64_W4_S4_SM_100: [u8; 55322] = *include_bytes!("../../images/decode_d64_64x64_w4_s4_sm_100.zst");

/// The images of a kernel: `dkv_d128_32x32_w4_s1_sm_100.zst`.
pub static DKV_D128_32X32_W4_S1_SM_100: [u8; 17237] = *include_bytes!("../../images/dkv_d128_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dkv_d128_64x64_w4_s1_sm_100.zst`.
pub static DKV_D128_64X64_W4_S1_SM_100: [u8; 43009] = *include_bytes!("../../images/dkv_d128_64x64_w4_s1_sm_100.zst");

/// The images of a kernel: `dkv_d192_32x64_w8_s1_sm_100.zst`.
pub static DKV_D192_32X64_W8_S1_SM_100: [u8; 21691] = *include_bytes!("../../images/dkv_d192_32x64_w8_s1_sm_100.zst");

/// The images of a kernel: `dkv_d256_16x16_w4_s1_sm_100.zst`.
pub static DKV_D256_16X16_W4_S1_SM_100: [u8; 17257] = *include_bytes!("../../images/dkv_d256_16x16_w4_s1_sm_100.zst");

/// The images of a kernel: `dkv_d256_32x32_w4_s1_sm_100.zst`.
pub static DKV_D256_32X32_W4_S1_SM_100: [u8; 36440] = *include_bytes!("../../images/dkv_d256_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dkv_d64_32x32_w4_s1_sm_100.zst`.
pub static DKV_D64_32X32_W4_S1_SM_100: [u8; 17425] = *include_bytes!("../../images/dkv_d64_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dkv_d64_64x64_w4_s2_sm_100.zst`.
pub static DKV_D64_64X64_W4_S2_SM_100: [u8; 39023] = *include_bytes!("../../images/dkv_d64_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `dkv_d96_64x64_w4_s2_sm_100.zst`.
pub static DKV_D96_64X64_W4_S2_SM_100: [u8; 25057] = *include_bytes!("../../images/dkv_d96_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `dq_d128_32x32_w4_s1_sm_100.zst`.
pub static DQ_D128_32X32_W4_S1_SM_100: [u8; 17019] = *include_bytes!("../../images/dq_d128_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d128_64x64_w4_s1_sm_100.zst`.
pub static DQ_D128_64X64_W4_S1_SM_100: [u8; 31957] = *include_bytes!("../../images/dq_d128_64x64_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d192_64x32_w4_s1_sm_100.zst`.
pub static DQ_D192_64X32_W4_S1_SM_100: [u8; 22171] = *include_bytes!("../../images/dq_d192_64x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d256_16x16_w4_s1_sm_100.zst`.
pub static DQ_D256_16X16_W4_S1_SM_100: [u8; 16266] = *include_bytes!("../../images/dq_d256_16x16_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d256_64x32_w4_s1_sm_100.zst`.
pub static DQ_D256_64X32_W4_S1_SM_100: [u8; 36678] = *include_bytes!("../../images/dq_d256_64x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d64_128x64_w4_s2_sm_100.zst`.
pub static DQ_D64_128X64_W4_S2_SM_100: [u8; 25311] = *include_bytes!("../../images/dq_d64_128x64_w4_s2_sm_100.zst");

/// The images of a kernel: `dq_d64_32x32_w4_s1_sm_100.zst`.
pub static DQ_D64_32X32_W4_S1_SM_100: [u8; 17002] = *include_bytes!("../../images/dq_d64_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `dq_d64_64x64_w4_s2_sm_100.zst`.
pub static DQ_D64_64X64_W4_S2_SM_100: [u8; 32338] = *include_bytes!("../../images/dq_d64_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `dq_d96_64x64_w4_s2_sm_100.zst`.
pub static DQ_D96_64X64_W4_S2_SM_100: [u8; 20278] = *include_bytes!("../../images/dq_d96_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `dsinks_w8_sm_100.zst`.
pub static DSINKS_W8_SM_100: [u8; 4878] = *include_bytes!("../../images/dsinks_w8_sm_100.zst");

/// The images of a kernel: `merge_w4_sm_100.zst`.
pub static MERGE_W4_SM_100: [u8; 12284] = *include_bytes!("../../images/merge_w4_sm_100.zst");

/// The images of a kernel: `mma_d128_128x64_w8_s2_sm_100.zst`.
pub static MMA_D128_128X64_W8_S2_SM_100: [u8; 25412] = *include_bytes!("../../images/mma_d128_128x64_w8_s2_sm_100.zst");

/// The images of a kernel: `mma_d128_64x64_w4_s2_sm_100.zst`.
pub static MMA_D128_64X64_W4_S2_SM_100: [u8; 140508] = *include_bytes!("../../images/mma_d128_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `mma_d192_128x64_w8_s2_sm_100.zst`.
pub static MMA_D192_128X64_W8_S2_SM_100: [u8; 28843] = *include_bytes!("../../images/mma_d192_128x64_w8_s2_sm_100.zst");

/// The images of a kernel: `mma_d192_64x64_w4_s1_sm_100.zst`.
pub static MMA_D192_64X64_W4_S1_SM_100: [u8; 140749] = *include_bytes!("../../images/mma_d192_64x64_w4_s1_sm_100.zst");

/// The images of a kernel: `mma_d256_64x64_w4_s1_sm_100.zst`.
pub static MMA_D256_64X64_W4_S1_SM_100: [u8; 184123] = *include_bytes!("../../images/mma_d256_64x64_w4_s1_sm_100.zst");

/// The images of a kernel: `mma_d32_128x64_w4_s2_sm_100.zst`.
pub static MMA_D32_128X64_W4_S2_SM_100: [u8; 123970] = *include_bytes!("../../images/mma_d32_128x64_w4_s2_sm_100.zst");

/// The images of a kernel: `mma_d512_32x32_w4_s1_sm_100.zst`.
pub static MMA_D512_32X32_W4_S1_SM_100: [u8; 75732] = *include_bytes!("../../images/mma_d512_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `mma_d512_64x64_w8_s1_sm_100.zst`.
pub static MMA_D512_64X64_W8_S1_SM_100: [u8; 32177] = *include_bytes!("../../images/mma_d512_64x64_w8_s1_sm_100.zst");

/// The images of a kernel: `mma_d64_128x32_w4_s4_sm_100.zst`.
pub static MMA_D64_128X32_W4_S4_SM_100: [u8; 28238] = *include_bytes!("../../images/mma_d64_128x32_w4_s4_sm_100.zst");

/// The images of a kernel: `mma_d64_128x64_w4_s2_sm_100.zst`.
pub static MMA_D64_128X64_W4_S2_SM_100: [u8; 173065] = *include_bytes!("../../images/mma_d64_128x64_w4_s2_sm_100.zst");

/// The images of a kernel: `mma_d64_64x64_w4_s2_sm_100.zst`.
pub static MMA_D64_64X64_W4_S2_SM_100: [u8; 142891] = *include_bytes!("../../images/mma_d64_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `mma_d96_128x32_w4_s4_sm_100.zst`.
pub static MMA_D96_128X32_W4_S4_SM_100: [u8; 128871] = *include_bytes!("../../images/mma_d96_128x32_w4_s4_sm_100.zst");

/// The images of a kernel: `prepass_w4_sm_100.zst`.
pub static PREPASS_W4_SM_100: [u8; 9532] = *include_bytes!("../../images/prepass_w4_sm_100.zst");

/// The images of a kernel: `runs_w16_sm_100.zst`.
pub static RUNS_W16_SM_100: [u8; 6612] = *include_bytes!("../../images/runs_w16_sm_100.zst");

/// The images of a kernel: `scalar_d128_32x64_w4_s1_sm_100.zst`.
pub static SCALAR_D128_32X64_W4_S1_SM_100: [u8; 70225] = *include_bytes!("../../images/scalar_d128_32x64_w4_s1_sm_100.zst");

/// The images of a kernel: `scalar_d192_32x32_w4_s1_sm_100.zst`.
pub static SCALAR_D192_32X32_W4_S1_SM_100: [u8; 37528] = *include_bytes!("../../images/scalar_d192_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `scalar_d256_16x32_w4_s1_sm_100.zst`.
pub static SCALAR_D256_16X32_W4_S1_SM_100: [u8; 26757] = *include_bytes!("../../images/scalar_d256_16x32_w4_s1_sm_100.zst");

/// The images of a kernel: `scalar_d256_32x32_w4_s1_sm_100.zst`.
pub static SCALAR_D256_32X32_W4_S1_SM_100: [u8; 45666] = *include_bytes!("../../images/scalar_d256_32x32_w4_s1_sm_100.zst");

/// The images of a kernel: `scalar_d32_32x64_w4_s2_sm_100.zst`.
pub static SCALAR_D32_32X64_W4_S2_SM_100: [u8; 43760] = *include_bytes!("../../images/scalar_d32_32x64_w4_s2_sm_100.zst");

/// The images of a kernel: `scalar_d64_32x128_w4_s2_sm_100.zst`.
pub static SCALAR_D64_32X128_W4_S2_SM_100: [u8; 41266] = *include_bytes!("../../images/scalar_d64_32x128_w4_s2_sm_100.zst");

/// The images of a kernel: `scalar_d64_64x64_w4_s2_sm_100.zst`.
pub static SCALAR_D64_64X64_W4_S2_SM_100: [u8; 72298] = *include_bytes!("../../images/scalar_d64_64x64_w4_s2_sm_100.zst");

/// The images of a kernel: `scalar_d96_64x32_w4_s2_sm_100.zst`.
pub static SCALAR_D96_64X32_W4_S2_SM_100: [u8; 51903] = *include_bytes!("../../images/scalar_d96_64x32_w4_s2_sm_100.zst");
