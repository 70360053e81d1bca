//! Layers with sizes: how their operands are walked through.

use super::{Layer, Layers, Left, Read, Write};
use crate::bind::{BoundOperand, BoundStep};
use crate::cpu::kernels::matmul::Strides;
use crate::cpu::kernels::pointwise::Unary;
use crate::cpu::kernels::view::row_major;
use crate::cpu::loops::{Domain, Lies};
use crate::error::{Error, Result};

/// What binding adds to [`Layers`].
#[derive(Clone, Debug)]
pub(crate) struct BoundLayers {
    /// The axes along which matrices differ, outermost first.
    pub(super) batch: Vec<usize>,
    /// Rows of one matrix.
    pub(super) rows: usize,
    pub(super) layers: Vec<BoundLayer>,
    /// Inputs that are copied row-major first.
    pub(super) copied: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct BoundLayer {
    pub(super) columns: usize,
    /// The epilogue's elements, row-major over all matrices.
    pub(super) domain: Domain,
    pub(super) matmuls: Vec<BoundMatMul>,
    /// The epilogue, if the kernel of the matmul does it.
    pub(super) following: Option<Following>,
}

/// What the kernel of a matmul does to its sums: it adds a bias, then a residual, then applies a function. Either is an input
/// of the step, given by its number, from a place on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Following {
    /// An element for each column.
    pub(super) bias: Option<(usize, usize)>,
    /// One for each element of the domain, in order.
    pub(super) residual: Option<(usize, usize)>,
    pub(super) function: Option<Unary>,
}

impl Following {
    /// `None` if the epilogue does more than that, or inputs lie otherwise.
    fn new(layer: &Layer, domain: &Domain, columns: usize) -> Option<Self> {
        let sum = layer.sum.as_ref()?;
        let mut following = Self { bias: None, residual: None, function: sum.function };
        for &number in &sum.added {
            let Read::Input(input) = layer.reads[number] else { return None };
            let (at, each) = match domain.lies(number, columns)? {
                // Sums are rounded in this order.
                Lies::Columns(_) if following.residual.is_some() => return None,
                Lies::Columns(at) => (at, &mut following.bias),
                // Of a single row a bias and a residual lie alike: the first is the bias.
                Lies::Elements(at) if domain.len == columns && following.bias.is_none() => {
                    (at, &mut following.bias)
                }
                Lies::Elements(at) => (at, &mut following.residual),
                Lies::Same(_) => return None,
            };
            if each.replace((input, at)).is_some() {
                return None;
            }
        }
        Some(following)
    }
}

#[derive(Clone, Debug)]
pub(super) struct BoundMatMul {
    /// Columns of A, rows of B.
    pub(super) depth: usize,
    /// Where A lies, unless it is a kept value.
    pub(super) a: Option<Place>,
    pub(super) b: Place,
}

/// Where the elements of a batch of matrices lie.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) offset: usize,
    /// A stride for each axis of the batch; 0 broadcasts.
    pub(super) batch: Vec<isize>,
    pub(super) row: isize,
    pub(super) column: isize,
}

impl Place {
    pub(super) fn strides(&self, offset: usize) -> Strides<'static> {
        Strides { offset, batch: &[], row: self.row, column: self.column }
    }
}

/// Where matrices have fewer rows than this, inputs are copied if that makes fewer matrices of more rows.
const SHORT: usize = 64;

impl BoundLayers {
    /// # Errors
    /// [`Error::Mismatch`] if shapes disagree under the step's sizes.
    pub(crate) fn new(layers: &Layers, step: &BoundStep) -> Result<Self> {
        let bound = Self::of(layers, step)?;
        let mut matmuls = layers.layers.iter().flat_map(|layer| &layer.matmuls);
        let packed = matmuls.all(|matmul| matmul.prepacked.is_some());
        if bound.rows >= SHORT || bound.matrices() == 1 || !packed {
            return Ok(bound);
        }
        let (mut dense, mut copied) = (step.clone(), Vec::new());
        for matmul in layers.layers.iter().flat_map(|layer| &layer.matmuls) {
            let Left::Input(number) = matmul.a else { continue };
            let input = &mut dense.inputs[number];
            let strides = row_major(&input.shape).into_vec();
            if input.strides != strides {
                (input.offset, input.strides) = (0, strides);
                copied.push(number);
            }
        }
        let mut dense = Self { copied, ..Self::of(layers, &dense)? };
        if dense.matrices() == bound.matrices() {
            return Ok(bound);
        }
        // Epilogues read what was not copied.
        for (own, layer) in dense.layers.iter_mut().zip(bound.layers) {
            (own.domain, own.following) = (layer.domain, layer.following);
        }
        Ok(dense)
    }

    /// The same with operands as they lie.
    fn of(layers: &Layers, step: &BoundStep) -> Result<Self> {
        let mut shapes: Vec<Vec<usize>> = Vec::new();
        let mut bound = Vec::new();
        for layer in &layers.layers {
            let (shape, matmuls) = bind_matmuls(layers, layer, step, &shapes)?;
            let inputs: Vec<Option<&BoundOperand>> = layer
                .reads
                .iter()
                .map(|read| match *read {
                    Read::Input(number) => Some(&step.inputs[number]),
                    Read::MatMul(_) | Read::Kept(_) => None,
                })
                .collect();
            let order: Vec<usize> = (0..shape.len()).collect();
            let domain = Domain::over(&shape, &order, &inputs)?;
            for write in &layer.writes {
                if let Write::Output(number) = *write {
                    same("shape of an epilogue's output", &shape, &step.outputs[number].shape)?;
                }
            }
            let columns = shape[shape.len() - 1];
            let following = Following::new(layer, &domain, columns);
            bound.push(BoundLayer { columns, domain, matmuls, following });
            shapes.push(shape);
        }
        let (lead, rows) = match shapes.first().map(Vec::as_slice) {
            Some([lead @ .., rows, _]) => (lead.to_vec(), *rows),
            _ => return Err(Error::Unsupported { what: "layers of no matmuls" }),
        };
        let mut bound = Self { batch: lead, rows, layers: bound, copied: Vec::new() };
        bound.fold();
        Ok(bound)
    }

    /// The number of matrices.
    pub(super) fn matrices(&self) -> usize {
        self.batch.iter().product()
    }

    /// Makes the innermost axes of the batch rows, as long as every B broadcasts along them and the rows
    /// of every A go on evenly.
    fn fold(&mut self) {
        while let Some(&size) = self.batch.last() {
            let rows = self.rows as isize;
            // A single row goes on by whatever the batch's stride is.
            let goes_on =
                |place: &Place| rows == 1 || place.batch.last() == Some(&(place.row * rows));
            let fits = |matmul: &BoundMatMul| {
                matmul.b.batch.last() == Some(&0) && matmul.a.as_ref().is_none_or(goes_on)
            };
            if size != 1 && !self.layers.iter().flat_map(|layer| &layer.matmuls).all(fits) {
                return;
            }
            self.rows *= size;
            self.batch.pop();
            for matmul in self.layers.iter_mut().flat_map(|layer| &mut layer.matmuls) {
                matmul.b.batch.pop();
                if let Some(a) = &mut matmul.a
                    && let Some(stride) = a.batch.pop()
                    && rows == 1
                    && size != 1
                {
                    a.row = stride;
                }
            }
        }
    }
}

/// The shape of a layer, and its matmuls; `shapes` are those of the layers before it.
fn bind_matmuls(
    layers: &Layers,
    layer: &Layer,
    step: &BoundStep,
    shapes: &[Vec<usize>],
) -> Result<(Vec<usize>, Vec<BoundMatMul>)> {
    let mut shape: Option<Vec<usize>> = None;
    let mut matmuls = Vec::new();
    for matmul in &layer.matmuls {
        let b = &step.inputs[matmul.b];
        let a_shape = match matmul.a {
            Left::Input(number) => &step.inputs[number].shape,
            Left::Kept(number) => &shapes[layers.kept[number]],
        };
        let ([.., rows, depth], [.., own, columns]) = (&a_shape[..], &b.shape[..]) else {
            return Err(Error::Unsupported { what: "a matmul of vectors" });
        };
        same("columns of A", &[*own], &[*depth])?;
        let mut of_matmul =
            broadcast(&a_shape[..a_shape.len() - 2], &b.shape[..b.shape.len() - 2])?;
        let batch = of_matmul.clone();
        of_matmul.extend([*rows, *columns]);
        same("shape of a matmul", shape.as_ref().unwrap_or(&of_matmul), &of_matmul)?;
        let a = match matmul.a {
            Left::Input(number) => Some(place(&step.inputs[number], &batch)),
            Left::Kept(_) => None,
        };
        matmuls.push(BoundMatMul { depth: *depth, a, b: place(b, &batch) });
        shape = Some(of_matmul);
    }
    let shape = shape.ok_or(Error::Unsupported { what: "a layer of no matmuls" })?;
    Ok((shape, matmuls))
}

fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], axis: usize| {
        (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis])
    };
    let axes = (0..rank).map(|axis| match (size(a, axis), size(b, axis)) {
        (1, size) | (size, 1) => Ok(size),
        (expected, found) if expected == found => Ok(found),
        (expected, found) => Err(Error::Mismatch { what: "batch of a matmul", expected, found }),
    });
    axes.collect()
}

fn place(operand: &BoundOperand, batch: &[usize]) -> Place {
    let own = operand.shape.len() - 2;
    let missing = batch.len() - own;
    let stride = |axis: usize| match axis.checked_sub(missing) {
        Some(axis) if operand.shape[axis] != 1 => operand.strides[axis],
        _ => 0,
    };
    Place {
        offset: operand.offset,
        batch: (0..batch.len()).map(stride).collect(),
        row: operand.strides[own],
        column: operand.strides[own + 1],
    }
}

fn same(what: &'static str, expected: &[usize], found: &[usize]) -> Result<()> {
    let ranks = (expected.len(), found.len());
    let differ = expected.iter().zip(found).map(|(&a, &b)| (a, b)).chain([ranks]);
    match differ.into_iter().find(|(a, b)| a != b) {
        Some((expected, found)) => Err(Error::Mismatch { what, expected, found }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{BoundLayers, Following, Layers};
    use crate::bind::bind;
    use crate::cpu::kernels::matmul::{Matrix, Strides};
    use crate::cpu::kernels::packed::Packed;
    use crate::cpu::prepacked::PackedWeight;
    use graphene_frontend::dim::{Bindings, Dim};
    use graphene_frontend::dtype::DType;
    use graphene_frontend::graph::{Graph, ValueId};
    use graphene_frontend::op::{Binary, Op, Unary};
    use graphene_frontend::tensor::Tensor;
    use graphene_frontend::types::TensorType;
    use graphene_fusion::{Granularity, plan};
    use graphene_ir::target::Target;
    use std::sync::Arc;

    /// The one step that a graph is, bound; weights of the matmul, 24 × 48, may be prepacked.
    fn bound(graph: &Graph, packed: bool) -> BoundLayers {
        let bindings = Bindings::new();
        let program = plan(graph, &Target::cpu(2), Granularity::Fused, &bindings);
        let program = program.unwrap().program;
        let [step] = program.steps() else { panic!("{program}") };
        let mut prepacked = vec![Vec::new(); step.body.inputs().len()];
        if packed {
            let at = Strides { offset: 0, batch: &[], row: 48, column: 1 };
            let matrix = Packed::new(Matrix { data: &[0.5; 24 * 48], at }, 24, 48).unwrap();
            let mut nodes = step.body.nodes();
            let (_, matmul) = nodes.find(|(_, node)| matches!(node.op(), Op::MatMul)).unwrap();
            let mut inputs = step.body.inputs().iter();
            let number = inputs.position(|id| Some(id.value()) == matmul.inputs()[1]).unwrap();
            prepacked[number] = vec![PackedWeight::Reals(Arc::new(matrix))];
        }
        let layers = Layers::compile(&step.body, &prepacked).unwrap();
        let plan = bind(&program, &bindings).unwrap();
        BoundLayers::new(&layers, &plan.steps()[0]).unwrap()
    }

    fn input(graph: &mut Graph, name: &str, shape: &[usize]) -> ValueId {
        let shape = shape.iter().copied().map(Dim::from).collect();
        graph.add_input(name, TensorType::new(DType::F32, shape)).unwrap()
    }

    fn op(graph: &mut Graph, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        graph.add("y", op, &inputs).unwrap().value()
    }

    fn matmul(graph: &mut Graph, x: ValueId) -> ValueId {
        let w = Tensor::from_vec(vec![24, 48], vec![0.5_f32; 24 * 48]).unwrap();
        let w = graph.add_constant("w", w);
        op(graph, Op::MatMul, &[x, w])
    }

    /// A matmul of what is transposed to these sizes: how many matrices it is, and what is copied for that.
    fn transposed(sizes: [usize; 2], packed: bool) -> (usize, Vec<usize>) {
        let mut graph = Graph::new();
        let x = input(&mut graph, "x", &[sizes[1], sizes[0], 24]);
        let x = op(&mut graph, Op::Transpose(vec![1, 0, 2]), &[x]);
        let y = matmul(&mut graph, x);
        let y = op(&mut graph, Op::Unary(Unary::Tanh), &[y]);
        graph.add_output("y", y);
        let bound = bound(&graph, packed);
        (bound.matrices(), bound.copied)
    }

    /// Whether the kernel of a matmul of so many rows adds a bias and a residual, and its function; what is added to the
    /// matmul, of these shapes, is followed by ReLU. `None` where a loop does it.
    fn following(
        rows: usize,
        added: &[&[usize]],
        packed: bool,
    ) -> Option<(bool, bool, Option<super::Unary>)> {
        let mut graph = Graph::new();
        let x = input(&mut graph, "x", &[rows, 24]);
        let mut y = matmul(&mut graph, x);
        for (number, shape) in added.iter().enumerate() {
            let term = input(&mut graph, &format!("term {number}"), shape);
            y = op(&mut graph, Op::Binary(Binary::Add), &[y, term]);
        }
        let y = op(&mut graph, Op::Unary(Unary::Relu), &[y]);
        graph.add_output("y", y);
        let Following { bias, residual, function } = bound(&graph, packed).layers[0].following?;
        Some((bias.is_some(), residual.is_some(), function))
    }

    /// A bias and a residual are told apart by how they lie, and of a single row by their order.
    #[test]
    fn what_follows_is_part_of_the_matmul() {
        let relu = Some(super::Unary::Relu);
        let (bias, residual): (&[usize], &[usize]) = (&[48], &[16, 48]);
        assert_eq!(following(16, &[], true), Some((false, false, relu)));
        assert_eq!(following(16, &[bias], true), Some((true, false, relu)));
        assert_eq!(following(16, &[bias, residual], true), Some((true, true, relu)));
        assert_eq!(following(1, &[bias, &[1, 48]], true), Some((true, true, relu)));
        // In another order, twice, one number for all, a number for each row, and without prepacked weights.
        assert_eq!(following(16, &[residual, bias], true), None);
        assert_eq!(following(16, &[bias, bias], true), None);
        assert_eq!(following(16, &[&[1]], true), None);
        assert_eq!(following(16, &[&[16, 1]], true), None);
        assert_eq!(following(16, &[bias], false), None);
    }

    #[test]
    fn rows_that_lie_apart_are_copied_where_that_makes_fewer_matrices() {
        assert_eq!(transposed([197, 4], true), (1, vec![0]));
        // Many rows need no others, one row goes on by any stride, and what is packed for each tile is so anyway.
        assert_eq!(transposed([4, 197], true), (4, vec![]));
        assert_eq!(transposed([9, 1], true), (1, vec![]));
        assert_eq!(transposed([197, 4], false), (197, vec![]));
    }
}
