//! Attention of a block of query rows.

use std::f64::consts::{LN_2, LOG2_E};
use std::ops::Range;

use warptile_kernels::tiling::Tiling;

use crate::call::{Call, Operands, Sequence};
use crate::cpu::amx::{self, Pairs, Tiles};
use crate::cpu::isa::{Isa, MAX_PANEL};
use crate::cpu::memory::Memory;
use crate::cpu::products::{FewScores, FewValues, Rows, Scores, Values};
use crate::cpu::terms::{Hide, Terms};
use crate::cpu::turn::{LargestSquare, Pack, Scale, Unpack, Widen};
use crate::cpu::weights::{CLASSES, Weights};
use crate::element::{Element, ElementType};
use crate::layout::{Layout, View};
use crate::mask::Mask;
use crate::scoring::ScoreTerms;

/// The blocks of the CPU path.
pub(super) enum Blocks {}

impl Tiling for Blocks {
    /// The keys and values of a tile are converted once per block, so more rows cost less; fewer leave more blocks to share
    /// among cores. A multiple of every panel.
    const BLOCK_M: usize = 192;

    /// The scores of a panel of 48 queries and a tile, 24 KiB, stay in the first-level cache. A multiple of the classes of keys.
    const BLOCK_N: usize = 128;
}

/// The most rows of a block that are a handful: its keys are turned instead of its queries.
const FEW: usize = 8;

/// Scores are computed for groups of so many keys, at multiples of it: a multiple of the classes of keys, and what tile registers take.
const GROUP: usize = 2 * CLASSES;

/// Every number of a product that is below this in magnitude, and so are its partial sums, is far from the range of `f32`.
const SAFE: f64 = 1e37;

/// What a task computes, and from what.
pub(super) struct Block<'a, T> {
    pub(super) call: &'a Call,
    pub(super) q: View<'a, T>,
    pub(super) k: View<'a, T>,
    pub(super) v: View<'a, T>,
    pub(super) operands: &'a Operands<'a, T>,
    pub(super) isa: Isa,
    pub(super) task: Task,
}

/// The same rows of one or more query heads that share a key/value head. Rows of a block are counted head by head.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) sequence: Sequence,
    pub(super) heads: Range<usize>,
    /// Positions in the sequence, at least one.
    pub(super) positions: Range<usize>,
}

impl Task {
    /// Rows of the block.
    pub(super) fn rows(&self) -> usize {
        self.heads.len() * self.positions.len()
    }

    /// Head and position of a row of the block.
    pub(super) fn row(&self, index: usize) -> (usize, usize) {
        let count = self.positions.len();
        (
            self.heads.start + index / count,
            self.positions.start + index % count,
        )
    }

    /// The keys that any row sees. What a row sees only moves forward from position to position.
    pub(super) fn keys(&self, mask: Mask) -> Range<usize> {
        let Sequence { q_len, k_len, .. } = self.sequence;
        let visible = |position| mask.visible(position, q_len, k_len);
        visible(self.positions.start).start..visible(self.positions.end - 1).end
    }
}

/// Memory that a thread keeps from task to task.
#[derive(Default)]
pub(super) struct Scratch {
    queries: Memory<f32>,
    keys: Memory<f32>,
    values: Memory<f32>,
    pairs: Pairs,
    buffers: Buffers,
    /// The output: a row for each query.
    rows: Memory<f32>,
}

#[derive(Default)]
struct Buffers {
    /// Scores, then weights, of a panel: a row for each key of the tile.
    scores: Memory<f32>,
    /// Some keys, turned.
    group: Memory<f32>,
    state: RowState,
}

/// What online softmax carries from tile to tile, for each lane of each panel.
#[derive(Default)]
struct RowState {
    /// Weighted sums of the values so far, as the queries are stored.
    out: Memory<f32>,
    /// Largest score so far, in units of ln 2.
    max: Memory<f32>,
    /// Largest score so far of those that were computed with care, not in these units.
    careful: Vec<f64>,
    /// Sum of `2^(score - max)` so far.
    sum: Memory<f32>,
    /// What the last tile multiplied the sums by.
    factors: Memory<f32>,
}

impl RowState {
    fn reset(&mut self, lanes: usize, depth: usize) {
        for (memory, len, value) in [
            (&mut self.out, lanes * depth, 0.0),
            (&mut self.max, lanes, f32::NEG_INFINITY),
            (&mut self.sum, lanes, 0.0),
            (&mut self.factors, lanes, 0.0),
        ] {
            memory.resize(len);
            memory.fill(value);
        }
        self.careful.clear();
        self.careful.resize(lanes, f64::NEG_INFINITY);
    }

    /// The natural logarithm of a row's sum of exponentials.
    fn lse(&self, row: usize) -> f64 {
        let max = match self.max[row].abs() {
            f32::MAX => self.careful[row].clamp(f64::from(f32::MIN), f64::from(f32::MAX)),
            _ => f64::from(self.max[row]) * LN_2,
        };
        max + f64::from(self.sum[row].ln())
    }
}

/// Some rows of a block whose scores are computed together, a lane each.
struct Panel {
    /// Lanes, counted from the block's first row; only the last panel has some without a row.
    lanes: Range<usize>,
    rows: Range<usize>,
    /// The keys that any row sees.
    seen: Range<usize>,
    /// The keys that all rows see.
    seen_by_all: Range<usize>,
}

/// What a block has computed.
pub(super) struct Results<'a> {
    scratch: &'a Scratch,
    /// Of each row.
    sinks: Option<Vec<f32>>,
    head_dim: usize,
}

impl Results<'_> {
    /// The output of a row of the block.
    pub(super) fn out(&self, row: usize) -> &[f32] {
        &self.scratch.rows[row * self.head_dim..][..self.head_dim]
    }

    /// The lse of a row of the block.
    pub(super) fn lse(&self, row: usize) -> f32 {
        let lse = self.scratch.buffers.state.lse(row);
        match &self.sinks {
            Some(sinks) => with_sink(lse, sinks[row]).0 as f32,
            None => lse as f32,
        }
    }
}

/// The lse of a row with a sink, and the part of all weight that is not the sink's.
fn with_sink(lse: f64, sink: f32) -> (f64, f64) {
    let sink = f64::from(sink);
    let max = lse.max(sink);
    let with_sink = max + ((lse - max).exp() + (sink - max).exp()).ln();
    (with_sink, (lse - with_sink).exp())
}

/// The keys and values that the tasks of a head see at once.
struct Tile<'a, T> {
    keys: Range<usize>,
    /// A row for each key.
    k: Vec<&'a [T]>,
    v: Vec<&'a [T]>,
}

/// Where products take keys and values from.
enum Source<'a, T> {
    /// Rows of numbers, where every register has many queries.
    Numbers(Rows<'a>, Rows<'a>),
    /// As they are, where there are only a few queries; meanwhile those of the next tile are brought nearer.
    Memory(Option<&'a Tile<'a, T>>),
    /// From the pairs that were made of them, by tile registers.
    Pairs(&'a Tiles),
}

impl<'a, T: Element> Block<'a, T> {
    pub(super) fn attend<'s>(&self, scratch: &'s mut Scratch) -> Results<'s> {
        let depth = self.call.head_dim();
        let rows = self.task.rows();
        let width = self.isa.width();
        let registers = self.tiles();
        let few = registers.is_none() && rows <= FEW && depth.is_multiple_of(width);
        let panels = match registers {
            Some(_) => self.panels(amx::BLOCK, amx::BLOCK),
            None if few => self.panels(FEW.next_multiple_of(width), width),
            None => self.panels(self.isa.panel(), width),
        };
        let Scratch {
            queries,
            keys,
            values,
            pairs,
            buffers,
            rows: results,
        } = &mut *scratch;
        buffers
            .state
            .reset(panels.last().map_or(0, |panel| panel.lanes.end), depth);
        let query_rows = self.query_rows();
        match registers {
            Some(_) => pairs.load_queries(self.isa, &query_rows, depth),
            None => self.load_queries(&query_rows, few, &panels, queries),
        }
        let largest_query = self.isa.run(LargestSquare(&query_rows));
        let visible = self.task.keys(self.call.mask());
        // Tiles begin at multiples of their size whatever the block's first row sees, so that a row's bits do not depend on the others
        // of its block.
        let first = visible.start / Blocks::BLOCK_N * Blocks::BLOCK_N;
        let mut tiles = (first..visible.end).step_by(Blocks::BLOCK_N).map(|start| {
            let keys = start.max(visible.start)..visible.end.min(start + Blocks::BLOCK_N);
            Tile {
                k: self.kv_rows(&self.k, keys.clone()),
                v: self.kv_rows(&self.v, keys.clone()),
                keys,
            }
        });
        let mut next = tiles.next();
        while let Some(tile) = next {
            next = tiles.next();
            let largest_key = self.isa.run(LargestSquare(&tile.k));
            let bound = depth as f64 * (f64::from(largest_query) * f64::from(largest_key)).sqrt();
            let bound = bound * f64::from(self.factor().abs().max(1.0));
            let source = match &registers {
                Some(tiles) => {
                    let before = tile.keys.start % Blocks::BLOCK_N;
                    let ahead = next
                        .as_ref()
                        .map_or([&[][..]; 2], |next| [&next.k, &next.v]);
                    pairs.load_tile(self.isa, &tile.k, &tile.v, before, ahead);
                    Source::Pairs(tiles)
                }
                None if few => Source::Memory(next.as_ref()),
                None => Source::Numbers(self.numbers(&tile.k, keys), self.numbers(&tile.v, values)),
            };
            for panel in &panels {
                let inputs = (&queries[..], &mut *pairs);
                self.step(&tile, &source, panel, bound < SAFE, inputs, buffers);
            }
        }
        self.finish(few, &panels, &mut buffers.state, results);
        Results {
            scratch,
            sinks: self.sinks().map(Iterator::collect),
            head_dim: depth,
        }
    }

    /// The panels of the block, of at most so many lanes, and multiples of `width`.
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
    fn visible(&self, row: usize) -> Range<usize> {
        let Sequence { q_len, k_len, .. } = self.task.sequence;
        match self.call.mask() {
            Mask::None => 0..k_len,
            mask => mask.visible(self.task.row(row).1, q_len, k_len),
        }
    }

    /// Whether products only have to be multiplied to be scores in units of ln 2.
    fn plain(&self) -> bool {
        let scoring = self.call.scoring();
        let tensors = self.call.bias().is_some() || self.call.key_mask().is_some();
        scoring.softcap.is_none() && scoring.alibi.is_none() && !tensors
    }

    /// What products are multiplied by.
    fn factor(&self) -> f32 {
        let scale = f64::from(self.call.scale());
        (if self.plain() { scale * LOG2_E } else { scale }) as f32
    }

    /// The tile registers, if products are left to them: where the numbers are of their type and fill them.
    fn tiles(&self) -> Option<Tiles> {
        let fit = T::TYPE == ElementType::Bf16 && self.call.head_dim().is_multiple_of(amx::BLOCK);
        (fit && self.isa.has_tiles()).then(Tiles::new)
    }

    fn query_rows(&self) -> Vec<&'a [T]> {
        let Sequence {
            q_entry, q_start, ..
        } = self.task.sequence;
        let rows = (0..self.task.rows()).map(|row| {
            let (head, position) = self.task.row(row);
            self.q.row(q_entry, q_start + position, head)
        });
        rows.collect()
    }

    /// Loads the queries, scaled: in panels, or a row each if there are only a few.
    fn load_queries(&self, rows: &[&[T]], few: bool, panels: &[Panel], to: &mut Memory<f32>) {
        let depth = self.call.head_dim();
        let factor = self.factor();
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

    /// Rows of keys or values, of the head that the task reads.
    fn kv_rows(&self, view: &View<'a, T>, keys: Range<usize>) -> Vec<&'a [T]> {
        let head = self.task.heads.start / self.call.group_size();
        let mut all = Vec::with_capacity(keys.len());
        for (entry, rows) in self.call.key_rows(&self.task.sequence, keys) {
            all.extend(rows.map(|row| view.row(entry, row, head)));
        }
        all
    }

    /// Rows of keys or values as numbers: where they are, if they are numbers close together, else in `memory`.
    fn numbers<'r>(&self, rows: &[&'r [T]], memory: &'r mut Memory<f32>) -> Rows<'r> {
        let stride = self.call.head_dim();
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
        source: &Source<'_, T>,
        panel: &Panel,
        safe: bool,
        (queries, pairs): (&[f32], &mut Pairs),
        buffers: &mut Buffers,
    ) {
        let keys = panel.seen.start.max(tile.keys.start)..panel.seen.end.min(tile.keys.end);
        if keys.is_empty() {
            return;
        }
        let depth = self.call.head_dim();
        let lanes = panel.lanes.len();
        // From one multiple of a group to another; keys that do not count are hidden.
        let first = keys.start / GROUP * GROUP;
        let (before, after) = ((keys.start - first) * lanes, (keys.end - first) * lanes);
        let len = (keys.end - first).next_multiple_of(GROUP) * lanes;
        if buffers.scores.len() < len {
            buffers.scores.resize(len);
        }
        let Buffers {
            scores,
            group,
            state,
        } = buffers;
        let scores = &mut scores[..len];
        let first = first % Blocks::BLOCK_N;
        let part = keys.start - tile.keys.start..keys.end - tile.keys.start;
        let (state_from, state_to) = (panel.lanes.start, panel.lanes.end);
        // Queries of pairs are not scaled: the products are, later if they are nothing else before.
        let unit = match source {
            Source::Pairs(_) if safe && self.plain() && self.factor() > 0.0 => self.factor(),
            _ => 1.0,
        };
        let out = &mut scores[before..after];
        match source {
            Source::Pairs(tiles) => {
                pairs.scores(tiles, state_from / lanes, first, scores);
                if unit == 1.0 {
                    let factors = &[self.factor(); amx::BLOCK];
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
            Source::Memory(next) => self.isa.run(FewScores {
                keys: &tile.k[part.clone()],
                ahead: next.map_or(&[], |next| &next.k),
                queries: Rows {
                    data: queries,
                    stride: depth,
                },
                count: panel.rows.len(),
                out,
                lanes,
                group,
            }),
        }
        scores[..before].fill(f32::NEG_INFINITY);
        scores[after..].fill(f32::NEG_INFINITY);
        let careful = &mut state.careful[state_from..state_to];
        let part_scores = &mut scores[before..after];
        self.finish_scores(tile, panel, &keys, safe, part_scores, careful);
        let pairs_of_weights = match source {
            Source::Pairs(_) => Some(pairs.weights(scores.len() / lanes)),
            _ => None,
        };
        self.isa.run(Weights {
            scores,
            lanes,
            pairs: pairs_of_weights,
            unit,
            max: &mut state.max[state_from..state_to],
            sum: &mut state.sum[state_from..state_to],
            factors: &mut state.factors[state_from..state_to],
        });
        let weights = &scores[before..after];
        let factors = &state.factors[state_from..state_to];
        let out = &mut state.out[state_from * depth..state_to * depth];
        match source {
            Source::Pairs(tiles) => {
                if factors.iter().any(|&factor| factor != 1.0) {
                    self.isa.run(Scale { rows: out, factors });
                }
                pairs.add_values(tiles, first, out);
            }
            Source::Numbers(_, v) => self.isa.run(Values {
                values: v.from(part.start),
                key_count: part.len(),
                weights,
                lanes,
                depth,
                out,
                factors,
            }),
            Source::Memory(next) => self.isa.run(FewValues {
                values: &tile.v[part],
                ahead: next.map_or(&[], |next| &next.v),
                weights,
                lanes,
                count: panel.rows.len(),
                out,
                depth,
                factors,
            }),
        }
    }

    /// Turns the scaled products of a panel and some keys into scores in units of ln 2.
    fn finish_scores(
        &self,
        tile: &Tile<'_, T>,
        panel: &Panel,
        keys: &Range<usize>,
        safe: bool,
        scores: &mut [f32],
        careful: &mut [f64],
    ) {
        let lanes = panel.lanes.len();
        if !self.plain() {
            self.add_terms(panel, keys, scores);
        }
        let masked = keys.start < panel.seen_by_all.start || panel.seen_by_all.end < keys.end;
        let shown = self.call.bias().is_some() || self.call.key_mask().is_some();
        // A bias may be anything.
        let safe = safe && (self.plain() || self.call.scoring().softcap.is_some()) && !shown;
        if safe && !masked {
            return;
        }
        let mut starts = [0; MAX_PANEL];
        let mut ends = [0; MAX_PANEL];
        for (lane, row) in panel.rows.clone().enumerate() {
            let seen = self.visible(row);
            let seen = seen.start.clamp(keys.start, keys.end)..seen.end.clamp(keys.start, keys.end);
            // At most the keys of a tile.
            starts[lane] = (seen.start - keys.start) as i32;
            ends[lane] = (seen.end - keys.start) as i32;
            if shown || !safe {
                let scores = &mut scores[lane..];
                let largest = self.check_scores(tile, row, seen, (keys.start, lanes), scores);
                careful[lane] = careful[lane].max(largest);
            }
        }
        if masked {
            self.isa.run(Hide {
                scores,
                lanes,
                starts: &starts[..lanes],
                ends: &ends[..lanes],
            });
        }
    }

    /// Softcap, ALiBi and bias.
    fn add_terms(&self, panel: &Panel, keys: &Range<usize>, scores: &mut [f32]) {
        let Sequence {
            batch,
            q_len,
            k_len,
            ..
        } = self.task.sequence;
        let lanes = panel.lanes.len();
        let start = keys.start / Blocks::BLOCK_N * Blocks::BLOCK_N;
        let mut slopes = [0.0; MAX_PANEL];
        let mut diagonals = [0.0; MAX_PANEL];
        for (lane, row) in panel.rows.clone().enumerate() {
            let (head, position) = self.task.row(row);
            slopes[lane] = self.slope(head);
            // Lengths are at most 2^30. Counted from a place that does not depend on the other rows.
            diagonals[lane] = ((position + k_len) as i64 - (q_len + start) as i64) as f32;
        }
        self.isa.run(Terms {
            scores,
            lanes,
            softcap: self.call.scoring().softcap,
            slopes: &slopes[..lanes],
            diagonals: &diagonals[..lanes],
            first_key: keys.start - start,
        });
        for (lane, row) in panel.rows.clone().enumerate() {
            let (head, position) = self.task.row(row);
            if self.call.bias().is_some() {
                let shown = ShownKeys::new(self, (batch, position, head), keys.start);
                for key in 0..keys.len() {
                    // Of hidden keys later.
                    scores[key * lanes + lane] += shown.bias(key).unwrap_or(0.0);
                }
            }
        }
        for score in scores {
            *score *= LOG2_E as f32;
        }
    }

    fn slope(&self, head: usize) -> f32 {
        let (scoring, batch) = (self.call.scoring(), self.task.sequence.batch);
        scoring.slope(self.operands.slopes, batch, head, self.call.heads())
    }

    /// Hides the keys of a row that bias or mask hide, and computes its scores again in `f64`, cut off at the range of `f32`, if any of the
    /// others is not finite. Returns the largest of these.
    /// Scores begin with key `first` and are `lanes` apart.
    fn check_scores(
        &self,
        tile: &Tile<'_, T>,
        row: usize,
        seen: Range<usize>,
        (first, lanes): (usize, usize),
        scores: &mut [f32],
    ) -> f64 {
        let Sequence {
            batch,
            q_entry,
            q_start,
            q_len,
            k_len,
            ..
        } = self.task.sequence;
        let (head, position) = self.task.row(row);
        let shown = ShownKeys::new(self, (batch, position, head), seen.start);
        let mut finite = true;
        for (index, key) in seen.clone().enumerate() {
            let score = &mut scores[(key - first) * lanes];
            match shown.bias(index) {
                Some(_) => finite &= score.is_finite(),
                None => *score = f32::NEG_INFINITY,
            }
        }
        let mut largest = f64::NEG_INFINITY;
        if finite {
            return largest;
        }
        let query = self.q.row(q_entry, q_start + position, head);
        for (index, key) in seen.enumerate() {
            let Some(bias) = shown.bias(index) else {
                continue;
            };
            let distance = (position + k_len) as i64 - (q_len + key) as i64;
            let terms = ScoreTerms {
                scale: self.call.scale(),
                slope: f64::from(self.slope(head)),
                distance: distance.abs() as f64,
                bias: f64::from(bias),
            };
            let row = tile.k[key - tile.keys.start];
            let score = self.careful_score(query, row, &terms);
            largest = largest.max(score);
            let in_range = (score * LOG2_E).clamp(f64::from(f32::MIN), f64::from(f32::MAX));
            scores[(key - first) * lanes] = in_range as f32;
        }
        largest
    }

    /// A score in `f64`: for rows in which `f32` overflowed, where `inf - inf` would make a NaN of finite inputs.
    fn careful_score(&self, query: &[T], key: &[T], terms: &ScoreTerms) -> f64 {
        let products = query.iter().zip(key);
        let product: f64 = products.map(|(q, k)| q.to_f64() * k.to_f64()).sum();
        self.call.scoring().score(product, terms, |x| x)
    }

    /// The sink of each row, if there are sinks.
    fn sinks(&self) -> Option<impl Iterator<Item = f32>> {
        let sinks = self.operands.sinks?;
        Some((0..self.task.rows()).map(|row| sinks[self.task.row(row).0]))
    }

    /// Divides by the sums, and puts the results of each row together.
    fn finish(&self, few: bool, panels: &[Panel], state: &mut RowState, to: &mut Memory<f32>) {
        let depth = self.call.head_dim();
        for (factor, sum) in state.factors.iter_mut().zip(&*state.sum) {
            // A row that sees no key has neither output nor weight.
            *factor = if *sum == 0.0 { 0.0 } else { 1.0 / sum };
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
            return;
        }
        for panel in panels {
            self.isa.run(Unpack {
                from: &state.out[panel.lanes.start * depth..panel.lanes.end * depth],
                lanes: panel.lanes.len(),
                factors: &state.factors[panel.lanes.clone()],
                to: &mut to[panel.rows.start * depth..panel.rows.end * depth],
            });
        }
    }
}

/// What the bias and the key mask say of the keys of a row, from some key on.
struct ShownKeys<'a, T> {
    bias: Option<(&'a [T], usize)>,
    mask: Option<(&'a [u8], usize)>,
}

impl<'a, T: Element> ShownKeys<'a, T> {
    /// `row`: sequence, position and head.
    fn new(block: &Block<'a, T>, row: (usize, usize, usize), first_key: usize) -> Self {
        let (call, operands) = (block.call, block.operands);
        let place = |layout: &Layout| {
            let step = layout.strides[3];
            (layout.offset(row.0, row.1, row.2) + first_key * step, step)
        };
        let bias = call.bias().map(place).zip(operands.bias);
        let mask = call.key_mask().map(place).zip(operands.key_mask);
        ShownKeys {
            bias: bias.map(|((start, step), data)| (&data[start..], step)),
            mask: mask.map(|((start, step), data)| (&data[start..], step)),
        }
    }

    /// What is added to the score of a key; `None` if the key is hidden.
    fn bias(&self, index: usize) -> Option<f32> {
        if let Some((mask, step)) = self.mask
            && mask[index * step] == 0
        {
            return None;
        }
        let bias = self
            .bias
            .map_or(0.0, |(bias, step)| bias[index * step].to_f32());
        (bias != f32::NEG_INFINITY).then_some(bias)
    }
}
