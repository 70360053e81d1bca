//! Neighbours along a tensor's last axis, which a thread takes together: where they are, and what is
//! done where a row ends within them.

use crate::{Builder, Cond, Expr, Result, TensorId, Test, Tiler, Var};

/// The coordinates of a place among axes of these sizes, of which the last one runs fastest and the first one takes what is left.
pub fn coordinates(k: &mut Builder, place: Expr, sizes: &[Expr]) -> Result<Vec<Expr>> {
    let mut rest = place;
    let mut at: Vec<Expr> = Vec::new();
    for size in sizes.iter().skip(1).rev() {
        at.push(k.let_("at", rest.rem(size))?.into());
        rest = k.let_("rest", rest.div(size))?.into();
    }
    at.push(rest);
    at.reverse();
    Ok(at)
}

/// `n` neighbours `[n]` of a tensor, at coordinates of which the last one counts such runs.
pub fn neighbours(
    k: &mut Builder,
    of: TensorId,
    at: impl IntoIterator<Item = Expr>,
    n: i64,
    name: &str,
) -> Result<TensorId> {
    let at: Vec<Expr> = at.into_iter().collect();
    let mut tiles = vec![Tiler::Size(1); at.len()];
    if let Some(last) = tiles.last_mut() {
        *last = Tiler::Size(n);
    }
    let tiled = k.tile(of, "tiled", &tiles)?;
    let tile = k.index(tiled, "tile", at)?;
    k.reshape(tile, name, 0, &[&[(n, 1)]])
}

/// A part of a tensor: along each axis a tile of a size and its number, or all of it.
pub fn part(
    k: &mut Builder,
    of: TensorId,
    name: &str,
    tiles: &[Option<(i64, Expr)>],
) -> Result<TensorId> {
    let tilers = tiles.iter().map(|tile| match tile {
        Some((size, _)) => Tiler::Size(*size),
        None => Tiler::Whole,
    });
    let tiled = k.tile(of, name, &tilers.collect::<Vec<_>>())?;
    let at = tiles.iter().map(|tile| tile.as_ref().map_or(Expr::from(0), |(_, at)| at.clone()));
    k.index(tiled, name, at)
}

/// Runs of `n` along a row that has `end` elements.
pub struct Runs {
    /// Elements of a run.
    pub n: i64,
    /// Elements of the row.
    pub end: Expr,
    /// Whether the elements of a partial run are written out, one after the other.
    pub written_out: bool,
}

impl Runs {
    /// Handles the run of this number: `body` is given a view of it if it lies within the row; if it does not, of each of its
    /// elements that does, as runs of one. `view` makes those of so many elements, from a number of such.
    pub fn within(
        &self,
        k: &mut Builder,
        at: &Expr,
        view: impl Fn(&mut Builder, i64, &Expr) -> Result<TensorId>,
        body: impl Fn(&mut Builder, Run) -> Result,
    ) -> Result {
        let n = self.n;
        let whole = view(k, n, at)?;
        let run = Run { view: whole, n, at: at.clone(), element: None };
        k.if_(Test::Inside(whole.into()), |k| body(k, run))?;
        if n == 1 {
            return Ok(());
        }
        k.if_(Cond::less(&self.end, at.clone() * n + n), |k| {
            let each = |k: &mut Builder, e: Expr| {
                let at = at.clone() * n + &e;
                let single = view(k, 1, &at)?;
                let run = Run { view: single, n: 1, at, element: Some(e) };
                k.if_(Test::Inside(single.into()), |k| body(k, run))
            };
            match self.written_out {
                true => super::pointwise::each(k, n - 1, each),
                false => k.for_("e", 0..n - 1, 1, false, |k, e| each(k, e.into())),
            }
        })
    }
}

/// Vectors of `n` neighbours along the last of some axes of these sizes, one or more, of which the last of a row may be partial.
/// Handles all of them, each by a thread of the grid, which has so many blocks of so many threads; the own ones are the
/// block of number `first` and this thread of it. `body` is given how many elements a vector has, and its place, of
/// which the last coordinate counts such vectors; a partial one's elements one by one. `of` has these axes, and all that
/// is handled lies within it.
pub fn each_vector(
    k: &mut Builder,
    of: TensorId,
    (sizes, n): (&[Expr], i64),
    (first, blocks): (&Expr, &Var),
    (thread, threads): (&Var, i64),
    body: impl Fn(&mut Builder, i64, &[Expr]) -> Result,
) -> Result {
    let Some((last, outer)) = sizes.split_last() else { return Ok(()) };
    let items = last.ceil_div(n);
    let tiles = (product(outer) * &items).ceil_div(threads);
    let sizes = [outer, &[items][..]].concat();
    k.for_("tile", first.clone()..tiles, blocks, false, |k, tile| {
        let mut outer = coordinates(k, Expr::from(tile) * threads + thread, &sizes)?;
        let Some(at) = outer.pop() else { return Ok(()) };
        let place = |at: &Expr| outer.iter().chain([at]).cloned().collect::<Vec<Expr>>();
        let view = |k: &mut Builder, n: i64, at: &Expr| neighbours(k, of, place(at), n, "vector");
        let runs = Runs { n, end: last.clone(), written_out: false };
        runs.within(k, &at, view, |k, run| body(k, run.n, &place(&run.at)))
    })
}

/// The number of coordinates along all of some axes.
pub fn product<'a>(sizes: impl IntoIterator<Item = &'a Expr>) -> Expr {
    sizes.into_iter().fold(Expr::from(1), |product, size| product * size)
}

/// Neighbours that lie within a row.
pub struct Run {
    /// They themselves: `[n]`.
    pub view: TensorId,
    /// How many they are.
    pub n: i64,
    /// Their number among runs of as many.
    pub at: Expr,
    /// The number of a single one within its partial run.
    pub element: Option<Expr>,
}
