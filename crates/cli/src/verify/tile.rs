//! `warptile verify --tile`: the scores and weights of one tile of every image.

use std::io::{self, Write};

use serde_json::{Value, json};
use warptile::spec::MAX_HEAD_DIM;
use warptile::{Element, ElementType, Error, with_element};
use warptile_check::{Tile, TileFault, TileReport, TileValue};
use warptile_kernels::Image;

use super::check::Place;
use super::side_by_side::in_order;
use super::{MaybeLane, Verify};
use crate::failure::Failure;
use crate::interrupt;
use crate::json;
use crate::machine;
use crate::progress;
use crate::text;

/// The tile that the CPU computes in place of an image's: neither number is a multiple of one of its vectors, and the keys are more
/// than the elements of a head.
const CPU_TILE: (usize, usize, usize) = (52, 76, 64);

/// A tile that was computed, or could not be.
struct Row {
    job: Job,
    tile: Tile,
    came: Came,
}

/// Row and column of a value, and how near it came to its bound. One that is not a number is `null`.
fn value(value: &TileValue) -> Value {
    json!({
        "row": value.row, "column": value.column, "found": value.found, "expected": value.expected, "bound": value.bound,
        "ratio": value.ratio(),
    })
}

/// A fault: its first value, how many are wrong, and row and column of the tile whose value it `has`.
fn fault(fault: &TileFault) -> Value {
    let mut json = value(&fault.first);
    json["quantity"] = fault.quantity.to_string().into();
    json["wrong"] = fault.wrong.into();
    json["has"] = json!(fault.has);
    json["message"] = fault.to_string().into();
    json
}

impl Row {
    /// The tile in the JSON that `--json` writes: no image is the CPU path, `score` and `weight` are those nearest to
    /// their bounds, `fault` is the first that is wrong, and `reason` says why no kernel takes the tile.
    fn json(&self) -> Value {
        let (image, report) = (self.job.image, self.report());
        json!({
            "image": image.map(|image| image.name),
            "kernel": image.map(|image| image.kernel),
            "sha256": image.map(|image| image.sha256),
            "element": self.job.element.to_string(),
            "rows": self.tile.rows(),
            "keys": self.tile.keys(),
            "head_dim": self.tile.case().heads.dim,
            "calls": self.tile.calls(),
            "passed": report.is_some(),
            "score": report.map(|report| value(&report.score)),
            "weight": report.map(|report| value(&report.weight)),
            "fault": self.fault().map(fault),
            "reason": self.reason(),
        })
    }

    fn report(&self) -> Option<&TileReport> {
        match &self.came {
            Came::Judged(judged) => judged.as_ref().ok(),
            Came::NotApplicable(_) => None,
        }
    }

    fn fault(&self) -> Option<&TileFault> {
        match &self.came {
            Came::Judged(judged) => judged.as_ref().err(),
            Came::NotApplicable(_) => None,
        }
    }

    fn reason(&self) -> Option<&str> {
        match &self.came {
            Came::Judged(_) => None,
            Came::NotApplicable(reason) => Some(reason),
        }
    }
}

/// The work of a job: an image's tile, or the CPU's in one element type.
#[derive(Debug, Clone, Copy)]
struct Job {
    image: Option<&'static Image>,
    element: ElementType,
}

/// The outcome of a job.
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
                let head_dim = shape.dims().into_iter().fold(MAX_HEAD_DIM, usize::min);
                (shape.block_m as usize, shape.block_n as usize, head_dim)
            }
        };
        let tile = Tile::new(rows, keys, head_dim, self.element, seed);
        match self.image {
            Some(image) => tile.for_image(image),
            None => tile,
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
    let ended = in_order(
        &lanes,
        jobs.into_iter(),
        |lane, job| read(verify, lane, *job),
        |_, row| {
            tiles.push(row);
            bar.inc(1);
            Ok(!interrupt::requested())
        },
    );
    interrupt::tolerate(ended)?;
    bar.finish_and_clear();
    let count = |is: fn(&Row) -> bool| tiles.iter().filter(|row| is(row)).count();
    let passed = count(|row| row.report().is_some());
    let failed = count(|row| row.fault().is_some());
    print(&tiles, passed, failed, &verify.backend.to_string(), console)?;
    let mut json = json::value(machine::describe(verify.backend))?;
    json["seed"] = args.seed.into();
    json["cut_short"] = interrupt::requested().into();
    json["passed"] = passed.into();
    json["failed"] = failed.into();
    json["not_applicable"] = (tiles.len() - passed - failed).into();
    json["tiles"] = tiles.iter().map(Row::json).collect();
    json::write(&args.json, &json)?;
    if let Some(row) = tiles.iter().find(|row| row.fault().is_some()) {
        let which = match row.job.image {
            Some(image) => format!("--kernel {}", image.name),
            None => "--device cpu".to_owned(),
        };
        return Err(Failure::Wrong(format!(
            "{failed} of {} tiles failed; the first: warptile verify --tile {which} --seed {}",
            passed + failed,
            args.seed
        )));
    }
    if interrupt::requested() {
        return Err(Failure::Interrupted(
            "cut short: Ctrl-C came before the last tile".into(),
        ));
    }
    match (passed, tiles.iter().find_map(Row::reason)) {
        (0, Some(reason)) => Err(Failure::Input(reason.to_owned())),
        _ => Ok(()),
    }
}

/// Computes a job's tile.
fn read(verify: &Verify<'_>, lane: &MaybeLane<'_>, job: Job) -> Result<Row, Failure> {
    let tile = job.tile(verify.args.seed);
    let place = verify.place(lane, job.image, 0);
    let came = with_element!(job.element, T => judge::<T>(&tile, place))?;
    Ok(Row { job, tile, came })
}

fn judge<T: Element>(tile: &Tile, place: Place<'_>) -> warptile_check::Result<Came> {
    let case = tile.case();
    let plan = match place.plan(case, &case.call_on_gpu()?) {
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

/// A line for each tile, what is wrong under it, and a line with the totals.
fn print(
    tiles: &[Row],
    passed: usize,
    failed: usize,
    backend: &str,
    console: &mut dyn Write,
) -> io::Result<()> {
    let name = |row: &Row| match row.job.image {
        Some(image) => image.name.to_owned(),
        None => format!("cpu {}", row.job.element),
    };
    let names = tiles.iter().map(|row| name(row).len());
    let width = names.max().unwrap_or(0).max("tile of".len());
    writeln!(console, "{:width$}  rows keys  score weight", "tile of")?;
    for row in tiles {
        let ratio = |of: fn(&TileReport) -> &TileValue| match row.report() {
            Some(report) => format!("{:.2}", of(report).ratio()),
            None => "-".to_owned(),
        };
        let (score, weight) = (
            ratio(|report| &report.score),
            ratio(|report| &report.weight),
        );
        let (result, why) = match &row.came {
            Came::Judged(Ok(_)) => ("passed", None),
            Came::Judged(Err(fault)) => ("FAILED", Some(fault.to_string())),
            Came::NotApplicable(reason) => ("-", Some(reason.clone())),
        };
        writeln!(
            console,
            "{:width$}  {:4} {:4} {score:>6} {weight:>6}  {result}",
            name(row),
            row.tile.rows(),
            row.tile.keys(),
        )?;
        if let Some(why) = why {
            text::wrap_to(console, 4, &format!("  {why}"))?;
        }
    }
    let tiles = text::count((passed + failed) as u64, "tile");
    let line = format!(
        "read {tiles} on {backend}: {passed} passed, {failed} failed; score and weight: the worst, in parts of its bound"
    );
    text::wrap_to(console, 2, &line)
}
