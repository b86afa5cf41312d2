//! `warptile gen`: a file of random tensors.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use half::{bf16, f16};
use warptile::{AlibiShape, Align, Element, ElementType, Mask};

use crate::cases::{self, Buffer, Case, GRAMMAR, LayoutKind, Lengths};
use crate::failure::Failure;
use crate::files::{self, OutTensor};
use crate::inputs::to_reference_order;
use crate::output::Replacement;

/// Write a file with the random q, k and v of a problem, for `warptile run`.
///
/// Values are normally distributed and follow from the problem's seed. Prints the command that computes the problem.
#[derive(Debug, Args)]
#[command(after_help = GRAMMAR)]
pub(crate) struct GenArgs {
    /// The problem, such as "b2 q512 k512 h8 d64 f16 mask=causal"
    #[arg(value_name = "PROBLEM", value_parser = cases::parse)]
    case: Case,

    /// Write the tensors to this file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &GenArgs, console: &mut impl Write) -> Result<(), Failure> {
    let case = &args.case;
    if case.layout == LayoutKind::Gaps || case.unaligned {
        return Err(Failure::Input(
            "a file stores its tensors without gaps: leave out layout=gaps and unaligned".into(),
        ));
    }
    let file = Replacement::begin(&args.output)?;
    match case.element {
        ElementType::F16 => write::<f16>(case, file),
        ElementType::Bf16 => write::<bf16>(case, file),
        _ => write::<f32>(case, file),
    }?;
    writeln!(console, "wrote    {}", cases::without_seed(case))?;
    writeln!(console, "compute  {}", command(args))?;
    Ok(())
}

fn write<T: Element>(case: &Case, file: Replacement) -> Result<(), Failure> {
    let inputs = case.inputs::<T>();
    let cu_seqlens = case.cu_seqlens();
    let (queries, keys) = match &case.lengths {
        Lengths::Packed(lengths) => {
            let rows = |side: fn(&(usize, usize)) -> usize| Some(lengths.iter().map(side).sum());
            (rows(|lengths| lengths.0), rows(|lengths| lengths.1))
        }
        _ => (None, None),
    };
    let (q_shape, q) = dense(case, &inputs.q, queries);
    let (k_shape, k) = dense(case, &inputs.k, keys);
    let (_, v) = dense(case, &inputs.v, keys);
    let mut tensors = vec![
        OutTensor::new("q", q_shape, &q),
        OutTensor::new("k", k_shape.clone(), &k),
        OutTensor::new("v", k_shape, &v),
    ];
    if let Some((cu_q, cu_k)) = &cu_seqlens {
        tensors.push(OutTensor::offsets("cu_seqlens_q", cu_q));
        tensors.push(OutTensor::offsets("cu_seqlens_k", cu_k));
    }
    if let Some(slopes) = inputs.slopes() {
        let shape = match case.alibi {
            Some(AlibiShape::PerBatchHead) => vec![case.batch(), case.heads],
            _ => vec![case.heads],
        };
        tensors.push(OutTensor::new("alibi_slopes", shape, slopes));
    }
    files::write(file, &tensors)
}

/// A tensor as the file stores it: without what surrounds it, packed ones without the unused rows behind the last sequence
/// and without the batch of 1.
fn dense<T: Element>(
    case: &Case,
    buffer: &Buffer<T>,
    packed_rows: Option<usize>,
) -> (Vec<usize>, Vec<T>) {
    let [batch, rows, heads, head_dim] = buffer.layout.shape;
    let mut data = to_reference_order(&buffer.data[buffer.offset..], &buffer.layout);
    let rows = packed_rows.unwrap_or(rows);
    data.truncate(batch * rows * heads * head_dim);
    let shape = match case.layout {
        LayoutKind::Bhsd => {
            data = heads_before_rows(&data, [batch, rows, heads, head_dim]);
            vec![batch, heads, rows, head_dim]
        }
        _ => vec![batch, rows, heads, head_dim],
    };
    (shape[usize::from(packed_rows.is_some())..].to_vec(), data)
}

fn heads_before_rows<T: Copy>(data: &[T], [batch, rows, heads, head_dim]: [usize; 4]) -> Vec<T> {
    let mut moved = Vec::with_capacity(data.len());
    for b in 0..batch {
        for head in 0..heads {
            for row in 0..rows {
                let start = ((b * rows + row) * heads + head) * head_dim;
                moved.extend_from_slice(&data[start..start + head_dim]);
            }
        }
    }
    moved
}

/// How the problem is computed from the file.
fn command(args: &GenArgs) -> String {
    let case = &args.case;
    let side = |side: Option<u32>| side.map_or("-1".to_owned(), |keys| keys.to_string());
    let mut command = format!("warptile run {}", args.output.display());
    match case.mask {
        Mask::Causal {
            align: Align::TopLeft,
        } => command.push_str(" --causal=top-left"),
        Mask::Causal { .. } => command.push_str(" --causal"),
        Mask::Window { left, right } => {
            command.push_str(&format!(" --window {},{}", side(left), side(right)));
        }
        _ => {}
    }
    if let Some(scale) = case.scale {
        command.push_str(&format!(" --scale {scale}"));
    }
    if let Some(softcap) = case.softcap {
        command.push_str(&format!(" --softcap {softcap}"));
    }
    if case.layout == LayoutKind::Bhsd {
        command.push_str(" --layout bhsd");
    }
    command
}
