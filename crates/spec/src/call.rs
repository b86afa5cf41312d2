//! One computation over tensors of known layout, validated once.

mod boxes;
mod builder;
mod runs;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::abi::CHUNK_BYTES;
use crate::{
    Blocks, Count, Dropout, DropoutState, ElementType, Elements, Expected, Heads, Invalid, Kind,
    Layout, Mask, Numbers, Operand, Pages, Result, Scoring, SideLengths, Slots, Splits, Types,
    check_factor, check_list, expect_presence,
};

pub use builder::CallBuilder;
pub use builder::check_types;

/// One attention computation over tensors of known layout and with known lengths: validated when built, immutable after.
///
/// For each batch entry and head, with the key/value head `h / (heads / kv_heads)`:
/// scores as [`Scoring`] has them, `out = softmax(score) v` and `lse = ln(sum(exp(score)))`. A query that sees no key has `out = 0` and
/// `lse = -inf`.
///
/// ```
/// use warptile::{ElementType, Layout, Mask};
/// use warptile::spec::{Call, Scoring};
///
/// let q = Layout::bshd([2, 100, 8, 64]);
/// let kv = Layout::bshd([2, 300, 2, 64]); // four query heads share a key/value head
/// let call = Call::builder(&q, &kv, &kv, ElementType::F16)
///     .scoring(Scoring::new().mask(Mask::causal()))
///     .build()?;
/// assert_eq!(call.scale(), 0.125); // 1 / sqrt(64)
/// # Ok::<(), warptile::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// With the output's layout, and with bias and key mask broadcast to every entry, by steps of 0.
    terms: Terms,
    batch: usize,
    queries: SideLengths,
    keys: SideLengths,
    pages: Option<Pages>,
    blocks: Option<Blocks>,
    dropout: Numbers<Arc<[i32]>>,
    /// The operands that it has, a bit each.
    given: u64,
    /// In a box, as it has three quarters of the bytes and calls are moved.
    expected: Box<Slots<Expected>>,
}

const _: () = assert!(Operand::COUNT <= u64::BITS as usize);

/// The part of a call that a builder is told as it is: all but lengths and pages.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Terms {
    types: Types,
    /// The layout of each tensor that is given, by its index as an operand.
    layouts: Layouts,
    scoring: Scoring,
    splits: Splits,
    /// Numbers of scales of keys and of values.
    scale_counts: [usize; 2],
    want_lse: bool,
    aligned: bool,
    /// Likewise of the bias and the key mask.
    aligned_scores: bool,
}

/// The layouts of tensors.
pub type Layouts = [Option<Layout>; Operand::TENSORS];

/// Where one sequence of the batch lies in the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sequence {
    /// Index in the batch.
    pub batch: usize,
    /// Index along the first dimension of q and out: `batch`, or 0 if they are packed.
    pub q_entry: usize,
    /// First row of q and out.
    pub q_start: usize,
    /// Rows of q and out.
    pub q_len: usize,
    /// Index along the first dimension of k and v, unless they are paged.
    pub k_entry: usize,
    /// First row of k and v, unless they are paged.
    pub k_start: usize,
    /// Rows of k and v.
    pub k_len: usize,
}

impl Call {
    /// The element types of the tensors.
    pub const fn types(&self) -> Types {
        self.terms.types
    }

    /// Element type of q and out, and of k and v unless they are quantized.
    pub const fn element(&self) -> ElementType {
        self.terms.types.q
    }

    /// The type of an operand's elements; `None` if they are not elements of tensors, such as whole numbers.
    pub fn type_of(&self, operand: Operand) -> Option<ElementType> {
        match operand.elements() {
            Elements::Queries => Some(self.terms.types.q),
            Elements::Bias if self.terms.scoring.has_bias_f32() => Some(ElementType::F32),
            Elements::Bias => Some(self.terms.types.q),
            Elements::Keys => Some(self.terms.types.k),
            Elements::Output => Some(self.terms.types.out),
            Elements::F32 => Some(ElementType::F32),
            _ => None,
        }
    }

    /// Returns true if the call has an operand.
    pub const fn has(&self, operand: Operand) -> bool {
        self.given & 1 << operand as u64 != 0
    }

    /// The requirements on the memory of each operand.
    #[inline]
    pub const fn expected(&self) -> &Slots<Expected> {
        &self.expected
    }

    /// Returns true if what the call was described with has an operand.
    fn describes(&self, operand: Operand) -> bool {
        match operand {
            Operand::Lse => self.terms.want_lse,
            Operand::KScale | Operand::VScale => self.terms.types.scaled().is_some(),
            _ => match operand.kind() {
                Kind::List(
                    Count::Offsets
                    | Count::Sequences
                    | Count::Table
                    | Count::State
                    | Count::BlockRows
                    | Count::Blocks,
                ) => self.numbers(operand).is_some_and(Numbers::is_given),
                Kind::List(_) => self.terms.scoring.has(operand),
                _ => self.layout(operand).is_some(),
            },
        }
    }

    /// Returns true if any tensor has an element for each score.
    pub fn has_score_tensors(&self) -> bool {
        { Operand::ALL.into_iter() }
            .any(|operand| operand.kind() == Kind::Scores && self.has(operand))
    }

    /// The layout of a tensor, if the call has it. A bias and a key mask are `[batch, queries, heads, keys]`, broadcast by steps of 0.
    pub fn layout(&self, operand: Operand) -> Option<&Layout> {
        self.terms.layouts.get(operand as usize)?.as_ref()
    }

    /// The layout of a tensor that every call has.
    const fn required(&self, operand: Operand) -> &Layout {
        match &self.terms.layouts[operand as usize] {
            Some(layout) => layout,
            None => &Layout::EMPTY,
        }
    }

    /// The lengths, offsets, pages, blocks or words that an operand has; `None` of an operand that has none of these.
    pub fn numbers(&self, operand: Operand) -> Option<&Numbers<Arc<[i32]>>> {
        match operand {
            Operand::QueryOffsets => Some(self.queries.offsets()),
            Operand::KeyOffsets => Some(self.keys.offsets()),
            Operand::QueryLengths => Some(self.queries.used()),
            Operand::KeyLengths => Some(self.keys.used()),
            Operand::BlockTable => self.pages.as_ref().map(Pages::table),
            Operand::DropoutState => Some(&self.dropout),
            Operand::BlockOffsets => self.blocks.as_ref().map(Blocks::offsets),
            Operand::BlockIndices => self.blocks.as_ref().map(Blocks::indices),
            _ => None,
        }
    }

    /// The number of elements of an operand from its first to its last, gaps included; 0 if the call does not have it.
    pub fn reach(&self, operand: Operand) -> usize {
        let Kind::List(count) = operand.kind() else {
            return self.layout(operand).map_or(0, Layout::reach);
        };
        if !self.has(operand) {
            return 0;
        }
        match count {
            Count::QueryHeads => self.heads().query,
            Count::Slopes => self
                .terms
                .scoring
                .slope_count(self.batch, self.heads().query),
            Count::Scales => self.terms.scale_counts[usize::from(operand == Operand::VScale)],
            Count::Rows => self.lse_len(),
            Count::Sequences => self.batch,
            Count::Offsets => self.batch + 1,
            Count::State => DropoutState::WORDS,
            Count::BlockRows => self.blocks.as_ref().map_or(0, |blocks| blocks.counts()[0]),
            Count::Blocks => self.blocks.as_ref().map_or(0, |blocks| blocks.counts()[1]),
            Count::Table => self
                .pages
                .as_ref()
                .map_or(0, |pages| pages.layout().elements().reach()),
            _ => 0,
        }
    }

    /// Sequences.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Queries of a sequence; of the longest where they differ.
    pub const fn query_len(&self) -> usize {
        self.queries.bound
    }

    /// Keys of a sequence; of the longest where they differ.
    pub const fn key_len(&self) -> usize {
        self.keys.bound
    }

    /// The lengths of the queries.
    pub const fn queries(&self) -> &SideLengths {
        &self.queries
    }

    /// The lengths of the keys and values.
    pub const fn keys(&self) -> &SideLengths {
        &self.keys
    }

    /// The pages of keys and values; `None` if k and v are not paged.
    pub const fn pages(&self) -> Option<&Pages> {
        self.pages.as_ref()
    }

    /// The lists of blocks; `None` if each query may see all keys.
    pub const fn blocks(&self) -> Option<&Blocks> {
        self.blocks.as_ref()
    }

    /// Returns true if only the device knows some length.
    pub const fn lengths_on_device(&self) -> bool {
        self.queries.on_device() || self.keys.on_device()
    }

    /// The heads and their sizes.
    pub const fn heads(&self) -> Heads {
        Heads::of(self.q(), self.k(), self.v())
    }

    /// The options.
    pub const fn scoring(&self) -> &Scoring {
        &self.terms.scoring
    }

    /// The weights that are kept; `None` without dropout, or if its state is on the device.
    pub fn dropout(&self) -> Option<Dropout> {
        let p = self.terms.scoring.dropout?;
        let words = self.dropout.on_host()?.try_into().ok()?;
        Some(Dropout::new(p, DropoutState::from_words(words)))
    }

    /// The factor of weights that are kept: 1 without dropout.
    pub fn dropout_factor(&self) -> f32 {
        self.terms.scoring.dropout.map_or(1.0, Dropout::factor)
    }

    /// Where keys are cut.
    pub const fn splits(&self) -> Splits {
        self.terms.splits
    }

    /// Which keys a query sees.
    pub const fn mask(&self) -> Mask {
        self.terms.scoring.mask
    }

    /// Factor of `q.k`: finite, 0 and negative allowed.
    pub fn scale(&self) -> f32 {
        self.terms.scoring.scale_of(self.heads().dim)
    }

    /// Returns true if the lse is wanted.
    pub const fn wants_lse(&self) -> bool {
        self.terms.want_lse
    }

    /// Returns true if every tensor's rows start at multiples of 16 bytes: the strides tell for all rows but the first, whose address
    /// is taken to be one unless the call was built with [`CallBuilder::unaligned_addresses`].
    pub fn is_aligned(&self) -> bool {
        let types = self.terms.types;
        let tensors = [
            (Operand::Q, types.q),
            (Operand::K, types.k),
            (Operand::V, types.v),
            (Operand::Out, types.out),
        ];
        // A row's last bytes are its own.
        let whole = self.heads().are_multiples_of(CHUNK_BYTES / types.k.size());
        self.terms.aligned && whole && { tensors.into_iter() }
            .all(|(operand, element)| self.required(operand).steps_aligned(element.size()))
    }

    /// Layout of q.
    pub const fn q(&self) -> &Layout {
        self.required(Operand::Q)
    }

    /// Layout of k; paged: pages, rows of a page, heads, head size.
    pub const fn k(&self) -> &Layout {
        self.required(Operand::K)
    }

    /// Layout of v, as that of k; its head size may be another one.
    pub const fn v(&self) -> &Layout {
        self.required(Operand::V)
    }

    /// Layout of the output.
    pub const fn out(&self) -> &Layout {
        self.required(Operand::Out)
    }

    /// Every sequence of the batch in order. Where only the device knows the lengths, each is as long as it can be.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence> + '_ {
        (0..self.batch).map(|batch| self.sequence(batch))
    }

    /// A sequence of the batch, as [`sequences`](Self::sequences) has it.
    pub fn sequence(&self, batch: usize) -> Sequence {
        let (q_start, q_len) = self.queries.sequence(batch);
        let (k_start, k_len) = self.keys.sequence(batch);
        Sequence {
            batch,
            q_entry: if self.queries.is_packed() { 0 } else { batch },
            q_start,
            q_len,
            k_entry: if self.keys.is_packed() { 0 } else { batch },
            k_start,
            k_len,
        }
    }

    /// Where some keys of a sequence lie in k and v: indices along the first dimension, each with a range of rows.
    pub fn key_rows(
        &self,
        sequence: &Sequence,
        keys: Range<usize>,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let start = sequence.k_start;
        let (dense, paged) = match &self.pages {
            None => {
                let rows = start + keys.start..start + keys.end;
                (Some((sequence.k_entry, rows)), None)
            }
            Some(pages) => (None, Some(pages.pieces(sequence.batch, keys))),
        };
        dense.into_iter().chain(paged.into_iter().flatten())
    }

    /// Shape of the lse, contiguous: `[batch, heads, query_len]`, or for packed sequences `[1, heads, rows of q]`.
    pub const fn lse_shape(&self) -> [usize; 3] {
        [self.q().batch(), self.q().heads(), self.q().rows()]
    }

    /// Elements of the lse.
    pub fn lse_len(&self) -> usize {
        // Below the number of elements of q, which is validated.
        self.lse_shape().iter().product()
    }

    /// Offset in the lse of the first row of a sequence and head; rows are contiguous.
    pub const fn lse_offset(&self, sequence: &Sequence, head: usize) -> usize {
        (sequence.q_entry * self.q().heads() + head) * self.q().rows() + sequence.q_start
    }

    /// Returns true if some row of the output belongs to no sequence, or could: then nothing writes it.
    pub fn leaves_gaps(&self) -> bool {
        self.queries.leaves_gaps()
    }

    /// Checks the numbers of an operand against what the call says: their count, and that each is one that the operand may have. The
    /// scales of keys times the call's scale are not larger than [`Scoring::MAX_SCALE`]. (On a GPU, where they cannot be checked, kernels
    /// take a product beyond the range of `f32` as the end of it; NaN makes the results of queries that see a key NaN.)
    ///
    /// # Errors
    /// [`Invalid::Presence`], [`Invalid::Scales`], [`Invalid::Count`], [`Invalid::Value`] or [`Invalid::Number`].
    pub fn check_values(&self, operand: Operand, values: &[f32]) -> Result<()> {
        self.expect_presence(operand, true)?;
        let argument = operand.name();
        let (found, needed) = (values.len(), self.reach(operand));
        if found != needed {
            return Err(Invalid::count(argument, found, needed));
        }
        check_list(operand, values)?;
        match operand {
            Operand::KScale => self.check_key_scales(values),
            _ => Ok(()),
        }
    }

    pub(super) fn check_key_scales(&self, scales: &[f32]) -> Result<()> {
        scales.iter().try_for_each(|&k| {
            check_factor("scale * k_scale", f64::from(self.scale()) * f64::from(k))
        })
    }

    /// Refuses an operand that is given though the call does not have it, or that is missing.
    fn expect_presence(&self, operand: Operand, given: bool) -> Result<()> {
        match operand {
            Operand::KScale | Operand::VScale if given != self.has(operand) => {
                Err(Invalid::Scales {
                    argument: operand.name(),
                    keys: self.terms.types.scaled(),
                })
            }
            _ => expect_presence(operand.name(), self.has(operand), given),
        }
    }

    /// Visible (query, key) pairs of one head, summed over the batch; a key mask is not counted. Where heads have lists of blocks of their
    /// own, it is the average. Lists that only the device knows hide nothing here.
    pub fn visible_pairs(&self) -> u128 {
        let heads = self.heads().query as u128;
        self.visible_pairs_of_heads() / heads.max(1)
    }

    /// [`visible_pairs`](Self::visible_pairs) of all query heads.
    fn visible_pairs_of_heads(&self) -> u128 {
        if let Some(blocks) = &self.blocks
            && !blocks.indices().on_device()
        {
            let pairs = |sequence: Sequence| {
                let lengths = [sequence.q_len, sequence.k_len];
                blocks.visible_pairs(sequence.batch, lengths, self.mask())
            };
            return self.sequences().map(pairs).sum();
        }
        self.pairs_of_a_head() * self.heads().query as u128
    }

    fn pairs_of_a_head(&self) -> u128 {
        let pairs = |queries, keys| self.mask().visible_pairs(queries, keys);
        match self.queries.used.is_given()
            || self.keys.used.is_given()
            || self.queries.is_packed()
            || self.keys.is_packed()
        {
            false => self.batch as u128 * pairs(self.query_len(), self.key_len()),
            true => self
                .sequences()
                .map(|sequence| pairs(sequence.q_len, sequence.k_len))
                .sum(),
        }
    }

    /// Arithmetic of the forward pass by the usual count: for each visible pair and head two operations for each element of a key, and
    /// two for each of a value.
    pub fn flops(&self) -> u128 {
        let heads = self.heads();
        2 * self.visible_pairs_of_heads() * heads.key_value_elements() as u128
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.terms.types.q)?;
        if let Some(element) = self.terms.types.scaled() {
            write!(f, " ({element} for keys and values)")?;
        }
        write!(f, " {}", counted(self.batch, "sequence"))?;
        if self.queries.is_packed() || self.keys.is_packed() {
            f.write_str(" (packed)")?;
        }
        let heads = self.heads();
        write!(f, ", {}", counted(heads.query, "head"))?;
        if heads.key_value != heads.query {
            write!(f, " ({} for keys and values)", heads.key_value)?;
        }
        write!(f, ", {} x {} rows", self.query_len(), self.key_len(),)?;
        if let Some(pages) = &self.pages {
            write!(f, " in pages of {}", pages.rows())?;
        }
        let [size, of_values] = heads.dims();
        write!(f, ", head size {size}")?;
        if heads.values_differ() {
            write!(f, " ({of_values} of values)")?;
        }
        let scoring = self.terms.scoring.to_string();
        if !scoring.is_empty() {
            write!(f, ", {scoring}")?;
        }
        if let Some(keys) = self.terms.splits.keys() {
            write!(f, ", splits={keys}")?;
        }
        Ok(())
    }
}

/// `1 row`, `2 rows`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `1 row follows`, `2 rows follow`.
pub(crate) fn following(rows: usize) -> String {
    counted(rows, "row") + if rows == 1 { " follows" } else { " follow" }
}
