//! Ctrl-C: what is there is kept, and the exit code says that the rest never came.

use std::io::Write;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use warptile::Backend;
use warptile::cpu::Stop;

use crate::failure::{Failure, INTERRUPTED};
use crate::output;

/// True if the command ends by itself when it is asked to.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// True if a launch on a GPU may be running.
static ON_GPU: AtomicBool = AtomicBool::new(false);
static REQUESTED: LazyLock<Stop> = LazyLock::new(Stop::default);

/// Time after which work on the CPU is given up. It looks at the flag often, but inputs of gigabytes are also copied and freed.
const PATIENCE: Duration = Duration::from_millis(500);

/// From now on Ctrl-C leaves no unfinished file behind. Where the system gives no handler, it ends the process as ever.
pub(crate) fn install() {
    let _ = ctrlc::set_handler(|| {
        let asked_before = requested();
        REQUESTED.request();
        if asked_before || !WATCHED.load(Ordering::Relaxed) {
            end();
        }
        // Without standard error no one can be told.
        let _ = std::io::stderr()
            .write_all(b"\nstopping after the running tile or launch; Ctrl-C again ends at once\n");
        if !ON_GPU.load(Ordering::Relaxed) {
            // Without a thread the command ends when it does.
            let _ = thread::Builder::new().spawn(|| {
                thread::sleep(PATIENCE);
                end();
            });
        }
    });
}

fn end() -> ! {
    output::discard_unfinished();
    std::process::exit(INTERRUPTED.into());
}

/// From now on Ctrl-C only asks the command, which computes on these backends, to end. A second one ends the process. Without a GPU it ends
/// after [`PATIENCE`] in any case: files then have what was measured, and what would be printed at the end is lost.
pub(crate) fn watch(backends: &[Backend]) {
    let on_gpu = backends.iter().any(|backend| backend.gpu().is_some());
    ON_GPU.store(on_gpu, Ordering::Relaxed);
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
