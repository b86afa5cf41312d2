//! The backward pass on the CPU: everything in `f32`, block by block.
//!
//! It has two passes over the scores, one task for each block of keys of a key/value head and one for each block of queries of a head. A
//! task adds up its gradients alone and in a fixed order, so no bit depends on the number of threads. The gradient of a bias takes a third
//! pass, with a task for each tile of it.

use std::f32::consts::LOG2_E;

use warptile_kernels::Operand;

use crate::cpu::SharedMut;
use crate::cpu::isa::{Isa, Work};
use crate::cpu::lanes::{Lanes, MAX_WIDTH};
use crate::cpu::operands::{KeyViews, Operands};
use crate::cpu::prepass::rows_into;
use crate::cpu::products::add_product;
use crate::cpu::shown::ShownKeys;
use crate::cpu::stop::Stop;
use crate::cpu::threads::in_parallel;
use crate::error::Result;
use crate::spec::{
    Backward, Blocks, Call, DropoutRow, Element, HostInputs, HostOutputs, Layout, Prepass,
    Sequence, View, host, with_element,
};

/// Queries of a block.
const BLOCK_M: usize = 64;

/// Keys of a block.
const BLOCK_N: usize = 64;

/// Computes the gradients of a call on the CPU. See [`Backward`] for the rules; what [`forward_cpu`](crate::cpu::forward_cpu) says of
/// threads, and of what lies behind a length, holds here, too.
///
/// Sums are made in `f32`. The result depends on the processor's vector instructions in its last bits, and on nothing else.
///
/// # Errors
/// Memory that is not that of the description; lengths that are on a device. [`Error::Stopped`](crate::Error::Stopped) if the caller's
/// [`Stop`](crate::cpu::Stop) was requested.
pub fn backward_cpu(
    backward: &Backward,
    inputs: &HostInputs<'_>,
    outputs: HostOutputs<'_>,
) -> Result<()> {
    with_element!(backward.call().element(), T => typed::<T>(backward, inputs, outputs))
}

fn typed<T: Element>(
    backward: &Backward,
    inputs: &HostInputs<'_>,
    mut outputs: HostOutputs<'_>,
) -> Result<()> {
    let call = backward.call();
    host::check(backward.expected(), None, inputs, Some(&outputs))?;
    let tensor = |operand| inputs.elements::<T>(operand).map(Option::unwrap_or_default);
    let floats = |operand| inputs.elements::<f32>(operand);
    let prepass = backward.prepass();
    let d_out = View::new(tensor(Operand::DOut)?, *backward.d_out());
    let (mut delta, mut scaled_lse) = (vec![0.0; prepass.len()], vec![0.0; prepass.len()]);
    rows_into(
        prepass,
        [tensor(Operand::Out)?, d_out.data],
        floats(Operand::Lse)?.unwrap_or_default(),
        floats(Operand::DLse)?,
        [&mut delta, &mut scaled_lse],
    )?;
    let operands = Operands::<T>::new(call, inputs)?;
    let KeyViews::Same([k, v]) = operands.keys else {
        // No backward pass has quantized keys.
        return Ok(());
    };
    let pass = Pass {
        backward,
        isa: Isa::best(),
        operands,
        k,
        v,
        d_out,
        delta: &delta,
        scaled_lse: &scaled_lse,
        stop: Stop::current(),
    };
    let mut taken = |operand| -> Result<_> {
        let Some(layout) = backward.gradient(operand) else {
            return Ok(None);
        };
        let memory = match backward.type_of(operand) == T::TYPE {
            true => { outputs.take::<T>(operand)? }.map(|to| Memory::Rounded(SharedMut::new(to))),
            false => { outputs.take::<f32>(operand)? }.map(|to| Memory::F32(SharedMut::new(to))),
        };
        Ok(memory.map(|memory| Target {
            memory,
            layout: *layout,
            adds: backward.adds_to(operand),
        }))
    };
    let (dq, dk, dv) = (
        taken(Operand::DQ)?,
        taken(Operand::DK)?,
        taken(Operand::DV)?,
    );
    let blocks = |rows: usize, heads: usize, block: usize| {
        let of_head = rows.div_ceil(block);
        (of_head, call.batch() * heads * of_head)
    };
    let (of_head, count) = blocks(call.query_len(), call.heads().query, BLOCK_M);
    if let Some(dq) = &dq {
        in_parallel(count, |index| {
            let (batch, head) = (
                index / of_head / call.heads().query,
                index / of_head % call.heads().query,
            );
            let sequence = call.sequence(batch);
            let first = index % of_head * BLOCK_M;
            if first < sequence.q_len {
                let sums = pass.of_queries(&sequence, head, first);
                let rows = BLOCK_M.min(sequence.q_len - first);
                // SAFETY: the rows of this block are those of this task alone.
                unsafe {
                    dq.store(
                        &sums,
                        [sequence.q_entry, sequence.q_start + first, head],
                        rows,
                    );
                }
            }
        })?;
    }
    let (of_head, count) = blocks(call.key_len(), call.heads().key_value, BLOCK_N);
    if dk.is_some() || dv.is_some() {
        in_parallel(count, |index| {
            let heads = call.heads().key_value;
            let (batch, head) = (index / of_head / heads, index / of_head % heads);
            let sequence = call.sequence(batch);
            let first = index % of_head * BLOCK_N;
            if first < sequence.k_len {
                let sums = pass.of_keys(&sequence, head, first);
                let rows = BLOCK_N.min(sequence.k_len - first);
                for (to, sums) in [&dk, &dv].into_iter().zip(&sums) {
                    let place = [sequence.k_entry, sequence.k_start + first, head];
                    if let Some(to) = to {
                        // SAFETY: as above.
                        unsafe { to.store(sums, place, rows) };
                    }
                }
            }
        })?;
    }
    if let Some(d_bias) = taken(Operand::DBias)? {
        let tiles = BiasTiles::of(call, d_bias.layout.shape);
        in_parallel(tiles.count(), |index| {
            let place = tiles.place(index);
            let sums = pass.of_bias(&tiles, place);
            // SAFETY: the elements of this tile are those of this task alone.
            unsafe { d_bias.store_scores(&sums, place) };
        })?;
    }
    if let Some(d_sinks) = outputs.take::<f32>(Operand::DSinks)? {
        let sinks = floats(Operand::Sinks)?.unwrap_or_default().iter();
        let of_heads = { sinks.enumerate() }.map(|(head, sink)| pass.of_sink(prepass, head, *sink));
        let of_heads: Vec<f32> = of_heads.collect();
        round(d_sinks, &of_heads, backward.adds_to(Operand::DSinks));
    }
    pass.stop.check()
}

/// Where a gradient goes.
struct Target<T> {
    memory: Memory<T>,
    layout: Layout,
    adds: bool,
}

/// The memory of a gradient.
enum Memory<T> {
    /// In the type of the tensors.
    Rounded(SharedMut<T>),
    F32(SharedMut<f32>),
}

impl<T: Element> Target<T> {
    /// Rounds rows of a gradient, from the first one at `place`: entry, row and head.
    ///
    /// # Safety
    /// Nobody else has these rows.
    unsafe fn store(&self, sums: &Rows, [entry, first, head]: [usize; 3], rows: usize) {
        let (layout, adds) = (&self.layout, self.adds);
        for (row, numbers) in sums.data.chunks_exact(sums.stride).take(rows).enumerate() {
            let start = layout.offset(entry, first + row, head);
            // SAFETY: the caller's promise; the memory holds the layout, whose rows do not overlap.
            unsafe {
                match &self.memory {
                    Memory::Rounded(to) => round(to.slice(start, layout.head_dim()), numbers, adds),
                    Memory::F32(to) => round(to.slice(start, layout.head_dim()), numbers, adds),
                }
            }
        }
    }

    /// Rounds a tile of the gradient of a bias, whose first element is that of a batch entry, query, head and key.
    ///
    /// # Safety
    /// Nobody else has these elements.
    unsafe fn store_scores(&self, sums: &Rows, [entry, query, head, key]: [usize; 4]) {
        let (layout, adds) = (&self.layout, self.adds);
        let [_, queries, _, keys] = layout.shape;
        let columns = BLOCK_N.min(keys - key);
        let rows = sums.data.chunks_exact(sums.stride).take(queries - query);
        for (row, numbers) in rows.enumerate() {
            let start = layout.offset(entry, query + row, head) + key;
            // SAFETY: the caller's promise; the memory holds the layout, whose elements do not overlap.
            unsafe {
                match &self.memory {
                    Memory::Rounded(to) => round(to.slice(start, columns), numbers, adds),
                    Memory::F32(to) => round(to.slice(start, columns), numbers, adds),
                }
            }
        }
    }
}

/// The tiles of the gradient of a bias, and what each sums over.
struct BiasTiles {
    /// Batch entries, queries, heads and keys of the gradient: 1 for all.
    shape: [usize; 4],
    /// Those of the call.
    of_call: [usize; 4],
}

impl BiasTiles {
    const EXTENTS: [usize; 4] = [1, BLOCK_M, 1, BLOCK_N];

    fn of(call: &Call, shape: [usize; 4]) -> Self {
        BiasTiles {
            shape,
            of_call: [
                call.batch(),
                call.query_len(),
                call.heads().query,
                call.key_len(),
            ],
        }
    }

    fn counts(&self) -> [usize; 4] {
        std::array::from_fn(|d| self.shape[d].div_ceil(Self::EXTENTS[d]))
    }

    fn count(&self) -> usize {
        self.counts().iter().product()
    }

    /// The first element of a tile.
    fn place(&self, mut index: usize) -> [usize; 4] {
        let mut place = [0; 4];
        for d in [3, 1, 2, 0] {
            let count = self.counts()[d];
            place[d] = index % count * Self::EXTENTS[d];
            index /= count;
        }
        place
    }

    /// The numbers along a dimension, of all that share the tile, that blocks or single ones begin with.
    fn shared(&self, dimension: usize, place: [usize; 4]) -> impl Iterator<Item = usize> + use<> {
        let range = match self.shape[dimension] {
            1 => 0..self.of_call[dimension],
            _ => place[dimension]..place[dimension] + 1,
        };
        range.step_by(Self::EXTENTS[dimension])
    }
}

/// Rounds numbers, or their sums with what is there.
fn round<G: Element>(to: &mut [G], numbers: &[f32], adds: bool) {
    for (to, x) in to.iter_mut().zip(numbers) {
        // The sign of an empty sum, 0 or -0, depends on the number of terms.
        let before = if adds { to.to_f32() } else { 0.0 };
        *to = G::from_f32(x + before);
    }
}

/// Rows of numbers with zeros behind, so that each is a multiple of every register.
struct Rows {
    data: Vec<f32>,
    stride: usize,
}

impl Rows {
    fn zeros(rows: usize, size: usize) -> Self {
        let stride = size.next_multiple_of(MAX_WIDTH);
        Rows {
            data: vec![0.0; rows * stride],
            stride,
        }
    }

    /// `count` rows of a tensor from the one at `place` on, of `rows`; zeros for the others.
    fn of<T: Element>(
        view: &View<'_, T>,
        [entry, first, head]: [usize; 3],
        count: usize,
        rows: usize,
    ) -> Self {
        let mut to = Rows::zeros(rows, view.layout.head_dim());
        for (row, to) in to.data.chunks_exact_mut(to.stride).take(count).enumerate() {
            for (to, x) in to.iter_mut().zip(view.row(entry, first + row, head)) {
                *to = x.to_f32();
            }
        }
        to
    }

    fn transposed(&self) -> Self {
        let rows = self.data.len() / self.stride;
        let mut to = Rows::zeros(self.stride, rows);
        for (row, numbers) in self.data.chunks_exact(self.stride).enumerate() {
            for (column, x) in numbers.iter().enumerate() {
                to.data[column * to.stride + row] = *x;
            }
        }
        to
    }
}

/// `out += a b`: `a` has a row for each of `out`, or a column if it is `transposed`.
struct Product<'a> {
    a: &'a Rows,
    transposed: bool,
    b: &'a Rows,
    out: &'a mut Rows,
}

impl Work for Product<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        let Product {
            a,
            transposed,
            b,
            out,
        } = self;
        let (rows, steps) = (out.data.len() / out.stride, b.data.len() / b.stride);
        let [a_row, a_step] = match transposed {
            true => [1, a.stride],
            false => [a.stride, 1],
        };
        assert!((rows - 1) * a_row + (steps - 1) * a_step < a.data.len() && out.stride == b.stride);
        let mut row = 0;
        while row < rows {
            let many = row + ROWS <= rows;
            let mut column = 0;
            while column < out.stride {
                let wide = column + COLUMNS * L::WIDTH <= out.stride;
                // SAFETY: the caller vouches for the instructions, and the assertion for the elements.
                unsafe {
                    let a = (a.data.as_ptr().add(row * a_row), a_row, a_step);
                    let b = b.data.as_ptr().add(column);
                    let to = out.data.as_mut_ptr().add(row * out.stride + column);
                    let strides = (steps, out.stride);
                    match (many, wide) {
                        (true, true) => block::<L, ROWS, COLUMNS>(a, b, to, strides),
                        (true, false) => block::<L, ROWS, 1>(a, b, to, strides),
                        (false, true) => block::<L, 1, COLUMNS>(a, b, to, strides),
                        (false, false) => block::<L, 1, 1>(a, b, to, strides),
                    }
                }
                column += L::WIDTH * if wide { COLUMNS } else { 1 };
            }
            row += if many { ROWS } else { 1 };
        }
    }
}

/// # Safety
/// As [`add_product`]; `to` has as many rows and columns.
#[inline(always)]
unsafe fn block<L: Lanes, const ROWS: usize, const COLUMNS: usize>(
    a: (*const f32, usize, usize),
    b: *const f32,
    to: *mut f32,
    (steps, stride): (usize, usize),
) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let at = |row: usize, column: usize| to.add(row * stride + column * L::WIDTH);
        let mut sums = [[L::splat(0.0); COLUMNS]; ROWS];
        for (row, sums) in sums.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum = L::load(at(row, column));
            }
        }
        let sums = add_product(sums, steps, a, |step| b.add(step * stride));
        for (row, sums) in sums.into_iter().enumerate() {
            for (column, sum) in sums.into_iter().enumerate() {
                sum.store(at(row, column));
            }
        }
    }
}

/// `2^x` of each number.
struct Exponentials<'a>(&'a mut [f32]);

impl Work for Exponentials<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        assert!(self.0.len().is_multiple_of(L::WIDTH));
        for numbers in self.0.chunks_exact_mut(L::WIDTH) {
            // SAFETY: the caller vouches for the instructions; the chunk is a register's.
            unsafe { L::load(numbers.as_ptr()).exp2().store(numbers.as_mut_ptr()) };
        }
    }
}

/// A block of queries of a head, or of keys of a key/value head.
struct Panels {
    /// Queries, or keys.
    rows: Rows,
    /// Gradients of outputs, or values.
    values: Rows,
}

struct Pass<'a, T> {
    backward: &'a Backward,
    isa: Isa,
    operands: Operands<'a, T>,
    k: View<'a, T>,
    v: View<'a, T>,
    d_out: View<'a, T>,
    delta: &'a [f32],
    scaled_lse: &'a [f32],
    stop: Stop,
}

impl<T: Element> Pass<'_, T> {
    fn call(&self) -> &Call {
        self.backward.call()
    }

    fn queries(&self, sequence: &Sequence, head: usize, first: usize) -> Panels {
        let count = BLOCK_M.min(sequence.q_len - first);
        let place = [sequence.q_entry, sequence.q_start + first, head];
        Panels {
            rows: Rows::of(&self.operands.q, place, count, BLOCK_M),
            values: Rows::of(&self.d_out, place, count, BLOCK_M),
        }
    }

    fn keys(&self, sequence: &Sequence, head: usize, first: usize) -> Panels {
        let count = BLOCK_N.min(sequence.k_len - first);
        let place = [sequence.k_entry, sequence.k_start + first, head];
        Panels {
            rows: Rows::of(&self.k, place, count, BLOCK_N),
            values: Rows::of(&self.v, place, count, BLOCK_N),
        }
    }

    /// The first numbers of blocks; none from the moment on when the caller wants no more.
    fn blocks(&self, count: usize, block: usize) -> impl Iterator<Item = usize> {
        let blocks = (0..count).step_by(block);
        blocks.take_while(|_| !self.stop.is_requested())
    }

    /// The gradient of a block of queries.
    fn of_queries(&self, sequence: &Sequence, head: usize, first: usize) -> Rows {
        let heads = self.call().heads();
        let queries = self.queries(sequence, head, first);
        let mut dq = Rows::zeros(BLOCK_M, heads.dim);
        for first_key in self.blocks(sequence.k_len, BLOCK_N) {
            if !self.meet(sequence, head, first, first_key) {
                continue;
            }
            let keys = self.keys(sequence, head / heads.group_size(), first_key);
            let place = [first, first_key];
            let [_, ds] = self.weights(sequence, head, place, &queries, &keys, false);
            self.add(&ds, false, &keys.rows, &mut dq);
        }
        self.scale(&mut dq);
        dq
    }

    /// The gradients of a block of keys and of their values.
    fn of_keys(&self, sequence: &Sequence, kv_head: usize, first: usize) -> [Rows; 2] {
        let heads = self.call().heads();
        let keys = self.keys(sequence, kv_head, first);
        let [mut dk, mut dv] = heads.dims().map(|size| Rows::zeros(BLOCK_N, size));
        for head in kv_head * heads.group_size()..(kv_head + 1) * heads.group_size() {
            for first_query in self.blocks(sequence.q_len, BLOCK_M) {
                if !self.meet(sequence, head, first_query, first) {
                    continue;
                }
                let queries = self.queries(sequence, head, first_query);
                let place = [first_query, first];
                let [p, ds] = self.weights(sequence, head, place, &queries, &keys, false);
                self.add(&p, true, &queries.values, &mut dv);
                self.add(&ds, true, &queries.rows, &mut dk);
            }
        }
        self.scale(&mut dk);
        [dk, dv]
    }

    /// A tile of the gradient of a bias: the sum over all that share it, one after the other.
    fn of_bias(&self, tiles: &BiasTiles, place: [usize; 4]) -> Rows {
        let mut sums = Rows::zeros(BLOCK_M, BLOCK_N);
        if tiles.of_call.contains(&0) {
            // The others may be as large as numbers go.
            return sums;
        }
        for batch in tiles.shared(0, place) {
            let sequence = self.call().sequence(batch);
            for head in tiles.shared(2, place) {
                let kv_head = head / self.call().heads().group_size();
                for first_query in tiles.shared(1, place) {
                    let keys = tiles.shared(3, place);
                    for first_key in keys.take_while(|_| !self.stop.is_requested()) {
                        if first_key >= sequence.k_len
                            || !self.meet(&sequence, head, first_query, first_key)
                        {
                            continue;
                        }
                        let queries = self.queries(&sequence, head, first_query);
                        let keys = self.keys(&sequence, kv_head, first_key);
                        let place = [first_query, first_key];
                        let [_, ds] = self.weights(&sequence, head, place, &queries, &keys, true);
                        for (sum, x) in sums.data.iter_mut().zip(&ds.data) {
                            *sum += x;
                        }
                    }
                }
            }
        }
        let Rows { data, stride } = &mut sums;
        if tiles.shape[3] == 1 {
            for row in data.chunks_exact_mut(*stride) {
                row[0] = row.iter().sum();
            }
        }
        if tiles.shape[1] == 1 {
            let (first, others) = data.split_at_mut(*stride);
            for row in others.chunks_exact(*stride) {
                first.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
        }
        sums
    }

    /// The gradient of a sink.
    fn of_sink(&self, prepass: &Prepass, head: usize, sink: f32) -> f32 {
        let mut sum = 0.0;
        if prepass.is_empty() {
            return 0.0;
        }
        for sequence in self.call().sequences() {
            let start = prepass.start(sequence.batch, head);
            let rows = start..start + sequence.q_len;
            for at in rows.take_while(|_| !self.stop.is_requested()) {
                let exponent =
                    f64::from(sink) * std::f64::consts::LOG2_E - f64::from(self.scaled_lse[at]);
                sum -= exponent.exp2() * f64::from(self.delta[at]);
            }
        }
        sum as f32
    }

    /// Returns true if some query of a block sees some key of another, as far as the mask and the lists of blocks tell.
    fn meet(&self, sequence: &Sequence, head: usize, first_query: usize, first_key: usize) -> bool {
        // Blocks of lists are made of these.
        let shown = |blocks: &Blocks| blocks.show(sequence.batch, head, first_query, first_key);
        if !self.call().blocks().is_none_or(shown) {
            return false;
        }
        let rows = first_query..sequence.q_len.min(first_query + BLOCK_M);
        let mask = self.call().mask();
        let seen = |row| mask.visible(row, sequence.q_len, sequence.k_len);
        // The keys that a query sees move with it.
        rows.start < rows.end
            && seen(rows.start).start < first_key + BLOCK_N
            && rows
                .map(seen)
                .any(|seen| seen.start < first_key + BLOCK_N && seen.end > first_key)
    }

    fn add(&self, a: &Rows, transposed: bool, b: &Rows, out: &mut Rows) {
        self.isa.run(Product {
            a,
            transposed,
            b,
            out,
        });
    }

    fn scale(&self, sums: &mut Rows) {
        let scale = self.call().scale();
        sums.data.iter_mut().for_each(|x| *x *= scale);
    }

    /// The weights of a block of scores, and the gradients of its products of queries and keys, except for the scale, or those of its scores
    /// as they are with the bias: a row for each query.
    fn weights(
        &self,
        sequence: &Sequence,
        head: usize,
        [first_query, first_key]: [usize; 2],
        queries: &Panels,
        keys: &Panels,
        of_scores: bool,
    ) -> [Rows; 2] {
        let call = self.call();
        let (scoring, scale) = (call.scoring(), call.scale());
        let mut p = Rows::zeros(BLOCK_M, BLOCK_N);
        let mut ds = Rows::zeros(BLOCK_M, BLOCK_N);
        self.add(&queries.rows, false, &keys.rows.transposed(), &mut p);
        self.add(&queries.values, false, &keys.values.transposed(), &mut ds);
        let (batch, heads) = (sequence.batch, call.heads().query);
        let of_head = scoring.head_terms(batch, head, heads, |list| self.operands.get(list));
        let start = self.backward.prepass().start(sequence.batch, head);
        let (dropout, factor) = (call.dropout(), call.dropout_factor());
        // The derivatives of scores by the scaled products.
        let mut slants = [1.0; BLOCK_N];
        for row in 0..BLOCK_M {
            let (p, ds) = (
                &mut p.data[row * BLOCK_N..][..BLOCK_N],
                &mut ds.data[row * BLOCK_N..][..BLOCK_N],
            );
            let query = first_query + row;
            let visible = match query < sequence.q_len {
                true => call.mask().visible(query, sequence.q_len, sequence.k_len),
                false => 0..0,
            };
            let from = visible.start.max(first_key).min(first_key + BLOCK_N) - first_key;
            let to = visible.end.clamp(first_key + from, first_key + BLOCK_N) - first_key;
            p[..from].fill(f32::NEG_INFINITY);
            p[to..].fill(f32::NEG_INFINITY);
            let (scaled_lse, delta) = match from < to {
                true => (self.scaled_lse[start + query], self.delta[start + query]),
                false => (0.0, 0.0),
            };
            let place = (sequence.batch, query, head);
            let shown =
                (from < to).then(|| ShownKeys::new(call, &self.operands, place, first_key + from));
            for column in from..to {
                let key = first_key + column;
                let distance = || (query + sequence.k_len).abs_diff(sequence.q_len + key);
                let (score, slant) = scoring.of_product(p[column] * scale, of_head, distance);
                slants[column] = if of_scores { 1.0 } else { slant };
                let bias = shown.as_ref().and_then(|shown| shown.bias(column - from));
                p[column] =
                    bias.map_or(f32::NEG_INFINITY, |bias| score + bias) * LOG2_E - scaled_lse;
            }
            self.isa.run(Exponentials(p));
            let row = { dropout }.map(|dropout| dropout.row(sequence.batch, head, query));
            for (group, columns) in (0..BLOCK_N).step_by(DropoutRow::GROUP).enumerate() {
                let group = first_key / DropoutRow::GROUP + group;
                let kept = row.map_or(u32::MAX, |row| row.kept(group));
                for column in columns..columns + DropoutRow::GROUP {
                    let (weight, product) = (p[column], ds[column]);
                    let [weight, product_kept] = match kept >> (column - columns) & 1 {
                        0 => [0.0; 2],
                        _ => [weight * factor, product * factor],
                    };
                    ds[column] = match p[column] == 0.0 {
                        true => 0.0,
                        false => p[column] * (product_kept - delta) * slants[column],
                    };
                    p[column] = weight;
                }
            }
        }
        [p, ds]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ElementType;

    /// A task may take minutes.
    #[test]
    fn tasks_look_at_the_flag_before_each_block() {
        let layout = Layout::bshd([1, 70, 1, 8]);
        let call = Call::builder(&layout, &layout, &layout, ElementType::F32)
            .layout(Operand::Bias, Layout::bshd([1, 1, 1, 1]))
            .count(Operand::Sinks, 1);
        let backward = Backward::builder(call.build().unwrap()).build().unwrap();
        let (call, prepass) = (backward.call(), backward.prepass());
        let numbers: Vec<f32> = (0..560).map(|i| (i as f32).sin()).collect();
        let inputs = HostInputs::new(&numbers, &numbers, &numbers)
            .with(Operand::Bias, &[0.0_f32])
            .with(Operand::Sinks, &[0.0_f32]);
        let (delta, scaled_lse) = (vec![1.0; prepass.len()], vec![0.0; prepass.len()]);
        let sums = |stop| {
            let operands = Operands::<f32>::new(call, &inputs).unwrap();
            let KeyViews::Same([k, v]) = operands.keys else {
                panic!("of one type");
            };
            let pass = Pass {
                backward: &backward,
                isa: Isa::best(),
                operands,
                k,
                v,
                d_out: View::new(&numbers[..], layout),
                delta: &delta,
                scaled_lse: &scaled_lse,
                stop,
            };
            let sequence = call.sequence(0);
            let [dk, dv] = pass.of_keys(&sequence, 0, 64);
            let d_bias = pass.of_bias(&BiasTiles::of(call, [1; 4]), [0; 4]);
            let size = |rows: Rows| rows.data.iter().map(|x| x.abs()).sum::<f32>();
            let dq = pass.of_queries(&sequence, 0, 64);
            let sink = pass.of_sink(prepass, 0, 0.0).abs();
            [size(dq), size(dk), size(dv), size(d_bias), sink]
        };
        assert!(sums(Stop::default()).into_iter().all(|sum| sum > 0.0));
        let stop = Stop::default();
        stop.request();
        assert_eq!(sums(stop), [0.0; 5]);
    }
}
