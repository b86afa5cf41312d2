//! The computation of a case: its layouts and its call.

use warptile::Layout;
use warptile::kernels::Kind;
use warptile::spec::{Call, Numbers, Operand, Problem};

use super::{Case, LayoutKind, Lengths, Used};
use crate::data::Random;
use crate::error::{Error, Result, limited};
use crate::reference::{MAX_GRADIENT_WORK, MAX_WORK, check_gradient_size, check_size};

/// Unused rows behind the last packed sequence.
pub(super) const PACKED_PADDING: usize = 3;

/// Most entries of a block table, and most sequences with lengths of their own.
pub(crate) const MAX_ENTRIES: u128 = 1 << 24;

/// Most elements of a tensor with data, gaps included, and most heads of all sequences together.
const MAX_ELEMENTS: u128 = 1 << 31;

/// Most blocks of keys that are drawn for lists of blocks: with the numbers that end rows early, an `i32` still counts those shown.
const MAX_BLOCKS: u128 = 1 << 29;

impl Case {
    /// Layouts of q, k, v and out.
    fn layouts(&self, pages: Option<usize>, padding: usize) -> [Layout; 4] {
        let (batch, query, key) = match &self.lengths {
            Lengths::Dense { batch, query, key } => (*batch, *query, *key),
            Lengths::Packed(lengths) => {
                let rows = |length: fn(&(usize, usize)) -> usize| {
                    let lengths = lengths.iter().map(length);
                    lengths.fold(padding, usize::saturating_add)
                };
                (1, rows(|lengths| lengths.0), rows(|lengths| lengths.1))
            }
        };
        let [entries, rows] = match (pages, self.pages) {
            (Some(pages), Some(page_rows)) => [pages, page_rows],
            _ => [batch, key],
        };
        let heads = self.heads;
        let of_queries = |size| self.tensor_layout([batch, query, heads.query, size], 8);
        // Elements that keep 16-byte alignment in every type that a tensor can have.
        let gap = if self.quantized.is_some() { 16 } else { 8 };
        let [mut k, mut v] = heads
            .dims()
            .map(|size| self.tensor_layout([entries, rows, heads.key_value, size], gap));
        if self.layout == LayoutKind::Interleaved {
            let both = k.strides[0].saturating_add(v.strides[0]);
            (k.strides[0], v.strides[0]) = (both, both);
        }
        [of_queries(heads.dim), k, v, of_queries(v.head_dim())]
    }

    fn tensor_layout(&self, shape: [usize; 4], aligned_gap: usize) -> Layout {
        let [batch, rows, heads, head_dim] = shape;
        match self.layout {
            LayoutKind::Bshd | LayoutKind::Interleaved => Layout::bshd(shape),
            LayoutKind::Bhsd => Layout::bhsd([batch, heads, rows, head_dim]),
            LayoutKind::Gaps => {
                let gap = if self.unaligned { 3 } else { aligned_gap };
                let step =
                    |extent: usize, inner: usize| extent.saturating_mul(inner).saturating_add(gap);
                let head = step(head_dim, 1);
                let row = step(heads, head);
                Layout::new(shape, [step(rows, row), row, head, 1])
            }
        }
    }

    /// Layout of a tensor with an element for each score: in each dimension but the last whole or of extent 1, as the case or its seed has
    /// it or padding, and stored like the other tensors; [`LayoutKind::Gaps`] leaves gaps between keys too.
    pub(crate) fn score_layout(&self, operand: Operand) -> Layout {
        let Lengths::Dense { batch, query, key } = self.lengths else {
            return Layout::bshd([1; 4]);
        };
        let mut random = Random::new(self.seed ^ (0xb1a5 << operand as u32));
        let by_seed = [(); 3].map(|()| random.below(2) != 0);
        let is_one = { self.broadcast }.unwrap_or([by_seed[0], by_seed[1], by_seed[2], false]);
        let or_one = |dimension: usize, extent: usize| match is_one[dimension] {
            false => extent,
            true => 1,
        };
        let shape = match self.is_padding(operand) {
            true => [batch, 1, 1, key],
            false => [
                or_one(0, batch),
                or_one(1, query),
                or_one(2, self.heads.query),
                or_one(3, key),
            ],
        };
        let [batch, rows, heads, keys] = shape;
        match self.layout {
            LayoutKind::Bshd | LayoutKind::Interleaved => Layout::bshd(shape),
            LayoutKind::Bhsd => Layout::bhsd([batch, heads, rows, keys]),
            LayoutKind::Gaps => Self::with_gaps(shape, 2),
        }
    }

    /// A layout with gaps behind keys, heads and rows, whose keys are this far apart.
    pub(crate) fn with_gaps(shape: [usize; 4], key: usize) -> Layout {
        let step = |extent: usize, inner: usize| extent.saturating_mul(inner).saturating_add(3);
        let head = step(shape[3], key);
        let row = step(shape[2], head);
        Layout::new(shape, [step(shape[1], row), row, head, key])
    }

    /// The call of this case, with all lengths on the host.
    ///
    /// # Panics
    /// If the fields were set to something that [`try_call`](Self::try_call) refuses, such as a head size of 7. Cases that
    /// are drawn, shrunk or parsed never are.
    pub fn call(&self) -> Call {
        match self.try_call() {
            Ok(call) => call,
            Err(error) => panic!("case `{self}`: {error}"),
        }
    }

    /// The call of a case whose fields were set by hand.
    ///
    /// # Errors
    /// When no [`Call`] is like this, or its data would not fit into the memory of an ordinary machine.
    pub fn try_call(&self) -> Result<Call> {
        self.build(false, PACKED_PADDING, MAX_ELEMENTS)
    }

    /// Fails if the host's float64 reference of this case would take too much memory or time.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::Error::TooLarge) and [`Error::TooMuchWork`](crate::Error::TooMuchWork); as [`try_call`](Self::try_call).
    pub fn check_reference(&self) -> Result<()> {
        let call = self.try_call()?;
        match self.backward {
            true => check_gradient_size(&call, self.d_bias, MAX_GRADIENT_WORK),
            false => check_size(&call, MAX_WORK),
        }
    }

    /// The call of this case on a GPU: with its lengths on the device if [`device_lengths`](Self::device_lengths) says so.
    ///
    /// # Errors
    /// As [`try_call`](Self::try_call).
    pub fn call_on_gpu(&self) -> Result<Call> {
        self.build(self.device_lengths, PACKED_PADDING, MAX_ELEMENTS)
    }

    /// Like [`call_on_gpu`](Self::call_on_gpu), but the tensors may be of any size: for plans, which need no data.
    ///
    /// # Errors
    /// When no [`Call`] is like this, or there are too many sequences to list their lengths.
    pub fn call_to_plan(&self) -> Result<Call> {
        limited("sequences", self.batch() as u128, MAX_ENTRIES)?;
        self.build(self.device_lengths, PACKED_PADDING, u128::MAX)
    }

    /// Checks the rules of [`call_to_plan`](Self::call_to_plan) and the values of all lists.
    pub(crate) fn check_to_plan(&self) -> Result<Call> {
        self.build(false, PACKED_PADDING, u128::MAX)
    }

    /// The problem of a program that computes this case on a GPU: packed tensors have no unused rows behind the last sequence.
    ///
    /// # Errors
    /// As [`try_call`](Self::try_call).
    pub fn problem_of_programs(&self) -> Result<Problem> {
        let call = self.build(self.device_lengths, 0, MAX_ELEMENTS)?;
        Ok(call.problem())
    }

    /// `most`: the elements that a tensor may have.
    fn build(&self, on_device: bool, padding: usize, most: u128) -> Result<Call> {
        let fits = |layout: &Layout| {
            let elements = layout.required_len().unwrap_or(usize::MAX);
            limited("elements in a tensor", elements as u128, most)
        };
        let [q, k, v, out] = self.layouts(None, padding);
        fits(&q)?;
        fits(&out)?;
        if self.pages.is_none() {
            fits(&k)?;
            fits(&v)?;
        }
        // A problem without elements still has slopes and rows of an empty tensor.
        let rows = self.batch() as u128 * self.heads.query.max(1) as u128;
        limited("heads in all sequences", rows, MAX_ELEMENTS)?;
        if let Used::Each(used) = &self.used
            && used.len() != self.batch()
        {
            return Err(Error::UsedLengths {
                found: used.len(),
                sequences: self.batch(),
            });
        }
        // Before there are lists of this many numbers.
        let packed = matches!(self.lengths, Lengths::Packed(_));
        if self.used == Used::Ragged || packed || self.scoring.blocks.is_some() {
            limited("lengths", self.batch() as u128, MAX_ENTRIES)?;
        }
        limited("blocks in its lists", self.blocks_to_draw(), MAX_BLOCKS)?;
        if let Some(page_rows) = self.pages {
            let table = self.table_layout(page_rows.max(1));
            let entries = table.shape[0] as u128 * table.row_stride as u128;
            limited("entries in the block table", entries, MAX_ENTRIES)?;
            // The table may have room for more.
            let lengths = self.lengths.each().into_iter().zip(self.used_lengths());
            let too_long = lengths.map(|(all, used)| (all.1, used.1)).enumerate();
            if let Some((index, (all, used))) = { too_long }.find(|(_, (all, used))| used > all) {
                return Err(Error::from(warptile::spec::Invalid::Lengths {
                    argument: "key_lengths",
                    index,
                    rule: format!("is {used}, but sequence {index} has {all} rows"),
                }));
            }
        }
        let lists = self.lists();
        let [q, k, v, out] = self.layouts(lists.pages(), padding);
        fits(&k)?;
        fits(&v)?;
        let mut builder = Call::builder(&q, &k, &v, self.types())
            .scoring(self.scoring)
            .splits(self.splits)
            .out(out);
        for (operand, count) in self.scale_counts() {
            builder = builder.count(operand, count);
        }
        for (operand, list) in lists.given().given() {
            let numbers = match on_device {
                true => Numbers::Device(list.len()),
                false => Numbers::Host(&list[..]),
            };
            builder = builder.numbers(operand, numbers);
        }
        if let Some(layout) = lists.table_layout() {
            builder = builder.table_layout(layout);
        }
        if on_device {
            // A caller knows bounds at best: here those of the rows.
            if lists.get(Operand::QueryOffsets).is_some() {
                builder = builder.longest_queries(q.rows());
            }
            match self.pages {
                Some(_) => builder = builder.longest_keys(self.longest_keys()),
                None if lists.get(Operand::KeyOffsets).is_some() => {
                    builder = builder.longest_keys(k.rows());
                }
                None => {}
            }
        }
        for operand in Operand::of_scores() {
            if operand.kind() == Kind::Scores && self.scoring.has(operand) {
                let layout = self.score_layout(operand);
                fits(&layout)?;
                builder = builder.layout(operand, layout);
            }
        }
        Ok(builder.aligned_addresses(!self.unaligned).build()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::every_option;
    use warptile::ElementType;
    use warptile::spec::Heads;

    /// A problem's line is unchanged after it is read back.
    #[test]
    fn the_line_of_a_problem_reads_back() {
        for text in [
            "b2 q512 k512 h8 d64 f16 mask=causal",
            "b2 q512 k512 h8 d192/128 bf16 mask=causal",
            "b1 q113 k203 h8/2 d64 bf16 unaligned",
            "b17 q1 k8191 h32/8 d128 bf16",
            "b4 q1 k8192 h32/8 d128 bf16 pages=16 lengths=100,8192,3,77",
            "b16 q1 h64/8 d64 f16 pages=24 lengths=ragged k4096 device-lengths",
            "b5 q1 k4000 h8 d64 f16 lengths=4000,1,7,9,30",
            "b1 q64 k64 h8 d64 f32 splits=512",
            "packed=4096x4096 h8 d64 f16 mask=causal",
            "packed=512x512,512x512,512x512,512x512 h8 d64 f16",
            "packed=1000x1000,20x20,3x3,70x80,1x900 h16/4 d128 bf16 mask=window,127,0",
            "packed=33x500,1x7,8x900 h16/4 d128 bf16 pages=32",
            "packed=10x10*1000000 h1 d64 f16",
        ] {
            let case: Case = text.parse().unwrap();
            let line = case.problem_of_programs().unwrap().line();
            let read: Case = line.parse().unwrap();
            assert_eq!(read.problem_of_programs().unwrap().line(), line, "{text}");
            assert!(line.len() < 150, "{line}");
            // With every option that it can have.
            let mut case: Case = line.parse().unwrap();
            case.scoring = every_option();
            case.quantized = ElementType::scaled().next();
            if matches!(case.lengths, Lengths::Packed(_)) {
                case = case.without_score_tensors();
            }
            let line = case.problem_of_programs().unwrap().line();
            let read: Case = line.parse().unwrap();
            assert_eq!(read.problem_of_programs().unwrap().line(), line, "{text}");
        }
        let line = |text: &str| {
            let case: Case = text.parse().unwrap();
            case.problem_of_programs().unwrap().line()
        };
        let whole = "b2 q512 k512 h8 d64 f16";
        assert_eq!(line("b2 q500 k500 h8 d64 f16"), whole);
        assert_eq!(line("b2 q500 k500 h8 d64 f16 scale=0.3"), whole);
        assert_eq!(
            line("b2 q500 k500 h8 d64 f16 scale=-0.3"),
            whole.to_owned() + " scale=-0.3"
        );
        // 112 rows and 144 keys, rounded up: 8 and 16 are left for three sequences.
        assert_eq!(
            line("packed=100x128,3x3,3x3,2x3 h8 d64 f16"),
            "packed=104x128,3x6,3x5,2x5 h8 d64 f16"
        );
    }

    /// They have few operations.
    #[test]
    fn references_with_results_that_do_not_fit_are_refused() {
        for (text, quantity) in [
            ("q500000 k1 h8 d8/512 bf16", "elements in a tensor"),
            (
                "q40000 k40000 h1 d8 bf16 bias broadcast=none dbias backward used=1x1",
                "elements in the gradient of the bias",
            ),
        ] {
            let case: Case = text.parse().unwrap();
            match case.check_reference() {
                Err(Error::TooLarge { what, .. }) => assert_eq!(what, quantity, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        let broadcast = "q40000 k40000 h1 d8 bf16 bias broadcast=queries dbias backward used=1x1";
        let case: Case = broadcast.parse().unwrap();
        case.check_reference().unwrap();
    }

    /// A tensor with more rows than its sequences can have, as under a CUDA graph, makes none of them longer.
    #[test]
    fn the_line_of_a_problem_with_room_to_spare_reads_back() {
        for (rows, offsets, lengths) in [
            (64, &[0, 1, 2][..], "packed=1x64,1x0"),
            (64, &[0, 1, 2, 3], "packed=1x64,1x0*2"),
            (8192, &[0, 7, 7, 9], "packed=7x64,7x0*2"),
            (
                81,
                &[0, 9, 11, 11, 11, 11, 11, 11, 11, 11],
                "packed=9x64,9x0*8",
            ),
        ] {
            let q = Layout::packed(rows, 8, 64);
            let k = Layout::packed(64, 8, 64);
            let ends = vec![64; offsets.len() - 1];
            let call = Call::builder(&q, &k, &k, ElementType::F16)
                .packed(offsets, &[&[0], &ends[..]].concat())
                .build()
                .unwrap();
            let line = call.problem().line();
            assert_eq!(line, format!("{lengths} h8 d64 f16"));
            let read: Case = line.parse().unwrap();
            assert_eq!(read.problem_of_programs().unwrap().line(), line);
        }
    }

    #[test]
    fn lengths_and_heads_of_any_size_are_an_error_or_a_call() {
        let huge = [0, 1, 1 << 30, 1 << 32, usize::MAX];
        for layout in [
            LayoutKind::Bshd,
            LayoutKind::Bhsd,
            LayoutKind::Gaps,
            LayoutKind::Interleaved,
        ] {
            for unaligned in [false, true] {
                for (a, b) in huge.iter().flat_map(|&a| huge.map(|b| (a, b))) {
                    for lengths in [
                        Lengths::Packed(vec![(a, b), (b, a), (1, 1)]),
                        Lengths::Dense {
                            batch: a,
                            query: b,
                            key: 1,
                        },
                        Lengths::Dense {
                            batch: 1,
                            query: a,
                            key: b,
                        },
                    ] {
                        for (heads, head_dim) in huge.iter().flat_map(|&h| [(h, 8), (1, h)]) {
                            let mut case = Case {
                                lengths: lengths.clone(),
                                layout,
                                unaligned,
                                ..Case::new(1, 1, Heads::new(heads, head_dim))
                            };
                            let _ = case.try_call();
                            case.used = Used::Each(vec![(a, b), (b, a), (0, 0)]);
                            case.scoring = case.scoring.with(Operand::Bias);
                            let _ = (case.try_call(), case.call_on_gpu());
                            for pages in [0, 1, 16, usize::MAX] {
                                case.pages = Some(pages);
                                let _ = (case.try_call(), case.call_on_gpu());
                            }
                        }
                    }
                }
            }
        }
    }
}
