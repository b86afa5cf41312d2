//! The functions that candle links to. None of them can be computed here.
#![expect(non_snake_case, reason = "the names of C")]

use std::ffi::c_void;

type In = *const c_void;
type Out = *mut c_void;

macro_rules! absent {
    (@one ($($type:ty),*) $name:ident) => {
        /// # Safety
        /// Ends the process.
        pub unsafe extern "C" fn $name($(_: $type),*) {
            panic!(concat!("this build of candle has no kernel ", stringify!($name)));
        }
    };
    ($types:tt $($name:ident)*) => {
        $(absent! { @one $types $name })*
    };
}

absent! {
    (In, In, *const i32, *const i32, *const f32, Out, *mut i32, *mut i32, i32, i32, i32, i32, i32, i32, bool, i64)
    moe_gemm_wmma
}
absent! {
    (*const f32, In, *const i32, *const i32, *const f32, Out, i32, i32, i32, i32, i32, i32, i64)
    moe_gemm_gguf
}
absent! {
    (In, *const u8, *const i32, *const i32, *const f32, Out, i32, i32, i32, i32, i32, i32, i32, i64)
    moe_gemm_gguf_prefill
}
absent! {
    (In, In, Out, i32, i32, i32, i32, i32, Out)
    launch_mmvq_gguf_q4_0_bf16_plain launch_mmvq_gguf_q4_0_f16_plain launch_mmvq_gguf_q4_0_f32_plain
    launch_mmvq_gguf_q4_1_bf16_plain launch_mmvq_gguf_q4_1_f16_plain launch_mmvq_gguf_q4_1_f32_plain
    launch_mmvq_gguf_q5_0_bf16_plain launch_mmvq_gguf_q5_0_f16_plain launch_mmvq_gguf_q5_0_f32_plain
    launch_mmvq_gguf_q5_1_bf16_plain launch_mmvq_gguf_q5_1_f16_plain launch_mmvq_gguf_q5_1_f32_plain
    launch_mmvq_gguf_q8_0_bf16_plain launch_mmvq_gguf_q8_0_f16_plain launch_mmvq_gguf_q8_0_f32_plain
    launch_mmvq_gguf_q2_k_bf16_plain launch_mmvq_gguf_q2_k_f16_plain launch_mmvq_gguf_q2_k_f32_plain
    launch_mmvq_gguf_q3_k_bf16_plain launch_mmvq_gguf_q3_k_f16_plain launch_mmvq_gguf_q3_k_f32_plain
    launch_mmvq_gguf_q4_k_bf16_plain launch_mmvq_gguf_q4_k_f16_plain launch_mmvq_gguf_q4_k_f32_plain
    launch_mmvq_gguf_q5_k_bf16_plain launch_mmvq_gguf_q5_k_f16_plain launch_mmvq_gguf_q5_k_f32_plain
    launch_mmvq_gguf_q6_k_bf16_plain launch_mmvq_gguf_q6_k_f16_plain launch_mmvq_gguf_q6_k_f32_plain
}
absent! {
    (In, Out, i32, i32, i32, Out)
    launch_mmvq_gguf_quantize_q8_1_bf16 launch_mmvq_gguf_quantize_q8_1_f16 launch_mmvq_gguf_quantize_q8_1_f32
}
absent! {
    (In, *const i32, Out, i32, i64, i64, i64, i64, i64, i64, i64, i64, Out)
    launch_mmq_quantize_q8_1_D4 launch_mmq_quantize_q8_1_DS4 launch_mmq_quantize_q8_1_D2S6
}
absent! {
    (Out, In, In, Out, i64, i64, i64, i64, i64, i32, i32, i64, i32, Out)
    launch_mmq_gguf_q4_0 launch_mmq_gguf_q4_1 launch_mmq_gguf_q5_0 launch_mmq_gguf_q5_1 launch_mmq_gguf_q8_0
    launch_mmq_gguf_q2_k launch_mmq_gguf_q3_k launch_mmq_gguf_q4_k launch_mmq_gguf_q5_k launch_mmq_gguf_q6_k
}
