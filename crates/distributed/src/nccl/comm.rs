//! A communicator of NCCL: never blocking, used by one thread at a time.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use warptile::driver::Stream;
use warptile_nccl_sys::{Config, NCCL_UINT8, NcclApi, NcclComm, NcclResult, UniqueId};

/// Bytes to send or receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) peer: usize,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

const ABORTED: &str = "the communicator has been aborted";

#[derive(Debug)]
pub(crate) struct Comm {
    api: Arc<NcclApi>,
    /// None once it has ended.
    handle: Mutex<Option<NcclComm>>,
    /// True once nothing is launched or in flight any more.
    ended: AtomicBool,
}

pub(crate) fn unique_id(api: &NcclApi) -> Result<[u8; 128], String> {
    let mut id = UniqueId([0; 128]);
    // SAFETY: `id` outlives the call.
    let code = unsafe { (api.get_unique_id)(&mut id) };
    done(api, "ncclGetUniqueId", code).map(|()| id.0)
}

fn done(api: &NcclApi, symbol: &str, code: NcclResult) -> Result<(), String> {
    match code {
        NcclResult::SUCCESS | NcclResult::IN_PROGRESS => Ok(()),
        code => Err(format!("{symbol}: {}", api.explain(code))),
    }
}

impl Comm {
    /// Begins a communicator on the current device. [`Comm::is_done`] says when all ranks have.
    pub(crate) fn begin(
        api: &Arc<NcclApi>,
        id: [u8; 128],
        [rank, ranks]: [usize; 2],
    ) -> Result<Comm, String> {
        let mut config = Config::default();
        config.blocking = 0;
        let mut handle = NcclComm::NULL;
        let [rank, ranks] = [rank, ranks].map(|number| c_int::try_from(number).unwrap_or(-1));
        // SAFETY: the pointers outlive the call, which copies the settings.
        let code = unsafe {
            (api.comm_init_rank_config)(&mut handle, ranks, UniqueId(id), rank, &mut config)
        };
        done(api, "ncclCommInitRankConfig", code)?;
        Ok(Comm {
            api: api.clone(),
            handle: Mutex::new(Some(handle)),
            ended: AtomicBool::new(false),
        })
    }

    fn call(
        &self,
        symbol: &str,
        f: impl FnOnce(&NcclApi, NcclComm) -> NcclResult,
    ) -> Result<(), String> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = handle.ok_or(ABORTED)?;
        done(&self.api, symbol, f(&self.api, handle))
    }

    /// Returns true if no call is in progress any more; none of a communicator whose end has begun.
    pub(crate) fn is_done(&self) -> Result<Option<bool>, String> {
        let mut state = NcclResult::SUCCESS;
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(comm) = *handle else {
            return Ok(None);
        };
        // SAFETY: the communicator is alive, and `state` outlives the call.
        let code = match unsafe { (self.api.comm_get_async_error)(comm, &mut state) } {
            NcclResult::SUCCESS => state,
            code => code,
        };
        done(&self.api, "ncclCommGetAsyncError", code)?;
        Ok(Some(code == NcclResult::SUCCESS))
    }

    /// Waits until no call is in progress, as long as `go_on` says so.
    pub(crate) fn wait(&self, go_on: impl Fn() -> Result<(), String>) -> Result<(), String> {
        let mut pause = Duration::from_micros(1);
        // Up to its end a communicator may use memory, whoever has begun it.
        while !self.is_done()?.ok_or(ABORTED)? {
            go_on()?;
            thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Begins to send and receive in a stream, whose context is current.
    ///
    /// # Safety
    /// The stream may read and write there.
    pub(crate) unsafe fn exchange(
        &self,
        stream: &Stream,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<(), String> {
        self.call("ncclGroupEnd", |api, comm| {
            // SAFETY: the caller vouches for the messages; the communicator is alive.
            unsafe {
                let begun = (api.group_start)();
                if begun != NcclResult::SUCCESS {
                    return begun;
                }
                let all = sends.iter().map(|message| (true, message));
                let all = all.chain(receives.iter().map(|message| (false, message)));
                let mut queued = NcclResult::SUCCESS;
                for (is_send, message) in all {
                    let (bytes, peer) = (message.bytes, message.peer as c_int);
                    let (to, element) = (message.address as usize, NCCL_UINT8);
                    queued = match is_send {
                        true => {
                            (api.send)(to as *const _, bytes, element, peer, comm, stream.raw())
                        }
                        false => (api.recv)(to as *mut _, bytes, element, peer, comm, stream.raw()),
                    };
                    if done(api, "", queued).is_err() {
                        break;
                    }
                }
                // Ends the group in any case, as it belongs to the thread.
                let ended = (api.group_end)();
                match done(api, "", queued) {
                    Ok(()) => ended,
                    Err(_) => queued,
                }
            }
        })
    }

    /// Begins the end: then all ranks' calls are done.
    pub(crate) fn finalize(&self) -> Result<(), String> {
        // SAFETY: the communicator is alive.
        self.call("ncclCommFinalize", |api, comm| unsafe {
            (api.comm_finalize)(comm)
        })
    }

    /// Destroys a communicator that has been finalized, or ends all of its work at once. `stream` is that of its messages, which is kept
    /// meanwhile.
    pub(crate) fn end(&self, aborts: bool, stream: Stream) {
        // Taken first: others must not wait for an end that hangs.
        let comm = { self.handle.lock() }
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(comm) = comm {
            // SAFETY: the communicator is alive, and its handle was taken.
            unsafe {
                match aborts {
                    true => (self.api.comm_abort)(comm),
                    false => (self.api.comm_destroy)(comm),
                }
            };
            drop(stream);
            self.ended.store(true, Ordering::Release);
        }
    }

    /// Waits for the end that another thread brings about. Returns false if it has not come in time.
    pub(crate) fn wait_for_end(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while !self.ended.load(Ordering::Acquire) {
            if Instant::now() > until {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}
