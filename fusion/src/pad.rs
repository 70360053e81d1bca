//! Whether a graph may run at a larger size than was asked for, and give what it gives at the size asked for.
//!
//! A server prepares a model for a few sizes and runs requests at the next one that is large enough: what a request
//! lacks is filled with zeros, and of the outputs the part that was asked for is kept. [`padding`] says whether that is
//! exact. It walks through the graph and knows of every value along which of its axes the padded dim runs; that
//! elements at positions which were asked for are those of the exact run is the invariant, and an operation for which
//! `rules` cannot show it refuses. Operations on each position by itself keep it: matmuls over features, norms over
//! features, pointwise functions, embeddings. Across positions it is kept where those that were added count for
//! nothing: attention and softmax whose mask forbids them, by -∞ or a number of at most -10⁴ that follows from the
//! zeros which a mask input is filled with, causal attention, sums of what a mask makes zero.
//!
//! So a mask has to mean 1 for what is there. A row of a mask without a single 1 has no meaning in either run, and
//! differs.

mod independent;
mod rules;

pub use independent::independent;

use graphene_frontend::eval::evaluate_op;
use graphene_frontend::{
    Bindings, DType, Dim, Graph, Node, Op, Symbol, Tensor, TensorType, ValueId,
};

/// What is filled and what is cut where a dim is padded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Padding {
    /// The dim.
    pub symbol: Symbol,
    /// For each input of the graph, the axes that are filled with zeros behind what is given.
    pub inputs: Vec<Vec<usize>>,
    /// For each output, the axes that are cut to the size asked for.
    pub outputs: Vec<Vec<usize>>,
}

/// Why a dim cannot be padded, or is not known to be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{symbol}` cannot be padded: {node:?} ({op}) {reason}")]
pub struct Unpadded {
    /// The dim.
    pub symbol: Symbol,
    /// The node's name, or the output's.
    pub node: String,
    /// The operation.
    pub op: &'static str,
    /// What it does across positions.
    pub reason: String,
}

#[derive(Clone, Debug)]
struct Value {
    /// For each axis how the dim runs along it, if it does. Elements at positions that were asked for are exact.
    axes: Vec<Option<Along>>,
    /// The number that all elements are, whatever the sizes.
    uniform: Option<Tensor>,
    /// Elements at positions that were added are finite.
    finite: bool,
    /// Some elements may be so large that the sum of a few such numbers is not finite: those of a mask.
    large: bool,
}

/// How a padded dim runs along an axis: of `outer · dim · inner` elements it is the middle index.
#[derive(Clone, Debug)]
struct Along {
    outer: Dim,
    inner: Dim,
    /// What elements are at positions that were added.
    added: Added,
}

#[derive(Clone, Debug)]
enum Added {
    /// Anything.
    Unknown,
    /// All this number.
    Number(Tensor),
    /// So low that an exponential beside others is zero.
    Forbidden,
}

/// Whether a symbol may be bound to a larger size than asked for, what is filled then and what is cut.
///
/// # Errors
/// [`Unpadded`] with the first operation that mixes positions, or that is not known to leave them apart.
pub fn padding(graph: &Graph, symbol: &Symbol) -> Result<Padding, Unpadded> {
    walk(graph, symbol, None)
}

/// What a rule says, mostly of values, or why it cannot.
type Said<T = Value> = Result<T, String>;

/// What is asked of a node before its rule.
type Ask = fn(&Node, &[Option<&Value>], &Symbol) -> Said<()>;

/// Follows the dim from the inputs to the outputs. Where `ask` is given, positions are rows of any values, else zeros are
/// added behind those asked for.
fn walk(graph: &Graph, symbol: &Symbol, ask: Option<Ask>) -> Result<Padding, Unpadded> {
    let mut values: Vec<Vec<Value>> = Vec::with_capacity(graph.len());
    let mut inputs = Vec::new();
    let unpadded = |node: &str, op, reason| {
        let (symbol, node) = (symbol.clone(), node.to_owned());
        Unpadded { symbol, node, op, reason }
    };
    for (_, node) in graph.nodes() {
        let refuse = |reason: String| unpadded(node.name(), node.op().name(), reason);
        let known = |read: ValueId| &values[read.node.index()][read.output as usize];
        let given: Vec<_> = node.inputs().iter().map(|read| read.map(known)).collect();
        if let Some(ask) = ask {
            ask(node, &given, symbol).map_err(&refuse)?;
        }
        let made = match (node.op(), ask) {
            // What numbers are matters only where zeros are added.
            (Op::Constant(tensor), Some(_)) => vec![Value::free(tensor.shape().len())],
            _ => rules::apply(graph, node, &given, symbol).map_err(&refuse)?,
        };
        for (value, ty) in made.iter().zip(node.outputs()) {
            if !accounted(value, ty, symbol) {
                let (ty, what) = (ty.to_string(), "is not one row for each position");
                return Err(refuse(format!("has the shape {ty}, which {what}")));
            }
        }
        if *node.op() == Op::Input {
            inputs.push(made[0].along().collect());
        }
        let forget = |value: Value| if ask.is_some() { value.forget() } else { value };
        values.push(made.into_iter().map(forget).collect());
    }
    let output = |(name, value): &(String, ValueId)| {
        let known = &values[value.node.index()][value.output as usize];
        let plain = known.axes.iter().flatten().all(Along::is_plain);
        let mixes = || unpadded(name, "an output", "has it in one axis with others".to_owned());
        plain.then(|| known.along().collect()).ok_or_else(mixes)
    };
    let outputs = graph.outputs().iter().map(output).collect::<Result<_, _>>()?;
    Ok(Padding { symbol: symbol.clone(), inputs, outputs })
}

/// Whether the symbol runs along every axis that its size follows from, and along no other.
fn accounted(value: &Value, ty: &TensorType, symbol: &Symbol) -> bool {
    let accounted = |(dim, along): (&Dim, &Option<Along>)| match along {
        None => !mentions(dim, symbol),
        Some(along) => {
            let whole = &(&along.outer * &Dim::symbol(symbol.name())) * &along.inner;
            whole == *dim && !mentions(&along.outer, symbol) && !mentions(&along.inner, symbol)
        }
    };
    value.axes.len() == ty.rank() && ty.shape.iter().zip(&value.axes).all(accounted)
}

fn mentions(dim: &Dim, symbol: &Symbol) -> bool {
    dim.symbols().contains(symbol)
}

impl Value {
    /// A value of this rank that the padded dim has no part in.
    fn free(rank: usize) -> Self {
        Self { axes: vec![None; rank], uniform: None, finite: true, large: false }
    }

    fn forget(mut self) -> Self {
        self.axes.iter_mut().flatten().for_each(|along| along.added = Added::Unknown);
        self
    }

    fn along(&self) -> impl Iterator<Item = usize> {
        self.axes.iter().enumerate().filter(|(_, along)| along.is_some()).map(|(axis, _)| axis)
    }

    /// What elements are at added positions along an axis, or everywhere where the dim does not run along it.
    fn added(&self, axis: Option<usize>) -> Added {
        match (axis.and_then(|axis| self.axes[axis].as_ref()), &self.uniform) {
            (Some(along), _) => along.added.clone(),
            (None, Some(number)) => Added::Number(number.clone()),
            (None, None) => Added::Unknown,
        }
    }
}

impl Along {
    /// An axis that is the dim alone.
    fn plain(added: Added) -> Self {
        Self { outer: Dim::from(1), inner: Dim::from(1), added }
    }

    fn is_plain(&self) -> bool {
        self.outer == Dim::from(1) && self.inner == Dim::from(1)
    }

    /// The same with nothing known of added positions.
    fn unknown(&self) -> Self {
        Self { added: Added::Unknown, ..self.clone() }
    }

    fn agrees(&self, other: &Self) -> bool {
        self.outer == other.outer && self.inner == other.inner
    }
}

impl Added {
    /// Whether elements are so low that an exponential beside others is zero.
    fn forbids(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Number(number) => value_of(number).is_some_and(|number| number <= FORBIDS),
            Self::Forbidden => true,
        }
    }

    /// Whether elements are the truth value that forbids.
    fn is_false(&self) -> bool {
        matches!(self, Self::Number(number) if number.dtype() == DType::Bool) && self.is_zero()
    }

    fn is_zero(&self) -> bool {
        matches!(self, Self::Number(number) if value_of(number) == Some(0.0))
    }
}

/// Added to scores, this leaves nothing of their exponentials: no model has scores that are farther apart.
const FORBIDS: f64 = -1e4;

/// The only element of a tensor, as a real number.
fn value_of(tensor: &Tensor) -> Option<f64> {
    let to = Op::Cast { to: DType::F64, saturate: true };
    let cast = evaluate_op(&to, &[Some(tensor)], &Bindings::new()).ok()?;
    cast.first()?.as_slice::<f64>().ok()?.first().copied()
}

/// What one of a node's operations makes of numbers.
fn number_of(op: &Op, numbers: &[Tensor]) -> Option<Tensor> {
    let numbers: Vec<Option<&Tensor>> = numbers.iter().map(Some).collect();
    evaluate_op(op, &numbers, &Bindings::new()).ok()?.into_iter().next()
}

/// A reason that names what a node does.
fn refused<T>(reason: &str) -> Said<T> {
    Err(reason.to_owned())
}

/// That reason, if something holds.
fn refuse_if(holds: bool, reason: &str) -> Said<()> {
    if holds { refused(reason) } else { Ok(()) }
}

/// That reason, unless something holds.
fn ensure(holds: bool, reason: &str) -> Said<()> {
    refuse_if(!holds, reason)
}

fn input_ty<'a>(graph: &'a Graph, node: &Node, number: usize) -> Option<&'a TensorType> {
    node.input(number).map(|value| graph.ty(value))
}
