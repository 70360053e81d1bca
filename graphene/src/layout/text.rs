//! The notation: `((2,2),3):((24,2),8)`, `Sw<3,4,3> o 0 o (5,4):(4,1)`, `<3:4,8:2>`.

use std::fmt;
use std::str::FromStr;

use super::expr::{Value, parse};
use super::{Composed, Int, IntTuple, Layout, Outer, Swizzle, Tiler};
use crate::error::{Error, Result};

impl<T: fmt::Display> fmt::Display for IntTuple<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IntTuple::Int(value) => write!(f, "{value}"),
            IntTuple::Tuple(parts) => listed(f, ['(', ')'], parts),
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
            Tiler::Modes(tilers) => listed(f, ['<', '>'], tilers),
        }
    }
}

fn listed<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    brackets: [char; 2],
    parts: &[T],
) -> fmt::Result {
    write!(f, "{}", brackets[0])?;
    for (i, part) in parts.iter().enumerate() {
        write!(f, "{}{part}", if i == 0 { "" } else { "," })?;
    }
    write!(f, "{}", brackets[1])
}

/// Reads a literal: no calls and no composition.
impl FromStr for Layout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Layout> {
        let expr = parse(text)?;
        match if expr.is_literal() { expr.evaluate()? } else { Value::Tiler(Tiler::Whole) } {
            Value::Layout(layout) => Ok(layout),
            Value::Ints(_) | Value::Swizzle(_) | Value::Composed(_) | Value::Tiler(_) => {
                Err(Error::Syntax { at: 0, expected: "a layout such as (4,2):(1,4)" })
            }
        }
    }
}
