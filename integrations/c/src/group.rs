//! Several devices that compute together.

use std::ffi::{c_char, c_void};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use attention::Backend;
use attention::driver::sys::CUstream;
use attention::driver::{DriverError, Stream};
use warptile_distributed::World as Job;

use crate::error::{Failure, Result, guarded};
use crate::machine::{Machine, no_stream};
use crate::ranks::{Ranks, list};
use crate::structs::{
    Versioned, WARPTILE_CPU, check_pointer, count, free, give, handle, name, read,
};

/// The GPU that has the number of this process among those of its host, where warptile_group_nccl asks for a device and the environment
/// says who this process is: `ranks` of the world is 0.
pub const WARPTILE_LOCAL_RANK: i32 = -2;

/// Devices that compute together, in the order of their ranks. Any number of threads may use a group at the same time, except that calls of
/// several processes come in one order on all of them.
#[derive(Debug)]
pub struct Group {
    pub(crate) ranks: Arc<Ranks>,
}

/// A process among those of a job, each of which has one GPU. Fill the struct with zeros, then set `size`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct World {
    /// `sizeof(warptile_world)`.
    pub size: usize,
    /// This process's rank, from 0.
    pub rank: i64,
    /// How many processes there are. 0: rank, ranks and address are those that torchrun, an MPI or SLURM has put into the environment;
    /// the address is WARPTILE_RENDEZVOUS, or the host of MASTER_ADDR and the port behind MASTER_PORT.
    pub ranks: i64,
    /// Where rank 0 listens and the others connect, such as "host:29501". Null where the environment says it.
    pub address: *const c_char,
    /// Seconds that ranks may take to find each other, to make a call that others have made, and to send the rows of a call. 0: 60.
    pub timeout: f64,
    /// Seconds without a sign of life after which a rank is lost. 0: 5.
    pub silence: f64,
}

// SAFETY: numbers and raw pointers, the size first, without padding.
unsafe impl Versioned for World {
    const LEAST: usize = std::mem::offset_of!(World, timeout);
}

/// Groups devices of this process: GPUs of one host, whose memory is opened to each other, or WARPTILE_CPU several times over. There are at
/// least two; a GPU may be there several times. The handle is freed with warptile_group_free.
///
/// `streams` has a stream for each device, a CUstream or cudaStream_t of its primary context, on which the rank's tensors are read and
/// written. Null, for one stream or for the list, is the legacy default stream. On the CPU streams are null.
///
/// # Safety
/// `devices` is null, which is an error, or `count` numbers; `streams` is null or `count` streams, which live until the group and all
/// handles made of it are freed. `group` is null, which is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_group_local(
    devices: *const i32,
    streams: *const *mut c_void,
    count: usize,
    group: *mut *mut Group,
) -> i32 {
    guarded(|| {
        check_pointer("group", group, align_of::<*mut Group>())?;
        // SAFETY: the caller's promise.
        let devices = unsafe { list("devices", devices, count) }?;
        let streams = match streams.is_null() {
            true => vec![std::ptr::null_mut(); count],
            // SAFETY: the caller's promise.
            false => unsafe { list("streams", streams, count) }?.to_vec(),
        };
        let backends = devices.iter().zip(streams).enumerate();
        let backends = backends.map(|(rank, (device, stream))| {
            // SAFETY: the caller's promise.
            unsafe { backend(format_args!("streams[{rank}]"), *device, stream) }
        });
        let ranks = Ranks::local(backends.collect::<Result<Vec<_>>>()?)?;
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { give(group, of(ranks)) };
        Ok(())
    })
}

/// Groups processes, each of which has one rank on a GPU of its own, by NCCL, which is opened now: WARPTILE_LIBNCCL, or the libnccl.so.2
/// that the process has loaded or the loader finds. Waits until all processes have called this. `device` is the number of a GPU, or
/// WARPTILE_LOCAL_RANK; `stream` is as for warptile_group_local.
///
/// Each process makes the same calls of the group, and passes the rows of its rank alone. Results count once warptile_group_synchronize has
/// succeeded after them.
///
/// Returns WARPTILE_NO_DEVICE if there is no NCCL, WARPTILE_RANKS if the processes have not met.
///
/// # Safety
/// `world` is null, which is an error, or valid for reading `world->size` bytes; its address is null or ends with a NUL. `stream` lives
/// until the group and all handles made of it are freed. `group` is null, which is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_group_nccl(
    world: *const World,
    device: i32,
    stream: *mut c_void,
    group: *mut *mut Group,
) -> i32 {
    guarded(|| {
        check_pointer("group", group, align_of::<*mut Group>())?;
        // SAFETY: the caller's promise.
        let job = unsafe { read("world", world).and_then(|world| job(&world)) }?;
        let device = match device {
            WARPTILE_LOCAL_RANK => {
                let local_rank = job.local_rank().ok_or_else(|| {
                    Failure::of("device", "is WARPTILE_LOCAL_RANK, but ranks is given")
                })?;
                i32::try_from(local_rank).unwrap_or(i32::MAX)
            }
            WARPTILE_CPU => return Err(Failure::of("device", "is the CPU, but NCCL is for GPUs")),
            device => device,
        };
        // SAFETY: the caller's promise.
        let backend = unsafe { backend("stream", device, stream) }?;
        let ranks = Ranks::nccl(&job, &backend)?;
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { give(group, of(ranks)) };
        Ok(())
    })
}

/// How many ranks a group has in all processes, and the numbers of this process's: `count` from `first` on. Each may be null.
///
/// # Safety
/// `group` is null, which is an error, or a handle that was not freed. The others are null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_group_ranks(
    group: *const Group,
    all: *mut usize,
    first: *mut usize,
    count: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let ranks = unsafe { &handle("group", group)?.ranks };
        let local = ranks.local_ranks();
        for (argument, to, number) in [
            ("all", all, ranks.ranks()),
            ("first", first, local.start),
            ("count", count, local.len()),
        ] {
            if !to.is_null() {
                check_pointer(argument, to, align_of::<usize>())?;
                // SAFETY: not null, aligned, and valid by the caller's promise.
                unsafe { to.write(number) };
            }
        }
        Ok(())
    })
}

/// Waits until this process's ranks have done what was submitted to them, at most as many seconds as `timeout` says. Returns WARPTILE_RANKS
/// with the rank that has not, or that has failed.
///
/// # Safety
/// `group` is null, which is an error, or a handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_group_synchronize(group: *const Group, timeout: f64) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let ranks = unsafe { &handle("group", group)?.ranks };
        Ok(ranks.synchronize(seconds("timeout", timeout)?)?)
    })
}

/// Frees a group. Over NCCL, this leaves the group and tells the other processes. It waits for messages under way, each within the group's
/// timeout; for kernels before them, until five times the timeout has passed; and then for NCCL to end, which takes seconds. Handles made
/// from the group keep it until they are freed.
///
/// # Safety
/// `group` is null, or a handle that was not freed and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_group_free(group: *mut Group) {
    // SAFETY: the caller's promise.
    unsafe { free(group) };
}

fn of(ranks: Ranks) -> Group {
    let ranks = Arc::new(ranks);
    Group { ranks }
}

/// A device, whose tensors are read and written on a stream.
///
/// # Safety
/// The stream is null or lives as long as the backend.
unsafe fn backend(argument: impl Display, device: i32, stream: *mut c_void) -> Result<Backend> {
    let Machine::Gpu(gpu) = Machine::of(device)? else {
        no_stream(stream)?;
        return Ok(Backend::cpu());
    };
    // SAFETY: the caller's promise; the driver is loaded once.
    let stream = unsafe { Stream::borrow(gpu.context(), CUstream(stream), Arc::new(())) };
    let stream = stream.map_err(|error| match error {
        DriverError::PerThreadStream | DriverError::ForeignContext { .. } => {
            Failure::of(argument, format_args!("cannot be used: {error}"))
        }
        error => error.into(),
    })?;
    Ok(Backend::on_stream(&stream)?)
}

/// # Safety
/// As for [`warptile_group_nccl`].
unsafe fn job(world: &World) -> Result<Job> {
    // SAFETY: the caller's promise.
    let address = unsafe { name("address", world.address) }?;
    let mut job = match (count("ranks", world.ranks)?, address) {
        (0, None) if world.rank == 0 => Job::from_env()?,
        (0, None) => return Err(Failure::of("rank", "is given, but ranks is 0")),
        (0, Some(_)) => return Err(Failure::of("address", "is given, but ranks is 0")),
        (_, None) => return Err(Failure::of("address", "is null, but ranks is given")),
        (ranks, Some(address)) => Job::new(count("rank", world.rank)?, ranks, address),
    };
    if world.timeout != 0.0 {
        job = job.timeout(seconds("timeout", world.timeout)?);
    }
    if world.silence != 0.0 {
        job = job.silence(seconds("silence", world.silence)?);
    }
    Ok(job)
}

fn seconds(argument: &str, seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| Failure::of(argument, format_args!("is {seconds}: {error}")))
}
