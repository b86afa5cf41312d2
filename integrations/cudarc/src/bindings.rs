//! Views of cudarc's memory for one launch.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice,
    SyncOnDrop,
};
use warptile::Element;
use warptile::bytemuck::Pod;
use warptile::gpu::{Access, MemoryType, ViewTypes};
use warptile::spec::{Operand, Slots};

use crate::error::{Error, Result};

/// The address of a view.
trait Address {
    /// The address, for which `stream` waits as far as it must. The guard is dropped after the launch.
    fn lock<'b>(&'b mut self, stream: &'b CudaStream) -> (u64, SyncOnDrop<'b>);
}

impl<T> Address for CudaView<'_, T> {
    fn lock<'b>(&'b mut self, stream: &'b CudaStream) -> (u64, SyncOnDrop<'b>) {
        self.device_ptr(stream)
    }
}

impl<T> Address for CudaViewMut<'_, T> {
    fn lock<'b>(&'b mut self, stream: &'b CudaStream) -> (u64, SyncOnDrop<'b>) {
        self.device_ptr_mut(stream)
    }
}

/// Memory that a launch reads or writes.
pub(crate) struct View<'a> {
    context: Arc<CudaContext>,
    access: Access,
    room: Room,
    address: Box<dyn Address + 'a>,
}

/// Bytes of memory, and the type of its elements.
#[derive(Debug, Clone, Copy)]
struct Room {
    bytes: u64,
    elements: MemoryType,
}

impl<'a> View<'a> {
    fn new<T: Pod>(access: Access, view: impl DeviceSlice<T> + Address + 'a) -> Self {
        View {
            context: view.stream().context().clone(),
            access,
            room: Room {
                bytes: view.num_bytes() as u64,
                elements: MemoryType::of::<T>(),
            },
            address: Box::new(view),
        }
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.room.fmt(f)
    }
}

/// Addresses in the order of the views, with what must be dropped after the launch.
pub(crate) struct Locked<'b> {
    pub(crate) addresses: Vec<u64>,
    rooms: Vec<Option<Room>>,
    _guards: Vec<SyncOnDrop<'b>>,
}

/// Takes the addresses of views for work on `stream`.
pub(crate) fn lock<'b>(
    views: &'b mut [Option<View<'_>>],
    stream: &'b CudaStream,
    name: impl Fn(usize) -> &'static str,
) -> Result<Locked<'b>> {
    let mut locked = Locked {
        addresses: vec![0; views.len()],
        rooms: vec![None; views.len()],
        _guards: Vec::with_capacity(views.len()),
    };
    for (at, view) in views.iter_mut().enumerate() {
        let Some(view) = view else { continue };
        let (ours, theirs) = (stream.context(), &view.context);
        if ours.cu_ctx() != theirs.cu_ctx() {
            return Err(Error::OtherContext {
                argument: name(at),
                expected: ours.ordinal(),
                found: theirs.ordinal(),
            });
        }
        let (address, guard) = view.address.lock(stream);
        locked._guards.push(guard);
        locked.addresses[at] = address;
        locked.rooms[at] = Some(view.room);
    }
    Ok(locked)
}

impl Locked<'_> {
    /// Checks that each argument that is needed is given, and large enough, and that no other is given. `needed`: index, name, bytes.
    pub(crate) fn check(
        &self,
        needed: impl Iterator<Item = (usize, &'static str, Option<u64>)>,
    ) -> Result<()> {
        for (at, argument, needed) in needed {
            let presence = |rule| Err(warptile::spec::Invalid::Presence { argument, rule }.into());
            match (needed, self.rooms[at]) {
                (None, Some(_)) => {
                    return presence("is given, but the call was built without it");
                }
                // An operand counts as present even if it has no elements.
                (Some(_), None) => return presence("is missing, but the call needs it"),
                (Some(needed), Some(Room { bytes, elements })) if bytes < needed => {
                    let count = |bytes: u64| bytes as usize / elements.size().max(1);
                    return Err(warptile::spec::Invalid::BufferTooSmall {
                        argument,
                        needed: count(needed),
                        available: count(bytes),
                    }
                    .into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The memory of an attention or a cache write: a view for every operand that the [`Call`](warptile::spec::Call) or the
/// [`Append`](warptile::spec::Append) needs, and for no other. Lists lie on the device: the call is built with `device_key_lengths`,
/// `device_query_offsets` and so on.
///
/// ```no_run
/// # use warptile_cudarc::cudarc::driver::CudaSlice;
/// # use warptile_cudarc::warptile::spec::Operand;
/// # use warptile_cudarc::Bindings;
/// # type List<T> = CudaSlice<T>;
/// # fn f(q: &List<f32>, k: &List<f32>, v: &List<f32>, lengths: &List<i32>, out: &mut List<f32>, lse: &mut List<f32>) {
/// let bindings = Bindings::new(q.as_view(), k.as_view(), v.as_view(), out.as_view_mut())
///     .with(Operand::KeyLengths, lengths.as_view())
///     .output(Operand::Lse, lse.as_view_mut());
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "bindings do nothing until they are launched with"]
pub struct Bindings<'a> {
    views: Slots<Option<View<'a>>>,
    /// Bytes from a cache's keys to its values, if both are in one view.
    values_at: Option<u64>,
}

impl<'a> Bindings<'a> {
    /// Queries, keys, values, and where the output goes; gaps between its strided rows are left alone. Quantized keys and values may be
    /// bytes (`u8`).
    pub fn new<T: Pod, K: Pod>(
        q: CudaView<'a, T>,
        k: CudaView<'a, K>,
        v: CudaView<'a, K>,
        out: CudaViewMut<'a, T>,
    ) -> Self {
        Self::default()
            .with(Operand::Q, q)
            .with(Operand::K, k)
            .with(Operand::V, v)
            .output(Operand::Out, out)
    }

    /// New keys and values of a cache write, and the cache's.
    pub fn append<T: Pod, C: Pod>(
        k: CudaView<'a, T>,
        v: CudaView<'a, T>,
        k_pages: CudaViewMut<'a, C>,
        v_pages: CudaViewMut<'a, C>,
    ) -> Self {
        Self::default()
            .with(Operand::K, k)
            .with(Operand::V, v)
            .output(Operand::KPages, k_pages)
            .output(Operand::VPages, v_pages)
    }

    /// New keys and values of a cache write, and a cache that has its keys and values in one piece of memory, the values `v_at` elements of
    /// the view after the keys: interleaved, say.
    pub fn append_in_one<T: Pod, C: Pod>(
        k: CudaView<'a, T>,
        v: CudaView<'a, T>,
        cache: CudaViewMut<'a, C>,
        v_at: usize,
    ) -> Self {
        let values_at = (v_at as u64).saturating_mul(size_of::<C>() as u64);
        let bindings = Bindings {
            values_at: Some(values_at),
            ..Self::default()
        };
        bindings
            .with(Operand::K, k)
            .with(Operand::V, v)
            .output(Operand::KPages, cache)
    }

    /// The memory of an operand that is read; a launch refuses it for one that is written. Bytes (`u8`) are elements of any type that the
    /// description has.
    pub fn with<T: Pod>(mut self, operand: Operand, view: CudaView<'a, T>) -> Self {
        self.views[operand] = Some(View::new(Access::Read, view));
        self
    }

    /// The memory of an operand that is written.
    pub fn output<T: Pod>(mut self, operand: Operand, view: CudaViewMut<'a, T>) -> Self {
        if operand == Operand::VPages {
            // In a view of their own, not in that of the keys.
            self.values_at = None;
        }
        self.views[operand] = Some(View::new(Access::Write, view));
        self
    }

    /// The types of the views' elements, and what the views allow.
    pub(crate) fn types(&self) -> ViewTypes {
        Slots::from_fn(|operand| {
            let view = self.views[operand].as_ref()?;
            Some((view.room.elements, view.access))
        })
    }

    /// Takes the addresses for work on `stream`.
    pub(crate) fn lock<'b>(&'b mut self, stream: &'b CudaStream) -> Result<Locked<'b>> {
        let name = |at: usize| Operand::ALL[at].name();
        let mut locked = lock(self.views.as_mut_slice(), stream, name)?;
        if let Some(values_at) = self.values_at {
            let [keys, values] = [Operand::KPages, Operand::VPages].map(|pages| pages as usize);
            locked.addresses[values] = locked.addresses[keys].saturating_add(values_at);
            locked.rooms[values] = locked.rooms[keys].map(|room| Room {
                bytes: room.bytes.saturating_sub(values_at),
                ..room
            });
        }
        Ok(locked)
    }
}

/// The memory of one merge, in the order of the description's parts.
#[derive(Debug)]
#[must_use = "bindings do nothing until they are launched with"]
pub struct MergeBindings<'a, T> {
    /// The output and its lse, then those of each part.
    pub(crate) views: Vec<Option<View<'a>>>,
    element: PhantomData<T>,
}

impl<'a, T: Element> MergeBindings<'a, T> {
    /// Where the output goes; gaps between its strided rows are left alone.
    pub fn new(out: CudaViewMut<'a, T>) -> Self {
        MergeBindings {
            views: vec![Some(View::new(Access::Write, out)), None],
            element: PhantomData,
        }
    }

    /// Where the lse goes.
    pub fn lse(mut self, lse: CudaViewMut<'a, f32>) -> Self {
        self.views[1] = Some(View::new(Access::Write, lse));
        self
    }

    /// The next part's output and lse.
    pub fn part(mut self, out: CudaView<'a, T>, lse: CudaView<'a, f32>) -> Self {
        self.views
            .extend([View::new(Access::Read, out), View::new(Access::Read, lse)].map(Some));
        self
    }

    pub(crate) fn parts(&self) -> usize {
        (self.views.len() - 2) / 2
    }
}
