//! Times by events: the GPU.

use warptile::gpu::{Arguments, Gpu, Launcher};
use warptile::{Element, Plan};
use warptile_driver::{DeviceBuffer, Event, Graph, Stream};

use super::data::Data;
use super::{Call, Effort, WARM_UP};

/// Inputs and outputs of one graph together: several times the L2 cache of any GPU (an H200 reports 60 MB).
const ROTATED_BYTES: usize = 256 << 20;

/// Launches of one graph: enough that what surrounds them in a replay does not show, and not more than needed.
const LAUNCHES: std::ops::RangeInclusive<usize> = 2..=64;

/// Device memory of one launch.
struct Buffers<T: Element> {
    q: DeviceBuffer<T>,
    k: DeviceBuffer<T>,
    v: DeviceBuffer<T>,
    slopes: Option<DeviceBuffer<f32>>,
    out: DeviceBuffer<T>,
    lse: DeviceBuffer<f32>,
}

impl<T: Element> Buffers<T> {
    fn new(plan: &Plan, stream: &Stream, data: &Data<T>) -> warptile::Result<Self> {
        Ok(Buffers {
            q: DeviceBuffer::from_slice(stream, &data.q)?,
            k: DeviceBuffer::from_slice(stream, &data.k)?,
            v: DeviceBuffer::from_slice(stream, &data.v)?,
            slopes: data
                .slopes
                .as_ref()
                .map(|slopes| DeviceBuffer::from_slice(stream, slopes))
                .transpose()?,
            out: DeviceBuffer::zeroed(stream, plan.problem().out().required_len().unwrap_or(0))?,
            lse: DeviceBuffer::zeroed(stream, plan.problem().lse_len())?,
        })
    }

    fn bytes(&self) -> usize {
        self.q.byte_len() + self.k.byte_len() + self.v.byte_len() + self.out.byte_len()
    }

    fn launch(&mut self, launcher: &mut Launcher) -> warptile::Result<()> {
        let mut arguments = Arguments::new(
            self.q.as_slice(),
            self.k.as_slice(),
            self.v.as_slice(),
            self.out.as_slice_mut(),
        )
        .with_lse(self.lse.as_slice_mut());
        if let Some(slopes) = &self.slopes {
            arguments = arguments.with_alibi_slopes(slopes.as_slice());
        }
        launcher.launch(arguments)
    }
}

/// Microseconds of GPU time of one launch, for each replay of a graph of launches. Each launch of the graph has
/// inputs and outputs of its own, so that none finds in the cache what the one before it left there.
pub(super) fn graph<T: Element>(
    plan: &Plan,
    gpu: &Gpu,
    data: &Data<T>,
    effort: Effort,
) -> warptile::Result<Vec<f64>> {
    let stream = Stream::new(gpu.stream().context())?;
    let mut launcher = gpu.launcher(plan, &stream)?;
    let mut sets = vec![Buffers::new(plan, &stream, data)?];
    let wanted = ROTATED_BYTES
        .div_ceil(sets[0].bytes().max(1))
        .clamp(*LAUNCHES.start(), *LAUNCHES.end());
    while sets.len() < wanted {
        sets.push(Buffers::new(plan, &stream, data)?);
    }
    sets[0].launch(&mut launcher)?;
    stream.synchronize()?;
    let graph = Graph::capture(&stream, |_| {
        sets.iter_mut()
            .try_for_each(|set| set.launch(&mut launcher))
    })?;
    let stopwatch = Stopwatch::new(&stream)?;
    for _ in 0..WARM_UP {
        graph.launch(&stream)?;
    }
    effort.spend(|| {
        let replay = stopwatch.time(&stream, || Ok(graph.launch(&stream)?))?;
        Ok(replay / wanted as f64)
    })
}

/// Microseconds between events around each call through the ordinary interface.
pub(super) fn call<T: Element>(
    call: &Call<T>,
    gpu: &Gpu,
    effort: Effort,
) -> warptile::Result<Vec<f64>> {
    for _ in 0..WARM_UP {
        call.run()?;
    }
    let stopwatch = Stopwatch::new(gpu.stream())?;
    effort.spend(|| stopwatch.time(gpu.stream(), || call.run().map(drop)))
}

/// Two events around work on a stream.
struct Stopwatch {
    start: Event,
    end: Event,
}

impl Stopwatch {
    fn new(stream: &Stream) -> warptile::Result<Self> {
        Ok(Stopwatch {
            start: Event::timed(stream.context())?,
            end: Event::timed(stream.context())?,
        })
    }

    /// Microseconds of what `work` queues on an idle `stream`.
    fn time(
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
