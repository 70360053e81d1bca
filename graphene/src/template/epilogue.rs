//! What becomes of a product's sums: a [`Function`] of each, and of elements of other tensors.
//!
//! ```
//! use graphene_ir::function::Function;
//! use graphene_ir::kernel::Unary;
//! use graphene_ir::template::epilogue::{Epilogue, Span};
//!
//! // A layer: gelu(x·W + b) + r.
//! let [sum, bias, residual] = [0, 1, 2].map(Function::input);
//! let function = (sum + bias).unary(Unary::Gelu) + residual;
//! let layer = Epilogue::new(function, [Span::Row, Span::Whole]);
//! assert_eq!(layer, Epilogue::layer(true, Some(Unary::Gelu), true));
//! ```

mod attached;

pub(super) use self::attached::{Across, Attached, Run};
use super::product::{Edges, line, matrix};
use crate::build::Builder;
use crate::error::{Error, Result};
use crate::function::Function;
use crate::index::Var;
use crate::kernel::{Fused, Unary};
use crate::tensor::Scalar;

/// What becomes of the sums.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// Of the sum, which is input 0, and of an element of each operand; it has as many outputs.
    pub function: Function,
    /// The function's further inputs.
    pub operands: Vec<Input>,
    /// The type of each result `[m,n]`; none: that of A and B.
    pub outputs: Vec<Option<Scalar>>,
}

/// An operand of an epilogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Input {
    /// Which of its elements belongs to which sum.
    pub span: Span,
    /// The type of its elements; none: that of A and B.
    pub scalar: Option<Scalar>,
}

/// Which elements an epilogue's operand has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Span {
    /// A row `[n]`, the same for every row of the result, such as a bias.
    Row,
    /// A column `[m]`, the same for every column of the result.
    Column,
    /// `[m,n]`, such as a residual.
    Whole,
}

impl Span {
    /// The parameter's name, which is followed by `_2`, `_3`, … where there are more.
    pub(super) fn name(self) -> &'static str {
        match self {
            Span::Row => "bias",
            Span::Column => "column",
            Span::Whole => "R",
        }
    }

    /// The operand of this number, such that it is broadcast to `[m,n]`.
    pub(super) fn broadcast(self, number: usize) -> Fused {
        let operand = Fused::input(number);
        if self == Span::Column { operand.dims([Some(0), None]) } else { operand }
    }
}

impl Epilogue {
    /// A function of the sum and of operands that have the type of A and B, as its results have.
    pub fn new(function: Function, operands: impl IntoIterator<Item = Span>) -> Epilogue {
        let operands = operands.into_iter().map(|span| Input { span, scalar: None }).collect();
        let outputs = vec![None; function.outputs().len()];
        Epilogue { function, operands, outputs }
    }

    /// In this order: a bias `[n]` is added, the activation applied, a residual `[m,n]` added.
    pub fn layer(bias: bool, activation: Option<Unary>, residual: bool) -> Epilogue {
        let mut function = Function::identity();
        let mut operands = Vec::new();
        if bias {
            operands.push(Span::Row);
            function = function + Function::input(operands.len());
        }
        if let Some(activation) = activation {
            function = function.unary(activation);
        }
        if residual {
            operands.push(Span::Whole);
            function = function + Function::input(operands.len());
        }
        Epilogue::new(function, operands)
    }

    /// Whether the function is one of the sum and the operands, with the results as outputs.
    pub(super) fn check(&self) -> Result<()> {
        let results = self.function.outputs().len();
        if self.function.inputs() > 1 + self.operands.len()
            || results != self.outputs.len()
            || results == 0
        {
            let message = "a function has the sum and the operands as inputs, and the results as \
                           outputs, one at least";
            return Err(Error::Kernel(format!("{message}: {self:?}")));
        }
        Ok(())
    }

    /// Declares the parameters: the operands', then the results', C, C_2, ….
    pub(super) fn attach(
        &self,
        k: &mut Builder,
        [m, n]: [&Var; 2],
        batch: Option<&Var>,
        scalar: Scalar,
        edges: Edges,
    ) -> Result<Attached> {
        self.check()?;
        let whole = || matrix(batch, m, n, false);
        let mut operands = Vec::new();
        for input in &self.operands {
            let view = match input.span {
                Span::Row => line(n),
                Span::Column => line(m),
                Span::Whole => whole(),
            };
            let tensor = k.param(input.span.name(), view, input.scalar.unwrap_or(scalar))?;
            operands.push((input.span, tensor));
        }
        let mut results = Vec::new();
        for output in &self.outputs {
            results.push(k.param("C", whole(), output.unwrap_or(scalar))?);
        }
        Ok(Attached::new(self.function.clone(), operands, results, edges))
    }
}

impl Default for Epilogue {
    /// The sums themselves.
    fn default() -> Epilogue {
        Epilogue::new(Function::identity(), [])
    }
}
