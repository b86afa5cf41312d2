//! The decoder without its attention: plain loops in float64.

use warptile::{Mask, Result};

pub(crate) const VOCABULARY: usize = 256;
pub(crate) const LAYERS: usize = 4;
pub(crate) const HIDDEN: usize = 256;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const HEAD_DIM: usize = 64;
pub(crate) const ROTARY_BASE: f64 = 10_000.0;
const MLP: usize = 512;
/// Keys before its own that a token sees in odd layers.
const WINDOW: u32 = 24;

/// Numbers of every run (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Normally distributed, nearly: a sum of 12 even numbers.
    fn normal(&mut self) -> f64 {
        (0..12)
            .map(|_| self.bits() as f64 / 2_f64.powi(64))
            .sum::<f64>()
            - 6.0
    }

    /// A matrix of `rows` inputs and `columns` outputs that keeps the size of its inputs.
    fn matrix(&mut self, rows: usize, columns: usize) -> Matrix {
        let scale = (rows as f64).sqrt().recip();
        Matrix {
            columns,
            weights: (0..rows * columns).map(|_| scale * self.normal()).collect(),
        }
    }
}

pub(crate) struct Matrix {
    columns: usize,
    weights: Vec<f64>,
}

impl Matrix {
    /// The product with each row of `x`.
    pub(crate) fn apply(&self, x: &[f64]) -> Vec<f64> {
        let inputs = self.weights.len() / self.columns;
        let mut out = vec![0.0; x.len() / inputs * self.columns];
        for (x, out) in x.chunks(inputs).zip(out.chunks_mut(self.columns)) {
            for (x, weights) in x.iter().zip(self.weights.chunks(self.columns)) {
                out.iter_mut()
                    .zip(weights)
                    .for_each(|(out, weight)| *out += x * weight);
            }
        }
        out
    }
}

pub(crate) struct Layer {
    q: Matrix,
    k: Matrix,
    v: Matrix,
    o: Matrix,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    pub(crate) sinks: [f32; HEADS],
}

pub(crate) struct Model {
    embedding: Matrix,
    pub(crate) layers: Vec<Layer>,
    pub(crate) head: Matrix,
}

impl Model {
    pub(crate) fn new(random: &mut Random) -> Self {
        Model {
            embedding: random.matrix(VOCABULARY, HIDDEN),
            layers: (0..LAYERS)
                .map(|_| Layer {
                    q: random.matrix(HIDDEN, HEADS * HEAD_DIM),
                    k: random.matrix(HIDDEN, KV_HEADS * HEAD_DIM),
                    v: random.matrix(HIDDEN, KV_HEADS * HEAD_DIM),
                    o: random.matrix(HEADS * HEAD_DIM, HIDDEN),
                    gate: random.matrix(HIDDEN, MLP),
                    up: random.matrix(HIDDEN, MLP),
                    down: random.matrix(MLP, HIDDEN),
                    sinks: std::array::from_fn(|_| random.normal() as f32),
                })
                .collect(),
            head: random.matrix(HIDDEN, VOCABULARY),
        }
    }

    /// The state of each token after all layers.
    pub(crate) fn forward(&self, tokens: &[usize], attend: &mut dyn Attend) -> Result<Vec<f64>> {
        let row = |&token: &usize| &self.embedding.weights[token * HIDDEN..][..HIDDEN];
        let mut x: Vec<f64> = tokens
            .iter()
            .flat_map(row)
            .map(|value| value * 16.0)
            .collect();
        for (number, layer) in self.layers.iter().enumerate() {
            let input = norm(&x);
            let projected = [&layer.q, &layer.k, &layer.v].map(|matrix| matrix.apply(&input));
            let seen = attend.attend(number, projected)?;
            add(&mut x, &layer.o.apply(&seen));
            let input = norm(&x);
            let mut gated = layer.up.apply(&input);
            for (value, gate) in gated.iter_mut().zip(layer.gate.apply(&input)) {
                *value *= gate / (1.0 + (-gate).exp());
            }
            add(&mut x, &layer.down.apply(&gated));
        }
        Ok(norm(&x))
    }
}

fn norm(x: &[f64]) -> Vec<f64> {
    let scale =
        |row: &[f64]| (row.iter().map(|x| x * x).sum::<f64>() / HIDDEN as f64 + 1e-6).sqrt();
    x.chunks(HIDDEN)
        .flat_map(|row| row.iter().map(move |x| x / scale(row)))
        .collect()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

pub(crate) fn mask(layer: usize) -> Mask {
    if layer % 2 == 1 {
        Mask::window(WINDOW, 0)
    } else {
        Mask::causal()
    }
}

/// Attention and what it remembers.
pub(crate) trait Attend {
    /// Begins a step, in which these sequences get this many new tokens.
    fn step(&mut self, rows: &[(usize, usize)]) -> Result<()>;
    /// Attention in a layer, given the queries, keys and values of the step's tokens, not rotated yet.
    fn attend(&mut self, layer: usize, qkv: [Vec<f64>; 3]) -> Result<Vec<f64>>;
    /// Forgets a sequence.
    fn end(&mut self, sequence: usize) -> Result<()>;
}
