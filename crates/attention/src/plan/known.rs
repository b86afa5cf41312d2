//! GPUs that need not be here: what the planner has to know of them.

use crate::error::{Error, Result};
use crate::plan::DeviceProfile;

/// The properties that GPUs of one compute capability share (CUDA C++ Programming Guide, "Technical Specifications per
/// Compute Capability").
struct Architecture {
    major: u32,
    minor: u32,
    /// KiB of shared memory of a multiprocessor. A CTA may have all but one.
    shared_kib: u32,
    /// Threads that a multiprocessor keeps resident.
    threads: u32,
}

const fn architecture(major: u32, minor: u32, shared_kib: u32, threads: u32) -> Architecture {
    Architecture {
        major,
        minor,
        shared_kib,
        threads,
    }
}

const ARCHITECTURES: [Architecture; 10] = [
    architecture(7, 5, 65, 1024),
    architecture(8, 0, 164, 2048),
    architecture(8, 6, 100, 1536),
    architecture(8, 7, 164, 1536),
    architecture(8, 9, 100, 1536),
    architecture(9, 0, 228, 2048),
    architecture(10, 0, 228, 2048),
    architecture(10, 3, 228, 2048),
    architecture(12, 0, 100, 1536),
    architecture(12, 1, 100, 1536),
];

/// A GPU by the name that people use.
struct Gpu {
    /// The name that the driver gives; of GPUs that we have not measured, without memory and form factor.
    name: &'static str,
    major: u32,
    minor: u32,
    multiprocessors: u32,
}

const fn gpu(name: &'static str, major: u32, minor: u32, multiprocessors: u32) -> Gpu {
    Gpu {
        name,
        major,
        minor,
        multiprocessors,
    }
}

/// Multiprocessors are from the architecture white papers and data sheets of NVIDIA.
const GPUS: [Gpu; 26] = [
    gpu("NVIDIA T4", 7, 5, 40),
    gpu("NVIDIA A100", 8, 0, 108),
    gpu("NVIDIA A30", 8, 0, 56),
    gpu("NVIDIA A40", 8, 6, 84),
    gpu("NVIDIA A10", 8, 6, 72),
    gpu("NVIDIA RTX A6000", 8, 6, 84),
    gpu("NVIDIA GeForce RTX 3090", 8, 6, 82),
    gpu("NVIDIA GeForce RTX 3080", 8, 6, 68),
    gpu("NVIDIA GeForce RTX 3070", 8, 6, 46),
    gpu("NVIDIA GeForce RTX 3060", 8, 6, 28),
    gpu("NVIDIA L40S", 8, 9, 142),
    gpu("NVIDIA L40", 8, 9, 142),
    gpu("NVIDIA L4", 8, 9, 58),
    gpu("NVIDIA GeForce RTX 4090", 8, 9, 128),
    gpu("NVIDIA GeForce RTX 4080", 8, 9, 76),
    gpu("NVIDIA GeForce RTX 4070", 8, 9, 46),
    gpu("NVIDIA GeForce RTX 4060", 8, 9, 24),
    gpu("NVIDIA H200", 9, 0, 132),
    gpu("NVIDIA H100 80GB HBM3", 9, 0, 132),
    gpu("NVIDIA H100 PCIe", 9, 0, 114),
    gpu("NVIDIA GH200", 9, 0, 132),
    gpu("NVIDIA B200", 10, 0, 148),
    gpu("NVIDIA GeForce RTX 5090", 12, 0, 170),
    gpu("NVIDIA GeForce RTX 5080", 12, 0, 84),
    gpu("NVIDIA GeForce RTX 5070", 12, 0, 48),
    gpu("NVIDIA GB10", 12, 1, 48),
];

impl DeviceProfile {
    /// The GPUs that are known by name, here or not.
    pub fn known() -> impl Iterator<Item = Self> {
        GPUS.iter().filter_map(profile)
    }

    /// The GPU that `text` names, here or not: `a100`, `rtx4090`, or a compute capability as `8.6` or `sm_86`, with as many multiprocessors
    /// as the first known GPU of it, or those of the nearest older one.
    ///
    /// ```
    /// use warptile::plan::DeviceProfile;
    ///
    /// # fn main() -> warptile::Result<()> {
    /// assert_eq!(DeviceProfile::named("RTX 4090")?.multiprocessors, 128);
    /// assert_eq!(DeviceProfile::named("sm_80")?.multiprocessors, 108);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownName`] with the names most like it.
    pub fn named(text: &str) -> Result<Self> {
        let found = match capability(text) {
            Some((major, minor)) => of_capability(major, minor),
            None => {
                let wanted = short(text);
                let gpu = GPUS.iter().find(|gpu| short(gpu.name) == wanted);
                gpu.and_then(profile)
            }
        };
        found.ok_or_else(|| {
            let capabilities = ARCHITECTURES.map(|one| format!("{}.{}", one.major, one.minor));
            let names = GPUS.iter().map(|gpu| short(gpu.name));
            let known: Vec<String> = names.chain(capabilities).collect();
            Error::unknown("GPU", text, known.iter().map(String::as_str))
        })
    }

    /// The name that users type for it: `rtx4090` for `NVIDIA GeForce RTX 4090`, `h100` for `NVIDIA H100 80GB HBM3`.
    pub fn short_name(&self) -> String {
        short(&self.name)
    }
}

fn short(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.map(str::to_ascii_lowercase);
    words
        .filter(|word| word != "nvidia" && word != "geforce" && !is_memory(word))
        .collect()
}

/// `80gb` or `hbm3`.
fn is_memory(word: &str) -> bool {
    word.ends_with("gb") || word.starts_with("hbm")
}

/// `8.6`, `sm_86`, `sm_90a` or `compute_86`.
fn capability(text: &str) -> Option<(u32, u32)> {
    if let Some((major, minor)) = text.split_once('.') {
        return Some((major.parse().ok()?, minor.parse().ok()?));
    }
    let digits = text
        .strip_prefix("sm_")
        .or_else(|| text.strip_prefix("compute_"))?
        .trim_end_matches(['a', 'f']);
    let number: u32 = digits.parse().ok()?;
    Some((number / 10, number % 10))
}

fn of_capability(major: u32, minor: u32) -> Option<DeviceProfile> {
    let known = |gpu: &&Gpu| (gpu.major, gpu.minor) <= (major, minor);
    let nearest = GPUS.iter().filter(known).max_by_key(|gpu| {
        // The first of several equal GPUs counts.
        let position = GPUS.iter().position(|one| one.name == gpu.name);
        (gpu.major, gpu.minor, std::cmp::Reverse(position))
    })?;
    let name = format!("sm_{major}{minor}");
    let mut profile = with_architecture(&name, major, minor)?;
    profile.multiprocessors = nearest.multiprocessors;
    Some(profile)
}

fn profile(gpu: &Gpu) -> Option<DeviceProfile> {
    let mut profile = with_architecture(gpu.name, gpu.major, gpu.minor)?;
    profile.multiprocessors = gpu.multiprocessors;
    Some(profile)
}

fn with_architecture(name: &str, major: u32, minor: u32) -> Option<DeviceProfile> {
    let of = ARCHITECTURES
        .iter()
        .find(|one| (one.major, one.minor) == (major, minor))?;
    let mut profile = DeviceProfile::h200();
    profile.name = name.to_owned();
    (profile.major, profile.minor) = (major, minor);
    profile.shared_bytes_per_multiprocessor = of.shared_kib << 10;
    profile.shared_bytes_per_cta = (of.shared_kib - 1) << 10;
    profile.threads_per_multiprocessor = of.threads;
    Some(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_h200_of_the_table_is_the_one_that_was_measured() {
        assert_eq!(DeviceProfile::named("h200").unwrap(), DeviceProfile::h200());
    }

    #[test]
    fn gpus_have_short_names_of_their_own_and_an_architecture() {
        assert_eq!(DeviceProfile::known().count(), GPUS.len());
        for gpu in &GPUS {
            let found = DeviceProfile::named(&short(gpu.name)).unwrap();
            assert_eq!(found.short_name(), short(gpu.name));
            assert_eq!(found.name, gpu.name);
            assert_eq!(DeviceProfile::named(gpu.name).unwrap(), found);
        }
        let named = |name| DeviceProfile::named(name).unwrap();
        assert_eq!(named("RTX 4090").multiprocessors, 128);
        assert_eq!(named("h100").name, "NVIDIA H100 80GB HBM3");
    }

    #[test]
    fn capabilities_take_the_places_of_names() {
        let of = |text| {
            let named = DeviceProfile::named(text).ok()?;
            Some((named.major, named.minor, named.multiprocessors))
        };
        assert_eq!(of("8.6"), Some((8, 6, 84)));
        assert_eq!(of("sm_86"), Some((8, 6, 84)));
        assert_eq!(of("sm_90a"), Some((9, 0, 132)));
        assert_eq!(of("compute_120"), Some((12, 0, 170)));
        assert_eq!(of("8.7"), Some((8, 7, 84)));
        for text in ["6.1", "a1000", "8.", "sm_", "", "99.9"] {
            assert!(of(text).is_none(), "{text}");
        }
        let unknown = DeviceProfile::named("a1000").unwrap_err().to_string();
        assert!(
            unknown.starts_with("unknown GPU \"a1000\"; did you mean a100"),
            "{unknown}"
        );
    }
}
