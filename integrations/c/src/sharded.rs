//! Attention over several devices: the handle that a description is prepared to, and its runs.

use std::any::Any;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use attention::kernels::Operations;
use attention::spec::Operand;
use attention::{Element, Layout, Tensor, with_element};
use warptile_distributed::{Expected, Output, RowMap, Scheme, Shards};

use crate::attention_desc::AttentionMemory;
use crate::backward_desc::{BackwardMemory, Together};
use crate::error::{Failure, Result, guarded};
use crate::explain;
use crate::group::Group;
use crate::host::{Memory, expect_absent};
use crate::ranks::{self, Described, Ranks, check, check_idle, take};
use crate::sharded_desc::{ShardedDesc, Sharding, sharding};
use crate::structs::{check_pointer, count, free, give, handle, name, read_each};

/// A description that was checked for a group, whose rows are dealt to the ranks. Any number of threads may use it at the same time.
#[derive(Debug)]
pub struct Sharded {
    /// Borrows from the group, so it goes first.
    shards: Shards<'static>,
    group: Arc<Ranks>,
    of: Described,
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
        let Sharding { of, rows, scheme } = unsafe { sharding(desc) }?;
        if !group.backends()[0].is_gpu() {
            of.choice.check_on_cpu()?;
        }
        // SAFETY: it stays where it is until the handle is dropped, whose shards go before it.
        let ranks: &'static Ranks = unsafe { &*Arc::as_ptr(&group) };
        let made = Sharded {
            shards: { ranks.shards(&rows, of.call.q().shape[1])? }.scheme(scheme),
            group,
            of,
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

/// Computes. `memory` is that of each rank of this process, on its device: `ranks` structs that lie one behind the other. Tensors are the
/// rank's rows, as warptile_sharded_rows counts them, stored without gaps as [heads, rows, head size]. The numbers of options, such
/// as `alibi_slopes`, are in host memory, and only those of the first struct are read. `lse` is null; the workspace does not count.
///
/// On GPUs the tensors are copied on the GPU, each on its rank's stream, and the call returns when all work is submitted: what is
/// submitted to that stream later finds the output. On the CPU it is there on return. A call is no part of a capture.
///
/// If `output` is not null it receives a handle for warptile_sharded_backward and warptile_sharded_lse, which need the description's
/// want_lse. The handle holds copies of the output, and is freed with warptile_sharded_output_free.
///
/// # Safety
/// - `sharded` is null, which is an error, or a handle that was not freed. `memory` is null, which is an error, or `ranks` structs, each
///   valid for reading as many bytes as its size says. `output` is null or valid for writing.
/// - Each tensor has as many rows as its rank. It stays valid until the work has ended that was then submitted to the rank's stream.
///   Meanwhile nothing else writes the inputs, or uses the outputs.
/// - On GPUs no stream of the group is being destroyed or captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_sharded_forward(
    sharded: *const Sharded,
    memory: *const AttentionMemory,
    ranks: usize,
    output: *mut *mut ShardedOutput,
) -> i32 {
    guarded(|| {
        if !output.is_null() {
            check_pointer("output", output, align_of::<*mut ShardedOutput>())?;
        }
        // SAFETY: the caller's promise.
        let sharded = unsafe { handle("sharded", sharded) }?;
        sharded.expect_ranks(ranks)?;
        // SAFETY: the caller's promise.
        let memory = unsafe { read_each("memory", memory, ranks) }?;
        let element = sharded.of.call.element();
        // SAFETY: the caller's promise.
        let computed = with_element!(element, T => unsafe { sharded.forward::<T>(&memory) })?;
        if !output.is_null() {
            // SAFETY: not null, aligned, and valid by the caller's promise.
            unsafe { give(output, computed) };
        }
        Ok(())
    })
}

/// Computes the gradients of queries, keys, values and options' numbers from that of the output, as warptile_sharded_forward computes.
/// `output` is that of a call of `sharded` with the same inputs, whose description has want_lse; `out` does not count. Those gradients are
/// written that `memory` has, those of options' numbers in the memory of rank 0; equal arguments give the same bits each time.
///
/// # Safety
/// As warptile_sharded_forward, for `attention` of each struct, too; `output` is null, which is an error, or a handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_sharded_backward(
    sharded: *const Sharded,
    output: *const ShardedOutput,
    memory: *const BackwardMemory,
    ranks: usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (sharded, output) = unsafe { (handle("sharded", sharded)?, handle("output", output)?) };
        sharded.expect_ranks(ranks)?;
        // SAFETY: the caller's promise.
        let memory = unsafe { read_each("memory", memory, ranks) }?;
        // SAFETY: the caller's promise.
        let memory = memory.into_iter().map(|own| unsafe { Together::of(own) });
        let memory = memory.collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller's promise.
        with_element!(sharded.of.call.element(), T => unsafe { sharded.backward::<T>(output, &memory) })
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
        let found = with_element!(sharded.of.call.element(), T => sharded.lse::<T>(output))?;
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
        let (sharding, gpu) = unsafe { (sharding(desc)?, name("gpu", gpu)?) };
        explained(device, gpu.as_deref(), count("ranks", ranks)?, &sharding)
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
    Sharding { of, rows, scheme }: &Sharding,
) -> Result<String> {
    let call = &of.call;
    let plan = explain::plan(device, gpu, call.problem(), &of.choice)?;
    let map = RowMap::new(rows, call.q().shape[1], ranks)?;
    let (of, one_us) = ((call.element().size(), false), plan.estimate_us());
    let has_numbers = Operand::of_scores().any(|operand| call.has(operand));
    let options = (call.mask(), has_numbers);
    let expected = |scheme| Expected::new(scheme, &map, options, call.heads(), of, one_us);
    let (chosen, other) = match *scheme {
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

/// A tensor of each rank of this process.
type Field = Vec<(*mut c_void, Layout)>;

impl Sharded {
    fn expect_ranks(&self, ranks: usize) -> Result<()> {
        match self.group.local_ranks().len() {
            local if local == ranks => Ok(()),
            local => {
                let rule = format!("is {ranks}, but this process has {local} ranks");
                Err(Failure::of("ranks", rule))
            }
        }
    }

    /// The addresses of a tensor, which are looked at before anything is copied.
    fn field(&self, memory: &[impl Memory], operand: Operand) -> Result<Field> {
        let [_, _, heads, dim] = self.of.layout(operand).shape;
        let ranks = self.group.local_ranks().zip(self.group.backends());
        let fields = ranks.zip(memory).enumerate();
        let fields = fields.map(|(at, ((rank, backend), memory))| {
            let layout = Layout::bhsd([1, heads, self.shards.map().local_len(rank), dim]);
            let pointer = memory.pointer(operand).cast::<c_void>();
            if layout.reach() != 0 {
                let argument = format!("memory[{at}].{}", operand.name());
                check(
                    &argument,
                    rank,
                    backend,
                    pointer,
                    self.of.call.element().size(),
                )?;
            }
            Ok((pointer, layout))
        });
        fields.collect()
    }

    /// Copies of the tensors.
    ///
    /// # Safety
    /// As warptile_sharded_forward.
    unsafe fn take<T: Element>(&self, field: &Field) -> Result<Vec<Tensor<T>>> {
        let copies = self.group.backends().iter().zip(field);
        // SAFETY: the caller's promise.
        let copies =
            copies.map(|(backend, (from, layout))| unsafe { take(backend, *from, *layout) });
        copies.collect()
    }

    /// Copies tensors to where the field is.
    ///
    /// # Safety
    /// As warptile_sharded_forward.
    unsafe fn give<T: Element>(&self, tensors: &[Tensor<T>], field: &Field) -> Result<()> {
        let mut ranks = self.group.backends().iter().zip(tensors.iter().zip(field));
        // SAFETY: the caller's promise; the tensor has the field's layout.
        ranks.try_for_each(|(backend, (tensor, (to, _)))| unsafe {
            ranks::give(tensor, backend, *to)
        })
    }

    /// # Safety
    /// As warptile_sharded_forward.
    unsafe fn forward<T: Element>(&self, memory: &[AttentionMemory]) -> Result<ShardedOutput> {
        let fields = [Operand::Q, Operand::K, Operand::V, Operand::Out];
        let [q, k, v, out] = fields.map(|operand| self.field(memory, operand));
        let (inputs, out) = ([q?, k?, v?], out?);
        check_idle(&self.group)?;
        // SAFETY: the caller's promise.
        let attention = unsafe { self.of.attention(&memory[0]) }?;
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
        memory: &[Together],
    ) -> Result<()> {
        let output = self.output::<T>(output)?;
        let (first, home) = (self.group.local_ranks().start, &self.group.backends()[0]);
        let own = &memory[0];
        let fields = [Operand::Q, Operand::K, Operand::V, Operand::DOut];
        let [q, k, v, d_out] = fields.map(|operand| self.field(memory, operand));
        let inputs = [q?, k?, v?, d_out?];
        let given = |operand| move |memory: &Together| !memory.pointer(operand).is_null();
        let to = [Operand::DQ, Operand::DK, Operand::DV].map(|operand| {
            { memory.iter().any(given(operand)) }
                .then(|| self.field(memory, operand))
                .transpose()
        });
        let [dq, dk, dv] = to;
        let to = [dq?, dk?, dv?];
        for operand in Operand::of(Operations::BACKWARD).filter(|operand| !operand.moves_rows()) {
            let (name, pointer) = (operand.name(), own.pointer(operand));
            if !{ operand.gradient_of() }.is_some_and(|of| self.of.call.has(of)) {
                expect_absent(operand, pointer)?;
            } else if !pointer.is_null() {
                if first != 0 {
                    return Err(Failure::of(
                        name,
                        "is given, but rank 0 is in another process",
                    ));
                }
                check(name, first, home, pointer.cast(), align_of::<f32>())?;
            }
        }
        check_idle(&self.group)?;
        // SAFETY: the caller's promise.
        let attention = unsafe { self.of.attention(&own.attention) }?;
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
        for &(gradient, ref numbers) in &found.numbers {
            if given(gradient)(own) {
                // SAFETY: as above.
                unsafe { ranks::give(numbers, home, own.pointer(gradient).cast()) }?;
            }
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
