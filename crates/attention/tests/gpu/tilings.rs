//! Every kernel of the catalog, one by one.

use warptile_kernels::{Features, Image, Role, Schedule, Target, TileShape};

use crate::harness::{Images, case, gpu, images_for, passes, side_by_side};

const FULL_AND_RAGGED: [&str; 3] = ["b1 h2 q512 k512", "b2 h2 q113 k203", "b1 h1 q1 k1"];
const MASKED: [&str; 2] = [
    "b1 h2 q300 k300 mask=causal",
    "b1 h2 q130 k257 mask=window,40,3",
];

/// The words of an image's element types in a case.
fn elements_of(image: &Image) -> String {
    match image.types().scaled() {
        Some(cache) => format!("{} cache={cache}", image.element),
        None => image.element.to_string(),
    }
}

/// The head sizes that a tile is laid out for, as a word of a case.
fn sizes_of(tiling: &TileShape) -> String {
    format!("d{}/{}", tiling.head_dim, tiling.value_dim)
}

/// Kernels with an image for this device, each once, with its element types and its tile.
fn kernels() -> Vec<(&'static str, Vec<String>, TileShape)> {
    let (major, minor) = (gpu().profile().major, gpu().profile().minor);
    let mut kernels: Vec<(&'static str, Vec<String>, TileShape)> = Vec::new();
    let runnable = |image: &&Image| {
        image.target.runs_on(major, minor)
            && image.resources.dynamic_shared_bytes <= gpu().profile().shared_bytes_per_cta
    };
    for image in warptile_kernels::images_for(Role::Forward).filter(runnable) {
        let words = elements_of(image);
        match kernels.iter_mut().find(|(name, ..)| *name == image.kernel) {
            Some((_, elements, _)) if elements.contains(&words) => {}
            Some((_, elements, _)) => elements.push(words),
            None => kernels.push((image.kernel, vec![words], image.tiling)),
        }
    }
    kernels
}

fn every_kernel_passes(problems: &[&str]) {
    let kernels = kernels();
    assert!(
        !kernels.is_empty(),
        "the catalog has no kernel for this device"
    );
    side_by_side(kernels, |(kernel, elements, tiling)| {
        let sizes = sizes_of(&tiling);
        for element in elements {
            for problem in problems {
                let case = case(&format!("{problem} {sizes} {element} seed=1"));
                match passes(&case, Images::Kernel(kernel)) {
                    Ok(taken) => assert!(taken, "{kernel} did not take {case}"),
                    Err(failure) => panic!("{failure}"),
                }
            }
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_kernel_is_right_on_full_tiles_and_ragged_ones() {
    every_kernel_passes(&FULL_AND_RAGGED);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_kernel_is_right_under_masks() {
    every_kernel_passes(&MASKED);
}

/// Images whose tiles belong together, by heads that share keys: where tiles end, lengths, and options that differ from head to head.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn images_of_pairs_and_groups_are_right() {
    let grouped = [
        "b3 q700 k900 h8/2 mask=causal sinks",
        "b1 q1500 k1500 h6/3 mask=window,200,50 sms=4",
        "b2 q1000 k3000 h8/2 mask=causal diagonal=top-left layout=gaps",
        "packed=100x200,1x300,257x129,0x5,640x640 h4/2 mask=causal device-lengths sms=5",
        "b4 k700 q300 h8/2 used=300x700,0x5,17x0,299x1 device-lengths mask=causal",
        "b1 q4000 k4000 h4/2 sms=3 mask=causal",
        "b1 q64 k0 h4/1 sinks",
    ];
    // Pairs of tiles of one head; the last pair may have only one tile.
    let single = [
        "b2 q300 k1000 h3",
        "b1 q129 k77 h1 sinks",
        "b4 q300 k700 h3 used=300x700,0x5,17x0,299x1 device-lengths",
        "packed=100x200,1x300,257x129,0x5,640x640 h3 device-lengths sms=5",
    ];
    // Few queries: parts of a tile, the last warpgroup partly empty, and pages.
    let few = [
        "b2 q8 k5000 h8/2 mask=causal",
        "b3 q3 k2000 h16/2 mask=causal sinks",
        "b1 q13 k3000 h8/1 mask=window,500,3 sms=7",
        "b4 k1500 q5 h8/4 used=5x700,0x5,1x0,4x1500 device-lengths mask=causal pages=16",
        "b2 q1 k4000 h8/1 pages=64",
    ];
    // Rows of groups of any size, which boxes of 64 rows do not hold.
    let packed = [
        "b2 q1 k9000 h48/1 sinks",
        "b1 q3 k5000 h71/1 mask=causal sinks",
        "b3 q7 k3000 h14/2 mask=window,700,0 layout=gaps",
        "b4 k1500 q9 h12/4 used=9x700,0x5,1x0,4x1500 device-lengths mask=causal pages=16",
        "packed=3x2000,0x5,17x900,1x4000,2x0 h71/1 mask=causal device-lengths sinks",
        "b1 q40 k2500 h5/1 mask=causal diagonal=top-left sms=3",
        "b1 q130 k1 h3/1",
        "b2 q5 k0 h16/1 sinks",
    ];
    let (major, minor) = (gpu().profile().major, gpu().profile().minor);
    let images = warptile_kernels::images_for(Role::Forward)
        .filter(|image| image.target.runs_on(major, minor));
    side_by_side(images, |image| {
        let in_boxes = image.tiling.block_m == 64 && image.tiling.head_dim == 128;
        let (more, any_group) = match image.schedule {
            Schedule::Pairs => (&single[..], &[][..]),
            Schedule::PersistentGroups if !image.features.contains(Features::PAGED) => {
                (&[][..], &[][..])
            }
            Schedule::PersistentGroups if in_boxes => (&few[..], &[][..]),
            Schedule::PersistentGroups => (&few[..], &packed[..]),
            _ => return,
        };
        for (seed, problem) in grouped.iter().chain(more).chain(any_group).enumerate() {
            let (sizes, element) = (sizes_of(&image.tiling), image.element);
            let case = case(&format!("{problem} {sizes} {element} seed={seed}"));
            assert_eq!(
                passes(&case, Images::One(image)),
                Ok(true),
                "{}",
                image.name
            );
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_compute_89_image_is_right_within_99_kb() {
    side_by_side(images_for(Target::Ptx(89)), |image| {
        for problem in FULL_AND_RAGGED.iter().chain(&MASKED) {
            let head_dim = image.tiling.head_dim;
            let case = case(&format!(
                "{problem} d{head_dim} {} seed=1",
                elements_of(image)
            ));
            assert_eq!(
                passes(&case, Images::Within99Kb(image)),
                Ok(true),
                "{}",
                image.name
            );
        }
    });
}

/// The acceptance tests of the project's predecessor: batch, heads, length, head size and mask.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_predecessors_acceptance_tests_pass_on_all_tilings_that_fit() {
    for (problem, fits) in [
        ("b1 h8 q512 k512 d64", 64),
        ("b1 h8 q512 k512 d64 mask=causal", 64),
        ("b2 h8 q2048 k2048 d64", 64),
        ("b2 h8 q2048 k2048 d64 mask=causal", 64),
        ("b2 h8 q2048 k2048 d128", 128),
    ] {
        side_by_side(kernels(), |(kernel, elements, tiling)| {
            if tiling.head_dim == fits && elements.iter().any(|words| words == "f16") {
                let case = case(&format!("{problem} f16 seed=7"));
                assert_eq!(passes(&case, Images::Kernel(kernel)), Ok(true), "{kernel}");
            }
        });
    }
}
