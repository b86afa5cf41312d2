//! GPU tests that bear no other next to them, one at a time: some take all memory, and a capture in global mode forbids every other
//! thread of the process to allocate.

mod memory;
mod overlap;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use warptile::ElementType;
use warptile::gpu::Gpu;
use warptile::kernels::Family;
use warptile_driver::Driver;
use warptile_kernels::{Role, images_for};

/// Held by the one test that runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Device 0, opened once.
fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| Gpu::new(&Driver::load().unwrap(), 0).unwrap())
}

/// The families that compute outputs of this type.
fn families(element: ElementType) -> Vec<Family> {
    let mut families: Vec<_> = images_for(Role::Forward)
        .filter(|image| image.element == element)
        .map(|image| image.family)
        .collect();
    families.sort_unstable();
    families.dedup();
    families
}
