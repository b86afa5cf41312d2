//! Work in streams: queued at the call, run when something waits for it.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use warptile_cuda_sys::CUresult;

use crate::control::{FakeLaunch, Stalled};
use crate::copy::repeated;
use crate::memory::Identity;
use crate::state::State;
use crate::stream::Key;

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
        /// Where it was recorded.
        on: Key,
    },
    Launch {
        launch: Arc<FakeLaunch>,
        module: usize,
        touches: Vec<(u64, Identity)>,
    },
    /// Values kept by a graph that was destroyed after its launches were queued.
    LetGo(Vec<usize>),
}

/// Device memory that an operation uses.
struct Used {
    identity: Identity,
    addresses: Range<u64>,
    /// True if it surely writes there.
    writes: bool,
}

impl Used {
    fn clashes(&self, other: &Used) -> bool {
        self.identity == other.identity
            && (self.writes || other.writes)
            && self.addresses.start < other.addresses.end
            && other.addresses.start < self.addresses.end
    }
}

impl Op {
    fn uses(&self) -> Vec<Used> {
        let part = |place: &Place, bytes: usize, writes| match place {
            Place::Device(address, identity) => Some(Used {
                identity: *identity,
                addresses: *address..address + bytes as u64,
                writes,
            }),
            _ => None,
        };
        match self {
            Op::Copy { to, from, bytes } => part(to, *bytes, true)
                .into_iter()
                .chain(part(from, *bytes, false))
                .collect(),
            Op::Fill { to, bytes, .. } => part(to, *bytes, true).into_iter().collect(),
            // How far a kernel reaches from an address is not known.
            Op::Launch { touches, .. } => { touches.iter() }
                .map(|(_, identity)| Used {
                    identity: *identity,
                    addresses: 0..u64::MAX,
                    writes: false,
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Returns true if both are launches of one kernel in one graph, which have their memory in common.
    pub(crate) fn is_again(&self, other: &Op) -> bool {
        match (self, other) {
            (Op::Launch { launch, .. }, Op::Launch { launch: other, .. }) => {
                Arc::ptr_eq(launch, other)
            }
            _ => false,
        }
    }

    fn name(&self) -> String {
        match self {
            Op::Copy { bytes, .. } => format!("a copy of {bytes} bytes"),
            Op::Fill { bytes, .. } => format!("a fill of {bytes} bytes"),
            Op::Launch { launch, .. } => format!("kernel {}", launch.name()),
            Op::Free { .. } => "a free".to_owned(),
            Op::Record { .. } | Op::Wait { .. } | Op::LetGo(_) => "an event".to_owned(),
        }
    }
}

/// Says that nothing orders two operations.
pub(crate) fn not_ordered(op: &Op, other: &Op) -> String {
    format!(
        "{} was not ordered after {} on another stream, which uses the same memory",
        op.name(),
        other.name()
    )
}

impl State {
    /// Queues an operation, or adds it to the capture that the stream is in.
    pub(crate) fn push(&mut self, stream: Key, op: Op) -> CUresult {
        let Some(queue) = self.streams.get_mut(&stream) else {
            return self.bad_handle("a stream");
        };
        if let Some(capture) = queue.capture {
            return self.capture_op(capture, stream, op);
        }
        self.queued += 1;
        queue.ops.push_back((self.queued, op));
        CUresult::SUCCESS
    }

    /// Runs what is queued on a stream, up to the record of an event if one is given.
    pub(crate) fn run(&mut self, stream: Key, until: Option<(usize, u64)>) {
        while let Some((place, op)) = self
            .streams
            .get_mut(&stream)
            .and_then(|s| s.ops.pop_front())
        {
            let reached = match op {
                Op::Record { event, sequence } => Some((event, sequence)),
                _ => None,
            };
            self.run_one(stream, place, op);
            if reached.is_some() && reached == until {
                return;
            }
        }
    }

    /// Runs the next operation only, unless it waits for what is stalled: progress for those who poll.
    pub(crate) fn step(&mut self, stream: Key) {
        let stalled = self.config.stalled;
        let is_stalled = |op: &Op| match op {
            Op::Launch { .. } => stalled == Stalled::Kernels,
            Op::Copy {
                to: Place::Device(..),
                from: Place::Device(..),
                ..
            } => stalled == Stalled::Copies,
            _ => false,
        };
        let has_next = { self.streams.get(&stream) }.is_some_and(|queue| !queue.ops.is_empty());
        if has_next && stalled != Stalled::Nothing && self.is_behind((stream, 1), is_stalled) {
            return;
        }
        if let Some((place, op)) = self
            .streams
            .get_mut(&stream)
            .and_then(|s| s.ops.pop_front())
        {
            self.run_one(stream, place, op);
        }
    }

    pub(crate) fn run_all(&mut self) {
        let streams: Vec<Key> = self.streams.keys().copied().collect();
        for stream in streams {
            self.run(stream, None);
        }
    }

    fn run_one(&mut self, stream: Key, place: u64, op: Op) {
        self.clock += self.duration(&op);
        if self.lost.is_none()
            && let Some(what) = self.race(stream, place, &op)
        {
            self.violation(what);
        }
        match op {
            Op::Record { event, sequence } => {
                let now = self.clock;
                if let Some(event) = self.events.get_mut(&event) {
                    event.done = event.done.max(sequence);
                    event.time = now;
                }
            }
            Op::Wait {
                event,
                sequence,
                on,
            } => {
                let happened = |event: &crate::event::Event| event.done >= sequence;
                if on != stream && !self.events.get(&event).is_some_and(happened) {
                    self.run(on, Some((event, sequence)));
                }
            }
            Op::Free { address, identity } => self.free(address, identity),
            Op::LetGo(objects) => self.let_go(objects),
            _ if self.lost.is_some() => {}
            Op::Copy { to, from, bytes } => self.copy(&to, &from, bytes),
            Op::Fill { to, pattern, bytes } => {
                let staged = Place::Staged(repeated(&pattern, bytes));
                self.copy(&to, &staged, bytes);
            }
            Op::Launch {
                launch,
                module,
                touches,
            } => {
                match self.kernel_time(&launch.name()) {
                    Some(f64::INFINITY) => loop {
                        std::thread::park();
                    },
                    Some(time) if time.is_nan() => {
                        self.kernel_fault = Some(CUresult::ERROR_ILLEGAL_ADDRESS);
                    }
                    _ => {}
                }
                self.run_kernel(launch, module, &touches);
            }
        }
    }

    /// How many queued copies wait for a queued kernel, on their own stream or through events.
    pub(crate) fn copies_behind_kernels(&self) -> usize {
        let copies = self.streams.iter().flat_map(|(stream, queue)| {
            let is_copy = |op: &Op| matches!(op, Op::Copy { .. });
            let places = (queue.ops.iter().enumerate()).filter(move |(_, (_, op))| is_copy(op));
            places.map(|(place, _)| (*stream, place))
        });
        let is_kernel = |op: &Op| matches!(op, Op::Launch { .. });
        copies.filter(|at| self.is_behind(*at, is_kernel)).count()
    }

    /// Returns true if such an operation is among those that the one at this place of a stream's queue waits for.
    fn is_behind(&self, at: (Key, usize), is_such: impl Fn(&Op) -> bool) -> bool {
        let mut seen = HashSet::new();
        let mut left = vec![at];
        while let Some((stream, place)) = left.pop() {
            let Some(queue) = self.streams.get(&stream) else {
                continue;
            };
            // Places before this one have been looked at if a later one has.
            for before in (0..place).rev() {
                if !seen.insert((stream, before)) {
                    break;
                }
                let op = &queue.ops[before].1;
                if is_such(op) {
                    return true;
                }
                if let Op::Wait {
                    event,
                    sequence,
                    on,
                } = *op
                {
                    let is_record = |op: &Op| matches!(op, Op::Record { event: of, sequence: number } if (*of, *number) == (event, sequence));
                    let ops = self.streams.get(&on).map(|queue| &queue.ops);
                    let record = ops.and_then(|ops| ops.iter().position(|(_, op)| is_record(op)));
                    left.extend(record.map(|record| (on, record)));
                }
            }
        }
        false
    }

    /// Microseconds that an operation takes.
    fn duration(&self, op: &Op) -> f64 {
        const USUAL: f64 = 1000.0;
        match op {
            Op::Launch { launch, .. } => {
                let given = self.kernel_time(&launch.name());
                given.filter(|time| !time.is_nan()).unwrap_or(USUAL)
            }
            _ => USUAL,
        }
    }

    /// Microseconds that the environment gives a kernel.
    fn kernel_time(&self, name: &str) -> Option<f64> {
        let mut times = self.kernel_times.iter();
        let given = times.find(|(start, _)| name.starts_with(start.as_str()));
        given.map(|(_, microseconds)| *microseconds)
    }

    /// An operation that was queued before this one, on another stream, uses the same memory and
    /// has not run: nothing orders the two. What kernels do with their memory is not known, so one
    /// of the two has to be a copy or a fill that writes it, or both the same launch in one graph.
    /// Freeing is not looked at here: it shows when the memory is used after it.
    fn race(&self, stream: Key, place: u64, op: &Op) -> Option<String> {
        let mine = op.uses();
        if mine.is_empty() {
            return None;
        }
        let others = self.streams.iter().filter(|(key, _)| **key != stream);
        let earlier = others.flat_map(|(_, queue)| queue.ops.iter().filter(|(at, _)| *at < place));
        for (_, other) in earlier {
            let theirs = other.uses();
            let clash = { theirs.iter() }.any(|theirs| mine.iter().any(|own| own.clashes(theirs)));
            if clash || op.is_again(other) {
                return Some(not_ordered(op, other));
            }
        }
        None
    }

    fn run_kernel(&mut self, launch: Arc<FakeLaunch>, module: usize, touches: &[(u64, Identity)]) {
        let name = launch.name();
        let Some(device) = self.modules.get(&module).map(|module| module.device) else {
            self.fault(format!("kernel {name} ran after its module was unloaded"));
            return;
        };
        for (address, identity) in touches {
            if !self.is_live(*address, *identity) {
                self.fault(format!(
                    "kernel {name} used device memory that was freed before it ran"
                ));
                return;
            }
            if !self.is_accessible(*address, device) {
                self.fault(format!("kernel {name} used memory of another device"));
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
        self.launches.push(launch);
    }

    /// Faults and loses the context, as a real device does at best.
    pub(crate) fn fault(&mut self, what: String) {
        self.violation(what);
        self.lost = Some(CUresult::ERROR_ILLEGAL_ADDRESS);
    }
}
