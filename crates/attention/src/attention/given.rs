//! What a call is given, without the type of its elements.

use crate::operands::{KeyTensors, Side, Table};
use crate::tensor::Bytes;
use crate::{Element, ElementType, Keys, Queries};

/// What a call is given, whatever the type of its elements: what is done with it is compiled here, and not once more in each program
/// that calls.
pub(super) struct Given<'a> {
    pub(super) element: ElementType,
    pub(super) q: &'a dyn Bytes,
    pub(super) queries: &'a Side<'a>,
    pub(super) keys: &'a KeyTensors<'a>,
    pub(super) keys_side: &'a Side<'a>,
    pub(super) table: Option<&'a Table<'a>>,
    pub(super) bias: Option<&'a dyn Bytes>,
    pub(super) key_mask: Option<&'a dyn Bytes>,
}

impl<'a> Given<'a> {
    pub(super) fn of<T: Element>(queries: &'a Queries<'a, T>, keys: &'a Keys<'a, T>) -> Self {
        Given {
            element: T::TYPE,
            q: queries.q,
            queries: &queries.side,
            keys: &keys.tensors,
            keys_side: &keys.side,
            table: keys.table.as_ref(),
            bias: keys.bias.map(|bias| bias as &dyn Bytes),
            key_mask: keys.key_mask.map(|mask| mask as &dyn Bytes),
        }
    }
}
