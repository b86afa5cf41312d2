//! Cache writes.

use candle_core::{DType, Device, Result, Tensor};
use warptile_candle::write_to_pages;

use crate::common::writes::{CACHES, check};

#[test]
fn rows_go_to_their_slots() -> Result<()> {
    for cache in CACHES {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            check(cache, dtype, &Device::Cpu)?;
        }
    }
    Ok(())
}

#[test]
fn bad_input_is_named() -> Result<()> {
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu);
    let (k, pages) = (
        zeros(&[3, 2, 16], DType::F16)?,
        zeros(&[5, 6, 2, 16], DType::F16)?,
    );
    let other_pages = zeros(&[5, 6, 2, 16], DType::F16)?;
    let slots = Tensor::new(&[0_i64, 1, 2], &Device::Cpu)?;
    let both = zeros(&[2, 5, 6, 2, 16], DType::F16)?;
    let (first, second) = (both.get(0)?, both.get(1)?);
    let part = pages.get(0)?.narrow(0, 0, 3)?;
    let wide = zeros(&[3, 2, 16], DType::F32)?;
    let cases = [
        (
            &k,
            &k,
            &pages,
            &other_pages,
            slots.narrow(0, 0, 2)?,
            "slots has shape [2], but must be [3]",
        ),
        (
            &k,
            &k,
            &pages,
            &other_pages,
            slots.to_dtype(DType::U32)?,
            "slots has dtype u32, but must be i64",
        ),
        (
            &wide,
            &k,
            &pages,
            &other_pages,
            slots.clone(),
            "k has dtype f32, but k_pages has f16",
        ),
        (
            &k,
            &pages,
            &first,
            &other_pages,
            slots.clone(),
            "v has shape [5, 6, 2, 16], but must be (rows, heads, head size)",
        ),
        (
            &k,
            &k,
            &k,
            &pages,
            slots.clone(),
            "k is a part of the tensor that it would be written to",
        ),
        (
            &part,
            &k,
            &pages,
            &other_pages,
            slots.clone(),
            "k is a part of the tensor that it would be written to",
        ),
        (
            &k,
            &k,
            &second,
            &first,
            slots.clone(),
            "v_pages begins before k_pages",
        ),
        (
            &k,
            &k,
            &first,
            &first,
            slots.clone(),
            "k_pages overlaps v_pages",
        ),
    ];
    for (k, v, k_pages, v_pages, slots, message) in cases {
        let error = write_to_pages(k, v, k_pages, v_pages, &slots)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("write-to-pages: {message}")),
            "{error}"
        );
    }
    Ok(())
}
