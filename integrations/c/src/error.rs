//! Errors as a code and a text.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use attention::Error;
use attention::driver::DriverError;
use attention::spec::Invalid;

/// Done.
pub const WARPTILE_OK: i32 = 0;
/// An argument breaks a rule. Nothing was computed or launched.
pub const WARPTILE_INVALID: i32 = 1;
/// No kernel can compute this on the device. The text lists every kernel and the reason. Nothing was launched.
pub const WARPTILE_NO_KERNEL: i32 = 2;
/// There is no usable driver, no such device, or what several GPUs need is missing: access to each other's memory, or NCCL.
pub const WARPTILE_NO_DEVICE: i32 = 3;
/// The driver reports an error; it may be that of earlier work on the device.
pub const WARPTILE_DRIVER: i32 = 4;
/// Memory of the host or of the device does not suffice.
pub const WARPTILE_OUT_OF_MEMORY: i32 = 5;
/// A fault of this library. What was being written is undefined.
pub const WARPTILE_FAULT: i32 = 6;

/// Ranks of a group have not met, one is lost or late, or their calls differ. The text says which. The group is of no more use, unless
/// only the bound of a wait has passed.
pub const WARPTILE_RANKS: i32 = 7;

/// Why a function did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// From the attention crate.
    Attention(Error),
    /// Of several ranks.
    #[cfg(feature = "distributed")]
    Ranks(warptile_distributed::Error),
    /// An argument, and the rule that it breaks.
    Argument(String),
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Attention(error)
    }
}

impl From<Invalid> for Failure {
    fn from(error: Invalid) -> Self {
        Error::from(error).into()
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Failure::Attention(error.into())
    }
}

#[cfg(feature = "distributed")]
impl From<warptile_distributed::Error> for Failure {
    fn from(error: warptile_distributed::Error) -> Self {
        Failure::Ranks(error)
    }
}

impl Failure {
    /// `argument` breaks a rule.
    pub(crate) fn of(argument: impl Display, rule: impl Display) -> Self {
        Failure::Argument(format!("{argument} {rule}"))
    }

    fn code(&self) -> i32 {
        match self {
            Failure::Argument(_) => WARPTILE_INVALID,
            Failure::Attention(error) => code(error),
            #[cfg(feature = "distributed")]
            Failure::Ranks(error) => code_of_ranks(error),
        }
    }

    fn text(&self) -> String {
        match self {
            Failure::Argument(text) => text.clone(),
            Failure::Attention(error) => Error::with_causes(error),
            #[cfg(feature = "distributed")]
            Failure::Ranks(error) => Error::with_causes(error),
        }
    }
}

fn code(error: &Error) -> i32 {
    match error {
        Error::NoKernel { .. } | Error::NoImages { .. } => WARPTILE_NO_KERNEL,
        Error::Invalid(Invalid::Allocation { .. }) => WARPTILE_OUT_OF_MEMORY,
        Error::Driver(error) if error.is_out_of_memory() => WARPTILE_OUT_OF_MEMORY,
        Error::Driver(
            DriverError::Load(_)
            | DriverError::Initialise(_)
            | DriverError::NoDevice
            | DriverError::NoSuchDevice { .. },
        ) => WARPTILE_NO_DEVICE,
        Error::Driver(_) => WARPTILE_DRIVER,
        Error::Image(_) | Error::OtherAbi { .. } => WARPTILE_FAULT,
        _ => WARPTILE_INVALID,
    }
}

#[cfg(feature = "distributed")]
fn code_of_ranks(error: &warptile_distributed::Error) -> i32 {
    use warptile_distributed::Error as Ranks;
    match error {
        Ranks::Rank { source, .. } => code(source),
        Ranks::NoPeerAccess { .. } | Ranks::Nccl(_) => WARPTILE_NO_DEVICE,
        Ranks::Rendezvous(_) | Ranks::Failure(_) | Ranks::TimedOut { .. } => WARPTILE_RANKS,
        Ranks::NoThreads(_) => WARPTILE_OUT_OF_MEMORY,
        _ => WARPTILE_INVALID,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Does the work of an exported function. A failure becomes its code and the thread's text, and so does a panic: none leaves the
/// library.
pub(crate) fn guarded(work: impl FnOnce() -> Result<()>) -> i32 {
    // A panic can leave only the caller's outputs half written. Locks are taken even if poisoned, and the values behind them are
    // consistent between statements.
    let (code, text) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return WARPTILE_OK,
        Ok(Err(failure)) => (failure.code(), failure.text()),
        Err(panic) => (
            WARPTILE_FAULT,
            format!("a fault of warptile: {}", words_of(&*panic)),
        ),
    };
    let text = CString::new(text.replace('\0', "")).unwrap_or_default();
    // While a thread ends, its text may be gone.
    let _ = LAST.try_with(|last| last.replace(text));
    code
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// The text of the last error on this thread: the argument's name and the rule that it breaks, or what the driver said. Empty if
/// there was none. Valid until the next error on this thread; a success leaves it alone.
#[unsafe(no_mangle)]
pub extern "C" fn warptile_last_error() -> *const c_char {
    const NONE: *const c_char = c"".as_ptr();
    LAST.try_with(|last| match last.try_borrow() {
        Ok(text) => text.as_ptr(),
        Err(_) => NONE,
    })
    .unwrap_or(NONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: a string of this thread, which makes no other meanwhile.
        let text = unsafe { CStr::from_ptr(warptile_last_error()) };
        text.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_code_and_a_text() {
        assert_eq!(guarded(|| panic!("no {}", 1)), WARPTILE_FAULT);
        assert_eq!(last(), "a fault of warptile: no 1");
        assert_eq!(guarded(|| std::panic::panic_any(5)), WARPTILE_FAULT);
        assert_eq!(last(), "a fault of warptile: no message");
    }

    #[test]
    fn each_thread_has_its_own_text_and_a_success_keeps_it() {
        assert_eq!(
            guarded(|| Err(Failure::of("q", "is\0 wrong"))),
            WARPTILE_INVALID
        );
        assert_eq!(guarded(|| Ok(())), WARPTILE_OK);
        assert_eq!(last(), "q is wrong");
        let other = std::thread::spawn(last).join().ok();
        assert_eq!(other.as_deref(), Some(""));
    }

    #[test]
    fn codes_tell_what_to_do() {
        let out_of_memory = Invalid::Allocation {
            argument: "out",
            bytes: 1,
        };
        let no_kernel = Error::NoKernel {
            problem: String::new(),
            considered: Vec::new(),
        };
        let invalid = Invalid::RotarySize { size: 3 };
        let no_images = Error::NoImages {
            device: String::new(),
            major: 7,
            minor: 5,
        };
        let no_device = Error::from(DriverError::NoDevice);
        for (error, code) in [
            (Error::from(out_of_memory), WARPTILE_OUT_OF_MEMORY),
            (no_kernel, WARPTILE_NO_KERNEL),
            (no_images, WARPTILE_NO_KERNEL),
            (invalid.into(), WARPTILE_INVALID),
            (no_device, WARPTILE_NO_DEVICE),
        ] {
            assert_eq!(Failure::from(error).code(), code);
        }
    }
}
