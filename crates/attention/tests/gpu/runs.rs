//! Padding masks in three steps: results against those of the CPU, with masks that change from launch to launch, also in a graph.

use warptile::gpu::{Bindings, Gpu, Prepared};
use warptile::plan::{Choice, Rates};
use warptile::spec::{Call, Operand, Scoring};
use warptile::{Attention, Backend, Diagonal, Element, Error, Keys, Layout, Mask, Tensor};
use warptile_driver::{DeviceBuffer, Graph, Stream};

use crate::draw::Random;
use crate::harness::{gpu, ran};
use crate::masks::masks;

/// A GPU on which masks are expensive enough that the planner would rather do without.
fn gpu_without_masks() -> Gpu {
    let features = ["scalar", "wmma", "mma", "wgmma", "decode"]
        .map(|family| format!("\nfeature {family} keymask 99"));
    let hiding = "\nfeature wgmma keymask=padding 9999";
    let text = format!("like NVIDIA H200\ndevice any{}{hiding}", features.concat());
    let rates: Rates = text.parse().unwrap();
    Gpu::on_stream(gpu().stream()).unwrap().with_rates(rates)
}

/// Attention to itself, or to more keys.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: [usize; 2],
    dim: usize,
    is_bhsd: bool,
    mask: Mask,
    softcap: Option<f32>,
}

impl Shape {
    fn layout(&self, rows: usize, heads: usize) -> Layout {
        match self.is_bhsd {
            true => Layout::bhsd([self.batch, heads, rows, self.dim]),
            false => Layout::bshd([self.batch, rows, heads, self.dim]),
        }
    }

    fn layouts(&self) -> [Layout; 3] {
        [
            self.layout(self.queries, self.heads[0]),
            self.layout(self.keys, self.heads[1]),
            Layout::new([self.batch, 1, 1, self.keys], [self.keys, 0, 0, 1]),
        ]
    }

    fn call<T: Element>(&self) -> Call {
        let [q, k, mask] = self.layouts();
        let mut scoring = Scoring::new().mask(self.mask);
        scoring.softcap = self.softcap;
        Call::builder(&q, &k, &k, T::TYPE)
            .scoring(scoring)
            .layout(Operand::KeyMask, mask)
            .build()
            .unwrap()
    }
}

/// Numbers on the GPU are those on the CPU, where they are computed in f32.
struct Numbers<T> {
    shape: Shape,
    tensors: [Vec<T>; 3],
}

impl<T: Element> Numbers<T> {
    fn new(shape: Shape, random: &mut Random) -> Self {
        let [q, k, _] = shape.layouts();
        let mut draw = |layout: Layout| {
            let len = layout.element_count().unwrap();
            (0..len).map(|_| T::from_f32(2.0 * random.unit())).collect()
        };
        Numbers {
            shape,
            tensors: [draw(q), draw(k), draw(k)],
        }
    }

    fn expected(&self, shown: &[u8]) -> (Vec<f32>, Vec<f32>) {
        let cpu = Backend::cpu();
        let [q, k, mask] = self.shape.layouts();
        let tensor = |numbers: &[T], layout: Layout| -> Tensor<f32> {
            let wide: Vec<f32> = numbers.iter().map(|x| x.to_f64() as f32).collect();
            cpu.tensor_with_layout(&wide, layout).unwrap()
        };
        let [q, k, v] = [
            tensor(&self.tensors[0], q),
            tensor(&self.tensors[1], k),
            tensor(&self.tensors[2], k),
        ];
        let mask = cpu.tensor_with_layout(shown, mask).unwrap();
        let mut attention = Attention::new().mask(self.shape.mask);
        if let Some(softcap) = self.shape.softcap {
            attention = attention.softcap(softcap);
        }
        let keys = Keys::new(&k, &v).key_mask(&mask);
        let result = attention.forward(&q, keys).unwrap();
        let lse = result.lse.unwrap().to_vec().unwrap();
        (result.out.to_vec().unwrap(), lse)
    }
}

struct Memory<T: Element> {
    inputs: [DeviceBuffer<T>; 3],
    mask: DeviceBuffer<u8>,
    out: DeviceBuffer<T>,
    lse: DeviceBuffer<f32>,
}

impl<T: Element> Memory<T> {
    fn new(stream: &Stream, numbers: &Numbers<T>) -> Self {
        let upload = |numbers: &Vec<T>| DeviceBuffer::from_slice(stream, numbers).unwrap();
        let [q, ..] = &numbers.tensors;
        let shape = &numbers.shape;
        let rows = shape.batch * shape.heads[0] * shape.queries;
        Memory {
            inputs: numbers.tensors.each_ref().map(upload),
            mask: DeviceBuffer::zeroed(stream, shape.batch * shape.keys).unwrap(),
            out: DeviceBuffer::zeroed(stream, q.len()).unwrap(),
            lse: DeviceBuffer::zeroed(stream, rows).unwrap(),
        }
    }

    fn bindings(&mut self) -> Bindings<'_> {
        let [q, k, v] = &self.inputs;
        Bindings::new(
            q.as_slice(),
            k.as_slice(),
            v.as_slice(),
            self.out.as_slice_mut(),
        )
        .output(Operand::Lse, self.lse.as_slice_mut())
        .with(Operand::KeyMask, self.mask.as_slice())
    }

    /// Marks the results, so that rows that are not written are found.
    fn set(&mut self, shown: &[u8]) {
        self.mask.copy_from_slice(shown).unwrap();
        self.out
            .copy_from_slice(&vec![T::from_f32(77.0); self.out.len()])
            .unwrap();
        self.lse
            .copy_from_slice(&vec![77.0; self.lse.len()])
            .unwrap();
    }

    fn check(&self, (out, lse): (Vec<f32>, Vec<f32>), what: &str) {
        let near = |found: f64, expected: f32, allowed: f64| {
            found == f64::from(expected) || (found - f64::from(expected)).abs() <= allowed
        };
        let allowed = match size_of::<T>() {
            4 => 2e-5,
            _ if T::from_f32(1.0 + 1.0 / 512.0).to_f64() == 1.0 => 2e-2,
            _ => 3e-3,
        };
        for (at, (found, expected)) in self.out.to_vec().unwrap().iter().zip(&out).enumerate() {
            let found = found.to_f64();
            assert!(
                near(found, *expected, allowed),
                "{what}: out[{at}] is {found}, not {expected}"
            );
        }
        for (at, (found, expected)) in self.lse.to_vec().unwrap().iter().zip(&lse).enumerate() {
            assert!(
                near((*found).into(), *expected, 2e-3),
                "{what}: lse[{at}] is {found}, not {expected}"
            );
        }
    }
}

/// Masks for the launches one after the other: with runs in all sequences, in none, and in some, so that every step is left without work,
/// and is then needed again.
fn masks_in_turn(random: &mut Random, shape: &Shape) -> Vec<Vec<u8>> {
    let bytes = |rows: Vec<Vec<bool>>| rows.concat().into_iter().map(u8::from).collect();
    let all = |of: fn(usize, usize) -> bool| -> Vec<Vec<bool>> {
        let row = |batch: usize| (0..shape.keys).map(|key| of(batch, key)).collect();
        (0..shape.batch).map(row).collect()
    };
    let right = all(|batch, key| key < 10 + 37 * batch);
    let holes = all(|batch, key| (key + batch) % 7 != 3);
    let mut turns: Vec<Vec<u8>> = [right.clone(), holes, right].map(bytes).into();
    turns.extend((0..3).map(|_| bytes(masks(random, shape.batch, shape.keys))));
    turns
}

fn prepared(gpu: &Gpu, call: &Call) -> Prepared {
    let prepared = gpu.prepare(call.problem(), &Choice::Best).unwrap();
    let steps = prepared.plan().steps();
    assert_eq!(steps.len(), 3, "{}", prepared.plan());
    prepared
}

fn verify<T: Element>(shape: Shape, seed: u64) {
    let gpu = gpu_without_masks();
    let mut random = Random(seed);
    let numbers = Numbers::<T>::new(shape, &mut random);
    let stream = Stream::new(gpu.context()).unwrap();
    let call = shape.call::<T>();
    let prepared = prepared(&gpu, &call);
    let mut memory = Memory::new(&stream, &numbers);
    let turns = masks_in_turn(&mut random, &shape);
    let plan = prepared.plan();
    for (turn, shown) in turns.iter().enumerate() {
        memory.set(shown);
        prepared.launch(&stream, &call, &memory.bindings()).unwrap();
        memory.check(numbers.expected(shown), &format!("{turn}: {plan}"));
    }
    let graph = Graph::capture::<Error>(&stream, |stream| {
        prepared.launch(stream, &call, &memory.bindings())
    })
    .unwrap();
    for (turn, shown) in turns.iter().enumerate() {
        memory.set(shown);
        graph.launch(&stream).unwrap();
        memory.check(numbers.expected(shown), &format!("graph {turn}: {plan}"));
    }
    for step in plan.steps() {
        ran(step.image);
    }
}

const SHAPE: Shape = Shape {
    batch: 8,
    queries: 512,
    keys: 512,
    heads: [8, 8],
    dim: 64,
    is_bhsd: false,
    mask: Mask::none(),
    softcap: None,
};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn padded_sequences_equal_those_of_the_cpu() {
    verify::<half::f16>(SHAPE, 1);
    let bhsd = Shape {
        is_bhsd: true,
        keys: 700,
        heads: [8, 2],
        ..SHAPE
    };
    verify::<half::bf16>(bhsd, 2);
    verify::<half::f16>(
        Shape {
            batch: 1,
            queries: 2000,
            keys: 1500,
            dim: 128,
            ..SHAPE
        },
        3,
    );
    verify::<half::f16>(
        Shape {
            batch: 3,
            queries: 700,
            dim: 256,
            ..SHAPE
        },
        4,
    );
    verify::<f32>(Shape { batch: 3, ..SHAPE }, 5);
    verify::<half::bf16>(
        Shape {
            softcap: Some(3.0),
            dim: 80,
            ..SHAPE
        },
        6,
    );
}

/// Fewer keys move no diagonal.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn padded_sequences_with_diagonals_equal_those_of_the_cpu() {
    for (seed, mask) in [
        (7, Mask::causal()),
        (8, Mask::window(100, 30)),
        (9, Mask::causal().diagonal(Diagonal::TopLeft)),
        (10, Mask::window(None, 20).diagonal(Diagonal::At(-40))),
    ] {
        verify::<half::bf16>(
            Shape {
                mask,
                keys: 600,
                dim: 128,
                ..SHAPE
            },
            seed,
        );
    }
}

/// For the sanitizer's tools, which take long for each launch.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn padded_sequences_of_one_problem() {
    verify::<half::f16>(
        Shape {
            batch: 5,
            queries: 300,
            keys: 333,
            heads: [4, 2],
            ..SHAPE
        },
        11,
    );
}
