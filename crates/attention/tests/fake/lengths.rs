//! Lengths as values of the call: they reach the kernel, and a new batch neither plans nor waits.

use warptile::{Attention, Keys, Queries};
use warptile_driver::DeviceBuffer;
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::calls::on_device;
use crate::{PLAIN, block, kernel, ones};

#[test]
fn every_packed_batch_brings_its_own_offsets_and_none_waits() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [1, 100, 2, 64]);
    let attention = Attention::new().choice(kernel(PLAIN));
    let batches: Vec<[i32; 3]> = (0..40).map(|i| [0, 30 + i, 100 - i / 2]).collect();
    let key_offsets = [0, 40, 90];
    let waits = || {
        [
            "cuStreamSynchronize",
            "cuCtxSynchronize",
            "cuEventSynchronize",
        ]
        .map(|symbol| fake.calls_of(symbol))
    };
    let mut plans = Vec::new();
    let mut kept = Vec::new();
    for _ in 0..3 {
        for offsets in &batches {
            let before = waits();
            let (queries, keys) = (Queries::new(&x), Keys::new(&x, &x));
            let output = attention
                .forward(queries.packed(offsets), keys.packed(&key_offsets))
                .unwrap();
            // The first call loads the kernel.
            assert!(plans.is_empty() || waits() == before, "a call waited");
            if !plans.contains(output.plan.problem()) {
                plans.push(*output.plan.problem());
            }
            backend.synchronize().unwrap();
            let launches = fake.launches();
            fake.forget_launches();
            assert_eq!(launches.len(), 1);
            let lengths = block(&launches[0]).sequences;
            assert_eq!(
                (lengths.batch, lengths.query_rows, lengths.key_rows),
                (2, 100, 100)
            );
            assert_eq!(lengths.key_len, 50);
            assert_eq!(lengths.query_len, offsets[1].max(offsets[2] - offsets[1]));
            assert_eq!(on_device::<i32>(lengths.query_offsets, 3), offsets);
            assert_eq!(on_device::<i32>(lengths.key_offsets, 3), key_offsets);
        }
        kept.push(fake.live(Kind::DeviceMemory));
    }
    // The longest sequence decides, in eighths of powers of two: 50 to 80 rows.
    assert!(plans.len() <= 8, "{}", plans.len());
    // The memory of one round serves the next.
    assert_eq!(kept[0], kept[2]);
    drop((backend, x));
    fake.assert_clean();
}

#[test]
fn queries_and_keys_are_packed_or_dense_independently() {
    let fake = FakeDriver::open();
    let (backend, packed) = ones(&fake, [1, 6, 2, 64]);
    let dense = crate::ones_on(&backend, [2, 9, 2, 64]);
    let attention = Attention::new().choice(kernel(PLAIN));
    let queries = Queries::new(&packed).packed(&[0, 1, 6]);
    attention
        .forward(queries, Keys::new(&dense, &dense).lengths(&[4, 9]))
        .unwrap();
    let keys = Keys::new(&packed, &packed).packed(&[0, 1, 6]);
    attention.forward(&dense, keys).unwrap();
    backend.synchronize().unwrap();
    let blocks: Vec<_> = fake.launches().iter().map(block).collect();
    let given = |at: usize| {
        let lengths = blocks[at].sequences;
        [
            lengths.query_offsets,
            lengths.key_offsets,
            lengths.query_lengths,
            lengths.key_lengths,
        ]
        .map(|address| address != 0)
    };
    assert_eq!(given(0), [true, false, false, true]);
    assert_eq!(given(1), [false, true, false, false]);
    assert_eq!((blocks[0].q.batch, blocks[0].k.batch), (0, 9 * 2 * 64));
    drop((packed, dense, backend));
    fake.assert_clean();
}

#[test]
fn lengths_on_the_device_are_passed_on_by_address() {
    let fake = FakeDriver::open();
    let (backend, q) = ones(&fake, [3, 1, 2, 64]);
    let cache = crate::ones_on(&backend, [3, 500, 2, 64]);
    let stream = backend.gpu().unwrap().stream();
    let used = DeviceBuffer::from_slice(stream, &[7_u32, 500, 0]).unwrap();
    let keys = Keys::new(&cache, &cache).lengths_on_device(used.as_slice());
    let attention = Attention::new().choice(kernel(PLAIN));
    attention.forward(&q, keys).unwrap();
    backend.synchronize().unwrap();
    let lengths = block(&fake.launches()[0]).sequences;
    assert_eq!(
        (lengths.key_lengths, lengths.key_len),
        (used.pointer(), 500)
    );
    let short = used.slice(..2).unwrap();
    let keys = Keys::new(&cache, &cache).lengths_on_device(short);
    let error = attention.forward(&q, keys).unwrap_err().to_string();
    assert!(error.starts_with("key_lengths[2] ends the list"), "{error}");
    drop((q, cache, used, backend));
    fake.assert_clean();
}

/// Rows that no sequence owns, or that only the device knows, are zeroed before; a batch without any is not.
#[test]
fn outputs_with_gaps_are_zeroed() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [1, 10, 2, 64]);
    let fills = |offsets: &[i32]| {
        let before = fake.calls_of("cuMemsetD8Async");
        let keys = Keys::new(&x, &x).packed(offsets);
        let queries = Queries::new(&x).packed(offsets);
        let output = Attention::new()
            .choice(kernel(PLAIN))
            .forward(queries, keys)
            .unwrap();
        backend.synchronize().unwrap();
        (fake.calls_of("cuMemsetD8Async") - before, output)
    };
    assert_eq!(fills(&[0, 4, 10]).0, 0);
    let (count, output) = fills(&[0, 4, 9]);
    assert_eq!(count, 2);
    // The stand-in runs no kernel, so everything is still as it was filled.
    assert!(
        output
            .out
            .to_vec()
            .unwrap()
            .iter()
            .all(|x| x.to_f32() == 0.0)
    );
    drop(output);
    drop((x, backend));
    fake.assert_clean();
}
