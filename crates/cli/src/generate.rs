//! `warptile gen`: a file of random tensors.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use half::{bf16, f16};
use warptile::{AlibiShape, Element, ElementType, Layout};
use warptile_check::{Buffer, Case, LayoutKind};

use crate::cases::{self, GRAMMAR};
use crate::failure::Failure;
use crate::files::{self, OutTensor};
use crate::inputs::to_reference_order;
use crate::output::Replacement;

/// Write a file with the random q, k and v of a problem, for `warptile run`; with pages=N a paged cache.
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
pub(crate) fn run(args: &GenArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let case = &args.case;
    let dense = matches!(case.layout, LayoutKind::Bshd | LayoutKind::Bhsd);
    if !dense || case.unaligned || case.lists().query_lengths.is_some() {
        return Err(Failure::Input(
            "a file stores all rows without gaps: leave out layout=gaps, layout=interleaved, unaligned, and used queries".into(),
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
    let lists = case.lists();
    let rows = |offsets: &Option<Vec<i32>>| {
        let end = offsets.as_ref()?.last();
        end.and_then(|&end| usize::try_from(end).ok())
    };
    let (q_shape, q) = dense(case, &inputs.q, rows(&lists.query_offsets));
    let (k_shape, k) = dense(case, &inputs.k, rows(&lists.key_offsets));
    let (_, v) = dense(case, &inputs.v, rows(&lists.key_offsets));
    let (k_name, v_name) = match case.pages {
        Some(_) => ("k_pages", "v_pages"),
        None => ("k", "v"),
    };
    let mut tensors = vec![
        OutTensor::new("q", q_shape, &q),
        OutTensor::new(k_name, k_shape.clone(), &k),
        OutTensor::new(v_name, k_shape, &v),
    ];
    for (name, list) in [
        ("cu_seqlens_q", &lists.query_offsets),
        ("cu_seqlens_k", &lists.key_offsets),
        ("key_lengths", &lists.key_lengths),
    ] {
        if let Some(list) = list {
            tensors.push(OutTensor::integers(name, vec![list.len()], list));
        }
    }
    if let Some(table) = &lists.block_table {
        let shape = table.layout.shape.to_vec();
        tensors.push(OutTensor::integers("block_table", shape, &table.entries));
    }
    if let Some(slopes) = &inputs.slopes {
        let shape = match case.scoring.alibi {
            Some(AlibiShape::PerBatchHead) => vec![case.batch(), case.heads],
            _ => vec![case.heads],
        };
        tensors.push(OutTensor::new("alibi_slopes", shape, slopes));
    }
    if let Some(sinks) = &inputs.sinks {
        tensors.push(OutTensor::new("sinks", vec![case.heads], sinks));
    }
    let bias = inputs.bias.as_ref().map(heads_first);
    if let Some((shape, bias)) = &bias {
        tensors.push(OutTensor::new("bias", shape.clone(), bias));
    }
    let key_mask = inputs.key_mask.as_ref().map(heads_first);
    if let Some((shape, key_mask)) = &key_mask {
        tensors.push(OutTensor::mask(shape.clone(), key_mask));
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

/// How the problem is computed from the file.
fn command(args: &GenArgs) -> String {
    let case = &args.case;
    let mut command = format!("warptile run {}", args.output.display());
    for word in case.scoring.to_string().split(' ') {
        match word.split_once('=') {
            Some(("mask", "causal")) => command.push_str(" --causal"),
            Some(("mask", "causal-top-left")) => command.push_str(" --causal=top-left"),
            Some(("mask", mask)) => {
                let window = mask.strip_prefix("window,").unwrap_or(mask);
                command.push_str(&format!(" --window {window}"));
            }
            Some((option @ ("scale" | "softcap"), value)) => {
                command.push_str(&format!(" --{option} {value}"));
            }
            // The rest are tensors of the file.
            _ => {}
        }
    }
    if case.layout == LayoutKind::Bhsd {
        command.push_str(" --layout bhsd");
    }
    command
}
