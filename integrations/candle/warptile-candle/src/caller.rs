//! Checks that all functions share, and their error messages.

use std::fmt::Display;

use candle_core::{DType, DeviceLocation, Error, Layout, Result, Tensor};
use warptile::ElementType;
use warptile::kernels::{Count, Elements, Kind};
use warptile::spec::{DropoutState, Operand};

use crate::elements::{DTYPES, element_of};

/// The name of an operation, which its messages begin with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller(pub(crate) &'static str);

/// The name that candle's functions give to an argument of warptile's, if it is another one.
fn argument(name: &str) -> Option<&'static str> {
    match name {
        "query_offsets" => Some("seqlens_q"),
        "key_offsets" => Some("seqlens_k"),
        "scale" => Some("softmax_scale"),
        _ => None,
    }
}

/// The name that candle's functions give to an operand.
pub(crate) fn name_of(operand: Operand) -> &'static str {
    argument(operand.name()).unwrap_or(operand.name())
}

/// The sizes that lists go by.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sizes {
    pub(crate) sequences: usize,
    /// Query heads.
    pub(crate) heads: usize,
    /// New rows of a cache write.
    pub(crate) rows: usize,
}

impl Caller {
    pub(crate) fn dense(
        &self,
        name: &str,
        layout: &Layout,
        rule: &str,
    ) -> Result<warptile::Layout> {
        match (layout.dims(), layout.stride()) {
            (&[b, l, h, d], &[sb, sl, sh, sd]) => {
                self.check_rows(name, d, sd)?;
                Ok(warptile::Layout::new([b, l, h, d], [sb, sl, sh, sd]))
            }
            (dims, _) => Err(self.wrong_shape(name, dims, rule)),
        }
    }

    pub(crate) fn packed(&self, name: &str, layout: &Layout) -> Result<warptile::Layout> {
        match (layout.dims(), layout.stride()) {
            (&[l, h, d], &[sl, sh, sd]) => {
                self.check_rows(name, d, sd)?;
                // There is one batch entry, so its step does not matter.
                let step = l.saturating_mul(sl);
                Ok(warptile::Layout::new([1, l, h, d], [step, sl, sh, sd]))
            }
            (dims, _) => Err(self.wrong_shape(name, dims, "(rows, heads, head size)")),
        }
    }

    fn check_rows(&self, name: &str, head_size: usize, stride: usize) -> Result<()> {
        match head_size <= 1 || stride == 1 {
            true => Ok(()),
            false => Err(self.broken(format!(
                "{name} has stride {stride} in its last dimension, which must be contiguous; use `contiguous()`"
            ))),
        }
    }

    /// The element type that all the tensors have: one that queries can have.
    pub(crate) fn element(&self, tensors: &[(&str, DType)]) -> Result<ElementType> {
        let (first, dtype) = tensors[0];
        let found = element_of(dtype).filter(|element| !element.is_scaled());
        let element = found.ok_or_else(|| self.wrong_type(first, dtype, "f16, bf16 or f32"))?;
        for &(name, found) in tensors {
            let found_name = found.as_str();
            if element_of(found).is_some_and(|element| element.is_scaled()) {
                return Err(self.broken(format_args!(
                    "{name} has dtype {found_name}, which needs scales; use Attention::scales or write_to_pages_quantized"
                )));
            }
            if found != dtype {
                return Err(self.broken(format_args!(
                    "{name} has dtype {found_name}, but {first} has {}; both must be the same",
                    dtype.as_str()
                )));
            }
        }
        Ok(element)
    }

    /// The element type that tensors have to which scales belong.
    pub(crate) fn scaled(&self, tensors: [(&str, DType); 2]) -> Result<ElementType> {
        let [(_, dtype), _] = tensors;
        let element = element_of(dtype).filter(|element| element.is_scaled());
        match (element, tensors.iter().find(|(_, other)| *other != dtype)) {
            (Some(element), None) => Ok(element),
            (found, other) => {
                let (name, dtype) = other.filter(|_| found.is_some()).unwrap_or(&tensors[0]);
                let scaled = DTYPES
                    .into_iter()
                    .filter(|(_, element)| element.is_scaled());
                let names: Vec<&str> = scaled.map(|(dtype, _)| dtype.as_str()).collect();
                let rule = format!("{}, because scales are given", names.join(" or "));
                Err(self.wrong_type(name, *dtype, &rule))
            }
        }
    }

    /// `first` is the tensor that is at `place`.
    pub(crate) fn check_place(
        &self,
        name: &str,
        tensor: &Tensor,
        first: &str,
        place: &DeviceLocation,
    ) -> Result<()> {
        let found = tensor.device().location();
        match found == *place {
            true => Ok(()),
            false => Err(self.broken(format!(
                "{name} is on {found:?}, but {first} is on {place:?}; all tensors of a call must be on one device"
            ))),
        }
    }

    pub(crate) fn check_type(&self, name: &str, tensor: &Tensor, allowed: &[DType]) -> Result<()> {
        if allowed.contains(&tensor.dtype()) {
            return Ok(());
        }
        let names: Vec<&str> = allowed.iter().map(DType::as_str).collect();
        Err(self.wrong_type(name, tensor.dtype(), &names.join(" or ")))
    }

    fn wrong_type(&self, name: &str, dtype: DType, rule: &str) -> Error {
        let dtype = dtype.as_str();
        self.broken(format_args!("{name} has dtype {dtype}, but must be {rule}"))
    }

    /// Checks device, type and shape of a list. `first` is the tensor that is at `place`.
    pub(crate) fn check_list(
        &self,
        operand: Operand,
        tensor: &Tensor,
        (first, place): (&str, &DeviceLocation),
        sizes: Sizes,
    ) -> Result<()> {
        let name = name_of(operand);
        self.check_place(name, tensor, first, place)?;
        let dtypes: &[DType] = match operand.elements() {
            Elements::I32 => &[DType::U32, DType::I32],
            Elements::I64 => &[DType::I64],
            _ => &[DType::F32],
        };
        self.check_type(name, tensor, dtypes)?;
        let Sizes {
            sequences,
            heads,
            rows,
        } = sizes;
        let (entries, rule) = match (operand.kind(), tensor.dims()) {
            (Kind::List(Count::QueryHeads | Count::Slopes), _) => {
                (heads, "one entry per query head")
            }
            (Kind::List(Count::State), _) => (DropoutState::WORDS, "the words of a state"),
            (Kind::List(Count::Sequences), _) => (sequences, "one entry per sequence"),
            (Kind::List(Count::NewRows), _) => (rows, "one entry per row of k"),
            (Kind::List(Count::Offsets), _) => (
                sequences + 1,
                "as many entries as there are sequences of queries, and one more",
            ),
            (Kind::List(Count::Table), &[found, _]) if found == sequences => return Ok(()),
            (Kind::List(Count::Table), dims) => {
                let rule = format!("({sequences} sequences, pages of the longest)");
                return Err(self.wrong_shape(name, dims, &rule));
            }
            (_, [] | [_]) => return Ok(()),
            (_, dims) => {
                let rule = "one number, or one entry per key/value head";
                return Err(self.wrong_shape(name, dims, rule));
            }
        };
        self.check_shape(name, tensor, &[entries], rule)
    }

    /// How many sequences `seqlens_q` has.
    pub(crate) fn sequences(&self, seqlens_q: &Tensor) -> Result<usize> {
        match *seqlens_q.dims() {
            [entries] if entries >= 2 => Ok(entries - 1),
            ref dims => {
                let rule = "(sequences + 1), of at least one sequence";
                Err(self.wrong_shape("seqlens_q", dims, rule))
            }
        }
    }

    pub(crate) fn check_shape(
        &self,
        name: &str,
        tensor: &Tensor,
        dims: &[usize],
        rule: &str,
    ) -> Result<()> {
        match tensor.dims() == dims {
            true => Ok(()),
            false => Err(self.wrong_shape(name, tensor.dims(), &format!("{dims:?}: {rule}"))),
        }
    }

    pub(crate) fn wrong_shape(&self, name: &str, dims: &[usize], rule: &str) -> Error {
        self.broken(format!("{name} has shape {dims:?}, but must be {rule}"))
    }

    /// A rule of ours that is broken.
    pub(crate) fn broken(&self, message: impl Display) -> Error {
        Error::msg(format!("{}: {message}", self.0))
    }

    /// An error of warptile's, by the names that candle's functions give their arguments.
    pub(crate) fn failed(&self, error: impl Into<warptile::Error>) -> Error {
        let mut error = error.into();
        error.rename(argument);
        self.broken(error)
    }
}
