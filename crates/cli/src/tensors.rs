//! Tensors of a call on its device, and the call through the library's ordinary interface.

use either::{Either, for_both};
use warptile::kernels::{Count, Kind};
use warptile::plan::Choice;
use warptile::spec::{Call, DropoutState, Operand, Scoring, Slots, TableLayout, Types};
use warptile::{Attention, Element, Gradients, Keys, Output, Queries, Scales, Splits, Tensor};

/// The options of a call, as far as no operand says them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) scoring: Scoring,
    pub(crate) splits: Splits,
}

impl Settings {
    /// The options of a call.
    pub(crate) fn of(call: &Call) -> Self {
        Settings {
            scoring: call.scoring().scale(call.scale()),
            splits: call.splits(),
        }
    }

    /// The options with their numbers.
    pub(crate) fn attention(&self, numbers: &Numbers) -> Attention {
        let mut attention = { Attention::new().scoring(self.scoring) }.splits(self.splits);
        let words = numbers.lists[Operand::DropoutState].as_deref();
        let words = words.and_then(|words| words.try_into().ok());
        if let (Some(p), Some(words)) = (self.scoring.dropout, words) {
            attention = attention.dropout(p, DropoutState::from_words(words));
        }
        let of_options = numbers.floats.given();
        { of_options.filter(|(operand, _)| operand.word().is_some()) }
            .fold(attention, |all, (operand, values)| {
                all.numbers(operand, values)
            })
    }
}

/// The numbers of a call that are not tensors.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    /// Numbers of options, and scales.
    pub(crate) floats: Slots<Option<Vec<f32>>>,
    /// Offsets, lengths and pages.
    pub(crate) lists: Slots<Option<Vec<i32>>>,
    /// How the pages lie.
    pub(crate) table: Option<TableLayout>,
}

/// A tensor of the queries' type, or one of bytes: a mask, or quantized keys and values.
pub(crate) type AnyTensor<T> = Either<Tensor<T>, Tensor<u8>>;

/// Tensors of a call.
pub(crate) struct Tensors<T: Element> {
    pub(crate) types: Types,
    pub(crate) q: Tensor<T>,
    pub(crate) kv: Either<[Tensor<T>; 2], [Tensor<u8>; 2]>,
    pub(crate) scores: Slots<Option<AnyTensor<T>>>,
    /// A bias of `f32`, whatever the type of the queries.
    pub(crate) bias_f32: Option<Tensor<f32>>,
}

impl<T: Element> Tensors<T> {
    /// The call of these tensors.
    pub(crate) fn forward<'a>(
        &'a self,
        settings: &Settings,
        numbers: &'a Numbers,
    ) -> Forward<'a, T> {
        let scales = |operand: Operand| numbers.floats[operand].as_deref().unwrap_or_default();
        let mut keys = match &self.kv {
            Either::Left([k, v]) => Keys::new(k, v),
            Either::Right([k, v]) => {
                let scales = Scales::new(scales(Operand::KScale), scales(Operand::VScale));
                Keys::quantized_bits(self.types.k, k, v, scales)
            }
        };
        let mut queries = Queries::new(&self.q);
        for (operand, list) in numbers.lists.given() {
            match (operand, operand.kind()) {
                // Is with the options.
                (Operand::DropoutState, _) => {}
                (Operand::QueryOffsets | Operand::QueryLengths, _) => {
                    queries = queries.numbers(operand, list);
                }
                (_, Kind::List(Count::Table)) => {
                    keys = keys.in_pages(list, numbers.table.unwrap_or([0, 0].into()));
                }
                _ => keys = keys.numbers(operand, list),
            }
        }
        for (operand, tensor) in self.scores.given() {
            keys = for_both!(tensor, tensor => keys.scores(operand, tensor));
        }
        if let Some(bias) = &self.bias_f32 {
            keys = keys.bias_f32(bias);
        }
        Forward {
            attention: settings.attention(numbers),
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
    /// The call by a kernel of the choice.
    pub(crate) fn by(&self, choice: Choice) -> Self {
        Forward {
            attention: self.attention.clone().choice(choice),
            queries: self.queries.clone(),
            keys: self.keys.clone(),
        }
    }

    /// The call, whose gradients are to have that of the bias, or not.
    pub(crate) fn d_bias(self, wanted: bool) -> Self {
        Forward {
            attention: self.attention.d_bias(wanted),
            ..self
        }
    }

    /// The call without the lse.
    pub(crate) fn without_lse(self) -> Self {
        Forward {
            attention: self.attention.without_lse(),
            ..self
        }
    }

    pub(crate) fn run(&self) -> warptile::Result<Output<T>> {
        let (queries, keys) = (self.queries.clone(), self.keys.clone());
        self.attention.forward(queries, keys)
    }

    /// The gradients of the call, which gave `output`.
    pub(crate) fn gradients(
        &self,
        d_out: &Tensor<T>,
        output: &Output<T>,
    ) -> warptile::Result<Gradients<T>> {
        let (queries, keys) = (self.queries.clone(), self.keys.clone());
        self.attention.backward(d_out, queries, keys, output)
    }
}
