//! Every gate, seen failing on a small bad kernel that the real compiler compiles.

use crate::workshop::Workshop;

const TENSOR: &str = "tensor_instruction = \"HMMA\"";
const SETMAXNREG: &str = "setmaxnreg = true";

/// Builds one kernel and returns why it was refused; empty if it passed.
fn reasons(source: &str, target: &str, settings: &str) -> String {
    let workshop = Workshop::new();
    workshop.list(source, &[target], settings);
    let outcome = workshop.build();
    let reasons: Vec<String> = outcome
        .failures
        .iter()
        .flat_map(|failure| failure.reasons.clone())
        .collect();
    assert_eq!(
        outcome.manifest.images.is_empty(),
        !reasons.is_empty(),
        "a refused image is not in the manifest, and only that"
    );
    reasons.join("\n")
}

fn refused(source: &str, target: &str, settings: &str, why: &str) {
    let reasons = reasons(source, target, settings);
    assert!(
        reasons.contains(why),
        "{source} for {target}: expected {why:?} in {reasons:?}"
    );
}

fn passes(source: &str, target: &str, settings: &str) {
    assert_eq!(
        reasons(source, target, settings),
        "",
        "{source} for {target}"
    );
}

#[test]
fn good_kernels_pass() {
    for target in [
        "sm_80",
        "sm_86",
        "sm_89",
        "sm_90",
        "sm_90a",
        "sm_100",
        "sm_120",
        "compute_80",
    ] {
        passes("sample.cu", target, "");
    }
}

#[test]
fn wmma_load_from_a_local_array() {
    refused(
        "wmma_local.cu",
        "sm_80",
        TENSOR,
        "cannot perform wmma load or store on local memory",
    );
}

#[test]
fn spills() {
    refused("spill.cu", "sm_80", "", "bytes of spill stores");
}

#[test]
fn stack_frame() {
    refused("stack.cu", "sm_90", "", "a stack frame of");
}

#[test]
fn compiler_warning() {
    refused("warning.cu", "sm_80", "", "declared but never referenced");
}

#[test]
fn shared_memory_over_the_targets_limit() {
    for small in ["sm_86", "sm_89", "sm_120"] {
        refused(
            "shared_memory.cu",
            small,
            "",
            "102400 bytes of shared memory",
        );
    }
    for large in ["sm_80", "sm_90", "sm_100"] {
        passes("shared_memory.cu", large, "");
    }
}

#[test]
fn static_shared_memory_counts_too() {
    refused(
        "static_shared_memory.cu",
        "sm_120",
        "",
        "102400 bytes of shared memory",
    );
    passes("static_shared_memory.cu", "sm_90", "");
}

#[test]
fn no_tensor_core_instruction() {
    refused("sample.cu", "sm_80", TENSOR, "no HMMA in the machine code");
    refused(
        "tensor.cu",
        "sm_90a",
        "tensor_instruction = \"HGMMA\"",
        "no HGMMA in the machine code",
    );
    for target in ["sm_80", "sm_90", "sm_100", "sm_120", "compute_80"] {
        passes("tensor.cu", target, TENSOR);
    }
}

#[test]
fn products_that_wait_for_descriptors() {
    refused(
        "products_wait.cu",
        "sm_90a",
        "tensor_instruction = \"HGMMA\"",
        "products wait for descriptors",
    );
}

#[test]
fn setmaxnreg_ignored() {
    refused("setmaxnreg_ignored.cu", "sm_90a", SETMAXNREG, "(C7508)");
    refused(
        "setmaxnreg_ignored.cu",
        "sm_90a",
        SETMAXNREG,
        "no USETMAXREG in the machine code",
    );
    passes("setmaxnreg.cu", "sm_90a", SETMAXNREG);
}

#[test]
fn record_missing() {
    refused(
        "record_missing.cu",
        "sm_80",
        "",
        "the image has no `warptile_record`",
    );
}

#[test]
fn record_with_a_wrong_magic_number() {
    refused("record_magic.cu", "sm_80", "", "instead of 0x57545232");
}

#[test]
fn no_wait_for_the_launch_before() {
    refused("no_wait.cu", "sm_90", "", "no ACQBULK in the machine code");
    // Launched in order.
    passes("no_wait.cu", "sm_80", "");
}

#[test]
fn record_of_another_tiling() {
    refused(
        "record_tiling.cu",
        "sm_80",
        "",
        "the record says block_n = 128, instances.toml says 64",
    );
}

#[test]
fn record_of_another_block() {
    refused(
        "record_block.cu",
        "sm_80",
        "",
        "takes no parameter block that this program declares",
    );
}

#[test]
fn entry_missing() {
    refused(
        "entry_missing.cu",
        "sm_80",
        "",
        "no entry function `warptile_scalar_d64_32x64_w4_s2_f16`",
    );
    refused("entry_missing.cu", "sm_80", "", "entry functions besides");
}

#[test]
fn parameter_block_of_another_size() {
    let bytes = size_of::<warptile_spec::abi::Forward>();
    let why = format!(
        "the record says the parameter block has {bytes} bytes, the entry takes parameters of [{bytes}, 4] bytes"
    );
    for target in ["sm_80", "sm_90", "sm_100", "sm_120"] {
        refused("param_bytes.cu", target, "", &why);
    }
}

/// As tensor maps are; the parameter space itself does not start at a multiple of 64 bytes.
#[test]
fn parameter_block_aligned_to_64_bytes() {
    for target in ["sm_80", "sm_90a", "sm_100", "sm_120"] {
        passes("aligned_params.cu", target, "");
    }
}

#[test]
fn source_that_does_not_compile() {
    refused(
        "syntax.cu",
        "sm_80",
        "",
        "identifier \"missing\" is undefined",
    );
}
