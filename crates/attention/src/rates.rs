//! How fast each kernel is, for choosing among those that apply: data, one table for each kind of GPU.

use std::sync::LazyLock;

use warptile_kernels::{Image, Schedule};

use crate::device::DeviceProfile;
use crate::error::{Error, Result};
use crate::plan::{TileKeys, rest_keys, splits_of, splits_tiles};
use crate::problem::Problem;

/// What was measured of the kernels on one kind of GPU.
///
/// As text, a line each: `device NAME`, `multiprocessors COUNT`, `bandwidth TB/s`, `launch MICROSECONDS`, and
/// `kernel NAME TFLOP/s TILE_END` for each kernel; `#` starts a comment.
///
/// ```
/// use warptile::Rates;
///
/// let rates: Rates = "device My GPU\nmultiprocessors 80\nbandwidth 0.9\nlaunch 3\nkernel wmma_d64_64x64_w4_s2 80 2.5".parse()?;
/// assert_eq!(rates.device(), "My GPU");
/// assert!("kernel x fast 1".parse::<Rates>().is_err());
/// # Ok::<(), warptile::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    device: String,
    multiprocessors: u32,
    bandwidth: f64,
    launch_us: f64,
    kernels: Vec<Rate>,
}

/// One kernel's line.
#[derive(Debug, Clone, PartialEq)]
struct Rate {
    kernel: String,
    /// TFLOP/s of the whole device on long unmasked sequences.
    tflops: f64,
    /// What the beginning and end of a tile cost, in blocks of keys.
    tile_end: f64,
}

/// The tables of the GPUs that were measured.
static EMBEDDED: LazyLock<Vec<Rates>> = LazyLock::new(|| {
    // The text is part of this crate, and a test parses it.
    [include_str!("../rates/nvidia-h200.txt")]
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect()
});

impl Rates {
    /// The embedded table of the device; of a GPU that was not measured, the H200's: only ratios matter, and the same order of
    /// kernels is expected.
    #[must_use]
    pub fn embedded(device: &DeviceProfile) -> &'static Rates {
        let tables = &*EMBEDDED;
        tables
            .iter()
            .find(|rates| rates.device == device.name)
            .unwrap_or(&tables[0])
    }

    /// The GPU that was measured.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What a plain kernel reads from the GPU's memory, in TB/s.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.bandwidth
    }

    /// Whether the kernel was measured. One that was not runs only if it is asked for, or if no measured one applies.
    #[must_use]
    pub fn knows(&self, kernel: &str) -> bool {
        self.rate(kernel).is_some()
    }

    fn rate(&self, kernel: &str) -> Option<&Rate> {
        self.kernels.iter().find(|rate| rate.kernel == kernel)
    }

    /// Expected GPU time of a forward image on `problem`, in microseconds.
    ///
    /// The slowest multiprocessor decides. It works through its tiles of query rows, each against the blocks of keys it can
    /// see, and pays for the end of each. Where every tile is a CTA of its own, or all are equally long, some
    /// multiprocessors have one tile more than others; drawn tiles of different lengths even out, but take no less than the
    /// longest. While a multiprocessor holds fewer CTAs than it could, it runs slower by the share of latency left unhidden.
    ///
    /// Where CTAs share the keys evenly, all have as many blocks, and each pays for the ends of its tiles and of one more.
    pub(crate) fn estimate_us(
        &self,
        problem: &Problem,
        image: &Image,
        device: &DeviceProfile,
        ctas_per_multiprocessor: u32,
    ) -> f64 {
        // Of kernels that were not measured the fewest tiles are as good a guess as any.
        let (tflops, tile_end) = self
            .rate(image.kernel)
            .map_or((1.0, 1.0), |rate| (rate.tflops, rate.tile_end));
        let (block_m, block_n) = (
            f64::from(image.tiling.block_m),
            f64::from(image.tiling.block_n),
        );
        let block_flops = 4.0 * block_m * block_n * f64::from(image.tiling.head_dim);
        // FLOP per microsecond.
        let rate_per_multiprocessor = tflops * 1e6 / f64::from(self.multiprocessors);
        let block_us = block_flops / rate_per_multiprocessor;
        let (query_len, key_len) = problem.typical_lengths();
        let mask = problem.mask();
        if image.schedule == Schedule::SharedKeys {
            let widest = mask.widest(query_len, key_len);
            let seen = key_len.min(widest + query_len.saturating_sub(1));
            let tiles = problem.typical_group_tiles(image.tiling.block_m)
                / f64::from(device.multiprocessors.max(1));
            let blocks = tiles * (seen as f64 / block_n).ceil().max(1.0) + (tiles + 1.0) * tile_end;
            return self.launch_us + blocks * block_us;
        }
        let keys = TileKeys::of(mask, [query_len, key_len], problem.group_size(), image);
        let uneven = mask != crate::Mask::None || problem.is_uneven();
        let blocks = keys.average / block_n;
        let blocks = if uneven { blocks } else { blocks.ceil() };
        let tile = blocks + tile_end;
        let longest = keys.longest / block_n;

        let tiles = match image.schedule {
            Schedule::OneGroupTile => problem.typical_group_tiles(image.tiling.block_m),
            _ => problem.typical_tiles(image.tiling.block_m),
        };
        let multiprocessors = u64::from(device.multiprocessors.max(1));
        let resident = multiprocessors * u64::from(ctas_per_multiprocessor);
        let splits = match splits_tiles(image) {
            true => splits_of(tiles.ceil() as u64, resident, &keys, image),
            false => 1,
        };
        if splits > 1 {
            // A multiprocessor that holds several CTAs works through the tiles of all.
            let rest = tiles.ceil() as u64 % resident;
            let whole = (tiles - rest as f64).max(0.0) / multiprocessors as f64 * tile;
            let rest = rest_keys(rest, resident, splits, keys.longest) / block_n
                * f64::from(ctas_per_multiprocessor);
            let reading = self.reading_us(problem, query_len, key_len);
            return self.launch_us + ((whole + rest) * block_us).max(reading);
        }
        let per_multiprocessor = tiles / f64::from(device.multiprocessors.max(1));
        let turns = per_multiprocessor.ceil().max(1.0);
        let blocks = if image.schedule == Schedule::Persistent && uneven {
            (per_multiprocessor * tile).max(longest + tile_end)
        } else {
            turns * tile
        };
        let held = turns.min(f64::from(ctas_per_multiprocessor));
        let unhidden = (f64::from(ctas_per_multiprocessor) / held).sqrt();
        self.launch_us + blocks * block_us * unhidden
    }
}

impl Rates {
    /// What `wgmma` takes to read all keys and values once: it was made to compute, and gets about 0.7 of the memory's speed (an estimate).
    fn reading_us(&self, problem: &Problem, query_len: usize, key_len: usize) -> f64 {
        const OF_BANDWIDTH: f64 = 0.7;
        let seen = key_len.min(problem.mask().widest(query_len, key_len) + query_len);
        let row_bytes = 2 * problem.head_dim() * problem.element().size();
        let rows = problem.typical_sequences() * (problem.kv_heads() * seen) as f64;
        rows * row_bytes as f64 / (OF_BANDWIDTH * self.bandwidth * 1e6)
    }
}

impl std::str::FromStr for Rates {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut rates = Rates {
            device: String::new(),
            multiprocessors: 0,
            bandwidth: 0.0,
            launch_us: 0.0,
            kernels: Vec::new(),
        };
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
            match word {
                "" => {}
                "device" if !rest.is_empty() => rest.clone_into(&mut rates.device),
                "multiprocessors" => {
                    rates.multiprocessors = rest
                        .parse()
                        .ok()
                        .filter(|count| *count > 0)
                        .ok_or_else(|| broken("a count of at least 1 is expected"))?;
                }
                "bandwidth" => rates.bandwidth = positive(rest)?,
                "launch" => rates.launch_us = positive(rest)?,
                "kernel" => {
                    let words: Vec<&str> = rest.split_whitespace().collect();
                    let &[kernel, tflops, tile_end] = words.as_slice() else {
                        return Err(broken("`kernel NAME TFLOPS TILE_END` is expected"));
                    };
                    rates.kernels.push(Rate {
                        kernel: kernel.to_owned(),
                        tflops: positive(tflops)?,
                        tile_end: tile_end
                            .parse()
                            .ok()
                            .filter(|end: &f64| end.is_finite() && *end >= 0.0)
                            .ok_or_else(|| broken("the end of a tile must be 0 or more blocks"))?,
                    });
                }
                _ => {
                    return Err(broken(
                        "`device`, `multiprocessors`, `bandwidth`, `launch` or `kernel` is expected",
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
    fn the_embedded_tables_parse() {
        let text = include_str!("../rates/nvidia-h200.txt");
        let rates: Rates = text.parse().unwrap();
        assert_eq!(rates.device(), "NVIDIA H200");
        assert!(EMBEDDED.contains(&rates));
        for rate in &rates.kernels {
            assert!(
                warptile_kernels::kernels().any(|kernel| kernel.name == rate.kernel),
                "{} is measured but not in the catalog",
                rate.kernel
            );
        }
    }

    #[test]
    fn a_broken_line_is_named() {
        for (text, start) in [
            ("device X\nkernel a 1", "rates, line 2: `kernel NAME"),
            ("kernel a -1 0", "rates, line 1: a number greater"),
            ("# nothing\nspeed 3", "rates, line 2: `device`"),
            (
                "device X",
                "rates, line 1: the table has no `multiprocessors`",
            ),
        ] {
            let error = text.parse::<Rates>().unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }
}
