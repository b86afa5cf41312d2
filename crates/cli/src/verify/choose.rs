//! The problems: those that were given, some for each image, and random ones.

use std::sync::Arc;

use warptile::gpu::Gpu;
use warptile::plan::Choice;
use warptile::spec::{Backward, Call, Heads, MAX_HEAD_DIM, Scoring};
use warptile::{Backend, ElementType, Mask, Splits};
use warptile_check::Case;
use warptile_kernels::{Features, Image, Role, Schedule, images_for};

use super::check::{HOST_CAN, HOST_SHOULD};
use super::{Verify, VerifyArgs};
use crate::failure::Failure;
use crate::images;
use crate::operation::Operation;
use crate::text;

/// The largest number of multiprocessors that every other random problem is planned for.
const FEW_MULTIPROCESSORS: u64 = 5;

/// At one of this many turns of an image the host computes the reference if it can. A prime, so that this goes with each number
/// of multiprocessors.
const TURNS_TO_HOST: u64 = 17;

/// At one of this many turns an image that shares keys cuts them at fixed places. Odd, as above.
const TURNS_TO_SPLITS: u64 = 3;

/// At one of this many problems that no image is given for, keys are cut at fixed places, and keys and values are quantized. Primes other
/// than [`FEW_MULTIPROCESSORS`], so that both go with each number of multiprocessors.
const PROBLEMS_TO_SPLITS: u64 = 3;
const PROBLEMS_TO_CACHE: u64 = 7;

/// A problem and where to compute it.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub(super) case: Case,
    /// Forced; `None`: the planner's choice.
    pub(super) image: Option<&'static Image>,
    /// Multiply-adds up to which the host computes the reference.
    pub(super) host_work: u128,
}

/// Longest sequences of the problems whose reference the host can compute.
const HOST_LEN: usize = 1024;

/// Multiply-adds of each product of a longer random problem, whose reference is computed on the GPU: 4096 x 4096 scores of
/// 64 heads of size 128.
const GPU_WORK: usize = 1 << 37;
/// Of gradients, whose reference may have a quarter of the work.
const GRADIENT_WORK: usize = GPU_WORK / 4;

impl Verify<'_> {
    /// The problems of the command line, each on every image if there are some.
    pub(super) fn given(&self) -> Vec<Trial> {
        let trials = self.args.case.iter().flat_map(|case| {
            let trial = |image| Trial {
                case: Case {
                    multiprocessors: self.args.multiprocessors.or(case.multiprocessors),
                    ..case.clone()
                },
                image,
                host_work: HOST_CAN,
            };
            match &self.images {
                Some(images) if !self.args.best => {
                    images.iter().map(|&image| trial(Some(image))).collect()
                }
                _ => vec![trial(None)],
            }
        });
        trials.collect()
    }

    /// For each image a problem of three tiles of rows for each of two heads, and one whose rows, keys and columns end in the
    /// middle of their tiles. One multiprocessor holds fewer CTAs than there are tiles, so a persistent kernel draws.
    pub(super) fn two_for_each_image(&self) -> Vec<Trial> {
        let images = self.images.iter().flatten();
        images
            .flat_map(|&image| {
                two_cases(image, self.args.seed).map(|case| Trial {
                    case,
                    image: Some(image),
                    host_work: HOST_CAN,
                })
            })
            .collect()
    }

    /// The `index`th random problem. Images take turns, each with problems that its tiles can hold; every other turn is
    /// planned for a few multiprocessors, and some cut keys at fixed places. Without images, problems have any options.
    pub(super) fn draw(&self, index: u64) -> Trial {
        // Far apart, so that two runs with neighbouring seeds share no problem.
        let seed = self.args.seed.wrapping_mul(1 << 32).wrapping_add(index);
        let max_len = usize::from(self.args.max_len);
        let work = match self.args.backward {
            true => GRADIENT_WORK,
            false => GPU_WORK,
        };
        let mut case = match self.backend.gpu() {
            Some(_) if max_len > HOST_LEN => Case::random_with_work(seed, max_len, work),
            _ => Case::random(seed, max_len),
        };
        let images = match &self.images {
            Some(images) if !self.args.best => &images[..],
            _ => &[],
        };
        if images.is_empty() {
            case = with_any_option(case, index);
        }
        if self.args.paged && case.pages.is_none() {
            case = case.with_pages();
        }
        if self.args.backward {
            case = Case {
                backward: true,
                splits: Splits::Even,
                ..case.differentiable()
            };
        }
        let count = images.len().max(1) as u64;
        let (turn, position) = (index / count, index % count);
        let image = images.get(position as usize).copied();
        if let Some(image) = image {
            case = case.for_image(image);
            if image.schedule == Schedule::SharedKeys && turn % TURNS_TO_SPLITS == 0 {
                case = case.with_splits();
            }
        }
        case.multiprocessors = match self.args.multiprocessors {
            None if self.backend.is_gpu() && turn % 2 == 1 => {
                Some((1 + turn / 2 % FEW_MULTIPROCESSORS) as u32)
            }
            given => given,
        };
        if self.team.is_some() {
            case = self.args.several.fitted(&case);
        }
        // Not the same turn of all images, so that few problems have their share of it, too.
        let host_work = match (turn + position) % TURNS_TO_HOST {
            0 => HOST_CAN,
            _ => HOST_SHOULD,
        };
        Trial {
            case,
            image,
            host_work,
        }
    }
}

/// The case with options that images ask for, where none does: dropout and lists of blocks as the seed has them, fixed places to cut keys,
/// and quantized keys and values.
fn with_any_option(case: Case, index: u64) -> Case {
    let mut case = case.with_dropout().with_blocks();
    if index.is_multiple_of(PROBLEMS_TO_SPLITS) {
        case = case.with_splits();
    }
    match ElementType::scaled().next() {
        Some(scaled) if index.is_multiple_of(PROBLEMS_TO_CACHE) => case.with_quantized(scaled),
        _ => case,
    }
}

/// Roles of the kernels of the operation that is verified.
fn roles(args: &VerifyArgs) -> &'static [Role] {
    match args.backward || args.case.iter().any(|case| case.backward) {
        true => Backward::ROLES,
        false => Call::ROLES,
    }
}

/// The images of the operation that is verified, of those that run on the device.
pub(super) fn runnable(args: &VerifyArgs, backend: &Backend) -> Vec<&'static Image> {
    let Some(gpu) = backend.gpu() else {
        return Vec::new();
    };
    let profile = gpu.profile();
    let runs = |image: &&Image| image.target.runs_on(profile.major, profile.minor);
    { roles(args).iter() }
        .flat_map(|role| images_for(*role))
        .filter(runs)
        .collect()
}

/// Plans for this GPU as if a CTA could have only this much shared memory.
pub(super) fn limited(args: &VerifyArgs, backend: Backend) -> Result<Backend, Failure> {
    let (Some(gpu), Some(kib)) = (backend.gpu(), args.shared_kib) else {
        return Ok(backend);
    };
    let mut profile = gpu.profile().clone();
    profile.shared_bytes_per_cta = (kib << 10).min(profile.shared_bytes_per_cta);
    let gpu = Gpu::on_stream(gpu.stream())?
        .with_profile(profile)
        .with_named_images(images::named()?.iter().copied());
    Ok(Backend::from_gpu(Arc::new(gpu)))
}

/// The images to spread problems over: those asked for that run on the device. `None` if none were asked for.
pub(super) fn images(
    args: &VerifyArgs,
    backend: &Backend,
) -> Result<Option<Vec<&'static Image>>, Failure> {
    let kernel = match &args.kernel {
        Some(Choice::Best) | None => None,
        Some(choice) => Some(choice),
    };
    let option = match (kernel, &args.target) {
        (Some(choice), _) => format!("--kernel {}", text::name(&choice.to_string())),
        (None, Some(target)) => format!("--target {}", text::name(target)),
        _ if args.each_kernel => "--each-kernel".to_owned(),
        _ if args.multiprocessors.is_some() => "--multiprocessors".to_owned(),
        _ if args.shared_kib.is_some() => "--shared-kib".to_owned(),
        _ => return Ok(None),
    };
    if !backend.is_gpu() {
        return Err(Failure::Input(format!(
            "{option} needs a GPU; the problems would run on {backend}"
        )));
    }
    if kernel.is_none() && args.target.is_none() && !args.each_kernel {
        return Ok(None);
    }
    let is_chosen = |image: &Image| kernel.is_none_or(|choice| images::is_chosen(choice, image));
    let target = args.target.as_deref();
    let is_of_target = |image: &Image| target.is_none_or(|name| image.target.to_string() == name);
    let mut images = runnable(args, backend);
    if let (Some(choice), Some(gpu)) = (kernel, backend.gpu()) {
        images::check_roles(choice, roles(args))?;
        let (major, minor) = (gpu.profile().major, gpu.profile().minor);
        let named = images::chosen(choice)?.into_iter();
        images.extend(named.filter(|image| image.target.runs_on(major, minor)));
    }
    // The others would only be asked in vain.
    let takes_all = |image: &Image| !args.paged || image.features.contains(Features::PAGED);
    images.retain(|image| is_chosen(image) && is_of_target(image) && takes_all(image));
    if images.is_empty() {
        let mut asked: Vec<String> = kernel
            .iter()
            .map(|choice| format!("kernel {}", text::name(&choice.to_string())))
            .collect();
        asked.extend(target.map(|target| format!("target {}", text::name(target))));
        let pages = if args.paged {
            " with keys in pages"
        } else {
            ""
        };
        return Err(Failure::Input(format!(
            "no image of {}{pages} runs on {backend}; `warptile info --kernels` lists what there is",
            asked.join(" and ")
        )));
    }
    Ok(Some(images))
}

/// See [`Verify::two_for_each_image`].
fn two_cases(image: &Image, seed: u64) -> [Case; 2] {
    let tiling = &image.tiling;
    let (rows, keys) = (tiling.block_m as usize, tiling.block_n as usize);
    let dims = tiling.dims().map(|size| size.min(MAX_HEAD_DIM));
    let heads = Heads::new(2, dims[0]).key_value(1).with_dims(dims);
    // One multiprocessor, so that CTAs draw tiles; or four, with one CTA each or two, and enough keys that two of ten tiles are split.
    let persistent = image.schedule.is_persistent();
    let serving = persistent && image.features.contains(Features::PAGED);
    let (multiprocessors, tiles, keys) = match serving {
        true => (4, 5, 8 * keys),
        false => (1, 3, keys),
    };
    // This many quantized keys are aligned, too.
    let narrower = if image.types().scaled().is_some() {
        16
    } else {
        8
    };
    let less = |size: usize, by: usize| size.saturating_sub(by).max(narrower);
    let narrow = heads.with_dims([less(dims[0], narrower), less(dims[1], 2 * narrower)]);
    let case = |query, key, heads, mask| Case {
        backward: image.role != Role::Forward,
        scoring: Scoring::new().mask(mask),
        pages: serving.then_some(32),
        multiprocessors: persistent.then_some(multiprocessors),
        seed,
        ..Case::new(query, key, heads)
    };
    [
        case(tiles * rows, 3 * keys, heads, Mask::none()),
        case((tiles - 1) * rows + 5, 2 * keys + 9, narrow, Mask::causal()),
    ]
    .map(|case| case.for_image(image))
}

#[cfg(test)]
mod tests {
    use warptile::plan::{DeviceProfile, Planner};

    use super::*;
    use crate::devices::SeveralArgs;

    /// One device leaves out a problem without a kernel; with several it ends the command.
    #[test]
    fn random_problems_of_several_gpus_have_kernels() {
        let several = SeveralArgs {
            devices: Some("0,1".parse().unwrap()),
            ..SeveralArgs::default()
        };
        let mut with_splits = 0;
        for device in DeviceProfile::known().filter(|device| device.major >= 8) {
            for seed in 0..300 {
                let case = with_any_option(Case::random(seed, 300), seed);
                let case = several.fitted(&case);
                let problem = case.call_on_gpu().unwrap().problem();
                let plan = Planner::new(&device).plan(problem, &Choice::Best);
                plan.unwrap_or_else(|error| panic!("{case}: {error}"));
                with_splits += u32::from(case.splits != Splits::Even);
            }
        }
        assert!(with_splits > 0);
    }

    #[test]
    fn random_problems_of_any_length_have_references() {
        let drawn = |seed, work| Case::random_with_work(seed, 4096, work).differentiable();
        let has_reference = |case: Case| {
            let case = Case {
                backward: true,
                ..case
            };
            case.check_reference().is_ok()
        };
        assert!((0..5000).all(|seed| has_reference(drawn(seed, GRADIENT_WORK))));
        assert!(!(0..5000).all(|seed| has_reference(drawn(seed, GPU_WORK))));
        assert!((0..5000).all(|seed| drawn(seed, GPU_WORK).check_reference().is_ok()));
    }
}
