//! JSON files for other programs.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::failure::Failure;

/// Writes `value` to the file at `path`, readable and with a final line break.
///
/// # Errors
/// [`Failure::File`].
pub(crate) fn write(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    serde_json::to_vec_pretty(value)
        .map_err(std::io::Error::from)
        .and_then(|mut text| {
            text.push(b'\n');
            fs::write(path, text)
        })
        .map_err(|source| Failure::write(path, source))
}
