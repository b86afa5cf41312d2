//! The evaluation of a host's results for its candidates, by the rules of trials and by nothing else.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};

use super::archive::{Measured, OfProblem, State, Trial, Verdict};
use super::format::{CONTROL, Results, Run};
use crate::trial::{Judged, Rules, ratio};

/// The verdict on each candidate of the task; one that is missing here was not measured to the end.
///
/// # Errors
/// Why these results are not to be used at all, in words.
pub(crate) fn verdicts(results: &Results) -> Result<BTreeMap<String, Verdict>> {
    check_control(results)?;
    let mut verdicts = BTreeMap::new();
    for asked in &results.task.candidates {
        let kernel = &asked.kernel;
        let verdict = match results.checks.get(kernel) {
            None => None,
            Some(check) => match &check.wrong {
                Some(what) => Some(Verdict::of(State::Wrong, what)),
                None if check.problems < results.task.checks => None,
                None => of_times(results, kernel)?,
            },
        };
        verdicts.extend(verdict.map(|verdict| (kernel.clone(), verdict)));
    }
    Ok(verdicts)
}

/// A session that does not see that a kernel is 2% slower sees no gain either.
fn check_control(results: &Results) -> Result<()> {
    let rules = Rules::of_tried(1);
    for pass in [1, 2] {
        let slowed = { results.ratios(CONTROL, pass, &results.task.problems, ratio) }
            .context("the control was not measured to the end")?;
        let won = rules.judge(&slowed).wins();
        ensure!(!won, "pass {pass}: the control, which is 2% slower, won");
        let inverse: Vec<f64> = slowed.iter().map(|ratio| ratio.recip()).collect();
        let judged = rules.judge(&inverse);
        ensure!(
            judged.wins(),
            "pass {pass}: the control is 2% slower, and the times do not show it (median {:.4}): measure on a quieter GPU, or \
             with more blocks",
            judged.median.recip()
        );
    }
    Ok(())
}

/// The evaluation of a candidate's times; `None` if it was not measured to the end. What lost a trial is not measured
/// further.
fn of_times(results: &Results, kernel: &str) -> Result<Option<Verdict>> {
    let task = &results.task;
    let tried = task.tried.max(task.candidates.len());
    let rules = Rules::of_tried(tried);
    let runs =
        |pass| { results.runs.iter() }.filter(move |run| run.kernel == kernel && run.pass == pass);
    ensure!(
        !runs(1).any(|first| runs(2).any(|again| again.process == first.process)),
        "{kernel} was repeated in the process of its first trial, which says nothing about another"
    );
    let unseen = "no certain gain on problems that the search did not see";
    let (mut trials, mut why) = (Vec::new(), "");
    for (pass, problems, lost) in [
        (1, &task.problems, "no certain gain"),
        (
            2,
            &task.problems,
            "the gain did not repeat in a fresh process",
        ),
        (1, &task.held_out, unseen),
        (2, &task.held_out, unseen),
    ] {
        let Some(ratios) = results.ratios(kernel, pass, problems, ratio) else {
            return Ok(None);
        };
        let judged = rules.judge(&ratios);
        let Judged { median, bound, .. } = judged;
        trials.push(Trial { median, bound });
        if !judged.wins() {
            why = lost;
            break;
        }
    }
    Ok(Some(Verdict {
        state: if why.is_empty() {
            State::Won
        } else {
            State::Lost
        },
        why: why.to_owned(),
        measured: Some(Measured {
            device: results.device.clone(),
            driver: results.driver.clone(),
            program: results.program.clone(),
            date: results.date.clone(),
            tried,
            blocks: task.blocks,
            held_out: trials.split_off(trials.len().min(2)),
            trials,
            problems: runs(1)
                .map(|run| (run.problem.clone(), of_problem(run)))
                .collect(),
        }),
    }))
}

fn of_problem(run: &Run) -> OfProblem {
    let times = run.blocks.iter().flat_map(|&[_, b2, b3, _]| [b2, b3]);
    OfProblem {
        baseline: run.baseline.clone(),
        ratio: median(run.blocks.iter().copied().map(ratio)).unwrap_or(0.0),
        microseconds: median(times).unwrap_or(0.0),
    }
}

/// `None` for no values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values = Vec::from_iter(values);
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evolve::CONTROL_LAUNCHES;
    use crate::evolve::format::{Asked, Check, Task};
    use crate::evolve::propose::Draw;

    const BLOCKS: usize = 41;

    /// A host that is a formula: times of kernels by their true gains, with noise and a clock that drifts.
    struct Host {
        /// (kernel, gain on what is seen, gain in the repeat, gain on what is held out)
        kernels: Vec<(&'static str, [f64; 3])>,
        noise: f64,
        tried: usize,
    }

    fn uniform(draw: &mut Draw) -> f64 {
        draw.below(1 << 24) as f64 / f64::from(1 << 24) - 0.5
    }

    impl Host {
        fn run(&self, draw: &mut Draw, kernel: &str, pass: u32, problem: &str, gain: f64) -> Run {
            let held_out = problem.starts_with("held");
            let blocks = (0..BLOCKS).map(|_| {
                let drift = 0.02 * uniform(draw);
                let mut time = |place: f64, of_one: f64| {
                    100.0
                        * of_one
                        * (1.0 + drift * place / 3.0)
                        * (1.0 + self.noise * uniform(draw))
                };
                let (old, new) = (1.0, 1.0 / gain);
                [
                    time(0.0, old),
                    time(1.0, new),
                    time(2.0, new),
                    time(3.0, old),
                ]
            });
            Run {
                kernel: kernel.to_owned(),
                pass,
                process: u64::from(pass),
                problem: problem.to_owned(),
                held_out,
                baseline: "in use".to_owned(),
                blocks: blocks.collect(),
            }
        }

        fn results(&self, seed: u64) -> Results {
            let mut draw = Draw(seed);
            let text = |texts: &[&str]| -> Vec<String> {
                texts.iter().map(|&text| text.to_owned()).collect()
            };
            let task = Task {
                family: "wmma".to_owned(),
                blocks: BLOCKS,
                control_launches: CONTROL_LAUNCHES,
                tried: self.tried,
                checks: 100,
                seed: 1,
                problems: text(&["one", "two"]),
                held_out: text(&["held 1", "held 2"]),
                candidates: { self.kernels.iter() }
                    .map(|(kernel, _)| Asked {
                        kernel: (*kernel).to_owned(),
                        image: format!("{kernel}_f16_sm_90"),
                        sha256: String::new(),
                    })
                    .collect(),
            };
            let control = 50.0 / CONTROL_LAUNCHES as f64;
            let kernels = self.kernels.iter().copied();
            let all = kernels.chain([(CONTROL, [control; 3])]);
            let mut runs = Vec::new();
            for (kernel, [gain, again, unseen]) in all {
                for pass in [1, 2] {
                    for problem in &task.problems {
                        let gain = if pass == 1 { gain } else { again };
                        runs.push(self.run(&mut draw, kernel, pass, problem, gain));
                    }
                    for problem in &task.held_out {
                        runs.push(self.run(&mut draw, kernel, pass, problem, unseen));
                    }
                }
            }
            let right = Check {
                problems: 100,
                wrong: None,
            };
            Results {
                checks: { self.kernels.iter() }
                    .map(|(kernel, _)| ((*kernel).to_owned(), right.clone()))
                    .collect(),
                task,
                device: "a formula".to_owned(),
                driver: String::new(),
                program: String::new(),
                date: String::new(),
                cut_short: false,
                runs,
                counters: BTreeMap::new(),
            }
        }
    }

    fn host(kernels: &[(&'static str, [f64; 3])]) -> Host {
        Host {
            kernels: kernels.to_vec(),
            noise: 0.01,
            tried: kernels.len(),
        }
    }

    /// Results in which `kernel` won, for tests of what follows.
    fn won(kernel: &'static str) -> Results {
        host(&[(kernel, [1.05; 3])]).results(3)
    }

    fn why(verdict: Option<&Verdict>) -> &str {
        match verdict {
            Some(verdict) if verdict.state == State::Lost => &verdict.why,
            other => panic!("not lost: {other:?}"),
        }
    }

    #[test]
    fn a_gain_wins_and_the_rest_loses_for_a_reason() {
        let host = host(&[
            ("better", [1.04, 1.04, 1.04]),
            ("equal", [1.0, 1.0, 1.0]),
            ("slower", [0.98, 0.98, 0.98]),
            ("once", [1.04, 1.0, 1.04]),
            ("here only", [1.04, 1.04, 0.99]),
        ]);
        for seed in 0..20 {
            let verdicts = verdicts(&host.results(seed)).unwrap();
            assert_eq!(verdicts["better"].state, State::Won);
            let measured = verdicts["better"].measured.as_ref().unwrap();
            assert_eq!((measured.trials.len(), measured.held_out.len()), (2, 2));
            assert!((measured.trials[0].median - 1.04).abs() < 0.01);
            assert_eq!(measured.problems["one"].baseline, "in use");
            assert_eq!(why(verdicts.get("equal")), "no certain gain");
            assert_eq!(why(verdicts.get("slower")), "no certain gain");
            assert_eq!(
                why(verdicts.get("once")),
                "the gain did not repeat in a fresh process"
            );
            assert_eq!(
                why(verdicts.get("here only")),
                "no certain gain on problems that the search did not see"
            );
        }
    }

    #[test]
    fn a_control_that_is_slower_on_purpose_never_wins_and_is_seen() {
        let host = host(&[]);
        for seed in 0..200 {
            let results = host.results(seed);
            assert_eq!(verdicts(&results).unwrap(), BTreeMap::new(), "seed {seed}");
        }
        // As a candidate it would not win either.
        let slower = Host {
            kernels: vec![("slower", [0.98; 3])],
            noise: 0.05,
            tried: 1,
        };
        for seed in 0..200 {
            let results = slower.results(seed);
            if let Ok(verdicts) = verdicts(&results) {
                assert_eq!(verdicts["slower"].state, State::Lost);
            }
        }
    }

    #[test]
    fn a_session_that_does_not_see_the_control_is_not_used() {
        let noisy = Host {
            kernels: vec![("better", [1.04; 3])],
            noise: 1.0,
            tried: 1,
        };
        let error = verdicts(&noisy.results(1)).unwrap_err().to_string();
        assert!(error.contains("the times do not show it"), "{error}");
        let mut results = host(&[("better", [1.04; 3])]).results(1);
        // Whoever measured took the control for something faster.
        for run in results.runs.iter_mut().filter(|run| run.kernel == CONTROL) {
            for [a1, b2, b3, a4] in &mut run.blocks {
                std::mem::swap(a1, b2);
                std::mem::swap(a4, b3);
            }
        }
        let error = verdicts(&results).unwrap_err().to_string();
        assert!(error.contains("which is 2% slower, won"), "{error}");
        results.runs.retain(|run| run.kernel != CONTROL);
        assert!(verdicts(&results).is_err());
    }

    #[test]
    fn what_computes_wrong_is_out_however_fast_it_is() {
        let mut results = host(&[("skips work", [1.9; 3]), ("unchecked", [1.9; 3])]).results(1);
        let check = results.checks.get_mut("skips work").unwrap();
        check.wrong = Some("b1 q3 k5: NaN at 7".to_owned());
        results.checks.get_mut("unchecked").unwrap().problems = 99;
        let found = verdicts(&results).unwrap();
        let wrong = &found["skips work"];
        assert!(wrong.state == State::Wrong && wrong.why.contains("NaN"));
        // Too few problems would check nothing.
        assert_eq!(found.get("unchecked"), None);
        results.checks.clear();
        assert_eq!(verdicts(&results).unwrap(), BTreeMap::new());
    }

    #[test]
    fn the_confidence_follows_from_the_number_tried() {
        // One that is above the least gain by little: enough for one trial of few blocks, not for the best of many.
        let judged = |tried| {
            let host = Host {
                kernels: vec![("little", [1.0075; 3])],
                noise: 0.01,
                tried,
            };
            (0..40)
                .filter(|&seed| {
                    let verdicts = verdicts(&host.results(seed)).unwrap();
                    verdicts["little"].state == State::Won
                })
                .count()
        };
        let (alone, of_many) = (judged(1), judged(100_000));
        assert!(alone > of_many, "{alone} of 40, then {of_many}");
        // A task cannot claim to have tried less than it holds.
        let mut results = host(&[("a", [1.0; 3]), ("b", [1.0; 3])]).results(1);
        results.task.tried = 0;
        let verdict = &verdicts(&results).unwrap()["a"];
        assert_eq!(verdict.state, State::Lost);
        assert_eq!(verdict.measured.as_ref().unwrap().tried, 2);
    }

    #[test]
    fn a_repeat_in_the_same_process_is_none() {
        let mut results = won("better");
        for run in &mut results.runs {
            run.process = 1;
        }
        let error = verdicts(&results).unwrap_err().to_string();
        assert!(
            error.contains("in the process of its first trial"),
            "{error}"
        );
    }

    #[test]
    fn what_was_cut_short_is_measured_again() {
        let whole = won("better");
        assert_eq!(verdicts(&whole).unwrap()["better"].state, State::Won);
        for cut in [
            |run: &Run| run.pass == 2 && run.kernel == "better",
            |run: &Run| run.problem == "two" && run.kernel == "better",
            |run: &Run| run.problem == "held 2" && run.kernel == "better",
        ] {
            let mut results = whole.clone();
            results.runs.retain(|run| !cut(run));
            assert_eq!(verdicts(&results).unwrap(), BTreeMap::new());
        }
        // A block too few is none of the number that was decided.
        let mut results = whole;
        results.runs[0].blocks.pop();
        assert_eq!(verdicts(&results).unwrap(), BTreeMap::new());
    }
}
