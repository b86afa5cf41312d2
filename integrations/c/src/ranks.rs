//! Computations over the devices of a group, and the caller's memory there.

use std::ffi::c_void;

use attention::kernels::{Count, Elements, Kind};
use attention::plan::Choice;
use attention::spec::{Call, DropoutState, Operand};
use attention::{Attention, Backend, Element, Layout, Tensor};

use crate::attention_desc::{AttentionDesc, call};
use crate::error::{Failure, Result};
use crate::host::{Memory, expect_absent};
use crate::machine::not_of;
use crate::structs::{address, check_pointer, choice};

pub(crate) use warptile_distributed::Group as Ranks;

/// A computation that was read.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) call: Call,
    pub(crate) choice: Choice,
}

impl Described {
    /// # Safety
    /// As for warptile_attention_prepare.
    pub(crate) unsafe fn of(desc: &AttentionDesc) -> Result<Self> {
        // SAFETY: the caller's promise; lists are absent.
        let (call, choice) = unsafe { (call(desc, None)?, choice(desc.kernel)?) };
        // Rows, and what all of them have in common.
        let is_taken = |kind| match kind {
            Kind::Queries | Kind::Keys => true,
            Kind::List(count) => matches!(
                count,
                Count::Rows | Count::QueryHeads | Count::Slopes | Count::State
            ),
            _ => false,
        };
        for (operand, bytes) in call.memory() {
            if bytes.is_some() && !is_taken(operand.kind()) {
                return Err(Failure::of(operand.name(), "is not for several devices"));
            }
        }
        let described = Described { call, choice };
        for operand in [Operand::Q, Operand::K, Operand::V, Operand::Out] {
            let layout = described.layout(operand);
            if *layout != Layout::bshd(layout.shape) {
                let rule = "must be zeros: tensors of several devices are without gaps";
                return Err(Failure::of(format!("{}.strides", operand.name()), rule));
            }
        }
        Ok(described)
    }

    /// The layout of a tensor, or of that of which it is the gradient.
    pub(crate) fn layout(&self, operand: Operand) -> &Layout {
        let of = operand.gradient_of().unwrap_or(operand);
        self.call.layout(of).unwrap_or(self.call.out())
    }

    /// The options of a run, whose numbers are in host memory.
    ///
    /// # Safety
    /// Lists are null, or as many numbers as the description says, which no other code writes meanwhile.
    pub(crate) unsafe fn attention(&self, memory: &impl Memory) -> Result<Attention> {
        let call = &self.call;
        let mut attention = { Attention::new().scoring(*call.scoring()) }
            .splits(call.splits())
            .choice(self.choice.clone());
        if !call.wants_lse() {
            attention = attention.without_lse();
        }
        for (operand, bytes) in call.memory().filter(|(operand, _)| !operand.moves_rows()) {
            let (name, start) = (operand.name(), memory.pointer(operand).cast_const());
            match bytes {
                // It is in the memory of no call.
                Some(_) if operand == Operand::Lse => expect_absent(operand, start)?,
                None => expect_absent(operand, start)?,
                Some(_) if operand.elements() == Elements::I32 => {
                    // SAFETY: the caller's promise.
                    let words = unsafe { list(name, start.cast(), DropoutState::WORDS) }?;
                    let state = DropoutState::from_words(std::array::from_fn(|at| words[at]));
                    let dropout = call.scoring().dropout.unwrap_or(0.0);
                    attention = attention.dropout(dropout, state);
                }
                Some(bytes) => {
                    let count = bytes as usize / size_of::<f32>();
                    // SAFETY: the caller's promise.
                    let numbers = unsafe { list(name, start.cast(), count) }?;
                    attention = attention.numbers(operand, numbers);
                }
            }
        }
        Ok(attention)
    }
}

/// `count` values that a call reads.
///
/// # Safety
/// `start` is null or points to as many values, which no other code writes meanwhile.
pub(crate) unsafe fn list<'a, T>(argument: &str, start: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check_pointer(argument, start, align_of::<T>())?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// Looks at an address of a rank's memory.
pub(crate) fn check(
    argument: &str,
    rank: usize,
    backend: &Backend,
    pointer: *const c_void,
    alignment: usize,
) -> Result<()> {
    check_pointer(argument, pointer, alignment)?;
    let Some(gpu) = backend.gpu() else {
        return Ok(());
    };
    let context = gpu.context();
    match context.within(|| Ok::<_, Failure>(not_of(gpu, address(pointer))))? {
        None => Ok(()),
        Some(rule) => {
            let (address, device) = (address(pointer), gpu.ordinal());
            let rule =
                format!("is {address:#x}, which {rule}, but rank {rank} is on device {device}");
            Err(Failure::of(argument, rule))
        }
    }
}

/// Refuses a call while a rank's stream is being captured.
pub(crate) fn check_idle(ranks: &Ranks) -> Result<()> {
    for (rank, backend) in ranks.local_ranks().zip(ranks.backends()) {
        if let Some(gpu) = backend.gpu()
            && gpu.stream().is_capturing()?
        {
            let rule = format!(
                "of rank {rank} is being captured: a call over several devices cannot be part of a capture"
            );
            return Err(Failure::of("the stream", rule));
        }
    }
    Ok(())
}

/// A copy of a rank's memory, which [`check`] has looked at.
///
/// # Safety
/// As many elements as the layout has are there. Nothing writes them before what is then submitted to the rank's stream has ended.
pub(crate) unsafe fn take<T: Element>(
    backend: &Backend,
    from: *const c_void,
    layout: Layout,
) -> Result<Tensor<T>> {
    Ok(match backend.is_gpu() {
        // SAFETY: the caller's promise.
        true => unsafe { Tensor::copy_of(backend, address(from), layout) }?,
        false => {
            // SAFETY: the caller's promise.
            let rows = unsafe { list("tensor", from.cast::<T>(), layout.reach()) }?;
            Tensor::from_vec(backend, rows.to_vec(), layout)?
        }
    })
}

/// Copies a tensor to a rank's memory.
///
/// # Safety
/// There is as much of it.
pub(crate) unsafe fn give<T: Element>(
    tensor: &Tensor<T>,
    backend: &Backend,
    to: *mut c_void,
) -> Result<()> {
    match tensor.as_slice() {
        // SAFETY: the caller's promise; the tensor is a copy of warptile's.
        Some(rows) => unsafe {
            std::ptr::copy_nonoverlapping(rows.as_ptr(), to.cast(), rows.len())
        },
        // SAFETY: likewise.
        None => unsafe { tensor.copy_to(backend, address(to)) }?,
    }
    Ok(())
}
