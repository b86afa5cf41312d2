//! Tests of what build-kernels rebuilds, what `--check` finds, and what an image depends on.

use crate::workshop::Workshop;
use xtask::build_kernels::{CRATE_LIMIT, EMBEDDED_LIMIT, Outcome, Selection};
use xtask::changes::summary;
use xtask::nvrtc::Nvrtc;

const TARGETS: [&str; 6] = ["sm_80", "sm_90", "sm_90a", "sm_100", "sm_120", "compute_80"];

/// Damages the last image of a pack.
fn spoil_end(contents: &mut [u8]) {
    if let Some(last) = contents.last_mut() {
        *last ^= 1;
    }
}

#[test]
fn only_what_changed_is_compiled() {
    let workshop = Workshop::new();
    workshop.list("sample.cu", &["sm_80", "sm_90"], "");
    let outcome = workshop.build();
    assert_eq!(outcome.compiled.len(), 2);
    let account = summary(&outcome, false);
    assert!(account.contains("new      scalar_d64_32x64_w4_s2_f16_sm_80"));
    assert!(account.lines().count() < 12, "{account}");
    let outcome = workshop.build();
    assert_eq!(outcome.compiled, [""; 0]);
    let account = summary(&outcome, false);
    assert!(account.starts_with("compiled 0 images: all are up to date\n"));
    assert!(account.ends_with("next     nothing to do\n"));

    let header = workshop.layout.kernels.join("base/record.cuh");
    let text = std::fs::read_to_string(&header).unwrap();
    std::fs::write(&header, text + "struct Changed;\n").unwrap();
    let outcome = workshop.build();
    assert_eq!(outcome.compiled.len(), 2);
    assert!(summary(&outcome, false).starts_with("compiled 2 images: all have the bytes"));

    workshop.list("sample.cu", &["sm_80", "sm_100"], "");
    let outcome = workshop.build();
    assert!(summary(&outcome, false).contains("gone     scalar_d64_32x64_w4_s2_f16_sm_90"));
    assert_eq!(outcome.compiled, ["scalar_d64_32x64_w4_s2_f16_sm_100"]);
    assert_eq!(outcome.manifest.images.len(), 2);
    // The image that stayed and the new one lie in the pack as if they were compiled together.
    let together = Workshop::new();
    together.list("sample.cu", &["sm_80", "sm_100"], "");
    std::fs::copy(&header, together.layout.kernels.join("base/record.cuh")).unwrap();
    assert_eq!(together.build().manifest, outcome.manifest);
    assert_eq!(together.pack(), workshop.pack());

    workshop.list("sample.cu", &["sm_80", "sm_100"], "flags = [\"-DMORE\"]");
    assert_eq!(workshop.build().compiled.len(), 2);
}

#[test]
fn a_kernel_that_stops_compiling_leaves_the_catalog() {
    let workshop = Workshop::new();
    workshop.list("sample.cu", &["sm_80"], "");
    assert_eq!(workshop.build().manifest.images.len(), 1);
    workshop.list("spill.cu", &["sm_80"], "");
    let outcome = workshop.build();
    assert_eq!(outcome.failures.len(), 1);
    assert_eq!(outcome.manifest.images, []);
    assert!(!workshop.pack_path().exists());
}

#[test]
fn check_accepts_what_build_wrote() {
    let workshop = Workshop::new();
    workshop.list("sample.cu", &TARGETS, "");
    workshop.build();
    assert_eq!(workshop.differences(), [""; 0]);
}

/// Builds, lets `edit` spoil something, and expects `--check` to say `what`.
fn check_finds(what: &str, edit: impl Fn(&Workshop)) {
    let workshop = Workshop::new();
    workshop.list("sample.cu", &["sm_80"], "");
    workshop.build();
    edit(&workshop);
    let differences = workshop.differences();
    assert!(
        differences
            .iter()
            .any(|difference| difference.contains(what)),
        "expected {what:?} in {differences:?}"
    );
}

#[test]
fn check_finds_an_image_edited_by_hand() {
    check_finds("not the image the manifest describes", |workshop| {
        workshop.edit_pack(|contents| spoil_end(contents));
    });
}

#[test]
fn check_finds_an_image_and_manifest_edited_together() {
    check_finds("sha256 is", |workshop| {
        let image = workshop.pack();
        workshop.edit_pack(|contents| spoil_end(contents));
        let edited = workshop.pack();
        workshop.edit_manifest(
            &xtask::files::sha256(&image),
            &xtask::files::sha256(&edited),
        );
    });
}

#[test]
fn check_finds_a_pack_that_holds_more_than_its_images() {
    check_finds("does not hold exactly the images", |workshop| {
        workshop.edit_pack(|contents| contents.push(0));
    });
    check_finds(
        "manifest.json: not as build-kernels writes it",
        |workshop| {
            workshop.edit_pack(|contents| contents.insert(0, 0));
            workshop.edit_manifest("\"offset\":0", "\"offset\":1");
        },
    );
}

#[test]
fn a_damaged_image_is_compiled_again_and_never_packed() {
    let workshop = Workshop::new();
    workshop.list("sample.cu", &["sm_80", "sm_90"], "");
    workshop.build();
    workshop.edit_pack(|contents| spoil_end(contents));
    workshop.list("sample.cu", &["sm_80", "sm_90", "sm_100"], "");
    let only_new = Selection {
        target: Some("sm_100".parse().unwrap()),
        ..Selection::default()
    };
    let error = workshop.try_build(&only_new).unwrap_err().to_string();
    assert!(
        error.starts_with("scalar_d64_32x64_w4_s2_f16_sm_80: "),
        "{error}"
    );
    assert!(error.contains("build it too"), "{error}");
    assert_eq!(
        workshop.build().compiled,
        [
            "scalar_d64_32x64_w4_s2_f16_sm_100",
            "scalar_d64_32x64_w4_s2_f16_sm_80"
        ]
    );
    assert_eq!(workshop.differences(), [""; 0]);
}

#[test]
fn a_crate_and_all_crates_have_a_limit() {
    let excess = |packs: &[(&str, u64)]| {
        let packs = packs.iter().map(|&(pack, bytes)| (pack.to_owned(), bytes));
        let packed_bytes = packs.collect();
        let outcome = Outcome {
            packed_bytes,
            ..Outcome::default()
        };
        outcome.excess()
    };
    assert_eq!((CRATE_LIMIT, EMBEDDED_LIMIT), (8_000_000, 24_000_000));
    let most = CRATE_LIMIT - 1;
    assert_eq!(
        excess(&[("a_sm_80", most), ("a_sm_90", most), ("a_ptx", 2)]),
        None
    );
    assert_eq!(
        excess(&[("a_sm_80", most), ("a_sm_90", most), ("b_sm_90", 1)]).unwrap(),
        "warptile-images-sm90: 8000000 bytes, which have to stay under 8000000"
    );
    assert_eq!(
        excess(&[
            ("a_sm_80", most),
            ("a_sm_90", most),
            ("a_sm_100", most),
            ("a_ptx", 3)
        ])
        .unwrap(),
        "all images: 24000000 bytes, which have to stay under 24000000"
    );
}

#[test]
fn check_finds_a_changed_source() {
    check_finds("source_hash is", |workshop| {
        let path = workshop.layout.kernels.join("sample.cuh");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text + "struct Changed;\n").unwrap();
    });
}

/// A comment that is added or reworded changes neither the image nor the hash.
#[test]
fn comments_make_no_image_stale() {
    let workshop = Workshop::new();
    workshop.list("sample.cu", &["sm_80"], "");
    workshop.build();
    for name in ["sample.cu", "sample.cuh"] {
        let path = workshop.layout.kernels.join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        let commented = format!("// About\n// {name}.\n{}", text.replace('\n', " // why\n"));
        std::fs::write(&path, commented.replace("\\ // why", "\\")).unwrap();
    }
    let (compiled, differences) = workshop.check(&Selection::default());
    assert_eq!(compiled.len(), 1);
    assert_eq!(differences, [""; 0]);
    assert_eq!(workshop.build().compiled, [""; 0]);
}

#[test]
fn check_finds_missing_and_surplus_images() {
    check_finds("not committed", |workshop| {
        workshop.list("sample.cu", &["sm_80", "sm_90"], "");
    });
    check_finds("does not list it", |workshop| {
        workshop.list("sample.cu", &["sm_90"], "")
    });
    check_finds("the manifest does not name it", |workshop| {
        std::fs::write(workshop.layout.pack("other_sm_80"), b"").unwrap();
    });
    check_finds("cannot read", |workshop| {
        std::fs::remove_file(workshop.pack_path()).unwrap();
    });
}

#[test]
fn check_finds_edited_generated_sources() {
    check_finds("abi.cuh: not as build-kernels writes it", |workshop| {
        let path = workshop.layout.kernels.join("generated/base/abi.cuh");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("int heads;", "int headz;")).unwrap();
        // The kernels would be stale, too; this is about the header.
        workshop.list("sample.cu", &["sm_80"], "");
    });
    for name in ["catalog.rs", "tilings.rs"] {
        check_finds(
            &format!("{name}: not as build-kernels writes it"),
            |workshop| {
                std::fs::write(workshop.layout.generated(name), "// nothing\n").unwrap();
            },
        );
    }
}

/// Without compiling them, `--sample` compares the sources of all images and what is committed of them; it compiles at least one
/// image of each family, element and target.
#[test]
fn a_sample_finds_every_stale_image() {
    let sample = |hash: &str| Selection {
        sample: Some(hash.to_owned()),
        ..Selection::default()
    };
    let workshop = Workshop::new();
    workshop.list_tilings("sample.cu", &["sm_80", "sm_90"], &[16, 32, 48, 64, 80, 96]);
    workshop.build();
    let (compiled, differences) = workshop.check(&sample("0123abc"));
    assert_eq!(differences, [""; 0]);
    assert!((2..12).contains(&compiled.len()), "{compiled:?}");
    for target in ["sm_80", "sm_90"] {
        assert!(compiled.iter().any(|image| image.ends_with(target)));
    }
    // Another commit takes others.
    assert!((0..20).any(|commit| workshop.check(&sample(&commit.to_string())).0 != compiled));

    let path = workshop.layout.kernels.join("sample.cuh");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text + "struct Changed;\n").unwrap();
    let (_, differences) = workshop.check(&sample("0123abc"));
    let stale = differences
        .iter()
        .filter(|line| line.contains("source_hash is"));
    assert_eq!(stale.count(), 12, "{differences:?}");
}

#[test]
fn check_finds_an_edited_report() {
    check_finds("resources.md: not as build-kernels writes it", |workshop| {
        std::fs::write(&workshop.layout.report, "0 spills, honest\n").unwrap();
    });
}

#[test]
fn images_do_not_depend_on_where_they_are_built_or_by_how_many_processes() {
    let here = Workshop::new();
    let mut elsewhere = Workshop::new();
    elsewhere.compiler.jobs = 1;
    assert_ne!(here.layout.kernels, elsewhere.layout.kernels);
    for workshop in [&here, &elsewhere] {
        workshop.list("tensor.cu", &TARGETS, "tensor_instruction = \"HMMA\"");
    }
    let (one, other) = (here.build(), elsewhere.build());
    assert_eq!(one.failures, []);
    assert_eq!(one.manifest, other.manifest);
    let packs = |workshop: &Workshop| {
        let paths = workshop.layout.pack_files().unwrap();
        let named = paths.into_iter().map(|path| {
            let contents = std::fs::read(&path).unwrap();
            (path.file_name().unwrap().to_owned(), contents)
        });
        named.collect::<Vec<_>>()
    };
    // A pack for each cargo feature.
    assert_eq!(packs(&here).len(), 5);
    assert!(packs(&here) == packs(&elsewhere));
}

/// build-kernels takes a PTX image from the compilation that also gives, and gates, the cubin of the same number.
#[test]
fn ptx_is_the_same_with_and_without_machine_code() {
    let nvrtc = Nvrtc::load(&Workshop::new().compiler.toolchain.nvrtc).unwrap();
    let source = "extern \"C\" __global__ void k(float* p, float a) { p[threadIdx.x] = a * p[threadIdx.x] + __expf(a); }";
    let ptx = |target: &str| {
        let options = [
            format!("--gpu-architecture={target}"),
            "--ptxas-options=-v".to_owned(),
        ];
        let compiled = nvrtc.compile(source, "k.cu", &options).unwrap();
        assert!(compiled.ok, "{}", compiled.log);
        compiled.ptx
    };
    assert!(!ptx("sm_80").is_empty());
    assert_eq!(ptx("sm_80"), ptx("compute_80"));
    assert_ne!(ptx("sm_80"), ptx("compute_90"));
}
