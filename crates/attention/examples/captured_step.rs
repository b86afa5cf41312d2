//! A decode step of several layers is captured once, and the graph is launched again and again while sequences grow, end and begin.
//! Each result is compared bit by bit with that of ordinary calls. Needs an NVIDIA GPU.

#[path = "common/command_line.rs"]
mod command_line;
#[path = "common/decode_step.rs"]
mod decode_step;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warptile::cache::SequenceId;
use warptile::driver::{Driver, Graph};
use warptile::gpu::Gpu;
use warptile::half::f16;
use warptile::spec::Rotary;
use warptile::{Backend, Error, KvCache, Layout, Mask, Result, Tensor};

use command_line::{Options, number};
use decode_step::{DecodeStep, bits};

const HELP: &str = "\
Captures a decode step once, and compares what the graph computes with ordinary calls while lengths and pages change.

Usage: captured_step [--replays N] [--device N]

  --replays N  launches of the graph (default 1000)
  --device N   number of the GPU (default 0)

Exit codes: 0 every bit is the same; 1 some are not; 2 wrong usage; 3 the GPU is missing or failed.";

const LAYERS: usize = 3;
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
/// Sequences of a step. Fewer leave places empty.
const BATCH: usize = 8;
const PAGES: usize = 600;
const LONGEST: usize = 1500;
const PROMPT: usize = 300;

/// Every other layer has a window, as in gpt-oss.
fn masks() -> [Mask; LAYERS] {
    std::array::from_fn(|layer| match layer % 2 {
        1 => Mask::window(127, 0),
        _ => Mask::causal(),
    })
}

/// Numbers of every run (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn values(&mut self, rows: usize, heads: usize) -> Vec<f16> {
        let value = |_| f16::from_f64(self.below(2001) as f64 / 1000.0 - 1.0);
        (0..rows * heads * HEAD_DIM).map(value).collect()
    }
}

/// A new sequence with the keys and values of a prompt in all layers; `None` if there are no pages for it.
fn begin(
    cache: &mut KvCache<f16>,
    rotary: &Rotary,
    random: &mut Random,
) -> Result<Option<SequenceId>> {
    let rows = 1 + random.below(PROMPT);
    let sequence = cache.allocate();
    match cache.step(&[(sequence, rows)]) {
        Err(Error::OutOfPages { .. }) => {
            cache.free(sequence)?;
            return Ok(None);
        }
        other => other?,
    }
    let layout = Layout::packed(rows, KV_HEADS, HEAD_DIM);
    let k = Tensor::from_vec(cache.backend(), random.values(rows, KV_HEADS), layout)?;
    let v = Tensor::from_vec(cache.backend(), random.values(rows, KV_HEADS), layout)?;
    for layer in 0..LAYERS {
        cache.append(layer, &k, &v)?.rotary(rotary.clone()).run()?;
    }
    Ok(Some(sequence))
}

/// Returns true if no replay differed.
fn run(gpu: &Arc<Gpu>, replays: usize) -> Result<bool> {
    let (backend, stream) = (Backend::from_gpu(gpu.clone()), gpu.stream());
    let mut cache = KvCache::builder(KV_HEADS, HEAD_DIM)
        .layers(LAYERS)
        .pages(PAGES)
        .sequences(BATCH)
        .longest(LONGEST)
        .build(&backend)?;
    let new_step = || DecodeStep::new(&backend, BATCH, [HEADS, KV_HEADS], HEAD_DIM, &masks());
    let (mut captured, mut called) = (new_step()?, new_step()?);
    let rotary = called.rotary();
    let mut random = Random(1);

    // An ordinary step first: kernels are loaded outside of captures.
    cache.step_padded(&[], BATCH)?;
    called.run(&mut cache)?;
    let graph = Graph::capture::<Error>(stream, |_| captured.run(&mut cache))?;

    let (mut running, mut sequences, mut differing) = (Vec::new(), 0, 0);
    let (mut by_graph, mut by_calls) = (Duration::ZERO, Duration::ZERO);
    for replay in 0..replays {
        if running.len() < BATCH && random.below(8) == 0 {
            let begun = begin(&mut cache, &rotary, &mut random)?;
            sequences += usize::from(begun.is_some());
            running.extend(begun);
        }
        if !running.is_empty() && random.below(100) == 0 {
            let ended = running.swap_remove(random.below(running.len()));
            cache.free(ended)?;
        }
        let mut rows = Vec::new();
        for &sequence in &running {
            rows.push((sequence, usize::from(cache.len(sequence)? < LONGEST)));
        }
        // A sequence at its end, or without a page to go on, gives its place up.
        rows.retain(|&(_, new)| new == 1);
        while let Err(error) = cache.step_padded(&rows, BATCH) {
            match (error, rows.pop()) {
                (Error::OutOfPages { .. }, Some((sequence, _))) => cache.free(sequence)?,
                (error, _) => return Err(error),
            }
        }
        running = rows.iter().map(|&(sequence, _)| sequence).collect();

        let both = captured.inputs().into_iter().zip(called.inputs());
        for (heads, (one, other)) in [HEADS, KV_HEADS, KV_HEADS].into_iter().zip(both) {
            let values = random.values(BATCH, heads);
            one.copy_from_slice(&values)?;
            other.copy_from_slice(&values)?;
        }
        let start = Instant::now();
        graph.launch(stream)?;
        stream.synchronize()?;
        by_graph += start.elapsed();
        let start = Instant::now();
        called.run(&mut cache)?; // writes the same rows again
        stream.synchronize()?;
        by_calls += start.elapsed();
        if bits(&captured.outputs()?) != bits(&called.outputs()?) {
            differing += 1;
            println!("replay {replay} differs: {} sequences", running.len());
        }
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / replays as f64;
    println!("{cache:?}");
    println!("{replays} replays with {sequences} sequences, {differing} of them differ");
    println!(
        "{LAYERS} layers of cache write and attention: {:.0} us by the graph, {:.0} us by calls",
        each(by_graph),
        each(by_calls)
    );
    Ok(differing == 0)
}

struct Settings {
    device: u32,
    replays: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            device: 0,
            replays: 1000,
        }
    }
}

impl Options for Settings {
    const HELP: &'static str = HELP;

    fn set(&mut self, name: &str, value: &str) -> Option<std::result::Result<(), String>> {
        match name {
            "--device" => Some(number(name, value, &mut self.device)),
            "--replays" => Some(number(name, value, &mut self.replays)),
            _ => None,
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        match self.replays {
            0 => Err("--replays must be at least 1".to_owned()),
            _ => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    command_line::main(|settings: &Settings| {
        let driver = Driver::load()?;
        let gpu = Arc::new(Gpu::new(&driver, settings.device)?);
        run(&gpu, settings.replays)
    })
}
