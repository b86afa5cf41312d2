//! The splitting of the keys of the last tiles, those that do not fill all CTAs, and its expected cost.

use warptile_kernels::abi::QUERY_BOX_ROWS;
use warptile_kernels::{Features, Image, Schedule};

use crate::spec::Mask;

/// Returns true if the image computes both whole tiles and tiles whose keys several CTAs share: the variants of `wgmma` that read pages.
pub(crate) fn splits_tiles(image: &Image) -> bool {
    matches!(
        image.schedule,
        Schedule::Persistent | Schedule::PersistentGroups
    ) && image.features.contains(Features::PAGED)
}

/// Returns true if a tile has as many rows of a key/value head as fit, for any number of query heads that share it: `packs_rows` in
/// kernels/forward/wgmma_layout.cuh.
pub(crate) fn packs_rows(image: &Image) -> bool {
    let in_boxes = image.tiling.block_m == 64 && image.tiling.head_dim == 128;
    splits_tiles(image) && image.schedule == Schedule::PersistentGroups && !in_boxes
}

/// Parts of split tiles that a CTA computes, at most: what bounds the workspace.
pub(super) const PARTS_A_CTA: usize = 3;

/// Semaphores of shared tiles: one a CTA, or one for each warpgroup of a tile that is split. Of images that pack rows the second half are
/// words at which CTAs wait (kernels/forward/wgmma_joint_sum.cuh).
pub(super) const SEMAPHORES: usize = 1024;

/// Keys that a tile of query rows loads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileKeys {
    /// On average.
    pub(crate) average: f64,
    /// At most, rounded up to blocks.
    pub(crate) longest: f64,
    /// How many tiles load the same keys, where rows are packed: memory is read once for them.
    pub(crate) tiles: f64,
    /// Rows of all queries of a sequence and their heads.
    rows: f64,
    /// Rows of a warpgroup, in whole warps.
    warpgroup_rows: f64,
}

impl TileKeys {
    /// `group_size` query heads share a key/value head.
    pub(crate) fn of(
        mask: Mask,
        [query_len, key_len]: [usize; 2],
        group_size: usize,
        image: &Image,
    ) -> Self {
        let block_n = f64::from(image.tiling.block_n);
        let rows = f64::from(image.tiling.block_m);
        // Queries of a tile.
        let height = match image.schedule {
            schedule if schedule.has_group_tiles() => (rows / group_size as f64).max(1.0),
            _ => rows,
        };
        let widest = mask.widest(query_len, key_len);
        let visible = mask.visible_pairs(query_len, key_len) as f64 / query_len.max(1) as f64;
        // A tile loads what any of its rows sees. Beside what each sees on average that is half a tile's height of keys where
        // the mask has one edge, and a whole one where it has two.
        let beside = match (mask.left, mask.right) {
            (None, None) => 0.0,
            (Some(_), Some(_)) => height,
            _ => height / 2.0,
        };
        let all = (key_len as f64 / block_n).ceil().max(1.0) * block_n;
        let longest = ((widest as f64 + beside) / block_n).ceil() * block_n;
        let tiles = match packs_rows(image) {
            true => (query_len * group_size) as f64 / rows,
            false => 1.0,
        };
        TileKeys {
            tiles: tiles.ceil().max(1.0),
            rows: (query_len * group_size) as f64,
            warpgroup_rows: (query_len * group_size).clamp(1, 64).next_multiple_of(16) as f64,
            average: (visible + beside).clamp(block_n, all),
            longest: longest.clamp(block_n, all),
        }
    }

    /// How many warpgroups of a tile have rows, where these are packed.
    fn warpgroups(&self, image: &Image) -> u32 {
        let rows = self.rows.min(f64::from(image.tiling.block_m)) as u32;
        rows.div_ceil(QUERY_BOX_ROWS).max(1)
    }

    /// These tiles, if they see no more than this.
    pub(crate) fn at_most(self, keys: f64) -> Self {
        TileKeys {
            average: self.average.min(keys),
            longest: self.longest.min(keys),
            ..self
        }
    }
}

/// Cost of a part of a tile in addition to its keys, in keys: the end of a tile, storing the part in the workspace while no scores of
/// the next tile run, and adding up each of a tile's parts (docs/notebook/wgmma.md).
pub(super) const TILE_END_KEYS: f64 = 200.0;
const PART_KEYS: f64 = 350.0;
const SUM_KEYS: f64 = 20.0;
/// How fast a device computes and reads packed rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackedSpeed {
    /// How much longer a score takes than without options.
    pub(crate) times: f64,
    /// Bytes of a microsecond.
    pub(crate) bytes: f64,
    pub(crate) multiprocessors: f64,
}

impl PackedSpeed {
    /// The speed of the GPUs that have such images, between those of an H100 and an H200. Ranges are chosen by it: their number must not
    /// depend on what is known of a device.
    const USUAL: Self = PackedSpeed {
        times: 1.0,
        bytes: 3.8e6,
        multiprocessors: 132.0,
    };
    /// The first keys and the end of a part in addition to the launch, in microseconds: of tiles of one, two and three warpgroups.
    const ENDS_US: [f64; 3] = [3.5, 4.0, 4.6];
    /// What short blocks of keys save of it.
    const SHORT_BLOCKS_US: f64 = 0.5;
    /// Costs of a sum, in microseconds for each part of a tile and each KB, where the last CTA of a tile adds up all parts.
    const LAST_SUMS: [f64; 2] = [0.25, 1.0 / 28.0];
    /// Those where all CTAs that have a part add up some columns each: of the sum, and for each round of loads, each part, each KB, and
    /// each MB of all parts.
    const JOINT_SUMS: [f64; 5] = [0.3, 0.5, 0.021, 0.019, 0.25];

    /// Microseconds that a tile's rows take for a key, where `at_once` parts are computed. One warpgroup waits for its softmax more often
    /// than two do, or two CTAs of one each; multiprocessors are slower when all compute (fitted to an H200: docs/notebook/wgmma.md, "Less
    /// code that runs once" and "What few queries still lose").
    fn computing_us(self, image: &Image, keys: &TileKeys, at_once: f64) -> f64 {
        let columns: usize = image.tiling.dims().iter().sum();
        let columns = columns as f64;
        let on_each = at_once / self.multiprocessors;
        let of_block = match is_short(image) {
            true => 1.09,
            false => 1.0,
        };
        let of_two = of_block * (35e-6 * columns).max(6.9e-3);
        let of_three = 3.8e-3 + 39e-6 * columns;
        let of_all = 1.0 + 0.16 * on_each;
        self.times
            * match (warpgroups(image), keys.warpgroups(image)) {
                (_, 1) => (3.0e-3 + 17.2e-6 * columns) * (0.94 * on_each.ceil()).max(1.0),
                (3.., 2) => 0.75 * of_three * of_all,
                (3.., _) => of_three * of_all,
                _ => of_two * of_all,
            }
    }

    /// The exponent with which computing and reading a key hide each other. Two warpgroups hold a stage for long: with three stages of 128
    /// keys at head size 128 too few are left for what is on its way.
    fn hiding(image: &Image, keys: &TileKeys) -> f64 {
        let columns: usize = image.tiling.dims().iter().sum();
        match keys.warpgroups(image) > 1 && columns == 256 && image.tiling.block_n > 64 {
            true => 2.5,
            false => 4.0,
        }
    }

    /// Microseconds for the `rest` tiles of an image if each is split.
    pub(crate) fn rest_us(
        self,
        image: &Image,
        [tiles, resident, splits]: [u64; 3],
        keys: &TileKeys,
    ) -> f64 {
        let [columns, value_columns] = image.tiling.dims();
        let parts = tiles % resident * splits;
        let at_once = parts.min(resident) as f64;
        let bytes = ((columns + value_columns) * image.element.size()) as f64;
        let read_us = bytes * at_once / (self.bytes * keys.tiles.min(at_once));
        let compute_us = self.computing_us(image, keys, at_once);
        // One hides the other, except where both have to wait.
        let hiding = Self::hiding(image, keys);
        let key_us = (read_us.powf(hiding) + compute_us.powf(hiding)).powf(hiding.recip());
        let part_kb = keys.warpgroup_rows * (value_columns * size_of::<f32>()) as f64 / 1e3;
        let warpgroups = keys.warpgroups(image);
        let sum_us = match splits {
            1 => 0.0,
            _ if sums_jointly(tiles, resident, splits) => {
                let [of_sum, of_round, of_part, of_kb, of_mb] = Self::JOINT_SUMS;
                let all_mb = (parts * u64::from(warpgroups)) as f64 * part_kb / 1e3;
                let rounds =
                    rounds_of_sum(splits, keys.warpgroup_rows as u64, value_columns as u64);
                of_sum
                    + rounds as f64 * of_round
                    + splits as f64 * of_part
                    + part_kb * of_kb
                    + all_mb * of_mb
            }
            _ => {
                let [of_part, of_kb] = Self::LAST_SUMS;
                splits as f64 * (of_part + part_kb * of_kb)
            }
        };
        let turns = parts.div_ceil(resident) as f64;
        let block_n = f64::from(image.tiling.block_n);
        let part_keys = (keys.longest / splits as f64 / block_n).ceil() * block_n;
        let of_tile = match warpgroups {
            1 => 1,
            _ => self::warpgroups(image),
        };
        let saved_us = match is_short(image) && warpgroups == 2 {
            true => Self::SHORT_BLOCKS_US,
            false => 0.0,
        };
        let end_us = Self::ENDS_US[of_tile.min(3) as usize - 1] - saved_us;
        turns * (part_keys * key_us + end_us) + sum_us
    }
}

/// Returns true for the image of two warpgroups that packs rows of head size 128 with short blocks of keys, of which more stages fit.
fn is_short(image: &Image) -> bool {
    image.tiling.head_dim == 128 && image.tiling.block_n == 64 && warpgroups(image) == 2
}

/// Warpgroups that compute a tile.
fn warpgroups(image: &Image) -> u32 {
    image.tiling.block_m.div_ceil(QUERY_BOX_ROWS)
}

/// Returns true for images that pack rows and were measured only where all tiles are split.
pub(crate) fn is_for_parts(image: &Image) -> bool {
    packs_rows(image) && (is_short(image) || warpgroups(image) > 2)
}

/// The rounds of loads of a joint sum, one after the other, of a warpgroup's rows: as `Deal` in kernels/forward/wgmma_joint_sum.cuh deals
/// the work out to four warps of each who has left a part.
fn rounds_of_sum(parts: u64, rows: u64, columns: u64) -> u64 {
    const WARPS: u64 = 4;
    const AT_ONCE: u64 = 16;
    const MOST_CHUNKS: u64 = 8;
    let warps = WARPS * parts;
    let needed = rows.div_ceil(16) * (columns / 8);
    let mut chunks = 1;
    while chunks * warps < needed {
        chunks *= 2;
    }
    let mut ways = 1;
    while ways < WARPS && parts > AT_ONCE * ways && warps >= 2 * ways * needed {
        ways *= 2;
    }
    let each = chunks.min(MOST_CHUNKS);
    chunks / each * parts.div_ceil(ways).div_ceil(AT_ONCE / each)
}

/// Returns true if all parts of split tiles are computed at once, so that who has left one waits for the others and adds up some columns.
pub(crate) const fn sums_jointly(tiles: u64, resident: u64, splits: u64) -> bool {
    tiles * splits <= resident
}

/// Adding up a part where there is one tile of few rows for all heads of a group: 0.6 us (docs/notebook/wgmma.md, 2026-11-23).
const GROUP_SUM_KEYS: f64 = 70.0;
/// Additional cost of each part when their number is chosen, because few CTAs read a key faster than many: 1 x 8192
/// takes 20.7 us with 8 parts and 22.8 with 12 (the same place).
const GROUP_PART_KEYS: f64 = 50.0;

/// The time of the turns for the `rest` tiles of an image if each is split, in keys of a tile.
pub(crate) fn rest_keys(image: &Image, rest: u64, resident: u64, splits: u64, keys: f64) -> f64 {
    let sum = match image.schedule.has_group_tiles() {
        true => GROUP_SUM_KEYS,
        false => SUM_KEYS,
    };
    let turns = (rest * splits).div_ceil(resident) as f64;
    match splits {
        1 => turns * (keys + TILE_END_KEYS),
        _ => {
            let part = keys / splits as f64 + TILE_END_KEYS + PART_KEYS;
            turns * part + splits as f64 * sum
        }
    }
}

/// Into how many ranges the keys of the tiles are best split that do not fill all CTAs; 1 for none. The number follows from shapes alone:
/// ranges are cut by the lengths that the kernel finds. `wanted` takes its place as far as the workspace reaches and the keys suffice.
pub(crate) fn splits_of(
    tiles: u64,
    resident: u64,
    keys: &TileKeys,
    image: &Image,
    wanted: Option<u32>,
) -> u64 {
    let rest = tiles % resident;
    let warpgroups = u64::from(image.tiling.block_m.div_ceil(QUERY_BOX_ROWS));
    let semaphores = SEMAPHORES / if packs_rows(image) { 2 } else { 1 };
    if rest == 0 || rest * warpgroups > semaphores as u64 {
        return 1;
    }
    // Drawn tiles that differ in length even out: the last ones are the shortest.
    if wanted.is_none() && tiles > resident && keys.longest > 1.25 * keys.average {
        return 1;
    }
    let blocks = (keys.longest / f64::from(image.tiling.block_n)) as u64;
    let most_parts = match packs_rows(image) {
        true => 128,
        false => 64,
    };
    // Kernels multiply a tile's blocks, of which there may be one more where a window begins within a block, by the number of a range.
    let most_parts = most_parts.min(i32::MAX as u64 / (blocks + 1)).max(1);
    let most = (PARTS_A_CTA as u64 * resident / rest)
        .min(blocks / 2)
        .clamp(1, most_parts);
    if let Some(wanted) = wanted {
        return u64::from(wanted).clamp(1, most);
    }
    let beside = match image.schedule.has_group_tiles() {
        true => GROUP_PART_KEYS,
        false => 0.0,
    };
    let cost = |splits: u64| match packs_rows(image) {
        true => PackedSpeed::USUAL.rest_us(image, [tiles, resident, splits], keys),
        false => rest_keys(image, rest, resident, splits, keys.longest) + splits as f64 * beside,
    };
    let best = (1..=most).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
    best.unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warptile_kernels::catalog;

    #[test]
    fn a_tile_loads_the_keys_that_any_of_its_rows_sees() {
        let image = { catalog().iter() }
            .find(|image| image.schedule == Schedule::Persistent && image.tiling.block_m == 128)
            .unwrap();
        let [queries, keys] = [4096, 4096];
        for mask in [
            Mask::none(),
            Mask::causal(),
            Mask::window(500, 0),
            Mask::window(500, 300),
        ] {
            let loaded = { 0..queries / 128 }.map(|tile| {
                let rows = [tile * 128, tile * 128 + 127];
                let [first, last] = rows.map(|row| mask.visible(row, queries, keys));
                (last.end - first.start) as f64
            });
            let average = loaded.sum::<f64>() / (queries / 128) as f64;
            let found = TileKeys::of(mask, [queries, keys], 1, image).average;
            assert!(
                (found / average - 1.0).abs() < 0.02,
                "{mask:?}: {found} {average}"
            );
        }
    }

    #[test]
    fn many_warps_take_few_rounds_to_add_up() {
        for (parts, rows, columns, rounds) in [
            (2, 64, 128, 1),
            (4, 64, 128, 1),
            (16, 64, 128, 1),
            (33, 64, 128, 2),
            (64, 64, 128, 1),
            (128, 64, 128, 2),
            (4, 64, 256, 2),
            (64, 16, 64, 1),
        ] {
            let found = rounds_of_sum(parts, rows, columns);
            assert_eq!(found, rounds, "{parts} parts of {rows} x {columns}");
        }
    }

    /// `blocks * (split + 1)` in kernels/forward/wgmma_scheduler.cuh.
    #[test]
    fn ranges_of_the_longest_keys_are_counted_in_31_bits() {
        let packing = || catalog().iter().filter(|image| packs_rows(image));
        let image = packing().min_by_key(|image| image.tiling.block_n).unwrap();
        let longest = crate::spec::MAX_LEN;
        let keys = TileKeys::of(Mask::none(), [1, longest], 8, image);
        let blocks = longest.div_ceil(image.tiling.block_n as usize) as u64;
        for wanted in [None, Some(128), Some(u32::MAX)] {
            let splits = splits_of(1, 132, &keys, image, wanted);
            assert!(splits > 64, "{splits}");
            assert!(blocks * splits < 1 << 31, "{blocks} blocks, {splits}");
        }
    }

    /// 8 parts of 8192 keys take 20.7 us, and 12 take 22.8 (docs/notebook/wgmma.md).
    #[test]
    fn few_ctas_read_a_key_faster_than_many() {
        let image = { catalog().iter() }
            .find(|image| {
                image.schedule == Schedule::PersistentGroups
                    && splits_tiles(image)
                    && !packs_rows(image)
            })
            .unwrap();
        let keys = TileKeys::of(Mask::none(), [1, 8192], 8, image);
        assert_eq!(splits_of(8, 132, &keys, image, None), 8);
    }
}
