//! Errors of a call, a tensor or the machine.

use warptile_driver::DriverError;
use warptile_kernels::{Excerpt, UnpackError};
use warptile_spec::Invalid;

use crate::considered::Considered;

/// Shorthand for a result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Everything this crate reports. Each message names the argument and the rule it breaks.
///
/// All errors about arguments are found before anything is computed or launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The description of a call, or its memory, breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),

    /// A cache has too few free pages for a step.
    #[error(
        "the step needs {needed} more pages, but {free} are free; free a sequence, or make the cache with more pages"
    )]
    OutOfPages {
        /// Pages that the sequences of the step need in addition to those that they have.
        needed: usize,
        /// Pages that no sequence has.
        free: usize,
    },

    /// There is no kernel, image or GPU of that name.
    #[error("unknown {what} {:?}{}", Excerpt::new(name), suggest(.close))]
    UnknownName {
        /// `kernel`, `image` or `GPU`.
        what: &'static str,
        /// The name asked for.
        name: String,
        /// The names most like it.
        close: Vec<String>,
    },

    /// A kernel for GPUs was asked for, but the tensors are on the CPU.
    #[error(
        "kernel is {:?}, but the tensors are on the CPU, where it must be \"best\" or \"cpu\"",
        Excerpt::new(name)
    )]
    GpuKernelOnCpu {
        /// The name asked for.
        name: String,
    },

    /// No kernel can compute the problem on the device.
    #[error("no kernel for {problem}{}", reasons(.considered))]
    NoKernel {
        /// The problem and the device in words.
        problem: String,
        /// Every candidate and why it was passed over.
        considered: Vec<Considered>,
    },

    /// The CTAs of a kernel come in clusters, and the device can hold none of them: a part of a GPU may have too few
    /// multiprocessors next to each other. Without such an image by name, another kernel is chosen.
    #[error(
        "{image} needs clusters of {ctas} CTAs, and this device can hold none; choose another kernel, or let the planner choose"
    )]
    Clusters {
        /// The image's name.
        image: &'static str,
        /// CTAs of a cluster.
        ctas: u32,
    },

    /// A device profile has a limit beyond what is planned for.
    #[error("the device profile has {found} {limit}; at most {most} are supported")]
    Profile {
        /// The limit.
        limit: &'static str,
        /// The value in the profile.
        found: u32,
        /// The largest value allowed.
        most: u32,
    },

    /// The program has no kernel at all for the device.
    #[error(
        "this program has no kernels for {device} (compute capability {major}.{minor}): {}",
        images_advice(*.major, *.minor)
    )]
    NoImages {
        /// The device's name.
        device: String,
        /// Its compute capability, major.
        major: u32,
        /// Its compute capability, minor.
        minor: u32,
    },

    /// Tensors of one call live in different places.
    #[error(
        "{argument} is on {found}, but q is on {expected}; all tensors of a call must be on one device"
    )]
    DeviceMismatch {
        /// The tensor at fault.
        argument: &'static str,
        /// Where `q` is.
        expected: String,
        /// Where this one is.
        found: String,
    },

    /// A prepared problem was launched with a call that is not one of it.
    #[error("the call is {found}, but the kernel was prepared for {prepared}")]
    OtherProblem {
        /// The call's problem.
        found: String,
        /// The problem that was prepared.
        prepared: String,
    },

    /// A launch would exceed what a grid or a 32-bit count can hold.
    #[error("the call needs {ctas} tiles; a launch can have {limit}")]
    Grid {
        /// Tiles needed.
        ctas: u64,
        /// The most there can be.
        limit: u64,
    },

    /// A part of a tensor that is not there.
    #[error("{dimension} {start}..{end} is out of range: the tensor has {dimension} {extent}")]
    OutOfRange {
        /// The dimension.
        dimension: &'static str,
        /// First index.
        start: usize,
        /// Index after the last.
        end: usize,
        /// The extent of the tensor.
        extent: usize,
    },

    /// An output tensor shares its elements with a clone or a part of it.
    #[error(
        "{argument} shares its elements with another tensor; an output needs elements of its own"
    )]
    Shared {
        /// `out` or `lse`.
        argument: &'static str,
    },

    /// An image takes a parameter block that this version does not know.
    #[error(
        "image {image} was compiled for the parameter block of a different version of warptile; rebuild from a clean checkout"
    )]
    OtherAbi {
        /// The image.
        image: &'static str,
    },

    /// A raw launch draws tiles from a counter in the workspace, and the caller gave none that can hold it.
    #[error(
        "workspace is {address:#x}; the plan needs {bytes} bytes of zeroed device memory at a multiple of 256 bytes"
    )]
    Workspace {
        /// Its device address.
        address: u64,
        /// Bytes needed.
        bytes: usize,
    },

    /// A session has less memory than the launch of a plan needs.
    #[error(
        "the session's workspace has {available} bytes, but the plan needs {needed}; make a session with `with_scratch`"
    )]
    SessionTooSmall {
        /// Bytes that the plan needs.
        needed: usize,
        /// Bytes that the session has.
        available: usize,
    },

    /// A line of a rates file is not understood.
    #[error("rates, line {line}: {rule}")]
    Rates {
        /// Counted from 1.
        line: usize,
        /// The rule for the extent.
        rule: String,
    },

    /// A user's rates file that is not in force.
    #[error("{} is not in force: {reason}", path.display())]
    RatesFile {
        /// The file.
        path: std::path::PathBuf,
        /// Why it is not.
        reason: String,
    },

    /// A call on the CPU ended before it was complete, because its [`Stop`](crate::cpu::Stop) was requested.
    #[error("stopped before the result was complete")]
    Stopped,

    /// The driver is missing, too old, or reports an error.
    #[error(transparent)]
    Driver(#[from] DriverError),

    /// An embedded image is damaged.
    #[error(transparent)]
    Image(#[from] UnpackError),
}

impl Error {
    /// The message of an error, followed by those of the errors behind it that it does not already contain: for interfaces that have a text
    /// instead of a [`source`](std::error::Error::source).
    pub fn with_causes(error: &dyn std::error::Error) -> String {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let words = cause.to_string();
            if !text.contains(&words) {
                text.push_str(": ");
                text.push_str(&words);
            }
            source = cause.source();
        }
        text
    }

    /// Replaces the names of arguments, for callers that have others. `name` is `None` for a name that stays.
    pub fn rename(&mut self, name: impl Fn(&str) -> Option<&'static str>) {
        match self {
            Error::Invalid(invalid) => invalid.rename(name),
            Error::DeviceMismatch { argument, .. } | Error::Shared { argument } => {
                *argument = name(argument).unwrap_or(argument);
            }
            _ => {}
        }
    }

    /// No `what` is called `name`; suggests those of `known` that look most like it.
    pub(crate) fn unknown<'a>(
        what: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Self {
        const SUGGESTIONS: usize = 3;
        let mut known: Vec<&str> = known.collect();
        known.sort_unstable();
        known.dedup();
        // Only the beginning of an endless name: comparing takes a time that grows with its length, for each of `known`.
        let beginning: String = name
            .chars()
            .take(Excerpt::NAME)
            .collect::<String>()
            .to_lowercase();
        let likeness = |other: &str| strsim::jaro_winkler(&beginning, other);
        known.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
        known.truncate(SUGGESTIONS);
        Error::UnknownName {
            what,
            name: name.to_owned(),
            close: known.into_iter().map(str::to_owned).collect(),
        }
    }
}

fn suggest(close: &[String]) -> String {
    if close.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", close.join(", "))
    }
}

/// Advice for a device that no embedded image runs on.
fn images_advice(major: u32, minor: u32) -> String {
    match feature_for(major, minor) {
        _ if major < 8 => "8.0 is the oldest that has some".to_owned(),
        Some(feature) => {
            format!("build it with the cargo feature `{feature}` of warptile, or with `ptx`")
        }
        None => "build it with the cargo feature `ptx` of warptile".to_owned(),
    }
}

/// The cargo feature whose images are machine code for a device.
pub(crate) const fn feature_for(major: u32, minor: u32) -> Option<&'static str> {
    match (major, minor) {
        (8, _) => Some("sm_80"),
        (9, 0) => Some("sm_90"),
        (10, _) => Some("sm_100"),
        (12, _) => Some("sm_120"),
        _ => None,
    }
}

fn reasons(considered: &[Considered]) -> String {
    considered
        .iter()
        .map(|one| format!("\n  {}: {}", one.kernel, one.reason))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warptile_kernels::ElementType;

    use crate::considered::Reason;

    #[test]
    fn an_unknown_kernel_suggests_others() {
        let error = Error::UnknownName {
            what: "kernel",
            name: "skalar".into(),
            close: vec!["scalar_d64".into(), "scalar_d128".into()],
        };
        assert_eq!(
            error.to_string(),
            "unknown kernel \"skalar\"; did you mean scalar_d64, scalar_d128?"
        );
    }

    #[test]
    fn names_from_outside_are_quoted_and_cut() {
        let hostile = format!("\u{1b}[2J{}", "x".repeat(10_000_000));
        let shown = format!("\"\\u{{1b}}[2J{}...\"", "x".repeat(56));
        let choice: crate::plan::Choice = hostile.parse().unwrap();
        let error = choice.check_on_cpu().unwrap_err().to_string();
        let expected = format!("kernel is {shown}, but the tensors are on the CPU");
        assert!(error.starts_with(&expected), "{error}");
        let unknown = Error::unknown("kernel", &hostile, ["wmma_d64"].into_iter());
        assert_eq!(
            unknown.to_string(),
            format!("unknown kernel {shown}; did you mean wmma_d64?")
        );
    }

    #[test]
    fn no_kernel_lists_every_reason() {
        let error = Error::NoKernel {
            problem: "f32 on cuda:0".into(),
            considered: vec![Considered {
                kernel: "wmma_d64",
                reason: Reason::Element(ElementType::F32),
            }],
        };
        assert_eq!(
            error.to_string(),
            "no kernel for f32 on cuda:0\n  wmma_d64: not compiled for f32"
        );
    }

    #[test]
    fn a_device_without_images_is_told_its_feature() {
        let text = |major, minor| {
            Error::NoImages {
                device: "NVIDIA GPU".into(),
                major,
                minor,
            }
            .to_string()
        };
        assert_eq!(
            text(9, 0),
            "this program has no kernels for NVIDIA GPU (compute capability 9.0): build it with the cargo feature `sm_90` of \
             warptile, or with `ptx`"
        );
        assert!(text(8, 9).contains("`sm_80`"));
        assert!(text(12, 1).contains("`sm_120`"));
        assert!(text(11, 0).ends_with("the cargo feature `ptx` of warptile"));
        assert!(text(7, 5).ends_with("8.0 is the oldest that has some"));
    }

    #[test]
    fn the_closest_names_are_suggested() {
        let known = [
            "wmma_d64_64x64_w8_s2",
            "scalar_d64_32x64_w4_s2",
            "scalar_d64_32x64_w4_s1",
            "scalar_d64_32x64_w4_s2",
        ];
        let Error::UnknownName { close, .. } =
            Error::unknown("kernel", "scalar_d64_32x64", known.into_iter())
        else {
            panic!("another error");
        };
        assert_eq!(
            close[..2],
            ["scalar_d64_32x64_w4_s1", "scalar_d64_32x64_w4_s2"]
        );
    }
}
