//! Results of one row, merged on the CPU.

use crate::cpu::SharedMut;
use crate::cpu::threads::in_parallel;
use crate::error::Result;
use crate::spec::{
    Element, LseBase, Merge, PART_LSE, PART_OUT, check_type, expect_parts, expect_presence,
};

/// Merges results on the CPU; `parts` are the outputs and lse in the layouts of `merge`. See [`merge`](crate::ops::merge()) for the rules.
///
/// # Errors
/// [`Invalid::Count`](crate::spec::Invalid::Count),
/// [`Invalid::ElementMismatch`](crate::spec::Invalid::ElementMismatch),
/// [`Invalid::BufferTooSmall`](crate::spec::Invalid::BufferTooSmall) or
/// [`Invalid::Presence`](crate::spec::Invalid::Presence) if the slices are not those of the description;
/// [`Error::Stopped`](crate::Error::Stopped) if the caller's [`Stop`](crate::cpu::Stop) was requested.
pub fn merge_cpu<T: Element>(
    merge: &Merge,
    parts: &[(&[T], &[f32])],
    out: &mut [T],
    lse: Option<&mut [f32]>,
) -> Result<()> {
    check_type("out", Some(merge.element()), Some(T::TYPE))?;
    expect_presence("lse", !merge.sums(), true)?;
    expect_parts(parts.len(), merge.parts().len())?;
    for (index, (part, (out, lse))) in merge.parts().iter().zip(parts).enumerate() {
        part.out.check_buffer(PART_OUT[index], out.len())?;
        part.lse.check_buffer(PART_LSE[index], lse.len())?;
    }
    merge.out().check_buffer("out", out.len())?;
    let lse = match (merge.lse(), lse) {
        (Some(layout), Some(lse)) => {
            layout.check_buffer("lse", lse.len())?;
            Some((layout, SharedMut::new(lse)))
        }
        (wanted, given) => {
            expect_presence("lse", wanted.is_some(), given.is_some())?;
            None
        }
    };
    let [batch, rows, heads, head_dim] = merge.out().shape;
    if merge.lse_shape().contains(&0) {
        return Ok(());
    }
    let out = SharedMut::new(out);
    in_parallel(batch * rows, |row| {
        let (entry, row) = (row / rows, row % rows);
        let mut sums = vec![0.0; head_dim];
        for head in 0..heads {
            let results = merge
                .parts()
                .iter()
                .zip(parts)
                .filter_map(|(part, (out, lse))| {
                    let lse = lse[part.lse.offset(entry, row, head)];
                    let start = part.out.offset(entry, row, head);
                    (lse.abs() != f32::INFINITY).then(|| (&out[start..start + head_dim], lse))
                });
            sums.fill(0.0);
            let merged = merge_row(merge.base(), results, &mut sums);
            let start = merge.out().offset(entry, row, head);
            // SAFETY: the buffer holds the layout, no two rows of an output layout overlap (the builder has checked), and each
            // row is that of one index and head.
            let to = unsafe { out.slice(start, head_dim) };
            for (to, &sum) in to.iter_mut().zip(&sums) {
                *to = T::from_f32(sum);
            }
            if let Some((layout, lse)) = &lse {
                // SAFETY: as above.
                let to = unsafe { lse.slice(layout.offset(entry, row, head), 1) };
                to[0] = merged;
            }
        }
    })
}

/// Adds tensors on the CPU; `parts` lie in the layouts of `merge`. See [`sum_into`](crate::ops::sum_into).
///
/// # Errors
/// As [`merge_cpu`].
pub fn sum_cpu<T: Element>(merge: &Merge, parts: &[&[f32]], out: &mut [T]) -> Result<()> {
    check_type("out", Some(merge.element()), Some(T::TYPE))?;
    expect_presence("lse", !merge.sums(), false)?;
    expect_parts(parts.len(), merge.parts().len())?;
    for (index, (part, data)) in merge.parts().iter().zip(parts).enumerate() {
        part.out.check_buffer(PART_OUT[index], data.len())?;
    }
    merge.out().check_buffer("out", out.len())?;
    let [batch, rows, heads, head_dim] = merge.out().shape;
    if [batch, rows, heads, head_dim].contains(&0) {
        return Ok(());
    }
    let out = SharedMut::new(out);
    in_parallel(batch * rows, |row| {
        let (entry, row) = (row / rows, row % rows);
        for head in 0..heads {
            let addends = { merge.parts().iter() }
                .zip(parts)
                .map(|(part, data)| &data[part.out.offset(entry, row, head)..][..head_dim]);
            // SAFETY: as in `merge_cpu`.
            let to = unsafe { out.slice(merge.out().offset(entry, row, head), head_dim) };
            for (column, to) in to.iter_mut().enumerate() {
                let sum = addends
                    .clone()
                    .fold(0.0, |sum, addend| sum + addend[column]);
                *to = T::from_f32(sum);
            }
        }
    })
}

/// Merges the results of one row that saw keys, into zeros. Returns the lse.
fn merge_row<'a, T: Element>(
    base: LseBase,
    results: impl Iterator<Item = (&'a [T], f32)> + Clone,
    sums: &mut [f32],
) -> f32 {
    // `max` leaves out NaN.
    let greatest = results
        .clone()
        .map(|(_, lse)| lse)
        .fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    let mut any = false;
    for (out, lse) in results {
        let weight = base.power(lse - greatest);
        any = true;
        sum += weight;
        for (total, value) in sums.iter_mut().zip(out) {
            *total = weight.mul_add(value.to_f32(), *total);
        }
    }
    if !any {
        return f32::NEG_INFINITY;
    }
    let scale = 1.0 / sum;
    sums.iter_mut().for_each(|total| *total *= scale);
    greatest + base.logarithm(sum)
}
