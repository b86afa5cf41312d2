//! Lists of blocks as kernels get them: by address, with how they are arranged.

use warptile::kernels::abi::{BlockLists as Listed, ForwardBlocks, ForwardTmaBlocks};
use warptile::{Attention, BlockList, BlockLists, Keys};
use warptile_driver::DeviceBuffer;
use warptile_fake_cuda::{FakeDriver, FakeLaunch};

use crate::calls::on_device;
use crate::{kernel, ones};

fn lists(launch: &FakeLaunch) -> Listed {
    let bytes = launch.params();
    let at = match bytes.len() == size_of::<ForwardBlocks>() {
        true => std::mem::offset_of!(ForwardBlocks, blocks),
        false => {
            assert_eq!(bytes.len(), size_of::<ForwardTmaBlocks>());
            std::mem::offset_of!(ForwardTmaBlocks, blocks)
        }
    };
    bytemuck::pod_read_unaligned(&bytes[at..at + size_of::<Listed>()])
}

#[test]
fn lists_travel_with_the_call_or_lie_on_the_device() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [2, 100, 4, 64]);
    let arranged = BlockLists::new(64, 128).per_batch().per_head();
    let offsets: Vec<i32> = (0..=24).collect();
    let list = BlockList::new(arranged, offsets.clone(), vec![0; 24]);
    let stream = backend.gpu().unwrap().stream();
    let given = DeviceBuffer::from_slice(stream, &offsets).unwrap();
    let indices = DeviceBuffer::from_slice(stream, &[0_i32; 24]).unwrap();
    for name in [
        "wgmma_d64_128x128_w12_s2",
        "wgmma_d64_64x128_w8_s2",
        "mma_d64_64x64_w4_s2",
    ] {
        let attention = Attention::new().choice(kernel(name));
        attention
            .forward(&x, Keys::new(&x, &x).blocks(&list))
            .unwrap();
        let keys = Keys::new(&x, &x);
        let keys = keys.blocks_on_device(arranged, given.as_slice(), indices.as_slice());
        attention.forward(&x, keys).unwrap();
        backend.synchronize().unwrap();
        let launches = fake.launches();
        fake.forget_launches();
        let [host, device] = [&launches[0], &launches[1]].map(lists);
        assert_eq!(on_device::<i32>(host.offsets, 25), offsets);
        assert_eq!(on_device::<i32>(host.indices, 24), [0; 24]);
        assert_eq!(
            (device.offsets, device.indices),
            (given.pointer(), indices.pointer())
        );
        for lists in [host, device] {
            assert_eq!((lists.rows, lists.count), (3, 24), "{name}");
            assert_eq!((lists.batch_step, lists.head_step), (4, 1));
            assert_eq!((lists.queries, lists.keys), (64, 128));
        }
    }
    // Nothing is launched with too few offsets.
    let keys = Keys::new(&x, &x);
    let short = given.slice(..8).unwrap();
    let keys = keys.blocks_on_device(arranged, short, indices.as_slice());
    let error = Attention::new().forward(&x, keys).unwrap_err().to_string();
    assert!(
        error.starts_with("block_offsets[8] ends the list"),
        "{error}"
    );
    assert!(fake.launches().is_empty());
    drop((x, given, indices, backend));
    fake.assert_clean();
}

#[test]
fn nothing_is_launched_for_an_empty_batch() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [0, 128, 4, 64]);
    let arranged = BlockLists::new(64, 64).per_batch().per_head();
    let list = BlockList::new(arranged, vec![0], vec![]);
    let keys = Keys::new(&x, &x).blocks(&list);
    Attention::new().forward(&x, keys).unwrap();
    let sloped = Attention::new().alibi_slopes(&[]);
    let output = sloped.forward(&x, (&x, &x)).unwrap();
    backend.synchronize().unwrap();
    assert!(fake.launches().is_empty());
    drop((x, output, backend));
    fake.assert_clean();
}
