//! Loops that are one chain of operations on each element of an input, as a kernel does them to what it has in registers.

use super::domain::Lies;
use super::{Class, Domain, Loop, LoopInput, Operation, Scalar, Source};
use crate::cpu::kernels::int8::{Operand, QUOTIENT_LIMIT, STEPS, Step, Steps, is_divisor};
use bytemuck::cast_slice;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Binary, Unary};

/// A step with operands and tables as the loop has them.
type LoopStep = Step<Source, usize>;

/// A loop that reads one of its inputs as a kernel makes it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Chain {
    steps: Vec<LoopStep>,
    /// The element type of the result: f32, or one of bytes.
    pub(crate) dtype: DType,
}

impl Loop {
    /// The chain from the input of this number to the only output, if the loop is one: of operations that kernels know,
    /// beside one other input at a time.
    pub(crate) fn chain(&self, result: usize) -> Option<Chain> {
        let [(dtype, source)] = self.outputs[..] else { return None };
        let is_stored = |at: &usize| self.instructions[*at].stored == Some(0);
        let last = match source {
            Some(source) => source,
            None => {
                let at = (0..self.instructions.len()).find(is_stored)?;
                Source::Register(self.instructions[at].target)
            }
        };
        let single = self.instructions.iter().all(|instruction| instruction.dtype == DType::F32);
        let steps = Vec::new();
        let (visited, begun, aside) = (0, false, false);
        let mut trace = Trace { program: self, result, dtype, steps, visited, begun, aside };
        let end = self.instructions.len();
        if !single || !trace.holds(last, end) {
            return None;
        }
        trace.value(last, end)?;
        let Trace { mut steps, visited, .. } = trace;
        let fits = match dtype {
            DType::F32 => true,
            DType::U8 | DType::I8 => {
                // A byte is zero for what is no number.
                steps.pop_if(|step| *step == Step::Number);
                steps = simplified(steps, &self.inputs);
                self.is_byte(&steps)
            }
            _ => false,
        };
        (visited == end && fits && steps.len() <= STEPS).then_some(Chain { steps, dtype })
    }

    /// Whether a chain ends with what makes a number one of -128 to 255.
    fn is_byte(&self, steps: &[LoopStep]) -> bool {
        match steps.last() {
            Some(&Step::Clamp { low, high }) => low >= -128.0 && high <= 255.0,
            Some(&Step::Lookup(table)) => self.tables[table].is_of_bytes(),
            _ => false,
        }
    }
}

/// Fewer steps that end with the same bytes. Zeros may have other signs in between.
fn simplified(steps: Vec<LoopStep>, inputs: &[(DType, Class)]) -> Vec<LoopStep> {
    let mut short: Vec<LoopStep> = Vec::new();
    for step in steps {
        let quotient = match short.last() {
            Some(&Step::Div(Source::Scalar(Scalar::F32(by)))) => {
                let small = is_divisor(by) && largest_magnitude(&short, inputs) < QUOTIENT_LIMIT;
                small.then_some(Step::Quotient(by))
            }
            _ => None,
        };
        match (&mut short[..], &step) {
            // What these give is a number.
            ([.., Step::Within { .. }], Step::Number) => {}
            ([.., last @ Step::Clamp { low: 0.0, .. }], Step::Number) => {
                if let Step::Clamp { low, high } = *last {
                    *last = Step::Within { low, high };
                }
            }
            // Whole numbers that a zero point is added to, and taken from again.
            ([.., Step::Round | Step::Quotient(_), Step::Add(z), range], Step::Sub(own))
                if z == own && less_zero_point(*range, own).is_some() =>
            {
                *range = less_zero_point(*range, own).unwrap_or(*range);
                short.remove(short.len() - 2);
            }
            // Positive scales keep the sign.
            (
                [
                    ..,
                    Step::Clamp { low, high } | Step::Within { low, high },
                    Step::Mul(Source::Scalar(Scalar::F32(scale))),
                ],
                Step::Clamp { low: 0.0, high: f32::INFINITY },
            ) if *scale > 0.0 && scale.is_finite() => (*low, *high) = (low.max(0.0), high.max(0.0)),
            ([.., last], Step::Round) if quotient.is_some() => {
                *last = quotient.unwrap_or(*last);
            }
            _ => short.push(step),
        }
    }
    short
}

/// What numbers are at most after these steps, with either sign; infinity where that is not known.
fn largest_magnitude(steps: &[LoopStep], inputs: &[(DType, Class)]) -> f32 {
    let known = |y: &Source| match *y {
        Source::Scalar(Scalar::F32(y)) => y.abs(),
        Source::Input(number) if matches!(inputs[number].0, DType::U8 | DType::I8) => 255.0,
        _ => f32::INFINITY,
    };
    let (mut most, mut aside) = (f32::INFINITY, f32::INFINITY);
    for step in steps {
        match step {
            Step::Add(y) | Step::Sub(y) => most += known(y),
            Step::Mul(y) => most *= known(y),
            Step::Div(Source::Scalar(Scalar::F32(y))) => most /= y.abs(),
            Step::Div(_) | Step::Lookup(_) => most = f32::INFINITY,
            Step::Clamp { low, high } | Step::Within { low, high } => {
                most = low.abs().max(high.abs());
            }
            Step::Aside(y) => (aside, most) = (most, known(y)),
            Step::AddAside | Step::SubAside => most += aside,
            Step::MulAside => most *= aside,
            Step::Quotient(y) => most = (most / y.abs()).ceil(),
            Step::Round => most = most.ceil(),
            Step::Number => {}
        }
    }
    most
}

/// A range of whole numbers, less a zero point.
fn less_zero_point(range: LoopStep, zero: &Source) -> Option<LoopStep> {
    let &Source::Scalar(Scalar::F32(zero)) = zero else { return None };
    let whole = |x: f32| x.fract() == 0.0 && x.abs() < QUOTIENT_LIMIT;
    let less = |x: f32| (whole(x) && whole(zero)).then_some(x - zero);
    Some(match range {
        Step::Clamp { low, high } => Step::Clamp { low: less(low)?, high: less(high)? },
        Step::Within { low, high } => Step::Within { low: less(low)?, high: less(high)? },
        _ => return None,
    })
}

/// A way back through a loop's instructions.
struct Trace<'a> {
    program: &'a Loop,
    result: usize,
    /// The element type of the output.
    dtype: DType,
    steps: Vec<LoopStep>,
    /// Instructions that it came by: each once, in a loop that is a chain.
    visited: usize,
    /// Whether it came to the result, and whether a number waits aside.
    begun: bool,
    aside: bool,
}

impl Trace<'_> {
    /// The instruction before this one that made a value, if an instruction did.
    fn maker(&self, value: Source, before: usize) -> Option<usize> {
        let Source::Register(register) = value else { return None };
        self.program.instructions[..before].iter().rposition(|own| own.target == register)
    }

    /// Whether a value is made of the result.
    fn holds(&self, value: Source, before: usize) -> bool {
        match self.maker(value, before) {
            None => value == Source::Input(self.result),
            Some(at) => {
                let sources = &self.program.instructions[at].sources;
                sources.iter().any(|&source| self.holds(source, at))
            }
        }
    }

    /// Whether a value is read as it is, and is not the result.
    fn is_leaf(&self, value: Source) -> bool {
        match value {
            Source::Scalar(Scalar::F32(x)) => !x.is_nan(),
            Source::Input(number) => {
                number != self.result && self.program.inputs[number].1 == Class::F32
            }
            Source::Scalar(_) | Source::Register(_) => false,
        }
    }

    /// Steps that make a value.
    fn value(&mut self, value: Source, before: usize) -> Option<()> {
        let Some(at) = self.maker(value, before) else {
            return match value {
                Source::Input(number) if number == self.result && !self.begun => {
                    self.begun = true;
                    Some(())
                }
                Source::Input(_) if self.begun && !self.aside && self.is_leaf(value) => {
                    self.aside = true;
                    self.steps.push(Step::Aside(value));
                    Some(())
                }
                _ => None,
            };
        };
        self.visited += 1;
        let instruction = &self.program.instructions[at];
        let step = match (instruction.operation, &instruction.sources[..]) {
            (Operation::Unary(Unary::Round), _) => Step::Round,
            (Operation::Unary(Unary::Relu), _) => Step::Clamp { low: 0.0, high: f32::INFINITY },
            (Operation::Number, _) => Step::Number,
            (Operation::Lookup(table), _) => Step::Lookup(table),
            (Operation::Binary(binary), &[a, b]) => {
                let commutes = matches!(binary, Binary::Add | Binary::Mul);
                let leads = self.is_leaf(a) && !matches!(b, Source::Scalar(_));
                let (a, b) = match commutes && (leads || self.holds(b, at)) {
                    true => (b, a),
                    false => (a, b),
                };
                if !self.is_leaf(b) {
                    self.value(a, at)?;
                    self.value(b, at)?;
                    self.aside = false;
                    self.steps.push(match binary {
                        Binary::Add => Step::AddAside,
                        Binary::Sub => Step::SubAside,
                        Binary::Mul => Step::MulAside,
                        _ => return None,
                    });
                    return Some(());
                }
                let step = match (binary, b) {
                    (Binary::Add, _) => Step::Add(b),
                    (Binary::Sub, _) => Step::Sub(b),
                    (Binary::Mul, _) => Step::Mul(b),
                    (Binary::Div, _) => Step::Div(b),
                    // Of two zeros a loop takes the other one; in bytes they are the same.
                    (_, Source::Scalar(Scalar::F32(0.0))) if self.dtype == DType::F32 => {
                        return None;
                    }
                    (Binary::Max, Source::Scalar(Scalar::F32(low))) => {
                        Step::Clamp { low, high: f32::INFINITY }
                    }
                    (Binary::Min, Source::Scalar(Scalar::F32(high))) => {
                        Step::Clamp { low: f32::NEG_INFINITY, high }
                    }
                    _ => return None,
                };
                self.value(a, at)?;
                self.push(step);
                return Some(());
            }
            _ => return None,
        };
        self.value(instruction.sources[0], at)?;
        self.push(step);
        Some(())
    }

    /// Adds a step; clamping to two ranges is clamping to one.
    fn push(&mut self, step: LoopStep) {
        if let (Some(Step::Clamp { low, high }), &Step::Clamp { low: above, high: below }) =
            (self.steps.last_mut(), &step)
            && above <= *high
        {
            *low = low.max(above);
            *high = high.min(below).max(*low);
            return;
        }
        self.steps.push(step);
    }
}

impl Chain {
    /// The chain with its operands as they lie in a domain that is so many columns wide; `None` where they lie otherwise than
    /// kernels read them.
    pub(crate) fn bind<'a>(
        &self,
        program: &'a Loop,
        domain: &Domain,
        columns: usize,
        inputs: &[LoopInput<'a>],
    ) -> Option<Steps<'a>> {
        let operand = |source: &Source| {
            let number = match *source {
                Source::Scalar(Scalar::F32(x)) => return Some(Operand::Same(x)),
                Source::Input(number) => number,
                Source::Scalar(_) | Source::Register(_) => return None,
            };
            let LoopInput::Bytes(bytes) = inputs[number] else { return None };
            let (dtype, _) = program.inputs[number];
            Some(match (domain.lies(number, columns)?, dtype) {
                (Lies::Same(at), DType::F32) => Operand::Same(cast_slice::<u8, f32>(bytes)[at]),
                (Lies::Same(at), DType::U8) => Operand::Same(bytes[at].into()),
                (Lies::Same(at), DType::I8) => Operand::Same((bytes[at] as i8).into()),
                (Lies::Columns(at), DType::F32) => {
                    Operand::Columns(cast_slice(bytes).get(at..at + columns)?)
                }
                (Lies::Elements(at), DType::F32) => {
                    Operand::Reals(cast_slice(bytes).get(at..at + domain.len)?)
                }
                (Lies::Elements(at), DType::U8) => Operand::Bytes(bytes.get(at..at + domain.len)?),
                (Lies::Elements(at), DType::I8) => {
                    Operand::SignedBytes(bytes.get(at..at + domain.len)?)
                }
                _ => return None,
            })
        };
        let table = |&table: &usize| &program.tables[table];
        self.steps.iter().map(|step| step.bind(operand, table)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, Loop, Scalar, Source, Step, largest_magnitude};
    use graphene_frontend::dim::Dim;
    use graphene_frontend::dtype::DType;
    use graphene_frontend::graph::{Graph, ValueId};
    use graphene_frontend::op::{Binary, Op, Unary};
    use graphene_frontend::tensor::Tensor;
    use graphene_frontend::types::TensorType;

    fn op(graph: &mut Graph, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        graph.add("y", op, &inputs).unwrap().value()
    }

    fn binary(graph: &mut Graph, binary: Binary, x: ValueId, y: f32) -> ValueId {
        let y = graph.add_constant("c", Tensor::scalar(y));
        op(graph, Op::Binary(binary), &[x, y])
    }

    /// Two inputs, numbers and bytes.
    fn inputs() -> (Graph, ValueId, ValueId) {
        let mut graph = Graph::new();
        let shape = |n: usize| [3, n].iter().map(|&size| Dim::from(size)).collect();
        let x = graph.add_input("x", TensorType::new(DType::F32, shape(8))).unwrap();
        let r = graph.add_input("r", TensorType::new(DType::U8, shape(8))).unwrap();
        (graph, x, r)
    }

    /// Numbers quantised beside bytes that are made numbers first: the steps as they are written.
    #[test]
    fn a_residual_is_a_step_aside() {
        let (mut graph, x, r) = inputs();
        let scaled = binary(&mut graph, Binary::Mul, x, 0.5);
        let real = op(&mut graph, Op::Cast { to: DType::F32, saturate: true }, &[r]);
        let real = binary(&mut graph, Binary::Mul, real, 0.25);
        let y = op(&mut graph, Op::Binary(Binary::Add), &[real, scaled]);
        let y = binary(&mut graph, Binary::Div, y, 3.0);
        let y = op(&mut graph, Op::Unary(Unary::Round), &[y]);
        let y = binary(&mut graph, Binary::Max, y, 0.0);
        let y = binary(&mut graph, Binary::Min, y, 255.0);
        let y = op(&mut graph, Op::Cast { to: DType::U8, saturate: true }, &[y]);
        graph.add_output("y", y);
        let chain = Loop::compile(&graph).unwrap().chain(0).unwrap();
        let number = |x: f32| Source::Scalar(Scalar::F32(x));
        let wanted = [
            Step::Mul(number(0.5)),
            Step::Aside(Source::Input(1)),
            Step::Mul(number(0.25)),
            Step::AddAside,
            Step::Div(number(3.0)),
            Step::Round,
            Step::Clamp { low: 0.0, high: 255.0 },
        ];
        assert_eq!(chain.steps, wanted);
        assert_eq!(chain.dtype, DType::U8);
    }

    /// Numbers quantised, dequantised, kept positive and quantised once more: without the zero point, and by a reciprocal.
    #[test]
    fn bytes_between_are_whole_numbers_alone() {
        let (mut graph, x, _) = inputs();
        let number = |x: f32| Source::Scalar(Scalar::F32(x));
        let quantised = |graph: &mut Graph, x, zero| {
            let y = op(graph, Op::Unary(Unary::Round), &[x]);
            let y = binary(graph, Binary::Add, y, zero);
            let y = op(graph, Op::Unary(Unary::Relu), &[y]);
            let y = binary(graph, Binary::Min, y, 255.0);
            op(graph, Op::Cast { to: DType::U8, saturate: true }, &[y])
        };
        let y = quantised(&mut graph, x, 100.0);
        let y = op(&mut graph, Op::Cast { to: DType::F32, saturate: true }, &[y]);
        let y = binary(&mut graph, Binary::Sub, y, 100.0);
        let y = binary(&mut graph, Binary::Mul, y, 0.03);
        let y = op(&mut graph, Op::Unary(Unary::Relu), &[y]);
        let y = binary(&mut graph, Binary::Div, y, 0.02);
        let y = quantised(&mut graph, y, 7.0);
        graph.add_output("y", y);
        let chain = Loop::compile(&graph).unwrap().chain(0).unwrap();
        let wanted = [
            Step::Round,
            Step::Within { low: 0.0, high: 155.0 },
            Step::Mul(number(0.03)),
            Step::Quotient(0.02),
            Step::Add(number(7.0)),
            Step::Clamp { low: 0.0, high: 255.0 },
        ];
        assert_eq!(chain.steps, wanted);
    }

    /// Divisions and rounding may make numbers larger.
    #[test]
    fn bounds_hold_after_every_step() {
        let number = |x: f32| Source::Scalar(Scalar::F32(x));
        let steps = [
            Step::Clamp { low: -0.7, high: 0.5 },
            Step::Round,
            Step::Quotient(0.001),
            Step::Add(number(-3.0)),
            Step::Div(number(0.5)),
            Step::Aside(Source::Input(0)),
            Step::AddAside,
        ];
        let bounds = [0.7, 1.0, 1000.0, 1003.0, 2006.0, 255.0, 2261.0];
        for (count, want) in (1..).zip(bounds) {
            let inputs = [(DType::U8, Class::F32)];
            assert_eq!(largest_magnitude(&steps[..count], &inputs), want, "after {count} steps");
        }
        assert_eq!(largest_magnitude(&steps[..0], &[]), f32::INFINITY);
    }

    /// What is read twice, is no byte at the end, or has a function that kernels do not know, is no chain.
    #[test]
    fn other_loops_are_none() {
        let (mut graph, x, _) = inputs();
        let scaled = binary(&mut graph, Binary::Mul, x, 0.5);
        let y = op(&mut graph, Op::Binary(Binary::Add), &[scaled, x]);
        graph.add_output("y", y);
        assert!(Loop::compile(&graph).unwrap().chain(0).is_none());

        let (mut graph, x, _) = inputs();
        let y = op(&mut graph, Op::Unary(Unary::Round), &[x]);
        let y = binary(&mut graph, Binary::Max, y, 0.0);
        let y = op(&mut graph, Op::Cast { to: DType::U8, saturate: true }, &[y]);
        graph.add_output("y", y);
        assert!(Loop::compile(&graph).unwrap().chain(0).is_none());

        let (mut graph, x, _) = inputs();
        let y = op(&mut graph, Op::Unary(Unary::Tanh), &[x]);
        graph.add_output("y", y);
        assert!(Loop::compile(&graph).unwrap().chain(0).is_none());
    }
}
