//! `warptile bench`: how long attention takes.

pub(crate) mod blocks;
mod cpu;
pub(crate) mod data;
pub(crate) mod decoding;
pub(crate) mod devices;
pub(crate) mod gpu;
pub(crate) mod record;
pub(crate) mod row;
pub(crate) mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::time::{Duration, Instant};

use clap::Args;
use either::{for_both, map_both};
use indicatif::HumanDuration;
use warptile::gpu::{Gpu, Planned as _};
use warptile::kernels::Family;
use warptile::plan::{Choice, Plan, Planner, Share};
use warptile::spec::Heads;
use warptile::{Backend, Element, Error, with_element};
use warptile_check::Case;
use warptile_kernels::{Role, catalog, images_for};

use self::data::Data;
use self::gpu::Rotation;
use self::row::{Method, NOISE, Row, Samples};
use self::table::Table;
use crate::cases;
use crate::chart::{self, Bar};
use crate::devices::SeveralArgs;
use crate::failure::Failure;
use crate::images;
use crate::interrupt;
use crate::json;
use crate::machine::{self, Machine};
use crate::operation::{self, Operation};
use crate::options::Device;
use crate::output;
use crate::progress;
use crate::records::{self, Comparison, Origin, Record};
use crate::tensors::Settings;
use crate::text;

/// Measure how long attention takes.
///
/// On a GPU, "graph" is the GPU time of one launch. Many launches are replayed as a graph and timed by events; their inputs rotate, so
/// that they don't stay in the L2 cache. "call" is one call, timed by events around it. On the CPU, "wall" is the wall-clock time of one
/// call. Inputs are normally distributed. benches/peers measures PyTorch's kernels the same way.
///
/// With --devices, several devices compute each problem together and are compared with one. A time is then that of calls one behind the
/// other, per call, in turn of each device alone, all at the same time, and of all together: a GPU that waited meanwhile would be cool and
/// fast. The efficiency is one device's time (the mean of each alone) over the number of devices times their common time.
///
/// Ctrl-C ends the measurement and keeps its rows. A second Ctrl-C ends the program at once.
#[derive(Debug, Args)]
#[command(after_help = cases::help(&[
    "bench --shape \"b4 q4096 k4096 h32/8 d128 bf16 mask=causal\"",
    "bench --file problems.txt --json rows.json --chart",
    "bench --file problems.txt --compare rows.json",
    "bench --shape \"b1 q1 k8192 h32/8 d128 bf16\" --kernel families",
    "bench --devices 0,1 --shape \"q65536 h32/8 d128 bf16 mask=causal\"",
]))]
pub(crate) struct BenchArgs {
    /// Measure this problem; may be given several times [default: "b2 q512 k512 h8 d64 f16"]
    #[arg(long, value_name = "PROBLEM", value_parser = cases::parse)]
    shape: Vec<Case>,

    /// Measure the problems of this file: one a line, # begins a comment
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Kernels to measure: best, a family such as wgmma (its best kernel), or the name of a kernel or an image [default: best]
    ///
    /// `all` means each kernel that applies, and `families` the best kernel of each family.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        conflicts_with = "devices"
    )]
    kernel: Vec<String>,

    /// Only images compiled for this target, such as sm_90 or compute_80
    ///
    /// For example, `--kernel mma --target compute_89` measures the best kernel of `mma` as the driver compiles it from PTX.
    #[arg(long, conflicts_with = "devices")]
    target: Option<String>,

    /// Where to compute: auto (the best GPU, else the CPU), cpu or cuda:N
    #[arg(long, default_value_t = Device::Auto, conflicts_with = "devices")]
    device: Device,

    #[command(flatten)]
    several: SeveralArgs,

    /// With --devices and one query for each sequence: rows of each that the first device has before the others are dealt out
    ///
    /// It begins before the other devices and waits for them at the end.
    #[arg(
        long,
        value_name = "ROWS",
        default_value_t = 0,
        requires = "devices",
        hide_default_value = true
    )]
    lead: usize,

    /// The most samples of a measurement
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: u32,

    /// Seconds after which the next measurement begins, once a tenth of the samples is taken
    #[arg(long, value_name = "X", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,

    /// Take a sample for each line of standard input, and print its microseconds on a line
    ///
    /// For measuring in turn with another program, so that a drifting clock affects both alike, as benches/peers does.
    /// The line "next" ends the samples of the current method; the end of the input ends the measurement. After each problem, a line with
    /// the number of rows is printed, and the next problem begins with the next line of input.
    #[arg(long, conflicts_with_all = ["seconds", "devices"])]
    paced: bool,

    /// Write the rows to this file after each problem, as JSON; - for standard output, at the end
    ///
    /// The result is a list of rows. Until all are measured, and after Ctrl-C, it is an object with "cut_short": true and the "rows".
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<json::Target>,

    /// Compare with rows that --json wrote earlier on the same kind of device, and fail if a row is slower by more than the tolerance
    #[arg(long, value_name = "OLD.json", conflicts_with = "devices")]
    compare: Option<PathBuf>,

    /// Percent by which a row may be slower than its earlier one
    #[arg(long, value_name = "PERCENT", default_value_t = records::TOLERANCE, value_parser = records::percentage, requires = "compare", conflicts_with = "devices")]
    tolerance: f64,

    /// Don't ask before a measurement that takes long
    ///
    /// The question comes only on a terminal. Otherwise the estimate is printed, and the measurement begins.
    #[arg(short, long)]
    yes: bool,

    /// Draw the speeds as bars at the end
    #[arg(long, conflicts_with = "devices")]
    chart: bool,
}

/// Calls before the first that counts: they load the kernel or start the threads, and touch the memory.
const WARM_UP: usize = 3;

/// A measurement that takes longer is announced.
const LONG: Duration = Duration::from_secs(30);

/// Operations of a problem that takes no time worth an estimate, even on one core.
const SHORT: u128 = 10_000_000_000;

/// When a measurement has enough times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) samples: usize,
    pub(crate) time: Duration,
    pub(crate) paced: bool,
}

impl Effort {
    /// Samples that are taken however long they take.
    fn least_samples(self) -> usize {
        self.samples.div_ceil(10)
    }

    /// Calls that are made however long they take.
    fn least_calls(self) -> usize {
        1 + self.least_samples()
    }

    /// As much for each of several.
    fn times(self, count: u32) -> Self {
        Effort {
            time: self.time.saturating_mul(count),
            ..self
        }
    }

    /// Calls `work` a few times before the first sample. One call is enough where it takes as long as all samples may.
    fn warm_up<E>(self, mut work: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        let start = Instant::now();
        for _ in 0..WARM_UP {
            if interrupt::requested() {
                break;
            }
            work()?;
            if !self.paced && start.elapsed() > self.time {
                break;
            }
        }
        Ok(())
    }

    /// Calls `sample` until there is enough. After Ctrl-C there are no samples: too few of them say little.
    ///
    /// # Errors
    /// The first of `sample`.
    fn spend<E>(self, mut sample: impl FnMut() -> Result<f64, E>) -> Result<Vec<f64>, E> {
        let start = Instant::now();
        let least = self.least_samples();
        let mut samples = Vec::new();
        if self.paced {
            while samples.len() < self.samples && wait_for_line(NEXT) {
                let microseconds = sample()?;
                samples.push(microseconds);
                if writeln!(std::io::stdout(), "{microseconds}").is_err() {
                    break; // whoever paced this is gone
                }
            }
            return Ok(samples);
        }
        while samples.len() < least || (samples.len() < self.samples && start.elapsed() < self.time)
        {
            if interrupt::requested() {
                return Ok(Vec::new());
            }
            samples.push(sample()?);
        }
        Ok(samples)
    }
}

/// The word that ends the samples of one kind.
const NEXT: &str = "next";

/// Returns true if there was a line, and a different one than `end`.
fn wait_for_line(end: &str) -> bool {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    read.is_ok_and(|bytes| bytes > 0) && line.trim_end() != end
}

/// Runs the command.
pub(crate) fn run(args: &BenchArgs, console: &mut dyn Write) -> Result<(), Failure> {
    args.several.check()?;
    args.several.check_option("lead", args.lead > 0)?;
    if let Some(json) = args.json.as_ref().and_then(json::Target::file) {
        output::refuse_replacing(args.file.iter().chain(&args.compare), json)?;
    }
    let cases = cases_of(args)?;
    let effort = Effort {
        samples: args.samples as usize,
        time: Duration::from_secs_f64(args.seconds),
        paced: args.paced,
    };
    if args.several.devices.is_some() {
        return devices::run(args, effort, console);
    }
    let earlier = args.compare.as_deref().map(Record::read).transpose()?;
    let backend = args.device.open()?;
    let machine = machine::describe(&backend);
    if let Some(earlier) = &earlier {
        earlier.check_device(&machine)?;
    }
    // Waiting for a line would go on after Ctrl-C.
    if !args.paced {
        interrupt::watch(from_ref(&backend));
    }
    let planned = { cases.iter() }.map(|case| {
        let (kernels, target) = (&args.kernel, args.target.as_deref());
        Ok::<_, Failure>(
            map_both!(operation::asked(case, case.try_call()?)?, operation => {
                Planned::new(operation, kernels, target, &backend)?
            }),
        )
    });
    let planned: Vec<_> = planned.collect::<Result<_, _>>()?;
    if !args.paced {
        let mut seconds = 0.0;
        for (case, planned) in cases.iter().zip(&planned) {
            let of_calls = for_both!(planned, planned => {
                with_element!(case.element, T => planned.seconds::<T>(case, &backend))
            });
            seconds += of_calls? * effort.least_calls() as f64;
        }
        let estimate = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let text = format!("measuring takes about {}", HumanDuration(estimate));
        if estimate > LONG && !progress::confirmed(&text, args.yes)? {
            return Err(Failure::Interrupted("nothing was measured".into()));
        }
    }
    let problems: Vec<String> = cases.iter().map(cases::without_seed).collect();
    let mut table = Table::new(&problems, backend.is_gpu());
    let mut rows: Vec<Row> = Vec::new();
    let part =
        |rows: &[Row], at_the_end| json::write_part(&args.json, cases.len(), rows, at_the_end);
    let bar = progress::problems(cases.len() as u64);
    // Somebody who paces reads standard output line by line: there the rows come when the samples are over.
    if !args.paced {
        bar.suspend(|| writeln!(console, "{backend}\n{}", table.header()))?;
    }
    let measured = cases.iter().zip(&problems).zip(&planned);
    for (index, ((case, problem), planned)) in measured.enumerate() {
        if args.paced && index > 0 && !wait_for_line(NEXT) {
            break;
        }
        let keep = |row: Row| -> Result<(), Failure> {
            if !args.paced {
                let line = table.row(&row);
                bar.suspend(|| writeln!(console, "{line}").and_then(|()| console.flush()))?;
            }
            rows.push(row);
            Ok(())
        };
        let ended = for_both!(planned, planned => with_element!(case.element, T => {
            planned.rows::<T>(case, problem, &backend, &machine, effort, keep)
        }));
        interrupt::tolerate(ended)?;
        // After each problem, so that little is lost if the rest never comes.
        part(&rows, false)?;
        if args.paced {
            writeln!(console, "{} rows", rows.len()).and_then(|()| console.flush())?;
        }
        if interrupt::requested() {
            break;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if interrupt::requested() {
        part(&rows, true)?;
        let kept = text::count(rows.len() as u64, "row");
        let were = if rows.len() == 1 { "was" } else { "were" };
        return Err(Failure::Interrupted(format!(
            "cut short: {kept} {were} measured before Ctrl-C"
        )));
    }
    if rows.is_empty() {
        return Err(Failure::Input(
            "nothing was measured: no kernel asked for applies, or the input ended first".into(),
        ));
    }
    if args.paced {
        writeln!(console, "{backend}\n{}", table.header())?;
        for row in &rows {
            writeln!(console, "{}", table.row(row))?;
        }
    }
    let noisy = rows.iter().filter(|row| row.is_noisy()).count() as u64;
    if noisy > 0 {
        let what = text::count(noisy, "measurement");
        let line = format!(
            "noise    {what} with a p90 of {NOISE} times the median or more: something else was using the device; measure again"
        );
        writeln!(console, "{}", text::wrapped(&line, text::columns(), 9))?;
    }
    json::write(&args.json, &rows)?;
    if args.chart {
        write!(console, "\n{}", chart(&rows, text::columns()))?;
    }
    let Some(earlier) = earlier else {
        return Ok(());
    };
    let differences = earlier.origin().differences(&Origin::of(&machine));
    // Only earlier rows of the problems that were requested now are compared.
    let before: Vec<_> = { earlier.rows.iter() }
        .filter(|row| row.backend == "warptile" && problems.contains(&row.problem))
        .collect();
    let now: Vec<_> = rows.iter().collect();
    let comparison = Comparison::new(&before, &now, args.tolerance);
    write!(
        console,
        "\n{differences}{}",
        comparison.table(text::columns())
    )?;
    comparison.verdict(&earlier.path)
}

/// A bar for each row, those of operations and those of bytes apart, as their lengths can't be compared.
fn chart(rows: &[Row], width: usize) -> String {
    let of = |is_reading: bool| {
        let rows = rows.iter().filter(|row| row.is_reading() == is_reading);
        let bars: Vec<Bar> = rows
            .map(|row| Bar {
                title: format!("{}, {}, {}", row.problem, row.method, row.kernel),
                value: if is_reading { row.tb_s } else { row.tflops },
                shown: table::speed(row),
            })
            .collect();
        chart::bars(&bars, width)
    };
    of(false) + &of(true)
}

/// A time for command lines, up to a day.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=86_400.0).contains(&value) => Ok(value),
        _ => Err("it is a number of seconds from 0 to 86400".to_owned()),
    }
}

fn cases_of(args: &BenchArgs) -> Result<Vec<Case>, Failure> {
    let mut cases = args.shape.clone();
    match &args.file {
        Some(path) => cases.extend(cases_of_file(path)?),
        None if cases.is_empty() => {
            cases.push(cases::parse("b2 q512 k512 h8 d64 f16").map_err(Failure::Input)?);
        }
        None => {}
    }
    if cases.is_empty() {
        return Err(Failure::Input("there is no problem to measure".into()));
    }
    if cases.iter().any(|case| case.multiprocessors.is_some()) {
        return Err(Failure::Input(
            "sms=N is for `warptile verify`: bench measures the whole GPU".into(),
        ));
    }
    Ok(cases)
}

pub(crate) fn cases_of_file(path: &Path) -> Result<Vec<Case>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|source| Failure::read(path, source))?;
    let mut cases = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let problem = line.split('#').next().unwrap_or_default().trim();
        if problem.is_empty() {
            continue;
        }
        cases.push(cases::parse(problem).map_err(|error| {
            let error = text::message(&error);
            Failure::Input(format!("{}:{}: {error}", path.display(), index + 1))
        })?);
    }
    Ok(cases)
}

/// The operation of a problem, and a plan for each kernel to be measured.
struct Planned<O: Operation> {
    operation: O,
    plans: Vec<Plan<O::Problem>>,
}

impl<O: Operation> Planned<O> {
    /// With kernels of these names, by images of the target if there is one.
    fn new(
        operation: O,
        kernels: &[String],
        target: Option<&str>,
        backend: &Backend,
    ) -> Result<Self, Failure> {
        let plans = match backend.gpu() {
            Some(gpu) => plans(&operation, kernels, target, backend, gpu)?,
            None => vec![plan_on_cpu(&operation, kernels, target, backend)?],
        };
        Ok(Planned { operation, plans })
    }

    /// About how many seconds one call by each plan takes in total: as the planner estimates, and on the CPU by a small part of the
    /// problem.
    fn seconds<T: Element>(&self, case: &Case, backend: &Backend) -> Result<f64, Failure> {
        if backend.is_gpu() {
            let estimates = self.plans.iter().map(Plan::estimate_us);
            return Ok(estimates.filter(|us| us.is_finite()).sum::<f64>() * 1e-6);
        }
        if self.operation.flops() < SHORT {
            return Ok(0.0);
        }
        let call = self.operation.call();
        let [queries, keys] = [call.query_len().min(512), call.key_len().min(2048)];
        let part = Case {
            element: case.element,
            quantized: case.quantized,
            ..Case::new(queries, keys, case.heads)
        };
        let operation = O::of(&part, &part.try_call()?)?;
        let part_flops = operation.flops() as f64;
        let of_part = Planned {
            plans: vec![operation.plan_on_cpu()],
            operation,
        };
        let a_few = Effort {
            samples: 30,
            time: Duration::ZERO,
            paced: false,
        };
        let mut seconds = 0.0;
        let keep = |_: &Plan<O::Problem>, _, microseconds: Vec<f64>| {
            let of_part = Samples::new(microseconds).map_or(0.0, |samples| samples.median() * 1e-6);
            seconds = of_part * self.operation.flops() as f64 / part_flops;
            Ok(())
        };
        of_part.time::<T>(&part, backend, a_few, keep)?;
        Ok(seconds)
    }

    /// Hands each row of the plans to `keep` as soon as it is measured.
    fn rows<T: Element>(
        &self,
        case: &Case,
        problem: &str,
        backend: &Backend,
        machine: &Machine,
        effort: Effort,
        mut keep: impl FnMut(Row) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let operation = &self.operation;
        self.time::<T>(
            case,
            backend,
            effort,
            |plan, method, microseconds| match Samples::new(microseconds) {
                Some(samples) => {
                    let row = Row::new(problem, case, operation, plan, method, &samples, machine);
                    keep(row)
                }
                None => Ok(()),
            },
        )
    }

    /// Times the plans, one after the other in the same memory, and has those of each method kept.
    fn time<T: Element>(
        &self,
        case: &Case,
        backend: &Backend,
        effort: Effort,
        mut keep: impl FnMut(&Plan<O::Problem>, Method, Vec<f64>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (lists, call) = (case.lists(), self.operation.call());
        let data = Data::<T>::new(case, call, &lists);
        let tensors = data.tensors(backend, call)?;
        let mut on_gpu = match backend.gpu() {
            Some(gpu) => {
                let rotation = Rotation::new(case, &self.operation, gpu, &data, &lists)?;
                Some((gpu, rotation))
            }
            None => None,
        };
        let forward = tensors.forward(&Settings::of(call), &data.numbers);
        let forward = forward.d_bias(case.d_bias);
        for plan in &self.plans {
            if interrupt::requested() {
                break;
            }
            // Sequences that kernels share are planned again for a choice of none of them.
            let is_shared = plan.steps().iter().any(|step| step.share != Share::All);
            let choice = match plan.image().filter(|_| !is_shared) {
                Some(image) => Choice::Image(image.name.to_owned()),
                None => Choice::Best,
            };
            let d_out = || data.d_out(call).tensor(backend, *call.out());
            let repeated = O::repeated(&forward, choice, d_out)?;
            match &mut on_gpu {
                None => keep(plan, Method::Wall, cpu::wall(repeated, effort)?)?,
                Some((gpu, rotation)) => {
                    keep(plan, Method::Graph, gpu::graph(rotation, plan, effort)?)?;
                    keep(plan, Method::Call, gpu::call(repeated, gpu, effort)?)?;
                }
            }
        }
        Ok(())
    }
}

/// The plan of the CPU path, if the names allow it.
fn plan_on_cpu<O: Operation>(
    operation: &O,
    kernels: &[String],
    target: Option<&str>,
    backend: &Backend,
) -> Result<Plan<O::Problem>, Failure> {
    let is_of_gpus = |name: &&String| !["all", "families", "best", "cpu"].contains(&name.as_str());
    let option = match (target, kernels.iter().find(is_of_gpus)) {
        (Some(target), _) => format!("--target {}", text::name(target)),
        (None, Some(name)) => format!("--kernel {}", text::name(name)),
        (None, None) => return Ok(operation.plan_on_cpu()),
    };
    Err(Failure::Input(format!(
        "{option} needs a GPU; the measurement would run on {backend}"
    )))
}

/// A plan for each kernel to be measured, by images of the target if there is one.
fn plans<O: Operation>(
    operation: &O,
    kernels: &[String],
    target: Option<&str>,
    backend: &Backend,
    gpu: &Gpu,
) -> Result<Vec<Plan<O::Problem>>, Failure> {
    let (profile, problem) = (gpu.profile(), operation.problem());
    let images = || {
        { O::ROLES.iter() }
            .flat_map(|role| images_for(*role))
            .filter(move |image| {
                target.is_none_or(|name| {
                    image.target.to_string() == name
                        && image.target.runs_on(profile.major, profile.minor)
                })
            })
    };
    if let Some(target) = target
        && images().next().is_none()
    {
        return Err(Failure::Input(format!(
            "no image of target {target} runs on {backend}; `warptile info --kernels` lists what there is"
        )));
    }
    let plan = |choice: Choice| match target {
        None => gpu.plan_of::<O>(problem, &choice),
        Some(_) => {
            // Small steps have images of any target: no option chooses them.
            let small = catalog().iter();
            let small = small.filter(|image| !O::ROLES.contains(&image.role));
            let planner = Planner::new(profile).rates(gpu.rates());
            problem.plan(&planner.images(images().chain(small)), &choice)
        }
    };
    if kernels.is_empty() {
        return Ok(vec![plan(Choice::Best)?]);
    }
    // Plans with a kernel for queries alone have one for keys, which they go by.
    let main = || images().filter(|image| image.role != Role::QueryGradients);
    let mut plans = Vec::new();
    for name in kernels {
        match name.as_str() {
            "all" => {
                let kernels = sorted(main().map(|image| image.kernel));
                let choices = kernels
                    .into_iter()
                    .map(|name| Choice::Kernel(name.to_owned()));
                plans.extend(applicable(choices.map(plan))?);
            }
            "families" => {
                let families = sorted::<Family>(main().map(|image| image.family));
                plans.extend(applicable(
                    families.into_iter().map(Choice::Family).map(plan),
                )?);
            }
            name => {
                let choice = name.parse()?;
                images::check_roles(&choice, O::ROLES)?;
                plans.push(plan(choice)?);
            }
        }
    }
    Ok(plans)
}

/// The plans of those candidates that can solve the problem.
fn applicable<P>(
    plans: impl Iterator<Item = warptile::Result<Plan<P>>>,
) -> warptile::Result<Vec<Plan<P>>> {
    plans
        .filter(|plan| !matches!(plan, Err(Error::NoKernel { .. })))
        .collect()
}

fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable();
    items.dedup();
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(effort: Effort) -> usize {
        let mut calls = 0;
        let times = effort.spend(|| {
            calls += 1;
            Ok::<_, Error>(1.0)
        });
        assert_eq!(times.unwrap().len(), calls);
        calls
    }

    /// The rows of all contestants are put together by the text of their problem.
    #[test]
    fn problems_of_the_peers_read_back() {
        let texts = [
            include_str!("../../../../benches/peers/decode.txt"),
            include_str!("../../../../benches/peers/backward.txt"),
            include_str!("../../../../benches/peers/options.txt"),
        ];
        let problems = { texts.iter() }
            .flat_map(|text| text.lines())
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        for problem in problems {
            assert_eq!(
                cases::without_seed(&cases::parse(problem).unwrap()),
                problem
            );
        }
    }

    #[test]
    fn effort_ends_with_the_samples_or_with_the_time() {
        let effort = |samples, seconds| Effort {
            samples,
            time: Duration::from_secs(seconds),
            paced: false,
        };
        assert_eq!(samples(effort(50, 3600)), 50);
        assert_eq!(samples(effort(50, 0)), 5);
        assert_eq!(samples(effort(1, 0)), 1);
    }
}
