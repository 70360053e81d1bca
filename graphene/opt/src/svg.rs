//! Draws a layout as a grid of offsets.

use std::fmt::{self, Write};

use graphene_ir::layout::expr::Value;
use graphene_ir::layout::{Composed, IntTuple, Layout, crd2idx};

/// The most cells that are drawn.
const MAX_CELLS: i64 = 1 << 14;

/// The side of a cell in pixels.
const CELL: i64 = 40;

/// Fill colours, cycled by offset: eight, so that banks of eight units show as columns.
const FILLS: [&str; 8] =
    ["#f6d5d5", "#fbe6c8", "#faf6c8", "#d9f2d0", "#cdeff0", "#d2def7", "#e2d5f5", "#f5d3ea"];

/// Why a value cannot be drawn.
#[derive(Debug)]
pub(crate) enum Undrawable {
    /// It is not a layout.
    Kind,
    /// It has more than two modes.
    Rank(usize),
    /// It has too many coordinates.
    Size(i64),
    /// Some offset is not defined.
    Offset(graphene_ir::Error),
}

impl fmt::Display for Undrawable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undrawable::Kind => f.write_str("svg: only layouts can be drawn"),
            Undrawable::Rank(rank) => write!(f, "svg: rank {rank}; at most 2 can be drawn"),
            Undrawable::Size(size) => {
                write!(f, "svg: {size} cells; at most {MAX_CELLS} can be drawn")
            }
            Undrawable::Offset(error) => write!(f, "svg: {error}"),
        }
    }
}

/// An SVG page: mode 0 runs down the rows and mode 1 along the columns; a layout of rank 1 is one
/// row.
pub(crate) fn draw(value: &Value) -> Result<String, Undrawable> {
    let (domain, composed): (&Layout, Option<&Composed>) = match value {
        Value::Layout(layout) => (layout, None),
        Value::Composed(composed) => (&composed.layout, Some(composed)),
        Value::Ints(_) | Value::Swizzle(_) | Value::Tiler(_) => return Err(Undrawable::Kind),
    };
    if domain.size() > MAX_CELLS {
        return Err(Undrawable::Size(domain.size()));
    }
    let (rows, columns) = match domain.modes() {
        [columns] => (1, columns.size()),
        [rows, columns] => (rows.size(), columns.size()),
        modes => return Err(Undrawable::Rank(modes.len())),
    };
    let (width, height) = ((columns + 1) * CELL, (rows + 1) * CELL);
    let mut page = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"monospace\" font-size=\"14\" text-anchor=\"middle\">\n\
         <title>{}</title>\n",
        value.to_string().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
    );
    for row in 0..rows {
        text(&mut page, 0, row + 1, row, "#777");
    }
    for column in 0..columns {
        text(&mut page, column + 1, 0, column, "#777");
        for row in 0..rows {
            // The domain is colexicographic, so that this is the coordinate's index.
            let index = IntTuple::Int(row + rows * column);
            let offset = match composed {
                Some(composed) => composed.crd2idx(&index),
                None => crd2idx(&index, domain),
            }
            .map_err(Undrawable::Offset)?;
            let fill = usize::try_from(offset.rem_euclid(8)).map_or("#fff", |i| FILLS[i]);
            let (x, y) = ((column + 1) * CELL, (row + 1) * CELL);
            line(
                &mut page,
                format_args!(
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" \
                     fill=\"{fill}\" stroke=\"#000\"/>"
                ),
            );
            text(&mut page, column + 1, row + 1, offset, "#000");
        }
    }
    page.push_str("</svg>\n");
    Ok(page)
}

fn text(page: &mut String, column: i64, row: i64, number: i64, fill: &str) {
    let (x, y) = (column * CELL + CELL / 2, row * CELL + CELL / 2 + 5);
    line(page, format_args!("<text x=\"{x}\" y=\"{y}\" fill=\"{fill}\">{number}</text>"));
}

fn line(page: &mut String, content: fmt::Arguments<'_>) {
    writeln!(page, "{content}").expect("writing to a string does not fail");
}
