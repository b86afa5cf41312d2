//! Named views of device memory for one launch.

use bytemuck::Pod;
use warptile_driver::{Context, DeviceSlice, DeviceSliceMut};
use warptile_kernels::{Operand, Slots};

use crate::gpu::memory::{Views, check_views};
use crate::spec::{Access, Append, Call, Element, Expected, MemoryType, Result, slots};

/// The types of views, each with the access that the view gives: [`Access::Write`] of an exclusive one.
pub type ViewTypes = Slots<Option<(MemoryType, Access)>>;

impl Call {
    /// Checks the types of views for a raw launch, and that what is written is exclusively the launch's. Nothing else can: it has only
    /// addresses.
    ///
    /// # Errors
    /// [`Error::ElementMismatch`](crate::Error::ElementMismatch); [`Error::Presence`](crate::Error::Presence) where one of both types is
    /// that of whole numbers, or the operation writes what is shared, or only reads what is exclusive.
    pub fn check_types(&self, types: &ViewTypes) -> Result<()> {
        check_types(types, &slots::expected(self, false))
    }
}

impl Append {
    /// Checks the types of views for a raw launch, as [`Call::check_types`] does.
    ///
    /// # Errors
    /// As [`Call::check_types`].
    pub fn check_types(&self, types: &ViewTypes) -> Result<()> {
        check_types(types, self.expected())
    }
}

fn check_types(types: &ViewTypes, expected: &Slots<Expected>) -> Result<()> {
    for (operand, (found, access)) in types.given() {
        let expected = &expected[operand];
        if expected.wanted {
            expected.access.check(operand.name(), *access)?;
            found.check(operand.name(), expected.element, expected.size)?;
        }
    }
    Ok(())
}

/// The memory of one launch: a view for every operand that the description needs, and for no other.
///
/// ```no_run
/// # use warptile::{Operand, gpu::Bindings};
/// # use warptile::driver::DeviceBuffer;
/// # fn f(q: &DeviceBuffer<f32>, k: &DeviceBuffer<f32>, v: &DeviceBuffer<f32>, mut out: DeviceBuffer<f32>, mut lse: DeviceBuffer<f32>) {
/// let bindings = Bindings::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice_mut())
///     .output(Operand::Lse, lse.as_slice_mut());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "bindings do nothing until they are launched with"]
pub struct Bindings<'a> {
    views: Slots<Option<DeviceSlice<'a, u8>>>,
    types: ViewTypes,
}

impl Default for Bindings<'_> {
    fn default() -> Self {
        Bindings {
            views: Slots::none(),
            types: Slots::none(),
        }
    }
}

impl<'a> Bindings<'a> {
    /// Queries, keys, values, and where the output goes; gaps between its strided rows are left alone.
    pub fn new<T: Element, K: Pod>(
        q: DeviceSlice<'a, T>,
        k: DeviceSlice<'a, K>,
        v: DeviceSlice<'a, K>,
        out: DeviceSliceMut<'a, T>,
    ) -> Self {
        Self::default()
            .with(Operand::Q, q)
            .with(Operand::K, k)
            .with(Operand::V, v)
            .output(Operand::Out, out)
    }

    /// New keys and values of a cache write, and the cache's.
    pub fn append<T: Element, C: Pod>(
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        k_pages: DeviceSliceMut<'a, C>,
        v_pages: DeviceSliceMut<'a, C>,
    ) -> Self {
        Self::default()
            .with(Operand::K, k)
            .with(Operand::V, v)
            .output(Operand::KPages, k_pages)
            .output(Operand::VPages, v_pages)
    }

    /// New keys and values of a cache write, and a cache that has its keys and values in one piece of memory, the values `v_at` elements
    /// after the keys: interleaved, say.
    ///
    /// # Errors
    /// When `v_at` is beyond the memory.
    pub fn append_in_one<T: Element, C: Pod>(
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        cache: DeviceSliceMut<'a, C>,
        v_at: usize,
    ) -> Result<Self> {
        let [k_pages, v_pages] = in_one(cache.into_bytes(), v_at.saturating_mul(size_of::<C>()))?;
        let mut bindings = Self::default().with(Operand::K, k).with(Operand::V, v);
        bindings.put::<C>(Operand::KPages, k_pages, Access::Write);
        bindings.put::<C>(Operand::VPages, v_pages, Access::Write);
        Ok(bindings)
    }

    /// The memory of an operand that is read; a launch refuses it for one that is written. Bytes (`u8`) are elements of whatever type the
    /// description has.
    pub fn with<T: Pod>(mut self, operand: Operand, view: DeviceSlice<'a, T>) -> Self {
        self.put::<T>(operand, view.into_bytes(), Access::Read);
        self
    }

    /// The memory of an operand that is written.
    pub fn output<T: Pod>(mut self, operand: Operand, view: DeviceSliceMut<'a, T>) -> Self {
        self.put::<T>(operand, view.into_bytes(), Access::Write);
        self
    }

    /// Memory whose elements are those that the description has.
    pub(crate) fn set(&mut self, operand: Operand, view: DeviceSlice<'a, u8>) {
        self.views[operand] = Some(view);
    }

    fn put<T: Pod>(&mut self, operand: Operand, view: DeviceSlice<'a, u8>, access: Access) {
        self.views[operand] = Some(view);
        self.types[operand] = Some((MemoryType::of::<T>(), access));
    }

    /// Checks everything that can be known before a launch, and gives the addresses.
    pub(super) fn check(
        &self,
        context: &Context,
        expected: &Slots<Expected>,
    ) -> Result<Slots<u64>> {
        self.check_types(expected)?;
        let mut addresses = Slots::filled(0);
        check_views(
            expected.as_slice(),
            self.views(),
            context,
            addresses.as_mut_slice(),
        )?;
        Ok(addresses)
    }

    /// Checks the types and sizes of elements, and accesses.
    pub(super) fn check_types(&self, expected: &Slots<Expected>) -> Result<()> {
        check_types(&self.types, expected)
    }

    /// The views, for the order of their streams.
    pub(super) const fn views(&self) -> &Views<'a> {
        self.views.as_slice()
    }
}

/// The keys and the values of a cache that has both in one piece of memory, the values from a byte on.
///
/// # Errors
/// When that is beyond the memory.
pub(crate) fn in_one(cache: DeviceSlice<'_, u8>, v_at: usize) -> Result<[DeviceSlice<'_, u8>; 2]> {
    let v_pages = cache.slice(v_at..)?;
    Ok([cache, v_pages])
}
