//! The tests that a GPU runs, too. Here nothing is used after it was freed, and nothing is left.

use warptile_fake_cuda::FakeDriver;

use crate::{context, work};

/// Elements of the larger buffers: the stand-in adds one by one.
const LEN: usize = 1000;

macro_rules! on_the_stand_in {
    ($($name:ident,)*) => {$(
        #[test]
        fn $name() {
            let fake = FakeDriver::open();
            work::$name(&context(&fake).unwrap(), LEN);
            fake.assert_clean();
        }
    )*};
}
work::all_work!(on_the_stand_in);

#[test]
fn everything_works_at_once_and_many_times() {
    let fake = FakeDriver::open();
    work::everything_at_once(&context(&fake).unwrap(), LEN, 2);
    fake.assert_clean();
}
