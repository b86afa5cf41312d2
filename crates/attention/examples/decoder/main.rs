//! A small decoder that generates the same tokens on a GPU, on the CPU, and in a plain float64 loop.
//!
//! It has what decoders of today have: RMS norm, rotary embedding, grouped heads, attention sinks, a sliding window in every
//! other layer, and a gated MLP. Its weights are random, so what it says means nothing. Attention and the cache are the point: sequences
//! of different lengths share the pages of a [`KvCache`], join a running batch and leave it. Everything else is plain host code.

#[path = "../common/command_line.rs"]
mod command_line;
mod model;
mod plain;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use warptile::cache::SequenceId;
use warptile::half::f16;
use warptile::spec::{Pairing, Rotary};
use warptile::{Attention, Backend, KvCache, Layout, Result, Tensor};

use command_line::{Options, number};
use model::{
    Attend, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, Layer, Model, ROTARY_BASE, Random,
    VOCABULARY, mask,
};
use plain::Plain;

const HELP: &str = "\
Generates tokens with a small decoder of random weights: on a GPU if there is one, on the CPU, and in a plain float64 loop.

Usage: decoder [--tokens N] [--seed N] [--device DEVICE]

  --tokens N       tokens that each sequence generates, at least 2 (default 48)
  --seed N         seed of the weights and prompts (default 53); of one seed in 30 two logits are closer than f16 can tell
  --device DEVICE  auto (the fastest GPU), cuda:N, or cpu, which leaves the GPU out (default auto)

Exit codes: 0 the tokens are the same everywhere; 1 they are not; 2 wrong usage; 3 the device is missing or failed.";

const PAGE_ROWS: usize = 16;
/// Tokens of the prompts. As many sequences as `BATCH` run at a time; the last waits for one to end.
const PROMPTS: [usize; 4] = [5, 23, 12, 9];
const BATCH: usize = 3;

/// Attention by Warptile, in f16, over a cache of pages.
struct Paged {
    backend: Backend,
    cache: KvCache<f16>,
    rotary: Rotary,
    layers: Vec<Attention>,
    ids: Vec<SequenceId>,
}

impl Paged {
    fn new(model: &Model, backend: Backend, longest: usize) -> Result<Self> {
        // Just what as many sequences as run at a time may need: the last one gets pages of one that has ended.
        let mut cache = KvCache::builder(KV_HEADS, HEAD_DIM)
            .layers(LAYERS)
            .page_rows(PAGE_ROWS)
            .pages(BATCH * longest.div_ceil(PAGE_ROWS))
            .sequences(BATCH)
            .longest(longest)
            .build(&backend)?;
        let options = |(number, layer): (usize, &Layer)| {
            Attention::new()
                .mask(mask(number))
                .sinks(&layer.sinks)
                .without_lse()
        };
        Ok(Paged {
            ids: PROMPTS.iter().map(|_| cache.allocate()).collect(),
            cache,
            backend,
            rotary: Rotary::computed(HEAD_DIM, ROTARY_BASE, Pairing::HalfSplit)?,
            layers: model.layers.iter().enumerate().map(options).collect(),
        })
    }

    /// The rows of all sequences one after the other.
    fn upload(&self, x: &[f64], heads: usize) -> Result<Tensor<f16>> {
        let rows = x.len() / (heads * HEAD_DIM);
        let data = x.iter().map(|&value| f16::from_f64(value)).collect();
        Tensor::from_vec(&self.backend, data, Layout::packed(rows, heads, HEAD_DIM))
    }
}

impl Attend for Paged {
    fn step(&mut self, rows: &[(usize, usize)]) -> Result<()> {
        let rows: Vec<_> = rows
            .iter()
            .map(|&(sequence, new)| (self.ids[sequence], new))
            .collect();
        self.cache.step(&rows)
    }

    fn attend(&mut self, layer: usize, [q, k, v]: [Vec<f64>; 3]) -> Result<Vec<f64>> {
        let mut q = self.upload(&q, HEADS)?;
        let (k, v) = (self.upload(&k, KV_HEADS)?, self.upload(&v, KV_HEADS)?);
        self.cache
            .append(layer, &k, &v)?
            .rotary(self.rotary.clone())
            .queries(&mut q)
            .run()?;
        let output =
            self.layers[layer].forward(self.cache.queries(&q)?, self.cache.keys(layer)?)?;
        Ok(output.out.into_vec()?.into_iter().map(f64::from).collect())
    }

    fn end(&mut self, sequence: usize) -> Result<()> {
        self.cache.free(self.ids[sequence])
    }
}

/// The output of a run, and the time it took.
struct Generated {
    tokens: Vec<Vec<usize>>,
    /// The least distance between the best logit and the next.
    margin: f64,
    time: Duration,
}

/// Generates `count` tokens after each prompt; of the first, whose place the last takes, half as many.
fn generate(
    model: &Model,
    prompts: &[Vec<usize>],
    count: usize,
    attend: &mut dyn Attend,
) -> Result<Generated> {
    let mut tokens = vec![Vec::new(); prompts.len()];
    let (mut waiting, mut running) = (0..prompts.len(), Vec::new());
    let mut margin = f64::INFINITY;
    let start = Instant::now();
    loop {
        while running.len() < BATCH
            && let Some(next) = waiting.next()
        {
            running.push(next);
        }
        if running.is_empty() {
            return Ok(Generated {
                tokens,
                margin,
                time: start.elapsed(),
            });
        }
        // Who is new brings its prompt, the others their latest token.
        let inputs: Vec<&[usize]> = { running.iter() }
            .map(|&sequence| match tokens[sequence].last() {
                Some(latest) => std::slice::from_ref(latest),
                None => &prompts[sequence][..],
            })
            .collect();
        let rows: Vec<_> = running
            .iter()
            .zip(&inputs)
            .map(|(&sequence, new)| (sequence, new.len()))
            .collect();
        attend.step(&rows)?;
        let states = model.forward(&inputs.concat(), attend)?;
        let mut end = 0;
        for (sequence, new) in rows {
            end += new;
            let logits = model.head.apply(&states[(end - 1) * HIDDEN..end * HIDDEN]);
            let mut order: Vec<usize> = (0..VOCABULARY).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            margin = margin.min(logits[order[0]] - logits[order[1]]);
            tokens[sequence].push(order[0]);
            if tokens[sequence].len() == if sequence == 0 { count / 2 } else { count } {
                attend.end(sequence)?;
                running.retain(|&other| other != sequence);
            }
        }
    }
}

/// Tokens as syllables; a few tokens share one.
fn text(tokens: &[usize]) -> String {
    let letter = |of: &str, index: usize| of.as_bytes()[index % of.len()] as char;
    let syllable = |&token: &usize| {
        [
            letter("bdfghklmnprstvwz", token / 16),
            letter("aeiou", token / 3),
        ]
    };
    tokens.iter().flat_map(syllable).collect()
}

struct Settings {
    tokens: usize,
    seed: u64,
    device: Device,
}

#[derive(Clone, Copy)]
enum Device {
    Auto,
    Cpu,
    Cuda(u32),
}

impl Device {
    fn open(self) -> Result<Backend> {
        match self {
            Device::Auto => Backend::auto(),
            Device::Cpu => Ok(Backend::cpu()),
            Device::Cuda(ordinal) => Backend::cuda(ordinal),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            tokens: 48,
            seed: 53,
            device: Device::Auto,
        }
    }
}

impl Options for Settings {
    const HELP: &'static str = HELP;

    fn set(&mut self, name: &str, value: &str) -> Option<std::result::Result<(), String>> {
        match (name, value.strip_prefix("cuda:")) {
            ("--tokens", _) => return Some(number(name, value, &mut self.tokens)),
            ("--seed", _) => return Some(number(name, value, &mut self.seed)),
            ("--device", Some(ordinal)) => {
                let mut gpu = 0;
                let parsed = number(name, ordinal, &mut gpu);
                self.device = Device::Cuda(gpu);
                return Some(parsed);
            }
            ("--device", None) if value == "auto" => self.device = Device::Auto,
            ("--device", None) if value == "cpu" => self.device = Device::Cpu,
            ("--device", None) => return Some(Err(format!("there is no device {value}"))),
            _ => return None,
        }
        Some(Ok(()))
    }

    fn check(&self) -> std::result::Result<(), String> {
        match self.tokens {
            2..=100_000 => Ok(()),
            other => Err(format!("--tokens {other} is not from 2 to 100000")),
        }
    }
}

/// Runs the decoder everywhere and prints what came out. Whether that is the same everywhere.
fn run(options: &Settings) -> Result<bool> {
    let mut random = Random(options.seed);
    let model = Model::new(&mut random);
    let mut prompt = |len: usize| {
        (0..len)
            .map(|_| random.bits() as usize % VOCABULARY)
            .collect()
    };
    let prompts: Vec<Vec<usize>> = PROMPTS.map(&mut prompt).into();
    let longest = PROMPTS.iter().max().unwrap_or(&0) + options.tokens;
    let mut backends = vec![options.device.open()?];
    if backends[0].is_gpu() {
        backends.push(Backend::cpu());
    }
    let expected = generate(&model, &prompts, options.tokens, &mut Plain::new(&model))?;
    for (sequence, prompt) in prompts.iter().enumerate() {
        println!(
            "sequence {sequence}: {} | {}",
            text(prompt),
            text(&expected.tokens[sequence])
        );
    }
    println!(
        "\n{:<24} {:>6} {:>9}  tokens",
        "where", "tokens", "tokens/s"
    );
    let count: usize = expected.tokens.iter().map(Vec::len).sum();
    let line = |place: &str, time: Duration, verdict: &str| {
        println!(
            "{place:<24} {count:>6} {:>9.0}  {verdict}",
            count as f64 / time.as_secs_f64()
        );
    };
    line("float64 loop", expected.time, "");
    let mut all_same = true;
    for backend in backends {
        let name = backend.device_name().to_owned();
        let mut paged = Paged::new(&model, backend, longest)?;
        let found = generate(&model, &prompts, options.tokens, &mut paged)?;
        let pairs = || found.tokens.iter().zip(&expected.tokens).enumerate();
        let differs = pairs().find(|(_, (found, expected))| found != expected);
        let verdict = differs.map_or("the same".to_owned(), |(sequence, (found, expected))| {
            let place = found.iter().zip(expected).position(|(a, b)| a != b);
            format!(
                "other tokens in sequence {sequence} from token {} on",
                place.unwrap_or(0)
            )
        });
        all_same &= differs.is_none();
        line(&name, found.time, &verdict);
    }
    println!(
        "\nThe matrix products are loops on the host, so tokens/s says little about attention."
    );
    println!(
        "The two best logits of a token are at least {:.4} apart.",
        expected.margin
    );
    Ok(all_same)
}

fn main() -> ExitCode {
    command_line::main(run)
}
