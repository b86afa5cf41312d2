//! `cargo xtask report`: what was compiled and measured, as the tables and plots of the documentation.
//!
//! A document asks for a table with a pair of comments; what stands between them is replaced:
//!
//! ```text
//! <!-- generated: support -->
//! <!-- end generated -->
//! ```
//!
//! `evidence/` is the record of one GPU, and a folder in it with a `summary.json` that of another. A block is about
//! the first, or about the folder that it names: `<!-- generated: decode h100 -->`.

mod acceptance;
mod baseline;
mod bench;
mod checks;
mod decode;
mod distributed;
mod gradients;
mod named;
mod options;
mod parts;
mod peers;
mod plot;
#[path = "../../crates/cli/src/bench/record.rs"]
mod record;
mod searches;
mod since;
mod sparse;
mod speed;
mod start;
mod support;
mod tuned;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use crate::evolve::Search;
use crate::files;
use crate::manifest::{Manifest, ManifestEntry};
use warptile_spec::Heads;

pub use baseline::Loss;
pub(crate) use baseline::{Stored, is_loss};
use bench::{BenchRow, ErrorRow};
use checks::Checks;
use parts::Summary;

const BEGIN: &str = "<!-- generated: ";
const BEGIN_END: &str = " -->";
const END: &str = "<!-- end generated -->";

/// Makes a block's text.
type Maker = fn(&Data, &Record) -> String;

/// Blocks a document can ask for.
const BLOCKS: [(&str, Maker); 27] = [
    ("support", |data, _| {
        support::table(&data.images, &data.checks())
    }),
    ("unproven", |data, _| {
        checks::unproven(&data.images, &data.checks())
    }),
    ("parts", |_, gpu| parts::table(&gpu.summary, &gpu.others)),
    ("checks", |_, gpu| checks::summary(&gpu.checks)),
    ("changed", |data, gpu| {
        checks::changed(&data.images, &gpu.checks)
    }),
    ("acceptance", |_, gpu| gpu.checks.acceptance.text()),
    ("counters", |_, gpu| checks::counters(&gpu.checks)),
    ("bench", |_, gpu| bench::tables(&gpu.rows)),
    ("speed", |data, gpu| {
        since::noted(speed::in_short(&gpu.rows), &gpu.rows, &data.images)
    }),
    ("ratios", |data, gpu| {
        let text = speed::against_peers(&gpu.rows, &gpu.errors);
        since::noted(text, &gpu.rows, &data.images)
    }),
    ("other", |data, gpu| {
        let text = speed::others(&gpu.other, &gpu.errors);
        since::noted(text, &gpu.other, &data.images)
    }),
    ("decode", |data, gpu| {
        since::noted(decode::table(&gpu.decode), &gpu.decode, &data.images)
    }),
    ("decode-short", |data, gpu| {
        since::noted(decode::in_short(&gpu.decode), &gpu.decode, &data.images)
    }),
    ("few", |data, gpu| {
        since::noted(decode::table(&gpu.few), &gpu.few, &data.images)
    }),
    ("sparse", |data, gpu| {
        since::noted(sparse::table(&gpu.sparse), &gpu.sparse, &data.images)
    }),
    ("families", |_, gpu| {
        speed::families(&gpu.families, &gpu.rows)
    }),
    ("named", |_, gpu| {
        named::table(&gpu.kernels, &gpu.default, &gpu.rows)
    }),
    ("start", |_, gpu| start::text(&gpu.starts)),
    ("distributed", |_, gpu| distributed::table(&gpu.distributed)),
    ("backward", |data, gpu| {
        let text = gradients::table(&gpu.backward);
        since::noted(text, &gpu.backward, &data.images)
    }),
    ("options", |data, gpu| {
        since::noted(options::table(&gpu.options), &gpu.options, &data.images)
    }),
    ("uneven", |_, gpu| speed::uneven(&gpu.uneven)),
    ("behind", |_, gpu| {
        let rows = [gpu.rows.as_slice(), &gpu.other].concat();
        speed::behind(&rows, &gpu.decode)
    }),
    ("cpu", |data, _| speed::on_cpu(&data.cpu)),
    ("tuned", |_, gpu| tuned::table(&gpu.tuning)),
    ("searches", |data, _| searches::table(&data.searches)),
    ("plots", |_, gpu| plot::links(&gpu.plotted())),
];

/// The data that the blocks are made from.
struct Data {
    images: Vec<ManifestEntry>,
    /// The records of GPUs, by folder in `evidence/`; that of `evidence/` itself is the first, and has no name.
    records: Vec<(String, Record)>,
    /// The CPU path and PyTorch's.
    cpu: Vec<BenchRow>,
    searches: Vec<Search>,
}

/// The files that the evidence script wrote on one GPU.
#[derive(Default)]
struct Record {
    summary: Summary,
    others: Vec<parts::Other>,
    checks: Checks,
    rows: Vec<BenchRow>,
    /// Small problems, odd sizes, head sizes that few peers take.
    other: Vec<BenchRow>,
    /// The best kernel of each family.
    families: Vec<BenchRow>,
    /// Every kernel on a few shapes.
    kernels: Vec<BenchRow>,
    /// The rows of PyTorch's own choice, on these problems.
    default: Vec<BenchRow>,
    /// Packed sequences of very different lengths, together and in parts.
    uneven: Vec<BenchRow>,
    /// Processes to their first result.
    starts: Vec<start::Start>,
    /// Several GPUs against one.
    distributed: Vec<distributed::Row>,
    /// Few queries on the keys of a cache.
    decode: Vec<BenchRow>,
    /// More rows of a head of keys, on caches of several lengths.
    few: Vec<BenchRow>,
    /// Lists of blocks.
    sparse: Vec<BenchRow>,
    /// Gradients.
    backward: Vec<BenchRow>,
    /// Options of scores.
    options: Vec<BenchRow>,
    errors: Vec<ErrorRow>,
    tuning: tuned::Tuning,
}

/// Rows of a file as the evidence script writes it.
#[derive(serde::Deserialize)]
struct Rows<T> {
    commit: Option<String>,
    rows: Vec<T>,
}

impl Data {
    fn checks(&self) -> Vec<&Checks> {
        self.records.iter().map(|record| &record.1.checks).collect()
    }
}

impl Record {
    fn read(folder: &Path) -> Result<Self> {
        let summary = read_optional(&folder.join("summary.json"))?;
        let rows = |name| optional_rows(&folder.join(format!("{name}.json")));
        Ok(Self {
            others: parts::others(folder, &summary)?,
            summary,
            checks: Checks::read(folder)?,
            rows: read_rows(folder)?,
            other: rows("other")?,
            families: rows("families")?,
            kernels: rows("kernels")?,
            default: rows("default")?,
            uneven: rows("uneven")?,
            decode: rows("decode")?,
            few: rows("few")?,
            sparse: rows("sparse")?,
            backward: rows("backward")?,
            options: rows("options")?,
            distributed: optional_rows(&folder.join("distributed.json"))?,
            starts: optional_rows(&folder.join("start.json"))?,
            errors: optional_rows(&folder.join("errors.json"))?,
            tuning: read_optional(&folder.join("tune.json"))?,
        })
    }

    /// The planner's choices, the family that every GPU runs, and the peers; not the one that is never near the fastest.
    fn plotted(&self) -> Vec<BenchRow> {
        let mut rows: Vec<BenchRow> = self
            .families
            .iter()
            .filter(|row| row.method == "graph" && row.family == "mma")
            .cloned()
            .collect();
        // Where it was chosen its row here is the later, and the one that stays.
        rows.extend(
            self.rows
                .iter()
                .filter(|row| row.backend != "efficient")
                .cloned(),
        );
        rows
    }
}

/// A file of the documentation as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// Where it lies.
    pub path: PathBuf,
    /// The contents of the file.
    pub text: String,
}

impl Generated {
    /// Returns true if the file on disk is the same.
    pub fn is_fresh(&self) -> bool {
        std::fs::read(&self.path).is_ok_and(|present| present == self.text.as_bytes())
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If that fails.
    pub fn write(&self) -> Result<()> {
        files::write(&self.path, self.text.as_bytes())
    }
}

/// Every document with blocks, and every plot, as they should be.
///
/// # Errors
/// If evidence cannot be read or a document asks for something that does not exist.
pub fn generate(root: &Path) -> Result<Vec<Generated>> {
    let evidence = root.join("evidence");
    let records = { folders(&evidence)?.into_iter() }
        .map(|(name, folder)| Ok((name, Record::read(&folder)?)))
        .collect::<Result<_>>()?;
    let data = Data {
        images: files::read_json::<Manifest>(&root.join("crates/kernels/manifest.json"))?.images,
        records,
        cpu: read_optional(&evidence.join("cpu.json"))?,
        searches: Search::all(root)?,
    };
    let mut generated = Vec::new();
    let mut documents = vec![root.join("README.md")];
    documents.extend(files::list_of(&root.join("docs"), "md")?);
    for path in documents.into_iter().filter(|path| path.is_file()) {
        let text = fill(&path, &files::read_text(&path)?, &data)?;
        generated.push(Generated { path, text });
    }
    let plotted: Vec<_> = { data.records.iter() }
        .flat_map(|(_, record)| {
            record
                .plotted()
                .into_iter()
                .chain(gradients::plotted(&record.backward))
        })
        .collect();
    for (name, svg) in plot::all(&plotted)? {
        generated.push(Generated {
            path: root.join("docs/plots").join(name),
            text: svg,
        });
    }
    for search in &data.searches {
        let (path, text) = search.picture();
        generated.push(Generated { path, text });
    }
    Ok(generated)
}

/// Every speed relative to the best peer that is more than 3% below `evidence/baseline-{gpu}.json`.
///
/// # Errors
/// If evidence cannot be read.
pub fn losses(root: &Path) -> Result<Vec<Loss>> {
    baseline::losses(root, &all_rows(root)?)
}

/// Makes the speeds of the evidence, relative to the best peer, the baselines of their GPUs, and returns the files.
///
/// # Errors
/// If evidence cannot be read or a file not written.
pub fn store_baselines(root: &Path) -> Result<Vec<PathBuf>> {
    baseline::store(root, &all_rows(root)?)
}

/// Plots that are no longer made.
///
/// # Errors
/// If the directory cannot be listed.
pub fn surplus_plots(root: &Path, generated: &[Generated]) -> Result<Vec<PathBuf>> {
    let mut plots = files::list_of(&root.join("docs/plots"), "svg")?;
    plots.retain(|path| !generated.iter().any(|file| file.path == *path));
    Ok(plots)
}

/// The empty value if no such file exists.
fn read_optional<T: serde::de::DeserializeOwned + Default>(path: &Path) -> Result<T> {
    if path.exists() {
        files::read_json(path)
    } else {
        Ok(T::default())
    }
}

/// No rows if no such file exists.
fn optional_rows<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let rows = read_optional::<Option<Rows<T>>>(path)?;
    Ok(rows.map_or_else(Vec::new, |of_file| of_file.rows))
}

/// The records of GPUs by name, beginning with `evidence/` itself, which has none.
fn folders(evidence: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = vec![(String::new(), evidence.to_owned())];
    for folder in files::list(evidence)? {
        if folder.join("summary.json").is_file() {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            found.push((name.into_owned(), folder.clone()));
        }
    }
    Ok(found)
}

/// Rows of the benchmarks of all GPUs, and of the problems beside the sweep.
fn all_rows(root: &Path) -> Result<Vec<BenchRow>> {
    let mut rows = Vec::new();
    for (_, folder) in folders(&root.join("evidence"))? {
        rows.extend(read_rows(&folder)?);
        rows.extend(optional_rows(&folder.join("other.json"))?);
    }
    Ok(rows)
}

/// Rows of every `bench-*.json` of a record, in the order of the files' names.
fn read_rows(evidence: &Path) -> Result<Vec<BenchRow>> {
    let mut rows = Vec::new();
    for path in files::list(evidence)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("bench-") && name.ends_with(".json") {
            let Rows {
                commit,
                rows: of_file,
            } = files::read_json::<Rows<BenchRow>>(&path)?;
            rows.extend(of_file.into_iter().map(|row| BenchRow {
                commit: commit.clone(),
                ..row
            }));
        }
    }
    Ok(rows)
}

fn fill(path: &Path, text: &str, data: &Data) -> Result<String> {
    let mut filled = String::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        filled.push_str(line);
        filled.push('\n');
        let Some(name) = line
            .strip_prefix(BEGIN)
            .and_then(|rest| rest.strip_suffix(BEGIN_END))
        else {
            continue;
        };
        let place = format!("{}:{}", path.display(), index + 1);
        let (name, folder) = name.split_once(' ').unwrap_or((name, ""));
        let Some((_, make)) = BLOCKS.iter().find(|(block, _)| *block == name) else {
            bail!(
                "{place}: no block is called `{name}`; there are {}",
                BLOCKS.map(|(name, _)| name).join(", ")
            );
        };
        let Some((_, record)) = data.records.iter().find(|record| record.0 == folder) else {
            bail!("{place}: evidence/{folder} has no summary.json");
        };
        // Another block's end would take what stands between the two along.
        let mut ends = lines
            .by_ref()
            .filter(|(_, line)| *line == END || line.starts_with(BEGIN));
        ensure!(
            ends.next().is_some_and(|(_, line)| line == END),
            "{place}: the block that begins here has no `{END}`"
        );
        filled.push_str(make(data, record).trim_end());
        filled.push('\n');
        filled.push_str(END);
        filled.push('\n');
    }
    Ok(filled)
}

/// Words as they are in the name of a file.
fn in_a_name(words: &str) -> String {
    let parts = words.split(|c: char| !c.is_ascii_alphanumeric());
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    parts.join("-").to_ascii_lowercase()
}

/// A number with this many digits, or a dash.
fn number(number: Option<f64>, digits: usize) -> String {
    number.map_or("-".to_owned(), |number| format!("{number:.digits$}"))
}

/// A ratio of speeds, in bold if nothing is lost.
fn ratio(ratio: Option<f64>) -> String {
    match ratio {
        Some(1.0..) => format!("**{}**", number(ratio, 2)),
        _ => number(ratio, 2),
    }
}

/// A Markdown table.
fn markdown_table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!(
        "| {} |\n|{}\n",
        header.join(" | "),
        " --- |".repeat(header.len())
    );
    for row in rows {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<String> {
        let data = Data {
            images: Vec::new(),
            records: vec![(String::new(), Record::default())],
            cpu: Vec::new(),
            searches: Vec::new(),
        };
        fill(Path::new("README.md"), text, &data)
    }

    #[test]
    fn blocks_are_replaced_and_the_rest_kept() {
        let text = "before\n<!-- generated: bench -->\nold\n<!-- end generated -->\nafter\n";
        let new = filled(text).unwrap();
        assert!(
            new.starts_with("before\n<!-- generated: bench -->\n"),
            "{new}"
        );
        assert!(new.ends_with("\n<!-- end generated -->\nafter\n"), "{new}");
        assert!(!new.contains("old"), "{new}");
        assert_eq!(filled(&new).unwrap(), new, "filling twice changes nothing");
    }

    #[test]
    fn unknown_and_unterminated_blocks_are_errors() {
        let unknown = filled("\n<!-- generated: bunch -->\n<!-- end generated -->\n").unwrap_err();
        assert!(
            unknown
                .to_string()
                .starts_with("README.md:2: no block is called `bunch`"),
            "{unknown}"
        );
        let elsewhere = filled("<!-- generated: bench mars -->\n<!-- end generated -->\n");
        assert_eq!(
            elsewhere.unwrap_err().to_string(),
            "README.md:1: evidence/mars has no summary.json"
        );
        let block = "<!-- generated: bench -->\n";
        let whole = format!("{block}<!-- end generated -->\n");
        for text in [block.to_owned(), format!("{block}Prose.\n{whole}")] {
            let open = filled(&text).unwrap_err();
            assert!(open.to_string().contains("README.md:1"), "{open}");
        }
    }

    #[test]
    fn tables_of_rows_in_turn_say_that_kernels_have_changed() {
        let row = |of: &str| BenchRow {
            sha256: Some("old".to_owned()),
            problem: of.to_owned(),
            ..bench::tests::row("warptile", 64, 512, 1.0)
        };
        let record = Record {
            backward: vec![row("q512 backward")],
            options: vec![row("q512 bias")],
            ..Record::default()
        };
        let data = Data {
            images: Vec::new(),
            records: vec![(String::new(), record)],
            cpu: Vec::new(),
            searches: Vec::new(),
        };
        for name in ["backward", "options"] {
            let text = format!("{BEGIN}{name}{BEGIN_END}\n{END}\n");
            let text = fill(Path::new("README.md"), &text, &data).unwrap();
            assert!(text.contains("of 1 of our 1 rows"), "{text}");
        }
    }

    #[test]
    fn a_block_is_about_the_gpu_that_it_names() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            files::write(&root.path().join(name), text.as_bytes()).unwrap()
        };
        let summary = |device: &str| {
            let part = r#"{"date": "", "seconds": 1, "passed": true}"#;
            format!(
                r#"{{"commit": "01234567", "device": "{device}", "parts": {{"bench": {part}}}}}"#
            )
        };
        write("crates/kernels/manifest.json", "{ \"images\": [] }");
        write("evidence/summary.json", &summary("GPU A"));
        write("evidence/b/summary.json", &summary("GPU B"));
        // A file of a search, not a record.
        write("evidence/c/other.json", "{}");
        let block = |name: &str| format!("<!-- generated: {name} -->\n<!-- end generated -->\n");
        write("docs/other.md", &(block("parts") + &block("parts b")));
        let text = generate(root.path()).unwrap().remove(0).text;
        let (first, second) = text.split_once("generated: parts b").unwrap();
        assert!(
            first.contains("GPU A") && !first.contains("GPU B"),
            "{text}"
        );
        assert!(
            second.contains("GPU B") && !second.contains("GPU A"),
            "{text}"
        );
        write("docs/other.md", &block("parts c"));
        assert!(generate(root.path()).is_err());
    }

    #[test]
    fn a_repository_without_evidence_has_a_report_and_a_stale_one_shows() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            files::write(&root.path().join(name), text.as_bytes()).unwrap()
        };
        write("crates/kernels/manifest.json", "{ \"images\": [] }");
        write(
            "docs/other.md",
            "<!-- generated: plots -->\n<!-- end generated -->\n",
        );
        write("docs/plots/old.svg", "<svg/>");
        let generated = generate(root.path()).unwrap();
        assert_eq!(generated.len(), 1);
        assert!(!generated[0].is_fresh());
        generated[0].write().unwrap();
        assert!(generated[0].is_fresh());
        assert_eq!(
            surplus_plots(root.path(), &generated).unwrap(),
            [root.path().join("docs/plots/old.svg")]
        );
    }
}
