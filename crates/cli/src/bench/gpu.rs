//! Times by events: the GPU.

use std::ops::RangeInclusive;

use warptile::gpu::{Bindings, Gpu, Planned, Prepared};
use warptile::kernels::{Count, Kind, Operations};
use warptile::plan::{Choice, Plan, Planner};
use warptile::spec::{Call, Features, Numbers, Operand, Slots};
use warptile::{Element, with_element};
use warptile_check::{Case, DeviceInputs, Ferry, Lists, Place};
use warptile_driver::{DeviceBuffer, Event, Graph, Stream};

use super::Effort;
use super::data::Data;
use super::row::{is_reading, kv_bytes};
use crate::operation::Operation;

/// Sets of inputs and outputs together: several times the L2 cache of any GPU (an H200 reports 60 MB).
const ROTATED_BYTES: usize = 256 << 20;
const SETS: RangeInclusive<usize> = 2..=64;

/// The same where reading keys and values takes the time: so many bytes of them that all sets have together, and as many sets as that
/// takes of short sequences. Of memory they may have this part.
const READ_BYTES: usize = 512 << 20;
const READING_SETS: RangeInclusive<usize> = 2..=256;
const PART_OF_MEMORY: usize = 4;

/// The bytes that the launches of a graph read there, about 2 ms on an H200: what surrounds them takes 2 to 3.5 us of a replay, by
/// measurement (docs/notebook/decode.md), which is not to show in the time of one. More launches than this say nothing more.
const REPLAYED_BYTES: usize = 8 << 30;
const MOST_LAUNCHES: usize = 256;

/// Device memory of one launch.
pub(super) struct Buffers {
    inputs: DeviceInputs,
    /// The operands that are written.
    outputs: Slots<Option<DeviceBuffer<u8>>>,
}

impl Buffers {
    fn new<O: Operation>(
        operation: &O,
        stream: &Stream,
        inputs: DeviceInputs,
    ) -> warptile::Result<Self> {
        let mut outputs = Slots::none();
        for (operand, expected) in operation.expected().iter() {
            if let (true, Some(bytes)) = (expected.is_output(), expected.needed()) {
                outputs[operand] = Some(DeviceBuffer::zeroed(stream, bytes as usize)?);
            }
        }
        Ok(Buffers { inputs, outputs })
    }

    /// Bytes of tensors.
    fn bytes(&self) -> usize {
        let outputs = { self.outputs.given() }.filter(|(operand, _)| *operand != Operand::Lse);
        self.inputs.byte_len() + outputs.map(|(_, buffer)| buffer.len()).sum::<usize>()
    }

    fn bindings(&mut self) -> warptile::Result<Bindings<'_>> {
        let mut bindings = Bindings::default();
        self.inputs.add_to(&mut bindings)?;
        for (operand, buffer) in self.outputs.iter_mut() {
            if let Some(buffer) = buffer {
                bindings.set_output(operand, buffer.as_slice_mut());
            }
        }
        Ok(bindings)
    }

    /// The inputs of gradients, once attention has been computed: its output and lse among them, and a gradient of the output.
    fn inputs_of_gradients(mut self, d_out: DeviceBuffer<u8>) -> DeviceInputs {
        let outputs = self.outputs.into_given();
        for (operand, bytes) in outputs.chain([(Operand::DOut, d_out)]) {
            self.inputs.set(operand, Place::Memory(bytes, 0));
        }
        self.inputs
    }
}

/// The parts that all launches of a graph share: the operation, its kernels, and the lengths and pages that lie on the
/// device.
pub(super) struct Launch<O: Operation> {
    operation: O,
    prepared: Prepared<O>,
    lists: DeviceInputs,
}

impl<O: Operation> Launch<O> {
    /// With lengths on the device if the kernel takes them there, so that their copies are no part of what is measured.
    pub(super) fn new(
        case: &Case,
        operation: &O,
        plan: &Plan<O::Problem>,
        gpu: &Gpu,
        lists: &Lists,
    ) -> Result<Self, warptile_check::Error> {
        let on_device = plan
            .image()
            .is_some_and(|image| image.features.contains(Features::DEVICE_LENGTHS));
        let (operation, lists) = match on_device && lists.any() {
            true => (
                O::of(case, &with_device_lengths(case, operation.call(), lists)?)?,
                DeviceInputs::of_lists(gpu.stream(), &Ferry::default(), lists)?,
            ),
            false => (operation.clone(), DeviceInputs::default()),
        };
        let plan = match (plan.image(), operation.problem() == *plan.problem()) {
            (Some(image), false) => {
                let choice = Choice::Image(image.name.to_owned());
                let settings = plan.steps().first().map(|step| step.settings);
                let planner = Planner::new(gpu.profile())
                    .rates(gpu.rates())
                    .settings(settings.unwrap_or_default());
                operation.problem().plan(&planner, &choice)?
            }
            _ => plan.clone(),
        };
        Ok(Launch {
            prepared: gpu.load_of(plan)?,
            operation,
            lists,
        })
    }

    pub(super) fn submit(&self, stream: &Stream, buffers: &mut Buffers) -> warptile::Result<()> {
        let mut bindings = buffers.bindings()?;
        self.lists.add_to(&mut bindings)?;
        self.prepared.launch(stream, &self.operation, &bindings)
    }
}

/// The call with its lengths and pages on the device. Its bounds are those of the lengths.
fn with_device_lengths(case: &Case, call: &Call, lists: &Lists) -> warptile::Result<Call> {
    let mut builder = Call::builder(call.q(), call.k(), call.v(), call.types())
        .scoring(*call.scoring())
        .splits(call.splits());
    for operand in Operand::of(Operations::FORWARD) {
        if let Some(layout) = call.layout(operand) {
            builder = builder.layout(operand, *layout);
        }
        if let Some(list) = lists.get(operand) {
            builder = builder.numbers(operand, Numbers::Device(list.len()));
        }
        if let Kind::List(Count::Scales) = operand.kind()
            && call.has(operand)
        {
            builder = builder.count(operand, call.reach(operand));
        }
    }
    if lists.get(Operand::QueryOffsets).is_some() {
        builder = builder.longest_queries(call.query_len());
    }
    if let Some(layout) = lists.table_layout() {
        builder = builder.table_layout(layout);
    }
    if lists.table_layout().is_some() || lists.get(Operand::KeyOffsets).is_some() {
        builder = builder.longest_keys(call.key_len());
    }
    Ok(builder.aligned_addresses(!case.unaligned).build()?)
}

/// Bytes of keys and values that a launch reads, at least 1: there may be none that a query sees.
fn read(case: &Case, call: &Call) -> usize {
    (kv_bytes(case, call) as usize).max(1)
}

/// Sets of inputs and outputs that launches rotate through: `bytes` is what one has in memory, `memory` what all may have.
fn sets(case: &Case, call: &Call, bytes: usize, memory: usize) -> usize {
    let bytes = bytes.max(1);
    let clamp =
        |wanted: usize, limits: RangeInclusive<usize>| wanted.clamp(*limits.start(), *limits.end());
    match is_reading(case, call) {
        true => {
            let wanted = READ_BYTES.div_ceil(read(case, call)).min(memory / bytes);
            clamp(wanted, READING_SETS)
        }
        false => clamp(ROTATED_BYTES.div_ceil(bytes), SETS),
    }
}

/// Launches of a graph that uses each of this many sets.
fn launches(case: &Case, call: &Call, sets: usize) -> usize {
    match is_reading(case, call) {
        true => REPLAYED_BYTES
            .div_ceil(read(case, call))
            .clamp(sets, MOST_LAUNCHES.max(sets)),
        false => sets,
    }
}

/// The inputs and outputs of a problem on a GPU, so often that none of the launches that rotate through them finds in the cache what an
/// earlier one has left there.
pub(super) struct Rotation<'a, O: Operation> {
    case: &'a Case,
    operation: &'a O,
    gpu: &'a Gpu,
    lists: &'a Lists,
    stream: Stream,
    stopwatch: Stopwatch,
    sets: Vec<Buffers>,
}

/// A plan's launches on these, to be replayed.
pub(crate) struct Replay<O: Operation = Call> {
    graph: Graph,
    /// The memory that the captured launches read lives as long as they do.
    launch: Launch<O>,
}

impl<O: Operation> Replay<O> {
    /// The kernel that is launched.
    pub(crate) fn kernel(&self) -> &'static str {
        self.launch.prepared.plan().kernel_name()
    }
}

/// A computation that can be timed, regardless of the element type.
pub(crate) trait Bench<O: Operation = Call> {
    /// Launches of a graph that tells how long one takes.
    fn launches(&self) -> usize;

    /// Microseconds of GPU time of a first launch of a plan.
    fn once(&mut self, plan: &Plan<O::Problem>) -> warptile_check::Result<f64>;

    /// Captures this many launches of a plan for the call, or for its problem with lengths on the device.
    fn capture(
        &mut self,
        plan: &Plan<O::Problem>,
        launches: usize,
    ) -> warptile_check::Result<Replay<O>>;

    /// Microseconds of GPU time of one replay.
    fn time(&self, replay: &Replay<O>) -> warptile::Result<f64>;
}

/// Calls `work` with the inputs of a case of attention on the GPU.
pub(crate) fn with_bench<R>(
    case: &Case,
    gpu: &Gpu,
    work: impl FnOnce(&mut dyn Bench) -> warptile_check::Result<R>,
) -> warptile_check::Result<R> {
    let call = case.try_call()?;
    let lists = case.lists();
    with_element!(case.element, T => {
        let data = Data::<T>::new(case, &call, &lists);
        let mut rotation = Rotation::new(case, &call, gpu, &data, &lists)?;
        drop(data);
        work(&mut rotation)
    })
}

impl<'a, O: Operation> Rotation<'a, O> {
    pub(super) fn new<T: Element>(
        case: &'a Case,
        operation: &'a O,
        gpu: &'a Gpu,
        data: &Data<T>,
        lists: &'a Lists,
    ) -> warptile::Result<Self> {
        let stream = Stream::new(gpu.context())?;
        let call = operation.call();
        let mut inputs = data.upload(&stream)?;
        if case.backward {
            let prepared = gpu.prepare(call.problem(), &Choice::Best)?;
            let mut buffers = Buffers::new(call, &stream, inputs)?;
            prepared.launch(&stream, call, &buffers.bindings()?)?;
            inputs = buffers.inputs_of_gradients(data.d_out(call).upload_bytes(&stream)?);
        }
        let mut sets = vec![Buffers::new(operation, &stream, inputs)?];
        let memory = gpu.context().device().total_memory()?;
        let wanted = self::sets(case, call, sets[0].bytes(), memory / PART_OF_MEMORY);
        while sets.len() < wanted {
            // From the host it takes many times as long.
            let inputs = sets[0].inputs.once_more(&stream)?;
            sets.push(Buffers::new(operation, &stream, inputs)?);
        }
        Ok(Rotation {
            case,
            operation,
            gpu,
            lists,
            stopwatch: Stopwatch::new(&stream)?,
            stream,
            sets,
        })
    }

    fn launch(&self, plan: &Plan<O::Problem>) -> warptile_check::Result<Launch<O>> {
        Launch::new(self.case, self.operation, plan, self.gpu, self.lists)
    }
}

impl<O: Operation> Bench<O> for Rotation<'_, O> {
    fn launches(&self) -> usize {
        launches(self.case, self.operation.call(), self.sets.len())
    }

    fn once(&mut self, plan: &Plan<O::Problem>) -> warptile_check::Result<f64> {
        let launch = self.launch(plan)?;
        let work = || launch.submit(&self.stream, &mut self.sets[0]);
        Ok(self.stopwatch.time(&self.stream, work)?)
    }

    fn capture(
        &mut self,
        plan: &Plan<O::Problem>,
        launches: usize,
    ) -> warptile_check::Result<Replay<O>> {
        let launch = self.launch(plan)?;
        let (stream, sets) = (&self.stream, &mut self.sets);
        let mut capture = || {
            // A first launch outside of the capture, where it may load and allocate.
            launch.submit(stream, &mut sets[0])?;
            stream.synchronize()?;
            Graph::capture(stream, |stream| {
                (0..launches).try_for_each(|turn| {
                    let set = turn % sets.len();
                    launch.submit(stream, &mut sets[set])
                })
            })
        };
        Ok(Replay {
            graph: capture()?,
            launch,
        })
    }

    fn time(&self, replay: &Replay<O>) -> warptile::Result<f64> {
        let work = || Ok(replay.graph.launch(&self.stream)?);
        self.stopwatch.time(&self.stream, work)
    }
}

/// Microseconds of GPU time of one launch, for each replay of a graph of launches.
pub(super) fn graph<O: Operation>(
    rotation: &mut Rotation<'_, O>,
    plan: &Plan<O::Problem>,
    effort: Effort,
) -> warptile_check::Result<Vec<f64>> {
    let launches = rotation.launches();
    let replay = rotation.capture(plan, launches)?;
    effort.warm_up(|| rotation.time(&replay).map(drop))?;
    Ok(effort.spend(|| { rotation.time(&replay) }.map(|us| us / launches as f64))?)
}

/// Microseconds between events around each call through the ordinary interface.
pub(super) fn call<A>(
    call: impl Fn() -> warptile::Result<A>,
    gpu: &Gpu,
    effort: Effort,
) -> warptile::Result<Vec<f64>> {
    effort.warm_up(|| {
        call()?;
        // Waited for, so that what it takes is known.
        gpu.stream().synchronize().map_err(warptile::Error::from)
    })?;
    let stopwatch = Stopwatch::new(gpu.stream())?;
    effort.spend(|| stopwatch.time(gpu.stream(), || call().map(drop)))
}

/// Two events around work on a stream.
pub(super) struct Stopwatch {
    start: Event,
    end: Event,
}

impl Stopwatch {
    pub(super) fn new(stream: &Stream) -> warptile::Result<Self> {
        Ok(Stopwatch {
            start: Event::timed(stream.context())?,
            end: Event::timed(stream.context())?,
        })
    }

    /// Microseconds of what `work` queues on an idle `stream`.
    pub(super) fn time(
        &self,
        stream: &Stream,
        work: impl FnOnce() -> warptile::Result<()>,
    ) -> warptile::Result<f64> {
        stream.synchronize()?;
        stream.record(&self.start)?;
        work()?;
        stream.record(&self.end)?;
        self.end.synchronize()?;
        Ok(self.end.elapsed_since(&self.start)?.as_secs_f64() * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_that_read_rotate_through_more() {
        let of = |text: &str, bytes, memory| {
            let case: Case = text.parse().unwrap();
            let sets = sets(&case, &case.call(), bytes, memory);
            (sets, launches(&case, &case.call(), sets))
        };
        let many = usize::MAX;
        // 2 MiB, 4 MiB, 32 MiB, 512 MiB and 8 GiB of keys and values are read.
        assert_eq!(of("q1 k1024 h32/4 d128 bf16", 2 << 20, many), (256, 256));
        let window = "b16 q1 k8192 h64/8 d64 bf16 mask=window,127,0";
        assert_eq!(of(window, 256 << 20, many), (128, 256));
        assert_eq!(of(window, 256 << 20, 8 << 30), (32, 256));
        assert_eq!(of("q1 k8192 h32/8 d128 bf16", 32 << 20, many), (16, 256));
        assert_eq!(of("b16 q1 k8192 h32/8 d128 bf16", 512 << 20, 0), (2, 16));
        assert_eq!(of("b16 q1 k131072 h32/8 d128 bf16", 8 << 30, 0), (2, 2));
        // No query sees a key, so nothing is read.
        let hidden = "q1 k100 d64 f16 mask=causal diagonal=-5";
        assert_eq!(of(hidden, 13_056, many), (256, 256));
        // Where computing takes the time, each launch has a set.
        assert_eq!(of("q512 k512 h8 d64 bf16", 2 << 20, 0), (64, 64));
        assert_eq!(of("q4096 k4096 h8 d64 bf16", 16 << 20, 0), (16, 16));
    }
}
