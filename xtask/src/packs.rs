//! Packs: the images of a kernel that one cargo feature brings, in one compressed file, one after the other in the
//! manifest's order. They are much alike, so together they take less than each on its own.

use std::collections::BTreeMap;
use std::path::Path;

use crate::build_kernels::Layout;
use crate::files;
use crate::instances::Target;
use crate::manifest::{Manifest, ManifestEntry};

/// zstd's highest level that does not need more memory to unpack.
const COMPRESSION_LEVEL: i32 = 19;

/// The endings of the names of the crates with images: each has the packs of one cargo feature of `warptile-kernels`.
pub const ARCHITECTURES: [&str; 5] = ["sm80", "sm90", "sm100", "sm120", "ptx"];

/// The one of [`ARCHITECTURES`] that a pack belongs to. The pack's name ends in the cargo feature.
pub fn architecture(pack: &str) -> String {
    match pack.rsplit_once("_sm_") {
        Some((_, number)) => format!("sm{number}"),
        None => "ptx".to_owned(),
    }
}

/// Bytes of all packs of one of [`ARCHITECTURES`], given those of each.
pub fn bytes_of(architecture: &str, packed_bytes: &BTreeMap<String, u64>) -> u64 {
    of(architecture, packed_bytes).map(|(_, bytes)| bytes).sum()
}

/// The packs of one of [`ARCHITECTURES`] with the bytes of each.
pub(crate) fn of<'a>(
    architecture: &'a str,
    packed_bytes: &'a BTreeMap<String, u64>,
) -> impl Iterator<Item = (&'a String, &'a u64)> {
    { packed_bytes.iter() }.filter(move |(pack, _)| self::architecture(pack) == architecture)
}

/// File name of a pack.
pub fn file_name(pack: &str) -> String {
    format!("{pack}.zst")
}

/// Name of the pack that a kernel's images for `target` go into: a feature that is off then leaves out whole packs.
pub fn name(kernel: &str, target: Target) -> String {
    format!("{kernel}_{}", target.feature())
}

/// Compresses a pack. The same contents give the same bytes.
///
/// # Errors
/// zstd's.
pub fn compress(contents: &[u8]) -> std::io::Result<Vec<u8>> {
    // Told the size beforehand, zstd takes a window that spans all of it.
    zstd::bulk::compress(contents, COMPRESSION_LEVEL)
}

/// Gives every image its place: the images of a pack lie in the manifest's order without gaps.
pub fn assign_places(manifest: &mut Manifest) {
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for entry in &mut manifest.images {
        // A target that does not parse stays where it was; whoever compiles refuses it.
        if let Ok(target) = entry.target.parse() {
            entry.pack = name(&entry.kernel, target);
        }
        let end = ends.entry(entry.pack.clone()).or_default();
        entry.offset = *end;
        *end += entry.len;
    }
}

/// The packs on disk, unpacked.
pub struct Packs {
    /// Contents by name, or why there are none.
    unpacked: BTreeMap<String, Result<Vec<u8>, String>>,
}

impl Packs {
    /// Reads the packs that `manifest` names from where `layout` has them.
    pub fn read(layout: &Layout, manifest: &Manifest) -> Self {
        let mut unpacked = BTreeMap::new();
        for entry in &manifest.images {
            unpacked
                .entry(entry.pack.clone())
                .or_insert_with(|| unpack(&layout.pack(&entry.pack)));
        }
        Self { unpacked }
    }

    /// Everything in a pack.
    pub fn contents(&self, pack: &str) -> Option<&[u8]> {
        self.unpacked.get(pack)?.as_deref().ok()
    }

    /// The image that `entry` describes.
    ///
    /// # Errors
    /// Why it is not in its pack, in words.
    pub fn image(&self, entry: &ManifestEntry) -> Result<&[u8], String> {
        let contents = match self.unpacked.get(&entry.pack) {
            Some(unpacked) => unpacked.as_deref().map_err(Clone::clone)?,
            None => return Err(format!("the pack {} was not read", entry.pack)),
        };
        contents
            .get(entry.offset..)
            .and_then(|rest| rest.get(..entry.len))
            .filter(|image| files::sha256(image) == entry.sha256)
            .ok_or_else(|| {
                "what the committed pack has there is not the image the manifest describes"
                    .to_owned()
            })
    }
}

fn unpack(path: &Path) -> Result<Vec<u8>, String> {
    let packed = files::read(path).map_err(|error| error.to_string())?;
    zstd::decode_all(&packed[..])
        .map_err(|error| format!("{} does not unpack: {error}", path.display()))
}
