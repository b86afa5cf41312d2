//! The operations that a problem can ask for: attention, and its gradients.

use either::Either;
use warptile::kernels::Role;
use warptile::plan::{BackwardProblem, Choice, Plan};
use warptile::spec::{Backward, Call};
use warptile::{Element, Gradients, Output, Tensor, gpu};
use warptile_check::Case;

use crate::tensors::Forward;

/// Attention or gradients.
pub(crate) type Asked = Either<Call, Backward>;

/// The operation that a case asks for, of its call.
///
/// # Errors
/// When the call has no gradients.
pub(crate) fn asked(case: &Case, call: Call) -> warptile_check::Result<Asked> {
    Ok(match case.backward {
        false => Either::Left(call),
        true => Either::Right(Backward::of(case, &call)?),
    })
}

/// An operation that commands plan and measure.
pub(crate) trait Operation: gpu::Operation + Clone {
    /// Roles of the kernels that a command can choose among.
    const ROLES: &'static [Role];

    /// The result of a call through the library's ordinary interface.
    type Answer<T: Element>;

    /// The operation that a case asks for, of a call of it.
    ///
    /// # Errors
    /// When the call has none.
    fn of(case: &Case, call: &Call) -> warptile::Result<Self>;

    fn call(&self) -> &Call;

    /// Arithmetic by the usual count.
    fn flops(&self) -> u128;

    fn plan_on_cpu(&self) -> Plan<Self::Problem>;

    /// The call through the library's ordinary interface, to be repeated. `d_out` makes the gradient of the output.
    ///
    /// # Errors
    /// When what comes before the call fails.
    fn repeated<'a, T: Element>(
        forward: &'a Forward<'a, T>,
        choice: Choice,
        d_out: impl FnOnce() -> warptile::Result<Tensor<T>>,
    ) -> warptile::Result<impl Fn() -> warptile::Result<Self::Answer<T>> + 'a>;
}

impl Operation for Call {
    const ROLES: &'static [Role] = &[Role::Forward];

    type Answer<T: Element> = Output<T>;

    fn of(_: &Case, call: &Call) -> warptile::Result<Self> {
        Ok(call.clone())
    }

    fn call(&self) -> &Call {
        self
    }

    fn flops(&self) -> u128 {
        self.flops()
    }

    fn plan_on_cpu(&self) -> Plan {
        Plan::cpu(self.problem())
    }

    fn repeated<'a, T: Element>(
        forward: &'a Forward<'a, T>,
        choice: Choice,
        _: impl FnOnce() -> warptile::Result<Tensor<T>>,
    ) -> warptile::Result<impl Fn() -> warptile::Result<Output<T>> + 'a> {
        let forward = forward.by(choice);
        Ok(move || forward.run())
    }
}

impl Operation for Backward {
    const ROLES: &'static [Role] = &[
        Role::AllGradients,
        Role::KeyGradients,
        Role::QueryGradients,
        Role::BiasGradients,
    ];

    type Answer<T: Element> = Gradients<T>;

    fn of(case: &Case, call: &Call) -> warptile::Result<Self> {
        let builder = Backward::builder(call.clone()).want_all(case.d_bias);
        Ok(builder.build()?)
    }

    fn call(&self) -> &Call {
        self.call()
    }

    fn flops(&self) -> u128 {
        self.flops()
    }

    fn plan_on_cpu(&self) -> Plan<BackwardProblem> {
        Plan::backward_on_cpu(BackwardProblem::of(self))
    }

    fn repeated<'a, T: Element>(
        forward: &'a Forward<'a, T>,
        choice: Choice,
        d_out: impl FnOnce() -> warptile::Result<Tensor<T>>,
    ) -> warptile::Result<impl Fn() -> warptile::Result<Gradients<T>> + 'a> {
        let (output, d_out) = (forward.run()?, d_out()?);
        let forward = forward.by(choice);
        Ok(move || forward.gradients(&d_out, &output))
    }
}
