//! The part of a call that planning depends on; the cache key of prepared plans.

use std::fmt;

use crate::{
    BlockLists, Call, ElementType, Features, Heads, Kind, Mask, Operand, Scoring, Splits, Types,
};

/// Attention as the planner sees it. Lengths and strides are values of the call, so here stand only bounds of them, rounded up
/// to eighths of powers of two: a decode step, a new packed batch and a cache that grew by a row are the same problem.
///
/// ```
/// use warptile::{ElementType, Layout};
/// use warptile::spec::Call;
///
/// let problem = |keys| {
///     let (q, k) = (Layout::bshd([1, 1, 8, 64]), Layout::bshd([1, keys, 8, 64]));
///     Call::builder(&q, &k, &k, ElementType::F16).build().map(|call| call.problem())
/// };
/// assert_eq!(problem(1030)?, problem(1100)?);
/// assert_eq!(problem(1030)?.key_len(), 1152);
/// # Ok::<(), warptile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    types: Types,
    batch: usize,
    heads: Heads,
    query_len: usize,
    key_len: usize,
    query_rows: usize,
    key_rows: usize,
    packed_queries: bool,
    packed_keys: bool,
    device_lengths: bool,
    /// 0: not paged.
    page_rows: usize,
    scoring: Scoring,
    mask_is_same: [bool; 2],
    /// The bias and the key mask.
    fit_boxes: Features,
    splits: Splits,
    want_lse: bool,
    aligned: bool,
}

impl Call {
    /// The part of the call that planning depends on, with bounds rounded up; the cache key of prepared plans.
    pub fn problem(&self) -> Problem {
        Problem::of(self)
    }
}

impl Problem {
    /// The problem that the call is one of.
    pub fn of(call: &Call) -> Self {
        let (queries, keys) = (call.queries(), call.keys());
        let batch = rounded(call.batch());
        let (query_len, key_len) = (rounded(call.query_len()), rounded_keys(call.key_len()));
        // All rows: of a packed tensor its length, of a dense one the length of every batch entry together.
        let total = |packed: bool, rows: usize, each: usize| match packed {
            true => rounded(rows),
            false => batch.saturating_mul(each),
        };
        Problem {
            types: call.types(),
            batch,
            heads: call.heads(),
            query_len,
            key_len,
            query_rows: total(queries.is_packed(), queries.rows(), query_len),
            key_rows: total(keys.is_packed(), keys.rows(), key_len),
            packed_queries: queries.is_packed(),
            packed_keys: keys.is_packed(),
            device_lengths: call.lengths_on_device()
                || queries.used().is_given()
                || keys.used().is_given(),
            page_rows: call
                .pages()
                .map_or(0, |pages| 1 << pages.rows().trailing_zeros()),
            scoring: Scoring {
                blocks: call.blocks().map(|blocks| rounded_lists(blocks.lists())),
                ..*call.scoring()
            },
            mask_is_same: call.mask_is_same(),
            fit_boxes: Operand::of_scores()
                .filter(|operand| call.fits_boxes(*operand))
                .fold(Features::empty(), |all, operand| all | operand.feature()),
            splits: call.splits(),
            want_lse: call.wants_lse(),
            aligned: call.is_aligned(),
        }
    }

    /// The element types of the tensors.
    pub const fn types(&self) -> Types {
        self.types
    }

    /// Element type of q and out, and of k and v unless they are quantized.
    pub const fn element(&self) -> ElementType {
        self.types.q
    }

    /// Size in bytes of an element of k and v.
    pub const fn key_size(&self) -> usize {
        self.types.k.size()
    }

    /// Sequences, rounded up.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// The heads and their sizes.
    pub const fn heads(&self) -> Heads {
        self.heads
    }

    /// Bytes of a row of k and one of v.
    pub const fn key_value_bytes(&self) -> usize {
        self.heads.key_value_elements() * self.key_size()
    }

    /// Queries of the longest sequence, rounded up.
    pub const fn query_len(&self) -> usize {
        self.query_len
    }

    /// Keys of the longest sequence, rounded up.
    pub const fn key_len(&self) -> usize {
        self.key_len
    }

    /// Rows of all sequences' queries, rounded up; of a packed tensor its rows, which may be more.
    pub const fn query_rows(&self) -> usize {
        self.query_rows
    }

    /// Returns true if the queries are packed.
    pub const fn packed_queries(&self) -> bool {
        self.packed_queries
    }

    /// The largest power of two that divides the rows of a page of keys and values: a tile of that many keys lies in one
    /// page. `None` if they are not paged.
    pub const fn page_rows(&self) -> Option<usize> {
        match self.page_rows {
            0 => None,
            rows => Some(rows),
        }
    }

    /// Returns true if sequences may differ in length.
    pub const fn is_uneven(&self) -> bool {
        self.packed_queries || self.packed_keys || self.device_lengths
    }

    /// Returns true if used lengths are given, or only the device knows lengths.
    pub const fn device_lengths(&self) -> bool {
        self.device_lengths
    }

    /// The options.
    pub const fn scoring(&self) -> &Scoring {
        &self.scoring
    }

    /// Returns true if a key mask is given that is the same for all queries and heads of a sequence, as of padding.
    pub const fn masks_keys_alone(&self) -> bool {
        self.mask_is_same[1]
    }

    /// What a key mask is the same for: all queries of a head, and all heads, too. Neither without one.
    pub const fn mask_is_same(&self) -> [bool; 2] {
        self.mask_is_same
    }

    /// Returns true if the bias or the key mask is given and the copy engine can bring its rows.
    pub fn fits_boxes(&self, operand: Operand) -> bool {
        operand.kind() == Kind::Scores && self.fit_boxes.contains(operand.feature())
    }

    /// The problem of the sequences whose mask shows their first keys and no others, without the mask: `None` if the problem has no
    /// such mask, or something else that says which keys a sequence has, or an option that counts on where keys are.
    pub fn of_runs(&self) -> Option<Self> {
        let scoring = self.scoring.of_runs()?;
        let is_dense = !self.is_uneven() && self.page_rows == 0;
        (self.masks_keys_alone() && is_dense && self.splits == Splits::Even).then_some(Problem {
            scoring,
            mask_is_same: [false; 2],
            fit_boxes: Features::empty(),
            device_lengths: true,
            ..*self
        })
    }

    /// Where keys are cut.
    pub const fn splits(&self) -> Splits {
        self.splits
    }

    /// Which keys a query sees.
    pub const fn mask(&self) -> Mask {
        self.scoring.mask
    }

    /// Returns true if all rows of all tensors start at multiples of 16 bytes.
    pub const fn is_aligned(&self) -> bool {
        self.aligned
    }

    /// The features that an image needs to compute this problem.
    pub fn needs(&self) -> Features {
        let scoring = self.scoring.needs_of(self.element());
        let wanted = [
            (self.packed_queries || self.packed_keys, Features::PACKED),
            (self.device_lengths, Features::DEVICE_LENGTHS),
            (self.page_rows != 0, Features::PAGED),
            (!self.aligned, Features::UNALIGNED),
            (self.want_lse, Features::LSE),
            (self.heads.values_differ(), Features::VALUE_DIM),
        ];
        wanted
            .into_iter()
            .filter(|(wanted, _)| *wanted)
            .map(|(_, feature)| feature)
            .fold(scoring | self.types.needs(), |all, feature| all | feature)
    }

    /// The problem on one line, in the words of the `warptile` program ("b2 q512 k576 h8/2 d64 f16 mask=causal"): what `Rates` and the
    /// log of problems (`WARPTILE_LOG`) know it by. Reading it back gives a problem of the same line.
    ///
    /// The longest packed sequence is taken to have the bound's length, and the others to share the rest evenly. Neighbors with the same
    /// lengths are written once, with their number: the line is short for any number of sequences. The line leaves out what takes no time:
    /// the scale, unless the kernel must be one that takes it ([`Features::NEGATIVE_SCALE`]), and whether the logarithm of the sums is wanted.
    pub fn line(&self) -> String {
        use fmt::Write as _;
        let mut line = String::new();
        let packed = self.packed_queries || self.packed_keys;
        // Writing to a string does not fail.
        let _ = match packed {
            true => write!(line, "packed={}", self.packed_lengths()),
            false => write!(
                line,
                "b{} q{} k{}",
                self.batch, self.query_len, self.key_len
            ),
        };
        let _ = write!(line, " {} {}", self.heads, self.element());
        if let Some(element) = self.types.scaled() {
            let _ = write!(line, " cache={element}");
        }
        let names_scale = self.needs().contains(Features::NEGATIVE_SCALE);
        let scoring = Scoring {
            scale: self.scoring.scale.filter(|_| names_scale),
            ..self.scoring
        };
        let options = scoring.words_of(self.masks_keys_alone());
        if !options.is_empty() {
            let _ = write!(line, " {options}");
        }
        if let Some(keys) = self.splits.keys() {
            let _ = write!(line, " splits={keys}");
        }
        if !self.aligned {
            line.push_str(" unaligned");
        }
        if let Some(rows) = self.page_rows() {
            let _ = write!(line, " pages={rows}");
        }
        if self.device_lengths && !packed {
            // Which lengths only the call knows; those of packed sequences are above.
            line.push_str(" lengths=ragged device-lengths");
        }
        line
    }

    /// Rows of queries and of keys that sequences can have: a packed tensor may have room for more.
    fn used_rows(&self) -> [usize; 2] {
        [
            (self.query_rows, self.query_len),
            (self.key_rows, self.key_len),
        ]
        .map(|(rows, bound)| rows.min(self.batch.saturating_mul(bound)))
    }

    /// Lengths of packed sequences for [`line`](Self::line): `64x64,8x8*1000`.
    fn packed_lengths(&self) -> String {
        let [query_rows, key_rows] = self.used_rows();
        let queries = Spread::new(query_rows, self.query_len, self.batch);
        let keys = match self.packed_keys {
            true => Spread::new(key_rows, self.key_len, self.batch),
            false => Spread::even(self.key_len),
        };
        let mut ends = [1, 1 + queries.longer, 1 + keys.longer, self.batch];
        ends.sort_unstable();
        let mut runs: Vec<(usize, usize, usize)> = Vec::new();
        let mut start = 0;
        for end in ends.map(|end| end.min(self.batch)) {
            let (q, k, count) = (queries.length(start), keys.length(start), end - start);
            match runs.last_mut() {
                _ if count == 0 => {}
                Some((last_q, last_k, same)) if (*last_q, *last_k) == (q, k) => *same += count,
                _ => runs.push((q, k, count)),
            }
            start = end;
        }
        let words = runs.into_iter().map(|(q, k, count)| match count {
            1 => format!("{q}x{k}"),
            _ => format!("{q}x{k}*{count}"),
        });
        words.collect::<Vec<_>>().join(",")
    }

    /// Lengths of the sequence that a typical row belongs to. Dense sequences all have the bound's. In a packed batch the longest
    /// is taken to have the bound's and the others to share the rest evenly, so that one long sequence among short ones counts by
    /// its rows. A bound as large as all rows says nothing of the longest; then it is the average.
    pub fn typical_lengths(&self) -> (usize, usize) {
        let each = |packed: bool, rows: usize, bound: usize| {
            let others = match (packed, self.batch) {
                (false, _) => return bound,
                (true, 0 | 1) => return rows.min(bound),
                (true, batch) => batch - 1,
            };
            if bound >= rows {
                return rows.div_ceil(self.batch);
            }
            let rest = rows - bound;
            let (long, short) = (bound as f64, rest as f64 / others as f64);
            ((long * long + rest as f64 * short) / rows as f64).round() as usize
        };
        let [query_rows, key_rows] = self.used_rows();
        (
            each(self.packed_queries, query_rows, self.query_len),
            each(self.packed_keys, key_rows, self.key_len),
        )
    }

    /// Tiles of `block_m` rows in all, if every sequence were a typical one, where the query heads of a key/value
    /// head are rows of one tile.
    pub fn typical_group_tiles(&self, block_m: u32) -> f64 {
        let rows = self.typical_lengths().0 * self.heads.group_size();
        let of_a_head = rows.div_ceil(block_m as usize) as f64;
        self.typical_sequences() * of_a_head * self.heads.key_value as f64
    }

    /// A problem that stands for all of the same element type, head sizes and options: a step of decoding.
    pub fn typical_of_splits(&self) -> Self {
        Problem {
            batch: 32,
            heads: Heads {
                query: 32,
                key_value: 8,
                ..self.heads
            },
            query_len: 1,
            key_len: 8192,
            query_rows: 32,
            key_rows: 32 * 8192,
            packed_queries: false,
            packed_keys: false,
            device_lengths: false,
            page_rows: 0,
            want_lse: true,
            ..*self
        }
    }

    /// About as many sequences as have [`typical_lengths`](Self::typical_lengths).
    pub fn typical_sequences(&self) -> f64 {
        match self.packed_queries {
            true => self.used_rows()[0] as f64 / self.typical_lengths().0.max(1) as f64,
            false => self.batch as f64,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} b{} ", self.element(), self.batch)?;
        if self.packed_queries || self.packed_keys {
            f.write_str("packed ")?;
        }
        write!(f, "q{} k{} {}", self.query_len, self.key_len, self.heads)?;
        if let Some(element) = self.types.scaled() {
            write!(f, " cache={element}")?;
        }
        if let Some(rows) = self.page_rows() {
            write!(f, " pages{rows}")?;
        }
        let options = self.scoring.words_of(self.masks_keys_alone());
        if !options.is_empty() {
            write!(f, " {options}")?;
        }
        if let Some(keys) = self.splits.keys() {
            write!(f, " splits={keys}")?;
        }
        if !self.aligned {
            f.write_str(" unaligned")?;
        }
        Ok(())
    }
}

/// Lengths of sequences that have a given number of rows together.
struct Spread {
    /// Length of the first sequence.
    first: usize,
    /// Length of each other sequence.
    other: usize,
    /// How many sequences after the first have one row more than the others.
    longer: usize,
}

impl Spread {
    /// The first of `batch` sequences has length `longest`, and the others share the rest of the rows.
    fn new(rows: usize, longest: usize, batch: usize) -> Self {
        let first = longest.min(rows);
        let (rest, others) = (rows - first, batch.saturating_sub(1).max(1));
        Spread {
            first,
            other: rest / others,
            longer: rest % others,
        }
    }

    /// Every sequence has this length.
    fn even(length: usize) -> Self {
        Spread {
            first: length,
            other: length,
            longer: 0,
        }
    }

    fn length(&self, sequence: usize) -> usize {
        match sequence {
            0 => self.first,
            _ => self.other + usize::from(sequence <= self.longer),
        }
    }
}

/// The next multiple of an eighth of the power of two at or below `n`.
fn rounded(n: usize) -> usize {
    match n.checked_ilog2() {
        Some(log) if log >= 3 => n.next_multiple_of(1 << (log - 3)),
        _ => n,
    }
}

/// With about as many blocks in a row: what the planner knows of lists.
fn rounded_lists(lists: BlockLists) -> BlockLists {
    match lists.blocks_of_a_row() {
        Some(blocks) => lists.each(u32::try_from(rounded(blocks)).unwrap_or(u32::MAX)),
        None => lists,
    }
}

/// [`rounded`], in steps of at least the keys that a tile takes at once: a cache that grows from nothing to 1,000 keys makes 16
/// problems.
fn rounded_keys(n: usize) -> usize {
    const TILE: usize = 64;
    rounded(n.max(1)).next_multiple_of(TILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use quickcheck::quickcheck;
    use std::collections::HashSet;

    quickcheck! {
        fn rounding_goes_up_by_less_than_an_eighth(n: u32) -> bool {
            let n = n as usize;
            let up = rounded(n);
            up >= n && up - n <= n / 8 && rounded(up) == up
        }

        fn rounding_keeps_the_order(a: u32, b: u32) -> bool {
            let (a, b) = (a.min(b) as usize, a.max(b) as usize);
            rounded(a) <= rounded(b) && rounded_keys(a) <= rounded_keys(b)
        }
    }

    fn dense(query: usize, keys: usize) -> Problem {
        let (q, k) = (
            Layout::bshd([1, query, 4, 64]),
            Layout::bshd([1, keys, 4, 64]),
        );
        Call::builder(&q, &k, &k, ElementType::F16)
            .build()
            .unwrap()
            .problem()
    }

    #[test]
    fn powers_of_two_and_their_eighths_stay() {
        for n in [0, 1, 7, 8, 9, 512, 576, 4096, 4608, 1 << 20] {
            assert_eq!(rounded(n), n);
        }
        assert_eq!(
            (rounded(17), rounded(4097), rounded(5000)),
            (18, 4608, 5120)
        );
    }

    #[test]
    fn a_growing_cache_makes_few_problems() {
        for start in [0, 1, 500, 1024, 4096, 100_000] {
            let problems: HashSet<Problem> =
                (start..start + 1000).map(|keys| dense(1, keys)).collect();
            assert!(problems.len() <= 16, "{start}: {}", problems.len());
        }
    }

    #[test]
    fn packed_batches_of_other_lengths_are_one_problem() {
        let tensor = Layout::packed(100, 4, 64);
        let problem = |offsets: &[i32]| {
            Call::builder(&tensor, &tensor, &tensor, ElementType::F16)
                .packed(offsets, offsets)
                .build()
                .unwrap()
                .problem()
        };
        assert_eq!(problem(&[0, 50, 100]), problem(&[0, 48, 98]));
        // The keys' bound is 64.
        assert_eq!(problem(&[0, 50, 100]).typical_lengths(), (52, 55));
        assert_eq!(problem(&[0, 50, 100]).typical_group_tiles(32), 16.0);
        assert!(problem(&[0, 50, 100]).needs().contains(Features::PACKED));
    }

    #[test]
    fn a_long_sequence_among_short_ones_counts_by_its_rows() {
        let typical = |offsets: &[i32], rows| {
            let q = Layout::packed(rows, 4, 64);
            let call = Call::builder(&q, &q, &q, ElementType::F16)
                .packed(offsets, offsets)
                .build()
                .unwrap();
            call.problem().typical_lengths()
        };
        // 1,024 of 1,152 rows see 1,024 keys, the others 64.
        assert_eq!(typical(&[0, 1024, 1088, 1152], 1152), (917, 917));
        assert_eq!(typical(&[0, 64], 64), (64, 64));
        // Rows that no sequence has say nothing.
        assert_eq!(typical(&[0, 2, 4, 6, 8], 8192), (2, 64));
    }

    /// A kernel that takes no scale of this kind is none for the line's choice.
    #[test]
    fn a_line_has_the_scale_that_few_kernels_take() {
        let q = Layout::bshd([1, 64, 4, 64]);
        let line = |element, words: &str| {
            let builder = Call::builder(&q, &q, &q, element).scoring(words.parse().unwrap());
            let problem = builder.build().unwrap().problem();
            let needs = problem.needs().contains(Features::NEGATIVE_SCALE);
            (problem.line(), needs)
        };
        for (words, rare_types) in [
            ("", &[][..]),
            ("scale=0.5", &[]),
            ("scale=1e-30", &[]),
            ("scale=1e-31", &[ElementType::Bf16]),
            ("scale=0", &[ElementType::Bf16]),
            (
                "scale=-0.5",
                &[ElementType::Bf16, ElementType::F16, ElementType::F32],
            ),
        ] {
            for element in [ElementType::Bf16, ElementType::F16, ElementType::F32] {
                let is_rare = rare_types.contains(&element);
                let usual = format!("b1 q64 k64 h4 d64 {element}");
                let expected = match is_rare {
                    true => format!("{usual} {}", words.parse::<Scoring>().unwrap()),
                    false => usual,
                };
                assert_eq!(line(element, words), (expected, is_rare));
            }
        }
    }

    /// A decode step whose packed tensor has room for prompts, as under a CUDA graph.
    #[test]
    fn room_to_spare_makes_no_sequence_longer() {
        let problem = |rows| {
            let q = Layout::packed(rows, 4, 64);
            let k = Layout::bshd([64, 1024, 4, 64]);
            Call::builder(&q, &k, &k, ElementType::F16)
                .device_query_offsets(64, 1)
                .build()
                .unwrap()
                .problem()
        };
        let [exact, roomy] = [64, 8192].map(problem);
        assert_eq!(roomy.query_rows(), 8192);
        for problem in [exact, roomy] {
            assert_eq!(problem.typical_lengths(), (1, 1024));
            assert_eq!(problem.typical_sequences(), 64.0);
            assert_eq!(problem.typical_group_tiles(64), 64.0 * 4.0);
        }
        assert_eq!(roomy.line(), exact.line());
    }
}
