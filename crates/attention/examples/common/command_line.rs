//! The command line of an example: options that take a value each, and the exit codes that its help tells of.

use std::process::ExitCode;
use std::str::FromStr;

use warptile::Result;

/// Options of an example, which begin at their defaults.
pub(crate) trait Options: Default {
    /// The text that `--help` prints.
    const HELP: &'static str;

    /// Sets the option `name`; `None` if no such option exists.
    fn set(&mut self, name: &str, value: &str) -> Option<std::result::Result<(), String>>;

    /// Refuses values that are out of range.
    fn check(&self) -> std::result::Result<(), String>;
}

/// A number that an option is set to.
pub(crate) fn number<N: FromStr>(
    name: &str,
    value: &str,
    to: &mut N,
) -> std::result::Result<(), String> {
    *to = { value.parse() }.map_err(|_| format!("{name} {value} is not a number in range"))?;
    Ok(())
}

/// `None` if help is asked for.
fn parse<O: Options>() -> std::result::Result<Option<O>, String> {
    let mut options = O::default();
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if matches!(name.as_str(), "--help" | "-h") {
            return Ok(None);
        }
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        match options.set(&name, &value) {
            Some(set) => set?,
            None => return Err(format!("there is no option {name}")),
        }
    }
    options.check()?;
    Ok(Some(options))
}

/// Runs an example, which says whether all results were as they must be.
pub(crate) fn main<O: Options>(run: impl FnOnce(&O) -> Result<bool>) -> ExitCode {
    let options = match parse::<O>() {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", O::HELP);
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("error: {message}\n\n{}", O::HELP);
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(3)
        }
    }
}
