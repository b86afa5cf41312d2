//! `bench --devices`: several devices against one.

use std::collections::VecDeque;
use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use serde::Serialize;
use warptile::spec::{
    Backward, Call, DropoutState, Heads, HostInputs, Numbers, Operand, Scoring, Types,
};
use warptile::{Backend, Diagonal, Element, Layout, Tensor, with_element};
use warptile_check::{Case, GradientExpectation, differences, parallel, reference};
use warptile_distributed::Group;
use warptile_driver::Event;

use super::data::Data;
use super::decoding::decodes;
use super::row::Samples;
use super::{BenchArgs, Effort, cases_of};
use crate::cases;
use crate::devices::{self, Dealt, SeveralArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::json;
use crate::machine::{self, Machine};
use crate::progress;
use crate::team::{OnTeam, Team, side_by_side};
use crate::tensors::{self, Settings};
use crate::text::say;

/// Calls that are submitted before the first of them has ended.
const AHEAD: usize = 4;

/// The least time of a sample on GPUs and on the CPU, in microseconds, and the fewest and most calls in it. The first call is submitted to
/// idle GPUs, which takes up to 0.7 ms: a long sample is one of calls behind each other.
const SAMPLE_US: [f64; 2] = [200_000.0, 20_000.0];
const CALLS: [f64; 2] = [5.0, 200.0];

/// A problem on several devices. Times are per call, of calls one behind the other.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    backend: &'static str,
    /// `peers` (GPUs of one process copy from each other), `nccl`, or `threads` (ranks on the CPU).
    engine: &'static str,
    ranks: usize,
    problem: String,
    pub(crate) scheme: String,
    pub(crate) sharding: String,
    /// Keys of all sequences.
    key_len: usize,
    direction: &'static str,
    /// One device's time: the mean of `each_us`.
    one_us: f64,
    /// The time of each device alone, in the order of ranks; a device with several ranks is measured once.
    each_us: Vec<f64>,
    samples: usize,
    pub(crate) median_us: f64,
    p90_us: f64,
    /// One device's time over that of all ranks times their number.
    pub(crate) efficiency: f64,
    /// As predicted from `one_us`; of outputs and gradients on GPUs.
    expected_us: Option<f64>,
    same_bits_again: bool,
    values_unlike_one_gpu: usize,
    largest_difference: f32,
    /// Root mean squares of the errors of some rows of the output, or of the gradient of the queries, over that of the float64 values.
    one_error: f64,
    error: f64,
    #[serde(flatten)]
    machine: Machine,
}

/// Runs the command.
pub(super) fn run(
    args: &BenchArgs,
    effort: Effort,
    console: &mut dyn Write,
) -> Result<(), Failure> {
    let cases = cases_of(args)?;
    let dealt = { cases.iter() }.map(|case| match decodes(case) {
        true => args.several.check_decoding(case).map(|()| None),
        false if args.lead > 0 => {
            let rule = "--lead is for one query for each sequence".to_owned();
            Err(of_problem(case, Failure::Input(rule)))
        }
        false => args.several.deal(case).map(Some),
    });
    let dealt: Vec<_> = dealt.collect::<Result<_, _>>()?;
    let Some(team) = args.several.open()? else {
        return Ok(());
    };
    interrupt::watch(&team.backends());
    let of_devices = OfDevices::new(&args.several, &team, effort);
    let bar = progress::problems(cases.len() as u64);
    let mut rows = Vec::new();
    let part =
        |rows: &[Row], at_the_end| json::write_part(&args.json, cases.len(), rows, at_the_end);
    for (case, dealt) in cases.iter().zip(&dealt) {
        let row = match dealt {
            Some(dealt) => of_devices.row(case, dealt),
            None => of_devices.decoding_row(case, args.lead),
        };
        let row = match row {
            Err(Failure::Interrupted(_)) => break,
            row => row?,
        };
        bar.suspend(|| row.print(console))?;
        rows.push(row);
        part(&rows, false)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    if interrupt::requested() {
        part(&rows, true)?;
        let kept = rows.len();
        return Err(Failure::Interrupted(format!(
            "cut short: {kept} of {} problems were measured before Ctrl-C",
            cases.len()
        )));
    }
    json::write(&args.json, &rows)
}

impl Row {
    pub(crate) fn print(&self, console: &mut dyn Write) -> std::io::Result<()> {
        let (ranks, engine) = (self.ranks, self.engine);
        say!(console, "problem  {}", self.problem)?;
        say!(
            console,
            "devices  {ranks} by {engine}, scheme {}, sharding {}",
            self.scheme,
            self.sharding
        )?;
        let expected = self.expected_us.map(|us| format!(", {us:.1} us predicted"));
        say!(
            console,
            "time     {:.1} us, {:.1} us on one device{}",
            self.median_us,
            self.one_us,
            expected.unwrap_or_default()
        )?;
        say!(
            console,
            "gain     {:.2}x of one device: efficiency {:.2}",
            self.efficiency * self.ranks as f64,
            self.efficiency
        )?;
        let again = match self.same_bits_again {
            true => "the same bits again",
            false => "other bits in a second call",
        };
        say!(
            console,
            "error    {:.2e}, {:.2e} on one device; {again}; {} values differ from one device's",
            self.error,
            self.one_error,
            self.values_unlike_one_gpu
        )
    }
}

/// Measurements on a group.
pub(crate) struct OfDevices<'a> {
    engine: &'static str,
    pub(super) team: &'a Team,
    /// Those of the ranks.
    pub(super) backends: Vec<Backend>,
    machine: Machine,
    effort: Effort,
}

impl<'a> OfDevices<'a> {
    pub(crate) fn new(several: &SeveralArgs, team: &'a Team, effort: Effort) -> Self {
        let backends = team.backends();
        OfDevices {
            engine: several.engine().unwrap_or_default(),
            team,
            machine: machine::describe(&backends[0]),
            backends,
            effort,
        }
    }

    /// Measures a problem.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] after Ctrl-C.
    pub(crate) fn row(&self, case: &Case, dealt: &Dealt) -> Result<Row, Failure> {
        with_element!(case.element, T => self.row_of::<T>(case, dealt))
            .map_err(|failure| of_problem(case, failure))
    }

    fn row_of<T: Element>(&self, case: &Case, dealt: &Dealt) -> Result<Row, Failure> {
        let (call, lists) = (case.try_call()?, case.lists());
        let data = Data::<T>::new(case, &call, &lists);
        let settings = Settings::of(&call);
        let shape = |rows: &Layout| [rows.heads(), rows.head_dim()];
        let shapes = [call.q(), call.k(), call.v()].map(shape);
        let of_out = shape(call.out());
        let elements = |[heads, size]: [usize; 2]| dealt.len * heads * size;
        let host = data.to_vecs().map(|mut host| {
            // Without the rows behind the last packed sequence.
            { host.iter_mut().zip(shapes) }.for_each(|(data, of)| data.truncate(elements(of)));
            host
        });
        let Some([q, k, v]) = &host else {
            return Err(Failure::Input(
                "keys and values are not of the queries' type".into(),
            ));
        };

        let mut d_out = Vec::new();
        if case.backward {
            d_out = data.d_out(&call).to_vec();
            d_out.truncate(elements(of_out));
        }
        let tensors = distinct(&self.backends).map(|backend| data.tensors(backend, &call));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        let (mut one, mut alone): (_, Vec<Alone<'_>>) = (Vec::new(), Vec::new());
        for (backend, tensors) in distinct(&self.backends).zip(&tensors) {
            let forward = tensors.forward(&settings, &data.numbers);
            match case.backward {
                false => {
                    let forward = forward.without_lse();
                    one = vec![forward.run()?.out];
                    alone.push(Box::new(move || Ok(forward.run().map(drop)?)));
                }
                true => {
                    let output = forward.run()?;
                    let d_out = data.d_out(&call).tensor(backend, *call.out())?;
                    let found = forward.gradients(&d_out, &output)?;
                    one = vec![found.dq, found.dk, found.dv];
                    let compute = move || Ok(forward.gradients(&d_out, &output).map(drop)?);
                    alone.push(Box::new(compute));
                }
            }
        }
        let one = { one.iter() }.map(|tensor| {
            let mut values = tensor.to_vec()?;
            // Without the rows behind the last packed sequence.
            values.truncate(dealt.len * tensor.shape()[2] * tensor.shape()[3]);
            Ok::<_, Failure>(values)
        });
        let one = behind_each_other(one)?;

        let mut attention = settings.attention(&data.numbers);
        if !case.backward {
            attention = attention.without_lse();
        }
        let rows = [(&q[..], shapes[0]), (k, shapes[1]), (v, shapes[2])];
        let problem = OnTeam::new(self.team, dealt, attention, rows)?;
        let mut before = None;
        if case.backward {
            let d_out = problem.split((&d_out, of_out))?;
            before = Some((d_out, problem.forward()?));
        }
        // A tensor of each result.
        let compute = |place: usize| match &before {
            None => Ok(vec![problem.forward_of(place)?.out]),
            Some((d_out, outputs)) => {
                let found = problem.backward_of(place, d_out, &outputs[place])?;
                Ok::<_, Failure>(vec![found.dq, found.dk, found.dv])
            }
        };
        let results = || self.team.each(|place, _| compute(place));
        let (results, again) = (results()?, results()?);
        self.team.synchronize()?;
        let same_bits_again = same_bits(
            results.iter().flatten().flatten(),
            again.iter().flatten().flatten(),
        )?;
        drop(again);
        let each = { 0..results[0].len() }
            .map(|at| problem.join(results.iter().map(|of_group| &of_group[at])));
        let several = behind_each_other(each)?;
        drop(results);
        let (each_us, samples) = self.in_turn(&alone, compute)?;
        drop(alone);

        let inputs = [&q[..], k, v, &d_out];
        let sampled = Sampled::new(case, &data.numbers, inputs);
        let errors = sampled.errors([&one, &several])?;
        let labels = Labels {
            scheme: dealt.by.to_string(),
            sharding: dealt.sharding(),
            key_len: dealt.len,
            direction: if case.backward { "backward" } else { "forward" },
        };
        let mut row = self.measured(
            case,
            labels,
            each_us,
            &samples,
            ([&one, &several], same_bits_again),
            errors,
        )?;
        if self.backends[0].is_gpu() {
            let expected = devices::expected(dealt.by, case, problem.map(), row.one_us)?;
            row.expected_us = Some(expected.us);
        }
        Ok(row)
    }

    /// The row of a problem: of the results of one device and of all, and whether these had the same bits again.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] after Ctrl-C.
    pub(super) fn measured<T: Element>(
        &self,
        case: &Case,
        labels: Labels,
        each_us: Vec<f64>,
        samples: &Samples,
        ([one, several], same_bits_again): ([&[T]; 2], bool),
        [one_error, error]: [f64; 2],
    ) -> Result<Row, Failure> {
        let one_us = each_us.iter().sum::<f64>() / each_us.len().max(1) as f64;
        let (values_unlike_one_gpu, largest_difference) = differences(one, several);
        // After Ctrl-C some are left out.
        if interrupt::requested() {
            return Err(Failure::Interrupted("values were not compared".into()));
        }
        let (ranks, median_us) = (self.backends.len(), samples.median());
        Ok(Row {
            backend: "warptile",
            engine: self.engine,
            ranks,
            problem: cases::without_seed(case),
            scheme: labels.scheme,
            sharding: labels.sharding,
            key_len: labels.key_len,
            direction: labels.direction,
            one_us,
            each_us,
            samples: samples.len(),
            median_us,
            p90_us: samples.p90(),
            efficiency: one_us / median_us / ranks as f64,
            expected_us: None,
            same_bits_again,
            values_unlike_one_gpu,
            largest_difference,
            one_error,
            error,
            machine: self.machine.clone(),
        })
    }

    /// Microseconds of a call on each device alone, and of each on all together, in turn. Alone all devices compute a call of their own at the
    /// same time: clocks fall as GPUs get warm, so a device that waited for the others would be faster afterwards. `compute` submits the call
    /// of the group at a place.
    pub(super) fn in_turn<R>(
        &self,
        alone: &[Alone<'_>],
        compute: impl Fn(usize) -> Result<R, Failure> + Sync,
    ) -> Result<(Vec<f64>, Samples), Failure> {
        let devices: Vec<_> = distinct(&self.backends).collect();
        let timed = |calls: usize, submit: &mut dyn FnMut() -> Result<(), Failure>| {
            let start = Instant::now();
            submit()?;
            Ok::<_, Failure>(start.elapsed().as_secs_f64() * 1e6 / calls as f64)
        };
        let each_alone = |calls: usize| {
            let one = |(device, call): (&Backend, &Alone<'_>)| {
                timed(calls, &mut || {
                    burst(std::slice::from_ref(device), calls, call)
                })
            };
            side_by_side(devices.iter().copied().zip(alone), one)
        };
        let all = |calls: usize| {
            let each =
                |place, group: &Group| burst(group.backends(), calls, || compute(place).map(drop));
            timed(calls, &mut || self.team.each(each).map(drop))
        };
        let [on_gpus, on_cpu] = SAMPLE_US;
        let sample_us = if self.backends[0].is_gpu() {
            on_gpus
        } else {
            on_cpu
        };
        let calls_of = |us: f64| (sample_us / us).ceil().clamp(CALLS[0], CALLS[1]) as usize;
        // Loads kernels, and touches the memory.
        self.effort.warm_up(|| each_alone(1).map(drop))?;
        self.effort.warm_up(|| all(1).map(drop))?;
        let calls = [
            calls_of(each_alone(2)?.into_iter().fold(0.0, f64::max)),
            calls_of(all(2)?),
        ];
        let mut each = vec![Vec::new(); devices.len()];
        let together = self.effort.times(2).spend(|| {
            { each.iter_mut().zip(each_alone(calls[0])?) }.for_each(|(times, us)| times.push(us));
            all(calls[1])
        })?;
        self.team.synchronize()?;
        let nothing = || Failure::Interrupted("nothing was measured".into());
        let samples = |times| {
            let samples = Samples::new(times).filter(|_| !interrupt::requested());
            samples.ok_or_else(nothing)
        };
        let each = { each.into_iter() }.map(|times| Ok::<_, Failure>(samples(times)?.median()));
        Ok((each.collect::<Result<_, _>>()?, samples(together)?))
    }
}

/// The elements of several results, one behind the other.
fn behind_each_other<T>(
    results: impl Iterator<Item = Result<Vec<T>, Failure>>,
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::new();
    for result in results {
        let mut result = result?;
        match all.is_empty() {
            true => all = result,
            false => all.append(&mut result),
        }
    }
    Ok(all)
}

/// Returns true if tensors have the same bits.
fn same_bits<'t, T: Element>(
    a: impl Iterator<Item = &'t Tensor<T>>,
    b: impl Iterator<Item = &'t Tensor<T>>,
) -> Result<bool, Failure> {
    for (a, b) in a.zip(b) {
        if bits(&a.to_vec()?) != bits(&b.to_vec()?) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn bits<T: Element>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// A call on one device.
pub(super) type Alone<'a> = Box<dyn Fn() -> Result<(), Failure> + Send + Sync + 'a>;

/// A failure that names the problem.
pub(super) fn of_problem(case: &Case, failure: Failure) -> Failure {
    match failure {
        Failure::Input(why) => {
            let problem = cases::without_seed(case);
            Failure::Input(format!("--devices: `{problem}`: {why}"))
        }
        other => other,
    }
}

/// Makes calls on idle devices, a few of them submitted ahead, and waits for all.
fn burst(
    backends: &[Backend],
    calls: usize,
    call: impl Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut ends = VecDeque::new();
    for _ in 0..calls {
        call()?;
        for gpu in backends.iter().filter_map(Backend::gpu) {
            let end = Event::new(gpu.context()).map_err(warptile::Error::from)?;
            gpu.stream().record(&end).map_err(warptile::Error::from)?;
            ends.push_back(end);
        }
        while ends.len() > AHEAD * backends.len() {
            let oldest = ends.pop_front().map_or(Ok(()), |end| end.synchronize());
            oldest.map_err(warptile::Error::from)?;
        }
    }
    Ok({ backends.iter() }.try_for_each(Backend::synchronize)?)
}

/// The backends of different devices.
pub(super) fn distinct(backends: &[Backend]) -> impl Iterator<Item = &Backend> {
    let ordinal = |backend: &Backend| Some(backend.gpu()?.context().device().ordinal());
    let is_first = move |at: &usize| {
        let before = backends[..*at].iter().map(ordinal);
        before
            .into_iter()
            .all(|other| other != ordinal(&backends[*at]))
    };
    (0..backends.len()).filter(is_first).map(|at| &backends[at])
}

/// What a row says of how a problem was computed.
pub(super) struct Labels {
    pub(super) scheme: String,
    pub(super) sharding: String,
    pub(super) key_len: usize,
    pub(super) direction: &'static str,
}

/// Some rows of an output or of the gradient of the queries, whose errors are measured.
pub(super) struct Sampled<'a, T> {
    case: &'a Case,
    /// Those of options have one for each head.
    numbers: &'a tensors::Numbers,
    /// q, k, v and the gradient of the output, which is empty for outputs: `[rows, heads, head size]`.
    inputs: [&'a [T]; 4],
}

/// With slopes the reference of a row has the queries behind it as well, where the mask does not end at its own key: then only the last
/// rows of a sequence are compared.
const MOST_BEHIND: usize = 256;

impl<'a, T: Element> Sampled<'a, T> {
    pub(super) fn new(case: &'a Case, numbers: &'a tensors::Numbers, inputs: [&'a [T]; 4]) -> Self {
        Sampled {
            case,
            numbers,
            inputs,
        }
    }

    /// The root mean square of the errors of each result, over that of the float64 values; 0 without rows.
    fn errors(&self, found: [&[T]; 2]) -> Result<[f64; 2], Failure> {
        let lengths = self.case.used_lengths();
        self.errors_of(
            lengths.iter().map(|rows| rows.0).sum(),
            found,
            |row, head| {
                // The first row and the rows of its sequence.
                let (mut start, mut rows, mut sequence) = (0, 0, 0);
                for (at, (length, _)) in lengths.iter().enumerate() {
                    (start, rows, sequence) = (start + rows, *length, at);
                    if row < start + rows {
                        break;
                    }
                }
                let mut query = row - start;
                if self.case.scoring.alibi.is_some() && self.case.scoring.mask.right != Some(0) {
                    query = query.max(rows.saturating_sub(MOST_BEHIND));
                }
                if self.case.scoring.dropout.is_some() {
                    query -= query % DropoutState::ALIGNMENT as usize;
                }
                Ok((
                    start + query,
                    self.expected([start, rows, sequence], query, head)?,
                ))
            },
        )
    }

    /// [`errors`](Self::errors) of some of `len` rows, in the first and the last head; `expected` gives the row that is computed for one,
    /// and its values.
    pub(super) fn errors_of(
        &self,
        len: usize,
        found: [&[T]; 2],
        expected: impl Fn(usize, usize) -> Result<(usize, Vec<f64>), Failure> + Sync,
    ) -> Result<[f64; 2], Failure> {
        const ROWS: usize = 16;
        let query_heads = self.case.heads.query;
        let count = ROWS.min(len);
        let rows = (0..count).map(|at| (len - 1) * at / (count - 1).max(1));
        let places: Vec<_> = rows
            .flat_map(|row| [(row, 0), (row, query_heads - 1)])
            .collect();
        let expected = |&(row, head): &(usize, usize)| {
            let (row, expected) = expected(row, head)?;
            Ok::<_, Failure>((row * query_heads + head, expected))
        };
        let mut rows_of: Vec<_> = places.iter().map(|_| None).collect();
        let items = places.iter().zip(&mut rows_of);
        parallel::for_each(items, f64::INFINITY, |(place, to)| {
            *to = Some(expected(place));
        });
        // After Ctrl-C some are left out.
        let interrupted = || Failure::Interrupted("errors were not measured".into());
        let expected = rows_of.into_iter().map(|row| row.ok_or_else(interrupted)?);
        let expected = expected.collect::<Result<Vec<_>, _>>()?;
        Ok(found.map(|found| {
            let (mut wrong, mut right) = (0.0, 0.0);
            for (at, expected) in &expected {
                let found = &found[at * expected.len()..][..expected.len()];
                for (found, expected) in found.iter().zip(expected) {
                    wrong += (found.to_f64() - expected).powi(2);
                    right += expected.powi(2);
                }
            }
            if right > 0.0 {
                (wrong / right).sqrt()
            } else {
                0.0
            }
        }))
    }

    /// A row of a head, of a sequence of `rows` rows from row `start` on: the first query of a call.
    fn expected(
        &self,
        [start, rows, sequence]: [usize; 3],
        row: usize,
        head: usize,
    ) -> Result<Vec<f64>, Failure> {
        let mut scoring = self.case.scoring;
        let diagonal = scoring.mask.diagonal.offset(rows, rows) + row as i128;
        let is_last = diagonal == row as i128 && scoring.mask.right == Some(0);
        let keys = if is_last { row + 1 } else { rows };
        // Distances of ALiBi run by the last query and the last key.
        let queries = scoring.alibi.map_or(1, |_| keys - row);
        let diagonal = i32::try_from(diagonal)
            .map_err(|_| Failure::Input("the mask's diagonal is too far away".into()))?;
        scoring.mask = scoring.mask.diagonal(Diagonal::At(diagonal));
        self.expected_of(
            scoring,
            start + row..start + row + queries,
            start..start + keys,
            [sequence, head, row],
        )
    }

    /// A row of a head: the first of some of all queries, with some of all keys.
    pub(super) fn expected_of(
        &self,
        scoring: Scoring,
        queries: Range<usize>,
        keys: Range<usize>,
        [sequence, head, row]: [usize; 3],
    ) -> Result<Vec<f64>, Failure> {
        let heads = self.case.heads;
        let Heads {
            query, key_value, ..
        } = heads;
        let [dim, of_values] = heads.dims();
        let kv_head = head * key_value / query;
        let of = |data: &[T], heads: usize, dim: usize, rows: Range<usize>, head: usize| {
            let row = |row: usize| &data[(row * heads + head) * dim..][..dim];
            rows.flat_map(row).copied().collect::<Vec<T>>()
        };
        let [q, k, v, d_out] = self.inputs;
        let q = of(q, query, dim, queries.clone(), head);
        let k = of(k, key_value, dim, keys.clone(), kv_head);
        let v = of(v, key_value, of_values, keys.clone(), kv_head);
        let shapes = [
            (queries.len(), dim),
            (keys.len(), dim),
            (keys.len(), of_values),
        ];
        let [lq, lk, lv] = shapes.map(|(rows, dim)| Layout::bshd([1, rows, 1, dim]));
        let scoring = scoring.scale(self.case.scoring.scale_of(dim));
        let mut builder = Call::builder(&lq, &lk, &lv, Types::of(T::TYPE)).scoring(scoring);
        let words = self.numbers.lists[Operand::DropoutState].as_deref();
        let words = words.and_then(|words| words.try_into().ok());
        let state = words.map(DropoutState::from_words).map(|state| {
            let [sequence, head, query] = [sequence, head, row].map(|number| number as u32);
            let state = DropoutState {
                sequence: state.sequence + sequence,
                head: state.head + head,
                query: state.query + query,
                ..state
            };
            state.words()
        });
        if let Some(words) = &state {
            builder = builder.numbers(Operand::DropoutState, Numbers::Host(words));
        }
        let mut inputs = HostInputs::new(&q, &k, &v);
        for (operand, numbers) in self.numbers.floats.given() {
            builder = builder.count(operand, 1);
            inputs.set(operand, &numbers[head..=head]);
        }
        let call = builder.build()?;
        let forward = reference(&call, &inputs)?;
        if d_out.is_empty() {
            return Ok(forward.out[..of_values].to_vec());
        }
        let out: Vec<T> = forward.out.iter().map(|&x| T::from_f64(x)).collect();
        let lse: Vec<f32> = forward.lse.iter().map(|&x| x as f32).collect();
        let d_out = of(d_out, query, of_values, queries, head);
        inputs.set(Operand::Out, &out);
        inputs.set(Operand::Lse, &lse);
        inputs.set(Operand::DOut, &d_out);
        let builder = Operand::GRADIENTS.into_iter();
        let builder = builder.fold(Backward::builder(call), |builder, gradient| {
            builder.want(gradient, gradient == Operand::DQ)
        });
        let expected = GradientExpectation::new(&builder.build()?, &inputs)?;
        Ok(expected.gradient(Operand::DQ)[..dim].to_vec())
    }
}
