//! The pre-pass of the backward pass: numbers of query rows that its other steps read.

use std::sync::Arc;

use crate::abi::PREPASS_ROWS;
use crate::lengths::{LengthsRequest, Names};
use crate::slots::UNWANTED;
use crate::{
    Access, DIMENSIONS, ElementType, Expected, Layout, Numbers, Operand, Request, Result,
    SideLengths, Slots, Types, check_alone, check_types, expect_countable, expect_same,
};

/// The operands that have the lengths of the query rows.
const ROWS: Names = Names {
    tensor: Operand::Out,
    offsets: Operand::QueryOffsets,
    used: Operand::QueryLengths,
};

/// The description of a pre-pass, checked. For each query row and head it computes the sum over the row of the output times its gradient
/// less the gradient of the row's lse if it is given (`delta`), and the lse to base 2 (`scaled_lse`).
///
/// Both results are `[batch, heads, tiles * 64]`, or for packed queries `[heads, tiles * 64]`, with
/// [`tiles`](Self::tiles) of 64 rows for each head, as many as the longest sequence may need: the rows of a sequence begin at a multiple of
/// 64. Sequence `b` of packed queries begins at `(offset + 64 b) / 64 * 64`. Entries past the end of a sequence are 0 in `delta` and plus
/// infinity in `scaled_lse`. `scaled_lse` is also plus infinity for rows that saw no key, and for rows whose lse has an absolute value above
/// [`LARGEST_LSE`](Self::LARGEST_LSE).
#[derive(Debug, Clone)]
pub struct Prepass {
    element: ElementType,
    out: Layout,
    d_out: Layout,
    rows: SideLengths,
    batch: usize,
    expected: Slots<Expected>,
}

/// Describes a [`Prepass`]; made by [`Prepass::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct PrepassBuilder<'a> {
    element: ElementType,
    out: Layout,
    d_out: Layout,
    rows: LengthsRequest<'a>,
    d_lse: bool,
}

impl Prepass {
    /// Rows of a tile.
    pub const TILE: usize = PREPASS_ROWS;

    /// The largest absolute value of the lse of a row that passes gradients: 2^23. A larger one, such as that of a row whose keys all have a
    /// bias of -1e9 or the lowest finite number, has no digits behind the point, so weights cannot be recomputed from it. The row counts as
    /// one that saw no key.
    pub const LARGEST_LSE: f32 = 8_388_608.0;

    /// A pre-pass over an output and its gradient, both `[batch, length, heads, head size]`, or with packed queries
    /// `[1, rows, heads, head size]`.
    pub fn builder<'a>(element: ElementType, out: &Layout, d_out: &Layout) -> PrepassBuilder<'a> {
        PrepassBuilder {
            element,
            out: *out,
            d_out: *d_out,
            rows: LengthsRequest::default(),
            d_lse: false,
        }
    }

    /// Element type of the output and its gradient.
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// Layout of the output.
    pub const fn out(&self) -> &Layout {
        &self.out
    }

    /// Layout of the output's gradient.
    pub const fn d_out(&self) -> &Layout {
        &self.d_out
    }

    /// Lengths of the queries.
    pub const fn rows(&self) -> &SideLengths {
        &self.rows
    }

    /// Sequences.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Tiles of a head: of one batch entry, or of all packed queries.
    pub const fn tiles(&self) -> usize {
        match self.rows.is_packed() {
            true if self.batch == 0 => 0,
            true => self.rows.rows() / Self::TILE + self.batch,
            false => self.rows.bound().div_ceil(Self::TILE),
        }
    }

    /// Numbers of each result.
    pub const fn len(&self) -> usize {
        self.out
            .batch()
            .saturating_mul(self.out.heads())
            .saturating_mul(self.tiles().saturating_mul(Self::TILE))
    }

    /// Returns true if there are no numbers.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Place in the results of the first row of a sequence and head.
    pub fn start(&self, batch: usize, head: usize) -> usize {
        let (first, _) = self.rows.sequence(batch);
        let of_head = self.tiles() * Self::TILE;
        match self.rows.is_packed() {
            true => head * of_head + (first / Self::TILE + batch) * Self::TILE,
            false => (batch * self.out.heads() + head) * of_head,
        }
    }

    /// The numbers of a list of lengths.
    pub fn numbers(&self, operand: Operand) -> &Numbers<Arc<[i32]>> {
        match operand {
            Operand::QueryOffsets => self.rows.offsets(),
            Operand::QueryLengths => self.rows.used(),
            _ => &Numbers::None,
        }
    }

    /// The requirements on the memory of each operand.
    pub const fn expected(&self) -> &Slots<Expected> {
        &self.expected
    }
}

impl<'a> PrepassBuilder<'a> {
    /// Row offsets of packed queries, or lengths in use.
    pub fn numbers(mut self, operand: Operand, numbers: Request<'a>) -> Self {
        match operand {
            Operand::QueryOffsets => self.rows.set_offsets(numbers),
            Operand::QueryLengths => self.rows.used = numbers,
            _ => {}
        }
        self
    }

    /// Packed, with the `sequences + 1` offsets in device memory, where no sequence is taken to be longer than `longest`.
    pub fn device_packed(mut self, sequences: usize, longest: usize) -> Self {
        self.rows.packed_on_device(sequences, longest);
        self
    }

    /// Sets whether the lse has a gradient, too. Default: no.
    pub fn d_lse(self, d_lse: bool) -> Self {
        PrepassBuilder { d_lse, ..self }
    }

    /// Checks everything and freezes the description.
    ///
    /// # Errors
    /// An [`Invalid`](crate::Invalid) that names the argument and the rule it breaks.
    pub fn build(self) -> Result<Prepass> {
        let [entries, row_count, ..] = self.out.shape;
        expect_same(
            "d_out",
            self.d_out.shape,
            ("out", self.out.shape),
            DIMENSIONS,
        )?;
        check_alone("out", &self.out, false)?;
        check_alone("d_out", &self.d_out, false)?;
        check_types(Types::of(self.element))?;
        let (rows, batch) = self.rows.check(ROWS, entries, row_count)?;
        expect_countable("out", "batch", batch)?;
        Ok(Prepass::new(
            self.element,
            [self.out, self.d_out],
            rows,
            batch,
            self.d_lse,
        ))
    }
}

impl Prepass {
    /// Builds a pre-pass from checked layouts and lengths.
    pub(crate) fn new(
        element: ElementType,
        [out, d_out]: [Layout; 2],
        rows: SideLengths,
        batch: usize,
        d_lse: bool,
    ) -> Self {
        let [entries, row_count, heads, _] = out.shape;
        let mut prepass = Prepass {
            element,
            out,
            d_out,
            rows,
            batch,
            expected: UNWANTED,
        };
        let size = element.size();
        let tensor = |operand: Operand, layout| {
            Expected::tensor(operand.name(), layout, size, Access::Read, size as u64)
                .of_type(element)
        };
        let floats = |operand: Operand, count, access| {
            Expected::list(operand.name(), true, count, 4, access).of_type(ElementType::F32)
        };
        let numbers = |operand: Operand, count| {
            let numbers = prepass.numbers(operand);
            let on_host = numbers.on_host().is_some();
            Expected::list(operand.name(), numbers.is_given(), count, 4, Access::Read)
                .on_host(on_host)
        };
        let (lse_len, len) = (entries * heads * row_count, prepass.len());
        let expected = [
            (Operand::Out, tensor(Operand::Out, &out)),
            (Operand::DOut, tensor(Operand::DOut, &d_out)),
            (Operand::Lse, floats(Operand::Lse, lse_len, Access::Read)),
            (
                Operand::DLse,
                match d_lse {
                    true => floats(Operand::DLse, lse_len, Access::Read),
                    false => Expected::unwanted(Operand::DLse.name()),
                },
            ),
            (Operand::Delta, floats(Operand::Delta, len, Access::Write)),
            (
                Operand::ScaledLse,
                floats(Operand::ScaledLse, len, Access::Write),
            ),
            (
                Operand::QueryOffsets,
                numbers(Operand::QueryOffsets, batch + 1),
            ),
            (Operand::QueryLengths, numbers(Operand::QueryLengths, batch)),
        ];
        for (operand, slot) in expected {
            prepass.expected[operand] = slot;
        }
        prepass
    }
}
