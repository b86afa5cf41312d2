//! The speeds of all records of a page, joined by problem.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use super::{bar, escaped, html_table};
use crate::bench::record::{OURS, READ, geometric_mean, method_text};
use crate::bench::row::Row;
use crate::bench::table;
use crate::records::Record;

/// The device, the way to measure, and whether the speed is that of reading: rows that agree in these are comparable.
type Group<'a> = (&'a str, &'a str, bool);

/// Rows of one problem, each of another kernel or peer.
struct Problem<'a> {
    title: String,
    rows: Vec<&'a Row>,
}

/// All speeds of a page, in the order of the records.
pub(super) struct Speeds<'a>(BTreeMap<Group<'a>, Vec<Problem<'a>>>);

impl<'a> Speeds<'a> {
    /// If two rows have the same problem and kernel or peer, the later one counts. Reading alone computes nothing, and has no place among
    /// speeds of computing.
    pub(super) fn of(records: impl Iterator<Item = &'a Record>) -> Self {
        let mut groups: BTreeMap<_, Vec<Problem<'_>>> = BTreeMap::new();
        let mut places = HashMap::new();
        let rows = records.flat_map(|record| &record.rows);
        for row in rows.filter(|row| row.backend != READ || row.is_reading()) {
            let (group, title) = (
                (&row.device[..], &row.method[..], row.is_reading()),
                row.problem(),
            );
            let problems = groups.entry(group).or_default();
            let place = *places.entry((group, title.clone())).or_insert_with(|| {
                let rows = Vec::new();
                problems.push(Problem { title, rows });
                problems.len() - 1
            });
            let rows = &mut problems[place].rows;
            let is_same =
                |other: &&mut &Row| other.backend == row.backend && other.kernel == row.kernel;
            match rows.iter_mut().find(is_same) {
                Some(other) if other.date <= row.date => *other = row,
                Some(_) => {}
                None => rows.push(row),
            }
        }
        let problems = groups.values_mut().flatten();
        problems.for_each(|one| one.rows.sort_by(|a, b| a.median_us.total_cmp(&b.median_us)));
        Speeds(groups)
    }

    /// A line for each group.
    pub(super) fn summary(&self) -> String {
        let head = [
            "device",
            "measured",
            "#problems",
            "#with a peer",
            "#ours first",
            "#over peer",
        ];
        let rows = self
            .0
            .iter()
            .map(|((device, method, is_reading), problems)| {
                let ratios: Vec<f64> = problems.iter().filter_map(Problem::ratio).collect();
                let over = geometric_mean(&ratios).map(|mean| format!("<b>{mean:.2}</b>"));
                vec![
                    escaped(device),
                    measured(method, *is_reading),
                    problems.len().to_string(),
                    ratios.len().to_string(),
                    ratios
                        .iter()
                        .filter(|&&ratio| ratio >= 1.0)
                        .count()
                        .to_string(),
                    over.unwrap_or_default(),
                ]
            });
        match self.0.is_empty() {
            true => String::new(),
            false => {
                html_table(&head, rows)
                    + "<p>Over peer: speed of the fastest kernel of ours over that of the fastest peer; geometric mean of all problems with a peer.</p>\n"
            }
        }
    }

    /// A section for each group, with a bar for each row.
    pub(super) fn sections(&self) -> String {
        let mut html = String::new();
        for ((device, method, is_reading), problems) in &self.0 {
            let speed = |row: &Row| if *is_reading { row.tb_s } else { row.tflops };
            let text = |row: &Row| table::speed_text(*is_reading, row.tb_s, row.tflops);
            let rows = || problems.iter().flat_map(|problem| &problem.rows);
            let Some(fastest) = rows().max_by(|a, b| speed(a).total_cmp(&speed(b))) else {
                continue;
            };
            // Writing to a string can't fail.
            let _ = writeln!(
                html,
                "<section>\n<h2>Speed: {}, {}</h2>\n<p>A full bar is {}.</p>",
                escaped(device),
                measured(method, *is_reading),
                text(fastest)
            );
            let lines = problems.iter().flat_map(|problem| {
                let peer = problem.fastest(false);
                problem.rows.iter().enumerate().map(move |(index, row)| {
                    let ratio = peer
                        .filter(|_| is_ours(row))
                        .map(|peer| peer.median_us / row.median_us);
                    vec![
                        if index > 0 {
                            String::new()
                        } else {
                            escaped(&problem.title)
                        },
                        name(row),
                        format!("{:.1}", row.median_us),
                        format!("{:.1}", row.p90_us),
                        ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                        text(row),
                        bar(
                            speed(row),
                            speed(fastest),
                            if is_ours(row) { "" } else { "peer" },
                        ),
                    ]
                })
            });
            let unit = if *is_reading { "TB/s" } else { "TFLOP/s" };
            let head = [
                "problem",
                "kernel",
                "#median us",
                "#p90 us",
                "#over peer",
                "#speed",
                unit,
            ];
            html += &html_table(&head, lines);
            html += "</section>\n";
        }
        html
    }
}

impl Problem<'_> {
    /// The fastest row of ours or of the peers, among those that compute the whole problem.
    fn fastest(&self, ours: bool) -> Option<&Row> {
        let is_whole = |row: &&&Row| row.leaves_out.is_none() && row.backend != READ;
        let mut rows = self.rows.iter().filter(is_whole);
        rows.find(|row| is_ours(row) == ours).copied()
    }

    /// The speed of ours over that of the fastest peer.
    fn ratio(&self) -> Option<f64> {
        Some(self.fastest(false)?.median_us / self.fastest(true)?.median_us)
    }
}

fn is_ours(row: &Row) -> bool {
    row.backend.starts_with("warptile")
}

/// The kernel of ours, or the peer and what it leaves out.
fn name(row: &Row) -> String {
    match (is_ours(row), &row.leaves_out) {
        (true, _) if row.backend == OURS && !row.kernel.is_empty() => {
            format!("<b>{}</b>", escaped(&row.kernel))
        }
        (true, _) => format!("<b>{}</b>", escaped(&row.backend)),
        (false, None) if row.backend == READ => "reading alone".to_owned(),
        (false, None) => escaped(&row.backend),
        (false, Some(what)) => format!("{} (without {})", escaped(&row.backend), escaped(what)),
    }
}

fn measured(method: &str, is_reading: bool) -> String {
    let what = method_text(method);
    let reading = if is_reading { ", few queries" } else { "" };
    escaped(&format!("{what}{reading}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn record(rows: &[(&str, &str, f64, &str)]) -> Record {
        let rows = rows.iter().map(|(backend, problem, median_us, date)| {
            serde_json::json!({
                "backend": backend, "family": "", "problem": problem, "batch": 1, "heads": 1, "kv_heads": 1, "query_len": 8,
                "key_len": 8, "head_dim": 8, "element": "f32", "mask": "none", "method": "graph", "median_us": median_us,
                "p90_us": median_us, "tflops": 1.0 / median_us, "device": "GPU", "date": date,
            })
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            &file,
            serde_json::to_vec(&rows.collect::<Vec<_>>()).unwrap(),
        )
        .unwrap();
        let path = PathBuf::from(file.path());
        Record::read(&path).unwrap()
    }

    #[test]
    fn ours_is_beside_its_peers_and_the_later_row_counts() {
        let problem = "b1 q8 k8 h1 d8 f32";
        let ours = record(&[
            ("warptile", problem, 9.0, "2"),
            ("warptile", problem, 5.0, "1"),
            ("warptile", "", 3.0, "1"),
        ]);
        let peers = record(&[
            ("fa2", problem, 18.0, "1"),
            ("fa3", problem, 10.0, "1"),
            (READ, problem, 0.1, "1"),
        ]);
        let speeds = Speeds::of([&ours, &peers].into_iter());
        let problems = speeds.0.values().next().unwrap();
        assert_eq!(problems.len(), 1, "{}", problems[1].title);
        let times: Vec<f64> = problems[0].rows.iter().map(|row| row.median_us).collect();
        // Without a problem, the sizes are the problem, and all are of one date or earlier.
        assert_eq!(times, [9.0, 10.0, 18.0]);
        assert!(
            speeds.summary().contains("<b>1.11</b>"),
            "{}",
            speeds.summary()
        );
        let html = speeds.sections();
        assert!(html.contains("<td class=\"number\">1.11</td>"), "{html}");
        assert!(
            html.contains("width=\"100.00\"") && html.contains("width=\"50.00\""),
            "{html}"
        );
    }
}
