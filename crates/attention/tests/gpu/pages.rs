//! Keys and values in pages, with tables and lengths that change on the device.

use half::f16;
use warptile::gpu::{Bindings, Prepared};
use warptile::kernels::Family;
use warptile::plan::Choice;
use warptile::spec::{Call, Features, Operand};
use warptile::{ElementType, Error, Layout};
use warptile_check::Case;
use warptile_driver::{DeviceBuffer, Graph, Kernel, KernelOptions, LaunchConfig, Module, Stream};
use warptile_kernels::{Image, Schedule, catalog};

use crate::harness::{Images, case, families, gpu, passes, ran, side_by_side};

/// Families with kernels that read pages.
fn paged_families() -> Vec<Family> {
    let mut families = families();
    families.retain(|&family| {
        let of_family = catalog().iter().filter(|image| image.family == family);
        { of_family }.any(|image| image.features.contains(Features::PAGED))
    });
    assert!(!families.is_empty(), "no kernel reads pages");
    families
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_problems_in_pages_pass() {
    const PARTS: u64 = 3;
    const COUNT: usize = 300 / PARTS as usize;
    let parts = { paged_families().into_iter() }
        .flat_map(|family| (0..PARTS).map(move |part| (family, part)));
    side_by_side(parts, |(family, part)| {
        let mut ran = 0;
        for turn in 0..20 * COUNT as u64 {
            let seed = turn * PARTS + part;
            let case = Case::random(seed, 600).with_pages();
            match passes(&case, Images::Family(family)) {
                Ok(taken) => ran += usize::from(taken),
                Err(failure) => panic!("{failure}"),
            }
            if ran == COUNT {
                break;
            }
        }
        assert_eq!(ran, COUNT, "{family}: hardly any problem has a kernel");
    });
}

/// Problems with enough keys that CTAs share those of a tile, for every image of `wgmma` that splits tiles.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn split_tiles_pass_whatever_the_lengths() {
    side_by_side(serving_images(), |image| {
        let (element, tiling) = (image.element, image.tiling);
        let sizes = format!("d{}/{}", tiling.head_dim, tiling.value_dim);
        let texts = [
            "b1 h8/2 q200 k5000 pages=64 mask=causal",
            "b3 h4/1 q130 k3000 pages=16 used=130x3000,1x17,77x2049 device-lengths mask=causal sinks",
            "b2 h6/3 q70 k4001 mask=window,900,-1",
            "b1 h4/2 q1000 k9000 sms=7 mask=window,-1,50",
            "packed=300x2600,1x1300,0x5,129x2000 h4/2 sms=5 mask=causal",
        ];
        let mut split = 0;
        for (seed, text) in texts.into_iter().enumerate() {
            let case = case(&format!("{text} {sizes} {element} seed={seed}"));
            let images = Images::One(image);
            let plan = images.plan(&case).unwrap();
            let call = case.call_on_gpu().unwrap();
            split += usize::from(plan.steps()[0].shape(&call).unwrap().splits > 1);
            assert_eq!(passes(&case, images), Ok(true));
        }
        // How many tiles are left over depends on the tiling.
        assert!(split >= 3, "{}: {split} of 5", image.name);
        ran(image);
    });
}

/// Those of `wgmma` that read pages and split tiles.
fn serving_images() -> Vec<&'static Image> {
    let mut images: Vec<_> = catalog().iter().collect();
    images
        .retain(|image| image.family == Family::Wgmma && image.features.contains(Features::PAGED));
    assert!(!images.is_empty(), "no such image");
    images
}

/// Kernels for steps over pages, each with a number of queries per sequence: every family with one, every image of `decode` with clusters
/// with one and several, and every image of `wgmma` that reads pages with a piece of a prompt.
fn steps() -> Vec<(Choice, usize)> {
    let families = paged_families().into_iter();
    let clusters = { catalog().iter() }.filter(|image| {
        let runs = image
            .target
            .runs_on(gpu().profile().major, gpu().profile().minor);
        image.schedule == Schedule::ClusterTile && image.element == ElementType::F16 && runs
    });
    let in_clusters = clusters
        .flat_map(|image| [1, 9].map(|queries| (Choice::Image(image.name.to_owned()), queries)));
    let images = serving_images()
        .into_iter()
        .filter(|image| image.element == ElementType::F16 && image.tiling.head_dim >= 64);
    families
        .map(|family| (Choice::Family(family), 1))
        .chain(in_clusters)
        .chain(images.map(|image| (Choice::Image(image.name.to_owned()), 70)))
        .collect()
}

const BATCH: usize = 8;
const PAGE_ROWS: usize = 16;
const PAGES: usize = 400;
const COLUMNS: usize = 50;

/// A step over pages, of decoding or of a piece of a prompt: everything that changes lies on the device.
struct Step {
    stream: Stream,
    call: Call,
    prepared: Prepared,
    q: DeviceBuffer<f16>,
    k: DeviceBuffer<f16>,
    v: DeviceBuffer<f16>,
    table: DeviceBuffer<i32>,
    lengths: DeviceBuffer<i32>,
    out: DeviceBuffer<f16>,
    lse: DeviceBuffer<f32>,
}

impl Step {
    fn new(choice: &Choice, queries: usize) -> Self {
        Self::with_pages(choice, BATCH, queries, PAGE_ROWS)
    }

    /// The default number of rows in pages of this size, with any number of sequences.
    fn with_pages(choice: &Choice, batch: usize, queries: usize, page_rows: usize) -> Self {
        let columns = COLUMNS * PAGE_ROWS / page_rows;
        let q = Layout::bshd([batch, queries, 8, 64]);
        let pages = Layout::bshd([PAGES * PAGE_ROWS / page_rows, page_rows, 2, 64]);
        let call = Call::builder(&q, &pages, &pages, ElementType::F16)
            .device_block_table([batch, columns])
            .device_key_lengths(batch)
            .build()
            .unwrap();
        let stream = Stream::new(gpu().context()).unwrap();
        let values = |len: usize, step: f32| -> DeviceBuffer<f16> {
            let values = (0..len).map(|i| f16::from_f32((i as f32 * step).sin()));
            DeviceBuffer::from_slice(&stream, &values.collect::<Vec<_>>()).unwrap()
        };
        let elements = PAGES * PAGE_ROWS * 2 * 64;
        Step {
            prepared: gpu().prepare(call.problem(), choice).unwrap(),
            q: values(batch * queries * 8 * 64, 0.7),
            k: values(elements, 1.3),
            v: values(elements, 0.9),
            table: DeviceBuffer::zeroed(&stream, batch * columns).unwrap(),
            lengths: DeviceBuffer::zeroed(&stream, batch).unwrap(),
            out: DeviceBuffer::zeroed(&stream, batch * queries * 8 * 64).unwrap(),
            lse: DeviceBuffer::zeroed(&stream, batch * queries * 8).unwrap(),
            stream,
            call,
        }
    }

    fn launch(&mut self, stream: &Stream) -> Result<(), Error> {
        let bindings = Bindings::new(
            self.q.as_slice(),
            self.k.as_slice(),
            self.v.as_slice(),
            self.out.as_slice_mut(),
        )
        .output(Operand::Lse, self.lse.as_slice_mut())
        .with(Operand::BlockTable, self.table.as_slice())
        .with(Operand::KeyLengths, self.lengths.as_slice());
        self.prepared.launch(stream, &self.call, &bindings)
    }

    fn set(&mut self, table: &[i32], lengths: &[i32]) {
        self.table.copy_from_slice(table).unwrap();
        self.lengths.copy_from_slice(lengths).unwrap();
    }

    /// Output and lse, by bits.
    fn result(&self) -> (Vec<u16>, Vec<u32>) {
        let (out, lse) = (self.out.to_vec().unwrap(), self.lse.to_vec().unwrap());
        (
            out.iter().map(|x| x.to_bits()).collect(),
            lse.iter().map(|x| x.to_bits()).collect(),
        )
    }
}

/// Numbers without a pattern (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> i32 {
        (self.next() % bound as u64) as i32
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_captured_launch_follows_its_table_and_lengths() {
    side_by_side(steps(), |(choice, queries)| {
        let mut step = Step::new(&choice, queries);
        let stream = step.stream.clone();
        let graph = Graph::capture::<Error>(&stream, |stream| step.launch(stream)).unwrap();
        let mut random = Random(1);
        let mut lengths = [0; BATCH];
        for replay in 0..1000 {
            let table: Vec<i32> = (0..BATCH * COLUMNS).map(|_| random.below(PAGES)).collect();
            for length in &mut lengths {
                *length = (*length + random.below(6)).min((COLUMNS * PAGE_ROWS) as i32);
            }
            // A slot that is given to somebody else.
            lengths[random.below(BATCH) as usize] = random.below(40);
            step.set(&table, &lengths);
            graph.launch(&stream).unwrap();
            let replayed = step.result();
            step.launch(&stream).unwrap();
            assert!(step.result() == replayed, "{choice}, replay {replay}");
        }
    });
}

/// Blocks of keys that are fewer boxes than a loading thread has helpers: one without a box could miss that its stage had been emptied, and
/// then waited for ever.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_launch_over_pages_of_many_rows_ends() {
    let images = { serving_images().into_iter() }
        .filter(|image| image.element == ElementType::F16 && image.tiling.head_dim >= 64);
    side_by_side(images, |image| {
        for page_rows in [32, 64, 128, 256] {
            let choice = Choice::Image(image.name.to_owned());
            let mut step = Step::with_pages(&choice, BATCH, 1, page_rows);
            let stream = step.stream.clone();
            let columns = COLUMNS * PAGE_ROWS / page_rows;
            let pages = (PAGES * PAGE_ROWS / page_rows) as i32;
            let table: Vec<i32> = (0..(BATCH * columns) as i32).map(|i| i % pages).collect();
            step.set(&table, &[(columns * page_rows) as i32; BATCH]);
            step.launch(&stream).unwrap();
            let first = step.result();
            let graph = Graph::capture::<Error>(&stream, |stream| {
                (0..50).try_for_each(|_| step.launch(stream))
            });
            let graph = graph.unwrap();
            for _ in 0..100 {
                graph.launch(&stream).unwrap();
            }
            assert!(step.result() == first, "{choice}, pages of {page_rows}");
        }
        ran(image);
    });
}

/// A kernel that copies words when some time has passed, and long before that lets the launch after it begin. Its block: where to, where
/// from, how many, and nanoseconds.
pub(crate) fn writes_late() -> Kernel<[u64; 4]> {
    let profile = gpu().profile();
    let (target, begins) = match profile.major {
        9.. => (
            "sm_90",
            "griddepcontrol.launch_dependents; griddepcontrol.wait;",
        ),
        _ => ("sm_80", ""),
    };
    let ptx = format!(
        ".version 7.8
        .target {target}
        .address_size 64
        .visible .entry writes_late(.param .align 8 .b8 block[32])
        {{
            .reg .pred %p;
            .reg .b32 %word, %thread;
            .reg .b64 %to, %from, %count, %time, %begin, %now, %i, %at;
            ld.param.u64 %to, [block];
            ld.param.u64 %from, [block + 8];
            ld.param.u64 %count, [block + 16];
            ld.param.u64 %time, [block + 24];
            {begins}
            mov.u64 %begin, %globaltimer;
        wait:
            mov.u64 %now, %globaltimer;
            sub.u64 %now, %now, %begin;
            setp.lt.u64 %p, %now, %time;
            @%p bra wait;
            mov.u32 %thread, %tid.x;
            cvt.u64.u32 %i, %thread;
        next:
            setp.ge.u64 %p, %i, %count;
            @%p bra end;
            shl.b64 %at, %i, 2;
            add.u64 %now, %from, %at;
            ld.global.u32 %word, [%now];
            add.u64 %now, %to, %at;
            st.global.u32 [%now], %word;
            add.u64 %i, %i, 256;
            bra next;
        end:
            ret;
        }}\0"
    );
    let module = Module::load(gpu().context(), ptx.as_bytes()).unwrap();
    Kernel::load(&module, "writes_late", &KernelOptions::new()).unwrap()
}

/// A step that reads ahead of the previous launch's end reads the same numbers again afterwards.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn lengths_and_pages_may_be_written_by_the_launch_before() {
    for_steps_that_follow_a_late_write(BATCH, 300);
}

/// More of them than a CTA has threads, and than it keeps.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn many_lengths_may_be_written_by_the_launch_before() {
    for batch in [150, 512, 700] {
        for_steps_that_follow_a_late_write(batch, 12);
    }
}

/// Runs all steps for `batch` sequences, `rounds` times each.
fn for_steps_that_follow_a_late_write(batch: usize, rounds: usize) {
    let kernel = writes_late();
    let config = LaunchConfig::new([1, 1, 1], [256, 1, 1]);
    let most = (COLUMNS * PAGE_ROWS) as i32;
    side_by_side(steps(), |(choice, queries)| {
        // Few of many sequences, as results are compared on the host.
        let queries = queries.min(9.max(700 / batch));
        let mut step = Step::with_pages(&choice, batch, queries, PAGE_ROWS);
        let stream = step.stream.clone();
        let mut random = Random(3);
        for round in 0..rounds {
            let mut table =
                || -> Vec<i32> { (0..batch * COLUMNS).map(|_| random.below(PAGES)).collect() };
            let (before, after) = (table(), table());
            let mut some = |longest: i32| -> Vec<i32> {
                let lengths = (0..batch).map(|_| random.below(longest as usize + 1));
                lengths.collect()
            };
            let (mut lengths_before, lengths_after) = (some(most), some(most));
            match round % 4 {
                // As in all layers of a model but the first.
                0 => lengths_before.clone_from(&lengths_after),
                // Few CTAs have anything to do, as far as they know.
                1 => lengths_before = some(1),
                // One differs: the last one, too.
                2 => {
                    lengths_before.clone_from(&lengths_after);
                    let which = batch - 1 - round / 4 % batch;
                    lengths_before[which] = some(most)[0];
                }
                _ => {}
            }
            let table_before = if round % 3 == 0 { &after } else { &before };
            step.set(&after, &lengths_after);
            step.launch(&stream).unwrap();
            let expected = step.result();
            let (new_table, new_lengths) = (
                DeviceBuffer::from_slice(&stream, &after).unwrap(),
                DeviceBuffer::from_slice(&stream, &lengths_after).unwrap(),
            );
            step.set(table_before, &lengths_before);
            for (to, from, time) in [
                (&step.table, &new_table, 0),
                (&step.lengths, &new_lengths, 20_000),
            ] {
                let block = [to.pointer(), from.pointer(), to.len() as u64, time];
                // SAFETY: the block is the kernel's; both buffers have as many words, belong to this stream and live until it has been
                // waited for.
                unsafe { kernel.launch(&stream, &config.programmatic(), &block) }.unwrap();
            }
            step.launch(&stream).unwrap();
            assert!(
                step.result() == expected,
                "{choice}, {batch} sequences, round {round}"
            );
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn any_bits_in_a_table_and_in_lengths_do_no_harm() {
    side_by_side(steps(), |(choice, queries)| {
        let mut step = Step::new(&choice, queries);
        let stream = step.stream.clone();
        let table: Vec<i32> = (0..BATCH * COLUMNS).map(|i| (i % PAGES) as i32).collect();
        let lengths = [700; BATCH];
        step.set(&table, &lengths);
        step.launch(&stream).unwrap();
        let right = step.result();
        let mut random = Random(2);
        for _ in 0..200 {
            let mut any = |count: usize| -> Vec<i32> {
                let edge = [i32::MIN, -1, PAGES as i32, i32::MAX];
                let number = |random: &mut Random| match random.below(2) {
                    0 => edge[random.below(4) as usize],
                    _ => random.next() as i32,
                };
                (0..count).map(|_| number(&mut random)).collect()
            };
            // The first sequence stays as it was: the other sequences' numbers must not reach it.
            let (mut wild, mut long) = (any(BATCH * COLUMNS), any(BATCH));
            wild[..COLUMNS].copy_from_slice(&table[..COLUMNS]);
            long[0] = lengths[0];
            step.set(&wild, &long);
            step.launch(&stream).unwrap();
            let (out, lse) = step.result();
            // Its keys may be split in another way.
            let near = |a: f32, b: f32| (a - b).abs() <= 2e-3;
            let outs = out.iter().zip(&right.0).take(queries * 8 * 64);
            for (&a, &b) in outs {
                assert!(near(f16::from_bits(a).to_f32(), f16::from_bits(b).to_f32()));
            }
            let lses = lse.iter().zip(&right.1).take(queries * 8);
            for (&a, &b) in lses {
                assert!(near(f32::from_bits(a), f32::from_bits(b)), "{choice}");
            }
        }
        step.set(&table, &lengths);
        step.launch(&stream).unwrap();
        assert!(step.result() == right, "{choice}");
    });
}
