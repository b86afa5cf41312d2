//! Decoding from a cache whose pages are dealt to ranks on the CPU, against attention to all keys.

use warptile::{Attention, Backend, KvCache, Tensor};
use warptile_distributed::Group;

const PAGE_ROWS: usize = 4;
const HEADS: [usize; 2] = [4, 2];
const DIM: usize = 8;

fn data(len: usize, seed: f32) -> Vec<f32> {
    (0..len)
        .map(|i| ((i as f32 + seed) * 0.731).sin())
        .collect()
}

/// What a rank has of the keys and values: its pages of each sequence.
fn cache(
    backend: &Backend,
    [rank, ranks]: [usize; 2],
    sequences: &[[Vec<f32>; 2]],
) -> KvCache<f32> {
    let row = HEADS[1] * DIM;
    let mut cache = KvCache::builder(HEADS[1], DIM)
        .pages(64)
        .page_rows(PAGE_ROWS)
        .sequences(sequences.len())
        .build(backend)
        .unwrap();
    let (mut steps, mut rows) = (Vec::new(), [Vec::new(), Vec::new()]);
    for sequence in sequences {
        let is_mine = |at: &usize| at / PAGE_ROWS % ranks == rank;
        let mine: Vec<usize> = (0..sequence[0].len() / row).filter(is_mine).collect();
        for (rows, data) in rows.iter_mut().zip(sequence) {
            rows.extend(mine.iter().flat_map(|at| &data[at * row..][..row]));
        }
        steps.push((cache.allocate(), mine.len()));
    }
    cache.step(&steps).unwrap();
    let total = rows[0].len() / row;
    let [k, v] = rows.map(|rows| backend.tensor(&rows, [1, total, HEADS[1], DIM]).unwrap());
    cache.append(0, &k, &v).unwrap().run().unwrap();
    cache
}

#[test]
fn pages_of_all_ranks_are_one_cache() {
    let backend = Backend::cpu();
    for ranks in [2, 3, 5] {
        // Of the second some ranks have no row.
        let lengths = [37, 3, 20];
        let sequences: Vec<[Vec<f32>; 2]> = { lengths.iter() }
            .map(|len| [0.1, 0.2].map(|seed| data(len * HEADS[1] * DIM, seed + *len as f32)))
            .collect();
        let q = data(lengths.len() * HEADS[0] * DIM, 0.3);
        let q = backend
            .tensor(&q, [lengths.len(), 1, HEADS[0], DIM])
            .unwrap();
        let group = Group::local(vec![backend.clone(); ranks]).unwrap();
        let caches: Vec<_> = (0..ranks)
            .map(|rank| cache(&backend, [rank, ranks], &sequences))
            .collect();
        let attention = Attention::new().scale(0.4);
        let run = || {
            let parts = group.broadcast(&q).unwrap();
            let parts = parts.iter().zip(&caches);
            let parts: Vec<_> = { parts }
                .map(|(q, cache)| attention.forward(q, cache.keys(0).unwrap()).unwrap())
                .collect();
            let (out, lse) = group.merge(&parts).unwrap();
            (out.to_vec().unwrap(), lse.to_vec().unwrap())
        };
        let (out, lse) = run();
        assert_eq!(run(), (out.clone(), lse.clone()), "other bits");
        for (at, (data, len)) in sequences.iter().zip(lengths).enumerate() {
            let tensor = |data| backend.tensor(data, [1, len, HEADS[1], DIM]).unwrap();
            let (k, v): (Tensor<f32>, Tensor<f32>) = (tensor(&data[0]), tensor(&data[1]));
            let q = q.entries(at..at + 1).unwrap();
            let all = attention.forward(&q, (&k, &v)).unwrap();
            let (of_out, of_lse) = (HEADS[0] * DIM, HEADS[0]);
            let expected = [
                all.out.to_vec().unwrap(),
                all.lse.unwrap().to_vec().unwrap(),
            ];
            let found = [&out[at * of_out..][..of_out], &lse[at * of_lse..][..of_lse]];
            for (found, expected) in found.iter().zip(&expected) {
                for (found, expected) in found.iter().zip(expected) {
                    assert!(
                        (found - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
                        "{ranks} ranks, sequence {at}: {found}, not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn wrong_parts_name_their_rank() {
    let backend = Backend::cpu();
    let group = Group::local([backend.clone(), backend.clone()]).unwrap();
    let x = backend.tensor(&data(64, 0.0), [1, 4, 2, 8]).unwrap();
    let part = |attention: Attention| attention.forward(&x, (&x, &x)).unwrap();
    let text = |parts: &[_]| group.merge(parts).unwrap_err().to_string();
    assert_eq!(
        text(&[part(Attention::new())]),
        "rank 1: 1 parts for 2 ranks"
    );
    let parts = [part(Attention::new()), part(Attention::new().without_lse())];
    assert_eq!(
        text(&parts),
        "rank 1: its output has no lse: it must not be turned off"
    );
    let few = x.rows(0..3).unwrap();
    let few = Attention::new().forward(&few, (&x, &x)).unwrap();
    let error = text(&[part(Attention::new()), few]);
    assert!(error.starts_with("rank 0: parts[1]"), "{error}");
}
