//! Draws a layout as a grid of offsets, or of the threads and values that own its cells.

use std::fmt::{self, Write};

use graphene_ir::layout::{IntTuple, Layout};
use graphene_opt::expr::Value;

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
    /// A thread's value lies outside of the grid.
    Outside(i64),
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
            Undrawable::Outside(offset) => write!(f, "svg: the grid has no cell {offset}"),
        }
    }
}

/// A grid's size in the notation of `--owners`: `8x4`.
pub(crate) fn grid(text: &str) -> Result<[i64; 2], String> {
    let sizes = text
        .split_once('x')
        .and_then(|(rows, columns)| Some([rows.parse().ok()?, columns.parse().ok()?]));
    let fits = |[rows, columns]: &[i64; 2]| {
        *rows > 0 && *columns > 0 && rows.checked_mul(*columns).is_some_and(|n| n <= MAX_CELLS)
    };
    sizes
        .filter(fits)
        .ok_or_else(|| format!("rows and columns, such as 8x4, {MAX_CELLS} cells at most"))
}

/// An SVG page: mode 0 runs down the rows and mode 1 along the columns; a layout of rank 1 is one
/// row.
pub(crate) fn draw(value: &Value) -> Result<String, Undrawable> {
    let domain = domain(value)?;
    let (rows, columns) = match domain.modes() {
        [columns] => (1, columns.size()),
        [rows, columns] => (rows.size(), columns.size()),
        modes => return Err(Undrawable::Rank(modes.len())),
    };
    // The domain is colexicographic, so that a cell's number is its coordinate's index.
    let offsets: Vec<i64> =
        (0..rows * columns).map(|index| offset(value, domain, index)).collect::<Result<_, _>>()?;
    Ok(page(value, [rows, columns], |cell| {
        let offset = offsets[cell];
        (fill(offset), vec![offset.to_string()])
    }))
}

/// An SVG page of a column-major grid, with the thread and value that own each cell: `T5 V1`.
pub(crate) fn draw_owners(value: &Value, [rows, columns]: [i64; 2]) -> Result<String, Undrawable> {
    let domain = domain(value)?;
    let threads = match domain.modes() {
        [threads, _] => threads.size(),
        [_] => domain.size(),
        modes => return Err(Undrawable::Rank(modes.len())),
    };
    let cells = usize::try_from(rows * columns).map_err(|_| Undrawable::Size(rows * columns))?;
    let mut owners: Vec<Vec<(i64, i64)>> = vec![Vec::new(); cells];
    for index in 0..domain.size() {
        // Of a fragment, rows and columns; else the number of the cell.
        let place = domain.at(&index).map_err(Undrawable::Offset)?;
        let along = |axis| place.steps().find(|step| step.0 == axis).map_or(0, |step| *step.1);
        let at = match place.number() {
            Some(_) => offset(value, domain, index)?,
            None => along(0) + rows * along(1),
        };
        let cell = usize::try_from(at).ok().and_then(|at| owners.get_mut(at));
        cell.ok_or(Undrawable::Outside(at))?.push((index % threads, index / threads));
    }
    Ok(page(value, [rows, columns], |cell| {
        let names = owners[cell].iter().map(|(thread, value)| format!("T{thread} V{value}"));
        (owners[cell].first().map_or("#fff", |(thread, _)| fill(*thread)), names.collect())
    }))
}

fn domain(value: &Value) -> Result<&Layout, Undrawable> {
    let domain = match value {
        Value::Layout(layout) => layout,
        Value::Composed(composed) => &composed.layout,
        Value::Ints(_) | Value::Swizzle(_) | Value::Tiler(_) => return Err(Undrawable::Kind),
    };
    if domain.size() > MAX_CELLS { Err(Undrawable::Size(domain.size())) } else { Ok(domain) }
}

fn offset(value: &Value, domain: &Layout, index: i64) -> Result<i64, Undrawable> {
    let offset = match value {
        Value::Composed(composed) => composed.crd2idx(&IntTuple::Int(index)),
        Value::Layout(_) | Value::Ints(_) | Value::Swizzle(_) | Value::Tiler(_) => {
            domain.at(&index)
        }
    };
    offset.map_err(Undrawable::Offset)?.number().ok_or(Undrawable::Kind)
}

fn fill(number: i64) -> &'static str {
    usize::try_from(number.rem_euclid(8)).map_or("#fff", |i| FILLS[i])
}

/// The grid, its cells counted down the columns, each with a colour and lines of text.
fn page(
    value: &Value,
    [rows, columns]: [i64; 2],
    cell: impl Fn(usize) -> (&'static str, Vec<String>),
) -> String {
    let (width, height) = ((columns + 1) * CELL, (rows + 1) * CELL);
    let mut page = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"monospace\" font-size=\"14\" text-anchor=\"middle\">\n\
         <title>{}</title>\n",
        value.to_string().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
    );
    for row in 0..rows {
        text(&mut page, [0, row + 1], &[row.to_string()], "#777");
    }
    for column in 0..columns {
        text(&mut page, [column + 1, 0], &[column.to_string()], "#777");
        for row in 0..rows {
            let number = usize::try_from(row + rows * column).expect("cells are few");
            let (fill, lines) = cell(number);
            let (x, y) = ((column + 1) * CELL, (row + 1) * CELL);
            line(
                &mut page,
                format_args!(
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" \
                     fill=\"{fill}\" stroke=\"#000\"/>"
                ),
            );
            text(&mut page, [column + 1, row + 1], &lines, "#000");
        }
    }
    page.push_str("</svg>\n");
    page
}

/// Lines in a cell, smaller where they are words or several.
fn text(page: &mut String, [column, row]: [i64; 2], lines: &[String], fill: &str) {
    let small = lines.len() > 1 || lines.iter().any(|line| line.contains(' '));
    let (size, pitch) = if small { (10, 11) } else { (14, 14) };
    let x = column * CELL + CELL / 2;
    let mut y = row * CELL + CELL / 2 + 5 - pitch * (lines.len() as i64 - 1) / 2;
    for words in lines {
        line(
            page,
            format_args!(
                "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{fill}\">{words}</text>"
            ),
        );
        y += pitch;
    }
}

fn line(page: &mut String, content: fmt::Arguments<'_>) {
    writeln!(page, "{content}").expect("writing to a string does not fail");
}
