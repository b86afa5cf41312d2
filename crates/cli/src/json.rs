//! JSON for other programs.

use std::convert::Infallible;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::console::Console;
use crate::failure::Failure;
use crate::output::Replacement;

/// The value of `--json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// `-`. What is meant for people then goes to standard error.
    Stdout,
    File(PathBuf),
}

impl FromStr for Target {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "-" => Target::Stdout,
            path => Target::File(path.into()),
        })
    }
}

/// Reads the JSON of a file.
///
/// # Errors
/// [`Failure::File`] or [`Failure::Json`].
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let bytes = std::fs::read(path).map_err(|source| Failure::read(path, source))?;
    serde_json::from_slice(&bytes).map_err(|source| Failure::json(path, source))
}

/// Writes `value` where it was asked for.
///
/// # Errors
/// [`Failure::File`] or [`Failure::Output`].
pub(crate) fn write(target: &Option<Target>, value: &impl Serialize) -> Result<(), Failure> {
    target.as_ref().map_or(Ok(()), |target| target.write(value))
}

/// A value as JSON that can be added to.
pub(crate) fn value(value: impl Serialize) -> Result<Value, Failure> {
    Ok(serde_json::to_value(value).map_err(std::io::Error::from)?)
}

/// A measured or computed number with the digits that mean something.
pub(crate) fn rounded(number: f64) -> f64 {
    format!("{number:.6e}").parse().unwrap_or(number)
}

impl Target {
    /// Makes sure that the file can be written, before the work that fills it.
    ///
    /// # Errors
    /// [`Failure::File`].
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self {
            Target::Stdout => Ok(()),
            Target::File(path) => Replacement::begin(path).map(drop),
        }
    }

    /// Writes `value`, readable and with a final line break.
    ///
    /// # Errors
    /// [`Failure::File`] or [`Failure::Output`].
    pub(crate) fn write(&self, value: &impl Serialize) -> Result<(), Failure> {
        let mut text = serde_json::to_vec_pretty(value).map_err(std::io::Error::from)?;
        text.push(b'\n');
        match self {
            Target::Stdout => {
                let mut console = Console::stdout();
                console.write_all(&text)?;
                Ok(console.flush()?)
            }
            Target::File(path) => Replacement::begin(path)?.finish(&text),
        }
    }
}
