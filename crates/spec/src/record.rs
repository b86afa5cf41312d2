//! The record every image carries: its tile shape, what it can do, and which parameter block it takes, as the C++ compiler saw
//! them.

use crate::abi::{BLOCKS, Declared, RECORD_MAGIC, RecordWords};
use crate::capability::{Features, Role, Schedule};
use crate::elf::{Elf, ElfError};
use crate::shape::TileShape;

/// Symbol of the record in an image.
pub const SYMBOL: &str = "warptile_record";

const RECORD_BYTES: usize = size_of::<RecordWords>();

/// The record with which an image describes itself: the C++ [`RecordWords`], checked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageRecord {
    /// The step of a computation that it is for.
    pub role: Role,
    /// How tiles come to its CTAs.
    pub schedule: Schedule,
    /// The features of the image beyond plain attention.
    pub features: Features,
    /// Tile shape.
    pub tiling: TileShape,
    /// Size of one tensor element in bytes.
    pub element_bytes: u32,
    /// Dynamic shared memory in bytes the launch must ask for.
    pub shared_bytes: u32,
    /// [`Declared::HASH`] of the parameter block.
    pub abi_hash: u64,
    /// Size of the parameter block in bytes.
    pub param_bytes: u32,
    /// CTAs per SM the kernel was compiled for.
    pub min_ctas: u32,
}

impl ImageRecord {
    /// Reads the record out of a cubin or out of PTX.
    ///
    /// # Errors
    /// [`RecordError`] if the bytes are neither, or carry no valid record.
    pub fn read(image: &[u8]) -> Result<Self, RecordError> {
        match std::str::from_utf8(image) {
            Ok(text) if text.contains(".version") => Self::from_bytes(&ptx_object(text)?),
            _ => {
                let elf = Elf::parse(image)?;
                Self::from_bytes(elf.object(SYMBOL)?.ok_or(RecordError::Missing)?)
            }
        }
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() != RECORD_BYTES {
            return Err(RecordError::Size { found: bytes.len() });
        }
        let words: RecordWords = bytemuck::pod_read_unaligned(bytes);
        if words.magic != RECORD_MAGIC {
            return Err(RecordError::Magic { found: words.magic });
        }
        let unknown = |what, found| RecordError::Unknown { what, found };
        Ok(Self {
            role: Role::from_number(words.role).ok_or_else(|| unknown("role", words.role))?,
            schedule: Schedule::from_number(words.schedule)
                .ok_or_else(|| unknown("schedule", words.schedule))?,
            features: Features::from_bits(words.features)
                .ok_or_else(|| unknown("set of features", words.features))?,
            tiling: TileShape {
                block_m: words.block_m,
                block_n: words.block_n,
                head_dim: words.head_dim,
                value_dim: match words.value_dim {
                    0 => words.head_dim,
                    size => size,
                },
                stages: words.stages,
                warps: words.warps,
                k_stride: words.k_stride,
                v_stride: words.v_stride,
            },
            element_bytes: words.element_bytes,
            shared_bytes: words.shared_bytes,
            abi_hash: words.abi_hash,
            param_bytes: words.param_bytes,
            min_ctas: words.min_ctas,
        })
    }

    /// Returns true if it takes a block that this program declares.
    pub fn takes_a_block(&self) -> bool {
        BLOCKS.contains(&(self.abi_hash, self.param_bytes as usize))
    }

    /// Returns true if it takes the block `B` as this program declares it.
    pub fn takes<B: Declared>(&self) -> bool {
        self.abi_hash == B::HASH && self.param_bytes as usize == size_of::<B>()
    }
}

/// The bytes of the record in PTX, which writes it as `.b8 warptile_record[SIZE] = {50, 82, ..}` and leaves out zeros at the end.
fn ptx_object(text: &str) -> Result<Vec<u8>, RecordError> {
    let (_, from_size) = text
        .split_once(&format!(" {SYMBOL}["))
        .ok_or(RecordError::Missing)?;
    let (size, from_bytes) = from_size
        .split_once("] = {")
        .ok_or(RecordError::Initializer)?;
    let (list, _) = from_bytes.split_once('}').ok_or(RecordError::Initializer)?;
    let size: usize = size.parse().map_err(|_| RecordError::Initializer)?;
    if size != RECORD_BYTES {
        return Err(RecordError::Size { found: size });
    }
    let mut bytes = list
        .split(',')
        .map(|byte| byte.trim().parse())
        .collect::<Result<Vec<u8>, _>>()
        .map_err(|_| RecordError::Initializer)?;
    if bytes.len() > size {
        return Err(RecordError::Initializer);
    }
    bytes.resize(size, 0);
    Ok(bytes)
}

/// An image has no readable record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The bytes are neither an ELF nor PTX.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// No symbol of that name is defined.
    #[error(
        "the image has no `{SYMBOL}`: end the kernel's source with one, as kernels/base/record.cuh shows"
    )]
    Missing,
    /// PTX initializes it with something else than bytes.
    #[error("`{SYMBOL}` is not initialized with a list of bytes in the PTX")]
    Initializer,
    /// The symbol has the size of another record.
    #[error(
        "`{SYMBOL}` has {found} bytes instead of {RECORD_BYTES}: \
         the image was compiled with another kernels/generated/base/abi.cuh"
    )]
    Size {
        /// Bytes the symbol has.
        found: usize,
    },
    /// The first word is wrong.
    #[error(
        "`{SYMBOL}` starts with {found:#010x} instead of {RECORD_MAGIC:#010x}: it is not an image's record"
    )]
    Magic {
        /// The word found.
        found: u32,
    },
    /// A number that this version has no name for.
    #[error("`{SYMBOL}` names a {what} that this version does not know: {found:#x}")]
    Unknown {
        /// The meaning of the number.
        what: &'static str,
        /// The number.
        found: u32,
    },
}
