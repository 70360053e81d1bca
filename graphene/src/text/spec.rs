//! What stands before a spec's body.

use super::cursor::Parser;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::kernel::{
    Binary, Fence, Group, Kind, Number, Operand, Scope, TensorId, ThreadsId, Unary,
};

impl Parser<'_> {
    /// A spec from its kind on.
    pub(super) fn header(&mut self, k: &Builder, outs: Vec<Operand>) -> Result<Header> {
        let kind = self.kind(k)?;
        self.expect("<<<")?;
        let blocks = self.known_threads(k)?;
        self.expect(",")?;
        let threads = self.known_threads(k)?;
        self.expect(">>>")?;
        self.expect("(")?;
        let ins = if self.sees(")") { Vec::new() } else { self.operands(k)? };
        self.expect(")")?;
        let header = Header::new(kind, outs, ins, threads).on(blocks);
        Ok(if self.eat_word("signals") {
            header.signals(self.operand(k)?)
        } else if self.eat_word("async") {
            header.async_()
        } else {
            header
        })
    }

    fn kind(&mut self, k: &Builder) -> Result<Kind> {
        let at = self.next();
        let name = self.word().unwrap_or_default();
        Ok(match name {
            "Spec" => Kind::Spec,
            "Move" => Kind::Move,
            "MatMul" => Kind::MatMul,
            "Product" => Kind::Product,
            "UnaryPointwise" => Kind::Unary(self.argument(|p| p.row("a function", &Unary::ALL))?),
            "BinaryPointwise" => Kind::Binary(self.argument(Self::binary)?),
            "Select" => Kind::Select,
            "Reduction" => Kind::Reduction(self.argument(Self::binary)?),
            "Shfl" => Kind::Shfl(self.argument(Self::integer)?),
            "Init" => Kind::Init(self.argument(Self::number)?),
            "Index" => Kind::Index(self.argument(|p| p.expr(k))?),
            "Arrive" if self.sees("<<<") => Kind::Arrive(None),
            "Arrive" => Kind::Arrive(Some(self.argument(|p| p.expr(k))?)),
            "Wait" => self.argument(|p| {
                let parity = p.expr(k)?;
                if !p.eat(",") {
                    return Ok(Kind::Wait(parity, Scope::Block));
                }
                if p.eat_word("cluster") {
                    Ok(Kind::Wait(parity, Scope::Cluster))
                } else {
                    p.expected("`cluster`")
                }
            })?,
            "Commit" => Kind::Commit(self.argument(Self::group)?),
            "WaitGroup" => self.argument(|p| {
                let group = p.group()?;
                p.expect(",")?;
                let left = p.integer()?;
                let read = p.eat(",");
                if read && !p.eat_word("read") {
                    return p.expected("`read`");
                }
                Ok(Kind::WaitGroup(group, left, read))
            })?,
            "Fence" => Kind::Fence(self.argument(|p| p.row("a fence", &Fence::ALL))?),
            "Sync" => Kind::Sync,
            "Registers" => Kind::Registers(self.argument(Self::integer)?),
            "Release" => Kind::Release,
            "Acquire" => Kind::Acquire,
            "Prefetch" => Kind::Prefetch,
            "Count" => Kind::Count(self.argument(|p| p.expr(k))?),
            "Await" => Kind::Await(self.argument(|p| p.expr(k))?),
            "" => {
                self.back(at);
                return self.expected("a statement");
            }
            _ => return self.fail(at, format!("`{name}` is neither a statement nor a spec")),
        })
    }

    /// `<...>`
    fn argument<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.expect("<")?;
        let value = read(self)?;
        self.expect(">")?;
        Ok(value)
    }

    fn group(&mut self) -> Result<Group> {
        self.row("a group", &Group::ALL)
    }

    fn binary(&mut self) -> Result<Binary> {
        let mut rows = Binary::ALL.iter();
        match rows.find(|row| self.eat_word(row.1) || (row.1.len() == 1 && self.eat(row.1))) {
            Some(row) => Ok(row.0),
            None => self.expected("a function of two numbers (+, -, *, /, max, min, ...)"),
        }
    }

    fn number(&mut self) -> Result<Number> {
        let at = self.next();
        match self.until('>').parse::<f64>() {
            Ok(value) if !value.is_nan() => Ok(Number(value)),
            Ok(_) | Err(_) => {
                self.back(at);
                self.expected("a number")
            }
        }
    }

    pub(super) fn operands(&mut self, k: &Builder) -> Result<Vec<Operand>> {
        let mut operands = vec![self.operand(k)?];
        while self.eat(",") {
            operands.push(self.operand(k)?);
        }
        Ok(operands)
    }

    pub(super) fn operand(&mut self, k: &Builder) -> Result<Operand> {
        let tensor = self.known_tensor(k)?;
        let index = if self.sees("[") { self.coords(k)? } else { Vec::new() };
        Ok(Operand { tensor, index })
    }

    pub(super) fn known_tensor(&mut self, k: &Builder) -> Result<TensorId> {
        let at = self.next();
        let name = self.expect_name('%', "a tensor")?;
        match k.find_tensor(name) {
            Some(id) => Ok(id),
            None => self.fail(at, format!("no %{name} is known here")),
        }
    }

    pub(super) fn known_threads(&mut self, k: &Builder) -> Result<ThreadsId> {
        let at = self.next();
        let name = self.expect_name('#', "threads or blocks")?;
        match k.find_threads(name) {
            Some(id) => Ok(id),
            None => self.fail(at, format!("no #{name} is known here")),
        }
    }
}
