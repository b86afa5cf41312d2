//! Random cache writes, and what must stand in the cache and in the queries after them.

use warptile::spec::{Append, Pairing, Rotary};
use warptile::{Element, ElementType, Layout};

use crate::draw::{Memory, Random};

/// The most new rows of a sequence.
const MOST: usize = 5;

/// Where rows go.
pub(crate) enum Targets {
    Slots(Vec<i64>),
    /// Rows of each sequence so far, and pages with the columns of the table.
    Lengths(Vec<i32>, Option<(Vec<i32>, usize)>),
}

/// Tables of cosines and sines.
pub(crate) enum AngleTables<T> {
    F32(Memory<f32>, Memory<f32>),
    Elements(Memory<T>, Memory<T>),
}

pub(crate) struct AppendCase<T> {
    pub(crate) k: Memory<T>,
    pub(crate) v: Memory<T>,
    /// Keys and values. With `together`, both are in the first one, and values start that many elements after keys.
    pub(crate) caches: (Memory<T>, Memory<T>),
    pub(crate) together: Option<usize>,
    /// Queries, and where they go if not in place.
    pub(crate) q: Option<(Memory<T>, Option<Memory<T>>)>,
    pub(crate) targets: Targets,
    pub(crate) offsets: Option<Vec<i32>>,
    pub(crate) row_lengths: Option<Vec<i32>>,
    pub(crate) positions: Option<Vec<i32>>,
    pub(crate) rotary: Option<Rotary>,
    pub(crate) tables: Option<AngleTables<T>>,
    /// Radians a position, if angles are computed.
    frequencies: Vec<f64>,
}

/// Where a write happens: changes caches and queries.
pub(crate) trait Appends<T> {
    fn append(&mut self, case: &mut AppendCase<T>);
}

/// The requirement on an element.
#[derive(Clone)]
enum Want {
    Bits(Vec<u8>),
    Near(f64),
}

impl<T: Element> AppendCase<T> {
    pub(crate) fn random(seed: u64, unchecked: bool) -> Self {
        let mut random = Random(seed);
        let packed = random.once_in(3);
        let batch = random.within(1, if packed { 9 } else { 4 });
        let most = random.within(1, MOST);
        let heads = random.within(1, 3);
        let dim = random.pick(&[8, 64, 128, 40, 20]);
        let together = random.once_in(3);
        let value_dim = if together {
            dim
        } else {
            random.pick(&[dim, dim, 24])
        };
        let by_slots = random.once_in(2);
        let dense = !by_slots && random.once_in(3);
        let mut page_rows = random.pick(&[1, 3, 16]);
        let mut columns = random.within(1, 6);
        if !unchecked {
            // Then new rows without room are an error.
            match dense {
                true => page_rows = page_rows.max(most),
                false => columns = columns.max(most.div_ceil(page_rows)),
            }
        }

        // New rows.
        // One long sequence and short ones have fewer rows than the grid of as many long ones.
        let short = if random.once_in(2) { most.min(1) } else { most };
        let mut lens: Vec<usize> = (0..batch).map(|_| random.within(0, short)).collect();
        lens[random.within(0, batch - 1)] = most;
        let mut offsets = vec![0_i32];
        for len in &lens {
            offsets.push(offsets[offsets.len() - 1] + *len as i32);
        }
        let total = offsets[batch] as usize + random.within(0, 2);
        let packed = packed && !by_slots;
        let rows_shape = |heads, dim| match packed {
            true => [1, total, heads, dim],
            false => [batch, most, heads, dim],
        };
        let tokens = if packed { total } else { batch * most };
        let mut unit = Random(random.next());
        let mut rows = |random: &mut Random, heads, dim| {
            let layout = random.layout(rows_shape(heads, dim));
            Memory::<T>::new(random, layout, f32::NAN, |_| unit.unit())
        };
        let k = rows(&mut random, heads, dim);
        let v = rows(&mut random, heads, value_dim);

        // The cache, as it was.
        let capacity = if dense {
            page_rows
        } else {
            columns * page_rows
        };
        let pages = if dense {
            batch
        } else {
            batch * columns + random.within(0, 3)
        };
        let (caches, together) = if together {
            let both = [pages, page_rows, 2 * heads, dim];
            let layout = random.pick(&[
                Layout::bshd(both),
                Layout::bhsd([both[0], both[2], both[1], dim]),
            ]);
            let at = heads * layout.strides[2];
            let mut memory = Memory::new(&mut random, layout, f32::NAN, |_| 9.0);
            memory.layout.shape[2] = heads;
            let other = memory.clone();
            ((memory, other), Some(at))
        } else {
            let mut cache = |dim| {
                let layout = random.layout([pages, page_rows, heads, dim]);
                Memory::new(&mut random, layout, f32::NAN, |_| 9.0)
            };
            ((cache(dim), cache(value_dim)), None)
        };

        // Where rows go: each slot and page once, and some that do not exist.
        let mut order: Vec<usize> = (0..pages * if by_slots { page_rows } else { 1 }).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.within(0, last));
        }
        let targets = if by_slots {
            let slots = (0..tokens).map(|token| match random.within(0, 9) {
                0 => -1,
                1 => random.pick(&[i64::MIN, i64::MAX, (pages * page_rows) as i64, -2]),
                _ => order.get(token).map_or(-1, |&slot| slot as i64),
            });
            Targets::Slots(slots.collect())
        } else {
            let before = (0..batch).map(|sequence| {
                let new = if packed { lens[sequence] } else { most };
                match unchecked && random.once_in(4) {
                    true => {
                        random.pick(&[-1, i32::MIN, i32::MAX, capacity as i32, capacity as i32 - 1])
                    }
                    false => random.within(0, capacity.saturating_sub(new)) as i32,
                }
            });
            let before = before.collect();
            let table = (!dense).then(|| {
                let pages = (0..batch * columns).map(|entry| match random.within(0, 9) {
                    0 => random.pick(&[-1, i32::MIN, i32::MAX, pages as i32]),
                    _ => order[entry] as i32,
                });
                (pages.collect(), columns)
            });
            Targets::Lengths(before, table)
        };
        let row_lengths = random.once_in(3).then(|| {
            let lens = lens
                .iter()
                .map(|&len| match unchecked && random.once_in(5) {
                    true => random.pick(&[-3, i32::MAX]),
                    false => random.within(0, len) as i32,
                });
            lens.collect()
        });

        // Rotation.
        let rotated = !random.once_in(4);
        let size = random.pick(&[dim, dim, dim / 2, 2]) / 2 * 2;
        let pairing = random.pick(&[Pairing::Interleaved, Pairing::HalfSplit]);
        let frequencies: Vec<f64> = (0..size / 2)
            .map(|pair| 10_000_f64.powf(-2.0 * pair as f64 / size as f64))
            .collect();
        // Numbers on the device may lead beyond the tables.
        let mut end = random.within(1, 40);
        if !unchecked {
            end = end.max(capacity);
        }
        let table_of = |random: &mut Random| {
            let shape = [1, end, 1, size / 2];
            Layout::new(shape, [0, size / 2 + random.pick(&[0, 4, size / 2]), 0, 1])
        };
        let (rotary, tables) = match random.within(0, 3) {
            0 => {
                let layout = table_of(&mut random);
                let mut table = |of: fn(f64) -> f64| {
                    Memory::<f32>::new(&mut random, layout, f32::NAN, |[_, position, _, pair]| {
                        of(position as f64 * frequencies[pair]) as f32
                    })
                };
                let tables = AngleTables::F32(table(f64::cos), table(f64::sin));
                (
                    Rotary::with_tables(ElementType::F32, layout, pairing),
                    Some(tables),
                )
            }
            1 => {
                let layout = table_of(&mut random);
                let mut table = |of: fn(f64) -> f64| {
                    Memory::<T>::new(&mut random, layout, f32::NAN, |[_, position, _, pair]| {
                        of(position as f64 * frequencies[pair]) as f32
                    })
                };
                let tables = AngleTables::Elements(table(f64::cos), table(f64::sin));
                (Rotary::with_tables(T::TYPE, layout, pairing), Some(tables))
            }
            _ => (Rotary::computed(size, 10_000.0, pairing), None),
        };
        let positions = (rotated && (by_slots || random.once_in(2))).then(|| {
            let last = match (&tables, unchecked) {
                (Some(_), false) => end as i32 - 1,
                _ => i32::MAX,
            };
            let position = |_| {
                let position = match random.within(0, 5) {
                    0 => random.pick(&[-1, -1_000_000, 999_999, 1 << 20]),
                    _ => random.within(0, 50) as i32,
                };
                position.min(last)
            };
            (0..tokens).map(position).collect()
        });
        let q = (rotated && random.once_in(2)).then(|| {
            let rows = |random: &mut Random, value: &mut dyn FnMut() -> f32| {
                let layout = random.layout(rows_shape(2 * heads, dim));
                Memory::<T>::new(random, layout, f32::NAN, |_| value())
            };
            let q = rows(&mut random, &mut || unit.unit());
            let out = random.once_in(2);
            (q, out.then(|| rows(&mut random, &mut || f32::NAN)))
        });
        AppendCase {
            k,
            v,
            caches,
            together,
            q,
            targets,
            offsets: packed.then_some(offsets),
            row_lengths,
            positions,
            rotary: rotated.then(|| rotary.unwrap()),
            tables: tables.filter(|_| rotated),
            frequencies,
        }
    }

    pub(crate) fn batch(&self) -> usize {
        let offsets = self.offsets.as_ref().map(|offsets| offsets.len() - 1);
        offsets.unwrap_or(self.k.layout.batch())
    }

    /// The description, with its numbers on the host or on the device; there positions have 64 bits if `wide`.
    pub(crate) fn describe(&self, on_device: bool, wide: bool) -> Append {
        let caches = [&self.caches.0.layout, &self.caches.1.layout];
        let mut builder = Append::builder(T::TYPE, [&self.k.layout, &self.v.layout], caches);
        match (&self.targets, on_device) {
            (Targets::Slots(slots), false) => builder = builder.slots(slots),
            (Targets::Slots(_), true) => builder = builder.device_slots(),
            (Targets::Lengths(before, table), false) => {
                builder = builder.key_lengths(before);
                if let Some((table, columns)) = table {
                    builder = builder.block_table(table, *columns);
                }
            }
            (Targets::Lengths(before, table), true) => {
                builder = builder.device_key_lengths(before.len());
                if let Some((_, columns)) = table {
                    builder = builder.device_block_table(*columns);
                }
            }
        }
        match (&self.offsets, on_device) {
            (Some(offsets), false) => builder = builder.packed(offsets),
            (Some(_), true) => builder = builder.device_packed(self.batch(), MOST),
            _ => {}
        }
        match (&self.row_lengths, on_device) {
            (Some(lengths), false) => builder = builder.row_lengths(lengths),
            (Some(_), true) => builder = builder.device_row_lengths(self.batch()),
            _ => {}
        }
        match (&self.positions, on_device) {
            (Some(positions), false) => builder = builder.positions(positions),
            (Some(_), true) => builder = builder.device_positions(wide),
            _ => {}
        }
        if let Some(rotary) = &self.rotary {
            builder = builder.rotary(rotary.clone());
        }
        if let Some((q, out)) = &self.q {
            builder = builder.queries(q.layout, out.as_ref().map(|out| out.layout));
        }
        builder.build().unwrap()
    }

    /// Writes and holds caches and queries against float64.
    pub(crate) fn verify(mut self, place: &mut impl Appends<T>) -> Result<(), String> {
        let wanted = self.wanted();
        place.append(&mut self);
        let q = self.q.as_ref().map(|(q, out)| out.as_ref().unwrap_or(q));
        let found = [Some(&self.caches.0), Some(&self.caches.1), q];
        for ((found, wanted), name) in found.into_iter().zip(wanted).zip(["keys", "values", "q"]) {
            let Some(found) = found else { continue };
            for (index, (value, want)) in found.data.iter().zip(wanted).enumerate() {
                let right = match &want {
                    Want::Bits(bits) => bytemuck::bytes_of(value) == bits,
                    Want::Near(expected) => {
                        let rounding = match T::TYPE {
                            ElementType::F16 => 4.9e-4,
                            ElementType::Bf16 => 3.92e-3,
                            _ => 6e-8,
                        };
                        (value.to_f64() - expected).abs() <= rounding * expected.abs() + 6e-7
                    }
                };
                if !right {
                    let expected = match want {
                        Want::Bits(bits) => format!("the bits {bits:?}"),
                        Want::Near(expected) => expected.to_string(),
                    };
                    return Err(format!(
                        "{name}: element {index} is {value:?}, not {expected}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The requirement on every element of the caches and the queries.
    fn wanted(&self) -> [Vec<Want>; 3] {
        let bits = |memory: &Memory<T>| {
            let bits = |value: &T| Want::Bits(bytemuck::bytes_of(value).to_vec());
            memory.data.iter().map(bits).collect::<Vec<Want>>()
        };
        let (keys_at, values_at) = (self.caches.0.offset, self.together);
        let mut keys = bits(&self.caches.0);
        let mut values = bits(&self.caches.1);
        let q_to = self.q.as_ref().map(|(q, out)| out.as_ref().unwrap_or(q));
        let mut queries = q_to.map(bits).unwrap_or_default();
        let [_, row_count, heads, _] = self.k.layout.shape;
        let [pages, page_rows, ..] = self.caches.0.layout.shape;
        for sequence in 0..self.batch() {
            let (entry, first, mut len) = match &self.offsets {
                Some(offsets) => {
                    let first = offsets[sequence];
                    (0, first as usize, (offsets[sequence + 1] - first) as usize)
                }
                None => (sequence, 0, row_count),
            };
            if let Some(lengths) = &self.row_lengths {
                len = len.min(lengths[sequence].max(0) as usize);
            }
            for number in 0..len {
                let row = first + number;
                let of_all = entry * row_count + row;
                let (place, in_sequence) = match &self.targets {
                    Targets::Slots(slots) => {
                        let slot = slots[of_all];
                        let exists = (0..(pages * page_rows) as i64).contains(&slot);
                        let slot = slot as usize;
                        (exists.then(|| (slot / page_rows, slot % page_rows)), 0)
                    }
                    Targets::Lengths(before, table) => {
                        let at = before[sequence].max(0) as usize + number;
                        let page = match table {
                            Some((table, columns)) if at < columns * page_rows => {
                                Some(table[sequence * columns + at / page_rows])
                            }
                            None if at < page_rows => Some(sequence as i32),
                            _ => None,
                        };
                        let page = page.filter(|page| (0..pages as i32).contains(page));
                        (page.map(|page| (page as usize, at % page_rows)), at)
                    }
                };
                let position = match &self.positions {
                    Some(positions) => i64::from(positions[of_all]),
                    None => in_sequence as i64,
                };
                if let Some((page, to_row)) = place {
                    for head in 0..heads {
                        let to = keys_at + self.caches.0.layout.offset(page, to_row, head);
                        let row_of_k = self.k.row(entry, row, head);
                        self.rotated(row_of_k, position, &mut keys[to..]);
                        let layout = self.caches.1.layout.offset(page, to_row, head);
                        let (memory, to) = match values_at {
                            Some(at) => (&mut keys, keys_at + at + layout),
                            None => (&mut values, self.caches.1.offset + layout),
                        };
                        for (to, value) in memory[to..].iter_mut().zip(self.v.row(entry, row, head))
                        {
                            *to = Want::Bits(bytemuck::bytes_of(value).to_vec());
                        }
                    }
                }
                if let (Some((q, _)), Some(to)) = (&self.q, q_to) {
                    for head in 0..q.layout.heads() {
                        let at = to.offset + to.layout.offset(entry, row, head);
                        self.rotated(q.row(entry, row, head), position, &mut queries[at..]);
                    }
                }
            }
        }
        [keys, values, queries]
    }

    /// A row as it must be in the cache.
    fn rotated(&self, row: &[T], position: i64, to: &mut [Want]) {
        for (to, value) in to.iter_mut().zip(row) {
            *to = Want::Bits(bytemuck::bytes_of(value).to_vec());
        }
        let Some(rotary) = &self.rotary else { return };
        for pair in 0..rotary.size() / 2 {
            let (first, second) = match rotary.pairing() {
                Pairing::Interleaved => (2 * pair, 2 * pair + 1),
                Pairing::HalfSplit => (pair, rotary.size() / 2 + pair),
            };
            let position = position.clamp(0, (1 << 30) - 1);
            let in_table = |end: usize| (position as usize).min(end - 1);
            let (cos, sin) = match &self.tables {
                Some(AngleTables::F32(cos, sin)) => {
                    let position = in_table(cos.layout.rows());
                    let of = |table: &Memory<f32>| f64::from(table.row(0, position, 0)[pair]);
                    (of(cos), of(sin))
                }
                Some(AngleTables::Elements(cos, sin)) => {
                    let position = in_table(cos.layout.rows());
                    let of = |table: &Memory<T>| table.row(0, position, 0)[pair].to_f64();
                    (of(cos), of(sin))
                }
                None => {
                    let (sin, cos) = (position as f64 * self.frequencies[pair]).sin_cos();
                    (cos, sin)
                }
            };
            let (x, y) = (row[first].to_f64(), row[second].to_f64());
            to[first] = Want::Near(x * cos - y * sin);
            to[second] = Want::Near(x * sin + y * cos);
        }
    }
}
