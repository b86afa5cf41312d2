//! A problem by every function that can compute it.

use candle_core::{DType, Device, Result, Tensor};
use warptile_candle::{
    Attention, flash_attn, flash_attn_alibi, flash_attn_alibi_windowed,
    flash_attn_alibi_windowed_softcap, flash_attn_varlen, flash_attn_varlen_alibi,
    flash_attn_varlen_alibi_windowed, flash_attn_varlen_alibi_windowed_softcap,
    flash_attn_varlen_paged_windowed, flash_attn_varlen_windowed, flash_attn_windowed,
};

use super::assert_close;
use super::draw::{Problem, offsets};
use super::reference::Options;

/// Dense tensors: all sequences with the lengths of the first.
pub(crate) fn dense(problem: &Problem, device: &Device) -> Result<()> {
    let mut problem = problem.clone();
    problem.lengths = vec![problem.lengths[0]; problem.lengths.len()];
    let sequences = problem.sequences()?;
    let (queries, keys) = problem.lengths[0];
    let (expected, expected_lse) = problem.expected(&sequences, keys)?;
    let stacked = |index: usize| {
        let parts: Vec<&Tensor> = sequences.iter().map(|sequence| &sequence[index]).collect();
        problem
            .placed(&Tensor::stack(&parts, 0)?)?
            .to_device(device)
    };
    let (q, k, v) = (&stacked(0)?, &stacked(1)?, &stacked(2)?);
    let expected = expected.reshape(q.shape())?;
    let slopes = problem.slopes(device)?;

    let Options {
        scale,
        left,
        right,
        softcap: cap,
        ..
    } = problem.options;
    let mut results = vec![flash_attn_alibi_windowed_softcap(
        q,
        k,
        v,
        slopes.as_ref(),
        scale,
        left,
        right,
        cap,
    )];
    let causal = matches!((left, right), (None, None | Some(0))).then_some(right.is_some());
    match (&slopes, cap == 0.0) {
        (_, false) => {}
        (None, true) => {
            results.push(flash_attn_windowed(q, k, v, scale, left, right));
            results.extend(causal.map(|causal| flash_attn(q, k, v, scale, causal)));
        }
        (Some(slopes), true) => {
            results.push(flash_attn_alibi_windowed(
                q, k, v, slopes, scale, left, right,
            ));
            results.extend(causal.map(|causal| flash_attn_alibi(q, k, v, slopes, scale, causal)));
        }
    }
    for (index, result) in results.into_iter().enumerate() {
        let found = result?.to_device(&Device::Cpu)?;
        assert_eq!(found.dtype(), problem.dtype);
        assert_close(
            &found,
            &expected,
            problem.dtype,
            &format!("dense, function {index}"),
        )?;
    }

    let mut attention = Attention::new(scale).window(left, right).softcap(cap);
    if let Some(slopes) = &slopes {
        attention = attention.alibi_slopes(slopes);
    }
    let (out, lse) = attention.forward_with_lse(q, k, v)?;
    assert_close(
        &out.to_device(&Device::Cpu)?,
        &expected,
        problem.dtype,
        "out beside lse",
    )?;
    let by_head = |lse: &Tensor| lse.reshape((problem.heads, problem.lengths.len(), queries));
    let expected_lse = by_head(&expected_lse)?.transpose(0, 1)?;
    assert_close(
        &lse.to_device(&Device::Cpu)?,
        &expected_lse,
        problem.dtype,
        "lse",
    )?;

    let sinks: Vec<f32> = (0..problem.heads).map(|head| head as f32 - 2.0).collect();
    problem.options.sinks = Some(sinks.clone());
    let (expected, expected_lse) = problem.expected(&sequences, keys)?;
    let attention = attention.sinks(&Tensor::new(sinks, device)?);
    let (out, lse) = attention.forward_with_lse(q, k, v)?;
    let expected = expected.reshape(q.shape())?;
    assert_close(
        &out.to_device(&Device::Cpu)?,
        &expected,
        problem.dtype,
        "out with sinks",
    )?;
    let expected_lse = by_head(&expected_lse)?.transpose(0, 1)?;
    assert_close(
        &lse.to_device(&Device::Cpu)?,
        &expected_lse,
        problem.dtype,
        "lse with sinks",
    )
}

/// Sequences of different lengths one after the other, with rows of nobody behind them.
pub(crate) fn packed(problem: &Problem, device: &Device) -> Result<()> {
    let sequences = problem.sequences()?;
    let longest_q = problem
        .lengths
        .iter()
        .map(|lengths| lengths.0)
        .max()
        .unwrap_or(0);
    let longest_k = problem
        .lengths
        .iter()
        .map(|lengths| lengths.1)
        .max()
        .unwrap_or(0);
    let (expected, expected_lse) = problem.expected(&sequences, longest_k)?;
    let padding = (problem.seed % 3) as usize;
    let joined = |index: usize| {
        let parts: Vec<&Tensor> = sequences.iter().map(|sequence| &sequence[index]).collect();
        let padded = Tensor::cat(&parts, 0)?.pad_with_zeros(0, 0, padding)?;
        problem.placed(&padded)?.to_device(device)
    };
    let (q, k, v) = (&joined(0)?, &joined(1)?, &joined(2)?);
    let expected = expected.pad_with_zeros(0, 0, padding)?;
    let list = |list| Tensor::new(offsets(list), device);
    let sq = &list(
        problem
            .lengths
            .iter()
            .map(|lengths| lengths.0)
            .collect::<Vec<_>>()
            .into_iter(),
    )?;
    let sk = &list(
        problem
            .lengths
            .iter()
            .map(|lengths| lengths.1)
            .collect::<Vec<_>>()
            .into_iter(),
    )?;
    let slopes = problem.slopes(device)?;

    let Options {
        scale,
        left,
        right,
        softcap: cap,
        ..
    } = problem.options;
    let (mq, mk) = (longest_q, longest_k);
    let mut results = vec![flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
        slopes.as_ref(),
        sq,
        sk,
        mq,
        mk,
        scale,
        left,
        right,
        cap,
    )];
    let causal = matches!((left, right), (None, None | Some(0))).then_some(right.is_some());
    match (&slopes, cap == 0.0) {
        (_, false) => {}
        (None, true) => {
            results.push(flash_attn_varlen_windowed(
                q, k, v, sq, sk, mq, mk, scale, left, right,
            ));
            let plain = |causal| flash_attn_varlen(q, k, v, sq, sk, mq, mk, scale, causal);
            results.extend(causal.map(plain));
        }
        (Some(slopes), true) => {
            results.push(flash_attn_varlen_alibi_windowed(
                q, k, v, slopes, sq, sk, mq, mk, scale, left, right,
            ));
            let plain =
                |causal| flash_attn_varlen_alibi(q, k, v, slopes, sq, sk, mq, mk, scale, causal);
            results.extend(causal.map(plain));
        }
    }
    for (index, result) in results.into_iter().enumerate() {
        let found = result?.to_device(&Device::Cpu)?;
        assert_close(
            &found,
            &expected,
            problem.dtype,
            &format!("packed, function {index}"),
        )?;
    }

    let mut attention = Attention::new(scale)
        .packed_queries(sq, mq)
        .packed_keys(sk, mk)
        .window(left, right)
        .softcap(cap);
    if let Some(slopes) = &slopes {
        attention = attention.alibi_slopes(slopes);
    }
    let (out, lse) = attention.forward_with_lse(q, k, v)?;
    assert_close(
        &out.to_device(&Device::Cpu)?,
        &expected,
        problem.dtype,
        "out beside lse",
    )?;
    let lse = lse
        .to_device(&Device::Cpu)?
        .narrow(1, 0, expected_lse.dim(1)?)?;
    assert_close(&lse, &expected_lse, problem.dtype, "lse of packed queries")
}

/// The keys and values of sequences in pages, shuffled: by lengths, and, if `drop_in`, by candle-flash-attn's function.
pub(crate) fn paged(problem: &Problem, device: &Device, drop_in: bool) -> Result<()> {
    let sequences = problem.sequences()?;
    let longest_q = problem
        .lengths
        .iter()
        .map(|lengths| lengths.0)
        .max()
        .unwrap_or(0);
    let longest_k = problem
        .lengths
        .iter()
        .map(|lengths| lengths.1)
        .max()
        .unwrap_or(0);
    let mut options = problem.clone();
    options.options.slopes = None;
    let (expected, _) = options.expected(&sequences, longest_k)?;
    let rows = [1, 5, 16, 32][(problem.seed % 4) as usize];
    let columns = longest_k.div_ceil(rows).max(1);
    // Every sequence has its pages at every third place, so that there are some of nobody.
    let place = |sequence: usize, column: usize| {
        (column * sequences.len() + sequence) * 3 % (3 * columns * sequences.len() - 1)
    };
    let count = 3 * columns * sequences.len();
    let mut table = vec![0_u32; sequences.len() * columns];
    let pages = |index: usize, table: &mut [u32]| {
        let nobodys = Tensor::full(
            f32::NAN,
            (rows, problem.kv_heads, problem.head_size),
            &Device::Cpu,
        )?;
        let mut pages = vec![nobodys.to_dtype(problem.dtype)?; count];
        for (sequence, tensors) in sequences.iter().enumerate() {
            let keys = tensors[index].dim(0)?;
            for column in 0..keys.div_ceil(rows) {
                let used = rows.min(keys - column * rows);
                let page = tensors[index].narrow(0, column * rows, used)?;
                let rest = pages[0].narrow(0, 0, rows - used)?.affine(0.0, f64::NAN)?;
                table[sequence * columns + column] = place(sequence, column) as u32;
                pages[place(sequence, column)] = Tensor::cat(&[&page, &rest], 0)?;
            }
        }
        problem
            .placed(&Tensor::stack(&pages, 0)?)?
            .to_device(device)
    };
    let k = &pages(1, &mut table)?;
    let v = &pages(2, &mut table)?;
    let parts: Vec<&Tensor> = sequences.iter().map(|sequence| &sequence[0]).collect();
    let q = &problem
        .placed(&Tensor::cat(&parts, 0)?)?
        .to_device(device)?;
    let table = &Tensor::from_vec(table, (sequences.len(), columns), device)?;
    let sq = &Tensor::new(
        offsets(problem.lengths.iter().map(|lengths| lengths.0)),
        device,
    )?;
    let sk = &Tensor::new(
        offsets(problem.lengths.iter().map(|lengths| lengths.1)),
        device,
    )?;
    let lengths: Vec<u32> = problem
        .lengths
        .iter()
        .map(|lengths| lengths.1 as u32)
        .collect();
    let lengths = &Tensor::new(lengths, device)?;

    let Options {
        scale,
        left,
        right,
        softcap: cap,
        ..
    } = problem.options;
    let attention = Attention::new(scale)
        .packed_queries(sq, longest_q)
        .paged(table, lengths, longest_k)
        .window(left, right)
        .softcap(cap);
    let found = attention.forward(q, k, v)?.to_device(&Device::Cpu)?;
    assert_close(&found, &expected, problem.dtype, "pages by lengths")?;
    if drop_in {
        let found = flash_attn_varlen_paged_windowed(
            q,
            k,
            v,
            sq,
            sk,
            table,
            None,
            longest_q,
            longest_k,
            scale,
            left,
            right,
            rows,
            Some(cap),
        )?;
        assert_close(
            &found.to_device(&Device::Cpu)?,
            &expected,
            problem.dtype,
            "pages by offsets",
        )?;
    }
    Ok(())
}

/// One key/value head repeated by a stride of 0 is that of grouped heads.
pub(crate) fn repeated_heads(device: &Device) -> Result<()> {
    let random = |shape: (usize, usize, usize, usize)| {
        Tensor::randn(0_f32, 1.0, shape, &Device::Cpu)?
            .to_dtype(DType::F16)?
            .to_device(device)
    };
    let (q, k) = (random((2, 30, 4, 64))?, random((2, 50, 1, 64))?);
    let repeated = k.broadcast_as((2, 50, 4, 64))?;
    let expected = flash_attn(&q, &k, &k, 0.125, true)?.to_device(&Device::Cpu)?;
    let found = flash_attn(&q, &repeated, &repeated, 0.125, true)?.to_device(&Device::Cpu)?;
    assert_close(&found, &expected, DType::F16, "repeated heads")
}
