//! A cache whose pages are dealt to ranks, against one cache.

use warptile::cache::{KvCacheBuilder, SequenceId};
use warptile::{Attention, Element, KvCache, Mask};
use warptile_distributed::Group;

const PAGE_ROWS: usize = 4;
const HEADS: [usize; 2] = [4, 2];
const DIM: usize = 8;

pub(crate) fn data<T: Element>(len: usize, seed: f32) -> Vec<T> {
    (0..len)
        .map(|i| T::from_f32(((i as f32 + seed) * 0.731).sin()))
        .collect()
}

pub(crate) fn builder<T: Element>() -> KvCacheBuilder<T> {
    KvCache::builder(HEADS[1], DIM)
        .pages(64)
        .page_rows(PAGE_ROWS)
        .sequences(3)
}

/// Compares a dealt cache with one cache, in steps of prompts and of tokens; a sequence is freed between them. Outputs may differ by
/// `tolerance`.
pub(crate) fn a_dealt_cache_is_one_cache<T: Element>(group: &Group, tolerance: f32) {
    for lead in [0, 3] {
        with_lead::<T>(group, lead, tolerance);
    }
}

/// As [`a_dealt_cache_is_one_cache`], with some pages of each sequence that are rank 0's before the others are dealt.
fn with_lead<T: Element>(group: &Group, lead: usize, tolerance: f32) {
    let (ranks, backend) = (group.backends().len(), &group.backends()[0]);
    let rows = (lead + 1) * PAGE_ROWS - 1;
    let mut dealt = group.cache_with_lead(&builder::<T>(), rows).unwrap();
    let mut whole = builder::<T>().build(backend).unwrap();
    let mut ids = Vec::new();
    let attention = Attention::new().scale(0.4).mask(Mask::causal());
    for (at, rows) in [[37, 3, 1], [1, 1, 1], [1, 1, 1], [0, 6, 30], [1, 1, 1]]
        .into_iter()
        .enumerate()
    {
        if at == 3 {
            let (freed, of_whole): (SequenceId, SequenceId) = ids.remove(0);
            dealt.free(freed).unwrap();
            whole.free(of_whole).unwrap();
            assert!(dealt.len(freed).is_none() && dealt.free(freed).is_err());
        }
        while ids.len() < 3 {
            ids.push((dealt.allocate(), whole.allocate()));
        }
        let step = |of: fn(&(SequenceId, SequenceId)) -> SequenceId| {
            let steps = ids.iter().map(of).zip(rows);
            steps.collect::<Vec<_>>()
        };
        dealt.step(&step(|ids| ids.0)).unwrap();
        whole.step(&step(|ids| ids.1)).unwrap();
        let total = rows.iter().sum();
        let tensor = |heads: usize, seed: f32| {
            let data = data::<T>(total * heads * DIM, seed + at as f32);
            backend.tensor(&data, [1, total, heads, DIM]).unwrap()
        };
        let (k, v) = (tensor(HEADS[1], 0.1), tensor(HEADS[1], 0.2));
        dealt.append(0, &k, &v).unwrap();
        whole.append(0, &k, &v).unwrap().run().unwrap();
        for (id, of_whole) in &ids {
            assert_eq!(dealt.len(*id), Some(whole.len(*of_whole).unwrap()));
        }
        let q = data::<T>(3 * HEADS[0] * DIM, 0.3);
        let q = backend.tensor(&q, [3, 1, HEADS[0], DIM]).unwrap();
        if rows != [1, 1, 1] {
            assert!(dealt.attend(0, &attention, &q).is_err());
            continue;
        }
        let values = |out: Vec<T>| out.into_iter().map(Element::to_f32).collect::<Vec<_>>();
        let run = || {
            let (out, lse) = dealt.attend(0, &attention, &q).unwrap();
            [values(out.to_vec().unwrap()), lse.to_vec().unwrap()]
        };
        let found = run();
        assert_eq!(run(), found, "other bits");
        let expected = attention.forward(&q, whole.keys(0).unwrap()).unwrap();
        let lse = expected.lse.unwrap().to_vec().unwrap();
        let expected = [values(expected.out.to_vec().unwrap()), lse];
        for ((found, expected), tolerance) in found.iter().zip(&expected).zip([tolerance, 1e-5]) {
            for (found, expected) in found.iter().zip(expected) {
                assert!(
                    (found - expected).abs() <= tolerance * (1.0 + expected.abs()),
                    "{ranks} ranks, step {at}: {found}, not {expected}"
                );
            }
        }
    }
    // Of sequences of 6, 10 and 31 rows.
    let mut expected = vec![builder::<T>().build(backend).unwrap().free_pages(); ranks];
    for page in [2, 3, 8].into_iter().flat_map(|pages| 0..pages) {
        let owner = if page < lead {
            0
        } else {
            (page - lead) % ranks
        };
        expected[owner] -= 1;
    }
    let shares: Vec<_> = dealt.caches().iter().map(KvCache::free_pages).collect();
    assert_eq!(shares, expected);
}
