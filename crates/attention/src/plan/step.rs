//! One kernel of a plan, and the shape of its launch for a call.

use warptile_kernels::{Image, Role, Schedule};

use crate::call::Call;
use crate::device::DeviceProfile;
use crate::error::{Error, Result};
use crate::plan::MAX_TILES;
use crate::plan::heads_at_once::{heads_at_once, interleaved};
use crate::plan::pairs::Numbered;
use crate::plan::planner::occupancy;
use crate::plan::settings::Settings;
use crate::plan::shared_keys::{Sides, if_countable, workers_of_cta};
use crate::plan::split_tiles::{PARTS_A_CTA, TileKeys, splits_of, splits_tiles};
use crate::problem::Problem;
use crate::splits::Splits;

/// One kernel of a plan.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Step {
    /// What it does.
    pub role: Role,
    /// The kernel's image for the device.
    pub image: &'static Image,
    /// Multiprocessors that its CTAs are spread over.
    pub multiprocessors: u32,
    /// CTAs a multiprocessor can hold at once.
    pub ctas_per_multiprocessor: u32,
    /// Dynamic shared memory in bytes with which a multiprocessor holds one CTA, where they stay for a whole launch and it holds several with
    /// what the image asks for.
    pub alone_bytes: Option<u32>,
    /// The planner's estimate of the GPU time, in microseconds; only its order among kernels means anything.
    pub estimate_us: f64,
    /// What of its launches is not as the planner has it.
    pub settings: Settings,
    /// CTAs that the device can hold at once where they come in clusters, once the driver was asked: some multiprocessors may be left without
    /// a cluster. `None`: as many as on their own.
    pub clustered_ctas: Option<u32>,
}

/// Clusters of [`Schedule::CLUSTER`] CTAs, each with a multiprocessor of its own, that a device can hold at once, as long as the driver has not been
/// asked: an H200 with 132 multiprocessors holds 15.
pub(super) fn clusters_at_once(multiprocessors: u32) -> u32 {
    (multiprocessors / Schedule::CLUSTER).saturating_sub(1)
}

/// How a step is launched for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchShape {
    /// CTAs. 0 if there is nothing to compute.
    pub grid: u32,
    /// Tiles of query rows in all; of kernels whose CTAs work in pairs, pairs of tiles.
    pub tiles: u32,
    /// Of these, those of a head (or of a pair of heads): of one batch entry, or of all packed queries.
    pub query_tiles: u32,
    /// Heads (or pairs of heads) whose tiles are interleaved, so that CTAs working at the same time share keys and values in L2.
    pub heads_at_once: u32,
    /// Where CTAs or warps share keys, key/value heads that are read side by side, each by as many of these; 1 elsewhere.
    pub side_by_side: u32,
    /// Whether CTAs draw their tiles from the workspace's counter.
    pub draws_tiles: bool,
    /// Whether CTAs leave parts of tiles in the workspace.
    pub shares_keys: bool,
    /// Ranges that the keys of the last tiles are split into: of those that do not fill all CTAs. Where clusters compute tiles, the clusters of
    /// each tile.
    pub splits: u32,
    /// Bytes of the workspace that the launch uses; at most [`Plan::scratch`](crate::Plan::scratch) of its plan.
    pub workspace_bytes: usize,
}

impl LaunchShape {
    /// Whether the launch uses the workspace.
    #[must_use]
    pub const fn needs_workspace(&self) -> bool {
        self.workspace_bytes != 0
    }
}

/// Device memory that a launch needs beside the tensors: zeroed once, and left at zero by every launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Scratch {
    /// Bytes, aligned to 256; 0 if none is needed.
    pub bytes: usize,
}

impl Scratch {
    /// The tile counter, with a cache line of its own.
    const COUNTER_BYTES: usize = 256;

    /// CTAs that may share keys in a launch: more than any GPU has multiprocessors.
    const SHARING_CTAS: usize = 256;

    /// Warps that may share keys in a launch, each for itself: those of 132 CTAs, as many as any GPU has multiprocessors that there are such images for.
    const SHARING_WARPS: usize = 8 * 132;

    /// Semaphores of split tiles: one for each 64 rows.
    pub(super) const SEMAPHORES: usize = 1024;

    /// Places for semaphores: also of shared tiles, one a CTA or warp.
    const SEMAPHORE_PLACES: usize = 1088;

    /// Where they begin.
    pub(crate) const SEMAPHORES_AT: usize = Self::COUNTER_BYTES;

    /// Where the parts of shared tiles begin: two a CTA or warp, or one a unit if keys are cut at fixed places. Each has BLOCK_M rows of the
    /// tiling's head size of values and two numbers a row, in fp32.
    pub(crate) const PARTS_AT: usize = Self::SEMAPHORES_AT + 4 * Self::SEMAPHORE_PLACES;

    const fn with_parts(parts: usize, rows: usize, value_dim: usize) -> Self {
        let part = rows * (value_dim + 2) * size_of::<f32>();
        Scratch {
            bytes: Self::PARTS_AT.saturating_add(parts.saturating_mul(part)),
        }
    }

    /// For the largest call of a problem.
    pub(super) fn of(problem: &Problem, steps: &[Step]) -> Self {
        let needed = |step: &Step| match step.image.schedule {
            _ if splits_tiles(step.image) => {
                Self::with_split_tiles(PARTS_A_CTA * step.resident() as usize, step.image)
            }
            schedule if schedule.is_persistent() => Self::counter(),
            schedule if schedule.shares_keys() => step.parts_of(&Sides::from(problem)),
            Schedule::ClusterTile => step.parts_of_clusters(&Sides::from(problem)),
            _ => Self::default(),
        };
        Scratch {
            bytes: steps
                .iter()
                .map(|step| needed(step).bytes)
                .max()
                .unwrap_or(0),
        }
    }

    /// What serves every plan whose kernels draw tiles.
    pub(crate) const fn counter() -> Self {
        Scratch {
            bytes: Self::COUNTER_BYTES,
        }
    }

    /// For so many parts of split tiles. Each has BLOCK_M rows of the tiling's head size of values, and two numbers a row from each of the
    /// four threads that share it (kernels/forward/wgmma_parts.cuh).
    fn with_split_tiles(parts: usize, image: &Image) -> Self {
        let (rows, value_dim) = (image.tiling.block_m, image.tiling.value_dim);
        let part = rows as usize * (value_dim as usize + 8) * size_of::<f32>();
        Scratch {
            bytes: Self::PARTS_AT + parts * part,
        }
    }

    /// What serves every plan for kernels that share keys evenly; a test holds the catalog against it.
    pub(crate) const fn of_even_splits() -> Self {
        let of_ctas = Self::with_parts(2 * Self::SHARING_CTAS, 64, 128);
        let of_warps = Self::with_parts(2 * Self::SHARING_WARPS, 16, 128);
        if of_ctas.bytes > of_warps.bytes {
            of_ctas
        } else {
            of_warps
        }
    }

    /// What serves every plan for the device that does not cut keys at fixed places.
    pub(crate) fn of_any_plan(device: &DeviceProfile) -> Self {
        let images = warptile_kernels::catalog().iter();
        let split = images.filter(|image| splits_tiles(image)).map(|image| {
            let resident = device
                .multiprocessors
                .max(1)
                .saturating_mul(occupancy(image, device));
            Self::with_split_tiles(PARTS_A_CTA * resident as usize, image).bytes
        });
        Scratch {
            bytes: split.fold(Self::of_even_splits().bytes, usize::max),
        }
    }
}

impl Step {
    /// Threads of a CTA.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        32 * self.image.tiling.warps
    }

    /// CTAs that stay for a whole launch.
    pub(super) fn resident(&self) -> u32 {
        let resident =
            { self.multiprocessors.max(1) }.saturating_mul(self.ctas_per_multiprocessor.max(1));
        let resident = self
            .clustered_ctas
            .map_or(resident, |most| most.min(resident));
        match self.image.schedule {
            Schedule::SharedKeys => resident.min(Scratch::SHARING_CTAS as u32),
            Schedule::SharedKeysByWarps => {
                resident.min(Scratch::SHARING_WARPS as u32 / workers_of_cta(self.image))
            }
            _ => resident,
        }
    }

    /// The launch for a call.
    ///
    /// # Errors
    /// [`Error::Grid`] if it would have more tiles, or units of keys to be shared, than a launch can have.
    pub fn shape(&self, call: &Call) -> Result<LaunchShape> {
        match self.image.schedule {
            schedule if schedule.shares_keys() => self.shape_of_shared_keys(call),
            _ => self.shape_of_tiles(call),
        }
    }

    fn shape_of_shared_keys(&self, call: &Call) -> Result<LaunchShape> {
        let block_m = self.image.tiling.block_m;
        let sides = Sides::from(call);
        let units = sides.units(self.image);
        if units > MAX_TILES {
            return Err(Error::Grid {
                ctas: units,
                limit: MAX_TILES,
            });
        }
        let of_cta = workers_of_cta(self.image);
        let workers = self.resident() * of_cta;
        let side_by_side = sides.side_by_side(workers);
        let of_a_head = (units / side_by_side).min(u64::from(workers) / side_by_side);
        Ok(LaunchShape {
            // Workers that the last CTA has besides find nothing to do.
            grid: ((of_a_head * side_by_side) as u32).div_ceil(of_cta),
            tiles: sides.tiles(block_m) as u32,
            query_tiles: sides.row_tiles(block_m) as u32,
            heads_at_once: 1,
            side_by_side: side_by_side as u32,
            draws_tiles: false,
            shares_keys: true,
            splits: 1,
            workspace_bytes: self.parts_of(&sides).bytes,
        })
    }

    /// The workspace with the parts that CTAs leave.
    fn parts_of(&self, sides: &Sides) -> Scratch {
        let parts = match sides.splits {
            Splits::Even => 2 * (self.resident() * workers_of_cta(self.image)) as usize,
            Splits::EveryKeys(_) => sides.units(self.image) as usize,
        };
        let tiling = self.image.tiling;
        Scratch::with_parts(parts, tiling.block_m as usize, tiling.value_dim as usize)
    }

    /// Clusters that the device can hold at once, of kernels whose tiles clusters compute.
    fn clusters_at_once(&self) -> u64 {
        u64::from(match self.clustered_ctas {
            Some(_) => self.resident() / Schedule::CLUSTER,
            None => clusters_at_once(self.multiprocessors),
        })
    }

    /// Clusters that share each of so many tiles: as many as the device can hold at once, where the keys are enough for all of them. Two instead of
    /// one cost more than they save (docs/notebook-decode.md).
    fn clusters_of_tile(&self, sides: &Sides, tiles: u64) -> u64 {
        // With a block of keys for each CTA.
        match sides.tile_units(self.image.tiling.block_n) / u64::from(Schedule::CLUSTER) {
            0..3 => 1,
            // More blocks than the kernel can share out: kernels/work/quotient.cuh.
            most if most > 1 << 16 => 1,
            most => (self.clusters_at_once() / tiles.max(1)).clamp(1, most),
        }
    }

    /// The workspace with the parts that CTAs of several clusters leave: for the fewest tiles that calls with these heads have.
    fn parts_of_clusters(&self, sides: &Sides) -> Scratch {
        let tiling = self.image.tiling;
        let blocks = sides.tile_units(tiling.block_n);
        match blocks >= u64::from(3 * Schedule::CLUSTER)
            && self.clusters_at_once() >= 2 * sides.kv_heads()
        {
            true => Scratch::with_parts(
                self.clusters_at_once() as usize * Schedule::CLUSTER as usize,
                tiling.block_m as usize,
                tiling.value_dim as usize,
            ),
            false => Scratch::default(),
        }
    }

    fn shape_of_tiles(&self, call: &Call) -> Result<LaunchShape> {
        let batch = call.batch();
        let queries = call.queries();
        let numbered = Numbered::of(self.image, call.heads());
        let (query_tiles, tiles) = match call.query_len() {
            0 => (0, 0),
            len => tiles_of_queries(
                self.image,
                &numbered,
                batch,
                len,
                queries.is_packed().then(|| queries.rows()),
            ),
        };
        let ctas = tiles.saturating_mul(numbered.ctas);
        if ctas > MAX_TILES {
            return Err(Error::Grid {
                ctas,
                limit: MAX_TILES,
            });
        }
        let persistent = self.image.schedule.is_persistent();
        // Of numbers.
        let resident = (u64::from(self.resident()) / numbered.ctas).max(1);
        let in_clusters = self.image.schedule == Schedule::ClusterTile;
        let splits = match splits_tiles(self.image) {
            _ if in_clusters => self.clusters_of_tile(&Sides::from(call), tiles),
            true => {
                let keys = TileKeys::of(
                    call.mask(),
                    [call.query_len(), call.key_len()],
                    call.heads().group_size(),
                    self.image,
                );
                splits_of(tiles, resident, &keys, self.image, self.settings.ranges)
            }
            false => 1,
        };
        let split_tiles = match splits {
            1 => 0,
            _ if in_clusters => tiles,
            _ => tiles % resident,
        };
        // What CTAs take one after the other.
        let numbers = tiles + split_tiles * (splits - 1);
        let at_once = if persistent {
            numbers.min(resident)
        } else {
            numbers
        };
        let draws_tiles = persistent && numbers > at_once;
        Ok(LaunchShape {
            grid: (at_once * numbered.ctas) as u32,
            tiles: tiles as u32,
            query_tiles: query_tiles as u32,
            // `scalar` and `wmma` take head after head, the order of the grid.
            heads_at_once: match self.image.schedule {
                Schedule::OneTile => 1,
                _ => match self.settings.at_once {
                    Some(given) => given.min(interleaved(call, numbered.heads) as u32).max(1),
                    None => heads_at_once(self, call, &numbered, tiles) as u32,
                },
            },
            side_by_side: 1,
            draws_tiles,
            shares_keys: splits > 1,
            splits: splits as u32,
            workspace_bytes: match (splits, draws_tiles) {
                (1, false) => 0,
                (1, true) => Scratch::counter().bytes,
                _ if in_clusters => self.parts_of_clusters(&Sides::from(call)).bytes,
                _ => Scratch::with_split_tiles((split_tiles * splits) as usize, self.image).bytes,
            },
        })
    }
}

/// Tiles of a problem, or of kernels that share keys the units: what [`Step::shape`] gives for a call whose lengths are the bounds.
pub(super) fn tiles_of(problem: &Problem, image: &Image) -> u64 {
    if image.schedule.shares_keys() {
        return Sides::from(problem).units(image);
    }
    let packed = problem.packed_queries().then(|| problem.query_rows());
    let numbered = Numbered::of(image, problem.heads());
    tiles_of_queries(
        image,
        &numbered,
        problem.batch(),
        problem.query_len(),
        packed,
    )
    .1
}

/// Tiles of a head (of one batch entry, or of all packed rows), and in all.
///
/// Those of packed queries are numbered across the sequences. Sequence b's first one has the number of its first row / BLOCK_M + b, so
/// that a kernel finds the sequence of a tile without a list of its own; at most one number a sequence is left unused.
fn tiles_of_queries(
    image: &Image,
    numbered: &Numbered,
    batch: usize,
    query_len: usize,
    packed_rows: Option<usize>,
) -> (u64, u64) {
    let Numbered {
        heads,
        rows: block_m,
        rows_of_query,
        ..
    } = *numbered;
    let (heads, batch) = (heads as u64, batch as u64);
    let rows = (packed_rows.unwrap_or(query_len) as u64).saturating_mul(rows_of_query);
    let (of_a_head, batch) = match packed_rows {
        Some(_) if batch == 0 => (0, 0),
        Some(_) => (rows / block_m + batch, 1),
        None => (rows.div_ceil(block_m), batch),
    };
    let tiles = of_a_head.saturating_mul(heads).saturating_mul(batch);
    match image.schedule {
        schedule if schedule.has_group_tiles() => {
            (of_a_head, if_countable(rows, rows_of_query, tiles))
        }
        _ => (of_a_head, tiles),
    }
}

#[cfg(test)]
impl Step {
    /// Of an image on so many multiprocessors, each with one CTA, as the planner does without measurements.
    pub(super) fn of(image: &'static Image, multiprocessors: u32) -> Step {
        Step {
            role: image.role,
            image,
            multiprocessors,
            ctas_per_multiprocessor: 1,
            alone_bytes: None,
            estimate_us: 0.0,
            settings: Settings::default(),
            clustered_ctas: None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::mask::Mask;
    use crate::{ElementType, Layout, Scoring};

    pub(in crate::plan) fn dense(
        batch: usize,
        [heads, kv_heads]: [usize; 2],
        [q, k]: [usize; 2],
        mask: Mask,
    ) -> Call {
        let q = Layout::bshd([batch, q, heads, 128]);
        let k = Layout::bshd([batch, k, kv_heads, 128]);
        Call::builder(&q, &k, &k, ElementType::F16)
            .scoring(Scoring::new().mask(mask))
            .build()
            .unwrap()
    }

    pub(in crate::plan) fn step(kernel: &str, multiprocessors: u32) -> Step {
        let image = warptile_kernels::catalog()
            .iter()
            .filter(|image| image.kernel == kernel && image.element == ElementType::F16)
            .filter(|image| image.schedule.ctas_of_cluster() == 1)
            .filter(|image| image.schedule != Schedule::PersistentGroups)
            .min_by_key(|image| image.features.iter().count())
            .unwrap();
        Step::of(image, multiprocessors)
    }

    #[test]
    fn packed_tiles_are_counted_from_the_shapes_alone() {
        let tensor = Layout::packed(1000, 2, 64);
        let shape = |offsets: &[i32]| {
            let call = Call::builder(&tensor, &tensor, &tensor, ElementType::F16)
                .packed(offsets, offsets)
                .build()
                .unwrap();
            step("wmma_d64_64x64_w4_s2", 1).shape(&call).unwrap()
        };
        // 1000 / 64 + 3 numbers for each of 2 heads.
        let expected = shape(&[0, 1, 2, 1000]);
        assert_eq!(
            (expected.query_tiles, expected.tiles, expected.grid),
            (18, 36, 36)
        );
        assert_eq!(shape(&[0, 400, 800, 1000]), expected);
        // No sequence has a row.
        assert_eq!(shape(&[0, 0, 0]).grid, 0);
    }

    #[test]
    fn rows_of_a_group_are_one_tile_where_a_tile_has_those_of_all_its_heads() {
        let step = step("mma_d128_64x64_w4_s2", 1);
        // 3 query heads share a key/value head: 2 * 303 / 64 tiles of each of 4.
        let causal = dense(2, [12, 4], [101, 200], Mask::causal());
        let shape = step.shape(&causal).unwrap();
        assert_eq!((shape.query_tiles, shape.tiles, shape.grid), (5, 40, 40));
        assert_eq!(shape.heads_at_once, 8);
        let unmasked = dense(2, [12, 4], [101, 200], Mask::None);
        assert_eq!(step.shape(&unmasked).unwrap().heads_at_once, 1);
        let q = Layout::packed(101, 12, 128);
        let k = Layout::packed(200, 4, 128);
        let packed = Call::builder(&q, &k, &k, ElementType::F16)
            .packed(&[0, 1, 1, 101], &[0, 50, 100, 200])
            .build()
            .unwrap();
        // 303 / 64 and one for each sequence.
        assert_eq!(step.shape(&packed).unwrap().query_tiles, 7);
    }

    #[test]
    fn rows_that_kernels_of_groups_cannot_count_are_too_many() {
        let call = |query_len, heads: usize| {
            let q = Layout::new([1, query_len, heads, 8], [0, 0, 8, 1]);
            let k = Layout::bshd([1, 16, 1, 8]);
            Call::builder(&q, &k, &k, ElementType::F16)
                .out(Layout::bshd([1, query_len, heads, 8]))
                .build()
                .unwrap()
        };
        for kernel in ["mma_d64_64x64_w4_s2", "decode_d64_16x128_w4_s2"] {
            let step = step(kernel, 132);
            for (query_len, heads, fits) in [
                (1 << 22, 128, true),
                (1 << 23, 128, false),
                (1, 1 << 20, true),
                (1, 1 << 21, false),
            ] {
                let call = call(query_len, heads);
                let shape = step.shape(&call);
                assert_eq!(shape.is_ok(), fits, "{kernel} {call}: {shape:?}");
                let planned = tiles_of(&call.problem(), step.image) <= MAX_TILES;
                assert!(fits || !planned, "{kernel} {call}");
            }
        }
    }

    #[test]
    fn a_grid_that_shares_keys_has_as_many_ctas_for_each_head() {
        let step = step("decode_d128_16x128_w8_s2", 132);
        for (batch, kv_heads, key_len, grid, side_by_side) in [
            (16, 8, 8192, 128, 8),
            (1, 8, 131_072, 128, 8),
            (1, 4, 1024, 32, 4),
            // Fewer units than CTAs: as many CTAs as units.
            (1, 6, 300, 18, 6),
            (3, 6, 10_000, 132, 6),
            (5, 1, 10_000, 132, 1),
        ] {
            let call = dense(batch, [4 * kv_heads, kv_heads], [1, key_len], Mask::None);
            let shape = step.shape(&call).unwrap();
            assert_eq!(
                (shape.grid, shape.side_by_side),
                (grid, side_by_side),
                "{call}"
            );
        }
    }

    #[test]
    fn where_warps_share_keys_a_grid_has_enough_ctas_for_all_of_them() {
        let image = warptile_kernels::image("decode_d128_16x128_w8_s2_f16_dense_warps_sm_90");
        let step = Step::of(image.unwrap(), 132);
        let part = 16 * (128 + 2) * 4;
        for (batch, kv_heads, key_len, grid, side_by_side) in [
            (16, 8, 8192, 132, 8),
            (1, 8, 131_072, 132, 8),
            // 1056 / 40 * 40 warps, and all of the 130th CTA.
            (16, 40, 8192, 130, 40),
            // Six heads of 19 units of 16 keys, and six warps without work.
            (1, 6, 300, 15, 6),
        ] {
            let call = dense(batch, [4 * kv_heads, kv_heads], [1, key_len], Mask::None);
            let shape = step.shape(&call).unwrap();
            assert_eq!(
                (shape.grid, shape.side_by_side),
                (grid, side_by_side),
                "{call}"
            );
            assert!(shape.shares_keys && !shape.draws_tiles, "{call}");
            // Two parts and a semaphore for each warp.
            let bytes = Scratch::PARTS_AT + 2 * 8 * 132 * part;
            assert_eq!(shape.workspace_bytes, bytes, "{call}");
            assert_eq!(
                Scratch::of(&call.problem(), std::slice::from_ref(&step)).bytes,
                bytes
            );
            assert!(Scratch::SEMAPHORES_AT + 4 * 8 * shape.grid as usize <= Scratch::PARTS_AT);
        }
        // No more than every stream has, also where there are more multiprocessors.
        for multiprocessors in [1, 132, 144, 1000] {
            let step = Step::of(image.unwrap(), multiprocessors);
            let call = dense(16, [32, 8], [1, 8192], Mask::None);
            let shape = step.shape(&call).unwrap();
            assert_eq!(shape.grid, multiprocessors.min(132));
            assert!(shape.workspace_bytes <= Scratch::of_even_splits().bytes);
        }
    }

    #[test]
    fn a_device_without_multiprocessors_still_gets_a_grid() {
        let call = dense(1, [4, 4], [512, 512], Mask::None);
        let shape = step("wgmma_d128_128x128_w12_s2", 0).shape(&call).unwrap();
        assert_eq!((shape.grid, shape.tiles, shape.draws_tiles), (1, 16, true));
    }

    fn serving(kernel: &str, multiprocessors: u32) -> Step {
        let image = warptile_kernels::catalog()
            .iter()
            .find(|image| {
                image.kernel == kernel && image.element == ElementType::F16 && splits_tiles(image)
            })
            .unwrap();
        Step {
            image,
            ..step(kernel, multiprocessors)
        }
    }

    #[test]
    fn tiles_that_do_not_fill_all_ctas_are_split() {
        let step = serving("wgmma_d128_128x128_w12_s2", 132);
        let shape = |heads: usize, query_len, key_len| {
            let call = dense(1, [heads, heads], [query_len, key_len], Mask::None);
            step.shape(&call).unwrap()
        };
        // 16 tiles of 8192 keys: 8 ranges each keep 128 of 132 CTAs busy.
        let few = shape(16, 128, 8192);
        assert_eq!((few.tiles, few.splits, few.grid), (16, 8, 128));
        assert!(few.shares_keys && !few.draws_tiles);
        let part = 128 * (128 + 8) * 4;
        assert_eq!(few.workspace_bytes, Scratch::PARTS_AT + 128 * part);
        // 64 of 196 tiles are left over: two ranges each.
        let rest = shape(28, 7 * 128, 8192);
        assert_eq!((rest.tiles, rest.splits, rest.grid), (196, 2, 132));
        assert!(rest.shares_keys && rest.draws_tiles);
        assert_eq!(rest.workspace_bytes, Scratch::PARTS_AT + 128 * part);
        // Nothing is left over; or few keys, whose parts would cost more than they save.
        assert_eq!(shape(132, 128, 8192).splits, 1);
        assert_eq!(shape(16, 128, 256).splits, 1);
        assert_eq!(shape(16, 128, 256).workspace_bytes, 0);
        // The plain image has no parts.
        let call = dense(1, [16, 16], [128, 8192], Mask::None);
        let plain = self::step("wgmma_d128_128x128_w12_s2", 132);
        assert_eq!(plain.shape(&call).unwrap().splits, 1);
    }

    #[test]
    fn parts_and_semaphores_fit_the_workspace() {
        for image in warptile_kernels::catalog() {
            if !splits_tiles(image) {
                continue;
            }
            let head_dim = image.tiling.head_dim as usize;
            for multiprocessors in [1, 2, 7, 132, 144] {
                let device = DeviceProfile::h200().with_multiprocessors(multiprocessors);
                let step = Step {
                    image,
                    ctas_per_multiprocessor: occupancy(image, &device),
                    ..step(image.kernel, multiprocessors)
                };
                for (heads, query_len) in
                    [(1, 1), (3, 300), (8, 130), (32, 512), (131, 64), (5, 4000)]
                {
                    for (key_len, mask) in [
                        (1, Mask::None),
                        (9000, Mask::None),
                        (70_000, Mask::causal()),
                    ] {
                        let q = Layout::bshd([1, query_len, heads, head_dim]);
                        let k = Layout::bshd([1, key_len, heads, head_dim]);
                        let v = k.dense_with(image.tiling.value_dim as usize);
                        let call = Call::builder(&q, &k, &v, image.element)
                            .scoring(Scoring::new().mask(mask))
                            .build()
                            .unwrap();
                        let shape = step.shape(&call).unwrap();
                        let scratch = Scratch::of(&call.problem(), std::slice::from_ref(&step));
                        assert!(shape.workspace_bytes <= scratch.bytes, "{call}");
                        assert!(scratch.bytes <= Scratch::of_any_plan(&device).bytes);
                        assert!(shape.splits == 1 || shape.splits > 1 && shape.shares_keys);
                        let left_over = shape.tiles % step.resident();
                        // As the kernel counts: `numbers` of kernels/forward/wgmma_scheduler.cuh.
                        let rest = shape.tiles % shape.grid.max(1);
                        assert!(shape.splits == 1 || rest == left_over, "{call}");
                        let semaphores = rest * image.tiling.block_m.div_ceil(64);
                        assert!(shape.splits == 1 || semaphores as usize <= Scratch::SEMAPHORES);
                    }
                }
            }
        }
    }

    #[test]
    fn more_tiles_than_a_grid_can_have_are_an_error() {
        let q = Layout::new([1 << 20, 1 << 16, 1, 8], [0, 0, 0, 1]);
        let out = Layout::new([1 << 20, 1 << 16, 1, 8], [1 << 19, 8, 8, 1]);
        let k = Layout::new([1 << 20, 1, 1, 8], [0, 0, 0, 1]);
        let call = Call::builder(&q, &k, &k, ElementType::F16)
            .out(out)
            .build()
            .unwrap();
        let error = step("wmma_d64_16x64_w4_s2", 132).shape(&call).unwrap_err();
        assert!(
            error.to_string().contains("needs 4294967296 tiles"),
            "{error}"
        );
        assert!(step("wmma_d64_64x64_w4_s2", 132).shape(&call).is_ok());
    }

    #[test]
    fn settings_change_the_launch_within_its_limits() {
        let call = dense(4, [16, 16], [4096, 4096], Mask::causal());
        let with = |kernel: &str, words: &str| {
            let mut step = step(kernel, 132);
            for word in words.split_whitespace() {
                step.settings.parse_word(word).unwrap();
            }
            step.shape(&call).unwrap()
        };
        let persistent = "wgmma_d128_192x80_w16_s3";
        let usual = with(persistent, "");
        assert_eq!(with(persistent, "at-once=5").heads_at_once, 5);
        assert_eq!(with(persistent, "at-once=9999").heads_at_once, 64);
        assert_eq!(with(persistent, "at-once=1 ranges=3").tiles, usual.tiles);
        // `wmma` takes head after head whatever is asked for.
        assert_eq!(with("wmma_d128_64x64_w4_s1", "at-once=5").heads_at_once, 1);
        // Ranges stay within what the workspace holds.
        let image = warptile_kernels::catalog()
            .iter()
            .find(|image| splits_tiles(image) && image.tiling.head_dim == 128)
            .unwrap();
        let call = dense(1, [10, 10], [512, 65_536], Mask::None);
        let split = |ranges: Option<u32>| {
            let mut step = Step {
                image,
                ..step(persistent, 132)
            };
            step.settings.ranges = ranges;
            step.shape(&call).unwrap()
        };
        let (usual, one) = (split(None), split(Some(1)));
        assert!(usual.splits > 1, "{usual:?}");
        assert_eq!((one.splits, one.shares_keys), (1, false));
        assert_eq!(split(Some(2)).splits, 2);
        let most = split(Some(u32::MAX));
        let bound = Scratch::with_split_tiles(PARTS_A_CTA * 132, image);
        assert!(most.splits >= usual.splits, "{most:?}");
        assert!(most.workspace_bytes <= bound.bytes, "{most:?}");
    }
}
