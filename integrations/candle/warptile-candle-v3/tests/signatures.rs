//! The functions have the types that candle-flash-attn-v3 0.11 gives them, and compute what `warptile_candle` does.

use candle_core::{CustomOp3, Device, Result, Tensor};
use warptile_candle_v3 as candle_flash_attn_v3;

type T<'a> = &'a Tensor;
type Window = Option<usize>;

#[test]
#[expect(clippy::type_complexity, reason = "the types are what is checked")]
fn the_functions_of_candle_flash_attn_v3() {
    let _: fn(T<'_>, T<'_>, T<'_>, f32, bool, bool) -> Result<Tensor> =
        candle_flash_attn_v3::flash_attn;
    let _: fn(T<'_>, T<'_>, T<'_>, f32, Window, Window, bool) -> Result<Tensor> =
        candle_flash_attn_v3::flash_attn_windowed;
    let _: fn(T<'_>, T<'_>, T<'_>, T<'_>, f32, bool, bool) -> Result<Tensor> =
        candle_flash_attn_v3::flash_attn_alibi;
    let _: fn(T<'_>, T<'_>, T<'_>, T<'_>, f32, Window, Window, bool) -> Result<Tensor> =
        candle_flash_attn_v3::flash_attn_alibi_windowed;
    let _: fn(T<'_>, T<'_>, T<'_>, T<'_>, T<'_>, usize, usize, f32, bool, bool) -> Result<Tensor> =
        candle_flash_attn_v3::flash_attn_varlen;
    let _: fn(
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        usize,
        usize,
        f32,
        Window,
        Window,
        bool,
    ) -> Result<Tensor> = candle_flash_attn_v3::flash_attn_varlen_windowed;
    let _: fn(
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        usize,
        usize,
        f32,
        bool,
        bool,
    ) -> Result<Tensor> = candle_flash_attn_v3::flash_attn_varlen_alibi;
    let _: fn(
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        usize,
        usize,
        f32,
        Window,
        Window,
        bool,
    ) -> Result<Tensor> = candle_flash_attn_v3::flash_attn_varlen_alibi_windowed;
}

#[test]
fn gqa_packing_makes_no_difference() -> Result<()> {
    let q = Tensor::randn(0_f32, 1.0, (2, 7, 4, 64), &Device::Cpu)?;
    let k = Tensor::randn(0_f32, 1.0, (2, 9, 2, 64), &Device::Cpu)?;
    let slopes = Tensor::new(&[0.5_f32, 0.25, 0.125, 0.0], &Device::Cpu)?;
    let expected =
        warptile_candle::flash_attn_alibi_windowed(&q, &k, &k, &slopes, 0.125, Some(3), Some(1))?;
    let operation = candle_flash_attn_v3::FlashAttn {
        softmax_scale: 0.125,
        alibi_slopes: Some(slopes.clone()),
        window_size_left: Some(3),
        window_size_right: Some(1),
        use_gqa_packing: true,
    };
    assert_eq!(operation.name(), "flash-attn-v3");
    let by_function = candle_flash_attn_v3::flash_attn_alibi_windowed(
        &q,
        &k,
        &k,
        &slopes,
        0.125,
        Some(3),
        Some(1),
        true,
    )?;
    for found in [q.apply_op3(&k, &k, operation)?, by_function] {
        let difference = (found - &expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert_eq!(difference, 0.0);
    }
    Ok(())
}
