//! Calls captured into a CUDA graph by cudarc, on candle's stream.

use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result, sys};
use candle_core::{CudaDevice, DType, Device, Result, Storage, Tensor};
use half::f16;
use warptile_candle::{Attention, flash_attn};

use crate::common::assert_close;

const SHAPE: (usize, usize, usize, usize) = (2, 300, 4, 64);

/// A device that can be captured: a stream of its own, and none of cudarc's events, which a capture cannot wait for.
fn device() -> Result<(Device, CudaDevice)> {
    let device = Device::new_cuda_with_stream(0)?;
    let cuda = device.as_cuda_device()?.clone();
    // SAFETY: everything here runs on the one stream.
    unsafe { cuda.disable_event_tracking() };
    Ok((device, cuda))
}

fn random(shape: (usize, usize, usize, usize)) -> Result<Tensor> {
    Tensor::randn(0_f32, 1.0, shape, &Device::Cpu)?.to_dtype(DType::F16)
}

/// Replaces what is in a tensor, which no kernel uses.
fn overwrite<T: candle_core::cuda_backend::CudaDType + Copy>(
    stream: &Arc<CudaStream>,
    tensor: &Tensor,
    values: &[T],
) -> Result<()> {
    stream.synchronize().w()?;
    let (storage, _) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        candle_core::bail!("not on the GPU");
    };
    let slice = storage.as_cuda_slice::<T>()?;
    assert_eq!(slice.len(), values.len());
    let (pointer, _guard) = slice.device_ptr(stream);
    // SAFETY: the memory has this many elements, and the stream is idle.
    unsafe { result::memcpy_htod_sync(pointer, values) }.w()
}

/// Captures `compute` and a copy of its result to the memory returned; replaying the graph does both.
fn capture(
    stream: &Arc<CudaStream>,
    elements: usize,
    compute: impl Fn() -> Result<Tensor>,
) -> Result<(
    candle_core::cuda_backend::cudarc::driver::CudaGraph,
    CudaSlice<f16>,
)> {
    // Loads the kernel.
    drop(compute()?);
    let mut copy = stream.alloc_zeros::<f16>(elements).w()?;
    stream.synchronize().w()?;
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
        .w()?;
    {
        let out = compute()?;
        let (storage, _) = out.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else {
            candle_core::bail!("not on the GPU");
        };
        stream
            .memcpy_dtod(storage.as_cuda_slice::<f16>()?, &mut copy)
            .w()?;
    }
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).w()?;
    let graph = graph.ok_or_else(|| candle_core::Error::msg("the graph is empty"))?;
    Ok((graph, copy))
}

fn on_cpu(stream: &Arc<CudaStream>, copy: &CudaSlice<f16>, shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(stream.clone_dtoh(copy).w()?, shape, &Device::Cpu)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_replay_sees_new_values() -> Result<()> {
    let _turn = crate::alone();
    let (device, cuda) = device()?;
    let stream = cuda.cuda_stream();
    let first = random(SHAPE)?;
    let q = first.to_device(&device)?;
    let (graph, copy) = capture(&stream, first.elem_count(), || {
        flash_attn(&q, &q, &q, 0.125, true)
    })?;
    for _ in 0..3 {
        let values = random(SHAPE)?;
        overwrite(&stream, &q, &values.flatten_all()?.to_vec1::<f16>()?)?;
        graph.launch().w()?;
        let expected = flash_attn(&values, &values, &values, 0.125, true)?;
        assert_close(
            &on_cpu(&stream, &copy, values.dims())?,
            &expected,
            DType::F16,
            "replay",
        )?;
    }
    Ok(())
}

/// A decode step: the keys of each sequence grow from replay to replay, and so does what it reads of its pages.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_replay_sees_new_lengths() -> Result<()> {
    let _turn = crate::alone();
    let (device, cuda) = device()?;
    let stream = cuda.cuda_stream();
    let (sequences, columns, rows) = (3, 40, 16);
    let q = random((sequences, 1, 8, 64))?;
    let pages = random((sequences * columns, rows, 2, 64))?;
    let table: Vec<u32> = (0..(sequences * columns) as u32).rev().collect();
    let table = Tensor::from_vec(table, (sequences, columns), &Device::Cpu)?;
    let step = |q: &Tensor, pages: &Tensor, table: &Tensor, lengths: &Tensor| {
        let attention = Attention::new(0.125).causal();
        attention
            .paged(table, lengths, columns * rows)
            .forward(q, pages, pages)
    };
    let on_gpu = [&q, &pages, &table].map(|tensor| tensor.to_device(&device));
    let [gpu_q, gpu_pages, gpu_table] = on_gpu;
    let (gpu_q, gpu_pages, gpu_table) = (gpu_q?, gpu_pages?, gpu_table?);
    let gpu_lengths = Tensor::new(&[1_u32, 1, 1], &device)?;
    let compute = || step(&gpu_q, &gpu_pages, &gpu_table, &gpu_lengths);
    let (graph, copy) = capture(&stream, q.elem_count(), compute)?;
    for lengths in [[1_u32, 2, 3], [17, 0, 640], [600, 333, 48]] {
        overwrite(&stream, &gpu_lengths, &lengths)?;
        graph.launch().w()?;
        let expected = step(&q, &pages, &table, &Tensor::new(&lengths, &Device::Cpu)?)?;
        assert_close(
            &on_cpu(&stream, &copy, q.dims())?,
            &expected,
            DType::F16,
            "lengths",
        )?;
    }
    Ok(())
}

/// Two graphs, and calls next to them, each with a workspace of its own.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn two_graphs_and_a_call_at_once() -> Result<()> {
    let _turn = crate::alone();
    let shape = (1, 8, 8, 64);
    let keys = (1, 5000, 2, 64); // so many keys for so few queries that CTAs share them
    let mut graphs = Vec::new();
    for _ in 0..2 {
        let (device, cuda) = device()?;
        let stream = cuda.cuda_stream();
        let (q, k) = (random(shape)?, random(keys)?);
        let (gpu_q, gpu_k) = (q.to_device(&device)?, k.to_device(&device)?);
        let compute = || flash_attn(&gpu_q, &gpu_k, &gpu_k, 0.125, true);
        let (graph, copy) = capture(&stream, q.elem_count(), compute)?;
        let expected = flash_attn(&q, &k, &k, 0.125, true)?;
        graphs.push((stream, graph, copy, expected, gpu_q.clone(), gpu_k.clone()));
    }
    for _ in 0..20 {
        for (_, graph, ..) in &graphs {
            graph.launch().w()?;
        }
        let mut beside = Vec::new();
        for (.., q, k) in &graphs {
            beside.push(flash_attn(q, k, k, 0.125, true)?);
        }
        for ((stream, _, copy, expected, ..), beside) in graphs.iter().zip(beside) {
            assert_close(
                &on_cpu(stream, copy, expected.dims())?,
                expected,
                DType::F16,
                "graph",
            )?;
            assert_close(
                &beside.to_device(&Device::Cpu)?,
                expected,
                DType::F16,
                "call",
            )?;
        }
    }
    Ok(())
}
