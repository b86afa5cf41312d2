//! Attention over several devices: the handle that a description is prepared to, and its runs.

use std::any::Any;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use attention::plan::Choice;
use attention::spec::{DropoutState, Operand};
use attention::{Attention, Element, Layout, Tensor};
use warptile_distributed::{Expected, Output, RowMap, Scheme, Shards};

use crate::error::{Failure, Result, guarded};
use crate::explain;
use crate::group::Group;
use crate::host::Memory;
use crate::ranks::{self, Ranks, check, check_idle, list, of_element, take};
use crate::sharded_desc::{Described, ShardedDesc, ShardedMemory, described};
use crate::structs::{check_pointer, choice, count, free, give, handle, name, read};

/// A description that was checked for a group, whose rows are dealt to the ranks. Any number of threads may use it at the same time.
#[derive(Debug)]
pub struct Sharded {
    /// Borrows from the group, so it goes first.
    shards: Shards<'static>,
    group: Arc<Ranks>,
    described: Described,
    /// Without the numbers of options, which each call has.
    attention: Attention,
    number: u64,
}

/// The output of warptile_sharded_forward as a backward pass needs it, with its log-sum-exp.
#[derive(Debug)]
pub struct ShardedOutput {
    /// An [`Output`] of the description's element type.
    output: Box<dyn Any + Send + Sync>,
    /// The handle that computed it.
    of: u64,
}

/// Checks a description of a computation over a group's devices, and deals the rows to the ranks. Nothing is planned and no kernel is
/// loaded before the first call. The handle is freed with warptile_sharded_free, and keeps the group until then.
///
/// # Safety
/// `group` is null, which is an error, or a handle that was not freed. `desc` is null, which is an error, or valid for reading `desc->size`
/// bytes; likewise `desc->attention`, as for warptile_attention_prepare; document_offsets are as many as it says. `sharded` is null, which
/// is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_sharded_prepare(
    group: *const Group,
    desc: *const ShardedDesc,
    sharded: *mut *mut Sharded,
) -> i32 {
    guarded(|| {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        check_pointer("sharded", sharded, align_of::<*mut Sharded>())?;
        // SAFETY: the caller's promise.
        let group = unsafe { handle("group", group) }?.ranks.clone();
        // SAFETY: the caller's promise.
        let (described, of) = unsafe { described(desc) }?;
        // SAFETY: the caller's promise.
        let choice = unsafe { choice(of.kernel) }?;
        if !group.backends()[0].is_gpu() {
            choice.check_on_cpu()?;
        }
        let call = &described.call;
        let attention = Attention::new()
            .scoring(*call.scoring())
            .splits(call.splits())
            .choice(choice);
        // SAFETY: it stays where it is until the handle is dropped, whose shards go before it.
        let ranks: &'static Ranks = unsafe { &*Arc::as_ptr(&group) };
        let shards = ranks.shards(&described.sharding, call.q().shape[1])?;
        let made = Sharded {
            shards: shards.scheme(described.scheme),
            group,
            described,
            attention,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { give(sharded, made) };
        Ok(())
    })
}

/// Which rows a rank of any process has, in the order of its tensors: at most `capacity` numbers are written to `rows`, and to `needed` how
/// many there are. `rows` may be null if `capacity` is 0, and `needed` may be null.
///
/// # Safety
/// `sharded` is null, which is an error, or a handle that was not freed. `rows` is valid for writing `capacity` numbers, `needed` for
/// writing, unless they are null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_sharded_rows(
    sharded: *const Sharded,
    rank: i64,
    rows: *mut i64,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let map = unsafe { handle("sharded", sharded) }?.shards.map();
        let rank = count("rank", rank)?;
        if rank >= map.ranks() {
            let rule = format!("is {rank}, but there are {} ranks", map.ranks());
            return Err(Failure::of("rank", rule));
        }
        if capacity != 0 {
            check_pointer("rows", rows, align_of::<i64>())?;
        }
        if !needed.is_null() {
            check_pointer("needed", needed, align_of::<usize>())?;
            // SAFETY: not null, aligned, and valid by the caller's promise.
            unsafe { needed.write(map.local_len(rank)) };
        }
        let chunks = map.chunks(rank).iter();
        let all = chunks.flat_map(|chunk| chunk.rows.clone());
        for (at, row) in all.take(capacity).enumerate() {
            // SAFETY: below `capacity`; likewise.
            unsafe { rows.add(at).write(row as i64) };
        }
        Ok(())
    })
}

/// Computes. On GPUs the tensors are copied on the GPU, each on its rank's stream, and the call returns when all work is submitted: what is
/// submitted to that stream later finds the output. On the CPU it is there on return. A call is no part of a capture.
///
/// If `output` is not null it receives a handle for warptile_sharded_backward and warptile_sharded_lse, which need the description's
/// want_lse. The handle holds copies of the output, and is freed with warptile_sharded_output_free.
///
/// # Safety
/// - `sharded` is null, which is an error, or a handle that was not freed. `memory` is null, which is an error, or valid for reading
///   `memory->size` bytes. `output` is null or valid for writing.
/// - Each list of tensors has as many addresses as `memory->ranks` says, and each tensor as many rows as its rank has. They stay valid
///   until the work has ended that was then submitted to the rank's stream. Meanwhile nothing else writes the inputs, or uses the outputs.
/// - Slopes and sinks are one for each query head, and a state is eight words.
/// - On GPUs no stream of the group is being destroyed or captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_sharded_forward(
    sharded: *const Sharded,
    memory: *const ShardedMemory,
    output: *mut *mut ShardedOutput,
) -> i32 {
    guarded(|| {
        if !output.is_null() {
            check_pointer("output", output, align_of::<*mut ShardedOutput>())?;
        }
        // SAFETY: the caller's promise.
        let sharded = unsafe { handle("sharded", sharded) }?;
        // SAFETY: the caller's promise.
        let memory = unsafe { read("memory", memory) }?;
        // SAFETY: the caller's promise.
        let computed = of_element!(sharded.described.call.element(), T => unsafe { sharded.forward::<T>(&memory) })?;
        if !output.is_null() {
            // SAFETY: not null, aligned, and valid by the caller's promise.
            unsafe { give(output, computed) };
        }
        Ok(())
    })
}

/// Computes the gradients of queries, keys, values and sinks from that of the output, as warptile_sharded_forward computes. `output` is
/// that of a call of `sharded` with the same inputs, whose description has want_lse. Those gradients are written that `memory` has; equal
/// arguments give the same bits each time.
///
/// # Safety
/// As warptile_sharded_forward; `output` is null, which is an error, or a handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_sharded_backward(
    sharded: *const Sharded,
    output: *const ShardedOutput,
    memory: *const ShardedMemory,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (sharded, output) = unsafe { (handle("sharded", sharded)?, handle("output", output)?) };
        // SAFETY: the caller's promise.
        let memory = unsafe { read("memory", memory) }?;
        // SAFETY: the caller's promise.
        of_element!(sharded.described.call.element(), T => unsafe { sharded.backward::<T>(output, &memory) })
    })
}

/// Writes the natural log-sum-exp of all rows into host memory, [all rows, heads], and waits for what computes it. Not over NCCL.
///
/// # Safety
/// As warptile_sharded_backward. `lse` is null, which is an error, or valid for writing as many numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_sharded_lse(
    sharded: *const Sharded,
    output: *const ShardedOutput,
    lse: *mut f32,
) -> i32 {
    guarded(|| {
        check_pointer("lse", lse, align_of::<f32>())?;
        // SAFETY: the caller's promise.
        let (sharded, output) = unsafe { (handle("sharded", sharded)?, handle("output", output)?) };
        let found = of_element!(sharded.described.call.element(), T => sharded.lse::<T>(output))?;
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), lse, found.len()) };
        Ok(())
    })
}

/// Predicts a call over as many GPUs as `ranks` says, by its scheme and another, from the plan for one: some lines of text, written as
/// warptile_explain does, whose arguments `device`, `gpu`, `text`, `capacity` and `needed` are. The GPUs are taken to be joined by NVLink.
///
/// # Safety
/// `desc` as for warptile_sharded_prepare; the others as for warptile_explain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_sharded_explain(
    device: i32,
    gpu: *const c_char,
    ranks: i64,
    desc: *const ShardedDesc,
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    let words = || {
        // SAFETY: the caller's promise.
        let (described, of) = unsafe { described(desc) }?;
        // SAFETY: the caller's promise.
        let (gpu, choice) = unsafe { (name("gpu", gpu)?, choice(of.kernel)?) };
        explained(
            device,
            gpu.as_deref(),
            count("ranks", ranks)?,
            &described,
            &choice,
        )
    };
    // SAFETY: the caller's promise.
    unsafe { explain::write(text, capacity, needed, words) }
}

/// Frees a handle. Work that it has submitted goes on.
///
/// # Safety
/// `sharded` is null, or a handle that was not freed and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_sharded_free(sharded: *mut Sharded) {
    // SAFETY: the caller's promise.
    unsafe { free(sharded) };
}

/// Frees a handle.
///
/// # Safety
/// `output` is null, or a handle that was not freed and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_sharded_output_free(output: *mut ShardedOutput) {
    // SAFETY: the caller's promise.
    unsafe { free(output) };
}

fn explained(
    device: i32,
    gpu: Option<&str>,
    ranks: usize,
    described: &Described,
    choice: &Choice,
) -> Result<String> {
    let call = &described.call;
    let plan = explain::plan(device, gpu, call.problem(), choice)?;
    let map = RowMap::new(&described.sharding, call.q().shape[1], ranks)?;
    let (size, one_us) = (call.element().size(), plan.estimate_us());
    let expected = |scheme| Expected::new(scheme, &map, call.mask(), call.heads(), size, one_us);
    let (chosen, other) = match described.scheme {
        Scheme::Gather => (Scheme::Gather, Scheme::Heads),
        scheme => (scheme, Scheme::Gather),
    };
    let chosen = expected(chosen)?;
    let megabytes = chosen.fetched_bytes as f64 / 1e6;
    let not = match expected(other) {
        Ok(other) => format!("{other}, {:.2} times as long", other.us / chosen.us),
        Err(error) => format!("{other}: {error}"),
    };
    let warning = { chosen.warning() }.map_or(String::new(), |words| format!("warning  {words}\n"));
    Ok(format!(
        "devices  {ranks} by {chosen}, up to {megabytes:.1} MB from other devices\nnot      {not}\n{warning}{}",
        plan.explain()
    ))
}

/// Members of the memory for a backward pass alone.
const GRADIENTS: [Operand; 5] = [
    Operand::DOut,
    Operand::DQ,
    Operand::DK,
    Operand::DV,
    Operand::DSinks,
];

/// A tensor of each rank of this process.
struct Field<'m> {
    pointers: &'m [*mut c_void],
    layouts: Vec<Layout>,
}

impl Sharded {
    /// The addresses of a list, which are looked at before anything is copied.
    ///
    /// # Safety
    /// The list is null or has as many addresses as `memory` says.
    unsafe fn field<'m>(&self, memory: &ShardedMemory, operand: Operand) -> Result<Field<'m>> {
        let (name, pointers) = (operand.name(), memory.pointer(operand));
        let [heads, dim] = self.described.sizes(operand);
        let ranks = self.group.local_ranks();
        if memory.ranks != ranks.len() {
            let rule = format!(
                "is {}, but this process has {} ranks",
                memory.ranks,
                ranks.len()
            );
            return Err(Failure::of("ranks", rule));
        }
        // SAFETY: the caller's promise.
        let pointers = unsafe {
            list(
                name,
                pointers.cast::<*mut c_void>().cast_const(),
                memory.ranks,
            )
        }?;
        let layout = |rank| Layout::bhsd([1, heads, self.shards.map().local_len(rank), dim]);
        let layouts: Vec<_> = ranks.clone().map(layout).collect();
        let each = ranks
            .zip(self.group.backends())
            .zip(pointers.iter().zip(&layouts));
        for (at, ((rank, backend), (pointer, layout))) in each.enumerate() {
            if layout.reach() != 0 {
                let argument = format!("{name}[{at}]");
                check(
                    &argument,
                    rank,
                    backend,
                    *pointer,
                    self.described.call.element().size(),
                )?;
            }
        }
        Ok(Field { pointers, layouts })
    }

    /// Copies of the tensors.
    ///
    /// # Safety
    /// As warptile_sharded_forward.
    unsafe fn take<T: Element>(&self, field: &Field<'_>) -> Result<Vec<Tensor<T>>> {
        let ranks = self.group.backends().iter().zip(&field.layouts);
        let copies = ranks.zip(field.pointers);
        // SAFETY: the caller's promise.
        let copies =
            copies.map(|((backend, layout), from)| unsafe { take(backend, *from, *layout) });
        copies.collect()
    }

    /// Copies tensors to where the field is.
    ///
    /// # Safety
    /// As warptile_sharded_forward.
    unsafe fn give<T: Element>(&self, tensors: &[Tensor<T>], field: &Field<'_>) -> Result<()> {
        for ((tensor, backend), to) in tensors
            .iter()
            .zip(self.group.backends())
            .zip(field.pointers)
        {
            // SAFETY: the caller's promise; the tensor has the field's layout.
            unsafe { ranks::give(tensor, backend, *to) }?;
        }
        Ok(())
    }

    /// The options of a call.
    ///
    /// # Safety
    /// As warptile_sharded_forward.
    unsafe fn attention(&self, memory: &ShardedMemory) -> Result<Attention> {
        let call = &self.described.call;
        let mut attention = self.attention.clone();
        for operand in [Operand::Slopes, Operand::Sinks] {
            if wanted(memory, operand, call.has(operand))? {
                let numbers = memory.pointer(operand).cast_const().cast::<f32>();
                // SAFETY: the caller's promise.
                let numbers = unsafe { list(operand.name(), numbers, call.heads().query) }?;
                attention = attention.numbers(operand, numbers);
            }
        }
        let (state, dropout) = (Operand::DropoutState, call.scoring().dropout);
        if wanted(memory, state, dropout.is_some())? {
            // SAFETY: the caller's promise.
            let words = unsafe { list(state.name(), memory.dropout_state, DropoutState::WORDS) }?;
            let words = std::array::from_fn(|at| words[at]);
            attention = attention.dropout(dropout.unwrap_or(0.0), DropoutState::from_words(words));
        }
        Ok(match call.wants_lse() {
            true => attention,
            false => attention.without_lse(),
        })
    }

    /// # Safety
    /// As warptile_sharded_forward.
    unsafe fn forward<T: Element>(&self, memory: &ShardedMemory) -> Result<ShardedOutput> {
        for operand in GRADIENTS {
            if !memory.pointer(operand).is_null() {
                let rule = "is given, but is for warptile_sharded_backward";
                return Err(Failure::of(operand.name(), rule));
            }
        }
        let fields = [Operand::Q, Operand::K, Operand::V, Operand::Out];
        // SAFETY: the caller's promise.
        let [q, k, v, out] = fields.map(|operand| unsafe { self.field(memory, operand) });
        let (inputs, out) = ([q?, k?, v?], out?);
        check_idle(&self.group)?;
        // SAFETY: as above.
        let attention = unsafe { self.attention(memory) }?;
        // SAFETY: as above.
        let [q, k, v] = inputs.map(|field| unsafe { self.take::<T>(&field) });
        let output = self.shards.forward(&attention, &q?, (&k?, &v?))?;
        // SAFETY: as above.
        unsafe { self.give(&output.out, &out) }?;
        Ok(ShardedOutput {
            output: Box::new(output),
            of: self.number,
        })
    }

    /// # Safety
    /// As warptile_sharded_backward.
    unsafe fn backward<T: Element>(
        &self,
        output: &ShardedOutput,
        memory: &ShardedMemory,
    ) -> Result<()> {
        let output = self.output::<T>(output)?;
        if !memory.out.is_null() {
            let rule = "is given, but the output is that of the handle";
            return Err(Failure::of("out", rule));
        }
        let fields = [Operand::Q, Operand::K, Operand::V, Operand::DOut];
        // SAFETY: the caller's promise.
        let [q, k, v, d_out] = fields.map(|operand| unsafe { self.field(memory, operand) });
        let inputs = [q?, k?, v?, d_out?];
        let to = |operand| match memory.pointer(operand).is_null() {
            true => Ok(None),
            // SAFETY: as above.
            false => unsafe { self.field(memory, operand) }.map(Some),
        };
        let to = [to(Operand::DQ)?, to(Operand::DK)?, to(Operand::DV)?];
        let (first, home) = (self.group.local_ranks().start, &self.group.backends()[0]);
        let d_sinks: *mut c_void = memory.d_sinks.cast();
        if !d_sinks.is_null() {
            let rule = match (self.described.call.has(Operand::Sinks), first) {
                (true, 0) => None,
                (true, _) => Some("is given, but rank 0 is in another process"),
                (false, _) => Some("is given, but the description has no sinks"),
            };
            if let Some(rule) = rule {
                return Err(Failure::of("d_sinks", rule));
            }
            check("d_sinks", first, home, d_sinks, align_of::<f32>())?;
        }
        check_idle(&self.group)?;
        // SAFETY: as above.
        let attention = unsafe { self.attention(memory) }?;
        // SAFETY: as above.
        let [q, k, v, d_out] = inputs.map(|field| unsafe { self.take::<T>(&field) });
        let shards = &self.shards;
        let found = shards.backward(&attention, &d_out?, &q?, (&k?, &v?), output)?;
        for (tensors, to) in [&found.dq, &found.dk, &found.dv].into_iter().zip(&to) {
            if let Some(to) = to {
                // SAFETY: as above.
                unsafe { self.give(tensors, to) }?;
            }
        }
        if let (Some(sinks), false) = (&found.d_sinks, d_sinks.is_null()) {
            // SAFETY: as above.
            unsafe { ranks::give(sinks, home, d_sinks) }?;
        }
        Ok(())
    }

    fn lse<T: Element>(&self, output: &ShardedOutput) -> Result<Vec<f32>> {
        match &self.output::<T>(output)?.lse {
            Some(lse) => Ok(self.shards.join_lse(lse)?),
            None => Err(Failure::of("output", "has no log-sum-exp: set want_lse")),
        }
    }

    fn output<'o, T: Element>(&self, output: &'o ShardedOutput) -> Result<&'o Output<T>> {
        { output.output.downcast_ref() }
            .filter(|_| output.of == self.number)
            .ok_or_else(|| Failure::of("output", "is that of another handle than sharded"))
    }
}

/// Returns true if numbers of an option are wanted, which then must be there, and else must not.
fn wanted(memory: &ShardedMemory, operand: Operand, wanted: bool) -> Result<bool> {
    let rule = match (wanted, memory.pointer(operand).is_null()) {
        (true, true) => "is missing",
        (false, false) => "is given, but the description is without it",
        _ => return Ok(wanted),
    };
    Err(Failure::of(operand.name(), rule))
}
