//! Random cases that look for trouble.

use warptile::{Align, ElementType, Mask};

use crate::case::{Case, Lengths, Slopes, Storage, Values};
use crate::random::Random;

/// A kernel cases can be made for, in one element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelChoice {
    /// `None`: whatever the planner chooses.
    pub(crate) name: Option<&'static str>,
    pub(crate) element: ElementType,
    /// Largest head size the kernel takes.
    pub(crate) head_dim: usize,
}

/// (query, key) lengths at which published attention kernels have failed: around tile borders, one row, long thin ones.
const HARD_LENGTHS: [(usize, usize); 13] = [
    (1, 1),
    (1, 339),
    (3, 799),
    (16, 2000),
    (108, 256),
    (113, 203),
    (128, 217),
    (239, 1),
    (640, 128),
    (799, 3),
    (1023, 1024),
    (1024, 1023),
    (512, 512),
];

const HEADS: [(usize, usize); 7] = [(1, 1), (2, 2), (6, 6), (6, 2), (4, 1), (8, 1), (32, 8)];

/// Most multiplications the score matrix of one case may take: keeps the naive reference to a fraction of a second.
const MAX_WORK: usize = 1 << 27;

/// A case for one of `kernels`, which is not empty.
pub(crate) fn random_case(random: &mut Random, kernels: &[KernelChoice]) -> Case {
    let kernel = random.choose(kernels);
    let head_dim = if random.one_in(2) {
        kernel.head_dim
    } else {
        8 * (1 + random.below(kernel.head_dim / 8))
    };
    let (heads, kv_heads) = random.choose(&HEADS);
    let budget = (MAX_WORK / (heads * head_dim)).max(1);
    let lengths = if random.one_in(4) {
        packed(random, budget)
    } else {
        dense(random, budget)
    };
    Case {
        lengths,
        heads,
        kv_heads,
        head_dim,
        element: kernel.element,
        mask: mask(random),
        scale: random.one_in(6).then(|| {
            let scale = random.unit() as f32;
            if random.one_in(3) { -scale } else { scale }
        }),
        softcap: random
            .one_in(5)
            .then(|| random.choose(&[1.0, 15.0, 50.0])),
        slopes: random.choose(&[
            Slopes::None,
            Slopes::None,
            Slopes::None,
            Slopes::None,
            Slopes::PerHead,
            Slopes::PerBatchHead,
        ]),
        values: if random.one_in(5) {
            Values::Large
        } else {
            Values::Normal
        },
        layout: random.choose(&Storage::ALL),
        seed: random.next(),
        kernel: kernel.name.map(str::to_owned),
    }
}

fn length(random: &mut Random) -> usize {
    if random.one_in(20) {
        0
    } else {
        random.magnitude(1500)
    }
}

/// (query, key) with at most `budget` pairs.
fn pair(random: &mut Random, budget: usize) -> (usize, usize) {
    let (query, key) = if random.one_in(4) {
        random.choose(&HARD_LENGTHS)
    } else if random.one_in(3) {
        let both = length(random);
        (both, both)
    } else {
        (length(random), length(random))
    };
    if query * key <= budget {
        (query, key)
    } else {
        let fits = (budget as f64).sqrt() as usize;
        (query.min(fits), key.min(fits))
    }
}

fn dense(random: &mut Random, budget: usize) -> Lengths {
    let (query, key) = pair(random, budget);
    let affordable = budget / (query * key).max(1);
    let batch = if random.one_in(30) {
        0
    } else {
        random.magnitude(5).min(affordable).max(1)
    };
    Lengths::Dense { batch, query, key }
}

fn packed(random: &mut Random, budget: usize) -> Lengths {
    let count = random.below(7);
    Lengths::Packed(
        (0..count)
            .map(|_| pair(random, budget / count))
            .collect(),
    )
}

fn mask(random: &mut Random) -> Mask {
    let mut side = |random: &mut Random| {
        (!random.one_in(4)).then(|| random.magnitude(300) as u32 - 1)
    };
    match random.below(8) {
        0..=2 => Mask::none(),
        3 | 4 => Mask::causal(),
        5 => Mask::Causal {
            align: Align::TopLeft,
        },
        _ => Mask::window(side(random), side(random)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICES: [KernelChoice; 2] = [
        KernelChoice {
            name: None,
            element: ElementType::F32,
            head_dim: 256,
        },
        KernelChoice {
            name: Some("scalar_d64_32x64_w4_s2"),
            element: ElementType::F16,
            head_dim: 64,
        },
    ];

    #[test]
    fn cases_read_back_what_they_print() {
        let mut random = Random::new(1);
        for _ in 0..2_000 {
            let case = random_case(&mut random, &CHOICES);
            assert_eq!(case.to_string().parse(), Ok(case));
        }
    }

    #[test]
    fn cases_are_small_varied_and_within_the_rules() {
        let mut random = Random::new(2);
        let cases: Vec<Case> = (0..2_000)
            .map(|_| random_case(&mut random, &CHOICES))
            .collect();
        for case in &cases {
            let pairs: usize = match &case.lengths {
                Lengths::Dense { batch, query, key } => batch * query * key,
                Lengths::Packed(sequences) => sequences.iter().map(|(q, k)| q * k).sum(),
            };
            assert!(pairs * case.heads * case.head_dim <= MAX_WORK, "{case}");
            assert!(case.head_dim % 8 == 0 && case.head_dim <= 256, "{case}");
            assert!(case.kernel.is_none() || case.head_dim <= 64, "{case}");
        }
        let some = |wanted: &dyn Fn(&Case) -> bool| cases.iter().any(wanted);
        assert!(some(&|case| case.batch() == 0));
        assert!(some(&|case| case.rows().0 == 0 && case.batch() > 0));
        assert!(some(&|case| case.rows().1 == 0 && case.batch() > 0));
        assert!(some(&|case| case.rows() == (1023, 1024)));
        assert!(some(&|case| matches!(case.mask, Mask::Window { left: None, .. })));
        assert!(some(&|case| case.softcap.is_some() && case.slopes != Slopes::None));
        assert!(some(&|case| matches!(&case.lengths, Lengths::Packed(s) if s.len() > 3)));
        assert!(some(&|case| case.scale.is_some_and(|scale| scale < 0.0)));
        for layout in Storage::ALL {
            assert!(some(&|case| case.layout == layout));
        }
    }
}
