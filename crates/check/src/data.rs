//! Data for cases, poison around it, and the check of what a kernel made of it.

use bytemuck::allocation::cast_vec;
use bytemuck::{cast_slice, cast_slice_mut};
use warptile::cpu::Stop;
use warptile::kernels::{Elements, Kind, Values};
use warptile::spec::{Call, HostInputs, HostOutputs, Operand, Sequence, Slots, View};
use warptile::{Element, ElementType, Layout};

use crate::accept::{Expectation, Verdict};
use crate::case::Case;
use crate::compiled::{Compiled, cast_inputs, with_type};
use crate::error::{Error, Result};
use crate::normal;
use crate::rounding::round;

/// Poisoned elements before and after every tensor; a multiple of 16 bytes in every type.
const MARGIN: usize = 16;

/// A small generator of known quality (SplitMix64): the same numbers on every machine, forever.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The bias of a remainder is far below what a test could notice.
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A length up to `max_len`: mostly anything, sometimes next to a multiple of a tile, sometimes 0 or 1.
    pub(crate) fn length(&mut self, max_len: usize) -> usize {
        let length = match self.below(8) {
            0 => self.below(3),
            1 => (16 << self.below(5)) + self.below(3) - 1,
            2 => self.below(40),
            _ => self.below(max_len.saturating_add(1)),
        };
        length.min(max_len)
    }

    fn uniform(&mut self) -> f64 {
        // 53 random bits; the half keeps it off 0.
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// An even number of independent standard normal numbers.
    fn normals(&mut self, values: &mut [f64]) {
        normal::fill(values, || self.uniform());
    }

    /// A standard normal number.
    pub(crate) fn normal(&mut self) -> f64 {
        let mut pair = [0.0; 2];
        self.normals(&mut pair);
        pair[0]
    }
}

/// A tensor of a case with poison around it.
#[derive(Debug, Clone)]
pub struct Buffer<T> {
    /// Everything, poison included.
    pub data: Vec<T>,
    /// Where the tensor starts in `data`.
    pub offset: usize,
    /// How it lies from there.
    pub layout: Layout,
}

impl<T> Buffer<T> {
    /// The elements from the tensor's first to its last.
    pub fn elements(&self) -> &[T] {
        &self.data[self.offset..][..self.layout.reach()]
    }
}

impl<T: Copy> Buffer<T> {
    /// The tensor.
    pub fn view(&self) -> View<'_, T> {
        View::new(self.elements(), self.layout)
    }
}

/// Data of a case.
#[derive(Debug, Clone)]
pub struct Inputs<T> {
    /// Queries.
    pub q: Buffer<T>,
    /// Keys. Where a call's are quantized, these are the same numbers, without the scale.
    pub k: Buffer<T>,
    /// Values, likewise.
    pub v: Buffer<T>,
    /// Whatever else the call has by its operand, and the bits of quantized keys and values. The layouts of a bias and a key mask are those
    /// that were given to the call, without the repetition.
    pub others: Slots<Option<Data<T>>>,
}

/// Data of an operand.
#[derive(Debug, Clone)]
pub enum Data<T> {
    /// Elements of the case's type.
    Elements(Buffer<T>),
    /// Bytes.
    Bytes(Buffer<u8>),
    /// Elements of `f32`, whatever the case's type.
    Singles(Buffer<f32>),
    /// Numbers of a list.
    Floats(Vec<f32>),
}

impl<T: Element> Data<T> {
    /// The bytes of all elements, poison included, and those before the first one.
    pub fn bytes(&self) -> (&[u8], usize) {
        match self {
            Data::Elements(buffer) => (cast_slice(&buffer.data), buffer.offset * size_of::<T>()),
            Data::Bytes(buffer) => (&buffer.data, buffer.offset),
            Data::Singles(buffer) => (cast_slice(&buffer.data), buffer.offset * size_of::<f32>()),
            Data::Floats(values) => (cast_slice(values), 0),
        }
    }

    /// The bytes of all elements, for changing them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Data::Elements(buffer) => cast_slice_mut(&mut buffer.data),
            Data::Bytes(buffer) => &mut buffer.data,
            Data::Singles(buffer) => cast_slice_mut(&mut buffer.data),
            Data::Floats(values) => cast_slice_mut(values),
        }
    }

    /// The numbers of a list.
    pub fn floats(&self) -> Option<&[f32]> {
        match self {
            Data::Floats(values) => Some(values),
            _ => None,
        }
    }
}

/// The bits of keys or values, which become the numbers that are left of them, without the scale. `scales` are one number, or one for each
/// key/value head.
pub fn quantize<T: Element>(
    element: ElementType,
    buffer: &mut Buffer<T>,
    scales: &[f32],
) -> Buffer<u8> {
    let mut data = vec![element.quantize(f32::NAN, 1.0); buffer.data.len()];
    let [entries, rows, heads, head_dim] = buffer.layout.shape;
    for (entry, row, head) in (0..entries)
        .flat_map(|entry| (0..rows).map(move |row| (entry, row)))
        .flat_map(|(entry, row)| (0..heads).map(move |head| (entry, row, head)))
    {
        let scale = scales[if scales.len() == 1 { 0 } else { head }];
        let start = buffer.offset + buffer.layout.offset(entry, row, head);
        let row = start..start + head_dim;
        for (number, to) in buffer.data[row.clone()].iter_mut().zip(&mut data[row]) {
            *to = element.quantize(number.to_f32(), scale);
            *number = T::from_f32(element.dequantize(*to));
        }
    }
    Buffer {
        data,
        offset: buffer.offset,
        layout: buffer.layout,
    }
}

/// The numbers of quantized keys or values without their scale.
pub(crate) fn without_scale<T: Element>(element: ElementType, bits: &[u8]) -> Vec<T> {
    let number = |&bits: &u8| T::from_f32(element.dequantize(bits));
    bits.iter().map(number).collect()
}

impl<T: Element> Inputs<T> {
    /// The inputs as the call has them.
    pub fn host(&self) -> HostInputs<'_> {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(Buffer::elements);
        let mut inputs = HostInputs::new(q, k, v);
        for (operand, data) in self.others.given() {
            match data {
                Data::Elements(buffer) => inputs.set(operand, buffer.elements()),
                Data::Bytes(buffer) => inputs.set(operand, buffer.elements()),
                Data::Singles(buffer) => inputs.set(operand, buffer.elements()),
                Data::Floats(values) => inputs.set(operand, values),
            }
        }
        inputs
    }
}

/// The buffers that a kernel writes to: poisoned before the run.
#[derive(Debug, Clone)]
pub struct ResultBuffers<T> {
    /// The output with poison around it.
    pub out: Vec<T>,
    /// Where the output starts in `out`.
    pub offset: usize,
    /// The lse, without a margin.
    pub lse: Vec<f32>,
}

impl<T: Element> ResultBuffers<T> {
    /// The outputs as the call has them.
    pub fn host(&mut self) -> HostOutputs<'_> {
        HostOutputs::new(&mut self.out[self.offset..]).lse(&mut self.lse)
    }
}

/// How the result of a case compares with the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The output.
    pub out: Verdict,
    /// The lse.
    pub lse: Verdict,
}

/// The errors found in the result of a case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Values are off.
    #[error("out {out}; lse {lse}")]
    Wrong {
        /// The output.
        out: Verdict,
        /// The lse.
        lse: Verdict,
    },
    /// Values of a gradient are off.
    #[error("{} {verdict}", .operand.name())]
    WrongGradient {
        /// The gradient.
        operand: Operand,
        /// How it compares.
        verdict: Verdict,
    },
    /// Memory that belongs to no result was written.
    #[error("{tensor} was written outside its rows, at element {index} of the buffer")]
    Stray {
        /// `out`, `lse` or a gradient.
        tensor: &'static str,
        /// Where.
        index: usize,
    },
    /// The case has no reference, or the buffers aren't those of the case.
    #[error(transparent)]
    Invalid(#[from] Error),
}

impl Case {
    /// The data that follows from the seed: standard normal, NaN wherever no row of a sequence lies. Once the caller's [`Stop`] is
    /// requested, the other rows stay NaN.
    pub fn inputs<T: Element>(&self) -> Inputs<T> {
        with_type!(U = T, cast_inputs(U::inputs(self)))
    }

    pub(crate) fn draw<T: Compiled>(&self) -> Inputs<T> {
        let call = self.call();
        // Not the stream that the case itself was drawn from.
        let mut random = Random::new(self.seed ^ 0x5eed_da7a);
        let mut tensor = |layout: &Layout, rows: Kind| {
            let mut buffer = self.poisoned::<T>(layout);
            let mut normals = vec![0.0; layout.head_dim()];
            let mut rounded = vec![0.0; layout.head_dim()];
            for_each_row(&call, layout, rows, |start| {
                random.normals(&mut normals);
                for (rounded, &normal) in rounded.iter_mut().zip(&normals) {
                    // Exact, and faster than from `f64` to the type.
                    *rounded = round::<T>(normal) as f32;
                }
                let row = &mut buffer[self.offset() + start..][..layout.head_dim()];
                T::store(&rounded, row);
            });
            Buffer {
                data: buffer,
                offset: self.offset(),
                layout: *layout,
            }
        };
        let q = tensor(call.q(), Kind::Queries);
        let mut k = tensor(call.k(), Kind::Keys);
        let mut v = tensor(call.v(), Kind::Keys);
        let mut others = Slots::none();
        for (operand, bits_of, tensor) in [
            (Operand::KScale, Operand::K, &mut k),
            (Operand::VScale, Operand::V, &mut v),
        ] {
            if call.has(operand) {
                // From where some numbers are beyond 448 times the scale to where many are below the least step.
                let scale = |_| 0.004 * 1000.0_f64.powf(random.uniform()) as f32;
                let scales: Vec<f32> = (0..call.reach(operand)).map(scale).collect();
                others[bits_of] = Some(Data::Bytes(quantize(call.types().k, tensor, &scales)));
                others[operand] = Some(Data::Floats(scales));
            }
        }
        for operand in Operand::of_scores().filter(|operand| call.has(*operand)) {
            others[operand] = Some(match (operand.kind(), operand.elements()) {
                // Some heads have none.
                (Kind::List(_), _) if operand.values() == Values::FiniteOrNone => {
                    let logit = |_| match random.below(8) {
                        0 => f32::NEG_INFINITY,
                        _ => 2.0 * random.normal() as f32,
                    };
                    Data::Floats((0..call.reach(operand)).map(logit).collect())
                }
                // Any number but 0 shows a key.
                (Kind::Scores, Elements::U8) => {
                    let shown = self.shown_keys(operand);
                    let mut draw = |entry: usize, key| match &shown {
                        Some(shown) => u8::from(key < shown[entry]),
                        None => random.pick(&[0, 1, 1, 0xff]),
                    };
                    Data::Bytes(self.score_buffer(&self.score_layout(operand), 0, &mut draw))
                }
                // Some keys are hidden by a bias of minus infinity, as is usual.
                (Kind::Scores, _) => {
                    let mut draw = || match random.below(16) {
                        0 => f64::NEG_INFINITY,
                        _ => random.normal(),
                    };
                    let layout = self.score_layout(operand);
                    match call.scoring().has_bias_f32() {
                        true => {
                            let mut draw = |_, _| draw() as f32;
                            Data::Singles(self.score_buffer(&layout, f32::NAN, &mut draw))
                        }
                        false => {
                            let mut draw = |_, _| T::from_f64(draw());
                            let poison = T::from_f64(f64::NAN);
                            Data::Elements(self.score_buffer(&layout, poison, &mut draw))
                        }
                    }
                }
                _ => {
                    let number = |_| random.uniform() as f32;
                    Data::Floats((0..call.reach(operand)).map(number).collect())
                }
            });
        }
        Inputs { q, k, v, others }
    }

    fn score_buffer<U: Clone>(
        &self,
        layout: &Layout,
        poison: U,
        mut draw: impl FnMut(usize, usize) -> U,
    ) -> Buffer<U> {
        let reach = layout.required_len().unwrap_or(0);
        let offset = self.offset();
        let mut data = vec![poison; offset + reach + MARGIN];
        let [entries, rows, heads, keys] = layout.shape;
        let stop = Stop::current();
        for entry in 0..entries {
            for row in (0..rows).take_while(|_| !stop.is_requested()) {
                for head in 0..heads {
                    let start = offset + layout.offset(entry, row, head);
                    for key in 0..keys {
                        data[start + key * layout.strides[3]] = draw(entry, key);
                    }
                }
            }
        }
        Buffer {
            data,
            offset,
            layout: *layout,
        }
    }

    /// Poisoned buffers for the result.
    pub fn result<T: Element>(&self) -> ResultBuffers<T> {
        with_type!(U = T, {
            let result = U::result(self);
            ResultBuffers {
                out: cast_vec(result.out),
                offset: result.offset,
                lse: result.lse,
            }
        })
    }

    pub(crate) fn poisoned_result<T: Element>(&self) -> ResultBuffers<T> {
        let call = self.call();
        ResultBuffers {
            out: self.poisoned(call.out()),
            offset: self.offset(),
            lse: vec![f32::NAN; call.lse_len()],
        }
    }

    /// Computes what to expect of the case, on the host.
    ///
    /// # Errors
    /// When the problem is too large for a reference, or the inputs aren't those of the case.
    pub fn expectation<T: Element>(&self, inputs: &Inputs<T>) -> Result<Expectation> {
        Expectation::new(&self.call(), &inputs.host())
    }

    /// Compares a result with the reference, and looks for writes to where no row lies.
    ///
    /// # Errors
    /// [`Failure`], saying what is wrong.
    pub fn check<T: Element>(
        &self,
        inputs: &Inputs<T>,
        result: &ResultBuffers<T>,
    ) -> Result<Report, Failure> {
        self.check_against(&self.expectation(inputs)?, result)
    }

    /// [`Case::check`] for those who have the expectation already.
    ///
    /// # Errors
    /// [`Failure`], saying what is wrong.
    pub fn check_against<T: Element>(
        &self,
        expected: &Expectation,
        result: &ResultBuffers<T>,
    ) -> Result<Report, Failure> {
        with_type!(U = T, {
            let out = cast_slice::<T, U>(&result.out);
            U::compare(self, expected, (out, result.offset), &result.lse)
        })
    }

    pub(crate) fn compare<T: Element>(
        &self,
        expected: &Expectation,
        buffer: &[T],
        offset: usize,
        written: &[f32],
    ) -> Result<Report, Failure> {
        let call = self.call();
        let needed = call.out().required_len().unwrap_or(usize::MAX);
        let available = buffer.len().saturating_sub(offset);
        if available < needed {
            return Err(Failure::Invalid(Error::from(
                warptile::spec::Invalid::BufferTooSmall {
                    argument: "out",
                    needed,
                    available,
                },
            )));
        }

        let out = rows_of(
            &call,
            Kind::Queries,
            (buffer, offset, call.out()),
            expected.out().len(),
        );
        let out = out.map_err(|index| Failure::Stray {
            tensor: "out",
            index,
        })?;
        // The same of the lse.
        let mut left_lse = written.to_vec();
        let mut lse = vec![0.0; expected.lse().len()];
        for sequence in call.sequences() {
            for head in 0..call.heads().query {
                let rows = lse_rows(&call, &sequence, head);
                if let Some(written) = written.get(rows.clone()) {
                    lse[rows.clone()].copy_from_slice(written);
                    left_lse[rows].fill(f32::NAN);
                } else {
                    lse[rows].fill(f32::NAN);
                }
            }
        }
        if let Some(index) = first_other(&left_lse, f32::NAN) {
            return Err(Failure::Stray {
                tensor: "lse",
                index,
            });
        }

        let report = Report {
            out: expected.judge_out(&out),
            lse: expected.judge_lse(&lse),
        };
        if report.out.passed && report.lse.passed {
            Ok(report)
        } else {
            Err(Failure::Wrong {
                out: report.out,
                lse: report.lse,
            })
        }
    }

    pub(crate) fn offset(&self) -> usize {
        MARGIN + usize::from(self.unaligned)
    }

    pub(crate) fn poisoned<T: Element>(&self, layout: &Layout) -> Vec<T> {
        let reach = layout.required_len().unwrap_or(0);
        // Memory that the system gives only as it is written: the caller's stop may come first.
        let mut data = bytemuck::zeroed_vec(self.offset() + reach + MARGIN);
        let stop = Stop::current();
        { data.chunks_mut(1 << 20) }
            .take_while(|_| !stop.is_requested())
            .for_each(|part| part.fill(T::from_f64(f64::NAN)));
        data
    }
}

/// The rows of a buffer that belong to sequences, dense and with zeros between them. `data` and `offset` are of the buffer, `layout` that of
/// the tensor in it, and `len` what it has when it is dense.
///
/// # Errors
/// Where memory outside the rows is no longer the poison.
pub(crate) fn rows_of<T: Element>(
    call: &Call,
    rows: Kind,
    (data, offset, layout): (&[T], usize, &Layout),
    len: usize,
) -> Result<Vec<T>, usize> {
    let (size, poison) = (layout.head_dim(), T::from_f64(f64::NAN));
    let mut found = vec![T::from_f64(0.0); len];
    let mut left = data.to_vec();
    let mut places = Vec::new();
    let dense = Layout::bshd(layout.shape);
    for_each_row(call, &dense, rows, |place| places.push(place));
    let mut places = places.into_iter();
    for_each_row(call, layout, rows, |start| {
        let from = offset + start..offset + start + size;
        if let Some(place) = places.next() {
            found[place..place + size].copy_from_slice(&data[from.clone()]);
        }
        left[from].fill(poison);
    });
    match first_other(&left, poison) {
        Some(index) => Err(index),
        None => Ok(found),
    }
}

/// The first element that is not `poison`, by bits: NaN never equals NaN, and a different NaN than ours was written by someone else.
fn first_other<T: Element>(values: &[T], poison: T) -> Option<usize> {
    /// Elements that are compared as bytes at once.
    const AT_ONCE: usize = 256;
    let all = [poison; AT_ONCE];
    values
        .chunks(AT_ONCE)
        .position(|chunk| cast_slice::<T, u8>(chunk) != cast_slice::<T, u8>(&all[..chunk.len()]))
        .and_then(|chunk| {
            let first = chunk * AT_ONCE;
            let other = |x: &T| bytemuck::bytes_of(x) != bytemuck::bytes_of(&poison);
            Some(first + values[first..].iter().position(other)?)
        })
}

fn lse_rows(call: &Call, sequence: &Sequence, head: usize) -> std::ops::Range<usize> {
    let start = call.lse_offset(sequence, head);
    start..start + sequence.q_len
}

/// Calls `visit` with the offset of every row of every head of queries, or of keys or values, that belongs to a sequence.
pub(crate) fn for_each_row(call: &Call, layout: &Layout, rows: Kind, mut visit: impl FnMut(usize)) {
    let stop = Stop::current();
    if rows == Kind::Scores {
        let [entries, rows, heads, keys] = layout.shape;
        let rows = if keys == 0 { 0 } else { rows };
        for row in (0..entries * rows).take_while(|_| !stop.is_requested()) {
            for head in 0..heads {
                visit(layout.offset(row / rows, row % rows, head));
            }
        }
        return;
    }
    for sequence in call.sequences() {
        let (len, entry, start) = match rows {
            Kind::Queries => (sequence.q_len, sequence.q_entry, sequence.q_start),
            _ => (sequence.k_len, sequence.k_entry, sequence.k_start),
        };
        let pages = call.pages().filter(|_| rows != Kind::Queries);
        for position in (0..len).take_while(|_| !stop.is_requested()) {
            let (entry, row) = match pages {
                None => (entry, start + position),
                Some(pages) => match pages.page(sequence.batch, position / layout.rows()) {
                    Some(page) => (page, position % layout.rows()),
                    // The call has checked every entry that a key needs.
                    None => continue,
                },
            };
            for head in 0..layout.heads() {
                visit(layout.offset(entry, row, head));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case() -> Case {
        "packed=3x5,0x2,4x0 h4/2 d16 f32 layout=gaps seed=3"
            .parse()
            .unwrap()
    }

    /// The reference's own result in the buffers of the case.
    fn right(case: &Case, inputs: &Inputs<f32>) -> ResultBuffers<f32> {
        let call = case.call();
        let exact = case.expectation(inputs).unwrap();
        let mut result = case.result::<f32>();
        let dense = Layout::bshd(call.out().shape);
        for sequence in call.sequences() {
            for head in 0..call.heads().query {
                for row in sequence.q_start..sequence.q_start + sequence.q_len {
                    let from = dense.offset(sequence.q_entry, row, head);
                    let to = result.offset + call.out().offset(sequence.q_entry, row, head);
                    for d in 0..call.out().head_dim() {
                        result.out[to + d] = exact.out()[from + d] as f32;
                    }
                }
                for index in lse_rows(&call, &sequence, head) {
                    result.lse[index] = exact.lse()[index] as f32;
                }
            }
        }
        result
    }

    #[test]
    fn the_reference_passes_its_own_check() {
        let case = case();
        let inputs = case.inputs::<f32>();
        let report = case.check(&inputs, &right(&case, &inputs)).unwrap();
        assert!(report.out.max_error < 1e-6);
    }

    #[test]
    fn an_untouched_or_wrong_result_fails() {
        let case = case();
        let inputs = case.inputs::<f32>();
        let failure = case.check(&inputs, &case.result()).unwrap_err();
        assert!(matches!(failure, Failure::Wrong { .. }), "{failure}");
        let mut result = right(&case, &inputs);
        result.out[result.offset] += 1e-3;
        assert!(case.check(&inputs, &result).is_err());
        let mut result = right(&case, &inputs);
        result.lse[0] += 1e-3;
        assert!(case.check(&inputs, &result).is_err());
    }

    #[test]
    fn stray_writes_fail() {
        let case = case();
        let inputs = case.inputs::<f32>();
        let good = right(&case, &inputs);
        let head_dim = case.heads.dim;
        for index in [
            0,
            good.offset - 1,
            good.offset + head_dim,
            good.out.len() - 1,
        ] {
            let mut result = good.clone();
            result.out[index] = 0.0;
            let failure = case.check(&inputs, &result).unwrap_err();
            let expected =
                format!("out was written outside its rows, at element {index} of the buffer");
            assert_eq!(failure.to_string(), expected);
        }
        // The padding rows behind the last sequence.
        let mut result = good;
        result.lse[7] = 0.0;
        let failure = case.check(&inputs, &result).unwrap_err();
        assert!(matches!(failure, Failure::Stray { tensor: "lse", .. }));
    }

    #[test]
    fn data_is_poisoned_outside_its_rows_and_normal_inside() {
        let case: Case = "b2 q300 k200 h2 d32 f32 layout=gaps unaligned"
            .parse()
            .unwrap();
        let q = case.inputs::<f32>().q;
        let inside: Vec<f32> = q.data.iter().copied().filter(|x| !x.is_nan()).collect();
        assert_eq!(inside.len(), 2 * 300 * 2 * 32);
        let mean = inside.iter().sum::<f32>() / inside.len() as f32;
        let square = inside.iter().map(|x| x * x).sum::<f32>() / inside.len() as f32;
        assert!(
            mean.abs() < 0.02 && (square - 1.0).abs() < 0.03,
            "{mean} {square}"
        );
        assert_eq!(q.offset % 2, 1);
    }
}
