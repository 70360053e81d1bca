//! Rules: rows of a name, a pattern, what must hold, and what the match equals.

use super::language::{Head, Term, Terms, add_literal, add_operation, operation};
use crate::base::elements::{number, splat};
use egg::{Id, Pattern, Searcher, Subst, Var};
use graphene_frontend::{Binary, DType, Dim, Op, TensorType, Unary};

/// An equality: whatever matches the pattern equals what `make` gives.
///
/// Patterns are terms of the language with `?variables`. `Add~`, `Mul~` and their kin match their operands in
/// either order; a constant operand of a commutative operation always stands second, so most need no tilde. `|` stands
/// between several that mean the same.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// What it looks for: every operation without one, where `make` looks at [`Site::op`].
    pub(crate) pattern: Option<&'static str>,
    pub(crate) given: &'static [Given],
    /// Builds the equal term; `None` where the rule does not apply after all.
    pub(crate) make: fn(&mut Site<'_>) -> Option<Id>,
}

/// A row: what matches the pattern, where all of `given` holds, equals what `make` gives.
pub(crate) const fn rule(
    name: &'static str,
    pattern: &'static str,
    given: &'static [Given],
    make: fn(&mut Site<'_>) -> Option<Id>,
) -> Rule {
    Rule { name, pattern: Some(pattern), given, make }
}

/// A row about operations of many names.
pub(crate) const fn law(name: &'static str, make: fn(&mut Site<'_>) -> Option<Id>) -> Rule {
    Rule { name, pattern: None, given: &[], make }
}

/// What must hold of a variable of a pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Given {
    /// It is a constant, all of whose elements are this number, rounded to their type.
    Is(&'static str, f64),
    /// It is a constant, all of whose elements are this number as a person types it: to five digits.
    About(&'static str, f64),
    /// It is a constant, all of whose elements are one number.
    Scalar(&'static str),
    /// It is made of constants alone.
    Constant(&'static str),
    /// It is not.
    Computed(&'static str),
    /// Its elements are real numbers that are computed with, not only stored.
    Float(&'static str),
    /// Its elements are such numbers of at most 32 bits: what is computed in `f32`, with attributes in `f32`.
    Single(&'static str),
    /// Its elements are such numbers of more than 16 bits: their differences are not mostly rounding.
    Wide(&'static str),
}

/// A rule with its pattern in every order that it stands for.
pub(crate) struct Compiled {
    pub(crate) rule: Rule,
    /// Whether both sides round alike, step by step.
    exact: bool,
    patterns: Vec<Pattern<Term>>,
}

/// A place where a rule may apply: a class, and the operation or the variables that were found there.
pub(crate) struct Match {
    root: Id,
    subst: Subst,
    term: Option<Term>,
}

impl Rule {
    pub(crate) fn compile(self, exact: bool) -> Compiled {
        let parse = |text: String| {
            text.parse().unwrap_or_else(|error| panic!("rule {}: {text}: {error}", self.name))
        };
        let spellings = self.pattern.iter().flat_map(|all| all.split(" | "));
        let patterns = spellings.flat_map(orders).map(parse).collect();
        Compiled { rule: self, exact, patterns }
    }
}

/// The pattern in every order of the operands of `Name~`.
fn orders(pattern: &str) -> Vec<String> {
    let Some(tilde) = pattern.find("~ ") else { return vec![pattern.to_owned()] };
    let (head, rest) = (&pattern[..tilde], &pattern[tilde + 2..]);
    let first = operand(rest);
    let (a, rest) = (&rest[..first], rest[first..].trim_start());
    let second = operand(rest);
    let (b, rest) = (&rest[..second], &rest[second..]);
    let mut all = orders(&format!("{head} {a} {b}{rest}"));
    all.extend(orders(&format!("{head} {b} {a}{rest}")));
    all.sort();
    all.dedup();
    all
}

/// The length of the operand that the text begins with.
fn operand(text: &str) -> usize {
    let mut depth = 0;
    let ends = |c: char| {
        let ends = depth == 0 && matches!(c, ' ' | ')');
        depth += i32::from(c == '(') - i32::from(c == ')');
        ends
    };
    // It ends where nothing is open.
    text.find(ends).unwrap_or(text.len())
}

impl Compiled {
    /// All matches, in a deterministic order.
    pub(crate) fn search(&self, terms: &Terms) -> Vec<Match> {
        let mut found = Vec::new();
        for class in terms.classes().filter(|_| self.rule.pattern.is_none()) {
            let operations = class.nodes.iter().filter(|term| matches!(term.head, Head::Op(_)));
            let (root, subst) = (class.id, Subst::default());
            let place =
                |term: &Term| Match { root, subst: subst.clone(), term: Some(term.clone()) };
            found.extend(operations.map(place));
        }
        for pattern in &self.patterns {
            for matches in pattern.search(terms) {
                let root = matches.eclass;
                let substs = matches.substs.into_iter();
                found.extend(substs.map(|subst| Match { root, subst, term: None }));
            }
        }
        found
    }

    /// Adds what a match equals; whether that was news.
    pub(crate) fn apply(&self, terms: &mut Terms, place: &Match) -> bool {
        let found = place.term.as_ref().and_then(|term| operation(terms, term));
        let (op, inputs) = found.map_or((None, Vec::new()), |(op, ids)| (Some(op.clone()), ids));
        if !self.exact && rounds_steps(terms, place.root) {
            return false;
        }
        let mut site =
            Site { terms, subst: &place.subst, root: place.root, op, inputs, news: false };
        if !self.rule.given.iter().all(|given| site.holds(*given)) {
            return false;
        }
        if let Some(made) = (self.rule.make)(&mut site) {
            site.equate(place.root, made);
        }
        site.news
    }
}

/// Whether the elements of a class must round as the model's own steps do.
fn rounds_steps(terms: &Terms, id: Id) -> bool {
    let narrow = |ty: &TensorType| ty.dtype.is_float() && ty.dtype.size() <= 2;
    terms.analysis.rounds_steps && terms[id].data.types.iter().any(narrow)
}

pub(crate) struct Site<'a> {
    pub(crate) terms: &'a mut Terms,
    subst: &'a Subst,
    pub(crate) root: Id,
    /// The operation that a [`law`] looks at.
    pub(crate) op: Option<Op>,
    pub(crate) inputs: Vec<Option<Id>>,
    /// Whether an equality was said that was not known.
    news: bool,
}

impl Site<'_> {
    pub(crate) fn var(&self, name: &str) -> Id {
        self.bound(name).expect("rules name variables of their patterns")
    }

    /// The same of a variable that not all of the patterns have.
    pub(crate) fn bound(&self, name: &str) -> Option<Id> {
        let var: Var = format!("?{name}").parse().expect("a name is a variable");
        self.subst.get(var).copied()
    }

    /// Says that two classes are equal. What has another type is not: a guard missed a case, and nothing is said.
    pub(crate) fn equate(&mut self, a: Id, b: Id) {
        let types = |id| &self.terms[id].data.types;
        if !types(a).is_empty() && types(a) == types(b) {
            self.news |= self.terms.union(a, b);
        } else {
            self.terms.analysis.refused += 1;
        }
    }

    fn holds(&self, given: Given) -> bool {
        match given {
            Given::Is(name, expected) => self.is(self.var(name), expected),
            Given::About(name, expected) => self.is_about(self.var(name), expected),
            Given::Scalar(name) => self.number(self.var(name)).is_some(),
            Given::Constant(name) => self.is_constant(self.var(name)),
            Given::Computed(name) => !self.is_constant(self.var(name)),
            Given::Float(name) => self.dtype(self.var(name)).and_then(digits).is_some(),
            Given::Single(name) => self.is_single(self.var(name)),
            Given::Wide(name) => self.dtype(self.var(name)).and_then(digits) >= Some(24),
        }
    }

    pub(crate) fn ty(&self, id: Id) -> Option<&TensorType> {
        self.terms[id].data.ty()
    }

    pub(crate) fn is_constant(&self, id: Id) -> bool {
        self.terms[id].data.constant
    }

    pub(crate) fn shape(&self, id: Id) -> Option<Vec<Dim>> {
        self.ty(id).map(|ty| ty.shape.clone())
    }

    pub(crate) fn dtype(&self, id: Id) -> Option<DType> {
        self.ty(id).map(|ty| ty.dtype)
    }

    /// The number that all elements of a small constant are.
    pub(crate) fn number(&self, id: Id) -> Option<f64> {
        self.terms[id].data.elements.as_ref().and_then(splat)
    }

    /// Whether all elements of a constant are this number, rounded to their type.
    pub(crate) fn is(&self, id: Id, expected: f64) -> bool {
        let rounded = self.dtype(id).and_then(|dtype| splat(&number(dtype, expected)?));
        self.number(id) == Some(rounded.unwrap_or(expected))
    }

    /// Whether all elements of a constant are this number to five digits, or as near to it as their type allows. In
    /// `f64` people give all digits.
    fn is_about(&self, id: Id, expected: f64) -> bool {
        let Some(digits) = self.dtype(id).and_then(digits) else { return false };
        let precision = if digits > 24 { 0.0_f64 } else { 1e-5 };
        let precision = precision.max(0.5_f64.powi(digits - 1));
        self.number(id).is_some_and(|x| (x - expected).abs() <= precision * expected.abs())
    }

    pub(crate) fn is_single(&self, id: Id) -> bool {
        self.dtype(id).and_then(digits).is_some_and(|digits| digits <= 24)
    }

    /// A number as an attribute in `f32` of an operation on values like this; `None` where the operation computes in
    /// `f64` and the attribute would be another number.
    pub(crate) fn attribute(&self, like: Id, number: f64) -> Option<f32> {
        let narrow = number as f32;
        (self.is_single(like) || f64::from(narrow) == number).then_some(narrow)
    }

    /// The operation whose attributes a variable is bound to.
    pub(crate) fn attributes(&self, name: &str) -> Option<Op> {
        match self.terms.id_to_node(self.var(name)).head {
            Head::Attributes(number) => Some(self.terms.analysis.op(number).clone()),
            _ => None,
        }
    }

    pub(crate) fn operations(&self, id: Id, name: &str) -> Vec<(Op, Vec<Option<Id>>)> {
        let nodes = self.terms[id].nodes.iter();
        let named = nodes.filter(|term| matches!(term.head, Head::Op(own) if own == name));
        let found = named.filter_map(|term| operation(self.terms, term));
        found.map(|(op, inputs)| (op.clone(), inputs)).collect()
    }

    /// The inputs of those that have so many.
    pub(crate) fn operands<const N: usize>(&self, id: Id, name: &str) -> Vec<[Id; N]> {
        let all = |inputs: Vec<Option<Id>>| inputs.into_iter().collect::<Option<Vec<Id>>>();
        let of = |(_, inputs): (Op, _)| all(inputs)?.try_into().ok();
        self.operations(id, name).into_iter().filter_map(of).collect()
    }

    /// The inputs of those that have two, in both orders.
    pub(crate) fn pairs(&self, id: Id, name: &str) -> Vec<(Id, Id)> {
        self.operands(id, name).into_iter().flat_map(|[a, b]| [(a, b), (b, a)]).collect()
    }

    /// Adds an operation; its first output.
    pub(crate) fn add(&mut self, op: Op, inputs: &[Id]) -> Option<Id> {
        let inputs: Vec<_> = inputs.iter().map(|&id| Some(id)).collect();
        self.add_optional(op, &inputs)
    }

    /// Adds an operation some of whose inputs are left out; its first output.
    pub(crate) fn add_optional(&mut self, op: Op, inputs: &[Option<Id>]) -> Option<Id> {
        add_operation(self.terms, &op, inputs)?.first().copied()
    }

    /// Adds an operation with several outputs as one.
    pub(crate) fn add_node(&mut self, op: Op, inputs: &[Option<Id>]) -> Option<Id> {
        let output = self.add_optional(op, inputs)?;
        let mut outputs = self.terms[output].nodes.iter();
        outputs.find(|term| matches!(term.head, Head::Output(_))).map(|term| term.children[0])
    }

    pub(crate) fn unary(&mut self, unary: Unary, x: Id) -> Option<Id> {
        self.add(Op::Unary(unary), &[x])
    }

    pub(crate) fn binary(&mut self, binary: Binary, a: Id, b: Id) -> Option<Id> {
        self.add(Op::Binary(binary), &[a, b])
    }

    /// The value under another shape; itself where that is its own.
    pub(crate) fn reshape(&mut self, x: Id, shape: Vec<Dim>) -> Option<Id> {
        if self.ty(x)?.shape == shape {
            return Some(x);
        }
        self.add(Op::Reshape(shape), &[x])
    }

    /// The value with dims permuted; itself where that changes nothing.
    pub(crate) fn transpose(&mut self, x: Id, perm: Vec<usize>) -> Option<Id> {
        if perm.is_sorted() {
            return Some(x);
        }
        self.add(Op::Transpose(perm), &[x])
    }

    /// A scalar of the element type of `like`.
    pub(crate) fn scalar(&mut self, like: Id, value: f64) -> Option<Id> {
        let tensor = number(self.dtype(like)?, value)?;
        Some(add_literal(self.terms, &tensor))
    }

    /// A row of so many zeros of the element type of `like`.
    pub(crate) fn zeros(&mut self, like: Id, width: i64) -> Option<Id> {
        let zero = self.scalar(like, 0.0)?;
        self.add(Op::Expand(vec![Dim::from(width)]), &[zero])
    }
}

/// The binary digits of the numbers of a type, the leading one counted; `None`: they are no real numbers, or are
/// only stored, never computed with.
pub(crate) fn digits(dtype: DType) -> Option<i32> {
    match dtype {
        DType::F64 => Some(53),
        DType::F32 => Some(24),
        DType::F16 => Some(11),
        DType::BF16 => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::orders;

    #[test]
    fn commutative_operands_come_in_every_order() {
        assert_eq!(orders("(Mul ?a ?b)"), ["(Mul ?a ?b)"]);
        assert_eq!(orders("(Mul~ ?a (Exp ?b))"), ["(Mul (Exp ?b) ?a)", "(Mul ?a (Exp ?b))"]);
        assert_eq!(
            orders("(Div (Mul~ ?x (Add~ ?y ?x)) ?z)"),
            [
                "(Div (Mul (Add ?x ?y) ?x) ?z)",
                "(Div (Mul (Add ?y ?x) ?x) ?z)",
                "(Div (Mul ?x (Add ?x ?y)) ?z)",
                "(Div (Mul ?x (Add ?y ?x)) ?z)",
            ]
        );
    }
}
