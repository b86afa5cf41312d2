//! Two sequences of different lengths, packed one after the other, give what each gives alone.

use candle_core::{DType, Device, Result, Tensor};
use warptile_candle_v3::{flash_attn, flash_attn_varlen};

fn main() -> Result<()> {
    let device = Device::new_cuda(0).unwrap_or(Device::Cpu);
    let (heads, head_size, scale) = (4, 64, 0.125);
    let q = Tensor::randn(0_f32, 1.0, (5 + 8, heads, head_size), &device)?;
    let offsets = Tensor::new(&[0_u32, 5, 13], &device)?;
    let packed = flash_attn_varlen(&q, &q, &q, &offsets, &offsets, 8, 8, scale, true, false)?;
    for (start, length) in [(0, 5), (5, 8)] {
        let alone = q.narrow(0, start, length)?.unsqueeze(0)?;
        let alone = flash_attn(&alone, &alone, &alone, scale, true, false)?.squeeze(0)?;
        let difference = (packed.narrow(0, start, length)? - alone)?.abs()?;
        let largest = difference
            .to_dtype(DType::F64)?
            .flatten_all()?
            .max(0)?
            .to_scalar::<f64>()?;
        println!("sequence of {length}: differs by at most {largest:.1e}");
        if largest > 1e-5 {
            candle_core::bail!("the results differ");
        }
    }
    Ok(())
}
