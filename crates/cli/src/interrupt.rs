//! Ctrl-C: what is there is kept, and the exit code says that the rest never came.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::INTERRUPTED;
use crate::output;

/// Whether the command ends by itself when it is asked to.
static WATCHED: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C leaves no unfinished file behind. Where the system gives no handler, it ends the process as ever.
pub(crate) fn install() {
    let _ = ctrlc::set_handler(|| {
        let asked_before = REQUESTED.swap(true, Ordering::Relaxed);
        if asked_before || !WATCHED.load(Ordering::Relaxed) {
            output::discard_unfinished();
            std::process::exit(INTERRUPTED.into());
        }
    });
}

/// From now on Ctrl-C only asks the command to end, and a second one ends the process.
pub(crate) fn watch() {
    WATCHED.store(true, Ordering::Relaxed);
}

/// Whether the command was asked to end.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
