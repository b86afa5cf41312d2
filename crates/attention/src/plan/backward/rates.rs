//! Expected times of the steps of gradients. The rates are fixed, and no kernel is chosen by them.

use warptile_kernels::{ElementType, Family, Features, Image, Role};

use super::BackwardProblem;
use crate::plan::known::Gpu;
use crate::plan::{Basis, DeviceProfile, Rates, Standing, of_tensors};

/// The GPU that the rates were measured on.
const MEASURED_ON: &str = "NVIDIA H100 80GB HBM3";

/// TFLOP/s of the products that a family computes, by the head size of its tiles: 4,096 queries and keys without a mask, f16 or bf16; see
/// docs/notebook/backward.md.
const TFLOPS: [(Family, u32, f64); 17] = [
    (Family::Dkv, 64, 309.0),
    (Family::Dkv, 128, 301.0),
    (Family::Dkv, 192, 164.0),
    (Family::Dkv, 256, 252.0),
    (Family::Dq, 64, 266.0),
    (Family::Dq, 96, 196.0),
    (Family::Dq, 128, 320.0),
    (Family::Dq, 192, 155.0),
    (Family::Dq, 256, 239.0),
    (Family::Dqkv, 64, 559.0),
    (Family::Dqkv, 96, 579.0),
    (Family::Dqkv, 128, 638.0),
    (Family::Wdkv, 192, 615.0),
    (Family::Wdkv, 256, 690.0),
    (Family::Wdq, 192, 658.0),
    (Family::Wdq, 256, 610.0),
    // On an H200, with a bias for each head and 8 heads of 256; of smaller heads it computes fewer products than its tiles hold.
    (Family::Dbias, 256, 86.0),
];

/// TFLOP/s of kernels that were not measured: those of f32 use the vector units.
const UNMEASURED: f64 = 20.0;

/// TFLOP/s of an image on a device: as they were measured, scaled by data sheets to another GPU, and to the multiprocessors there are.
fn tflops_on(device: &DeviceProfile, image: &Image) -> f64 {
    let measured = Gpu::all().find(|gpu| gpu.name == MEASURED_ON);
    let (Some(from), Some(to)) = (measured, Gpu::of(device)) else {
        return tflops(image).unwrap_or(UNMEASURED);
    };
    let by_wgmma = matches!(image.family, Family::Dqkv | Family::Wdkv | Family::Wdq);
    let of_gpu = match tflops(image) {
        Some(tflops) => of_tensors(tflops, by_wgmma, from, to),
        None => UNMEASURED * to.vector_tflops() / from.vector_tflops(),
    };
    of_gpu * f64::from(device.multiprocessors.max(1)) / f64::from(to.multiprocessors)
}

/// The rate of an image, if it was measured.
fn tflops(image: &Image) -> Option<f64> {
    let is_measured = image.element != ElementType::F32;
    { TFLOPS.iter() }
        .find(|(family, head_dim, _)| {
            is_measured && *family == image.family && image.tiling.head_dim <= *head_dim
        })
        .map(|rate| rate.2)
}

/// The basis of a plan whose main kernel is this.
pub(super) fn basis(main: Option<&Image>, device: &DeviceProfile) -> Basis {
    let of_this_gpu = device.name == MEASURED_ON;
    // Of images with lists the rates are those of the images without.
    let has_lists = main.is_some_and(|image| image.features.contains(Features::BLOCKS));
    Basis {
        standing: match main.and_then(tflops) {
            None => Standing::Unknown,
            Some(_) if of_this_gpu && !has_lists => Standing::Measured,
            Some(_) => Standing::Modelled,
        },
        rates_of: MEASURED_ON.to_owned(),
        of_this_gpu,
        tuned: false,
    }
}

/// Expected GPU time of a step, in microseconds. `of_tiles`: CTAs that all of its tiles take, over those that the device holds at once.
pub(super) fn estimate_us(
    problem: &BackwardProblem,
    image: &Image,
    device: &DeviceProfile,
    rates: &Rates,
    of_tiles: f64,
) -> f64 {
    let (heads, (queries, keys)) = (problem.problem.heads(), problem.problem.typical_lengths());
    let [of_keys, of_values] = heads.dims();
    let head_dim = f64::from(image.tiling.head_dim);
    let sequences = problem.problem.typical_sequences() * heads.query as f64;
    let size = ElementType::size(problem.problem.element());
    let reads = |of_row: usize| {
        let bytes = sequences * (queries * of_row) as f64;
        rates.launch_us() + bytes / rates.bandwidth() * 1e-6
    };
    let products = match image.role {
        // The output and its gradient are read.
        Role::Prepass => return reads(2 * of_values * size),
        // Sums are read in f32, and gradients are written.
        Role::QuerySums => return reads(of_keys * (size_of::<f32>() + size)),
        // Numbers of rows are read.
        _ if !image.tiling.has_tiles() => return reads(2 * size_of::<f32>()),
        Role::AllGradients => 5.0,
        Role::BiasGradients => 2.0,
        Role::KeyGradients => 4.0,
        _ => 3.0,
    };
    let visible = problem.problem.mask().visible_pairs(queries, keys) as f64;
    // The planner knows how many blocks a list has, or nothing.
    let lists = problem.problem.scoring().blocks;
    let listed = lists.and_then(|lists| Some(lists.blocks_of_a_row()? * lists.keys()));
    let pairs = sequences * visible.min(queries as f64 * listed.unwrap_or(keys) as f64);
    let us = 2.0 * products * head_dim * pairs / tflops_on(device, image) * 1e-6;
    // Tiles that do not fill the device leave a part of it idle.
    rates.launch_us() + us / of_tiles.clamp(f64::EPSILON, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use crate::plan::{Choice, Planner, Step};
    use crate::spec::{Backward, Call};

    #[test]
    fn no_gpu_is_faster_than_its_peaks() {
        const ROWS: usize = 8192;
        for (dim, element) in [
            (64, ElementType::Bf16),
            (128, ElementType::F16),
            (256, ElementType::Bf16),
            (128, ElementType::F32),
        ] {
            let layout = Layout::bshd([1, ROWS, 16, dim]);
            let call = Call::builder(&layout, &layout, &layout, element)
                .build()
                .unwrap();
            let backward = Backward::builder(call).build().unwrap();
            let problem = BackwardProblem::of(&backward);
            for device in DeviceProfile::known() {
                let gpu = Gpu::of(&device).unwrap();
                let Ok(plan) = Planner::new(&device).plan_backward(problem, &Choice::Best) else {
                    // No kernel is compiled for 7.5 and bf16.
                    assert_eq!(device.major, 7, "{}", device.name);
                    continue;
                };
                let in_one_pass = |step: &Step| step.image.role == Role::AllGradients;
                let products = match plan.steps().iter().any(in_one_pass) {
                    true => 5.0,
                    false => 7.0,
                };
                let flops = products * 2.0 * (16 * dim) as f64 * (ROWS as f64).powi(2);
                let tflops = flops / plan.estimate_us() * 1e-6;
                let peak = match element {
                    ElementType::F32 => gpu.vector_tflops(),
                    _ => gpu.tensor_tflops(device.major == 9),
                };
                assert!(tflops < peak, "{}: {tflops} of {peak}", device.name);
                assert!(tflops > 0.1 * peak, "{}: {tflops} of {peak}", device.name);
            }
        }
    }
}
