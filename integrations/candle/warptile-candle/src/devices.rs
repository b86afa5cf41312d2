//! Attention of one long sequence over several devices.

use candle_core::op::BackpropOp;
use candle_core::{DType, Device, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};
use warptile::{Backend, Layout};
use warptile_distributed::{Group, Shards, World};

use crate::attention::{Attention, ROWS};
use crate::caller::{Caller, Sizes};
use crate::cuda::{Number, Rank};

const CALLER: Caller = Caller("forward_over");

/// Devices that compute a call together, in the order of ranks: [`Attention::forward_over`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warptile_candle::{Attention, Devices, Sharding};
///
/// # fn main() -> candle_core::Result<()> {
/// let devices = Devices::local(&[Device::Cpu, Device::Cpu])?; // or Device::new_cuda(0)?, Device::new_cuda(1)?
/// let shards = devices.shards(&Sharding::Zigzag, 1000)?;
/// // Each device has its own rows of the sequence.
/// let rows = |heads: usize| -> candle_core::Result<Vec<Tensor>> {
///     let all = Tensor::randn(0f32, 1., (1, 1000, heads, 64), &Device::Cpu)?; // batch, length, heads, head size
///     devices.split(&shards, &all)
/// };
/// let (q, k) = (rows(8)?, rows(2)?);
/// let out = Attention::new(0.125).causal().forward_over(&devices, &shards, [&q, &k, &k])?;
/// assert_eq!(devices.join(&shards, &out, &Device::Cpu)?.dims(), [1, 1000, 8, 64]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Devices {
    group: Group,
    /// Those of this process, by rank.
    places: Vec<Place>,
}

/// Where a rank's tensors are.
#[derive(Debug)]
enum Place {
    Cpu,
    Gpu(Rank),
}

impl Place {
    fn new(device: &Device) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Place::Cpu),
            Device::Cuda(device) => Ok(Place::Gpu(Rank::new(CALLER, device)?)),
            Device::Metal(_) => Err(CALLER.broken("the devices are NVIDIA GPUs, or the CPU")),
        }
    }

    fn backend(&self) -> Backend {
        match self {
            Place::Cpu => Backend::cpu(),
            Place::Gpu(rank) => rank.backend(),
        }
    }

    fn device(&self) -> Device {
        match self {
            Place::Cpu => Device::Cpu,
            Place::Gpu(rank) => rank.device(),
        }
    }

    /// `(1, rows, heads, head size)` as a tensor of warptile's, which has the heads before the rows.
    fn take<T: Number + WithDType>(&self, rows: &Tensor) -> Result<warptile::Tensor<T>> {
        let rows = rows.transpose(1, 2)?.contiguous()?;
        let (_, heads, len, dim) = rows.dims4()?;
        let layout = Layout::bhsd([1, heads, len, dim]);
        match self {
            Place::Cpu => {
                let data = rows.flatten_all()?.to_vec1::<T>()?;
                warptile::Tensor::from_vec(&Backend::cpu(), data, layout).map_err(failed)
            }
            Place::Gpu(rank) => rank.take(CALLER, &rows, layout),
        }
    }

    /// The other way round.
    fn give<T: Number + WithDType>(&self, found: &warptile::Tensor<T>) -> Result<Tensor> {
        let [_, len, heads, dim] = found.shape();
        let shape = Shape::from((1, heads, len, dim));
        let rows = match self {
            Place::Cpu => Tensor::from_vec(found.to_vec().map_err(failed)?, shape, &Device::Cpu)?,
            Place::Gpu(rank) => {
                let storage = Storage::Cuda(rank.give(CALLER, found)?);
                Tensor::from_storage(storage, shape, BackpropOp::none(), false)
            }
        };
        rows.transpose(1, 2)
    }
}

impl Devices {
    /// At least two devices of this process: GPUs, which copy from each other's memory, or the CPU several times over. A GPU may be there
    /// several times.
    ///
    /// # Errors
    /// The group is refused, for example because GPUs do not reach each other's memory.
    pub fn local(devices: &[Device]) -> Result<Self> {
        let places = devices.iter().map(Place::new).collect::<Result<Vec<_>>>()?;
        let group = Group::local(places.iter().map(Place::backend)).map_err(of_group)?;
        Ok(Devices { group, places })
    }

    /// The GPU of this process, among processes that NCCL connects: the tensors are those of one rank then. Waits until all have called
    /// this. Results count once [`Group::synchronize`] has succeeded.
    ///
    /// # Errors
    /// As `Group::nccl` of warptile-distributed.
    pub fn nccl(world: &World, device: &Device) -> Result<Self> {
        let place = Place::new(device)?;
        let group = Group::nccl(world, &place.backend()).map_err(of_group)?;
        Ok(Devices {
            group,
            places: vec![place],
        })
    }

    /// The group, to wait for it.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Deals the rows of sequences to the ranks.
    ///
    /// # Errors
    /// As [`Group::shards`].
    pub fn shards(
        &self,
        sharding: &warptile_distributed::Sharding,
        len: usize,
    ) -> Result<Shards<'_>> {
        self.group.shards(sharding, len).map_err(of_group)
    }

    /// The rows of each rank of this process, on its device, of a tensor `(1, length, ...)`.
    ///
    /// # Errors
    /// If it does not have the rows of all shards.
    pub fn split(&self, shards: &Shards<'_>, all: &Tensor) -> Result<Vec<Tensor>> {
        let len = shards.map().len();
        if all.dims().get(..2) != Some(&[1, len]) {
            return Err(CALLER.wrong_shape("all", all.dims(), &format!("(1, {len}, ...)")));
        }
        let ranks = self.group.local_ranks().zip(&self.places);
        let rows = ranks.map(|(rank, place)| {
            let chunks = shards.map().chunks(rank).iter();
            let chunks = chunks.map(|chunk| all.narrow(1, chunk.rows.start, chunk.rows.len()));
            cat(&chunks.collect::<Result<Vec<_>>>()?, all)?.to_device(&place.device())
        });
        rows.collect()
    }

    /// The rows of all ranks as one tensor on a device.
    ///
    /// # Errors
    /// If other processes have some; if there is not one tensor for each rank.
    pub fn join(&self, shards: &Shards<'_>, rows: &[Tensor], device: &Device) -> Result<Tensor> {
        let map = shards.map();
        if rows.len() != map.ranks() {
            let (ranks, found) = (map.ranks(), rows.len());
            return Err(CALLER.broken(format!(
                "rows has {found} tensors, but there are {ranks} ranks"
            )));
        }
        let mut chunks = Vec::new();
        for (rank, rows) in rows.iter().enumerate() {
            let (rows, mut at) = (rows.to_device(device)?, 0);
            for chunk in map.chunks(rank) {
                chunks.push((chunk.rows.start, rows.narrow(1, at, chunk.rows.len())?));
                at += chunk.rows.len();
            }
        }
        chunks.sort_by_key(|(start, _)| *start);
        let chunks: Vec<_> = chunks.into_iter().map(|(_, rows)| rows).collect();
        cat(&chunks, &rows[0])?.to_device(device)
    }
}

/// Chunks of rows one after the other. If there are none, no rows of the tensor `of`.
fn cat(chunks: &[Tensor], of: &Tensor) -> Result<Tensor> {
    match chunks.is_empty() {
        true => of.narrow(1, 0, 0),
        false => Tensor::cat(chunks, 1),
    }
}

impl Attention {
    /// Attention of sequences to themselves, whose rows are dealt to several devices. q, k and v have a tensor for each rank of this
    /// process, `(1, rows, heads, head size)`, and so has the output. Of the options those of scores are taken, their tensors from any
    /// device. No gradient flows.
    ///
    /// # Errors
    /// Another option; tensors that are not their rank's; what warptile-distributed refuses.
    pub fn forward_over(
        &self,
        devices: &Devices,
        shards: &Shards<'_>,
        rows: [&[Tensor]; 3],
    ) -> Result<Vec<Tensor>> {
        let caller = CALLER;
        for (operand, all) in ROWS.into_iter().zip(rows) {
            let (name, ranks, found) = (operand.name(), devices.places.len(), all.len());
            if found != ranks {
                return Err(caller.broken(format!(
                    "{name} has {found} tensors, but this process has {ranks} ranks"
                )));
            }
            for (tensor, place) in all.iter().zip(&devices.places) {
                caller.check_place(
                    name,
                    tensor,
                    "the rank's device",
                    &place.device().location(),
                )?;
                if tensor.rank() != 4 || tensor.dim(0)? != 1 {
                    let rule = "(1, rows, heads, head size)";
                    return Err(caller.wrong_shape(name, tensor.dims(), rule));
                }
            }
        }
        let [q, k, v] = rows;
        let dtypes = [("q", q), ("k", k), ("v", v)];
        let dtypes = dtypes.map(|(name, all)| all.iter().map(move |one| (name, one.dtype())));
        caller.element(&dtypes.into_iter().flatten().collect::<Vec<_>>())?;
        let attention = self.options(shards.map().len(), q[0].dim(2)?)?;
        match q[0].dtype() {
            DType::F16 => over::<f16>(devices, shards, &attention, rows),
            DType::BF16 => over::<bf16>(devices, shards, &attention, rows),
            _ => over::<f32>(devices, shards, &attention, rows),
        }
    }

    /// The options of sequences of this length with as many query heads, as warptile has them.
    fn options(&self, len: usize, heads: usize) -> Result<warptile::Attention> {
        let mut attention = warptile::Attention::new()
            .scoring(self.scoring.mask(self.mask(len)))
            .without_lse();
        for (operand, tensor) in self.lists() {
            let numbers = || tensor.to_device(&Device::Cpu)?.to_vec1::<f32>();
            if operand.word().is_none() {
                let name = crate::caller::name_of(operand);
                return Err(CALLER.broken(format!("{name} is not taken over several devices")));
            }
            let sizes = Sizes {
                heads,
                ..Sizes::default()
            };
            let place = tensor.device().location();
            CALLER.check_list(operand, tensor, ("it", &place), sizes)?;
            attention = attention.numbers(operand, &numbers()?);
        }
        Ok(attention)
    }
}

fn over<T: Number + WithDType>(
    devices: &Devices,
    shards: &Shards<'_>,
    attention: &warptile::Attention,
    rows: [&[Tensor]; 3],
) -> Result<Vec<Tensor>> {
    let taken = |rows: &[Tensor]| {
        let all = rows.iter().zip(&devices.places);
        all.map(|(rows, place)| place.take::<T>(rows))
            .collect::<Result<Vec<_>>>()
    };
    let [q, k, v] = [taken(rows[0])?, taken(rows[1])?, taken(rows[2])?];
    let found = shards.forward(attention, &q, (&k, &v)).map_err(of_group)?;
    let all = found.out.iter().zip(&devices.places);
    all.map(|(found, place)| place.give(found)).collect()
}

fn failed(error: warptile::Error) -> candle_core::Error {
    CALLER.failed(error)
}

fn of_group(error: warptile_distributed::Error) -> candle_core::Error {
    CALLER.broken(error)
}
