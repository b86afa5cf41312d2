//! Images from a folder, on the stand-in.

use crate::common::{example, expect_code, warptile};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use std::process::Command;
use warptile_fake_cuda::FakeDriver;
use warptile_kernels::Image;

/// The embedded image that the folder's is a copy of.
pub(crate) fn original() -> &'static Image {
    warptile_kernels::image("wmma_d64_64x64_w8_s2_f16_sm_90").unwrap()
}

pub(crate) const KERNEL: &str = "wmma_d64_64x64_w8_s2_debug";
pub(crate) const IMAGE: &str = "wmma_d64_64x64_w8_s2_debug_f16_sm_90";
const PROBLEM: &str = "q64 k64 h2 d64 f16";

pub(crate) fn entry(bytes: &[u8]) -> Value {
    let image = original();
    let hash: String = { Sha256::digest(bytes).into_iter() }
        .map(|byte| format!("{byte:02x}"))
        .collect();
    json!({
        "name": IMAGE, "kernel": KERNEL, "entry": image.entry, "family": "wmma",
        "features": image.features.bits(), "target": "sm_90", "element": "f16",
        "block_m": 64, "block_n": 64, "head_dim": 64, "stages": 2, "warps": 8,
        "registers": 100, "static_shared_bytes": 0, "abi_hash": format!("{:016x}", image.abi_hash),
        "toolchain": "NVRTC", "source_hash": "0", "sha256": hash, "pack": "image.cubin",
    })
}

pub(crate) fn write(folder: &Path, bytes: &[u8], images: &[Value]) {
    fs::write(folder.join("image.cubin"), bytes).unwrap();
    let manifest = serde_json::to_vec(&json!({ "images": images })).unwrap();
    fs::write(folder.join("manifest.json"), manifest).unwrap();
}

fn program(fake: &FakeDriver, folder: &Path) -> Command {
    let mut command = warptile();
    command.env("WARPTILE_LIBCUDA", fake.path());
    command.env("WARPTILE_KERNELS_DIR", folder);
    command.env("COLUMNS", "200");
    command
}

#[test]
fn an_image_from_a_folder_runs_if_it_is_named_and_only_then() {
    let fake = FakeDriver::open();
    let folder = tempfile::tempdir().unwrap();
    let bytes = original().bytes().unwrap();
    write(folder.path(), &bytes, &[entry(&bytes)]);
    let told = |code, arguments: &[&str]| {
        let mut command = program(&fake, folder.path());
        let (stdout, stderr) = expect_code(code, command.args(arguments));
        stdout + &stderr
    };
    let qkv = example("minilm_qkv.safetensors");
    let bench = ["bench", "--samples", "1", "--shape", PROBLEM];
    for name in [KERNEL, IMAGE] {
        let commands: [(i32, Vec<&str>); 4] = [
            (0, [&bench[..], &["--kernel", name]].concat()),
            (0, vec!["plan", PROBLEM, "--kernel", name]),
            (0, vec!["plan", PROBLEM, "--kernel", name, "--gpu", "h100"]),
            // The stand-in computes nothing, which is wrong.
            (
                1,
                vec![
                    "verify",
                    "--case",
                    PROBLEM,
                    "--kernel",
                    name,
                    "--threads",
                    "1",
                ],
            ),
        ];
        for (code, arguments) in commands {
            let text = told(code, &arguments);
            assert!(text.contains(KERNEL), "{arguments:?}: {text}");
        }
    }
    // Its tiles hold the head size of the file's tensors.
    let text = told(
        0,
        &[
            "run",
            qkv.to_str().unwrap(),
            "--kernel",
            KERNEL,
            "--explain",
        ],
    );
    assert!(text.contains(KERNEL), "{text}");
    for arguments in [
        bench.to_vec(),
        [&bench[..], &["--kernel", "wmma"]].concat(),
        vec!["plan", PROBLEM, "--explain"],
        vec!["plan", PROBLEM, "--explain", "--kernel", "wmma"],
        vec!["info", "--explain"],
    ] {
        let text = told(0, &arguments);
        assert!(!text.contains("debug"), "{arguments:?}: {text}");
    }
    let text = told(2, &["plan", PROBLEM, "--kernel", IMAGE, "--gpu", "a100"]);
    assert!(text.contains("no kernel takes"), "{text}");
    // Without the folder the name is unknown.
    let mut command = warptile();
    command.env("WARPTILE_LIBCUDA", fake.path());
    command.args(["plan", PROBLEM, "--kernel", KERNEL]);
    let (_, stderr) = expect_code(2, &mut command);
    assert!(stderr.contains("unknown kernel"), "{stderr}");
}

#[test]
fn a_folder_that_is_not_what_it_says_is_refused() {
    let fake = FakeDriver::open();
    let folder = tempfile::tempdir().unwrap();
    let bytes = original().bytes().unwrap();
    let refused = |code, bytes: &[u8], images: &[Value], reason: &str| {
        write(folder.path(), bytes, images);
        let mut command = program(&fake, folder.path());
        command.args(["plan", PROBLEM]);
        let (_, stderr) = expect_code(code, &mut command);
        assert!(stderr.contains(reason), "{reason}: {stderr}");
        assert!(stderr.contains("manifest.json"), "{stderr}");
    };
    let with = |field: &str, value: Value| {
        let mut entry = entry(&bytes);
        entry[field] = value;
        entry
    };
    let good = entry(&bytes);

    // Another ABI: in the record of a file whose hash is right, and in the manifest.
    let hash = original().abi_hash.to_le_bytes();
    let mut other = bytes.clone();
    let at = { bytes.windows(8) }.position(|window| window == hash);
    other[at.unwrap()] ^= 1;
    refused(
        2,
        &other,
        &[entry(&other)],
        "takes a parameter block with the ABI hash",
    );
    let abi_hash = with("abi_hash", json!("0123456789abcdef"));
    refused(
        2,
        &bytes,
        &[abi_hash],
        "the manifest says the ABI hash 0123456789abcdef",
    );

    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    refused(
        2,
        &changed,
        std::slice::from_ref(&good),
        "was changed after it was built",
    );
    refused(
        2,
        &bytes,
        &[good.clone(), good.clone()],
        "two images are called wmma_d64_64x64_w8_s2_debug_f16_sm_90",
    );
    let kernel = with("kernel", json!(original().kernel));
    refused(2, &bytes, &[kernel], "need names of their own");
    refused(
        2,
        &bytes,
        &[with("block_n", json!(32))],
        "the manifest says block_n = 32, its record 64",
    );
    refused(
        2,
        &bytes,
        &[with("pack", json!("../image.cubin"))],
        "is not the name of a file",
    );
    refused(
        2,
        &bytes,
        &[with("family", json!("fast"))],
        "knows no family fast",
    );
    refused(
        2,
        &bytes,
        &[with("target", json!("sm_"))],
        "knows no target sm_",
    );
    refused(
        2,
        &bytes,
        &[with("pack", json!("gone.cubin"))],
        "cannot read gone.cubin",
    );
    refused(
        4,
        &bytes,
        &[json!({ "name": IMAGE })],
        "not the JSON that is needed",
    );
    fs::remove_file(folder.path().join("manifest.json")).unwrap();
    let mut command = program(&fake, folder.path());
    let (_, stderr) = expect_code(4, command.args(["plan", PROBLEM]));
    assert!(stderr.contains("cannot read"), "{stderr}");
}
