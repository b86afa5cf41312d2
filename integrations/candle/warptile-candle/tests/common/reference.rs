//! Attention by candle's matmul and softmax, in f64 on the CPU.

use candle_core::{D, DType, Device, Result, Tensor};

/// The options between a dot product and a weight.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) scale: f32,
    pub(crate) left: Option<usize>,
    pub(crate) right: Option<usize>,
    pub(crate) softcap: f32,
    pub(crate) slopes: Option<Vec<f32>>,
    pub(crate) sinks: Option<Vec<f32>>,
    /// Factors of weights, `(heads, length, key length)`.
    pub(crate) dropout: Option<Tensor>,
}

/// Attention of one sequence: q `(length, heads, head size)`, k and v `(key length, key/value heads, head size)`. Gives the output,
/// of q's shape, and the lse, `(heads, length)`.
pub(crate) fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &Options,
) -> Result<(Tensor, Tensor)> {
    let (length, heads, _) = q.dims3()?;
    let (keys, kv_heads, _) = k.dims3()?;
    let heads_first = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.transpose(0, 1)?.contiguous();
    let repeated = |tensor: &Tensor| {
        let tensor = heads_first(tensor)?;
        let group = heads / kv_heads;
        let index: Vec<u32> = (0..heads).map(|head| (head / group) as u32).collect();
        tensor.index_select(&Tensor::new(index, &Device::Cpu)?, 0)
    };
    if keys == 0 || length == 0 {
        let lse = Tensor::full(f64::NEG_INFINITY, (heads, length), &Device::Cpu)?;
        return Ok((
            q.to_dtype(DType::F64)?.zeros_like()?,
            with_sinks(&lse, options)?,
        ));
    }
    let (q, k, v) = (heads_first(q)?, repeated(k)?, repeated(v)?);
    let mut scores = (q.matmul(&k.t()?.contiguous()?)? * f64::from(options.scale))?;
    if options.softcap != 0.0 {
        let cap = f64::from(options.softcap);
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    // The term that is added to each score: minus infinity where the query does not see the key.
    let mut added = Vec::with_capacity(heads * length * keys);
    for head in 0..heads {
        let slope = options
            .slopes
            .as_ref()
            .map_or(0.0, |slopes| f64::from(slopes[head]));
        for i in 0..length as i64 {
            let diagonal = i + keys as i64 - length as i64;
            added.extend((0..keys as i64).map(|j| {
                let after = |left: usize| diagonal - left as i64 <= j;
                let before = |right: usize| j <= diagonal + right as i64;
                match options.left.is_none_or(after) && options.right.is_none_or(before) {
                    true => -slope * (diagonal - j).abs() as f64,
                    false => f64::NEG_INFINITY,
                }
            }));
        }
    }
    let scores = (scores + Tensor::from_vec(added, (heads, length, keys), &Device::Cpu)?)?;
    // For a row that sees no key, candle's softmax is NaN; ours is 0.
    let seen = scores.max_keepdim(D::Minus1)?.gt(f64::NEG_INFINITY)?;
    let softmax = candle_nn::ops::softmax(&scores, D::Minus1)?;
    let seen = seen.broadcast_as(softmax.shape())?;
    let weights = seen.where_cond(&softmax, &softmax.zeros_like()?)?;
    let lse = scores.log_sum_exp(D::Minus1)?;
    let seen = seen.narrow(2, 0, 1)?.squeeze(2)?;
    let lse = seen.where_cond(
        &lse,
        &Tensor::full(f64::NEG_INFINITY, lse.shape(), &Device::Cpu)?,
    )?;
    let all = with_sinks(&lse, options)?;
    let weights = match &options.dropout {
        Some(factors) => (weights * factors)?,
        None => weights,
    };
    let mut out = weights.matmul(&v)?;
    if options.sinks.is_some() {
        // The share of the denominator that is not the sink's.
        out = out.broadcast_mul(&(lse - &all)?.exp()?.unsqueeze(2)?)?;
    }
    Ok((out.transpose(0, 1)?.contiguous()?, all))
}

/// One more logit in each row's denominator.
fn with_sinks(lse: &Tensor, options: &Options) -> Result<Tensor> {
    let sinks = match &options.sinks {
        Some(sinks) if lse.elem_count() > 0 => sinks,
        _ => return Ok(lse.clone()),
    };
    let sinks = Tensor::new(sinks.as_slice(), &Device::Cpu)?.to_dtype(DType::F64)?;
    let sinks = sinks.unsqueeze(1)?.broadcast_as(lse.shape())?;
    Tensor::stack(&[lse, &sinks], 2)?.log_sum_exp(2)
}
