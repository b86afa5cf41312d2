//! Normally distributed inputs of any size, made quickly.

use warptile::{Call, Element, Layout};
use warptile_check::Case;

use crate::inputs::KeyData;

/// Inputs of one call in host memory.
pub(crate) struct Data<T> {
    pub(super) q: Vec<T>,
    pub(super) kv: KeyData<T>,
    pub(super) slopes: Option<Vec<f32>>,
    pub(super) sinks: Option<Vec<f32>>,
    pub(super) bias: Option<Vec<T>>,
    pub(super) key_mask: Option<Vec<u8>>,
}

/// What brings normally distributed numbers to where a type of 8 bits has many.
const SCALE: f32 = 0.02;

/// Random rows of 64 that all tensors are made of.
const ROWS: usize = 1 << 14;

/// Elements of these rows that are left out, so that no row of a tensor equals an earlier one at the same offset: kernels
/// don't mind, but caches and compressed memory might.
const LEFT_OUT: usize = 7;

/// A quarter of normally distributed numbers is below this.
const QUARTILE: f64 = -0.6745;

impl<T: Element> Data<T> {
    pub(crate) fn new(call: &Call, seed: u64) -> Self {
        let rows = Case {
            element: T::TYPE,
            seed,
            ..Case::new(ROWS, 1, 64)
        };
        let inputs = rows.inputs::<T>();
        let random = &inputs.q.elements()[..ROWS * 64 - LEFT_OUT];
        // Copied in long pieces: a tensor may have a billion elements.
        let tensor = |layout: &Layout, skip: usize| {
            let mut len = layout.required_len().unwrap_or(0);
            let mut elements = Vec::with_capacity(len);
            let mut rest = &random[skip..];
            while len > 0 {
                let piece = &rest[..len.min(rest.len())];
                elements.extend_from_slice(piece);
                len -= piece.len();
                rest = random;
            }
            elements
        };
        let scoring = call.scoring();
        let (k, v) = (
            tensor(call.k(), random.len() / 3),
            tensor(call.v(), random.len() / 2),
        );
        let kv = match call.quantized() {
            None => KeyData::Same([k, v]),
            Some(of) => {
                let quantize = |data: Vec<T>| {
                    { data.into_iter() }
                        .map(|x| of.element.quantize(x.to_f32(), SCALE))
                        .collect()
                };
                let scales = [of.k_scales, of.v_scales].map(|count| vec![SCALE; count]);
                KeyData::Quantized(of.element, [k, v].map(quantize), scales)
            }
        };
        Data {
            q: tensor(call.q(), 0),
            kv,
            slopes: scoring.alibi.map(|_| {
                let count = scoring.slope_count(call.batch(), call.heads());
                (0..count).map(|head| 0.5 / (1 + head) as f32).collect()
            }),
            sinks: scoring.sinks.then(|| {
                let logits = random.iter().take(call.heads());
                logits.map(|logit| logit.to_f64() as f32).collect()
            }),
            bias: call.bias().map(|layout| tensor(layout, random.len() / 5)),
            // A quarter of the keys is hidden.
            key_mask: call.key_mask().map(|layout| {
                let shown = random
                    .iter()
                    .cycle()
                    .map(|x| u8::from(x.to_f64() > QUARTILE));
                shown.take(layout.required_len().unwrap_or(0)).collect()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_reach_as_far_as_their_layouts_and_are_normal() {
        let case: Case = "b3 q700 k500 h8/2 d128 f32 alibi=batch sinks keymask"
            .parse()
            .unwrap();
        let call = case.call();
        let data = Data::<f32>::new(&call, 1);
        assert_eq!(data.q.len(), 3 * 700 * 8 * 128);
        let KeyData::Same([k, v]) = data.kv else {
            panic!("they are not quantized")
        };
        assert_eq!([k.len(), v.len()], [3 * 500 * 2 * 128; 2]);
        assert!(call.check_slopes(data.slopes.as_deref()).is_ok());
        assert!(call.check_sinks(data.sinks.as_deref()).is_ok());
        let mask = data.key_mask.unwrap();
        let hidden = mask.iter().filter(|&&shown| shown == 0).count() as f64 / mask.len() as f64;
        assert!((0.2..0.3).contains(&hidden), "{hidden}");
        let mean = data.q.iter().sum::<f32>() / data.q.len() as f32;
        let square = data.q.iter().map(|x| x * x).sum::<f32>() / data.q.len() as f32;
        assert!(
            mean.abs() < 0.01 && (square - 1.0).abs() < 0.01,
            "{mean} {square}"
        );
        assert_ne!(k[..1000], v[..1000]);
    }
}
