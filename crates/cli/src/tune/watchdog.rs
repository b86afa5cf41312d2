//! Ends the process when the GPU gives no answer.
//!
//! A kernel that waits for ever cannot be stopped, and whoever waits for it waits for ever, too: only the end of the
//! process ends both. Which kernel that was, and on which problem, is kept in a file, and the next search leaves it
//! out.

use std::ffi::c_int;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use warptile::gpu::Gpu;
use warptile::plan::{Plan, Rates};
use warptile_check::Case;

use crate::bench::gpu::{Bench, Replay, with_bench};
use crate::failure::DEVICE;
use crate::machine::Machine;
use crate::output;

/// Default limit in seconds for one launch or replay. The slowest launches take a second or two.
pub(super) const PATIENCE: u32 = 20;

/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(100);

/// A kernel that gave no answer on a problem, with that program and driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lost {
    program: String,
    driver: String,
    /// The line that rates know it by.
    pub(super) problem: String,
    pub(super) kernel: String,
}

impl Lost {
    /// Where those of a GPU are kept: next to its rates.
    pub(super) fn path(device: &str) -> Option<PathBuf> {
        Rates::user_file(device).map(|rates| rates.with_extension("lost.jsonl"))
    }

    /// Those of this program and this driver. What is not a line of this kind counts as nothing.
    pub(super) fn read(path: &Path, machine: &Machine) -> Vec<Lost> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let lost = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lost.filter(|one: &Lost| one.program == machine.program && one.driver == machine.driver)
            .collect()
    }

    fn append(&self, path: &Path) -> std::io::Result<()> {
        let line = serde_json::to_string(self)? + "\n";
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(line.as_bytes())
    }
}

/// The work that the GPU was given, and when.
struct UnderWay {
    since: Instant,
    problem: String,
    kernel: String,
}

static UNDER_WAY: Mutex<Option<UnderWay>> = Mutex::new(None);

fn under_way() -> MutexGuard<'static, Option<UnderWay>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on the process ends when one thing that a [`Watched`] bench does takes more than `patience` seconds.
/// `file`: where [`Lost`] kernels are kept, if anywhere.
pub(super) fn start(machine: &Machine, patience: u32, file: Option<PathBuf>) {
    let patience = Duration::from_secs(patience.into());
    let (program, driver) = (machine.program.to_owned(), machine.driver.clone());
    thread::spawn(move || {
        loop {
            thread::sleep(LOOK);
            let late = under_way().take_if(|one| one.since.elapsed() > patience);
            if let Some(UnderWay {
                problem, kernel, ..
            }) = late
            {
                let lost = Lost {
                    program: program.clone(),
                    driver: driver.clone(),
                    problem,
                    kernel,
                };
                end(&lost, patience, file.as_deref());
            }
        }
    });
}

/// Ends the process, and with it the kernel.
fn end(lost: &Lost, patience: Duration, file: Option<&Path>) -> ! {
    let Lost {
        problem, kernel, ..
    } = lost;
    let seconds = patience.as_secs_f64();
    let next = match file.map(|file| lost.append(file)) {
        None => String::new(),
        Some(Ok(())) => "; the same command goes on without it".to_owned(),
        Some(Err(error)) => format!("; that can't be kept for the next search: {error}"),
    };
    // Who has closed standard error reads no message.
    let _ = writeln!(
        std::io::stderr(),
        "error: {kernel} gave no answer for {seconds} s on {problem}: it may wait for ever, and ends with this process{next}"
    );
    output::discard_unfinished();
    // SAFETY: the function takes any number, and does not return. Nothing of this process is needed any more; what
    // `exit` would run besides, the driver's end among it, may wait for the kernel.
    unsafe { _exit(c_int::from(DEVICE)) }
}

unsafe extern "C" {
    /// The end of the process, without what was registered for it. POSIX and Windows have it.
    fn _exit(code: c_int) -> !;
}

/// Calls `work` with the inputs of a case on the GPU, and with a watch on all that it does there.
pub(super) fn watched<R>(
    case: &Case,
    problem: &str,
    gpu: &Gpu,
    work: impl FnOnce(&mut dyn Bench) -> warptile_check::Result<R>,
) -> warptile_check::Result<R> {
    with_bench(case, gpu, |bench| {
        work(&mut Watched {
            bench,
            gpu,
            problem,
        })
    })
}

/// A bench whose every step is watched.
struct Watched<'a> {
    bench: &'a mut dyn Bench,
    gpu: &'a Gpu,
    /// The line that rates know it by.
    problem: &'a str,
}

/// A step that is under way until this is dropped.
struct Step;

impl Step {
    fn begin(problem: &str, kernel: &str) -> Self {
        *under_way() = Some(UnderWay {
            since: Instant::now(),
            problem: problem.to_owned(),
            kernel: kernel.to_owned(),
        });
        Step
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        *under_way() = None;
    }
}

impl Watched<'_> {
    /// The driver may compile for a minute what is loaded first: that is not watched.
    fn begin(&self, plan: &Plan) -> warptile_check::Result<Step> {
        self.gpu.load(plan.clone())?;
        Ok(Step::begin(self.problem, plan.kernel_name()))
    }
}

impl Bench for Watched<'_> {
    fn launches(&self) -> usize {
        self.bench.launches()
    }

    fn once(&mut self, plan: &Plan) -> warptile_check::Result<f64> {
        let _step = self.begin(plan)?;
        self.bench.once(plan)
    }

    fn capture(&mut self, plan: &Plan, launches: usize) -> warptile_check::Result<Replay> {
        let _step = self.begin(plan)?;
        self.bench.capture(plan, launches)
    }

    fn time(&self, replay: &Replay) -> warptile::Result<f64> {
        let _step = Step::begin(self.problem, replay.kernel());
        self.bench.time(replay)
    }
}
