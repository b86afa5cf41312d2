//! Dropout as kernels get it.

use warptile::kernels::abi::{BackwardDropout, BackwardTmaDropout};
use warptile::spec::DropoutState;
use warptile::{Attention, Keys};
use warptile_fake_cuda::FakeDriver;

use crate::operations::block;
use crate::{ones, ones_on};

/// Weights are rounded to f16 behind it.
#[test]
fn the_factor_of_kept_weights_fits_f16() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [1, 128, 2, 64]);
    let bias = ones_on(&backend, [1, 128, 2, 128]);
    let state = DropoutState::new(1, 2);
    let attention = Attention::new().dropout(65_535.0 / 65_536.0, state);
    // The pair has a bias, one pass has not.
    for has_bias in [false, true] {
        let keys = || match has_bias {
            true => Keys::from((&x, &x)).bias(&bias),
            false => Keys::from((&x, &x)),
        };
        let output = attention.forward(&x, keys()).unwrap();
        fake.forget_launches();
        attention.backward(&x, &x, keys(), &output).unwrap();
        backend.synchronize().unwrap();
        let launches = fake.launches();
        let factors: Vec<f32> = { launches.iter() }
            .filter_map(|launch| match launch.params().len() {
                n if n == size_of::<BackwardTmaDropout>() => {
                    Some(block::<BackwardTmaDropout>(launch).dropout.factor)
                }
                n if n == size_of::<BackwardDropout>() => {
                    Some(block::<BackwardDropout>(launch).dropout.factor)
                }
                _ => None,
            })
            .collect();
        assert_eq!(factors, [65_504.0, 65_504.0][..1 + usize::from(has_bias)]);
    }
}
