//! Cache writes on a GPU.

use bytemuck::Pod;
use warptile_driver::sys::CUstream;
use warptile_driver::{Context, Stream};
use warptile_kernels::{ElementType, Image, Operand, Role, Slots, Types, abi};

use crate::gpu::Gpu;
use crate::gpu::bindings::Bindings;
use crate::gpu::block::{heads, scales, tensor};
use crate::gpu::kernel::Block;
use crate::gpu::operation::{Description, Operation};
use crate::spec::{Angles, Append, Expected, Pairing, Result, Rotary};

/// The kernel that writes into caches of one element type, loaded. It belongs to no stream: any number of threads may launch it,
/// on any number of streams of its context, and in captures. A cheap handle.
#[derive(Debug, Clone)]
pub struct PreparedAppend {
    operation: Operation,
}

/// A number that says where a row stands: `i32`, `u32` or `i64`.
pub trait PositionElement: Pod + sealed::Sealed {
    /// Whether it has 64 bits.
    const WIDE: bool;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for u32 {}
    impl Sealed for i64 {}
}

impl PositionElement for i32 {
    const WIDE: bool = false;
}

impl PositionElement for u32 {
    const WIDE: bool = false;
}

impl PositionElement for i64 {
    const WIDE: bool = true;
}

impl Gpu {
    /// The kernel that writes keys and values into a cache: loaded the first time, and found again after that. It launches any
    /// [`Append`] of these [`types`](crate::Append::types).
    ///
    /// # Errors
    /// As [`Gpu::prepare_merge`].
    pub fn prepare_append(&self, types: impl Into<Types>) -> Result<PreparedAppend> {
        Ok(PreparedAppend {
            operation: Operation::load(self, Role::Append, types.into())?,
        })
    }
}

impl PreparedAppend {
    /// The image whose kernel writes.
    #[must_use]
    pub fn image(&self) -> &'static Image {
        self.operation.image()
    }

    /// The context that the kernel is loaded in.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.operation.context()
    }

    /// Submits a write to `stream`; doesn't wait. Numbers that the description has on the host travel along. Streams and captures
    /// as with [`Prepared::launch`](crate::gpu::Prepared::launch).
    ///
    /// # Errors
    /// Before anything is submitted: [`Error::ElementMismatch`](crate::Error::ElementMismatch); a view that is missing, superfluous, too short, unaligned, or of
    /// another device or context; an output that shares memory with anything. After that, what the driver reports.
    pub fn launch(&self, stream: &Stream, append: &Append, bindings: &Bindings<'_>) -> Result<()> {
        bindings.check_types(append.expected())?;
        let lists: Vec<_> = { append.host_numbers() }
            .map(|(operand, numbers)| (operand as usize, numbers))
            .collect();
        self.operation
            .launch(stream, append, bindings.views(), &lists)
    }

    /// Submits a write to anybody's stream, by one driver call: it allocates, copies, waits for and loads nothing, takes no lock,
    /// and touches no reference count, so it may be part of anybody's capture. All numbers lie on the device: a captured launch
    /// reads them anew at each replay.
    ///
    /// # Errors
    /// Before anything is submitted: [`Error::ElementMismatch`](crate::Error::ElementMismatch); an address that is missing, superfluous or unaligned, an output
    /// that overlaps anything; numbers on the host. Then what the driver reports.
    ///
    /// # Safety
    /// - `stream` is a live stream of [`PreparedAppend::context`], which is current on the calling thread.
    /// - Each address that is not 0 is that of device memory which the context can use and which reaches as far as the
    ///   description's layouts say, or as its count of numbers; it stays valid until the launch, and every replay of a graph that
    ///   captured it, has ended.
    /// - Nothing else writes what the launch reads, or touches what it writes, at the same time. Slots, tables, offsets, lengths and
    ///   positions are an exception: any bits at any time are safe, and give wrong numbers in the cache at worst.
    /// - A clone of this value, or the [`Gpu`] that prepared it, lives until the launch has ended, and as long as any graph that
    ///   captured it.
    pub unsafe fn launch_raw(
        &self,
        stream: CUstream,
        append: &Append,
        addresses: &Slots<u64>,
    ) -> Result<()> {
        // SAFETY: the caller's promises.
        unsafe {
            self.operation
                .launch_raw(stream, append, addresses.as_slice())
        }
    }
}

/// Threads that a head of a row takes.
fn lanes(append: &Append) -> usize {
    let chunk = 16 / append.element().size();
    let heads = append.heads();
    heads.dim.max(heads.value_dim).div_ceil(chunk)
}

impl Description for Append {
    const TYPED: &'static str = "k";

    fn types(&self) -> Types {
        self.types()
    }

    fn expected(&self) -> &[Expected] {
        self.expected().as_slice()
    }

    fn work(&self) -> (usize, usize) {
        let heads = self.heads().query + 2 * self.heads().key_value;
        (self.batch() * self.rows().bound(), heads * lanes(self))
    }

    fn block(&self, row_ctas: i32, at: &[u64]) -> Block {
        let at = &Slots::from_fn(|operand| at[operand as usize]);
        let count = |n: usize| n as i32;
        let [pages, page_rows, ..] = self.k_pages().shape;
        let q = self
            .layout(Operand::Q)
            .map_or_else(abi::Tensor::default, |layout| {
                tensor(at[Operand::Q], layout)
            });
        let pages = abi::Pages::of(
            at[Operand::BlockTable],
            self.columns() as i64,
            count(page_rows),
            count(pages),
        );
        let append = abi::Append {
            sequences: abi::Sequences {
                batch: count(self.batch()),
                query_len: count(self.rows().bound()),
                key_len: count(self.capacity()),
                query_rows: count(self.rows().rows()),
                key_rows: count(self.capacity()),
                query_offsets: at[Operand::RowOffsets],
                query_lengths: at[Operand::RowLengths],
                key_lengths: at[Operand::KeyLengths],
                ..Default::default()
            }
            .with_ragged(&pages),
            pages,
            slots: at[Operand::NewSlots],
            heads: heads(self.heads()),
            lanes: lanes(self) as i32,
            row_ctas,
            q,
            q_out: match self.layout(Operand::QOut) {
                Some(out) => tensor(at[Operand::QOut], out),
                None => q,
            },
            k: tensor(at[Operand::K], self.k()),
            v: tensor(at[Operand::V], self.v()),
            k_pages: tensor(at[Operand::KPages], self.k_pages()),
            v_pages: tensor(at[Operand::VPages], self.v_pages()),
            rotary: self
                .rotary()
                .map_or_else(abi::Rotary::default, |rotary| rotation(self, rotary, at)),
        };
        match self.types().scaled() {
            None => Block::Append(append),
            Some(_) => Block::AppendE4m3(abi::AppendE4m3 {
                append,
                scales: scales(at, |operand| self.reach(operand)),
            }),
        }
    }
}

fn rotation(append: &Append, rotary: &Rotary, at: &Slots<u64>) -> abi::Rotary {
    let mut block = abi::Rotary {
        size: rotary.size() as i32,
        interleaved: i32::from(rotary.pairing() == Pairing::Interleaved),
        wide_positions: i32::from(append.wide_positions()),
        positions: at[Operand::Positions],
        positions_end: rotary.positions_end() as i64,
        cos: at[Operand::Cos],
        sin: at[Operand::Sin],
        ..Default::default()
    };
    match rotary.angles() {
        Angles::Turns(turns) => block.turns[..turns.len()].copy_from_slice(turns),
        Angles::Tables { element, layout } => {
            block.float_tables = i32::from(*element == ElementType::F32);
            block.table_row = layout.strides[1] as i64;
        }
    }
    block
}
