//! The functions have the types that candle-flash-attn 0.11 gives them: a call that compiles with it compiles here.

use candle_core::{CustomOp3, Result, Tensor};
use warptile_candle as candle_flash_attn;

type T<'a> = &'a Tensor;
type Window = Option<usize>;

#[test]
#[expect(clippy::type_complexity, reason = "the types are what is checked")]
fn the_functions_of_candle_flash_attn() {
    let _: fn(T<'_>, T<'_>, T<'_>, f32, bool) -> Result<Tensor> = candle_flash_attn::flash_attn;
    let _: fn(T<'_>, T<'_>, T<'_>, f32, Window, Window) -> Result<Tensor> =
        candle_flash_attn::flash_attn_windowed;
    let _: fn(T<'_>, T<'_>, T<'_>, T<'_>, f32, bool) -> Result<Tensor> =
        candle_flash_attn::flash_attn_alibi;
    let _: fn(T<'_>, T<'_>, T<'_>, T<'_>, f32, Window, Window) -> Result<Tensor> =
        candle_flash_attn::flash_attn_alibi_windowed;
    let _: fn(T<'_>, T<'_>, T<'_>, Option<T<'_>>, f32, Window, Window, f32) -> Result<Tensor> =
        candle_flash_attn::flash_attn_alibi_windowed_softcap;
    let _: fn(T<'_>, T<'_>, T<'_>, T<'_>, T<'_>, usize, usize, f32, bool) -> Result<Tensor> =
        candle_flash_attn::flash_attn_varlen;
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
    ) -> Result<Tensor> = candle_flash_attn::flash_attn_varlen_windowed;
    let _: fn(T<'_>, T<'_>, T<'_>, T<'_>, T<'_>, T<'_>, usize, usize, f32, bool) -> Result<Tensor> =
        candle_flash_attn::flash_attn_varlen_alibi;
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
    ) -> Result<Tensor> = candle_flash_attn::flash_attn_varlen_alibi_windowed;
    let _: fn(
        T<'_>,
        T<'_>,
        T<'_>,
        Option<T<'_>>,
        T<'_>,
        T<'_>,
        usize,
        usize,
        f32,
        Window,
        Window,
        f32,
    ) -> Result<Tensor> = candle_flash_attn::flash_attn_varlen_alibi_windowed_softcap;
    let _: fn(
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        T<'_>,
        Option<T<'_>>,
        usize,
        usize,
        f32,
        Window,
        Window,
        usize,
        Option<f32>,
    ) -> Result<Tensor> = candle_flash_attn::flash_attn_varlen_paged_windowed;
}

#[test]
fn the_operation_of_candle_flash_attn() -> Result<()> {
    let operation = candle_flash_attn::FlashAttn {
        softmax_scale: 0.125,
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: Some(0),
        softcap: None,
    };
    assert_eq!(operation.name(), "flash-attn");
    let q = Tensor::randn(0_f32, 1.0, (1, 7, 2, 64), &candle_core::Device::Cpu)?;
    let by_operation = q.apply_op3(&q, &q, operation)?;
    let by_function = candle_flash_attn::flash_attn(&q, &q, &q, 0.125, true)?;
    let difference = (by_operation - by_function)?
        .abs()?
        .max_all()?
        .to_scalar::<f32>()?;
    assert_eq!(difference, 0.0);
    Ok(())
}
