//! The memory of tensors, locked for reading.
//!
//! Candle locks the memory of its tensors. A call that locks several could wait for another that has some of them and waits for the rest,
//! or for itself: a second lock of what it has already waits behind a writer that waits for the first. So every function here computes
//! the addresses first, and then locks in their order, each memory once. Calls through which gradients flow are the exception:
//! `Tensor::apply_op3` locks q, k and v in the order of its arguments. Their keys and values are not in pages.

use std::ops::Deref;

use candle_core::{Layout, Storage, Tensor};
use warptile::spec::{Operand, Slots};

/// The address of a tensor's memory, which it shares with the tensors that are parts of the same. Locks it for a
/// moment: no other lock is held.
pub(crate) fn memory_of(tensor: &Tensor) -> usize {
    std::ptr::from_ref::<Storage>(&*tensor.storage_and_layout().0).addr()
}

/// Tensors with those of their locks that are taken.
pub(crate) struct Locks<'a> {
    tensors: Slots<Option<(usize, &'a Tensor)>>,
    /// In the order of the addresses.
    held: Vec<(usize, Box<dyn Deref<Target = Storage> + 'a>)>,
}

impl<'a> Locks<'a> {
    /// Locks none yet.
    pub(crate) fn new(tensors: impl Iterator<Item = (Operand, &'a Tensor)>) -> Self {
        let mut locks = Locks {
            tensors: Slots::none(),
            held: Vec::new(),
        };
        for (operand, tensor) in tensors {
            locks.tensors[operand] = Some((memory_of(tensor), tensor));
        }
        locks
    }

    /// Locks those whose memory lies before an address.
    pub(crate) fn take(&mut self, end: usize) {
        let taken = self.held.last().map(|(at, _)| *at);
        let mut next: Vec<_> = { self.tensors.given() }
            .map(|(_, next)| *next)
            .filter(|(at, _)| *at < end && taken.is_none_or(|taken| *at > taken))
            .collect();
        next.sort_by_key(|(at, _)| *at);
        next.dedup_by_key(|(at, _)| *at);
        for (at, tensor) in next {
            self.held
                .push((at, Box::new(tensor.storage_and_layout().0)));
        }
    }

    /// The memory and the layout of a tensor that is locked.
    pub(crate) fn get(&self, operand: Operand) -> Option<(&Storage, &'a Layout)> {
        let (at, tensor) = self.tensors[operand]?;
        let index = self.held.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        Some((&self.held[index].1, tensor.layout()))
    }

    /// The operands that have a tensor.
    pub(crate) fn operands(&self) -> impl Iterator<Item = Operand> {
        self.tensors.given().map(|(operand, _)| operand)
    }
}
