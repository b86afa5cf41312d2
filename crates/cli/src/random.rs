//! Random numbers from a seed: the same integers on every machine and in every release. (Normal numbers go through the
//! system's `ln`, `sin` and `cos`, which may differ in the last bit.)

/// SplitMix64 (Steele, Lea and Flood, 2014): small, fast, and any seed is a good one.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..bound`; `bound` is at least 1.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The bias is below bound / 2^64.
        (u128::from(self.next()) * bound as u128 >> 64) as usize
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * f64::powi(2.0, -53)
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`, which is not empty.
    pub(crate) fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Between 1 and `most`, every order of magnitude as likely as the others.
    pub(crate) fn magnitude(&mut self, most: usize) -> usize {
        let value = (self.unit() * (most as f64 + 1.0).ln()).exp();
        (value as usize).clamp(1, most)
    }

    /// Two standard normal numbers, by the Box-Muller transform.
    pub(crate) fn normal_pair(&mut self) -> [f32; 2] {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.unit()).sin_cos();
        [(radius * cos) as f32, (radius * sin) as f32]
    }

    /// `count` normal numbers of the given standard deviation.
    pub(crate) fn normal(&mut self, count: usize, deviation: f32) -> impl Iterator<Item = f32> {
        (0..count.div_ceil(2))
            .flat_map(move |_| self.normal_pair())
            .take(count)
            .map(move |value| value * deviation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_splitmix64() {
        // The first outputs for seed 1234567, as published with the algorithm's reference implementation.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn normal_numbers_are_normal() {
        let values: Vec<f32> = Random::new(7).normal(100_001, 2.0).collect();
        assert_eq!(values.len(), 100_001);
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / 1e5;
        let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.03, "{mean}");
        assert!((variance - 4.0).abs() < 0.1, "{variance}");
    }

    #[test]
    fn ranges_hold() {
        let mut random = Random::new(3);
        for _ in 0..10_000 {
            assert!(random.below(7) < 7);
            assert!((1..=1000).contains(&random.magnitude(1000)));
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert_eq!(random.below(1), 0);
    }
}
