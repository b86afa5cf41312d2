//! Cache writes.

use candle_core::{DType, Device, Result};

use crate::common::e4m3;
use crate::common::writes::{CACHES, check, check_e4m3};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rows_go_to_their_slots() -> Result<()> {
    let _turn = crate::beside_others();
    for device in [Device::new_cuda(0)?, Device::new_cuda_with_stream(0)?] {
        for cache in CACHES {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                check(cache, dtype, &device)?;
            }
            for dtype in [DType::F16, DType::BF16] {
                check_e4m3(cache, dtype, &device)?;
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_cache_in_e4m3_is_read() -> Result<()> {
    let _turn = crate::beside_others();
    let device = Device::new_cuda(0)?;
    for dtype in [DType::F16, DType::BF16] {
        e4m3::check(1, dtype, &device)?;
        e4m3::check(20, dtype, &device)?;
    }
    Ok(())
}
