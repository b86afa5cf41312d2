//! `warptile report`: a page for people from the JSON of `bench` and `verify`.

mod speeds;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use self::speeds::Speeds;
use crate::failure::Failure;
use crate::machine::{self, PROGRAM};
use crate::output::{self, Replacement};
use crate::records::Record;
use crate::verify::totals::{FailedProblem, ImageTotals, Worst};
use crate::{cases, json, text};

/// Make an HTML page from records that `bench --json` and `verify --json` wrote.
///
/// The page begins with a summary. Then come the speeds of all records, ours and those of peers together for each problem, and what
/// `verify` checked. It needs no network and no script. If a file is not such a record, nothing is written, and the error lists the files
/// that are.
#[derive(Debug, Args)]
#[command(after_help = cases::examples(&[
    "bench --file problems.txt --json bench.json",
    "verify --json verify.json",
    "report bench.json verify.json -o report.html",
]))]
pub(crate) struct ReportArgs {
    /// Records to show
    #[arg(value_name = "RECORD.json", required = true)]
    records: Vec<PathBuf>,

    /// Write the page to this file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// The part of a record of `verify` that a page shows.
#[derive(Debug, Deserialize)]
struct Verification {
    device: String,
    driver: String,
    #[serde(default)]
    program: String,
    date: String,
    devices: Option<String>,
    #[serde(default)]
    cut_short: bool,
    count: u64,
    passed: u64,
    failed: u64,
    seconds: f64,
    #[serde(default)]
    coverage: BTreeMap<String, BTreeMap<String, u64>>,
    worst_out: Option<Worst>,
    worst_lse: Option<Worst>,
    images: BTreeMap<String, ImageTotals>,
    failures: Vec<FailedProblem>,
}

/// Either kind of record.
enum Content {
    Measured(Record),
    Verified(Box<Verification>),
}

/// Runs the command.
pub(crate) fn run(args: &ReportArgs, console: &mut dyn Write) -> Result<(), Failure> {
    output::refuse_replacing(&args.records, &args.output)?;
    let file = Replacement::begin(&args.output)?;
    let contents = read_all(&args.records)?;
    let measured = contents.iter().filter_map(|(_, content)| match content {
        Content::Measured(record) => Some(record),
        Content::Verified(_) => None,
    });
    let speeds = Speeds::of(measured);
    let (mut origins, mut checks) = (String::new(), String::new());
    for (path, content) in &contents {
        match content {
            Content::Measured(record) => origins += &origin(path, record),
            Content::Verified(verification) => {
                origins += &summary(path, verification);
                checks += &verified(path, verification);
            }
        }
    }
    let (summary, sections) = (speeds.summary(), speeds.sections());
    let date = machine::utc(std::time::SystemTime::now());
    let page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>warptile report</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>warptile report</h1>\n{summary}<ul>\n{origins}</ul>\n{sections}{checks}\
         <footer>Made by {} at {}.</footer>\n</body>\n</html>\n",
        escaped(PROGRAM),
        escaped(&date)
    );
    file.finish(page.as_bytes())?;
    writeln!(console, "wrote    {}", text::path(&args.output))?;
    Ok(())
}

const STYLE: &str = "\
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a1a1a; background: #fff }
h2 { margin-top: 3rem }
h2, p, li { overflow-wrap: anywhere }
ul { padding-left: 1.2rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid #ddd; vertical-align: top }
th.number, td.number { text-align: right; white-space: nowrap }
td.problem { min-width: 16rem }
svg { display: block; width: 100%; min-width: 6rem; height: 1rem }
rect { fill: #1f6f50 }
rect.peer { fill: #9a9a9a }
.bad { color: #a40000; font-weight: 600 }
footer { margin: 3rem 0; color: #555 }
@media (max-width: 66rem) { body { font-size: 14px; margin: 1rem auto } tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid #ddd }
  th, td { flex: 1 1 3.6rem; min-width: 0; padding: 0.2rem 0.4rem 0.2rem 0; border: 0 } td { overflow-wrap: anywhere } th.number { white-space: normal }
  th:nth-last-child(2), td:nth-last-child(2) { flex-basis: 5.6rem } .problem, .name { flex-basis: 100% } td.same { display: none } svg { width: 100% } }
@media (prefers-color-scheme: dark) { body { color: #e8e8e8; background: #161616 } th, td, tr { border-color: #444 } rect { fill: #58b58c }
  rect.peer { fill: #777 } .bad { color: #ff8080 } footer { color: #aaa } }
";

fn read(path: &Path) -> Result<Content, Failure> {
    let value: serde_json::Value = json::read(path)?;
    // Only a verification counts what passed.
    if value.get("passed").is_none() {
        return Record::read(path).map(Content::Measured);
    }
    let verification = serde_json::from_value(value);
    let verification = verification.map_err(|source| Failure::json(path, source))?;
    Ok(Content::Verified(Box::new(verification)))
}

/// All records, or an error that says which of them fit.
fn read_all(paths: &[PathBuf]) -> Result<Vec<(&PathBuf, Content)>, Failure> {
    let (mut contents, mut refused) = (Vec::new(), Vec::new());
    for path in paths {
        match read(path) {
            Ok(content) => contents.push((path, content)),
            Err(Failure::Json { source, .. }) => refused.push((path, source)),
            Err(failure) => return Err(failure),
        }
    }
    let named = |what: &str, paths: &mut dyn Iterator<Item = &PathBuf>| {
        let names: Vec<String> = paths.map(|path| path.display().to_string()).collect();
        match names.is_empty() {
            true => String::new(),
            false => format!("; {what}: {}", names.join(" ")),
        }
    };
    match &refused[..] {
        [] => Ok(contents),
        [(path, source), others @ ..] => Err(Failure::Format {
            path: path.to_path_buf(),
            kind: "a record of `bench --json` or `verify --json`",
            reason: format!(
                "{}{}{}",
                text::message(&source.to_string()),
                named(
                    "also not such records",
                    &mut others.iter().map(|(path, _)| *path)
                ),
                named(
                    "records that fit",
                    &mut contents.iter().map(|(path, _)| *path)
                )
            ),
        }),
    }
}

/// Text with nothing in it that a browser would act on.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// A table. Columns whose head begins with `#` hold numbers; cells are HTML. The cell of a problem is empty where it is the one above.
/// On a narrow screen problems, long names and bars of speed have lines of their own.
fn html_table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let class = |column: usize, cell: &str| match (head[column], cell) {
        (title, _) if title.starts_with('#') => " class=\"number\"",
        ("problem", "") => " class=\"problem same\"",
        ("problem", _) => " class=\"problem\"",
        ("kernel" | "image" | "device" | "measured" | "TFLOP/s" | "TB/s", _) => " class=\"name\"",
        _ => "",
    };
    let mut html = "<div class=\"scroll\"><table>\n<tr>".to_owned();
    // Writing to a string can't fail, here and below.
    for (column, title) in head.iter().enumerate() {
        let _ = write!(
            html,
            "<th{}>{}</th>",
            class(column, title),
            title.trim_start_matches('#')
        );
    }
    html.push_str("</tr>\n");
    for row in rows {
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(html, "<td{}>{cell}</td>", class(column, cell));
        }
        html.push_str("</tr>\n");
    }
    html + "</table></div>\n"
}

/// A part of the largest value, drawn.
fn bar(value: f64, largest: f64, class: &str) -> String {
    let width = match largest > 0.0 {
        true => 100.0 * value / largest,
        false => 0.0,
    };
    format!(
        "<svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{width:.0}% of the largest\">\
         <rect class=\"{class}\" width=\"{width:.2}\" height=\"10\"/></svg>"
    )
}

fn cut_short(is: bool) -> &'static str {
    match is {
        true => "<p class=\"bad\">This record was cut short: something is missing.</p>",
        false => "",
    }
}

/// A line about a record.
fn origin(path: &Path, record: &Record) -> String {
    let origin = record.origin();
    let words = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(", ");
    let driver = words(&origin.driver);
    let date = record.rows.iter().map(|row| &row.date[..]).max();
    let parts = [
        text::count(record.rows.len() as u64, "time"),
        words(&origin.device),
        if driver.is_empty() {
            driver
        } else {
            format!("driver {driver}")
        },
        words(&origin.program),
        date.unwrap_or_default().to_owned(),
    ];
    let known: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    format!(
        "<li>{}: {}.{}</li>\n",
        escaped(&path.display().to_string()),
        escaped(&known.join("; ")),
        cut_short(record.cut_short)
    )
}

/// A line about a verification.
fn summary(path: &Path, of: &Verification) -> String {
    format!(
        "<li>{}: <b>{} of {}</b> random problems passed; {}; driver {}; {}; {}.</li>\n",
        escaped(&path.display().to_string()),
        of.passed,
        of.count,
        escaped(&of.device),
        escaped(&of.driver),
        escaped(&of.program),
        escaped(&of.date)
    )
}

/// A section with what passed, how near to the bounds, and what was covered.
fn verified(path: &Path, of: &Verification) -> String {
    let mut html = format!(
        "<section>\n<h2>Checks: {}</h2>\n<p>{}; driver {}; {}; {}.</p>\n{}",
        escaped(&path.display().to_string()),
        escaped(&of.device),
        escaped(&of.driver),
        escaped(&of.program),
        escaped(&of.date),
        cut_short(of.cut_short)
    );
    let failed = match of.failed {
        0 => "none failed".to_owned(),
        count => format!("<span class=\"bad\">{count} failed</span>"),
    };
    let _ = writeln!(
        html,
        "<p>{} random problems against float64 in {:.1} s: {} passed, {failed}.</p>",
        of.count, of.seconds, of.passed
    );
    // Of results without an image.
    let place = of.devices.as_deref().unwrap_or("cpu");
    let worst = [("out", &of.worst_out), ("lse", &of.worst_lse)];
    let worst = worst.into_iter().filter_map(|(what, worst)| {
        let worst = worst.as_ref()?;
        Some(vec![
            escaped(&worst.problem),
            escaped(worst.image.as_deref().unwrap_or(place)),
            what.to_owned(),
            format!("{:.1e}", worst.error.error),
            format!("{:.1e}", worst.error.bound),
            format!("{:.2}", worst.ratio),
            bar(worst.ratio, 1.0, ""),
        ])
    });
    html.push_str("<h3>Results nearest to their bounds</h3>\n");
    let head = [
        "problem",
        "image",
        "result",
        "#error",
        "#bound",
        "#ratio",
        "of the bound",
    ];
    html.push_str(&html_table(&head, worst));
    if !of.failures.is_empty() {
        let failures = of.failures.iter();
        let failures = failures.map(|one| vec![escaped(&one.problem), escaped(&one.reason)]);
        html.push_str("<h3>Failures</h3>\n");
        html.push_str(&html_table(&["problem", "reason"], failures));
    }
    if !of.coverage.is_empty() {
        html.push_str("<h3>What was drawn</h3>\n");
        for (what, counts) in [
            ("family", "families"),
            ("element type", "elements"),
            ("feature", "features"),
            ("head size", "head_dims"),
        ] {
            let Some(counts) = of.coverage.get(counts) else {
                continue;
            };
            let largest = counts.values().copied().max().unwrap_or(0) as f64;
            let mut counts: Vec<_> = counts.iter().collect();
            // Head sizes by number, not as text.
            counts.sort_by_key(|(name, _)| (name.parse::<u64>().unwrap_or(0), (*name).clone()));
            let rows = counts.into_iter().map(|(name, &count)| {
                let class = if count == 0 { " class=\"bad\"" } else { "" };
                vec![
                    format!("<span{class}>{}</span>", escaped(name)),
                    count.to_string(),
                    bar(count as f64, largest, ""),
                ]
            });
            html.push_str(&html_table(&[what, "#problems", ""], rows));
        }
    }
    if !of.images.is_empty() {
        html.push_str("<h3>Images</h3>\n");
        let rows = of.images.iter().map(|(name, image)| {
            vec![
                escaped(name),
                image.passed.to_string(),
                image.failed.to_string(),
            ]
        });
        html.push_str(&html_table(&["image", "#passed", "#failed"], rows));
    }
    html + "</section>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_record_becomes_part_of_the_page() {
        assert_eq!(
            escaped("<script>'a' & \"b\"\u{1b}"),
            "&lt;script&gt;&#39;a&#39; &amp; &quot;b&quot; "
        );
    }

    #[test]
    fn the_problem_above_is_not_said_again() {
        let rows = [["b1 q1", "mma", "1.0"], ["", "wmma", "2.0"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let html = html_table(&["problem", "kernel", "#median us"], rows.into_iter());
        for cell in [
            "<th class=\"problem\">problem</th><th class=\"name\">kernel</th><th class=\"number\">median us</th>",
            "<td class=\"problem\">b1 q1</td><td class=\"name\">mma</td><td class=\"number\">1.0</td>",
            "<td class=\"problem same\"></td><td class=\"name\">wmma</td><td class=\"number\">2.0</td>",
        ] {
            assert!(html.contains(cell), "{cell}: {html}");
        }
    }

    #[test]
    fn a_bar_is_a_part_of_the_largest() {
        assert!(bar(1.0, 4.0, "").contains("width=\"25.00\""));
        assert!(bar(0.0, 0.0, "").contains("width=\"0.00\""));
    }
}
