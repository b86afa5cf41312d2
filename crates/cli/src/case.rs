//! A problem written as one line of text: what `bench --shape` takes, and what `verify` prints to repeat a failure.

use std::fmt;
use std::str::FromStr;

use warptile::{Align, ElementType, Layout, Mask};

use crate::inputs::Settings;
use crate::options::Window;

/// The grammar, as `--help` prints it.
pub(crate) const GRAMMAR: &str = "\
A problem is a line of key=value pairs; what is left out has the default in brackets:
  batch=N        sequences [1]
  heads=H or H/K query heads, and key/value heads if they differ [1]
  len=N or QxK   query length, and key length if it differs [128]
  packed=QxK,... lengths of packed sequences, in place of batch and len
  d=N            head size [64]
  element=T      f16, bf16 or f32 [f16]
  mask=M         none, causal, causal-top-left or window:LEFT,RIGHT (-1: no limit) [none]
  scale=X        factor of the scores [1/sqrt(d)]
  softcap=X      bound of the scores [no bound]
  alibi=A        none, heads or batch-heads: random slopes per head, or per batch entry and head [none]
  values=V       normal, or large: eight times as far from zero [normal]
  layout=L       bshd, bhsd, gaps or odd-gaps: 8 elements or 1 left out after each head [bshd]
  seed=N         seed of the random values [0]
  kernel=NAME    a kernel by name [the planner's choice]";

/// Lengths of the sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// `batch` sequences of one length.
    Dense {
        batch: usize,
        query: usize,
        key: usize,
    },
    /// Sequences of (query, key) lengths without padding between them.
    Packed(Vec<(usize, usize)>),
}

/// Which ALiBi slopes a case has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slopes {
    None,
    PerHead,
    PerBatchHead,
}

/// How far from zero the inputs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// Standard normal.
    Normal,
    /// Normal with a standard deviation of 8: few keys get nearly all the weight.
    Large,
}

/// How the tensors of a case are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// [batch, rows, heads, head size]
    Bshd,
    /// [batch, heads, rows, head size]
    Bhsd,
    /// As `Bshd`, with 8 elements that belong to nothing after each head: rows keep their 16-byte alignment.
    Gaps,
    /// As `Bshd`, with 1 element that belongs to nothing after each head: rows are aligned to elements only.
    OddGaps,
}

impl Storage {
    pub(crate) const ALL: [Storage; 4] =
        [Storage::Bshd, Storage::Bhsd, Storage::Gaps, Storage::OddGaps];

    /// The layout of a tensor of batch, rows, heads, head size.
    pub(crate) fn layout(self, shape: [usize; 4]) -> Layout {
        let with_gaps = |gap| {
            let [_, rows, heads, head_dim] = shape;
            let head = head_dim + gap;
            Layout::new(shape, [rows * heads * head, heads * head, head, 1])
        };
        match self {
            Storage::Bshd => Layout::bshd(shape),
            Storage::Bhsd => Layout::bhsd(shape),
            Storage::Gaps => with_gaps(8),
            Storage::OddGaps => with_gaps(1),
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Storage::Bshd => "bshd",
            Storage::Bhsd => "bhsd",
            Storage::Gaps => "gaps",
            Storage::OddGaps => "odd-gaps",
        })
    }
}

/// A problem with random inputs; the same text gives the same inputs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Case {
    pub(crate) lengths: Lengths,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) element: ElementType,
    pub(crate) mask: Mask,
    pub(crate) scale: Option<f32>,
    pub(crate) softcap: Option<f32>,
    pub(crate) slopes: Slopes,
    pub(crate) values: Values,
    pub(crate) layout: Storage,
    pub(crate) seed: u64,
    pub(crate) kernel: Option<String>,
}

impl Default for Case {
    fn default() -> Self {
        Case {
            lengths: Lengths::Dense {
                batch: 1,
                query: 128,
                key: 128,
            },
            heads: 1,
            kv_heads: 1,
            head_dim: 64,
            element: ElementType::F16,
            mask: Mask::none(),
            scale: None,
            softcap: None,
            slopes: Slopes::None,
            values: Values::Normal,
            layout: Storage::Bshd,
            seed: 0,
            kernel: None,
        }
    }
}

/// Most elements one tensor of a case may have. Beyond it the inputs would not fit an ordinary machine's memory.
const MAX_ELEMENTS: usize = 1 << 31;

impl Case {
    pub(crate) fn batch(&self) -> usize {
        match &self.lengths {
            Lengths::Dense { batch, .. } => *batch,
            Lengths::Packed(sequences) => sequences.len(),
        }
    }

    /// Rows of q and rows of k, v in their tensors: length if dense, total if packed.
    pub(crate) fn rows(&self) -> (usize, usize) {
        match &self.lengths {
            Lengths::Dense { query, key, .. } => (*query, *key),
            Lengths::Packed(sequences) => sequences
                .iter()
                .fold((0, 0), |(q, k), sequence| (q + sequence.0, k + sequence.1)),
        }
    }

    /// Shapes of q and of k and v: batch, rows, heads, head size.
    pub(crate) fn shapes(&self) -> [[usize; 4]; 2] {
        let batch = match self.lengths {
            Lengths::Dense { batch, .. } => batch,
            Lengths::Packed(_) => 1,
        };
        let (query, key) = self.rows();
        [
            [batch, query, self.heads, self.head_dim],
            [batch, key, self.kv_heads, self.head_dim],
        ]
    }

    /// The options of the call that are not tensors.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            mask: self.mask,
            scale: self.scale,
            softcap: self.softcap,
            kernel: self.kernel.clone(),
        }
    }

    /// Rejects what would not fit into memory; everything else is for [`Problem`](warptile::Problem) to judge.
    fn check_size(&self) -> Result<(), String> {
        let lengths: Vec<usize> = match &self.lengths {
            Lengths::Dense { query, key, .. } => vec![*query, *key],
            Lengths::Packed(sequences) => sequences.iter().flat_map(|&(q, k)| [q, k]).collect(),
        };
        // Saturating: a product that overflows is too large as well.
        let total = lengths
            .into_iter()
            .fold(0_usize, |total, length| total.saturating_add(length));
        let elements = [
            self.batch().max(1),
            total,
            self.heads.max(self.kv_heads),
            self.head_dim,
        ]
        .into_iter()
        .fold(1_usize, |product, extent| product.saturating_mul(extent));
        if elements > MAX_ELEMENTS {
            return Err(format!(
                "the problem has more than {MAX_ELEMENTS} elements in a tensor"
            ));
        }
        Ok(())
    }
}

fn number<N: FromStr>(key: &str, text: &str) -> Result<N, String> {
    text.parse()
        .map_err(|_| format!("{key}={text}: a number is needed"))
}

/// `A` or `A{separator}B`; one number stands for both.
fn pair(key: &str, text: &str, separator: char) -> Result<(usize, usize), String> {
    match text.split_once(separator) {
        Some((a, b)) => Ok((number(key, a)?, number(key, b)?)),
        None => number(key, text).map(|both| (both, both)),
    }
}

fn mask(text: &str) -> Result<Mask, String> {
    match text {
        "none" => Ok(Mask::none()),
        "causal" => Ok(Mask::causal()),
        "causal-top-left" => Ok(Mask::Causal {
            align: Align::TopLeft,
        }),
        _ => text
            .strip_prefix("window:")
            .and_then(|window| window.parse().ok())
            .map(|Window { left, right }| Mask::window(left, right))
            .ok_or_else(|| {
                format!(
                    "mask={text}: none, causal, causal-top-left or window:LEFT,RIGHT is needed"
                )
            }),
    }
}

/// Writes a mask the way [`Case`] reads it.
pub(crate) fn mask_text(mask: Mask) -> String {
    let side = |side: Option<u32>| side.map_or("-1".to_owned(), |keys| keys.to_string());
    match mask {
        Mask::Causal {
            align: Align::TopLeft,
        } => "causal-top-left".into(),
        Mask::Causal { .. } => "causal".into(),
        Mask::Window { left, right } => format!("window:{},{}", side(left), side(right)),
        _ => "none".into(),
    }
}

pub(crate) fn element(text: &str) -> Result<ElementType, String> {
    [ElementType::F16, ElementType::Bf16, ElementType::F32]
        .into_iter()
        .find(|element| element.to_string() == text)
        .ok_or_else(|| format!("element={text}: f16, bf16 or f32 is needed"))
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut case = Case::default();
        let mut dense = (1, (128, 128));
        let mut packed = None;
        let mut seen: Vec<&str> = Vec::new();
        for word in text.split_whitespace() {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| format!("{word}: key=value is needed"))?;
            if seen.contains(&key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key);
            match key {
                "batch" => dense.0 = number(key, value)?,
                "heads" => (case.heads, case.kv_heads) = pair(key, value, '/')?,
                "len" => dense.1 = pair(key, value, 'x')?,
                "packed" => {
                    let sequences: Result<Vec<_>, _> = value
                        .split(',')
                        .filter(|sequence| !sequence.is_empty())
                        .map(|sequence| pair(key, sequence, 'x'))
                        .collect();
                    packed = Some(sequences?);
                }
                "d" => case.head_dim = number(key, value)?,
                "element" => case.element = element(value)?,
                "mask" => case.mask = mask(value)?,
                "scale" => case.scale = Some(number(key, value)?),
                "softcap" => case.softcap = Some(number(key, value)?),
                "alibi" => {
                    case.slopes = match value {
                        "none" => Slopes::None,
                        "heads" => Slopes::PerHead,
                        "batch-heads" => Slopes::PerBatchHead,
                        _ => {
                            return Err(format!(
                                "alibi={value}: none, heads or batch-heads is needed"
                            ));
                        }
                    }
                }
                "values" => {
                    case.values = match value {
                        "normal" => Values::Normal,
                        "large" => Values::Large,
                        _ => return Err(format!("values={value}: normal or large is needed")),
                    }
                }
                "layout" => {
                    case.layout = Storage::ALL
                        .into_iter()
                        .find(|storage| storage.to_string() == value)
                        .ok_or_else(|| {
                            format!("layout={value}: bshd, bhsd, gaps or odd-gaps is needed")
                        })?;
                }
                "seed" => case.seed = number(key, value)?,
                "kernel" => case.kernel = Some(value.to_owned()),
                _ => return Err(format!("{key} is not a key of a problem")),
            }
        }
        if packed.is_some() && (seen.contains(&"batch") || seen.contains(&"len")) {
            return Err("packed stands in place of batch and len".into());
        }
        case.lengths = match packed {
            Some(sequences) => Lengths::Packed(sequences),
            None => {
                let (batch, (query, key)) = dense;
                Lengths::Dense { batch, query, key }
            }
        };
        case.check_size()?;
        Ok(case)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lengths {
            Lengths::Dense { batch, query, key } => write!(f, "batch={batch} len={query}x{key}")?,
            Lengths::Packed(sequences) => {
                let sequences: Vec<String> =
                    sequences.iter().map(|(q, k)| format!("{q}x{k}")).collect();
                write!(f, "packed={}", sequences.join(","))?;
            }
        }
        write!(
            f,
            " heads={}/{} d={} element={}",
            self.heads, self.kv_heads, self.head_dim, self.element
        )?;
        if self.mask != Mask::none() {
            write!(f, " mask={}", mask_text(self.mask))?;
        }
        if let Some(scale) = self.scale {
            write!(f, " scale={scale}")?;
        }
        if let Some(softcap) = self.softcap {
            write!(f, " softcap={softcap}")?;
        }
        match self.slopes {
            Slopes::None => {}
            Slopes::PerHead => f.write_str(" alibi=heads")?,
            Slopes::PerBatchHead => f.write_str(" alibi=batch-heads")?,
        }
        if self.values == Values::Large {
            f.write_str(" values=large")?;
        }
        if self.layout != Storage::Bshd {
            write!(f, " layout={}", self.layout)?;
        }
        write!(f, " seed={}", self.seed)?;
        if let Some(kernel) = &self.kernel {
            write!(f, " kernel={kernel}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_has_a_default() {
        assert_eq!("".parse(), Ok(Case::default()));
        let case: Case = "heads=8/2 len=3x799 d=40".parse().unwrap();
        assert_eq!((case.heads, case.kv_heads, case.head_dim), (8, 2, 40));
        assert_eq!(
            case.lengths,
            Lengths::Dense {
                batch: 1,
                query: 3,
                key: 799
            }
        );
    }

    #[test]
    fn packed_lengths() {
        let case: Case = "packed=3x5,0x7,4x0,9".parse().unwrap();
        assert_eq!(
            case.lengths,
            Lengths::Packed(vec![(3, 5), (0, 7), (4, 0), (9, 9)])
        );
        assert_eq!(case.rows(), (16, 21));
        assert_eq!(
            "packed=".parse::<Case>().unwrap().lengths,
            Lengths::Packed(Vec::new())
        );
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (text, expected) in [
            ("len", "len: key=value is needed"),
            ("len=3 len=4", "len is given twice"),
            ("len=-3", "len=-3: a number is needed"),
            ("mask=diagonal", "mask=diagonal: none, causal"),
            ("element=f64", "element=f64: f16, bf16 or f32"),
            ("packed=1x2 len=3", "packed stands in place of"),
            ("depth=3", "depth is not a key"),
            (
                "len=4294967296 heads=4294967296 batch=4294967296",
                "the problem has more than",
            ),
            (
                "packed=18446744073709551615x1,18446744073709551615x1",
                "the problem has more than",
            ),
        ] {
            let error = text.parse::<Case>().unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
