//! Cache writes: what is launched, what is refused, captures, and failures.

use half::f16;
use warptile::gpu::Bindings;
use warptile::kernels::abi;
use warptile::ops::{CacheTensors, CacheWrite};
use warptile::spec::{Append, Operand, Pairing, Rotary, Slots};
use warptile::{Attention, Backend, ElementType, Keys, Layout, Queries, Tensor};
use warptile_driver::{DeviceBuffer, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::calls::on_device;
use crate::faults::every_failure_is_survived;
use crate::operations::{block, calls_of, replayed_twice};
use crate::{addresses, driver, gpu};

/// Two sequences of 3 new rows, 4 query heads, 2 key/value heads; 7 pages of 16 rows.
const NEW: [usize; 4] = [2, 3, 2, 64];
const PAGES: [usize; 4] = [7, 16, 2, 64];
const QUERIES: [usize; 4] = [2, 3, 4, 64];

fn len(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

fn tensor(backend: &Backend, shape: [usize; 4]) -> Tensor<f16> {
    backend.tensor(&vec![f16::ONE; len(shape)], shape).unwrap()
}

fn rotary() -> Rotary {
    Rotary::computed(32, 10_000.0, Pairing::Interleaved).unwrap()
}

/// As of models that keep their values in the keys.
#[test]
fn values_without_elements_need_no_memory() {
    let fake = FakeDriver::open();
    {
        let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
        let empty = |[batch, rows, heads, _]: [usize; 4]| tensor(&backend, [batch, rows, heads, 0]);
        let (k, v) = (tensor(&backend, NEW), empty(NEW));
        let (mut keys, mut values) = (tensor(&backend, PAGES), empty(PAGES));
        let slots: Vec<i64> = (0..6).collect();
        let write = CacheWrite::new(&k, &v, (&mut keys, &mut values)).slots(&slots);
        write.run().unwrap();
        backend.synchronize().unwrap();
        assert_eq!(fake.launches().len(), 1);
    }
    fake.assert_clean();
}

/// The list that is given last counts, wherever it lies.
#[test]
fn lists_on_the_host_take_the_place_of_those_on_the_device() {
    let fake = FakeDriver::open();
    {
        let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
        let (k, v) = (tensor(&backend, NEW), tensor(&backend, NEW));
        let (mut keys, mut values) = (tensor(&backend, PAGES), tensor(&backend, PAGES));
        let stream = backend.gpu().unwrap().stream();
        let slots: Vec<i64> = (0..6).collect();
        let on_device = DeviceBuffer::from_slice(stream, &slots).unwrap();
        CacheWrite::new(&k, &v, (&mut keys, &mut values))
            .slots_on_device(on_device.as_slice())
            .slots(&slots)
            .run()
            .unwrap();
        CacheWrite::new(&k, &v, (&mut keys, &mut values))
            .slots(&slots)
            .slots_on_device(on_device.as_slice())
            .run()
            .unwrap();
        backend.synchronize().unwrap();
        assert_eq!(fake.launches().len(), 2);
    }
    fake.assert_clean();
}

/// The bound of offsets on the device is not that of offsets on the host that take their place.
#[test]
fn offsets_on_the_host_are_not_bounded() {
    let fake = FakeDriver::open();
    {
        let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
        let rows = [1, 6, 2, 64];
        let (k, v) = (tensor(&backend, rows), tensor(&backend, rows));
        let (mut keys, mut values) = (tensor(&backend, PAGES), tensor(&backend, PAGES));
        let stream = backend.gpu().unwrap().stream();
        let on_device = DeviceBuffer::from_slice(stream, &[0, 1, 2]).unwrap();
        CacheWrite::new(&k, &v, (&mut keys, &mut values))
            .after(&[0, 0])
            .block_table(&[0, 1], 1)
            .packed_on_device(on_device.as_slice(), 1)
            .packed(&[0, 4, 6])
            .run()
            .unwrap();
        let attention = Attention::new();
        attention
            .forward(
                Queries::new(&k)
                    .packed_on_device(on_device.as_slice(), 1)
                    .packed(&[0, 4, 6]),
                Keys::new(&k, &v)
                    .packed_on_device(on_device.as_slice(), 1)
                    .packed(&[0, 4, 6]),
            )
            .unwrap();
        // A bound that came with no offsets stays.
        let keys = Keys::new(&k, &v)
            .packed_on_device(on_device.as_slice(), 1)
            .longest(3)
            .packed(&[0, 4, 6]);
        let queries = Queries::new(&k).packed(&[0, 4, 6]);
        attention.forward(queries, keys).unwrap();
        backend.synchronize().unwrap();
        let launches = fake.launches();
        let write: abi::Append = block(&launches[0]);
        assert_eq!(write.sequences.query_len, 4);
        let [first, second] = [1, 2].map(|at| crate::block(&launches[at]).sequences);
        assert_eq!((first.query_len, first.key_len), (4, 4));
        assert_eq!((second.query_len, second.key_len), (4, 3));
    }
    fake.assert_clean();
}

#[test]
fn a_write_is_launched_with_its_numbers_and_strides() {
    let fake = FakeDriver::open();
    {
        let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
        let (k, v) = (tensor(&backend, NEW), tensor(&backend, NEW));
        let (mut keys, mut values) = (tensor(&backend, PAGES), tensor(&backend, PAGES));
        let mut q = tensor(&backend, QUERIES);
        let (lengths, table) = ([20, 0], [3, 1, 0, -1]);
        let slots: Vec<i64> = (0..6).map(|i| i * 17 - 1).collect();
        CacheWrite::new(&k, &v, (&mut keys, &mut values))
            .after(&lengths)
            .block_table(&table, 2)
            .rotary(rotary())
            .queries(&mut q)
            .run()
            .unwrap();
        backend.synchronize().unwrap();
        let launches = fake.launches();
        let first: abi::Append = block(&launches[0]);
        assert_eq!(launches[0].name(), "warptile_append_w4_f16");
        // 8 heads of 8 chunks are half a CTA.
        assert_eq!(
            (launches[0].grid, first.row_ctas, first.lanes),
            ([6, 1, 1], 1, 8)
        );
        let sequences = first.sequences;
        assert_eq!(
            (sequences.batch, sequences.query_len, sequences.key_len),
            (2, 3, 32)
        );
        assert_eq!(on_device::<i32>(sequences.key_lengths, 2), lengths);
        assert_eq!(on_device::<i32>(first.pages.table, 4), table);
        assert_eq!(
            (first.pages.table_row, first.pages.rows, first.pages.count),
            (2, 16, 7)
        );
        assert_eq!(
            (first.heads.heads, first.heads.kv_heads, first.slots),
            (4, 2, 0)
        );
        assert_eq!(first.q, first.q_out);
        assert_eq!((first.rotary.size, first.rotary.interleaved), (32, 1));
        // One turn in 2 pi positions, then less and less.
        let turns = (2_f64.powi(64) / std::f64::consts::TAU) as u64;
        assert_eq!(first.rotary.turns[0], turns);
        assert!(first.rotary.turns[..16].is_sorted_by(|a, b| a > b));
        assert_eq!(first.rotary.turns[16], 0);

        let mut both = tensor(&backend, [7, 16, 4, 64]);
        let layout = Layout::new(PAGES, [16 * 256, 256, 64, 1]);
        CacheWrite::new(
            &k,
            &v,
            CacheTensors::together(&mut both, layout, layout, 128),
        )
        .slots(&slots)
        .run()
        .unwrap();
        backend.synchronize().unwrap();
        let second: abi::Append = block(&fake.launches()[1]);
        assert_eq!(on_device::<i64>(second.slots, 6), slots);
        assert_eq!(
            (second.heads.heads, second.rotary.size, second.pages.table),
            (0, 0, 0)
        );
        assert_eq!(second.v_pages.address, second.k_pages.address + 256);
        assert_eq!((second.k_pages.batch, second.k_pages.row), (4096, 256));
    }
    fake.assert_clean();
}

/// Errors in a description are found when it is built.
#[test]
fn descriptions_that_contradict_themselves_are_refused() {
    let new = Layout::bshd(NEW);
    let pages = Layout::bshd(PAGES);
    let start = || Append::builder(ElementType::F16, [&new, &new], [&pages, &pages]);
    let refused = |builder: warptile::spec::AppendBuilder<'_>, expected: &str| {
        let text = builder.build().unwrap_err().to_string();
        assert!(text.starts_with(expected), "{text}");
    };
    let table = [0; 4];
    refused(start(), "slots is missing");
    refused(start().slots(&[0; 5]), "slots has 5 values; 6 are needed");
    refused(
        start().slots(&[0; 6]).key_lengths(&[0; 2]),
        "key_lengths is given, but rows go to slots",
    );
    refused(
        start().slots(&[0; 6]).block_table(&table, 2),
        "block_table is given, but rows go to slots",
    );
    refused(
        start().key_lengths(&[0; 2]),
        "k_pages has batch 7, but a cache without a block table has 2",
    );
    refused(
        start().key_lengths(&[0; 3]).block_table(&table, 2),
        "key_lengths[2] ends the list",
    );
    refused(
        start().key_lengths(&[0; 2]).block_table(&table, 3),
        "block_table has 4 values; 6 are needed",
    );
    refused(
        start().key_lengths(&[0, 30]).block_table(&table, 2),
        "key_lengths[1] is 30, and 3 rows follow, but there is room for 32",
    );
    refused(
        start().key_lengths(&[-1, 0]).block_table(&table, 2),
        "key_lengths[0] is -1",
    );
    refused(
        start().slots(&[0; 6]).rotary(rotary()),
        "positions is missing",
    );
    refused(
        start().slots(&[0; 6]).positions(&[0; 6]),
        "rotary is missing",
    );
    refused(
        start().slots(&[0; 6]).queries(Layout::bshd(QUERIES), None),
        "rotary is missing",
    );
    let wide = Rotary::computed(66, 1e4, Pairing::HalfSplit).unwrap();
    refused(
        start().slots(&[0; 6]).rotary(wide).positions(&[0; 6]),
        "the rotary size is 66",
    );
    let table = Layout::bshd([1, 9, 1, 32]);
    let of_bf16 = Rotary::with_tables(ElementType::Bf16, table, Pairing::HalfSplit).unwrap();
    refused(
        start().slots(&[0; 6]).rotary(of_bf16).positions(&[0; 6]),
        "cos has elements of type bf16",
    );
    let short = || {
        let table = Layout::bshd([1, 9, 1, 32]);
        Rotary::with_tables(ElementType::F32, table, Pairing::HalfSplit).unwrap()
    };
    let by_short = |positions| start().slots(&[0; 6]).rotary(short()).positions(positions);
    refused(
        by_short(&[-1, 8, 0, 7, 9, 99]),
        "positions[4] is 9, but cos and sin have 9 rows",
    );
    // The third row of each sequence does not exist.
    let existing = by_short(&[-1, 8, 9, 7, 0, 99]).row_lengths(&[2, 2]);
    assert!(existing.build().is_ok());
    let unknown = by_short(&[-1, 8, 9, 7, 0, 8]).device_row_lengths(2);
    refused(unknown, "positions[2] is 9");
    let after = |lengths| start().key_lengths(lengths).rotary(short());
    let table = [0, 1];
    assert!(after(&[6, 0]).block_table(&table, 1).build().is_ok());
    refused(
        after(&[6, 7]).block_table(&table, 1),
        "key_lengths[1] is 7, and 3 rows follow, but cos and sin have rows for 9 positions",
    );
    let none = after(&[13, 6]).block_table(&table, 1).row_lengths(&[0, 3]);
    assert!(none.build().is_ok());
    let on_device = start().device_key_lengths(2).rotary(short());
    assert!(on_device.block_table(&table, 1).build().is_ok());
    let q = Layout::bshd([2, 4, 4, 64]);
    let rotated = start().slots(&[0; 6]).rotary(rotary()).positions(&[0; 6]);
    refused(rotated.queries(q, None), "q has length 4, but k has 3");
    let fewer = Layout::bshd([7, 16, 1, 64]);
    let builder = Append::builder(ElementType::F16, [&new, &new], [&pages, &fewer]);
    refused(
        builder.slots(&[0; 6]),
        "v_pages has heads 1, but k_pages has 2",
    );
    let repeated = Layout::new(PAGES, [0, 128, 64, 1]);
    let builder = Append::builder(ElementType::F16, [&new, &new], [&repeated, &pages]);
    refused(builder.slots(&[0; 6]), "k_pages overlaps itself");
}

struct Memory {
    new: [DeviceBuffer<f16>; 2],
    pages: [DeviceBuffer<f16>; 2],
    q: DeviceBuffer<f16>,
    slots: DeviceBuffer<i64>,
    positions: DeviceBuffer<i64>,
}

impl Memory {
    fn new(stream: &Stream) -> Self {
        let buffer = |shape| DeviceBuffer::zeroed(stream, len(shape)).unwrap();
        Memory {
            new: [NEW; 2].map(buffer),
            pages: [PAGES; 2].map(buffer),
            q: buffer(QUERIES),
            slots: DeviceBuffer::zeroed(stream, 6).unwrap(),
            positions: DeviceBuffer::zeroed(stream, 6).unwrap(),
        }
    }

    fn cache(&mut self) -> Bindings<'_> {
        cache_of(&self.new, &mut self.pages)
    }

    fn bindings(&mut self) -> Bindings<'_> {
        self.with_slots(6)
    }

    fn with_slots(&mut self, slots: usize) -> Bindings<'_> {
        cache_of(&self.new, &mut self.pages)
            .with(Operand::NewSlots, self.slots.slice(..slots).unwrap())
            .with(Operand::Positions, self.positions.as_slice())
            .output(Operand::Q, self.q.as_slice_mut())
    }

    fn addresses(&self) -> Slots<u64> {
        addresses([
            (Operand::K, self.new[0].pointer()),
            (Operand::V, self.new[1].pointer()),
            (Operand::KPages, self.pages[0].pointer()),
            (Operand::VPages, self.pages[1].pointer()),
            (Operand::Q, self.q.pointer()),
            (Operand::NewSlots, self.slots.pointer()),
            (Operand::Positions, self.positions.pointer()),
        ])
    }
}

/// New keys and values, and the cache.
fn cache_of<'a>(
    [k, v]: &'a [DeviceBuffer<f16>; 2],
    [keys, values]: &'a mut [DeviceBuffer<f16>; 2],
) -> Bindings<'a> {
    let (keys, values) = (keys.as_slice_mut(), values.as_slice_mut());
    Bindings::append(k.as_slice(), v.as_slice(), keys, values)
}

/// Slots, positions of 64 bits and queries, all on the device.
fn description() -> Append {
    let (new, pages) = (Layout::bshd(NEW), Layout::bshd(PAGES));
    Append::builder(ElementType::F16, [&new, &new], [&pages, &pages])
        .device_slots()
        .device_positions(true)
        .rotary(rotary())
        .queries(Layout::bshd(QUERIES), None)
        .build()
        .unwrap()
}

#[test]
fn a_raw_write_is_one_driver_call_and_checks_its_addresses() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let memory = Memory::new(&stream);
    let prepared = gpu.prepare_append(ElementType::F16).unwrap();
    let launch = |append: &Append, addresses: &Slots<u64>| {
        // SAFETY: the stand-in runs no kernel; the addresses it is given are those of the buffers.
        let raw = || unsafe { prepared.launch_raw(stream.raw(), append, addresses, 0) };
        calls_of(&fake, &gpu, raw)
    };
    let good = memory.addresses();
    let given = |operand: Operand| good[operand];
    let absent = Operand::ALL.map(|operand| match given(operand) {
        0 => (
            operand,
            given(Operand::Q),
            format!("{} is given", operand.name()),
        ),
        _ => (operand, 0, format!("{} is missing", operand.name())),
    });
    let wrong = [
        (Operand::NewSlots, Operand::NewSlots, 4, "slots starts at"),
        (Operand::KPages, Operand::KPages, 1, "k_pages starts at"),
        (
            Operand::VPages,
            Operand::KPages,
            128,
            "k_pages overlaps v_pages",
        ),
        (Operand::Q, Operand::K, 64, "q overlaps k"),
    ]
    .map(|(operand, from, by, expected)| (operand, given(from) + by, expected.to_owned()));
    for (operand, address, expected) in absent.into_iter().chain(wrong) {
        let mut addresses = good;
        addresses[operand] = address;
        let text = launch(&description(), &addresses).unwrap_err();
        assert!(text.starts_with(&expected), "{text}");
    }
    let (new, pages) = (Layout::bshd(NEW), Layout::bshd(PAGES));
    let on_host = Append::builder(ElementType::F16, [&new, &new], [&pages, &pages])
        .slots(&[0; 6])
        .build()
        .unwrap();
    let text = launch(&on_host, &memory.addresses()).unwrap_err();
    assert!(text.starts_with("slots is on the host"), "{text}");
    stream.synchronize().unwrap();
    assert!(fake.launches().is_empty());
    assert_eq!(launch(&description(), &memory.addresses()), Ok(1));
}

/// Kernels for 9.0 and newer GPUs wait for the launch before by themselves, and those for older ones do not.
#[test]
fn a_write_begins_early_where_its_kernel_waits() {
    for (capability, early) in [((8, 0), 0), ((9, 0), 1), ((12, 0), 1), ((13, 0), 0)] {
        let fake = FakeDriver::open();
        fake.set_compute_capability(capability.0, capability.1);
        let gpu = gpu(&fake);
        let stream = Stream::new(gpu.context()).unwrap();
        let memory = Memory::new(&stream);
        let prepared = gpu.prepare_append(ElementType::F16).unwrap();
        // SAFETY: the stand-in runs no kernel; the addresses it is given are those of the buffers.
        unsafe { prepared.launch_raw(stream.raw(), &description(), &memory.addresses(), 0) }
            .unwrap();
        stream.synchronize().unwrap();
        assert_eq!(fake.launches()[0].programmatic, early, "{capability:?}");
    }
}

#[test]
fn numbers_of_another_size_are_refused() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let stream = Stream::new(gpu.context()).unwrap();
        let narrow = DeviceBuffer::<u32>::zeroed(&stream, 12).unwrap();
        let mut memory = Memory::new(&stream);
        let prepared = gpu.prepare_append(ElementType::F16).unwrap();
        let bindings = memory
            .bindings()
            .with(Operand::Positions, narrow.as_slice());
        let error = prepared
            .launch(&stream, &description(), &bindings)
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("positions has numbers of a different type"),
            "{error}"
        );
        let error = prepared
            .launch(&stream, &description(), &memory.with_slots(5))
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("slots needs a buffer of 6 elements"),
            "{error}"
        );
        assert!(fake.launches().is_empty());
    }
    fake.assert_clean();
}

/// Tables of a different type than the rotation was described with.
#[test]
fn tables_of_another_type_are_refused() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let table = Layout::bshd([1, 40, 1, 32]);
    let (new, pages) = (Layout::bshd(NEW), Layout::bshd(PAGES));
    let append = Append::builder(ElementType::F16, [&new, &new], [&pages, &pages])
        .device_slots()
        .device_positions(true)
        .rotary(Rotary::with_tables(ElementType::F32, table, Pairing::HalfSplit).unwrap())
        .queries(Layout::bshd(QUERIES), None)
        .build()
        .unwrap();
    let right = DeviceBuffer::<f32>::zeroed(&stream, 40 * 32).unwrap();
    let wrong = DeviceBuffer::<f16>::zeroed(&stream, 2 * 40 * 32).unwrap();
    let prepared = gpu.prepare_append(ElementType::F16).unwrap();
    let mut memory = Memory::new(&stream);
    let bindings = memory.bindings().with(Operand::Cos, right.as_slice());
    let bindings = bindings.with(Operand::Sin, wrong.as_slice());
    let error = prepared.launch(&stream, &append, &bindings).unwrap_err();
    assert_eq!(
        error.to_string(),
        "sin has elements of type f16, but must have f32"
    );
    let bindings = bindings.with(Operand::Sin, right.as_slice());
    prepared.launch(&stream, &append, &bindings).unwrap();
}

#[test]
fn a_graph_keeps_the_cache_and_the_numbers() {
    replayed_twice(
        Memory::new,
        |gpu, [with_host, memory], stream| {
            let prepared = gpu.prepare_append(ElementType::F16)?;
            let (new, pages) = (Layout::bshd(NEW), Layout::bshd(PAGES));
            let on_host = Append::builder(ElementType::F16, [&new, &new], [&pages, &pages])
                .slots(&[5; 6])
                .build()?;
            prepared.launch(stream, &description(), &memory.bindings())?;
            prepared.launch(stream, &on_host, &with_host.cache())
        },
        |launches| {
            assert_eq!(launches.len(), 4);
            let block: abi::Append = block(&launches[3]);
            assert_eq!(on_device::<i64>(block.slots, 6), [5; 6]);
        },
    );
}

#[test]
fn every_failure_of_a_write_is_survived() {
    every_failure_is_survived(|driver| {
        let backend = Backend::cuda_with(driver, 0)?;
        let upload = |shape| backend.tensor(&vec![f16::ONE; len(shape)], shape);
        let (k, v) = (upload(NEW)?, upload(NEW)?);
        let (mut keys, mut values, mut q) = (upload(PAGES)?, upload(PAGES)?, upload(QUERIES)?);
        CacheWrite::new(&k, &v, (&mut keys, &mut values))
            .after(&[1, 2])
            .block_table(&[0, 1], 1)
            .rotary(rotary())
            .queries(&mut q)
            .run()?;
        assert_eq!(
            keys.to_vec()?.len() + q.to_vec()?.len(),
            len(PAGES) + len(QUERIES)
        );
        backend.synchronize()
    });
}
