//! Gradients on the CPU path: against the reference on random problems, and against finite differences.

use half::{bf16, f16};
use quickcheck::{QuickCheck, TestResult};
use warptile::cpu::backward_cpu;
use warptile::spec::Operand;
use warptile::{Element, ElementType};
use warptile_check::{BackwardCase, Case, Data, GradientFailure, Inputs, reference};

use crate::common::Any;
use crate::draw::Random;

/// Computes the gradients of a case twice, and holds them against the reference.
fn verify(case: &Case) -> Result<f64, GradientFailure> {
    fn typed<T: Element>(case: &Case) -> Result<f64, GradientFailure> {
        let backward = case.backward::<T>()?;
        let [first, again] = [(), ()].map(|()| {
            let mut result = backward.result();
            backward_cpu(&backward.backward, &backward.host(), result.host()).unwrap();
            result
        });
        let bits = |result: &warptile_check::GradientBuffers<T>| -> Vec<u8> {
            let tensors = result.tensors.iter().flatten();
            tensors
                .flat_map(|buffer| bytemuck::cast_slice(&buffer.data).to_vec())
                .collect()
        };
        assert!(bits(&first) == bits(&again), "{case}: other bits");
        backward.check(&backward.expectation()?, &first)
    }
    match case.element {
        ElementType::F16 => typed::<f16>(case),
        ElementType::Bf16 => typed::<bf16>(case),
        _ => typed::<f32>(case),
    }
}

fn right(case: Any) -> TestResult {
    let case = case.0.differentiable();
    match verify(&case) {
        Ok(_) => TestResult::passed(),
        Err(failure) => TestResult::error(format!("{case}: {failure}")),
    }
}

#[test]
fn random_gradients_match_the_reference() {
    QuickCheck::new()
        .tests(150)
        .quickcheck(right as fn(Any) -> TestResult);
}

/// The sum of `out * d_out + lse * d_lse` in float64, of what a backward pass of the case is the gradient.
fn loss(backward: &BackwardCase<f32>, inputs: &Inputs<f32>) -> f64 {
    let call = backward.backward.call();
    let mut of_call = inputs.clone();
    let mut take = |operand| match of_call.others[operand].take() {
        Some(Data::Elements(buffer)) => {
            let (shape, view) = (buffer.layout.shape, buffer.view());
            let rows = (0..shape[0]).flat_map(|entry| (0..shape[1]).map(move |row| (entry, row)));
            { rows.flat_map(|(entry, row)| (0..shape[2]).map(move |head| (entry, row, head))) }
                .flat_map(|(entry, row, head)| view.row(entry, row, head).to_vec())
                .collect()
        }
        Some(Data::Floats(list)) => list,
        _ => Vec::new(),
    };
    let (d_out, d_lse) = (take(Operand::DOut), take(Operand::DLse));
    take(Operand::Out);
    take(Operand::Lse);
    let forward = reference(call, &of_call.host()).unwrap();
    let sum = |values: &[f64], gradient: &[f32]| -> f64 {
        let terms = values.iter().zip(gradient);
        // Of rows that see no key the lse is constant, and of rows of no sequence the gradient is NaN.
        { terms.map(|(x, y)| x * f64::from(*y)) }
            .filter(|term| term.is_finite())
            .sum()
    };
    sum(&forward.out, &d_out) + sum(&forward.lse, &d_lse)
}

/// Adds `step` times a direction to an operand, a number for each element in the order of the buffer.
fn moved(inputs: &Inputs<f32>, operand: Operand, direction: &[f32], step: f32) -> Inputs<f32> {
    let mut inputs = inputs.clone();
    let to = match operand {
        Operand::Q => &mut inputs.q.data,
        Operand::K => &mut inputs.k.data,
        Operand::V => &mut inputs.v.data,
        _ => match &mut inputs.others[operand] {
            Some(Data::Floats(list)) => list,
            _ => panic!("{operand:?}"),
        },
    };
    to.iter_mut()
        .zip(direction)
        .for_each(|(x, y)| *x += step * y);
    inputs
}

#[test]
fn gradients_are_those_of_finite_differences() {
    const STEP: f32 = 1.0 / 64.0;
    for words in [
        "b2 q7 k9 h2 d8",
        "b1 q9 k7 h4/2 d16/8 mask=causal",
        "b1 q9 k12 h6/2 d8 mask=window,3,1 softcap=2 scale=0.7",
        "b2 q5 k5 h2 d8 mask=causal diagonal=top-left alibi=batch sinks",
        "b2 q6 k11 h4/1 d8/24 bias keymask sinks scale=-0.4",
        "packed=3x5,0x2,7x7,4x0 h4/2 d16 mask=causal softcap=1 sinks alibi=head",
        "b3 q6 k8 h2 d8 used=6x8,2x3,0x1 mask=causal",
    ] {
        for seed in 0..8 {
            let case: Case = format!("{words} f32 seed={seed}").parse().unwrap();
            let backward = case.backward::<f32>().unwrap();
            let expected = backward.expectation().unwrap();
            let gradients = [
                (Operand::DQ, Operand::Q),
                (Operand::DK, Operand::K),
                (Operand::DV, Operand::V),
                (Operand::DSinks, Operand::Sinks),
            ];
            for (gradient, operand) in gradients {
                let inputs = &backward.inputs;
                let (len, sinks) = match (operand, &inputs.others[Operand::Sinks]) {
                    (Operand::Q, _) => (inputs.q.data.len(), None),
                    (Operand::K, _) => (inputs.k.data.len(), None),
                    (Operand::V, _) => (inputs.v.data.len(), None),
                    (_, Some(Data::Floats(list))) => (list.len(), Some(list)),
                    _ => continue,
                };
                let mut random = Random(seed + 77);
                let direction: Vec<f32> = (0..len).map(|_| random.unit()).collect();
                let at = |step| loss(&backward, &moved(inputs, operand, &direction, step));
                // Richardson's extrapolation: an error of the fourth order.
                let slope = |step: f32| (at(step) - at(-step)) / (2.0 * f64::from(step));
                let found = (4.0 * slope(STEP / 2.0) - slope(STEP)) / 3.0;
                // The direction in the order of the gradient.
                let ordered: Vec<f32> = match (operand, sinks) {
                    (_, Some(sinks)) => { direction.iter().zip(sinks) }
                        .map(|(x, sink)| if sink.is_finite() { *x } else { 0.0 })
                        .collect(),
                    _ => {
                        let buffer = match operand {
                            Operand::Q => &inputs.q,
                            Operand::K => &inputs.k,
                            _ => &inputs.v,
                        };
                        direction[buffer.offset..][..buffer.layout.reach()].to_vec()
                    }
                };
                let products = { expected.gradient(gradient).iter().zip(&ordered) }
                    .map(|(x, y)| x * f64::from(*y));
                let (size, right) = (
                    products.clone().map(f64::abs).sum::<f64>(),
                    products.sum::<f64>(),
                );
                assert!(
                    (found - right).abs() <= 2e-4 * size + 1e-6,
                    "{case}: {gradient:?} {found} {right}"
                );
            }
        }
    }
}
