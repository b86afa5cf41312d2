//! Settings of a launch, where they are not as the planner has them.

use std::fmt;

/// The launch setting that overrides the planner's: the schedule. The results are the same, except for the order of sums
/// in [`ranges`](Settings::ranges). Values that a launch can't have become the nearest that it can.
///
/// Prints and parses as words, such as `at-once=4 ranges=2 ctas=1`; `at-once=all` is [`u32::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Settings {
    /// Heads whose tiles are interleaved: [`LaunchShape::heads_at_once`](crate::plan::LaunchShape::heads_at_once).
    pub at_once: Option<u32>,
    /// Ranges that the keys of the last tiles are split into: [`LaunchShape::splits`](crate::plan::LaunchShape::splits).
    pub ranges: Option<u32>,
    /// CTAs of a kernel whose CTAs stay for the whole launch, for each multiprocessor:
    /// [`Step::ctas_per_multiprocessor`](crate::plan::Step::ctas_per_multiprocessor).
    pub ctas: Option<u32>,
}

impl Settings {
    /// Returns true if all is as the planner has it.
    pub fn is_default(&self) -> bool {
        *self == Settings::default()
    }

    /// Applies one word; `None` if it is not a setting. For grammars that have other words as well.
    pub fn parse_word(&mut self, word: &str) -> Option<()> {
        let (name, value) = word.split_once('=')?;
        let setting = match name {
            "at-once" => &mut self.at_once,
            "ranges" => &mut self.ranges,
            "ctas" => &mut self.ctas,
            _ => return None,
        };
        *setting = match (name, value) {
            ("at-once", "all") => Some(u32::MAX),
            _ => Some(value.parse().ok().filter(|&value| value > 0)?),
        };
        Some(())
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = [
            ("at-once", self.at_once),
            ("ranges", self.ranges),
            ("ctas", self.ctas),
        ];
        let words: Vec<String> = settings
            .iter()
            .filter_map(|(name, value)| match (*name, (*value)?) {
                ("at-once", u32::MAX) => Some("at-once=all".to_owned()),
                (name, value) => Some(format!("{name}={value}")),
            })
            .collect();
        f.pad(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        let settings = Settings {
            at_once: Some(4),
            ctas: Some(1),
            ..Settings::default()
        };
        assert_eq!(settings.to_string(), "at-once=4 ctas=1");
        let mut read = Settings::default();
        for word in settings.to_string().split(' ') {
            assert_eq!(read.parse_word(word), Some(()));
        }
        assert_eq!(read, settings);
        for word in ["at-once=all", "at-once=4294967295"] {
            assert_eq!(read.parse_word(word), Some(()));
            assert_eq!(read.to_string(), "at-once=all ctas=1");
        }
        for word in ["ctas=all", "ctas=0", "ctas=x", "ctas", "b2", "mask=causal"] {
            assert_eq!(read.parse_word(word), None, "{word}");
        }
        assert!(Settings::default().is_default() && !settings.is_default());
    }
}
