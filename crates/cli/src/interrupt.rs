//! Ctrl-C: what is there is kept, and the exit code says that the rest never came.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::INTERRUPTED;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C only asks the command to end, and a second one ends the process. Where the system gives no handler,
/// Ctrl-C ends the process as ever.
pub(crate) fn watch() {
    let _ = ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED.into());
        }
    });
}

/// Whether the command was asked to end.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
