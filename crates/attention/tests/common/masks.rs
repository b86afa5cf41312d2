//! Masks of keys, a row for each sequence.

use crate::draw::Random;

/// The keys that are shown, for each sequence: all keys, padding on either side or on both, no key, one, or anything.
pub(crate) fn masks(random: &mut Random, batch: usize, keys: usize) -> Vec<Vec<bool>> {
    let mut row = || {
        let end = random.within(0, keys);
        let first = random.within(0, end);
        let density = random.within(1, 40);
        let shown = |key: usize, kind: usize, other: bool| match kind {
            0 => true,
            1 => key < end,
            2 => key >= first,
            3 => (first..end).contains(&key),
            4 => key == first,
            5 => false,
            _ => other,
        };
        let kind = random.within(0, 7);
        (0..keys)
            .map(|key| shown(key, kind, random.once_in(density)))
            .collect()
    };
    (0..batch).map(|_| row()).collect()
}
