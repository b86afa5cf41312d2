//! The gradients of a call.

use crate::prepass::Prepass;
use crate::slots::UNWANTED;
use crate::{
    Access, Call, DIMENSIONS, ElementType, Expected, Invalid, Layout, Operand, Result, Slots,
    check_alone, expect_same,
};

/// The gradients that are tensors, each with the tensor that it is the gradient of.
const TENSORS: [(Operand, Operand); 3] = [
    (Operand::DQ, Operand::Q),
    (Operand::DK, Operand::K),
    (Operand::DV, Operand::V),
];

/// The backward pass of a call, checked: from the gradient of its output, and of its lse if that is used, to the
/// gradients of queries, keys, values and sinks.
///
/// It reads what the call reads, and the call's output and lse. With `p = exp(score - lse)` for the keys that a query sees,
/// `delta = sum(out * d_out) - d_lse` for each row, and `ds = p * (d_out v - delta)`, times the derivative of the softcap:
/// `dq = scale * ds k`, `dk = scale * ds q`, `dv = p d_out`, where `dk` and `dv` are the sums over all query heads that share a key/value
/// head, and the gradient of a sink is the sum of `-exp(sink - lse) * delta` over all rows of its head.
///
/// Rows of `dq`, `dk` and `dv` that no sequence owns are left alone. These three may be `f32`, regardless of the type
/// of the tensors, and gradients may be added to what is there instead of replacing it.
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
    /// The gradients of `TENSORS` that are wanted.
    gradients: [Option<Layout>; 3],
    d_sinks: bool,
    gradient_type: ElementType,
    adds: bool,
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
    gradients: [Option<Layout>; 3],
    d_sinks: bool,
    gradient_type: ElementType,
    adds: bool,
}

impl Backward {
    /// The largest head size.
    pub const MAX_HEAD_DIM: usize = 256;

    /// The gradients of a call: by default those of q, k and v, each dense and in the storage order of its tensor.
    pub fn builder(call: Call) -> BackwardBuilder {
        BackwardBuilder {
            d_out: *call.out(),
            d_lse: false,
            gradients: [call.q(), call.k(), call.v()].map(|layout| Some(layout.dense_like())),
            d_sinks: false,
            gradient_type: call.element(),
            adds: false,
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

    /// Layout of a gradient; `None` if it is not wanted, or no tensor.
    pub fn gradient(&self, operand: Operand) -> Option<&Layout> {
        let index = TENSORS.iter().position(|(of, _)| *of == operand)?;
        self.gradients[index].as_ref()
    }

    /// Returns true if a gradient is wanted.
    pub fn wants(&self, operand: Operand) -> bool {
        match operand {
            Operand::DSinks => self.d_sinks,
            _ => self.gradient(operand).is_some(),
        }
    }

    /// Element type of dq, dk and dv: that of the tensors, or `f32`.
    pub const fn gradient_type(&self) -> ElementType {
        self.gradient_type
    }

    /// Returns true if gradients are added to the present values.
    pub const fn adds(&self) -> bool {
        self.adds
    }

    /// The numbers of query rows that come first.
    pub const fn prepass(&self) -> &Prepass {
        &self.prepass
    }

    /// Returns true if every tensor's rows start at multiples of 16 bytes, as [`Call::is_aligned`].
    pub fn is_aligned(&self) -> bool {
        let fits = |layout: &Layout, element: ElementType| layout.steps_aligned(element.size());
        let mut gradients = self.gradients.iter().flatten();
        self.call.is_aligned()
            && fits(self.d_out(), self.call.element())
            && gradients.all(|layout| fits(layout, self.gradient_type))
    }

    /// Returns true if some row of a gradient belongs to no sequence, or could: then nothing writes it.
    pub fn leaves_gaps(&self, operand: Operand) -> bool {
        match operand {
            Operand::DK | Operand::DV => self.call.keys().leaves_gaps(),
            _ => self.call.leaves_gaps(),
        }
    }

    /// Arithmetic of the backward pass by the usual count: five products where the forward pass has two.
    pub fn flops(&self) -> u128 {
        let heads = self.call.heads();
        // Operations for scores, dq and dk, then for d_out v and dv.
        let of_a_pair = 3 * heads.dim + 2 * heads.value_dim;
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
}

impl BackwardBuilder {
    /// The layout of `d_out`, or of a gradient, which then is wanted. Default: that of the output, or dense.
    pub fn layout(mut self, operand: Operand, layout: Layout) -> Self {
        match TENSORS.iter().position(|(of, _)| *of == operand) {
            Some(index) => self.gradients[index] = Some(layout),
            None if operand == Operand::DOut => self.d_out = layout,
            None => {}
        }
        self
    }

    /// Sets whether a gradient is wanted: `dq`, `dk` and `dv` are by default, `d_sinks` is not.
    pub fn want(mut self, operand: Operand, wanted: bool) -> Self {
        match TENSORS.iter().position(|(of, _)| *of == operand) {
            Some(index) if !wanted => self.gradients[index] = None,
            None if operand == Operand::DSinks => self.d_sinks = wanted,
            _ => {}
        }
        self
    }

    /// Sets whether the lse has a gradient, too. Default: no.
    pub fn d_lse(self, d_lse: bool) -> Self {
        BackwardBuilder { d_lse, ..self }
    }

    /// Element type of dq, dk and dv: that of the tensors, which is the default, or `f32`.
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

    /// Checks everything and freezes the description.
    ///
    /// # Errors
    /// An [`Invalid`] that names the argument and the rule it breaks: pages, keys and values in e4m3 and head sizes above 256 have no
    /// backward pass.
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
        for (argument, head_dim) in ["q", "v"].into_iter().zip(call.heads().dims()) {
            if head_dim > Backward::MAX_HEAD_DIM {
                return Err(Invalid::TooLong {
                    argument,
                    dimension: "head size",
                    found: head_dim,
                    limit: Backward::MAX_HEAD_DIM,
                });
            }
        }
        if self.d_sinks && !call.has(Operand::Sinks) {
            return Err(Invalid::presence(
                Operand::DSinks.name(),
                "is wanted, but the call has no sinks",
            ));
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
        for ((operand, of), layout) in TENSORS.into_iter().zip(&self.gradients) {
            let Some(layout) = layout else { continue };
            let shape = call.layout(of).map_or([0; 4], |layout| layout.shape);
            expect_same(operand.name(), layout.shape, (of.name(), shape), DIMENSIONS)?;
            check_alone(operand.name(), layout, true)?;
            let size = element.size();
            expected[operand] =
                Expected::tensor(operand.name(), layout, size, Access::Write, size as u64)
                    .of_type(element);
        }
        if self.d_sinks {
            let heads = call.heads().query;
            let name = Operand::DSinks.name();
            expected[Operand::DSinks] =
                Expected::list(name, true, heads, 4, Access::Write).of_type(ElementType::F32);
        }
        for operand in [
            Operand::Q,
            Operand::K,
            Operand::V,
            Operand::Out,
            Operand::DOut,
        ]
        .into_iter()
        .chain(TENSORS.map(|(operand, _)| operand))
        {
            expected[operand].moves_rows = expected[operand].wanted;
        }
        Ok(Backward {
            call,
            gradients: self.gradients,
            d_sinks: self.d_sinks,
            gradient_type: self.gradient_type,
            adds: self.adds,
            prepass,
            expected,
        })
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
