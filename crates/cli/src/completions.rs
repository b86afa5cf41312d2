//! `warptile completions` and `warptile man`: what shells and manuals need to know of command lines.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::failure::Failure;
use crate::text;

/// Print a completion script for a shell.
///
/// For bash: warptile completions bash > ~/.local/share/bash-completion/completions/warptile
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to write the script for
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

/// Print a manual page.
///
/// To read it: warptile man bench | man -l -
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Command that the page is about [default: the whole program]
    command: Option<String>,
}

/// Runs the command `man` for the command line `C`.
pub(crate) fn man<C: CommandFactory>(
    args: &ManArgs,
    console: &mut dyn Write,
) -> Result<(), Failure> {
    let mut program = C::command();
    program.build();
    let page = match &args.command {
        None => program,
        Some(name) => match program.find_subcommand(name) {
            Some(command) => command.clone(),
            None => {
                return Err(Failure::Input(format!(
                    "there is no command {}",
                    text::name(name)
                )));
            }
        },
    };
    Ok(clap_mangen::Man::new(page).render(console)?)
}
