//! Launches where the driver is a stand-in, which records kernels instead of running them, and checks that what their
//! parameters point to is alive, and in order with work on other streams. `stand-in.sh` runs this.

use std::error::Error;
use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::thread;

use half::{bf16, f16};
use libloading::Library;
use warptile_cudarc::cudarc::driver::{CudaContext, CudaStream, DevicePtr, sys};
use warptile_cudarc::warptile::plan::Choice;
use warptile_cudarc::warptile::spec::{
    Append, Call, Merge, Operand, Pairing, Rotary, Scoring, TableLayout, Types,
};
use warptile_cudarc::warptile::{Attention, Backend, ElementType, Layout, Mask, Splits};
use warptile_cudarc::{Bindings, MergeBindings, Session, Tensors};
use warptile_distributed::{Group, Sharding};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The stand-in library, which tells what it has seen.
struct StandIn(Library);

impl StandIn {
    fn open() -> Result<Self> {
        // SAFETY: the stand-in has no initialisers.
        Ok(StandIn(unsafe { Library::new("libcuda.so.1") }?))
    }

    fn set_device_count(&self, count: c_int) {
        // SAFETY: an export of warptile-fake-cuda, as it declares it.
        unsafe {
            let set = self
                .0
                .get::<unsafe extern "C" fn(c_int)>("fake_set_device_count");
            set.unwrap()(count);
        }
    }

    fn count(&self, name: &str) -> usize {
        // SAFETY: as above; those that are called take nothing and return a number.
        unsafe { self.0.get::<unsafe extern "C" fn() -> usize>(name).unwrap()() }
    }

    /// Device allocations that were not given back.
    fn allocations(&self) -> usize {
        const DEVICE_MEMORY: c_int = 3;
        // SAFETY: as above.
        unsafe {
            self.0
                .get::<unsafe extern "C" fn(c_int) -> usize>("fake_live")
                .unwrap()(DEVICE_MEMORY)
        }
    }

    fn launches(&self) -> usize {
        self.count("fake_launch_count")
    }

    fn violations(&self) -> Vec<String> {
        type Get = unsafe extern "C" fn(usize, *mut c_char, usize);
        let text = |index| {
            let mut text = vec![0_u8; 1000];
            // SAFETY: as above; the text has this many bytes, and ends with a NUL then.
            unsafe {
                let get = self.0.get::<Get>("fake_violation").unwrap();
                get(index, text.as_mut_ptr().cast(), text.len());
            }
            text.retain(|&byte| byte != 0);
            String::from_utf8_lossy(&text).into_owned()
        };
        (0..self.count("fake_violation_count")).map(text).collect()
    }

    /// Panics if something was wrong, or another number of kernels ran.
    fn check(&self, what: &str, launches: usize) {
        assert_eq!(self.violations(), [""; 0], "{what}");
        assert_eq!(self.launches(), launches, "{what}");
    }
}

const Q: [usize; 4] = [2, 512, 8, 64];
const KV: [usize; 4] = [2, 512, 2, 64];

fn len(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

/// One kernel that draws its tiles from a workspace, on memory that belongs to `home`, and is dropped while the kernel is queued.
fn dense(session: &Session, home: &Arc<CudaStream>) -> Result {
    let q = home.clone_htod(&vec![f16::ONE; len(Q)])?;
    let kv = home.clone_htod(&vec![f16::ONE; len(KV)])?;
    let mut out = home.alloc_zeros::<f16>(len(Q))?;
    let mut lse = home.alloc_zeros::<f32>(len(Q) / 64)?;
    let (q_layout, kv_layout) = (Layout::bshd(Q), Layout::bshd(KV));
    session.forward(
        Scoring::new().mask(Mask::causal()),
        [
            (q.as_view(), q_layout),
            (kv.as_view(), kv_layout),
            (kv.as_view(), kv_layout),
        ],
        (out.as_view_mut(), q_layout),
        Some(lse.as_view_mut()),
    )?;
    drop(q);
    home.clone_dtoh(&out)?;
    Ok(())
}

/// A step of decoding with pages: a write, attention whose CTAs share keys, and a merge; three kernels.
fn step(session: &Session, home: &Arc<CudaStream>) -> Result {
    let (new, queries) = (Layout::bshd([2, 1, 2, 128]), Layout::bshd([2, 1, 8, 128]));
    // Keys and values of a page in one tensor.
    let pages = Layout::new([64, 16, 2, 128], [2 * 16 * 256, 256, 128, 1]);
    let mut cache = home.alloc_zeros::<bf16>(64 * 2 * 16 * 256)?;
    let (k, mut q) = (
        home.alloc_zeros::<bf16>(512)?,
        home.alloc_zeros::<bf16>(2048)?,
    );
    // Room for so many keys that CTAs share them, through a workspace.
    let table = home.clone_htod(&(0..1024).map(|page| page % 64).collect::<Vec<u32>>())?;
    let lengths = home.clone_htod(&[3_i32, 500])?;
    let append = Append::builder(ElementType::Bf16, [&new, &new], [&pages, &pages])
        .device_key_lengths(2)
        .device_block_table(512)
        .rotary(Rotary::computed(128, 1e4, Pairing::HalfSplit)?)
        .queries(queries, None)
        .build()?;
    let bindings = Bindings::append_in_one(k.as_view(), k.as_view(), cache.as_view_mut(), 16 * 256)
        .output(Operand::Q, q.as_view_mut())
        .with(Operand::KeyLengths, lengths.as_view())
        .with(Operand::BlockTable, table.as_view());
    session.append(&append, bindings)?;

    let call = Call::builder(&queries, &pages, &pages, ElementType::Bf16)
        .device_block_table(TableLayout::from([2, 512]))
        .device_key_lengths(2)
        .build()?;
    let mut out = home.alloc_zeros::<bf16>(2048)?;
    let mut lse = home.alloc_zeros::<f32>(16)?;
    let (keys, values) = (cache.as_view(), cache.slice(16 * 256..));
    let bindings = Bindings::new(q.as_view(), keys, values, out.as_view_mut())
        .output(Operand::Lse, lse.as_view_mut())
        .with(Operand::KeyLengths, lengths.as_view())
        .with(Operand::BlockTable, table.as_view());
    session.launch(&call, bindings)?;

    let merge = Merge::builder(ElementType::Bf16, &[queries, queries])
        .want_lse(false)
        .build()?;
    let mut merged = home.alloc_zeros::<bf16>(2048)?;
    let bindings = MergeBindings::new(merged.as_view_mut())
        .part(out.as_view(), lse.as_view())
        .part(out.as_view(), lse.as_view());
    session.merge(&merge, bindings)?;
    drop((cache, out, lse));
    home.clone_dtoh(&merged)?;
    Ok(())
}

/// One test, as the stand-in's state is the process's.
#[test]
#[ignore = "needs the stand-in for the driver: run stand-in.sh"]
fn launches_are_in_order_and_within_their_memory() -> Result {
    let stand_in = StandIn::open()?;
    stand_in.set_device_count(2);
    let context = CudaContext::new(0)?;
    let mut launches = 0;

    let stream = context.default_stream();
    let session = Session::new(&stream)?;
    for _ in 0..3 {
        dense(&session, &stream)?;
        step(&session, &stream)?;
        launches += 4;
    }
    stream.synchronize()?;
    stand_in.check("the default stream", launches);

    // The workspace is kept by the session, and nothing else is.
    assert_eq!(stand_in.allocations(), 1);
    drop(session);
    stream.synchronize()?;
    assert_eq!(stand_in.allocations(), 0);

    // From here on there are several streams, so cudarc orders them by events.
    let (a, b) = (context.new_stream()?, context.new_stream()?);
    for home in [&a, &b, &stream] {
        let session = Session::new(&b)?;
        dense(&session, home)?;
        step(&session, home)?;
        launches += 4;
    }
    context.synchronize()?;
    stand_in.check("memory of other streams", launches);

    let session = &Session::new(&a)?;
    let threads: Vec<std::result::Result<(), String>> = thread::scope(|scope| {
        let spawn = |number: usize| {
            let home = [&a, &b][number % 2];
            scope.spawn(move || {
                let calls =
                    || (0..5).try_for_each(|_| step(session, home).and(dense(session, home)));
                calls().map_err(|error| error.to_string())
            })
        };
        let threads: Vec<_> = (0..4).map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    threads
        .into_iter()
        .collect::<std::result::Result<Vec<()>, String>>()?;
    launches += 4 * 5 * 4;
    let per_thread = context.per_thread_stream();
    dense(&Session::new(&per_thread)?, &per_thread)?;
    launches += 1;
    context.synchronize()?;
    stand_in.check("threads", launches);

    e4m3(session)?;
    launches += 2;
    context.synchronize()?;
    stand_in.check("e4m3", launches);

    key_masks(session)?;
    launches += 2;
    context.synchronize()?;
    stand_in.check("key masks", launches);

    large_workspaces(&context)?;
    launches += 1;
    stand_in.check("a large workspace", launches);

    errors(session)?;
    launches += 1;
    context.synchronize()?;
    stand_in.check("errors", launches);

    // Two groups of heads on each.
    over_two_gpus([context.new_stream()?, CudaContext::new(1)?.new_stream()?])?;
    launches += 4;
    stand_in.check("several GPUs", launches);

    // SAFETY: what follows is on one stream, but where it is to be out of order.
    unsafe { context.disable_event_tracking() };
    captures(&stand_in, &context)?;

    // Without events nobody orders two streams: memory is freed under the kernel, and the stand-in sees it.
    let session = Session::new(&b)?;
    let lost = dense(&session, &a).and_then(|()| Ok(context.synchronize()?));
    assert!(lost.is_err());
    assert!(
        !stand_in.violations().is_empty(),
        "a missing order was not seen"
    );
    Ok(())
}

/// One call over the GPUs of two streams, whose rows come from cudarc's memory and go back there.
fn over_two_gpus(streams: [Arc<CudaStream>; 2]) -> Result {
    const ROWS: usize = 256;
    let gpus = [Tensors::new(&streams[0])?, Tensors::new(&streams[1])?];
    let layout = Layout::bhsd([1, 4, ROWS / 2, 64]);
    let (mut rows, mut outs) = (Vec::new(), Vec::new());
    for (gpu, stream) in gpus.iter().zip(&streams) {
        let memory = stream.clone_htod(&[f16::ONE; ROWS / 2 * 256])?;
        rows.push(gpu.tensor(memory.as_view(), layout)?);
        outs.push(memory);
    }
    let group = Group::local(gpus.iter().map(|gpu| gpu.backend().clone()))?;
    let shards = group.shards(&Sharding::Contiguous, ROWS)?;
    let found = shards.forward(&Attention::new().without_lse(), &rows, (&rows, &rows))?;
    for ((gpu, out), found) in gpus.iter().zip(&mut outs).zip(&found.out) {
        gpu.copy(found, out.as_view_mut())?;
    }
    let refused = |result: warptile_cudarc::Result<()>, expected: &str| {
        let error = result.expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    let [first, second] = &mut outs[..] else {
        return Err("there are two".into());
    };
    let view = first.slice(1..);
    let short = "view needs a buffer of 32768 elements for its shape and strides, but has 32767";
    refused(gpus[0].tensor(view, layout).map(drop), short);
    let elsewhere = "view is in a context of cuda:1, but the session's stream is in one of cuda:0";
    refused(
        gpus[0].tensor(second.as_view(), layout).map(drop),
        elsewhere,
    );
    let short = "to needs a buffer of 32768 elements for its shape and strides, but has 32767";
    refused(gpus[0].copy(&found.out[0], first.slice_mut(1..)), short);
    let on_cpu = Backend::cpu().tensor(&[f16::ONE; 64], [1, 1, 1, 64])?;
    let expected = "tensor is on the CPU; copy its elements from the host";
    refused(gpus[0].copy(&on_cpu, first.as_view_mut()), expected);
    for stream in &streams {
        stream.synchronize()?;
    }
    Ok(())
}

/// A row into a cache in e4m3, and a step of decoding over it.
fn e4m3(session: &Session) -> Result {
    let stream = session.stream();
    let (row, queries, pages) = (
        Layout::bshd([1, 1, 2, 64]),
        Layout::bshd([1, 1, 8, 64]),
        Layout::bshd([4, 16, 2, 64]),
    );
    let types = Types::of(ElementType::F16).keys(ElementType::E4m3);
    let append = Append::builder(types, [&row, &row], [&pages, &pages])
        .scale_counts([1, 2])
        .device_key_lengths(1)
        .device_block_table(4)
        .build()?;
    let call = Call::builder(&queries, &pages, &pages, types)
        .want_lse(false)
        .count(Operand::VScale, 2)
        .device_key_lengths(1)
        .device_block_table([1, 4])
        .build()?;
    let (new, q) = (
        stream.alloc_zeros::<f16>(128)?,
        stream.alloc_zeros::<f16>(512)?,
    );
    let mut out = stream.alloc_zeros::<f16>(512)?;
    let mut k_pages = stream.alloc_zeros::<u8>(4 * 16 * 2 * 64)?;
    let mut v_pages = stream.alloc_zeros::<u8>(4 * 16 * 2 * 64)?;
    let (k_scale, v_scale) = (
        stream.clone_htod(&[0.5_f32])?,
        stream.clone_htod(&[0.5_f32, 0.25])?,
    );
    let (lengths, table) = (stream.alloc_zeros::<i32>(1)?, stream.alloc_zeros::<i32>(4)?);
    let write = Bindings::append(
        new.as_view(),
        new.as_view(),
        k_pages.as_view_mut(),
        v_pages.as_view_mut(),
    )
    .with(Operand::KeyLengths, lengths.as_view())
    .with(Operand::BlockTable, table.as_view())
    .with(Operand::KScale, k_scale.as_view())
    .with(Operand::VScale, v_scale.as_view());
    session.append(&append, write)?;
    let mut read = |v_scale| {
        let (k, v) = (k_pages.as_view(), v_pages.as_view());
        let bindings = Bindings::new(q.as_view(), k, v, out.as_view_mut())
            .with(Operand::KeyLengths, lengths.as_view())
            .with(Operand::BlockTable, table.as_view())
            .with(Operand::KScale, k_scale.as_view())
            .with(Operand::VScale, v_scale);
        session.launch(&call, bindings)
    };
    read(v_scale.as_view())?;
    let error = read(k_scale.as_view()).expect_err("a scale is missing");
    let expected = "v_scale needs a buffer of 2 elements";
    assert!(error.to_string().starts_with(expected), "{error}");
    Ok(())
}

/// Keys that are cut at fixed places have a workspace of any size: the session keeps little more than it.
fn large_workspaces(context: &Arc<CudaContext>) -> Result {
    let stream = context.new_stream()?;
    let session = Session::new(&stream)?;
    let (q_layout, kv_layout) = (
        Layout::bshd([65, 1, 1, 128]),
        // The sequences share their keys.
        Layout::new([65, 65_536, 1, 128], [0, 128, 128, 1]),
    );
    let call = Call::builder(&q_layout, &kv_layout, &kv_layout, ElementType::F16)
        .want_lse(false)
        .splits(Splits::EveryKeys(256))
        .build()?;
    let q = stream.alloc_zeros::<f16>(65 * 128)?;
    let kv = stream.alloc_zeros::<f16>(65_536 * 128)?;
    let mut out = stream.alloc_zeros::<f16>(65 * 128)?;
    stream.synchronize()?;
    let (before, _) = context.mem_get_info()?;
    let bindings = Bindings::new(q.as_view(), kv.as_view(), kv.as_view(), out.as_view_mut());
    session.launch(&call, bindings)?;
    stream.synchronize()?;
    let kept = before - context.mem_get_info()?.0;
    let prepared = session.gpu().prepare(call.problem(), &Choice::Best)?;
    let needed = prepared.plan().scratch().bytes;
    assert!(needed > 128 << 20, "{needed}");
    assert!(
        (needed..needed + (64 << 20)).contains(&kept),
        "{needed} {kept}"
    );
    Ok(())
}

/// A key mask at an odd address leaves the kernels to the rows that need theirs at a multiple of 16 bytes.
fn key_masks(session: &Session) -> Result {
    let stream = session.stream();
    let q = stream.alloc_zeros::<f16>(len(Q))?;
    let kv = stream.alloc_zeros::<f16>(len(KV))?;
    let mask = stream.alloc_zeros::<u8>(2 * 512 + 1)?;
    let mut out = stream.alloc_zeros::<f16>(len(Q))?;
    let (q_layout, kv_layout) = (Layout::bshd(Q), Layout::bshd(KV));
    let mut kernel = |start: usize| -> Result<&'static str> {
        let bindings = Bindings::new(q.as_view(), kv.as_view(), kv.as_view(), out.as_view_mut())
            .with(Operand::KeyMask, mask.slice(start..));
        let mut kernel = "";
        session.launch_with(bindings, &Choice::Best, |aligned| {
            let builder = Call::builder(&q_layout, &kv_layout, &kv_layout, ElementType::F16)
                .want_lse(false)
                .layout(
                    Operand::KeyMask,
                    Layout::new([2, 1, 1, 512], [512, 0, 0, 1]),
                );
            let call = aligned.described(builder).build()?;
            kernel = session
                .gpu()
                .plan(call.problem(), &Choice::Best)?
                .kernel_name();
            Ok(call)
        })?;
        Ok(kernel)
    };
    let kernels = [kernel(0)?, kernel(1)?];
    assert!(
        kernels.iter().all(|name| name.starts_with("wgmma")),
        "{kernels:?}"
    );
    Ok(())
}

/// Captured launches, of a kernel that needs no workspace, and of one that does.
fn captures(stand_in: &StandIn, context: &Arc<CudaContext>) -> Result {
    let stream = context.new_stream()?;
    for keys in [64, 8192] {
        let (layout, kv) = (
            Layout::bshd([1, 1, 8, 128]),
            Layout::bshd([1, keys, 2, 128]),
        );
        let call = Call::builder(&layout, &kv, &kv, ElementType::F16)
            .want_lse(false)
            .build()?;
        let eager = Session::new(&stream)?;
        let prepared = eager.gpu().prepare(call.problem(), &Choice::Best)?;
        let bytes = prepared.plan().scratch().bytes;
        assert!(bytes != 0 || keys == 64);
        // SAFETY: one capture, whose graph is replayed in the order of the stream, and dropped before the session.
        let captured = unsafe { Session::for_graph(&stream, bytes) }?;
        let (q, k) = (
            stream.alloc_zeros::<f16>(1024)?,
            stream.alloc_zeros::<f16>(keys * 256)?,
        );
        let mut out = stream.alloc_zeros::<f16>(1024)?;
        let mut launch = |session: &Session| {
            let bindings = Bindings::new(q.as_view(), k.as_view(), k.as_view(), out.as_view_mut());
            session.launch(&call, bindings)
        };
        launch(&eager)?;
        stream.synchronize()?;
        let (before, allocations) = (stand_in.launches(), stand_in.allocations());
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        launch(&captured)?;
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags)?.ok_or("the graph is empty")?;
        assert_eq!(stand_in.launches(), before);
        for _ in 0..3 {
            graph.launch()?;
        }
        launch(&eager)?;
        stream.synchronize()?;
        stand_in.check("captures", before + 4);
        assert_eq!(stand_in.allocations(), allocations);
        // SAFETY: nothing is launched.
        let small = unsafe { Session::for_graph(&stream, 0) }?;
        let refused = launch(&small).err().map(|error| error.to_string());
        assert_eq!(refused.is_some(), bytes != 0, "{refused:?}");
        drop(graph);
        stream.synchronize()?;
    }
    Ok(())
}

fn errors(session: &Session) -> Result {
    let stream = session.stream();
    let layout = Layout::bshd([2, 16, 4, 64]);
    let elements = 2 * 16 * 4 * 64;
    let q = stream.alloc_zeros::<f16>(elements + 8)?;
    let mut out = stream.alloc_zeros::<f16>(elements)?;
    let lengths = stream.alloc_zeros::<i32>(2)?;
    let call = |want_lse| {
        Call::builder(&layout, &layout, &layout, ElementType::F16)
            .want_lse(want_lse)
            .device_key_lengths(2)
            .build()
    };
    let expect = |result: warptile_cudarc::Result<()>, text: &str| {
        let error = result.expect_err(text).to_string();
        assert!(error.starts_with(text), "{error}");
    };
    let mut refused = |text: &str, launch: &dyn Fn(Bindings<'_>) -> warptile_cudarc::Result<()>| {
        let of = |_| q.as_view();
        let [q, k, v] = [0, 1, 2].map(of);
        expect(launch(Bindings::new(q, k, v, out.as_view_mut())), text);
    };
    let plain = call(false)?;
    refused("key_lengths is missing", &|bindings| {
        session.launch(&plain, bindings)
    });
    let with_lse = call(true)?;
    refused("lse is missing", &|bindings| {
        session.launch(
            &with_lse,
            bindings.with(Operand::KeyLengths, lengths.as_view()),
        )
    });
    refused(
        "key_lengths needs a buffer of 2 elements for its shape and strides, but has 1",
        &|bindings| {
            let short = lengths.slice(..1);
            session.launch(&plain, bindings.with(Operand::KeyLengths, short))
        },
    );
    let wide = stream.alloc_zeros::<i64>(2)?;
    refused("key_lengths has numbers of a different type", &|bindings| {
        session.launch(&plain, bindings.with(Operand::KeyLengths, wide.as_view()))
    });
    refused(
        "k has elements of type bf16, but must have f16",
        &|bindings| {
            let k = stream.alloc_zeros::<bf16>(elements)?;
            let bindings = bindings.with(Operand::KeyLengths, lengths.as_view());
            session.launch(&plain, bindings.with(Operand::K, k.as_view()))
        },
    );
    let shared = stream.alloc_zeros::<f16>(elements)?;
    refused(
        "out is written, so it belongs to the outputs",
        &|bindings| {
            let bindings = bindings.with(Operand::KeyLengths, lengths.as_view());
            session.launch(&plain, bindings.with(Operand::Out, shared.as_view()))
        },
    );
    let slopes = stream.alloc_zeros::<f32>(4)?;
    refused("alibi_slopes is given", &|bindings| {
        session.launch(
            &plain,
            bindings
                .with(Operand::KeyLengths, lengths.as_view())
                .with(Operand::Slopes, slopes.as_view()),
        )
    });
    let on_host = Call::builder(&layout, &layout, &layout, ElementType::F16)
        .want_lse(false)
        .key_lengths(&[1, 2])
        .build()?;
    refused("key_lengths is on the host", &|bindings| {
        session.launch(&on_host, bindings)
    });
    let single = Call::builder(&layout, &layout, &layout, ElementType::F32)
        .want_lse(false)
        .build()?;
    refused(
        "q has elements of type f16, but must have f32",
        &|bindings| session.launch(&single, bindings),
    );
    let named = "wgmma_d64".parse::<Choice>()?;
    refused("unknown kernel", &|bindings| {
        session.launch_with(
            bindings.with(Operand::KeyLengths, lengths.as_view()),
            &named,
            |_| Ok(plain.clone()),
        )
    });
    let floats = stream.alloc_zeros::<f32>(2)?;
    refused("key_lengths has numbers of a different type", &|bindings| {
        session.launch(&plain, bindings.with(Operand::KeyLengths, floats.as_view()))
    });
    // Values in a view of their own, though the keys' view had room for both.
    let row = Layout::bshd([1, 1, 4, 64]);
    let append = Append::builder(ElementType::F16, [&row, &row], [&layout, &layout])
        .device_slots()
        .build()?;
    let slots = stream.alloc_zeros::<i64>(1)?;
    let mut cache = stream.alloc_zeros::<f16>(2 * elements)?;
    let mut values = stream.alloc_zeros::<f16>(256)?;
    let bindings = Bindings::append_in_one(q.as_view(), q.as_view(), cache.as_view_mut(), elements)
        .with(Operand::NewSlots, slots.as_view())
        .output(Operand::VPages, values.as_view_mut());
    expect(
        session.append(&append, bindings),
        "v_pages needs a buffer of 8192 elements for its shape and strides, but has 256",
    );
    let bindings = Bindings::append(
        q.as_view(),
        q.as_view(),
        values.as_view_mut(),
        cache.as_view_mut(),
    )
    .with(Operand::NewSlots, slots.as_view())
    .with(Operand::KPages, shared.as_view());
    expect(
        session.append(&append, bindings),
        "k_pages is written, so it belongs to the outputs",
    );
    // Views that begin where 16 bytes cannot be moved at once, and too late.
    let shifted = |start: usize| q.slice(start..);
    let views = |start| {
        [
            (shifted(start), layout),
            (q.as_view(), layout),
            (q.as_view(), layout),
        ]
    };
    session.forward(Scoring::new(), views(1), (out.as_view_mut(), layout), None)?;
    stream.synchronize()?;
    expect(
        session.forward(Scoring::new(), views(9), (out.as_view_mut(), layout), None),
        "q needs a buffer of 8192 elements",
    );
    // Memory of another device, as far as cudarc knows.
    let other = CudaContext::new(1)?.default_stream();
    let (address, _guard) = q.device_ptr(stream);
    // SAFETY: used by nothing, and leaked below.
    let elsewhere = unsafe { other.upgrade_device_ptr::<f16>(address, elements) };
    let [_, k, v] = views(0);
    expect(
        session.forward(
            Scoring::new(),
            [(elsewhere.as_view(), layout), k, v],
            (out.as_view_mut(), layout),
            None,
        ),
        "q is in a context of cuda:1, but the session's stream is in one of cuda:0",
    );
    elsewhere.leak();
    Ok(())
}
