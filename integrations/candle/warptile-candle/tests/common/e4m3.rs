//! Keys and values in e4m3.

use candle_core::{DType, Device, Result, Tensor};
use warptile_candle::Attention;

const BATCH: usize = 2;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const PAGE_ROWS: usize = 16;

/// Keys and values in e4m3, dense and in pages, against the same numbers in f32 on the CPU. The values have a head size of their own.
pub(crate) fn check(queries: usize, dtype: DType, device: &Device) -> Result<()> {
    let cpu = &Device::Cpu;
    let keys = 3 * PAGE_ROWS;
    let q = Tensor::randn(0f32, 1., (BATCH, queries, HEADS, 64), cpu)?.to_dtype(dtype)?;
    let [k, v] = [64, 32].map(|size| {
        Tensor::randn(0f32, 8., (BATCH, keys, KV_HEADS, size), cpu)?.to_dtype(DType::F8E4M3)
    });
    let (k, v) = (k?, v?);
    let k_scale = Tensor::new(&[0.125_f32, 0.1], cpu)?;
    let v_scale = Tensor::new(0.2_f32, cpu)?;
    let scaled = |tensor: &Tensor, scale: &Tensor| {
        let scale = scale.reshape((1, 1, scale.elem_count(), 1))?;
        tensor.to_dtype(DType::F32)?.broadcast_mul(&scale)
    };
    let attention = || Attention::new(0.125).causal();
    let expected = attention().forward(
        &q.to_dtype(DType::F32)?,
        &scaled(&k, &k_scale)?,
        &scaled(&v, &v_scale)?,
    )?;

    let here = |tensor: &Tensor| tensor.to_device(device);
    let with_scales = attention().scales(&here(&k_scale)?, &here(&v_scale)?);
    let dense = { with_scales.clone() }.forward(&here(&q)?, &here(&k)?, &here(&v)?)?;
    // Page p of sequence b is page b + BATCH * p.
    let paged = |tensor: &Tensor, size: usize| -> Result<Tensor> {
        let pages = (BATCH, keys / PAGE_ROWS, PAGE_ROWS, KV_HEADS, size);
        let bytes = tensor.reshape(pages)?.transpose(0, 1)?.contiguous()?;
        here(&bytes.reshape(((), PAGE_ROWS, KV_HEADS, size))?)
    };
    let table: Vec<u32> = { 0..BATCH }
        .flat_map(|b| (0..keys / PAGE_ROWS).map(move |page| (b + BATCH * page) as u32))
        .collect();
    let table = Tensor::from_vec(table, (BATCH, keys / PAGE_ROWS), cpu)?;
    let lengths = Tensor::new(&[keys as u32; BATCH], cpu)?;
    let in_pages = with_scales
        .paged(&here(&table)?, &here(&lengths)?, keys)
        .forward(&here(&q)?, &paged(&k, 64)?, &paged(&v, 32)?)?;
    for (name, found) in [("dense", dense), ("pages", in_pages)] {
        assert_eq!((found.dims(), found.dtype()), (expected.dims(), dtype));
        let found = found.to_device(cpu)?.to_dtype(DType::F32)?;
        let error = (found - &expected)?.abs()?.flatten_all()?.max(0)?;
        let error = error.to_scalar::<f32>()?;
        assert!(error < 0.03, "{name}, {dtype:?}: {error}");
    }
    Ok(())
}
