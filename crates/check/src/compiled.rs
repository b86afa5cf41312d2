//! Generic work that is compiled in this crate, once for each element type, and not again in every program and test that calls
//! it, with the level of optimisation that those have.

use bytemuck::allocation::cast_vec;
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use warptile::Element;
use warptile::spec::Slots;

use crate::accept::{self, Expectation, Verdict};
use crate::case::Case;
use crate::data::{Buffer, Data, Failure, Inputs, Report, ResultBuffers};

/// The work. Functions of three types, not of any: so they are compiled here.
pub(crate) trait Compiled: Element {
    fn inputs(case: &Case) -> Inputs<Self>;

    /// Stores numbers that are exact in this type.
    fn store(numbers: &[f32], to: &mut [Self]);

    /// Converts the numbers to `f32`, which has all numbers of each type.
    fn load(from: &[Self], to: &mut [f32]);

    fn result(case: &Case) -> ResultBuffers<Self>;

    fn compare(
        case: &Case,
        expected: &Expectation,
        out: (&[Self], usize),
        lse: &[f32],
    ) -> Result<Report, Failure>;

    fn judge(expected: &Expectation, out: &[Self]) -> Verdict;

    fn differences(a: &[Self], b: &[Self]) -> (usize, f32);
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

            fn differences(a: &[Self], b: &[Self]) -> (usize, f32) {
                accept::differences_of(a, b)
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
        warptile::with_element!(<$T as warptile::Element>::TYPE, $U => $work)
    };
}
pub(crate) use with_type;

fn cast_buffer<T: Element, U: Element>(buffer: Buffer<T>) -> Buffer<U> {
    Buffer {
        data: cast_vec(buffer.data),
        offset: buffer.offset,
        layout: buffer.layout,
    }
}

pub(crate) fn cast_inputs<T: Element, U: Element>(inputs: Inputs<T>) -> Inputs<U> {
    let mut others = inputs.others;
    let others = Slots::from_fn(|operand| {
        others[operand].take().map(|data| match data {
            Data::Elements(buffer) => Data::Elements(cast_buffer(buffer)),
            Data::Bytes(buffer) => Data::Bytes(buffer),
            Data::Singles(buffer) => Data::Singles(buffer),
            Data::Floats(values) => Data::Floats(values),
        })
    });
    Inputs {
        q: cast_buffer(inputs.q),
        k: cast_buffer(inputs.k),
        v: cast_buffer(inputs.v),
        others,
    }
}
