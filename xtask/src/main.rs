//! `cargo xtask`: maintainer tasks.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use xtask::build_kernels::{self, Compiler, EMBEDDED_LIMIT, Layout, Outcome, Progress, Selection};
use xtask::instances::Target;
use xtask::nvrtc::Nvrtc;
use xtask::toolchain::{self, Toolchain};
use xtask::{bundle, compile, files, reference, report, resources};

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
    /// the family promises them, a record that agrees with its parameter block), and writes crates/kernels/images and
    /// docs/resources.md. Images no longer listed are dropped.
    BuildKernels {
        /// Only this family, such as `scalar`
        #[arg(long)]
        family: Option<String>,
        /// Only this target, such as `sm_90a` or `compute_80`
        #[arg(long)]
        arch: Option<Target>,
        /// Rebuild from scratch, write nothing, and fail if what is committed differs
        #[arg(long)]
        check: bool,
        /// With --check: compile only the smallest image of each family and target, and a twentieth of the others, which
        /// the hash of the commit chooses; of the rest compare sources and bytes
        #[arg(
            long,
            value_name = "HASH",
            requires = "check",
            num_args = 0..=1,
            default_missing_value = "HEAD"
        )]
        sample: Option<String>,
        /// Compiler processes to run at once [default: one per CPU]
        #[arg(long)]
        jobs: Option<usize>,
        /// Use the CUDA toolkit in DIR instead of the pinned compiler; for trying things out, not for committing
        #[arg(long, value_name = "DIR", conflicts_with = "check")]
        toolkit: Option<PathBuf>,
    },

    /// Compile the float64 reference that `verify` and the tests run on a GPU
    ///
    /// Writes crates/check/gpu/reference.ptx.zst from the source beside it, with the pinned compiler.
    BuildReference {
        /// Write nothing, and fail if what is committed differs
        #[arg(long)]
        check: bool,
    },

    /// Pack the program, tests and benchmarks for a GPU host that has no Rust
    ///
    /// Builds the release program `warptile`, every test executable that has GPU tests and every benchmark, strips them, and
    /// copies them with their data and a script into a directory, and that into an archive of at most 64 MiB beside it. On
    /// the host, `./run.sh` runs everything and `./run.sh --help` says what else it can do; docs/bundle.md tells more.
    Bundle {
        /// Where to put it; an older bundle there is replaced
        #[arg(long, value_name = "DIR", default_value = "bundle")]
        out: PathBuf,
    },

    /// Regenerate the tables and plots of README.md and docs/
    ///
    /// Fills what stands between `<!-- generated: NAME -->` and `<!-- end generated -->`: `support` (which kernels for which
    /// GPU), `unproven` (images that no GPU has proven), `checks` (tests, random problems, repeated launches, sanitizer),
    /// `acceptance` (the predecessor's acceptance problems), `counters` (hardware counters), `speed` and `ratios` (speed
    /// against the peers, in six rows and in all), `behind` (where a peer is faster), `decode` and `decode-short` (few queries on
    /// many keys), `cpu`, `uneven`, `families`, `bench` (every row of evidence/bench-*.json) and `plots` (links to docs/plots,
    /// which is drawn from the same rows). docs/evidence.md says where the evidence comes from.
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

    /// Compile programs named on standard input; build-kernels starts these
    #[command(hide = true)]
    CompileWorker {
        /// NVRTC's shared library
        library: PathBuf,
    },
}

fn main() -> ExitCode {
    let root = files::repository_root();
    let result = match Cli::parse().task {
        Task::Toolchain => fetch_toolchain(&root),
        Task::BuildKernels {
            family,
            arch,
            check,
            sample,
            jobs,
            toolkit,
        } => sample
            .map(|hash| commit(&root, hash))
            .transpose()
            .and_then(|sample| {
                let selection = Selection {
                    family,
                    target: arch,
                    sample,
                };
                build_kernels(&root, &selection, check, jobs, toolkit.as_deref())
            }),
        Task::BuildReference { check } => build_reference(&root, check),
        Task::Bundle { out } => bundle(&root, &out),
        Task::Report {
            check,
            store_baseline,
        } => report(&root, check, store_baseline),
        Task::CompileWorker { library } => serve(&library),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn pinned_toolchain(root: &Path) -> Result<Toolchain, Box<dyn Error>> {
    let cache = root.join(".cache");
    if !toolchain::installed_root(&cache).exists() {
        eprintln!(
            "fetching the pinned compiler (about 140 MB) into {}",
            cache.display()
        );
    }
    Ok(toolchain::pinned(&cache)?)
}

fn fetch_toolchain(root: &Path) -> Result<(), Box<dyn Error>> {
    let toolchain = pinned_toolchain(root)?;
    println!("{}: {}", toolchain.version, toolchain.nvrtc.display());
    println!("disassembler: {}", toolchain.nvdisasm.display());
    Ok(())
}

/// The hash of the commit called `name`; a hash stays what it is, whether the repository has such a commit or not.
fn commit(root: &Path, name: String) -> Result<String, Box<dyn Error>> {
    if name != "HEAD" {
        return Ok(name);
    }
    let output = std::process::Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err("git knows no HEAD here; give --sample a hash".into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn build_kernels(
    root: &Path,
    selection: &Selection,
    check: bool,
    jobs: Option<usize>,
    toolkit: Option<&Path>,
) -> Result<(), Box<dyn Error>> {
    let layout = Layout::of_repository(root);
    let toolchain = match toolkit {
        Some(directory) => toolchain::toolkit(directory)?,
        None => pinned_toolchain(root)?,
    };
    if !toolchain.pinned {
        eprintln!(
            "note: images of {} are for trying out: --check, which CI runs, compares with the pinned compiler's",
            toolchain.version
        );
    }
    let compiler = Compiler {
        toolchain,
        worker: std::env::current_exe()?,
        jobs: jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
    };
    let bar = Bar(ProgressBar::no_length());
    let (outcome, differences) = if check {
        build_kernels::check(&layout, &compiler, selection, &bar)?
    } else {
        (
            build_kernels::build(&layout, &compiler, selection, &bar)?,
            Vec::new(),
        )
    };
    bar.0.finish_and_clear();
    show(&outcome, &differences, check)
}

fn show(outcome: &Outcome, differences: &[String], check: bool) -> Result<(), Box<dyn Error>> {
    println!(
        "{}",
        resources::table(&outcome.manifest, &outcome.packed_bytes)
    );
    println!("{} compiled now", outcome.compiled.len());
    for failure in &outcome.failures {
        eprintln!("\n{}", failure.image);
        for reason in &failure.reasons {
            eprintln!("  {}", reason.trim_end().replace('\n', "\n  "));
        }
    }
    for difference in differences {
        eprintln!("stale: {difference}");
    }
    if !outcome.failures.is_empty() {
        return Err(format!(
            "{} compilations failed; their images are not in the catalog",
            outcome.failures.len()
        )
        .into());
    }
    if let Some(total) = outcome.excess_bytes() {
        return Err(format!("{total} bytes are embedded, the limit is {EMBEDDED_LIMIT}").into());
    }
    if !differences.is_empty() {
        return Err("images are stale or edited by hand: run `cargo xtask build-kernels` and commit the result".into());
    }
    if check {
        println!(
            "every image that was compiled is what its sources compile to, and nothing else is stale"
        );
    }
    Ok(())
}

fn build_reference(root: &Path, check: bool) -> Result<(), Box<dyn Error>> {
    let toolchain = pinned_toolchain(root)?;
    Ok(reference::build(root, &toolchain, check)?)
}

fn bundle(root: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let bundle = bundle::bundle(root, out)?;
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

fn report(root: &Path, check: bool, store_baseline: bool) -> Result<(), Box<dyn Error>> {
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
        return Err(
            "generated documentation is stale: run `cargo xtask report` and commit the result"
                .into(),
        );
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
        count => Err(format!(
            "{count} speeds relative to the best peer fell by more than 3%; if that is meant, `cargo xtask report --store-baseline`"
        )
        .into()),
    }
}

fn serve(library: &Path) -> Result<(), Box<dyn Error>> {
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
