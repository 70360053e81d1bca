//! The notation: `((2,2),3):((24,2),8)`, `S<3,4,3> o 0 o (5,4):(4,1)`, `<3:4,8:2>`.

use std::fmt;
use std::str::FromStr;

use super::expr::{Value, parse};
use super::{Composed, IntTuple, Layout, Swizzle, Tiler};
use crate::error::{Error, Result};

impl fmt::Display for IntTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IntTuple::Int(value) => write!(f, "{value}"),
            IntTuple::Tuple(parts) => listed(f, ['(', ')'], parts),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shape(), self.stride())
    }
}

impl fmt::Display for Swizzle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S<{},{},{}>", self.bits(), self.base(), self.shift())
    }
}

impl fmt::Display for Composed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} o {} o {}", self.swizzle, self.offset, self.layout)
    }
}

impl fmt::Display for Tiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tiler::Whole => f.write_str("_"),
            Tiler::Layout(layout) => write!(f, "{layout}"),
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

/// Reads a literal: no calls and no composition but that of [`Composed`].
fn literal(text: &str, expected: &'static str) -> Result<Value> {
    let expr = parse(text)?;
    if !expr.is_literal() {
        return Err(Error::Syntax { at: 0, expected });
    }
    expr.evaluate()
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Layout> {
        let expected = "a layout such as (4,2):(1,4)";
        match literal(text, expected)? {
            Value::Layout(layout) => Ok(layout),
            Value::Ints(_) | Value::Swizzle(_) | Value::Composed(_) | Value::Tiler(_) => {
                Err(Error::Syntax { at: 0, expected })
            }
        }
    }
}

impl FromStr for IntTuple {
    type Err = Error;

    fn from_str(text: &str) -> Result<IntTuple> {
        let expected = "an integer or a tuple such as (4,(2,3))";
        match literal(text, expected)? {
            Value::Ints(ints) => Ok(ints),
            Value::Layout(_) | Value::Swizzle(_) | Value::Composed(_) | Value::Tiler(_) => {
                Err(Error::Syntax { at: 0, expected })
            }
        }
    }
}

impl FromStr for Composed {
    type Err = Error;

    fn from_str(text: &str) -> Result<Composed> {
        let expected = "a composed layout such as S<3,4,3> o 0 o (5,4):(4,1)";
        match literal(text, expected)? {
            Value::Composed(composed) => Ok(composed),
            Value::Ints(_) | Value::Layout(_) | Value::Swizzle(_) | Value::Tiler(_) => {
                Err(Error::Syntax { at: 0, expected })
            }
        }
    }
}
