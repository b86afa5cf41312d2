//! A small model learns as with candle's own operations, and twice the same. The example `train` has a larger one.

use candle_core::{Device, Result};
use warptile_candle::flash_attn;

use crate::model::{Attend, Size, Training, composed};

const STEPS: usize = 60;

const SIZE: Size = Size {
    layers: 1,
    heads: 2,
    head_size: 8,
    length: 16,
    batch: 4,
};

const TEXT: &[u8] = include_bytes!("../../README.md");

fn losses(attend: Attend) -> Result<(Vec<f32>, Vec<Vec<f32>>)> {
    let mut training = Training::new(SIZE, 7, attend, &Device::Cpu)?;
    let losses: Result<_> = (0..STEPS).map(|_| training.step(TEXT)).collect();
    Ok((losses?, training.weights()?))
}

#[test]
fn a_model_learns_as_with_candles_own_operations() -> Result<()> {
    let fused: Attend = |q, k, v, scale| flash_attn(q, k, v, scale, true);
    let ((ours, weights), (theirs, _)) = (losses(fused)?, losses(composed)?);
    assert!(ours[STEPS - 1] < 0.9 * ours[0], "{ours:?}");
    for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        // Rounding grows from step to step.
        let tolerance = 1e-6 * 1.03_f32.powi(step as i32);
        assert!(
            (ours - theirs).abs() <= tolerance * theirs,
            "{step}: {ours} {theirs}"
        );
    }
    let (again, same) = losses(fused)?;
    assert!(
        ours == again && weights == same,
        "the same seed gave other weights"
    );
    Ok(())
}
