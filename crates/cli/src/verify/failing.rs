//! The report on a problem that failed: the smallest that still does, as a command.

use std::sync::PoisonError;

use warptile::plan::Choice;
use warptile_check::Case;

use super::check::Checked;
use super::choose::Trial;
use super::{MaybeLane, Verify};
use crate::failure::Failure;
use crate::interrupt;
use crate::options::word;

/// Simpler cases tried before the smallest failing one is printed.
const SHRINK_TRIES: usize = 500;

impl Verify<'_> {
    /// A device's failure with what was being computed. It takes the problems of all threads along, whoever caused it.
    pub(super) fn with_commands(&self, failure: Failure) -> Failure {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match (failure, &lost[..]) {
            (Failure::Device(message), [command]) => {
                Failure::Device(format!("{message}\nwhile computing: {command}"))
            }
            (Failure::Device(message), [_, ..]) => Failure::Device(format!(
                "{message}\nwhile computing all of these; one of them may be the cause:\n{}",
                lost.join("\n")
            )),
            (failure, _) => failure,
        }
    }

    /// The last of ever simpler problems that still fails.
    pub(super) fn smallest(&self, lane: &MaybeLane<'_>, trial: Trial) -> Result<Trial, Failure> {
        let simpler = |case: &Case| match self.team {
            Some(_) => { case.shrink().into_iter() }
                .map(|case| (self.args.several.fitted(&case), case.heads))
                // Heads that the devices' number makes more of again would be shrunk for ever.
                .filter(|(simpler, heads)| simpler != case && simpler.heads == *heads)
                .map(|(simpler, _)| simpler)
                .collect(),
            None => case.shrink(),
        };
        let case = shrink(trial.case.clone(), SHRINK_TRIES, simpler, |case| {
            // A kernel of gradients computes nothing else. After Ctrl-C what there is must do.
            let is_other = trial.image.is_some() && case.backward != trial.case.backward;
            if is_other || interrupt::requested() {
                return Ok(false);
            }
            let simpler = Trial {
                case: case.clone(),
                ..trial.clone()
            };
            match self.check(lane, &simpler, None) {
                Ok((Checked::Ran(ran), _)) => Ok(ran.outcome.is_err()),
                Ok(_) | Err(Failure::Interrupted(_)) => Ok(false),
                Err(failure) => Err(failure),
            }
        })?;
        Ok(Trial { case, ..trial })
    }

    pub(super) fn repeat_command(&self, trial: &Trial) -> String {
        let several = &self.args.several;
        let mut command = match &several.devices {
            Some(devices) => format!("warptile verify --devices {devices}"),
            None => format!("warptile verify --device {}", self.args.device),
        };
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                command.push_str(&format!(" --{name} {value}"));
            }
        };
        option("engine", several.engine.as_ref().map(word));
        option("scheme", several.scheme.as_ref().map(word));
        option("sharding", several.sharding.as_ref().map(word));
        match trial.image {
            Some(image) => option("kernel", Some(image.name.to_owned())),
            None => {
                option("kernel", self.args.kernel.as_ref().map(Choice::to_string));
                option("target", self.args.target.clone());
            }
        }
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        option("shared-kib", number(self.args.shared_kib));
        let settings = self.args.settings.map(|settings| format!("\"{settings}\""));
        option("settings", settings);
        if let Some(repeat) = self.runs.repeat {
            option("repeat", number(Some(repeat.launches)));
            let sync = (!trial.case.backward).then(|| word(&repeat.sync));
            option("sync", sync);
        }
        if trial.image.is_none() && self.args.best {
            command.push_str(" --best");
        }
        format!("{command} --case \"{}\"", trial.case)
    }
}

/// Takes the first simpler case that `fails`, again and again, until none does or `tries` cases were tried.
fn shrink<E>(
    mut case: Case,
    mut tries: usize,
    simpler: impl Fn(&Case) -> Vec<Case>,
    mut fails: impl FnMut(&Case) -> Result<bool, E>,
) -> Result<Case, E> {
    'simpler: loop {
        for candidate in simpler(&case) {
            if tries == 0 {
                return Ok(case);
            }
            tries -= 1;
            if fails(&candidate)? {
                case = candidate;
                continue 'simpler;
            }
        }
        return Ok(case);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use warptile::Mask;

    fn shrunk(tries: usize, fails: impl Fn(&Case) -> bool) -> String {
        let case: Case =
            "b3 q400 k300 h6/2 d128 f16 mask=window,3,9 scale=0.5 splits=512 layout=gaps seed=5"
                .parse()
                .unwrap();
        let Ok(smallest) = shrink(case, tries, Case::shrink, |case| {
            Ok::<_, Infallible>(fails(case))
        });
        smallest.to_string()
    }

    #[test]
    fn only_what_matters_is_left() {
        let fails = |case: &Case| case.call().key_len() >= 65 && case.scoring.mask != Mask::none();
        assert_eq!(
            shrunk(10_000, fails),
            "b1 q0 k65 h1 d8 f16 mask=window,3,9 seed=5"
        );
    }

    #[test]
    fn shrinking_ends_when_the_tries_do() {
        assert_eq!(
            shrunk(1, |_| true),
            "b3 q400 k300 h6/2 d128 f16 scale=0.5 splits=512 layout=gaps seed=5"
        );
    }
}
