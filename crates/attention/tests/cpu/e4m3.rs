//! Keys and values in e4m3 on the CPU.

use half::f16;
use quickcheck::quickcheck;
use warptile::ops::{CacheTensors, CacheWrite};
use warptile::spec::Invalid;
use warptile::{
    Attention, Backend, E4m3, ElementType, Error, Keys, KvCache, Layout, Mask, Scales, Tensor,
};

use crate::common::{Any, verify};
use crate::quantized::{right, right_in_16_bits};

quickcheck! {
    fn random_problems_equal_float64(any: Any) -> bool {
        let case = any.0.with_quantized(ElementType::E4m3);
        match verify(&case) {
            Ok(_) => true,
            Err(failure) => panic!("{case}: {failure}"),
        }
    }

    /// A write rotates as one into a cache of the elements does, and rounds what that would hold.
    fn writes_quantize_what_they_would_write(seed: u64) -> bool {
        let backend = Backend::cpu();
        let all = right_in_16_bits(&backend, seed, || ()).and(right::<f32>(&backend, seed, || ()));
        match all {
            Ok(()) => true,
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// A cache that quantizes gives what attention to the numbers that are left gives.
#[test]
fn a_cache_in_e4m3_is_attention_to_what_is_left() {
    const HEADS: usize = 2;
    const SIZE: usize = 16;
    let backend = Backend::cpu();
    let scales = [[0.01, 0.03], [0.02, 0.05]];
    let mut cache = { KvCache::<f32>::builder(HEADS, SIZE) }
        .layers(2)
        .page_rows(3)
        .quantized(ElementType::E4m3)
        .build(&backend)
        .unwrap();
    cache.set_scales(1, &scales[0], &scales[1]).unwrap();
    let sequence = cache.allocate();
    let attention = Attention::new().mask(Mask::causal());
    let number = |i: usize| ((i * 7919 % 1009) as f32 / 252.0) - 2.0;
    let (mut all_k, mut all_v): (Vec<f32>, Vec<f32>) = (Vec::new(), Vec::new());
    for (step, tokens) in [7, 1, 1, 4].into_iter().enumerate() {
        cache.step(&[(sequence, tokens)]).unwrap();
        let new = |seed: usize, heads: usize| -> Vec<f32> {
            (0..tokens * heads * SIZE)
                .map(|i| number(i + seed * 1000 + step * 77))
                .collect()
        };
        let (q, k, v) = (new(1, 2 * HEADS), new(2, HEADS), new(3, HEADS));
        for (all, new, scales) in [(&mut all_k, &k, scales[0]), (&mut all_v, &v, scales[1])] {
            all.extend(new.iter().enumerate().map(|(i, &x)| {
                let scale = scales[i / SIZE % HEADS];
                E4m3::quantize(x, scale).to_f32() * scale
            }));
        }
        let tensor = |data: &[f32], heads| backend.tensor(data, [1, tokens, heads, SIZE]).unwrap();
        let (q, k, v) = (tensor(&q, 2 * HEADS), tensor(&k, HEADS), tensor(&v, HEADS));
        cache.append(1, &k, &v).unwrap().run().unwrap();
        let found = attention.forward(&q, cache.keys(1).unwrap()).unwrap();
        let keys = all_k.len() / (HEADS * SIZE);
        let whole = |data: &[f32]| backend.tensor(data, [1, keys, HEADS, SIZE]).unwrap();
        let (k, v) = (whole(&all_k), whole(&all_v));
        let expected = attention.forward(&q, (&k, &v)).unwrap();
        let pairs = found
            .out
            .to_vec()
            .unwrap()
            .into_iter()
            .zip(expected.out.to_vec().unwrap());
        for (found, expected) in pairs {
            assert!(
                (found - expected).abs() < 1e-5,
                "{found} instead of {expected}"
            );
        }
    }
    assert!(cache.tensors(1).is_err());
    assert_eq!(cache.bits(1).unwrap()[0].layout().head_dim(), SIZE);
}

/// The keys of a page are 8 bytes, followed by 8 bytes of padding.
#[test]
fn keys_and_values_of_the_smallest_pages_begin_at_multiples_of_16_bytes() {
    let backend = Backend::cpu();
    let mut cache = { KvCache::<f16>::builder(1, 8) }
        .pages(3)
        .page_rows(1)
        .quantized(ElementType::E4m3)
        .build(&backend)
        .unwrap();
    let sequence = cache.allocate();
    cache.step(&[(sequence, 3)]).unwrap();
    let tensor = |rows: [f32; 3]| {
        let data: Vec<f16> = { rows.iter() }
            .flat_map(|&x| [f16::from_f32(x); 8])
            .collect();
        backend.tensor(&data, [1, 3, 1, 8]).unwrap()
    };
    // Equal scores: the output is the mean of the values.
    let (k, v) = (tensor([0.5; 3]), tensor([1.0, 2.0, 6.0]));
    cache.append(0, &k, &v).unwrap().run().unwrap();
    let output = Attention::new().forward(&k, cache.keys(0).unwrap());
    let out = output.unwrap().out.to_vec().unwrap();
    assert_eq!(out, [f16::from_f32(3.0); 24]);

    let [keys, values] = cache.bits(0).unwrap();
    let layout = Layout::new([3, 1, 1, 8], [32, 8, 8, 1]);
    assert_eq!([keys.layout(), values.layout()], [&layout; 2]);
    let bits = |x: f32| [E4m3::from_f32(x).to_bits(); 8];
    let first = cache.pages_of(sequence).unwrap()[0] as usize;
    let page = |part: &Tensor<u8>| part.entries(first..first + 1).unwrap().to_vec();
    assert_eq!(page(&keys).unwrap(), bits(0.5));
    assert_eq!(page(&values).unwrap(), bits(1.0));
    let memory = keys.to_vec().unwrap();
    assert_eq!(memory[8..16], [0; 8]);
    assert_eq!(memory[16..24], values.to_vec().unwrap()[..8]);

    // In 16 bits there is no gap.
    let cache = KvCache::<f16>::builder(1, 8).page_rows(1).build(&backend);
    let [keys, _] = cache.unwrap().tensors(0).unwrap();
    assert_eq!(keys.layout().strides, [16, 8, 8, 1]);
}

/// Pages of one's own, of a type that is known at run time.
#[test]
fn bits_are_written_and_read_as_numbers_are() {
    let backend = Backend::cpu();
    let new = backend.tensor(&[0.75_f32; 16], [1, 1, 1, 16]).unwrap();
    let pages = || backend.tensor(&[0_u8; 32], [2, 1, 1, 16]).unwrap();
    let (mut keys, mut values) = (pages(), pages());
    let scales = || Scales::new(&[0.5], &[0.25]);
    let element = ElementType::E4m3;
    let cache = CacheTensors::quantized_bits(element, &mut keys, &mut values, scales());
    let write = CacheWrite::new(&new, &new, cache);
    write.slots(&[1]).run().unwrap();
    let [k, v] = [&keys, &values].map(|pages| pages.entries(1..2).unwrap());
    assert_eq!(k.to_vec().unwrap(), [E4m3::from_f32(1.5).to_bits(); 16]);
    assert_eq!(v.to_vec().unwrap(), [E4m3::from_f32(3.0).to_bits(); 16]);
    let keys = Keys::quantized_bits(element, &k, &v, scales());
    let output = Attention::new().forward(&new, keys).unwrap();
    assert_eq!(output.out.to_vec().unwrap(), [0.75; 16]);
}

#[test]
fn scales_that_do_not_fit_are_errors_that_say_so() {
    let backend = Backend::cpu();
    let q = backend.tensor(&[0.5_f32; 64], [1, 1, 4, 16]).unwrap();
    let kv = backend.tensor(&[E4m3::MAX; 96], [1, 3, 2, 16]).unwrap();
    let error = |scales: Scales<'_>| {
        let keys = Keys::quantized(&kv, &kv, scales);
        Attention::new().forward(&q, keys).unwrap_err()
    };
    let three = error(Scales::new(&[1.0], &[1.0; 3]));
    assert_eq!(
        three.to_string(),
        "v_scale has 3 numbers; it needs 1, or one for each of the 2 key/value heads"
    );
    let zero = error(Scales::new(&[1.0, 0.0], &[1.0]));
    assert_eq!(
        zero.to_string(),
        "k_scale[1] is 0, but must be a finite number above 0"
    );
    assert!(matches!(
        error(Scales::new(&[], &[1.0])),
        Error::Invalid(Invalid::ScaleCount { found: 0, .. })
    ));

    let mut pages = backend
        .tensor(&[E4m3::default(); 32], [1, 1, 2, 16])
        .unwrap();
    let mut others = pages.clone();
    let new = backend.tensor(&[0.5_f32; 32], [1, 1, 2, 16]).unwrap();
    let scales = Scales::new(&[1.0], &[f32::INFINITY]);
    let cache = CacheTensors::quantized(&mut pages, &mut others, scales);
    let error = CacheWrite::new(&new, &new, cache)
        .slots(&[0])
        .run()
        .unwrap_err();
    assert!(
        error.to_string().starts_with("v_scale[0] is inf"),
        "{error}"
    );

    // Scales of keys that are refused with those of the values do not count.
    let mut cache = { KvCache::<f32>::builder(2, 16).page_rows(1) }
        .quantized(ElementType::E4m3)
        .build(&backend)
        .unwrap();
    let error = cache.set_scales(0, &[4.0], &[f32::NAN]).unwrap_err();
    assert!(
        error.to_string().starts_with("v_scale[0] is NaN"),
        "{error}"
    );
    let sequence = cache.allocate();
    cache.step(&[(sequence, 1)]).unwrap();
    cache.append(0, &new, &new).unwrap().run().unwrap();
    let page = cache.pages_of(sequence).unwrap()[0] as usize;
    let keys = cache.bits(0).unwrap()[0].entries(page..page + 1).unwrap();
    assert_eq!(keys.to_vec().unwrap(), [E4m3::from_f32(0.5).to_bits(); 32]);

    let mut cache = KvCache::<f32>::builder(2, 16).build(&backend).unwrap();
    let error = cache.set_scales(0, &[1.0], &[1.0]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "k_scale is given, but keys and values are not quantized"
    );
    assert!(cache.bits(0).is_err());
}
