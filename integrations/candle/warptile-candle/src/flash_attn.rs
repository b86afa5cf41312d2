//! The functions of candle-flash-attn, by their names and signatures.

#![expect(clippy::too_many_arguments, reason = "candle-flash-attn's signatures")]

use candle_core::{CpuStorage, CudaStorage, CustomOp3, Layout, Result, Shape, Tensor};
use warptile::spec::Operand;

use crate::attention::Attention;
use crate::caller::Sizes;
use crate::key_lengths::key_lengths;

/// Attention between dense tensors as an operation of candle, for `Tensor::apply_op3`.
///
/// The fields are those of candle-flash-attn's struct of this name; [`Attention`] has more options.
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
    /// Bounds the scores by `softcap * tanh(score / softcap)`; `None` or 0 for no bound.
    pub softcap: Option<f32>,
}

impl FlashAttn {
    fn attention(&self) -> Attention {
        Attention::new(self.softmax_scale)
            .window(self.window_size_left, self.window_size_right)
            .softcap(self.softcap.unwrap_or(0.0))
            .with(Operand::Slopes, self.alibi_slopes.as_ref())
            .named("flash-attn")
    }
}

/// Implements candle's operation for a struct `FlashAttn` with a method `attention`, here and in warptile-candle-v3.
#[doc(hidden)]
#[macro_export]
macro_rules! flash_attn_operation {
    ($name:literal) => {
        impl CustomOp3 for FlashAttn {
            fn name(&self) -> &'static str {
                $name
            }

            fn cpu_fwd(
                &self,
                q: &CpuStorage,
                q_l: &Layout,
                k: &CpuStorage,
                k_l: &Layout,
                v: &CpuStorage,
                v_l: &Layout,
            ) -> Result<(CpuStorage, Shape)> {
                self.attention().cpu_fwd(q, q_l, k, k_l, v, v_l)
            }

            fn cuda_fwd(
                &self,
                q: &CudaStorage,
                q_l: &Layout,
                k: &CudaStorage,
                k_l: &Layout,
                v: &CudaStorage,
                v_l: &Layout,
            ) -> Result<(CudaStorage, Shape)> {
                self.attention().cuda_fwd(q, q_l, k, k_l, v, v_l)
            }

            fn bwd(
                &self,
                q: &Tensor,
                k: &Tensor,
                v: &Tensor,
                out: &Tensor,
                grad: &Tensor,
            ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
                self.attention().bwd(q, k, v, out, grad)
            }
        }
    };
}

flash_attn_operation!("flash-attn");

/// The window of a causal mask, or of none.
fn causal_window(causal: bool) -> (Option<usize>, Option<usize>) {
    (None, causal.then_some(0))
}

/// Attention between dense tensors: `softmax(softmax_scale * q kᵀ) v`.
///
/// - `q`: `(batch, length, heads, head size)`, f16, bf16 or f32; the head size is a multiple of 8 up to 512.
/// - `k`, `v`: `(batch, key length, key/value heads, head size)`; the query heads are a multiple of theirs.
/// - `causal`: no query sees a key after its own position, counted from the ends of q and k.
///
/// The output has the shape of `q`. All tensors may have any strides whose last is 1.
///
/// # Errors
/// A message that names the argument and the rule it breaks; what the GPU's driver reports.
pub fn flash_attn(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let (left, right) = causal_window(causal);
    flash_attn_windowed(q, k, v, softmax_scale, left, right)
}

/// As [`flash_attn`], where a query sees this many keys before and after its own position. `None` sets no limit, and neither does a number
/// above the key length. `None` and `Some(0)` are the causal mask.
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let (left, right) = (window_size_left, window_size_right);
    flash_attn_alibi_windowed_softcap(q, k, v, None, softmax_scale, left, right, 0.0)
}

/// As [`flash_attn`], with ALiBi: `alibi_slopes`, f32 `(heads)`, times the distance of query and key is subtracted from the scores.
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let (left, right) = causal_window(causal);
    flash_attn_alibi_windowed(q, k, v, alibi_slopes, softmax_scale, left, right)
}

/// As [`flash_attn_alibi`], with the window of [`flash_attn_windowed`].
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let (left, right) = (window_size_left, window_size_right);
    flash_attn_alibi_windowed_softcap(q, k, v, Some(alibi_slopes), softmax_scale, left, right, 0.0)
}

/// As [`flash_attn_windowed`], with or without ALiBi, and with scores bounded by `softcap * tanh(score / softcap)`; 0 sets no bound.
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let operation = FlashAttn {
        softmax_scale,
        alibi_slopes: alibi_slopes.cloned(),
        window_size_left,
        window_size_right,
        softcap: Some(softcap),
    };
    operation.attention().forward(q, k, v)
}

/// With a window of keys before and after the diagonal.
fn masked(softmax_scale: f32, (left, right): (Option<usize>, Option<usize>)) -> Attention {
    Attention::new(softmax_scale).window(left, right)
}

/// Packed queries and keys.
fn varlen(
    [q, k, v]: [&Tensor; 3],
    seqlens: [&Tensor; 2],
    longest: [usize; 2],
    attention: Attention,
) -> Result<Tensor> {
    attention
        .packed_queries(seqlens[0], longest[0])
        .packed_keys(seqlens[1], longest[1])
        .named(VARLEN)
        .forward(q, k, v)
}

/// Attention between sequences of different lengths, packed one after the other without padding.
///
/// - `q`: `(rows, heads, head size)`; `k`, `v`: `(key rows, key/value heads, head size)`.
/// - `seqlens_q`, `seqlens_k`: u32 or i32, one entry more than there are sequences. Sequence `b` has the rows from
///   `seqlens_q[b]` to `seqlens_q[b + 1]` of q and those from `seqlens_k[b]` to `seqlens_k[b + 1]` of k and v.
/// - `max_seqlen_q`, `max_seqlen_k`: no sequence is longer. On a GPU longer ones are cut off; on the CPU they are an error.
///
/// The output has the shape of `q`; rows that no sequence owns are 0.
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let attention = masked(softmax_scale, causal_window(causal));
    let (seqlens, longest) = ([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k]);
    varlen([q, k, v], seqlens, longest, attention)
}

/// As [`flash_attn_varlen`], with a window as in [`flash_attn_windowed`]; a number above `max_seqlen_k` is no limit.
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let attention = masked(softmax_scale, (window_size_left, window_size_right));
    let (seqlens, longest) = ([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k]);
    varlen([q, k, v], seqlens, longest, attention)
}

/// As [`flash_attn_varlen`], with ALiBi as in [`flash_attn_alibi`].
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let attention = masked(softmax_scale, causal_window(causal)).alibi_slopes(alibi_slopes);
    let (seqlens, longest) = ([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k]);
    varlen([q, k, v], seqlens, longest, attention)
}

/// As [`flash_attn_varlen_windowed`], with ALiBi as in [`flash_attn_alibi`].
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let attention = masked(softmax_scale, (window_size_left, window_size_right));
    let (seqlens, longest) = ([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k]);
    let attention = attention.alibi_slopes(alibi_slopes);
    varlen([q, k, v], seqlens, longest, attention)
}

/// As [`flash_attn_varlen_windowed`], with or without ALiBi, and with the softcap of [`flash_attn_alibi_windowed_softcap`].
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let attention = masked(softmax_scale, (window_size_left, window_size_right))
        .softcap(softcap)
        .with(Operand::Slopes, alibi_slopes);
    let (seqlens, longest) = ([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k]);
    varlen([q, k, v], seqlens, longest, attention)
}

/// As [`flash_attn_varlen_windowed`], with keys and values in pages.
///
/// - `k`, `v`: `(pages, page_block_size, key/value heads, head size)`, with any strides whose last is 1. A page has 1 to 256 rows.
/// - `block_table`: u32 or i32 `(sequences, pages of the longest)`. Key `j` of sequence `b` is row `j % page_block_size` of page
///   `block_table[b][j / page_block_size]`.
/// - `seqlens_k`: as in [`flash_attn_varlen`]: sequence `b` has `seqlens_k[b + 1] - seqlens_k[b]` keys. On a GPU they must be u32, and
///   the differences are computed by a kernel of candle's; a decode step that has the lengths saves that by [`Attention::paged`].
/// - `softcap`: `None` or 0 for none.
///
/// Keys and values in pages on a GPU: f16 and bf16.
///
/// # Errors
/// As [`flash_attn`]. `mm_prefix_ranges`, ranges of keys that bypass the mask, are not supported.
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let attention = masked(softmax_scale, (window_size_left, window_size_right))
        .packed_queries(seqlens_q, max_seqlen_q)
        .softcap(softcap.unwrap_or(0.0))
        .named(VARLEN);
    if mm_prefix_ranges.is_some() {
        return Err(attention.caller.broken(
            "mm_prefix_ranges is given, but ranges of keys that bypass the mask are not supported; pass None",
        ));
    }
    if k.dims().get(1) != Some(&page_block_size) {
        return Err(attention.caller.broken(format_args!(
            "page_block_size is {page_block_size}, but k has shape {:?}, where it is the second number",
            k.dims()
        )));
    }
    let caller = attention.caller;
    let sizes = Sizes {
        sequences: caller.sequences(seqlens_q)?,
        ..Sizes::default()
    };
    let place = ("q", &q.device().location());
    caller.check_list(Operand::KeyOffsets, seqlens_k, place, sizes)?;
    let columns = block_table.dims().get(1).copied().unwrap_or(usize::MAX);
    let room = columns.saturating_mul(page_block_size);
    let key_lengths = key_lengths(caller, seqlens_k, room)?;
    attention
        .paged(block_table, &key_lengths, max_seqlen_k)
        .forward(q, k, v)
}

/// The name of the operation on packed sequences.
const VARLEN: &str = "flash-attn-varlen";
