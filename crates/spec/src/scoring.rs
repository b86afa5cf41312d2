//! The options of attention: everything that stands between a dot product and a weight.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use crate::{
    BlockLists, Diagonal, ElementType, Excerpt, Features, Invalid, Kind, Mask, Operand, Result,
};

/// How the slopes of ALiBi are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AlibiShape {
    /// One slope per query head, shared by the batch.
    PerHead,
    /// One slope per batch entry and query head, heads contiguous.
    PerBatchHead,
}

/// Every option of attention, in one list: what a call, a plan, a test case and a command line hold.
///
/// `score = scale * q.k`, then `softcap * tanh(score / softcap)` if there is a softcap, then
/// `- slope * |i + key_len - query_len - j|` if there are ALiBi slopes, then the bias, then the masks. With sinks, the denominator of the
/// softmax has one more term, `exp(sink)` of the head; the lse of a query that sees no key is the sink. In device memory,
/// where sinks are not checked, infinity counts as the largest number, and a NaN makes the results of queries that see a key NaN. With
/// dropout, weights that are not kept become 0 and the others are divided by `1 - p` after the softmax: the lse does not depend on it.
///
/// The values of slopes, sinks, bias and key mask belong to a call; here stands only whether there are any. Prints and parses
/// as words: `mask=causal scale=0.5 softcap=30 alibi=head sinks bias keymask`, nothing for an option that is not used.
///
/// ```
/// use warptile::Mask;
/// use warptile::spec::Scoring;
///
/// let scoring: Scoring = "mask=causal softcap=30".parse()?;
/// assert_eq!(scoring.mask, Mask::causal());
/// assert_eq!(scoring.to_string(), "mask=causal softcap=30");
/// # Ok::<(), warptile::spec::ParseScoringError>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
#[must_use]
pub struct Scoring {
    /// Which keys a query sees.
    pub mask: Mask,
    /// Factor of `q.k`; `None` means `1 / sqrt(head size)`.
    pub scale: Option<f32>,
    /// Bounds the scores: `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// Subtracts `slope * |i + key length - query length - j|`.
    pub alibi: Option<AlibiShape>,
    /// Probability of dropping a weight, from 0 to below 1, rounded to a multiple of 2^-16. Which weights are dropped,
    /// [`DropoutState`](crate::DropoutState) says.
    pub dropout: Option<f32>,
    /// How the blocks of keys are listed that blocks of queries see, if they don't see all.
    pub blocks: Option<BlockLists>,
    /// The features of the operands that scores need besides slopes: [`Features::SINKS`] (one logit per query head joins the
    /// denominator: a key with that score and the value 0), [`Features::BIAS`] (a tensor `[batch, heads, queries, keys]` is added to the
    /// scores), with [`Features::BIAS_F32`] if its elements are of `f32` and those of the queries are not,
    /// [`Features::KEY_MASK`] (a boolean tensor of that shape hides keys where it is false).
    pub operands: Features,
}

impl PartialEq for Scoring {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Scoring {}

impl Hash for Scoring {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// Numbers by their bits, so that options can be compared and hashed.
type Key = (
    Mask,
    [Option<u32>; 3],
    Option<AlibiShape>,
    Option<BlockLists>,
    Features,
);

impl Scoring {
    /// The largest factor of `q.k`, the smallest being its negative: 2^125. Kernels multiply it by log2(e) and bound scores by
    /// 2^126, so that neither they nor the difference of two of them are infinite. What is more would leave a product of 1 no place
    /// below that bound.
    pub const MAX_SCALE: f32 = (1_u128 << 125) as f32;

    /// No option: full attention with scale `1 / sqrt(head size)`.
    pub fn new() -> Self {
        Scoring::default()
    }

    /// With this mask.
    pub fn mask(self, mask: Mask) -> Self {
        Scoring { mask, ..self }
    }

    /// With this factor of `q.k`.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// With this bound of the scores.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = Some(softcap);
        self
    }

    /// With this probability of dropping a weight.
    pub fn dropout(mut self, p: f32) -> Self {
        self.dropout = Some(p);
        self
    }

    /// With lists of blocks that are arranged like this.
    pub fn blocks(mut self, lists: BlockLists) -> Self {
        self.blocks = Some(lists);
        self
    }

    /// With an operand that belongs to an option; blocks are of 64 queries and keys unless [`blocks`](Self::blocks) says otherwise; slopes
    /// are one for each head unless [`alibi`](Self::alibi) says otherwise, and no weight is dropped unless [`dropout`](Self::dropout) says
    /// so.
    pub fn with(mut self, operand: Operand) -> Self {
        match operand {
            Operand::Slopes => self.alibi = self.alibi.or(Some(AlibiShape::PerHead)),
            Operand::DropoutState => self.dropout = self.dropout.or(Some(0.0)),
            Operand::BlockOffsets | Operand::BlockIndices => {
                self.blocks = self.blocks.or(Some(BlockLists::new(64, 64)));
            }
            other => self.operands |= other.feature(),
        }
        self
    }

    /// With a bias of `f32`, whatever the type of the queries.
    pub fn bias_f32(mut self) -> Self {
        self.operands |= Features::BIAS | Features::BIAS_F32;
        self
    }

    /// A bias, if there is one, of the type of the queries.
    pub fn bias_as_queries(mut self) -> Self {
        self.operands = self.operands - Features::BIAS_F32;
        self
    }

    /// Returns true if the bias is of `f32` and the queries are not.
    pub const fn has_bias_f32(&self) -> bool {
        self.operands.contains(Features::BIAS_F32)
    }

    /// Returns true if scores need an operand that belongs to an option.
    pub fn has(&self, operand: Operand) -> bool {
        match operand {
            Operand::Slopes => self.alibi.is_some(),
            Operand::DropoutState => self.dropout.is_some(),
            Operand::BlockOffsets | Operand::BlockIndices => self.blocks.is_some(),
            other => !other.feature().is_empty() && self.operands.contains(other.feature()),
        }
    }

    fn key(&self) -> Key {
        (
            self.mask,
            [self.scale, self.softcap, self.dropout].map(|number| number.map(f32::to_bits)),
            self.alibi,
            self.blocks,
            self.operands,
        )
    }

    /// Checks the numbers: the scale is at most [`MAX_SCALE`](Self::MAX_SCALE), negative or not; a softcap is a normal number up
    /// to the same limit, and not so small that the scale divided by it is; a dropout is from 0 to below 1.
    ///
    /// # Errors
    /// [`Invalid::Number`].
    pub fn validate(&self) -> Result<()> {
        if let Some(value) = self.scale
            && !value.is_finite()
        {
            return Err(Invalid::number("scale", value, "a finite number"));
        }
        if let Some(p) = self.dropout
            && !(0.0..1.0).contains(&p)
        {
            return Err(Invalid::number(
                "dropout",
                p,
                "a probability from 0 to below 1",
            ));
        }
        if let Some(lists) = &self.blocks {
            lists.validate()?;
        }
        // Without a scale it is at most 1.
        let scale = self.scale.unwrap_or(1.0);
        check_factor("scale", f64::from(scale))?;
        let allowed = f32::MIN_POSITIVE.max(scale.abs() / Self::MAX_SCALE)..=Self::MAX_SCALE;
        match self.softcap {
            Some(value) if !allowed.contains(&value) => Err(Invalid::number(
                "softcap",
                value,
                "a number from 2^-126 to 2^125 and at least |scale| / 2^125; leave it out for no softcap",
            )),
            _ => Ok(()),
        }
    }

    /// The factor of `q.k` at a head size.
    pub fn scale_of(&self, head_dim: usize) -> f32 {
        self.scale.unwrap_or(1.0 / (head_dim as f32).sqrt())
    }

    /// The features that an image needs for these options with queries of this type: [`Scoring::needs`], and that of negative scales for one
    /// that is too small for kernels of positive ones.
    pub fn needs_of(&self, element: ElementType) -> Features {
        /// The least factor that kernels for positive scales multiply by (`ScoreScale` in kernels/forward/wgmma_softmax.cuh has the same
        /// number). It leaves nothing of products of f16; those of bf16 may be as large as its inverse. A softcap is multiplied by instead.
        const LEAST_SCALE: f32 = 1e-30;
        let is_tiny = self.softcap.is_none() && self.scale.is_some_and(|scale| scale < LEAST_SCALE);
        match is_tiny && element == ElementType::Bf16 {
            true => self.needs() | Features::NEGATIVE_SCALE,
            false => self.needs(),
        }
    }

    /// The features that an image needs for these options, whatever the element type.
    pub fn needs(&self) -> Features {
        let wanted = [
            (self.softcap.is_some(), Features::SOFTCAP),
            (self.alibi.is_some(), Features::ALIBI),
            (self.dropout.is_some(), Features::DROPOUT),
            (self.blocks.is_some(), Features::BLOCKS),
            (
                self.scale.is_some_and(|scale| scale < 0.0),
                Features::NEGATIVE_SCALE,
            ),
        ];
        wanted
            .into_iter()
            .filter(|(wanted, _)| *wanted)
            .fold(self.operands, |all, (_, feature)| all | feature)
    }

    /// How many slopes the ALiBi shape asks for; 0 without ALiBi.
    pub const fn slope_count(&self, batch: usize, heads: usize) -> usize {
        match self.alibi {
            None => 0,
            Some(AlibiShape::PerHead) => heads,
            Some(AlibiShape::PerBatchHead) => batch * heads,
        }
    }

    /// The numbers that the scores of a head share. `heads`: query heads of the call. `list`: the numbers of an option, if the call has it.
    ///
    /// # Panics
    ///
    /// If a list is shorter than the call says: [`Scoring::slope_count`] slopes, else a number for each head.
    pub fn head_terms<'a>(
        &self,
        batch: usize,
        head: usize,
        heads: usize,
        list: impl Fn(Operand) -> Option<&'a [f32]>,
    ) -> HeadTerms {
        let of_slope = match self.alibi {
            Some(AlibiShape::PerBatchHead) => batch * heads + head,
            _ => head,
        };
        HeadTerms {
            slope: list(Operand::Slopes).map_or(0.0, |slopes| slopes[of_slope]),
        }
    }

    /// The definition of a score, in `f64`: scale, then softcap, then ALiBi, then bias. Whether the key is seen at all is the
    /// mask's business.
    ///
    /// `distance` is `|i + key length - query length - j|`. `round` is what is left of an intermediate result after storing it:
    /// the identity for the reference itself.
    pub fn score(&self, dot: f64, terms: &ScoreTerms, round: impl Fn(f64) -> f64) -> f64 {
        let mut score = self.bent(dot, terms, &round);
        if terms.head.slope != 0.0 {
            score = round(score - f64::from(terms.head.slope) * terms.distance);
        }
        if self.has(Operand::Bias) {
            score = round(score + terms.bias);
        }
        score
    }

    /// A [`score`](Self::score) before anything is added to it: scaled, then with the softcap.
    pub fn bent(&self, dot: f64, terms: &ScoreTerms, round: impl Fn(f64) -> f64) -> f64 {
        let score = round(round(dot) * f64::from(terms.scale));
        match self.softcap.map(f64::from) {
            Some(cap) => round(cap * (score / cap).tanh()),
            None => score,
        }
    }

    /// The derivative of a [`score`](Self::score) by the scaled product of query and key, in `f64`: 1 without a softcap.
    pub fn derivative(&self, dot: f64, terms: &ScoreTerms, round: impl Fn(f64) -> f64) -> f64 {
        self.softcap.map_or(1.0, |cap| {
            let product = round(round(dot) * f64::from(terms.scale));
            1.0 - round((product / f64::from(cap)).tanh()).powi(2)
        })
    }

    /// The score of a scaled product of query and key, without the bias, and its derivative by the product, in `f32`. `distance` is only
    /// asked for with a slope.
    #[inline]
    pub fn of_product(
        &self,
        product: f32,
        head: HeadTerms,
        distance: impl FnOnce() -> usize,
    ) -> (f32, f32) {
        let (mut score, derivative) = self.softcap.map_or((product, 1.0), |cap| {
            let bent = (product / cap).tanh();
            (cap * bent, 1.0 - bent * bent)
        });
        if head.slope != 0.0 {
            score -= head.slope * distance() as f32;
        }
        (score, derivative)
    }
}

/// Refuses a factor of `q.k` that is larger than [`Scoring::MAX_SCALE`].
pub fn check_factor(argument: &'static str, value: f64) -> Result<()> {
    match value.abs() <= f64::from(Scoring::MAX_SCALE) {
        true => Ok(()),
        false => Err(Invalid::number(
            argument,
            value,
            "from -2^125 to 2^125 (about 4.25e37), as scores are computed in f32",
        )),
    }
}

/// The numbers that the scores of a head share, one for each option that is a list. See [`Scoring::head_terms`].
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadTerms {
    /// ALiBi slope, 0 for none.
    pub slope: f32,
}

/// The terms of a score in addition to the dot product; see [`Scoring::score`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ScoreTerms {
    /// Factor of the dot product: [`Scoring::scale_of`].
    pub scale: f32,
    /// The numbers of the head.
    pub head: HeadTerms,
    /// Distance of query and key.
    pub distance: f64,
    /// The bias tensor's element.
    pub bias: f64,
}

impl fmt::Display for Scoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = Vec::new();
        let side = |side: Option<u32>| side.map_or("-1".to_owned(), |keys| keys.to_string());
        let mask = self.mask;
        if mask.is_causal() {
            words.push("mask=causal".to_owned());
        } else if !mask.hides_nothing() {
            words.push(format!(
                "mask=window,{},{}",
                side(mask.left),
                side(mask.right)
            ));
        }
        // It means nothing without a mask.
        if !mask.hides_nothing() && mask.diagonal != Diagonal::default() {
            words.push(format!("diagonal={}", mask.diagonal));
        }
        words.extend(self.scale.map(|scale| format!("scale={scale}")));
        words.extend(self.softcap.map(|softcap| format!("softcap={softcap}")));
        words.extend(self.dropout.map(|p| format!("dropout={p}")));
        words.extend(self.blocks.map(|lists| format!("blocks={lists}")));
        words.extend(self.alibi.map(|alibi| {
            match alibi {
                AlibiShape::PerHead => "alibi=head",
                AlibiShape::PerBatchHead => "alibi=batch",
            }
            .to_owned()
        }));
        let others = flags().filter(|(operand, _)| self.has(*operand));
        words.extend(others.map(|(operand, word)| {
            match operand == Operand::Bias && self.has_bias_f32() {
                true => format!("{word}={}", ElementType::F32),
                false => word.to_owned(),
            }
        }));
        f.write_str(&words.join(" "))
    }
}

/// A word that is not an option of attention.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{:?} is not an option of attention; the options read like `mask=causal scale=0.5 softcap=30 alibi=head sinks bias keymask`",
    Excerpt::new(.0)
)]
pub struct ParseScoringError(pub String);

impl FromStr for Scoring {
    type Err = ParseScoringError;

    /// Parses what `Display` prints, in any order.
    fn from_str(text: &str) -> std::result::Result<Self, ParseScoringError> {
        let mut scoring = Scoring::default();
        for word in text.split_whitespace() {
            scoring
                .parse_word(word)
                .ok_or_else(|| ParseScoringError(word.to_owned()))?;
        }
        Ok(scoring)
    }
}

impl Scoring {
    /// Applies one word; `None` if it is not an option. For grammars that have other words as well.
    pub fn parse_word(&mut self, word: &str) -> Option<()> {
        match word.split_once('=') {
            Some(("mask", value)) => self.mask = parse_mask(value)?.diagonal(self.mask.diagonal),
            Some(("diagonal", value)) => self.mask.diagonal = value.parse().ok()?,
            Some(("blocks", value)) => self.blocks = Some(value.parse().ok()?),
            Some(("alibi", "head")) => self.alibi = Some(AlibiShape::PerHead),
            Some(("alibi", "batch")) => self.alibi = Some(AlibiShape::PerBatchHead),
            Some(("bias", "f32")) => *self = self.bias_f32(),
            None => {
                let (operand, _) = flags().find(|(_, flag)| *flag == word)?;
                *self = self.with(operand);
            }
            Some((word, value)) => *self.number_mut(word)? = Some(value.parse().ok()?),
        }
        Some(())
    }

    /// The option of [`NUMBERS`](Self::NUMBERS) that has this word.
    pub fn number_mut(&mut self, word: &str) -> Option<&mut Option<f32>> {
        match word {
            "scale" => Some(&mut self.scale),
            "softcap" => Some(&mut self.softcap),
            "dropout" => Some(&mut self.dropout),
            _ => None,
        }
    }
}

/// The operands whose word says everything about them.
fn flags() -> impl Iterator<Item = (Operand, &'static str)> {
    let of_slopes = |operand: &Operand| *operand == Operand::Slopes;
    { Operand::of_scores() }
        .filter(move |operand| !of_slopes(operand))
        .filter_map(|operand| Some((operand, operand.word()?)))
}

impl Scoring {
    /// The words of options that are numbers, and what they mean.
    pub const NUMBERS: [(&'static str, &'static str); 3] = [
        (
            "scale",
            "multiply the scores by X instead of 1 / sqrt(head size)",
        ),
        ("softcap", "bound the scores: X * tanh(score / X)"),
        ("dropout", "drop weights with probability X"),
    ];

    /// The names of all words that options have.
    pub fn words() -> impl Iterator<Item = &'static str> {
        { ["mask", "diagonal", "blocks"].into_iter() }
            .chain(Self::NUMBERS.map(|(word, _)| word))
            .chain(Operand::of_scores().filter_map(Operand::word))
    }

    /// The words of options that a kernel computes with, and the feature that an image needs for each. Those that some images take
    /// alone are named again for them: masks of padding, and biases and masks whose rows the copy engine can bring.
    pub fn features() -> impl Iterator<Item = (&'static str, Features)> {
        let of_numbers = [
            ("keymask=padding", Features::KEY_MASK),
            ("bias=aligned", Features::BIAS),
            ("keymask=aligned", Features::KEY_MASK),
            ("softcap", Features::SOFTCAP),
            ("dropout", Features::DROPOUT),
            ("blocks", Features::BLOCKS),
        ];
        of_numbers.into_iter().chain(
            Operand::of_scores().filter_map(|operand| Some((operand.word()?, operand.feature()))),
        )
    }

    /// The factor of `q.k` at a head size, and the bound of scores or 0 for none: the numbers that kernels take.
    pub fn numbers(&self, head_dim: usize) -> [f32; 2] {
        [self.scale_of(head_dim), self.softcap.unwrap_or(0.0)]
    }

    /// Returns true if every score is below a bound before ALiBi and bias.
    pub const fn bounds_scores(&self) -> bool {
        self.softcap.is_some()
    }

    /// Returns true if numbers of the call bend or shift every score: a softcap, or ALiBi.
    pub const fn changes_scores(&self) -> bool {
        self.softcap.is_some() || self.alibi.is_some()
    }

    /// Returns true if any tensor has an element for each score.
    pub fn has_score_tensors(&self) -> bool {
        { Operand::of_scores() }.any(|operand| operand.kind() == Kind::Scores && self.has(operand))
    }

    /// The options without the key mask, for sequences whose mask shows their first keys alone: `None` with another option that counts
    /// on where keys are.
    pub fn of_runs(&self) -> Option<Self> {
        let others = self.needs() - (Features::KEY_MASK | Features::SINKS | Features::SOFTCAP);
        { others.is_empty() }.then(|| Scoring {
            operands: self.operands - Features::KEY_MASK,
            ..*self
        })
    }

    /// The options in words. `pads`: the key mask is the same for all queries and heads of a sequence.
    pub fn words_of(&self, pads: bool) -> String {
        let words = self.to_string();
        match Operand::KeyMask.word() {
            Some(word) if pads => words.replace(word, &format!("{word}=padding")),
            _ => words,
        }
    }

    /// The options without the one that has this word.
    pub fn without(&self, word: &str) -> Self {
        let mut less = Scoring::new();
        for kept in self.to_string().split_whitespace() {
            if kept.split('=').next() != Some(word) {
                // It was an option before.
                let _ = less.parse_word(kept);
            }
        }
        less
    }

    /// Returns true if the option that has this word is in use.
    pub fn uses(&self, word: &str) -> bool {
        self.to_string()
            .split_whitespace()
            .any(|used| used.split('=').next() == Some(word))
    }
}

fn parse_mask(value: &str) -> Option<Mask> {
    let side = |text: &str| match text {
        "-1" => Some(None),
        keys => keys.parse().ok().map(Some),
    };
    match value {
        "none" => Some(Mask::none()),
        "causal" => Some(Mask::causal()),
        _ => {
            let (left, right) = value.strip_prefix("window,")?.split_once(',')?;
            Some(Mask::window(side(left)?, side(right)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    quickcheck! {
        fn text_round_trips(kind: u8, left: Option<u32>, right: Option<u32>, scale: Option<u16>, cap: Option<u16>, flags: u8) -> bool {
            let scoring = Scoring {
                mask: match kind % 3 {
                    0 => Mask::none(),
                    1 => Mask::causal(),
                    _ => Mask::window(left, right),
                }
                .diagonal(match kind / 3 % 3 {
                    0 => Diagonal::BottomRight,
                    1 => Diagonal::TopLeft,
                    _ => Diagonal::At(i32::from(kind) - 100),
                }),
                scale: scale.map(|x| f32::from(x) / 7.0 - 1000.0),
                softcap: cap.map(|x| f32::from(x) / 3.0 + 0.1),
                dropout: scale.zip(cap).map(|(x, y)| f32::from(x ^ y) / 65_536.0),
                alibi: [None, Some(AlibiShape::PerHead), Some(AlibiShape::PerBatchHead)][usize::from(flags) % 3],
                blocks: left.map(|each| BlockLists::new(64, 128).per_head().each(each)),
                operands: super::flags()
                    .enumerate()
                    .filter(|(index, _)| flags & (8 << index) != 0)
                    .fold(Features::empty(), |all, (_, (operand, _))| all | operand.feature()),
            };
            let read = match scoring.mask.hides_nothing() {
                true => scoring.mask(Mask::none()),
                false => scoring,
            };
            scoring.to_string().parse() == Ok(read)
        }
    }

    #[test]
    fn unknown_words_are_named_and_escaped() {
        let error = "mask=causal \u{1b}[31mred".parse::<Scoring>().unwrap_err();
        assert!(
            error.to_string().starts_with("\"\\u{1b}[31mred\" is not"),
            "{error}"
        );
        let long = "x".repeat(10_000).parse::<Scoring>().unwrap_err();
        assert!(long.to_string().len() < 300);
    }

    #[test]
    fn the_numbers_are_checked() {
        for scale in [f32::NAN, f32::INFINITY] {
            assert!(Scoring::new().scale(scale).validate().is_err());
        }
        for softcap in [f32::NAN, f32::INFINITY, 0.0, -2.0, 1e-40, 4.3e37] {
            assert!(Scoring::new().softcap(softcap).validate().is_err());
        }
        assert!(Scoring::new().scale(-1.0).softcap(1e9).validate().is_ok());
        let text = |scoring: Scoring| scoring.validate().unwrap_err().to_string();
        let most = Scoring::MAX_SCALE;
        assert_eq!(most, 2.0_f32.powi(125));
        for scale in [most, -most] {
            assert!(Scoring::new().scale(scale).validate().is_ok());
            assert!(Scoring::new().scale(scale).softcap(1.0).validate().is_ok());
            let small = text(Scoring::new().scale(scale).softcap(0.5));
            assert!(
                small.starts_with("softcap is 0.5") && small.contains("|scale| / 2^125"),
                "{small}"
            );
            let more = text(Scoring::new().scale(scale * 1.000_001));
            assert!(
                more.starts_with("scale is ") && more.contains("2^125"),
                "{more}"
            );
        }
    }

    #[test]
    fn a_tiny_scale_needs_what_a_negative_one_does_where_it_multiplies_products() {
        let rare = |words: &str| {
            { ElementType::ALL }.map(|element| {
                let needs = words.parse::<Scoring>().unwrap().needs_of(element);
                needs.contains(Features::NEGATIVE_SCALE)
            })
        };
        let tiny = ElementType::ALL.map(|element| element == ElementType::Bf16);
        assert_eq!(rare("scale=0"), tiny);
        assert_eq!(rare("scale=1e-30"), [false; ElementType::ALL.len()]);
        assert_eq!(rare("scale=0 softcap=3"), [false; ElementType::ALL.len()]);
        assert_eq!(rare("scale=-1"), [true; ElementType::ALL.len()]);
    }

    #[test]
    fn what_is_asked_for_is_what_is_needed() {
        let needs = |words: &str| words.parse::<Scoring>().unwrap().needs();
        assert_eq!(needs("mask=causal scale=0.5"), Features::empty());
        let mut all: Scoring = "scale=-1 softcap=3".parse().unwrap();
        let mut features = Features::SOFTCAP | Features::NEGATIVE_SCALE;
        for operand in Operand::of_scores() {
            let alone = Scoring::new().with(operand);
            assert_eq!(needs(&alone.to_string()), operand.feature(), "{alone}");
            all = all.with(operand);
            features |= operand.feature();
            assert_eq!(needs(&all.to_string()), features, "{all}");
        }
    }
}
