//! What the captures under way in a context must keep alive.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::allocation::Allocation;
use crate::context::lock;
use crate::stream::Stream;

/// What one captured graph needs for its launches.
#[derive(Default)]
pub(crate) struct Kept {
    /// Memory, modules and whatever callers named.
    pub(crate) alive: Vec<Arc<dyn Any + Send + Sync>>,
    /// Streams that the kept memory belongs to.
    pub(crate) streams: Vec<Stream>,
    /// Kernels the graph launches, for naming suspects.
    pub(crate) kernels: Vec<Arc<str>>,
}

/// The captures under way in a context.
///
/// Work on any stream may belong to any of them, as streams can be forked and joined by events, so
/// every capture keeps what is used while it is under way. Keeping too much is harmless.
#[derive(Default)]
pub(crate) struct Captures {
    count: AtomicUsize,
    under_way: Mutex<Vec<Arc<Mutex<Kept>>>>,
}

impl Captures {
    /// Whether any capture is under way: one load in the common case that none is.
    pub(crate) fn active(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    pub(crate) fn begin(&self) -> Arc<Mutex<Kept>> {
        let kept = Arc::new(Mutex::new(Kept::default()));
        lock(&self.under_way).push(kept.clone());
        self.count.fetch_add(1, Ordering::AcqRel);
        kept
    }

    /// Ends the capture and hands over what it kept.
    pub(crate) fn end(&self, kept: &Arc<Mutex<Kept>>) -> Kept {
        self.count.fetch_sub(1, Ordering::AcqRel);
        lock(&self.under_way).retain(|other| !Arc::ptr_eq(other, kept));
        std::mem::take(&mut *lock(kept))
    }

    pub(crate) fn keep(&self, what: Arc<dyn Any + Send + Sync>) {
        if self.active() {
            for kept in lock(&self.under_way).iter() {
                let mut kept = lock(kept);
                if let Some(memory) = what.downcast_ref::<Allocation>() {
                    kept.streams.push(memory.stream().clone());
                }
                kept.alive.push(what.clone());
            }
        }
    }

    pub(crate) fn note(&self, kernel: &Arc<str>) {
        for kept in lock(&self.under_way).iter() {
            let kernels = &mut lock(kept).kernels;
            if !kernels.contains(kernel) {
                kernels.push(kernel.clone());
            }
        }
    }
}
