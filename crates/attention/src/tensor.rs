//! Tensors of the user's level: data together with its layout and the backend it lives on.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use warptile_driver::{DeviceBuffer, DeviceSlice, DeviceSliceMut, Stream};
use warptile_kernels::abi::CHUNK_BYTES;

use crate::backend::{Backend, Place};
use crate::error::{Error, Result};
use crate::spec::{Invalid, Layout, MemoryType};

/// A tensor on a [`Backend`]: batch, length, heads and head size, as its [`Layout`] says.
///
/// A cheap handle: clones and the parts that [`rows`](Self::rows) and its like give share the elements.
#[derive(Clone)]
pub struct Tensor<T: Pod> {
    backend: Backend,
    layout: Layout,
    /// Elements before the first one.
    offset: usize,
    storage: Storage<T>,
    /// The number of the storage, which no other has: its address may be that of one that was freed.
    number: u64,
}

#[derive(Debug, Clone)]
pub(crate) enum Storage<T: Pod> {
    Host(Arc<Vec<T>>),
    Device(Arc<DeviceBuffer<T>>),
}

impl<T: Pod> Storage<T> {
    fn len(&self) -> usize {
        match self {
            Storage::Host(data) => data.len(),
            Storage::Device(buffer) => buffer.len(),
        }
    }

    /// The elements `range`, copied to the host.
    pub(crate) fn to_vec(&self, range: Range<usize>) -> Result<Vec<T>> {
        match self {
            Storage::Host(data) => Ok(data.get(range).unwrap_or_default().to_vec()),
            Storage::Device(buffer) => Ok(buffer.slice(range)?.to_vec()?),
        }
    }
}

impl<T: Pod> Tensor<T> {
    /// Copies `data` to `backend`; see [`Backend::tensor_with_layout`].
    pub(crate) fn upload(backend: &Backend, data: &[T], layout: Layout) -> Result<Self> {
        exactly("data", data.len(), &layout)?;
        let storage = match backend.place() {
            Place::Cpu => Storage::Host(Arc::new(data.to_vec())),
            Place::Gpu(gpu) => {
                Storage::Device(Arc::new(DeviceBuffer::from_slice(gpu.stream(), data)?))
            }
        };
        Ok(Self::from_storage(backend.clone(), layout, storage))
    }

    /// An uninitialized tensor; every row is about to be written.
    pub(crate) fn uninit(
        backend: &Backend,
        argument: &'static str,
        layout: Layout,
    ) -> Result<Self> {
        let Place::Gpu(gpu) = backend.place() else {
            return Self::zeros(backend, argument, layout);
        };
        let buffer = DeviceBuffer::uninit(gpu.stream(), layout.reach())?;
        let storage = Storage::Device(Arc::new(buffer));
        Ok(Self::from_storage(backend.clone(), layout, storage))
    }

    /// A tensor of zeros.
    pub(crate) fn zeros(backend: &Backend, argument: &'static str, layout: Layout) -> Result<Self> {
        let storage = match backend.place() {
            Place::Cpu => Storage::Host(Arc::new(zeros(argument, layout.reach())?)),
            Place::Gpu(gpu) => {
                let zeroed = DeviceBuffer::zeroed(gpu.stream(), layout.reach())?;
                Storage::Device(Arc::new(zeroed))
            }
        };
        Ok(Self::from_storage(backend.clone(), layout, storage))
    }

    pub(crate) fn from_storage(backend: Backend, layout: Layout, storage: Storage<T>) -> Self {
        static STORAGES: AtomicU64 = AtomicU64::new(0);
        Tensor {
            backend,
            layout,
            offset: 0,
            storage,
            number: STORAGES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// A tensor of `data`, stored as `layout` says. On the CPU the vector becomes the tensor without a copy.
    ///
    /// # Errors
    /// [`Invalid::BufferTooSmall`] or [`Invalid::BufferTooLarge`] if `data` does not have as many elements as the layout reaches
    /// over; or when the device is out of memory.
    pub fn from_vec(backend: &Backend, data: Vec<T>, layout: Layout) -> Result<Self> {
        if backend.is_gpu() {
            return Self::upload(backend, &data, layout);
        }
        exactly("data", data.len(), &layout)?;
        let storage = Storage::Host(Arc::new(data));
        Ok(Self::from_storage(backend.clone(), layout, storage))
    }

    /// A tensor of a device buffer, which may be longer than the layout reaches. The buffer may belong to any stream of the
    /// backend's context.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] if the buffer is not of the backend's context; [`Invalid::BufferTooSmall`].
    pub fn from_device(backend: &Backend, buffer: DeviceBuffer<T>, layout: Layout) -> Result<Self> {
        expect_context(backend, &buffer)?;
        layout.check_buffer("buffer", buffer.len())?;
        let storage = Storage::Device(Arc::new(buffer));
        Ok(Self::from_storage(backend.clone(), layout, storage))
    }

    /// Submits a copy of device memory that somebody else made, from the layout's first element to its last, to the backend's stream.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] on the CPU; when the device is out of memory, or what the driver reports.
    ///
    /// # Safety
    /// `address` is that of as many elements as the layout reaches over, aligned for `T`, in memory of the backend's device. They stay there
    /// until the copy is made, in the order of the stream.
    pub unsafe fn copy_of(backend: &Backend, address: u64, layout: Layout) -> Result<Self> {
        let stream = stream("tensor", backend)?;
        let mut buffer = DeviceBuffer::uninit(stream, layout.reach())?;
        // SAFETY: the caller's promise; nothing is freed here.
        let source = unsafe { DeviceBuffer::borrow(stream, address, layout.reach(), Arc::new(())) };
        buffer.copy_from(&source?)?;
        Self::from_device(backend, buffer, layout)
    }

    /// Submits a copy of the memory, from the first element to the last, into device memory that somebody else made, to the stream of
    /// `backend`, which may be another GPU's: the copy comes behind what writes the tensor.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] on the CPU; what the driver reports.
    ///
    /// # Safety
    /// As [`copy_of`](Self::copy_of), of memory that only the copy uses meanwhile.
    pub unsafe fn copy_to(&self, backend: &Backend, address: u64) -> Result<()> {
        let (stream, from) = (stream("to", backend)?, self.on_device("tensor")?);
        // SAFETY: the caller's promise; nothing is freed here.
        let target = unsafe { DeviceBuffer::borrow(stream, address, from.len(), Arc::new(())) };
        Ok(target?.as_slice_mut().copy_from(&from)?)
    }

    /// Batch, length, heads and head size, regardless of the order in memory.
    pub fn shape(&self) -> [usize; 4] {
        self.layout.shape
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where the elements are.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Some batch entries.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn entries(&self, range: Range<usize>) -> Result<Self> {
        self.part(0, range)
    }

    /// Some rows of every batch entry.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn rows(&self, range: Range<usize>) -> Result<Self> {
        self.part(1, range)
    }

    /// Some heads of every row.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn heads(&self, range: Range<usize>) -> Result<Self> {
        self.part(2, range)
    }

    fn part(&self, dimension: usize, range: Range<usize>) -> Result<Self> {
        let extent = self.layout.shape[dimension];
        if range.start > range.end || range.end > extent {
            return Err(Error::OutOfRange {
                dimension: crate::spec::DIMENSIONS[dimension],
                start: range.start,
                end: range.end,
                extent,
            });
        }
        let mut part = self.clone();
        part.layout.shape[dimension] = range.len();
        // Nothing lies in an empty part, so where it starts does not matter; the end of the buffer may be too far.
        if !part.layout.shape.contains(&0) {
            part.offset += range.start * self.layout.strides[dimension];
        }
        Ok(part)
    }

    /// Runs `f` on some rows and heads of the tensor, such as to have [`forward_into`](crate::Attention::forward_into) write them: a part
    /// that [`rows`](Self::rows) gives shares its elements and cannot be written. A tensor of other elements that `f` puts in its place stays
    /// there as it is.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn with_part<R>(
        &mut self,
        rows: Range<usize>,
        heads: Range<usize>,
        f: impl FnOnce(&mut Self) -> R,
    ) -> Result<R> {
        let part = self.rows(rows)?.heads(heads)?;
        Ok(Self::with_view(self, |tensor| tensor, part, f))
    }

    /// Runs `f` on the memory under another layout, counted from the tensor's first element: as [`with_part`](Self::with_part).
    ///
    /// # Errors
    /// [`Invalid::BufferTooSmall`] if the layout reaches beyond the memory.
    pub fn with_layout<R>(&mut self, layout: Layout, f: impl FnOnce(&mut Self) -> R) -> Result<R> {
        let part = self.view_as(layout)?;
        Ok(Self::with_view(self, |tensor| tensor, part, f))
    }

    /// Runs `f` on what holds a tensor, which is meanwhile what a view of it is.
    pub(crate) fn with_view<S, R>(
        holder: &mut S,
        tensor: impl Fn(&mut S) -> &mut Self,
        view: Self,
        f: impl FnOnce(&mut S) -> R,
    ) -> R {
        let of = tensor(holder);
        let (whole, number) = ((of.layout, of.offset), of.number);
        (of.layout, of.offset) = (view.layout, view.offset);
        // It shares the elements, and only one owner may write them.
        drop(view);
        let result = f(holder);
        let of = tensor(holder);
        if of.number == number {
            (of.layout, of.offset) = whole;
        }
        result
    }

    /// Views the memory under another layout, counted from the tensor's first element: for example transposed.
    ///
    /// # Errors
    /// [`Invalid::BufferTooSmall`] if the layout reaches beyond the memory.
    pub fn view_as(&self, layout: Layout) -> Result<Self> {
        self.view_at(0, layout)
    }

    /// As [`view_as`](Self::view_as), counted from the element `at` on.
    pub(crate) fn view_at(&self, at: usize, layout: Layout) -> Result<Self> {
        let offset = self.offset.saturating_add(at);
        layout.check_buffer("layout", self.storage.len().saturating_sub(offset))?;
        Ok(Tensor {
            layout,
            offset,
            ..self.clone()
        })
    }

    /// Where the elements lie in the storage, gaps included.
    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.layout.reach()
    }

    /// Copies the elements to the host in the order of memory: `[batch, length, heads, head size]` for a BSHD layout,
    /// `[batch, heads, length, head size]` for BHSD; gaps between strided rows come along. Waits for the computation that
    /// writes them.
    ///
    /// # Errors
    /// When the device reports an error, of this copy or of an earlier launch.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.storage.to_vec(self.range())
    }

    /// The elements in memory order. On the CPU they are not copied if this is the only handle to them; otherwise as
    /// [`to_vec`](Self::to_vec).
    ///
    /// # Errors
    /// As [`to_vec`](Self::to_vec).
    pub fn into_vec(self) -> Result<Vec<T>> {
        let range = self.range();
        match self.storage {
            Storage::Host(data) if range == (0..data.len()) => {
                Ok(Arc::try_unwrap(data).unwrap_or_else(|shared| shared.to_vec()))
            }
            storage => storage.to_vec(range),
        }
    }

    /// The elements on the host, in the order of memory; `None` on a GPU.
    pub fn as_slice(&self) -> Option<&[T]> {
        match &self.storage {
            Storage::Host(data) => data.get(self.range()),
            Storage::Device(_) => None,
        }
    }

    /// The elements on the device, for kernels of one's own; `None` on the CPU. They are ordered on the slice's stream.
    pub fn device_slice(&self) -> Option<DeviceSlice<'_, T>> {
        match &self.storage {
            Storage::Device(buffer) => buffer.slice(self.range()).ok(),
            Storage::Host(_) => None,
        }
    }

    /// Overwrites the elements, given in the order of memory as [`to_vec`](Self::to_vec) gives them; they stay at their address. On
    /// a GPU this waits for the copy.
    ///
    /// # Errors
    /// [`Invalid::BufferTooSmall`] or [`Invalid::BufferTooLarge`] if there are more or fewer elements than those of the tensor;
    /// [`Error::Shared`] if somebody else holds them. What the device reports.
    pub fn copy_from_slice(&mut self, data: &[T]) -> Result<()> {
        exactly("data", data.len(), &self.layout)?;
        match self.storage {
            Storage::Host(_) => self.host_mut("self")?.copy_from_slice(data),
            Storage::Device(_) => self.device_mut("self")?.copy_from_slice(data)?,
        }
        Ok(())
    }

    /// The elements on the host, for writing.
    ///
    /// # Errors
    /// [`Error::Shared`] if somebody else holds the elements.
    pub(crate) fn host_mut(&mut self, argument: &'static str) -> Result<&mut [T]> {
        let range = self.range();
        match &mut self.storage {
            Storage::Host(data) => Arc::get_mut(data)
                .and_then(|data| data.get_mut(range))
                .ok_or(Error::Shared { argument }),
            Storage::Device(_) => Err(elsewhere(argument, "the CPU", self.backend.to_string())),
        }
    }

    /// The elements on the device, for writing.
    ///
    /// # Errors
    /// [`Error::Shared`] if somebody else holds the elements.
    pub(crate) fn device_mut(&mut self, argument: &'static str) -> Result<DeviceSliceMut<'_, T>> {
        let range = self.range();
        match &mut self.storage {
            Storage::Device(buffer) => {
                let buffer = Arc::get_mut(buffer).ok_or(Error::Shared { argument })?;
                Ok(buffer.slice_mut(range)?)
            }
            Storage::Host(_) => Err(elsewhere(argument, "a GPU", self.backend.to_string())),
        }
    }

    /// The elements on the device.
    pub(crate) fn on_device(&self, argument: &'static str) -> Result<DeviceSlice<'_, T>> {
        self.device_slice()
            .ok_or_else(|| elsewhere(argument, "a GPU", self.backend.to_string()))
    }

    /// The elements on the host.
    pub(crate) fn on_host(&self, argument: &'static str) -> Result<&[T]> {
        self.as_slice()
            .ok_or_else(|| elsewhere(argument, "the CPU", self.backend.to_string()))
    }
}

impl<T: Pod> Tensor<T> {
    /// Returns true if it starts at a multiple of 16 bytes. On the CPU it does not matter.
    pub(crate) fn starts_aligned(&self) -> bool {
        match &self.storage {
            Storage::Device(buffer) => {
                let start = buffer.pointer() + (self.offset * size_of::<T>()) as u64;
                start.is_multiple_of(CHUNK_BYTES as u64)
            }
            Storage::Host(_) => true,
        }
    }
}

/// A tensor of any elements, as bytes: for those who learn at run time what the bytes mean.
pub(crate) trait Bytes: fmt::Debug + Send + Sync {
    fn layout(&self) -> &Layout;

    fn backend(&self) -> &Backend;

    /// The type of its elements.
    fn memory_type(&self) -> MemoryType;

    /// As the tensor's own.
    fn starts_aligned(&self) -> bool;

    fn on_host(&self, argument: &'static str) -> Result<&[u8]>;

    fn on_device(&self, argument: &'static str) -> Result<DeviceSlice<'_, u8>>;

    /// As the tensor's own [`Tensor::host_mut`].
    fn host_mut(&mut self, argument: &'static str) -> Result<&mut [u8]>;

    /// As the tensor's own [`Tensor::device_mut`].
    fn device_mut(&mut self, argument: &'static str) -> Result<DeviceSlice<'_, u8>>;
}

impl<T: Pod + Send + Sync> Bytes for Tensor<T> {
    fn layout(&self) -> &Layout {
        self.layout()
    }

    fn backend(&self) -> &Backend {
        self.backend()
    }

    fn memory_type(&self) -> MemoryType {
        MemoryType::of::<T>()
    }

    fn starts_aligned(&self) -> bool {
        self.starts_aligned()
    }

    fn on_host(&self, argument: &'static str) -> Result<&[u8]> {
        self.on_host(argument).map(bytemuck::cast_slice)
    }

    fn on_device(&self, argument: &'static str) -> Result<DeviceSlice<'_, u8>> {
        self.on_device(argument).map(DeviceSlice::into_bytes)
    }

    fn host_mut(&mut self, argument: &'static str) -> Result<&mut [u8]> {
        self.host_mut(argument).map(bytemuck::cast_slice_mut)
    }

    fn device_mut(&mut self, argument: &'static str) -> Result<DeviceSlice<'_, u8>> {
        self.device_mut(argument).map(DeviceSliceMut::into_bytes)
    }
}

/// Zeros for a result, or an error instead of an abort if there is no memory for them.
pub(crate) fn zeros<T: Pod>(argument: &'static str, len: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(len).map_err(|()| {
        Invalid::Allocation {
            argument,
            bytes: len.saturating_mul(size_of::<T>()),
        }
        .into()
    })
}

/// Refuses a device buffer that is not of the backend's context.
pub(crate) fn expect_context<T: Pod>(backend: &Backend, buffer: &DeviceBuffer<T>) -> Result<()> {
    let context = buffer.stream().context();
    match backend.gpu() {
        Some(gpu) if gpu.context().is_same(context) => Ok(()),
        _ => Err(Error::DeviceMismatch {
            argument: "buffer",
            expected: backend.to_string(),
            found: format!("cuda:{}", context.device().ordinal()),
        }),
    }
}

/// The stream of a GPU.
fn stream<'a>(argument: &'static str, backend: &'a Backend) -> Result<&'a Stream> {
    { backend.gpu() }
        .map(|gpu| gpu.stream())
        .ok_or_else(|| elsewhere(argument, "a GPU", backend.to_string()))
}

pub(crate) fn elsewhere(argument: &'static str, expected: &str, found: String) -> Error {
    Error::DeviceMismatch {
        argument,
        expected: expected.to_owned(),
        found,
    }
}

/// Checks that `available` elements are just those of the layout.
fn exactly(argument: &'static str, available: usize, layout: &Layout) -> Result<()> {
    layout.check_buffer(argument, available)?;
    let needed = layout.reach();
    if available > needed {
        return Err(Invalid::BufferTooLarge {
            argument,
            needed,
            available,
        }
        .into());
    }
    Ok(())
}

impl<T: Pod> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>()
            .rsplit("::")
            .next()
            .unwrap_or("?");
        write!(
            f,
            "Tensor<{element}>({:?} on {})",
            self.shape(),
            self.backend
        )
    }
}
