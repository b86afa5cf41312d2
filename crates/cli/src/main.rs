//! The `warptile` program.
fn main() {}
