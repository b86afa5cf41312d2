//! Random problems by every function that takes them.

use candle_core::{DType, Device, Result, Tensor, Var};
use warptile_candle::{Attention, flash_attn};

use crate::common::assert_close;
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

/// The mask is that of the CPU, and gradients have it, too.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn dropout() -> Result<()> {
    let _turn = crate::beside_others();
    for (dtype, head_size) in [(DType::F16, 64), (DType::BF16, 128), (DType::F32, 64)] {
        let of = |seed: f32, rows, heads| -> Result<Tensor> {
            let count = 2 * rows * heads * head_size;
            let numbers = Tensor::arange(0_u32, count as u32, &Device::Cpu)?;
            let numbers = (numbers.to_dtype(DType::F32)? * f64::from(seed))?.sin()?;
            numbers
                .reshape((2, rows, heads, head_size))?
                .to_dtype(dtype)
        };
        let (q, k, v) = (of(1.7, 130, 4)?, of(2.3, 190, 2)?, of(3.1, 190, 2)?);
        let grad = of(4.3, 130, 4)?;
        let mut results = Vec::new();
        for device in [Device::Cpu, Device::new_cuda(0)?] {
            let tensors = [&q, &k, &v].map(|tensor| Var::from_tensor(&tensor.to_device(&device)?));
            let [q, k, v] = tensors;
            let (q, k, v) = (q?, k?, v?);
            let state = Tensor::new(&[7_u32, 0, 1, 0, 0, 0, 0, 0], &device)?;
            let attention = Attention::new(0.1).causal().dropout(0.3, &state);
            let out = attention.forward(&q, &k, &v)?;
            let gradients = (&out * grad.to_device(&device)?)?.sum_all()?.backward()?;
            let gradient = |of: &Var| gradients.get(of).cloned();
            results.push([Some(out), gradient(&q), gradient(&k), gradient(&v)]);
        }
        let [on_cpu, on_gpu] = results.try_into().unwrap_or_default();
        for (index, (expected, found)) in on_cpu.into_iter().zip(on_gpu).enumerate() {
            let [expected, found] = [expected, found].map(Option::unwrap);
            let found = found.to_device(&Device::Cpu)?;
            assert_close(&found, &expected, dtype, &format!("{dtype:?} {index}"))?;
        }
    }
    Ok(())
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
