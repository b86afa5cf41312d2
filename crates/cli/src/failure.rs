//! Why a command ended early, and the exit code that says so.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::text;

/// The exit codes, as `--help` prints them. [`Failure::exit_code`] is the other half of this table.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  a comparison or verification failed
  2  wrong usage or input: an argument, the shape or type of a tensor, or a
     problem that no kernel supports
  3  the device or its driver is missing or failed
  4  a file can't be read or written, or has the wrong contents
  130  interrupted by Ctrl-C; the results until then are printed and written";

/// The code of a wrong result.
pub(crate) const WRONG: i32 = 1;

/// The code of a device that let us down.
pub(crate) const DEVICE: i32 = 3;

/// 128 and the number of SIGINT, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command ended without doing what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The result is there, and wrong.
    #[error("{0}")]
    Wrong(String),

    /// The request makes no sense, or nothing here can do it.
    #[error("{0}")]
    Input(String),

    /// The device or its driver is missing, or let us down.
    #[error("{0}")]
    Device(String),

    /// A file can't be opened, read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        path: PathBuf,
        /// "read", "write" or "remove".
        action: &'static str,
        source: std::io::Error,
    },

    /// A file is there, but its contents are not what its kind of file has.
    #[error("{}: cannot be read as {kind}: {reason}", path.display())]
    Format {
        path: PathBuf,
        /// `safetensors`, `.npy` or `.npz`.
        kind: &'static str,
        reason: String,
    },

    /// A file is there, but it is not the JSON that a command wrote.
    #[error("{}: not the JSON that is needed: {}", path.display(), text::message(&source.to_string()))]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },

    /// Ctrl-C came before the end.
    #[error("{0}")]
    Interrupted(String),

    /// Standard output or standard error is gone or full.
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
}

impl From<warptile::Error> for Failure {
    fn from(error: warptile::Error) -> Self {
        match error {
            warptile::Error::Driver(_) | warptile::Error::Image(_) => {
                Failure::Device(error.to_string())
            }
            warptile::Error::Stopped => Failure::Interrupted(error.to_string()),
            // Everything else is about what was asked for.
            _ => Failure::Input(error.to_string()),
        }
    }
}

impl From<warptile::spec::Invalid> for Failure {
    fn from(error: warptile::spec::Invalid) -> Self {
        Failure::Input(error.to_string())
    }
}

impl From<warptile_check::Error> for Failure {
    fn from(error: warptile_check::Error) -> Self {
        match error {
            warptile_check::Error::Call(error) => error.into(),
            // A problem that no machine has the time or memory for.
            _ => Failure::Input(error.to_string()),
        }
    }
}

impl Failure {
    /// A failed read of `path`.
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Self {
        Failure::File {
            path: path.to_owned(),
            action: "read",
            source,
        }
    }

    /// JSON in `path` that is not what was looked for.
    pub(crate) fn json(path: &Path, source: serde_json::Error) -> Self {
        Failure::Json {
            path: path.to_owned(),
            source,
        }
    }

    /// A failed write of `path`.
    pub(crate) fn write(path: &Path, source: std::io::Error) -> Self {
        Failure::File {
            path: path.to_owned(),
            action: "write",
            source,
        }
    }

    /// The code in [`EXIT_CODES`].
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Wrong(_) => WRONG as u8,
            Failure::Input(_) => 2,
            Failure::Device(_) => DEVICE as u8,
            Failure::File { .. }
            | Failure::Format { .. }
            | Failure::Json { .. }
            | Failure::Output(_) => 4,
            Failure::Interrupted(_) => INTERRUPTED,
        })
    }
}
