//! The calls made last, ready to be made again.

use std::sync::Arc;

use warptile_driver::{DeviceBuffer, DeviceSlice, Stream};

use crate::gpu::arguments::Arguments;
use crate::gpu::launcher::Launcher;
use crate::{Element, Plan, Problem, Result};

/// A call at the level of tensors, but for the tensors: planned, and with what it needs on the device besides them.
///
/// All its launches go to one stream, which runs them one after the other, so any number of threads may share it.
#[derive(Debug)]
pub(crate) struct PreparedCall {
    plan: Plan,
    launcher: Launcher,
    /// The kernel asked for by name.
    kernel: Option<String>,
    slopes: Option<Slopes>,
}

/// ALiBi slopes on both sides; the device only reads them.
#[derive(Debug)]
struct Slopes {
    values: Vec<f32>,
    on_device: DeviceBuffer<f32>,
}

impl PreparedCall {
    pub(super) fn new(
        plan: Plan,
        launcher: Launcher,
        kernel: Option<&str>,
        slopes: Option<&[f32]>,
    ) -> Result<Self> {
        let upload = |values: &[f32], stream: &Stream| -> Result<Slopes> {
            Ok(Slopes {
                values: values.to_vec(),
                on_device: DeviceBuffer::from_slice(stream, values)?,
            })
        };
        Ok(PreparedCall {
            slopes: slopes
                .map(|values| upload(values, launcher.stream()))
                .transpose()?,
            kernel: kernel.map(str::to_owned),
            plan,
            launcher,
        })
    }

    /// Whether this is the call for `problem` with these options. Compares all there is to compare, row offsets and slopes
    /// included.
    pub(super) fn is_for(
        &self,
        problem: &Problem,
        kernel: Option<&str>,
        slopes: Option<&[f32]>,
    ) -> bool {
        let known_slopes = self.slopes.as_ref().map(|slopes| slopes.values.as_slice());
        self.plan.problem() == problem && self.kernel.as_deref() == kernel && known_slopes == slopes
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The slopes, for [`Arguments`].
    pub(crate) fn slopes(&self) -> Option<DeviceSlice<'_, f32>> {
        self.slopes
            .as_ref()
            .map(|slopes| slopes.on_device.as_slice())
    }

    /// As [`Launcher::launch`].
    pub(crate) fn launch<T: Element>(&self, arguments: Arguments<'_, T>) -> Result<()> {
        self.launcher.submit(arguments)
    }
}

/// The values used last.
#[derive(Debug)]
pub(super) struct Recent<T> {
    /// The least recently used first.
    values: Vec<Arc<T>>,
}

impl<T> Recent<T> {
    /// More than the attention layers of a model tell apart, and few enough to look through.
    pub(super) const MOST: usize = 32;

    /// The value that `wanted` is true of; it counts as used now.
    pub(super) fn find(&mut self, wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let at = self.values.iter().rposition(|value| wanted(value))?;
        self.values[at..].rotate_left(1);
        self.values.last().cloned()
    }

    /// Adds a value and returns the one that had to make place.
    pub(super) fn keep(&mut self, value: Arc<T>) -> Option<Arc<T>> {
        let oldest = (self.values.len() == Self::MOST).then(|| self.values.remove(0));
        self.values.push(value);
        oldest
    }
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent { values: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_makes_place() {
        let mut recent = Recent::default();
        for value in 0..Recent::<usize>::MOST {
            assert_eq!(recent.keep(Arc::new(value)), None);
        }
        assert_eq!(recent.find(|&value| value == 0).as_deref(), Some(&0));
        assert_eq!(recent.keep(Arc::new(100)).as_deref(), Some(&1));
        assert_eq!(recent.keep(Arc::new(101)).as_deref(), Some(&2));
        assert_eq!(recent.find(|&value| value == 1), None);
        for value in [0, 3, 100, 101] {
            assert_eq!(
                recent.find(|&known| known == value).as_deref(),
                Some(&value)
            );
        }
        assert_eq!(recent.values.len(), Recent::<usize>::MOST);
    }
}
