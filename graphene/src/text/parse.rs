//! Kernels and statements from text. What they mean, and what is wrong with them, the builder knows.

use super::expr::{cond, coords, expr};
use super::types::{tensor_type, threads_type, view_op};
use super::{cursor::Parser, fused::fused, kind::kind, print::index_groups};
use crate::{
    Agent, Arch, Builder, Fused, Header, Kernel, Memory, Operand, Result, Tensor, TensorId, Test,
    ThreadsId, build::Viewed,
};

/// The kernel that a text describes. Fails with [`Error::Text`](crate::Error::Text), with the line and column.
pub fn parse(text: &str) -> Result<Kernel> {
    let mut p = Parser::new(text);
    let kernel = next_kernel(&mut p)?;
    p.end()?;
    Ok(kernel)
}

/// The kernels that a text describes, one after the other; fails as [`parse`] does.
pub fn parse_all(text: &str) -> Result<Vec<Kernel>> {
    let mut p = Parser::new(text);
    let mut all = Vec::new();
    while p.end().is_err() {
        all.push(next_kernel(&mut p)?);
    }
    Ok(all)
}

fn next_kernel(p: &mut Parser<'_>) -> Result<Kernel> {
    p.expect_word("kernel")?;
    let name = if p.sees_digit() { None } else { p.word() };
    let name = name.ok_or_else(|| p.expected("the kernel's name"))?;
    let mut k = Builder::new(name, p.row("an architecture", &Arch::ALL)?);
    symbols(p, &mut k)?;
    loop {
        let at = p.next();
        let (is_param, is_launched) = (p.name('%').is_some() && p.sees(":"), p.name('#').is_some());
        p.back(at);
        if is_param {
            p.placed(|p| param(p, &mut k))?;
        } else if is_launched {
            p.placed(|p| launched(p, &mut k))?;
        } else {
            break;
        }
    }
    p.placed(|p| whole(p, k))
}

fn symbols(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    p.expect("(")?;
    while !p.sees(")") {
        p.placed(|p| k.symbol(new_var(p, k)?))?;
        if !p.eat(",") {
            break;
        }
    }
    p.expect(")")
}

fn param(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let name = new_name::<TensorId>(p, k)?;
    let from = p.next();
    let tensor = tensor_type(p, k)?;
    let plain = tensor.swizzle.is_none() && tensor.peer.is_none();
    if tensor.memory != Memory::Global || !plain {
        return Err(p.fail(from, "parameters are in plain global memory, GL"));
    }
    k.add_param(name, tensor).map(drop)
}

fn launched(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let name = new_name::<ThreadsId>(p, k)?;
    let threads = threads_type(p, k)?;
    match threads.agent {
        Agent::Block => k.grid(name, threads.view),
        Agent::Thread => k.block(name, threads.view),
    }
    .map(drop)
}

/// The spec that is the kernel.
fn whole(p: &mut Parser<'_>, mut k: Builder) -> Result<Kernel> {
    let outs = if p.sees("%") { outs(p, &k)? } else { Vec::new() };
    let header = header(p, &k, outs)?;
    body(p, &mut k)?;
    k.finish_as(header)
}

fn body(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    p.expect("{")?;
    while !p.eat("}") {
        p.placed(|p| stmt(p, k))?;
    }
    Ok(())
}

fn stmt(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let at = p.next();
    if p.name('%').is_some() {
        let declares = p.sees(":");
        p.back(at);
        if declares {
            return tensor(p, k);
        }
        let outs = outs(p, k)?;
        return spec(p, k, outs);
    }
    if p.name('#').is_some() {
        p.back(at);
        return threads(p, k);
    }
    if p.sees("(") {
        return indices(p, k);
    }
    if p.name('@').is_some() {
        let is_value = p.eat("=") && !p.sees("#");
        p.back(at);
        return if is_value { value(p, k) } else { indices(p, k) };
    }
    match p.word() {
        Some("ring") => p.placed(|p| ring(p, k)),
        Some("advance") => advance(p, k),
        Some("for") => p.after("(", |p| p.placed(|p| for_(p, k))),
        Some("if") => p.after("(", |p| p.placed(|p| if_(p, k))),
        Some("role") => p.placed(|p| role(p, k)),
        _ => {
            p.back(at);
            spec(p, k, Vec::new())
        }
    }
}

/// An allocation or a view.
fn tensor(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let name = new_name::<TensorId>(p, k)?;
    let from = p.next();
    let printed = tensor_type(p, k)?;
    if !p.eat("=") {
        if printed.peer.is_some() {
            return Err(p.fail(from, "a peer's memory is a view of the own"));
        }
        if printed.constant || printed.scratch {
            return Err(p.fail(from, "only parameters are constant, or scratch"));
        }
        let Tensor { view, scalar, memory, swizzle, .. } = printed;
        return k.allocate(name, view, scalar, memory, swizzle).map(drop);
    }
    viewed::<TensorId>(p, k, name, (from, printed))
}

fn threads(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let name = new_name::<ThreadsId>(p, k)?;
    let from = p.next();
    let printed = threads_type(p, k)?;
    p.after("=", |p| viewed::<ThreadsId>(p, k, name, (from, printed)))
}

/// What a view is of, whose printed type must be the one that it has.
fn viewed<V: Viewed>(
    p: &mut Parser<'_>,
    k: &mut Builder,
    name: &str,
    (from, printed): (usize, V::Of),
) -> Result {
    let of: V = known(p, k)?;
    let op = view_op(p, k)?;
    let id = k.view(of, name, op)?;
    let [derived, printed] = [k.tensor_of(id)?, &printed].map(ToString::to_string);
    if derived == printed {
        return Ok(());
    }
    Err(p.fail(from, format!("{}{name} is {derived}, not {printed}", V::SIGIL)))
}

/// `(@m, @n), @i = #t.indices()`: a level's names in parentheses if there are several levels.
fn indices(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let at = p.next();
    let groups = p.list(|p| match p.sees("(") {
        true => p.within(["(", ")"], |p| p.list(|p| new_var(p, k))),
        false => Ok(vec![new_var(p, k)?]),
    })?;
    let of: ThreadsId = p.after("=", |p| known(p, k))?;
    p.after(".", |p| p.expect_word("indices"))?;
    p.within(["(", ")"], |_| Ok(()))?;
    let expected = match &index_groups(&k.tensor_of(of)?.view)[..] {
        [size] => vec![1; *size],
        groups => groups.to_vec(),
    };
    let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
    if sizes != expected {
        return Err(p.fail(at, format!("expected names in groups of {expected:?}")));
    }
    k.indices_named(of, &groups.concat()).map(drop)
}

fn value(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let name = new_var(p, k)?;
    p.expect("=")?;
    if p.sees("%") {
        let of = known(p, k)?;
        return k.value(name, of).map(drop);
    }
    let value = expr(p, k)?;
    k.let_(name, value).map(drop)
}

fn ring(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let name = new_var(p, k)?;
    k.ring(name, p.within(["[", "]"], Parser::natural)?).map(drop)
}

fn advance(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let at = p.next();
    let name = p.expect_name('@', "a ring")?;
    let ring = k.find_ring(name).cloned();
    k.advance(&ring.ok_or_else(|| p.fail(at, format!("no ring @{name} is known here")))?)
}

fn outs(p: &mut Parser<'_>, k: &Builder) -> Result<Vec<Operand>> {
    let outs = operands(p, k)?;
    p.expect("<-")?;
    Ok(outs)
}

fn spec(p: &mut Parser<'_>, k: &mut Builder, outs: Vec<Operand>) -> Result {
    p.placed(|p| {
        let header = header(p, k, outs)?;
        if p.sees("{") { k.decompose(header, |k| body(p, k)) } else { k.add(header) }
    })
}

fn for_(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let name = new_var(p, k)?;
    let first = p.after("=", |p| expr(p, k))?;
    p.after(";", |p| same_var(p, name))?;
    let end = p.after("<", |p| expr(p, k))?;
    p.after(";", |p| same_var(p, name))?;
    let step = p.after("+=", |p| expr(p, k))?;
    p.expect(")")?;
    let unroll = p.eat_word("unroll");
    let carry = k.carry(name, (&end, &step), |k, _| carried(p, k))?;
    k.for_carrying(name, first..end, (step, unroll), carry, |k, _| body(p, k))
}

/// `carry %a, %b as Fused{…} = …`, as often as it stands there.
fn carried(p: &mut Parser<'_>, k: &Builder) -> Result<Vec<(Option<Fused>, Header)>> {
    let mut all = Vec::new();
    while p.eat_word("carry") {
        let states = operands(p, k)?;
        let form = match p.eat_word("as") {
            true => Some(p.expect_word("Fused").and_then(|()| fused(p, k))?),
            false => None,
        };
        all.push((form, p.after("=", |p| header(p, k, states))?));
    }
    Ok(all)
}

fn if_(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let test = if p.eat_word("true") {
        Test::All(Vec::new())
    } else if p.eat_word("inside") {
        Test::Inside(p.within(["(", ")"], |p| operand(p, k))?)
    } else {
        let mut conds = vec![cond(p, k)?];
        while p.eat("&&") {
            conds.push(cond(p, k)?);
        }
        Test::All(conds)
    };
    p.expect(")")?;
    k.if_(test, |k| body(p, k))
}

fn role(p: &mut Parser<'_>, k: &mut Builder) -> Result {
    let threads = known(p, k)?;
    p.expect("[")?;
    let first = p.natural()?;
    let end = if p.eat("..") { p.natural()? } else { first.saturating_add(1) };
    p.expect("]")?;
    k.role(threads, first..end, |k| body(p, k))
}

/// The name of a tensor, and the colon before its type.
fn new_name<'t, V: Viewed>(p: &mut Parser<'t>, k: &Builder) -> Result<&'t str> {
    let at = p.next();
    let name = sigil_name::<V>(p)?;
    if k.is_taken::<V>(name) {
        return Err(p.fail(at, format!("{}{name} is declared twice", V::SIGIL)));
    }
    p.expect(":")?;
    Ok(name)
}

fn new_var<'t>(p: &mut Parser<'t>, k: &Builder) -> Result<&'t str> {
    let at = p.next();
    let name = p.expect_name('@', "a variable")?;
    if k.is_var_taken(name) {
        return Err(p.fail(at, format!("@{name} has a meaning here already")));
    }
    Ok(name)
}

fn same_var(p: &mut Parser<'_>, name: &str) -> Result {
    let at = p.next();
    if p.name('@') == Some(name) {
        return Ok(());
    }
    Err(p.fail(at, format!("expected the counter @{name}")))
}

/// A spec from its kind on.
fn header(p: &mut Parser<'_>, k: &Builder, outs: Vec<Operand>) -> Result<Header> {
    let kind = kind(p, k)?;
    let (blocks, threads): (ThreadsId, ThreadsId) =
        p.within(["<<<", ">>>"], |p| Ok((known(p, k)?, p.after_comma(|p| known(p, k))?)))?;
    let ins = p.parenthesized(|p| operand(p, k))?;
    let header = Header::new(kind, outs, ins, threads).on(blocks);
    Ok(if p.eat_word("signals") {
        header.signals(operand(p, k)?)
    } else if p.eat_word("async") {
        header.async_()
    } else {
        header
    })
}

fn operands(p: &mut Parser<'_>, k: &Builder) -> Result<Vec<Operand>> {
    p.list(|p| operand(p, k))
}

fn operand(p: &mut Parser<'_>, k: &Builder) -> Result<Operand> {
    let tensor = known(p, k)?;
    let index = if p.sees("[") { coords(p, k)? } else { Vec::new() };
    Ok(Operand { tensor, index })
}

/// What has a name: a tensor of data, or of threads or blocks.
fn known<V: Viewed>(p: &mut Parser<'_>, k: &Builder) -> Result<V> {
    let at = p.next();
    let name = sigil_name::<V>(p)?;
    k.find(name).ok_or_else(|| p.fail(at, format!("no {}{name} is known here", V::SIGIL)))
}

fn sigil_name<'t, V: Viewed>(p: &mut Parser<'t>) -> Result<&'t str> {
    let what = if V::SIGIL == '%' { "a tensor" } else { "threads or blocks" };
    p.expect_name(V::SIGIL, what)
}
