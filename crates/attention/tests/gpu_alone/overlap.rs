//! Launches that overlap, captures of other people's, and lengths that are unchecked: right every time, or clamped, and
//! never harmful to the next launch.

use std::sync::Arc;

use half::bf16;
use warptile::driver::sys::{
    CU_STREAM_NON_BLOCKING, CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureMode,
};
use warptile::gpu::{Bindings, Prepared, Session};
use warptile::kernels::Family;
use warptile::plan::Choice;
use warptile::spec::{Backward, Call, Operand, Scoring, Slots};
use warptile::{ElementType, Error, Layout, Mask};
use warptile_driver::{Context, DeviceBuffer, Graph, PinnedBuffer, Stream};

use crate::{alone, families, gpu};

const ROUNDS: usize = 1000;

/// A problem with its inputs, and the bits of its output and lse as one launch by itself gives them.
struct Rig {
    call: Call,
    prepared: Prepared,
    q: DeviceBuffer<bf16>,
    k: DeviceBuffer<bf16>,
    v: DeviceBuffer<bf16>,
    expected: (Vec<bf16>, Vec<f32>),
}

/// Where results go. Thousands of them are read back, through pinned memory, which takes a fraction of the time.
struct Results {
    out: DeviceBuffer<bf16>,
    lse: DeviceBuffer<f32>,
    read: PinnedBuffer<bf16>,
}

impl Rig {
    fn new(call: Call) -> Self {
        let stream = Stream::new(gpu().context()).unwrap();
        let prepared = gpu().prepare(call.problem(), &Choice::Best).unwrap();
        let shape = prepared.plan().steps()[0].shape(&call).unwrap();
        assert!(
            shape.draws_tiles,
            "the planner's choice draws no tiles: {}",
            prepared.plan()
        );
        let data = |layout: &Layout, phase: f32| {
            let len = layout.required_len().unwrap();
            let values: Vec<bf16> = (0..len)
                .map(|i| bf16::from_f32(((i * 7919 % 104_729) as f32 * 0.37 + phase).sin()))
                .collect();
            DeviceBuffer::from_slice(&stream, &values).unwrap()
        };
        let mut rig = Rig {
            q: data(call.q(), 0.0),
            k: data(call.k(), 1.0),
            v: data(call.v(), 2.0),
            call,
            prepared,
            expected: Default::default(),
        };
        let mut results = rig.results(&stream);
        rig.launch(&stream, &mut results).unwrap();
        rig.expected = (results.out.to_vec().unwrap(), results.lse.to_vec().unwrap());
        let finite = |row: &bf16| row.is_finite();
        assert!(rig.expected.0.iter().filter(|x| finite(x)).count() * 2 > rig.expected.0.len());
        rig
    }

    /// One long and many short sequences, packed: tiles that a wrong counter would leave out.
    fn packed() -> Self {
        let lengths = [[64; 60].as_slice(), &[3072]].concat();
        let offsets: Vec<i32> = std::iter::once(0)
            .chain(lengths.iter().scan(0, |end, len| {
                *end += len;
                Some(*end)
            }))
            .collect();
        let tensor = Layout::packed(60 * 64 + 3072, 8, 128);
        Rig::new(
            Call::builder(&tensor, &tensor, &tensor, ElementType::Bf16)
                .packed(&offsets, &offsets)
                .build()
                .unwrap(),
        )
    }

    fn causal() -> Self {
        let tensor = Layout::bshd([4, 1024, 8, 128]);
        Rig::new(
            Call::builder(&tensor, &tensor, &tensor, ElementType::Bf16)
                .scoring(Scoring::new().mask(Mask::causal()))
                .build()
                .unwrap(),
        )
    }

    fn results(&self, stream: &Stream) -> Results {
        let out = self.call.out().required_len().unwrap();
        Results::new(stream, out, self.call.lse_len())
    }

    fn launch(&self, stream: &Stream, results: &mut Results) -> Result<(), Error> {
        let bindings = Bindings::new(
            self.q.as_slice(),
            self.k.as_slice(),
            self.v.as_slice(),
            results.out.as_slice_mut(),
        )
        .output(Operand::Lse, results.lse.as_slice_mut());
        self.prepared.launch(stream, &self.call, &bindings)
    }

    fn capture(&self, stream: &Stream, results: &mut Results) -> Graph {
        Graph::capture::<Error>(stream, |stream| self.launch(stream, results)).unwrap()
    }

    #[track_caller]
    fn check(&self, results: &mut Results, what: &str) {
        results.out.copy_to_slice(&mut results.read).unwrap();
        let same = bytemuck::cast_slice::<bf16, u8>(&results.read)
            == bytemuck::cast_slice::<bf16, u8>(&self.expected.0)
            && results.lse.to_vec().unwrap() == self.expected.1;
        assert!(same, "{what}");
    }
}

impl Results {
    fn new(stream: &Stream, out: usize, lse: usize) -> Self {
        Results {
            out: DeviceBuffer::filled(stream, out, 0xFF).unwrap(),
            lse: DeviceBuffer::filled(stream, lse, 0xFF).unwrap(),
            read: PinnedBuffer::zeroed(stream.context(), out).unwrap(),
        }
    }

    fn poison(&mut self) {
        self.out.as_slice_mut().fill_bytes(0xFF).unwrap();
        self.lse.as_slice_mut().fill_bytes(0xFF).unwrap();
    }
}

fn streams<const N: usize>() -> [Stream; N] {
    std::array::from_fn(|_| Stream::new(gpu().context()).unwrap())
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn two_graphs_of_one_prepared_problem_on_two_streams() {
    let _alone = alone();
    for rig in [Rig::packed(), Rig::causal()] {
        let [one, other] = streams();
        let mut results = [rig.results(&one), rig.results(&other)];
        let graphs = [
            rig.capture(&one, &mut results[0]),
            rig.capture(&one, &mut results[1]),
        ];
        for round in 0..ROUNDS {
            results.iter_mut().for_each(Results::poison);
            graphs[0].launch(&one).unwrap();
            graphs[1].launch(&other).unwrap();
            for result in &mut results {
                rig.check(result, &format!("{}, round {round}", rig.call));
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_graph_beside_direct_launches() {
    let _alone = alone();
    for rig in [Rig::packed(), Rig::causal()] {
        let [one, other] = streams();
        let mut results = [rig.results(&one), rig.results(&other)];
        let graph = rig.capture(&one, &mut results[0]);
        for round in 0..ROUNDS {
            results.iter_mut().for_each(Results::poison);
            graph.launch(&one).unwrap();
            rig.launch(&other, &mut results[1]).unwrap();
            for result in &mut results {
                rig.check(result, &format!("{}, round {round}", rig.call));
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn two_streams_forked_in_one_capture() {
    let _alone = alone();
    for rig in [Rig::packed(), Rig::causal()] {
        let [one, fork] = streams();
        let mut results = [rig.results(&one), rig.results(&one)];
        let [here, there] = &mut results;
        let graph = Graph::capture::<Error>(&one, |stream| {
            fork.wait_for(stream)?;
            rig.launch(stream, here)?;
            rig.launch(&fork, there)?;
            Ok(stream.wait_for(&fork)?)
        })
        .unwrap();
        for round in 0..ROUNDS {
            results.iter_mut().for_each(Results::poison);
            graph.launch(&one).unwrap();
            for result in &mut results {
                rig.check(result, &format!("{}, round {round}", rig.call));
            }
        }
    }
}

/// A stream and graph made through the driver's functions alone, as another library would.
struct Foreign {
    context: Context,
    raw: CUstream,
}

impl Foreign {
    fn new() -> Arc<Self> {
        let context = gpu().context().clone();
        let mut raw = CUstream::NULL;
        {
            let _current = context.enter().unwrap();
            let create = context.driver().api().stream_create_with_priority;
            // SAFETY: `raw` outlives the call.
            let code = unsafe { create(&mut raw, CU_STREAM_NON_BLOCKING, 0) };
            assert_eq!(code, CUresult::SUCCESS);
        }
        Arc::new(Foreign { context, raw })
    }

    fn borrowed(self: &Arc<Self>) -> Stream {
        // SAFETY: the owner keeps the stream, which is never destroyed.
        unsafe { Stream::borrow(&self.context, self.raw, self.clone()) }.unwrap()
    }

    fn capture(&self, mode: CUstreamCaptureMode, launch: impl FnOnce()) -> CUgraphExec {
        let _current = self.context.enter().unwrap();
        let api = self.context.driver().api();
        let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
        // SAFETY: the stream is alive, and all results outlive the calls.
        unsafe {
            assert_eq!(
                (api.stream_begin_capture)(self.raw, mode),
                CUresult::SUCCESS
            );
            launch();
            assert_eq!(
                (api.stream_end_capture)(self.raw, &mut graph),
                CUresult::SUCCESS
            );
            assert_eq!(
                (api.graph_instantiate_with_flags)(&mut exec, graph, 0),
                CUresult::SUCCESS
            );
        }
        exec
    }

    fn replay(&self, exec: CUgraphExec) {
        let _current = self.context.enter().unwrap();
        // SAFETY: both are alive; what the graph uses is kept by the tests.
        let code = unsafe { (self.context.driver().api().graph_launch)(exec, self.raw) };
        assert_eq!(code, CUresult::SUCCESS);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_foreign_capture_replays_after_all_of_ours_is_gone() {
    let _alone = alone();
    for mode in [
        CUstreamCaptureMode::GLOBAL,
        CUstreamCaptureMode::THREAD_LOCAL,
        CUstreamCaptureMode::RELAXED,
    ] {
        let rig = Rig::packed();
        let foreign = Foreign::new();
        let stream = foreign.borrowed();
        let mut results = rig.results(&stream);
        stream.synchronize().unwrap();
        // A `Gpu` of its own: what it prepared, its offsets and workspaces are dropped before the replays.
        let exec = {
            let gpu = warptile::gpu::Gpu::on_stream(&stream).unwrap();
            let prepared = gpu.prepare(rig.call.problem(), &Choice::Best).unwrap();
            foreign.capture(mode, || {
                let bindings = Bindings::new(
                    rig.q.as_slice(),
                    rig.k.as_slice(),
                    rig.v.as_slice(),
                    results.out.as_slice_mut(),
                )
                .output(Operand::Lse, results.lse.as_slice_mut());
                prepared.launch(&stream, &rig.call, &bindings).unwrap();
            })
        };
        for round in 0..100 {
            results.poison();
            foreign.replay(exec);
            stream.synchronize().unwrap();
            rig.check(&mut results, &format!("{mode:?}, replay {round}"));
        }
    }
}

/// Dense keys whose used lengths are on the device, launched through the raw layer.
struct Device {
    call: Call,
    prepared: Prepared,
    memory: [DeviceBuffer<bf16>; 3],
    lengths: DeviceBuffer<i32>,
    offsets: DeviceBuffer<i32>,
}

const BATCH: usize = 8;
const KEYS: usize = 512;
const QUERIES: usize = 1024;

impl Device {
    fn new(stream: &Stream, choice: &Choice) -> Self {
        let q = Layout::packed(QUERIES, 16, 128);
        let k = Layout::bshd([BATCH, KEYS, 16, 128]);
        let call = Call::builder(&q, &k, &k, ElementType::Bf16)
            .scoring(Scoring::new().mask(Mask::causal()))
            .device_query_offsets(BATCH, QUERIES)
            .device_key_lengths(BATCH)
            .build()
            .unwrap();
        let data = |layout: &Layout| {
            let len = layout.required_len().unwrap();
            let values: Vec<bf16> = (0..len)
                .map(|i| bf16::from_f32((i as f32 * 0.61).sin()))
                .collect();
            DeviceBuffer::from_slice(stream, &values).unwrap()
        };
        Device {
            prepared: gpu().prepare(call.problem(), choice).unwrap(),
            memory: [data(&q), data(&k), data(&k)],
            lengths: DeviceBuffer::from_slice(stream, &[KEYS as i32; BATCH]).unwrap(),
            offsets: DeviceBuffer::from_slice(stream, &Device::even()).unwrap(),
            call,
        }
    }

    fn even() -> [i32; BATCH + 1] {
        std::array::from_fn(|i| (i * QUERIES / BATCH) as i32)
    }

    /// Canaries on both sides of the output and the lse.
    const MARGIN: usize = 4096;

    fn results(&self, stream: &Stream) -> Results {
        let out = self.call.out().required_len().unwrap() + 2 * Self::MARGIN;
        Results::new(stream, out, self.call.lse_len() + 2 * Self::MARGIN)
    }

    fn launch(&self, session: &Session, results: &Results) {
        let [q, k, v] = [0, 1, 2].map(|i| self.memory[i].pointer());
        let at = Slots::from_fn(|operand| match operand {
            Operand::Q => q,
            Operand::K => k,
            Operand::V => v,
            Operand::Out => results.out.pointer() + 2 * Self::MARGIN as u64,
            Operand::Lse => results.lse.pointer() + 4 * Self::MARGIN as u64,
            Operand::QueryOffsets => self.offsets.pointer(),
            Operand::KeyLengths => self.lengths.pointer(),
            _ => 0,
        });
        let _current = gpu().context().enter().unwrap();
        // SAFETY: all memory is alive and as large as the call says; the session is used on one stream.
        unsafe { session.launch(&self.prepared, &self.call, &at) }.unwrap();
    }

    fn read(&self, results: &Results) -> (Vec<bf16>, Vec<f32>) {
        let (out, lse) = (results.out.to_vec().unwrap(), results.lse.to_vec().unwrap());
        let (margin, canary) = (Self::MARGIN, bf16::from_bits(0xFFFF).to_bits());
        let clean = |x: &[bf16]| x.iter().all(|x| x.to_bits() == canary);
        assert!(
            clean(&out[..margin]) && clean(&out[out.len() - margin..]),
            "out was left"
        );
        let clean = |x: &[f32]| x.iter().all(|x| x.to_bits() == u32::MAX);
        assert!(
            clean(&lse[..margin]) && clean(&lse[lse.len() - margin..]),
            "lse was left"
        );
        (
            out[margin..out.len() - margin].to_vec(),
            lse[margin..lse.len() - margin].to_vec(),
        )
    }

    /// With lengths that are right again, the next launch is right.
    #[track_caller]
    fn check_next(
        &mut self,
        session: &Session,
        results: &mut Results,
        expected: &(Vec<bf16>, Vec<f32>),
        what: &str,
    ) {
        self.offsets.copy_from_slice(&Device::even()).unwrap();
        self.lengths.copy_from_slice(&[KEYS as i32; BATCH]).unwrap();
        results.poison();
        self.launch(session, results);
        let again = self.read(results);
        let bits = |out| bytemuck::cast_slice::<bf16, u16>(out);
        assert_eq!(bits(&again.0), bits(&expected.0), "{what}");
        assert_eq!(again.1, expected.1, "{what}");
    }
}

fn choices() -> Vec<Choice> {
    { families(ElementType::Bf16).into_iter() }
        .map(Choice::Family)
        .collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn lengths_out_of_bounds_on_the_device_are_clamped() {
    let _alone = alone();
    let hostile: [[i32; BATCH + 1]; 6] = [
        [i32::MIN; BATCH + 1],
        [i32::MAX; BATCH + 1],
        [0, 2000, -5, 1 << 30, 7, 7, 900, 100, i32::MAX],
        [1024, 0, 1024, 0, 1024, 0, 1024, 0, 1024],
        [0, -1, -1, -1, -1, -1, -1, -1, 1024],
        [5, 5, 5, 5, 5, 5, 5, 5, 5],
    ];
    for choice in choices() {
        let [stream] = streams();
        let mut device = Device::new(&stream, &choice);
        let session = Session::new(gpu(), stream.raw()).unwrap();
        let mut results = device.results(&stream);
        device.launch(&session, &results);
        let expected = device.read(&results);
        for offsets in &hostile {
            for lengths in &hostile {
                device.offsets.copy_from_slice(offsets).unwrap();
                device.lengths.copy_from_slice(&lengths[..BATCH]).unwrap();
                device.launch(&session, &results);
                stream.synchronize().unwrap();
                device.read(&results);
                let what = format!("{choice} {offsets:?} {lengths:?}");
                device.check_next(&session, &mut results, &expected, &what);
            }
        }
    }
}

/// Another stream writes the lengths while launches read them: numbers may be wrong, the next launch is right.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn lengths_that_change_during_a_launch_harm_nobody() {
    let _alone = alone();
    for choice in choices() {
        let [stream, writer] = streams();
        let mut device = Device::new(&stream, &choice);
        let session = Session::new(gpu(), stream.raw()).unwrap();
        let mut results = device.results(&stream);
        device.launch(&session, &results);
        let expected = device.read(&results);
        let (lengths, offsets) = (device.lengths.pointer(), device.offsets.pointer());
        for round in 0..ROUNDS {
            // A fill sets every byte: lengths and offsets of 0, of -1, and of 0x40404040.
            for byte in [0, 0xFF, 0x40] {
                let fill = gpu().context().driver().api().memset_d8_async;
                let _current = gpu().context().enter().unwrap();
                // SAFETY: both are live and as long; that launches read them meanwhile is the point of the test.
                unsafe {
                    assert_eq!(
                        fill(lengths, byte, 4 * BATCH, writer.raw()),
                        CUresult::SUCCESS
                    );
                    assert_eq!(
                        fill(offsets, byte, 4 * BATCH, writer.raw()),
                        CUresult::SUCCESS
                    );
                }
            }
            device.launch(&session, &results);
            if round % 50 == 49 {
                writer.synchronize().unwrap();
                stream.synchronize().unwrap();
                device.read(&results);
                let what = format!("{choice}, round {round}");
                device.check_next(&session, &mut results, &expected, &what);
            }
        }
    }
}

/// A backward pass of packed queries and keys whose offsets are on the device, launched through the raw layer.
struct Gradients {
    backward: Backward,
    prepared: Prepared<Backward>,
    inputs: Slots<Option<DeviceBuffer<bf16>>>,
    lse: DeviceBuffer<f32>,
    query_offsets: DeviceBuffer<i32>,
    key_offsets: DeviceBuffer<i32>,
}

impl Gradients {
    const INPUTS: [Operand; 5] = [
        Operand::Q,
        Operand::K,
        Operand::V,
        Operand::Out,
        Operand::DOut,
    ];
    const RESULTS: [Operand; 3] = [Operand::DQ, Operand::DK, Operand::DV];

    fn new(stream: &Stream, choice: &Choice) -> Self {
        let tensor = Layout::packed(QUERIES, 4, 128);
        let call = Call::builder(&tensor, &tensor, &tensor, ElementType::Bf16)
            .scoring(Scoring::new().mask(Mask::causal()))
            .device_query_offsets(BATCH, QUERIES)
            .device_key_offsets(BATCH, QUERIES)
            .build()
            .unwrap();
        let backward = Backward::builder(call).build().unwrap();
        let mut inputs = Slots::none();
        for (index, operand) in Self::INPUTS.into_iter().enumerate() {
            let values: Vec<bf16> = (0..tensor.required_len().unwrap())
                .map(|i| bf16::from_f32((i as f32 * 0.61 + index as f32).sin()))
                .collect();
            inputs[operand] = Some(DeviceBuffer::from_slice(stream, &values).unwrap());
        }
        let lse = vec![6.0_f32; backward.call().lse_len()];
        Gradients {
            prepared: gpu().prepare_for(&backward, choice).unwrap(),
            inputs,
            lse: DeviceBuffer::from_slice(stream, &lse).unwrap(),
            query_offsets: DeviceBuffer::from_slice(stream, &Device::even()).unwrap(),
            key_offsets: DeviceBuffer::from_slice(stream, &Device::even()).unwrap(),
            backward,
        }
    }

    /// Poisoned, with canaries on both sides.
    fn results(&self, stream: &Stream) -> [DeviceBuffer<bf16>; 3] {
        let elements = self.backward.call().q().required_len().unwrap() + 2 * Device::MARGIN;
        Self::RESULTS.map(|_| DeviceBuffer::filled(stream, elements, 0xFF).unwrap())
    }

    fn launch(&self, session: &Session, results: &[DeviceBuffer<bf16>; 3]) {
        let mut at = Slots::from_fn(|operand| match operand {
            Operand::Lse => self.lse.pointer(),
            Operand::QueryOffsets => self.query_offsets.pointer(),
            Operand::KeyOffsets => self.key_offsets.pointer(),
            _ => self.inputs[operand]
                .as_ref()
                .map_or(0, DeviceBuffer::pointer),
        });
        for (operand, result) in Self::RESULTS.into_iter().zip(results) {
            at[operand] = result.pointer() + 2 * Device::MARGIN as u64;
        }
        let _current = gpu().context().enter().unwrap();
        // SAFETY: all memory is alive and as large as the description says; the session is used on one stream.
        unsafe { session.launch(&self.prepared, &self.backward, &at) }.unwrap();
    }

    /// The bits between the canaries, which are whole.
    fn read(results: &[DeviceBuffer<bf16>; 3]) -> [Vec<u16>; 3] {
        [0, 1, 2].map(|index| {
            let found = results[index].to_vec().unwrap();
            let bits: Vec<u16> = found.iter().map(|x| x.to_bits()).collect();
            let (before, rest) = bits.split_at(Device::MARGIN);
            let (bits, behind) = rest.split_at(rest.len() - Device::MARGIN);
            let is_clean = |x: &[u16]| x.iter().all(|x| *x == 0xFFFF);
            assert!(is_clean(before) && is_clean(behind), "a gradient was left");
            bits.to_vec()
        })
    }

    /// With offsets that are right again, the next launch is right.
    #[track_caller]
    fn check_next(
        &mut self,
        session: &Session,
        stream: &Stream,
        expected: &[Vec<u16>; 3],
        what: &str,
    ) {
        self.query_offsets.copy_from_slice(&Device::even()).unwrap();
        self.key_offsets.copy_from_slice(&Device::even()).unwrap();
        let results = self.results(stream);
        self.launch(session, &results);
        assert!(Self::read(&results) == *expected, "{what}");
    }
}

/// In one pass, and by the pair.
fn backward_choices() -> [Choice; 2] {
    [Family::Dqkv, Family::Dkv].map(Choice::Family)
}

/// Tiles of keys that are nobody's, for which others would wait in vain: each such launch in one pass takes about two seconds.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn offsets_out_of_order_end_a_backward_pass() {
    let _alone = alone();
    let hostile: [[i32; BATCH + 1]; 4] = [
        [0, 2000, -5, 1 << 30, 7, 7, 900, 100, i32::MAX],
        [1024, 0, 1024, 0, 1024, 0, 1024, 0, 1024],
        [0, 1024, 0, 1024, 0, 1024, 0, 1024, 0],
        [5, 5, 5, 5, 5, 5, 5, 5, 5],
    ];
    for choice in backward_choices() {
        let [stream] = streams();
        let mut gradients = Gradients::new(&stream, &choice);
        let session = Session::new(gpu(), stream.raw()).unwrap();
        let results = gradients.results(&stream);
        gradients.launch(&session, &results);
        let expected = Gradients::read(&results);
        for queries in [Device::even()].iter().chain(&hostile) {
            for keys in &hostile {
                gradients.query_offsets.copy_from_slice(queries).unwrap();
                gradients.key_offsets.copy_from_slice(keys).unwrap();
                gradients.launch(&session, &results);
                Gradients::read(&results);
                let what = format!("{choice} {queries:?} {keys:?}");
                gradients.check_next(&session, &stream, &expected, &what);
            }
        }
    }
}

/// Another stream writes the offsets while launches read them: gradients may be wrong, the next launch is right.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn offsets_that_change_during_a_backward_pass_harm_nobody() {
    let _alone = alone();
    for choice in backward_choices() {
        let [stream, writer] = streams();
        let mut gradients = Gradients::new(&stream, &choice);
        let session = Session::new(gpu(), stream.raw()).unwrap();
        let results = gradients.results(&stream);
        gradients.launch(&session, &results);
        let expected = Gradients::read(&results);
        let lists = [
            gradients.query_offsets.pointer(),
            gradients.key_offsets.pointer(),
        ];
        for round in 0..5 {
            // A fill sets every byte: offsets of 0, of -1, and of 0x40404040.
            for byte in [0, 0xFF, 0x40] {
                gradients.launch(&session, &results);
                let fill = gpu().context().driver().api().memset_d8_async;
                let _current = gpu().context().enter().unwrap();
                for list in lists {
                    // SAFETY: the list is live and as long; that a launch reads it meanwhile is the point of the test.
                    let code = unsafe { fill(list, byte, 4 * BATCH, writer.raw()) };
                    assert_eq!(code, CUresult::SUCCESS);
                }
            }
            writer.synchronize().unwrap();
            stream.synchronize().unwrap();
            Gradients::read(&results);
            let what = format!("{choice}, round {round}");
            gradients.check_next(&session, &stream, &expected, &what);
        }
    }
}
