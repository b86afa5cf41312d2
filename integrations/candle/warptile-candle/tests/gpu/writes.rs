//! Cache writes.

use candle_core::{DType, Device, Result};

use crate::common::writes::{CACHES, check};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rows_go_to_their_slots() -> Result<()> {
    let _turn = crate::beside_others();
    for device in [Device::new_cuda(0)?, Device::new_cuda_with_stream(0)?] {
        for cache in CACHES {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                check(cache, dtype, &device)?;
            }
        }
    }
    Ok(())
}
