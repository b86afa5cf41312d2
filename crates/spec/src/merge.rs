//! Attention over disjoint sets of keys, merged into attention over all of them.

use crate::abi::MERGE_PARTS;

use crate::slots::UNWANTED;
use crate::{
    Access, DIMENSIONS, ElementType, Expected, Invalid, Layout, Operand, Result, Slots,
    check_alone, expect_same,
};

/// The base of the logarithm in every lse of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LseBase {
    /// e: that of this library, FlashAttention and PyTorch.
    #[default]
    Natural,
    /// 2: FlashInfer's.
    Two,
}

impl LseBase {
    /// The base to this power.
    pub fn power(self, exponent: f32) -> f32 {
        match self {
            LseBase::Natural => exponent.exp(),
            LseBase::Two => exponent.exp2(),
        }
    }

    /// The logarithm to the base.
    pub fn logarithm(self, value: f32) -> f32 {
        match self {
            LseBase::Natural => value.ln(),
            LseBase::Two => value.log2(),
        }
    }
}

/// The error for zero parts or too many of them.
pub fn no_parts(found: usize) -> Invalid {
    match found {
        0 => Invalid::count("parts", found, 1),
        _ => Invalid::TooLong {
            argument: "parts",
            dimension: "count",
            found,
            limit: MERGE_PARTS,
        },
    }
}

/// Refuses another number of parts than a call has.
pub fn expect_parts(found: usize, needed: usize) -> Result<()> {
    match found == needed {
        true => Ok(()),
        false => Err(Invalid::count("parts", found, needed)),
    }
}

macro_rules! names {
    ($kind:literal: $($index:literal)*) => { [$(concat!("parts[", $index, "].", $kind)),*] };
}

/// The name that errors give the parts.
pub const PART_OUT: [&str; MERGE_PARTS] = names!("out": 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25
    26 27 28 29 30 31);
/// The name that errors give their lse.
pub const PART_LSE: [&str; MERGE_PARTS] = names!("lse": 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25
    26 27 28 29 30 31);

/// The layouts of a merge, checked: what `merge_cpu` and `Prepared` take.
#[derive(Debug, Clone)]
pub struct Merge {
    element: ElementType,
    base: LseBase,
    sums: bool,
    parts: Vec<Part>,
    out: Layout,
    lse: Option<Layout>,
    expected: Slots<Expected>,
    /// The output and lse of each part.
    expected_parts: Vec<[Expected; 2]>,
}

/// Where a result lies.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Layout of its output.
    pub out: Layout,
    /// Layout of its lse.
    pub lse: Layout,
}

/// Describes a [`Merge`]; made by [`Merge::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct MergeBuilder<'a> {
    element: ElementType,
    base: LseBase,
    sums: bool,
    parts: &'a [Layout],
    part_lse: Option<&'a [Layout]>,
    out: Option<Layout>,
    lse: Option<Layout>,
    want_lse: bool,
}

impl Merge {
    /// The most results of one merge.
    pub const MAX_PARTS: usize = MERGE_PARTS;

    /// A merge of results with these layouts, one or more and at most [`MAX_PARTS`](Self::MAX_PARTS).
    pub fn builder(element: ElementType, parts: &[Layout]) -> MergeBuilder<'_> {
        MergeBuilder {
            element,
            base: LseBase::Natural,
            sums: false,
            parts,
            part_lse: None,
            out: None,
            lse: None,
            want_lse: true,
        }
    }

    /// Where an lse lies that is contiguous as `Lse` has it, `[batch, heads, rows]`, for an output of this shape: batch, rows,
    /// heads, head size. The head size of an lse's own layout is 1.
    pub fn lse_layout([batch, rows, heads, _]: [usize; 4]) -> Layout {
        Layout::bhsd([batch, heads, rows, 1])
    }

    /// Element type of the outputs.
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// The base of each lse's logarithm.
    pub const fn base(&self) -> LseBase {
        self.base
    }

    /// Returns true if the parts are `f32` tensors without an lse, which are added.
    pub const fn sums(&self) -> bool {
        self.sums
    }

    /// Layouts of a part's output and lse.
    pub fn part(&self, index: usize) -> Option<(&Layout, &Layout)> {
        self.parts.get(index).map(|part| (&part.out, &part.lse))
    }

    /// The results that are merged.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// How many results are merged.
    pub fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// Layout of the merged output.
    pub const fn out(&self) -> &Layout {
        &self.out
    }

    /// Layout of the merged lse, if it is wanted.
    pub const fn lse(&self) -> Option<&Layout> {
        self.lse.as_ref()
    }

    /// Batch, rows, heads and 1.
    pub fn lse_shape(&self) -> [usize; 4] {
        let [batch, rows, heads, _] = self.out.shape;
        [batch, rows, heads, 1]
    }

    /// The arguments of a raw launch: output, lse, then output and lse of each part; as [`Call::memory`](crate::Call::memory).
    pub fn memory(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> + '_ {
        {
            [Operand::Out, Operand::Lse]
                .map(|operand| &self.expected[operand])
                .into_iter()
        }
        .chain(self.expected_parts.as_flattened())
        .map(|expected| (expected.name, expected.needed()))
    }

    /// The output and the lse.
    pub const fn expected(&self) -> &Slots<Expected> {
        &self.expected
    }

    /// The output and lse of each part.
    pub fn expected_parts(&self) -> &[[Expected; 2]] {
        &self.expected_parts
    }
}

impl MergeBuilder<'_> {
    /// Sets the base of each lse's logarithm, that of the merged one included. Default: natural.
    pub fn base(self, base: LseBase) -> Self {
        MergeBuilder { base, ..self }
    }

    /// Layout of the merged output. Default: dense, in the storage order of the first part.
    pub fn out(mut self, out: Layout) -> Self {
        self.out = Some(out);
        self
    }

    /// Layout of the merged lse, of head size 1. Default: [`Merge::lse_layout`].
    pub fn lse(mut self, lse: Layout) -> Self {
        self.lse = Some(lse);
        self
    }

    /// Sets whether to compute the lse. Default: yes.
    pub fn want_lse(self, want_lse: bool) -> Self {
        MergeBuilder { want_lse, ..self }
    }

    /// Sets that the parts are `f32` tensors, which are added in their order, in `f32`. Neither they nor the result have an lse.
    pub fn sums(self) -> Self {
        MergeBuilder {
            sums: true,
            want_lse: false,
            ..self
        }
    }

    /// Checks everything and freezes the description.
    ///
    /// # Errors
    /// [`Invalid::Count`] without parts, [`Invalid::TooLong`] for more than 32, [`Invalid::Presence`] for results of head size 0; an
    /// [`Invalid`] that names the argument and the rule it breaks.
    pub fn build(self) -> Result<Merge> {
        let count = self.parts.len();
        let first = match self.parts {
            [first, ..] if count <= MERGE_PARTS => first,
            _ => return Err(no_parts(count)),
        };
        if first.head_dim() == 0 && !self.sums {
            let rule = "has head size 0, but must have at least one column for its lse";
            return Err(Invalid::presence(PART_OUT[0], rule));
        }
        let out = self.out.unwrap_or_else(|| first.dense_like());
        let of_lse = Merge::lse_layout(first.shape);
        let lse = self.want_lse.then(|| self.lse.unwrap_or(of_lse));
        if let Some(part_lse) = self.part_lse
            && part_lse.len() != count
        {
            return Err(Invalid::count("lse layouts", part_lse.len(), count));
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
            let element = match access {
                Access::Read if self.sums => ElementType::F32,
                _ => self.element,
            };
            slot(argument, layout, shape, element, access)
        };
        let of_result = |argument, layout: &Layout, access| {
            let shape = (PART_OUT[0], lse_shape);
            slot(argument, layout, shape, ElementType::F32, access)
        };
        let mut expected = UNWANTED;
        expected[Operand::Out] = result("out", &out, Access::Write)?;
        if let Some(lse) = &lse {
            expected[Operand::Lse] = of_result("lse", lse, Access::Write)?;
        }
        let mut expected_parts = Vec::with_capacity(count);
        for (index, part) in parts.iter().enumerate() {
            expected_parts.push([
                result(PART_OUT[index], &part.out, Access::Read)?,
                match self.sums {
                    true => Expected::unwanted(PART_LSE[index]),
                    false => of_result(PART_LSE[index], &part.lse, Access::Read)?,
                },
            ]);
        }
        Ok(Merge {
            element: self.element,
            base: self.base,
            sums: self.sums,
            parts,
            out,
            lse,
            expected,
            expected_parts,
        })
    }
}

impl<'a> MergeBuilder<'a> {
    /// Layouts of the parts' lse, of head size 1. Default: [`Merge::lse_layout`] for each.
    pub fn lse_layouts(mut self, layouts: &'a [Layout]) -> Self {
        self.part_lse = Some(layouts);
        self
    }
}

/// Checks the layout of a tensor of an operation and returns the requirements on its memory. Its extents come from the tensor
/// called `other`.
fn slot(
    argument: &'static str,
    layout: &Layout,
    (other, shape): (&'static str, [usize; 4]),
    element: ElementType,
    access: Access,
) -> Result<Expected> {
    expect_same(argument, layout.shape, (other, shape), DIMENSIONS)?;
    check_alone(argument, layout, access == Access::Write)?;
    let size = element.size();
    Ok(Expected::tensor(argument, layout, size, access, size as u64).of_type(element))
}
