//! Device and pinned memory, copies and fills. All of it is host memory.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{c_uint, c_void};

use warptile_cuda_sys::*;

use crate::argument::{In, Out};
use crate::control::FakeLaunch;
use crate::device::device_of;
use crate::queue::{Op, Place};
use crate::state::State;
use crate::stream::Key;

/// Tells an allocation from a later one at the same address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(usize);

/// Device memory is aligned to 256 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct Block([u8; 256]);

/// The byte that fills fresh memory: an odd value, which cannot be mistaken for zeros.
const FRESH: u8 = 0xA5;

pub(crate) struct Allocation {
    identity: Identity,
    /// Keeps the memory; reached through its address only.
    _memory: Vec<Block>,
    bytes: usize,
    device: CUdevice,
    /// The pool it came from, if it came from one.
    pool: Option<usize>,
    /// True if its end is queued: the caller has given it back.
    pub(crate) given_back: bool,
}

/// A pool that memory is allocated from in stream order.
pub(crate) struct Pool {
    device: CUdevice,
    /// Freed memory that the pool has not given back to the device, in bytes.
    unused: usize,
    /// How much of it a synchronization leaves.
    release_threshold: u64,
    /// Other devices that may use its memory.
    readers: HashSet<CUdevice>,
}

/// The allocation that holds all of the bytes at `address`.
pub(crate) fn holding(
    map: &BTreeMap<u64, Allocation>,
    address: u64,
    bytes: usize,
) -> Option<(u64, &Allocation)> {
    let (base, allocation) = map.range(..=address).next_back()?;
    let end = address.checked_add(bytes as u64)?;
    (end <= base + allocation.bytes as u64).then_some((*base, allocation))
}

/// Copies between places that may overlap nowhere.
pub(crate) fn transfer(to: u64, from: u64, bytes: usize) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    // SAFETY: callers have just found both ranges in live allocations, or were promised host memory
    // of this size by the caller of the export.
    unsafe { std::ptr::copy(from, to, bytes) };
}

impl State {
    fn allocate(
        &mut self,
        bytes: usize,
        device: CUdevice,
        pool: Option<usize>,
    ) -> (u64, Allocation) {
        let memory = vec![Block([FRESH; 256]); bytes.div_ceil(256)];
        let address = memory.as_ptr().expose_provenance() as u64;
        let identity = Identity(self.new_id());
        let allocation = Allocation {
            identity,
            _memory: memory,
            bytes,
            device,
            pool,
            given_back: false,
        };
        // The host's allocator gives memory out again, as a device does.
        let end = address + bytes as u64;
        self.freed
            .retain(|base, (freed_end, _)| *base >= end || *freed_end <= address);
        (address, allocation)
    }

    fn allocate_on_device(&mut self, bytes: usize, pool: Option<usize>) -> Result<u64, CUresult> {
        let device = device_of(self.current()?);
        if bytes == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let used: usize = self.allocations.values().map(|a| a.bytes).sum();
        if used.saturating_add(bytes) > self.config.memory {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let mut owner = device;
        if let Some(pool) = pool.and_then(|pool| self.pools.get_mut(&pool)) {
            pool.unused = pool.unused.saturating_sub(bytes);
            owner = pool.device;
        }
        let (address, allocation) = self.allocate(bytes, owner, pool);
        self.allocations.insert(address, allocation);
        Ok(address)
    }

    /// Ends an allocation, if it is still the one that was meant.
    pub(crate) fn free(&mut self, address: u64, identity: Identity) {
        let is_it = |a: &Allocation| a.identity == identity;
        if self.allocations.get(&address).is_some_and(is_it)
            && let Some(Allocation { bytes, pool, .. }) = self.allocations.remove(&address)
        {
            self.freed
                .insert(address, (address + bytes as u64, identity));
            if let Some(pool) = pool.and_then(|pool| self.pools.get_mut(&pool)) {
                pool.unused += bytes;
            }
        }
    }

    /// Trims the pools, as they do when something is waited for.
    pub(crate) fn trim_pools(&mut self) {
        let pools: Vec<(usize, u64)> = self
            .pools
            .iter()
            .map(|(&id, pool)| (id, pool.release_threshold))
            .collect();
        for (id, threshold) in pools {
            self.trim_pool(id, usize::try_from(threshold).unwrap_or(usize::MAX));
        }
    }

    /// Gives unused memory back, down to `keep` bytes with what is in use; `None` if the pool does not exist.
    fn trim_pool(&mut self, id: usize, keep: usize) -> Option<()> {
        let pool = self.pools.get_mut(&id)?;
        let of_pool = |allocation: &&Allocation| allocation.pool == Some(id);
        let used: usize = self
            .allocations
            .values()
            .filter(of_pool)
            .map(|allocation| allocation.bytes)
            .sum();
        pool.unused = pool.unused.min(keep.saturating_sub(used));
        Some(())
    }

    pub(crate) fn is_live(&self, address: u64, identity: Identity) -> bool {
        holding(&self.allocations, address, 0).is_some_and(|(_, a)| a.identity == identity)
    }

    /// Frees a device's remaining memory at a context's end, except that of pools, which are destroyed separately.
    pub(crate) fn reclaim(&mut self, device: CUdevice) {
        let left: Vec<(u64, Identity)> = self
            .allocations
            .iter()
            .filter(|(_, a)| a.device == device && a.pool.is_none() && !a.given_back)
            .map(|(address, a)| (*address, a.identity))
            .collect();
        self.reclaimed += left.len();
        for (address, identity) in left {
            self.free(address, identity);
        }
    }

    /// Returns true if work of a device can use device memory. Peer access opens what came from no pool; a pool is opened by itself.
    pub(crate) fn is_accessible(&self, address: u64, device: CUdevice) -> bool {
        let Some((_, allocation)) = holding(&self.allocations, address, 0) else {
            return false;
        };
        let open = match allocation.pool {
            Some(pool) => {
                (self.pools.get(&pool)).is_some_and(|pool| pool.readers.contains(&device))
            }
            None => self.peers.contains(&(device, allocation.device)),
        };
        device == allocation.device || open
    }

    /// The device that has the memory at an address.
    pub(crate) fn device_with(&self, address: u64) -> Option<CUdevice> {
        holding(&self.allocations, address, 0).map(|(_, allocation)| allocation.device)
    }

    /// [`State::on_device`] for the work of a stream.
    pub(crate) fn on_device_of(
        &mut self,
        stream: Key,
        address: u64,
        bytes: usize,
    ) -> Result<Place, CUresult> {
        let place = self.on_device(address, bytes)?;
        let device = { self.streams.get(&stream) }.map(|stream| device_of(stream.context));
        if !device.is_some_and(|device| self.is_accessible(address, device)) {
            self.violation(format!("{address:#x} is memory of another device"));
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(place)
    }

    pub(crate) fn on_device(&mut self, address: u64, bytes: usize) -> Result<Place, CUresult> {
        match holding(&self.allocations, address, bytes) {
            Some((_, allocation)) => Ok(Place::Device(address, allocation.identity)),
            None => {
                self.violation(format!(
                    "{bytes} bytes at {address:#x} are not device memory"
                ));
                Err(CUresult::ERROR_INVALID_VALUE)
            }
        }
    }

    pub(crate) fn pinned_at(&self, address: u64, bytes: usize) -> Option<Place> {
        let (_, allocation) = holding(&self.pinned, address, bytes)?;
        Some(Place::Pinned(address, allocation.identity))
    }

    /// Host memory to copy from: pinned memory is read when the copy runs, other memory now.
    pub(crate) fn host_source(&self, from: &In<c_void>, bytes: usize) -> Place {
        self.pinned_at(from.address(), bytes).unwrap_or_else(|| {
            let mut staged = vec![0; bytes];
            transfer(
                staged.as_mut_ptr().expose_provenance() as u64,
                from.address(),
                bytes,
            );
            Place::Staged(staged)
        })
    }

    /// Where a place is now, if it still is what was meant.
    pub(crate) fn address_of(&self, place: &Place) -> Option<u64> {
        match place {
            Place::Device(address, identity) => {
                self.is_live(*address, *identity).then_some(*address)
            }
            Place::Pinned(address, identity) => holding(&self.pinned, *address, 0)
                .filter(|(_, allocation)| allocation.identity == *identity)
                .map(|_| *address),
            Place::Staged(bytes) => Some(bytes.as_ptr().expose_provenance() as u64),
        }
    }

    /// Runs a queued copy.
    pub(crate) fn copy(&mut self, to: &Place, from: &Place, bytes: usize) {
        match (self.address_of(to), self.address_of(from)) {
            (Some(to), Some(from)) => transfer(to, from, bytes),
            _ => self.fault(format!(
                "a copy of {bytes} bytes used memory freed before it ran"
            )),
        }
    }

    /// The addresses in a parameter block that point into device memory.
    pub(crate) fn addresses_in(&self, params: &[u8]) -> Vec<(u64, Identity)> {
        params
            .chunks_exact(8)
            .filter_map(|word| {
                let address = u64::from_ne_bytes(word.try_into().ok()?);
                if let Some((base, allocation)) = holding(&self.allocations, address, 1) {
                    return Some((base, allocation.identity));
                }
                // Memory that is gone already is not alive when the kernel runs.
                let (base, (end, identity)) = self.freed.range(..=address).next_back()?;
                (address < *end).then_some((*base, *identity))
            })
            .collect()
    }

    /// The one kernel that runs: adds 1 to each of `count` values.
    pub(crate) fn increment(&mut self, launch: &FakeLaunch) {
        let word = |at: usize| launch.params().get(at..at + 8)?.try_into().ok();
        let (Some(address), Some(count)) = (word(0), word(8)) else {
            self.fault("increment takes an address and a count".into());
            return;
        };
        let (address, count) = (
            u64::from_ne_bytes(address),
            u64::from_ne_bytes(count) as usize,
        );
        if holding(&self.allocations, address, count * 4).is_none() {
            self.fault("increment ran past the end of its buffer".into());
            return;
        }
        let mut values = vec![0_u32; count];
        let staged = values.as_mut_ptr().expose_provenance() as u64;
        transfer(staged, address, count * 4);
        for value in &mut values {
            *value = value.wrapping_add(1);
        }
        transfer(address, staged, count * 4);
    }
}

/// Turns a failed look-up into the code to return.
pub(crate) fn done(result: Result<(), CUresult>) -> CUresult {
    match result {
        Ok(()) => CUresult::SUCCESS,
        Err(code) => code,
    }
}

pub(crate) fn queued(code: CUresult) -> Result<(), CUresult> {
    if code == CUresult::SUCCESS {
        Ok(())
    } else {
        Err(code)
    }
}

/// A pool's number, from its handle.
fn pool_id(pool: CUmemoryPool) -> usize {
    pool.0.addr()
}

pub(crate) fn mem_pool_create(
    state: &mut State,
    pool: Out<CUmemoryPool>,
    props: In<CUmemPoolProps>,
) -> CUresult {
    if let Err(code) = state.current() {
        return code;
    }
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    let props = props.first();
    if !state.config.memory_pools {
        return CUresult::ERROR_NOT_SUPPORTED;
    }
    if props.alloc_type != CUmemAllocationType::PINNED
        || props.location.kind != CUmemLocationType::DEVICE
        || !(0..state.config.devices).contains(&props.location.id)
    {
        return CUresult::ERROR_INVALID_VALUE;
    }
    let id = state.new_id();
    state.pools.insert(
        id,
        Pool {
            device: props.location.id,
            unused: 0,
            release_threshold: 0,
            readers: HashSet::new(),
        },
    );
    pool.set(CUmemoryPool(std::ptr::without_provenance_mut(id)));
    CUresult::SUCCESS
}

/// Memory that is still allocated stays so.
pub(crate) fn mem_pool_destroy(state: &mut State, pool: CUmemoryPool) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    match state.pools.remove(&pool_id(pool)) {
        Some(_) => CUresult::SUCCESS,
        None => state.bad_handle("a memory pool"),
    }
}

pub(crate) fn mem_pool_set_attribute(
    state: &mut State,
    pool: CUmemoryPool,
    attribute: CUmemPoolAttribute,
    value: Out<c_void>,
) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    let Some(pool) = state.pools.get_mut(&pool_id(pool)) else {
        return state.bad_handle("a memory pool");
    };
    if attribute != CUmemPoolAttribute::RELEASE_THRESHOLD {
        return CUresult::ERROR_NOT_SUPPORTED;
    }
    let threshold = &raw mut pool.release_threshold;
    transfer(threshold.expose_provenance() as u64, value.address(), 8);
    CUresult::SUCCESS
}

pub(crate) fn mem_pool_set_access(
    state: &mut State,
    pool: CUmemoryPool,
    access: In<CUmemAccessDesc>,
    count: usize,
) -> CUresult {
    match state.pools.get_mut(&pool_id(pool)) {
        _ if count != 1 => CUresult::ERROR_INVALID_VALUE,
        Some(found) => {
            found.readers.insert(access.first().location.id);
            CUresult::SUCCESS
        }
        None => state.bad_handle("a memory pool"),
    }
}

pub(crate) fn mem_pool_trim_to(state: &mut State, pool: CUmemoryPool, keep: usize) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    match state.trim_pool(pool_id(pool), keep) {
        Some(()) => CUresult::SUCCESS,
        None => state.bad_handle("a memory pool"),
    }
}

pub(crate) fn mem_alloc_from_pool_async(
    state: &mut State,
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    pool: CUmemoryPool,
    on: Key,
) -> CUresult {
    if state.is_capturing(on) {
        return CUresult::ERROR_NOT_SUPPORTED;
    }
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    if !state.streams.contains_key(&on) {
        return state.bad_handle("a stream");
    }
    let pool = pool_id(pool);
    if !state.pools.contains_key(&pool) {
        return state.bad_handle("a memory pool");
    }
    let mut address = state.allocate_on_device(bytes, Some(pool));
    if address == Err(CUresult::ERROR_OUT_OF_MEMORY) {
        // Memory that the stream has yet to free can be reused.
        state.run(on, None);
        address = state.allocate_on_device(bytes, Some(pool));
    }
    done(address.map(|address| pointer.set(address)))
}

pub(crate) fn mem_alloc(state: &mut State, pointer: Out<CUdeviceptr>, bytes: usize) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    done(
        state
            .allocate_on_device(bytes, None)
            .map(|address| pointer.set(address)),
    )
}

/// Marks the memory as given back, whichever way.
fn give_back(state: &mut State, pointer: CUdeviceptr, pooled: bool) -> Result<Identity, CUresult> {
    match state.allocations.get_mut(&pointer) {
        Some(allocation) if !allocation.given_back && allocation.pool.is_some() == pooled => {
            allocation.given_back = true;
            Ok(allocation.identity)
        }
        _ => {
            state.violation(format!("{pointer:#x} was freed twice, or in the wrong way"));
            Err(CUresult::ERROR_INVALID_VALUE)
        }
    }
}

pub(crate) fn mem_free_async(state: &mut State, pointer: CUdeviceptr, on: Key) -> CUresult {
    if state.is_capturing(on) {
        state.violation("memory was freed within a capture".into());
        return CUresult::ERROR_INVALID_VALUE;
    }
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    done(give_back(state, pointer, true).and_then(|identity| {
        let address = pointer;
        queued(state.push(on, Op::Free { address, identity }))
    }))
}

/// Takes memory of pools, too, as the real function does.
pub(crate) fn mem_free(state: &mut State, pointer: CUdeviceptr) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    let pooled = holding(&state.allocations, pointer, 0).is_some_and(|(_, a)| a.pool.is_some());
    // At once: whoever relies on cuMemFree to wait relies on luck.
    done(give_back(state, pointer, pooled).map(|identity| state.free(pointer, identity)))
}

pub(crate) fn mem_host_alloc(
    state: &mut State,
    pointer: Out<*mut c_void>,
    bytes: usize,
    _flags: c_uint,
) -> CUresult {
    let device = match state.current() {
        Ok(context) => device_of(context),
        Err(code) => return code,
    };
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    let (address, allocation) = state.allocate(bytes, device, None);
    state.pinned.insert(address, allocation);
    pointer.set(std::ptr::with_exposed_provenance_mut(address as usize));
    CUresult::SUCCESS
}

pub(crate) fn mem_free_host(state: &mut State, pointer: Out<c_void>) -> CUresult {
    if let Err(code) = state.disturb_captures() {
        return code;
    }
    let Some(allocation) = state.pinned.remove(&pointer.address()) else {
        state.violation("pinned memory was freed twice".into());
        return CUresult::ERROR_INVALID_VALUE;
    };
    let waits_for_it = |op: &Op| match op {
        Op::Copy { to, from, .. } => [to, from].into_iter().any(
            |place| matches!(place, Place::Pinned(_, identity) if *identity == allocation.identity),
        ),
        _ => false,
    };
    if state.lost.is_none()
        && state
            .streams
            .values()
            .any(|s| s.ops.iter().any(|(_, op)| waits_for_it(op)))
    {
        state.violation("pinned memory was freed under a copy".into());
    }
    CUresult::SUCCESS
}

pub(crate) fn mem_get_info(state: &mut State, free: Out<usize>, total: Out<usize>) -> CUresult {
    let allocated: usize = state.allocations.values().map(|a| a.bytes).sum();
    let unused: usize = state.pools.values().map(|pool| pool.unused).sum();
    let used = allocated + unused;
    free.set(state.config.memory.saturating_sub(used));
    total.set(state.config.memory);
    CUresult::SUCCESS
}

pub(crate) fn pointer_get_attribute(
    state: &mut State,
    value: Out<c_void>,
    attribute: CUpointerAttribute,
    pointer: CUdeviceptr,
) -> CUresult {
    let (kind, allocation) = match holding(&state.allocations, pointer, 1) {
        Some((_, allocation)) => (CUmemoryType::DEVICE, allocation),
        None => match holding(&state.pinned, pointer, 1) {
            Some((_, allocation)) => (CUmemoryType::HOST, allocation),
            None => return CUresult::ERROR_INVALID_VALUE,
        },
    };
    let code = [match attribute {
        CUpointerAttribute::MEMORY_TYPE => kind.0,
        CUpointerAttribute::DEVICE_ORDINAL => allocation.device as u32,
        _ => return CUresult::ERROR_NOT_SUPPORTED,
    }];
    transfer(value.address(), code.as_ptr().expose_provenance() as u64, 4);
    CUresult::SUCCESS
}
