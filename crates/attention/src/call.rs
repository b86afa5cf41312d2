//! One computation over tensors of known layout, validated once.

mod builder;
mod heads;

use std::fmt;
use std::ops::Range;

use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::extents::expect_room;
use crate::heads::Heads;
use crate::layout::{Layout, View};
use crate::lengths::SideLengths;
use crate::mask::Mask;
use crate::pages::Pages;
use crate::problem::Problem;
use crate::quantized::{KeyView, Quantization, QuantizedType, check_key_type, key_size};
use crate::scoring::{Scoring, check_factor};
use crate::splits::Splits;

pub use builder::CallBuilder;
pub(crate) use builder::check_layout;

/// One attention computation over tensors of known layout and with known lengths: validated when built, immutable after.
///
/// For each batch entry and head, with the key/value head `h / (heads / kv_heads)`:
/// `score = scale * q.k`, then `softcap * tanh(score / softcap)` if there is a softcap, then
/// `- slope * |i + key_len - query_len - j|` if there are ALiBi slopes, then the bias, then the masks;
/// `out = softmax(score) v` and `lse = ln(sum(exp(score)))`. With sinks, the denominator has one more term, `exp(sink)` of the
/// head. A query that sees no key has `out = 0` and `lse = -inf`; with a sink, `lse` is the sink.
///
/// ```
/// use warptile::{Call, ElementType, Layout, Mask, Scoring};
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
    /// With bias and key mask broadcast to every entry, by steps of 0.
    terms: Terms,
    out: Layout,
    batch: usize,
    queries: SideLengths,
    keys: SideLengths,
    pages: Option<Pages>,
}

/// What a builder is told that a call is made of as it is: all but the output, lengths and pages.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Terms {
    element: ElementType,
    q: Layout,
    k: Layout,
    v: Layout,
    bias: Option<Layout>,
    key_mask: Option<Layout>,
    scoring: Scoring,
    splits: Splits,
    /// Of keys and values that are not of `element`.
    quantized: Option<Quantization>,
    want_lse: bool,
    aligned: bool,
}

/// What a call on the host reads beside q, k and v: each exactly if the call was built with it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Operands<'a, T> {
    /// ALiBi slopes, [`Scoring::slope_count`] of them.
    pub slopes: Option<&'a [f32]>,
    /// One logit per query head.
    pub sinks: Option<&'a [f32]>,
    /// The additive bias, reaching as far as [`Call::bias`].
    pub bias: Option<&'a [T]>,
    /// The key mask, reaching as far as [`Call::key_mask`]; 0 hides a key.
    pub key_mask: Option<&'a [u8]>,
    /// What quantized keys are multiplied by: one number, or one for each key/value head.
    pub k_scale: Option<&'a [f32]>,
    /// The same of values.
    pub v_scale: Option<&'a [f32]>,
}

impl<T> Default for Operands<'_, T> {
    fn default() -> Self {
        Operands {
            slopes: None,
            sinks: None,
            bias: None,
            key_mask: None,
            k_scale: None,
            v_scale: None,
        }
    }
}

impl<'a, T> Operands<'a, T> {
    /// None.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// With ALiBi slopes.
    #[must_use]
    pub fn slopes(self, slopes: &'a [f32]) -> Self {
        Operands {
            slopes: Some(slopes),
            ..self
        }
    }

    /// With sinks, of which one of minus infinity is none.
    #[must_use]
    pub fn sinks(self, sinks: &'a [f32]) -> Self {
        Operands {
            sinks: Some(sinks),
            ..self
        }
    }

    /// With a bias.
    #[must_use]
    pub fn bias(self, bias: &'a [T]) -> Self {
        Operands {
            bias: Some(bias),
            ..self
        }
    }

    /// With a key mask.
    #[must_use]
    pub fn key_mask(self, key_mask: &'a [u8]) -> Self {
        Operands {
            key_mask: Some(key_mask),
            ..self
        }
    }

    /// With scales of quantized keys and values.
    #[must_use]
    pub fn scales(self, k_scale: &'a [f32], v_scale: &'a [f32]) -> Self {
        Operands {
            k_scale: Some(k_scale),
            v_scale: Some(v_scale),
            ..self
        }
    }
}

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
    /// Starts the description of attention between tensors of these layouts, all of one element type.
    pub fn builder<'a>(
        q: &Layout,
        k: &Layout,
        v: &Layout,
        element: ElementType,
    ) -> CallBuilder<'a> {
        CallBuilder::new(q, k, v, element)
    }

    /// Element type of q and out, and of k and v unless they are quantized.
    #[must_use]
    pub const fn element(&self) -> ElementType {
        self.terms.element
    }

    /// How keys and values are quantized; `None` if they are of the queries' type.
    #[must_use]
    pub const fn quantized(&self) -> Option<Quantization> {
        self.terms.quantized
    }

    /// The type of keys and values; `None` if it is that of the queries.
    #[must_use]
    pub const fn quantized_type(&self) -> Option<QuantizedType> {
        Quantization::element_of(self.terms.quantized)
    }

    /// Size in bytes of an element of k and v.
    #[must_use]
    pub const fn key_size(&self) -> usize {
        key_size(self.terms.element, self.quantized_type())
    }

    /// Sequences.
    #[must_use]
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Queries of a sequence; of the longest where they differ.
    #[must_use]
    pub const fn query_len(&self) -> usize {
        self.queries.bound
    }

    /// Keys of a sequence; of the longest where they differ.
    #[must_use]
    pub const fn key_len(&self) -> usize {
        self.keys.bound
    }

    /// The lengths of the queries.
    #[must_use]
    pub const fn queries(&self) -> &SideLengths {
        &self.queries
    }

    /// The lengths of the keys and values.
    #[must_use]
    pub const fn keys(&self) -> &SideLengths {
        &self.keys
    }

    /// The pages of keys and values; `None` if k and v are not paged.
    #[must_use]
    pub const fn pages(&self) -> Option<&Pages> {
        self.pages.as_ref()
    }

    /// Whether only the device knows some length.
    #[must_use]
    pub const fn lengths_on_device(&self) -> bool {
        self.queries.on_device() || self.keys.on_device()
    }

    /// The heads and their sizes.
    #[must_use]
    pub const fn heads(&self) -> Heads {
        Heads::of(&self.terms.q, &self.terms.k, &self.terms.v)
    }

    /// The options.
    #[must_use]
    pub const fn scoring(&self) -> &Scoring {
        &self.terms.scoring
    }

    /// Where keys are cut.
    #[must_use]
    pub const fn splits(&self) -> Splits {
        self.terms.splits
    }

    /// Which keys a query sees.
    #[must_use]
    pub const fn mask(&self) -> Mask {
        self.terms.scoring.mask
    }

    /// Factor of `q.k`: finite, 0 and negative allowed.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.terms.scoring.scale_of(self.heads().dim)
    }

    /// Layout of the bias, `[batch, queries, heads, keys]`, broadcast by steps of 0.
    #[must_use]
    pub const fn bias(&self) -> Option<&Layout> {
        self.terms.bias.as_ref()
    }

    /// Layout of the key mask, as [`Call::bias`].
    #[must_use]
    pub const fn key_mask(&self) -> Option<&Layout> {
        self.terms.key_mask.as_ref()
    }

    /// Whether the lse is wanted.
    #[must_use]
    pub const fn wants_lse(&self) -> bool {
        self.terms.want_lse
    }

    /// Whether every tensor's rows start at multiples of 16 bytes: the strides tell for all rows but the first, whose address
    /// is taken to be one unless the call was built with [`CallBuilder::unaligned_addresses`].
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        let tensors = [
            (&self.terms.q, self.terms.element.size()),
            (&self.terms.k, self.key_size()),
            (&self.terms.v, self.key_size()),
            (&self.out, self.terms.element.size()),
        ];
        // A row's last 16 bytes are its own.
        let whole = self.heads().are_multiples_of(16 / self.key_size());
        self.terms.aligned && whole && { tensors.into_iter() }
            .all(|(layout, size)| layout.steps_aligned(size))
    }

    /// What is fixed of the call, bounds rounded up: what a plan is made for and found again by.
    #[must_use]
    pub fn problem(&self) -> Problem {
        Problem::of(self)
    }

    /// Layout of q.
    #[must_use]
    pub const fn q(&self) -> &Layout {
        &self.terms.q
    }

    /// Layout of k; paged: pages, rows of a page, heads, head size.
    #[must_use]
    pub const fn k(&self) -> &Layout {
        &self.terms.k
    }

    /// Layout of v, as that of k; its head size may be another one.
    #[must_use]
    pub const fn v(&self) -> &Layout {
        &self.terms.v
    }

    /// Layout of the output.
    #[must_use]
    pub const fn out(&self) -> &Layout {
        &self.out
    }

    /// Every sequence of the batch in order. Where only the device knows the lengths, each is as long as it can be.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence> + '_ {
        (0..self.batch).map(|batch| self.sequence(batch))
    }

    fn sequence(&self, batch: usize) -> Sequence {
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
    pub(crate) fn key_rows(
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
    #[must_use]
    pub const fn lse_shape(&self) -> [usize; 3] {
        [
            self.terms.q.batch(),
            self.terms.q.heads(),
            self.terms.q.rows(),
        ]
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
        (sequence.q_entry * self.terms.q.heads() + head) * self.terms.q.rows() + sequence.q_start
    }

    /// Checks the arguments of a call on the host: layouts, buffers, and what comes beside them.
    ///
    /// # Errors
    /// An [`Error`] that names the argument and the rule.
    pub fn check_inputs<T: Element>(
        &self,
        q: &View<'_, T>,
        k: &KeyView<'_, T>,
        v: &KeyView<'_, T>,
        operands: &Operands<'_, T>,
    ) -> Result<()> {
        if T::TYPE != self.terms.element {
            return Err(Error::ElementMismatch {
                argument: "q",
                expected: self.terms.element,
                found: T::TYPE,
            });
        }
        for (argument, view) in [("k", k), ("v", v)] {
            check_key_type(argument, self.quantized_type(), view.quantized())?;
        }
        for (argument, layout, len, expected) in [
            ("q", &q.layout, q.data.len(), &self.terms.q),
            ("k", k.layout(), k.len(), &self.terms.k),
            ("v", v.layout(), v.len(), &self.terms.v),
        ] {
            check_layout(argument, layout, expected)?;
            layout.check_buffer(argument, len)?;
        }
        self.check_scales(operands.k_scale, operands.v_scale)?;
        for (argument, side) in [
            ("query lengths", &self.queries),
            ("key lengths", &self.keys),
        ] {
            if side.on_device() {
                return Err(Error::Presence {
                    argument,
                    rule: "are on a GPU, but the tensors are in host memory",
                });
            }
        }
        if self.pages().is_some_and(|pages| pages.table().on_device()) {
            return Err(Error::Presence {
                argument: "block_table",
                rule: "is on a GPU, but the tensors are in host memory",
            });
        }
        self.check_slopes(operands.slopes)?;
        self.check_sinks(operands.sinks)?;
        let reach = |layout: Option<&Layout>| layout.map(|layout| layout.reach());
        let tensors = [
            ("bias", reach(self.bias()), operands.bias.map(<[T]>::len)),
            (
                "key_mask",
                reach(self.key_mask()),
                operands.key_mask.map(<[u8]>::len),
            ),
        ];
        for (argument, needed, available) in tensors {
            expect_presence(argument, needed.is_some(), available.is_some())?;
            let (needed, available) = (needed.unwrap_or(0), available.unwrap_or(0));
            expect_room(argument, needed, available)?;
        }
        Ok(())
    }

    /// Checks slopes against the options: given exactly if there is ALiBi, of the right number, finite.
    ///
    /// # Errors
    /// [`Error::Presence`], [`Error::Count`] or [`Error::NonFinite`].
    pub fn check_slopes(&self, slopes: Option<&[f32]>) -> Result<()> {
        let needed = self
            .terms
            .scoring
            .slope_count(self.batch, self.heads().query);
        check_values(
            "alibi_slopes",
            self.terms.scoring.alibi.is_some(),
            slopes,
            needed,
            |_, value| match value.is_finite() {
                true => Ok(()),
                false => Err(Error::NonFinite {
                    argument: "alibi_slopes",
                    value,
                }),
            },
        )
    }

    /// Checks sinks against the options: given exactly if there are any, one per head, each a number or minus infinity, which is
    /// no sink.
    ///
    /// # Errors
    /// [`Error::Presence`], [`Error::Count`] or [`Error::Sink`].
    pub fn check_sinks(&self, sinks: Option<&[f32]>) -> Result<()> {
        check_values(
            "sinks",
            self.terms.scoring.sinks,
            sinks,
            self.heads().query,
            |head, value| match value < f32::INFINITY {
                true => Ok(()),
                false => Err(Error::Sink { head, value }),
            },
        )
    }

    /// Checks scales of quantized keys and values: given exactly if these are, as many as the call has, each finite and above 0, and
    /// those of keys times the call's scale no larger than [`Scoring::MAX_SCALE`]. (Where nobody can look at them, on a GPU, kernels
    /// take a product beyond the range of `f32` as the end of it.)
    ///
    /// # Errors
    /// [`Error::Scales`], [`Error::Count`], [`Error::Scale`] or [`Error::ScaleTooLarge`].
    pub fn check_scales(&self, k_scale: Option<&[f32]>, v_scale: Option<&[f32]>) -> Result<()> {
        Quantization::check_scales(self.terms.quantized, k_scale, v_scale)?;
        k_scale.unwrap_or_default().iter().try_for_each(|&k| {
            check_factor("scale * k_scale", f64::from(self.scale()) * f64::from(k))
        })
    }

    /// Visible (query, key) pairs of one head, summed over the batch; a key mask is not counted.
    #[must_use]
    pub fn visible_pairs(&self) -> u128 {
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
    #[must_use]
    pub fn flops(&self) -> u128 {
        let heads = self.heads();
        2 * self.visible_pairs() * heads.query as u128 * heads.key_value_elements() as u128
    }
}

fn check_values(
    argument: &'static str,
    wanted: bool,
    values: Option<&[f32]>,
    needed: usize,
    check: impl Fn(usize, f32) -> Result<()>,
) -> Result<()> {
    expect_presence(argument, wanted, values.is_some())?;
    let Some(values) = values else { return Ok(()) };
    if values.len() != needed {
        return Err(Error::Count {
            argument,
            found: values.len(),
            needed,
        });
    }
    let mut each = values.iter().enumerate();
    each.try_for_each(|(index, &value)| check(index, value))
}

/// Whether an argument is there exactly if the options ask for it.
pub(crate) fn expect_presence(argument: &'static str, wanted: bool, given: bool) -> Result<()> {
    match (wanted, given) {
        (true, false) => Err(Error::Presence {
            argument,
            rule: "is missing, but the options ask for it",
        }),
        (false, true) => Err(Error::Presence {
            argument,
            rule: "is given, but the options do not ask for it",
        }),
        _ => Ok(()),
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.terms.element)?;
        if let Some(element) = self.quantized_type() {
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
        write!(f, ", head size {}", heads.dim)?;
        if heads.values_differ() {
            write!(f, " ({} of values)", heads.value_dim)?;
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
