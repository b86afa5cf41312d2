//! Two devices of the stand-in driver, whose queues run late: the order of copies and kernels, and failures.

use std::time::Duration;

use warptile::driver::{DeviceBuffer, Driver, Stream};
use warptile::{Attention, Backend, KvCache, Layout, Mask, Tensor, half::f16};
use warptile_distributed::{Error, Group, Scheme, ShardedCache, Sharding};
use warptile_fake_cuda::{FakeDriver, Stalled};

#[path = "common/captured.rs"]
mod captured;

fn open_devices(ranks: &[u32]) -> (FakeDriver, Vec<Backend>) {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    // SAFETY: the library is the stand-in, with the driver's signatures.
    let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
    let backend = |&at| Backend::cuda_with(&driver, at).unwrap();
    let backends = ranks.iter().map(backend).collect();
    (fake, backends)
}

fn open(ranks: &[u32]) -> (FakeDriver, Group) {
    let (fake, backends) = open_devices(ranks);
    (fake, Group::local(backends).unwrap())
}

/// Makes each `step`th call of a function fail in turn: the work then ends with a rank's error, and can be done again.
fn each_failure(
    (symbol, code, step): (&str, u32, usize),
    work: impl Fn(&Group) -> warptile_distributed::Result<()>,
) {
    // Kept, as are the kernels that they load.
    let (fake, backends) = open_devices(&[0, 1]);
    for nth in (1..).step_by(step) {
        let group = Group::local(backends.clone()).unwrap();
        fake.fail(Some(symbol), nth, code);
        let result = work(&group);
        if fake.fault().is_none() {
            assert!(nth > 1, "{symbol} is never called");
            result.unwrap();
            break;
        }
        let error = result.unwrap_err().to_string();
        assert!(
            error.starts_with("rank 0: ") || error.starts_with("rank 1: "),
            "{error}"
        );
        work(&group).unwrap();
        group.synchronize(Duration::from_secs(10)).unwrap();
    }
    drop(backends);
    fake.assert_clean();
}

fn forward(group: &Group, len: usize) -> warptile_distributed::Result<()> {
    forward_of(group, &Sharding::Zigzag, len)
}

fn forward_of(group: &Group, sharding: &Sharding, len: usize) -> warptile_distributed::Result<()> {
    forward_by(Scheme::Gather, group, sharding, len)
}

fn forward_by(
    scheme: Scheme,
    group: &Group,
    sharding: &Sharding,
    len: usize,
) -> warptile_distributed::Result<()> {
    let data = |heads: usize| vec![f16::ONE; len * heads * 64];
    let shards = group.shards(sharding, len)?.scheme(scheme);
    let (q, k, v) = (
        shards.split(&data(8), 8, 64)?,
        shards.split(&data(4), 4, 64)?,
        shards.split(&data(4), 4, 64)?,
    );
    shards.forward(&Attention::new().mask(Mask::causal()), &q, (&k, &v))?;
    // The keys are dropped here, while the copies may still be queued.
    Ok(())
}

#[test]
fn copies_and_kernels_are_ordered() {
    // Four ranks on two devices as well.
    for ranks in [&[0, 1][..], &[0, 1, 0, 1]] {
        // Two groups of heads and two chunks a rank, of which the first of rank 0 sees its own keys only and has a launch for all heads;
        // long chunks have a launch together.
        let ranks_of = ranks.len();
        for (sharding, len, launches) in [
            (Sharding::Zigzag, 2 * 128 * ranks_of, 4 * ranks_of - 1),
            (Sharding::Zigzag, 2 * 2048 * ranks_of, 2 * ranks_of + 1),
            (Sharding::Zigzags(2), 4 * 2048 * ranks_of, 2 * ranks_of + 1),
        ] {
            let (fake, group) = open(ranks);
            for _ in 0..3 {
                forward_of(&group, &sharding, len).unwrap();
            }
            group.synchronize(Duration::from_secs(10)).unwrap();
            assert_eq!(fake.launches().len(), 3 * launches);
            drop(group);
            fake.assert_clean();
        }
    }
}

#[test]
fn heads_travel_and_outputs_come_back_in_order() {
    for ranks in [&[0, 1][..], &[0, 1, 0, 1]] {
        let (fake, group) = open(ranks);
        for sharding in [Sharding::Zigzag, Sharding::Documents(vec![0, 100, 512])] {
            forward_by(Scheme::Heads, &group, &sharding, 512).unwrap();
        }
        group.synchronize(Duration::from_secs(10)).unwrap();
        assert_eq!(fake.launches().len(), 2 * ranks.len());
        drop(group);
        fake.assert_clean();
    }
    each_failure(("cuMemcpyBatchAsync", 1, 3), |group| {
        forward_by(Scheme::Heads, group, &Sharding::Zigzag, 256)
    });
}

#[test]
fn documents_of_a_rank_have_a_launch_together() {
    let (fake, group) = open(&[0, 1]);
    let offsets: Vec<usize> = (0..=16).map(|at| at * 50).collect();
    forward_of(&group, &Sharding::Documents(offsets), 800).unwrap();
    group.synchronize(Duration::from_secs(10)).unwrap();
    assert_eq!(fake.launches().len(), 2);
    drop(group);
    fake.assert_clean();
}

/// Otherwise ranks wait for each other's kernels. Ranks that share a GPU do.
#[test]
fn copies_wait_for_no_kernel_of_their_call() {
    let (fake, group) = open(&[0, 1]);
    forward(&group, 512).unwrap();
    assert!(fake.pending() > 0);
    assert_eq!(fake.copies_behind_kernels(), 0);
    group.synchronize(Duration::from_secs(10)).unwrap();
    drop(group);
    fake.assert_clean();
}

/// The one that failed is named, though another that may wait for it is asked first.
#[test]
fn all_ranks_are_asked_while_one_is_waited_for() {
    let (fake, group) = open(&[0, 1]);
    fake.set_stalled(Stalled::Kernels);
    forward(&group, 512).unwrap();
    fake.fail(Some("cuStreamQuery"), 2, 700);
    let error = group.synchronize(Duration::from_secs(5)).unwrap_err();
    assert!(error.to_string().starts_with("rank 1: "), "{error}");
    fake.set_stalled(Stalled::Nothing);
    group.synchronize(Duration::from_secs(10)).unwrap();
    drop(group);
    fake.assert_clean();
}

/// A call that does not fit, and one that fails amid its work, in a loop that launches a captured graph.
#[test]
fn a_captured_loop_ends_with_the_rank_that_failed() {
    // No kernel writes outputs here: with ranks that share a device, stale memory differs from call to call.
    for (ranks, amid, last) in [(2, false, 3), (2, true, 3), (4, false, 0)] {
        let (fake, devices) = open_devices(&[0, 1]);
        let group = Group::local((0..ranks).map(|rank| devices[rank % 2].clone())).unwrap();
        drop(devices);
        for _ in 0..2 {
            let limit = Duration::from_secs(10);
            let (error, _) = captured::until_failure(&group, limit, |number, shards, q| {
                let mut short = q.to_vec();
                short[1] = q[1].rows(1..4).unwrap();
                let is_last = number == last;
                if is_last && amid {
                    fake.fail(Some("cuLaunchKernelEx"), 1, 1);
                }
                let kv = if is_last && !amid { &short[..] } else { q };
                Ok(shards.forward(&captured::causal(), q, (kv, kv))?.out)
            });
            let text = error.to_string();
            match amid {
                true => assert!(
                    text.starts_with("rank ") && text.contains("cuLaunch"),
                    "{text}"
                ),
                false => assert!(text.starts_with("rank 1: k has shape "), "{text}"),
            }
        }
        group.synchronize(Duration::from_secs(10)).unwrap();
        drop(group);
        fake.assert_clean();
    }
}

#[test]
fn a_failing_call_of_the_driver_is_an_error_and_leaks_nothing() {
    // Out of memory, and copies that the driver refuses.
    for failure in [
        ("cuMemAllocFromPoolAsync", 2, 1),
        ("cuMemcpyBatchAsync", 1, 1),
        ("cuStreamWaitEvent", 1, 7),
        ("cuEventRecord", 1, 7),
    ] {
        each_failure(failure, |group| forward(group, 256));
    }
}

/// Forward and backward; everything is dropped at the end, while copies may still be queued.
fn train(
    scheme: Scheme,
    group: &Group,
    sharding: &Sharding,
    [len, heads, kv_heads]: [usize; 3],
    sinks: bool,
) -> warptile_distributed::Result<()> {
    let shards = group.shards(sharding, len)?.scheme(scheme);
    let tensors = |heads: usize| shards.split(&vec![f16::ONE; len * heads * 64], heads, 64);
    let (q, k, v, d_out) = (
        tensors(heads)?,
        tensors(kv_heads)?,
        tensors(kv_heads)?,
        tensors(heads)?,
    );
    let mut attention = Attention::new().mask(Mask::causal());
    if sinks {
        attention = attention.sinks(&vec![0.5; heads]);
    }
    let output = shards.forward(&attention, &q, (&k, &v))?;
    shards.backward(&attention, &d_out, &q, (&k, &v), &output)?;
    Ok(())
}

#[test]
fn gradients_are_ordered() {
    let documents = Sharding::Documents(vec![0, 100, 300, 512, 2048, 2060]);
    let cases = [
        (Scheme::Gather, Sharding::Zigzag, [512, 8, 4], false),
        (Scheme::Gather, Sharding::Zigzag, [512, 8, 4], true),
        // Two chunks have a launch together, and a log-sum-exp each.
        (Scheme::Gather, Sharding::Zigzag, [32768, 4, 2], false),
        (Scheme::Gather, Sharding::Contiguous, [300, 4, 1], false),
        (Scheme::Gather, documents.clone(), [2060, 8, 4], true),
        (Scheme::Heads, Sharding::Zigzag, [512, 8, 4], false),
        (Scheme::Heads, documents.clone(), [2060, 8, 2], false),
        (Scheme::Hybrid { hosts: 2 }, documents, [2060, 8, 1], false),
        (
            Scheme::Hybrid { hosts: 2 },
            Sharding::Zigzag,
            [512, 8, 4],
            false,
        ),
    ];
    for ranks in [&[0, 1][..], &[0, 1, 0, 1]] {
        let (fake, group) = open(ranks);
        for (scheme, sharding, sizes, sinks) in &cases {
            for _ in 0..2 {
                train(*scheme, &group, sharding, *sizes, *sinks).unwrap();
            }
        }
        group.synchronize(Duration::from_secs(10)).unwrap();
        drop(group);
        fake.assert_clean();
    }
}

#[test]
fn a_failure_amid_gradients_is_an_error_and_leaks_nothing() {
    let symbols = [
        ("cuMemAllocFromPoolAsync", 2, 5),
        ("cuMemcpyBatchAsync", 1, 3),
        ("cuLaunchKernelEx", 1, 5),
        ("cuStreamWaitEvent", 1, 13),
    ];
    for (scheme, heads, kv_heads) in [
        (Scheme::Gather, 8, 4),
        (Scheme::Heads, 2, 1),
        (Scheme::Hybrid { hosts: 2 }, 4, 2),
    ] {
        for failure in symbols {
            each_failure(failure, |group| {
                let sizes = [256, heads, kv_heads];
                train(scheme, group, &Sharding::Zigzag, sizes, false)
            });
        }
    }
}

/// More ranks than the sums of a row's gradients can be added of.
#[test]
fn more_sums_than_can_be_added_are_refused_before_any_launch() {
    let ranks: Vec<u32> = (0..33).map(|rank| rank % 2).collect();
    let (fake, group) = open(&ranks);
    let documents = Sharding::Documents((0..=33).map(|at| 20 * at).collect());
    for (scheme, sharding, sinks) in [
        (Scheme::Gather, &Sharding::Contiguous, false),
        (Scheme::Heads, &Sharding::Contiguous, false),
        (Scheme::Hybrid { hosts: 33 }, &Sharding::Contiguous, false),
        // Each rank has a document of its own, but all add to the gradients of sinks.
        (Scheme::Gather, &documents, true),
    ] {
        let train = || {
            let (len, heads) = (660, 33);
            let shards = group.shards(sharding, len)?.scheme(scheme);
            let split = |heads: usize| shards.split(&vec![f16::ONE; len * heads * 64], heads, 64);
            let (q, kv) = (split(heads)?, split(1)?);
            let mut attention = Attention::new();
            if sinks {
                attention = attention.sinks(&vec![0.5; heads]);
            }
            let output = shards.forward(&attention, &q, (&kv, &kv))?;
            group.synchronize(Duration::from_secs(60))?;
            let launches = fake.launches().len();
            let gradients = shards.backward(&attention, &q, &q, (&kv, &kv), &output);
            let error = gradients.map(drop).unwrap_err().to_string();
            assert!(error.contains("at most 32"), "{error}");
            group.synchronize(Duration::from_secs(60))?;
            assert_eq!(fake.launches().len(), launches, "{scheme}");
            Ok::<_, Error>(())
        };
        train().unwrap();
    }
    drop(group);
    fake.assert_clean();
}

/// A step of decoding: the queries go to all ranks, and results come back.
fn decode(group: &Group) -> warptile_distributed::Result<()> {
    let backends = group.backends();
    let tensor = |at: usize, rows: usize, heads: usize| {
        let data = vec![f16::ONE; rows * heads * 64];
        backends[at].tensor(&data, [1, rows, heads, 64]).unwrap()
    };
    let q = group.broadcast(&tensor(0, 1, 8))?;
    let parts = q.iter().enumerate().map(|(rank, q)| {
        let kv = tensor(rank, 300, 2);
        Attention::new().forward(q, (&kv, &kv)).unwrap()
    });
    group.merge(&parts.collect::<Vec<_>>())?;
    // The parts are dropped here, while their copies may still be queued.
    Ok(())
}

#[test]
fn queries_go_to_all_ranks_and_results_come_back() {
    for ranks in [&[0, 1][..], &[0, 1, 0, 1]] {
        let (fake, group) = open(ranks);
        for _ in 0..3 {
            decode(&group).unwrap();
        }
        group.synchronize(Duration::from_secs(10)).unwrap();
        // A launch a rank or two, where keys are split, and the merge.
        assert!(fake.launches().len() >= 3 * (ranks.len() + 1));
        drop(group);
        fake.assert_clean();
    }
    for symbol in ["cuMemcpyBatchAsync", "cuEventRecord"] {
        let (fake, group) = open(&[0, 1]);
        decode(&group).unwrap();
        group.synchronize(Duration::from_secs(10)).unwrap();
        let q = group.backends()[0]
            .tensor(&[f16::ONE; 64], [1, 1, 1, 64])
            .unwrap();
        fake.fail(Some(symbol), 1, 1);
        let error = group.broadcast(&q).unwrap_err().to_string();
        assert!(error.starts_with("rank 1: "), "{error}");
        group.broadcast(&q).unwrap();
        group.synchronize(Duration::from_secs(10)).unwrap();
        drop((q, group));
        fake.assert_clean();
    }
}

/// Prompts, then tokens, into a cache whose pages are dealt.
fn generate(group: &Group) -> warptile_distributed::Result<()> {
    generate_with_lead(group, 0)
}

fn generate_with_lead(group: &Group, rows: usize) -> warptile_distributed::Result<()> {
    let home = &group.backends()[0];
    let tensor = |rows: usize, heads: usize| {
        let data = vec![f16::ONE; rows * heads * 64];
        let tensor = home.tensor(&data, [1, rows, heads, 64]);
        tensor.map_err(|source| Error::Rank { rank: 0, source })
    };
    let builder = KvCache::builder(2, 64).pages(32).page_rows(16).sequences(2);
    let mut cache = group.cache_with_lead(&builder, rows)?;
    let sequences = [cache.allocate(), cache.allocate()];
    for rows in [[100, 3], [1, 1], [1, 1]] {
        let pages = |cache: &ShardedCache<'_, f16>| -> Vec<_> {
            cache.caches().iter().map(KvCache::free_pages).collect()
        };
        let before = (pages(&cache), sequences.map(|sequence| cache.len(sequence)));
        let steps = [(sequences[0], rows[0]), (sequences[1], rows[1])];
        if let Err(error) = cache.step(&steps) {
            let after = (pages(&cache), sequences.map(|sequence| cache.len(sequence)));
            assert_eq!(after, before);
            cache.step(&steps).unwrap();
            return Err(error);
        }
        let kv = tensor(rows[0] + rows[1], 2)?;
        cache.append(0, &kv, &kv)?;
        if rows == [1, 1] {
            let q = tensor(2, 8)?;
            let q = q.view_as(Layout::bshd([2, 1, 8, 64])).unwrap();
            cache.attend(0, &Attention::new(), &q)?;
        }
    }
    Ok(())
}

#[test]
fn a_dealt_cache_is_written_and_read_in_order() {
    for ranks in [&[0, 1][..], &[0, 1, 0, 1]] {
        let (fake, group) = open(ranks);
        for lead in [0, 32, 200] {
            generate_with_lead(&group, lead).unwrap();
        }
        group.synchronize(Duration::from_secs(10)).unwrap();
        drop(group);
        fake.assert_clean();
    }
    for failure in [
        ("cuMemAllocFromPoolAsync", 2, 5),
        ("cuMemcpyHtoDAsync_v2", 1, 1),
        ("cuMemcpyBatchAsync", 1, 1),
        ("cuStreamWaitEvent", 1, 1),
        ("cuLaunchKernelEx", 1, 1),
    ] {
        each_failure(failure, generate);
    }
}

/// One step, with queries of rank 0's own stream, of another one, and of memory that somebody else allocated.
fn attend(fake: &FakeDriver, group: &Group) {
    let home = &group.backends()[0];
    let gpu = home.gpu().unwrap();
    let builder = KvCache::<f16>::builder(2, 64).pages(2);
    let mut cache = group.cache(&builder).unwrap();
    let sequence = cache.allocate();
    for rows in [20, 1] {
        cache.step(&[(sequence, rows)]).unwrap();
        let ones = vec![f16::ONE; rows * 2 * 64];
        let kv = home.tensor(&ones, [1, rows, 2, 64]).unwrap();
        cache.append(0, &kv, &kv).unwrap();
    }
    let other = Stream::new(gpu.context()).unwrap();
    let on = |stream: &Stream| DeviceBuffer::from_slice(stream, &[f16::ONE; 8 * 64]).unwrap();
    let (own, elsewhere) = (on(gpu.stream()), on(&other));
    // SAFETY: the memory is that of `own`, which its owner keeps alive.
    let borrowed =
        unsafe { DeviceBuffer::borrow(gpu.stream(), own.pointer(), own.len(), own.owner()) };
    for (q, copies) in [(own, 0), (elsewhere, 1), (borrowed.unwrap(), 1)] {
        let q = Tensor::from_device(home, q, Layout::bshd([1, 1, 8, 64])).unwrap();
        let before = fake.calls_of("cuMemcpyBatchAsync");
        cache.attend(0, &Attention::new(), &q).unwrap();
        assert_eq!(fake.calls_of("cuMemcpyBatchAsync") - before, copies);
    }
}

/// Other ranks read queries where they are only if they reach them, and in the order of rank 0's own stream.
#[test]
fn queries_of_another_stream_or_of_others_are_copied() {
    let (fake, group) = open(&[0, 1]);
    attend(&fake, &group);
    group.synchronize(Duration::from_secs(10)).unwrap();
    drop(group);
    fake.assert_clean();
}

#[test]
fn a_group_without_access_is_refused() {
    let (fake, backends) = open_devices(&[0, 1]);
    fake.fail_always(&["cuMemPoolSetAccess"], 801);
    let error = Group::local(backends).unwrap_err().to_string();
    assert!(
        error.starts_with("rank 0 has no peer access to rank 1: "),
        "{error}"
    );
}
