//! New keys and values written into pages.

use std::cell::{Cell, RefCell};
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::{CpuStorage, CudaStorage, InplaceOp1, Layout, Result, Storage, Tensor};
use warptile::{Append, AppendBuilder, Operand, Slots, Types};

use crate::caller::{Caller, Sizes};
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
/// a graph that captured it reads the slots anew at each replay.
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

/// As [`write_to_pages`], into pages of 8 bits (f8e4m3): they hold the number nearest to each divided by the scale of its key/value head, at
/// most ±448. `k_scale` and `v_scale` are f32, one for all heads or one for each, on the device of the pages.
///
/// The result is what [`Attention::scales`](crate::Attention::scales) reads with the same scales. On the CPU scales must be finite and above 0. On
/// a GPU they are not checked, and a graph that captured the write reads them anew at each replay; `k` and `v` are f16 or bf16 there.
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
    let write = &Write {
        new,
        pages,
        slots,
        scales,
        turn: Cell::default(),
    };
    write.check()?;
    for (name, tensor) in [("k", new[0]), ("v", new[1]), ("slots", slots)] {
        if pages.iter().any(|pages| shares_memory(tensor, pages)) {
            return Err(CALLER.broken(format_args!(
                "{name} is a part of the tensor that it would be written to; copy it"
            )));
        }
    }
    let together = shares_memory(pages[0], pages[1]);
    let turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    write.turn.set(Some(turn));
    pages[0].inplace_op1(&Keys { write, together })
}

/// Writes take turns in locking their tensors, because candle locks them one by one: two writes that lock the same tensors in opposite
/// orders would wait for each other for ever.
static TURNS: Mutex<()> = Mutex::new(());

/// What is written where.
pub(crate) struct Write<'a> {
    pub(crate) new: [&'a Tensor; 2],
    pub(crate) pages: [&'a Tensor; 2],
    pub(crate) slots: &'a Tensor,
    /// The scales of quantized pages.
    pub(crate) scales: Slots<Option<&'a Tensor>>,
    turn: Cell<Option<MutexGuard<'static, ()>>>,
}

/// The memory of the pages.
pub(crate) enum Pages<'a, S> {
    /// Keys, values.
    Apart(&'a mut S, &'a mut S),
    /// Both in one tensor.
    Together(&'a mut S),
}

impl Write<'_> {
    fn check(&self) -> Result<()> {
        let place = self.pages[0].device().location();
        let others = [
            ("v_pages", self.pages[1]),
            ("k", self.new[0]),
            ("v", self.new[1]),
        ];
        for (name, tensor) in others {
            CALLER.check_place(name, tensor, "k_pages", &place)?;
        }
        let sizes = Sizes {
            rows: self.new[0].dims().first().copied().unwrap_or(0),
            ..Sizes::default()
        };
        let slots = (Operand::NewSlots, &self.slots);
        for (operand, tensor) in self.scales.given().chain([slots]) {
            CALLER.check_list(operand, tensor, ("k_pages", &place), sizes)?;
        }
        Ok(())
    }

    /// All tensors are locked now: other writes can lock theirs.
    pub(crate) fn end_turn(&self) {
        self.turn.take();
    }

    /// The write without its slots.
    pub(crate) fn describe<'b>(&self) -> Result<AppendBuilder<'b>> {
        let ([k, v], [k_pages, v_pages]) = (self.new, self.pages);
        let new = [("k", k.dtype()), ("v", v.dtype())];
        let pages = [("k_pages", k_pages.dtype()), ("v_pages", v_pages.dtype())];
        let types = match self.scales[Operand::KScale] {
            None => Types::of(CALLER.element(&[pages, new].concat())?),
            Some(_) => Types::of(CALLER.element(&new)?).keys(CALLER.scaled(pages)?),
        };
        let counts = [Operand::KScale, Operand::VScale]
            .map(|scale| self.scales[scale].map_or(1, Tensor::elem_count));
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
        Ok(builder.scale_counts(counts))
    }

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

/// Whether two tensors are parts of one.
fn shares_memory(a: &Tensor, b: &Tensor) -> bool {
    // One lock at a time: somebody may wait for one of two who has the other.
    let [a, b] =
        [a, b].map(|tensor| std::ptr::from_ref::<Storage>(&*tensor.storage_and_layout().0));
    a == b
}

/// On the pages of keys, and of values if those are in the same tensor.
struct Keys<'a> {
    write: &'a Write<'a>,
    together: bool,
}

impl InplaceOp1 for Keys<'_> {
    fn name(&self) -> &'static str {
        CALLER.0
    }

    fn cpu_fwd(&self, keys: &mut CpuStorage, _: &Layout) -> Result<()> {
        match self.together {
            true => cpu::write(self.write, Pages::Together(keys)),
            false => self.write.pages[1].inplace_op1(&Values::beside(keys, self.write)),
        }
    }

    fn cuda_fwd(&self, keys: &mut CudaStorage, _: &Layout) -> Result<()> {
        match self.together {
            true => cuda::write(self.write, Pages::Together(keys)),
            false => self.write.pages[1].inplace_op1(&Values::beside(keys, self.write)),
        }
    }
}

/// On the pages of values, with those of keys at hand.
struct Values<'a, S> {
    write: &'a Write<'a>,
    keys: RefCell<&'a mut S>,
}

impl<'a, S> Values<'a, S> {
    fn beside(keys: &'a mut S, write: &'a Write<'a>) -> Self {
        let keys = RefCell::new(keys);
        Values { write, keys }
    }
}

impl InplaceOp1 for Values<'_, CpuStorage> {
    fn name(&self) -> &'static str {
        CALLER.0
    }

    fn cpu_fwd(&self, values: &mut CpuStorage, _: &Layout) -> Result<()> {
        cpu::write(
            self.write,
            Pages::Apart(&mut self.keys.borrow_mut(), values),
        )
    }
}

impl InplaceOp1 for Values<'_, CudaStorage> {
    fn name(&self) -> &'static str {
        CALLER.0
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        Err(CALLER.broken("v_pages is on the CPU, but k_pages is on a GPU"))
    }

    fn cuda_fwd(&self, values: &mut CudaStorage, _: &Layout) -> Result<()> {
        cuda::write(
            self.write,
            Pages::Apart(&mut self.keys.borrow_mut(), values),
        )
    }
}
