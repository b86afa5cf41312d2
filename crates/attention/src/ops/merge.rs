//! Attention over disjoint sets of keys, merged into attention over all of them.

use warptile_kernels::abi::MERGE_PARTS;

use crate::backend::{Place, same_device};
use crate::cpu::{SharedMut, in_parallel};
use crate::extents::expect_same;
use crate::gpu::{Access, Expected, MergeBindings};
use crate::layout::DIMENSIONS;
use crate::lse::Lse;
use crate::ops::slot;
use crate::{Element, ElementType, Error, Layout, Result, Tensor};

/// What every lse of a merge is a logarithm to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LseBase {
    /// e: that of this library, FlashAttention and PyTorch.
    #[default]
    Natural,
    /// 2: FlashInfer's.
    Two,
}

impl LseBase {
    fn power(self, exponent: f32) -> f32 {
        match self {
            LseBase::Natural => exponent.exp(),
            LseBase::Two => exponent.exp2(),
        }
    }

    fn logarithm(self, value: f32) -> f32 {
        match self {
            LseBase::Natural => value.ln(),
            LseBase::Two => value.log2(),
        }
    }
}

/// Merges attention over disjoint sets of keys: `parts` are the outputs and lse of the same queries, each over keys of its
/// own. Returns output and lse over all these keys.
///
/// Each part counts with the share that its keys have of the softmax's denominator, `exp(lse)`. Arithmetic is in `f32`, in the
/// order of the parts, so the same parts give the same bits.
/// - A part whose lse is `-inf` saw no key in that row. It contributes nothing, whatever its output holds there, NaN too.
/// - `+inf` means the same: FlashAttention 2 writes it for rows without keys, and no finite score has it.
/// - A row that no part has a key for gives 0 and `-inf`.
/// - A lse of NaN makes the row's output and lse NaN.
///
/// Sinks must be part of at most one of the results.
///
/// ```
/// use warptile::{Attention, Backend, LseBase, merge};
///
/// # fn main() -> warptile::Result<()> {
/// let backend = Backend::cpu();
/// let q = backend.tensor(&[0.5_f32; 16], [1, 2, 1, 8])?;
/// let data: Vec<f32> = (0..48).map(|i| (i as f32).sin()).collect();
/// let kv = backend.tensor(&data, [1, 6, 1, 8])?;
/// let all = Attention::new().forward(&q, (&kv, &kv))?;
/// let (first, rest) = (kv.rows(0..2)?, kv.rows(2..6)?);
/// let (a, b) = (Attention::new().forward(&q, (&first, &first))?, Attention::new().forward(&q, (&rest, &rest))?);
/// let parts = [(&a.out, a.lse.as_ref().unwrap()), (&b.out, b.lse.as_ref().unwrap())];
/// let (out, lse) = merge(&parts, LseBase::Natural)?;
/// for (merged, at_once) in out.to_vec()?.iter().zip(all.out.to_vec()?) {
///     assert!((merged - at_once).abs() < 1e-6);
/// }
/// # let _ = lse;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Count`] without parts, [`Error::TooLong`] with more than 32: merge the results of merges then. When the parts differ in shape, a
/// lse is not that of its output, or the tensors are on different devices. If the device is out of memory or the launch fails.
pub fn merge<T: Element>(parts: &[(&Tensor<T>, &Lse)], base: LseBase) -> Result<(Tensor<T>, Lse)> {
    let Some((first, _)) = parts.first() else {
        return Err(no_parts(0));
    };
    let layout = first.layout().dense_like();
    layout.validate("out")?;
    let mut out = Tensor::uninit(first.backend(), "out", layout)?;
    let mut lse = Lse::uninit(first.backend(), first.shape())?;
    merge_into(parts, base, &mut out, Some(&mut lse))?;
    Ok((out, lse))
}

/// As [`merge()`], into an output and lse of one's own, which nobody else may hold. Nothing is allocated on a GPU, so this may be
/// part of a capture once the kernel was used before.
///
/// # Errors
/// As [`merge()`]; when `out` is not of the parts' shape, or shares memory with anything.
pub fn merge_into<T: Element>(
    parts: &[(&Tensor<T>, &Lse)],
    base: LseBase,
    out: &mut Tensor<T>,
    mut lse: Option<&mut Lse>,
) -> Result<()> {
    let layouts: Vec<Layout> = parts.iter().map(|(part, _)| *part.layout()).collect();
    let merge = Merge::builder(T::TYPE, &layouts)
        .out(*out.layout())
        .base(base)
        .want_lse(lse.is_some())
        .build()?;
    let backend = out.backend().clone();
    for (index, (part, part_lse)) in parts.iter().enumerate() {
        same_device(PART_OUT[index], Some(part.backend()), &backend)?;
        same_device(PART_LSE[index], Some(part_lse.backend()), &backend)?;
        check_lse(PART_LSE[index], part_lse, &merge)?;
    }
    if let Some(lse) = &lse {
        same_device("lse", Some(lse.backend()), &backend)?;
        check_lse("lse", lse, &merge)?;
    }
    match backend.place() {
        Place::Cpu => {
            let mut on_host = Vec::with_capacity(parts.len());
            for (index, (part, part_lse)) in parts.iter().enumerate() {
                let lse = part_lse.on_host(PART_LSE[index])?;
                on_host.push((part.on_host(PART_OUT[index])?, lse));
            }
            let lse = match &mut lse {
                Some(lse) => Some(lse.host_mut("lse")?),
                None => None,
            };
            merge_cpu(&merge, &on_host, out.host_mut("out")?, lse)
        }
        Place::Gpu(gpu) => {
            let prepared = gpu.prepare_merge(T::TYPE)?;
            let mut bindings = MergeBindings::new(out.device_mut("out")?);
            for (index, (part, part_lse)) in parts.iter().enumerate() {
                let lse = part_lse.on_device(PART_LSE[index])?;
                bindings = bindings.part(part.on_device(PART_OUT[index])?, lse);
            }
            if let Some(lse) = &mut lse {
                bindings = bindings.lse(lse.device_mut("lse")?);
            }
            prepared.launch(gpu.stream(), &merge, &bindings)
        }
    }
}

/// There are no parts, or too many.
fn no_parts(found: usize) -> Error {
    match found {
        0 => Error::Count {
            argument: "parts",
            found,
            needed: 1,
        },
        _ => Error::TooLong {
            argument: "parts",
            dimension: "count",
            found,
            limit: MERGE_PARTS,
        },
    }
}

fn check_lse(argument: &'static str, lse: &Lse, merge: &Merge) -> Result<()> {
    let [batch, heads, rows] = lse.shape();
    let expected = (PART_OUT[0], merge.lse_shape());
    expect_same(argument, [batch, rows, heads, 1], expected, DIMENSIONS)
}

macro_rules! names {
    ($kind:literal: $($index:literal)*) => { [$(concat!("parts[", $index, "].", $kind)),*] };
}

/// What errors call the parts.
pub(crate) const PART_OUT: [&str; MERGE_PARTS] = names!("out": 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25
    26 27 28 29 30 31);
pub(crate) const PART_LSE: [&str; MERGE_PARTS] = names!("lse": 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25
    26 27 28 29 30 31);

/// The layouts of a merge, checked: what [`merge_cpu`] and [`PreparedMerge`](crate::gpu::PreparedMerge) take.
#[derive(Debug, Clone)]
pub struct Merge {
    element: ElementType,
    base: LseBase,
    parts: Vec<Part>,
    out: Layout,
    lse: Option<Layout>,
    expected: Vec<Expected>,
}

/// Where a result lies.
#[derive(Debug, Clone, Copy)]
struct Part {
    out: Layout,
    lse: Layout,
}

/// Describes a [`Merge`]; made by [`Merge::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct MergeBuilder<'a> {
    element: ElementType,
    base: LseBase,
    parts: &'a [Layout],
    part_lse: Option<&'a [Layout]>,
    out: Option<Layout>,
    lse: Option<Layout>,
    want_lse: bool,
}

impl Merge {
    /// A merge of results with these layouts, one or more and at most 32.
    pub fn builder(element: ElementType, parts: &[Layout]) -> MergeBuilder<'_> {
        MergeBuilder {
            element,
            base: LseBase::Natural,
            parts,
            part_lse: None,
            out: None,
            lse: None,
            want_lse: true,
        }
    }

    /// Where an lse lies that is contiguous as [`Lse`] has it, `[batch, heads, rows]`, for an output of this shape: batch, rows,
    /// heads, head size. The head size of an lse's own layout is 1.
    #[must_use]
    pub fn lse_layout([batch, rows, heads, _]: [usize; 4]) -> Layout {
        Layout::bhsd([batch, heads, rows, 1])
    }

    /// Element type of the outputs.
    #[must_use]
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// What each lse is a logarithm to.
    #[must_use]
    pub const fn base(&self) -> LseBase {
        self.base
    }

    /// Layouts of a part's output and lse.
    #[must_use]
    pub fn part(&self, index: usize) -> Option<(&Layout, &Layout)> {
        self.parts.get(index).map(|part| (&part.out, &part.lse))
    }

    /// How many results are merged.
    #[must_use]
    pub fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// Layout of the merged output.
    #[must_use]
    pub const fn out(&self) -> &Layout {
        &self.out
    }

    /// Layout of the merged lse, if it is wanted.
    #[must_use]
    pub const fn lse(&self) -> Option<&Layout> {
        self.lse.as_ref()
    }

    fn lse_shape(&self) -> [usize; 4] {
        let [batch, rows, heads, _] = self.out.shape;
        [batch, rows, heads, 1]
    }

    /// The arguments of a raw launch: output, lse, then output and lse of each part; as [`Call::memory`](crate::Call::memory).
    pub fn memory(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> + '_ {
        { self.expected.iter() }.map(|expected| (expected.name, expected.needed()))
    }

    /// Output, lse, then output and lse of each part.
    pub(crate) fn expected(&self) -> &[Expected] {
        &self.expected
    }
}

impl MergeBuilder<'_> {
    /// What each lse is a logarithm to, the merged one too. Default: natural.
    pub fn base(self, base: LseBase) -> Self {
        MergeBuilder { base, ..self }
    }

    /// Layout of the merged output. Default: dense, in the storage order of the first part.
    pub fn out(self, out: Layout) -> Self {
        MergeBuilder {
            out: Some(out),
            ..self
        }
    }

    /// Layout of the merged lse, of head size 1. Default: [`Merge::lse_layout`].
    pub fn lse(self, lse: Layout) -> Self {
        MergeBuilder {
            lse: Some(lse),
            ..self
        }
    }

    /// Whether to compute the lse. Default: yes.
    pub fn want_lse(self, want_lse: bool) -> Self {
        MergeBuilder { want_lse, ..self }
    }

    /// Checks everything and freezes the description.
    ///
    /// # Errors
    /// [`Error::Count`] without parts, [`Error::TooLong`] for more than 32; an [`Error`] that names the argument and the rule it breaks.
    pub fn build(self) -> Result<Merge> {
        let count = self.parts.len();
        let first = match self.parts {
            [first, ..] if count <= MERGE_PARTS => first,
            _ => return Err(no_parts(count)),
        };
        let out = self.out.unwrap_or_else(|| first.dense_like());
        let of_lse = Merge::lse_layout(first.shape);
        let lse = self.want_lse.then(|| self.lse.unwrap_or(of_lse));
        if let Some(part_lse) = self.part_lse
            && part_lse.len() != count
        {
            return Err(Error::Count {
                argument: "lse layouts",
                found: part_lse.len(),
                needed: count,
            });
        }
        let part_lse = |index: usize| self.part_lse.map_or(of_lse, |layouts| layouts[index]);
        let parts: Vec<Part> = self
            .parts
            .iter()
            .enumerate()
            .map(|(index, &out)| Part {
                out,
                lse: part_lse(index),
            })
            .collect();
        let [batch, rows, heads, _] = first.shape;
        let lse_shape = [batch, rows, heads, 1];
        let result = |argument, layout: &Layout, access| {
            let shape = (PART_OUT[0], first.shape);
            slot(argument, layout, shape, self.element.size(), access)
        };
        let of_result = |argument, layout: &Layout, access| {
            let shape = (PART_OUT[0], lse_shape);
            slot(argument, layout, shape, size_of::<f32>(), access)
        };
        let mut expected = Vec::with_capacity(2 * count + 2);
        expected.push(result("out", &out, Access::Write)?);
        expected.push(match &lse {
            Some(lse) => of_result("lse", lse, Access::Write)?,
            None => Expected::list("lse", false, 0, 4, Access::Write),
        });
        for (index, part) in parts.iter().enumerate() {
            expected.push(result(PART_OUT[index], &part.out, Access::Read)?);
            expected.push(of_result(PART_LSE[index], &part.lse, Access::Read)?);
        }
        Ok(Merge {
            element: self.element,
            base: self.base,
            parts,
            out,
            lse,
            expected,
        })
    }
}

impl<'a> MergeBuilder<'a> {
    /// Layouts of the parts' lse, of head size 1. Default: [`Merge::lse_layout`] for each.
    pub fn lse_layouts(self, layouts: &'a [Layout]) -> Self {
        MergeBuilder {
            part_lse: Some(layouts),
            ..self
        }
    }
}

/// Merges results on the CPU; `parts` are the outputs and lse in the layouts of `merge`. See [`merge()`] for the rules.
///
/// # Errors
/// [`Error::Count`], [`Error::ElementMismatch`], [`Error::BufferTooSmall`] or [`Error::Presence`] if the slices are not those
/// of the description.
pub fn merge_cpu<T: Element>(
    merge: &Merge,
    parts: &[(&[T], &[f32])],
    out: &mut [T],
    lse: Option<&mut [f32]>,
) -> Result<()> {
    if T::TYPE != merge.element {
        return Err(Error::ElementMismatch {
            argument: "out",
            expected: merge.element,
            found: T::TYPE,
        });
    }
    if parts.len() != merge.parts.len() {
        return Err(Error::Count {
            argument: "parts",
            found: parts.len(),
            needed: merge.parts.len(),
        });
    }
    for (index, (part, (out, lse))) in merge.parts.iter().zip(parts).enumerate() {
        part.out.check_buffer(PART_OUT[index], out.len())?;
        part.lse.check_buffer(PART_LSE[index], lse.len())?;
    }
    merge.out.check_buffer("out", out.len())?;
    let lse = match (merge.lse, lse) {
        (Some(layout), Some(lse)) => {
            layout.check_buffer("lse", lse.len())?;
            Some((layout, SharedMut::new(lse)))
        }
        (wanted, given) => {
            crate::call::expect_presence("lse", wanted.is_some(), given.is_some())?;
            None
        }
    };
    let [batch, rows, heads, head_dim] = merge.out.shape;
    if merge.lse_shape().contains(&0) {
        return Ok(());
    }
    let out = SharedMut::new(out);
    in_parallel(batch * rows, |row| {
        let (entry, row) = (row / rows, row % rows);
        let mut sums = vec![0.0; head_dim];
        for head in 0..heads {
            let results = merge
                .parts
                .iter()
                .zip(parts)
                .filter_map(|(part, (out, lse))| {
                    let lse = lse[part.lse.offset(entry, row, head)];
                    let start = part.out.offset(entry, row, head);
                    (lse.abs() != f32::INFINITY).then(|| (&out[start..start + head_dim], lse))
                });
            sums.fill(0.0);
            let merged = merge_row(merge.base, results, &mut sums);
            let start = merge.out.offset(entry, row, head);
            // SAFETY: the buffer holds the layout, no two rows of an output layout overlap (the builder has checked), and each
            // row is that of one index and head.
            let to = unsafe { out.slice(start, head_dim) };
            for (to, &sum) in to.iter_mut().zip(&sums) {
                *to = T::from_f32(sum);
            }
            if let Some((layout, lse)) = &lse {
                // SAFETY: as above.
                let to = unsafe { lse.slice(layout.offset(entry, row, head), 1) };
                to[0] = merged;
            }
        }
    });
    Ok(())
}

/// Merges the results of one row that saw keys, into zeros. Returns the lse.
fn merge_row<'a, T: Element>(
    base: LseBase,
    results: impl Iterator<Item = (&'a [T], f32)> + Clone,
    sums: &mut [f32],
) -> f32 {
    // `max` leaves out NaN.
    let greatest = results
        .clone()
        .map(|(_, lse)| lse)
        .fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    let mut any = false;
    for (out, lse) in results {
        let weight = base.power(lse - greatest);
        any = true;
        sum += weight;
        for (total, value) in sums.iter_mut().zip(out) {
            *total = weight.mul_add(value.to_f32(), *total);
        }
    }
    if !any {
        return f32::NEG_INFINITY;
    }
    let scale = 1.0 / sum;
    sums.iter_mut().for_each(|total| *total *= scale);
    greatest + base.logarithm(sum)
}
