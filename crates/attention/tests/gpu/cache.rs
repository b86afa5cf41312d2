//! A cache on the GPU: a captured step that follows it, and the same contents as on the CPU.

use half::f16;
use warptile::cache::SequenceId;
use warptile::{Attention, Backend, Error, KvCache, Layout, Mask, Result, Tensor};
use warptile_driver::Graph;

use crate::decode_step::{DecodeStep, bits};
use crate::draw::Random;

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const BATCH: usize = 6;
const PAGES: usize = 60;

/// A cache, and the decode step that uses it.
struct Place {
    cache: KvCache<f16>,
    step: DecodeStep,
    running: Vec<SequenceId>,
}

fn tensor(backend: &Backend, rows: usize, heads: usize, data: &[f16]) -> Tensor<f16> {
    let layout = Layout::bshd([1, rows, heads, HEAD_DIM]);
    Tensor::from_vec(backend, data.to_vec(), layout).unwrap()
}

impl Place {
    fn new(backend: &Backend) -> Self {
        let masks = [Mask::causal(), Mask::window(40, 0)];
        let cache = KvCache::builder(KV_HEADS, HEAD_DIM)
            .layers(masks.len())
            .pages(PAGES)
            .sequences(BATCH);
        Place {
            cache: cache.build(backend).unwrap(),
            step: DecodeStep::new(backend, BATCH, [HEADS, KV_HEADS], HEAD_DIM, &masks).unwrap(),
            running: Vec::new(),
        }
    }

    fn decode(&mut self) -> Result<()> {
        self.step.run(&mut self.cache)
    }

    /// A prompt, and its outputs.
    fn begin(&mut self, [q, k, v]: [&[f16]; 3]) -> Vec<f16> {
        let backend = self.cache.backend().clone();
        let rows = k.len() / (KV_HEADS * HEAD_DIM);
        let sequence = self.cache.allocate();
        self.running.push(sequence);
        self.cache.step(&[(sequence, rows)]).unwrap();
        let [mut q, k, v] = [(q, HEADS), (k, KV_HEADS), (v, KV_HEADS)]
            .map(|(data, heads)| tensor(&backend, rows, heads, data));
        let mut last = Vec::new();
        for layer in 0..self.cache.layers() {
            let write = self.cache.append(layer, &k, &v).unwrap();
            let write = write.rotary(self.step.rotary());
            // The second layer gets them as they are then.
            if layer == 0 {
                write.queries(&mut q).run().unwrap();
            } else {
                write.run().unwrap();
            }
            let attention = Attention::new().mask(Mask::causal());
            let output = attention
                .forward(&q, self.cache.keys(layer).unwrap())
                .unwrap();
            last = output.out.to_vec().unwrap();
        }
        last
    }

    fn outputs(&self) -> Vec<f16> {
        self.step.outputs().unwrap()
    }
}

fn values(random: &mut Random, rows: usize, heads: usize) -> Vec<f16> {
    (0..rows * heads * HEAD_DIM)
        .map(|_| f16::from_f32(random.unit()))
        .collect()
}

fn near(a: &[f16], b: &[f16]) -> bool {
    let near = |(a, b): (&f16, &f16)| (a.to_f32() - b.to_f32()).abs() <= 4e-3;
    a.len() == b.len() && a.iter().zip(b).all(near)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_captured_step_follows_the_cache() {
    let backend = Backend::cuda(0).unwrap();
    let stream = backend.gpu().unwrap().stream().clone();
    let (mut gpu, mut cpu) = (Place::new(&backend), Place::new(&Backend::cpu()));
    gpu.cache.step_padded(&[], BATCH).unwrap();
    gpu.decode().unwrap();
    let graph = Graph::capture::<Error>(&stream, |_| gpu.decode()).unwrap();
    let mut random = Random(1);
    for replay in 0..1000 {
        if gpu.running.len() < BATCH && random.once_in(4) {
            let rows = random.within(1, 30);
            let [q, k, v] =
                [HEADS, KV_HEADS, KV_HEADS].map(|heads| values(&mut random, rows, heads));
            // Room for all to go on.
            if gpu.cache.free_pages() > 2 + BATCH {
                let found = gpu.begin([&q, &k, &v]);
                assert!(near(&found, &cpu.begin([&q, &k, &v])), "replay {replay}");
            }
        }
        // Every sequence may need another page.
        while gpu.cache.free_pages() < gpu.running.len()
            || (!gpu.running.is_empty() && random.once_in(40))
        {
            let ended = random.within(0, gpu.running.len() - 1);
            for place in [&mut gpu, &mut cpu] {
                let sequence = place.running.swap_remove(ended);
                place.cache.free(sequence).unwrap();
            }
        }
        let inputs = [HEADS, KV_HEADS, KV_HEADS].map(|heads| values(&mut random, BATCH, heads));
        for place in [&mut gpu, &mut cpu] {
            let rows: Vec<_> = place.running.iter().map(|&id| (id, 1)).collect();
            place.cache.step_padded(&rows, BATCH).unwrap();
            for (tensor, data) in place.step.inputs().into_iter().zip(&inputs) {
                tensor.copy_from_slice(data).unwrap();
            }
        }
        graph.launch(&stream).unwrap();
        let replayed = gpu.outputs();
        gpu.decode().unwrap();
        assert!(bits(&replayed) == bits(&gpu.outputs()), "replay {replay}");
        cpu.decode().unwrap();
        assert!(near(&replayed, &cpu.outputs()), "replay {replay}");
    }
}

/// Keys of 192 elements and values of 128: a prompt, and then single tokens.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn values_may_have_another_head_size() {
    let gpu = Backend::cuda(0).unwrap();
    let mut random = Random(2);
    let mut places = [gpu, Backend::cpu()].map(|backend| {
        let cache = KvCache::<f16>::builder(KV_HEADS, 192).value_dim(128);
        let mut cache = cache.pages(40).build(&backend).unwrap();
        let sequence = cache.allocate();
        (backend, cache, sequence)
    });
    for rows in [150, 1, 1, 33, 1] {
        let data = [(HEADS, 192), (KV_HEADS, 192), (KV_HEADS, 128)].map(|(heads, size)| {
            let values = (0..rows * heads * size).map(|_| f16::from_f32(random.unit()));
            ([1, rows, heads, size], values.collect::<Vec<_>>())
        });
        let [found, expected] = places.each_mut().map(|(backend, cache, sequence)| {
            cache.step(&[(*sequence, rows)]).unwrap();
            let [q, k, v] =
                { data.each_ref() }.map(|(shape, values)| backend.tensor(values, *shape).unwrap());
            cache.append(0, &k, &v).unwrap().run().unwrap();
            let attention = Attention::new().mask(Mask::causal());
            let output = attention.forward(&q, cache.keys(0).unwrap()).unwrap();
            output.out.to_vec().unwrap()
        });
        assert_eq!(found.len(), rows * HEADS * 128);
        assert!(near(&found, &expected), "{rows} rows");
    }
}
