//! Rows for people, printed as they are measured.

use warptile_kernels::catalog;

use super::row::Row;
use crate::text;

/// The columns after the problem and the kernel: method, median, 90th percentile, speed.
const NUMBERS: usize = 48;

/// How rows are laid out. Where they fit the terminal, each row begins with its problem; else a problem has lines of its own
/// above its rows. No word is broken, but one that is wider than the terminal.
pub(crate) struct Table {
    /// Columns of the terminal.
    width: usize,
    problem: usize,
    kernel: usize,
    /// The problem above the last row, where problems have lines of their own.
    last: Option<String>,
}

impl Table {
    /// For rows about `problems`.
    pub(crate) fn new(problems: &[String], gpu: bool) -> Self {
        Self::of_width(problems, gpu, text::columns())
    }

    fn of_width(problems: &[String], gpu: bool, width: usize) -> Self {
        let longest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
        let kernel = match gpu {
            true => longest(&mut catalog().iter().map(|image| image.kernel.len())),
            false => 0,
        };
        Table {
            width,
            problem: longest(&mut problems.iter().map(String::len)).max("problem".len()),
            kernel: kernel.max("kernel".len()),
            last: None,
        }
    }

    fn is_wide(&self) -> bool {
        self.problem + 2 + self.kernel + NUMBERS <= self.width
    }

    /// Returns true if not even the numbers fit, as in half a terminal: rows are then words.
    fn is_narrow(&self) -> bool {
        2 + self.kernel + NUMBERS > self.width
    }

    pub(crate) fn header(&self) -> String {
        if self.is_narrow() {
            return "problem".to_owned();
        }
        let numbers = format!(
            "{:<kernel$}  {:<6}{:>11}{:>11}{:>18}",
            "kernel",
            "method",
            "median us",
            "p90 us",
            "speed",
            kernel = self.kernel
        );
        match self.is_wide() {
            true => format!("{:<width$}  {numbers}", "problem", width = self.problem),
            false => format!("problem\n  {numbers}"),
        }
    }

    pub(crate) fn row(&mut self, row: &Row) -> String {
        let Row {
            kernel,
            method,
            median_us: median,
            p90_us: p90,
            ..
        } = row;
        let (speed, column) = (speed(row), self.kernel);
        let numbers = match self.is_narrow() {
            true => {
                let words =
                    format!("{kernel}, {method}: median {median:.1} us, p90 {p90:.1} us, {speed}");
                text::wrapped(&words, self.width.saturating_sub(2), 4)
            }
            false => format!("{kernel:<column$}  {method:<6}{median:>11.1}{p90:>11.1}{speed:>18}"),
        };
        if self.is_wide() {
            return format!("{:<width$}  {numbers}", row.problem, width = self.problem);
        }
        if self.last.as_deref() == Some(&row.problem) {
            return format!("  {numbers}");
        }
        self.last = Some(row.problem.clone());
        format!(
            "{}\n  {numbers}",
            text::wrapped(&row.problem, self.width, 4)
        )
    }
}

/// By bytes where reading takes the time, else by operations.
pub(crate) fn speed(row: &Row) -> String {
    speed_text(row.is_reading(), row.tb_s, row.tflops)
}

/// The speed as text for people.
pub(crate) fn speed_text(is_reading: bool, tb_s: f64, tflops: f64) -> String {
    // Low speeds keep their digits.
    let giga = |speed: f64| match speed {
        ..1e-3 => format!("{:.3} G", speed * 1e3),
        _ => format!("{:.1} G", speed * 1e3),
    };
    match (is_reading, tb_s, tflops) {
        (true, tb_s @ ..1.0, _) => giga(tb_s) + "B/s",
        (true, tb_s, _) => format!("{tb_s:.3} TB/s"),
        (false, _, tflops @ ..1.0) => giga(tflops) + "FLOP/s",
        (false, _, tflops) => format!("{tflops:.1} TFLOP/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::row::{Method, Samples};
    use crate::machine;
    use warptile::Backend;
    use warptile::plan::Plan;
    use warptile_check::Case;

    const LONG: &str = "b2 q4096 k4096 h32/8 d128 bf16 mask=window,1023,1023 scale=0.125 layout=gaps unaligned pages=16 lengths=ragged";

    fn row(problem: &str) -> Row {
        let case: Case = "q8 k8 d8".parse().unwrap();
        let call = case.call();
        Row::new(
            problem,
            &case,
            &call,
            &Plan::cpu(call.problem()),
            Method::Graph,
            &Samples::new(vec![123_456.7]).unwrap(),
            &machine::describe(&Backend::cpu()),
        )
    }

    #[test]
    fn eighty_columns_hold_every_row_and_break_no_word() {
        let problems = [LONG.to_owned()];
        let mut table = Table::of_width(&problems, true, 80);
        let text = format!(
            "{}\n{}\n{}",
            table.header(),
            table.row(&row(LONG)),
            table.row(&row(LONG))
        );
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        for word in LONG.split(' ') {
            assert_eq!(
                text.split_whitespace()
                    .filter(|&found| found == word)
                    .count(),
                1,
                "{word}: {text}"
            );
        }
    }

    #[test]
    fn half_a_terminal_holds_every_row() {
        let mut table = Table::of_width(&[LONG.to_owned()], false, 40);
        let text = format!("{}\n{}", table.header(), table.row(&row(LONG)));
        assert!(text.lines().all(|line| line.len() <= 40), "{text}");
        assert!(text.contains("median 123456.7 us"), "{text}");
    }

    #[test]
    fn few_queries_have_a_speed_of_reading() {
        let mut row = row("b1 q8 k8 h1 d8 f32");
        (row.tflops, row.tb_s) = (0.25, 4.4321);
        assert_eq!(speed(&row), "250.0 GFLOP/s");
        row.problem = "b1 q1 k8 h1 d8 f32".to_owned();
        assert_eq!(speed(&row), "4.432 TB/s");
        row.tb_s = 0.0123;
        assert_eq!(speed(&row), "12.3 GB/s");
        row.tb_s = 4.21e-5;
        assert_eq!(speed(&row), "0.042 GB/s");
    }

    #[test]
    fn a_wide_line_holds_its_problem() {
        let problems = [LONG.to_owned(), "b1 q8 k8 h1 d8 f32".to_owned()];
        let mut table = Table::of_width(&problems, true, usize::MAX);
        let (header, row) = (table.header(), table.row(&row("b1 q8 k8 h1 d8 f32")));
        assert_eq!(header.len(), row.len(), "{header}\n{row}");
        assert!(
            row.starts_with("b1 q8 k8 h1 d8 f32 ") && !row.contains('\n'),
            "{row}"
        );
    }
}
