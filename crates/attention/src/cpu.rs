//! The CPU path: FlashAttention's algorithm on cores and caches.
//!
//! A task is a block of query rows of one head. It walks over the keys its rows can see in tiles: scores by a matrix
//! product, online softmax in place, and a second product into the accumulator. Everything is computed in `f32`; other
//! element types are converted a tile at a time. Tasks run on rayon's current thread pool.

mod block;
mod lanes;
mod matmul;
mod simd;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::ops::Range;

use rayon::prelude::*;

use crate::element::Element;
use crate::error::{Error, Result};
use crate::layout::{View, ViewMut};
use crate::problem::{Problem, Sequence, check_layout};

use block::{BLOCK_M, Block, Scratch};

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
    let out_layout = out.layout;
    let out = SharedMut::new(out.data);

    let compute = |Task {
                       sequence,
                       head,
                       rows,
                   }: Task,
                   scratch: &mut Scratch| {
        let block = Block {
            problem,
            q,
            k,
            v,
            sequence,
            head,
            slope: problem.slope(alibi, sequence.batch, head),
            rows: rows.clone(),
        };
        let results = block.attend(scratch);
        for (index, row) in rows.clone().enumerate() {
            let start = out_layout.offset(sequence.entry, sequence.q_start + row, head);
            // SAFETY: the buffer holds the layout, no two rows of an output layout overlap (the problem has checked both),
            // and each row belongs to exactly one task.
            let to = unsafe { out.slice(start, problem.head_dim()) };
            T::narrow(results.out(index), to);
        }
        if let Some(lse) = &lse {
            let start = problem.lse_offset(&sequence, head) + rows.start;
            // SAFETY: within `lse_len`, which the buffer has; each element belongs to exactly one task.
            unsafe { lse.slice(start, rows.len()) }.copy_from_slice(results.lse());
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

/// A block of query rows of one head.
struct Task {
    sequence: Sequence,
    head: usize,
    rows: Range<usize>,
}

/// All tasks, the largest first, so that none of them is left to run alone at the end.
fn tasks(problem: &Problem) -> Vec<Task> {
    let mut tasks = Vec::new();
    for sequence in problem.sequences() {
        for head in 0..problem.heads() {
            for row in (0..sequence.q_len).step_by(BLOCK_M) {
                tasks.push(Task {
                    sequence,
                    head,
                    rows: row..sequence.q_len.min(row + BLOCK_M),
                });
            }
        }
    }
    tasks.sort_by_key(|Task { sequence, rows, .. }| {
        Reverse(rows.len() * block::key_range(problem, sequence, rows).len())
    });
    tasks
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
