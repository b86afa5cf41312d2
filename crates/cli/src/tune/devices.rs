//! `tune --devices`: the scheme and the sharding by which several devices are the fastest.

use std::io::Write;
use std::time::Duration;

use super::{Asked, TuneArgs, problems_of};
use crate::bench::Effort;
use crate::bench::devices::{OfDevices, Row};
use crate::failure::Failure;
use crate::text::say;
use crate::{cases, interrupt, json, progress};

/// How long each way to compute a problem is measured.
const EFFORT: Effort = Effort {
    samples: 20,
    time: Duration::from_millis(500),
    paced: false,
};

/// Runs the command.
pub(super) fn run(args: &TuneArgs, console: &mut dyn Write) -> Result<(), Failure> {
    let problems = problems_of(args, console)?;
    let ways = problems.iter().map(|one| args.several.ways(&one.case));
    let ways: Vec<_> = ways.collect::<Result<_, _>>()?;
    let Some(team) = args.several.open()? else {
        return Ok(());
    };
    interrupt::watch(&team.backends());
    let of_devices = OfDevices::new(&args.several, &team, EFFORT);
    let bar = progress::problems(problems.len() as u64);
    let mut rows: Vec<Row> = Vec::new();
    let part =
        |rows: &[Row], at_the_end| json::write_part(&args.json, problems.len(), rows, at_the_end);
    for (Asked { case, .. }, ways) in problems.iter().zip(&ways) {
        bar.suspend(|| say!(console, "problem  {}", cases::without_seed(case)))?;
        let before = rows.len();
        for way in ways {
            let row = match of_devices.row(case, way) {
                Err(Failure::Interrupted(_)) => break,
                row => row?,
            };
            bar.suspend(|| {
                say!(
                    console,
                    "way      scheme {}, sharding {}: {:.1} us, efficiency {:.2}",
                    row.scheme,
                    row.sharding,
                    row.median_us,
                    row.efficiency
                )
            })?;
            rows.push(row);
            part(&rows, false)?;
        }
        if interrupt::requested() {
            break;
        }
        let fastest = { rows[before..].iter() }.min_by(|a, b| a.median_us.total_cmp(&b.median_us));
        if let Some(row) = fastest {
            let (scheme, sharding) = (&row.scheme, &row.sharding);
            bar.suspend(|| say!(console, "fastest  scheme {scheme}, sharding {sharding}"))?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if interrupt::requested() {
        part(&rows, true)?;
        return Err(Failure::Interrupted(
            "cut short: Ctrl-C came before the last problem".into(),
        ));
    }
    json::write(&args.json, &rows)
}
