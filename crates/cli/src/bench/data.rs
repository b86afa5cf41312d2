//! Normally distributed inputs of any size, made quickly.

use std::sync::Arc;

use bytemuck::Pod;
use either::{Either, for_both, map_both};
use warptile::cpu::Stop;
use warptile::kernels::{Count, Elements, Kind, Operations};
use warptile::spec::{Call, Heads, Operand, Slots, Types};
use warptile::{Backend, Element, Layout, Tensor};
use warptile_check::{Case, DeviceInputs, Lists, Place, quantize, values_behind_keys};
use warptile_driver::{DeviceBuffer, Stream};

use crate::interrupt;
use crate::tensors::{Numbers, Tensors};

/// Inputs of one call.
pub(crate) struct Data<T> {
    types: Types,
    q: Repeated<T>,
    /// Keys and values of the queries' type, or the bits of quantized ones.
    kv: Either<Pair<T>, Pair<u8>>,
    pub(super) numbers: Numbers,
    scores: Slots<Option<Either<Repeated<T>, Repeated<u8>>>>,
}

/// Keys and values of one type.
#[derive(Debug, Clone)]
pub(super) enum Pair<T> {
    /// Keys and values of a tensor each.
    Apart([Repeated<T>; 2]),
    /// Keys and values of one tensor, and the elements from the first key to the first value.
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
    pub(super) fn to_vec(&self) -> Vec<T> {
        let mut elements = Vec::with_capacity(self.len);
        { self.parts() }
            .take_while(|_| !interrupt::requested())
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

    /// [`upload`](Self::upload) as bytes.
    pub(super) fn upload_bytes(&self, stream: &Stream) -> warptile::Result<DeviceBuffer<u8>> {
        let piece: Arc<[u8]> = bytemuck::cast_slice(&self.piece).into();
        let bytes = Repeated {
            piece,
            skip: self.skip * size_of::<T>(),
            len: self.len * size_of::<T>(),
        };
        bytes.upload(stream)
    }

    /// A tensor of them.
    pub(super) fn tensor(&self, backend: &Backend, layout: Layout) -> warptile::Result<Tensor<T>> {
        match backend.gpu() {
            Some(gpu) => Tensor::from_device(backend, self.upload(gpu.stream())?, layout),
            None => {
                let elements = self.to_vec();
                // Stopped, they are not all.
                Stop::current().check()?;
                Tensor::from_vec(backend, elements, layout)
            }
        }
    }
}

impl<T: Element> Data<T> {
    /// Brings them to a GPU, except for offsets, lengths and pages.
    pub(super) fn upload(&self, stream: &Stream) -> warptile::Result<DeviceInputs> {
        let place = |bytes| Place::Memory(bytes, 0);
        let mut places = self.scores.try_map(|_, data| {
            Ok::<_, warptile::Error>(place(for_both!(data, data => data.upload_bytes(stream)?)))
        })?;
        for (operand, values) in self.numbers.floats.given() {
            let bytes = DeviceBuffer::from_slice(stream, bytemuck::cast_slice(values))?;
            places[operand] = Some(place(bytes));
        }
        places[Operand::Q] = Some(place(self.q.upload_bytes(stream)?));
        let [k, v] = for_both!(&self.kv, pair => pair.upload(stream)?);
        (places[Operand::K], places[Operand::V]) = (Some(k), Some(v));
        Ok(DeviceInputs::new(places))
    }

    /// The elements of q, k and v in host memory, if they are of one type and in tensors of their own.
    pub(super) fn to_vecs(&self) -> Option<[Vec<T>; 3]> {
        match &self.kv {
            Either::Left(Pair::Apart([k, v])) => Some([&self.q, k, v].map(Repeated::to_vec)),
            _ => None,
        }
    }

    /// A gradient of the output.
    pub(super) fn d_out(&self, call: &Call) -> Repeated<T> {
        Repeated::new(&self.q.piece, call.out(), self.q.piece.len() / 7)
    }

    /// Brings them to a device as tensors.
    pub(super) fn tensors(&self, backend: &Backend, call: &Call) -> warptile::Result<Tensors<T>> {
        let layouts = [*call.k(), *call.v()];
        let of = |operand| {
            call.layout(operand)
                .copied()
                .unwrap_or(Layout::bshd([0; 4]))
        };
        let mut scores = self.scores.clone();
        let bias_f32 = match scores[Operand::Bias].take_if(|_| call.scoring().has_bias_f32()) {
            Some(Either::Right(bytes)) => {
                let numbers: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes.to_vec());
                Some(backend.tensor_with_layout(&numbers, of(Operand::Bias))?)
            }
            _ => None,
        };
        Ok(Tensors {
            q: self.q.tensor(backend, *call.q())?,
            types: self.types,
            kv: map_both!(&self.kv, pair => pair.tensors(backend, layouts)?),
            scores: scores.try_map(|operand, data| {
                let layout = of(operand);
                Ok::<_, warptile::Error>(map_both!(data, data => data.tensor(backend, layout)?))
            })?,
            bias_f32,
        })
    }
}

impl<T: Pod> Pair<T> {
    /// Takes the elements of the piece after `skips`.
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

    fn upload(&self, stream: &Stream) -> warptile::Result<[Place; 2]> {
        Ok(match self {
            Pair::Apart([k, v]) => [
                Place::Memory(k.upload_bytes(stream)?, 0),
                Place::Memory(v.upload_bytes(stream)?, 0),
            ],
            Pair::Together(both, distance) => [
                Place::Memory(both.upload_bytes(stream)?, 0),
                Place::BehindKeys(distance * size_of::<T>()),
            ],
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

/// The scale that brings normally distributed numbers into the range where 8-bit types are dense.
const SCALE: f32 = 0.02;

/// Random rows of 64 that all tensors are made of.
const ROWS: usize = 1 << 14;

/// Elements of these rows that are left out, so that no row of a tensor equals an earlier one at the same offset: kernels
/// don't mind, but caches and compressed memory might.
const LEFT_OUT: usize = 7;

/// A quarter of normally distributed numbers is below this.
const QUARTILE: f64 = -0.6745;

impl<T: Element> Data<T> {
    /// Random inputs of a call of the case, with its offsets, lengths and pages.
    pub(crate) fn new(case: &Case, call: &Call, lists: &Lists) -> Self {
        let rows = Case {
            element: T::TYPE,
            seed: case.seed,
            ..Case::new(ROWS, 1, Heads::new(1, 64))
        };
        let inputs = rows.inputs::<T>();
        let random: Arc<[T]> = inputs.q.elements()[..ROWS * 64 - LEFT_OUT].into();
        let skips = [random.len() / 3, random.len() / 2];
        let kv = match call.types().scaled() {
            None => Either::Left(Pair::new(&random, [call.k(), call.v()], skips)),
            Some(element) => {
                let bits = quantize(element, &mut inputs.q.clone(), &[SCALE]);
                let quantized: Arc<[u8]> = bits.elements()[..random.len()].into();
                Either::Right(Pair::new(&quantized, [call.k(), call.v()], skips))
            }
        };
        let mut floats = Slots::none();
        let mut scores = Slots::none();
        for operand in Operand::of(Operations::FORWARD).filter(|operand| call.has(*operand)) {
            let count = call.reach(operand);
            match (operand.kind(), operand.elements(), call.layout(operand)) {
                (Kind::List(Count::Rows), ..) => {}
                (Kind::List(Count::Scales), ..) => floats[operand] = Some(vec![SCALE; count]),
                (Kind::List(Count::Slopes), ..) => {
                    let slopes = (0..count).map(|head| 0.5 / (1 + head) as f32);
                    floats[operand] = Some(slopes.collect());
                }
                (Kind::List(_), Elements::F32, _) => {
                    let numbers = random.iter().take(count);
                    floats[operand] = Some(numbers.map(|x| x.to_f32()).collect());
                }
                (Kind::Scores, Elements::U8, Some(layout)) => {
                    let shown: Arc<[u8]> = match case.shown_keys(operand) {
                        Some(shown) => padding(layout, &shown),
                        // A quarter of the keys is hidden.
                        None => { random.iter() }
                            .map(|x| u8::from(x.to_f64() > QUARTILE))
                            .collect(),
                    };
                    scores[operand] = Some(Either::Right(Repeated::new(&shown, layout, 0)));
                }
                (Kind::Scores, Elements::Bias, Some(layout)) if call.scoring().has_bias_f32() => {
                    let numbers: Vec<f32> = random.iter().map(|x| x.to_f32()).collect();
                    let bytes: Arc<[u8]> = bytemuck::cast_slice(&numbers).into();
                    let mut repeated = Repeated::new(&bytes, layout, 0);
                    repeated.len *= size_of::<f32>();
                    scores[operand] = Some(Either::Right(repeated));
                }
                (Kind::Scores, _, Some(layout)) => {
                    let repeated = Repeated::new(&random, layout, random.len() / 5);
                    scores[operand] = Some(Either::Left(repeated));
                }
                _ => {}
            }
        }
        Data {
            types: call.types(),
            q: Repeated::new(&random, call.q(), 0),
            kv,
            numbers: Numbers {
                floats,
                lists: lists.given().clone(),
                table: lists.table_layout(),
            },
            scores,
        }
    }
}

/// A key mask of `[batch, 1, 1, keys]` that shows as many keys of each sequence.
fn padding(layout: &Layout, shown: &[usize]) -> Arc<[u8]> {
    let mut mask = vec![0; layout.required_len().unwrap_or(0)];
    for (entry, &shown) in shown.iter().enumerate() {
        for key in 0..shown {
            mask[layout.offset(entry, 0, 0) + key * layout.strides[3]] = 1;
        }
    }
    mask.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warptile_driver::Driver;
    use warptile_fake_cuda::FakeDriver;

    #[test]
    fn tensors_reach_as_far_as_their_layouts_and_are_normal() {
        let mut case: Case = "b3 q700 k500 h8/2 d128 f32".parse().unwrap();
        Operand::of_scores().for_each(|operand| case.scoring = case.scoring.with(operand));
        let call = case.call();
        let data = Data::<f32>::new(&case, &call, &case.lists());
        let q = data.q.to_vec();
        assert_eq!(q.len(), 3 * 700 * 8 * 128);
        let Either::Left(Pair::Apart([k, v])) = data.kv else {
            panic!("they are not quantized, and not of one tensor")
        };
        let (k, v) = (k.to_vec(), v.to_vec());
        assert_eq!([k.len(), v.len()], [3 * 500 * 2 * 128; 2]);
        let lists = Operand::of_scores().filter(|operand| operand.kind() != Kind::Scores);
        assert_eq!(data.numbers.floats.given().count(), lists.count());
        for (operand, values) in data.numbers.floats.given() {
            assert!(call.check_values(operand, values).is_ok());
        }
        let mask = data
            .scores
            .given()
            .find_map(|(_, data)| data.as_ref().right());
        let Some(mask) = mask else {
            panic!("a mask has bytes")
        };
        let mask = mask.to_vec();
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

    /// The keys that a padding mask shows are those that `lengths=ragged` uses.
    #[test]
    fn padding_hides_keys_behind_lengths() {
        for layout in ["bshd", "gaps"] {
            let text = format!("b5 q3 k90 h2 d8 f32 keymask=padding layout={layout} seed=7");
            let case: Case = text.parse().unwrap();
            let call = case.call();
            let ragged = text.replace("keymask=padding", "lengths=ragged");
            let lengths = ragged.parse::<Case>().unwrap().used_lengths();
            let layout = call.layout(Operand::KeyMask).unwrap();
            assert_eq!(layout.strides[1..3], [0, 0]);
            let data = Data::<f32>::new(&case, &call, &case.lists());
            let mask = data.scores[Operand::KeyMask].as_ref();
            let mask = mask.and_then(|mask| mask.as_ref().right()).unwrap();
            let (mask, inputs) = (mask.to_vec(), case.inputs::<f32>());
            let mask_of = |mask: &[u8], entry, key| {
                mask[layout.offset(entry, 0, 0) + key * layout.strides[3]] != 0
            };
            let host = inputs.host();
            let checked = host.elements::<u8>(Operand::KeyMask).unwrap().unwrap();
            for (entry, (_, length)) in lengths.into_iter().enumerate() {
                for key in 0..90 {
                    assert_eq!(mask_of(&mask, entry, key), key < length);
                    assert_eq!(mask_of(checked, entry, key), key < length);
                }
            }
        }
    }

    /// One tensor has as many elements as keys and values together; the tensors of a call are views of it.
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
            let data = Data::<f32>::new(&case, &call, &case.lists());
            let Either::Left(Pair::Together(both, distance)) = &data.kv else {
                panic!("{text}: they are of one tensor")
            };
            let all = both.to_vec();
            assert_eq!(*distance, page[0]);
            assert_eq!(all.len(), call.k().batch() * (page[0] + page[1]), "{text}");
            let Either::Left(pair) = &data.kv else {
                panic!("{text}: they are not quantized")
            };
            let [Place::Memory(buffer, 0), Place::BehindKeys(distance)] =
                pair.upload(&stream).unwrap()
            else {
                panic!("{text}: they are in one buffer")
            };
            assert_eq!(distance, 4 * page[0]);
            assert!(buffer.to_vec().unwrap() == bytemuck::cast_slice::<f32, u8>(&all));
            for backend in [&Backend::cpu(), &gpu] {
                let Either::Left([k, v]) = data.tensors(backend, &call).unwrap().kv else {
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
