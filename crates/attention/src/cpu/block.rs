//! Attention of a block of query rows.

use std::f64::consts::LOG2_E;
use std::ops::Range;

use warptile_kernels::Operand;
use warptile_kernels::tiling::Tiling;

use crate::cpu::engine::{BLOCK, Engine};
use crate::cpu::few::{FewScores, FewWeights, Finite, KEYS_AT_ONCE, TURNED};
use crate::cpu::few_values::{FewDots, FewValues, Round};
use crate::cpu::isa::{Isa, MAX_PANEL};
use crate::cpu::memory::Memory;
use crate::cpu::operands::{KeyViews, Operands};
use crate::cpu::pairs;
use crate::cpu::pairs::Pairs;
use crate::cpu::products::{Rows, Scores, Values};
use crate::cpu::state::{AddPart, RowState};
use crate::cpu::stop::Stop;
use crate::cpu::task::{Blocks, PART, Task};
use crate::cpu::turn::{LargestSquare, Pack, Scale, Unpack, Widen};
use crate::cpu::weights::{CLASSES, Weights};
use crate::spec::{Call, Dropout, DropoutRow, Element, ElementType, Sequence, View, scale_of};

/// The most rows of a block that are a handful, if its heads are whole registers: see [`few`](crate::cpu::few).
const FEW: usize = 8;

/// Numbers from the scores of one of a handful of rows to those of the next.
const FEW_STRIDE: usize = Blocks::BLOCK_N + KEYS_AT_ONCE;

/// Scores are computed for groups of this many keys, at multiples of it: a multiple of the classes of keys, and what tile registers take.
const GROUP: usize = 2 * CLASSES;

// Weights are dropped by whole groups.
const _: () = assert!(GROUP.is_multiple_of(DropoutRow::GROUP));

/// Every number of a product that is below this in magnitude, and so are its partial sums, is far from the range of `f32`.
const SAFE: f64 = 1e37;

/// The inputs and results of a task.
pub(super) struct Block<'a, T> {
    pub(super) call: &'a Call,
    pub(super) operands: Operands<'a, T>,
    pub(super) isa: Isa,
    pub(super) stop: &'a Stop,
    pub(super) task: Task,
}

/// Memory that a thread keeps from task to task.
#[derive(Default)]
pub(super) struct Scratch {
    queries: Memory<f32>,
    keys: Memory<f32>,
    values: Memory<f32>,
    pairs: Pairs,
    buffers: Buffers,
    /// The state over all parts of keys so far.
    total: RowState,
    /// The output: a row for each query.
    rows: Memory<f32>,
}

#[derive(Default)]
struct Buffers {
    /// Scores, then weights, of a panel: a row for each key of the tile. Of a handful of rows: a row of [`FEW_STRIDE`] for each.
    scores: Memory<f32>,
    /// Weights of a handful of rows, rounded to `bf16`.
    halves: Memory<u16>,
    /// Some keys, turned, of a handful of rows.
    turned: Memory<f32>,
    state: RowState,
}

/// Some rows of a block whose scores are computed together, a lane each.
pub(super) struct Panel {
    /// Lanes, counted from the block's first row; only the last panel has some without a row.
    pub(super) lanes: Range<usize>,
    pub(super) rows: Range<usize>,
    /// The keys that any row sees.
    pub(super) seen: Range<usize>,
    /// The keys that all rows see.
    pub(super) seen_by_all: Range<usize>,
}

/// The results of a block.
pub(super) struct Results<'a> {
    scratch: &'a Scratch,
    /// The sink of each row.
    sinks: Option<Vec<f32>>,
    depth: usize,
}

impl Results<'_> {
    /// The output of a row of the block.
    pub(super) fn out(&self, row: usize) -> &[f32] {
        &self.scratch.rows[row * self.depth..][..self.depth]
    }

    /// The lse of a row of the block.
    pub(super) fn lse(&self, row: usize) -> f32 {
        let lse = self.scratch.total.lse(row);
        match &self.sinks {
            Some(sinks) => with_sink(lse, sinks[row]).0 as f32,
            None => lse as f32,
        }
    }
}

/// The keys and values that the tasks of a head see at once.
pub(super) struct Tile<'a, T> {
    pub(super) keys: Range<usize>,
    /// A row for each key.
    pub(super) k: Vec<&'a [T]>,
    pub(super) v: Vec<&'a [T]>,
}

/// Where products take keys and values from.
enum Source<'a> {
    /// Rows of numbers.
    Numbers(Rows<'a>, Rows<'a>),
    /// From the pairs that were made of them.
    Pairs(&'a Engine),
}

impl<'a, T: Element> Block<'a, T> {
    /// Computes the task.
    pub(super) fn attend<'s>(&self, scratch: &'s mut Scratch) -> Results<'s> {
        let mut total = std::mem::take(&mut scratch.total);
        let mut parts = 0;
        self.walk(scratch, |panels, part| {
            self.add_part(parts == 0, panels, &mut total, part);
            parts += 1;
        });
        scratch.total = total;
        self.finish(scratch)
    }

    /// Computes each part of the task's keys that has some, for [`Block::join`].
    pub(super) fn parts(&self, scratch: &mut Scratch) -> Vec<RowState> {
        let mut parts = Vec::new();
        self.walk(scratch, |_, part| parts.push(part.clone()));
        parts
    }

    /// Puts together what all parts of a task gave, in their order.
    pub(super) fn join<'s>(
        &self,
        parts: impl Iterator<Item = RowState>,
        scratch: &'s mut Scratch,
    ) -> Results<'s> {
        let (.., panels) = self.shape();
        for (index, mut part) in parts.enumerate() {
            self.add_part(index == 0, &panels, &mut scratch.total, &mut part);
        }
        self.finish(scratch)
    }

    /// Adds a part to the total; the first one takes its place.
    fn add_part(&self, first: bool, panels: &[Panel], total: &mut RowState, part: &mut RowState) {
        if first {
            return std::mem::swap(total, part);
        }
        self.isa.run(AddPart {
            to: total,
            part,
            panels: panels.iter().map(|panel| panel.lanes.clone()),
            depth: self.call.v().head_dim(),
        });
    }

    /// The engine that multiplies pairs, if one does, whether the rows are a handful, and their panels.
    fn shape(&self) -> (Option<Engine>, bool, Vec<Panel>) {
        let width = self.isa.width();
        let engine = self.engine();
        let tiles = engine.as_ref().is_some_and(Engine::is_tiles);
        let whole = self.call.heads().are_multiples_of(width);
        let few = !tiles && self.task.rows() <= FEW && whole;
        let panels = match engine {
            _ if few => self.panels(1, 1),
            Some(_) => self.panels(BLOCK, BLOCK),
            None => self.panels(self.isa.panel(), width),
        };
        (engine, few, panels)
    }

    /// Calls `done` with what each part of the keys that has some of the task's gave, or what none gives.
    fn walk(&self, scratch: &mut Scratch, mut done: impl FnMut(&[Panel], &mut RowState)) {
        let [depth, value_depth] = self.call.heads().dims();
        let rows = self.task.rows();
        let (engine, few, panels) = self.shape();
        let lanes = panels.last().map_or(0, |panel| panel.lanes.end);
        let Scratch {
            queries,
            keys,
            values,
            pairs,
            buffers,
            ..
        } = &mut *scratch;
        buffers.state.reset(lanes, value_depth);
        let query_rows = self.query_rows();
        match engine {
            Some(_) if !few => pairs.load_queries(self.isa, &query_rows, self.call.heads()),
            _ => self.load_queries(&query_rows, few, &panels, queries),
        }
        let largest_query = self.isa.run(LargestSquare(&query_rows));
        let factor = f64::from(self.factor().abs().max(1.0));
        // Queries are scaled before they are multiplied.
        let queries_are_safe = f64::from(largest_query).sqrt() * factor < SAFE;
        let visible = self.task.keys(self.call.mask());
        // Tiles begin at multiples of their size, not at the first key that the block sees, so that a row's bits do not depend on the
        // others of its block.
        let first = visible.start / Blocks::BLOCK_N * Blocks::BLOCK_N;
        let tiles = (first..visible.end)
            .step_by(Blocks::BLOCK_N)
            .take_while(|_| !self.stop.is_requested())
            .map(|start| start.max(visible.start)..visible.end.min(start + Blocks::BLOCK_N));
        // Where keys are elements of `T`, the rows of the next tile are brought nearer.
        let mut part = visible.start / PART;
        let mut add = |tile: &Tile<'_, T>, next: Option<&Tile<'_, T>>| {
            if tile.keys.start / PART != part {
                part = tile.keys.start / PART;
                done(&panels, &mut buffers.state);
                buffers.state.reset(lanes, value_depth);
            }
            if few {
                let queries = Rows {
                    data: queries,
                    stride: queries.len() / rows,
                };
                return self.few_step(tile, next, &panels, queries, buffers);
            }
            let largest_key = self.isa.run(LargestSquare(&tile.k));
            let bound = depth as f64 * (f64::from(largest_query) * f64::from(largest_key)).sqrt();
            let safe = queries_are_safe && bound * factor < SAFE;
            let source = match &engine {
                Some(engine) => {
                    let before = tile.keys.start % Blocks::BLOCK_N;
                    let ahead = next.map_or([&[][..]; 2], |next| [&next.k, &next.v]);
                    pairs.load_tile(self.isa, &tile.k, &tile.v, before, ahead);
                    Source::Pairs(engine)
                }
                None => Source::Numbers(self.numbers(&tile.k, keys), self.numbers(&tile.v, values)),
            };
            for panel in &panels {
                let inputs = (&queries[..], &mut *pairs);
                self.step(tile, &source, panel, safe, inputs, buffers);
            }
        };
        match self.operands.keys {
            KeyViews::Same([k, v]) => {
                let mut tiles = tiles.map(|keys| Tile {
                    k: self.kv_rows(&k, keys.clone()),
                    v: self.kv_rows(&v, keys.clone()),
                    keys,
                });
                let mut next = tiles.next();
                while let Some(tile) = next {
                    next = tiles.next();
                    add(&tile, next.as_ref());
                }
            }
            KeyViews::Scaled([of_k, of_v]) => {
                let stored = self.call.types().k;
                let table: [T; 256] =
                    std::array::from_fn(|bits| T::from_f32(stored.dequantize(bits as u8)));
                let [mut k, mut v] = [const { Vec::new() }; 2];
                tiles.for_each(|keys| {
                    self.widened(&of_k, keys.clone(), &table, &mut k);
                    self.widened(&of_v, keys.clone(), &table, &mut v);
                    let (k, v) = (k.chunks_exact(depth), v.chunks_exact(value_depth));
                    let tile = Tile {
                        k: k.collect(),
                        v: v.collect(),
                        keys,
                    };
                    add(&tile, None);
                });
            }
        }
        done(&panels, &mut buffers.state);
    }

    /// The panels of the block, of at most this many lanes, and multiples of `width`.
    fn panels(&self, panel: usize, width: usize) -> Vec<Panel> {
        let count = self.task.rows();
        let lanes = count.next_multiple_of(width);
        let panels = (0..lanes).step_by(panel).map(|start| {
            let lanes = start..lanes.min(start + panel);
            let rows = start..count.min(lanes.end);
            let mut panel = Panel {
                lanes,
                seen: 0..0,
                seen_by_all: 0..usize::MAX,
                rows: rows.clone(),
            };
            for row in rows {
                let seen = self.visible(row);
                panel.seen_by_all.start = panel.seen_by_all.start.max(seen.start);
                panel.seen_by_all.end = panel.seen_by_all.end.min(seen.end);
                if panel.seen.is_empty() {
                    panel.seen = seen;
                } else if !seen.is_empty() {
                    panel.seen.start = panel.seen.start.min(seen.start);
                    panel.seen.end = panel.seen.end.max(seen.end);
                }
            }
            panel
        });
        panels.collect()
    }

    /// The keys that a row of the block sees.
    pub(super) fn visible(&self, row: usize) -> Range<usize> {
        let Sequence { q_len, k_len, .. } = self.task.sequence;
        match self.call.mask() {
            mask if mask.hides_nothing() => 0..k_len,
            mask => mask.visible(self.task.row(row).1, q_len, k_len),
        }
    }

    /// Returns true if products only have to be multiplied to be scores in units of ln 2.
    pub(super) fn plain(&self) -> bool {
        !self.call.scoring().changes_scores() && !self.call.has_score_tensors()
    }

    /// The factor of the products.
    fn factor(&self) -> f32 {
        let scale = f64::from(self.call.scale()) * f64::from(self.key_scale());
        (if self.plain() { scale * LOG2_E } else { scale }) as f32
    }

    /// The factor of products with quantized keys.
    pub(super) fn key_scale(&self) -> f32 {
        self.scale(Operand::KScale)
    }

    fn value_scale(&self) -> f32 {
        self.scale(Operand::VScale)
    }

    fn scale(&self, operand: Operand) -> f32 {
        let scales = self.operands.get(operand);
        scales.map_or(1.0, |scales| scale_of(scales, self.kv_head()))
    }

    /// The key/value head that the task reads.
    fn kv_head(&self) -> usize {
        self.task.heads.start / self.call.heads().group_size()
    }

    /// The engine that multiplies pairs, if products are left to it: where the numbers are of its type and fill its
    /// blocks.
    fn engine(&self) -> Option<Engine> {
        let whole = self.call.heads().are_multiples_of(BLOCK);
        (whole && T::TYPE == ElementType::Bf16).then(|| self.isa.engine())?
    }

    fn query_rows(&self) -> Vec<&'a [T]> {
        let Sequence {
            q_entry, q_start, ..
        } = self.task.sequence;
        let rows = (0..self.task.rows()).map(|row| {
            let (head, position) = self.task.row(row);
            self.operands.q.row(q_entry, q_start + position, head)
        });
        rows.collect()
    }

    /// Loads the queries, scaled: in panels, or a row each if there are only a few.
    fn load_queries(&self, rows: &[&[T]], few: bool, panels: &[Panel], to: &mut Memory<f32>) {
        let depth = self.call.heads().dim;
        let factor = self.factor();
        if few && self.engine().is_some() {
            // Pairs are as they are in memory, and products are scaled.
            to.resize(rows.len() * depth / 2);
            for (row, to) in rows.iter().zip(to.chunks_exact_mut(depth / 2)) {
                bytemuck::cast_slice_mut(to).copy_from_slice(pairs::halves(row));
            }
            return;
        }
        if few {
            to.resize(rows.len() * depth);
            let factor = Some(factor);
            return self.isa.run(Widen { rows, factor, to });
        }
        to.resize(panels.last().map_or(0, |panel| panel.lanes.end) * depth);
        for panel in panels {
            self.isa.run(Pack {
                rows: &rows[panel.rows.clone()],
                factor,
                lanes: panel.lanes.len(),
                to: &mut to[panel.lanes.start * depth..panel.lanes.end * depth],
            });
        }
    }

    /// Quantized keys or values of the head that the task reads, one after the other as elements of `T`, which has all their numbers.
    fn widened(&self, view: &View<'a, u8>, keys: Range<usize>, table: &[T; 256], to: &mut Vec<T>) {
        to.clear();
        for row in self.kv_rows(view, keys) {
            to.extend(row.iter().map(|&bits| table[usize::from(bits)]));
        }
    }

    /// Rows of keys or values, of the head that the task reads.
    fn kv_rows<U: Copy>(&self, view: &View<'a, U>, keys: Range<usize>) -> Vec<&'a [U]> {
        let head = self.kv_head();
        let mut all = Vec::with_capacity(keys.len());
        for (entry, rows) in self.call.key_rows(&self.task.sequence, keys) {
            all.extend(view.rows(entry, rows, head));
        }
        all
    }

    /// Rows of keys or values as numbers: where they are, if they are numbers close together, else in `memory`.
    fn numbers<'r>(&self, rows: &[&'r [T]], memory: &'r mut Memory<f32>) -> Rows<'r> {
        let stride = rows.first().map_or(0, |row| row.len());
        memory.resize(rows.len() * stride);
        let (factor, to) = (None, &mut memory[..]);
        self.isa.run(Widen { rows, factor, to });
        Rows {
            data: memory,
            stride,
        }
    }

    /// One step of online softmax: adds the keys of a tile to the rows of a panel. `safe`: no product of finite numbers overflows.
    fn step(
        &self,
        tile: &Tile<'_, T>,
        source: &Source<'_>,
        panel: &Panel,
        safe: bool,
        (queries, pairs): (&[f32], &mut Pairs),
        buffers: &mut Buffers,
    ) {
        let keys = panel.seen.start.max(tile.keys.start)..panel.seen.end.min(tile.keys.end);
        if keys.is_empty() || !self.lists_any(panel, &keys) {
            return;
        }
        let [depth, value_depth] = self.call.heads().dims();
        let lanes = panel.lanes.len();
        // From one multiple of a group to another; keys that do not count are hidden.
        let first = keys.start / GROUP * GROUP;
        let (before, after) = ((keys.start - first) * lanes, (keys.end - first) * lanes);
        let len = (keys.end - first).next_multiple_of(GROUP) * lanes;
        if buffers.scores.len() < len {
            buffers.scores.resize(len);
        }
        let Buffers { scores, state, .. } = buffers;
        let scores = &mut scores[..len];
        let first = first % Blocks::BLOCK_N;
        let part = keys.start - tile.keys.start..keys.end - tile.keys.start;
        let (state_from, state_to) = (panel.lanes.start, panel.lanes.end);
        // Queries of pairs are not scaled: the products are, later if they are nothing else before.
        let later = match source {
            Source::Pairs(engine) => engine.is_tiles() && self.plain() && self.factor() > 0.0,
            Source::Numbers(..) => false,
        };
        let mut units = [if later { self.factor() } else { 1.0 }; MAX_PANEL];
        let out = &mut scores[before..after];
        match source {
            Source::Pairs(engine) => {
                pairs.scores(engine, state_from / lanes, first, scores);
                if !later {
                    let factors = &[self.factor(); BLOCK];
                    self.isa.run(Scale {
                        rows: scores,
                        factors,
                    });
                }
            }
            Source::Numbers(k, _) => self.isa.run(Scores {
                keys: k.from(part.start),
                key_count: part.len(),
                queries: &queries[state_from * depth..state_to * depth],
                depth,
                lanes,
                out,
            }),
        }
        scores[..before].fill(f32::NEG_INFINITY);
        scores[after..].fill(f32::NEG_INFINITY);
        let lanes_state = (&mut state.careful[state_from..state_to], &mut units[..]);
        let part_scores = &mut scores[before..after];
        self.finish_scores(tile, panel, &keys, safe, part_scores, lanes_state);
        let pairs_of_weights = match source {
            Source::Pairs(_) => Some(pairs.weights(scores.len() / lanes)),
            _ => None,
        };
        self.isa.run(Weights {
            scores,
            lanes,
            pairs: pairs_of_weights,
            units: &units[..lanes],
            max: &mut state.max[state_from..state_to],
            sum: &mut state.sum[state_from..state_to],
            factors: &mut state.factors[state_from..state_to],
        });
        if let Some(dropout) = self.call.dropout() {
            let lane = |row: usize| row - panel.lanes.start;
            let rows = panel.rows.clone();
            let first = keys.start / GROUP * GROUP;
            match source {
                Source::Pairs(_) => {
                    let words = pairs.weights(len / lanes);
                    self.drop_weights(&dropout, rows, first, len / lanes, |row, key| {
                        let word = &mut words[key / 2 * lanes + lane(row)];
                        *word &= if key % 2 == 0 { 0xffff_0000 } else { 0xffff };
                    });
                }
                Source::Numbers(..) => {
                    self.drop_weights(&dropout, rows, first, len / lanes, |row, key| {
                        scores[key * lanes + lane(row)] = 0.0;
                    });
                }
            }
        }
        let weights = &scores[before..after];
        let factors = &state.factors[state_from..state_to];
        let out = &mut state.out[state_from * value_depth..state_to * value_depth];
        match source {
            Source::Pairs(engine) => {
                if factors.iter().any(|&factor| factor != 1.0) {
                    self.isa.run(Scale { rows: out, factors });
                }
                pairs.add_values(engine, first, out);
            }
            Source::Numbers(_, v) => self.isa.run(Values {
                values: v.from(part.start),
                key_count: part.len(),
                weights,
                lanes,
                depth: value_depth,
                out,
                factors,
            }),
        }
    }

    /// Like the step above, for a handful of rows, each with a panel of its own.
    fn few_step(
        &self,
        tile: &Tile<'_, T>,
        next: Option<&Tile<'_, T>>,
        panels: &[Panel],
        queries: Rows<'_>,
        buffers: &mut Buffers,
    ) {
        let (count, keys) = (panels.len(), tile.keys.clone());
        let stride = FEW_STRIDE;
        let dots = self.engine().is_some();
        let Buffers {
            scores,
            halves,
            turned,
            state,
        } = buffers;
        scores.resize(count * stride);
        turned.resize(TURNED);
        // From one multiple of a group to another; keys that do not count are hidden.
        let start = keys.start / Blocks::BLOCK_N * Blocks::BLOCK_N;
        let (from, to) = (keys.start - start, keys.end - start);
        let first = from / GROUP * GROUP;
        let (before, after) = (from - first, to - first);
        FewScores {
            keys: &tile.k,
            ahead: &tile.v,
            queries,
            factor: self.factor(),
            count,
            out: &mut scores[before..],
            stride,
            turned,
        }
        .run(self.isa, dots);
        let len = after.next_multiple_of(GROUP);
        for (row, panel) in panels.iter().enumerate() {
            let scores = &mut scores[row * FEW_STRIDE..][..len];
            scores[..before].fill(f32::NEG_INFINITY);
            scores[after..].fill(f32::NEG_INFINITY);
            let scores = &mut scores[before..after];
            // Where a product of finite numbers overflows, its score is not finite either.
            let safe = self.isa.run(Finite(scores));
            let lane_state = (&mut state.careful[row..=row], &mut [1.0][..]);
            self.finish_scores(tile, panel, &keys, safe, scores, lane_state);
        }
        self.isa.run(FewWeights {
            scores,
            stride,
            keys: len,
            max: &mut state.max,
            sum: &mut state.sum,
            factors: &mut state.factors,
        });
        if let Some(dropout) = self.call.dropout() {
            self.drop_weights(&dropout, 0..count, start + first, len, |row, key| {
                scores[row * FEW_STRIDE + key] = 0.0;
            });
        }
        let ahead = next.map_or(&[][..], |next| &next.k);
        if const { matches!(T::TYPE, ElementType::Bf16) } && dots {
            halves.resize(scores.len());
            self.isa.run(Round {
                from: scores,
                to: halves,
            });
            let odd = before % 2;
            return self.isa.run_dots(FewDots {
                values: &tile.v,
                odd: odd == 1,
                ahead,
                weights: &halves[before - odd..],
                stride,
                out: &mut state.out,
                depth: self.call.v().head_dim(),
                factors: &state.factors,
            });
        }
        self.isa.run(FewValues {
            values: &tile.v,
            ahead,
            weights: &scores[before..],
            stride,
            out: &mut state.out,
            depth: self.call.v().head_dim(),
            factors: &state.factors,
        });
    }

    /// Calls `drop` for each weight that is not kept, of some rows of the block and of whole groups of keys from `first` on; it gets the
    /// row and the key, counted from `first`.
    fn drop_weights(
        &self,
        dropout: &Dropout,
        rows: Range<usize>,
        first: usize,
        keys: usize,
        mut drop: impl FnMut(usize, usize),
    ) {
        for row in rows {
            let (head, position) = self.task.row(row);
            let weights = dropout.row(self.task.sequence.batch, head, position);
            for key in (0..keys).step_by(DropoutRow::GROUP) {
                let mut dropped = !weights.kept((first + key) / DropoutRow::GROUP);
                while dropped != 0 {
                    drop(row, key + dropped.trailing_zeros() as usize);
                    dropped &= dropped - 1;
                }
            }
        }
    }

    /// The sink of each row, if there are sinks.
    fn sinks(&self) -> Option<impl Iterator<Item = f32>> {
        let sinks: &[f32] = self.operands.get(Operand::Sinks)?;
        Some((0..self.task.rows()).map(|row| sinks[self.task.row(row).0]))
    }

    /// Divides by the sums, and puts the results of each row together.
    fn finish<'s>(&self, scratch: &'s mut Scratch) -> Results<'s> {
        let depth = self.call.v().head_dim();
        let (_, few, panels) = self.shape();
        let (state, to) = (&mut scratch.total, &mut scratch.rows);
        for (factor, sum) in state.factors.iter_mut().zip(&*state.sum) {
            // A row that sees no key has neither output nor weight.
            *factor = if *sum == 0.0 {
                0.0
            } else {
                self.value_scale() * self.call.dropout_factor() / sum
            };
        }
        if let Some(sinks) = self.sinks() {
            for (row, sink) in sinks.enumerate() {
                state.factors[row] *= with_sink(state.lse(row), sink).1 as f32;
            }
        }
        to.resize(self.task.rows() * depth);
        if few {
            let rows = to
                .chunks_exact_mut(depth)
                .zip(state.out.chunks_exact(depth));
            for ((to, from), factor) in rows.zip(&*state.factors) {
                for (to, x) in to.iter_mut().zip(from) {
                    *to = x * factor;
                }
            }
        }
        for panel in panels.iter().filter(|_| !few) {
            self.isa.run(Unpack {
                from: &state.out[panel.lanes.start * depth..panel.lanes.end * depth],
                lanes: panel.lanes.len(),
                factors: &state.factors[panel.lanes.clone()],
                to: &mut to[panel.rows.start * depth..panel.rows.end * depth],
            });
        }
        Results {
            scratch,
            sinks: self.sinks().map(Iterator::collect),
            depth,
        }
    }
}

/// The lse of a row with a sink, and the part of all weight that is not the sink's. A sink of minus infinity is none.
fn with_sink(lse: f64, sink: f32) -> (f64, f64) {
    if sink == f32::NEG_INFINITY {
        return (lse, 1.0);
    }
    let sink = f64::from(sink);
    let max = lse.max(sink);
    let with_sink = max + ((lse - max).exp() + (sink - max).exp()).ln();
    (with_sink, (lse - with_sink).exp())
}
