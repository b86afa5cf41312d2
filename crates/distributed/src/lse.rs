//! The log-sum-exp of a call over several ranks, as its launches left it.

use std::ops::Range;

use warptile::Lse;

use crate::error::{Error, OfRank, Result};

/// The log-sum-exp of every row, on the ranks that computed them: [`Shards::join_lse`](crate::Shards::join_lse) gives the numbers, and
/// [`Shards::backward`](crate::Shards::backward) reads it where it is.
#[derive(Debug, Clone)]
pub struct ShardedLse(pub(crate) Vec<Vec<Piece>>);

/// The log-sum-exp of one launch.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// Rows, counted over all documents, and where the first of them lies.
    pub(crate) chunks: Vec<(Range<usize>, usize)>,
    pub(crate) heads: Range<usize>,
    pub(crate) lse: Lse,
}

impl ShardedLse {
    /// The log-sum-exp of some heads, from the launch with these chunks, by the rank that has the given place in this process.
    pub(crate) fn of_launch(
        &self,
        [rank, place]: [usize; 2],
        chunks: &[(Range<usize>, usize)],
        heads: &Range<usize>,
    ) -> Result<Lse> {
        let has = |piece: &&Piece| {
            let all = &piece.heads;
            piece.chunks == chunks && all.start <= heads.start && heads.end <= all.end
        };
        let pieces = self.0.get(place).map_or(&[][..], |pieces| &pieces[..]);
        let Some(piece) = pieces.iter().find(has) else {
            return Err(Error::Argument {
                rank,
                rule: "the lse is that of another sharding, mask or scheme".to_owned(),
            });
        };
        let first = piece.heads.start;
        { piece.lse.part(0, heads.start - first..heads.end - first) }.of_rank(rank)
    }

    /// All numbers as `[length, heads]`.
    pub(crate) fn join(&self, len: usize) -> Result<Vec<f32>> {
        let pieces = || {
            { self.0.iter().enumerate() }.flat_map(|(rank, pieces)| {
                let of_rank = move |piece| (rank, piece);
                pieces.iter().map(of_rank)
            })
        };
        let heads = pieces().map(|(_, piece)| piece.heads.end).max();
        let heads = heads.unwrap_or(0);
        let mut data = vec![0.0; len * heads];
        for (rank, piece) in pieces() {
            let numbers = piece.lse.to_vec().of_rank(rank)?;
            let [_, _, rows] = piece.lse.shape();
            for (head, numbers) in piece.heads.clone().zip(numbers.chunks(rows.max(1))) {
                for (rows, at) in &piece.chunks {
                    for (row, number) in rows.clone().zip(&numbers[*at..]) {
                        data[row * heads + head] = *number;
                    }
                }
            }
        }
        Ok(data)
    }
}
