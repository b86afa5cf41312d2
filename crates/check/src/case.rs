//! Problems without data: how they are drawn and made smaller.

use warptile::{
    AlibiShape, Align, Call, DeviceProfile, ElementType, Layout, MAX_LEN, MAX_PAGE_ROWS, Mask,
    Scoring, Splits, TableLayout,
};

use crate::data::Random;
use crate::error::{Error, Result, limited};

/// How the tensors of a [`Case`] are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LayoutKind {
    /// `[batch, length, heads, head size]`.
    Bshd,
    /// `[batch, heads, length, head size]`.
    Bhsd,
    /// BSHD with unused elements after every head, row and batch entry.
    Gaps,
    /// BSHD, except that every batch entry or page of keys is followed by room for one of values, and every one of values by
    /// room for one of keys: as if k and v were of one tensor `[batch, 2, length, heads, head size]`.
    Interleaved,
}

/// Sequence lengths of a [`Case`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lengths {
    /// All sequences have the same lengths.
    Dense {
        /// Sequences.
        batch: usize,
        /// Queries of each.
        query: usize,
        /// Keys of each.
        key: usize,
    },
    /// Queries and keys of each sequence, packed one after the other, with unused rows behind the last.
    Packed(Vec<(usize, usize)>),
}

/// How much of its sequences a [`Case`] uses.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Used {
    /// All.
    All,
    /// So many queries and keys of each.
    Each(Vec<(usize, usize)>),
    /// All queries, and from an eighth of its keys to all, as the seed has it.
    Ragged,
}

/// The numbers beside its tensors that a [`Case`] computes with, each exactly if a call needs it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Lists {
    /// Row offsets of packed queries.
    pub query_offsets: Option<Vec<i32>>,
    /// Row offsets of packed keys.
    pub key_offsets: Option<Vec<i32>>,
    /// Used queries.
    pub query_lengths: Option<Vec<i32>>,
    /// Used keys.
    pub key_lengths: Option<Vec<i32>>,
    /// Pages of the keys.
    pub block_table: Option<BlockTable>,
}

impl Lists {
    /// Whether there are any.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// The block table of a [`Case`]: pages in random order. Entries that no key needs are numbers of no page.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockTable {
    /// Numbers of pages.
    pub entries: Vec<i32>,
    /// How they lie.
    pub layout: TableLayout,
    /// Pages there are. Some are in nobody's row.
    pub pages: usize,
}

impl BlockTable {
    /// The page of a sequence whose number lies in a column of the table.
    pub(crate) fn page(&self, sequence: usize, column: usize) -> usize {
        // Entries that keys need were filled with numbers of pages.
        self.entries[sequence * self.layout.row_stride + column] as usize
    }
}

/// A problem without data: prints on a line and parses back.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Sequence lengths.
    pub lengths: Lengths,
    /// How much of each sequence is used.
    pub used: Used,
    /// The rows of a page, if keys and values are paged.
    pub pages: Option<usize>,
    /// Whether offsets, used lengths and the block table are in device memory, if the case runs on a GPU.
    pub device_lengths: bool,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Head size.
    pub head_dim: usize,
    /// Element type.
    pub element: ElementType,
    /// The options.
    pub scoring: Scoring,
    /// Where keys are cut.
    pub splits: Splits,
    /// How the tensors are stored.
    pub layout: LayoutKind,
    /// Whether tensors start, and with [`LayoutKind::Gaps`] also step, at odd multiples of an element: what a kernel must not
    /// touch with 16-byte copies.
    pub unaligned: bool,
    /// Multiprocessors that a GPU is planned to have, if not its own: on few of them small problems take the paths of large
    /// ones.
    pub multiprocessors: Option<u32>,
    /// What the data follows from.
    pub seed: u64,
}

/// Unused rows behind the last packed sequence.
const PACKED_PADDING: usize = 3;

/// Most entries of a block table.
const MAX_ENTRIES: u128 = 1 << 24;

/// Entries of a row of the block table after the last that a sequence of full length needs, and with [`LayoutKind::Gaps`] also between its rows.
const TABLE_PADDING: usize = 1;

/// Most elements of a tensor, gaps included, and most heads of all sequences together.
const MAX_ELEMENTS: u128 = 1 << 31;

/// Multiply-adds of each product that a random case may ask of the reference: a fraction of a second on one core.
const WORK: usize = 40_000_000;

impl Case {
    /// A plain case: one sequence, one head, full attention in `f32`, BSHD.
    #[must_use]
    pub fn new(query: usize, key: usize, head_dim: usize) -> Self {
        Case {
            lengths: Lengths::Dense {
                batch: 1,
                query,
                key,
            },
            used: Used::All,
            pages: None,
            device_lengths: false,
            heads: 1,
            kv_heads: 1,
            head_dim,
            element: ElementType::F32,
            scoring: Scoring::new(),
            splits: Splits::Even,
            layout: LayoutKind::Bshd,
            unaligned: false,
            multiprocessors: None,
            seed: 0,
        }
    }

    /// The case that follows from `seed`; no length exceeds `max_len` (at least 1), and the host computes its reference in a
    /// fraction of a second.
    #[must_use]
    pub fn random(seed: u64, max_len: usize) -> Self {
        Self::random_with_work(seed, max_len, WORK)
    }

    /// As [`Case::random`], with a reference of up to `work` multiply-adds for each of the two products: for
    /// [`ReferenceOnGpu`](crate::ReferenceOnGpu), which affords more.
    #[must_use]
    pub fn random_with_work(seed: u64, max_len: usize, work: usize) -> Self {
        let mut random = Random::new(seed);
        let (heads, kv_heads) =
            random.pick(&[(1, 1), (2, 2), (6, 6), (6, 2), (8, 1), (4, 2), (3, 1)]);
        let head_dim = match random.below(3) {
            0 => random.pick(&[32, 64, 128]),
            1 => random.pick(&[8, 40, 96, 104, 160, 192, 224, 256]),
            _ => 8 * (1 + random.below(32)),
        };
        // Sequences share the work that a case may cost.
        let batch = 1 + random.below(4);
        let budget = work / (batch * heads * head_dim);
        let max_len = max_len.clamp(1, MAX_LEN);
        let lengths = if random.below(4) == 0 {
            Lengths::Packed(
                (0..batch)
                    .map(|_| (random.length(max_len), random.length(max_len)))
                    .map(|lengths| within(lengths, budget))
                    .collect(),
            )
        } else {
            let (query, key) = within((random.length(max_len), random.length(max_len)), budget);
            Lengths::Dense { batch, query, key }
        };
        let side = |random: &mut Random| match random.below(3) {
            0 => None,
            1 => Some(random.below(5) as u32),
            _ => Some(random.below(max_len) as u32),
        };
        let mut scoring = Scoring::new().mask(match random.below(5) {
            0 => Mask::None,
            1 | 2 => Mask::causal(),
            3 => Mask::Causal {
                align: Align::TopLeft,
            },
            _ => Mask::Window {
                left: side(&mut random),
                right: side(&mut random),
            },
        });
        let element = random.pick(&[ElementType::F16, ElementType::Bf16, ElementType::F32]);
        scoring.scale = match random.below(8) {
            0 => Some(0.0),
            1 => Some(-0.25),
            2 => Some(0.7),
            _ => None,
        };
        scoring.softcap = (random.below(4) == 0).then(|| random.pick(&[1.0, 15.0, 50.0]));
        scoring.alibi = match random.below(6) {
            0 => Some(AlibiShape::PerHead),
            1 => Some(AlibiShape::PerBatchHead),
            _ => None,
        };
        let mut layout = random.pick(&[LayoutKind::Bshd, LayoutKind::Bhsd, LayoutKind::Gaps]);
        let unaligned = random.below(4) == 0;
        scoring.sinks = random.below(6) == 0;
        if let Lengths::Dense { .. } = lengths {
            scoring.bias = random.below(10) == 0;
            scoring.key_mask = random.below(10) == 0;
        }
        let part = |random: &mut Random, rows: usize| match random.below(4) {
            0 => rows,
            _ => random.below(rows + 1),
        };
        let used = match random.below(5) {
            0 => {
                let rows = lengths.each().into_iter();
                let part = |(query, key)| (part(&mut random, query), part(&mut random, key));
                Used::Each(rows.map(part).collect())
            }
            _ => Used::All,
        };
        let device_lengths =
            random.below(3) == 0 && (used != Used::All || matches!(lengths, Lengths::Packed(_)));
        let multiprocessors = (random.below(3) == 0).then(|| 1 + random.below(5) as u32);
        let paged = random.below(4) == 0;
        if layout == LayoutKind::Bshd && random.below(3) == 0 {
            layout = LayoutKind::Interleaved;
        }
        let case = Case {
            lengths,
            used,
            pages: None,
            device_lengths,
            heads,
            kv_heads,
            head_dim,
            element,
            scoring,
            splits: Splits::Even,
            layout,
            unaligned,
            multiprocessors,
            seed,
        };
        match paged {
            true => case.with_pages(),
            false => case,
        }
    }

    /// The case with its keys and values in pages, as the seed has them. Many a batch becomes one of a few queries for each
    /// sequence, with keys of other lengths.
    #[must_use]
    pub fn with_pages(mut self) -> Self {
        let mut random = Random::new(self.seed ^ 0x9a6e5);
        self.pages = Some(match random.below(3) {
            0 => 1 + random.below(MAX_PAGE_ROWS),
            _ => random.pick(&[1, 8, 16, 32, 64, 128, 256]),
        });
        self.device_lengths = random.below(2) == 0;
        if self.used == Used::All && random.below(2) == 0 {
            self.used = Used::Ragged;
            if let Lengths::Dense { query, .. } = &mut self.lengths {
                *query = (1 + random.below(8)).min((*query).max(1));
            }
        }
        self
    }

    /// The case with its keys cut at fixed places, as the seed has them.
    #[must_use]
    pub fn with_splits(self) -> Self {
        let mut random = Random::new(self.seed ^ 0x5b117);
        Case {
            splits: Splits::EveryKeys(Splits::MIN_KEYS << random.below(3)),
            ..self
        }
    }

    /// Sequences.
    #[must_use]
    pub fn batch(&self) -> usize {
        match &self.lengths {
            Lengths::Dense { batch, .. } => *batch,
            Lengths::Packed(lengths) => lengths.len(),
        }
    }

    /// Queries and keys of each sequence that are used.
    #[must_use]
    pub fn used_lengths(&self) -> Vec<(usize, usize)> {
        match &self.used {
            Used::All => self.lengths.each(),
            Used::Each(used) => used.clone(),
            Used::Ragged => {
                let mut random = Random::new(self.seed ^ 0x4a66);
                let part = |(query, key): (usize, usize)| {
                    let least = key.div_ceil(8);
                    (query, least + random.below(key - least + 1))
                };
                self.lengths.each().into_iter().map(part).collect()
            }
        }
    }

    /// Offsets, used lengths and pages.
    #[must_use]
    pub fn lists(&self) -> Lists {
        let mut lists = Lists::default();
        let packed = matches!(self.lengths, Lengths::Packed(_));
        if !packed && self.used == Used::All && self.pages.is_none() {
            return lists;
        }
        let numbers = |rows: &[usize]| Some(rows.iter().copied().map(number).collect());
        let (queries, keys): (Vec<usize>, Vec<usize>) = self.lengths.each().into_iter().unzip();
        if packed {
            lists.query_offsets = numbers(&offsets(&queries));
            if self.pages.is_none() {
                lists.key_offsets = numbers(&offsets(&keys));
            }
        }
        let used: (Vec<usize>, Vec<usize>) = self.used_lengths().into_iter().unzip();
        if used.0 != queries {
            lists.query_lengths = numbers(&used.0);
        }
        if used.1 != keys || self.pages.is_some() {
            lists.key_lengths = numbers(&used.1);
        }
        lists.block_table = self
            .pages
            .map(|page_rows| self.block_table(page_rows.max(1), &used.1));
        lists
    }

    fn table_layout(&self, page_rows: usize) -> TableLayout {
        let columns = self.longest_keys().div_ceil(page_rows);
        let columns = columns.saturating_add(TABLE_PADDING);
        let gap = match self.layout {
            LayoutKind::Gaps => TABLE_PADDING,
            _ => 0,
        };
        TableLayout::new([self.batch(), columns], columns.saturating_add(gap))
    }

    fn longest_keys(&self) -> usize {
        match &self.lengths {
            Lengths::Dense { key, .. } => *key,
            Lengths::Packed(lengths) => lengths.iter().map(|lengths| lengths.1).max().unwrap_or(0),
        }
    }

    fn block_table(&self, page_rows: usize, keys: &[usize]) -> BlockTable {
        let layout = self.table_layout(page_rows);
        let mut random = Random::new(self.seed ^ 0xb10c);
        let needed: usize = keys.iter().map(|keys| keys.div_ceil(page_rows)).sum();
        let pages = needed + 1 + random.below(3);
        let mut order: Vec<usize> = (0..pages).collect();
        for last in (1..pages).rev() {
            order.swap(last, random.below(last + 1));
        }
        let poison = [-1, number(pages), i32::MIN, i32::MAX];
        let mut entries: Vec<i32> = (0..layout.shape[0] * layout.row_stride)
            .map(|_| random.pick(&poison))
            .collect();
        let mut order = order.into_iter().map(number);
        for (sequence, keys) in keys.iter().enumerate() {
            let start = sequence * layout.row_stride;
            let row = entries[start..].iter_mut().take(keys.div_ceil(page_rows));
            for (entry, page) in row.zip(order.by_ref()) {
                *entry = page;
            }
        }
        BlockTable {
            entries,
            layout,
            pages,
        }
    }

    /// Layouts of q and of k and v. The output's is that of q.
    fn layouts(&self, table: Option<&BlockTable>) -> (Layout, Layout) {
        let (batch, query, key) = match &self.lengths {
            Lengths::Dense { batch, query, key } => (*batch, *query, *key),
            Lengths::Packed(lengths) => {
                let rows = |length: fn(&(usize, usize)) -> usize| {
                    let lengths = lengths.iter().map(length);
                    lengths.fold(PACKED_PADDING, usize::saturating_add)
                };
                (1, rows(|lengths| lengths.0), rows(|lengths| lengths.1))
            }
        };
        let [entries, rows] = match (table, self.pages) {
            (Some(table), Some(page_rows)) => [table.pages, page_rows],
            _ => [batch, key],
        };
        let q = [batch, query, self.heads, self.head_dim];
        let kv = [entries, rows, self.kv_heads, self.head_dim];
        let mut kv = self.tensor_layout(kv);
        if self.layout == LayoutKind::Interleaved {
            kv.strides[0] = kv.strides[0].saturating_mul(2);
        }
        (self.tensor_layout(q), kv)
    }

    fn tensor_layout(&self, shape: [usize; 4]) -> Layout {
        let [batch, rows, heads, head_dim] = shape;
        match self.layout {
            LayoutKind::Bshd | LayoutKind::Interleaved => Layout::bshd(shape),
            LayoutKind::Bhsd => Layout::bhsd([batch, heads, rows, head_dim]),
            LayoutKind::Gaps => {
                // 8 elements keep 16-byte alignment in every type, 3 break it.
                let gap = if self.unaligned { 3 } else { 8 };
                let step =
                    |extent: usize, inner: usize| extent.saturating_mul(inner).saturating_add(gap);
                let head = step(head_dim, 1);
                let row = step(heads, head);
                Layout::new(shape, [step(rows, row), row, head, 1])
            }
        }
    }

    /// Layout of the bias, or of the key mask: in each dimension but the last whole or of extent 1, as the seed has it, and
    /// stored like the other tensors; [`LayoutKind::Gaps`] leaves gaps between keys too.
    pub(crate) fn score_layout(&self, tensor: ScoreTensor) -> Layout {
        let Lengths::Dense { batch, query, key } = self.lengths else {
            return Layout::bshd([1; 4]);
        };
        let mut random = Random::new(self.seed ^ tensor as u64);
        let mut maybe_one = |extent: usize| match random.below(2) {
            0 => extent,
            _ => 1,
        };
        let shape = [
            maybe_one(batch),
            maybe_one(query),
            maybe_one(self.heads),
            key,
        ];
        let [batch, rows, heads, keys] = shape;
        match self.layout {
            LayoutKind::Bshd | LayoutKind::Interleaved => Layout::bshd(shape),
            LayoutKind::Bhsd => Layout::bhsd([batch, heads, rows, keys]),
            LayoutKind::Gaps => {
                let step =
                    |extent: usize, inner: usize| extent.saturating_mul(inner).saturating_add(3);
                let head = step(keys, 2);
                let row = step(heads, head);
                Layout::new(shape, [step(rows, row), row, head, 2])
            }
        }
    }

    /// What this case computes, with all lengths on the host.
    ///
    /// # Panics
    /// If the fields were set to something that [`try_call`](Self::try_call) refuses, such as a head size of 7. Cases that
    /// are drawn, shrunk or parsed never are.
    #[must_use]
    pub fn call(&self) -> Call {
        match self.try_call() {
            Ok(call) => call,
            Err(error) => panic!("case `{self}`: {error}"),
        }
    }

    /// What this case computes, for a case whose fields were set by hand.
    ///
    /// # Errors
    /// When no [`Call`] is like this, or its data would not fit into the memory of an ordinary machine.
    pub fn try_call(&self) -> Result<Call> {
        self.build(false)
    }

    /// What this case computes on a GPU: with its lengths on the device if [`device_lengths`](Self::device_lengths) says so.
    ///
    /// # Errors
    /// As [`try_call`](Self::try_call).
    pub fn call_on_gpu(&self) -> Result<Call> {
        self.build(self.device_lengths)
    }

    fn build(&self, on_device: bool) -> Result<Call> {
        let fits = |layout: &Layout| {
            let elements = layout.required_len().unwrap_or(usize::MAX);
            limited("elements in a tensor", elements as u128, MAX_ELEMENTS)
        };
        let (q, kv) = self.layouts(None);
        fits(&q)?;
        if self.pages.is_none() {
            fits(&kv)?;
        }
        // Slopes, rows of an empty tensor: whatever a problem without elements still has.
        let rows = self.batch() as u128 * self.heads.max(1) as u128;
        limited("heads in all sequences", rows, MAX_ELEMENTS)?;
        if let Used::Each(used) = &self.used
            && used.len() != self.batch()
        {
            return Err(Error::UsedLengths {
                found: used.len(),
                sequences: self.batch(),
            });
        }
        // Before there are lists of so many numbers.
        if self.used == Used::Ragged {
            limited("lengths", self.batch() as u128, MAX_ENTRIES)?;
        }
        if let Some(page_rows) = self.pages {
            let table = self.table_layout(page_rows.max(1));
            let entries = table.shape[0] as u128 * table.row_stride as u128;
            limited("entries in the block table", entries, MAX_ENTRIES)?;
            // The table may have room for more.
            let lengths = self.lengths.each().into_iter().zip(self.used_lengths());
            let too_long = lengths.map(|(all, used)| (all.1, used.1)).enumerate();
            if let Some((index, (all, used))) = { too_long }.find(|(_, (all, used))| used > all) {
                return Err(Error::Call(warptile::Error::Lengths {
                    argument: "key_lengths",
                    index,
                    rule: format!("is {used}, but sequence {index} has {all} rows"),
                }));
            }
        }
        let lists = self.lists();
        let (q, kv) = self.layouts(lists.block_table.as_ref());
        fits(&kv)?;
        let mut builder = Call::builder(&q, &kv, &kv, self.element)
            .scoring(self.scoring)
            .splits(self.splits)
            .out(q);
        // Where the device has the lengths, a caller knows a bound at best: here that of the rows.
        let batch = self.batch();
        builder = match &lists.query_offsets {
            Some(_) if on_device => builder.device_query_offsets(batch, q.rows()),
            Some(offsets) => builder.packed_queries(offsets),
            None => builder,
        };
        builder = match &lists.key_offsets {
            Some(_) if on_device => builder.device_key_offsets(batch, kv.rows()),
            Some(offsets) => builder.packed_keys(offsets),
            None => builder,
        };
        builder = match &lists.query_lengths {
            Some(_) if on_device => builder.device_query_lengths(batch),
            Some(lengths) => builder.query_lengths(lengths),
            None => builder,
        };
        builder = match &lists.key_lengths {
            Some(_) if on_device => builder.device_key_lengths(batch),
            Some(lengths) => builder.key_lengths(lengths),
            None => builder,
        };
        builder = match &lists.block_table {
            Some(table) if on_device => builder
                .device_block_table(table.layout)
                .longest_keys(self.longest_keys()),
            Some(table) => builder.block_table(&table.entries, table.layout),
            None => builder,
        };
        if self.scoring.bias {
            let layout = self.score_layout(ScoreTensor::Bias);
            fits(&layout)?;
            builder = builder.bias(layout);
        }
        if self.scoring.key_mask {
            let layout = self.score_layout(ScoreTensor::KeyMask);
            fits(&layout)?;
            builder = builder.key_mask(layout);
        }
        if self.unaligned {
            builder = builder.unaligned_addresses();
        }
        Ok(builder.build()?)
    }

    /// The device that the case is planned for, on a GPU with this profile.
    #[must_use]
    pub fn profile(&self, gpu: &DeviceProfile) -> DeviceProfile {
        match self.multiprocessors {
            Some(count) => gpu.clone().with_multiprocessors(count),
            None => gpu.clone(),
        }
    }

    /// Smaller and plainer cases, the boldest first. Repeatedly taking the first that still fails ends at a case of which
    /// nothing can be taken away.
    #[must_use]
    pub fn shrink(&self) -> Vec<Case> {
        let mut smaller: Vec<Case> = Vec::new();
        let mut push = |edit: &dyn Fn(&mut Case)| {
            let mut case = self.clone();
            edit(&mut case);
            if case != *self {
                smaller.push(case);
            }
        };
        push(&|case| case.scoring.mask = Mask::None);
        push(&|case| case.scoring.softcap = None);
        push(&|case| case.scoring.alibi = None);
        push(&|case| case.scoring.scale = None);
        push(&|case| case.scoring.sinks = false);
        push(&|case| case.scoring.bias = false);
        push(&|case| case.scoring.key_mask = false);
        push(&|case| case.splits = Splits::Even);
        push(&|case| case.device_lengths = false);
        push(&|case| case.pages = None);
        push(&|case| case.pages = case.pages.map(|rows| (rows / 2).max(1)));
        push(&|case| case.used = Used::All);
        push(&|case| {
            if case.used == Used::Ragged {
                case.used = Used::Each(case.used_lengths());
            }
        });
        push(&|case| case.multiprocessors = None);
        push(&|case| case.unaligned = false);
        push(&|case| case.layout = LayoutKind::Bshd);
        push(&|case| (case.heads, case.kv_heads) = (1, 1));
        push(&|case| case.kv_heads = case.heads);
        push(&|case| case.head_dim = 8.max(case.head_dim / 2 / 8 * 8));
        push(&|case| case.head_dim = 8.max(case.head_dim - 8));
        for lengths in self.lengths.shrink() {
            push(&|case| case.set_lengths(lengths.clone()));
        }
        if let Used::Each(used) = &self.used {
            for (index, &(query, key)) in used.iter().enumerate() {
                for shorter in shorter(query, key) {
                    let mut used = used.clone();
                    used[index] = shorter;
                    push(&|case| case.used = Used::Each(used.clone()));
                }
            }
        }
        smaller
    }

    /// Other lengths, of which no more is used than there is.
    fn set_lengths(&mut self, lengths: Lengths) {
        if let Used::Each(used) = &mut self.used {
            let each = lengths.each();
            let most = each.iter().zip(used.iter());
            *used = most.map(|(a, b)| (a.0.min(b.0), a.1.min(b.1))).collect();
        }
        let packed = matches!(lengths, Lengths::Packed(_));
        if !packed && self.used == Used::All && self.pages.is_none() {
            self.device_lengths = false;
        }
        self.lengths = lengths;
    }
}

/// A tensor that has an element for each score. The number sets the draws of its layout apart.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ScoreTensor {
    Bias = 0xb1a5,
    KeyMask = 0x3a5c,
}

/// The first row of each sequence, and the row after the last one's last.
fn offsets(lengths: &[usize]) -> Vec<usize> {
    let mut end = 0_usize;
    let ends = lengths.iter().map(|length| {
        end = end.saturating_add(*length);
        end
    });
    std::iter::once(0).chain(ends).collect()
}

/// A number of rows as calls take it. Beyond its range there is no call, only an error.
fn number(rows: usize) -> i32 {
    i32::try_from(rows).unwrap_or(i32::MAX)
}

/// Shorter lengths of one sequence.
fn shorter(query: usize, key: usize) -> impl Iterator<Item = (usize, usize)> {
    let shorter = |length: usize| [length / 2, length.saturating_sub(1)];
    let queries = shorter(query).map(|query| (query, key));
    let keys = shorter(key).map(|key| (query, key));
    queries.into_iter().chain(keys)
}

impl Lengths {
    /// Queries and keys of each sequence.
    pub(crate) fn each(&self) -> Vec<(usize, usize)> {
        match self {
            Lengths::Dense { batch, query, key } => vec![(*query, *key); *batch],
            Lengths::Packed(lengths) => lengths.clone(),
        }
    }

    fn shrink(&self) -> Vec<Lengths> {
        match self {
            Lengths::Dense { batch, query, key } => {
                let dense = |batch, (query, key)| Lengths::Dense { batch, query, key };
                let mut all = vec![dense((*batch).min(1), (*query, *key))];
                all.extend(shorter(*query, *key).map(|lengths| dense(*batch, lengths)));
                all
            }
            Lengths::Packed(lengths) => {
                let mut all: Vec<Lengths> = lengths
                    .iter()
                    .map(|&(query, key)| Lengths::Dense {
                        batch: 1,
                        query,
                        key,
                    })
                    .collect();
                for (index, &(query, key)) in lengths.iter().enumerate() {
                    let mut without = lengths.clone();
                    without.remove(index);
                    all.push(Lengths::Packed(without));
                    all.extend(shorter(query, key).map(|shorter| {
                        let mut lengths = lengths.clone();
                        lengths[index] = shorter;
                        Lengths::Packed(lengths)
                    }));
                }
                all
            }
        }
    }
}

/// Lengths cut down, the longer side first, until each of them and their product fit the budget.
fn within((query, key): (usize, usize), budget: usize) -> (usize, usize) {
    let (mut query, mut key) = (query.min(budget), key.min(budget));
    while query.saturating_mul(key) > budget {
        if query > key {
            query /= 2;
        } else {
            key /= 2;
        }
    }
    (query, key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    quickcheck! {
        fn random_cases_are_valid_and_so_is_what_they_shrink_to(seed: u64) -> bool {
            let case = Case::random(seed, 600);
            let valid = |case: &Case| case.try_call().is_ok() && case.call_on_gpu().is_ok();
            valid(&case) && case.shrink().iter().all(valid)
        }
    }

    #[test]
    fn shrinking_ends_at_the_smallest_case_that_fails() {
        // A "bug" at more than 100 used keys under a causal mask.
        let fails =
            |case: &Case| case.scoring.mask == Mask::causal() && case.call().key_len() > 100;
        for start in (0..400).map(|seed| Case::random(seed, 500)).filter(fails) {
            let mut case = start;
            while let Some(smaller) = case.shrink().into_iter().find(fails) {
                case = smaller;
            }
            let expected = Case {
                element: case.element,
                scoring: Scoring::new().mask(Mask::causal()),
                seed: case.seed,
                ..Case::new(0, 101, 8)
            };
            assert_eq!(case, expected);
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
                                heads,
                                kv_heads: heads,
                                ..Case::new(1, 1, head_dim)
                            };
                            let _ = case.try_call();
                            case.used = Used::Each(vec![(a, b), (b, a), (0, 0)]);
                            case.scoring.bias = true;
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

    #[test]
    fn any_length_may_be_asked_of_random_cases() {
        for max_len in [0, 1, usize::MAX] {
            for seed in 0..50 {
                let _ = Case::random(seed, max_len).call();
            }
        }
    }

    #[test]
    fn every_feature_is_drawn() {
        let cases: Vec<Case> = (0..300).map(|seed| Case::random(seed, 300)).collect();
        let some = |property: fn(&Case) -> bool| assert!(cases.iter().any(property));
        some(|case| matches!(case.lengths, Lengths::Packed(_)));
        some(|case| matches!(case.scoring.mask, Mask::Window { left: Some(_), .. }));
        some(|case| case.scoring.alibi == Some(AlibiShape::PerBatchHead));
        some(|case| case.scoring.softcap.is_some() && case.scoring.alibi.is_some());
        some(|case| case.scoring.sinks && case.scoring.bias);
        some(|case| case.scoring.key_mask && case.layout == LayoutKind::Gaps);
        some(|case| case.used != Used::All && matches!(case.lengths, Lengths::Packed(_)));
        some(|case| case.used != Used::All && matches!(case.lengths, Lengths::Dense { .. }));
        some(|case| case.device_lengths && case.used == Used::All);
        some(|case| case.pages.is_some() && matches!(case.lengths, Lengths::Packed(_)));
        some(|case| case.pages.is_some() && case.scoring.bias);
        some(|case| case.pages.is_some() && case.device_lengths);
        for layout in [LayoutKind::Bhsd, LayoutKind::Gaps, LayoutKind::Interleaved] {
            assert!(
                cases
                    .iter()
                    .any(|case| case.pages.is_some() && case.layout == layout)
            );
        }
        some(|case| case.multiprocessors == Some(1));
        some(|case| case.layout == LayoutKind::Gaps && case.unaligned);
        some(|case| case.head_dim > 128 && case.heads > case.kv_heads);
        some(|case| case.call().key_len() == 0);
        some(|case| case.call().query_len() == 0);
        let bias_shapes: std::collections::HashSet<[bool; 3]> = cases
            .iter()
            .filter(|case| {
                matches!(
                    case.lengths,
                    Lengths::Dense {
                        batch: 2..,
                        query: 2..,
                        ..
                    }
                )
            })
            .map(|case| {
                let shape = case.score_layout(ScoreTensor::Bias).shape;
                [shape[0] == 1, shape[1] == 1, shape[2] == 1]
            })
            .collect();
        assert_eq!(bias_shapes.len(), 8);
    }
}
