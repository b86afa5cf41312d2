//! Named views of device memory for one launch.

use std::any::Any;
use std::sync::Arc;

use warptile_driver::{Context, DeviceSlice, DeviceSliceMut, Stream};
use warptile_kernels::ElementType;

use crate::call::Call;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::gpu::slots::{Addresses, Expected, SLOTS};
use crate::operands::{LengthElement, Side, Table};

/// The memory of one launch: a view for every slot that the call needs, and for no other.
///
/// ```no_run
/// # use warptile::gpu::Bindings;
/// # use warptile::driver::DeviceBuffer;
/// # fn f(q: &DeviceBuffer<f32>, k: &DeviceBuffer<f32>, v: &DeviceBuffer<f32>, mut out: DeviceBuffer<f32>, mut lse: DeviceBuffer<f32>) {
/// let bindings = Bindings::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice_mut())
///     .lse(lse.as_slice_mut());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "bindings do nothing until they are launched with"]
pub struct Bindings<'a> {
    element: ElementType,
    slots: [Option<DeviceSlice<'a, u8>>; SLOTS],
    bias_element: Option<ElementType>,
}

macro_rules! slot {
    ($(#[$doc:meta])* $name:ident: $view:ty, $index:expr) => {
        $(#[$doc])*
        pub fn $name(mut self, view: $view) -> Self {
            self.slots[$index] = Some(view.into_bytes());
            self
        }
    };
}

macro_rules! lengths {
    ($(#[$doc:meta])* $name:ident, $index:expr) => {
        $(#[$doc])*
        pub fn $name<L: LengthElement>(mut self, view: DeviceSlice<'a, L>) -> Self {
            self.slots[$index] = Some(view.into_bytes());
            self
        }
    };
}

impl<'a> Bindings<'a> {
    /// Queries, keys, values, and where the output goes; gaps between its strided rows are left alone.
    pub fn new<T: Element>(
        q: DeviceSlice<'a, T>,
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        out: DeviceSliceMut<'a, T>,
    ) -> Self {
        let mut slots = [const { None }; SLOTS];
        slots[0] = Some(q.into_bytes());
        slots[1] = Some(k.into_bytes());
        slots[2] = Some(v.into_bytes());
        slots[3] = Some(out.into_bytes());
        Bindings {
            element: T::TYPE,
            slots,
            bias_element: None,
        }
    }

    slot! {
        /// Where the lse goes, `[batch, heads, length]`.
        lse: DeviceSliceMut<'a, f32>, 4
    }
    lengths! {
        /// Row offsets of packed queries, if the call says that they are on the device.
        query_offsets, 5
    }
    lengths! {
        /// Row offsets of packed keys and values, likewise.
        key_offsets, 6
    }
    lengths! {
        /// Used rows of each sequence's queries, likewise.
        query_lengths, 7
    }
    lengths! {
        /// Used rows of each sequence's keys and values, likewise.
        key_lengths, 8
    }

    lengths! {
        /// Numbers of the pages of keys and values, likewise.
        block_table, 13
    }

    /// The lengths and the table that a call at the user's level has on the device.
    pub(crate) fn device_lengths(
        mut self,
        queries: &Side<'a>,
        keys: &Side<'a>,
        table: Option<&Table<'a>>,
    ) -> Self {
        self.slots[5] = queries.device_offsets();
        self.slots[6] = keys.device_offsets();
        self.slots[7] = queries.device_used();
        self.slots[8] = keys.device_used();
        self.slots[13] = table.and_then(Table::on_device);
        self
    }

    slot! {
        /// ALiBi slopes.
        slopes: DeviceSlice<'a, f32>, 9
    }
    slot! {
        /// Sinks, one per query head.
        sinks: DeviceSlice<'a, f32>, 10
    }
    slot! {
        /// The key mask; 0 hides a key.
        key_mask: DeviceSlice<'a, u8>, 12
    }

    /// The additive bias.
    pub fn bias<T: Element>(mut self, view: DeviceSlice<'a, T>) -> Self {
        self.slots[11] = Some(view.into_bytes());
        self.bias_element = Some(T::TYPE);
        self
    }

    /// Checks everything that can be known before a launch, and gives the addresses.
    pub(super) fn check(
        &self,
        call: &Call,
        context: &Context,
        expected: &[Expected; SLOTS],
    ) -> Result<Addresses> {
        let elements = [("q", Some(self.element)), ("bias", self.bias_element)];
        for (argument, found) in elements {
            match found {
                Some(found) if found != call.element() => {
                    return Err(Error::ElementMismatch {
                        argument,
                        expected: call.element(),
                        found,
                    });
                }
                _ => {}
            }
        }
        let mut addresses = [0; SLOTS];
        for ((slot, expected), address) in self.slots.iter().zip(expected).zip(&mut addresses) {
            let Some(slot) = slot else { continue };
            if !slot.stream().context().is_same(context) {
                return Err(Error::DeviceMismatch {
                    argument: expected.name,
                    expected: place(context),
                    found: place(slot.stream().context()),
                });
            }
            let (needed, available) = (expected.bytes.reach(), slot.len() as u64);
            if expected.wanted && available < needed {
                let size = element_size(expected, call);
                return Err(Error::BufferTooSmall {
                    argument: expected.name,
                    needed: (needed / size) as usize,
                    available: (available / size) as usize,
                });
            }
            *address = slot.pointer();
        }
        // A buffer without elements has no address; that it is there counts.
        for (slot, expected) in self.slots.iter().zip(expected) {
            if expected.wanted && slot.is_none() && !on_host(call, expected.name) {
                return Err(Error::Presence {
                    argument: expected.name,
                    rule: "is missing, but the call needs it",
                });
            }
            if on_host(call, expected.name) && slot.is_some() {
                return Err(Error::Presence {
                    argument: expected.name,
                    rule: "is given on the device, but the call has it on the host",
                });
            }
        }
        Ok(Addresses::from_list(addresses))
    }

    /// The views that are there.
    fn views(&self) -> impl Iterator<Item = &DeviceSlice<'a, u8>> {
        self.slots.iter().flatten()
    }

    /// What keeps the memory alive.
    pub(super) fn owners(&self) -> impl Iterator<Item = Arc<dyn Any + Send + Sync>> {
        self.views().map(DeviceSlice::owner)
    }

    /// The streams that the memory belongs to.
    pub(super) fn homes(&self) -> impl Iterator<Item = &'a Stream> {
        self.views().map(DeviceSlice::stream)
    }
}

/// Whether a list of lengths or pages travels with the call instead of lying on the device.
fn on_host(call: &Call, name: &str) -> bool {
    let (queries, keys) = (call.queries(), call.keys());
    match name {
        "query_offsets" => queries.offsets().on_host().is_some(),
        "key_offsets" => keys.offsets().on_host().is_some(),
        "query_lengths" => queries.used().on_host().is_some(),
        "key_lengths" => keys.used().on_host().is_some(),
        "block_table" => call
            .pages()
            .is_some_and(|pages| pages.table().on_host().is_some()),
        _ => false,
    }
}

/// Bytes of an element of a slot.
fn element_size(expected: &Expected, call: &Call) -> u64 {
    match expected.name {
        "q" | "k" | "v" | "out" | "bias" => call.element().size() as u64,
        "key_mask" => 1,
        _ => 4,
    }
}

fn place(context: &Context) -> String {
    format!("cuda:{}", context.device().ordinal())
}
