//! The `warptile` program: attention over files, what this machine can do, checks and measurements.

mod bench;
mod cases;
mod compare;
mod completions;
mod console;
mod failure;
mod files;
mod generate;
mod info;
mod inputs;
mod json;
mod machine;
mod options;
mod output;
mod run;
mod text;
mod verify;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::console::Console;
use crate::failure::{EXIT_CODES, Failure};
use crate::json::Target;

/// Fused attention. On a GPU it needs only the NVIDIA driver; without one it runs on the CPU.
#[derive(Debug, Parser)]
#[command(name = "warptile", version, after_help = EXIT_CODES)]
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
    Compare(compare::CompareArgs),
    Gen(generate::GenArgs),
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Whether standard output is for JSON alone.
    fn writes_json(&self) -> bool {
        let json = match self {
            Command::Info(args) => &args.json,
            Command::Verify(args) => &args.json,
            Command::Bench(args) => &args.json,
            Command::Compare(args) => &args.json,
            Command::Run(_) | Command::Gen(_) | Command::Completions(_) => &None,
        };
        matches!(json, Some(Target::Stdout))
    }

    fn run(&self, console: &mut dyn Write) -> Result<(), Failure> {
        match self {
            Command::Run(args) => run::run(args, console),
            Command::Info(args) => info::run(args, console),
            Command::Verify(args) => verify::run(args, console),
            Command::Bench(args) => bench::run(args, console),
            Command::Compare(args) => compare::run(args, console),
            Command::Gen(args) => generate::run(args, console),
            Command::Completions(args) => completions::run::<Cli>(args, console),
        }?;
        Ok(console.flush()?)
    }
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
    let result = match cli.command.writes_json() {
        true => cli.command.run(&mut Console::stderr()),
        false => cli.command.run(&mut Console::stdout()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // `eprintln!` would panic if standard error is gone.
            let message = text::lines(&failure.to_string());
            let _ = writeln!(std::io::stderr(), "error: {message}");
            failure.exit_code()
        }
    }
}
