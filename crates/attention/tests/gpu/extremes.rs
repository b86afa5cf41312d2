//! Options at the ends of what they may be.

use half::bf16;
use warptile::plan::Choice;
use warptile::spec::Scoring;
use warptile::{Attention, Backend, Error, Mask};

use crate::harness::families;

/// `[1, rows, heads, 64]`, of a size that bf16 has powers of two around.
fn wave(rows: usize, heads: usize, step: f32, factor: f32) -> Vec<bf16> {
    let values = 0..rows * heads * 64;
    values
        .map(|i| bf16::from_f32(factor * (i as f32 * step).sin()))
        .collect()
}

/// Output and lse, or `None` if the family has no kernel for it.
fn computed(
    backend: &Backend,
    attention: &Attention,
    family: warptile::kernels::Family,
    [rows, keys]: [usize; 2],
    [q_factor, k_factor]: [f32; 2],
) -> Option<(Vec<f32>, Vec<f32>)> {
    let (heads, kv_heads) = (4, 2);
    let q = wave(rows, heads, 0.37, q_factor);
    let q = backend.tensor(&q, [1, rows, heads, 64]).unwrap();
    let [k, v] = [(0.61, k_factor), (0.23, 1.0)].map(|(step, factor)| {
        let values = wave(keys, kv_heads, step, factor);
        backend.tensor(&values, [1, keys, kv_heads, 64]).unwrap()
    });
    let attention = attention.clone().choice(Choice::Family(family));
    let result = match attention.forward(&q, (&k, &v)) {
        Ok(result) => result,
        Err(Error::NoKernel { .. }) => return None,
        Err(error) => panic!("{family}: {error}"),
    };
    let out = result.out.to_vec().unwrap();
    let lse = result.lse.unwrap().to_vec().unwrap();
    Some((out.iter().map(|x| x.to_f32()).collect(), lse))
}

fn bits((out, lse): &(Vec<f32>, Vec<f32>)) -> Vec<u32> {
    out.iter().chain(lse).map(|x| x.to_bits()).collect()
}

/// A few rows and many, so that kernels that share keys take part, and rows that see nothing.
const SIZES: [[usize; 2]; 4] = [[1, 3000], [7, 500], [300, 260], [200, 0]];

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_sink_of_minus_infinity_is_none() {
    let backend = Backend::cuda(0).unwrap();
    let mut wrong = Vec::new();
    for mask in [Mask::none(), Mask::causal()] {
        let plain = Attention::new().mask(mask);
        let none = plain.clone().sinks(&[f32::NEG_INFINITY; 4]);
        let mut ran = 0;
        for family in families() {
            for sizes in SIZES {
                let Some(without) = computed(&backend, &plain, family, sizes, [1.0; 2]) else {
                    continue;
                };
                let Some(with) = computed(&backend, &none, family, sizes, [1.0; 2]) else {
                    continue;
                };
                if bits(&with) != bits(&without) {
                    wrong.push(format!("{family}, {sizes:?}, {mask:?}"));
                }
                ran += 1;
            }
        }
        assert!(ran >= SIZES.len(), "{ran}");
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// A large scale with small queries and keys gives the same result as other scales.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_largest_scale_is_right() {
    // 2^-95 and 2^-30 of 2^125.
    let (q_factor, k_factor) = (2.0_f32.powi(-95), 2.0_f32.powi(-30));
    let backend = Backend::cuda(0).unwrap();
    let mut wrong = Vec::new();
    for sign in [1.0, -1.0] {
        for softcap in [None, Some(3.0)] {
            for mask in [Mask::none(), Mask::causal(), Mask::window(40, 3)] {
                let of = |scale: f32| {
                    let attention = Attention::new().mask(mask).scale(sign * scale);
                    match softcap {
                        Some(softcap) => attention.softcap(softcap),
                        None => attention,
                    }
                };
                for family in families() {
                    for sizes in SIZES {
                        let usual = computed(&backend, &of(1.0), family, sizes, [1.0; 2]);
                        let most = of(Scoring::MAX_SCALE);
                        let huge = computed(&backend, &most, family, sizes, [q_factor, k_factor]);
                        let (Some(usual), Some(huge)) = (usual, huge) else {
                            continue;
                        };
                        let near = |(a, b): (&f32, &f32)| a == b || (a - b).abs() < 0.02;
                        // Products beyond the bound of scores are some number all the same.
                        let (out, lse) =
                            computed(&backend, &most, family, sizes, [1.0; 2]).unwrap();
                        let right = [
                            usual.0.iter().zip(&huge.0).all(near),
                            usual.1.iter().zip(&huge.1).all(near),
                            out.iter().all(|x| x.is_finite()),
                            lse.iter().all(|x| !x.is_nan()),
                        ];
                        if right != [true; 4] {
                            let what =
                                format!("{family}, {sizes:?}, {mask:?}, {sign}, {softcap:?}");
                            wrong.push(format!("{what}: {right:?}"));
                        }
                    }
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}
