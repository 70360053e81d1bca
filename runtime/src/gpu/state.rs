//! State that stays on the device: outputs in the memory of inputs.

use crate::bind::{Place, Plan};
use crate::device::Buffer;
use crate::error::{Error, Result};
use graphene_fusion::groups::Family;
use graphene_fusion::program::{Operand, Program, Step};

/// Refuses outputs in memory that something else needs as it is: another output, or an input that is still read.
pub(super) fn check_states(program: &Program, plan: &Plan, buffers: &[Buffer]) -> Result<()> {
    let all = || plan.buffers().iter().zip(buffers).zip(program.buffers().iter().enumerate());
    for ((bound, buffer), (i, _)) in all() {
        let Place::Output(number) = bound.place else { continue };
        for ((other, at), (j, _)) in all() {
            let free = match other.place {
                Place::Output(_) => i == j,
                Place::Input(_) => at.is_same(buffer) && may_share(program, j, i),
                Place::Arena(_) | Place::Weight => false,
            };
            if !free && at.overlaps(buffer) {
                let name = &program.outputs()[number].0;
                let what = "an output in memory that another value still needs";
                return Err(Error::Unsupported { what }.at(name));
            }
        }
    }
    Ok(())
}

/// Whether an output may lie where an input does: nothing reads the input after the first write to the output, and the step
/// that writes it first reads each element of the input, if it does, where it writes that of the output.
fn may_share(program: &Program, input: usize, output: usize) -> bool {
    let of = |operand: &&Operand, buffer: usize| operand.buffer.index() == buffer;
    let reads = |step: &Step| step.inputs.iter().any(|operand| of(&operand, input));
    let writes = |step: &Step| step.outputs.iter().any(|operand| of(&operand, output));
    let steps = program.steps();
    let Some(first) = steps.iter().position(writes) else { return false };
    if steps[first + 1..].iter().any(reads) {
        return false;
    }
    let step = &steps[first];
    if !reads(step) {
        return true;
    }
    let [from, to] = [input, output].map(|buffer| &program.buffers()[buffer]);
    let mut reading = step.inputs.iter().filter(|operand| of(operand, input));
    let mut writing = step.outputs.iter().filter(|operand| of(operand, output));
    let alone = match (reading.next(), reading.next(), writing.next()) {
        (Some(read), None, Some(written)) => read.view == written.view,
        _ => false,
    };
    // As intermediates take each other's memory.
    alone
        && step.family == Family::Pointwise
        && from.dtype.size() == to.dtype.size()
        && from.elements == to.elements
}

#[cfg(test)]
mod tests {
    use super::may_share;
    use graphene_frontend::dim::Bindings;
    use graphene_frontend::text::parse;
    use graphene_fusion::program::{BufferKind, Program};
    use graphene_fusion::{Granularity, plan};

    /// A counter, and another value that is made of it before or after.
    fn program(text: &str, granularity: Granularity) -> Program {
        let graph = parse(text, &[]).expect("a graph");
        let target = "sm_90a".parse().expect("a target");
        let planned = plan(&graph, &target, granularity, &Bindings::new());
        planned.expect("it is planned").program
    }

    fn shares(program: &Program, input: usize, output: usize) -> bool {
        let at = |kind: &dyn Fn(&BufferKind) -> bool| {
            program.buffers().iter().position(|buffer| kind(&buffer.kind)).expect("a buffer")
        };
        let from = at(&|kind| matches!(kind, BufferKind::Input(number) if *number == input));
        let to = at(&|kind| matches!(kind, BufferKind::Output(number) if *number == output));
        may_share(program, from, to)
    }

    #[test]
    fn a_state_is_written_where_it_was_read_for_the_last_time() {
        let last = program(
            r#"
            %0 = Input : f32[8] "s"
            %1 = Tanh(%0) : f32[8] "seen"
            %2 = Neg(%0) : f32[8] "next"
            return "seen" = %1, "next" = %2
        "#,
            Granularity::PerOp,
        );
        assert!(shares(&last, 0, 1));
        // The first result is written while the second is still to be made.
        assert!(!shares(&last, 0, 0));
    }

    #[test]
    fn sums_are_made_where_one_of_their_operands_was() {
        let text = r#"
            symbols n
            %0 = Input : f32[n, 64] "s"
            %1 = Input : f32[n, 64] "x"
            %2 = Add(%0, %1) : f32[n, 64] "next"
            return "next" = %2
        "#;
        for granularity in [Granularity::PerOp, Granularity::Fused] {
            let sum = program(text, granularity);
            assert!(shares(&sum, 0, 0) && shares(&sum, 1, 0), "{granularity:?}");
        }
    }

    #[test]
    fn what_a_step_reads_otherwise_is_not_where_it_writes() {
        let matmul = program(
            r#"
            %0 = Input : f32[8, 8] "s"
            %1 = Input : f32[8, 8] "w"
            %2 = MatMul(%0, %1) : f32[8, 8] "next"
            return "next" = %2
        "#,
            Granularity::PerOp,
        );
        assert!(!shares(&matmul, 0, 0));
        assert!(!shares(&matmul, 1, 0));
    }
}
