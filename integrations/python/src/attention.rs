//! `attention` and `explain`: the arguments checked against each other, and the call that they make.

use pyo3::prelude::*;
use warptile::gpu::Addresses;
use warptile::kernels::Excerpt;
use warptile::{AlibiShape, Call, Choice, DeviceProfile, Plan, Scoring};

use crate::arguments::{Lengths, Options, Reader, Scales};
use crate::array::{Array, Described, Device, Dtype, Gradients, Library, Order};
use crate::cpu::{self, Tensors};
use crate::errors::{Failure, Result};
use crate::gpu;
use crate::library::{self, Fill};

/// One call with everything that belongs to it.
pub(crate) struct Request<'py> {
    reader: Reader,
    order: Order,
    choice: Choice,
    call: Call,
    q: Array<'py>,
    k: Array<'py>,
    v: Array<'py>,
    scales: Option<Scales<'py>>,
    out: Option<Array<'py>>,
    lse: Option<Array<'py>>,
    slopes: Option<Array<'py>>,
    sinks: Option<Array<'py>>,
    host_slopes: Option<Vec<f32>>,
    host_sinks: Option<Vec<f32>>,
    bias: Option<Array<'py>>,
    key_mask: Option<Array<'py>>,
    cu_seqlens_q: Option<Lengths<'py>>,
    cu_seqlens_k: Option<Lengths<'py>>,
    seqused_q: Option<Lengths<'py>>,
    seqused_k: Option<Lengths<'py>>,
    block_table: Option<Lengths<'py>>,
}

impl<'py> Request<'py> {
    /// Reads all arguments and checks them against each other.
    pub(crate) fn new(
        q: &Bound<'py, PyAny>,
        k: &Bound<'py, PyAny>,
        v: &Bound<'py, PyAny>,
        options: &Options<'py>,
        gradients: Gradients,
    ) -> Result<Self> {
        let read = Reader::of("q", q, options.stream, gradients)?;
        let order = Order::parse(options.layout.as_deref().unwrap_or("bshd"))?;
        let packed_q = options.cu_seqlens_q.is_some();
        let paged = options.block_table.is_some();
        let packed_k = options.cu_seqlens_k.is_some() && !paged;
        let (q, k, v) = (
            read.array("q", q)?,
            read.array("k", k)?,
            read.array("v", v)?,
        );
        let out = read.output("out", options.out.as_ref())?;
        let lse = read.output("lse", options.lse.as_ref())?;
        let element = q.is.element()?;
        let scales = read.scales(
            [&k, &v],
            [options.k_descale.as_ref(), options.v_descale.as_ref()],
        )?;
        let same = [&k, &v].into_iter().filter(|_| scales.is_none());
        for other in same.chain(&out) {
            if other.is.element()? != element {
                return Err(other.is.wrong_dtype(&format!("{}, as q has", q.is.dtype)));
            }
        }
        let q_layout = q.is.tensor(order, packed_q)?;
        // Pages have their rows second, unless the order of heads and rows is the other one.
        let k_layout = k.is.tensor(order, packed_k)?;
        let v_layout = v.is.tensor(order, packed_k)?;

        let mut scoring = Scoring::new().mask(options.mask()?);
        scoring.scale = options.scale;
        scoring.softcap = options.softcap.filter(|&softcap| softcap != 0.0);
        let (slopes, host_slopes, slopes_shape) =
            read.floats("alibi_slopes", options.alibi_slopes.as_ref())?;
        let (sinks, host_sinks, sinks_shape) = read.floats("sinks", options.sinks.as_ref())?;
        scoring.sinks = options.sinks.is_some();
        scoring.alibi = match slopes_shape.len() {
            0 => None,
            1 => Some(AlibiShape::PerHead),
            _ => Some(AlibiShape::PerBatchHead),
        };
        let bias = read.optional("bias", options.bias.as_ref())?;
        if let Some(bias) = &bias
            && bias.is.element()? != element
        {
            return Err(bias.is.wrong_dtype(&format!("{}, as q has", q.is.dtype)));
        }
        let key_mask = read.optional("key_mask", options.key_mask.as_ref())?;
        if let Some(key_mask) = &key_mask {
            key_mask
                .is
                .expect_dtype(&[Dtype::Bool, Dtype::U8], "bool or uint8")?;
        }
        scoring.bias = bias.is_some();
        scoring.key_mask = key_mask.is_some();

        let cu_seqlens_q = read.lengths("cu_seqlens_q", options.cu_seqlens_q.as_ref(), false)?;
        let cu_seqlens_k = match paged {
            false => read.lengths("cu_seqlens_k", options.cu_seqlens_k.as_ref(), false)?,
            true if options.cu_seqlens_k.is_some() => {
                return Err(Failure::Invalid(
                    "cu_seqlens_k is given, but keys in pages are not packed; seqused_k says how many there are"
                        .to_owned(),
                ));
            }
            true => None,
        };
        let seqused_q = read.lengths("seqused_q", options.seqused_q.as_ref(), false)?;
        let seqused_k = read.lengths("seqused_k", options.seqused_k.as_ref(), false)?;
        let block_table = read.lengths("block_table", options.block_table.as_ref(), true)?;

        let want_lse = lse.is_some() || options.return_lse;
        let mut builder = Call::builder(&q_layout, &k_layout, &v_layout, element)
            .scoring(scoring)
            .quantized(scales.as_ref().map(Scales::quantization))
            .want_lse(want_lse);
        if let Some(out) = &out {
            builder = builder.out(out.is.tensor(order, packed_q)?);
        }
        if let Some(bias) = &bias {
            builder = builder.bias(bias.is.scores());
        }
        if let Some(key_mask) = &key_mask {
            builder = builder.key_mask(key_mask.is.scores());
        }
        let unaligned = |array: &Array<'_>| !array.is.address.is_multiple_of(16);
        if [Some(&q), Some(&k), Some(&v), out.as_ref()]
            .into_iter()
            .flatten()
            .any(unaligned)
        {
            builder = builder.unaligned_addresses();
        }
        if let Some(lengths) = &cu_seqlens_q {
            builder = match lengths.on_host() {
                Some(offsets) => builder.packed_queries(offsets),
                None => {
                    let sequences = sequences("cu_seqlens_q", lengths.count())?;
                    let longest = options.max_seqlen_q.unwrap_or(q_layout.rows());
                    builder.device_query_offsets(sequences, longest)
                }
            };
        }
        if let Some(lengths) = &cu_seqlens_k {
            builder = match lengths.on_host() {
                Some(offsets) => builder.packed_keys(offsets),
                None => {
                    let sequences = sequences("cu_seqlens_k", lengths.count())?;
                    let longest = options.max_seqlen_k.unwrap_or(k_layout.rows());
                    builder.device_key_offsets(sequences, longest)
                }
            };
        }
        if let Some(lengths) = &seqused_q {
            builder = match lengths.on_host() {
                Some(used) => builder.query_lengths(used),
                None => builder.device_query_lengths(lengths.count()),
            };
        }
        if let Some(lengths) = &seqused_k {
            builder = match lengths.on_host() {
                Some(used) => builder.key_lengths(used),
                None => {
                    let builder = builder.device_key_lengths(lengths.count());
                    match options.max_seqlen_k {
                        Some(longest) if cu_seqlens_k.is_none() => builder.longest_keys(longest),
                        _ => builder,
                    }
                }
            };
        }
        if let Some(table) = &block_table {
            builder = match table.on_host() {
                Some(entries) => builder.block_table(entries, table.table()),
                None => builder.device_block_table(table.table()),
            };
        }
        let call = builder.build()?;
        if let Some(scales) = &scales {
            scales.check(call.batch(), call.heads().key_value)?;
        }
        // As many values in another order would be other slopes.
        for (name, shape, dimensions, rule) in [
            (
                "alibi_slopes",
                &slopes_shape,
                2,
                "[heads] or [batch, heads]",
            ),
            ("sinks", &sinks_shape, 1, "[heads]"),
        ] {
            if let Some(&last) = shape.last()
                && (last != call.heads().query || shape.len() > dimensions)
            {
                return Err(Failure::Invalid(format!(
                    "{name} has shape {shape:?}; it must be {rule}, for {} heads",
                    call.heads().query
                )));
            }
        }
        if read.device() == Device::Cpu {
            call.check_slopes(host_slopes.as_deref())?;
            call.check_sinks(host_sinks.as_deref())?;
            let [k, v] = [0, 1].map(|side| scales.as_ref().map(|scales| scales.values()[side]));
            call.check_scales(k, v)?;
        } else {
            let count = |array: &Option<Array<'_>>| {
                array
                    .as_ref()
                    .map(|array| array.is.shape().iter().product::<usize>())
            };
            let wanted = [
                (
                    "alibi_slopes",
                    count(&slopes),
                    scoring.slope_count(call.batch(), call.heads().query),
                ),
                ("sinks", count(&sinks), call.heads().query),
            ];
            for (name, found, needed) in wanted {
                if let Some(found) = found
                    && found != needed
                {
                    return Err(Failure::Invalid(format!(
                        "{name} has {found} values; {needed} are needed"
                    )));
                }
            }
        }
        if let Some(lse) = &lse {
            check_lse(&lse.is, &call, packed_q)?;
        }
        let choice = match &options.kernel {
            Some(name) => name.parse::<Choice>()?,
            None => Choice::Best,
        };
        Ok(Request {
            reader: read,
            order,
            choice,
            call,
            q,
            k,
            v,
            scales,
            out,
            lse,
            slopes,
            sinks,
            host_slopes,
            host_sinks,
            bias,
            key_mask,
            cu_seqlens_q,
            cu_seqlens_k,
            seqused_q,
            seqused_k,
            block_table,
        })
    }

    /// The plan, for the device of the tensors or for another.
    pub(crate) fn plan(&self, py: Python<'_>, device: Option<&str>) -> Result<Plan> {
        let (problem, choice) = (self.call.problem(), &self.choice);
        let device = match device {
            None => self.reader.device(),
            Some("cpu") => Device::Cpu,
            Some("h200") => return gpu::plan_for(&DeviceProfile::h200(), problem, choice),
            Some(text) => {
                let ordinal = text.strip_prefix("cuda:").unwrap_or(match text {
                    "cuda" => "0",
                    _ => "",
                });
                Device::Cuda(ordinal.parse().map_err(|_| {
                    Failure::Invalid(format!(
                        "device is {:?}, but must be \"cpu\", \"cuda:0\" and so on, or \"h200\" for an H200 that need not be there",
                        Excerpt::new(text)
                    ))
                })?)
            }
        };
        match device {
            Device::Cpu => {
                self.choice.check_on_cpu()?;
                Ok(Plan::cpu(problem))
            }
            Device::Cuda(ordinal) => py.detach(|| gpu::plan(ordinal, problem, choice)),
        }
    }

    /// Whether some row of the output belongs to no sequence, or could, so that nothing writes it.
    fn leaves_gaps(&self) -> bool {
        let queries = self.call.queries();
        match queries.offsets().on_host() {
            Some(offsets) => {
                queries.used().is_given()
                    || offsets
                        .last()
                        .is_none_or(|&end| end as usize != queries.rows())
            }
            None => queries.is_packed() || queries.used().is_given(),
        }
    }

    /// Computes it; gives the output and, if one is wanted, the lse.
    pub(crate) fn run(
        mut self,
        py: Python<'py>,
    ) -> Result<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let outputs = self.outputs()?;
        self.compute(py, outputs)
    }

    /// Calls `before`, which may write what is read, and computes. Whatever is wrong with the arguments is found before that.
    pub(crate) fn run_after(
        mut self,
        py: Python<'py>,
        before: impl FnOnce() -> Result<()>,
    ) -> Result<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let outputs = self.outputs()?;
        let lse = outputs.lse.as_ref();
        match self.reader.device() {
            Device::Cpu => {
                self.choice.check_on_cpu()?;
                self.on_cpu(&outputs.out, lse, cpu::check)?;
            }
            Device::Cuda(ordinal) => {
                let addresses = self.addresses(&outputs.out, lse);
                let (call, choice) = (&self.call, &self.choice);
                py.detach(|| gpu::check(ordinal, call, choice, &addresses))?;
            }
        }
        before()?;
        self.compute(py, outputs)
    }

    /// The output and the lse that were given, or new ones.
    fn outputs(&mut self) -> Result<Outputs<'py>> {
        let fill = match self.leaves_gaps() {
            true => Fill::Zeros,
            false => Fill::Nothing,
        };
        let packed = self.call.queries().is_packed();
        let jax = self.q.library == Library::Jax;
        let (jax_out, jax_lse) = (jax && self.out.is_none(), jax && self.lse.is_none());
        let out = match self.out.take() {
            Some(out) => out,
            None => {
                let (shape, strides) = self.order.of(self.call.out());
                let made = match packed {
                    true => library::dense(&self.q, &shape[1..], &strides[1..], None, fill)?,
                    false => library::dense(&self.q, &shape, &strides, None, fill)?,
                };
                self.reader.array("out", &made)?
            }
        };
        let lse = match (self.lse.take(), self.call.wants_lse()) {
            (Some(lse), _) => Some(lse),
            (None, false) => None,
            (None, true) => {
                let shape = self.call.lse_shape();
                let strides = [shape[1] * shape[2], shape[2], 1];
                let from = usize::from(packed);
                let made = library::dense(
                    &self.q,
                    &shape[from..],
                    &strides[from..],
                    Some(Dtype::F32),
                    fill,
                )?;
                Some(self.reader.array("lse", &made)?)
            }
        };
        Ok(Outputs {
            out,
            lse,
            into_jax: [jax_out, jax_lse],
        })
    }

    fn compute(
        &self,
        py: Python<'py>,
        outputs: Outputs<'py>,
    ) -> Result<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let Outputs { out, lse, into_jax } = outputs;
        match self.reader.device() {
            Device::Cpu => {
                self.choice.check_on_cpu()?;
                self.on_cpu(&out, lse.as_ref(), |call, tensors| {
                    // SAFETY: the arrays are held until after the call, so their libraries keep the elements; that nobody changes them
                    // meanwhile is what `attention` asks of its caller, as every function does that computes without the GIL.
                    py.detach(|| unsafe { cpu::forward(call, tensors) })
                })?;
            }
            Device::Cuda(ordinal) => {
                let addresses = self.addresses(&out, lse.as_ref());
                let (call, choice, stream) = (&self.call, &self.choice, self.reader.stream());
                // SAFETY: the library says that the elements are there, and keeps them for work that was queued on its stream before it
                // gives them to others; the stream is the library's or one that the caller vouches for.
                py.detach(|| unsafe { gpu::forward(ordinal, stream, call, choice, &addresses) })?;
            }
        }
        let finished = |array: Array<'py>, into_jax| match into_jax {
            true => library::into_jax(array.object),
            false => Ok(array.object),
        };
        let lse = lse.map(|lse| finished(lse, into_jax[1])).transpose()?;
        Ok((finished(out, into_jax[0])?, lse))
    }

    /// Gives the tensors on the CPU to a function.
    fn on_cpu(
        &self,
        out: &Array<'_>,
        lse: Option<&Array<'_>>,
        function: impl FnOnce(&Call, &Tensors<'_>) -> Result<()>,
    ) -> Result<()> {
        let part = |array: &'_ Option<Array<'_>>| array.as_ref().map(|array| array.is.clone());
        let (bias, key_mask) = (part(&self.bias), part(&self.key_mask));
        let tensors = Tensors {
            q: &self.q.is,
            k: &self.k.is,
            v: &self.v.is,
            out: &out.is,
            lse: lse.map(|lse| &lse.is),
            slopes: self.host_slopes.as_deref(),
            sinks: self.host_sinks.as_deref(),
            scales: self.scales.as_ref().map(Scales::values),
            bias: bias.as_ref(),
            key_mask: key_mask.as_ref(),
        };
        function(&self.call, &tensors)
    }

    /// Where everything lies on a GPU.
    fn addresses(&self, out: &Array<'_>, lse: Option<&Array<'_>>) -> Addresses {
        let of = |array: Option<&Array<'_>>| array.map_or(0, |array| array.is.address);
        let at = |lengths: &Option<Lengths<'_>>| lengths.as_ref().map_or(0, Lengths::address);
        let mut addresses = Addresses::default();
        addresses.q = self.q.is.address;
        addresses.k = self.k.is.address;
        addresses.v = self.v.is.address;
        addresses.out = out.is.address;
        addresses.lse = of(lse);
        addresses.query_offsets = at(&self.cu_seqlens_q);
        addresses.key_offsets = at(&self.cu_seqlens_k);
        addresses.query_lengths = at(&self.seqused_q);
        addresses.key_lengths = at(&self.seqused_k);
        addresses.slopes = of(self.slopes.as_ref());
        addresses.sinks = of(self.sinks.as_ref());
        addresses.bias = of(self.bias.as_ref());
        addresses.key_mask = of(self.key_mask.as_ref());
        addresses.block_table = at(&self.block_table);
        if let Some(scales) = &self.scales {
            [addresses.k_scale, addresses.v_scale] = scales.addresses();
        }
        addresses
    }
}

/// What a call writes.
struct Outputs<'py> {
    out: Array<'py>,
    lse: Option<Array<'py>>,
    /// Whether either is to become an array of jax.
    into_jax: [bool; 2],
}

/// Sequences of a list of offsets.
fn sequences(name: &str, offsets: usize) -> Result<usize> {
    offsets.checked_sub(1).ok_or_else(|| {
        Failure::Invalid(format!(
            "{name} is empty: one offset more than sequences is needed"
        ))
    })
}

fn check_lse(lse: &Described, call: &Call, packed: bool) -> Result<()> {
    lse.expect_dtype(&[Dtype::F32], "float32")?;
    let shape = call.lse_shape();
    let expected = &shape[usize::from(packed)..];
    if lse.shape() != expected {
        return Err(Failure::Invalid(format!(
            "lse has shape {:?}, but must have {expected:?}",
            lse.shape()
        )));
    }
    lse.list(expected.len(), "").map(|_| ())
}
