//! A cache on a GPU: where its numbers are, what kernels are told of them, captures, and failures.

use bytemuck::Pod;
use half::f16;
use quickcheck::QuickCheck;
use warptile::cache::{KvCacheBuilder, SequenceId};
use warptile::kernels::abi;
use warptile::spec::{Pairing, Rotary};
use warptile::{Attention, Backend, ElementType, Error, KvCache, Mask, Result, Tensor};
use warptile_driver::{Driver, DriverError, Graph};
use warptile_fake_cuda::{FakeDriver, FakeLaunch};

use crate::calls::on_device;
use crate::faults::every_failure_is_survived;
use crate::{block, driver};

const SEQUENCES: usize = 3;
const COLUMNS: usize = 6;

fn open(driver: &Driver) -> Result<(Backend, KvCache<f16>)> {
    let backend = Backend::cuda_with(driver, 0)?;
    let cache = KvCache::builder(2, 64)
        .layers(2)
        .pages(10)
        .sequences(SEQUENCES)
        .longest(16 * COLUMNS)
        .build(&backend)?;
    Ok((backend, cache))
}

fn tensor(backend: &Backend, shape: [usize; 4]) -> Result<Tensor<f16>> {
    let data = vec![f16::ONE; shape.iter().product()];
    backend.tensor(&data, shape)
}

fn written(launch: &FakeLaunch) -> abi::Append {
    assert_eq!(launch.name(), "warptile_append_w4_f16");
    bytemuck::pod_read_unaligned(launch.params())
}

/// Appends new rows of every sequence to both layers.
fn append(cache: &mut KvCache<f16>, kv: &Tensor<f16>, q: &mut Tensor<f16>) -> Result<()> {
    for layer in 0..2 {
        let rotary = Rotary::computed(64, 10_000.0, Pairing::HalfSplit)?;
        let write = cache.append(layer, kv, kv)?;
        write.rotary(rotary).queries(q).run()?;
    }
    Ok(())
}

/// The numbers that a cache is to have on the device, given the rows of each sequence before the step.
fn check_numbers(cache: &KvCache<f16>, block: &abi::Append, step: &[(SequenceId, i32)]) {
    let before = on_device::<i32>(block.sequences.key_lengths, step.len());
    assert_eq!(before, step.iter().map(|step| step.1).collect::<Vec<_>>());
    assert_eq!(block.pages.table_row, COLUMNS as i64);
    let table = on_device::<i32>(block.pages.table, step.len() * COLUMNS);
    for (&(id, _), row) in step.iter().zip(table.chunks(COLUMNS)) {
        let pages = cache.pages_of(id).unwrap();
        let (used, rest) = row.split_at(pages.len());
        assert_eq!(used, pages);
        assert!(rest.iter().all(|&entry| entry == -1));
    }
}

#[test]
fn writes_find_the_numbers_of_their_step_at_one_address() {
    let fake = FakeDriver::open();
    {
        let (backend, mut cache) = open(&driver(&fake)).unwrap();
        let ids = [(); 3].map(|()| cache.allocate());
        let mut places = Vec::new();
        let mut lens = [0; 3];
        // The second step takes no page, the third has other sequences, the last is shorter.
        let steps: [&[(usize, i32)]; 5] = [
            &[(0, 5), (1, 16)],
            &[(0, 2), (1, 0)],
            &[(2, 33), (0, 1), (1, 1)],
            &[(2, 1), (0, 8), (1, 40)],
            &[(1, 1)],
        ];
        for step in steps {
            let rows: Vec<(SequenceId, usize)> =
                step.iter().map(|&(i, n)| (ids[i], n as usize)).collect();
            cache.step(&rows).unwrap();
            let all = rows.iter().map(|row| row.1).sum();
            let kv = tensor(&backend, [1, all, 2, 64]).unwrap();
            let mut q = tensor(&backend, [1, all, 4, 64]).unwrap();
            append(&mut cache, &kv, &mut q).unwrap();
            backend.synchronize().unwrap();
            let launches = fake.launches();
            let (first, second) = (written(&launches[0]), written(&launches[1]));
            fake.forget_launches();
            let before: Vec<_> = step.iter().map(|&(i, _)| (ids[i], lens[i])).collect();
            check_numbers(&cache, &first, &before);
            assert_ne!(first.k_pages.address, second.k_pages.address);
            assert_eq!(first.pages.table, second.pages.table);
            places.push((first.sequences.key_lengths, first.pages.table));
            for &(i, new) in step {
                lens[i] += new;
            }
        }
        assert!(places.iter().all(|place| *place == places[0]));
        cache.free(ids[0]).unwrap();
        cache.step_padded(&[(ids[1], 1)], 3).unwrap();
        let kv = tensor(&backend, [3, 1, 2, 64]).unwrap();
        let mut q = tensor(&backend, [3, 1, 4, 64]).unwrap();
        append(&mut cache, &kv, &mut q).unwrap();
        backend.synchronize().unwrap();
        let block = written(&fake.launches()[0]);
        assert_eq!(
            on_device::<i32>(block.sequences.key_lengths, 3),
            [lens[1], 0, 0]
        );
        let table = on_device::<i32>(block.pages.table, 3 * COLUMNS);
        assert!(table[COLUMNS..].iter().all(|&entry| entry == -1));
    }
    fake.assert_clean();
}

/// A long prompt among single tokens: the grid has the rows that there are, not as many for each sequence as the prompt has.
#[test]
fn a_grid_has_the_rows_of_the_step() {
    let fake = FakeDriver::open();
    {
        let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
        for (prompt, others, rows) in [
            (8192, 63, 8192 + 63 + 64),
            (100_000, 4095, 100_000 + 4095 + 4096),
            (1, 63, 64),
            // One more for each sequence would be more.
            (2, 2, 6),
        ] {
            let mut cache = KvCache::<f16>::builder(1, 8)
                .pages(6250 + others + 1)
                .sequences(others + 1)
                .build(&backend)
                .unwrap();
            let long = (cache.allocate(), prompt);
            let short: Vec<_> = (0..others).map(|_| (cache.allocate(), 1)).collect();
            cache.step(&[&[long], &short[..]].concat()).unwrap();
            let kv = tensor(&backend, [1, prompt + others, 1, 8]).unwrap();
            fake.forget_launches();
            cache.append(0, &kv, &kv).unwrap().run().unwrap();
            backend.synchronize().unwrap();
            let launch = &fake.launches()[0];
            assert_eq!((launch.grid, written(launch).row_ctas), ([rows, 1, 1], 1));
        }
    }
    fake.assert_clean();
}

#[test]
fn values_may_have_another_head_size() {
    let fake = FakeDriver::open();
    {
        let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
        let mut cache = KvCache::<f16>::builder(2, 192)
            .value_dim(128)
            .pages(10)
            .build(&backend)
            .unwrap();
        let sequence = cache.allocate();
        cache.step(&[(sequence, 20)]).unwrap();
        let k = tensor(&backend, [1, 20, 2, 192]).unwrap();
        let v = tensor(&backend, [1, 20, 2, 128]).unwrap();
        let wrong = cache.append(0, &k, &k).unwrap().run().unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "v_pages has head size 128, but v has 192"
        );
        cache.append(0, &k, &v).unwrap().run().unwrap();
        let q = tensor(&backend, [1, 20, 4, 192]).unwrap();
        let keys = cache.keys(0).unwrap();
        let done = Attention::new().mask(Mask::causal()).forward(&q, keys);
        assert_eq!(done.unwrap().out.shape(), [1, 20, 4, 128]);
        backend.synchronize().unwrap();
        let block = written(&fake.launches()[0]);
        for (pages, size) in [(block.k_pages, 192), (block.v_pages, 128)] {
            let found = (pages.batch, pages.row, pages.head);
            assert_eq!(found, (16 * 2 * (192 + 128), 2 * size, size));
        }
    }
    fake.assert_clean();
}

/// The pages of keys and of values that a step's write and its read are told of, after both were launched without a wait between them.
/// Where no kernel reads such a cache, only the write's.
fn pages_of_a_step<C: Pod>(
    fake: &FakeDriver,
    backend: &Backend,
    builder: KvCacheBuilder<f16>,
    [size, value_size]: [usize; 2],
    views: impl Fn(&KvCache<f16>) -> Result<[Tensor<C>; 2]>,
) -> Vec<[abi::Tensor; 2]> {
    let mut cache = builder
        .value_dim(value_size)
        .pages(5)
        .build(backend)
        .unwrap();
    let sequence = cache.allocate();
    cache.step(&[(sequence, 3)]).unwrap();
    let k = tensor(backend, [1, 3, 1, size]).unwrap();
    let v = tensor(backend, [1, 3, 1, value_size]).unwrap();
    fake.forget_launches();
    cache.append(0, &k, &v).unwrap().run().unwrap();
    let read = Attention::new().forward(&k, cache.keys(0).unwrap());
    backend.synchronize().unwrap();
    let launches = fake.launches();
    assert_eq!(launches.len(), 1 + usize::from(read.is_ok()));
    let write: abi::Append =
        bytemuck::pod_read_unaligned(&launches[0].params()[..size_of::<abi::Append>()]);
    let mut pages = vec![[write.k_pages, write.v_pages]];
    pages.extend(launches.get(1).map(|read| [block(read).k, block(read).v]));
    // The views for kernels of one's own are of the same places.
    let views = views(&cache).unwrap();
    for [keys, values] in &pages {
        for (given, view) in [(keys, &views[0]), (values, &views[1])] {
            assert_eq!(given.address, view.device_slice().unwrap().pointer());
            assert_eq!(given.batch as usize, view.layout().strides[0]);
        }
    }
    pages
}

/// Keys and values are in one allocation, of each page the values after the keys.
#[test]
fn a_pages_keys_and_values_lie_next_to_each_other() {
    let fake = FakeDriver::open();
    {
        let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
        let check =
            |pages: Vec<[abi::Tensor; 2]>, launches, bytes: u64, [values_at, page]: [u64; 2]| {
                assert_eq!(pages.len(), launches);
                for [k, v] in pages {
                    assert!(k.address.is_multiple_of(16));
                    assert_eq!(v.address, k.address + values_at);
                    assert_eq!(
                        [k.batch, v.batch].map(|elements| elements as u64 * bytes),
                        [page; 2]
                    );
                }
            };
        for (sizes, rows, places) in [
            ([64, 64], 16, [16 * 128, 16 * 256]),
            ([192, 128], 16, [16 * 384, 16 * 640]),
            ([8, 8], 1, [16, 32]),
        ] {
            let builder = KvCache::builder(1, sizes[0]).page_rows(rows);
            let views = |cache: &KvCache<f16>| cache.tensors(0);
            let pages = pages_of_a_step(&fake, &backend, builder, sizes, views);
            check(pages, 2, 2, places);
        }
        // A page's keys and values of the last are 8 bytes each, with a gap of 8 behind them. No kernel reads such heads in 8 bits.
        for (sizes, rows, launches, places) in [
            ([64, 64], 16, 2, [16 * 64, 16 * 128]),
            ([8, 8], 1, 1, [16, 32]),
        ] {
            let builder = KvCache::builder(1, sizes[0]).page_rows(rows);
            let builder = builder.quantized(ElementType::E4m3);
            let views = |cache: &KvCache<f16>| cache.bits(0);
            let pages = pages_of_a_step(&fake, &backend, builder, sizes, views);
            check(pages, launches, 1, places);
        }
    }
    fake.assert_clean();
}

/// Long tables are sent in part. The device has the pages of the step after any history of changes.
#[test]
fn what_is_sent_is_what_has_changed() {
    const LONG: usize = 6000;
    fn right(changes: Vec<(u8, u8, u16)>) -> bool {
        // One for all problems: each loaded stand-in takes many thread-local variables, and their number is limited.
        thread_local! {
            static PLACE: (FakeDriver, Backend) = {
                let fake = FakeDriver::open();
                let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
                (fake, backend)
            };
        }
        PLACE.with(|(fake, backend)| follows(&changes, fake, backend))
    }
    fn follows(changes: &[(u8, u8, u16)], fake: &FakeDriver, backend: &Backend) -> bool {
        fake.forget_launches();
        let mut cache = KvCache::<f16>::builder(1, 8)
            .page_rows(1)
            .pages(3 * LONG)
            .sequences(SEQUENCES)
            .longest(LONG)
            .build(backend)
            .unwrap();
        let mut ids: Vec<SequenceId> = (0..5).map(|_| cache.allocate()).collect();
        // Where the numbers are.
        cache.step(&[(ids[0], 1)]).unwrap();
        let kv = tensor(backend, [1, 1, 1, 8]).unwrap();
        cache.append(0, &kv, &kv).unwrap().run().unwrap();
        backend.synchronize().unwrap();
        let block = written(&fake.launches()[0]);
        for &(what, which, much) in changes {
            let (any, much) = (usize::from(which % 5), usize::from(much));
            let len = cache.len(ids[any]).unwrap();
            match what % 10 {
                0 => cache.truncate(ids[any], much % (len + 1)).unwrap(),
                1 => {
                    cache.free(ids[any]).unwrap();
                    ids[any] = cache.allocate();
                }
                2 => {
                    // No part of a graph, so this fails halfway.
                    let stream = backend.gpu().unwrap().stream();
                    let step = [(ids[any], 1)];
                    assert!(Graph::capture::<Error>(stream, |_| cache.step(&step)).is_err());
                }
                _ => {
                    ids.swap(0, any);
                    let (count, batch) = (much % 4, (much % 4).max(much / 4 % 4));
                    let rows: Vec<_> = { ids[..count].iter() }
                        .zip([1, [0, 1, 5, 900][much / 16 % 4], much % 8])
                        .map(|(&id, new)| (id, new))
                        .collect();
                    let before: Vec<_> = { rows.iter() }
                        .map(|&(id, _)| cache.len(id).unwrap() as i32)
                        .collect();
                    if cache.step_padded(&rows, batch).is_err() {
                        continue;
                    }
                    backend.synchronize().unwrap();
                    let table = on_device::<i32>(block.pages.table, batch * LONG);
                    for (place, row) in table.chunks(LONG).enumerate() {
                        let pages = rows.get(place).map(|&(id, _)| cache.pages_of(id).unwrap());
                        let (used, rest) = row.split_at(pages.map_or(0, <[i32]>::len));
                        if used != pages.unwrap_or_default() || rest.iter().any(|&page| page != -1)
                        {
                            return false;
                        }
                    }
                    let mut lengths = on_device::<i32>(block.sequences.key_lengths, batch);
                    if lengths.split_off(count).iter().any(|&len| len != 0) || lengths != before {
                        return false;
                    }
                }
            }
        }
        true
    }
    QuickCheck::new()
        .tests(60)
        .quickcheck(right as fn(Vec<(u8, u8, u16)>) -> bool);
}

#[test]
fn a_captured_write_follows_the_steps() {
    let fake = FakeDriver::open();
    {
        let (backend, mut cache) = open(&driver(&fake)).unwrap();
        let stream = backend.gpu().unwrap().stream().clone();
        let ids = [cache.allocate(), cache.allocate()];
        let step = [(ids[0], 1), (ids[1], 1)];
        let kv = tensor(&backend, [2, 1, 2, 64]).unwrap();
        let mut q = tensor(&backend, [2, 1, 4, 64]).unwrap();
        cache.step(&step).unwrap();
        append(&mut cache, &kv, &mut q).unwrap();
        let capture = Graph::capture::<Error>(&stream, |_| append(&mut cache, &kv, &mut q));
        let graph = capture.unwrap();
        stream.synchronize().unwrap();
        for replay in 1..40 {
            cache.step(&step).unwrap();
            fake.forget_launches();
            graph.launch(&stream).unwrap();
            stream.synchronize().unwrap();
            let block = written(&fake.launches()[1]);
            check_numbers(&cache, &block, &[(ids[0], replay), (ids[1], replay)]);
        }

        // A step is not part of a graph.
        let free = cache.free_pages();
        let lens = ids.map(|id| cache.len(id).unwrap());
        let error = Graph::capture::<Error>(&stream, |_| cache.step(&[(ids[0], 17)])).unwrap_err();
        let capturing = matches!(error, Error::Driver(DriverError::Capturing { .. }));
        assert!(capturing, "{error}");
        assert_eq!(cache.free_pages(), free);
        assert_eq!(ids.map(|id| cache.len(id).unwrap()), lens);
        let error = cache.append(0, &kv, &kv).unwrap_err().to_string();
        assert_eq!(error, "k has rows, but the cache is in no step");
        cache.step(&step).unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        let block = written(&fake.launches()[1]);
        check_numbers(&cache, &block, &ids.map(|id| (id, 40)));
    }
    fake.assert_clean();
}

/// The numbers are on the device, but the host knows them, too.
#[test]
fn tables_of_angles_that_are_too_short_are_refused() {
    let fake = FakeDriver::open();
    {
        let (backend, mut cache) = open(&driver(&fake)).unwrap();
        let ids = [(); 2].map(|()| cache.allocate());
        cache.step(&[(ids[0], 5), (ids[1], 20)]).unwrap();
        cache.step(&[(ids[0], 2), (ids[1], 2)]).unwrap();
        let kv = tensor(&backend, [2, 2, 2, 64]).unwrap();
        for (rows, fits) in [(22, true), (21, false)] {
            let table = tensor(&backend, [1, rows, 1, 32]).unwrap();
            let write = cache.append(0, &kv, &kv).unwrap();
            let write = write.rotary_tables(&table, &table, Pairing::HalfSplit);
            let error = write.unwrap().run().err().map(|error| error.to_string());
            let expected = "key_lengths[1] is 20, and 2 rows follow, but cos and sin have rows for 21 positions";
            assert_eq!(error, (!fits).then(|| expected.to_owned()));
        }
        backend.synchronize().unwrap();
        assert_eq!(fake.launches().len(), 1);
    }
    fake.assert_clean();
}

/// A decoder's step: both layers write, and attend to what they wrote.
fn decode(
    cache: &mut KvCache<f16>,
    kv: &Tensor<f16>,
    [q, rotated, out]: &mut [Tensor<f16>; 3],
) -> Result<()> {
    let attention = Attention::new().mask(Mask::causal()).sinks(&[0.5; 4]);
    for layer in 0..2 {
        let rotary = Rotary::computed(64, 10_000.0, Pairing::HalfSplit)?;
        let write = cache.append(layer, kv, kv)?;
        write.rotary(rotary).queries_into(q, rotated).run()?;
        attention.forward_into(cache.queries(rotated)?, cache.keys(layer)?, out, None)?;
    }
    Ok(())
}

#[test]
fn attention_reads_the_step_that_was_written() {
    let fake = FakeDriver::open();
    {
        let (backend, mut cache) = open(&driver(&fake)).unwrap();
        let stream = backend.gpu().unwrap().stream().clone();
        let ids = [cache.allocate(), cache.allocate()];
        let kv = tensor(&backend, [2, 1, 2, 64]).unwrap();
        let mut tensors = [(); 3].map(|()| tensor(&backend, [2, 1, 4, 64]).unwrap());
        let step = [(ids[0], 1), (ids[1], 1)];
        cache.step(&step).unwrap();
        decode(&mut cache, &kv, &mut tensors).unwrap();
        let capture = Graph::capture::<Error>(&stream, |_| decode(&mut cache, &kv, &mut tensors));
        let graph = capture.unwrap();
        stream.synchronize().unwrap();
        for replay in 2..20 {
            cache.step(&step).unwrap();
            fake.forget_launches();
            graph.launch(&stream).unwrap();
            stream.synchronize().unwrap();
            let launches = fake.launches();
            assert_eq!(launches.len(), 4);
            for pair in launches.chunks(2) {
                let (write, read) = (written(&pair[0]), block(&pair[1]));
                assert_eq!(read.k.address, write.k_pages.address);
                assert_eq!(read.v.address, write.v_pages.address);
                assert_eq!(read.q.address, write.q_out.address);
                assert_eq!(read.pages.table, write.pages.table);
                assert_eq!(
                    on_device::<i32>(read.sequences.key_lengths, 2),
                    [replay, replay]
                );
                // Lengths may grow to this without another plan.
                assert_eq!(read.sequences.key_len, 16 * COLUMNS as i32);
            }
        }
    }
    fake.assert_clean();
}

#[test]
fn whatever_fails_the_cache_goes_on() {
    every_failure_is_survived(|driver| {
        let (backend, mut cache) = open(driver)?;
        let ids = [cache.allocate(), cache.allocate()];
        for rows in [7, 1, 30] {
            let free = cache.free_pages();
            let stepped = cache.step(&[(ids[0], rows), (ids[1], rows)]);
            if stepped.is_err() {
                assert_eq!(cache.free_pages(), free);
            }
            stepped?;
            let kv = tensor(&backend, [2, rows, 2, 64])?;
            let mut q = tensor(&backend, [2, rows, 4, 64])?;
            append(&mut cache, &kv, &mut q)?;
        }
        cache.free(ids[0])?;
        backend.synchronize()
    });
}
