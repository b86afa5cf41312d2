//! Compiling in parallel.
//!
//! NVRTC is safe to call from several threads but holds a lock while it compiles (12.8: eight programs take as long on two
//! threads as on one), so each worker is a process of its own: this program again, started as `compile-worker`, taking one
//! request per line on its standard input and answering each with one line.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use crate::files;
use crate::nvrtc::Nvrtc;

/// A program to compile.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Source text.
    pub source: String,
    /// The name in messages. Relative, because internal symbols of the image are named after it.
    pub name: String,
    /// Compiler options.
    pub options: Vec<String>,
    /// Where the outputs go: this path with the extensions `cubin` and `ptx`.
    pub output: PathBuf,
}

impl Request {
    /// Where the machine code goes.
    pub fn cubin(&self) -> PathBuf {
        self.output.with_extension("cubin")
    }

    /// Where the PTX goes.
    pub fn ptx(&self) -> PathBuf {
        self.output.with_extension("ptx")
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// The compiler's log if it compiled, else why not.
    pub log: Result<String, String>,
}

/// Serves requests from `input` until it ends.
///
/// # Errors
/// Only if `input` or `output` fails; a failed compilation is an answer.
pub fn serve(nvrtc: &Nvrtc, input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    for line in input.lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = Answer {
            log: compile_to_files(nvrtc, &request),
        };
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

fn compile_to_files(nvrtc: &Nvrtc, request: &Request) -> Result<String, String> {
    let compiled = nvrtc
        .compile(&request.source, &request.name, &request.options)
        .map_err(|error| error.to_string())?;
    if !compiled.ok {
        return Err(compiled.log);
    }
    files::write(&request.cubin(), &compiled.cubin).map_err(|error| error.to_string())?;
    files::write(&request.ptx(), &compiled.ptx).map_err(|error| error.to_string())?;
    Ok(compiled.log)
}

/// A compiler process.
pub struct Worker {
    child: Child,
    /// `None` once the worker was told to end.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts `program compile-worker LIBRARY`.
    ///
    /// # Errors
    /// If the process does not start.
    pub fn start(program: &Path, nvrtc: &Path) -> io::Result<Self> {
        let mut child = Command::new(program)
            .arg("compile-worker")
            .arg(nvrtc)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("the compiler process has no pipes");
        let requests = child.stdin.take().ok_or_else(missing)?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Self {
            child,
            requests: Some(requests),
            answers,
        })
    }

    /// Compiles one program.
    ///
    /// # Errors
    /// If the process ended, say because the compiler crashed; the worker is of no more use then.
    pub fn compile(&mut self, request: &Request) -> io::Result<Answer> {
        let requests = self
            .requests
            .as_mut()
            .ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        serde_json::to_writer(&mut *requests, request)?;
        requests.write_all(b"\n")?;
        requests.flush()?;
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(io::Error::other(format!(
                "the compiler process ended with {status}"
            )));
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Closing the pipe ends the worker's loop. If waiting fails, there is no way to report it.
        self.requests = None;
        let _ = self.child.wait();
    }
}

/// Calls `work` once per item on up to `jobs` threads, each with a state that `start` makes when it is first needed, and
/// returns the results in the items' order.
pub fn in_parallel<T: Sync, S, R: Send>(
    items: &[T],
    jobs: usize,
    start: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                let mut state = None;
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else {
                        break;
                    };
                    let result = work(state.get_or_insert_with(&start), item);
                    results
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((index, result));
                }
            });
        }
    });
    let mut results = results
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
