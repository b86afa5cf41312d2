//! One kernel of a plan, and the shape of its launch for a call.

use warptile_kernels::abi::{CTA_PARTS, MAX_QUOTIENT, PART_SUMS, SPLIT_PART_SUMS};
use warptile_kernels::{Image, Role, Schedule};

use crate::error::{Error, Result};
use crate::plan::DeviceProfile;
use crate::plan::heads_at_once::{heads_at_once, interleaved};
use crate::plan::occupancy::{MAX_TILES, alone_bytes, occupancy};
use crate::plan::pairs::Numbered;
use crate::plan::settings::Settings;
use crate::plan::share::{RunScratch, Share};
use crate::plan::shared_keys::{Sides, if_countable};
use crate::plan::split_tiles::{
    PARTS_A_CTA, SEMAPHORES, TileKeys, packs_rows, splits_of, splits_tiles,
};
use crate::spec::{Call, Problem, Splits};

/// One kernel of a plan.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Step {
    /// The role of the step.
    pub role: Role,
    /// The kernel's image for the device.
    pub image: &'static Image,
    /// Multiprocessors that its CTAs are spread over.
    pub multiprocessors: u32,
    /// CTAs a multiprocessor can hold at once.
    pub ctas_per_multiprocessor: u32,
    /// Dynamic shared memory in bytes with which a multiprocessor holds one CTA, where they stay for a whole launch
    /// and it holds several with what the image asks for.
    pub alone_bytes: Option<u32>,
    /// The planner's estimate of the GPU time, in microseconds; only its order among kernels means anything.
    pub estimate_us: f64,
    /// The sequences that it computes.
    pub share: Share,
    /// Launch settings that override the planner's.
    pub settings: Settings,
    /// CTAs that the device can hold at once where they come in clusters, once the driver was asked: some
    /// multiprocessors may be left without a cluster. `None`: as many as on their own.
    pub clustered_ctas: Option<u32>,
}

/// Clusters of [`Schedule::CLUSTER`] CTAs, each with a multiprocessor of its own, that a device can hold at once, as
/// long as the driver has not been asked: an H200 with 132 multiprocessors holds 15.
pub(super) fn clusters_at_once(multiprocessors: u32) -> u32 {
    (multiprocessors / Schedule::CLUSTER).saturating_sub(1)
}

/// How a step is launched for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchShape {
    /// CTAs. 0 if there is nothing to compute.
    pub grid: u32,
    /// Tiles of query rows in all; of kernels whose CTAs work in pairs, pairs of tiles; of merges and cache writes, rows.
    pub tiles: u32,
    /// The tiles among these that belong to a head (or to a pair of heads): of one batch entry, or of all packed
    /// queries.
    pub query_tiles: u32,
    /// Heads (or pairs of heads) whose tiles are interleaved, so that CTAs working at the same time share keys and values in L2.
    pub heads_at_once: u32,
    /// Where CTAs share keys, key/value heads that are read side by side, each by as many CTAs; 1 elsewhere.
    pub side_by_side: u32,
    /// True if CTAs draw their tiles from the workspace's counter.
    pub draws_tiles: bool,
    /// True if CTAs leave parts of tiles in the workspace.
    pub shares_keys: bool,
    /// Ranges that the keys of the last tiles are split into: of those that do not fill all CTAs. Where clusters
    /// compute tiles, the clusters of each tile.
    pub splits: u32,
    /// Bytes of the workspace that the launch uses, from its beginning to what it uses last: a step that leaves
    /// something to later steps of its plan does so behind what these use. At most
    /// [`Plan::scratch`](crate::plan::Plan::scratch) of its plan.
    pub workspace_bytes: usize,
}

impl LaunchShape {
    /// Returns true if the launch uses the workspace.
    pub const fn needs_workspace(&self) -> bool {
        self.workspace_bytes != 0
    }
}

/// Device memory that a launch needs in addition to the tensors: zeroed once, and left at zero by every launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Scratch {
    /// Bytes, aligned to 256; 0 if none is needed.
    pub bytes: usize,
}

impl Scratch {
    /// The tile counter, with a cache line of its own.
    const COUNTER_BYTES: usize = 256;

    /// Bytes at the beginning that have to be zero before each launch of a backward pass, which leaves them at zero. It writes all others
    /// before it reads them, so they may hold anything.
    pub const BACKWARD_ZEROS: usize = Self::COUNTER_BYTES;

    /// CTAs that may share keys in a launch: more than any GPU has multiprocessors.
    const SHARING_CTAS: usize = 256;

    /// Where they begin.
    pub(crate) const SEMAPHORES_AT: usize = Self::COUNTER_BYTES;

    /// Where the parts of shared tiles begin: `CTA_PARTS` a CTA, or one a unit if keys are cut at fixed places. Each
    /// has BLOCK_M rows of the tiling's head size of values and `PART_SUMS` numbers a row, in fp32.
    pub(crate) const PARTS_AT: usize = Self::SEMAPHORES_AT + 4 * SEMAPHORES;

    const fn with_parts(parts: usize, part: usize) -> Self {
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
            Schedule::SharedKeys => step.parts_of(&Sides::from(problem)),
            Schedule::ClusterTile => step.parts_of_clusters(&Sides::from(problem)),
            _ => Self::default(),
        };
        let bytes = steps.iter().map(|step| match step.share {
            Share::All => needed(step).bytes,
            _ => RunScratch::of(problem.batch()).bytes,
        });
        Scratch {
            bytes: bytes.max().unwrap_or(0),
        }
    }

    /// The workspace that serves every plan whose kernels draw tiles.
    pub(crate) const fn counter() -> Self {
        Scratch {
            bytes: Self::COUNTER_BYTES,
        }
    }

    /// Scratch memory for `parts` parts of split tiles. Each has BLOCK_M rows of the tiling's head size of values, and `SPLIT_PART_SUMS`
    /// numbers a row.
    fn with_split_tiles(parts: usize, image: &Image) -> Self {
        Self::with_parts(parts, image.tiling.part_bytes(SPLIT_PART_SUMS))
    }

    /// The workspace that serves every plan for kernels that share keys evenly; a test holds the catalog against it.
    pub(crate) const fn of_even_splits() -> Self {
        let part = 64 * (128 + PART_SUMS) * size_of::<f32>();
        Self::with_parts(CTA_PARTS * Self::SHARING_CTAS, part)
    }

    /// The workspace that serves every plan for the device that does not cut keys at fixed places.
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
    /// A launch of an image as the planner has it.
    pub(super) fn new(image: &'static Image, device: &DeviceProfile, estimate_us: f64) -> Self {
        Step {
            role: image.role,
            image,
            multiprocessors: device.multiprocessors.max(1),
            ctas_per_multiprocessor: occupancy(image, device),
            alone_bytes: alone_bytes(image, device),
            estimate_us,
            share: Share::All,
            settings: Settings::default(),
            clustered_ctas: None,
        }
    }

    /// Threads of a CTA.
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
            _ => resident,
        }
    }

    /// The launch for a call.
    ///
    /// # Errors
    /// [`Error::Grid`] if it would have more tiles, or units of keys to be shared, than a launch can have.
    pub fn shape(&self, call: &Call) -> Result<LaunchShape> {
        match self.image.schedule {
            _ if self.role == Role::KeyRuns => Ok(self.shape_of_key_runs(call)),
            Schedule::SharedKeys => self.shape_of_shared_keys(call),
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
        let side_by_side = sides.side_by_side(self.resident());
        let of_a_head = (units / side_by_side).min(u64::from(self.resident()) / side_by_side);
        Ok(LaunchShape {
            grid: (of_a_head * side_by_side) as u32,
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
            Splits::Even => CTA_PARTS * self.resident() as usize,
            Splits::EveryKeys(_) => sides.units(self.image) as usize,
        };
        Scratch::with_parts(parts, self.image.tiling.part_bytes(PART_SUMS))
    }

    /// Clusters that the device can hold at once, of kernels whose tiles clusters compute.
    fn clusters_at_once(&self) -> u64 {
        u64::from(match self.clustered_ctas {
            Some(_) => self.resident() / Schedule::CLUSTER,
            None => clusters_at_once(self.multiprocessors),
        })
    }

    /// Clusters that share each of this many tiles: as many as the device can hold at once, where the keys are enough
    /// for all of them. Two instead of one cost more than they save (docs/notebook/decode.md).
    fn clusters_of_tile(&self, sides: &Sides, tiles: u64) -> u64 {
        let blocks = sides.tile_units(self.image.tiling.block_n);
        // With a block of keys for each CTA, and no more than the kernel can share out.
        match blocks / u64::from(Schedule::CLUSTER) {
            0..3 => 1,
            _ if blocks > MAX_QUOTIENT => 1,
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
                tiling.part_bytes(PART_SUMS),
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
        // Tile numbers that are computed at the same time.
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
        // The numbers that CTAs take one after the other.
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
                _ if self.share != Share::All => RunScratch::of(call.batch()).bytes,
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
    if image.schedule == Schedule::SharedKeys {
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
            // Kernels that pack rows divide the number of all heads, and rows from any head of a group on.
            let divided = match packs_rows(image) {
                true => heads.saturating_mul(rows_of_query).saturating_add(block_m),
                false => rows_of_query,
            };
            (of_a_head, if_countable(rows, divided, tiles))
        }
        _ => (of_a_head, tiles),
    }
}

#[cfg(test)]
impl Step {
    /// The capacity of an image on this many multiprocessors, each with one CTA, as the planner does without
    /// measurements.
    pub(super) fn of(image: &'static Image, multiprocessors: u32) -> Step {
        Step {
            role: image.role,
            image,
            multiprocessors,
            ctas_per_multiprocessor: 1,
            alone_bytes: None,
            estimate_us: 0.0,
            share: Share::All,
            settings: Settings::default(),
            clustered_ctas: None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
