//! Attention with all its options, and the same as an operation of candle.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp3, Device, DeviceLocation, Layout, Result, Shape,
    Storage, Tensor,
};
use warptile::spec::{Operand, Scoring, Slots};

use crate::caller::{Caller, name_of};
use crate::locks::Locks;
use crate::{cpu, cuda};

/// Attention with its options: what the functions of candle-flash-attn can do, and what they cannot.
///
/// Scores are `softmax_scale * q·k`, then the softcap, then the ALiBi slopes, then the mask. Masks are aligned bottom-right: the
/// last query of a sequence is aligned with its last key. A query that sees no key gives 0.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use warptile_candle::Attention;
///
/// # fn main() -> candle_core::Result<()> {
/// let device = Device::Cpu; // or Device::new_cuda(0)?
/// let q = Tensor::randn(0f32, 1., (2, 5, 8, 64), &device)?; // batch, length, heads, head size
/// let k = Tensor::randn(0f32, 1., (2, 9, 2, 64), &device)?; // four query heads share a key/value head
/// let (out, lse) = Attention::new(0.125).causal().forward_with_lse(&q, &k, &k)?;
/// assert_eq!(out.dims(), [2, 5, 8, 64]);
/// assert_eq!(lse.dims(), [2, 8, 5]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until `forward` is called"]
pub struct Attention {
    pub(crate) caller: Caller,
    /// Without the mask, which depends on the longest key length.
    pub(crate) scoring: Scoring,
    pub(crate) window: [Option<usize>; 2],
    /// The tensors besides q, k and v.
    pub(crate) tensors: Slots<Option<Tensor>>,
    /// The most queries and the most keys of a sequence, if these are packed or paged.
    pub(crate) longest: [Option<usize>; 2],
}

macro_rules! number_methods {
    ($($(#[$doc:meta])* $name:ident: $Operand:ident;)*) => {
        impl Attention {
            $($(#[$doc])*
            #[doc = ""]
            #[doc = "A tensor of f32."]
            pub fn $name(self, $name: &Tensor) -> Self {
                self.with(Operand::$Operand, Some($name))
            })*
        }
    };
}
warptile::number_options!(number_methods);

impl Attention {
    /// Full attention between dense tensors, with this factor of `q·k`; usual is `1 / sqrt(head size)`.
    pub fn new(softmax_scale: f32) -> Self {
        Attention {
            caller: Caller("attention"),
            scoring: Scoring::new().scale(softmax_scale),
            window: [None, None],
            tensors: Slots::default(),
            longest: [None, None],
        }
    }

    /// No query sees a key after the diagonal.
    pub fn causal(self) -> Self {
        self.window(None, Some(0))
    }

    /// A query sees this many keys before and after the diagonal; `None` sets no limit, and neither does a number above the longest key
    /// length. `(None, Some(0))` is causal.
    pub fn window(mut self, left: Option<usize>, right: Option<usize>) -> Self {
        self.window = [left, right];
        self
    }

    /// Bounds the scores by `softcap * tanh(score / softcap)`; 0 sets no bound.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.scoring.softcap = Some(softcap).filter(|&softcap| softcap != 0.0);
        self
    }

    /// Drops weights with probability `p` after the softmax, and divides the others by `1 - p`. `p` is from 0 to below 1. `state` has
    /// eight words, u32 or i32, on the device of q: seed and offset, each with the low half first, then four zeros, or what else
    /// `DropoutState` of the crate warptile says. Another offset has another mask.
    ///
    /// Gradients have the mask of the output. On a GPU, kernels read the state when they run.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use warptile_candle::Attention;
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// let device = Device::Cpu;
    /// let q = Tensor::randn(0f32, 1., (2, 5, 8, 64), &device)?;
    /// let (seed, step) = (42, 1_000);
    /// let state = Tensor::new(&[seed, 0, step, 0, 0, 0, 0, 0u32], &device)?;
    /// let out = Attention::new(0.125).dropout(0.1, &state).forward(&q, &q, &q)?;
    /// assert_eq!(out.dims(), q.dims());
    /// # Ok(())
    /// # }
    /// ```
    pub fn dropout(mut self, p: f32, state: &Tensor) -> Self {
        self.scoring.dropout = Some(p).filter(|&p| p != 0.0);
        let state = self.scoring.dropout.map(|_| state);
        self.with(Operand::DropoutState, state)
    }

    /// k and v are quantized, as f8e4m3, and each of their numbers counts times its scale: f32, one for all key/value
    /// heads or one for each, on the device of q. They are what vLLM calls `k_scale` and `v_scale`;
    /// [`write_to_pages_quantized`](crate::write_to_pages_quantized) divides by them.
    ///
    /// On the CPU scales must be finite and above 0. On a GPU they are not checked, and a graph that captured the call reads them again at
    /// each replay; the head size must be a multiple of 16 up to 256 there, and q f16 or bf16.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use warptile_candle::Attention;
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// let device = Device::Cpu; // or Device::new_cuda(0)?
    /// let q = Tensor::randn(0f32, 1., (2, 1, 8, 64), &device)?.to_dtype(DType::F16)?;
    /// let k = Tensor::randn(0f32, 1., (2, 9, 2, 64), &Device::Cpu)?.to_dtype(DType::F8E4M3)?.to_device(&device)?;
    /// let scales = Tensor::new(&[0.02f32, 0.03], &device)?; // of the two key/value heads
    /// let out = Attention::new(0.125).scales(&scales, &scales).forward(&q, &k, &k)?;
    /// assert_eq!((out.dims(), out.dtype()), (q.dims(), DType::F16));
    /// # Ok(())
    /// # }
    /// ```
    pub fn scales(self, k_scale: &Tensor, v_scale: &Tensor) -> Self {
        self.with(Operand::KScale, Some(k_scale))
            .with(Operand::VScale, Some(v_scale))
    }

    /// The queries of different sequences lie one after the other: q is `(rows, heads, head size)`, and sequence `b` has the rows
    /// from `seqlens_q[b]` to `seqlens_q[b + 1]`, at most `max_seqlen_q`. `seqlens_q` is u32 or i32, one entry more than there are
    /// sequences, and on the device of q.
    ///
    /// On the CPU the entries are checked. On a GPU they are not, as that would wait for the device: longer sequences are cut
    /// off, and rows outside the tensor are not used.
    pub fn packed_queries(mut self, seqlens_q: &Tensor, max_seqlen_q: usize) -> Self {
        self.longest[0] = Some(max_seqlen_q);
        self.with(Operand::QueryOffsets, Some(seqlens_q))
    }

    /// As [`packed_queries`](Self::packed_queries), of k and v.
    pub fn packed_keys(self, seqlens_k: &Tensor, max_seqlen_k: usize) -> Self {
        self.keys([Some(seqlens_k), None, None], max_seqlen_k)
    }

    /// Keys and values lie in pages: k and v are `(pages, rows of a page, heads, head size)`, with any strides whose last is 1.
    /// Key `j` of sequence `b` is row `j % rows` of page `block_table[b][j / rows]`. `block_table` is `(sequences, pages of the
    /// longest)` and `key_lengths` `(sequences)`, not cumulative: u32 or i32, on the device of q. No sequence has more than
    /// `max_seqlen_k` keys. Without [`packed_queries`](Self::packed_queries), q is `(batch, length, heads, head size)`, as in a
    /// decode step.
    ///
    /// On a GPU the numbers are not checked: pages that do not exist are replaced by some that do. A graph that captured the call
    /// reads them again at each replay.
    pub fn paged(self, block_table: &Tensor, key_lengths: &Tensor, max_seqlen_k: usize) -> Self {
        self.keys([None, Some(block_table), Some(key_lengths)], max_seqlen_k)
    }

    /// Replaces offsets, block table and lengths of the keys.
    fn keys(mut self, [offsets, table, lengths]: [Option<&Tensor>; 3], longest: usize) -> Self {
        self.longest[1] = Some(longest);
        self.with(Operand::KeyOffsets, offsets)
            .with(Operand::BlockTable, table)
            .with(Operand::KeyLengths, lengths)
    }

    /// The tensor of an operand.
    pub(crate) fn with(mut self, operand: Operand, tensor: Option<&Tensor>) -> Self {
        self.tensors[operand] = tensor.cloned();
        self
    }

    /// Tells if a tensor is given for an operand.
    pub(crate) fn has(&self, operand: Operand) -> bool {
        self.tensors[operand].is_some()
    }

    /// Tells if keys and values lie in pages.
    pub(crate) fn is_paged(&self) -> bool {
        self.has(Operand::BlockTable)
    }

    /// Computes attention. The output is contiguous and has the shape of q. Gradients flow to q, k and v, except for
    /// pages, quantized keys and head sizes above 256: their backward pass is an error, and so is that of calls in which
    /// the tensor of an option is a variable or computed from one. Gradients have the same bits each time.
    /// `bwd` computes the output once more, for the log-sum-exp.
    ///
    /// # Errors
    /// A message that names the argument and the rule it breaks; what the GPU's driver reports.
    pub fn forward(self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let rows = [q, k, v];
        let tracked: Vec<Tensor> = { rows.into_iter().chain(self.lists().map(|(_, list)| list)) }
            .filter(|tensor| tensor.track_op())
            .cloned()
            .collect();
        match (tracked.first(), self.missing_gradient()) {
            (None, _) => Ok(self.run(rows, false)?.0),
            (Some(_), None) => q.apply_op3(k, v, self),
            (Some(first), Some(rule)) => {
                // Behind an operation without a derivative, such as `round`, the backward pass would not come to the error.
                let reaches = |tensor: &&Tensor| !tensor.sorted_nodes().is_empty();
                let tracked = match tracked.len() {
                    1 => first,
                    _ => tracked.iter().find(reaches).unwrap_or(first),
                };
                let (out, _) = self.compute(rows, false)?;
                tracked.apply_op1(Computed {
                    caller: self.caller,
                    out: Mutex::new(Some(out)),
                    shape: output_shape(q.layout(), v.layout()),
                    rule,
                })
            }
        }
    }

    /// The reason if the gradients of all calls with these options are an error.
    fn missing_gradient(&self) -> Option<String> {
        let missing = [
            (Operand::BlockTable, "in pages"),
            (Operand::KScale, "in 8 bits"),
        ];
        if let Some((operand, what)) = { missing.into_iter() }.find(|(given, _)| self.has(*given)) {
            let name = name_of(operand);
            return Some(format!(
                "{name} is given, but keys and values {what} have no backward pass"
            ));
        }
        let (operand, _) = self.lists().find(|(_, list)| list.track_op())?;
        Some(format!("{} has no gradient; detach it", name_of(operand)))
    }

    /// As [`forward`](Self::forward), with the log-sum-exp of each row's scores: f32, `(batch, heads, length)`, or `(heads, rows)`
    /// of packed queries. Natural logarithm; minus infinity for a query that sees no key. No gradient flows through either.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_with_lse(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (out, lse) = self.run([q, k, v], true)?;
        let lse = lse.ok_or_else(|| self.caller.broken("the lse was not computed"))?;
        Ok((out, lse))
    }

    /// The output, and the lse if it is wanted.
    fn run(&self, tensors: [&Tensor; 3], want_lse: bool) -> Result<(Tensor, Option<Tensor>)> {
        let (out, lse) = self.compute(tensors, want_lse)?;
        let tensor =
            |storage, shape| Tensor::from_storage(storage, shape, BackpropOp::none(), false);
        let [q, _, v] = tensors.map(Tensor::layout);
        let lse_shape = match *q.dims() {
            [batch, length, heads, _] => Shape::from((batch, heads, length)),
            [rows, heads, _] => Shape::from((heads, rows)),
            _ => return Err(self.caller.broken("q has no rows")),
        };
        Ok((
            tensor(out, output_shape(q, v)),
            lse.map(|lse| tensor(lse, lse_shape)),
        ))
    }

    /// As [`run`](Self::run), without the shapes.
    fn compute(&self, tensors: [&Tensor; 3], want_lse: bool) -> Result<(Storage, Option<Storage>)> {
        let place = tensors[0].device().location();
        for (name, tensor) in [("k", tensors[1]), ("v", tensors[2])] {
            self.caller.check_place(name, tensor, "q", &place)?;
        }
        let layouts = tensors.map(Tensor::layout);
        let described = self.describe(tensors.map(Tensor::dtype), layouts, &place)?;
        let rows = { ROWS.into_iter() }.zip(tensors);
        Ok(match place {
            DeviceLocation::Cpu => {
                let lists = cpu::lists(self.caller, self.lists())?;
                let mut locks = Locks::new(rows);
                locks.take(usize::MAX);
                let storages = self.storages(&locks, |storage| match storage {
                    Storage::Cpu(storage) => Some(storage),
                    _ => None,
                })?;
                let (out, lse) =
                    cpu::forward(self, &described, storages, layouts, &lists, want_lse)?;
                (Storage::Cpu(out), lse.map(Storage::Cpu))
            }
            _ => {
                let mut locks = Locks::new(rows.chain(self.lists()));
                locks.take(usize::MAX);
                let storages = self.storages(&locks, |storage| match storage {
                    Storage::Cuda(storage) => Some(storage),
                    _ => None,
                })?;
                let (out, lse) =
                    cuda::forward(self, &described, storages, layouts, &locks, want_lse)?;
                (Storage::Cuda(out), lse.map(Storage::Cuda))
            }
        })
    }

    /// The gradients of q, k and v from that of the output. The forward pass is computed once more: candle keeps its
    /// output alone, without the log-sum-exp.
    pub(crate) fn gradients(&self, tensors: [&Tensor; 3], grad: &Tensor) -> Result<[Tensor; 3]> {
        if let Some(rule) = self.missing_gradient() {
            return Err(self.caller.broken(rule));
        }
        let (out, lse) = self.run(tensors, true)?;
        let lse = lse.ok_or_else(|| self.caller.broken("the lse was not computed"))?;
        let grad = grad.contiguous()?;
        let layouts = tensors.map(Tensor::layout);
        let (device, dtype) = (tensors[0].device(), tensors[0].dtype());
        let described = self.describe(tensors.map(Tensor::dtype), layouts, &device.location())?;
        let read = [
            (Operand::Out, &out),
            (Operand::DOut, &grad),
            (Operand::Lse, &lse),
        ];
        let read = { ROWS.into_iter() }.zip(tensors).chain(read);
        let storages = match device {
            Device::Cuda(device) => {
                let mut locks = Locks::new(read.chain(self.lists()));
                locks.take(usize::MAX);
                cuda::backward(self, &described, device, &locks, dtype, layouts)?.map(Storage::Cuda)
            }
            _ => {
                let lists = cpu::lists(self.caller, self.lists())?;
                let mut locks = Locks::new(read);
                locks.take(usize::MAX);
                cpu::backward(self, &described, &locks, &lists, dtype)?.map(Storage::Cpu)
            }
        };
        let mut shapes = tensors.map(|tensor| tensor.shape().clone()).into_iter();
        Ok(storages.map(|storage| {
            let shape = shapes.next().unwrap_or_else(|| Shape::from(()));
            Tensor::from_storage(storage, shape, BackpropOp::none(), false)
        }))
    }

    /// The memory of q, k and v, which is of one kind.
    fn storages<'b, S>(
        &self,
        locks: &'b Locks<'_>,
        of_kind: impl Fn(&'b Storage) -> Option<&'b S>,
    ) -> Result<[&'b S; 3]> {
        let storage = |operand| of_kind(locks.get(operand)?.0);
        match ROWS.map(storage) {
            [Some(q), Some(k), Some(v)] => Ok([q, k, v]),
            _ => Err(self
                .caller
                .broken("the tensors are neither on the CPU nor on an NVIDIA GPU")),
        }
    }

    /// The tensors besides q, k and v.
    pub(crate) fn lists(&self) -> impl Iterator<Item = (Operand, &Tensor)> {
        self.tensors.given()
    }

    /// With this name in messages and in candle's graph. Default: `attention`.
    pub fn named(mut self, name: &'static str) -> Self {
        self.caller = Caller(name);
        self
    }
}

/// The gradients of [`ROWS`].
pub(crate) const GRADIENTS: [Operand; 3] = [Operand::DQ, Operand::DK, Operand::DV];

/// The tensors that every call has.
pub(crate) const ROWS: [Operand; 3] = [Operand::Q, Operand::K, Operand::V];

/// The shape of q, with the head size of v.
fn output_shape(q: &Layout, v: &Layout) -> Shape {
    let mut dims = q.dims().to_vec();
    if let (Some(size), Some(&of_values)) = (dims.last_mut(), v.dims().last()) {
        *size = of_values;
    }
    Shape::from(dims)
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        self.caller.0
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (storages, layouts) = ([q, k, v], [q_l, k_l, v_l]);
        let types = storages.map(BackendStorage::dtype);
        let described = self.describe(types, layouts, &DeviceLocation::Cpu)?;
        let lists = cpu::lists(self.caller, self.lists())?;
        let (out, _) = cpu::forward(self, &described, storages, layouts, &lists, false)?;
        Ok((out, output_shape(q_l, v_l)))
    }

    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_l: &Layout,
        k: &CudaStorage,
        k_l: &Layout,
        v: &CudaStorage,
        v_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (storages, layouts) = ([q, k, v], [q_l, k_l, v_l]);
        let described = cuda::describe(self, storages, layouts)?;
        let mut locks = Locks::new(self.lists());
        locks.take(usize::MAX);
        let (out, _) = cuda::forward(self, &described, storages, layouts, &locks, false)?;
        Ok((out, output_shape(q_l, v_l)))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _out: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dq, dk, dv] = self.gradients([q, k, v], grad)?;
        Ok((Some(dq), Some(dk), Some(dv)))
    }
}

/// The output of a call that has no gradients, as an operation on one of its tensors: its backward pass is an error. In [`CustomOp3`]
/// candle would lock q, k and v in their own order while the call is computed.
struct Computed {
    caller: Caller,
    /// Taken by the forward pass.
    out: Mutex<Option<Storage>>,
    shape: Shape,
    /// Why there are no gradients.
    rule: String,
}

impl Computed {
    fn take(&self) -> Option<Storage> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.take()
    }

    fn missing(&self) -> candle_core::Error {
        self.caller.broken("the output is not on the device of q")
    }
}

impl CustomOp1 for Computed {
    fn name(&self) -> &'static str {
        self.caller.0
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        match self.take() {
            Some(Storage::Cpu(out)) => Ok((out, self.shape.clone())),
            _ => Err(self.missing()),
        }
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        match self.take() {
            Some(Storage::Cuda(out)) => Ok((out, self.shape.clone())),
            _ => Err(self.missing()),
        }
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        Err(self.caller.broken(&self.rule))
    }
}
