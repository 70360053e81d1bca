//! Where a kernel can be wrong: every statement, and what may be done to it.

use graphene_ir::error::{Error, Result};
use graphene_ir::index::{Expr, Factor};
use graphene_ir::kernel::{
    Binary, Completion, For, Group, Kernel, Kind, Operand, Ring, Spec, Stmt, TensorId, Test, Unary,
};
use graphene_ir::layout::{IntTuple, Layout, Tiler};
use graphene_ir::tensor::{Memory, Scalar, ViewOp};
use graphene_ir::text::parse;

use crate::mutate::{self, Edit, edited};

/// What kind of mistake a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    /// A statement that computes or copies is dropped, doubled, or changes places with the next one.
    Statement,
    /// A stride is wrong: of a tensor, of a view, or of what is computed for an index.
    Stride,
    /// A loop begins or ends too early or too late, or its steps are too large; or a condition does not hold it.
    Bound,
    /// Others do it, or more, or fewer.
    Role,
    /// A stage or parity is wrong, or how many stages there are.
    Stage,
    /// A barrier, fence, group or counter is dropped, doubled, out of place, or says something else.
    Synchronisation,
}

/// A fault that can be seeded.
pub(crate) struct Fault {
    pub(crate) family: Family,
    /// What is done: a row of the table.
    pub(crate) change: &'static str,
    /// The statement's first line, with its number.
    pub(crate) line: String,
    /// Why it makes no difference, where a rule says that it does not.
    pub(crate) none: Option<&'static str>,
    /// The specs with bodies that it is within, by the numbers of their statements, the innermost last.
    pub(crate) within: Vec<usize>,
    how: How,
}

enum How {
    Edit(usize, Edit),
    /// The type of this tensor, and what stands in place of it.
    Type(String, String),
}

impl Fault {
    /// The kernel with the fault.
    pub(crate) fn seed(&self, kernel: &Kernel) -> Result<Kernel> {
        match &self.how {
            How::Edit(at, edit) => read_back(&edited(kernel, *at, edit).to_string()),
            How::Type(from, to) => read_back(&kernel.to_string().replacen(from, to, 1)),
        }
    }
}

/// The kernel of a text whose views have the types that they had before the fault.
fn read_back(text: &str) -> Result<Kernel> {
    let mut text = text.to_owned();
    loop {
        let error = match parse(&text) {
            Ok(kernel) => return Ok(kernel),
            Err(error) => error,
        };
        let Error::Text { message, .. } = &error else { return Err(error) };
        let types = message.split_once(" is ").and_then(|(name, types)| {
            let (derived, printed) = types.split_once(", not ")?;
            Some((format!("{name}:{printed} = "), format!("{name}:{derived} = ")))
        });
        match types {
            Some((from, to)) if text.contains(&from) => text = text.replacen(&from, &to, 1),
            _ => return Err(error),
        }
    }
}

/// Every fault of a kernel, in the order of its statements.
pub(crate) fn faults(kernel: &Kernel) -> Vec<Fault> {
    let lines = mutate::lines(kernel);
    let mut all = Vec::new();
    for &param in &kernel.params {
        of_type(kernel, param, &format!("parameter %{}", kernel.tensor_name(param)), &mut all);
    }
    let mut at = 0;
    let body = kernel.spec.body.as_deref().unwrap();
    of_statements(kernel, body, &lines, &mut at, &mut Vec::new(), &mut all);
    all
}

fn of_statements(
    kernel: &Kernel,
    stmts: &[Stmt],
    lines: &[String],
    at: &mut usize,
    around: &mut Vec<usize>,
    all: &mut Vec<Fault>,
) {
    for (i, stmt) in stmts.iter().enumerate() {
        let line = mutate::label(lines, *at);
        let mut own = Vec::new();
        let mut add = |family, change, none, edit| {
            let (line, within) = (line.clone(), around.clone());
            own.push(Fault { family, change, line, none, within, how: How::Edit(*at, edit) });
        };
        for (change, edit) in mutate::edits(kernel, stmt) {
            add(family_of(kernel, change, stmt), change, rule_of(change, stmt), edit);
        }
        if let Some(kind) = leaf(stmt) {
            let family = family_of_kind(kernel, stmt);
            if mutate::computes(kind)
                || matches!(
                    kind,
                    Kind::Prefetch | Kind::LaunchDependents | Kind::GridDependencyWait
                )
            {
                add(family, "dropped", hint(kind), mutate::delete());
            }
            add(family, "doubled", said_twice(kernel, stmt), doubled());
        }
        if let Stmt::Advance(_) = stmt {
            add(Family::Stage, "doubled", None, doubled());
        }
        let mut swapped = None;
        if let Some(next) = stmts.get(i + 1)
            && moves(stmt)
            && moves(next)
            && (stmt != next)
            && depend(kernel, stmt, next)
        {
            let [family, other] = [stmt, next].map(|stmt| family_of_kind(kernel, stmt));
            let none = [stmt, next].into_iter().filter_map(leaf).find_map(hint);
            let after = *at + 1 + count(stmt.body());
            let swap = How::Edit(*at, Box::new(|list, i| list.swap(i, i + 1)));
            let both = format!("{line} <-> {}", mutate::label(lines, after));
            swapped = Some(Fault {
                family: family.max(other),
                change: "swapped",
                line: both,
                none,
                within: around.clone(),
                how: swap,
            });
        }
        strides(stmt)
            .into_iter()
            .for_each(|(change, edit)| add(Family::Stride, change, None, edit));
        bounds(stmt).into_iter().for_each(|(change, edit)| add(Family::Bound, change, None, edit));
        all.extend(own.into_iter().chain(swapped));
        if let Stmt::Allocate(id) = stmt {
            of_type(kernel, *id, &line, all);
        }
        let typed =
            matches!(stmt, Stmt::Spec(spec) if spec.body.is_some() && spec.kind != Kind::Steps);
        around.extend(typed.then_some(*at));
        *at += 1;
        of_statements(kernel, stmt.body(), lines, at, around, all);
        around.truncate(around.len() - usize::from(typed));
    }
}

/// How many statements there are, those within others as well.
fn count(stmts: &[Stmt]) -> usize {
    stmts.iter().map(|stmt| 1 + count(stmt.body())).sum()
}

fn family_of(kernel: &Kernel, change: &str, stmt: &Stmt) -> Family {
    match (change, stmt) {
        ("off by a stage" | "flip parity", _) | (_, Stmt::Ring(_) | Stmt::Advance(_)) => {
            Family::Stage
        }
        (_, Stmt::Role(..)) => Family::Role,
        (_, Stmt::If(..)) => Family::Bound,
        (_, Stmt::Spec(Spec { kind: Kind::Registers(_), .. })) => Family::Role,
        (_, Stmt::Spec(spec))
            if !synchronises(kernel, spec) && spec.completion == Completion::Now =>
        {
            Family::Statement
        }
        _ => Family::Synchronisation,
    }
}

/// The family of a statement that is out of place.
fn family_of_kind(kernel: &Kernel, stmt: &Stmt) -> Family {
    match stmt {
        Stmt::Advance(_) => Family::Stage,
        Stmt::Spec(spec) if spec.body.is_none() && synchronises(kernel, spec) => {
            Family::Synchronisation
        }
        _ => Family::Statement,
    }
}

fn synchronises(kernel: &Kernel, spec: &Spec) -> bool {
    match spec.kind {
        Kind::Arrive(_)
        | Kind::Wait(..)
        | Kind::Commit(_)
        | Kind::WaitGroup(..)
        | Kind::Fence(_)
        | Kind::Sync
        | Kind::LaunchDependents
        | Kind::GridDependencyWait
        | Kind::GridArrive(_)
        | Kind::GridWait(_)
        | Kind::Registers(_) => true,
        Kind::Init(_) => kernel.tensor(spec.outs[0].tensor).scalar == Scalar::Mbar,
        _ => false,
    }
}

fn leaf(stmt: &Stmt) -> Option<&Kind> {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => Some(&spec.kind),
        _ => None,
    }
}

/// Whether a statement could stand elsewhere: others declare what those behind them need.
fn moves(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Spec(_) | Stmt::For(_) | Stmt::If(..) | Stmt::Role(..) | Stmt::Advance(_) => true,
        Stmt::Allocate(_)
        | Stmt::View(..)
        | Stmt::Threads(..)
        | Stmt::Indices(..)
        | Stmt::Let(..)
        | Stmt::Value(..)
        | Stmt::Ring(_) => false,
    }
}

fn hint(kind: &Kind) -> Option<&'static str> {
    match kind {
        Kind::Prefetch => Some("a hint: where data are, not what they are"),
        Kind::LaunchDependents => Some("a hint: when the next kernel may start, not what it sees"),
        _ => None,
    }
}

/// What an edit of a synchronisation leaves as strong as it was.
fn rule_of(change: &str, stmt: &Stmt) -> Option<&'static str> {
    const MORE: &str = "waits for more: every order of events is one that there was before";
    match (change, leaf(stmt)?) {
        ("one less pending", Kind::WaitGroup(_, pending, _)) if *pending > 0 => Some(MORE),
        ("flip read", Kind::WaitGroup(Group::Bulk, _, true)) => Some(MORE),
        _ => None,
    }
}

/// Why a statement may stand twice.
fn said_twice(kernel: &Kernel, stmt: &Stmt) -> Option<&'static str> {
    let Stmt::Spec(spec) = stmt else { return None };
    match &spec.kind {
        Kind::Fence(_) | Kind::Sync | Kind::Wait(..) | Kind::WaitGroup(..) | Kind::GridWait(_) => {
            Some("what has been waited for, or fenced, is so still")
        }
        Kind::GridDependencyWait | Kind::Registers(_) => Some("what it asks for is so already"),
        Kind::Commit(_) => Some("one more group, of nothing: who waits, waits for more"),
        kind @ (Kind::Prefetch | Kind::LaunchDependents) => hint(kind),
        Kind::Unary(
            Unary::Tf32 | Unary::Abs | Unary::Relu | Unary::Floor | Unary::Ceil | Unary::Round,
        ) if spec.outs == spec.ins => Some("a function of its own value, which it leaves as it is"),
        Kind::Move
        | Kind::MatMul { accumulate: false }
        | Kind::Unary(_)
        | Kind::Binary(_)
        | Kind::Select
        | Kind::Index(_)
        | Kind::Init(_)
        | Kind::Reduction(Binary::Max | Binary::Min | Binary::MaxNan | Binary::MinNan)
        | Kind::Shfl(_) => {
            let out = spec.outs.iter().all(|out| {
                let tensor = kernel.tensor(out.tensor);
                tensor.memory != Memory::Global
                    && tensor.scalar != Scalar::Mbar
                    && spec.ins.iter().all(|of| !overlap(kernel, out, of))
            });
            (out && spec.completion == Completion::Now)
                .then_some("it computes the same from the same once more")
        }
        Kind::Steps
        | Kind::MatMul { accumulate: true }
        | Kind::Fused(_)
        | Kind::Fold(_)
        | Kind::Scan(_)
        | Kind::Reduction(_)
        | Kind::Arrive(_)
        | Kind::GridArrive(_) => None,
    }
}

fn doubled() -> Edit {
    Box::new(|list, i| {
        let again = list[i].clone();
        list.insert(i, again);
    })
}

/// What statements write and read, and whether others' order depends on theirs.
#[derive(Default)]
struct Effects<'k> {
    writes: Vec<&'k Operand>,
    reads: Vec<&'k Operand>,
    orders: bool,
    /// Whether it is about kernels before.
    previous: bool,
}

fn effects<'k>(kernel: &Kernel, stmt: &'k Stmt, sum: &mut Effects<'k>) {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => {
            sum.writes.extend(&spec.outs);
            sum.reads.extend(&spec.ins);
            if matches!(spec.kind, Kind::MatMul { accumulate: true } | Kind::Reduction(_)) {
                sum.reads.extend(&spec.outs);
            }
            sum.orders |= synchronises(kernel, spec) || spec.completion != Completion::Now;
            sum.previous |= matches!(spec.kind, Kind::GridDependencyWait | Kind::LaunchDependents);
        }
        Stmt::Advance(_) => sum.orders = true,
        _ => stmt.body().iter().for_each(|stmt| effects(kernel, stmt, sum)),
    }
}

/// Whether two statements, one behind the other, may mean something else the other way round.
fn depend(kernel: &Kernel, first: &Stmt, second: &Stmt) -> bool {
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
            let sum = matches!(one.kind, Kind::MatMul { accumulate: true } | Kind::Reduction(_));
            // Two terms of one sum.
            if sum && one.kind == other.kind && one.outs == other.outs {
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
        if let Some(Kind::Commit(group)) = leaf(one) {
            return concerns(other, *group);
        }
    }
    if [first, second].into_iter().all(|stmt| only_inits(kernel, stmt)) {
        let [a, b] = [first, second].map(|stmt| {
            let mut sum = Effects::default();
            effects(kernel, stmt, &mut sum);
            sum
        });
        return a.writes.iter().any(|a| b.writes.iter().any(|b| overlap(kernel, a, b)));
    }
    let [a, b] = [first, second].map(|stmt| {
        let mut sum = Effects::default();
        effects(kernel, stmt, &mut sum);
        sum
    });
    let touch =
        |a: &[&Operand], b: &[&Operand]| a.iter().any(|a| b.iter().any(|b| overlap(kernel, a, b)));
    let shared = shared_parameters(kernel);
    let private = |sum: &Effects<'_>| {
        let mut all = sum.writes.iter().chain(&sum.reads);
        all.all(|of| match kernel.tensor(of.tensor).memory {
            Memory::Registers => true,
            Memory::Global => !shared.contains(&root(kernel, of.tensor)),
            Memory::Shared => false,
        })
    };
    // Waits, fences and groups say nothing of registers, nor of global memory that is only read, or only written.
    let apart =
        |a: &Effects<'_>, b: &Effects<'_>| a.orders && !a.previous && !b.orders && private(b);
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
    let mut views = std::collections::BTreeSet::new();
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
    let (mut read, mut written) = (Vec::new(), Vec::new());
    let mut sum = Effects::default();
    kernel.spec.body.iter().flatten().for_each(|stmt| effects(kernel, stmt, &mut sum));
    read.extend(sum.reads.iter().map(|of| root(kernel, of.tensor)));
    written.extend(sum.writes.iter().map(|of| root(kernel, of.tensor)));
    kernel.params.iter().copied().filter(|id| read.contains(id) && written.contains(id)).collect()
}

/// What a tensor is a view of.
fn root(kernel: &Kernel, id: TensorId) -> TensorId {
    let mut root = id;
    kernel.each_stmt(&mut |stmt| {
        if let Stmt::View(view, of, _) = stmt
            && *view == id
        {
            root = *of;
        }
    });
    if root == id { id } else { self::root(kernel, root) }
}

/// Whether two operands may have elements in common.
fn overlap(kernel: &Kernel, a: &Operand, b: &Operand) -> bool {
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
            let a: std::collections::BTreeSet<i64> = a.collect();
            b.into_iter().any(|at| a.contains(&at))
        }
        _ => true,
    }
}

/// A term's coefficient is larger by 1: neighbours are further apart.
fn farther(expr: &Expr) -> Option<Expr> {
    let mut terms = expr.terms().filter(|(product, _)| !product.is_empty());
    let (product, _) = terms.next()?;
    let more = product
        .iter()
        .fold(Expr::from(1), |all, factor: &Factor| all * &Expr::from(factor.clone()));
    Some(expr.clone() + &more)
}

fn farther_in(coords: &mut [IntTuple<Expr>]) -> bool {
    for coord in coords {
        match coord {
            IntTuple::Int(at) => {
                if let Some(more) = farther(at) {
                    *at = more;
                    return true;
                }
            }
            IntTuple::Tuple(inner) => {
                if farther_in(inner) {
                    return true;
                }
            }
        }
    }
    false
}

/// The first stride that is not 0 is larger by 1.
fn farther_layout(layout: &Layout) -> Option<Layout> {
    let leaves = layout.leaves();
    let at = leaves
        .iter()
        .position(|leaf| leaf.size > 1 && leaf.stride.number().is_some_and(|s| s > 0))?;
    let modes: Vec<(i64, i64)> = leaves
        .iter()
        .enumerate()
        .map(|(i, leaf)| Some((leaf.size, leaf.stride.number()? + i64::from(i == at))))
        .collect::<Option<_>>()?;
    Layout::of_modes(&modes).ok()
}

fn strides(stmt: &Stmt) -> Vec<(&'static str, Edit)> {
    let mut all: Vec<(&'static str, Edit)> = Vec::new();
    match stmt {
        Stmt::View(_, _, ViewOp::Index(coords)) if farther_in(&mut coords.clone()) => {
            all.push((
                "stride of an index",
                Box::new(|list, i| {
                    if let Stmt::View(_, _, ViewOp::Index(coords)) = &mut list[i] {
                        farther_in(coords);
                    }
                }),
            ));
        }
        Stmt::View(_, _, ViewOp::Tile(tiles)) => {
            for (n, tile) in tiles.iter().enumerate() {
                let changed = match tile {
                    Tiler::Whole | Tiler::Modes(_) => None,
                    // Every second one.
                    Tiler::Size(size) => {
                        (*size > 1).then(|| Layout::of_modes(&[(*size, 2)]).ok()).flatten()
                    }
                    Tiler::Layout(layout) => farther_layout(layout),
                };
                if let Some(changed) = changed {
                    all.push((
                        "stride of a tile",
                        Box::new(move |list, i| {
                            if let Stmt::View(_, _, ViewOp::Tile(tiles)) = &mut list[i] {
                                tiles[n] = Tiler::Layout(changed.clone());
                            }
                        }),
                    ));
                }
            }
        }
        Stmt::View(_, _, ViewOp::Reshape(_, dims)) => {
            for (n, dim) in dims.iter().enumerate() {
                if let Some(changed) = farther_layout(dim) {
                    all.push((
                        "stride of a shape",
                        Box::new(move |list, i| {
                            if let Stmt::View(_, _, ViewOp::Reshape(_, dims)) = &mut list[i] {
                                dims[n] = changed.clone();
                            }
                        }),
                    ));
                }
            }
        }
        Stmt::Let(_, value) if farther(value).is_some() => {
            all.push((
                "stride of a sum",
                Box::new(|list, i| {
                    if let Stmt::Let(_, value) = &mut list[i] {
                        *value = farther(value).unwrap();
                    }
                }),
            ));
        }
        Stmt::Spec(spec) if spec.body.is_none() => {
            let operands = spec.outs.len() + spec.ins.len();
            let at = |spec: &mut Spec, n: usize| {
                let operand = spec.outs.iter_mut().chain(&mut spec.ins).nth(n).unwrap();
                farther_in(&mut operand.index)
            };
            for n in 0..operands {
                if at(&mut spec.clone(), n) {
                    all.push((
                        "stride of an operand",
                        Box::new(move |list, i| {
                            if let Stmt::Spec(spec) = &mut list[i] {
                                at(spec, n);
                            }
                        }),
                    ));
                }
            }
        }
        _ => {}
    }
    all
}

fn bounds(stmt: &Stmt) -> Vec<(&'static str, Edit)> {
    let Stmt::For(looped) = stmt else { return Vec::new() };
    let [first, end, step] = [&looped.first, &looped.end, &looped.step].map(Expr::constant);
    let once =
        matches!((first, end, step), (Some(first), Some(end), Some(step)) if first + step >= end);
    let edit = |change, edit: fn(&mut For)| -> (&'static str, Edit) {
        (
            change,
            Box::new(move |list: &mut Vec<Stmt>, i: usize| {
                if let Stmt::For(looped) = &mut list[i] {
                    edit(looped);
                }
            }),
        )
    };
    let mut all = vec![
        edit("begins late", |looped| looped.first = looped.first.clone() + &looped.step),
        edit("ends early", |looped| looped.end = looped.end.clone() - &looped.step),
        edit("ends late", |looped| looped.end = looped.end.clone() + &looped.step),
    ];
    if !once {
        all.push(edit("steps too far", |looped| looped.step = looped.step.clone() * 2));
    }
    all
}

/// Rows, or what else has a stride, begin one element too early: they overlap, or are where they should not be.
fn of_type(kernel: &Kernel, id: TensorId, line: &str, all: &mut Vec<Fault>) {
    let tensor = kernel.tensor(id);
    let head = format!("%{}:", kernel.tensor_name(id));
    let written = tensor.to_string();
    let view = tensor.view.strided();
    for leaf in view.leaves() {
        let stride = leaf.stride.to_string();
        if leaf.size.is(1) || stride == "0" || stride == "1" {
            continue;
        }
        // It is found by its text: the first that reads so, behind the colon.
        let Some((shape, strides)) = written.split_once(':') else { continue };
        let Some(at) = strides.find(&stride) else { continue };
        let (before, after) = strides.split_at(at);
        let closer = format!("{stride} - 1");
        let closer = stride.parse::<i64>().map_or(closer, |stride| (stride - 1).to_string());
        let to = format!("{head}{shape}:{before}{closer}{}", &after[stride.len()..]);
        all.push(Fault {
            family: Family::Stride,
            change: "stride of a tensor",
            line: line.to_owned(),
            none: None,
            within: Vec::new(),
            how: How::Type(format!("{head}{written}"), to),
        });
    }
}
