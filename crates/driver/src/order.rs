//! Ordering a launch with the streams that its buffers belong to.

use crate::error::{DriverError, Result};
use crate::event::Event;
use crate::stream::{Status, Stream};

/// The ways of ordering two streams.
enum Way {
    /// An event.
    Event,
    /// Nothing now: one is in a capture, and each launch of its graph is ordered.
    AtLaunch,
}

/// How `stream` is ordered with `other`.
fn way(stream: &Stream, other: &Stream) -> Result<Way> {
    match (stream.status()?, other.status()?) {
        (Status::Free, Status::Free) => Ok(Way::Event),
        (Status::In(one), Status::In(same)) if one == same => Ok(Way::Event),
        (Status::In(_), Status::Free) => Ok(Way::AtLaunch),
        _ => Err(DriverError::Capturing {
            operation: "ordering a stream with one of another capture",
        }),
    }
}

impl Stream {
    /// Makes what is queued here from now on wait for what is queued on all of `others` so far: to
    /// be called before a launch that uses their buffers. Returns at the first error, when nothing
    /// has been launched yet.
    ///
    /// Where this stream is in a capture, streams outside of it are left alone: a
    /// [`Graph`](crate::Graph) is ordered at each launch with the streams of the buffers it keeps.
    ///
    /// # Errors
    /// [`DriverError::Capturing`] if one of the others is in a capture that this stream is not in,
    /// or what the driver reports.
    pub fn order_after<'a>(&self, others: impl IntoIterator<Item = &'a Stream>) -> Result<()> {
        for other in self.distinct(others) {
            if let Way::Event = way(self, other)? {
                self.wait_for(other)?;
            }
        }
        Ok(())
    }

    /// Makes what is queued on any of `others` from now on wait for what is queued here so far: to
    /// be called after a launch that uses their buffers, whose memory they may free next.
    ///
    /// It orders all of them even if calls fail: where events fail it waits for this stream, and where that fails,
    /// too, no memory of the context is freed before the device is known to be idle. The first error is reported at
    /// the end.
    ///
    /// # Errors
    /// As [`Stream::order_after`].
    pub fn order_before<'a>(&self, others: impl IntoIterator<Item = &'a Stream>) -> Result<()> {
        let mut marked: Option<Result<Event>> = None;
        let mut first = Ok(());
        for other in self.distinct(others) {
            let ordered = way(self, other).and_then(|way| match way {
                Way::AtLaunch => Ok(()),
                Way::Event => match marked.get_or_insert_with(|| self.mark()) {
                    Ok(event) => other.wait(event),
                    Err(error) => Err(error.clone()),
                },
            });
            if let Err(error) = ordered {
                if first.is_ok() {
                    // Once everything here is done, the others come after it, too.
                    self.wait_out();
                }
                first = first.and(Err(error));
            }
        }
        first
    }

    /// An event at the present end of the stream.
    pub(crate) fn mark(&self) -> Result<Event> {
        let event = Event::new(self.context())?;
        self.record(&event)?;
        Ok(event)
    }

    /// Each of `others` once, without this stream.
    fn distinct<'a>(&self, others: impl IntoIterator<Item = &'a Stream>) -> Vec<&'a Stream> {
        let mut distinct: Vec<&Stream> = Vec::new();
        for other in others {
            if !self.is_same(other) && !distinct.iter().any(|seen| seen.is_same(other)) {
                distinct.push(other);
            }
        }
        distinct
    }
}
