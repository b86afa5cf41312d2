//! A call that is ready to be launched, again and again, with other addresses or the same.

use std::sync::{Arc, Mutex};

use warptile_driver::{CaptureId, DevicePointer, Stream};

use crate::call::Call;
use crate::error::Result;
use crate::gpu::arguments::{Addresses, Argument};
use crate::gpu::bindings::Bindings;
use crate::gpu::kernel::Block;
use crate::gpu::lock;
use crate::gpu::memory::Expected;
use crate::gpu::prepared::Prepared;
use crate::gpu::recent::Recent;
use crate::gpu::slots::expected;
use crate::gpu::workspace::workspace_of;
use crate::plan::LaunchShape;

/// What launches of one call have in common, whatever their addresses.
#[derive(Debug)]
pub(super) struct Outline {
    pub(super) expected: [Expected; Argument::COUNT],
    /// Of each step of the plan.
    pub(super) shapes: Vec<LaunchShape>,
}

impl Outline {
    /// `call` is one of the problem that was prepared.
    pub(super) fn of(prepared: &Prepared, call: &Call) -> Result<Self> {
        let steps = prepared.plan().steps();
        Ok(Outline {
            expected: expected(call, prepared.plan().needs_alignment()),
            shapes: steps
                .iter()
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

/// The blocks of a launch by its addresses and its workspace.
type Blocks = Recent<(Addresses, DevicePointer), Arc<[Block]>>;

/// A call without lists on the host, with its problem prepared. What launches of it repeat is worked out once, and the blocks that it
/// was launched with last are kept: a call costs the host most of its time before the kernel starts, and tensor maps are made by the
/// driver.
#[derive(Debug)]
pub(crate) struct Ready {
    call: Call,
    prepared: Prepared,
    outline: Outline,
    blocks: Mutex<Blocks>,
}

impl Ready {
    pub(super) fn new(call: Call, prepared: Prepared) -> Result<Self> {
        Ok(Ready {
            outline: Outline::of(&prepared, &call)?,
            call,
            prepared,
            blocks: Mutex::default(),
        })
    }

    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    pub(crate) fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// As [`Prepared::launch`] of the call.
    pub(crate) fn launch(&self, stream: &Stream, bindings: &Bindings<'_>) -> Result<()> {
        let (prepared, outline) = (&self.prepared, &self.outline);
        prepared.launch_outlined(
            stream,
            &self.call,
            outline,
            bindings,
            |addresses, workspace| {
                let key = (*addresses, workspace);
                let known = lock(&self.blocks).find(|known| *known == key);
                if let Some(blocks) = known {
                    return Ok(blocks);
                }
                addresses.check(&outline.expected)?;
                let blocks: Arc<[Block]> = prepared
                    .blocks(&self.call, outline, addresses, workspace)?
                    .into();
                lock(&self.blocks).keep(key, blocks.clone());
                Ok(blocks)
            },
        )
    }
}
