//! Generic work that is compiled in this crate, once for each element type, and not again in every program and test that calls
//! it, with the level of optimisation that those have.

use bytemuck::{allocation::cast_vec, cast_slice};
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use warptile::{Call, Element, KeyView, Operands, View};

use crate::accept::{Expectation, Verdict};
use crate::case::Case;
use crate::data::{Buffer, Failure, Inputs, Report, ResultBuffers};
use crate::error::Result;
use crate::on_gpu::ReferenceOnGpu;
use crate::reference::ReferenceOutput;

/// The work. Functions of three types, not of any: so they are compiled here.
pub(crate) trait Compiled: Element {
    fn inputs(case: &Case) -> Inputs<Self>;

    /// Stores numbers that are exact in this type.
    fn store(numbers: &[f32], to: &mut [Self]);

    /// The same numbers, of which each type's are numbers of `f32`.
    fn load(from: &[Self], to: &mut [f32]);

    fn result(case: &Case) -> ResultBuffers<Self>;

    fn compare(
        case: &Case,
        expected: &Expectation,
        out: (&[Self], usize),
        lse: &[f32],
    ) -> Result<Report, Failure>;

    fn judge(expected: &Expectation, out: &[Self]) -> Verdict;

    fn reference(
        call: &Call,
        q: View<'_, Self>,
        kv: [KeyView<'_, Self>; 2],
        operands: &Operands<'_, Self>,
    ) -> Result<ReferenceOutput>;

    fn expectation(
        call: &Call,
        q: View<'_, Self>,
        kv: [KeyView<'_, Self>; 2],
        operands: &Operands<'_, Self>,
    ) -> Result<Expectation>;

    fn expectation_on_gpu(
        reference: &ReferenceOnGpu,
        call: &Call,
        q: View<'_, Self>,
        kv: [KeyView<'_, Self>; 2],
        operands: &Operands<'_, Self>,
    ) -> Result<Expectation>;
}

macro_rules! compiled {
    ($($type:ty: $store:expr, $load:expr);*) => {$(
        impl Compiled for $type {
            fn inputs(case: &Case) -> Inputs<Self> {
                case.draw()
            }

            fn store(numbers: &[f32], to: &mut [Self]) {
                $store(to, numbers);
            }

            fn load(from: &[Self], to: &mut [f32]) {
                $load(from, to);
            }

            fn result(case: &Case) -> ResultBuffers<Self> {
                case.poisoned_result()
            }

            fn compare(
                case: &Case,
                expected: &Expectation,
                (out, offset): (&[Self], usize),
                lse: &[f32],
            ) -> Result<Report, Failure> {
                case.compare(expected, out, offset, lse)
            }

            fn judge(expected: &Expectation, out: &[Self]) -> Verdict {
                expected.judge(out)
            }

            fn reference(
                call: &Call,
                q: View<'_, Self>,
                kv: [KeyView<'_, Self>; 2],
                operands: &Operands<'_, Self>,
            ) -> Result<ReferenceOutput> {
                Ok(crate::reference::compute(call, q, kv, operands, false)?.exact)
            }

            fn expectation(
                call: &Call,
                q: View<'_, Self>,
                kv: [KeyView<'_, Self>; 2],
                operands: &Operands<'_, Self>,
            ) -> Result<Expectation> {
                let references = crate::reference::compute(call, q, kv, operands, true)?;
                Ok(Expectation::from_references::<Self>(call, references))
            }

            fn expectation_on_gpu(
                reference: &ReferenceOnGpu,
                call: &Call,
                q: View<'_, Self>,
                kv: [KeyView<'_, Self>; 2],
                operands: &Operands<'_, Self>,
            ) -> Result<Expectation> {
                reference.compute(call, q, kv, operands)
            }
        }
    )*};
}
compiled!(
    f32: <[f32]>::copy_from_slice, |from: &[f32], to: &mut [f32]| to.copy_from_slice(from);
    f16: <[f16]>::convert_from_f32_slice, <[f16]>::convert_to_f32_slice;
    bf16: <[bf16]>::convert_from_f32_slice, <[bf16]>::convert_to_f32_slice
);

/// Evaluates an expression in which `$U` names the type that `$T`, an [`Element`], is.
///
/// To the compiler it is another type: what crosses is cast, and only the arm in which the two are the same runs.
macro_rules! with_type {
    ($U:ident = $T:ty, $work:expr) => {
        match <$T as warptile::Element>::TYPE {
            warptile::ElementType::F16 => {
                type $U = half::f16;
                $work
            }
            warptile::ElementType::Bf16 => {
                type $U = half::bf16;
                $work
            }
            _ => {
                type $U = f32;
                $work
            }
        }
    };
}
pub(crate) use with_type;

pub(crate) fn cast_view<'a, T: Element, U: Element>(view: View<'a, T>) -> View<'a, U> {
    View::new(cast_slice(view.data), view.layout)
}

pub(crate) fn cast_keys<'a, T: Element, U: Element>(
    views: [KeyView<'a, T>; 2],
) -> [KeyView<'a, U>; 2] {
    views.map(|view| match view {
        KeyView::Same(view) => KeyView::Same(cast_view(view)),
        KeyView::Quantized(bits, element) => KeyView::Quantized(bits, element),
    })
}

pub(crate) fn cast_operands<'a, T: Element, U: Element>(
    operands: &Operands<'a, T>,
) -> Operands<'a, U> {
    let mut cast = Operands::none();
    cast.slopes = operands.slopes;
    cast.sinks = operands.sinks;
    cast.bias = operands.bias.map(cast_slice);
    cast.key_mask = operands.key_mask;
    cast.k_scale = operands.k_scale;
    cast.v_scale = operands.v_scale;
    cast
}

fn cast_buffer<T: Element, U: Element>(buffer: Buffer<T>) -> Buffer<U> {
    Buffer {
        data: cast_vec(buffer.data),
        offset: buffer.offset,
        layout: buffer.layout,
    }
}

pub(crate) fn cast_inputs<T: Element, U: Element>(inputs: Inputs<T>) -> Inputs<U> {
    Inputs {
        q: cast_buffer(inputs.q),
        k: cast_buffer(inputs.k),
        v: cast_buffer(inputs.v),
        quantized: inputs.quantized,
        slopes: inputs.slopes,
        sinks: inputs.sinks,
        bias: inputs.bias.map(cast_buffer),
        key_mask: inputs.key_mask,
    }
}
