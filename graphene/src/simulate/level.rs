//! Levels: specs with a body whose kind says what they compute, compiled for the check of their instances.

use std::collections::HashSet;

use super::formula::{Check, Formula};
use super::place::{Place, Team};
use super::program::Program;
use crate::function::Value;
use crate::kernel::{Carry, Term, block_var};
use crate::{
    Agent, Binary, Cond, Expr, For, Fused, Kernel, Memory, Relation, Result, Spec, Step, Stmt, Var,
};

/// A spec with a body.
pub(super) struct Level<'k> {
    pub(super) spec: &'k Spec,
    /// The statement's number; the kernel itself has none.
    pub(super) number: Option<u32>,
    /// Its operands, outputs first.
    pub(super) operands: Vec<Array>,
    pub(super) threads: Team,
    /// The blocks of an instance, if it is not the own one's: none for all of the grid's.
    pub(super) blocks: Option<Option<Team>>,
    /// The numbers in its kind.
    pub(super) numbers: Vec<(&'k Expr, Formula)>,
    /// The variables that say which of its instances one is.
    pub(super) vars: Vec<(Var, Formula)>,
    /// What its kind makes of its operands.
    pub(super) meaning: Option<Fused>,
    /// Of each output, whether it is what it was, and something that is added.
    pub(super) adds: Vec<bool>,
    /// The roots of its outputs.
    pub(super) written: Vec<usize>,
    /// Why its instances cannot be checked.
    pub(super) unchecked: Option<Unchecked>,
    /// Of what a loop carries, what is compared.
    pub(super) form: Option<Fused>,
    /// Where its instances are always checked: at the loop's beginning and its end.
    pub(super) ends: Vec<Check>,
}

/// Why an instance is not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unchecked {
    /// Its kind does not say what it computes.
    Kind,
    /// Registers of several threads, of which nothing has told which elements each holds.
    Fragment,
    /// Each thread has its own view of an operand.
    View,
    /// Another block's shared memory.
    Peer,
    /// Its operands' shapes do not go together as its kind asks.
    Shape,
    /// All that the spec around it writes lies outside of its buffers.
    Outside,
    /// Some of its threads did not come to its end.
    Unfinished,
}

/// An operand with its elements in the order of its coordinates.
pub(super) struct Array {
    pub(super) place: Place,
    pub(super) shape: Vec<usize>,
    /// For each element, the last dimension fastest, its number in the place.
    pub(super) order: Vec<u32>,
    /// Whether it is in registers of several threads: which elements each holds is what values say.
    pub(super) spread: bool,
}

impl<'k> Level<'k> {
    /// Compiles a spec with a body. Fails with [`Error::Shape`](crate::Error::Shape) for sizes that are not fixed at launch.
    pub(super) fn of(program: &Program<'k>, spec: &'k Spec, at: Option<u32>) -> Result<Level<'k>> {
        let (kernel, scope) = (program.kernel, &program.scope);
        let mut level = Level {
            spec,
            number: at,
            operands: Vec::new(),
            threads: Team::of(kernel.threads(spec.threads), scope)?,
            blocks: at.is_none().then_some(None),
            numbers: Vec::new(),
            vars: Vec::new(),
            meaning: None,
            adds: Vec::new(),
            written: Vec::new(),
            unchecked: None,
            form: None,
            ends: Vec::new(),
        };
        let computes = spec.kind.meaning(&[], &[]).is_some();
        if spec.outs.is_empty() || !computes {
            level.unchecked = Some(Unchecked::Kind);
            return Ok(level);
        }
        let mut vars: Vec<Var> = Vec::new();
        for operand in spec.outs.iter().chain(&spec.ins) {
            let tensor = kernel.operand(operand)?;
            let root = program.root_of(operand.tensor)?;
            let place = Place::of(&tensor, &program.roots[root], 1, scope)?;
            let alone = level.threads.size == 1 && at.is_some();
            let spread = tensor.memory == Memory::Registers && !alone;
            if tensor.peer.is_some() {
                level.unchecked = Some(Unchecked::Peer);
            }
            for var in tensor.view.start().iter().flat_map(Expr::vars) {
                if !vars.contains(&var) {
                    vars.push(var);
                }
            }
            let sizes = tensor.view.dims().map(|dim| scope.fixed(&dim.size()));
            let sizes = sizes.map(|size| Ok(size?.try_into().unwrap_or(0)));
            let shape: Vec<usize> = sizes.collect::<Result<_>>()?;
            level.operands.push(Array { order: order(&shape), place, shape, spread });
        }
        let shared = level.operands.iter().any(|of| of.place.memory != Memory::Global);
        let blocks = Team::of(kernel.threads(spec.blocks), scope)?;
        if spec.blocks == kernel.grid {
            // Each block does so by itself where operands are its own.
            if !shared && !vars.iter().any(|var| program.of_block.contains(var)) {
                level.blocks = Some(None);
            }
        } else if blocks.size > 1 {
            if level.operands.iter().any(|of| of.place.memory == Memory::Shared) {
                level.unchecked = Some(Unchecked::Peer);
            }
            level.blocks = Some(Some(blocks));
        }
        let outs = &level.operands[..spec.outs.len()];
        level.written = outs.iter().map(|of| of.place.number).collect();
        let shape = |at: usize| level.operands.get(at).map_or(&[][..], |of| &of.shape);
        level.meaning = spec.kind.meaning(shape(0), shape(spec.outs.len()));
        level.adds = level.meaning.iter().flat_map(adds).collect();
        for expr in spec.kind.exprs() {
            level.numbers.push((expr, scope.compile(expr)?));
        }
        for var in vars.into_iter().filter(|var| scope.slot(var).is_some()) {
            let value = scope.compile(&Expr::from(&var))?;
            level.vars.push((var, value));
        }
        Ok(level)
    }

    /// The same as what a loop carries. Fails as [`of`](Level::of) does.
    pub(super) fn carried(
        mut self,
        program: &Program<'k>,
        carry: &'k Carry,
        (at, looped): (Var, &For),
    ) -> Result<Level<'k>> {
        let (scope, counter) = (&program.scope, Expr::from(&at));
        let states = (0..carry.spec.outs.len()).map(Fused::input);
        self.form = Some(carry.form.clone().unwrap_or_else(|| Fused::all(states)));
        for expr in carry.form.iter().flat_map(Fused::exprs) {
            self.numbers.push((expr, scope.compile(expr)?));
        }
        let first = Cond::equal(counter.clone(), looped.first.clone());
        let last = Cond::new(counter.clone(), Relation::AtLeast, looped.end.clone());
        self.ends = vec![scope.check(&first)?, scope.check(&last)?];
        self.vars.retain(|row| row.0 != at);
        self.vars.push((at, scope.compile(&counter)?));
        Ok(self)
    }

    /// Whether all that it writes lies outside of its buffers, where its operands begin there.
    pub(super) fn is_outside(&self, mut starts: &[i64]) -> bool {
        self.operands[..self.spec.outs.len()].iter().all(|of| {
            let (own, rest) = starts.split_at(of.place.starts.len());
            starts = rest;
            let beyond = own.iter().zip(&of.place.axes).any(|(start, axis)| *start >= axis.0);
            of.place.memory == Memory::Global && beyond
        })
    }

    /// How many threads carry it out, of all its blocks.
    pub(super) fn agents(&self) -> usize {
        let blocks = self.blocks.as_ref().and_then(Option::as_ref).map_or(1, |team| team.size);
        (self.threads.size * blocks) as usize
    }

    /// Room for what threads hold of operands in registers of several of them.
    pub(super) fn held(&self) -> Vec<Vec<f64>> {
        let count = |of: &Array| if of.spread { self.agents() * of.order.len() } else { 0 };
        self.operands.iter().map(|of| vec![f64::NAN; count(of)]).collect()
    }

    /// The number of a thread among all of an instance's, which is given relative to the first of its blocks and threads.
    pub(super) fn rank(&self, block: i64, thread: i64) -> usize {
        let blocks = self.blocks.as_ref().and_then(Option::as_ref);
        let block = blocks.map_or(0, |team| team.rank(block));
        block * self.threads.size as usize + self.threads.rank(thread)
    }
}

/// Of each output, whether it is what it was, and something that is added.
fn adds(meaning: &Fused) -> impl Iterator<Item = bool> {
    (0..).zip(meaning.outputs()).map(|(output, value)| {
        let is_old = |x: &Value| meaning.steps()[x.index()] == Term::Old(output);
        let term = &meaning.steps()[value.index()];
        matches!(term, Term::Step(Step::Binary(Binary::Add, x, y)) if is_old(x) || is_old(y))
    })
}

/// For each element of a shape, the last dimension fastest, its number with the first dimension fastest.
fn order(shape: &[usize]) -> Vec<u32> {
    let (mut numbers, mut scale) = (vec![0], 1);
    for &size in shape {
        let along = |number: u32| (0..size).map(move |i| number + (i * scale) as u32);
        numbers = numbers.into_iter().flat_map(along).collect();
        scale *= size;
    }
    numbers
}

/// The variables whose values depend on the own block.
pub(super) fn of_block(kernel: &Kernel) -> HashSet<Var> {
    let (mut all, mut before) = (HashSet::from([block_var()]), 0);
    while before < all.len() {
        before = all.len();
        kernel.each_stmt(&mut |stmt| {
            let depends = |expr: &Expr| all.iter().any(|var| expr.mentions(var));
            match stmt {
                Stmt::Let(var, value) if depends(value) => all.extend([var.clone()]),
                Stmt::For(of) if depends(&of.first) => {
                    all.extend([of.var.clone(), For::head(of.var.name(), &of.end, &of.step)]);
                }
                Stmt::Indices(vars, of) if kernel.threads(*of).agent == Agent::Block => {
                    all.extend(vars.iter().cloned());
                }
                _ => {}
            }
        });
    }
    all
}
