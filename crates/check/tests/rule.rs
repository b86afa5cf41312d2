//! The acceptance rule on results of the CPU path: right ones pass, planted errors do not.

use half::{bf16, f16};
use quickcheck::{Arbitrary, Gen, QuickCheck, TestResult};
use warptile::cpu::forward_cpu;
use warptile::spec::Operand;
use warptile::{Diagonal, Element, ElementType, Mask};
use warptile_check::{Case, Failure, Inputs, Lengths, ResultBuffers, Used, reference};

/// Computes `case` from the data of another case of the same shape.
fn run<T: Element>(case: &Case, inputs: &Inputs<T>) -> ResultBuffers<T> {
    let mut result = case.result::<T>();
    forward_cpu(&case.call(), &inputs.host(), result.host()).unwrap();
    result
}

fn case(text: &str) -> Case {
    text.parse().unwrap()
}

/// Eight outputs have next to no natural error in one problem out of thirty. All right results pass, and still no wrong
/// one does.
#[test]
fn small_problems_have_a_floor_but_no_loophole() {
    for seed in 0..1500 {
        let case = case(&format!("b1 q1 k8 h1 d8 f32 seed={seed}"));
        let inputs = case.inputs::<f32>();
        let expected = case.expectation(&inputs).unwrap();
        let report = case.check_against(&expected, &run(&case, &inputs));
        assert!(report.is_ok(), "{case}: {report:?}");

        let short = Case {
            lengths: Lengths::Dense {
                batch: 1,
                query: 1,
                key: 7,
            },
            ..case.clone()
        };
        let mut fewer = inputs.clone();
        fewer.k.layout = *short.call().k();
        fewer.v.layout = *short.call().v();
        let dropped = run(&short, &fewer);
        let mut off = case.clone();
        off.scoring.scale = Some(case.call().scale() * 1.001);
        let scaled = run(&off, &inputs);
        for wrong in [dropped, scaled] {
            let judged = case.check_against(&expected, &wrong);
            let Err(Failure::Wrong { out, .. }) = judged else {
                panic!("{case}: {judged:?}");
            };
            assert!(!out.passed, "{case}: {out}");
        }
    }
}

/// Right results pass in the narrow types too, and for scores so large that `f32` itself loses digits.
#[test]
fn right_results_of_small_problems_pass_in_every_type() {
    fn all_pass<T: Element>(text: &str) {
        for seed in 0..300 {
            let case = case(&format!("{text} {} seed={seed}", T::TYPE));
            let inputs = case.inputs::<T>();
            let report = case.check(&inputs, &run(&case, &inputs));
            assert!(report.is_ok(), "{case}: {report:?}");
        }
    }
    for text in [
        "b1 q1 k2 h1 d8",
        "b1 q1 k2 h1 d256 scale=1",
        "b1 q1 k64 h1 d64",
        "b1 q1 k8 h1 d8 softcap=50",
        "b1 q2 k9 h2 d16 alibi=head mask=causal",
        "b1 q2 k9 h2 d16 sinks bias keymask",
    ] {
        all_pass::<f32>(text);
        all_pass::<f16>(text);
        all_pass::<bf16>(text);
    }
}

#[derive(Debug, Clone)]
struct Any(Case);

impl Arbitrary for Any {
    fn arbitrary(source: &mut Gen) -> Self {
        Any(Case::random(u64::arbitrary(source), 60))
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(self.0.shrink().into_iter().map(Any))
    }
}

/// An lse that is off by 0.005 on every row is wrong, regardless of the element type.
#[test]
fn a_wrong_lse_is_caught() {
    fn caught<T: Element>(case: &Case) -> TestResult {
        let inputs = case.inputs::<T>();
        let mut result = run(case, &inputs);
        // Poison stays NaN, and -inf stays -inf.
        result.lse.iter_mut().for_each(|x| *x += 0.005);
        if !result.lse.iter().any(|x| x.is_finite()) {
            return TestResult::discard();
        }
        match case.check(&inputs, &result) {
            Err(Failure::Wrong { out, lse }) => {
                TestResult::from_bool(out.passed && !lse.passed && lse.max_error > 0.004)
            }
            other => TestResult::error(format!("{case}: {other:?}")),
        }
    }
    fn property(case: Any) -> TestResult {
        match case.0.element {
            ElementType::F16 => caught::<f16>(&case.0),
            ElementType::Bf16 => caught::<bf16>(&case.0),
            _ => caught::<f32>(&case.0),
        }
    }
    QuickCheck::new()
        .tests(200)
        .quickcheck(property as fn(Any) -> TestResult);
}

/// Mistakes that kernels make. Each must fail wherever it changes the exact result by more than a thousandth, or in 16 bits by more than
/// the plain computation may lose.
#[test]
fn planted_mistakes_are_caught() {
    type Mistake = (&'static str, fn(&mut Case));
    const MISTAKES: [Mistake; 12] = [
        ("scale off by a thousandth", |case| {
            case.scoring.scale = Some(case.call().scale() * 1.001);
        }),
        ("sign of the scale", |case| {
            case.scoring.scale = Some(-case.call().scale());
        }),
        ("no softcap", |case| case.scoring.softcap = None),
        ("no ALiBi", |case| case.scoring.alibi = None),
        ("no sinks", |case| drop_operand(case, Operand::Sinks)),
        ("no bias", |case| drop_operand(case, Operand::Bias)),
        ("no key mask", |case| drop_operand(case, Operand::KeyMask)),
        ("no mask", |case| case.scoring.mask = Mask::none()),
        ("mask aligned top-left", |case| {
            if case.scoring.mask == Mask::causal() {
                case.scoring.mask.diagonal = Diagonal::TopLeft;
            }
        }),
        ("diagonal off by one", |case| {
            if let Diagonal::At(offset) = &mut case.scoring.mask.diagonal {
                *offset += 1;
            }
        }),
        ("one key more than the mask shows", |case| {
            let right = &mut case.scoring.mask.right;
            *right = right.map(|keys| keys + 1);
        }),
        ("one used key less", |case| {
            // For keys in pages it would change the number of pages.
            if case.pages.is_none()
                && let Used::Each(used) = &mut case.used
            {
                for used in used {
                    used.1 = used.1.saturating_sub(1);
                }
            }
        }),
    ];
    fn drop_operand(case: &mut Case, operand: Operand) {
        let options = &mut case.scoring.operands;
        *options = *options - operand.feature();
    }
    fn caught<T: Element>(case: &Case, mistake: usize) -> TestResult {
        let (name, plant) = MISTAKES[mistake % MISTAKES.len()];
        let mut wrong = case.clone();
        plant(&mut wrong);
        if wrong == *case {
            return TestResult::discard();
        }
        let inputs = case.inputs::<T>();
        let mut wrong_inputs = inputs.clone();
        for operand in Operand::of_scores().filter(|&operand| !wrong.scoring.has(operand)) {
            wrong_inputs.others[operand] = None;
        }
        let expected = case.expectation(&inputs).unwrap();
        let unexpected = reference(&wrong.call(), &wrong_inputs.host()).unwrap();
        let least = match T::TYPE {
            ElementType::F32 => 1e-3,
            ElementType::F16 => 0.1,
            _ => 0.5,
        };
        let mut pairs = expected.out().iter().zip(&unexpected.out);
        if pairs.all(|(a, b)| (a - b).abs() < least) {
            return TestResult::discard();
        }
        match case.check_against(&expected, &run(&wrong, &wrong_inputs)) {
            Err(Failure::Wrong { out, .. }) if !out.passed => TestResult::passed(),
            other => TestResult::error(format!("{name}: {case}: {other:?}")),
        }
    }
    fn property(case: Any, mistake: usize) -> TestResult {
        match case.0.element {
            ElementType::F16 => caught::<f16>(&case.0, mistake),
            ElementType::Bf16 => caught::<bf16>(&case.0, mistake),
            _ => caught::<f32>(&case.0, mistake),
        }
    }
    QuickCheck::new()
        .tests(150)
        .max_tests(5_000)
        .min_tests_passed(150)
        .quickcheck(property as fn(Any, usize) -> TestResult);
}

/// A plain computation that rounds distances to 16 bits knows the score of a key that is 560 away to 2 or 4. With one such row in a
/// problem, a result of zeros would pass.
#[test]
fn distances_leave_bounds_that_say_something() {
    fn small<T: Element>(text: &str) {
        let case = case(&format!("b1 q600 k40 h2 d64 {} alibi=head {text}", T::TYPE));
        let largest = |numbers: &[f64]| numbers.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
        let expected = case.expectation(&case.inputs::<T>()).unwrap();
        let (bound, size) = (
            expected.out_bounds().fold(0.0, f64::max),
            largest(expected.out()),
        );
        assert!(bound < 0.06 * size, "{case}: {bound} of {size}");
        let expected = case.backward::<T>().unwrap().expectation().unwrap();
        for gradient in [Operand::DQ, Operand::DK, Operand::DV] {
            let [bound, rms] = expected.bounds(gradient);
            let gradients = expected.gradient(gradient);
            let size = largest(gradients);
            let squares: f64 = gradients.iter().map(|x| x * x).sum();
            let mean = (squares / gradients.len() as f64).sqrt();
            assert!(
                bound < 0.06 * size,
                "{case}: {gradient:?} {bound} of {size}"
            );
            assert!(rms < 0.06 * mean, "{case}: {gradient:?} {rms} of {mean}");
        }
    }
    for text in ["", "mask=causal diagonal=top-left", "softcap=15"] {
        small::<bf16>(text);
        small::<f16>(text);
    }
}

/// A row that sees no key has zeros and nothing else, whatever the error of others may be.
#[test]
fn rows_that_see_no_key_are_exact() {
    for text in ["mask=causal", "mask=causal sinks"] {
        let case = case(&format!("b1 q9 k3 h1 d8 bf16 {text}"));
        let inputs = case.inputs::<bf16>();
        let mut result = run(&case, &inputs);
        let expected = case.expectation(&inputs).unwrap();
        assert!(case.check_against(&expected, &result).is_ok());
        let first = result.out.iter().position(|x| !x.is_nan()).unwrap();
        result.out[first + 5] = bf16::from_f32(1e-6);
        let judged = case.check_against(&expected, &result);
        assert!(matches!(judged, Err(Failure::Wrong { .. })), "{judged:?}");
    }
}

/// One element that is off by a thousandth, somewhere.
#[test]
fn one_wrong_element_is_caught() {
    for seed in 0..200 {
        let case = Case {
            element: ElementType::F32,
            ..Case::random(seed, 60)
        };
        let inputs = case.inputs::<f32>();
        let mut result = run(&case, &inputs);
        let written: Vec<usize> = (0..result.out.len())
            .filter(|&index| !result.out[index].is_nan())
            .collect();
        let Some(&index) = written.get(seed as usize * 7919 % written.len().max(1)) else {
            continue;
        };
        result.out[index] += 1e-3;
        let judged = case.check(&inputs, &result);
        let Err(Failure::Wrong { out, .. }) = judged else {
            panic!("{case}: {judged:?}");
        };
        assert!((out.max_error - 1e-3).abs() < 1e-4 && out.worst.error == out.max_error);
    }
}
