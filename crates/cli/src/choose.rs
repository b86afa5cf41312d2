//! Plans as the commands ask for them: this device or a smaller one, any kernel or some images.

use warptile::gpu::Gpu;
use warptile::{DeviceProfile, Family, Plan, Problem};
use warptile_kernels::Image;

/// What a device is taken for when a plan is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// As if it had only so many multiprocessors: a persistent kernel then draws its tiles from the counter in problems of
    /// a few tiles.
    pub(crate) multiprocessors: Option<u32>,
    /// As if a CTA could have only so much shared memory.
    pub(crate) shared_kib: Option<u32>,
}

impl Limits {
    fn profile(self, gpu: &Gpu) -> DeviceProfile {
        let mut profile = gpu.profile().clone();
        if let Some(multiprocessors) = self.multiprocessors {
            profile.multiprocessors = multiprocessors.min(profile.multiprocessors);
        }
        if let Some(kib) = self.shared_kib {
            profile.shared_bytes_per_cta = (kib << 10).min(profile.shared_bytes_per_cta);
        }
        profile
    }
}

/// The planner's choice among `images`, or in the whole catalog.
///
/// # Errors
/// When none of them takes the problem.
pub(crate) fn plan(
    problem: Problem,
    gpu: &Gpu,
    limits: Limits,
    images: Option<&[&'static Image]>,
) -> warptile::Result<Plan> {
    let profile = limits.profile(gpu);
    match images {
        None => Plan::gpu(problem, &profile, None),
        Some(images) => Plan::from_catalog(problem, &profile, None, images.iter().copied()),
    }
}

/// The image a plan launches; `None` for the CPU path.
pub(crate) fn image(plan: &Plan) -> Option<&'static Image> {
    plan.launch().map(|launch| launch.image)
}

/// Whether the CTAs of a plan's launch draw their tiles from a counter.
pub(crate) fn draws_tiles(plan: &Plan) -> bool {
    plan.launch().is_some_and(|launch| launch.draws_tiles)
}

/// Whether an image's CTAs stay and draw their tiles when there are more tiles than CTAs.
pub(crate) fn is_persistent(image: &Image) -> bool {
    image.family == Family::Wgmma
}
