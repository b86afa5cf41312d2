//! A cache on the GPU: a captured step that follows it, and the same contents as on the CPU.

use half::f16;
use warptile::{
    Attention, Backend, Error, KvCache, Layout, Mask, Pairing, Result, Rotary, SequenceId, Tensor,
};
use warptile_driver::Graph;

use crate::draw::Random;

const LAYERS: usize = 2;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const BATCH: usize = 6;
const PAGES: usize = 60;

/// A cache with the tensors of a decode step, which stay where they are.
struct Place {
    cache: KvCache<f16>,
    q: Tensor<f16>,
    rotated: Tensor<f16>,
    k: Tensor<f16>,
    v: Tensor<f16>,
    out: Vec<Tensor<f16>>,
    running: Vec<SequenceId>,
}

fn rotary() -> Rotary {
    Rotary::computed(HEAD_DIM, 10_000.0, Pairing::HalfSplit).unwrap()
}

fn tensor(backend: &Backend, rows: [usize; 2], heads: usize, data: Vec<f16>) -> Tensor<f16> {
    let layout = Layout::bshd([rows[0], rows[1], heads, HEAD_DIM]);
    Tensor::from_vec(backend, data, layout).unwrap()
}

impl Place {
    fn new(backend: &Backend) -> Self {
        let cache = KvCache::builder(KV_HEADS, HEAD_DIM)
            .layers(LAYERS)
            .pages(PAGES)
            .sequences(BATCH);
        let empty = |heads: usize| {
            let data = vec![f16::ZERO; BATCH * heads * HEAD_DIM];
            tensor(backend, [BATCH, 1], heads, data)
        };
        Place {
            cache: cache.build(backend).unwrap(),
            q: empty(HEADS),
            rotated: empty(HEADS),
            k: empty(KV_HEADS),
            v: empty(KV_HEADS),
            out: (0..LAYERS).map(|_| empty(HEADS)).collect(),
            running: Vec::new(),
        }
    }

    fn decode(&mut self) -> Result<()> {
        for (layer, out) in self.out.iter_mut().enumerate() {
            self.cache
                .append(layer, &self.k, &self.v)?
                .rotary(rotary())
                .queries_into(&self.q, &mut self.rotated)
                .run()?;
            let mask = [Mask::causal(), Mask::window(40, 0)][layer % 2];
            let attention = Attention::new().mask(mask).sinks(&[0.5; HEADS]);
            attention.forward_into(&self.rotated, self.cache.keys(layer)?, out, None)?;
        }
        Ok(())
    }

    /// A prompt, and its outputs.
    fn begin(&mut self, [q, k, v]: [&[f16]; 3]) -> Vec<f16> {
        let backend = self.cache.backend().clone();
        let rows = k.len() / (KV_HEADS * HEAD_DIM);
        let sequence = self.cache.allocate();
        self.running.push(sequence);
        self.cache.step(&[(sequence, rows)]).unwrap();
        let [mut q, k, v] = [(q, HEADS), (k, KV_HEADS), (v, KV_HEADS)]
            .map(|(data, heads)| tensor(&backend, [1, rows], heads, data.to_vec()));
        let mut last = Vec::new();
        for layer in 0..LAYERS {
            let write = self.cache.append(layer, &k, &v).unwrap().rotary(rotary());
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
        let outputs = self.out.iter().flat_map(|out| out.to_vec().unwrap());
        outputs.collect()
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
            for (tensor, data) in [&mut place.q, &mut place.k, &mut place.v]
                .into_iter()
                .zip(&inputs)
            {
                tensor.copy_from_slice(data).unwrap();
            }
        }
        graph.launch(&stream).unwrap();
        let replayed = gpu.outputs();
        gpu.decode().unwrap();
        let bits = |values: &[f16]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&replayed) == bits(&gpu.outputs()), "replay {replay}");
        cpu.decode().unwrap();
        assert!(near(&replayed, &cpu.outputs()), "replay {replay}");
    }
}
