//! Attention in a plain float64 loop.

use warptile::Result;

use crate::PROMPTS;
use crate::model::{Attend, HEAD_DIM, HEADS, KV_HEADS, LAYERS, Model, ROTARY_BASE, mask};

/// The work of [`Paged`](crate::Paged), in float64, with all keys and values of a sequence one after the other.
pub(crate) struct Plain {
    sinks: Vec<[f32; HEADS]>,
    /// The keys of each layer and sequence.
    keys: Vec<Vec<Vec<f64>>>,
    values: Vec<Vec<Vec<f64>>>,
    step: Vec<(usize, usize)>,
}

impl Plain {
    pub(crate) fn new(model: &Model) -> Self {
        let nothing = vec![vec![Vec::new(); PROMPTS.len()]; LAYERS];
        Plain {
            sinks: model.layers.iter().map(|layer| layer.sinks).collect(),
            keys: nothing.clone(),
            values: nothing,
            step: Vec::new(),
        }
    }
}

impl Attend for Plain {
    fn step(&mut self, rows: &[(usize, usize)]) -> Result<()> {
        self.step = rows.to_vec();
        Ok(())
    }

    fn attend(&mut self, layer: usize, [mut q, mut k, v]: [Vec<f64>; 3]) -> Result<Vec<f64>> {
        let mut out = Vec::new();
        let (q_row, row) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let mut at = 0; // among the tokens of all sequences
        for &(sequence, new) in &self.step {
            let (keys, values) = (
                &mut self.keys[layer][sequence],
                &mut self.values[layer][sequence],
            );
            for token in at..at + new {
                let position = keys.len() / row;
                let query = &mut q[token * q_row..][..q_row];
                rotate(query, position);
                rotate(&mut k[token * row..][..row], position);
                keys.extend_from_slice(&k[token * row..][..row]);
                values.extend_from_slice(&v[token * row..][..row]);
                for (head, query) in query.chunks(HEAD_DIM).enumerate() {
                    let column = head / (HEADS / KV_HEADS) * HEAD_DIM;
                    // The one query of this token, and all keys up to its own.
                    let seen = mask(layer).visible(0, 1, position + 1);
                    let weight = |key: usize| {
                        let key = &keys[key * row + column..][..HEAD_DIM];
                        let dot: f64 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                        (dot / (HEAD_DIM as f64).sqrt()).exp()
                    };
                    let weights: Vec<f64> = seen.clone().map(weight).collect();
                    let sink = f64::from(self.sinks[layer][head]).exp();
                    let sum = weights.iter().sum::<f64>() + sink;
                    let mut result = [0.0; HEAD_DIM];
                    for (weight, key) in weights.iter().zip(seen) {
                        let value = &values[key * row + column..];
                        result
                            .iter_mut()
                            .zip(value)
                            .for_each(|(x, v)| *x += weight / sum * v);
                    }
                    out.extend(result);
                }
            }
            at += new;
        }
        Ok(out)
    }

    fn end(&mut self, sequence: usize) -> Result<()> {
        for layer in 0..LAYERS {
            self.keys[layer][sequence] = Vec::new();
            self.values[layer][sequence] = Vec::new();
        }
        Ok(())
    }
}

/// Turns elements i and i + half of every head.
fn rotate(row: &mut [f64], position: usize) {
    const HALF: usize = HEAD_DIM / 2;
    for head in row.chunks_mut(HEAD_DIM) {
        for i in 0..HALF {
            let angle = position as f64 * ROTARY_BASE.powf(-(i as f64) / HALF as f64);
            let (x, y) = (head[i], head[i + HALF]);
            head[i] = x * angle.cos() - y * angle.sin();
            head[i + HALF] = x * angle.sin() + y * angle.cos();
        }
    }
}
