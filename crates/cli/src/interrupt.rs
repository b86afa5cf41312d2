//! Ctrl-C: what is there is kept, and the exit code says that the rest never came.

use std::io::Write;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use warptile::cpu::Stop;

use crate::failure::{Failure, INTERRUPTED};
use crate::output;

/// True if the command ends by itself when it is asked to.
static WATCHED: AtomicBool = AtomicBool::new(false);
static REQUESTED: LazyLock<Stop> = LazyLock::new(Stop::default);

/// From now on Ctrl-C leaves no unfinished file behind. Where the system gives no handler, it ends the process as ever.
pub(crate) fn install() {
    let _ = ctrlc::set_handler(|| {
        let asked_before = requested();
        REQUESTED.request();
        if asked_before || !WATCHED.load(Ordering::Relaxed) {
            output::discard_unfinished();
            std::process::exit(INTERRUPTED.into());
        }
        // Without standard error no one can be told.
        let _ = std::io::stderr()
            .write_all(b"\nstopping after the running tile or launch; Ctrl-C again ends at once\n");
    });
}

/// From now on Ctrl-C only asks the command to end, and a second one ends the process.
pub(crate) fn watch() {
    WATCHED.store(true, Ordering::Relaxed);
}

/// Returns true if the command was asked to end.
pub(crate) fn requested() -> bool {
    REQUESTED.is_requested()
}

/// Runs `work`, whose computations on the CPU end soon after Ctrl-C.
pub(crate) fn stoppable<R>(work: impl FnOnce() -> R) -> R {
    REQUESTED.during(work)
}

/// Takes work that Ctrl-C cut short for done: what it gave is kept.
pub(crate) fn tolerate(ended: Result<(), Failure>) -> Result<(), Failure> {
    match ended {
        Err(Failure::Interrupted(_)) => Ok(()),
        ended => ended,
    }
}
