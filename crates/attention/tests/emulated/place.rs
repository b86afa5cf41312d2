//! The stand-in driver with kernels.

use std::ffi::{CString, c_char, c_uint, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;
use warptile::gpu::Gpu;
use warptile_driver::Driver;
use warptile_fake_cuda::{FakeDriver, FakeLaunch};

type TakeTurnsGivenUp = unsafe extern "C" fn() -> c_uint;
type RunKernel = unsafe extern "C" fn(*const c_char, *const c_void, c_uint, c_uint) -> bool;

/// A GPU made of host memory, whose launches are emulated.
pub(crate) struct Emulated {
    pub(crate) gpu: Gpu,
    fake: FakeDriver,
}

thread_local! {
    /// One for each thread: each loaded stand-in takes many thread-local variables, and their number is limited.
    static EMULATED: Emulated = Emulated::new();
}

/// Runs `test` with the thread's GPU.
pub(crate) fn with_emulated<R>(test: impl FnOnce(&Emulated) -> R) -> R {
    EMULATED.with(test)
}

impl Emulated {
    fn new() -> Self {
        let fake = FakeDriver::open();
        // SAFETY: the library is the stand-in, with the driver's signatures.
        let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
        Emulated {
            gpu: Gpu::new(&driver, 0).unwrap(),
            fake,
        }
    }

    /// Runs what was launched since the last time. Whatever was queued before has happened then; nothing else may be queued. Every turn
    /// comes.
    pub(crate) fn run_launches(&self) {
        assert_eq!(self.run_hostile_launches(), 0, "turns did not come");
    }

    /// As [`run_launches`](Self::run_launches), but some turns may never come. Returns how many were given up.
    pub(crate) fn run_hostile_launches(&self) -> u32 {
        self.gpu.stream().synchronize().unwrap();
        let given_up = self.run(&self.fake.launches());
        self.fake.forget_launches();
        given_up
    }

    /// As [`run_launches`](Self::run_launches), of the first one alone. Returns its block.
    pub(crate) fn run_first<B: bytemuck::AnyBitPattern>(&self) -> B {
        self.gpu.stream().synchronize().unwrap();
        let launches = self.fake.launches();
        assert_eq!(self.run(&launches[..1]), 0, "turns did not come");
        self.fake.forget_launches();
        bytemuck::pod_read_unaligned(launches[0].params())
    }

    /// Returns how many waits for a turn were given up.
    fn run(&self, launches: &[FakeLaunch]) -> u32 {
        /// The emulation has one index of a CTA for all threads of this program.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        for launch in launches {
            let name = CString::new(launch.name()).unwrap();
            // Blocks are aligned to 8 bytes at least.
            let mut words = vec![0_u64; launch.params().len().div_ceil(8)];
            bytemuck::cast_slice_mut(&mut words)[..launch.params().len()]
                .copy_from_slice(launch.params());
            let params = words.as_ptr().cast();
            // SAFETY: the function has this signature. The block was made for this kernel, and the addresses in it are those of
            // the stand-in's device memory, which is host memory that the caller still holds.
            let found =
                unsafe { kernels().0(name.as_ptr(), params, launch.grid[0], launch.block[0]) };
            assert!(found, "{} is not emulated", launch.name());
        }
        // SAFETY: the function has this signature, and no launch runs.
        unsafe { kernels().1() }
    }
}

/// The emulated kernels, compiled once.
fn kernels() -> (RunKernel, TakeTurnsGivenUp) {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated_ops.so");
        let status = Command::new("g++")
            .args([
                "-std=c++20",
                "-Og",
                "-ffp-contract=off",
                "-fno-strict-aliasing",
            ])
            .args(["-Wno-unknown-pragmas", "-shared", "-fPIC"])
            .arg("-fvisibility=hidden")
            // Otherwise each conversion of f16 is a call.
            .args(cfg!(target_arch = "x86_64").then_some("-mf16c"))
            .args(["-Ikernels/emulation", "-Ikernels", "-Ikernels/generated"])
            .arg("kernels/emulation/ops.cpp")
            .arg("-o")
            .arg(&output)
            .current_dir(root)
            .status()
            .expect("g++ is needed");
        assert!(status.success());
        // SAFETY: it was just built from our sources, and initializes nothing.
        unsafe { Library::new(&output) }.unwrap()
    });
    // SAFETY: `run_kernel` and `take_turns_given_up` have these types.
    unsafe {
        (
            *library.get::<RunKernel>(b"run_kernel").unwrap(),
            *{ library.get::<TakeTurnsGivenUp>(b"take_turns_given_up") }.unwrap(),
        )
    }
}
