//! What stands before a spec's body.

use super::cursor::Parser;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::kernel::{Operand, TensorId, ThreadsId};

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
