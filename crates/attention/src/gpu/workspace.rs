//! Memory that a launch needs beside its tensors, one for each thing that can run by itself.

use std::sync::Arc;

use warptile_driver::{CaptureId, DevicePointer, Scratch, Stream};

use crate::error::Result;
use crate::plan::Scratch as Needed;

/// The scratch memory of one stream, or of one capture on one stream: zeroed once, and left at zero by every launch.
///
/// Two launches that may overlap never share one, because the only way to get one is from the stream that will run the launch:
/// the launches of a stream run one after the other, and so do those of a graph.
#[derive(Debug)]
pub(super) struct Workspace {
    memory: Scratch,
}

impl Workspace {
    /// The workspace of what `stream` runs now: of its eager launches, or of the capture it is in.
    pub(super) fn of(stream: &Stream, capture: Option<CaptureId>) -> Result<Arc<Self>> {
        let make = || {
            let memory = Scratch::zeroed(stream.context(), Needed::most().bytes)?;
            Ok(Workspace { memory })
        };
        match capture {
            Some(capture) => stream.attached_in(capture, make),
            None => stream.attached(make),
        }
    }

    /// Where persistent kernels draw their tiles from.
    pub(super) fn counter(&self) -> DevicePointer {
        self.memory.pointer()
    }
}
