//! The machine and time of a result.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use warptile::Backend;
use warptile_driver::Driver;

/// The part of every JSON record that says where it comes from.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Machine {
    /// `cpu`, or the GPU's name.
    pub(crate) device: String,
    /// The CUDA version of the driver, such as `CUDA 13.0`; `none` for the CPU.
    pub(crate) driver: String,
    /// Version and commit of the program.
    pub(crate) program: &'static str,
    /// Day and time in UTC, such as `2026-11-21T06:29:07Z`.
    pub(crate) date: String,
}

/// Describes the machine behind `backend`.
pub(crate) fn describe(backend: &Backend) -> Machine {
    let driver = Driver::load().map(|driver| format!("CUDA {}", driver.version()));
    Machine {
        device: if backend.is_gpu() {
            backend.device_name().to_owned()
        } else {
            "cpu".into()
        },
        driver: match driver {
            Ok(driver) if backend.is_gpu() => driver,
            _ => "none".into(),
        },
        program: PROGRAM,
        date: utc(SystemTime::now()),
    }
}

/// Version and commit of the program.
pub(crate) const PROGRAM: &str = concat!(
    "warptile ",
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("WARPTILE_BUILT_FROM"),
    ")"
);

/// Threads the CPU path uses.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// ISO 8601, to the second.
pub(crate) fn utc(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(day);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Year, month and day of a day counted from 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
/// Years are taken to begin in March, so that the leap day comes last.
fn civil(day: u64) -> (u64, u64, u64) {
    /// Days from 0000-03-01 to 1970-01-01.
    const EPOCH: u64 = 719_468;
    /// Days in 400 years, after which the calendar repeats.
    const ERA: u64 = 146_097;
    let day = day + EPOCH;
    let day_of_era = day % ERA;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = day / ERA * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_year - (153 * march_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
        assert_eq!(
            utc(UNIX_EPOCH - Duration::from_secs(1)),
            "1970-01-01T00:00:00Z"
        );
    }
}
