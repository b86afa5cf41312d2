//! Heads whose tiles are interleaved, so that tiles that are computed at the same time share keys and values in L2.

use crate::plan::Step;
use crate::plan::pairs::Numbered;
use crate::spec::Call;

/// Heads (of all batch entries, or of the packed queries) whose tiles are interleaved, in groups as even as they can be: a short last
/// group leaves CTAs without work. Within a group the tiles that take longest go first.
///
/// Under a mask the tiles of a head differ in length, so a group has as many heads as keep their keys and values
/// within half of the L2. It has more where multiprocessors would wait for the last group's longest tiles (see
/// [`waits_at_the_end`]), as long as 8 tiles of a head are computed at the same time, which share what they read: 10%
/// at 192/128 and 16,384 keys, 1% at head size 128 and 8,192, but with 4 tiles nothing, and with 2 a loss
/// (docs/notebook/wgmma.md, 2026-11-23). Of persistent kernels, whose CTAs draw tiles, half as many heads are better
/// where a head has few tiles: by 8% and 3% on an H100, whose memory is slower, at 512 keys and head sizes of 128 and
/// 64, and within 1% as good on an H200 (docs/notebook/wgmma.md, 2026-11-25).
///
/// Without a mask only a sequence's incomplete tile is shorter. It pays to have many of those last where the keys and
/// values of 16 heads take no more than 14 MiB: 1 to 2% at head size 128 and 512 to 1,024 keys
/// (docs/notebook/wgmma.md). Otherwise head after head is as good. It is better where each tile has a multiprocessor
/// of its own, under a mask too.
///
/// Heads are those that `numbered` has: query heads, pairs of them, or key/value heads where the rows of a tile are those of all heads that
/// share keys.
pub(super) fn heads_at_once(step: &Step, call: &Call, numbered: &Numbered, tiles: u64) -> usize {
    const MASKED_SHARE_BYTES: usize = 32 << 20;
    const FEW_TILES_SHARE_BYTES: usize = 16 << 20;
    const FEW_TILES: u64 = 4;
    const FULL_SHARE_BYTES: usize = 14 << 20;
    const FEWEST_FULL_HEADS: usize = 16;
    const SHARING_TILES: u64 = 8;
    const SHORT_WAIT: f64 = 0.02;
    let persistent = step.image.schedule.is_persistent();
    if persistent && tiles * numbered.ctas <= u64::from(step.multiprocessors) {
        return 1;
    }
    let row_bytes = call.heads().key_value_elements() * call.types().k.size();
    let head_bytes = call.key_len().saturating_mul(row_bytes).max(1);
    let heads = interleaved(call, numbered.heads);
    // Half of all keys are hidden: the lengths of tiles go down to nothing.
    let (mask, query_len, key_len) = (call.mask(), call.query_len(), call.key_len());
    let on_diagonal = mask.diagonal.offset(query_len, key_len) == 0 && query_len == key_len;
    let to_nothing = mask.is_causal() && on_diagonal && !call.queries().is_packed();
    let drawn_to_nothing = persistent && to_nothing;
    let key_value_heads = if !mask.hides_nothing() || call.queries().is_packed() {
        let share = match drawn_to_nothing && tiles <= FEW_TILES * heads as u64 {
            true => FEW_TILES_SHARE_BYTES,
            false => MASKED_SHARE_BYTES,
        };
        (share / head_bytes).max(1)
    } else {
        let complete = { call.query_len() }.is_multiple_of(numbered.rows as usize);
        match FULL_SHARE_BYTES / head_bytes {
            many if many >= FEWEST_FULL_HEADS && persistent && !complete => many,
            _ => return 1,
        }
    };
    let sharing = numbered.heads / call.heads().key_value.max(1);
    let most = key_value_heads.saturating_mul(sharing).min(heads);
    let fewest_groups = heads.div_ceil(most);
    let in_groups = |groups: usize| heads.div_ceil(groups);
    if !drawn_to_nothing {
        return in_groups(fewest_groups);
    }
    let at_a_time = u64::from(step.resident()) / numbered.ctas;
    let limit = most.max((at_a_time / SHARING_TILES) as usize * sharing);
    let waits = |groups| waits_at_the_end(heads, in_groups(groups), tiles, at_a_time);
    let groups = { 1..=fewest_groups }
        .rev()
        .take_while(|&groups| in_groups(groups) <= limit)
        .find(|&groups| waits(groups) <= SHORT_WAIT);
    in_groups(groups.unwrap_or(fewest_groups))
}

/// The part of a causal launch that CTAs wait at its end, for the longest tiles of the last group of heads. `tiles`
/// are those of all heads; so many are computed at a time.
///
/// In the first round of a group's tiles they get shorter, and who ends first takes the longest of the second, so
/// that after every two rounds all end together. Of what is left then, `rest` rounds, the first tile is the last to
/// end.
fn waits_at_the_end(heads: usize, at_once: usize, tiles: u64, at_a_time: u64) -> f64 {
    let last = match heads % at_once {
        0 => at_once,
        some => some,
    };
    let all_rounds = tiles as f64 / at_a_time.max(1) as f64;
    let rounds = all_rounds * last as f64 / heads as f64;
    let rest = rounds % 2.0;
    // In tiles of full length; on average a round takes half as long as one.
    let wait = rest / rounds * (1.0 - rest / 2.0);
    wait / (all_rounds / 2.0)
}

/// Heads whose tiles can be interleaved: those of all batch entries, or of the packed queries.
pub(super) fn interleaved(call: &Call, heads: usize) -> usize {
    match call.queries().is_packed() {
        true => heads,
        false => heads.saturating_mul(call.batch().max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::step::tests::{dense, step};
    use crate::spec::Mask;

    /// A simulation of the schedule (docs/notebook/wgmma.md) finds 0.0, 3.4, 11.9 and 1.5 hundredths more than the best for these.
    #[test]
    fn launches_wait_for_the_longest_tiles_of_an_odd_round() {
        let waits = |at_once| waits_at_the_end(16, at_once, 16 * 86, 132);
        assert!(waits(16) < 0.01, "{}", waits(16));
        assert!((0.05..0.08).contains(&waits(2)), "{}", waits(2));
        // The sixth group has one of the 16 heads.
        assert!((0.10..0.15).contains(&waits(3)), "{}", waits(3));
        assert!((0.02..0.04).contains(&waits(4)), "{}", waits(4));
        // Two rounds end together.
        assert!(waits_at_the_end(8, 2, 8 * 132, 132) < 1e-9);
    }

    #[test]
    fn heads_are_interleaved_while_their_keys_fit_the_cache() {
        let causal = Mask::causal();
        let at_once = |multiprocessors, call: &Call| {
            let step = step("wgmma_d128_192x80_w16_s3", multiprocessors);
            step.shape(call).unwrap().heads_at_once
        };
        for (call, expected) in [
            (dense(4, [16, 16], [4096, 4096], Mask::none()), 1),
            // 2 MiB of keys and values a head.
            (dense(4, [16, 16], [4096, 4096], causal), 16),
            (dense(1, [32, 8], [4096, 4096], causal), 32),
            (dense(1, [2, 2], [64, 1], causal), 2),
            // 18 heads of 2 MiB: two groups of 9, not 16 and 2.
            (dense(1, [18, 18], [4096, 4096], causal), 9),
            // Half of a MiB a head: ten groups of up to 26 heads, not nine of 28 and one of 4.
            (dense(16, [16, 16], [1024, 1024], Mask::none()), 26),
            // No tile is incomplete.
            (dense(16, [16, 16], [960, 1024], Mask::none()), 1),
            (dense(8, [16, 16], [2048, 2048], Mask::none()), 1),
        ] {
            assert_eq!(at_once(1, &call), expected, "{call}");
        }
        // 32 MiB are 4 of 16 heads, 2.6 rounds.
        for (call, expected) in [
            (dense(1, [16, 16], [16384, 16384], causal), 8),
            (dense(2, [16, 16], [8192, 8192], causal), 16),
            (dense(4, [16, 16], [4096, 4096], causal), 16),
            // 8 rounds: waiting in the last one is a small part of the whole.
            (dense(8, [32, 8], [4096, 4096], causal), 64),
            // No tile is short.
            (dense(1, [16, 16], [8192, 16384], causal), 4),
            // Three tiles a head: 64 of 512 heads, whose keys and values are 16 MiB. Six tiles: 32 MiB.
            (dense(32, [16, 16], [512, 512], causal), 64),
            (dense(16, [16, 16], [1024, 1024], causal), 64),
        ] {
            assert_eq!(at_once(132, &call), expected, "{call}");
        }
        // A tile of `mma` is a CTA of its own, so the limit is 32 MiB for any number of them.
        let mma = step("mma_d128_128x64_w4_s2", 132);
        let short = dense(32, [16, 16], [512, 512], causal);
        assert_eq!(mma.shape(&short).unwrap().heads_at_once, 128);
        // 88 tiles.
        let few = dense(1, [4, 4], [4096, 4096], causal);
        assert_eq!((at_once(88, &few), at_once(87, &few)), (1, 4));
    }
}
