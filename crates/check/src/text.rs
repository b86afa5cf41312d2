//! Cases as a line of text, such as `b2 q113 k203 h8/2 d64 f16 mask=causal layout=bhsd seed=7`.

use std::fmt;
use std::str::FromStr;

use warptile::ElementType;
use warptile::kernels::Excerpt;
use warptile::plan::DeviceProfile;
use warptile::spec::{Call, Heads, Operand, Scoring};

use crate::case::{Case, LayoutKind, Lengths, MAX_ENTRIES, Used};
use crate::error::Error;

/// The errors in the text of a case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseCaseError {
    /// A word is not understood.
    #[error("`{word}` is not part of a problem; {}", advice(.suggestion))]
    Word {
        /// The word without control characters, and only its beginning if it is long.
        word: String,
        /// The words that it probably stands for.
        suggestion: Option<String>,
    },
    /// No word gives a length.
    #[error(
        "a problem needs lengths: qN, kN (if the keys are not as many), packed=QxK,... or lengths=K,..., such as `b2 q512 h8 d64 f16`"
    )]
    NoLengths,
    /// Two words say the same thing, or one replaces what the other says. They are given as in [`ParseCaseError::Word`].
    #[error(
        "`{0}` and `{1}` say the same thing; a problem says each once, and `packed=` in place of b, q and k"
    )]
    Twice(String, String),
    /// The words describe nothing that can be computed.
    #[error("invalid problem: {0}")]
    Problem(String),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lengths {
            Lengths::Dense { batch, query, key } => write!(f, "b{batch} q{query} k{key}")?,
            Lengths::Packed(lengths) => write!(f, "packed={}", pairs(lengths))?,
        }
        write!(f, " {} {}", self.heads, self.element)?;
        if let Some(element) = self.quantized {
            write!(f, " cache={element}")?;
        }
        let scoring = self.scoring.words_of(self.padding);
        for word in scoring.split_whitespace() {
            write!(f, " {word}")?;
        }
        if let Some(broadcast) = self.broadcast {
            write!(f, " broadcast={}", dimensions_text(broadcast))?;
        }
        if let Some(keys) = self.splits.keys() {
            write!(f, " splits={keys}")?;
        }
        if self.layout != LayoutKind::Bshd {
            write!(f, " layout={}", self.layout.name())?;
        }
        if self.unaligned {
            f.write_str(" unaligned")?;
        }
        if let Some(rows) = self.pages {
            write!(f, " pages={rows}")?;
        }
        if self.runs != 1 {
            write!(f, " runs={}", self.runs)?;
        }
        match &self.used {
            Used::All => {}
            Used::Ragged => f.write_str(" lengths=ragged")?,
            Used::Each(used) if self.uses_all_queries(used) => {
                let keys: Vec<String> = used.iter().map(|used| used.1.to_string()).collect();
                write!(f, " lengths={}", keys.join(","))?;
            }
            Used::Each(used) => write!(f, " used={}", pairs(used))?,
        }
        if self.device_lengths {
            f.write_str(" device-lengths")?;
        }
        if let Some(count) = self.multiprocessors {
            write!(f, " sms={count}")?;
        }
        if self.backward {
            f.write_str(" backward")?;
        }
        if self.d_bias {
            f.write_str(" dbias")?;
        }
        write!(f, " seed={}", self.seed)
    }
}

/// The dimensions that a bias may not depend on.
const BROADCAST: [&str; 4] = ["batch", "queries", "heads", "keys"];

fn dimensions_text(of: [bool; 4]) -> String {
    let named = BROADCAST.iter().zip(of).filter(|(_, is_one)| *is_one);
    let names: Vec<&str> = named.map(|(name, _)| *name).collect();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(","),
    }
}

fn parse_dimensions(text: &str) -> Option<[bool; 4]> {
    let mut of = [false; 4];
    for name in text.split(',').filter(|_| text != "none") {
        *of.get_mut(BROADCAST.iter().position(|known| *known == name)?)? = true;
    }
    Some(of)
}

fn pairs(lengths: &[(usize, usize)]) -> String {
    let runs = lengths.chunk_by(|a, b| a == b);
    let words = runs.map(|run| match *run {
        [(q, k)] => format!("{q}x{k}"),
        _ => format!("{}x{}*{}", run[0].0, run[0].1, run.len()),
    });
    words.collect::<Vec<_>>().join(",")
}

impl FromStr for Case {
    type Err = ParseCaseError;

    /// Parses what `Display` prints. Words may come in any order. Without the word, there is one sequence, one query,
    /// as many keys as queries, one head of size 64, `f32`, and no feature. Some word must give a length.
    /// Fails if its data would not fit into the memory of an ordinary machine: see [`Case::parse_to_plan`].
    fn from_str(text: &str) -> Result<Self, ParseCaseError> {
        Case::parse(text, Case::try_call)
    }
}

impl Case {
    /// Parses a problem that is only planned: its tensors may be of any size. There may be no [`call`](Self::call) of it and no data, but
    /// [`call_to_plan`](Self::call_to_plan).
    ///
    /// # Errors
    /// The error in the text.
    pub fn parse_to_plan(text: &str) -> Result<Self, ParseCaseError> {
        Case::parse(text, Case::check_to_plan)
    }

    fn parse(text: &str, call: fn(&Case) -> Result<Call, Error>) -> Result<Self, ParseCaseError> {
        let mut parser = Parser::default();
        let mut said: Vec<(&str, &str)> = Vec::new();
        for word in text.split_whitespace() {
            let about = subject(word);
            if let Some((_, before)) = said.iter().find(|(known, _)| excludes(known, about)) {
                return Err(ParseCaseError::Twice(printable(before), printable(word)));
            }
            parser.word(word).ok_or_else(|| ParseCaseError::Word {
                word: printable(word),
                suggestion: suggestion(word),
            })?;
            said.push((about, word));
        }
        let case = parser.finish();
        const MOST: u32 = DeviceProfile::MAX_MULTIPROCESSORS;
        if let Some(count) = case.multiprocessors
            && !(1..=MOST).contains(&count)
        {
            return Err(ParseCaseError::Problem(format!(
                "sms is {count}; a GPU has 1 to {MOST} multiprocessors"
            )));
        }
        if case.broadcast.is_some() && !case.scoring.has_score_tensors() {
            return Err(ParseCaseError::Problem(
                "broadcast is for a bias or a key mask, and there is none".to_owned(),
            ));
        }
        if case.d_bias && !case.scoring.has(Operand::Bias) {
            return Err(ParseCaseError::Problem(
                "dbias is the gradient of a bias, and there is none".to_owned(),
            ));
        }
        if case.runs != 1 && (case.runs == 0 || case.pages.is_none()) {
            return Err(ParseCaseError::Problem(format!(
                "runs is {}; there are runs of 1 page and more, of keys and values in pages",
                case.runs
            )));
        }
        let call = call(&case);
        match case.backward {
            true => call.and_then(|call| case.backward_of(call)).map(drop),
            false => call.map(drop),
        }
        .map_err(|error| ParseCaseError::Problem(error.to_string()))?;
        let is_length = |about: &str| ["q", "k", "packed", "lengths"].contains(&about);
        match said.iter().any(|(about, _)| is_length(about)) {
            true => Ok(case),
            false => Err(ParseCaseError::NoLengths),
        }
    }
}

/// The subject of a word: its name before `=`, `f32` of every element type, the letter of a number, or the whole
/// word.
fn subject(word: &str) -> &str {
    match (word.split_once('='), word) {
        (Some((name, _)), _) => name,
        (None, "f16" | "bf16" | "f32") => "f32",
        (None, _) => match word.split_at_checked(1) {
            Some((name @ ("b" | "q" | "k" | "h" | "d"), value))
                if value.starts_with(|first: char| first.is_ascii_digit()) =>
            {
                name
            }
            _ => word,
        },
    }
}

/// Returns true if a case has no words about both.
fn excludes(one: &str, other: &str) -> bool {
    let replaces = |packed, dense| packed == "packed" && ["b", "q", "k"].contains(&dense);
    let of_lengths = |subject| ["used", "lengths"].contains(&subject);
    one == other
        || replaces(one, other)
        || replaces(other, one)
        || (of_lengths(one) && of_lengths(other))
}

/// The words that are known besides those of options, heads and lengths.
const NAMES: [&str; 15] = [
    "packed",
    "used",
    "lengths",
    "splits",
    "cache",
    "pages",
    "runs",
    "broadcast",
    "layout",
    "sms",
    "seed",
    "unaligned",
    "device-lengths",
    "backward",
    "dbias",
];

/// The word here for another program's word, if that is clear.
fn suggestion(word: &str) -> Option<String> {
    let plain = |word: &str| word.to_lowercase().replace(['-', '_'], "");
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    let name = plain(name);
    let digits = name.trim_start_matches(char::is_alphabetic);
    let scaled = ElementType::scaled().next();
    let known = match (&name[..name.len() - digits.len()], digits, value) {
        ("fp" | "float", "16", "") | ("half", "", "") => "f16".to_owned(),
        ("bfloat", "16", "") => "bf16".to_owned(),
        ("fp" | "float", "32", "") | ("float", "", "") => "f32".to_owned(),
        ("fp" | "float" | "f", "8", "") => scaled.map(|element| format!("cache={element}"))?,
        _ if scaled.is_some_and(|element| element.to_string() == name) => format!("cache={name}"),
        ("causal", "", _) => "mask=causal".to_owned(),
        ("window", "", "") => "mask=window,LEFT,RIGHT".to_owned(),
        ("mask", "", value) if value.starts_with('w') => "mask=window,LEFT,RIGHT".to_owned(),
        ("mask", "", value) if value.starts_with('c') => "mask=causal".to_owned(),
        ("window", "", value) => format!("mask=window,{value}"),
        ("padding" | "keypaddingmask", "", "") => "keymask=padding".to_owned(),
        ("alibi", "", "") => "alibi=head".to_owned(),
        ("s" | "l" | "n" | "seq" | "len", length, "") => format!("q{length} k{length}"),
        ("batch" | "b", "", value) => format!("b{value}"),
        ("heads" | "h", "", value) => format!("h{value}"),
        ("headdim" | "dim" | "d", "", value) => format!("d{value}"),
        ("q" | "k", "", value) => format!("{name}{value}"),
        _ => {
            let mut words = Scoring::words().chain(NAMES);
            let known = { words.find(|known| plain(known) == name) }.unwrap_or(&name);
            word.split_once('=')
                .map_or(known.to_owned(), |(_, value)| format!("{known}={value}"))
        }
    };
    // Only what would be understood, except for the names of numbers.
    let understood = |word| Parser::default().word(word).is_some();
    let is_new = known != word && (known.contains("LEFT") || known.split(' ').all(understood));
    is_new.then(|| printable(&known))
}

fn advice(suggestion: &Option<String>) -> String {
    match suggestion {
        Some(words) => format!("did you mean `{words}`?"),
        None => "a problem reads like `b2 q113 k203 h8/2 d64 f16 mask=causal scale=0.5 layout=gaps unaligned seed=7`, or \
            `packed=3x5,4x4` in place of b, q and k"
            .to_owned(),
    }
}

/// A word as an error message may show it: what a terminal would obey is escaped, and what would fill it is cut off.
fn printable(word: &str) -> String {
    Excerpt::up_to(40, word).to_string()
}

impl Case {
    /// The operand of a padding mask.
    pub(crate) const PADDING: Operand = Operand::KeyMask;

    fn uses_all_queries(&self, used: &[(usize, usize)]) -> bool {
        self.batch() == used.len() && {
            let all = self.lengths.each();
            all.iter().zip(used).all(|(all, used)| all.0 == used.0)
        }
    }
}

/// A case, and words that mean something only with others.
struct Parser {
    case: Case,
    key_lengths: Option<Vec<usize>>,
    batch_given: bool,
    keys_given: bool,
}

impl Default for Parser {
    fn default() -> Self {
        Parser {
            case: Case::new(1, 1, Heads::new(1, 64)),
            key_lengths: None,
            batch_given: false,
            keys_given: false,
        }
    }
}

impl Parser {
    fn finish(self) -> Case {
        let mut case = self.case;
        let Some(keys) = self.key_lengths else {
            if let Lengths::Dense { query, key, .. } = &mut case.lengths
                && !self.keys_given
            {
                *key = *query;
            }
            return case;
        };
        if let Lengths::Dense { batch, key, .. } = &mut case.lengths {
            if !self.batch_given {
                *batch = keys.len();
            }
            if !self.keys_given {
                *key = keys.iter().copied().max().unwrap_or(0);
            }
        }
        // A list of a different number than there are sequences is refused with the call.
        let queries = |sequence: usize| match &case.lengths {
            Lengths::Dense { query, .. } => *query,
            Lengths::Packed(lengths) => lengths.get(sequence).map_or(0, |lengths| lengths.0),
        };
        let used = keys.into_iter().enumerate();
        let used = used
            .map(|(sequence, keys)| (queries(sequence), keys))
            .collect();
        case.used = Used::Each(used);
        case
    }

    /// Applies one word; `None` if it means nothing.
    fn word(&mut self, word: &str) -> Option<()> {
        let case = &mut self.case;
        let of_others = { case.scoring.parse_word(word) }.or_else(|| case.heads.parse_word(word));
        if of_others.is_some() {
            return Some(());
        }
        if let Some((name, value)) = word.split_once('=') {
            match name {
                "packed" => case.lengths = Lengths::Packed(parse_lengths(value)?),
                "used" => case.used = Used::Each(parse_lengths(value)?),
                "lengths" if value == "ragged" => case.used = Used::Ragged,
                "lengths" if value.is_empty() => self.key_lengths = Some(Vec::new()),
                "lengths" => {
                    let lengths: Option<_> = value.split(',').map(|len| len.parse().ok()).collect();
                    self.key_lengths = Some(lengths?);
                }
                "splits" => case.splits = value.parse().ok()?,
                "cache" => {
                    let element = ElementType::from_name(value)?;
                    case.quantized = Some(Some(element).filter(|element| element.is_scaled())?);
                }
                "pages" => case.pages = Some(value.parse().ok()?),
                "runs" => case.runs = value.parse().ok()?,
                "keymask" if value == "padding" => {
                    case.scoring = case.scoring.with(Case::PADDING);
                    case.padding = true;
                }
                "broadcast" => case.broadcast = Some(parse_dimensions(value)?),
                "layout" => case.layout = LayoutKind::named(value)?,
                "sms" => case.multiprocessors = Some(value.parse().ok()?),
                "seed" => case.seed = value.parse().ok()?,
                _ => return None,
            }
            return Some(());
        }
        match word {
            "unaligned" => case.unaligned = true,
            "device-lengths" => case.device_lengths = true,
            "backward" => case.backward = true,
            "dbias" => case.d_bias = true,
            _ => {
                let element = ElementType::from_name(word);
                if let Some(element) = element.filter(|element| !element.is_scaled()) {
                    case.element = element;
                    return Some(());
                }
                let (name, value) = word.split_at_checked(1)?;
                let number = value.parse().ok()?;
                match (name, &mut case.lengths) {
                    ("b", Lengths::Dense { batch, .. }) => {
                        *batch = number;
                        self.batch_given = true;
                    }
                    ("q", Lengths::Dense { query, .. }) => *query = number,
                    ("k", Lengths::Dense { key, .. }) => {
                        *key = number;
                        self.keys_given = true;
                    }
                    _ => return None,
                }
            }
        }
        Some(())
    }
}

/// `QxK` for a sequence, `QxK*N` for N of them. No more than a case can have are listed, and one, by which the case is refused.
fn parse_lengths(value: &str) -> Option<Vec<(usize, usize)>> {
    let mut lengths = Vec::new();
    if value.is_empty() {
        return Some(lengths);
    }
    for word in value.split(',') {
        let (pair, count) = word.split_once('*').unwrap_or((word, "1"));
        let (query, key) = pair.split_once('x')?;
        let pair = (query.parse().ok()?, key.parse().ok()?);
        let room = MAX_ENTRIES as usize + 1 - lengths.len();
        lengths.extend(std::iter::repeat_n(pair, room.min(count.parse().ok()?)));
    }
    Some(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::every_option;
    use quickcheck::quickcheck;
    use warptile::spec::Operand;

    quickcheck! {
        fn text_round_trips(seed: u64) -> bool {
            let case = Case::random(seed, 600);
            let quantized = ElementType::scaled().map(|element| case.clone().with_quantized(element));
            let mut cases = quantized.chain([case.clone()]);
            cases.all(|case| case.to_string().parse() == Ok(case))
        }

        fn any_text_is_an_error_or_a_case(text: String) -> bool {
            let _ = text.parse::<Case>();
            true
        }
    }

    #[test]
    fn reads_like_the_problem() {
        let text =
            "packed=3x5,0x7 h8/2 d64 bf16 mask=window,-1,4 scale=0.5 layout=bhsd unaligned seed=7";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let text = "packed=3x5,0x7 h2 d64 f16 used=1x5,0x2 device-lengths sms=3 seed=1";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let options = every_option();
        let text = format!("b2 q3 k5 h2 d64 f16 {options} layout=gaps used=1x5,0x2 seed=1");
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let text = "b2 q3 k5 h2 d64 f16 bias keymask=padding layout=gaps seed=1";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let text = "b2 q3 k5 h2 d64 f16 bias keymask broadcast=batch,heads seed=1";
        let case: Case = text.parse().unwrap();
        assert_eq!(case.to_string(), text);
        let shape = |case: &Case| case.call().layout(Operand::Bias).unwrap().strides;
        assert_eq!((shape(&case)[0], shape(&case)[2]), (0, 0));
        assert_ne!(shape(&case)[1], 0);
        let whole: Case = text.replace("batch,heads", "none").parse().unwrap();
        assert!(shape(&whole)[..3].iter().all(|step| *step != 0));
        let text = "b2 q113 k203 h6 d40 f16 mask=causal diagonal=top-left seed=0";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let text = "packed=3x5,1x7 h2 d64 f16 pages=16 lengths=ragged device-lengths seed=1";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let text = "b2 q3 k5 h2 d64 f16 mask=causal splits=512 layout=bhsd seed=1";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        for element in ElementType::scaled() {
            let text = format!("b2 q3 k5 h2 d64 bf16 cache={element} mask=causal pages=16 seed=1");
            assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        }
        let text = "packed=3x5*2,0x7,3x5 h2 d64 f16 used=1x5*2,0x7,2x1 seed=1";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let text = "packed= h2 d64 f16 pages=16 lengths= seed=1";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let text = "b2 q3 k5 h2 d192/128 bf16 mask=causal seed=1";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let text = "b2 q3 k5 h2 d64 f16 mask=causal unaligned sms=2 backward seed=1";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        let error = "b2 q3 k5 h2 d64 f16 pages=16 backward"
            .parse::<Case>()
            .unwrap_err();
        assert!(
            error.to_string().contains("have no backward pass"),
            "{error}"
        );
        let text = "b2 q3 k5 h2 d64 f16 layout=interleaved pages=3 runs=2 lengths=5,2 seed=1";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
    }

    #[test]
    fn lengths_of_keys_say_how_many_sequences_and_keys_there_are() {
        let case: Case = "pages=16 lengths=40,100,7 h2 d64".parse().unwrap();
        let expected = "b3 q1 k100 h2 d64 f32 pages=16 lengths=40,100,7 seed=0";
        assert_eq!(case.to_string(), expected);
        assert_eq!(expected.parse(), Ok(case));
    }

    #[test]
    fn says_what_it_does_not_understand() {
        let error = |text: &str| text.parse::<Case>().unwrap_err().to_string();
        assert!(error("b1 q2 k3 zebra").starts_with("`zebra` is not part of a problem"));
        assert!(error("mask=window,1").starts_with("`mask=window,1`"));
        assert!(error("h6/4").starts_with("invalid problem: q has 6 heads"));
        assert!(error("packed=9999999999x1").starts_with("invalid problem: "));
        for count in ["16777217", "18446744073709551615"] {
            let error = error(&format!("packed=0x0,0x0*{count} h1"));
            assert!(error.contains("lengths"), "{error}");
        }
        assert!(error("packed=3x3*").starts_with("`packed=3x3*` is not part"));
        assert!(error("packed=3x3 bias").starts_with("invalid problem: bias needs dense tensors"));
        assert!(error("b2 q3 k3 used=1x1").contains("1 used lengths are given for 2 sequences"));
        assert!(error("q3 k3 used=1x4").contains("key_lengths[0] is 4, but sequence 0 has 3 rows"));
        for sms in ["sms=0", "sms=2049", "sms=4294967295"] {
            let (count, error) = (&sms[4..], error(sms));
            let rule = format!("invalid problem: sms is {count}; a GPU has 1 to 2048 multiproc");
            assert!(error.starts_with(&rule), "{error}");
        }
        assert!("q1 sms=2048".parse::<Case>().is_ok());
        assert!(error("sms=x").starts_with("`sms=x` is not part"));
        assert!(error("pages=0").contains("k has pages of 0 rows; a page has 1 to 256"));
        for text in ["runs=8", "pages=16 runs=0"] {
            let error = error(text);
            assert!(
                error.contains("there are runs of 1 page and more"),
                "{error}"
            );
        }
        assert!(error("splits=300").contains("splits are every 300 keys, but the number must"));
        assert!(error("keymask=x").starts_with("`keymask=x` is not part"));
        assert!(error("splits=x").starts_with("`splits=x` is not part"));
        assert!(error("cache=x").starts_with("`cache=x` is not part"));
        assert!(error("d64/x").starts_with("`d64/x` is not part"));
        assert!(
            error("d64/12").contains("v has head size 12; a head size must be a multiple of 8")
        );
        assert!(error("pages=x").starts_with("`pages=x` is not part"));
        assert!(error("lengths=1,").starts_with("`lengths=1,` is not part"));
        assert!(error("b3 k9 lengths=1,2").contains("2 used lengths are given for 3 sequences"));
        assert!(error("b1073741824 q0 k1 pages=1").contains("entries in the block table"));
        assert!(error("é").starts_with("`é`"));
    }

    #[test]
    fn there_are_as_many_keys_as_queries_if_nobody_says_otherwise() {
        for (text, expected) in [
            ("b2 q512 h8 d64 f16", "b2 q512 k512 h8 d64 f16 seed=0"),
            ("k9 q5", "b1 q5 k9 h1 d64 f32 seed=0"),
            ("k9", "b1 q1 k9 h1 d64 f32 seed=0"),
            (
                "q5 lengths=ragged",
                "b1 q5 k5 h1 d64 f32 lengths=ragged seed=0",
            ),
            ("q5 lengths=2,9", "b2 q5 k9 h1 d64 f32 lengths=2,9 seed=0"),
        ] {
            assert_eq!(text.parse::<Case>().unwrap().to_string(), expected);
        }
        for text in ["", " ", "b2 h8 d64 f16", "mask=causal"] {
            assert_eq!(text.parse::<Case>(), Err(ParseCaseError::NoLengths));
        }
    }

    #[test]
    fn words_of_other_programs_have_a_suggestion() {
        for (word, expected) in [
            ("fp16", "f16"),
            ("FP16", "f16"),
            ("BF16", "bf16"),
            ("bfloat16", "bf16"),
            ("float32", "f32"),
            ("half", "f16"),
            ("causal", "mask=causal"),
            ("causal=true", "mask=causal"),
            ("window=256,0", "mask=window,256,0"),
            ("window", "mask=window,LEFT,RIGHT"),
            ("mask=window,3", "mask=window,LEFT,RIGHT"),
            ("mask=causl", "mask=causal"),
            ("s512", "q512 k512"),
            ("alibi", "alibi=head"),
            ("key-mask", "keymask"),
            ("key_padding_mask", "keymask=padding"),
            ("key_mask", "keymask"),
            ("lay_out=gaps", "layout=gaps"),
            ("device_lengths", "device-lengths"),
            ("heads=8/2", "h8/2"),
            ("head_dim=64", "d64"),
            ("Q512", "q512"),
        ] {
            let error = word.parse::<Case>().unwrap_err().to_string();
            let rest = format!("`{word}` is not part of a problem; did you mean `{expected}`?");
            assert_eq!(error, rest);
        }
        let scaled = ElementType::scaled().next().unwrap().to_string();
        for word in ["fp8", "float8", &scaled, &scaled.to_uppercase()] {
            assert_eq!(suggestion(word), Some(format!("cache={scaled}")), "{word}");
        }
        for word in ["zebra", "s512x", "scale=x", "", "=", "heads=x", "bias=1"] {
            assert_eq!(suggestion(word), None, "{word}");
        }
    }

    /// `q512 q512` for `q512 k512` would be another problem.
    #[test]
    fn no_two_words_say_the_same_thing() {
        let error = |text: &str| text.parse::<Case>().unwrap_err().to_string();
        for (text, expected) in [
            ("b2 q512 q512 h8", "`q512` and `q512` say"),
            ("q5 k9 q5", "`q5` and `q5` say"),
            ("h8 h8/2 d64", "`h8` and `h8/2` say"),
            ("d64 d128", "`d64` and `d128` say"),
            ("f16 bf16", "`f16` and `bf16` say"),
            ("bias bias", "`bias` and `bias` say"),
            (
                "keymask keymask=padding",
                "`keymask` and `keymask=padding` say",
            ),
            ("mask=causal mask=none", "`mask=causal` and `mask=none` say"),
            ("seed=1 b1 seed=2", "`seed=1` and `seed=2` say"),
            ("b2 packed=3x3,4x4", "`b2` and `packed=3x3,4x4` say"),
            ("packed=3x3,4x4 k5", "`packed=3x3,4x4` and `k5` say"),
            ("q3 k3 used=1x1 lengths=3", "`used=1x1` and `lengths=3` say"),
        ] {
            let error = error(text);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped_and_long_words_are_cut() {
        let error = |text: &str| text.parse::<Case>().unwrap_err().to_string();
        assert!(error("\u{1b}[31mred\u{7}").starts_with("`\\u{1b}[31mred\\u{7}` is not"));
        assert!(error("a\u{202e}b").starts_with("`a\\u{202e}b` is not"));
        let long = error(&"x".repeat(1_000_000));
        assert!(long.starts_with(&format!("`{}...` is not", "x".repeat(40))));
        let long = error(&"\u{1b}".repeat(1_000_000));
        assert!(long.len() < 600, "{long}");
    }

    #[test]
    fn cases_beyond_memory_are_refused() {
        let error = |text: &str| text.parse::<Case>().unwrap_err().to_string();
        for text in [
            "b1073741824 h8 d64",
            "q1073741824 k1 h8 d64 f16",
            "q1 k1073741824 h8 d64 f16",
            "q1 k1 h18446744073709551615 layout=gaps",
        ] {
            let error = error(text);
            assert!(
                error.contains("elements in a tensor; the limit is 2147483648"),
                "{error}"
            );
        }
        assert_eq!(
            error("b1073741824 q0 k0 h1073741824 d8"),
            "invalid problem: the problem has 1152921504606846976 heads in all sequences; the limit is 2147483648"
        );
        assert!("q16384 k16384 h32 d128".parse::<Case>().is_ok());
    }

    /// Plans need no data. What they list is limited.
    #[test]
    fn a_problem_of_any_size_can_be_planned() {
        for text in [
            "q1048576 h32/8 d128 bf16 mask=causal",
            "q1048576 h32 d128 bf16 mask=causal backward",
            "b1024 k1048576 h32/8 d128 bf16",
            "q1000000000 h1024 d512 f16 layout=gaps",
        ] {
            let error = text.parse::<Case>().unwrap_err().to_string();
            assert!(error.contains("elements in a tensor; the limit"), "{error}");
            let case = Case::parse_to_plan(text).unwrap();
            assert!(case.call_to_plan().is_ok() && case.call_on_gpu().is_err());
        }
        let error = |text: &str| Case::parse_to_plan(text).unwrap_err().to_string();
        assert!(error("q1 k1 h18446744073709551615").contains("heads in all sequences"));
        for text in [
            "q1000000000 blocks=64x64 d64 f16",
            "q1000000000 k0 h40 blocks=64x64,head d64 f16",
        ] {
            assert!(error(text).contains("blocks in its lists"), "{text}");
        }
        let many = Case::parse_to_plan("b1073741824 h1 q1 d8 f16").unwrap();
        assert!(
            many.call_to_plan()
                .unwrap_err()
                .to_string()
                .contains("16777216")
        );
    }

    /// Otherwise a problem that was made smaller would not be read back.
    #[test]
    fn a_diagonal_goes_with_its_mask() {
        let mut case: Case = "q3 mask=causal diagonal=2".parse().unwrap();
        case.remove("mask");
        assert_eq!(case.to_string(), "b1 q3 k3 h1 d64 f32 seed=0");
    }
}
