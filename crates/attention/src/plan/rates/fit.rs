//! Rates from measured times.

use warptile_kernels::Image;

use super::{Rate, Rates, Speed};
use crate::plan::{DeviceProfile, Step};
use crate::spec::Problem;

/// The GPU time of one launch of a kernel, cold, as it was measured.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Timed {
    problem: Problem,
    image: &'static Image,
    ctas_per_multiprocessor: u32,
    microseconds: f64,
}

impl Timed {
    /// A step of a problem's plan, which took this many microseconds.
    pub fn new(problem: Problem, step: &Step, microseconds: f64) -> Self {
        Timed {
            problem,
            image: step.image,
            ctas_per_multiprocessor: step.ctas_per_multiprocessor,
            microseconds,
        }
    }
}

/// With fewer problems than this the end of a tile can't be told from the speed.
const LEAST_PROBLEMS: usize = 3;

/// Up to which end of a tile is looked for, in blocks of keys.
const LONGEST_TILE_END: u32 = 8;

/// The end of a tile of a kernel that was not measured, in blocks of keys: what most have.
const USUAL_TILE_END: f64 = 2.0;

impl Rates {
    /// The rates of a GPU from times that were measured on it. Kernels without measurements keep their rates of `self`, marked as modelled;
    /// if `self` is of another GPU, they are scaled by the ratio of the measured kernels. Choices for problems stay if `self` is of this GPU.
    ///
    /// The speed of a kernel is that at which the squares of the logarithms of estimated over measured times add up to the least.
    pub fn fitted(&self, device: &DeviceProfile, driver: &str, times: &[Timed]) -> Self {
        let same = self.device == device.name;
        let multiprocessors = f64::from(device.multiprocessors.max(1));
        let by_size = multiprocessors / f64::from(self.multiprocessors);
        let mut rates = Rates {
            device: device.name.clone(),
            driver: Some(driver.to_owned()),
            multiprocessors: device.multiprocessors.max(1),
            choices: match same {
                true => self.choices.clone(),
                false => Default::default(),
            },
            ..self.clone()
        };
        for rate in &mut rates.kernels {
            rate.modelled |= !same;
            rate.speed.tflops *= by_size;
        }
        let usable = |timed: &&Timed| {
            timed.microseconds.is_finite()
                && timed.microseconds > 0.0
                && timed.problem.splits().keys().is_none()
        };
        let mut kernels: Vec<&str> = times
            .iter()
            .filter(usable)
            .map(|t| t.image.kernel)
            .collect();
        kernels.sort_unstable();
        kernels.dedup();
        let mut factors = Vec::new();
        for kernel in kernels {
            let of_kernel: Vec<&Timed> = times
                .iter()
                .filter(|timed| timed.image.kernel == kernel)
                .filter(usable)
                .collect();
            let before = rates.rate(kernel).map(|rate| rate.speed);
            let speed = rates.speed_of(&of_kernel, before, device);
            factors.extend(before.map(|before| speed.tflops / before.tflops));
            let rate = Rate {
                kernel: kernel.to_owned(),
                speed,
                modelled: false,
            };
            match rates.kernels.iter_mut().find(|rate| rate.kernel == kernel) {
                Some(known) => *known = rate,
                None => rates.kernels.push(rate),
            }
        }
        if let (false, Some(factor)) = (same, median(factors)) {
            rates.bandwidth *= factor;
            for rate in rates.kernels.iter_mut().filter(|rate| rate.modelled) {
                rate.speed.tflops *= factor;
            }
        }
        for rate in &mut rates.kernels {
            // As many digits as mean something, for whoever reads the file.
            rate.speed.tflops = rounded(rate.speed.tflops);
            rate.speed.tile_end = rounded(rate.speed.tile_end);
        }
        rates.bandwidth = rounded(rates.bandwidth);
        rates
    }

    fn speed_of(&self, times: &[&Timed], before: Option<Speed>, device: &DeviceProfile) -> Speed {
        let usual = before.map_or(USUAL_TILE_END, |before| before.tile_end);
        let start_us = before.map_or(0.0, |before| before.start_us);
        if times.len() < LEAST_PROBLEMS {
            return self.best_speed(times, [usual], start_us, device);
        }
        let halves = (0..=2 * LONGEST_TILE_END).map(|halves| f64::from(halves) / 2.0);
        let best = self.best_speed(times, halves, start_us, device);
        // To a tenth of a block.
        let tenths = (-5..=5).map(|tenths| (best.tile_end + f64::from(tenths) / 10.0).max(0.0));
        self.best_speed(times, tenths, start_us, device)
    }

    /// The best with one of these ends of tiles.
    fn best_speed(
        &self,
        times: &[&Timed],
        tile_ends: impl IntoIterator<Item = f64>,
        start_us: f64,
        device: &DeviceProfile,
    ) -> Speed {
        let best = tile_ends.into_iter().map(|tile_end| {
            let error = |ln_tflops: f64| {
                let speed = Speed {
                    tflops: ln_tflops.exp(),
                    tile_end,
                    start_us,
                };
                let square = |timed: &&Timed| {
                    let estimate = self.estimate_at(
                        speed,
                        &timed.problem,
                        timed.image,
                        device,
                        timed.ctas_per_multiprocessor,
                    );
                    (estimate / timed.microseconds).ln().powi(2)
                };
                times.iter().map(square).sum::<f64>()
            };
            let ln_tflops = least(error);
            (
                error(ln_tflops),
                Speed {
                    tflops: ln_tflops.exp(),
                    tile_end,
                    start_us,
                },
            )
        });
        let best = best.min_by(|(a, _), (b, _)| a.total_cmp(b));
        best.map_or(
            Speed {
                tflops: 1.0,
                tile_end: USUAL_TILE_END,
                start_us,
            },
            |(_, speed)| speed,
        )
    }
}

/// Where a function of the logarithm of a speed in TFLOP/s, which falls and then rises, is least: by golden sections.
/// The lowest speed where several are as good: reading bounds a time from some speed on, and more says nothing.
fn least(of: impl Fn(f64) -> f64) -> f64 {
    const RATIO: f64 = 0.618_033_988_749_895;
    // From a megaflop to an exaflop per second; each step keeps 0.618 of it.
    let (mut low, mut high) = (1e-6_f64.ln(), 1e6_f64.ln());
    for _ in 0..45 {
        let (a, b) = (high - RATIO * (high - low), low + RATIO * (high - low));
        match of(a) <= of(b) {
            true => high = b,
            false => low = a,
        }
    }
    f64::midpoint(low, high)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// To four digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Choice, Planner, Standing};
    use crate::spec::{Call, ElementType, Layout};

    fn problem(len: usize) -> Problem {
        let layout = Layout::bshd([2, len, 8, 64]);
        let call = Call::builder(&layout, &layout, &layout, ElementType::F16);
        call.build().unwrap().problem()
    }

    /// The fit recovers the rates that times were computed from, for any initial rates.
    #[test]
    fn planted_wrong_rates_are_put_right() {
        let device = DeviceProfile::h200();
        let right = Rates::embedded(&device);
        let mut wrong = right.clone();
        for (index, rate) in wrong.kernels.iter_mut().enumerate() {
            rate.speed.tflops *= [0.05, 3.0, 20.0][index % 3];
            rate.speed.tile_end = (index % 5) as f64;
        }
        let mut times = Vec::new();
        for kernel in right.kernels.iter().map(|rate| rate.kernel.as_str()) {
            for len in [256, 512, 1024, 2048, 4096] {
                let choice = Choice::Kernel(kernel.to_owned());
                let planner = Planner::new(&device);
                if let Ok(plan) = planner.plan(problem(len), &choice) {
                    let step = &plan.steps()[0];
                    times.push(Timed::new(problem(len), step, step.estimate_us));
                }
            }
        }
        assert!(times.len() > 50);
        let fitted = wrong.fitted(&device, "CUDA 13.0", &times);
        assert_eq!(fitted.driver(), Some("CUDA 13.0"));
        for timed in &times {
            let kernel = timed.image.kernel;
            let (found, expected) = (fitted.rate(kernel).unwrap(), right.rate(kernel).unwrap());
            let ratio = found.speed.tflops / expected.speed.tflops;
            assert!((0.97..1.03).contains(&ratio), "{kernel}: {ratio}");
            assert_eq!(fitted.standing(&device, kernel), Standing::Measured);
        }
        for len in [256, 512, 1024, 2048, 4096] {
            let plan = |rates: &Rates| {
                let plan = Planner::new(&device)
                    .rates(rates)
                    .plan(problem(len), &Choice::Best);
                plan.unwrap().kernel_name()
            };
            assert_eq!(plan(&fitted), plan(right), "{len}");
        }
    }

    /// Reading takes the time here, however fast a kernel computes.
    #[test]
    fn times_that_speed_does_not_change_give_no_speed_out_of_this_world() {
        let mut device = DeviceProfile::h200();
        "NVIDIA H100".clone_into(&mut device.name);
        let (q, k) = (
            Layout::bshd([64, 1, 8, 128]),
            Layout::bshd([64, 4096, 8, 128]),
        );
        let call = Call::builder(&q, &k, &k, ElementType::Bf16);
        let problem = call.build().unwrap().problem();
        let plan = Planner::new(&device).plan(problem, &Choice::Best).unwrap();
        let step = &plan.steps()[0];
        let of_h200 = Rates::embedded(&device);
        let times = [Timed::new(problem, step, step.estimate_us)];
        let fitted = of_h200.fitted(&device, "CUDA 12.8", &times);
        let tflops = |rates: &Rates| rates.rate(step.image.kernel).unwrap().speed.tflops;
        assert!(tflops(&fitted) <= tflops(of_h200), "{}", tflops(&fitted));
    }

    #[test]
    fn what_another_gpu_lends_is_modelled_and_scaled() {
        let mut device = DeviceProfile::h200();
        "NVIDIA A100".clone_into(&mut device.name);
        (device.major, device.multiprocessors) = (8, 108);
        let of_h200 = Rates::embedded(&device);
        let kernel = "mma_d64_64x64_w4_s2";
        let plan = Planner::new(&device).plan(problem(2048), &Choice::Kernel(kernel.to_owned()));
        let plan = plan.unwrap();
        let step = &plan.steps()[0];
        // Half as fast as 108 multiprocessors of an H200 would be, launches aside.
        let held = step.ctas_per_multiprocessor;
        let estimate = of_h200.estimate_us(&problem(2048), step.image, &device, held);
        let slow = 2.0 * (estimate - of_h200.launch_us) + of_h200.launch_us;
        let fitted = of_h200.fitted(
            &device,
            "CUDA 12.8",
            &[Timed::new(problem(2048), step, slow)],
        );
        assert_eq!(fitted.standing(&device, kernel), Standing::Measured);
        let other = "mma_d96_128x32_w4_s4";
        assert_eq!(fitted.standing(&device, other), Standing::Modelled);
        assert_eq!(fitted.standing(&device, "mma_d64_new"), Standing::Unknown);
        assert_eq!(fitted.measured_kernels(), 1);
        for name in [kernel, other] {
            let ratio =
                fitted.rate(name).unwrap().speed.tflops / of_h200.rate(name).unwrap().speed.tflops;
            let expected = 0.5 * 108.0 / 132.0;
            assert!((ratio / expected - 1.0).abs() < 0.01, "{name}: {ratio}");
        }
    }
}
