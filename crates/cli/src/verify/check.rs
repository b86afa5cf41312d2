//! One case, computed twice or hundreds of times and compared with the reference.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use warptile::cpu::{Stop, forward_cpu};
use warptile::gpu::{Gpu, Planned};
use warptile::plan::{Choice, Plan, Planner, Settings, Step};
use warptile::spec::Call;
use warptile::{Element, Error};
use warptile_check::{
    Case, Expectation, Failure, Ferry, Inputs, OnGpu, ReferenceOnGpu, Report, ResultBuffers,
    Verdict, rest,
};
use warptile_driver::Stream;
use warptile_kernels::{Image, Role, catalog};

use super::known::{Known, KnownProblems};
use super::phases::{Phases, timed};
use crate::operation::Operation;
use crate::options::word;

/// Where a case is computed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    Cpu,
    Gpu {
        lane: &'a Lane<'a>,
        /// The images to choose among; `None`: the whole catalog.
        images: Option<&'a [&'static Image]>,
        /// Forced; `None`: the planner's choice.
        image: Option<&'static Image>,
        /// The settings of each launch; `None`: the planner's own.
        settings: Option<Settings>,
        host_work: u128,
    },
}

/// The state that a thread keeps on a GPU from case to case.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    gpu: &'a Gpu,
    /// That of the launches and of the reference, and of no other lane.
    stream: Stream,
    /// For copies of the launches.
    ferry: Arc<Ferry>,
    reference: OnceLock<ReferenceOnGpu>,
    shared: &'a SharedReference,
}

/// The kernels of the reference, loaded once for all lanes when the first one needs them.
pub(crate) type SharedReference = Mutex<Option<ReferenceOnGpu>>;

impl<'a> Lane<'a> {
    pub(crate) fn new(gpu: &'a Gpu, shared: &'a SharedReference) -> warptile_check::Result<Self> {
        Ok(Lane {
            gpu,
            stream: Stream::new(gpu.context())?,
            ferry: Arc::default(),
            reference: OnceLock::new(),
            shared,
        })
    }

    pub(super) fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn reference(&self) -> warptile_check::Result<&ReferenceOnGpu> {
        if let Some(reference) = self.reference.get() {
            return Ok(reference);
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = match shared.take() {
            Some(loaded) => loaded,
            None => ReferenceOnGpu::new(self.gpu)?,
        };
        let mine = shared.insert(loaded).on_stream(&self.stream, &self.ferry);
        Ok(self.reference.get_or_init(|| mine))
    }
}

/// Multiply-adds up to which a reference can be computed on the host: seconds.
pub(crate) const HOST_CAN: u128 = 1 << 31;

/// Multiply-adds up to which it is computed there in any case: a few milliseconds. That is every third random problem.
pub(crate) const HOST_SHOULD: u128 = 1 << 20;

/// When a repeated launch is waited for. At every wait the result is read, compared with the first to the bit, and
/// poisoned again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sync {
    /// After each launch.
    Each,
    /// After every tenth launch.
    Tenth,
    /// Once, after the last launch, and then the result is read.
    End,
    /// Never: the read is queued behind the launches.
    None,
}

/// Launches of one problem, one after the other into the same buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Repeat {
    pub(crate) launches: u32,
    pub(crate) sync: Sync,
}

impl Repeat {
    /// What is wrong if this launch gave other bits than the first.
    pub(super) fn differs(self, launch: u32) -> String {
        format!(
            "launch {launch} of {} (waiting: {}) differs from the first",
            self.launches,
            word(&self.sync)
        )
    }
}

/// How often a problem is launched.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Runs {
    /// Once, and not a second time in other buffers, which must give the same bits.
    pub(crate) once: bool,
    /// Then so often.
    pub(crate) repeat: Option<Repeat>,
}

/// The outcome of a case.
pub(crate) enum Checked {
    Ran(Ran),
    /// No kernel takes the case; the planner's reasons.
    NotApplicable(String),
}

/// A case that was computed.
pub(crate) struct Ran {
    /// `None` for the CPU path, and for several devices.
    pub(crate) image: Option<&'static Image>,
    /// How several devices computed it.
    pub(crate) way: Option<String>,
    pub(crate) drew_tiles: bool,
    /// True if the reference was computed on the GPU.
    pub(crate) gpu_reference: bool,
    /// How near the errors came to their bounds, or what is wrong.
    pub(crate) outcome: Result<Errors, String>,
}

/// The errors of a right result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Errors {
    pub(crate) out: Error64,
    pub(crate) lse: Error64,
}

/// An error against float64.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Error64 {
    pub(crate) error: f64,
    /// The largest that counts as right.
    pub(crate) bound: f64,
}

impl Error64 {
    /// The share of the bound that was used; 0 where there is nothing to be wrong.
    pub(crate) fn ratio(self) -> f64 {
        if self.bound > 0.0 {
            self.error / self.bound
        } else {
            0.0
        }
    }
}

impl From<Verdict> for Error64 {
    fn from(verdict: Verdict) -> Self {
        Error64 {
            error: verdict.worst.error,
            bound: verdict.worst.bound,
        }
    }
}

impl From<Report> for Errors {
    fn from(report: Report) -> Self {
        Errors {
            out: report.out.into(),
            lse: report.lse.into(),
        }
    }
}

impl Place<'_> {
    /// The plan of an operation of a case, whose lengths are where a GPU has them.
    pub(super) fn plan<O: Operation>(
        self,
        case: &Case,
        operation: &O,
    ) -> warptile_check::Result<Plan<O::Problem>> {
        match self {
            Place::Cpu => Ok(operation.plan_on_cpu()),
            Place::Gpu {
                lane,
                images,
                image,
                settings,
                ..
            } => {
                let profile = case.profile(lane.gpu.profile());
                let planner = Planner::new(&profile);
                let planner = match images {
                    Some(images) => planner.images(with_other_steps::<O>(images, image)),
                    None => planner,
                };
                let planner = match settings {
                    Some(settings) => planner.settings(settings),
                    None => planner,
                };
                let choice = match image {
                    Some(image) => Choice::Image(image.name.to_owned()),
                    None => Choice::Best,
                };
                Ok(operation.problem().plan(&planner, &choice)?)
            }
        }
    }

    /// Returns true if the GPU computes the reference. The host, which is independent of it, computes the others.
    pub(super) fn has_gpu_reference(self, case: &Case) -> bool {
        match self {
            Place::Cpu => false,
            Place::Gpu { host_work, .. } => case.call().flops() / 2 > host_work,
        }
    }

    /// The expectation of a correct result.
    fn expectation<T: Element>(
        self,
        case: &Case,
        inputs: &Inputs<T>,
    ) -> warptile_check::Result<Expectation> {
        match self {
            Place::Gpu { lane, .. } if self.has_gpu_reference(case) => {
                case.expectation_on_gpu(inputs, lane.reference()?)
            }
            Place::Cpu | Place::Gpu { .. } => case.expectation(inputs),
        }
    }

    /// Has the kernels of a plan loaded, for all launches to come.
    pub(super) fn load(self, plan: &Plan) -> warptile_check::Result<()> {
        if let Place::Gpu { lane, .. } = self {
            lane.gpu.load(plan.clone())?;
        }
        Ok(())
    }

    /// Poisoned buffers with the case's inputs.
    pub(super) fn prepare<'a, T: Element>(
        self,
        case: &'a Case,
        inputs: &'a Inputs<T>,
        plan: &'a Plan,
    ) -> warptile_check::Result<Box<dyn Runner<'a, T> + 'a>> {
        Ok(match self {
            Place::Cpu => Box::new(OnCpu {
                call: case.try_call()?,
                inputs,
                poison: case.result::<T>(),
                result: case.result::<T>(),
            }),
            Place::Gpu { lane, .. } => {
                Box::new(case.upload_on(inputs, lane.gpu, &lane.stream, &lane.ferry, plan)?)
            }
        })
    }
}

/// These images, and those for the steps of plans that none of them is for.
fn with_other_steps<O: Operation>(
    images: &[&'static Image],
    forced: Option<&'static Image>,
) -> impl Iterator<Item = &'static Image> {
    let has_queries = images.iter().any(|one| one.role == Role::QueryGradients);
    let others = catalog().iter().filter(move |one| match forced {
        Some(image) => one.role != image.role,
        None => !O::ROLES.contains(&one.role) || one.role == Role::QueryGradients && !has_queries,
    });
    images.iter().copied().chain(others)
}

/// A closure that waits for a result, and returns it.
pub(super) type Later<'a, R> = Box<dyn FnOnce() -> warptile::Result<R> + 'a>;

/// Something that computes a case into the same buffers as often as it is asked.
pub(super) trait Runner<'a, T> {
    /// Copies the inputs and poisoned results into other buffers. Nothing has been launched yet.
    fn once_more(&self) -> warptile::Result<Box<dyn Runner<'a, T> + 'a>>;
    fn launch(&mut self) -> warptile::Result<()>;
    fn wait(&self) -> warptile::Result<()>;
    /// The result of the launches so far, once it is available.
    fn begin_result(&self) -> warptile::Result<Later<'_, ResultBuffers<T>>>;
    fn poison(&mut self) -> warptile::Result<()>;
}

struct OnCpu<'a, T> {
    call: Call,
    inputs: &'a Inputs<T>,
    poison: ResultBuffers<T>,
    result: ResultBuffers<T>,
}

impl<'a, T: Element> Runner<'a, T> for OnCpu<'a, T> {
    fn once_more(&self) -> warptile::Result<Box<dyn Runner<'a, T> + 'a>> {
        Ok(Box::new(OnCpu {
            call: self.call.clone(),
            inputs: self.inputs,
            poison: self.poison.clone(),
            result: self.poison.clone(),
        }))
    }

    fn launch(&mut self) -> warptile::Result<()> {
        forward_cpu(&self.call, &self.inputs.host(), self.result.host())
    }

    fn wait(&self) -> warptile::Result<()> {
        Ok(())
    }

    fn begin_result(&self) -> warptile::Result<Later<'_, ResultBuffers<T>>> {
        let result = self.result.clone();
        Ok(Box::new(|| Ok(result)))
    }

    fn poison(&mut self) -> warptile::Result<()> {
        self.result.clone_from(&self.poison);
        Ok(())
    }
}

impl<'a, T: Element> Runner<'a, T> for OnGpu<T> {
    fn once_more(&self) -> warptile::Result<Box<dyn Runner<'a, T> + 'a>> {
        Ok(Box::new(OnGpu::once_more(self)?))
    }

    fn launch(&mut self) -> warptile::Result<()> {
        OnGpu::launch(self)
    }

    fn wait(&self) -> warptile::Result<()> {
        rest(self.stream())
    }

    fn begin_result(&self) -> warptile::Result<Later<'_, ResultBuffers<T>>> {
        let coming = OnGpu::begin_result(self)?;
        Ok(Box::new(|| coming.wait()))
    }

    fn poison(&mut self) -> warptile::Result<()> {
        OnGpu::poison(self)
    }
}

/// Computes `case` and judges the result. What each phase took is added to `seconds`. Data and reference are made only if they are
/// not `known`.
///
/// # Errors
/// When the device fails, or the problem is too large for a reference.
pub(crate) fn check<T: Element>(
    case: &Case,
    place: Place<'_>,
    runs: Runs,
    known: Option<&KnownProblems>,
    seconds: &mut Phases,
) -> warptile_check::Result<Checked> {
    let plan = match timed(&mut seconds.planning, || {
        place.plan(case, &case.call_on_gpu()?)
    }) {
        Err(warptile_check::Error::Call(error @ Error::NoKernel { .. })) => {
            return Ok(Checked::NotApplicable(error.to_string()));
        }
        plan => plan?,
    };
    if !place.has_gpu_reference(case) {
        case.check_reference()?;
    }
    let problem = match known {
        Some(known) => known.of(case, || {
            let made = Known::<T>::new(case, seconds)?;
            made.expected(place, case, seconds)?;
            Ok(made)
        })?,
        None => Arc::new(Known::new(case, seconds)?),
    };
    timed(&mut seconds.loading, || place.load(&plan))?;
    let prepare = || place.prepare(case, &problem.inputs, &plan);
    let expected = |seconds: &mut Phases| problem.expected(place, case, seconds);
    Ok(Checked::Ran(Ran {
        image: plan.image(),
        way: None,
        drew_tiles: draws_tiles(case, &plan)?,
        gpu_reference: place.has_gpu_reference(case),
        outcome: judge(case, expected, runs, prepare, seconds)?,
    }))
}

impl<T: Element> Known<T> {
    /// A problem whose expected results have not been computed yet.
    fn new(case: &Case, seconds: &mut Phases) -> warptile::Result<Self> {
        let inputs = timed(&mut seconds.generating, || case.inputs());
        // Stopped, they are not those of the case.
        Stop::current().check()?;
        Ok(Known {
            inputs,
            expected: OnceLock::new(),
        })
    }

    /// The expectation of a correct result, computed at the first use.
    fn expected(
        &self,
        place: Place<'_>,
        case: &Case,
        seconds: &mut Phases,
    ) -> warptile_check::Result<&Expectation> {
        if let Some(expected) = self.expected.get() {
            return Ok(expected);
        }
        let made = timed(&mut seconds.reference, || {
            place.expectation(case, &self.inputs)
        })?;
        Ok(self.expected.get_or_init(|| made))
    }
}

/// The steps of a plan that launch this image.
pub(super) fn steps_of<'a, P>(
    plan: &'a Plan<P>,
    image: Option<&'static Image>,
) -> impl Iterator<Item = &'a Step> {
    let is_it = move |step: &&Step| image.is_some_and(|image| image.name == step.image.name);
    plan.steps().iter().filter(is_it)
}

/// Checks that the CTAs of the launches of a plan's [`image`](Plan::image) draw tiles from a counter: more of them than there are CTAs
/// have rows to compute.
fn draws_tiles(case: &Case, plan: &Plan) -> warptile_check::Result<bool> {
    let (call, on_gpu) = (case.try_call()?, case.call_on_gpu()?);
    for step in steps_of(plan, plan.image()) {
        let shape = step.shape(&on_gpu)?;
        let rows = step.image.tiling.block_m as usize;
        let tiles = call
            .sequences()
            .map(|sequence| sequence.q_len.div_ceil(rows));
        if shape.draws_tiles && tiles.sum::<usize>() * call.heads().query > shape.grid as usize {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Two runs in buffers of their own, or one, must be right and equal; then, if asked for, so must many in the same buffers. What is
/// expected is asked for while they are under way.
fn judge<'a, 'e, T: Element>(
    case: &Case,
    expected: impl FnOnce(&mut Phases) -> warptile_check::Result<&'e Expectation>,
    runs: Runs,
    prepare: impl Fn() -> warptile_check::Result<Box<dyn Runner<'a, T> + 'a>>,
    seconds: &mut Phases,
) -> warptile_check::Result<Result<Errors, String>> {
    let (runner, again) = timed(&mut seconds.computing, || {
        let mut runner = prepare()?;
        // Before the first launch, which might write into its inputs.
        let mut again = match runs.once {
            true => None,
            false => Some(runner.once_more()?),
        };
        runner.launch()?;
        if let Some(again) = &mut again {
            again.launch()?;
        }
        Ok::<_, warptile_check::Error>((runner, again))
    })?;
    let (first, second) = timed(&mut seconds.computing, || {
        let first = runner.begin_result()?;
        let second = again.as_ref().map(|again| again.begin_result());
        Ok::<_, warptile_check::Error>((first, second.transpose()?))
    })?;
    let expected = expected(seconds)?;
    let (first, second) = timed(&mut seconds.computing, || {
        runner.wait()?;
        let second = second.map(|result| result());
        Ok::<_, warptile_check::Error>((first()?, second.transpose()?))
    })?;
    let judged = timed(&mut seconds.comparing, || {
        let report = case.check_against(expected, &first);
        let same = || (second.as_ref()).is_none_or(|second| same_bits(&first, second));
        report.map(|report| (report, same()))
    });
    let (report, same) = match judged {
        Ok(report) => report,
        Err(Failure::Invalid(error)) => return Err(error),
        Err(failure) => return Ok(Err(failure.to_string())),
    };
    if !same {
        return Ok(Err("two runs differ".to_owned()));
    }
    if let Some(repeat) = runs.repeat
        && let Some(launch) = timed(&mut seconds.computing, || {
            Ok::<_, warptile_check::Error>(first_difference(&first, prepare()?.as_mut(), repeat)?)
        })?
    {
        return Ok(Err(repeat.differs(launch)));
    }
    Ok(Ok(report.into()))
}

/// Which of the repeated launches gave other bits than `first`, as far as they are looked at.
fn first_difference<T: Element>(
    first: &ResultBuffers<T>,
    runner: &mut dyn Runner<'_, T>,
    Repeat { launches, sync }: Repeat,
) -> warptile::Result<Option<u32>> {
    for launch in 1..=launches {
        Stop::current().check()?;
        runner.launch()?;
        let look = match sync {
            Sync::Each => true,
            Sync::Tenth => launch % 10 == 0 || launch == launches,
            Sync::End | Sync::None => launch == launches,
        };
        if look {
            if sync != Sync::None {
                runner.wait()?;
            }
            if !same_bits(first, &runner.begin_result()?()?) {
                return Ok(Some(launch));
            }
            runner.poison()?;
        }
    }
    Ok(None)
}

/// By bits, so that NaN equals itself and 0 is not -0.
fn same_bits<T: Element>(a: &ResultBuffers<T>, b: &ResultBuffers<T>) -> bool {
    bytemuck::cast_slice::<T, u8>(&a.out) == bytemuck::cast_slice::<T, u8>(&b.out)
        && bytemuck::cast_slice::<f32, u8>(&a.lse) == bytemuck::cast_slice::<f32, u8>(&b.lse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The CPU path, except for one launch among all that any of these runners make, whose last bit is another.
    struct Flipping<'a> {
        inner: Box<dyn Runner<'a, f32> + 'a>,
        launches: &'a Cell<u32>,
        wrong: u32,
        flip: bool,
    }

    impl<'a> Runner<'a, f32> for Flipping<'a> {
        fn once_more(&self) -> warptile::Result<Box<dyn Runner<'a, f32> + 'a>> {
            Ok(Box::new(Flipping {
                inner: self.inner.once_more()?,
                launches: self.launches,
                wrong: self.wrong,
                flip: false,
            }))
        }

        fn launch(&mut self) -> warptile::Result<()> {
            self.launches.set(self.launches.get() + 1);
            self.flip = self.launches.get() == self.wrong;
            self.inner.launch()
        }

        fn wait(&self) -> warptile::Result<()> {
            self.inner.wait()
        }

        fn begin_result(&self) -> warptile::Result<Later<'_, ResultBuffers<f32>>> {
            let (flip, coming) = (self.flip, self.inner.begin_result()?);
            Ok(Box::new(move || {
                let mut result = coming()?;
                if flip {
                    let value = &mut result.out[result.offset + 9];
                    *value = f32::from_bits(value.to_bits() ^ 1);
                }
                Ok(result)
            }))
        }

        fn poison(&mut self) -> warptile::Result<()> {
            self.inner.poison()
        }
    }

    /// The verdict when launch number `wrong`, from 1, differs in one bit, and how many launches there were.
    fn judged(wrong: u32, repeat: Option<Repeat>) -> (Result<Errors, String>, u32) {
        let runs = Runs {
            once: false,
            repeat,
        };
        judged_of(wrong, runs)
    }

    fn judged_of(wrong: u32, runs: Runs) -> (Result<Errors, String>, u32) {
        let case: Case = "b2 q5 k40 h2 d16 f32 mask=causal seed=3".parse().unwrap();
        let inputs = case.inputs::<f32>();
        let plan = Plan::cpu(case.call().problem());
        let expected = case.expectation(&inputs).unwrap();
        let launches = Cell::new(0);
        let prepare = || {
            Ok(Box::new(Flipping {
                inner: Place::Cpu.prepare(&case, &inputs, &plan)?,
                launches: &launches,
                wrong,
                flip: false,
            }) as Box<dyn Runner<'_, f32>>)
        };
        let expected = |_: &mut Phases| Ok(&expected);
        let judged = judge(&case, expected, runs, prepare, &mut Phases::default());
        (judged.unwrap(), launches.get())
    }

    #[test]
    fn a_bit_between_two_runs_is_a_failure() {
        assert!(judged(0, None).0.is_ok());
        for wrong in [1, 2] {
            let (judged, _) = judged(wrong, None);
            assert_eq!(judged.unwrap_err(), "two runs differ", "run {wrong}");
        }
    }

    #[test]
    fn one_run_is_compared_with_none() {
        let once = Runs {
            once: true,
            repeat: None,
        };
        for wrong in [0, 1] {
            let (judged, launches) = judged_of(wrong, once);
            assert!(judged.is_ok(), "{judged:?}");
            assert_eq!(launches, 1);
        }
    }

    #[test]
    fn a_bit_in_a_repeated_launch_is_a_failure_where_it_is_looked_at() {
        let repeat = |sync| Some(Repeat { launches: 25, sync });
        for sync in [Sync::Each, Sync::Tenth, Sync::End, Sync::None] {
            let (clean, launches) = judged(0, repeat(sync));
            assert!(clean.is_ok(), "{clean:?}");
            assert_eq!(launches, 2 + 25);
            let (last, _) = judged(2 + 25, repeat(sync));
            assert!(last.unwrap_err().starts_with("launch 25 of 25"));
        }
        assert_eq!(
            judged(2 + 7, repeat(Sync::Each)).0.unwrap_err(),
            "launch 7 of 25 (waiting: each) differs from the first"
        );
        assert!(judged(2 + 10, repeat(Sync::Tenth)).0.is_err());
    }

    #[test]
    fn errors_come_with_their_bounds() {
        let errors = judged(0, None).0.unwrap();
        assert!(
            errors.out.bound > 0.0 && errors.out.ratio() <= 1.0,
            "{errors:?}"
        );
        let nothing = Error64 {
            error: 0.0,
            bound: 0.0,
        };
        assert_eq!(nothing.ratio(), 0.0);
    }
}
