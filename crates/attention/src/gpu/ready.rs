//! A call that is ready to be launched, again and again, with other addresses or the same.

use std::sync::{Arc, Mutex};

use warptile_driver::{DevicePointer, Stream};
use warptile_kernels::Slots;

use crate::gpu::bindings::Bindings;
use crate::gpu::kernel::Block;
use crate::gpu::outline::Outline;
use crate::gpu::prepared::Prepared;
use crate::recent::{Recent, lock};
use crate::spec::memory::check;
use crate::spec::{Call, Result};

/// The blocks of a launch by its addresses and its workspace.
type Blocks = Recent<(Slots<u64>, DevicePointer), Arc<[Block]>>;

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
            outline: Outline::of(prepared.plan(), &call)?,
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
                check(outline.expected.as_slice(), addresses.as_slice())?;
                let blocks: Arc<[Block]> = prepared
                    .blocks(&self.call, outline, addresses, workspace)?
                    .into();
                lock(&self.blocks).keep(key, blocks.clone());
                Ok(blocks)
            },
        )
    }
}
