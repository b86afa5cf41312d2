//! `warptile tune`: which kernels are the fastest on the user's own GPU, for the user's own problems.

mod devices;
mod measure;
mod processes;
mod report;
mod state;
mod watchdog;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Known;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use indicatif::ProgressBar;
use warptile::Error;
use warptile::gpu::Gpu;
use warptile::plan::{Choice, Plan, Planner, Rates, Timed};
use warptile::spec::Problem;
use warptile_check::Case;
use warptile_check::trial::{LEAST_GAIN, Rules};
use warptile_kernels::{Role, images_for};

use self::measure::{compare, plan_of, screen, variations};
use self::processes::{Request, in_fresh_process, passes_verification};
pub(crate) use self::processes::{TrialsArgs, run_trials};
use self::report::Outcome;
use self::state::{Candidate, Entry, Screened, State};
use self::watchdog::{Lost, PATIENCE, watched};
use crate::devices::SeveralArgs;
use crate::failure::Failure;
use crate::lock::Lock;
use crate::machine::{self, Machine};
use crate::options::Device;
use crate::output::Replacement;
use crate::text::{self, say};
use crate::{bench, cases, interrupt, json, output, progress};

/// Find the fastest kernels for your problems on this GPU, and let the planner choose them from now on.
///
/// Every kernel that applies to a problem is timed. The fastest one is also timed with other launch settings: heads at once, ranges of
/// keys, CTAs. Inputs are random and not in the cache. If a kernel is faster than the planner's choice, the two are measured in turn, in
/// the order A B B A. The faster one wins if the 99% confidence bound of the gain, corrected for the number of candidates, is above 0.5%,
/// in this process and again in a new one, and if it passes `warptile verify` on this GPU. Nothing else changes a choice.
///
/// The result is a file of rates in your configuration folder, for this GPU and this driver. The program always uses it; the library uses
/// it on request (`Gpu::with_user_rates`). `warptile info` shows which rates are in force.
///
/// With --devices, the command measures the schemes and shardings by which several devices can compute each problem, and names the
/// fastest. It keeps nothing.
///
/// After Ctrl-C, or at the end of the budget, the rates file is either unchanged or complete. The same command then goes on where it
/// stopped.
#[derive(Debug, Args)]
#[command(after_help = cases::help(&[
    "tune --shape \"b4 q4096 k4096 h32/8 d128 bf16 mask=causal\"",
    "tune --file problems.txt --budget 600 --svg gains.svg",
    "tune --from-log problems.log",
    "tune --devices 0,1 --shape \"q65536 h32/8 d128 bf16 mask=causal\"",
    "tune --reset",
]))]
pub(crate) struct TuneArgs {
    /// Tune for this problem; may be given several times
    #[arg(long, value_name = "PROBLEM", value_parser = cases::parse)]
    shape: Vec<Case>,

    /// Tune for the problems of this file: one a line, # begins a comment
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,

    /// Tune for the problems in the log of a program that ran with WARPTILE_LOG=FILE; lines that are not problems are skipped, and, with
    /// a note, problems that cannot be tuned for
    #[arg(long, value_name = "FILE")]
    from_log: Option<PathBuf>,

    /// Seconds that the whole search may take
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 180,
        conflicts_with = "devices"
    )]
    budget: u32,

    /// Seconds after which a launch, or a replay of many, counts as hung: the command ends, and the next search leaves that kernel out
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE, value_parser = clap::value_parser!(u32).range(1..=86_400), conflicts_with = "devices")]
    patience: u32,

    /// GPU to tune: auto or cuda:N
    #[arg(long, default_value_t = Device::Auto, conflicts_with = "devices")]
    device: Device,

    #[command(flatten)]
    several: SeveralArgs,

    /// Measure and report, but leave the rates as they are
    #[arg(long, conflicts_with = "devices")]
    dry_run: bool,

    /// Remove the rates of this GPU, so that the built-in ones are in force again
    #[arg(long, conflicts_with_all = ["shape", "file", "from_log", "dry_run", "svg", "json", "devices"])]
    reset: bool,

    /// Take winners without verifying their results on this GPU first
    #[arg(long, conflicts_with = "devices")]
    no_verify: bool,

    /// Draw the gains to this file
    #[arg(long, value_name = "FILE", conflicts_with = "devices")]
    svg: Option<PathBuf>,

    /// Write all measurements to this file, as JSON; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<json::Target>,
}

/// Shares of the budget after which no further problem is screened, and no further trial begins: what is left is for their repeats.
const SCREENING: f64 = 0.55;
const TRIALS: f64 = 0.75;

/// Blocks of a trial, over the fewest that can win: with twice as many, one in six may be lost.
const BLOCKS: usize = 2;

/// Problems that a winner is verified on.
const RANDOM: [&str; 4] = ["--count", "24", "--max-len", "512"];

/// A winner with settings of its own is also verified on the problem that it won, if that has no more operations, and no more elements of a
/// tensor.
const VERIFIED_FLOPS: u128 = 1 << 37;
const VERIFIED_ELEMENTS: usize = 1 << 26;

/// Runs the command.
pub(crate) fn run(args: &TuneArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let start = Instant::now();
    args.several.check()?;
    if args.reset {
        return reset(args, console);
    }
    let json = args.json.as_ref().and_then(json::Target::file);
    for written in json.into_iter().chain(args.svg.as_deref()) {
        output::refuse_replacing(args.file.iter().chain(&args.from_log), written)?;
    }
    if args.several.devices.is_some() {
        return devices::run(args, console);
    }
    let problems = problems_of(args, console)?;
    if let Some(svg) = &args.svg {
        Replacement::begin(svg).map(drop)?;
    }
    let backend = args.device.open()?;
    let gpu = backend.gpu().ok_or_else(|| no_gpu(args.device))?;
    let problems = of_one_kernel(problems, gpu, console)?;
    let machine = machine::describe(&backend);
    let path = rates_file(gpu)?;
    if let (false, Some(folder)) = (args.dry_run, path.parent()) {
        fs::create_dir_all(folder).map_err(|source| Failure::write(folder, source))?;
        Replacement::begin(&path).map(drop)?;
    }
    interrupt::watch(from_ref(&backend));
    let file = |path: Option<PathBuf>| path.filter(|_| !args.dry_run);
    let lost_file = file(Lost::path(&machine.device));
    let lost = (lost_file.as_deref()).map_or_else(Vec::new, |file| Lost::read(file, &machine));
    watchdog::start(&machine, args.patience, lost_file);
    let mut entries = Vec::new();
    for (case, problem) in &problems {
        let plan = gpu.plan(*problem, &Choice::Best)?;
        entries.push(Entry {
            problem: problem.line(),
            case: case.to_string(),
            old: chosen(&plan)?,
            screened: Vec::new(),
            first: None,
            repeat: None,
            verified: None,
        });
    }
    let mut search = Search {
        gpu,
        problems: &problems,
        state: State::new(&machine, gpu.profile().multiprocessors, entries),
        file: file(State::path(&machine.device)),
        lost,
        patience: args.patience,
        budget: Duration::from_secs(args.budget.into()),
        start,
        verify: !args.no_verify,
    };
    writeln!(console, "{backend}")?;
    if let Some(file) = &search.file {
        let found = search.state.resume(file);
        if found > 0 {
            writeln!(console, "resumed  {found} problems were measured before")?;
        }
    }
    search.leave_out(console)?;
    search.screen(console)?;
    search.try_first()?;
    search.repeat()?;
    search.verify()?;
    search.keep()?;
    let cut_short = interrupt::requested();
    let rules = search.rules();
    let outcomes: Vec<Outcome<'_>> = { search.state.entries.iter() }
        .map(|entry| {
            let lost = search.is_lost(&entry.problem, &entry.old);
            Outcome::of(entry, rules, search.verify, lost)
        })
        .collect();
    report::print(&outcomes, rules, console)?;
    json::write(&args.json, &report::json(&machine, &outcomes, cut_short)?)?;
    if let Some(svg) = &args.svg {
        Replacement::begin(svg)?.finish(report::svg(&outcomes, &machine).as_bytes())?;
    }
    let goes_on = match &search.file {
        Some(_) => "; the same command goes on from there",
        None => "",
    };
    if cut_short {
        let screened = search
            .state
            .entries
            .iter()
            .filter(|one| !one.screened.is_empty());
        return Err(Failure::Interrupted(format!(
            "cut short: {} of {} problems were measured before Ctrl-C{goes_on}",
            screened.count(),
            problems.len(),
        )));
    }
    let missing = outcomes.iter().filter(|one| one.is_open()).count();
    if args.dry_run {
        writeln!(console, "rates    unchanged (--dry-run)")?;
    } else {
        search.write_rates(&machine, &outcomes, &path)?;
        writeln!(console, "rates    {}", text::path(&path))?;
        if let (0, Some(file)) = (missing, &search.file) {
            search.state.forget(file)?;
        }
    }
    if missing > 0 {
        let missing = text::count(missing as u64, "problem");
        say!(console, "budget   spent: {missing} not done{goes_on}")?;
    }
    Ok(())
}

/// Leaves out the problems whose sequences several kernels share: each of these is tuned by a problem of its own. Those that were logged
/// on another GPU, and that this one has no kernel for, are left out, too.
fn of_one_kernel(
    problems: Vec<Asked>,
    gpu: &Gpu,
    console: &mut dyn Write,
) -> Result<Vec<(Case, Problem)>, Failure> {
    let mut kept = Vec::new();
    for Asked {
        case,
        problem,
        logged,
    } in problems
    {
        let plan = match gpu.plan(problem, &Choice::Best) {
            Err(Error::NoKernel { .. }) if logged => {
                say!(
                    console,
                    "skipped  {}: no kernel takes it on this GPU",
                    problem.line()
                )?;
                continue;
            }
            plan => plan?,
        };
        match plan.steps() {
            [_, _, ..] => say!(
                console,
                "skipped  {}: two kernels share its sequences; tune the problem with lengths=ragged device-lengths in place of the mask",
                problem.line()
            )?,
            _ => kept.push((case, problem)),
        }
    }
    match kept.is_empty() {
        true => Err(Failure::Input("no problem is left to tune for".to_owned())),
        false => Ok(kept),
    }
}

/// A search under way.
struct Search<'a> {
    gpu: &'a Gpu,
    problems: &'a [(Case, Problem)],
    state: State,
    /// Where the state is kept; nowhere in a dry run.
    file: Option<PathBuf>,
    /// The time limit of the search, from its start.
    budget: Duration,
    start: Instant,
    verify: bool,
    /// Kernels that gave no answer in earlier searches.
    lost: Vec<Lost>,
    /// Seconds that a launch may take.
    patience: u32,
}

impl Search<'_> {
    fn is_over(&self, share: f64) -> bool {
        interrupt::requested() || self.start.elapsed() >= self.budget.mul_f64(share)
    }

    fn keep(&self) -> Result<(), Failure> {
        match &self.file {
            Some(file) => self.state.save(file),
            None => Ok(()),
        }
    }

    fn is_lost(&self, problem: &str, candidate: &Candidate) -> bool {
        let same = |lost: &Lost| lost.problem == problem && lost.kernel == candidate.kernel;
        self.lost.iter().any(same)
    }

    /// Forgets what was measured of kernels that gave no answer later. A problem whose own kernel is among them stays open.
    fn leave_out(&mut self, console: &mut dyn Write) -> Result<(), Failure> {
        for Entry {
            problem,
            old,
            screened,
            first,
            repeat,
            verified,
            ..
        } in &mut self.state.entries
        {
            let of_problem = self.lost.iter().filter(|one| one.problem == *problem);
            let lost: Vec<&str> = of_problem.map(|one| &one.kernel[..]).collect();
            for kernel in &lost {
                say!(
                    console,
                    "lost     {kernel} gave no answer on {problem}: it is left out"
                )?;
            }
            let is_lost = |candidate: &Candidate| lost.contains(&&candidate.kernel[..]);
            let before = screened.len();
            screened.retain(|one| !is_lost(&one.candidate) && !is_lost(old));
            if screened.len() < before {
                (*first, *repeat, *verified) = (None, None, None);
            }
        }
        Ok(())
    }

    /// All candidates of all problems count, but the planner's own choices.
    fn rules(&self) -> Rules {
        let entries = self.state.entries.iter();
        Rules::of_tried(
            entries
                .map(|one| one.screened.len().saturating_sub(1))
                .sum(),
        )
    }

    /// Times every candidate of every problem.
    fn screen(&mut self, console: &mut dyn Write) -> Result<(), Failure> {
        let bar = progress::problems(self.problems.len() as u64);
        for (index, (case, problem)) in self.problems.iter().enumerate() {
            if self.is_over(SCREENING) {
                break;
            }
            let line = &self.state.entries[index].problem;
            if self.is_lost(line, &self.state.entries[index].old) {
                continue;
            }
            if self.state.entries[index].screened.is_empty() {
                let old = self.state.entries[index].old.clone();
                let screened = self.candidates(case, *problem, &old, &bar)?;
                if interrupt::requested() {
                    break;
                }
                self.state.entries[index].screened = screened;
                self.keep()?;
            }
            let line = report::screened(&self.state.entries[index]);
            bar.suspend(|| writeln!(console, "{line}").and_then(|()| console.flush()))?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn candidates(
        &self,
        case: &Case,
        problem: Problem,
        old: &Candidate,
        bar: &ProgressBar,
    ) -> Result<Vec<Screened>, Failure> {
        let (gpu, rates) = (self.gpu, self.gpu.rates());
        let mut candidates = vec![old.clone()];
        let mut kernels: Vec<&str> = images_for(Role::Forward)
            .map(|image| image.kernel)
            .collect();
        kernels.sort_unstable();
        kernels.dedup();
        let others = kernels
            .into_iter()
            .map(|kernel| Candidate::new(kernel, Default::default()));
        let line = problem.line();
        candidates.extend(others.filter(|other| other != old && !self.is_lost(&line, other)));
        let applicable = |candidates: Vec<Candidate>| {
            let mut plans = Vec::new();
            for candidate in candidates {
                match plan_of(gpu, rates, problem, &candidate) {
                    Ok(plan) => plans.push((candidate, plan)),
                    Err(Error::NoKernel { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok::<_, Error>(plans.into_iter().unzip::<_, _, Vec<_>, Vec<_>>())
        };
        let (mut candidates, plans) = applicable(candidates)?;
        let times = watched(case, &line, gpu, |bench| {
            let mut fastest = f64::INFINITY;
            let mut show = |plan: &Plan, microseconds: f64| {
                if microseconds < fastest {
                    fastest = microseconds;
                    bar.set_message(format!("{} {microseconds:.1} us,", plan.kernel_name()));
                }
            };
            let mut times = screen(bench, &plans, &mut show)?;
            // The fastest once more next to the same with other settings of its launch: by now the GPU is warmer and slower.
            let best = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b]));
            if let Some(best) = best.filter(|_| !interrupt::requested()) {
                let others = variations(case, &plans[best], &candidates[best])?;
                let (others, mut plans_of_others) = applicable(others)?;
                plans_of_others.insert(0, plans[best].clone());
                let of_others = screen(bench, &plans_of_others, &mut show)?;
                let slower = of_others.first().map_or(1.0, |again| again / times[best]);
                times.extend(of_others.iter().skip(1).map(|other| other / slower));
                candidates.extend(others);
            }
            Ok(times)
        })?;
        let screened = candidates.into_iter().zip(times);
        Ok(screened
            .map(|(candidate, microseconds)| Screened {
                candidate,
                microseconds,
            })
            .collect())
    }

    /// The problems whose fastest candidate may be worth a trial, by their place.
    fn promising(&self) -> Vec<(usize, Candidate)> {
        let entries = self.state.entries.iter().enumerate();
        let promising = entries.filter_map(|(index, entry)| {
            let (old, fastest) = (entry.old_us()?, entry.fastest()?);
            (old > LEAST_GAIN * fastest.microseconds).then(|| (index, fastest.candidate.clone()))
        });
        promising.collect()
    }

    /// The first trials. Those that an earlier search made count, if they had as many blocks as are needed now.
    fn try_first(&mut self) -> Result<(), Failure> {
        let blocks = BLOCKS * self.rules().fewest_blocks();
        for (index, new) in self.promising() {
            let entry = &self.state.entries[index];
            if has(&entry.first, blocks) || self.is_over(TRIALS) {
                continue;
            }
            let (case, problem) = &self.problems[index];
            let plan = |one: &Candidate| plan_of(self.gpu, self.gpu.rates(), *problem, one);
            let (old, new) = (plan(&entry.old)?, plan(&new)?);
            let ratios = watched(case, &entry.problem, self.gpu, |bench| {
                compare(bench, &old, &new, blocks)
            })?;
            if ratios.len() == blocks {
                let entry = &mut self.state.entries[index];
                (entry.first, entry.repeat) = (Some(ratios), None);
                self.keep()?;
            }
        }
        Ok(())
    }

    /// Repeats the trials that were won, in a fresh process.
    fn repeat(&mut self) -> Result<(), Failure> {
        let rules = self.rules();
        let blocks = BLOCKS * rules.fewest_blocks();
        let mut requests = Vec::new();
        let mut places = Vec::new();
        for (index, new) in self.promising() {
            let entry = &self.state.entries[index];
            let won = wins(&entry.first, rules);
            if won && !has(&entry.repeat, blocks) && !self.is_over(1.0) {
                places.push(index);
                requests.push(Request {
                    case: entry.case.clone(),
                    old: entry.old.clone(),
                    new,
                    blocks,
                });
            }
        }
        if requests.is_empty() {
            return Ok(());
        }
        let ratios = in_fresh_process(self.gpu, &requests, self.patience)?;
        for (index, ratios) in places.into_iter().zip(ratios) {
            if ratios.len() == blocks {
                self.state.entries[index].repeat = Some(ratios);
            }
        }
        self.keep()
    }

    /// Verifies what has won, a kernel or a kernel with settings of its own, each in a process of its own.
    fn verify(&mut self) -> Result<(), Failure> {
        if !self.verify {
            return Ok(());
        }
        let rules = self.rules();
        let mut passed: Vec<(Candidate, bool)> = Vec::new();
        for (index, new) in self.promising() {
            let entry = &self.state.entries[index];
            let won = wins(&entry.first, rules) && wins(&entry.repeat, rules);
            if !won || entry.verified.is_some() || interrupt::requested() {
                continue;
            }
            let passes =
                |problems: &[&str]| passes_verification(self.gpu, &new, &entry.old, problems);
            let known = passed.iter().find(|(candidate, _)| *candidate == new);
            let random = match known {
                Some(&(_, found)) => Some(found),
                None => passes(&RANDOM)?,
            };
            let Some(random) = random else {
                break;
            };
            if known.is_none() {
                passed.push((new.clone(), random));
            }
            // The settings are for this problem: they may make its launch a different one than those of the random problems.
            let case = &self.problems[index].0;
            let own = !new.settings().is_default() && is_small(case)?;
            let found = match random && own {
                true => passes(&["--case", &case.to_string()])?,
                false => Some(random),
            };
            let Some(found) = found else {
                break;
            };
            self.state.entries[index].verified = Some(found);
            self.keep()?;
        }
        Ok(())
    }

    /// Writes the rates that follow from those that are in force now: another search may have changed them since this one began.
    fn write_rates(
        &self,
        machine: &Machine,
        outcomes: &[Outcome<'_>],
        path: &Path,
    ) -> Result<(), Failure> {
        let profile = self.gpu.profile();
        let _lock = Lock::of(path)?;
        let rates = match Rates::of_user(profile, &machine.driver) {
            Ok(Some(user)) => self.rates(machine, outcomes, &user)?,
            // A file that is not in force is replaced.
            Ok(None) | Err(_) => self.rates(machine, outcomes, Rates::embedded(profile))?,
        };
        let text = header(machine) + &rates.to_string();
        Replacement::begin(path)?.finish(text.as_bytes())
    }

    /// The rates that follow from `before`: under them the planner chooses for each of the problems what was decided.
    fn rates(
        &self,
        machine: &Machine,
        outcomes: &[Outcome<'_>],
        before: &Rates,
    ) -> Result<Rates, Failure> {
        let gpu = self.gpu;
        let profile = gpu.profile();
        let embedded = Rates::embedded(profile);
        let mut rates = if embedded.device() == profile.name {
            // They follow from far more problems than a search has.
            let mut rates = embedded.fitted(profile, &machine.driver, &[]);
            rates.keep_choices(before);
            rates
        } else {
            let mut times = Vec::new();
            for (entry, (_, problem)) in self.state.entries.iter().zip(self.problems) {
                for one in &entry.screened {
                    let plan = plan_of(gpu, gpu.rates(), *problem, &one.candidate)?;
                    let plain = one.candidate.settings().is_default();
                    times.extend(
                        { plan.steps().iter().filter(|_| plain) }
                            .map(|step| Timed::new(*problem, step, one.microseconds)),
                    );
                }
            }
            before.fitted(profile, &machine.driver, &times)
        };
        for (outcome, (_, problem)) in outcomes.iter().zip(self.problems) {
            let decided = outcome.decided();
            rates.choose(problem, None);
            let planner = Planner::new(profile).rates(&rates);
            if chosen(&planner.plan(*problem, &Choice::Best)?)? != *decided {
                rates.choose(problem, Some((&decided.kernel, decided.settings())));
            }
        }
        Ok(rates)
    }
}

/// Returns true if a trial was made of this many blocks.
fn has(ratios: &Option<Vec<f64>>, blocks: usize) -> bool {
    { ratios.as_ref() }.is_some_and(|ratios| ratios.len() >= blocks)
}

/// Returns true if a trial was made and won.
fn wins(ratios: &Option<Vec<f64>>, rules: Rules) -> bool {
    { ratios.as_ref() }.is_some_and(|ratios| rules.judge(ratios).wins())
}

/// The candidate that a plan runs.
fn chosen(plan: &Plan) -> Result<Candidate, Failure> {
    let step = plan.steps().first();
    step.map(|step| Candidate::new(step.image.kernel, step.settings))
        .ok_or_else(|| Failure::Input("the plan has no kernel".to_owned()))
}

fn no_gpu(device: Device) -> Failure {
    Failure::Device(format!("{device}: tune is for a GPU, and there is none"))
}

fn rates_file(gpu: &Gpu) -> Result<PathBuf, Failure> {
    Rates::user_file(&gpu.profile().name).ok_or_else(|| {
        Failure::Input(
            "there is no folder for rates: neither XDG_CONFIG_HOME nor HOME is an absolute path"
                .to_owned(),
        )
    })
}

fn header(machine: &Machine) -> String {
    let day = machine::utc(SystemTime::now());
    format!(
        "# Measured by `warptile tune` ({}) on {day}; docs/tuning.md says how. `warptile tune --reset` removes it.\n",
        machine.program
    )
}

fn reset(args: &TuneArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let backend = args.device.open()?;
    let gpu = backend.gpu().ok_or_else(|| no_gpu(args.device))?;
    let path = rates_file(gpu)?;
    let removed = reset_file(&path)?;
    let name = &gpu.profile().name;
    for file in [State::path(name), Lost::path(name)].into_iter().flatten() {
        reset_file(&file)?;
    }
    match removed {
        true => writeln!(console, "removed  {}", text::path(&path))?,
        false => writeln!(
            console,
            "nothing to remove: there is no {}",
            text::path(&path)
        )?,
    }
    Ok(())
}

/// Removes a file that no other process is about to replace; whether there was one.
fn reset_file(path: &Path) -> Result<bool, Failure> {
    if !path.exists() {
        return Ok(false);
    }
    let _lock = Lock::of(path)?;
    remove(path)
}

/// Removes a file; whether there was one.
fn remove(path: &Path) -> Result<bool, Failure> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Failure::File {
            path: path.to_owned(),
            action: "remove",
            source,
        }),
    }
}

/// A problem to tune for.
struct Asked {
    /// As it is measured.
    case: Case,
    /// As programs have it.
    problem: Problem,
    /// True if a program logged it, which may have problems of all kinds.
    logged: bool,
}

/// The problems that were asked for, each once.
fn problems_of(args: &TuneArgs, console: &mut dyn Write) -> Result<Vec<Asked>, Failure> {
    let mut cases = args.shape.clone();
    for path in &args.file {
        cases.extend(bench::cases_of_file(path)?);
    }
    let given = cases.len();
    if let Some(path) = &args.from_log {
        let text = fs::read_to_string(path).map_err(|source| Failure::read(path, source))?;
        // Another version's words, or a line that a full disk cut off, are no reason to do nothing.
        cases.extend(
            text.lines()
                .filter_map(|line| Case::parse_to_plan(line).ok()),
        );
    }
    let mut problems = Vec::new();
    let mut seen = HashMap::new();
    for (index, case) in cases.into_iter().enumerate() {
        let logged = index >= given;
        let problem = match tunable(&case) {
            Err(why) if logged => {
                say!(console, "skipped  {}: {why}", cases::without_seed(&case))?;
                continue;
            }
            problem => problem?,
        };
        match seen.entry(problem.line()) {
            Known::Vacant(line) => {
                line.insert(problem);
                problems.push(Asked {
                    case,
                    problem,
                    logged,
                });
            }
            Known::Occupied(known) if *known.get() != problem => say!(
                console,
                "skipped  {}: rates know it by the same line as a problem before",
                cases::without_seed(&case)
            )?,
            Known::Occupied(_) => {}
        }
    }
    match problems.is_empty() {
        true => Err(Failure::Input(
            "there is no problem to tune for: give --shape, --file or --from-log".into(),
        )),
        false => Ok(problems),
    }
}

/// The problem of a case as programs have it, if tuning means anything for it.
fn tunable(case: &Case) -> Result<Problem, Failure> {
    if case.multiprocessors.is_some() {
        return Err(Failure::Input(
            "sms=N is for `warptile verify`: tune measures the whole GPU".into(),
        ));
    }
    if let Some(keys) = case.splits.keys() {
        return Err(Failure::Input(format!(
            "splits={keys} asks for the same bits in every batch: its kernel is not chosen by lengths, and can't be tuned for them"
        )));
    }
    if case.backward {
        return Err(Failure::Input(
            "`backward`: gradients are planned by fixed rates, so there is nothing to tune".into(),
        ));
    }
    // Measuring allocates the tensors, with the padding of packed ones.
    case.try_call()?;
    Ok(case.problem_of_programs()?)
}

/// Returns true if a reference of a problem is computed within seconds.
fn is_small(case: &Case) -> Result<bool, Failure> {
    let call = case.try_call()?;
    let layouts = [call.q(), call.k(), call.v(), call.out()];
    let elements = layouts.map(|layout| layout.required_len().unwrap_or(usize::MAX));
    let few = elements.into_iter().all(|count| count <= VERIFIED_ELEMENTS);
    Ok(few && call.flops() <= VERIFIED_FLOPS && case.check_reference().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_has_a_reference() {
        let small = |text: &str| is_small(&text.parse().unwrap()).unwrap();
        assert!(small("b4 q1 k8192 h32/8 d128 bf16 pages=16"));
        // Few pages, but all sequences have the room of the longest in the reference.
        let short = ",1".repeat(63);
        let problem = format!("b64 q1 k8192 h32/8 d128 bf16 pages=16 lengths=8192{short}");
        assert!(!small(&problem));
    }
}
