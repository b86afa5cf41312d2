//! How a kernel is launched, and the limits that are checked first.

use crate::context::Limits;

/// Grid, block and the rest of a launch. Sizes are `[x, y, z]`.
///
/// ```
/// use warptile_driver::LaunchConfig;
///
/// let config = LaunchConfig::new([1024, 1, 1], [128, 1, 1]).dynamic_shared_bytes(96 << 10);
/// assert_eq!(config.threads_per_block(), 128);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use]
pub struct LaunchConfig {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub dynamic_shared_bytes: u32,
    /// Blocks of a cluster, if the grid is made of clusters (compute capability 9.0 and newer).
    pub cluster: Option<[u32; 3]>,
    /// True if all blocks are resident at once, so that the grid can synchronize.
    pub cooperative: bool,
    /// True if the launch may begin before its predecessor in the stream has ended (compute
    /// capability 9.0 and newer). The kernel itself waits for it, by `griddepcontrol.wait`. In a
    /// capture with a driver older than 12.3, whose graphs cannot say so, the launch is in order.
    pub programmatic: bool,
}

impl LaunchConfig {
    /// A plain launch: no dynamic shared memory, no clusters, not cooperative.
    pub const fn new(grid: [u32; 3], block: [u32; 3]) -> LaunchConfig {
        LaunchConfig {
            grid,
            block,
            dynamic_shared_bytes: 0,
            cluster: None,
            cooperative: false,
            programmatic: false,
        }
    }

    /// With this much dynamic shared memory per block.
    pub const fn dynamic_shared_bytes(mut self, bytes: u32) -> LaunchConfig {
        self.dynamic_shared_bytes = bytes;
        self
    }

    /// With the grid made of clusters of this many blocks.
    pub const fn cluster(mut self, blocks: [u32; 3]) -> LaunchConfig {
        self.cluster = Some(blocks);
        self
    }

    /// With all blocks resident at once.
    pub const fn cooperative(mut self) -> LaunchConfig {
        self.cooperative = true;
        self
    }

    /// With a beginning before the end of what precedes it in the stream; see
    /// [`LaunchConfig::programmatic`].
    pub const fn programmatic(mut self) -> LaunchConfig {
        self.programmatic = true;
        self
    }

    /// Threads of a block; saturates for sizes that no device takes.
    pub const fn threads_per_block(&self) -> u32 {
        product(self.block)
    }
}

const fn product([x, y, z]: [u32; 3]) -> u32 {
    x.saturating_mul(y).saturating_mul(z)
}

/// The limits of a kernel itself, read when it is loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelLimits {
    pub(crate) threads_per_block: u32,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) cluster_blocks: u32,
}

/// Which limit a launch breaks. Found before the driver is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A size is zero.
    #[error("the {what} {size:?} is empty: every size must be at least 1")]
    Empty {
        /// `grid`, `block` or `cluster`.
        what: &'static str,
        /// The size given.
        size: [u32; 3],
    },
    /// A size is over the device's limit in one dimension.
    #[error("the {what} {size:?} is over the device's limit of {limit:?}")]
    TooLarge {
        /// `grid` or `block`.
        what: &'static str,
        /// The size given.
        size: [u32; 3],
        /// The device's limit for each dimension.
        limit: [u32; 3],
    },
    /// The block has more threads than the kernel's registers or the device allow.
    #[error("a block of {threads} threads is over the kernel's limit of {limit}")]
    TooManyThreads {
        /// Threads of the block.
        threads: u32,
        /// The most this kernel can have on this device.
        limit: u32,
    },
    /// More dynamic shared memory than the kernel was loaded for.
    #[error(
        "{bytes} bytes of dynamic shared memory are over the {limit} that the kernel was loaded \
         with; raise KernelOptions::dynamic_shared_bytes"
    )]
    TooMuchSharedMemory {
        /// Bytes asked for.
        bytes: u32,
        /// Bytes allowed at load.
        limit: u32,
    },
    /// The device has no clusters.
    #[error("the device has no thread-block clusters (they come with compute capability 9.0)")]
    NoClusters,
    /// The grid is not made of whole clusters.
    #[error("a grid of {grid:?} blocks does not divide into clusters of {cluster:?}")]
    UnevenClusters {
        /// Blocks of the grid.
        grid: [u32; 3],
        /// Blocks of a cluster.
        cluster: [u32; 3],
    },
    /// A cluster has more blocks than allowed.
    #[error(
        "a cluster of {blocks} blocks is over the limit of {limit}; more than 8 need \
         KernelOptions::large_clusters"
    )]
    ClusterTooLarge {
        /// Blocks of the cluster.
        blocks: u32,
        /// The most allowed.
        limit: u32,
    },
    /// The device cannot hold a whole grid resident.
    #[error("the device does not support cooperative launches")]
    NoCooperativeLaunch,
}

/// Checks a launch against device and kernel.
pub(crate) fn check(
    config: &LaunchConfig,
    device: &Limits,
    kernel: &KernelLimits,
) -> Result<(), LaunchError> {
    for (what, size, limit) in [
        ("grid", config.grid, device.grid),
        ("block", config.block, device.block),
    ] {
        if size.contains(&0) {
            return Err(LaunchError::Empty { what, size });
        }
        if size.iter().zip(&limit).any(|(size, limit)| size > limit) {
            return Err(LaunchError::TooLarge { what, size, limit });
        }
    }
    let threads = config.threads_per_block();
    let limit = kernel.threads_per_block.min(device.threads_per_block);
    if threads > limit {
        return Err(LaunchError::TooManyThreads { threads, limit });
    }
    if config.dynamic_shared_bytes > kernel.dynamic_shared_bytes {
        return Err(LaunchError::TooMuchSharedMemory {
            bytes: config.dynamic_shared_bytes,
            limit: kernel.dynamic_shared_bytes,
        });
    }
    if config.cooperative && !device.cooperative {
        return Err(LaunchError::NoCooperativeLaunch);
    }
    match config.cluster {
        Some(cluster) => check_cluster(config.grid, cluster, device, kernel),
        None => Ok(()),
    }
}

fn check_cluster(
    grid: [u32; 3],
    cluster: [u32; 3],
    device: &Limits,
    kernel: &KernelLimits,
) -> Result<(), LaunchError> {
    if !device.clusters {
        return Err(LaunchError::NoClusters);
    }
    if cluster.contains(&0) {
        return Err(LaunchError::Empty {
            what: "cluster",
            size: cluster,
        });
    }
    if grid
        .iter()
        .zip(&cluster)
        .any(|(grid, cluster)| grid % cluster != 0)
    {
        return Err(LaunchError::UnevenClusters { grid, cluster });
    }
    let (blocks, limit) = (product(cluster), kernel.cluster_blocks);
    if blocks > limit {
        return Err(LaunchError::ClusterTooLarge { blocks, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Limits = Limits {
        grid: [0x7FFF_FFFF, 65_535, 65_535],
        block: [1024, 1024, 64],
        threads_per_block: 1024,
        cooperative: true,
        clusters: true,
        memory_pools: true,
    };
    const KERNEL: KernelLimits = KernelLimits {
        threads_per_block: 256,
        dynamic_shared_bytes: 100_000,
        cluster_blocks: 8,
    };

    fn refusal(config: LaunchConfig) -> Option<LaunchError> {
        check(&config, &DEVICE, &KERNEL).err()
    }

    #[test]
    fn what_is_within_every_limit_passes() {
        let largest = LaunchConfig::new([0x7FFF_FFFE, 65_535, 65_535], [256, 1, 1])
            .dynamic_shared_bytes(100_000)
            .cluster([2, 1, 1])
            .cooperative();
        assert_eq!(refusal(largest), None);
    }

    #[test]
    fn each_limit_has_its_refusal() {
        let one = [1, 1, 1];
        let plain = LaunchConfig::new(one, one);
        assert!(matches!(
            refusal(LaunchConfig::new([1, 0, 1], one)),
            Some(LaunchError::Empty { what: "grid", .. })
        ));
        assert!(matches!(
            refusal(LaunchConfig::new(one, [0, 1, 1])),
            Some(LaunchError::Empty { what: "block", .. })
        ));
        assert!(matches!(
            refusal(LaunchConfig::new([1, 65_536, 1], one)),
            Some(LaunchError::TooLarge { what: "grid", .. })
        ));
        assert!(matches!(
            refusal(LaunchConfig::new(one, [1, 1, 65])),
            Some(LaunchError::TooLarge { what: "block", .. })
        ));
        assert!(matches!(
            refusal(LaunchConfig::new(one, [257, 1, 1])),
            Some(LaunchError::TooManyThreads {
                threads: 257,
                limit: 256
            })
        ));
        assert!(matches!(
            refusal(plain.dynamic_shared_bytes(100_001)),
            Some(LaunchError::TooMuchSharedMemory { .. })
        ));
        assert!(matches!(
            refusal(plain.cluster([2, 1, 1])),
            Some(LaunchError::UnevenClusters { .. })
        ));
        assert!(matches!(
            refusal(plain.cluster([1, 0, 1])),
            Some(LaunchError::Empty {
                what: "cluster",
                ..
            })
        ));
        assert!(matches!(
            refusal(LaunchConfig::new([16, 1, 1], one).cluster([16, 1, 1])),
            Some(LaunchError::ClusterTooLarge {
                blocks: 16,
                limit: 8
            })
        ));
    }

    #[test]
    fn what_the_device_lacks_is_refused() {
        let old = Limits {
            clusters: false,
            cooperative: false,
            ..DEVICE
        };
        let plain = LaunchConfig::new([2, 1, 1], [1, 1, 1]);
        assert_eq!(
            check(&plain.cluster([2, 1, 1]), &old, &KERNEL),
            Err(LaunchError::NoClusters)
        );
        assert_eq!(
            check(&plain.cooperative(), &old, &KERNEL),
            Err(LaunchError::NoCooperativeLaunch)
        );
    }
}
