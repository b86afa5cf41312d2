//! Loaded kernels, and the parameter block each family takes.

use warptile_driver::{
    Context, Kernel, KernelOptions, LaunchConfig, Module, Stream, Swizzle, TensorMap,
    TensorMapElement,
};
use warptile_kernels::Image;
use warptile_kernels::abi::{self, Declared, Forward, ForwardTma};

use crate::plan::Launch;
use crate::{ElementType, Layout, Problem, Result};

/// A kernel in a context, by the parameter block it takes.
#[derive(Debug)]
pub(super) enum LoadedKernel {
    /// The families that read through plain addresses.
    Plain(Kernel<Forward>),
    /// The family that reads through tensor maps.
    Mapped(Kernel<ForwardTma>),
}

impl LoadedKernel {
    pub(super) fn load(context: &Context, image: &'static Image) -> Result<Self> {
        let module = Module::load(context, &image.bytes()?)?;
        let options = KernelOptions::new()
            .name(image.name)
            .param_bytes(image.param_bytes as usize)
            .dynamic_shared_bytes(image.resources.dynamic_shared_bytes);
        Ok(match image.abi_hash {
            ForwardTma::HASH => LoadedKernel::Mapped(Kernel::load(&module, image.entry, &options)?),
            _ => LoadedKernel::Plain(Kernel::load(&module, image.entry, &options)?),
        })
    }

    /// Submits the kernel.
    ///
    /// # Safety
    /// As [`Kernel::launch`]: the addresses in `params` are those of live buffers that reach as far as `problem`'s
    /// layouts, and `launch` is the plan of this kernel for `problem`.
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        problem: &Problem,
        launch: &Launch,
        params: &Forward,
    ) -> Result<()> {
        let config = LaunchConfig::new([launch.grid, 1, 1], [launch.threads, 1, 1])
            .dynamic_shared_bytes(launch.dynamic_shared_bytes);
        match self {
            // SAFETY: the caller's promise; the parameter block is the one the image was compiled from.
            LoadedKernel::Plain(kernel) => unsafe { kernel.launch(stream, &config, params) }?,
            LoadedKernel::Mapped(kernel) => {
                let params = mapped(stream.context(), problem, launch, params)?;
                // SAFETY: as above; the tensor maps cover the same buffers.
                unsafe { kernel.launch(stream, &config, &params) }?;
            }
        }
        Ok(())
    }
}

/// Bytes of an element the family takes: f16 or bf16.
const ELEMENT_BYTES: u64 = 2;
/// Columns of a box: one 128-byte swizzled row.
const BOX_COLUMNS: u32 = 64;
/// Query rows of a box: those of one warpgroup.
const QUERY_BOX_ROWS: u32 = 64;

/// The block of the families that read through tensor maps.
fn mapped(
    context: &Context,
    problem: &Problem,
    launch: &Launch,
    forward: &Forward,
) -> Result<ForwardTma> {
    let element = match problem.element() {
        ElementType::Bf16 => TensorMapElement::Bf16,
        _ => TensorMapElement::F16,
    };
    // Encoding asks for a current context; one way in serves all maps.
    let _current = context.enter()?;
    let map = |address: u64, layout: &Layout, box_rows: u32| -> Result<TensorMap> {
        let [batch, rows, heads, head_dim] = layout.shape.map(|extent| extent as u64);
        // A stride that is never stepped along only has to satisfy the encoder.
        let stride = |dimension: usize| match layout.shape[dimension] {
            0 | 1 => 16,
            _ => layout.strides[dimension] as u64 * ELEMENT_BYTES,
        };
        Ok(TensorMap::tiled(
            element,
            address,
            &[head_dim, rows, heads, batch],
            &[stride(1), stride(2), stride(0)],
            &[BOX_COLUMNS, box_rows, 1, 1],
        )
        .swizzle(Swizzle::Bytes128)
        .encode(context.driver())?)
    };
    let q = map(forward.q.address, problem.q(), QUERY_BOX_ROWS)?;
    let key_rows = launch.image.tiling.block_n;
    // A tensor map cannot have an extent of 0. Without keys the kernel reads neither, so q's stands in.
    let (k, v) = match problem.k().rows() {
        0 => (q, q),
        _ => (
            map(forward.k.address, problem.k(), key_rows)?,
            map(forward.v.address, problem.v(), key_rows)?,
        ),
    };
    let opaque = |map: TensorMap| -> abi::TensorMap { bytemuck::cast(map) };
    Ok(ForwardTma {
        q_map: opaque(q),
        k_map: opaque(k),
        v_map: opaque(v),
        forward: *forward,
        ..ForwardTma::default()
    })
}
