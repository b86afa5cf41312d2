//! Opening a private copy of the stand-in and steering it.

use std::ffi::{CString, c_char};
use std::path::Path;

use crate::control::{FakeLaunch, Kind, Stalled};
use crate::private_copy::PrivateCopy;

/// A stand-in driver of one's own.
pub struct FakeDriver(PrivateCopy);

impl FakeDriver {
    /// Opens a copy.
    ///
    /// # Panics
    /// If the shared library is not next to the test executable, where Cargo puts it when this crate is a dependency.
    pub fn open() -> FakeDriver {
        FakeDriver::open_without(&[])
    }

    /// Opens a copy that lacks some functions, as an older driver would.
    ///
    /// # Panics
    /// As [`FakeDriver::open`], or if the library has no such function.
    pub fn open_without(symbols: &[&str]) -> FakeDriver {
        FakeDriver(PrivateCopy::open("warptile_fake_cuda", symbols))
    }

    /// The copy's path, to be loaded as a driver.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn control<F: Copy>(&self, symbol: &str) -> F {
        // SAFETY: `controls!` names the type and the symbol in one row.
        unsafe { self.0.control(symbol) }
    }

    /// Sets the CUDA version the driver supports: 1000 * major + 10 * minor. 12.8 at first.
    pub fn set_version(&self, version: u32) {
        self.raw_set_version(version as i32);
    }

    /// Makes every function answer as the toolkit's stub does.
    pub fn set_stub(&self) {
        self.raw_set_stub(1);
    }

    /// Sets how many devices there are; 1 at first.
    pub fn set_device_count(&self, count: u32) {
        self.raw_set_device_count(count as i32);
    }

    /// Sets the devices' compute capability; 9.0 at first.
    pub fn set_compute_capability(&self, major: u32, minor: u32) {
        self.raw_set_compute_capability(major as i32, minor as i32);
    }

    /// Sets the memory of all devices together, in bytes; 1 GiB at first.
    pub fn set_memory(&self, bytes: usize) {
        self.raw_set_memory(bytes);
    }

    /// Sets whether devices have memory pools; they do at first.
    pub fn set_memory_pools(&self, pools: bool) {
        self.raw_set_memory_pools(i32::from(pools));
    }

    /// Sets how many clusters a device can hold at once, of any size; 16 at first.
    pub fn set_clusters(&self, clusters: u32) {
        self.raw_set_clusters(i32::try_from(clusters).unwrap_or(i32::MAX));
    }

    /// Sets the work that those who ask find unfinished, as of a GPU that is busy or hangs.
    pub fn set_stalled(&self, stalled: Stalled) {
        self.raw_set_stalled(stalled as i32);
    }

    /// Makes the `nth` call from now, counted from 1, of a function (or, with `None`, of any that
    /// is not about errors) return `code`. Replaces what was set before; `nth` 0 sets nothing.
    pub fn fail(&self, symbol: Option<&str>, nth: u64, code: u32) {
        with_text(symbol, |symbol| self.raw_fail(symbol, nth, code));
    }

    /// Makes every call of these functions return `code`; with no names, none any more.
    pub fn fail_always(&self, symbols: &[&str], code: u32) {
        let symbols = symbols.join(" ");
        with_text(Some(&symbols), |symbols| {
            self.raw_fail_always(symbols, code)
        });
    }

    /// The function that the fault set last has hit, or `None` if it has not happened.
    pub fn fault(&self) -> Option<String> {
        (self.raw_fault_happened() != 0)
            .then(|| text(|buffer, len| self.raw_fault_symbol(buffer, len)))
    }

    /// Makes the next kernel that runs lose the context with this code.
    pub fn fail_kernel(&self, code: u32) {
        self.raw_fail_kernel(code);
    }

    /// How many calls there have been, not counting those about errors.
    pub fn calls(&self) -> u64 {
        with_text(None, |any| self.raw_calls(any))
    }

    /// How many calls of one function there have been.
    pub fn calls_of(&self, symbol: &str) -> u64 {
        with_text(Some(symbol), |symbol| self.raw_calls(symbol))
    }

    /// Forgets the kernels that have run, which otherwise take some memory each.
    pub fn forget_launches(&self) {
        self.raw_forget_launches();
    }

    /// How many objects of a kind there are.
    pub fn live(&self, kind: Kind) -> usize {
        self.raw_live(kind as i32)
    }

    /// How many operations are queued and have not run.
    pub fn pending(&self) -> usize {
        self.raw_pending()
    }

    /// How many queued copies wait for a queued kernel, on their own stream or through events.
    pub fn copies_behind_kernels(&self) -> usize {
        self.raw_copies_behind_kernels()
    }

    /// The number of unfreed device allocations: the end of their context, which is when the last retain of the
    /// device is released, took them along.
    pub fn reclaimed(&self) -> usize {
        self.raw_reclaimed()
    }

    /// The kernels that have run, in order.
    pub fn launches(&self) -> Vec<FakeLaunch> {
        (0..self.raw_launch_count())
            .map(|index| {
                let mut launch = FakeLaunch::new([0; 3], [0; 3], 0);
                self.raw_launch(index, &mut launch);
                launch
            })
            .collect()
    }

    /// Every misuse so far, in words.
    pub fn violations(&self) -> Vec<String> {
        (0..self.raw_violation_count())
            .map(|index| text(|buffer, len| self.raw_violation(index, buffer, len)))
            .collect()
    }

    /// Checks that everything was given back and nothing was misused.
    ///
    /// # Panics
    /// If not, saying what.
    pub fn assert_clean(&self) {
        self.assert_clean_but_for(0);
    }

    /// [`FakeDriver::assert_clean`] where `reclaimed` device allocations are meant to live as long as their context.
    ///
    /// # Panics
    /// If not, saying what.
    pub fn assert_clean_but_for(&self, reclaimed: usize) {
        assert_eq!(
            self.violations(),
            Vec::<String>::new(),
            "misuse of the driver"
        );
        for kind in Kind::ALL {
            assert_eq!(self.live(kind), 0, "{kind:?} still alive");
        }
        assert_eq!(self.reclaimed(), reclaimed, "memory left to its context");
    }
}

impl std::fmt::Debug for FakeDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FakeDriver({})", self.path().display())
    }
}

/// Passes a name on, null for none.
fn with_text<R>(text: Option<&str>, pass: impl FnOnce(*const c_char) -> R) -> R {
    let text = text.map(|text| CString::new(text).unwrap_or_default());
    pass(text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr()))
}

/// Has a text written and reads it back.
fn text(write: impl FnOnce(*mut c_char, usize)) -> String {
    let mut buffer = vec![0_u8; 1024];
    write(buffer.as_mut_ptr().cast(), buffer.len());
    let text = buffer.split(|&byte| byte == 0).next();
    String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
}
