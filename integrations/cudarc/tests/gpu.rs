//! On a GPU, against the CPU path.
//!
//! `cargo test --test gpu -- --include-ignored` on a machine with an NVIDIA GPU; `build-gpu-tests.sh` builds it for one elsewhere.

use std::error::Error;
use std::sync::Arc;
use std::thread;

use half::{bf16, f16};
use warptile_cudarc::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits, sys,
};
use warptile_cudarc::warptile::cpu::{append_cpu, forward_cpu};
use warptile_cudarc::warptile::plan::Choice;
use warptile_cudarc::warptile::spec::{
    Append, Call, CallBuilder, HostInputs, HostOutputs, Merge, Operand, Pairing, Rotary, Scoring,
    TableLayout,
};
use warptile_cudarc::warptile::{Attention, Backend, Element, ElementType, Layout, Mask};
use warptile_cudarc::{Bindings, MergeBindings, Session, Tensors};
use warptile_distributed::{Group, Sharding};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Numbers from -1 to 1.
fn random<T: Element>(count: usize, seed: u32) -> Vec<T> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        T::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

fn close<T: Element>(found: &[T], expected: &[T], what: &str) {
    let tolerance = match T::TYPE {
        ElementType::F32 => 1e-4,
        ElementType::F16 => 2e-3,
        _ => 1.6e-2,
    };
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        let (a, b) = (a.to_f32(), b.to_f32());
        assert!(
            a == b || (a - b).abs() <= tolerance,
            "{what}: {a} for {b} at {at}"
        );
    }
}

/// Output and lse on the CPU of a call that reads nothing but q, k and v.
fn on_cpu<T: Element>(
    builder: CallBuilder<'_>,
    [q, k, v]: [&[T]; 3],
) -> Result<(Vec<T>, Vec<f32>)> {
    let call = builder.build()?;
    let elements = call.out().required_len().ok_or("too large")?;
    let (mut out, mut lse) = (vec![T::from_f32(0.0); elements], vec![0.0; call.lse_len()]);
    let outputs = HostOutputs::new(&mut out).lse(&mut lse);
    forward_cpu(&call, &HostInputs::new(q, k, v), outputs)?;
    Ok((out, lse))
}

fn dense<T: Element + DeviceRepr + ValidAsZeroBits>(
    session: &Session,
    home: &Arc<CudaStream>,
    seed: u32,
) -> Result {
    let (q_layout, kv_layout) = (Layout::bshd([2, 200, 8, 64]), Layout::bhsd([2, 2, 333, 64]));
    let (q, k, v) = (
        random::<T>(2 * 200 * 8 * 64, seed),
        random::<T>(2 * 333 * 2 * 64, seed + 1),
        random::<T>(2 * 333 * 2 * 64, seed + 2),
    );
    let (gpu_q, gpu_k, gpu_v) = (
        home.clone_htod(&q)?,
        home.clone_htod(&k)?,
        home.clone_htod(&v)?,
    );
    let mut out = home.alloc_zeros::<T>(q.len())?;
    let mut lse = home.alloc_zeros::<f32>(2 * 8 * 200)?;
    let scoring = Scoring::new().mask(Mask::causal());
    session.forward(
        scoring,
        [
            (gpu_q.as_view(), q_layout),
            (gpu_k.as_view(), kv_layout),
            (gpu_v.as_view(), kv_layout),
        ],
        (out.as_view_mut(), q_layout),
        Some(lse.as_view_mut()),
    )?;
    drop((gpu_q, gpu_k, gpu_v));
    let builder = Call::builder(&q_layout, &kv_layout, &kv_layout, T::TYPE).scoring(scoring);
    let (expected, expected_lse) = on_cpu(builder, [&q[..], &k, &v])?;
    close(&home.clone_dtoh(&out)?, &expected, "out");
    for (a, b) in home.clone_dtoh(&lse)?.iter().zip(&expected_lse) {
        assert!((a - b).abs() < 2e-3, "lse {a} for {b}");
    }
    Ok(())
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_type_on_the_default_stream() -> Result {
    let stream = CudaContext::new(0)?.default_stream();
    let session = Session::new(&stream)?;
    dense::<f16>(&session, &stream, 1)?;
    dense::<bf16>(&session, &stream, 2)?;
    dense::<f32>(&session, &stream, 3)
}

/// cudarc's events order memory of one stream and launches on another.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn streams_are_ordered_by_events() -> Result {
    let context = CudaContext::new(0)?;
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    let session = Session::new(&a)?;
    for seed in 0..40 {
        dense::<f16>(&session, &b, seed)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn threads_share_a_session() -> Result {
    let context = CudaContext::new(0)?;
    let streams = [context.new_stream()?, context.new_stream()?];
    let session = &Session::new(&streams[0])?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|number| {
                let home = &streams[number % 2];
                let context = &context;
                scope.spawn(move || {
                    (0..10).try_for_each(|seed| dense::<bf16>(session, home, seed))?;
                    // Another stream on each thread.
                    let own = context.per_thread_stream();
                    dense::<f16>(&Session::new(&own)?, &own, number as u32)
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap())
    })
}

const COLUMNS: usize = 40;
const ROWS: usize = 16;
const SEQUENCES: usize = 3;

/// A cache of pages on the CPU and on the GPU.
struct Cache {
    table: Vec<i32>,
    pages: Layout,
    host: Vec<bf16>,
    gpu: CudaSlice<bf16>,
    gpu_table: CudaSlice<i32>,
}

impl Cache {
    /// Elements from the keys of a page to its values.
    const V_AT: usize = ROWS * 2 * 128;

    fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let count = SEQUENCES * COLUMNS;
        let host = random::<bf16>(count * 2 * Self::V_AT, 9);
        let table: Vec<i32> = (0..count as i32).rev().collect();
        Ok(Cache {
            pages: Layout::new([count, ROWS, 2, 128], [2 * Self::V_AT, 256, 128, 1]),
            gpu: stream.clone_htod(&host)?,
            gpu_table: stream.clone_htod(&table)?,
            host,
            table,
        })
    }

    fn call(&self, q: &Layout) -> CallBuilder<'_> {
        let builder = Call::builder(q, &self.pages, &self.pages, ElementType::Bf16);
        builder.scoring(Scoring::new().mask(Mask::causal()))
    }

    fn on_device(&self, q: &Layout) -> Result<Call> {
        let table = TableLayout::from([SEQUENCES, COLUMNS]);
        let builder = self.call(q).device_block_table(table);
        Ok(builder
            .device_key_lengths(SEQUENCES)
            .want_lse(false)
            .build()?)
    }

    fn expected(&self, q: &Layout, queries: &[bf16], lengths: &[i32]) -> Result<Vec<bf16>> {
        let builder = self
            .call(q)
            .block_table(&self.table, [SEQUENCES, COLUMNS])
            .key_lengths(lengths);
        Ok(on_cpu(builder, [queries, &self.host, &self.host[Self::V_AT..]])?.0)
    }
}

/// A captured step of decoding, replayed with other queries and lengths.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_replay_sees_new_values_and_lengths() -> Result {
    replays(false)
}

/// A replay with a workspace that is not the graph's.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_replay_with_a_workspace_of_ones_own() -> Result {
    replays(true)
}

fn replays(own_workspace: bool) -> Result {
    let context = CudaContext::new(0)?;
    // SAFETY: everything is on one stream.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    let session = Session::new(&stream)?;
    let cache = Cache::new(&stream)?;
    let layout = Layout::bshd([SEQUENCES, 1, 8, 128]);
    let elements = SEQUENCES * 8 * 128;
    let mut q = stream.alloc_zeros::<bf16>(elements)?;
    let mut lengths = stream.alloc_zeros::<i32>(SEQUENCES)?;
    let mut out = stream.alloc_zeros::<bf16>(elements)?;
    let call = cache.on_device(&layout)?;
    let (keys, values) = (cache.gpu.as_view(), cache.gpu.slice(Cache::V_AT..));
    let prepared = session.gpu().prepare(call.problem(), &Choice::Best)?;
    // SAFETY: one capture, whose graph is replayed in the order of the stream, and dropped before the session.
    let for_graph = unsafe { Session::for_graph(&stream, prepared.plan().scratch().bytes) }?;
    let captured = if own_workspace { &for_graph } else { &session };
    let mut launch = |session: &Session, q: &CudaSlice<bf16>, lengths: &CudaSlice<i32>| {
        let (keys, values) = (keys.slice(..), values.slice(..));
        let bindings = Bindings::new(q.as_view(), keys, values, out.as_view_mut())
            .with(Operand::KeyLengths, lengths.as_view())
            .with(Operand::BlockTable, cache.gpu_table.as_view());
        session.launch(&call, bindings)
    };
    launch(&session, &q, &lengths)?;
    stream.synchronize()?;
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
    launch(captured, &q, &lengths)?;
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.ok_or("the graph is empty")?;
    for (seed, new) in [[1, 2, 3], [17, 0, 640], [600, 333, 48]].iter().enumerate() {
        let queries = random::<bf16>(elements, seed as u32);
        stream.memcpy_htod(&queries, &mut q)?;
        stream.memcpy_htod(&new[..], &mut lengths)?;
        graph.launch()?;
        let found = stream.clone_dtoh(&out)?;
        close(&found, &cache.expected(&layout, &queries, new)?, "replay");
    }
    Ok(())
}

/// A write with rotation, and what is read of it.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn written_keys_are_seen() -> Result {
    let stream = CudaContext::new(0)?.new_stream()?;
    let session = Session::new(&stream)?;
    let mut cache = Cache::new(&stream)?;
    let (new, layout) = (
        Layout::bshd([SEQUENCES, 2, 2, 128]),
        Layout::bshd([SEQUENCES, 2, 8, 128]),
    );
    let (k, v) = (
        random::<bf16>(SEQUENCES * 512, 1),
        random::<bf16>(SEQUENCES * 512, 2),
    );
    let mut queries = random::<bf16>(SEQUENCES * 2048, 3);
    let before = [100, 0, 15];
    let rotary = Rotary::computed(64, 1e4, Pairing::Interleaved)?;
    let builder = || {
        Append::builder(
            ElementType::Bf16,
            [&new, &new],
            [&cache.pages, &cache.pages],
        )
        .rotary(rotary.clone())
        .queries(layout, None)
    };
    let append = builder()
        .device_key_lengths(SEQUENCES)
        .device_block_table(COLUMNS)
        .build()?;
    let (gpu_k, gpu_v) = (stream.clone_htod(&k)?, stream.clone_htod(&v)?);
    let (mut q, lengths) = (stream.clone_htod(&queries)?, stream.clone_htod(&before)?);
    let table = stream.clone_htod(&cache.table)?;
    let bindings = Bindings::append_in_one(
        gpu_k.as_view(),
        gpu_v.as_view(),
        cache.gpu.as_view_mut(),
        Cache::V_AT,
    )
    .output(Operand::Q, q.as_view_mut())
    .with(Operand::KeyLengths, lengths.as_view())
    .with(Operand::BlockTable, table.as_view());
    session.append(&append, bindings)?;

    let on_host = builder()
        .key_lengths(&before)
        .block_table(&cache.table, COLUMNS)
        .build()?;
    let inputs = HostInputs::default()
        .with(Operand::K, &k)
        .with(Operand::V, &v);
    let outputs = HostOutputs::cache_in_one(&mut cache.host, Cache::V_AT);
    append_cpu(&on_host, &inputs, outputs.with(Operand::Q, &mut queries))?;
    close(&stream.clone_dtoh(&q)?, &queries, "rotated queries");
    close(&stream.clone_dtoh(&cache.gpu)?, &cache.host, "the cache");

    let after = before.map(|length| length + 2);
    let lengths = stream.clone_htod(&after)?;
    let mut out = stream.alloc_zeros::<bf16>(queries.len())?;
    let (keys, values) = (cache.gpu.as_view(), cache.gpu.slice(Cache::V_AT..));
    let bindings = Bindings::new(q.as_view(), keys, values, out.as_view_mut())
        .with(Operand::KeyLengths, lengths.as_view())
        .with(Operand::BlockTable, table.as_view());
    session.launch(&cache.on_device(&layout)?, bindings)?;
    close(
        &stream.clone_dtoh(&out)?,
        &cache.expected(&layout, &queries, &after)?,
        "attention",
    );
    Ok(())
}

/// Attention over two halves of the keys, merged, is attention over all of them.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn halves_are_merged() -> Result {
    let stream = CudaContext::new(0)?.new_stream()?;
    let session = Session::new(&stream)?;
    let (q_layout, all) = (Layout::bshd([2, 50, 4, 64]), Layout::bshd([2, 300, 4, 64]));
    let half = Layout::new([2, 150, 4, 64], all.strides);
    let (q, kv) = (
        random::<f16>(2 * 50 * 4 * 64, 1),
        random::<f16>(2 * 300 * 4 * 64, 2),
    );
    let (gpu_q, gpu_kv) = (stream.clone_htod(&q)?, stream.clone_htod(&kv)?);
    let mut parts = Vec::new();
    for start in [0, 150 * 4 * 64] {
        let mut out = stream.alloc_zeros::<f16>(q.len())?;
        let mut lse = stream.alloc_zeros::<f32>(2 * 4 * 50)?;
        let keys = || (gpu_kv.slice(start..), half);
        session.forward(
            Scoring::new(),
            [(gpu_q.as_view(), q_layout), keys(), keys()],
            (out.as_view_mut(), q_layout),
            Some(lse.as_view_mut()),
        )?;
        parts.push((out, lse));
    }
    let merge = Merge::builder(ElementType::F16, &[q_layout, q_layout])
        .want_lse(false)
        .build()?;
    let mut merged = stream.alloc_zeros::<f16>(q.len())?;
    let mut bindings = MergeBindings::new(merged.as_view_mut());
    for (out, lse) in &parts {
        bindings = bindings.part(out.as_view(), lse.as_view());
    }
    session.merge(&merge, bindings)?;
    let builder = Call::builder(&q_layout, &all, &all, ElementType::F16);
    let (expected, _) = on_cpu(builder, [&q[..], &kv, &kv])?;
    close(&stream.clone_dtoh(&merged)?, &expected, "merged");
    Ok(())
}

/// cudarc can make contexts other than the primary one.
/// Two ranks on two streams of one GPU.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ranks_are_on_streams_of_cudarc() -> Result {
    const ROWS: usize = 1000;
    let context = CudaContext::new(0)?;
    let streams = [context.new_stream()?, context.new_stream()?];
    let gpus = [Tensors::new(&streams[0])?, Tensors::new(&streams[1])?];
    let group = Group::local(gpus.iter().map(|gpu| gpu.backend().clone()))?;
    let shards = group.shards(&Sharding::Zigzag, ROWS)?;
    let attention = Attention::new().mask(Mask::causal()).without_lse();
    let (q, kv) = (
        random::<f16>(ROWS * 8 * 64, 1),
        random::<f16>(ROWS * 2 * 64, 2),
    );
    // The rows of a rank as cudarc's memory, and from there as a tensor.
    let dealt = |data: &[f16], heads: usize| {
        let ranks = shards.split(data, heads, 64)?.into_iter().enumerate();
        let tensors = ranks.map(|(rank, rows)| {
            let rows = rows.to_vec()?;
            let memory = streams[rank].clone_htod(&rows)?;
            let layout = Layout::bhsd([1, heads, rows.len() / (heads * 64), 64]);
            Ok(gpus[rank].tensor(memory.as_view(), layout)?)
        });
        tensors.collect::<Result<Vec<_>>>()
    };
    let (q_rows, kv_rows) = (dealt(&q, 8)?, dealt(&kv, 2)?);
    let found = shards
        .forward(&attention, &q_rows, (&kv_rows, &kv_rows))?
        .out;
    let mut outs = Vec::new();
    for ((gpu, stream), found) in gpus.iter().zip(&streams).zip(&found) {
        let mut out = stream.alloc_zeros::<f16>(found.layout().reach())?;
        gpu.copy(found, out.as_view_mut())?;
        outs.push(stream.clone_dtoh(&out)?);
    }
    let one = Backend::cpu();
    let (q, kv) = (
        one.tensor(&q, [1, ROWS, 8, 64])?,
        one.tensor(&kv, [1, ROWS, 2, 64])?,
    );
    let expected = attention.forward(&q, (&kv, &kv))?.out.to_vec()?;
    close(&shards.map().join(&outs, 8, 64), &expected, "two ranks");
    Ok(())
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn other_contexts_are_refused() -> Result {
    let stream = CudaContext::new_non_primary(0, 0)?.default_stream();
    let error = Session::new(&stream).map(drop).unwrap_err().to_string();
    assert!(
        error.contains("is not the primary one of cuda:0"),
        "{error}"
    );
    Ok(())
}
