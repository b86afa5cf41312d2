//! `WARPTILE_SYNC=1`: every launch is waited for, so that an error is that of the kernel that it names.

use std::sync::LazyLock;

use warptile_driver::{CaptureId, Stream};

use crate::error::Result;

/// Returns true if the environment asks for it. Read once.
pub(super) fn wanted() -> bool {
    static WANTED: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("WARPTILE_SYNC").is_some_and(|value| value == "1"));
    *WANTED
}

/// Waits, if asked to, for what was just launched on a stream of ours. In a capture nothing has run that could be waited for.
///
/// # Errors
/// Returns the error of the stream, with the kernel's name.
pub(super) fn after_launch(stream: &Stream, capture: Option<CaptureId>) -> Result<()> {
    match wanted() && capture.is_none() {
        true => Ok(stream.synchronize()?),
        false => Ok(()),
    }
}
