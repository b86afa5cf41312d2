//! `cargo xtask`: maintainer tasks.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use xtask::build_kernels::{self, Compiler, Layout, Outcome, Progress, Selection};
use xtask::nvrtc::Nvrtc;
use xtask::toolchain::{self, Toolchain};
use xtask::{bundle, changes, compile, debug, evolve, files, reference, report};

/// Maintainer tasks of Warptile. Users of the crates never need them.
///
/// A change of a kernel is: edit kernels/, run `cargo xtask build-kernels`, commit sources and images together.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done; with --check: everything is fresh
  1  failed: a kernel did not compile or failed a gate, something committed is stale, or a file or download failed
  2  the command line was not understood";

#[derive(Subcommand)]
enum Task {
    /// Fetch the pinned compiler into .cache/toolchain
    ///
    /// pip downloads the wheels that xtask/toolchain.txt pins by version and SHA-256 (NVRTC, headers, disassemblers;
    /// about 140 MB, Linux x86-64). Each is checked against its hash before it is unpacked. A second call does nothing.
    /// build-kernels does this by itself; the command exists to fill a cache.
    Toolchain,

    /// Compile kernels/ into the images that the warptile-kernels crate embeds
    ///
    /// Reads kernels/instances.toml, compiles what changed since the last build with NVRTC, holds every image against the
    /// gates (no spills, no stack frame, no warning, shared memory within the target's limit, tensor-core instructions where
    /// the family promises them, a record that agrees with its parameter block), and writes crates/images-*, crates/kernels and
    /// docs/resources.md. Images no longer listed are dropped.
    BuildKernels {
        #[command(flatten)]
        selection: Selection,
        /// Rebuild from scratch, write nothing, and fail if what is committed differs
        #[arg(long)]
        check: bool,
        /// Compile into this folder instead, to time a change beside what ships: WARPTILE_KERNELS_DIR=FOLDER makes the program know these
        /// images
        #[arg(long, value_name = "FOLDER", conflicts_with = "check")]
        out: Option<PathBuf>,
        /// With --out: what the name of each kernel ends in there, behind an underscore
        #[arg(long, value_name = "NAME", default_value = "new", requires = "out")]
        suffix: String,
        /// With --out: debug images, with line information, and with the asserts that the sources have in such images. The names of their
        /// kernels end in _debug
        #[arg(long, requires = "out", conflicts_with = "suffix")]
        debug: bool,
        /// Compiler processes to run at once [default: one per CPU]
        #[arg(long)]
        jobs: Option<usize>,
        /// Use the CUDA toolkit in DIR instead of the pinned compiler; for trying things out, not for committing
        #[arg(long, value_name = "DIR", conflicts_with = "check")]
        toolkit: Option<PathBuf>,
    },

    /// Compile the float64 reference that `verify` and the tests run on a GPU
    ///
    /// Writes crates/check/gpu/reference.ptx.zst from the source next to it, with the pinned compiler.
    BuildReference {
        /// Write nothing, and fail if what is committed differs
        #[arg(long)]
        check: bool,
    },

    /// Pack the program, tests and benchmarks for a GPU host that has no Rust
    ///
    /// Builds the release program `warptile`, every test executable that has GPU tests and every benchmark, strips them, and
    /// copies them with their data and a script into a directory, and that into an archive of at most 64 MiB next to it. On
    /// the host, `./run.sh` runs everything and `./run.sh --help` says what else it can do; docs/bundle.md tells more.
    Bundle {
        /// Where to put it; an older bundle there is replaced
        #[arg(long, value_name = "DIR", default_value = "bundle")]
        out: PathBuf,
        /// Also the GPU tests of candle, cudarc, C and Python, which take some minutes more to build
        #[arg(long)]
        integrations: bool,
    },

    /// Regenerate the tables and plots of README.md and docs/
    ///
    /// Fills what stands between `<!-- generated: NAME -->` and `<!-- end generated -->`, and draws docs/plots. A name that no block
    /// has is an error, which lists all that there are. docs/evidence.md says where the evidence comes from.
    ///
    /// Fails if a speed relative to the best peer is more than 3% below the stored evidence/baseline-GPU.json.
    Report {
        /// Write nothing, and fail if a file is not as it should be
        #[arg(long)]
        check: bool,
        /// Make the speeds of the evidence the new baseline of their GPU; to be explained where it is committed
        #[arg(long, conflicts_with = "check")]
        store_baseline: bool,
    },

    /// Search for faster kernels: propose, compile, measure on a GPU host, select by rules, promote (docs/evolve.md)
    Evolve {
        #[command(subcommand)]
        task: EvolveTask,
    },

    /// Compile programs named on standard input; build-kernels starts these
    #[command(hide = true)]
    CompileWorker {
        /// NVRTC's shared library
        library: PathBuf,
    },
}

#[derive(Subcommand)]
enum EvolveTask {
    /// Begin a search of a family: its shipped tilings are generation 0
    Start(evolve::Plan),
    /// Propose a generation: hints, mutations and crossovers of the three best
    Propose {
        /// The family
        family: String,
        /// How many candidates
        #[arg(long, default_value_t = 8)]
        count: usize,
    },
    /// Compile what was proposed, through the gates of build-kernels
    Compile {
        /// The family
        family: String,
        /// Compiler processes to run at once
        #[arg(long, default_value_t = 1)]
        jobs: usize,
    },
    /// Pack what was compiled and not measured for a GPU host, which needs neither Rust nor a compiler
    Pack {
        /// The family
        family: String,
        /// The folder to make
        #[arg(long, value_name = "FOLDER")]
        out: PathBuf,
        /// A program for the host to copy along; without one the host needs WARPTILE=PATH
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },
    /// Take the results of a GPU host, and select by the rules
    Take {
        /// The family
        family: String,
        /// The results that `warptile trial` wrote
        results: PathBuf,
    },
    /// Show the search as a table, and draw it
    Show {
        /// The family
        family: String,
    },
    /// Add a winner to instances.toml, and its rate to the rates file of its GPU
    Promote {
        /// The family
        family: String,
        /// The candidate
        kernel: String,
    },
}

fn main() -> ExitCode {
    let root = files::repository_root();
    let result = match Cli::parse().task {
        Task::Toolchain => fetch_toolchain(&root),
        Task::BuildKernels {
            selection,
            check,
            debug,
            out,
            suffix,
            jobs,
            toolkit,
        } => compiler(&root, jobs, toolkit.as_deref()).and_then(|compiler| match out {
            Some(folder) => {
                let suffix = (!debug).then_some(suffix.as_str());
                images_in_folder(&root, &selection, suffix, &folder, &compiler)
            }
            None => build_kernels(&root, selection, check, &compiler),
        }),
        Task::Evolve { task } => evolve(&root, task),
        Task::BuildReference { check } => build_reference(&root, check),
        Task::Bundle { out, integrations } => bundle(&root, &out, integrations),
        Task::Report {
            check,
            store_baseline,
        } => report(&root, check, store_baseline),
        Task::CompileWorker { library } => serve(&library),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn pinned_toolchain(root: &Path) -> Result<Toolchain> {
    let cache = root.join(".cache");
    if !toolchain::installed_root(&cache).exists() {
        eprintln!(
            "fetching the pinned compiler (about 140 MB) into {}",
            cache.display()
        );
    }
    toolchain::pinned(&cache)
}

fn fetch_toolchain(root: &Path) -> Result<()> {
    let toolchain = pinned_toolchain(root)?;
    println!("{}: {}", toolchain.version, toolchain.nvrtc.display());
    println!("disassembler: {}", toolchain.nvdisasm.display());
    Ok(())
}

/// The hash of the commit called `name`; a hash stays what it is, whether the repository has such a commit or not.
fn commit(root: &Path, name: String) -> Result<String> {
    if name != "HEAD" {
        return Ok(name);
    }
    let output = std::process::Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(root)
        .output()?;
    ensure!(
        output.status.success(),
        "git knows no HEAD here; give --sample a hash"
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The pinned compiler, or the one of a CUDA toolkit, with `jobs` processes or one for each CPU.
fn compiler(root: &Path, jobs: Option<usize>, toolkit: Option<&Path>) -> Result<Compiler> {
    Ok(Compiler {
        toolchain: match toolkit {
            Some(directory) => toolchain::toolkit(directory)?,
            None => pinned_toolchain(root)?,
        },
        worker: std::env::current_exe()?,
        jobs: jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
    })
}

/// Does work under a progress bar.
fn with_bar<T>(work: impl FnOnce(&Bar) -> T) -> T {
    let bar = Bar(ProgressBar::no_length());
    let done = work(&bar);
    bar.0.finish_and_clear();
    done
}

fn build_kernels(
    root: &Path,
    mut selection: Selection,
    check: bool,
    compiler: &Compiler,
) -> Result<()> {
    let layout = Layout::of_repository(root);
    if let Some(name) = selection.sample {
        selection.sample = Some(commit(root, name)?);
    }
    if !compiler.toolchain.pinned {
        eprintln!(
            "note: images of {} are for trying out: --check, which CI runs, compares with the pinned compiler's",
            compiler.toolchain.version
        );
    }
    let (outcome, differences) = with_bar(|bar| match check {
        true => build_kernels::check(&layout, compiler, &selection, bar),
        false => { build_kernels::build(&layout, compiler, &selection, bar) }
            .map(|outcome| (outcome, Vec::new())),
    })?;
    let partial = selection.family.is_some() || selection.target.is_some();
    match check {
        true => println!("{} images compiled and compared", outcome.compiled.len()),
        false => print!("{}", changes::summary(&outcome, partial)),
    }
    show(&outcome, &differences, check)
}

fn images_in_folder(
    root: &Path,
    selection: &Selection,
    suffix: Option<&str>,
    folder: &Path,
    compiler: &Compiler,
) -> Result<()> {
    let layout = Layout::of_repository(root);
    let build = |bar: &Bar| debug::build(&layout, compiler, selection, suffix, folder, bar);
    let (manifest, failures) = with_bar(build)?;
    for entry in &manifest.images {
        println!("{}", folder.join(&entry.pack).display());
    }
    show_failures(&failures)
}

fn show_failures(failures: &[build_kernels::Failure]) -> Result<()> {
    for failure in failures {
        eprintln!("\n{}", failure.image);
        for reason in &failure.reasons {
            eprintln!("  {}", reason.trim_end().replace('\n', "\n  "));
        }
    }
    match failures.len() {
        0 => Ok(()),
        count => bail!("{count} compilations failed; their images are not made"),
    }
}

fn evolve(root: &Path, task: EvolveTask) -> Result<()> {
    let search = |family: &str| evolve::Search::open(root, family);
    let text = match task {
        EvolveTask::Start(plan) => evolve::Search::start(root, plan)?.table(),
        EvolveTask::Propose { family, count } => search(&family)?.propose(count)?,
        EvolveTask::Compile { family, jobs } => {
            let (mut search, compiler) = (search(&family)?, compiler(root, Some(jobs), None)?);
            with_bar(|bar| search.compile(&compiler, bar))?
        }
        EvolveTask::Pack {
            family,
            out,
            program,
        } => search(&family)?.pack(&out, program.as_deref())?,
        EvolveTask::Take { family, results } => search(&family)?.take(&results)?,
        EvolveTask::Show { family } => search(&family)?.show()?,
        EvolveTask::Promote { family, kernel } => search(&family)?.promote(&kernel)?,
    };
    print!("{text}");
    Ok(())
}

fn show(outcome: &Outcome, differences: &[String], check: bool) -> Result<()> {
    for difference in differences {
        eprintln!("stale: {difference}");
    }
    show_failures(&outcome.failures)?;
    if let Some(excess) = outcome.excess() {
        bail!(excess);
    }
    ensure!(
        differences.is_empty(),
        "images are stale or edited by hand: run `cargo xtask build-kernels` and commit the result"
    );
    if check {
        println!(
            "every image that was compiled is what its sources compile to, and nothing else is stale"
        );
    }
    Ok(())
}

fn build_reference(root: &Path, check: bool) -> Result<()> {
    let toolchain = pinned_toolchain(root)?;
    reference::build(root, &toolchain, check)
}

fn bundle(root: &Path, out: &Path, integrations: bool) -> Result<()> {
    let bundle = bundle::bundle(root, out, integrations)?;
    for file in &bundle.files {
        println!("{:>10}  {}", file.bytes, file.path);
    }
    let total: u64 = bundle.files.iter().map(|file| file.bytes).sum();
    println!("{total:>10}  in all: {}", out.display());
    println!(
        "{:>10}  packed, {:.1} of {} MiB: {}",
        bundle.archive_bytes,
        bundle.archive_bytes as f64 / f64::from(1 << 20),
        bundle::SIZE_LIMIT >> 20,
        bundle.archive.display()
    );
    Ok(())
}

fn report(root: &Path, check: bool, store_baseline: bool) -> Result<()> {
    if store_baseline {
        for path in report::store_baselines(root)? {
            println!("written: {}", path.display());
        }
    }
    let generated = report::generate(root)?;
    let surplus = report::surplus_plots(root, &generated)?;
    let stale: Vec<_> = generated.iter().filter(|file| !file.is_fresh()).collect();
    let verb = if check { "stale" } else { "written" };
    for file in &stale {
        println!("{verb}: {}", file.path.display());
    }
    for path in &surplus {
        println!(
            "{}: {}",
            if check { "surplus" } else { "deleted" },
            path.display()
        );
    }
    if check && !(stale.is_empty() && surplus.is_empty()) {
        bail!("generated documentation is stale: run `cargo xtask report` and commit the result");
    }
    if !check {
        stale.iter().try_for_each(|file| file.write())?;
        surplus.iter().try_for_each(std::fs::remove_file)?;
    }
    let losses = report::losses(root)?;
    for loss in &losses {
        eprintln!("slower: {loss}");
    }
    match losses.len() {
        0 => Ok(()),
        count => bail!(
            "{count} speeds relative to the best peer fell by more than 3%; if that is meant, `cargo xtask report --store-baseline`"
        ),
    }
}

fn serve(library: &Path) -> Result<()> {
    let nvrtc = Nvrtc::load(library)?;
    Ok(compile::serve(
        &nvrtc,
        io::stdin().lock(),
        io::stdout().lock(),
    )?)
}

/// A progress bar on standard error; silent when that is not a terminal.
struct Bar(ProgressBar);

impl Progress for Bar {
    fn begin(&self, count: usize) {
        self.0.set_length(count as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
            self.0.set_style(style);
        }
    }

    fn finished(&self, image: &str) {
        self.0.set_message(image.to_owned());
        self.0.inc(1);
    }
}
