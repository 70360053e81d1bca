//! The notation: `((2,2),3):((24,2),8)`, `Sw<3,4,3> o 0 o (5,4):(4,1)`, `<3:4,8:2>`.

use std::{fmt::Display, str::FromStr};

use super::{Composed, Int, IntTuple, Layout, Outer, Stride, Swizzle, Tiler};
use crate::{Error, Result, convert::display, text::cursor::Parser, text::print::joined};

display! {
    {T: Display} IntTuple<T>: |tree, f| match tree {
        IntTuple::Int(value) => write!(f, "{value}"),
        IntTuple::Tuple(parts) => write!(f, "({})", joined(parts, ",")),
    };
    {I: Int} Layout<I>: |layout, f| write!(f, "{}:{}", layout.shape(), layout.stride());
    {I: Int} Stride<I>: |stride, f| {
        if stride.is_zero() {
            return f.write_str("0");
        }
        for (i, (axis, by)) in stride.terms.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "+" })?;
            match axis {
                Some(axis) => write!(f, "{by}@{axis}")?,
                None => write!(f, "{by}")?,
            }
        }
        Ok(())
    };
    Swizzle: |swizzle, f| write!(f, "Sw<{},{},{}>", swizzle.bits(), swizzle.base(), swizzle.shift());
    Composed: |Composed { outer, offset, layout }, f| match outer {
        Outer::Swizzle(swizzle) => write!(f, "{swizzle} o {offset} o {layout}"),
        Outer::Layout(outer) => write!(f, "{outer} o {offset} o {layout}"),
    };
    Tiler: |tiler, f| match tiler {
        Tiler::Whole => f.write_str("_"),
        Tiler::Size(size) => write!(f, "{size}"),
        Tiler::Layout(layout) => write!(f, "{layout}"),
        Tiler::Modes(tilers) => write!(f, "<{}>", joined(tilers, ",")),
    };
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
