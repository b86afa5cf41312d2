//! Cache writes on the CPU.

use half::{bf16, f16};
use quickcheck::quickcheck;
use warptile::{AppendOperands, CacheMut, Element, QueriesMut, Tables, append_cpu};

use crate::append_cases::{AngleTables, AppendCase, Appends};

struct OnCpu;

impl<T: Element> Appends<T> for OnCpu {
    fn append(&mut self, case: &mut AppendCase<T>) {
        let append = case.describe(false, false);
        let (keys, values) = &mut case.caches;
        let keys = &mut keys.data[keys.offset..];
        let cache = match case.together {
            Some(at) => CacheMut::Together(keys, at).into(),
            None => CacheMut::Apart(keys, &mut values.data[values.offset..]).into(),
        };
        let queries = case.q.as_mut().map(|(q, out)| match out {
            Some(out) => QueriesMut::Into(&q.data[q.offset..], &mut out.data[out.offset..]),
            None => QueriesMut::InPlace(&mut q.data[q.offset..]),
        });
        let tables = case.tables.as_ref().map(|tables| match tables {
            AngleTables::F32(cos, sin) => {
                Tables::F32(&cos.data[cos.offset..], &sin.data[sin.offset..])
            }
            AngleTables::Elements(cos, sin) => {
                Tables::Elements(&cos.data[cos.offset..], &sin.data[sin.offset..])
            }
        });
        let operands = AppendOperands {
            k: &case.k.data[case.k.offset..],
            v: &case.v.data[case.v.offset..],
            cache,
            queries,
            tables,
        };
        append_cpu(&append, operands).unwrap();
    }
}

fn verify<T: Element>(seed: u64) -> bool {
    match AppendCase::<T>::random(seed, false).verify(&mut OnCpu) {
        Ok(()) => true,
        Err(failure) => panic!("seed {seed}: {failure}"),
    }
}

quickcheck! {
    fn writes_equal_float64(seed: u64) -> bool {
        verify::<f16>(seed) && verify::<bf16>(seed) && verify::<f32>(seed)
    }
}
