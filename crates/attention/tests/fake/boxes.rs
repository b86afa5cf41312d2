//! Biases and masks as kernels get them through tensor maps.

use warptile::kernels::abi::ForwardTmaBoxes;
use warptile::{Attention, Keys, Layout};
use warptile_fake_cuda::FakeDriver;

use crate::{kernel, ones, ones_on};

/// The bias may begin anywhere, and is the same for both sequences.
#[test]
fn a_map_begins_at_a_multiple_of_16_bytes() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [2, 128, 4, 128]);
    let all = ones_on(&backend, [1, 1, 128 * 4 * 144, 1]);
    let address = all.device_slice().unwrap().pointer();
    let attention = Attention::new().choice(kernel("wgmma_d128_192x64_w16_s4"));
    for first in [0, 3, 8] {
        let bias = all.heads(first..first + 1).unwrap();
        let layout = Layout::new([1, 128, 4, 128], [0, 4 * 144, 144, 1]);
        let bias = bias.view_as(layout).unwrap();
        let keys = Keys::new(&x, &x).bias(&bias);
        attention.forward(&x, keys).unwrap();
        backend.synchronize().unwrap();
        let launches = fake.launches();
        fake.forget_launches();
        let block: ForwardTmaBoxes = bytemuck::pod_read_unaligned(launches[0].params());
        let before = first as u64 % 8;
        let from = address + 2 * (first as u64 - before);
        assert_eq!(block.before as u64, before);
        assert_eq!(
            block.boxes_map.opaque[..6],
            [from, 4, 128 + before, 128, 4, 1]
        );
    }
}
