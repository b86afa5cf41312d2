//! Ranks in processes of their own, which torchrun's variables describe. A test starts itself again for each rank.

#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use warptile::driver::{Driver, Kernel, KernelOptions, LaunchConfig, Module};
use warptile::half::bf16;
use warptile::{Attention, Backend, Mask};
use warptile_distributed::{Error, Failure, Group, Result, Scheme, Sharding, World};
use warptile_fake_cuda::FakeDriver;
use warptile_fake_nccl::FakeNccl;

#[path = "common/captured.rs"]
mod captured;

const TIMEOUT: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(2);
/// For what a rank may take beyond its bound, on a busy machine.
const SLACK: Duration = Duration::from_secs(10);

/// The process that this is, if a test has started it.
fn own_rank() -> Option<World> {
    std::env::var_os("WARPTILE_TEST_RANK")?;
    let world = World::from_env().unwrap();
    Some(world.timeout(TIMEOUT).silence(SILENCE))
}

/// `word` is for the process to read.
fn start(test: &str, rank: usize, port: u16, word: &str) -> Child {
    command(test, rank, port, word).spawn().unwrap()
}

fn command(test: &str, rank: usize, port: u16, word: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .env("WARPTILE_TEST_RANK", word)
        .envs(["RANK", "LOCAL_RANK"].map(|name| (name, rank.to_string())))
        .env("WORLD_SIZE", "2")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", (port - 1).to_string());
    command
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn signal_to(process: u32, signal: &str) {
    let mut kill = Command::new("kill");
    let status = kill.args([signal, &process.to_string()]).status();
    assert!(status.unwrap().success());
}

/// Is killed when dropped.
struct Process(Child);

impl Process {
    fn wait(&mut self, limit: Duration) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(
                begin.elapsed() < limit,
                "a rank is still there after {limit:?}"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stand-ins of two processes know nothing of each other: their ranks meet, and wait for each other's communicators.
fn meet(world: &World, met: impl FnOnce(&FakeNccl) + Send) -> Result<Group> {
    let cuda = FakeDriver::open();
    cuda.set_device_count(2);
    // SAFETY: the library is the stand-in, with the driver's signatures.
    let driver = unsafe { Driver::load_from(cuda.path()) }.unwrap();
    let nccl = FakeNccl::open(cuda.path());
    let backend = Backend::cuda_with(&driver, world.rank() as u32).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| met(&nccl));
        Group::nccl_with(&nccl.load().unwrap(), world, &backend)
    })
}

#[test]
fn a_killed_or_stopped_process_is_lost() {
    if let Some(world) = own_rank() {
        println!("{:?}", meet(&world, |_| ()).map(drop));
        return;
    }
    for signal in ["-KILL", "-STOP"] {
        let port = free_port();
        let other = Process(start("a_killed_or_stopped_process_is_lost", 1, port, ""));
        let world = World::new(0, 2, format!("127.0.0.1:{port}"));
        let mut since = None;
        let result = meet(&world.timeout(TIMEOUT).silence(SILENCE), |nccl| {
            while nccl.live() == 0 {
                thread::sleep(Duration::from_millis(5));
            }
            signal_to(other.0.id(), signal);
            since = Some(Instant::now());
        });
        assert!(since.unwrap().elapsed() < SILENCE + SLACK);
        let failure = match result {
            Err(Error::Failure(failure)) => failure,
            other => panic!("{other:?}"),
        };
        assert!(
            matches!(failure, Failure::Lost { rank: 1, .. }),
            "{failure}"
        );
    }
}

/// Both ranks stand still for longer than a rank may be silent.
#[test]
fn a_job_that_is_suspended_as_a_whole_goes_on() {
    if let Some(world) = own_rank() {
        let result = meet(&world.timeout(3 * SILENCE), |nccl| {
            while nccl.live() == 0 {
                thread::sleep(Duration::from_millis(5));
            }
            println!("begun");
        });
        // The communicators of two stand-ins do not begin in time.
        assert!(
            matches!(result, Err(Error::Failure(Failure::Failed { .. }))),
            "{result:?}"
        );
        return;
    }
    let port = free_port();
    let mut ranks = [0, 1].map(|rank| {
        let mut rank = command("a_job_that_is_suspended_as_a_whole_goes_on", rank, port, "");
        Process(rank.stdout(Stdio::piped()).spawn().unwrap())
    });
    // Kept, as the ranks write more.
    let mut outputs = ranks.each_mut().map(|rank| {
        let output = rank.0.stdout.take().unwrap();
        BufReader::new(output).lines()
    });
    for output in &mut outputs {
        assert!(output.any(|line| line.unwrap().contains("begun")));
    }
    // Rank 0 goes on first, and has heard before what rank 1 had said.
    let moment = Duration::from_millis(300);
    for (rank, signal, pause) in [
        (1, "-STOP", moment),
        (0, "-STOP", SILENCE + Duration::from_secs(1)),
        (0, "-CONT", moment),
        (1, "-CONT", moment),
    ] {
        signal_to(ranks[rank].0.id(), signal);
        thread::sleep(pause);
    }
    for rank in &mut ranks {
        assert!(rank.wait(TIMEOUT + SLACK).success());
    }
}

/// Multicast over NVLink may be in use by others of a shared host.
fn without_multicast() {
    assert_eq!(
        std::env::var("NCCL_NVLS_ENABLE").as_deref(),
        Ok("0"),
        "set NCCL_NVLS_ENABLE=0"
    );
}

fn data(len: usize, seed: f32) -> Vec<bf16> {
    (0..len)
        .map(|i| bf16::from_f32(((i as f32 + seed) * 0.731).sin()))
        .collect()
}

fn gpu_group(world: &World) -> Group {
    let backend = Backend::cuda(world.local_rank().unwrap() as u32).unwrap();
    Group::nccl(world, &backend).unwrap()
}

/// The rows of a rank are those of one call, except for the rounding of another order of additions, and have the same bits again.
fn equals_one_call(
    group: &Group,
    sharding: &Sharding,
    mask: Mask,
    [len, heads, kv_heads]: [usize; 3],
) {
    let (dim, attention) = (128, Attention::new().mask(mask));
    let tensors = [(heads, 0.1), (kv_heads, 0.2), (kv_heads, 0.3)]
        .map(|(heads, seed)| (data(len * heads * dim, seed), heads));
    let backend = &group.backends()[0];
    let [q, k, v] = [0, 1, 2].map(|at| {
        let (data, heads) = &tensors[at];
        backend.tensor(data, [1, len, *heads, dim]).unwrap()
    });
    let expected = attention
        .forward(&q, (&k, &v))
        .unwrap()
        .out
        .to_vec()
        .unwrap();
    for scheme in [Scheme::Gather, Scheme::Heads] {
        let shards = group.shards(sharding, len).unwrap().scheme(scheme);
        let [q, k, v] = [0, 1, 2].map(|at| {
            let (data, heads) = &tensors[at];
            shards.split(data, *heads, dim).unwrap()
        });
        let run = || {
            let out = shards.forward(&attention, &q, (&k, &v)).unwrap();
            group.synchronize(TIMEOUT).unwrap();
            out.out[0].to_vec().unwrap()
        };
        let found = run();
        let rows = shards.map().chunks(group.local_ranks().start);
        let rows: Vec<_> = rows.iter().flat_map(|chunk| chunk.rows.clone()).collect();
        assert_eq!(found.len(), rows.len() * heads * dim);
        for (at, found) in found.iter().enumerate() {
            let (head, row, of) = (at / dim / rows.len(), rows[at / dim % rows.len()], at % dim);
            let expected = expected[(row * heads + head) * dim + of].to_f32();
            assert!(
                (found.to_f32() - expected).abs() <= 0.008 + 0.008 * expected.abs(),
                "{scheme:?}, {len} rows, {sharding:?}, {mask:?}: row {row}, head {head} is {found}, not {expected}"
            );
        }
        for _ in 0..5 {
            assert!(
                run() == found,
                "{scheme:?}, {len} rows, {sharding:?}, {mask:?}: other bits"
            );
        }
    }
}

#[test]
#[ignore = "needs two NVIDIA GPUs and NCCL"]
fn two_gpus_over_nccl() {
    without_multicast();
    if let Some(world) = own_rank() {
        let group = gpu_group(&world);
        for sizes in [
            [1280, 4, 2],
            [1001, 8, 1],
            [3, 2, 2],
            [2500, 8, 2],
            [16384, 8, 2],
        ] {
            for mask in [Mask::none(), Mask::causal(), Mask::window(200, 30)] {
                for sharding in [Sharding::Contiguous, Sharding::Zigzag] {
                    equals_one_call(&group, &sharding, mask, sizes);
                }
            }
        }
        return;
    }
    let port = free_port();
    let ranks = [0, 1].map(|rank| Process(start("two_gpus_over_nccl", rank, port, "")));
    for mut rank in ranks {
        assert!(rank.wait(Duration::from_secs(300)).success());
    }
}

/// A rank that is killed or stopped while both compute.
#[test]
#[ignore = "needs two NVIDIA GPUs and NCCL"]
fn two_gpus_of_which_one_is_lost() {
    without_multicast();
    if let Some(world) = own_rank() {
        let group = gpu_group(&world);
        let shards = group.shards(&Sharding::Zigzag, 16384).unwrap();
        let q = shards.split(&data(16384 * 8 * 128, 0.1), 8, 128).unwrap();
        let attention = Attention::new().mask(Mask::causal());
        let signal = std::env::var("WARPTILE_TEST_RANK").unwrap();
        let mut begin = Instant::now();
        let error = (1..).find_map(|call| {
            begin = Instant::now();
            let submitted = shards.forward(&attention, &q, (&q, &q));
            if world.rank() == 1 && call == 4 {
                signal_to(std::process::id(), &signal);
            }
            submitted.and_then(|_| group.synchronize(TIMEOUT)).err()
        });
        let error = error.unwrap().to_string();
        assert!(error.starts_with("rank 1 is lost: "), "{error}");
        assert!(begin.elapsed() < SILENCE + Duration::from_secs(2));
        println!("after {:.1} s: {error}", begin.elapsed().as_secs_f64());
        return;
    }
    // Four groups at a time, which share the GPUs.
    for turn in 0..10 {
        let groups = ["-KILL", "-STOP", "-KILL", "-STOP"].map(|signal| {
            let port = free_port();
            [0, 1].map(|rank| {
                let test = "two_gpus_of_which_one_is_lost";
                Process(start(test, rank, port, signal))
            })
        });
        for [mut first, _second] in groups {
            assert!(first.wait(Duration::from_secs(60)).success());
        }
        println!("{} groups have lost a rank", 4 * (turn + 1));
    }
}

/// What a rank may take beyond its bound, on GPUs.
const SOON: Duration = Duration::from_secs(2);

/// A rank makes another call, or aborts, amid a loop that launches a captured graph.
#[test]
#[ignore = "needs two NVIDIA GPUs and NCCL"]
fn two_gpus_whose_captured_loop_ends() {
    without_multicast();
    if let Some(world) = own_rank() {
        let group = gpu_group(&world);
        let aborts = std::env::var("WARPTILE_TEST_RANK").unwrap() == "abort";
        let (error, took) = captured::until_failure(&group, TIMEOUT, |number, shards, q| {
            let mut attention = captured::causal();
            if world.rank() == 1 && number == 3 {
                match aborts {
                    true => std::process::abort(),
                    false => attention = attention.scale(0.3),
                }
            }
            Ok(shards.forward(&attention, q, (q, q))?.out)
        });
        let text = error.to_string();
        let is_right = match (aborts, error) {
            (true, Error::Failure(Failure::Lost { rank: 1, .. })) => true,
            (false, Error::Failure(Failure::Disagree { .. })) => text.contains("0.3"),
            _ => false,
        };
        assert!(is_right, "{text}");
        assert!(took < SILENCE + SOON, "{took:?}");
        println!("after {:.1} s: {text}", took.as_secs_f64());
        return;
    }
    for turn in 0..10 {
        let groups = ["abort", "mismatch", "abort", "mismatch"].map(|word| {
            let port = free_port();
            let start =
                |rank| Process(start("two_gpus_whose_captured_loop_ends", rank, port, word));
            (word, [0, 1].map(start))
        });
        for (word, mut ranks) in groups {
            let [first, second] = ranks.each_mut();
            assert!(first.wait(Duration::from_secs(60)).success());
            let ends_well = second.wait(Duration::from_secs(60)).success();
            assert_eq!(ends_well, word == "mismatch");
        }
        println!("{} loops have ended", 4 * (turn + 1));
    }
}

/// A kernel of a rank faults amid a loop that launches a captured graph: its GPU is of no use to the process after that.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn two_gpus_of_which_one_faults_in_a_captured_loop() {
    if own_rank().is_some() {
        let backends = [0, 1].map(|gpu| Backend::cuda(gpu).unwrap());
        let stream = backends[1].gpu().unwrap().stream().clone();
        let ptx = include_bytes!("../../driver/tests/kernels.ptx");
        let module = Module::load(stream.context(), ptx).unwrap();
        let options = KernelOptions::new().param_bytes(16);
        let kernel = Kernel::<[u64; 2]>::load(&module, "increment", &options).unwrap();
        let group = Group::local(backends).unwrap();
        let (error, took) = captured::until_failure(&group, TIMEOUT, |number, shards, q| {
            if number == 3 {
                let config = LaunchConfig::new([1, 1, 1], [128, 1, 1]);
                // SAFETY: one number at address 0, which is no memory: the fault stays within the process.
                unsafe { kernel.launch(&stream, &config, &[0, 1]) }.unwrap();
            }
            Ok(shards.forward(&captured::causal(), q, (q, q))?.out)
        });
        println!("after {:.1} s: {error}", took.as_secs_f64());
        assert!(matches!(error, Error::Rank { rank: 1, .. }), "{error}");
        assert!(took < SOON, "{took:?}");
        return;
    }
    for turn in 0..5 {
        let test = "two_gpus_of_which_one_faults_in_a_captured_loop";
        let processes = [0; 4].map(|_| Process(start(test, 0, free_port(), "")));
        for mut process in processes {
            assert!(process.wait(Duration::from_secs(60)).success());
        }
        println!("{} loops have ended", 4 * (turn + 1));
    }
}

/// Prints how long both GPUs take together, and each alone, for a causal sequence of 32 query heads and 8 key/value heads.
#[test]
#[ignore = "needs two NVIDIA GPUs and NCCL"]
fn speed_of_two_gpus() {
    without_multicast();
    if let Some(world) = own_rank() {
        let group = gpu_group(&world);
        let (backend, attention) = (&group.backends()[0], Attention::new().mask(Mask::causal()));
        for len in [1 << 14, 1 << 15, 1 << 16, 1 << 17] {
            let shards = group.shards(&Sharding::Zigzag, len).unwrap();
            let [q, k] = [32, 8].map(|heads| data(len * heads * 128, 0.1 * heads as f32));
            let [tq, tk] = [(&q, 32), (&k, 8)]
                .map(|(data, heads)| backend.tensor(data, [1, len, heads, 128]).unwrap());
            let [sq, sk] =
                [(&q, 32), (&k, 8)].map(|(data, heads)| shards.split(data, heads, 128).unwrap());
            let one = microseconds(backend, || {
                attention.forward(&tq, (&tk, &tk)).map(drop).unwrap()
            });
            let both = microseconds(backend, || {
                shards
                    .forward(&attention, &sq, (&sk, &sk))
                    .map(drop)
                    .unwrap();
            });
            group.synchronize(TIMEOUT).unwrap();
            println!(
                "engine nccl, rank {} of 2, {len} rows: {one:.0} us alone, {both:.0} us together, efficiency {:.3}",
                world.rank(),
                one / both / 2.0
            );
        }
        return;
    }
    let port = free_port();
    let ranks = [0, 1].map(|rank| Process(start("speed_of_two_gpus", rank, port, "")));
    for mut rank in ranks {
        assert!(rank.wait(Duration::from_secs(300)).success());
    }
}

/// The median over groups of calls, one behind the other. The number of calls is the same on all ranks.
fn microseconds(backend: &Backend, call: impl Fn()) -> f64 {
    const CALLS: u32 = 5;
    let mut times: Vec<_> = (0..12)
        .map(|_| {
            backend.synchronize().unwrap();
            let begin = Instant::now();
            (0..CALLS).for_each(|_| call());
            backend.synchronize().unwrap();
            (begin.elapsed() / CALLS).as_secs_f64() * 1e6
        })
        .skip(2)
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
