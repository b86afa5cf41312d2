//! The raw layer: one driver call, on anybody's stream, and every wrong field an error.
use warptile::gpu::{Addresses, Gpu, Prepared, Session};
use warptile::kernels::abi::ForwardTma;
use warptile::{
    Append, Call, ElementType, Error, Layout, Mask, Merge, Quantization, QuantizedType, Scoring,
};
use warptile_driver::{DeviceBuffer, Stream};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::{Buffers, MAPPED, PLAIN, block, gpu, kernel};

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

    fn addresses(&self) -> Addresses {
        let mut addresses = Addresses::default();
        addresses.q = self.at(0);
        addresses.k = self.at(1);
        addresses.v = self.at(2);
        addresses.out = self.at(3);
        addresses.lse = self.at(4);
        addresses.key_lengths = self.at(5);
        addresses
    }

    fn launch(
        &self,
        prepared: &Prepared,
        call: &Call,
        addresses: &Addresses,
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
    type Edit = fn(&mut Addresses, &Setup);
    let cases: [(Edit, &str); 16] = [
        (|a, _| a.q = 0, "q is missing"),
        (|a, _| a.k = 0, "k is missing"),
        (|a, _| a.v = 0, "v is missing"),
        (|a, _| a.out = 0, "out is missing"),
        (|a, _| a.lse = 0, "lse is missing"),
        (|a, _| a.key_lengths = 0, "key_lengths is missing"),
        (|a, s| a.query_lengths = s.at(7), "query_lengths is given"),
        (|a, s| a.query_offsets = s.at(7), "query_offsets is given"),
        (|a, s| a.key_offsets = s.at(7), "key_offsets is given"),
        (|a, s| a.slopes = s.at(7), "alibi_slopes is given"),
        (|a, s| a.sinks = s.at(7), "sinks is given"),
        (|a, s| a.bias = s.at(7), "bias is given"),
        (|a, s| a.key_mask = s.at(7), "key_mask is given"),
        (|a, _| a.v += 2, "v starts at"),
        (|a, _| a.key_lengths += 1, "key_lengths starts at"),
        (|a, s| a.out = s.at(1) + 16, "out overlaps k"),
    ];
    for (edit, expected) in cases {
        let mut addresses = good;
        edit(&mut addresses, &setup);
        let error = setup
            .launch(&prepared, &call, &addresses, workspace)
            .unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
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

/// What others check their memory against before they launch.
#[test]
fn calls_tell_what_memory_they_need() {
    let call = call();
    let tensor = Some(TENSOR_BYTES);
    let expected = [
        ("q", tensor),
        ("k", tensor),
        ("v", tensor),
        ("out", tensor),
        ("lse", Some(8 * 10 * 300 * 4)),
        ("query_offsets", None),
        ("key_offsets", None),
        ("query_lengths", None),
        ("key_lengths", Some(8 * 4)),
        ("alibi_slopes", None),
        ("sinks", None),
        ("bias", None),
        ("key_mask", None),
        ("block_table", None),
        ("k_scale", None),
        ("v_scale", None),
    ];
    assert!(call.memory().eq(expected));
    let q = *call.q();
    let in_e4m3 = Call::builder(&q, &q, &q, ElementType::F16)
        .quantized(Quantization::new(QuantizedType::E4m3).scales(1, q.heads()))
        .scoring("alibi=batch sinks bias keymask".parse().unwrap())
        .bias(Layout::bhsd([1, 10, 300, 300]))
        .key_mask(Layout::bhsd([8, 1, 1, 300]))
        .build()
        .unwrap();
    let needed = |name| in_e4m3.memory().find(|one| one.0 == name).unwrap().1;
    for (name, bytes) in [
        ("k", TENSOR_BYTES / 2),
        ("k_scale", 4),
        ("v_scale", 10 * 4),
        ("alibi_slopes", 8 * 10 * 4),
        ("sinks", 10 * 4),
        ("bias", 10 * 300 * 300 * 2),
        ("key_mask", 8 * 300),
    ] {
        assert_eq!(needed(name), Some(bytes), "{name}");
    }
    let rows = Layout::packed(300, 2, 64);
    let packed = Call::builder(&rows, &rows, &rows, ElementType::F16)
        .device_query_offsets(7, 100)
        .device_key_offsets(7, 100)
        .device_query_lengths(7)
        .build()
        .unwrap();
    let lists: Vec<_> = packed.memory().skip(5).take(4).collect();
    assert_eq!(
        lists,
        [
            ("query_offsets", Some(8 * 4)),
            ("key_offsets", Some(8 * 4)),
            ("query_lengths", Some(7 * 4)),
            ("key_lengths", None),
        ]
    );
    let on_host = Call::builder(&q, &q, &q, ElementType::F16)
        .key_lengths(&[300; 8])
        .build()
        .unwrap();
    assert!(
        on_host
            .memory()
            .all(|(name, bytes)| name != "key_lengths" || bytes.is_none())
    );

    let (new, pages) = (Layout::bshd([2, 1, 2, 64]), Layout::bshd([9, 16, 2, 64]));
    let append = Append::builder(ElementType::F16, [&new, &new], [&pages, &pages])
        .device_key_lengths(2)
        .device_block_table(4)
        .build()
        .unwrap();
    let needed = |name| {
        append
            .memory()
            .find(|(known, _)| *known == name)
            .and_then(|(_, bytes)| bytes)
    };
    assert_eq!(needed("k"), Some(2 * 2 * 64 * 2));
    assert_eq!(needed("v_pages"), Some(9 * 16 * 2 * 64 * 2));
    assert_eq!(needed("block_table"), Some(2 * 4 * 4));
    assert_eq!(needed("slots"), None);

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
