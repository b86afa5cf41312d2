//! Every embedded image is what the catalog says it is.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};
use warptile_kernels::abi::{
    Append, AppendE4m3, Backward, BackwardBlocks, BackwardDropout, BackwardTma, BackwardTmaDropout,
    BiasGradient, Forward, ForwardBlocks, ForwardDropout, ForwardE4m3, ForwardTma,
    ForwardTmaBlocks, ForwardTmaBoxes, ForwardTmaDropout, KeyRuns, Merge, Prepass, SinkGradient,
};
use warptile_kernels::elf::{EM_CUDA, Elf};
use warptile_kernels::record::ImageRecord;
use warptile_kernels::{Features, Image, Role, Target, catalog, image, kernels, packs};

/// Embedded bytes a user pays for with all features, less than this.
const EMBEDDED_LIMIT: usize = 24_000_000;

fn unpack(image: &Image) -> Vec<u8> {
    image
        .bytes()
        .unwrap_or_else(|error| panic!("{}: {error}", image.name))
}

fn cubins() -> impl Iterator<Item = &'static Image> {
    catalog()
        .iter()
        .filter(|image| !matches!(image.target, Target::Ptx(_)))
}

#[test]
fn there_are_images() {
    assert!(cubins().count() > 0);
    assert!(catalog().len() > cubins().count(), "no PTX for newer GPUs");
}

#[test]
fn names_are_sorted_unique_and_follow_the_contents() {
    assert!(catalog().is_sorted_by(|a, b| a.name < b.name));
    let mut contents = BTreeSet::new();
    for image in catalog() {
        let tiling = image.tiling;
        let sizes = match tiling.value_dim == tiling.head_dim {
            true => format!("d{}", tiling.head_dim),
            false => format!("d{}v{}", tiling.head_dim, tiling.value_dim),
        };
        let tiles = format!(
            "{}_{sizes}_{}x{}_w{}_s{}",
            image.family, tiling.block_m, tiling.block_n, tiling.warps, tiling.stages
        );
        let expected = match tiling.has_tiles() {
            true => tiles,
            false => format!("{}_w{}", image.family, tiling.warps),
        };
        let e4m3 = image.features.contains(Features::E4M3);
        let expected = match (e4m3, tiling.has_tiles()) {
            (false, _) => expected,
            (true, true) => format!("{expected}_e4m3"),
            (true, false) => format!("{}_e4m3_w{}", image.family, tiling.warps),
        };
        assert_eq!(image.kernel, expected);
        let variant = variant(image);
        assert!(
            variant.is_empty() || variant.starts_with('_'),
            "{}",
            image.name
        );
        let function = format!("{}_{}", image.kernel, image.element);
        assert_eq!(image.entry, format!("warptile_{function}{variant}"));
        assert!(
            contents.insert((image.kernel, image.element, image.target, variant)),
            "{} is there twice",
            image.name
        );
    }
}

/// The part of an image's name between element and target: nothing, or the name of a variant.
fn variant(image: &'static Image) -> &'static str {
    image
        .name
        .strip_prefix(&format!("{}_{}", image.kernel, image.element))
        .and_then(|rest| rest.strip_suffix(&format!("_{}", image.target)))
        .unwrap_or_else(|| panic!("{} is misnamed", image.name))
}

#[test]
fn a_variant_has_all_features_of_the_plain_image_or_only_some() {
    let variants = catalog().iter().filter(|image| !variant(image).is_empty());
    let mut compared = 0;
    for image_of_variant in variants {
        let name = image_of_variant.name;
        // A kernel may have variants alone.
        let Some(plain) = image(&name.replace(variant(image_of_variant), "")) else {
            continue;
        };
        compared += 1;
        assert_ne!(
            (image_of_variant.features, image_of_variant.schedule),
            (plain.features, plain.schedule),
            "{name}"
        );
        let [more, less] = match variant(image_of_variant) {
            "_dense" | "_paged" => [plain.features, image_of_variant.features],
            // Lists don't go with pages.
            "_blocks" => [image_of_variant.features, plain.features - Features::PAGED],
            _ => [image_of_variant.features, plain.features],
        };
        assert!(more.contains(less), "{name}");
        assert_eq!(image_of_variant.tiling, plain.tiling, "{name}");
    }
    assert!(compared > 0);
}

#[test]
fn images_are_found_by_name_and_grouped_by_kernel() {
    for wanted in catalog() {
        assert!(image(wanted.name).is_some_and(|found| std::ptr::eq(found, wanted)));
    }
    assert!(image("no_such_image").is_none());

    let mut seen = BTreeSet::new();
    for kernel in kernels() {
        assert!(
            seen.insert(kernel.name),
            "{} comes in two groups",
            kernel.name
        );
        assert!(!kernel.images.is_empty());
        assert!(
            kernel
                .images
                .iter()
                .all(|image| image.kernel == kernel.name)
        );
    }
    assert_eq!(
        kernels().map(|kernel| kernel.images.len()).sum::<usize>(),
        catalog().len()
    );
}

#[test]
fn a_pack_holds_what_one_cargo_feature_brings_of_one_kernel_without_gaps() {
    let mut in_packs = 0;
    for pack in packs() {
        let images: Vec<&Image> = catalog()
            .iter()
            .filter(|image| std::ptr::eq(image.pack, pack))
            .collect();
        let feature = |image: &Image| match image.target {
            Target::Cubin(number) | Target::CubinExact(number) => Some(number),
            _ => None,
        };
        let mut end = 0;
        for image in &images {
            assert_eq!(image.kernel, images[0].kernel);
            assert_eq!(feature(image), feature(images[0]), "{}", image.name);
            assert_eq!(image.offset, end, "{}", image.name);
            end += image.len;
        }
        in_packs += images.len();
    }
    assert_eq!(in_packs, catalog().len());
}

#[test]
fn images_unpack_to_the_bytes_that_were_compiled() {
    for image in catalog() {
        let bytes = unpack(image);
        assert_eq!(bytes.len(), image.len, "{}", image.name);
        let hash: String = Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hash, image.sha256, "{}", image.name);
    }
}

#[test]
fn cubins_are_machine_code_for_their_target() {
    for image in cubins() {
        let bytes = unpack(image);
        let elf = Elf::parse(&bytes).unwrap();
        assert_eq!(elf.machine(), EM_CUDA, "{}", image.name);
        assert_eq!(
            elf.target(),
            Some(image.target.to_string()),
            "{}",
            image.name
        );
        let code = elf.object(image.entry).unwrap();
        assert!(
            code.is_some_and(|code| !code.is_empty()),
            "{}: no entry",
            image.name
        );
    }
}

#[test]
fn ptx_is_text_for_its_target() {
    for image in catalog() {
        let Target::Ptx(version) = image.target else {
            continue;
        };
        let bytes = unpack(image);
        let text = std::ffi::CStr::from_bytes_with_nul(&bytes)
            .unwrap_or_else(|error| panic!("{}: {error}", image.name))
            .to_str()
            .unwrap();
        let target = format!(".target sm_{version}");
        assert!(text.lines().any(|line| line == target), "{}", image.name);
        let entry = format!(".visible .entry {}(", image.entry);
        assert!(text.lines().any(|line| line == entry), "{}", image.name);
    }
}

#[test]
fn the_record_in_an_image_is_what_the_catalog_says() {
    for image in catalog() {
        let record = ImageRecord::read(&unpack(image)).expect(image.name);
        let name = image.name;
        assert_eq!(record.tiling, image.tiling, "{name}");
        assert_eq!(
            record.element_bytes as usize,
            image.element.size(),
            "{name}"
        );
        assert_eq!(
            record.shared_bytes, image.resources.dynamic_shared_bytes,
            "{name}"
        );
        assert_eq!(
            (record.role, record.schedule),
            (image.role, image.schedule),
            "{name}"
        );
        assert_eq!(record.features, image.features, "{name}");
        assert_eq!(
            (record.abi_hash, record.param_bytes),
            (image.abi_hash, image.param_bytes),
            "{name}"
        );
        let takes_its_block = match (image.role, image.features.contains(Features::E4M3)) {
            (Role::Combine, _) => record.takes::<Merge>(),
            (Role::Append, false) => record.takes::<Append>(),
            (Role::Append, true) => record.takes::<AppendE4m3>(),
            (Role::Prepass, _) => record.takes::<Prepass>(),
            (Role::AllGradients, _) => {
                record.takes::<BackwardTma>() || record.takes::<BackwardTmaDropout>()
            }
            (Role::SinkGradients, _) => record.takes::<SinkGradient>(),
            (Role::BiasGradients, _) => record.takes::<BiasGradient>(),
            (Role::KeyRuns, _) => record.takes::<KeyRuns>(),
            (Role::QuerySums, _) => record.takes::<Backward>(),
            (Role::KeyGradients | Role::QueryGradients, _) => {
                record.takes::<Backward>()
                    || record.takes::<BackwardDropout>()
                    || record.takes::<BackwardBlocks>()
                    || record.takes::<BackwardTma>()
                    || record.takes::<BackwardTmaDropout>()
            }
            (_, true) => record.takes::<ForwardE4m3>(),
            _ => {
                record.takes::<Forward>()
                    || record.takes::<ForwardTma>()
                    || record.takes::<ForwardDropout>()
                    || record.takes::<ForwardTmaDropout>()
                    || record.takes::<ForwardBlocks>()
                    || record.takes::<ForwardTmaBlocks>()
                    || record.takes::<ForwardTmaBoxes>()
            }
        };
        assert!(takes_its_block, "{name}");
    }
}

#[test]
fn ptx_and_cubins_of_a_kernel_agree() {
    for kernel in kernels() {
        for image in kernel.images {
            for other in kernel
                .images
                .iter()
                .filter(|other| (other.element, other.schedule) == (image.element, image.schedule))
            {
                assert_eq!(
                    image.tiling, other.tiling,
                    "{} and {}",
                    image.name, other.name
                );
                // A bias or a mask in boxes takes room, and its map comes in a block of its own.
                if image.boxed() != other.boxed() {
                    continue;
                }
                // Only images of the same options are compared: an image of fewer may keep more of what it has.
                if image.features == other.features {
                    assert_eq!(
                        image.resources.dynamic_shared_bytes, other.resources.dynamic_shared_bytes,
                        "{} and {}",
                        image.name, other.name
                    );
                }
                // These have blocks of their own.
                let apart = Features::DROPOUT | Features::BLOCKS;
                let others = [image, other].map(|one| one.features - apart);
                if image.features - others[0] == other.features - others[1] {
                    assert_eq!(
                        image.param_bytes, other.param_bytes,
                        "{} and {}",
                        image.name, other.name
                    );
                }
            }
        }
    }
}

/// A program with the cargo feature of a GPU's architecture alone computes whatever one with `ptx` does there.
#[test]
fn ptx_has_no_image_that_an_architecture_lacks() {
    // Compute capabilities, and the KiB of shared memory that a CTA can have.
    let gpus = [
        ((8, 0), 163),
        ((8, 6), 99),
        ((8, 7), 163),
        ((8, 9), 99),
        ((9, 0), 227),
        ((10, 0), 227),
        ((10, 3), 227),
        ((12, 0), 99),
        ((12, 1), 99),
    ];
    let bytes =
        |image: &Image| image.resources.static_shared_bytes + image.resources.dynamic_shared_bytes;
    for ((major, minor), kib) in gpus {
        let fits =
            |image: &&Image| image.target.runs_on(major, minor) && bytes(image) <= kib * 1024;
        let (ptx, own): (Vec<&Image>, Vec<&Image>) = { catalog().iter().filter(fits) }
            .partition(|image| matches!(image.target, Target::Ptx(_)));
        for image in ptx {
            let takes_its_calls = |other: &&Image| {
                (other.role, other.element) == (image.role, image.element)
                    && other.features.contains(image.features)
                    && other.tiling.head_dim >= image.tiling.head_dim
                    && other.tiling.value_dim >= image.tiling.value_dim
            };
            let found = own.iter().any(takes_its_calls);
            assert!(found, "{major}.{minor} has only {}", image.name);
        }
    }
}

#[test]
fn nothing_spills() {
    for image in catalog() {
        assert_eq!(image.resources.spill_bytes, 0, "{}", image.name);
        assert_eq!(image.resources.stack_bytes, 0, "{}", image.name);
    }
}

#[test]
fn embedded_bytes_stay_under_the_limit() {
    let total: usize = packs().map(<[u8]>::len).sum();
    assert!(total < EMBEDDED_LIMIT, "{total} bytes");
}
