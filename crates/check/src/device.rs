//! What a launch reads, in device memory.

use bytemuck::Pod;
use warptile::gpu::Bindings;
use warptile::{Element, Layout, QuantizedType};
use warptile_driver::{DeviceBuffer, DeviceSlice, DeviceSliceMut, Stream};

use crate::{Buffer, Ferry, Inputs, Lists};

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
                None => KeyBuffers::Same(KeyPair::upload(stream, ferry, &inputs.k, &inputs.v)?),
                Some(quantized) => KeyBuffers::Quantized {
                    element: quantized.element,
                    kv: KeyPair::upload(stream, ferry, &quantized.k, &quantized.v)?,
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
    Same(KeyPair<T>),
    /// Of a type of 8 bits, each with its scales.
    Quantized {
        /// Their type.
        element: QuantizedType,
        /// Their bits.
        kv: KeyPair<u8>,
        /// Of the keys.
        k_scale: DeviceBuffer<f32>,
        /// Of the values.
        v_scale: DeviceBuffer<f32>,
    },
}

impl<T: Element> KeyBuffers<T> {
    fn once_more(&self, stream: &Stream) -> warptile::Result<Self> {
        Ok(match self {
            KeyBuffers::Same(kv) => KeyBuffers::Same(kv.once_more(stream)?),
            KeyBuffers::Quantized {
                element,
                kv,
                k_scale,
                v_scale,
            } => KeyBuffers::Quantized {
                element: *element,
                kv: kv.once_more(stream)?,
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
            KeyBuffers::Same(kv) => {
                let [k, v] = kv.slices(offset)?;
                Bindings::new(q, k, v, out)
            }
            KeyBuffers::Quantized {
                element,
                kv,
                k_scale,
                v_scale,
            } => Bindings::quantized(
                q,
                *element,
                kv.slices(offset)?,
                [k_scale.as_slice(), v_scale.as_slice()],
                out,
            ),
        })
    }

    fn byte_len(&self) -> usize {
        match self {
            KeyBuffers::Same(kv) => kv.byte_len(),
            KeyBuffers::Quantized { kv, .. } => kv.byte_len(),
        }
    }
}

/// Keys and values of one type in device memory.
#[derive(Debug)]
pub enum KeyPair<T: Pod> {
    /// In a buffer each.
    Apart([DeviceBuffer<T>; 2]),
    /// In one buffer, as [`values_behind_keys`] says, and the elements from the first key to the first value.
    Together(DeviceBuffer<T>, usize),
}

impl<T: Pod> KeyPair<T> {
    fn upload(
        stream: &Stream,
        ferry: &Ferry,
        k: &Buffer<T>,
        v: &Buffer<T>,
    ) -> warptile::Result<Self> {
        Ok(match values_behind_keys(&k.layout, &v.layout) {
            None => KeyPair::Apart([
                ferry.upload(stream, &k.data)?,
                ferry.upload(stream, &v.data)?,
            ]),
            Some(distance) => {
                KeyPair::Together(ferry.upload(stream, &together(k, v, distance))?, distance)
            }
        })
    }

    fn once_more(&self, stream: &Stream) -> warptile::Result<Self> {
        Ok(match self {
            KeyPair::Apart([k, v]) => {
                KeyPair::Apart([once_more(stream, k)?, once_more(stream, v)?])
            }
            KeyPair::Together(both, distance) => {
                KeyPair::Together(once_more(stream, both)?, *distance)
            }
        })
    }

    /// Keys and values from element `offset` of their buffers on.
    fn slices(&self, offset: usize) -> warptile::Result<[DeviceSlice<'_, T>; 2]> {
        Ok(match self {
            KeyPair::Apart([k, v]) => [k.slice(offset..)?, v.slice(offset..)?],
            KeyPair::Together(both, distance) => {
                let keys = both.slice(offset..)?;
                [keys.clone(), keys.slice(*distance..)?]
            }
        })
    }

    fn byte_len(&self) -> usize {
        match self {
            KeyPair::Apart([k, v]) => k.byte_len() + v.byte_len(),
            KeyPair::Together(both, _) => both.byte_len(),
        }
    }
}

/// The elements from the first key to the first value, if keys and values of these layouts are of one tensor without gaps: in each batch entry
/// or page the keys, then the values. [`LayoutKind::Interleaved`](crate::LayoutKind::Interleaved) makes such layouts.
#[must_use]
pub fn values_behind_keys(k: &Layout, v: &Layout) -> Option<usize> {
    let [keys, values] = [k, v].map(|layout| Layout::bshd(layout.shape));
    let entry = keys.strides[0].saturating_add(values.strides[0]);
    let interleaved = |dense: Layout, layout: &Layout| {
        let [_, row, head, element] = dense.strides;
        layout.strides == [entry, row, head, element]
    };
    // Nothing lies in empty tensors, so nothing of them lies behind anything.
    let empty = k.shape.contains(&0) || v.shape.contains(&0);
    (!empty && interleaved(keys, k) && interleaved(values, v)).then_some(keys.strides[0])
}

/// Keys and values that each leave room for the other, in one vector. The values begin `distance` behind the keys.
fn together<T: Copy>(k: &Buffer<T>, v: &Buffer<T>, distance: usize) -> Vec<T> {
    let mut both = Vec::with_capacity(distance + v.data.len());
    both.extend_from_slice(&k.data[..distance]);
    both.extend_from_slice(&v.data);
    // Over the room that the values have left. An entry's keys fill the distance.
    for entry in 0..k.layout.batch() {
        let start = k.offset + k.layout.offset(entry, 0, 0);
        let keys = start..start + distance;
        both[keys.clone()].copy_from_slice(&k.data[keys]);
    }
    both
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
pub(crate) fn once_more<T: Pod>(
    stream: &Stream,
    from: &DeviceBuffer<T>,
) -> warptile::Result<DeviceBuffer<T>> {
    let mut copy = DeviceBuffer::uninit(stream, from.len())?;
    copy.copy_from(from)?;
    Ok(copy)
}

fn maybe_once_more<T: Pod>(
    stream: &Stream,
    from: Option<&DeviceBuffer<T>>,
) -> warptile::Result<Option<DeviceBuffer<T>>> {
    from.map(|from| once_more(stream, from)).transpose()
}
