//! Ranks in processes of their own, one for each GPU: NCCL moves rows between them, in a stream that kernels wait for.

mod clock;
pub(crate) mod comm;
pub(crate) mod control;
pub(crate) mod failure;
mod rendezvous;
pub(crate) mod world;

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use warptile::bytemuck::Pod;
use warptile::driver::{
    DeviceBuffer, DeviceSlice, DriverError, Event, Lent, LentBuffer, Rows, Stream,
};
use warptile::{Backend, Element};
use warptile_nccl_sys::NcclApi;

use crate::error::{Error, OfRank, Result};
use crate::group::Group;
use crate::group::Streams;
use crate::stage::{Staged, Wanted};
use comm::{Comm, Message};
use control::{Control, Watched};
use failure::Failure;
use world::World;

/// How long the end of a communicator may take before it is left behind.
const END: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// How many times as long as messages the kernels before them may take, once the group is dropped.
const KERNELS_END: u32 = 5;

/// A rank's connection to the others.
pub(crate) struct Nccl {
    world: World,
    control: Control,
    work: Arc<Work>,
    /// Held from a call's agreement until all of its work is submitted.
    calls: Mutex<()>,
    /// Whether a caller has been told of the failure.
    told: AtomicBool,
}

/// The communicator, as it is watched.
struct Work {
    comm: Arc<Comm>,
    stream: Stream,
    timeout: Duration,
    /// Messages that may not have come, in their order.
    pending: Mutex<VecDeque<Messages>>,
    /// Whether messages were aborted that had not come.
    cut: AtomicBool,
}

/// The messages of a call, in their stream.
struct Messages {
    /// Happens when the stream waits for nothing but them.
    ready: Event,
    /// Happens when they have come.
    done: Event,
    /// The time at which they were found to be ready.
    since: Option<Instant>,
}

/// An event at the present end of a stream.
fn mark(stream: &Stream) -> Result<Event, DriverError> {
    let event = Event::new(stream.context())?;
    stream.record(&event)?;
    Ok(event)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched for Work {
    fn look(&self, now: Instant) -> Option<String> {
        if let Err(why) = self.comm.is_done() {
            return Some(why);
        }
        match self.waited(now) {
            Ok(waited) if waited <= self.timeout => None,
            Ok(_) => Some(format!("messages have not come within {:?}", self.timeout)),
            Err(error) => Some(error.to_string()),
        }
    }

    fn abort(&self) {
        // Those that have come by now are right.
        let _ = self.waited(Instant::now());
        self.cut.fetch_or(self.is_pending(), Ordering::Relaxed);
        let (comm, stream) = (self.comm.clone(), self.stream.clone());
        // NCCL may hang in it, and a thread that cannot be had leaves the communicator behind, too.
        let _ = thread::Builder::new().spawn(move || comm.end(true, stream));
    }
}

impl Work {
    /// Takes messages that have come off the list. Returns how long the next have been waited for since the GPU came to them.
    fn waited(&self, now: Instant) -> Result<Duration, DriverError> {
        let mut pending = lock(&self.pending);
        while let Some(next) = pending.front_mut() {
            if next.done.query()? {
                pending.pop_front();
                continue;
            }
            if next.since.is_none() && next.ready.query()? {
                next.since = Some(now);
            }
            let since = next.since.unwrap_or(now);
            return Ok(now.saturating_duration_since(since));
        }
        Ok(Duration::ZERO)
    }

    /// Whether the GPU has not come to the next messages yet.
    fn waits_for_kernels(&self) -> bool {
        lock(&self.pending)
            .front()
            .is_some_and(|next| next.since.is_none())
    }

    fn is_pending(&self) -> bool {
        !lock(&self.pending).is_empty()
    }
}

impl Nccl {
    /// Meets the other ranks and begins a communicator with them.
    pub(crate) fn new(
        api: &Arc<NcclApi>,
        world: &World,
        backend: &Backend,
    ) -> Result<(Nccl, Streams)> {
        let World { rank, ranks, .. } = *world;
        let refused = |rule: String| Error::Argument { rank, rule };
        let Some(gpu) = backend.gpu() else {
            return Err(refused(format!("NCCL is for GPUs, not for {backend}")));
        };
        if rank >= ranks {
            return Err(refused(format!("there are {ranks} ranks")));
        }
        let context = gpu.context();
        let priority = *context.stream_priorities().of_rank(rank)?.start();
        // Its messages go before kernels that are submitted later, even if these fill the GPU.
        let streams = Streams::new(gpu.stream(), (priority, 1)).of_rank(rank)?;
        let about = format!("NCCL {}", api.version());
        let nccl_failed = |why: String| Error::Rendezvous(format!("rank {rank}: {why}"));
        let (id, links) =
            rendezvous::meet(world, &about, || comm::unique_id(api).map_err(nccl_failed))?;
        let control = Control::new(world, links).map_err(|error| nccl_failed(error.to_string()))?;
        let until = control.now() + world.timeout;
        let failed = |why: String| Error::from(control.fail(Failure::Failed { rank, why }));
        let begun = {
            let _current = context.enter().of_rank(rank)?;
            Comm::begin(api, id, [rank, ranks])
        };
        let work = Arc::new(Work {
            comm: Arc::new(begun.map_err(failed)?),
            stream: streams.far[0].clone(),
            timeout: world.timeout,
            pending: Mutex::default(),
            cut: AtomicBool::new(false),
        });
        control.watch(work.clone());
        let nccl = Nccl {
            world: world.clone(),
            control,
            work,
            calls: Mutex::default(),
            told: AtomicBool::new(false),
        };
        nccl.wait(until).map_err(|why| nccl.failed(why))?;
        nccl.check()?;
        Ok((nccl, streams))
    }

    pub(crate) fn rank(&self) -> usize {
        self.world.rank
    }

    pub(crate) fn ranks(&self) -> usize {
        self.world.ranks
    }

    /// The failure that all ranks report, if there is one.
    pub(crate) fn check(&self) -> Result<()> {
        self.control.check().map_err(|failure| self.tell(failure))
    }

    /// The error of a call that the group's failure ends.
    fn tell(&self, failure: Failure) -> Error {
        self.told.store(true, Ordering::Relaxed);
        failure.into()
    }

    /// Tells all ranks that this one has failed.
    fn failed(&self, why: String) -> Error {
        self.tell(self.fail(why))
    }

    /// As [`failed`](Self::failed), where no caller is told.
    fn fail(&self, why: String) -> Failure {
        let rank = self.world.rank;
        self.control.fail(Failure::Failed { rank, why })
    }

    fn wait(&self, until: Instant) -> Result<(), String> {
        self.work.comm.wait(|| {
            { self.control.check() }.map_err(|failure| failure.to_string())?;
            match self.control.now() > until {
                true => Err("NCCL's call is still in progress".to_owned()),
                false => Ok(()),
            }
        })
    }

    /// Computes when all ranks are about to make this call, to which messages belong meanwhile. A failure of this rank's own becomes that
    /// of all.
    pub(crate) fn agreed<R>(&self, call: &str, compute: impl FnOnce() -> Result<R>) -> Result<R> {
        let _calls = lock(&self.calls);
        let agreed = self.control.agree(call, None);
        agreed.map_err(|failure| self.tell(failure))?;
        self.or_fail(compute())
    }

    /// Waits until all ranks are about to make this call, without messages, which one that cannot prevents for all.
    pub(crate) fn agree_if(&self, call: &str, prepared: Result<()>) -> Result<()> {
        let _calls = lock(&self.calls);
        let why = match &prepared {
            Ok(()) => None,
            Err(Error::Rank { source, .. }) => Some(source.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let agreed = self.control.agree(call, why.as_deref());
        match agreed.map_err(|failure| self.tell(failure))? {
            Some((rank, rule)) if prepared.is_ok() || rank != self.world.rank => {
                Err(Error::Argument { rank, rule })
            }
            _ => prepared,
        }
    }

    /// Tensors of rows from several ranks, whose messages are under way.
    pub(crate) fn exchange<'s, T: Element>(
        &self,
        group: &'s Group,
        wanted: &[Wanted<'s, T>],
    ) -> Result<Vec<Staged<'s, T>>> {
        self.or_fail(self.try_exchange(group, wanted))
    }

    /// What each rank has, in memory of this one; none for its own. All ranks have as much.
    pub(crate) fn gather<T: Pod>(
        &self,
        streams: &Streams,
        own: DeviceSlice<'_, T>,
    ) -> Result<Vec<Option<DeviceBuffer<T>>>> {
        self.or_fail(self.try_gather(streams, own))
    }

    fn try_gather<T: Pod>(
        &self,
        streams: &Streams,
        own: DeviceSlice<'_, T>,
    ) -> Result<Vec<Option<DeviceBuffer<T>>>> {
        let World { rank, ranks, .. } = self.world;
        let peers = || (0..ranks).filter(|peer| *peer != rank);
        let (len, own) = (own.len(), own.lend().of_rank(rank)?);
        let message = |peer, address| Message {
            peer,
            address,
            bytes: len * size_of::<T>(),
        };
        let sends: Vec<_> = peers().map(|peer| message(peer, own.pointer())).collect();
        let buffers = { peers() }
            .map(|_| DeviceBuffer::uninit(&streams.kernels, len)?.lend())
            .collect::<Result<Vec<_>, _>>()
            .of_rank(rank)?;
        let receives: Vec<_> = { peers().zip(&buffers) }
            .map(|(peer, buffer)| message(peer, buffer.pointer()))
            .collect();
        // SAFETY: each message is all of `own` or of a buffer.
        let buffers = unsafe { self.submit(streams, &[&own], buffers, [&sends, &receives]) }?;
        let mut buffers = buffers.into_iter();
        let all = (0..ranks).map(|peer| match peer == rank {
            true => Ok(None),
            false => buffers.next().map(LentBuffer::into_buffer).transpose(),
        });
        all.collect::<Result<_, _>>().of_rank(rank)
    }

    /// A failure of this rank's own becomes that of all.
    pub(crate) fn or_fail<R>(&self, result: Result<R>) -> Result<R> {
        let result = result.and_then(|result| self.check().map(|()| result));
        result.map_err(|error| match error {
            Error::Failure(_) => error,
            error => self.failed(error.to_string()),
        })
    }

    fn try_exchange<'s, T: Element>(
        &self,
        group: &'s Group,
        wanted: &[Wanted<'s, T>],
    ) -> Result<Vec<Staged<'s, T>>> {
        let rank = self.world.rank;
        let streams = group.streams(rank).ok_or(Error::OneProcess("the CPU"))?;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let (mut reads, mut buffers, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for Wanted {
            source,
            layout,
            copies,
        } in wanted
        {
            let (lent, lent_len) = (source.lent().of_rank(rank)?, source.len());
            let buffer = DeviceBuffer::uninit(&streams.kernels, layout.reach());
            let buffer = buffer.and_then(DeviceBuffer::lend).of_rank(rank)?;
            let mut own = Vec::new();
            for &(reader, owner, rows) in copies {
                match (reader == rank, owner == rank) {
                    (true, true) => own.push((lent, rows)),
                    (false, true) => {
                        let place = [rows.from, rows.from_pitch];
                        let memory = (lent.pointer(), lent_len);
                        sends.extend(messages::<T>(reader, memory, place, rows).of_rank(rank)?);
                    }
                    (true, false) => {
                        let place = [rows.to, rows.to_pitch];
                        let memory = (buffer.pointer(), layout.reach());
                        receives.extend(messages::<T>(owner, memory, place, rows).of_rank(rank)?);
                    }
                    (false, false) => {}
                }
            }
            reads.push(lent);
            buffers.push(buffer);
            rest.push((layout, own));
        }
        // SAFETY: `messages` has found all rows within the tensors that are lent and the buffers.
        let buffers = unsafe { self.submit(streams, &reads, buffers, [&sends, &receives]) }?;
        let staged = buffers.into_iter().zip(rest);
        let staged = staged.map(|(buffer, (layout, own))| {
            Staged::underway(group.backend(rank), buffer, *layout, (&streams.near, own))
        });
        Ok(staged.collect())
    }

    /// Has the stream for copies send from what is lent and receive into the buffers, all of which it returns.
    ///
    /// # Safety
    /// The messages are inside of these.
    unsafe fn submit<T: Pod, W: AsRef<[LentBuffer<T>]>>(
        &self,
        streams: &Streams,
        reads: &[&Lent<'_, T>],
        writes: W,
        [sends, receives]: [&[Message]; 2],
    ) -> Result<W> {
        let until = self.control.now() + self.world.timeout;
        let mark = || mark(&streams.far[0]).of_rank(self.world.rank);
        let submit = || {
            if sends.is_empty() && receives.is_empty() {
                return Ok(());
            }
            let ready = mark().map_err(|error| (error, true))?;
            // SAFETY: the caller vouches for the messages.
            let begun = unsafe { self.work.comm.exchange(&streams.far[0], sends, receives) };
            begun.and_then(|()| self.wait(until)).map_err(|why| {
                let error = self.failed(why);
                // Up to there NCCL may launch what uses the memory.
                (error, self.work.comm.wait_for_end(END))
            })?;
            let done = mark().map_err(|error| (error, true))?;
            lock(&self.work.pending).push_back(Messages {
                ready,
                done,
                since: None,
            });
            Ok(())
        };
        let buffers: Vec<_> = writes.as_ref().iter().collect();
        // SAFETY: as above; all messages are in this stream.
        let submitted = unsafe { streams.far[0].use_lent(reads, &buffers, submit) };
        match submitted.of_rank(self.world.rank)? {
            Ok(()) => Ok(writes),
            Err((error, has_ended)) => {
                if !has_ended {
                    reads.iter().for_each(|read| mem::forget(read.owner()));
                    mem::forget(writes);
                }
                Err(error)
            }
        }
    }
}

/// The messages of some rows, which lie in memory of `len` elements at `address` from the first of `place` on, the second apart.
///
/// # Errors
/// [`DriverError::OutOfRange`] for rows that reach out of the memory.
fn messages<T>(
    peer: usize,
    (address, len): (u64, usize),
    [start, pitch]: [usize; 2],
    rows: Rows,
) -> Result<impl Iterator<Item = Message>, DriverError> {
    let end = { rows.count.saturating_sub(1).checked_mul(pitch) }
        .and_then(|last| last.checked_add(start)?.checked_add(rows.len))
        .unwrap_or(usize::MAX);
    if rows.count > 0 && end > len {
        let range = start..end;
        return Err(DriverError::OutOfRange { range, len });
    }
    let size = size_of::<T>();
    Ok((0..rows.count).map(move |row| Message {
        peer,
        address: address + ((start + row * pitch) * size) as u64,
        bytes: rows.len * size,
    }))
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let (work, comm) = (&self.work, &self.work.comm);
        let has_failed = || self.control.failure().is_some();
        self.control.leave();
        // Kernels before the messages may take long, but not for ever. The messages have a bound, which the watch minds.
        let kernels_end = self.control.now() + KERNELS_END * self.world.timeout;
        while work.is_pending() && !has_failed() {
            thread::sleep(Duration::from_millis(1));
            let now = self.control.now();
            let _ = work.waited(now);
            if work.waits_for_kernels() && now > kernels_end {
                self.fail("kernels before its messages have not ended".to_owned());
            }
        }
        self.control.close();
        let until = self.control.now() + END.min(self.world.timeout);
        let ended = { self.control.check() }.map_err(|failure| failure.to_string());
        let ended = ended.and_then(|()| comm.finalize());
        match ended.and_then(|()| self.wait(until)) {
            Ok(()) if !has_failed() => comm.end(false, work.stream.clone()),
            // A failure has begun to abort.
            _ if has_failed() => {}
            _ => work.abort(),
        }
        if !comm.wait_for_end(END) {
            // It may launch what is in the stream yet.
            mem::forget(work.stream.clone());
        }
        // The group cannot be asked any more.
        if let Some(failure) = self.control.failure()
            && work.cut.load(Ordering::Relaxed)
            && !self.told.load(Ordering::Relaxed)
        {
            let why = failure.to_string();
            { work.stream.context() }.defer(Err(DriverError::Ended { why }));
        }
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nccl({:?})", self.control)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use warptile::driver::Driver;
    use warptile::{Backend, Layout, Mask, Tensor};
    use warptile_fake_cuda::{FakeDriver, Kind};
    use warptile_fake_nccl::{FakeNccl, Fault};

    use super::*;
    use crate::Sharding;
    use crate::heads::{all_rows_of, given_back};
    use crate::need::{parts, staged};
    use crate::stage::{Source, position, rows_of_heads, staged_rows};
    use crate::sums::{Home, Routes};

    #[test]
    fn messages_stay_within_the_memory() {
        let rows = |count, len| Rows {
            count,
            len,
            from: 0,
            from_pitch: 0,
            to: 0,
            to_pitch: 0,
        };
        let of = |len, place, rows| {
            let messages = messages::<f32>(1, (256, len), place, rows)?;
            Ok(messages.map(|message| message.address).collect::<Vec<_>>())
        };
        assert_eq!(of(23, [3, 8], rows(3, 4)).unwrap(), [268, 300, 332]);
        for (len, place, rows) in [
            (22, [3, 8], rows(3, 4)),
            (7, [4, 8], rows(1, 4)),
            (23, [usize::MAX, 8], rows(1, 4)),
            (23, [0, usize::MAX], rows(3, 4)),
        ] {
            let refused = of(len, place, rows);
            assert!(matches!(refused, Err(DriverError::OutOfRange { .. })));
        }
        assert!(of(0, [0, 8], rows(0, 4)).unwrap().is_empty());
    }

    fn free_address() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    }

    /// The communicator may still use the memory of both sides, and their stream.
    #[test]
    fn what_an_abort_that_hangs_may_use_stays() {
        let (cuda, address) = (FakeDriver::open(), free_address());
        cuda.set_device_count(2);
        // SAFETY: the library is the stand-in, with the driver's signatures.
        let driver = unsafe { Driver::load_from(cuda.path()) }.unwrap();
        let nccl = FakeNccl::open(cuda.path());
        let api = nccl.load().unwrap();
        nccl.fault(0, "ncclGroupEnd", 1, Fault::Async(6));
        nccl.fault(0, "ncclCommAbort", 1, Fault::Takes(8000));
        let run = |rank: usize| {
            let backend = Backend::cuda_with(&driver, rank as u32).unwrap();
            let world = World::new(rank, 2, &address);
            let group = Group::nccl_with(&api, &world, &backend).unwrap();
            let own = backend.tensor(&[0.0_f32; 5], [1, 1, 1, 5]).unwrap();
            let slice = own.device_slice().unwrap();
            let owner = Arc::downgrade(&slice.owner());
            let nccl = group.processes().unwrap();
            let gathered = nccl.gather(group.streams(rank).unwrap(), slice);
            // Rank 1 may have its part before it knows.
            assert!(rank == 1 || gathered.is_err());
            owner
        };
        let owners = thread::scope(|scope| {
            let run = &run;
            let ranks = [0, 1].map(|rank| scope.spawn(move || run(rank)));
            ranks.map(|rank| rank.join().unwrap())
        });
        assert_eq!(nccl.live(), 1, "the abort is over already");
        assert_eq!(owners.map(|owner| owner.strong_count()), [1, 0]);
        // That of the messages, and that of the memory.
        assert_eq!(cuda.live(Kind::Streams), 2);
        while nccl.live() > 0 {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kernels of the stand-in compute nothing, so what they would read is looked at.
    #[test]
    fn every_rank_gets_the_rows_that_it_needs() {
        const RANKS: usize = 3;
        let ([len, heads], dims) = ([700, 3], [16, 8]);
        let (cuda, address) = (FakeDriver::open(), free_address());
        cuda.set_device_count(RANKS as u32);
        // SAFETY: the library is the stand-in, with the driver's signatures.
        let driver = unsafe { Driver::load_from(cuda.path()) }.unwrap();
        let nccl = FakeNccl::open(cuda.path());
        let api = nccl.load().unwrap();
        let gathers = |group: &Group| {
            let (rank, nccl) = (group.local_ranks().start, group.processes().unwrap());
            let own = group.backends()[0]
                .tensor(&[rank as f32; 5], [1, 1, 1, 5])
                .unwrap();
            let streams = group.streams(rank).unwrap();
            let all = nccl.gather(streams, own.device_slice().unwrap()).unwrap();
            for (peer, of) in all.into_iter().enumerate() {
                let of = of.map(|of| of.to_vec().unwrap());
                assert_eq!(of, (peer != rank).then(|| vec![peer as f32; 5]));
            }
        };
        let value = |row: usize, head: usize, at: usize| (row * 100 + head * 20 + at) as f32;
        let run = |rank: usize, sharding: &Sharding| {
            let backend = Backend::cuda_with(&driver, rank as u32).unwrap();
            let world = World::new(rank, RANKS, &address);
            let group = Group::nccl_with(&api, &world, &backend).unwrap();
            gathers(&group);
            let shards = group.shards(sharding, len).unwrap();
            let mask = Mask::window(300, 0);
            let spans: Vec<_> = (0..RANKS)
                .map(|rank| staged(&parts(shards.map(), rank, mask).unwrap()))
                .collect();
            let spans: Vec<_> = spans.iter().map(|spans| &spans[..]).collect();
            let [k, v] = dims.map(|dim| {
                let data: Vec<_> = (0..len * heads * dim)
                    .map(|at| value(at / dim / heads, at / dim % heads, at % dim))
                    .collect();
                shards.split(&data, heads, dim).unwrap()
            });
            // There and back: all rows of some heads, then the rank's rows of all heads. Two ranks have none of the first tensor.
            for (shares, own) in [([0..0, 0..3, 3..3], &k), ([0..1, 1..1, 1..3], &v)] {
                let lent = Source::lend_all(&group, own).unwrap();
                let [all] = all_rows_of(&shards, rank, [(&shares[..], &lent[..])]).unwrap();
                let all = [all.unwrap()];
                for (at, found) in all[0].to_vec().unwrap().into_iter().enumerate() {
                    let [.., dim] = own[0].shape();
                    let head = shares[rank].start + at / dim / len;
                    assert_eq!(found, value(at / dim % len, head, at % dim));
                }
                let rows = 0..shards.map().len();
                let of_all = |_| std::slice::from_ref(&rows);
                let back = given_back(&shards, &all, &shares, of_all).unwrap();
                assert_eq!(back[0].to_vec().unwrap(), own[0].to_vec().unwrap());
            }
            let (k, v) = (
                Source::lend_all(&group, &k).unwrap(),
                Source::lend_all(&group, &v).unwrap(),
            );
            for part in [0..1, 1..heads] {
                let of = |_, reader: usize| (spans[reader], &part);
                let got = rows_of_heads(&shards, rank, [&k[..], &v[..]], of).unwrap();
                for (mut got, dim) in got.into_iter().zip(dims) {
                    got.copy_own().unwrap();
                    let got = got.into_tensor().unwrap().to_vec().unwrap();
                    let rows = staged_rows(spans[rank]);
                    for row in spans[rank].iter().cloned().flatten() {
                        for head in part.clone() {
                            let at = (head - part.start) * rows + position(spans[rank], row);
                            let expected: Vec<_> =
                                (0..dim).map(|at| value(row, head, at)).collect();
                            assert_eq!(got[at * dim..][..dim], expected, "row {row}, head {head}");
                        }
                    }
                }
            }
            // Rank 1 adds to some of its own rows and to some of all others, rank 2 to nothing.
            let seen = [vec![0..50, 100..600], vec![10..20, 150..700], vec![]];
            let parts = seen.iter().map(|seen| vec![seen.clone()]);
            let routes = Routes::new(&shards, parts).unwrap();
            let of = |rank: usize, row, head, at| value(row, head, at) + rank as f32 / 4.0;
            let own = dims.map(|dim| {
                let rows: Vec<_> = seen[rank].iter().cloned().flatten().collect();
                let data = (0..heads * rows.len() * dim).map(|i| {
                    let (head, row) = (i / dim / rows.len(), rows[i / dim % rows.len()]);
                    of(rank, row, head, i % dim)
                });
                let layout = Layout::bhsd([1, heads, rows.len(), dim]);
                Tensor::from_vec(&backend, data.collect(), layout).unwrap()
            });
            let sums = [own];
            let mut home = Home::fetch(&shards, &routes, 0..heads, &sums).unwrap();
            let (arriving, rows) = routes.arriving(rank);
            let arrived: Vec<_> = { arriving.iter().enumerate() }
                .flat_map(|(from, (spans, _))| {
                    { spans.iter().cloned().flatten() }.map(move |row| (from, row))
                })
                .collect();
            let expected: Vec<_> = (0..RANKS)
                .filter(|from| *from != rank)
                .flat_map(|from| {
                    seen[from]
                        .iter()
                        .cloned()
                        .flatten()
                        .map(move |row| (from, row))
                })
                .filter(|(_, row)| shards.map().rows(rank).any(|own| own == *row))
                .collect();
            assert_eq!((&arrived, rows), (&expected, expected.len()));
            let copied = home.copied.remove(0);
            for (copied, dim) in copied.into_iter().zip(dims) {
                let copied = copied.into_tensor().unwrap().to_vec().unwrap();
                for (i, found) in copied.into_iter().enumerate() {
                    let ((from, row), head) = (arrived[i / dim % rows], i / dim / rows);
                    assert_eq!(
                        found,
                        of(from, row, head, i % dim),
                        "row {row} from rank {from}"
                    );
                }
            }
        };
        for sharding in [Sharding::Zigzag, Sharding::Contiguous] {
            thread::scope(|scope| {
                for rank in 0..RANKS {
                    let (run, sharding) = (&run, &sharding);
                    scope.spawn(move || run(rank, sharding));
                }
            });
            nccl.assert_clean();
        }
        cuda.assert_clean();
    }
}
