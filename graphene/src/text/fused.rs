//! Expressions over whole tensors.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};

use super::kind::{monoid, scan};
use super::{cursor::Parser, expr::expr, print::list};
use crate::function::{Node, Value};
use crate::kernel::{Fold, Monoid, Term};
use crate::{Binary, Builder, Fused, Result, Scalar, Step, Unary, Window};

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
        Term::Step(Step::Select(x, y, z)) => format!("select({})", list([x, y, z].map(part))),
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
        Term::Slice(dim, from, count, x) => format!("slice({}, {dim}, {from}, {count})", part(x)),
        Term::Window(dim, window, x) => {
            let Window { count, size, stride, dilation, before, fill } = window;
            let numbers = list([size, stride, dilation, before]);
            format!("window({}, {dim}, {count}, {numbers}, {fill})", part(x))
        }
        Term::Gather(x, y) => format!("gather({}, {})", part(x), part(y)),
        Term::Steps(count, next, all) => {
            let given: String = all[1..].iter().map(|x| format!(", {}", part(x))).collect();
            format!("steps({}, {count}, {{{next}}}{given})", part(&all[0]))
        }
    };
    (called, CALL)
}

/// What names stand for.
type Names<'t> = BTreeMap<&'t str, Fused>;

pub(super) fn fused<'t>(p: &mut Parser<'t>, k: &Builder) -> Result<Fused> {
    let mut names = Names::new();
    let output = |p: &mut Parser<'t>| loop {
        let at = p.next();
        if let Some(name) = p.word()
            && p.eat("=")
        {
            let part = sum(p, k, &names)?;
            names.insert(name, part);
            p.expect(";")?;
        } else {
            p.back(at);
            return sum(p, k, &names);
        }
    };
    p.within(["{", "}"], |p| p.list(output)).map(Fused::all)
}

fn sum<'t>(p: &mut Parser<'t>, k: &Builder, names: &Names<'t>) -> Result<Fused> {
    chain(p, k, names, 1)
}

/// What operators that bind so tight, or tighter, join.
fn chain<'t>(p: &mut Parser<'t>, k: &Builder, names: &Names<'t>, tight: usize) -> Result<Fused> {
    if tight == CALL {
        return p.nested(|p| part(p, k, names));
    }
    let mut value = chain(p, k, names, tight + 1)?;
    let ops = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div];
    while let Some(&op) = ops.iter().find(|op| tightness(**op) == tight && p.eat(&op.to_string())) {
        value = value.binary(op, chain(p, k, names, tight + 1)?);
    }
    Ok(value)
}

fn part<'t>(p: &mut Parser<'t>, k: &Builder, names: &Names<'t>) -> Result<Fused> {
    let at = p.next();
    if let Some(name) = p.name('%') {
        let input = name.parse().map_err(|_| p.fail(at, "operands are counted: %0, %1"))?;
        return Ok(Fused::input(input));
    }
    if p.sees("(") {
        return p.within(["(", ")"], |p| sum(p, k, names));
    }
    if let Some(number) = p.float() {
        return Ok(number.0.into());
    }
    let word = p.word().ok_or_else(|| p.expected("a part of an expression"))?;
    if let Some(known) = names.get(word) {
        return Ok(known.clone());
    }
    if word == "fold" {
        let (monoid, part) = p.argument(part_of_fold)?;
        return p.within(["(", ")"], |p| {
            let (x, along) = (sum(p, k, names)?, p.after_comma(Parser::dimensions)?);
            Ok(x.fold(&Fold { monoid, along }, part))
        });
    }
    if word == "scan" {
        let scan = p.argument(scan)?;
        return p.within(["(", ")"], |p| Ok(sum(p, k, names)?.scan(&scan)));
    }
    p.within(["(", ")"], |p| match word {
        "old" => p.dimension().map(Fused::old),
        "index" => expr(p, k).map(Fused::index),
        _ => called(p, k, names, (word, at)),
    })
}

/// `softmax.sum`
fn part_of_fold(p: &mut Parser<'_>) -> Result<(Monoid, usize)> {
    let monoid = monoid(p)?;
    let name = if p.eat(".") { p.word() } else { Some(monoid.parts()[0]) };
    let part = monoid.parts().iter().position(|part| Some(*part) == name);
    Ok((monoid, part.ok_or_else(|| p.expected("a part of what the fold makes"))?))
}

/// What follows the name of a function, which stands there, and its parenthesis.
fn called<'t>(
    p: &mut Parser<'t>,
    k: &Builder,
    names: &Names<'t>,
    (word, at): (&str, usize),
) -> Result<Fused> {
    let x = sum(p, k, names)?;
    if let Some(row) = Unary::ALL.iter().find(|row| row.1 == word) {
        return Ok(x.unary(row.0));
    }
    if let Some(row) = Scalar::ALL.iter().find(|row| row.1 == word) {
        return Ok(x.rounded(row.0));
    }
    p.expect(",")?;
    if let Some(row) = Binary::ALL.iter().find(|row| row.1 == word) {
        return Ok(x.binary(row.0, sum(p, k, names)?));
    }
    match word {
        "matmul" => Ok(x.matmul(sum(p, k, names)?)),
        "gather" => Ok(x.gather(sum(p, k, names)?)),
        "steps" => {
            let count = expr(p, k)?;
            let next = p.after_comma(|p| fused(p, k))?;
            let mut given = Vec::new();
            while p.eat(",") {
                given.push(sum(p, k, names)?);
            }
            Ok(x.steps_of(count, next, &given))
        }
        "select" => Ok(x.select(sum(p, k, names)?, p.after_comma(|p| sum(p, k, names))?)),
        "dims" => Ok(
            x.dims(p.list(|p| if p.eat_word("_") { Ok(None) } else { p.dimension().map(Some) })?)
        ),
        "position" => Ok(x.position(p.dimension()?)),
        "merge" => Ok(x.merge(p.dimension()?)),
        "split" => Ok(x.split(p.dimension()?, p.after_comma(|p| expr(p, k))?)),
        "slice" => {
            let (dim, mut next) = (p.dimension()?, || p.after_comma(|p| expr(p, k)));
            Ok(x.slice(dim, next()?, next()?))
        }
        "window" => {
            let (dim, count) = (p.dimension()?, p.after_comma(|p| expr(p, k))?);
            let mut next = || p.after_comma(Parser::integer);
            let (size, stride, dilation, before) = (next()?, next()?, next()?, next()?);
            let fill = p.after_comma(Parser::number)?;
            Ok(x.window(dim, Window { count, size, stride, dilation, before, fill }))
        }
        _ => Err(p.fail(at, format!("`{word}` is no function of tensors"))),
    }
}
