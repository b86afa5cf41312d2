//! What a launch reads, in device memory.

use warptile::gpu::Bindings;
use warptile::{Element, QuantizedType};
use warptile_driver::{DeviceBuffer, DeviceSlice, DeviceSliceMut, Stream};

use crate::{Ferry, Inputs, Lists};

/// The inputs of a launch.
#[derive(Debug)]
pub struct DeviceInputs<T: Element> {
    /// Queries.
    pub q: DeviceBuffer<T>,
    /// Keys and values.
    pub keys: KeyBuffers<T>,
    /// ALiBi slopes, of a call that has some.
    pub slopes: Option<DeviceBuffer<f32>>,
    /// Sinks, likewise.
    pub sinks: Option<DeviceBuffer<f32>>,
    /// Additive bias, likewise.
    pub bias: Option<DeviceBuffer<T>>,
    /// Key mask, likewise.
    pub key_mask: Option<DeviceBuffer<u8>>,
    /// The element of each buffer of a tensor that the tensor starts at: not of slopes, sinks and scales.
    pub offset: usize,
}

impl<T: Element> DeviceInputs<T> {
    /// Copies the data of a case.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn upload(stream: &Stream, ferry: &Ferry, inputs: &Inputs<T>) -> warptile::Result<Self> {
        let floats = |values: &Option<Vec<f32>>| {
            let upload = |values: &Vec<f32>| ferry.upload(stream, values);
            values.as_ref().map(upload).transpose()
        };
        let bias = inputs.bias.as_ref();
        let key_mask = inputs.key_mask.as_ref();
        Ok(DeviceInputs {
            q: ferry.upload(stream, &inputs.q.data)?,
            keys: match &inputs.quantized {
                None => KeyBuffers::Same(
                    ferry.upload(stream, &inputs.k.data)?,
                    ferry.upload(stream, &inputs.v.data)?,
                ),
                Some(quantized) => KeyBuffers::Quantized {
                    element: quantized.element,
                    k: ferry.upload(stream, &quantized.k.data)?,
                    v: ferry.upload(stream, &quantized.v.data)?,
                    k_scale: ferry.upload(stream, &quantized.k_scale)?,
                    v_scale: ferry.upload(stream, &quantized.v_scale)?,
                },
            },
            slopes: floats(&inputs.slopes)?,
            sinks: floats(&inputs.sinks)?,
            bias: bias
                .map(|bias| ferry.upload(stream, &bias.data))
                .transpose()?,
            key_mask: key_mask
                .map(|mask| ferry.upload(stream, &mask.data))
                .transpose()?,
            offset: inputs.q.offset,
        })
    }

    /// The same inputs once more, copied on the device.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn once_more(&self, stream: &Stream) -> warptile::Result<Self> {
        Ok(DeviceInputs {
            q: once_more(stream, &self.q)?,
            keys: self.keys.once_more(stream)?,
            slopes: maybe_once_more(stream, self.slopes.as_ref())?,
            sinks: maybe_once_more(stream, self.sinks.as_ref())?,
            bias: maybe_once_more(stream, self.bias.as_ref())?,
            key_mask: maybe_once_more(stream, self.key_mask.as_ref())?,
            offset: self.offset,
        })
    }

    /// The memory of a launch with them.
    ///
    /// # Errors
    /// When a tensor's buffer ends before the offset.
    pub fn bind<'a>(&'a self, out: DeviceSliceMut<'a, T>) -> warptile::Result<Bindings<'a>> {
        let q = self.q.slice(self.offset..)?;
        let mut bindings = self.keys.bind(q, out, self.offset)?;
        if let Some(slopes) = &self.slopes {
            bindings = bindings.slopes(slopes.as_slice());
        }
        if let Some(sinks) = &self.sinks {
            bindings = bindings.sinks(sinks.as_slice());
        }
        if let Some(bias) = &self.bias {
            bindings = bindings.bias(bias.slice(self.offset..)?);
        }
        if let Some(key_mask) = &self.key_mask {
            bindings = bindings.key_mask(key_mask.slice(self.offset..)?);
        }
        Ok(bindings)
    }

    /// Bytes of queries, keys and values.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.q.byte_len() + self.keys.byte_len()
    }
}

/// Keys and values in device memory.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyBuffers<T: Element> {
    /// Of the queries' type.
    Same(DeviceBuffer<T>, DeviceBuffer<T>),
    /// Of a type of 8 bits, each with its scales.
    Quantized {
        /// Their type.
        element: QuantizedType,
        /// The bits of the keys.
        k: DeviceBuffer<u8>,
        /// Those of the values.
        v: DeviceBuffer<u8>,
        /// Of the keys.
        k_scale: DeviceBuffer<f32>,
        /// Of the values.
        v_scale: DeviceBuffer<f32>,
    },
}

impl<T: Element> KeyBuffers<T> {
    fn once_more(&self, stream: &Stream) -> warptile::Result<Self> {
        Ok(match self {
            KeyBuffers::Same(k, v) => {
                KeyBuffers::Same(once_more(stream, k)?, once_more(stream, v)?)
            }
            KeyBuffers::Quantized {
                element,
                k,
                v,
                k_scale,
                v_scale,
            } => KeyBuffers::Quantized {
                element: *element,
                k: once_more(stream, k)?,
                v: once_more(stream, v)?,
                k_scale: once_more(stream, k_scale)?,
                v_scale: once_more(stream, v_scale)?,
            },
        })
    }

    /// From element `offset` on.
    fn bind<'a>(
        &'a self,
        q: DeviceSlice<'a, T>,
        out: DeviceSliceMut<'a, T>,
        offset: usize,
    ) -> warptile::Result<Bindings<'a>> {
        Ok(match self {
            KeyBuffers::Same(k, v) => Bindings::new(q, k.slice(offset..)?, v.slice(offset..)?, out),
            KeyBuffers::Quantized {
                element,
                k,
                v,
                k_scale,
                v_scale,
            } => Bindings::quantized(
                q,
                *element,
                [k.slice(offset..)?, v.slice(offset..)?],
                [k_scale.as_slice(), v_scale.as_slice()],
                out,
            ),
        })
    }

    fn byte_len(&self) -> usize {
        match self {
            KeyBuffers::Same(k, v) => k.byte_len() + v.byte_len(),
            KeyBuffers::Quantized { k, v, .. } => k.byte_len() + v.byte_len(),
        }
    }
}

/// The [`Lists`] of a case in device memory.
#[derive(Debug, Default)]
pub struct DeviceLists {
    query_offsets: Option<DeviceBuffer<i32>>,
    key_offsets: Option<DeviceBuffer<i32>>,
    query_lengths: Option<DeviceBuffer<i32>>,
    key_lengths: Option<DeviceBuffer<i32>>,
    block_table: Option<DeviceBuffer<i32>>,
}

impl DeviceLists {
    /// Copies the lists that there are.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn upload(stream: &Stream, ferry: &Ferry, lists: &Lists) -> warptile::Result<Self> {
        let upload = |list: Option<&[i32]>| list.map(|list| ferry.upload(stream, list)).transpose();
        let table = lists.block_table.as_ref();
        Ok(DeviceLists {
            query_offsets: upload(lists.query_offsets.as_deref())?,
            key_offsets: upload(lists.key_offsets.as_deref())?,
            query_lengths: upload(lists.query_lengths.as_deref())?,
            key_lengths: upload(lists.key_lengths.as_deref())?,
            block_table: upload(table.map(|table| &table.entries[..]))?,
        })
    }

    /// The same lists once more, copied on the device.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn once_more(&self, stream: &Stream) -> warptile::Result<Self> {
        let list = |list: &Option<DeviceBuffer<i32>>| maybe_once_more(stream, list.as_ref());
        Ok(DeviceLists {
            query_offsets: list(&self.query_offsets)?,
            key_offsets: list(&self.key_offsets)?,
            query_lengths: list(&self.query_lengths)?,
            key_lengths: list(&self.key_lengths)?,
            block_table: list(&self.block_table)?,
        })
    }

    /// Adds them to the memory of a launch.
    pub fn bind<'a>(&'a self, mut bindings: Bindings<'a>) -> Bindings<'a> {
        if let Some(list) = &self.query_offsets {
            bindings = bindings.query_offsets(list.as_slice());
        }
        if let Some(list) = &self.key_offsets {
            bindings = bindings.key_offsets(list.as_slice());
        }
        if let Some(list) = &self.query_lengths {
            bindings = bindings.query_lengths(list.as_slice());
        }
        if let Some(list) = &self.key_lengths {
            bindings = bindings.key_lengths(list.as_slice());
        }
        if let Some(list) = &self.block_table {
            bindings = bindings.block_table(list.as_slice());
        }
        bindings
    }
}

/// A copy of a buffer in device memory: from the host it takes many times as long.
pub(crate) fn once_more<T: bytemuck::Pod>(
    stream: &Stream,
    from: &DeviceBuffer<T>,
) -> warptile::Result<DeviceBuffer<T>> {
    let mut copy = DeviceBuffer::uninit(stream, from.len())?;
    copy.copy_from(from)?;
    Ok(copy)
}

fn maybe_once_more<T: bytemuck::Pod>(
    stream: &Stream,
    from: Option<&DeviceBuffer<T>>,
) -> warptile::Result<Option<DeviceBuffer<T>>> {
    from.map(|from| once_more(stream, from)).transpose()
}
