//! A cache of the most recently used values, by key.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Values by key; the `MOST` that were used last are kept. 64 are more than the attention layers of a model tell apart, and few enough to
/// look through.
#[derive(Debug)]
pub(crate) struct Recent<K, V, const MOST: usize = 64> {
    /// The least recently used first.
    entries: Vec<(K, V)>,
}

impl<K, V, const MOST: usize> Recent<K, V, MOST> {
    /// Without any yet.
    pub(crate) const fn new() -> Self {
        Recent {
            entries: Vec::new(),
        }
    }
}

impl<K, V: Clone, const MOST: usize> Recent<K, V, MOST> {
    /// The value whose key is `wanted`; it counts as used now.
    pub(crate) fn find(&mut self, wanted: impl Fn(&K) -> bool) -> Option<V> {
        let at = self.entries.iter().rposition(|(key, _)| wanted(key))?;
        self.entries[at..].rotate_left(1);
        self.entries.last().map(|(_, value)| value.clone())
    }

    /// Adds a value and returns the entry that had to make place.
    pub(crate) fn keep(&mut self, key: K, value: V) -> Option<(K, V)> {
        let oldest = (self.entries.len() == MOST).then(|| self.entries.remove(0));
        self.entries.push((key, value));
        oldest
    }
}

impl<K, V, const MOST: usize> Default for Recent<K, V, MOST> {
    fn default() -> Self {
        Self::new()
    }
}

/// Nothing that holds one of these locks can leave its value half changed, so a poisoned one is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_makes_place() {
        let mut recent = Recent::<_, _, 4>::default();
        for key in 0..4 {
            assert_eq!(recent.keep(key, key + 1000), None);
        }
        assert_eq!(recent.find(|&key| key == 0), Some(1000));
        assert_eq!(recent.keep(100, 1100), Some((1, 1001)));
        assert_eq!(recent.keep(101, 1101), Some((2, 1002)));
        assert_eq!(recent.find(|&key| key == 1), None);
        for key in [0, 3, 100, 101] {
            assert_eq!(recent.find(|&known| known == key), Some(key + 1000));
        }
        assert_eq!(recent.entries.len(), 4);
    }
}
