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
pub(in crate::plan) struct Gpu {
    /// The name that the driver gives; of GPUs that we have not measured, without memory and form factor.
    pub(in crate::plan) name: &'static str,
    major: u32,
    minor: u32,
    pub(in crate::plan) multiprocessors: u32,
    /// The boost clock in GHz.
    clock: f64,
    /// Floating-point operations of a multiprocessor's tensor cores in a clock: products of f16 or bf16 that are added in f32.
    tensor_flops: u32,
    /// TB/s of its memory.
    pub(in crate::plan) memory: f64,
}

const fn gpu(
    name: &'static str,
    [major, minor]: [u32; 2],
    multiprocessors: u32,
    clock: f64,
    tensor_flops: u32,
    memory: f64,
) -> Gpu {
    Gpu {
        name,
        major,
        minor,
        multiprocessors,
        clock,
        tensor_flops,
        memory,
    }
}

impl Gpu {
    /// That of a device: the one whose name its name begins with, or else the first known one of its capability, or of the nearest older one.
    pub(in crate::plan) fn of(device: &DeviceProfile) -> Option<&'static Self> {
        let named = { GPUS.iter() }.filter(|gpu| device.name.starts_with(gpu.name));
        let named = named.max_by_key(|gpu| gpu.name.len());
        named.or_else(|| nearest(device.major, device.minor))
    }

    /// All that are known.
    pub(in crate::plan) fn all() -> impl Iterator<Item = &'static Self> {
        GPUS.iter()
    }

    /// Clocks of all multiprocessors, in 10^12 a second.
    pub(in crate::plan) fn clocks(&self) -> f64 {
        f64::from(self.multiprocessors) * self.clock / 1000.0
    }

    /// The most TFLOP/s of tensor cores, asked by `wgmma` or by `mma`, which gets 0.63 of them on Hopper (Luo et al., "Benchmarking and
    /// Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024).
    pub(in crate::plan) fn tensor_tflops(&self, by_wgmma: bool) -> f64 {
        let share = match (self.major, by_wgmma) {
            (9 | 10, false) => 0.63,
            _ => 1.0,
        };
        self.clocks() * f64::from(self.tensor_flops) * share
    }

    /// The most TFLOP/s of the vector units in f32.
    pub(in crate::plan) fn vector_tflops(&self) -> f64 {
        let lanes = match (self.major, self.minor) {
            (7, _) | (8, 0) => 64.0,
            _ => 128.0,
        };
        2.0 * lanes * self.clocks()
    }
}

/// Multiprocessors, clocks and memory are from the architecture white papers and data sheets of NVIDIA, and so are operations of tensor cores, as
/// dense TFLOP/s over these; of 10.0 they are those of `mma` on 9.0, and of GB10, whose clock is a guess, those of 12.0.
const GPUS: [Gpu; 26] = [
    gpu("NVIDIA T4", [7, 5], 40, 1.59, 1024, 0.32),
    gpu("NVIDIA A100", [8, 0], 108, 1.41, 2048, 1.935),
    gpu("NVIDIA A30", [8, 0], 56, 1.44, 2048, 0.933),
    gpu("NVIDIA A40", [8, 6], 84, 1.74, 1024, 0.696),
    gpu("NVIDIA A10", [8, 6], 72, 1.695, 1024, 0.6),
    gpu("NVIDIA RTX A6000", [8, 6], 84, 1.8, 1024, 0.768),
    gpu("NVIDIA GeForce RTX 3090", [8, 6], 82, 1.695, 512, 0.936),
    gpu("NVIDIA GeForce RTX 3080", [8, 6], 68, 1.71, 512, 0.76),
    gpu("NVIDIA GeForce RTX 3070", [8, 6], 46, 1.725, 512, 0.448),
    gpu("NVIDIA GeForce RTX 3060", [8, 6], 28, 1.777, 512, 0.36),
    gpu("NVIDIA L40S", [8, 9], 142, 2.52, 1024, 0.864),
    gpu("NVIDIA L40", [8, 9], 142, 2.49, 512, 0.864),
    gpu("NVIDIA L4", [8, 9], 58, 2.04, 1024, 0.3),
    gpu("NVIDIA GeForce RTX 4090", [8, 9], 128, 2.52, 512, 1.008),
    gpu("NVIDIA GeForce RTX 4080", [8, 9], 76, 2.505, 512, 0.717),
    gpu("NVIDIA GeForce RTX 4070", [8, 9], 46, 2.475, 512, 0.504),
    gpu("NVIDIA GeForce RTX 4060", [8, 9], 24, 2.46, 512, 0.272),
    gpu("NVIDIA H200", [9, 0], 132, 1.83, 4096, 4.8),
    gpu("NVIDIA H100 80GB HBM3", [9, 0], 132, 1.83, 4096, 3.35),
    gpu("NVIDIA H100 PCIe", [9, 0], 114, 1.62, 4096, 2.0),
    gpu("NVIDIA GH200", [9, 0], 132, 1.83, 4096, 4.0),
    gpu("NVIDIA B200", [10, 0], 148, 1.85, 4096, 8.0),
    gpu("NVIDIA GeForce RTX 5090", [12, 0], 170, 2.407, 512, 1.792),
    gpu("NVIDIA GeForce RTX 5080", [12, 0], 84, 2.617, 512, 0.96),
    gpu("NVIDIA GeForce RTX 5070", [12, 0], 48, 2.512, 512, 0.672),
    gpu("NVIDIA GB10", [12, 1], 48, 2.4, 512, 0.273),
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
    let name = format!("sm_{major}{minor}");
    let mut profile = with_architecture(&name, major, minor)?;
    profile.multiprocessors = nearest(major, minor)?.multiprocessors;
    Some(profile)
}

/// The first known GPU of a capability, or of the nearest older one.
fn nearest(major: u32, minor: u32) -> Option<&'static Gpu> {
    let known = |gpu: &&Gpu| (gpu.major, gpu.minor) <= (major, minor);
    GPUS.iter().filter(known).max_by_key(|gpu| {
        // The first of several equal GPUs counts.
        let position = GPUS.iter().position(|one| one.name == gpu.name);
        (gpu.major, gpu.minor, std::cmp::Reverse(position))
    })
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
