//! Cache writes on the CPU.

use half::{bf16, f16};
use quickcheck::quickcheck;
use warptile::{
    AppendOperands, Backend, CacheMut, CacheWrite, Element, Pairing, QueriesMut, Result, Tables,
    append_cpu,
};

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

/// Rows of the tables, rows before the new ones, and a position if one is given.
fn write_with_tables(rows: usize, before: i32, position: Option<i32>) -> (Result<()>, Vec<f32>) {
    let backend = Backend::cpu();
    let table = |number| {
        backend
            .tensor(&vec![number; rows], [1, rows, 1, 1])
            .unwrap()
    };
    let (cos, sin) = (table(0.0_f32), table(1.0));
    let new = backend.tensor(&[1.0_f32, 2.0], [1, 1, 1, 2]).unwrap();
    let pages = || backend.tensor(&[9.0_f32; 32], [1, 16, 1, 2]).unwrap();
    let (mut keys, mut values) = (pages(), pages());
    let (lengths, positions) = ([before], position.map(|position| [position]));
    let mut write = CacheWrite::new(&new, &new, (&mut keys, &mut values))
        .after(&lengths)
        .rotary_f32(&cos, &sin, Pairing::Interleaved)
        .unwrap();
    if let Some(positions) = &positions {
        write = write.positions(positions);
    }
    let result = write.run();
    let all = [keys.to_vec().unwrap(), values.to_vec().unwrap()].concat();
    (result, all)
}

#[test]
fn a_position_beyond_the_tables_is_refused_before_anything_is_written() {
    for (rows, before, position, expected) in [
        (
            3,
            7,
            None,
            "key_lengths[0] is 7, and 1 rows follow, but cos and sin have rows for 3 positions",
        ),
        (
            7,
            7,
            None,
            "key_lengths[0] is 7, and 1 rows follow, but cos and sin have rows for 7 positions",
        ),
        (
            3,
            7,
            Some(3),
            "positions[0] is 3, but cos and sin have 3 rows",
        ),
        (
            8,
            7,
            Some(i32::MAX),
            "positions[0] is 2147483647, but cos and sin have 8 rows",
        ),
    ] {
        let (result, all) = write_with_tables(rows, before, position);
        assert_eq!(result.unwrap_err().to_string(), expected);
        assert_eq!(all, [9.0; 64]);
    }
    for (rows, position) in [(8, None), (3, Some(2)), (3, Some(-5))] {
        let (result, all) = write_with_tables(rows, 7, position);
        result.unwrap();
        assert_eq!(
            (&all[14..16], &all[46..48]),
            (&[-2.0, 1.0][..], &[1.0, 2.0][..])
        );
    }
}

quickcheck! {
    fn writes_equal_float64(seed: u64) -> bool {
        verify::<f16>(seed) && verify::<bf16>(seed) && verify::<f32>(seed)
    }
}
