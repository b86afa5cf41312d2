//! The float64 reference on a GPU, for problems that would take the host long, and for many of them.

mod gradients;

use std::io::Read as _;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use warptile::gpu::Gpu;
use warptile::kernels::{Count, Kind, Operations};
use warptile::spec::{Call, Dropout, HostInputs, Numbers, Operand, Slots, View};
use warptile::{Element, ElementType, Layout, with_element};
use warptile_driver::{DeviceBuffer, Kernel, KernelOptions, LaunchConfig, Module, Stream};

use crate::accept::{Expectation, NaturalErrors, factor};
use crate::case::Case;
use crate::data::Inputs;
use crate::error::Result;
use crate::ferry::Ferry;
use crate::gpu::rest;
use crate::reference::{ReferenceOutput, by_head, check_size, in_order};
use gradients::GradientKernels;

/// PTX of gpu/reference.cu, packed by `cargo xtask build-reference`.
const IMAGE: &[u8] = include_bytes!("../gpu/reference.ptx.zst");

/// `THREADS` in gpu/reference.cu.
const THREADS: u32 = 256;

/// Most CTAs of a launch: several for each multiprocessor of any GPU.
const BLOCKS: usize = 1024;

/// Most multiply-adds of a reference on a GPU.
const MAX_WORK: f64 = (1_u64 << 43) as f64;

/// Most memory for the scores of the rows that are computed at once.
const SCRATCH_BYTES: usize = 1 << 30;

/// The kernels of the reference, loaded on a GPU.
///
/// ```no_run
/// use warptile::driver::Driver;
/// use warptile::gpu::Gpu;
/// use warptile_check::{Case, ReferenceOnGpu};
///
/// let gpu = Gpu::new(&Driver::load()?, 0)?;
/// let reference = ReferenceOnGpu::new(&gpu)?;
/// let case: Case = "b1 q4096 k4096 h16 d128 bf16 mask=causal seed=1".parse()?;
/// let inputs = case.inputs::<half::bf16>();
/// let expected = case.expectation_on_gpu(&inputs, &reference)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ReferenceOnGpu {
    stream: Stream,
    ferry: Arc<Ferry>,
    f16: Kernels,
    bf16: Kernels,
    f32: Kernels,
}

/// The kernels of an element type.
#[derive(Debug, Clone)]
struct Kernels {
    forward: Kernel<Parameters>,
    gradients: GradientKernels,
}

/// `Row` in gpu/reference.cu.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Row {
    batch: i32,
    q_entry: i32,
    q_row: i32,
    position: i32,
    k_entry: i32,
    k_start: i32,
    first_key: i32,
    end_key: i32,
    diagonal: i64,
    lse: i64,
}

/// `Tensor` in gpu/reference.cu.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Tensor {
    data: u64,
    batch: i64,
    row: i64,
    head: i64,
}

/// `ScoreTensor` in gpu/reference.cu.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ScoreTensor {
    tensor: Tensor,
    key: i64,
}

/// The operands of options that have an element for each score, or, without `tensors`, those that are lists.
fn of_scores(tensors: bool) -> impl Iterator<Item = Operand> {
    Operand::of_scores().filter(move |operand| (operand.kind() == Kind::Scores) == tensors)
}

/// The number of [`of_scores`].
const fn count_of_scores(tensors: bool) -> usize {
    let (mut count, mut index) = (0, 0);
    while index < Operand::COUNT {
        let operand = Operand::ALL[index];
        if operand.word().is_some() && matches!(operand.kind(), Kind::Scores) == tensors {
            count += 1;
        }
        index += 1;
    }
    count
}

/// A kernel of the image.
fn kernel<P: Pod>(module: &Module, entry: &str) -> warptile::Result<Kernel<P>> {
    let options = KernelOptions::new().param_bytes(size_of::<P>());
    Ok(Kernel::load(module, entry, &options)?)
}

/// `Parameters` in gpu/reference.cu, which has the operands of options in the order of [`Operand::of_scores`].
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Parameters {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scores: [ScoreTensor; count_of_scores(true)],
    rows: u64,
    numbers: [u64; count_of_scores(false)],
    scratch: u64,
    out: u64,
    out_floor: u64,
    lse: u64,
    lse_floor: u64,
    errors: u64,
    units: f64,
    batch_step: i64,
    row_count: i32,
    q_rows: i32,
    heads: i32,
    group: i32,
    head_dims: [i32; 2],
    key_bound: i32,
    factor_and_bound: [f32; 2],
    dropped: i32,
    scales: [u64; 2],
    scale_steps: [i32; 2],
    dropout_state: u64,
    block_offsets: u64,
    block_indices: u64,
    block_queries: i32,
    block_keys: i32,
    block_rows: i32,
    block_batch: i32,
    block_head: i32,
    bias_is_f32: i32,
}

impl Tensor {
    fn new(data: u64, layout: &Layout) -> Self {
        // Strides of validated layouts stay below what an `isize` counts.
        let [batch, row, head, _] = layout.strides.map(|stride| stride as i64);
        Tensor {
            data,
            batch,
            row,
            head,
        }
    }
}

/// Operands on the GPU.
type Given = Slots<Option<DeviceBuffer<u8>>>;

/// The address of an operand on the GPU.
fn pointer(given: &Given, operand: Operand) -> u64 {
    given[operand].as_ref().map_or(0, DeviceBuffer::pointer)
}

impl Parameters {
    /// Those of a call, with keys and values in these layouts; without rows, scratch and results.
    fn of(call: &Call, [k, v]: [Layout; 2], given: &Given) -> Self {
        let pointer = |operand| pointer(given, operand);
        let tensor = |operand| match call.layout(operand) {
            Some(layout) => Tensor::new(pointer(operand), layout),
            None => Tensor::zeroed(),
        };
        let scores = |operand| ScoreTensor {
            tensor: tensor(operand),
            key: call
                .layout(operand)
                .map_or(0, |layout| layout.strides[3] as i64),
        };
        let heads = call.heads();
        let scales = || {
            { Operand::of(Operations::FORWARD) }
                .filter(|operand| operand.kind() == Kind::List(Count::Scales))
        };
        let lists = call.blocks().map(|blocks| blocks.lists());
        let steps = lists.map_or([0; 2], |lists| lists.steps(heads.query));
        // Counts of a call are at most 2^30.
        Parameters {
            q: tensor(Operand::Q),
            k: Tensor::new(pointer(Operand::K), &k),
            v: Tensor::new(pointer(Operand::V), &v),
            scores: each(of_scores(true), scores),
            numbers: each(of_scores(false), pointer),
            units: factor(call) * f64::from(f32::EPSILON),
            batch_step: match of_scores(false).any(|list| call.reach(list) > heads.query) {
                true => heads.query as i64,
                false => 0,
            },
            q_rows: call.q().rows() as i32,
            heads: heads.query as i32,
            group: heads.group_size() as i32,
            head_dims: heads.dims().map(|size| size as i32),
            factor_and_bound: call.scoring().numbers(heads.dim),
            dropped: call.scoring().dropout.map_or(0, Dropout::threshold) as i32,
            scales: each(scales(), pointer),
            scale_steps: each(scales(), |operand| i32::from(call.reach(operand) > 1)),
            dropout_state: pointer(Operand::DropoutState),
            block_offsets: pointer(Operand::BlockOffsets),
            block_indices: pointer(Operand::BlockIndices),
            block_queries: lists.map_or(1, |lists| lists.queries()) as i32,
            block_keys: lists.map_or(1, |lists| lists.keys()) as i32,
            block_rows: call.blocks().map_or(0, |blocks| blocks.rows()) as i32,
            block_batch: steps[0] as i32,
            block_head: steps[1] as i32,
            bias_is_f32: i32::from(call.scoring().has_bias_f32()),
            ..Parameters::zeroed()
        }
    }
}

impl ReferenceOnGpu {
    /// Loads the kernels.
    ///
    /// # Errors
    /// When the driver cannot compile them for the GPU (compute capability 8.0 or newer), or is out of memory.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let load = || -> warptile::Result<Self> {
            let stream = Stream::new(gpu.context())?;
            let module = Module::load(gpu.context(), &image())?;
            let kernels = |element| {
                warptile::Result::Ok(Kernels {
                    forward: kernel(&module, &format!("reference_{element}"))?,
                    gradients: GradientKernels::load(&module, element)?,
                })
            };
            Ok(ReferenceOnGpu {
                f16: kernels("f16")?,
                bf16: kernels("bf16")?,
                f32: kernels("f32")?,
                stream,
                ferry: Arc::default(),
            })
        };
        Ok(load()?)
    }

    /// Creates the same kernels on another stream of their context, with its pinned memory, so that several threads can compute
    /// references at once.
    pub fn on_stream(&self, stream: &Stream, ferry: &Arc<Ferry>) -> Self {
        ReferenceOnGpu {
            stream: stream.clone(),
            ferry: ferry.clone(),
            ..self.clone()
        }
    }

    /// Computes what to expect of a call: as [`Expectation::new`], to the last few bits. The lengths must be on the host.
    ///
    /// # Errors
    /// As [`Expectation::new`] with a limit of more work, and what the driver reports.
    pub fn expectation(&self, call: &Call, inputs: &HostInputs<'_>) -> Result<Expectation> {
        call.check_inputs(inputs)?;
        check_size(call, MAX_WORK)?;
        with_element!(call.element(), T => {
            let k = in_order::<T>(call, inputs, Operand::K)?;
            let v = in_order::<T>(call, inputs, Operand::V)?;
            Ok(self.launch(call, [k.view(), v.view()], inputs)?)
        })
    }

    fn kernels(&self, element: ElementType) -> &Kernels {
        match element {
            ElementType::F16 => &self.f16,
            ElementType::Bf16 => &self.bf16,
            _ => &self.f32,
        }
    }

    /// What a call is given, on the GPU, with these keys and values.
    fn given<T: Element>(
        &self,
        call: &Call,
        [k, v]: [&[T]; 2],
        inputs: &HostInputs<'_>,
    ) -> warptile::Result<Given> {
        let (stream, ferry) = (&self.stream, &self.ferry);
        let mut given = Given::none();
        given[Operand::K] = Some(ferry.upload(stream, bytemuck::cast_slice(k))?);
        given[Operand::V] = Some(ferry.upload(stream, bytemuck::cast_slice(v))?);
        let of_gradients = [Operand::DOut, Operand::DLse];
        for operand in Operand::of(Operations::FORWARD).chain(of_gradients) {
            let is_copied = [Operand::K, Operand::V].contains(&operand);
            if let Some(bytes) = inputs.elements::<u8>(operand)?.filter(|_| !is_copied) {
                given[operand] = Some(ferry.upload(stream, bytes)?);
            }
        }
        for operand in [
            Operand::DropoutState,
            Operand::BlockOffsets,
            Operand::BlockIndices,
        ] {
            if let Some(words) = call.numbers(operand).and_then(Numbers::on_host) {
                given[operand] = Some(ferry.upload(stream, bytemuck::cast_slice(words))?);
            }
        }
        Ok(given)
    }

    fn launch<T: Element>(
        &self,
        call: &Call,
        [k, v]: [View<'_, T>; 2],
        inputs: &HostInputs<'_>,
    ) -> warptile::Result<Expectation> {
        let stream = &self.stream;
        let rows = rows_of(call);
        let places = call.lse_len();
        let elements = places * call.out().head_dim();
        let key_bound = rows.iter().map(|row| row.end_key - row.first_key).max();
        let key_bound = key_bound.unwrap_or(0).max(1) as usize;
        let most_blocks = (SCRATCH_BYTES / (4 * size_of::<f64>() * key_bound)).max(1);
        let blocks = (rows.len() * call.heads().query)
            .min(BLOCKS)
            .min(most_blocks);

        let ferry = &self.ferry;
        let given = self.given(call, [k.data, v.data], inputs)?;
        let device_rows = ferry.upload(stream, &rows)?;
        let scratch = DeviceBuffer::<f64>::uninit(stream, 4 * key_bound * blocks)?;
        let numbers = |len| DeviceBuffer::<f64>::zeroed(stream, len);
        let (out, lse) = (numbers(elements)?, numbers(places)?);
        // `Errors` in gpu/reference.cu.
        let errors = numbers(3)?;
        let out_floor = DeviceBuffer::<f32>::zeroed(stream, elements)?;
        let lse_floor = DeviceBuffer::<f32>::zeroed(stream, places)?;

        let parameters = Parameters {
            rows: device_rows.pointer(),
            scratch: scratch.pointer(),
            out: out.pointer(),
            out_floor: out_floor.pointer(),
            lse: lse.pointer(),
            lse_floor: lse_floor.pointer(),
            errors: errors.pointer(),
            row_count: rows.len() as i32,
            key_bound: key_bound as i32,
            ..Parameters::of(call, [k.layout, v.layout], &given)
        };
        if blocks > 0 {
            let kernel = &self.kernels(T::TYPE).forward;
            let config = LaunchConfig::new([blocks as u32, 1, 1], [THREADS, 1, 1]);
            // SAFETY: the parameters are those of the kernel, member by member. The inputs reach as far as their layouts
            // (`check_inputs`), the rows lie within them, each block has scratch for the keys of any row, and the results
            // have an element for every row, head and dimension. All buffers belong to the stream and live until the copies
            // below have waited for it.
            unsafe { kernel.launch(stream, &config, &parameters) }?;
        }
        let (out, lse) = (ferry.begin_download(&out)?, ferry.begin_download(&lse)?);
        let out_floor = ferry.begin_download(&out_floor)?;
        let lse_floor = ferry.begin_download(&lse_floor)?;
        let errors = ferry.begin_download(&errors)?;
        rest(stream)?;
        let (lse, lse_floor, largest) = (lse.wait()?, lse_floor.wait()?, errors.wait()?);
        let exact = ReferenceOutput {
            out: out.wait()?,
            lse: by_head(call).map(|index| lse[index]).collect(),
        };
        let errors = NaturalErrors {
            out: largest[0],
            lse: largest[1],
            rounding: largest[2],
        };
        let lse_floor = by_head(call).map(|index| lse_floor[index]).collect();
        let out_floor = out_floor.wait()?;
        Ok(Expectation::within(
            call, exact, errors, out_floor, lse_floor,
        ))
    }
}

impl Case {
    /// Computes what to expect of the case, on a GPU.
    ///
    /// # Errors
    /// As [`ReferenceOnGpu::expectation`].
    pub fn expectation_on_gpu<T: Element>(
        &self,
        inputs: &Inputs<T>,
        reference: &ReferenceOnGpu,
    ) -> Result<Expectation> {
        reference.expectation(&self.call(), &inputs.host())
    }
}

/// A value of each operand; zero where there are fewer of them.
fn each<T: Zeroable, const N: usize>(
    operands: impl Iterator<Item = Operand>,
    value: impl Fn(Operand) -> T,
) -> [T; N] {
    let mut values = operands.map(value);
    std::array::from_fn(|_| values.next().unwrap_or_else(T::zeroed))
}

/// The PTX. Of a damaged file only the beginning, which the driver refuses.
fn image() -> Vec<u8> {
    let mut text = Vec::new();
    if let Ok(mut decoder) = ruzstd::decoding::StreamingDecoder::new(IMAGE) {
        let _ = decoder.read_to_end(&mut text);
    }
    text
}

/// Every query row that belongs to a sequence, with the keys it sees.
fn rows_of(call: &Call) -> Vec<Row> {
    let mut rows = Vec::new();
    for sequence in call.sequences() {
        for position in 0..sequence.q_len {
            let visible = call
                .mask()
                .visible(position, sequence.q_len, sequence.k_len);
            rows.push(Row {
                batch: sequence.batch as i32,
                q_entry: sequence.q_entry as i32,
                q_row: (sequence.q_start + position) as i32,
                position: position as i32,
                k_entry: sequence.k_entry as i32,
                k_start: sequence.k_start as i32,
                first_key: visible.start as i32,
                // A range that ends before it starts is empty.
                end_key: visible.end.max(visible.start) as i32,
                diagonal: (position + sequence.k_len) as i64 - sequence.q_len as i64,
                lse: (call.lse_offset(&sequence, 0) + position) as i64,
            });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_a_kernel_for_every_element_type() {
        let text = String::from_utf8(image()).unwrap();
        for entry in ["reference_f16", "reference_bf16", "reference_f32"] {
            assert!(text.contains(&format!(".entry {entry}(")), "{entry}");
        }
        let forward = format!("reference_f16_param_0[{}]", size_of::<Parameters>());
        for parameters in gradients::parameters_of_f16().into_iter().chain([forward]) {
            assert!(text.contains(&format!(".b8 {parameters}")), "{parameters}");
        }
        assert!(text.ends_with('\n') || text.ends_with('}'));
    }

    #[test]
    fn rows_are_those_of_the_sequences() {
        let case: Case = "packed=2x5,0x3,3x1 h2 d8 mask=causal used=2x4,0x3,1x1"
            .parse()
            .unwrap();
        let rows: Vec<[i32; 6]> = rows_of(&case.call())
            .iter()
            .map(|row| {
                [
                    row.batch,
                    row.q_row,
                    row.k_start,
                    row.first_key,
                    row.end_key,
                    row.diagonal as i32,
                ]
            })
            .collect();
        assert_eq!(
            rows,
            [[0, 0, 0, 0, 3, 2], [0, 1, 0, 0, 4, 3], [2, 2, 8, 0, 1, 0]]
        );
    }
}
