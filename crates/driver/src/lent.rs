//! Device memory lent to streams of others, and copies of rows between such memory.

use std::any::Any;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use warptile_cuda_sys::{
    CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE, CUarray, CUdeviceptr, CUmemLocation,
    CUmemLocationType, CUmemcpy2D, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUmemoryType,
    CUresult, CUstream, SYMBOLS,
};

use crate::buffer::{DeviceBuffer, DeviceSlice};
use crate::context::{Context, lock};
use crate::driver::call;
use crate::error::{DriverError, Result};
use crate::event::Event;
use crate::stream::Stream;

/// Device memory that other streams read while its own goes on.
///
/// Their uses wait for everything that the memory's own stream had been asked when it was lent, and for nothing that this one is asked
/// later. Once this is dropped, the own stream waits for them.
pub struct Lent<'a, T> {
    // Dropped first: what comes behind has the own stream free the memory.
    uses: Uses,
    view: DeviceSlice<'a, T>,
    /// Keeps the memory if this is forgotten instead of dropped.
    memory: Owner,
}

/// A buffer that other streams write while its own goes on: as [`Lent`].
pub struct LentBuffer<T> {
    uses: Uses,
    buffer: DeviceBuffer<T>,
}

/// Memory of one stream that others read and write while it goes on, at addresses that the one who lends it knows: as [`Lent`], with one
/// order for all of it.
pub struct Loan {
    uses: Uses,
    memory: Vec<Owner>,
}

/// What keeps memory alive.
type Owner = Arc<dyn Any + Send + Sync>;

/// How lent memory is ordered.
struct Uses {
    own: Stream,
    /// The end of the memory's own stream when it was lent.
    ready: Event,
    /// Each stream that was asked to use the memory, and its end then.
    ends: Mutex<Vec<(Stream, Arc<Event>)>>,
}

/// Rows to copy, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// How many rows.
    pub count: usize,
    /// The length of a row.
    pub len: usize,
    /// Where the first row begins in the source.
    pub from: usize,
    /// From one row to the next in the source.
    pub from_pitch: usize,
    /// Where the first row begins in the destination.
    pub to: usize,
    /// From one row to the next in the destination.
    pub to_pitch: usize,
}

const OPERATION: &str = "copying rows between device buffers";

impl<'a, T: Pod> DeviceSlice<'a, T> {
    /// Lends the memory to other streams, to read.
    ///
    /// # Errors
    /// The driver's error.
    pub fn lend(self) -> Result<Lent<'a, T>> {
        Ok(Lent {
            uses: Uses::of(self.stream())?,
            memory: self.owner(),
            view: self,
        })
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// Lends the buffer to other streams, to write.
    ///
    /// # Errors
    /// The driver's error.
    pub fn lend(self) -> Result<LentBuffer<T>> {
        Ok(LentBuffer {
            uses: Uses::of(self.stream())?,
            buffer: self,
        })
    }
}

impl<T: Pod> Lent<'_, T> {
    /// The context that the memory's own stream is of.
    pub fn context(&self) -> &Context {
        self.view.context()
    }

    /// The device address of the first element.
    pub fn pointer(&self) -> CUdeviceptr {
        self.view.pointer()
    }

    /// The owner that keeps the memory alive.
    pub fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.memory.clone()
    }

    /// Ends the loan, as dropping it does.
    ///
    /// # Errors
    /// The driver's error, which a drop leaves to the next synchronization.
    pub fn end(self) -> Result<()> {
        self.uses.end()
    }
}

impl<T: Pod> LentBuffer<T> {
    /// The buffer, on whose stream everything now comes behind what the others were asked.
    ///
    /// # Errors
    /// The driver's error.
    pub fn into_buffer(self) -> Result<DeviceBuffer<T>> {
        self.uses.end()?;
        Ok(self.buffer)
    }

    /// Has `stream`, of the buffer's context or of that of all the other memory, copy rows from there, perhaps from another device, in no
    /// particular order. The driver is asked to copy beside kernels. In a captured graph, on the legacy default stream, and by drivers before 12.8, a device
    /// copies within itself by its multiprocessors: such a copy waits until kernels leave some of them.
    ///
    /// # Errors
    /// [`DriverError::OtherContext`]; [`DriverError::OutOfRange`] for rows that reach out of either side, [`DriverError::Pitch`] for rows
    /// that overlap: nothing is queued then. What the driver reports.
    pub fn copy_rows(&mut self, stream: &Stream, copies: &[(&Lent<'_, T>, Rows)]) -> Result<()> {
        let is_its = |context: &Context| stream.context().is_same(context);
        let mut sources = copies.iter().map(|(source, _)| source.context());
        if !(is_its(self.buffer.context()) || sources.all(is_its)) {
            return Err(DriverError::OtherContext {
                operation: OPERATION,
            });
        }
        for (source, rows) in copies {
            rows.check(rows.from, rows.from_pitch, source.view.len())?;
            rows.check(rows.to, rows.to_pitch, self.buffer.len())?;
        }
        let mut used = vec![(&self.uses, vec![self.buffer.owner()])];
        for (source, _) in copies {
            if !used.iter().any(|(seen, _)| ptr::eq(*seen, &source.uses)) {
                used.push((&source.uses, vec![source.memory.clone()]));
            }
        }
        if used.len() == 1 {
            return Ok(());
        }
        let _current = stream.context().enter()?;
        stream.wait_for_lent(&used)?;
        let _held = stream.hold();
        let copies: Vec<_> = { copies.iter() }
            .filter(|(_, rows)| !rows.is_empty() && size_of::<T>() > 0)
            .collect();
        let singly = || {
            let mut copies = copies.iter();
            copies.try_for_each(|(source, rows)| self.copy(stream, source, rows))
        };
        stream.use_available(&used, || {
            // A batch takes the driver a tenth of the time that the copies take one by one. The legacy default stream takes none.
            let takes_batches = !copies.is_empty() && stream.raw() != CUstream::NULL;
            let batched = match stream.capture()? {
                None if takes_batches => self.copy_batch(stream, &copies),
                _ => None,
            };
            batched.unwrap_or_else(singly)
        })?
    }

    /// The device address of the first element.
    pub fn pointer(&self) -> CUdeviceptr {
        self.buffer.pointer()
    }

    /// All copies by one call of the driver; `None` if it has no such function.
    fn copy_batch(&self, stream: &Stream, copies: &[&(&Lent<'_, T>, Rows)]) -> Option<Result<()>> {
        let batch = stream.api().memcpy_batch_async?;
        let size = size_of::<T>();
        let (mut to, mut from, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for (source, rows) in copies {
            for row in 0..rows.count {
                let (at, of) = rows.row(row);
                to.push(self.buffer.pointer() + (at * size) as u64);
                from.push(source.view.pointer() + (of * size) as u64);
                bytes.push(rows.len * size);
            }
        }
        let nowhere = CUmemLocation {
            kind: CUmemLocationType::INVALID,
            id: 0,
        };
        let mut attributes = CUmemcpyAttributes {
            src_access_order: CUmemcpySrcAccessOrder::STREAM,
            src_location_hint: nowhere,
            dst_location_hint: nowhere,
            flags: CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE,
        };
        let (mut first, mut failed) = (0, 0);
        // SAFETY: as in `copy`, for each of the copies; the lists have `to.len()` elements each and outlive the call, which copies them.
        let code = unsafe {
            batch(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                bytes.as_mut_ptr(),
                to.len(),
                &mut attributes,
                &mut first,
                1,
                &mut failed,
                stream.raw(),
            )
        };
        Some(match code {
            CUresult::SUCCESS => Ok(()),
            code => Err(stream.failed(SYMBOLS.memcpy_batch_async, code, OPERATION.into())),
        })
    }

    fn copy(&self, stream: &Stream, source: &Lent<'_, T>, rows: &Rows) -> Result<()> {
        /// The driver takes no longer pitch.
        const MAX_PITCH: usize = i32::MAX as usize;
        let size = size_of::<T>();
        let (to, from) = (self.buffer.pointer(), source.view.pointer());
        let max_pitch = MAX_PITCH / size;
        if rows.count > 1 && rows.from_pitch.max(rows.to_pitch) <= max_pitch {
            let copy = CUmemcpy2D {
                src_x_in_bytes: 0,
                src_y: 0,
                src_memory_type: CUmemoryType::UNIFIED,
                src_host: ptr::null(),
                src_device: from + (rows.from * size) as u64,
                src_array: CUarray::NULL,
                src_pitch: rows.from_pitch * size,
                dst_x_in_bytes: 0,
                dst_y: 0,
                dst_memory_type: CUmemoryType::UNIFIED,
                dst_host: ptr::null_mut(),
                dst_device: to + (rows.to * size) as u64,
                dst_array: CUarray::NULL,
                dst_pitch: rows.to_pitch * size,
                width_in_bytes: rows.len * size,
                height: rows.count,
            };
            // SAFETY: `check` found all rows inside of both sides, whose memory stays until this stream has come here: `Uses` has the
            // streams that free it wait. Contexts that are unified address each other's memory alike.
            return unsafe { call!(stream, OPERATION, memcpy_2d_async(&copy, stream.raw())) };
        }
        for row in 0..rows.count {
            let (at, of) = rows.row(row);
            let (to, from) = (to + (at * size) as u64, from + (of * size) as u64);
            // SAFETY: as above.
            unsafe {
                call!(
                    stream,
                    OPERATION,
                    memcpy_peer_async(
                        to,
                        self.buffer.context().raw(),
                        from,
                        source.view.context().raw(),
                        rows.len * size,
                        stream.raw()
                    )
                )
            }?;
        }
        Ok(())
    }
}

/// Lent memory as others use it, and its owners.
type Used<'a> = (&'a Uses, Vec<Owner>);

impl Loan {
    /// Ends the loan, as dropping it does: the memory's own stream waits for all uses.
    ///
    /// # Errors
    /// The driver's error, which a drop leaves to the next synchronization.
    pub fn end(self) -> Result<()> {
        self.uses.end()
    }
}

impl Stream {
    /// Lends memory of this stream to others.
    ///
    /// # Errors
    /// The driver's error.
    pub fn lend(&self, owners: Vec<Owner>) -> Result<Loan> {
        Ok(Loan {
            uses: Uses::of(self)?,
            memory: owners,
        })
    }

    /// As [`use_lent`](Self::use_lent), of a loan.
    ///
    /// # Errors
    /// The driver's error. What `submit` queued is ordered all the same.
    ///
    /// # Safety
    /// What `submit` queues is on this stream, and uses no memory of the loan's stream but that of the loan.
    pub unsafe fn use_loan<R>(&self, loan: &Loan, submit: impl FnOnce() -> R) -> Result<R> {
        let _current = self.context().enter()?;
        self.ordered(&[(&loan.uses, loan.memory.clone())], submit)
    }

    /// Has the stream use lent memory by calls that `submit` makes, such as those of NCCL, in the order of the copies of
    /// [`LentBuffer::copy_rows`]. The stream's context is current meanwhile.
    ///
    /// # Errors
    /// The driver's error. What `submit` queued is ordered all the same.
    ///
    /// # Safety
    /// What `submit` queues is on this stream, reads inside of `reads` and writes inside of `writes`.
    pub unsafe fn use_lent<T: Pod, R>(
        &self,
        reads: &[&Lent<'_, T>],
        writes: &[&LentBuffer<T>],
        submit: impl FnOnce() -> R,
    ) -> Result<R> {
        let _current = self.context().enter()?;
        let reads = { reads.iter() }.map(|lent| (&lent.uses, vec![lent.memory.clone()]));
        let writes = { writes.iter() }.map(|lent| (&lent.uses, vec![lent.buffer.owner()]));
        self.ordered(&reads.chain(writes).collect::<Vec<_>>(), submit)
    }

    fn ordered<R>(&self, used: &[Used<'_>], queue: impl FnOnce() -> R) -> Result<R> {
        self.wait_for_lent(used)?;
        self.use_available(used, queue)
    }

    /// Has the stream wait until all of the memory may be used, which may take the stream into a capture: nobody holds it yet.
    fn wait_for_lent(&self, used: &[Used<'_>]) -> Result<()> {
        { used.iter() }.try_for_each(|(uses, _)| uses.available_to(self))
    }

    /// Queues uses of memory that the stream has waited for.
    fn use_available<R>(&self, used: &[Used<'_>], queue: impl FnOnce() -> R) -> Result<R> {
        for owner in used.iter().flat_map(|(_, memory)| memory) {
            self.keep_for_graph(owner.clone())?;
        }
        let queued = queue();
        // Also after an error, as some may be queued.
        let uses = used.iter().map(|(uses, _)| *uses).collect();
        self.note_uses(uses).inspect_err(|_| self.wait_out())?;
        Ok(queued)
    }

    /// Notes the stream's present end as that of its use of lent memory.
    fn note_uses(&self, mut used: Vec<&Uses>) -> Result<()> {
        used.retain(|uses| !uses.own.is_same(self));
        // Locked in this order by all.
        used.sort_unstable_by_key(|uses| ptr::from_ref(*uses).addr());
        used.dedup_by(|one, other| ptr::eq(*one, *other));
        // Who has the locks never waits for the gate, as those who wait for the locks may be inside.
        let _held = self.hold();
        // Of two threads that use the memory on this stream, the one that marks the later end notes it later.
        let ends: Vec<_> = used.iter().map(|uses| lock(&uses.ends)).collect();
        let end = Arc::new(self.mark()?);
        for mut ends in ends {
            match ends.iter_mut().find(|(by, _)| by.is_same(self)) {
                Some((_, latest)) => *latest = end.clone(),
                None => ends.push((self.clone(), end.clone())),
            }
        }
        Ok(())
    }
}

impl Uses {
    fn of(own: &Stream) -> Result<Uses> {
        Ok(Uses {
            own: own.clone(),
            ready: own.mark()?,
            ends: Mutex::default(),
        })
    }

    /// Has `stream` wait until the memory may be used.
    fn available_to(&self, stream: &Stream) -> Result<()> {
        match self.own.is_same(stream) {
            true => Ok(()),
            false => stream.wait(&self.ready),
        }
    }

    /// Has the own stream wait for all others, also if the driver fails. Returns its first error.
    fn end(&self) -> Result<()> {
        let mut first = Ok(());
        for (by, end) in lock(&self.ends).drain(..) {
            if let Err(error) = self.own.wait(&end) {
                by.wait_out();
                first = first.and(Err(error));
            }
        }
        first
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        self.own.context().defer(self.end());
    }
}

impl Rows {
    /// Where a row begins in the destination and in the source.
    fn row(&self, row: usize) -> (usize, usize) {
        (
            self.to + row * self.to_pitch,
            self.from + row * self.from_pitch,
        )
    }

    fn is_empty(&self) -> bool {
        self.count == 0 || self.len == 0
    }

    fn check(&self, start: usize, pitch: usize, len: usize) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        if self.count > 1 && pitch < self.len {
            return Err(DriverError::Pitch {
                pitch,
                row: self.len,
            });
        }
        let end = { (self.count - 1).checked_mul(pitch) }
            .and_then(|last| last.checked_add(start)?.checked_add(self.len))
            .unwrap_or(usize::MAX);
        match end <= len {
            true => Ok(()),
            false => Err(DriverError::OutOfRange {
                range: start..end,
                len,
            }),
        }
    }
}

impl<T> fmt::Debug for Lent<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({:?})", self.view)
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan of {:?}", self.uses.own)
    }
}

impl<T> fmt::Debug for LentBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentBuffer({:?})", self.buffer)
    }
}
