//! Keys and values of a call, put together where they lie in pages.

use warptile::spec::{Call, HostInputs, Operand, View};
use warptile::{Element, Layout};

use crate::data::without_scale;

/// Keys or values of a call that a reference reads: as they are, or copied from their pages to batch entries of their own,
/// [batch, keys, heads, head size], with zeros behind a sequence's last.
pub(crate) enum InOrder<'a, T> {
    Dense(View<'a, T>),
    Copied(Vec<T>, Layout),
}

impl<T: Element> InOrder<'_, T> {
    pub(crate) fn view(&self) -> View<'_, T> {
        match self {
            InOrder::Dense(view) => *view,
            InOrder::Copied(data, layout) => View::new(data, *layout),
        }
    }
}

/// Puts together what lies in pages, key by key as their definition says. Quantized numbers become the same numbers as elements of `T`.
pub(crate) fn in_order<'a, T: Element>(
    call: &Call,
    inputs: &HostInputs<'a>,
    operand: Operand,
) -> warptile::Result<InOrder<'a, T>> {
    let layout = call
        .layout(operand)
        .copied()
        .unwrap_or(Layout::bshd([0; 4]));
    let Some(element) = call.types().scaled() else {
        let view = View::new(inputs.elements(operand)?.unwrap_or_default(), layout);
        return Ok(match call.pages() {
            None => InOrder::Dense(view),
            Some(_) => put_together(call, view),
        });
    };
    let bits: &[u8] = inputs.elements(operand)?.unwrap_or_default();
    let data = without_scale(element, bits);
    Ok(match call.pages() {
        None => InOrder::Copied(data, layout),
        Some(_) => put_together(call, View::new(&data, layout)),
    })
}

fn put_together<'a, T: Element>(call: &Call, view: View<'_, T>) -> InOrder<'a, T> {
    let pages = call.pages();
    let (heads, head_dim) = (call.heads().key_value, view.layout.head_dim());
    let layout = Layout::bshd([call.batch(), call.key_len(), heads, head_dim]);
    let mut data = vec![T::from_f64(0.0); layout.required_len().unwrap_or(0)];
    for sequence in call.sequences() {
        for key in 0..sequence.k_len {
            // The call has checked every entry that a key needs.
            let Some((pages, page)) = pages
                .and_then(|pages| Some((pages, pages.page(sequence.batch, key / pages.rows())?)))
            else {
                continue;
            };
            for head in 0..heads {
                let from = view.layout.offset(page, key % pages.rows(), head);
                let to = layout.offset(sequence.batch, key, head);
                data[to..to + head_dim].copy_from_slice(&view.data[from..from + head_dim]);
            }
        }
    }
    InOrder::Copied(data, layout)
}
