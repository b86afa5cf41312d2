//! Views of device memory: what can be checked of them before a launch, and the order of their streams.

use std::any::Any;
use std::sync::Arc;

use warptile_driver::{CaptureId, Context, DeviceSlice, Stream};

use crate::spec::{Error, Expected, Result};

/// A view for each slot that has one.
pub(crate) type Views<'a> = [Option<DeviceSlice<'a, u8>>];

/// Checks everything of views that can be known before a launch, and gives their addresses, 0 where there is none.
pub(crate) fn check_views(
    expected: &[Expected],
    views: &Views<'_>,
    context: &Context,
    addresses: &mut [u64],
) -> Result<()> {
    for ((view, slot), address) in views.iter().zip(expected).zip(addresses) {
        *address = 0;
        let Some(view) = view else { continue };
        if !view.stream().context().is_same(context) {
            return Err(Error::DeviceMismatch {
                argument: slot.name,
                expected: place(context),
                found: place(view.stream().context()),
            });
        }
        let (needed, available) = (slot.bytes.reach(), view.len() as u64);
        if slot.wanted && available < needed {
            return Err(Error::BufferTooSmall {
                argument: slot.name,
                needed: (needed / slot.size) as usize,
                available: (available / slot.size) as usize,
            });
        }
        *address = view.pointer();
    }
    // A buffer without elements has no address; that it is there counts.
    for (view, slot) in views.iter().zip(expected) {
        if slot.wanted && view.is_none() && !slot.on_host {
            return Err(Error::Presence {
                argument: slot.name,
                rule: "is missing, but the call needs it",
            });
        }
        if slot.on_host && view.is_some() {
            return Err(Error::Presence {
                argument: slot.name,
                rule: "is given on the device, but the call has it on the host",
            });
        }
    }
    Ok(())
}

/// A device in words.
pub(crate) fn place(context: &Context) -> String {
    format!("cuda:{}", context.device().ordinal())
}

/// Refuses a stream of another context than the kernels were loaded in.
pub(crate) fn check_stream(stream: &Stream, context: &Context) -> Result<()> {
    match stream.context().is_same(context) {
        true => Ok(()),
        false => Err(Error::DeviceMismatch {
            argument: "stream",
            expected: place(context),
            found: place(stream.context()),
        }),
    }
}

/// Has `submit` queue its launches on `stream` after whatever the views' own streams have queued so far, and what they queue
/// later after the launches. In a capture the graph keeps the views' memory instead, and orders the streams at each launch.
pub(crate) fn submit_in_order(
    stream: &Stream,
    capture: Option<CaptureId>,
    views: &Views<'_>,
    submit: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if let Some(capture) = capture {
        for view in views.iter().flatten() {
            let owner: Arc<dyn Any + Send + Sync> = view.owner();
            stream.keep_in(capture, owner);
        }
    }
    let homes = || views.iter().flatten().map(DeviceSlice::stream);
    stream.order_after(homes())?;
    let submitted = submit();
    // Also after an error: an earlier launch may be queued.
    let ordered = stream.order_before(homes());
    submitted.and(ordered.map_err(Error::from))
}
