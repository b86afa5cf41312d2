//! The targets of images.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

/// `sm_90`, `sm_90a` or `compute_80`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Target {
    /// Compute capability times ten.
    pub number: u32,
    /// True if architecture-specific instructions are on (the trailing `a`).
    pub exact: bool,
    /// True if the image is PTX rather than machine code.
    pub ptx: bool,
}

impl Target {
    /// The real architecture behind the target: a PTX image is taken from, and gated by, the cubin of the same number.
    pub fn real(self) -> Self {
        Self { ptx: false, ..self }
    }

    /// The cargo feature of `warptile-kernels` that the target's images come with.
    pub fn feature(self) -> String {
        if self.ptx {
            "ptx".to_owned()
        } else {
            format!("sm_{}", self.number)
        }
    }

    /// Shared memory one CTA can have, in bytes: "Technical specifications per compute capability" in the CUDA C++
    /// Programming Guide.
    pub fn shared_memory_limit(self) -> u32 {
        match self.number {
            80 | 87 => 163 * 1024,
            86 | 89 | 120 | 121 => 99 * 1024,
            _ => 227 * 1024,
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "`{text}` is no target; write sm_NN, sm_NNa or compute_NN, with NN one of {KNOWN_NUMBERS:?}"
            )
        };
        let (ptx, version) = match text.strip_prefix("compute_") {
            Some(version) => (true, version),
            None => (false, text.strip_prefix("sm_").ok_or_else(unknown)?),
        };
        let (exact, digits) = match version.strip_suffix('a') {
            Some(digits) if !ptx => (true, digits),
            _ => (false, version),
        };
        let number = digits.parse().map_err(|_| unknown())?;
        if !KNOWN_NUMBERS.contains(&number) {
            return Err(unknown());
        }
        Ok(Self { number, exact, ptx })
    }
}

/// Architectures NVRTC 12.8 compiles for, whose shared-memory limits are known here.
const KNOWN_NUMBERS: [u32; 9] = [80, 86, 87, 89, 90, 100, 101, 120, 121];

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.ptx { "compute" } else { "sm" };
        let suffix = if self.exact { "a" } else { "" };
        write!(f, "{prefix}_{}{suffix}", self.number)
    }
}
