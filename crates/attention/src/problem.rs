//! What is to be computed, validated once.

use std::fmt;
use std::sync::Arc;

use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::layout::{DIMENSIONS, Layout, View};
use crate::mask::Mask;

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
        ProblemBuilder {
            element,
            q: *q,
            k: *k,
            v: *v,
            out: None,
            packed: None,
            mask: Mask::None,
            scale: None,
            softcap: None,
            alibi: None,
            want_lse: true,
            aligned: true,
        }
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

/// Describes a [`Problem`]; made by [`Problem::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ProblemBuilder<'a> {
    element: ElementType,
    q: Layout,
    k: Layout,
    v: Layout,
    out: Option<Layout>,
    packed: Option<(&'a [i32], &'a [i32])>,
    mask: Mask,
    scale: Option<f32>,
    softcap: Option<f32>,
    alibi: Option<AlibiShape>,
    want_lse: bool,
    aligned: bool,
}

impl<'a> ProblemBuilder<'a> {
    /// Which keys a query sees. Default: all.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Factor of `q.k`. Default: `1 / sqrt(head_dim)`.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Bounds scores to `-softcap..softcap` smoothly. Default: unbounded.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = Some(softcap);
        self
    }

    /// Adds a bias that falls with the distance between query and key. Default: none.
    pub fn alibi(mut self, alibi: AlibiShape) -> Self {
        self.alibi = Some(alibi);
        self
    }

    /// Sequences of different lengths, one after the other along the rows of tensors whose batch extent is 1. Sequence
    /// `b` has rows `cu_seqlens[b]..cu_seqlens[b + 1]`. Rows past the last offset are padding: never read, never written.
    pub fn packed(mut self, cu_seqlens_q: &'a [i32], cu_seqlens_k: &'a [i32]) -> Self {
        self.packed = Some((cu_seqlens_q, cu_seqlens_k));
        self
    }

    /// Layout of the output. Default: dense, in the storage order of `q`.
    pub fn out(mut self, out: Layout) -> Self {
        self.out = Some(out);
        self
    }

    /// Whether to compute the lse. Default: yes.
    pub fn want_lse(mut self, want_lse: bool) -> Self {
        self.want_lse = want_lse;
        self
    }

    /// For tensors that may start at addresses that are no multiple of 16 bytes: keeps kernels away that need one.
    pub fn unaligned_addresses(mut self) -> Self {
        self.aligned = false;
        self
    }

    /// Checks everything and freezes the description.
    ///
    /// # Errors
    /// An [`Error`] that names the argument and the rule it breaks.
    pub fn build(self) -> Result<Problem> {
        let out = self.out.unwrap_or_else(|| self.q.dense_like());
        let tensors = [
            ("q", &self.q),
            ("k", &self.k),
            ("v", &self.v),
            ("out", &out),
        ];
        let head_dim = self.q.head_dim();
        if !head_dim.is_multiple_of(8) || !(8..=MAX_HEAD_DIM).contains(&head_dim) {
            return Err(Error::HeadDimUnsupported { head_dim });
        }
        let (heads, kv_heads) = (self.q.heads(), self.k.heads());
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(Error::HeadsNotMultiple { heads, kv_heads });
        }
        let [batch, query_rows, ..] = self.q.shape;
        let key_rows = self.k.rows();
        expect_shape("k", &self.k, [batch, key_rows, kv_heads, head_dim])?;
        expect_shape("v", &self.v, [batch, key_rows, kv_heads, head_dim])?;
        expect_shape("out", &out, [batch, query_rows, heads, head_dim])?;
        for (argument, layout) in tensors {
            for (&found, dimension) in layout.shape.iter().zip(DIMENSIONS) {
                if found > MAX_LEN {
                    return Err(Error::TooLong {
                        argument,
                        dimension,
                        found,
                        limit: MAX_LEN,
                    });
                }
            }
            layout.validate(argument)?;
        }
        if !out.is_overlap_free() {
            return Err(Error::OutputOverlaps {
                argument: "out",
                reason: "its strides place two elements in one place",
            });
        }
        let scale = self.scale.unwrap_or(1.0 / (head_dim as f32).sqrt());
        if !scale.is_finite() {
            return Err(Error::NonFinite {
                argument: "scale",
                value: scale,
            });
        }
        if let Some(value) = self.softcap
            && !(value.is_finite() && value > 0.0)
        {
            return Err(Error::InvalidSoftcap { value });
        }

        let mut problem = Problem {
            element: self.element,
            q: self.q,
            k: self.k,
            v: self.v,
            out,
            packed: None,
            batch,
            query_len: query_rows,
            key_len: key_rows,
            mask: self.mask,
            scale,
            softcap: self.softcap,
            alibi: self.alibi,
            want_lse: self.want_lse,
            aligned: self.aligned,
        };
        if let Some((cu_seqlens_q, cu_seqlens_k)) = self.packed {
            if batch != 1 {
                return Err(Error::Mismatch {
                    argument: "q",
                    dimension: "batch",
                    expected: 1,
                    found: batch,
                });
            }
            problem.query_len = check_offsets("cu_seqlens_q", cu_seqlens_q, query_rows)?;
            problem.key_len = check_offsets("cu_seqlens_k", cu_seqlens_k, key_rows)?;
            if cu_seqlens_k.len() != cu_seqlens_q.len() {
                return Err(Error::CuSeqlens {
                    argument: "cu_seqlens_k",
                    index: cu_seqlens_k.len().min(cu_seqlens_q.len()),
                    rule: format!(
                        "must exist in both or neither: cu_seqlens_q has {} entries, cu_seqlens_k {}",
                        cu_seqlens_q.len(),
                        cu_seqlens_k.len()
                    ),
                });
            }
            problem.batch = cu_seqlens_q.len() - 1;
            problem.packed = Some(Arc::new(Packed {
                cu_seqlens_q: cu_seqlens_q.to_vec(),
                cu_seqlens_k: cu_seqlens_k.to_vec(),
            }));
        }
        Ok(problem)
    }
}

fn expect_shape(argument: &'static str, layout: &Layout, expected: [usize; 4]) -> Result<()> {
    for ((&found, expected), dimension) in layout.shape.iter().zip(expected).zip(DIMENSIONS) {
        if found != expected {
            return Err(Error::Mismatch {
                argument,
                dimension,
                expected,
                found,
            });
        }
    }
    Ok(())
}

/// Checks that a tensor lies as the problem was told.
pub(crate) fn check_layout(
    argument: &'static str,
    found: &Layout,
    expected: &Layout,
) -> Result<()> {
    expect_shape(argument, found, expected.shape)?;
    if found.strides != expected.strides {
        return Err(Error::StridesDiffer {
            argument,
            expected: expected.strides,
            found: found.strides,
        });
    }
    Ok(())
}

/// Checks row offsets over a tensor of `rows` rows; returns the longest sequence.
fn check_offsets(argument: &'static str, offsets: &[i32], rows: usize) -> Result<usize> {
    let broken = |index: usize, rule: String| Error::CuSeqlens {
        argument,
        index,
        rule,
    };
    match offsets.first() {
        None => {
            return Err(broken(
                0,
                "is missing: one entry more than sequences is needed".into(),
            ));
        }
        Some(&first) if first != 0 => {
            return Err(broken(
                0,
                format!("is {first}; the first sequence must start at row 0"),
            ));
        }
        Some(_) => {}
    }
    let mut longest = 0;
    for (index, pair) in offsets.windows(2).enumerate() {
        let (start, end) = (pair[0], pair[1]);
        if end < start {
            return Err(broken(
                index + 1,
                format!(
                    "is {end}, less than the entry before it ({start}); offsets must not decrease"
                ),
            ));
        }
        // Neither is negative: the first is 0 and none decreases.
        if end as usize > rows {
            return Err(broken(
                index + 1,
                format!("is {end}, but the tensor has only {rows} rows"),
            ));
        }
        longest = longest.max((end - start) as usize);
    }
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(q: [usize; 4], k: [usize; 4], v: [usize; 4]) -> Result<Problem> {
        Problem::builder(
            &Layout::bshd(q),
            &Layout::bshd(k),
            &Layout::bshd(v),
            ElementType::F32,
        )
        .build()
    }

    fn message(result: Result<Problem>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn head_size_not_a_multiple_of_8_or_over_256() {
        for head_dim in [0, 4, 59, 264, 1 << 40] {
            let shape = [1, 3, 2, head_dim];
            let text = message(build(shape, shape, shape));
            assert!(
                text.starts_with(&format!("q has head size {head_dim};")),
                "{text}"
            );
        }
    }

    #[test]
    fn query_heads_not_a_multiple_of_key_value_heads() {
        for (heads, kv_heads) in [(6, 4), (2, 4), (0, 1), (4, 0), (0, 0)] {
            let text = message(build(
                [1, 3, heads, 8],
                [1, 3, kv_heads, 8],
                [1, 3, kv_heads, 8],
            ));
            assert!(
                text.starts_with(&format!("q has {heads} heads and k has {kv_heads};")),
                "{text}"
            );
        }
    }

    #[test]
    fn mismatched_dimensions_name_tensor_and_dimension() {
        let q = [2, 3, 4, 16];
        for (k, v, start) in [
            (
                [3, 5, 2, 16],
                [2, 5, 2, 16],
                "k has batch 3, but 2 is needed",
            ),
            (
                [2, 5, 2, 16],
                [1, 5, 2, 16],
                "v has batch 1, but 2 is needed",
            ),
            (
                [2, 5, 2, 24],
                [2, 5, 2, 16],
                "k has head size 24, but 16 is needed",
            ),
            (
                [2, 5, 2, 16],
                [2, 5, 2, 8],
                "v has head size 8, but 16 is needed",
            ),
            (
                [2, 5, 2, 16],
                [2, 6, 2, 16],
                "v has length 6, but 5 is needed",
            ),
            (
                [2, 5, 2, 16],
                [2, 5, 4, 16],
                "v has heads 4, but 2 is needed",
            ),
        ] {
            let text = message(build(q, k, v));
            assert!(text.starts_with(start), "{text}");
        }
    }

    #[test]
    fn mismatched_element_types() {
        let error = common_element(ElementType::F16, ElementType::F16, ElementType::F32);
        assert_eq!(
            error.unwrap_err().to_string(),
            "v has elements of type f32, but q has f16; all of q, k and v must share one type"
        );
    }

    #[test]
    fn non_contiguous_last_dimension() {
        let q = Layout::bshd([1, 4, 2, 8]);
        let v = Layout::new([1, 4, 2, 8], [128, 32, 16, 2]);
        let text = message(Problem::builder(&q, &q, &v, ElementType::F16).build());
        assert!(
            text.starts_with("v has stride 2 in its last dimension"),
            "{text}"
        );
    }

    #[test]
    fn overlapping_output() {
        let q = Layout::bshd([1, 4, 2, 8]);
        let out = Layout::new([1, 4, 2, 8], [0, 0, 8, 1]);
        let text = message(
            Problem::builder(&q, &q, &q, ElementType::F16)
                .out(out)
                .build(),
        );
        assert!(text.starts_with("out overlaps"), "{text}");
        // Inputs may repeat rows.
        assert!(
            Problem::builder(&q, &out, &out, ElementType::F16)
                .build()
                .is_ok()
        );
    }

    #[test]
    fn output_of_another_shape() {
        let q = Layout::bshd([1, 4, 2, 8]);
        let out = Layout::bshd([1, 5, 2, 8]);
        let text = message(
            Problem::builder(&q, &q, &q, ElementType::F16)
                .out(out)
                .build(),
        );
        assert!(
            text.starts_with("out has length 5, but 4 is needed"),
            "{text}"
        );
    }

    #[test]
    fn nan_and_infinite_scale() {
        let q = Layout::bshd([1, 4, 2, 8]);
        for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let text = message(
                Problem::builder(&q, &q, &q, ElementType::F32)
                    .scale(scale)
                    .build(),
            );
            assert!(text.starts_with("scale is "), "{text}");
        }
        for scale in [0.0, -1.0] {
            assert!(
                Problem::builder(&q, &q, &q, ElementType::F32)
                    .scale(scale)
                    .build()
                    .is_ok()
            );
        }
    }

    #[test]
    fn softcap_must_be_positive() {
        let q = Layout::bshd([1, 4, 2, 8]);
        for softcap in [f32::NAN, f32::INFINITY, 0.0, -2.0] {
            let text = message(
                Problem::builder(&q, &q, &q, ElementType::F32)
                    .softcap(softcap)
                    .build(),
            );
            assert!(text.starts_with("softcap is "), "{text}");
        }
    }

    #[test]
    fn lengths_have_a_limit() {
        let short = Layout::bshd([1, 1, 1, 8]);
        let long = Layout::new([1, MAX_LEN + 1, 1, 8], [0, 0, 0, 1]);
        let text = message(Problem::builder(&short, &long, &long, ElementType::F32).build());
        assert!(
            text.starts_with("k has length 1073741825; the limit is"),
            "{text}"
        );
    }

    #[test]
    fn shapes_beyond_the_address_space() {
        let short = Layout::bshd([1, 1, 1, 8]);
        let far = Layout::new([1, 1 << 30, 1, 8], [0, 1 << 40, 0, 1]);
        let text = message(Problem::builder(&short, &far, &far, ElementType::F32).build());
        assert!(
            text.starts_with("k has a shape and strides that reach beyond"),
            "{text}"
        );
    }

    #[test]
    fn row_offsets_that_break_a_rule() {
        let tensor = Layout::packed(10, 2, 8);
        for (q, k, expected) in [
            (&[1, 5][..], &[0, 5][..], "cu_seqlens_q[0] is 1;"),
            (&[], &[0, 5], "cu_seqlens_q[0] is missing"),
            (&[0, 5, 4], &[0, 5, 6], "cu_seqlens_q[2] is 4, less than"),
            (
                &[0, 5, 10],
                &[0, 5, 11],
                "cu_seqlens_k[2] is 11, but the tensor has only 10 rows",
            ),
            (&[0, -5], &[0, 5], "cu_seqlens_q[1] is -5, less than"),
            (
                &[0, 5],
                &[0, 5, 10],
                "cu_seqlens_k[2] must exist in both or neither",
            ),
            (
                &[0, i32::MAX],
                &[0, 5],
                "cu_seqlens_q[1] is 2147483647, but",
            ),
        ] {
            let text = message(
                Problem::builder(&tensor, &tensor, &tensor, ElementType::F32)
                    .packed(q, k)
                    .build(),
            );
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn packed_tensors_have_one_batch_entry() {
        let tensor = Layout::bshd([2, 10, 2, 8]);
        let text = message(
            Problem::builder(&tensor, &tensor, &tensor, ElementType::F32)
                .packed(&[0, 10], &[0, 10])
                .build(),
        );
        assert!(text.starts_with("q has batch 2, but 1 is needed"), "{text}");
    }

    #[test]
    fn packed_sequences_are_where_the_offsets_say() {
        let q = Layout::packed(10, 2, 8);
        let k = Layout::packed(20, 2, 8);
        let problem = Problem::builder(&q, &k, &k, ElementType::F32)
            .mask(Mask::causal())
            .packed(&[0, 3, 3, 8], &[0, 0, 7, 20])
            .build()
            .unwrap();
        assert_eq!(
            (problem.batch(), problem.query_len(), problem.key_len()),
            (3, 5, 13)
        );
        let last = problem.sequences().last().unwrap();
        assert_eq!((last.batch, last.entry), (2, 0));
        assert_eq!(
            (last.q_start, last.q_len, last.k_start, last.k_len),
            (3, 5, 7, 13)
        );
        // Only the last sequence has pairs: its rows see 9, 10, ..., 13 keys.
        assert_eq!(problem.visible_pairs(), 55);
        assert_eq!(problem.lse_shape(), [1, 2, 10]);
        assert_eq!(problem.lse_offset(&last, 1), 13);
    }

    #[test]
    fn empty_problems_are_fine() {
        for (q, k) in [
            ([0, 4, 2, 8], [0, 4, 2, 8]),
            ([2, 0, 2, 8], [2, 4, 2, 8]),
            ([2, 4, 2, 8], [2, 0, 2, 8]),
        ] {
            assert_eq!(build(q, k, k).unwrap().flops(), 0);
        }
    }

    #[test]
    fn slopes_are_checked() {
        let q = Layout::bshd([3, 4, 2, 8]);
        let builder = Problem::builder(&q, &q, &q, ElementType::F32);
        let without = builder.clone().build().unwrap();
        let per_head = builder.clone().alibi(AlibiShape::PerHead).build().unwrap();
        let per_batch = builder.alibi(AlibiShape::PerBatchHead).build().unwrap();
        let text = |result: Result<()>| result.unwrap_err().to_string();
        assert!(without.check_alibi(None).is_ok());
        assert!(per_head.check_alibi(Some(&[0.5, 0.25])).is_ok());
        assert!(per_batch.check_alibi(Some(&[0.5; 6])).is_ok());
        assert!(text(without.check_alibi(Some(&[0.5; 2]))).contains("alibi_slopes is given"));
        assert!(text(per_head.check_alibi(None)).contains("alibi_slopes is missing"));
        assert!(
            text(per_head.check_alibi(Some(&[0.5; 3]))).starts_with("alibi_slopes has 3 values")
        );
        assert!(
            text(per_head.check_alibi(Some(&[0.5, f32::NAN]))).starts_with("alibi_slopes is NaN")
        );
    }

    #[test]
    fn flops_count_visible_pairs() {
        let shape = [2, 512, 8, 64];
        let full = build(shape, shape, shape).unwrap();
        assert_eq!(full.flops(), 4 * 2 * 8 * 512 * 512 * 64);
    }

    #[test]
    fn a_problem_prints_as_a_sentence() {
        let q = Layout::bshd([1, 100, 8, 64]);
        let k = Layout::bshd([1, 300, 2, 64]);
        let problem = Problem::builder(&q, &k, &k, ElementType::F16)
            .mask(Mask::causal())
            .softcap(30.0)
            .build()
            .unwrap();
        assert_eq!(
            problem.to_string(),
            "f16 1 sequence, 8 heads (2 for keys and values), 100 x 300 rows, head size 64, mask causal bottom-right, scale 0.125, softcap 30"
        );
    }
}
