//! Signs of a command at work on standard error, if that is a terminal.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// A message and how long it has been there.
pub(crate) fn spinner(message: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("{spinner} {msg}: {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner.set_message(message);
    spinner
}

/// How many of `count` problems are done, and how long the rest will take.
pub(crate) fn problems(count: u64) -> ProgressBar {
    ProgressBar::new(count).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} problems {msg} {left}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .with_key(
                "left",
                |state: &ProgressState, text: &mut dyn std::fmt::Write| {
                    // Before the first is done, this is unknown.
                    if state.pos() > 0 {
                        let _ = write!(text, "{:#} left", HumanDuration(state.eta()));
                    }
                },
            ),
    )
}

/// Prints `text` to standard error, and asks on a terminal whether to go on, unless the answer is known to be `yes`.
///
/// # Errors
/// Standard input can't be read.
pub(crate) fn confirmed(text: &str, yes: bool) -> io::Result<bool> {
    let asks = !yes && io::stdin().is_terminal() && io::stderr().is_terminal();
    let question = if asks { "; go on? [Y/n] " } else { "\n" };
    // Without standard error no one can be told.
    let _ = io::stderr().write_all(format!("{text}{question}").as_bytes());
    match asks {
        true => agreed(&mut io::stdin().lock()),
        false => Ok(true),
    }
}

/// Returns true unless the answer is *no*. The end of the input counts as *no*.
fn agreed(input: &mut impl BufRead) -> io::Result<bool> {
    let mut answer = String::new();
    let read = input.read_line(&mut answer)?;
    Ok(read > 0 && !answer.trim_start().starts_with(['n', 'N']))
}

#[cfg(test)]
mod tests {
    use super::agreed;

    #[test]
    fn only_no_and_the_end_of_the_input_decline() {
        for answer in ["\n", "y\n", "Yes\n", "  \n"] {
            assert!(agreed(&mut answer.as_bytes()).unwrap(), "{answer}");
        }
        for answer in ["", "n\n", " No\n"] {
            assert!(!agreed(&mut answer.as_bytes()).unwrap(), "{answer}");
        }
    }
}
