//! A decode step: one token for each sequence, in tensors that stay where they are. An example captures it, and a test.

use warptile::half::f16;
use warptile::spec::{Pairing, Rotary};
use warptile::{Attention, Backend, KvCache, Layout, Mask, Result, Tensor};

/// The tensors that a model would compute with, and the outputs of each layer. All layers have the same queries, keys and
/// values here.
pub(crate) struct DecodeStep {
    q: Tensor<f16>,
    rotated: Tensor<f16>,
    k: Tensor<f16>,
    v: Tensor<f16>,
    out: Vec<Tensor<f16>>,
    rotary: Rotary,
    layers: Vec<Attention>,
}

impl DecodeStep {
    /// With a layer for each mask.
    pub(crate) fn new(
        backend: &Backend,
        batch: usize,
        [heads, kv_heads]: [usize; 2],
        head_dim: usize,
        masks: &[Mask],
    ) -> Result<Self> {
        let tensor = |heads: usize| {
            let layout = Layout::bshd([batch, 1, heads, head_dim]);
            Tensor::from_vec(backend, vec![f16::ZERO; batch * heads * head_dim], layout)
        };
        let layer = |&mask| Attention::new().mask(mask).sinks(&vec![0.5; heads]);
        Ok(DecodeStep {
            q: tensor(heads)?,
            rotated: tensor(heads)?,
            k: tensor(kv_heads)?,
            v: tensor(kv_heads)?,
            out: masks.iter().map(|_| tensor(heads)).collect::<Result<_>>()?,
            rotary: Rotary::computed(head_dim, 10_000.0, Pairing::HalfSplit)?,
            layers: masks.iter().map(layer).collect(),
        })
    }

    pub(crate) fn rotary(&self) -> Rotary {
        self.rotary.clone()
    }

    /// Queries, keys and values of the new tokens.
    pub(crate) fn inputs(&mut self) -> [&mut Tensor<f16>; 3] {
        [&mut self.q, &mut self.k, &mut self.v]
    }

    /// The step, which is both captured and called.
    pub(crate) fn run(&mut self, cache: &mut KvCache<f16>) -> Result<()> {
        for (number, (layer, out)) in self.layers.iter().zip(&mut self.out).enumerate() {
            cache
                .append(number, &self.k, &self.v)?
                .rotary(self.rotary.clone())
                .queries_into(&self.q, &mut self.rotated)
                .run()?;
            layer.forward_into(&self.rotated, cache.keys(number)?, out, None)?;
        }
        Ok(())
    }

    /// The outputs of all layers.
    pub(crate) fn outputs(&self) -> Result<Vec<f16>> {
        let outputs: Vec<Vec<f16>> = self.out.iter().map(Tensor::to_vec).collect::<Result<_>>()?;
        Ok(outputs.concat())
    }
}

/// Bit by bit: numbers that are equal may differ, and NaN is not equal to itself.
pub(crate) fn bits(values: &[f16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}
