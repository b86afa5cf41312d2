//! Hardware counters of kernels, by Nsight Compute's `ncu` if the host has it.

use std::io::ErrorKind;
use std::process::Command;

use super::format::{Counters, SHARED_MEMORY};

/// The metrics that `ncu` measures, by our names. All are percent of a peak.
const METRICS: [(&str, &str); 4] = [
    (
        SHARED_MEMORY,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
    ),
    (
        "tensor_percent",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    (
        "dram_percent",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    (
        "warps_percent",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    ),
];

/// The launch that is counted, of those of our kernels: the first two warm up.
const SKIPPED: &str = "2";

/// The counters of one launch of what a command computes.
///
/// # Errors
/// In words: there is no `ncu`, or what it said when it gave none.
pub(super) fn of_launch(command: &Command) -> Result<Counters, String> {
    let metrics = METRICS.map(|(_, metric)| metric).join(",");
    let mut ncu = Command::new("ncu");
    ncu.args(["--clock-control", "none", "--csv", "--metrics", &metrics])
        .args(["--kernel-name", "regex:warptile_", "--launch-skip", SKIPPED])
        .args(["--launch-count", "1", "--target-processes", "all"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            ncu.env(name, value);
        }
    }
    let output = ncu.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "there is no ncu".to_owned(),
        _ => format!("ncu: {error}"),
    })?;
    let said = String::from_utf8_lossy(&output.stdout);
    let counters = parse(&said);
    if !output.status.success() || counters.is_empty() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = said
            .lines()
            .chain(errors.lines())
            .rfind(|line| !line.trim().is_empty());
        return Err(format!(
            "ncu: {}: {}",
            output.status,
            last.unwrap_or("no counters")
        ));
    }
    Ok(counters)
}

/// Parses the CSV, which follows the output of the command itself.
fn parse(output: &str) -> Counters {
    let mut rows = { output.lines() }
        .skip_while(|line| !line.starts_with("\"ID\""))
        .map(fields);
    let Some(header) = rows.next() else {
        return Counters::new();
    };
    let column = |name: &str| header.iter().position(|field| *field == name);
    let (Some(name), Some(value)) = (column("Metric Name"), column("Metric Value")) else {
        return Counters::new();
    };
    rows.filter_map(|row| {
        let (ours, _) = METRICS
            .iter()
            .find(|(_, metric)| Some(metric) == row.get(name))?;
        let value = row.get(value)?.replace(',', "").parse().ok()?;
        Some(((*ours).to_owned(), value))
    })
    .filter(|(_, value): &(String, f64)| value.is_finite())
    .collect()
}

/// The fields of a line. `ncu` quotes all of them.
fn fields(line: &str) -> Vec<&str> {
    line.trim().trim_matches('"').split("\",\"").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_what_the_table_says_of_them() {
        let csv = concat!(
            "==PROF== Connected\n\"a line of the program's own\"\n",
            "\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n",
            "\"0\",\"warptile_a(int, int)\",\"dram__throughput.avg.pct_of_peak_sustained_elapsed\",\"%\",\"81.5\"\n",
            "\"0\",\"warptile_a(int, int)\",\"l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed\",\"%\",\"1,042.25\"\n",
            "\"0\",\"warptile_a(int, int)\",\"sm__warps_active.avg.pct_of_peak_sustained_active\",\"%\",\"n/a\"\n",
            "\"0\",\"warptile_a(int, int)\",\"gpu__time_duration.sum\",\"ns\",\"15392\"\n",
        );
        let expected = [("dram_percent", 81.5), (SHARED_MEMORY, 1042.25)];
        let expected: Counters = expected
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        assert_eq!(parse(csv), expected);
        assert_eq!(parse("==ERROR== no permission\n"), Counters::new());
    }
}
