//! A small language model of bytes, and its training.

use std::sync::PoisonError;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{
    AdamW, Embedding, Linear, Module, Optimizer, ParamsAdamW, RmsNorm, VarBuilder, VarMap,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Attention of [batch, length, heads, head size], causal, with scores multiplied by a scale.
pub(crate) type Attend = fn(&Tensor, &Tensor, &Tensor, f32) -> Result<Tensor>;

/// How large a model and a step of its training are.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) head_size: usize,
    /// Bytes that a prediction sees at most.
    pub(crate) length: usize,
    /// Pieces of text in a step.
    pub(crate) batch: usize,
}

impl Size {
    /// Numbers of a row.
    fn width(self) -> usize {
        self.heads * self.head_size
    }
}

/// A layer as of Llama: normalisation, attention and a two-layer network of the rows, each beside what it adds to.
struct Layer {
    size: Size,
    before_attention: RmsNorm,
    qkv: Linear,
    project: Linear,
    before_rows: RmsNorm,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(size: Size, vars: VarBuilder<'_>) -> Result<Self> {
        let (linear, width) = (candle_nn::linear_no_bias, size.width());
        Ok(Layer {
            size,
            before_attention: candle_nn::rms_norm(width, 1e-5, vars.pp("before_attention"))?,
            qkv: linear(width, 3 * width, vars.pp("qkv"))?,
            project: linear(width, width, vars.pp("project"))?,
            before_rows: candle_nn::rms_norm(width, 1e-5, vars.pp("before_rows"))?,
            up: linear(width, 4 * width, vars.pp("up"))?,
            down: linear(4 * width, width, vars.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor, attend: Attend) -> Result<Tensor> {
        let (batch, length, width) = x.dims3()?;
        let (heads, head_size) = (self.size.heads, self.size.head_size);
        // `forward` of a norm has no gradient in candle, `forward_diff` has.
        let qkv = self.qkv.forward(&self.before_attention.forward_diff(x)?)?;
        let qkv = qkv.reshape((batch, length, 3, heads, head_size))?;
        let part = |index| qkv.narrow(2, index, 1)?.squeeze(2)?.contiguous();
        let scale = 1.0 / (head_size as f32).sqrt();
        let attended = attend(&part(0)?, &part(1)?, &part(2)?, scale)?;
        let x = (x + self
            .project
            .forward(&attended.reshape((batch, length, width))?)?)?;
        let rows = self
            .up
            .forward(&self.before_rows.forward_diff(&x)?)?
            .silu()?;
        x + self.down.forward(&rows)?
    }
}

/// A model and its optimizer.
pub(crate) struct Training {
    size: Size,
    bytes: Embedding,
    places: Embedding,
    layers: Vec<Layer>,
    last: RmsNorm,
    vars: VarMap,
    optimizer: AdamW,
    attend: Attend,
    device: Device,
    random: StdRng,
}

impl Training {
    /// A model whose weights, and whose choice of text, come from `seed` alone.
    pub(crate) fn new(size: Size, seed: u64, attend: Attend, device: &Device) -> Result<Self> {
        let (vars, width) = (VarMap::new(), size.width());
        let builder = VarBuilder::from_varmap(&vars, DType::F32, device);
        let bytes = candle_nn::embedding(256, width, builder.pp("bytes"))?;
        let places = candle_nn::embedding(size.length, width, builder.pp("places"))?;
        let layers = (0..size.layers).map(|layer| Layer::new(size, builder.pp(layer)));
        let layers = layers.collect::<Result<_>>()?;
        let last = candle_nn::rms_norm(width, 1e-5, builder.pp("last"))?;
        let mut training = Training {
            size,
            bytes,
            places,
            layers,
            last,
            optimizer: AdamW::new(
                vars.all_vars(),
                ParamsAdamW {
                    lr: 3e-3,
                    ..Default::default()
                },
            )?,
            vars,
            attend,
            device: device.clone(),
            random: StdRng::seed_from_u64(seed),
        };
        training.draw_weights()?;
        Ok(training)
    }

    /// candle draws other weights each time on the CPU. Those of norms stay 1.
    fn draw_weights(&mut self) -> Result<()> {
        let vars = self
            .vars
            .data()
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<_> = vars.keys().filter(|name| vars[*name].rank() == 2).collect();
        names.sort();
        for name in names {
            let var = &vars[name];
            let bound = 0.5 / (self.size.width() as f32).sqrt();
            let drawn = (0..var.elem_count()).map(|_| self.random.random_range(-bound..bound));
            var.set(&Tensor::from_iter(drawn, &self.device)?.reshape(var.shape())?)?;
        }
        Ok(())
    }

    /// A number for each byte that may come next, in each place of each row of `text`.
    pub(crate) fn logits(&self, text: &Tensor) -> Result<Tensor> {
        let places = Tensor::arange(0, text.dim(D::Minus1)? as u32, &self.device)?;
        let mut x = self
            .bytes
            .forward(text)?
            .broadcast_add(&self.places.forward(&places)?)?;
        for layer in &self.layers {
            x = layer.forward(&x, self.attend)?;
        }
        // Scores of a byte are products with its embedding.
        let (batch, length, width) = x.dims3()?;
        let x = self
            .last
            .forward_diff(&x)?
            .reshape((batch * length, width))?;
        x.matmul(&self.bytes.embeddings().t()?)
    }

    /// Learns from some pieces of the text; returns the mean loss of a byte before, in nats.
    pub(crate) fn step(&mut self, text: &[u8]) -> Result<f32> {
        let Size { length, batch, .. } = self.size;
        let mut pieces = Vec::with_capacity(batch * (length + 1));
        for _ in 0..batch {
            let first = self.random.random_range(0..text.len() - length);
            pieces.extend(
                text[first..=first + length]
                    .iter()
                    .map(|&byte| u32::from(byte)),
            );
        }
        let pieces = Tensor::from_vec(pieces, (batch, length + 1), &self.device)?;
        let next = pieces.narrow(1, 1, length)?.flatten_all()?;
        let logits = self.logits(&pieces.narrow(1, 0, length)?.contiguous()?)?;
        let loss = candle_nn::loss::cross_entropy(&logits, &next)?;
        self.optimizer.backward_step(&loss)?;
        loss.to_scalar()
    }

    /// All weights, in the order of their names.
    pub(crate) fn weights(&self) -> Result<Vec<Vec<f32>>> {
        let vars = self
            .vars
            .data()
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut named: Vec<_> = vars.iter().collect();
        named.sort_by_key(|(name, _)| *name);
        let weights = named
            .into_iter()
            .map(|(_, var)| var.flatten_all()?.to_vec1());
        weights.collect()
    }
}

/// By candle's own operations, with a matrix of scores.
pub(crate) fn composed(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let length = q.dim(1)?;
    let hidden = { 0..length * length }.map(|i| match i % length > i / length {
        true => f32::NEG_INFINITY,
        false => 0.0,
    });
    let hidden = Tensor::from_iter(hidden, q.device())?.reshape((length, length))?;
    let hidden = hidden.to_dtype(q.dtype())?;
    let [q, k, v] = [q, k, v].map(|tensor| tensor.transpose(1, 2)?.contiguous());
    let scores = (q?.matmul(&k?.t()?)? * f64::from(scale))?.broadcast_add(&hidden)?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    weights.matmul(&v?)?.transpose(1, 2)?.contiguous()
}
