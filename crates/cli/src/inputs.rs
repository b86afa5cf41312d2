//! The inputs of one attention call in host memory, and the call itself.

use std::time::{Duration, Instant};

use half::{bf16, f16};
use warptile::{AlibiShape, Attention, Backend, Element, Layout, Mask, Plan, Problem, View};
use warptile_check::Expectation;

/// Options of a call that are not tensors.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) mask: Mask,
    /// `None`: 1 / sqrt(head size).
    pub(crate) scale: Option<f32>,
    pub(crate) softcap: Option<f32>,
    /// `None`: the planner's choice.
    pub(crate) kernel: Option<String>,
}

/// Q, K, V and what else a call takes.
#[derive(Debug, Clone)]
pub(crate) struct Inputs<T> {
    pub(crate) q: Vec<T>,
    pub(crate) k: Vec<T>,
    pub(crate) v: Vec<T>,
    pub(crate) q_layout: Layout,
    pub(crate) k_layout: Layout,
    pub(crate) v_layout: Layout,
    /// Row offsets of q's and of k's sequences, when these are packed.
    pub(crate) cu_seqlens: Option<[Vec<i32>; 2]>,
    pub(crate) alibi_slopes: Option<Vec<f32>>,
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
    /// The problem these inputs pose, validated.
    pub(crate) fn problem(&self, settings: &Settings) -> warptile::Result<Problem> {
        let mut builder = Problem::builder(&self.q_layout, &self.k_layout, &self.v_layout, T::TYPE)
            .mask(settings.mask);
        if let Some(scale) = settings.scale {
            builder = builder.scale(scale);
        }
        if let Some(softcap) = settings.softcap {
            builder = builder.softcap(softcap);
        }
        if let Some([q, k]) = &self.cu_seqlens {
            builder = builder.packed(q, k);
        }
        if let Some(slopes) = &self.alibi_slopes {
            let per_head = slopes.len() == self.q_layout.heads();
            builder = builder.alibi(if per_head {
                AlibiShape::PerHead
            } else {
                AlibiShape::PerBatchHead
            });
        }
        let problem = builder.build()?;
        problem.check_alibi(self.alibi_slopes.as_deref())?;
        Ok(problem)
    }

    /// The options of the high-level call.
    pub(crate) fn attention(&self, settings: &Settings) -> Attention {
        let mut attention = Attention::new().mask(settings.mask);
        if let Some(scale) = settings.scale {
            attention = attention.scale(scale);
        }
        if let Some(softcap) = settings.softcap {
            attention = attention.softcap(softcap);
        }
        if let Some(slopes) = &self.alibi_slopes {
            attention = attention.alibi_slopes(slopes);
        }
        if let Some(kernel) = &settings.kernel {
            attention = attention.kernel(kernel);
        }
        attention
    }

    /// Computes attention on `backend`, several times if it takes less than a second, and brings the answer to the host.
    /// Each time is from the call until the output is in host memory; the upload of the inputs is not part of it.
    pub(crate) fn forward(
        &self,
        settings: &Settings,
        backend: &Backend,
    ) -> warptile::Result<Answer<T>> {
        /// The most calls after the first, and the time after which there are no more.
        const REPEATS: usize = 20;
        const REPEAT_TIME: Duration = Duration::from_secs(1);
        let q = backend.tensor_with_layout(&self.q, self.q_layout)?;
        let k = backend.tensor_with_layout(&self.k, self.k_layout)?;
        let v = backend.tensor_with_layout(&self.v, self.v_layout)?;
        backend.synchronize()?;
        let attention = self.attention(settings);
        let call = || {
            let start = Instant::now();
            let output = match &self.cu_seqlens {
                Some([cu_q, cu_k]) => attention.forward_packed(&q, &k, &v, cu_q, cu_k)?,
                None => attention.forward(&q, &k, &v)?,
            };
            let out = output.out.to_vec()?;
            Ok::<_, warptile::Error>((output, out, start.elapsed()))
        };
        let (output, out, first) = call()?;
        let start = Instant::now();
        let mut later = Vec::new();
        while later.len() < REPEATS && start.elapsed() + first < REPEAT_TIME {
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
    pub(crate) fn expectation(&self, problem: &Problem) -> warptile_check::Result<Expectation> {
        Expectation::new(
            problem,
            View::new(&self.q, self.q_layout),
            View::new(&self.k, self.k_layout),
            View::new(&self.v, self.v_layout),
            self.alibi_slopes.as_deref(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_order_undoes_the_layout() {
        // [batch 1, heads 2, rows 3, head size 1], numbered in storage order.
        let layout = Layout::bhsd([1, 3, 2, 1]);
        assert_eq!(
            to_reference_order(&[0, 1, 2, 3, 4, 5], &layout),
            [0, 3, 1, 4, 2, 5]
        );
    }
}
