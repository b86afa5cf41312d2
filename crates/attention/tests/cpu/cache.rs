//! A cache of pages against one that keeps every row in a vector, and against attention in float64.

use half::f16;
use quickcheck::{QuickCheck, TestResult};
use warptile::cache::SequenceId;
use warptile::spec::{Invalid, Pairing, Rotary};
use warptile::{Attention, Backend, ElementType, Error, KvCache, Layout, Mask, Tensor};

use crate::draw::Random;

#[test]
fn a_cache_is_quantized_by_types_with_scales() {
    for element in [ElementType::F16, ElementType::F32] {
        let builder = KvCache::<f16>::builder(2, 16).quantized(element);
        let error = builder.build(&Backend::cpu()).unwrap_err().to_string();
        assert!(error.starts_with("quantized names a type"), "{error}");
    }
}

/// A cache, and all of its rows without pages.
struct Pair {
    random: Random,
    backend: Backend,
    cache: KvCache<f32>,
    shape: Shape,
    alive: Vec<Rows>,
}

#[derive(Clone, Copy)]
struct Shape {
    layers: usize,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    value_dim: usize,
    pages: usize,
    page_rows: usize,
    sequences: usize,
    longest: usize,
    mask: Mask,
    rotary: bool,
}

/// The rows of a sequence: for each layer those of keys and of values, one after the other.
struct Rows {
    id: SequenceId,
    len: usize,
    layers: Vec<[Vec<f64>; 2]>,
}

impl Shape {
    /// Elements of a row of keys, and of values.
    fn rows(&self) -> [usize; 2] {
        [self.head_dim, self.value_dim].map(|size| self.kv_heads * size)
    }
}

impl Pair {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let (pages, page_rows) = (random.within(1, 12), random.within(1, 6));
        let all = pages * page_rows;
        let shape = Shape {
            layers: random.within(1, 3),
            kv_heads: random.within(1, 2),
            group: random.within(1, 3),
            head_dim: random.pick(&[8, 16]),
            value_dim: random.pick(&[8, 16, 24]),
            pages,
            page_rows,
            sequences: random.within(1, 4),
            longest: match random.once_in(2) {
                true => all,
                false => random.within(1, all),
            },
            mask: random.pick(&[Mask::causal(), Mask::window(5, 0)]),
            rotary: random.once_in(2),
        };
        let backend = Backend::cpu();
        let cache = KvCache::builder(shape.kv_heads, shape.head_dim)
            .value_dim(shape.value_dim)
            .layers(shape.layers)
            .pages(pages)
            .page_rows(page_rows)
            .sequences(shape.sequences)
            .longest(shape.longest)
            .build(&backend)
            .unwrap();
        Pair {
            random,
            backend,
            cache,
            shape,
            alive: Vec::new(),
        }
    }

    fn pages_of(&self, len: usize) -> usize {
        len.div_ceil(self.shape.page_rows)
    }

    fn free_pages(&self) -> usize {
        let held: usize = { self.alive.iter() }
            .map(|rows| self.pages_of(rows.len))
            .sum();
        self.shape.pages - held
    }

    /// Checks that every page has at most one owner.
    fn check_pages(&self) {
        assert_eq!(self.cache.free_pages(), self.free_pages());
        let mut owned = vec![false; self.shape.pages];
        for rows in &self.alive {
            assert_eq!(self.cache.len(rows.id).unwrap(), rows.len);
            let pages = self.cache.pages_of(rows.id).unwrap();
            assert_eq!(pages.len(), self.pages_of(rows.len));
            for &page in pages {
                assert!(!std::mem::replace(&mut owned[page as usize], true));
            }
        }
    }

    fn allocate(&mut self) {
        let layers = vec![[Vec::new(), Vec::new()]; self.shape.layers];
        self.alive.push(Rows {
            id: self.cache.allocate(),
            len: 0,
            layers,
        });
    }

    fn free(&mut self) {
        if !self.alive.is_empty() {
            let index = self.random.within(0, self.alive.len() - 1);
            let id = self.alive.swap_remove(index).id;
            self.cache.free(id).unwrap();
            assert!(self.cache.free(id).is_err());
        }
    }

    fn truncate(&mut self) {
        if let Some(rows) = self.alive.first_mut() {
            let len = self.random.within(0, rows.len + 2);
            self.cache.truncate(rows.id, len).unwrap();
            rows.len = rows.len.min(len);
            for sides in &mut rows.layers {
                for (side, row) in sides.iter_mut().zip(self.shape.rows()) {
                    side.truncate(rows.len * row);
                }
            }
        }
    }

    /// Leaves NaN in pages without an owner.
    fn poison(&mut self) {
        let rows = (self.free_pages() * self.shape.page_rows).min(self.shape.longest);
        let id = self.cache.allocate();
        self.cache.step(&[(id, rows)]).unwrap();
        let heads = self.shape.kv_heads;
        let [k, v] = [self.shape.head_dim, self.shape.value_dim].map(|size| {
            let nan = vec![f32::NAN; rows * heads * size];
            self.backend.tensor(&nan, [1, rows, heads, size]).unwrap()
        });
        for layer in 0..self.shape.layers {
            self.cache.append(layer, &k, &v).unwrap().run().unwrap();
        }
        self.cache.free(id).unwrap();
    }

    /// A step with some sequences, and in every layer the same output as in float64.
    fn step(&mut self) -> Result<(), String> {
        let most = self.shape.sequences.min(self.alive.len());
        let count = self.random.within(0, most);
        // Sequences in any order.
        for place in 0..count {
            let from = self.random.within(place, self.alive.len() - 1);
            self.alive.swap(place, from);
        }
        let each = self.random.within(0, 7);
        let ragged = self.random.once_in(2);
        let rows: Vec<(SequenceId, usize)> = (0..count)
            .map(|place| {
                let new = if ragged {
                    self.random.within(0, 7)
                } else {
                    each
                };
                (self.alive[place].id, new)
            })
            .collect();
        let batch = self.random.within(count, self.shape.sequences);
        let after = |place: usize| self.alive[place].len + rows[place].1;
        let needed: usize = (0..count)
            .map(|place| self.pages_of(after(place)) - self.pages_of(self.alive[place].len))
            .sum();
        let too_long = (0..count).position(|place| after(place) > self.shape.longest);
        let stepped = self.cache.step_padded(&rows, batch);
        match (stepped, too_long) {
            (Err(Error::Invalid(Invalid::Lengths { index, .. })), Some(place))
                if index == place =>
            {
                return Ok(());
            }
            (Err(Error::OutOfPages { needed: n, free }), None)
                if (n, free) == (needed, self.free_pages()) && n > free =>
            {
                return Ok(());
            }
            (Ok(()), None) if needed <= self.free_pages() => {}
            (other, _) => return Err(format!("{other:?}: {needed} pages, {too_long:?}")),
        }
        let uniform = rows.iter().all(|&(_, new)| new == rows[0].1);
        let each = each.min(self.shape.longest);
        let dense = { uniform && self.random.once_in(2) }
            .then_some([batch, rows.first().map_or(each, |&(_, new)| new)]);
        let lens: Vec<usize> = rows.iter().map(|&(_, new)| new).collect();
        for layer in 0..self.shape.layers {
            self.layer(layer, &lens, dense)?;
        }
        for (rows, new) in self.alive.iter_mut().zip(lens) {
            rows.len += new;
        }
        Ok(())
    }

    fn layer(
        &mut self,
        layer: usize,
        lens: &[usize],
        dense: Option<[usize; 2]>,
    ) -> Result<(), String> {
        let Shape {
            kv_heads,
            group,
            head_dim,
            value_dim,
            ..
        } = self.shape;
        let all: usize = lens.iter().sum();
        let extents = dense.unwrap_or([1, all]);
        let mut tensor = |heads: usize, size: usize| -> (Tensor<f32>, Vec<f64>) {
            let shape = [extents[0], extents[1], heads, size];
            let data: Vec<f32> = (0..shape.iter().product())
                .map(|_| self.random.unit())
                .collect();
            let wide = data.iter().copied().map(f64::from).collect();
            (self.backend.tensor(&data, shape).unwrap(), wide)
        };
        let (mut q, mut wide_q) = tensor(kv_heads * group, head_dim);
        let (k, mut wide_k) = tensor(kv_heads, head_dim);
        let (v, wide_v) = tensor(kv_heads, value_dim);
        let mut write = self.cache.append(layer, &k, &v).unwrap();
        if self.shape.rotary {
            let rotary = Rotary::computed(8, 100.0, Pairing::HalfSplit).unwrap();
            write = write.rotary(rotary).queries(&mut q);
        }
        write.run().unwrap();
        let attention = Attention::new().mask(self.shape.mask);
        let queries = self.cache.queries(&q).unwrap();
        let keys = self.cache.keys(layer).unwrap();
        let out = attention.forward(queries, keys).unwrap().out;
        let out = out.to_vec().unwrap();

        let [row, value_row] = self.shape.rows();
        let (q_row, out_row) = (row * group, value_row * group);
        let mut start = 0;
        for (rows, &new) in self.alive.iter_mut().zip(lens) {
            let part = |row: usize| start * row..(start + new) * row;
            let q_part = part(q_row);
            if self.shape.rotary {
                rotate(&mut wide_k[part(row)], rows.len, row, self.shape);
                rotate(&mut wide_q[q_part.clone()], rows.len, q_row, self.shape);
            }
            let [keys, values] = &mut rows.layers[layer];
            keys.extend_from_slice(&wide_k[part(row)]);
            values.extend_from_slice(&wide_v[part(value_row)]);
            let expected = attend(&wide_q[q_part], keys, values, new, self.shape);
            for (found, expected) in out[part(out_row)].iter().zip(expected) {
                if (f64::from(*found) - expected).abs() > 1e-5 || found.is_nan() {
                    return Err(format!("{found} instead of {expected}"));
                }
            }
            start += new;
        }
        // Whoever asks in an empty place sees nothing.
        match out[start * out_row..].iter().all(|&value| value == 0.0) {
            true => Ok(()),
            false => Err("an empty place has an output".to_owned()),
        }
    }
}

/// Turns elements i and i + 4 of every head by its row's position times 100^(-i / 4).
fn rotate(data: &mut [f64], first: usize, row: usize, shape: Shape) {
    for (at, data) in data.chunks_mut(row).enumerate() {
        for head in data.chunks_mut(shape.head_dim) {
            for i in 0..4 {
                let angle = (first + at) as f64 * 100_f64.powf(-(i as f64) / 4.0);
                let (sin, cos) = angle.sin_cos();
                let (x, y) = (head[i], head[i + 4]);
                (head[i], head[i + 4]) = (x * cos - y * sin, x * sin + y * cos);
            }
        }
    }
}

fn attend(q: &[f64], keys: &[f64], values: &[f64], rows: usize, shape: Shape) -> Vec<f64> {
    let (dim, value_dim) = (shape.head_dim, shape.value_dim);
    let heads = shape.kv_heads * shape.group;
    let [k_row, v_row] = shape.rows();
    let len = keys.len() / k_row;
    let mut out = vec![0.0; rows * heads * value_dim];
    for row in 0..rows {
        for head in 0..heads {
            let at = row * heads + head;
            let q = &q[at * dim..][..dim];
            let out = &mut out[at * value_dim..][..value_dim];
            let seen = shape.mask.visible(row, rows, len);
            let shared = head / shape.group;
            let weights: Vec<f64> = seen
                .clone()
                .map(|key| {
                    let key = &keys[key * k_row + shared * dim..][..dim];
                    let dot: f64 = q.iter().zip(key).map(|(a, b)| a * b).sum();
                    (dot / (dim as f64).sqrt()).exp()
                })
                .collect();
            let sum: f64 = weights.iter().sum();
            for (weight, key) in weights.iter().zip(seen) {
                let values = &values[key * v_row + shared * value_dim..];
                for (out, value) in out.iter_mut().zip(values) {
                    *out += weight / sum * value;
                }
            }
        }
    }
    out
}

#[test]
fn random_steps_match_rows_without_pages() {
    fn right(seed: u64) -> TestResult {
        let mut pair = Pair::new(seed);
        for _ in 0..60 {
            match pair.random.within(0, 9) {
                0 | 1 => pair.allocate(),
                2 => pair.free(),
                3 => pair.truncate(),
                4 => pair.poison(),
                _ => {
                    if let Err(failure) = pair.step() {
                        return TestResult::error(format!("seed {seed}: {failure}"));
                    }
                }
            }
            pair.check_pages();
        }
        while !pair.alive.is_empty() {
            pair.free();
        }
        TestResult::from_bool(pair.cache.free_pages() == pair.shape.pages)
    }
    QuickCheck::new()
        .tests(200)
        .quickcheck(right as fn(u64) -> TestResult);
}

fn small() -> (Backend, KvCache<f32>) {
    let backend = Backend::cpu();
    let cache = KvCache::builder(2, 8).pages(3).page_rows(4).sequences(2);
    (backend.clone(), cache.build(&backend).unwrap())
}

fn text<T>(result: Result<T, Error>) -> String {
    result
        .err()
        .map_or(String::new(), |error| error.to_string())
}

#[test]
fn a_step_that_cannot_be_changes_nothing() {
    let (backend, mut cache) = small();
    let [a, b, gone] = [(); 3].map(|()| cache.allocate());
    cache.free(gone).unwrap();
    cache.step(&[(a, 4), (b, 1)]).unwrap();
    let cases: [(&[(SequenceId, usize)], &str); 5] = [
        (
            &[(a, 1), (b, 4)],
            "the step needs 2 more pages, but 1 are free; free a sequence, or make the cache with more pages",
        ),
        (
            &[(a, 9)],
            "rows[0] is 9, which makes the sequence 13 keys long; this cache was made for sequences of up to 12",
        ),
        (
            &[(b, 1), (b, 1)],
            "rows[1] is of a sequence that the step has already",
        ),
        (
            &[(b, 1), (gone, 1)],
            "rows[1] is of a sequence that is not one of this cache, or was freed",
        ),
        (
            &[(a, 0), (b, 0), (gone, 0)],
            "step has 3 sequences in 3 places; this cache was made for up to 2",
        ),
    ];
    for (rows, expected) in cases {
        assert_eq!(text(cache.step(rows)), expected);
        assert_eq!((cache.len(a).unwrap(), cache.len(b).unwrap()), (4, 1));
        assert_eq!(cache.free_pages(), 1);
    }
    let (mut other, of_other) = {
        let (_, mut other) = small();
        let id = other.allocate();
        (other, id)
    };
    assert!(cache.step(&[(of_other, 1)]).is_err());
    assert!(other.free(a).is_err());
    // The step of before goes on.
    let kv = backend.tensor(&[1.0; 5 * 16], [1, 5, 2, 8]).unwrap();
    cache.append(0, &kv, &kv).unwrap().run().unwrap();
}

#[test]
fn tensors_must_have_the_rows_of_the_step() {
    let (backend, mut cache) = small();
    let [a, b] = [(); 2].map(|()| cache.allocate());
    let tensor = |batch: usize, rows: usize| {
        let data = vec![1.0; batch * rows * 16];
        backend.tensor(&data, [batch, rows, 2, 8]).unwrap()
    };
    let one = tensor(1, 1);
    assert_eq!(
        text(cache.append(0, &one, &one)),
        "k has rows, but the cache is in no step"
    );
    assert_eq!(
        text(cache.keys(0)),
        "k has rows, but the cache is in no step"
    );
    cache.step(&[]).unwrap();
    assert!(cache.keys(0).is_ok());
    cache.step(&[(a, 2), (b, 1)]).unwrap();
    let (dense, packed) = (tensor(2, 2), tensor(1, 3));
    assert_eq!(
        text(cache.queries(&dense)),
        "q has batch 2 and length 2; the sequences of the step have different numbers of new rows, which lie one after the other, with batch 1 and length 3"
    );
    assert!(cache.append(0, &packed, &packed).is_ok());
    assert_eq!(
        text(cache.append(0, &packed, &dense).unwrap().run()),
        "v has batch 2, but k has 1"
    );
    assert_eq!(
        text(cache.append(1, &packed, &packed)),
        "layer is 1, but the cache has 1"
    );
    assert!(cache.keys(1).is_err());
    cache.step(&[(a, 2), (b, 2)]).unwrap();
    assert_eq!(
        text(cache.append(0, &packed, &packed)),
        "k has batch 1 and length 3; the step has 2 sequences of 2 new rows, or batch 1 and length 4 one after the other"
    );
    assert!(cache.append(0, &dense, &dense).is_ok());
    cache.step_padded(&[], 2).unwrap();
    assert!(cache.append(0, &tensor(2, 12), &tensor(2, 12)).is_ok());
    assert_eq!(
        text(cache.append(0, &tensor(2, 13), &dense)),
        "k has batch 2 and length 13; the step has 2 sequences of 12 new rows, or batch 1 and length 0 one after the other"
    );
    let held = cache.tensors(0).unwrap();
    assert_eq!(
        text(cache.append(0, &dense, &dense).unwrap().run()),
        "k_pages shares its elements with another tensor; an output needs elements of its own"
    );
    drop(held);
}

/// Memory holds a page's keys, then its values, then the next page.
#[test]
fn a_pages_keys_and_values_lie_next_to_each_other() {
    let backend = Backend::cpu();
    let mut cache = KvCache::<f32>::builder(1, 16)
        .value_dim(8)
        .pages(2)
        .page_rows(2)
        .build(&backend)
        .unwrap();
    let sequence = cache.allocate();
    cache.step(&[(sequence, 4)]).unwrap();
    let k: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let v: Vec<f32> = (100..132).map(|i| i as f32).collect();
    let new_k = backend.tensor(&k, [1, 4, 1, 16]).unwrap();
    let new_v = backend.tensor(&v, [1, 4, 1, 8]).unwrap();
    cache.append(0, &new_k, &new_v).unwrap().run().unwrap();
    let pages = cache.pages_of(sequence).unwrap();
    let [first, second] = [0, 1].map(|page| pages.iter().position(|&p| p == page).unwrap());
    let [keys, values] = cache.tensors(0).unwrap();
    assert_eq!(keys.layout(), &Layout::new([2, 2, 1, 16], [48, 16, 16, 1]));
    assert_eq!(values.layout(), &Layout::new([2, 2, 1, 8], [48, 8, 8, 1]));
    let page = |place: usize| (&k[place * 32..][..32], &v[place * 16..][..16]);
    let ((k0, v0), (k1, v1)) = (page(first), page(second));
    assert_eq!(keys.to_vec().unwrap(), [k0, v0, k1].concat());
    assert_eq!(values.to_vec().unwrap(), [v0, k1, v1].concat());
    assert_eq!(keys.entries(1..2).unwrap().to_vec().unwrap(), k1);
}

#[test]
fn a_cache_has_what_attention_can_have() {
    let backend = Backend::cpu();
    let builder = || KvCache::<f32>::builder(2, 8);
    let cases = [
        (builder().pages(0), "pages is 0"),
        (builder().layers(0), "layers is 0"),
        (builder().layers(usize::MAX), "layers has length"),
        (builder().sequences(0), "sequences is 0"),
        (builder().page_rows(0), "k has pages of 0 rows"),
        (builder().page_rows(257), "k has pages of 257 rows"),
        (builder().pages(1 << 40), "pages has length"),
        (KvCache::builder(2, 12), "q has head size 12"),
        (KvCache::builder(0, 8), "q has 0 heads"),
        (builder().value_dim(12), "v has head size 12"),
        (builder().value_dim(0), "v has head size 0"),
    ];
    for (builder, expected) in cases {
        let error = text(builder.build(&backend));
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_tensor_is_overwritten_where_it_is() {
    let backend = Backend::cpu();
    let layout = Layout::bshd([1, 2, 1, 2]);
    let mut tensor = Tensor::from_vec(&backend, vec![0_u8; 4], layout).unwrap();
    tensor.copy_from_slice(&[1, 2, 3, 4]).unwrap();
    assert_eq!(tensor.as_slice(), Some(&[1, 2, 3, 4][..]));
    assert!(text(tensor.copy_from_slice(&[1, 2, 3])).starts_with("data needs a buffer of 4"));
    assert!(text(tensor.copy_from_slice(&[1; 5])).starts_with("data has 5 elements"));
    let part = tensor.rows(1..2).unwrap();
    assert!(text(tensor.copy_from_slice(&[0; 4])).contains("shares its elements"));
    drop(tensor);
    assert_eq!(part.to_vec().unwrap(), [3, 4]);
}
