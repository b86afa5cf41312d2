//! The rows that each rank owns.

use std::ops::Range;

use warptile::Element;

use crate::error::{Error, Result};

/// How the rows of a sequence are dealt to ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharding {
    /// One chunk a rank, in order. Balanced without a mask.
    Contiguous,
    /// There are twice as many chunks as ranks, and rank `r` has chunk `r` and chunk `2 ranks - 1 - r`. Balanced under a
    /// causal mask.
    Zigzag,
    /// The sequence in so many equal parts, each dealt as [`Zigzag`](Self::Zigzag) deals the whole. Two of them end the work of all ranks
    /// closer together: each rank has shorter chunks, and rows with fewer keys among them to end with.
    Zigzags(usize),
    /// Packed documents, by their row offsets: `documents + 1` numbers from 0. A document of at least 256 rows a rank is dealt in zigzag;
    /// shorter ones stay whole and go, the largest first, to the rank with the least causal work.
    Documents(Vec<usize>),
}

/// Neighbouring rows of one document on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// The rows, counted over all documents.
    pub rows: Range<usize>,
    /// All rows of their document.
    pub document: Range<usize>,
    /// The document's number.
    pub number: usize,
}

/// Rows of a span that lie next to each other on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The owner.
    pub rank: usize,
    /// The rows, counted over all documents.
    pub rows: Range<usize>,
    /// The first of them among the owner's rows.
    pub local: usize,
}

/// Which rank owns which rows. Every row has one owner; a rank may have none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowMap {
    len: usize,
    chunks: Vec<Vec<Chunk>>,
}

/// Rows per rank and half from which a document is cut.
const SHORTEST_CHUNK: usize = 128;

impl RowMap {
    /// Deals `len` rows to `ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Sharding`] without ranks or zigzags, or if the offsets of documents do not rise from 0 to `len`.
    pub fn new(sharding: &Sharding, len: usize, ranks: usize) -> Result<Self> {
        if ranks == 0 {
            return Err(Error::Sharding("no ranks".to_owned()));
        }
        let mut map = RowMap {
            len,
            chunks: vec![Vec::new(); ranks],
        };
        match sharding {
            Sharding::Contiguous => {
                for rank in 0..ranks {
                    map.give(rank, part(len, rank, ranks), 0..len, 0);
                }
            }
            Sharding::Zigzag => map.zigzag(0..len, 0..len, 0),
            Sharding::Zigzags(0) => return Err(Error::Sharding("no zigzags".to_owned())),
            Sharding::Zigzags(zigzags) => {
                let parts = len.min(*zigzags);
                for index in 0..parts {
                    map.zigzag(part(len, index, parts), 0..len, 0);
                }
            }
            Sharding::Documents(offsets) => map.documents(offsets)?,
        }
        for chunks in &mut map.chunks {
            chunks.sort_by_key(|chunk| chunk.rows.start);
        }
        Ok(map)
    }

    fn give(&mut self, rank: usize, rows: Range<usize>, document: Range<usize>, number: usize) {
        if !rows.is_empty() {
            self.chunks[rank].push(Chunk {
                rows,
                document,
                number,
            });
        }
    }

    /// Deals rows of a document.
    fn zigzag(&mut self, all: Range<usize>, document: Range<usize>, number: usize) {
        let parts = 2 * self.ranks();
        for index in 0..parts {
            let rows = part(all.len(), index, parts);
            let rows = all.start + rows.start..all.start + rows.end;
            self.give(index.min(parts - 1 - index), rows, document.clone(), number);
        }
    }

    fn documents(&mut self, offsets: &[usize]) -> Result<()> {
        let rises = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if offsets.first() != Some(&0) || offsets.last() != Some(&self.len) || !rises {
            return Err(Error::Sharding(format!(
                "the offsets of documents must rise from 0 to the length {}",
                self.len
            )));
        }
        let cut_from = 2 * SHORTEST_CHUNK * self.ranks();
        let mut short = Vec::new();
        for (number, pair) in offsets.windows(2).enumerate() {
            match pair[1] - pair[0] >= cut_from {
                true => self.zigzag(pair[0]..pair[1], pair[0]..pair[1], number),
                false => short.push((pair[0]..pair[1], number)),
            }
        }
        short.sort_by_key(|(document, _)| std::cmp::Reverse(document.len()));
        let mut loads = vec![0_u128; self.ranks()];
        for (document, number) in short {
            let least = (0..loads.len())
                .min_by_key(|&rank| loads[rank])
                .unwrap_or(0);
            loads[least] += (document.len() as u128).pow(2);
            self.give(least, document.clone(), document, number);
        }
        Ok(())
    }

    /// How many ranks each of `hosts` hosts has, and the rows of the hosts: chunks of their ranks that lie next to each other in a document
    /// are one.
    ///
    /// # Errors
    /// [`Error::Sharding`] if the ranks are not the same number on each host.
    pub(crate) fn of_hosts(&self, hosts: usize) -> Result<(usize, Self)> {
        let all = self.ranks();
        if hosts == 0 || !all.is_multiple_of(hosts) {
            let rule = format!("{all} ranks are not the same number on each of {hosts} hosts");
            return Err(Error::Sharding(rule));
        }
        let ranks = all / hosts;
        let host = |of_ranks: &[Vec<Chunk>]| {
            let mut chunks: Vec<Chunk> = of_ranks.concat();
            chunks.sort_by_key(|chunk| chunk.rows.start);
            chunks.dedup_by(|next, chunk| {
                let joins = next.number == chunk.number && next.rows.start == chunk.rows.end;
                if joins {
                    chunk.rows.end = next.rows.end;
                }
                joins
            });
            chunks
        };
        let map = RowMap {
            len: self.len,
            chunks: self.chunks.chunks(ranks).map(host).collect(),
        };
        Ok((ranks, map))
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.chunks.len()
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunks of a rank, in the order in which its tensors have them.
    pub fn chunks(&self, rank: usize) -> &[Chunk] {
        &self.chunks[rank]
    }

    /// The rows of a rank, in the order in which its tensors have them.
    pub(crate) fn rows(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.chunks[rank]
            .iter()
            .flat_map(|chunk| chunk.rows.clone())
    }

    /// The host data of all rows, stored as `[length, heads, head size]`, from that of each rank, stored as `[heads, length, head size]`.
    ///
    /// # Panics
    /// If a rank's part is missing or too short.
    pub fn join<T: Element>(&self, parts: &[Vec<T>], heads: usize, head_dim: usize) -> Vec<T> {
        let row = heads * head_dim;
        let mut data = vec![T::zeroed(); self.len * row];
        for (rank, part) in parts.iter().enumerate() {
            let local_rows = self.local_len(rank);
            for head in 0..heads {
                for (local, at) in self.rows(rank).enumerate() {
                    let from = (head * local_rows + local) * head_dim;
                    data[at * row + head * head_dim..][..head_dim]
                        .copy_from_slice(&part[from..from + head_dim]);
                }
            }
        }
        data
    }

    /// How many rows a rank owns.
    pub fn local_len(&self, rank: usize) -> usize {
        self.chunks[rank].iter().map(|chunk| chunk.rows.len()).sum()
    }

    /// Who has the rows of a span: pieces in the order of rows, as long as possible.
    pub fn pieces(&self, span: Range<usize>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (rank, chunks) in self.chunks.iter().enumerate() {
            let mut local = 0;
            for Chunk { rows, .. } in chunks {
                let (start, end) = (rows.start.max(span.start), rows.end.min(span.end));
                if start < end {
                    pieces.push(Piece {
                        rank,
                        rows: start..end,
                        local: local + start - rows.start,
                    });
                }
                local += rows.len();
            }
        }
        pieces.sort_by_key(|piece| piece.rows.start);
        pieces.dedup_by(|next, piece| {
            let joins = next.rank == piece.rank
                && next.rows.start == piece.rows.end
                && next.local == piece.local + piece.rows.len();
            if joins {
                piece.rows.end = next.rows.end;
            }
            joins
        });
        pieces
    }
}

/// Part `index` of `len` rows in `parts` parts, whose lengths differ by at most one.
pub(crate) fn part(len: usize, index: usize, parts: usize) -> Range<usize> {
    let at = |index: usize| (len as u128 * index as u128 / parts as u128) as usize;
    at(index)..at(index + 1)
}
