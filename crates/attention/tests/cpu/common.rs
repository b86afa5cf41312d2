//! Code that the test programs share: running a case, and quickcheck over cases.

use half::{bf16, f16};
use quickcheck::{Arbitrary, Gen};
use warptile::cpu::forward_cpu;
use warptile::{Element, ElementType};
use warptile_check::{Case, Failure, Inputs, Report, ResultBuffers};

/// A [`Case`] that quickcheck draws and shrinks.
#[derive(Clone)]
pub(crate) struct Any(pub(crate) Case);

impl Arbitrary for Any {
    fn arbitrary(g: &mut Gen) -> Self {
        Any(Case::random(u64::arbitrary(g), 4 * g.size())
            .with_dropout()
            .with_blocks())
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(self.0.shrink().into_iter().map(Any))
    }
}

impl std::fmt::Debug for Any {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// Runs a case on the CPU path into poisoned buffers.
pub(crate) fn run<T: Element>(case: &Case) -> (Inputs<T>, ResultBuffers<T>) {
    let inputs = case.inputs::<T>();
    let mut result = case.result::<T>();
    forward_cpu(&case.call(), &inputs.host(), result.host()).unwrap();
    (inputs, result)
}

/// Runs a case on the CPU path and holds the result against the reference.
pub(crate) fn verify(case: &Case) -> Result<Report, Failure> {
    fn typed<T: Element>(case: &Case) -> Result<Report, Failure> {
        let (inputs, result) = run::<T>(case);
        case.check(&inputs, &result)
    }
    match case.element {
        ElementType::F16 => typed::<f16>(case),
        ElementType::Bf16 => typed::<bf16>(case),
        _ => typed::<f32>(case),
    }
}

/// [`verify`] for a case in text form; panics on a failure.
pub(crate) fn verify_text(text: &str) {
    let case: Case = text.parse().unwrap();
    if let Err(failure) = verify(&case) {
        panic!("{case}: {failure}");
    }
}
