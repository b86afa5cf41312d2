//! Several devices against one.

use candle_core::{DType, Device, Result, Tensor};
use warptile_candle::{Attention, Devices, Sharding, flash_attn};

/// In f32 only the order of additions may differ, in 16 bits also the rounding.
fn close(found: &Tensor, expected: &Tensor) -> Result<()> {
    let allowed = match found.dtype() {
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        _ => 1.6e-2,
    };
    let difference = (found.to_dtype(DType::F32)? - expected.to_dtype(DType::F32)?)?;
    let largest = difference.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(largest < allowed, "{largest}");
    Ok(())
}

#[test]
fn ranks_have_the_results_of_one_device() -> Result<()> {
    let cpu = Device::Cpu;
    for (ranks, len) in [(2, 64), (3, 101)] {
        let devices = Devices::local(&vec![cpu.clone(); ranks])?;
        let shards = devices.shards(&Sharding::Zigzag, len)?;
        let normal = |heads: usize, dim: usize, dtype| {
            Tensor::randn(0_f32, 1.0, (1, len, heads, dim), &cpu)?.to_dtype(dtype)
        };
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let (q, k, v) = (
                normal(4, 32, dtype)?,
                normal(2, 32, dtype)?,
                normal(2, 16, dtype)?,
            );
            let slopes = Tensor::new(&[0.5_f32, 0.25, 0.125, 0.0625], &cpu)?;
            let plain = Attention::new(0.2).causal().softcap(3.0);
            for attention in [
                plain.clone(),
                plain.clone().alibi_slopes(&slopes),
                plain.clone().sinks(&slopes),
                Attention::new(0.2).window(Some(20), Some(0)),
            ] {
                let rows = [&q, &k, &v].map(|all| devices.split(&shards, all));
                let [q_rows, k_rows, v_rows] = rows;
                let rows = [&q_rows?[..], &k_rows?[..], &v_rows?[..]];
                let found = attention.forward_over(&devices, &shards, rows)?;
                let found = devices.join(&shards, &found, &cpu)?;
                close(&found, &attention.forward(&q, &k, &v)?)?;
            }
        }
    }
    Ok(())
}

/// Documents stay whole, so there can be ranks without rows.
#[test]
fn ranks_may_have_no_rows() -> Result<()> {
    let cpu = Device::Cpu;
    let devices = Devices::local(&vec![cpu.clone(); 3])?;
    let documents = |offsets: &[usize]| Sharding::Documents(offsets.to_vec());
    for (sharding, offsets) in [
        (documents(&[0, 3, 6]), vec![0, 3, 6]),
        (documents(&[0, 300, 1100, 1110]), vec![0, 300, 1100, 1110]),
        (Sharding::Contiguous, vec![0, 1]),
        (Sharding::Contiguous, vec![0, 0]),
    ] {
        let len = offsets[offsets.len() - 1];
        let shards = devices.shards(&sharding, len)?;
        let normal =
            |heads: usize, dim: usize| Tensor::randn(0_f32, 1.0, (1, len, heads, dim), &cpu);
        let (q, k, v) = (normal(4, 32)?, normal(2, 32)?, normal(2, 16)?);
        let rows = [&q, &k, &v].map(|all| devices.split(&shards, all));
        let [q_rows, k_rows, v_rows] = rows;
        let rows = [&q_rows?[..], &k_rows?[..], &v_rows?[..]];
        let found = Attention::new(0.2)
            .causal()
            .forward_over(&devices, &shards, rows)?;
        let found = devices.join(&shards, &found, &cpu)?;
        assert_eq!(found.dims(), [1, len, 4, 16]);
        for ends in offsets.windows(2).filter(|ends| ends[0] < ends[1]) {
            let of = |all: &Tensor| all.narrow(1, ends[0], ends[1] - ends[0]);
            let expected = flash_attn(&of(&q)?, &of(&k)?, &of(&v)?, 0.2, true)?;
            close(&of(&found)?, &expected)?;
        }
    }
    Ok(())
}

#[test]
fn what_is_wrong_is_named() -> Result<()> {
    let cpu = Device::Cpu;
    let devices = Devices::local(&[cpu.clone(), cpu.clone()])?;
    let shards = devices.shards(&Sharding::Contiguous, 8)?;
    let all = Tensor::zeros((1, 8, 2, 16), DType::F32, &cpu)?;
    let rows = devices.split(&shards, &all)?;
    let attention = Attention::new(0.25);
    let refused = |attention: &Attention, rows: [&[Tensor]; 3], expected: &str| {
        let error = attention.forward_over(&devices, &shards, rows).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(
        &attention,
        [&rows[..1], &rows, &rows],
        "q has 1 tensors, but this process has 2 ranks",
    );
    let flat = [rows[0].squeeze(0)?, rows[1].squeeze(0)?];
    refused(
        &attention,
        [&rows, &flat, &rows],
        "k has shape [4, 2, 16], but must be (1, rows, heads, head size)",
    );
    let other = [rows[0].clone(), rows[1].to_dtype(DType::F16)?];
    refused(
        &attention,
        [&rows, &rows, &other],
        "v has dtype f16, but q has f32; both must be the same",
    );
    let offsets = Tensor::new(&[0_u32, 8], &cpu)?;
    refused(
        &attention.clone().packed_queries(&offsets, 8),
        [&rows, &rows, &rows],
        "seqlens_q is not taken over several devices",
    );
    let slopes = Tensor::zeros(3, DType::F32, &cpu)?;
    refused(
        &attention.clone().alibi_slopes(&slopes),
        [&rows, &rows, &rows],
        "alibi_slopes has shape [3], but must be [2]: one entry per query head",
    );
    let sinks = Tensor::zeros(2, DType::F16, &cpu)?;
    refused(
        &attention.clone().sinks(&sinks),
        [&rows, &rows, &rows],
        "sinks has dtype f16, but must be f32",
    );
    let error = devices.split(&shards, &rows[0]).unwrap_err().to_string();
    assert!(error.contains("all has shape [1, 4, 2, 16]"), "{error}");
    let error = devices.join(&shards, &rows[..1], &cpu).unwrap_err();
    assert!(error.to_string().contains("rows has 1 tensors"), "{error}");
    let error = Devices::local(&[cpu]).unwrap_err().to_string();
    assert!(error.contains("2"), "{error}");
    Ok(())
}
