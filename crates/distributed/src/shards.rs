//! Tensors of which each rank has its own rows.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use warptile::driver::DeviceBuffer;
use warptile::spec::Operand;
use warptile::{Attention, Element, Layout, Tensor};

use crate::error::{Error, OfRank, Result};
use crate::gather;
use crate::group::{Group, Streams};
use crate::heads;
use crate::hybrid;
use crate::lse::{Piece, ShardedLse};
use crate::nccl::control::FIELD;
use crate::plan::Scheme;
use crate::shard::RowMap;

/// The rows of a sequence, or of packed documents, dealt to the ranks of a group.
///
/// A sharded tensor is one [`Tensor`] a rank, of batch 1 with the rank's rows in the order of [`RowMap::chunks`], in a BHSD layout:
/// the rows of a head lie next to each other.
#[derive(Debug)]
pub struct Shards<'a> {
    group: &'a Group,
    map: RowMap,
    scheme: Scheme,
    /// Lists that ranks on GPUs gave their kernels.
    lists: Mutex<Lists>,
}

/// The result of [`Shards::forward`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Output<T: Element> {
    /// The output of each rank's rows.
    pub out: Vec<Tensor<T>>,
    /// The log-sum-exp of all rows, unless turned off.
    pub lse: Option<ShardedLse>,
}

impl<T: Element> Output<T> {
    pub(crate) fn new(out: Vec<Tensor<T>>, attention: &Attention, lse: Vec<Vec<Piece>>) -> Self {
        let lse = attention.wants_lse().then_some(ShardedLse(lse));
        Output { out, lse }
    }
}

/// The result of [`Shards::backward`]: gradients of each rank's rows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Gradients<T: Element> {
    /// Gradients of the queries.
    pub dq: Vec<Tensor<T>>,
    /// Gradients of the keys.
    pub dk: Vec<Tensor<T>>,
    /// Gradients of the values.
    pub dv: Vec<Tensor<T>>,
    /// The gradients of [`Attention::gradients_of_numbers`], each `[1, 1, heads, 1]` on rank 0. Other processes have none.
    pub numbers: Vec<(Operand, Tensor<f32>)>,
}

impl<T: Element> Gradients<T> {
    /// `numbers`: those of [`Attention::gradients_of_numbers`] that this process has.
    pub(crate) fn new(
        [dq, dk, dv]: [Vec<Tensor<T>>; 3],
        numbers: Vec<(Operand, Tensor<f32>)>,
    ) -> Self {
        Gradients {
            dq,
            dk,
            dv,
            numbers,
        }
    }
}

/// By rank and contents.
type Lists = HashMap<(usize, Vec<i32>), Arc<DeviceBuffer<i32>>>;

impl<'a> Shards<'a> {
    pub(crate) fn new(group: &'a Group, map: RowMap) -> Self {
        Shards {
            group,
            map,
            scheme: Scheme::default(),
            lists: Mutex::default(),
        }
    }

    /// A list in the memory of a rank's GPU. Waits for the GPU when it is asked for first.
    pub(crate) fn on_device(
        &self,
        rank: usize,
        streams: &Streams,
        list: &[i32],
    ) -> warptile::Result<Arc<DeviceBuffer<i32>>> {
        let lock = || self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (rank, list.to_vec());
        if let Some(known) = lock().get(&key) {
            return Ok(known.clone());
        }
        let list = Arc::new(DeviceBuffer::from_slice(&streams.kernels, list)?);
        lock().insert(key, list.clone());
        Ok(list)
    }

    /// Sets how calls are computed. Default: [`Scheme::Gather`].
    pub fn scheme(self, scheme: Scheme) -> Self {
        Shards { scheme, ..self }
    }

    /// The group.
    pub fn group(&self) -> &'a Group {
        self.group
    }

    /// Who has which rows.
    pub fn map(&self) -> &RowMap {
        &self.map
    }

    /// Splits host data, stored as `[length, heads, head size]`: one tensor a rank of this process.
    ///
    /// # Errors
    /// [`Error::Sharding`] if `data` has another number of elements; [`Error::Rank`] when a device is out of memory.
    pub fn split<T: Element>(
        &self,
        data: &[T],
        heads: usize,
        head_dim: usize,
    ) -> Result<Vec<Tensor<T>>> {
        let row = heads * head_dim;
        if data.len() != self.map.len() * row {
            return Err(Error::Sharding(format!(
                "{} elements are not {} rows of {heads} heads of size {head_dim}",
                data.len(),
                self.map.len()
            )));
        }
        let split = |rank| {
            let mut local = Vec::with_capacity(self.map.local_len(rank) * row);
            for head in 0..heads {
                for at in self.map.rows(rank) {
                    local.extend_from_slice(&data[at * row + head * head_dim..][..head_dim]);
                }
            }
            let layout = Layout::bhsd([1, heads, self.map.local_len(rank), head_dim]);
            Tensor::from_vec(self.group.backend(rank), local, layout).of_rank(rank)
        };
        self.group.local_ranks().map(split).collect()
    }

    /// Joins a sharded tensor on the host, as `[length, heads, head size]`. Waits for what computes it.
    ///
    /// # Errors
    /// [`Error::Argument`] for a tensor that is not of this sharding; [`Error::Rank`] with what a device reports.
    pub fn join<T: Element>(&self, tensors: &[Tensor<T>]) -> Result<Vec<T>> {
        self.group.one_process("join")?;
        let [heads, head_dim] = self.check("tensor", tensors, None)?;
        let parts = tensors.iter().enumerate();
        let parts = parts.map(|(rank, tensor)| tensor.to_vec().of_rank(rank));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        Ok(self.map.join(&parts, heads, head_dim))
    }

    /// Joins the log-sum-exp of all rows on the host, as `[length, heads]`. Waits for what computes it.
    ///
    /// # Errors
    /// [`Error::Argument`] for the lse of another number of rows; [`Error::Rank`] with what a device reports.
    pub fn join_lse(&self, lse: &ShardedLse) -> Result<Vec<f32>> {
        self.group.one_process("join_lse")?;
        lse.join(self.map.len())
    }

    /// Attention of all rows to all rows of their document. Each output row is computed by one launch on its owner's device; on GPUs the
    /// call returns when the work is submitted. Options with numbers for each head take one group of heads, and not [`Scheme::Heads`].
    ///
    /// # Errors
    /// [`Error::Argument`] for a tensor that is not of this sharding; [`Error::Rank`] with the rank whose part failed, or over several
    /// processes [`Error::Failure`] on all of them, which ends the group. There is no output unless all ranks have theirs.
    pub fn forward<T: Element>(
        &self,
        attention: &Attention,
        q: &[Tensor<T>],
        (k, v): (&[Tensor<T>], &[Tensor<T>]),
    ) -> Result<Output<T>> {
        self.check_call(q, [k, v])?;
        match self.scheme {
            Scheme::Gather => gather::forward(self, attention, q, [k, v]),
            Scheme::Heads => heads::forward(self, attention, q, [k, v]),
            Scheme::Hybrid { hosts } => hybrid::forward(self, hosts, attention, q, [k, v]),
        }
    }

    /// Computes a call, which the ranks of several processes compare before they exchange rows. A failure of one rank is that of all.
    pub(crate) fn agreed<T: Element, R>(
        &self,
        call: &str,
        attention: &Attention,
        [q, k, v]: [[usize; 4]; 3],
        compute: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.group.refuse_capture()?;
        let Some(nccl) = self.group.processes() else {
            return compute();
        };
        let mut sharding = DefaultHasher::new();
        self.map.hash(&mut sharding);
        let call = [
            format!("{call} by {} of {} rows", self.scheme, self.map.len()),
            format!("a sharding of digest {:x}", sharding.finish()),
            format!("{} query heads for {} of keys", q[2], k[2]),
            format!("head sizes {}, {} and {}", q[3], k[3], v[3]),
            format!("elements of {}", std::any::type_name::<T>()),
            format!("{attention:?}"),
        ];
        nccl.agreed(&call.join(&FIELD.to_string()), compute)
    }

    /// The gradients of queries, keys and values, and of options' numbers, from that of the output. The arguments are those of
    /// [`forward`](Self::forward), which gave `output` with its lse. Shares of several ranks are added in `f32`, in the order of the ranks,
    /// and rounded once: equal arguments give the same bits each time.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and as [`Attention::backward`]; [`Error::Argument`] where a gradient would be a sum of more than 32
    /// ranks' shares.
    pub fn backward<T: Element>(
        &self,
        attention: &Attention,
        d_out: &[Tensor<T>],
        q: &[Tensor<T>],
        (k, v): (&[Tensor<T>], &[Tensor<T>]),
        output: &Output<T>,
    ) -> Result<Gradients<T>> {
        let of_output = self.check_call(q, [k, v])?;
        self.check("d_out", d_out, Some(of_output))?;
        self.check("out", &output.out, Some(of_output))?;
        let Some(lse) = &output.lse else {
            let rule = "the output has no lse: it must not be turned off".to_owned();
            let rank = self.group.local_ranks().start;
            return Err(Error::Argument { rank, rule });
        };
        let output = (&output.out[..], lse);
        match self.scheme {
            Scheme::Gather => gather::backward(self, attention, d_out, q, [k, v], output),
            Scheme::Heads => heads::backward(self, attention, d_out, q, [k, v], output),
            Scheme::Hybrid { hosts } => {
                hybrid::backward(self, hosts, attention, d_out, q, [k, v], output)
            }
        }
    }

    /// Checks the arguments of a call. Returns the heads of its output and their size.
    fn check_call<T: Element>(
        &self,
        q: &[Tensor<T>],
        [k, v]: [&[Tensor<T>]; 2],
    ) -> Result<[usize; 2]> {
        let [heads, _] = self.check("q", q, None)?;
        let [kv_heads, _] = self.check("k", k, None)?;
        let [v_heads, value_dim] = self.check("v", v, None)?;
        if kv_heads == 0 || v_heads != kv_heads || !heads.is_multiple_of(kv_heads) {
            return Err(Error::Argument {
                rank: self.group.local_ranks().start,
                rule: format!(
                    "{heads} query heads do not share {kv_heads} key and {v_heads} value heads"
                ),
            });
        }
        Ok([heads, value_dim])
    }

    /// Checks a sharded tensor, whose heads and head size are those of the first rank if they are not given. Returns them.
    fn check<T: Element>(
        &self,
        name: &str,
        tensors: &[Tensor<T>],
        of: Option<[usize; 2]>,
    ) -> Result<[usize; 2]> {
        let ranks = self.group.local_ranks();
        if tensors.len() != ranks.len() {
            return Err(Error::Argument {
                rank: ranks.start + tensors.len().min(ranks.len()),
                rule: format!(
                    "{name} has {} tensors for {} ranks",
                    tensors.len(),
                    ranks.len()
                ),
            });
        }
        let [_, _, first_heads, first_dim] = tensors[0].shape();
        let [heads, head_dim] = of.unwrap_or([first_heads, first_dim]);
        for (rank, tensor) in ranks.zip(tensors) {
            let backend = self.group.backend(rank);
            let rule = |rule: String| Err(Error::Argument { rank, rule });
            let layout = Layout::bhsd([1, heads, self.map.local_len(rank), head_dim]);
            if tensor.shape() != layout.shape {
                return rule(format!(
                    "{name} has shape {:?}, but its rows need {:?}",
                    tensor.shape(),
                    layout.shape
                ));
            }
            if !tensor.backend().is_same(backend) {
                return rule(format!(
                    "{name} is on {}, not on {backend}",
                    tensor.backend()
                ));
            }
            if *tensor.layout() != layout {
                return rule(format!("{name} must be dense in BHSD order"));
            }
        }
        Ok([heads, head_dim])
    }
}
