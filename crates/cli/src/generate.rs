//! `warptile gen`: a file of random tensors.

use std::fmt;
use std::io::Write;
use std::path::{PathBuf, is_separator};
use std::str::FromStr;

use clap::Args;
use safetensors::Dtype;
use warptile::kernels::{Count, Kind, Operations};
use warptile::spec::Operand;
use warptile::{Element, Layout, Splits, with_element};
use warptile_check::{Buffer, Case, Data, LayoutKind, quantize};

use crate::cases;
use crate::failure::Failure;
use crate::files::{self, Format, OutTensor};
use crate::inputs::to_reference_order;
use crate::options;
use crate::output::{self, Replacement};
use crate::progress;
use crate::run;
use crate::tensors::Settings;
use crate::text;

/// Write a file with random q, k and v of a problem for `warptile run`, or with a paged cache for pages=N.
///
/// All values follow from the problem's seed. The command that computes the problem is printed.
#[derive(Debug, Args)]
#[command(after_help = cases::help(&[
    "gen \"b2 q512 k512 h8 d64 f16 mask=causal\" -o qkv.safetensors",
    "gen \"q100 k100 h4 d64 f32\" -o qkv.npz --expected expected.npz",
    "gen \"q1 k4096 h8 d128 bf16\" -o qkv.safetensors --values outliers:50",
    "gen \"b4 q1 k4096 h32/8 d128 bf16 pages=16 cache=e4m3\" -o step.safetensors",
]))]
pub(crate) struct GenArgs {
    /// The problem, such as "b2 q512 k512 h8 d64 f16 mask=causal"
    #[arg(value_name = "PROBLEM", value_parser = cases::parse_attention)]
    case: Case,

    /// Write the tensors to this file (.npz, or safetensors with any other end of its name), or to .npy files in this folder, which must
    /// exist
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Distribution of the values of q, k and v: normal:STD, uniform:LARGEST or outliers:TIMES
    ///
    /// uniform: from -LARGEST to LARGEST. outliers: standard normal, except that one value in 128 is multiplied by TIMES, as in some
    /// activations of language models. The numbers default to 1, 1 and 30.
    #[arg(long, value_name = "DISTRIBUTION", default_value_t = Values::Normal(1.0))]
    values: Values,

    /// Write the float64 results to this file, for `warptile run --expect`
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,
}

/// The distribution of q, k and v.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Values {
    /// With this standard deviation.
    Normal(f64),
    /// Up to this absolute value.
    Uniform(f64),
    /// Standard normal, except for a few values that are multiplied by this factor.
    Outliers(f64),
}

/// One value in this many is an outlier.
const OUTLIERS: u64 = 128;

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, number.parse().ok()),
            None => (text, Some(if text == "outliers" { 30.0 } else { 1.0 })),
        };
        let number = number.filter(|number: &f64| number.is_finite() && *number >= 0.0);
        match (name, number) {
            ("normal", Some(deviation)) => Ok(Values::Normal(deviation)),
            ("uniform", Some(largest)) => Ok(Values::Uniform(largest)),
            ("outliers", Some(times)) => Ok(Values::Outliers(times)),
            _ => Err("it is normal, uniform or outliers, such as normal:3".to_owned()),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Normal(deviation) => write!(f, "normal:{deviation}"),
            Values::Uniform(largest) => write!(f, "uniform:{largest}"),
            Values::Outliers(times) => write!(f, "outliers:{times}"),
        }
    }
}

impl Values {
    /// Gives a tensor of standard normal numbers this distribution. NaN, which is where no row is, stays.
    fn apply<T: Element>(self, buffer: &mut Buffer<T>, seed: u64) {
        for (index, value) in buffer.data.iter_mut().enumerate() {
            let normal = value.to_f64();
            if normal.is_nan() || self == Values::Normal(1.0) {
                continue;
            }
            let random = mixed(mixed(seed) ^ index as u64);
            *value = T::from_f64(match self {
                Values::Normal(deviation) => normal * deviation,
                Values::Uniform(largest) => {
                    // 53 random bits, from -1 to 1.
                    let part = (random >> 11) as f64 / (1_u64 << 52) as f64 - 1.0;
                    part * largest
                }
                Values::Outliers(times) if random.is_multiple_of(OUTLIERS) => normal * times,
                Values::Outliers(_) => normal,
            });
        }
    }
}

/// The mixing function of SplitMix64: 64 random bits for each number.
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Runs the command.
pub(crate) fn run(args: &GenArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let case = &args.case;
    let dense = matches!(case.layout, LayoutKind::Bshd | LayoutKind::Bhsd);
    if !dense || case.unaligned || case.lists().get(Operand::QueryLengths).is_some() {
        return Err(Failure::Input(
            "a file stores all rows without gaps: leave out layout=gaps, layout=interleaved, unaligned, and used queries".into(),
        ));
    }
    for path in std::iter::once(&args.output).chain(&args.expected) {
        if Format::of(path) == Format::Npy {
            return Err(Failure::Input(format!(
                "{}: an .npy file holds one tensor; an .npz file or a folder holds all",
                path.display()
            )));
        }
    }
    let is_folder = args.output.to_string_lossy().ends_with(is_separator);
    if is_folder && !args.output.is_dir() {
        return Err(Failure::Input(format!(
            "{}: there is no such folder; one for .npy files must exist",
            args.output.display()
        )));
    }
    let is_output = |path: &PathBuf| output::is_same_file(path, &args.output);
    if args.expected.as_ref().is_some_and(is_output) {
        return Err(Failure::Input("inputs and results need two files".into()));
    }
    if args.expected.is_some() {
        case.check_reference()?;
    }
    let file = match args.output.is_dir() {
        true => None,
        false => Some(Replacement::begin(&args.output)?),
    };
    let expected = match &args.expected {
        Some(path) => Some(Replacement::begin(path)?),
        None => None,
    };
    let inputs = with_element!(case.element, T => write::<T>(args, file))?;
    writeln!(
        console,
        "wrote    {} to {}",
        cases::without_seed(case),
        text::path(&args.output)
    )?;
    let mut command = command(case, &inputs);
    if let (Some(file), Some(path)) = (expected, &args.expected) {
        write_expected(args, &inputs, file)?;
        writeln!(
            console,
            "wrote    the results in float64 to {}",
            text::path(path)
        )?;
        command.push_str(&format!(" --expect {}", text::quoted(path)));
    }
    writeln!(console, "compute  {command}")?;
    Ok(())
}

/// Computes the file that was just written as `warptile run` would, but in float64.
fn write_expected(args: &GenArgs, inputs: &[PathBuf], file: Replacement) -> Result<(), Failure> {
    let layout = match args.case.layout {
        LayoutKind::Bhsd => options::LayoutKind::Bhsd,
        _ => options::LayoutKind::Bshd,
    };
    let settings = Settings {
        scoring: args.case.scoring,
        splits: args.case.splits,
    };
    let (inputs, element) = files::open_inputs(inputs)?;
    with_element!(element, T => {
        let inputs = files::read_inputs::<T>(&inputs, layout)?;
        let call = inputs.call(&settings)?;
        let spinner = progress::spinner("computing the float64 reference");
        let expectation = inputs.expectation(&call)?;
        spinner.finish_and_clear();
        // The reference has its rows in the order [batch, length, heads, head size].
        let [batch, rows, heads, head_dim] = call.out().shape;
        let row = heads * head_dim;
        let out = match layout {
            options::LayoutKind::Bshd => expectation.out().to_vec(),
            options::LayoutKind::Bhsd => to_reference_order(
                expectation.out(),
                &Layout::new([batch, heads, rows, head_dim], [rows * row, head_dim, row, 1]),
            ),
        };
        let (out_name, lse_name) = run::expected_names(&call);
        files::write(
            file,
            &[
                OutTensor::new(out_name, Dtype::F64, run::out_shape(layout, &call), &out),
                OutTensor::new(
                    lse_name,
                    Dtype::F64,
                    run::lse_shape(&call),
                    expectation.lse(),
                ),
            ],
        )
    })
}

/// Makes the tensors and writes them to `file`, or without one to a folder; the files that have them.
fn write<T: Element>(args: &GenArgs, file: Option<Replacement>) -> Result<Vec<PathBuf>, Failure> {
    let (case, values) = (&args.case, args.values);
    let mut inputs = case.inputs::<T>();
    // Quantized keys and values have the distribution before they are divided by their scales.
    if case.quantized.is_some() {
        let wide = Case {
            quantized: None,
            ..case.clone()
        };
        let wide = wide.inputs::<T>();
        (inputs.k, inputs.v) = (wide.k, wide.v);
    }
    let tensors = [&mut inputs.q, &mut inputs.k, &mut inputs.v];
    for (number, tensor) in (0..).zip(tensors) {
        values.apply(tensor, mixed(case.seed) ^ number);
    }
    for (operand, scale, tensor) in [
        (Operand::K, Operand::KScale, &mut inputs.k),
        (Operand::V, Operand::VScale, &mut inputs.v),
    ] {
        let scales = inputs.others[scale].as_ref().and_then(Data::floats);
        if let Some((element, scales)) = case.quantized.zip(scales) {
            let bits = quantize(element, tensor, scales);
            inputs.others[operand] = Some(Data::Bytes(bits));
        }
    }
    let lists = case.lists();
    let rows = |operand| {
        let end = lists.get(operand)?.last();
        end.and_then(|&end| usize::try_from(end).ok())
    };
    let mut tensors = Vec::new();
    for operand in Operand::of(Operations::FORWARD) {
        let stored = match (operand, case.pages) {
            (Operand::K, Some(_)) => Operand::KPages,
            (Operand::V, Some(_)) => Operand::VPages,
            _ => operand,
        };
        let name = files::name_of(stored);
        let (buffer, packed_rows) = match operand {
            Operand::Q => (Some(&inputs.q), rows(Operand::QueryOffsets)),
            Operand::K => (Some(&inputs.k), rows(Operand::KeyOffsets)),
            Operand::V => (Some(&inputs.v), rows(Operand::KeyOffsets)),
            _ => (None, None),
        };
        let of_queries = files::dtype_of(T::TYPE);
        let tensor = match (&inputs.others[operand], buffer, lists.get(operand)) {
            (Some(Data::Bytes(bits)), Some(_), _) => {
                let (shape, bits) = dense(case, bits, packed_rows);
                let dtype = files::dtype_of(case.quantized.unwrap_or(case.element));
                OutTensor::new(name, dtype, shape, &bits).into_owned()
            }
            (_, Some(buffer), _) => {
                let (shape, elements) = dense(case, buffer, packed_rows);
                OutTensor::new(name, of_queries, shape, &elements).into_owned()
            }
            (Some(Data::Elements(buffer)), ..) => {
                let (shape, elements) = heads_first(buffer);
                OutTensor::new(name, of_queries, shape, &elements).into_owned()
            }
            (Some(Data::Singles(buffer)), ..) => {
                let (shape, elements) = heads_first(buffer);
                OutTensor::new(name, Dtype::F32, shape, &elements).into_owned()
            }
            (Some(Data::Bytes(buffer)), ..) => {
                let (shape, bytes) = heads_first(buffer);
                OutTensor::new(name, Dtype::U8, shape, &bytes).into_owned()
            }
            (Some(Data::Floats(values)), ..) => {
                let shape = match operand.kind() == Kind::List(Count::Slopes) {
                    true if values.len() > case.heads.query => {
                        vec![case.batch(), case.heads.query]
                    }
                    _ => vec![values.len()],
                };
                OutTensor::new(name, Dtype::F32, shape, values)
            }
            (None, None, Some(list)) => {
                OutTensor::new(name, Dtype::I32, lists.shape(operand), list)
            }
            (None, None, None) => continue,
        };
        tensors.push(tensor);
    }
    let Some(file) = file else {
        let each = tensors.iter().map(|tensor| {
            let path = args.output.join(format!("{}.npy", tensor.name()));
            files::write(Replacement::begin(&path)?, std::slice::from_ref(tensor))?;
            Ok(path)
        });
        return each.collect();
    };
    files::write(file, &tensors)?;
    Ok(vec![args.output.clone()])
}

/// A tensor as the file stores it: without what surrounds it, packed ones without the unused rows behind the last sequence
/// and without the batch of 1.
fn dense<T: Copy>(
    case: &Case,
    buffer: &Buffer<T>,
    packed_rows: Option<usize>,
) -> (Vec<usize>, Vec<T>) {
    let mut layout = buffer.layout;
    layout.shape[1] = packed_rows.unwrap_or(layout.rows());
    let [batch, rows, heads, head_dim] = layout.shape;
    let (shape, data) = match case.layout {
        LayoutKind::Bhsd => heads_first(&Buffer {
            layout,
            ..buffer.clone()
        }),
        _ => (
            vec![batch, rows, heads, head_dim],
            to_reference_order(buffer.elements(), &layout),
        ),
    };
    (shape[usize::from(packed_rows.is_some())..].to_vec(), data)
}

/// Shape and elements in the order `[batch, heads, rows, last dimension]`.
fn heads_first<T: Copy>(buffer: &Buffer<T>) -> (Vec<usize>, Vec<T>) {
    let [batch, rows, heads, last] = buffer.layout.shape;
    let [by_batch, by_row, by_head, by_last] = buffer.layout.strides;
    let swapped = Layout::new(
        [batch, heads, rows, last],
        [by_batch, by_head, by_row, by_last],
    );
    (
        swapped.shape.to_vec(),
        to_reference_order(buffer.elements(), &swapped),
    )
}

/// How the problem is computed from its files.
fn command(case: &Case, inputs: &[PathBuf]) -> String {
    let inputs: Vec<String> = inputs.iter().map(|path| text::quoted(path)).collect();
    let mut command = format!("warptile run {}", inputs.join(" "));
    for word in case.scoring.to_string().split(' ') {
        match word.split_once('=') {
            Some(("mask", "causal")) => command.push_str(" --causal"),
            Some(("mask", mask)) => {
                let window = mask.strip_prefix("window,").unwrap_or(mask);
                command.push_str(&format!(" --window {window}"));
            }
            // Those with an operand are tensors of the file.
            Some((option, value)) if Operand::of_scores().all(|of| of.word() != Some(option)) => {
                command.push_str(&format!(" --{option} {value}"));
            }
            _ => {}
        }
    }
    if case.splits != Splits::Even {
        command.push_str(&format!(" --splits {}", case.splits));
    }
    if case.layout == LayoutKind::Bhsd {
        command.push_str(" --layout bhsd");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &str) -> Vec<f64> {
        let case: Case = "q512 k1 d64 f32 seed=3".parse().unwrap();
        let mut q = case.inputs::<f32>().q;
        values.parse::<Values>().unwrap().apply(&mut q, 7);
        let values = q.data.iter().filter(|x| !x.is_nan());
        values.map(|x| f64::from(*x)).collect()
    }

    #[test]
    fn values_are_distributed_as_asked() {
        let rms = |values: &[f64]| {
            (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt()
        };
        let largest = |values: &[f64]| values.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
        assert!((rms(&of("normal")) - 1.0).abs() < 0.02);
        assert!((rms(&of("normal:3")) - 3.0).abs() < 0.06);
        let uniform = of("uniform:2");
        assert!((rms(&uniform) - 2.0 / 3_f64.sqrt()).abs() < 0.02);
        assert!(largest(&uniform) <= 2.0 && largest(&uniform) > 1.99);
        let (plain, outliers) = (of("normal"), of("outliers:100"));
        assert_eq!(plain.len(), outliers.len());
        let changed = plain.iter().zip(&outliers).filter(|(a, b)| a != b).count();
        assert!((128..512).contains(&changed), "{changed}");
        assert!(largest(&outliers) > 100.0);
        for text in [
            "",
            "gauss",
            "normal:",
            "normal:x",
            "uniform:-1",
            "normal:inf",
        ] {
            assert!(text.parse::<Values>().is_err(), "{text}");
        }
        assert_eq!(
            "outliers".parse::<Values>().unwrap().to_string(),
            "outliers:30"
        );
    }
}
