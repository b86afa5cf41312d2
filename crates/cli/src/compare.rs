//! `warptile compare`: how far the tensors, or the measured times, of two files are from each other.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use safetensors::tensor::TensorView;
use serde::Serialize;
use serde_json::json;

use crate::chart::{self, Bar};
use crate::failure::Failure;
use crate::files::Tensors;
use crate::records::{self, Compared, Comparison, Record};
use crate::text::say;
use crate::{cases, files, json, output, text};

/// Compare the tensors of two files (safetensors, .npz or .npy), or two records of `warptile bench --json`.
///
/// Tensors of the same name must have the same shape; their types may differ. The command fails if a tensor is in one file only, or if a
/// value differs by more than ATOL + RTOL * |value in B|. NaN equals only NaN.
///
/// With two .json files, A is the earlier record and B the later one. Each row of B is compared with the row of the same problem and
/// method in A. Differences in device, driver and program are printed. The command fails if a row of B is slower by more than the
/// tolerance.
#[derive(Debug, Args)]
#[command(after_help = cases::examples(&[
    "compare out.safetensors expected.safetensors --atol 1e-3",
    "compare before.json after.json --tolerance 5 --chart",
]))]
pub(crate) struct CompareArgs {
    /// The file to check, or the earlier record
    #[arg(value_name = "A")]
    a: PathBuf,

    /// The file with the expected values, or the later record
    #[arg(value_name = "B")]
    b: PathBuf,

    /// For tensors: allowed absolute difference [default: 0]
    #[arg(long, value_parser = tolerance)]
    atol: Option<f64>,

    /// For tensors: allowed difference relative to the value in B [default: 0]
    #[arg(long, value_parser = tolerance)]
    rtol: Option<f64>,

    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = records::percentage,
        help = format!("For records: percent by which a row of B may be slower [default: {}]", records::TOLERANCE)
    )]
    tolerance: Option<f64>,

    /// For records: draw the ratios as bars
    #[arg(long)]
    chart: bool,

    /// Write the differences to this file, as JSON; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<json::Target>,
}

/// The difference of one tensor's values.
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
    if let Some(json) = args.json.as_ref().and_then(json::Target::file) {
        output::refuse_replacing([&args.a, &args.b], json)?;
    }
    let (records, files) = match (is_record(&args.a), is_record(&args.b)) {
        (true, true) => (true, "records of times (.json)"),
        (false, false) => (false, "files of tensors"),
        _ => {
            return Err(Failure::Input(
                "a .json record of times can only be compared with another".into(),
            ));
        }
    };
    for (option, given, of_records) in [
        ("atol", args.atol.is_some(), false),
        ("rtol", args.rtol.is_some(), false),
        ("tolerance", args.tolerance.is_some(), true),
        ("chart", args.chart, true),
    ] {
        if given && of_records != records {
            let (a, b) = (args.a.display(), args.b.display());
            return Err(Failure::Input(format!(
                "--{option} says nothing about {files}: {a} and {b}"
            )));
        }
    }
    match records {
        true => self::records(args, console),
        false => tensors(args, console),
    }
}

/// An allowed difference, for command lines.
fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        // NaN is in no range.
        Ok(value) if (0.0..f64::INFINITY).contains(&value) => Ok(value),
        _ => Err("a tolerance is a finite number that is not negative".to_owned()),
    }
}

fn is_record(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "json")
}

fn records(args: &CompareArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let (a, b) = (Record::read(&args.a)?, Record::read(&args.b)?);
    for record in [&a, &b] {
        if record.cut_short {
            writeln!(
                console,
                "note     {} was cut short: rows are missing",
                text::path(&record.path)
            )?;
        }
    }
    write!(console, "{}", a.origin().differences(&b.origin()))?;
    let [before, now] = [&a, &b].map(|record| record.rows.iter().collect::<Vec<_>>());
    let comparison = Comparison::new(&before, &now, args.tolerance.unwrap_or(records::TOLERANCE));
    write!(console, "{}", comparison.table(text::columns()))?;
    if args.chart {
        let bars: Vec<Bar> = comparison
            .rows
            .iter()
            .map(|row| Bar {
                title: row.title(),
                value: row.ratio(),
                shown: format!("{:.3}", row.ratio()),
            })
            .collect();
        write!(console, "\n{}", chart::bars(&bars, text::columns()))?;
    }
    // The kernel is that of B, and the ratio is the speed of B over that of A.
    let row = |row: &Compared<'_>| {
        json!({
            "backend": row.now.backend, "problem": row.now.problem, "method": row.now.method, "kernel": row.now.kernel,
            "a_us": row.before.median_us, "b_us": row.now.median_us, "ratio": row.ratio(),
        })
    };
    json::write(&args.json, &Vec::from_iter(comparison.rows.iter().map(row)))?;
    comparison.verdict(&args.a)
}

fn tensors(args: &CompareArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let open = |path: &Path| Tensors::open(&[path.to_owned()]);
    let (mut a, mut b) = (open(&args.a)?, open(&args.b)?);
    // Alone in their files, tensors need not have one name: that of an .npy file is the file's.
    let alone = |file: &Tensors| {
        let mut names = file.names();
        let first = names.next().map(str::to_owned);
        first.filter(|_| names.next().is_none())
    };
    let both = alone(&a).zip(alone(&b));
    let in_b = |name: &str| match &both {
        Some((_, other)) => other.clone(),
        None => name.to_owned(),
    };
    let mut names: BTreeSet<String> = a.names().map(str::to_owned).collect();
    if both.is_none() {
        names.extend(b.names().map(str::to_owned));
    }
    a.load(|name, shape| b.shape(&in_b(name)) == Some(shape))?;
    b.load(|name, shape| {
        let in_a = both.as_ref().map_or(name, |(only, _)| only);
        a.shape(in_a) == Some(shape)
    })?;
    let mut wrong: Vec<&str> = Vec::new();
    let mut differences = Vec::new();
    for name in &names {
        let shown = text::name(name);
        let in_b = in_b(name);
        match (a.shape(name), b.shape(&in_b)) {
            (Some(in_a), Some(in_b)) if in_a == in_b => {}
            (Some(in_a), Some(in_b)) => {
                let (a, b) = (text::shape(in_a), text::shape(in_b));
                writeln!(console, "compare  {shown} has shape {a} and {b}")?;
                wrong.push(name);
                continue;
            }
            (in_a, _) => {
                let only = if in_a.is_some() { &args.a } else { &args.b };
                writeln!(console, "compare  {shown} is only in {}", text::path(only))?;
                wrong.push(name);
                continue;
            }
        }
        let (in_a, in_b) = (a.required(name)?, b.required(&in_b)?);
        let difference = difference(args, &shown, [(&a, &in_a), (&b, &in_b)])?;
        say!(
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
    json::write(&args.json, &differences)?;
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
    [a, b]: [(&Tensors, &TensorView<'_>); 2],
) -> Result<Difference, Failure> {
    let in_a = files::numbers(a.0, name, a.1)?;
    let in_b = files::numbers(b.0, name, b.1)?;
    let mut difference = Difference {
        tensor: name.to_owned(),
        values: in_a.len(),
        different: 0,
        beyond: 0,
        max: 0.0,
        rms: 0.0,
        index: 0,
    };
    let (atol, rtol) = (args.atol.unwrap_or(0.0), args.rtol.unwrap_or(0.0));
    let mut squares = 0.0;
    for (index, (&a, &b)) in in_a.iter().zip(&in_b).enumerate() {
        let apart = match a == b || (a.is_nan() && b.is_nan()) {
            true => continue,
            false => (a - b).abs(),
        };
        let apart = if apart.is_nan() { f64::INFINITY } else { apart };
        difference.different += 1;
        difference.beyond += usize::from(apart > atol + rtol * b.abs() || apart.is_infinite());
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
