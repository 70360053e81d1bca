//! Kernels and statements from text. What they mean, and what is wrong with them, the builder knows.

use super::cursor::Parser;
use super::print::index_groups;
use crate::build::Viewed;
use crate::{
    Agent, Arch, Builder, Fused, Header, Kernel, Memory, Operand, Result, Tensor, TensorId, Test,
    ThreadsId,
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
    if !p.eat_word("kernel") {
        return p.expected("`kernel`");
    }
    let name = if p.sees_digit() { None } else { p.word() };
    let Some(name) = name else { return p.expected("the kernel's name") };
    let mut k = Builder::new(name, p.row("an architecture", &Arch::ALL)?);
    p.symbols(&mut k)?;
    loop {
        let at = p.next();
        let (param, launched) = (p.name('%').is_some() && p.sees(":"), p.name('#').is_some());
        p.back(at);
        if param {
            p.placed(|p| p.param(&mut k))?;
        } else if launched {
            p.placed(|p| p.launched(&mut k))?;
        } else {
            break;
        }
    }
    p.placed(|p| p.whole(k))
}

impl Parser<'_> {
    fn symbols(&mut self, k: &mut Builder) -> Result {
        self.expect("(")?;
        while !self.sees(")") {
            self.placed(|p| k.symbol(p.new_var(k)?))?;
            if !self.eat(",") {
                break;
            }
        }
        self.expect(")")
    }

    fn param(&mut self, k: &mut Builder) -> Result {
        let name = self.new_name::<TensorId>(k)?;
        let from = self.next();
        let tensor = self.tensor_type(k)?;
        let plain = tensor.swizzle.is_none() && tensor.peer.is_none();
        if tensor.memory != Memory::Global || !plain {
            return self.fail(from, "parameters are in plain global memory, GL".to_owned());
        }
        k.add_param(name, tensor).map(drop)
    }

    fn launched(&mut self, k: &mut Builder) -> Result {
        let name = self.new_name::<ThreadsId>(k)?;
        let threads = self.threads_type(k)?;
        match threads.agent {
            Agent::Block => k.grid(name, threads.view),
            Agent::Thread => k.block(name, threads.view),
        }
        .map(drop)
    }

    /// The spec that is the kernel.
    fn whole(&mut self, mut k: Builder) -> Result<Kernel> {
        let outs = if self.sees("%") { self.outs(&k)? } else { Vec::new() };
        let header = self.header(&k, outs)?;
        self.body(&mut k)?;
        k.finish_as(header)
    }

    fn body(&mut self, k: &mut Builder) -> Result {
        self.expect("{")?;
        while !self.eat("}") {
            self.placed(|p| p.stmt(k))?;
        }
        Ok(())
    }

    fn stmt(&mut self, k: &mut Builder) -> Result {
        let at = self.next();
        if self.name('%').is_some() {
            let declares = self.sees(":");
            self.back(at);
            if declares {
                return self.tensor(k);
            }
            let outs = self.outs(k)?;
            return self.spec(k, outs);
        }
        if self.name('#').is_some() {
            self.back(at);
            return self.threads(k);
        }
        if self.sees("(") {
            return self.indices(k);
        }
        if self.name('@').is_some() {
            let value = self.eat("=") && !self.sees("#");
            self.back(at);
            return if value { self.value(k) } else { self.indices(k) };
        }
        match self.word() {
            Some("ring") => self.placed(|p| p.ring(k)),
            Some("advance") => self.advance(k),
            Some("for") => self.expect("(").and_then(|()| self.placed(|p| p.for_(k))),
            Some("if") => self.expect("(").and_then(|()| self.placed(|p| p.if_(k))),
            Some("role") => self.placed(|p| p.role(k)),
            Some(_) | None => {
                self.back(at);
                self.spec(k, Vec::new())
            }
        }
    }

    /// An allocation or a view.
    fn tensor(&mut self, k: &mut Builder) -> Result {
        let name = self.new_name::<TensorId>(k)?;
        let from = self.next();
        let printed = self.tensor_type(k)?;
        if !self.eat("=") {
            if printed.peer.is_some() {
                return self.fail(from, "a peer's memory is a view of the own".to_owned());
            }
            if printed.constant || printed.scratch {
                return self.fail(from, "only parameters are constant, or scratch".to_owned());
            }
            let Tensor { view, scalar, memory, swizzle, .. } = printed;
            return k.allocate(name, view, scalar, memory, swizzle).map(drop);
        }
        self.viewed::<TensorId>(k, name, (from, printed))
    }

    fn threads(&mut self, k: &mut Builder) -> Result {
        let name = self.new_name::<ThreadsId>(k)?;
        let from = self.next();
        let printed = self.threads_type(k)?;
        self.expect("=")?;
        self.viewed::<ThreadsId>(k, name, (from, printed))
    }

    /// What a view is of, whose printed type must be the one that it has.
    fn viewed<V: Viewed>(
        &mut self,
        k: &mut Builder,
        name: &str,
        (from, printed): (usize, V::Of),
    ) -> Result {
        let of: V = self.known(k)?;
        let op = self.view_op(k)?;
        let id = k.view(of, name, op)?;
        let [derived, printed] = [k.tensor_of(id)?, &printed].map(ToString::to_string);
        if derived == printed {
            return Ok(());
        }
        self.fail(from, format!("{}{name} is {derived}, not {printed}", V::SIGIL))
    }

    /// `(@m, @n), @i = #t.indices()`: a level's names in parentheses if there are several levels.
    fn indices(&mut self, k: &mut Builder) -> Result {
        let at = self.next();
        let groups = self.list(|p| match p.sees("(") {
            true => p.within(["(", ")"], |p| p.list(|p| p.new_var(k))),
            false => Ok(vec![p.new_var(k)?]),
        })?;
        self.expect("=")?;
        let of: ThreadsId = self.known(k)?;
        self.expect(".")?;
        if !self.eat_word("indices") {
            return self.expected("`indices`");
        }
        self.within(["(", ")"], |_| Ok(()))?;
        let expected = match &index_groups(&k.tensor_of(of)?.view)[..] {
            [size] => vec![1; *size],
            groups => groups.to_vec(),
        };
        let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
        if sizes != expected {
            return self.fail(at, format!("expected names in groups of {expected:?}"));
        }
        k.indices_named(of, &groups.concat()).map(drop)
    }

    fn value(&mut self, k: &mut Builder) -> Result {
        let name = self.new_var(k)?;
        self.expect("=")?;
        if self.sees("%") {
            let of = self.known(k)?;
            return k.value(name, of).map(drop);
        }
        let value = self.expr(k)?;
        k.let_(name, value).map(drop)
    }

    fn ring(&mut self, k: &mut Builder) -> Result {
        let name = self.new_var(k)?;
        k.ring(name, self.within(["[", "]"], Self::natural)?).map(drop)
    }

    fn advance(&mut self, k: &mut Builder) -> Result {
        let at = self.next();
        let name = self.expect_name('@', "a ring")?;
        match k.find_ring(name).cloned() {
            Some(ring) => k.advance(&ring),
            None => self.fail(at, format!("no ring @{name} is known here")),
        }
    }

    fn outs(&mut self, k: &Builder) -> Result<Vec<Operand>> {
        let outs = self.operands(k)?;
        self.expect("<-")?;
        Ok(outs)
    }

    fn spec(&mut self, k: &mut Builder, outs: Vec<Operand>) -> Result {
        self.placed(|p| {
            let header = p.header(k, outs)?;
            if p.sees("{") { k.decompose(header, |k| p.body(k)) } else { k.add(header) }
        })
    }

    fn for_(&mut self, k: &mut Builder) -> Result {
        let name = self.new_var(k)?;
        self.expect("=")?;
        let first = self.expr(k)?;
        self.expect(";")?;
        self.same_var(name)?;
        self.expect("<")?;
        let end = self.expr(k)?;
        self.expect(";")?;
        self.same_var(name)?;
        self.expect("+=")?;
        let step = self.expr(k)?;
        self.expect(")")?;
        let unroll = self.eat_word("unroll");
        let carry = k.carry(name, (&end, &step), |k, _| self.carried(k))?;
        k.for_carrying(name, first..end, (step, unroll), carry, |k, _| self.body(k))
    }

    /// `carry %a, %b as Fused{…} = …`, as often as it stands there.
    fn carried(&mut self, k: &Builder) -> Result<Vec<(Option<Fused>, Header)>> {
        let mut all = Vec::new();
        while self.eat_word("carry") {
            let states = self.operands(k)?;
            let form = match self.eat_word("as") {
                true if self.eat_word("Fused") => Some(self.fused(k)?),
                true => return self.expected("`Fused`"),
                false => None,
            };
            self.expect("=")?;
            all.push((form, self.header(k, states)?));
        }
        Ok(all)
    }

    fn if_(&mut self, k: &mut Builder) -> Result {
        let test = if self.eat_word("true") {
            Test::All(Vec::new())
        } else if self.eat_word("inside") {
            Test::Inside(self.within(["(", ")"], |p| p.operand(k))?)
        } else {
            let mut conds = vec![self.cond(k)?];
            while self.eat("&&") {
                conds.push(self.cond(k)?);
            }
            Test::All(conds)
        };
        self.expect(")")?;
        k.if_(test, |k| self.body(k))
    }

    fn role(&mut self, k: &mut Builder) -> Result {
        let threads = self.known(k)?;
        self.expect("[")?;
        let first = self.natural()?;
        let end = if self.eat("..") { self.natural()? } else { first.saturating_add(1) };
        self.expect("]")?;
        k.role(threads, first..end, |k| self.body(k))
    }
}

/// Names that a statement gives.
impl<'t> Parser<'t> {
    /// The name of a tensor, and the colon before its type.
    fn new_name<V: Viewed>(&mut self, k: &Builder) -> Result<&'t str> {
        let at = self.next();
        let name = self.sigil_name::<V>()?;
        if k.is_taken::<V>(name) {
            return self.fail(at, format!("{}{name} is declared twice", V::SIGIL));
        }
        self.expect(":")?;
        Ok(name)
    }

    fn new_var(&mut self, k: &Builder) -> Result<&'t str> {
        let at = self.next();
        let name = self.expect_name('@', "a variable")?;
        if k.is_var_taken(name) {
            return self.fail(at, format!("@{name} has a meaning here already"));
        }
        Ok(name)
    }

    fn same_var(&mut self, name: &str) -> Result {
        let at = self.next();
        if self.name('@') == Some(name) {
            return Ok(());
        }
        self.fail(at, format!("expected the counter @{name}"))
    }
}
