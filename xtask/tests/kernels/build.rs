//! What build-kernels rebuilds, what `--check` finds, and what an image depends on.

use crate::workshop::Workshop;
use xtask::nvrtc::Nvrtc;

const TARGETS: [&str; 6] = ["sm_80", "sm_90", "sm_90a", "sm_100", "sm_120", "compute_80"];
const IMAGE: &str = "scalar_d64_32x64_w4_s2_f16_sm_80";

#[test]
fn only_what_changed_is_compiled() {
    let workshop = Workshop::new();
    workshop.list("sample.cu", &["sm_80", "sm_90"], "");
    assert_eq!(workshop.build().compiled.len(), 2);
    assert_eq!(workshop.build().compiled, [""; 0]);

    let header = workshop.layout.kernels.join("params.cuh");
    let text = std::fs::read_to_string(&header).unwrap();
    std::fs::write(&header, text + "// changed\n").unwrap();
    assert_eq!(workshop.build().compiled.len(), 2);

    workshop.list("sample.cu", &["sm_80", "sm_100"], "");
    let outcome = workshop.build();
    assert_eq!(outcome.compiled, ["scalar_d64_32x64_w4_s2_f16_sm_100"]);
    assert_eq!(outcome.manifest.images.len(), 2);
    assert!(
        !workshop
            .layout
            .images
            .join("scalar_d64_32x64_w4_s2_f16_sm_90.zst")
            .exists()
    );

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
    assert!(!workshop.layout.images.join(format!("{IMAGE}.zst")).exists());
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
        let path = workshop.layout.images.join(format!("{IMAGE}.zst"));
        let mut image = zstd::decode_all(&std::fs::read(&path).unwrap()[..]).unwrap();
        let last = image.len() - 1;
        image[last] ^= 1;
        std::fs::write(&path, zstd::encode_all(&image[..], 19).unwrap()).unwrap();
    });
}

#[test]
fn check_finds_an_image_and_manifest_edited_together() {
    check_finds("sha256 is", |workshop| {
        let path = workshop.layout.images.join(format!("{IMAGE}.zst"));
        let image = zstd::decode_all(&std::fs::read(&path).unwrap()[..]).unwrap();
        let edited = [&image[..], b"!"].concat();
        std::fs::write(&path, zstd::encode_all(&edited[..], 19).unwrap()).unwrap();
        let manifest = workshop.layout.images.join("manifest.json");
        let text = std::fs::read_to_string(&manifest).unwrap();
        let text = text.replace(
            &xtask::files::sha256(&image),
            &xtask::files::sha256(&edited),
        );
        std::fs::write(&manifest, text).unwrap();
    });
}

#[test]
fn check_finds_a_changed_source() {
    check_finds("source_hash is", |workshop| {
        let path = workshop.layout.kernels.join("sample.cuh");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text + "// changed\n").unwrap();
    });
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
        std::fs::write(workshop.layout.images.join("other.zst"), b"").unwrap();
    });
    check_finds("cannot read", |workshop| {
        std::fs::remove_file(workshop.layout.images.join(format!("{IMAGE}.zst"))).unwrap();
    });
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
    for entry in &one.manifest.images {
        let packed = |workshop: &Workshop| {
            std::fs::read(workshop.layout.images.join(format!("{}.zst", entry.name))).unwrap()
        };
        assert_eq!(packed(&here), packed(&elsewhere), "{}", entry.name);
    }
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
