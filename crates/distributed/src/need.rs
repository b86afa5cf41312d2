//! The keys that a rank's queries see.

use std::ops::Range;

use warptile::spec::Merge;
use warptile::{Diagonal, Mask};

use crate::error::{Error, Result};
use crate::shard::{Chunk, RowMap};

/// One chunk of queries as a call of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The queries, counted over all documents.
    pub rows: Range<usize>,
    /// The queries among the rank's rows.
    pub local: Range<usize>,
    /// The keys, counted over all documents: one span that has every key that a query of the chunk sees, and at least one key.
    pub keys: Range<usize>,
    /// The mask of the call of these queries and keys.
    pub mask: Mask,
    /// The number of the document, and those of the first query and key in it.
    pub first: [usize; 3],
}

/// Keys of the largest block that a kernel adds up at once.
const BLOCK: usize = 256;

/// The calls of a rank. Each row gets the keys that it would get from one call over all rows.
///
/// # Errors
/// [`Error::Sharding`] if a diagonal does not fit into 32 bits.
pub fn parts(map: &RowMap, rank: usize, mask: Mask) -> Result<Vec<Part>> {
    parts_of(map.chunks(rank), mask)
}

/// As [`parts`], of all chunks of a rank.
///
/// # Errors
/// As there.
pub fn parts_of(chunks: &[Chunk], mask: Mask) -> Result<Vec<Part>> {
    let mut local = 0;
    let mut parts = Vec::new();
    for chunk in chunks {
        let keys = seen(chunk, mask);
        let of_document = |row: usize| row - chunk.document.start;
        parts.push(Part {
            rows: chunk.rows.clone(),
            local: local..local + chunk.rows.len(),
            mask: moved(chunk, &keys, mask)?,
            first: [
                chunk.number,
                of_document(chunk.rows.start),
                of_document(keys.start),
            ],
            keys,
        });
        local += chunk.rows.len();
    }
    Ok(parts)
}

/// A rank's chunks. Where most rows of those that follow each other see no keys but the rank's own, as under a window, these rows are one
/// chunk: they need no copies.
pub fn cut(chunks: &[Chunk], mask: Mask) -> Vec<Chunk> {
    let follows = |a: &Chunk, b: &Chunk| a.number == b.number && a.rows.end == b.rows.start;
    let of_run = |run: &[Chunk]| {
        let own = rows_of_own_keys(run, mask);
        let part = |of: &Chunk, rows: Range<usize>| Chunk { rows, ..of.clone() };
        let before = { run.iter() }.map(|of| part(of, of.rows.start..of.rows.end.min(own.start)));
        let after = { run.iter() }.map(|of| part(of, of.rows.start.max(own.end)..of.rows.end));
        let all = before.chain([part(&run[0], own.clone())]).chain(after);
        all.filter(|part| !part.rows.is_empty()).collect::<Vec<_>>()
    };
    chunks.chunk_by(follows).flat_map(of_run).collect()
}

/// The rows of a rank's neighbouring chunks that see no keys but theirs, if they are worth a call of their own: three quarters or more.
fn rows_of_own_keys(run: &[Chunk], mask: Mask) -> Range<usize> {
    let (rows, document) = (
        run[0].rows.start..run[run.len() - 1].rows.end,
        run[0].document.start,
    );
    let keys = |row: usize| {
        let row = Chunk {
            rows: row..row + 1,
            ..run[0].clone()
        };
        seen(&row, mask)
    };
    // Both ends of what is seen rise with the row.
    let mut first = first_row(&rows, |row| keys(row).start >= rows.start);
    let mut end = first_row(&rows, |row| keys(row).end > rows.end);
    // Dropout counts in blocks of rows, so chunks begin with one.
    if first > rows.start {
        first = document + (first - document).next_multiple_of(BLOCK);
    }
    if end < rows.end {
        end -= (end - document) % BLOCK;
    }
    match end > first && 4 * (end - first) >= 3 * rows.len() {
        true => first..end,
        false => rows.end..rows.end,
    }
}

/// The first row from which on `holds` is true.
fn first_row(rows: &Range<usize>, holds: impl Fn(usize) -> bool) -> usize {
    let (mut from, mut to) = (rows.start, rows.end);
    while from < to {
        let middle = from.midpoint(to);
        match holds(middle) {
            true => to = middle,
            false => from = middle + 1,
        }
    }
    from
}

/// Where a part's keys are among the rank's rows, if it needs no others.
pub(crate) fn own_keys(map: &RowMap, rank: usize, part: &Part) -> Option<Range<usize>> {
    match &map.pieces(part.keys.clone())[..] {
        [piece] if piece.rank == rank => Some(piece.local..piece.local + piece.rows.len()),
        _ => None,
    }
}

/// How many pairs of queries and keys the calls of parts have.
pub(crate) fn pairs<'a>(parts: impl IntoIterator<Item = &'a Part>) -> u128 {
    let pairs = |part: &Part| part.mask.visible_pairs(part.local.len(), part.keys.len());
    parts.into_iter().map(pairs).sum()
}

/// Returns true for several parts that one call can have: of as many rows each, one behind the other, with one mask and first key.
pub(crate) fn are_alike(parts: &[Part]) -> bool {
    let [first, _, ..] = parts else {
        return false;
    };
    let is_like_first = |part: &Part| {
        let same_rows = part.local.len() == first.local.len();
        same_rows && part.mask == first.mask && part.keys.start == first.keys.start
    };
    let follows = |pair: &[Part]| pair[0].local.end == pair[1].local.start;
    parts.iter().all(is_like_first)
        && parts.windows(2).all(follows)
        && first.mask.diagonal == Diagonal::BottomRight
}

/// The keys that each sum of gradients of a rank is of. Parts that are alike have one each, unless those of all ranks are more than can be
/// added up.
pub(crate) fn summed(parts: &[Part], ranks: usize) -> Vec<Vec<Range<usize>>> {
    match are_alike(parts) && parts.len() * ranks <= Merge::MAX_PARTS {
        true => { parts.iter() }
            .map(|part| vec![part.keys.clone()])
            .collect(),
        false => vec![staged(parts)],
    }
}

/// Spans of keys that a rank stages, in order and apart from each other.
pub fn staged(parts: &[Part]) -> Vec<Range<usize>> {
    let mut spans: Vec<_> = parts.iter().map(|part| part.keys.clone()).collect();
    spans.sort_by_key(|span| span.start);
    spans.dedup_by(|next, span| {
        let joins = next.start <= span.end;
        if joins {
            span.end = span.end.max(next.end);
        }
        joins
    });
    spans
}

fn seen(chunk: &Chunk, mask: Mask) -> Range<usize> {
    let (first, len) = (chunk.document.start, chunk.document.len());
    let visible = |row: usize| mask.visible(row - first, len, len);
    // Both ends rise with the row, so the first row has the first key and the last row the last one.
    let (start, end) = (
        visible(chunk.rows.start).start,
        visible(chunk.rows.end - 1).end,
    );
    let start = start.min(len - 1);
    // Kernels add up block by block, so a block must begin where it would begin in one call.
    let start = start - start % BLOCK;
    first + start..first + end.max(start + 1)
}

fn moved(chunk: &Chunk, keys: &Range<usize>, mask: Mask) -> Result<Mask> {
    let len = chunk.document.len();
    let first_row = (chunk.rows.start - chunk.document.start) as i128;
    let first_key = (keys.start - chunk.document.start) as i128;
    let offset = mask.diagonal.offset(len, len) + first_row - first_key;
    if mask.hides_nothing() {
        return Ok(mask.diagonal(Diagonal::BottomRight));
    }
    if offset == keys.len() as i128 - chunk.rows.len() as i128 {
        return Ok(mask.diagonal(Diagonal::BottomRight));
    }
    let offset = i32::try_from(offset).map_err(|_| {
        Error::Sharding(format!(
            "a diagonal at key {offset} does not fit into 32 bits"
        ))
    })?;
    Ok(mask.diagonal(Diagonal::At(offset)))
}
