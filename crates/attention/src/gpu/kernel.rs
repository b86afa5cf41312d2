//! Loaded kernels, and the parameter block each family takes.

use bytemuck::{Pod, Zeroable};
use warptile_driver::{
    Context, Kernel, KernelOptions, LaunchConfig, Module, Stream, Swizzle, TensorMap,
    TensorMapElement,
};
use warptile_kernels::{Family, Image};

use crate::plan::Launch;
use crate::{AttentionParams, ElementType, Layout, Problem, Result};

/// A kernel in a context, by the parameter block it takes.
#[derive(Debug)]
pub(super) enum LoadedKernel {
    /// The families that read through plain addresses.
    Plain(Kernel<AttentionParams>),
    /// The family that reads through tensor maps.
    Mapped(Kernel<WgmmaParams>),
}

impl LoadedKernel {
    pub(super) fn load(context: &Context, image: &'static Image) -> Result<Self> {
        let module = Module::load(context, &image.bytes()?)?;
        let options = KernelOptions::new()
            .name(image.name)
            .param_bytes(image.param_bytes as usize)
            .dynamic_shared_bytes(image.resources.dynamic_shared_bytes);
        Ok(match image.family {
            Family::Wgmma => LoadedKernel::Mapped(Kernel::load(&module, image.entry, &options)?),
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
        params: &AttentionParams,
    ) -> Result<()> {
        let config = LaunchConfig::new([launch.grid, 1, 1], [launch.threads, 1, 1])
            .dynamic_shared_bytes(launch.dynamic_shared_bytes);
        match self {
            // SAFETY: the caller's promise; the parameter block is the one the image was compiled from.
            LoadedKernel::Plain(kernel) => unsafe { kernel.launch(stream, &config, params) }?,
            LoadedKernel::Mapped(kernel) => {
                let params = WgmmaParams::new(stream.context(), problem, launch, params)?;
                // SAFETY: as above; the tensor maps cover the same buffers.
                unsafe { kernel.launch(stream, &config, &params) }?;
            }
        }
        Ok(())
    }
}

/// The parameter block of the `wgmma` family: the host's copy of `WgmmaParams` in `kernels/wgmma_layout.cuh`.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct WgmmaParams {
    q: TensorMap,
    k: TensorMap,
    v: TensorMap,
    attention: AttentionParams,
    tiles: i32,
    heads_at_once: i32,
    padding: [u32; 2],
}

/// Bytes of an element the family takes: f16 or bf16.
const ELEMENT_BYTES: u64 = 2;
/// Columns of a box: one 128-byte swizzled row.
const BOX_COLUMNS: u32 = 64;
/// Query rows of a box: those of one warpgroup.
const QUERY_BOX_ROWS: u32 = 64;

impl WgmmaParams {
    fn new(
        context: &Context,
        problem: &Problem,
        launch: &Launch,
        attention: &AttentionParams,
    ) -> Result<Self> {
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
        let q = map(attention.q, problem.q(), QUERY_BOX_ROWS)?;
        let key_rows = launch.image.tiling.block_n;
        // A tensor map cannot have an extent of 0. Without keys the kernel reads neither, so q's stands in.
        let (k, v) = match problem.k().rows() {
            0 => (q, q),
            _ => (
                map(attention.k, problem.k(), key_rows)?,
                map(attention.v, problem.v(), key_rows)?,
            ),
        };
        Ok(WgmmaParams {
            q,
            k,
            v,
            attention: *attention,
            tiles: launch.tiles as i32,
            heads_at_once: heads_at_once(problem) as i32,
            padding: [0; 2],
        })
    }
}

/// Heads (of all batches) whose tiles are interleaved, so that CTAs working side by side share keys and values in L2.
///
/// Under a mask the tiles of a head differ in length; the longest go first across as many heads as keep their keys and
/// values within half of the L2, in groups as even as they can be: a short last group leaves CTAs without work. Without
/// a mask, head after head is best.
fn heads_at_once(problem: &Problem) -> usize {
    const L2_SHARE_BYTES: usize = 32 << 20;
    if problem.mask() == crate::Mask::None && !problem.is_packed() {
        return 1;
    }
    let key_value_bytes =
        (problem.key_len() * problem.head_dim() * 2 * ELEMENT_BYTES as usize).max(1);
    let key_value_heads = (L2_SHARE_BYTES / key_value_bytes).max(1);
    let heads = (problem.heads() * problem.batch()).max(1);
    let most = (key_value_heads * problem.group_size()).min(heads);
    heads.div_ceil(heads.div_ceil(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_is_the_one_of_the_header() {
        assert_eq!(std::mem::offset_of!(WgmmaParams, attention), 3 * 128);
        assert_eq!(std::mem::offset_of!(WgmmaParams, tiles), 384 + 240);
        assert_eq!(std::mem::offset_of!(WgmmaParams, heads_at_once), 384 + 244);
        assert_eq!(size_of::<WgmmaParams>(), 640);
    }

    #[test]
    fn masked_heads_are_interleaved_while_their_keys_fit_the_cache() {
        use crate::{ElementType, Layout, Mask};
        let heads_of = |batch, heads, kv_heads, rows, keys, mask| {
            let q = Layout::bshd([batch, rows, heads, 128]);
            let k = Layout::bshd([batch, keys, kv_heads, 128]);
            let problem = Problem::builder(&q, &k, &k, ElementType::F16).mask(mask);
            heads_at_once(&problem.build().unwrap())
        };
        let causal = Mask::causal();
        assert_eq!(heads_of(4, 16, 16, 4096, 4096, Mask::None), 1);
        // 2 MiB of keys and values a head.
        assert_eq!(heads_of(4, 16, 16, 4096, 4096, causal), 16);
        assert_eq!(heads_of(1, 32, 8, 4096, 4096, causal), 32);
        assert_eq!(heads_of(1, 2, 2, 64, 0, causal), 2);
        // 18 heads of 2 MiB: two groups of 9, not 16 and 2.
        assert_eq!(heads_of(1, 18, 18, 4096, 4096, causal), 9);
    }
}
