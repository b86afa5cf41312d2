//! The pinned compiler: fetched by pip from the wheels `toolchain.txt` names, checked against the SHA-256 it gives,
//! unpacked once into a git-ignored cache.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::files;

/// A usable compiler.
#[derive(Debug, Clone)]
pub struct Toolchain {
    /// NVRTC's shared library.
    pub nvrtc: PathBuf,
    /// Include directories, in search order.
    pub includes: Vec<PathBuf>,
    /// The disassembler.
    pub nvdisasm: PathBuf,
    /// Such as `NVRTC 12.8.93`.
    pub version: String,
    /// True if this is the pinned toolchain, whose images may be committed.
    pub pinned: bool,
}

/// One line of `toolchain.txt`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    name: String,
    version: String,
    sha256: String,
}

/// The committed pins.
const REQUIREMENTS: &str = include_str!("../toolchain.txt");
const NVRTC_DISTRIBUTION: &str = "nvidia-cuda-nvrtc-cu12";
const STAMP: &str = "stamp.txt";

/// The pinned toolchain, fetched into `cache` unless it is there already.
///
/// # Errors
/// no pip, no network, or a wheel that does not match its pin.
pub fn pinned(cache: &Path) -> Result<Toolchain> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(
            "the pinned toolchain is for Linux x86-64; elsewhere pass `--toolkit DIR` with an installed CUDA toolkit"
        );
    }
    let root = installed_root(cache);
    if !is_installed(&root, REQUIREMENTS) {
        files::create_dir(cache)?;
        let wheels =
            tempfile::tempdir_in(cache).map_err(files::failed("create a directory in", cache))?;
        download(wheels.path())?;
        install(wheels.path(), REQUIREMENTS, &root)?;
    }
    let requirements = parse_requirements(REQUIREMENTS)?;
    let nvrtc_version = requirements
        .iter()
        .find(|requirement| requirement.name == NVRTC_DISTRIBUTION)
        .map_or("", |requirement| &requirement.version);
    let nvidia = root.join("nvidia");
    Ok(Toolchain {
        nvrtc: first_file(&nvidia, "NVRTC library", &["cuda_nvrtc/lib/libnvrtc.so.12"])?,
        // The runtime's headers first: the compiler's directory only adds crt/.
        includes: ["cuda_runtime", "cuda_nvcc", "cuda_cccl"]
            .map(|package| nvidia.join(package).join("include"))
            .into(),
        nvdisasm: first_file(&nvidia, "disassembler", &["cu13/bin/nvdisasm"])?,
        version: format!("NVRTC {nvrtc_version}"),
        pinned: true,
    })
}

/// A CUDA toolkit installed at `root` (12 or newer). Good for trying kernels out; what it compiles is not committed.
///
/// # Errors
/// If a piece is missing.
pub fn toolkit(root: &Path) -> Result<Toolchain> {
    let nvrtc = first_file(
        root,
        "NVRTC library",
        &[
            "lib64/libnvrtc.so",
            "lib64/libnvrtc.so.12",
            "lib64/libnvrtc.so.13",
            "lib/libnvrtc.so.12",
        ],
    )?;
    Ok(Toolchain {
        nvrtc,
        // From 13 on, the C++ standard library lies in a directory of its own.
        includes: vec![root.join("include"), root.join("include/cccl")],
        nvdisasm: first_file(root, "disassembler", &["bin/nvdisasm"])?,
        version: format!("CUDA toolkit {}", toolkit_version(root)),
        pinned: false,
    })
}

/// Where the pinned toolchain lies once installed; other pins, another directory.
pub fn installed_root(cache: &Path) -> PathBuf {
    cache
        .join("toolchain")
        .join(&files::sha256(REQUIREMENTS.as_bytes())[..16])
}

/// The toolkit states its parts' versions in `version.json`; all that is wanted is something to tell toolkits apart by.
fn toolkit_version(root: &Path) -> String {
    let version = || -> Option<String> {
        let text = std::fs::read_to_string(root.join("version.json")).ok()?;
        let json: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some(json["cuda_nvrtc"]["version"].as_str()?.to_owned())
    };
    version().unwrap_or_else(|| "of unknown version".to_owned())
}

fn first_file(root: &Path, what: &'static str, tried: &[&str]) -> Result<PathBuf> {
    tried
        .iter()
        .map(|relative| root.join(relative))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "{} has no {what}; tried {}",
                root.display(),
                tried.join(", ")
            )
        })
}

fn parse_requirements(text: &str) -> Result<Vec<Requirement>> {
    let mut requirements = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parsed = line
            .split_once(" --hash=sha256:")
            .and_then(|(pin, sha256)| Some((pin.split_once("==")?, sha256)))
            .filter(|(_, sha256)| {
                sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit())
            });
        let Some(((name, version), sha256)) = parsed else {
            bail!(
                "toolchain.txt line {}: expected `name==version --hash=sha256:<64 hex digits>`, found `{line}`",
                index + 1
            );
        };
        requirements.push(Requirement {
            name: name.to_owned(),
            version: version.to_owned(),
            sha256: sha256.to_owned(),
        });
    }
    Ok(requirements)
}

/// pip, as its ordinary client, with platform flags so that any Python 3 fetches the same files.
fn download(directory: &Path) -> Result<()> {
    let requirements = directory.join("requirements.txt");
    files::write(&requirements, REQUIREMENTS.as_bytes())?;
    let mut tried = Vec::new();
    for python in ["python3", "python"] {
        let status = Command::new(python)
            .args([
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--require-hashes",
            ])
            .args(["--only-binary=:all:", "--platform=manylinux2014_x86_64"])
            .args(["--implementation=py", "--abi=none", "--python-version=3"])
            .arg("--requirement")
            .arg(&requirements)
            .arg("--dest")
            .arg(directory)
            .status();
        match status {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => tried.push(format!("`{python} -m pip download` ended with {status}")),
            Err(error) => tried.push(format!("`{python}` does not start: {error}")),
        }
    }
    bail!(
        "pip could not fetch the pinned wheels: {}. With a CUDA toolkit installed, `--toolkit \"$CUDA_HOME\"` uses that instead",
        tried.join("; ")
    )
}

fn is_installed(root: &Path, requirements: &str) -> bool {
    std::fs::read_to_string(root.join(STAMP)).is_ok_and(|stamp| stamp == requirements)
}

/// Checks every wheel in `wheels` against `requirements`, then unpacks them into `root`. The directory appears whole or
/// not at all, and its stamp says which pins it was made from.
fn install(wheels: &Path, requirements: &str, root: &Path) -> Result<()> {
    let downloaded = files::list(wheels)?;
    let mut verified = Vec::new();
    for requirement in parse_requirements(requirements)? {
        let prefix = format!(
            "{}-{}-",
            requirement.name.replace('-', "_"),
            requirement.version
        );
        let wheel = downloaded
            .iter()
            .find(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(&prefix) && name.ends_with(".whl")
            })
            .with_context(|| {
                format!(
                    "the wheel of {} {} is missing from the download",
                    requirement.name, requirement.version
                )
            })?;
        let bytes = files::read(wheel)?;
        let found = files::sha256(&bytes);
        if found != requirement.sha256 {
            bail!(
                "{} has SHA-256 {found}, but toolchain.txt pins {}: the file was changed on its way or the pin is wrong; nothing was installed",
                wheel.display(),
                requirement.sha256
            );
        }
        verified.push((wheel, bytes));
    }

    let parent = root.parent().unwrap_or(root);
    files::create_dir(parent)?;
    let staging =
        tempfile::tempdir_in(parent).map_err(files::failed("create a directory in", parent))?;
    for (wheel, bytes) in verified {
        unpack(wheel, &bytes, staging.path())?;
    }
    files::write(&staging.path().join(STAMP), requirements.as_bytes())?;
    match std::fs::rename(staging.path(), root) {
        // Another process was faster; its directory was made from the same verified wheels.
        Err(_) if is_installed(root, requirements) => Ok(()),
        renamed => renamed.map_err(files::failed("create", root)),
    }
}

/// Unpacks what compiling and disassembling needs; the wheels also hold a second compiler and a third of a gigabyte of
/// libraries nothing here opens.
fn unpack(wheel: &Path, bytes: &[u8], destination: &Path) -> Result<()> {
    let what = || format!("cannot unpack {}", wheel.display());
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(bytes)).with_context(what)?;
    for index in 0..archive.len() {
        let mut member = archive.by_index(index).with_context(what)?;
        // `enclosed_name` refuses absolute paths and `..`.
        let Some(name) = member.enclosed_name() else {
            continue;
        };
        if !member.is_file() || !is_needed(&name.to_string_lossy()) {
            continue;
        }
        let mut contents = Vec::new();
        member.read_to_end(&mut contents).with_context(what)?;
        let path = destination.join(&name);
        files::write(&path, &contents)?;
        if name.parent().is_some_and(|parent| parent.ends_with("bin")) {
            files::make_executable(&path)?;
        }
    }
    Ok(())
}

fn is_needed(name: &str) -> bool {
    name.contains("/include/")
        || name.ends_with("/bin/nvdisasm")
        || name.ends_with("/bin/cuobjdump")
        || (name.contains("/lib/libnvrtc") && !name.contains(".alt."))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const MEMBER: &str = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12";

    /// A wheel with one library in it, and the requirements line that pins it.
    fn wheel(directory: &Path) -> (PathBuf, String) {
        let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        archive
            .start_file(MEMBER, zip::write::SimpleFileOptions::default())
            .unwrap();
        archive.write_all(b"library").unwrap();
        let bytes = archive.finish().unwrap().into_inner();
        let path = directory.join("some_tool-1.2-py3-none-any.whl");
        std::fs::write(&path, &bytes).unwrap();
        let requirement = format!(
            "# pins\nsome-tool==1.2 --hash=sha256:{}\n",
            files::sha256(&bytes)
        );
        (path, requirement)
    }

    #[test]
    fn a_verified_wheel_is_unpacked_and_stamped() {
        let directory = tempfile::tempdir().unwrap();
        let (_, requirements) = wheel(directory.path());
        let root = directory.path().join("toolchain/root");
        install(directory.path(), &requirements, &root).unwrap();
        assert_eq!(std::fs::read(root.join(MEMBER)).unwrap(), b"library");
        assert!(is_installed(&root, &requirements));
        assert!(!is_installed(&root, "other pins"));
    }

    #[test]
    fn a_tampered_wheel_is_refused_and_nothing_is_installed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, requirements) = wheel(directory.path());
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let root = directory.path().join("toolchain/root");
        let error = install(directory.path(), &requirements, &root).unwrap_err();
        assert!(error.to_string().contains("toolchain.txt pins"), "{error}");
        assert!(!root.exists());
    }

    #[test]
    fn a_wheel_pip_did_not_bring_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let requirements = format!("some-tool==1.3 --hash=sha256:{}\n", "0".repeat(64));
        wheel(directory.path());
        let root = directory.path().join("toolchain/root");
        let error = install(directory.path(), &requirements, &root).unwrap_err();
        assert!(error.to_string().contains("some-tool 1.3"), "{error}");
    }

    #[test]
    fn a_pin_without_hash_is_refused_with_its_line() {
        let error = parse_requirements("# comment\nsome-tool==1.2\n").unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
    }

    #[test]
    fn the_committed_pins_are_well_formed() {
        let requirements = parse_requirements(REQUIREMENTS).unwrap();
        assert!(
            requirements
                .iter()
                .any(|requirement| requirement.name == NVRTC_DISTRIBUTION)
        );
    }
}
