//! Outputs and gradients of a sequence alone and among others.

use warptile::spec::Heads;
use warptile::{Attention, Backend, Element, Keys, Output, Queries, Tensor};

use crate::draw::Random;

/// Gradients, element by element: dq, dk and dv.
type Bits = [Vec<u8>; 3];

/// Checks that sequences of random lengths have the same gradients, bit for bit, alone, packed in any order, and in a dense batch.
pub(crate) fn check<T: Element>(
    backend: &Backend,
    attention: &Attention,
    heads: Heads,
    longest: usize,
    seed: u64,
) {
    let mut random = Random(seed);
    let lengths: Vec<[usize; 2]> = (0..random.within(2, 6))
        .map(|_| [random.within(1, longest), random.within(1, longest)])
        .collect();
    let rows = [heads.query * heads.dim, heads.key_value * heads.dim];
    // Those of q and of the output's gradient, then of k and v.
    let sequences: Vec<[Vec<T>; 4]> = { lengths.iter() }
        .map(|&[queries, keys]| {
            let counts = [
                queries * rows[0],
                queries * rows[0],
                keys * rows[1],
                keys * rows[1],
            ];
            counts.map(|count| (0..count).map(|_| T::from_f32(random.unit())).collect())
        })
        .collect();
    let tensors = |batch: usize, lengths: [usize; 2], data: [&[T]; 4]| -> [Tensor<T>; 4] {
        let shapes = [
            (0, heads.query),
            (0, heads.query),
            (1, heads.key_value),
            (1, heads.key_value),
        ];
        let mut shapes = shapes.into_iter();
        data.map(|data| {
            let (side, heads_of) = shapes.next().unwrap();
            backend
                .tensor(data, [batch, lengths[side], heads_of, heads.dim])
                .unwrap()
        })
    };
    let alone: Vec<Bits> = { sequences.iter().zip(&lengths) }
        .map(|(data, lengths)| {
            let [q, d_out, k, v] = tensors(1, *lengths, data.each_ref().map(Vec::as_slice));
            let output = attention.forward(&q, (&k, &v)).unwrap();
            gradients(
                attention,
                &d_out,
                Queries::new(&q),
                Keys::new(&k, &v),
                &output,
            )
        })
        .collect();

    let mut order: Vec<usize> = (0..lengths.len()).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.within(0, last));
    }
    let mut packed: [Vec<T>; 4] = Default::default();
    let mut offsets = [vec![0], vec![0]];
    for &sequence in &order {
        for (to, from) in packed.iter_mut().zip(&sequences[sequence]) {
            to.extend_from_slice(from);
        }
        for (side, offsets) in offsets.iter_mut().enumerate() {
            offsets.push(offsets[offsets.len() - 1] + lengths[sequence][side] as i32);
        }
    }
    let total = [0, 1].map(|side: usize| offsets[side][order.len()] as usize);
    let [q, d_out, k, v] = tensors(1, total, packed.each_ref().map(Vec::as_slice));
    let (queries, keys) = (
        || Queries::new(&q).packed(&offsets[0]),
        || Keys::new(&k, &v).packed(&offsets[1]),
    );
    let output = attention.forward(queries(), keys()).unwrap();
    let found = gradients(attention, &d_out, queries(), keys(), &output);
    let mut starts = [0; 2];
    for &sequence in &order {
        starts = same(
            &alone[sequence],
            &found,
            starts,
            [0, 1, 1],
            &format!("{sequence} of {lengths:?} in the order {order:?}"),
        );
    }

    let most = [0, 1].map(|side: usize| lengths.iter().map(|lengths| lengths[side]).max().unwrap());
    let mut dense: [Vec<T>; 4] = Default::default();
    for data in &sequences {
        for (at, (to, from)) in dense.iter_mut().zip(data).enumerate() {
            let end = to.len() + most[at / 2] * rows[at / 2];
            to.extend_from_slice(from);
            to.resize(end, T::from_f32(f32::NAN));
        }
    }
    let of = [0, 1].map(|side: usize| {
        lengths
            .iter()
            .map(|lengths| lengths[side] as i32)
            .collect::<Vec<_>>()
    });
    let [q, d_out, k, v] = tensors(lengths.len(), most, dense.each_ref().map(Vec::as_slice));
    let (queries, keys) = (
        || Queries::new(&q).lengths(&of[0]),
        || Keys::new(&k, &v).lengths(&of[1]),
    );
    let output = attention.forward(queries(), keys()).unwrap();
    let found = gradients(attention, &d_out, queries(), keys(), &output);
    for (sequence, alone) in alone.iter().enumerate() {
        let bytes = [0, 1].map(|side: usize| sequence * most[side] * rows[side] * size_of::<T>());
        same(
            alone,
            &found,
            bytes,
            [0, 1, 1],
            &format!("{sequence} of {lengths:?} in a dense batch"),
        );
    }
}

/// Checks that the first of two packed sequences, whose numbers are up to `own`, has the same output and lse, bit for bit, whatever the other
/// one has.
pub(crate) fn check_outputs<T: Element>(
    backend: &Backend,
    attention: &Attention,
    heads: Heads,
    lengths: [usize; 2],
    own: f32,
    seed: u64,
) {
    let total = lengths[0] + lengths[1];
    let offsets = [0, lengths[0] as i32, total as i32];
    let of_first = |of_others: f32| {
        let mut random = Random(seed);
        let [q, k, v] = [heads.query, heads.key_value, heads.key_value].map(|count| {
            let row = count * heads.dim;
            let mut value = |at: usize| {
                let factor = if at < lengths[0] * row {
                    own
                } else {
                    of_others
                };
                T::from_f32(random.unit() * factor)
            };
            let data: Vec<T> = (0..total * row).map(&mut value).collect();
            backend.tensor(&data, [1, total, count, heads.dim]).unwrap()
        });
        let (queries, keys) = (Queries::new(&q), Keys::new(&k, &v));
        let output =
            { attention.forward(queries.packed(&offsets), keys.packed(&offsets)) }.unwrap();
        let out = output.out.to_vec().unwrap();
        let lse = output.lse.unwrap().to_vec().unwrap();
        let lse = { lse.chunks(total) }.flat_map(|row| row[..lengths[0]].to_vec());
        let bits = |values: &[T]| bytemuck::cast_slice::<T, u8>(values).to_vec();
        (
            bits(&out[..lengths[0] * heads.query * heads.dim]),
            lse.map(f32::to_bits).collect::<Vec<_>>(),
        )
    };
    let expected = of_first(own);
    for of_others in [30.0, f32::NAN] {
        assert!(
            of_first(of_others) == expected,
            "the first of two sequences of {lengths:?} has other bits with numbers up to {of_others} in the other one, and {own} of its own"
        );
    }
}

fn gradients<T: Element>(
    attention: &Attention,
    d_out: &Tensor<T>,
    queries: Queries<'_, T>,
    keys: Keys<'_, T>,
    output: &Output<T>,
) -> Bits {
    let all = attention.backward(d_out, queries, keys, output).unwrap();
    [all.dq, all.dk, all.dv]
        .map(|gradient| bytemuck::cast_slice(&gradient.to_vec().unwrap()).to_vec())
}

/// Compares the bytes from `starts` on; where they end.
fn same(
    expected: &Bits,
    found: &Bits,
    starts: [usize; 2],
    sides: [usize; 3],
    what: &str,
) -> [usize; 2] {
    let mut ends = starts;
    for ((expected, found), (side, name)) in
        { expected.iter().zip(found) }.zip(sides.into_iter().zip(["dq", "dk", "dv"]))
    {
        let end = starts[side] + expected.len();
        assert!(
            found[starts[side]..end] == expected[..],
            "{name} of sequence {what} has other bits"
        );
        ends[side] = end;
    }
    ends
}
