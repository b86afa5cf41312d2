//! Gradients in float64 on a GPU, and what the rule for results makes of them.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use warptile::kernels::Elements;
use warptile::spec::{Backward, HostInputs, Operand, Sequence, Slots};
use warptile::{Element, ElementType, Layout, with_element};
use warptile_driver::{DeviceBuffer, Kernel, LaunchConfig, Module};

use super::{
    BLOCKS, Parameters, ReferenceOnGpu, SCRATCH_BYTES, ScoreTensor, THREADS, Tensor, kernel,
    pointer, rows_of,
};
use crate::accept::{ComputedGradient, GradientExpectation, GradientSizes};
use crate::backward::BackwardCase;
use crate::error::Result;
use crate::gpu::rest;
use crate::reference::{check_gradient_size, in_order, terms_of_bias};

/// Most multiply-adds of a call whose gradients have a reference on a GPU.
const MAX_WORK: f64 = super::MAX_WORK / 4.0;

/// Numbers of a score, and of an element of a gradient.
const OF_SCORE: usize = 6;
const OF_ELEMENT: usize = 3;

/// The kernels of gpu/gradients.cuh for an element type.
#[derive(Debug, Clone)]
pub(super) struct GradientKernels {
    rows: Kernel<GradientParameters>,
    keys: Kernel<GradientParameters>,
    sizes: Kernel<SizeParameters>,
}

/// `Item` in gpu/gradients.cuh.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Item {
    first_row: i32,
    q_len: i32,
    k_len: i32,
    k_entry: i32,
    k_start: i32,
    kv_head: i32,
    scores: i64,
}

/// `Line` in gpu/gradients.cuh.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Line {
    item: i32,
    number: i32,
}

/// `Sums` in gpu/gradients.cuh.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Sums {
    data: u64,
    len: i64,
}

/// `GradientParameters` in gpu/gradients.cuh.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GradientParameters {
    call: Parameters,
    out: Tensor,
    d_out: Tensor,
    lse: u64,
    d_lse: u64,
    lse_head: i64,
    items: u64,
    lines: u64,
    weights: u64,
    plane: i64,
    /// Of [`Operand::GRADIENTS`]; the first three have squares.
    sums: [Sums; Operand::GRADIENTS.len()],
    d_bias_at: ScoreTensor,
    squares: u64,
    bias_terms: f64,
    line_count: i64,
    k_rows: i32,
    kv_heads: i32,
}

/// `SizeParameters` in gpu/gradients.cuh.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SizeParameters {
    sums: Sums,
    floors: u64,
    sizes: u64,
    is_rounded: i32,
    padding: i32,
}

impl GradientKernels {
    pub(super) fn load(module: &Module, element: &str) -> warptile::Result<Self> {
        Ok(GradientKernels {
            rows: kernel(module, &format!("gradients_rows_{element}"))?,
            keys: kernel(module, &format!("gradients_keys_{element}"))?,
            sizes: kernel(module, &format!("gradients_sizes_{element}"))?,
        })
    }
}

/// Key/value heads of sequences whose scores are in memory together.
#[derive(Default)]
struct Chunk {
    items: Vec<Item>,
    queries: Vec<Line>,
    keys: Vec<Line>,
    scores: usize,
}

impl Chunk {
    fn push(&mut self, first_row: usize, sequence: &Sequence, kv_head: usize, group: usize) {
        let item = self.items.len() as i32;
        let lines = |count| {
            let numbers: Range<usize> = 0..count;
            numbers.map(move |number| Line {
                item,
                number: number as i32,
            })
        };
        self.queries.extend(lines(sequence.q_len));
        self.keys.extend(lines(sequence.k_len));
        self.items.push(Item {
            first_row: first_row as i32,
            q_len: sequence.q_len as i32,
            k_len: sequence.k_len as i32,
            k_entry: sequence.k_entry as i32,
            k_start: sequence.k_start as i32,
            kv_head: kv_head as i32,
            scores: self.scores as i64,
        });
        self.scores += group * sequence.q_len * sequence.k_len;
    }
}

impl ReferenceOnGpu {
    /// Computes what to expect of a backward pass: as [`GradientExpectation::new`], to the last few bits. The lengths must be on the host.
    ///
    /// # Errors
    /// As [`GradientExpectation::new`] with a limit of more work, and what the driver reports.
    pub fn gradients(
        &self,
        backward: &Backward,
        inputs: &HostInputs<'_>,
    ) -> Result<GradientExpectation> {
        backward.check_inputs(inputs)?;
        let wants_bias = backward.wants(Operand::DBias);
        check_gradient_size(backward.call(), wants_bias, MAX_WORK)?;
        with_element!(backward.call().element(), T => {
            Ok(self.launch_gradients::<T>(backward, inputs)?)
        })
    }

    fn launch_gradients<T: Element>(
        &self,
        backward: &Backward,
        inputs: &HostInputs<'_>,
    ) -> warptile::Result<GradientExpectation> {
        let (stream, ferry, call) = (&self.stream, &self.ferry, backward.call());
        let heads = call.heads();
        let k = in_order::<T>(call, inputs, Operand::K)?;
        let v = in_order::<T>(call, inputs, Operand::V)?;
        let (k, v) = (k.view(), v.view());
        let given = self.given(call, [k.data, v.data], inputs)?;
        let rows = rows_of(call);
        let device_rows = ferry.upload(stream, &rows)?;
        let chunks = chunks(backward);
        let most = chunks.iter().map(|chunk| chunk.scores).max().unwrap_or(0);
        let weights = DeviceBuffer::<f64>::uninit(stream, OF_SCORE * most)?;
        let squares = DeviceBuffer::<f64>::zeroed(stream, 3)?;
        // The gradient of a bias is computed if it is wanted: it has many numbers.
        let layout = |operand| {
            let is_computed = operand != Operand::DBias || backward.wants(operand);
            { call.gradient_layout(operand) }.filter(|_| is_computed)
        };
        let layouts = Operand::GRADIENTS.map(layout);
        let len = |layout: &Layout| layout.shape.iter().product::<usize>();
        let sums = layouts.map(|layout| {
            { layout.as_ref() }
                .map(|layout| DeviceBuffer::<f64>::zeroed(stream, OF_ELEMENT * len(layout)))
                .transpose()
        });
        let sums: Vec<_> = sums.into_iter().collect::<Result<_, _>>()?;
        let sums_at = std::array::from_fn(|index| Sums {
            data: sums[index].as_ref().map_or(0, DeviceBuffer::pointer),
            len: sums[index]
                .as_ref()
                .map_or(0, |sums| (sums.len() / OF_ELEMENT) as i64),
        });
        let tensor = |operand, layout: &Layout| Tensor::new(pointer(&given, operand), layout);
        let d_bias = layout(Operand::DBias);
        let d_bias_at = d_bias.map_or(Layout::EMPTY, |layout| shared(&layout));
        let kernels = &self.kernels(T::TYPE).gradients;
        for chunk in &chunks {
            let items = ferry.upload(stream, &chunk.items)?;
            for (kernel, lines, blocks_a_line) in [
                (&kernels.rows, &chunk.queries, heads.group_size()),
                (&kernels.keys, &chunk.keys, 1),
            ] {
                if lines.is_empty() {
                    continue;
                }
                let device_lines = ferry.upload(stream, lines)?;
                let parameters = GradientParameters {
                    call: Parameters {
                        rows: device_rows.pointer(),
                        row_count: rows.len() as i32,
                        ..Parameters::of(call, [k.layout, v.layout], &given)
                    },
                    out: tensor(Operand::Out, call.out()),
                    d_out: tensor(Operand::DOut, backward.d_out()),
                    lse: pointer(&given, Operand::Lse),
                    d_lse: pointer(&given, Operand::DLse),
                    lse_head: call.q().rows() as i64,
                    items: items.pointer(),
                    lines: device_lines.pointer(),
                    weights: weights.pointer(),
                    plane: chunk.scores as i64,
                    sums: sums_at,
                    d_bias_at: ScoreTensor {
                        tensor: Tensor::new(0, &d_bias_at),
                        key: d_bias_at.strides[3] as i64,
                    },
                    squares: squares.pointer(),
                    bias_terms: terms_of_bias(call, d_bias.as_ref()),
                    line_count: lines.len() as i64,
                    k_rows: call.k().rows() as i32,
                    kv_heads: heads.key_value as i32,
                };
                let blocks = (lines.len() * blocks_a_line).min(4 * BLOCKS);
                let config = LaunchConfig::new([blocks as u32, 1, 1], [THREADS, 1, 1]);
                // SAFETY: the parameters are those of the kernel, member by member. The inputs reach as far as their layouts
                // (`check_inputs`), the lines' rows and keys lie within them, each item has its own part of the weights, and the sums have
                // numbers for every element of a gradient. All buffers belong to the stream, which frees them behind the launches.
                unsafe { kernel.launch(stream, &config, &parameters) }?;
            }
        }
        let mut downloads = Vec::new();
        for ((operand, layout), sums) in Operand::GRADIENTS.into_iter().zip(&layouts).zip(&sums) {
            let (Some(layout), Some(sums)) = (layout, sums) else {
                continue;
            };
            let is_f32 = operand.elements() == Elements::F32;
            let element = if is_f32 { ElementType::F32 } else { T::TYPE };
            let floors = DeviceBuffer::<f32>::uninit(stream, len(layout))?;
            let sizes = DeviceBuffer::<f64>::zeroed(stream, size_of::<GradientSizes>() / 8)?;
            let parameters = SizeParameters {
                sums: Sums {
                    data: sums.pointer(),
                    len: len(layout) as i64,
                },
                floors: floors.pointer(),
                sizes: sizes.pointer(),
                is_rounded: i32::from(!is_f32),
                padding: 0,
            };
            let blocks = len(layout).div_ceil(THREADS as usize).clamp(1, BLOCKS);
            let config = LaunchConfig::new([blocks as u32, 1, 1], [THREADS, 1, 1]);
            let kernel = &self.kernels(element).gradients.sizes;
            // SAFETY: as above; there is a floor for each element, and all sizes.
            unsafe { kernel.launch(stream, &config, &parameters) }?;
            let mut exact = DeviceBuffer::<f64>::uninit(stream, len(layout))?;
            exact
                .as_slice_mut()
                .copy_from(&sums.slice(..len(layout))?)?;
            downloads.push((operand, exact, floors, sizes));
        }
        let mut of = Slots::<Option<ComputedGradient>>::none();
        rest(stream)?;
        for (operand, exact, floors, sizes) in downloads {
            let numbers = ferry.download(&sizes)?;
            of[operand] = Some(ComputedGradient {
                exact: ferry.download(&exact)?,
                floors: ferry.download(&floors)?,
                sizes: *bytemuck::from_bytes(bytemuck::cast_slice(&numbers)),
            });
        }
        let numbers = ferry.download(&squares)?;
        let mut squares = Slots::from_fn(|_| 0.0);
        for (operand, square) in Operand::GRADIENTS.into_iter().zip(numbers) {
            squares[operand] = square;
        }
        Ok(GradientExpectation::within(backward, of, &squares))
    }
}

impl<T: Element> BackwardCase<T> {
    /// Computes what to expect, on a GPU.
    ///
    /// # Errors
    /// As [`ReferenceOnGpu::gradients`].
    pub fn expectation_on_gpu(&self, reference: &ReferenceOnGpu) -> Result<GradientExpectation> {
        reference.gradients(&self.backward, &self.host())
    }
}

/// All key/value heads of sequences, as many together as have room.
fn chunks(backward: &Backward) -> Vec<Chunk> {
    let heads = backward.call().heads();
    let (mut chunks, mut first_row) = (vec![Chunk::default()], 0);
    let most = SCRATCH_BYTES / (OF_SCORE * size_of::<f64>());
    for sequence in backward.call().sequences() {
        let scores = heads.group_size() * sequence.q_len * sequence.k_len;
        for kv_head in 0..heads.key_value {
            if let Some(last) = chunks.last()
                && last.scores > 0
                && last.scores + scores > most
            {
                chunks.push(Chunk::default());
            }
            if let Some(last) = chunks.last_mut() {
                last.push(first_row, &sequence, kv_head, heads.group_size());
            }
        }
        first_row += sequence.q_len;
    }
    chunks
}

/// A dense tensor of scores, whose extents of 1 are shared.
fn shared(layout: &Layout) -> Layout {
    let mut strides = Layout::bshd(layout.shape).strides;
    for (stride, extent) in strides.iter_mut().zip(layout.shape) {
        if extent == 1 {
            *stride = 0;
        }
    }
    Layout {
        shape: layout.shape,
        strides,
    }
}

/// The parameters of two kernels as PTX has them.
#[cfg(test)]
pub(super) fn parameters_of_f16() -> [String; 2] {
    [
        format!(
            "gradients_rows_f16_param_0[{}]",
            size_of::<GradientParameters>()
        ),
        format!(
            "gradients_sizes_f16_param_0[{}]",
            size_of::<SizeParameters>()
        ),
    ]
}
