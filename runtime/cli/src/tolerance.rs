//! How far outputs may be apart: as the command line says, or by how often values are rounded.

use crate::args::Data;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::op::Op;
use graphene_ir::target::{Precision, Target};

/// Tolerances of what is computed in single precision, where none are given. The absolute one grows with the
/// [`median_magnitude`] of elements above 1: a sum of large terms that comes out small is as far off as others.
const SINGLE: Bound = Bound { rtol: 1e-3, atol: 1e-4 };

/// `|a - b| ≤ atol + rtol·|b|`, for elements that are real numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Bound {
    /// Relative to the expected element.
    pub(crate) rtol: f64,
    /// Absolute.
    pub(crate) atol: f64,
}

/// The largest relative change by which a number becomes one with the 11 significant bits of TF32: some instructions cut
/// what they do not see.
const TF32: f64 = 1.0 / 1024.0;

/// The standard deviation of what a byte is off, over the size of such numbers: a step is a 255th of the range, which is
/// about eight times the root of their mean square, and the error lies anywhere in a step, so that it is a root of 12 less.
const BYTE: f64 = 1.0 / 128.0;

/// What two tensors are compared by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Tolerance {
    /// The same for all tensors.
    Stated(Bound),
    /// That of single precision, relative to the expected element so much.
    Single { rtol: f64 },
    /// Values are rounded to half precision, or operands of matmuls to TF32 or bf16, on both sides: the standard deviation of
    /// the difference of two elements, over the size of the tensor's elements.
    Rounded(f64),
}

/// What is rounded to fewer bits than those of single precision.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Rounded {
    /// All values, by at most this part of them: they are of half precision.
    Values(f64),
    /// The operands of matmuls, by at most this part of them: to TF32, or to bf16.
    MatMuls(f64),
    /// What becomes bytes: the model is quantised.
    Bytes,
}

impl Rounded {
    /// Values of such elements, if they are of half precision.
    pub(crate) fn half(dtype: DType) -> Option<Self> {
        unit(dtype).map(Self::Values)
    }

    /// The largest relative change.
    fn unit(self) -> f64 {
        match self {
            Self::Values(unit) | Self::MatMuls(unit) => unit,
            Self::Bytes => BYTE,
        }
    }

    /// Operands of matmuls, if those of single precision are rounded on this target.
    pub(crate) fn matmuls(target: &Target) -> Option<Self> {
        let unit = match target.single() {
            Precision::Tf32 => Some(TF32),
            Precision::Bf16 => unit(DType::BF16),
            Precision::F32 | Precision::F16 => None,
        };
        unit.map(Self::MatMuls)
    }

    /// Bytes, if the model makes any of real numbers.
    pub(crate) fn bytes(graph: &Graph) -> Option<Self> {
        graph.nodes().any(|(_, node)| Self::Bytes.by(node.op()) > 0).then_some(Self::Bytes)
    }

    /// How often an operation rounds on one path.
    fn by(self, op: &Op) -> usize {
        match (self, op) {
            (Self::Values(_), op) => usize::from(rounds(op)),
            (Self::MatMuls(_), Op::MatMul | Op::Conv(_)) => 2,
            (Self::MatMuls(_), Op::Attention(_)) => 4,
            (Self::MatMuls(_), _) => 0,
            (Self::Bytes, Op::Cast { to: DType::I8 | DType::U8, .. }) => 1,
            (Self::Bytes, _) => 0,
        }
    }
}

impl Tolerance {
    /// The tolerance of a run of `graph`, in which this is `rounded`.
    ///
    /// What half precision may differ by is derived here, and only here. Storing a value as f16 changes it by at most
    /// `u = 2⁻¹¹` of it, as bf16 by `u = 2⁻⁸`; sums are single precision, which adds next to nothing. A value of an
    /// output has been through `d` roundings, the operations of the longest path to it that round. Taken as
    /// independent, and of the size of the values about them, they add up to an error whose standard deviation is at
    /// most `u·√d` of the values' size, and `u·√(2d)` for a difference of two that are rounded so. Of `n` such
    /// differences the largest is about `√(2·ln n)` deviations. So `|a - b| ≤ f·(rms(b) + |b|)` with
    /// `f = u·√(2d)·√(2·ln n)`, where an element is either of the tensor's usual size or larger.
    ///
    /// Of TF32, and of bf16 on a CPU, `d` counts both operands of each matmul on the path. Of a quantised model it counts what becomes bytes: sums
    /// in another order fall to the other side of a step here and there, and behind some layers steps differ at random.
    pub(crate) fn new(given: &Data, graph: &Graph, rounded: Option<Rounded>) -> Self {
        let rtol = given.rtol.unwrap_or(SINGLE.rtol);
        let stated = given.rtol.is_some() || given.atol.is_some();
        let rounded = rounded.map(|rounded| (rounded.unit(), roundings(graph, rounded)));
        match rounded.filter(|(_, roundings)| !stated && *roundings > 0) {
            Some((unit, roundings)) => Self::rounded(unit, roundings),
            None => match given.atol {
                Some(atol) => Self::Stated(Bound { rtol, atol }),
                None => Self::Single { rtol },
            },
        }
    }

    fn rounded(unit: f64, roundings: usize) -> Self {
        Self::Rounded(unit * (2.0 * roundings as f64).sqrt())
    }

    /// The tolerance for a tensor of these elements.
    pub(crate) fn of<'a>(
        &self,
        expected: impl Fn() -> Box<dyn Iterator<Item = f64> + 'a>,
    ) -> Bound {
        match *self {
            Self::Stated(bound) => bound,
            Self::Single { rtol } => {
                Bound { rtol, atol: SINGLE.atol * median_magnitude(&expected).max(1.0) }
            }
            Self::Rounded(deviation) => {
                let count = expected().count().max(2) as f64;
                let factor = deviation * (2.0 * count.ln()).sqrt();
                let size = size(expected());
                Bound { rtol: factor, atol: factor * size }
            }
        }
    }

    /// The tolerance for what a step inside a model stores, of real numbers or others: there is no telling how large
    /// its elements are, so that the absolute part grows with them.
    pub(crate) fn of_step(&self, real: bool, expected: &[f64]) -> Bound {
        if !real {
            return Bound { rtol: 0.0, atol: 0.0 };
        }
        let by_size = |bound: Bound| Bound {
            atol: bound.atol * size(expected.iter().copied()).max(1.0),
            ..bound
        };
        match *self {
            Self::Stated(bound) => by_size(bound),
            Self::Single { rtol } => by_size(Bound { rtol, ..SINGLE }),
            Self::Rounded(_) => self.of(|| Box::new(expected.iter().copied())),
        }
    }
}

/// The root of the mean square of the finite ones among some numbers.
fn size(numbers: impl Iterator<Item = f64>) -> f64 {
    let finite = numbers.filter(|x| x.is_finite());
    let (count, squares) = finite.fold((0_usize, 0.0), |(n, sum), x| (n + 1, sum + x * x));
    (squares / count.max(1) as f64).sqrt()
}

/// The median of the magnitudes of finite numbers, of some 65,536 evenly taken elements where there are more: large numbers that
/// mask fewer than half do not move it, and where most are zero it is zero.
fn median_magnitude<'a>(numbers: impl Fn() -> Box<dyn Iterator<Item = f64> + 'a>) -> f64 {
    let apart = numbers().count().div_ceil(1 << 16).max(1);
    let taken = numbers().step_by(apart).filter(|x| x.is_finite());
    let mut sizes: Vec<f64> = taken.map(f64::abs).collect();
    let middle = sizes.len() / 2;
    if sizes.is_empty() { 0.0 } else { *sizes.select_nth_unstable_by(middle, f64::total_cmp).1 }
}

/// The half-precision type that a model computes in by itself, if it does: those of its first value that is one.
pub(crate) fn own_half_type(graph: &Graph) -> Option<DType> {
    let mut types = graph.nodes().flat_map(|(_, node)| node.outputs()).map(|ty| ty.dtype);
    types.find(|&dtype| unit(dtype).is_some())
}

/// The largest relative change by which a number becomes one of this type, for half precision.
fn unit(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F16 => Some(2_f64.powi(-11)),
        DType::BF16 => Some(2_f64.powi(-8)),
        _ => None,
    }
}

/// How often values are rounded on the longest path through a graph, by operations that compute real numbers.
fn roundings(graph: &Graph, rounded: Rounded) -> usize {
    let mut depth: Vec<usize> = Vec::with_capacity(graph.len());
    for (_, node) in graph.nodes() {
        let before = node.inputs().iter().flatten().map(|value| depth[value.node.index()]);
        let before = before.max().unwrap_or(0);
        let real = node.outputs().iter().any(|ty| ty.dtype.is_float());
        let counts = real || rounded == Rounded::Bytes;
        depth.push(before + if counts { rounded.by(node.op()) } else { 0 });
    }
    depth.into_iter().max().unwrap_or(0)
}

/// Whether an operation on real numbers gives others than those it was given.
fn rounds(op: &Op) -> bool {
    match op {
        // What is given is rounded as it is stored; of functions of elements, each result is taken to be.
        Op::Input | Op::Unary(_) | Op::Binary(_) => true,
        _ => !op.info().exact,
    }
}

#[cfg(test)]
mod tests {
    use super::{Rounded, Tolerance, roundings};
    use graphene_frontend::dtype::DType;
    use graphene_frontend::graph::Graph;
    use graphene_frontend::op::{Op, Unary};

    #[test]
    fn views_round_nothing() {
        let mut graph = Graph::new();
        let x = graph.add_input("x", "f32[n, 3]".parse().unwrap()).unwrap();
        let y = graph.add("exp", Op::Unary(Unary::Exp), &[Some(x)]).unwrap().value();
        let z = graph.add("t", Op::Transpose(vec![1, 0]), &[Some(y)]).unwrap().value();
        graph.add("log", Op::Unary(Unary::Log), &[Some(z)]).unwrap();
        // The input, the exponential and the logarithm.
        assert_eq!(roundings(&graph, Rounded::Values(0.5)), 3);
        assert_eq!(roundings(&graph, Rounded::MatMuls(0.5)), 0);
    }

    #[test]
    fn quantised_models_are_rounded_to_bytes() {
        let mut graph = Graph::new();
        let mut x = graph.add_input("x", "f32[n, 3]".parse().unwrap()).unwrap();
        assert_eq!(Rounded::bytes(&graph), None);
        for to in [DType::U8, DType::F32, DType::I8, DType::F32] {
            let cast = Op::Cast { to, saturate: true };
            x = graph.add("cast", cast, &[Some(x)]).unwrap().value();
        }
        assert_eq!(Rounded::bytes(&graph), Some(Rounded::Bytes));
        assert_eq!(roundings(&graph, Rounded::Bytes), 2);
    }

    #[test]
    fn sums_of_single_precision_may_differ_by_their_size() {
        const SINGLE: Tolerance = Tolerance::Single { rtol: super::SINGLE.rtol };
        let of = |one: f64| {
            let elements = || [one, -one, one, 0.0, f64::NAN, -1e9].into_iter();
            SINGLE.of(|| Box::new(elements())).atol / super::SINGLE.atol
        };
        assert_eq!([0.0, 0.5, 1.0, 64.0].map(of), [1.0, 1.0, 1.0, 64.0]);
        let zeros = || Box::new([0.0, 0.0, 1e9].into_iter()) as Box<dyn Iterator<Item = f64>>;
        assert_eq!(SINGLE.of(zeros), super::SINGLE);
        let none = || Box::new(std::iter::empty()) as Box<dyn Iterator<Item = f64>>;
        assert_eq!(SINGLE.of(none), super::SINGLE);
        // Within models, with the root of the mean square.
        assert_eq!(SINGLE.of_step(true, &[0.0, 0.0, 0.0, 64.0]).atol, 32.0 * super::SINGLE.atol);
    }

    #[test]
    fn tolerances_grow_with_roundings_and_elements() {
        let bound = |roundings, elements: usize| {
            let ones =
                || Box::new(std::iter::repeat_n(1.0, elements)) as Box<dyn Iterator<Item = _>>;
            Tolerance::rounded(2_f64.powi(-11), roundings).of(ones)
        };
        let small = bound(2, 100);
        assert_eq!(small.rtol, small.atol);
        assert!((small.rtol - 2_f64.powi(-11) * 2.0 * (2.0 * 100_f64.ln()).sqrt()).abs() < 1e-12);
        assert!(bound(8, 100).rtol > 1.9 * small.rtol);
        assert!(bound(2, 10_000).rtol > 1.4 * small.rtol);
    }
}
