//! Decoding from a cache whose pages are dealt to the ranks of a group.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use attention::cache::SequenceId;
use attention::spec::Heads;
use attention::{Element, KvCache, Layout};
use warptile_distributed::ShardedCache;

use crate::attention_desc::{AttentionDesc, AttentionMemory};
use crate::error::{Failure, Result, guarded};
use crate::group::Group;
use crate::ranks::{Described, Ranks, check, check_idle, give, list, take};
use crate::structs::{
    Layout as StructLayout, Versioned, check_pointer, count, element, free, give as give_handle,
    handle, read,
};

/// A cache whose pages are dealt to the ranks of a group: page p of a sequence is with rank p modulo their number, so each has its share of
/// every long sequence. Calls of several threads take turns.
pub struct DealtCache {
    /// Borrows from the group, so it goes first.
    cache: Mutex<Box<dyn Dealt>>,
    _group: Arc<Ranks>,
}

/// A cache to be dealt. Fill the struct with zeros, then set `size`, `element`, `kv_heads` and `head_size`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DealtCacheDesc {
    /// `sizeof(warptile_dealt_cache_desc)`.
    pub size: usize,
    /// Element type of keys, values, queries and outputs.
    pub element: u32,
    /// Rows of a page, 1 to 256. 0: 16.
    pub page_rows: u32,
    /// Key/value heads.
    pub kv_heads: i64,
    /// Head size of keys.
    pub head_size: i64,
    /// Head size of values. 0: that of keys.
    pub value_size: i64,
    /// Pages of each rank, for each layer. 0: 256.
    pub pages: i64,
    /// Layers, each with keys and values of its own. 0: 1.
    pub layers: i64,
    /// The most sequences of a step. 0: 1.
    pub sequences: i64,
}

// SAFETY: numbers, the size first, without padding.
unsafe impl Versioned for DealtCacheDesc {
    const LEAST: usize = std::mem::offset_of!(DealtCacheDesc, value_size);
}

/// Makes a cache whose pages are dealt to the ranks of a group. It keeps the group, and is freed with warptile_dealt_cache_free.
///
/// # Safety
/// `group` is null, which is an error, or a handle that was not freed. `desc` is null, which is an error, or valid for reading `desc->size`
/// bytes. `cache` is null, which is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_dealt_cache_create(
    group: *const Group,
    desc: *const DealtCacheDesc,
    cache: *mut *mut DealtCache,
) -> i32 {
    guarded(|| {
        check_pointer("cache", cache, align_of::<*mut DealtCache>())?;
        // SAFETY: the caller's promise.
        let group = unsafe { handle("group", group) }?.ranks.clone();
        // SAFETY: the caller's promise.
        let desc = unsafe { read("desc", desc) }?;
        // SAFETY: it stays where it is until the handle is dropped, whose cache goes before it.
        let ranks: &'static Ranks = unsafe { &*Arc::as_ptr(&group) };
        let made: Box<dyn Dealt> = attention::with_element!(element(desc.element)?, T => Box::new(Typed::<T>::new(ranks, &desc)?));
        let made = DealtCache {
            cache: Mutex::new(made),
            _group: group,
        };
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { give_handle(cache, made) };
        Ok(())
    })
}

/// Gives a new sequence without rows, by its number. Of several processes, each makes the same calls.
///
/// # Safety
/// `cache` is null, which is an error, or a handle that was not freed. `sequence` is null, which is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_dealt_cache_allocate(
    cache: *const DealtCache,
    sequence: *mut i64,
) -> i32 {
    guarded(|| {
        check_pointer("sequence", sequence, align_of::<i64>())?;
        // SAFETY: the caller's promise.
        let number = unsafe { locked(cache) }?.allocate();
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { sequence.write(number) };
        Ok(())
    })
}

/// Gives a sequence's pages back.
///
/// # Safety
/// `cache` is null, which is an error, or a handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_dealt_cache_release(
    cache: *const DealtCache,
    sequence: i64,
) -> i32 {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { locked(cache) }?.release(sequence))
}

/// Tells how many rows a sequence has.
///
/// # Safety
/// `cache` is null, which is an error, or a handle that was not freed. `rows` is null, which is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_dealt_cache_rows(
    cache: *const DealtCache,
    sequence: i64,
    rows: *mut i64,
) -> i32 {
    guarded(|| {
        check_pointer("rows", rows, align_of::<i64>())?;
        // SAFETY: the caller's promise.
        let found = unsafe { locked(cache) }?.rows(sequence)?;
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { rows.write(found as i64) };
        Ok(())
    })
}

/// Begins a step, in which `sequences[i]` gets `rows[i]` new rows. No sequence has grown if it is refused.
///
/// # Safety
/// `cache` is null, which is an error, or a handle that was not freed. Both lists are null or `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_dealt_cache_step(
    cache: *const DealtCache,
    sequences: *const i64,
    rows: *const i64,
    count: usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (sequences, rows) = unsafe {
            (
                list("sequences", sequences, count)?,
                list("rows", rows, count)?,
            )
        };
        // SAFETY: the caller's promise.
        unsafe { locked(cache) }?.step(sequences, rows)
    })
}

/// Writes the keys and values of the step into a layer, each row into the pages of its owner. `k` and `v` are in the memory of this
/// process's first rank, [rows of all sequences, heads, head size], in the order of the step; each process has all of them. Rotate keys
/// before, by their places in their sequences.
///
/// # Safety
/// `cache` is null, which is an error, or a handle that was not freed. `k` and `v` reach as far as the step says, and are not written until
/// the work has ended that was then submitted to the rank's stream, which is not being captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_dealt_cache_append(
    cache: *const DealtCache,
    layer: i64,
    k: *const c_void,
    v: *const c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { locked(cache)?.append(count("layer", layer)?, [k, v]) }
    })
}

/// Attention of a step of one new row for each sequence to all keys of its sequence, the new one included: each rank attends to its keys,
/// and the results are merged on this process's first rank, in the order of the ranks. Streams as for warptile_sharded_forward.
///
/// `desc` says the element type, the queries, [sequences, 1, heads, head size] with zeros for strides, and the options; those of each head
/// and masks are refused, and k, v, want_lse and unchecked do not count. `memory` has q and out, in the memory of this process's first
/// rank; each process has them.
///
/// # Safety
/// `cache` is null, which is an error, or a handle that was not freed. `desc` and `memory` are null, which is an error, or valid for reading
/// as many bytes as their size says; `desc->kernel` is null or ends with a NUL. The queries and the output reach as far as `desc` says,
/// until the work has ended that was then submitted to the rank's stream, which is not being captured; meanwhile nothing else writes the
/// queries, or uses the output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_dealt_cache_attend(
    cache: *const DealtCache,
    layer: i64,
    desc: *const AttentionDesc,
    memory: *const AttentionMemory,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (desc, memory) = unsafe { (read("desc", desc)?, read("memory", memory)?) };
        // SAFETY: the caller's promise.
        unsafe { locked(cache)?.attend(count("layer", layer)?, desc, &memory) }
    })
}

/// Frees a cache. Work that it has submitted goes on.
///
/// # Safety
/// `cache` is null, or a handle that was not freed and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_dealt_cache_free(cache: *mut DealtCache) {
    // SAFETY: the caller's promise.
    unsafe { free(cache) };
}

/// # Safety
/// `cache` is null or a handle that was not freed.
unsafe fn locked<'a>(cache: *const DealtCache) -> Result<MutexGuard<'a, Box<dyn Dealt>>> {
    // SAFETY: the caller's promise.
    let cache = unsafe { handle("cache", cache) }?;
    // After a panic the cache is whole, as between two calls.
    Ok(cache.cache.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A cache of some element type.
trait Dealt: Send {
    fn allocate(&mut self) -> i64;
    fn release(&mut self, sequence: i64) -> Result<()>;
    fn rows(&self, sequence: i64) -> Result<usize>;
    fn step(&mut self, sequences: &[i64], rows: &[i64]) -> Result<()>;
    /// # Safety
    /// As [`warptile_dealt_cache_append`].
    unsafe fn append(&mut self, layer: usize, kv: [*const c_void; 2]) -> Result<()>;
    /// # Safety
    /// As [`warptile_dealt_cache_attend`].
    unsafe fn attend(
        &self,
        layer: usize,
        desc: AttentionDesc,
        memory: &AttentionMemory,
    ) -> Result<()>;
}

struct Typed<T: Element> {
    ranks: &'static Ranks,
    cache: ShardedCache<'static, T>,
    kv_heads: usize,
    /// Head sizes of keys and of values.
    dims: [usize; 2],
    sequences: BTreeMap<i64, SequenceId>,
    next: i64,
    /// Sequences and rows of the step, if one has begun.
    step: Option<[usize; 2]>,
}

impl<T: Element> Typed<T> {
    fn new(ranks: &'static Ranks, desc: &DealtCacheDesc) -> Result<Self> {
        let number = |name: &str, value, default| {
            Ok::<_, Failure>(match count(name, value)? {
                0 => default,
                given => given,
            })
        };
        let (kv_heads, dim) = (
            count("kv_heads", desc.kv_heads)?,
            count("head_size", desc.head_size)?,
        );
        let dims = [dim, number("value_size", desc.value_size, dim)?];
        let builder = KvCache::<T>::of_heads(Heads::new(kv_heads, dim).with_dims(dims))
            .pages(number("pages", desc.pages, 256)?)
            .page_rows(number("page_rows", desc.page_rows.into(), 16)?)
            .layers(number("layers", desc.layers, 1)?)
            .sequences(number("sequences", desc.sequences, 1)?);
        check_idle(ranks)?;
        Ok(Typed {
            ranks,
            cache: ranks.cache(&builder)?,
            kv_heads,
            dims,
            sequences: BTreeMap::new(),
            next: 0,
            step: None,
        })
    }

    fn known(&self, argument: &str, sequence: i64) -> Result<SequenceId> {
        let known = self.sequences.get(&sequence).copied();
        known.ok_or_else(|| {
            Failure::of(
                argument,
                format!("is {sequence}, which is no sequence of the cache"),
            )
        })
    }

    /// Sequences and rows of the step.
    fn begun(&self) -> Result<[usize; 2]> {
        self.step.ok_or_else(|| {
            let rule = "has no step: warptile_dealt_cache_step must succeed first";
            Failure::of("cache", rule)
        })
    }

    /// Looks at memory of the first rank.
    fn check(&self, argument: &str, pointer: *const c_void, layout: &Layout) -> Result<()> {
        let (rank, home) = (self.ranks.local_ranks().start, &self.ranks.backends()[0]);
        match layout.reach() {
            0 => Ok(()),
            _ => check(argument, rank, home, pointer, size_of::<T>()),
        }
    }
}

impl<T: Element> Dealt for Typed<T> {
    fn allocate(&mut self) -> i64 {
        let number = self.next;
        self.next += 1;
        self.sequences.insert(number, self.cache.allocate());
        number
    }

    fn release(&mut self, sequence: i64) -> Result<()> {
        let known = self.known("sequence", sequence)?;
        self.sequences.remove(&sequence);
        Ok(self.cache.free(known)?)
    }

    fn rows(&self, sequence: i64) -> Result<usize> {
        let known = self.known("sequence", sequence)?;
        Ok(self.cache.len(known).unwrap_or(0))
    }

    fn step(&mut self, sequences: &[i64], rows: &[i64]) -> Result<()> {
        let pairs = sequences.iter().zip(rows).enumerate();
        let pairs = pairs.map(|(at, (sequence, rows))| {
            let sequence = self.known(&format!("sequences[{at}]"), *sequence)?;
            Ok((sequence, count(&format!("rows[{at}]"), *rows)?))
        });
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        check_idle(self.ranks)?;
        self.step = None;
        self.cache.step(&pairs)?;
        self.step = Some([pairs.len(), pairs.iter().map(|(_, rows)| rows).sum()]);
        Ok(())
    }

    unsafe fn append(&mut self, layer: usize, kv: [*const c_void; 2]) -> Result<()> {
        let [_, rows] = self.begun()?;
        let layouts = self
            .dims
            .map(|dim| Layout::bshd([1, rows, self.kv_heads, dim]));
        for ((name, pointer), layout) in ["k", "v"].into_iter().zip(kv).zip(&layouts) {
            self.check(name, pointer, layout)?;
        }
        check_idle(self.ranks)?;
        let home = &self.ranks.backends()[0];
        // SAFETY: the caller's promise.
        let [k, v] = [0, 1].map(|at| unsafe { take::<T>(home, kv[at], layouts[at]) });
        Ok(self.cache.append(layer, &k?, &v?)?)
    }

    unsafe fn attend(
        &self,
        layer: usize,
        mut desc: AttentionDesc,
        memory: &AttentionMemory,
    ) -> Result<()> {
        let [sequences, _] = self.begun()?;
        let found = desc.q.shape[0];
        if found != sequences as i64 {
            let rule = format!("has batch {found}, but the step has {sequences} sequences");
            return Err(Failure::of("q", rule));
        }
        let keys = |dim| StructLayout {
            shape: [sequences, 1, self.kv_heads, dim].map(|extent| extent as i64),
            strides: [0; 4],
        };
        [desc.k, desc.v] = self.dims.map(keys);
        desc.want_lse = 1;
        // SAFETY: the caller's promise.
        let of = unsafe { Described::of(&desc) }?;
        if of.call.element() != T::TYPE {
            let rule = format!("is {}, but the cache has {}", of.call.element(), T::TYPE);
            return Err(Failure::of("element", rule));
        }
        let (q, out) = (memory.q, memory.out);
        self.check("q", q, of.call.q())?;
        self.check("out", out, of.call.out())?;
        check_idle(self.ranks)?;
        // SAFETY: the caller's promise.
        let attention = unsafe { of.attention(memory) }?;
        let home = &self.ranks.backends()[0];
        // SAFETY: the caller's promise.
        let q = unsafe { take::<T>(home, q, *of.call.q()) }?;
        let (found, _) = self.cache.attend(layer, &attention, &q)?;
        // SAFETY: the caller's promise.
        unsafe { give(&found, home, out) }
    }
}

impl fmt::Debug for DealtCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DealtCache").finish_non_exhaustive()
    }
}
