//! The parameter block of a problem: [`Forward`] without its addresses.

use warptile_kernels::abi::{Forward, Scoring, Sequences, Tensor, WINDOW_UNLIMITED, Work};

use crate::layout::Layout;
use crate::mask::{Align, Mask};
use crate::problem::{AlibiShape, Problem};

/// Heads (of all batches) whose tiles are interleaved, so that CTAs working side by side share keys and values in L2.
///
/// Under a mask the tiles of a head differ in length; the longest go first across as many heads as keep their keys and
/// values within half of the L2, in groups as even as they can be: a short last group leaves CTAs without work. Without
/// a mask, head after head is best.
pub(crate) fn heads_at_once(problem: &Problem) -> usize {
    const L2_SHARE_BYTES: usize = 32 << 20;
    const ELEMENT_BYTES: usize = 2;
    if problem.mask() == Mask::None && !problem.is_packed() {
        return 1;
    }
    let key_value_bytes = (problem.key_len() * problem.head_dim() * 2 * ELEMENT_BYTES).max(1);
    let key_value_heads = (L2_SHARE_BYTES / key_value_bytes).max(1);
    let sequences = if problem.is_packed() {
        1
    } else {
        problem.batch()
    };
    let heads = (problem.heads() * sequences).max(1);
    let most = (key_value_heads * problem.group_size()).min(heads);
    heads.div_ceil(heads.div_ceil(most))
}

/// Tiles of a head, for tiles of `block_m` rows: of one batch entry, or of all packed queries (`work/order.cuh`).
pub(crate) fn query_tiles(problem: &Problem, block_m: usize) -> usize {
    if problem.is_packed() {
        problem.q().rows() / block_m + problem.batch()
    } else {
        problem.query_len().div_ceil(block_m)
    }
}

/// Tiles of all heads.
pub(crate) fn tiles(problem: &Problem, block_m: usize) -> u64 {
    let sequences = if problem.is_packed() {
        1
    } else {
        problem.batch()
    };
    query_tiles(problem, block_m) as u64 * problem.heads() as u64 * sequences as u64
}

fn tensor(layout: &Layout) -> Tensor {
    let stride = |dimension: usize| {
        if layout.shape[dimension] > 1 {
            // Fits: a stride that is stepped along lies below the layout's validated extent.
            layout.strides[dimension] as i64
        } else {
            0
        }
    };
    Tensor {
        address: 0,
        batch: stride(0),
        row: stride(1),
        head: stride(2),
    }
}

/// Everything about a problem but the addresses, which stay 0, for a kernel with `block_m` query rows per tile.
pub(crate) fn forward(problem: &Problem, block_m: usize, persistent: bool) -> Forward {
    let bounds = problem.mask().bounds();
    let window = |side: Option<u32>| {
        side.and_then(|keys| i32::try_from(keys).ok())
            .map_or(WINDOW_UNLIMITED, |keys| keys.min(WINDOW_UNLIMITED))
    };
    // Counts fit 32 bits: the problem has checked them against MAX_LEN.
    let count = |n: usize| n as i32;
    let rows = problem.q().rows();
    Forward {
        q: tensor(problem.q()),
        k: tensor(problem.k()),
        v: tensor(problem.v()),
        out: tensor(problem.out()),
        lse_batch: if problem.is_packed() {
            0
        } else {
            (problem.heads() * rows) as i64
        },
        lse_head: rows as i64,
        sequences: Sequences {
            batch: count(problem.batch()),
            query_len: count(problem.query_len()),
            key_len: count(problem.key_len()),
            query_rows: count(rows),
            key_rows: count(problem.k().rows()),
            ..Sequences::default()
        },
        scoring: Scoring {
            slopes_batch: match problem.alibi() {
                Some(AlibiShape::PerBatchHead) => problem.heads() as i64,
                _ => 0,
            },
            scale: problem.scale(),
            softcap: problem.softcap().unwrap_or(0.0),
            window_left: window(bounds.left),
            window_right: window(bounds.right),
            align_top_left: i32::from(bounds.align == Align::TopLeft),
            ..Scoring::default()
        },
        work: Work {
            tiles: tiles(problem, block_m) as i32,
            query_tiles: count(query_tiles(problem, block_m)),
            heads_at_once: if persistent {
                count(heads_at_once(problem))
            } else {
                1
            },
            ..Work::default()
        },
        heads: count(problem.heads()),
        kv_heads: count(problem.kv_heads()),
        head_dim: count(problem.head_dim()),
        value_dim: count(problem.head_dim()),
        ..Forward::default()
    }
}
