//! Opening a private copy of the stand-in and steering it.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::sync::Arc;

use warptile_nccl_sys::{LoadError, NcclApi, load_from};

use crate::private_copy::PrivateCopy;

/// A stand-in of one's own.
pub struct FakeNccl(PrivateCopy);

/// The way in which a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It returns a code and does nothing.
    Code(u32),
    /// The communicator has this error from now on.
    Async(u32),
    /// The communicator stays in progress.
    Stuck,
    /// It takes some milliseconds.
    Takes(u64),
}

impl Fault {
    fn parts(self) -> (u32, u64) {
        match self {
            Fault::Code(code) => (0, code.into()),
            Fault::Async(code) => (1, code.into()),
            Fault::Stuck => (2, 0),
            Fault::Takes(milliseconds) => (3, milliseconds),
        }
    }

    pub(crate) fn of(kind: u32, value: u64) -> Fault {
        match kind {
            0 => Fault::Code(value as u32),
            1 => Fault::Async(value as u32),
            2 => Fault::Stuck,
            _ => Fault::Takes(value),
        }
    }
}

impl FakeNccl {
    /// Opens a copy over the streams of the stand-in driver that has this path.
    ///
    /// # Panics
    /// If the shared library is not next to the test executable, where Cargo puts it when this crate is a dependency.
    pub fn open(driver: &Path) -> FakeNccl {
        let fake = FakeNccl(PrivateCopy::open("warptile_fake_nccl", &[]));
        let path = text(&driver.to_string_lossy());
        // SAFETY: the functions of this name have this type, here and below.
        let set =
            unsafe { fake.control::<unsafe extern "C" fn(*const c_char)>("fake_nccl_set_driver") };
        // SAFETY: the path is a string.
        unsafe { set(path.as_ptr()) };
        fake
    }

    /// The copy's path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The copy, loaded.
    ///
    /// # Errors
    /// As [`load_from`].
    pub fn load(&self) -> Result<Arc<NcclApi>, LoadError> {
        // SAFETY: the stand-in has NCCL's signatures.
        unsafe { load_from(self.path()) }.map(Arc::new)
    }

    unsafe fn control<F: Copy>(&self, symbol: &str) -> F {
        // SAFETY: the caller vouches for the type.
        unsafe { self.0.control(symbol) }
    }

    /// Sets the version, as NCCL counts it; 22809 at first.
    pub fn set_version(&self, version: u32) {
        // SAFETY: as in `open`.
        let set = unsafe { self.control::<extern "C" fn(u32)>("fake_nccl_set_version") };
        set(version);
    }

    /// Makes the `nth` call from now, counted from 1, of a function by a rank fail.
    pub fn fault(&self, rank: usize, symbol: &str, nth: u64, fault: Fault) {
        let (kind, value) = fault.parts();
        let symbol = text(symbol);
        type Set = unsafe extern "C" fn(usize, *const c_char, u64, u32, u64);
        // SAFETY: as in `open`; the name is a string.
        unsafe { self.control::<Set>("fake_nccl_fault")(rank, symbol.as_ptr(), nth, kind, value) };
    }

    /// Takes back all faults that have not happened.
    pub fn forget_faults(&self) {
        // SAFETY: as in `open`.
        let forget = unsafe { self.control::<extern "C" fn()>("fake_nccl_forget_faults") };
        forget();
    }

    /// How many communicators there are.
    pub fn live(&self) -> usize {
        // SAFETY: as in `open`.
        let live = unsafe { self.control::<extern "C" fn() -> usize>("fake_nccl_live") };
        live()
    }

    /// Every misuse so far, in words.
    pub fn violations(&self) -> String {
        let mut buffer = vec![0_u8; 1 << 12];
        type Write = unsafe extern "C" fn(*mut c_char, usize);
        // SAFETY: as in `open`; the buffer has this length.
        unsafe {
            self.control::<Write>("fake_nccl_violations")(buffer.as_mut_ptr().cast(), buffer.len());
        }
        let end = { buffer.iter() }.position(|byte| *byte == 0).unwrap_or(0);
        String::from_utf8_lossy(&buffer[..end]).into_owned()
    }

    /// Checks that every communicator was given back and nothing was misused.
    ///
    /// # Panics
    /// If not, saying what.
    pub fn assert_clean(&self) {
        assert_eq!(self.violations(), "", "misuse of NCCL");
        assert_eq!(self.live(), 0, "communicators still alive");
    }
}

fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
