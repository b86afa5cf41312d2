//! Choosing the kernels of a plan.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::LazyLock;

use warptile_kernels::abi::{MIN_BOX_ROWS, QUERY_BOX_ROWS};
use warptile_kernels::{Family, Features, Image, Role, Schedule, Target, catalog, images_for};

use crate::considered::{Considered, Reason};
use crate::error::{Error, Result, feature_for};
use crate::plan::occupancy::{MAX_TILES, occupancy, shared_bytes};
use crate::plan::pairs::{groups_fit_boxes, pairs_share_keys};
use crate::plan::settings::Settings;
use crate::plan::shared_keys::Sides;
use crate::plan::split_tiles::splits_tiles;
use crate::plan::step::{clusters_at_once, tiles_of};
use crate::plan::{Basis, Choice, DeviceProfile, Plan, Rates, Standing, Step};
use crate::spec::{BlockLists, Problem, Splits};

/// Images for forward, by kernel name.
type Kernels = BTreeMap<&'static str, Vec<&'static Image>>;

fn by_kernel(images: impl Iterator<Item = &'static Image>) -> Kernels {
    let mut kernels = Kernels::new();
    for image in images.filter(|image| image.role == Role::Forward) {
        kernels.entry(image.kernel).or_default().push(image);
    }
    kernels
}

/// The embedded catalog, sorted once: it has several hundred images.
static CATALOG: LazyLock<Kernels> = LazyLock::new(|| by_kernel(catalog().iter()));

/// The inputs of planning: a device, its rates, and the images to choose among.
///
/// ```
/// use warptile::{ElementType, Layout};
/// use warptile::plan::{Choice, DeviceProfile, Planner};
/// use warptile::spec::Call;
///
/// let tensor = Layout::bshd([2, 512, 8, 64]);
/// let call = Call::builder(&tensor, &tensor, &tensor, ElementType::F16).build()?;
/// let plan = Planner::new(&DeviceProfile::h200()).plan(call.problem(), &Choice::Best)?;
/// println!("{}", plan.explain());
/// # Ok::<(), warptile::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a planner does nothing until `plan` is called"]
pub struct Planner<'a> {
    device: &'a DeviceProfile,
    rates: &'a Rates,
    /// In place of the embedded catalog.
    images: Option<Vec<&'static Image>>,
    /// Besides, for who names them.
    pub(super) named: &'a [&'static Image],
    /// Images that the device turned out not to run.
    without: &'a [&'static str],
    /// In place of what the rates have chosen for a problem.
    settings: Option<Settings>,
}

impl<'a> Planner<'a> {
    /// With the embedded catalog and the embedded rates.
    pub fn new(device: &'a DeviceProfile) -> Self {
        Planner {
            device,
            rates: Rates::embedded(device),
            images: None,
            named: &[],
            without: &[],
            settings: None,
        }
    }

    /// The device.
    pub(crate) const fn device(&self) -> &'a DeviceProfile {
        self.device
    }

    /// The rates.
    pub(super) const fn known_rates(&self) -> &'a Rates {
        self.rates
    }

    /// The images of a role to choose among.
    pub(super) fn images_of(&self, role: Role) -> impl Iterator<Item = &'static Image> {
        let given = self.images.iter().flatten().copied();
        let embedded = self.images.is_none().then(|| images_for(role));
        let given = given.filter(move |image| image.role == role);
        given.chain(embedded.into_iter().flatten())
    }

    /// With rates of one's own.
    pub fn rates(self, rates: &'a Rates) -> Self {
        Planner { rates, ..self }
    }

    /// Among these images only, such as the PTX.
    pub fn images(mut self, images: impl Iterator<Item = &'static Image>) -> Self {
        self.images = Some(images.collect());
        self
    }

    /// With these images besides, which run only if the choice has their kernel's name or their own.
    pub fn named(self, named: &'a [&'static Image]) -> Self {
        Planner { named, ..self }
    }

    /// Without these images: of their clusters the device can hold none, as its driver says once it has loaded them.
    pub(crate) fn without(self, without: &'a [&'static str]) -> Self {
        Planner { without, ..self }
    }

    /// With these settings for whichever kernel is chosen.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// Chooses a kernel for the problem.
    ///
    /// With [`Splits::EveryKeys`] the choice depends on element type, head size, options and device only: the same image computes a
    /// token of decoding and a whole prompt.
    ///
    /// With a key mask that is the same for all queries and heads, as of padding, two kernels may share the sequences: one without key
    /// masks computes those whose mask shows their first keys and no others, and one with key masks the rest. A choice of a kernel is
    /// that of all sequences.
    ///
    /// # Errors
    /// As [`Plan::gpu`].
    pub fn plan(&self, problem: Problem, choice: &Choice) -> Result<Plan> {
        let plan = self.plan_alone(problem, choice)?;
        Ok(match (choice, self.settings) {
            (Choice::Best, None) => self.with_runs(plan),
            _ => plan,
        })
    }

    /// Chooses a kernel that computes all sequences.
    pub(super) fn plan_alone(&self, problem: Problem, choice: &Choice) -> Result<Plan> {
        self.device.check()?;
        let given = { self.images.as_ref() }.map(|images| by_kernel(images.iter().copied()));
        let kernels = given.as_ref().unwrap_or(&CATALOG);
        let (asked_for, choice) = self.asked_for(choice);
        let (kernels, choice) = match &asked_for {
            Some(asked_for) => (asked_for, &choice),
            None => (kernels, &choice),
        };
        if self.images.is_none() && asked_for.is_none() {
            check_images(self.device, kernels.values().flatten().copied())?;
        }
        check_name(choice, kernels)?;
        let mut candidates = Vec::new();
        let mut considered = Vec::new();
        for (&kernel, images) in kernels {
            let mut images: Vec<&'static Image> = match choice {
                Choice::Image(name) => images.iter().copied().filter(|i| i.name == name).collect(),
                _ => images.clone(),
            };
            let requested = !images.is_empty();
            images.retain(|image| !self.without.contains(&image.name));
            let step = match images.is_empty() {
                true if requested => Err(Reason::Clusters),
                true => Err(Reason::NotRequested),
                false => self.consider(&problem, &images),
            };
            match step {
                Ok(step) => candidates.push(step),
                Err(reason) => considered.push(Considered { kernel, reason }),
            }
        }

        // `scalar` is not taken beside a kernel on tensor cores, not even where the rates have it ahead. They are of aligned rows: for one
        // query on many keys that start anywhere it is estimated to be faster, and takes three times as long (docs/notebook/mma.md).
        let on_tensor_cores = |step: &Step| step.image.family != Family::Scalar;
        let has_tensor_cores = candidates.iter().any(on_tensor_cores);
        // Kernels chosen by trials come first, then kernels with rates. Estimates of the others are guesses; among them
        // machine code comes before PTX, which the driver must compile. PTX of a family that also has machine code comes
        // last: a GPU lacks the code of a tile that spills there, and of tiles of the first design, which run by name.
        let is_text = |step: &Step| matches!(step.image.target, Target::Ptx(_));
        let in_code = candidates.iter().filter(|step| !is_text(step));
        let in_code: Vec<_> = in_code.map(|step| step.image.family).collect();
        let standing = |step: &Step| self.rates.standing(self.device, step.image.kernel);
        let tuned = self.rates.chosen(&problem, self.device);
        let is_tuned = |step: &Step| tuned.is_some_and(|one| one.kernel == step.image.kernel);
        candidates.sort_by(|a, b| {
            let last = |step: &Step| {
                let is_guess = standing(step) == Standing::Unknown;
                let is_spare = is_text(step) && in_code.contains(&step.image.family);
                (
                    !is_tuned(step),
                    is_spare,
                    is_guess,
                    is_guess && is_text(step),
                    has_tensor_cores && !on_tensor_cores(step),
                )
            };
            last(a)
                .cmp(&last(b))
                .then(a.estimate_us.total_cmp(&b.estimate_us))
        });
        let requested = |step: &Step| match choice {
            Choice::Best => true,
            Choice::Family(family) => step.image.family == *family,
            Choice::Kernel(name) => step.image.kernel == name,
            Choice::Image(name) => step.image.name == name,
        };
        let chosen = candidates.iter().position(requested);
        // Where every call of some options has one image, its limits are no reason for another.
        let units = chosen.map_or(0, |chosen| tiles_of(&problem, candidates[chosen].image));
        let Some(chosen) = chosen.filter(|_| units <= MAX_TILES) else {
            considered.extend(chosen.map(|chosen| Considered {
                kernel: candidates[chosen].image.kernel,
                reason: Reason::Grid {
                    ctas: units,
                    limit: MAX_TILES,
                },
            }));
            considered.retain(|one| match choice {
                Choice::Best => true,
                Choice::Family(family) => one.kernel.starts_with(&format!("{family}_")),
                Choice::Kernel(name) => one.kernel == name,
                Choice::Image(name) => kernels
                    .get(one.kernel)
                    .is_some_and(|images| images.iter().any(|image| image.name == name)),
            });
            return Err(Error::NoKernel {
                problem: problem_on(&problem, self.device),
                considered,
            });
        };
        let mut step = candidates.remove(chosen);
        let is_chosen = is_tuned(&step);
        let of_trials = tuned.filter(|_| is_chosen).map(|tuned| tuned.settings);
        step.settings = self.settings.or(of_trials).unwrap_or_default();
        if let Some(ctas) = step.settings.ctas {
            step.ctas_per_multiprocessor = ctas.min(step.ctas_per_multiprocessor);
        }
        considered.extend(candidates.iter().map(|other| Considered {
            kernel: other.image.kernel,
            reason: if !requested(other) {
                Reason::NotRequested
            } else if is_chosen {
                Reason::Tuned
            } else if standing(other) == Standing::Unknown {
                Reason::Unmeasured
            } else if is_text(other) && in_code.contains(&other.image.family) {
                Reason::OnlyText
            } else {
                Reason::Slower {
                    times: other.estimate_us / step.estimate_us,
                }
            },
        }));
        // With fixed splits, kernels were compared on another problem; and on a GPU that was not measured as if it were another one.
        let rates = self.rates.expecting(self.device);
        let at_once = occupancy(step.image, self.device);
        step.estimate_us = rates.estimate_us(&problem, step.image, self.device, at_once);
        let basis = Basis {
            standing: standing(&step),
            rates_of: self.rates.device().to_owned(),
            of_this_gpu: self.rates.device() == self.device.name,
            tuned: is_chosen,
        };
        Ok(Plan::new(
            problem,
            Some(self.device.clone()),
            vec![step],
            considered,
            Some(basis),
        ))
    }

    /// The images that run only by name, if the choice is one of them, and the choice: a name that the catalog does not have was
    /// parsed as that of a kernel.
    fn asked_for(&self, choice: &Choice) -> (Option<Kernels>, Choice) {
        let (Choice::Kernel(name) | Choice::Image(name)) = choice else {
            return (None, choice.clone());
        };
        let of = |is: &dyn Fn(&Image) -> bool| {
            let kernels = by_kernel(self.named.iter().copied().filter(|image| is(image)));
            (!kernels.is_empty()).then_some(kernels)
        };
        if let Some(kernels) = of(&|image| image.name == name) {
            return (Some(kernels), Choice::Image(name.clone()));
        }
        (of(&|image| image.kernel == name), choice.clone())
    }

    /// The expected time of an image on a problem, in microseconds.
    fn estimate_us(&self, problem: &Problem, image: &Image) -> f64 {
        let at_once = occupancy(image, self.device);
        self.rates.estimate_us(problem, image, self.device, at_once)
    }

    /// The launch of one kernel, given its images, or why it can't run.
    fn consider(
        &self,
        problem: &Problem,
        images: &[&'static Image],
    ) -> std::result::Result<Step, Reason> {
        let (device, element) = (self.device, problem.element());
        let of_element = images
            .iter()
            .copied()
            .filter(|image| image.element == element && image.role == Role::Forward);
        let any = of_element.clone().next().ok_or(Reason::Element(element))?;
        if let Some(keys) = any.types().scaled()
            && problem.types().scaled() != Some(keys)
        {
            return Err(Reason::OnlyKeys(keys));
        }
        let ([keys, values], room) = (problem.heads().dims(), any.tiling.dims());
        let [for_keys, for_values] = room.map(|laid_out_for| laid_out_for as u32);
        if room[0] < keys {
            return Err(Reason::HeadDim {
                laid_out_for: for_keys,
            });
        }
        if room[1] < values {
            return Err(Reason::ValueDim {
                laid_out_for: for_values,
            });
        }
        let needs = match problem.splits() {
            Splits::Even => problem.needs(),
            // The features of all calls with these options.
            Splits::EveryKeys(_) => problem.needs() | OF_ANY_BATCH,
        };
        let lacks = |image: &Image| -> Features { needs - image.features_for(problem) };
        let unfit = |image: &Image| match image.schedule {
            _ if image.features.contains(Features::BLOCKS) && !blocks_fit(problem, image) => {
                Some(match problem.scoring().blocks {
                    None => Reason::OnlyBlocks,
                    Some(lists) => Reason::BlockRows {
                        rows: image.tiling.block_m,
                        queries: lists.queries(),
                    },
                })
            }
            _ if image.lacks_mask(problem) => Some(Reason::OnlyMasks),
            Schedule::Pairs if !pairs_share_keys(problem.heads().group_size(), problem.mask()) => {
                Some(Reason::Pairs)
            }
            Schedule::PersistentGroups
                if !groups_fit_boxes(problem.heads().group_size(), image) =>
            {
                Some(Reason::Groups)
            }
            _ => None,
        };
        let splits = problem.splits().keys().is_some();
        let compared_on = match splits {
            true => problem.typical_of_splits(),
            false => *problem,
        };
        let estimate = |image: &Image| self.estimate_us(&compared_on, image);
        // Features that the call does not need cost time.
        let image = of_element
            .clone()
            .filter(|image| image.target.runs_on(device.major, device.minor))
            .min_by(|a, b| {
                let key = |image: &Image| {
                    let special =
                        matches!(image.schedule, Schedule::Pairs | Schedule::PersistentGroups);
                    (
                        unfit(image).is_some() || !has_its_schedule(problem, image, device),
                        lacks(image).iter().count(),
                        image.features.contains(Features::DROPOUT)
                            || image.features_for(problem) != image.features,
                        Reverse(preference(image.target)),
                        special && !self.rates.has_variant(image),
                    )
                };
                let features = |image: &Image| image.features.iter().count();
                key(a)
                    .cmp(&key(b))
                    .then(estimate(a).total_cmp(&estimate(b)))
                    .then(features(a).cmp(&features(b)))
            })
            .ok_or_else(|| Reason::NoImage {
                targets: BTreeSet::from_iter(of_element.map(|image| image.target))
                    .into_iter()
                    .collect(),
            })?;
        if let Some(reason) = unfit(image) {
            return Err(reason);
        }
        if splits && image.schedule != Schedule::SharedKeys {
            return Err(Reason::Splits);
        }
        let lacks = lacks(image);
        if !lacks.is_empty() {
            return Err(Reason::Lacks(lacks));
        }
        if let Some(rows) = problem.page_rows()
            && splits_tiles(image)
            && rows < MIN_BOX_ROWS
        {
            return Err(Reason::PageRows {
                rows,
                least: MIN_BOX_ROWS,
            });
        }
        let needed = shared_bytes(image);
        if needed > device.shared_bytes_per_cta {
            return Err(Reason::SharedMemory {
                needed,
                available: device.shared_bytes_per_cta,
            });
        }
        let tiles = tiles_of(problem, image);
        if tiles > MAX_TILES && !splits {
            return Err(Reason::Grid {
                ctas: tiles,
                limit: MAX_TILES,
            });
        }
        Ok(Step::new(image, device, estimate(image)))
    }
}

/// Returns true if a block of queries of the problem's lists is whole tiles of the image, or those rows of a tile that have a list of their
/// own: in `wgmma` those of a warpgroup.
fn blocks_fit(problem: &Problem, image: &Image) -> bool {
    let rows = match image.family {
        Family::Wgmma => QUERY_BOX_ROWS.min(image.tiling.block_m),
        _ => image.tiling.block_m,
    };
    let fits = |lists: BlockLists| lists.queries().is_multiple_of(rows.max(1) as usize);
    problem.scoring().blocks.is_some_and(fits)
}

/// Returns true if the image's schedule is that of the problem, where a kernel has images of two: a cluster of CTAs
/// computes each tile where there are few tiles and not many keys, and several clusters where there are so few tiles
/// that CTAs without clusters leave many parts of each.
///
/// At most half of the multiprocessors: of an H200, which has 132, 16 clusters of 8 do not fit at once. Keys: with up to four blocks a CTA
/// clusters are faster, with eight slower, as they leave some multiprocessors without work; but not where there are up to three tiles,
/// which CTAs without clusters would leave 44 parts of. A tile of one block has nothing to share (docs/notebook/decode.md).
fn has_its_schedule(problem: &Problem, image: &Image, device: &DeviceProfile) -> bool {
    const MOST_BLOCKS: u64 = 4 * Schedule::CLUSTER as u64;
    const FEW_TILES: u64 = 3;
    let widest = problem
        .mask()
        .widest(problem.query_len(), problem.key_len());
    let seen = { problem.key_len() }.min(widest + problem.query_len().saturating_sub(1));
    let blocks = seen.div_ceil(image.tiling.block_n.max(1) as usize);
    let tiles = Sides::from(problem).tiles(image.tiling.block_m);
    let clusters = (u64::from(clusters_at_once(device.multiprocessors)) / tiles.max(1)).max(1);
    let in_clusters = problem.splits().keys().is_none()
        && tiles.saturating_mul(2 * u64::from(Schedule::CLUSTER)) <= device.multiprocessors.into()
        && blocks >= 2
        && (tiles <= FEW_TILES || blocks as u64 <= MOST_BLOCKS * clusters);
    match image.schedule {
        Schedule::SharedKeys => !in_clusters,
        Schedule::ClusterTile => in_clusters,
        _ => true,
    }
}

/// The features that batches may have, regardless of the options.
const OF_ANY_BATCH: Features = Features::PACKED
    .union(Features::DEVICE_LENGTHS)
    .union(Features::PAGED)
    .union(Features::LSE);

/// Refuses a device that none of the program's images runs on: its GPU is too old, or cargo features left them out.
pub(super) fn check_images(
    device: &DeviceProfile,
    mut images: impl Iterator<Item = &'static Image>,
) -> Result<()> {
    match images.any(|image| image.target.runs_on(device.major, device.minor)) {
        true => Ok(()),
        false => Err(Error::NoImages {
            device: device.name.clone(),
            major: device.major,
            minor: device.minor,
        }),
    }
}

/// The problem of [`Error::NoKernel`], with its device.
pub(super) fn problem_on(problem: &impl Display, device: &DeviceProfile) -> String {
    format!("{problem} on {}", place(device, catalog()))
}

/// The device's name and, if none of `images` is machine code for it, the cargo feature that has more kernels.
fn place(device: &DeviceProfile, images: &[Image]) -> String {
    let (name, major, minor) = (&device.name, device.major, device.minor);
    let is_for_it = |image: &Image| {
        !matches!(image.target, Target::Ptx(_)) && image.target.runs_on(major, minor)
    };
    match feature_for(major, minor) {
        Some(feature) if !images.iter().any(is_for_it) => {
            format!(
                "{name}, for which this program lacks the kernels of warptile's cargo feature `{feature}`"
            )
        }
        _ => name.clone(),
    }
}

fn check_name(choice: &Choice, kernels: &Kernels) -> Result<()> {
    let images = || kernels.values().flatten();
    match choice {
        Choice::Kernel(name) if !kernels.contains_key(name.as_str()) => {
            let families: BTreeSet<_> = images().map(|image| image.family.to_string()).collect();
            let known = families.iter().map(String::as_str);
            Err(Error::unknown(
                "kernel",
                name,
                known.chain(kernels.keys().copied()),
            ))
        }
        Choice::Image(name) if images().all(|image| image.name != name) => Err(Error::unknown(
            "image",
            name,
            images().map(|image| image.name),
        )),
        _ => Ok(()),
    }
}

/// Machine code made for the device first, then the newest that runs on it, then PTX.
pub(super) fn preference(target: Target) -> (u32, u32) {
    match target {
        Target::CubinExact(sm) => (2, sm),
        Target::Cubin(sm) => (1, sm),
        Target::Ptx(sm) => (0, sm),
        _ => (0, 0),
    }
}

impl Plan {
    /// Chooses kernels for `problem` on `device` from the embedded catalog and the embedded rates; [`Planner`] takes others.
    ///
    /// # Errors
    /// [`Error::UnknownName`] if the catalog has no kernel or image of the name asked for;
    /// [`Error::NoKernel`] with every kernel's reason if none, or not the one asked for, can run;
    /// [`Error::NoImages`] if the program has no kernels for the device at all;
    /// [`Error::Profile`] if there can be no such device.
    pub fn gpu(problem: Problem, device: &DeviceProfile, choice: &Choice) -> Result<Self> {
        Planner::new(device).plan(problem, choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_only_ptx_for_a_device_is_told_the_feature_with_more() {
        let of = |targets: &[Target]| -> Vec<Image> {
            let has = |image: &&Image| targets.contains(&image.target);
            catalog().iter().filter(has).cloned().collect()
        };
        let hopper = DeviceProfile::h200();
        let ptx = [Target::Ptx(80), Target::Ptx(89)];
        let others = [ptx.as_slice(), &[Target::Cubin(80), Target::Cubin(100)]].concat();
        for lacking in [&ptx, others.as_slice()] {
            let expected = format!(
                "{}, for which this program lacks the kernels of warptile's cargo feature `sm_90`",
                hopper.name
            );
            assert_eq!(place(&hopper, &of(lacking)), expected);
        }
        assert_eq!(place(&hopper, &of(&[Target::Cubin(90)])), hopper.name);
        assert_eq!(place(&hopper, catalog()), hopper.name);
        let newer = DeviceProfile {
            major: 11,
            minor: 0,
            ..hopper
        };
        assert_eq!(place(&newer, &of(&ptx)), newer.name);
    }

    #[test]
    fn a_device_needs_an_image_that_runs_on_it() {
        let hopper = DeviceProfile::h200();
        let of = |target| catalog().iter().filter(move |image| image.target == target);
        assert!(check_images(&hopper, of(Target::Cubin(90))).is_ok());
        assert!(check_images(&hopper, of(Target::Ptx(80))).is_ok());
        let error = check_images(&hopper, of(Target::Cubin(80))).unwrap_err();
        assert!(matches!(error, Error::NoImages { major: 9, .. }), "{error}");
        // A program without any architecture's feature.
        assert!(check_images(&hopper, std::iter::empty()).is_err());
    }
}
