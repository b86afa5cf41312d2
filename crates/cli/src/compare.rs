//! `warptile compare`: how far the tensors of two files are from each other.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use safetensors::tensor::TensorView;
use serde::Serialize;

use crate::failure::Failure;
use crate::{files, json, text};

/// Compare the tensors of two safetensors files.
///
/// Tensors of the same name must have the same shape; their types may differ. Fails if a tensor is in one file only, or if a
/// value differs by more than ATOL + RTOL * |value in B|. NaN equals NaN, and nothing else does.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    #[arg(value_name = "A.safetensors")]
    a: PathBuf,

    #[arg(value_name = "B.safetensors")]
    b: PathBuf,

    /// Absolute difference that is allowed
    #[arg(long, default_value_t = 0.0)]
    atol: f64,

    /// Difference relative to the value in B that is allowed
    #[arg(long, default_value_t = 0.0)]
    rtol: f64,

    /// Write the differences to this file, as JSON; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<json::Target>,
}

/// What one tensor's values differ by.
#[derive(Debug, Serialize)]
struct Difference {
    tensor: String,
    values: usize,
    /// Values that differ at all.
    different: usize,
    /// Values that differ by more than is allowed.
    beyond: usize,
    /// Infinite where one value is NaN or infinite and the other is not it.
    max: f64,
    rms: f64,
    /// Where the largest difference is, in storage order.
    index: usize,
}

/// Runs the command.
pub(crate) fn run(args: &CompareArgs, console: &mut dyn Write) -> Result<(), Failure> {
    for (option, value) in [("atol", args.atol), ("rtol", args.rtol)] {
        // NaN is neither.
        if !(value >= 0.0 && value.is_finite()) {
            return Err(Failure::Input(format!(
                "--{option} {value} is not a tolerance"
            )));
        }
    }
    if let Some(json) = &args.json {
        json.check()?;
    }
    let (a_bytes, b_bytes) = (files::read(&args.a)?, files::read(&args.b)?);
    let a = files::parse(&args.a, &a_bytes)?;
    let b = files::parse(&args.b, &b_bytes)?;
    let names: BTreeSet<&str> = a.names().into_iter().chain(b.names()).collect();
    let mut wrong: Vec<&str> = Vec::new();
    let mut differences = Vec::new();
    for name in names {
        let shown = text::name(name);
        let (in_a, in_b) = match (files::optional(&a, name), files::optional(&b, name)) {
            (Some(in_a), Some(in_b)) => (in_a, in_b),
            (in_a, _) => {
                let only = if in_a.is_some() { &args.a } else { &args.b };
                writeln!(console, "compare  {shown} is only in {}", only.display())?;
                wrong.push(name);
                continue;
            }
        };
        if in_a.shape() != in_b.shape() {
            let (a, b) = (text::shape(in_a.shape()), text::shape(in_b.shape()));
            writeln!(console, "compare  {shown} has shape {a} and {b}")?;
            wrong.push(name);
            continue;
        }
        let difference = difference(args, &shown, &in_a, &in_b)?;
        writeln!(
            console,
            "compare  {shown}: {} of {} values differ, {} by more than is allowed; largest difference {:.2e} at {}, rms {:.2e}",
            difference.different,
            difference.values,
            difference.beyond,
            difference.max,
            difference.index,
            difference.rms
        )?;
        if difference.beyond > 0 {
            wrong.push(name);
        }
        differences.push(difference);
    }
    if let Some(json) = &args.json {
        json.write(&differences)?;
    }
    match wrong.len() {
        0 => Ok(()),
        _ => Err(Failure::Wrong(format!(
            "{} and {} differ in {}",
            args.a.display(),
            args.b.display(),
            text::names(wrong)
        ))),
    }
}

fn difference(
    args: &CompareArgs,
    name: &str,
    a: &TensorView<'_>,
    b: &TensorView<'_>,
) -> Result<Difference, Failure> {
    let in_a = files::numbers(&args.a, name, a)?;
    let in_b = files::numbers(&args.b, name, b)?;
    let mut difference = Difference {
        tensor: name.to_owned(),
        values: in_a.len(),
        different: 0,
        beyond: 0,
        max: 0.0,
        rms: 0.0,
        index: 0,
    };
    let mut squares = 0.0;
    for (index, (&a, &b)) in in_a.iter().zip(&in_b).enumerate() {
        let apart = match a == b || (a.is_nan() && b.is_nan()) {
            true => continue,
            false => (a - b).abs(),
        };
        let apart = if apart.is_nan() { f64::INFINITY } else { apart };
        difference.different += 1;
        difference.beyond +=
            usize::from(apart > args.atol + args.rtol * b.abs() || apart.is_infinite());
        squares += apart * apart;
        if apart > difference.max {
            (difference.max, difference.index) = (apart, index);
        }
    }
    if difference.values > 0 {
        difference.rms = (squares / difference.values as f64).sqrt();
    }
    Ok(difference)
}
