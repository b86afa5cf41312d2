//! The memory that a launch reads, on a device.

use bytemuck::Pod;
use warptile::gpu::Bindings;
use warptile::spec::{Operand, Slots};
use warptile::{Element, Layout};
use warptile_driver::{DeviceBuffer, DeviceSlice, DeviceSliceMut, Stream};

use crate::data::Data;
use crate::{Buffer, Ferry, Inputs, Lists};

/// The inputs of a launch, or a part of them.
#[derive(Debug, Default)]
pub struct DeviceInputs(Slots<Option<Place>>);

/// The place of an operand.
#[derive(Debug)]
pub enum Place {
    /// A buffer of its own. The operand begins this many bytes into it.
    Memory(DeviceBuffer<u8>, usize),
    /// This many bytes behind the first key: values that are in one tensor with their keys, as [`values_behind_keys`] says.
    BehindKeys(usize),
}

impl DeviceInputs {
    /// Inputs that lie in these places.
    pub fn new(places: Slots<Option<Place>>) -> Self {
        DeviceInputs(places)
    }

    /// Puts an operand into a place.
    pub fn set(&mut self, operand: Operand, place: Place) {
        self.0[operand] = Some(place);
    }

    /// Copies the data of a case.
    ///
    /// # Errors
    /// The driver's error.
    pub fn upload<T: Element>(
        stream: &Stream,
        ferry: &Ferry,
        inputs: &Inputs<T>,
    ) -> warptile::Result<Self> {
        let Inputs { q, k, v, others } = inputs;
        let mut places = others.try_map(|_, data| {
            let (bytes, at) = data.bytes();
            Ok::<_, warptile::Error>(Place::Memory(ferry.upload(stream, bytes)?, at))
        })?;
        let of = |buffer: &Buffer<T>| {
            let bytes = ferry.upload(stream, bytemuck::cast_slice(&buffer.data))?;
            Ok::<_, warptile::Error>(Place::Memory(bytes, buffer.offset * size_of::<T>()))
        };
        places[Operand::Q] = Some(of(q)?);
        let behind = values_behind_keys(&k.layout, &v.layout);
        let bits = |operand: Operand| match &others[operand] {
            Some(Data::Bytes(bits)) => Some(bits),
            _ => None,
        };
        let both = match (behind, bits(Operand::K), bits(Operand::V)) {
            (None, Some(_), _) => None,
            (None, ..) => {
                places[Operand::K] = Some(of(k)?);
                places[Operand::V] = Some(of(v)?);
                None
            }
            (Some(distance), Some(k), Some(v)) => {
                Some((together(k, v, distance), k.offset, distance))
            }
            (Some(distance), ..) => {
                let both = together(k, v, distance);
                let size = size_of::<T>();
                Some((
                    bytemuck::cast_slice(&both).to_vec(),
                    k.offset * size,
                    distance * size,
                ))
            }
        };
        if let Some((both, at, distance)) = both {
            places[Operand::K] = Some(Place::Memory(ferry.upload(stream, &both)?, at));
            places[Operand::V] = Some(Place::BehindKeys(distance));
        }
        Ok(DeviceInputs(places))
    }

    /// Copies the lists that there are.
    ///
    /// # Errors
    /// The driver's error.
    pub fn of_lists(stream: &Stream, ferry: &Ferry, lists: &Lists) -> warptile::Result<Self> {
        let places = lists.given().try_map(|_, list| {
            let bytes = ferry.upload(stream, bytemuck::cast_slice(list))?;
            Ok::<_, warptile::Error>(Place::Memory(bytes, 0))
        });
        Ok(DeviceInputs(places?))
    }

    /// Copies the inputs on the device.
    ///
    /// # Errors
    /// The driver's error.
    pub fn once_more(&self, stream: &Stream) -> warptile::Result<Self> {
        let places = self.0.try_map(|_, place| {
            Ok::<_, warptile::Error>(match place {
                Place::Memory(bytes, at) => Place::Memory(once_more(stream, bytes)?, *at),
                Place::BehindKeys(distance) => Place::BehindKeys(*distance),
            })
        });
        Ok(DeviceInputs(places?))
    }

    /// The memory of a launch of attention with them.
    ///
    /// # Errors
    /// When the memory of an operand ends before its first element.
    pub fn bind<'a, T: Element>(
        &'a self,
        out: DeviceSliceMut<'a, T>,
    ) -> warptile::Result<Bindings<'a>> {
        let mut bindings = Bindings::default();
        bindings.set_output(Operand::Out, out);
        self.add_to(&mut bindings)?;
        Ok(bindings)
    }

    /// Adds them to the memory of a launch.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn add_to<'a>(&'a self, bindings: &mut Bindings<'a>) -> warptile::Result<()> {
        let mut keys: Option<DeviceSlice<'a, u8>> = None;
        for (operand, place) in self.0.given() {
            let view = match (place, &keys) {
                (Place::Memory(bytes, at), _) => bytes.slice(*at..)?,
                (Place::BehindKeys(distance), Some(keys)) => keys.slice(*distance..)?,
                (Place::BehindKeys(_), None) => continue,
            };
            if operand == Operand::K {
                keys = Some(view.clone());
            }
            bindings.set(operand, view);
        }
        Ok(())
    }

    /// Bytes of queries, keys, values, outputs and their gradients.
    pub fn byte_len(&self) -> usize {
        let tensors = [
            Operand::Q,
            Operand::K,
            Operand::V,
            Operand::Out,
            Operand::DOut,
        ];
        { tensors.into_iter() }
            .map(|operand| match &self.0[operand] {
                Some(Place::Memory(bytes, _)) => bytes.byte_len(),
                _ => 0,
            })
            .sum()
    }
}

/// The elements from the first key to the first value, if keys and values of these layouts are of one tensor without
/// gaps: in each batch entry or page the keys, then the values.
/// [`LayoutKind::Interleaved`](crate::LayoutKind::Interleaved) makes such layouts.
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

/// A copy of a buffer in device memory: from the host it takes many times as long.
pub(crate) fn once_more<T: Pod>(
    stream: &Stream,
    from: &DeviceBuffer<T>,
) -> warptile::Result<DeviceBuffer<T>> {
    let mut copy = DeviceBuffer::uninit(stream, from.len())?;
    copy.copy_from(from)?;
    Ok(copy)
}
