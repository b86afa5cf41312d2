//! What shows on standard error that a command is at work, if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

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
        ProgressStyle::with_template("{bar:30} {pos}/{len} problems {msg} {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}
