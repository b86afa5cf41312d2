//! Memory that a launch needs beside its tensors, one for each thing that can run by itself.

use warptile_driver::{CaptureId, DevicePointer, Scratch, Stream};

use crate::error::Result;
use crate::plan::{LaunchShape, Scratch as Needed};

/// The scratch memory of one stream, or of one capture on one stream: zeroed once, and its counters left at zero by every launch.
///
/// Two launches that may overlap never share one, because the only way to get one is from the stream that will run the launch:
/// the launches of a stream run one after the other, and so do those of a graph. What CTAs that share keys leave there takes
/// megabytes, so a stream has that workspace only if it runs such launches.
#[derive(Debug)]
struct Workspace<const SHARED_KEYS: bool> {
    memory: Scratch,
}

impl<const SHARED_KEYS: bool> Workspace<SHARED_KEYS> {
    fn of(stream: &Stream, capture: Option<CaptureId>) -> Result<DevicePointer> {
        let make = || {
            let needed = match SHARED_KEYS {
                true => Needed::most(),
                false => Needed::counter(),
            };
            let memory = Scratch::zeroed(stream.context(), needed.bytes)?;
            Ok(Self { memory })
        };
        // The stream or the capture keeps it.
        let workspace = match capture {
            Some(capture) => stream.attached_in(capture, make),
            None => stream.attached(make),
        };
        workspace.map(|workspace| workspace.memory.pointer())
    }
}

/// The workspace of what `stream` runs now: of its eager launches, or of the capture it is in; 0 if no launch needs one.
pub(super) fn workspace_of(
    stream: &Stream,
    capture: Option<CaptureId>,
    launches: &[LaunchShape],
) -> Result<DevicePointer> {
    if launches.iter().any(|launch| launch.shares_keys) {
        Workspace::<true>::of(stream, capture)
    } else if launches.iter().any(LaunchShape::needs_workspace) {
        Workspace::<false>::of(stream, capture)
    } else {
        Ok(0)
    }
}
