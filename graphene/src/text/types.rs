//! Types, and the operations that give a view of a view.

use super::cursor::Parser;
use crate::tensor::ViewOp;
use crate::{
    Agent, Builder, Error, Expr, IntTuple, Layout, Memory, Result, Scalar, Swizzle, Tensor,
    Threads, Tiler, View,
};

impl Parser<'_> {
    /// `[2,2:2,16].[2,4:1,4].fp32.GL`
    pub(super) fn tensor_type(&mut self, k: &Builder) -> Result<Tensor> {
        let view = self.levels(k)?;
        let scalar = self.row("a scalar type", &Scalar::ALL)?;
        self.expect(".")?;
        let memory = self.row("a memory", &Memory::ALL)?;
        let mut tensor = Tensor::new(view, scalar, memory);
        if self.sees(".S<") {
            tensor.swizzle = Some(self.within([".S<", ">"], |p| {
                p.placed(|p| {
                    let (bits, base) = (p.integer()?, p.after_comma(Parser::integer)?);
                    Swizzle::new(bits, base, p.after_comma(Parser::integer)?)
                })
            })?);
        }
        if self.sees(".peer(") {
            tensor.peer = Some(self.within([".peer(", ")"], |p| p.expr(k))?);
        }
        tensor.constant = self.eat(".const");
        tensor.scratch = self.eat(".scratch");
        Ok(tensor)
    }

    /// `[4:8].[8:1].thread`
    pub(super) fn threads_type(&mut self, k: &Builder) -> Result<Threads> {
        let view = self.levels(k)?;
        let agent = self.row("`thread` or `block`", &Agent::ALL)?;
        Ok(Threads { view, agent })
    }

    /// Levels, and the dot behind them.
    fn levels(&mut self, k: &Builder) -> Result<View> {
        let mut levels: Vec<Vec<Layout<Expr>>> = Vec::new();
        loop {
            if levels.is_empty() && self.eat("[]") {
                self.expect(".")?;
                return Ok(View::buffer(&[]));
            }
            let level = self.placed(|p| {
                let [sizes, strides] = p.within(["[", "]"], |p| {
                    let sizes = p.trees(k)?;
                    p.expect(":")?;
                    Ok([sizes, p.trees(k)?].map(IntTuple::Tuple))
                })?;
                Layout::new(&sizes, &strides).map_err(|error| match error {
                    Error::Profile { .. } => unpaired(),
                    error => error,
                })
            })?;
            levels.push(level.modes().to_vec());
            self.expect(".")?;
            if !self.sees("[") {
                return Ok(View::levels_of(&levels));
            }
        }
    }

    /// A word that is a row's name.
    pub(crate) fn row<T: Copy>(&mut self, what: &str, rows: &[(T, &'static str)]) -> Result<T> {
        match rows.iter().find(|row| self.eat_word(row.1)) {
            Some(row) => Ok(row.0),
            None => {
                let names: Vec<&str> = rows.iter().map(|row| row.1).collect();
                self.expected(&format!("{what} ({})", names.join(", ")))
            }
        }
    }

    /// `.tile(128, _)` and its like.
    pub(super) fn view_op(&mut self, k: &Builder) -> Result<ViewOp> {
        if self.sees("[") {
            return self.coords(k).map(ViewOp::Index);
        }
        self.expect(".")?;
        let at = self.next();
        let op = self.word().unwrap_or_default();
        self.expect("(")?;
        let op = match op {
            "tile" => ViewOp::Tile(self.tiles()?),
            "reshape" => {
                let at = self.next();
                let Ok(depth) = usize::try_from(self.natural()?) else {
                    return self.fail(at, "expected a level's number".to_owned());
                };
                let mut dims = Vec::new();
                while self.eat(",") {
                    dims.push(self.modes()?);
                }
                ViewOp::Reshape(depth, dims)
            }
            "scalar" => ViewOp::Scalar,
            "peer" => ViewOp::Peer(self.expr(k)?),
            _ => {
                let message = "expected `tile`, `reshape`, `scalar` or `peer`".to_owned();
                return self.fail(at, message);
            }
        };
        self.expect(")")?;
        Ok(op)
    }

    fn tiles(&mut self) -> Result<Vec<Tiler>> {
        self.list(|p| Ok(if p.eat_word("_") { Tiler::Whole } else { p.modes()?.into() }))
    }

    /// `8`, `8:2` or `(4,2):(1,16)`
    fn modes(&mut self) -> Result<Layout> {
        self.placed(|p| {
            if !p.sees("(") {
                let size = p.natural()?;
                return Layout::mode(size, if p.eat(":") { p.natural()? } else { 1 });
            }
            let sizes = p.naturals()?;
            p.expect(":")?;
            let strides = p.naturals()?;
            if sizes.len() != strides.len() {
                return Err(unpaired());
            }
            let modes: Vec<_> = sizes.into_iter().zip(strides).collect();
            Layout::of_modes(&modes)
        })
    }

    fn naturals(&mut self) -> Result<Vec<i64>> {
        self.within(["(", ")"], |p| p.list(Self::natural))
    }
}

fn unpaired() -> Error {
    Error::Shape("expected a stride for every size".to_owned())
}
