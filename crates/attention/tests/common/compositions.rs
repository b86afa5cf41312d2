//! Batches of random composition: what a sequence gives alone, among others, in pages and with its prompt in chunks.

use std::cell::OnceCell;
use std::ops::Range;

use warptile::spec::Heads;
use warptile::{Attention, Backend, Element, Keys, Output, Queries, Tensor};

use crate::draw::Random;

/// The properties that all sequences of some compositions share.
#[derive(Debug)]
pub(crate) struct Model {
    /// With one size for all.
    pub(crate) heads: Heads,
    pub(crate) attention: Attention,
    /// True if no query sees a key after its own, so that a prompt may be cut.
    pub(crate) causal: bool,
    /// Tensors of scores, which go with dense sequences: then nothing lies in pages.
    pub(crate) has_bias: bool,
    pub(crate) has_key_mask: bool,
    pub(crate) longest_queries: usize,
    pub(crate) longest_keys: usize,
}

/// Sequences to draw from.
const SEQUENCES: usize = 6;

/// Caches with pages of different sizes.
const CACHES: usize = 8;

/// Some queries of a sequence and the keys up to the last of them.
#[derive(Debug, Clone)]
struct Part {
    sequence: usize,
    queries: Range<usize>,
    keys: usize,
}

/// The bits of each query: its output and its lse.
type Rows = Vec<Vec<u8>>;

/// Sequences that compositions are drawn from, dense and in pages.
pub(crate) struct Compositions<T: Element> {
    model: Model,
    backend: Backend,
    random: Random,
    queries: Vec<T>,
    q: Tensor<T>,
    k: Tensor<T>,
    v: Tensor<T>,
    caches: Vec<Cache<T>>,
    /// `[sequence, query, head, key]`; empty without one.
    bias: Vec<T>,
    /// `[sequence, query, key]`; empty without one.
    key_mask: Vec<u8>,
    /// The kernel that computes all of them.
    kernel: OnceCell<&'static str>,
}

/// All sequences in pages of random order, with NaN wherever no key is.
struct Cache<T: Element> {
    page_rows: usize,
    /// Entries of each sequence.
    columns: usize,
    table: Vec<i32>,
    k: Tensor<T>,
    v: Tensor<T>,
}

impl<T: Element> Compositions<T> {
    pub(crate) fn new(model: Model, backend: &Backend, seed: u64) -> Self {
        let mut random = Random(seed);
        let q_shape = [
            SEQUENCES,
            model.longest_queries,
            model.heads.query,
            model.heads.dim,
        ];
        let kv_shape = [
            SEQUENCES,
            model.longest_keys,
            model.heads.key_value,
            model.heads.dim,
        ];
        let mut values = |shape: [usize; 4], size: f32| -> Vec<T> {
            let count = shape.iter().product();
            (0..count)
                .map(|_| T::from_f32(size * random.unit()))
                .collect()
        };
        // Some weights are much larger than others.
        let (queries, keys, values) = (
            values(q_shape, 4.0),
            values(kv_shape, 1.0),
            values(kv_shape, 1.0),
        );
        let has_scores = model.has_bias || model.has_key_mask;
        let caches = (0..if has_scores { 0 } else { CACHES })
            .map(|_| Cache::new(&model, backend, &mut random, [&keys, &values]))
            .collect();
        let rows = SEQUENCES * model.longest_queries;
        let count = rows * model.heads.query * model.longest_keys;
        let bias = (0..if model.has_bias { count } else { 0 })
            .map(|_| T::from_f32(random.unit()))
            .collect();
        let count = rows * model.longest_keys;
        let key_mask = (0..if model.has_key_mask { count } else { 0 })
            // Every query sees the first key.
            .map(|at| u8::from(at % model.longest_keys == 0 || !random.once_in(4)))
            .collect();
        Compositions {
            q: backend.tensor(&queries, q_shape).unwrap(),
            k: backend.tensor(&keys, kv_shape).unwrap(),
            v: backend.tensor(&values, kv_shape).unwrap(),
            backend: backend.clone(),
            model,
            random,
            queries,
            caches,
            bias,
            key_mask,
            kernel: OnceCell::new(),
        }
    }

    /// Draws a sequence, computes it alone, in batches and in chunks, and compares all bits.
    pub(crate) fn check_one(&mut self) {
        let part = self.draw();
        let alone = self.alone(&part);
        let dense = self.among_dense(&part);
        self.same(&alone, &dense, &part, "in a dense batch");
        let in_pages = !self.caches.is_empty();
        if in_pages {
            let paged = self.among_paged(&part);
            self.same(&alone, &paged, &part, "in a batch in pages");
        }
        let mut done = 0;
        let before = part.keys - part.queries.len();
        while done < part.queries.len() {
            let left = part.queries.len() - done;
            let count = self.random.within(1, left);
            let start = part.queries.start + done;
            let chunk = Part {
                queries: start..start + count,
                keys: match self.model.causal {
                    true => before + done + count,
                    false => part.keys,
                },
                ..part
            };
            let rows = match self.random.within(0, 1 + usize::from(in_pages)) {
                0 => self.alone(&chunk),
                1 => self.among_dense(&chunk),
                _ => self.among_paged(&chunk),
            };
            self.same(&alone[done..done + count], &rows, &chunk, "as a chunk");
            done += count;
        }
    }

    fn same(&self, expected: &[Vec<u8>], found: &[Vec<u8>], part: &Part, how: &str) {
        assert_eq!(expected.len(), found.len());
        for (row, (expected, found)) in expected.iter().zip(found).enumerate() {
            assert!(
                expected == found,
                "query {row} of {part:?} has other bits {how}: {:?}",
                self.model
            );
        }
    }

    fn draw(&mut self) -> Part {
        let (random, model) = (&mut self.random, &self.model);
        let most = model.longest_queries;
        let queries = match random.within(0, 2) {
            0 => 1,
            1 => random.within(1, most.min(8)),
            _ => random.within(1, most),
        };
        let keys = match random.within(0, 3) {
            0 => random.within(queries, model.longest_keys),
            // A few keys around a cut.
            1 => 256 * random.within(1, 4) - 1 + random.within(0, 2),
            _ => random.within(queries, 1000),
        };
        let start = random.within(0, most - queries);
        Part {
            sequence: random.within(0, SEQUENCES - 1),
            queries: start..start + queries,
            keys: keys.clamp(queries, model.longest_keys),
        }
    }

    fn alone(&self, part: &Part) -> Rows {
        let one = part.sequence..part.sequence + 1;
        let q = self.q.entries(one.clone()).unwrap();
        let q = q.rows(part.queries.clone()).unwrap();
        let keys = |of: &Tensor<T>| {
            let of = of.entries(one.clone()).unwrap();
            of.rows(0..part.keys).unwrap()
        };
        let (k, v) = (keys(&self.k), keys(&self.v));
        let scores = self.scores(one, part.queries.clone(), part.keys);
        let keys = scores.with(Keys::new(&k, &v));
        let output = self.model.attention.forward(&q, keys).unwrap();
        self.rows(&output, 0, 0..part.queries.len())
    }

    /// Neighbours with the same first query and lengths of their own.
    fn among_dense(&mut self, part: &Part) -> Rows {
        let first = self.random.within(0, part.sequence);
        let end = self.random.within(part.sequence + 1, SEQUENCES);
        let start = part.queries.start;
        let room = self.model.longest_queries - start;
        let most_queries = self
            .random
            .within(part.queries.len(), room.min(part.queries.len() + 9));
        let most_keys = self.model.longest_keys.min(part.keys + 300);
        let most_keys = self.random.within(part.keys, most_keys);
        let mut query_lengths = Vec::new();
        let mut key_lengths = Vec::new();
        for sequence in first..end {
            let (queries, keys) = match sequence == part.sequence {
                true => (part.queries.len(), part.keys),
                false => (
                    self.random.within(0, most_queries),
                    self.random.within(0, most_keys),
                ),
            };
            query_lengths.push(queries as i32);
            key_lengths.push(keys as i32);
        }
        let cut = |of: &Tensor<T>, rows: Range<usize>| {
            let of = of.entries(first..end).unwrap();
            of.rows(rows).unwrap()
        };
        let q = cut(&self.q, start..start + most_queries);
        let (k, v) = (cut(&self.k, 0..most_keys), cut(&self.v, 0..most_keys));
        let queries = Queries::new(&q).lengths(&query_lengths);
        let scores = self.scores(first..end, start..start + most_queries, most_keys);
        let keys = scores.with(Keys::new(&k, &v).lengths(&key_lengths));
        let output = self.model.attention.forward(queries, keys).unwrap();
        self.rows(&output, part.sequence - first, 0..part.queries.len())
    }

    /// The tensors of scores of some queries of some sequences with their first keys.
    fn scores(&self, sequences: Range<usize>, queries: Range<usize>, keys: usize) -> Scores<T> {
        let heads = self.model.heads.query;
        let shape = |heads| [sequences.len(), queries.len(), heads, keys];
        Scores {
            bias: self.model.has_bias.then(|| {
                let bias = self.part(&self.bias, heads, &sequences, &queries, keys);
                self.backend.tensor(&bias, shape(heads)).unwrap()
            }),
            key_mask: self.model.has_key_mask.then(|| {
                let mask = self.part(&self.key_mask, 1, &sequences, &queries, keys);
                self.backend.tensor(&mask, shape(1)).unwrap()
            }),
        }
    }

    /// A part of numbers of `[sequence, query, head, key]`.
    fn part<U: Copy>(
        &self,
        numbers: &[U],
        heads: usize,
        sequences: &Range<usize>,
        queries: &Range<usize>,
        keys: usize,
    ) -> Vec<U> {
        let Model {
            longest_queries,
            longest_keys,
            ..
        } = self.model;
        let rows = sequences.clone().flat_map(|sequence| {
            let first = sequence * longest_queries;
            (first + queries.start) * heads..(first + queries.end) * heads
        });
        rows.flat_map(|row| numbers[row * longest_keys..][..keys].iter().copied())
            .collect()
    }

    /// Any neighbours in any order, over pages of any size.
    fn among_paged(&mut self, part: &Part) -> Rows {
        let count = self.random.within(1, 8);
        let place = self.random.within(0, count - 1);
        let parts: Vec<Part> = (0..count)
            .map(|at| match at == place {
                true => part.clone(),
                false => self.draw(),
            })
            .collect();
        let row = self.model.heads.query * self.model.heads.dim;
        let (mut packed, mut offsets, mut lengths) = (Vec::new(), vec![0], Vec::new());
        for part in &parts {
            let start = part.sequence * self.model.longest_queries;
            let (from, to) = (start + part.queries.start, start + part.queries.end);
            packed.extend_from_slice(&self.queries[from * row..to * row]);
            offsets.push((packed.len() / row) as i32);
            lengths.push(part.keys as i32);
        }
        let total = packed.len() / row;
        let shape = [1, total, self.model.heads.query, self.model.heads.dim];
        let q = self.backend.tensor(&packed, shape).unwrap();
        let cache = &self.caches[self.random.within(0, CACHES - 1)];
        let needed = |part: &Part| part.keys.div_ceil(cache.page_rows);
        let columns = parts.iter().map(needed).max().unwrap_or(0);
        let mut table = Vec::new();
        for part in &parts {
            let row = &cache.table[part.sequence * cache.columns..][..columns];
            let pages = row.iter().enumerate();
            // Entries past a sequence's end are not pages.
            table.extend(pages.map(|(column, &page)| match column < needed(part) {
                true => page,
                false => -1,
            }));
        }
        let keys = Keys::paged(&cache.k, &cache.v, &table, [count, columns]).lengths(&lengths);
        let queries = Queries::new(&q).packed(&offsets);
        let output = self.model.attention.forward(queries, keys).unwrap();
        let start = offsets[place] as usize;
        self.rows(&output, 0, start..start + part.queries.len())
    }

    /// The bits of some rows of a batch entry.
    fn rows(&self, output: &Output<T>, entry: usize, rows: Range<usize>) -> Rows {
        let kernel = output.plan.kernel_name();
        assert_eq!(kernel, *self.kernel.get_or_init(|| kernel));
        let (layout, out) = (*output.out.layout(), output.out.to_vec().unwrap());
        let lse = output.lse.as_ref().unwrap();
        let [_, heads, length] = lse.shape();
        let lse = lse.to_vec().unwrap();
        rows.map(|row| {
            let mut bits = Vec::new();
            for head in 0..heads {
                let start = layout.offset(entry, row, head);
                let values = &out[start..start + self.model.heads.dim];
                bits.extend_from_slice(bytemuck::cast_slice(values));
                let lse = lse[(entry * heads + head) * length + row];
                assert!(lse.is_finite(), "every query sees a key");
                bits.extend_from_slice(bytemuck::bytes_of(&lse));
            }
            bits
        })
        .collect()
    }
}

/// Tensors over the scores of a call.
struct Scores<T: Element> {
    bias: Option<Tensor<T>>,
    key_mask: Option<Tensor<u8>>,
}

impl<T: Element> Scores<T> {
    fn with<'a>(&'a self, mut keys: Keys<'a, T>) -> Keys<'a, T> {
        if let Some(bias) = &self.bias {
            keys = keys.bias(bias);
        }
        if let Some(key_mask) = &self.key_mask {
            keys = keys.key_mask(key_mask);
        }
        keys
    }
}

impl<T: Element> Cache<T> {
    fn new(
        model: &Model,
        backend: &Backend,
        random: &mut Random,
        [keys, values]: [&[T]; 2],
    ) -> Self {
        let page_rows = match random.within(0, 1) {
            0 => random.pick(&[1, 16, 64, 128, 256]),
            _ => random.within(1, 256),
        };
        let columns = model.longest_keys.div_ceil(page_rows);
        let pages = SEQUENCES * columns + 3;
        let mut table: Vec<i32> = (0..pages as i32).collect();
        for last in (1..pages).rev() {
            table.swap(last, random.within(0, last));
        }
        let row = model.heads.key_value * model.heads.dim;
        let shape = [pages, page_rows, model.heads.key_value, model.heads.dim];
        let place = |from: &[T]| {
            let mut cache = vec![T::from_f32(f32::NAN); pages * page_rows * row];
            for sequence in 0..SEQUENCES {
                for key in 0..model.longest_keys {
                    let page = table[sequence * columns + key / page_rows] as usize;
                    let to = (page * page_rows + key % page_rows) * row;
                    let from = &from[(sequence * model.longest_keys + key) * row..][..row];
                    cache[to..to + row].copy_from_slice(from);
                }
            }
            backend.tensor(&cache, shape).unwrap()
        };
        Cache {
            page_rows,
            columns,
            k: place(keys),
            v: place(values),
            table,
        }
    }
}
