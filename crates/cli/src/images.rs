//! Images from a folder that `WARPTILE_KERNELS_DIR` names, next to the embedded ones: debug images, and candidates of the
//! maintainers' search. They run only if `--kernel` names them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use warptile::plan::Choice;
use warptile_kernels::{ElementType, External, Family, Image, Role, Target, catalog};

use crate::failure::Failure;
use crate::json;
use crate::text;

/// The environment variable that names the folder.
pub(crate) const VARIABLE: &str = "WARPTILE_KERNELS_DIR";

/// The file that describes the images of a folder.
const MANIFEST: &str = "manifest.json";

/// The `manifest.json` of a folder, which `cargo xtask` writes.
#[derive(Debug, Deserialize)]
struct Manifest {
    images: Vec<Entry>,
}

/// The manifest's entry of an image; other fields are for other tools.
#[derive(Debug, Deserialize)]
struct Entry {
    name: String,
    kernel: String,
    entry: String,
    family: String,
    target: String,
    element: String,
    registers: u32,
    static_shared_bytes: u32,
    abi_hash: String,
    toolchain: String,
    source_hash: String,
    sha256: String,
    /// The file, next to the manifest.
    pack: String,
    /// Among them the numbers of the tile; older manifests don't have all.
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

/// The images of the folder that the environment names, ordered by name; none if it names none. They are read once.
///
/// # Errors
/// [`Failure::File`] and [`Failure::Json`] of the manifest; [`Failure::Input`] if the folder is not what the manifest says or
/// was built for another program.
pub(crate) fn named() -> Result<&'static [&'static Image], Failure> {
    static NAMED: OnceLock<Vec<&'static Image>> = OnceLock::new();
    let Some(folder) = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) else {
        return Ok(&[]);
    };
    if let Some(named) = NAMED.get() {
        return Ok(named);
    }
    let read = read(&PathBuf::from(folder))?;
    Ok(NAMED.get_or_init(|| read))
}

/// The images that `choice` has the name of.
pub(crate) fn chosen(choice: &Choice) -> Result<Vec<&'static Image>, Failure> {
    let (Choice::Kernel(_) | Choice::Image(_)) = choice else {
        return Ok(Vec::new());
    };
    let all = named()?.iter().copied();
    Ok(all.filter(|image| is_chosen(choice, image)).collect())
}

/// Returns true if an image is of the family, the kernel or the name that was chosen. The name of one from a folder was parsed as that of a
/// kernel.
pub(crate) fn is_chosen(choice: &Choice, image: &Image) -> bool {
    match choice {
        Choice::Family(family) => image.family == *family,
        Choice::Kernel(name) | Choice::Image(name) => image.kernel == name || image.name == name,
        _ => true,
    }
}

/// Checks that kernels of the chosen name compute an operation, which has these roles.
///
/// # Errors
/// [`Failure::Input`] for those of other operations, and for an unknown name of a kernel of gradients: planners know only that of outputs.
pub(crate) fn check_roles(choice: &Choice, roles: &[Role]) -> Result<(), Failure> {
    let outputs = roles.contains(&Role::Forward);
    let all = catalog().iter().chain(named()?.iter().copied());
    let mut chosen = all.filter(|image| is_chosen(choice, image)).peekable();
    let first = chosen.peek().map(|image| image.role);
    if chosen.any(|image| roles.contains(&image.role)) {
        return Ok(());
    }
    let why = match first {
        None if outputs => return Ok(()),
        None => "no kernel has this name".to_owned(),
        Some(Role::Forward) => "it computes outputs, not gradients".to_owned(),
        Some(role) if outputs => format!("it computes {role}, not outputs"),
        Some(role) => format!("it computes {role}, not gradients of inputs"),
    };
    Err(Failure::Input(format!(
        "--kernel {}: {why}; `warptile info --kernels` lists kernels",
        text::name(&choice.to_string())
    )))
}

/// Reads a folder.
fn read(folder: &Path) -> Result<Vec<&'static Image>, Failure> {
    let path = folder.join(MANIFEST);
    let manifest: Manifest = json::read(&path)?;
    let refuse =
        |reason: String| Failure::Input(format!("{VARIABLE}: {}: {reason}", path.display()));
    let mut names = BTreeSet::new();
    let mut images = Vec::with_capacity(manifest.images.len());
    for entry in manifest.images {
        if !names.insert(entry.name.clone()) {
            let name = text::name(&entry.name);
            return Err(refuse(format!("two images are called {name}")));
        }
        images.push(image(folder, entry).map_err(refuse)?);
    }
    images.sort_unstable_by_key(|image| image.name);
    Ok(images)
}

/// Reads an image; else says why not.
fn image(folder: &Path, entry: Entry) -> Result<&'static Image, String> {
    let name = text::name(&entry.name);
    let pack = text::name(&entry.pack);
    if Path::new(&entry.pack).file_name() != Some(entry.pack.as_ref()) {
        return Err(format!("{name}: \"{pack}\" is not the name of a file"));
    }
    let bytes = std::fs::read(folder.join(&entry.pack))
        .map_err(|error| format!("{name}: cannot read {pack}: {error}"))?;
    let digest = Sha256::digest(&bytes);
    let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    if hash != entry.sha256 {
        return Err(format!(
            "{name}: {pack} has the SHA-256 {hash}, not {}: the file was changed after it was built",
            text::message(&entry.sha256)
        ));
    }
    let unknown = |what: &str, found: &str| {
        let found = text::name(found);
        format!("{name}: this program knows no {what} {found}")
    };
    let family = { Family::ALL.into_iter() }
        .find(|family| family.to_string() == entry.family)
        .ok_or_else(|| unknown("family", &entry.family))?;
    let element = { ElementType::ALL.into_iter() }
        .find(|element| element.to_string() == entry.element)
        .ok_or_else(|| unknown("element type", &entry.element))?;
    let target: Target = { entry.target.parse() }.map_err(|_| unknown("target", &entry.target))?;
    let external = External {
        name: entry.name,
        kernel: entry.kernel,
        entry: entry.entry,
        family,
        target,
        element,
        registers: entry.registers,
        static_shared_bytes: entry.static_shared_bytes,
        toolchain: entry.toolchain,
        source_hash: entry.source_hash,
        sha256: entry.sha256,
        bytes,
    };
    // SAFETY: whoever set the variable answers for the folder, as for the program itself. That it was built by this project is
    // what its manifest, the hashes and the record of each image say; that it was built for this program, the ABI hash.
    let image =
        unsafe { external.into_image() }.map_err(|error| text::message(&error.to_string()))?;
    let features = ("features", image.features.bits());
    for (what, found) in image.tiling.fields().into_iter().chain([features]) {
        match entry.others.get(what) {
            Some(said) if *said != found => {
                return Err(format!(
                    "{name}: the manifest says {what} = {said}, its record {found}"
                ));
            }
            _ => {}
        }
    }
    let recorded = format!("{:016x}", image.abi_hash);
    match recorded == entry.abi_hash {
        true => Ok(image),
        false => Err(format!(
            "{name}: the manifest says the ABI hash {}, its record {recorded}",
            text::name(&entry.abi_hash)
        )),
    }
}
