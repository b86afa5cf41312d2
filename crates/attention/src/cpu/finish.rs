//! From scaled products to scores: the terms of options, what is hidden, and what `f32` cannot hold.

use std::f64::consts::LOG2_E;
use std::ops::Range;

use warptile_kernels::Operand;
use warptile_kernels::tiling::Tiling;

use crate::cpu::block::{Block, Panel, Tile};
use crate::cpu::isa::MAX_PANEL;
use crate::cpu::shown::ShownKeys;
use crate::cpu::task::Blocks;
use crate::cpu::terms::{Hide, Terms};
use crate::spec::{Element, HeadTerms, ScoreTerms, Sequence};

impl<T: Element> Block<'_, T> {
    /// Turns the scaled products of a panel and some keys into scores in units of ln 2. Of each lane there is the largest score that was
    /// computed with care, and the unit that its products are still to be multiplied by: 1 where there was such a score.
    ///
    /// `safe` follows from the largest numbers of all rows, and only spares them a look: without it, each row is treated by what its own
    /// scores are, so that no bit depends on the others.
    pub(super) fn finish_scores(
        &self,
        tile: &Tile<'_, T>,
        panel: &Panel,
        keys: &Range<usize>,
        safe: bool,
        scores: &mut [f32],
        (careful, units): (&mut [f64], &mut [f32]),
    ) {
        let lanes = panel.lanes.len();
        if !self.plain() {
            self.add_terms(panel, keys, scores);
        }
        let masked = keys.start < panel.seen_by_all.start || panel.seen_by_all.end < keys.end;
        let unlisted = !self.lists_all(panel, keys);
        let shown = self.call.has_score_tensors() || unlisted;
        let scoring = self.call.scoring();
        let bounded = scoring.bounds_scores() && scoring.alibi.is_none();
        // A bias may be anything, and so may slopes.
        let safe = safe && (self.plain() || bounded) && !shown;
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
                let place = (keys.start, lanes);
                let largest = self.check_scores(tile, row, seen, place, scores, &mut units[lane]);
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

    /// Returns true if every row of a panel sees the blocks of all these keys.
    fn lists_all(&self, panel: &Panel, keys: &Range<usize>) -> bool {
        { panel.rows.clone() }.all(|row| self.listed(row, keys).all(|seen| seen))
    }

    /// Returns true if some row of a panel sees the block of one of these keys.
    pub(super) fn lists_any(&self, panel: &Panel, keys: &Range<usize>) -> bool {
        self.call.blocks().is_none() || { panel.rows.clone() }
            .any(|row| self.listed(row, keys).any(|seen| seen))
    }

    /// Tells for each block that has these keys if a row sees it, where there are lists of blocks.
    fn listed(&self, row: usize, keys: &Range<usize>) -> impl Iterator<Item = bool> {
        let blocks = self.call.blocks();
        let size = blocks.map_or(1, |blocks| blocks.lists().keys());
        let firsts = { keys.start / size * size..keys.end }.step_by(size);
        let (batch, (head, position)) = (self.task.sequence.batch, self.task.row(row));
        blocks.into_iter().flat_map(move |blocks| {
            { firsts.clone() }.map(move |key| blocks.show(batch, head, position, key))
        })
    }

    /// The terms of options, bias included.
    fn add_terms(&self, panel: &Panel, keys: &Range<usize>, scores: &mut [f32]) {
        let Sequence {
            batch,
            q_len,
            k_len,
            ..
        } = self.task.sequence;
        let lanes = panel.lanes.len();
        let start = keys.start / Blocks::BLOCK_N * Blocks::BLOCK_N;
        let mut heads = [HeadTerms::default(); MAX_PANEL];
        let mut diagonals = [0.0; MAX_PANEL];
        for (lane, row) in panel.rows.clone().enumerate() {
            let (head, position) = self.task.row(row);
            heads[lane] = self.head_terms(head);
            // Lengths are at most 2^30. Counted from a place that does not depend on the other rows.
            diagonals[lane] = ((position + k_len) as i64 - (q_len + start) as i64) as f32;
        }
        self.isa.run(Terms {
            scores,
            lanes,
            scoring: self.call.scoring(),
            heads: &heads[..lanes],
            diagonals: &diagonals[..lanes],
            first_key: keys.start - start,
        });
        for (lane, row) in panel.rows.clone().enumerate() {
            let (head, position) = self.task.row(row);
            if self.call.has(Operand::Bias) {
                let shown = ShownKeys::new(
                    self.call,
                    &self.operands,
                    (batch, position, head),
                    keys.start,
                );
                for key in 0..keys.len() {
                    // Hidden keys are set to minus infinity later.
                    scores[key * lanes + lane] += shown.bias(key).unwrap_or(0.0);
                }
            }
        }
        for score in scores {
            *score *= LOG2_E as f32;
        }
    }

    fn head_terms(&self, head: usize) -> HeadTerms {
        let (batch, heads) = (self.task.sequence.batch, self.call.heads().query);
        { self.call.scoring() }.head_terms(batch, head, heads, |list| self.operands.get(list))
    }

    /// Hides the keys of a row that bias or mask hide, and computes its scores again in `f64`, cut off at the range of `f32`, if any of the
    /// others, times the unit, is not finite; then the unit is 1. Returns the largest of these.
    /// Scores begin with key `first` and are `lanes` apart.
    fn check_scores(
        &self,
        tile: &Tile<'_, T>,
        row: usize,
        seen: Range<usize>,
        (first, lanes): (usize, usize),
        scores: &mut [f32],
        unit: &mut f32,
    ) -> f64 {
        let Sequence {
            batch,
            q_entry,
            q_start,
            q_len,
            k_len,
            ..
        } = self.task.sequence;
        let mut largest = f64::NEG_INFINITY;
        let (head, position) = self.task.row(row);
        let shown = ShownKeys::new(
            self.call,
            &self.operands,
            (batch, position, head),
            seen.start,
        );
        let mut finite = true;
        for (index, key) in seen.clone().enumerate() {
            let score = &mut scores[(key - first) * lanes];
            match shown.bias(index) {
                Some(_) => finite &= (*score * *unit).is_finite(),
                None => *score = f32::NEG_INFINITY,
            }
        }
        if finite {
            return largest;
        }
        *unit = 1.0;
        let query = self.operands.q.row(q_entry, q_start + position, head);
        for (index, key) in seen.enumerate() {
            let Some(bias) = shown.bias(index) else {
                continue;
            };
            let distance = (position + k_len) as i64 - (q_len + key) as i64;
            let terms = ScoreTerms {
                scale: self.call.scale(),
                head: self.head_terms(head),
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
        let product = product * f64::from(self.key_scale());
        self.call.scoring().score(product, terms, |x| x)
    }
}
