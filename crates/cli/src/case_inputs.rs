//! From a [`Case`] to the tensors it stands for.

use half::{bf16, f16};
use warptile::{Element, ElementType, Layout};

use crate::case::{Case, Lengths, Slopes, Values};
use crate::inputs::{AnyInputs, Inputs};
use crate::random::Random;

/// Rows after the last packed sequence that belong to none. They are NaN, as are the gaps between heads: what is not
/// part of the problem must not reach the result.
const UNUSED_ROWS: usize = 3;

/// The inputs `case` stands for.
pub(crate) fn inputs(case: &Case) -> AnyInputs {
    match case.element {
        ElementType::F16 => AnyInputs::F16(typed::<f16>(case)),
        ElementType::Bf16 => AnyInputs::Bf16(typed::<bf16>(case)),
        _ => AnyInputs::F32(typed::<f32>(case)),
    }
}

fn typed<T: Element>(case: &Case) -> Inputs<T> {
    let mut random = Random::new(case.seed);
    let deviation = match case.values {
        Values::Normal => 1.0,
        Values::Large => 8.0,
    };
    let unused = match case.lengths {
        Lengths::Dense { .. } => 0,
        Lengths::Packed(_) => UNUSED_ROWS,
    };
    let mut tensor = |shape: [usize; 4], deviation: f32| {
        let [batch, used_rows, heads, head_dim] = shape;
        let layout = case
            .layout
            .layout([batch, used_rows + unused, heads, head_dim]);
        let data = fill(&mut random, &layout, used_rows, deviation);
        (data, layout)
    };
    let [q_shape, kv_shape] = case.shapes();
    let (q, q_layout) = tensor(q_shape, deviation);
    let (k, k_layout) = tensor(kv_shape, 1.0);
    let (v, v_layout) = tensor(kv_shape, deviation);
    let slopes = match case.slopes {
        Slopes::None => None,
        Slopes::PerHead => Some(case.heads),
        Slopes::PerBatchHead => Some(case.batch() * case.heads),
    };
    // ALiBi's own slopes lie between 2^-8 and 1/2.
    let alibi_slopes = slopes.map(|count| {
        (0..count)
            .map(|_| (0.5 * random.unit()) as f32)
            .collect::<Vec<f32>>()
    });
    Inputs {
        q,
        k,
        v,
        q_layout,
        k_layout,
        v_layout,
        cu_seqlens: match &case.lengths {
            Lengths::Dense { .. } => None,
            Lengths::Packed(sequences) => Some([
                offsets(sequences.iter().map(|sequence| sequence.0)),
                offsets(sequences.iter().map(|sequence| sequence.1)),
            ]),
        },
        alibi_slopes,
    }
}

/// Normal numbers in the first `used_rows` rows, NaN everywhere else.
fn fill<T: Element>(
    random: &mut Random,
    layout: &Layout,
    used_rows: usize,
    deviation: f32,
) -> Vec<T> {
    let [batch, _, heads, head_dim] = layout.shape;
    let mut data = vec![T::from_f32(f32::NAN); layout.required_len().unwrap_or(0)];
    for b in 0..batch {
        for s in 0..used_rows {
            for h in 0..heads {
                let start = layout.offset(b, s, h);
                let row = &mut data[start..start + head_dim];
                for (element, value) in row.iter_mut().zip(random.normal(head_dim, deviation)) {
                    *element = T::from_f32(value);
                }
            }
        }
    }
    data
}

/// Where each length begins, and where the last ends. Lengths were checked to sum to less than `i32::MAX`.
fn offsets(lengths: impl Iterator<Item = usize>) -> Vec<i32> {
    let mut end = 0;
    std::iter::once(0)
        .chain(lengths.map(|length| {
            end += length as i32;
            end
        }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_repeatable_and_depends_on_its_seed() {
        let q = |text: &str| match inputs(&text.parse::<Case>().unwrap()) {
            AnyInputs::F16(inputs) => inputs.q,
            other => panic!("f16 was asked for, got {}", other.element()),
        };
        assert_eq!(q("seed=1"), q("seed=1"));
        assert_ne!(q("seed=1"), q("seed=2"));
    }

    #[test]
    fn what_belongs_to_no_sequence_is_nan() {
        let case = "packed=2x3,0x1 d=8 layout=odd-gaps element=f32";
        let AnyInputs::F32(inputs) = inputs(&case.parse().unwrap()) else {
            panic!("f32 was asked for");
        };
        assert_eq!(inputs.cu_seqlens, Some([vec![0, 2, 2], vec![0, 3, 4]]));
        assert_eq!(inputs.q_layout.shape, [1, 5, 1, 8]);
        let nan = inputs.q.iter().filter(|x| x.is_nan()).count();
        // A gap of 1 after each of the 4 rows but the last, and 3 rows of 8.
        assert_eq!(nan, 4 + 3 * 8);
        assert!(inputs.q[..8].iter().all(|x| x.is_finite()));
    }
}
