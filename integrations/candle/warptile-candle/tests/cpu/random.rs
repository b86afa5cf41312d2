//! Random problems by every function that takes them.

use candle_core::{DType, Device, Result, Tensor};
use quickcheck::quickcheck;
use warptile_candle::{flash_attn, flash_attn_windowed};

use crate::common::assert_close;
use crate::common::calls::{dense, packed, paged, repeated_heads};
use crate::common::draw::Problem;
use crate::common::reference::{Options, attention};

quickcheck! {
    fn dense_tensors(problem: Problem) -> bool {
        dense(&problem, &Device::Cpu).map_err(|error| panic!("{error}")).is_ok()
    }

    fn packed_sequences(problem: Problem) -> bool {
        packed(&problem, &Device::Cpu).map_err(|error| panic!("{error}")).is_ok()
    }

    fn keys_in_pages(problem: Problem) -> bool {
        paged(&problem, &Device::Cpu, true).map_err(|error| panic!("{error}")).is_ok()
    }
}

#[test]
fn heads_repeated_by_a_stride_of_0() -> Result<()> {
    repeated_heads(&Device::Cpu)
}

/// A window as wide as the keys hides some from the first of many queries; a wider one is no limit, as in candle-flash-attn.
#[test]
fn windows_wider_than_the_keys() -> Result<()> {
    let q = Tensor::randn(0_f32, 1.0, (1, 9, 1, 8), &Device::Cpu)?;
    let k = Tensor::ones((1, 3, 1, 8), DType::F32, &Device::Cpu)?;
    let first = |right: usize| {
        let out = flash_attn_windowed(&q, &k, &k, 1.0, None, Some(right))?;
        out.flatten_all()?.get(0)?.to_scalar::<f32>()
    };
    assert_eq!((first(3)?, first(4)?), (0.0, 1.0));
    Ok(())
}

/// Without a limit to the right the first of many queries see all keys. In candle-flash-attn they see none: its limit there is as many keys
/// as there are.
#[test]
fn windows_without_a_right_side() -> Result<()> {
    let q = Tensor::randn(0_f32, 1.0, (1, 100, 2, 8), &Device::Cpu)?;
    let k = Tensor::randn(0_f32, 1.0, (1, 40, 2, 8), &Device::Cpu)?;
    let found = flash_attn_windowed(&q, &k, &k, 0.3, Some(3), None)?.get(0)?;
    let (q, k) = (q.get(0)?, k.get(0)?);
    let expected = |left| {
        let options = Options {
            scale: 0.3,
            left,
            ..Options::default()
        };
        Ok::<_, candle_core::Error>(attention(&q, &k, &k, &options)?.0)
    };
    assert_close(&found, &expected(Some(3))?, DType::F32, "all rows")?;
    let first = |rows: &Tensor| rows.narrow(0, 0, 1);
    let unmasked = expected(None)?;
    assert_close(&first(&found)?, &first(&unmasked)?, DType::F32, "row 0")
}

/// A column of the output follows from the same column of v, however many there are.
#[test]
fn values_of_another_head_size() -> Result<()> {
    let normal =
        |shape: (usize, usize, usize, usize)| Tensor::randn(0_f32, 1.0, shape, &Device::Cpu);
    let (q, k, v) = (
        normal((2, 9, 4, 24))?,
        normal((2, 13, 2, 24))?,
        normal((2, 13, 2, 40))?,
    );
    let wide = flash_attn(&q, &k, &v, 0.2, true)?;
    assert_eq!(wide.dims(), [2, 9, 4, 40]);
    for size in [8, 24] {
        let narrow = flash_attn(&q, &k, &v.narrow(3, 0, size)?, 0.2, true)?;
        assert_eq!(narrow.dims(), [2, 9, 4, size]);
        let difference = (wide.narrow(3, 0, size)? - narrow)?.abs()?;
        assert!(difference.max_all()?.to_scalar::<f32>()? < 1e-6);
    }
    Ok(())
}
