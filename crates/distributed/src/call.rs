//! The calls of a rank: of one part, of the chunks of a zigzag, of parts of several documents, and of documents that it has as a whole.

use std::ops::Range;

use warptile::{Diagonal, Element, Mask, Tensor};

use crate::need::{Part, are_alike};
use crate::shard::Chunk;

/// The documents that are a rank's as a whole, in one call.
pub(crate) struct Documents {
    /// The places of all chunks among the rank's rows.
    pub(crate) offsets: Vec<i32>,
    /// The rows of each chunk that is a document, 0 of the others.
    pub(crate) lengths: Vec<i32>,
    /// The rows of these documents, and the first of them among the rank's rows.
    pub(crate) chunks: Vec<(Range<usize>, usize)>,
}

impl Documents {
    /// None for a single one.
    pub(crate) fn of(chunks: &[Chunk]) -> Option<Self> {
        let whole = |chunk: &Chunk| chunk.rows == chunk.document;
        if chunks.iter().filter(|chunk| whole(chunk)).count() < 2 {
            return None;
        }
        let mut all = Documents {
            offsets: vec![0],
            lengths: Vec::new(),
            chunks: Vec::new(),
        };
        let mut local = 0;
        for chunk in chunks {
            if whole(chunk) {
                all.chunks.push((chunk.rows.clone(), local));
            }
            let rows = i32::try_from(chunk.rows.len()).ok()?;
            local += chunk.rows.len();
            all.offsets.push(i32::try_from(local).ok()?);
            all.lengths.push(if whole(chunk) { rows } else { 0 });
        }
        Some(all)
    }

    /// Returns true if a chunk is one of them.
    pub(crate) fn has(&self, chunk: usize) -> bool {
        self.lengths[chunk] > 0
    }

    pub(crate) fn of_call<'a, T: Element>(
        &'a self,
        q: &'a Tensor<T>,
        [k, v]: [&'a Tensor<T>; 2],
    ) -> (warptile::Queries<'a, T>, warptile::Keys<'a, T>) {
        let queries = warptile::Queries::new(q).packed(&self.offsets);
        let keys = warptile::Keys::new(k, v).packed(&self.offsets);
        match self.lengths.contains(&0) {
            true => (queries.lengths(&self.lengths), keys.lengths(&self.lengths)),
            false => (queries, keys),
        }
    }
}

/// A launch: the keys and mask of one part, or of several.
pub(crate) struct Call {
    /// The queries of each part, counted over all documents, and the first of them among those of the call.
    pub(crate) rows: Vec<(Range<usize>, usize)>,
    /// The queries among the rank's rows.
    pub(crate) local: Range<usize>,
    /// The keys, counted over all documents; of several documents those of the first part.
    pub(crate) keys: Range<usize>,
    pub(crate) mask: Mask,
    /// The number of the first part's document, and those of its first query and key there.
    pub(crate) first: [usize; 3],
    /// Of several parts, where each begins among the queries, and their end; and how many of the keys each sees.
    pub(crate) offsets: Vec<i32>,
    pub(crate) ends: Vec<i32>,
    /// Of parts of several documents.
    pub(crate) sequences: Option<Sequences>,
}

/// Parts of several documents as packed sequences on the device, in the order of their queries: kernels look for a tile's sequence among the
/// offsets of these. Between two of them lies one without rows, as their keys do not follow each other.
pub(crate) struct Sequences {
    /// Offsets and lengths of the queries, and those of the keys.
    pub(crate) lists: [Vec<i32>; 4],
    /// The most queries and keys of one.
    pub(crate) longest: [usize; 2],
}

impl Call {
    /// From how many rows on chunks have their outputs from one call. Measured on four H200, where one launch of halves of 2,048 rows gains
    /// 2 to 3%; by simulation shorter halves lose.
    pub(crate) const FROM_ROWS: usize = 2048;

    /// From how many rows on a chunk whose keys are all with the rank joins the others' launch: on two H200 that gains 1% at 8,192 rows and
    /// at 16,384, and loses 1.6% at 4,096, where the launch of its own hides more of what the copies take.
    pub(crate) const WITH_OWN_FROM_ROWS: usize = 8192;

    pub(crate) fn of(part: &Part) -> Self {
        Call {
            rows: vec![(part.rows.clone(), 0)],
            local: part.local.clone(),
            keys: part.keys.clone(),
            mask: part.mask,
            first: part.first,
            offsets: Vec::new(),
            ends: Vec::new(),
            sequences: None,
        }
    }

    /// Parts of several documents as one call; each comes with the place of its first key among the keys of the call.
    pub(crate) fn of_documents<'a>(parts: impl Iterator<Item = (&'a Part, usize)>) -> Option<Self> {
        let mut parts: Vec<_> = parts.collect();
        let (first, _) = *parts.first()?;
        let can_join = |(part, _): &(&Part, usize)| {
            part.mask == first.mask && part.mask.diagonal == Diagonal::BottomRight
        };
        let of_another = |(part, _): &(&Part, usize)| part.first[0] != first.first[0];
        if !parts.iter().all(can_join) || !parts.iter().any(of_another) {
            return None;
        }
        let locals = || parts.iter().map(|(part, _)| &part.local);
        let from = locals().map(|local| local.start).min()?;
        let to = locals().map(|local| local.end).max()?;
        parts.sort_by_key(|(part, _)| part.local.start);
        let mut lists = [const { Vec::new() }; 4];
        for (part, key) in &parts {
            let sides = [
                (part.local.start - from, part.local.len()),
                (*key, part.keys.len()),
            ];
            for (side, (at, len)) in sides.into_iter().enumerate() {
                let [at, end, len] = [at, at + len, len].map(i32::try_from);
                lists[2 * side].extend([at.ok()?, end.ok()?]);
                lists[2 * side + 1].extend([len.ok()?, 0]);
            }
        }
        // There is none behind the last one.
        lists[1].pop();
        lists[3].pop();
        let longest = |of: fn(&Part) -> usize| parts.iter().map(|(part, _)| of(part)).max();
        let rows = { parts.iter() }.map(|(part, _)| (part.rows.clone(), part.local.start - from));
        Some(Call {
            rows: rows.collect(),
            local: from..to,
            keys: first.keys.clone(),
            mask: first.mask,
            first: first.first,
            offsets: Vec::new(),
            ends: Vec::new(),
            sequences: Some(Sequences {
                longest: [
                    longest(|part| part.local.len())?,
                    longest(|part| part.keys.len())?,
                ],
                lists,
            }),
        })
    }

    /// The chunks of a zigzag as one call, where that is faster: it leaves multiprocessors idle at its end once instead of each time, but
    /// has one tile for all. They are packed queries, whose tiles begin with the last rows, as these see the most keys.
    pub(crate) fn of_all(parts: &[Part], from_rows: usize) -> Option<Self> {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return None;
        };
        let rows = first.local.len();
        if !are_alike(parts) || rows < from_rows {
            return None;
        }
        let end = parts.iter().map(|part| part.keys.end).max()?;
        let list = |numbers: &mut dyn Iterator<Item = usize>| -> Option<Vec<i32>> {
            numbers.map(|number| i32::try_from(number).ok()).collect()
        };
        Some(Call {
            rows: { parts.iter() }
                .map(|part| (part.rows.clone(), part.local.start - first.local.start))
                .collect(),
            local: first.local.start..last.local.end,
            keys: first.keys.start..end,
            mask: first.mask,
            first: first.first,
            offsets: list(&mut (0..=parts.len()).map(|part| part * rows))?,
            ends: list(&mut parts.iter().map(|part| part.keys.len()))?,
            sequences: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::need::parts;
    use crate::shard::{RowMap, Sharding};

    #[test]
    fn parts_of_documents_are_packed_sequences_with_nothing_between() {
        let documents = Sharding::Documents(vec![0, 600, 1800]);
        let map = RowMap::new(&documents, 1800, 2).unwrap();
        let of = |mask: Mask, places: [(usize, usize); 2]| {
            let parts = parts(&map, 0, mask).unwrap();
            Call::of_documents(places.into_iter().map(|(at, key)| (&parts[at], key)))
        };
        // Rows 0 to 150 and 450 to 600 of the first document, 0 to 300 and 900 to 1200 of the second.
        let call = of(Mask::causal(), [(3, 600), (1, 0)]).unwrap();
        let rows = [(450..600, 0), (1500..1800, 450)];
        assert_eq!((call.local, &call.rows[..]), (150..900, &rows[..]));
        let sequences = call.sequences.unwrap();
        assert_eq!(sequences.longest, [300, 1200]);
        let [q_at, q_len, k_at, k_len] = sequences.lists;
        assert_eq!((q_at, q_len), (vec![0, 150, 450, 750], vec![150, 0, 300]));
        assert_eq!((k_at, k_len), (vec![0, 600, 600, 1800], vec![600, 0, 1200]));
        // Of one document, and with diagonals that are not those of a call.
        assert!(of(Mask::causal(), [(0, 0), (1, 0)]).is_none());
        assert!(of(Mask::window(9, 9), [(0, 0), (2, 600)]).is_none());
    }
}
