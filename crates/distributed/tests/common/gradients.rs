//! Random problems, whose gradients over several ranks are held against float64 and one call.

use std::fmt::Debug;
use std::time::Duration;

use quickcheck::{Arbitrary, Gen};
use warptile::half::{bf16, f16};
use warptile::spec::{Backward, Call, DropoutState, HostInputs, Numbers, Operand, Scoring};
use warptile::{Attention, Diagonal, Element, ElementType, Keys, Layout, Mask, Queries};
use warptile_check::GradientExpectation;
use warptile_distributed::{Group, Scheme, Sharding};

#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) ranks: usize,
    pub(crate) element: ElementType,
    pub(crate) len: usize,
    /// Query heads, key/value heads, head size, that of values.
    pub(crate) sizes: [usize; 4],
    pub(crate) mask: Mask,
    pub(crate) sharding: Sharding,
    pub(crate) scheme: Scheme,
    pub(crate) softcap: bool,
    pub(crate) sinks: bool,
    pub(crate) dropout: bool,
}

impl Arbitrary for Problem {
    fn arbitrary(g: &mut Gen) -> Self {
        let mut pick = |of: &[usize]| *g.choose(of).unwrap_or(&0);
        let ranks = pick(&[2, 2, 3, 4, 4, 5]);
        let len = pick(&[1, 7, 64, 101, 257, 300, 520]);
        let [heads, kv_heads] = [[4, 2], [6, 6], [5, 1], [8, 4], [6, 3]][pick(&[0, 1, 2, 3, 4])];
        let dim = pick(&[16, 64, 40]);
        let value_dim = pick(&[dim, dim, 24]);
        let mask = [
            Mask::none(),
            Mask::causal(),
            Mask::causal(),
            Mask::window(70, 3),
            Mask::window(9, 9).diagonal(Diagonal::At(-17)),
            Mask::causal().diagonal(Diagonal::TopLeft),
        ][pick(&[0, 1, 2, 3, 4, 5])];
        // Short documents lie whole with a rank, several of them in one call; a long one is cut.
        let short = [0, len / 9, len / 9, len / 4, len / 3, len];
        let sharding = match pick(&[0, 1, 2, 3, 4]) {
            0 => Sharding::Contiguous,
            4 => Sharding::Zigzags(2),
            1 => Sharding::Documents(short.to_vec()),
            2 => Sharding::Documents(vec![0, 5, 30, 40, 40 + 256 * ranks, 60 + 256 * ranks]),
            _ => Sharding::Zigzag,
        };
        let len = match &sharding {
            Sharding::Documents(offsets) => *offsets.last().unwrap_or(&len),
            _ => len,
        };
        let hosts = pick(&[1, 2, 3, 4]);
        let scheme = match pick(&[0, 0, 1, 2]) {
            1 if heads >= ranks => Scheme::Heads,
            2 if ranks.is_multiple_of(hosts) && heads >= ranks / hosts => Scheme::Hybrid { hosts },
            _ => Scheme::Gather,
        };
        let dropout = pick(&[0, 0, 1]) == 1;
        let len = match sharding {
            Sharding::Documents(_) => len,
            _ if dropout && scheme != Scheme::Heads => len.next_multiple_of(128 * ranks),
            _ => len,
        };
        Problem {
            ranks,
            element: [ElementType::F16, ElementType::Bf16, ElementType::F32][pick(&[0, 1, 2])],
            len,
            sizes: [heads, kv_heads, dim, value_dim],
            mask,
            sharding,
            softcap: pick(&[0, 0, 0, 1]) == 1,
            sinks: scheme == Scheme::Gather && pick(&[0, 1]) == 1,
            scheme,
            dropout,
        }
    }
}

/// Windows of which each rank computes most rows by its own keys, as calls of their own.
pub(crate) fn windows() -> impl Iterator<Item = Problem> {
    let masks = [(100, 0, 2), (60, 60, 3), (200, 0, 3)];
    masks
        .into_iter()
        .enumerate()
        .map(|(at, (left, right, ranks))| Problem {
            ranks,
            element: [ElementType::F32, ElementType::F16, ElementType::Bf16][at],
            len: 4608 * ranks,
            sizes: [2, 1, 16, 8],
            mask: Mask::window(left, right),
            sharding: [Sharding::Zigzag, Sharding::Contiguous, Sharding::Zigzags(1)][at].clone(),
            scheme: Scheme::Gather,
            softcap: at == 1,
            sinks: true,
            dropout: at > 0,
        })
}

/// Numbers that are not those of a call's own first sequence and head.
const STATE: DropoutState = DropoutState {
    sequence: 3,
    head: 1,
    query: 64,
    key: 32,
    ..DropoutState::new(42, 7)
};

/// `[length, heads, head size]`.
fn data<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let number = |i: usize| {
        let bits = (i as u64 + 1 + (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = (bits ^ bits >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        T::from_f32((bits >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..len).map(number).collect()
}

impl Problem {
    fn attention(&self) -> (Attention, Vec<f32>) {
        let mut attention = Attention::new().mask(self.mask);
        if self.softcap {
            attention = attention.softcap(3.0);
        }
        if self.dropout {
            attention = attention.dropout(0.3, STATE);
        }
        let sinks: Vec<f32> = (0..self.sizes[0]).map(|i| i as f32 / 2.0 - 1.0).collect();
        match self.sinks {
            true => (attention.sinks(&sinks), sinks),
            false => (attention, Vec::new()),
        }
    }

    /// As [`check`](Self::check), in the problem's type.
    pub(crate) fn check_in_its_type(&self, group: &Group) {
        match self.element {
            ElementType::F16 => self.check::<f16>(group),
            ElementType::Bf16 => self.check::<bf16>(group),
            _ => self.check::<f32>(group),
        }
    }

    /// Computes gradients with the ranks of a group, twice. On the CPU some have the bits of one call.
    pub(crate) fn check<T: Element + PartialEq + Debug>(&self, group: &Group) {
        let Problem { len, mask, .. } = *self;
        let [heads, kv_heads, dim, value_dim] = self.sizes;
        let shapes = [
            [1, len, heads, dim],
            [1, len, kv_heads, dim],
            [1, len, kv_heads, value_dim],
            [1, len, heads, value_dim],
        ];
        let data = |at: usize| data::<T>(shapes[at].iter().product(), at as u64);
        let [q, k, v, d_out] = [0, 1, 2, 3].map(data);
        let (attention, sinks) = self.attention();
        let offsets: Option<Vec<i32>> = match &self.sharding {
            Sharding::Documents(offsets) => Some(offsets.iter().map(|&at| at as i32).collect()),
            _ => None,
        };
        let shards = group
            .shards(&self.sharding, len)
            .unwrap()
            .scheme(self.scheme);
        let split =
            |at: usize, data: &[T]| shards.split(data, shapes[at][2], shapes[at][3]).unwrap();
        let (sq, sk, sv, s_out) = (split(0, &q), split(1, &k), split(2, &v), split(3, &d_out));
        let output = shards.forward(&attention, &sq, (&sk, &sv)).unwrap();
        let run = || {
            let found = shards
                .backward(&attention, &s_out, &sq, (&sk, &sv), &output)
                .unwrap();
            group.synchronize(Duration::from_secs(20)).unwrap();
            let [dq, dk, dv] =
                [&found.dq, &found.dk, &found.dv].map(|all| shards.join(all).unwrap());
            (
                dq,
                dk,
                dv,
                { found.numbers.iter() }
                    .find(|(gradient, _)| *gradient == Operand::DSinks)
                    .map(|(_, d_sinks)| d_sinks.to_vec().unwrap()),
            )
        };
        let found = run();
        assert!(run() == found, "{self:?}: other bits");

        let out = shards.join(&output.out).unwrap();
        let lse = shards.join_lse(output.lse.as_ref().unwrap()).unwrap();
        let lse: Vec<f32> = (0..len * heads)
            .map(|at| lse[at % len * heads + at / len])
            .collect();
        let [lq, lk, lv, _] = shapes.map(Layout::bshd);
        let mut scoring = Scoring::new().mask(mask);
        scoring.softcap = self.softcap.then_some(3.0);
        scoring.dropout = self.dropout.then_some(0.3);
        let words = STATE.words();
        let mut call = Call::builder(&lq, &lk, &lv, T::TYPE).scoring(scoring);
        if self.dropout {
            call = call.numbers(Operand::DropoutState, Numbers::Host(&words));
        }
        if let Some(offsets) = &offsets {
            call = call.packed(offsets, offsets);
        }
        if self.sinks {
            call = call.count(Operand::Sinks, heads);
        }
        let backward = Backward::builder(call.build().unwrap()).want_all(false);
        let mut inputs = HostInputs::new(&q, &k, &v)
            .with(Operand::Out, &out)
            .with(Operand::DOut, &d_out)
            .with(Operand::Lse, &lse);
        if self.sinks {
            inputs.set(Operand::Sinks, &sinks);
        }
        let expected = GradientExpectation::new(&backward.build().unwrap(), &inputs).unwrap();
        for (operand, found) in [
            (Operand::DQ, &found.0),
            (Operand::DK, &found.1),
            (Operand::DV, &found.2),
        ] {
            let verdict = expected.judge(operand, found);
            assert!(verdict.passed, "{self:?}: {operand:?} {verdict:?}");
        }
        if let Some(d_sinks) = &found.3 {
            let verdict = expected.judge(Operand::DSinks, d_sinks);
            assert!(verdict.passed, "{self:?}: sinks {verdict:?}");
        }
        assert_eq!(found.3.is_some(), self.sinks);

        let first = &group.backends()[0];
        if first.is_gpu() {
            return;
        }
        let one = |at: usize, data: &[T]| first.tensor(data, shapes[at]).unwrap();
        let (q, k, v, d_out) = (one(0, &q), one(1, &k), one(2, &v), one(3, &d_out));
        let (mut queries, mut keys) = (Queries::new(&q), Keys::new(&k, &v));
        if let Some(offsets) = &offsets {
            (queries, keys) = (queries.packed(offsets), keys.packed(offsets));
        }
        let output = attention.forward(queries.clone(), keys.clone()).unwrap();
        let one = attention.backward(&d_out, queries, keys, &output).unwrap();
        let cuts_blocks = mask.left.is_some() && self.scheme != Scheme::Heads;
        if !cuts_blocks {
            assert!(
                output.out.to_vec().unwrap() == out,
                "{self:?}: other bits of the output"
            );
            assert!(
                one.dq.to_vec().unwrap() == found.0,
                "{self:?}: other bits of dq"
            );
        }
        if self.scheme == Scheme::Heads && kv_heads >= self.ranks {
            assert!(
                one.dk.to_vec().unwrap() == found.1,
                "{self:?}: other bits of dk"
            );
            assert!(
                one.dv.to_vec().unwrap() == found.2,
                "{self:?}: other bits of dv"
            );
        }
    }
}
