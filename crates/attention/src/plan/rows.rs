//! Operations that work row by row, without a choice among kernels: merges and cache writes.

use std::cmp::Reverse;
use std::fmt;

use warptile_kernels::{Role, Types, images_for};

use crate::error::{Error, Result};
use crate::plan::planner::{check_images, preference, problem_on};
use crate::plan::{DeviceProfile, LaunchShape, MAX_TILES, Plan, Step};

/// The problem of an operation that works row by row: there is one kernel for each role and its element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RowProblem {
    /// The role of the kernel.
    pub role: Role,
    /// Element types; those of keys and values are the types of a cache.
    pub types: Types,
}

impl RowProblem {
    pub(crate) fn new(role: Role, types: impl Into<Types>) -> Self {
        let types = types.into();
        RowProblem { role, types }
    }
}

impl fmt::Display for RowProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowProblem { role, types } = self;
        match types.scaled() {
            Some(cache) => write!(f, "{role} of {} in {cache}", types.q),
            None => write!(f, "{role} in {}", types.q),
        }
    }
}

impl Plan<RowProblem> {
    /// The image for a device: machine code made for it before PTX, as the planner has it.
    pub(crate) fn of_rows(problem: RowProblem, device: &DeviceProfile) -> Result<Self> {
        let images = images_for(problem.role);
        check_images(device, images.clone())?;
        let image = images
            .filter(|image| image.types() == problem.types)
            .filter(|image| image.target.runs_on(device.major, device.minor))
            .min_by_key(|image| Reverse(preference(image.target)))
            .ok_or_else(|| Error::NoKernel {
                problem: problem_on(&problem, device),
                considered: Vec::new(),
            })?;
        let step = Step::new(image, device, 0.0);
        let device = Some(device.clone());
        Ok(Plan::new(problem, device, vec![step], Vec::new(), None))
    }
}

impl Step {
    /// The launch for this many rows, each of them the work of this many threads: CTAs share a row, and none has two.
    ///
    /// # Errors
    /// [`Error::Grid`] for more CTAs than a launch can have, or more threads of a row than the kernels can count.
    pub(crate) fn shape_of_rows(
        &self,
        rows: usize,
        threads_of_a_row: usize,
    ) -> Result<LaunchShape> {
        let threads = u64::from(self.threads());
        let of_a_row = (threads_of_a_row as u64).div_ceil(threads);
        let ctas = match of_a_row.checked_mul(threads) {
            Some(lanes) if lanes <= i32::MAX as u64 => of_a_row.saturating_mul(rows as u64),
            _ => u64::MAX,
        };
        if ctas > MAX_TILES {
            let limit = MAX_TILES;
            return Err(Error::Grid { ctas, limit });
        }
        Ok(LaunchShape {
            grid: ctas as u32,
            tiles: rows.min(ctas as usize) as u32,
            query_tiles: rows.min(ctas as usize) as u32,
            heads_at_once: 1,
            side_by_side: 1,
            draws_tiles: false,
            shares_keys: false,
            splits: 1,
            workspace_bytes: 0,
        })
    }
}

impl LaunchShape {
    /// CTAs that share a row, of an operation that works row by row.
    pub(crate) const fn ctas_of_row(&self) -> u32 {
        match self.tiles {
            0 => 0,
            rows => self.grid / rows,
        }
    }
}
