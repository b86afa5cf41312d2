//! Problems drawn from a seed, and attention by candle's own operations.

pub(crate) mod calls;
pub(crate) mod draw;
pub(crate) mod e4m3;
pub(crate) mod reference;
pub(crate) mod writes;

use candle_core::{DType, Result, Tensor};

/// Fails if two tensors differ by more than the rounding of `dtype` explains.
pub(crate) fn assert_close(
    found: &Tensor,
    expected: &Tensor,
    dtype: DType,
    what: &str,
) -> Result<()> {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    // Both sides round: the expected values come from f64, ours are computed in f32, or on a GPU with weights of `dtype`.
    let relative = match dtype {
        DType::F32 => 5e-5,
        DType::F16 => 2e-3,
        _ => 1.6e-2,
    };
    let list = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    for (index, (found, expected)) in list(found)?.into_iter().zip(list(expected)?).enumerate() {
        let close = match expected.is_finite() {
            true => (found - expected).abs() <= relative * (1.0 + expected.abs()),
            false => found == expected,
        };
        assert!(
            close,
            "{what}: element {index} is {found}, expected {expected}"
        );
    }
    Ok(())
}
