//! What every function checks, and how it says what is wrong.

use std::fmt::Display;

use candle_core::{DType, DeviceLocation, Error, Layout, Result, Tensor};
use warptile::ElementType;

/// The name of an operation, which its messages begin with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller(pub(crate) &'static str);

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

    /// The element type that all the tensors have.
    pub(crate) fn element(&self, tensors: [(&str, DType); 3]) -> Result<ElementType> {
        let [(first, dtype), ..] = tensors;
        let element = match dtype {
            DType::F16 => ElementType::F16,
            DType::BF16 => ElementType::Bf16,
            DType::F32 => ElementType::F32,
            other => {
                return Err(self.broken(format_args!(
                    "{first} has dtype {}, but must be f16, bf16 or f32",
                    other.as_str()
                )));
            }
        };
        for (name, found) in tensors {
            if found != dtype {
                return Err(self.broken(format_args!(
                    "{name} has dtype {}, but {first} has {}; both must be the same",
                    found.as_str(),
                    dtype.as_str()
                )));
            }
        }
        Ok(element)
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
        Err(self.broken(format!(
            "{name} has dtype {}, but must be {}",
            tensor.dtype().as_str(),
            names.join(" or ")
        )))
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
    pub(crate) fn failed(&self, error: warptile::Error) -> Error {
        let name = |argument| match argument {
            "query_offsets" => "seqlens_q",
            "key_offsets" => "seqlens_k",
            "scale" => "softmax_scale",
            other => other,
        };
        let renamed = match error {
            warptile::Error::Lengths {
                argument,
                index,
                rule,
            } => warptile::Error::Lengths {
                argument: name(argument),
                index,
                rule,
            },
            warptile::Error::NonFinite { argument, value } => warptile::Error::NonFinite {
                argument: name(argument),
                value,
            },
            warptile::Error::ScaleTooLarge { argument, value } => warptile::Error::ScaleTooLarge {
                argument: name(argument),
                value,
            },
            other => other,
        };
        self.broken(renamed)
    }
}
