//! The CPU path: FlashAttention's algorithm on cores and caches.
//!
//! A task is a block of query rows of one head, or of a few that share keys and values. It walks over the keys its rows can
//! see in tiles: scores by a matrix product, online softmax in place, and a second product into the accumulator. Everything
//! is computed in `f32`; other element types are converted a tile at a time. Tasks run on rayon's current thread pool.

mod block;
mod lanes;
mod matmul;
mod simd;

use std::cell::RefCell;
use std::cmp::Reverse;

use rayon::prelude::*;

use crate::element::Element;
use crate::error::{Error, Result};
use crate::layout::{View, ViewMut};
use crate::problem::{Problem, check_layout};

use block::{BLOCK_M, Block, Scratch, Task};

/// Computes a problem on the CPU.
///
/// `lse`, if given, has the shape [`Problem::lse_shape`], contiguous. Rows of a packed tensor that belong to no sequence
/// are left as they are, and so is whatever lies between the rows of `out`. The result does not depend on the number of
/// threads.
///
/// # Errors
/// A view whose layout is not the problem's, a buffer shorter than its layout, or slopes that don't fit the problem.
pub fn forward_cpu<T: Element>(
    problem: &Problem,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    alibi: Option<&[f32]>,
    out: ViewMut<'_, T>,
    lse: Option<&mut [f32]>,
) -> Result<()> {
    problem.check_inputs(&q, &k, &v, alibi)?;
    check_layout("out", &out.layout, problem.out())?;
    out.layout.check_buffer("out", out.data.len())?;
    let lse = match lse {
        Some(lse) if lse.len() < problem.lse_len() => {
            return Err(Error::BufferTooSmall {
                argument: "lse",
                needed: problem.lse_len(),
                available: lse.len(),
            });
        }
        Some(lse) => Some(SharedMut::new(lse)),
        None => None,
    };
    if problem.lse_len() == 0 {
        // No row: but there may be more sequences without one than anybody can count.
        return Ok(());
    }
    let out_layout = out.layout;
    let out = SharedMut::new(out.data);

    let compute = |task: Task, scratch: &mut Scratch| {
        let block = Block {
            problem,
            q,
            k,
            v,
            slopes: alibi,
            task: task.clone(),
        };
        let results = block.attend(scratch);
        let sequence = task.sequence;
        for index in 0..task.rows() {
            let (head, position) = task.row(index);
            let start = out_layout.offset(sequence.entry, sequence.q_start + position, head);
            // SAFETY: the buffer holds the layout, no two rows of an output layout overlap (the problem has checked both),
            // and each row belongs to exactly one task.
            let to = unsafe { out.slice(start, problem.head_dim()) };
            for (to, &value) in to.iter_mut().zip(results.out(index)) {
                *to = T::from_f32(value);
            }
            if let Some(lse) = &lse {
                let start = problem.lse_offset(&sequence, head) + position;
                // SAFETY: within `lse_len`, which the buffer has; each element belongs to exactly one task.
                let to = unsafe { lse.slice(start, 1) };
                to[0] = results.lse(index);
            }
        }
    };
    tasks(problem)
        .into_par_iter()
        .with_max_len(1)
        .for_each(|task| SCRATCH.with_borrow_mut(|scratch| compute(task, scratch)));
    Ok(())
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// All tasks, the largest first, so that none of them is left to run alone at the end.
fn tasks(problem: &Problem) -> Vec<Task> {
    let group = problem.group_size();
    let mut tasks = Vec::new();
    for sequence in problem.sequences() {
        let heads = heads_per_task(problem, sequence.q_len);
        for kv_head in 0..problem.kv_heads() {
            for first in (0..group).step_by(heads) {
                for position in (0..sequence.q_len).step_by(BLOCK_M) {
                    tasks.push(Task {
                        sequence,
                        heads: kv_head * group + first..kv_head * group + group.min(first + heads),
                        positions: position..sequence.q_len.min(position + BLOCK_M),
                    });
                }
            }
        }
    }
    tasks.sort_by_key(|task| Reverse(task.rows() * task.keys(problem.mask()).len()));
    tasks
}

/// How many of the heads that share keys and values a task takes: as many as fit a block, so that keys and values are read
/// once for all of them, but not so many that a core has nothing to do. No result depends on it.
fn heads_per_task(problem: &Problem, query_len: usize) -> usize {
    let group = problem.group_size();
    let mut heads = group.min(BLOCK_M / query_len.max(1)).max(1);
    while heads > 1
        && problem.batch() * problem.kv_heads() * group.div_ceil(heads)
            < rayon::current_num_threads()
    {
        heads = heads.div_ceil(2);
    }
    heads
}

/// A slice whose elements several threads write, each its own.
struct SharedMut<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: it hands out `&mut T` to other threads, as `&mut [T]` split into parts would; `slice` demands disjoint parts.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    /// The borrow ends with the function this is local to, so the pointer outlives every use.
    fn new(slice: &mut [T]) -> Self {
        SharedMut {
            start: slice.as_mut_ptr(),
            len: slice.len(),
        }
    }

    /// # Safety
    /// The slice this was made of is still borrowed, and no other slice handed out shares an element with this one while
    /// both are in use.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's contract")]
    unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: in bounds by the assertion; unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
