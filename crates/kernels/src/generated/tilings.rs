// Written by `cargo xtask build-kernels` from manifest.json. Do not edit.

tilings! {
    D128M128N128W12S2: head_dim 128, tile 128 x 128, warps 12, stages 2;
    D128M128N64W4S1: head_dim 128, tile 128 x 64, warps 4, stages 1;
    D128M128N64W4S2: head_dim 128, tile 128 x 64, warps 4, stages 2;
    D128M128N64W8S2: head_dim 128, tile 128 x 64, warps 8, stages 2;
    D128M16N128W8S2: head_dim 128, tile 16 x 128, warps 8, stages 2;
    D128M16N64W4S2: head_dim 128, tile 16 x 64, warps 4, stages 2;
    D128M192N64W16S4: head_dim 128, tile 192 x 64, warps 16, stages 4;
    D128M192N80W16S3: head_dim 128, tile 192 x 80, warps 16, stages 3;
    D128M32N128W8S2: head_dim 128, tile 32 x 128, warps 8, stages 2;
    D128M32N32W4S1: head_dim 128, tile 32 x 32, warps 4, stages 1;
    D128M32N64W4S1: head_dim 128, tile 32 x 64, warps 4, stages 1;
    D128M32N64W4S2: head_dim 128, tile 32 x 64, warps 4, stages 2;
    D128M48N32W8S2: head_dim 128, tile 48 x 32, warps 8, stages 2;
    D128M64N128W12S2: head_dim 128, tile 64 x 128, warps 12, stages 2;
    D128M64N128W4S1: head_dim 128, tile 64 x 128, warps 4, stages 1;
    D128M64N128W8S1: head_dim 128, tile 64 x 128, warps 8, stages 1;
    D128M64N128W8S2: head_dim 128, tile 64 x 128, warps 8, stages 2;
    D128M64N64W4S1: head_dim 128, tile 64 x 64, warps 4, stages 1;
    D128M64N64W4S2: head_dim 128, tile 64 x 64, warps 4, stages 2;
    D160M192N64W16S3: head_dim 160, tile 192 x 64, warps 16, stages 3;
    D192M128N64W12S3: head_dim 192, tile 128 x 64, warps 12, stages 3;
    D192M128N64W8S2: head_dim 192, tile 128 x 64, warps 8, stages 2;
    D192M32N32W4S1: head_dim 192, tile 32 x 32, warps 4, stages 1;
    D192M32N64W8S1: head_dim 192, tile 32 x 64, warps 8, stages 1;
    D192M64N112W8S2: head_dim 192, tile 64 x 112, warps 8, stages 2;
    D192M64N32W4S1: head_dim 192, tile 64 x 32, warps 4, stages 1;
    D192M64N64W12S3: head_dim 192, tile 64 x 64, warps 12, stages 3;
    D192M64N64W4S1: head_dim 192, tile 64 x 64, warps 4, stages 1;
    D192M64N64W8S2: head_dim 192, tile 64 x 64, warps 8, stages 2;
    D192V128M128N128W12S2: head_dim 192 value_dim 128, tile 128 x 128, warps 12, stages 2;
    D192V128M192N80W16S3: head_dim 192 value_dim 128, tile 192 x 80, warps 16, stages 3;
    D256M128N64W12S2: head_dim 256, tile 128 x 64, warps 12, stages 2;
    D256M16N16W4S1: head_dim 256, tile 16 x 16, warps 4, stages 1;
    D256M16N32W2S2: head_dim 256, tile 16 x 32, warps 2, stages 2;
    D256M16N32W4S1: head_dim 256, tile 16 x 32, warps 4, stages 1;
    D256M16N64W4S2: head_dim 256, tile 16 x 64, warps 4, stages 2;
    D256M32N32W4S1: head_dim 256, tile 32 x 32, warps 4, stages 1;
    D256M32N32W4S2: head_dim 256, tile 32 x 32, warps 4, stages 2;
    D256M64N16W4S1: head_dim 256, tile 64 x 16, warps 4, stages 1;
    D256M64N32W4S1: head_dim 256, tile 64 x 32, warps 4, stages 1;
    D256M64N64W12S3: head_dim 256, tile 64 x 64, warps 12, stages 3;
    D256M64N64W4S1: head_dim 256, tile 64 x 64, warps 4, stages 1;
    D256M64N64W4S3: head_dim 256, tile 64 x 64, warps 4, stages 3;
    D256M64N64W8S1: head_dim 256, tile 64 x 64, warps 8, stages 1;
    D256M64N64W8S2: head_dim 256, tile 64 x 64, warps 8, stages 2;
    D32M128N64W4S2: head_dim 32, tile 128 x 64, warps 4, stages 2;
    D32M32N64W4S2: head_dim 32, tile 32 x 64, warps 4, stages 2;
    D512M16N16W4S2: head_dim 512, tile 16 x 16, warps 4, stages 2;
    D512M16N32W8S2: head_dim 512, tile 16 x 32, warps 8, stages 2;
    D512M32N32W4S1: head_dim 512, tile 32 x 32, warps 4, stages 1;
    D512M64N64W8S1: head_dim 512, tile 64 x 64, warps 8, stages 1;
    D64M128N128W12S2: head_dim 64, tile 128 x 128, warps 12, stages 2;
    D64M128N32W4S4: head_dim 64, tile 128 x 32, warps 4, stages 4;
    D64M128N64W4S2: head_dim 64, tile 128 x 64, warps 4, stages 2;
    D64M16N128W4S2: head_dim 64, tile 16 x 128, warps 4, stages 2;
    D64M16N256W8S2: head_dim 64, tile 16 x 256, warps 8, stages 2;
    D64M16N64W4S2: head_dim 64, tile 16 x 64, warps 4, stages 2;
    D64M192N128W16S3: head_dim 64, tile 192 x 128, warps 16, stages 3;
    D64M256N64W20S6: head_dim 64, tile 256 x 64, warps 20, stages 6;
    D64M32N128W4S2: head_dim 64, tile 32 x 128, warps 4, stages 2;
    D64M32N32W4S1: head_dim 64, tile 32 x 32, warps 4, stages 1;
    D64M32N32W4S2: head_dim 64, tile 32 x 32, warps 4, stages 2;
    D64M32N64W4S1: head_dim 64, tile 32 x 64, warps 4, stages 1;
    D64M32N64W4S2: head_dim 64, tile 32 x 64, warps 4, stages 2;
    D64M48N64W8S2: head_dim 64, tile 48 x 64, warps 8, stages 2;
    D64M64N128W4S2: head_dim 64, tile 64 x 128, warps 4, stages 2;
    D64M64N128W8S2: head_dim 64, tile 64 x 128, warps 8, stages 2;
    D64M64N128W8S4: head_dim 64, tile 64 x 128, warps 8, stages 4;
    D64M64N192W16S2: head_dim 64, tile 64 x 192, warps 16, stages 2;
    D64M64N192W4S1: head_dim 64, tile 64 x 192, warps 4, stages 1;
    D64M64N64W4S2: head_dim 64, tile 64 x 64, warps 4, stages 2;
    D64M64N64W4S4: head_dim 64, tile 64 x 64, warps 4, stages 4;
    D64M64N64W8S2: head_dim 64, tile 64 x 64, warps 8, stages 2;
    D64M64N80W8S2: head_dim 64, tile 64 x 80, warps 8, stages 2;
    D96M128N128W12S2: head_dim 96, tile 128 x 128, warps 12, stages 2;
    D96M128N32W4S3: head_dim 96, tile 128 x 32, warps 4, stages 3;
    D96M128N32W4S4: head_dim 96, tile 128 x 32, warps 4, stages 4;
    D96M128N64W4S1: head_dim 96, tile 128 x 64, warps 4, stages 1;
    D96M192N96W16S3: head_dim 96, tile 192 x 96, warps 16, stages 3;
    D96M64N128W12S2: head_dim 96, tile 64 x 128, warps 12, stages 2;
    D96M64N128W4S1: head_dim 96, tile 64 x 128, warps 4, stages 1;
    D96M64N128W8S2: head_dim 96, tile 64 x 128, warps 8, stages 2;
    D96M64N32W4S2: head_dim 96, tile 64 x 32, warps 4, stages 2;
    D96M64N64W4S2: head_dim 96, tile 64 x 64, warps 4, stages 2;
}

kernels! {
    Dbias D256M32N32W4S2 "dbias_d256_32x32_w4_s2" {
        4: shared 35072, k_stride 68, v_stride 68;
    }
    Dbias D256M64N64W4S3 "dbias_d256_64x64_w4_s3" {
        2: shared 55808, k_stride 72, v_stride 72;
    }
    Decode D128M16N128W8S2 "decode_d128_16x128_w8_s2" {
        2: shared 211456;
    }
    Decode D128M16N64W4S2 "decode_d128_16x64_w4_s2" {
        2: shared 77208;
    }
    Decode D128M32N128W8S2 "decode_d128_32x128_w8_s2" {
        2: shared 219776;
    }
    Decode D128M32N64W4S2 "decode_d128_32x64_w4_s2" {
        2: shared 85472;
    }
    Decode D128M64N128W8S2 "decode_d128_64x128_w8_s2" {
        2: shared 170608;
    }
    Decode D128M64N64W4S2 "decode_d128_64x64_w4_s2" {
        2: shared 101196;
    }
    Decode D256M16N32W2S2 "decode_d256_16x32_w2_s2" {
        2: shared 83848;
    }
    Decode D256M16N64W4S2 "decode_d256_16x64_w4_s2" {
        2: shared 216576;
    }
    Decode D512M16N16W4S2 "decode_d512_16x16_w4_s2" {
        2: shared 100236;
    }
    Decode D512M16N32W8S2 "decode_d512_16x32_w8_s2" {
        2: shared 167344;
    }
    Decode D64M16N128W4S2 "decode_d64_16x128_w4_s2" {
        2: shared 74648;
    }
    Decode D64M16N256W8S2 "decode_d64_16x256_w8_s2" {
        2: shared 177664;
    }
    Decode D64M32N128W4S2 "decode_d64_32x128_w4_s2" {
        2: shared 78816;
    }
    Decode D64M64N128W8S4 "decode_d64_64x128_w8_s4" {
        2: shared 190080;
    }
    Decode D64M64N64W4S4 "decode_d64_64x64_w4_s4" {
        2: shared 86348;
    }
    Dkv D128M32N32W4S1 "dkv_d128_32x32_w4_s1" {
        4: shared 76088, k_stride 132, v_stride 132;
    }
    Dkv D128M64N128W8S1 "dkv_d128_64x128_w8_s1" {
        2: shared 137768, k_stride 136, v_stride 136;
    }
    Dkv D128M64N128W8S2 "dkv_d128_64x128_w8_s2" {
        2: shared 173096, k_stride 136, v_stride 136;
    }
    Dkv D128M64N64W4S1 "dkv_d128_64x64_w4_s1" {
        2: shared 70184, k_stride 136, v_stride 136;
    }
    Dkv D192M32N64W8S1 "dkv_d192_32x64_w8_s1" {
        2: shared 85288, k_stride 200, v_stride 200;
    }
    Dkv D192M64N64W8S2 "dkv_d192_64x64_w8_s2" {
        2: shared 171048, k_stride 200, v_stride 200;
    }
    Dkv D256M16N16W4S1 "dkv_d256_16x16_w4_s1" {
        4: shared 68792, k_stride 260, v_stride 260;
    }
    Dkv D256M32N32W4S1 "dkv_d256_32x32_w4_s1" {
        2: shared 71976, k_stride 264, v_stride 264;
    }
    Dkv D256M64N64W8S1 "dkv_d256_64x64_w8_s1" {
        2: shared 152104, k_stride 264, v_stride 264;
    }
    Dkv D256M64N64W8S2 "dkv_d256_64x64_w8_s2" {
        2: shared 220200, k_stride 264, v_stride 264;
    }
    Dkv D64M32N32W4S1 "dkv_d64_32x32_w4_s1" {
        4: shared 43320, k_stride 68, v_stride 68;
    }
    Dkv D64M64N128W4S2 "dkv_d64_64x128_w4_s2" {
        2: shared 74792, k_stride 72, v_stride 72;
    }
    Dkv D64M64N64W4S2 "dkv_d64_64x64_w4_s2" {
        2: shared 56360, k_stride 72, v_stride 72;
    }
    Dkv D96M64N128W8S2 "dkv_d96_64x128_w8_s2" {
        2: shared 140328, k_stride 104, v_stride 104;
    }
    Dkv D96M64N64W4S2 "dkv_d96_64x64_w4_s2" {
        2: shared 80936, k_stride 104, v_stride 104;
    }
    Dq D128M128N64W4S1 "dq_d128_128x64_w4_s1" {
        2: shared 105512, k_stride 136, v_stride 136;
    }
    Dq D128M32N32W4S1 "dq_d128_32x32_w4_s1" {
        4: shared 76088, k_stride 132, v_stride 132;
    }
    Dq D128M64N64W4S1 "dq_d128_64x64_w4_s1" {
        2: shared 70184, k_stride 136, v_stride 136;
    }
    Dq D192M64N32W4S1 "dq_d192_64x32_w4_s1" {
        2: shared 77352, k_stride 200, v_stride 200;
    }
    Dq D256M16N16W4S1 "dq_d256_16x16_w4_s1" {
        4: shared 68792, k_stride 260, v_stride 260;
    }
    Dq D256M64N16W4S1 "dq_d256_64x16_w4_s1" {
        2: shared 85032, k_stride 264, v_stride 264;
    }
    Dq D256M64N32W4S1 "dq_d256_64x32_w4_s1" {
        2: shared 101928, k_stride 264, v_stride 264;
    }
    Dq D64M128N64W4S2 "dq_d64_128x64_w4_s2" {
        2: shared 74792, k_stride 72, v_stride 72;
    }
    Dq D64M32N32W4S1 "dq_d64_32x32_w4_s1" {
        4: shared 43320, k_stride 68, v_stride 68;
    }
    Dq D64M64N64W4S2 "dq_d64_64x64_w4_s2" {
        2: shared 55848, k_stride 72, v_stride 72;
    }
    Dq D96M128N64W4S1 "dq_d96_128x64_w4_s1" {
        2: shared 80936, k_stride 104, v_stride 104;
    }
    Dq D96M64N64W4S2 "dq_d96_64x64_w4_s2" {
        2: shared 80424, k_stride 104, v_stride 104;
    }
    Dqkv D128M64N128W12S2 "dqkv_d128_64x128_w12_s2" {
        2: shared 230696;
    }
    Dqkv D64M64N192W16S2 "dqkv_d64_64x192_w16_s2" {
        2: shared 206152;
    }
    Dqkv D96M64N128W12S2 "dqkv_d96_64x128_w12_s2" {
        2: shared 214312;
    }
    Dqsum D128M64N128W4S1 "dqsum_d128_64x128_w4_s1" {
        2: shared 0;
    }
    Dqsum D64M64N192W4S1 "dqsum_d64_64x192_w4_s1" {
        2: shared 0;
    }
    Dqsum D96M64N128W4S1 "dqsum_d96_64x128_w4_s1" {
        2: shared 0;
    }
    Mma D128M128N64W4S2 "mma_d128_128x64_w4_s2" {
        2: shared 98364;
    }
    Mma D128M128N64W8S2 "mma_d128_128x64_w8_s2" {
        2: shared 98364;
    }
    Mma D128M64N64W4S2 "mma_d128_64x64_w4_s2" {
        2: shared 81980;
    }
    Mma D192M128N64W8S2 "mma_d192_128x64_w8_s2" {
        2: shared 147516;
    }
    Mma D192M64N64W4S1 "mma_d192_64x64_w4_s1" {
        2: shared 73788;
    }
    Mma D256M64N64W4S1 "mma_d256_64x64_w4_s1" {
        2: shared 98364;
    }
    Mma D32M128N64W4S2 "mma_d32_128x64_w4_s2" {
        2: shared 24636;
    }
    Mma D512M32N32W4S1 "mma_d512_32x32_w4_s1" {
        2: shared 98364;
    }
    Mma D512M64N64W8S1 "mma_d512_64x64_w8_s1" {
        2: shared 196668;
    }
    Mma D64M128N32W4S4 "mma_d64_128x32_w4_s4" {
        2: shared 49212;
    }
    Mma D64M128N64W4S2 "mma_d64_128x64_w4_s2" {
        2: shared 49212;
    }
    Mma D64M64N64W4S2 "mma_d64_64x64_w4_s2" {
        2: shared 41020;
    }
    Mma D96M128N32W4S3 "mma_d96_128x32_w4_s3" {
        2: shared 61500;
    }
    Mma D96M128N32W4S4 "mma_d96_128x32_w4_s4" {
        2: shared 73788;
    }
    Scalar D128M32N64W4S1 "scalar_d128_32x64_w4_s1" {
        2: shared 61952, k_stride 136, v_stride 136;
        4: shared 96768, k_stride 136, v_stride 136;
    }
    Scalar D128M48N32W8S2 "scalar_d128_48x32_w8_s2" {
        2: shared 67840, k_stride 136, v_stride 136;
    }
    Scalar D192M32N32W4S1 "scalar_d192_32x32_w4_s1" {
        2: shared 55808, k_stride 200, v_stride 200;
        4: shared 81408, k_stride 200, v_stride 200;
    }
    Scalar D256M16N32W4S1 "scalar_d256_16x32_w4_s1" {
        4: shared 86784, k_stride 264, v_stride 264;
    }
    Scalar D256M32N32W4S1 "scalar_d256_32x32_w4_s1" {
        2: shared 72192, k_stride 264, v_stride 264;
        4: shared 105984, k_stride 264, v_stride 264;
    }
    Scalar D32M32N64W4S2 "scalar_d32_32x64_w4_s2" {
        2: shared 35328, k_stride 40, v_stride 40;
        4: shared 55808, k_stride 40, v_stride 40;
    }
    Scalar D64M16N64W4S2 "scalar_d64_16x64_w4_s2" {
        2: shared 46336, k_stride 72, v_stride 72;
        4: shared 83200, k_stride 72, v_stride 72;
    }
    Scalar D64M32N128W4S2 "scalar_d64_32x128_w4_s2" {
        2: shared 100864, k_stride 72, v_stride 72;
    }
    Scalar D64M32N32W4S2 "scalar_d64_32x32_w4_s2" {
        2: shared 32256, k_stride 72, v_stride 72;
    }
    Scalar D64M32N64W4S1 "scalar_d64_32x64_w4_s1" {
        2: shared 37376, k_stride 72, v_stride 72;
    }
    Scalar D64M32N64W4S2 "scalar_d64_32x64_w4_s2" {
        2: shared 55808, k_stride 72, v_stride 72;
    }
    Scalar D64M48N64W8S2 "scalar_d64_48x64_w8_s2" {
        2: shared 65280, k_stride 72, v_stride 72;
    }
    Scalar D64M64N64W4S2 "scalar_d64_64x64_w4_s2" {
        2: shared 72704, k_stride 72, v_stride 72;
        4: shared 109568, k_stride 72, v_stride 72;
    }
    Scalar D64M64N64W8S2 "scalar_d64_64x64_w8_s2" {
        2: shared 74752, k_stride 72, v_stride 72;
    }
    Scalar D96M64N32W4S2 "scalar_d96_64x32_w4_s2" {
        2: shared 62464, k_stride 104, v_stride 104;
        4: shared 89088, k_stride 104, v_stride 104;
    }
    Wdkv D192M64N64W12S3 "wdkv_d192_64x64_w12_s3" {
        2: shared 214832;
    }
    Wdkv D256M64N64W12S3 "wdkv_d256_64x64_w12_s3" {
        2: shared 214560;
    }
    Wdq D192M128N64W12S3 "wdq_d192_128x64_w12_s3" {
        2: shared 222496;
    }
    Wdq D256M128N64W12S2 "wdq_d256_128x64_w12_s2" {
        2: shared 230656;
    }
    Wgmma D128M128N128W12S2 "wgmma_d128_128x128_w12_s2" {
        2: shared 197632;
    }
    Wgmma D128M192N64W16S4 "wgmma_d128_192x64_w16_s4" {
        2: shared 230400;
    }
    Wgmma D128M192N80W16S3 "wgmma_d128_192x80_w16_s3" {
        2: shared 222208;
    }
    Wgmma D128M64N128W8S2 "wgmma_d128_64x128_w8_s2" {
        2: shared 148480;
    }
    Wgmma D160M192N64W16S3 "wgmma_d160_192x64_w16_s3" {
        2: shared 222208;
    }
    Wgmma D192M128N64W12S3 "wgmma_d192_128x64_w12_s3" {
        2: shared 230400;
    }
    Wgmma D192M64N112W8S2 "wgmma_d192_64x112_w8_s2" {
        2: shared 197632;
    }
    Wgmma D192V128M128N128W12S2 "wgmma_d192v128_128x128_w12_s2" {
        2: shared 214016;
    }
    Wgmma D192V128M192N80W16S3 "wgmma_d192v128_192x80_w16_s3" {
        2: shared 228352;
    }
    Wgmma D256M128N64W12S2 "wgmma_d256_128x64_w12_s2" {
        2: shared 230400;
    }
    Wgmma D64M128N128W12S2 "wgmma_d64_128x128_w12_s2" {
        2: shared 99328;
    }
    Wgmma D64M192N128W16S3 "wgmma_d64_192x128_w16_s3" {
        2: shared 148480;
    }
    Wgmma D64M256N64W20S6 "wgmma_d64_256x64_w20_s6" {
        2: shared 164864;
    }
    Wgmma D64M64N128W8S2 "wgmma_d64_64x128_w8_s2" {
        2: shared 82944;
    }
    Wgmma D64M64N64W8S2 "wgmma_d64_64x64_w8_s2" {
        2: shared 50176;
    }
    Wgmma D64M64N80W8S2 "wgmma_d64_64x80_w8_s2" {
        2: shared 58368;
    }
    Wgmma D96M128N128W12S2 "wgmma_d96_128x128_w12_s2" {
        2: shared 197632;
    }
    Wgmma D96M192N96W16S3 "wgmma_d96_192x96_w16_s3" {
        2: shared 197632;
    }
    Wgmma D96M64N128W8S2 "wgmma_d96_64x128_w8_s2" {
        2: shared 148480;
    }
    Wmma D128M48N32W8S2 "wmma_d128_48x32_w8_s2" {
        2: shared 71680, k_stride 136, v_stride 136;
    }
    Wmma D64M16N64W4S2 "wmma_d64_16x64_w4_s2" {
        2: shared 45312, k_stride 72, v_stride 72;
    }
    Wmma D64M32N32W4S2 "wmma_d64_32x32_w4_s2" {
        2: shared 29184, k_stride 72, v_stride 72;
    }
    Wmma D64M32N64W4S1 "wmma_d64_32x64_w4_s1" {
        2: shared 29184, k_stride 72, v_stride 72;
    }
    Wmma D64M32N64W4S2 "wmma_d64_32x64_w4_s2" {
        2: shared 47616, k_stride 72, v_stride 72;
    }
    Wmma D64M48N64W8S2 "wmma_d64_48x64_w8_s2" {
        2: shared 58368, k_stride 72, v_stride 72;
    }
    Wmma D64M64N64W8S2 "wmma_d64_64x64_w8_s2" {
        2: shared 58368, k_stride 72, v_stride 72;
    }
}
