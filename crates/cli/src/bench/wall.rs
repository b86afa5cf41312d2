//! Times by the wall clock: the CPU path.

use std::time::Instant;

use warptile::{Backend, Element};

use super::row::Method;
use super::{Timed, Timer};
use crate::case::Case;
use crate::inputs::{AnyInputs, Inputs, with_inputs};

/// Calls before the first that counts: they start the threads and touch the memory.
const WARM_UP: usize = 2;

pub(super) struct WallClock {
    backend: Backend,
    samples: usize,
}

impl WallClock {
    pub(super) fn new(backend: Backend, samples: usize) -> Self {
        WallClock { backend, samples }
    }

    fn time_typed<T: Element>(&self, case: &Case, inputs: &Inputs<T>) -> warptile::Result<Timed> {
        let attention = inputs.attention(&case.settings());
        let q = self.backend.tensor_with_layout(&inputs.q, inputs.q_layout)?;
        let k = self.backend.tensor_with_layout(&inputs.k, inputs.k_layout)?;
        let v = self.backend.tensor_with_layout(&inputs.v, inputs.v_layout)?;
        let call = || match &inputs.cu_seqlens {
            Some([cu_q, cu_k]) => attention.forward_packed(&q, &k, &v, cu_q, cu_k),
            None => attention.forward(&q, &k, &v),
        };
        let mut plan = call()?.plan;
        for _ in 1..WARM_UP {
            plan = call()?.plan;
        }
        let mut microseconds = Vec::with_capacity(self.samples);
        for _ in 0..self.samples {
            let start = Instant::now();
            let output = call()?;
            self.backend.synchronize()?;
            microseconds.push(start.elapsed().as_secs_f64() * 1e6);
            drop(output);
        }
        Ok(Timed {
            plan,
            times: vec![(Method::Wall, microseconds)],
        })
    }
}

impl Timer for WallClock {
    fn time(&mut self, case: &Case, inputs: &AnyInputs) -> warptile::Result<Timed> {
        with_inputs!(inputs, inputs => self.time_typed(case, inputs))
    }
}
