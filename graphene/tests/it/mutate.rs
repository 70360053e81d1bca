//! Mutants of a kernel: every change of one statement that bears on order, on who takes part, or
//! on where things lie, made by rule from the kernel's own statements.

use std::collections::BTreeSet;

use graphene_ir::Result;
use graphene_ir::index::{Expr, Var};
use graphene_ir::kernel::{Completion, Kernel, Kind, Number, Operand, Scope, Spec, Stmt, TensorId};
use graphene_ir::layout::{IntTuple, Swizzle};
use graphene_ir::tensor::{Scalar, ViewOp};
use graphene_ir::text::parse;

/// A kernel with one change.
pub(crate) struct Mutant {
    /// The rule by which it was made.
    pub(crate) change: &'static str,
    /// The first line of the statement that was changed; if it has a body, with that one's first;
    /// if there are several of its like, with its number among them.
    pub(crate) line: String,
    /// What came of it; an error if no kernel did.
    pub(crate) kernel: Result<Kernel>,
}

/// Changes the statement of a number in a list.
pub(crate) type Edit = Box<dyn Fn(&mut Vec<Stmt>, usize) + Send + Sync>;

/// All mutants of a kernel, in the order of its statements; of those with one text, the first.
pub(crate) fn mutants(kernel: &Kernel) -> Vec<Mutant> {
    sampled(kernel, 1)
}

/// The first of each so many of a kernel's mutants.
pub(crate) fn sampled(kernel: &Kernel, every: usize) -> Vec<Mutant> {
    let mut stmts = Vec::new();
    kernel.each_stmt(&mut |stmt| stmts.push(stmt));
    let lines = lines(kernel);
    let (mut all, mut texts) = (Vec::new(), BTreeSet::from([kernel.to_string()]));
    for (at, stmt) in stmts.into_iter().enumerate() {
        let line = label(&lines, at);
        let mut add = |change, text: String| {
            if !texts.contains(&text) {
                if texts.len() % every == 1 % every {
                    all.push(Mutant { change, line: line.clone(), kernel: parse(&text) });
                }
                texts.insert(text);
            }
        };
        for (change, edit) in edits(kernel, stmt) {
            add(change, edited(kernel, at, &edit).to_string());
        }
        if let Stmt::Allocate(id) = stmt
            && let Some(swizzle) = kernel.tensor(*id).swizzle
        {
            let narrow = suffix(swizzle.bits() - 1, swizzle);
            add("remove swizzle", reswizzled(kernel, *id, ""));
            add("narrow swizzle", reswizzled(kernel, *id, &narrow));
        }
    }
    all
}

/// Kernels of which one statement that computes or copies is left out: what, and the text.
pub(crate) fn deleted(kernel: &Kernel) -> Vec<(String, String)> {
    let mut stmts = Vec::new();
    kernel.each_stmt(&mut |stmt| stmts.push(stmt));
    let lines = lines(kernel);
    let mut all = Vec::new();
    for (at, stmt) in stmts.into_iter().enumerate() {
        if let Stmt::Spec(spec) = stmt
            && spec.body.is_none()
            && computes(&spec.kind)
        {
            let text = edited(kernel, at, &delete()).to_string();
            all.push((format!("delete {} #{at}", lines[at]), text));
        }
    }
    all
}

/// Whether a spec computes or copies, rather than orders or prepares what others do.
pub(crate) fn computes(kind: &Kind) -> bool {
    match kind {
        Kind::Move
        | Kind::MatMul { .. }
        | Kind::Unary(_)
        | Kind::Binary(_)
        | Kind::Select
        | Kind::Reduction(_)
        | Kind::Shfl(_)
        | Kind::Index(_) => true,
        Kind::Steps
        | Kind::Fused(_)
        | Kind::Fold(_)
        | Kind::Scan(_)
        | Kind::Init(_)
        | Kind::Arrive(_)
        | Kind::Wait(..)
        | Kind::Commit(_)
        | Kind::WaitGroup(..)
        | Kind::Fence(_)
        | Kind::Sync
        | Kind::Registers(_)
        | Kind::LaunchDependents
        | Kind::GridDependencyWait
        | Kind::Prefetch
        | Kind::GridArrive(_)
        | Kind::GridWait(_) => false,
    }
}

/// The statements' first lines.
pub(crate) fn lines(kernel: &Kernel) -> Vec<String> {
    let text = kernel.to_string();
    let lines = text.lines().map(str::trim).filter(|line| *line != "}");
    // Before them stand the kernel's name, its parameters, grid and block, and its spec.
    lines.skip(kernel.params.len() + 4).map(str::to_owned).collect()
}

/// A statement's first line, with its body's first if it has one; if there are several of its like, with its number among
/// them.
pub(crate) fn label(lines: &[String], at: usize) -> String {
    let line = match lines[at].strip_suffix('{') {
        Some(head) => format!("{head}{{ {}", lines.get(at + 1).map_or("", String::as_str)),
        None => lines[at].clone(),
    };
    let like = |lines: &[String], line| lines.iter().filter(|other| *other == line).count();
    if like(lines, &lines[at]) > 1 {
        format!("{line} #{}", like(&lines[..=at], &lines[at]))
    } else {
        line
    }
}

/// The kernel's tree with an edit of one statement. Views that change are as they were until the
/// tree's text is read back.
pub(crate) fn edited(kernel: &Kernel, at: usize, edit: &Edit) -> Kernel {
    fn walk(list: &mut Vec<Stmt>, left: &mut usize, edit: &Edit) -> bool {
        for i in 0..list.len() {
            if *left == 0 {
                edit(list, i);
                return true;
            }
            *left -= 1;
            let body = match &mut list[i] {
                Stmt::Spec(spec) => spec.body.as_mut(),
                Stmt::For(looped) => Some(&mut looped.body),
                Stmt::If(_, body) | Stmt::Role(_, _, _, body) => Some(body),
                _ => None,
            };
            if body.is_some_and(|body| walk(body, left, edit)) {
                return true;
            }
        }
        false
    }
    let mut mutant = kernel.clone();
    let mut left = at;
    assert!(walk(mutant.spec.body.as_mut().unwrap(), &mut left, edit));
    mutant
}

pub(crate) fn edits(kernel: &Kernel, stmt: &Stmt) -> Vec<(&'static str, Edit)> {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => {
            let mut edits = spec_edits(kernel, spec);
            if of_spec(spec).iter().any(|operand| operand.index.iter().any(has_stage)) {
                edits.push(on("off by a stage", |spec| {
                    let signal = match &mut spec.completion {
                        Completion::Signals(barrier) => Some(barrier),
                        Completion::Now | Completion::Group => None,
                    };
                    let operands = spec.outs.iter_mut().chain(&mut spec.ins).chain(signal);
                    operands.for_each(|operand| operand.index.iter_mut().for_each(next_stage));
                }));
            }
            edits
        }
        Stmt::Advance(_) => vec![("delete advance", delete())],
        Stmt::Ring(_) => vec![("add a stage", stages(1)), ("take a stage", stages(-1))],
        Stmt::If(..) => vec![("remove predicate", inline()), ("drop body", delete())],
        Stmt::Role(threads, first, end, _) => {
            let level = &kernel.threads(*threads).view.levels()[0];
            let size = level.size().constant().unwrap();
            let mut edits = vec![("drop role", delete())];
            if *end < size {
                edits.push(("widen role up", role(0, 1)));
                edits.push(("shift role up", role(1, 1)));
            }
            if *first > 0 {
                edits.push(("widen role down", role(-1, 0)));
                edits.push(("shift role down", role(-1, -1)));
            }
            edits.push(("role of all", role(-first, size - end)));
            edits
        }
        Stmt::View(_, _, ViewOp::Index(at)) if at.iter().any(has_stage) => {
            vec![(
                "off by a stage",
                Box::new(|list, i| {
                    if let Stmt::View(_, _, ViewOp::Index(at)) = &mut list[i] {
                        at.iter_mut().for_each(next_stage);
                    }
                }),
            )]
        }
        _ => Vec::new(),
    }
}

/// The edits of what a spec does; those of where it does so come beside them.
fn spec_edits(kernel: &Kernel, spec: &Spec) -> Vec<(&'static str, Edit)> {
    match &spec.kind {
        Kind::Sync => {
            let (grid, block) = (kernel.grid, kernel.block);
            let mut edits = vec![
                ("delete Sync", delete()),
                on("Sync of the block", move |s| s.threads = block),
            ];
            // Only those of a cluster are several.
            if !kernel.threads(spec.blocks).view.size().is(1) {
                edits.push(on("Sync of one block", move |s| s.blocks = grid));
            }
            edits
        }
        Kind::Fence(_) => vec![("delete Fence", delete())],
        Kind::Commit(_) => vec![("delete Commit", delete())],
        Kind::WaitGroup(group, pending, read) => {
            let (group, pending, read) = (*group, *pending, *read);
            let wait = move |change, more, read| {
                on(change, move |s| s.kind = Kind::WaitGroup(group, pending + more, read))
            };
            vec![
                ("delete WaitGroup", delete()),
                wait("one more pending", 1, read),
                wait("one less pending", -1, read),
                wait("flip read", 0, !read),
            ]
        }
        Kind::Arrive(None) => vec![("delete Arrive", delete())],
        Kind::Arrive(Some(bytes)) => {
            let bytes = bytes.clone();
            let expect = move |change, more: Option<i64>| {
                let bytes = more.map(|more| bytes.clone() + more);
                on(change, move |s| s.kind = Kind::Arrive(bytes.clone()))
            };
            vec![
                ("delete Arrive", delete()),
                expect("16 bytes more", Some(16)),
                expect("16 bytes less", Some(-16)),
                expect("no bytes", None),
            ]
        }
        Kind::Wait(parity, scope) => {
            let (scope, other) = (*scope, Kind::Wait(Expr::from(1) - parity, *scope));
            let flip = on("flip parity", move |s| s.kind = other.clone());
            let mut edits = vec![("delete Wait", delete()), flip];
            if scope == Scope::Cluster {
                let own = Kind::Wait(parity.clone(), Scope::Block);
                edits.push(on("wait for the own block", move |s| s.kind = own.clone()));
            }
            edits
        }
        Kind::Init(Number(count)) => {
            let mut edits = vec![("delete Init", delete())];
            if kernel.tensor(spec.outs[0].tensor).scalar == Scalar::Mbar {
                let count = *count;
                let init = move |change, more| {
                    on(change, move |s| s.kind = Kind::Init(Number(count + more)))
                };
                edits.extend([init("count one more", 1.0), init("count one less", -1.0)]);
            }
            edits
        }
        Kind::GridArrive(below) => {
            let below = below.clone();
            let count = move |change, more: i64| {
                let below = below.clone() + more;
                on(change, move |s| s.kind = Kind::GridArrive(below.clone()))
            };
            let delete = ("delete GridArrive", delete());
            vec![delete, count("count to one more", 1), count("count to one less", -1)]
        }
        Kind::GridWait(count) => {
            let count = count.clone();
            let wait = move |change, more: i64| {
                let count = count.clone() + more;
                on(change, move |s| s.kind = Kind::GridWait(count.clone()))
            };
            let delete = ("delete GridWait", delete());
            vec![delete, wait("await one more", 1), wait("await one less", -1)]
        }
        Kind::Registers(count) => {
            let count = *count;
            let ask = move |change, all| on(change, move |s| s.kind = Kind::Registers(all));
            let mut edits = vec![
                ("delete Registers", delete()),
                ask("uneven Registers", count + 4),
                ask("too few Registers", 16),
                ask("too many Registers", 264),
            ];
            // Two warpgroups can have the most that there may be; of three, all is given out.
            if kernel.block_size().unwrap() > 256 {
                edits.push(ask("more Registers", count + 8));
            }
            edits
        }
        Kind::Move | Kind::MatMul { .. } => match &spec.completion {
            Completion::Now => Vec::new(),
            Completion::Group => vec![on("complete now", |s| s.completion = Completion::Now)],
            Completion::Signals(barrier) => {
                let other = other_barrier(kernel, barrier.tensor);
                let barrier = Operand { tensor: other, index: barrier.index.clone() };
                let other = move |s: &mut Spec| s.completion = Completion::Signals(barrier.clone());
                vec![
                    on("complete now", |s| s.completion = Completion::Now),
                    on("signal another barrier", other),
                    on("complete as a group", |s| s.completion = Completion::Group),
                ]
            }
        },
        _ => Vec::new(),
    }
}

/// The operands of a spec, with the barrier that it signals.
fn of_spec(spec: &Spec) -> Vec<&Operand> {
    let signal = match &spec.completion {
        Completion::Signals(barrier) => Some(barrier),
        Completion::Now | Completion::Group => None,
    };
    spec.outs.iter().chain(&spec.ins).chain(signal).collect()
}

fn other_barrier(kernel: &Kernel, than: TensorId) -> TensorId {
    let mut barriers = kernel.allocations().into_iter();
    barriers.find(|&id| id != than && kernel.tensor(id).scalar == Scalar::Mbar).unwrap()
}

fn on(
    change: &'static str,
    edit: impl Fn(&mut Spec) + Send + Sync + 'static,
) -> (&'static str, Edit) {
    let edit = move |list: &mut Vec<Stmt>, i: usize| {
        if let Stmt::Spec(spec) = &mut list[i] {
            edit(spec);
        }
    };
    (change, Box::new(edit))
}

pub(crate) fn delete() -> Edit {
    Box::new(|list, i| drop(list.remove(i)))
}

/// A body takes the place of the statement that it belongs to.
fn inline() -> Edit {
    Box::new(|list, i| {
        if let Stmt::If(_, body) | Stmt::Role(_, _, _, body) = list.remove(i) {
            list.splice(i..i, body);
        }
    })
}

fn role(first: i64, end: i64) -> Edit {
    Box::new(move |list, i| {
        if let Stmt::Role(_, from, to, _) = &mut list[i] {
            (*from, *to) = (*from + first, *to + end);
        }
    })
}

fn stages(more: i64) -> Edit {
    Box::new(move |list, i| {
        if let Stmt::Ring(ring) = &mut list[i] {
            ring.stages += more;
        }
    })
}

fn has_stage(coord: &IntTuple<Expr>) -> bool {
    match coord {
        IntTuple::Int(at) => {
            let mut has = false;
            at.each_var(&mut |var| has |= var.name().ends_with(".stage"));
            has
        }
        IntTuple::Tuple(coords) => coords.iter().any(has_stage),
    }
}

fn next_stage(coord: &mut IntTuple<Expr>) {
    match coord {
        IntTuple::Int(at) => {
            let mut stage: Option<Var> = None;
            at.each_var(&mut |var| {
                if var.name().ends_with(".stage") {
                    stage = Some(var.clone());
                }
            });
            if let Some(stage) = stage {
                let stages = Expr::from(Var::max(&stage).unwrap() + 1);
                let next = (Expr::from(&stage) + 1).rem(&stages);
                *at = at.substitute(&stage, &next);
            }
        }
        IntTuple::Tuple(coords) => coords.iter_mut().for_each(next_stage),
    }
}

/// How a tensor's type ends that has a swizzle, or one of so many bits.
fn suffix(bits: u32, swizzle: Swizzle) -> String {
    format!(".S<{bits},{},{}>", swizzle.base(), swizzle.shift())
}

/// The kernel's text with another swizzle of an allocation and of its views.
pub(crate) fn reswizzled(kernel: &Kernel, id: TensorId, with: &str) -> String {
    let mut views = BTreeSet::from([id]);
    kernel.each_stmt(&mut |stmt| {
        if let Stmt::View(view, of, _) = stmt
            && views.contains(of)
        {
            views.insert(*view);
        }
    });
    let heads: Vec<String> =
        views.into_iter().map(|id| format!("%{}:", kernel.tensor_name(id))).collect();
    let swizzle = kernel.tensor(id).swizzle;
    let swizzle = swizzle.expect("only a swizzled tensor is given another swizzle");
    let swizzle = suffix(swizzle.bits(), swizzle);
    let text = kernel.to_string();
    let lines = text.lines().map(|line| {
        let own = heads.iter().any(|head| line.trim_start().starts_with(head));
        if own { line.replace(&swizzle, with) } else { line.to_owned() }
    });
    lines.collect::<Vec<_>>().join("\n")
}
