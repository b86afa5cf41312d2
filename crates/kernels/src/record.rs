//! The record every cubin carries: the kernel's tile shape and the layout of its parameter block, as the C++ compiler
//! saw them. Tests hold it against the Rust side, so the two cannot drift.

use crate::elf::{Elf, ElfError};
use crate::shape::TileShape;

/// Symbol of the record in a cubin.
pub const SYMBOL: &str = "warptile_record";

/// First word of the record, `RECORD_MAGIC` in `kernels/record.cuh`.
pub const MAGIC: u32 = 0x5754_5231;

/// Members of the C++ `AttentionParams`, in order of declaration and of [`ImageRecord::param_offsets`].
pub const PARAM_MEMBERS: [&str; 36] = [
    "q",
    "k",
    "v",
    "out",
    "lse",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "alibi_slopes",
    "tile_counter",
    "q_stride.batch",
    "q_stride.row",
    "q_stride.head",
    "k_stride.batch",
    "k_stride.row",
    "k_stride.head",
    "v_stride.batch",
    "v_stride.row",
    "v_stride.head",
    "out_stride.batch",
    "out_stride.row",
    "out_stride.head",
    "lse_batch_stride",
    "lse_head_stride",
    "alibi_batch_stride",
    "batch",
    "heads",
    "kv_heads",
    "head_dim",
    "query_len",
    "key_len",
    "query_tiles",
    "window_left",
    "window_right",
    "align_top_left",
    "scale",
    "softcap",
];

/// Words of the C++ `TilingRecord`, which the parameter offsets follow.
const TILING_WORDS: usize = 12;
const RECORD_BYTES: usize = TILING_WORDS * 4 + PARAM_MEMBERS.len() * 8;

/// The C++ `warptile::ImageRecord` of `kernels/record.cuh`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageRecord {
    /// Tile shape.
    pub tiling: TileShape,
    /// Size of one tensor element in bytes.
    pub element_bytes: u32,
    /// Dynamic shared memory in bytes the launch must ask for.
    pub shared_bytes: u32,
    /// Size of the parameter block in bytes.
    pub param_bytes: u32,
    /// CTAs per SM the kernel was compiled for.
    pub min_ctas: u32,
    /// Byte offset of each of [`PARAM_MEMBERS`] in the parameter block.
    pub param_offsets: [u64; PARAM_MEMBERS.len()],
}

impl ImageRecord {
    /// Reads the record out of a cubin.
    ///
    /// # Errors
    /// [`RecordError`] if the bytes are not an ELF (a PTX image has no record to read), or carry no valid record.
    pub fn read(cubin: &[u8]) -> Result<Self, RecordError> {
        let bytes = Elf::parse(cubin)?
            .object(SYMBOL)?
            .ok_or(RecordError::Missing)?;
        if bytes.len() != RECORD_BYTES {
            return Err(RecordError::Size { found: bytes.len() });
        }
        let (words, offsets) = bytes.split_at(TILING_WORDS * 4);
        let mut words = words
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word));
        let mut word = || words.next().unwrap_or_default();
        let magic = word();
        if magic != MAGIC {
            return Err(RecordError::Magic { found: magic });
        }
        let mut param_offsets = [0; PARAM_MEMBERS.len()];
        for (offset, bytes) in param_offsets.iter_mut().zip(offsets.as_chunks::<8>().0) {
            *offset = u64::from_le_bytes(*bytes);
        }
        // Field order is the C++ declaration order.
        Ok(Self {
            tiling: TileShape {
                block_m: word(),
                block_n: word(),
                head_dim: word(),
                stages: word(),
                warps: word(),
                k_stride: word(),
                v_stride: word(),
            },
            element_bytes: word(),
            shared_bytes: word(),
            param_bytes: word(),
            min_ctas: word(),
            param_offsets,
        })
    }
}

/// A cubin has no readable record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The bytes are not an ELF.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// No symbol of that name is defined.
    #[error(
        "the image has no `{SYMBOL}`: end the kernel's source with one, as kernels/record.cuh shows"
    )]
    Missing,
    /// The symbol has the size of another record.
    #[error(
        "`{SYMBOL}` has {found} bytes instead of {RECORD_BYTES}: \
         kernels/record.cuh and the Rust reader have drifted apart"
    )]
    Size {
        /// Bytes the symbol has.
        found: usize,
    },
    /// The first word is wrong.
    #[error(
        "`{SYMBOL}` starts with {found:#010x} instead of {MAGIC:#010x}: it is not an ImageRecord"
    )]
    Magic {
        /// The word found.
        found: u32,
    },
}
