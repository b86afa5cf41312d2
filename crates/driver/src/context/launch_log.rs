//! The latest launches, for naming suspects.

use std::collections::VecDeque;
use std::sync::Arc;

use warptile_cuda_sys::CUstream;

/// The last kernels launched, for naming suspects.
#[derive(Debug, Default)]
pub(crate) struct LaunchLog {
    entries: VecDeque<(CUstream, Arc<str>)>,
}

impl LaunchLog {
    /// Enough to name what a stream was doing; older launches are dropped from the log.
    const CAPACITY: usize = 16;

    pub(crate) fn note(&mut self, stream: CUstream, kernel: &Arc<str>) {
        let known = |(on, name): &(CUstream, Arc<str>)| *on == stream && Arc::ptr_eq(name, kernel);
        if self.entries.iter().any(known) {
            return;
        }
        if self.entries.len() == Self::CAPACITY {
            self.entries.pop_front();
        }
        self.entries.push_back((stream, kernel.clone()));
    }

    /// Kernels launched on the stream; if none is known, on any stream: an error shows wherever
    /// the next call happens to be.
    pub(super) fn suspects(&self, stream: Option<CUstream>) -> Vec<Arc<str>> {
        let on = |stream: Option<CUstream>| -> Vec<Arc<str>> {
            let mut names: Vec<Arc<str>> = Vec::new();
            for (at, name) in &self.entries {
                if stream.is_none_or(|stream| stream == *at) && !names.contains(name) {
                    names.push(name.clone());
                }
            }
            names
        };
        let names = on(stream);
        if names.is_empty() { on(None) } else { names }
    }

    pub(super) fn forget(&mut self, stream: Option<CUstream>) {
        self.entries
            .retain(|(at, _)| stream.is_some_and(|stream| stream != *at));
    }
}
