//! What the operations beside forward have in common: one kernel that needs no workspace, launched through slots.

use std::cmp::Reverse;
use std::sync::Arc;

use warptile_driver::sys::CUstream;
use warptile_driver::{Context, LaunchConfig, Staged, Staging, Stream};
use warptile_kernels::abi::MERGE_PARTS;
use warptile_kernels::{Image, Operand, Role, Types, images_for};

use crate::gpu::kernel::{Block, LoadedKernel, waits_itself};
use crate::gpu::memory::{Views, check_stream, check_views, submit_in_order};
use crate::gpu::{Gpu, sync};
use crate::plan::{DeviceProfile, MAX_TILES, check_images, preference};
use crate::spec::memory::check;
use crate::spec::{Error, Expected, Result, check_type};

/// The most slots an operation has: those of a merge.
const MOST_SLOTS: usize = 2 + 2 * MERGE_PARTS;

const _: () = assert!(Operand::COUNT <= MOST_SLOTS);

/// The kernel of an operation for one element type, loaded.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    image: &'static Image,
    kernel: Arc<LoadedKernel>,
    context: Context,
    staging: Arc<Staging>,
}

/// The description of an operation's call: what the kernel needs to know beside addresses.
pub(super) trait Description {
    /// The argument that has the element type.
    const TYPED: &'static str;

    /// The type of its elements, and as that of keys the type of the cache that it writes.
    fn types(&self) -> Types;

    /// Slots, in the order of their addresses.
    fn expected(&self) -> &[Expected];

    /// Rows, and threads that a row takes. The products fit, as extents fit 31 bits.
    fn work(&self) -> (usize, usize);

    /// The block for addresses in the order of the slots. Counts fit 32 bits: the builder has checked them against
    /// [`MAX_LEN`](crate::MAX_LEN), and the launch its CTAs.
    fn block(&self, row_ctas: i32, at: &[u64]) -> Block;
}

/// Numbers on the host that travel along, and the slot that takes them.
pub(super) type HostList<'a> = (usize, &'a [u8]);

impl Operation {
    pub(super) fn load(gpu: &Gpu, role: Role, types: Types) -> Result<Self> {
        let image = image(gpu.profile(), role, types)?;
        Ok(Operation {
            image,
            kernel: gpu.kernel(image)?,
            context: gpu.context().clone(),
            staging: gpu.staging.clone(),
        })
    }

    pub(super) fn image(&self) -> &'static Image {
        self.image
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Refuses a call of other element types than the kernel's.
    fn check_description<D: Description>(&self, description: &D) -> Result<()> {
        let (kernels, found) = (self.image.types(), description.types());
        check_type(D::TYPED, Some(kernels.q), Some(found.q))?;
        check_type("k_pages", Some(kernels.k), Some(found.k))
    }

    /// Checks the views and submits the kernel to a stream of ours.
    pub(super) fn launch<D: Description>(
        &self,
        stream: &Stream,
        description: &D,
        views: &Views<'_>,
        host: &[HostList<'_>],
    ) -> Result<()> {
        self.check_description(description)?;
        check_stream(stream, &self.context)?;
        let mut addresses = [0; MOST_SLOTS];
        let expected = description.expected();
        let addresses = &mut addresses[..expected.len()];
        check_views(expected, views, &self.context, addresses)?;
        let Some((config, row_ctas)) = self.config(description)? else {
            return Ok(());
        };
        let at = stream.launching()?;
        let mut staged: Vec<Staged> = Vec::new();
        for (slot, bytes) in host {
            let list = self.staging.upload(stream, bytes)?;
            addresses[*slot] = list.pointer();
            staged.push(list);
        }
        check(expected, addresses)?;
        let block = description.block(row_ctas, addresses);
        let capture = at.capture();
        let submitted = submit_in_order(stream, capture, views, || {
            // Until the launch is queued.
            let _staged = staged;
            // SAFETY: the block is of this kernel's kind and was filled for these addresses; each is that of a view that was
            // found to reach as far as its layout, or of staged numbers. Numbers that nobody has checked are clamped or
            // ignored by the kernels. The memory outlives the kernel: it is freed in the order of its own stream, which is
            // made to come after this launch, or kept by the graph.
            unsafe { self.kernel.launch(&at, self.image, &config, &block) }
        });
        drop(at);
        submitted.and_then(|()| sync::after_launch(stream, capture))
    }

    /// Checks the addresses and submits the kernel to anybody's stream, by one driver call.
    ///
    /// # Safety
    /// As [`Kernel::launch_raw`](warptile_driver::Kernel::launch_raw), for a block that `description` fills with these addresses.
    pub(super) unsafe fn launch_raw<D: Description>(
        &self,
        stream: CUstream,
        description: &D,
        addresses: &[u64],
    ) -> Result<()> {
        self.check_description(description)?;
        for slot in description.expected() {
            if slot.on_host {
                return Err(Error::Presence {
                    argument: slot.name,
                    rule: "is on the host, but a raw launch takes numbers from the device",
                });
            }
        }
        check(description.expected(), addresses)?;
        match self.config(description)? {
            // SAFETY: the caller's promise.
            Some((config, row_ctas)) => unsafe {
                let block = description.block(row_ctas, addresses);
                self.kernel.launch_raw(stream, self.image, &config, &block)
            },
            None => Ok(()),
        }
    }

    /// The grid, and the CTAs that share a row of it; `None` if there is nothing to launch.
    fn config<D: Description>(&self, description: &D) -> Result<Option<(LaunchConfig, i32)>> {
        let (rows, threads_of_a_row) = description.work();
        let threads = 32 * self.image.tiling.warps;
        let (row_ctas, ctas) = ctas(rows, threads_of_a_row, threads);
        match u32::try_from(ctas) {
            Ok(0) => Ok(None),
            Ok(grid) if ctas <= MAX_TILES => {
                let config = LaunchConfig::new([grid, 1, 1], [threads, 1, 1]);
                // CTAs are small and short, so they crowd nobody.
                let config = match waits_itself(self.image) {
                    true => config.programmatic(),
                    false => config,
                };
                Ok(Some((config, row_ctas as i32)))
            }
            _ => Err(Error::Grid {
                ctas,
                limit: MAX_TILES,
            }),
        }
    }
}

/// The image for a device: machine code made for it before PTX, as the planner has it.
fn image(device: &DeviceProfile, role: Role, types: Types) -> Result<&'static Image> {
    check_images(device, images_for(role))?;
    images_for(role)
        .filter(|image| image.types() == types)
        .filter(|image| image.target.runs_on(device.major, device.minor))
        .min_by_key(|image| Reverse(preference(image.target)))
        .ok_or_else(|| Error::NoKernel {
            problem: match types.scaled() {
                Some(cache) => format!("{role} of {} in {cache} on {}", types.q, device.name),
                None => format!("{role} in {} on {}", types.q, device.name),
            },
            considered: Vec::new(),
        })
}

/// The CTAs that share a row of so many threads' work, and those of all rows: more than there can be if the kernels could not
/// count the threads of a row.
fn ctas(rows: usize, threads_of_a_row: usize, threads: u32) -> (u64, u64) {
    let of_a_row = (threads_of_a_row as u64).div_ceil(u64::from(threads));
    match of_a_row * u64::from(threads) <= i32::MAX as u64 {
        true => (of_a_row, of_a_row.saturating_mul(rows as u64)),
        false => (of_a_row, u64::MAX),
    }
}
