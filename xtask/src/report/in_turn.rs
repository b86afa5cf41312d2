//! Rows measured in turn: ours beside those of peers, and errors beside speeds.

use serde::Deserialize;

use super::bench::BenchRow;
use super::{decode, speed};

/// A row of `backward.json` or `options.json`: a measurement, and the error of the same contestant's results against float64.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) row: BenchRow,
    pub(super) error_rms: Option<f64>,
}

/// The rows of replayed graphs.
#[derive(Debug)]
pub(super) struct InTurn<'a> {
    rows: Vec<&'a Row>,
    /// Those peers that have rows.
    peers: Vec<&'static str>,
}

impl<'a> InTurn<'a> {
    /// `peers`: those of the table, in its order.
    pub(super) fn new(rows: &'a [Row], peers: &[&'static str]) -> Self {
        let rows: Vec<&Row> = { rows.iter() }
            .filter(|one| one.row.method == "graph")
            .collect();
        let has_rows = |peer: &&&str| rows.iter().any(|one| one.row.backend == **peer);
        let peers = peers.iter().filter(has_rows).copied().collect();
        Self { rows, peers }
    }

    pub(super) fn ours(&self) -> impl Iterator<Item = &'a Row> {
        let ours = |one: &&Row| one.row.backend == speed::OURS;
        self.rows.iter().copied().filter(ours)
    }

    pub(super) fn of(&self, backend: &str, problem: &str) -> Option<&'a Row> {
        let same = |one: &&Row| one.row.backend == backend && one.row.problem == problem;
        self.rows.iter().copied().find(same)
    }

    /// What each peer has of a problem, in the order of [`Self::names`].
    pub(super) fn of_peers(&self, problem: &str) -> Vec<Option<&'a Row>> {
        let of = |peer: &&str| self.of(peer, problem);
        self.peers.iter().map(of).collect()
    }

    /// Names of the peers, for a table's header.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.peers.iter().map(|peer| decode::name(peer))
    }

    pub(super) fn measured(&self) -> Vec<BenchRow> {
        self.rows.iter().map(|one| one.row.clone()).collect()
    }
}

/// The cell of an error.
pub(super) fn error(error: Option<f64>) -> String {
    error.map_or("-".to_owned(), |error| format!("{error:.2e}"))
}

/// The cell of the smallest error among peers.
pub(super) fn least_error(peers: &[Option<&Row>]) -> String {
    let errors = peers.iter().flatten().filter_map(|peer| peer.error_rms);
    error(errors.min_by(f64::total_cmp))
}
