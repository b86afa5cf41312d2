//! Random problems by every function that takes them.

use candle_core::Device;
use quickcheck::quickcheck;

use crate::common::calls::{dense, packed, paged};
use crate::common::draw::Problem;

quickcheck! {
    fn dense_tensors(problem: Problem) -> bool {
        dense(&problem, &Device::Cpu).map_err(|error| panic!("{error}")).is_ok()
    }

    fn packed_sequences(problem: Problem) -> bool {
        packed(&problem, &Device::Cpu).map_err(|error| panic!("{error}")).is_ok()
    }

    fn keys_in_pages(problem: Problem) -> bool {
        paged(&problem, &Device::Cpu, true).map_err(|error| panic!("{error}")).is_ok()
    }
}
