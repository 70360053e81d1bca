//! What templates of matmuls have in common: what is computed, of which tensors, and in
//! which order blocks walk over the tiles of the result.

mod walk;

pub(super) use self::walk::{Place, Walk};
use super::epilogue::{Attached, Epilogue, Span};
use crate::{
    Builder, Expr, Function, Fused, Header, Kind, Layout, Memory, Result, Scalar, TensorId,
    ThreadsId, Tiler, Var, View, needs,
};

parameters! {
    /// `C[m,n] = f(A[m,k]·B[k,n] + …)`: what is computed, however a template does it.
    pub struct MatMul {
        /// The type of A and B; matmuls accumulate in single precision, of integers in integers that wrap.
        pub scalar: Scalar = Scalar::F16,
        /// Whether A is column-major, that is, M is contiguous.
        pub a_transposed: bool = false,
        /// Whether A's rows, or columns if it is transposed, are apart as a symbol says, `A_row` (of the
        /// second term `A_row_2`, …), rather than packed. There is no batch then.
        pub a_strided: bool = false,
        /// Whether B is row-major, that is, N is contiguous; otherwise K is, as in a linear layer's weights.
        pub b_transposed: bool = false,
        /// Whether there is a batch of matmuls: operands and results of two dimensions have one more, outermost.
        pub batched: bool = false,
        /// How many matmuls are added, each of its own A, B and K: two in a cell of an LSTM (Graphene, Figure 12).
        pub terms: usize = 1,
        /// Whether A is multiplied by another matrix as well, `B_2`, whose sum is the last input of the epilogue's function:
        /// then there is one term ([`gated`](MatMul::gated)).
        pub gated: bool = false,
        /// What becomes of the sums.
        pub epilogue: Epilogue = Epilogue::default(),
        /// How results move, and what the epilogue reads, if A and B move in bulk.
        pub results: Edges = Edges::Bulk,
    }
}

/// How matrices move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Edges {
    /// By tensor copies, or several elements at a time: every row starts at a multiple of 16 bytes.
    Bulk,
    /// By predicated moves of single elements, into the same tiles: any sizes.
    Moves,
}

/// A kernel's tensors and sizes.
pub(super) struct Declared {
    pub(super) m: Expr,
    pub(super) n: Expr,
    pub(super) batch: Option<Expr>,
    pub(super) terms: Vec<Term>,
    pub(super) epilogue: Attached,
}

/// One of the matmuls that are added.
pub(super) struct Term {
    pub(super) factors: Both,
    pub(super) depth: Expr,
}

/// A, and what it is multiplied by: B, and B_2 if gated.
pub(super) type Both = [Vec<TensorId>; 2];

impl MatMul {
    /// How results move, and what the epilogue reads, if A and B move so.
    pub(super) fn result_edges(&self, edges: Edges) -> Edges {
        if edges == Edges::Bulk { self.results } else { edges }
    }

    /// Declares the symbols M, N, a K for each term (K, K_2, …), that of matmuls if batched and those
    /// of strides; then the parameters.
    pub(super) fn declare(&self, k: &mut Builder, edges: Edges, weights: bool) -> Result<Declared> {
        needs(self.terms >= 1, "one term or more", self)?;
        needs(!(self.a_strided && self.batched), "no batch of strided matrices", self)?;
        needs(self.terms == 1 || !self.gated, "one term of a gated matmul", self)?;
        let [m, n] = k.symbols(["M", "N"])?;
        let depths: Vec<Var> = (0..self.terms).map(|_| k.symbol("K")).collect::<Result<_>>()?;
        let batch = if self.batched { Some(k.symbol("batch")?) } else { None };
        let strided = if self.a_strided { self.terms } else { 0 };
        let apart: Vec<Var> = (0..strided).map(|_| k.symbol("A_row")).collect::<Result<_>>()?;
        let mut terms = Vec::new();
        for (i, depth) in depths.iter().enumerate() {
            let a = matrix(batch.as_ref(), [&m, depth], self.a_transposed, apart.get(i));
            let a = k.param("A", a, self.scalar)?;
            let b = matrix(batch.as_ref(), [depth, &n], !self.b_transposed, None);
            let b = (0..self.matrices()).map(|_| match weights {
                true => k.constant("B", b.clone(), self.scalar),
                false => k.param("B", b.clone(), self.scalar),
            });
            let b = b.collect::<Result<_>>()?;
            terms.push(Term { factors: [vec![a], b], depth: depth.into() });
        }
        self.epilogue.check(self.matrices() as usize)?;
        let whole = matrix(batch.as_ref(), [&m, &n], false, None);
        // The results are C, C_2, ….
        let (operands, results) = self.epilogue.declare(k, self.scalar, 0, |span| match span {
            Some(Span::Row) => (Span::Row.name(), line(&n)),
            Some(span @ (Span::Column | Span::Number)) => (span.name(), span.of_rows(&(&m).into())),
            Some(Span::Whole) => (Span::Whole.name(), whole.clone()),
            None => ("C", whole.clone()),
        })?;
        let epilogue = Attached::new(&self.epilogue, operands, results, self.result_edges(edges));
        Ok(Declared { m: m.into(), n: n.into(), batch: batch.map(Expr::from), terms, epilogue })
    }
}

/// A tile of the result, and what it is computed from: views of global memory.
pub(super) struct Tile<'a> {
    declared: &'a Declared,
    /// A's rows and B's columns of each term.
    factors: Vec<TensorId>,
    /// What the epilogue meets.
    pub(super) operands: Vec<TensorId>,
    pub(super) results: Vec<TensorId>,
}

impl Tile<'_> {
    /// What becomes of the sums of all its matmuls.
    pub(super) fn header(&self, threads: ThreadsId) -> Header {
        let ins = [&self.factors[..], &self.operands].concat();
        Header::new(self.declared.kind(), self.results.clone(), ins, threads)
    }

    /// The sums of all its matmuls.
    pub(super) fn sums(&self, sums: &[TensorId], threads: ThreadsId) -> Header {
        let kind = match (&self.declared.terms[..], self.declared.matrices()) {
            ([_], 1) => Kind::MATMUL,
            _ => Kind::Fused(Fused::all(self.declared.matmuls())),
        };
        Header::new(kind, sums.to_vec(), self.factors.clone(), threads)
    }

    /// What becomes of these sums.
    pub(super) fn epilogue(&self, sums: &[TensorId], threads: ThreadsId) -> Header {
        let epilogue = &self.declared.epilogue;
        let kind = match epilogue.function == Function::identity() {
            true => Kind::Move,
            false => Kind::Fused(epilogue.fused((0..sums.len()).map(Fused::input), sums.len())),
        };
        Header::new(kind, self.results.clone(), [sums, &self.operands].concat(), threads)
    }
}

impl Declared {
    /// What becomes of the sums of all matmuls of A and B.
    fn kind(&self) -> Kind {
        let factors = self.terms.len() * (1 + self.matrices());
        Kind::Fused(self.epilogue.fused(self.matmuls(), factors))
    }

    /// How many matrices A is multiplied by.
    fn matrices(&self) -> usize {
        self.terms[0].factors[1].len()
    }

    fn matmuls(&self) -> Vec<Fused> {
        let of = |a: usize, b: usize| Fused::input(a).matmul(Fused::input(b));
        let terms = 1..self.terms.len();
        let first = terms.fold(of(0, 1), |all, i| all + of(2 * i, 2 * i + 1));
        std::iter::once(first).chain((1..self.matrices()).map(|i| of(0, i + 1))).collect()
    }

    /// The tile at a place, of so many rows and columns.
    pub(super) fn tile(&self, k: &mut Builder, size: [i64; 2], place: &Place) -> Result<Tile<'_>> {
        let (zero, [rows, columns]) = (Expr::from(0), size.map(Tiler::Size));
        let [of_a, of_b] = [[rows, Tiler::Whole], [Tiler::Whole, columns]];
        let mut factors = Vec::new();
        for [a, b] in self.terms.iter().map(|term| &term.factors) {
            factors.push(place.view(k, a[0], "A_tile", &of_a, [&place.m, &zero])?);
            for &b in b {
                factors.push(place.view(k, b, "B_tile", &of_b, [&zero, &place.n])?);
            }
        }
        Ok(Tile { factors, ..self.part(k, size, place)? })
    }

    /// Likewise, but for what its sums are of.
    pub(super) fn part(&self, k: &mut Builder, size: [i64; 2], place: &Place) -> Result<Tile<'_>> {
        let ([rows, columns], whole) = (size, size.map(Tiler::Size));
        let (m, n) = (&place.m, &place.n);
        let operands = self.epilogue.operands.iter().map(|&(span, of)| match span {
            Span::Row => tile_of(k, of, "bias_tile", &[Tiler::Size(columns)], [n]),
            Span::Column | Span::Number => tile_of(k, of, "column_tile", &[Tiler::Size(rows)], [m]),
            Span::Whole => place.view(k, of, "R_tile", &whole, [m, n]),
        });
        let operands = operands.collect::<Result<_>>()?;
        let results = self.epilogue.results.iter();
        let results = results.map(|&of| place.view(k, of, "C_tile", &whole, [m, n]));
        let results = results.collect::<Result<_>>()?;
        Ok(Tile { declared: self, factors: Vec::new(), operands, results })
    }

    pub(super) fn header(&self, block: ThreadsId) -> Header {
        let matrices = self.terms.iter().flat_map(|term| term.factors.concat());
        let ins: Vec<TensorId> = matrices.chain(self.epilogue.ins()).collect();
        Header::new(self.kind(), self.epilogue.results.clone(), ins, block)
    }

    /// What A and B are of, for each term, in tiles of so many rows and columns.
    pub(super) fn in_tiles(
        &self,
        k: &mut Builder,
        names: [&str; 2],
        tiles: [[i64; 2]; 2],
    ) -> Result<Vec<Both>> {
        let mut side = |term: &Term, i: usize| -> Result<Vec<TensorId>> {
            term.factors[i].iter().map(|&of| tiled(k, of, names[i], tiles[i])).collect()
        };
        self.terms.iter().map(|term| Ok([side(term, 0)?, side(term, 1)?])).collect()
    }

    /// Steps of `depth` along each term's K.
    pub(super) fn steps(&self, depth: i64) -> Vec<Expr> {
        self.terms.iter().map(|term| term.depth.ceil_div(depth)).collect()
    }
}

/// A matrix of global memory, maybe of a batch, in tiles.
pub(super) fn tiled(k: &mut Builder, of: TensorId, name: &str, tile: [i64; 2]) -> Result<TensorId> {
    let batch = is_batched(k, of)?.then_some(1);
    let sizes = batch.into_iter().chain(tile);
    k.tile(of, name, &sizes.map(Tiler::Size).collect::<Vec<_>>())
}

/// Whether a matrix, or a tile of one, has a batch's dimension before its rows and columns.
pub(super) fn is_batched(k: &Builder, of: TensorId) -> Result<bool> {
    Ok(k.tensor_of(of)?.view.levels()[0].rank() > 2)
}

/// A tile of a tensor.
pub(super) fn tile_of<'e>(
    k: &mut Builder,
    of: TensorId,
    name: &str,
    tiles: &[Tiler],
    at: impl IntoIterator<Item = &'e Expr>,
) -> Result<TensorId> {
    let tiles = k.tile(of, &format!("{name}s"), tiles)?;
    k.index(tiles, name, at)
}

/// Registers whose levels have dimensions of these sizes and strides, outermost first.
pub(super) fn registers(
    k: &mut Builder,
    name: &str,
    levels: &[&[(i64, i64)]],
    scalar: Scalar,
) -> Result<TensorId> {
    let dims = |level: &&[(i64, i64)]| level.iter().map(|dim| leaf(dim.0, dim.1)).collect();
    let view = View::levels_of(&levels.iter().map(dims).collect::<Vec<_>>());
    k.allocate(name, view, scalar, Memory::Registers, None)
}

pub(super) fn leaf(size: i64, stride: i64) -> Layout<Expr> {
    Layout::of(size, stride)
}

/// One dimension, contiguous.
pub(super) fn line(size: impl Into<Expr>) -> View {
    View::buffer(&[Layout::of(size, 1)])
}

/// Rows and columns, maybe of a batch; `transposed`: columns are contiguous. The others are packed, or `apart`.
fn matrix(batch: Option<&Var>, sizes: [&Var; 2], transposed: bool, apart: Option<&Var>) -> View {
    let [rows, columns] = sizes.map(Expr::from);
    let apart = Expr::from(apart.unwrap_or(sizes[usize::from(!transposed)]));
    let strides = if transposed { [1.into(), apart] } else { [apart, 1.into()] };
    let batch = batch.map(|batch| Layout::of(batch, rows.clone() * &columns));
    let dims = [rows, columns].into_iter().zip(strides).map(|(size, by)| Layout::of(size, by));
    View::buffer(&batch.into_iter().chain(dims).collect::<Vec<_>>())
}
