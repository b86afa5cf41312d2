//! The inputs of one attention call in host memory, and the call itself.

use std::time::{Duration, Instant};

use bytemuck::Pod;
use half::{bf16, f16};
use warptile::{
    AlibiShape, Attention, Backend, Call, Choice, Element, Error, KeyView, Keys, Layout, Operands,
    Plan, Quantization, QuantizedType, Queries, Scales, Scoring, Splits, TableLayout, Tensor, View,
};
use warptile_check::Expectation;

/// What the command line says of a call; the rest follows from the tensors that are there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) scoring: Scoring,
    pub(crate) splits: Splits,
    pub(crate) choice: Choice,
}

/// Q, K, V and what else a call takes.
#[derive(Debug, Clone)]
pub(crate) struct Inputs<T> {
    pub(crate) q: Vec<T>,
    pub(crate) kv: KeyData<T>,
    pub(crate) q_layout: Layout,
    pub(crate) k_layout: Layout,
    pub(crate) v_layout: Layout,
    /// Row offsets of q's sequences, when these are packed.
    pub(crate) cu_seqlens_q: Option<Vec<i32>>,
    /// The same of k's.
    pub(crate) cu_seqlens_k: Option<Vec<i32>>,
    /// Used keys of each sequence.
    pub(crate) key_lengths: Option<Vec<i32>>,
    /// Numbers of pages, when k and v consist of pages.
    pub(crate) block_table: Option<(Vec<i32>, TableLayout)>,
    pub(crate) alibi_slopes: Option<Vec<f32>>,
    pub(crate) sinks: Option<Vec<f32>>,
    /// Added to the scores, `[batch, heads, queries, keys]` in memory.
    pub(crate) bias: Option<(Vec<T>, Layout)>,
    /// Hides keys where it is 0, stored likewise.
    pub(crate) key_mask: Option<(Vec<u8>, Layout)>,
}

/// Keys and values.
#[derive(Debug, Clone)]
pub(crate) enum KeyData<T> {
    /// Of the queries' type.
    Same([Vec<T>; 2]),
    /// The bits of quantized ones, with the scales of both.
    Quantized(QuantizedType, [Vec<u8>; 2], [Vec<f32>; 2]),
}

/// The same on a device, the scales on the host.
pub(crate) enum KeyTensors<'a, T: Pod> {
    Same([Tensor<T>; 2]),
    Quantized(QuantizedType, [Tensor<u8>; 2], [&'a [f32]; 2]),
}

impl<T: Element> KeyData<T> {
    /// Brings keys and values of these layouts to a device.
    pub(crate) fn upload(
        &self,
        backend: &Backend,
        [k_layout, v_layout]: [Layout; 2],
    ) -> warptile::Result<KeyTensors<'_, T>> {
        Ok(match self {
            KeyData::Same([k, v]) => KeyTensors::Same([
                backend.tensor_with_layout(k, k_layout)?,
                backend.tensor_with_layout(v, v_layout)?,
            ]),
            KeyData::Quantized(element, [k, v], scales) => {
                let bits = [
                    backend.tensor_with_layout(k, k_layout)?,
                    backend.tensor_with_layout(v, v_layout)?,
                ];
                KeyTensors::Quantized(*element, bits, scales.each_ref().map(Vec::as_slice))
            }
        })
    }
}

impl<T: Element> KeyTensors<'_, T> {
    pub(crate) fn keys(&self) -> Keys<'_, T> {
        match self {
            KeyTensors::Same([k, v]) => Keys::new(k, v),
            KeyTensors::Quantized(element, [k, v], [k_scale, v_scale]) => {
                Keys::quantized_bits(*element, k, v, Scales::new(k_scale, v_scale))
            }
        }
    }
}

/// [`Inputs`] of any element type.
#[derive(Debug, Clone)]
pub(crate) enum AnyInputs {
    F16(Inputs<f16>),
    Bf16(Inputs<bf16>),
    F32(Inputs<f32>),
}

/// Runs `$body` with `$inputs` bound to the typed [`Inputs`] inside an [`AnyInputs`].
macro_rules! with_inputs {
    ($any:expr, $inputs:ident => $body:expr) => {
        match $any {
            $crate::inputs::AnyInputs::F16($inputs) => $body,
            $crate::inputs::AnyInputs::Bf16($inputs) => $body,
            $crate::inputs::AnyInputs::F32($inputs) => $body,
        }
    };
}
pub(crate) use with_inputs;

/// What a call gave, in host memory.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    /// In q's storage order.
    pub(crate) out: Vec<T>,
    pub(crate) out_layout: Layout,
    /// `[batch, heads, length]`; packed: `[heads, rows]`.
    pub(crate) lse: Vec<f32>,
    pub(crate) plan: Plan,
    /// Of the first call: it loads the kernel, or starts the threads.
    pub(crate) first: Duration,
    /// Median of the calls after it, and how many there were.
    pub(crate) later: Option<(Duration, usize)>,
}

impl<T: Copy> Answer<T> {
    /// The output in the reference's order, `[batch, rows, heads, head size]`.
    pub(crate) fn out_in_reference_order(&self) -> Vec<T> {
        to_reference_order(&self.out, &self.out_layout)
    }
}

/// `data`, stored as `layout` says, in the order `[batch, rows, heads, head size]`.
pub(crate) fn to_reference_order<T: Copy>(data: &[T], layout: &Layout) -> Vec<T> {
    let [batch, rows, heads, head_dim] = layout.shape;
    let mut ordered = Vec::with_capacity(data.len());
    for b in 0..batch {
        for s in 0..rows {
            for h in 0..heads {
                let start = layout.offset(b, s, h);
                ordered.extend_from_slice(&data[start..start + head_dim]);
            }
        }
    }
    ordered
}

impl<T: Element> Inputs<T> {
    /// The call that these inputs are for, validated.
    pub(crate) fn call(&self, settings: &Settings) -> warptile::Result<Call> {
        let mut scoring = settings.scoring;
        scoring.alibi =
            self.alibi_slopes
                .as_ref()
                .map(|slopes| match slopes.len() <= self.q_layout.heads() {
                    true => AlibiShape::PerHead,
                    false => AlibiShape::PerBatchHead,
                });
        scoring.sinks = self.sinks.is_some();
        scoring.bias = self.bias.is_some();
        scoring.key_mask = self.key_mask.is_some();
        let quantized = match &self.kv {
            KeyData::Same(_) => None,
            KeyData::Quantized(element, _, [k, v]) => {
                Some(Quantization::new(*element).scales(k.len(), v.len()))
            }
        };
        let mut builder = Call::builder(&self.q_layout, &self.k_layout, &self.v_layout, T::TYPE)
            .scoring(scoring)
            .splits(settings.splits)
            .quantized(quantized);
        if let Some(offsets) = &self.cu_seqlens_q {
            builder = builder.packed_queries(offsets);
        }
        if let Some(offsets) = &self.cu_seqlens_k {
            builder = builder.packed_keys(offsets);
        }
        if let Some(lengths) = &self.key_lengths {
            builder = builder.key_lengths(lengths);
        }
        if let Some((table, layout)) = &self.block_table {
            builder = builder.block_table(table, *layout);
        }
        if let Some((_, layout)) = &self.bias {
            builder = builder.bias(*layout);
        }
        if let Some((_, layout)) = &self.key_mask {
            builder = builder.key_mask(*layout);
        }
        let call = builder.build().map_err(in_terms_of_the_file)?;
        call.check_slopes(self.alibi_slopes.as_deref())?;
        call.check_sinks(self.sinks.as_deref())?;
        let [k_scale, v_scale] = [0, 1].map(|side| self.scales().map(|scales| scales[side]));
        call.check_scales(k_scale, v_scale)?;
        Ok(call)
    }

    /// Of quantized keys and of values.
    fn scales(&self) -> Option<[&[f32]; 2]> {
        match &self.kv {
            KeyData::Same(_) => None,
            KeyData::Quantized(_, _, scales) => Some(scales.each_ref().map(Vec::as_slice)),
        }
    }

    /// The options of the high-level call.
    fn attention(&self, settings: &Settings) -> Attention {
        let mut attention = Attention::new()
            .mask(settings.scoring.mask)
            .splits(settings.splits)
            .choice(settings.choice.clone());
        if let Some(scale) = settings.scoring.scale {
            attention = attention.scale(scale);
        }
        if let Some(softcap) = settings.scoring.softcap {
            attention = attention.softcap(softcap);
        }
        if let Some(slopes) = &self.alibi_slopes {
            attention = attention.alibi_slopes(slopes);
        }
        if let Some(sinks) = &self.sinks {
            attention = attention.sinks(sinks);
        }
        attention
    }

    /// Computes attention on `backend`, several times if it takes less than a second and not `once`, and brings the answer to the host.
    /// Each time is from the call until the output is in host memory; the upload of the inputs is not part of it.
    pub(crate) fn forward(
        &self,
        settings: &Settings,
        backend: &Backend,
        once: bool,
    ) -> warptile::Result<Answer<T>> {
        /// The most calls after the first, and the time after which there are no more.
        const REPEATS: usize = 20;
        const REPEAT_TIME: Duration = Duration::from_secs(1);
        let q = backend.tensor_with_layout(&self.q, self.q_layout)?;
        let kv = self.kv.upload(backend, [self.k_layout, self.v_layout])?;
        let bias = uploaded(backend, self.bias.as_ref())?;
        let key_mask = uploaded(backend, self.key_mask.as_ref())?;
        backend.synchronize()?;
        let attention = self.attention(settings);
        let mut queries = Queries::new(&q);
        let mut keys = kv.keys();
        if let Some((table, layout)) = &self.block_table {
            keys = keys.in_pages(table, *layout);
        }
        if let Some(offsets) = &self.cu_seqlens_q {
            queries = queries.packed(offsets);
        }
        if let Some(offsets) = &self.cu_seqlens_k {
            keys = keys.packed(offsets);
        }
        if let Some(lengths) = &self.key_lengths {
            keys = keys.lengths(lengths);
        }
        if let Some(bias) = &bias {
            keys = keys.bias(bias);
        }
        if let Some(key_mask) = &key_mask {
            keys = keys.key_mask(key_mask);
        }
        let call = || {
            let start = Instant::now();
            let output = attention.forward(queries.clone(), keys.clone())?;
            let out = output.out.to_vec()?;
            Ok::<_, warptile::Error>((output, out, start.elapsed()))
        };
        let (output, out, first) = call()?;
        let start = Instant::now();
        let mut later = Vec::new();
        let repeats = if once { 0 } else { REPEATS };
        while later.len() < repeats && start.elapsed() + first < REPEAT_TIME {
            let (_, _, elapsed) = call()?;
            later.push(elapsed);
        }
        later.sort_unstable();
        let lse = match &output.lse {
            Some(lse) => lse.to_vec()?,
            None => Vec::new(),
        };
        Ok(Answer {
            out,
            out_layout: *output.out.layout(),
            lse,
            plan: output.plan,
            first,
            later: later
                .get(later.len() / 2)
                .map(|&median| (median, later.len())),
        })
    }

    /// What the float64 reference expects, and how much a result may differ.
    pub(crate) fn expectation(&self, call: &Call) -> warptile_check::Result<Expectation> {
        let mut operands = Operands::none();
        operands.slopes = self.alibi_slopes.as_deref();
        operands.sinks = self.sinks.as_deref();
        operands.bias = self.bias.as_ref().map(|(data, _)| &data[..]);
        operands.key_mask = self.key_mask.as_ref().map(|(data, _)| &data[..]);
        if let Some([k_scale, v_scale]) = self.scales() {
            operands = operands.scales(k_scale, v_scale);
        }
        let [k, v]: [KeyView<'_, T>; 2] = match &self.kv {
            KeyData::Same([k, v]) => [
                View::new(k, self.k_layout).into(),
                View::new(v, self.v_layout).into(),
            ],
            KeyData::Quantized(element, [k, v], _) => [
                KeyView::Quantized(View::new(k, self.k_layout), *element),
                KeyView::Quantized(View::new(v, self.v_layout), *element),
            ],
        };
        Expectation::new(call, View::new(&self.q, self.q_layout), k, v, &operands)
    }
}

/// Row offsets, pages and the key mask go by the names that the file has for them.
fn in_terms_of_the_file(error: Error) -> Error {
    match error {
        Error::Lengths {
            argument,
            index,
            rule,
        } => Error::Lengths {
            argument: match argument {
                "query_offsets" => "cu_seqlens_q",
                "key_offsets" => "cu_seqlens_k",
                other => other,
            },
            index,
            rule,
        },
        Error::Pages {
            argument: "k",
            rule,
        } => Error::Pages {
            argument: "k_pages",
            rule,
        },
        Error::Mismatch {
            argument: "key_mask",
            dimension,
            found,
            other,
            expected,
        } => Error::Mismatch {
            argument: "mask",
            dimension,
            found,
            other,
            expected,
        },
        Error::Presence {
            argument: "key_mask",
            rule,
        } => Error::Presence {
            argument: "mask",
            rule,
        },
        other => other,
    }
}

/// A tensor that the file may leave out, on the device.
fn uploaded<T: Pod>(
    backend: &Backend,
    tensor: Option<&(Vec<T>, Layout)>,
) -> warptile::Result<Option<Tensor<T>>> {
    tensor
        .map(|(data, layout)| backend.tensor_with_layout(data, *layout))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_order_undoes_the_layout() {
        // [batch 1, heads 2, rows 3, head size 1], numbered in storage order.
        let layout = Layout::bhsd([1, 2, 3, 1]);
        assert_eq!(
            to_reference_order(&[0, 1, 2, 3, 4, 5], &layout),
            [0, 3, 1, 4, 2, 5]
        );
    }
}
