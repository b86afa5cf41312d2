//! What the GPU tests share: the device, and running a case on one kernel family.

use std::sync::OnceLock;

use quickcheck::QuickCheck;
use warptile::gpu::Gpu;
use warptile::{Choice, Element, ElementType, Error, Family, Plan, Planner};
use warptile_check::{Case, ResultBuffers};
use warptile_driver::Driver;
use warptile_kernels::{Image, Role, Target, catalog};

/// Device 0, opened once.
pub(crate) fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| Gpu::new(&Driver::load().unwrap(), 0).unwrap())
}

/// The same device as one that no machine code was compiled for: its kernels come from PTX.
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

    /// The case as the tile of a single image can take it.
    pub(crate) fn fit(self, case: Case) -> Case {
        match self {
            Images::Within99Kb(image) => Case {
                head_dim: case.head_dim.min(image.tiling.head_dim as usize),
                value_dim: case.value_dim.min(image.tiling.value_dim as usize),
                element: image.element,
                e4m3: image.reads_e4m3(),
                ..case
            },
            _ => case,
        }
    }
}

/// A case that was drawn or parsed has a call, so its only errors are the library's.
fn only_call_errors(error: warptile_check::Error) -> Error {
    match error {
        warptile_check::Error::Call(error) => error,
        other => panic!("{other}"),
    }
}

/// The images for `target`, of which there must be some that run here.
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
    let mut families: Vec<_> = warptile_kernels::images_for(Role::Forward)
        .map(|image| image.family)
        .collect();
    families.sort_unstable();
    families.dedup();
    families
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
    let inputs = case.inputs::<T>();
    let describe =
        |what: &dyn std::fmt::Display| format!("{case} on {}: {what}", plan.kernel_name());
    let mut on_gpu = case
        .upload(&inputs, gpu(), &plan)
        .map_err(|error| describe(&error))?;
    on_gpu.launch().map_err(|error| describe(&error))?;
    let result = on_gpu.result().map_err(|error| describe(&error))?;
    case.check(&inputs, &result)
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
