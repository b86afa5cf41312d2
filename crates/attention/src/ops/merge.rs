//! Attention over disjoint sets of keys, merged into attention over all of them.

use warptile_kernels::Operand;

use crate::backend::{Place, same_device};
use crate::cpu::{merge_cpu, sum_cpu};
use crate::error::Result;
use crate::gpu::Bindings;
use crate::lse::Lse;
use crate::spec::{
    DIMENSIONS, Element, Layout, LseBase, Merge, PART_LSE, PART_OUT, expect_same, no_parts,
};
use crate::tensor::Tensor;

/// Merges attention over disjoint sets of keys: `parts` are the outputs and lse of the same queries, each over keys of its
/// own. Returns output and lse over all these keys.
///
/// Each part counts with the share that its keys have of the softmax's denominator, `exp(lse)`. Arithmetic is in `f32`, in the
/// order of the parts, so the same parts give the same bits.
/// - A part whose lse is `-inf` saw no key in that row. It contributes nothing, even if its output is NaN there.
/// - `+inf` means the same: FlashAttention 2 writes it for rows without keys, and no finite score has it.
/// - A row that no part has a key for gives 0 and `-inf`.
/// - A lse of NaN makes the row's output and lse NaN.
///
/// Sinks must be part of at most one of the results.
///
/// ```
/// use warptile::{Attention, Backend};
/// use warptile::ops::merge;
/// use warptile::spec::LseBase;
///
/// # fn main() -> warptile::Result<()> {
/// let backend = Backend::cpu();
/// let q = backend.tensor(&[0.5_f32; 16], [1, 2, 1, 8])?;
/// let data: Vec<f32> = (0..48).map(|i| (i as f32).sin()).collect();
/// let kv = backend.tensor(&data, [1, 6, 1, 8])?;
/// let all = Attention::new().forward(&q, (&kv, &kv))?;
/// let (first, rest) = (kv.rows(0..2)?, kv.rows(2..6)?);
/// let (a, b) = (Attention::new().forward(&q, (&first, &first))?, Attention::new().forward(&q, (&rest, &rest))?);
/// let parts = [(&a.out, a.lse.as_ref().unwrap()), (&b.out, b.lse.as_ref().unwrap())];
/// let (out, lse) = merge(&parts, LseBase::Natural)?;
/// for (merged, at_once) in out.to_vec()?.iter().zip(all.out.to_vec()?) {
///     assert!((merged - at_once).abs() < 1e-6);
/// }
/// # let _ = lse;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Invalid::Count`](crate::spec::Invalid::Count) without parts, [`Invalid::TooLong`](crate::spec::Invalid::TooLong)
/// with more than 32: merge the results of merges then. When the parts have head size 0 or differ in shape, a lse is not that of its
/// output, or the tensors are on different devices. If the device is out of memory or the launch fails.
pub fn merge<T: Element>(parts: &[(&Tensor<T>, &Lse)], base: LseBase) -> Result<(Tensor<T>, Lse)> {
    let Some((first, _)) = parts.first() else {
        return Err(no_parts(0).into());
    };
    let layout = first.layout().dense_like();
    layout.validate("out")?;
    let mut out = Tensor::uninit(first.backend(), "out", layout)?;
    let mut lse = Lse::uninit(first.backend(), first.shape())?;
    merge_into(parts, base, &mut out, Some(&mut lse))?;
    Ok((out, lse))
}

/// As [`merge()`], into an existing output and lse, which nothing else may hold. Nothing is allocated on a GPU, so this may be
/// part of a capture once the kernel was used before.
///
/// # Errors
/// As [`merge()`]; when `out` is not of the parts' shape, or shares memory with anything.
pub fn merge_into<T: Element>(
    parts: &[(&Tensor<T>, &Lse)],
    base: LseBase,
    out: &mut Tensor<T>,
    mut lse: Option<&mut Lse>,
) -> Result<()> {
    let layouts: Vec<Layout> = parts.iter().map(|(part, _)| *part.layout()).collect();
    let merge = Merge::builder(T::TYPE, &layouts)
        .out(*out.layout())
        .base(base)
        .want_lse(lse.is_some())
        .build()?;
    let backend = out.backend().clone();
    for (index, (part, part_lse)) in parts.iter().enumerate() {
        same_device(PART_OUT[index], Some(part.backend()), &backend)?;
        same_device(PART_LSE[index], Some(part_lse.backend()), &backend)?;
        check_lse(PART_LSE[index], part_lse, &merge)?;
    }
    if let Some(lse) = &lse {
        same_device("lse", Some(lse.backend()), &backend)?;
        check_lse("lse", lse, &merge)?;
    }
    match backend.place() {
        Place::Cpu => {
            let mut on_host = Vec::with_capacity(parts.len());
            for (index, (part, part_lse)) in parts.iter().enumerate() {
                let lse = part_lse.0.on_host(PART_LSE[index])?;
                on_host.push((part.on_host(PART_OUT[index])?, lse));
            }
            let lse = match &mut lse {
                Some(lse) => Some(lse.0.host_mut("lse")?),
                None => None,
            };
            merge_cpu(&merge, &on_host, out.host_mut("out")?, lse)
        }
        Place::Gpu(gpu) => {
            let prepared = gpu.prepare_merge(T::TYPE)?;
            let mut bindings = Bindings::merge(out.device_mut("out")?);
            for (index, (part, part_lse)) in parts.iter().enumerate() {
                let lse = part_lse.0.on_device(PART_LSE[index])?;
                bindings = bindings.part(part.on_device(PART_OUT[index])?, lse);
            }
            if let Some(lse) = &mut lse {
                bindings = bindings.output(Operand::Lse, lse.0.device_mut("lse")?);
            }
            prepared.launch(gpu.stream(), &merge, &bindings)
        }
    }
}

/// Adds `f32` tensors of one shape in their order, in `f32`, and rounds the sums once, to the type of `out`: such as the gradients of keys
/// from several ranks. Nothing else may hold `out`; nothing is allocated on a GPU.
///
/// # Errors
/// As [`merge()`].
pub fn sum_into<T: Element>(parts: &[&Tensor<f32>], out: &mut Tensor<T>) -> Result<()> {
    let layouts: Vec<Layout> = parts.iter().map(|part| *part.layout()).collect();
    let merge = Merge::builder(T::TYPE, &layouts)
        .out(*out.layout())
        .sums()
        .build()?;
    let backend = out.backend().clone();
    for (part, argument) in parts.iter().zip(PART_OUT) {
        same_device(argument, Some(part.backend()), &backend)?;
    }
    let parts = parts.iter().zip(PART_OUT);
    match backend.place() {
        Place::Cpu => {
            let parts = parts.map(|(part, argument)| part.on_host(argument));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            sum_cpu(&merge, &parts, out.host_mut("out")?)
        }
        Place::Gpu(gpu) => {
            let mut bindings = Bindings::merge(out.device_mut("out")?);
            for (part, argument) in parts {
                bindings = bindings.addend(part.on_device(argument)?);
            }
            gpu.prepare_merge(T::TYPE)?
                .launch(gpu.stream(), &merge, &bindings)
        }
    }
}

fn check_lse(argument: &'static str, lse: &Lse, merge: &Merge) -> Result<()> {
    let [batch, heads, rows] = lse.shape();
    let expected = (PART_OUT[0], merge.lse_shape());
    expect_same(argument, [batch, rows, heads, 1], expected, DIMENSIONS)?;
    Ok(())
}
