//! A device's primary context, retained.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use warptile_cuda_sys::{
    CUcontext, CUdeviceAttribute, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPoolAttribute, CUmemPoolProps, CUmemoryPool, CUresult, CUstream, DriverApi,
};

use crate::capture::Captures;
use crate::device::Device;
use crate::driver::{Driver, call};
use crate::error::{DriverError, Result, is_sticky};

/// Unused memory, in bytes, that a context's pool holds on to over a synchronization: many times what a call needs whose
/// time depends on it, and little of what others on the device may want.
const KEPT_BYTES: u64 = 1 << 30;

/// A device's primary context: the one that CUDA's runtime, cudarc and PyTorch use too.
///
/// A cheap handle; the context is released when the last clone and the last object made from it
/// are gone. Every call makes it current on the calling thread and puts back what was current
/// before, so it mixes with other users of CUDA and with any number of threads. For many calls in a
/// row, [`Context::enter`] does so once.
///
/// Buffers come from a memory pool of this context's own, where the device has pools. It keeps the
/// memory of dropped buffers for the next ones, up to 1 GiB, as getting memory from the device takes
/// longer than many a kernel; [`Context::trim_memory`] gives it back.
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
}

/// What launches and allocations are checked against, read once.
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
    /// Retains the device's primary context, creating it if this process has none yet.
    ///
    /// # Errors
    /// What the driver reports; creating a context takes some device memory.
    pub fn new(device: &Device) -> Result<Context> {
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
                captures: Captures::default(),
            }),
        };
        if limits.memory_pools {
            context.make_pool()?;
        }
        Ok(context)
    }

    /// Makes the pool, which keeps up to `KEPT_BYTES` of unused memory: by default one would give
    /// everything unused back at each synchronization. One of our own, for that is no choice to make
    /// for the others who use the device's default pool.
    fn make_pool(&self) -> Result<()> {
        let _current = self.enter()?;
        let operation = "making a memory pool";
        let props = CUmemPoolProps {
            alloc_type: CUmemAllocationType::PINNED,
            handle_types: 0,
            location: CUmemLocation {
                kind: CUmemLocationType::DEVICE,
                id: self.device().raw(),
            },
            win32_security_attributes: std::ptr::null_mut(),
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut pool = CUmemoryPool::NULL;
        // SAFETY: both outlive the call and the context is current. `Inner::drop` destroys the pool.
        unsafe { call!(self, operation, mem_pool_create(&mut pool, &props)) }?;
        let pool = *self.inner.pool.get_or_init(|| pool);
        let mut threshold = KEPT_BYTES;
        let value = (&raw mut threshold).cast();
        // SAFETY: the pool is live, and the attribute's value is the 64 bits at `value`.
        unsafe {
            call!(
                self,
                operation,
                mem_pool_set_attribute(pool, CUmemPoolAttribute::RELEASE_THRESHOLD, value)
            )
        }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        self.inner.device.driver()
    }

    /// The driver's handle, valid while this context lives.
    #[must_use]
    pub fn raw(&self) -> CUcontext {
        self.inner.raw
    }

    /// Waits until the device has finished everything queued in this context, on any stream.
    ///
    /// # Errors
    /// Whatever failed since the last synchronization, naming the kernels that were launched.
    pub fn synchronize(&self) -> Result<()> {
        let done = self.drain();
        self.settle(None, done)
    }

    /// Free and total device memory in bytes. What this context keeps for its next buffers, up to
    /// 1 GiB, is not free: see [`Context::trim_memory`].
    ///
    /// # Errors
    /// What the driver reports.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both outlive the call, and the context is current.
        unsafe {
            call!(
                self,
                "reading the free memory",
                mem_get_info(&mut free, &mut total)
            )
        }?;
        Ok((free, total))
    }

    /// Gives memory that dropped buffers have left behind back to the device, so that others can
    /// have it. The context keeps at least `keep` bytes, those of live buffers included, if it has
    /// as many. What a stream has yet to free stays, too. Does nothing on a device without memory
    /// pools.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn trim_memory(&self, keep: usize) -> Result<()> {
        let Some(pool) = self.pool() else {
            return Ok(());
        };
        let _current = self.enter()?;
        // SAFETY: the pool is live, and memory in use stays in it.
        unsafe {
            call!(
                self,
                "giving unused memory back",
                mem_pool_trim_to(pool, keep)
            )
        }
    }

    /// Lets kernels of this context read and write memory of `peer`'s that was allocated outside of memory pools. On
    /// devices with pools this crate's own buffers come from one, which this does not open to others.
    ///
    /// # Errors
    /// What the driver reports; access that is already enabled is not an error.
    pub fn enable_peer_access(&self, peer: &Context) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the context is current and `peer` is a live context.
        let enabled = unsafe {
            call!(
                self,
                "enabling peer access",
                ctx_enable_peer_access(peer.raw(), 0)
            )
        };
        match enabled {
            Err(error) if error.code() == Some(CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED) => {
                Ok(())
            }
            other => other,
        }
    }

    /// Most and least urgent stream priority: smaller numbers are more urgent.
    ///
    /// # Errors
    /// What the driver reports.
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

    /// Where buffers are allocated, if the device has pools.
    pub(crate) fn pool(&self) -> Option<CUmemoryPool> {
        self.inner.pool.get().copied()
    }

    pub(crate) fn captures(&self) -> &Captures {
        &self.inner.captures
    }

    /// Whether both are the same CUDA context, possibly retained twice.
    pub(crate) fn is(&self, other: &Context) -> bool {
        self.inner.raw == other.inner.raw && self.driver().is(other.driver())
    }

    /// Makes the context current on this thread until the guard is dropped. Every call does so by
    /// itself; a guard around several of them saves the driver the going to and fro.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn enter(&self) -> Result<Current<'_>> {
        let mut current = CUcontext::NULL;
        // SAFETY: `current` outlives the call.
        unsafe {
            call!(
                self,
                "asking for the current context",
                ctx_get_current(&mut current)
            )
        }?;
        let pushed = current != self.raw();
        if pushed {
            // SAFETY: the context is alive: `self` retains it.
            unsafe {
                call!(
                    self,
                    "making the context current",
                    ctx_push_current(self.raw())
                )
            }?;
        }
        Ok(Current {
            context: self,
            pushed,
            on_this_thread: PhantomData,
        })
    }

    /// [`Context::enter`] for destructors, which must go on: a failure is kept for the next
    /// synchronization, and as it may be that of earlier work, the context is pushed regardless.
    pub(crate) fn enter_to_release(&self) -> Option<Current<'_>> {
        match self.enter() {
            Ok(current) => Some(current),
            Err(error) => {
                self.defer(Err(error));
                // SAFETY: the context is alive: `self` retains it.
                let pushed = unsafe {
                    call!(
                        self,
                        "making the context current",
                        ctx_push_current(self.raw())
                    )
                };
                pushed.ok().map(|()| Current {
                    context: self,
                    pushed: true,
                    on_this_thread: PhantomData,
                })
            }
        }
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

    /// Keeps an error that a destructor met, for the next synchronization to report.
    pub(crate) fn defer(&self, result: Result<()>) {
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

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:?})", self.device())
    }
}

impl Inner {
    /// Like every call, with the context current. An error has nowhere to go.
    fn destroy_pool(&self, pool: CUmemoryPool) {
        let driver = self.device.driver();
        let operation = "destroying a memory pool";
        // SAFETY: the context is still retained. The pool is destroyed once, here; every buffer
        // holds a clone of the context, so each was given back before. What the last of them still
        // wait for in their streams, the driver lets finish.
        unsafe {
            let pushed = call!(driver, operation, ctx_push_current(self.raw));
            let _ = call!(driver, operation, mem_pool_destroy(pool));
            if pushed.is_ok() {
                let mut popped = CUcontext::NULL;
                let _ = call!(driver, operation, ctx_pop_current(&mut popped));
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(&pool) = self.pool.get() {
            self.destroy_pool(pool);
        }
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

/// While it lives, the context is current on this thread; see [`Context::enter`].
#[must_use = "the context stays current only as long as this lives"]
pub struct Current<'a> {
    context: &'a Context,
    pushed: bool,
    /// The current context is a property of the thread, so the guard must not leave it.
    on_this_thread: PhantomData<*const ()>,
}

impl fmt::Debug for Current<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Current({:?})", self.context)
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = CUcontext::NULL;
            // SAFETY: pops what `enter` pushed on this thread.
            let result = unsafe {
                call!(
                    self.context.driver(),
                    "restoring the current context",
                    ctx_pop_current(&mut popped)
                )
            };
            self.context.defer(result);
        }
    }
}

/// The last kernels launched, for naming suspects.
#[derive(Debug, Default)]
pub(crate) struct LaunchLog {
    entries: VecDeque<(CUstream, Arc<str>)>,
}

impl LaunchLog {
    /// Enough to name what a stream was doing; older launches are dropped from the log.
    const CAPACITY: usize = 16;

    pub(crate) fn note(&mut self, stream: CUstream, kernel: &Arc<str>) {
        let known = |(on, name): &(CUstream, Arc<str>)| *on == stream && Arc::ptr_eq(name, kernel);
        if self.entries.iter().any(known) {
            return;
        }
        if self.entries.len() == Self::CAPACITY {
            self.entries.pop_front();
        }
        self.entries.push_back((stream, kernel.clone()));
    }

    /// Kernels launched on the stream; if none is known, on any stream: an error shows wherever
    /// the next call happens to be.
    fn suspects(&self, stream: Option<CUstream>) -> Vec<Arc<str>> {
        let on = |stream: Option<CUstream>| -> Vec<Arc<str>> {
            let mut names: Vec<Arc<str>> = Vec::new();
            for (at, name) in &self.entries {
                if stream.is_none_or(|stream| stream == *at) && !names.contains(name) {
                    names.push(name.clone());
                }
            }
            names
        };
        let names = on(stream);
        if names.is_empty() { on(None) } else { names }
    }

    fn forget(&mut self, stream: Option<CUstream>) {
        self.entries
            .retain(|(at, _)| stream.is_some_and(|stream| stream != *at));
    }
}
