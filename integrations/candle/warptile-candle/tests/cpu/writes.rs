//! Cache writes.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Result, Tensor, Var};
use warptile_candle::{Attention, flash_attn, write_to_pages, write_to_pages_quantized};

use crate::common::e4m3;
use crate::common::writes::{CACHES, check, check_e4m3};

#[test]
fn rows_go_to_their_slots() -> Result<()> {
    for cache in CACHES {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            check(cache, dtype, &Device::Cpu)?;
            check_e4m3(cache, dtype, &Device::Cpu)?;
        }
    }
    Ok(())
}

#[test]
fn a_cache_in_e4m3_is_read() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        e4m3::check(1, dtype, &Device::Cpu)?;
        e4m3::check(20, dtype, &Device::Cpu)?;
    }
    Ok(())
}

#[test]
fn bad_scales_are_named() -> Result<()> {
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu);
    let q = zeros(&[1, 3, 4, 16], DType::F16)?;
    let (k, wide) = (
        zeros(&[1, 5, 2, 16], DType::F8E4M3)?,
        zeros(&[1, 5, 2, 16], DType::F16)?,
    );
    let new = |scales: &[f32]| Tensor::new(scales, &Device::Cpu);
    let one = new(&[1.0])?;
    let forward = |keys: &Tensor, k_scale: &Tensor, v_scale: &Tensor| {
        let attention = Attention::new(1.0).scales(k_scale, v_scale);
        attention.forward(&q, keys, keys).unwrap_err().to_string()
    };
    let cases = [
        (
            Attention::new(1.0)
                .forward(&q, &k, &k)
                .unwrap_err()
                .to_string(),
            "k has dtype f8e4m3, which needs scales; use Attention::scales",
        ),
        (
            forward(&wide, &one, &one),
            "k has dtype f16, but must be f8e4m3, because scales are given",
        ),
        (
            forward(&k, &one.to_dtype(DType::F16)?, &one),
            "k_scale has dtype f16, but must be f32",
        ),
        (
            forward(&k, &one, &one.reshape((1, 1))?),
            "v_scale has shape [1, 1], but must be one number, or one entry per key/value head",
        ),
        (forward(&k, &one, &new(&[1.0; 3])?), "v_scale has 3"),
        (forward(&k, &new(&[0.0])?, &one), "k_scale[0] is 0"),
    ];
    for (found, expected) in cases {
        assert!(
            found.starts_with(&format!("attention: {expected}")),
            "{found}"
        );
    }
    let rows = zeros(&[3, 2, 16], DType::F16)?;
    let pages = zeros(&[5, 6, 2, 16], DType::F16)?;
    let slots = Tensor::new(&[0_i64, 1, 2], &Device::Cpu)?;
    let error = write_to_pages_quantized(&rows, &rows, &pages, &pages, &slots, &one, &one);
    let error = error.unwrap_err().to_string();
    let expected = "write-to-pages: k_pages has dtype f16, but must be f8e4m3";
    assert!(error.starts_with(expected), "{error}");
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
    let fewer = zeros(&[4, 6, 2, 16], DType::F16)?;
    let expanded = zeros(&[1, 6, 2, 16], DType::F16)?.broadcast_as((5, 6, 2, 16))?;
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
        (
            &k,
            &k,
            &pages,
            &fewer,
            slots.clone(),
            "v_pages has pages 4, but k_pages has 5",
        ),
        (
            &k,
            &k,
            &expanded,
            &pages,
            slots.clone(),
            "k_pages overlaps itself",
        ),
        (
            &k,
            &k,
            &pages,
            &expanded,
            slots.clone(),
            "v_pages overlaps itself",
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

/// A tensor that is read and written at once. The write is in a thread that nobody joins: it does not keep the test from failing.
#[test]
fn scales_in_the_memory_of_pages_are_refused() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let (k, pages, other) = (
        zeros(&[2, 2, 16])?,
        zeros(&[5, 6, 2, 16])?,
        zeros(&[5, 6, 2, 16])?,
    );
    let slots = Tensor::new(&[0_i64, 1], &Device::Cpu)?;
    let scale = pages.flatten_all()?.narrow(0, 0, 1)?;
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        let result = write_to_pages_quantized(&k, &k, &other, &pages, &slots, &scale, &scale);
        done.send(result.unwrap_err().to_string())
    });
    let error = ended.recv_timeout(Duration::from_secs(60));
    let error = error.expect("the write does not wait for itself");
    let expected = "write-to-pages: k_scale is a part of the tensor that it would be written to";
    assert!(error.starts_with(expected), "{error}");
    Ok(())
}

/// Calls that lock the same tensors in other orders and several times, as pages, as new rows, or as operands of attention, in threads at
/// the same time.
#[test]
fn orders_of_tensors_do_not_block_each_other() -> Result<()> {
    let tensor = || Tensor::zeros((4, 1, 2, 16), DType::F32, &Device::Cpu);
    let (a, b, c) = (tensor()?, tensor()?, tensor()?);
    let slots = Tensor::new(&[0_i64, 3], &Device::Cpu)?;
    let orders = [[&a, &b, &c], [&b, &a, &c], [&c, &b, &a], [&a, &c, &b]];
    let (done, ended) = mpsc::channel();
    for order in orders {
        let [keys, values, rows] = order.map(Tensor::clone);
        let (slots, done) = (slots.clone(), done.clone());
        // Threads that nobody joins: one that is blocked does not keep the test from failing.
        thread::spawn(move || {
            let write = || {
                let new = rows.squeeze(1)?.narrow(0, 0, 2)?;
                write_to_pages(&new, &new, &keys, &values, &slots)?;
                Attention::new(1.0).forward_with_lse(&keys, &values, &values)?;
                flash_attn(&rows, &keys, &values, 1.0, false)?;
                Attention::new(1.0).forward(&rows, &keys, &values).map(drop)
            };
            let result: Result<()> = { 0..5000 }.try_for_each(|_| write());
            done.send(result.map_err(|error| error.to_string()))
        });
    }
    for _ in orders {
        let result = ended.recv_timeout(Duration::from_secs(120));
        assert_eq!(result, Ok(Ok(())), "calls wait for each other");
    }
    Ok(())
}

/// Calls whose queries are variables read pages in either order while another thread writes to them.
#[test]
fn variables_and_writes_do_not_block_each_other() -> Result<()> {
    let tensor = || Tensor::zeros((4, 1, 2, 16), DType::F32, &Device::Cpu);
    let (q, a, b) = (Var::from_tensor(&tensor()?)?, tensor()?, tensor()?);
    let new = Tensor::zeros((2, 2, 16), DType::F32, &Device::Cpu)?;
    let slots = Tensor::new(&[0_i64, 3], &Device::Cpu)?;
    let table = Tensor::new(&[[0_u32], [1], [2], [3]], &Device::Cpu)?;
    let lengths = Tensor::new(&[1_u32; 4], &Device::Cpu)?;
    let (done, ended) = mpsc::channel();
    let calls = move |reads: bool, [keys, values]: [&Tensor; 2]| match reads {
        true => Attention::new(1.0)
            .paged(&table, &lengths, 1)
            .forward(&q, keys, values)
            .map(drop),
        false => write_to_pages(&new, &new, keys, values, &slots),
    };
    for reads in [true, false] {
        let (calls, done, a, b) = (calls.clone(), done.clone(), a.clone(), b.clone());
        // Threads that nobody joins: one that is blocked does not keep the test from failing.
        thread::spawn(move || {
            let both = || calls(reads, [&a, &b]).and_then(|()| calls(reads, [&b, &a]));
            let result: Result<()> = { 0..5000 }.try_for_each(|_| both());
            done.send(result.map_err(|error| error.to_string()))
        });
    }
    for _ in 0..2 {
        let result = ended.recv_timeout(Duration::from_secs(120));
        assert_eq!(result, Ok(Ok(())), "calls wait for each other");
    }
    Ok(())
}
