//! New keys and values written into pages.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::{
    CpuStorage, CudaStorage, DType, DeviceLocation, InplaceOp1, Layout, Result, Storage, Tensor,
};
use warptile::{Append, AppendBuilder, ElementType, Quantization};

use crate::caller::Caller;
use crate::quantized::{DTYPES, Scales, quantized};
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
    run(Write {
        new: [k, v],
        pages: [k_pages, v_pages],
        slots,
        scales: None,
    })
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
    run(Write {
        new: [k, v],
        pages: [k_pages, v_pages],
        slots,
        scales: Some(Scales::new(k_scale, v_scale)),
    })
}

/// Locks for writes on the CPU, and on each GPU. A write needs candle's locks of all its tensors at once, and takes them one after the other: two
/// writes that lock the same tensors in different orders would wait for each other for ever.
static LOCKING: [Mutex<()>; 17] = [const { Mutex::new(()) }; 17];

/// The lock for tensors at this place; GPUs may share one.
fn locking(place: &DeviceLocation) -> MutexGuard<'static, ()> {
    let index = match place {
        DeviceLocation::Cuda { gpu_id } => 1 + gpu_id % (LOCKING.len() - 1),
        _ => 0,
    };
    // A panic leaves nothing half done that the lock protects.
    LOCKING[index]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn run(write: Write<'_>) -> Result<()> {
    write.check()?;
    let ([k, v], [k_pages, v_pages], slots) = (write.new, write.pages, write.slots);
    for (name, tensor) in [("k", k), ("v", v), ("slots", slots)] {
        if write.pages.iter().any(|pages| shares_memory(tensor, pages)) {
            return Err(CALLER.broken(format_args!(
                "{name} is a part of the tensor that it would be written to; copy it"
            )));
        }
    }
    let together = shares_memory(k_pages, v_pages);
    let write = &write;
    let _locking = locking(&k_pages.device().location());
    k_pages.inplace_op1(&Keys { write, together })
}

/// What is written where.
pub(crate) struct Write<'a> {
    pub(crate) new: [&'a Tensor; 2],
    pub(crate) pages: [&'a Tensor; 2],
    pub(crate) slots: &'a Tensor,
    /// Of quantized pages.
    pub(crate) scales: Option<Scales>,
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
            ("slots", self.slots),
        ];
        for (name, tensor) in others {
            CALLER.check_place(name, tensor, "k_pages", &place)?;
        }
        CALLER.check_type("slots", self.slots, &[DType::I64])?;
        let tokens = self.new[0].dims().first().copied().unwrap_or(0);
        CALLER.check_shape("slots", self.slots, &[tokens], "one entry per row of k")
    }

    /// What is written, but for where the slots are.
    pub(crate) fn describe(&self) -> Result<Described> {
        let [k, v] = self.new;
        let [k_pages, v_pages] = self.pages;
        let (element, quantized) = match &self.scales {
            None => {
                let first = ("k_pages", k_pages.dtype());
                CALLER.element([first, ("v_pages", v_pages.dtype()), ("k", k.dtype())])?;
                let element = CALLER.element([first, ("k", k.dtype()), ("v", v.dtype())])?;
                (element, None)
            }
            Some(scales) => {
                for (name, pages) in [("k_pages", k_pages), ("v_pages", v_pages)] {
                    CALLER.check_type(name, pages, &DTYPES)?;
                }
                let first = ("k", k.dtype());
                let element = CALLER.element([first, first, ("v", v.dtype())])?;
                let place = k_pages.device().location();
                let of = |of_pages| scales.quantization(CALLER, of_pages, "k_pages", &place);
                let quantized = quantized(k_pages.dtype()).map(of).transpose()?;
                (element, quantized)
            }
        };
        let rule = "(pages, page rows, heads, head size)";
        Ok(Described {
            element,
            quantized,
            new: [
                CALLER.packed("k", k.layout())?,
                CALLER.packed("v", v.layout())?,
            ],
            pages: [
                CALLER.dense("k_pages", k_pages.layout(), rule)?,
                CALLER.dense("v_pages", v_pages.layout(), rule)?,
            ],
        })
    }

    /// How far the values begin after the keys in a tensor of both.
    pub(crate) fn values_at(&self) -> Result<usize> {
        let [k, v] = self.pages.map(|pages| pages.layout().start_offset());
        v.checked_sub(k).ok_or_else(|| {
            CALLER.broken(
                "v_pages begins before k_pages in the tensor that both are parts of; swap them",
            )
        })
    }
}

/// The tensors of a write in warptile's words.
pub(crate) struct Described {
    pub(crate) element: ElementType,
    quantized: Option<Quantization>,
    new: [warptile::Layout; 2],
    pub(crate) pages: [warptile::Layout; 2],
}

impl Described {
    pub(crate) fn builder<'a>(&self) -> AppendBuilder<'a> {
        let [k, v] = &self.new;
        let [k_pages, v_pages] = &self.pages;
        Append::builder(self.element, [k, v], [k_pages, v_pages]).quantized(self.quantized)
    }
}

/// Whether two tensors are parts of one. Only one is locked at a time.
fn shares_memory(a: &Tensor, b: &Tensor) -> bool {
    let place = |tensor: &Tensor| std::ptr::from_ref::<Storage>(&tensor.storage_and_layout().0);
    place(a) == place(b)
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
