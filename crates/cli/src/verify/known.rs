//! Data and references of problems that are computed on one image after the other.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use warptile::Element;
use warptile_check::{Case, Expectation, Inputs};

/// Problems that are kept. Images of one kernel, and kernels of the same tiles, follow each other.
const KEPT: usize = 32;

/// The data of a problem, and what a right result is.
pub(super) struct Known<T> {
    pub(super) inputs: Inputs<T>,
    /// Once somebody has computed it.
    pub(super) expected: OnceLock<Expectation>,
}

/// A [`Known`] of some element type, once it has been made. Who needs it meanwhile waits.
type Slot = Arc<Mutex<Option<Arc<dyn Any + Send + Sync>>>>;

/// The problems made last, by what they are for any GPU.
#[derive(Debug, Default)]
pub(crate) struct KnownProblems(Mutex<VecDeque<(Case, Slot)>>);

impl KnownProblems {
    /// The value made for the problem before, or the one that `make` makes now.
    pub(super) fn of<T: Element>(
        &self,
        case: &Case,
        make: impl FnOnce() -> warptile_check::Result<Known<T>>,
    ) -> warptile_check::Result<Arc<Known<T>>> {
        let slot = self.slot(case);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let made = slot.clone().and_then(|made| made.downcast().ok());
        if let Some(made) = made {
            return Ok(made);
        }
        let made = Arc::new(make()?);
        *slot = Some(made.clone());
        Ok(made)
    }

    fn slot(&self, case: &Case) -> Slot {
        // Data does not depend on what the launch is planned for.
        let case = Case {
            multiprocessors: None,
            ..case.clone()
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, slot)) = kept.iter().find(|(known, _)| *known == case) {
            return slot.clone();
        }
        if kept.len() == KEPT {
            kept.pop_front();
        }
        let slot = Slot::default();
        kept.push_back((case, slot.clone()));
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_made_once_until_many_others_were() {
        let known = KnownProblems::default();
        let case = |seed| -> Case { format!("q3 k4 d8 f32 seed={seed}").parse().unwrap() };
        let made = Mutex::new(0);
        let make = |case: &Case| {
            known.of::<f32>(case, || {
                *made.lock().unwrap() += 1;
                let inputs = case.inputs::<f32>();
                let expected = OnceLock::new();
                Ok(Known { inputs, expected })
            })
        };
        let first = make(&case(0)).unwrap();
        let planned = Case {
            multiprocessors: Some(1),
            ..case(0)
        };
        assert!(Arc::ptr_eq(&first, &make(&planned).unwrap()));
        let other = make(&case(1)).unwrap();
        assert_ne!(first.inputs.q.data[20..30], other.inputs.q.data[20..30]);
        for seed in 2..=KEPT as u64 {
            make(&case(seed)).unwrap();
        }
        assert_eq!(*made.lock().unwrap(), KEPT + 1);
        make(&case(0)).unwrap();
        assert_eq!(*made.lock().unwrap(), KEPT + 2);
    }
}
