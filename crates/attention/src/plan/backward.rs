//! The backward pass: which kernels run, and how they are launched for a call.

mod rates;

use std::cmp::Reverse;
use std::fmt;

use warptile_kernels::{ElementType, Family, Features, Image, Role, images_for};

use crate::considered::{Considered, Reason};
use crate::error::{Error, Result};
use crate::plan::occupancy::{MAX_TILES, occupancy, shared_bytes};
use crate::plan::planner::{check_images, preference, problem_on};
use crate::plan::{Choice, DeviceProfile, LaunchShape, Plan, Planner, Scratch, Step};
use crate::spec::{Backward, Layout, Operand, Prepass, Problem};

/// The roles whose gradients [`Role::AllGradients`] gives together.
const IN_ONE_PASS: [Role; 2] = [Role::KeyGradients, Role::QueryGradients];

/// The backward pass as the planner sees it: the problem of its call, and the gradients that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BackwardProblem {
    problem: Problem,
    /// The steps of [`Role::OF_GRADIENTS`] that have a wanted gradient.
    wanted: [bool; Role::OF_GRADIENTS.len()],
    aligned: bool,
}

impl BackwardProblem {
    /// The problem that the backward pass is one of.
    pub fn of(backward: &Backward) -> Self {
        BackwardProblem {
            problem: backward.call().problem(),
            wanted: Role::OF_GRADIENTS
                .map(|(_, of)| of.iter().any(|operand| backward.wants(*operand))),
            aligned: backward.is_aligned(),
        }
    }

    /// The problem of the call.
    pub const fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The features that an image needs to compute this problem. Every backward pass reads a lse.
    pub fn needs(&self) -> Features {
        let aligned = match self.aligned {
            true => Features::empty(),
            false => Features::UNALIGNED,
        };
        (self.problem.needs() - Features::LSE) | aligned
    }

    /// The roles of [`Role::OF_GRADIENTS`] that have a wanted gradient.
    fn wanted(&self) -> impl Iterator<Item = Role> {
        { Role::OF_GRADIENTS.into_iter().zip(self.wanted) }
            .filter_map(|((role, _), wanted)| wanted.then_some(role))
    }

    /// Steps in order: of two kernels that give all gradients of tensors together, or each those that are wanted.
    fn roles(&self, in_one_pass: bool) -> impl Iterator<Item = Role> {
        let together: &[Role] = match in_one_pass {
            true => &[Role::AllGradients, Role::QuerySums],
            false => &[],
        };
        let alone = move |role: &Role| !in_one_pass || !IN_ONE_PASS.contains(role);
        [Role::Prepass]
            .into_iter()
            .chain(together.iter().copied())
            .chain(self.wanted().filter(alone))
    }
}

impl fmt::Display for BackwardProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} backward", self.problem)?;
        match self.wanted().any(|role| role == Role::BiasGradients) {
            true => f.write_str(" dbias"),
            false => Ok(()),
        }
    }
}

impl Plan<BackwardProblem> {
    /// A plan for the CPU path.
    pub fn backward_on_cpu(problem: BackwardProblem) -> Self {
        Plan::new(problem, None, Vec::new(), Vec::new(), None)
    }
}

impl Planner<'_> {
    /// Chooses an image for each step of a backward pass. A choice of a kernel or an image is that of the step that it is for.
    ///
    /// # Errors
    /// As [`Plan::gpu`]; if the choice names no kernel of a step.
    pub fn plan_backward(
        &self,
        problem: BackwardProblem,
        choice: &Choice,
    ) -> Result<Plan<BackwardProblem>> {
        let device = self.device();
        device.check()?;
        check_images(device, images_for(Role::Prepass))?;
        let (mut steps, mut considered) = (Vec::new(), Vec::new());
        let mut is_named = matches!(choice, Choice::Best);
        // One pass has five products where the pair has seven.
        let mut fits = |image: &'static Image| {
            let Some(reason) = reject(&problem, image, device) else {
                return true;
            };
            let kernel = image.kernel;
            considered.push(Considered { kernel, reason });
            false
        };
        let mut fits_in_one_pass = |image: &'static Image| match choice {
            Choice::Best => fits(image),
            _ => is_named_by(choice, image),
        };
        // Images that run only by name come only if the choice has it.
        let images_of = |role: Role| {
            let is_of_name = matches!(choice, Choice::Kernel(_) | Choice::Image(_));
            let by_name = { self.named.iter().copied() }.filter(move |image| {
                is_of_name && image.role == role && is_named_by(choice, image)
            });
            self.images_of(role).chain(by_name)
        };
        let in_one_pass = { IN_ONE_PASS.iter() }.all(|role| problem.wanted().any(|of| of == *role))
            && images_of(Role::AllGradients).any(&mut fits_in_one_pass);
        for role in problem.roles(in_one_pass) {
            let of_role = || images_of(role);
            let named: Vec<_> = of_role()
                .filter(|image| is_named_by(choice, image))
                .collect();
            is_named |= !named.is_empty();
            // Sums of dQ are arranged as the tiling that leaves them has them.
            let left_by = { steps.last() }.filter(|_| role == Role::QuerySums);
            let is_arranged = |image: &&'static Image| {
                left_by.is_none_or(|step: &Step| {
                    let [of_step, own] = [step.image, image].map(|image| &image.tiling);
                    of_step.head_dim == own.head_dim && of_step.block_n == own.block_n
                })
            };
            let fitting: Vec<_> = match named.is_empty() {
                true => of_role()
                    .filter(is_arranged)
                    .filter(|image| fits(image))
                    .collect(),
                false => named.into_iter().filter(|image| fits(image)).collect(),
            };
            let work = |image: &Image| passes(&problem, image, device);
            let best = fitting.iter().copied().min_by_key(|image| {
                (
                    // Images with dropout or lists are for these alone, even where more of their CTAs fit.
                    (image.features - (Features::DROPOUT | Features::BLOCKS)) != image.features,
                    image.tiling.head_dim,
                    work(image),
                    Reverse(image.tiling.block_m * image.tiling.block_n),
                    Reverse(preference(image.target)),
                    // Features that the call does not need cost time.
                    image.features.iter().count(),
                )
            });
            match best {
                Some(image) => {
                    let filled = tiles(&problem, image) as f64 / resident(image, device) as f64;
                    let rates = self.known_rates().expecting(self.device());
                    let us = rates::estimate_us(&problem, image, device, rates, filled);
                    steps.push(Step::new(image, device, us));
                }
                None => return Err(no_kernel(&problem, device, considered)),
            }
        }
        if !is_named {
            return Err(no_kernel(&problem, device, considered));
        }
        considered.retain(|one| steps.iter().all(|step| step.image.kernel != one.kernel));
        let considered = once_each(considered);
        let main = steps.iter().find(|step| step.image.tiling.has_tiles());
        let basis = rates::basis(main.map(|step| step.image), device);
        let device = Some(device.clone());
        Ok(Plan::new(problem, device, steps, considered, Some(basis)))
    }
}

fn no_kernel(
    problem: &BackwardProblem,
    device: &DeviceProfile,
    considered: Vec<Considered>,
) -> Error {
    Error::NoKernel {
        problem: problem_on(problem, device),
        considered: once_each(considered),
    }
}

/// Each kernel once: its other images are for other devices and types.
fn once_each(mut considered: Vec<Considered>) -> Vec<Considered> {
    considered.retain(|one| !matches!(one.reason, Reason::Element(_) | Reason::NoImage { .. }));
    considered.dedup();
    considered
}

impl Choice {
    /// Returns true if this names a kernel of gradients.
    pub fn is_of_gradients(&self) -> bool {
        let alone = Role::OF_GRADIENTS.map(|(role, _)| role);
        { alone.into_iter().chain([Role::AllGradients]) }
            .flat_map(images_for)
            .any(|image| is_named_by(self, image))
    }
}

fn is_named_by(choice: &Choice, image: &Image) -> bool {
    match choice {
        Choice::Best => false,
        Choice::Family(family) => image.family == *family,
        Choice::Kernel(name) => image.kernel == name,
        Choice::Image(name) => image.name == name,
    }
}

/// Why an image cannot be a step of the plan.
fn reject(problem: &BackwardProblem, image: &Image, device: &DeviceProfile) -> Option<Reason> {
    let element = problem.problem.element();
    if !image.target.runs_on(device.major, device.minor) {
        let targets = vec![image.target];
        return Some(Reason::NoImage { targets });
    }
    // Numbers of rows and their sums have one type.
    let has_type = image.role.is_of_list() || image.element == element;
    if !has_type {
        return Some(Reason::Element(element));
    }
    if !image.tiling.has_tiles() {
        return None;
    }
    let largest = problem
        .problem
        .heads()
        .dims()
        .into_iter()
        .max()
        .unwrap_or(0);
    let laid_out_for = image.tiling.head_dim;
    if (laid_out_for as usize) < largest {
        return Some(Reason::HeadDim { laid_out_for });
    }
    // Products of kernels that take no negative scale begin at the lse divided by it.
    let scale = problem.problem.scoring().scale;
    let needs = match scale.is_some_and(|scale| scale < 1e-15) {
        true => problem.needs() | Features::NEGATIVE_SCALE,
        false => problem.needs(),
    };
    // Sums are of gradients of scores, which know of these already.
    let needs = match image.role {
        Role::QuerySums => needs - (Features::DROPOUT | Features::SCORE_OPTIONS),
        _ => needs,
    };
    let lacks = needs - image.features;
    if !lacks.is_empty() {
        return Some(Reason::Lacks(lacks));
    }
    // All weights of a row may be too small for f16.
    let takes_f16 = matches!(image.family, Family::Dqkv | Family::Wdkv);
    if takes_f16 && needs.contains(Features::SMALL_WEIGHTS) {
        return Some(Reason::Lacks(Features::SMALL_WEIGHTS));
    }
    let (needed, available) = (shared_bytes(image), device.shared_bytes_per_cta);
    (needed > available).then_some(Reason::SharedMemory { needed, available })
}

/// Tiles of a kernel.
fn tiles(problem: &BackwardProblem, image: &Image) -> u64 {
    let problem = &problem.problem;
    let (len, heads) = match has_key_tiles(image.role) {
        true => (problem.key_len(), problem.heads().key_value),
        false => (problem.query_len(), problem.heads().query),
    };
    let rows = u64::from(rows_of_tile(image).max(1));
    (len as u64).div_ceil(rows) * (heads * problem.batch()) as u64
}

/// CTAs of an image that the device holds at once.
fn resident(image: &Image, device: &DeviceProfile) -> u64 {
    u64::from(device.multiprocessors.max(1)) * u64::from(occupancy(image, device).max(1))
}

/// Rows that a multiprocessor has one after the other, of the tiles of a kernel, in units of its speed: on an H100
/// kernels whose warps have 32 rows are 1.2 to 1.6 times as fast as those whose warps have 16, which read as much
/// shared memory for half the products.
fn passes(problem: &BackwardProblem, image: &Image, device: &DeviceProfile) -> u64 {
    // The tiles of the gradient of a bias have one tiling.
    if !image.tiling.has_tiles() || image.role == Role::BiasGradients {
        return 0;
    }
    let rows = u64::from(rows_of_tile(image));
    let at_once = u64::from(occupancy(image, device));
    let warps = image.tiling.warps;
    let is_wide = match has_key_tiles(image.role) {
        // Where several warps have the same keys, see kernels/backward/pair.cuh.
        true => image.tiling.block_n / warps >= 32 || warps == 8 && image.tiling.block_m == 64,
        false => image.tiling.block_m / warps >= 32,
    };
    let one_by_one = tiles(problem, image).div_ceil(resident(image, device));
    let by_speed = match image.family {
        Family::Wdkv | Family::Wdq => 2,
        _ if is_wide => 4,
        _ => 5,
    };
    one_by_one * at_once * rows * by_speed
}

/// True for steps whose tiles are of keys.
const fn has_key_tiles(role: Role) -> bool {
    matches!(role, Role::KeyGradients | Role::AllGradients)
}

/// Keys or queries of a tile of a step.
const fn rows_of_tile(image: &Image) -> u32 {
    match has_key_tiles(image.role) {
        true => image.tiling.block_n,
        false => image.tiling.block_m,
    }
}

/// Where the numbers that steps leave for later ones lie in the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackwardScratch {
    /// From where the pre-pass's sums are.
    pub(crate) delta: usize,
    /// From where its lse are.
    pub(crate) scaled_lse: usize,
    /// From where the turns are, of those who add to sums of dQ.
    pub(crate) turns: usize,
    /// From where these sums are.
    pub(crate) dq_sum: usize,
    /// Numbers of query rows.
    numbers: usize,
}

impl BackwardScratch {
    /// For this many numbers of query rows.
    fn of(numbers: usize) -> Self {
        let list = numbers.saturating_mul(size_of::<f32>());
        // Behind what launches of attention expect to be zero: a caller may give both operations the same workspace.
        let delta = Scratch::PARTS_AT;
        let scaled_lse = delta.saturating_add(list);
        let turns = scaled_lse.saturating_add(list);
        // Sums are moved 16 bytes at a time at least.
        let dq_sum = turns.saturating_add((list / Prepass::TILE).next_multiple_of(16));
        BackwardScratch {
            delta,
            scaled_lse,
            turns,
            dq_sum,
            numbers,
        }
    }

    /// For a call.
    pub(crate) fn of_call(backward: &Backward) -> Self {
        Self::of(backward.prepass().len())
    }

    /// Bytes that a step of this image uses.
    fn bytes(&self, image: &Image) -> usize {
        let head_dim = match image.role {
            Role::AllGradients | Role::QuerySums => image.tiling.head_dim as usize,
            _ => 0,
        };
        let sums = { self.numbers.saturating_mul(head_dim) }.saturating_mul(size_of::<f32>());
        self.dq_sum.saturating_add(sums)
    }

    /// For the largest call of a plan.
    pub(crate) fn of_plan(plan: &Plan<BackwardProblem>) -> Scratch {
        let problem = &plan.problem().problem;
        let tiles = match problem.packed_queries() {
            true => problem.query_rows() / Prepass::TILE + problem.batch(),
            false => problem
                .batch()
                .saturating_mul(problem.query_len().div_ceil(Prepass::TILE)),
        };
        let numbers = { tiles.saturating_mul(Prepass::TILE) }.saturating_mul(problem.heads().query);
        let scratch = Self::of(numbers);
        let bytes = plan.steps().iter().map(|step| scratch.bytes(step.image));
        Scratch {
            bytes: bytes.max().unwrap_or(0),
        }
    }
}

/// Bytes of queries or keys that CTAs working at the same time read again and again: half of a large second-level cache.
const READ_AGAIN_BYTES: usize = 24 << 20;

/// CTAs that have keys of the same head at the same time, in one pass at head size 128: fewer move sums of dQ through memory, more wait
/// longer for each other. See docs/notebook/backward.md.
const CTAS_OF_A_HEAD: usize = 12;

impl Step {
    /// The launch for a backward pass.
    ///
    /// # Errors
    /// [`Error::Grid`] if it would have more tiles than a launch can have.
    pub(crate) fn shape_of_backward(&self, backward: &Backward) -> Result<LaunchShape> {
        let bytes = BackwardScratch::of_call(backward).bytes(self.image);
        let of_rows = |rows| {
            let shape = self.shape_of_rows(rows, 1)?;
            Ok(LaunchShape {
                workspace_bytes: bytes,
                ..shape
            })
        };
        let call = backward.call();
        let of_keys = match self.role {
            role if has_key_tiles(role) => true,
            Role::QueryGradients => false,
            Role::BiasGradients => {
                let layout = backward.gradient(Operand::DBias).unwrap_or(&Layout::EMPTY);
                let [batch, rows, heads, keys] = layout.shape;
                let tiles = |count: usize, of_tile: u32| count.div_ceil(of_tile.max(1) as usize);
                let tiling = &self.image.tiling;
                let of_head =
                    tiles(rows, tiling.block_m).saturating_mul(tiles(keys, tiling.block_n));
                return of_rows(of_head.saturating_mul(batch.saturating_mul(heads)));
            }
            role if role.is_of_list() => return of_rows(call.heads().query),
            _ => return of_rows(backward.prepass().len() / Prepass::TILE),
        };
        let heads = call.heads();
        let (own, others, own_heads, group) = match of_keys {
            true => (
                call.keys(),
                call.queries(),
                heads.key_value,
                heads.group_size(),
            ),
            false => (call.queries(), call.keys(), heads.query, 1),
        };
        let rows = rows_of_tile(self.image) as usize;
        let head_tiles = match own.is_packed() {
            _ if call.batch() == 0 || own.bound() == 0 || own.rows() == 0 => 0,
            true => own.rows() / rows + call.batch(),
            false => own.bound().div_ceil(rows),
        };
        let all_heads = match own.is_packed() {
            true => own_heads,
            false => own_heads.saturating_mul(call.batch()),
        };
        let tiles = (head_tiles as u64).saturating_mul(all_heads as u64);
        if tiles > MAX_TILES {
            return Err(Error::Grid {
                ctas: tiles,
                limit: MAX_TILES,
            });
        }
        let size = ElementType::size(call.element());
        let read_again = others.bound() * group * heads.key_value_elements() * size;
        let resident = self.resident() as usize;
        let at_once = match self.role {
            Role::AllGradients => {
                // Heads that share keys are read one at a time.
                let in_cache = READ_AGAIN_BYTES / (read_again / group).max(1);
                let of_a_head = CTAS_OF_A_HEAD * 128 / (self.image.tiling.head_dim as usize);
                let together = in_cache.min(resident.div_ceil(of_a_head));
                let mask = call.mask();
                // Where tiles differ, more heads are at hand to end with short ones. Entries with queries at other places of the same keys
                // spread over more of the cache (docs/several-gpus.md).
                let is_even = mask.left.is_some() == mask.right.is_some()
                    || call.queries().is_packed() && !call.keys().is_packed();
                together.max(resident.div_ceil(head_tiles.max(1))) * if is_even { 1 } else { 2 }
            }
            _ => (READ_AGAIN_BYTES / read_again.max(1)).max(resident.div_ceil(head_tiles.max(1))),
        };
        let at_once = at_once.clamp(1, all_heads.max(1));
        let draws_tiles = self.image.schedule.is_persistent();
        let grid = match draws_tiles {
            true => tiles.min(resident as u64),
            false => tiles,
        };
        Ok(LaunchShape {
            grid: grid as u32,
            tiles: tiles as u32,
            query_tiles: head_tiles as u32,
            heads_at_once: at_once as u32,
            side_by_side: 1,
            draws_tiles,
            shares_keys: false,
            splits: 1,
            workspace_bytes: bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::step::tests::step;
    use crate::plan::{Choice, DeviceProfile, Planner};
    use crate::spec::{Call, Mask, Scoring};

    /// Chunks of a rank of several GPUs, packed, and their keys.
    #[test]
    fn chunks_of_the_same_keys_are_few_at_once() {
        let at_once = |rows: usize| {
            let (q, k) = (
                Layout::packed(2 * rows, 16, 128),
                Layout::bshd([2, 4 * rows, 4, 128]),
            );
            let call = Call::builder(&q, &k, &k, ElementType::F16)
                .device_query_offsets(2, rows)
                .scoring(Scoring::new().mask(Mask::causal()))
                .build()
                .unwrap();
            let step = step("dqkv_d128_64x128_w12_s2", 132);
            let backward = Backward::builder(call).build().unwrap();
            step.shape_of_backward(&backward).unwrap().heads_at_once
        };
        // On an H200 two groups of heads take 39.1 ms, one of six heads and one of two 49.2.
        assert_eq!((at_once(16384), at_once(4096)), (3, 8));
    }

    /// Fewer rows than the tensor has, or as many.
    #[test]
    fn a_workspace_for_the_longest_queries_is_that_of_each_launch() {
        for (rows, longest) in [
            (4096, 64),
            (4096, 100),
            (130, 129),
            (130, 130),
            (64, 1),
            (64, 0),
        ] {
            let q = Layout::bshd([2, rows, 16, 64]);
            let call = Call::builder(&q, &q, &q, ElementType::Bf16)
                .device_query_lengths(2)
                .longest_queries(longest)
                .build()
                .unwrap();
            let backward = Backward::builder(call).build().unwrap();
            let plan = Planner::new(&DeviceProfile::h200())
                .plan_backward(BackwardProblem::of(&backward), &Choice::Best)
                .unwrap();
            let told = BackwardScratch::of_plan(&plan).bytes;
            for step in plan.steps() {
                let shape = step.shape_of_backward(&backward).unwrap();
                assert!(shape.workspace_bytes <= told, "{rows} {longest}");
            }
        }
    }

    #[test]
    fn the_kernels_of_each_step_are_of_gradients() {
        for (role, _) in Role::OF_GRADIENTS {
            for image in images_for(role) {
                let choice = Choice::Kernel(image.kernel.to_owned());
                assert!(choice.is_of_gradients(), "{role}: {}", image.kernel);
            }
        }
        assert!(!Choice::Best.is_of_gradients());
    }

    #[test]
    fn a_workspace_serves_attention_after_gradients() {
        let scratch = BackwardScratch::of(4096);
        assert!(
            scratch.delta >= Scratch::PARTS_AT && Scratch::PARTS_AT >= Scratch::counter().bytes
        );
        assert!(scratch.delta.is_multiple_of(256));
    }
}
