//! The `warptile` program: attention over files, what this machine can do, checks and measurements.

mod bench;
mod cases;
mod console;
mod failure;
mod files;
mod info;
mod inputs;
mod json;
mod machine;
mod options;
mod run;
mod verify;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::console::Console;
use crate::failure::{EXIT_CODES, Failure};

/// Fused attention that needs only the NVIDIA driver, or no GPU at all.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Info(info::InfoArgs),
    Verify(verify::VerifyArgs),
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to standard output, errors to standard error; if either is gone there is nobody to tell.
            let _ = error.print();
            return if error.use_stderr() {
                Failure::Input(String::new()).exit_code()
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let mut console = Console::stdout();
    let result = match &cli.command {
        Command::Run(args) => run::run(args, &mut console),
        Command::Info(args) => info::run(args, &mut console),
        Command::Verify(args) => verify::run(args, &mut console),
        Command::Bench(args) => bench::run(args, &mut console),
    };
    let result = result.and_then(|()| console.flush().map_err(Failure::Output));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // `eprintln!` would panic if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            failure.exit_code()
        }
    }
}
