//! How fast each kernel is, for choosing among those that apply: data, one table for each kind of GPU.

mod fit;
mod scaled;
mod text;
mod user;
mod whole_tiles;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use warptile_kernels::abi::{MAX_QUOTIENT, PART_SUMS};
use warptile_kernels::{Family, Features, Image, Schedule};

use crate::plan::shared_keys::Sides;
use crate::plan::step::clusters_at_once;
use crate::plan::{
    DeviceProfile, Numbered, PackedSpeed, Settings, TileKeys, is_for_parts, packs_rows, rest_keys,
    splits_of, splits_tiles,
};
use crate::spec::Problem;

pub use fit::Timed;
pub(in crate::plan) use scaled::of_tensors;

/// The measured rates of kernels on one kind of GPU.
///
/// As text, a line each; `#` starts a comment:
///
/// - optionally, as the first line, `like NAME`: the lines of the embedded table of that GPU; later lines replace its lines about the
///   same thing,
/// - `device NAME`, `multiprocessors COUNT`, `bandwidth TB/s`, `launch MICROSECONDS`, and `driver NAME` where a measurement holds for
///   one driver only,
/// - `kernel NAME TFLOP/s TILE_END` for each kernel that was measured on this GPU,
/// - `pairs NAME TIMES` and `groups NAME TIMES` for each of these that also has images of these variants: how many
///   times as fast their tiles are,
/// - `modelled NAME TFLOP/s TILE_END` for each whose rates are those of another GPU, scaled,
/// - `choice NAME [SETTING...] PROBLEM` for each problem whose kernel, and settings of its launch, were chosen by trials
///   ([`Problem::line`], [`Settings`]).
///
/// It prints and parses.
///
/// ```
/// use warptile::plan::Rates;
///
/// let rates: Rates = "device My GPU\nmultiprocessors 80\nbandwidth 0.9\nlaunch 3\nkernel mma_d64_64x64_w4_s2 80 2.5".parse()?;
/// assert_eq!(rates.device(), "My GPU");
/// assert!("kernel x fast 1".parse::<Rates>().is_err());
/// # Ok::<(), warptile::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Rates {
    device: String,
    driver: Option<String>,
    multiprocessors: u32,
    bandwidth: f64,
    launch_us: f64,
    kernels: Vec<Rate>,
    variants: Vec<VariantSpeed>,
    features: Vec<FeatureCost>,
    /// By the problem's line.
    choices: BTreeMap<String, Chosen>,
}

/// One kernel's line.
#[derive(Debug, Clone, PartialEq)]
struct Rate {
    kernel: String,
    speed: Speed,
    /// True if these are scaled rates of another GPU.
    modelled: bool,
}

/// How much faster the tiles of a kernel's images of a variant are than those of its plain ones.
#[derive(Debug, Clone, PartialEq)]
struct VariantSpeed {
    schedule: Schedule,
    kernel: String,
    times: f64,
}

/// Variants that differ in their schedule, by the words of tables.
const PRICED_VARIANTS: [(&str, Schedule); 2] = [
    ("pairs", Schedule::Pairs),
    ("groups", Schedule::PersistentGroups),
];

/// The numbers from which the time of a kernel is estimated.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Speed {
    /// TFLOP/s of the whole device on long unmasked sequences.
    tflops: f64,
    /// The cost of the beginning and end of a tile, in blocks of keys.
    tile_end: f64,
    /// Microseconds that a launch takes longer than those of other kernels, however much there is to do.
    start_us: f64,
}

/// How much longer a family's tiles take with a feature that its kernels' rates were measured without.
#[derive(Debug, Clone, Copy, PartialEq)]
struct FeatureCost {
    family: Family,
    /// One of `Scoring::features`; with a value, it is the price for images that take this value alone.
    word: &'static str,
    feature: Features,
    times: f64,
}

/// Columns of keys and values of the narrowest tiles that the costs of features were measured with.
const MEASURED_COLUMNS: f64 = 128.0;

/// The choice of trials for a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) kernel: String,
    pub(crate) settings: Settings,
}

/// The reliability of a kernel's rates on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// They were measured on this kind of GPU.
    Measured,
    /// They are those of another GPU: the order of kernels is expected to be the same.
    Modelled,
    /// There are none. The kernel runs only if it is asked for, or if no kernel with rates applies.
    Unknown,
}

/// The tables of the GPUs that were measured, as text.
const TABLES: [&str; 2] = [
    include_str!("../../rates/nvidia-h200.txt"),
    include_str!("../../rates/nvidia-h100.txt"),
];

/// The embedded tables, parsed.
static EMBEDDED: LazyLock<Vec<Rates>> = LazyLock::new(|| {
    // A test parses each of them.
    { TABLES.iter() }
        .filter_map(|text| text.parse().ok())
        .collect()
});

impl Rates {
    /// The embedded table of the device; of a GPU that was not measured, the H200's: only ratios matter, and the same order of
    /// kernels is expected.
    pub fn embedded(device: &DeviceProfile) -> &'static Rates {
        let tables = &*EMBEDDED;
        tables
            .iter()
            .find(|rates| rates.device == device.name)
            .unwrap_or(&tables[0])
    }

    /// The rates by which the time of a kernel is expected that these have chosen: the H200's, where they stand for another GPU's, are scaled by
    /// data sheets.
    pub(crate) fn expecting(&self, device: &DeviceProfile) -> &Rates {
        let stand_for_others = self.device != device.name && std::ptr::eq(self, &EMBEDDED[0]);
        let scaled = stand_for_others.then(|| scaled::of(device)).flatten();
        scaled.unwrap_or(self)
    }

    /// The GPU that was measured.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The driver that the measurement holds for, such as `CUDA 13.0`; `None` for the embedded tables.
    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// The speed at which a plain kernel reads the GPU's memory, in TB/s.
    pub fn bandwidth(&self) -> f64 {
        self.bandwidth
    }

    /// Microseconds that a launch takes, however little there is to do.
    pub(crate) const fn launch_us(&self) -> f64 {
        self.launch_us
    }

    /// The reliability of a kernel's rates on a GPU.
    pub fn standing(&self, device: &DeviceProfile, kernel: &str) -> Standing {
        match self.rate(kernel) {
            None => Standing::Unknown,
            Some(rate) if rate.modelled || self.device != device.name => Standing::Modelled,
            Some(_) => Standing::Measured,
        }
    }

    /// How many kernels were measured, on the GPU that these are the rates of.
    pub fn measured_kernels(&self) -> usize {
        self.kernels.iter().filter(|rate| !rate.modelled).count()
    }

    /// How many problems have a kernel of their own.
    pub fn chosen_problems(&self) -> usize {
        self.choices.len()
    }

    /// Gives a problem a kernel and settings of its own, or with `None` takes them away. A problem that cuts keys at fixed places never has
    /// one: its kernel must not depend on lengths.
    pub fn choose(&mut self, problem: &Problem, chosen: Option<(&str, Settings)>) {
        let line = problem.line();
        match chosen {
            Some((kernel, settings)) if problem.splits().keys().is_none() => {
                let kernel = kernel.to_owned();
                self.choices.insert(line, Chosen { kernel, settings });
            }
            _ => {
                self.choices.remove(&line);
            }
        }
    }

    /// Takes over the choices for problems that other rates of the same GPU and driver have.
    pub fn keep_choices(&mut self, of: &Rates) {
        if (&self.device, &self.driver) == (&of.device, &of.driver) {
            self.choices.clone_from(&of.choices);
        }
    }

    /// The choice for a problem on the whole GPU that was measured.
    pub(crate) fn chosen(&self, problem: &Problem, device: &DeviceProfile) -> Option<&Chosen> {
        let applies = !self.choices.is_empty()
            && self.multiprocessors == device.multiprocessors
            && self.device == device.name
            && problem.splits().keys().is_none();
        applies.then(|| self.choices.get(&problem.line())).flatten()
    }

    fn rate(&self, kernel: &str) -> Option<&Rate> {
        self.kernels.iter().find(|rate| rate.kernel == kernel)
    }

    /// How many times as fast an image's tiles are as those of the kernel's plain one; `None` of a variant that was not measured.
    fn variant_speed(&self, image: &Image) -> Option<f64> {
        if PRICED_VARIANTS.iter().all(|one| one.1 != image.schedule) {
            return Some(1.0);
        }
        let found = { self.variants.iter() }
            .find(|one| one.schedule == image.schedule && one.kernel == image.kernel);
        found.map(|one| one.times)
    }

    /// Returns true if it is known how fast the image is, if it is one of a variant.
    pub(crate) fn has_variant(&self, image: &Image) -> bool {
        self.variant_speed(image).is_some()
    }

    /// Expected GPU time of a forward image on `problem`, in microseconds.
    ///
    /// The slowest multiprocessor decides. It works through its tiles of query rows, each against the blocks of keys
    /// it can see, and pays for the end of each. Where every tile is a CTA of its own, or all are equally long, some
    /// multiprocessors have one tile more than others; drawn tiles of different lengths even out, but not where all
    /// begin at once. All take no less than the longest. While a multiprocessor holds fewer CTAs than it could, it
    /// runs slower by the share of latency left unhidden. So it does while warps of CTAs have no rows: that is why
    /// few queries are not for tiles of many rows.
    ///
    /// Where CTAs share the keys evenly, all have as many blocks, and each pays for the ends of its tiles and of one more.
    pub(crate) fn estimate_us(
        &self,
        problem: &Problem,
        image: &Image,
        device: &DeviceProfile,
        ctas_per_multiprocessor: u32,
    ) -> f64 {
        // Among kernels that were not measured, the fewest tiles are as good a guess as any.
        let speed = self.rate(image.kernel).map_or(
            Speed {
                tflops: 1.0,
                tile_end: 1.0,
                start_us: 0.0,
            },
            |rate| rate.speed,
        );
        self.estimate_at(speed, problem, image, device, ctas_per_multiprocessor)
    }

    /// The estimate for a kernel of another speed.
    fn estimate_at(
        &self,
        speed: Speed,
        problem: &Problem,
        image: &Image,
        device: &DeviceProfile,
        ctas_per_multiprocessor: u32,
    ) -> f64 {
        let Speed {
            tflops, tile_end, ..
        } = speed;
        let launch_us = self.launch_us + speed.start_us;
        let (block_m, block_n) = (
            f64::from(image.tiling.block_m),
            f64::from(image.tiling.block_n),
        );
        let columns: usize = image.tiling.dims().iter().sum();
        let block_flops = 2.0 * block_m * block_n * columns as f64;
        // FLOP per microsecond.
        let rate_per_multiprocessor = tflops * 1e6 / f64::from(self.multiprocessors);
        let needs = problem.needs();
        // Each is something more to do with a score, however narrow the tile is; it was measured with head sizes of 64 and more.
        let of_a_score = (MEASURED_COLUMNS / columns as f64).max(1.0);
        let alone = match image.boxed() {
            Some(_) => Some("aligned"),
            None => image.hides_keys_alone().then_some("padding"),
        };
        let more: f64 = { self.features.iter() }
            .filter(|cost| cost.family == image.family && needs.contains(cost.feature))
            .filter(|cost| cost.word.split_once('=').map(|word| word.1) == alone)
            .map(|cost| (cost.times - 1.0) * of_a_score)
            .sum();
        let times = (1.0 + more) / self.variant_speed(image).unwrap_or(1.0);
        let block_us = times * block_flops / rate_per_multiprocessor;
        let (query_len, key_len) = problem.typical_lengths();
        let mask = problem.mask();
        // Kernels are compared by the same estimate for both schedules.
        if matches!(image.schedule, Schedule::SharedKeys | Schedule::ClusterTile) {
            let widest = mask.widest(query_len, key_len);
            let seen = key_len.min(widest + query_len.saturating_sub(1));
            let of_tile = (seen as f64 / block_n).ceil().max(1.0);
            let tiles = problem.typical_group_tiles(image.tiling.block_m);
            if image.schedule == Schedule::ClusterTile {
                return launch_us
                    + clusters_us(image, device, [tiles, of_tile], [block_us, tile_end]);
            }
            let resident = device.multiprocessors.max(1) * ctas_per_multiprocessor;
            let heads = Sides::from(problem).side_by_side(resident) as u32;
            let ctas = f64::from(resident / heads * heads);
            let shared_us = shared_tiles_us(tiles, of_tile, ctas)
                + sum_us(image, (ctas / tiles).min(of_tile), ctas_per_multiprocessor);
            let tiles = tiles / f64::from(device.multiprocessors.max(1));
            let blocks = tiles * of_tile + (tiles + 1.0) * tile_end;
            return launch_us + blocks * block_us + shared_us;
        }
        let keys = TileKeys::of(
            mask,
            [query_len, key_len],
            problem.heads().group_size(),
            image,
        );
        // The planner knows how many blocks a list has, or nothing.
        let listed = problem.scoring().blocks.and_then(|lists| {
            let blocks = lists.blocks_of_a_row()?;
            // A tile of several blocks of queries sees what any of them does.
            let lists_of_a_tile = (block_m / lists.queries() as f64).max(1.0);
            Some((blocks * lists.keys()) as f64 * lists_of_a_tile)
        });
        let keys = listed.map_or(keys, |listed| keys.at_most(listed.max(block_n)));
        let uneven = !mask.hides_nothing() || problem.is_uneven();
        let blocks = keys.average / block_n;
        let blocks = if uneven { blocks } else { blocks.ceil() };
        let tile = blocks + tile_end;
        let longest = keys.longest / block_n;

        let numbered = Numbered::of(image, problem.heads());
        let ctas = numbered.ctas as f64;
        let tiles = numbered.typical(problem);
        let multiprocessors = u64::from(device.multiprocessors.max(1));
        let resident = multiprocessors * u64::from(ctas_per_multiprocessor);
        let splits = match splits_tiles(image) {
            true => splits_of(tiles.ceil() as u64, resident, &keys, image, None),
            false => 1,
        };
        let whole_tiles = match splits {
            1 => self.whole_tiles_us(problem, image, device, tiles / resident as f64),
            _ => None,
        };
        let reading = match (whole_tiles, reads_once(problem, image)) {
            (Some(reading), _) => reading,
            // The work after a CTA's last key does not overlap with reading.
            (None, Some(of_bandwidth)) => {
                let ends = rest_keys(image, tiles.ceil() as u64, resident, splits, 0.0);
                self.reading_us(problem, of_bandwidth) + ends / block_n * block_us
            }
            (None, None) => self.reading_us(problem, 0.7),
        };
        if splits > 1 {
            // A multiprocessor that holds several CTAs works through the tiles of all.
            let rest = tiles.ceil() as u64 % resident;
            let whole = (tiles - rest as f64).max(0.0) / multiprocessors as f64 * tile;
            if packs_rows(image) {
                // Fewer rows than a warp has, and many more, were not measured: rather others. Nor were rows of one warpgroup where images
                // for more of them are for parts alone.
                let for_parts = is_for_parts(image);
                let known = match query_len * problem.heads().group_size() {
                    ..16 => 1.2,
                    16..=64 if for_parts => 1.05,
                    16..=512 => 1.0,
                    _ if for_parts => 1.5,
                    _ => 1.35,
                };
                let of_bandwidth = reads_once(problem, image).unwrap_or(1.0);
                let speed = PackedSpeed {
                    times,
                    bytes: self.bandwidth * 1e6 * of_bandwidth,
                    multiprocessors: f64::from(self.multiprocessors),
                };
                let share = 1.0 - rest as f64 / tiles;
                let whole =
                    (whole * block_us).max(share.max(0.0) * self.reading_us(problem, of_bandwidth));
                let tiles = tiles.ceil() as u64;
                let rest = speed.rest_us(image, [tiles, resident, splits], &keys);
                return launch_us + known * (whole + rest);
            }
            let rest = rest_keys(image, rest, resident, splits, keys.longest) / block_n
                * f64::from(ctas_per_multiprocessor);
            // When all multiprocessors compute parts, one warpgroup takes 11.4 ns a key, and tiles of heads that share keys do not read
            // them side by side (docs/notebook/wgmma.md, "More warps add up").
            let of_rest = match image.schedule.has_group_tiles() {
                true => 1.3,
                false if problem.heads().group_size() > 1 => 1.2,
                false => 1.0,
            };
            let rest = of_rest * rest;
            let times = if mask.hides_nothing() {
                1.0
            } else {
                SERVING_TIMES
            };
            return launch_us + ((times * whole + rest) * block_us).max(reading);
        }
        let per_multiprocessor = tiles * ctas / f64::from(device.multiprocessors.max(1));
        let turns = per_multiprocessor.ceil().max(1.0);
        let at_once = turns <= f64::from(ctas_per_multiprocessor);
        let shortest = (2.0 * blocks - longest).max(0.0);
        let whole = match image.schedule {
            // Longest first, and nothing is left to be drawn: the multiprocessor with the longest tile has the longest of each round.
            schedule if schedule != Schedule::OneTile && uneven && at_once => {
                let rounds = (0..turns as u64).map(|round| round as f64 / per_multiprocessor);
                rounds
                    .map(|passed| longest + (shortest - longest) * passed + tile_end)
                    .sum()
            }
            // The shortest are drawn last, and some CTAs find none. Of random calls this is on average 1.4% from what a simulation of the
            // draws gives.
            schedule if schedule.is_persistent() && !mask.hides_nothing() => {
                let of_each = f64::from(ctas_per_multiprocessor);
                let idle = (per_multiprocessor / of_each).ceil() * of_each - per_multiprocessor;
                per_multiprocessor * tile + idle * (shortest + tile_end)
            }
            schedule if schedule.is_persistent() && uneven => per_multiprocessor * tile,
            _ => turns * tile,
        };
        let blocks = whole.max(longest + tile_end);
        let unhidden = match whole_tiles {
            // Reading hides what computing waits for, and of a tile no more rows than these are computed.
            Some(_) => (whole_tiles::ROWS as f64 / block_m).min(1.0),
            None => {
                let held =
                    turns.min(f64::from(ctas_per_multiprocessor)) * busy_warps(problem, image);
                (f64::from(ctas_per_multiprocessor) / held).sqrt()
            }
        };
        let known = match is_for_parts(image) {
            true => WHOLE_PARTS_TIMES,
            false => 1.0,
        };
        launch_us + known * (blocks * block_us * unhidden).max(reading)
    }
}

/// Factor of whole tiles in images that were measured only where all tiles are split: rather others.
const WHOLE_PARTS_TIMES: f64 = 2.0;

/// How much longer whole tiles take in an image that can split the last ones, which leaves fewer registers: 1.01 to 1.07 on an H200
/// (docs/notebook/wgmma.md, "What the last draws cost").
const SERVING_TIMES: f64 = 1.03;

/// The share of a tile's warps that have rows where each has rows of its own, those of all heads that share a key/value head; 1 elsewhere.
fn busy_warps(problem: &Problem, image: &Image) -> f64 {
    if image.schedule != Schedule::OneGroupTile {
        return 1.0;
    }
    let warps = image.tiling.warps.max(1) as usize;
    let warp_rows = (image.tiling.block_m as usize / warps).max(1);
    let rows = problem.typical_lengths().0 * problem.heads().group_size();
    rows.div_ceil(warp_rows).clamp(1, warps) as f64 / warps as f64
}

/// The time of the CTA with the most blocks where clusters compute tiles, as `Step::clusters_of_tile` has it, in microseconds. A device
/// holds fewer clusters at once than its multiprocessors have room for, and a multiprocessor without one has nothing to do.
fn clusters_us(
    image: &Image,
    device: &DeviceProfile,
    [tiles, blocks]: [f64; 2],
    [block_us, tile_end]: [f64; 2],
) -> f64 {
    /// The sum over the clusters of a tile, of which each CTA has a share.
    const SUM_US: f64 = 2.0;
    const SUMMED_BYTES_A_US: f64 = 17e3;
    /// Tiles of so few rows are read, not computed, and rates are those of all multiprocessors at once.
    const READ_ROWS: u32 = 16;
    const READ_TIMES: f64 = 0.85;
    let resident = f64::from(clusters_at_once(device.multiprocessors)).max(1.0);
    let ctas = f64::from(Schedule::CLUSTER);
    let most = match (blocks / ctas).floor() {
        few if few < 3.0 => 1.0,
        _ if blocks > MAX_QUOTIENT as f64 => 1.0,
        most => most,
    };
    let of_tile = (resident / tiles.max(1.0)).floor().clamp(1.0, most);
    let turns = (tiles * of_tile / resident).ceil().max(1.0);
    let part_bytes = image.tiling.part_bytes(PART_SUMS) as f64 / ctas;
    let sum_us = match of_tile > 1.0 {
        true => SUM_US + of_tile * part_bytes / SUMMED_BYTES_A_US,
        false => 0.0,
    };
    let times = match image.tiling.block_m <= READ_ROWS {
        true => READ_TIMES,
        false => 1.0,
    };
    turns * ((blocks / (ctas * of_tile)).ceil() + tile_end) * block_us * times + sum_us
}

/// How much longer than its rates say a kernel takes whose CTAs share keys, where the last CTA of a tile adds up the parts of many. Each
/// thread has four columns of a row at a time and asks for eight parts at once, so that there are as many rounds as that takes. `usual` are
/// those of the problems that rates are fitted to (docs/notebook/wgmma.md, 2026-11-28).
fn sum_us(image: &Image, parts: f64, ctas_per_multiprocessor: u32) -> f64 {
    let usual = 4.0 / f64::from(ctas_per_multiprocessor);
    const PARTS_AT_ONCE: f64 = 8.0;
    // Kernels with larger heads add up parts in groups of as many.
    const GROUP: f64 = 16.0;
    // Other CTAs of a multiprocessor slow one down.
    let round_us = 0.2 + 0.4 * f64::from(ctas_per_multiprocessor);
    let tiling = image.tiling;
    let columns = (tiling.part_bytes(0) / size_of::<f32>()) as f64;
    let turns = (columns / f64::from(4 * 32 * tiling.warps)).ceil();
    let rounds = |parts: f64| (parts / PARTS_AT_ONCE).ceil();
    let rounds = match tiling.head_dim > 256 && parts >= 2.0 * GROUP {
        true => rounds(GROUP) + rounds(parts / GROUP),
        false => rounds(parts),
    };
    match parts > 1.0 {
        true => (turns * rounds - usual).max(0.0) * round_us,
        false => 0.0,
    }
}

/// How much longer it takes where CTAs have parts of two tiles each, although they have less than one in all.
fn shared_tiles_us(tiles: f64, blocks: f64, ctas: f64) -> f64 {
    const SECOND_US: f64 = 2.5;
    let each = (tiles * blocks / ctas).ceil().max(1.0);
    if each < blocks && blocks % each != 0.0 {
        SECOND_US
    } else {
        0.0
    }
}

/// The share of the memory's speed at which each key is read once, by the copy engine: where the rows of a group are
/// one tile, whose keys can be split (docs/notebook/wgmma.md, 2026-11-23). Where sequences may differ in length, CTAs
/// with short ones have nothing to do for a while, but the others then read faster: what that costs is an estimate.
fn reads_once(problem: &Problem, image: &Image) -> Option<f64> {
    let one_length = problem.batch() == 1 || !problem.is_uneven();
    // Tiles that read the same keys do not stay side by side.
    let rows = problem.typical_lengths().0 * problem.heads().group_size();
    let alone = packs_rows(image) || rows <= image.tiling.block_m as usize;
    let of_one_length = match (one_length, alone) {
        (true, true) => 0.96,
        (true, false) => 0.82,
        _ => 0.85,
    };
    (splits_tiles(image) && image.schedule.has_group_tiles()).then_some(
        match whole_tiles::has_its_columns(problem, image) {
            true => of_one_length,
            false => of_one_length * whole_tiles::OF_SHORT_ROWS,
        },
    )
}

/// The most keys of a key/value head that lists of blocks name. `None` without lists, and if the number of blocks of a row is unknown.
fn listed_keys(problem: &Problem) -> Option<usize> {
    let lists = problem.scoring().blocks?;
    let of_a_row = lists.blocks_of_a_row()?.saturating_mul(lists.keys());
    let rows = problem.typical_lengths().0.div_ceil(lists.queries().max(1));
    let lists_of_a_group = lists.count(1, problem.heads().group_size());
    Some(
        of_a_row
            .saturating_mul(rows)
            .saturating_mul(lists_of_a_group),
    )
}

impl Rates {
    /// The time that kernels whose CTAs have tiles of their own take to read all keys and values once, at a share of
    /// the memory's speed. Most were made to compute, and get about 0.7 of it (an estimate).
    fn reading_us(&self, problem: &Problem, of_bandwidth: f64) -> f64 {
        let (query_len, key_len) = problem.typical_lengths();
        let seen = key_len.min(problem.mask().widest(query_len, key_len) + query_len);
        let seen = seen.min(listed_keys(problem).unwrap_or(key_len));
        let rows = problem.typical_sequences() * (problem.heads().key_value * seen) as f64;
        rows * problem.key_value_bytes() as f64 / (of_bandwidth * self.bandwidth * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_tables_parse() {
        for text in TABLES {
            let rates: Rates = text.parse().unwrap();
            assert!(EMBEDDED.contains(&rates));
            assert_eq!(rates.measured_kernels(), rates.kernels.len());
            for rate in &rates.kernels {
                assert!(
                    warptile_kernels::kernels().any(|kernel| kernel.name == rate.kernel),
                    "{} is measured but not in the catalog",
                    rate.kernel
                );
            }
        }
    }

    #[test]
    fn a_gpu_has_its_own_table_by_the_name_that_the_driver_gives() {
        let h200 = DeviceProfile::h200();
        let named = |name: &str| DeviceProfile {
            name: name.to_owned(),
            ..h200.clone()
        };
        for (name, of) in [
            ("NVIDIA H200", "NVIDIA H200"),
            ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
            ("NVIDIA H100 PCIe", "NVIDIA H200"),
        ] {
            let (device, kernel) = (named(name), "decode_d128_16x128_w8_s2");
            let rates = Rates::embedded(&device);
            assert_eq!(rates.device(), of);
            let measured = rates.standing(&device, kernel) == Standing::Measured;
            assert_eq!(measured, name == of, "{name}");
        }
    }

    fn problem(len: usize, splits: crate::spec::Splits) -> Problem {
        let layout = crate::spec::Layout::bshd([2, len, 8, 128]);
        let call =
            crate::spec::Call::builder(&layout, &layout, &layout, crate::spec::ElementType::F16);
        call.splits(splits).build().unwrap().problem()
    }

    #[test]
    fn features_and_starts_cost_what_the_table_says() {
        let device = DeviceProfile::h200();
        let layout = crate::spec::Layout::bshd([1, 4096, 8, 64]);
        let call =
            crate::spec::Call::builder(&layout, &layout, &layout, crate::spec::ElementType::F16);
        let plain = call.clone().build().unwrap().problem();
        let mut alibi = crate::spec::Scoring::new();
        alibi.alibi = Some(crate::spec::AlibiShape::PerHead);
        let alibi = call.scoring(alibi).build().unwrap().problem();
        let kernel = "wmma_d64_64x64_w8_s2";
        let image = { warptile_kernels::catalog().iter() }
            .find(|image| image.kernel == kernel)
            .unwrap();
        let estimate = |line: &str, problem: &Problem| {
            let head = "device X\nmultiprocessors 132\nbandwidth 4\nlaunch 3\n";
            let rates: Rates = format!("{head}{line}").parse().unwrap();
            assert_eq!(rates.to_string().parse::<Rates>().unwrap(), rates);
            rates.estimate_us(problem, image, &device, 2) - 3.0
        };
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        let rate = format!("kernel {kernel} 200 2");
        let tiles = estimate(&rate, &plain);
        close(estimate(&format!("{rate} 7"), &plain), tiles + 7.0);
        let with_feature = format!("{rate}\nfeature wmma alibi 1.5\nfeature mma alibi 9");
        close(estimate(&with_feature, &alibi), 1.5 * tiles);
        close(estimate(&with_feature, &plain), tiles);
    }

    #[test]
    fn tiles_that_begin_at_once_do_not_even_out() {
        let device = DeviceProfile::h200();
        let image = { warptile_kernels::catalog().iter() }
            .find(|image| {
                image.kernel == "mma_d64_128x64_w4_s2" && image.schedule.has_group_tiles()
            })
            .unwrap();
        let head = "device X\nmultiprocessors 132\nbandwidth 4\nlaunch 3\n";
        let rates: Rates = format!("{head}kernel {} 200 2", image.kernel)
            .parse()
            .unwrap();
        let layout = crate::spec::Layout::bshd([2, 960, 16, 64]);
        let call =
            crate::spec::Call::builder(&layout, &layout, &layout, crate::spec::ElementType::F16);
        let mut scoring = crate::spec::Scoring::new();
        scoring.mask = crate::spec::Mask::causal();
        let causal = call.scoring(scoring).build().unwrap().problem();
        // 8 tiles of a head, 256 in all, two at once on each multiprocessor. They load 544.5 keys on average and 15 blocks at most: that
        // with the longest one has it and the one 132 later, and pays for two ends.
        let shortest = 2.0 * 544.5 / 64.0 - 15.0;
        let later = 15.0 - (15.0 - shortest) * 132.0 / 256.0;
        let block_us = 4.0 * 128.0 * 64.0 * 64.0 / (200e6 / 132.0);
        let expected = (15.0 + later + 4.0) * block_us;
        let estimate = rates.estimate_us(&causal, image, &device, 2) - 3.0;
        assert!(
            (estimate / expected - 1.0).abs() < 1e-9,
            "{estimate} {expected}"
        );
    }

    #[test]
    fn a_choice_holds_for_its_problem_on_its_gpu() {
        use crate::considered::Reason;
        use crate::plan::{Choice, Planner};
        use crate::spec::Splits;
        let h200 = DeviceProfile::h200();
        let (kernel, other) = ("mma_d128_64x64_w4_s2", "wgmma_d128_128x128_w12_s2");
        let settings = Settings {
            ctas: Some(1),
            ..Settings::default()
        };
        let usual = problem(512, Splits::Even);
        let mut rates = Rates::embedded(&h200).clone();
        rates.choose(&usual, Some((kernel, settings)));
        let plan = |rates: &Rates, device: &DeviceProfile, problem: Problem| {
            let plan = Planner::new(device)
                .rates(rates)
                .plan(problem, &Choice::Best);
            plan.unwrap()
        };
        let tuned = plan(&rates, &h200, usual);
        assert_eq!(tuned.kernel_name(), kernel);
        assert!(tuned.basis().unwrap().tuned);
        assert_eq!(tuned.steps()[0].settings, settings);
        assert_eq!(tuned.steps()[0].ctas_per_multiprocessor, 1);
        assert!(
            { tuned.considered().iter() }
                .any(|one| one.kernel == other && one.reason == Reason::Tuned)
        );
        // Another problem, another size of the GPU, another GPU, and one whose kernel must not depend on lengths, also if a file says so.
        let cut = problem(512, Splits::EveryKeys(256));
        let of_file = format!("{rates}choice {kernel} {}", cut.line());
        let of_file: Rates = of_file.parse().unwrap();
        let mut other_gpu = h200.clone();
        "NVIDIA H100".clone_into(&mut other_gpu.name);
        for (device, problem) in [
            (h200.clone(), problem(1024, Splits::Even)),
            (h200.clone().with_multiprocessors(66), usual),
            (other_gpu, usual),
            (h200.clone(), cut),
        ] {
            let plan = plan(&of_file, &device, problem);
            assert!(!plan.basis().unwrap().tuned, "{plan}");
            assert!(plan.steps()[0].settings.is_default());
        }
        rates.choose(
            &problem(512, Splits::EveryKeys(256)),
            Some((kernel, settings)),
        );
        let built_in = Rates::embedded(&h200).chosen_problems();
        assert_eq!(rates.chosen_problems(), built_in + 1);
        // A kernel that can't compute the problem is passed over.
        rates.choose(&usual, Some(("mma_d64_64x64_w4_s2", settings)));
        assert_ne!(
            plan(&rates, &h200, usual).kernel_name(),
            "mma_d64_64x64_w4_s2"
        );
        rates.choose(&usual, None);
        assert_eq!(rates, *Rates::embedded(&h200));
    }

    #[test]
    fn choices_are_kept_for_the_same_gpu_and_driver_only() {
        let rates = |device: &str, driver: &str| -> Rates {
            let text = "multiprocessors 132\nbandwidth 4\nlaunch 3";
            format!("device {device}\n{driver}\n{text}")
                .parse()
                .unwrap()
        };
        let mut chosen = rates("X", "driver CUDA 13.0");
        let usual = problem(512, crate::spec::Splits::Even);
        chosen.choose(&usual, Some(("k", Settings::default())));
        for (device, driver, kept) in [
            ("X", "driver CUDA 13.0", 1),
            ("X", "driver CUDA 13.1", 0),
            ("X", "", 0),
            ("Y", "driver CUDA 13.0", 0),
        ] {
            let mut new = rates(device, driver);
            new.keep_choices(&chosen);
            assert_eq!(new.chosen_problems(), kept, "{device} {driver}");
        }
    }

    /// On a GPU that was not measured every choice is by modelled rates, and no kernel without rates is chosen.
    #[test]
    fn choices_for_other_gpus_are_marked_as_modelled() {
        use crate::plan::{Choice, Planner};
        use crate::spec::Splits;
        let h200 = DeviceProfile::h200();
        let mut a100 = h200.clone();
        "NVIDIA A100".clone_into(&mut a100.name);
        (a100.major, a100.multiprocessors) = (8, 108);
        for len in [64, 512, 4096] {
            let standing = |device: &DeviceProfile| {
                let problem = problem(len, Splits::Even);
                let plan = Planner::new(device).plan(problem, &Choice::Best).unwrap();
                plan.basis().unwrap().standing
            };
            assert_eq!(standing(&a100), Standing::Modelled);
            assert_eq!(standing(&h200), Standing::Measured);
        }
    }
}
