//! New keys and values written into pages.

use std::cell::RefCell;

use candle_core::{CpuStorage, CudaStorage, InplaceOp1, Layout, Result, Tensor};
use warptile::spec::{Append, Operand, Slots, Types};

use crate::caller::{Caller, Sizes};
use crate::locks::{Locks, memory_of};
use crate::{cpu, cuda};

pub(crate) const CALLER: Caller = Caller("write-to-pages");

/// Writes new keys and values into the pages of a cache, in place, as vLLM's `reshape_and_cache_flash` does.
///
/// - `k`, `v`: `(tokens, heads, head size)`, f16, bf16 or f32.
/// - `k_pages`, `v_pages`: `(pages, page rows, heads, head size)`, with any strides whose last is 1. They may be parts of one tensor.
/// - `slots`: i64 `(tokens)`. Token `i` goes to row `slots[i] % page rows` of page `slots[i] / page rows`; one with -1, or with any
///   other slot that does not exist, goes nowhere.
///
/// The result is what [`Attention::paged`](crate::Attention::paged) reads. On a GPU it is one launch on the stream of the pages' device;
/// a graph that captured it reads the slots again at each replay.
///
/// Other threads may read the pages at the same time by [`Attention::paged`](crate::Attention::paged). They must not call attention on
/// dense keys and values that are parts of the same memory where q, k or v is a variable or computed from one: candle locks these in an
/// order of its own, and both calls could wait for ever.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warptile_candle::{Attention, write_to_pages};
///
/// # fn main() -> candle_core::Result<()> {
/// let device = Device::Cpu; // or Device::new_cuda(0)?
/// let pages = Tensor::zeros((2, 32, 16, 4, 64), candle_core::DType::F32, &device)?; // keys and values of 32 pages
/// let (k_pages, v_pages) = (pages.get(0)?, pages.get(1)?);
/// let k = Tensor::randn(0f32, 1., (3, 4, 64), &device)?;
/// // Three tokens of one sequence, whose first page is page 7.
/// write_to_pages(&k, &k, &k_pages, &v_pages, &Tensor::new(&[112i64, 113, 114], &device)?)?;
/// let q = Tensor::randn(0f32, 1., (1, 1, 8, 64), &device)?;
/// let table = Tensor::new(&[[7u32]], &device)?;
/// let out = Attention::new(0.125).paged(&table, &Tensor::new(&[3u32], &device)?, 16).forward(&q, &k_pages, &v_pages)?;
/// assert_eq!(out.dims(), q.dims());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A message that names the argument and the rule it breaks; what the GPU's driver reports.
pub fn write_to_pages(
    k: &Tensor,
    v: &Tensor,
    k_pages: &Tensor,
    v_pages: &Tensor,
    slots: &Tensor,
) -> Result<()> {
    run([k, v], [k_pages, v_pages], slots, Slots::default())
}

/// As [`write_to_pages`], into pages of 8 bits (f8e4m3): they hold the number nearest to each divided by the scale of
/// its key/value head, at most ±448. `k_scale` and `v_scale` are f32, one for all heads or one for each, on the
/// device of the pages.
///
/// The result is what [`Attention::scales`](crate::Attention::scales) reads with the same scales. On the CPU scales
/// must be finite and above 0. On a GPU they are not checked, and a graph that captured the write reads them again at
/// each replay; `k` and `v` are f16 or bf16 there.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use warptile_candle::write_to_pages_quantized;
///
/// # fn main() -> candle_core::Result<()> {
/// let device = Device::Cpu; // or Device::new_cuda(0)?
/// let pages = Tensor::zeros((2, 32, 16, 4, 64), DType::F8E4M3, &device)?; // keys and values of 32 pages
/// let k = Tensor::randn(0f32, 1., (3, 4, 64), &device)?.to_dtype(DType::F16)?;
/// let slots = Tensor::new(&[112i64, 113, 114], &device)?;
/// let scale = Tensor::new(0.02f32, &device)?;
/// write_to_pages_quantized(&k, &k, &pages.get(0)?, &pages.get(1)?, &slots, &scale, &scale)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`write_to_pages`].
pub fn write_to_pages_quantized(
    k: &Tensor,
    v: &Tensor,
    k_pages: &Tensor,
    v_pages: &Tensor,
    slots: &Tensor,
    k_scale: &Tensor,
    v_scale: &Tensor,
) -> Result<()> {
    let mut scales = Slots::default();
    scales[Operand::KScale] = Some(k_scale);
    scales[Operand::VScale] = Some(v_scale);
    run([k, v], [k_pages, v_pages], slots, scales)
}

fn run(
    new: [&Tensor; 2],
    pages: [&Tensor; 2],
    slots: &Tensor,
    scales: Slots<Option<&Tensor>>,
) -> Result<()> {
    let mut inputs = scales;
    for (operand, tensor) in [Operand::K, Operand::V].into_iter().zip(new) {
        inputs[operand] = Some(tensor);
    }
    inputs[Operand::NewSlots] = Some(slots);
    let given = || inputs.given().map(|(operand, tensor)| (operand, *tensor));
    check(new, pages, slots, &scales)?;
    let memory = pages.map(memory_of);
    for (operand, tensor) in given() {
        if memory.contains(&memory_of(tensor)) {
            return Err(CALLER.broken(format_args!(
                "{} is a part of the tensor that it would be written to; copy it",
                operand.name()
            )));
        }
    }
    let on_cpu = slots.device().is_cpu();
    let slots = match on_cpu {
        true => Some(slots.to_vec1()?),
        false => None,
    };
    let append = describe(new, pages, slots.as_deref(), &scales)?;
    let (scales_on_host, locks) = match on_cpu {
        true => {
            let scales = scales.given().map(|(operand, scale)| (operand, *scale));
            let locked = given().filter(|(operand, _)| operand.moves_rows());
            (cpu::lists(CALLER, scales)?, Locks::new(locked))
        }
        false => (Slots::default(), Locks::new(given())),
    };
    let write = &Write {
        append,
        pages,
        memory,
        locks: RefCell::new(locks),
        scales_on_host,
    };
    let first = usize::from(write.memory[1] < write.memory[0]);
    write.locks.borrow_mut().take(write.memory[first]);
    pages[first].inplace_op1(&First { write, first })
}

/// The tensors of a write.
pub(crate) struct Write<'a> {
    /// Checked before anything is locked for writing.
    pub(crate) append: Append,
    pub(crate) pages: [&'a Tensor; 2],
    /// Addresses of the memory of the pages.
    memory: [usize; 2],
    pub(crate) locks: RefCell<Locks<'a>>,
    /// On the CPU, the scales of quantized pages.
    pub(crate) scales_on_host: cpu::Lists,
}

/// The memory of the pages.
pub(crate) enum Pages<'a, S> {
    /// Keys, values.
    Apart(&'a mut S, &'a mut S),
    /// Both in one tensor.
    Together(&'a mut S),
}

/// Checks devices, types and shapes of the lists.
fn check(
    [k, v]: [&Tensor; 2],
    [k_pages, v_pages]: [&Tensor; 2],
    slots: &Tensor,
    scales: &Slots<Option<&Tensor>>,
) -> Result<()> {
    let place = k_pages.device().location();
    for (name, tensor) in [("v_pages", v_pages), ("k", k), ("v", v)] {
        CALLER.check_place(name, tensor, "k_pages", &place)?;
    }
    let sizes = Sizes {
        rows: k.dims().first().copied().unwrap_or(0),
        ..Sizes::default()
    };
    let slots = (Operand::NewSlots, &slots);
    for (operand, tensor) in scales.given().chain([slots]) {
        CALLER.check_list(operand, tensor, ("k_pages", &place), sizes)?;
    }
    Ok(())
}

/// The write; without `slots` these are on the device.
fn describe(
    [k, v]: [&Tensor; 2],
    [k_pages, v_pages]: [&Tensor; 2],
    slots: Option<&[i64]>,
    scales: &Slots<Option<&Tensor>>,
) -> Result<Append> {
    let new = [("k", k.dtype()), ("v", v.dtype())];
    let pages = [("k_pages", k_pages.dtype()), ("v_pages", v_pages.dtype())];
    let types = match scales[Operand::KScale] {
        None => Types::of(CALLER.element(&[pages, new].concat())?),
        Some(_) => Types::of(CALLER.element(&new)?).keys(CALLER.scaled(pages)?),
    };
    let counts =
        [Operand::KScale, Operand::VScale].map(|scale| scales[scale].map_or(1, Tensor::elem_count));
    let rule = "(pages, page rows, heads, head size)";
    let builder = Append::builder(
        types,
        [
            &CALLER.packed("k", k.layout())?,
            &CALLER.packed("v", v.layout())?,
        ],
        [
            &CALLER.dense("k_pages", k_pages.layout(), rule)?,
            &CALLER.dense("v_pages", v_pages.layout(), rule)?,
        ],
    );
    let builder = builder.scale_counts(counts);
    let builder = match slots {
        Some(slots) => builder.slots(slots),
        None => builder.device_slots(),
    };
    builder.build().map_err(|error| CALLER.failed(error))
}

impl Write<'_> {
    /// The first elements of keys and of values in the memory of their tensors.
    pub(crate) fn starts(&self) -> [usize; 2] {
        self.pages.map(|pages| pages.layout().start_offset())
    }

    /// How far the values begin after the keys in a tensor of both.
    pub(crate) fn values_at(&self) -> Result<usize> {
        let [k, v] = self.starts();
        v.checked_sub(k).ok_or_else(|| {
            CALLER.broken(
                "v_pages begins before k_pages in the tensor that both are parts of; swap them",
            )
        })
    }
}

/// On the pages whose memory comes first, of keys or of values.
struct First<'a, 'w> {
    write: &'a Write<'w>,
    first: usize,
}

impl First<'_, '_> {
    /// The pages whose memory comes second, unless it is the same memory. What is read and lies before it is locked then.
    fn second(&self) -> Option<&Tensor> {
        let [k, v] = self.write.memory;
        let second = (k != v).then_some(1 - self.first);
        let end = second.map_or(usize::MAX, |second| self.write.memory[second]);
        self.write.locks.borrow_mut().take(end);
        second.map(|second| self.write.pages[second])
    }
}

impl InplaceOp1 for First<'_, '_> {
    fn name(&self) -> &'static str {
        CALLER.0
    }

    fn cpu_fwd(&self, pages: &mut CpuStorage, _: &Layout) -> Result<()> {
        match self.second() {
            None => cpu::write(self.write, Pages::Together(pages)),
            Some(second) => second.inplace_op1(&Second::beside(pages, self)),
        }
    }

    fn cuda_fwd(&self, pages: &mut CudaStorage, _: &Layout) -> Result<()> {
        match self.second() {
            None => cuda::write(self.write, Pages::Together(pages)),
            Some(second) => second.inplace_op1(&Second::beside(pages, self)),
        }
    }
}

/// On the pages whose memory comes second, with the first at hand.
struct Second<'a, 'w, S> {
    op: &'a First<'a, 'w>,
    first: RefCell<&'a mut S>,
}

impl<'a, 'w, S> Second<'a, 'w, S> {
    fn beside(first: &'a mut S, op: &'a First<'a, 'w>) -> Self {
        let first = RefCell::new(first);
        Second { op, first }
    }

    /// Calls `write` with the keys and the values, once all is locked.
    fn with(
        &self,
        second: &mut S,
        write: impl FnOnce(&Write<'_>, Pages<'_, S>) -> Result<()>,
    ) -> Result<()> {
        self.op.write.locks.borrow_mut().take(usize::MAX);
        let first = &mut **self.first.borrow_mut();
        let pages = match self.op.first {
            0 => Pages::Apart(first, second),
            _ => Pages::Apart(second, first),
        };
        write(self.op.write, pages)
    }
}

impl InplaceOp1 for Second<'_, '_, CpuStorage> {
    fn name(&self) -> &'static str {
        CALLER.0
    }

    fn cpu_fwd(&self, second: &mut CpuStorage, _: &Layout) -> Result<()> {
        self.with(second, cpu::write)
    }
}

impl InplaceOp1 for Second<'_, '_, CudaStorage> {
    fn name(&self) -> &'static str {
        CALLER.0
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        Err(CALLER.broken("the pages are on the CPU and on a GPU"))
    }

    fn cuda_fwd(&self, second: &mut CudaStorage, _: &Layout) -> Result<()> {
        self.with(second, cuda::write)
    }
}
