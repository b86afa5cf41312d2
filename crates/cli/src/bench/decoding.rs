//! `bench --devices` of a step of decoding: the pages of each sequence are dealt out to the devices.

use std::sync::{Mutex, PoisonError};

use warptile::spec::Operand;
use warptile::{Element, KvCache, Layout, Mask, Tensor, with_element};
use warptile_check::{Case, Lengths};
use warptile_distributed::ShardedCache;

use super::data::Data;
use super::devices::{Alone, Labels, OfDevices, Row, Sampled, bits, distinct, of_problem};
use crate::devices;
use crate::failure::Failure;
use crate::tensors::Settings;

/// Rows of a page.
const PAGE_ROWS: usize = 64;

/// Returns true if a problem is a step of decoding: each sequence has one query and more keys.
pub(crate) fn decodes(case: &Case) -> bool {
    matches!(case.lengths, Lengths::Dense { query: 1, key, .. } if key > 1) && !case.backward
}

/// Why the devices don't take a step of decoding, if they don't.
pub(crate) fn why_not(case: &Case) -> Option<String> {
    let mask = case.scoring.mask;
    if let Some(word) = devices::for_one_device(case) {
        return Some(format!("`{word}` is for one device"));
    }
    if !(mask.hides_nothing() || mask == Mask::causal()) {
        return Some("a mask that hides keys is for one device where keys are dealt out".into());
    }
    let of_heads = Operand::of_scores().find(|operand| case.scoring.has(*operand));
    let word = of_heads.and_then(Operand::word);
    let word = word.or(case.scoring.dropout.map(|_| "dropout"));
    word.map(|word| format!("`{word}` is for one device where keys are dealt out"))
}

impl OfDevices<'_> {
    /// Measures a step of decoding, where the first device has `lead` rows of each sequence before the others are dealt out.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] after Ctrl-C.
    pub(super) fn decoding_row(&self, case: &Case, lead: usize) -> Result<Row, Failure> {
        with_element!(case.element, T => self.decoding_row_of::<T>(case, lead))
            .map_err(|failure| of_problem(case, failure))
    }

    fn decoding_row_of<T: Element>(&self, case: &Case, lead: usize) -> Result<Row, Failure> {
        let (call, lists) = (case.try_call()?, case.lists());
        let data = Data::<T>::new(case, &call, &lists);
        let settings = Settings::of(&call);
        let tensors = distinct(&self.backends).map(|backend| data.tensors(backend, &call));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        let (mut one, mut alone): (_, Vec<Alone<'_>>) = (Vec::new(), Vec::new());
        for tensors in &tensors {
            let forward = tensors.forward(&settings, &data.numbers).without_lse();
            one = forward.run()?.out.to_vec()?;
            alone.push(Box::new(move || Ok(forward.run().map(drop)?)));
        }
        let attention = settings.attention(&data.numbers);
        let (batch, keys) = (call.q().shape[0], call.k().shape[1]);
        let of_sequence = keys.div_ceil(PAGE_ROWS);
        let first = of_sequence.min(lead / PAGE_ROWS);
        let pages = batch * (first + (of_sequence - first).div_ceil(self.backends.len()));
        let builder = KvCache::<T>::of_heads(call.heads());
        let builder = builder.page_rows(PAGE_ROWS).pages(pages).sequences(batch);
        // One cache for each group.
        let caches = self.team.caches(&builder, lead)?;
        let caches: Vec<_> = caches.into_iter().map(Mutex::new).collect();
        let queries = self.team.each(|place, group| {
            let tensors = data.tensors(&group.backends()[0], &call)?;
            let mut cache = lock(&caches[place]);
            let kv = tensors.kv.left();
            let [k, v] = kv.ok_or_else(|| Failure::Input("keys are of another type".into()))?;
            fill(&mut cache, [&k, &v])?;
            Ok(tensors.q)
        })?;
        let compute = |place: usize| {
            let attended = lock(&caches[place]).attend(0, &attention, &queries[place]);
            Ok::<_, Failure>(attended?.0)
        };
        let result = || {
            let results = self.team.each(|place, _| compute(place))?;
            self.team.synchronize()?;
            Ok::<_, Failure>(results[0].to_vec()?)
        };
        let (several, again) = (result()?, result()?);
        let (each_us, samples) = self.in_turn(&alone, compute)?;
        drop(alone);
        drop((queries, caches));

        let host = data.to_vecs();
        let [q, k, v] = host.ok_or_else(|| Failure::Input("keys are of another type".into()))?;
        let sampled = Sampled::new(case, &data.numbers, [&q, &k, &v, &[]]);
        let scoring = case.scoring.without("mask");
        let errors = sampled.errors_of(batch, [&one, &several], |sequence, head| {
            let of_sequence = sequence * keys..(sequence + 1) * keys;
            let at = [sequence, head, 0];
            Ok((
                sequence,
                sampled.expected_of(scoring, sequence..sequence + 1, of_sequence, at)?,
            ))
        })?;
        let labels = Labels {
            scheme: "cache".to_owned(),
            sharding: match first {
                0 => "pages".to_owned(),
                first => format!("pages after {first}"),
            },
            key_len: keys * batch,
            direction: "decode",
        };
        self.measured(
            case,
            labels,
            each_us,
            &samples,
            ([&one, &several], bits(&several) == bits(&again)),
            errors,
        )
    }
}

/// Gives each sequence its keys, and begins a step of one query each.
fn fill<T: Element>(cache: &mut ShardedCache<'_, T>, kv: [&Tensor<T>; 2]) -> Result<(), Failure> {
    let [batch, keys, ..] = kv[0].shape();
    let sequences: Vec<_> = (0..batch).map(|_| cache.allocate()).collect();
    for (entry, sequence) in sequences.iter().enumerate() {
        cache.step(&[(*sequence, keys - 1)])?;
        let rows = |of: &Tensor<T>| {
            let of = of.entries(entry..entry + 1)?;
            let [_, _, heads, dim] = of.shape();
            of.view_as(Layout::bshd([1, keys - 1, heads, dim]))
        };
        cache.append(0, &rows(kv[0])?, &rows(kv[1])?)?;
    }
    let step: Vec<_> = sequences.iter().map(|sequence| (*sequence, 1)).collect();
    cache.step(&step)?;
    let last = |of: &Tensor<T>| {
        let [_, _, heads, dim] = of.shape();
        let rows = (0..batch).map(|entry| {
            let row = of.entries(entry..entry + 1)?.rows(keys - 1..keys)?;
            row.to_vec()
        });
        let rows = rows.collect::<warptile::Result<Vec<_>>>()?.concat();
        of.backend().tensor(&rows, [batch, 1, heads, dim])
    };
    Ok(cache.append(0, &last(kv[0])?, &last(kv[1])?)?)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
