//! Normally distributed inputs of any size, made quickly.

use std::sync::Arc;

use bytemuck::Pod;
use warptile::{Backend, Call, Element, Heads, Layout, QuantizedType, Tensor};
use warptile_check::{Case, DeviceInputs, KeyBuffers, KeyPair, values_behind_keys};
use warptile_driver::{DeviceBuffer, Stream};

use crate::inputs::KeyTensors;

/// Inputs of one call.
pub(crate) struct Data<T> {
    pub(super) q: Repeated<T>,
    pub(super) kv: KeyData<T>,
    pub(super) slopes: Option<Vec<f32>>,
    pub(super) sinks: Option<Vec<f32>>,
    pub(super) bias: Option<Repeated<T>>,
    pub(super) key_mask: Option<Repeated<u8>>,
}

/// Keys and values.
pub(super) enum KeyData<T> {
    /// Of the queries' type.
    Same(Pair<T>),
    /// The bits of quantized ones, with the scales of both.
    Quantized(QuantizedType, Pair<u8>, [Vec<f32>; 2]),
}

/// Keys and values of one type.
#[derive(Debug, Clone)]
pub(super) enum Pair<T> {
    /// Of a tensor each.
    Apart([Repeated<T>; 2]),
    /// Of one tensor, and the elements from the first key to the first value.
    Together(Repeated<T>, usize),
}

/// The elements of a tensor, which may be a billion: the end of a piece of random ones, and then the whole piece over and over. On a GPU
/// they are put together there.
#[derive(Debug, Clone)]
pub(super) struct Repeated<T> {
    piece: Arc<[T]>,
    /// Elements of the piece that the tensor does not begin with.
    skip: usize,
    len: usize,
}

impl<T: Pod> Repeated<T> {
    fn new(piece: &Arc<[T]>, layout: &Layout, skip: usize) -> Self {
        Repeated {
            piece: piece.clone(),
            skip,
            len: layout.required_len().unwrap_or(0),
        }
    }

    /// Where each copy of a part of the piece begins in the tensor, and where in the piece.
    fn parts(&self) -> impl Iterator<Item = (usize, &[T])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = match at {
                0 => &self.piece[self.skip..],
                _ => &self.piece[..],
            };
            let part = &rest[..rest.len().min(self.len - at)];
            let begin = at;
            at += part.len();
            (!part.is_empty()).then_some((begin, part))
        })
    }

    /// Puts the elements together in host memory.
    fn to_vec(&self) -> Vec<T> {
        let mut elements = Vec::with_capacity(self.len);
        self.parts()
            .for_each(|(_, part)| elements.extend_from_slice(part));
        elements
    }

    /// Copies the piece to a GPU, and puts the elements together there.
    pub(super) fn upload(&self, stream: &Stream) -> warptile::Result<DeviceBuffer<T>> {
        let used = &self.piece[..self.piece.len().min(self.skip + self.len)];
        let piece = DeviceBuffer::from_slice(stream, used)?;
        let mut elements = DeviceBuffer::uninit(stream, self.len)?;
        for (begin, part) in self.parts() {
            let skip = if begin == 0 { self.skip } else { 0 };
            let from = piece.slice(skip..skip + part.len())?;
            let mut to = elements.slice_mut(begin..begin + part.len())?;
            to.copy_from(&from)?;
        }
        Ok(elements)
    }

    /// A tensor of them.
    pub(super) fn tensor(&self, backend: &Backend, layout: Layout) -> warptile::Result<Tensor<T>> {
        match backend.gpu() {
            Some(gpu) => Tensor::from_device(backend, self.upload(gpu.stream())?, layout),
            None => Tensor::from_vec(backend, self.to_vec(), layout),
        }
    }
}

impl<T: Element> Data<T> {
    /// Brings them to a GPU.
    pub(super) fn upload(&self, stream: &Stream) -> warptile::Result<DeviceInputs<T>> {
        let floats = |values: &Option<Vec<f32>>| {
            let upload = |values: &Vec<f32>| DeviceBuffer::from_slice(stream, values);
            values.as_ref().map(upload).transpose()
        };
        let bias = self.bias.as_ref().map(|bias| bias.upload(stream));
        let key_mask = self.key_mask.as_ref().map(|mask| mask.upload(stream));
        Ok(DeviceInputs {
            q: self.q.upload(stream)?,
            keys: self.kv.upload(stream)?,
            slopes: floats(&self.slopes)?,
            sinks: floats(&self.sinks)?,
            bias: bias.transpose()?,
            key_mask: key_mask.transpose()?,
            offset: 0,
        })
    }
}

impl<T: Element> KeyData<T> {
    fn upload(&self, stream: &Stream) -> warptile::Result<KeyBuffers<T>> {
        Ok(match self {
            KeyData::Same(kv) => KeyBuffers::Same(kv.upload(stream)?),
            KeyData::Quantized(element, kv, [k_scale, v_scale]) => KeyBuffers::Quantized {
                element: *element,
                kv: kv.upload(stream)?,
                k_scale: DeviceBuffer::from_slice(stream, k_scale)?,
                v_scale: DeviceBuffer::from_slice(stream, v_scale)?,
            },
        })
    }

    /// Tensors of these layouts.
    pub(super) fn tensors(
        &self,
        backend: &Backend,
        layouts: [Layout; 2],
    ) -> warptile::Result<KeyTensors<'_, T>> {
        Ok(match self {
            KeyData::Same(kv) => KeyTensors::Same(kv.tensors(backend, layouts)?),
            KeyData::Quantized(element, kv, scales) => KeyTensors::Quantized(
                *element,
                kv.tensors(backend, layouts)?,
                scales.each_ref().map(Vec::as_slice),
            ),
        })
    }
}

impl<T: Pod> Pair<T> {
    /// Of what follows in the piece after `skips`.
    fn new(piece: &Arc<[T]>, [k, v]: [&Layout; 2], [k_skip, v_skip]: [usize; 2]) -> Self {
        let mut values = Repeated::new(piece, v, v_skip);
        match values_behind_keys(k, v) {
            None => Pair::Apart([Repeated::new(piece, k, k_skip), values]),
            Some(distance) => {
                // The last values end where the tensor does.
                values.len += distance;
                Pair::Together(values, distance)
            }
        }
    }

    fn upload(&self, stream: &Stream) -> warptile::Result<KeyPair<T>> {
        Ok(match self {
            Pair::Apart([k, v]) => KeyPair::Apart([k.upload(stream)?, v.upload(stream)?]),
            Pair::Together(both, distance) => KeyPair::Together(both.upload(stream)?, *distance),
        })
    }

    fn tensors(
        &self,
        backend: &Backend,
        [k_layout, v_layout]: [Layout; 2],
    ) -> warptile::Result<[Tensor<T>; 2]> {
        Ok(match self {
            Pair::Apart([k, v]) => [k.tensor(backend, k_layout)?, v.tensor(backend, v_layout)?],
            Pair::Together(both, distance) => {
                let elements = both.tensor(backend, Layout::bshd([both.len, 1, 1, 1]))?;
                let values = elements.entries(*distance..both.len)?;
                [elements.view_as(k_layout)?, values.view_as(v_layout)?]
            }
        })
    }
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
            ..Case::new(ROWS, 1, Heads::new(1, 64))
        };
        let inputs = rows.inputs::<T>();
        let random: Arc<[T]> = inputs.q.elements()[..ROWS * 64 - LEFT_OUT].into();
        let scoring = call.scoring();
        let skips = [random.len() / 3, random.len() / 2];
        let kv = match call.quantized() {
            None => KeyData::Same(Pair::new(&random, [call.k(), call.v()], skips)),
            Some(of) => {
                let numbers = random.iter();
                let quantized = numbers.map(|x| of.element.quantize(x.to_f32(), SCALE));
                let quantized: Arc<[u8]> = quantized.collect();
                let bits = Pair::new(&quantized, [call.k(), call.v()], skips);
                let scales = [of.k_scales, of.v_scales].map(|count| vec![SCALE; count]);
                KeyData::Quantized(of.element, bits, scales)
            }
        };
        Data {
            q: Repeated::new(&random, call.q(), 0),
            kv,
            slopes: scoring.alibi.map(|_| {
                let count = scoring.slope_count(call.batch(), call.heads().query);
                (0..count).map(|head| 0.5 / (1 + head) as f32).collect()
            }),
            sinks: scoring.sinks.then(|| {
                let logits = random.iter().take(call.heads().query);
                logits.map(|logit| logit.to_f64() as f32).collect()
            }),
            bias: call
                .bias()
                .map(|layout| Repeated::new(&random, layout, random.len() / 5)),
            // A quarter of the keys is hidden.
            key_mask: call.key_mask().map(|layout| {
                let shown: Arc<[u8]> = random
                    .iter()
                    .map(|x| u8::from(x.to_f64() > QUARTILE))
                    .collect();
                Repeated::new(&shown, layout, 0)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warptile_driver::Driver;
    use warptile_fake_cuda::FakeDriver;

    #[test]
    fn tensors_reach_as_far_as_their_layouts_and_are_normal() {
        let case: Case = "b3 q700 k500 h8/2 d128 f32 alibi=batch sinks keymask"
            .parse()
            .unwrap();
        let call = case.call();
        let data = Data::<f32>::new(&call, 1);
        let q = data.q.to_vec();
        assert_eq!(q.len(), 3 * 700 * 8 * 128);
        let KeyData::Same(Pair::Apart([k, v])) = data.kv else {
            panic!("they are not quantized, and not of one tensor")
        };
        let (k, v) = (k.to_vec(), v.to_vec());
        assert_eq!([k.len(), v.len()], [3 * 500 * 2 * 128; 2]);
        assert!(call.check_slopes(data.slopes.as_deref()).is_ok());
        assert!(call.check_sinks(data.sinks.as_deref()).is_ok());
        let mask = data.key_mask.unwrap().to_vec();
        let hidden = mask.iter().filter(|&&shown| shown == 0).count() as f64 / mask.len() as f64;
        assert!((0.2..0.3).contains(&hidden), "{hidden}");
        let mean = q.iter().sum::<f32>() / q.len() as f32;
        let square = q.iter().map(|x| x * x).sum::<f32>() / q.len() as f32;
        assert!(
            mean.abs() < 0.01 && (square - 1.0).abs() < 0.01,
            "{mean} {square}"
        );
        assert_ne!(k[..1000], v[..1000]);
    }

    /// Of as many elements as keys and values have; the tensors of a call are views of it.
    #[test]
    fn interleaved_keys_and_values_are_of_one_tensor() {
        let fake = FakeDriver::open();
        // SAFETY: the library is the stand-in, with the driver's signatures.
        let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
        let gpu = Backend::cuda_with(&driver, 0).unwrap();
        let stream = gpu.gpu().unwrap().stream().clone();
        for (text, page) in [
            (
                "b3 q1 k70 h2 d64/32 f32 pages=16 layout=interleaved",
                [16 * 2 * 64, 16 * 2 * 32],
            ),
            ("b3 q1 k70 h2 d64 f32 layout=interleaved", [70 * 2 * 64; 2]),
        ] {
            let case: Case = text.parse().unwrap();
            let call = case.call();
            let data = Data::<f32>::new(&call, 1);
            let KeyData::Same(Pair::Together(both, distance)) = &data.kv else {
                panic!("{text}: they are of one tensor")
            };
            let all = both.to_vec();
            assert_eq!(*distance, page[0]);
            assert_eq!(all.len(), call.k().batch() * (page[0] + page[1]), "{text}");
            let KeyBuffers::Same(KeyPair::Together(buffer, distance)) =
                data.kv.upload(&stream).unwrap()
            else {
                panic!("{text}: they are in one buffer")
            };
            assert_eq!(distance, page[0]);
            assert!(buffer.to_vec().unwrap() == all);
            for backend in [&Backend::cpu(), &gpu] {
                let KeyTensors::Same([k, v]) =
                    data.kv.tensors(backend, [*call.k(), *call.v()]).unwrap()
                else {
                    panic!("{text}: they are not quantized")
                };
                assert_eq!([k.layout(), v.layout()], [call.k(), call.v()]);
                assert!(k.to_vec().unwrap() == all[..all.len() - page[1]]);
                assert!(v.to_vec().unwrap() == all[page[0]..]);
                if let (Some(k), Some(v)) = (k.device_slice(), v.device_slice()) {
                    assert_eq!(v.pointer() - k.pointer(), 4 * page[0] as u64);
                }
            }
        }
    }

    #[test]
    fn the_piece_is_repeated_after_its_end() {
        let piece: Arc<[u8]> = (0..5).collect();
        let elements = |skip, len| Repeated {
            piece: piece.clone(),
            skip,
            len,
        };
        assert_eq!(elements(3, 9).to_vec(), [3, 4, 0, 1, 2, 3, 4, 0, 1]);
        assert_eq!(elements(3, 1).to_vec(), [3]);
        assert!(elements(3, 0).to_vec().is_empty());
    }
}
