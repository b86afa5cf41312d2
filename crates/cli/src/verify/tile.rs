//! `warptile verify --tile`: the scores and weights of one tile of every image.

use std::io::{self, Write};
use std::ops::ControlFlow;

use half::{bf16, f16};
use serde::Serialize;
use warptile::spec::MAX_HEAD_DIM;
use warptile::{Element, ElementType, Error};
use warptile_check::{Tile, TileFault, TileReport, TileValue};
use warptile_kernels::Image;

use super::check::Place;
use super::side_by_side::in_order;
use super::{MaybeLane, Verify};
use crate::failure::Failure;
use crate::interrupt;
use crate::machine::{self, Machine};
use crate::progress;
use crate::text;

/// What the CPU computes in place of an image's tile: neither number is a multiple of one of its vectors, and the keys are more than
/// the elements of a head.
const CPU_TILE: (usize, usize, usize) = (52, 76, 64);

/// The JSON that `--tile --json` writes.
#[derive(Debug, Serialize)]
struct Record {
    #[serde(flatten)]
    machine: Machine,
    seed: u64,
    cut_short: bool,
    passed: usize,
    failed: usize,
    not_applicable: usize,
    tiles: Vec<Row>,
}

/// One tile.
#[derive(Debug, Serialize)]
struct Row {
    /// `None`: the CPU path.
    image: Option<&'static str>,
    kernel: Option<&'static str>,
    sha256: Option<&'static str>,
    element: String,
    rows: usize,
    keys: usize,
    head_dim: usize,
    calls: usize,
    passed: bool,
    /// Those nearest to their bounds.
    score: Option<Value>,
    weight: Option<Value>,
    /// The first that is wrong.
    fault: Option<Fault>,
    /// Why no kernel takes the tile.
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct Value {
    row: usize,
    column: usize,
    /// Not a number: `null`.
    found: f64,
    expected: f64,
    bound: f64,
    ratio: f64,
}

#[derive(Debug, Serialize)]
struct Fault {
    quantity: String,
    #[serde(flatten)]
    first: Value,
    wrong: usize,
    /// Row and column of the tile whose value it has.
    has: Option<(usize, usize)>,
    message: String,
}

impl From<TileValue> for Value {
    fn from(value: TileValue) -> Self {
        Value {
            row: value.row,
            column: value.column,
            found: value.found,
            expected: value.expected,
            bound: value.bound,
            ratio: value.ratio(),
        }
    }
}

impl From<TileFault> for Fault {
    fn from(fault: TileFault) -> Self {
        Fault {
            quantity: fault.quantity.to_string(),
            first: fault.first.into(),
            wrong: fault.wrong,
            has: fault.has,
            message: fault.to_string(),
        }
    }
}

/// What is computed: an image's tile, or the CPU's in one element type.
#[derive(Debug, Clone, Copy)]
struct Job {
    image: Option<&'static Image>,
    element: ElementType,
}

/// What came of it.
enum Came {
    Judged(Result<TileReport, TileFault>),
    NotApplicable(String),
}

impl Job {
    fn tile(self, seed: u64) -> Tile {
        let (rows, keys, head_dim) = match self.image {
            None => CPU_TILE,
            Some(image) => {
                let shape = &image.tiling;
                let both = shape.head_dim.min(shape.value_dim);
                let head_dim = (both as usize).min(MAX_HEAD_DIM);
                (shape.block_m as usize, shape.block_n as usize, head_dim)
            }
        };
        Tile::new(rows, keys, head_dim, self.element, seed)
    }

    fn row(self, tile: &Tile, came: Came) -> Row {
        let (report, fault, reason) = match came {
            Came::Judged(Ok(report)) => (Some(report), None, None),
            Came::Judged(Err(fault)) => (None, Some(fault), None),
            Came::NotApplicable(reason) => (None, None, Some(reason)),
        };
        Row {
            image: self.image.map(|image| image.name),
            kernel: self.image.map(|image| image.kernel),
            sha256: self.image.map(|image| image.sha256),
            element: self.element.to_string(),
            rows: tile.rows(),
            keys: tile.keys(),
            head_dim: tile.case().heads.dim,
            calls: tile.calls(),
            passed: report.is_some(),
            score: report.map(|report| report.score.into()),
            weight: report.map(|report| report.weight.into()),
            fault: fault.map(Fault::from),
            reason,
        }
    }
}

/// Runs the command with `--tile`.
pub(super) fn run(verify: &Verify<'_>, console: &mut dyn Write) -> Result<(), Failure> {
    let args = verify.args;
    let jobs: Vec<Job> = match verify.backend.gpu() {
        None => [ElementType::F16, ElementType::Bf16, ElementType::F32]
            .map(|element| Job {
                image: None,
                element,
            })
            .to_vec(),
        Some(_) => {
            let images = verify.images.as_ref().unwrap_or(&verify.runnable);
            let job = |&image: &&'static Image| Job {
                image: Some(image),
                element: image.element,
            };
            images.iter().map(job).collect()
        }
    };
    let lanes = verify.lanes()?;
    let bar = progress::problems(jobs.len() as u64);
    let mut tiles = Vec::new();
    in_order(
        &lanes,
        jobs.into_iter(),
        |lane, job| read(verify, lane, *job),
        |_, row| {
            tiles.push(row);
            bar.inc(1);
            Ok(match interrupt::requested() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
        },
    )?;
    bar.finish_and_clear();
    let count = |is: fn(&Row) -> bool| tiles.iter().filter(|row| is(row)).count();
    let record = Record {
        machine: machine::describe(verify.backend),
        seed: args.seed,
        cut_short: interrupt::requested(),
        passed: count(|row| row.passed),
        failed: count(|row| row.fault.is_some()),
        not_applicable: count(|row| row.reason.is_some()),
        tiles,
    };
    record.print(&verify.backend.to_string(), console)?;
    if let Some(json) = &args.json {
        json.write(&record)?;
    }
    record.outcome()
}

/// Computes a job's tile.
fn read(verify: &Verify<'_>, lane: &MaybeLane<'_>, job: Job) -> Result<Row, Failure> {
    let tile = job.tile(verify.args.seed);
    let place = verify.place(lane, job.image, 0);
    let came = match job.element {
        ElementType::F16 => judge::<f16>(&tile, place),
        ElementType::Bf16 => judge::<bf16>(&tile, place),
        _ => judge::<f32>(&tile, place),
    }?;
    Ok(job.row(&tile, came))
}

fn judge<T: Element>(tile: &Tile, place: Place<'_>) -> warptile_check::Result<Came> {
    let case = tile.case();
    let plan = match place.plan(case) {
        Err(warptile_check::Error::Call(error @ Error::NoKernel { .. })) => {
            return Ok(Came::NotApplicable(error.to_string()));
        }
        plan => plan?,
    };
    place.load(&plan)?;
    let reading = tile.read::<T, warptile_check::Error>(|inputs| {
        let mut runner = place.prepare(case, inputs, &plan)?;
        runner.launch()?;
        Ok(runner.begin_result()?()?)
    })?;
    Ok(Came::Judged(tile.judge(&reading)))
}

impl Record {
    /// A line for each tile, what is wrong under it, and a line with the totals.
    fn print(&self, backend: &str, console: &mut dyn Write) -> io::Result<()> {
        let name = |row: &Row| match row.image {
            Some(image) => image.to_owned(),
            None => format!("cpu {}", row.element),
        };
        let names = self.tiles.iter().map(|row| name(row).len());
        let width = names.max().unwrap_or(0).max("tile of".len());
        writeln!(console, "{:width$}  rows keys  score weight", "tile of")?;
        for row in &self.tiles {
            let ratio = |value: &Option<Value>| match value {
                Some(value) => format!("{:.2}", value.ratio),
                None => "-".to_owned(),
            };
            let (score, weight) = (ratio(&row.score), ratio(&row.weight));
            let result = match (row.passed, &row.fault) {
                (true, _) => "passed",
                (false, Some(_)) => "FAILED",
                (false, None) => "-",
            };
            writeln!(
                console,
                "{:width$}  {:4} {:4} {score:>6} {weight:>6}  {result}",
                name(row),
                row.rows,
                row.keys,
            )?;
            let fault = row.fault.as_ref().map(|fault| &fault.message);
            if let Some(why) = fault.or(row.reason.as_ref()) {
                writeln!(
                    console,
                    "{}",
                    text::wrapped(&format!("  {why}"), text::columns(), 4)
                )?;
            }
        }
        let line = format!(
            "read {} tile{} on {backend}: {} passed, {} failed; score and weight: the worst, in parts of its bound",
            self.tiles.len() - self.not_applicable,
            if self.tiles.len() - self.not_applicable == 1 {
                ""
            } else {
                "s"
            },
            self.passed,
            self.failed
        );
        writeln!(console, "{}", text::wrapped(&line, text::columns(), 2))
    }

    fn outcome(&self) -> Result<(), Failure> {
        if let Some(row) = self.tiles.iter().find(|row| row.fault.is_some()) {
            let which = match row.image {
                Some(image) => format!(
                    "warptile verify --tile --kernel {image} --seed {}",
                    self.seed
                ),
                None => format!("warptile verify --tile --device cpu --seed {}", self.seed),
            };
            return Err(Failure::Wrong(format!(
                "{} of {} tiles failed; the first: {which}",
                self.failed,
                self.passed + self.failed
            )));
        }
        if self.cut_short {
            return Err(Failure::Interrupted(
                "cut short: Ctrl-C came before the last tile".into(),
            ));
        }
        match (
            self.passed,
            self.tiles.iter().find_map(|row| row.reason.as_ref()),
        ) {
            (0, Some(reason)) => Err(Failure::Input(reason.clone())),
            _ => Ok(()),
        }
    }
}
