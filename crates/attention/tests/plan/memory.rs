//! Planning takes as much memory for many sequences as for few.

use std::alloc::{GlobalAlloc, Layout as Allocation, System};
use std::cell::Cell;

use warptile::plan::{Choice, DeviceProfile, Plan, Rates};
use warptile::spec::{Call, MAX_LEN};
use warptile::{ElementType, Layout};

/// Allocator that counts the allocations of each thread, and their bytes.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

// SAFETY: every call goes to the system's allocator; counting allocates nothing and does not unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Allocation) -> *mut u8 {
        let (count, bytes) = ALLOCATED.get();
        ALLOCATED.set((count + 1, bytes.saturating_add(layout.size())));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Allocation) {
        // SAFETY: the caller's promise; `start` is from `System`.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations and bytes of describing and planning packed sequences whose offsets are on the device, and of finding their choice.
fn allocated(sequences: usize, rows: usize) -> (usize, usize) {
    let device = DeviceProfile::h200();
    let mut rates = Rates::embedded(&device).clone();
    assert!(rates.chosen_problems() > 0, "no plan looks for a choice");
    let tensor = Layout::packed(rows, 1, 64);
    let before = ALLOCATED.get();
    let call = Call::builder(&tensor, &tensor, &tensor, ElementType::Bf16)
        .device_query_offsets(sequences, 512)
        .device_key_offsets(sequences, 512);
    let problem = call.build().unwrap().problem();
    Plan::gpu(problem, &device, &Choice::Best).unwrap();
    rates.choose(&problem, None);
    let after = ALLOCATED.get();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn planning_takes_the_same_memory_for_any_number_of_sequences() {
    // The first time also makes what is kept for later.
    allocated(16, 4096);
    let few = allocated(16, 4096);
    for (sequences, rows) in [(10_000_000, 1 << 29), (1 << 29, 1000), (MAX_LEN, MAX_LEN)] {
        let many = allocated(sequences, rows);
        assert!(many.0 <= few.0 + 16, "{many:?} {few:?}");
        // A list of what cannot run may have doubled.
        assert!(many.1 <= 2 * few.1, "{many:?} {few:?}");
        assert!(many.1 < 1 << 20, "{many:?}");
    }
}
