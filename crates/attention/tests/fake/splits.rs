//! Keys cut at fixed places: what reaches a kernel, and the workspace that grows for it.

use warptile::gpu::{Gpu, Prepared, Session};
use warptile::plan::Choice;
use warptile::spec::{Call, Invalid, Operand};
use warptile::{Attention, ElementType, Error, Keys, Layout, Splits};
use warptile_driver::{DeviceBuffer, Graph, Stream};
use warptile_fake_cuda::FakeDriver;
use warptile_kernels::Schedule;

use crate::{Buffers, addresses, block, gpu, ones};

fn call(batch: usize, keys: usize, splits: Splits) -> Call {
    let q = Layout::bshd([batch, 1, 8, 64]);
    // All sequences have the same keys.
    let kv = Layout::new([batch, keys, 2, 64], [0, 128, 64, 1]);
    Call::builder(&q, &kv, &kv, ElementType::F16)
        .splits(splits)
        .build()
        .unwrap()
}

fn every_256(batch: usize, keys: usize) -> Call {
    call(batch, keys, Splits::EveryKeys(256))
}

fn prepare(gpu: &Gpu, call: &Call) -> Prepared {
    gpu.prepare(call.problem(), &Choice::Best).unwrap()
}

/// Parts and bytes of a launch of one query row a sequence: 4 heads are rows of one tile of 16.
const PART_BYTES: usize = 16 * (64 + 2) * 4;

#[test]
fn the_block_says_where_keys_are_cut() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let stream = Stream::new(gpu.context()).unwrap();
        for (splits, expected) in [
            (Splits::Even, 0),
            (Splits::EveryKeys(256), 256),
            (Splits::EveryKeys(1 << 20), 1 << 20),
        ] {
            let call = call(1, 1000, splits);
            let prepared = prepare(&gpu, &call);
            assert_eq!(prepared.plan().problem().splits(), splits);
            let mut buffers = Buffers::new(&stream, &call);
            prepared
                .launch(&stream, &call, &buffers.bindings())
                .unwrap();
            stream.synchronize().unwrap();
            let launches = fake.launches();
            let work = block(launches.last().unwrap()).work;
            assert_eq!(work.keys_per_split, expected);
            assert!(work.semaphores != 0 && work.partials != 0);
        }
    }
    fake.assert_clean();
}

/// Where CTAs draw tiles from a counter, a part's writer may not have begun yet, and nobody may wait for it.
#[test]
fn without_a_counter_all_who_left_a_part_of_packed_rows_add_it_up() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let stream = Stream::new(gpu.context()).unwrap();
        for (batch, packs, adds_up) in [(1, true, true), (512, true, false), (1, false, false)] {
            // 384 rows of a key/value head, or 8.
            let kv_heads = if packs { 1 } else { 48 };
            let q = Layout::bshd([batch, 8, 48, 128]);
            let kv = Layout::new([batch, 8192, kv_heads, 128], [0, 128 * kv_heads, 128, 1]);
            let call = Call::builder(&q, &kv, &kv, ElementType::F16)
                .build()
                .unwrap();
            let prepared = prepare(&gpu, &call);
            let image = prepared.plan().image().unwrap();
            let groups = image.schedule == Schedule::PersistentGroups;
            assert_eq!(groups && image.tiling.block_m > 64, packs, "{}", image.name);
            let mut buffers = Buffers::new(&stream, &call);
            prepared
                .launch(&stream, &call, &buffers.bindings())
                .unwrap();
            stream.synchronize().unwrap();
            let work = block(fake.launches().last().unwrap()).work;
            assert_eq!(work.counter == 0, adds_up, "{}", image.name);
        }
    }
    fake.assert_clean();
}

/// Where the workspaces of all launches begin.
fn workspaces(fake: &FakeDriver) -> Vec<u64> {
    let launches = fake.launches();
    launches
        .iter()
        .map(|launch| block(launch).work.counter)
        .collect()
}

#[test]
fn a_streams_workspace_grows_and_is_used_again() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let stream = Stream::new(gpu.context()).unwrap();
        let calls = [
            // The first workspace has room for any call that does not cut keys at fixed places.
            every_256(1, 1000),
            call(16, 3000, Splits::Even),
            // 64 * 2 * 64 parts are 34 MB, ...
            every_256(64, 16384),
            every_256(1, 1000),
            call(16, 3000, Splits::Even),
            // ... and memory grows in powers of two: half as many more are in the same, ...
            every_256(96, 16384),
            // ... and twice as many are not.
            every_256(128, 16384),
            every_256(64, 16384),
        ];
        let (mut most, mut sizes) = (0, Vec::new());
        for call in &calls {
            let prepared = prepare(&gpu, call);
            let mut buffers = Buffers::new(&stream, call);
            prepared.launch(&stream, call, &buffers.bindings()).unwrap();
            most = most.max(prepared.plan().scratch().bytes);
            sizes.push(prepared.plan().scratch().bytes);
        }
        stream.synchronize().unwrap();
        assert_eq!(sizes[2], 256 + 4 * 1024 + 64 * 2 * 64 * PART_BYTES);
        assert!(sizes[0] < sizes[1] && sizes[2] < sizes[5]);
        let at = workspaces(&fake);
        assert_eq!(at[0], at[1]);
        assert_ne!(at[1], at[2]);
        // A grown workspace stays in use.
        assert!(at[2..=5].iter().all(|&one| one == at[2]), "{at:x?}");
        assert!(!at[..6].contains(&at[6]), "{at:x?}");
        assert_eq!(at[6], at[7]);
        // Where earlier launches may still leave parts there is none of the new memory.
        assert!(at[6].abs_diff(at[2]) >= sizes[2] as u64);
        assert_eq!(fake.violations(), Vec::<String>::new());
    }
    fake.assert_clean();
}

#[test]
fn a_graph_has_a_workspace_of_its_own_size() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let stream = Stream::new(gpu.context()).unwrap();
        let calls = [every_256(1, 1000), every_256(64, 16384)];
        let prepared: Vec<Prepared> = calls.iter().map(|call| prepare(&gpu, call)).collect();
        let mut buffers: Vec<Buffers> =
            { calls.iter().map(|call| Buffers::new(&stream, call)) }.collect();
        let mut launch = |stream: &Stream, which: usize| {
            let bindings = buffers[which].bindings();
            prepared[which].launch(stream, &calls[which], &bindings)
        };
        let graph = Graph::capture::<Error>(&stream, |stream| {
            launch(stream, 0)?;
            launch(stream, 1)
        })
        .unwrap();
        launch(&stream, 1).unwrap();
        graph.launch(&stream).unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        let at = workspaces(&fake);
        assert_eq!(at[1..3], at[3..5]);
        assert!(
            at[0] != at[1] && at[0] != at[2] && at[1] != at[2],
            "{at:x?}"
        );
    }
    fake.assert_clean();
}

#[test]
fn a_session_is_made_for_the_plans_it_runs() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let (small, large) = (every_256(1, 1000), every_256(128, 16384));
    let memory = DeviceBuffer::<u8>::zeroed(&stream, 5 << 22).unwrap();
    let place = |tensor: u64| memory.pointer() + (tensor << 22);
    let at = addresses([
        (Operand::Q, place(0)),
        (Operand::K, place(1)),
        (Operand::V, place(2)),
        (Operand::Out, place(3)),
        (Operand::Lse, place(4)),
    ]);
    let launch = |session: &Session, call: &Call| {
        let _current = gpu.context().enter().unwrap();
        // SAFETY: the stand-in runs no kernel; the addresses it is given lie in `memory`.
        unsafe { session.launch(&prepare(&gpu, call), call, &at) }
    };
    let session = Session::new(&gpu, stream.raw()).unwrap();
    launch(&session, &small).unwrap();
    let error = launch(&session, &large).unwrap_err();
    let scratch = prepare(&gpu, &large).plan().scratch();
    assert!(
        matches!(error, Error::SessionTooSmall { needed, .. } if needed == scratch.bytes),
        "{error}"
    );
    let session = Session::with_scratch(&gpu, stream.raw(), scratch).unwrap();
    launch(&session, &large).unwrap();
    launch(&session, &small).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(fake.launches().len(), 3);
    let at = workspaces(&fake);
    assert!(at[0] != at[1] && at[1] == at[2]);
}

#[test]
fn a_wrong_number_of_keys_is_refused() {
    let fake = FakeDriver::open();
    let (backend, q) = ones(&fake, [1, 1, 2, 64]);
    for keys in [0, 1, 128, 384, (1 << 20) + 1, 1 << 21] {
        let attention = Attention::new().splits(Splits::EveryKeys(keys));
        let error = attention.forward(&q, Keys::new(&q, &q)).unwrap_err();
        assert!(
            matches!(error, Error::Invalid(Invalid::Splits { keys: found }) if found == keys),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .ends_with("a power of two from 256 to 1048576")
        );
    }
    let attention = Attention::new().splits(Splits::EveryKeys(512));
    let plan = attention.plan(&q, Keys::new(&q, &q)).unwrap();
    assert_eq!(plan.problem().splits(), Splits::EveryKeys(512));
    assert!(fake.launches().is_empty());
    drop((q, backend));
    fake.assert_clean();
}
