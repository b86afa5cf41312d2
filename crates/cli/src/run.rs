//! `warptile run`: attention over the tensors of a file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use safetensors::Dtype;
use warptile::kernels::Kind;
use warptile::plan::Choice;
use warptile::spec::Call;
use warptile::{BlockLists, Diagonal, Element, ElementType, Splits, with_element};
use warptile_check::Verdict;

use crate::cases;
use crate::failure::Failure;
use crate::files::{self, Format, OutTensor, Tensors};
use crate::inputs::{Answer, Inputs, Times, to_reference_order};
use crate::options::{self, Device, LayoutKind, Numbers, Window};
use crate::output::{self, Replacement};
use crate::progress;
use crate::tensors::Settings;
use crate::text::{self, say};

/// Compute attention over the tensors of a safetensors or .npz file, or of several .npy files.
///
/// An .npy file holds the tensor that it is named after: q.npy, k.npy, v.npy. NumPy has no bf16 and no e4m3; they are stored as raw bytes
/// (V2 and V1), as NumPy saves arrays of ml_dtypes.
///
/// q, k and v have one type, F16, BF16 or F32, and the shape [batch, length, heads, head size]. k and v may have fewer heads than q. v may
/// have another head size, which is then that of the output.
/// If the file has cu_seqlens_q and cu_seqlens_k, the sequences are packed without padding, and the shapes are [total, heads, head size].
///
/// Instead of k and v, a file may have a paged cache: k_pages and v_pages, of shape [pages, page rows, heads, head
/// size] with 1 to 256 rows in a page, and the table of each sequence's pages (below). Table entries and rows after
/// the last key of a sequence are ignored. With cu_seqlens_q the queries are packed.
#[derive(Debug, Args)]
#[command(after_help = files::help() + "\n" + &cases::examples(&[
    "run qkv.safetensors --causal -o out.safetensors",
    "run q.npy k.npy v.npy --window 256,0 -o out.npy",
    "run qkv.npz --device cpu --expect expected.npz",
    "run qkv.safetensors --device cuda:0 --kernel wmma --explain",
]))]
pub(crate) struct RunArgs {
    /// File with q, k and v, or an .npy file for each of them
    #[arg(value_name = "QKV.safetensors", required = true)]
    inputs: Vec<PathBuf>,

    /// Write out (type and layout of q) and lse (F32, [batch, heads, length]; packed: [heads, total]) to this file, and gradients
    ///
    /// The name decides the format: .npz, .npy (out only), or else safetensors. An existing file is replaced once the result is complete.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Hide the keys after the diagonal from each query
    #[arg(long)]
    causal: bool,

    /// Show each query only LEFT keys before its diagonal and RIGHT keys after it; -1: no limit
    #[arg(long, value_name = "LEFT,RIGHT", allow_hyphen_values = true)]
    window: Option<Window>,

    /// Alignment of the diagonal: bottom-right (the last query with the last key), top-left (the first query with the first key), or the
    /// index of the key that the first query is aligned with, such as 0 or -3 [default: bottom-right]
    #[arg(long, value_name = "DIAGONAL", allow_hyphen_values = true)]
    diagonal: Option<Diagonal>,

    /// Read the blocks of keys that each block of queries sees from block_offsets and block_indices: 64x128 for blocks of 64 queries and
    /// 128 keys; with ,batch and ,head behind, each sequence and each head has lists of its own
    #[arg(long, value_name = "LISTS")]
    blocks: Option<BlockLists>,

    #[command(flatten)]
    numbers: Numbers,

    /// Split keys at multiples of N, a power of two from 256 to 1048576, so that a sequence has the same result, bit for bit, in every
    /// batch; `even` splits them in the fastest way
    ///
    /// With N, one kernel computes every batch of the same types, head size and options, regardless of the number of queries. On the CPU,
    /// results never depend on the batch.
    #[arg(long, value_name = "N", default_value_t = Splits::Even)]
    splits: Splits,

    /// Order in which the file stores its tensors
    #[arg(long, value_enum, default_value_t = LayoutKind::Bshd)]
    layout: LayoutKind,

    /// Where to compute: auto (the best GPU, else the CPU), cpu or cuda:N
    #[arg(long, default_value_t = Device::Auto)]
    device: Device,

    /// Kernel to use: best, a family such as wgmma, or the name of a kernel or an image; `warptile info --kernels` lists kernels
    #[arg(long, value_name = "NAME", default_value_t = Choice::Best)]
    kernel: Choice,

    /// Compare with out and lse of this file (out_causal and lse_causal if the mask is causal and has no window), and fail if they
    /// differ by too much
    ///
    /// The tolerance is twice the error of the plain, unfused computation in the element type on the same inputs (three times where
    /// an option bounds the scores), plus a rounding error, and for lse plus 1e-5 * (1 + |lse|). Errors are measured against float64.
    /// An .npy file is named after its tensor.
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,

    /// Compute only once, without further calls for a median time
    #[arg(long)]
    once: bool,

    /// Print the plan: the chosen kernel, its launch, and the reason against every other kernel
    #[arg(long)]
    explain: bool,
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let mask = options::mask(args.causal, args.window, args.diagonal)?;
    let mut scoring = args.numbers.0.mask(mask);
    scoring.blocks = args.blocks;
    let settings = Settings {
        scoring,
        splits: args.splits,
    };
    let output = match &args.output {
        Some(path) => Some(output_file(args, path)?),
        None => None,
    };
    let (file, element) = files::open_inputs(&args.inputs)?;
    with_element!(element, T => {
        let inputs = files::read_inputs::<T>(&file, args.layout)?;
        drop(file);
        run_typed(args, &settings, &inputs, output, console)
    })
}

/// Opens the output before the work that fills it.
///
/// # Errors
/// [`Failure::File`] if it can't be written, [`Failure::Input`] if it is one of the files that are read.
fn output_file(args: &RunArgs, path: &Path) -> Result<Replacement, Failure> {
    output::refuse_replacing(args.inputs.iter().chain(&args.expect), path)?;
    Replacement::begin(path)
}

fn run_typed<T: Element>(
    args: &RunArgs,
    settings: &Settings,
    inputs: &Inputs<T>,
    output: Option<Replacement>,
    console: &mut dyn Write,
) -> Result<(), Failure> {
    // Before a device is opened: what is wrong with the input is wrong everywhere.
    let call = inputs.call(settings)?;
    let expected = match &args.expect {
        Some(path) => Some(Expected::read(path, args.layout, &call)?),
        None => None,
    };
    let backend = args.device.open()?;
    let answer = inputs.compute(settings, &args.kernel, &backend, args.once)?;
    say!(console, "call     {call}")?;
    if args.explain {
        for line in answer.plan.explain().lines() {
            say!(console, "{line}")?;
        }
    }
    let ran = |kernel: &str, times: &Times| {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let first = milliseconds(times.first);
        let mut ran = format!("ran      {kernel} on {backend} in {first:.3} ms (first call)");
        if let Some((median, count)) = times.later {
            let median = milliseconds(median);
            ran.push_str(&format!(", {median:.3} ms (median of {count} more)"));
        }
        ran
    };
    say!(console, "{}", ran(answer.plan.kernel_name(), &answer.times))?;
    if let Some(gradients) = &answer.gradients {
        if args.explain {
            for line in gradients.plan.explain().lines() {
                say!(console, "{line}")?;
            }
        }
        let kernel = format!("gradients by {}", gradients.plan.kernel_name());
        say!(console, "{}", ran(&kernel, &gradients.times))?;
    }
    if let (Some(file), Some(path)) = (output, &args.output) {
        write_answer(file, args.layout, &call, &answer)?;
        let what = match Format::of(path) {
            Format::Npy => "out",
            _ if answer.gradients.is_some() => "out, lse and gradients",
            _ => "out and lse",
        };
        writeln!(console, "wrote    {what} to {}", text::path(path))?;
    }
    match expected {
        Some(expected) => expected.compare(inputs, &call, &answer, console),
        None => Ok(()),
    }
}

fn write_answer<T: Element>(
    file: Replacement,
    layout: LayoutKind,
    call: &Call,
    answer: &Answer<T>,
) -> Result<(), Failure> {
    let dtype = files::dtype_of(T::TYPE);
    let mut tensors = vec![
        OutTensor::new("out", dtype, out_shape(layout, call), &answer.out),
        OutTensor::new("lse", Dtype::F32, lse_shape(call), &answer.lse),
    ];
    if let Some(gradients) = &answer.gradients {
        for (gradient, (bytes, of)) in &gradients.each {
            let (dtype, shape) = match gradient.kind() {
                Kind::List(_) => (Dtype::F32, vec![of.reach()]),
                // As a bias is in a file.
                Kind::Scores => (dtype, LayoutKind::Bhsd.reorder(of.shape).to_vec()),
                _ => (dtype, stored_shape(layout, of.shape, call)),
            };
            tensors.push(OutTensor::new(gradient.name(), dtype, shape, bytes));
        }
    }
    files::write(file, &tensors)
}

/// The output's shape in storage order: four dimensions, or three for packed sequences.
pub(crate) fn out_shape(layout: LayoutKind, call: &Call) -> Vec<usize> {
    stored_shape(layout, call.out().shape, call)
}

/// The shape in storage order of a tensor of a call.
fn stored_shape(layout: LayoutKind, shape: [usize; 4], call: &Call) -> Vec<usize> {
    layout.reorder(shape)[usize::from(call.queries().is_packed())..].to_vec()
}

pub(crate) fn lse_shape(call: &Call) -> Vec<usize> {
    call.lse_shape()[usize::from(call.queries().is_packed())..].to_vec()
}

/// The names of a call's results in a file of expected ones.
pub(crate) fn expected_names(call: &Call) -> (&'static str, &'static str) {
    match call.mask().is_causal() {
        true => ("out_causal", "lse_causal"),
        false => ("out", "lse"),
    }
}

/// The contents of the file of `--expect`.
struct Expected {
    path: PathBuf,
    out: Option<ExpectedTensor>,
    lse: Option<ExpectedTensor>,
}

struct ExpectedTensor {
    name: &'static str,
    /// In the reference's order.
    values: Vec<f64>,
    /// The file's element type; `None` for F64.
    stored_as: Option<ElementType>,
}

impl Expected {
    fn read(path: &Path, layout: LayoutKind, call: &Call) -> Result<Self, Failure> {
        let (out_name, lse_name) = expected_names(call);
        let shapes = [
            (out_name, out_shape(layout, call)),
            (lse_name, lse_shape(call)),
        ];
        let mut file = Tensors::open(&[path.to_owned()])?;
        for (name, shape) in &shapes {
            let Some(found) = file.shape(name) else {
                continue;
            };
            // A packed batch may be written with its batch of 1 or without.
            let with_batch: Vec<usize> = std::iter::once(1).chain(shape.iter().copied()).collect();
            if found != shape && !(call.queries().is_packed() && found == with_batch) {
                return Err(file.wrong(&format!(
                    "{name} has shape {}, but the result has {shape:?}",
                    text::shape(found)
                )));
            }
        }
        file.load(|name, _| shapes.iter().any(|(known, _)| *known == name))?;
        let tensor = |name: &'static str| {
            let Some(view) = file.optional(name) else {
                return Ok(None);
            };
            let stored_as = files::element_of(view.dtype());
            let values = files::floats(&file, name, &view)?;
            Ok::<_, Failure>(Some(ExpectedTensor {
                name,
                values,
                stored_as,
            }))
        };
        let out = tensor(out_name)?.map(|out| ExpectedTensor {
            values: to_reference_order(
                &out.values,
                &layout.layout(layout.reorder(call.out().shape)),
            ),
            ..out
        });
        let lse = tensor(lse_name)?;
        if out.is_none() && lse.is_none() {
            // Neither is there: `required` says what is.
            file.required(out_name)?;
        }
        Ok(Expected {
            path: path.to_owned(),
            out,
            lse,
        })
    }

    fn compare<T: Element>(
        &self,
        inputs: &Inputs<T>,
        call: &Call,
        answer: &Answer<T>,
        console: &mut dyn Write,
    ) -> Result<(), Failure> {
        // The reference takes far longer than the call: its time is shown where somebody watches.
        let spinner = progress::spinner("computing the float64 reference");
        let mut expectation = inputs.expectation(call)?;
        spinner.finish_and_clear();
        let mut missed = Vec::new();
        if let Some(out) = &self.out {
            expectation = expectation.with_out(out.values.clone(), out.stored_as);
            let verdict = expectation.judge_out(&answer.out_in_reference_order());
            out.report(verdict, &mut missed, console)?;
        }
        if let Some(lse) = &self.lse {
            expectation = expectation.with_lse(lse.values.clone(), lse.stored_as);
            let verdict = expectation.judge_lse(&answer.lse);
            lse.report(verdict, &mut missed, console)?;
        }
        if missed.is_empty() {
            Ok(())
        } else {
            Err(Failure::Wrong(format!(
                "{} by more than is allowed from {}",
                match missed[..] {
                    [one] => format!("{one} differs"),
                    _ => format!("{} differ", missed.join(" and ")),
                },
                self.path.display()
            )))
        }
    }
}

impl ExpectedTensor {
    fn report(
        &self,
        verdict: Verdict,
        missed: &mut Vec<&'static str>,
        console: &mut dyn Write,
    ) -> Result<(), Failure> {
        say!(
            console,
            "compare  {} is {}as expected: largest error {:.2e}, at most {:.2} of what is allowed, over {} values",
            self.name,
            if verdict.passed { "" } else { "NOT " },
            verdict.max_error,
            verdict.worst.ratio(),
            self.values.len()
        )?;
        if !verdict.passed {
            missed.push(self.name);
        }
        Ok(())
    }
}
