//! Random problems by every function that takes them.

use candle_core::{DType, Device, Result, Tensor};
use warptile_candle::flash_attn;

use crate::common::calls::{dense, packed, paged};
use crate::common::draw::Problem;

const SEEDS: u64 = 200;

/// Devices with each kind of stream that candle makes.
fn devices() -> Result<[Device; 2]> {
    Ok([Device::new_cuda(0)?, Device::new_cuda_with_stream(0)?])
}

fn run(check: impl Fn(&Problem, &Device) -> Result<()>) -> Result<()> {
    let devices = devices()?;
    for seed in 0..SEEDS {
        let problem = Problem::drawn(seed);
        let device = &devices[(seed % 2) as usize];
        check(&problem, device).map_err(|error| error.context(format!("{problem:?}")))?;
    }
    Ok(())
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn dense_tensors() -> Result<()> {
    let _turn = crate::beside_others();
    run(dense)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn packed_sequences() -> Result<()> {
    let _turn = crate::beside_others();
    run(packed)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn keys_in_pages() -> Result<()> {
    let _turn = crate::beside_others();
    run(|problem, device| match problem.dtype {
        DType::F32 => Ok(()), // pages of f32 have no kernel on a GPU
        _ => paged(problem, device, false),
    })
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn keys_in_pages_by_offsets() -> Result<()> {
    let _turn = crate::beside_others();
    run(|problem, device| match problem.dtype {
        DType::F32 => Ok(()),
        _ => paged(problem, device, true),
    })
}

/// Few queries on many keys, which CTAs share, and more tiles than there are CTAs, which draw them: launches with a workspace.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn launches_that_need_a_workspace() -> Result<()> {
    let _turn = crate::beside_others();
    for device in &devices()? {
        for (sequences, lengths) in [(4, (1, 4096)), (2, (300, 700)), (60, (65, 65))] {
            let mut problem = Problem {
                dtype: DType::F16,
                heads: 4,
                kv_heads: 2,
                head_size: 64,
                lengths: vec![lengths; sequences],
                strided: false,
                ..Problem::drawn(7)
            };
            problem.options.slopes = None; // those drawn are of other heads
            dense(&problem, device)?;
            packed(&problem, device)?;
        }
    }
    Ok(())
}

/// One key/value head repeated by a stride of 0.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn repeated_heads() -> Result<()> {
    let _turn = crate::beside_others();
    crate::common::calls::repeated_heads(&Device::new_cuda(0)?)
}

/// A part of a tensor that begins between multiples of 16 bytes.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn unaligned_tensors() -> Result<()> {
    let _turn = crate::beside_others();
    let device = Device::new_cuda(0)?;
    let whole =
        Tensor::randn(0_f32, 1.0, (2 * 65 * 4 * 64 + 1,), &Device::Cpu)?.to_dtype(DType::F16)?;
    let part = |whole: &Tensor| whole.narrow(0, 1, 2 * 65 * 4 * 64)?.reshape((2, 65, 4, 64));
    let q = part(&whole)?;
    let on_gpu = part(&whole.to_device(&device)?)?;
    let expected = flash_attn(&q, &q, &q, 0.125, true)?;
    let found = flash_attn(&on_gpu, &on_gpu, &on_gpu, 0.125, true)?.to_device(&Device::Cpu)?;
    crate::common::assert_close(&found, &expected, DType::F16, "unaligned")
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn tensors_beside_q_must_be_on_its_device() -> Result<()> {
    let _turn = crate::beside_others();
    let device = Device::new_cuda(0)?;
    let q = Tensor::zeros((5, 2, 64), DType::F16, &Device::Cpu)?.to_device(&device)?;
    let offsets = Tensor::new(&[0_u32, 5], &Device::Cpu)?;
    let result =
        warptile_candle::flash_attn_varlen(&q, &q, &q, &offsets, &offsets, 5, 5, 0.125, true);
    let error = result.map(|_| ()).unwrap_err().to_string();
    assert!(
        error.starts_with("flash-attn-varlen: seqlens_q is on Cpu, but q is on Cuda"),
        "{error}"
    );
    Ok(())
}
