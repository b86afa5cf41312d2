//! Results over disjoint keys, merged.

use std::ffi::c_void;

use attention::cpu::raw::{self, HostMemory};
use attention::gpu::{Addresses, Prepared};
use attention::spec::{LseBase, Merge as Description};
use attention::{ElementType, Layout as Checked};

use crate::error::{Failure, Result, guarded};
use crate::host::elements;
use crate::machine::{OnGpu, no_stream};
use crate::structs::{
    Layout, Versioned, address, check_pointer, element, flag, free, give, handle, read, reserved,
};

/// The most parts of a merge. For more, merge the results of merges.
pub const WARPTILE_MERGE_PARTS: usize = 32;

/// Attention over disjoint sets of keys, merged into attention over all of them: `parts` outputs and lse of the same queries. Fill the
/// struct with zeros, then set `size`, `element`, `parts` and `part_layouts`.
///
/// A part whose lse is -infinity (or +infinity) saw no key in that row and contributes nothing.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MergeDesc {
    /// `sizeof(warptile_merge_desc)`.
    pub size: usize,
    /// Element type of all outputs.
    pub element: u32,
    /// How many parts, at most WARPTILE_MERGE_PARTS.
    pub parts: u32,
    /// Layouts of the parts' outputs, all of one shape: `parts` of them.
    pub part_layouts: *const Layout,
    /// Merged output. Not given: dense, in the order in which the first part is stored.
    pub out: Layout,
    /// 1: the merged lse is written, too.
    pub want_lse: u32,
    /// 1: every lse is a logarithm to base 2, as FlashInfer's are. 0: natural.
    pub base_two: u32,
    /// As in warptile_attention_desc.
    pub unchecked: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers and raw pointers, the size first, without padding.
unsafe impl Versioned for MergeDesc {
    const LEAST: usize = std::mem::offset_of!(MergeDesc, out);
}

/// A part's memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MergePart {
    /// Its output.
    pub out: *const c_void,
    /// Its lse: [batch, heads, length] without gaps.
    pub lse: *const f32,
}

/// The memory of one merge: on a GPU addresses of device memory, on the CPU pointers.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MergeMemory {
    /// `sizeof(warptile_merge_memory)`.
    pub size: usize,
    /// As many as the description has parts. The array itself is in host memory, and not needed after the call.
    pub parts: *const MergePart,
    /// Receives the output.
    pub out: *mut c_void,
    /// Receives the lse, [batch, heads, length] without gaps; null unless it is wanted.
    pub lse: *mut f32,
}

// SAFETY: as above.
unsafe impl Versioned for MergeMemory {
    const LEAST: usize = std::mem::offset_of!(MergeMemory, lse);
}

/// A merge that was checked and prepared for a device. It never changes: any number of threads may use it at the same time.
#[derive(Debug)]
pub struct Merge {
    description: Description,
    /// `None` on the CPU.
    on: Option<OnGpu<Prepared<Description>>>,
}

/// Checks a merge and prepares it for a device, as warptile_attention_prepare does. The handle is freed with warptile_merge_free.
///
/// # Safety
/// `desc` is null, which is an error, or valid for reading `desc->size` bytes, and `part_layouts` for reading `parts` layouts. `merge` is
/// null, which is an error, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_merge_prepare(
    device: i32,
    desc: *const MergeDesc,
    merge: *mut *mut Merge,
) -> i32 {
    guarded(|| {
        check_pointer("merge", merge, align_of::<*mut Merge>())?;
        // SAFETY: the caller's promise.
        let desc = unsafe { read("desc", desc) }?;
        reserved(desc.reserved)?;
        let unchecked = flag("unchecked", desc.unchecked)?;
        // SAFETY: the caller's promise.
        let description = unsafe { describe(&desc) }?;
        let on = OnGpu::load(device, unchecked, |gpu| {
            gpu.prepare_merge(description.element())
        })?;
        // SAFETY: not null, aligned, and valid by the caller's promise.
        unsafe { give(merge, Merge { description, on }) };
        Ok(())
    })
}

/// # Safety
/// `desc.part_layouts` is valid for reading `desc.parts` layouts.
unsafe fn describe(desc: &MergeDesc) -> Result<Description> {
    let element = element(desc.element)?;
    let parts = desc.parts as usize;
    if !(1..=WARPTILE_MERGE_PARTS).contains(&parts) {
        return Err(Failure::of(
            "parts",
            format!("is {parts}, but must be 1 to {WARPTILE_MERGE_PARTS}"),
        ));
    }
    // SAFETY: the caller's promise.
    let given: &[Layout] = unsafe { elements("part_layouts", desc.part_layouts, parts)?.slice() };
    let mut layouts: Vec<Checked> = Vec::with_capacity(parts);
    for (index, layout) in given.iter().enumerate() {
        layouts.push(layout.required(&format!("part_layouts[{index}]"))?);
    }
    let mut builder = Description::builder(element, &layouts)
        .want_lse(flag("want_lse", desc.want_lse)?)
        .base(match flag("base_two", desc.base_two)? {
            true => LseBase::Two,
            false => LseBase::Natural,
        });
    if let Some(out) = desc.out.given("out")? {
        builder = builder.out(out);
    }
    Ok(builder.build()?)
}

/// Merges: streams, captures and the CPU as with warptile_attention_run.
///
/// # Safety
/// As warptile_attention_run; `memory->parts` is valid for reading as many parts as the description has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_merge_run(
    merge: *const Merge,
    memory: *const MergeMemory,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let merge = unsafe { handle("merge", merge) }?;
        // SAFETY: the caller's promise.
        let memory = unsafe { read("memory", memory) }?;
        let description = &merge.description;
        // SAFETY: the caller's promise.
        let parts: &[MergePart] =
            unsafe { elements("parts", memory.parts, description.part_count())?.slice() };
        if description.lse().is_none() && !memory.lse.is_null() {
            return Err(Failure::of("lse", "is given, but want_lse is 0"));
        }
        let Some(on) = &merge.on else {
            no_stream(stream)?;
            // SAFETY: the caller's promise.
            return unsafe { run_on_cpu(description, &memory, parts) };
        };
        let mut of_parts = [[0; 2]; WARPTILE_MERGE_PARTS];
        for (part, to) in parts.iter().zip(&mut of_parts) {
            *to = [address(part.out), address(part.lse)];
        }
        let (out, lse) = (address(memory.out), address(memory.lse));
        let addresses = Addresses::merge(out, lse, &of_parts[..parts.len()]);
        let of_parts = addresses.parts.as_flattened().iter().copied();
        let all = [out, lse].into_iter().chain(of_parts);
        let names = description.memory().map(|(name, _)| name);
        on.launch(stream, names.zip(all), |stream| {
            // SAFETY: as in `warptile_attention_run`.
            unsafe { on.prepared.launch_raw(stream, description, addresses, 0) }
        })
    })
}

/// Frees a handle, as warptile_attention_free does.
///
/// # Safety
/// `merge` is null, or a handle that was not freed and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warptile_merge_free(merge: *mut Merge) {
    // SAFETY: the caller's promise.
    unsafe { free(merge) };
}

/// # Safety
/// As [`warptile_merge_run`] on the CPU.
unsafe fn run_on_cpu(merge: &Description, memory: &MergeMemory, parts: &[MergePart]) -> Result<()> {
    let tensor = |name,
                  start: *const c_void,
                  layout: &Checked,
                  element: ElementType|
     -> Result<HostMemory> {
        if layout.required_len() != Some(0) {
            check_pointer(name, start.cast::<u8>(), element.size())?;
        }
        let start = start.cast_mut().cast();
        Ok(HostMemory::tensor(name, start, layout, element)?)
    };
    let element = merge.element();
    let out = tensor("out", memory.out, merge.out(), element)?;
    let lse = { merge.lse() }
        .map(|layout| tensor("lse", memory.lse.cast(), layout, ElementType::F32))
        .transpose()?;
    let named = parts.iter().zip(merge.expected_parts()).enumerate();
    let parts: Vec<[HostMemory; 2]> = named
        .filter_map(|(index, (part, expected))| Some((part, expected, merge.part(index)?)))
        .map(|(part, expected, (out, lse))| {
            let [of_out, of_lse] = expected.each_ref().map(|expected| expected.name);
            let out = tensor(of_out, part.out, out, element)?;
            let lse = tensor(of_lse, part.lse.cast(), lse, ElementType::F32)?;
            Ok([out, lse])
        })
        .collect::<Result<_>>()?;
    // SAFETY: the caller's promise.
    Ok(unsafe { raw::merge(merge, &parts, out, lse) }?)
}
