//! The catalog's entry of an image.

use std::fmt;
use std::io::Read;
use std::str::FromStr;

use warptile_spec::abi::{Declared, ForwardTmaBoxes};
use warptile_spec::{
    ElementType, Excerpt, Family, Features, Operand, Problem, Role, Schedule, TileShape, Types,
};

/// The target of an image; numbers are compute capabilities times ten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Target {
    /// A cubin: runs on the same major version at this minor version or above.
    Cubin(u32),
    /// A cubin with architecture-specific instructions (`sm_90a`): runs on exactly this version.
    CubinExact(u32),
    /// PTX: the driver compiles it for this version or any newer one.
    Ptx(u32),
}

impl Target {
    /// Returns true if a device of compute capability `major.minor` can run the image.
    pub const fn runs_on(self, major: u32, minor: u32) -> bool {
        let device = major * 10 + minor;
        match self {
            Target::Cubin(sm) => sm / 10 == major && sm <= device,
            Target::CubinExact(sm) => sm == device,
            Target::Ptx(sm) => sm <= device,
        }
    }
}

/// From the name that [`Display`](fmt::Display) writes.
impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownTarget(text.to_owned());
        let number = |digits: &str| digits.parse().map_err(|_| unknown());
        match (text.strip_prefix("sm_"), text.strip_prefix("compute_")) {
            (Some(version), _) => match version.strip_suffix('a') {
                Some(digits) => number(digits).map(Target::CubinExact),
                None => number(version).map(Target::Cubin),
            },
            (None, Some(digits)) => number(digits).map(Target::Ptx),
            (None, None) => Err(unknown()),
        }
    }
}

/// A text that names no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{:?} is not a target such as sm_90, sm_90a or compute_80", Excerpt::new(.0))]
pub struct UnknownTarget(String);

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Cubin(sm) => f.pad(&format!("sm_{sm}")),
            Target::CubinExact(sm) => f.pad(&format!("sm_{sm}a")),
            Target::Ptx(sm) => f.pad(&format!("compute_{sm}")),
        }
    }
}

/// The resources that the compiler reported for an image; zero where a PTX has no answer yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Stack frame in bytes per thread.
    pub stack_bytes: u32,
    /// Bytes of spill stores and loads per thread.
    pub spill_bytes: u32,
    /// Static shared memory in bytes per CTA.
    pub static_shared_bytes: u32,
    /// Dynamic shared memory in bytes the launch must ask for.
    pub dynamic_shared_bytes: u32,
    /// `HMMA` or `HGMMA` instructions in the machine code.
    pub tensor_instructions: u32,
}

/// One embedded image and everything known of it without a GPU.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Image {
    /// `{kernel}_{element}_{target}`, unique.
    pub name: &'static str,
    /// The kernel this is an image of, `{family}_{tiling}`; without tiles `{family}_w{warps}`.
    pub kernel: &'static str,
    /// Name of the entry function inside the image.
    pub entry: &'static str,
    /// Kernel family: how it computes.
    pub family: Family,
    /// The step of a computation that it is for.
    pub role: Role,
    /// How tiles come to its CTAs.
    pub schedule: Schedule,
    /// The features of the image beyond plain attention.
    pub features: Features,
    /// The target it was compiled for.
    pub target: Target,
    /// Element type of the tensors; that of keys and values may be another: see [`types`](Self::types).
    pub element: ElementType,
    /// Tile shape.
    pub tiling: TileShape,
    /// The compiler's resource report.
    pub resources: Resources,
    /// [`Declared::HASH`](crate::abi::Declared::HASH) of the parameter block it takes.
    pub abi_hash: u64,
    /// Size of that block in bytes.
    pub param_bytes: u32,
    /// Compiler and version, such as `NVRTC 12.8.93`.
    pub toolchain: &'static str,
    /// SHA-256 over the sources the image was compiled from.
    pub source_hash: &'static str,
    /// SHA-256 of the image.
    pub sha256: &'static str,
    /// The pack it lies in, as embedded, zstd-compressed: the images of the kernel for one cargo feature, one after the
    /// other. Of an image that is not embedded, the image itself.
    pub pack: &'static [u8],
    /// Where the image begins in the unpacked pack, in bytes.
    pub offset: usize,
    /// Size of the image in bytes.
    pub len: usize,
}

/// The first bytes of every zstd frame (RFC 8878, 3.1.1). Neither an ELF nor PTX does.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

impl Image {
    /// The element types of the tensors that the image takes.
    pub const fn types(&self) -> Types {
        Types::of_image(self.element, self.features)
    }

    /// The bias or the key mask, for an image that reads it by the copy engine: it takes no other tensor over scores.
    pub fn boxed(&self) -> Option<Operand> {
        let reads_boxes = self.abi_hash == ForwardTmaBoxes::HASH;
        reads_boxes.then(|| match self.features.contains(Features::BIAS) {
            true => Operand::Bias,
            false => Operand::KeyMask,
        })
    }

    /// Returns true if the image hides all keys of a problem, since it always reads a mask and there is none.
    pub fn lacks_mask(&self, problem: &Problem) -> bool {
        self.boxed() == Some(Operand::KeyMask) && !problem.needs().contains(Features::KEY_MASK)
    }

    /// Returns true for an image that hides the same keys from all queries: it takes no other mask, and no bias.
    pub fn hides_keys_alone(&self) -> bool {
        self.features.contains(Features::KEY_MASK)
            && !self.features.contains(Features::BIAS)
            && self.boxed().is_none()
    }

    /// The features that the image has for a problem.
    pub fn features_for(&self, problem: &Problem) -> Features {
        match self.boxed() {
            Some(operand) if !problem.fits_boxes(operand) => self.features - operand.feature(),
            None if self.hides_keys_alone() && !problem.mask_is_same()[0] => {
                self.features - Features::KEY_MASK
            }
            _ => self.features,
        }
    }

    /// Unpacks the image: an ELF for cubins, NUL-terminated text for PTX. The whole pack is decompressed for it, which takes
    /// a few milliseconds; nothing is kept.
    ///
    /// # Errors
    /// [`UnpackError`] if the embedded bytes are damaged.
    pub fn bytes(&self) -> Result<Vec<u8>, UnpackError> {
        let damaged = || UnpackError { image: self.name };
        if !self.pack.starts_with(&ZSTD_MAGIC) {
            let end = self.offset.saturating_add(self.len);
            let image = self.pack.get(self.offset..end).ok_or_else(damaged)?;
            return Ok(image.to_vec());
        }
        let mut decoder =
            ruzstd::decoding::StreamingDecoder::new(self.pack).map_err(|_| damaged())?;
        let mut bytes = vec![0; self.offset + self.len];
        decoder.read_exact(&mut bytes).map_err(|_| damaged())?;
        Ok(bytes.split_off(self.offset))
    }
}

/// The embedded bytes of an image don't unpack to what the catalog promises.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "image {image} does not unpack: the crate's embedded data is damaged; rebuild warptile-kernels from a clean checkout"
)]
pub struct UnpackError {
    image: &'static str,
}
