//! Pointwise functions as data: straight-line programs on registers in single precision, which
//! [templates](crate::template) apply to elements.
//!
//! ```
//! use graphene_ir::function::Function;
//! use graphene_ir::kernel::Unary;
//!
//! let [x, bias] = [0, 1].map(Function::input);
//! let activated = (x + bias).unary(Unary::Gelu);
//! assert_eq!(activated, Function::sum().unary(Unary::Gelu));
//! assert_eq!((activated * 2.0).eval(&[1.0, -1.0]), [0.0]);
//! ```
//!
//! A function of one output is an expression: operators combine two into one, and what both compute
//! is computed once. [`Function::all`] makes one of several outputs, [`Function::after`] composes.

pub mod near;

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::{Binary, Number, Scalar, Unary};

/// The result of a [`Step`], by its place in the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(u32);

/// One computation. Its operands are earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// The element of this input.
    Input(usize),
    /// A number.
    Constant(Number),
    /// A function of one number.
    Unary(Unary, Value),
    /// A function of two numbers; comparisons give 1 or 0.
    Binary(Binary, Value, Value),
    /// The second value where the first is not 0, else the third.
    Select(Value, Value, Value),
    /// The value rounded to a type and back.
    Round(Scalar, Value),
}

/// A straight-line program. Every step is there once, and serves an output.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program<S> {
    steps: Vec<S>,
    outputs: Vec<Value>,
}

/// A pointwise function: of some inputs' elements, one number for each output.
pub type Function = Program<Step>;

/// What a [`Program`] is made of.
pub trait Node: Clone + PartialEq {
    /// The values that it is computed from.
    fn operands(&self) -> impl Iterator<Item = Value>;

    /// Likewise, to be others.
    fn operands_mut(&mut self) -> impl Iterator<Item = &mut Value>;

    /// The same of other operands.
    fn with(&self, of: impl Fn(Value) -> Value) -> Self {
        let mut node = self.clone();
        node.operands_mut().for_each(|value| *value = of(*value));
        node
    }

    /// The input that it is, if it is one.
    fn input(&self) -> Option<usize>;
}

impl Value {
    /// The place of its step.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Step {
    /// Its value, of the inputs and of its operands' values.
    pub fn value(&self, inputs: &[f64], operands: &[f64]) -> f64 {
        match self {
            Step::Input(input) => inputs[*input],
            Step::Constant(number) => number.0,
            Step::Unary(op, _) => op.value(operands[0]),
            Step::Binary(op, ..) => op.value(operands[0], operands[1]),
            Step::Select(..) => operands[if operands[0] == 0.0 { 2 } else { 1 }],
            Step::Round(scalar, _) => scalar.round(operands[0]),
        }
    }
}

/// A step's operands, as it is borrowed.
macro_rules! operands {
    ($step:expr) => {
        match $step {
            Step::Input(_) | Step::Constant(_) => [None, None, None],
            Step::Unary(_, x) | Step::Round(_, x) => [Some(x), None, None],
            Step::Binary(_, x, y) => [Some(x), Some(y), None],
            Step::Select(x, y, z) => [Some(x), Some(y), Some(z)],
        }
        .into_iter()
        .flatten()
    };
}

pub(crate) use operands;

impl Node for Step {
    fn operands(&self) -> impl Iterator<Item = Value> {
        operands!(self).copied()
    }

    fn operands_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        operands!(self)
    }

    fn input(&self) -> Option<usize> {
        if let Step::Input(input) = self { Some(*input) } else { None }
    }
}

impl<S: Node> Program<S> {
    const EMPTY: Program<S> = Program { steps: Vec::new(), outputs: Vec::new() };

    /// A step that is computed from none.
    pub(crate) fn leaf(step: S) -> Program<S> {
        Program { steps: vec![step], outputs: vec![Value(0)] }
    }

    /// All outputs of these, one after the other, and the steps that serve them.
    pub fn all(parts: impl IntoIterator<Item = Program<S>>) -> Program<S> {
        let mut all = Program::EMPTY;
        for part in parts {
            let outputs = all.absorb(&part, &[]);
            all.outputs.extend(outputs);
        }
        all
    }

    /// This function of the outputs of `inner`: output `i` is input `i`. Inputs that `inner` has no output for stay.
    pub fn after(&self, inner: &Program<S>) -> Program<S> {
        let mut all = Program::EMPTY;
        let given = all.absorb(inner, &[]);
        all.outputs = all.absorb(self, &given);
        Program::all([all])
    }

    /// Only this output.
    pub fn output(&self, output: usize) -> Program<S> {
        Program::all([Program { steps: self.steps.clone(), outputs: vec![self.outputs[output]] }])
    }

    /// The same of other steps, each in the place of one.
    pub(crate) fn map<T>(&self, step: impl Fn(&S) -> T) -> Program<T> {
        Program { steps: self.steps.iter().map(step).collect(), outputs: self.outputs.clone() }
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[S] {
        &self.steps
    }

    /// The outputs' values.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// The inputs that steps are, in the order of the steps.
    pub fn used(&self) -> impl Iterator<Item = usize> {
        self.steps.iter().filter_map(Node::input)
    }

    /// How many inputs there are: one more than the last that is used.
    pub fn inputs(&self) -> usize {
        self.used().max().map_or(0, |last| last + 1)
    }

    /// A step of the first outputs of these.
    pub(crate) fn combine(parts: &[Program<S>], step: impl FnOnce(&[Value]) -> S) -> Program<S> {
        let mut all = Program::EMPTY;
        let values: Vec<Value> = parts.iter().map(|part| all.absorb(part, &[])[0]).collect();
        all.outputs = vec![all.push(step(&values))];
        Program::all([all])
    }

    /// Another's steps that serve its outputs, its first inputs replaced by `given`; says where its outputs are.
    fn absorb(&mut self, other: &Program<S>, given: &[Value]) -> Vec<Value> {
        let mut used = vec![false; other.steps.len()];
        other.outputs.iter().for_each(|output| used[output.index()] = true);
        // An operand comes before its step, so that one pass from the end misses none.
        for (at, step) in other.steps.iter().enumerate().rev() {
            if used[at] {
                step.operands().for_each(|operand| used[operand.index()] = true);
            }
        }
        let mut at: Vec<Value> = Vec::with_capacity(other.steps.len());
        for (step, used) in other.steps.iter().zip(used) {
            at.push(match step.input().and_then(|input| given.get(input)) {
                Some(value) => *value,
                None if used => self.push(step.with(|value| at[value.index()])),
                None => Value(0),
            });
        }
        other.outputs.iter().map(|output| at[output.index()]).collect()
    }

    fn push(&mut self, step: S) -> Value {
        let at = self.steps.iter().position(|known| *known == step).unwrap_or_else(|| {
            self.steps.push(step);
            self.steps.len() - 1
        });
        Value(u32::try_from(at).expect("a program has fewer steps than memory has bytes"))
    }

    /// The same in the order in which its text has it: each step right before the first that needs it.
    pub(crate) fn ordered(&self) -> Program<S> {
        fn visit<S: Node>(all: &[S], value: Value, order: &mut Vec<Value>) {
            if !order.contains(&value) {
                all[value.index()].operands().for_each(|operand| visit(all, operand, order));
                order.push(value);
            }
        }
        let mut order = Vec::with_capacity(self.steps.len());
        self.outputs.iter().for_each(|output| visit(&self.steps, *output, &mut order));
        let place = |value| Value(order.iter().position(|of| *of == value).unwrap_or(0) as u32);
        let steps = order.iter().map(|value| self.steps[value.index()].with(place)).collect();
        Program { steps, outputs: self.outputs.iter().map(|output| place(*output)).collect() }
    }
}

/// Programs whose steps are functions of elements, among others.
impl<S: Node + From<Step>> Program<S> {
    /// The input of a number.
    pub fn input(input: usize) -> Program<S> {
        Program::leaf(Step::Input(input).into())
    }

    /// A number, which must not be NaN.
    pub fn constant(value: f64) -> Program<S> {
        Program::leaf(Step::Constant(Number(value)).into())
    }

    /// A function of the output.
    pub fn unary(self, op: Unary) -> Program<S> {
        Program::combine(&[self], |x| Step::Unary(op, x[0]).into())
    }

    /// A function of this output and another's.
    pub fn binary(self, op: Binary, other: impl Into<Program<S>>) -> Program<S> {
        Program::combine(&[self, other.into()], |x| Step::Binary(op, x[0], x[1]).into())
    }

    /// `yes` where this is not 0, else `no`.
    pub fn select(self, yes: impl Into<Self>, no: impl Into<Self>) -> Program<S> {
        let parts = [self, yes.into(), no.into()];
        Program::combine(&parts, |x| Step::Select(x[0], x[1], x[2]).into())
    }

    /// The output as an element of this type has it.
    pub fn rounded(self, scalar: Scalar) -> Program<S> {
        Program::combine(&[self], |x| Step::Round(scalar, x[0]).into())
    }
}

impl Function {
    /// The outputs in double precision, rounded only where a step says so.
    pub fn eval(&self, inputs: &[f64]) -> Vec<f64> {
        let mut values = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let operands: Vec<f64> = step.operands().map(|value| values[value.index()]).collect();
            values.push(step.value(inputs, &operands));
        }
        self.outputs.iter().map(|output| values[output.index()]).collect()
    }
}

/// Functions that layers have, of input 0 unless they say otherwise.
impl Function {
    /// x
    pub fn identity() -> Function {
        Function::input(0)
    }

    /// x₀ + x₁
    pub fn sum() -> Function {
        Function::input(0) + Function::input(1)
    }

    /// x·Φ(x) by its tanh approximation: x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))). Since 1 + tanh(y) is 2·sigmoid(2y), of
    /// which nothing cancels where y is negative, it is computed so.
    pub fn gelu_tanh() -> Function {
        let x = Function::identity();
        let twice = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
        let inner = (x.clone() * x.clone() * (0.044_715 * twice) + twice) * x.clone();
        x * inner.unary(Unary::Sigmoid)
    }
}

impl<S: Node + From<Step>> From<f64> for Program<S> {
    fn from(value: f64) -> Program<S> {
        Program::constant(value)
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident),*) => {$(
        impl<S: Node + From<Step>, F: Into<Program<S>>> $trait<F> for Program<S> {
            type Output = Program<S>;

            fn $method(self, other: F) -> Program<S> {
                self.binary(Binary::$trait, other)
            }
        }
    )*};
}

operators!(Add add, Sub sub, Mul mul, Div div);

impl<S: Node + From<Step>> Neg for Program<S> {
    type Output = Program<S>;

    fn neg(self) -> Program<S> {
        self.unary(Unary::Neg)
    }
}
