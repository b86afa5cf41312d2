//! Lengths of sequences from where each begins.

use candle_core::{DType, Result, Tensor};

use crate::caller::Caller;
use crate::cpu::numbers;

/// The differences of neighbours in `seqlens_k`, on its device. It is a list of offsets. `room` is how many keys the pages of a sequence
/// have.
pub(crate) fn key_lengths(caller: Caller, seqlens_k: &Tensor, room: usize) -> Result<Tensor> {
    if !seqlens_k.device().is_cpu() {
        if seqlens_k.dtype() == DType::I32 {
            return Err(caller.broken(
                "seqlens_k is i32 on a GPU, where candle cannot subtract it; it must be u32 there for keys in pages",
            ));
        }
        // Not read here, as that would wait for the device.
        let sequences = seqlens_k.elem_count().saturating_sub(1);
        return seqlens_k.narrow(0, 1, sequences)? - seqlens_k.narrow(0, 0, sequences)?;
    }
    let ends = numbers(caller, "seqlens_k", seqlens_k)?;
    let length = |(index, pair): (usize, &[i32])| {
        let length = i64::from(pair[1]) - i64::from(pair[0]);
        let length = u32::try_from(length).map_err(|_| {
            caller.broken(format_args!(
                "seqlens_k[{}] is {}, less than the entry before it ({}); entries must not decrease",
                index + 1,
                pair[1],
                pair[0]
            ))
        })?;
        match length as usize <= room {
            true => Ok(length),
            false => Err(caller.broken(format_args!(
                "seqlens_k[{}] is {}, {length} more than the entry before it, but block_table has pages for {room} keys of a sequence",
                index + 1,
                pair[1]
            ))),
        }
    };
    let lengths: Result<Vec<u32>> = ends.windows(2).enumerate().map(length).collect();
    Tensor::new(lengths?, seqlens_k.device())
}
