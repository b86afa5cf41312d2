//! Keys and values in pages: what of them reaches a kernel, and what is refused.

use half::f16;
use warptile::gpu::{Gpu, Prepared};
use warptile::kernels::{Image, catalog};
use warptile::plan::{Choice, Planner};
use warptile::spec::{Call, CallBuilder, Features, Operand, Slots, TableLayout};
use warptile::{Attention, ElementType, Error, Keys, Layout};
use warptile_driver::{DeviceBuffer, Graph, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::calls::on_device;
use crate::{Buffers, PLAIN, addresses, block, gpu, kernel, ones, ones_on};

/// Two sequences of 3 queries, and 9 pages of 16 rows with the heads outermost.
fn builder<'a>() -> CallBuilder<'a> {
    let q = Layout::bshd([2, 3, 2, 64]);
    let pages = Layout::bhsd([9, 2, 16, 64]);
    Call::builder(&q, &pages, &pages, ElementType::F16)
}

const TABLE: [i32; 6] = [8, 2, -1, 0, -1, -1];
const LENGTHS: [i32; 2] = [20, 16];

fn on_host() -> Call {
    let call = builder().block_table(&TABLE, [2, 3]).key_lengths(&LENGTHS);
    call.build().unwrap()
}

fn with_device_table(layout: TableLayout) -> Call {
    builder().device_block_table(layout).build().unwrap()
}

/// A kernel for the call that reads pages: one of the catalog, taken for one that does.
fn prepare(gpu: &Gpu, call: &Call) -> Prepared {
    let images = catalog().iter().filter(|image| image.kernel == PLAIN);
    let paged = images.map(|image| -> &'static Image {
        let mut image = image.clone();
        image.features |= Features::PAGED;
        Box::leak(Box::new(image))
    });
    let planner = Planner::new(gpu.profile()).images(paged);
    let plan = planner.plan(call.problem(), &kernel(PLAIN)).unwrap();
    gpu.load(plan).unwrap()
}

#[test]
fn a_table_on_the_host_travels_along() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let call = on_host();
        let prepared = prepare(&gpu, &call);
        let stream = Stream::new(gpu.context()).unwrap();
        let mut buffers = Buffers::new(&stream, &call);
        prepared
            .launch(&stream, &call, &buffers.bindings())
            .unwrap();
        stream.synchronize().unwrap();
        let block = block(&fake.launches()[0]);
        let pages = block.pages;
        assert_eq!((pages.rows, pages.count), (16, 9));
        // The column that no key needs stayed behind.
        assert_eq!(pages.table_row, 2);
        assert_eq!(on_device::<i32>(pages.table, 4), [8, 2, 0, -1]);
        let sequences = block.sequences;
        assert_eq!(on_device::<i32>(sequences.key_lengths, 2), LENGTHS);
        assert_eq!((sequences.key_len, sequences.key_rows), (20, 20));
        assert_eq!((sequences.batch, sequences.key_offsets), (2, 0));
        let (k, page) = (block.k, 2 * 16 * 64);
        assert_eq!((k.batch, k.head, k.row), (page, 16 * 64, 64));

        // The cache grew by a token: another table, the same problem.
        let grown = builder()
            .block_table(&[8, 2, 5, 0, 7, 3], [2, 3])
            .key_lengths(&[33, 17])
            .build()
            .unwrap();
        prepared
            .launch(&stream, &grown, &buffers.bindings())
            .unwrap();
        stream.synchronize().unwrap();
        let pages = crate::block(&fake.launches()[1]).pages;
        assert_eq!(on_device::<i32>(pages.table, 6), [8, 2, 5, 0, 7, 3]);
    }
    fake.assert_clean();
}

#[test]
fn a_call_whose_tiles_are_split_brings_the_places_of_its_parts() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        // 8 tiles of 64 rows, each with 4096 keys in pages of 16.
        let q = Layout::bshd([1, 64, 8, 64]);
        let pages = Layout::bshd([256, 16, 2, 64]);
        let call = Call::builder(&q, &pages, &pages, ElementType::F16)
            .device_block_table([1, 256])
            .build()
            .unwrap();
        let image = "wgmma_d64_64x128_w8_s2_f16_serving_sm_90a";
        let prepared = gpu
            .prepare(call.problem(), &Choice::Image(image.to_owned()))
            .unwrap();
        let stream = Stream::new(gpu.context()).unwrap();
        let mut buffers = Buffers::new(&stream, &call);
        let table = DeviceBuffer::<u32>::zeroed(&stream, 256).unwrap();
        let bindings = buffers
            .bindings()
            .with(Operand::BlockTable, table.as_slice());
        prepared.launch(&stream, &call, &bindings).unwrap();
        stream.synchronize().unwrap();
        let launch = &fake.launches()[0];
        let work = block(launch).work;
        assert!(work.splits > 1, "{work:?}");
        assert_eq!(launch.grid, [8 * work.splits as u32, 1, 1]);
        assert_eq!(work.semaphores, work.counter + 256);
        assert_eq!(work.partials, work.semaphores + 4096);
        // Boxes of 16 rows of a page, not of the 128 keys of a block: the maps of k and v differ from a dense call's.
        assert_eq!(block(launch).pages.rows, 16);

        // Pages that leave no box of 16 rows are refused, and it is said why.
        let pages = Layout::bshd([256, 24, 2, 64]);
        let call = Call::builder(&q, &pages, &pages, ElementType::F16)
            .device_block_table([1, 256])
            .build()
            .unwrap();
        let error = gpu.prepare(call.problem(), &Choice::Image(image.to_owned()));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("pages of a multiple of 16 rows"), "{error}");
    }
    fake.assert_clean();
}

#[test]
fn a_captured_launch_keeps_its_table() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let call = on_host();
        let prepared = prepare(&gpu, &call);
        let stream = Stream::new(gpu.context()).unwrap();
        let mut buffers = Buffers::new(&stream, &call);
        let graph = Graph::capture::<Error>(&stream, |stream| {
            prepared.launch(stream, &call, &buffers.bindings())
        })
        .unwrap();
        let other = builder().block_table(&[1; 4], [2, 2]).key_lengths(&[32; 2]);
        let other = other.build().unwrap();
        prepared
            .launch(&stream, &other, &buffers.bindings())
            .unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        let tables: Vec<Vec<i32>> = fake
            .launches()
            .iter()
            .map(|launch| on_device(block(launch).pages.table, 4))
            .collect();
        assert_eq!(tables, [[1, 1, 1, 1], [8, 2, 0, -1]]);
    }
    fake.assert_clean();
}

#[test]
fn a_table_on_the_device_is_passed_on_by_address() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let call = with_device_table(TableLayout::new([2, 3], 100));
        let prepared = prepare(&gpu, &call);
        let stream = Stream::new(gpu.context()).unwrap();
        let mut buffers = Buffers::new(&stream, &call);
        let table = DeviceBuffer::<u32>::zeroed(&stream, 103).unwrap();
        let launch = |buffers: &mut Buffers, table| {
            let bindings = buffers.bindings().with(Operand::BlockTable, table);
            prepared.launch(&stream, &call, &bindings)
        };
        launch(&mut buffers, table.as_slice()).unwrap();
        stream.synchronize().unwrap();
        let block = block(&fake.launches()[0]);
        assert_eq!(block.pages.table, table.pointer());
        assert_eq!(block.pages.table_row, 100);
        assert_eq!(
            (block.sequences.key_len, block.sequences.key_lengths),
            (48, 0)
        );
        let error = launch(&mut buffers, table.slice(..102).unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "block_table needs a buffer of 103 elements for its shape and strides, but has 102"
        );
        let error = prepared.launch(&stream, &call, &buffers.bindings());
        assert_eq!(
            error.unwrap_err().to_string(),
            "block_table is missing, but the call needs it"
        );
        let call = on_host();
        let bindings = buffers
            .bindings()
            .with(Operand::BlockTable, table.as_slice());
        let error = prepare(&gpu, &call).launch(&stream, &call, &bindings);
        assert_eq!(
            error.unwrap_err().to_string(),
            "block_table is given on the device, but the call has it on the host"
        );
        assert_eq!(fake.launches().len(), 1);
    }
    fake.assert_clean();
}

#[test]
fn the_raw_layer_checks_the_table() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let memory = DeviceBuffer::<u8>::zeroed(&stream, 1 << 20).unwrap();
    let at = |tensor: u64| memory.pointer() + (tensor << 16);
    let call = with_device_table(TableLayout::from([2, 3]));
    let prepared = prepare(&gpu, &call);
    let good = addresses([
        (Operand::Q, at(0)),
        (Operand::K, at(1)),
        (Operand::V, at(2)),
        (Operand::Out, at(3)),
        (Operand::Lse, at(4)),
        (Operand::BlockTable, at(5)),
    ]);
    let launch = |prepared: &Prepared, call: &Call, addresses: &Slots<u64>| {
        let _current = gpu.context().enter().unwrap();
        // SAFETY: the stand-in runs no kernel; the addresses it is given lie in `memory`.
        unsafe { prepared.launch_raw(stream.raw(), call, addresses, 0) }
    };
    for (operand, address, expected) in [
        (Operand::BlockTable, 0, "block_table is missing"),
        (Operand::BlockTable, at(5) + 2, "block_table starts at"),
        // The last of the 9 pages.
        (Operand::Out, at(1) + 8 * 4096 + 4080, "out overlaps k"),
        (Operand::Out, at(5) + 16, "out overlaps block_table"),
    ] {
        let mut addresses = good;
        addresses[operand] = address;
        let error = launch(&prepared, &call, &addresses)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let host = builder().block_table(&[1; 6], [2, 3]).build().unwrap();
    let error = launch(&prepared, &host, &good).unwrap_err().to_string();
    assert!(error.starts_with("block_table is on the host"), "{error}");
    let dense = {
        let tensor = Layout::bshd([2, 3, 2, 64]);
        let call = Call::builder(&tensor, &tensor, &tensor, ElementType::F16);
        call.build().unwrap()
    };
    let unpaged = gpu.prepare(dense.problem(), &kernel(PLAIN)).unwrap();
    let error = launch(&unpaged, &dense, &good).unwrap_err().to_string();
    assert!(error.starts_with("block_table is given"), "{error}");
    assert!(fake.launches().is_empty());
    launch(&prepared, &call, &good).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(block(&fake.launches()[0]).pages.table, at(5));
}

/// Keys and values of one tensor, page by page.
#[test]
fn interleaved_pages_are_a_matter_of_strides() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let (page, q) = (16 * 2 * 64, Layout::bshd([2, 3, 2, 64]));
    let pages = Layout::new([4, 16, 2, 64], [2 * page, 128, 64, 1]);
    let call = Call::builder(&q, &pages, &pages, ElementType::F16)
        .block_table(&[3, 1], [2, 1])
        .build()
        .unwrap();
    let prepared = prepare(&gpu, &call);
    let cache = DeviceBuffer::<f16>::zeroed(&stream, 8 * page).unwrap();
    let mut buffers = Buffers::new(&stream, &call);
    let bindings = warptile::gpu::Bindings::new(
        buffers.q.as_slice(),
        cache.as_slice(),
        cache.slice(page..).unwrap(),
        buffers.out.as_slice_mut(),
    );
    prepared
        .launch(
            &stream,
            &call,
            &bindings.output(Operand::Lse, buffers.lse.as_slice_mut()),
        )
        .unwrap();
    stream.synchronize().unwrap();
    let block = block(&fake.launches()[0]);
    assert_eq!(block.v.address - block.k.address, 2 * page as u64);
    assert_eq!((block.k.batch, block.k.row), (2 * page as i64, 128));
}

#[test]
fn without_a_kernel_for_pages_the_plan_says_so() {
    let fake = FakeDriver::open();
    // More queries than a kernel for decoding takes.
    let (backend, q) = ones(&fake, [2, 500, 2, 64]);
    let cache = ones_on(&backend, [9, 16, 2, 64]);
    let attention = Attention::new().choice(kernel(PLAIN));
    let host = Keys::paged(&cache, &cache, &TABLE, [2, 3]).lengths(&LENGTHS);
    let stream = backend.gpu().unwrap().stream();
    let table = DeviceBuffer::from_slice(stream, &TABLE).unwrap();
    let device = Keys::paged_on_device(&cache, &cache, table.as_slice(), [2, 3]);
    for keys in [host, device] {
        let error = attention.forward(&q, keys).unwrap_err();
        assert!(matches!(error, Error::NoKernel { .. }), "{error}");
        let reason = "does not support paged keys";
        assert!(error.to_string().contains(reason), "{error}");
    }
    let short = table.slice(..5).unwrap();
    let keys = Keys::paged_on_device(&cache, &cache, short, [2, 3]);
    let error = attention.forward(&q, keys).unwrap_err().to_string();
    assert!(
        error.starts_with("block_table needs a buffer of 6"),
        "{error}"
    );
    assert!(fake.launches().is_empty());
    drop((q, cache, table, backend));
    fake.assert_clean();
}
