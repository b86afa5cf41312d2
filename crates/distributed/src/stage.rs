//! Tensors that are put together of rows of several ranks.

use std::ops::Range;

use warptile::driver::{DeviceBuffer, Lent, LentBuffer, Rows, Stream};
use warptile::spec::Invalid;
use warptile::{Backend, Element, Layout, Tensor};

use crate::error::{OfRank, Result};
use crate::group::Group;
use crate::shard::{Piece, RowMap};
use crate::shards::Shards;

/// A rank's tensor, which all ranks read.
pub(crate) struct Source<'a, T: Element> {
    pub(crate) tensor: &'a Tensor<T>,
    /// On a GPU.
    lent: Option<Lent<'a, T>>,
}

impl<'a, T: Element> Source<'a, T> {
    /// Lends the tensors of all ranks, so that copies wait for what has been submitted up to here.
    pub(crate) fn lend_all(tensors: &'a [Tensor<T>]) -> Result<Vec<Self>> {
        let lend = |(rank, tensor): (usize, &'a Tensor<T>)| {
            let lent = tensor.device_slice().map(|slice| slice.lend());
            let lent = lent.transpose().of_rank(rank)?;
            Ok(Source { tensor, lent })
        };
        tensors.iter().enumerate().map(lend).collect()
    }

    /// The memory on a GPU.
    pub(crate) fn lent(&self) -> warptile::Result<&Lent<'a, T>> {
        Ok(self.lent.as_ref().ok_or_else(elsewhere)?)
    }

    /// What is submitted from here on waits for the copies.
    pub(crate) fn end_all(all: Vec<Self>) -> Result<()> {
        for (rank, Source { lent, .. }) in all.into_iter().enumerate() {
            lent.map_or(Ok(()), Lent::end).of_rank(rank)?;
        }
        Ok(())
    }
}

/// A tensor of rows from several ranks.
pub(crate) enum Staged<'a, T: Element> {
    Here(Tensor<T>),
    /// Copies into them are submitted; kernels don't wait for these yet.
    Underway {
        backend: &'a Backend,
        buffer: LentBuffer<T>,
        layout: Layout,
        near: &'a Stream,
        /// Copies within the GPU that are not submitted yet.
        own: Vec<(&'a Lent<'a, T>, Rows)>,
    },
}

impl<T: Element> Staged<'_, T> {
    /// Submits the copies within the GPU, once.
    pub(crate) fn copy_own(&mut self) -> warptile::Result<()> {
        if let Staged::Underway {
            buffer, near, own, ..
        } = self
        {
            buffer.copy_rows(near, &std::mem::take(own))?;
        }
        Ok(())
    }

    /// The tensor, whose kernels from now on wait for the copies.
    pub(crate) fn into_tensor(self) -> warptile::Result<Tensor<T>> {
        match self {
            Staged::Here(tensor) => Ok(tensor),
            Staged::Underway {
                backend,
                buffer,
                layout,
                ..
            } => Tensor::from_device(backend, buffer.into_buffer()?, layout),
        }
    }
}

/// The rows of `spans` of some heads, from every rank that has some.
pub(crate) fn rows_of_heads<'s, T: Element>(
    shards: &'s Shards<'_>,
    rank: usize,
    spans: &[Range<usize>],
    heads: &Range<usize>,
    from: &'s [Source<'s, T>],
) -> warptile::Result<Staged<'s, T>> {
    let [.., head_dim] = from[rank].tensor.shape();
    let copies = { copies(shards.map(), spans, heads, head_dim).into_iter() }
        .map(|(owner, rows)| (&from[owner], rows));
    let layout = Layout::bhsd([1, heads.len(), staged_rows(spans), head_dim]);
    put_together(shards.group(), rank, layout, copies)
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

/// A tensor of copies from several ranks. Those from other GPUs are submitted, those within the GPU not yet.
pub(crate) fn put_together<'s, T: Element>(
    group: &'s Group,
    rank: usize,
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
        return Ok(Staged::Here(Tensor::from_vec(backend, data, layout)?));
    };
    let copies = copies.map(|(source, rows)| Ok((source.lent()?, rows)));
    let copies = copies.collect::<warptile::Result<Vec<_>>>()?;
    let (own, others): (Vec<_>, Vec<_>) = { copies.into_iter() }
        .partition(|(lent, _)| lent.context().is_same(streams.kernels.context()));
    let mut buffer = DeviceBuffer::uninit(&streams.kernels, layout.reach())?.lend()?;
    buffer.copy_rows(&streams.far, &others)?;
    Ok(Staged::Underway {
        backend,
        buffer,
        layout,
        near: &streams.near,
        own,
    })
}

impl Group {
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
