//! Memory that a launch needs beside its tensors, one for each thing that can run by itself.

use std::sync::Arc;

use warptile_driver::{DevicePointer, Stream};

use crate::error::Result;
use crate::plan::Scratch;

/// The scratch memory of one stream, or of one capture on one stream: zeroed once, and left at zero by every launch.
///
/// Two launches that may overlap never share one, because the only way to get one is from the stream that will run the launch:
/// the launches of a stream run one after the other, and so do those of a graph.
#[derive(Debug)]
pub(super) struct Workspace {
    memory: DevicePointer,
}

impl Workspace {
    /// The workspace of what `stream` runs now: of its eager launches, or of the capture it is in.
    pub(super) fn of(stream: &Stream) -> Result<Arc<Self>> {
        Ok(stream.attached(|| {
            let memory = stream.context().permanent_zeroed(Scratch::most().bytes)?;
            Ok(Workspace { memory })
        })?)
    }

    /// Where persistent kernels draw their tiles from.
    pub(super) fn counter(&self) -> DevicePointer {
        self.memory
    }
}
