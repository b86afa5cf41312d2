//! Calls of any size: an error, or launches whose numbers fit. Nothing overflows, and nothing takes long.

use quickcheck::{Gen, quickcheck};
use warptile_kernels::{Role, Schedule, images_for};

use super::occupancy::occupancy;
use super::split_tiles::PARTS_A_CTA;
use super::{LaunchShape, MAX_TILES, Planner, Settings, Step, tile_order};
use crate::plan::{Choice, DeviceProfile};
use crate::spec::{Call, Diagonal, ElementType, Layout, MAX_LEN, Mask, Scoring, Splits};

/// Extents at which something may overflow or divide by 0, and ordinary ones.
const EXTENTS: [usize; 16] = [
    0,
    1,
    2,
    7,
    64,
    127,
    128,
    2048,
    4096,
    1 << 15,
    1 << 16,
    (1 << 20) + 1,
    1 << 25,
    MAX_LEN - 1,
    MAX_LEN,
    MAX_LEN + 1,
];

/// As a caller may set them.
fn settings(g: &mut Gen) -> Settings {
    let mut some = || {
        *g.choose(&[None, None, Some(0), Some(3), Some(u32::MAX)])
            .unwrap_or(&None)
    };
    Settings {
        at_once: some(),
        ranges: some(),
        ctas: some(),
    }
}

#[derive(Debug, Clone)]
struct Extreme {
    batch: usize,
    heads: [usize; 2],
    lengths: [usize; 2],
    sizes: [usize; 2],
    mask: Mask,
    splits: Splits,
    element: ElementType,
    device: DeviceProfile,
    settings: Settings,
}

/// Limits that some GPU has, none, or more than any.
fn device(g: &mut Gen) -> DeviceProfile {
    let most = DeviceProfile::MAX_MULTIPROCESSORS;
    let multiprocessors = *g.choose(&[1, 2, 7, 78, 132, 144, most]).unwrap_or(&1);
    let mut device = DeviceProfile::h200().with_multiprocessors(multiprocessors);
    for limit in [
        &mut device.shared_bytes_per_cta,
        &mut device.shared_bytes_per_multiprocessor,
        &mut device.registers_per_multiprocessor,
        &mut device.threads_per_multiprocessor,
    ] {
        *limit = *g
            .choose(&[*limit, *limit, *limit, 0, u32::MAX])
            .unwrap_or(limit);
    }
    device
}

impl quickcheck::Arbitrary for Extreme {
    fn arbitrary(g: &mut Gen) -> Self {
        let some = |g: &mut Gen, list: &[usize]| *g.choose(list).unwrap_or(&1);
        let extent = |g: &mut Gen| some(g, &EXTENTS);
        let groups = [1, 1, 2, 3, 4, 8, 64, 1 << 20];
        let key_value = match bool::arbitrary(g) {
            true => some(g, &[1, 2, 8, 32]),
            false => extent(g),
        };
        let masks = [
            Mask::none(),
            Mask::causal(),
            Mask::window(127, 0),
            Mask::window(u32::MAX, u32::MAX - 1),
        ];
        let diagonals = [
            Diagonal::BottomRight,
            Diagonal::TopLeft,
            Diagonal::At(-100),
            Diagonal::At(i32::MIN),
            Diagonal::At(i32::MAX),
        ];
        let splits = [Splits::Even, Splits::Even, Splits::EveryKeys(256)];
        let elements = [ElementType::F16, ElementType::Bf16, ElementType::F32];
        let size = |g: &mut Gen| some(g, &[8, 64, 96, 128, 192, 256, 512]);
        let head_dim = size(g);
        Extreme {
            batch: extent(g),
            heads: [key_value.saturating_mul(some(g, &groups)), key_value],
            lengths: [extent(g), extent(g)],
            sizes: [
                head_dim,
                if bool::arbitrary(g) {
                    head_dim
                } else {
                    size(g)
                },
            ],
            mask: { g.choose(&masks).copied().unwrap_or_default() }
                .diagonal(g.choose(&diagonals).copied().unwrap_or_default()),
            splits: *g.choose(&splits).unwrap_or(&Splits::Even),
            element: *g.choose(&elements).unwrap_or(&ElementType::F16),
            device: device(g),
            settings: settings(g),
        }
    }
}

impl Extreme {
    /// The inputs repeat one row, so that they may be as long as can be said.
    fn call(&self) -> crate::spec::Result<Call> {
        let ([heads, kv_heads], [query_len, key_len]) = (self.heads, self.lengths);
        let row = |rows, heads, size| Layout::new([self.batch, rows, heads, size], [0, 0, 0, 1]);
        let q = row(query_len, heads, self.sizes[0]);
        let k = row(key_len, kv_heads, self.sizes[0]);
        let v = row(key_len, kv_heads, self.sizes[1]);
        Call::builder(&q, &k, &v, self.element)
            .scoring(Scoring::new().mask(self.mask))
            .splits(self.splits)
            .build()
    }
}

/// Asserts that the numbers of a launch fit a grid and the kernels' 32-bit integers.
fn assert_fits(shape: &LaunchShape, call: &Call, step: &Step) {
    let name = step.image.name;
    assert!(u64::from(shape.tiles) <= MAX_TILES, "{name}: {call}");
    assert!(u64::from(shape.grid) <= MAX_TILES, "{name}: {call}");
    if shape.draws_tiles {
        // All tiles and parts of them, and one number more for each CTA.
        let drawn = u64::from(shape.tiles) + (1 + PARTS_A_CTA as u64) * u64::from(shape.grid);
        assert!(drawn < 1 << 31, "{name}: {call}: {shape:?}");
    }
    // A grid can have this many clusters along y.
    if step.image.schedule == Schedule::ClusterTile {
        assert!(shape.splits <= 65_535, "{name}: {call}: {shape:?}");
    }
    let empty = call.batch() == 0 || call.query_len() == 0;
    assert_eq!(shape.grid == 0, empty, "{name}: {call}: {shape:?}");
    assert!(
        shape.heads_at_once >= 1 || empty,
        "{name}: {call}: {shape:?}"
    );
    if let Some(order) = tile_order(step, call, shape) {
        let mut tiles = order.to_vec();
        tiles.sort_unstable();
        assert!(
            tiles.into_iter().eq(0..shape.tiles as u16),
            "{name}: {call}"
        );
    }
}

quickcheck! {
    fn every_kernel_launches_or_refuses_calls_of_any_size(extreme: Extreme) -> bool {
        let Ok(call) = extreme.call() else {
            return true;
        };
        let device = &extreme.device;
        let planner = Planner::new(device).settings(extreme.settings);
        if let Ok(plan) = planner.plan(call.problem(), &Choice::Best) {
            for step in plan.steps() {
                if let Ok(shape) = step.shape(&call) {
                    assert_fits(&shape, &call, step);
                    assert!(shape.workspace_bytes <= plan.scratch().bytes, "{call}");
                }
            }
        }
        for image in images_for(Role::Forward).filter(|image| image.element == call.element()) {
            let step = Step {
                ctas_per_multiprocessor: occupancy(image, device),
                settings: extreme.settings,
                ..Step::of(image, device.multiprocessors)
            };
            if let Ok(shape) = step.shape(&call) {
                assert_fits(&shape, &call, &step);
            }
        }
        true
    }
}
