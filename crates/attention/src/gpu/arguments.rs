//! The buffers of a launch, held against the problem.

use warptile_driver::{DeviceSlice, DeviceSliceMut, Stream};

use crate::{Element, Error, Problem, Result};

/// The buffers of one launch. Each must reach as far as its layout in the [`Problem`] does.
#[derive(Debug)]
#[non_exhaustive]
pub struct Arguments<'a, T: Element> {
    /// Queries.
    pub q: DeviceSlice<'a, T>,
    /// Keys.
    pub k: DeviceSlice<'a, T>,
    /// Values.
    pub v: DeviceSlice<'a, T>,
    /// Receives the output; gaps between strided rows are left alone.
    pub out: DeviceSliceMut<'a, T>,
    /// Receives the lse, `[batch, heads, length]`; needed if the problem wants it.
    pub lse: Option<DeviceSliceMut<'a, f32>>,
    /// ALiBi slopes; needed if the problem has them.
    pub alibi_slopes: Option<DeviceSlice<'a, f32>>,
}

impl<'a, T: Element> Arguments<'a, T> {
    /// Without lse and slopes, which can be set afterwards.
    #[must_use]
    pub fn new(
        q: DeviceSlice<'a, T>,
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        out: DeviceSliceMut<'a, T>,
    ) -> Self {
        Arguments {
            q,
            k,
            v,
            out,
            lse: None,
            alibi_slopes: None,
        }
    }

    /// With a buffer for the lse.
    #[must_use]
    pub fn with_lse(mut self, lse: DeviceSliceMut<'a, f32>) -> Self {
        self.lse = Some(lse);
        self
    }

    /// With ALiBi slopes.
    #[must_use]
    pub fn with_alibi_slopes(mut self, slopes: DeviceSlice<'a, f32>) -> Self {
        self.alibi_slopes = Some(slopes);
        self
    }
}

impl<T: Element> Arguments<'_, T> {
    /// Holds the buffers against the problem.
    ///
    /// `needs_alignment`: the kernel moves 16 bytes at a time and takes no other addresses.
    pub(super) fn check(&self, problem: &Problem, needs_alignment: bool) -> Result<()> {
        if T::TYPE != problem.element() {
            return Err(Error::ElementMismatch {
                argument: "q",
                expected: problem.element(),
                found: T::TYPE,
            });
        }
        let reach = |layout: &crate::Layout| layout.required_len().unwrap_or(usize::MAX);
        let inputs = [
            ("q", &self.q, reach(problem.q())),
            ("k", &self.k, reach(problem.k())),
            ("v", &self.v, reach(problem.v())),
        ];
        for (argument, buffer, needed) in inputs {
            expect_len(argument, needed, buffer.len())?;
        }
        let out_len = reach(problem.out());
        expect_len("out", out_len, self.out.len())?;
        expect_presence("lse", problem.wants_lse(), self.lse.is_some())?;
        if let Some(lse) = &self.lse {
            expect_len("lse", problem.lse_len(), lse.len())?;
        }
        expect_presence(
            "alibi_slopes",
            problem.alibi().is_some(),
            self.alibi_slopes.is_some(),
        )?;
        if let Some(slopes) = &self.alibi_slopes {
            expect_len("alibi_slopes", problem.alibi_len(), slopes.len())?;
        }

        // A borrowed foreign pointer can alias in ways Rust doesn't see.
        let bytes = |pointer: u64, len: usize| pointer..pointer + (len * size_of::<T>()) as u64;
        let out = bytes(self.out.pointer(), out_len);
        for (_, buffer, needed) in inputs {
            let input = bytes(buffer.pointer(), needed);
            if out.start < input.end && input.start < out.end {
                return Err(Error::OutputOverlaps {
                    argument: "out",
                    reason: "its memory is also an input's",
                });
            }
        }
        let addresses = inputs
            .iter()
            .map(|(argument, buffer, _)| (*argument, buffer.pointer()));
        for (argument, address) in addresses.chain([("out", self.out.pointer())]) {
            if needs_alignment && !address.is_multiple_of(16) {
                return Err(Error::Misaligned { argument, address });
            }
        }
        Ok(())
    }

    /// Makes a graph that `stream` may be capturing hold on to the buffers.
    pub(super) fn keep_for_graph(&self, stream: &Stream) -> Result<()> {
        for buffer in [&self.q, &self.k, &self.v] {
            stream.keep_for_graph(buffer.owner())?;
        }
        stream.keep_for_graph(self.out.owner())?;
        if let Some(lse) = &self.lse {
            stream.keep_for_graph(lse.owner())?;
        }
        if let Some(slopes) = &self.alibi_slopes {
            stream.keep_for_graph(slopes.owner())?;
        }
        Ok(())
    }

    /// The streams, other than `stream`, that the buffers belong to.
    pub(super) fn streams_beside(&self, stream: &Stream) -> Vec<Stream> {
        let lse = self.lse.as_ref().map(DeviceSliceMut::stream);
        let slopes = self.alibi_slopes.as_ref().map(DeviceSlice::stream);
        let all = [
            self.q.stream(),
            self.k.stream(),
            self.v.stream(),
            self.out.stream(),
        ];
        let mut others: Vec<Stream> = Vec::new();
        for other in all.into_iter().chain(lse).chain(slopes) {
            if !other.is_same(stream) && others.iter().all(|seen| !seen.is_same(other)) {
                others.push(other.clone());
            }
        }
        others
    }
}

fn expect_len(argument: &'static str, needed: usize, available: usize) -> Result<()> {
    if available < needed {
        return Err(Error::BufferTooSmall {
            argument,
            needed,
            available,
        });
    }
    Ok(())
}

fn expect_presence(argument: &'static str, wanted: bool, given: bool) -> Result<()> {
    match (wanted, given) {
        (true, false) => Err(Error::Presence {
            argument,
            rule: "is missing, but the problem asks for it",
        }),
        (false, true) => Err(Error::Presence {
            argument,
            rule: "is given, but the problem was built without it",
        }),
        _ => Ok(()),
    }
}
