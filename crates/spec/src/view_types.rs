//! Types of elements and accesses of the views that a launch is given.

use crate::{Access, Expected, MemoryType, Result, Slots};

/// The types of views, each with the access that the view gives: [`Access::Write`] of an exclusive one.
pub type ViewTypes = Slots<Option<(MemoryType, Access)>>;

/// Checks the types of views for a raw launch against those that its description expects, such as [`Call::expected`](crate::Call::expected),
/// and that what is written is exclusively the launch's. Nothing else can: it has only addresses.
///
/// # Errors
/// [`Invalid::ElementMismatch`](crate::Invalid::ElementMismatch); [`Invalid::Presence`](crate::Invalid::Presence)
/// where one of both types is that of whole numbers, or the operation writes what is shared, or only reads what
/// is exclusive.
pub fn check_view_types(types: &ViewTypes, expected: &Slots<Expected>) -> Result<()> {
    for (operand, (found, access)) in types.given() {
        expected[operand].check_type(*found, *access)?;
    }
    Ok(())
}
