//! Backward passes of cases: their data, and the check of what a kernel made of it.

use warptile::cpu::forward_cpu;
use warptile::gpu::{Bindings, Gpu, Prepared};
use warptile::kernels::Kind;
use warptile::plan::Choice;
use warptile::spec::{Backward, Call, HostInputs, HostOutputs, Operand, Slots};
use warptile::{Element, ElementType};
use warptile_driver::{DeviceBuffer, Stream};

use crate::accept::GradientExpectation;
use crate::case::{Case, LayoutKind};
use crate::data::{Buffer, Data, Failure, Inputs, Random, for_each_row, rows_of};
use crate::device::DeviceInputs;
use crate::error::Result;
use crate::ferry::Ferry;

/// The backward pass of a case, with its data. The output and lse are those of the CPU path.
#[derive(Debug, Clone)]
pub struct BackwardCase<T> {
    case: Case,
    /// With all lengths on the host.
    pub backward: Backward,
    /// All that it reads.
    pub inputs: Inputs<T>,
}

/// The buffers of the gradients that are wanted: poisoned before the run.
#[derive(Debug, Clone)]
pub struct GradientBuffers<T>(Slots<Option<Data<T>>>);

impl Case {
    /// The case nearest to this one that has a backward pass: without pages and quantized keys, with head sizes of at most 256. Half of the
    /// cases with a bias and without lists of blocks ask for its gradient.
    pub fn differentiable(&self) -> Case {
        let mut case = self.clone();
        (case.pages, case.runs, case.quantized) = (None, 1, None);
        case.scoring = case.scoring.bias_as_queries();
        case.device_lengths &= case.has_lists();
        let sizes = case
            .heads
            .dims()
            .map(|size| size.min(Backward::MAX_HEAD_DIM));
        case.heads = case.heads.with_dims(sizes);
        let draw = Random::new(case.seed ^ 0xdb1a5).below(2) == 0;
        case.d_bias = draw && case.scoring.has(Operand::Bias) && case.scoring.blocks.is_none();
        case
    }

    /// The backward pass of a call of the case, with gradients as the seed has it: mostly all, and of tensors stored as their tensors.
    ///
    /// # Errors
    /// When the call has no backward pass.
    pub fn backward_of(&self, call: Call) -> Result<Backward> {
        let mut random = Random::new(self.seed ^ 0xbac4);
        let mut builder = Backward::builder(call.clone()).d_lse(random.below(3) == 0);
        for operand in Operand::GRADIENTS {
            let of = operand.gradient_of().filter(|of| call.has(*of));
            if operand == Operand::DBias {
                let wanted = self.d_bias && of.is_some();
                builder = builder.want(operand, wanted);
                if let Some(dense) = call.gradient_layout(operand).filter(|_| wanted)
                    && self.layout == LayoutKind::Gaps
                {
                    builder = builder.layout(operand, Case::with_gaps(dense.shape, 1));
                }
                continue;
            }
            builder = match of.and_then(|of| call.layout(of)) {
                None => builder.want(operand, of.is_some()),
                Some(_) if random.below(8) == 0 => builder.want(operand, false),
                Some(_) if self.layout == LayoutKind::Interleaved => builder,
                Some(layout) => builder.layout(operand, *layout),
            };
        }
        Ok(builder.build().map_err(warptile::Error::from)?)
    }

    /// Gives some rows of the bias a number for all keys by which masks hide keys: the lowest one, or -1e9, which f16 does not have.
    fn hide_rows_by_bias<T: Element>(&self, inputs: &mut Inputs<T>) {
        let lowest = match T::TYPE {
            ElementType::Bf16 => f64::from(half::bf16::MIN),
            ElementType::F32 => f64::from(f32::MIN),
            _ => return,
        };
        let Some(Data::Elements(bias)) = &mut inputs.others[Operand::Bias] else {
            return;
        };
        let mut random = Random::new(self.seed ^ 0x10e5);
        let layout = bias.layout;
        let [entries, rows, heads, keys] = layout.shape;
        for entry in 0..entries {
            for row in 0..rows {
                for head in 0..heads {
                    let hidden = match random.below(32) {
                        0 => lowest,
                        1 => -1e9,
                        _ => continue,
                    };
                    let start = bias.offset + layout.offset(entry, row, head);
                    for key in 0..keys {
                        bias.data[start + key * layout.strides[3]] = T::from_f64(hidden);
                    }
                }
            }
        }
    }

    /// The backward pass of the case.
    ///
    /// # Errors
    /// When the case has none.
    pub fn backward<T: Element>(&self) -> Result<BackwardCase<T>> {
        let call = self.try_call()?;
        let mut inputs = self.inputs::<T>();
        self.hide_rows_by_bias(&mut inputs);
        let mut result = self.result::<T>();
        forward_cpu(&call, &inputs.host(), result.host())?;
        let mut random = Random::new(self.seed ^ 0xd0d0);
        let mut d_out = Buffer {
            data: vec![T::from_f64(f64::NAN); result.out.len()],
            offset: result.offset,
            layout: *call.out(),
        };
        for_each_row(&call, call.out(), Kind::Queries, |start| {
            let row = &mut d_out.data[result.offset + start..][..call.out().head_dim()];
            row.fill_with(|| T::from_f64(random.normal()));
        });
        let out = Buffer {
            data: result.out,
            offset: result.offset,
            layout: *call.out(),
        };
        let backward = self.backward_of(call)?;
        if backward.expected()[Operand::DLse].wanted {
            let number = |lse: &f32| match lse.is_nan() {
                true => f32::NAN,
                false => random.normal() as f32,
            };
            let d_lse = result.lse.iter().map(number).collect();
            inputs.others[Operand::DLse] = Some(Data::Floats(d_lse));
        }
        inputs.others[Operand::Out] = Some(Data::Elements(out));
        inputs.others[Operand::DOut] = Some(Data::Elements(d_out));
        inputs.others[Operand::Lse] = Some(Data::Floats(result.lse));
        Ok(BackwardCase {
            case: self.clone(),
            backward,
            inputs,
        })
    }
}

impl<T: Element> BackwardCase<T> {
    /// Poisoned buffers for the result.
    pub fn result(&self) -> GradientBuffers<T> {
        GradientBuffers(Slots::from_fn(|operand| {
            let layout = self.backward.gradient(operand)?;
            Some(match operand.kind() {
                Kind::List(_) => Data::Floats(vec![f32::NAN; layout.reach()]),
                _ => Data::Elements(Buffer {
                    data: self.case.poisoned::<T>(layout),
                    offset: self.case.offset(),
                    layout: *layout,
                }),
            })
        }))
    }

    /// Computes what to expect, on the host.
    ///
    /// # Errors
    /// When the problem is too large for a reference.
    pub fn expectation(&self) -> Result<GradientExpectation> {
        GradientExpectation::new(&self.backward, &self.host())
    }

    /// The inputs as the backward pass has them.
    pub fn host(&self) -> HostInputs<'_> {
        self.inputs.host()
    }

    /// Computes it on a GPU, with its lengths on the device if the case says so. `run` is called when all is queued.
    ///
    /// # Errors
    /// As [`Gpu::prepare_for`] and [`Prepared::launch`].
    pub fn run_on_gpu(
        &self,
        gpu: &Gpu,
        choice: &Choice,
        run: impl FnOnce(),
    ) -> Result<GradientBuffers<T>> {
        let backward = self.case.backward_of(self.case.call_on_gpu()?)?;
        let prepared = gpu.prepare_for(&backward, choice)?;
        self.run_prepared(gpu.stream(), &prepared, run)
    }

    /// As [`run_on_gpu`](Self::run_on_gpu), by kernels that are loaded.
    ///
    /// # Errors
    /// As [`Prepared::launch`].
    pub fn run_prepared(
        &self,
        stream: &Stream,
        prepared: &Prepared<Backward>,
        run: impl FnOnce(),
    ) -> Result<GradientBuffers<T>> {
        let backward = self.case.backward_of(self.case.call_on_gpu()?)?;
        let on_gpu = || -> warptile::Result<GradientBuffers<T>> {
            let ferry = Ferry::default();
            let inputs = DeviceInputs::upload(stream, &ferry, &self.inputs)?;
            let lists = match self.case.device_lengths {
                true => DeviceInputs::of_lists(stream, &ferry, &self.case.lists())?,
                false => DeviceInputs::default(),
            };
            let mut result = self.result();
            let mut bindings = Bindings::default();
            inputs.add_to(&mut bindings)?;
            lists.add_to(&mut bindings)?;
            let mut written = result.0.try_map(|_, data| {
                let (bytes, at) = data.bytes();
                Ok::<_, warptile::Error>((DeviceBuffer::from_slice(stream, bytes)?, at))
            })?;
            for (operand, written) in written.iter_mut() {
                if let Some((memory, at)) = written {
                    bindings.set_output(operand, memory.slice_mut(*at..)?);
                }
            }
            prepared.launch(stream, &backward, &bindings)?;
            run();
            drop(bindings);
            for (operand, (memory, _)) in written.given() {
                if let Some(data) = &mut result.0[operand] {
                    memory.copy_to_slice(data.bytes_mut())?;
                }
            }
            Ok(result)
        };
        Ok(on_gpu()?)
    }

    /// Compares a result with what is expected, and looks for writes to where no row lies. Gives the largest part of what is allowed that
    /// an error has.
    ///
    /// # Errors
    /// [`Failure`], saying what is wrong.
    pub fn check(
        &self,
        expected: &GradientExpectation,
        result: &GradientBuffers<T>,
    ) -> Result<f64, Failure> {
        let mut worst: f64 = 0.0;
        for (operand, data) in result.0.given() {
            let verdict = match data {
                Data::Elements(buffer) => {
                    let stray = |index| Failure::Stray {
                        tensor: operand.name(),
                        index,
                    };
                    let placed = (&buffer.data[..], buffer.offset, &buffer.layout);
                    let len = expected.gradient(operand).len();
                    let found = rows_of(self.backward.call(), operand.kind(), placed, len);
                    expected.judge(operand, &found.map_err(stray)?)
                }
                _ => expected.judge(operand, data.floats().unwrap_or_default()),
            };
            if !verdict.passed {
                return Err(Failure::WrongGradient { operand, verdict });
            }
            worst = worst.max(verdict.worst.ratio());
        }
        Ok(worst)
    }
}

impl<T: Element> GradientBuffers<T> {
    /// The outputs as the backward pass has them.
    pub fn host(&mut self) -> HostOutputs<'_> {
        let mut outputs = HostOutputs::default();
        for (operand, data) in self.0.iter_mut() {
            outputs = match data {
                Some(Data::Elements(to)) => outputs.with(operand, &mut to.data[to.offset..]),
                Some(Data::Bytes(to)) => outputs.with(operand, &mut to.data[to.offset..]),
                Some(Data::Singles(to)) => outputs.with(operand, &mut to.data[to.offset..]),
                Some(Data::Floats(to)) => outputs.with(operand, to),
                None => outputs,
            };
        }
        outputs
    }

    /// All bits, poison included.
    pub fn bits(&self) -> Vec<u8> {
        let all: Vec<&[u8]> = { self.0.given() }.map(|(_, data)| data.bytes().0).collect();
        all.concat()
    }
}
