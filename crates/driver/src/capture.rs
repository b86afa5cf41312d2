//! Captures under way, whoever began them, and what their graphs need.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use crate::allocation::Allocation;
use crate::context::{Context, lock};
use crate::driver::Driver;
use crate::error::Result;
use crate::event::Event;
use crate::graph;
use crate::module::Loaded;
use crate::stream::Stream;

/// Something kept alive for somebody.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

/// Which capture a stream is in: see [`Stream::capture`]. The driver gives every capture of a
/// process another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CaptureId(u64);

impl CaptureId {
    pub(crate) fn new(id: u64) -> CaptureId {
        CaptureId(id)
    }

    /// The driver's number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The resources that a captured graph needs for its launches.
#[derive(Default)]
pub(crate) struct Kept {
    /// Memory, modules and the values that callers gave, by address.
    alive: HashMap<usize, Owner>,
    /// The values attached to the capture on a stream, by type and handle.
    attached: HashMap<(TypeId, usize), Owner>,
    /// The streams that kept buffers belong to.
    pub(crate) homes: Vec<Stream>,
    /// Streams that the capture forked onto, which must outlive it.
    pub(crate) forked: Vec<Stream>,
    /// Graphs that are parts of the graph, however deep, by address, each with an event that follows
    /// its last launch in the capture.
    pub(crate) graphs: HashMap<usize, (Arc<graph::Inner>, Arc<Event>)>,
    /// Kernels the graph launches, for naming suspects.
    pub(crate) kernels: Vec<Arc<str>>,
    /// True if a kept value frees its resources in a way that this crate does not know. Buffers free theirs in the
    /// order of their streams, and modules wait for their context's streams.
    pub(crate) opaque: bool,
    /// The address of the [`Captures`] of the context in which our capture began.
    began: usize,
}

impl Kept {
    pub(crate) fn keep(&mut self, what: Owner) {
        match what.downcast_ref::<Allocation>() {
            Some(memory) => self.come_home(memory.stream()),
            None => self.opaque |= !what.is::<Loaded>(),
        }
        self.alive.insert(Arc::as_ptr(&what).addr(), what);
    }

    /// Has launches of the graph ordered with a stream.
    pub(crate) fn come_home(&mut self, stream: &Stream) {
        if !self.homes.iter().any(|home| home.is_same(stream)) {
            self.homes.push(stream.clone());
        }
    }

    pub(crate) fn name_kernel(&mut self, kernel: &Arc<str>) {
        if !self.kernels.contains(kernel) {
            self.kernels.push(kernel.clone());
        }
    }
}

/// Shared until the capture ends; `None` from then on.
type Shared = Arc<Mutex<Option<Kept>>>;

/// Captures of ours under way, by their driver: their graphs take over what is kept. They are not of a context, as a capture may fork
/// onto streams of several.
static OURS: LazyLock<Mutex<HashMap<(usize, CaptureId), Shared>>> = LazyLock::new(Mutex::default);

/// The resources that the captures of a context need.
pub(crate) struct Captures {
    /// The driver's identity.
    driver: usize,
    /// How many of our own that began here are under way.
    count: AtomicUsize,
    /// Begun by others, whose graphs end unseen: what is kept stays for good.
    others: Mutex<HashMap<CaptureId, Kept>>,
}

impl Captures {
    pub(crate) fn new(driver: &Driver) -> Captures {
        Captures {
            driver: driver.identity(),
            count: AtomicUsize::new(0),
            others: Mutex::default(),
        }
    }

    /// Returns true if a capture of ours is under way: one load in the common case that none is.
    pub(crate) fn active(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Begins a capture by `begin`, which tells its id. Nobody who learns the id from the driver
    /// finds it unknown here: the table is locked until it is in there.
    pub(crate) fn begin(&self, begin: impl FnOnce() -> Result<CaptureId>) -> Result<CaptureId> {
        let mut ours = lock(&OURS);
        self.count.fetch_add(1, Ordering::AcqRel);
        let begun = begin();
        match &begun {
            Ok(id) => {
                let kept = Kept {
                    began: self.address(),
                    ..Kept::default()
                };
                ours.insert((self.driver, *id), Arc::new(Mutex::new(Some(kept))));
            }
            Err(_) => {
                self.count.fetch_sub(1, Ordering::AcqRel);
            }
        }
        begun
    }

    /// Ends a capture of ours and hands over what it kept.
    pub(crate) fn end(&self, id: CaptureId) -> Kept {
        let shared = lock(&OURS).remove(&(self.driver, id));
        self.count.fetch_sub(1, Ordering::AcqRel);
        let kept = shared.and_then(|shared| lock(&shared).take());
        kept.unwrap_or_default()
    }

    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    fn ours(&self, id: CaptureId) -> Option<Shared> {
        lock(&OURS).get(&(self.driver, id)).cloned()
    }

    /// Gives access to what a capture keeps.
    pub(crate) fn with<R>(&self, id: CaptureId, work: impl FnOnce(&mut Kept) -> R) -> R {
        if let Some(shared) = self.ours(id)
            && let Some(kept) = &mut *lock(&shared)
        {
            // A module waits for streams of its own context, and the graph is launched on those of another.
            kept.opaque |= kept.began != self.address();
            return work(kept);
        }
        work(lock(&self.others).entry(id).or_default())
    }

    /// The contexts that a capture of ours has forked onto, as far as this crate has to do with it.
    pub(crate) fn contexts(&self, id: CaptureId) -> Vec<Context> {
        let shared = self.ours(id);
        let kept = shared.as_ref().map(|shared| lock(shared));
        let forked = kept.iter().filter_map(|kept| kept.as_ref());
        let forked = forked.flat_map(|kept| &kept.forked);
        forked.map(|stream| stream.context().clone()).collect()
    }

    /// Keeps a stream that a capture of ours forked onto until the capture ends.
    pub(crate) fn fork(&self, id: CaptureId, stream: &Stream) {
        if let Some(shared) = self.ours(id)
            && let Some(kept) = &mut *lock(&shared)
        {
            kept.forked.push(stream.clone());
        }
    }

    /// The capture's value of a type on a stream, made if there is none.
    pub(crate) fn attached<T: Any + Send + Sync, E>(
        &self,
        id: CaptureId,
        handle: usize,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let key = (TypeId::of::<T>(), handle);
        let known = self.with(id, |kept| kept.attached.get(&key).cloned());
        if let Some(found) = known.and_then(|value| value.downcast().ok()) {
            return Ok(found);
        }
        // Not under the lock, as this may do anything.
        let made = Arc::new(make()?);
        let value = self.with(id, |kept| {
            kept.opaque = true;
            let value = kept.attached.entry(key).or_insert_with(|| made.clone());
            value.clone()
        });
        Ok(value.downcast().unwrap_or(made))
    }
}
