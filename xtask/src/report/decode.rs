//! Few queries on the keys of a cache: times next to the fastest peer's and next to that of a kernel that only reads.

use super::bench::BenchRow;
use super::peers::{self, FIXED, Line, us};
use super::record::READ;
use super::{markdown_table, number, ratio};

/// Up to this many operations for each byte, reading takes the time, as `warptile bench` has it.
const OPERATIONS_PER_BYTE: f64 = 64.0;

/// The word of problems whose keys and values are of one tensor.
const IN_ONE_TENSOR: &str = "layout=interleaved";

/// A row loses if the best peer is faster by more than this.
const LOST: f64 = 0.99;

/// Smaller ratios are not shown as 1.00.
pub(super) const BEHIND: f64 = 0.995;

/// The problems that are measured, one a line. Those up to the first empty line are in the short table.
const MEASURED: &str = include_str!("../../../benches/peers/decode.txt");

fn is_reading(row: &BenchRow) -> bool {
    row.tflops <= OPERATIONS_PER_BYTE * row.tb_s
}

/// Our time over that of reading alone, where reading takes the time.
fn of_reading(line: &Line<'_>) -> Option<f64> {
    let read = line.of(READ).filter(|_| is_reading(line.ours))?;
    Some(1.0 / line.times(read))
}

/// Our time over that of the same problem without pages, if it has pages.
fn of_dense(line: &Line<'_>, lines: &[Line<'_>]) -> Option<f64> {
    let problem = without_pages(&line.ours.problem)?;
    let dense = lines.iter().find(|line| line.ours.problem == problem)?;
    Some(1.0 / line.times(dense.ours))
}

/// As many of them as the header has.
fn cells(line: &Line<'_>, lines: &[Line<'_>]) -> Vec<String> {
    let ours = line.ours;
    let speed = match is_reading(ours) {
        true => format!("{:.2} TB/s", ours.tb_s),
        false => format!("{:.0} TFLOP/s", ours.tflops),
    };
    let best = line.best().map_or("-".to_owned(), |best| {
        format!("{} ({})", us(Some(best)), with_lacks(best))
    });
    vec![
        ours.problem.clone(),
        us(Some(ours)),
        best,
        ratio(line.ratio()),
        speed,
        number(of_reading(line), 2),
        number(of_dense(line, lines), 2),
        // With fixed splits over without.
        number(line.of(FIXED).map(|fixed| line.times(fixed)), 2),
        format!("`{}`", ours.kernel),
    ]
}

/// A backend, and what of the problem it does not compute.
fn with_lacks(row: &BenchRow) -> String {
    let name = peers::name(&row.backend);
    match &row.leaves_out {
        Some(what) => format!("{name}, no {what}"),
        None => name.to_owned(),
    }
}

/// A problem without its pages, in tensors of their own; `None` if it has no pages.
fn without_pages(problem: &str) -> Option<String> {
    let is_paged = |word: &str| word.starts_with("pages=");
    problem.split(' ').find(|word| is_paged(word))?;
    // Without pages, nothing is measured in one tensor.
    let says_where =
        |word: &str| is_paged(word) || word.starts_with("runs=") || word == IN_ONE_TENSOR;
    let kept = problem.split(' ').filter(|word| !says_where(word));
    Some(kept.collect::<Vec<_>>().join(" "))
}

/// The problems that we were measured on, the losing ones first; without a peer to lose to, last.
fn lines(rows: &[BenchRow]) -> Vec<Line<'_>> {
    let mut lines = peers::lines(rows);
    lines.sort_by(|a, b| {
        let ratio = |line: &Line<'_>| line.ratio().unwrap_or(f64::INFINITY);
        let names = a.ours.problem.cmp(&b.ours.problem);
        ratio(a).total_cmp(&ratio(b)).then(names)
    });
    lines
}

/// Every problem.
pub(super) fn table(rows: &[BenchRow]) -> String {
    text(rows, HEADER.len(), |_| true)
}

/// A few problems, and what holds for all.
pub(super) fn in_short(rows: &[BenchRow]) -> String {
    text(rows, 5, |line| {
        let mut shown = MEASURED.lines().take_while(|line| !line.is_empty());
        shown.any(|problem| problem == line.ours.problem)
    })
}

/// Problems in which the best peer is faster: the problem, the peer and our ratio.
pub(super) fn behind(rows: &[BenchRow]) -> Vec<Vec<String>> {
    let cells = |line: &Line<'_>| {
        let ratio = line.ratio().filter(|&ratio| ratio < BEHIND)?;
        let peer = with_lacks(line.best()?);
        Some(vec![line.ours.problem.clone(), peer, format!("{ratio:.2}")])
    };
    lines(rows).iter().filter_map(cells).collect()
}

const HEADER: [&str; 9] = [
    "problem",
    "microseconds",
    "best peer",
    "ratio",
    "speed",
    "of reading's time",
    "of dense",
    "splits=512",
    "kernel",
];

/// Meanings of columns that do not say them.
const MEANINGS: [(&str, &str); 3] = [
    (
        "of reading's time",
        "our time over that of a kernel that only reads them",
    ),
    ("of dense", "our time over that without pages"),
    (
        "splits=512",
        "our time with keys cut at multiples of 512, which makes a sequence's bits the same in every batch, over that without",
    ),
];

/// A table of the first `columns`, except those in which nothing was measured, and what holds for all problems.
fn text(rows: &[BenchRow], columns: usize, shown: impl Fn(&&Line<'_>) -> bool) -> String {
    let lines = lines(rows);
    let Some(first) = lines.first() else {
        return "Decode was not measured yet.\n".to_owned();
    };
    let all_cells: Vec<Vec<String>> = { lines.iter().filter(shown) }
        .map(|line| cells(line, &lines))
        .collect();
    let has_numbers = |&column: &usize| all_cells.iter().any(|cells| cells[column] != "-");
    let kept: Vec<usize> = (0..columns).filter(has_numbers).collect();
    let header: Vec<&str> = kept.iter().map(|&column| HEADER[column]).collect();
    let meanings = { MEANINGS.iter() }.filter(|(column, _)| header.contains(column));
    let meaning: String = meanings
        .map(|(column, meaning)| {
            let column = format!("{}{}", column[..1].to_uppercase(), &column[1..]);
            format!(" *{column}*: {meaning}.")
        })
        .collect();
    let kept_cells = { all_cells.iter() }
        .map(|cells| kept.iter().map(|&column| cells[column].clone()).collect());
    let mut text = format!(
        "{} TB/s are of the keys and values that some query sees. *Ratio*: our speed over the fastest peer's.{meaning}{}\n\n{}",
        peers::measured_as("Microseconds", "launch", first.ours),
        peers::versions(rows),
        markdown_table(&header, kept_cells),
    );
    let ratios: Vec<f64> = lines.iter().filter_map(Line::ratio).collect();
    if let Some(least) = ratios.iter().copied().min_by(f64::total_cmp) {
        let lost = ratios.iter().filter(|&&ratio| ratio < LOST).count();
        text.push_str(&format!(
            "\nMore than 1% behind the best peer: {lost} of {} problems; the lowest ratio is {least:.3}.\n",
            ratios.len()
        ));
    }
    let shares: Vec<f64> = lines.iter().filter_map(of_reading).collect();
    if let Some(most) = shares.iter().copied().max_by(f64::total_cmp) {
        let near = shares.iter().filter(|&&share| share <= 1.02).count();
        text.push_str(&format!(
            "\nWithin 1.02 of reading's time: {near} of {} problems; the largest share is {most:.2}.\n",
            shares.len()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::bench;
    use super::*;

    const DENSE: &str = "b1 q1 k8192 h32/8 d128 bf16";
    const PROMPT: &str = "b1 q512 k8192 h32/8 d128 bf16 mask=causal";

    fn row(backend: &str, problem: &str, median_us: f64) -> BenchRow {
        BenchRow {
            kernel: format!("{backend}_kernel"),
            problem: problem.to_owned(),
            median_us,
            tb_s: 4.25,
            ..bench::tests::row(backend, 64, 8192, 17.0)
        }
    }

    #[test]
    fn losing_rows_come_first_and_reading_is_no_peer() {
        let mut prompt = row("warptile", PROMPT, 100.0);
        prompt.tflops = 600.0;
        let mut with_less = row("fa3", "window", 8.0);
        with_less.leaves_out = Some("options".to_owned());
        let rows = [
            row("warptile", DENSE, 10.0),
            row("fa2", DENSE, 25.0),
            row("fa3", DENSE, 20.0),
            row("read", DENSE, 8.0),
            row("warptile splits=512", DENSE, 10.4),
            row("warptile", "b1 q1 k8192 h32/8 d128 bf16 pages=16", 10.2),
            row("warptile", "alone", 5.0),
            row("warptile", "window", 10.0),
            with_less,
            prompt,
            row("cudnn", PROMPT, 100.0),
            row("read", PROMPT, 7.0),
            row("fa3", "nobody's", 1.0),
        ];
        let text = table(&rows);
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            table[2..],
            [
                "| window | 10.0 | 8.0 (FA3, no options) | 0.80 | 4.25 TB/s | - | - | - | `warptile_kernel` |",
                "| b1 q512 k8192 h32/8 d128 bf16 mask=causal | 100.0 | 100.0 (cuDNN) | **1.00** | 600 TFLOP/s | - | - | - | `warptile_kernel` |",
                "| b1 q1 k8192 h32/8 d128 bf16 | 10.0 | 20.0 (FA3) | **2.00** | 4.25 TB/s | 1.25 | - | 1.04 | `warptile_kernel` |",
                "| alone | 5.0 | - | - | 4.25 TB/s | - | - | - | `warptile_kernel` |",
                "| b1 q1 k8192 h32/8 d128 bf16 pages=16 | 10.2 | - | - | 4.25 TB/s | - | 1.02 | - | `warptile_kernel` |",
            ]
        );
        for line in [
            "More than 1% behind the best peer: 1 of 3 problems; the lowest ratio is 0.800.",
            "Within 1.02 of reading's time: 0 of 1 problems; the largest share is 1.25.",
            "in a replayed graph; driver CUDA 13.0, 2026-11-21.",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert_eq!(behind(&rows), [["window", "FA3, no options", "0.80"]]);
        let short = in_short(&rows);
        assert_eq!(short.matches("\n| b1 ").count(), 2, "{short}");
        assert!(
            !short.contains("| alone") && short.contains("1 of 3 problems"),
            "{short}"
        );
        assert!(
            short.contains("| 20.0 (FA3) | **2.00** | 4.25 TB/s |\n"),
            "{short}"
        );
    }

    #[test]
    fn pages_are_a_word_among_others() {
        let without = |problem| without_pages(problem);
        assert_eq!(without("b1 k8 pages=16").as_deref(), Some("b1 k8"));
        let ragged = without("b1 k8 pages=256 lengths=ragged");
        assert_eq!(ragged.as_deref(), Some("b1 k8 lengths=ragged"));
        assert_eq!(without("b1 k8"), None);
        assert_eq!(without("b1 k8 layout=interleaved"), None);
        let in_runs = without("b1 k8 pages=16 runs=8 lengths=ragged");
        assert_eq!(in_runs.as_deref(), Some("b1 k8 lengths=ragged"));
        let one_tensor = without("b1 k8 layout=interleaved pages=16 lengths=ragged");
        assert_eq!(one_tensor.as_deref(), Some("b1 k8 lengths=ragged"));
    }

    /// Each has its own peers, and both are next to the same dense row.
    #[test]
    fn pages_in_one_tensor_are_a_row_of_their_own() {
        let dense = DENSE;
        let (two, one) = (
            format!("{dense} pages=16"),
            format!("{dense} layout=interleaved pages=16"),
        );
        let rows = [
            row("warptile", dense, 10.0),
            row("warptile", &two, 10.2),
            row("fa3", &two, 20.4),
            row("warptile", &one, 10.1),
            row("fa3", &one, 30.3),
        ];
        let text = table(&rows);
        for line in [
            format!(
                "| {two} | 10.2 | 20.4 (FA3) | **2.00** | 4.25 TB/s | 1.02 | `warptile_kernel` |"
            ),
            format!(
                "| {one} | 10.1 | 30.3 (FA3) | **3.00** | 4.25 TB/s | 1.01 | `warptile_kernel` |"
            ),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }

    #[test]
    fn without_measurements_the_tables_say_so() {
        assert_eq!(table(&[]), "Decode was not measured yet.\n");
        let peers_alone = [row("fa3", "a", 1.0)];
        assert_eq!(in_short(&peers_alone), "Decode was not measured yet.\n");
    }

    #[test]
    fn what_is_measured_in_one_tensor_is_measured_in_two_and_dense() {
        let has = |problem: &str| MEASURED.lines().any(|line| line == problem);
        let one: Vec<&str> = { MEASURED.lines() }
            .filter(|line| !line.starts_with('#') && line.contains(IN_ONE_TENSOR))
            .collect();
        assert!(!one.is_empty());
        for problem in one {
            // For pages in runs there is also the row with pages in any order.
            let any_order: Vec<&str> = { problem.split(' ') }
                .filter(|word| !word.starts_with("runs="))
                .collect();
            let two = { any_order.join(" ") }.replace(&format!(" {IN_ONE_TENSOR}"), "");
            assert!(has(&two), "{two}");
            assert!(
                without_pages(problem).is_some_and(|dense| has(&dense)),
                "{problem}"
            );
        }
    }
}
