//! Attention: its description, its memory, and the handle that a description is prepared to.

use std::ffi::{c_char, c_void};

use attention::gpu::{Addresses, Prepared};
use attention::{
    AlibiShape, Align, Call, CallBuilder, Choice, Element, ElementType, Layout as Checked, Mask,
    Operands, Scoring, Splits, TableLayout, View, ViewMut, forward_cpu,
};
use half::{bf16, f16};

use crate::error::{Failure, Result, guarded};
use crate::host::{Part, check_apart};
use crate::machine::{OnGpu, no_stream};
use crate::structs::{Layout, Versioned, address, check_pointer, count, element, flag, name, read};

/// A query sees every key.
pub const WARPTILE_MASK_NONE: u32 = 0;
/// A query sees no key after itself; the last query is aligned with the last key.
pub const WARPTILE_MASK_CAUSAL: u32 = 1;
/// A query sees no key after itself; the first query is aligned with the first key.
pub const WARPTILE_MASK_CAUSAL_TOP_LEFT: u32 = 2;
/// A query sees window_left keys before and window_right keys after the key aligned with it; the last query is aligned with the
/// last key. A negative number is no limit.
pub const WARPTILE_MASK_WINDOW: u32 = 3;

/// No slopes.
pub const WARPTILE_ALIBI_NONE: u32 = 0;
/// One slope for each query head.
pub const WARPTILE_ALIBI_PER_HEAD: u32 = 1;
/// One slope for each batch entry and query head, heads contiguous.
pub const WARPTILE_ALIBI_PER_BATCH_HEAD: u32 = 2;

/// What is computed: `softmax(scale * q kT) v`, with the options. Fill the struct with zeros, then set `size`, `element`, `q`, `k` and
/// `v`: zero is the default of all other fields.
///
/// For each batch entry and head, with the key/value head `h / (heads / kv_heads)`: `score = scale * q.k`, then
/// `softcap * tanh(score / softcap)`, then `- slope * distance` from the aligned key, then `+ bias`, then the masks. A query that sees no
/// key gives 0, and -infinity for its lse.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AttentionDesc {
    /// `sizeof(warptile_attention_desc)`.
    pub size: usize,
    /// Element type of q, k, v, out and bias: WARPTILE_F16, WARPTILE_BF16 or WARPTILE_F32.
    pub element: u32,
    /// WARPTILE_MASK_NONE, and so on.
    pub mask: u32,
    /// Queries.
    pub q: Layout,
    /// Keys. Their heads must divide those of q. With a block table: pages, rows of a page, heads, head size.
    pub k: Layout,
    /// Values, of the shape of k.
    pub v: Layout,
    /// Output, of the shape of q. Not given: dense, in the order in which q is stored.
    pub out: Layout,
    /// Added to the scores: batch, queries, heads, keys, each 1 for all. Not given: none.
    pub bias: Layout,
    /// Hides keys where its byte is 0; shape as that of bias. Not given: none.
    pub key_mask: Layout,
    /// Keys before the diagonal that a query sees, for WARPTILE_MASK_WINDOW.
    pub window_left: i64,
    /// Keys after the diagonal that a query sees, for WARPTILE_MASK_WINDOW.
    pub window_right: i64,
    /// Factor of the scores, if `scale_given` is 1; else it is 1 / sqrt(head size).
    pub scale: f32,
    /// 0 or 1.
    pub scale_given: u32,
    /// Bounds the scores: `softcap * tanh(score / softcap)`. 0: no bound.
    pub softcap: f32,
    /// WARPTILE_ALIBI_NONE, and so on.
    pub alibi: u32,
    /// 1: every query head has a sink, a logit that joins the denominator of its rows.
    pub sinks: u32,
    /// 1: the log-sum-exp of every row is written, too.
    pub want_lse: u32,
    /// 1: the queries of the sequences lie one after the other in a q whose batch extent is 1, and query_offsets says where.
    pub packed_queries: u32,
    /// 1: likewise of keys and values, and key_offsets.
    pub packed_keys: u32,
    /// 1: query_lengths says how many queries of each sequence exist.
    pub query_lengths: u32,
    /// 1: key_lengths says how many keys of each sequence exist.
    pub key_lengths: u32,
    /// Sequences of packed queries. Else 0, or the batch extent of q.
    pub sequences: i64,
    /// No sequence has more queries. 0: as many as q has rows. Only with packed_queries. A bound near to the truth lets a GPU do less;
    /// it cuts off what is longer.
    pub longest_query: i64,
    /// No sequence has more keys. 0: as many as there can be. Only with packed_keys or key_lengths.
    pub longest_key: i64,
    /// Columns of the block table: the most pages of a sequence. 0: k and v are not in pages.
    pub table_columns: i64,
    /// Entries from one row of the block table to the next. 0: as many as there are columns.
    pub table_stride: i64,
    /// Cuts keys at every multiple of this number, a power of two from 256 on, so that a sequence's bits are the same in every batch.
    /// 0: where it is fastest.
    pub split_keys: u32,
    /// 1: on a GPU q, k, v and out may start at any address that is a multiple of their elements' size. 0: they start at multiples of
    /// 16 bytes, which more kernels take. The CPU takes both.
    pub unaligned_addresses: u32,
    /// Name of the kernel or kernel family to be used on a GPU. Null: the fastest.
    pub kernel: *const c_char,
    /// 1: warptile_attention_run makes the launch and nothing else: one call of the driver, and one more for each tensor that the kernel
    /// reads through a tensor map. The caller sees to it that the device's primary context is current on the thread, that the stream is of
    /// it, and that all addresses are of memory that the device can use. 0: it looks, and makes the context current for the time of the call.
    pub unchecked: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers and raw pointers, the size first, without padding.
unsafe impl Versioned for AttentionDesc {
    const LEAST: usize = std::mem::offset_of!(AttentionDesc, out);
}

/// The memory of one call: on a GPU addresses of device memory, on the CPU pointers. Null is "not given": exactly what the description
/// asks for must be given.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AttentionMemory {
    /// `sizeof(warptile_attention_memory)`.
    pub size: usize,
    /// Queries.
    pub q: *const c_void,
    /// Keys.
    pub k: *const c_void,
    /// Values.
    pub v: *const c_void,
    /// Receives the output. Gaps between its rows, and rows that no sequence has, are left alone.
    pub out: *mut c_void,
    /// Receives the log-sum-exp, natural: [batch, heads, length] without gaps, or [heads, rows] for packed queries.
    pub lse: *mut f32,
    /// Where each sequence begins among the rows of q, and where the last one ends: sequences + 1 numbers.
    pub query_offsets: *const i32,
    /// The same of k and v.
    pub key_offsets: *const i32,
    /// Queries of each sequence.
    pub query_lengths: *const i32,
    /// Keys of each sequence.
    pub key_lengths: *const i32,
    /// For each sequence the numbers of its pages, in order.
    pub block_table: *const i32,
    /// ALiBi slopes.
    pub alibi_slopes: *const f32,
    /// Sinks, one for each query head.
    pub sinks: *const f32,
    /// The bias, of the tensors' element type.
    pub bias: *const c_void,
    /// The key mask; 0 hides.
    pub key_mask: *const u8,
    /// Device memory of warptile_attention_workspace bytes, at a multiple of 256. Fill it with zeros once, before its first use: every
    /// launch leaves zeros where they count. No two launches that may run at the same time share one; a captured graph has one of its
    /// own. Null if no bytes are needed.
    pub workspace: *mut c_void,
    /// Bytes there.
    pub workspace_bytes: usize,
}

// SAFETY: as above.
unsafe impl Versioned for AttentionMemory {
    const LEAST: usize = std::mem::offset_of!(AttentionMemory, lse);
}

/// A description that was checked and prepared for a device. It never changes: any number of threads may use it at the same time.
#[derive(Debug)]
pub struct Attention {
    /// The lists of a call on the CPU are read at each run, so the call is built anew.
    description: Description,
    call: Call,
    /// `None` on the CPU.
    on: Option<OnGpu<Prepared>>,
}

/// What a description says, in Rust's types.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    element: ElementType,
    tensors: [Checked; 3],
    out: Option<Checked>,
    bias: Option<Checked>,
    key_mask: Option<Checked>,
    scoring: Scoring,
    want_lse: bool,
    packed_queries: bool,
    packed_keys: bool,
    query_lengths: bool,
    key_lengths: bool,
    sequences: usize,
    longest_query: Option<usize>,
    longest_key: Option<usize>,
    table: Option<TableLayout>,
    splits: Splits,
    aligned: bool,
    pub(crate) choice: Choice,
    unchecked: bool,
}

/// The lists of a call on the CPU; each there if the description has it.
#[derive(Debug, Clone, Copy, Default)]
struct Lists<'a> {
    query_offsets: &'a [i32],
    key_offsets: &'a [i32],
    query_lengths: &'a [i32],
    key_lengths: &'a [i32],
    block_table: &'a [i32],
}

impl Description {
    /// # Safety
    /// `desc` is null or points to as many bytes as its size says; its `kernel` is null or a string.
    pub(crate) unsafe fn read(desc: *const AttentionDesc) -> Result<Self> {
        // SAFETY: the caller's promise.
        let desc = unsafe { read("desc", desc) }?;
        if desc.reserved != 0 {
            return Err(Failure::of("reserved", "must be 0"));
        }
        let q = desc.q.required("q")?;
        let packed_queries = flag("packed_queries", desc.packed_queries)?;
        let packed_keys = flag("packed_keys", desc.packed_keys)?;
        let key_lengths = flag("key_lengths", desc.key_lengths)?;
        let sequences = match (packed_queries, count("sequences", desc.sequences)?) {
            (true, given) => given,
            (false, given) if given == 0 || given == q.batch() => q.batch(),
            (false, given) => {
                return Err(Failure::of(
                    "sequences",
                    format!(
                        "is {given}, but q has batch {} and packed_queries is 0",
                        q.batch()
                    ),
                ));
            }
        };
        let longest = |argument, value, allowed: bool, needs: &str| match count(argument, value)? {
            0 => Ok(None),
            _ if !allowed => Err(Failure::of(argument, format!("is given, but {needs}"))),
            longest => Ok(Some(longest)),
        };
        // SAFETY: the caller's promise.
        let kernel = unsafe { name("kernel", desc.kernel) }?;
        Ok(Description {
            element: element(desc.element)?,
            tensors: [q, desc.k.required("k")?, desc.v.required("v")?],
            out: desc.out.given("out")?,
            bias: desc.bias.given("bias")?,
            key_mask: desc.key_mask.given("key_mask")?,
            scoring: scoring(&desc)?,
            want_lse: flag("want_lse", desc.want_lse)?,
            packed_queries,
            packed_keys,
            query_lengths: flag("query_lengths", desc.query_lengths)?,
            key_lengths,
            sequences,
            longest_query: longest(
                "longest_query",
                desc.longest_query,
                packed_queries,
                "packed_queries is 0",
            )?,
            longest_key: longest(
                "longest_key",
                desc.longest_key,
                packed_keys || key_lengths,
                "packed_keys and key_lengths are 0",
            )?,
            table: table(&desc, sequences)?,
            splits: match desc.split_keys {
                0 => Splits::Even,
                keys => Splits::EveryKeys(keys),
            },
            aligned: !flag("unaligned_addresses", desc.unaligned_addresses)?,
            choice: match kernel {
                Some(name) => name.parse().unwrap_or_default(),
                None => Choice::Best,
            },
            unchecked: flag("unchecked", desc.unchecked)?,
        })
    }

    /// What does not depend on where the lists are.
    fn builder<'a>(&self) -> CallBuilder<'a> {
        let [q, k, v] = &self.tensors;
        let mut builder = Call::builder(q, k, v, self.element)
            .scoring(self.scoring)
            .splits(self.splits)
            .want_lse(self.want_lse);
        if let Some(out) = self.out {
            builder = builder.out(out);
        }
        if let Some(bias) = self.bias {
            builder = builder.bias(bias);
        }
        if let Some(key_mask) = self.key_mask {
            builder = builder.key_mask(key_mask);
        }
        match self.aligned {
            true => builder,
            false => builder.unaligned_addresses(),
        }
    }

    /// The call whose lists are in device memory, or not known yet.
    pub(crate) fn call(&self) -> Result<Call> {
        let [q, k, _] = &self.tensors;
        let sequences = self.sequences;
        let mut builder = self.builder();
        if self.packed_queries {
            let longest = self.longest_query.unwrap_or(q.rows());
            builder = builder.device_query_offsets(sequences, longest);
        }
        if self.packed_keys {
            let longest = self.longest_key.unwrap_or(k.rows());
            builder = builder.device_key_offsets(sequences, longest);
        }
        if self.query_lengths {
            builder = builder.device_query_lengths(sequences);
        }
        if self.key_lengths {
            builder = builder.device_key_lengths(sequences);
            if let Some(longest) = self.longest_key {
                builder = builder.longest_keys(longest);
            }
        }
        if let Some(table) = self.table {
            builder = builder.device_block_table(table);
        }
        Ok(builder.build()?)
    }

    /// The call with its lists.
    fn call_on_host(&self, lists: &Lists<'_>) -> Result<Call> {
        let mut builder = self.builder();
        if self.packed_queries {
            builder = builder.packed_queries(lists.query_offsets);
        }
        if self.packed_keys {
            builder = builder.packed_keys(lists.key_offsets);
        }
        if self.query_lengths {
            builder = builder.query_lengths(lists.query_lengths);
        }
        if self.key_lengths {
            builder = builder.key_lengths(lists.key_lengths);
        }
        if let Some(table) = self.table {
            builder = builder.block_table(lists.block_table, table);
        }
        Ok(builder.build()?)
    }

    /// The lists of a call on the CPU.
    ///
    /// # Safety
    /// Each is null or points to as many numbers as the description says, which nobody writes for as long as `'a`.
    unsafe fn lists<'a>(&self, memory: &AttentionMemory) -> Result<Lists<'a>> {
        let list = |name, wanted, pointer: *const i32, len| -> Result<&'a [i32]> {
            // SAFETY: the caller's promise.
            unsafe { list_on_host(name, wanted, pointer, len) }.map(Option::unwrap_or_default)
        };
        let (sequences, ends) = (self.sequences, self.sequences.saturating_add(1));
        let entries = self.table.map_or(0, |table| {
            let [sequences, columns] = table.shape;
            let rows = sequences.saturating_sub(1);
            rows.saturating_mul(table.row_stride)
                .saturating_add(columns)
        });
        Ok(Lists {
            query_offsets: list(
                "query_offsets",
                self.packed_queries,
                memory.query_offsets,
                ends,
            )?,
            key_offsets: list("key_offsets", self.packed_keys, memory.key_offsets, ends)?,
            query_lengths: list(
                "query_lengths",
                self.query_lengths,
                memory.query_lengths,
                sequences,
            )?,
            key_lengths: list(
                "key_lengths",
                self.key_lengths,
                memory.key_lengths,
                sequences,
            )?,
            block_table: list(
                "block_table",
                self.table.is_some(),
                memory.block_table,
                entries,
            )?,
        })
    }
}

/// A list that is given exactly if it is wanted.
///
/// # Safety
/// The pointer is null or points to `len` values, which nobody writes for as long as `'a`.
pub(crate) unsafe fn list_on_host<'a, T>(
    name: &'static str,
    wanted: bool,
    pointer: *const T,
    len: usize,
) -> Result<Option<&'a [T]>> {
    match (wanted, pointer.is_null()) {
        (false, true) => Ok(None),
        (false, false) => Err(Failure::of(
            name,
            "is given, but the call was built without it",
        )),
        // SAFETY: the caller's promise.
        (true, _) => Ok(Some(unsafe { Part::of(name, pointer, len)?.slice() })),
    }
}

fn scoring(desc: &AttentionDesc) -> Result<Scoring> {
    let side = |argument, keys: i64| match u32::try_from(keys) {
        Ok(keys) => Ok(Some(keys)),
        Err(_) if keys < 0 => Ok(None),
        Err(_) => Err(Failure::of(
            argument,
            format!("is {keys}; the limit is {}", u32::MAX),
        )),
    };
    let mask = match desc.mask {
        WARPTILE_MASK_NONE => Mask::None,
        WARPTILE_MASK_CAUSAL => Mask::causal(),
        WARPTILE_MASK_CAUSAL_TOP_LEFT => Mask::Causal {
            align: Align::TopLeft,
        },
        WARPTILE_MASK_WINDOW => Mask::window(
            side("window_left", desc.window_left)?,
            side("window_right", desc.window_right)?,
        ),
        other => {
            return Err(Failure::of(
                "mask",
                format!("is {other}, which is none of WARPTILE_MASK_..."),
            ));
        }
    };
    let mut scoring = Scoring::new().mask(mask);
    scoring.scale = flag("scale_given", desc.scale_given)?.then_some(desc.scale);
    scoring.softcap = (desc.softcap != 0.0).then_some(desc.softcap);
    scoring.alibi = match desc.alibi {
        WARPTILE_ALIBI_NONE => None,
        WARPTILE_ALIBI_PER_HEAD => Some(AlibiShape::PerHead),
        WARPTILE_ALIBI_PER_BATCH_HEAD => Some(AlibiShape::PerBatchHead),
        other => {
            return Err(Failure::of(
                "alibi",
                format!("is {other}, which is none of WARPTILE_ALIBI_..."),
            ));
        }
    };
    scoring.sinks = flag("sinks", desc.sinks)?;
    scoring.bias = desc.bias.given("bias")?.is_some();
    scoring.key_mask = desc.key_mask.given("key_mask")?.is_some();
    Ok(scoring)
}

fn table(desc: &AttentionDesc, sequences: usize) -> Result<Option<TableLayout>> {
    let columns = count("table_columns", desc.table_columns)?;
    let stride = count("table_stride", desc.table_stride)?;
    match (columns, stride) {
        (0, 0) => Ok(None),
        (0, _) => Err(Failure::of(
            "table_stride",
            "is given, but table_columns is 0",
        )),
        (_, 0) => Ok(Some(TableLayout::from([sequences, columns]))),
        (_, stride) => Ok(Some(TableLayout::new([sequences, columns], stride))),
    }
}

/// Checks a description and prepares it for a device: plans, and loads the kernel if nobody has yet, which may take long. Gives a handle,
/// to be freed with warptile_attention_free.
///
/// `device` is the number of a GPU, or WARPTILE_CPU. A GPU is opened the first time, in its primary context, and stays open. A
/// description like one of the last 64 is found again without planning.
///
/// Returns WARPTILE_INVALID if the description breaks a rule, WARPTILE_NO_KERNEL if no kernel of the device can do it.
///
/// # Safety
/// `desc` is null, which is an error, or valid for reading `desc->size` bytes; `desc->kernel` is null or ends with a NUL. `attention`
/// is null, which is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_attention_prepare(
    device: i32,
    desc: *const AttentionDesc,
    attention: *mut *mut Attention,
) -> i32 {
    guarded(|| {
        check_pointer("attention", attention, align_of::<*mut Attention>())?;
        // SAFETY: the caller's promise.
        let description = unsafe { Description::read(desc) }?;
        let call = description.call()?;
        let choice = &description.choice;
        let on = OnGpu::load(device, description.unchecked, |gpu| {
            gpu.prepare(call.problem(), choice)
        })?;
        if on.is_none() {
            check_choice(choice)?;
        }
        let made = Box::into_raw(Box::new(Attention {
            description,
            call,
            on,
        }));
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { attention.write(made) };
        Ok(())
    })
}

/// On the CPU there is one way.
pub(crate) fn check_choice(choice: &Choice) -> Result<()> {
    match choice {
        Choice::Best => Ok(()),
        Choice::Kernel(name) if name == "cpu" => Ok(()),
        other => Err(attention::Error::GpuKernelOnCpu {
            name: other.to_string(),
        }
        .into()),
    }
}

/// Bytes of device memory that every launch of the handle needs beside its tensors; 0 on the CPU and for many kernels.
///
/// # Safety
/// `attention` is null, which gives 0, or a handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_attention_workspace(attention: *const Attention) -> usize {
    // SAFETY: the caller's promise.
    let on = unsafe { attention.as_ref() }.and_then(|attention| attention.on.as_ref());
    on.map_or(0, |on| on.prepared.plan().scratch().bytes)
}

/// Computes.
///
/// On a GPU: submits the kernel to `stream`, a CUstream or cudaStream_t of the device's primary context, and returns. Null is the legacy
/// default stream. It allocates, copies, waits for and loads nothing, so it may be part of anybody's capture; a replay reads lengths,
/// offsets and tables anew. On the CPU: `stream` is null, and the result is there on return, computed by as many threads as there are
/// cores.
///
/// Lists that a GPU reads are not checked: the kernels clamp what they find. On the CPU they are.
///
/// # Safety
/// - `attention` is null, which is an error, or a handle that was not freed. `memory` is null, which is an error, or valid for reading
///   `memory->size` bytes.
/// - Each address reaches as far as the description says. It stays valid until the work, and every replay of a graph that captured
///   it, has ended. Meanwhile nobody writes what is read, or touches what is written; on the CPU, gaps between the rows of `out` count
///   as written.
/// - On a GPU, `stream` is a live stream. The kernels of a handle stay after it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_attention_run(
    attention: *const Attention,
    memory: *const AttentionMemory,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let attention =
            unsafe { attention.as_ref() }.ok_or_else(|| Failure::of("attention", "is null"))?;
        // SAFETY: the caller's promise.
        let memory = unsafe { read("memory", memory) }?;
        let Some(on) = &attention.on else {
            no_stream(stream)?;
            if !memory.workspace.is_null() || memory.workspace_bytes != 0 {
                return Err(Failure::of("workspace", "is given, but the CPU needs none"));
            }
            let run = match attention.call.element() {
                ElementType::F16 => run_on_cpu::<f16>,
                ElementType::Bf16 => run_on_cpu::<bf16>,
                _ => run_on_cpu::<f32>,
            };
            // SAFETY: the caller's promise.
            return unsafe { run(&attention.description, &memory) };
        };
        let needed = on.prepared.plan().scratch().bytes;
        if memory.workspace_bytes < needed {
            return Err(Failure::of(
                "workspace_bytes",
                format!(
                    "is {}, but {needed} are needed: ask warptile_attention_workspace",
                    memory.workspace_bytes
                ),
            ));
        }
        let (addresses, named) = addresses(&memory);
        let workspace = address(memory.workspace);
        on.launch(stream, &named, |stream| {
            // SAFETY: the context is current and the stream is of it: `launch` has seen to it, or the caller has. The rest is the caller's
            // promise; the workspace is large enough for the plan. Kernels and GPU stay for ever.
            unsafe {
                on.prepared
                    .launch_raw(stream, &attention.call, &addresses, workspace)
            }
        })
    })
}

/// Frees a handle. Work that it has submitted goes on, and graphs that captured it may be replayed.
///
/// # Safety
/// `attention` is null, or a handle that was not freed and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_attention_free(attention: *mut Attention) {
    if attention.is_null() {
        return;
    }
    guarded(|| {
        // SAFETY: made by `warptile_attention_prepare`, and freed once by the caller's promise.
        drop(unsafe { Box::from_raw(attention) });
        Ok(())
    });
}

/// The addresses of a launch, and all of them by name.
fn addresses(memory: &AttentionMemory) -> (Addresses, [(&'static str, u64); 15]) {
    let mut to = Addresses::default();
    to.q = address(memory.q);
    to.k = address(memory.k);
    to.v = address(memory.v);
    to.out = address(memory.out);
    to.lse = address(memory.lse);
    to.query_offsets = address(memory.query_offsets);
    to.key_offsets = address(memory.key_offsets);
    to.query_lengths = address(memory.query_lengths);
    to.key_lengths = address(memory.key_lengths);
    to.slopes = address(memory.alibi_slopes);
    to.sinks = address(memory.sinks);
    to.bias = address(memory.bias);
    to.key_mask = address(memory.key_mask);
    to.block_table = address(memory.block_table);
    let named = [
        ("q", to.q),
        ("k", to.k),
        ("v", to.v),
        ("out", to.out),
        ("lse", to.lse),
        ("query_offsets", to.query_offsets),
        ("key_offsets", to.key_offsets),
        ("query_lengths", to.query_lengths),
        ("key_lengths", to.key_lengths),
        ("alibi_slopes", to.slopes),
        ("sinks", to.sinks),
        ("bias", to.bias),
        ("key_mask", to.key_mask),
        ("block_table", to.block_table),
        ("workspace", address(memory.workspace)),
    ];
    (to, named)
}

/// # Safety
/// As [`warptile_attention_run`] on the CPU.
unsafe fn run_on_cpu<T: Element>(
    description: &Description,
    memory: &AttentionMemory,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let lists = unsafe { description.lists(memory) }?;
    let call = description.call_on_host(&lists)?;
    let q = Part::<T>::tensor("q", memory.q.cast(), call.q())?;
    let k = Part::<T>::tensor("k", memory.k.cast(), call.k())?;
    let v = Part::<T>::tensor("v", memory.v.cast(), call.v())?;
    let out = Part::<T>::tensor("out", memory.out.cast_const().cast(), call.out())?;
    let scoring = call.scoring();
    let slopes = scoring.slope_count(call.batch(), call.heads());
    let score_tensor = |layout: Option<&Checked>| layout.map_or(Some(0), Checked::required_len);
    let too_large = |name| Failure::of(name, "is larger than memory");
    let bias_len = score_tensor(call.bias()).ok_or_else(|| too_large("bias"))?;
    let mask_len = score_tensor(call.key_mask()).ok_or_else(|| too_large("key_mask"))?;
    let mut operands = Operands::none();
    // SAFETY: the caller's promise.
    unsafe {
        operands.slopes = list_on_host(
            "alibi_slopes",
            scoring.alibi.is_some(),
            memory.alibi_slopes,
            slopes,
        )?;
        operands.sinks = list_on_host("sinks", scoring.sinks, memory.sinks, call.heads())?;
        operands.bias = list_on_host("bias", scoring.bias, memory.bias.cast::<T>(), bias_len)?;
        operands.key_mask = list_on_host("key_mask", scoring.key_mask, memory.key_mask, mask_len)?;
    }
    if !call.wants_lse() && !memory.lse.is_null() {
        return Err(Failure::of("lse", "is given, but want_lse is 0"));
    }
    let lse_len = if call.wants_lse() { call.lse_len() } else { 0 };
    let lse = Part::of("lse", memory.lse.cast_const(), lse_len)?;
    let beside = |name, pointer: *const u8, bytes| Part::of(name, pointer, bytes);
    let inputs = [
        q.place(),
        k.place(),
        v.place(),
        beside("bias", memory.bias.cast(), bias_len * size_of::<T>())?.place(),
        beside("key_mask", memory.key_mask, mask_len)?.place(),
        beside("alibi_slopes", memory.alibi_slopes.cast(), 4 * slopes)?.place(),
        beside(
            "sinks",
            memory.sinks.cast(),
            if scoring.sinks { 4 * call.heads() } else { 0 },
        )?
        .place(),
    ];
    check_apart(&[out.place(), lse.place()], &inputs)?;
    // SAFETY: the caller's promise; any bits are a value of `T`, and outputs overlap nothing. The call has its own copies of the
    // lists.
    unsafe {
        let (q, k, v) = (q.slice(), k.slice(), v.slice());
        let lse = call.wants_lse().then(|| lse.slice_mut());
        forward_cpu(
            &call,
            View::new(q, *call.q()),
            View::new(k, *call.k()),
            View::new(v, *call.v()),
            &operands,
            ViewMut::new(out.slice_mut(), *call.out()),
            lse,
        )?;
    }
    Ok(())
}
