//! Gradients on the CPU path: against the reference on random problems, and against finite differences.

use half::{bf16, f16};
use quickcheck::{QuickCheck, TestResult};
use warptile::backward::Prepass;
use warptile::cpu::backward_cpu;
use warptile::spec::{Backward, Call, CallBuilder, Invalid, Operand, Types};
use warptile::{
    Attention, Backend, Element, ElementType, Error, GradientsInto, Keys, Layout, Lse, Mask, Tensor,
};
use warptile_check::{BackwardCase, Case, Data, Failure, Inputs, reference};

use crate::common::Any;
use crate::draw::Random;

/// Computes the gradients of a case twice, and holds them against the reference.
fn verify(case: &Case) -> Result<f64, Failure> {
    fn typed<T: Element>(case: &Case) -> Result<f64, Failure> {
        let backward = case.backward::<T>()?;
        let [first, again] = [(), ()].map(|()| {
            let mut result = backward.result();
            backward_cpu(&backward.backward, &backward.host(), result.host()).unwrap();
            result
        });
        assert!(first.bits() == again.bits(), "{case}: other bits");
        backward.check(&backward.expectation()?, &first)
    }
    match case.element {
        ElementType::F16 => typed::<f16>(case),
        ElementType::Bf16 => typed::<bf16>(case),
        _ => typed::<f32>(case),
    }
}

fn right(case: Any) -> TestResult {
    let case = case.0.with_blocks().differentiable();
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

/// A row passes no gradient if its log-sum-exp is so far from 0 that it has no digits behind the point: a padded query whose keys all have
/// the lowest bias, or one whose bias is very large. The other rows pass theirs.
#[test]
fn rows_with_an_extreme_bias_pass_nothing() {
    fn biased_by<T: Element>(bias_of_row: f32) {
        let backend = Backend::cpu();
        let tensor = |numbers: Vec<f32>, shape| {
            let numbers: Vec<T> = numbers.into_iter().map(T::from_f32).collect();
            backend.tensor(&numbers, shape).unwrap()
        };
        let numbers = |factor| tensor(numbers(3 * 8, factor), [1, 3, 1, 8]);
        let (q, k, v, d_out) = (numbers(1.0), numbers(0.7), numbers(0.4), numbers(0.9));
        // Of the second query.
        let bias = vec![
            0.0,
            0.0,
            0.0,
            bias_of_row,
            bias_of_row,
            bias_of_row,
            0.0,
            0.0,
            0.0,
        ];
        let bias = tensor(bias, [1, 3, 1, 3]);
        let attention = Attention::new().d_bias(true);
        let keys = || Keys::from((&k, &v)).bias(&bias);
        let output = attention.forward(&q, keys()).unwrap();
        let gradients = attention.backward(&d_out, &q, keys(), &output).unwrap();
        let of = |tensor: &Tensor<T>| -> Vec<f32> {
            { tensor.as_slice().unwrap().iter() }
                .map(|x| x.to_f32())
                .collect()
        };
        let (dq, d_bias) = (of(&gradients.dq), of(&gradients.d_bias.unwrap()));
        assert_eq!(dq[8..16], [0.0; 8], "{bias_of_row:e}");
        assert_eq!(d_bias[3..6], [0.0; 3], "{bias_of_row:e}");
        // The sum of all weights of the two others, times their gradients.
        let (dv, d_out) = (of(&gradients.dv), of(&d_out));
        for column in 0..8 {
            let sum: f32 = (0..3).map(|key| dv[8 * key + column]).sum();
            let expected = d_out[column] + d_out[16 + column];
            assert!((sum - expected).abs() < 0.02, "{bias_of_row:e}: {dv:?}");
        }
    }
    biased_by::<f32>(f32::MIN);
    biased_by::<f32>(-1e9);
    biased_by::<bf16>(bf16::MIN.to_f32());
    biased_by::<bf16>(-1e9);
    biased_by::<f32>(3e7);
    biased_by::<bf16>(1e9);
}

/// A sum of 274 numbers next to 160 rows that are 0: the rule once took it for wrong.
#[test]
fn a_long_sum_among_zeros_passes() {
    for seed in [1_512_123_594_048_546_976_u64, 1, 2, 3, 4, 5, 6, 7] {
        let case = format!("packed=274x1,0x160 h1 d8 f32 scale=0 seed={seed}");
        verify(&case.parse().unwrap()).unwrap();
    }
}

const LARGEST_LSE: f64 = Prepass::LARGEST_LSE as f64;

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
    let mut forward = reference(call, &of_call.host()).unwrap();
    // Rows that pass no gradient.
    let [_, rows, heads, size] = call.out().shape;
    for (index, x) in forward.out.iter_mut().enumerate() {
        let (row, head) = (index / size / heads, index / size % heads);
        if forward.lse[(row / rows * heads + head) * rows + row % rows].abs() > LARGEST_LSE {
            *x = 0.0;
        }
    }
    { forward.lse.iter_mut() }
        .filter(|lse| lse.abs() > LARGEST_LSE)
        .for_each(|lse| *lse = 0.0);
    let sum = |values: &[f64], gradient: &[f32]| -> f64 {
        let terms = values.iter().zip(gradient);
        // Rows that see no key have a constant lse, and rows of no sequence have NaN gradients.
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
            Some(Data::Elements(buffer)) => &mut buffer.data,
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
        "b2 q6 k11 h4/1 d8/24 bias keymask sinks scale=-0.4 dbias",
        "b2 q5 k8 h2 d8 bias dbias softcap=1 mask=causal broadcast=batch",
        "b3 q5 k6 h4/2 d8/16 bias dbias used=5x6,2x3,0x1 dropout=0.4 broadcast=heads,queries",
        "b2 q9 k7 h2 d8 bias dbias sinks broadcast=queries,keys",
        "packed=3x5,0x2,7x7,4x0 h4/2 d16 mask=causal softcap=1 sinks alibi=head",
        "b3 q6 k8 h2 d8 used=6x8,2x3,0x1 mask=causal",
        "b2 q9 k40 h4/2 d8/16 mask=causal dropout=0.3 softcap=2 sinks",
    ] {
        for seed in 0..8 {
            let case: Case = format!("{words} f32 seed={seed}").parse().unwrap();
            let backward = case.backward::<f32>().unwrap();
            let expected = backward.expectation().unwrap();
            for gradient in Operand::GRADIENTS {
                let operand = gradient.gradient_of().unwrap();
                let inputs = &backward.inputs;
                let (buffer, list) = match (operand, &inputs.others[operand]) {
                    (Operand::Q, _) => (Some(&inputs.q), None),
                    (Operand::K, _) => (Some(&inputs.k), None),
                    (Operand::V, _) => (Some(&inputs.v), None),
                    (_, Some(Data::Elements(bias))) => (Some(bias), None),
                    (_, Some(Data::Floats(list))) => (None, Some(list)),
                    _ => continue,
                };
                if !backward.backward.wants(gradient) && gradient == Operand::DBias {
                    continue;
                }
                let len = { buffer.map(|buffer| buffer.data.len()) }
                    .or(list.map(Vec::len))
                    .unwrap_or_default();
                let mut random = Random(seed + 77);
                let direction: Vec<f32> = (0..len).map(|_| random.unit()).collect();
                let at = |step| loss(&backward, &moved(inputs, operand, &direction, step));
                // Richardson's extrapolation: an error of the fourth order.
                let slope = |step: f32| (at(step) - at(-step)) / (2.0 * f64::from(step));
                let found = (4.0 * slope(STEP / 2.0) - slope(STEP)) / 3.0;
                // The direction in the order of the gradient.
                let ordered: Vec<f32> = match (buffer, list) {
                    (Some(buffer), _) => {
                        direction[buffer.offset..][..buffer.layout.reach()].to_vec()
                    }
                    (_, sinks) => { direction.iter().zip(sinks.into_iter().flatten()) }
                        .map(|(x, sink)| if sink.is_finite() { *x } else { 0.0 })
                        .collect(),
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

fn numbers(count: usize, factor: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * factor).sin()).collect()
}

#[test]
fn gradients_of_the_users_level_are_those_of_the_call() {
    let backend = Backend::cpu();
    let (shape, keys) = ([2, 5, 4, 16], [2, 7, 2, 16]);
    let tensor = |shape: [usize; 4], factor| {
        let count = shape.iter().product();
        backend.tensor(&numbers(count, factor), shape).unwrap()
    };
    let (q, k, v) = (tensor(shape, 0.3), tensor(keys, 0.5), tensor(keys, 0.7));
    let d_out = tensor(shape, 0.9);
    let attention = Attention::new()
        .mask(Mask::causal())
        .sinks(&[0.5, -1.0, 2.0, 0.0]);
    let output = attention.forward(&q, (&k, &v)).unwrap();
    let d_lse = numbers(40, 1.1);
    let d_lse = Lse::from_slice(&backend, &d_lse, shape).unwrap();
    let all = attention
        .backward((&d_out, &d_lse), &q, (&k, &v), &output)
        .unwrap();
    assert_eq!(
        (all.dq.shape(), all.dk.shape(), all.dv.shape()),
        (shape, keys, keys)
    );
    assert_eq!(all.d_sinks().unwrap().shape(), [1, 1, 4, 1]);
    assert_eq!(all.plan.kernel_name(), "cpu");

    // By finite differences in one direction of all arguments.
    let at = |step: f32| -> f64 {
        let moved = |tensor: &Tensor<f32>, shape, factor| {
            let direction = numbers(tensor.layout().reach(), factor);
            let values = tensor.to_vec().unwrap();
            let moved: Vec<f32> = values
                .iter()
                .zip(direction)
                .map(|(x, y)| x + step * y)
                .collect();
            backend.tensor(&moved, shape).unwrap()
        };
        let (q, k, v) = (
            moved(&q, shape, 0.2),
            moved(&k, keys, 0.4),
            moved(&v, keys, 0.6),
        );
        let output = attention.forward(&q, (&k, &v)).unwrap();
        let sum = |a: Vec<f32>, b: Vec<f32>| -> f64 {
            a.iter()
                .zip(b)
                .map(|(x, y)| f64::from(*x) * f64::from(y))
                .sum()
        };
        sum(output.out.to_vec().unwrap(), d_out.to_vec().unwrap())
            + sum(
                output.lse.unwrap().to_vec().unwrap(),
                d_lse.to_vec().unwrap(),
            )
    };
    let found = (at(0.01) - at(-0.01)) / 0.02;
    let expected: f64 = [(&all.dq, 0.2), (&all.dk, 0.4), (&all.dv, 0.6)]
        .into_iter()
        .flat_map(|(gradient, factor)| {
            let direction = numbers(gradient.layout().reach(), factor);
            gradient.to_vec().unwrap().into_iter().zip(direction)
        })
        .map(|(x, y)| f64::from(x) * f64::from(y))
        .sum();
    assert!(
        (found - expected).abs() < 2e-3 * expected.abs(),
        "{found} {expected}"
    );

    // Some of them, into memory of one's own.
    let mut dk = backend.tensor(&[f32::NAN; 448], keys).unwrap();
    let into = GradientsInto::new().dk(&mut dk);
    let plan = attention
        .backward_into((&d_out, &d_lse), &q, (&k, &v), &output, into)
        .unwrap();
    assert_eq!(dk.to_vec().unwrap(), all.dk.to_vec().unwrap());

    // Once more, added to what is there.
    let mut sinks = backend.tensor(&[1.0_f32; 4], [1, 1, 4, 1]).unwrap();
    let into = GradientsInto::new().dk(&mut dk).d_sinks(&mut sinks).add();
    attention
        .backward_into((&d_out, &d_lse), &q, (&k, &v), &output, into)
        .unwrap();
    let twice = |x: &f32| x + x;
    let expected: Vec<f32> = all.dk.to_vec().unwrap().iter().map(twice).collect();
    assert_eq!(dk.to_vec().unwrap(), expected);
    let one_more = |x: &f32| 1.0 + x;
    let expected = all.d_sinks().unwrap().to_vec().unwrap();
    let expected: Vec<f32> = expected.iter().map(one_more).collect();
    assert_eq!(sinks.to_vec().unwrap(), expected);
    assert!(plan.explain().contains(" backward"), "{}", plan.explain());

    // Entry by entry and by two heads: gradients of keys and sinks are added, that of queries is not.
    let zeros = |shape: [usize; 4]| backend.tensor(&vec![0.0_f32; shape.iter().product()], shape);
    let mut sinks = zeros([1, 1, 2, 1]).unwrap();
    for (entry, keys_of) in [(0, 0..1), (1, 0..1)] {
        let of = |tensor: &Tensor<f32>, heads| tensor.entries(entry..entry + 1)?.heads(heads);
        let (q, d_out) = (of(&q, 0..2).unwrap(), of(&d_out, 0..2).unwrap());
        let out = of(&output.out, 0..2).unwrap();
        let part = |lse: &Lse| lse.part(entry, 0..2).unwrap();
        let (lse, d_lse) = (part(output.lse.as_ref().unwrap()), part(&d_lse));
        let (k, v) = (of(&k, keys_of.clone()).unwrap(), of(&v, keys_of).unwrap());
        let first = attention.clone().sinks(&[0.5, -1.0]);
        let mut dq = backend.tensor(&[f32::NAN; 160], [1, 5, 2, 16]).unwrap();
        let (mut dk, mut dv) = (zeros([1, 7, 1, 16]).unwrap(), zeros([1, 7, 1, 16]).unwrap());
        for times in [1.0, 2.0] {
            let into = GradientsInto::new()
                .dq(&mut dq)
                .key_sums(&mut dk, &mut dv)
                .d_sinks(&mut sinks);
            let output = (&out, &lse);
            first
                .backward_into((&d_out, &d_lse), &q, (&k, &v), output, into)
                .unwrap();
            let expected = of(&all.dq, 0..2).unwrap();
            for (row, found) in dq.to_vec().unwrap().chunks(32).enumerate() {
                let expected = &expected.as_slice().unwrap()[64 * row..][..32];
                assert_eq!(found, expected);
            }
            for (found, all) in [(&dk, &all.dk), (&dv, &all.dv)] {
                let expected = of(all, 0..1).unwrap();
                for (row, found) in found.to_vec().unwrap().chunks(16).enumerate() {
                    let expected = &expected.as_slice().unwrap()[32 * row..][..16];
                    assert!(found.iter().zip(expected).all(|(x, y)| *x == times * y));
                }
            }
        }
        let sums = [dk.to_vec().unwrap(), dv.to_vec().unwrap()];
        let into = GradientsInto::<f32>::new().key_parts(&mut dk, &mut dv);
        let output = (&out, &lse);
        first
            .backward_into((&d_out, &d_lse), &q, (&k, &v), output, into)
            .unwrap();
        for (part, sums) in [&dk, &dv].into_iter().zip(sums) {
            let part = part.to_vec().unwrap();
            assert!(part.iter().zip(&sums).all(|(x, y)| 2.0 * x == *y));
        }
    }

    // A list has no gaps.
    let mut apart = backend
        .tensor_with_layout(&[0.0_f32; 7], Layout::new([1, 1, 4, 1], [7, 7, 2, 1]))
        .unwrap();
    let into = GradientsInto::<f32>::new().d_sinks(&mut apart);
    let refused = attention.backward_into((&d_out, &d_lse), &q, (&k, &v), &output, into);
    assert!(matches!(
        refused,
        Err(Error::Invalid(Invalid::StridesDiffer { .. }))
    ));
}

/// The sums along the dimensions in which a bias has the extent 1 or the step 0.
#[test]
fn the_gradient_of_a_bias_has_its_shape() {
    let backend = Backend::cpu();
    let (rows, keys) = ([2, 70, 4, 8], [2, 90, 2, 8]);
    let tensor = |shape: [usize; 4], factor| {
        let count = shape.iter().product();
        backend.tensor(&numbers(count, factor), shape).unwrap()
    };
    let (q, k, v) = (tensor(rows, 0.3), tensor(keys, 0.5), tensor(keys, 0.7));
    let d_out = tensor(rows, 0.9);
    let attention = Attention::new().sinks(&[0.5; 4]).mask(Mask::causal());
    let gradient = |layout: Layout| {
        let data = vec![0.25_f32; layout.reach()];
        let bias = backend.tensor_with_layout(&data, layout).unwrap();
        let of_keys = || Keys::new(&k, &v).bias(&bias);
        let output = attention.forward(&q, of_keys()).unwrap();
        let plain = attention.backward(&d_out, &q, of_keys(), &output).unwrap();
        assert!(plain.d_bias.is_none());
        let attention = attention.clone().d_bias(true);
        let all = attention.backward(&d_out, &q, of_keys(), &output).unwrap();
        assert_eq!(all.dq.to_vec().unwrap(), plain.dq.to_vec().unwrap());
        all.d_bias.unwrap()
    };
    let whole = [2, 70, 4, 90];
    let all = gradient(Layout::bshd(whole)).to_vec().unwrap();
    for (layout, shape) in [
        (Layout::bhsd([1, 4, 70, 90]), [1, 70, 4, 90]),
        (Layout::bshd([2, 1, 1, 90]), [2, 1, 1, 90]),
        (Layout::bshd([1, 70, 1, 1]), [1, 70, 1, 1]),
        (Layout::new(whole, [0, 90, 0, 1]), [1, 70, 1, 90]),
        (Layout::new(whole, [4, 0, 1, 0]), [2, 1, 4, 1]),
    ] {
        let found = gradient(layout);
        assert_eq!(found.shape(), shape);
        let to = found.layout();
        let mut expected = vec![0.0; to.reach()];
        for (index, x) in all.iter().enumerate() {
            let place = [
                index / (70 * 360),
                index / 360 % 70,
                index / 90 % 4,
                index % 90,
            ];
            let [entry, row, head, key] = std::array::from_fn(|d| place[d].min(shape[d] - 1));
            expected[to.offset(entry, row, head) + key] += x;
        }
        for (x, y) in found.to_vec().unwrap().iter().zip(&expected) {
            assert!((x - y).abs() < 2e-5, "{shape:?}: {x} {y}");
        }
    }
    // Only of a bias that there is, and of its own shape.
    let output = attention.forward(&q, (&k, &v)).unwrap();
    let asked = attention.clone().d_bias(true);
    let refused = asked.backward(&d_out, &q, (&k, &v), &output).map(|_| ());
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .starts_with("d_bias is wanted")
    );
    let bias = tensor([2, 70, 1, 90], 0.1);
    let mut wrong = tensor([2, 70, 4, 90], 0.1);
    let into = GradientsInto::new().d_bias(&mut wrong);
    let of_keys = Keys::new(&k, &v).bias(&bias);
    let refused = attention.backward_into(&d_out, &q, of_keys, &output, into);
    assert_eq!(
        refused.map(|_| ()).unwrap_err().to_string(),
        "d_bias has heads 4, but bias has 1"
    );
}

/// `f32` cannot count rows beyond 2^24 one by one.
#[test]
fn distances_of_far_rows_are_exact() {
    let backend = Backend::cpu();
    let attention = Attention::new()
        .mask(Mask::window(2, 0))
        .alibi_slopes(&[1.0]);
    let dq = |keys: usize| {
        // Neighbours share all numbers but one; the last three keys are the same for each length.
        let layout = Layout::new([1, keys, 1, 8], [keys, 1, 8, 1]);
        let mut data = vec![0.0; layout.reach()];
        for (x, to) in numbers(10, 0.7).into_iter().zip(data.iter_mut().rev()) {
            *to = x;
        }
        let k = backend.tensor_with_layout(&data, layout).unwrap();
        let q = backend.tensor(&numbers(8, 0.3), [1, 1, 1, 8]).unwrap();
        let output = attention.forward(&q, (&k, &k)).unwrap();
        let mut dq = backend.tensor(&[f32::NAN; 8], [1, 1, 1, 8]).unwrap();
        let into = GradientsInto::new().dq(&mut dq);
        attention
            .backward_into(&q, &q, (&k, &k), &output, into)
            .unwrap();
        dq.to_vec().unwrap()
    };
    let (few, many) = (dq(3), dq((1 << 24) + 1));
    for (x, y) in few.iter().zip(&many) {
        assert!((x - y).abs() < 1e-5, "{few:?} {many:?}");
    }
}

#[test]
fn what_has_no_backward_pass_is_refused() {
    let backend = Backend::cpu();
    let refused = |head_dim: usize, attention: &Attention| {
        let shape = [1, 2, 1, head_dim];
        let tensor = backend.tensor(&vec![0.5_f32; 2 * head_dim], shape).unwrap();
        let output = attention.forward(&tensor, (&tensor, &tensor)).unwrap();
        let gradients = attention.backward(&tensor, &tensor, (&tensor, &tensor), &output);
        gradients.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        refused(512, &Attention::new()),
        "q has head size 512, but gradients have head sizes up to 256"
    );
    assert_eq!(
        refused(64, &Attention::new().without_lse()),
        "lse is missing in the output, but gradients need it: compute it with the output"
    );
    let layout = Layout::bshd([1, 2, 1, 8]);
    let refused = |call: CallBuilder<'_>| {
        let call = call.build().unwrap();
        Backward::builder(call)
            .build()
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let pages = Call::builder(&layout, &layout, &layout, ElementType::F16);
    assert_eq!(
        refused(pages.block_table(&[0], [1, 1])),
        "block_table is given, but keys and values in pages have no backward pass"
    );
    let types = Types::of(ElementType::F16).keys(ElementType::E4m3);
    let quantized = Call::builder(&layout, &layout, &layout, types)
        .count(Operand::KScale, 1)
        .count(Operand::VScale, 1);
    assert_eq!(
        refused(quantized),
        "k is quantized, but quantized keys and values have no backward pass"
    );
    let call = Call::builder(&layout, &layout, &layout, ElementType::F16)
        .build()
        .unwrap();
    let wrong = Backward::builder(call.clone()).layout(Operand::DK, Layout::bshd([1, 3, 1, 8]));
    assert_eq!(
        wrong.build().map(|_| ()).unwrap_err().to_string(),
        "dk has length 3, but k has 2"
    );
    let overlapping = Layout::new([1, 2, 1, 8], [0, 0, 0, 1]);
    let wrong = Backward::builder(call.clone()).layout(Operand::DQ, overlapping);
    assert!(
        wrong
            .build()
            .map(|_| ())
            .unwrap_err()
            .to_string()
            .starts_with("dq overlaps")
    );
    // A gradient that is the same for all rows is read as it is.
    Backward::builder(call)
        .layout(Operand::DOut, overlapping)
        .build()
        .unwrap();
}

#[test]
fn gradients_of_16_bits_may_be_written_as_f32() {
    let backend = Backend::cpu();
    let shape = [1, 9, 2, 16];
    let tensor = |factor: f32| {
        let values: Vec<bf16> = numbers(288, factor)
            .into_iter()
            .map(bf16::from_f32)
            .collect();
        backend.tensor(&values, shape).unwrap()
    };
    let (q, k, v, d_out) = (tensor(0.3), tensor(0.5), tensor(0.7), tensor(0.9));
    let attention = Attention::new();
    let output = attention.forward(&q, (&k, &v)).unwrap();
    let rounded = attention.backward(&d_out, &q, (&k, &v), &output).unwrap();
    let mut dq = backend.tensor(&[f32::NAN; 288], shape).unwrap();
    let into = GradientsInto::new().dq(&mut dq);
    attention
        .backward_into(&d_out, &q, (&k, &v), &output, into)
        .unwrap();
    let found: Vec<bf16> = dq
        .to_vec()
        .unwrap()
        .into_iter()
        .map(bf16::from_f32)
        .collect();
    assert_eq!(found, rounded.dq.to_vec().unwrap());
    let mut wrong = backend.tensor(&[f16::ZERO; 288], shape).unwrap();
    let into = GradientsInto::new().dq(&mut wrong);
    let error = attention
        .backward_into(&d_out, &q, (&k, &v), &output, into)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "dq has elements of type f16, but must have bf16"
    );
}
