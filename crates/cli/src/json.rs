//! JSON for other programs.

use std::convert::Infallible;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

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

/// Writes the rows of a measurement of this many problems that is not complete: to a file at once, to standard output only
/// `at_the_end`.
///
/// # Errors
/// As [`write`].
pub(crate) fn write_part(
    target: &Option<Target>,
    problems: usize,
    rows: &[impl Serialize],
    at_the_end: bool,
) -> Result<(), Failure> {
    match target {
        Some(target) if at_the_end == (*target == Target::Stdout) => target
            .write(&serde_json::json!({ "cut_short": true, "problems": problems, "rows": rows })),
        _ => Ok(()),
    }
}

/// A value as JSON that can be added to.
pub(crate) fn value(value: impl Serialize) -> Result<Value, Failure> {
    Ok(serde_json::to_value(value).map_err(std::io::Error::from)?)
}

/// A measured or computed number with the digits that mean something.
fn rounded(number: f64) -> f64 {
    format!("{number:.6e}").parse().unwrap_or(number)
}

/// Readable JSON of [`rounded`] numbers.
struct Rounded(PrettyFormatter<'static>);

/// Methods that leave the layout to [`PrettyFormatter`].
macro_rules! of_pretty {
    ($($name:ident $(, $first:ident)?;)*) => {
        $(fn $name<W: ?Sized + Write>(&mut self, to: &mut W $(, $first: bool)?) -> io::Result<()> {
            self.0.$name(to $(, $first)?)
        })*
    };
}

impl Formatter for Rounded {
    of_pretty! {
        begin_array;
        end_array;
        begin_array_value, first;
        end_array_value;
        begin_object;
        end_object;
        begin_object_key, first;
        begin_object_value;
        end_object_value;
    }

    fn write_f64<W: ?Sized + Write>(&mut self, to: &mut W, number: f64) -> io::Result<()> {
        self.0.write_f64(to, rounded(number))
    }

    fn write_f32<W: ?Sized + Write>(&mut self, to: &mut W, number: f32) -> io::Result<()> {
        self.write_f64(to, number.into())
    }
}

impl Target {
    /// Where the JSON goes, if to a file.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Target::Stdout => None,
            Target::File(path) => Some(path),
        }
    }

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
        let mut text = Vec::new();
        let formatter = Rounded(PrettyFormatter::new());
        let mut serializer = Serializer::with_formatter(&mut text, formatter);
        value.serialize(&mut serializer).map_err(io::Error::from)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_mean_nothing_are_left_out_and_the_layout_stays() {
        let value = serde_json::json!({ "a": [1_050.861_999_999_999_9, 0.0, 3], "b": {}, "c": [1.234_567_89e-9] });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("value.json");
        Target::File(file.clone()).write(&value).unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        let same = serde_json::json!({ "a": [1050.862, 0.0, 3], "b": {}, "c": [1.234_568e-9] });
        assert_eq!(text, serde_json::to_string_pretty(&same).unwrap() + "\n");
    }
}
