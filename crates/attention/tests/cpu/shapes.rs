//! Shapes that have caught bugs in other implementations: lengths next to tile edges, long against short, odd head sizes.

use warptile_check::{AWKWARD_HEAD_DIMS, AWKWARD_LENGTHS, Case};

use crate::common::{verify, verify_text};

const HEADS: [&str; 5] = ["h1", "h6", "h6/2", "h8/1", "h32/8"];

const MASKS: [&str; 4] = ["none", "causal", "causal-top-left", "window,100,7"];

const ELEMENTS: [&str; 3] = ["f16", "bf16", "f32"];

/// Every length with every mask; head sizes and element types take turns.
#[test]
fn lengths() {
    let mut turn = 0;
    for (query, key) in AWKWARD_LENGTHS {
        for mask in MASKS {
            // The largest lengths with the smallest head size: the reference is slow.
            let head_dim = match query * key > 1 << 22 {
                true => 8,
                false => AWKWARD_HEAD_DIMS[turn % AWKWARD_HEAD_DIMS.len()],
            };
            let element = ELEMENTS[turn % ELEMENTS.len()];
            verify_text(&format!(
                "b1 q{query} k{key} h1 d{head_dim} {element} mask={mask} seed={turn}"
            ));
            turn += 1;
        }
    }
}

#[test]
fn head_sizes_and_heads() {
    for (turn, head_dim) in AWKWARD_HEAD_DIMS.into_iter().enumerate() {
        for heads in HEADS {
            let element = ELEMENTS[turn % ELEMENTS.len()];
            verify_text(&format!(
                "b2 q37 k65 {heads} d{head_dim} {element} mask=causal layout=bhsd seed={turn}"
            ));
        }
    }
}

#[test]
fn every_multiple_of_8_is_a_head_size() {
    for head_dim in (8..=512).step_by(8) {
        verify(&Case::new(20, 33, head_dim)).unwrap();
    }
}

#[test]
fn nothing_to_do() {
    for text in [
        "b0 q5 k5",
        "b2 q0 k5",
        "b2 q5 k0",
        "packed=",
        "packed=0x0,0x5",
    ] {
        for element in ELEMENTS {
            verify_text(&format!("{text} h4/2 d16 {element} mask=causal"));
        }
    }
}
