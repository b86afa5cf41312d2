//! Everything about a launch except its addresses.

use warptile_driver::{CaptureId, DevicePointer, Stream};
use warptile_kernels::Slots;

use crate::gpu::prepared::host_numbers;
use crate::gpu::workspace::workspace_of;
use crate::plan::{LaunchShape, Plan};
use crate::spec::slots::expected;
use crate::spec::{Call, Expected, Result};

/// What launches of one call have in common, whatever their addresses.
#[derive(Debug)]
pub(super) struct Outline {
    pub(super) expected: Slots<Expected>,
    /// Whether there are numbers of lengths or pages in host memory.
    pub(super) has_host_numbers: bool,
    /// Of each step of the plan.
    pub(super) shapes: Vec<LaunchShape>,
}

impl Outline {
    /// `call` is one of the problem that was planned.
    pub(super) fn of(plan: &Plan, call: &Call) -> Result<Self> {
        Ok(Outline {
            expected: expected(call, plan.needs_alignment()),
            has_host_numbers: host_numbers(call).any(|(_, list)| !list.is_empty()),
            shapes: { plan.steps().iter() }
                .map(|step| step.shape(call))
                .collect::<Result<_>>()?,
        })
    }

    /// Whether there are no query rows, and so nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.shapes.iter().all(|shape| shape.grid == 0)
    }

    /// Memory for the launches that `stream` runs now.
    pub(super) fn workspace(
        &self,
        stream: &Stream,
        capture: Option<CaptureId>,
    ) -> Result<DevicePointer> {
        workspace_of(stream, capture, &self.shapes)
    }
}
