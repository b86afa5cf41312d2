//! Warptile's tensors on a stream of cudarc's.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice};
use warptile::driver::Stream;
use warptile::driver::sys::CUstream;
use warptile::{Backend, Element, Layout, Tensor};

use crate::error::{Error, Result};
use crate::session::gpu;

/// Tensors of Warptile on a stream of cudarc's, for what takes tensors: `warptile-distributed`, whose calls are computed by several GPUs.
/// The rank of each GPU works on such a stream, in order with what else is submitted to it.
///
/// A tensor's memory is Warptile's, which the other GPUs of a group can read; rows are copied in and out on the GPU. A single GPU needs no
/// copies with a [`Session`](crate::Session).
///
/// ```no_run
/// use warptile_cudarc::Tensors;
/// use warptile_cudarc::cudarc::driver::CudaContext;
/// use warptile_cudarc::warptile::{Attention, Layout, Mask};
/// use warptile_distributed::{Group, Sharding};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let streams = [CudaContext::new(0)?.new_stream()?, CudaContext::new(1)?.new_stream()?];
/// let gpus = [Tensors::new(&streams[0])?, Tensors::new(&streams[1])?];
/// let group = Group::local(gpus.iter().map(|gpu| gpu.backend().clone()))?;
/// let shards = group.shards(&Sharding::Zigzag, 8192)?;
/// // Each GPU has its own rows: q, k and v as `[1, heads, rows, head size]`.
/// let (mut qs, mut keys, mut outs) = (Vec::new(), Vec::new(), Vec::new());
/// for (rank, (gpu, stream)) in gpus.iter().zip(&streams).enumerate() {
///     let rows = shards.map().local_len(rank);
///     let (q, kv) = (stream.alloc_zeros::<f32>(rows * 8 * 64)?, stream.alloc_zeros::<f32>(rows * 2 * 64)?);
///     qs.push(gpu.tensor(q.as_view(), Layout::bhsd([1, 8, rows, 64]))?);
///     keys.push(gpu.tensor(kv.as_view(), Layout::bhsd([1, 2, rows, 64]))?);
///     outs.push(q); // of the output's size
/// }
/// let attention = Attention::new().mask(Mask::causal());
/// let found = shards.forward(&attention, &qs, (&keys, &keys))?;
/// for ((gpu, out), found) in gpus.iter().zip(&mut outs).zip(&found.out) {
///     gpu.copy(found, out.as_view_mut())?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Tensors {
    stream: Arc<CudaStream>,
    backend: Backend,
}

impl Tensors {
    /// On a stream of a device's primary context, which [`CudaContext::new`](cudarc::driver::CudaContext::new) gives.
    ///
    /// # Errors
    /// [`Error::NotPrimary`]; for the stream that is another one on each thread; when Warptile cannot use the driver.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let context = gpu(stream.context())?.context();
        let raw = CUstream(stream.cu_stream().cast());
        // SAFETY: both open the driver by its name, so it is loaded once. The stream lives as long as this clone of it.
        let ours = unsafe { Stream::borrow(context, raw, Arc::new(stream.clone())) };
        let ours = ours.map_err(warptile::Error::from)?;
        Ok(Tensors {
            stream: stream.clone(),
            backend: Backend::on_stream(&ours)?,
        })
    }

    /// The stream.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The backend, for a group and for tensors.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Submits a copy of cudarc's memory, which the layout describes from its first element on.
    ///
    /// # Errors
    /// [`Error::OtherContext`]; a view that is too short for the layout; what the driver reports.
    pub fn tensor<T: Element>(&self, view: CudaView<'_, T>, layout: Layout) -> Result<Tensor<T>> {
        layout.check_buffer("view", view.len())?;
        self.check_context("view", view.stream())?;
        let (address, _guard) = view.device_ptr(&self.stream);
        // SAFETY: the view is at least as long, in the stream's context, and cudarc frees it behind the event of the guard.
        Ok(unsafe { Tensor::copy_of(&self.backend, address, layout) }?)
    }

    /// Submits a copy of a tensor's memory, from its first element to its last, into cudarc's. The tensor may be on another stream or GPU:
    /// the copy comes behind what writes it.
    ///
    /// # Errors
    /// [`Error::OnCpu`]; [`Error::OtherContext`]; a view that is too short; what the driver reports.
    pub fn copy<T: Element>(&self, tensor: &Tensor<T>, mut to: CudaViewMut<'_, T>) -> Result<()> {
        if tensor.device_slice().is_none() {
            return Err(Error::OnCpu { argument: "tensor" });
        }
        tensor.layout().check_buffer("to", to.len())?;
        self.check_context("to", to.stream())?;
        let (address, _guard) = to.device_ptr_mut(&self.stream);
        // SAFETY: as above, and the view is exclusive.
        Ok(unsafe { tensor.copy_to(&self.backend, address) }?)
    }

    fn check_context(&self, argument: &'static str, stream: &CudaStream) -> Result<()> {
        let (ours, theirs) = (self.stream.context(), stream.context());
        match ours.cu_ctx() == theirs.cu_ctx() {
            true => Ok(()),
            false => Err(Error::OtherContext {
                argument,
                expected: ours.ordinal(),
                found: theirs.ordinal(),
            }),
        }
    }
}

impl fmt::Debug for Tensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensors")
            .field("stream", &self.stream)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}
