//! Keys and values in pages give the same results as dense ones and do not depend on the memory around them.

use half::f16;
use quickcheck::{QuickCheck, TestResult};
use warptile::spec::TableLayout;
use warptile::{Attention, Backend, ElementType, Keys, Layout, Lse, Mask, Queries, Tensor};
use warptile_check::{Case, Used};

use crate::common::{Any, run, verify, verify_text};

#[test]
fn pages_of_any_size_match_the_reference() {
    fn right(case: Any, rows: u8) -> TestResult {
        let case = Case {
            pages: Some(1 + usize::from(rows)),
            ..case.0
        };
        match verify(&case) {
            Ok(_) => TestResult::passed(),
            Err(failure) => TestResult::error(format!("{case}: {failure}")),
        }
    }
    QuickCheck::new()
        .tests(100)
        .quickcheck(right as fn(Any, u8) -> TestResult);
}

/// Where a key lies has no say in how it is computed with.
#[test]
fn pages_give_the_bits_of_dense_keys() {
    fn same(case: Any, rows: u8) -> TestResult {
        let mut dense = Case {
            pages: None,
            element: ElementType::F16,
            ..case.0
        };
        if dense.used == Used::Ragged {
            dense.used = Used::Each(dense.used_lengths());
        }
        let paged = Case {
            pages: Some(1 + usize::from(rows)),
            ..dense.clone()
        };
        let bits = |case: &Case| {
            let (_, result) = run::<f16>(case);
            let out: Vec<u16> = result.out.iter().map(|x| x.to_bits()).collect();
            let lse: Vec<u32> = result.lse.iter().map(|x| x.to_bits()).collect();
            (out, lse)
        };
        TestResult::from_bool(bits(&dense) == bits(&paged))
    }
    QuickCheck::new()
        .tests(60)
        .quickcheck(same as fn(Any, u8) -> TestResult);
}

#[test]
fn lengths_and_windows_at_the_edges_of_pages_and_tiles() {
    for rows in [1, 16, 255, 256] {
        for mask in ["none", "causal", "window,100,0", "window,0,3"] {
            verify_text(&format!(
                "b8 q3 k1000 h4/2 d32 f32 mask={mask} sinks pages={rows} lengths=0,1,15,16,17,256,257,1000 seed=9"
            ));
        }
    }
}

#[test]
fn sequences_may_share_pages() {
    let cache = Cache::new();
    let (k, v) = (cache.side(0), cache.side(1));
    let q = cache.q.entries(0..1).unwrap();
    let out = |q: &Tensor<f32>, keys: Keys<'_, f32>| {
        let output = Attention::new().forward(q, keys).unwrap();
        output.out.to_vec().unwrap()
    };
    let alone = out(&q, Keys::paged(&k, &v, &[4, 1], [1, 2]).lengths(&[6]));
    let twice = q.to_vec().unwrap().repeat(2);
    let twice = cache.backend.tensor(&twice, [2, 1, 2, 8]).unwrap();
    for (table, layout) in [
        (&[4, 1, 4, 1][..], TableLayout::from([2, 2])),
        (&[4, 1], TableLayout::new([2, 2], 0)),
    ] {
        let keys = Keys::paged(&k, &v, table, layout).lengths(&[6, 6]);
        assert_eq!(out(&twice, keys), alone.repeat(2));
    }
}

/// A cache of 6 pages of 4 rows with NaN in every row that holds no key, and the same keys and values dense.
struct Cache {
    backend: Backend,
    q: Tensor<f32>,
    /// `[page, 2, row, head, head size]`: keys, then values.
    pages: Tensor<f32>,
    dense: [Tensor<f32>; 2],
}

const LENGTHS: [i32; 2] = [6, 1];
const TABLE: [u32; 6] = [4, 1, 99, 3, u32::MAX, 99];
const ROW: usize = 2 * 8;

impl Cache {
    fn new() -> Self {
        let backend = Backend::cpu();
        let value = |i: usize| (i as f32 * 0.61).sin();
        let mut pages = vec![f32::NAN; 6 * 2 * 4 * ROW];
        let mut dense = [vec![0.0; 2 * 6 * ROW], vec![0.0; 2 * 6 * ROW]];
        for (sequence, &len) in LENGTHS.iter().enumerate() {
            for key in 0..len as usize {
                let page = TABLE[3 * sequence + key / 4] as usize;
                for (side, dense) in dense.iter_mut().enumerate() {
                    let from = ((page * 2 + side) * 4 + key % 4) * ROW;
                    let to = (sequence * 6 + key) * ROW;
                    for i in 0..ROW {
                        dense[to + i] = value(to + i + 1000 * side);
                        pages[from + i] = dense[to + i];
                    }
                }
            }
        }
        let queries: Vec<f32> = (0..2 * ROW).map(value).collect();
        Cache {
            q: backend.tensor(&queries, [2, 1, 2, 8]).unwrap(),
            pages: backend.tensor(&pages, [12, 4, 2, 8]).unwrap(),
            dense: dense.map(|data| backend.tensor(&data, [2, 6, 2, 8]).unwrap()),
            backend,
        }
    }

    /// Every other page: the keys, or the values after them.
    fn side(&self, first: usize) -> Tensor<f32> {
        let page = 4 * ROW;
        let layout = Layout::new([6, 4, 2, 8], [2 * page, ROW, 8, 1]);
        let from = self.pages.entries(first..12).unwrap();
        from.view_as(layout).unwrap()
    }
}

#[test]
fn one_tensor_of_keys_and_values_serves_every_call() {
    let cache = Cache::new();
    let (k, v) = (cache.side(0), cache.side(1));
    let attention = Attention::new().mask(Mask::causal()).sinks(&[0.5, -1.0]);
    let [dense_k, dense_v] = &cache.dense;
    let keys = || Keys::paged(&k, &v, &TABLE, [2, 3]).lengths(&LENGTHS);
    let expected = attention
        .forward(&cache.q, Keys::new(dense_k, dense_v).lengths(&LENGTHS))
        .unwrap();
    let output = attention.forward(&cache.q, keys()).unwrap();
    let lse = |lse: Option<Lse>| lse.unwrap().to_vec().unwrap();
    assert_eq!(output.out.to_vec().unwrap(), expected.out.to_vec().unwrap());
    assert_eq!(lse(output.lse), lse(expected.lse.clone()));

    let plan = attention.plan(&cache.q, keys()).unwrap();
    assert_eq!(plan.problem().page_rows(), Some(4));
    let mut out = cache.backend.tensor(&[0.0; 2 * ROW], [2, 1, 2, 8]).unwrap();
    let mut written = Lse::zeros(&cache.backend, [2, 1, 2, 8]).unwrap();
    attention
        .forward_into(&cache.q, keys(), &mut out, Some(&mut written))
        .unwrap();
    assert_eq!(out.to_vec().unwrap(), expected.out.to_vec().unwrap());

    // Packed queries, and a table of i32 with rows apart.
    let packed = cache.q.view_as(Layout::packed(2, 2, 8)).unwrap();
    let table = [4, 1, -7, 3, -7];
    let keys = Keys::paged(&k, &v, &table, TableLayout::new([2, 2], 3));
    let queries = Queries::new(&packed).packed(&[0, 1, 2]);
    let output = attention.forward(queries, keys.lengths(&LENGTHS)).unwrap();
    assert_eq!(output.out.to_vec().unwrap(), expected.out.to_vec().unwrap());
}

#[test]
fn a_bound_cuts_every_sequence_off() {
    let cache = Cache::new();
    let (k, v) = (cache.side(0), cache.side(1));
    let out = |keys: Keys<'_, f32>| {
        let output = Attention::new().forward(&cache.q, keys).unwrap();
        output.out.to_vec().unwrap()
    };
    let keys = || Keys::paged(&k, &v, &TABLE, [2, 3]);
    assert_eq!(
        out(keys().lengths(&LENGTHS).longest(2)),
        out(keys().lengths(&[2, 1]))
    );
}
