//! Tensors of a call on its device, and the call through the library's ordinary interface.

use bytemuck::Pod;
use warptile::{
    Attention, Backend, Choice, Element, ElementType, Keys, Layout, Operand, Queries, Scales,
    Scoring, Slots, Splits, TableLayout, Tensor,
};

/// The options of a call, as far as no operand says them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) scoring: Scoring,
    pub(crate) splits: Splits,
    pub(crate) choice: Choice,
}

/// The numbers of a call that are no tensors.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    /// Numbers of options, and scales.
    pub(crate) floats: Slots<Option<Vec<f32>>>,
    /// Offsets, lengths and pages.
    pub(crate) lists: Slots<Option<Vec<i32>>>,
    /// How the pages lie.
    pub(crate) table: Option<TableLayout>,
}

/// Tensors of a call.
pub(crate) struct Tensors<T: Element> {
    pub(crate) q: Tensor<T>,
    pub(crate) keys: KeyTensors<T>,
    pub(crate) scores: Slots<Option<ScoreTensor<T>>>,
}

/// Keys and values.
pub(crate) enum KeyTensors<T: Pod> {
    /// Of the queries' type.
    Same([Tensor<T>; 2]),
    /// The bits of quantized ones.
    Quantized(ElementType, [Tensor<u8>; 2]),
}

/// A tensor that has an element for each score.
pub(crate) enum ScoreTensor<T: Pod> {
    Elements(Tensor<T>),
    Bytes(Tensor<u8>),
}

/// Elements of a tensor of scores in host memory.
#[derive(Debug, Clone)]
pub(crate) enum ScoreData<E, B> {
    Elements(E),
    Bytes(B),
}

impl<E, B> ScoreData<E, B> {
    /// The tensor of them.
    pub(crate) fn upload<T: Pod>(
        &self,
        elements: impl FnOnce(&E) -> warptile::Result<Tensor<T>>,
        bytes: impl FnOnce(&B) -> warptile::Result<Tensor<u8>>,
    ) -> warptile::Result<ScoreTensor<T>> {
        Ok(match self {
            ScoreData::Elements(data) => ScoreTensor::Elements(elements(data)?),
            ScoreData::Bytes(data) => ScoreTensor::Bytes(bytes(data)?),
        })
    }
}

impl<T: Element> Tensors<T> {
    /// The call of these tensors.
    pub(crate) fn forward<'a>(
        &'a self,
        settings: &Settings,
        numbers: &'a Numbers,
    ) -> Forward<'a, T> {
        let mut attention = Attention::new()
            .scoring(settings.scoring)
            .splits(settings.splits)
            .choice(settings.choice.clone());
        let scales = |operand: Operand| numbers.floats[operand].as_deref().unwrap_or_default();
        let mut keys = match &self.keys {
            KeyTensors::Same([k, v]) => Keys::new(k, v),
            KeyTensors::Quantized(element, [k, v]) => {
                let scales = Scales::new(scales(Operand::KScale), scales(Operand::VScale));
                Keys::quantized_bits(*element, k, v, scales)
            }
        };
        for (operand, values) in numbers.floats.given() {
            if operand.word().is_some() {
                attention = attention.numbers(operand, values);
            }
        }
        let mut queries = Queries::new(&self.q);
        for (operand, list) in numbers.lists.given() {
            match operand {
                Operand::QueryOffsets | Operand::QueryLengths => {
                    queries = queries.numbers(operand, list);
                }
                Operand::BlockTable => {
                    keys = keys.in_pages(list, numbers.table.unwrap_or([0, 0].into()));
                }
                _ => keys = keys.numbers(operand, list),
            }
        }
        for (operand, tensor) in self.scores.given() {
            keys = match tensor {
                ScoreTensor::Elements(tensor) => keys.scores(operand, tensor),
                ScoreTensor::Bytes(tensor) => keys.scores(operand, tensor),
            };
        }
        Forward {
            attention,
            queries,
            keys,
        }
    }
}

/// One call through the library's ordinary interface.
pub(crate) struct Forward<'a, T: Element> {
    attention: Attention,
    queries: Queries<'a, T>,
    keys: Keys<'a, T>,
}

impl<T: Element> Forward<'_, T> {
    pub(crate) fn run(&self) -> warptile::Result<warptile::Output<T>> {
        let (queries, keys) = (self.queries.clone(), self.keys.clone());
        self.attention.forward(queries, keys)
    }
}

/// Brings elements in host memory to a device.
pub(crate) fn upload<T: Pod>(
    backend: &Backend,
    layout: Layout,
) -> impl FnOnce(&Vec<T>) -> warptile::Result<Tensor<T>> {
    move |data| backend.tensor_with_layout(data, layout)
}
