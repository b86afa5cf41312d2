//! Named views of device memory for one launch.

use warptile_driver::{Context, DeviceSlice, DeviceSliceMut};
use warptile_kernels::ElementType;

use crate::call::Call;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::gpu::arguments::{Addresses, Argument};
use crate::gpu::memory::{Expected, Views, check_views};
use crate::operands::{LengthElement, Side, Table};
use crate::quantized::{QuantizedType, check_key_type};

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
    quantized: Option<QuantizedType>,
    slots: [Option<DeviceSlice<'a, u8>>; Argument::COUNT],
    bias_element: Option<ElementType>,
}

macro_rules! slot {
    ($(#[$doc:meta])* $name:ident: $view:ty, $argument:ident) => {
        $(#[$doc])*
        pub fn $name(mut self, view: $view) -> Self {
            self.slots[Argument::$argument as usize] = Some(view.into_bytes());
            self
        }
    };
}

macro_rules! lengths {
    ($(#[$doc:meta])* $name:ident, $argument:ident) => {
        $(#[$doc])*
        pub fn $name<L: LengthElement>(mut self, view: DeviceSlice<'a, L>) -> Self {
            self.slots[Argument::$argument as usize] = Some(view.into_bytes());
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
        let kv = [k.into_bytes(), v.into_bytes()];
        Self::of(T::TYPE, q.into_bytes(), kv, out.into_bytes())
    }

    /// As [`new`](Self::new), with the bits of quantized keys and values, and the scales of both: one number each, or one for each
    /// key/value head, as the call says. Kernels read them when they run.
    pub fn quantized<T: Element>(
        q: DeviceSlice<'a, T>,
        element: QuantizedType,
        kv: [DeviceSlice<'a, u8>; 2],
        [k_scale, v_scale]: [DeviceSlice<'a, f32>; 2],
        out: DeviceSliceMut<'a, T>,
    ) -> Self {
        Self::of(T::TYPE, q.into_bytes(), kv, out.into_bytes())
            .quantized_by(element, [k_scale, v_scale])
    }

    /// Of bytes: q and out are of `element`, and k and v as well unless they are [`quantized`](Self::quantized_by).
    pub(crate) fn of(
        element: ElementType,
        q: DeviceSlice<'a, u8>,
        [k, v]: [DeviceSlice<'a, u8>; 2],
        out: DeviceSlice<'a, u8>,
    ) -> Self {
        let mut slots = [const { None }; Argument::COUNT];
        slots[Argument::Q as usize] = Some(q);
        slots[Argument::K as usize] = Some(k);
        slots[Argument::V as usize] = Some(v);
        slots[Argument::Out as usize] = Some(out);
        Bindings {
            element,
            quantized: None,
            slots,
            bias_element: None,
        }
    }

    /// With keys and values of another type.
    pub(crate) fn quantized_by(
        mut self,
        element: QuantizedType,
        [k_scale, v_scale]: [DeviceSlice<'a, f32>; 2],
    ) -> Self {
        self.quantized = Some(element);
        self.slots[Argument::KScale as usize] = Some(k_scale.into_bytes());
        self.slots[Argument::VScale as usize] = Some(v_scale.into_bytes());
        self
    }

    slot! {
        /// Where the lse goes, `[batch, heads, length]`.
        lse: DeviceSliceMut<'a, f32>, Lse
    }
    lengths! {
        /// Row offsets of packed queries, if the call says that they are on the device.
        query_offsets, QueryOffsets
    }
    lengths! {
        /// Row offsets of packed keys and values, likewise.
        key_offsets, KeyOffsets
    }
    lengths! {
        /// Used rows of each sequence's queries, likewise.
        query_lengths, QueryLengths
    }
    lengths! {
        /// Used rows of each sequence's keys and values, likewise.
        key_lengths, KeyLengths
    }

    lengths! {
        /// Numbers of the pages of keys and values, likewise.
        block_table, BlockTable
    }

    /// The lengths and the table that a call at the user's level has on the device.
    pub(crate) fn device_lengths(
        mut self,
        queries: &Side<'a>,
        keys: &Side<'a>,
        table: Option<&Table<'a>>,
    ) -> Self {
        self.slots[Argument::QueryOffsets as usize] = queries.device_offsets();
        self.slots[Argument::KeyOffsets as usize] = keys.device_offsets();
        self.slots[Argument::QueryLengths as usize] = queries.device_used();
        self.slots[Argument::KeyLengths as usize] = keys.device_used();
        self.slots[Argument::BlockTable as usize] = table.and_then(Table::on_device);
        self
    }

    slot! {
        /// ALiBi slopes.
        slopes: DeviceSlice<'a, f32>, Slopes
    }
    slot! {
        /// Sinks, one per query head.
        sinks: DeviceSlice<'a, f32>, Sinks
    }
    slot! {
        /// The key mask; 0 hides a key.
        key_mask: DeviceSlice<'a, u8>, KeyMask
    }

    /// The additive bias.
    pub fn bias<T: Element>(self, view: DeviceSlice<'a, T>) -> Self {
        self.bias_of(T::TYPE, view.into_bytes())
    }

    /// The additive bias, in bytes.
    pub(crate) fn bias_of(mut self, element: ElementType, view: DeviceSlice<'a, u8>) -> Self {
        self.slots[Argument::Bias as usize] = Some(view);
        self.bias_element = Some(element);
        self
    }

    /// Checks everything that can be known before a launch, and gives the addresses.
    pub(super) fn check(
        &self,
        call: &Call,
        context: &Context,
        expected: &[Expected; Argument::COUNT],
    ) -> Result<Addresses> {
        check_key_type("k", call.quantized_type(), self.quantized)?;
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
        let mut addresses = [0; Argument::COUNT];
        check_views(expected, &self.slots, context, &mut addresses)?;
        Ok(Addresses::from_fn(|argument| addresses[argument as usize]))
    }

    /// The views, for the order of their streams.
    pub(super) fn views(&self) -> &Views<'a> {
        &self.slots
    }
}
