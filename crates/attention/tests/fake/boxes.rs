//! Biases and masks as kernels get them through tensor maps.

use half::f16;
use warptile::driver::{DeviceBuffer, Stream};
use warptile::gpu::Bindings;
use warptile::kernels::Operand;
use warptile::kernels::abi::ForwardTmaBoxes;
use warptile::spec::{Call, ElementType, Invalid};
use warptile::{Attention, Error, Keys, Layout};
use warptile_fake_cuda::FakeDriver;

use crate::{addresses, gpu, kernel, ones, ones_on};

/// The bias is the same for both sequences. One that begins elsewhere is for kernels that read it number by number.
#[test]
fn a_map_begins_at_a_multiple_of_16_bytes() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [2, 128, 4, 128]);
    let all = ones_on(&backend, [1, 1, 128 * 4 * 144, 1]);
    let address = all.device_slice().unwrap().pointer();
    let attention = Attention::new().choice(kernel("wgmma_d128_192x64_w16_s4"));
    for first in [0, 3, 8, 9] {
        let bias = all.heads(first..first + 1).unwrap();
        let layout = Layout::new([1, 128, 4, 128], [0, 4 * 144, 144, 1]);
        let bias = bias.view_as(layout).unwrap();
        let keys = Keys::new(&x, &x).bias(&bias);
        if first % 8 != 0 {
            let plan = Attention::new().plan(&x, keys.clone()).unwrap();
            assert!(!plan.to_string().contains("_bias_"), "{plan}");
            assert!(attention.forward(&x, keys).is_err());
            continue;
        }
        attention.forward(&x, keys).unwrap();
        backend.synchronize().unwrap();
        let launches = fake.launches();
        fake.forget_launches();
        let block: ForwardTmaBoxes = bytemuck::pod_read_unaligned(launches[0].params());
        let from = address + 2 * first as u64;
        assert_eq!(block.before, 0);
        assert_eq!(block.boxes_map.opaque[..6], [from, 4, 128, 128, 4, 1]);
    }
}

/// A description says where a bias begins, and its kernel is chosen by that.
#[test]
fn an_address_that_breaks_the_description_is_refused() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let rows = Layout::bshd([1, 128, 4, 128]);
    let bias = Layout::bhsd([1, 4, 128, 128]);
    let call = Call::builder(&rows, &rows, &rows, ElementType::F16)
        .layout(Operand::Bias, bias)
        .want_lse(false)
        .build()
        .unwrap();
    let stream = Stream::new(gpu.context()).unwrap();
    let zeros = || DeviceBuffer::<f16>::zeroed(&stream, 4 * 128 * 128 + 8).unwrap();
    let (memory, mut out) = (zeros(), zeros());
    let choice = kernel("wgmma_d128_192x64_w16_s4");
    let prepared = gpu.prepare(call.problem(), &choice).unwrap();
    let is_misaligned = |error: &Error| {
        matches!(
            error,
            Error::Invalid(Invalid::Misaligned {
                argument: "bias",
                alignment: 16,
                ..
            })
        )
    };
    let (from, to) = (memory.pointer(), out.pointer());
    let rows = [Operand::Q, Operand::K, Operand::V].map(|operand| (operand, from));
    let at = |bias| {
        addresses(
            rows.into_iter()
                .chain([(Operand::Out, to), (Operand::Bias, bias)]),
        )
    };
    prepared.check_raw(&call, &at(from)).unwrap();
    let refused = prepared.check_raw(&call, &at(from + 6)).unwrap_err();
    assert!(is_misaligned(&refused), "{refused}");
    for first in [0, 3] {
        let whole = || memory.as_slice();
        let bindings = Bindings::new(whole(), whole(), whole(), out.as_slice_mut());
        let bindings = bindings.with(Operand::Bias, memory.slice(first..).unwrap());
        let launched = prepared.launch(&stream, &call, &bindings);
        stream.synchronize().unwrap();
        assert_eq!(fake.launches().len(), usize::from(first == 0));
        fake.forget_launches();
        let Err(error) = launched else {
            assert_eq!(first, 0);
            continue;
        };
        assert!(is_misaligned(&error) && first == 3, "{error}");
    }
}
