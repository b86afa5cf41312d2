//! The bits of a query do not depend on the batch, the pages and the chunk that it is computed in, with splits or without.

use half::bf16;
use warptile::spec::Heads;
use warptile::{Attention, Backend, Element, Mask, Splits};

use crate::compositions::{Compositions, Model};
use crate::neighbours;

fn check<T: Element>(attention: Attention, causal: bool) {
    check_with::<T>(attention, causal, [false; 2]);
}

/// With a bias, and with a key mask.
fn check_with<T: Element>(attention: Attention, causal: bool, [has_bias, has_key_mask]: [bool; 2]) {
    let model = Model {
        heads: Heads::new(4, 16).key_value(2),
        attention,
        causal,
        has_bias,
        has_key_mask,
        // More than a block of rows.
        longest_queries: 400,
        longest_keys: 1100,
    };
    let mut compositions = Compositions::<T>::new(model, &Backend::cpu(), 7);
    for _ in 0..60 {
        compositions.check_one();
    }
}

#[test]
fn under_a_causal_mask() {
    check::<f32>(Attention::new().mask(Mask::causal()), true);
}

/// A window begins anywhere in a tile.
#[test]
fn under_windows() {
    let window = |left| Attention::new().mask(Mask::window(left, 0));
    check::<f32>(window(300).sinks(&[0.5, -1.0, 0.0, 2.0]), true);
    check::<bf16>(window(20).splits(Splits::EveryKeys(256)), true);
}

#[test]
fn with_other_options() {
    let slopes = [0.5, 0.25, 0.125, 0.0625];
    let options = Attention::new().softcap(5.0).alibi_slopes(&slopes);
    check::<f32>(options.clone().mask(Mask::causal()), true);
    check::<f32>(Attention::new().scale(-0.3), false);
}

#[test]
fn with_a_bias_and_a_key_mask() {
    let causal = || Attention::new().mask(Mask::causal());
    let splits = Splits::EveryKeys(256);
    check_with::<f32>(causal(), true, [true, false]);
    check_with::<bf16>(causal().splits(splits), true, [false, true]);
}

#[test]
fn gradients_do_not_depend_on_neighbours() {
    let heads = Heads::new(4, 16).key_value(2);
    let options = Attention::new().softcap(3.0).sinks(&[0.5, -1.0, 0.0, 2.0]);
    for seed in 0..8 {
        let causal = Attention::new().mask(Mask::causal());
        neighbours::check::<f32>(&Backend::cpu(), &causal, heads, 300, seed);
        neighbours::check::<bf16>(&Backend::cpu(), &options, heads, 300, seed);
        neighbours::check_outputs::<bf16>(&Backend::cpu(), &options, heads, [200, 100], 1.0, seed);
    }
}

#[test]
fn splits_change_no_bit() {
    let backend = Backend::cpu();
    let data: Vec<f32> = (0..700 * 8).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = backend.tensor(&data, [1, 700, 1, 8]).unwrap();
    let out = |splits| {
        let attention = Attention::new().splits(splits);
        let output = attention.forward(&x, (&x, &x)).unwrap();
        output.out.to_vec().unwrap()
    };
    assert_eq!(out(Splits::Even), out(Splits::EveryKeys(256)));
    for keys in [0, 100, 300, 128, 1 << 21] {
        let attention = Attention::new().splits(Splits::EveryKeys(keys));
        let error = attention.forward(&x, (&x, &x)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("splits are every {keys} keys")));
    }
}
