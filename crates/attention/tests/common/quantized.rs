//! Random writes into a cache in e4m3, as users make them.

use half::{bf16, f16};
use warptile::ops::{CacheTensors, CacheWrite};
use warptile::spec::{Pairing, Rotary};
use warptile::{Backend, E4m3, Element, ElementType, Layout, Scales, Tensor};

use crate::draw::Random;

/// The rows to write and their places.
struct Write<T> {
    new: [Vec<T>; 2],
    q: Vec<T>,
    new_layout: Layout,
    q_layout: Layout,
    cache: Layout,
    slots: Vec<i64>,
    positions: Vec<i32>,
    rotary: Option<Rotary>,
    scales: [Vec<f32>; 2],
}

/// A cache and the rotated queries, as a write has left them.
struct Written<C, T> {
    cache: [Vec<C>; 2],
    q: Vec<T>,
}

/// A value that no write stores.
const UNTOUCHED: E4m3 = E4m3::from_bits(0x55);

impl<T: Element> Write<T> {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let (heads, groups) = (random.within(1, 3), random.within(1, 2));
        let dim = random.pick(&[8, 24, 64, 80, 128]);
        let tokens = random.within(1, 9);
        let (pages, page_rows) = (random.within(2, 6), random.pick(&[1, 3, 16]));
        let mut numbers = |count: usize| -> Vec<T> {
            (0..count)
                .map(|_| T::from_f32(4.0 * random.unit()))
                .collect()
        };
        let new = [numbers(tokens * heads * dim), numbers(tokens * heads * dim)];
        let q = numbers(tokens * groups * heads * dim);
        let mut order: Vec<i64> = (0..(pages * page_rows) as i64).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.within(0, last));
        }
        let slots = (0..tokens).map(|token| match random.once_in(6) {
            true => -1,
            false => order.get(token).copied().unwrap_or(-1),
        });
        let slots = slots.collect();
        let positions = (0..tokens).map(|_| random.within(0, 5000) as i32).collect();
        let pairing = random.pick(&[Pairing::Interleaved, Pairing::HalfSplit]);
        let size = random.pick(&[dim, dim / 2, 2]);
        let rotary = match random.once_in(3) {
            true => None,
            false => Some(Rotary::computed(size, 10_000.0, pairing).unwrap()),
        };
        // From where some numbers are beyond the largest to where some are below the least.
        let mut scales = || -> Vec<f32> {
            let count = random.pick(&[1, heads]);
            (0..count)
                .map(|_| 0.004 * 10.0_f32.powf(1.5 + 1.5 * random.unit()))
                .collect()
        };
        let scales = [scales(), scales()];
        let cache = random.layout([pages, page_rows, heads, dim]);
        Write {
            new,
            q,
            new_layout: Layout::bshd([1, tokens, heads, dim]),
            q_layout: Layout::bshd([1, tokens, groups * heads, dim]),
            cache,
            slots,
            positions,
            rotary,
            scales,
        }
    }

    /// Writes into a cache in e4m3. `run` ends what was launched.
    fn quantized(&self, backend: &Backend, run: impl FnOnce()) -> Written<E4m3, T> {
        let empty = vec![UNTOUCHED; self.cache.required_len().unwrap()];
        let pages = || backend.tensor_with_layout(&empty, self.cache).unwrap();
        let (mut keys, mut values) = (pages(), pages());
        let scales = Scales::new(&self.scales[0], &self.scales[1]);
        let cache = CacheTensors::quantized(&mut keys, &mut values, scales);
        let q = self.write(backend, cache, run);
        Written {
            cache: [keys, values].map(|tensor| tensor.to_vec().unwrap()),
            q,
        }
    }

    /// Writes into an unquantized cache of the same elements, with `untouched` where no row goes.
    fn plain(&self, backend: &Backend, untouched: T) -> Written<T, T> {
        let empty = vec![untouched; self.cache.required_len().unwrap()];
        let pages = || backend.tensor_with_layout(&empty, self.cache).unwrap();
        let (mut keys, mut values) = (pages(), pages());
        let q = self.write(backend, (&mut keys, &mut values).into(), || ());
        Written {
            cache: [keys, values].map(|tensor| tensor.to_vec().unwrap()),
            q,
        }
    }

    fn write(&self, backend: &Backend, cache: CacheTensors<'_, T>, run: impl FnOnce()) -> Vec<T> {
        let new = |data| backend.tensor_with_layout(data, self.new_layout).unwrap();
        let (k, v): (Tensor<T>, Tensor<T>) = (new(&self.new[0]), new(&self.new[1]));
        let mut q = backend.tensor_with_layout(&self.q, self.q_layout).unwrap();
        let mut write = CacheWrite::new(&k, &v, cache).slots(&self.slots);
        if let Some(rotary) = &self.rotary {
            write = write
                .rotary(rotary.clone())
                .positions(&self.positions)
                .queries(&mut q);
        }
        write.run().unwrap();
        run();
        q.to_vec().unwrap()
    }

    /// The expected contents of the cache: each number that a cache of the elements would hold, quantized.
    fn expected(&self) -> Written<E4m3, T> {
        let mark = T::from_f32(f32::INFINITY);
        let plain = self.plain(&Backend::cpu(), mark);
        let mut cache = [const { Vec::new() }; 2];
        let [pages, rows, heads, dim] = self.cache.shape;
        for ((to, from), scales) in cache.iter_mut().zip(&plain.cache).zip(&self.scales) {
            *to = vec![UNTOUCHED; from.len()];
            let places = (0..pages).flat_map(|page| (0..rows).map(move |row| (page, row)));
            for ((page, row), head) in
                places.flat_map(|place| (0..heads).map(move |head| (place, head)))
            {
                let start = self.cache.offset(page, row, head);
                let scale = scales[if scales.len() == 1 { 0 } else { head }];
                for index in start..start + dim {
                    if from[index] != mark {
                        to[index] = E4m3::quantize(from[index].to_f32(), scale);
                    }
                }
            }
        }
        Written { cache, q: plain.q }
    }
}

/// Checks that the write of a seed leaves the expected contents on a backend.
pub(crate) fn right<T: Element>(
    backend: &Backend,
    seed: u64,
    run: impl FnOnce(),
) -> Result<(), String> {
    let write = Write::<T>::random(seed);
    let (found, expected) = (write.quantized(backend, run), write.expected());
    // A rotation may round to a neighbour, and a neighbour to another one of e4m3.
    let rotates = write.rotary.is_some();
    let same = |found: &E4m3, expected: &E4m3, may_round: bool| {
        let (a, b) = (found.to_f32(), expected.to_f32());
        let step = (a.abs().max(b.abs()) / 8.0).max(1.0 / 512.0);
        found.to_bits() == expected.to_bits() || (may_round && (a - b).abs() <= step)
    };
    let [keys, values] = [0, 1].map(|side| {
        let pairs = found.cache[side].iter().zip(&expected.cache[side]);
        { pairs.enumerate() }
            .find(|(_, (found, expected))| !same(found, expected, side == 0 && rotates))
            .map(|(index, (found, expected))| format!("element {index}: {found}, not {expected}"))
    });
    // Two results that round to neighbours, and what computed positions cost: an argument of 5,000 has an error of 2^-12.
    let unit = match T::TYPE {
        ElementType::F16 => 2.0_f32.powi(-10),
        _ => 2.0_f32.powi(-7),
    };
    let q = { found.q.iter().zip(&expected.q).enumerate() }
        .find(|(_, (a, b))| {
            let (a, b) = (a.to_f32(), b.to_f32());
            (a - b).abs() > unit * a.abs().max(b.abs()) + 0.01
        })
        .map(|(index, (found, expected))| format!("element {index}: {found:?}, not {expected:?}"));
    match [("keys", keys), ("values", values), ("q", q)] {
        [(_, None), (_, None), (_, None)] => Ok(()),
        wrong => Err(format!("seed {seed}: {wrong:?}")),
    }
}

/// Runs [`right`] for each 16-bit element type.
pub(crate) fn right_in_16_bits(backend: &Backend, seed: u64, run: impl Fn()) -> Result<(), String> {
    right::<f16>(backend, seed, &run).and(right::<bf16>(backend, seed, &run))
}
