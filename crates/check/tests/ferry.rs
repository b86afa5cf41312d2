//! Copies by way of pinned memory, on the stand-in driver: what was queued there runs when somebody waits.

use warptile_check::Ferry;
use warptile_driver::{Context, DeviceBuffer, Driver, Stream};
use warptile_fake_cuda::{FakeDriver, Kind};

fn open() -> (FakeDriver, Context, Stream) {
    let fake = FakeDriver::open();
    // SAFETY: the library is the stand-in, with the driver's signatures.
    let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
    let context = Context::new(&driver.device(0).unwrap()).unwrap();
    let stream = Stream::new(&context).unwrap();
    (fake, context, stream)
}

#[test]
fn what_is_ferried_comes_back() {
    let (fake, context, stream) = open();
    let ferry = Ferry::default();
    // Around what is copied at once, and more than may be under way.
    for len in [0, 1, 1024, 1025, 1 << 20, (1 << 20) + 1, 20 << 20] {
        let values: Vec<u32> = (0..len).map(|i| i ^ len).collect();
        let on_device = ferry.upload(&stream, &values).unwrap();
        assert!(on_device.to_vec().unwrap() == values, "{len} to the device");
        assert!(ferry.download(&on_device).unwrap() == values, "{len} back");
    }
    drop((ferry, stream, context));
    fake.assert_clean();
}

#[test]
fn nothing_waits_but_for_what_comes() {
    let (fake, context, stream) = open();
    let ferry = Ferry::default();
    let waits = || fake.calls_of("cuStreamSynchronize");
    let before = waits();
    let mut values = vec![1_u16; 700];
    let first = ferry.upload(&stream, &values).unwrap();
    // The caller's again, though the copy has not run.
    values.fill(2);
    let second = ferry.upload(&stream, &values).unwrap();
    let (coming, later) = (
        ferry.begin_download(&first).unwrap(),
        ferry.begin_download(&second).unwrap(),
    );
    assert!(fake.pending() > 0);
    assert_eq!(waits(), before);
    assert_eq!(later.wait().unwrap(), [2; 700]);
    assert_eq!(coming.wait().unwrap(), [1; 700]);
    drop((first, second, ferry, stream, context));
    fake.assert_clean();
}

#[test]
fn pinned_memory_is_used_again() {
    let (fake, context, stream) = open();
    let ferry = Ferry::default();
    let round = |byte: u8| {
        let sizes = [3_usize, 5000, 5000, 100_000];
        let sent = sizes.map(|len| ferry.upload(&stream, &vec![byte; len]).unwrap());
        for (buffer, len) in sent.iter().zip(sizes) {
            assert!(ferry.download(buffer).unwrap() == vec![byte; len]);
        }
    };
    (0..20).for_each(round);
    // At most one for each copy of a round.
    assert!(fake.live(Kind::PinnedMemory) <= 8);
    drop((ferry, stream, context));
    fake.assert_clean();
}

#[test]
fn a_copy_that_nobody_waits_for_keeps_its_memory_until_it_is_done() {
    let (fake, context, stream) = open();
    let ferry = Ferry::default();
    let on_device = ferry.upload(&stream, &[7_i32; 2000]).unwrap();
    drop(ferry.begin_download(&on_device).unwrap());
    drop(ferry);
    assert_eq!(on_device.to_vec().unwrap(), [7; 2000]);
    let none = Ferry::default();
    let empty = DeviceBuffer::<f64>::uninit(&stream, 0).unwrap();
    assert!(none.download(&empty).unwrap().is_empty());
    drop((on_device, none, empty, stream, context));
    fake.assert_clean();
}

#[test]
fn copies_whose_wait_fails_are_under_way_no_more() {
    const UNKNOWN: u32 = 999; // CUDA_ERROR_UNKNOWN
    let (fake, context, stream) = open();
    let ferry = Ferry::default();
    // Each time one of 4 MiB fails, of 16 that may be under way.
    for _ in 0..8 {
        // More than may be under way, so that the next copy waits.
        let sent = [(); 5].map(|()| ferry.upload(&stream, &[3_u8; 4 << 20]).unwrap());
        fake.fail_always(&["cuEventSynchronize"], UNKNOWN);
        assert!(ferry.upload(&stream, &[1_u8]).is_err());
        fake.fail_always(&[], 0);
        assert!(ferry.download(&sent[0]).unwrap() == [3; 4 << 20]);
    }
    drop((ferry, stream, context));
    fake.assert_clean();
}
