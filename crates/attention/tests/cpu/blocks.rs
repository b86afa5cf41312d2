//! Lists of blocks on the CPU path: what is computed, and what is refused.

use quickcheck::quickcheck;
use warptile::spec::{Call, Numbers, Operand, Scoring};
use warptile::{
    Attention, Backend, BlockList, BlockLists, ElementType, Keys, Layout, Mask, Tensor,
};
use warptile_check::Case;

use crate::common::verify;

#[test]
fn problems_with_blocks_match_the_reference() {
    for words in [
        "b2 q300 k500 h4/2 d64 bf16 mask=causal blocks=64x64,head",
        "b2 q200 k300 h2 d40 f16 blocks=128x128,batch softcap=2 sinks",
        "b1 q5 k700 h2 d64 bf16 blocks=64x128",
        "b3 q1 k900 h8/2 d128 f32 blocks=128x64,batch,head,3",
        "packed=100x300,0x3,9x40 h2 d32 f32 blocks=64x64,batch mask=window,120,3 dropout=0.2",
        "b2 q70 k150 h2 d32 f16 bias keymask alibi=head blocks=64x64,batch,head",
        "b2 q1 k400 h8/2 d128 bf16 cache=e4m3 pages=16 blocks=64x64,batch",
        "b2 q90 k300 h2 d8 f32 lengths=100,300 blocks=64x128,batch splits=512",
    ] {
        for seed in 0..8 {
            let case: Case = format!("{words} seed={seed}").parse().unwrap();
            verify(&case).unwrap_or_else(|failure| panic!("{case}: {failure}"));
        }
    }
}

fn random(backend: &Backend, rows: usize, seed: usize) -> Tensor<f32> {
    let number = |i: usize| ((i * 31 + seed) * 7919 % 1009) as f32 / 252.0 - 2.0;
    let data: Vec<f32> = (0..rows * 16).map(number).collect();
    backend.tensor(&data, [1, rows, 2, 8]).unwrap()
}

/// Output, lse, and the gradients of queries, keys and values.
fn attend(attention: &Attention, q: &Tensor<f32>, keys: Keys<'_, f32>) -> [Vec<f32>; 5] {
    let output = attention.forward(q, keys.clone()).unwrap();
    let gradients = attention.backward(&output.out, q, keys, &output).unwrap();
    let lse = output.lse.unwrap().to_vec().unwrap();
    let [out, dq, dk, dv] = [output.out, gradients.dq, gradients.dk, gradients.dv]
        .map(|tensor| tensor.to_vec().unwrap());
    [out, lse, dq, dk, dv]
}

quickcheck! {
    /// A list of all that a mask shows, and a list of everything, change no bit.
    fn a_list_of_what_is_visible_is_no_list(left: u8, right: u8, queries: u8, keys: u8) -> bool {
        let backend = Backend::cpu();
        let lengths = [2 * usize::from(queries) + 1, 2 * usize::from(keys) + 1];
        let (q, k) = (random(&backend, lengths[0], 1), random(&backend, lengths[1], 2));
        let mask = Mask::window(u32::from(left), u32::from(right));
        let attention = Attention::new().mask(mask);
        let expected = attend(&attention, &q, Keys::new(&k, &k));
        [(64, 64), (128, 64), (64, 128)].into_iter().all(|(of_queries, of_keys)| {
            let lists = BlockLists::new(of_queries, of_keys);
            [mask, Mask::none()].into_iter().all(|listed| {
                let list = BlockList::window(lists, listed, 0, lengths).unwrap();
                attend(&attention, &q, Keys::new(&k, &k).blocks(&list)) == expected
            })
        })
    }
}

#[test]
fn a_row_without_blocks_gives_nothing() {
    let backend = Backend::cpu();
    let (q, k) = (random(&backend, 130, 1), random(&backend, 70, 2));
    let lists = BlockLists::new(64, 64);
    let list = BlockList::new(lists, vec![0, 1, 3, 3], vec![1, -1, 5]);
    let error = Attention::new().forward(&q, Keys::new(&k, &k).blocks(&list));
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("block_indices[2] is 5"), "{error}");
    let list = BlockList::new(lists, vec![0, 1, 3, 3], vec![1, -1, -1]);
    let [out, lse, dq, ..] = attend(&Attention::new(), &q, Keys::new(&k, &k).blocks(&list));
    for row in 0..130 {
        let is_empty = row >= 64;
        for numbers in [&out, &dq] {
            let numbers = &numbers[row * 16..(row + 1) * 16];
            assert_eq!(numbers.iter().all(|x| *x == 0.0), is_empty, "{row}");
        }
        assert_eq!(lse[row] == f32::NEG_INFINITY, is_empty, "{row}");
    }
    // Documents see themselves.
    let documents = BlockList::documents(lists, &[64, 6]).unwrap();
    let [all, ..] = attend(&Attention::new(), &k, Keys::new(&k, &k).blocks(&documents));
    let first = backend.tensor(&k.to_vec().unwrap()[..64 * 16], [1, 64, 2, 8]);
    let first = first.unwrap();
    let [alone, ..] = attend(&Attention::new(), &first, Keys::new(&first, &first));
    assert_eq!(all[..64 * 16], alone);
}

/// Of no sequence there are no lists.
#[test]
fn an_empty_batch_has_no_lists() {
    let backend = Backend::cpu();
    let q = backend.tensor(&[0.0_f32; 0], [0, 128, 2, 8]).unwrap();
    for (lists, shape) in [
        (BlockLists::new(64, 64).per_batch(), [0, 1, 2, 2]),
        (BlockLists::new(64, 64).per_batch().per_head(), [0, 2, 2, 2]),
    ] {
        let list = BlockList::from_mask(lists, shape, &[]).unwrap();
        assert_eq!(list.offsets(), [0]);
        let attention = Attention::new();
        let keys = Keys::new(&q, &q).blocks(&list);
        let output = attention.forward(&q, keys).unwrap();
        assert_eq!(output.out.shape(), [0, 128, 2, 8]);
        // More offsets than lists have.
        let list = BlockList::new(lists, vec![0, 0, 0], vec![]);
        let keys = Keys::new(&q, &q).blocks(&list);
        let error = attention.forward(&q, keys).unwrap_err().to_string();
        assert!(error.starts_with("block_offsets[3]"), "{error}");
    }
}

#[test]
fn an_empty_batch_has_no_slopes() {
    let backend = Backend::cpu();
    let q = backend.tensor(&[0.0_f32; 0], [0, 128, 2, 8]).unwrap();
    for slopes in [&[][..], &[0.5; 2]] {
        let attention = Attention::new().alibi_slopes(slopes);
        let output = attention.forward(&q, (&q, &q)).unwrap();
        assert_eq!(output.out.shape(), [0, 128, 2, 8]);
    }
    // A batch that has sequences.
    let q = backend.tensor(&[0.0_f32; 32], [2, 1, 2, 8]).unwrap();
    let error = Attention::new().alibi_slopes(&[]).forward(&q, (&q, &q));
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("alibi_slopes has 0 values"), "{error}");
}

#[test]
fn what_lists_lack_is_refused() {
    let layout = Layout::bshd([1, 64, 1, 8]);
    let builder = |words: &str| {
        let scoring: Scoring = words.parse().unwrap();
        Call::builder(&layout, &layout, &layout, ElementType::F32).scoring(scoring)
    };
    let text = |result: Result<Call, warptile::spec::Invalid>| result.unwrap_err().to_string();
    let missing = text(builder("blocks=64x64").build());
    assert!(missing.starts_with("block_offsets is missing"), "{missing}");
    let given = |words: &str| builder(words).numbers(Operand::BlockOffsets, Numbers::Host(&[0, 1]));
    let extra = text(given("").build());
    assert!(extra.starts_with("block_offsets is given"), "{extra}");
    let elsewhere = given("blocks=64x64").numbers(Operand::BlockIndices, Numbers::Device(1));
    let elsewhere = text(elsewhere.build());
    assert!(
        elsewhere.starts_with("block_indices lies elsewhere"),
        "{elsewhere}"
    );
}
