//! Rows and keys of ranks, as pure values.

use quickcheck::quickcheck;
use warptile::{Diagonal, Mask};
use warptile_distributed::need::{Part, cut, parts_of, staged};
use warptile_distributed::shard::Chunk;
use warptile_distributed::{RowMap, Sharding};

fn sharding(kind: u8, len: usize, cuts: &[u16]) -> Sharding {
    match kind % 4 {
        0 => Sharding::Contiguous,
        1 => Sharding::Zigzag,
        2 => Sharding::Zigzags(1 + cuts.len()),
        _ => {
            let mut offsets: Vec<_> = cuts
                .iter()
                .map(|&cut| usize::from(cut) % (len + 1))
                .collect();
            offsets.extend([0, len]);
            offsets.sort_unstable();
            Sharding::Documents(offsets)
        }
    }
}

fn mask(kind: u8, sides: (u8, u8), offset: i8) -> Mask {
    let mask = match kind % 4 {
        0 => Mask::none(),
        1 => Mask::causal(),
        2 => Mask::window(u32::from(sides.0), u32::from(sides.1)),
        _ => Mask::window(u32::from(sides.0), None),
    };
    mask.diagonal(match kind / 4 % 3 {
        0 => Diagonal::BottomRight,
        1 => Diagonal::TopLeft,
        _ => Diagonal::At(offset.into()),
    })
}

quickcheck! {
    fn every_row_has_one_owner_and_pieces_find_it(kind: u8, len: u16, ranks: u8, cuts: Vec<u16>) -> bool {
        let (len, ranks) = (usize::from(len) % 5000, usize::from(ranks) % 9 + 1);
        let map = RowMap::new(&sharding(kind, len, &cuts), len, ranks).unwrap();
        let mut owned = vec![Vec::new(); ranks];
        for (rank, owned) in owned.iter_mut().enumerate() {
            for chunk in map.chunks(rank) {
                assert!(chunk.document.start <= chunk.rows.start && chunk.rows.end <= chunk.document.end);
                owned.extend(chunk.rows.clone());
            }
            assert_eq!(owned.len(), map.local_len(rank));
        }
        let mut all: Vec<_> = owned.concat();
        all.sort_unstable();
        let pieces = map.pieces(0..len);
        let found: Vec<_> = pieces.iter().flat_map(|piece| piece.rows.clone()).collect();
        all == (0..len).collect::<Vec<_>>()
            && found == all
            && pieces.iter().all(|p| owned[p.rank][p.local..][..p.rows.len()].iter().copied().eq(p.rows.clone()))
    }

    fn a_part_sees_what_one_call_sees(kind: u8, len: u16, ranks: u8, cuts: Vec<u16>, masked: u8, sides: (u8, u8), offset: i8) -> bool {
        let (len, ranks) = (usize::from(len) % 5000, usize::from(ranks) % 5 + 1);
        let map = RowMap::new(&sharding(kind, len, &cuts), len, ranks).unwrap();
        let mask = mask(masked, sides, offset);
        (0..ranks).all(|rank| {
            let chunks = cut(map.chunks(rank), mask);
            let parts = parts_of(&chunks, mask).unwrap();
            let rows = |chunks: &[Chunk]| chunks.iter().flat_map(|chunk| chunk.rows.clone()).collect::<Vec<_>>();
            assert_eq!(rows(&chunks), rows(map.chunks(rank)));
            let spans = staged(&parts);
            assert!(spans.windows(2).all(|pair| pair[0].end < pair[1].start));
            parts.iter().zip(&chunks).all(|(part, chunk)| {
                assert!(spans.iter().any(|span| span.start <= part.keys.start && part.keys.end <= span.end));
                chunk.rows.clone().enumerate().all(|(row, global)| {
                    let document = chunk.document.len();
                    let expected = mask.visible(global - chunk.document.start, document, document);
                    let seen = part.mask.visible(row, chunk.rows.len(), part.keys.len());
                    let at = part.keys.start - chunk.document.start;
                    (seen.is_empty() && expected.is_empty()) || (seen.start + at..seen.end + at) == expected
                })
            })
        })
    }
}

/// Rows of a window that see a rank's own keys only are a part of their own, whose keys need no copy.
#[test]
fn a_windows_rows_of_own_keys_are_cut_off() {
    let rows = |sharding: Sharding, len: usize, mask: Mask, rank: usize| {
        let map = RowMap::new(&sharding, len, 2).unwrap();
        let parts = parts_of(&cut(map.chunks(rank), mask), mask).unwrap();
        let of = |part: &Part| (part.rows.clone(), part.keys.clone());
        parts.iter().map(of).collect::<Vec<_>>()
    };
    let window = Mask::window(1000, 0);
    // Keys begin at multiples of 256; the two chunks of rank 1 lie side by side.
    let of = |rank| rows(Sharding::Zigzag, 40_000, window, rank);
    let [first, cut] = [0..10_000, 30_000..31_232];
    assert_eq!(
        of(0),
        [
            (first.clone(), first),
            (cut, 28_928..31_232),
            (31_232..40_000, 30_208..40_000)
        ]
    );
    assert_eq!(
        of(1),
        [
            (10_000..11_264, 8960..11_264),
            (11_264..30_000, 10_240..30_000)
        ]
    );
    // On both sides.
    let of = |rank| rows(Sharding::Zigzag, 40_000, Mask::window(1000, 500), rank);
    assert_eq!(of(1).len(), 3);
    assert_eq!(of(1)[1], (11_264..29_440, 10_240..29_940));
    // Too few of them, or none.
    for mask in [Mask::window(4000, 0), Mask::causal(), Mask::none()] {
        assert_eq!(rows(Sharding::Zigzag, 40_000, mask, 1).len(), 2);
    }
    // Documents that follow each other stay apart.
    let documents = Sharding::Documents(vec![0, 300, 400, 500]);
    assert_eq!(rows(documents, 500, window, 1).len(), 2);
}

#[test]
fn zigzag_is_balanced_and_ranks_may_have_no_rows() {
    let map = RowMap::new(&Sharding::Zigzag, 16, 2).unwrap();
    let rows: Vec<_> = map
        .chunks(0)
        .iter()
        .map(|chunk| chunk.rows.clone())
        .collect();
    assert_eq!(rows, [0..4, 12..16]);
    // The two chunks of rank 1 lie next to each other, and travel as one piece.
    assert_eq!(map.pieces(0..16).len(), 3);
    let map = RowMap::new(&Sharding::Zigzags(2), 16, 2).unwrap();
    let rows: Vec<_> = { map.chunks(0).iter() }
        .map(|chunk| chunk.rows.clone())
        .collect();
    assert_eq!(rows, [0..2, 6..8, 8..10, 14..16]);
    let error = RowMap::new(&Sharding::Zigzags(0), 16, 2).unwrap_err();
    assert_eq!(error.to_string(), "sharding: no zigzags");
    let map = RowMap::new(&Sharding::Contiguous, 2, 4).unwrap();
    assert!((0..4).any(|rank| map.local_len(rank) == 0));
}

#[test]
fn offsets_of_documents_are_checked() {
    for offsets in [vec![], vec![1, 4], vec![0, 3], vec![0, 3, 2, 4]] {
        let error = RowMap::new(&Sharding::Documents(offsets), 4, 2).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sharding: the offsets of documents must rise from 0 to the length 4"
        );
    }
}
