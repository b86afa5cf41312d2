//! Rates as text.

use std::collections::BTreeMap;
use std::fmt;

use warptile_kernels::Family;

use super::{Chosen, FeatureCost, PRICED_VARIANTS, Rate, Rates, Speed, TABLES, VariantSpeed};
use crate::error::{Error, Result};
use crate::plan::Settings;
use crate::spec::Scoring;

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device {}", self.device)?;
        if let Some(driver) = &self.driver {
            writeln!(f, "driver {driver}")?;
        }
        writeln!(f, "multiprocessors {}", self.multiprocessors)?;
        writeln!(f, "bandwidth {}", self.bandwidth)?;
        writeln!(f, "launch {}", self.launch_us)?;
        for rate in &self.kernels {
            let Speed {
                tflops,
                tile_end,
                start_us,
            } = rate.speed;
            let word = if rate.modelled { "modelled" } else { "kernel" };
            write!(f, "{word} {} {tflops} {tile_end}", rate.kernel)?;
            match start_us {
                0.0 => writeln!(f)?,
                start_us => writeln!(f, " {start_us}")?,
            }
        }
        for one in &self.variants {
            let word = { PRICED_VARIANTS.iter() }.find(|priced| priced.1 == one.schedule);
            if let Some((word, _)) = word {
                writeln!(f, "{word} {} {}", one.kernel, one.times)?;
            }
        }
        for FeatureCost {
            family,
            word,
            times,
            ..
        } in &self.features
        {
            writeln!(f, "feature {family} {word} {times}")?;
        }
        for (problem, Chosen { kernel, settings }) in &self.choices {
            let space = if settings.is_default() { "" } else { " " };
            writeln!(f, "choice {kernel}{space}{settings} {problem}")?;
        }
        Ok(())
    }
}

/// The GPU that a table is of.
fn device_of(text: &str) -> Option<&str> {
    { text.lines() }.find_map(|line| line.strip_prefix("device "))
}

/// `NAME [SETTING...] PROBLEM`. The words of the problem are not understood here: it is found again by its line.
fn choice(text: &str) -> Option<(String, Chosen)> {
    let mut words = text.split_whitespace();
    let kernel = words.next()?.to_owned();
    let mut settings = Settings::default();
    let words: Vec<&str> = words
        .skip_while(|word| settings.parse_word(word).is_some())
        .collect();
    (!words.is_empty()).then(|| (words.join(" "), Chosen { kernel, settings }))
}

/// Adds a line, or replaces the line about the same thing that the table has already: its own, or that of the table it is like.
fn put<T>(lines: &mut Vec<T>, line: T, is_same: impl Fn(&T) -> bool) {
    match lines.iter_mut().find(|old| is_same(old)) {
        Some(old) => *old = line,
        None => lines.push(line),
    }
}

impl std::str::FromStr for Rates {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut rates = Rates {
            device: String::new(),
            driver: None,
            multiprocessors: 0,
            bandwidth: 0.0,
            launch_us: 0.0,
            kernels: Vec::new(),
            variants: Vec::new(),
            features: Vec::new(),
            choices: BTreeMap::new(),
        };
        let mut has_begun = false;
        for (index, line) in text.lines().enumerate() {
            let line_number = index + 1;
            let broken = |rule: &str| Error::Rates {
                line: line_number,
                rule: rule.to_owned(),
            };
            let line = line.split('#').next().unwrap_or_default().trim();
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rest = rest.trim();
            let positive = |text: &str| {
                text.parse::<f64>()
                    .ok()
                    .filter(|number| number.is_finite() && *number > 0.0)
                    .ok_or_else(|| broken("a number greater than 0 is expected"))
            };
            let is_first = !has_begun;
            has_begun |= !word.is_empty();
            match word {
                "" => {}
                "like" => {
                    let embedded = TABLES.iter().find(|text| device_of(text) == Some(rest));
                    rates = match (is_first, embedded) {
                        (false, _) => return Err(broken("`like` must be the first line")),
                        (true, None) => {
                            let known: Vec<&str> =
                                TABLES.into_iter().filter_map(device_of).collect();
                            return Err(broken(&format!(
                                "`like` must name one of {}",
                                known.join(", ")
                            )));
                        }
                        (true, Some(text)) => text.parse()?,
                    };
                }
                "device" if !rest.is_empty() => rest.clone_into(&mut rates.device),
                "driver" if !rest.is_empty() => rates.driver = Some(rest.to_owned()),
                "multiprocessors" => {
                    rates.multiprocessors = rest
                        .parse()
                        .ok()
                        .filter(|count| *count > 0)
                        .ok_or_else(|| broken("a count of at least 1 is expected"))?;
                }
                "bandwidth" => rates.bandwidth = positive(rest)?,
                "launch" => rates.launch_us = positive(rest)?,
                "kernel" | "modelled" => {
                    let words: Vec<&str> = rest.split_whitespace().collect();
                    let (kernel, tflops, tile_end, start_us) = match *words.as_slice() {
                        [kernel, tflops, tile_end] => (kernel, tflops, tile_end, "0"),
                        [kernel, tflops, tile_end, start_us] => {
                            (kernel, tflops, tile_end, start_us)
                        }
                        _ => {
                            return Err(broken(&format!(
                                "`{word} NAME TFLOPS TILE_END [START]` is expected"
                            )));
                        }
                    };
                    let not_negative = |text: &str, rule: &str| {
                        { text.parse().ok() }
                            .filter(|number: &f64| number.is_finite() && *number >= 0.0)
                            .ok_or_else(|| broken(rule))
                    };
                    let rate = Rate {
                        kernel: kernel.to_owned(),
                        speed: Speed {
                            tflops: positive(tflops)?,
                            tile_end: not_negative(
                                tile_end,
                                "the end of a tile must be 0 or more blocks",
                            )?,
                            start_us: not_negative(
                                start_us,
                                "the start of a kernel must be 0 or more microseconds",
                            )?,
                        },
                        modelled: word == "modelled",
                    };
                    put(&mut rates.kernels, rate, |old| old.kernel == kernel);
                }
                word if PRICED_VARIANTS.iter().any(|one| one.0 == word) => {
                    let (kernel, times) = { rest.split_once(char::is_whitespace) }
                        .ok_or_else(|| broken(&format!("`{word} NAME TIMES` is expected")))?;
                    let times = positive(times.trim())?;
                    let of_word = PRICED_VARIANTS.iter().filter(|one| one.0 == word);
                    for &(_, schedule) in of_word {
                        let speed = VariantSpeed {
                            schedule,
                            kernel: kernel.to_owned(),
                            times,
                        };
                        put(&mut rates.variants, speed, |old| {
                            old.schedule == schedule && old.kernel == kernel
                        });
                    }
                }
                "feature" => {
                    let words: Vec<&str> = rest.split_whitespace().collect();
                    let found = match *words.as_slice() {
                        [family, word, times] => {
                            let family =
                                { Family::ALL.into_iter() }.find(|one| one.to_string() == family);
                            let priced = Scoring::features().find(|one| one.0 == word);
                            family.zip(priced).zip(Some(times))
                        }
                        _ => None,
                    };
                    let ((family, (word, feature)), times) = found.ok_or_else(|| {
                        let words: Vec<&str> = Scoring::features().map(|(word, _)| word).collect();
                        broken(&format!(
                            "`feature FAMILY {} TIMES` is expected",
                            words.join("|")
                        ))
                    })?;
                    let cost = FeatureCost {
                        family,
                        word,
                        feature,
                        times: positive(times)?,
                    };
                    put(&mut rates.features, cost, |old| {
                        (old.family, old.word) == (family, word)
                    });
                }
                "choice" => {
                    let (problem, chosen) = choice(rest)
                        .ok_or_else(|| broken("`choice NAME [SETTING...] PROBLEM` is expected"))?;
                    rates.choices.insert(problem, chosen);
                }
                _ => {
                    return Err(broken(
                        "`like`, `device`, `driver`, `multiprocessors`, `bandwidth`, `launch`, `kernel`, `modelled`, `pairs`, `groups`, `feature` or `choice` is expected",
                    ));
                }
            }
        }
        let given = [
            ("device", !rates.device.is_empty()),
            ("multiprocessors", rates.multiprocessors > 0),
            ("bandwidth", rates.bandwidth > 0.0),
            ("launch", rates.launch_us > 0.0),
        ];
        match given.iter().find(|(_, given)| !given) {
            Some((missing, _)) => Err(Error::Rates {
                line: text.lines().count(),
                rule: format!("the table has no `{missing}`"),
            }),
            None => Ok(rates),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_line_is_named() {
        for (text, start) in [
            ("device X\nkernel a 1", "rates, line 2: `kernel NAME"),
            ("kernel a -1 0", "rates, line 1: a number greater"),
            ("# nothing\nspeed 3", "rates, line 2: `like`, `device`"),
            (
                "like a",
                "rates, line 1: `like` must name one of NVIDIA H200,",
            ),
            (
                "device X\nlike NVIDIA H200",
                "rates, line 2: `like` must be the first line",
            ),
            (
                "device X",
                "rates, line 1: the table has no `multiprocessors`",
            ),
            ("choice a", "rates, line 1: `choice NAME"),
            ("modelled a", "rates, line 1: `modelled NAME"),
            ("pairs a", "rates, line 1: `pairs NAME"),
            ("pairs a -1", "rates, line 1: a number greater"),
            ("feature wmma scale 2", "rates, line 1: `feature FAMILY"),
            ("feature wmma alibi 0", "rates, line 1: a number greater"),
            ("kernel a 1 0 -1", "rates, line 1: the start of a kernel"),
        ] {
            let error = text.parse::<Rates>().unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }

    #[test]
    fn a_table_may_begin_with_all_of_an_embedded_one() {
        let of_h200: Rates = TABLES[0].parse().unwrap();
        let text = "# A comment.\nlike NVIDIA H200\ndevice My GPU\nbandwidth 2";
        let rates: Rates = text.parse().unwrap();
        let expected = Rates {
            device: "My GPU".to_owned(),
            bandwidth: 2.0,
            ..of_h200
        };
        assert_eq!(rates, expected);
        // A line of its own replaces the other table's.
        for (line, about) in [
            ("bandwidth 3", "bandwidth "),
            (
                "kernel decode_d128_16x128_w8_s2 50 0.5",
                "decode_d128_16x128_w8_s2 ",
            ),
            (
                "pairs wgmma_d256_128x64_w12_s2 7",
                "pairs wgmma_d256_128x64_w12_s2 ",
            ),
            ("feature mma alibi 7", "feature mma alibi "),
            (
                "choice wgmma_d64_64x128_w8_s2 b3 q104 k128 h12 d64 f16",
                "b3 q104 k128 h12 d64 f16",
            ),
        ] {
            let own: Rates = format!("{text}\n{line}").parse().unwrap();
            let printed = own.to_string();
            let lines: Vec<&str> = printed
                .lines()
                .filter(|line| line.contains(about))
                .collect();
            assert_eq!(lines, [line]);
            assert_eq!(
                printed.lines().count(),
                rates.to_string().lines().count(),
                "{line}"
            );
        }
        // Printed it stands alone.
        assert_eq!(rates.to_string().parse::<Rates>().unwrap(), rates);
    }

    #[test]
    fn text_round_trips() {
        let text = "device My GPU\ndriver CUDA 13.0\nmultiprocessors 80\nbandwidth 0.9\nlaunch 3\n\
                    kernel mma_d64_64x64_w4_s2 80.25 2.5\nmodelled mma_d96_128x32_w4_s4 81 2.5\n\
                    pairs wgmma_d256_128x64_w12_s2 1.03\ngroups wgmma_d128_192x64_w16_s4 1.01\n\
                    choice mma_d64_64x64_w4_s2 b1 q8 k64 h1 d64 f16\n\
                    choice wgmma_d64_64x128_w8_s2 at-once=4 ranges=2 ctas=1 b2 q8 k64 h1 d64 f16 mask=causal\n";
        let rates: Rates = text.parse().unwrap();
        assert_eq!(rates.to_string(), text);
        assert_eq!((rates.measured_kernels(), rates.chosen_problems()), (1, 2));
        assert_eq!(rates.to_string().parse::<Rates>().unwrap(), rates);
    }
}
