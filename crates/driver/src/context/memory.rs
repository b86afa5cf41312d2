//! A context's memory: the pool that its buffers come from, and what of the device's it holds.

use warptile_cuda_sys::{
    CUmemAccessDesc, CUmemAccessFlags, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPoolAttribute, CUmemPoolProps, CUmemoryPool, CUresult,
};

use crate::context::Context;
use crate::driver::call;
use crate::error::Result;

/// Unused memory, in bytes, that a context's pool holds on to over a synchronization, on a device with `total` bytes: what the workspace of
/// gradients of long sequences takes, and little of what others on the device may want.
fn kept_bytes(total: usize) -> usize {
    (total / 16).max((1 << 30).min(total / 4))
}

impl Context {
    /// Makes the pool, which keeps some unused memory: by default one would give everything unused
    /// back at each synchronization. It is a pool of our own, because other users of the device's default pool should
    /// not be affected.
    pub(super) fn make_pool(&self) -> Result<()> {
        let _current = self.enter()?;
        let _relaxed = self.relaxed()?;
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
        let mut threshold = kept_bytes(self.device().total_memory()?) as u64;
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

    /// Free and total device memory in bytes. What this context keeps for its next buffers, up to
    /// a sixteenth of the device's memory or 1 GiB, is not free: see [`Context::trim_memory`].
    ///
    /// # Errors
    /// The driver's error.
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
    /// as many. What a stream has yet to free stays, too, and what it
    /// [keeps](crate::Stream::keep_spares). Does nothing on a device without memory
    /// pools.
    ///
    /// # Errors
    /// The driver's error.
    pub fn trim_memory(&self, keep: usize) -> Result<()> {
        let Some(pool) = self.pool() else {
            return Ok(());
        };
        let _current = self.enter()?;
        let _relaxed = self.relaxed()?;
        // SAFETY: the pool is live, and memory in use stays in it.
        unsafe {
            call!(
                self,
                "giving unused memory back",
                mem_pool_trim_to(pool, keep)
            )
        }
    }

    /// Lets this context read and write memory of `peer`'s: what was allocated outside of memory pools, and the pool that
    /// `peer`'s buffers come from. Without it, a copy between the two goes through the host.
    ///
    /// # Errors
    /// The driver's error; access that is already enabled is not an error.
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
        }?;
        peer.open_pool_to(self)
    }

    /// Lets `reader` use the buffers of this context's pool, present and future ones.
    fn open_pool_to(&self, reader: &Context) -> Result<()> {
        let Some(pool) = self.pool() else {
            return Ok(());
        };
        let access = CUmemAccessDesc {
            location: CUmemLocation {
                kind: CUmemLocationType::DEVICE,
                id: reader.device().raw(),
            },
            flags: CUmemAccessFlags::READWRITE,
        };
        let _current = self.enter()?;
        // SAFETY: the pool is live, and `access` is one description that outlives the call.
        unsafe {
            call!(
                self,
                "opening a memory pool to a peer",
                mem_pool_set_access(pool, &access, 1)
            )
        }
    }

    /// Where buffers are allocated, if the device has pools.
    pub(crate) fn pool(&self) -> Option<CUmemoryPool> {
        self.inner.pool.get().copied()
    }
}
