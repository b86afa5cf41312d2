//! `warptile report`: a page for people from the JSON of `bench` and `verify`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use crate::bench::row::Row;
use crate::bench::table;
use crate::cases;
use crate::failure::Failure;
use crate::json;
use crate::machine::{self, PROGRAM};
use crate::output::Replacement;
use crate::records::Record;
use crate::verify::totals::{FailedProblem, ImageTotals, Worst};

/// Make an HTML page from records that `bench --json` and `verify --json` wrote.
///
/// The page has a section for each record, with tables and bars. It needs no network and no script.
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
    let file = Replacement::begin(&args.output)?;
    let mut sections = String::new();
    for path in &args.records {
        let section = match read(path)? {
            Content::Measured(record) => measured(path, &record),
            Content::Verified(verification) => verified(path, &verification),
        };
        sections.push_str(&section);
    }
    let date = machine::utc(std::time::SystemTime::now());
    let page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>warptile report</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>warptile report</h1>\n{sections}\
         <footer>Made by {} at {}.</footer>\n</body>\n</html>\n",
        escaped(PROGRAM),
        escaped(&date)
    );
    file.finish(page.as_bytes())?;
    writeln!(console, "wrote    {}", args.output.display())?;
    Ok(())
}

const STYLE: &str = "\
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a1a1a; background: #fff }
h2 { margin-top: 3rem }
h2, p { overflow-wrap: anywhere }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid #ddd; vertical-align: top }
th.number, td.number { text-align: right; white-space: nowrap }
td.problem { min-width: 16rem }
svg { display: block; width: 12rem; height: 1rem }
rect { fill: #1f6f50 }
rect.peer { fill: #9a9a9a }
.bad { color: #a40000; font-weight: 600 }
footer { margin: 3rem 0; color: #555 }
@media (max-width: 40rem) { body { font-size: 14px; margin: 1rem auto } tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid #ddd }
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
/// On a narrow screen problems and long names have lines of their own.
fn html_table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let class = |column: usize, cell: &str| match (head[column], cell) {
        (title, _) if title.starts_with('#') => " class=\"number\"",
        ("problem", "") => " class=\"problem same\"",
        ("problem", _) => " class=\"problem\"",
        ("kernel" | "image", _) => " class=\"name\"",
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
        true => "<p class=\"bad\">This record was cut short: something is missing.</p>\n",
        false => "",
    }
}

/// A section with a table for each way to measure and kind of speed.
fn measured(path: &Path, record: &Record) -> String {
    let origin = record.origin();
    let words = |values: &BTreeSet<String>| {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        escaped(&values.join(", "))
    };
    let date = record.rows.iter().map(|row| &row.date[..]).max();
    let mut html = format!(
        "<section>\n<h2>Speed: {}</h2>\n<p>{}; driver {}; {}; {}.</p>\n{}",
        escaped(&path.display().to_string()),
        words(&origin.device),
        words(&origin.driver),
        words(&origin.program),
        escaped(date.unwrap_or_default()),
        cut_short(record.cut_short)
    );
    let mut groups: BTreeMap<(&str, bool), Vec<&Row>> = BTreeMap::new();
    for row in &record.rows {
        let group = (&row.method[..], row.is_reading());
        groups.entry(group).or_default().push(row);
    }
    for ((method, is_reading), rows) in groups {
        let speed = |row: &Row| if is_reading { row.tb_s } else { row.tflops };
        let what = match method {
            "graph" => "GPU time of one launch in a replayed graph",
            "call" => "one call, between events",
            "wall" => "one call, by the clock",
            other => other,
        };
        let _ = writeln!(html, "<h3>{}</h3>", escaped(what));
        let mut fastest: HashMap<&str, f64> = HashMap::new();
        for row in &rows {
            let of_problem = fastest.entry(&row.problem).or_default();
            *of_problem = speed(row).max(*of_problem);
        }
        let lines = rows.iter().enumerate().map(|(index, row)| {
            let is_above = index > 0 && rows[index - 1].problem == row.problem;
            let largest = fastest[&row.problem[..]];
            let ours = row.backend == "warptile";
            vec![
                escaped(if is_above { "" } else { &row.problem }),
                escaped(if ours { &row.kernel } else { &row.backend }),
                format!("{:.1}", row.median_us),
                format!("{:.1}", row.p90_us),
                table::speed_text(is_reading, row.tb_s, row.tflops),
                bar(speed(row), largest, if ours { "" } else { "peer" }),
            ]
        });
        let head = [
            "problem",
            "kernel",
            "#median us",
            "#p90 us",
            "#speed",
            "of the fastest",
        ];
        html.push_str(&html_table(&head, lines));
    }
    html + "</section>\n"
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
    let worst = [("out", &of.worst_out), ("lse", &of.worst_lse)];
    let worst = worst.into_iter().filter_map(|(what, worst)| {
        let worst = worst.as_ref()?;
        Some(vec![
            escaped(&worst.problem),
            escaped(worst.image.as_deref().unwrap_or("cpu")),
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
