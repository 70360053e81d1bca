//! Matrix products with what follows them.

use super::function::{Walk, function, leaves};
use super::matmul_layout::MatMulLayout;
use super::operand::Matrix;
use super::sums::{is_gated, summed};
use super::{
    Dims, Launch, Made, Pointer, Refusal, Site, StepOperand, TypedOperand, WIDTH, by_name, ensure,
    made, tiles,
};
use crate::base::parameters::{GemmParameters, Parameters};
use crate::base::sizes::is_multiple;
use crate::base::variants::Variant;
use crate::families::estimates::Tile;
use crate::families::tiles::{MatMuls, parts};
use graphene_frontend::dim::Dim;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_ir::arch::Feature;
use graphene_ir::function::Function;
use graphene_ir::template::epilogue::{Epilogue, Input, Span};
use graphene_ir::template::gemm::{Gemm, ROWS};
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::multistage::{By, Multistage};
use graphene_ir::tensor::Scalar;

/// The launches of a step of matmuls over one shape, one for each of its variants.
pub(super) fn launches(site: &Site<'_>) -> Result<Vec<Launch>, Refusal> {
    let body = &site.step.body;
    let matmuls = body.matmuls();
    let first = *matmuls.first().ok_or(Refusal::Operation("a matmul of nothing"))?;
    let shape = &body.ty(first.value()).shape;
    let rank = shape.len();
    let alike = rank >= 2 && matmuls.iter().all(|id| body.ty(id.value()).shape == *shape);
    ensure(alike, Refusal::Layout("matmuls of several shapes"))?;

    let mut operands = Operands::new(site, shape, None);
    let gated = is_gated(body);
    let terms = matmuls.iter().enumerate();
    let mut terms: Vec<MatMulLayout> = terms
        .map(|(number, &id)| operands.term(body, id, gated && number > 0))
        .collect::<Result<_, _>>()?;
    let MatMulLayout { batched, turned, .. } = terms[0];
    let alike = terms.iter().all(|term| (term.batched, term.turned) == (batched, turned));
    ensure(alike, Refusal::Layout("matmuls of several layouts"))?;
    // What the template has of both gated matmuls: the function's first input and its last.
    let ((sum, others), value) = match &matmuls[..] {
        [gate, value] if gated => {
            terms.truncate(1);
            ((gate.value(), Vec::new()), Some(value.value()))
        }
        _ => (summed(body, &matmuls)?, None),
    };
    let given = body.given();
    // `summed` has refused addends that depend on a matmul, so the walk may stop at the sum.
    let is_sum = |of: ValueId| of == sum || Some(of) == value;
    let stops = |of| if is_sum(of) { Walk::Stop } else { Walk::On };
    let values = leaves(body, &[&given[..], &others].concat(), &stops);
    let order: Vec<ValueId> = [sum].iter().chain(&values).chain(&value).copied().collect();
    let mut total = Function::input(0);
    for other in &others {
        total = total + function(body, &[*other], &order)?;
    }
    let inner = std::iter::once(total).chain((1..order.len()).map(Function::input));
    let function = function(body, &given, &order)?.after(&Function::all(inner));
    let inputs = values.iter().map(|&value| operands.epilogue_input(value));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let outputs = (0..given.len()).map(|number| operands.result(number));
    let outputs = outputs.collect::<Result<Vec<_>, _>>()?;

    let scalar = operands.scalar.ok_or(Refusal::Operation("a matmul of nothing"))?;
    ensure(scalar.is_float() || scalar == Scalar::I32, Refusal::Integers)?;
    let [a_transposed, b_transposed] = turned.map(|turned| turned == Some(true));
    let a_strided = terms.iter().any(|term| term.apart.is_some());
    let gaps = Refusal::Layout("a batch of matmuls whose operands are not packed");
    ensure(!(a_strided && batched), gaps)?;
    let mut matmul = MatMul {
        scalar,
        a_transposed,
        a_strided,
        b_transposed,
        batched,
        terms: terms.len(),
        gated,
        epilogue: Epilogue { function, operands: inputs, outputs },
        ..MatMul::default()
    };
    let mut dims = Dims::new();
    let outer = |axes: &[Dim]| axes.iter().product::<Dim>();
    let (rows, batch) = match batched {
        true => (shape[rank - 2].clone(), outer(&shape[..rank - 2])),
        false => (outer(&shape[..rank - 1]), Dim::from(1)),
    };
    let columns = shape[rank - 1].clone();
    for (i, term) in terms.iter().enumerate() {
        let named = |of: &str| if i == 0 { of.to_owned() } else { format!("{of}_{}", i + 1) };
        dims.insert(named("K"), term.depth.clone());
        if a_strided {
            let packed = if a_transposed { &rows } else { &term.depth };
            dims.insert(named("A_row"), term.apart.as_ref().unwrap_or(packed).clone());
        }
    }
    dims.extend(by_name([("M", rows), ("N", columns), ("batch", batch)]));
    let aligned = |dim: &Dim| is_multiple(dim, WIDTH / scalar.bytes());
    let extents = terms.iter().map(|term| &term.depth);
    let extents = extents.chain(terms.iter().filter_map(|term| term.apart.as_ref()));
    let extents = extents.chain(a_transposed.then_some(&dims["M"]));
    let mut extents = extents.chain(b_transposed.then_some(&dims["N"]));
    // The first operand is A, the second B; and so on, but that gated matmuls have one A.
    let of_term = if gated { 3 } else { 2 };
    let (factors, met) = operands.pointers.split_at(of_term * terms.len());
    let begin = |all: &[Pointer]| all.iter().all(|pointer| aligned(&pointer.offset));
    let edges = |bulk| if bulk { Edges::Bulk } else { Edges::Moves };
    matmul.results = edges(begin(met) && operands.whole && aligned(&dims["N"]));
    let edges = edges(begin(factors) && extents.all(aligned));
    let sized = MatMuls::of(site.target, body).map(|matmuls| matmuls.tiles(site.target));
    let mut terms = factors.chunks(of_term);
    let constant = terms.all(|term| term[1..].iter().all(|b| site.is_weight(b.operand)));
    let bytes = matmuls.iter().try_fold(0, |sum: i64, &id| {
        let b = body.ty(body.node(id).inputs()[1]?);
        let mut sizes = b.shape.iter().map(Dim::known);
        let bytes = sizes.try_fold(b.dtype.size() as i64, |n, dim| n.checked_mul(dim?))?;
        sum.checked_add(bytes)
    });
    let cached = site.target.l2_bytes as i64 / CACHED;
    let weights = match constant {
        true if bytes.is_some_and(|bytes| bytes <= cached) => Weights::Small,
        true => Weights::Large,
        false => Weights::None,
    };
    site.launch_each(|variant| {
        let mut dims = dims.clone();
        let cut = Cut::of(variant, sized.as_deref().unwrap_or_default(), weights)?;
        let kernel = kernel(site, &matmul, edges, &cut, &mut dims)?;
        let pointers = operands.pointers.clone();
        Ok(match site.is_by_threads(scalar) && cut.split == 1 {
            true => site.launch_behind(kernel, &dims, pointers),
            false => site.launch(kernel, &dims, pointers),
        })
    })
}

/// The kernel of a matmul by filters, which may be weights, in tiles of a size, its depth split into so many parts.
pub(super) fn by_filters(
    site: &Site<'_>,
    (matmul, constant): (&MatMul, bool),
    tile: [i64; 2],
    split: i64,
    dims: &mut Dims,
) -> Result<Made, Refusal> {
    let weights = if constant { Weights::Small } else { Weights::None };
    let tile = Tile::new("filters", tile, false);
    let cut = Cut { tile, split, weights, few: split > 1, found: None };
    kernel(site, matmul, Edges::Bulk, &cut, dims)
}

/// A matmul asks for weights of at most this part of the L2 cache while predecessors are still busy. More of them would
/// crowd out what those read: so a block has only what its stages hold.
const CACHED: i64 = 4;

/// What B is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weights {
    /// A step makes it.
    None,
    /// Weights, which no step makes, and which are no more than a part of the L2 cache.
    Small,
    /// More of them.
    Large,
}

/// How a variant cuts a matmul.
struct Cut {
    tile: Tile,
    /// Into how many parts the depth is split.
    split: i64,
    weights: Weights,
    /// Whether tiles are so few that each block may ask for all of its weights before predecessors are done.
    few: bool,
    /// Parameters of Hopper's template that were found, rather than those that follow from the above.
    found: Option<GemmParameters>,
}

impl Cut {
    /// Of a variant: one of these tiles, or the smallest with its depth split, by its name; or parameters of its own.
    fn of(variant: &Variant, sized: &[Tile], weights: Weights) -> Result<Self, Refusal> {
        let &[.., smallest] = sized else {
            return Err(Refusal::Operation("a matmul without tiles"));
        };
        let known = sized.iter().find(|known| known.name == variant.name);
        let cut = |tile, split, few| Self { tile, split, weights, few, found: None };
        Ok(match (variant.parameters, known) {
            (Some(Parameters::Gemm(found)), _) => {
                let GemmParameters { columns, ping_pong, cluster, split, .. } = found;
                let rows = ROWS * found.strips * if ping_pong { 1 } else { found.consumers };
                let tile = Tile { cluster, ..Tile::new(variant.name, [rows, columns], ping_pong) };
                // As of the variants: where tiles are small, they are few.
                let few = split > 1 || tile.size == smallest.size;
                Self { found: Some(found), ..cut(tile, split, few) }
            }
            (Some(Parameters::Fmha(_) | Parameters::Mlp(_) | Parameters::Folds(_)), _) => {
                return Err(Refusal::Operation("a matmul by other parameters"));
            }
            (None, Some(&tile)) => cut(tile, 1, tile.name == smallest.name),
            (None, None) => {
                let split = parts(variant.name);
                let split = split.ok_or(Refusal::Operation("a matmul of an unknown variant"))?;
                cut(smallest, split, true)
            }
        })
    }

    /// Hopper's template with these parameters.
    fn gemm(&self, matmul: MatMul, edges: Edges) -> Gemm {
        let Self { tile, split, weights, few, found } = *self;
        let Tile { size: [rows, columns], cluster, ping_pong, .. } = tile;
        let prefetch = few && weights == Weights::Small;
        let weights = weights != Weights::None;
        // A cluster's blocks share tensor copies.
        let cluster = if edges == Edges::Bulk { cluster } else { 1 };
        let gemm =
            Gemm { matmul, edges, columns, split, weights, prefetch, cluster, ..Gemm::default() };
        match (found, ping_pong) {
            (Some(GemmParameters { consumers, strips, stages, .. }), ping_pong) => {
                Gemm { consumers, strips, ping_pong, stages, ..gemm }
            }
            (None, true) => Gemm { strips: rows / ROWS, ping_pong: true, ..gemm }.deepest(),
            (None, false) => Gemm { consumers: rows / ROWS, ..gemm }.deepest(),
        }
    }
}

/// The kernel of a variant, by tensor cores for half and for single precision that may be rounded to TF32; else, and for integers, by
/// single threads. Hopper's warpgroups take single precision along K only; of what lies otherwise, warps make tiles of
/// the same sizes or smaller, and several variants may be one kernel.
fn kernel(
    site: &Site<'_>,
    matmul: &MatMul,
    edges: Edges,
    cut: &Cut,
    dims: &mut Dims,
) -> Result<Made, Refusal> {
    let (matmul, arch, [rows, columns]) = (matmul.clone(), site.arch, cut.tile.size);
    let (single, threads) = (matmul.scalar == Scalar::F32, site.is_by_threads(matmul.scalar));
    let along = !matmul.a_transposed && !matmul.b_transposed;
    let warpgroups = arch.has(Feature::Wgmma) && !threads && (!single || along);
    let others = Refusal::Operation("parameters of warpgroups, which make no such matmuls");
    ensure(cut.found.is_none() || warpgroups, others)?;
    let kernel = match (warpgroups, threads) {
        (_, true) => {
            let by = By::Threads(match (rows, matmul.gated) {
                (128, _) => [8, 8],
                // Gated ones read four neighbours of each matrix.
                (_, true) => [4, 8],
                (64, false) => [8, 4],
                (_, false) => [4, 4],
            });
            // Parts of K wait longest for weights, and leave room for more of them.
            let stages = site.stages(if cut.split == 1 { 3 } else { 5 });
            let (tile, split) = ([rows, columns], cut.split);
            let simt =
                Multistage { matmul, arch, edges, tile, by, split, stages, ..Multistage::simt() };
            made!(simt.within(site.target.shared_memory_per_block as i64 / 2))
        }
        (true, false) => {
            let (gemm, split) = (cut.gemm(matmul, edges), cut.split);
            let height = gemm.rows() * gemm.cluster;
            let width = if gemm.matmul.gated { columns / 2 } else { columns };
            let tiles = &tiles(&dims["M"], height) * &tiles(&dims["N"], width);
            let cores = Dim::from(i64::from(site.target.cores) / gemm.cluster);
            let tiles = &tiles * &dims["batch"];
            let blocks = tiles.minimum(&cores).maximum(&Dim::from(1));
            let clusters = if split > 1 { tiles } else { blocks.clone() };
            dims.extend(by_name([("blocks", blocks), ("clusters", clusters)]));
            made!(gemm)
        }
        (false, false) => {
            let tile = [rows, columns.min(128)];
            // Stages of as many bytes.
            let (depth, stages) = (if single { 16 } else { 32 }, site.stages(4));
            made!(Multistage { matmul, arch, edges, tile, depth, stages, ..Multistage::mma() })
        }
    };
    Ok(kernel?)
}

/// A step's operands, as a template takes them: in the order in which they are added.
pub(super) struct Operands<'a> {
    site: &'a Site<'a>,
    shape: &'a [Dim],
    scalar: Option<Scalar>,
    /// Whether all that is read or written by vectors begins where those must.
    whole: bool,
    /// Whether the matmuls are a batch: what follows reads rows and columns that all of them share.
    batched: bool,
    pub(super) pointers: Vec<Pointer>,
}

impl<'a> Operands<'a> {
    /// Of a matmul of this shape, and of this type if it is known.
    pub(super) fn new(site: &'a Site<'a>, shape: &'a [Dim], scalar: Option<Scalar>) -> Self {
        Self { site, shape, scalar, whole: true, batched: false, pointers: Vec::new() }
    }

    pub(super) fn push(&mut self, operand: StepOperand, scalar: Scalar, offset: &Dim) {
        // What has not as many bytes as what is multiplied is read to and written from registers, element by element, by
        // warpgroups.
        let by_elements = self.site.arch.has(Feature::Wgmma) && self.scalar != Some(Scalar::F32);
        self.whole &= by_elements || self.scalar.is_none_or(|own| own.bytes() == scalar.bytes());
        self.pointers.push(Pointer { operand, offset: offset.clone() });
    }

    /// The operands of one of the matmuls that are added; only B, if A is another one's.
    fn term(&mut self, body: &Graph, id: NodeId, shares_a: bool) -> Result<MatMulLayout, Refusal> {
        let computed = "a matmul of a value that the launch itself computes";
        let read = |place| self.site.read(body.node(id).input(place), computed);
        let (a, b) = (read(0)?, read(1)?);
        let own = *self.scalar.get_or_insert(a.scalar);
        ensure([a, b].iter().all(|of| of.scalar == own), Refusal::Layout("a matmul of two types"))?;
        let layout = MatMulLayout::of([a.view, b.view], self.shape)?;
        let odd = Refusal::Layout("operands of a matmul that are not packed");
        let ([Some(_), Some(_)], [Some(a_matrix), Some(b_matrix)]) =
            (&layout.turned, &layout.matrices)
        else {
            return Err(odd);
        };
        if !shares_a {
            self.push(a.operand, a.scalar, &a_matrix.offset);
        }
        self.push(b.operand, b.scalar, &b_matrix.offset);
        self.batched |= layout.batched;
        Ok(layout)
    }

    pub(super) fn epilogue_input(&mut self, value: ValueId) -> Result<Input, Refusal> {
        let TypedOperand { operand, scalar, view } = self.site.read(Some(value), "no operand")?;
        let rank = self.shape.len();
        let matrix = Matrix::of(view, self.shape, rank - 1)?;
        let columns = &self.shape[rank - 1];
        let span = match (&matrix.row, &matrix.column, &matrix.period) {
            (row, column, None) if *row == 0 && *column == 1 => Span::Row,
            (row, column, None) if row == columns && *column == 1 => Span::Whole,
            // Of one column, what each row has is all that there is.
            (row, _, None) if self.batched && *row == 1 && *columns == 1 => Span::Whole,
            (row, column, None) if *row == 1 && *column == 0 && !self.batched => Span::Column,
            (row, column, None) if *row == 0 && *column == 0 => Span::Number,
            _ => return Err(Refusal::Layout("an addend that is no row, column, matrix or number")),
        };
        self.push(operand, scalar, &matrix.offset);
        Ok(Input { span, scalar: Some(scalar) })
    }

    pub(super) fn result(&mut self, number: usize) -> Result<Option<Scalar>, Refusal> {
        let TypedOperand { operand, scalar, view } =
            self.site.operand(StepOperand::Output(number))?;
        let packed = view.shape() == self.shape && view.is_contiguous();
        ensure(packed, Refusal::Layout("a result that is not packed"))?;
        self.push(operand, scalar, &view.offset);
        Ok(Some(scalar))
    }
}
