//! Expressions over whole tensors.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};

use super::cursor::Parser;
use super::print::list;
use crate::function::{Node, Value};
use crate::kernel::{Fold, Monoid, Term};
use crate::{Binary, Builder, Fused, Number, Result, Scalar, Step, Unary, Window};

/// How deep an expression nests before a part of it gets a name.
const DEPTH: usize = 6;

/// How tight an operator binds.
fn tightness(op: Binary) -> usize {
    match op {
        Binary::Add | Binary::Sub => 1,
        Binary::Mul | Binary::Div => 2,
        _ => CALL,
    }
}

/// What no operator around it takes apart.
const CALL: usize = 3;

/// `t0 = %0 + %1; exp(t0 - t0), t0`: parts that are used more than once, or lie deep, have names.
impl Display for Fused {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let count = self.steps().len();
        let (mut uses, mut deep) = (vec![0; count], vec![0; count]);
        let operands = self.steps().iter().flat_map(Node::operands);
        operands.chain(self.outputs().iter().copied()).for_each(|x| uses[x.index()] += 1);
        let mut texts: Vec<(String, usize)> = Vec::new();
        let mut names = 0;
        for (at, term) in self.steps().iter().enumerate() {
            let text = text(term, |x| &texts[x.index()]);
            deep[at] = term.operands().map(|x| deep[x.index()] + 1).max().unwrap_or(0);
            let leaf = term.operands().next().is_none();
            let output = self.outputs().iter().any(|x| x.index() == at);
            if !leaf && (uses[at] > 1 || deep[at] >= DEPTH && !output) {
                write!(f, "t{names} = {}; ", text.0)?;
                texts.push((format!("t{names}"), CALL));
                (names, deep[at]) = (names + 1, 0);
            } else {
                texts.push(text);
            }
        }
        f.write_str(&list(self.outputs().iter().map(|x| &texts[x.index()].0)))
    }
}

/// A term, and how tight it holds together.
fn text<'a>(term: &Term, of: impl Fn(Value) -> &'a (String, usize)) -> (String, usize) {
    let part = |x: &Value| &of(*x).0;
    let held = |x: &Value, tight: usize| {
        let (text, own) = of(*x);
        if *own < tight { format!("({text})") } else { text.clone() }
    };
    let called = match term {
        Term::Step(Step::Binary(op, x, y)) if tightness(*op) < CALL => {
            let tight = tightness(*op);
            return (format!("{} {op} {}", held(x, tight), held(y, tight + 1)), tight);
        }
        Term::Step(Step::Input(input)) => format!("%{input}"),
        Term::Step(Step::Constant(number)) => number.to_string(),
        Term::Step(Step::Unary(op, x)) => format!("{op}({})", part(x)),
        Term::Step(Step::Binary(op, x, y)) => format!("{op}({}, {})", part(x), part(y)),
        Term::Step(Step::Select(x, y, z)) => {
            format!("select({}, {}, {})", part(x), part(y), part(z))
        }
        Term::Step(Step::Round(scalar, x)) => format!("{scalar}({})", part(x)),
        Term::Old(output) => format!("old({output})"),
        Term::Index(value) => format!("index({value})"),
        Term::Position(dim, x) => format!("position({}, {dim})", part(x)),
        Term::MatMul(x, y) => format!("matmul({}, {})", part(x), part(y)),
        Term::Fold(Fold { monoid, along }, which, x) => {
            let (name, x) = (monoid.parts().get(*which).unwrap_or(&""), part(x));
            let dot = if name.is_empty() { "" } else { "." };
            format!("fold<{monoid}{dot}{name}>({x}, {})", list(along))
        }
        Term::Scan(scan, x) => format!("scan<{scan}>({})", part(x)),
        Term::Dims(dims, x) => {
            let dim = |dim: &Option<usize>| dim.map_or("_".to_owned(), |dim| dim.to_string());
            format!("dims({}, {})", part(x), list(dims.iter().map(dim)))
        }
        Term::Split(dim, size, x) => format!("split({}, {dim}, {size})", part(x)),
        Term::Merge(dim, x) => format!("merge({}, {dim})", part(x)),
        Term::Slice(dim, first, count, x) => {
            format!("slice({}, {dim}, {first}, {count})", part(x))
        }
        Term::Window(dim, window, x) => {
            let Window { count, size, stride, dilation, before, fill } = window;
            let numbers = list([size, stride, dilation, before]);
            format!("window({}, {dim}, {count}, {numbers}, {fill})", part(x))
        }
        Term::Gather(x, y) => format!("gather({}, {})", part(x), part(y)),
        Term::Steps(count, next, all) => {
            let given = all.iter().skip(1).map(|x| format!(", {}", part(x)));
            let given = given.collect::<String>();
            format!("steps({}, {count}, {{{next}}}{given})", part(&all[0]))
        }
    };
    (called, CALL)
}

/// What names stand for.
type Names<'t> = BTreeMap<&'t str, Fused>;

impl<'t> Parser<'t> {
    /// `{...}`
    pub(super) fn fused(&mut self, k: &Builder) -> Result<Fused> {
        self.expect("{")?;
        let mut names = Names::new();
        let mut outputs = Vec::new();
        loop {
            let at = self.next();
            if let Some(name) = self.word()
                && self.eat("=")
            {
                let part = self.sum(k, &names)?;
                names.insert(name, part);
                self.expect(";")?;
                continue;
            }
            self.back(at);
            outputs.push(self.sum(k, &names)?);
            if !self.eat(",") {
                break;
            }
        }
        self.expect("}")?;
        Ok(Fused::all(outputs))
    }

    fn sum(&mut self, k: &Builder, names: &Names<'t>) -> Result<Fused> {
        self.operators(k, names, 1)
    }

    pub(super) fn after_comma<T>(&mut self, of: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.expect(",").and_then(|()| of(self))
    }

    fn operators(&mut self, k: &Builder, names: &Names<'t>, tight: usize) -> Result<Fused> {
        if tight == CALL {
            return self.nested(|p| p.part(k, names));
        }
        let mut value = self.operators(k, names, tight + 1)?;
        let ops = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div];
        while let Some(&op) =
            ops.iter().find(|op| tightness(**op) == tight && self.eat(&op.to_string()))
        {
            value = value.binary(op, self.operators(k, names, tight + 1)?);
        }
        Ok(value)
    }

    fn part(&mut self, k: &Builder, names: &Names<'t>) -> Result<Fused> {
        let at = self.next();
        if let Some(name) = self.name('%') {
            return match name.parse() {
                Ok(input) => Ok(Fused::input(input)),
                Err(_) => self.fail(at, "operands are counted: %0, %1".to_owned()),
            };
        }
        if self.sees("(") {
            return self.within(["(", ")"], |p| p.sum(k, names));
        }
        if let Some(number) = self.float() {
            return Ok(number.0.into());
        }
        let Some(word) = self.word() else {
            return self.expected("a part of an expression");
        };
        if let Some(known) = names.get(word) {
            return Ok(known.clone());
        }
        if word == "fold" {
            let (monoid, part) = self.argument(Self::part_of_fold)?;
            return self.within(["(", ")"], |p| {
                let (x, along) = (p.sum(k, names)?, p.after_comma(Self::dimensions)?);
                Ok(x.fold(&Fold { monoid, along }, part))
            });
        }
        if word == "scan" {
            let scan = self.argument(Self::scan)?;
            return self.within(["(", ")"], |p| Ok(p.sum(k, names)?.scan(&scan)));
        }
        self.within(["(", ")"], |p| match word {
            "old" => p.dimension().map(Fused::old),
            "index" => p.expr(k).map(Fused::index),
            _ => p.called(k, names, (word, at)),
        })
    }

    /// `softmax.sum`
    fn part_of_fold(&mut self) -> Result<(Monoid, usize)> {
        let monoid = self.monoid()?;
        let name = if self.eat(".") { self.word() } else { Some(monoid.parts()[0]) };
        match monoid.parts().iter().position(|part| Some(*part) == name) {
            Some(part) => Ok((monoid, part)),
            None => self.expected("a part of what the fold makes"),
        }
    }

    /// What follows the name of a function, which stands there, and its parenthesis.
    fn called(
        &mut self,
        k: &Builder,
        names: &Names<'t>,
        (word, at): (&str, usize),
    ) -> Result<Fused> {
        let x = self.sum(k, names)?;
        if let Some(row) = Unary::ALL.iter().find(|row| row.1 == word) {
            return Ok(x.unary(row.0));
        }
        if let Some(row) = Scalar::ALL.iter().find(|row| row.1 == word) {
            return Ok(x.rounded(row.0));
        }
        self.expect(",")?;
        if let Some(row) = Binary::ALL.iter().find(|row| row.1 == word) {
            return Ok(x.binary(row.0, self.sum(k, names)?));
        }
        match word {
            "matmul" => Ok(x.matmul(self.sum(k, names)?)),
            "gather" => Ok(x.gather(self.sum(k, names)?)),
            "steps" => {
                let count = self.expr(k)?;
                let next = self.after_comma(|p| p.fused(k))?;
                let mut given = Vec::new();
                while self.eat(",") {
                    given.push(self.sum(k, names)?);
                }
                Ok(x.steps_of(count, next, &given))
            }
            "select" => Ok(x.select(self.sum(k, names)?, self.after_comma(|p| p.sum(k, names))?)),
            "dims" => Ok(x.dims(
                self.list(|p| if p.eat_word("_") { Ok(None) } else { p.dimension().map(Some) })?,
            )),
            "position" => Ok(x.position(self.dimension()?)),
            "merge" => Ok(x.merge(self.dimension()?)),
            "split" => Ok(x.split(self.dimension()?, self.after_comma(|p| p.expr(k))?)),
            "slice" => {
                let (dim, mut next) = (self.dimension()?, || self.after_comma(|p| p.expr(k)));
                Ok(x.slice(dim, next()?, next()?))
            }
            "window" => {
                let (dim, count) = (self.dimension()?, self.after_comma(|p| p.expr(k))?);
                let mut next = || self.after_comma(Parser::integer);
                let (size, stride, dilation, before) = (next()?, next()?, next()?, next()?);
                let fill = self.after_comma(Parser::number)?;
                Ok(x.window(dim, Window { count, size, stride, dilation, before, fill }))
            }
            _ => self.fail(at, format!("`{word}` is no function of tensors")),
        }
    }

    /// A number, if there is one.
    pub(super) fn float(&mut self) -> Option<Number> {
        let rest = &self.rest();
        let sign = usize::from(rest.starts_with('-'));
        let digits = |c: char| c.is_ascii_digit() || c == '.';
        let mut end = sign + rest[sign..].find(|c| !digits(c)).unwrap_or(rest.len() - sign);
        if rest[sign..].starts_with("inf") {
            end = sign + 3;
        } else if end == sign {
            return None;
        } else if rest[end..].starts_with('e') {
            let exponent = rest[end + 1..].strip_prefix('-').unwrap_or(&rest[end + 1..]);
            let first = rest.len() - exponent.len();
            end = first + exponent.find(|c: char| !c.is_ascii_digit()).unwrap_or(exponent.len());
        }
        let value = rest[..end].parse::<f64>().ok().filter(|value| !value.is_nan())?;
        self.back(self.next() + end);
        Some(Number(value))
    }
}
