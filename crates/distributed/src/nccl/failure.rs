//! Failures that all ranks report alike, and their form on the way between ranks.

use std::time::Duration;

/// The reason why a group of processes is of no use any more. All its ranks report the same one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A rank has ended, is stopped, or cannot be reached.
    #[error("rank {rank} is lost: {how}")]
    Lost {
        /// The rank.
        rank: usize,
        /// The sign of it.
        how: String,
    },
    /// Ranks have made different calls.
    #[error(
        "rank {} calls with {}, but rank {} with {}", ranks[1], calls[1], ranks[0], calls[0]
    )]
    Disagree {
        /// Two ranks.
        ranks: [usize; 2],
        /// The part of their calls that differs.
        calls: [String; 2],
    },
    /// Some ranks have not made a call that others have made.
    #[error("ranks {ranks:?} have not made the call of the others within {waited:?}")]
    Late {
        /// The ranks.
        ranks: Vec<usize>,
        /// The bound.
        waited: Duration,
    },
    /// A rank could not do its part of a call.
    #[error("rank {rank} failed: {why}")]
    Failed {
        /// The rank.
        rank: usize,
        /// Its reason.
        why: String,
    },
}

impl Failure {
    /// One line of fields with tabs between them.
    pub(crate) fn to_line(&self) -> String {
        let fields = match self {
            Failure::Lost { rank, how } => ["lost", &rank.to_string(), how].map(clean).to_vec(),
            Failure::Failed { rank, why } => ["failed", &rank.to_string(), why].map(clean).to_vec(),
            Failure::Disagree { ranks, calls } => {
                let [first, second] = ranks.map(|rank| rank.to_string());
                ["disagree", &first, &second, &calls[0], &calls[1]]
                    .map(clean)
                    .to_vec()
            }
            Failure::Late { ranks, waited } => {
                let waited = waited.as_millis().to_string();
                let mut fields = vec!["late".to_owned(), waited];
                fields.extend(ranks.iter().map(usize::to_string));
                fields
            }
        };
        fields.join("\t")
    }

    pub(crate) fn from_line(line: &str) -> Option<Failure> {
        let fields: Vec<&str> = line.split('\t').collect();
        Some(match fields[..] {
            ["lost", rank, how] => Failure::Lost {
                rank: rank.parse().ok()?,
                how: how.to_owned(),
            },
            ["failed", rank, why] => Failure::Failed {
                rank: rank.parse().ok()?,
                why: why.to_owned(),
            },
            ["disagree", first, second, one, other] => Failure::Disagree {
                ranks: [first.parse().ok()?, second.parse().ok()?],
                calls: [one.to_owned(), other.to_owned()],
            },
            ["late", waited, ref ranks @ ..] => Failure::Late {
                ranks: ranks
                    .iter()
                    .map(|rank| rank.parse())
                    .collect::<Result<_, _>>()
                    .ok()?,
                waited: Duration::from_millis(waited.parse().ok()?),
            },
            _ => return None,
        })
    }
}

/// A text that is one field of a line.
pub(crate) fn clean(text: &str) -> String {
    text.replace(['\t', '\n', '\r'], " ")
}
