//! Ranks over the stand-in libnccl: a thread each, with a device of the stand-in driver each. The channel between them is real.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use warptile::driver::{Context, DeviceBuffer, Driver, Graph, Stream};
use warptile::{Attention, Backend, Element, KvCache, Mask, half::bf16, half::f16};
use warptile_distributed::nccl_sys::{LoadError, NcclApi};
use warptile_distributed::{Error, Failure, Group, Result, Scheme, ShardedCache, Sharding, World};
use warptile_fake_cuda::{FakeDriver, Stalled};
use warptile_fake_nccl::{FakeNccl, Fault};

#[path = "common/captured.rs"]
mod captured;

/// A bound that even a busy machine does not reach, for ranks that wait for nothing.
const PATIENCE: Duration = Duration::from_secs(120);
/// The bound of ranks that wait in vain.
const TIMEOUT: Duration = Duration::from_secs(4);
const SILENCE: Duration = Duration::from_secs(3);

struct Host {
    cuda: FakeDriver,
    nccl: FakeNccl,
    driver: Driver,
    api: Arc<NcclApi>,
}

impl Host {
    fn new(devices: u32) -> Host {
        let cuda = FakeDriver::open();
        cuda.set_device_count(devices);
        // SAFETY: the library is the stand-in, with the driver's signatures.
        let driver = unsafe { Driver::load_from(cuda.path()) }.unwrap();
        let nccl = FakeNccl::open(cuda.path());
        let api = nccl.load().unwrap();
        Host {
            cuda,
            nccl,
            driver,
            api,
        }
    }

    fn group(&self, world: &World) -> Result<Group> {
        let backend = Backend::cuda_with(&self.driver, world.rank() as u32).unwrap();
        Group::nccl_with(&self.api, world, &backend)
    }

    /// One for each device, to be kept with the kernels that they load.
    fn backends<const N: usize>(&self) -> [Backend; N] {
        std::array::from_fn(|at| Backend::cuda_with(&self.driver, at as u32).unwrap())
    }

    fn assert_clean(&self) {
        self.nccl.assert_clean();
        self.cuda.assert_clean();
    }
}

/// An address that nobody listens at. On Linux it is of a host of its own: between here and rank 0 another test may be given the same port.
fn free_address() -> String {
    static HOSTS: AtomicU32 = AtomicU32::new(1);
    let host = match cfg!(target_os = "linux") {
        true => process::id() % 254 * 0x1_0000 + HOSTS.fetch_add(1, Ordering::Relaxed) % 0xffff,
        false => 0,
    };
    let host = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + host);
    let listener = TcpListener::bind((host, 0)).unwrap();
    listener.local_addr().unwrap().to_string()
}

fn worlds(ranks: usize) -> Vec<World> {
    worlds_within(PATIENCE, ranks)
}

fn worlds_within(timeout: Duration, ranks: usize) -> Vec<World> {
    let address = free_address();
    let world = |rank| World::new(rank, ranks, &address);
    (0..ranks)
        .map(|rank| world(rank).timeout(timeout).silence(PATIENCE))
        .collect()
}

/// Calls `f` for each rank, on a thread each.
fn each<R: Send>(worlds: &[World], f: impl Fn(&World) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = { worlds.iter() }
            .map(|world| scope.spawn(|| f(world)))
            .collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

fn forward_of<T: Element>(
    group: &Group,
    sharding: &Sharding,
    len: usize,
    attention: &Attention,
    one: T,
) -> Result<()> {
    forward_by(Scheme::Gather, group, (sharding, len), attention, one)
}

fn forward_by<T: Element>(
    scheme: Scheme,
    group: &Group,
    (sharding, len): (&Sharding, usize),
    attention: &Attention,
    one: T,
) -> Result<()> {
    let shards = group.shards(sharding, len)?.scheme(scheme);
    let split = |heads: usize| shards.split(&vec![one; len * heads * 64], heads, 64);
    // By heads, some ranks share one of keys.
    let kv_heads = if scheme == Scheme::Heads { 2 } else { 4 };
    let (q, k, v) = (split(8)?, split(kv_heads)?, split(kv_heads)?);
    let output = shards.forward(attention, &q, (&k, &v))?;
    assert_eq!(output.out.len(), group.local_ranks().len());
    let gradients = shards.backward(attention, &output.out, &q, (&k, &v), &output)?;
    assert_eq!(gradients.dk[0].shape(), k[0].shape());
    let has_sinks = attention.has_numbers() && group.local_ranks().start == 0;
    assert_eq!(gradients.numbers.is_empty(), !has_sinks);
    Ok(())
}

fn forward(group: &Group, len: usize) -> Result<()> {
    let attention = Attention::new().mask(Mask::causal());
    forward_of(group, &Sharding::Zigzag, len, &attention, f16::ONE)
}

fn failure(result: Result<()>) -> Failure {
    match result {
        Err(Error::Failure(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

/// The failure that all ranks report.
fn same(failures: &[Failure]) -> &Failure {
    let first = &failures[0];
    assert!(failures.iter().all(|other| other == first), "{failures:?}");
    first
}

/// Waits until a rank knows that its group has failed.
fn wait_for_failure(group: &Group) -> Failure {
    loop {
        match group.synchronize(PATIENCE) {
            Ok(()) => thread::sleep(Duration::from_millis(1)),
            failed => return failure(failed),
        }
    }
}

#[test]
fn copies_and_kernels_are_ordered() {
    for ranks in [2, 3, 4] {
        let host = Host::new(ranks as u32);
        let shardings = [
            (Sharding::Zigzag, 512),
            (Sharding::Contiguous, 301),
            // Some ranks have documents of their own only, or nothing.
            (Sharding::Documents(vec![0, 2100, 2140, 2180]), 2180),
            (Sharding::Contiguous, 2),
        ];
        let options = [
            Attention::new().mask(Mask::causal()),
            Attention::new().mask(Mask::window(20, 3)),
            Attention::new().sinks(&[0.5; 8]),
        ];
        each(&worlds(ranks), |world| {
            let group = host.group(world).unwrap();
            for (sharding, len) in &shardings {
                for attention in &options {
                    forward_of(&group, sharding, *len, attention, f16::ONE).unwrap();
                }
                let rows = (sharding, *len);
                forward_by(Scheme::Heads, &group, rows, &options[0], f16::ONE).unwrap();
                for hosts in (1..=ranks).filter(|hosts| ranks.is_multiple_of(*hosts)) {
                    let hybrid = Scheme::Hybrid { hosts };
                    forward_by(hybrid, &group, rows, &options[0], f16::ONE).unwrap();
                }
            }
            // The group is dropped with work in its queues.
            if ranks != 3 {
                group.synchronize(PATIENCE).unwrap();
            }
        });
        assert!(!host.cuda.launches().is_empty());
        host.assert_clean();
    }
}

/// Both engines share all code that computes, so equal launches over equal rows have equal bits.
#[test]
fn launches_are_those_of_one_process() {
    let calls = |group: &Group| {
        for scheme in [Scheme::Gather, Scheme::Heads, Scheme::Hybrid { hosts: 3 }] {
            for (sharding, len) in [(Sharding::Zigzag, 700), (Sharding::Contiguous, 301)] {
                let attention = Attention::new().mask(Mask::causal());
                forward_by(scheme, group, (&sharding, len), &attention, f16::ONE).unwrap();
            }
        }
        let documents = Sharding::Documents(vec![0, 2100, 2140, 2180]);
        let sinks = Attention::new().mask(Mask::window(90, 0)).sinks(&[0.5; 8]);
        forward_of(group, &documents, 2180, &sinks, f16::ONE).unwrap();
        group.synchronize(PATIENCE).unwrap();
    };
    let launches = |host: &Host| {
        let launches = host.cuda.launches().into_iter();
        let launches = launches.map(|of| (of.name(), of.grid, of.block, of.shared_bytes));
        let mut launches: Vec<_> = launches.collect();
        launches.sort();
        launches
    };
    let host = Host::new(3);
    each(&worlds(3), |world| calls(&host.group(world).unwrap()));
    let local = Host::new(3);
    calls(&Group::local(local.backends::<3>()).unwrap());
    assert!(!launches(&local).is_empty());
    assert_eq!(launches(&host), launches(&local));
    host.assert_clean();
    local.assert_clean();
}

/// A rank's driver fails, between messages that the others wait for or behind the last.
#[test]
fn a_failure_amid_a_call_is_that_of_all_ranks() {
    let host = Host::new(2);
    let backends = host.backends::<2>();
    let causal = Attention::new().mask(Mask::causal());
    for (scheme, attention, kv_heads) in [
        (Scheme::Gather, causal.clone().sinks(&[0.5; 4]), 4),
        // Both ranks have shares of the gradients of one head of keys.
        (Scheme::Heads, causal.clone(), 1),
        (Scheme::Hybrid { hosts: 2 }, causal, 4),
    ] {
        for (symbol, code, backward, most) in [
            ("cuLaunchKernelEx", 701, true, u64::MAX),
            ("cuMemAllocFromPoolAsync", 2, true, u64::MAX),
            ("cuMemAllocFromPoolAsync", 2, false, u64::MAX),
            // Loans, with which each rank begins.
            ("cuEventRecord", 7, false, 2),
        ] {
            let mut failed = 0;
            for nth in 1..=most {
                let met = Barrier::new(2);
                let results = each(&worlds(2), |world| {
                    let group = Group::nccl_with(&host.api, world, &backends[world.rank()]);
                    let group = group.unwrap();
                    let shards = group.shards(&Sharding::Zigzag, 512).unwrap().scheme(scheme);
                    let split = |heads| shards.split(&vec![f16::ONE; 512 * heads * 64], heads, 64);
                    let (q, kv) = (split(4).unwrap(), split(kv_heads).unwrap());
                    let forward = || shards.forward(&attention, &q, (&kv, &kv));
                    let output = forward().unwrap();
                    group.synchronize(PATIENCE).unwrap();
                    met.wait();
                    if world.rank() == 0 {
                        host.cuda.fail(Some(symbol), nth, code);
                    }
                    met.wait();
                    let found = match backward {
                        true => {
                            let d_out = &output.out;
                            { shards.backward(&attention, d_out, &q, (&kv, &kv), &output) }
                                .map(drop)
                        }
                        false => forward().map(drop),
                    };
                    met.wait();
                    found
                });
                let has_happened = host.cuda.fault().is_some();
                host.cuda.fail(None, 0, 0);
                // A rank that dropped its group before it knew of the failure has left that to its device.
                for backend in &backends {
                    let _ = backend.synchronize();
                }
                if !has_happened {
                    break;
                }
                let about = format!("{scheme}, {symbol} {nth}, backward: {backward}: {results:?}");
                // One may have done its part before the other failed.
                let failures: Vec<_> = { results.iter() }
                    .filter_map(|result| match result {
                        Ok(()) => None,
                        Err(Error::Failure(failure)) => Some(failure),
                        Err(_) => panic!("{about}"),
                    })
                    .collect();
                // The end of a loan may leave its failure to the next call that waits.
                let Some(first) = failures.first() else {
                    continue;
                };
                let Failure::Failed { rank, why } = first else {
                    panic!("{about}")
                };
                assert!(failures.iter().all(|failure| failure == first), "{about}");
                assert!(results[*rank].is_err(), "{about}");
                assert!(why.starts_with(&format!("rank {rank}: ")), "{about}");
                failed += 1;
            }
            assert!(failed > 1, "{scheme}, {symbol}: {failed} calls failed");
        }
    }
}

#[test]
fn refusals_name_the_rank_of_the_process() {
    let host = Host::new(2);
    each(&worlds(2), |world| {
        let group = host.group(world).unwrap();
        let rank = world.rank();
        let shards = |scheme| group.shards(&Sharding::Zigzag, 64).unwrap().scheme(scheme);
        let gather = shards(Scheme::Gather);
        let split = |heads| {
            gather
                .split(&vec![f16::ONE; 64 * heads * 64], heads, 64)
                .unwrap()
        };
        let (q, kv, odd) = (split(4), split(2), split(3));
        let attention = Attention::new();
        let attend = |q| Attention::new().forward(q, (&kv[0], &kv[0])).unwrap();
        let mut mixed = attend(&q[0]);
        mixed.lse = attend(&kv[0]).lse;
        let refused = [
            gather.forward(&attention, &odd, (&kv, &kv)).map(drop),
            { shards(Scheme::Heads) }
                .forward(&attention.clone().sinks(&[0.5; 4]), &q, (&kv, &kv))
                .map(drop),
            { gather.forward(&attention.without_lse(), &q, (&kv, &kv)) }.and_then(|output| {
                let attention = Attention::new();
                let gradients = gather.backward(&attention, &q, &q, (&kv, &kv), &output);
                gradients.map(drop)
            }),
            // Messages would have addresses beyond the tensor.
            { gather.forward(&Attention::new(), &q, (&kv, &kv)) }.and_then(|output| {
                let gradients = gather.backward(&Attention::new(), &kv, &q, (&kv, &kv), &output);
                gradients.map(drop)
            }),
            // Other ranks would send as many bytes as their own takes.
            group.merge(&[mixed]).map(drop),
        ];
        for refused in refused {
            let error = refused.unwrap_err().to_string();
            assert!(error.starts_with(&format!("rank {rank}: ")), "{error}");
        }
    });
    host.assert_clean();
}

#[test]
fn bounds_may_be_as_long_as_one_can_say() {
    let host = Host::new(2);
    let worlds: Vec<_> = { worlds(2).into_iter() }
        .map(|world| world.timeout(Duration::MAX).silence(Duration::MAX))
        .collect();
    each(&worlds, |world| {
        let group = host.group(world).unwrap();
        forward(&group, 512).unwrap();
        group.synchronize(Duration::MAX).unwrap();
    });
    host.assert_clean();
}

#[test]
fn what_needs_one_process_says_so() {
    let host = Host::new(2);
    each(&worlds(2), |world| {
        let group = host.group(world).unwrap();
        assert_eq!(group.local_ranks(), world.rank()..world.rank() + 1);
        let shards = group.shards(&Sharding::Zigzag, 64).unwrap();
        let q = shards.split(&[f16::ONE; 64 * 2 * 64], 2, 64).unwrap();
        assert!(shards.join(&q).is_err() && group.broadcast(&q[0]).is_err());
    });
    host.assert_clean();
}

/// A step of decoding: each rank has keys of its own.
fn decode(group: &Group, heads: usize) -> Result<()> {
    let backend = &group.backends()[0];
    let tensor = |rows: usize, heads: usize| {
        let data = vec![f16::ONE; rows * heads * 64];
        backend.tensor(&data, [1, rows, heads, 64]).unwrap()
    };
    let (q, kv) = (tensor(1, heads), tensor(300, 2));
    let part = Attention::new().forward(&q, (&kv, &kv)).unwrap();
    let (out, lse) = group.merge(&[part])?;
    assert_eq!(
        (out.shape(), lse.shape()),
        ([1, 1, heads, 64], [1, heads, 1])
    );
    Ok(())
}

#[test]
fn results_of_all_ranks_are_merged_on_each() {
    let host = Host::new(3);
    let all_done = std::sync::Barrier::new(3);
    let failures = each(&worlds(3), |world| {
        let group = host.group(world).unwrap();
        for _ in 0..3 {
            decode(&group, 8).unwrap();
        }
        group.synchronize(PATIENCE).unwrap();
        // A failure ends the calls of all ranks.
        all_done.wait();
        failure(decode(&group, [8, 8, 4][world.rank()]))
    });
    let text = same(&failures).to_string();
    assert!(
        text.contains("merge of ") && text.starts_with("rank 2 "),
        "{text}"
    );
    host.assert_clean();
}

fn cache_of(group: &Group, pages: usize) -> ShardedCache<'_, f16> {
    let builder = KvCache::builder(2, 64)
        .pages(pages)
        .page_rows(16)
        .sequences(2);
    group.cache(&builder).unwrap()
}

/// Steps of a prompt and of tokens; each process has all new rows and all queries.
fn decode_dealt(group: &Group, pauses: impl Fn(usize)) -> Result<()> {
    let backend = &group.backends()[0];
    let mut cache = cache_of(group, 8);
    let sequences = [cache.allocate(), cache.allocate()];
    for (at, rows) in [[70, 33], [1, 1], [1, 1]].into_iter().enumerate() {
        pauses(at);
        cache.step(&[(sequences[0], rows[0]), (sequences[1], rows[1])])?;
        let total = rows[0] + rows[1];
        let tensor = |shape: [usize; 4]| {
            let data = vec![f16::ONE; shape.iter().product()];
            backend.tensor(&data, shape).unwrap()
        };
        let kv = tensor([1, total, 2, 64]);
        cache.append(0, &kv, &kv)?;
        if total == 2 {
            let (out, lse) = cache.attend(0, &Attention::new(), &tensor([2, 1, 8, 64]))?;
            assert_eq!((out.shape(), lse.shape()), ([2, 1, 8, 64], [2, 8, 1]));
        }
    }
    assert_eq!(sequences.map(|id| cache.len(id)), [Some(72), Some(35)]);
    Ok(())
}

#[test]
fn a_cache_is_dealt_to_processes() {
    let host = Host::new(3);
    let local = Group::local(vec![Backend::cpu(); 3]).unwrap();
    let mut whole = cache_of(&local, 4);
    let of_whole = whole.allocate();
    whole.step(&[(of_whole, 150)]).unwrap();
    let free: Vec<_> = whole.caches().iter().map(KvCache::free_pages).collect();
    assert_eq!(free, [0, 1, 1]);
    let all_done = Barrier::new(3);
    let failures = each(&worlds(3), |world| {
        let group = host.group(world).unwrap();
        decode_dealt(&group, |_| ()).unwrap();
        let mut cache = cache_of(&group, 4);
        let sequence = cache.allocate();
        cache.step(&[(sequence, 150)]).unwrap();
        assert_eq!(cache.caches().len(), 1);
        assert_eq!(cache.caches()[0].free_pages(), free[world.rank()]);
        // Rank 0 alone has no page for more, and no rank has grown after that.
        for more in [50, 43] {
            let error = cache.step(&[(sequence, more)]).unwrap_err().to_string();
            assert!(error.starts_with("rank 0: "), "{error}");
            assert_eq!(cache.len(sequence), Some(150));
            assert_eq!(cache.caches()[0].free_pages(), free[world.rank()]);
        }
        cache.step(&[(sequence, 42)]).unwrap();
        group.synchronize(PATIENCE).unwrap();
        cache.free(sequence).unwrap();
        assert_eq!(cache.caches()[0].free_pages(), 4);
        // A failure ends the calls of all ranks.
        all_done.wait();
        let sequence = cache.allocate();
        failure(cache.step(&[(sequence, 1 + world.rank() / 2)]))
    });
    let text = same(&failures).to_string();
    let expected = "rank 2 calls with a step of lengths and new rows [(0, 2)], but rank ";
    assert!(text.starts_with(expected), "{text}");
    host.assert_clean();
}

#[test]
fn ranks_with_different_leads_and_pages_are_named() {
    for (leads, page_rows, expected) in [
        (
            [0, 16],
            [16, 16],
            "rank 1 calls with a lead of 1 pages, but rank 0 with a lead of 0 pages",
        ),
        (
            [0, 0],
            [16, 32],
            "rank 1 calls with pages of 32 rows, but rank 0 with pages of 16 rows",
        ),
    ] {
        let (host, met) = (Host::new(2), Barrier::new(2));
        let failures = each(&worlds(2), |world| {
            let (group, rank) = (host.group(world).unwrap(), world.rank());
            let builder = KvCache::<f16>::builder(2, 64).pages(4);
            let builder = builder.page_rows(page_rows[rank]);
            let mut cache = group.cache_with_lead(&builder, leads[rank]).unwrap();
            let sequence = cache.allocate();
            let failure = failure(cache.step(&[(sequence, 20)]));
            met.wait();
            failure
        });
        assert_eq!(same(&failures).to_string(), expected);
        host.assert_clean();
    }
}

/// A rank makes another call, or is lost, amid a loop that launches a captured graph.
#[test]
fn a_captured_loop_ends_with_the_failure_of_all_ranks() {
    for is_cut in [false, true] {
        let (host, met) = (Host::new(2), Barrier::new(2));
        let state = Arc::new(AtomicU8::new(PASS));
        let address = free_address();
        let to = [address.clone(), proxy(&address, &state)];
        let worlds = [0, 1].map(|rank| World::new(rank, 2, &to[rank]).timeout(PATIENCE));
        let failures = each(&worlds, |world| {
            let group = host.group(world).unwrap();
            let (error, _) = captured::until_failure(&group, PATIENCE, |number, shards, q| {
                let mut attention = captured::causal();
                if number == 3 && world.rank() == 1 {
                    match is_cut {
                        true => state.store(CUT, Ordering::Relaxed),
                        false => attention = attention.scale(0.3),
                    }
                }
                Ok(shards.forward(&attention, q, (q, q))?.out)
            });
            met.wait();
            failure(Err(error))
        });
        match is_cut {
            true => {
                let texts: Vec<_> = failures.iter().map(Failure::to_string).collect();
                assert_eq!(texts[0], "rank 1 is lost: its connection has ended");
                assert!(texts[1].starts_with("rank 0 is lost: "), "{texts:?}");
            }
            false => {
                let failure = same(&failures);
                assert!(matches!(failure, Failure::Disagree { .. }), "{failure}");
            }
        }
        host.assert_clean();
    }
}

/// Nothing is added to the graph before that.
#[test]
fn a_captured_step_is_refused_before_it_launches() {
    let (host, met) = (Host::new(2), Barrier::new(2));
    each(&worlds(2), |world| {
        let group = host.group(world).unwrap();
        let (backend, mut cache) = (&group.backends()[0], cache_of(&group, 4));
        let ones = |heads: usize| {
            let ones = vec![f16::ONE; heads * 64];
            backend.tensor(&ones, [1, 1, heads, 64]).unwrap()
        };
        let (q, kv, sequence) = (ones(8), ones(2), cache.allocate());
        cache.step(&[(sequence, 1)]).unwrap();
        cache.append(0, &kv, &kv).unwrap();
        cache.attend(0, &Attention::new(), &q).unwrap();
        let launches = || {
            met.wait();
            let launches = host.cuda.calls_of("cuLaunchKernelEx");
            met.wait();
            launches
        };
        let before = launches();
        let rule = "a call over several ranks cannot be captured";
        let stream = backend.gpu().unwrap().stream();
        let captured = Graph::capture(stream, |_| {
            let attended = cache.attend(0, &Attention::new(), &q).map(drop);
            let refused = [attended, cache.append(0, &kv, &kv)];
            for error in refused.map(|call| call.unwrap_err().to_string()) {
                assert_eq!(error, format!("rank {}: {rule}", world.rank()));
            }
            Ok::<_, warptile::Error>(())
        });
        captured.unwrap();
        assert_eq!(launches(), before);
    });
    host.assert_clean();
}

#[test]
fn different_calls_are_an_error_on_all_ranks() {
    type Call = fn(&Group, &Attention) -> Result<()>;
    const ZIGZAG: &Sharding = &Sharding::Zigzag;
    let calls: [(Call, &str); 6] = [
        (
            |of, attention| forward_by(Scheme::Heads, of, (ZIGZAG, 512), attention, f16::ONE),
            "heads of 512 rows",
        ),
        (|of, _| forward(of, 500), "500 rows"),
        (
            |of, attention| forward_of(of, &Sharding::Contiguous, 512, attention, f16::ONE),
            "sharding",
        ),
        (
            |of, attention| forward_of(of, ZIGZAG, 512, attention, bf16::ONE),
            "bf16",
        ),
        (
            |of, _| forward_of(of, ZIGZAG, 512, &Attention::new(), f16::ONE),
            "Attention",
        ),
        (
            |of, attention| forward_of(of, ZIGZAG, 512, &attention.clone().scale(0.3), f16::ONE),
            "0.3",
        ),
    ];
    let attention = Attention::new().mask(Mask::causal());
    let (host, met) = (Host::new(3), Barrier::new(3));
    for (call, expected) in calls {
        let failures = each(&worlds(3), |world| {
            let group = host.group(world).unwrap();
            forward(&group, 512).unwrap();
            // A failure ends the calls of all ranks.
            met.wait();
            let called = match world.rank() {
                2 => call(&group, &attention),
                _ => forward(&group, 512),
            };
            let failure = failure(called);
            // And from now on.
            assert_eq!(self::failure(group.synchronize(PATIENCE)), failure);
            failure
        });
        let failure = same(&failures);
        assert!(
            matches!(failure, Failure::Disagree { ranks, .. } if ranks.contains(&2))
                && failure.to_string().contains(expected),
            "{failure}"
        );
        host.assert_clean();
    }
}

#[test]
fn ranks_that_do_not_call_are_named() {
    let host = Host::new(3);
    for absent in [0, 2] {
        let met = Barrier::new(3);
        let failures = each(&worlds_within(TIMEOUT, 3), |world| {
            let group = host.group(world).unwrap();
            met.wait();
            if world.rank() == absent {
                wait_for_failure(&group);
            }
            let failure = failure(forward(&group, 512));
            met.wait();
            failure
        });
        let expected = Failure::Late {
            ranks: vec![absent],
            waited: TIMEOUT,
        };
        assert_eq!(*same(&failures), expected);
    }
    // A group that is closed instead is said to be.
    let failures = each(&worlds(2), |world| {
        let group = host.group(world).unwrap();
        match world.rank() {
            1 => None,
            _ => Some(failure(forward(&group, 512))),
        }
    });
    let closed = failures[0].as_ref().unwrap().to_string();
    assert_eq!(closed, "rank 1 is lost: it has closed its group");
    host.assert_clean();
}

const PASS: u8 = 0;
const STOP: u8 = 1;
const CUT: u8 = 2;

/// A way to rank 0 that can be cut, as if a process were killed, or stopped.
fn proxy(to: &str, state: &Arc<AtomicU8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (to, state) = (to.to_owned(), state.clone());
    thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = loop {
            match TcpStream::connect(&to) {
                Ok(far) => break far,
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        };
        for (mut from, mut to) in [
            (near.try_clone().unwrap(), far.try_clone().unwrap()),
            (far, near),
        ] {
            let state = state.clone();
            from.set_read_timeout(Some(Duration::from_millis(5)))
                .unwrap();
            thread::spawn(move || {
                let mut chunk = [0; 1024];
                loop {
                    match state.load(Ordering::Relaxed) {
                        CUT => break,
                        STOP => thread::sleep(Duration::from_millis(5)),
                        _ => match from.read(&mut chunk) {
                            Ok(0) => break,
                            Ok(len) if to.write_all(&chunk[..len]).is_err() => break,
                            _ => {}
                        },
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn lost_and_stopped_ranks_are_named() {
    let host = Host::new(4);
    for (how, silence, sign) in [
        (CUT, PATIENCE, "its connection has ended"),
        (STOP, SILENCE, "no sign of life"),
    ] {
        for late in [false, true] {
            let state = Arc::new(AtomicU8::new(PASS));
            let address = free_address();
            let world = |rank| {
                let to = match rank {
                    2 => proxy(&address, &state),
                    _ => address.clone(),
                };
                World::new(rank, 4, to).timeout(PATIENCE).silence(silence)
            };
            let done = Barrier::new(4);
            let failures = each(&(0..4).map(world).collect::<Vec<_>>(), |world| {
                let group = host.group(world).unwrap();
                forward(&group, 512).unwrap();
                group.synchronize(PATIENCE).unwrap();
                done.wait();
                if world.rank() == 2 {
                    state.store(how, Ordering::Relaxed);
                }
                // Else waits in the call when the rank is lost.
                if late || world.rank() == 2 {
                    wait_for_failure(&group);
                }
                let failure = failure(forward(&group, 512));
                // Nobody's group ends before all have failed.
                done.wait();
                failure
            });
            let text = failures[0].to_string();
            assert!(
                text.starts_with("rank 2 is lost: ") && text.contains(sign),
                "{text}"
            );
            assert_eq!([&failures[1], &failures[3]], [&failures[0]; 2]);
            let text = failures[2].to_string();
            assert!(text.starts_with("rank 0 is lost: "), "{text}");
            host.assert_clean();
        }
    }
}

#[test]
fn messages_that_do_not_come_end_the_group() {
    let (host, met) = (Host::new(2), Barrier::new(2));
    let failures = each(&worlds_within(TIMEOUT, 2), |world| {
        let group = host.group(world).unwrap();
        host.cuda.set_stalled(Stalled::Copies);
        let called = forward(&group, 512);
        let failure = failure(called.and_then(|()| group.synchronize(PATIENCE)));
        met.wait();
        host.cuda.set_stalled(Stalled::Nothing);
        failure
    });
    let text = same(&failures).to_string();
    assert!(text.contains("messages have not come"), "{text}");
    host.assert_clean();
}

/// The GPUs take long for kernels that were submitted before the messages.
#[test]
fn a_long_queue_does_not_end_the_group() {
    let (host, met) = (Host::new(2), Barrier::new(2));
    let results = each(&worlds_within(TIMEOUT, 2), |world| {
        let group = host.group(world).unwrap();
        host.cuda.set_stalled(Stalled::Kernels);
        decode(&group, 8).unwrap();
        let early = group.synchronize(TIMEOUT + Duration::from_secs(2));
        met.wait();
        host.cuda.set_stalled(Stalled::Nothing);
        let result = group.synchronize(PATIENCE);
        met.wait();
        (early, result)
    });
    for (early, result) in results {
        assert!(matches!(early, Err(Error::TimedOut { .. })), "{early:?}");
        result.unwrap();
    }
    host.assert_clean();
}

/// The kernels take longer than a communicator may take to end.
#[test]
fn a_dropped_group_waits_for_kernels_before_its_messages() {
    let (host, goes_on) = (Host::new(2), AtomicBool::new(false));
    let results = each(&worlds_within(TIMEOUT, 2), |world| {
        let group = host.group(world).unwrap();
        let backend = group.backends()[0].clone();
        host.cuda.set_stalled(Stalled::Kernels);
        decode(&group, 8).unwrap();
        let has_waited = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(TIMEOUT + Duration::from_secs(2));
                goes_on.store(true, Ordering::Relaxed);
                host.cuda.set_stalled(Stalled::Nothing);
            });
            drop(group);
            goes_on.load(Ordering::Relaxed)
        });
        (has_waited, backend.synchronize())
    });
    for (has_waited, result) in results {
        assert!(has_waited, "{result:?}");
        result.unwrap();
    }
    host.assert_clean();
}

#[test]
fn an_abort_of_a_dropped_group_is_an_error_of_its_device() {
    abort_dropped(Stalled::Copies, "messages have not come");
}

#[test]
fn a_dropped_group_does_not_wait_for_ever_for_kernels() {
    abort_dropped(
        Stalled::Kernels,
        "kernels before its messages have not ended",
    );
}

fn abort_dropped(stalled: Stalled, why: &str) {
    let (host, met) = (Host::new(2), Barrier::new(2));
    let results = each(&worlds_within(TIMEOUT, 2), |world| {
        let group = host.group(world).unwrap();
        let backend = group.backends()[0].clone();
        host.cuda.set_stalled(stalled);
        decode(&group, 8).unwrap();
        drop(group);
        met.wait();
        host.cuda.set_stalled(Stalled::Nothing);
        let result = backend.synchronize();
        (result, backend.synchronize())
    });
    for (result, again) in results {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
        again.unwrap();
    }
    host.assert_clean();
}

/// A failure before the drop is an error of the device where messages were cut off and no caller was told.
#[test]
fn an_abort_before_the_drop_is_an_error_of_the_device_unless_a_caller_knows() {
    for is_told in [false, true] {
        let (host, met) = (Host::new(2), Barrier::new(2));
        let results = each(&worlds_within(TIMEOUT, 2), |world| {
            let group = host.group(world).unwrap();
            let backend = group.backends()[0].clone();
            host.cuda.set_stalled(Stalled::Copies);
            decode(&group, 8).unwrap();
            // Both have given up, as nobody asks.
            while host.nccl.live() > 0 {
                thread::sleep(Duration::from_millis(5));
            }
            if is_told {
                wait_for_failure(&group);
            }
            met.wait();
            host.cuda.set_stalled(Stalled::Nothing);
            drop(group);
            let result = backend.synchronize();
            (result, backend.synchronize())
        });
        for (result, again) in results {
            match is_told {
                true => result.unwrap(),
                false => {
                    let text = result.unwrap_err().to_string();
                    assert!(text.contains("messages have not come"), "{text}");
                }
            }
            again.unwrap();
        }
        host.assert_clean();
    }
}

/// All messages have come before rank 1 makes a call alone.
#[test]
fn a_failure_without_messages_is_no_error_of_the_device() {
    let (host, met) = (Host::new(2), Barrier::new(2));
    let results = each(&worlds_within(TIMEOUT, 2), |world| {
        let group = host.group(world).unwrap();
        let backend = group.backends()[0].clone();
        decode(&group, 8).unwrap();
        group.synchronize(PATIENCE).unwrap();
        met.wait();
        if world.rank() == 1 {
            assert!(matches!(failure(decode(&group, 8)), Failure::Late { .. }));
        }
        met.wait();
        drop(group);
        backend.synchronize()
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    host.assert_clean();
}

/// It waits for its messages then.
#[test]
fn a_rank_that_is_lost_while_its_group_is_dropped_is_named_at_once() {
    const LONG: Duration = Duration::from_secs(30);
    let (host, met) = (Host::new(2), Barrier::new(2));
    let state = Arc::new(AtomicU8::new(PASS));
    let address = free_address();
    let to = [address.clone(), proxy(&address, &state)];
    let worlds = [0, 1].map(|rank| World::new(rank, 2, &to[rank]).timeout(LONG));
    let named = each(&worlds, |world| {
        let group = host.group(world).unwrap();
        host.cuda.set_stalled(Stalled::Copies);
        decode(&group, 8).unwrap();
        met.wait();
        if world.rank() == 1 {
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_secs(1));
                    state.store(CUT, Ordering::Relaxed);
                });
                drop(group);
            });
            return String::new();
        }
        let until = Instant::now() + LONG;
        let failed = loop {
            match group.synchronize(PATIENCE) {
                Ok(()) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
                ended => break ended.err(),
            }
        };
        host.cuda.set_stalled(Stalled::Nothing);
        failed.map_or_else(String::new, |error| error.to_string())
    });
    assert_eq!(named[0], "rank 1 is lost: its connection has ended");
    host.assert_clean();
}

/// The watch leaves the error to the caller that synchronizes the device.
#[test]
fn an_error_of_a_destructor_does_not_end_the_group() {
    let (host, met) = (Host::new(2), Barrier::new(2));
    let results = each(&worlds(2), |world| {
        let group = host.group(world).unwrap();
        let stream = Stream::new(group.backends()[0].gpu().unwrap().context()).unwrap();
        let buffer = DeviceBuffer::<u8>::uninit(&stream, 64).unwrap();
        host.cuda.set_stalled(Stalled::Copies);
        decode(&group, 8).unwrap();
        met.wait();
        if world.rank() == 0 {
            host.cuda.fail(Some("cuMemFreeAsync"), 1, 1);
            drop(buffer);
            assert!(host.cuda.fault().is_some());
        }
        met.wait();
        host.cuda.set_stalled(Stalled::Nothing);
        // For the watch to find all messages done.
        thread::sleep(Duration::from_secs(2));
        let result = group.synchronize(PATIENCE);
        met.wait();
        (result, group.synchronize(PATIENCE))
    });
    let text = results[0].0.as_ref().unwrap_err().to_string();
    assert!(
        text.starts_with("rank 0: ") && text.contains("cuMemFreeAsync"),
        "{text}"
    );
    assert!(results[1].0.is_ok() && results.iter().all(|(_, again)| again.is_ok()));
    host.assert_clean();
}

#[test]
fn ranks_that_do_not_meet_are_named() {
    let host = Host::new(3);
    let all = worlds_within(TIMEOUT, 3);
    let errors = each(&all[..2], |world| {
        host.group(world).unwrap_err().to_string()
    });
    for error in errors {
        assert!(
            error.contains("ranks [2] have not connected to rank 0"),
            "{error}"
        );
    }
    // Rank 0 is not there.
    let error = host.group(&all[1]).unwrap_err().to_string();
    assert!(
        error.starts_with("the ranks have not met: rank 1 and rank 0 at 127."),
        "{error}"
    );
    // A port that is taken.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = host
        .group(&World::new(0, 2, address))
        .unwrap_err()
        .to_string();
    assert!(error.contains("in use"), "{error}");
    // Another number of ranks.
    for rank in [1, 2] {
        let address = free_address();
        let uneven = [World::new(0, 2, &address), World::new(rank, 3, &address)];
        for error in each(&uneven, |world| host.group(world).unwrap_err().to_string()) {
            let expected = format!("rank {rank} is `warptile");
            assert!(error.contains(&expected), "{error}");
        }
    }
    // Strangers that come all the time don't keep rank 0 from its bound.
    let address = free_address();
    let (is_over, begin) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut strangers = Vec::new();
            while !is_over.load(Ordering::Relaxed) && begin.elapsed() < 4 * TIMEOUT {
                strangers.extend(TcpStream::connect(&address));
                thread::sleep(Duration::from_millis(100));
            }
        });
        let error = { host.group(&World::new(0, 2, &address).timeout(TIMEOUT)) }.unwrap_err();
        is_over.store(true, Ordering::Relaxed);
        assert!(error.to_string().contains("ranks [1] have not"), "{error}");
        assert!(begin.elapsed() < 3 * TIMEOUT);
    });
    // Strangers are not counted.
    let address = free_address();
    let worlds = [0, 1].map(|rank| World::new(rank, 2, &address));
    thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            loop {
                if let Ok(mut stream) = TcpStream::connect(&address) {
                    return stream.write_all(b"GET / HTTP/1.1\n").is_ok();
                }
            }
        });
        let first = scope.spawn(|| host.group(&worlds[0]).map(drop));
        assert!(stranger.join().unwrap());
        host.group(&worlds[1]).unwrap();
        first.join().unwrap().unwrap();
    });
    host.assert_clean();
}

#[test]
fn libraries_that_will_not_do_are_named() {
    let host = Host::new(1);
    host.nccl.set_version(21_704);
    let error = host.nccl.load().unwrap_err();
    assert!(matches!(error, LoadError::TooOld { .. }));
    assert!(
        error
            .to_string()
            .ends_with("is NCCL 2.17.4, but 2.18.1 or later is required")
    );
    let cpu = Group::nccl_with(&host.api, &World::new(0, 2, "127.0.0.1:1"), &Backend::cpu());
    assert_eq!(
        cpu.unwrap_err().to_string(),
        "rank 0: NCCL is for GPUs, not for cpu"
    );
}

/// A generator of schedules.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

/// Faults of NCCL at any call of any rank, with ranks that come at different times. `WARPTILE_SCHEDULES` sets their number.
#[test]
fn no_schedule_hangs() {
    /// On a busy machine a schedule takes long, but one of several ends.
    const HANG: Duration = Duration::from_secs(300);
    let schedules: u64 =
        std::env::var("WARPTILE_SCHEDULES").map_or(80, |text| text.parse().unwrap());
    let next = AtomicU64::new(0);
    let under_way = Mutex::new(BTreeSet::new());
    let run = |ended: &mpsc::Sender<bool>| {
        let host = Host::new(4);
        let backends = host.backends::<4>();
        let context = Context::new(&host.driver.device(0).unwrap()).unwrap();
        let going_on = Arc::new(());
        let going = Arc::downgrade(&going_on);
        thread::scope(|scope| {
            // The stand-in's GPUs work only while they are waited for. Ends with the other also if that panics.
            scope.spawn(|| {
                while going.strong_count() > 0 {
                    context.synchronize().unwrap();
                    thread::sleep(Duration::from_millis(5));
                }
            });
            let _going_on = going_on;
            // The stand-ins grow slower with what they have seen.
            for _ in 0..25 {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= schedules {
                    return;
                }
                under_way.lock().unwrap().insert(seed);
                let has_failed = schedule(&host, &backends, seed);
                under_way.lock().unwrap().remove(&seed);
                ended.send(has_failed).unwrap();
            }
        });
        assert_eq!(host.cuda.violations(), Vec::<String>::new());
    };
    let failed = thread::scope(|scope| {
        let (ended, ends) = mpsc::channel();
        for _ in 0..8 {
            let (ended, next, run) = (ended.clone(), &next, &run);
            scope.spawn(move || {
                while next.load(Ordering::Relaxed) < schedules {
                    run(&ended);
                }
            });
        }
        drop(ended);
        let mut failed = 0;
        loop {
            match ends.recv_timeout(HANG) {
                Ok(has_failed) => failed += u64::from(has_failed),
                Err(mpsc::RecvTimeoutError::Disconnected) => return failed,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    eprintln!("one of these hangs: {:?}", under_way.lock().unwrap());
                    // Its threads cannot be ended.
                    std::process::abort();
                }
            }
        }
    });
    assert!(
        failed > schedules / 5,
        "{failed} of {schedules} schedules failed"
    );
}

/// Returns true if the ranks failed.
fn schedule(host: &Host, backends: &[Backend], seed: u64) -> bool {
    const SYMBOLS: [&str; 6] = [
        "ncclCommInitRankConfig",
        "ncclSend",
        "ncclRecv",
        "ncclGroupEnd",
        "ncclCommFinalize",
        "ncclCommAbort",
    ];
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let ranks = 2 + random.below(3) as usize;
    let symbol = SYMBOLS[random.below(SYMBOLS.len() as u64) as usize];
    let culprit = random.below(ranks as u64) as usize;
    let nth = 1 + random.below(if symbol.starts_with("ncclComm") { 1 } else { 6 });
    let fault = match random.below(4) {
        0 => Fault::Code([1, 2, 3, 6][random.below(4) as usize]),
        1 if symbol.ends_with("End") || symbol.ends_with("Config") => Fault::Async(6),
        2 if !["ncclSend", "ncclRecv", "ncclCommAbort"].contains(&symbol) => Fault::Stuck,
        _ => Fault::Takes(random.below(60)),
    };
    host.nccl.fault(culprit, symbol, nth, fault);
    let delays: Vec<Vec<u64>> = (0..ranks)
        .map(|_| (0..3).map(|_| random.below(30)).collect())
        .collect();
    // The end of what never ends is a bound, which on a busy machine ranks may reach that only are slow.
    let is_stuck = fault == Fault::Stuck;
    let timeout = match is_stuck {
        true => Duration::from_millis(400),
        false => PATIENCE,
    };
    let begin = Instant::now();
    let (met, any_failed) = (Barrier::new(ranks), AtomicBool::new(false));
    let results = each(&worlds_within(timeout, ranks), |world| {
        let pause = |at: usize| thread::sleep(Duration::from_millis(delays[world.rank()][at]));
        pause(0);
        let group = Group::nccl_with(&host.api, world, &backends[world.rank()]);
        let compute = |group: &Group| {
            let schemes = [
                Scheme::Gather,
                Scheme::Heads,
                Scheme::Hybrid { hosts: ranks },
            ];
            match schemes.get(seed as usize % 4) {
                Some(scheme) => (1..3).try_for_each(|call| {
                    pause(call);
                    let attention = Attention::new().mask(Mask::causal());
                    let rows = (&Sharding::Zigzag, 64);
                    forward_by(*scheme, group, rows, &attention, f16::ONE)
                })?,
                None => decode_dealt(group, |call| pause(call % 3))?,
            }
            group.synchronize(PATIENCE)
        };
        let result = { group.as_ref().map_err(Error::to_string) }
            .and_then(|group| compute(group).map_err(|error| error.to_string()));
        any_failed.fetch_or(result.is_err(), Ordering::Relaxed);
        // Groups are not closed before all ranks have learned of a failure.
        met.wait();
        if let (Ok(group), true) = (&group, any_failed.load(Ordering::Relaxed)) {
            return result.and(Err(wait_for_failure(group).to_string()));
        }
        result
    });
    host.nccl.forget_faults();
    let about =
        format!("seed {seed}: {ranks} ranks, {symbol} {nth} of {culprit}: {fault:?}: {results:?}");
    // No rank has waited for a bound in vain.
    assert!(is_stuck || begin.elapsed() < PATIENCE, "{about}");
    assert_eq!(host.nccl.violations(), "", "{about}");
    assert_eq!(host.nccl.live(), 0, "{about}");
    let Some(error) = results.iter().find_map(|result| result.as_ref().err()) else {
        return false;
    };
    assert!(!matches!(fault, Fault::Takes(_)), "{about}");
    // All say the same, and who it was, or, of a call that does not end, who saw it first.
    let says_so = |result: &Result<(), String>| match result {
        Err(other) => other == error || is_stuck && other.contains("the ranks have not met"),
        Ok(()) => false,
    };
    assert!(results.iter().all(says_so), "{about}");
    let blames = error.starts_with(&format!("rank {culprit} failed: "));
    assert!(blames || is_stuck, "{about}");
    true
}
