//! The tensors of a file besides queries, keys and values: what each must look like, for reading and for `--help`.

use either::Either;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use warptile::kernels::{Count, Elements, Kind, Operations};
use warptile::spec::{Operand, TableLayout};
use warptile::{Element, ElementType, Layout};

use super::{Tensors, dtype_of, elements, name_of, quantized_names};
use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::text;

/// The numbers of dimensions that an operand's tensor may have, and what they are; none for queries, keys and values.
fn dimensions(operand: Operand) -> Option<(&'static [usize], &'static str)> {
    Some(match operand.kind() {
        Kind::Scores => (
            &[4],
            "[batch, heads, queries, keys], with 1 for a dimension that it does not depend on",
        ),
        Kind::List(Count::Table) => (&[2], "[batch, pages of a sequence]"),
        Kind::List(Count::Slopes) => (&[1, 2], "[heads] or [batch, heads]"),
        Kind::List(Count::Scales) => (&[0, 1], "[], [1] or [key/value heads]"),
        Kind::List(Count::Offsets) => (&[1], "[batch + 1]"),
        Kind::List(Count::Sequences) => (&[1], "[batch]"),
        Kind::List(Count::State) => (&[1], "[8]"),
        Kind::List(Count::BlockRows) => (&[1], "[rows of all lists + 1]"),
        Kind::List(Count::Blocks) => (&[1], "[blocks of all rows]"),
        Kind::List(_) => (&[1], "[heads]"),
        _ => return None,
    })
}

/// The types that an operand's elements may have, or none if they are those of the queries.
fn dtypes(operand: Operand) -> &'static [Dtype] {
    match operand.elements() {
        Elements::U8 => &[Dtype::BOOL, Dtype::U8],
        Elements::I32 => &[Dtype::I32, Dtype::U32, Dtype::I64],
        Elements::F32 => &[Dtype::F32],
        _ => &[],
    }
}

/// Such as `I32, U32 or I64`.
pub(super) fn alternatives(dtypes: &[Dtype]) -> String {
    let names: Vec<String> = dtypes.iter().map(Dtype::to_string).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} or {last}", before.join(", ")),
        None => String::new(),
    }
}

/// The tensors that a file may have, as `--help` prints them.
pub(crate) fn help() -> String {
    let lines = Operand::of(Operations::FORWARD).filter_map(|operand| {
        let (name, (_, shape)) = (operand.file_name()?, dimensions(operand)?);
        let dtype = match dtypes(operand) {
            [] if operand.elements() == Elements::Bias => format!("q's type or {}", Dtype::F32),
            [] => "q's type".to_owned(),
            dtypes => alternatives(dtypes),
        };
        let docs: String = operand.docs().concat();
        let line = format!("  {name:<14}{dtype}, {shape}:{docs}");
        Some("\n".to_owned() + &text::wrapped(&line, 80, 16))
    });
    let gradients = Operand::GRADIENTS.map(Operand::name).join(", ");
    let line = format!(
        "  d_out         q's type, the shape of out: a gradient of the output, for which {gradients} are computed and written, too"
    );
    format!(
        "A file may also have:{}\n{}\nAny other tensor is an error. Keys and values may both be {}, with q of any\ntype, if the file has their scales.\n",
        lines.collect::<String>(),
        text::wrapped(&line, 80, 16),
        quantized_names(),
    )
}

/// Reads the tensor of an operand, if it is one of these.
///
/// # Errors
/// [`Failure::Input`] if it has another type or shape.
pub(super) fn read<T: Element>(
    file: &Tensors,
    operand: Operand,
    view: &TensorView<'_>,
    inputs: &mut Inputs<T>,
) -> Result<(), Failure> {
    let wrong = |what: String| file.wrong(&format!("{} {what}", name_of(operand)));
    let Some((counts, needed)) = dimensions(operand) else {
        return Ok(());
    };
    let of_queries = [dtype_of(T::TYPE), Dtype::F32];
    let dtypes = match dtypes(operand) {
        [] if operand.elements() == Elements::Bias && T::TYPE != ElementType::F32 => &of_queries,
        [] => &of_queries[..1],
        dtypes => dtypes,
    };
    if !dtypes.contains(&view.dtype()) {
        return Err(wrong(format!(
            "has elements of type {}; it must have {}",
            view.dtype(),
            alternatives(dtypes)
        )));
    }
    let shape = view.shape();
    let must_be = |needed: String| {
        wrong(format!(
            "has shape {}; it must be {needed}",
            text::shape(shape)
        ))
    };
    if !counts.contains(&shape.len()) {
        return Err(must_be(needed.to_owned()));
    }
    let numbers = &mut inputs.numbers;
    match (operand.kind(), operand.elements(), shape) {
        (Kind::Scores, elements, &[batch, heads, queries, keys]) => {
            let layout = Layout::bhsd([batch, heads, queries, keys]);
            let data = match elements {
                Elements::U8 => Either::Right(view.data().to_vec()),
                Elements::Bias if view.dtype() != of_queries[0] => {
                    inputs.bias_f32 = Some((bytemuck::pod_collect_to_vec(view.data()), layout));
                    return Ok(());
                }
                _ => Either::Left(bytemuck::pod_collect_to_vec(view.data())),
            };
            inputs.scores[operand] = Some((data, layout));
        }
        // A number that does not fit `i32` is not a page, and may be filler.
        (_, Elements::I32, &[sequences, columns]) => {
            let entries = integers(view).map(|page| i32::try_from(page).unwrap_or(-1));
            numbers.lists[operand] = Some(entries.collect());
            numbers.table = Some(TableLayout::from([sequences, columns]));
        }
        (_, Elements::I32, _) => {
            let small = |value: i64| {
                i32::try_from(value)
                    .map_err(|_| wrong(format!("has the value {value}, which no i32 holds")))
            };
            numbers.lists[operand] = Some(integers(view).map(small).collect::<Result<_, _>>()?);
        }
        (kind, _, _) => {
            let heads = inputs.layouts[0].heads();
            // As many values in another order would be other slopes.
            if kind == Kind::List(Count::Slopes) && shape.last() != Some(&heads) {
                return Err(must_be(format!("{needed}, for {heads} heads")));
            }
            numbers.floats[operand] = Some(bytemuck::pod_collect_to_vec(view.data()));
        }
    }
    Ok(())
}

/// The elements of a tensor of integers.
fn integers(view: &TensorView<'_>) -> impl Iterator<Item = i64> {
    match view.dtype() {
        Dtype::I32 => elements(view, |value: i32| value.into()),
        Dtype::U32 => elements(view, |value: u32| value.into()),
        _ => elements(view, |value: i64| value),
    }
    .into_iter()
}
