//! How a problem is described and checked.

use std::sync::Arc;

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::layout::{DIMENSIONS, Layout};
use crate::mask::Mask;
use crate::problem::{AlibiShape, MAX_HEAD_DIM, MAX_LEN, Packed, Problem};

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
    pub(super) fn new(q: &Layout, k: &Layout, v: &Layout, element: ElementType) -> Self {
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
mod tests;
