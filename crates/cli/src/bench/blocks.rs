//! Two kernels timed in turn: blocks in the order A B B A.

use half::{bf16, f16};
use warptile::gpu::Gpu;
use warptile::{Element, ElementType, Plan};
use warptile_check::Case;
use warptile_driver::{Graph, Stream};

use super::WARM_UP;
use super::data::Data;
use super::gpu::{Buffers, Launch, PART_OF_MEMORY, Stopwatch, launches};

/// Launches of a graph are a multiple of this, so that a graph can have one more for each so many.
pub(crate) const LAUNCHES: usize = 50;

/// What is timed.
pub(crate) struct Pair<'a> {
    /// The problem.
    pub(crate) case: &'a Case,
    /// A, and B.
    pub(crate) plans: [&'a Plan; 2],
    /// Blocks to be measured.
    pub(crate) blocks: usize,
    /// Launches of B that are counted as [`LAUNCHES`]: more, to have a B that is slower by a known part.
    pub(crate) launches_of_b: usize,
}

/// Microseconds of one launch of A, of B twice, and of A, for each block. Inputs rotate as in [`bench`](super), and are normally distributed.
///
/// # Errors
/// What the device reports, or a problem that cannot be computed.
pub(crate) fn measure(pair: &Pair<'_>, gpu: &Gpu) -> warptile_check::Result<Vec<[f64; 4]>> {
    match pair.case.element {
        ElementType::F16 => typed::<f16>(pair, gpu),
        ElementType::Bf16 => typed::<bf16>(pair, gpu),
        _ => typed::<f32>(pair, gpu),
    }
}

fn typed<T: Element>(pair: &Pair<'_>, gpu: &Gpu) -> warptile_check::Result<Vec<[f64; 4]>> {
    let case = pair.case;
    let call = case.try_call()?;
    let data = Data::<T>::new(&call, case.seed);
    let lists = case.lists();
    let stream = Stream::new(gpu.context()).map_err(warptile::Error::from)?;
    let [a, b] = pair
        .plans
        .map(|plan| Launch::new(case, &call, plan, gpu, &lists));
    let (a, b) = (a?, b?);
    let mut sets = vec![Buffers::new(&call, &stream, &data)?];
    let memory = gpu.context().device().total_memory();
    let memory = memory.map_err(warptile::Error::from)?;
    let wanted = launches(case, &call, sets[0].bytes(), memory / PART_OF_MEMORY);
    while sets.len() < wanted {
        sets.push(Buffers::new(&call, &stream, &data)?);
    }
    let counted = wanted.next_multiple_of(LAUNCHES);
    // A first launch of each outside captures, where it may load and allocate.
    a.submit(&stream, &mut sets[0])?;
    b.submit(&stream, &mut sets[0])?;
    let mut captured = |launch: &Launch, count: usize| -> warptile::Result<Graph> {
        stream.synchronize()?;
        Graph::capture(&stream, |stream| {
            (0..count).try_for_each(|turn| {
                let set = turn % sets.len();
                launch.submit(stream, &mut sets[set])
            })
        })
    };
    let a = captured(&a, counted)?;
    let b = captured(&b, counted / LAUNCHES * pair.launches_of_b)?;
    let measure = || {
        let stopwatch = Stopwatch::new(&stream)?;
        for _ in 0..WARM_UP {
            a.launch(&stream)?;
            b.launch(&stream)?;
        }
        let time = |graph: &Graph| -> warptile::Result<f64> {
            let replay = stopwatch.time(&stream, || Ok(graph.launch(&stream)?))?;
            Ok(replay / counted as f64)
        };
        (0..pair.blocks)
            .map(|_| Ok([time(&a)?, time(&b)?, time(&b)?, time(&a)?]))
            .collect::<warptile::Result<Vec<_>>>()
    };
    Ok(measure()?)
}
