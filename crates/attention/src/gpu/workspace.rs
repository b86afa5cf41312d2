//! Memory that a launch needs in addition to its tensors, one for each thing that can run by itself.

use std::sync::{Mutex, PoisonError};

use warptile_driver::{CaptureId, DevicePointer, Scratch, Stream};

use crate::error::Result;
use crate::plan::{LaunchShape, Scratch as Needed};

/// The scratch memory of one stream, or of one capture on one stream: zeroed once, and its counters left at zero by every launch.
///
/// Two launches that may overlap never share one, because the only way to get one is from the stream that will run the launch:
/// the launches of a stream run one after the other, and so do those of a graph. What CTAs that share keys leave there takes
/// megabytes, so a stream has that workspace only if it runs such launches.
#[derive(Debug, Default)]
struct Workspace<const SHARED_KEYS: bool> {
    /// The last block is the largest. Sizes grow in powers of two, so the others together are not larger. Launches that were submitted
    /// before, and replays of a graph, use the others, so they stay.
    blocks: Mutex<Vec<Scratch>>,
}

impl<const SHARED_KEYS: bool> Workspace<SHARED_KEYS> {
    /// A workspace of at least this many bytes.
    fn of(stream: &Stream, capture: Option<CaptureId>, bytes: usize) -> Result<DevicePointer> {
        // The stream or the capture keeps it.
        let make = || Ok::<_, crate::error::Error>(Self::default());
        let workspace = match capture {
            Some(capture) => stream.attached_in(capture, make),
            None => stream.attached(make),
        }?;
        // A panic leaves the list as it was.
        let blocks = workspace.blocks.lock();
        let mut blocks = blocks.unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = blocks.last()
            && last.byte_len() >= bytes
        {
            return Ok(last.pointer());
        }
        let least = match SHARED_KEYS {
            true => Needed::of_even_splits(),
            false => Needed::counter(),
        };
        // If the next power of two overflows, the allocation fails in the driver anyway.
        let grown = bytes.checked_next_power_of_two().unwrap_or(bytes);
        let block = Scratch::zeroed(stream.context(), grown.max(least.bytes))?;
        let pointer = block.pointer();
        blocks.push(block);
        Ok(pointer)
    }
}

/// The workspace of what `stream` runs now: of its eager launches, or of the capture it is in; 0 if no launch needs one.
pub(super) fn workspace_of(
    stream: &Stream,
    capture: Option<CaptureId>,
    launches: &[LaunchShape],
) -> Result<DevicePointer> {
    let sizes = launches.iter().map(|launch| launch.workspace_bytes);
    match sizes.max().unwrap_or(0) {
        0 => Ok(0),
        bytes if launches.iter().any(|launch| launch.shares_keys) => {
            Workspace::<true>::of(stream, capture, bytes)
        }
        bytes => Workspace::<false>::of(stream, capture, bytes),
    }
}
