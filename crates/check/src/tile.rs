//! One tile, whose scores and weights are read one by one: see [`Tile`].

use std::fmt;

use warptile::kernels::Image;
use warptile::spec::{BlockLists, Features, Heads};
use warptile::{Element, ElementType};

use crate::accept::LSE_TOLERANCE;
use crate::case::Case;
use crate::data::{Buffer, Data, Inputs, Random, ResultBuffers};

/// What a query has in the first element, and what a hidden key has there. Their product puts a hidden key's score below the lowest of
/// the others by more than `f32` can tell from nothing, at every head size.
const SIGHT: f64 = 64.0;

/// Queries and keys are multiples of this up to [`LARGEST`], so that their products and the sums of these are exact in `f32`.
const STEP: f64 = 0.25;
const LARGEST: f64 = 2.0;

/// Blocks of queries that are whole tiles of every kernel, or the parts of a tile that have lists of their own.
const LISTS: BlockLists = BlockLists::new(128, 64);

/// Roundings to the element type on the way of a weight: of the exponential, of their sum where rounded ones are added up, and of the
/// output; and one for what is carried from one to the next.
const ROUNDINGS: f64 = 4.0;

/// One tile of a kernel: as many queries and keys as it takes at once, its scores and weights read through plain calls.
///
/// - **Weights.** With the identity as values, a row of the output is the row of softmax weights. Where there are more keys than the head
///   has elements, some calls read a slice of the identity each.
/// - **Scores.** The first element of all queries is the same number. A key that has 0 there is in sight, and one that has the opposite
///   number is not: its weight is exactly 0. With one key in sight, lse is that key's score, and the output is 1 in its column.
///
/// Both are compared with `float64`. Queries and keys are small multiples of 1/4, so that every product and every sum is exact in
/// `f32`: what is left is the rounding of the scale, of the exponential and of the result.
///
/// ```text
/// |score - s| <= 1e-5 (1 + |s|)
/// |weight - w| <= w (4 u + 1e-5 (1 + |s|)) + 2^-24
/// ```
///
/// where `u` is the unit roundoff of the element type: 2^-11 for f16, 2^-8 for bf16, 2^-24 for f32.
#[derive(Debug, Clone)]
#[must_use]
pub struct Tile {
    case: Case,
    /// `rows * head_dim` and `keys * head_dim`, without the first element.
    q: Vec<f64>,
    k: Vec<f64>,
    scores: Vec<f64>,
    weights: Vec<f64>,
}

/// The values read from a tile. Each has a row for each query, and in it an element for each key.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Reading {
    /// The lse with this key alone in sight.
    pub scores: Vec<f64>,
    /// The weights with all keys in sight.
    pub weights: Vec<f64>,
    /// The key that shows in this column of the output when it is alone in sight; `None` where no key does, or several do.
    pub shown: Vec<Option<usize>>,
}

/// How near a right tile came to what is allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct TileReport {
    /// The score nearest to its bound.
    pub score: TileValue,
    /// The weight nearest to its bound.
    pub weight: TileValue,
}

/// One value of a tile.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct TileValue {
    /// Query, from 0.
    pub row: usize,
    /// Key, from 0.
    pub column: usize,
    /// The value read.
    pub found: f64,
    /// The expected value in `float64`.
    pub expected: f64,
    /// How far apart the two may be.
    pub bound: f64,
}

impl TileValue {
    /// How far apart they are.
    pub fn error(&self) -> f64 {
        (self.found - self.expected).abs()
    }

    /// The share of the bound that is used; infinite for NaN.
    pub fn ratio(&self) -> f64 {
        let ratio = self.error() / self.bound;
        if ratio.is_nan() { f64::INFINITY } else { ratio }
    }
}

/// A score or a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TileQuantity {
    /// `scale * q.k`.
    Score,
    /// A weight of the softmax.
    Weight,
}

impl fmt::Display for TileQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TileQuantity::Score => "score",
            TileQuantity::Weight => "weight",
        })
    }
}

/// The error found in a tile: its first wrong value, scores first.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct TileFault {
    /// The kind of value.
    pub quantity: TileQuantity,
    /// The first wrong one.
    pub first: TileValue,
    /// How many of all are wrong, of this quantity.
    pub wrong: usize,
    /// Row and column of the tile whose value it has, if it is another's.
    pub has: Option<(usize, usize)>,
}

impl fmt::Display for TileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TileValue {
            row,
            column,
            found,
            expected,
            bound,
        } = self.first;
        let quantity = self.quantity;
        write!(
            f,
            "row {row}, column {column}: {quantity} {found:.6e} instead of {expected:.6e} (within {bound:.1e})"
        )?;
        match self.has {
            Some((other, key)) if other == row => {
                write!(f, "; has the {quantity} of column {key}")?
            }
            Some((other, key)) if key == column => {
                write!(f, "; has the {quantity} of row {other}")?
            }
            Some((other, key)) => write!(f, "; has the {quantity} of row {other}, column {key}")?,
            None => {}
        }
        write!(f, "; {} in all", self.wrong)
    }
}

impl Tile {
    /// A tile of `rows` queries and `keys` keys; `seed` draws its numbers.
    ///
    /// # Panics
    /// If `head_dim` is not a multiple of 8 from 8 to 512.
    pub fn new(rows: usize, keys: usize, head_dim: usize, element: ElementType, seed: u64) -> Self {
        let case = Case {
            element,
            seed,
            ..Case::new(rows, keys, Heads::new(1, head_dim))
        };
        assert!(case.try_call().is_ok(), "head size {head_dim}");
        let mut random = Random::new(seed ^ 0x711e);
        let mut numbers = |rows: usize| {
            let steps = (LARGEST / STEP) as usize;
            let mut number = |_| STEP * (random.below(2 * steps + 1) as f64) - LARGEST;
            let mut numbers: Vec<f64> = (0..rows * head_dim).map(&mut number).collect();
            numbers.chunks_mut(head_dim).for_each(|row| row[0] = 0.0);
            numbers
        };
        let (q, k) = (numbers(rows), numbers(keys));
        let scale = 1.0 / (head_dim as f64).sqrt();
        let dot = |(a, b): (&[f64], &[f64])| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        let pairs = q
            .chunks(head_dim)
            .flat_map(|q| k.chunks(head_dim).map(move |k| (q, k)));
        let scores: Vec<f64> = pairs.map(|pair| scale * dot(pair)).collect();
        let softmax = |row: &[f64]| {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|score| (score - largest).exp()).sum();
            let weights = row.iter().map(|score| (score - largest).exp() / sum);
            weights.collect::<Vec<f64>>()
        };
        let weights = scores.chunks(keys.max(1)).flat_map(softmax).collect();
        Tile {
            case,
            q,
            k,
            scores,
            weights,
        }
    }

    /// The tile with the option that the image always reads, if there is one: lists of all blocks, or a key mask that shows all keys.
    pub fn for_image(mut self, image: &Image) -> Self {
        let (scoring, problem) = (self.case.scoring, self.case.call().problem());
        if image.features.contains(Features::BLOCKS) {
            let blocks = self.keys().div_ceil(LISTS.keys());
            self.case.scoring = scoring.blocks(LISTS.each(blocks as u32));
        } else if let Some(mask) = image.boxed().filter(|_| image.lacks_mask(&problem)) {
            self.case.scoring = scoring.with(mask);
            self.case.broadcast = Some([true, false, true, false]);
        }
        self
    }

    /// The problem of every call, except for its data.
    pub fn case(&self) -> &Case {
        &self.case
    }

    /// Its queries.
    pub fn rows(&self) -> usize {
        self.q.len() / self.case.heads.dim
    }

    /// Its keys.
    pub fn keys(&self) -> usize {
        self.k.len() / self.case.heads.dim
    }

    /// How many calls [`read`](Self::read) makes.
    pub fn calls(&self) -> usize {
        self.keys() + self.keys().div_ceil(self.case.heads.dim)
    }

    /// Reads a tile: `run` computes what it is given, once for each slice of the identity and once for each key.
    ///
    /// # Errors
    /// The first error of `run`.
    ///
    /// # Panics
    /// If `T` is not the tile's element type, or a result is smaller than [`Case::result`].
    pub fn read<T: Element, E>(
        &self,
        mut run: impl FnMut(&Inputs<T>) -> Result<ResultBuffers<T>, E>,
    ) -> Result<Reading, E> {
        assert!(T::TYPE == self.case.element, "the tile's element type");
        let (rows, keys, head_dim) = (self.rows(), self.keys(), self.case.heads.dim);
        let layout = *self.case.call().out();
        let mut inputs = self.case.inputs::<T>();
        for operand in inputs.others.as_mut_slice() {
            if let Some(Data::Bytes(mask)) = operand {
                mask.data.fill(1);
            }
        }
        fill(&mut inputs.q, &self.q, head_dim);
        for row in 0..rows {
            set(&mut inputs.q, row, 0, SIGHT);
        }
        let mut reading = Reading {
            scores: vec![f64::NAN; rows * keys],
            weights: vec![f64::NAN; rows * keys],
            shown: vec![None; rows * keys],
        };
        let mut several = vec![false; rows * keys];
        let at = |result: &ResultBuffers<T>, row: usize, column: usize| {
            result.out[result.offset + layout.offset(0, row, 0) + column].to_f64()
        };
        for first in (0..keys).step_by(head_dim) {
            let columns = head_dim.min(keys - first);
            for key in 0..keys {
                for column in 0..head_dim {
                    let one = key == first + column;
                    set(&mut inputs.v, key, column, f64::from(u8::from(one)));
                }
            }
            fill(&mut inputs.k, &self.k, head_dim);
            let result = run(&inputs)?;
            for row in 0..rows {
                for column in 0..columns {
                    reading.weights[row * keys + first + column] = at(&result, row, column);
                }
            }
            for key in first..first + columns {
                for other in 0..keys {
                    let sight = if other == key { 0.0 } else { -SIGHT };
                    set(&mut inputs.k, other, 0, sight);
                }
                let result = run(&inputs)?;
                for row in 0..rows {
                    reading.scores[row * keys + key] = f64::from(result.lse[row]);
                    for column in (0..columns).filter(|&column| at(&result, row, column) > 0.5) {
                        let index = row * keys + first + column;
                        several[index] |= reading.shown[index].is_some();
                        reading.shown[index] = Some(key);
                    }
                }
            }
        }
        for (shown, several) in reading.shown.iter_mut().zip(several) {
            shown.take_if(|_| several);
        }
        Ok(reading)
    }

    /// Compares what was read with `float64`.
    ///
    /// # Errors
    /// The first wrong score, or else the first wrong weight.
    ///
    /// # Panics
    /// If the reading is of a tile of another size.
    pub fn judge(&self, reading: &Reading) -> Result<TileReport, TileFault> {
        Ok(TileReport {
            score: self.judge_all(TileQuantity::Score, reading)?,
            weight: self.judge_all(TileQuantity::Weight, reading)?,
        })
    }

    fn judge_all(&self, quantity: TileQuantity, reading: &Reading) -> Result<TileValue, TileFault> {
        let (rows, keys) = (self.rows(), self.keys());
        let found = match quantity {
            TileQuantity::Score => &reading.scores,
            TileQuantity::Weight => &reading.weights,
        };
        assert!(found.len() == rows * keys, "a reading of this tile");
        let value = |row, column| self.compare(quantity, found, (row, column), (row, column));
        let all = (0..rows).flat_map(|row| (0..keys).map(move |column| (row, column)));
        let wrong = all
            .clone()
            .filter(|&(row, column)| !is_right(value(row, column)));
        let Some((row, column)) = wrong.clone().next() else {
            let values = all.map(|(row, column)| value(row, column));
            let worst = values.reduce(|a, b| if b.ratio() > a.ratio() { b } else { a });
            // A tile without values has nothing wrong.
            return Ok(worst.unwrap_or(TileValue {
                row: 0,
                column: 0,
                found: 0.0,
                expected: 0.0,
                bound: 1.0,
            }));
        };
        let of_row = wrong.clone().filter(|&(other, _)| other == row);
        let columns: Vec<usize> = of_row.map(|(_, column)| column).collect();
        Err(TileFault {
            quantity,
            first: value(row, column),
            wrong: wrong.count(),
            has: self.origin(quantity, reading, row, &columns),
        })
    }

    /// Whose value the first of the wrong `columns` of a row has: that of a row of which most of the others have theirs, too. Which key
    /// a column of the output shows has been seen.
    fn origin(
        &self,
        quantity: TileQuantity,
        reading: &Reading,
        row: usize,
        columns: &[usize],
    ) -> Option<(usize, usize)> {
        let (rows, keys) = (self.rows(), self.keys());
        let (found, shown): (_, Box<dyn Fn(usize) -> Option<usize>>) = match quantity {
            TileQuantity::Score => (&reading.scores, Box::new(Some)),
            TileQuantity::Weight => {
                let of_row = &reading.shown[row * keys..][..keys];
                (&reading.weights, Box::new(|column| of_row[column]))
            }
        };
        let has = |column: usize, other: usize| {
            shown(column).is_some_and(|key| {
                is_right(self.compare(quantity, found, (row, column), (other, key)))
            })
        };
        let &first = columns.first()?;
        let matches = |other: &usize| {
            columns
                .iter()
                .filter(|&&column| has(column, *other))
                .count()
        };
        // Its own row before all others: the first of several that are as good.
        let candidates = std::iter::once(row).chain((0..rows).filter(|&other| other != row));
        let candidates = candidates.filter(|&other| has(first, other));
        let best = candidates.map(|other| (matches(&other), other));
        let best = best.reduce(|a, b| if b.0 > a.0 { b } else { a });
        Some((best?.1, shown(first)?))
    }

    /// Compares the number found at one place with the one expected at another.
    fn compare(
        &self,
        quantity: TileQuantity,
        found: &[f64],
        (row, column): (usize, usize),
        (other, key): (usize, usize),
    ) -> TileValue {
        let keys = self.keys();
        let index = other * keys + key;
        let score = self.scores[index];
        let rounding = LSE_TOLERANCE * (1.0 + score.abs());
        let (expected, bound) = match quantity {
            TileQuantity::Score => (score, rounding),
            TileQuantity::Weight => {
                let weight = self.weights[index];
                let roundoff = match self.case.element {
                    ElementType::F16 => (-11_f64).exp2(),
                    ElementType::Bf16 => (-8_f64).exp2(),
                    _ => (-24_f64).exp2(),
                };
                let relative = ROUNDINGS * roundoff + rounding;
                (weight, relative * weight + (-24_f64).exp2())
            }
        };
        TileValue {
            row,
            column,
            found: found[row * keys + column],
            expected,
            bound,
        }
    }
}

/// A NaN never is.
fn is_right(value: TileValue) -> bool {
    value.ratio() <= 1.0
}

fn fill<T: Element>(buffer: &mut Buffer<T>, values: &[f64], head_dim: usize) {
    for (row, values) in values.chunks(head_dim).enumerate() {
        for (column, &value) in values.iter().enumerate() {
            set(buffer, row, column, value);
        }
    }
}

/// All of these numbers are exact in every element type.
fn set<T: Element>(buffer: &mut Buffer<T>, row: usize, column: usize, value: f64) {
    let index = buffer.offset + buffer.layout.offset(0, row, 0) + column;
    buffer.data[index] = T::from_f64(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use warptile::cpu::forward_cpu;
    use warptile::kernels::{Role, Schedule, catalog};
    use warptile::plan::{Choice, DeviceProfile, Planner};
    use warptile::spec::{MAX_HEAD_DIM, Scoring};

    /// The CPU path, whose result `spoil` may change: called with a call's number.
    fn read<T: Element>(tile: &Tile, spoil: impl Fn(&mut ResultBuffers<T>)) -> Reading {
        let call = tile.case().call();
        let mut calls = 0;
        let reading = tile.read::<T, warptile::Error>(|inputs| {
            calls += 1;
            let mut result = tile.case().result::<T>();
            forward_cpu(&call, &inputs.host(), result.host())?;
            spoil(&mut result);
            Ok(result)
        });
        assert_eq!(calls, tile.calls());
        reading.unwrap()
    }

    fn fault(tile: &Tile, reading: &Reading) -> String {
        tile.judge(reading).unwrap_err().to_string()
    }

    /// Elements `from` and `to` of the output are swapped.
    fn swap(result: &mut ResultBuffers<f16>, from: usize, to: usize) {
        let offset = result.offset;
        result.out.swap(offset + from, offset + to);
    }

    #[test]
    fn the_cpu_path_is_right_in_every_type() {
        for (rows, keys, head_dim) in [(16, 32, 64), (48, 80, 32), (1, 9, 8), (5, 130, 256)] {
            let tile = |element| Tile::new(rows, keys, head_dim, element, 7);
            let reports = [
                tile(ElementType::F16).judge(&read::<f16>(&tile(ElementType::F16), |_| {})),
                tile(ElementType::Bf16).judge(&read::<bf16>(&tile(ElementType::Bf16), |_| {})),
                tile(ElementType::F32).judge(&read::<f32>(&tile(ElementType::F32), |_| {})),
            ];
            for report in reports {
                let report = report.unwrap_or_else(|fault| panic!("{rows}x{keys}: {fault}"));
                assert!(report.weight.ratio() <= 1.0 && report.score.ratio() <= 1.0);
            }
        }
    }

    /// Only options that an image always reads are added.
    #[test]
    fn every_image_with_rows_of_one_head_takes_a_tile() {
        let device = DeviceProfile::h200();
        let takers = catalog().iter().filter(|image| {
            image.role == Role::Forward
                && image.target.runs_on(device.major, device.minor)
                && image.types().scaled().is_none()
                && image.schedule != Schedule::PersistentGroups
        });
        let mut with_options = 0;
        for image in takers {
            let [rows, keys] = [image.tiling.block_m, image.tiling.block_n].map(|n| n as usize);
            let head_dim = image
                .tiling
                .dims()
                .into_iter()
                .fold(MAX_HEAD_DIM, usize::min);
            let tile = Tile::new(rows, keys, head_dim, image.element, 7).for_image(image);
            let problem = tile.case().call_on_gpu().unwrap().problem();
            let choice = Choice::Image(image.name.to_owned());
            Planner::new(&device).plan(problem, &choice).unwrap();
            if tile.case().scoring != Scoring::new() && image.element == ElementType::F16 {
                with_options += 1;
                let report = tile.judge(&read::<f16>(&tile, |_| {}));
                report.unwrap_or_else(|fault| panic!("{}: {fault}", image.name));
            }
        }
        assert!(with_options > 10, "{with_options}");
    }

    #[test]
    fn what_is_read_is_the_softmax() {
        let tile = Tile::new(6, 20, 16, ElementType::F32, 3);
        let reading = read::<f32>(&tile, |_| {});
        assert_eq!(tile.calls(), 20 + 2);
        for row in 0..6 {
            let sum: f64 = reading.weights[row * 20..][..20].iter().sum();
            assert!((sum - 1.0).abs() < 1e-6);
            for key in 0..20 {
                assert_eq!(reading.shown[row * 20 + key], Some(key));
            }
        }
    }

    #[test]
    fn a_permuted_accumulator_is_read_off() {
        let tile = Tile::new(16, 32, 64, ElementType::F16, 5);
        // Columns 16 to 23 and 24 to 31 of row 8 come to each other's places.
        let columns = read(&tile, |result| {
            for column in 16..24 {
                swap(result, 8 * 64 + column, 8 * 64 + column + 8);
            }
        });
        let said = fault(&tile, &columns);
        assert!(said.starts_with("row 8, column 16: weight "), "{said}");
        assert!(
            said.contains("has the weight of column 24; 16 in all"),
            "{said}"
        );
        // Rows 3 and 11, of the output alone and of the lse alone.
        let rows = read(&tile, |result| {
            for column in 0..64 {
                swap(result, 3 * 64 + column, 11 * 64 + column);
            }
        });
        let said = fault(&tile, &rows);
        assert!(said.starts_with("row 3, column 0: weight "), "{said}");
        assert!(said.contains("has the weight of row 11;"), "{said}");
        let rows = read::<f16>(&tile, |result| result.lse.swap(3, 11));
        let said = fault(&tile, &rows);
        assert!(said.starts_with("row 3, column 0: score "), "{said}");
        assert!(said.contains("has the score of row 11;"), "{said}");
        // A quarter of an accumulator: rows and columns at once.
        let both = read(&tile, |result| {
            for column in 16..24 {
                swap(result, 2 * 64 + column, 10 * 64 + column + 8);
            }
        });
        let said = fault(&tile, &both);
        assert!(said.starts_with("row 2, column 16: weight "), "{said}");
        assert!(
            said.contains("has the weight of row 10, column 24;"),
            "{said}"
        );
    }

    #[test]
    fn in_every_slice_of_the_identity() {
        let tile = Tile::new(4, 80, 32, ElementType::F16, 5);
        let swapped = read(&tile, |result| swap(result, 2 * 32 + 1, 2 * 32 + 7));
        let said = fault(&tile, &swapped);
        assert!(said.contains("row 2, column 1: weight"), "{said}");
        assert!(
            said.contains("has the weight of column 7; 6 in all"),
            "{said}"
        );
    }

    #[test]
    fn one_value_that_is_nobodys_is_named_without_an_owner() {
        let tile = Tile::new(16, 32, 64, ElementType::F16, 5);
        for wrong in [f64::NAN, 1.5] {
            let mut reading = read::<f16>(&tile, |_| {});
            reading.weights[5 * 32 + 9] = wrong;
            let fault = tile.judge(&reading).unwrap_err();
            assert_eq!((fault.first.row, fault.first.column), (5, 9));
            assert_eq!((fault.has, fault.wrong), (None, 1));
        }
        let mut reading = read::<f16>(&tile, |_| {});
        reading.scores[7 * 32] += 1e-3;
        assert!(fault(&tile, &reading).starts_with("row 7, column 0: score "));
    }

    /// An error that the acceptance rule would let pass: an error of a thousandth of the largest weight in a small
    /// one.
    #[test]
    fn small_weights_have_small_bounds() {
        let tile = Tile::new(16, 32, 64, ElementType::F16, 5);
        let mut reading = read::<f16>(&tile, |_| {});
        let (index, least) = { reading.weights.iter().copied().enumerate() }
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap();
        assert!(least < 1e-3);
        reading.weights[index] += 1e-5;
        assert!(tile.judge(&reading).is_err());
    }
}
