//! `cargo xtask bundle`: everything a GPU host without Rust needs to run the program, the tests and the benchmarks.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::files;

/// Size limit of the archive in bytes, so that it can be carried to a host by any means.
pub const SIZE_LIMIT: u64 = 64 << 20;

/// Every executable that launches kernels embeds the same images. A dictionary larger than the bundle lets xz store them
/// once; beyond that, its fastest preset is hardly larger than its best (9.4 and 8.9 MB of 77).
const XZ_OPTIONS: &str = "--lzma2=preset=1,dict=256MiB";

/// The bundle is for Linux hosts, as is `run.sh`.
const LIBRARY_SUFFIX: &str = ".so";

const RUN_SCRIPT: &str = include_str!("../run.sh");

/// Tests that are ignored where there is no C++ compiler, and need no GPU.
const NEEDS_A_COMPILER: &str = "tests/attention-emulated";

/// Data that tests and benchmarks read, relative to the repository's root; what does not exist is left out.
const DATA: [&str; 5] = [
    "examples",
    "kernels",
    "benches/peers",
    "evidence",
    "scripts",
];

/// Workspaces with a script `build-gpu-tests.sh DIRECTORY`, which builds what runs on a GPU host by `DIRECTORY/run.sh`.
const INTEGRATIONS: [&str; 4] = ["candle", "cudarc", "c", "python"];

/// The file that names the commit the bundle was made from.
const COMMIT: &str = "commit.txt";

/// A file of the bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Path inside the bundle.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// An executable or library that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Artifact {
    from: PathBuf,
    to: String,
}

/// The files that were made.
pub struct Bundle {
    /// The files in the directory.
    pub files: Vec<Packed>,
    /// The directory as one compressed file, next to it.
    pub archive: PathBuf,
    /// Size of the archive in bytes.
    pub archive_bytes: u64,
}

/// Builds the release program, tests and benchmarks, stripped, and packs them with their data and `run.sh` into the
/// directory `out` and the archive `{out}.tar.xz`. With `integrations` also their tests.
///
/// # Errors
/// If anything does not build or the bundle would be too large.
pub fn bundle(root: &Path, out: &Path, integrations: bool) -> Result<Bundle> {
    let mut artifacts = Vec::new();
    for arguments in [
        &[
            "build",
            "--package=warptile-cli",
            "--package=warptile-fake-cuda",
        ][..],
        // xtask's own tests need the compiler and the network, which a GPU host need not have. Examples are built with tests.
        &["test", "--no-run", "--workspace", "--exclude=xtask"],
        &[
            "test",
            "--no-run",
            "--workspace",
            "--exclude=xtask",
            "--test=gpu*",
        ],
        &[
            "bench",
            "--no-run",
            "--package=warptile-benches",
            "--features=criterion",
            "--benches",
        ],
    ] {
        let benchmarks_only = arguments[0] == "bench";
        for artifact in cargo(root, arguments)? {
            // `--benches` also builds the library's unit tests, a second time.
            if benchmarks_only && !artifact.to.starts_with("benches/") {
                continue;
            }
            let same_place = |other: &&Artifact| other.to == artifact.to;
            if let Some(other) = artifacts.iter().find(same_place) {
                // Cargo names a library where it built it and where it linked it to; the contents are the same.
                if *other == artifact || artifact.to.ends_with(LIBRARY_SUFFIX) {
                    continue;
                }
                bail!(
                    "two test executables would be called {}; rename one of the targets",
                    artifact.to
                );
            }
            artifacts.push(artifact);
        }
    }

    empty(out)?;
    for Artifact { from, to } in &artifacts {
        // The rest has been tested where it was built, and each would bring the embedded kernels once more.
        let is_test = to.starts_with("tests/") && !to.ends_with(LIBRARY_SUFFIX);
        if !is_test || (to != NEEDS_A_COMPILER && has_gpu_tests(from)?) {
            copy(from, &out.join(to))?;
        }
    }
    if integrations {
        for name in INTEGRATIONS {
            integration(root, name, &out.join("integrations").join(name))?;
        }
    }
    for data in DATA {
        copy_tree(&root.join(data), &out.join(data))?;
    }
    // A test of the program reads it.
    copy(&root.join("README.md"), &out.join("README.md"))?;
    if let Some(commit) = commit(root) {
        files::write(&out.join(COMMIT), commit.as_bytes())?;
    }
    let script = out.join("run.sh");
    files::write(&script, RUN_SCRIPT.as_bytes())?;
    files::make_executable(&script)?;

    let archive = archive(out)?;
    let archive_bytes = std::fs::metadata(&archive)
        .map_err(files::failed("read", &archive))?
        .len();
    ensure!(
        archive_bytes <= SIZE_LIMIT,
        "the archive has {archive_bytes} bytes, the limit is {SIZE_LIMIT}"
    );
    Ok(Bundle {
        files: contents(out)?,
        archive,
        archive_bytes,
    })
}

/// Builds the GPU tests of an integration into `out`.
fn integration(root: &Path, name: &str, out: &Path) -> Result<()> {
    let script = root
        .join("integrations")
        .join(name)
        .join("build-gpu-tests.sh");
    let status = Command::new("bash")
        .arg(&script)
        .arg(out)
        .stdout(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => bail!("{} failed", script.display()),
    }
}

/// The commit that the bundle is made from, with `-dirty` if files differ from it. `None` outside a git repository.
fn commit(root: &Path) -> Option<String> {
    let described = Command::new("git")
        .args([
            "describe",
            "--always",
            "--abbrev=40",
            "--exclude=*",
            "--dirty",
        ])
        .current_dir(root)
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(described.stdout).ok()?;
    described.status.success().then_some(text)
}

/// Packs the directory `out` into `{out}.tar.xz`, whose only entry is the directory's last name.
fn archive(out: &Path) -> Result<PathBuf> {
    let out = std::path::absolute(out).map_err(files::failed("find", out))?;
    let name = out.file_name().unwrap_or_default();
    let mut file_name = name.to_owned();
    file_name.push(".tar.xz");
    let path = out.with_file_name(file_name);
    let what = || format!("cannot make {} with tar and xz", path.display());
    let status = Command::new("tar")
        .args(["--create", "--xz", "--file"])
        .arg(&path)
        .arg("--directory")
        .arg(out.parent().unwrap_or(&out))
        .arg(name)
        .env("XZ_OPT", XZ_OPTIONS)
        .status()
        .with_context(|| format!("{}: tar does not start", what()))?;
    ensure!(status.success(), "{}: tar ended with {status}", what());
    Ok(path)
}

/// Returns true if a test executable has tests that are ignored without a GPU.
fn has_gpu_tests(executable: &Path) -> Result<bool> {
    let listed = Command::new(executable)
        .args(["--list", "--ignored", "--format=terse"])
        .output()
        .with_context(|| format!("cannot list the tests of {}", executable.display()))?;
    ensure!(
        listed.status.success(),
        "{} ended with {} when it was to list its tests",
        executable.display(),
        listed.status
    );
    Ok(String::from_utf8_lossy(&listed.stdout)
        .lines()
        .any(|line| line.ends_with(": test")))
}

/// Runs one cargo command in a target directory of its own, because stripping changes every artifact, and returns what of
/// its output belongs into the bundle.
fn cargo(root: &Path, arguments: &[&str]) -> Result<Vec<Artifact>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut command = Command::new(cargo);
    command
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .arg("--target-dir")
        .arg(target.join("bundle"))
        .env("CARGO_PROFILE_RELEASE_STRIP", "true")
        .env("CARGO_PROFILE_BENCH_STRIP", "true")
        .current_dir(root)
        .stderr(Stdio::inherit());
    // `cargo bench` has its own optimized profile.
    if arguments[0] != "bench" {
        command.arg("--release");
    }
    let output = command.output().context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "`cargo {}` failed",
        arguments.join(" ")
    );
    let mut artifacts = Vec::new();
    for line in output.stdout.split(|&byte| byte == b'\n') {
        if !line.is_empty() {
            let message = serde_json::from_slice(line).context("cannot read cargo's messages")?;
            artifacts.extend(artifact(root, &message));
        }
    }
    Ok(artifacts)
}

/// Where an artifact of cargo's goes, if anywhere.
///
/// - the program to `bin/`, examples to `bin/examples/{target}`, benchmarks to `benches/{target}`;
/// - unit tests of a library to `tests/{directory}`, others to `tests/{directory}-{target}`, the directory being the
///   crate's, as in `tests/driver-memory`;
/// - dynamic libraries, which are stand-ins for the driver, next to the tests.
fn artifact(root: &Path, message: &Value) -> Option<Artifact> {
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?;
    // Dependencies lie outside the workspace.
    directory.strip_prefix(root).ok()?;
    let directory = directory.file_name()?.to_str()?;
    let target = message["target"]["name"].as_str()?;
    let kinds: Vec<&str> = message["target"]["kind"]
        .as_array()?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let is_test = message["profile"]["test"] == true;

    let Some(executable) = message["executable"].as_str() else {
        let library = kinds.contains(&"cdylib").then(|| {
            message["filenames"]
                .as_array()?
                .iter()
                .filter_map(Value::as_str)
                .find(|name| name.ends_with(LIBRARY_SUFFIX))
        })??;
        return Some(Artifact {
            from: library.into(),
            to: format!("tests/{}", Path::new(library).file_name()?.to_str()?),
        });
    };
    let to = match (kinds.first()?, is_test) {
        (&"bench", _) => format!("benches/{target}"),
        (&"bin", false) => format!("bin/{target}"),
        (&"example", false) => format!("bin/examples/{target}"),
        (&"test" | &"bin", true) => format!("tests/{directory}-{target}"),
        (_, true) => format!("tests/{directory}"),
        _ => return None,
    };
    Some(Artifact {
        from: executable.into(),
        to,
    })
}

/// Makes room for a new bundle, but only where an old one lies or nothing.
fn empty(out: &Path) -> Result<()> {
    if files::list(out)?.is_empty() {
        return files::create_dir(out);
    }
    ensure!(
        out.join("run.sh").exists(),
        "{} exists and is not a bundle (it has no run.sh); remove it or choose another --out",
        out.display()
    );
    std::fs::remove_dir_all(out).map_err(files::failed("delete", out))?;
    files::create_dir(out)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        files::create_dir(parent)?;
    }
    std::fs::copy(from, to).map_err(files::failed("copy", from))?;
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    for path in files::tree(from)? {
        copy(&from.join(&path), &to.join(&path))?;
    }
    Ok(())
}

/// Every file under `out`, in order of path.
fn contents(out: &Path) -> Result<Vec<Packed>> {
    let packed = files::tree(out)?.into_iter().map(|path| {
        let file = out.join(&path);
        let metadata = std::fs::metadata(&file).map_err(files::failed("read", &file))?;
        Ok(Packed {
            path: path.display().to_string(),
            bytes: metadata.len(),
        })
    });
    packed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without its tests a bundle would be taken for whole.
    #[test]
    #[cfg(unix)]
    fn tests_that_cannot_be_listed_are_an_error() {
        assert!(has_gpu_tests(Path::new("false")).is_err());
        assert!(!has_gpu_tests(Path::new("true")).unwrap());
    }

    fn place(kind: &str, test: bool, name: &str, manifest: &str) -> Option<String> {
        let message = serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": manifest,
            "target": { "name": name, "kind": [kind] },
            "profile": { "test": test },
            "executable": "/repo/target/x",
        });
        artifact(Path::new("/repo"), &message).map(|artifact| artifact.to)
    }

    #[test]
    fn artifacts_are_named_after_crate_and_target() {
        let driver = "/repo/crates/driver/Cargo.toml";
        let cli = "/repo/crates/cli/Cargo.toml";
        assert_eq!(
            place("lib", true, "warptile_driver", driver).unwrap(),
            "tests/driver"
        );
        assert_eq!(
            place("test", true, "memory", driver).unwrap(),
            "tests/driver-memory"
        );
        assert_eq!(
            place("bin", false, "warptile", cli).unwrap(),
            "bin/warptile"
        );
        let example = place(
            "example",
            false,
            "decoder",
            "/repo/crates/attention/Cargo.toml",
        );
        assert_eq!(example.unwrap(), "bin/examples/decoder");
        assert_eq!(
            place("bin", true, "warptile", cli).unwrap(),
            "tests/cli-warptile"
        );
        assert_eq!(
            place("bench", true, "forward", "/repo/benches/Cargo.toml").unwrap(),
            "benches/forward"
        );
        assert_eq!(place("custom-build", false, "build", driver), None);
        assert_eq!(
            place("lib", true, "serde", "/registry/serde/Cargo.toml"),
            None
        );
    }

    #[test]
    fn a_bundle_says_what_it_was_made_from() {
        let directory = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let done = Command::new("git")
                .args(["-c", "user.name=a", "-c", "user.email=a@example.org"])
                .args(arguments)
                .current_dir(directory.path())
                .output()
                .unwrap();
            assert!(done.status.success(), "{done:?}");
            String::from_utf8(done.stdout).unwrap()
        };
        assert_eq!(commit(directory.path()), None);
        git(&["init", "--quiet"]);
        files::write(&directory.path().join("file"), b"1").unwrap();
        git(&["add", "file"]);
        git(&["commit", "--quiet", "--message=one"]);
        git(&["tag", "-a", "v1", "--message=one"]);
        let head = git(&["rev-parse", "HEAD"]);
        assert_eq!(commit(directory.path()).unwrap(), head);
        files::write(&directory.path().join("file"), b"2").unwrap();
        let dirty = format!("{}-dirty\n", head.trim());
        assert_eq!(commit(directory.path()).unwrap(), dirty);
    }

    #[test]
    fn a_stand_in_driver_lies_beside_the_tests() {
        let message = serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/repo/crates/fake-cuda/Cargo.toml",
            "target": { "name": "warptile_fake_cuda", "kind": ["cdylib", "rlib"] },
            "profile": { "test": false },
            "executable": null,
            "filenames": ["/repo/target/libfake.rlib", "/repo/target/libwarptile_fake_cuda.so"],
        });
        let artifact = artifact(Path::new("/repo"), &message).unwrap();
        assert_eq!(artifact.to, "tests/libwarptile_fake_cuda.so");
        assert_eq!(
            artifact.from,
            Path::new("/repo/target/libwarptile_fake_cuda.so")
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_archive_stores_what_executables_share_once() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("bundle");
        // Bytes that do not compress, twice.
        let mut state = 1_u32;
        let images: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(1 << 20)
        .collect();
        files::write(&out.join("tests/one"), &images).unwrap();
        files::write(&out.join("tests/two"), &images).unwrap();
        let archive = archive(&out).unwrap();
        assert_eq!(archive, directory.path().join("bundle.tar.xz"));
        let bytes = std::fs::metadata(&archive).unwrap().len();
        assert!(bytes < (1 << 20) + (1 << 16), "{bytes} bytes");

        let unpacked = tempfile::tempdir().unwrap();
        let tar = Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .current_dir(unpacked.path())
            .status();
        assert!(tar.unwrap().success());
        assert_eq!(
            std::fs::read(unpacked.path().join("bundle/tests/two")).unwrap(),
            images
        );
    }

    #[test]
    #[cfg(unix)]
    fn an_integration_builds_its_tests_itself() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for name in INTEGRATIONS {
            let script = format!("integrations/{name}/build-gpu-tests.sh");
            let text = std::fs::read_to_string(root.join(&script)).unwrap();
            assert!(text.contains("\"$directory/run.sh\""), "{script}");
        }
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("integrations/one/build-gpu-tests.sh");
        let out = directory.path().join("bundle/integrations/one");
        files::write(&script, b"mkdir -p \"$1\" && echo built >\"$1/run.sh\"").unwrap();
        integration(directory.path(), "one", &out).unwrap();
        assert_eq!(std::fs::read(out.join("run.sh")).unwrap(), b"built\n");
        files::write(&script, b"exit 3").unwrap();
        let failed = integration(directory.path(), "one", &out).unwrap_err();
        assert!(
            failed
                .to_string()
                .ends_with("one/build-gpu-tests.sh failed")
        );
    }

    #[test]
    fn only_an_old_bundle_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("bundle");
        std::fs::create_dir(&out).unwrap();
        std::fs::write(out.join("thesis.txt"), "years of work").unwrap();
        let error = empty(&out).unwrap_err();
        assert!(error.to_string().contains("is not a bundle"), "{error}");
        assert!(out.join("thesis.txt").exists());

        std::fs::write(out.join("run.sh"), "").unwrap();
        empty(&out).unwrap();
        assert!(files::list(&out).unwrap().is_empty());
    }
}
