//! What the searches of `cargo xtask evolve` came to: a table, and their pictures.

use std::path::{Path, PathBuf};

use super::{ReportError, markdown_table, read_json};
use crate::evolve::archive::{Candidate, Measured, Plan, Verdict};
use crate::files;

/// A search as its archive has it.
#[derive(Debug)]
pub(super) struct Archived {
    /// Where its picture lies.
    pub(super) picture: PathBuf,
    pub(super) plan: Plan,
    pub(super) candidates: Vec<Candidate>,
}

/// The searches in `evidence/evolution`, ordered by family.
pub(super) fn read(evidence: &Path) -> Result<Vec<Archived>, ReportError> {
    let mut searches = Vec::new();
    for folder in files::list(&evidence.join("evolution"))? {
        let candidates = files::list(&folder.join("candidates"))?;
        let candidates = candidates.iter().map(|path| read_json(path));
        let mut candidates = candidates.collect::<Result<Vec<Candidate>, _>>()?;
        candidates.sort_by(|a, b| a.kernel.cmp(&b.kernel));
        searches.push(Archived {
            picture: folder.join("search.svg"),
            plan: read_json(&folder.join("search.json"))?,
            candidates,
        });
    }
    Ok(searches)
}

/// A line for each generation of each search, and what its best candidate came to.
pub(super) fn table(searches: &[Archived]) -> String {
    let mut lines = Vec::new();
    let (mut made, mut timed, mut won) = (0, 0, 0);
    for Archived {
        plan, candidates, ..
    } in searches
    {
        let generations = candidates.iter().map(|one| one.generation).max();
        for generation in 1..=generations.unwrap_or(0) {
            let these: Vec<&Candidate> = { candidates.iter() }
                .filter(|one| one.generation == generation)
                .collect();
            let count =
                |is: fn(&Verdict) -> bool| these.iter().filter(|one| is(&one.verdict)).count();
            let measured = |is: &dyn Fn(&Verdict) -> bool| -> Vec<(&Candidate, &Measured)> {
                { these.iter() }
                    .filter(|one| is(&one.verdict))
                    .filter_map(|one| Some((*one, one.verdict.measured()?)))
                    .collect()
            };
            let all = measured(&|_| true);
            let winners = measured(&|verdict| !matches!(verdict, Verdict::Lost(_)));
            let gain = |measured: &Measured| measured.trials.first().map_or(0.0, |one| one.median);
            let best = { all.iter() }.max_by(|(_, a), (_, b)| gain(a).total_cmp(&gain(b)));
            made += these.len();
            timed += all.len();
            won += winners.len();
            lines.push(vec![
                format!("`{}`", plan.family),
                generation.to_string(),
                these.len().to_string(),
                count(|verdict| matches!(verdict, Verdict::Refused { .. })).to_string(),
                count(|verdict| matches!(verdict, Verdict::Wrong { .. })).to_string(),
                all.len().to_string(),
                best.map_or("-".to_owned(), |(one, _)| format!("`{}`", one.kernel)),
                best.map_or("-".to_owned(), |(_, measured)| {
                    format!("{:.3}", gain(measured))
                }),
                best.map_or("-".to_owned(), |(one, measured)| {
                    match measured.why.as_str() {
                        "" => one.verdict.word().to_owned(),
                        why => why.to_owned(),
                    }
                }),
            ]);
        }
    }
    if lines.is_empty() {
        return "No search has candidates.\n".to_owned();
    }
    let header = [
        "family",
        "generation",
        "made",
        "refused",
        "wrong",
        "timed",
        "best",
        "gain",
        "what came of it",
    ];
    format!(
        "{}\n{made} candidates, {timed} of them timed; {won} won. Gains are medians over the problems of the search, against the family's own \
         kernel that the planner takes for each.\n",
        markdown_table(&header, lines)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(verdicts: &[serde_json::Value]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("evolution/wmma");
        let write = |name: &str, json: serde_json::Value| {
            files::write(&folder.join(name), json.to_string().as_bytes()).unwrap();
        };
        let plan = serde_json::json!({
            "family": "wmma", "target": "sm_90", "problems": ["p"], "held_out": ["h"], "multiprocessors": 132, "seed": 1,
        });
        write("search.json", plan);
        for (index, verdict) in verdicts.iter().enumerate() {
            let kernel = format!("k{index}");
            let candidate = serde_json::json!({
                "kernel": kernel, "generation": u32::from(index > 0),
                "genes": { "head_dim": 64, "block_m": 64, "block_n": 64, "warps": 4, "stages": 2, "switches": [] },
                "lineage": { "how": "mutation", "parents": [], "why": "" },
                "report": null, "ctas": {}, "counters": {}, "verdict": verdict,
            });
            write(&format!("candidates/{kernel}.json"), candidate);
        }
        root
    }

    fn measured(state: &str, median: f64, why: &str) -> serde_json::Value {
        serde_json::json!({
            "state": state, "device": "", "driver": "", "program": "", "date": "", "tried": 2, "blocks": 41,
            "trials": [{ "median": median, "bound": null }], "held_out": [], "problems": {}, "why": why,
        })
    }

    #[test]
    fn a_generation_is_a_line_with_what_became_of_its_best() {
        let root = archive(&[
            serde_json::json!({ "state": "shipped" }),
            measured("lost", 0.99, "no certain gain"),
            measured("lost", 1.002, "the gain did not repeat"),
            serde_json::json!({ "state": "refused", "reasons": ["spills"] }),
            serde_json::json!({ "state": "compiled" }),
        ]);
        let text = table(&read(root.path()).unwrap());
        assert!(
            text.contains(
                "| `wmma` | 1 | 4 | 1 | 0 | 2 | `k2` | 1.002 | the gain did not repeat |"
            ),
            "{text}"
        );
        assert!(
            text.contains("\n4 candidates, 2 of them timed; 0 won."),
            "{text}"
        );
        let root = archive(&[
            serde_json::json!({ "state": "shipped" }),
            measured("won", 1.05, ""),
            serde_json::json!({ "state": "wrong", "what": "NaN" }),
        ]);
        let text = table(&read(root.path()).unwrap());
        assert!(
            text.contains("| `wmma` | 1 | 2 | 0 | 1 | 1 | `k1` | 1.050 | won |"),
            "{text}"
        );
        assert!(text.contains("; 1 won."), "{text}");
        let none = tempfile::tempdir().unwrap();
        assert_eq!(
            table(&read(none.path()).unwrap()),
            "No search has candidates.\n"
        );
    }
}
