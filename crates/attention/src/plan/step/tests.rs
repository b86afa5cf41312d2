use super::*;
use crate::plan::packs_rows;
use crate::spec::{ElementType, Layout, Mask, Scoring};

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
        step("wmma_d64_64x64_w8_s2", 1).shape(&call).unwrap()
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
    let unmasked = dense(2, [12, 4], [101, 200], Mask::none());
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

/// `quotient` in kernels/work/quotient.cuh, by which kernels that pack rows divide numbers of heads and of rows.
#[test]
fn heads_that_kernels_of_packed_rows_cannot_divide_are_too_many() {
    let image = { warptile_kernels::catalog().iter() }
        .find(|image| packs_rows(image) && image.tiling.head_dim == 64)
        .unwrap();
    let step = Step::of(image, 132);
    for (heads, kv_heads, fits) in [
        (1 << 19, 1 << 16, true),
        ((1 << 20) - 256, 1, true),
        (1 << 21, 1 << 18, false),
        (1 << 20, 1, false),
    ] {
        let q = Layout::bshd([1, 1, heads, 8]);
        let k = Layout::bshd([1, 16, kv_heads, 8]);
        let call = { Call::builder(&q, &k, &k, ElementType::F16).build() }.unwrap();
        let shape = step.shape(&call);
        assert_eq!(shape.is_ok(), fits, "{call}: {shape:?}");
        let planned = tiles_of(&call.problem(), image) <= MAX_TILES;
        assert_eq!(planned, fits, "{call}");
    }
}

/// The shape of a launch of this many CTAs, which read keys of this many heads side by side.
fn shape_with(step: &Step, call: &Call, grid_and_heads: (u32, u32)) -> LaunchShape {
    let shape = step.shape(call).unwrap();
    assert_eq!((shape.grid, shape.side_by_side), grid_and_heads, "{call}");
    shape
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
        let call = dense(batch, [4 * kv_heads, kv_heads], [1, key_len], Mask::none());
        shape_with(&step, &call, (grid, side_by_side));
    }
}

#[test]
fn a_device_without_multiprocessors_still_gets_a_grid() {
    let call = dense(1, [4, 4], [512, 512], Mask::none());
    let shape = step("wgmma_d128_128x128_w12_s2", 0).shape(&call).unwrap();
    assert_eq!((shape.grid, shape.tiles, shape.draws_tiles), (1, 16, true));
}

fn serving(kernel: &str, multiprocessors: u32) -> Step {
    let image = warptile_kernels::catalog()
        .iter()
        .find(|image| {
            image.kernel == kernel
                && image.element == ElementType::F16
                && splits_tiles(image)
                && image.schedule == Schedule::Persistent
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
        let call = dense(1, [heads, heads], [query_len, key_len], Mask::none());
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
    // One tile: 20 ranges, as each that is added up costs time; 132 CTAs are there.
    assert_eq!(shape(1, 128, 8192).splits, 20);
    // Drawn tiles that differ in length even out, however many are left over.
    let drawn = |mask| {
        let call = dense(1, [28, 28], [8192, 8192], mask);
        step.shape(&call).unwrap().splits
    };
    assert!(drawn(Mask::none()) > 1);
    assert_eq!(drawn(Mask::causal()), 1);
    // The plain image has no parts.
    let call = dense(1, [16, 16], [128, 8192], Mask::none());
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
        for multiprocessors in [1, 2, 7, 132, 144, 1000] {
            let device = DeviceProfile::h200().with_multiprocessors(multiprocessors);
            let step = Step {
                image,
                ctas_per_multiprocessor: occupancy(image, &device),
                ..Step::of(image, multiprocessors)
            };
            for (heads, query_len) in [
                (1, 1),
                (3, 300),
                (8, 130),
                (32, 512),
                (131, 64),
                (5, 4000),
                // More warpgroups than semaphores.
                (600, 128),
            ] {
                for (key_len, mask) in [
                    (1, Mask::none()),
                    (9000, Mask::none()),
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
                    assert!(shape.splits == 1 || semaphores as usize <= SEMAPHORES);
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
    assert!(step("wmma_d64_64x64_w8_s2", 132).shape(&call).is_ok());
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
    // `wmma` takes one head after the other and ignores `at-once`.
    assert_eq!(with("wmma_d128_48x32_w8_s2", "at-once=5").heads_at_once, 1);
    // Ranges stay within what the workspace holds.
    let image = warptile_kernels::catalog()
        .iter()
        .find(|image| splits_tiles(image) && !packs_rows(image) && image.tiling.head_dim == 128)
        .unwrap();
    let call = dense(1, [10, 10], [512, 65_536], Mask::none());
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
    // One tile of all CTAs has no more than these, either.
    let mut step = Step {
        image,
        ..step(persistent, 132)
    };
    step.settings.ranges = Some(u32::MAX);
    let one_tile = |keys| dense(1, [1, 1], [64, keys], Mask::none());
    assert_eq!(step.shape(&one_tile(65_536)).unwrap().splits, 64);
    // Each part has two blocks of keys.
    let eight_blocks = 8 * image.tiling.block_n as usize;
    assert_eq!(step.shape(&one_tile(eight_blocks)).unwrap().splits, 4);
    // Many CTAs add up packed rows.
    let packs = |image: &&Image| packs_rows(image) && image.tiling.head_dim == 128;
    step.image = warptile_kernels::catalog().iter().find(packs).unwrap();
    assert_eq!(step.shape(&one_tile(65_536)).unwrap().splits, 128);
}
