//! Code that the GPU tests share: the device, and running a case on one kernel family.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use quickcheck::QuickCheck;
use warptile::gpu::Gpu;
use warptile::kernels::Family;
use warptile::plan::{Choice, Plan, Planner};
use warptile::{Element, ElementType, Error};
use warptile_check::{Case, Expectation, Ferry, Inputs, ReferenceOnGpu, ResultBuffers};
use warptile_driver::{Driver, Stream};
use warptile_kernels::{Features, Image, Role, Target, catalog};

/// Device 0, opened once.
pub(crate) fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| Gpu::new(&Driver::load().unwrap(), 0).unwrap())
}

/// The GPU, treated as one that no machine code was compiled for: its kernels come from PTX.
pub(crate) fn gpu_of_ptx() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| {
        let mut profile = gpu().profile().clone();
        profile.major = 99;
        let gpu = Gpu::on_stream(gpu().stream()).unwrap();
        gpu.with_profile(profile)
    })
}

/// Random cases of a test: `usual`, or as many as the variable QUICKCHECK_TESTS says; the sanitizer's tools take long for each.
pub(crate) fn quickcheck(usual: u64) -> QuickCheck {
    match std::env::var_os("QUICKCHECK_TESTS") {
        Some(_) => QuickCheck::new(),
        None => QuickCheck::new().tests(usual),
    }
}

/// Names an image that has computed every case of a test rightly. The evidence script reads it.
pub(crate) fn ran(image: &Image) {
    println!("ran {}", image.name);
}

/// Threads of a test that computes many things which have nothing to do with each other: while one waits for the GPU others work.
const SIDE_BY_SIDE: usize = 6;

/// Calls `work` with every item, several at once.
pub(crate) fn side_by_side<I: Send>(
    items: impl IntoIterator<Item = I, IntoIter: Send>,
    work: impl Fn(I) + Sync,
) {
    let items = Mutex::new(items.into_iter());
    // An iterator that panicked is not asked again: the panic ends the scope.
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let Some(item) = next() {
                    work(item);
                }
            });
        }
    });
}

/// Which images a test may run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Images {
    /// Any of a family.
    Family(Family),
    /// Any of a family that is for this target.
    Target(Family, Target),
    /// One kernel.
    Kernel(&'static str),
    /// This one.
    One(&'static Image),
    /// This one, on a device whose CTAs have no more than 99 KB of shared memory, as 8.6, 8.9 and 12.x have.
    Within99Kb(&'static Image),
}

impl Images {
    fn admit(self, image: &Image) -> bool {
        match self {
            Images::Family(family) => image.family == family,
            Images::Target(family, target) => image.family == family && image.target == target,
            Images::Kernel(name) => image.kernel == name,
            Images::One(one) | Images::Within99Kb(one) => image.name == one.name,
        }
    }

    /// Those that run here.
    pub(crate) fn that_run(self) -> Vec<&'static Image> {
        let profile = gpu().profile();
        let (major, minor) = (profile.major, profile.minor);
        warptile_kernels::images_for(Role::Forward)
            .filter(|image| self.admit(image) && image.target.runs_on(major, minor))
            .collect()
    }

    /// A plan for the case, or why there is none.
    pub(crate) fn plan(self, case: &Case) -> Result<Plan, Error> {
        let problem = case.call_on_gpu().map_err(only_call_errors)?.problem();
        let images = catalog().iter().filter(move |image| self.admit(image));
        let mut profile = case.profile(gpu().profile());
        if let Images::Within99Kb(_) = self {
            profile.shared_bytes_per_cta = profile.shared_bytes_per_cta.min(101_376);
        }
        Planner::new(&profile)
            .images(images)
            .plan(problem, &Choice::Best)
    }
}

/// A case that was drawn or parsed has a call, so its only errors are the library's.
fn only_call_errors(error: warptile_check::Error) -> Error {
    match error {
        warptile_check::Error::Call(error) => error,
        other => panic!("{other}"),
    }
}

/// The images for `target`; at least one of them must run here.
pub(crate) fn images_for(target: Target) -> Vec<&'static Image> {
    let profile = gpu().profile();
    assert!(
        target.runs_on(profile.major, profile.minor),
        "{} is too old for {target}",
        profile.name
    );
    let images: Vec<_> = warptile_kernels::images_for(Role::Forward)
        .filter(|image| image.target == target)
        .collect();
    assert!(!images.is_empty(), "the catalog has no image for {target}");
    images
}

/// Families in the catalog.
pub(crate) fn families() -> Vec<Family> {
    families_of(ElementType::F16)
}

/// The families that have elements of this type: `wmma` has f16 alone.
pub(crate) fn families_of(element: ElementType) -> Vec<Family> {
    let mut families: Vec<_> = warptile_kernels::images_for(Role::Forward)
        .filter(|image| image.element == element)
        .map(|image| image.family)
        .collect();
    families.sort_unstable();
    families.dedup();
    families
}

thread_local! {
    /// The stream and the pinned memory of a thread's cases: each takes the driver longer to make than many a kernel takes.
    static LANE: (Stream, Arc<Ferry>) = (Stream::new(gpu().context()).unwrap(), Arc::default());
}

/// Runs the case and holds the result against the reference. `Ok(false)` if no kernel takes the problem.
pub(crate) fn passes(case: &Case, images: Images) -> Result<bool, String> {
    match case.element {
        ElementType::F16 => passes_as::<half::f16>(case, images),
        ElementType::Bf16 => passes_as::<half::bf16>(case, images),
        _ => passes_as::<f32>(case, images),
    }
}

fn passes_as<T: Element>(case: &Case, images: Images) -> Result<bool, String> {
    let plan = match images.plan(case) {
        Ok(plan) => plan,
        Err(Error::NoKernel { .. }) => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    let describe =
        |what: &dyn std::fmt::Display| format!("{case} on {}: {what}", plan.kernel_name());
    let known = known::<T>(case).map_err(|error| describe(&error))?;
    let mut on_gpu = LANE
        .with(|(stream, ferry)| case.upload_on(&known.inputs, gpu(), stream, ferry, &plan))
        .map_err(|error| describe(&error))?;
    on_gpu.launch().map_err(|error| describe(&error))?;
    let result = on_gpu.result().map_err(|error| describe(&error))?;
    case.check_against(&known.expected, &result)
        .map_err(|failure| describe(&failure))?;

    on_gpu
        .poison()
        .and_then(|()| on_gpu.launch())
        .map_err(|error| describe(&error))?;
    let again = on_gpu.result().map_err(|error| describe(&error))?;
    if same_bits(&result, &again) {
        Ok(true)
    } else {
        Err(describe(&"a second launch gave other bits"))
    }
}

/// A case's inputs, and what a right result is.
struct Known<T> {
    inputs: Inputs<T>,
    expected: Expectation,
}

/// Multiply-adds up to which the host computes the reference: tens of milliseconds.
const HOST_WORK: u128 = 1 << 24;

/// Number of cases whose expected results are kept: tests compute the same cases on one kernel after the other.
const KNOWN_CASES: usize = 200;

/// The cases known last.
static KNOWN: Mutex<VecDeque<(Case, KnownCase)>> = Mutex::new(VecDeque::new());

/// A [`Known`] of some element type.
type KnownCase = Arc<dyn Any + Send + Sync>;

fn known<T: Element>(case: &Case) -> warptile_check::Result<Arc<Known<T>>> {
    let known_cases = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let of_case = |cases: &VecDeque<(Case, KnownCase)>| {
        let (_, known) = cases.iter().find(|(other, _)| other == case)?;
        Some(known.clone())
    };
    let found = of_case(&known_cases());
    if let Some(known) = found.and_then(|known| known.downcast().ok()) {
        return Ok(known);
    }
    let inputs = case.inputs::<T>();
    let expected = match case.call().flops() / 2 > HOST_WORK {
        true => case.expectation_on_gpu(&inputs, &reference()?)?,
        false => case.expectation(&inputs)?,
    };
    let made = Arc::new(Known { inputs, expected });
    let mut known = known_cases();
    known.truncate(KNOWN_CASES - 1);
    known.push_front((case.clone(), made.clone()));
    Ok(made)
}

/// The float64 reference on the device, on the thread's own stream. The tests of warptile-check compare it with the host's.
fn reference() -> warptile_check::Result<ReferenceOnGpu> {
    static LOADED: OnceLock<ReferenceOnGpu> = OnceLock::new();
    let loaded = match LOADED.get() {
        Some(loaded) => loaded,
        None => {
            let loaded = ReferenceOnGpu::new(gpu())?;
            LOADED.get_or_init(|| loaded)
        }
    };
    Ok(LANE.with(|(stream, ferry)| loaded.on_stream(stream, ferry)))
}

/// Bitwise equality, poison included.
pub(crate) fn same_bits<T: Element>(a: &ResultBuffers<T>, b: &ResultBuffers<T>) -> bool {
    bytemuck::cast_slice::<T, u8>(&a.out) == bytemuck::cast_slice::<T, u8>(&b.out)
        && bytemuck::cast_slice::<f32, u8>(&a.lse) == bytemuck::cast_slice::<f32, u8>(&b.lse)
}

/// Requires the case to run and pass in every family that takes it, and in at least one.
#[track_caller]
pub(crate) fn assert_passes(case: &Case) {
    let mut ran = false;
    for family in families() {
        match passes(case, Images::Family(family)) {
            Ok(taken) => ran |= taken,
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(ran, "no kernel took {case}");
}

/// The case that `text` describes.
#[track_caller]
pub(crate) fn case(text: &str) -> Case {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The forward images with a feature that run here.
pub(crate) fn images_with(feature: Features) -> impl Iterator<Item = &'static Image> + Send {
    let profile = gpu().profile();
    warptile_kernels::images_for(Role::Forward)
        .filter(move |image| image.features.contains(feature))
        .filter(|image| image.target.runs_on(profile.major, profile.minor))
}

/// Each image computes as many random cases that it takes, and equals float64 in all of them.
pub(crate) fn equal_float64(
    images: impl IntoIterator<Item = &'static Image, IntoIter: Send>,
    cases: usize,
) {
    side_by_side(images, |image| {
        let mut taken = 0;
        for seed in 0..8000 {
            let case = Case::random(seed, 600).for_image(image);
            match passes(&case, Images::One(image)) {
                Ok(takes) => taken += usize::from(takes),
                Err(failure) => panic!("{failure}"),
            }
            if taken == cases {
                break;
            }
        }
        assert_eq!(taken, cases, "{}", image.name);
        ran(image);
    });
}
