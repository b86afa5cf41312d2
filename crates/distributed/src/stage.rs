//! Tensors that are put together of rows of several ranks.

use std::ops::Range;

use warptile::driver::{DeviceBuffer, Lent, LentBuffer, Rows, Stream};
use warptile::spec::Invalid;
use warptile::{Backend, Element, Layout, Lse, Tensor};

use crate::error::{OfRank, Result};
use crate::group::Group;
use crate::shard::{Piece, RowMap};
use crate::shards::Shards;

/// A rank's tensor, which all ranks read.
pub(crate) struct Source<'a, T: Element> {
    rank: usize,
    pub(crate) tensor: &'a Tensor<T>,
    /// On a GPU.
    lent: Option<Lent<'a, T>>,
}

impl<'a, T: Element> Source<'a, T> {
    /// Lends a rank's tensor, so that copies wait for what has been submitted up to here.
    pub(crate) fn lend(rank: usize, tensor: &'a Tensor<T>) -> Result<Self> {
        let lent = tensor.device_slice().map(|slice| slice.lend());
        let lent = lent.transpose().of_rank(rank)?;
        Ok(Source { rank, tensor, lent })
    }

    /// Lends the tensors of all ranks of this process.
    pub(crate) fn lend_all(group: &Group, tensors: &'a [Tensor<T>]) -> Result<Vec<Self>> {
        let lend = |(rank, tensor)| Self::lend(rank, tensor);
        group.local_ranks().zip(tensors).map(lend).collect()
    }

    /// The memory on a GPU.
    pub(crate) fn lent(&self) -> warptile::Result<&Lent<'a, T>> {
        Ok(self.lent.as_ref().ok_or_else(elsewhere)?)
    }

    /// The elements of the memory on a GPU.
    pub(crate) fn len(&self) -> usize {
        { self.tensor.device_slice() }.map_or(0, |memory| memory.len())
    }

    /// Work that is submitted from here on waits for the copies.
    pub(crate) fn end(self) -> Result<()> {
        self.lent.map_or(Ok(()), Lent::end).of_rank(self.rank)
    }

    /// Ends all loans.
    pub(crate) fn end_all(all: Vec<Self>) -> Result<()> {
        all.into_iter().try_for_each(Self::end)
    }
}

/// A tensor of rows from several ranks.
pub(crate) struct Staged<'a, T: Element> {
    pub(crate) tensor: Copied<T>,
    /// Copies within the GPU that are not submitted yet, and their stream.
    own: Option<(&'a Stream, Copies<'a, T>)>,
}

/// From where, and which rows.
pub(crate) type Copies<'a, T> = Vec<(&'a Lent<'a, T>, Rows)>;

/// A tensor whose copies are submitted.
pub(crate) enum Copied<T: Element> {
    Here(Tensor<T>),
    /// Kernels don't wait for the copies yet.
    Underway(Backend, LentBuffer<T>, Layout),
}

impl<'a, T: Element> Staged<'a, T> {
    /// Copies into `buffer` are submitted, except those within the GPU.
    pub(crate) fn underway(
        backend: &Backend,
        buffer: LentBuffer<T>,
        layout: Layout,
        own: (&'a Stream, Copies<'a, T>),
    ) -> Self {
        Staged {
            tensor: Copied::Underway(backend.clone(), buffer, layout),
            own: Some(own),
        }
    }

    /// Submits the copies within the GPU, once.
    pub(crate) fn copy_own(&mut self) -> warptile::Result<()> {
        if let (Copied::Underway(_, buffer, _), Some((near, own))) =
            (&mut self.tensor, self.own.take())
        {
            buffer.copy_rows(near, &own)?;
        }
        Ok(())
    }

    /// Submits what is left, and gives the tensor, whose kernels from now on wait for the copies.
    pub(crate) fn into_tensor(mut self) -> warptile::Result<Tensor<T>> {
        self.copy_own()?;
        self.tensor.into_tensor()
    }
}

impl<T: Element> Copied<T> {
    /// The tensor, whose kernels from now on wait for the copies.
    pub(crate) fn into_tensor(self) -> warptile::Result<Tensor<T>> {
        match self {
            Copied::Here(tensor) => Ok(tensor),
            Copied::Underway(backend, buffer, layout) => {
                Tensor::from_device(&backend, buffer.into_buffer()?, layout)
            }
        }
    }
}

/// The rows of some spans and heads of each tensor, from every rank that has some; `of` are those of a tensor and a reader.
pub(crate) fn rows_of_heads<'s, 'o, T: Element, const N: usize>(
    shards: &'s Shards<'_>,
    rank: usize,
    from: [&'s [Source<'s, T>]; N],
    of: impl Fn(usize, usize) -> (&'o [Range<usize>], &'o Range<usize>),
) -> Result<[Staged<'s, T>; N]> {
    let dims = from.map(|from| from[0].tensor.shape()[3]);
    let layouts = std::array::from_fn(|at| {
        let (spans, heads) = of(at, rank);
        Layout::bhsd([1, heads.len(), staged_rows(spans), dims[at]])
    });
    fetched(shards.group(), rank, from, layouts, |at, reader| {
        let (spans, heads) = of(at, reader);
        copies(shards.map(), spans, heads, dims[at])
    })
}

/// Tensors of rows from several ranks; `copies` are the owners and rows of a tensor and a reader.
pub(crate) fn fetched<'s, T: Element, const N: usize>(
    group: &'s Group,
    rank: usize,
    from: [&'s [Source<'s, T>]; N],
    layouts: [Layout; N],
    copies: impl Fn(usize, usize) -> Vec<(usize, Rows)>,
) -> Result<[Staged<'s, T>; N]> {
    let all = from.into_iter().zip(layouts).enumerate();
    let fetched = match group.processes() {
        Some(nccl) => {
            let wanted = all.map(|(at, (from, layout))| {
                let of = |reader| {
                    let copies = copies(at, reader).into_iter();
                    copies.map(move |(owner, rows)| (reader, owner, rows))
                };
                Wanted {
                    source: &from[0],
                    layout,
                    copies: (0..group.ranks()).flat_map(of).collect(),
                }
            });
            nccl.exchange(group, &wanted.collect::<Vec<_>>())?
        }
        None => {
            let put = all.map(|(at, (from, layout))| {
                let copies = copies(at, rank).into_iter();
                let copies = copies.map(|(owner, rows)| (&from[owner], rows));
                put_together(group, (rank, at), layout, copies).of_rank(rank)
            });
            put.collect::<Result<Vec<_>>>()?
        }
    };
    match <[_; N]>::try_from(fetched) {
        Ok(fetched) => Ok(fetched),
        Err(_) => unreachable!("there is one for each source"),
    }
}

/// A tensor of rows from ranks of several processes.
pub(crate) struct Wanted<'s, T: Element> {
    /// The rows of this rank.
    pub(crate) source: &'s Source<'s, T>,
    pub(crate) layout: Layout,
    /// Each rank as a reader, the owner of what it reads, and the rows.
    pub(crate) copies: Vec<(usize, usize, Rows)>,
}

/// How many rows `spans` have.
pub(crate) fn staged_rows(spans: &[Range<usize>]) -> usize {
    spans.iter().map(Range::len).sum()
}

/// The rows of `spans` of some heads: owners, and where the rows lie in the owner's tensor and in a tensor of all of them.
pub(crate) fn copies(
    map: &RowMap,
    spans: &[Range<usize>],
    heads: &Range<usize>,
    head_dim: usize,
) -> Vec<(usize, Rows)> {
    let pieces = { spans.iter() }.flat_map(|span| map.pieces(span.clone()));
    let copy = |piece: Piece| {
        let local_rows = map.local_len(piece.rank);
        let rows = Rows {
            count: heads.len(),
            len: piece.rows.len() * head_dim,
            from: (heads.start * local_rows + piece.local) * head_dim,
            from_pitch: local_rows * head_dim,
            to: position(spans, piece.rows.start) * head_dim,
            to_pitch: staged_rows(spans) * head_dim,
        };
        (piece.rank, rows)
    };
    pieces.map(copy).collect()
}

/// A tensor of copies from several ranks, the `at`-th of those that come side by side. Those from other GPUs are submitted, those within the GPU
/// not yet.
pub(crate) fn put_together<'s, T: Element>(
    group: &'s Group,
    (rank, at): (usize, usize),
    layout: Layout,
    copies: impl Iterator<Item = (&'s Source<'s, T>, Rows)>,
) -> warptile::Result<Staged<'s, T>> {
    let backend = group.backend(rank);
    let Some(streams) = group.streams(rank) else {
        let mut data = vec![T::zeroed(); layout.reach()];
        for (source, rows) in copies {
            let source = source.tensor.as_slice().ok_or_else(elsewhere)?;
            for row in 0..rows.count {
                let (to, from) = (
                    rows.to + row * rows.to_pitch,
                    rows.from + row * rows.from_pitch,
                );
                data[to..to + rows.len].copy_from_slice(&source[from..from + rows.len]);
            }
        }
        let tensor = Copied::Here(Tensor::from_vec(backend, data, layout)?);
        return Ok(Staged { tensor, own: None });
    };
    let copies = copies.map(|(source, rows)| Ok((source.lent()?, rows)));
    let copies = copies.collect::<warptile::Result<Vec<_>>>()?;
    let (own, others): (Vec<_>, Vec<_>) = { copies.into_iter() }
        .partition(|(lent, _)| lent.context().is_same(streams.kernels.context()));
    let mut buffer = DeviceBuffer::uninit(&streams.kernels, layout.reach())?.lend()?;
    buffer.copy_rows(&streams.far[at % streams.far.len()], &others)?;
    Ok(Staged::underway(
        backend,
        buffer,
        layout,
        (&streams.near, own),
    ))
}

impl Group {
    /// Room for the output of queries and values in BHSD layout.
    pub(crate) fn output<T: Element>(
        &self,
        rank: usize,
        q: &Tensor<T>,
        v: &Tensor<T>,
    ) -> warptile::Result<Tensor<T>> {
        let [batch, rows, heads, _] = q.shape();
        self.uninit(rank, Layout::bhsd([batch, heads, rows, v.shape()[3]]))
    }

    /// Uninitialized memory of a rank; every row is about to be written.
    pub(crate) fn uninit<T: Element>(
        &self,
        rank: usize,
        layout: Layout,
    ) -> warptile::Result<Tensor<T>> {
        let backend = self.backend(rank);
        match self.streams(rank) {
            Some(streams) => {
                let buffer = DeviceBuffer::uninit(&streams.kernels, layout.reach())?;
                Tensor::from_device(backend, buffer, layout)
            }
            None => Tensor::from_vec(backend, vec![T::zeroed(); layout.reach()], layout),
        }
    }

    /// Zeros in a rank's memory.
    pub(crate) fn zeros<T: Element>(
        &self,
        rank: usize,
        layout: Layout,
    ) -> warptile::Result<Tensor<T>> {
        match self.streams(rank) {
            Some(streams) => {
                let buffer = DeviceBuffer::zeroed(&streams.kernels, layout.reach())?;
                Tensor::from_device(self.backend(rank), buffer, layout)
            }
            None => self.uninit(rank, layout),
        }
    }

    /// An lse in a rank's memory, of queries of this shape; every number is about to be written.
    pub(crate) fn uninit_lse(&self, rank: usize, shape: [usize; 4]) -> warptile::Result<Lse> {
        let backend = self.backend(rank);
        let [batch, length, heads, _] = shape;
        match self.streams(rank) {
            Some(streams) => {
                let buffer = DeviceBuffer::uninit(&streams.kernels, batch * heads * length)?;
                Lse::from_device(backend, buffer, [batch, heads, length])
            }
            None => Lse::zeros(backend, shape),
        }
    }
}

fn elsewhere() -> Invalid {
    Invalid::presence("q, k or v", "has rows outside of its device's memory")
}

/// Where a row lies in staging memory.
pub(crate) fn position(spans: &[Range<usize>], row: usize) -> usize {
    { spans.iter() }
        .map(|span| row.clamp(span.start, span.end) - span.start)
        .sum()
}
