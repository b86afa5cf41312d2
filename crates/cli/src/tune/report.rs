//! The findings of a search: before and after.

use std::io::Write;

use serde::Serialize;
use serde_json::Value;
use warptile_check::trial::{Judged, Rules};

use super::state::{Candidate, Entry};
use crate::chart::{self, Bar};
use crate::failure::Failure;
use crate::json;
use crate::machine::Machine;
use crate::text::{self, say};

/// The outcome of a problem.
pub(super) struct Outcome<'a> {
    entry: &'a Entry,
    verdict: Verdict,
    first: Option<Judged>,
    repeat: Option<Judged>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// The budget or the search ended before it was measured, or before a trial was made.
    NotReached,
    /// The planner's choice gave no answer in an earlier search: nothing can be compared with it.
    Lost,
    /// Nothing looked faster.
    Kept,
    /// Something looked faster, but did not win both trials.
    NotProven,
    /// Something is faster, but its results are wrong, or it breaks the device.
    Wrong,
    /// Something else is chosen from now on.
    Won,
}

impl<'a> Outcome<'a> {
    /// `verified`: winners have to be. `lost`: the planner's choice gave no answer.
    pub(super) fn of(entry: &'a Entry, rules: Rules, verified: bool, lost: bool) -> Self {
        let judge = |ratios: &Option<Vec<f64>>| ratios.as_ref().map(|ratios| rules.judge(ratios));
        let (first, repeat) = (judge(&entry.first), judge(&entry.repeat));
        let looks_faster = match (entry.old_us(), entry.fastest()) {
            (Some(old), Some(fastest)) => {
                old > warptile_check::trial::LEAST_GAIN * fastest.microseconds
            }
            _ => false,
        };
        let verdict = match (first, repeat) {
            _ if lost => Verdict::Lost,
            _ if entry.screened.is_empty() => Verdict::NotReached,
            _ if !looks_faster => Verdict::Kept,
            (Some(first), _) if !first.wins() => Verdict::NotProven,
            (Some(_), Some(repeat)) if !repeat.wins() => Verdict::NotProven,
            (Some(_), Some(_)) => match entry.verified {
                _ if !verified => Verdict::Won,
                Some(true) => Verdict::Won,
                Some(false) => Verdict::Wrong,
                None => Verdict::NotReached,
            },
            _ => Verdict::NotReached,
        };
        Outcome {
            entry,
            verdict,
            first,
            repeat,
        }
    }

    /// Returns true if the same command would go on with it.
    pub(super) fn is_open(&self) -> bool {
        self.verdict == Verdict::NotReached
    }

    /// The candidate that the planner is to choose from now on.
    pub(super) fn decided(&self) -> &'a Candidate {
        match (self.verdict, self.entry.fastest()) {
            (Verdict::Won, Some(fastest)) => &fastest.candidate,
            _ => &self.entry.old,
        }
    }

    /// Old over new time: what both trials show, the lesser one. 1 where nothing changes.
    fn gain(&self) -> f64 {
        match (self.verdict, self.first, self.repeat) {
            (Verdict::Won, Some(first), Some(repeat)) => first.median.min(repeat.median),
            _ => 1.0,
        }
    }

    /// Why the choice stays, or what shows that another is better.
    fn reason(&self) -> String {
        let fastest = self.entry.fastest().map(|one| one.candidate.to_string());
        let fastest = fastest.unwrap_or_default();
        let trial = |judged: Option<Judged>| match judged {
            Some(Judged {
                median,
                bound: Some(bound),
                ..
            }) => format!("{median:.3}, surely above {bound:.3}"),
            _ => "not made".to_owned(),
        };
        let (first, repeat) = (trial(self.first), trial(self.repeat));
        match self.verdict {
            Verdict::NotReached => "not done yet".to_owned(),
            Verdict::Lost => format!("kept: {} gave no answer", self.entry.old),
            Verdict::Kept => format!("kept: the fastest of {}", self.entry.screened.len()),
            Verdict::NotProven => {
                format!("kept: {fastest} is not proven faster: trial {first}; repeat {repeat}")
            }
            Verdict::Wrong => {
                let options = self.entry.fastest().map(|one| one.candidate.options());
                let options: Vec<String> = { options.into_iter().flatten() }
                    .map(|word| {
                        if word.contains('=') {
                            format!("\"{word}\"")
                        } else {
                            word.to_owned()
                        }
                    })
                    .collect();
                format!(
                    "kept: {fastest} is faster, but fails `warptile verify {}` on this GPU",
                    options.join(" ")
                )
            }
            Verdict::Won => format!("won: trial {first}; repeat {repeat}"),
        }
    }
}

/// A problem that was just screened.
pub(super) fn screened(entry: &Entry) -> String {
    let width = text::columns();
    let mut lines = text::wrapped(&entry.problem, width, 4);
    if let (Some(old), Some(fastest)) = (entry.old_us(), entry.fastest()) {
        let (best, microseconds) = match fastest.microseconds < old {
            true => (&fastest.candidate, fastest.microseconds),
            false => (&entry.old, old),
        };
        let line = format!(
            "  {:>10.1} us  {:.3} x  {best}, the best of {}",
            microseconds,
            old / microseconds,
            entry.screened.len()
        );
        lines.push('\n');
        lines.push_str(&text::wrapped(&line, width, 4));
    }
    lines
}

/// The table of before and after.
pub(super) fn print(
    outcomes: &[Outcome<'_>],
    rules: Rules,
    console: &mut dyn Write,
) -> Result<(), Failure> {
    writeln!(console, "\nbefore and after")?;
    for outcome in outcomes {
        let entry = outcome.entry;
        text::wrap_to(console, 4, &entry.problem)?;
        let mut row = |word: &str, microseconds: f64, candidate: &Candidate| {
            let line = format!("  {word:<7}{microseconds:>10.1} us  {candidate}");
            text::wrap_to(console, 4, &line)
        };
        if let Some(old) = entry.old_us() {
            row("before", old, &entry.old)?;
            if outcome.verdict == Verdict::Won {
                row("after", old / outcome.gain(), outcome.decided())?;
            }
        }
        text::wrap_to(console, 4, &format!("  {}", outcome.reason()))?;
    }
    let won: Vec<f64> = outcomes
        .iter()
        .filter(|one| one.verdict == Verdict::Won)
        .map(Outcome::gain)
        .collect();
    let logs: f64 = won.iter().map(|gain| gain.ln()).sum();
    let mean = match won.len() {
        0 => String::new(),
        count => format!(
            ", {:.3} times as fast on average",
            (logs / count as f64).exp()
        ),
    };
    let level = format!("{:.4}", 100.0 * (1.0 - rules.level()));
    let level = level.trim_end_matches('0').trim_end_matches('.');
    Ok(say!(
        console,
        "result   {} of {} problems have another kernel or other settings{mean}; each bound holds with {level}% confidence",
        won.len(),
        outcomes.len()
    )?)
}

/// The JSON that `--json` writes.
///
/// After Ctrl-C "cut_short" is true.
pub(super) fn json(
    machine: &Machine,
    outcomes: &[Outcome<'_>],
    cut_short: bool,
) -> Result<Value, Failure> {
    let row = |outcome: &Outcome<'_>| {
        let mut row = json::value(outcome.entry)?;
        row["verdict"] = json::value(outcome.verdict)?;
        row["chosen"] = json::value(outcome.decided())?;
        // Old over new time; 1 where the choice stays.
        row["gain"] = outcome.gain().into();
        row["first_bound"] = outcome.first.and_then(|judged| judged.bound).into();
        row["repeat_bound"] = outcome.repeat.and_then(|judged| judged.bound).into();
        Ok(row)
    };
    let mut json = json::value(machine)?;
    json["cut_short"] = cut_short.into();
    json["problems"] = outcomes
        .iter()
        .map(row)
        .collect::<Result<Vec<_>, Failure>>()?
        .into();
    Ok(json)
}

/// The gains as a picture.
pub(super) fn svg(outcomes: &[Outcome<'_>], machine: &Machine) -> String {
    let bars: Vec<Bar> = outcomes
        .iter()
        .map(|outcome| Bar {
            title: outcome.entry.problem.clone(),
            value: outcome.gain(),
            shown: match outcome.verdict {
                Verdict::Won => format!("{:.3}  {}", outcome.gain(), outcome.decided()),
                _ => format!("1      {}", outcome.decided()),
            },
        })
        .collect();
    let title = format!(
        "Speed after tuning, relative to before: {}, {}",
        machine.device, machine.driver
    );
    chart::svg(&title, &bars)
}
