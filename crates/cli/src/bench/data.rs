//! Normally distributed inputs of any size, made quickly.

use warptile::{Element, Layout, Problem};

use crate::cases::Case;

/// Inputs of one call in host memory.
pub(super) struct Data<T> {
    pub(super) q: Vec<T>,
    pub(super) k: Vec<T>,
    pub(super) v: Vec<T>,
    pub(super) slopes: Option<Vec<f32>>,
}

/// Random rows of 64 that all tensors are made of.
const ROWS: usize = 1 << 14;

/// Elements of these rows that are left out, so that no row of a tensor equals an earlier one at the same offset: kernels
/// don't mind, but caches and compressed memory might.
const LEFT_OUT: usize = 7;

impl<T: Element> Data<T> {
    pub(super) fn new(problem: &Problem, seed: u64) -> Self {
        let rows = Case {
            element: T::TYPE,
            seed,
            ..Case::new(ROWS, 1, 64)
        };
        let inputs = rows.inputs::<T>();
        let random = &inputs.q.view().data[..ROWS * 64 - LEFT_OUT];
        let tensor = |layout: &Layout, skip: usize| {
            let len = layout.required_len().unwrap_or(0);
            random
                .iter()
                .copied()
                .cycle()
                .skip(skip)
                .take(len)
                .collect()
        };
        Data {
            q: tensor(problem.q(), 0),
            k: tensor(problem.k(), random.len() / 3),
            v: tensor(problem.v(), random.len() / 2),
            slopes: problem.alibi().map(|_| {
                (0..problem.alibi_len())
                    .map(|head| 0.5 / (1 + head) as f32)
                    .collect()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_reach_as_far_as_their_layouts_and_are_normal() {
        let case: Case = "b3 q700 k500 h8/2 d128 f32 alibi=batch".parse().unwrap();
        let problem = case.problem();
        let data = Data::<f32>::new(&problem, 1);
        assert_eq!(data.q.len(), 3 * 700 * 8 * 128);
        assert_eq!(
            (data.k.len(), data.v.len()),
            (3 * 500 * 2 * 128, 3 * 500 * 2 * 128)
        );
        assert!(problem.check_alibi(data.slopes.as_deref()).is_ok());
        let mean = data.q.iter().sum::<f32>() / data.q.len() as f32;
        let square = data.q.iter().map(|x| x * x).sum::<f32>() / data.q.len() as f32;
        assert!(
            mean.abs() < 0.01 && (square - 1.0).abs() < 0.01,
            "{mean} {square}"
        );
        assert_ne!(data.k[..1000], data.v[..1000]);
    }
}
