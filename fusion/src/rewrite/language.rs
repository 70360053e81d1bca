//! Graphs as terms: the language that egg saturates.
//!
//! A term is `(Name attributes inputs…)`: attributes are a leaf of their own (so that a pattern binds them to a
//! variable), and are left out where an operation has none. An optional input that is left out is `absent`; an
//! operation with several outputs is read through `(out0 …)`, `(out1 …)`; patterns know the first.

use egg::{Analysis, DidMerge, EGraph, FromOp, FromOpError, Id, Language};
use graphene_frontend::eval::evaluate_op;
use graphene_frontend::infer::{Count, infer};
use graphene_frontend::{Bindings, DType, Op, Tensor, TensorType};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::LazyLock;

/// Constants of at most this many elements are known by value; larger ones are weights, known by type.
pub(crate) const SMALL: usize = 16;

pub(crate) type Terms = EGraph<Term, Facts>;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Term {
    pub(crate) head: Head,
    pub(crate) children: Vec<Id>,
}

/// What a term is, apart from its children.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Head {
    /// A value from outside of the block: an entry of [`Facts::inputs`].
    Input(u32),
    /// A small constant: an entry of [`Facts::literals`].
    Literal(u32),
    /// Attributes of an operation: an entry of [`Facts::ops`].
    Attributes(u32),
    /// An optional input that is left out.
    Absent,
    /// An operation by its name.
    Op(&'static str),
    /// An output of an operation that has several.
    Output(u32),
}

/// What is known of a class; of attributes and of a missing input nothing.
#[derive(Clone, Default, Debug)]
pub(crate) struct Fact {
    /// The types of a value's outputs.
    pub(crate) types: Vec<TensorType>,
    /// Whether it is made of constants alone.
    pub(crate) constant: bool,
    /// Its elements, if it is a small constant.
    pub(crate) elements: Option<Tensor>,
}

/// What the terms of an e-graph refer to, and the analysis that gives every class its [`Fact`].
#[derive(Clone, Default, Debug)]
pub(crate) struct Facts {
    /// Values from outside: their types, and whether they are constants.
    pub(crate) inputs: Vec<(TensorType, bool)>,
    pub(crate) literals: Vec<Tensor>,
    ops: Vec<Op>,
    /// Entries of operations by name; those without attributes have one each.
    ops_named: HashMap<&'static str, Vec<u32>>,
    literals_known: HashMap<(DType, Vec<usize>, Vec<u8>), u32>,
    /// How often a rule said that values of different types are equal, which was not believed.
    pub(crate) refused: usize,
    /// How often a rule gave up a search at a limit.
    pub(crate) searches_cut: usize,
    /// Whether operations in types of 16 bits and less round one by one, as the model's own do.
    pub(crate) rounds_steps: bool,
}

impl Term {
    pub(crate) fn leaf(head: Head) -> Self {
        Self { head, children: Vec::new() }
    }
}

impl Language for Term {
    type Discriminant = Head;

    fn discriminant(&self) -> Head {
        self.head
    }

    fn matches(&self, other: &Self) -> bool {
        self.head == other.head && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

impl FromOp for Term {
    type Error = FromOpError;

    /// Terms of patterns: operations, outputs and `absent`.
    fn from_op(name: &str, children: Vec<Id>) -> Result<Self, FromOpError> {
        let head = match (name, NAMES.get(name)) {
            ("absent", _) => Head::Absent,
            ("out0", _) => Head::Output(0),
            (_, Some(op)) => Head::Op(op),
            (_, None) => return Err(FromOpError::new(name, children)),
        };
        Ok(Self { head, children })
    }
}

static NAMES: LazyLock<BTreeSet<&'static str>> =
    LazyLock::new(|| Op::prototypes().iter().map(Op::name).collect());

impl Facts {
    pub(crate) fn new(inputs: Vec<(TensorType, bool)>, rounds_steps: bool) -> Self {
        Self { inputs, rounds_steps, ..Self::default() }
    }

    pub(crate) fn op(&self, entry: u32) -> &Op {
        &self.ops[entry as usize]
    }

    pub(crate) fn intern(&mut self, op: &Op) -> u32 {
        let named = self.ops_named.entry(op.name()).or_default();
        let known = named.iter().copied().find(|&known| self.ops[known as usize] == *op);
        known.unwrap_or_else(|| {
            let new = self.ops.len() as u32;
            self.ops.push(op.clone());
            named.push(new);
            new
        })
    }

    fn literal(&mut self, tensor: &Tensor) -> u32 {
        let key = (tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().to_vec());
        *self.literals_known.entry(key).or_insert_with(|| {
            self.literals.push(tensor.clone());
            self.literals.len() as u32 - 1
        })
    }
}

/// The operation of a term, and the classes of its inputs, those left out at the end dropped.
pub(crate) fn operation<'a>(terms: &'a Terms, term: &Term) -> Option<(&'a Op, Vec<Option<Id>>)> {
    let Head::Op(name) = term.head else { return None };
    let facts = &terms.analysis;
    let head = |id: Id| terms.id_to_node(id).head;
    let (op, inputs) = match term.children.first().map(|&id| head(id)) {
        Some(Head::Attributes(number)) => (facts.op(number), &term.children[1..]),
        _ => (facts.op(*facts.ops_named.get(name)?.first()?), &term.children[..]),
    };
    let mut inputs: Vec<Option<Id>> =
        inputs.iter().map(|&id| (head(id) != Head::Absent).then_some(id)).collect();
    while inputs.last() == Some(&None) {
        inputs.pop();
    }
    Some((op, inputs))
}

pub(crate) fn add_literal(terms: &mut Terms, tensor: &Tensor) -> Id {
    let number = terms.analysis.literal(tensor);
    terms.add(Term::leaf(Head::Literal(number)))
}

/// Adds an operation; its outputs as values, or `None` if it does not take these inputs.
pub(crate) fn add_operation(terms: &mut Terms, op: &Op, inputs: &[Option<Id>]) -> Option<Vec<Id>> {
    let types: Vec<Option<&TensorType>> =
        inputs.iter().map(|id| id.and_then(|id| terms[id].data.ty())).collect();
    let outputs = infer(op, &types).ok()?.len();
    let mut inputs = inputs.to_vec();
    let constant = |id: Option<Id>| id.is_some_and(|id| terms[id].data.constant);
    if op.commutes() && constant(inputs[0]) && !constant(inputs[1]) {
        inputs.swap(0, 1);
    }
    // Those left out at the end have their places too.
    if let Count::Between(_, most) = op.info().inputs {
        inputs.resize(most, None);
    }
    let number = terms.analysis.intern(op);
    let mut children = Vec::with_capacity(inputs.len() + 1);
    if op.info().attributes {
        children.push(terms.add(Term::leaf(Head::Attributes(number))));
    }
    for input in inputs {
        children.push(input.unwrap_or_else(|| terms.add(Term::leaf(Head::Absent))));
    }
    let id = terms.add(Term { head: Head::Op(op.name()), children });
    if outputs == 1 {
        return Some(vec![id]);
    }
    let output = |number| Term { head: Head::Output(number), children: vec![id] };
    Some((0..outputs as u32).map(|number| terms.add(output(number))).collect())
}

impl Fact {
    /// The type of a value with one output.
    pub(crate) fn ty(&self) -> Option<&TensorType> {
        if let [ty] = &self.types[..] { Some(ty) } else { None }
    }
}

impl Analysis<Term> for Facts {
    type Data = Fact;

    fn make(terms: &mut Terms, term: &Term, _: Id) -> Fact {
        match term.head {
            Head::Input(number) => {
                let (ty, constant) = terms.analysis.inputs[number as usize].clone();
                Fact { types: vec![ty], constant, elements: None }
            }
            Head::Literal(number) => {
                let tensor = &terms.analysis.literals[number as usize];
                let types = vec![TensorType::of(tensor)];
                Fact { types, constant: true, elements: Some(tensor.clone()) }
            }
            Head::Attributes(_) | Head::Absent => Fact::default(),
            Head::Output(number) => {
                let Fact { types, constant, .. } = &terms[term.children[0]].data;
                let types = vec![types[number as usize].clone()];
                Fact { types, constant: *constant, elements: None }
            }
            Head::Op(_) => of_operation(terms, term).unwrap_or_default(),
        }
    }

    fn merge(&mut self, a: &mut Fact, b: Fact) -> DidMerge {
        let before = (a.constant, a.elements.is_some());
        let theirs = (b.constant, b.elements.is_some());
        a.constant |= b.constant;
        a.elements = a.elements.take().or(b.elements);
        let after = (a.constant, a.elements.is_some());
        DidMerge(before != after, theirs != after)
    }

    /// A small constant is also its elements.
    fn modify(terms: &mut Terms, id: Id) {
        if let Some(tensor) = terms[id].data.elements.clone() {
            let literal = add_literal(terms, &tensor);
            terms.union(id, literal);
        }
    }
}

fn of_operation(terms: &Terms, term: &Term) -> Option<Fact> {
    let (op, inputs) = operation(terms, term)?;
    let types: Vec<_> = inputs.iter().map(|id| id.and_then(|id| terms[id].data.ty())).collect();
    // Terms are added only where inference accepts them.
    let types = infer(op, &types).ok()?;
    let made = !inputs.is_empty() || matches!(op, Op::Iota(n) if n.known().is_some());
    let constant = made
        && inputs.iter().flatten().all(|&id| terms[id].data.constant)
        && types.iter().all(|ty| ty.known_shape().is_some());
    let small = |ty: &TensorType| ty.elements().known().is_some_and(|n| n <= SMALL as i64);
    let elements = match types.as_slice() {
        [ty] if constant && small(ty) && op.info().folds => folded(terms, op, &inputs),
        _ => None,
    };
    Some(Fact { types, constant, elements })
}

fn folded(terms: &Terms, op: &Op, inputs: &[Option<Id>]) -> Option<Tensor> {
    let elements = |input: &Option<Id>| match input {
        Some(id) => terms[*id].data.elements.as_ref().map(Some),
        None => Some(None),
    };
    let tensors = inputs.iter().map(elements).collect::<Option<Vec<_>>>()?;
    evaluate_op(op, &tensors, &Bindings::new()).ok()?.pop()
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.head {
            Head::Input(number) => write!(f, "x{number}"),
            Head::Literal(number) => write!(f, "literal {number}"),
            Head::Attributes(number) => write!(f, "attributes {number}"),
            Head::Absent => f.write_str("absent"),
            Head::Op(name) => f.write_str(name),
            Head::Output(number) => write!(f, "out{number}"),
        }
    }
}
