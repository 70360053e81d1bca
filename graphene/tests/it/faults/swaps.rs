//! Which statements may not change places.

use std::collections::BTreeSet;

use graphene_ir::index::Expr;
use graphene_ir::kernel::{
    Completion, Group, Kernel, Kind, Operand, Ring, Spec, Stmt, TensorId, Test,
};
use graphene_ir::layout::IntTuple;
use graphene_ir::tensor::{Memory, ViewOp};

use super::sites::{leaf, synchronises};

/// What statements write and read, and whether others' order depends on theirs.
#[derive(Default)]
struct Effects<'k> {
    writes: Vec<&'k Operand>,
    reads: Vec<&'k Operand>,
    orders: bool,
    /// Whether some of it completes later.
    later: bool,
    /// Whether it is about kernels before.
    previous: bool,
}

/// Whether a spec reads what it writes.
fn adds(spec: &Spec) -> bool {
    matches!(spec.kind, Kind::MatMul { accumulate: true } | Kind::Reduction(_))
}

fn effects<'k>(kernel: &Kernel, stmt: &'k Stmt, sum: &mut Effects<'k>) {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => {
            sum.writes.extend(&spec.outs);
            sum.reads.extend(&spec.ins);
            if adds(spec) {
                sum.reads.extend(&spec.outs);
            }
            sum.orders |= synchronises(kernel, spec);
            sum.later |= spec.completion != Completion::Now;
            sum.previous |= matches!(spec.kind, Kind::GridDependencyWait | Kind::LaunchDependents);
        }
        Stmt::Advance(_) => sum.orders = true,
        _ => stmt.body().iter().for_each(|stmt| effects(kernel, stmt, sum)),
    }
}

/// Whether two statements, one behind the other, may mean something else the other way round.
pub(super) fn depend(kernel: &Kernel, first: &Stmt, second: &Stmt) -> bool {
    match (first, second) {
        (Stmt::Advance(ring), other) | (other, Stmt::Advance(ring)) => {
            return mentions(kernel, other, ring);
        }
        // One of them is carried out, never both.
        (Stmt::If(Test::Inside(_), _), Stmt::If(Test::All(_), _)) => return false,
        (Stmt::Role(one, first, end, _), Stmt::Role(other, from, to, _))
            if one == other && (end <= from || to <= first) =>
        {
            return false;
        }
        (Stmt::Spec(one), Stmt::Spec(other)) if one.body.is_none() && other.body.is_none() => {
            // Two terms of one sum.
            if adds(one) && one.kind == other.kind && one.outs == other.outs {
                return one.completion != other.completion;
            }
            // Both have to be passed.
            if matches!((&one.kind, &other.kind), (Kind::Wait(..), Kind::Wait(..))) {
                return false;
            }
            // Copies that one barrier counts, in any order.
            let copies = [one, other].map(|of| matches!(of.completion, Completion::Signals(_)));
            if copies == [true; 2] {
                return overlap(kernel, &one.outs[0], &other.outs[0]);
            }
        }
        _ => {}
    }
    for (one, other) in [(first, second), (second, first)] {
        // It closes what was issued before it.
        if let Some(Kind::Commit(group)) = leaf(one).map(|spec| &spec.kind) {
            return concerns(other, *group);
        }
    }
    let [a, b] = [first, second].map(|stmt| {
        let mut sum = Effects::default();
        effects(kernel, stmt, &mut sum);
        sum
    });
    let touch =
        |a: &[&Operand], b: &[&Operand]| a.iter().any(|a| b.iter().any(|b| overlap(kernel, a, b)));
    if [first, second].into_iter().all(|stmt| only_inits(kernel, stmt)) {
        return touch(&a.writes, &b.writes);
    }
    let (shared, later) = (shared_parameters(kernel), asynchronous(kernel));
    let mut waits = [first, second].map(leaf).into_iter().flatten();
    let waits = waits.any(|spec| matches!(spec.kind, Kind::WaitGroup(..)));
    let private = |sum: &Effects<'_>| {
        let mut all = sum.writes.iter().chain(&sum.reads);
        all.all(|of| match kernel.tensor(of.tensor).memory {
            Memory::Registers => !later.contains(&root(kernel, of.tensor)),
            Memory::Global => !shared.contains(&root(kernel, of.tensor)),
            Memory::Shared => waits && !later.contains(&root(kernel, of.tensor)),
        })
    };
    // Waits, fences and groups say nothing of registers and of global memory that is only read, or only written; those for
    // groups nothing of what no group reads or writes.
    let apart = |a: &Effects<'_>, b: &Effects<'_>| {
        a.orders && !a.previous && !(b.orders || b.later) && private(b)
    };
    (a.orders || b.orders) && !apart(&a, &b) && !apart(&b, &a)
        || touch(&a.writes, &b.writes)
        || touch(&a.writes, &b.reads)
        || touch(&a.reads, &b.writes)
}

/// Whether something is an asynchronous spec, or a wait, of this group.
fn concerns(stmt: &Stmt, group: Group) -> bool {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => match &spec.kind {
            Kind::Commit(own) | Kind::WaitGroup(own, ..) => *own == group,
            _ => spec.completion == Completion::Group,
        },
        _ => stmt.body().iter().any(|stmt| concerns(stmt, group)),
    }
}

/// Whether all that something does is to initialise barriers.
fn only_inits(kernel: &Kernel, stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => {
            matches!(spec.kind, Kind::Init(_)) && synchronises(kernel, spec)
        }
        Stmt::For(_) => stmt.body().iter().all(|stmt| only_inits(kernel, stmt)),
        _ => false,
    }
}

/// Whether something depends on the stage or the parity of a ring.
fn mentions(kernel: &Kernel, stmt: &Stmt, ring: &Ring) -> bool {
    let of_ring = |expr: &Expr| expr.mentions(&ring.stage()) || expr.mentions(&ring.parity());
    fn any(coord: &IntTuple<Expr>, of: &dyn Fn(&Expr) -> bool) -> bool {
        match coord {
            IntTuple::Int(at) => of(at),
            IntTuple::Tuple(all) => all.iter().any(|coord| any(coord, of)),
        }
    }
    let mut views = BTreeSet::new();
    kernel.each_stmt(&mut |stmt| {
        if let Stmt::View(view, of, op) = stmt {
            let own = matches!(op, ViewOp::Index(at) if at.iter().any(|at| any(at, &of_ring)));
            if own || views.contains(of) {
                views.insert(*view);
            }
        }
    });
    let operand =
        |of: &Operand| views.contains(&of.tensor) || of.index.iter().any(|at| any(at, &of_ring));
    match stmt {
        Stmt::Advance(own) => own == ring,
        Stmt::Ring(_) | Stmt::Let(..) => true,
        Stmt::If(Test::All(conds), _)
            if conds.iter().any(|cond| of_ring(&cond.left) || of_ring(&cond.right)) =>
        {
            true
        }
        Stmt::Spec(spec) if spec.body.is_none() => {
            let parity = matches!(&spec.kind, Kind::Wait(parity, _) if of_ring(parity));
            let signals = matches!(&spec.completion, Completion::Signals(of) if operand(of));
            parity || signals || spec.outs.iter().chain(&spec.ins).any(operand)
        }
        _ => stmt.body().iter().any(|stmt| mentions(kernel, stmt, ring)),
    }
}

/// The parameters that a kernel both reads and writes.
fn shared_parameters(kernel: &Kernel) -> Vec<TensorId> {
    let mut sum = Effects::default();
    kernel.spec.body.iter().flatten().for_each(|stmt| effects(kernel, stmt, &mut sum));
    let among = |all: &[&Operand], id| all.iter().any(|of| root(kernel, of.tensor) == id);
    let shared = |id: &TensorId| among(&sum.reads, *id) && among(&sum.writes, *id);
    kernel.params.iter().copied().filter(shared).collect()
}

/// What is read or written by specs that complete later.
fn asynchronous(kernel: &Kernel) -> BTreeSet<TensorId> {
    let all = kernel.leaves().into_iter().map(|leaf| leaf.spec);
    let all = all.filter(|spec| spec.completion != Completion::Now);
    all.flat_map(|spec| spec.outs.iter().chain(&spec.ins))
        .map(|of| root(kernel, of.tensor))
        .collect()
}

/// What a tensor is a view of.
fn root(kernel: &Kernel, id: TensorId) -> TensorId {
    let mut views = Vec::new();
    kernel.each_stmt(&mut |stmt| {
        if let Stmt::View(view, of, _) = stmt {
            views.push((*view, *of));
        }
    });
    views.into_iter().rev().fold(id, |id, (view, of)| if view == id { of } else { id })
}

/// Whether two operands may have elements in common.
pub(super) fn overlap(kernel: &Kernel, a: &Operand, b: &Operand) -> bool {
    if root(kernel, a.tensor) != root(kernel, b.tensor) {
        return false;
    }
    let apart = |(one, other): (&IntTuple<Expr>, &IntTuple<Expr>)| match (one, other) {
        (IntTuple::Int(one), IntTuple::Int(other)) => {
            (one.clone() - other).constant().is_some_and(|distance| distance != 0)
        }
        _ => false,
    };
    if a.tensor == b.tensor && a.index.iter().zip(&b.index).any(apart) {
        return false;
    }
    let places = |of: &Operand| {
        let view = kernel.operand(of).ok()?.view;
        let first = view.offset().constant()?;
        Some(view.offsets()?.into_iter().map(move |at| first + at))
    };
    match (places(a), places(b)) {
        (Some(a), Some(b)) => {
            let a: BTreeSet<i64> = a.collect();
            b.into_iter().any(|at| a.contains(&at))
        }
        _ => true,
    }
}
