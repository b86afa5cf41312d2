//! `warptile completions`: what a shell needs to complete command lines.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::failure::Failure;

/// Print a script with which a shell completes command lines.
///
/// For bash: warptile completions bash > ~/.local/share/bash-completion/completions/warptile
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command for the command line `C`.
pub(crate) fn run<C: CommandFactory>(
    args: &CompletionsArgs,
    console: &mut dyn Write,
) -> Result<(), Failure> {
    // By way of memory: the generator panics where it cannot write.
    let mut script = Vec::new();
    generate(args.shell, &mut C::command(), "warptile", &mut script);
    Ok(console.write_all(&script)?)
}
