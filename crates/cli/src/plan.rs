//! `warptile plan`: which kernel would compute a problem, on a GPU that need not be here.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use clap::Args;
use either::for_both;
use serde_json::{Value, json};
use warptile::Error;
use warptile::gpu::Planned;
use warptile::plan::{Choice, DeviceProfile, Plan, Planner, Rates, Reason, Share, Standing, Step};
use warptile_check::Case;
use warptile_distributed::Expected;
use warptile_kernels::Target;

use crate::bench::{row, table};
use crate::cases;
use crate::devices::{By, Dealt, SeveralArgs};
use crate::failure::Failure;
use crate::images;
use crate::json;
use crate::operation::{self, Operation};
use crate::options::{self, Device};
use crate::text::{self, say};

/// Show which kernel would compute a problem on a GPU, and why the others would not.
///
/// The GPU need not be in this machine. Without --gpu, the plan is for this machine's GPU, with the rates that `warptile tune` wrote for
/// it. For a GPU without measurements, times are modelled: by the rates of the H200, scaled by the data sheets of both. The plan says so.
///
/// A problem may be larger than those with data: the commands that make tensors refuse one with more than 2^31 elements.
///
/// With --devices, the plan also predicts the time on several such GPUs together, by each scheme, and warns where they gain little. They
/// are taken to be joined by NVLink.
#[derive(Debug, Args)]
#[command(after_help = cases::help(&[
    "plan \"b4 q4096 k4096 h32/8 d128 bf16 mask=causal\" --gpu a100",
    "plan \"b1 q1 k8192 h32/8 d128 bf16 pages=16\" --gpu all",
    "plan \"b2 q512 k512 h8 d64 f16\" --gpu 8.6 --multiprocessors 30",
    "plan \"q65536 h32/8 d128 bf16 mask=causal\" --gpu h100 --devices 0,1,2,3",
]))]
pub(crate) struct PlanArgs {
    /// The problem, such as "b2 q512 k512 h8 d64 f16 mask=causal"
    #[arg(value_name = "PROBLEM", value_parser = cases::parse_to_plan)]
    case: Case,

    /// GPUs to plan for: names such as a100 or rtx4090, compute capabilities such as 8.6, or `all` for every GPU with a name
    /// [default: the best GPU of this machine]
    #[arg(long, value_name = "GPU,...", value_delimiter = ',')]
    gpu: Vec<String>,

    /// Plan as if the GPU had N multiprocessors
    #[arg(long, value_name = "N", value_parser = options::multiprocessors())]
    multiprocessors: Option<u32>,

    /// Kernel to plan with: best, a family such as wgmma, or the name of a kernel or an image
    #[arg(long, value_name = "NAME", default_value_t = Choice::Best)]
    kernel: Choice,

    #[command(flatten)]
    several: SeveralArgs,

    /// Print the reason and the expected time for every single kernel
    #[arg(long)]
    explain: bool,

    /// Write the plans to this file, as JSON; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<json::Target>,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs, console: &mut dyn Write) -> Result<(), Failure> {
    args.several.check()?;
    if args.several.devices.is_some() {
        args.several.deal(&args.case)?;
    }
    let asked = operation::asked(&args.case, args.case.call_to_plan()?)?;
    for_both!(asked, operation => of(args, &operation, console))
}

/// Plans an operation.
fn of<O: Operation>(
    args: &PlanArgs,
    operation: &O,
    console: &mut dyn Write,
) -> Result<(), Failure> {
    images::check_roles(&args.kernel, O::ROLES)?;
    let profiles = profiles(args)?;
    let named = images::named()?;
    let planned_for = |(profile, rates): &(DeviceProfile, Option<Rates>)| {
        let planner = Planner::new(profile).named(named);
        let planner = match rates {
            Some(rates) => planner.rates(rates),
            None => planner,
        };
        operation.problem().plan(&planner, &args.kernel)
    };
    say!(console, "problem  {}", cases::without_seed(&args.case))?;
    if let Some(devices) = &args.several.devices
        && profiles.is_empty()
    {
        say!(
            console,
            "devices  {devices}: times are predicted for GPUs only; name one, such as --gpu a100"
        )?;
    } else if profiles.is_empty() {
        say!(
            console,
            "kernel   cpu: there is no GPU here; name one, such as --gpu a100"
        )?;
    }
    let plans: Vec<_> = profiles
        .iter()
        .map(|one| (&one.0, planned_for(one)))
        .collect();
    let planned = plans
        .iter()
        .map(|(profile, plan)| planned(args, operation, profile, plan));
    json::write(&args.json, &planned.collect::<Result<Vec<_>, _>>()?)?;
    match &plans[..] {
        [] => Ok(()),
        [(profile, plan)] => {
            let plan = plan.as_ref().map_err(|error| refused(profile, error))?;
            one(args, operation, profile, plan, console)
        }
        _ => table(&plans, console),
    }
}

/// No kernel, or no such name, with the reasons of all in a few lines.
fn refused(profile: &DeviceProfile, error: &Error) -> Failure {
    match error {
        Error::NoKernel {
            problem,
            considered,
        } => {
            let considered = considered.iter().map(|one| (one.kernel, &one.reason));
            Failure::Input(format!(
                "no kernel takes {problem}\n{}",
                reasons(considered, None).trim_end()
            ))
        }
        error => Failure::Input(format!("{}: {error}", profile.name)),
    }
}

/// The devices to plan for, with the rates that this machine has for them; nothing on a machine without a GPU.
fn profiles(args: &PlanArgs) -> Result<Vec<(DeviceProfile, Option<Rates>)>, Failure> {
    let mut profiles = Vec::new();
    for name in &args.gpu {
        match name.as_str() {
            "all" => profiles.extend(DeviceProfile::known().map(|gpu| (gpu, None))),
            name => {
                let gpu = DeviceProfile::named(name).map_err(|error| {
                    let known: Vec<String> =
                        DeviceProfile::known().map(|gpu| gpu.short_name()).collect();
                    let known = known.join(", ");
                    Failure::Input(format!(
                        "--gpu: {error}; it is all, a compute capability such as 8.6, or one of {known}"
                    ))
                })?;
                profiles.push((gpu, None));
            }
        }
    }
    if args.gpu.is_empty() {
        let backend = match &args.several.devices {
            Some(devices) => devices.open_first()?,
            None => Device::Auto.open()?,
        };
        let here = backend.gpu();
        profiles.extend(here.map(|gpu| (gpu.profile().clone(), Some(gpu.rates().clone()))));
    }
    let given = args.multiprocessors.or(args.case.multiprocessors);
    if let Some(multiprocessors) = given {
        for (profile, _) in &mut profiles {
            profile.multiprocessors = multiprocessors;
        }
    }
    Ok(profiles)
}

/// The JSON that `--json` writes, one for each GPU.
fn planned<O: Operation>(
    args: &PlanArgs,
    operation: &O,
    profile: &DeviceProfile,
    plan: &warptile::Result<Plan<O::Problem>>,
) -> Result<Value, Failure> {
    let considered = match plan {
        Ok(plan) => plan.considered(),
        Err(Error::NoKernel { considered, .. }) => considered,
        Err(_) => &[],
    };
    let plan = plan.as_ref().ok();
    let (image, basis) = (plan.and_then(Plan::image), plan.and_then(Plan::basis));
    let expected = plan.map(Plan::estimate_us);
    let tflops = |us| tflops(operation, us);
    let considered = considered.iter().map(|one| {
        let mut row = json!({ "kernel": one.kernel, "reason": one.reason.to_string() });
        if let Some(us) = expected.and_then(|us| expected_us(&one.reason, us)) {
            row["expected_us"] = us.into();
            row["expected_tflops"] = tflops(us).into();
        }
        row
    });
    let steps = plan.map(|plan| {
        let steps = plan.steps().iter();
        let step = |step: &Step| {
            let image = step.image;
            json!({
                "role": step.role.to_string(),
                "kernel": image.kernel,
                "image": image.name,
                "sequences": step.share.to_string(),
                "expected_us": step.estimate_us,
            })
        };
        Vec::from_iter(steps.map(step))
    });
    let mut value = json!({
        "problem": cases::without_seed(&args.case),
        "gpu": profile.name,
        "compute_capability": format!("{}.{}", profile.major, profile.minor),
        "multiprocessors": profile.multiprocessors,
        // `null`, as what the choice rests on, if no kernel takes the problem there.
        "kernel": image.map(|image| image.kernel),
        "image": image.map(|image| image.name),
        "family": image.map(|image| image.family.to_string()),
        "steps": steps,
        "workspace_bytes": plan.map(|plan| O::Problem::scratch(plan).bytes),
        "expected_us": expected,
        "expected_tflops": expected.map(tflops),
        "rates": basis.map(ToString::to_string),
        // True if the choice is based on rates that were measured on this GPU.
        "measured": basis.is_some_and(|basis| basis.standing == Standing::Measured),
        "considered": Vec::from_iter(considered),
    });
    if let (Some(_), Some(us)) = (&args.several.devices, expected) {
        value["devices"] = Several::new(args, us)?.json();
    }
    Ok(value)
}

/// The prediction for several GPUs.
struct Several {
    dealt: Dealt,
    ranks: usize,
    engine: &'static str,
    chosen: Expected,
    /// The other scheme, or why it is none.
    other: (By, Result<Expected, Failure>),
}

impl Several {
    /// By the scheme that is given, or the faster one.
    fn new(args: &PlanArgs, one_us: f64) -> Result<Self, Failure> {
        let (case, ranks) = (&args.case, args.several.count());
        let dealt = args.several.deal(case)?;
        let map = dealt.map(ranks)?;
        let [gather, heads] = By::ALL.map(|by| args.several.expected(by, case, &map, one_us));
        let us = |expected: &Result<Expected, Failure>| {
            { expected.as_ref() }.map_or(f64::INFINITY, |expected| expected.us)
        };
        let by = args
            .several
            .scheme
            .unwrap_or(match us(&heads) < us(&gather) {
                true => By::Heads,
                false => By::Gather,
            });
        let (chosen, other) = match by {
            By::Gather => (gather?, (By::Heads, heads)),
            By::Heads => (heads?, (By::Gather, gather)),
            By::Hybrid => {
                let hybrid = args.several.expected(by, case, &map, one_us);
                (hybrid?, (By::Gather, gather))
            }
        };
        Ok(Several {
            dealt,
            ranks,
            engine: args.several.engine().unwrap_or_default(),
            chosen,
            other,
        })
    }

    fn json(&self) -> Value {
        let (chosen, (by, other)) = (&self.chosen, &self.other);
        json!({
            "ranks": self.ranks,
            "engine": self.engine,
            "scheme": chosen.scheme.to_string(),
            "sharding": self.dealt.sharding(),
            "expected_us": chosen.us,
            "gain": chosen.gain(),
            "fetched_bytes": chosen.fetched_bytes,
            "not": {
                "scheme": by.to_string(),
                "expected_us": other.as_ref().ok().map(|other| other.us),
                "reason": other.as_ref().err().map(ToString::to_string),
            },
            "warning": chosen.warning(),
        })
    }

    fn print(&self, console: &mut dyn Write) -> Result<(), Failure> {
        let (chosen, (by, other)) = (&self.chosen, &self.other);
        say!(
            console,
            "devices  {} by {chosen}; sharding {}, up to {:.1} MB from other devices",
            self.ranks,
            self.dealt.sharding(),
            chosen.fetched_bytes as f64 / 1e6
        )?;
        if self.engine == "nccl" {
            say!(console, "engine   nccl, predicted as fast as peer copies")?;
        }
        match other {
            Ok(other) => say!(
                console,
                "not      {other}, {:.2} times as long",
                other.us / chosen.us
            )?,
            Err(why) => say!(console, "not      {by}: {why}")?,
        }
        match chosen.warning() {
            Some(warning) => Ok(say!(console, "warning  {warning}")?),
            None => Ok(()),
        }
    }
}

/// One plan at length.
fn one<O: Operation>(
    args: &PlanArgs,
    operation: &O,
    profile: &DeviceProfile,
    plan: &Plan<O::Problem>,
    console: &mut dyn Write,
) -> Result<(), Failure> {
    say!(
        console,
        "gpu      {}, compute capability {}.{}, {} multiprocessors",
        profile.name,
        profile.major,
        profile.minor,
        profile.multiprocessors
    )?;
    let expected = plan.estimate_us();
    let speed = |us: f64| {
        let call = operation.call();
        let bytes = row::kv_bytes(&args.case, call);
        let is_reading = row::is_reading(&args.case, call);
        let speed = table::speed_text(is_reading, bytes as f64 / us * 1e-6, tflops(operation, us));
        format!("{us:.1} us, {speed}")
    };
    for step in plan.steps() {
        let shape = operation.shape(step)?;
        say!(console, "{:<8} {}", step.role.to_string(), step.image.name)?;
        say!(
            console,
            "         {} of {} threads with {} bytes of shared memory, {} a multiprocessor, {}",
            text::count(shape.grid, "CTA"),
            step.threads(),
            step.image.resources.dynamic_shared_bytes,
            step.ctas_per_multiprocessor,
            step.image.schedule
        )?;
        if step.share != Share::All {
            say!(console, "         {}", step.share)?;
        }
    }
    let workspace = text::count(O::Problem::scratch(plan).bytes as u64, "byte");
    say!(console, "needs    {workspace} of workspace")?;
    say!(console, "expected {}", speed(expected))?;
    if let Some(basis) = plan.basis() {
        say!(console, "rates    {basis}")?;
    }
    if args.several.devices.is_some() {
        Several::new(args, expected)?.print(console)?;
    }
    let considered = plan.considered();
    if args.explain {
        for one in considered {
            let time = expected_us(&one.reason, expected);
            let time = time.map_or(String::new(), |us| format!(": {}", speed(us)));
            say!(console, "not      {}: {}{time}", one.kernel, one.reason)?;
        }
    } else {
        let considered = considered.iter().map(|one| (one.kernel, &one.reason));
        write!(console, "{}", reasons(considered, Some(expected)))?;
    }
    Ok(())
}

/// The planner's estimate for a kernel that was not chosen, if the reason has one. `chosen` is that of the chosen kernel, in microseconds.
fn expected_us(reason: &Reason, chosen: f64) -> Option<f64> {
    match reason {
        Reason::Slower { times } => Some(times * chosen),
        _ => None,
    }
}

fn tflops<O: Operation>(operation: &O, microseconds: f64) -> f64 {
    operation.flops() as f64 / microseconds * 1e-6
}

/// The common facts of kernels of one family that share a reason.
#[derive(Default)]
struct Group {
    kernels: u64,
    /// Expected times over that of the chosen kernel.
    times: Vec<f64>,
    targets: BTreeSet<Target>,
}

/// Why kernels were not chosen: a line for each family and reason, without what only tells kernels of a family apart.
fn reasons<'a>(
    considered: impl Iterator<Item = (&'static str, &'a Reason)>,
    chosen_us: Option<f64>,
) -> String {
    let mut groups: BTreeMap<(&str, String), Group> = BTreeMap::new();
    for (kernel, reason) in considered {
        let family = kernel.split('_').next().unwrap_or(kernel);
        let text = match reason {
            Reason::Slower { .. } => "applies, expected to take".to_owned(),
            Reason::NoImage { .. } => "compiled for other GPUs only:".to_owned(),
            Reason::HeadDim { .. } => "its tiles are too narrow for the head size".to_owned(),
            Reason::ValueDim { .. } => {
                "its tiles are too narrow for the head size of values".to_owned()
            }
            Reason::SharedMemory { available, .. } => {
                format!("needs more shared memory than the {available} bytes that a CTA can have")
            }
            reason => reason.to_string(),
        };
        let group = groups.entry((family, text)).or_default();
        group.kernels += 1;
        match reason {
            Reason::Slower { times } => group.times.push(*times),
            Reason::NoImage { targets } => group.targets.extend(targets),
            _ => {}
        }
    }
    let mut lines = String::new();
    for ((family, mut reason), group) in groups {
        let least = group.times.iter().copied().fold(f64::INFINITY, f64::min);
        let most = group.times.iter().copied().fold(0.0, f64::max);
        let us = chosen_us.unwrap_or_default();
        match group.times.len() {
            0 => {}
            1 => reason.push_str(&format!(" {:.1} us, {least:.2} times as long", least * us)),
            _ => reason.push_str(&format!(
                " {:.1} to {:.1} us, {least:.2} to {most:.2} times as long",
                least * us,
                most * us
            )),
        }
        for target in group.targets {
            reason.push_str(&format!(" {target}"));
        }
        let kernels = text::count(group.kernels, "kernel");
        let line = format!("not      {family}, {kernels}: {reason}");
        lines += &(text::wrapped(&line, text::columns(), 9) + "\n");
    }
    lines
}

/// A line for each GPU.
fn table<P>(
    plans: &[(&DeviceProfile, warptile::Result<Plan<P>>)],
    console: &mut dyn Write,
) -> Result<(), Failure> {
    writeln!(console, "{:<24}{:>5}{:>5}  image", "gpu", "cc", "SMs")?;
    for (profile, plan) in plans {
        let image = match plan {
            Ok(plan) => plan.image().map_or("cpu", |image| image.name),
            Err(Error::NoKernel { .. } | Error::NoImages { .. }) => "none",
            Err(error) => return Err(refused(profile, error)),
        };
        writeln!(
            console,
            "{:<24}{:>5}{:>5}  {image}",
            profile.name,
            format!("{}.{}", profile.major, profile.minor),
            profile.multiprocessors
        )?;
    }
    let bases = plans.iter().filter_map(|(profile, plan)| {
        let basis = plan.as_ref().ok()?.basis()?;
        (basis.standing == Standing::Measured).then_some(profile.name.as_str())
    });
    let measured = match bases.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "none of these".to_owned(),
        some => some,
    };
    Ok(say!(
        console,
        "rates    measured on {measured}; modelled for all others"
    )?)
}
