//! Fused attention for candle without nvcc: the functions of candle-flash-attn-v3 by their names and signatures, computed by
//! [Warptile](https://github.com/warptile/warptile).
//!
//! A crate that uses candle-flash-attn-v3 changes one line of its manifest, and no line of its source:
//!
//! ```toml
//! candle-flash-attn-v3 = { package = "warptile-candle-v3", version = "0.11" }
//! ```
//!
//! They are the functions of [`warptile_candle`] with one more parameter. That crate says what is computed, where, and with which
//! versions of candle. `use_gqa_packing` has no effect: Warptile chooses the kernel. Head sizes are 8 to 512 in steps of 8, where
//! candle-flash-attn-v3 has 64, 128, 256 and 512.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use warptile_candle_v3::flash_attn;
//!
//! # fn main() -> candle_core::Result<()> {
//! let q = Tensor::randn(0f32, 1., (2, 128, 8, 64), &Device::Cpu)?; // batch, length, heads, head size
//! let out = flash_attn(&q, &q, &q, 0.125, true, false)?;
//! assert_eq!(out.dims(), q.dims());
//! # Ok(())
//! # }
//! ```

#![expect(
    clippy::too_many_arguments,
    reason = "candle-flash-attn-v3's signatures"
)]

use candle_core::{CpuStorage, CudaStorage, CustomOp3, Layout, Result, Shape, Tensor};
use warptile_candle::Attention;

/// Attention between dense tensors as an operation of candle, for `Tensor::apply_op3`.
///
/// The fields are those of candle-flash-attn-v3's struct of this name.
#[derive(Debug, Clone)]
pub struct FlashAttn {
    /// Factor of `q·k`.
    pub softmax_scale: f32,
    /// f32, one slope per query head.
    pub alibi_slopes: Option<Tensor>,
    /// Keys before the diagonal that a query sees; `None` for no limit.
    pub window_size_left: Option<usize>,
    /// Keys after the diagonal that a query sees; `None` for no limit.
    pub window_size_right: Option<usize>,
    /// Without effect.
    pub use_gqa_packing: bool,
}

impl FlashAttn {
    fn attention(&self) -> Attention {
        let attention = Attention::new(self.softmax_scale)
            .window(self.window_size_left, self.window_size_right)
            .named("flash-attn-v3");
        match &self.alibi_slopes {
            Some(slopes) => attention.alibi_slopes(slopes),
            None => attention,
        }
    }
}

warptile_candle::flash_attn_operation!("flash-attn-v3");

/// Functions of `warptile_candle` with one more parameter at the end; neighboring parameters of one type are listed together.
macro_rules! with_gqa_packing {
    ($(fn $name:ident($($($argument:ident)+: $type:ty),*);)*) => {
        $(
            #[doc = concat!("[`warptile_candle::", stringify!($name), "`]; `use_gqa_packing` has no effect.")]
            ///
            /// # Errors
            /// As that function.
            pub fn $name($($($argument: $type,)+)* use_gqa_packing: bool) -> Result<Tensor> {
                let _ = use_gqa_packing;
                warptile_candle::$name($($($argument),+),*)
            }
        )*
    };
}

with_gqa_packing! {
    fn flash_attn(q k v: &Tensor, softmax_scale: f32, causal: bool);
    fn flash_attn_windowed(q k v: &Tensor, softmax_scale: f32, window_size_left window_size_right: Option<usize>);
    fn flash_attn_alibi(q k v alibi_slopes: &Tensor, softmax_scale: f32, causal: bool);
    fn flash_attn_alibi_windowed(
        q k v alibi_slopes: &Tensor, softmax_scale: f32, window_size_left window_size_right: Option<usize>
    );
    fn flash_attn_varlen(
        q k v seqlens_q seqlens_k: &Tensor, max_seqlen_q max_seqlen_k: usize, softmax_scale: f32, causal: bool
    );
    fn flash_attn_varlen_windowed(
        q k v seqlens_q seqlens_k: &Tensor, max_seqlen_q max_seqlen_k: usize, softmax_scale: f32,
        window_size_left window_size_right: Option<usize>
    );
    fn flash_attn_varlen_alibi(
        q k v alibi_slopes seqlens_q seqlens_k: &Tensor, max_seqlen_q max_seqlen_k: usize, softmax_scale: f32, causal: bool
    );
    fn flash_attn_varlen_alibi_windowed(
        q k v alibi_slopes seqlens_q seqlens_k: &Tensor, max_seqlen_q max_seqlen_k: usize, softmax_scale: f32,
        window_size_left window_size_right: Option<usize>
    );
}
