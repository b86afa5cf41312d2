//! The time from a process's start to its first result.

use std::collections::BTreeMap;

use crate::evolve::select::median;

/// One process, as the evidence script timed it.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Start {
    /// From its start until it printed that a result is there; absent if it never did.
    milliseconds: Option<f64>,
    /// Milliseconds from the beginning of `main` to what it said of itself.
    since_main: BTreeMap<String, f64>,
}

/// The median of all processes, and what the program itself says took that long.
pub(super) fn text(starts: &[Start]) -> String {
    let of = |name: &str| {
        median(
            starts
                .iter()
                .filter_map(|start| start.since_main.get(name).copied()),
        )
    };
    let all: Vec<f64> = starts
        .iter()
        .filter_map(|start| start.milliseconds)
        .collect();
    let (Some(whole), Some(device), Some(result), Some(first)) = (
        median(all.iter().copied()),
        of("device"),
        of("result"),
        all.first(),
    ) else {
        return "Nothing is measured yet.\n".to_owned();
    };
    let slowest = all.iter().copied().fold(f64::MIN, f64::max);
    format!(
        "{whole:.0} ms from a process's start to its first result on the host, in the median of {} processes one after the other (the first took \
         {first:.0}, the slowest {slowest:.0}). After {device:.0} of these the device is open, which is the driver's start and a context; tensors, a kernel \
         and its launch take {:.1} more.\n",
        all.len(),
        result - device
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_without_a_result_do_not_count() {
        let start = |milliseconds, device, result| Start {
            milliseconds,
            since_main: [("device", device), ("result", result)]
                .into_iter()
                .filter(|(_, value)| *value > 0.0)
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        };
        let starts = [
            start(Some(400.0), 330.0, 390.0),
            start(None, 0.0, 0.0),
            start(Some(290.0), 240.0, 285.0),
            start(Some(280.0), 230.0, 275.0),
        ];
        let text = text(&starts);
        assert!(text.starts_with("290 ms from "), "{text}");
        assert!(text.contains("of 3 processes"), "{text}");
        assert!(
            text.contains("the first took 400, the slowest 400"),
            "{text}"
        );
        assert!(text.contains(" After 240 of these"), "{text}");
        assert!(text.contains(" take 45.0 more."), "{text}");
        assert_eq!(super::text(&starts[1..2]), "Nothing is measured yet.\n");
    }
}
