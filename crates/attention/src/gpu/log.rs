//! The log of problems: what a program computes on a GPU, for `warptile tune --from-log`.
//!
//! With `WARPTILE_LOG=FILE` in the environment every problem that is prepared for the first time adds its line to the file. Nothing is
//! asked of a call whose problem is prepared already, and nothing at all without the variable but one look at it.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::spec::Problem;

/// The file, and the lines that it has.
#[derive(Debug)]
struct Log {
    file: File,
    written: HashSet<String>,
}

static LOG: LazyLock<Option<Mutex<Log>>> = LazyLock::new(|| {
    let path = std::env::var_os("WARPTILE_LOG").map(PathBuf::from)?;
    Log::open(&path).ok().map(Mutex::new)
});

/// Notes a problem, if it is asked for and new. A log that can't be written is none: no call fails because of it.
pub(crate) fn note(problem: &Problem) {
    if let Some(log) = &*LOG {
        log.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .note(&problem.line());
    }
}

impl Log {
    fn open(path: &Path) -> std::io::Result<Self> {
        let written = match std::fs::read_to_string(path) {
            Ok(text) => text.lines().map(str::to_owned).collect(),
            Err(_) => HashSet::new(),
        };
        // Every write goes to the end of the file, whoever else writes to it.
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Log { file, written })
    }

    fn note(&mut self, line: &str) {
        if self.written.contains(line) {
            return;
        }
        self.written.insert(line.to_owned());
        // In one write, so that the lines of several processes stay whole. What a full disk cut off no reader will understand.
        let _ = self.file.write_all(format!("{line}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_once_whoever_opens_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (mut a, mut b) = (Log::open(&path).unwrap(), Log::open(&path).unwrap());
        a.note("b1 q1");
        a.note("b1 q1");
        b.note("b2 q2");
        let mut c = Log::open(&path).unwrap();
        c.note("b2 q2");
        c.note("b3 q3");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "b1 q1\nb2 q2\nb3 q3\n");
    }

    #[test]
    fn threads_and_processes_leave_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    let mut log = Log::open(path).unwrap();
                    for line in 0..200 {
                        log.note(&format!("{writer} {line} {}", "x".repeat(300)));
                    }
                });
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: HashSet<&str> = text.lines().collect();
        assert_eq!((lines.len(), text.lines().count()), (1600, 1600));
        assert!(
            lines
                .iter()
                .all(|line| line.ends_with("xxx") && line.len() > 300)
        );
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_no_log() {
        assert!(Log::open(Path::new("/")).is_err());
    }
}
