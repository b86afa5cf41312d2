//! The CPU path: FlashAttention's algorithm on cores and caches.
//!
//! A task is a block of query rows of one head, or of a few that share keys and values. It walks over the keys its rows can
//! see in tiles: scores by a matrix product, online softmax in place, and a second product into the accumulator. Everything
//! is computed in `f32`; other element types are converted a tile at a time, or as they are read if the rows are a handful. Only where
//! the processor multiplies `bf16` numbers two at a time (AMX, AVX512_BF16) are the weights of that type rounded to it, as on a GPU, and
//! products left to that.

#[cfg(warptile_amx)]
mod amx;
mod append;
mod backward;
mod block;
mod engine;
mod few;
mod few_values;
mod finish;
mod isa;
mod lanes;
mod memory;
mod merge;
mod operands;
mod pairs;
mod prepass;
mod products;
pub mod raw;
mod shown;
mod state;
mod stop;
mod task;
mod terms;
mod threads;
mod turn;
mod weights;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::sync::OnceLock;

use warptile_kernels::Operand;
use warptile_kernels::tiling::Tiling;

use crate::error::Result;
use crate::spec::{Call, Element, HostInputs, HostOutputs, Sequence, with_element};

use block::{Block, Results, Scratch};
use isa::Isa;
use operands::Operands;
use state::RowState;
use task::{Blocks, PART, Task};
use threads::Threads;

pub use append::append_cpu;
pub use backward::backward_cpu;
pub use merge::{merge_cpu, sum_cpu};
#[doc(hidden)]
pub use prepass::prepass_cpu;
pub use stop::Stop;

/// Computes a call on the CPU.
///
/// The lse, which need not be given, has the shape [`Call::lse_shape`], contiguous. Rows of a packed tensor that belong to no sequence
/// are left as they are, and so are gaps between the rows of `out`. A key whose bias is minus infinity is hidden, as if
/// by the key mask.
///
/// The work is done by the threads of the rayon pool that the caller runs in, if it does, else by the calling thread and others: in all as
/// many as there are cores, or as `RAYON_NUM_THREADS` says, or the calling thread alone where the system starts no more. A forked process
/// has others of its own. Where all numbers are finite, the result does not depend on the number of threads, and that of a query
/// neither on the other queries and sequences, nor on where its keys lie: [`Splits`](crate::Splits) make no difference. It does
/// depend on the processor's vector instructions, and on whether it has AMX or AVX512_BF16: in its last bits, for `bf16` by about the
/// rounding of a weight to `bf16`; and these two take numbers of `bf16` below the normal ones (2^-126) for 0.
///
/// A NaN or an infinity in `v` reaches queries that do not see its key: rows are computed together, a key that a
/// mask, a bias or the key mask hides from one of them has the weight 0 there, and 0 times either is NaN. It stays in
/// its component. Which rows it reaches follows from which are computed together, and so from tiles, instructions and
/// threads. It never reaches a row of another sequence or key/value head. What lies behind a length, in rows of no
/// sequence or in pages that no sequence has is not read: lengths and pages keep garbage in `v` away, masks do not.
/// In `q` it stays in its row, and in `k` in the rows that see the key.
///
/// Sums are not divided by the sum of weights before the end, so values near the largest number of `f32`, which has
/// the range of `bf16`, may add up to infinity.
///
/// # Errors
/// Memory of a different element type than the call's, or shorter than its layout; lengths that are on a device;
/// operands that are missing, or given though the call does not have them. [`Error::Stopped`](crate::Error::Stopped)
/// if the caller's [`Stop`] was requested.
pub fn forward_cpu(call: &Call, inputs: &HostInputs<'_>, outputs: HostOutputs<'_>) -> Result<()> {
    compute_with(Isa::best(), call, inputs, outputs)
}

fn compute_with(
    isa: Isa,
    call: &Call,
    inputs: &HostInputs<'_>,
    outputs: HostOutputs<'_>,
) -> Result<()> {
    with_element!(call.element(), T => compute::<T>(isa, call, inputs, outputs))
}

fn compute<T: Element>(
    isa: Isa,
    call: &Call,
    inputs: &HostInputs<'_>,
    mut outputs: HostOutputs<'_>,
) -> Result<()> {
    call.check_memory(inputs, Some(&outputs))?;
    let operands = Operands::<T>::new(call, inputs)?;
    let out = outputs.take::<T>(Operand::Out)?.unwrap_or_default();
    let lse = outputs.take::<f32>(Operand::Lse)?.map(SharedMut::new);
    if call.lse_len() == 0 {
        // No row: but there may be more sequences without one than anybody can count.
        return Ok(());
    }
    let out_layout = *call.out();
    let out = SharedMut::new(out);

    let stop = Stop::current();
    let block = |task: &Task| Block {
        call,
        stop: &stop,
        operands,
        isa,
        task: task.clone(),
    };
    let write = |task: &Task, results: &Results<'_>| {
        let sequence = task.sequence;
        for index in 0..task.rows() {
            let (head, position) = task.row(index);
            let start = out_layout.offset(sequence.q_entry, sequence.q_start + position, head);
            // SAFETY: the buffer holds the layout, no two rows of an output layout overlap (the call has checked both),
            // and each row belongs to exactly one task.
            let to = unsafe { out.slice(start, call.out().head_dim()) };
            for (to, &value) in to.iter_mut().zip(results.out(index)) {
                // The sign of an empty sum, 0 or -0, depends on the number of terms.
                *to = T::from_f32(value + 0.0);
            }
            if let Some(lse) = &lse {
                let start = call.lse_offset(&sequence, head) + position;
                // SAFETY: within `lse_len`, which the buffer has; each element belongs to exactly one task.
                let to = unsafe { lse.slice(start, 1) };
                to[0] = results.lse(index);
            }
        }
    };
    // Parts of a task's keys, if others have the rest, or nothing.
    let compute = |task: &Task| {
        if stop.is_requested() {
            return Vec::new();
        }
        SCRATCH.with_borrow_mut(|scratch| {
            if task.parts.is_some() {
                return block(task).parts(scratch);
            }
            write(task, &block(task).attend(scratch));
            Vec::new()
        })
    };
    let join = |tasks: Vec<Task>, parts: Vec<Vec<RowState>>| {
        let mut parts = tasks
            .into_iter()
            .zip(parts)
            .filter(|(task, _)| task.parts.is_some());
        let mut next = parts.next();
        while let Some((task, first)) = next {
            next = None;
            let mut states = first;
            for (other, more) in parts.by_ref() {
                if !other.continues(&task) {
                    next = Some((other, more));
                    break;
                }
                states.extend(more);
            }
            SCRATCH.with_borrow_mut(|scratch| {
                write(&task, &block(&task).join(states.into_iter(), scratch));
            });
        }
    };
    let threads = Threads::for_caller();
    let tasks = tasks(call, threads.count());
    let parts: Vec<OnceLock<Vec<RowState>>> = tasks.iter().map(|_| OnceLock::new()).collect();
    threads.in_turn(tasks.len(), |index| {
        parts[index].get_or_init(|| compute(&tasks[index]));
    });
    stop.check()?;
    let parts = parts.into_iter().filter_map(OnceLock::into_inner);
    join(tasks, parts.collect());
    Ok(())
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The most bytes that queries and outputs of a task take, in `f32`: half of a small second-level cache.
const BLOCK_BYTES: usize = 512 << 10;

/// All tasks, the largest first, so that none of them is left to run alone at the end.
fn tasks(call: &Call, threads: usize) -> Vec<Task> {
    let (all_heads, group) = (call.heads(), call.heads().group_size());
    let all_rows: usize = { call.sequences() }
        .map(|sequence| sequence.q_len * all_heads.query)
        .sum();
    // Keys and values are prepared once for each block: larger ones save time as long as there are enough for all threads, and queries
    // and outputs stay in the second-level cache. No result depends on it.
    let row_bytes = all_heads.key_value_elements() * size_of::<f32>();
    let most = (BLOCK_BYTES / (Blocks::BLOCK_M * row_bytes)).max(1);
    let blocks = (all_rows / (8 * threads * Blocks::BLOCK_M)).clamp(1, most);
    let mut tasks = Vec::new();
    for sequence in call.sequences() {
        let heads = heads_per_task(call, &sequence, threads);
        // As even as whole blocks allow.
        let parts = sequence.q_len.div_ceil(blocks * Blocks::BLOCK_M).max(1);
        let block = { sequence.q_len.div_ceil(parts) }
            .next_multiple_of(Blocks::BLOCK_M)
            .max(Blocks::BLOCK_M);
        for kv_head in 0..all_heads.key_value {
            for first in (0..group).step_by(heads) {
                for position in (0..sequence.q_len).step_by(block) {
                    tasks.push(Task {
                        sequence,
                        heads: kv_head * group + first..kv_head * group + group.min(first + heads),
                        positions: position..sequence.q_len.min(position + block),
                        parts: None,
                    });
                }
            }
        }
    }
    let keys = |task: &Task| task.keys(call.mask()).len();
    tasks.sort_by_key(|task| Reverse(task.rows() * keys(task)));
    if threads == 1 {
        return tasks;
    }
    // Keys of a few rows are shared by several threads where there are not enough tasks, or some have more keys than others.
    let work = |task: &Task| keys(task) * task.rows().div_ceil(Blocks::BLOCK_M);
    let share = tasks.iter().map(work).sum::<usize>() / (TASKS_PER_THREAD * threads);
    let split = |task: &Task| match task.rows() {
        ..=MOST_ROWS_OF_A_PART => task.split(call.mask(), keys(task).div_ceil(share.max(1))),
        _ => vec![task.clone()],
    };
    tasks.iter().flat_map(split).collect()
}

/// Tasks for each thread, where there is enough to do, so that one that was late leaves the others little to wait for.
const TASKS_PER_THREAD: usize = 4;

/// The most rows of a task whose keys several threads share: what each part gives takes as much memory as the rows in `f32`.
const MOST_ROWS_OF_A_PART: usize = 64;

/// Number of heads that share keys and values in one task: as many as fit a block, so that keys and values are read once for
/// all of them, but few enough that every core has work. No result depends on it.
fn heads_per_task(call: &Call, sequence: &Sequence, threads: usize) -> usize {
    let (group, query_len, keys) = (call.heads().group_size(), sequence.q_len, sequence.k_len);
    let groups = call.batch() * call.heads().key_value;
    let mut heads = group.min(Blocks::BLOCK_M / query_len.max(1)).max(1);
    let parts = if query_len * group <= MOST_ROWS_OF_A_PART {
        keys.div_ceil(PART).max(1)
    } else {
        1
    };
    while heads > 1 && groups * group.div_ceil(heads) * parts < threads {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{DropoutState, Layout, Numbers, Scoring};

    /// Output and lse with some instructions, of inputs that are the same each time.
    fn attend<T: Element>(
        isa: Isa,
        lengths: [usize; 2],
        depth: usize,
        scoring: &str,
    ) -> [Vec<f32>; 2] {
        let [queries, keys] = lengths;
        let scoring: Scoring = scoring.parse().unwrap();
        let (q, k) = (
            Layout::bshd([1, queries, 4, depth]),
            Layout::bshd([1, keys, 2, depth]),
        );
        let state = DropoutState::new(3, 4).words();
        let mut builder = Call::builder(&q, &k, &k, T::TYPE).scoring(scoring);
        if scoring.dropout.is_some() {
            builder = builder.numbers(Operand::DropoutState, Numbers::Host(&state));
        }
        let call = builder.build().unwrap();
        let tensor = |layout: &Layout, seed: usize| -> Vec<T> {
            let number = |i: usize| ((i + seed) * 7919 % 1009) as f32 / 252.0 - 2.0;
            (0..layout.reach())
                .map(|i| T::from_f32(number(i)))
                .collect()
        };
        let (q_data, k_data, v_data) = (tensor(&q, 1), tensor(&k, 2), tensor(&k, 3));
        let mut out = vec![T::from_f32(f32::NAN); q.reach()];
        let mut lse = vec![f32::NAN; call.lse_len()];
        let mut inputs = HostInputs::new(&q_data, &k_data, &v_data);
        if scoring.alibi.is_some() {
            inputs.set(Operand::Slopes, &[0.5_f32, 0.25, 0.125, 0.0]);
        }
        let outputs = HostOutputs::new(&mut out).lse(&mut lse);
        compute_with(isa, &call, &inputs, outputs).unwrap();
        [out.into_iter().map(T::to_f32).collect(), lse]
    }

    /// Values are below 2, so rounding them to `bf16` costs up to 1/256, and that of the weights about as much.
    fn all_instructions_agree<T: Element>(tolerance: f32) {
        let portable = Isa::all().last().unwrap();
        for (lengths, depth) in [
            ([1, 700], 64),
            ([3, 130], 40),
            ([70, 333], 32),
            ([200, 201], 80),
        ] {
            let numbers = Scoring::NUMBERS.map(|(word, _)| format!("{word}=0.5"));
            for scoring in [
                "",
                "mask=causal scale=-0.2",
                "mask=window,50,3",
                &format!("{} alibi=head", numbers.join(" ")),
            ] {
                let expected = attend::<T>(portable, lengths, depth, scoring);
                for isa in Isa::all() {
                    let found = attend::<T>(isa, lengths, depth, scoring);
                    for (found, expected) in found.iter().zip(&expected) {
                        for (a, b) in found.iter().zip(expected) {
                            let close = a == b || (a - b).abs() <= tolerance * (1.0 + b.abs());
                            assert!(
                                close,
                                "{isa:?}: {a} instead of {b}; {lengths:?} {depth} {scoring}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn all_instructions_agree_on_f32() {
        all_instructions_agree::<f32>(1e-5);
    }

    #[test]
    fn all_instructions_agree_on_16_bits() {
        all_instructions_agree::<half::f16>(2e-3);
        all_instructions_agree::<half::bf16>(1.6e-2);
    }

    /// Scores of one row beyond the range of `f32`, or a key that only some rows see.
    #[test]
    fn a_huge_row_changes_no_bit_of_the_others() {
        const DEPTH: usize = 64;
        fn check<T: Element>(isa: Isa, rows: usize) {
            let layout = Layout::bshd([1, rows, 1, DEPTH]);
            let attend = |huge_query: Option<usize>, huge_key: Option<usize>| {
                let call = Call::builder(&layout, &layout, &layout, T::TYPE)
                    .scoring("mask=causal".parse().unwrap())
                    .build()
                    .unwrap();
                let tensor = |seed: usize, huge: Option<usize>| -> Vec<T> {
                    let number = |i: usize| match (i + seed) * 7919 % 1009 {
                        x if Some(i / DEPTH) == huge && x < 500 => f32::MAX / 4.0,
                        x => x as f32 / 252.0 - 2.0,
                    };
                    (0..layout.reach())
                        .map(|i| T::from_f32(number(i)))
                        .collect()
                };
                let (q, k, v) = (tensor(1, huge_query), tensor(2, huge_key), tensor(3, None));
                let mut out = vec![T::from_f32(f32::NAN); layout.reach()];
                let mut lse = vec![f32::NAN; rows];
                let outputs = HostOutputs::new(&mut out).lse(&mut lse);
                compute_with(isa, &call, &HostInputs::new(&q, &k, &v), outputs).unwrap();
                let bits = |x: f32| x.to_bits();
                let out: Vec<u32> = out.into_iter().map(|x| bits(x.to_f32())).collect();
                (out, lse.into_iter().map(bits).collect::<Vec<u32>>())
            };
            let (out, lse) = attend(None, None);
            let huge = rows / 2;
            let (by_query, lse_by_query) = attend(Some(huge), None);
            let (by_key, lse_by_key) = attend(None, Some(huge));
            for row in (0..rows).filter(|&row| row != huge) {
                let place = row * DEPTH..(row + 1) * DEPTH;
                assert_eq!(by_query[place.clone()], out[place.clone()], "{isa:?} {row}");
                assert_eq!(lse_by_query[row], lse[row], "{isa:?} {row}");
                if row < huge {
                    assert_eq!(by_key[place.clone()], out[place], "{isa:?} {row}");
                    assert_eq!(lse_by_key[row], lse[row], "{isa:?} {row}");
                }
            }
        }
        for isa in Isa::all() {
            for rows in [5, 40, 300] {
                check::<f32>(isa, rows);
                check::<half::bf16>(isa, rows);
            }
        }
    }

    /// The bits of a query are the same alone and among others.
    #[test]
    fn a_handful_of_queries_is_computed_like_many() {
        fn check<T: Element>() {
            for isa in Isa::all() {
                let row = 4 * 64;
                // More than a part.
                let [many, many_lse] = attend::<T>(isa, [40, 1300], 64, "");
                for few in [1, 2, 5] {
                    let [out, lse] = attend::<T>(isa, [few, 1300], 64, "");
                    assert_eq!(out, many[..few * row], "{isa:?}");
                    assert_eq!(lse[..few], many_lse[..few], "{isa:?}");
                }
            }
        }
        check::<f32>();
        check::<half::f16>();
        check::<half::bf16>();
    }
}
