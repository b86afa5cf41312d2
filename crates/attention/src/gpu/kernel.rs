//! Loaded kernels, by the parameter block they take.

use warptile_driver::sys::CUstream;
use warptile_driver::{Context, Kernel, KernelOptions, LaunchConfig, Launching, Module, Stream};
use warptile_kernels::{Image, Schedule, Slots, Target, abi};

use crate::gpu::{block, sync};
use crate::plan::{DeviceProfile, LaunchShape, Step, alone_bytes, splits_tiles, tile_order};
use crate::spec::{Call, Error, Result};

/// A kernel in a context.
#[derive(Debug)]
pub(crate) enum LoadedKernel {
    /// It reads through addresses.
    Plain(Kernel<abi::Forward>),
    /// It reads quantized keys through addresses.
    E4m3(Kernel<abi::ForwardE4m3>),
    /// It reads through tensor maps.
    Mapped(Kernel<abi::ForwardTma>),
    /// It merges results.
    Merge(Kernel<abi::Merge>),
    /// It writes into a cache.
    Append(Kernel<abi::Append>),
    /// It writes into a quantized cache.
    AppendE4m3(Kernel<abi::AppendE4m3>),
}

/// A block as its kernel takes it.
#[derive(Debug)]
pub(crate) enum Block {
    Plain(abi::Forward),
    E4m3(abi::ForwardE4m3),
    Mapped(abi::ForwardTma),
    Merge(abi::Merge),
    Append(abi::Append),
    AppendE4m3(abi::AppendE4m3),
}

/// What a kernel does with a block of its own kind.
macro_rules! matching {
    ($loaded:expr, $block:expr, $image:expr; $kernel:ident, $params:ident => $launch:expr) => {
        match ($loaded, $block) {
            (LoadedKernel::Plain($kernel), Block::Plain($params)) => $launch,
            (LoadedKernel::E4m3($kernel), Block::E4m3($params)) => $launch,
            (LoadedKernel::Mapped($kernel), Block::Mapped($params)) => $launch,
            (LoadedKernel::Merge($kernel), Block::Merge($params)) => $launch,
            (LoadedKernel::Append($kernel), Block::Append($params)) => $launch,
            (LoadedKernel::AppendE4m3($kernel), Block::AppendE4m3($params)) => $launch,
            _ => return Err(other_block($image)),
        }
    };
}

impl LoadedKernel {
    /// Loads the image, for launches on `device`. Which block it takes is told by the hash that its record carries.
    pub(crate) fn load(
        context: &Context,
        image: &'static Image,
        device: &DeviceProfile,
    ) -> Result<Self> {
        use warptile_kernels::abi::Declared;
        let module = Module::load(context, &image.bytes()?)?;
        let options = KernelOptions::new()
            .name(image.name)
            .param_bytes(image.param_bytes as usize)
            .dynamic_shared_bytes(
                alone_bytes(image, device).unwrap_or(image.resources.dynamic_shared_bytes),
            );
        if image.abi_hash == abi::Forward::HASH {
            Kernel::load(&module, image.entry, &options).map(LoadedKernel::Plain)
        } else if image.abi_hash == abi::ForwardE4m3::HASH {
            Kernel::load(&module, image.entry, &options).map(LoadedKernel::E4m3)
        } else if image.abi_hash == abi::ForwardTma::HASH {
            Kernel::load(&module, image.entry, &options).map(LoadedKernel::Mapped)
        } else if image.abi_hash == abi::Merge::HASH {
            Kernel::load(&module, image.entry, &options).map(LoadedKernel::Merge)
        } else if image.abi_hash == abi::Append::HASH {
            Kernel::load(&module, image.entry, &options).map(LoadedKernel::Append)
        } else if image.abi_hash == abi::AppendE4m3::HASH {
            Kernel::load(&module, image.entry, &options).map(LoadedKernel::AppendE4m3)
        } else {
            return Err(Error::OtherAbi { image: image.name });
        }
        .map_err(Error::from)
    }

    /// How many CTAs the device can hold at once, of a kernel whose CTAs come in clusters.
    ///
    /// # Errors
    /// [`Error::Clusters`] if it can hold none of its clusters, or what the driver reports.
    pub(crate) fn clustered_ctas(&self, stream: &Stream, step: &Step) -> Result<Option<u32>> {
        let ctas = step.image.schedule.ctas_of_cluster();
        if ctas == 1 {
            return Ok(None);
        }
        let mut config = of_grid(step, [ctas, 1]);
        // When the launch may begin does not matter here.
        config.programmatic = false;
        let clusters = match self {
            LoadedKernel::Plain(kernel) => kernel.clusters_on_device(stream, &config),
            LoadedKernel::E4m3(kernel) => kernel.clusters_on_device(stream, &config),
            LoadedKernel::Mapped(kernel) => kernel.clusters_on_device(stream, &config),
            LoadedKernel::Merge(_) | LoadedKernel::Append(_) | LoadedKernel::AppendE4m3(_) => {
                return Ok(None);
            }
        }?;
        if clusters == 0 {
            let image = step.image.name;
            return Err(Error::Clusters { image, ctas });
        }
        Ok(Some(clusters.saturating_mul(ctas)))
    }

    /// Fills the block for a call. The context must be current: encoding a tensor map asks for it.
    pub(crate) fn block(
        &self,
        step: &Step,
        shape: &LaunchShape,
        call: &Call,
        at: &Slots<u64>,
        workspace: u64,
    ) -> Result<Block> {
        let forward = block::forward(call, shape, at, workspace);
        Ok(match self {
            LoadedKernel::Plain(_) => Block::Plain(forward),
            LoadedKernel::E4m3(_) => Block::E4m3(abi::ForwardE4m3 {
                forward,
                scales: block::scales(at, |operand| call.reach(operand)),
            }),
            LoadedKernel::Mapped(kernel) => {
                let driver = kernel.module().context().driver();
                Block::Mapped(block::forward_tma(driver, call, step, shape, forward)?)
            }
            LoadedKernel::Merge(_) | LoadedKernel::Append(_) | LoadedKernel::AppendE4m3(_) => {
                return Err(other_block(step.image));
            }
        })
    }

    /// Computes ahead of time what [`block`](Self::block) remembers of a call.
    pub(crate) fn make_ready(&self, step: &Step, shape: &LaunchShape, call: &Call) {
        if let LoadedKernel::Mapped(_) = self {
            tile_order(step, call, shape);
        }
    }

    /// Submits the kernel of `image` to a stream of ours.
    ///
    /// # Safety
    /// As [`Kernel::launch`]: `block` was filled for this kernel and grid, and the addresses in it are those of memory that
    /// reaches as far as the call's layouts and lives until the kernel has ended.
    pub(crate) unsafe fn launch(
        &self,
        at: &Launching<'_>,
        image: &Image,
        config: &LaunchConfig,
        block: &Block,
    ) -> Result<()> {
        // SAFETY: the caller's promise; the block is the one whose hash the image carries. Tensor maps cover the same memory.
        unsafe {
            matching!(self, block, image; kernel, block => kernel.launch_at(at, config, block))
        }
        .map_err(Error::from)
    }

    /// Submits the kernel to anybody's stream, by one driver call.
    ///
    /// # Safety
    /// As [`LoadedKernel::launch`]; `stream` is a live stream of the kernel's context, which is current on this thread.
    pub(crate) unsafe fn launch_raw(
        &self,
        stream: CUstream,
        image: &Image,
        config: &LaunchConfig,
        block: &Block,
    ) -> Result<()> {
        // SAFETY: as in `launch`.
        unsafe {
            matching!(self, block, image; kernel, block => {
                let launched = kernel.launch_raw(stream, config, block);
                launched.and_then(|()| match sync::wanted() {
                    true => kernel.wait_raw(stream),
                    false => Ok(()),
                })
            })
        }
        .map_err(Error::from)
    }
}

/// A block made for another kernel; no caller does that.
fn other_block(image: &Image) -> Error {
    Error::OtherAbi { image: image.name }
}

/// The launch of a step.
pub(super) fn config(step: &Step, shape: &LaunchShape) -> LaunchConfig {
    let clusters = match step.image.schedule {
        Schedule::ClusterTile => shape.splits.max(1),
        _ => 1,
    };
    of_grid(step, [shape.grid / clusters, clusters])
}

/// The launch of a step with so many CTAs, of which the second number says how many clusters share a tile.
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

/// Whether an image has code that waits for the launch before: from compute capability 9.0 on, but not PTX for older ones.
pub(super) fn waits_itself(image: &Image) -> bool {
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
    /// The same, with so much dynamic shared memory that a multiprocessor has room for one CTA.
    EarlyAlone(u32),
}

impl Order {
    /// Of a launch with so many CTAs.
    ///
    /// CTAs that stay, and of which a multiprocessor holds several, would crowd the multiprocessors that happen to be free, and stay there
    /// while others have none. So if there are as many multiprocessors as CTAs, each has room for one; and where they do not fill all the
    /// room there is, they come in turn. So do those that read most of the time, for long, and leave some multiprocessors idle: CTAs that begin
    /// early sit there first, and a launch of 96 then took a seventh longer, of 128 a hundredth. Short ones gain more by beginning
    /// early than they lose (docs/notebook-wgmma.md, 2026-11-23).
    fn of(step: &Step, grid: u32) -> Order {
        const LONG_US: f64 = 80.0;
        let image = step.image;
        let reads =
            splits_tiles(image) && image.schedule.has_group_tiles() && grid < step.multiprocessors;
        if !waits_itself(image)
            || !image.schedule.begins_early()
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
    use crate::spec::{ElementType, Layout};

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
