//! Values that several commands take on their command lines.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::Arc;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum, value_parser};
use warptile::gpu::Gpu;
use warptile::plan::{DeviceProfile, Rates, Settings};
use warptile::spec::Scoring;
use warptile::{Backend, Diagonal, Layout, Mask};
use warptile_driver::sys::LoadError;
use warptile_driver::{Driver, DriverError};

use crate::failure::Failure;
use crate::images;
use crate::text;

/// The options of attention that are numbers: a flag for each.
#[derive(Debug)]
pub(crate) struct Numbers(pub(crate) Scoring);

impl FromArgMatches for Numbers {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut numbers = Numbers(Scoring::new());
        numbers.update_from_arg_matches(matches)?;
        Ok(numbers)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (word, _) in Scoring::NUMBERS {
            if let (Some(to), Some(number)) = (self.0.number_mut(word), matches.get_one(word)) {
                *to = Some(*number);
            }
        }
        Ok(())
    }
}

impl Args for Numbers {
    fn augment_args(command: Command) -> Command {
        command.args(Scoring::NUMBERS.map(|(word, help)| {
            let flag = Arg::new(word)
                .long(word)
                .value_name("X")
                .help(sentence(help));
            flag.value_parser(value_parser!(f32))
                .allow_hyphen_values(true)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// With a capital letter.
fn sentence(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}

/// Where to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Device {
    /// The best GPU if there is one, else the CPU.
    Auto,
    Cpu,
    /// The GPU with this ordinal, as the driver counts.
    Cuda(u32),
}

impl Device {
    /// Opens the device, with the rates that `warptile tune` wrote for it, and says on standard error which GPUs [`Device::Auto`] did not
    /// take and which rates are not in force.
    ///
    /// # Errors
    /// [`Failure::Device`] if a GPU was asked for and can't be had; those of a folder of images.
    pub(crate) fn open(self) -> Result<Backend, Failure> {
        let backend = match self {
            Device::Auto => Backend::auto(),
            Device::Cpu => Ok(Backend::cpu()),
            Device::Cuda(ordinal) => Backend::cuda(ordinal),
        }
        .map_err(|error| Failure::Device(format!("{self}: {error}")))?;
        if !backend.passed_over().is_empty() {
            // If standard error is gone no one can be told.
            let _ = std::io::stderr().write_all(passed_over(&backend).as_bytes());
        }
        self.set_up(backend)
    }

    /// With the user's rates, and the images of the user's folder.
    fn set_up(self, backend: Backend) -> Result<Backend, Failure> {
        let Some(gpu) = backend.gpu() else {
            return Ok(backend);
        };
        let named = images::named()?;
        let rates = match Rates::of_user(gpu.profile(), &gpu.driver_name()) {
            Ok(rates) => rates,
            Err(error) => {
                let note = format!("note: {}\n", text::message(&error.to_string()));
                let _ = std::io::stderr().write_all(note.as_bytes());
                None
            }
        };
        if named.is_empty() && rates.is_none() {
            return Ok(backend);
        }
        let gpu = Gpu::on_stream(gpu.stream())
            .map_err(|error| Failure::Device(format!("{self}: {error}")))?
            .with_named_images(named.iter().copied());
        let gpu = match rates {
            Some(rates) => gpu.with_rates(rates),
            None => gpu,
        };
        Ok(Backend::from_gpu(Arc::new(gpu)))
    }
}

/// A line for each GPU that was not taken.
fn passed_over(backend: &Backend) -> String {
    // A machine without a GPU is nothing to explain at length; `warptile info` does.
    if matches!(
        Driver::load(),
        Err(DriverError::Load(LoadError::NotFound { .. }))
    ) {
        return "note: no NVIDIA driver was found; using the CPU\n".to_owned();
    }
    let lines = backend.passed_over().iter();
    lines
        .map(|one| {
            let one = one.to_string();
            let first = one.lines().next().unwrap_or_default();
            format!("note: not using {}\n", text::message(first))
        })
        .collect()
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|ordinal| ordinal.parse().ok())
                .map(Device::Cuda)
                .ok_or_else(|| "a device is auto, cpu or cuda:N, such as cuda:0".to_owned()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// The word of a value on command lines.
pub(crate) fn word(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Multiprocessors that are planned for.
pub(crate) fn multiprocessors() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=DeviceProfile::MAX_MULTIPROCESSORS.into())
}

/// Settings of launches, as rates files have them.
pub(crate) fn settings(words: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for word in words.split_whitespace() {
        let known = settings.parse_word(word);
        known.ok_or_else(|| {
            let word = text::name(word);
            format!("`{word}` is not at-once=N, at-once=all, ranges=N or ctas=N")
        })?;
    }
    match settings.is_default() {
        true => Err("settings are such as \"at-once=4 ranges=2 ctas=1\"".to_owned()),
        false => Ok(settings),
    }
}

/// In which order the elements of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayoutKind {
    /// [batch, length, heads, head size]
    Bshd,
    /// [batch, heads, length, head size]
    Bhsd,
}

impl LayoutKind {
    /// The layout of a dense tensor; `shape` is in storage order.
    pub(crate) fn layout(self, shape: [usize; 4]) -> Layout {
        match self {
            LayoutKind::Bshd => Layout::bshd(shape),
            LayoutKind::Bhsd => Layout::bhsd(shape),
        }
    }

    /// Turns a shape between storage order and batch, rows, heads, head size; its own inverse.
    pub(crate) fn reorder(self, [a, b, c, d]: [usize; 4]) -> [usize; 4] {
        match self {
            LayoutKind::Bshd => [a, b, c, d],
            LayoutKind::Bhsd => [a, c, b, d],
        }
    }
}

/// The value of `--window`: how many keys a query sees before and after its diagonal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window(pub(crate) Mask);

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut scoring = Scoring::new();
        match scoring.parse_word(&format!("mask=window,{text}")) {
            Some(()) => Ok(Window(scoring.mask)),
            None => Err(
                "a window is LEFT,RIGHT: numbers of keys, or -1 for no limit, such as 256,0".into(),
            ),
        }
    }
}

/// Joins `--causal`, `--window` and `--diagonal`. The first two together are a window with nothing after the diagonal.
///
/// # Errors
/// A diagonal of no mask.
pub(crate) fn mask(
    causal: bool,
    window: Option<Window>,
    diagonal: Option<Diagonal>,
) -> Result<Mask, Failure> {
    let mut mask = window.map_or(Mask::none(), |Window(mask)| mask);
    if causal {
        mask.right = Some(0);
    }
    match diagonal {
        Some(_) if mask.hides_nothing() => Err(Failure::Input(
            "--diagonal says where the mask runs, so it needs --causal or --window".into(),
        )),
        _ => Ok(mask.diagonal(diagonal.unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices() {
        for (text, device) in [
            ("auto", Device::Auto),
            ("cpu", Device::Cpu),
            ("cuda", Device::Cuda(0)),
            ("cuda:3", Device::Cuda(3)),
        ] {
            assert_eq!(text.parse(), Ok(device));
        }
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:99999999999", "CPU"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }

    #[test]
    fn windows() {
        let window = |left: Option<u32>, right: Option<u32>| Ok(Window(Mask::window(left, right)));
        assert_eq!("3,0".parse(), window(Some(3), Some(0)));
        assert_eq!("-1,5".parse(), window(None, Some(5)));
        assert_eq!("-1,-1".parse(), window(None, None));
        for text in [
            "",
            "3",
            "3,",
            "-2,0",
            "3,4,5",
            "a,b",
            "4294967296,0",
            "3,4 scale=2",
        ] {
            assert!(text.parse::<Window>().is_err(), "{text}");
        }
    }

    #[test]
    fn causal_closes_the_window_on_the_right() {
        let window: Window = "7,9".parse().unwrap();
        assert_eq!(mask(true, Some(window), None).unwrap(), Mask::window(7, 0));
        let at = Some(Diagonal::At(-3));
        let found = mask(false, Some(window), at).unwrap();
        assert_eq!(found, window.0.diagonal(Diagonal::At(-3)));
        assert!(mask(false, None, at).is_err());
    }

    #[test]
    fn reordering_twice_is_nothing() {
        for kind in [LayoutKind::Bshd, LayoutKind::Bhsd] {
            assert_eq!(kind.reorder(kind.reorder([1, 2, 3, 4])), [1, 2, 3, 4]);
        }
        assert_eq!(LayoutKind::Bhsd.reorder([1, 2, 3, 4]), [1, 3, 2, 4]);
    }
}
