//! A cache in e4m3 on a GPU. Random writes into one are in `append.rs`.

use std::sync::Arc;

use warptile::gpu::Gpu;
use warptile::{Attention, Backend, ElementType, KvCache, Mask};

use crate::harness::gpu;

/// A prompt, then token after token, through a cache in e4m3: as on the CPU, with the same numbers in the cache.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_cache_in_e4m3_decodes_as_on_the_cpu() {
    type Half = half::f16;
    let run = |backend: &Backend| -> (Vec<f32>, Vec<u8>) {
        let mut cache = { KvCache::<Half>::builder(2, 64).page_rows(16) }
            .quantized(ElementType::E4m3)
            .build(backend)
            .unwrap();
        cache.set_scales(0, &[0.01, 0.02], &[0.015]).unwrap();
        let sequence = cache.allocate();
        let attention = Attention::new().mask(Mask::causal());
        let mut out = Vec::new();
        for (step, tokens) in [9, 1, 1, 1, 2].into_iter().enumerate() {
            cache.step(&[(sequence, tokens)]).unwrap();
            let tensor = |seed: usize, heads: usize| {
                let number = |i: usize| ((i + 31 * seed + 977 * step) * 7919 % 1009) as f32 / 504.0;
                let count = tokens * heads * 64;
                let data: Vec<Half> = (0..count)
                    .map(|i| Half::from_f32(number(i) - 1.0))
                    .collect();
                backend.tensor(&data, [1, tokens, heads, 64]).unwrap()
            };
            let (q, k, v) = (tensor(1, 8), tensor(2, 2), tensor(3, 2));
            cache.append(0, &k, &v).unwrap().run().unwrap();
            let output = attention.forward(&q, cache.keys(0).unwrap()).unwrap();
            out.extend(output.out.to_vec().unwrap().into_iter().map(Half::to_f32));
        }
        let pages = cache.bits(0).unwrap()[0].entries(0..1).unwrap();
        let rows = pages.rows(0..14).unwrap();
        (out, rows.to_vec().unwrap())
    };
    let own = Gpu::on_stream(gpu().stream()).unwrap();
    let (found, found_keys) = run(&Backend::from_gpu(Arc::new(own)));
    let (expected, expected_keys) = run(&Backend::cpu());
    assert_eq!(found_keys, expected_keys);
    for (found, expected) in found.iter().zip(&expected) {
        assert!(
            (found - expected).abs() < 2e-3,
            "{found} instead of {expected}"
        );
    }
}
