//! A measurement, as `bench --json` and benches/peers write it. The maintainers' tool, which reads those, compiles this file, too.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Heads;

/// The backend of rows of this program.
pub(crate) const OURS: &str = "warptile";

/// The backend of rows that only read keys and values, as a bound.
pub(crate) const READ: &str = "read";

/// A row of results. What has a default is left out by some programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// `warptile`, or a peer's name.
    pub(crate) backend: String,
    /// Kernel family, `cpu` for the CPU path.
    pub(crate) family: String,
    #[serde(default)]
    pub(crate) kernel: String,
    /// SHA-256 of the image; `null` for the CPU path.
    pub(crate) sha256: Option<String>,
    /// Those of the other steps' images, in their order. Records of before have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) other_images: Vec<String>,
    /// The whole problem in the grammar of command lines, without its seed.
    #[serde(default)]
    pub(crate) problem: String,
    pub(crate) batch: usize,
    #[serde(flatten, serialize_with = "write_heads", deserialize_with = "heads")]
    pub(crate) heads: Heads,
    pub(crate) query_len: usize,
    pub(crate) key_len: usize,
    pub(crate) element: String,
    pub(crate) mask: String,
    /// `graph` (GPU time of one launch among many in a replayed graph, by events around the replay), `call` (one call as its caller sees
    /// it, by events around it) or `wall` (one call by the wall clock).
    pub(crate) method: String,
    #[serde(default)]
    pub(crate) samples: usize,
    pub(crate) median_us: f64,
    pub(crate) p90_us: f64,
    /// The shortest call, where others may have disturbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) min_us: Option<f64>,
    /// The time of only reading keys and values, in microseconds, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) read_us: Option<f64>,
    /// 10^12 floating-point operations per second at the median: 2 * heads * visible pairs * (head size + that of values); of gradients
    /// 2 * heads * visible pairs * (3 head sizes + 2 of values).
    pub(crate) tflops: f64,
    /// Bytes of the keys and values that some query sees.
    #[serde(default)]
    pub(crate) kv_bytes: u64,
    /// 10^12 of these bytes per second at the median.
    #[serde(default)]
    pub(crate) tb_s: f64,
    /// The options of the problem that the row's kernel does not compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leaves_out: Option<String>,
    /// The root mean square of the error against float64, in rows of some peers and of ours beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error_rms: Option<f64>,
    pub(crate) device: String,
    #[serde(default)]
    pub(crate) driver: String,
    /// Version and commit of the program, in rows of ours.
    pub(crate) program: Option<String>,
    /// ISO 8601.
    #[serde(default)]
    pub(crate) date: String,
    /// Versions of the peers of the session by what they are of, `torch` or a peer; in their rows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) versions: BTreeMap<String, String>,
    /// The measured commit, in files that state it once for all rows.
    #[serde(skip)]
    pub(crate) commit: Option<String>,
}

impl Row {
    /// The problem as command lines take it, also where a record has only its sizes.
    pub(crate) fn problem(&self) -> String {
        if !self.problem.is_empty() {
            return self.problem.clone();
        }
        let (batch, queries, keys) = (self.batch, self.query_len, self.key_len);
        let mask = match self.mask.as_str() {
            "none" => String::new(),
            mask => format!(" mask={mask}"),
        };
        format!(
            "b{batch} q{queries} k{keys} {} {}{mask}",
            self.heads, self.element
        )
    }
}

/// A [`Row::method`] in words.
pub(crate) fn method_text(method: &str) -> &str {
    match method {
        "graph" => "GPU time of one launch in a replayed graph",
        "call" => "one call between events",
        "wall" => "one call by the clock",
        other => other,
    }
}

/// `None` for no values.
pub(crate) fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (logs / values.len() as f64).exp())
}

/// [`Heads`], as fields of a record.
#[derive(Serialize, Deserialize)]
struct HeadsRecord {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Left out by some peers where it is the head size of keys.
    value_dim: Option<usize>,
}

fn write_heads<S: Serializer>(heads: &Heads, fields: S) -> Result<S::Ok, S::Error> {
    let record = HeadsRecord {
        heads: heads.query,
        kv_heads: heads.key_value,
        head_dim: heads.dim,
        value_dim: Some(heads.value_dim),
    };
    record.serialize(fields)
}

fn heads<'de, D: Deserializer<'de>>(fields: D) -> Result<Heads, D::Error> {
    let record = HeadsRecord::deserialize(fields)?;
    Ok(Heads::new(record.heads, record.head_dim)
        .key_value(record.kv_heads)
        .value_dim(record.value_dim.unwrap_or(record.head_dim)))
}
