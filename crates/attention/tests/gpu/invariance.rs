//! Batch invariance: with keys cut at fixed places, a query's bits are the same in every batch.

use half::{bf16, f16};
use warptile::kernels::Family;
use warptile::spec::Heads;
use warptile::{Attention, Backend, Element, Mask, Splits};
use warptile_check::Case;

use crate::compositions::{Compositions, Model};
use crate::draw::Random;
use crate::harness::{Images, passes, side_by_side};
use crate::neighbours;

/// Number of compositions for all models together, and the parts that a model's are computed in, each with numbers of its own.
const COMPOSITIONS: usize = 10_000;
const PARTS: u64 = 2;

/// The distribution of a model's compositions.
struct Setup {
    heads: Heads,
    longest_queries: usize,
    longest_keys: usize,
    causal: bool,
    has_bias: bool,
    has_key_mask: bool,
    keys_per_split: u32,
}

fn check<T: Element>(setup: &Setup, attention: &Attention, part: u64, compositions: usize) {
    let model = Model {
        heads: setup.heads,
        attention: attention
            .clone()
            .splits(Splits::EveryKeys(setup.keys_per_split)),
        causal: setup.causal,
        has_bias: setup.has_bias,
        has_key_mask: setup.has_key_mask,
        longest_queries: setup.longest_queries,
        longest_keys: setup.longest_keys,
    };
    let seed = u64::from(setup.keys_per_split) + setup.heads.dim as u64 + 10_000 * part;
    let mut all = Compositions::<T>::new(model, &Backend::cuda(0).unwrap(), seed);
    for _ in 0..compositions {
        all.check_one();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_sequence_has_the_same_bits_in_every_composition() {
    let setup = |[heads, kv_heads]: [usize; 2], head_dim, longest_keys, keys_per_split| Setup {
        heads: Heads::new(heads, head_dim).key_value(kv_heads),
        longest_queries: 64,
        longest_keys,
        causal: true,
        has_bias: false,
        has_key_mask: false,
        keys_per_split,
    };
    let causal = || Attention::new().mask(Mask::causal());
    let sinks: Vec<f32> = (0..8).map(|head| head as f32 / 2.0 - 2.0).collect();
    let slopes: Vec<f32> = (1..=8).map(|head| 0.5_f32.powi(head)).collect();
    // A window over so many splits that a warp adds up several, whichever of them is the first that a prompt or a chunk of it sees.
    let wide = Attention::new().mask(Mask::window(6000, 0)).sinks(&sinks);
    let of_wide = Setup {
        longest_queries: 400,
        ..setup([8, 2], 128, 12_000, 256)
    };
    let narrow = Attention::new().mask(Mask::window(127, 0));
    let narrow = narrow.alibi_slopes(&slopes);
    let unmasked = Setup {
        causal: false,
        ..setup([3, 3], 72, 4000, 1024)
    };
    let biased = Setup {
        has_bias: true,
        ..setup([8, 2], 64, 2000, 256)
    };
    let masked = Setup {
        has_key_mask: true,
        ..setup([4, 2], 128, 3000, 512)
    };
    type Check = fn(&Setup, &Attention, u64, usize);
    let models: [(Check, Setup, Attention); 8] = [
        (check::<f16>, of_wide, wide.softcap(20.0)),
        (check::<bf16>, setup([32, 8], 128, 3000, 512), causal()),
        (check::<f16>, setup([4, 2], 256, 6000, 256), causal()),
        (check::<f16>, setup([8, 2], 64, 3000, 256), causal()),
        (check::<bf16>, setup([8, 1], 64, 2000, 256), narrow),
        (check::<bf16>, unmasked, Attention::new().scale(-0.2)),
        (check::<f16>, biased, causal()),
        (check::<bf16>, masked, causal().softcap(20.0)),
    ];
    let each = COMPOSITIONS.div_ceil(models.len() * PARTS as usize);
    let parts = { models.iter() }.flat_map(|model| (0..PARTS).map(move |part| (model, part)));
    let compositions = each * parts.clone().count();
    side_by_side(parts, |((check, setup, attention), part)| {
        check(setup, attention, part, each);
    });
    println!("{compositions} compositions, no bit differs");
}

/// What the sequences behind one in a packed batch have, however large or not a number, changes none of its bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn outputs_do_not_depend_on_neighbours_values() {
    let backend = Backend::cuda(0).unwrap();
    let slopes: Vec<f32> = (1..=4).map(|head| 0.5_f32.powi(head)).collect();
    let options = [
        Attention::new(),
        Attention::new().softcap(30.0),
        Attention::new().softcap(5.0).mask(Mask::causal()),
        Attention::new().alibi_slopes(&slopes),
    ];
    side_by_side(0..60, |seed| {
        let mut random = Random(seed);
        let heads = Heads::new(4, [64, 96, 128, 192, 256][random.within(0, 4)]).key_value(2);
        let lengths = [random.within(1, 900), random.within(1, 300)];
        let attention = &options[random.within(0, options.len() - 1)];
        // Scores of the larger numbers make weights grow between maxima.
        let own = [1.0, 4.0][random.within(0, 1)];
        println!(
            "lengths {lengths:?}, head size {}, numbers up to {own}: {attention:?}",
            heads.dim
        );
        neighbours::check_outputs::<bf16>(&backend, attention, heads, lengths, own, seed);
        neighbours::check_outputs::<f16>(&backend, attention, heads, lengths, own, seed);
    });
}

/// Those of one pass, and those of two.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gradients_do_not_depend_on_neighbours() {
    let backend = Backend::cuda(0).unwrap();
    let splits = Splits::EveryKeys(1024);
    side_by_side(0..40, |seed| {
        let heads = |dim| Heads::new(8, dim).key_value(2);
        let causal = Attention::new().mask(Mask::causal()).splits(splits);
        let window = Attention::new().mask(Mask::window(100, 0)).splits(splits);
        let softcap = Attention::new().softcap(5.0).splits(splits);
        neighbours::check::<bf16>(&backend, &causal, heads(64), 900, seed);
        neighbours::check::<f16>(&backend, &window, heads(128), 900, seed);
        neighbours::check::<bf16>(&backend, &softcap, heads(128), 500, seed);
        neighbours::check::<f16>(&backend, &causal, heads(256), 500, seed);
    });
}

/// They are also right.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_problems_with_splits_pass() {
    const PARTS: u64 = 6;
    const COUNT: usize = 300 / PARTS as usize;
    side_by_side(0..PARTS, |part| {
        let mut ran = 0;
        for turn in 0..20 * COUNT as u64 {
            let case = Case::random(turn * PARTS + part, 3000).with_splits();
            match passes(&case, Images::Family(Family::Decode)) {
                Ok(taken) => ran += usize::from(taken),
                Err(failure) => panic!("{failure}"),
            }
            if ran == COUNT {
                break;
            }
        }
        assert_eq!(ran, COUNT, "hardly any problem has a kernel");
    });
}
