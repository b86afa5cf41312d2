//! Loaded kernels, and their parameter blocks as bytes.

use warptile_driver::sys::CUstream;
use warptile_driver::{Context, Kernel, KernelOptions, LaunchConfig, Launching, Module, Stream};
use warptile_kernels::{Image, Role, Schedule, Target, abi};

use crate::error::{Error, Result};
use crate::gpu::sync;
use crate::plan::{DeviceProfile, LaunchShape, Step, alone_bytes, splits_tiles};

/// A kernel in a context. The record of its image has the hash of the block that it takes.
#[derive(Debug)]
pub(super) struct Loaded {
    image: &'static Image,
    kernel: Kernel<[u8]>,
}

/// The bytes of a kernel's block, kept for other launches.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(super) struct Block {
    bytes: [u8; Block::MOST],
    len: usize,
}

impl Block {
    /// Bytes of the largest block. A larger one does not compile.
    const MOST: usize = size_of::<abi::ForwardTmaBoxes>();

    /// A copy of bytes that [`Loaded::give`] gave.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut block = Block {
            bytes: [0; Block::MOST],
            len: bytes.len(),
        };
        block.bytes[..bytes.len()].copy_from_slice(bytes);
        block
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Loaded {
    /// Loads the image, for launches on `device`.
    pub(super) fn load(
        context: &Context,
        image: &'static Image,
        device: &DeviceProfile,
    ) -> Result<Self> {
        let module = Module::load(context, &image.bytes()?)?;
        let options = KernelOptions::new().name(image.name).dynamic_shared_bytes(
            alone_bytes(image, device).unwrap_or(image.resources.dynamic_shared_bytes),
        );
        let bytes = image.param_bytes as usize;
        let kernel = Kernel::load_untyped(&module, image.entry, bytes, &options)?;
        Ok(Loaded { image, kernel })
    }

    /// The context that it is loaded in.
    pub(super) fn context(&self) -> &Context {
        self.kernel.module().context()
    }

    /// Returns true if it takes this block: the image's record has the block's hash and size.
    pub(super) fn takes<B: abi::Block>(&self) -> bool {
        self.image.abi_hash == B::HASH && self.image.param_bytes as usize == size_of::<B>()
    }

    /// Gives `taker` the bytes of a block that this kernel takes.
    ///
    /// # Errors
    /// [`Error::OtherAbi`] if it takes another one.
    pub(super) fn give<B: abi::Block>(
        &self,
        block: &B,
        taker: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        const { assert!(size_of::<B>() <= Block::MOST, "raise Block::MOST") };
        if !self.takes::<B>() {
            let image = self.image.name;
            return Err(Error::OtherAbi { image });
        }
        taker(bytemuck::bytes_of(block))
    }

    /// How many CTAs the device can hold at once, of a kernel whose CTAs come in clusters.
    ///
    /// # Errors
    /// [`Error::Clusters`] if it can hold none of its clusters, or what the driver reports.
    pub(super) fn clustered_ctas(&self, stream: &Stream, step: &Step) -> Result<Option<u32>> {
        let ctas = step.image.schedule.ctas_of_cluster();
        if ctas == 1 {
            return Ok(None);
        }
        let mut config = of_grid(step, [ctas, 1]);
        // When the launch may begin does not matter here.
        config.programmatic = false;
        let clusters = self.kernel.clusters_on_device(stream, &config)?;
        if clusters == 0 {
            let image = step.image.name;
            return Err(Error::Clusters { image, ctas });
        }
        Ok(Some(clusters.saturating_mul(ctas)))
    }

    /// Submits the kernel to a stream of ours.
    ///
    /// # Safety
    /// As [`Kernel::launch`]: `block` is what this kernel [gave](Self::give) of a block for the grid, and the
    /// addresses in it are those of memory that reaches as far as the call's layouts and lives until the kernel has
    /// ended.
    pub(super) unsafe fn launch(
        &self,
        at: &Launching<'_>,
        config: &LaunchConfig,
        block: &[u8],
    ) -> Result<()> {
        // SAFETY: the caller's promise; the block is the one whose hash the image carries. Tensor maps cover the same memory.
        Ok(unsafe { self.kernel.launch_at(at, config, block) }?)
    }

    /// Submits the kernel to anybody's stream, by one driver call.
    ///
    /// # Safety
    /// As [`Loaded::launch`]; `stream` is a live stream of the kernel's context, which is current on this thread.
    pub(super) unsafe fn launch_raw(
        &self,
        stream: CUstream,
        config: &LaunchConfig,
        block: &[u8],
    ) -> Result<()> {
        // SAFETY: as in `launch`.
        unsafe {
            self.kernel.launch_raw(stream, config, block)?;
            if sync::wanted() {
                self.kernel.wait_raw(stream)?;
            }
        }
        Ok(())
    }
}

/// The launch of a step.
pub(super) fn config(step: &Step, shape: &LaunchShape) -> LaunchConfig {
    let clusters = match step.image.schedule {
        Schedule::ClusterTile => shape.splits.max(1),
        _ => 1,
    };
    of_grid(step, [shape.grid / clusters, clusters])
}

/// The launch of a step with a grid of `ctas` CTAs for each of `clusters` clusters that share a tile.
fn of_grid(step: &Step, [ctas, clusters]: [u32; 2]) -> LaunchConfig {
    let order = Order::of(step, ctas * clusters);
    let config = LaunchConfig::new([ctas, clusters, 1], [step.threads(), 1, 1]);
    let config = match step.image.schedule.ctas_of_cluster() {
        1 => config,
        ctas => config.cluster([ctas, 1, 1]),
    };
    let bytes = step.image.resources.dynamic_shared_bytes;
    match order {
        Order::InTurn => config.dynamic_shared_bytes(bytes),
        Order::Early => config.dynamic_shared_bytes(bytes).programmatic(),
        Order::EarlyAlone(bytes) => config.dynamic_shared_bytes(bytes).programmatic(),
    }
}

/// Returns true if an image has code that waits for the launch before: from compute capability 9.0 on, but not PTX for older ones.
fn waits_itself(image: &Image) -> bool {
    match image.target {
        Target::Cubin(sm) | Target::CubinExact(sm) => sm >= 90,
        _ => false,
    }
}

/// When a launch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// After the one before it.
    InTurn,
    /// As soon as there is room: the kernel itself waits for what precedes it.
    Early,
    /// `Early` with this much dynamic shared memory, which leaves room for one CTA on a multiprocessor.
    EarlyAlone(u32),
}

impl Order {
    /// The order of a launch with this many CTAs.
    ///
    /// If a multiprocessor can hold several persistent CTAs, these would crowd the multiprocessors that happen to be
    /// free, and stay there while others have none. So if there are as many multiprocessors as CTAs, each has room
    /// for one; and where they do not fill all the room there is, they come in turn. So do those that read most of
    /// the time, for long, and leave some multiprocessors idle: CTAs that begin early sit there first, and a launch
    /// of 96 then took a seventh longer, of 128 a hundredth. Short ones gain more by beginning early than they lose
    /// (docs/notebook/wgmma.md, 2026-11-23).
    fn of(step: &Step, grid: u32) -> Order {
        const LONG_US: f64 = 80.0;
        let image = step.image;
        let reads =
            splits_tiles(image) && image.schedule.has_group_tiles() && grid < step.multiprocessors;
        // CTAs of other operations are small and short, so they crowd nobody.
        let is_small = image.role != Role::Forward;
        if !waits_itself(image)
            || !(is_small || image.schedule.begins_early())
            || reads && step.estimate_us > LONG_US
        {
            return Order::InTurn;
        }
        match step.alone_bytes {
            None if image.schedule.is_persistent() && step.ctas_per_multiprocessor > 1 => {
                Order::InTurn
            }
            None => Order::Early,
            Some(bytes) if grid <= step.multiprocessors => Order::EarlyAlone(bytes),
            Some(_)
                if u64::from(grid)
                    >= u64::from(step.multiprocessors)
                        * u64::from(step.ctas_per_multiprocessor) =>
            {
                Order::Early
            }
            Some(_) => Order::InTurn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Choice, Planner};
    use crate::spec::{Call, ElementType, Layout};

    #[test]
    fn long_reads_that_leave_multiprocessors_idle_come_in_turn() {
        let device = DeviceProfile::h200();
        let order = |batch: usize, key_len: usize| {
            let q = Layout::bshd([batch, 1, 16, 256]);
            let k = Layout::bshd([batch, key_len, 8, 256]);
            let call = Call::builder(&q, &k, &k, ElementType::Bf16)
                .build()
                .unwrap();
            let image =
                Choice::Image("wgmma_d256_128x64_w12_s2_bf16_serving_groups_sm_90a".to_owned());
            let plan = Planner::new(&device).plan(call.problem(), &image).unwrap();
            let step = &plan.steps()[0];
            Order::of(step, step.shape(&call).unwrap().grid)
        };
        assert_eq!(order(16, 8192), Order::InTurn);
        assert_eq!(order(15, 8192), Order::InTurn);
        // 64 us.
        assert_eq!(order(16, 2048), Order::Early);
        // Several tiles a CTA.
        assert_eq!(order(64, 8192), Order::Early);
    }
}
