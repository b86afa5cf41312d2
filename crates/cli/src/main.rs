//! The `warptile` program: attention over files, what this machine can do, checks and measurements.

mod again;
mod bench;
mod cases;
mod chart;
mod compare;
mod completions;
mod console;
mod devices;
mod failure;
mod files;
mod generate;
mod images;
mod info;
mod inputs;
mod interrupt;
mod json;
mod lock;
mod machine;
mod npy;
mod operation;
mod options;
mod output;
mod plan;
mod progress;
mod records;
mod report;
mod run;
mod team;
mod tensors;
mod text;
mod trial;
mod tune;
mod verify;
mod version;

use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::console::Console;
use crate::failure::{EXIT_CODES, Failure};
use crate::json::Target;

/// A first session, and what the exit codes mean.
fn after_help() -> String {
    let examples = cases::examples(&[
        "info",
        "gen \"b2 q512 k512 h8 d64 f16 mask=causal\" -o qkv.safetensors",
        "run qkv.safetensors --causal -o out.safetensors",
        "bench --shape \"b2 q512 k512 h8 d64 f16 mask=causal\"",
        "COMMAND --help",
    ]);
    format!("{examples}\n\n{EXIT_CODES}")
}

/// Fused attention. On a GPU it needs only the NVIDIA driver; without one it runs on the CPU.
#[derive(Debug, Parser)]
#[command(name = "warptile", version, after_help = after_help())]
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
    Plan(plan::PlanArgs),
    Tune(tune::TuneArgs),
    Compare(compare::CompareArgs),
    Gen(generate::GenArgs),
    Report(report::ReportArgs),
    #[command(hide = true)]
    TuneTrials(tune::TrialsArgs),
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
    #[command(hide = true)]
    Trial(trial::TrialArgs),
}

impl Command {
    /// Where the command writes its results as JSON, if it does.
    fn json(&self) -> Option<&Target> {
        match self {
            Command::Info(args) => args.json.as_ref(),
            Command::Verify(args) => args.json.as_ref(),
            Command::Bench(args) => args.json.as_ref(),
            Command::Compare(args) => args.json.as_ref(),
            Command::Plan(args) => args.json.as_ref(),
            Command::Tune(args) => args.json.as_ref(),
            Command::Run(_)
            | Command::Gen(_)
            | Command::Report(_)
            | Command::TuneTrials(_)
            | Command::Completions(_)
            | Command::Man(_)
            | Command::Trial(_) => None,
        }
    }

    fn run(&self, console: &mut dyn Write) -> Result<(), Failure> {
        interrupt::stoppable(|| match self {
            Command::Run(args) => run::run(args, console),
            Command::Info(args) => info::run(args, console),
            Command::Verify(args) => verify::run(args, console),
            Command::Bench(args) => bench::run(args, console),
            Command::Plan(args) => plan::run(args, console),
            Command::Tune(args) => tune::run(args, console),
            Command::TuneTrials(args) => tune::run_trials(args, console),
            Command::Compare(args) => compare::run(args, console),
            Command::Gen(args) => generate::run(args, console),
            Command::Report(args) => report::run(args, console),
            Command::Completions(args) => completions::run::<Cli>(args, console),
            Command::Man(args) => completions::man::<Cli>(args, console),
            Command::Trial(args) => trial::run(args, console),
        })?;
        Ok(console.flush()?)
    }
}

/// The arguments. A negative number behind an option is its value, which the option may refuse, and not another option.
fn try_parse() -> Result<Cli, clap::Error> {
    let negative = |arg: Arg| {
        let is_option = !arg.is_positional() && arg.get_action().takes_values();
        // `allow_hyphen_values` allows more.
        match is_option && !arg.is_allow_hyphen_values_set() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        }
    };
    let command = Cli::command().mut_subcommands(|command| command.mut_args(negative));
    Cli::from_arg_matches(&command.try_get_matches()?)
}

fn main() -> ExitCode {
    interrupt::install();
    let cli = match try_parse() {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            let mut console = Console::stdout();
            return ended(version::print(&mut console));
        }
        Err(mut error) => {
            if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
                && cases::is_word(word)
            {
                let tip = "a problem is one argument: put all its words in quotes";
                let tip = ContextValue::StyledStrs(vec![tip.into()]);
                error.insert(ContextKind::Suggested, tip);
            }
            // Help goes to standard output, errors to standard error; if either is gone no one can be told.
            let _ = error.print();
            return if error.use_stderr() {
                Failure::Input(String::new()).exit_code()
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let json = cli.command.json();
    ended(
        json.map_or(Ok(()), Target::check)
            .and_then(|()| match json {
                // Standard output is for the JSON alone.
                Some(Target::Stdout) => cli.command.run(&mut Console::stderr()),
                _ => cli.command.run(&mut Console::stdout()),
            }),
    )
}

/// The exit code, after what went wrong was told.
fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // `eprintln!` would panic if standard error is gone.
            let message = text::lines(&format!("error: {failure}"));
            let _ = writeln!(std::io::stderr(), "{message}");
            failure.exit_code()
        }
    }
}
