//! Where the elements of an array lie, what they are, and whether that suits an argument.

use std::fmt;

use warptile::kernels::Excerpt;
use warptile::spec::Operand;
use warptile::{ElementType, Layout};

use crate::errors::{Failure, Result};

/// Where an array is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    /// Host memory, pinned or not.
    Cpu,
    /// The GPU of this number, in the driver's order.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("the CPU"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Element types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dtype {
    F16,
    Bf16,
    F32,
    I32,
    U32,
    I64,
    U8,
    Bool,
    /// One with scales, of keys and values alone.
    Scaled(ElementType),
    /// None that is of use here, by its library's name for it.
    Other(String),
}

impl Dtype {
    /// Bytes of an element; 0 for other types.
    pub(crate) const fn size(&self) -> u64 {
        match self {
            Dtype::U8 | Dtype::Bool => 1,
            Dtype::Scaled(element) => element.size() as u64,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::I64 => 8,
            Dtype::Other(_) => 0,
        }
    }

    /// The types with scales.
    pub(crate) fn scaled() -> impl Iterator<Item = Dtype> {
        SCALED
            .into_iter()
            .map(|(element, ..)| Dtype::Scaled(element))
    }

    /// The type with scales that has this code.
    pub(crate) fn of_dlpack(code: u8) -> Option<Self> {
        let known = SCALED.into_iter().find(|(.., known)| *known == code);
        known.map(|(element, ..)| Dtype::Scaled(element))
    }

    /// From a letter for the kind and a number of bytes, as numpy and the buffer protocol have it.
    pub(super) fn of_kind(kind: char, bytes: usize) -> Option<Self> {
        Some(match (kind, bytes) {
            ('f', 2) => Dtype::F16,
            ('f', 4) => Dtype::F32,
            ('i', 4) => Dtype::I32,
            ('u', 4) => Dtype::U32,
            ('i', 8) => Dtype::I64,
            ('u', 1) => Dtype::U8,
            ('b', 1) => Dtype::Bool,
            _ => return None,
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::F32 => "float32",
            Dtype::I32 => "int32",
            Dtype::U32 => "uint32",
            Dtype::I64 => "int64",
            Dtype::U8 => "uint8",
            Dtype::Bool => "bool",
            Dtype::Scaled(element) => {
                let known = SCALED.iter().find(|(scaled, ..)| scaled == element);
                known.map_or("unknown", |(_, name, _)| name)
            }
            Dtype::Other(name) => return Excerpt::new(name).fmt(f),
        })
    }
}

/// The types with scales: the name in torch and ml_dtypes, and the code in DLPack.
const SCALED: [(ElementType, &str, u8); 1] = [(ElementType::E4m3, "float8_e4m3fn", 10)];

/// The shapes that scales may have.
const SCALES: &str =
    "a number, or have the dimensions [key/value heads] or [sequences, key/value heads]";

/// The most dimensions that any argument has.
pub(crate) const MAX_RANK: usize = 4;

/// An array's elements in memory. Plain data: it says nothing of how long they stay there.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    /// The argument's name, for messages.
    pub(crate) name: &'static str,
    pub(crate) device: Device,
    /// Address of the first element; may be 0 if there is none.
    pub(crate) address: u64,
    pub(crate) dtype: Dtype,
    rank: usize,
    shape: [usize; MAX_RANK],
    /// In elements; of dimensions without a second index 0.
    strides: [usize; MAX_RANK],
    pub(crate) writable: bool,
}

impl Described {
    /// `strides` are in elements; none if the array is contiguous, as one without elements counts in any case.
    pub(crate) fn new(
        name: &'static str,
        device: Device,
        address: u64,
        dtype: Dtype,
        shape: &[i64],
        strides: Option<&[i64]>,
        writable: bool,
    ) -> Result<Self> {
        let rank = shape.len();
        if rank > MAX_RANK {
            return Err(Failure::Invalid(format!(
                "{name} has {rank} dimensions; no argument has more than {MAX_RANK}"
            )));
        }
        let mut described = Described {
            name,
            device,
            address,
            dtype,
            rank,
            shape: [1; MAX_RANK],
            strides: [0; MAX_RANK],
            writable,
        };
        let strides = strides.filter(|_| !shape.contains(&0));
        let mut step = 1_i64;
        for dimension in (0..rank).rev() {
            let extent = shape[dimension];
            let stride = match strides {
                Some(strides) => strides[dimension],
                None => step,
            };
            step = step.saturating_mul(extent);
            let bad = |what: &str, value: i64| {
                Failure::Invalid(format!(
                    "{name} has {what} {value} in dimension {dimension}; it must not be negative"
                ))
            };
            described.shape[dimension] =
                usize::try_from(extent).map_err(|_| bad("extent", extent))?;
            if extent > 1 {
                described.strides[dimension] =
                    usize::try_from(stride).map_err(|_| bad("stride", stride))?;
            }
        }
        if address == 0 && !described.shape().contains(&0) {
            return Err(Failure::Invalid(format!(
                "{name} has no memory: its library has freed it, or never gave it any"
            )));
        }
        Ok(described)
    }

    /// Elements from the first to the last, both counted; saturating.
    pub(crate) fn reach(&self) -> usize {
        if self.shape().contains(&0) {
            return 0;
        }
        let steps = self.shape().iter().zip(self.strides());
        steps.fold(1, |reach, (&extent, &stride)| {
            stride.saturating_mul(extent - 1).saturating_add(reach)
        })
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// True if the last dimension is contiguous.
    pub(crate) fn has_rows(&self) -> bool {
        { self.shape().iter().zip(self.strides()).next_back() }
            .is_some_and(|(&extent, &stride)| extent <= 1 || stride == 1)
    }

    /// True if this array has the shape and, where there is a second index, the strides.
    pub(crate) fn is_alike(&self, shape: &[usize], strides: &[usize]) -> bool {
        self.shape() == shape && { shape.iter().zip(self.strides().iter().zip(strides)) }
            .all(|(&extent, (one, other))| extent <= 1 || one == other)
    }

    /// As a tensor of attention, whose four dimensions are found at `order`; `None` is an extent of 1.
    fn at(&self, order: [Option<usize>; 4]) -> Layout {
        let extent = |at: Option<usize>| at.map_or(1, |at| self.shape[at]);
        let stride = |at: Option<usize>| at.map_or(0, |at| self.strides[at]);
        let mut layout = Layout::new(order.map(extent), order.map(stride));
        if layout.shape[3] == 1 {
            layout.strides[3] = 1;
        }
        layout
    }

    fn wrong_rank(&self, rule: &str) -> Failure {
        Failure::Invalid(format!(
            "{} has shape {:?}; {rule}",
            self.name,
            self.shape()
        ))
    }

    /// Layout of q, k, v or out. `packed`: `[rows, heads, head size]`.
    pub(crate) fn tensor(&self, order: Order, packed: bool) -> Result<Layout> {
        match (self.rank, packed, order) {
            (4, false, Order::Bshd) => Ok(self.at([Some(0), Some(1), Some(2), Some(3)])),
            (4, false, Order::Bhsd) => Ok(self.at([Some(0), Some(2), Some(1), Some(3)])),
            (3, true, _) => Ok(self.at([None, Some(0), Some(1), Some(2)])),
            (_, false, order) => Err(self.wrong_rank(&format!(
                "it must have the four dimensions {}, or three if cu_seqlens are given for it",
                order.dimensions()
            ))),
            (_, true, _) => Err(self.wrong_rank(
                "packed sequences have the three dimensions [rows of all sequences, heads, head size]",
            )),
        }
    }

    /// Layout of an lse, `[batch, heads, rows]`, of head size 1.
    pub(crate) fn lse(&self, packed: bool) -> Result<Layout> {
        match (self.rank, packed) {
            (3, false) => Ok(self.at([Some(0), Some(2), Some(1), None])),
            (2, true) => Ok(self.at([None, Some(1), Some(0), None])),
            (_, false) => {
                Err(self.wrong_rank("it must have the three dimensions [batch, heads, rows]"))
            }
            (_, true) => Err(self.wrong_rank(
                "of packed sequences it must have the two dimensions [heads, rows of all sequences]",
            )),
        }
    }

    /// Layout of a bias or key mask: any that broadcasts to `[batch, heads, queries, keys]`. A key mask with two dimensions has
    /// `[batch, keys]`.
    pub(crate) fn scores(&self, operand: Operand) -> Layout {
        let skipped = MAX_RANK - self.rank;
        let at = |dimension: usize| dimension.checked_sub(skipped);
        let mut layout = match (operand, self.rank) {
            (Operand::KeyMask, 2) => self.at([Some(0), None, None, Some(1)]),
            _ => self.at([at(0), at(2), at(1), at(3)]),
        };
        if self.rank == 0 {
            layout.strides[3] = 1;
        }
        layout
    }

    /// The number of elements of a contiguous list.
    pub(crate) fn list(&self, rank: usize, rule: &str) -> Result<usize> {
        if self.rank != rank {
            return Err(self.wrong_rank(rule));
        }
        let mut step = 1_usize;
        for (&extent, &stride) in self.shape().iter().zip(self.strides()).rev() {
            if extent > 1 && stride != step {
                return Err(Failure::Invalid(format!(
                    "{} is not contiguous: it has shape {:?} and strides {:?}",
                    self.name,
                    self.shape(),
                    self.strides()
                )));
            }
            step = step.saturating_mul(extent);
        }
        Ok(step)
    }

    /// The count of numbers for heads in memory: of a contiguous list or table, or of a table with the same row for each sequence.
    pub(crate) fn values_of_heads(&self) -> Result<usize> {
        match (self.shape(), self.strides()) {
            (&[sequences, heads], &[0, stride]) if sequences > 0 && (stride == 1 || heads <= 1) => {
                Ok(heads)
            }
            (shape, _) => self.list(
                shape.len().clamp(1, 2),
                "it must have one dimension [heads], or for slopes two [batch, heads]",
            ),
        }
    }

    /// Rows and the stride between them of a table whose rows are contiguous.
    pub(crate) fn table(&self) -> Result<([usize; 2], usize)> {
        if self.rank != 2 {
            return Err(self.wrong_rank("it must have the two dimensions [sequences, pages]"));
        }
        if self.shape[1] > 1 && self.strides[1] != 1 {
            return Err(Failure::Invalid(format!(
                "{} has stride {} in its last dimension, which must be contiguous",
                self.name, self.strides[1]
            )));
        }
        Ok(([self.shape[0], self.shape[1]], self.strides[0]))
    }

    /// The number of scales in memory: of a number, of a list with one for each key/value head, or of a table whose rows, one for each
    /// sequence, are the same. [`expect_scales`](Self::expect_scales) compares the extents with those of the call.
    pub(crate) fn scales(&self) -> Result<usize> {
        let heads = match self.rank {
            0 => return Ok(1),
            1 => 0,
            2 if self.strides[0] != 0 => {
                return Err(self.wrong_rank(
                    "warptile takes the same scales for all sequences: a number, [key/value heads], or one of these expanded to [sequences, key/value heads]",
                ));
            }
            2 => 1,
            _ => return Err(self.wrong_rank(&format!("it must be {SCALES}"))),
        };
        match (self.shape[heads], self.strides[heads]) {
            _ if self.shape().contains(&0) => Ok(0),
            (count, 1) | (count @ 1, _) => Ok(count),
            (_, 0) => Ok(1),
            (_, stride) => Err(Failure::Invalid(format!(
                "{} has stride {stride} from one key/value head to the next; it must be 1, or 0 for one scale",
                self.name
            ))),
        }
    }

    /// Checks the extents of scales, also those along which they are the same, against a call's.
    pub(crate) fn expect_scales(&self, sequences: usize, kv_heads: usize) -> Result<()> {
        let fits = match *self.shape() {
            [] => true,
            [heads] => heads == 1 || heads == kv_heads,
            [of, heads] => of == sequences && (heads == 1 || heads == kv_heads),
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(self.wrong_rank(&format!(
                "it must be {SCALES}; the call has {sequences} sequences and {kv_heads} key/value heads"
            ))),
        }
    }

    /// The type of keys or values with scales. Bytes with scales are the bits of the first such type.
    pub(crate) fn scaled(&self, has_scales: bool) -> Option<ElementType> {
        match self.dtype {
            Dtype::Scaled(element) => Some(element),
            Dtype::U8 if has_scales => Some(SCALED[0].0),
            _ => None,
        }
    }

    /// The element type of a tensor of attention.
    pub(crate) fn element(&self) -> Result<ElementType> {
        match self.dtype {
            Dtype::F16 => Ok(ElementType::F16),
            Dtype::Bf16 => Ok(ElementType::Bf16),
            Dtype::F32 => Ok(ElementType::F32),
            _ => Err(self.wrong_dtype("float16, bfloat16 or float32")),
        }
    }

    pub(crate) fn wrong_dtype(&self, expected: &str) -> Failure {
        Failure::Type(format!(
            "{} has elements of type {}, but must have {expected}",
            self.name, self.dtype
        ))
    }

    pub(crate) fn expect_dtype(&self, allowed: &[Dtype], expected: &str) -> Result<()> {
        match allowed.contains(&self.dtype) {
            true => Ok(()),
            false => Err(self.wrong_dtype(expected)),
        }
    }

    pub(crate) fn expect_writable(&self) -> Result<()> {
        match self.writable {
            true => Ok(()),
            false => Err(Failure::Invalid(format!(
                "{} is read-only, but the result would be written into it",
                self.name
            ))),
        }
    }
}

/// The order of the dimensions of q, k, v and out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Bshd,
    Bhsd,
}

impl Order {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text {
            "bshd" => Ok(Order::Bshd),
            "bhsd" => Ok(Order::Bhsd),
            _ => Err(Failure::Invalid(format!(
                "layout is {:?}, but must be \"bshd\" or \"bhsd\"",
                Excerpt::new(text)
            ))),
        }
    }

    /// Shape and strides of a layout with its dimensions in this order.
    pub(crate) fn of(self, layout: &Layout) -> ([usize; 4], [usize; 4]) {
        let [a, b, c, d] = layout.shape;
        let [e, f, g, h] = layout.strides;
        match self {
            Order::Bshd => ([a, b, c, d], [e, f, g, h]),
            Order::Bhsd => ([a, c, b, d], [e, g, f, h]),
        }
    }

    const fn dimensions(self) -> &'static str {
        match self {
            Order::Bshd => "[batch, length, heads, head size]",
            Order::Bhsd => "[batch, heads, length, head size]",
        }
    }
}
