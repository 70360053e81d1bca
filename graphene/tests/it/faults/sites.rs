//! Where a kernel can be wrong: every statement, and what may be done to it.

use graphene_ir::error::{Error, Result};
use graphene_ir::index::{Expr, Var};
use graphene_ir::kernel::{
    Binary, Completion, For, Group, Kernel, Kind, Number, Operand, Scope, Spec, Stmt, TensorId,
    Unary,
};
use graphene_ir::layout::IntTuple;
use graphene_ir::tensor::{Memory, Scalar, ViewOp};
use graphene_ir::text::parse;

use super::strides::{retyped, strides};
use super::swaps::{depend, overlap};

/// What kind of mistake a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    /// A statement that computes or copies is dropped, doubled, changes places with the next one, or computes something else.
    Statement,
    /// A stride is wrong: of a tensor, of a view, or of what is computed for an index; or a swizzle.
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
pub(super) struct Fault {
    pub(super) family: Family,
    /// What is done: a row of the table.
    pub(super) change: &'static str,
    /// The statement's first line, with its body's if it has one, and with its number among several of its like.
    pub(super) line: String,
    /// Why it makes no difference, where a rule says that it does not.
    pub(super) none: Option<&'static str>,
    /// The statement's number; a parameter has none.
    pub(super) at: Option<usize>,
    /// The specs with bodies, and the loops that say what they carry, that it is within, by the numbers of their statements, the
    /// innermost last.
    pub(super) within: Vec<usize>,
    /// The tensor or view whose declaration is wrong, if one is.
    pub(super) tensor: Option<String>,
    text: Text,
}

/// Changes the statement of a number in a list.
pub(super) type Edit = Box<dyn Fn(&mut Vec<Stmt>, usize) + Send + Sync>;

/// The text of a kernel with a fault.
pub(super) type Text = Box<dyn Fn(&Kernel) -> String + Send + Sync>;

/// What is done to a statement, and how; why it makes no difference, where a rule says so.
pub(super) type Change = (Family, &'static str, Option<&'static str>, Edit);

/// What is replaced in a line of the text.
const REPLACED: &[(Family, &str, &str, &str)] = &[
    (Family::Statement, "another lane", "Shfl<16>", "Shfl<8>"),
    (Family::Statement, "another lane", "Shfl<1>", "Shfl<2>"),
    (Family::Statement, "another fold", "Reduction<+>", "Reduction<max>"),
    (Family::Statement, "another fold", "Reduction<max>", "Reduction<+>"),
    (Family::Statement, "another function", "BinaryPointwise<->", "BinaryPointwise<+>"),
    (Family::Statement, "another function", "BinaryPointwise<+>", "BinaryPointwise<->"),
    (Family::Statement, "another function", "BinaryPointwise<*>", "BinaryPointwise<+>"),
    (Family::Statement, "another function", "BinaryPointwise</>", "BinaryPointwise<*>"),
    (Family::Statement, "another function", ".rsqrt", ".sqrt"),
    (Family::Statement, "another function", "<rcp>", "<neg>"),
    (Family::Statement, "another start", "Init<0>", "Init<1>"),
    (Family::Statement, "another start", "Init<-inf>", "Init<0>"),
    (Family::Bound, "begins at 1", " = 0; ", " = 1; "),
    (Family::Bound, "nearer bound", "+ 8 <", "+ 7 <"),
    (Family::Role, "another one", "== 0", "== 1"),
    (Family::Stride, "another divisor", "% 32", "% 16"),
    (Family::Stride, "another divisor", "%32", "%16"),
    (Family::Stride, "another divisor", "/32", "/16"),
];

impl Fault {
    /// The text of the kernel with the fault.
    pub(super) fn text(&self, kernel: &Kernel) -> String {
        (self.text)(kernel)
    }

    /// The kernel with the fault.
    pub(super) fn seed(&self, kernel: &Kernel) -> Result<Kernel> {
        read_back(self.text(kernel))
    }

    /// The number of the statement that an error of its text is in.
    pub(super) fn statement_of(&self, kernel: &Kernel, error: &Error) -> Option<usize> {
        let Error::Text { line, .. } = error else { return None };
        let text = self.text(kernel);
        let before = text.lines().take(*line).skip(head(kernel));
        before.filter(|line| begins(line)).count().checked_sub(1)
    }

    /// Whether an error names the declaration that is wrong.
    pub(super) fn declares(&self, error: &Error) -> bool {
        matches!(error, Error::Overlap { tensor, .. } if Some(tensor) == self.tensor.as_ref())
    }

    /// Whether it may be found in some orders of warps alone.
    pub(super) fn orders(&self) -> bool {
        matches!(self.family, Family::Role | Family::Stage | Family::Synchronisation)
    }
}

/// The kernel of a text whose views have the types that they had before the fault.
fn read_back(mut text: String) -> Result<Kernel> {
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

/// Every fault of a kernel, in the order of its statements. Some may have one text, or the kernel's own.
pub(super) fn faults(kernel: &Kernel) -> Vec<Fault> {
    let (lines, within) = (lines(kernel), Vec::new());
    let mut sites = Sites { kernel, lines, at: 0, within, all: Vec::new() };
    for &param in &kernel.params {
        let line = format!("parameter %{}", kernel.tensor_name(param));
        sites.of_type(param, None, &line);
    }
    sites.of_statements(kernel.spec.body.as_deref().unwrap());
    sites.all
}

/// The faults of the statements so far.
struct Sites<'k> {
    kernel: &'k Kernel,
    lines: Vec<String>,
    at: usize,
    within: Vec<usize>,
    all: Vec<Fault>,
}

impl<'k> Sites<'k> {
    /// A fault of the statement that is next.
    fn fault(&self, family: Family, change: &'static str, text: Text) -> Fault {
        let (line, within) = (label(&self.lines, self.at), self.within.clone());
        Fault { family, change, line, none: None, at: Some(self.at), within, tensor: None, text }
    }

    /// Likewise; a view may be what is declared wrongly.
    fn fault_of(&self, stmt: &Stmt, family: Family, change: &'static str, text: Text) -> Fault {
        let tensor = match stmt {
            Stmt::View(id, ..) => Some(self.kernel.tensor_name(*id).to_owned()),
            _ => None,
        };
        Fault { tensor, ..self.fault(family, change, text) }
    }

    fn of_statements(&mut self, stmts: &'k [Stmt]) {
        for (i, stmt) in stmts.iter().enumerate() {
            let at = self.at;
            for (family, change, none, edit) in changes(self.kernel, stmt) {
                let text = move |kernel: &Kernel| edited(kernel, at, &edit);
                let fault = self.fault_of(stmt, family, change, Box::new(text));
                self.all.push(Fault { none, ..fault });
            }
            for &(family, change, from, to) in REPLACED {
                if self.lines[at].contains(from) {
                    let text = move |kernel: &Kernel| replaced(kernel, at, from, to);
                    self.all.push(self.fault_of(stmt, family, change, Box::new(text)));
                }
            }
            if let Some(next) = stmts.get(i + 1) {
                self.of_swap(stmt, next);
            }
            if let Stmt::Allocate(id) = stmt {
                self.of_type(*id, Some(at), &label(&self.lines, at));
            }
            let typed = is_level(stmt);
            self.within.extend(typed.then_some(at));
            self.at += 1;
            self.of_statements(stmt.body());
            self.within.truncate(self.within.len() - usize::from(typed));
        }
    }

    fn of_swap(&mut self, stmt: &'k Stmt, next: &'k Stmt) {
        if !(moves(stmt) && moves(next) && stmt != next && depend(self.kernel, stmt, next)) {
            return;
        }
        let [family, other] = [stmt, next].map(|stmt| family_of(self.kernel, stmt));
        let at = self.at;
        let swap: Edit = Box::new(|list, i| list.swap(i, i + 1));
        let text = Box::new(move |kernel: &Kernel| edited(kernel, at, &swap));
        let mut fault = self.fault(family.max(other), "swapped", text);
        fault.none = [stmt, next].into_iter().filter_map(leaf).find_map(|spec| hint(&spec.kind));
        fault.line += &format!(" <-> {}", label(&self.lines, at + 1 + count(stmt.body())));
        self.all.push(fault);
    }

    fn of_type(&mut self, id: TensorId, at: Option<usize>, line: &str) {
        for (change, text) in retyped(self.kernel, id) {
            let mut fault = self.fault(Family::Stride, change, text);
            (fault.at, fault.line) = (at, line.to_owned());
            fault.tensor = Some(self.kernel.tensor_name(id).to_owned());
            self.all.push(fault);
        }
    }
}

/// How many lines of a kernel's text stand before its statements: its name, parameters, grid and block, and spec.
fn head(kernel: &Kernel) -> usize {
    kernel.params.len() + 4
}

/// Whether a statement is a spec with a body that says what it computes, or a loop that says what it carries.
pub(super) fn is_level(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Spec(spec) => spec.body.is_some(),
        Stmt::For(looped) => !looped.carry.is_empty(),
        _ => false,
    }
}

/// Whether a statement begins with a line of the text: none with what a loop carries, nor with a body's end.
fn begins(line: &str) -> bool {
    let line = line.trim();
    line != "}" && !line.starts_with("carry ")
}

/// The statements' first lines.
fn lines(kernel: &Kernel) -> Vec<String> {
    let text = kernel.to_string();
    let lines = text.lines().map(str::trim).filter(|line| begins(line));
    lines.skip(head(kernel)).map(str::to_owned).collect()
}

/// A statement's first line, with its body's first if it has one; if there are several of its like, with its number among
/// them.
fn label(lines: &[String], at: usize) -> String {
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

/// The kernel's text with an edit of one statement. Views that change are as they were until it is read back.
fn edited(kernel: &Kernel, at: usize, edit: &Edit) -> String {
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
    let (mut mutant, mut left) = (kernel.clone(), at);
    assert!(walk(mutant.spec.body.as_mut().unwrap(), &mut left, edit));
    mutant.to_string()
}

/// The kernel's text with a part of a statement's line replaced.
fn replaced(kernel: &Kernel, at: usize, from: &str, to: &str) -> String {
    let text = kernel.to_string();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut own = lines.iter_mut().skip(head(kernel)).filter(|line| begins(line));
    let line = own.nth(at).unwrap();
    *line = line.replacen(from, to, 1);
    lines.join("\n")
}

/// How many statements there are, those within others as well.
fn count(stmts: &[Stmt]) -> usize {
    stmts.iter().map(|stmt| 1 + count(stmt.body())).sum()
}

/// A spec without a body.
pub(super) fn leaf(stmt: &Stmt) -> Option<&Spec> {
    match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => Some(spec),
        _ => None,
    }
}

/// The family of a statement that is dropped, doubled or out of place.
fn family_of(kernel: &Kernel, stmt: &Stmt) -> Family {
    match (stmt, leaf(stmt)) {
        (Stmt::Advance(_), _) => Family::Stage,
        (_, Some(spec)) if synchronises(kernel, spec) => Family::Synchronisation,
        _ => Family::Statement,
    }
}

pub(super) fn synchronises(kernel: &Kernel, spec: &Spec) -> bool {
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

/// Why a statement may stand twice.
fn said_twice(kernel: &Kernel, spec: &Spec) -> Option<&'static str> {
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
        Kind::MatMul { accumulate: true }
        | Kind::Fused(_)
        | Kind::Fold(_)
        | Kind::Scan(_)
        | Kind::Reduction(_)
        | Kind::Arrive(_)
        | Kind::GridArrive(_) => None,
    }
}

/// All that may be done to a statement on its own.
fn changes(kernel: &Kernel, stmt: &Stmt) -> Vec<Change> {
    let mut all = match stmt {
        Stmt::Spec(spec) if spec.body.is_none() => of_spec(kernel, spec),
        Stmt::Advance(_) => {
            let all = [("delete advance", delete()), ("doubled", doubled())];
            all.map(|(change, edit)| (Family::Stage, change, None, edit)).into()
        }
        Stmt::Ring(_) => {
            let all = [("add a stage", stages(1)), ("take a stage", stages(-1))];
            all.map(|(change, edit)| (Family::Stage, change, None, edit)).into()
        }
        Stmt::If(..) => {
            let all = [("remove predicate", inline()), ("drop body", delete())];
            all.map(|(change, edit)| (Family::Bound, change, None, edit)).into()
        }
        Stmt::Role(threads, first, end, _) => {
            let level = &kernel.threads(*threads).view.levels()[0];
            let size = level.size().constant().unwrap();
            let mut all = vec![("drop role", delete())];
            if *end < size {
                all.extend([("widen role up", role(0, 1)), ("shift role up", role(1, 1))]);
            }
            if *first > 0 {
                all.extend([("widen role down", role(-1, 0)), ("shift role down", role(-1, -1))]);
            }
            all.push(("role of all", role(-first, size - end)));
            all.into_iter().map(|(change, edit)| (Family::Role, change, None, edit)).collect()
        }
        Stmt::View(_, _, ViewOp::Index(at)) if at.iter().any(has_stage) => {
            let next: Edit = Box::new(|list, i| {
                if let Stmt::View(_, _, ViewOp::Index(at)) = &mut list[i] {
                    at.iter_mut().for_each(next_stage);
                }
            });
            vec![(Family::Stage, "off by a stage", None, next)]
        }
        Stmt::For(looped) => bounds(looped),
        _ => Vec::new(),
    };
    all.extend(strides(stmt));
    all
}

/// What may be done to a spec without a body.
fn of_spec(kernel: &Kernel, spec: &Spec) -> Vec<Change> {
    const MORE: &str = "waits for more: every order of events is one that there was before";
    let orders = synchronises(kernel, spec);
    let family = |change: &str| match (change, &spec.kind) {
        ("flip parity", _) => Family::Stage,
        (_, Kind::Registers(_)) => Family::Role,
        _ if orders || spec.completion != Completion::Now => Family::Synchronisation,
        _ => Family::Statement,
    };
    let none = |change: &str| match (change, &spec.kind) {
        ("one less pending", Kind::WaitGroup(_, pending, _)) if *pending > 0 => Some(MORE),
        ("flip read", Kind::WaitGroup(Group::Bulk, _, true)) => Some(MORE),
        _ => None,
    };
    let of_kind = of_kind(kernel, spec).into_iter();
    let mut all: Vec<Change> =
        of_kind.map(|(change, edit)| (family(change), change, none(change), edit)).collect();
    let signal = match &spec.completion {
        Completion::Signals(barrier) => Some(barrier),
        Completion::Now | Completion::Group => None,
    };
    let mut operands = spec.outs.iter().chain(&spec.ins).chain(signal);
    if operands.any(|operand| operand.index.iter().any(has_stage)) {
        let (change, edit) = on("off by a stage", |spec| {
            let signal = match &mut spec.completion {
                Completion::Signals(barrier) => Some(barrier),
                Completion::Now | Completion::Group => None,
            };
            let operands = spec.outs.iter_mut().chain(&mut spec.ins).chain(signal);
            operands.for_each(|operand| operand.index.iter_mut().for_each(next_stage));
        });
        all.push((Family::Stage, change, None, edit));
    }
    let own = if orders { Family::Synchronisation } else { Family::Statement };
    // Of others, to drop them is among what may be done to their kind.
    if !all.iter().any(|row| row.1.starts_with("delete")) {
        all.push((own, "dropped", hint(&spec.kind), delete()));
    }
    all.push((own, "doubled", said_twice(kernel, spec), doubled()));
    all
}

/// What may be said otherwise by a spec of its kind, or be done to it under the kind's name.
fn of_kind(kernel: &Kernel, spec: &Spec) -> Vec<(&'static str, Edit)> {
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

fn delete() -> Edit {
    Box::new(|list, i| drop(list.remove(i)))
}

fn doubled() -> Edit {
    Box::new(|list, i| {
        let again = list[i].clone();
        list.insert(i, again);
    })
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

/// What may be done to a loop's bounds.
fn bounds(looped: &For) -> Vec<Change> {
    let [first, end, step] = [&looped.first, &looped.end, &looped.step].map(Expr::constant);
    let once =
        matches!((first, end, step), (Some(first), Some(end), Some(step)) if first + step >= end);
    let edit = |change, edit: fn(&mut For)| -> Change {
        let edit = move |list: &mut Vec<Stmt>, i: usize| {
            if let Stmt::For(looped) = &mut list[i] {
                edit(looped);
            }
        };
        (Family::Bound, change, None, Box::new(edit))
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
