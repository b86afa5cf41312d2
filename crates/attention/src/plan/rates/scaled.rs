//! Rates of GPUs that nobody has measured: those of the H200, by what data sheets say of both GPUs. They say how long a call takes, and choose no
//! kernel: how the kernels of different families compare does not follow from a data sheet.

use std::sync::LazyLock;

use super::Rates;
use crate::plan::DeviceProfile;
use crate::plan::known::Gpu;

/// Those of each known GPU.
static SCALED: LazyLock<Vec<(&Gpu, Rates)>> = LazyLock::new(|| {
    let h200 = &super::EMBEDDED[0];
    let Some(from) = Gpu::of(&DeviceProfile::h200()) else {
        return Vec::new();
    };
    Gpu::all().map(|to| (to, h200.scaled(from, to))).collect()
});

/// The rates of a GPU that was not measured. `None` of one that is older than all known ones.
pub(super) fn of(device: &DeviceProfile) -> Option<&'static Rates> {
    let gpu = Gpu::of(device)?;
    let of_gpu = SCALED.iter().find(|(one, _)| one.name == gpu.name);
    of_gpu.map(|(_, rates)| rates)
}

/// The share of the memory's speed from which on a kernel's rate is that of reading: kernels of 16 and 32 rows have 0.76 to 0.99 of it on an H200,
/// those of 64 rows 0.49 to 0.67.
const READING: f64 = 0.7;

/// The query rows of a tile of `decode_d128_16x64_w4_s2` and the like.
fn rows_of(kernel: &str) -> f64 {
    let tile = kernel
        .split('_')
        .nth(2)
        .and_then(|tile| tile.split_once('x'));
    tile.and_then(|tile| tile.0.parse().ok()).unwrap_or(1.0)
}

impl Rates {
    /// The time of an operation is that of tensor cores at their peak, and the rest, which takes as many clocks on every multiprocessor.
    /// What is not multiplied by tensor cores takes as long for each of the vector units.
    fn scaled(&self, from: &Gpu, to: &Gpu) -> Self {
        let mut rates = self.clone();
        rates.multiprocessors = to.multiprocessors;
        rates.bandwidth *= to.memory / from.memory;
        rates.choices.clear();
        for rate in &mut rates.kernels {
            let tflops = rate.speed.tflops;
            let family = rate.kernel.split('_').next().unwrap_or_default();
            rate.speed.tflops = match family {
                "scalar" => tflops * to.vector_tflops() / from.vector_tflops(),
                "decode" => {
                    // An operation for each byte of keys and row of a tile.
                    let reading = rows_of(&rate.kernel) * self.bandwidth;
                    let read = reading * to.memory / from.memory;
                    match tflops > READING * reading {
                        true => tflops * to.memory / from.memory,
                        false => of_tensors(tflops, false, from, to).min(read),
                    }
                }
                family => of_tensors(tflops, family == "wgmma", from, to),
            };
        }
        rates
    }
}

/// The TFLOP/s on `to` of what has as many as `tflops` on `from`, by tensor cores.
pub(in crate::plan) fn of_tensors(tflops: f64, by_wgmma: bool, from: &Gpu, to: &Gpu) -> f64 {
    let peak = |gpu: &Gpu| gpu.tensor_tflops(by_wgmma);
    let rest = 1.0 / tflops - 1.0 / peak(from);
    1.0 / (1.0 / peak(to) + rest.max(0.0) * from.clocks() / to.clocks())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Choice, Planner};
    use crate::spec::{Call, Problem};
    use crate::{ElementType, Layout};

    fn problem(len: usize, dim: usize, queries: usize) -> Problem {
        let q = Layout::bshd([4, queries, 32, dim]);
        let k = Layout::bshd([4, len, 8, dim]);
        let call = Call::builder(&q, &k, &k, ElementType::Bf16);
        Problem::of(&call.build().unwrap())
    }

    /// No plan expects more of a GPU than its data sheet says.
    #[test]
    fn no_gpu_is_faster_than_its_peaks() {
        for device in DeviceProfile::known() {
            let gpu = Gpu::of(&device).unwrap();
            for dim in [64, 128, 256] {
                let plan = |queries| {
                    let problem = problem(8192, dim, queries);
                    Planner::new(&device).plan(problem, &Choice::Best)
                };
                // No kernel is compiled for 7.5 and bf16.
                let (Ok(prompt), Ok(step)) = (plan(8192), plan(1)) else {
                    assert_eq!(device.major, 7, "{}", device.name);
                    continue;
                };
                let flops = 4.0 * (4 * 32 * dim) as f64 * 8192.0_f64.powi(2);
                let tflops = flops / prompt.estimate_us() * 1e-6;
                let peak = gpu.tensor_tflops(device.major == 9);
                assert!(tflops < peak, "{}: {tflops} of {peak}", device.name);
                assert!(tflops > 0.2 * peak, "{}: {tflops} of {peak}", device.name);
                let bytes = (2 * 4 * 8192 * 8 * dim * 2) as f64;
                let read = bytes / step.estimate_us() * 1e-6;
                assert!(read < gpu.memory, "{}: {read} TB/s", device.name);
            }
        }
    }

    #[test]
    fn a_devices_gpu_is_the_one_with_the_longest_name() {
        let of = |name: &str, major, minor| {
            let mut device = DeviceProfile::h200();
            name.clone_into(&mut device.name);
            (device.major, device.minor) = (major, minor);
            Gpu::of(&device).map(|gpu| gpu.name)
        };
        assert_eq!(of("NVIDIA A100-SXM4-80GB", 8, 0), Some("NVIDIA A100"));
        assert_eq!(of("NVIDIA A10G", 8, 6), Some("NVIDIA A10"));
        assert_eq!(of("NVIDIA L40S", 8, 9), Some("NVIDIA L40S"));
        assert_eq!(of("NVIDIA RTX 6000 Ada", 8, 9), Some("NVIDIA L40S"));
        assert_eq!(of("NVIDIA H20", 9, 0), Some("NVIDIA H200"));
        assert_eq!(of("NVIDIA Tesla V100", 7, 0), None);
    }
}
