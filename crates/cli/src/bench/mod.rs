//! `warptile bench`: how long attention takes.

mod row;
mod wall;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use warptile::{Backend, Error};

use self::row::{Method, Row, Samples};
use crate::case::{Case, GRAMMAR};
use crate::case_inputs;
use crate::failure::Failure;
use crate::info;
use crate::inputs::{AnyInputs, with_inputs};
use crate::machine;
use crate::options::Device;

/// Measure how long attention takes.
///
/// On a GPU, "graph" is the GPU time of one launch: many of them in a replayed graph, timed by events, with inputs that rotate so
/// that they don't stay in the L2 cache; "call" is one call with events around it. On the CPU, "wall" is one call by the
/// clock. Inputs are normally distributed. benches/peers measures PyTorch's kernels the same way.
#[derive(Debug, Args)]
#[command(after_help = GRAMMAR)]
pub(crate) struct BenchArgs {
    /// Measure this problem; may be given several times [default: batch=2 heads=8 len=512 d=64]
    #[arg(long, value_name = "PROBLEM")]
    shape: Vec<Case>,

    /// Measure the problems of this file: one a line, # begins a comment
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Use the kernels of these names, or all that apply; the planner's choice if left out
    #[arg(long, value_name = "NAME,...|all", value_delimiter = ',')]
    kernel: Vec<String>,

    /// Where to compute: auto (the best GPU, else the CPU), cpu or cuda:N
    #[arg(long, default_value_t = Device::Auto)]
    device: Device,

    /// How many times to measure
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,

    /// Write the rows to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A way of taking times: the seam between the command and the devices.
trait Timer {
    /// The methods this timer has, each with the times of one call of `case`.
    ///
    /// # Errors
    /// When no kernel takes the case, or the device fails.
    fn time(&mut self, case: &Case, inputs: &AnyInputs) -> warptile::Result<Timed>;
}

/// What a [`Timer`] found.
struct Timed {
    plan: warptile::Plan,
    /// Microseconds of each call.
    times: Vec<(Method, Vec<f64>)>,
}

/// Runs the command.
pub(crate) fn run(args: &BenchArgs, console: &mut impl Write) -> Result<(), Failure> {
    let cases = cases(args)?;
    let backend = args.device.open()?;
    let machine = machine::describe(&backend);
    let mut timer = timer(&backend, args.samples as usize);
    let mut rows = Vec::new();
    let bar = ProgressBar::new(cases.len() as u64);
    for case in &cases {
        let inputs = case_inputs::inputs(case);
        let problem = with_inputs!(&inputs, inputs => inputs.problem(&case.settings()))?;
        for case in with_kernels(case, &problem, &args.kernel, &backend)? {
            let timed = timer.time(&case, &inputs)?;
            for (method, microseconds) in timed.times {
                if let Some(samples) = Samples::new(microseconds) {
                    rows.push(Row::new(
                        &case, &problem, &timed.plan, method, &samples, &machine,
                    ));
                }
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    writeln!(console, "{} on {backend}\n{}", machine.date, table(&rows))?;
    match &args.json {
        Some(path) => crate::json::write(path, &rows),
        None => Ok(()),
    }
}

fn timer(backend: &Backend, samples: usize) -> Box<dyn Timer> {
    Box::new(wall::WallClock::new(backend.clone(), samples))
}

fn cases(args: &BenchArgs) -> Result<Vec<Case>, Failure> {
    let mut cases = args.shape.clone();
    if let Some(path) = &args.file {
        cases.extend(cases_of_file(path)?);
    }
    if cases.is_empty() && args.file.is_none() {
        cases.push(
            "batch=2 heads=8 len=512 d=64"
                .parse()
                .map_err(Failure::Input)?,
        );
    }
    if cases.is_empty() {
        return Err(Failure::Input("there is no problem to measure".into()));
    }
    Ok(cases)
}

fn cases_of_file(path: &Path) -> Result<Vec<Case>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|source| Failure::read(path, source))?;
    let mut cases = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let problem = line.split('#').next().unwrap_or_default().trim();
        if problem.is_empty() {
            continue;
        }
        let case = problem.parse().map_err(|error| {
            Failure::Input(format!("{}:{}: {error}", path.display(), index + 1))
        })?;
        cases.push(case);
    }
    Ok(cases)
}

/// `case` once for each kernel to be measured.
fn with_kernels(
    case: &Case,
    problem: &warptile::Problem,
    kernels: &[String],
    backend: &Backend,
) -> Result<Vec<Case>, Failure> {
    let with = |kernel: &str| Case {
        kernel: Some(kernel.to_owned()),
        ..case.clone()
    };
    if kernels.is_empty() {
        return Ok(vec![case.clone()]);
    }
    if kernels.iter().all(|kernel| kernel != "all") {
        return Ok(kernels.iter().map(|kernel| with(kernel)).collect());
    }
    let Some(gpu) = backend.gpu() else {
        return Ok(vec![case.clone()]);
    };
    let mut cases: Vec<Case> = Vec::new();
    for image in warptile_kernels::catalog() {
        if cases.iter().any(|case| case.kernel.as_deref() == Some(image.kernel)) {
            continue;
        }
        match warptile::Plan::gpu(problem.clone(), gpu.profile(), Some(image.kernel)) {
            Ok(_) => cases.push(with(image.kernel)),
            Err(Error::NoKernel { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(cases)
}

fn table(rows: &[Row]) -> comfy_table::Table {
    let mut table = info::table(&[
        "batch", "heads", "query", "key", "head size", "element", "mask", "kernel", "method",
        "median us", "p90 us", "TFLOP/s",
    ]);
    for row in rows {
        let heads = if row.heads == row.kv_heads {
            row.heads.to_string()
        } else {
            format!("{}/{}", row.heads, row.kv_heads)
        };
        table.add_row([
            row.batch.to_string(),
            heads,
            row.query_len.to_string(),
            row.key_len.to_string(),
            row.head_dim.to_string(),
            row.element.clone(),
            row.mask.clone(),
            row.kernel.clone(),
            row.method.name().to_owned(),
            format!("{:.1}", row.median_us),
            format!("{:.1}", row.p90_us),
            format!("{:.3}", row.tflops),
        ]);
    }
    table
}
