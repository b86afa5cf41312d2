//! The raw layer: one driver call, on anybody's stream, and every wrong field an error.
use warptile::gpu::{Gpu, Prepared, Session};
use warptile::kernels::Operations;
use warptile::kernels::abi::ForwardTma;
use warptile::spec::{Append, Call, Merge, Operand, Scoring, Slots, Types};
use warptile::{ElementType, Error, Layout, Mask};
use warptile_driver::{DeviceBuffer, Stream};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::{Buffers, MAPPED, PLAIN, addresses, block, gpu, kernel};

/// 400 tiles of the second kernel, more than the CTAs that stay.
fn call() -> Call {
    let tensor = Layout::bshd([8, 300, 10, 64]);
    Call::builder(&tensor, &tensor, &tensor, ElementType::F16)
        .device_key_lengths(8)
        .build()
        .unwrap()
}

#[test]
fn a_session_is_for_kernels_of_its_own_device_and_keeps_the_context() {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    let setup = Setup::new(&fake);
    let driver = setup.gpu.context().driver();
    let other = Gpu::new(driver, 1).unwrap();
    let session = Session::new(&other, setup.stream.raw()).unwrap();
    let call = call();
    let prepared = setup.gpu.prepare(call.problem(), &kernel(PLAIN)).unwrap();
    // SAFETY: refused.
    let refused = unsafe { session.launch(&prepared, &call, &setup.addresses()) };
    assert!(
        matches!(
            &refused,
            Err(Error::DeviceMismatch { argument: "session", expected, found })
                if expected == "cuda:0" && found == "cuda:1"
        ),
        "{refused:?}"
    );
    drop(other);
    // Its workspace is still there.
    assert_eq!(fake.live(Kind::Contexts), 2);
    drop(session);
    assert_eq!(fake.live(Kind::Contexts), 1);
}

#[test]
fn what_was_planned_for_another_device_is_not_found_again() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let call = call();
    let grid = |gpu: &Gpu| {
        let prepared = gpu.prepare(call.problem(), &kernel(MAPPED)).unwrap();
        prepared.plan().steps()[0].shape(&call).unwrap().grid
    };
    let many = grid(&gpu);
    let mut profile = gpu.profile().clone();
    profile.multiprocessors = 3;
    let gpu = gpu.with_profile(profile);
    assert!(grid(&gpu) < many, "{many}");
}

/// Memory of 16 tensors of the call, apart from each other.
struct Setup {
    gpu: Gpu,
    stream: Stream,
    memory: DeviceBuffer<u8>,
}

const TENSOR_BYTES: u64 = 8 * 300 * 10 * 64 * 2;

impl Setup {
    fn new(fake: &FakeDriver) -> Self {
        let gpu = gpu(fake);
        let stream = Stream::new(gpu.context()).unwrap();
        let memory = DeviceBuffer::zeroed(&stream, 16 * TENSOR_BYTES as usize).unwrap();
        Setup {
            gpu,
            stream,
            memory,
        }
    }

    fn at(&self, tensor: u64) -> u64 {
        self.memory.pointer() + tensor * TENSOR_BYTES
    }

    fn addresses(&self) -> Slots<u64> {
        addresses([
            (Operand::Q, self.at(0)),
            (Operand::K, self.at(1)),
            (Operand::V, self.at(2)),
            (Operand::Out, self.at(3)),
            (Operand::Lse, self.at(4)),
            (Operand::KeyLengths, self.at(5)),
        ])
    }

    fn launch(
        &self,
        prepared: &Prepared,
        call: &Call,
        addresses: &Slots<u64>,
        workspace: u64,
    ) -> Result<(), Error> {
        let _current = self.gpu.context().enter().unwrap();
        // SAFETY: the stand-in runs no kernel; the addresses it is given lie in `memory`.
        unsafe { prepared.launch_raw(self.stream.raw(), call, addresses, workspace) }
    }
}

#[test]
fn a_raw_launch_is_one_driver_call_beside_the_maps() {
    for (name, calls) in [(PLAIN, 1), (MAPPED, 1 + 4)] {
        let fake = FakeDriver::open();
        let setup = Setup::new(&fake);
        let call = call();
        let prepared = setup.gpu.prepare(call.problem(), &kernel(name)).unwrap();
        let session = Session::new(&setup.gpu, setup.stream.raw()).unwrap();
        let _current = setup.gpu.context().enter().unwrap();
        let before = fake.calls();
        // SAFETY: as in `Setup::launch`; the context is current.
        unsafe { session.launch(&prepared, &call, &setup.addresses()) }.unwrap();
        assert_eq!(fake.calls() - before, calls, "{name}");
        setup.stream.synchronize().unwrap();
        assert_eq!(fake.launches().len(), 1);
        let work = block(&fake.launches()[0]).work;
        assert_eq!(work.counter != 0, name == MAPPED);
    }
}

#[test]
fn every_field_is_checked_before_anything_is_launched() {
    let fake = FakeDriver::open();
    let setup = Setup::new(&fake);
    let call = call();
    let prepared = setup.gpu.prepare(call.problem(), &kernel(MAPPED)).unwrap();
    let good = setup.addresses();
    let workspace = setup.at(6).next_multiple_of(256);
    let given = |operand: Operand| good[operand];
    let absent = Operand::ALL.map(|operand| match given(operand) {
        0 => (operand, setup.at(7), format!("{} is given", operand.name())),
        _ => (operand, 0, format!("{} is missing", operand.name())),
    });
    let wrong = [
        (Operand::V, given(Operand::V) + 2, "v starts at"),
        (
            Operand::KeyLengths,
            given(Operand::KeyLengths) + 1,
            "key_lengths starts at",
        ),
        (Operand::Out, setup.at(1) + 16, "out overlaps k"),
    ]
    .map(|(operand, address, expected)| (operand, address, expected.to_owned()));
    for (operand, address, expected) in absent.into_iter().chain(wrong) {
        let mut addresses = good;
        addresses[operand] = address;
        let error = setup
            .launch(&prepared, &call, &addresses, workspace)
            .unwrap_err();
        assert!(error.to_string().starts_with(&expected), "{error}");
        let checked = prepared.check_raw(&call, &addresses).unwrap_err();
        assert_eq!(checked.to_string(), error.to_string());
    }
    for bad in [0, workspace + 8] {
        let error = setup.launch(&prepared, &call, &good, bad).unwrap_err();
        assert!(
            matches!(error, Error::Workspace { bytes: 256, .. }),
            "{error}"
        );
    }
    // Lengths on the host would have to be copied.
    let tensor = Layout::bshd([8, 300, 10, 64]);
    let on_host = Call::builder(&tensor, &tensor, &tensor, ElementType::F16)
        .key_lengths(&[300; 8])
        .build()
        .unwrap();
    let error = setup
        .launch(&prepared, &on_host, &good, workspace)
        .unwrap_err();
    assert!(
        error.to_string().starts_with("key_lengths is on the host"),
        "{error}"
    );
    let checked = prepared.check_raw(&on_host, &good).unwrap_err();
    assert_eq!(checked.to_string(), error.to_string());
    let before = fake.calls();
    prepared.check_raw(&call, &good).unwrap();
    assert_eq!(fake.calls(), before);
    setup.stream.synchronize().unwrap();
    assert!(fake.launches().is_empty());
    setup.launch(&prepared, &call, &good, workspace).unwrap();
    setup.stream.synchronize().unwrap();
    assert_eq!(fake.launches().len(), 1);
}

/// A causal call, whose tiles are drawn in an order that takes a while to be found if it is a long one.
fn causal(query_len: usize) -> Call {
    let q = Layout::bshd([1, query_len, 32, 128]);
    let k = Layout::bshd([1, query_len, 8, 128]);
    Call::builder(&q, &k, &k, ElementType::F16)
        .scoring(Scoring::new().mask(Mask::causal()))
        .build()
        .unwrap()
}

#[test]
fn what_makes_a_call_ready_calls_no_driver() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let call = causal(2048);
    let buffers = Buffers::new(&stream, &call);
    let session = Session::new(&gpu, stream.raw()).unwrap();
    let of_rows = kernel("wgmma_d128_192x64_w16_s4");
    let prepared = gpu.prepare(call.problem(), &of_rows).unwrap();
    let before = fake.calls();
    prepared.make_ready(&call).unwrap();
    assert_eq!(fake.calls(), before);
    let current = gpu.context().enter().unwrap();
    // SAFETY: the stand-in runs no kernel; the context is current.
    unsafe { session.launch(&prepared, &call, &buffers.addresses()) }.unwrap();
    drop(current);
    stream.synchronize().unwrap();
    let launches = fake.launches();
    let block: ForwardTma = bytemuck::pod_read_unaligned(launches[launches.len() - 1].params());
    assert_eq!(block.ordered, 352);
    let other = gpu.prepare(causal(100).problem(), &of_rows).unwrap();
    let refused = other.make_ready(&call).unwrap_err();
    assert!(matches!(refused, Error::OtherProblem { .. }), "{refused}");
}

/// The requirements that callers check their memory against before they launch.
#[test]
fn calls_tell_what_memory_they_need() {
    let call = call();
    let mut expected = Slots::from_fn(|_| None);
    for operand in [Operand::Q, Operand::K, Operand::V, Operand::Out] {
        expected[operand] = Some(TENSOR_BYTES);
    }
    expected[Operand::Lse] = Some(8 * 10 * 300 * 4);
    expected[Operand::KeyLengths] = Some(8 * 4);
    let of_forward = Operand::of(Operations::FORWARD).map(|operand| (operand, expected[operand]));
    assert!(call.memory().eq(of_forward));
    let needed = |call: &Call, wanted: Operand| {
        let mut all = call.memory();
        all.find(|(operand, _)| *operand == wanted).unwrap().1
    };
    let q = *call.q();
    let types = Types::of(ElementType::F16).keys(ElementType::E4m3);
    let in_e4m3 = Call::builder(&q, &q, &q, types)
        .count(Operand::VScale, q.heads())
        .scoring("alibi=batch sinks bias keymask".parse().unwrap())
        .layout(Operand::Bias, Layout::bhsd([1, 10, 300, 300]))
        .layout(Operand::KeyMask, Layout::bhsd([8, 1, 1, 300]))
        .build()
        .unwrap();
    for (operand, bytes) in [
        (Operand::K, TENSOR_BYTES / 2),
        (Operand::KScale, 4),
        (Operand::VScale, 10 * 4),
        (Operand::Slopes, 8 * 10 * 4),
        (Operand::Sinks, 10 * 4),
        (Operand::Bias, 10 * 300 * 300 * 2),
        (Operand::KeyMask, 8 * 300),
    ] {
        assert_eq!(needed(&in_e4m3, operand), Some(bytes), "{operand:?}");
    }
    let rows = Layout::packed(300, 2, 64);
    let packed = Call::builder(&rows, &rows, &rows, ElementType::F16)
        .device_query_offsets(7, 100)
        .device_key_offsets(7, 100)
        .device_query_lengths(7)
        .build()
        .unwrap();
    for (operand, bytes) in [
        (Operand::QueryOffsets, Some(8 * 4)),
        (Operand::KeyOffsets, Some(8 * 4)),
        (Operand::QueryLengths, Some(7 * 4)),
        (Operand::KeyLengths, None),
    ] {
        assert_eq!(needed(&packed, operand), bytes, "{operand:?}");
    }
    let on_host = Call::builder(&q, &q, &q, ElementType::F16)
        .key_lengths(&[300; 8])
        .build()
        .unwrap();
    assert_eq!(needed(&on_host, Operand::KeyLengths), None);

    let (new, pages) = (Layout::bshd([2, 1, 2, 64]), Layout::bshd([9, 16, 2, 64]));
    let append = Append::builder(ElementType::F16, [&new, &new], [&pages, &pages])
        .device_key_lengths(2)
        .device_block_table(4)
        .build()
        .unwrap();
    for (operand, bytes) in [
        (Operand::K, Some(2 * 2 * 64 * 2)),
        (Operand::VPages, Some(9 * 16 * 2 * 64 * 2)),
        (Operand::BlockTable, Some(2 * 4 * 4)),
        (Operand::NewSlots, None),
    ] {
        let found = append.memory().find(|(known, _)| *known == operand);
        assert_eq!(found, Some((operand, bytes)));
    }

    let merge = Merge::builder(ElementType::F16, &[new, new])
        .want_lse(false)
        .build()
        .unwrap();
    let needed: Vec<_> = merge.memory().map(|(_, bytes)| bytes).collect();
    let (out, lse) = (Some(2 * 2 * 64 * 2), Some(2 * 2 * 4));
    assert_eq!(needed, [out, None, out, lse, out, lse]);
}

#[test]
fn sessions_have_workspaces_of_their_own() {
    let fake = FakeDriver::open();
    let setup = Setup::new(&fake);
    let call = call();
    let prepared = setup.gpu.prepare(call.problem(), &kernel(MAPPED)).unwrap();
    for _ in 0..2 {
        let session = Session::new(&setup.gpu, setup.stream.raw()).unwrap();
        let _current = setup.gpu.context().enter().unwrap();
        for _ in 0..2 {
            // SAFETY: as in `Setup::launch`; the context is current.
            unsafe { session.launch(&prepared, &call, &setup.addresses()) }.unwrap();
        }
    }
    setup.stream.synchronize().unwrap();
    let counters: Vec<u64> = fake
        .launches()
        .iter()
        .map(|launch| block(launch).work.counter)
        .collect();
    assert_eq!((counters[0], counters[2]), (counters[1], counters[3]));
    assert_ne!(counters[0], counters[2]);
}
