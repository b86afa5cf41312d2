//! A device's primary context, retained.

mod current;
mod ends;
mod launch_log;
mod memory;

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use warptile_cuda_sys::{
    CUcontext, CUdevice, CUdeviceAttribute, CUdeviceptr, CUmemoryPool, CUmodule, CUresult,
    CUstream, CUstreamCaptureMode, DriverApi,
};

use crate::capture::Captures;
use crate::device::Device;
use crate::driver::{Driver, call};
use crate::error::{DriverError, Result, is_sticky};
use crate::gate::{Gate, Pass};
use crate::scratch::exchange;
use ends::Ends;
use launch_log::LaunchLog;

pub use current::Current;

/// A device's primary context: the one that CUDA's runtime, cudarc and PyTorch use too.
///
/// A cheap handle; there is one context for each device and driver, however often it is asked for, and it is released
/// when the last clone and the last object made from it are gone. That waits for what was launched on its streams, if
/// modules are to be unloaded, not for work of others, and breaks no capture; the CUDA context lives on while others
/// retain it. A stream that was borrowed and given back in the middle of a capture of its owner's cannot be waited for:
/// then modules stay loaded until the CUDA context ends. Every call makes it current on the calling thread and puts
/// back what was current before, so it mixes with other users of CUDA and with any number of threads. For many calls in
/// a row, [`Context::enter`] does so once.
///
/// Buffers come from a memory pool of this context's own, where the device has pools. It keeps the
/// memory of dropped buffers for the next ones, up to a sixteenth of the device's or 1 GiB, as getting memory
/// from it takes longer than many a kernel; [`Context::trim_memory`] gives it back.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: CUcontext,
    limits: Limits,
    /// Where the device's memory is allocated from in stream order; none on a device without pools.
    /// Set once, by [`Context::new`].
    pool: OnceLock<CUmemoryPool>,
    launches: Mutex<LaunchLog>,
    deferred: Mutex<Option<DriverError>>,
    captures: Captures,
    gate: Gate,
    /// Prepares memory outside of captures; see `private_stream`.
    private: Mutex<Option<CUstream>>,
    /// Resources to destroy once the device is known to be past them.
    retired: Mutex<Vec<Retired>>,
    /// Work that may use what is retired.
    ends: Mutex<Ends>,
    /// How often work was queued that nothing could be ordered after, see `lose_order`, and how much of that was waited for.
    order_lost: AtomicU64,
    order_regained: AtomicU64,
}

/// Something to destroy after a synchronization of the context, or at its end.
pub(crate) enum Retired {
    Module(CUmodule),
    Memory(CUdeviceptr),
    /// Destroys itself when dropped.
    Value {
        /// Held only to be dropped.
        _value: Box<dyn Any + Send + Sync>,
    },
}

/// The contexts there are, by driver and device.
static CONTEXTS: Mutex<Contexts> = Mutex::new(Contexts::new());

type Contexts = BTreeMap<(usize, CUdevice), Weak<Inner>>;

/// The limits that launches and allocations are checked against, read once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) threads_per_block: u32,
    pub(crate) cooperative: bool,
    pub(crate) clusters: bool,
    pub(crate) memory_pools: bool,
}

impl Limits {
    fn of(device: &Device) -> Result<Limits> {
        use CUdeviceAttribute as A;
        let three = |names: [A; 3]| -> Result<[u32; 3]> {
            Ok([
                device.count_of(names[0])?,
                device.count_of(names[1])?,
                device.count_of(names[2])?,
            ])
        };
        Ok(Limits {
            grid: three([A::MAX_GRID_DIM_X, A::MAX_GRID_DIM_Y, A::MAX_GRID_DIM_Z])?,
            block: three([A::MAX_BLOCK_DIM_X, A::MAX_BLOCK_DIM_Y, A::MAX_BLOCK_DIM_Z])?,
            threads_per_block: device.count_of(A::MAX_THREADS_PER_BLOCK)?,
            cooperative: device.has(A::COOPERATIVE_LAUNCH)?,
            clusters: device.has(A::CLUSTER_LAUNCH)?,
            memory_pools: device.has(A::MEMORY_POOLS_SUPPORTED)?,
        })
    }
}

impl Context {
    /// The context of the device: the one that was given before, while anything of it lives. Else
    /// retains the device's primary context, which the driver creates if this process has none yet.
    ///
    /// # Errors
    /// The driver's error; creating a context takes some device memory.
    pub fn new(device: &Device) -> Result<Context> {
        let key = (device.driver().identity(), device.raw());
        let mut contexts = lock(&CONTEXTS);
        if let Some(inner) = contexts.get(&key).and_then(Weak::upgrade) {
            return Ok(Context { inner });
        }
        contexts.retain(|_, context| context.strong_count() != 0);
        let context = Context::retain(device)?;
        contexts.insert(key, Arc::downgrade(&context.inner));
        Ok(context)
    }

    fn retain(device: &Device) -> Result<Context> {
        let limits = Limits::of(device)?;
        let mut raw = CUcontext::NULL;
        // SAFETY: `raw` outlives the call. The retain is undone by `Inner::drop`.
        unsafe {
            call!(
                device.driver(),
                format!("opening a context on {device:?}"),
                device_primary_ctx_retain(&mut raw, device.raw())
            )
        }?;
        let context = Context {
            inner: Arc::new(Inner {
                device: device.clone(),
                raw,
                limits,
                pool: OnceLock::new(),
                launches: Mutex::default(),
                deferred: Mutex::default(),
                captures: Captures::new(device.driver()),
                gate: Gate::default(),
                private: Mutex::default(),
                retired: Mutex::default(),
                ends: Mutex::default(),
                order_lost: AtomicU64::new(0),
                order_regained: AtomicU64::new(0),
            }),
        };
        if limits.memory_pools {
            context.make_pool()?;
        }
        Ok(context)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver.
    pub fn driver(&self) -> &Driver {
        self.inner.device.driver()
    }

    /// The driver's handle, valid while this context lives.
    pub fn raw(&self) -> CUcontext {
        self.inner.raw
    }

    /// Waits until the device has finished everything queued in this context, on any stream. This breaks all captures
    /// under way in it, and then fails: the driver behaves so.
    ///
    /// # Errors
    /// Whatever failed since the last synchronization, naming the kernels that were launched.
    pub fn synchronize(&self) -> Result<()> {
        // Taken before the wait: only that much is surely over after it.
        let retired = std::mem::take(&mut *lock(&self.inner.retired));
        let ends = std::mem::take(&mut *lock(&self.inner.ends));
        let done = self.drain();
        match done {
            Ok(()) => self.destroy(retired, ends),
            Err(_) => {
                lock(&self.inner.ends).join(ends);
                lock(&self.inner.retired).extend(retired);
            }
        }
        self.settle(None, done)
    }

    /// Destroys what the device is past.
    fn destroy(&self, retired: Vec<Retired>, ends: Ends) {
        if retired.is_empty() && ends.is_empty() {
            return;
        }
        let _current = self.enter_to_release();
        ends.forget(self.driver());
        for one in retired {
            match one {
                Retired::Module(module) => {
                    let relaxed = self.relaxed();
                    // SAFETY: given up by its last user, and no kernel of it is running.
                    let unloaded =
                        unsafe { call!(self, "unloading a module", module_unload(module)) };
                    self.defer(unloaded);
                    self.defer(relaxed.map(drop));
                }
                Retired::Memory(pointer) => self.free_now(pointer),
                Retired::Value { .. } => {}
            }
        }
    }

    /// Most and least urgent stream priority: smaller numbers are more urgent.
    ///
    /// # Errors
    /// The driver's error.
    pub fn stream_priorities(&self) -> Result<std::ops::RangeInclusive<i32>> {
        let _current = self.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both outlive the call, and the context is current.
        unsafe {
            call!(
                self,
                "reading the stream priorities",
                ctx_get_stream_priority_range(&mut least, &mut greatest)
            )
        }?;
        Ok(greatest..=least)
    }

    /// Waits for everything in the context, without the bookkeeping of [`Context::synchronize`];
    /// for those who must know that the device has let go of something.
    pub(crate) fn drain(&self) -> Result<()> {
        let _current = self.enter_to_release();
        // SAFETY: the context is current.
        unsafe { call!(self, "waiting for the device", ctx_synchronize()) }
    }

    pub(crate) fn api(&self) -> &DriverApi {
        self.driver().api()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub(crate) fn captures(&self) -> &Captures {
        &self.inner.captures
    }

    pub(crate) fn private(&self) -> &Mutex<Option<CUstream>> {
        &self.inner.private
    }

    /// Returns true if both are the same CUDA context: one device by way of one driver.
    pub fn is_same(&self, other: &Context) -> bool {
        self.inner.raw == other.inner.raw && self.driver().identity() == other.driver().identity()
    }

    /// Keeps streams from being taken into captures by this crate, for who looks and then acts.
    pub(crate) fn pass(&self) -> Pass<'_> {
        self.inner.gate.pass()
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.inner.gate
    }

    /// Has something destroyed by the next synchronization of the context, or by its end.
    pub(crate) fn retire(&self, what: Retired) {
        lock(&self.inner.retired).push(what);
    }

    /// Notes that work may use memory that nothing orders it with.
    pub(crate) fn lose_order(&self) {
        self.inner.order_lost.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns true if memory may be in use by work that nothing orders with its stream.
    pub(crate) fn has_lost_order(&self) -> bool {
        let inner = &self.inner;
        inner.order_regained.load(Ordering::Acquire) < inner.order_lost.load(Ordering::Acquire)
    }

    /// Makes sure that memory may be freed in the order of its stream; waits for the device if necessary.
    pub(crate) fn is_in_order(&self) -> Result<()> {
        // Counted before the wait: of what is lost meanwhile, by another thread, it may know nothing.
        let lost = self.inner.order_lost.load(Ordering::Acquire);
        if self.inner.order_regained.load(Ordering::Acquire) < lost {
            self.drain()?;
            let regained = &self.inner.order_regained;
            regained.fetch_max(lost, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Describes a failed call; for an error that an earlier launch may have caused, with suspects.
    pub(crate) fn failed(
        &self,
        symbol: &'static str,
        code: CUresult,
        operation: Cow<'static, str>,
    ) -> DriverError {
        self.failed_on(None, symbol, code, operation)
    }

    pub(crate) fn failed_on(
        &self,
        stream: Option<CUstream>,
        symbol: &'static str,
        code: CUresult,
        operation: Cow<'static, str>,
    ) -> DriverError {
        let mut error = self.driver().describe(symbol, code, operation);
        if is_sticky(code) {
            error.suspects = self.launches().suspects(stream);
        }
        DriverError::Cuda(Box::new(error))
    }

    pub(crate) fn launches(&self) -> MutexGuard<'_, LaunchLog> {
        lock(&self.inner.launches)
    }

    /// Keeps an error that a destructor met, for the next synchronization of the context or one of its streams to report. Of several, the
    /// first is kept.
    pub fn defer(&self, result: Result<()>) {
        if let Err(error) = result {
            lock(&self.inner.deferred).get_or_insert(error);
        }
    }

    /// Ends a synchronization of a stream, or of all: names suspects on failure; on success forgets
    /// the launches that are now known to be good, and reports what destructors met.
    pub(crate) fn settle(&self, stream: Option<CUstream>, done: Result<()>) -> Result<()> {
        match done {
            Ok(()) => {
                self.launches().forget(stream);
                match lock(&self.inner.deferred).take() {
                    Some(error) => Err(error),
                    None => Ok(()),
                }
            }
            Err(DriverError::Cuda(mut error)) => {
                error.suspects = self.launches().suspects(stream);
                Err(DriverError::Cuda(error))
            }
            Err(error) => Err(error),
        }
    }
}

/// A poisoned lock only means that another thread panicked; what it guards is still whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PartialEq for Context {
    fn eq(&self, other: &Context) -> bool {
        self.is_same(other)
    }
}

impl Eq for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:?})", self.device())
    }
}

impl Inner {
    /// Destroys the pool and what else is the context's own, with the context current. Errors have
    /// nowhere to go.
    fn destroy_contents(&mut self) {
        let driver = self.device.driver();
        let operation = "closing a context";
        let retired = std::mem::take(&mut *lock(&self.retired));
        let ends = std::mem::take(&mut *lock(&self.ends));
        let private = lock(&self.private).take();
        let pool = self.pool.get().copied();
        if retired.is_empty() && ends.is_empty() && private.is_none() && pool.is_none() {
            return;
        }
        // SAFETY: the context is still retained.
        let push = || unsafe { call!(driver, operation, ctx_push_current(self.raw)) };
        // The first failure may be an error of earlier work.
        if push().or_else(|_| push()).is_err() {
            return;
        }
        // None of what follows breaks the captures then that others have under way in it.
        let before = exchange(driver, CUstreamCaptureMode::RELAXED);
        // Work may still run that uses what was given up: that of streams that are gone, and of the private one if a wait
        // for it has failed. There cannot be others, as every other stream of ours would hold this context.
        let private_is_over = || {
            private.is_none_or(|stream| {
                // SAFETY: made by `private_stream`, and its context is current.
                let wait = || unsafe { call!(driver, operation, stream_synchronize(stream)) };
                // The first failure may be an error of earlier work.
                wait().or_else(|_| wait()).is_ok()
            })
        };
        let over = match retired.is_empty() {
            true => {
                ends.forget(driver);
                true
            }
            false => ends.wait(driver) && private_is_over(),
        };
        for one in retired {
            if !over {
                // Left to the end of the CUDA context, and a value for good.
                std::mem::forget(one);
                continue;
            }
            // SAFETY: given up by its last user, and nothing runs any more that uses it.
            let _ = unsafe {
                match one {
                    Retired::Module(module) => call!(driver, operation, module_unload(module)),
                    Retired::Memory(pointer) => call!(driver, operation, mem_free(pointer)),
                    Retired::Value { .. } => Ok(()),
                }
            };
        }
        if let Some(stream) = private {
            // SAFETY: made by `private_stream`, idle, and destroyed once, here.
            let _ = unsafe { call!(driver, operation, stream_destroy(stream)) };
        }
        if let Some(pool) = pool {
            // SAFETY: the pool is destroyed once, here; every buffer holds a clone of the context,
            // so each was given back before. What the last of them still wait for in their streams,
            // the driver lets finish.
            let _ = unsafe { call!(driver, operation, mem_pool_destroy(pool)) };
        }
        if let Ok(before) = before {
            let _ = exchange(driver, before).or_else(|_| exchange(driver, before));
        }
        let mut popped = CUcontext::NULL;
        // SAFETY: undoes the push above.
        let _ = unsafe { call!(driver, operation, ctx_pop_current(&mut popped)) };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.destroy_contents();
        // SAFETY: undoes the retain of `Context::new`. Every object of the context holds a clone of
        // it, so none is left. An error has nowhere to go and nothing left to spoil.
        let _ = unsafe {
            call!(
                self.device.driver(),
                "releasing the context",
                device_primary_ctx_release(self.device.raw())
            )
        };
    }
}
