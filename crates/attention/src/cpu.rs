//! The CPU path: FlashAttention's algorithm on cores and caches.
//!
//! A task is a block of query rows of one head, or of a few that share keys and values. It walks over the keys its rows can
//! see in tiles: scores by a matrix product, online softmax in place, and a second product into the accumulator. Everything
//! is computed in `f32`; other element types are converted a tile at a time.

mod block;
mod lanes;
mod matmul;
mod simd;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::sync::OnceLock;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use warptile_kernels::tiling::Tiling;

use crate::call::{Call, Operands, check_layout};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::layout::{View, ViewMut};

use block::{Block, Blocks, Scratch, Task};

/// Computes a call on the CPU.
///
/// `lse`, if given, has the shape [`Call::lse_shape`], contiguous. Rows of a packed tensor that belong to no sequence
/// are left as they are, and so is whatever lies between the rows of `out`. A key whose bias is minus infinity is hidden, as if
/// by the key mask.
///
/// The work is done by the threads of the rayon pool that the caller runs in, if it does, else by as many threads as there are
/// cores, or by the calling thread where the system starts no more. The result does not depend on the number of threads, and that of a query
/// neither on the other queries and sequences, nor on where its keys lie: [`Splits`](crate::Splits) make no difference.
///
/// # Errors
/// A view whose layout is not the call's, a buffer shorter than its layout, lengths that are on a device, or operands that
/// don't fit the call.
pub fn forward_cpu<T: Element>(
    call: &Call,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    operands: &Operands<'_, T>,
    out: ViewMut<'_, T>,
    lse: Option<&mut [f32]>,
) -> Result<()> {
    T::forward_cpu(call, [q, k, v], operands, out, lse)
}

/// [`forward_cpu`], generic: see [`Element`]'s supertrait.
pub(crate) fn compute<T: Element>(
    call: &Call,
    [q, k, v]: [View<'_, T>; 3],
    operands: &Operands<'_, T>,
    out: ViewMut<'_, T>,
    lse: Option<&mut [f32]>,
) -> Result<()> {
    call.check_inputs(&q, &k, &v, operands)?;
    check_layout("out", &out.layout, call.out())?;
    out.layout.check_buffer("out", out.data.len())?;
    let lse = match lse {
        Some(lse) if lse.len() < call.lse_len() => {
            return Err(Error::BufferTooSmall {
                argument: "lse",
                needed: call.lse_len(),
                available: lse.len(),
            });
        }
        Some(lse) => Some(SharedMut::new(lse)),
        None => None,
    };
    if call.lse_len() == 0 {
        // No row: but there may be more sequences without one than anybody can count.
        return Ok(());
    }
    let out_layout = out.layout;
    let out = SharedMut::new(out.data);

    let compute = |task: Task, scratch: &mut Scratch| {
        let block = Block {
            call,
            q,
            k,
            v,
            operands,
            task: task.clone(),
        };
        let results = block.attend(scratch);
        let sequence = task.sequence;
        for index in 0..task.rows() {
            let (head, position) = task.row(index);
            let start = out_layout.offset(sequence.q_entry, sequence.q_start + position, head);
            // SAFETY: the buffer holds the layout, no two rows of an output layout overlap (the call has checked both),
            // and each row belongs to exactly one task.
            let to = unsafe { out.slice(start, call.head_dim()) };
            for (to, &value) in to.iter_mut().zip(results.out(index)) {
                *to = T::from_f32(value);
            }
            if let Some(lse) = &lse {
                let start = call.lse_offset(&sequence, head) + position;
                // SAFETY: within `lse_len`, which the buffer has; each element belongs to exactly one task.
                let to = unsafe { lse.slice(start, 1) };
                to[0] = results.lse(index);
            }
        }
    };
    let compute = |task| SCRATCH.with_borrow_mut(|scratch| compute(task, scratch));
    let parallel = |threads| {
        let tasks = tasks(call, threads).into_par_iter();
        tasks.with_max_len(1).for_each(compute);
    };
    match rayon::current_thread_index() {
        Some(_) => parallel(rayon::current_num_threads()),
        None => match threads() {
            Some(pool) => pool.install(|| parallel(pool.current_num_threads())),
            None => tasks(call, 1).into_iter().for_each(compute),
        },
    }
    Ok(())
}

/// Calls `work` for each number below `count`, on the threads that [`forward_cpu`] would take.
pub(crate) fn in_parallel(count: usize, work: impl Fn(usize) + Sync + Send) {
    let parallel = || (0..count).into_par_iter().for_each(&work);
    match rayon::current_thread_index() {
        Some(_) => parallel(),
        None => match threads() {
            Some(pool) => pool.install(parallel),
            None => (0..count).for_each(work),
        },
    }
}

/// Threads of our own; `None` if the system starts none. Not rayon's global pool, which panics where a thread cannot start.
fn threads() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<ThreadPool> = OnceLock::new();
    if let Some(pool) = POOL.get() {
        return Some(pool);
    }
    let name = |index| format!("warptile-{index}");
    // A failure is not remembered: there may be threads the next time.
    let pool = ThreadPoolBuilder::new().thread_name(name).build().ok()?;
    Some(POOL.get_or_init(|| pool))
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// All tasks, the largest first, so that none of them is left to run alone at the end.
fn tasks(call: &Call, threads: usize) -> Vec<Task> {
    let group = call.group_size();
    let mut tasks = Vec::new();
    for sequence in call.sequences() {
        let heads = heads_per_task(call, sequence.q_len, threads);
        for kv_head in 0..call.kv_heads() {
            for first in (0..group).step_by(heads) {
                for position in (0..sequence.q_len).step_by(Blocks::BLOCK_M) {
                    tasks.push(Task {
                        sequence,
                        heads: kv_head * group + first..kv_head * group + group.min(first + heads),
                        positions: position..sequence.q_len.min(position + Blocks::BLOCK_M),
                    });
                }
            }
        }
    }
    tasks.sort_by_key(|task| Reverse(task.rows() * task.keys(call.mask()).len()));
    tasks
}

/// How many of the heads that share keys and values a task takes: as many as fit a block, so that keys and values are read
/// once for all of them, but not so many that a core has nothing to do. No result depends on it.
fn heads_per_task(call: &Call, query_len: usize, threads: usize) -> usize {
    let group = call.group_size();
    let mut heads = group.min(Blocks::BLOCK_M / query_len.max(1)).max(1);
    while heads > 1 && call.batch() * call.kv_heads() * group.div_ceil(heads) < threads {
        heads = heads.div_ceil(2);
    }
    heads
}

/// A slice whose elements several threads write, each its own.
pub(crate) struct SharedMut<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: it hands out `&mut T` to other threads, as `&mut [T]` split into parts would; `slice` demands disjoint parts.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    /// The borrow ends with the function this is local to, so the pointer outlives every use.
    pub(crate) fn new(slice: &mut [T]) -> Self {
        SharedMut {
            start: slice.as_mut_ptr(),
            len: slice.len(),
        }
    }

    /// # Safety
    /// The slice this was made of is still borrowed, and no other slice handed out shares an element with this one while
    /// both are in use.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's contract")]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: in bounds by the assertion; unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
