//! Bad input: an error that names the argument and the rule.

#[cfg(not(feature = "cuda"))]
use candle_core::CustomOp3;
use candle_core::{DType, Device, Result, Tensor};
use warptile_candle::{
    Attention, flash_attn, flash_attn_alibi, flash_attn_alibi_windowed_softcap, flash_attn_varlen,
    flash_attn_varlen_paged_windowed,
};

fn tensor(dims: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(dims, dtype, &Device::Cpu).unwrap()
}

fn list(numbers: &[u32]) -> Tensor {
    Tensor::new(numbers, &Device::Cpu).unwrap()
}

#[track_caller]
fn expect(result: Result<Tensor>, message: &str) {
    let error = result
        .map(|tensor| tensor.shape().clone())
        .unwrap_err()
        .to_string();
    assert!(error.starts_with(message), "{error}\nexpected {message}");
}

#[test]
fn dense_tensors() {
    let f16 = DType::F16;
    let q = tensor(&[2, 5, 4, 64], f16);
    let k = tensor(&[2, 9, 2, 64], f16);
    let cases: [(Tensor, Tensor, Tensor, &str); 10] = [
        (
            tensor(&[5, 4, 64], f16),
            k.clone(),
            k.clone(),
            "flash-attn: q has shape [5, 4, 64], but must be (batch, length, heads, head size)",
        ),
        (
            q.clone(),
            tensor(&[9, 2, 64], f16),
            k.clone(),
            "flash-attn: k has shape [9, 2, 64], but must be (batch, length, heads, head size)",
        ),
        (
            q.clone(),
            k.clone(),
            tensor(&[2, 8, 2, 64], f16),
            "flash-attn: v has length 8, but k has 9",
        ),
        (
            q.clone(),
            tensor(&[3, 9, 2, 64], f16),
            tensor(&[3, 9, 2, 64], f16),
            "flash-attn: k has batch 3, but q has 2",
        ),
        (
            q.clone(),
            tensor(&[2, 9, 2, 32], f16),
            tensor(&[2, 9, 2, 32], f16),
            "flash-attn: k has head size 32, but q has 64",
        ),
        (
            q.clone(),
            tensor(&[2, 9, 3, 64], f16),
            tensor(&[2, 9, 3, 64], f16),
            "flash-attn: q has 4 heads and k has 3",
        ),
        (
            tensor(&[2, 5, 4, 64], DType::F64),
            k.clone(),
            k.clone(),
            "flash-attn: q has dtype f64, but must be f16, bf16 or f32",
        ),
        (
            q.clone(),
            k.clone(),
            k.to_dtype(DType::F32).unwrap(),
            "flash-attn: v has dtype f32, but q has f16; both must be the same",
        ),
        (
            tensor(&[2, 5, 4, 520], f16),
            tensor(&[2, 9, 2, 520], f16),
            tensor(&[2, 9, 2, 520], f16),
            "flash-attn: q has head size 520",
        ),
        (
            q.clone(),
            tensor(&[2, 9, 64, 2], f16).transpose(2, 3).unwrap(),
            k.clone(),
            "flash-attn: k has stride 2 in its last dimension, which must be contiguous",
        ),
    ];
    for (q, k, v, message) in cases {
        expect(flash_attn(&q, &k, &v, 0.125, true), message);
    }
    expect(
        flash_attn(&q, &k, &k, f32::NAN, false),
        "flash-attn: softmax_scale is NaN, but must be a finite number",
    );
    expect(
        flash_attn_alibi_windowed_softcap(&q, &k, &k, None, 1.0, None, None, -3.0),
        "flash-attn: softcap is -3, but must be a number from 2^-126 to 2^125 and at least |scale| / 2^125",
    );
}

#[test]
fn one_number_per_head() {
    let (q, k) = (
        tensor(&[2, 5, 4, 64], DType::F16),
        tensor(&[2, 9, 2, 64], DType::F16),
    );
    let device = &Device::Cpu;
    expect(
        flash_attn_alibi(&q, &k, &k, &tensor(&[3], DType::F32), 0.125, true),
        "flash-attn: alibi_slopes has shape [3], but must be [4]: one entry per query head",
    );
    expect(
        flash_attn_alibi(&q, &k, &k, &tensor(&[4], DType::F16), 0.125, true),
        "flash-attn: alibi_slopes has dtype f16, but must be f32",
    );
    let infinite = Tensor::new(&[0.0, 1.0, f32::INFINITY, 0.0], device).unwrap();
    expect(
        flash_attn_alibi(&q, &k, &k, &infinite, 0.125, true),
        "flash-attn: alibi_slopes[2] is inf, but must be a finite number",
    );
    expect(
        Attention::new(1.0)
            .sinks(&tensor(&[4, 1], DType::F32))
            .forward(&q, &k, &k),
        "attention: sinks has shape [4, 1], but must be [4]: one entry per query head",
    );
    for (p, words, message) in [
        (
            0.5,
            list(&[0; 7]),
            "attention: dropout_state has shape [7], but must be [8]: the words of a state",
        ),
        (
            0.5,
            tensor(&[8], DType::F32),
            "attention: dropout_state has dtype f32, but must be u32 or i32",
        ),
        (
            0.5,
            list(&[0, 0, 0, 0, 0, 0, 0, 8]),
            "attention: dropout_state[7] is 8, but the number of the first key",
        ),
        (
            1.0,
            list(&[0; 8]),
            "attention: dropout is 1, but must be a probability from 0 to below 1",
        ),
    ] {
        expect(
            Attention::new(0.1).dropout(p, &words).forward(&q, &q, &q),
            message,
        );
    }
}

#[test]
fn lengths_of_packed_sequences() {
    let (q, k) = (
        tensor(&[5, 4, 64], DType::F16),
        tensor(&[9, 2, 64], DType::F16),
    );
    let (good_q, good_k) = (list(&[0, 2, 5]), list(&[0, 4, 9]));
    let cases = [
        (
            list(&[0]),
            good_k.clone(),
            "seqlens_q has shape [1], but must be (sequences + 1)",
        ),
        (
            good_q.to_dtype(DType::F32).unwrap(),
            good_k.clone(),
            "seqlens_q has dtype f32, but must be u32 or i32",
        ),
        (
            good_q.clone(),
            list(&[0, 4, 9, 9]),
            "seqlens_k has shape [4], but must be [3]",
        ),
        (
            good_q.clone(),
            list(&[0, 4, 10]),
            "seqlens_k[2] is 10, but the tensor has only 9 rows",
        ),
        (
            list(&[0, 3, 2]),
            good_k.clone(),
            "seqlens_q[2] is 2, less than the offset before it (3)",
        ),
        (
            list(&[1, 3, 5]),
            good_k.clone(),
            "seqlens_q[0] is 1; the first sequence must start at row 0",
        ),
        (
            good_q.clone(),
            list(&[0, 4, 3_000_000_000]),
            "seqlens_k[2] is 3000000000, above 2^31 - 1",
        ),
        (
            list(&[0, 4, 5]),
            good_k.clone(),
            "max_seqlen_q is 3, but a sequence has 4 rows of q",
        ),
        (
            good_q.clone(),
            list(&[0, 3, 9]),
            "max_seqlen_k is 5, but a sequence has 6 rows of k",
        ),
    ];
    for (sq, sk, message) in cases {
        let found = flash_attn_varlen(&q, &k, &k, &sq, &sk, 3, 5, 0.125, true);
        expect(found, &format!("flash-attn-varlen: {message}"));
    }
    let dense = tensor(&[1, 5, 4, 64], DType::F16);
    expect(
        flash_attn_varlen(&dense, &k, &k, &good_q, &good_k, 3, 5, 0.125, true),
        "flash-attn-varlen: q has shape [1, 5, 4, 64], but must be (rows, heads, head size)",
    );
    // i32 is as good.
    let signed = good_q.to_dtype(DType::I32).unwrap();
    flash_attn_varlen(&q, &k, &k, &signed, &good_k, 3, 5, 0.125, true).unwrap();
}

#[test]
fn keys_in_pages() {
    let (q, k) = (
        tensor(&[5, 4, 64], DType::F16),
        tensor(&[3, 16, 2, 64], DType::F16),
    );
    let table = Tensor::new(&[[0_u32, 1], [2, 0]], &Device::Cpu).unwrap();
    let (sq, sk) = (list(&[0, 2, 5]), list(&[0, 17, 33]));
    let call = |k: &Tensor,
                sk: &Tensor,
                table: &Tensor,
                ranges: Option<&Tensor>,
                rows: usize,
                longest: usize| {
        flash_attn_varlen_paged_windowed(
            &q,
            k,
            k,
            &sq,
            sk,
            table,
            ranges,
            3,
            longest,
            0.125,
            None,
            Some(0),
            rows,
            None,
        )
    };
    call(&k, &sk, &table, None, 16, 17).unwrap();
    let named = |message: &str| format!("flash-attn-varlen: {message}");
    expect(
        call(
            &k,
            &sk,
            &table,
            Some(&tensor(&[2, 1, 2], DType::I32)),
            16,
            17,
        ),
        &named(
            "mm_prefix_ranges is given, but ranges of keys that bypass the mask are not supported",
        ),
    );
    expect(
        call(&k, &sk, &table, None, 32, 17),
        &named("page_block_size is 32, but k has shape [3, 16, 2, 64]"),
    );
    expect(
        call(&k, &list(&[0, 17, 8]), &table, None, 16, 17),
        &named("seqlens_k[2] is 8, less than the entry before it (17)"),
    );
    expect(
        call(&k, &list(&[0]), &table, None, 16, 17),
        &named(
            "seqlens_k has shape [1], but must be [3]: as many entries as there are sequences of queries",
        ),
    );
    expect(
        call(&k, &list(&[0, 17]), &table, None, 16, 17),
        &named(
            "seqlens_k has shape [2], but must be [3]: as many entries as there are sequences of queries",
        ),
    );
    expect(
        call(&k, &tensor(&[3], DType::I64), &table, None, 16, 17),
        &named("seqlens_k has dtype i64, but must be u32 or i32"),
    );
    expect(
        call(&k, &list(&[0, 17, 50]), &table, None, 16, 33),
        &named(
            "seqlens_k[2] is 50, 33 more than the entry before it, but block_table has pages for 32 keys",
        ),
    );
    expect(
        call(&k, &sk, &table.narrow(0, 0, 1).unwrap(), None, 16, 17),
        &named("block_table has shape [1, 2], but must be (2 sequences, pages of the longest)"),
    );
    let absent = Tensor::new(&[[0_u32, 3], [2, 0]], &Device::Cpu).unwrap();
    expect(
        call(&k, &sk, &absent, None, 16, 17),
        &named("block_table[1] is 3, but k has 3 pages"),
    );
    expect(
        call(&k, &sk, &table, None, 16, 16),
        &named("max_seqlen_k is 16, but a sequence has 17 rows of k"),
    );
    let large = tensor(&[3, 512, 2, 64], DType::F16);
    expect(
        call(&large, &sk, &table, None, 512, 17),
        &named("k has pages of 512 rows; a page has 1 to 256"),
    );
}

/// A missing derivative is an error.
#[test]
fn gradients_that_there_are_not_are_refused() {
    let var = |dims: &[usize]| candle_core::Var::from_tensor(&tensor(dims, DType::F32)).unwrap();
    let error_of = |out: Tensor| out.sum_all().unwrap().backward().unwrap_err().to_string();
    let q = var(&[1, 5, 4, 264]);
    let error = error_of(flash_attn(&q, &q, &q, 0.125, true).unwrap());
    assert!(
        error.contains("flash-attn: q has head size 264, but gradients have head sizes up to 256"),
        "{error}"
    );
    let (q, slopes) = (var(&[1, 5, 4, 64]), var(&[4]));
    // No gradient comes through `round`.
    for q in [q.as_tensor(), &q.as_detached_tensor(), &q.round().unwrap()] {
        let error = error_of(flash_attn_alibi(q, q, q, &slopes, 0.125, true).unwrap());
        assert!(
            error.contains("alibi_slopes has no gradient; detach it"),
            "{error}"
        );
    }
    let (pages, lengths) = (var(&[1, 16, 4, 64]), list(&[9]));
    let table = list(&[0]).reshape((1, 1)).unwrap();
    let small = tensor(&[1, 9, 4, 64], DType::F8E4M3);
    let scale = tensor(&[1], DType::F32).affine(0.0, 1.0).unwrap();
    let paged = Attention::new(0.125).paged(&table, &lengths, 16);
    let detached = pages.as_detached_tensor();
    for (call, k, rule) in [
        (
            &paged,
            &detached,
            "block_table is given, but keys and values in pages have no backward pass",
        ),
        (
            &Attention::new(0.125).scales(&scale, &scale),
            &small,
            "k_scale is given, but keys and values in 8 bits have no backward pass",
        ),
    ] {
        let out = call.clone().forward(&q, k, k).unwrap();
        assert_eq!(out.dims(), q.dims());
        let error = error_of(out);
        assert!(error.contains(&format!("attention: {rule}")), "{error}");
    }
    let error = error_of(
        paged
            .forward(&q.as_detached_tensor(), &pages, &pages)
            .unwrap(),
    );
    assert!(error.contains("block_table is given"), "{error}");
}

/// Words that no key needs, and those of a state, may have any bits.
#[test]
fn words_above_those_of_i32() {
    let q = Tensor::randn(0_f32, 1.0, (2, 1, 4, 16), &Device::Cpu).unwrap();
    let k = Tensor::randn(0_f32, 1.0, (3, 4, 2, 16), &Device::Cpu).unwrap();
    let numbers = |out: Result<Tensor>| {
        out.unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1::<f32>()
            .unwrap()
    };
    let paged = |padding: u32| {
        let table = Tensor::new(&[[2, 0], [1, padding]], &Device::Cpu).unwrap();
        let attention = Attention::new(0.25).paged(&table, &list(&[6, 3]), 6);
        numbers(attention.forward(&q, &k, &k))
    };
    assert_eq!(paged(u32::MAX), paged(0));
    let table = Tensor::new(&[[2, 0], [u32::MAX, 0]], &Device::Cpu).unwrap();
    expect(
        Attention::new(0.25)
            .paged(&table, &list(&[6, 3]), 6)
            .forward(&q, &k, &k),
        "attention: block_table[2] is -1, but k has 3 pages",
    );
    let state = list(&[u32::MAX, 0, 1 << 31, 0, 0, 0, 0, 0]);
    let signed = Tensor::new(&[-1, 0, i32::MIN, 0, 0, 0, 0, 0], &Device::Cpu).unwrap();
    let [words, same] = [state, signed].map(|state| {
        numbers(
            Attention::new(0.25)
                .dropout(0.5, &state)
                .forward(&k, &k, &k),
        )
    });
    assert_eq!(words, same);
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_without_the_feature() {
    let storage = candle_core::CudaStorage;
    let layout = candle_core::Layout::contiguous((1, 5, 4, 64));
    let operation = Attention::new(0.125);
    let result = operation.cuda_fwd(&storage, &layout, &storage, &layout, &storage, &layout);
    let error = result.map(|_| ()).unwrap_err().to_string();
    let message = "attention: the tensors are on a GPU, but warptile-candle was built without its feature `cuda`";
    assert!(error.starts_with(message), "{error}");
}
