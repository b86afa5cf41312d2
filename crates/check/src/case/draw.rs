//! Random cases.

use warptile::kernels::{Image, Kind, Role};
use warptile::spec::{
    AlibiShape, BlockLists, Features, Heads, MAX_HEAD_DIM, MAX_LEN, MAX_PAGE_ROWS, Operand, Scoring,
};
use warptile::{Diagonal, ElementType, Mask, Splits};

use super::{Case, LayoutKind, Lengths, Used};
use crate::data::Random;

/// Multiply-adds of each product that a random case may ask of the reference: a fraction of a second on one core.
const WORK: usize = 40_000_000;

/// The largest head size that kernels have with every option.
const WIDELY_KNOWN: usize = 256;

impl Case {
    /// The case that follows from `seed`; no length exceeds `max_len` (at least 1), and the host computes its reference in a
    /// fraction of a second.
    pub fn random(seed: u64, max_len: usize) -> Self {
        Self::random_with_work(seed, max_len, WORK)
    }

    /// As [`Case::random`], with a reference of up to `work` multiply-adds for each of the two products: for
    /// [`ReferenceOnGpu`](crate::ReferenceOnGpu), which affords more.
    pub fn random_with_work(seed: u64, max_len: usize, work: usize) -> Self {
        let mut random = Random::new(seed);
        let (heads, kv_heads) =
            random.pick(&[(1, 1), (2, 2), (6, 6), (6, 2), (8, 1), (4, 2), (3, 1)]);
        let head_dim = match random.below(3) {
            0 => random.pick(&[32, 64, 128]),
            1 => random.pick(&[8, 40, 96, 104, 160, 192, 224, 256]),
            _ => 8 * (1 + random.below(32)),
        };
        // A few of them, by numbers of their own, so that the others are what they were before there were such sizes.
        let mut large = Random::new(seed ^ 0x512d);
        let is_large = large.below(24) == 0;
        let head_dim = match (is_large, large.below(3)) {
            (false, _) => head_dim,
            (true, 0) => MAX_HEAD_DIM,
            (true, _) => {
                8 * (WIDELY_KNOWN / 8 + 1 + large.below((MAX_HEAD_DIM - WIDELY_KNOWN) / 8))
            }
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
            0 => Mask::none(),
            1..=3 => Mask::causal(),
            _ => Mask::window(side(&mut random), side(&mut random)),
        });
        if !scoring.mask.hides_nothing() {
            scoring.mask.diagonal = match random.below(4) {
                0 => Diagonal::TopLeft,
                1 => {
                    // From hiding everything to hiding nothing.
                    let [before, behind] = [random.below(max_len), random.below(max_len)];
                    Diagonal::At((before as i32).saturating_sub(behind as i32))
                }
                _ => Diagonal::BottomRight,
            };
        }
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
        for operand in Operand::of_scores() {
            let (fits, rarity) = match operand.kind() {
                Kind::Scores => (matches!(lengths, Lengths::Dense { .. }), 10),
                _ => (operand != Operand::Slopes, 6),
            };
            if fits && random.below(rarity) == 0 {
                scoring = scoring.with(operand);
            }
        }
        let is_f32 = element != ElementType::F32 && Random::new(seed ^ 0xb1a5).below(2) == 0;
        if scoring.has(Operand::Bias) && is_f32 {
            scoring = scoring.bias_f32();
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
        let mut of_scores = Random::new(seed ^ 0xb40a);
        let broadcast = (of_scores.below(4) == 0).then(|| {
            let [batch, queries, heads] = [(); 3].map(|()| of_scores.below(2) == 0);
            [batch, queries, heads, of_scores.below(4) == 0]
        });
        let case = Case {
            lengths,
            used,
            pages: None,
            runs: 1,
            device_lengths,
            heads: Heads::new(heads, head_dim).key_value(kv_heads),
            element,
            quantized: None,
            // Half of the key masks, by numbers of their own.
            padding: scoring.has(Case::PADDING) && Random::new(seed ^ 0x9add).below(2) == 0,
            broadcast: broadcast.filter(|_| scoring.has_score_tensors()),
            scoring,
            splits: Splits::Even,
            layout,
            unaligned,
            multiprocessors,
            backward: false,
            d_bias: false,
            seed,
        };
        let case = match paged {
            true => case.with_pages(),
            false => case,
        };
        let case = match is_large {
            true => case.without_what_large_heads_lack(),
            false => case,
        };
        // A sixth of them; the others are what they were before values could have a head size of their own.
        let mut random = Random::new(seed ^ 0x7a1de);
        match random.below(6) {
            0 => case.with_value_dim(),
            _ => case,
        }
    }

    /// On a GPU.
    fn without_what_large_heads_lack(mut self) -> Self {
        if self.element == ElementType::F32 {
            self.element = ElementType::F16;
        }
        self.unaligned = false;
        self.without_score_tensors()
    }

    /// Without options that have an element for each score.
    pub(super) fn without_score_tensors(mut self) -> Self {
        let tensors = Operand::of_scores().filter(|operand| operand.kind() == Kind::Scores);
        for word in tensors.filter_map(Operand::word) {
            self.remove(word);
        }
        self
    }

    /// The case with another head size of values, as the seed has it: mostly a smaller one, as that of DeepSeek's prompts (192 and 128).
    pub fn with_value_dim(self) -> Self {
        let mut random = Random::new(self.seed ^ 0xd1f5);
        let most = match random.below(4) {
            0 => WIDELY_KNOWN.max(self.heads.dim),
            _ => self.heads.dim,
        };
        let value_dim = match random.below(3) {
            0 if self.heads.dim > 128 => 128,
            _ => 8 * (1 + random.below(most / 8)),
        };
        Case {
            heads: self.heads.value_dim(value_dim),
            ..self
        }
    }

    /// The case with its keys and values in pages, as the seed has them. Many a batch becomes one of a few queries for each
    /// sequence, with keys of other lengths.
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

    /// The case with dropout, as the seed has it: a third of them.
    pub fn with_dropout(self) -> Self {
        let has_dropout = Random::new(self.seed ^ 0xd70).below(3) == 0;
        self.with_dropout_if(has_dropout)
    }

    /// The case with lists of blocks, as the seed has it: a quarter of them.
    pub fn with_blocks(self) -> Self {
        let has_blocks = Random::new(self.seed ^ 0xb10).below(4) == 0;
        self.with_blocks_if(has_blocks)
    }

    /// The case with lists of blocks that the seed has, or without.
    fn with_blocks_if(mut self, has_blocks: bool) -> Self {
        let mut random = Random::new(self.seed ^ 0xb11);
        let mut size = || random.pick(&[64, 128]);
        let mut lists = BlockLists::new(size(), size());
        if random.below(2) == 0 {
            lists = lists.per_batch();
        }
        if random.below(2) == 0 {
            lists = lists.per_head();
        }
        self.scoring.blocks = None;
        let had_lists = self.has_lists();
        self.scoring.blocks = has_blocks.then_some(lists);
        self.d_bias &= !has_blocks; // no kernel has both
        if !had_lists {
            self.device_lengths = has_blocks && random.below(3) == 0;
        }
        self
    }

    /// The case with dropout of a probability that the seed has, or without.
    fn with_dropout_if(mut self, has_dropout: bool) -> Self {
        let p = Random::new(self.seed ^ 0xd71).pick(&[0.0, 0.1, 0.17, 0.5, 0.9]);
        self.scoring.dropout = has_dropout.then_some(p);
        self
    }

    /// The case with its keys and values in this type.
    pub fn with_quantized(mut self, element: ElementType) -> Self {
        self.quantized = Some(element);
        self
    }

    /// The case with the image's types, with dropout, lists of blocks or the only kind of mask or bias if the image has them, and heads that its
    /// tiles can hold. What else the image asks for is left to the draw, such as aligned rows or keys in pages.
    pub fn for_image(mut self, image: &Image) -> Self {
        self.element = image.element;
        self.quantized = image.types().scaled();
        let fitted = |size: usize, widest: usize| {
            let widest = widest.min(MAX_HEAD_DIM);
            match self.quantized {
                // Other sizes are not aligned with any strides.
                Some(_) => size.next_multiple_of(16).min(widest),
                None => size.min(widest),
            }
        };
        let ([keys, values], [room, value_room]) = (self.heads.dims(), image.tiling.dims());
        let fitting = [fitted(keys, room), fitted(values, value_room)];
        self.heads = self.heads.with_dims(fitting);
        if image.role == Role::BiasGradients {
            self.with_bias_gradient();
        }
        let is_f32 = Random::new(self.seed ^ 0xb1a6).below(8) == 0;
        if !image.features.contains(Features::BIAS_F32) || image.element == ElementType::F32 {
            self.scoring = self.scoring.bias_as_queries();
        } else if is_f32 && matches!(self.lengths, Lengths::Dense { .. }) {
            self.scoring = self.scoring.bias_f32();
        }
        let case = { self.with_dropout_if(image.features.contains(Features::DROPOUT)) }
            .with_blocks_if(image.features.contains(Features::BLOCKS));
        match image.boxed() {
            Some(operand) => case.with_boxes_of(operand),
            None if image.hides_keys_alone() => case.with_keys_hidden_alike(),
            None => case,
        }
    }

    /// The case with a bias or a key mask whose rows the copy engine can bring, if its lengths allow one, and without what else changes
    /// scores.
    fn with_boxes_of(self, operand: Operand) -> Self {
        let mut random = Random::new(self.seed ^ 0x4a6);
        let mut case = self.without_score_tensors();
        for word in ["softcap", "alibi"] {
            case.remove(word);
        }
        if let Lengths::Dense { key, .. } = &mut case.lengths {
            *key = (*key).next_multiple_of(16);
            case.scoring = case.scoring.with(operand);
            case.broadcast = Some([random.below(2) == 0, false, random.below(2) == 0, false]);
            if case.layout == LayoutKind::Gaps {
                case.layout = LayoutKind::Bhsd;
            }
        }
        case
    }

    /// The case with a mask that hides the same keys from all queries, if its lengths allow one, and without what else changes scores.
    fn with_keys_hidden_alike(self) -> Self {
        let mut random = Random::new(self.seed ^ 0x4a5);
        let mut case = self.without_score_tensors();
        for word in ["softcap", "alibi"] {
            case.remove(word);
        }
        if matches!(case.lengths, Lengths::Dense { .. }) {
            case.scoring = case.scoring.with(Self::PADDING);
            case.padding = random.below(3) == 0;
            case.broadcast = Some([random.below(4) == 0, true, random.below(2) == 0, false]);
        }
        case
    }

    /// Gives the case a bias whose gradient is wanted, and its sequences dense tensors.
    fn with_bias_gradient(&mut self) {
        if let Lengths::Packed(pairs) = &self.lengths {
            let longest = |of: fn(&(usize, usize)) -> usize| pairs.iter().map(of).max();
            let dense = Lengths::Dense {
                batch: pairs.len(),
                query: longest(|pair| pair.0).unwrap_or(0),
                key: longest(|pair| pair.1).unwrap_or(0),
            };
            (self.used, self.lengths) = (Used::Each(pairs.clone()), dense);
        }
        self.scoring = self.scoring.with(Operand::Bias);
        self.d_bias = true;
    }

    /// The case with its keys cut at fixed places, as the seed has them.
    pub fn with_splits(self) -> Self {
        let mut random = Random::new(self.seed ^ 0x5b117);
        Case {
            splits: Splits::EveryKeys(Splits::MIN_KEYS << random.below(3)),
            ..self
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
        let cases: Vec<Case> = (0..300)
            .map(|seed| Case::random(seed, 300).with_dropout().with_blocks())
            .collect();
        let some = |property: fn(&Case) -> bool| assert!(cases.iter().any(property));
        some(|case| matches!(case.lengths, Lengths::Packed(_)));
        some(|case| case.scoring.mask.left.is_some());
        some(|case| case.scoring.alibi == Some(AlibiShape::PerBatchHead));
        for word in Scoring::words() {
            let uses = |case: &&Case, word| case.scoring.uses(word);
            for other in Scoring::words() {
                let both = |case: &&Case| uses(case, word) && uses(case, other);
                assert!(cases.iter().any(|case| both(&case)), "{word} {other}");
            }
            let in_gaps = |case: &&Case| uses(case, word) && case.layout == LayoutKind::Gaps;
            assert!(cases.iter().any(|case| in_gaps(&case)), "{word}");
        }
        some(|case| case.used != Used::All && matches!(case.lengths, Lengths::Packed(_)));
        some(|case| case.used != Used::All && matches!(case.lengths, Lengths::Dense { .. }));
        some(|case| case.device_lengths && case.used == Used::All);
        some(|case| {
            let dense = matches!(case.lengths, Lengths::Dense { .. }) && case.used == Used::All;
            case.device_lengths && dense && case.pages.is_none() && case.scoring.blocks.is_some()
        });
        some(|case| case.pages.is_some() && matches!(case.lengths, Lengths::Packed(_)));
        some(|case| case.pages.is_some() && case.scoring.has(Operand::Bias));
        some(|case| case.pages.is_some() && case.device_lengths);
        some(|case| case.padding && case.pages.is_some());
        some(|case| case.scoring.has(Case::PADDING) && !case.padding);
        for layout in [LayoutKind::Bhsd, LayoutKind::Gaps, LayoutKind::Interleaved] {
            assert!(
                cases
                    .iter()
                    .any(|case| case.pages.is_some() && case.layout == layout)
            );
        }
        some(|case| case.multiprocessors == Some(1));
        some(|case| case.layout == LayoutKind::Gaps && case.unaligned);
        some(|case| case.heads.dim > 128 && case.heads.group_size() > 1);
        some(|case| case.heads.value_dim < case.heads.dim);
        some(|case| case.heads.value_dim > case.heads.dim && case.pages.is_some());
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
                let shape = case.score_layout(Operand::Bias).shape;
                [shape[0] == 1, shape[1] == 1, shape[2] == 1]
            })
            .collect();
        assert_eq!(bias_shapes.len(), 8);
    }
}
