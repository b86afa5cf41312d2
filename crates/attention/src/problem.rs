//! What is to be computed, validated once.

mod builder;

use std::fmt;
use std::sync::Arc;

use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::layout::{Layout, View};
use crate::mask::Mask;

pub use builder::ProblemBuilder;
pub(crate) use builder::check_layout;

/// The most rows a sequence or tensor may have, and the most batch entries or heads. The kernels keep such counts in 32
/// bits, with room for a mask's window on top.
pub const MAX_LEN: usize = 1 << 30;

/// Largest head size with a kernel.
pub const MAX_HEAD_DIM: usize = 256;

/// How the slopes of ALiBi are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AlibiShape {
    /// One slope per query head, shared by the batch.
    PerHead,
    /// One slope per batch entry and query head, heads contiguous.
    PerBatchHead,
}

/// One attention computation over tensors of known layout: validated when built, immutable after.
///
/// For each batch entry and head, with the key/value head `h / (heads / kv_heads)`:
/// `score = scale * q.k`, then `softcap * tanh(score / softcap)` if there is a softcap, then
/// `- slope * |i + key_len - query_len - j|` if there are ALiBi slopes, then the mask; `out = softmax(score) v` and
/// `lse = ln(sum(exp(score)))`. A query that sees no key has `out = 0` and `lse = -inf`.
///
/// ```
/// use warptile::{ElementType, Layout, Mask, Problem};
///
/// let q = Layout::bshd([2, 100, 8, 64]);
/// let kv = Layout::bshd([2, 300, 2, 64]); // four query heads share a key/value head
/// let problem = Problem::builder(&q, &kv, &kv, ElementType::F16)
///     .mask(Mask::causal())
///     .build()?;
/// assert_eq!(problem.scale(), 0.125); // 1 / sqrt(64)
/// # Ok::<(), warptile::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    element: ElementType,
    q: Layout,
    k: Layout,
    v: Layout,
    out: Layout,
    packed: Option<Arc<Packed>>,
    batch: usize,
    query_len: usize,
    key_len: usize,
    mask: Mask,
    scale: f32,
    softcap: Option<f32>,
    alibi: Option<AlibiShape>,
    want_lse: bool,
    aligned: bool,
}

/// Row offsets of packed sequences: sequence `b` has the rows `[b]..[b + 1]`.
#[derive(Debug, PartialEq)]
struct Packed {
    cu_seqlens_q: Vec<i32>,
    cu_seqlens_k: Vec<i32>,
}

/// Where one sequence of the batch lies in the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sequence {
    /// Index in the batch.
    pub batch: usize,
    /// Index along the tensors' first dimension: `batch`, or 0 for packed tensors.
    pub entry: usize,
    /// First row of q and out.
    pub q_start: usize,
    /// Rows of q and out.
    pub q_len: usize,
    /// First row of k and v.
    pub k_start: usize,
    /// Rows of k and v.
    pub k_len: usize,
}

impl Problem {
    /// Starts a description of attention between tensors of these layouts, all of one element type.
    pub fn builder<'a>(
        q: &Layout,
        k: &Layout,
        v: &Layout,
        element: ElementType,
    ) -> ProblemBuilder<'a> {
        ProblemBuilder::new(q, k, v, element)
    }

    /// Element type of q, k, v and out.
    #[must_use]
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// Sequences.
    #[must_use]
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Queries of a sequence; packed: of the longest.
    #[must_use]
    pub const fn query_len(&self) -> usize {
        self.query_len
    }

    /// Keys of a sequence; packed: of the longest.
    #[must_use]
    pub const fn key_len(&self) -> usize {
        self.key_len
    }

    /// Query heads.
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.q.heads()
    }

    /// Key/value heads.
    #[must_use]
    pub const fn kv_heads(&self) -> usize {
        self.k.heads()
    }

    /// Query heads that share a key/value head.
    #[must_use]
    pub const fn group_size(&self) -> usize {
        self.heads() / self.kv_heads()
    }

    /// Head size.
    #[must_use]
    pub const fn head_dim(&self) -> usize {
        self.q.head_dim()
    }

    /// Which keys a query sees.
    #[must_use]
    pub const fn mask(&self) -> Mask {
        self.mask
    }

    /// Factor of `q.k`: finite, 0 and negative allowed.
    #[must_use]
    pub const fn scale(&self) -> f32 {
        self.scale
    }

    /// Bound of the scores, greater than 0.
    #[must_use]
    pub const fn softcap(&self) -> Option<f32> {
        self.softcap
    }

    /// Whether there are ALiBi slopes, and how many.
    #[must_use]
    pub const fn alibi(&self) -> Option<AlibiShape> {
        self.alibi
    }

    /// Whether the lse is wanted.
    #[must_use]
    pub const fn wants_lse(&self) -> bool {
        self.want_lse
    }

    /// Whether every tensor's rows start at multiples of 16 bytes: the strides tell for all rows but the first, whose
    /// address is taken to be one unless the problem was built with [`ProblemBuilder::unaligned_addresses`].
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        let elements = 16 / self.element.size();
        let steps_aligned = |layout: &Layout| {
            (0..3).all(|dimension| {
                layout.shape[dimension] <= 1 || layout.strides[dimension].is_multiple_of(elements)
            })
        };
        self.aligned
            && [&self.q, &self.k, &self.v, &self.out]
                .into_iter()
                .all(steps_aligned)
    }

    /// Layout of q.
    #[must_use]
    pub const fn q(&self) -> &Layout {
        &self.q
    }

    /// Layout of k.
    #[must_use]
    pub const fn k(&self) -> &Layout {
        &self.k
    }

    /// Layout of v.
    #[must_use]
    pub const fn v(&self) -> &Layout {
        &self.v
    }

    /// Layout of the output.
    #[must_use]
    pub const fn out(&self) -> &Layout {
        &self.out
    }

    /// Whether the sequences are packed into one row dimension.
    #[must_use]
    pub const fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Row offsets of q's sequences, `batch + 1` of them, if packed.
    #[must_use]
    pub fn cu_seqlens_q(&self) -> Option<&[i32]> {
        self.packed.as_deref().map(|p| p.cu_seqlens_q.as_slice())
    }

    /// Row offsets of k's and v's sequences, `batch + 1` of them, if packed.
    #[must_use]
    pub fn cu_seqlens_k(&self) -> Option<&[i32]> {
        self.packed.as_deref().map(|p| p.cu_seqlens_k.as_slice())
    }

    /// Every sequence of the batch in order.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence> + '_ {
        (0..self.batch).map(|batch| self.sequence(batch))
    }

    fn sequence(&self, batch: usize) -> Sequence {
        match self.packed.as_deref() {
            None => Sequence {
                batch,
                entry: batch,
                q_start: 0,
                q_len: self.query_len,
                k_start: 0,
                k_len: self.key_len,
            },
            Some(packed) => {
                // Offsets are validated to be 0 or more.
                let rows = |offsets: &[i32]| (offsets[batch] as usize, offsets[batch + 1] as usize);
                let (q_start, q_end) = rows(&packed.cu_seqlens_q);
                let (k_start, k_end) = rows(&packed.cu_seqlens_k);
                Sequence {
                    batch,
                    entry: 0,
                    q_start,
                    q_len: q_end - q_start,
                    k_start,
                    k_len: k_end - k_start,
                }
            }
        }
    }

    /// Shape of the lse, contiguous: `[batch, heads, query_len]`, or for packed sequences `[1, heads, rows of q]`.
    #[must_use]
    pub const fn lse_shape(&self) -> [usize; 3] {
        [self.q.batch(), self.heads(), self.q.rows()]
    }

    /// Elements of the lse.
    #[must_use]
    pub fn lse_len(&self) -> usize {
        // Below the number of elements of q, which is validated.
        self.lse_shape().iter().product()
    }

    /// Offset in the lse of the first row of a sequence and head; rows are contiguous.
    #[must_use]
    pub const fn lse_offset(&self, sequence: &Sequence, head: usize) -> usize {
        (sequence.entry * self.heads() + head) * self.q.rows() + sequence.q_start
    }

    /// Number of ALiBi slopes that [`AlibiShape`] asks for; 0 without ALiBi.
    #[must_use]
    pub const fn alibi_len(&self) -> usize {
        match self.alibi {
            None => 0,
            Some(AlibiShape::PerHead) => self.heads(),
            Some(AlibiShape::PerBatchHead) => self.batch * self.heads(),
        }
    }

    /// Checks slopes against the problem: given exactly if it was built with ALiBi, of the right number, finite.
    ///
    /// # Errors
    /// [`Error::AlibiPresence`], [`Error::AlibiShape`] or [`Error::NonFinite`].
    pub fn check_alibi(&self, slopes: Option<&[f32]>) -> Result<()> {
        let (built, given) = match (self.alibi, slopes) {
            (None, None) => return Ok(()),
            (None, Some(_)) => ("without", "given"),
            (Some(_), None) => ("with", "missing"),
            (Some(_), Some(slopes)) => {
                if slopes.len() != self.alibi_len() {
                    return Err(Error::AlibiShape {
                        found: slopes.len(),
                        heads: self.heads(),
                        batch_heads: self.batch * self.heads(),
                    });
                }
                return match slopes.iter().find(|slope| !slope.is_finite()) {
                    Some(&value) => Err(Error::NonFinite {
                        argument: "alibi_slopes",
                        value,
                    }),
                    None => Ok(()),
                };
            }
        };
        Err(Error::AlibiPresence { built, given })
    }

    /// Checks the arguments of a call against the problem: their layouts, their buffers, the slopes.
    pub(crate) fn check_inputs<T: Element>(
        &self,
        q: &View<'_, T>,
        k: &View<'_, T>,
        v: &View<'_, T>,
        slopes: Option<&[f32]>,
    ) -> Result<()> {
        for (argument, view, layout) in [("q", q, &self.q), ("k", k, &self.k), ("v", v, &self.v)] {
            if T::TYPE != self.element {
                return Err(Error::ElementMismatch {
                    argument,
                    expected: self.element,
                    found: T::TYPE,
                });
            }
            check_layout(argument, &view.layout, layout)?;
            view.layout.check_buffer(argument, view.data.len())?;
        }
        self.check_alibi(slopes)
    }

    /// The slope of a head of a sequence; 0 without slopes.
    pub(crate) fn slope(&self, slopes: Option<&[f32]>, batch: usize, head: usize) -> f32 {
        let index = match self.alibi {
            Some(AlibiShape::PerBatchHead) => batch * self.heads() + head,
            _ => head,
        };
        slopes.map_or(0.0, |slopes| slopes[index])
    }

    /// Visible (query, key) pairs of one head, summed over the batch.
    #[must_use]
    pub fn visible_pairs(&self) -> u128 {
        match self.is_packed() {
            false => self.batch as u128 * self.mask.visible_pairs(self.query_len, self.key_len),
            true => self
                .sequences()
                .map(|sequence| self.mask.visible_pairs(sequence.q_len, sequence.k_len))
                .sum(),
        }
    }

    /// Arithmetic of the forward pass by the usual count: four operations per visible pair, head and head dimension.
    #[must_use]
    pub fn flops(&self) -> u128 {
        4 * self.visible_pairs() * self.heads() as u128 * self.head_dim() as u128
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.element, counted(self.batch, "sequence"))?;
        if self.is_packed() {
            f.write_str(" (packed)")?;
        }
        write!(f, ", {}", counted(self.heads(), "head"))?;
        if self.kv_heads() != self.heads() {
            write!(f, " ({} for keys and values)", self.kv_heads())?;
        }
        write!(
            f,
            ", {} x {} rows, head size {}, mask {}, scale {}",
            self.query_len,
            self.key_len,
            self.head_dim(),
            self.mask,
            self.scale
        )?;
        if let Some(softcap) = self.softcap {
            write!(f, ", softcap {softcap}")?;
        }
        if self.alibi.is_some() {
            f.write_str(", ALiBi")?;
        }
        Ok(())
    }
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The element type that q, k and v share, for callers who learn their types at run time.
///
/// # Errors
/// [`Error::ElementMismatch`] naming the first tensor that differs from `q`.
pub fn common_element(q: ElementType, k: ElementType, v: ElementType) -> Result<ElementType> {
    for (argument, found) in [("k", k), ("v", v)] {
        if found != q {
            return Err(Error::ElementMismatch {
                argument,
                expected: q,
                found,
            });
        }
    }
    Ok(q)
}
