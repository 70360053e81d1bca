//! What stands before a spec's body.

use super::cursor::Parser;
use crate::build::Viewed;
use crate::{Builder, Header, Operand, Result, ThreadsId};

impl Parser<'_> {
    /// A spec from its kind on.
    pub(super) fn header(&mut self, k: &Builder, outs: Vec<Operand>) -> Result<Header> {
        let kind = self.kind(k)?;
        let (blocks, threads): (ThreadsId, ThreadsId) =
            self.within(["<<<", ">>>"], |p| Ok((p.known(k)?, p.after_comma(|p| p.known(k))?)))?;
        let ins = self.within(["(", ")"], |p| match p.sees(")") {
            true => Ok(Vec::new()),
            false => p.operands(k),
        })?;
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
        self.list(|p| p.operand(k))
    }

    pub(super) fn operand(&mut self, k: &Builder) -> Result<Operand> {
        let tensor = self.known(k)?;
        let index = if self.sees("[") { self.coords(k)? } else { Vec::new() };
        Ok(Operand { tensor, index })
    }

    /// What has a name: a tensor of data, or of threads or blocks.
    pub(super) fn known<V: Viewed>(&mut self, k: &Builder) -> Result<V> {
        let at = self.next();
        let name = self.sigil_name::<V>()?;
        match k.find(name) {
            Some(id) => Ok(id),
            None => self.fail(at, format!("no {}{name} is known here", V::SIGIL)),
        }
    }
}

impl<'t> Parser<'t> {
    /// The name of a tensor of data, or of threads or blocks.
    pub(super) fn sigil_name<V: Viewed>(&mut self) -> Result<&'t str> {
        let what = if V::SIGIL == '%' { "a tensor" } else { "threads or blocks" };
        self.expect_name(V::SIGIL, what)
    }
}
