//! Gradients against those of candle's own operations in f64.

use candle_core::{DType, Device, Result, Tensor, Var};
use warptile::spec::{Dropout, DropoutState};
use warptile_candle::{Attention, flash_attn_varlen_windowed, flash_attn_windowed};

use crate::common::assert_close;
use crate::common::reference::{Options, attention};

fn var(dims: &[usize], dtype: DType) -> Result<Var> {
    Var::from_tensor(&Tensor::randn(0_f32, 1.0, dims, &Device::Cpu)?.to_dtype(dtype)?)
}

/// The gradients of `q`, `k` and `v`, whose output's is `grad`, of an output and of the reference's.
fn compare(
    [q, k, v]: [&Var; 3],
    out: &Tensor,
    grad: &Tensor,
    expected: &Tensor,
    tolerance: f64,
) -> Result<()> {
    let of = |out: &Tensor| -> Result<Vec<Vec<f64>>> {
        let out = out.to_dtype(DType::F64)?;
        let gradients = (out * grad.to_dtype(DType::F64)?)?.sum_all()?.backward()?;
        let numbers = |var: &Var| {
            let gradient = gradients.get(var).unwrap();
            assert_eq!(gradient.dims(), var.dims());
            gradient.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
        };
        [q, k, v].map(numbers).into_iter().collect()
    };
    for (found, expected) in of(out)?.iter().zip(of(expected)?) {
        let largest = expected
            .iter()
            .fold(0.0_f64, |largest, x| largest.max(x.abs()));
        for (x, y) in found.iter().zip(&expected) {
            assert!((x - y).abs() <= tolerance * largest, "{x} {y}");
        }
    }
    Ok(())
}

/// A batch entry of the reference.
fn of_entry(tensors: [&Var; 3], entry: usize, options: &Options) -> Result<Tensor> {
    let [q, k, v] = tensors.map(|tensor| tensor.get(entry));
    Ok(attention(&q?, &k?, &v?, options)?.0)
}

#[test]
fn dense_gradients_are_those_of_candle() -> Result<()> {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let q = var(&[2, 7, 4, 16], dtype)?;
        let (k, v) = (var(&[2, 9, 2, 16], dtype)?, var(&[2, 9, 2, 16], dtype)?);
        let grad = var(&[2, 7, 4, 16], dtype)?;
        let tensors = [&q, &k, &v];
        for (left, right) in [(None, None), (None, Some(0)), (Some(2), Some(1))] {
            let options = Options {
                scale: 0.3,
                left,
                right,
                ..Options::default()
            };
            let out = flash_attn_windowed(&q, &k, &v, 0.3, left, right)?;
            let expected = [
                of_entry(tensors, 0, &options)?,
                of_entry(tensors, 1, &options)?,
            ];
            let expected = Tensor::stack(&expected, 0)?;
            compare(tensors, &out, &grad, &expected, tolerance)?;
        }
        let sinks = vec![0.5, -1.0, 2.0, 0.0];
        let out = Attention::new(0.3)
            .causal()
            .softcap(2.0)
            .sinks(&Tensor::new(&sinks[..], &Device::Cpu)?)
            .forward(&q, &k, &v)?;
        let options = Options {
            scale: 0.3,
            right: Some(0),
            softcap: 2.0,
            sinks: Some(sinks),
            ..Options::default()
        };
        let expected = [
            of_entry(tensors, 0, &options)?,
            of_entry(tensors, 1, &options)?,
        ];
        compare(
            tensors,
            &out,
            &grad,
            &Tensor::stack(&expected, 0)?,
            tolerance,
        )?;
    }
    Ok(())
}

#[test]
fn packed_gradients_are_those_of_candle() -> Result<()> {
    let q = var(&[9, 2, 8], DType::F32)?;
    let (k, v) = (var(&[11, 2, 8], DType::F32)?, var(&[11, 2, 8], DType::F32)?);
    let grad = var(&[9, 2, 8], DType::F32)?;
    let (seqlens_q, seqlens_k) = ([0_u32, 4, 9], [0_u32, 6, 11]);
    let lists = [seqlens_q, seqlens_k].map(|list| Tensor::new(&list, &Device::Cpu));
    let [list_q, list_k] = lists;
    let out = flash_attn_varlen_windowed(&q, &k, &v, &list_q?, &list_k?, 5, 6, 0.3, None, Some(0))?;
    let options = Options {
        scale: 0.3,
        right: Some(0),
        ..Options::default()
    };
    let sequence = |index: usize| -> Result<Tensor> {
        let rows = |tensor: &Var, list: &[u32; 3]| {
            let (first, end) = (list[index] as usize, list[index + 1] as usize);
            tensor.narrow(0, first, end - first)
        };
        let (q, k, v) = (
            rows(&q, &seqlens_q)?,
            rows(&k, &seqlens_k)?,
            rows(&v, &seqlens_k)?,
        );
        Ok(attention(&q, &k, &v, &options)?.0)
    };
    let expected = Tensor::cat(&[sequence(0)?, sequence(1)?], 0)?;
    compare([&q, &k, &v], &out, &grad, &expected, 1e-5)
}

#[test]
fn dropout_is_that_of_the_state() -> Result<()> {
    let state = DropoutState {
        sequence: 3,
        query: 64,
        ..DropoutState::new(0x1234_5678_9abc, 5)
    };
    let (p, dropout) = (0.3, Dropout::new(0.3, state));
    let words = Tensor::new(&state.words().map(i32::cast_unsigned), &Device::Cpu)?;
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 4e-3)] {
        let q = var(&[2, 40, 4, 16], dtype)?;
        let (k, v) = (var(&[2, 70, 2, 16], dtype)?, var(&[2, 70, 2, 16], dtype)?);
        let grad = var(&[2, 40, 4, 16], dtype)?;
        let tensors = [&q, &k, &v];
        let attention = Attention::new(0.3).causal().dropout(p, &words);
        let (out, _) = attention.forward_with_lse(&q, &k, &v)?;
        let expected = [0, 1].map(|entry| {
            let mut factors = Vec::new();
            for (head, query) in (0..4).flat_map(|head| (0..40).map(move |query| (head, query))) {
                let row = dropout.row(entry, head, query);
                factors.extend((0..70).map(|key| match row.keeps(key) {
                    true => f64::from(Dropout::factor(p)),
                    false => 0.0,
                }));
            }
            let options = Options {
                scale: 0.3,
                right: Some(0),
                dropout: Some(Tensor::from_vec(factors, (4, 40, 70), &Device::Cpu)?),
                ..Options::default()
            };
            of_entry(tensors, entry, &options)
        });
        let expected = Tensor::stack(&expected.into_iter().collect::<Result<Vec<_>>>()?, 0)?;
        assert_close(&out, &expected, dtype, "the output")?;
        let out = attention.forward(&q, &k, &v)?;
        compare(tensors, &out, &grad, &expected, tolerance)?;
    }
    Ok(())
}
