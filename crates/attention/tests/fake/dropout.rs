//! Dropout as kernels get it.

use half::{bf16, f16};
use warptile::kernels::abi::{BackwardDropout, BackwardTmaDropout};
use warptile::spec::DropoutState;
use warptile::{Attention, Backend, Element, Keys};
use warptile_fake_cuda::FakeDriver;

use crate::driver;
use crate::operations::block;

/// The dropout factors in the launches that compute the gradients of queries and of keys.
fn factors<T: Element>(one: T, has_bias: bool) -> Vec<f32> {
    let fake = FakeDriver::open();
    let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
    let ones = |shape: [usize; 4]| {
        let data = vec![one; shape.iter().product()];
        backend.tensor(&data, shape).unwrap()
    };
    let (x, bias) = (ones([1, 128, 2, 64]), ones([1, 128, 2, 128]));
    let keys = || match has_bias {
        true => Keys::from((&x, &x)).bias(&bias),
        false => Keys::from((&x, &x)),
    };
    let attention = Attention::new().dropout(65_535.0 / 65_536.0, DropoutState::new(1, 2));
    let output = attention.forward(&x, keys()).unwrap();
    fake.forget_launches();
    attention.backward(&x, &x, keys(), &output).unwrap();
    backend.synchronize().unwrap();
    let launches = fake.launches();
    { launches.iter() }
        .filter_map(|launch| match launch.params().len() {
            n if n == size_of::<BackwardTmaDropout>() => {
                Some(block::<BackwardTmaDropout>(launch).dropout.factor)
            }
            n if n == size_of::<BackwardDropout>() => {
                Some(block::<BackwardDropout>(launch).dropout.factor)
            }
            _ => None,
        })
        .collect()
}

/// The pair, which has a bias, rounds weights to f16 behind the factor. Kernels of one pass limit it themselves.
#[test]
fn the_factor_of_kept_weights_fits_f16() {
    assert_eq!(factors(f16::ONE, false), [65_536.0]);
    assert_eq!(factors(f16::ONE, true), [65_504.0; 2]);
    assert_eq!(factors(bf16::ONE, true), [65_536.0; 2]);
}
