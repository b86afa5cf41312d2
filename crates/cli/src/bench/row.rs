//! Speeds of one measurement.

use warptile::plan::Plan;
use warptile::spec::{Call, Scoring};
use warptile_check::Case;

use super::record::OURS;
pub(crate) use super::record::Row;
use crate::machine::Machine;
use crate::operation::Operation;

/// Up to this many operations for each byte of keys and values, reading them is what takes the time: GPUs of today compute
/// several times as many while they read a byte.
const OPERATIONS_PER_BYTE: u128 = 64;

/// Bytes of the keys and values that the mask shows some query: what every kernel has to read, unless there are lists of blocks.
pub(crate) fn kv_bytes(case: &Case, call: &Call) -> u64 {
    let mask = call.mask();
    let seen = |(queries, keys): (usize, usize)| match queries {
        0 => 0,
        _ => {
            let first = mask.visible(0, queries, keys).start;
            let end = mask.visible(queries - 1, queries, keys).end;
            end.saturating_sub(first) as u64
        }
    };
    let keys: u64 = case.used_lengths().into_iter().map(seen).sum();
    let heads = call.heads();
    let entry = heads.key_value * heads.key_value_elements() * call.types().k.size();
    keys * entry as u64
}

/// Returns true if there are so few queries for the keys that attention takes what reading the keys and values takes. With lists of blocks
/// it is not known how many are read.
pub(crate) fn is_reading(case: &Case, call: &Call) -> bool {
    !case.backward
        && call.blocks().is_none()
        && call.query_len() < call.key_len()
        && call.flops() <= OPERATIONS_PER_BYTE * u128::from(kv_bytes(case, call))
}

/// Times the median that the 90th percentile of a quiet device is far below.
pub(crate) const NOISE: f64 = 10.0;

/// A list of times.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Samples {
    /// Microseconds, ascending, at least one.
    sorted: Vec<f64>,
}

impl Samples {
    /// `None` if there are no times.
    pub(crate) fn new(mut microseconds: Vec<f64>) -> Option<Self> {
        microseconds.sort_by(f64::total_cmp);
        (!microseconds.is_empty()).then_some(Samples {
            sorted: microseconds,
        })
    }

    /// The time that a share of all others don't exceed, by the nearest rank.
    fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.sorted.len() as f64).ceil() as usize;
        self.sorted[rank.clamp(1, self.sorted.len()) - 1]
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(crate) fn median(&self) -> f64 {
        let middle = self.sorted.len() / 2;
        if self.sorted.len() % 2 == 1 {
            self.sorted[middle]
        } else {
            f64::midpoint(self.sorted[middle - 1], self.sorted[middle])
        }
    }

    pub(crate) fn p90(&self) -> f64 {
        self.quantile(0.9)
    }
}

/// How a time was taken; [`Row::method`] says more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Graph,
    Call,
    Wall,
}

impl Method {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Graph => "graph",
            Method::Call => "call",
            Method::Wall => "wall",
        }
    }
}

impl Row {
    /// Returns true if something else was using the device during the measurement.
    pub(crate) fn is_noisy(&self) -> bool {
        self.p90_us >= NOISE * self.median_us
    }

    pub(crate) fn new<O: Operation>(
        text: &str,
        case: &Case,
        operation: &O,
        plan: &Plan<O::Problem>,
        method: Method,
        samples: &Samples,
        machine: &Machine,
    ) -> Self {
        let (image, call) = (plan.image(), operation.call());
        let median_us = samples.median();
        let kv_bytes = kv_bytes(case, call);
        Row {
            backend: OURS.to_owned(),
            family: image.map_or("cpu".to_owned(), |image| image.family.to_string()),
            kernel: plan.kernel_name().to_owned(),
            sha256: image.map(|image| image.sha256.to_owned()),
            other_images: { plan.steps().iter() }
                .filter(|step| image.is_some_and(|image| image.name != step.image.name))
                .map(|step| step.image.sha256.to_owned())
                .collect(),
            problem: text.to_owned(),
            batch: call.batch(),
            heads: call.heads(),
            query_len: call.query_len(),
            key_len: call.key_len(),
            element: call.element().to_string(),
            mask: mask_text(call),
            method: method.name().to_owned(),
            samples: samples.sorted.len(),
            median_us,
            p90_us: samples.p90(),
            tflops: operation.flops() as f64 / median_us * 1e-6,
            kv_bytes,
            tb_s: kv_bytes as f64 / median_us * 1e-6,
            min_us: None,
            read_us: None,
            leaves_out: None,
            error_rms: None,
            device: machine.device.clone(),
            driver: machine.driver.clone(),
            program: Some(machine.program.to_owned()),
            date: machine.date.clone(),
            versions: Default::default(),
            commit: None,
        }
    }

    /// Returns true if reading keys and values takes the time: then their speed says more than that of operations.
    pub(crate) fn is_reading(&self) -> bool {
        let case = self.problem.parse::<Case>().ok();
        let call = case.and_then(|case| Some((case.try_call().ok()?, case)));
        call.is_some_and(|(call, case)| is_reading(&case, &call))
    }
}

/// A mask in one word, as a problem on the command line has it.
fn mask_text(call: &Call) -> String {
    let text = Scoring::new().mask(call.mask()).to_string();
    match text.strip_prefix("mask=") {
        Some(mask) => mask.to_owned(),
        None => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine;
    use warptile::Backend;

    #[test]
    fn what_no_query_sees_need_not_be_read() {
        let bytes = |text: &str| {
            let case: Case = text.parse().unwrap();
            let call = case.call();
            (kv_bytes(&case, &call), is_reading(&case, &call))
        };
        // Keys and values of 8 heads of 64 entries of 2 bytes.
        let row = 2 * 8 * 64 * 2;
        assert_eq!(bytes("b2 q1 k1000 h8 d64 f16"), (2 * 1000 * row, true));
        assert_eq!(
            bytes("b2 q4 k1000 h64/8 d64 f16 mask=causal").0,
            2 * 1000 * row
        );
        assert_eq!(
            bytes("b3 q1 k1000 h64/8 d64 f16 mask=window,127,0"),
            (3 * 128 * row, true)
        );
        let ragged = "q1 h8 d64 f16 pages=16 lengths=40,0,7";
        assert_eq!(bytes(ragged), (47 * row, true));
        assert_eq!(
            bytes("q512 k8192 h32/8 d64 f16 mask=causal"),
            (8192 * row, false)
        );
        assert!(!bytes("q8 k8 h8 d64 f16").1);
        assert!(!bytes("q1 k1000 h8 d64 f16 backward").1);
        assert!(!bytes("q64 k65536 h8 d64 f16 blocks=64x64,4").1);
        assert_eq!(bytes("q0 k8 h8 d64 f16").0, 0);
    }

    #[test]
    fn a_measurement_is_noisy_if_its_p90_is_ten_times_the_median() {
        let case: Case = "q8 d8".parse().unwrap();
        let call = case.call();
        let (plan, machine) = (
            Plan::cpu(call.problem()),
            machine::describe(&Backend::cpu()),
        );
        let is_noisy = |times: [f64; 5]| {
            let samples = Samples::new(times.to_vec()).unwrap();
            Row::new("", &case, &call, &plan, Method::Wall, &samples, &machine).is_noisy()
        };
        assert!(is_noisy([1.0, 1.0, 1.0, 9.0, 10.0]));
        assert!(!is_noisy([1.0, 1.0, 1.0, 9.0, 9.9]));
    }

    #[test]
    fn median_and_p90() {
        let samples = |times: &[f64]| Samples::new(times.to_vec()).unwrap();
        assert_eq!(samples(&[3.0]).median(), 3.0);
        assert_eq!(samples(&[3.0]).p90(), 3.0);
        assert_eq!(samples(&[4.0, 1.0]).median(), 2.5);
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(samples(&hundred).median(), 50.5);
        assert_eq!(samples(&hundred).p90(), 90.0);
        assert_eq!(Samples::new(Vec::new()), None);
    }
}
