//! The log-sum-exp of a call over several ranks, as its launches left it.

use std::ops::Range;

use warptile::Lse;
use warptile::driver::{DeviceBuffer, Rows};

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

    /// All numbers as `[length, heads]`, of a sharding of so many rows.
    pub(crate) fn join(&self, len: usize) -> Result<Vec<f32>> {
        let others = || Error::Argument {
            rank: 0,
            rule: format!("the lse is that of another sharding, not of {len} rows"),
        };
        let pieces = || {
            { self.0.iter().enumerate() }.flat_map(|(rank, pieces)| {
                let of_rank = move |piece| (rank, piece);
                pieces.iter().map(of_rank)
            })
        };
        let heads = pieces().map(|(_, piece)| piece.heads.end).max();
        let heads = heads.unwrap_or(0);
        let (mut data, mut joined) = (vec![0.0; len * heads], 0);
        for (rank, piece) in pieces() {
            let numbers = piece.lse.to_vec().of_rank(rank)?;
            let [_, _, rows] = piece.lse.shape();
            for (head, numbers) in piece.heads.clone().zip(numbers.chunks(rows.max(1))) {
                for (rows, at) in &piece.chunks {
                    for (row, number) in rows.clone().zip(&numbers[*at..]) {
                        let to = data.get_mut(row * heads + head).ok_or_else(others)?;
                        *to = *number;
                        joined += 1;
                    }
                }
            }
        }
        // One of no rows has no heads. All others have each row of each head once.
        match joined < data.len().max(len) {
            true => Err(others()),
            false => Ok(data),
        }
    }
}

/// The log-sum-exp of each part of a launch by itself: `parts` are the ranges of its rows, and where each begins. On the CPU launches have one
/// part.
pub(crate) fn of_parts(lse: Lse, parts: &[(Range<usize>, usize)]) -> warptile::Result<Vec<Lse>> {
    let Some(all) = lse.device_slice().filter(|_| parts.len() > 1) else {
        return Ok(vec![lse]);
    };
    let [_, heads, length] = lse.shape();
    let stream = all.stream();
    let all = all.lend()?;
    let of_part = |(part, first): &(Range<usize>, usize)| {
        let len = part.len();
        let mut numbers = DeviceBuffer::uninit(stream, heads * len)?.lend()?;
        let rows = Rows {
            count: heads,
            len,
            from: *first,
            from_pitch: length,
            to: 0,
            to_pitch: len,
        };
        numbers.copy_rows(stream, &[(&all, rows)])?;
        Lse::from_device(lse.backend(), numbers.into_buffer()?, [1, heads, len])
    };
    parts.iter().map(of_part).collect()
}

/// As one launch has it: that of several parts, one behind the other.
pub(crate) fn joined(parts: &[Lse]) -> warptile::Result<Lse> {
    let [first, _, ..] = parts else {
        return Ok(parts[0].clone());
    };
    let (backend, [_, heads, _]) = (first.backend(), first.shape());
    let length = parts.iter().map(|part| part.shape()[2]).sum();
    let shape = [1, heads, length];
    let Some(memory) = first.device_slice() else {
        let parts = parts
            .iter()
            .map(|part| Ok((part.to_vec()?, part.shape()[2])));
        let parts = parts.collect::<warptile::Result<Vec<_>>>()?;
        let of_head = |head: usize| {
            let of_part =
                |(numbers, len): &(Vec<f32>, usize)| numbers[head * len..][..*len].to_vec();
            parts.iter().flat_map(of_part).collect::<Vec<_>>()
        };
        let all: Vec<f32> = (0..heads).flat_map(of_head).collect();
        return Lse::from_slice(backend, &all, [1, length, heads, 1]);
    };
    let mut all = DeviceBuffer::uninit(memory.stream(), heads * length)?.lend()?;
    let mut at = 0;
    for part in parts {
        let len = part.shape()[2];
        let rows = Rows {
            count: heads,
            len,
            from: 0,
            from_pitch: len,
            to: at,
            to_pitch: length,
        };
        at += len;
        let part = part.device_slice().map(|part| part.lend()).transpose()?;
        part.map_or(Ok(()), |part| {
            all.copy_rows(memory.stream(), &[(&part, rows)])
        })?;
    }
    Lse::from_device(backend, all.into_buffer()?, shape)
}

#[cfg(test)]
mod tests {
    use warptile::Backend;
    use warptile::driver::Driver;
    use warptile_fake_cuda::FakeDriver;

    use super::*;

    #[test]
    fn parts_have_their_own_rows_of_each_head() {
        let fake = FakeDriver::open();
        {
            // SAFETY: the library is the stand-in, with the driver's signatures.
            let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
            let backend = Backend::cuda_with(&driver, 0).unwrap();
            let numbers: Vec<f32> = (0..15).map(|number| number as f32).collect();
            let lse = Lse::from_slice(&backend, &numbers, [1, 5, 3, 64]).unwrap();
            let parts = of_parts(lse.clone(), &[(20..22, 0), (70..73, 2)]).unwrap();
            let parts = parts.iter().map(|part| part.to_vec().unwrap());
            assert_eq!(
                parts.collect::<Vec<_>>(),
                [
                    vec![0.0, 1.0, 5.0, 6.0, 10.0, 11.0],
                    vec![2.0, 3.0, 4.0, 7.0, 8.0, 9.0, 12.0, 13.0, 14.0]
                ]
            );
            let whole = of_parts(lse, &[(20..25, 0)]).unwrap();
            assert_eq!(whole[0].to_vec().unwrap(), numbers);
        }
        fake.assert_clean();
    }
}
