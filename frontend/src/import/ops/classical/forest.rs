//! Decision trees: checked, then walked by all samples at once, a level at a time.

use super::samples;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::eval::number;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Reason};
use crate::op::{Binary, Combine, Op, ReduceOp, Unary};
use crate::tensor::Tensor;

/// A tree deeper than this is refused: every level is some operations.
const MAX_DEPTH: usize = 1000;

/// When a branch goes to its true side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Test {
    /// The feature compared with the threshold.
    Compare(Binary),
    /// The feature differs from the threshold.
    Differs,
    /// The feature is one of the branch's members.
    Member,
}

/// A place in a forest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// A branch, by its number.
    Branch(usize),
    /// A leaf, by its number.
    Leaf(usize),
}

/// A node that is no leaf.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) feature: i64,
    pub(super) test: Test,
    pub(super) threshold: f64,
    /// Where it goes if the test holds.
    pub(super) yes: Place,
    /// Where it goes if not.
    pub(super) no: Place,
    /// A feature that is NaN goes where the test holds.
    pub(super) missing_holds: bool,
    /// For [`Test::Member`].
    pub(super) members: Vec<f64>,
}

/// Trees whose places exist, without cycles.
pub(super) struct Forest {
    roots: Vec<Place>,
    branches: Vec<Branch>,
    /// For each leaf, which targets it adds how much to.
    leaves: Vec<Vec<(usize, f64)>>,
    /// Branches on the longest way.
    depth: usize,
}

/// How the trees' weights for a target become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}

/// Which way a search for cycles has seen a branch.
#[derive(Clone, Copy)]
enum Seen {
    No,
    Open,
    Done(usize),
}

impl Forest {
    /// Checks that places exist and that every way ends.
    pub(super) fn new(
        c: &Context<'_, '_>,
        roots: Vec<Place>,
        branches: Vec<Branch>,
        leaves: Vec<Vec<(usize, f64)>>,
    ) -> Result<Self, OpError> {
        let exists = |place: &Place| match *place {
            Place::Branch(at) => at < branches.len(),
            Place::Leaf(at) => at < leaves.len(),
        };
        let sides = branches.iter().flat_map(|branch| [&branch.yes, &branch.no]);
        if !roots.iter().chain(sides).all(exists) {
            return Err(c.invalid("a branch leads to a node that there is not"));
        }
        if roots.is_empty() {
            return Err(c.invalid("there are no trees"));
        }
        if let Some(branch) = branches.iter().find(|branch| branch.feature < 0) {
            let feature = branch.feature;
            return Err(c.invalid(format!("nodes_featureids must not be negative; got {feature}")));
        }
        let mut forest = Self { roots, branches, leaves, depth: 0 };
        forest.depth = forest.longest(c)?;
        if forest.depth > MAX_DEPTH {
            let depth = forest.depth;
            return Err(c.unsupported(format!("a tree {depth} branches deep; at most {MAX_DEPTH}")));
        }
        Ok(forest)
    }

    /// The number of trees.
    pub(super) fn trees(&self) -> usize {
        self.roots.len()
    }

    /// All weights of all leaves with their targets.
    pub(super) fn weights(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.leaves.iter().flatten().copied()
    }

    /// The length of the longest way from a root, in branches, found without recursion.
    fn longest(&self, c: &Context<'_, '_>) -> Result<usize, OpError> {
        let mut seen = vec![Seen::No; self.branches.len()];
        let mut longest = 0;
        for &root in &self.roots {
            let mut stack = vec![root];
            while let Some(&place) = stack.last() {
                let Place::Branch(at) = place else {
                    stack.pop();
                    continue;
                };
                let sides = [self.branches[at].yes, self.branches[at].no];
                let height = |side: Place| match side {
                    Place::Leaf(_) => Some(0),
                    Place::Branch(side) => match seen[side] {
                        Seen::Done(height) => Some(height),
                        Seen::No | Seen::Open => None,
                    },
                };
                match (seen[at], sides.map(height)) {
                    (Seen::Done(_), _) => {
                        stack.pop();
                    }
                    (_, [Some(yes), Some(no)]) => {
                        seen[at] = Seen::Done(1 + yes.max(no));
                        stack.pop();
                    }
                    // What is open is on the way here.
                    (Seen::Open, _) => {
                        return Err(c.invalid("a branch of a tree leads back to itself"));
                    }
                    (Seen::No, _) => {
                        seen[at] = Seen::Open;
                        stack.extend(sides);
                    }
                }
            }
            if let Place::Branch(root) = root
                && let Seen::Done(height) = seen[root]
            {
                longest = longest.max(height);
            }
        }
        Ok(longest)
    }

    /// A place's number: leaves first.
    fn number(&self, place: Place) -> i64 {
        match place {
            Place::Leaf(at) => at as i64,
            Place::Branch(at) => (self.leaves.len() + at) as i64,
        }
    }

    /// A table of all places: `leaf` for leaves, and this of branches.
    fn table(
        &self,
        c: &mut Context<'_, '_>,
        dtype: DType,
        leaf: f64,
        of: impl Fn(&Branch) -> f64,
    ) -> Result<ValueId, OpError> {
        let leaves = std::iter::repeat_n(leaf, self.leaves.len());
        let values: Vec<f64> = leaves.chain(self.branches.iter().map(of)).collect();
        reals(c, dtype, vec![values.len()], &values)
    }

    /// A table of where all places lead; leaves lead to themselves.
    fn links(
        &self,
        c: &mut Context<'_, '_>,
        of: impl Fn(&Branch) -> Place,
    ) -> Result<ValueId, OpError> {
        let leaves = 0..self.leaves.len() as i64;
        let branches = self.branches.iter().map(|branch| self.number(of(branch)));
        let links: Vec<i64> = leaves.chain(branches).collect();
        let links = Tensor::from_vec(vec![links.len()], links)?;
        Ok(c.constant(links))
    }

    /// `x[n, features] → i64[n, trees]`: the leaf that each sample comes to in each tree. Comparisons are in `dtype`.
    pub(super) fn walk(
        &self,
        c: &mut Context<'_, '_>,
        x: ValueId,
        dtype: DType,
    ) -> Result<ValueId, OpError> {
        let x = samples(c, x, dtype)?;
        let [rows, features] = <[Dim; 2]>::try_from(c.shape(x)).expect("samples have two dims");
        let most = self.branches.iter().map(|branch| branch.feature).max().unwrap_or(-1);
        if features.known().is_some_and(|features| most >= features) {
            return Err(c.invalid(format!("a tree tests feature {most}, of {features} features")));
        }
        let roots: Vec<i64> = self.roots.iter().map(|&root| self.number(root)).collect();
        let roots = Tensor::from_vec(vec![1, roots.len()], roots)?;
        let roots = c.constant(roots);
        let mut at = c.expand(roots, vec![rows, Dim::from(self.trees())])?;
        if self.depth == 0 {
            return Ok(at);
        }
        let feature = self.table(c, DType::I64, 0.0, |branch| branch.feature as f64)?;
        let (yes, no) = (self.links(c, |branch| branch.yes)?, self.links(c, |branch| branch.no)?);
        let tests = Tests::of(self, c, dtype)?;
        for _ in 0..self.depth {
            let feature = pick(c, feature, at)?;
            let value = c.add(Op::GatherElements { axis: 1 }, &[x, feature])?;
            let holds = tests.hold(c, value, at)?;
            let (yes, no) = (pick(c, yes, at)?, pick(c, no, at)?);
            at = c.select(holds, yes, no)?;
        }
        Ok(at)
    }

    /// `i64[n, trees] → [n, targets]`: what the leaves say together.
    pub(super) fn scores(
        &self,
        c: &mut Context<'_, '_>,
        leaves: ValueId,
        targets: usize,
        aggregate: Aggregate,
        dtype: DType,
    ) -> Result<ValueId, OpError> {
        let (none, combine) = match aggregate {
            Aggregate::Sum | Aggregate::Average => (0.0, Combine::Add),
            Aggregate::Min => (f64::INFINITY, Combine::Min),
            Aggregate::Max => (f64::NEG_INFINITY, Combine::Max),
        };
        // A row a leaf of as many weights as any has; what is left over changes nothing.
        let width = self.leaves.iter().map(Vec::len).max().unwrap_or(0).max(1);
        c.take_bytes(self.leaves.len().saturating_mul(width).saturating_mul(16))?;
        let mut places = vec![0_i64; self.leaves.len() * width];
        let mut weights = vec![none; self.leaves.len() * width];
        for (leaf, row) in self.leaves.iter().enumerate() {
            for (i, &(target, weight)) in row.iter().enumerate() {
                (places[leaf * width + i], weights[leaf * width + i]) = (target as i64, weight);
            }
        }
        let shape = vec![self.leaves.len(), width];
        let places = Tensor::from_vec(shape.clone(), places)?;
        let (places, weights) = (c.constant(places), reals(c, dtype, shape, &weights)?);
        let rows = c.shape(leaves)[0].clone();
        let said = vec![rows.clone(), Dim::from(self.trees() * width)];
        let weights = pick(c, weights, leaves)?;
        let weights = c.reshape(weights, said.clone())?;
        let nothing = c.scalar(dtype, none)?;
        let nothing = c.expand(nothing, vec![rows, Dim::from(targets)])?;
        let mut scores = if targets == 1 {
            let op = match combine {
                Combine::Min => ReduceOp::Min,
                Combine::Max => ReduceOp::Max,
                Combine::Add | Combine::Mul | Combine::Replace => ReduceOp::Sum,
            };
            c.reduce(op, weights, vec![1], true)?
        } else {
            let places = pick(c, places, leaves)?;
            let places = c.reshape(places, said)?;
            c.add(Op::ScatterElements { axis: 1, combine }, &[nothing, places, weights])?
        };
        if none != 0.0 {
            // A target that no tree says anything about.
            let untouched = c.binary(Binary::Equal, scores, nothing)?;
            let zero = c.scalar(dtype, 0.0)?;
            scores = c.select(untouched, zero, scores)?;
        }
        match aggregate {
            Aggregate::Average => c.scaled(scores, 1.0 / self.trees() as f64),
            Aggregate::Sum | Aggregate::Min | Aggregate::Max => Ok(scores),
        }
    }
}

/// What is needed to test features, as tables of all places.
struct Tests {
    threshold: ValueId,
    /// The kinds of tests that there are, each with a table of where it is made, except for the first.
    kinds: Vec<(Test, Option<ValueId>)>,
    members: Option<ValueId>,
    missing: Option<ValueId>,
}

impl Tests {
    fn of(forest: &Forest, c: &mut Context<'_, '_>, dtype: DType) -> Result<Self, OpError> {
        let threshold = forest.table(c, dtype, 0.0, |branch| branch.threshold)?;
        let mut kinds: Vec<(Test, Option<ValueId>)> = Vec::new();
        for branch in &forest.branches {
            if kinds.iter().any(|(test, _)| *test == branch.test) {
                continue;
            }
            let made = |other: &Branch| f64::from(other.test == branch.test);
            let table = match kinds.len() {
                0 => None,
                _ => Some(forest.table(c, DType::Bool, 0.0, made)?),
            };
            kinds.push((branch.test, table));
        }
        let members = match kinds.iter().any(|(test, _)| *test == Test::Member) {
            true => Some(members(forest, c, dtype)?),
            false => None,
        };
        let missing = match forest.branches.iter().any(|branch| branch.missing_holds) {
            true => Some(forest.table(c, DType::Bool, 0.0, |b| f64::from(b.missing_holds))?),
            false => None,
        };
        Ok(Self { threshold, kinds, members, missing })
    }

    /// Whether the tests of the places `at` hold for these values.
    fn hold(
        &self,
        c: &mut Context<'_, '_>,
        value: ValueId,
        at: ValueId,
    ) -> Result<ValueId, OpError> {
        let threshold = pick(c, self.threshold, at)?;
        let mut holds = None;
        for &(test, made) in &self.kinds {
            let this = match test {
                Test::Compare(binary) => c.binary(binary, value, threshold)?,
                Test::Differs => {
                    let equal = c.binary(Binary::Equal, value, threshold)?;
                    c.unary(Unary::Not, equal)?
                }
                Test::Member => self.is_member(c, value, at)?,
            };
            holds = Some(match (holds, made) {
                (Some(others), Some(made)) => {
                    let made = pick(c, made, at)?;
                    c.select(made, this, others)?
                }
                _ => this,
            });
        }
        let holds = holds.ok_or_else(|| c.invalid("there are no branches"))?;
        let Some(missing) = self.missing else { return Ok(holds) };
        let is_missing = c.unary(Unary::IsNan, value)?;
        let missing = pick(c, missing, at)?;
        let missing = c.binary(Binary::And, is_missing, missing)?;
        c.binary(Binary::Or, holds, missing)
    }

    fn is_member(
        &self,
        c: &mut Context<'_, '_>,
        value: ValueId,
        at: ValueId,
    ) -> Result<ValueId, OpError> {
        let Some(members) = self.members else { return Err(c.invalid("there are no members")) };
        let members = pick(c, members, at)?;
        let value = c.unsqueeze(value, &[2])?;
        let equal = c.binary(Binary::Equal, value, members)?;
        c.reduce(ReduceOp::Max, equal, vec![2], false)
    }
}

/// A row a place of as many members as any has; NaN, which equals nothing, fills the rest.
fn members(forest: &Forest, c: &mut Context<'_, '_>, dtype: DType) -> Result<ValueId, OpError> {
    let width = forest.branches.iter().map(|branch| branch.members.len()).max().unwrap_or(0).max(1);
    let count = forest.leaves.len() + forest.branches.len();
    c.take_bytes(count.saturating_mul(width).saturating_mul(8))?;
    let mut table = vec![f64::NAN; count * width];
    for (i, branch) in forest.branches.iter().enumerate() {
        let row = (forest.leaves.len() + i) * width;
        table[row..row + branch.members.len()].copy_from_slice(&branch.members);
    }
    reals(c, dtype, vec![count, width], &table)
}

/// Rows of a table at these places.
fn pick(c: &mut Context<'_, '_>, table: ValueId, at: ValueId) -> Result<ValueId, OpError> {
    c.add(Op::Gather { axis: 0 }, &[table, at])
}

fn reals(
    c: &mut Context<'_, '_>,
    dtype: DType,
    shape: Vec<usize>,
    values: &[f64],
) -> Result<ValueId, OpError> {
    let tensor = number::from_reals(dtype, shape, values, true)
        .map_err(|error| Reason::Operator(error.to_string()))?;
    Ok(c.constant(tensor))
}
