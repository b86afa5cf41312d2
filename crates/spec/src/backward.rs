//! The gradients of a call.

use crate::layout::SCORE_DIMENSIONS;
use crate::prepass::Prepass;
use crate::slots::UNWANTED;
use crate::{
    Access, Call, DIMENSIONS, ElementType, Elements, Expected, HostInputs, Invalid, Kind, Layout,
    Operand, Result, Slots, check_alone, expect_same, host,
};

/// The backward pass of a call, checked: from the gradient of its output, and of its lse if that is used, to the
/// gradients of [`Operand::GRADIENTS`].
///
/// It reads what the call reads, and the call's output and lse. With `p = exp(score - lse)` for the keys that a query sees,
/// `delta = sum(out * d_out) - d_lse` for each row, and `ds = p * (d_out v - delta)`, times the score's [`derivative`](crate::Scoring::derivative):
/// `dq = scale * ds k`, `dk = scale * ds q`, `dv = p d_out`, where `dk` and `dv` are the sums over all query heads that share a key/value
/// head. The gradient of a bias is `ds` without the derivative, summed over the dimensions that the bias does not depend on; it is 0 where
/// no query sees the key. The gradient of a list is defined with its operand.
///
/// Rows of `dq`, `dk` and `dv` that no sequence owns are left alone. These three may be `f32`, regardless of the type
/// of the tensors, and gradients may be added to what is there instead of replacing it; or only those of keys and values are, in `f32`.
///
/// ```
/// use warptile::spec::{Backward, Call, Scoring};
/// use warptile::{ElementType, Layout, Mask};
///
/// let (q, kv) = (Layout::bshd([2, 100, 8, 64]), Layout::bshd([2, 300, 2, 64]));
/// let call = Call::builder(&q, &kv, &kv, ElementType::F16)
///     .scoring(Scoring::new().mask(Mask::causal()))
///     .build()?;
/// let backward = Backward::builder(call).build()?;
/// assert_eq!(backward.flops(), backward.call().flops() / 2 * 5);
/// # Ok::<(), warptile::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Backward {
    call: Call,
    /// The gradients that are wanted.
    gradients: Box<Slots<Option<Layout>>>,
    gradient_type: ElementType,
    adds: bool,
    of_keys: KeyGradients,
    prepass: Prepass,
    expected: Box<Slots<Expected>>,
}

/// Describes a [`Backward`]; made by [`Backward::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct BackwardBuilder {
    call: Call,
    d_out: Layout,
    d_lse: bool,
    gradients: Box<Slots<Gradient>>,
    gradient_type: ElementType,
    adds: bool,
    of_keys: KeyGradients,
}

/// How the gradients of keys, values and lists are written, which those of several calls with other queries make up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyGradients {
    /// In the type of all gradients, and added to the present values if these are.
    #[default]
    LikeOthers,
    /// In `f32`, and added to the present values.
    Sums,
    /// In `f32`; those of lists are added to the present values, those of keys and values replace them.
    Parts,
}

/// A gradient as a builder was told of it.
#[derive(Debug, Clone, Copy, Default)]
struct Gradient {
    wanted: bool,
    /// Default: dense.
    layout: Option<Layout>,
}

impl Backward {
    /// The largest head size.
    pub const MAX_HEAD_DIM: usize = 256;

    /// The gradients of a call: by default those of q, k and v, each dense and in the storage order of its tensor.
    pub fn builder(call: Call) -> BackwardBuilder {
        BackwardBuilder {
            d_out: *call.out(),
            d_lse: false,
            gradients: Box::new(Slots::from_fn(|operand| Gradient {
                wanted: operand.moves_rows(),
                layout: None,
            })),
            gradient_type: call.element(),
            adds: false,
            of_keys: KeyGradients::LikeOthers,
            call,
        }
    }

    /// The call.
    pub const fn call(&self) -> &Call {
        &self.call
    }

    /// Layout of the output's gradient.
    pub const fn d_out(&self) -> &Layout {
        self.prepass.d_out()
    }

    /// Layout of a gradient, that of a list `[1, 1, numbers, 1]`; `None` if it is not wanted.
    pub fn gradient(&self, operand: Operand) -> Option<&Layout> {
        self.gradients[operand].as_ref()
    }

    /// Returns true if a gradient is wanted.
    pub fn wants(&self, operand: Operand) -> bool {
        self.gradient(operand).is_some()
    }

    /// Element type of a gradient.
    pub fn type_of(&self, operand: Operand) -> ElementType {
        match operand.elements() {
            Elements::F32 => ElementType::F32,
            _ if self.is_of_keys(operand) => ElementType::F32,
            _ => self.gradient_type,
        }
    }

    /// Returns true if a gradient is added to the present values.
    pub fn adds_to(&self, operand: Operand) -> bool {
        let replaces = self.of_keys == KeyGradients::Parts && operand.moves_rows();
        self.adds || self.is_of_keys(operand) && !replaces
    }

    /// Returns true for gradients that [`BackwardBuilder::of_keys`] applies to.
    fn is_of_keys(&self, operand: Operand) -> bool {
        let all_rows = matches!(operand.kind(), Kind::Queries | Kind::Scores);
        self.of_keys != KeyGradients::LikeOthers && !all_rows
    }

    /// The numbers of query rows that come first.
    pub const fn prepass(&self) -> &Prepass {
        &self.prepass
    }

    /// Returns true if every tensor's rows start at multiples of 16 bytes, as [`Call::is_aligned`].
    pub fn is_aligned(&self) -> bool {
        let fits = |layout: &Layout, element: ElementType| layout.steps_aligned(element.size());
        let mut gradients = { self.gradients.given() }.filter(|(operand, _)| operand.moves_rows());
        self.call.is_aligned()
            && fits(self.d_out(), self.call.element())
            && gradients.all(|(operand, layout)| fits(layout, self.type_of(operand)))
    }

    /// Returns true if some row of a gradient belongs to no sequence, or could: then nothing writes it.
    pub fn leaves_gaps(&self, operand: Operand) -> bool {
        match operand.kind() {
            Kind::Keys => self.call.keys().leaves_gaps(),
            Kind::List(_) | Kind::Scores => false,
            _ => self.call.leaves_gaps(),
        }
    }

    /// Arithmetic of the backward pass by the usual count: five products where the forward pass has two.
    pub fn flops(&self) -> u128 {
        let heads = self.call.heads();
        // Operations for scores, dq and dk, then for d_out v and dv.
        let of_a_pair = heads.dim + 2 * heads.key_value_elements();
        2 * self.call.visible_pairs() * heads.query as u128 * of_a_pair as u128
    }

    /// The operands of a raw launch, as [`Call::memory`].
    pub fn memory(&self) -> impl Iterator<Item = (Operand, Option<u64>)> {
        Operand::ALL
            .into_iter()
            .map(|operand| (operand, self.expected[operand].needed()))
    }

    /// The requirements on the memory of each operand.
    pub const fn expected(&self) -> &Slots<Expected> {
        &self.expected
    }

    /// Checks the inputs on the host, as [`Call::check_inputs`].
    ///
    /// # Errors
    /// As [`Call::check_inputs`].
    pub fn check_inputs(&self, inputs: &HostInputs<'_>) -> Result<()> {
        host::check(&self.expected, None, inputs, None)
    }
}

impl BackwardBuilder {
    /// The layout of `d_out`, or of a gradient, which then is wanted. Default: that of the output, or dense.
    pub fn layout(mut self, operand: Operand, layout: Layout) -> Self {
        match operand {
            Operand::DOut => self.d_out = layout,
            _ => {
                self.gradients[operand] = Gradient {
                    wanted: true,
                    layout: Some(layout),
                };
            }
        }
        self
    }

    /// Sets whether a gradient is wanted: those of queries, keys and values are by default, others are not.
    pub fn want(mut self, operand: Operand, wanted: bool) -> Self {
        self.gradients[operand].wanted = wanted;
        self
    }

    /// Every gradient that the call has is wanted, except that of a bias, which takes a pass of its own: `d_bias` tells about it.
    pub fn want_all(mut self, d_bias: bool) -> Self {
        for (operand, gradient) in self.gradients.iter_mut() {
            gradient.wanted = match operand {
                Operand::DBias => d_bias,
                _ => self.call.gradient_layout(operand).is_some(),
            };
        }
        self
    }

    /// Sets whether the lse has a gradient, too. Default: no.
    pub fn d_lse(self, d_lse: bool) -> Self {
        BackwardBuilder { d_lse, ..self }
    }

    /// Element type of the gradients of tensors: that of the tensors, which is the default, or `f32`.
    pub fn gradient_type(self, gradient_type: ElementType) -> Self {
        BackwardBuilder {
            gradient_type,
            ..self
        }
    }

    /// Sets whether gradients are added to the present values, instead of replacing them. Default: no.
    pub fn adds(self, adds: bool) -> Self {
        BackwardBuilder { adds, ..self }
    }

    /// Sets how the gradients of keys, values and lists are written. Default: like others.
    pub fn of_keys(self, of_keys: KeyGradients) -> Self {
        BackwardBuilder { of_keys, ..self }
    }

    /// Checks everything and freezes the description.
    ///
    /// # Errors
    /// An [`Invalid`] that names the argument and the rule it breaks: pages, keys and values in e4m3, a bias of another
    /// type than the queries' and head sizes above 256 have no backward pass.
    pub fn build(self) -> Result<Backward> {
        let call = self.call;
        if call.pages().is_some() {
            return Err(Invalid::presence(
                Operand::BlockTable.name(),
                "is given, but keys and values in pages have no backward pass",
            ));
        }
        if call.types().scaled().is_some() {
            return Err(Invalid::presence(
                "k",
                "is quantized, but quantized keys and values have no backward pass",
            ));
        }
        if call.scoring().has_bias_f32() {
            return Err(Invalid::presence(
                Operand::Bias.name(),
                "has elements of f32, but a bias of another type than the queries' has no backward pass",
            ));
        }
        for (argument, head_dim) in ["q", "v"].into_iter().zip(call.heads().dims()) {
            if head_dim > Backward::MAX_HEAD_DIM {
                return Err(Invalid::GradientHeadDim { argument, head_dim });
            }
        }
        let mut gradients = Box::new(Slots::none());
        for operand in Operand::GRADIENTS {
            let gradient = self.gradients[operand];
            if !gradient.wanted {
                continue;
            }
            let Some(dense) = call.gradient_layout(operand) else {
                return Err(Invalid::NoGradient {
                    argument: operand.name(),
                    of: source(operand),
                });
            };
            gradients[operand] = Some(gradient.layout.unwrap_or(dense));
        }
        let out = call.out().shape;
        expect_same("d_out", self.d_out.shape, ("out", out), DIMENSIONS)?;
        check_alone("d_out", &self.d_out, false)?;
        let prepass = Prepass::of(&call, self.d_out, self.d_lse);
        let element = self.gradient_type;
        if element != call.element() && element != ElementType::F32 {
            return Err(Invalid::ElementMismatch {
                argument: "dq",
                expected: call.element(),
                found: element,
            });
        }
        let mut expected = Box::new(UNWANTED);
        for (operand, found) in call.expected().iter() {
            // The call writes its output and its lse.
            if found.access == Access::Read {
                expected[operand] = *found;
            }
        }
        for operand in [Operand::Out, Operand::DOut, Operand::Lse, Operand::DLse] {
            expected[operand] = prepass.expected()[operand];
        }
        let mut backward = Backward {
            call,
            gradients,
            gradient_type: element,
            adds: self.adds,
            of_keys: self.of_keys,
            prepass,
            expected,
        };
        for (operand, layout) in backward.gradients.given() {
            let (name, call) = (operand.name(), &backward.call);
            let dense = call.gradient_layout(operand).unwrap_or(Layout::EMPTY);
            expect_same(
                name,
                layout.shape,
                (source(operand), dense.shape),
                match operand.kind() {
                    Kind::Scores => SCORE_DIMENSIONS,
                    _ => DIMENSIONS,
                },
            )?;
            check_alone(name, layout, true)?;
            if matches!(operand.kind(), Kind::List(_)) && layout.reach() != dense.reach() {
                return Err(Invalid::StridesDiffer {
                    argument: name,
                    found: layout.strides,
                    expected: dense.strides,
                });
            }
            let element = backward.type_of(operand);
            let size = element.size();
            backward.expected[operand] = match operand.kind() {
                Kind::List(_) => {
                    Expected::list(name, true, layout.heads(), size as u64, Access::Write)
                }
                _ => Expected::tensor(name, layout, size, Access::Write, size as u64),
            }
            .of_type(element);
        }
        for (operand, expected) in backward.expected.iter_mut() {
            if operand.moves_rows() {
                expected.moves_rows = expected.wanted;
            }
        }
        Ok(backward)
    }
}

/// The name of the operand that one is the gradient of.
fn source(operand: Operand) -> &'static str {
    operand.gradient_of().map_or("", Operand::name)
}

impl Call {
    /// The dense layout of a gradient, that of a list `[1, 1, numbers, 1]`, and that of a bias with extent 1 where it is repeated; `None` if the call does not have its operand.
    pub fn gradient_layout(&self, gradient: Operand) -> Option<Layout> {
        let of = gradient.gradient_of()?;
        match gradient.kind() {
            Kind::List(_) => { self.has(of) }.then(|| Layout::bshd([1, 1, self.reach(of), 1])),
            Kind::Scores => self.layout(of).map(Layout::without_repeats),
            _ => self.layout(of).map(Layout::dense_like),
        }
    }
}

impl Prepass {
    /// The pre-pass of the backward pass of a call.
    fn of(call: &Call, d_out: Layout, d_lse: bool) -> Self {
        let layouts = [*call.out(), d_out];
        Prepass::new(
            call.element(),
            layouts,
            call.queries().clone(),
            call.batch(),
            d_lse,
        )
    }
}
