//! Work in streams: queued at the call, run when something waits for it.

use warptile_cuda_sys::CUresult;

use crate::control::FakeLaunch;
use crate::memory::Identity;
use crate::state::State;

/// One side of a copy.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Device memory, which must still be the same allocation when the copy runs.
    Device(u64, Identity),
    /// Pinned host memory, likewise.
    Pinned(u64, Identity),
    /// Bytes taken from pageable host memory at the call.
    Staged(Vec<u8>),
}

/// Something queued.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Copy {
        to: Place,
        from: Place,
        bytes: usize,
    },
    Fill {
        to: Place,
        pattern: Vec<u8>,
        bytes: usize,
    },
    Free {
        address: u64,
        identity: Identity,
    },
    Record {
        event: usize,
        sequence: u64,
    },
    Wait {
        event: usize,
        sequence: u64,
    },
    Launch {
        launch: Box<FakeLaunch>,
        module: usize,
        touches: Vec<(u64, Identity)>,
    },
}

impl State {
    /// Queues an operation, or adds it to the capture that the stream is in.
    pub(crate) fn push(&mut self, stream: usize, op: Op) -> CUresult {
        let Some(queue) = self.streams.get_mut(&stream) else {
            return self.bad_handle("a stream");
        };
        match queue.capture.and_then(|id| self.captures.get_mut(&id)) {
            Some(capture) => capture.ops.push(op),
            None => queue.ops.push_back(op),
        }
        CUresult::SUCCESS
    }

    /// Runs what is queued on a stream, up to the record of an event if one is given.
    pub(crate) fn run(&mut self, stream: usize, until: Option<(usize, u64)>) {
        while let Some(op) = self
            .streams
            .get_mut(&stream)
            .and_then(|s| s.ops.pop_front())
        {
            let reached = match op {
                Op::Record { event, sequence } => Some((event, sequence)),
                _ => None,
            };
            self.run_one(stream, op);
            if reached.is_some() && reached == until {
                return;
            }
        }
    }

    /// Runs the next operation only: progress for those who poll.
    pub(crate) fn step(&mut self, stream: usize) {
        if let Some(op) = self
            .streams
            .get_mut(&stream)
            .and_then(|s| s.ops.pop_front())
        {
            self.run_one(stream, op);
        }
    }

    pub(crate) fn run_all(&mut self) {
        let streams: Vec<usize> = self.streams.keys().copied().collect();
        for stream in streams {
            self.run(stream, None);
        }
    }

    fn run_one(&mut self, stream: usize, op: Op) {
        self.clock += 1;
        match op {
            Op::Record { event, sequence } => {
                let now = self.clock;
                if let Some(event) = self.events.get_mut(&event) {
                    event.done = event.done.max(sequence);
                    event.time = now;
                }
            }
            Op::Wait { event, sequence } => {
                let pending = self
                    .events
                    .get(&event)
                    .filter(|event| event.done < sequence)
                    .map(|event| event.stream);
                if let Some(other) = pending
                    && other != stream
                {
                    self.run(other, Some((event, sequence)));
                }
            }
            Op::Free { address, identity } => self.free(address, identity),
            _ if self.lost.is_some() => {}
            Op::Copy { to, from, bytes } => self.copy(&to, &from, bytes),
            Op::Fill { to, pattern, bytes } => {
                let staged = Place::Staged(pattern.iter().copied().cycle().take(bytes).collect());
                self.copy(&to, &staged, bytes);
            }
            Op::Launch {
                launch,
                module,
                touches,
            } => self.run_kernel(launch, module, &touches),
        }
    }

    fn run_kernel(&mut self, launch: Box<FakeLaunch>, module: usize, touches: &[(u64, Identity)]) {
        let name = launch.name();
        if !self.modules.contains_key(&module) {
            self.fault(format!("kernel {name} ran after its module was unloaded"));
            return;
        }
        for (address, identity) in touches {
            if !self.is_live(*address, *identity) {
                self.fault(format!(
                    "kernel {name} used device memory that was freed before it ran"
                ));
                return;
            }
        }
        if let Some(code) = self.kernel_fault.take() {
            self.lost = Some(code);
            return;
        }
        if name == "increment" {
            self.increment(&launch);
        }
        self.launches.push(*launch);
    }

    /// What a real device would do, if the caller is lucky: fault and lose the context.
    pub(crate) fn fault(&mut self, what: String) {
        self.violation(what);
        self.lost = Some(CUresult::ERROR_ILLEGAL_ADDRESS);
    }
}
