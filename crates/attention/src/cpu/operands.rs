//! Operands of a call on the CPU, with their types.

use warptile_kernels::Operand;

use crate::error::Result;
use crate::spec::{Call, Element, HostInputs, View};

/// Inputs of a call that were found to be the call's.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T> {
    pub(super) q: View<'a, T>,
    pub(super) keys: KeyViews<'a, T>,
    inputs: &'a HostInputs<'a>,
}

/// Keys and values: of the queries' type, or the bits of numbers of a scaled one.
#[derive(Clone, Copy)]
pub(super) enum KeyViews<'a, T> {
    Same([View<'a, T>; 2]),
    Scaled([View<'a, u8>; 2]),
}

impl<'a, T: Element> Operands<'a, T> {
    /// The inputs passed [`Call::check_inputs`].
    pub(super) fn new(call: &Call, inputs: &'a HostInputs<'a>) -> Result<Self> {
        fn view<'a, U: bytemuck::Pod>(
            call: &Call,
            inputs: &HostInputs<'a>,
            operand: Operand,
        ) -> Result<View<'a, U>> {
            let elements = inputs.elements(operand)?.unwrap_or_default();
            let layout = call.layout(operand).copied();
            Ok(View::new(
                elements,
                layout.unwrap_or(crate::spec::Layout::EMPTY),
            ))
        }
        // The other inputs start where their elements can.
        match call.scoring().has_bias_f32() {
            true => drop(inputs.elements::<f32>(Operand::Bias)?),
            false => drop(inputs.elements::<T>(Operand::Bias)?),
        }
        Ok(Operands {
            q: view(call, inputs, Operand::Q)?,
            keys: match call.types().scaled() {
                None => KeyViews::Same([
                    view(call, inputs, Operand::K)?,
                    view(call, inputs, Operand::V)?,
                ]),
                Some(_) => KeyViews::Scaled([
                    view(call, inputs, Operand::K)?,
                    view(call, inputs, Operand::V)?,
                ]),
            },
            inputs,
        })
    }

    /// The elements of an operand that not every call has.
    pub(super) fn get<U: bytemuck::Pod>(&self, operand: Operand) -> Option<&'a [U]> {
        // Every step that could fail was tried before.
        self.inputs.elements(operand).ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use warptile_kernels::Operand;

    use crate::cpu::{append_cpu, forward_cpu};
    use crate::spec::{
        Append, Call, ElementType, HostInputs, HostOutputs, Layout, Pairing, Rotary, Scoring,
    };

    /// A write of one row of 8 elements into a cache of 4.
    fn write(element: ElementType, rotates: bool) -> Append {
        let (row, pages) = (Layout::bshd([1, 1, 1, 8]), Layout::bshd([1, 4, 1, 8]));
        let append = Append::builder(element, [&row, &row], [&pages, &pages]).slots(&[0]);
        let append = match rotates {
            true => {
                let rotary = Rotary::computed(8, 10_000.0, Pairing::HalfSplit).unwrap();
                append.queries(row, None).positions(&[0]).rotary(rotary)
            }
            false => append,
        };
        append.build().unwrap()
    }

    #[test]
    fn values_in_the_memory_of_keys_need_room_for_their_elements() {
        let new = [0_u8; 16];
        let inputs = HostInputs::default()
            .with(Operand::K, &new)
            .with(Operand::V, &new);
        // 32 elements of two bytes for the keys, and as many or one too few for the values.
        let mut cache = [0_u8; 128];
        let append = write(ElementType::F16, false);
        let mut run = |bytes| {
            let outputs = HostOutputs::cache_in_one(&mut cache[..bytes], 32);
            append_cpu(&append, &inputs, outputs)
        };
        assert!(run(128).is_ok());
        assert_eq!(
            run(126).unwrap_err().to_string(),
            "v_pages needs a buffer of 32 elements for its shape and strides, but has 31"
        );
    }

    #[test]
    fn values_in_memory_of_their_own_need_room_there() {
        let new = [0.0_f32; 8];
        let inputs = HostInputs::default()
            .with(Operand::K, &new)
            .with(Operand::V, &new);
        let (mut cache, mut values) = ([0.0_f32; 64], [1.0_f32; 32]);
        let append = write(ElementType::F32, false);
        let mut run = |len: usize| {
            let outputs = HostOutputs::cache_in_one(&mut cache, 32);
            append_cpu(
                &append,
                &inputs,
                outputs.with(Operand::VPages, &mut values[..len]),
            )
        };
        assert_eq!(
            run(8).unwrap_err().to_string(),
            "v_pages needs a buffer of 32 elements for its shape and strides, but has 8"
        );
        run(32).unwrap();
        assert_eq!((values[0], values[8]), (0.0, 1.0));
    }

    #[test]
    fn an_operand_is_given_on_the_side_that_has_it() {
        let layout = Layout::bshd([1, 1, 1, 8]);
        let call = Call::builder(&layout, &layout, &layout, ElementType::F32)
            .want_lse(false)
            .build()
            .unwrap();
        let append = write(ElementType::F32, true);
        let bytes = [0_u8; 256];
        for operand in Operand::ALL {
            for is_input in [true, false] {
                let mut extra = [0_u8; 256];
                let mut run = |of_append: bool| {
                    let rows = HostInputs::default()
                        .with(Operand::K, &bytes)
                        .with(Operand::V, &bytes);
                    let (mut one, mut two, mut three) = ([0_u8; 128], [0_u8; 128], [0_u8; 128]);
                    let (mut inputs, mut outputs) = match of_append {
                        true => (
                            rows,
                            HostOutputs::cache(&mut one, &mut two).with(Operand::Q, &mut three),
                        ),
                        false => (
                            rows.with(Operand::Q, &bytes),
                            HostOutputs::default().with(Operand::Out, &mut one),
                        ),
                    };
                    use Operand::{K, KPages, Out, Q, V, VPages};
                    let there: &[Operand] = match (is_input, of_append) {
                        (true, true) => &[K, V],
                        (true, false) => &[Q, K, V],
                        (false, true) => &[Q, KPages, VPages],
                        (false, false) => &[Out],
                    };
                    let is_there = there.contains(&operand);
                    match is_input {
                        true => inputs.set(operand, &bytes),
                        false => outputs = outputs.with(operand, &mut extra),
                    }
                    let result = match of_append {
                        true => append_cpu(&append, &inputs, outputs),
                        false => forward_cpu(&call, &inputs, outputs),
                    };
                    match (is_there, result) {
                        (true, result) => result.unwrap(),
                        (false, Ok(())) => panic!("{operand:?} {is_input} {of_append}"),
                        (false, Err(error)) => {
                            assert!(error.to_string().starts_with(operand.name()), "{error}");
                        }
                    }
                };
                run(false);
                run(true);
            }
        }
    }

    #[test]
    fn whole_numbers_are_no_slopes() {
        let layout = Layout::bshd([1, 1, 1, 8]);
        let call = Call::builder(&layout, &layout, &layout, ElementType::F32)
            .scoring(Scoring::default().with(Operand::Slopes))
            .build()
            .unwrap();
        let (data, mut out) = ([0.0_f32; 8], [0.0_f32; 8]);
        let inputs = HostInputs::new(&data, &data, &data).with(Operand::Slopes, &[1_i32]);
        let error = forward_cpu(&call, &inputs, HostOutputs::new(&mut out)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "alibi_slopes has numbers of a different type from those that the call was built for"
        );
    }
}
