//! The notation: `((2,2),3):((24,2),8)`, `Sw<3,4,3> o 0 o (5,4):(4,1)`, `<3:4,8:2>`.

use std::{fmt, str::FromStr};

use super::{Composed, Int, IntTuple, Layout, Outer, Stride, Swizzle, Tiler};
use crate::{Error, Result, text::cursor::Parser, text::print::joined};

impl<T: fmt::Display> fmt::Display for IntTuple<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IntTuple::Int(value) => write!(f, "{value}"),
            IntTuple::Tuple(parts) => write!(f, "({})", joined(parts, ",")),
        }
    }
}

impl<I: Int> fmt::Display for Layout<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shape(), self.stride())
    }
}

impl fmt::Display for Swizzle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sw<{},{},{}>", self.bits(), self.base(), self.shift())
    }
}

impl fmt::Display for Composed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outer {
            Outer::Swizzle(swizzle) => swizzle.fmt(f)?,
            Outer::Layout(layout) => layout.fmt(f)?,
        }
        write!(f, " o {} o {}", self.offset, self.layout)
    }
}

impl fmt::Display for Tiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tiler::Whole => f.write_str("_"),
            Tiler::Size(size) => size.fmt(f),
            Tiler::Layout(layout) => layout.fmt(f),
            Tiler::Modes(tilers) => write!(f, "<{}>", joined(tilers, ",")),
        }
    }
}

/// Reads a literal: a tree of sizes, `:` and a tree of strides, which are integers or `by@axis`.
impl FromStr for Layout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Layout> {
        let mut p = Parser::new(text);
        let shape = tree(&mut p, &|p| p.integer())?;
        p.expect(":")?;
        let stride = tree(&mut p, &|p| {
            let by = p.integer()?;
            if !p.eat("@") {
                return Ok(Stride::from(by));
            }
            let (at, axis) = (p.next(), p.natural()?);
            let none = |_| p.fail(at, format!("there is no axis {axis}"));
            Ok(Stride::along(usize::try_from(axis).map_err(none)?, by))
        })?;
        p.end()?;
        Layout::new(&shape, &stride)
    }
}

fn tree<'t, T>(
    p: &mut Parser<'t>,
    leaf: &impl Fn(&mut Parser<'t>) -> Result<T>,
) -> Result<IntTuple<T>> {
    if !p.sees("(") {
        return leaf(p).map(IntTuple::Int);
    }
    p.parenthesized(|p| p.nested(|p| tree(p, leaf))).map(IntTuple::Tuple)
}
