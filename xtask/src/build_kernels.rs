//! `cargo xtask build-kernels`: from `kernels/` to the committed images and their manifest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::catalog;
use crate::compile;
use crate::files;
use crate::instances::{self, Instance, Target};
use crate::manifest::{Manifest, ManifestEntry};
use crate::packs::{self, Packs};
use crate::resources;
use crate::sample::{sample, unsampled_differences};
use crate::sources::{GENERATED, Sources};
use crate::toolchain::Toolchain;
use crate::units::compile_all;
use warptile_spec::abi;

/// The limit for the packs of one crate, in bytes: with room for the rest of it below what crates.io takes.
pub const CRATE_LIMIT: u64 = 8_000_000;

/// The limit for all packs together, in bytes: with all features a user downloads and embeds them.
pub const EMBEDDED_LIMIT: u64 = 24_000_000;

/// Where things lie.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Sources and `instances.toml`.
    pub kernels: PathBuf,
    /// The crates: packs lie in `images-*`, one for each of [`packs::ARCHITECTURES`]; `manifest.json` and the generated Rust of
    /// the catalog and the tilings lie in `kernels`.
    pub crates: PathBuf,
    /// The resource report.
    pub report: PathBuf,
}

impl Layout {
    /// As the repository at `root` has it.
    pub fn of_repository(root: &Path) -> Self {
        Self {
            kernels: root.join("kernels"),
            crates: root.join("crates"),
            report: root.join("docs/resources.md"),
        }
    }

    /// The manifest of all images.
    pub fn manifest(&self) -> PathBuf {
        self.crates.join("kernels/manifest.json")
    }

    /// A file of the generated Rust of `warptile-kernels`.
    pub fn generated(&self, name: &str) -> PathBuf {
        self.crates.join("kernels/src/generated").join(name)
    }

    /// The crate with the packs of one of [`packs::ARCHITECTURES`].
    fn image_crate(&self, architecture: &str) -> PathBuf {
        self.crates.join(format!("images-{architecture}"))
    }

    /// The file of a pack.
    pub fn pack(&self, pack: &str) -> PathBuf {
        self.image_crate(&packs::architecture(pack))
            .join("images")
            .join(packs::file_name(pack))
    }

    /// All files that lie where packs do.
    ///
    /// # Errors
    /// If a folder cannot be listed.
    pub fn pack_files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for architecture in packs::ARCHITECTURES {
            files.extend(files::list(&self.image_crate(architecture).join("images"))?);
        }
        Ok(files)
    }

    /// The parameter blocks in C++, with the files they belong in.
    fn headers(&self) -> [(PathBuf, String); 13] {
        let folder = self.kernels.join(GENERATED).join("base");
        abi::cpp_headers().map(|(name, text)| (folder.join(format!("{name}.cuh")), text))
    }
}

/// Which images to look at, and how.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Selection {
    /// Only this family, such as `scalar`
    #[arg(long)]
    pub family: Option<String>,
    /// Only this target, such as `sm_90a` or `compute_80`
    #[arg(long = "arch")]
    pub target: Option<Target>,
    /// With --out: only this kernel, such as mma_d64_64x64_w4_s2
    #[arg(long, requires = "out")]
    pub kernel: Option<String>,
    /// With --check: compile only the smallest image of each family and target, and a fortieth of the others, which
    /// the hash of the commit chooses; of the rest compare sources and bytes
    #[arg(long, value_name = "HASH", requires = "check", num_args = 0..=1, default_missing_value = "HEAD")]
    pub sample: Option<String>,
}

impl Selection {
    fn includes(&self, family: &str, target: &str) -> bool {
        self.family.as_deref().is_none_or(|wanted| wanted == family)
            && self
                .target
                .is_none_or(|wanted| wanted.to_string() == target)
    }
}

/// How to compile.
#[derive(Debug, Clone)]
pub struct Compiler {
    /// The toolchain.
    pub toolchain: Toolchain,
    /// Program to start as `compile-worker`: this one.
    pub worker: PathBuf,
    /// Processes to run at once.
    pub jobs: usize,
}

/// An image that was not built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Image or images that were to come from the compilation.
    pub image: String,
    /// One or more sentences.
    pub reasons: Vec<String>,
}

/// The result of a build.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The manifest before the build.
    pub before: Manifest,
    /// The manifest as it is now.
    pub manifest: Manifest,
    /// Names of the images that were compiled.
    pub compiled: Vec<String>,
    /// Images that failed to compile or failed a gate; they are not in the manifest.
    pub failures: Vec<Failure>,
    /// Embedded size per pack.
    pub packed_bytes: BTreeMap<String, u64>,
}

impl Outcome {
    /// The packages of images, and all of them together: name, bytes and limit of each.
    pub fn sizes(&self) -> Vec<(String, u64, u64)> {
        let of_crate = |architecture| {
            let bytes = packs::bytes_of(architecture, &self.packed_bytes);
            (
                format!("warptile-images-{architecture}"),
                bytes,
                CRATE_LIMIT,
            )
        };
        let total = self.packed_bytes.values().sum();
        let of_all = ("all images".to_owned(), total, EMBEDDED_LIMIT);
        let crates = packs::ARCHITECTURES.into_iter().map(of_crate);
        crates.chain([of_all]).collect()
    }

    /// The first size that is over its limit, in words.
    pub fn excess(&self) -> Option<String> {
        let mut sizes = self.sizes().into_iter();
        let (what, bytes, limit) = sizes.find(|(_, bytes, limit)| bytes >= limit)?;
        Some(format!(
            "{what}: {bytes} bytes, which have to stay under {limit}"
        ))
    }
}

/// Told of progress: how many units in all, then the name of each finished one.
pub trait Progress: Sync {
    /// `count` compilations follow.
    fn begin(&self, count: usize);
    /// One is done.
    fn finished(&self, image: &str);
}

/// Compiles what changed and updates packs, manifest and report.
///
/// # Errors
/// If the sources cannot be read or the results not be written. Kernels that fail are in the [`Outcome`].
pub fn build(
    layout: &Layout,
    compiler: &Compiler,
    selection: &Selection,
    progress: &dyn Progress,
) -> Result<Outcome> {
    for (path, text) in layout.headers() {
        write_if_changed(&path, &text)?;
    }
    let listed = instances::load(&layout.kernels.join("instances.toml"))?;
    let selected = select(&listed, selection)?;
    let sources = read_sources(layout, &selected)?;
    let manifest = read_manifest(layout)?;
    let packs = Packs::read(layout, &manifest);
    let committed = by_name(manifest.clone());

    let stale: Vec<Instance> = selected
        .into_iter()
        .filter(|instance| !is_fresh(&packs, compiler, &sources, instance, &committed))
        .collect();
    let (built, failures) = compile_all(layout, compiler, &sources, &stale, progress)?;

    // Images that were neither selected nor changed stay; those that failed or are no longer listed go.
    let listed_names: BTreeSet<String> = listed.iter().map(Instance::image).collect();
    let stale_names: BTreeSet<String> = stale.iter().map(Instance::image).collect();
    let mut entries: BTreeMap<String, ManifestEntry> = committed
        .into_iter()
        .filter(|(name, _)| listed_names.contains(name) && !stale_names.contains(name))
        .collect();
    let mut fresh = BTreeMap::new();
    for image in built {
        fresh.insert(image.entry.name.clone(), image.image);
        entries.insert(image.entry.name.clone(), image.entry);
    }
    let before = manifest;
    let unplaced = Manifest {
        images: entries.into_values().collect(),
    };
    let mut manifest = unplaced.clone();
    packs::assign_places(&mut manifest);
    let mut contents: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (entry, placed) in unplaced.images.iter().zip(&manifest.images) {
        let name = &entry.name;
        let image = match fresh.get(name) {
            Some(image) => image,
            None => packs.image(entry).map_err(|reason| {
                anyhow!("{name}: {reason}; build it too, without --family and --arch")
            })?,
        };
        contents
            .entry(placed.pack.clone())
            .or_default()
            .extend_from_slice(image);
    }
    write_packs(layout, compiler.jobs, &packs, &contents)?;

    let packed_bytes = packed_sizes(layout, &manifest);
    for (path, text) in generated(layout, &manifest, &packed_bytes)? {
        write_if_changed(&path, &text)?;
    }
    Ok(Outcome {
        before,
        manifest,
        compiled: fresh.into_keys().collect(),
        failures,
        packed_bytes,
    })
}

/// Writes the packs whose contents changed and deletes those that are gone.
fn write_packs(
    layout: &Layout,
    jobs: usize,
    committed: &Packs,
    contents: &BTreeMap<String, Vec<u8>>,
) -> Result<()> {
    let changed: Vec<(&String, &Vec<u8>)> = contents
        .iter()
        .filter(|(pack, contents)| committed.contents(pack) != Some(contents))
        .collect();
    let compressed = compile::in_parallel(
        &changed,
        jobs,
        || (),
        |(), (_, contents)| packs::compress(contents),
    );
    for ((pack, _), compressed) in changed.into_iter().zip(compressed) {
        let compressed = compressed.with_context(|| format!("cannot compress {pack}"))?;
        files::write(&layout.pack(pack), &compressed)?;
    }
    for path in layout.pack_files()? {
        let pack = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|extension| extension == "zst")
            && !contents.contains_key(&*pack)
        {
            std::fs::remove_file(&path).map_err(files::failed("delete", &path))?;
        }
    }
    Ok(())
}

/// Rebuilds everything selected, or a sample of it, from scratch and lists what is committed differently; nothing is written.
///
/// # Errors
/// If sources or committed files cannot be read.
pub fn check(
    layout: &Layout,
    compiler: &Compiler,
    selection: &Selection,
    progress: &dyn Progress,
) -> Result<(Outcome, Vec<String>)> {
    let listed = instances::load(&layout.kernels.join("instances.toml"))?;
    let selected = select(&listed, selection)?;
    let sources = read_sources(layout, &selected)?;
    let manifest = read_manifest(layout)?;
    let packs = Packs::read(layout, &manifest);
    let committed = by_name(manifest.clone());
    let compiled = match &selection.sample {
        Some(seed) => sample(&selected, seed, &committed),
        None => selected.clone(),
    };
    let (built, failures) = compile_all(layout, compiler, &sources, &compiled, progress)?;

    let mut differences = unsampled_differences(
        &selected,
        &compiled,
        &compiler.toolchain.version,
        &sources,
        &committed,
        &packs,
    );
    for image in &built {
        let name = &image.entry.name;
        let Some(entry) = committed.get(name) else {
            differences.push(format!("{name}: not committed"));
            continue;
        };
        let rebuilt = ManifestEntry {
            // Depends on the pack's other images; all places are held below.
            pack: entry.pack.clone(),
            offset: entry.offset,
            ..image.entry.clone()
        };
        if *entry != rebuilt {
            differences.push(format!("{name}: {}", differing_fields(entry, &rebuilt)));
        } else if let Err(why) = packs.image(entry) {
            differences.push(format!("{name}: {why}"));
        }
    }
    let listed_names: BTreeSet<String> = listed.iter().map(Instance::image).collect();
    for (name, entry) in &committed {
        if selection.includes(&entry.family, &entry.target) && !listed_names.contains(name) {
            differences.push(format!(
                "{name}: committed, but instances.toml does not list it"
            ));
        }
    }
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in &manifest.images {
        *sizes.entry(&entry.pack).or_default() += entry.len;
    }
    for (pack, &size) in &sizes {
        if packs
            .contents(pack)
            .is_some_and(|contents| contents.len() != size)
        {
            differences.push(format!(
                "{}: does not hold exactly the images of the manifest",
                packs::file_name(pack)
            ));
        }
    }
    for path in layout.pack_files()? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let in_manifest = name
            .strip_suffix(".zst")
            .is_some_and(|pack| sizes.contains_key(pack));
        if !in_manifest {
            differences.push(format!(
                "{name}: lies among the images, but the manifest does not name it"
            ));
        }
    }
    let packed_bytes = packed_sizes(layout, &manifest);
    let mut as_written = manifest.clone();
    packs::assign_places(&mut as_written);
    let mut texts = generated(layout, &as_written, &packed_bytes)?;
    texts.extend(layout.headers());
    for (path, text) in texts {
        if files::read_text(&path).ok() != Some(text) {
            differences.push(format!(
                "{}: not as build-kernels writes it",
                path.display()
            ));
        }
    }
    let outcome = Outcome {
        before: manifest.clone(),
        manifest,
        compiled: built.into_iter().map(|image| image.entry.name).collect(),
        failures,
        packed_bytes,
    };
    Ok((outcome, differences))
}

/// Everything that follows from the manifest, with the files it belongs in.
fn generated(
    layout: &Layout,
    manifest: &Manifest,
    packed_bytes: &BTreeMap<String, u64>,
) -> Result<Vec<(PathBuf, String)>> {
    let rust = |text: Result<String, _>| {
        text.map_err(|why| anyhow!("manifest.json: {why}; delete it to rebuild every image"))
    };
    let mut texts = vec![
        (layout.manifest(), manifest_text(manifest)),
        (
            layout.generated("catalog.rs"),
            rust(catalog::catalog(manifest))?,
        ),
        (
            layout.generated("tilings.rs"),
            rust(catalog::tilings(manifest))?,
        ),
        (
            layout.report.clone(),
            resources::markdown(manifest, packed_bytes),
        ),
    ];
    texts.extend(packs::ARCHITECTURES.map(|architecture| {
        (
            layout
                .image_crate(architecture)
                .join("src/generated/packs.rs"),
            catalog::packs(architecture, packed_bytes),
        )
    }));
    Ok(texts)
}

pub(crate) fn select(listed: &[Instance], selection: &Selection) -> Result<Vec<Instance>> {
    let is_of_kernel = |instance: &&Instance| {
        let wanted = selection.kernel.as_ref();
        wanted.is_none_or(|kernel| *kernel == instance.kernel())
    };
    let selected: Vec<Instance> = listed
        .iter()
        .filter(|instance| selection.includes(&instance.family, &instance.target.to_string()))
        .filter(is_of_kernel)
        .cloned()
        .collect();
    if selected.is_empty() && !listed.is_empty() {
        let available: BTreeSet<String> = listed
            .iter()
            .map(|instance| format!("{} {}", instance.family, instance.target))
            .collect();
        bail!(
            "instances.toml lists no image for this family, target and kernel; it has {}",
            Vec::from_iter(available).join(", ")
        );
    }
    Ok(selected)
}

pub(crate) fn read_sources(
    layout: &Layout,
    selected: &[Instance],
) -> Result<BTreeMap<String, Sources>> {
    let names: BTreeSet<&str> = selected
        .iter()
        .map(|instance| instance.source.as_str())
        .collect();
    names
        .into_iter()
        .map(|name| Ok((name.to_owned(), Sources::read(&layout.kernels, name)?)))
        .collect()
}

fn read_manifest(layout: &Layout) -> Result<Manifest> {
    let path = layout.manifest();
    if !path.exists() {
        return Ok(Manifest::default());
    }
    files::read_json(&path).map_err(|error| anyhow!("{error}; delete it to rebuild every image"))
}

fn by_name(manifest: Manifest) -> BTreeMap<String, ManifestEntry> {
    let entries = manifest.images.into_iter();
    entries.map(|entry| (entry.name.clone(), entry)).collect()
}

/// One line per image, so that a change of one kernel is a change of its lines.
pub(crate) fn manifest_text(manifest: &Manifest) -> String {
    let lines: Vec<String> = manifest
        .images
        .iter()
        .filter_map(|entry| serde_json::to_string(entry).ok())
        .collect();
    if lines.is_empty() {
        return "{ \"images\": [] }\n".to_owned();
    }
    format!("{{ \"images\": [\n{}\n] }}\n", lines.join(",\n"))
}

/// An unchanged file keeps its time stamp, so that cargo has nothing to rebuild.
fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if std::fs::read(path).is_ok_and(|present| present == text.as_bytes()) {
        return Ok(());
    }
    files::write(path, text.as_bytes())
}

fn packed_sizes(layout: &Layout, manifest: &Manifest) -> BTreeMap<String, u64> {
    let mut sizes = BTreeMap::new();
    for entry in &manifest.images {
        // A missing file is reported by whoever compares images; here it has no size.
        let size = std::fs::metadata(layout.pack(&entry.pack)).map_or(0, |file| file.len());
        sizes.insert(entry.pack.clone(), size);
    }
    sizes
}

fn is_fresh(
    packs: &Packs,
    compiler: &Compiler,
    sources: &BTreeMap<String, Sources>,
    instance: &Instance,
    committed: &BTreeMap<String, ManifestEntry>,
) -> bool {
    let Some((entry, source)) = committed
        .get(&instance.image())
        .zip(sources.get(&instance.source))
    else {
        return false;
    };
    entry.source_hash == source.hash(instance, &compiler.toolchain.version)
        && packs.image(entry).is_ok()
}

fn differing_fields(committed: &ManifestEntry, rebuilt: &ManifestEntry) -> String {
    let object = |entry| match serde_json::to_value(entry) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let rebuilt = object(rebuilt);
    let differences: Vec<String> = object(committed)
        .into_iter()
        .filter(|(field, value)| rebuilt.get(field) != Some(value))
        .map(|(field, value)| {
            let now = rebuilt.get(&field).unwrap_or(&serde_json::Value::Null);
            format!("{field} is {value} committed, {now} rebuilt")
        })
        .collect();
    differences.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_headers_are_what_the_declarations_generate() {
        for (path, text) in Layout::of_repository(&files::repository_root()).headers() {
            assert_eq!(files::read_text(&path).unwrap(), text);
        }
    }
}
