//! The kinds of specs: a row each.

use std::ops::RangeInclusive;

use super::{cursor::Parser, expr::expr, fused::fused, print::list};
use crate::convert::display;
use crate::kernel::{Fold, Monoid, Scan};
use crate::{Binary, Builder, Fence, Group, Kind, Number, Result, Scope, Unary};

/// How a kind is written, and how many operands it has.
pub(crate) struct Row {
    name: &'static str,
    pub(crate) outs: RangeInclusive<usize>,
    pub(crate) ins: RangeInclusive<usize>,
    /// Reads what follows the name; [`Display`](std::fmt::Display) writes it.
    read: fn(&mut Parser<'_>, &Builder) -> Result<Kind>,
}

const ANY: usize = usize::MAX;

/// A row for each variant: the name, which it is, numbers of outputs and inputs, and how its parameters are read.
macro_rules! kinds {
    ($($name:literal $of:pat, $outs:expr, $ins:expr, $read:expr;)*) => {
        /// Where one name begins with another, it comes first.
        static ROWS: [Row; [$($name),*].len()] =
            [$(Row { name: $name, outs: $outs, ins: $ins, read: $read }),*];

        impl Kind {
            /// The name in text and in atoms' patterns.
            pub fn name(&self) -> &'static str {
                match self { $($of => $name,)* }
            }
        }
    };
}

kinds! {
    "Move" Kind::Move, 1..=1, 1..=1, |_, _| Ok(Kind::Move);
    "MatMul+=" Kind::MatMul { accumulate: true }, 1..=1, 2..=2, |_, _| Ok(Kind::MATMUL_ADD);
    "MatMul" Kind::MatMul { accumulate: false }, 1..=1, 2..=2, |_, _| Ok(Kind::MATMUL);
    "UnaryPointwise" Kind::Unary(_), 1..=1, 1..=1, |p, _| p.argument(|p| p.row("a function", &Unary::ALL)).map(Kind::Unary);
    "BinaryPointwise" Kind::Binary(_), 1..=1, 2..=2, |p, _| p.argument(binary).map(Kind::Binary);
    "Select" Kind::Select, 1..=1, 3..=3, |_, _| Ok(Kind::Select);
    "Reduction" Kind::Reduction(_), 1..=1, 1..=1, |p, _| p.argument(binary).map(Kind::Reduction);
    "Fused" Kind::Fused(_), 1..=ANY, 0..=ANY, |p, k| fused(p, k).map(Kind::Fused);
    "Fold" Kind::Fold(_), 1..=ANY, 1..=1, |p, _| p.argument(fold).map(Kind::Fold);
    "Scan" Kind::Scan(_), 1..=1, 1..=1, |p, _| p.argument(scan).map(Kind::Scan);
    "Shfl" Kind::Shfl(_), 1..=1, 1..=1, |p, _| p.argument(Parser::integer).map(Kind::Shfl);
    "Init" Kind::Init(_), 1..=1, 0..=0, |p, _| p.argument(Parser::number).map(Kind::Init);
    "Index" Kind::Index(_), 1..=1, 0..=0, |p, k| p.argument(|p| expr(p, k)).map(Kind::Index);
    "Arrive" Kind::Arrive(_), 1..=1, 0..=0, |p, k| {
        let bytes = if p.sees("<<<") { None } else { Some(p.argument(|p| expr(p, k))?) };
        Ok(Kind::Arrive(bytes))
    };
    "WaitGroup" Kind::WaitGroup(..), 0..=1, 0..=0, |p, _| p.argument(|p| {
        Ok(Kind::WaitGroup(p.row("a group", &Group::ALL)?, p.after_comma(Parser::integer)?, p.flag("read")?))
    });
    "Wait" Kind::Wait(..), 1..=1, 0..=0, |p, k| p.argument(|p| {
        Ok(Kind::Wait(expr(p, k)?, if p.flag("cluster")? { Scope::Cluster } else { Scope::Block }))
    });
    "Commit" Kind::Commit(_), 0..=0, 0..=0, |p, _| p.argument(|p| p.row("a group", &Group::ALL)).map(Kind::Commit);
    "Fence" Kind::Fence(_), 0..=1, 0..=0, |p, _| p.argument(|p| p.row("a fence", &Fence::ALL)).map(Kind::Fence);
    "Sync" Kind::Sync, 0..=0, 0..=0, |_, _| Ok(Kind::Sync);
    "Registers" Kind::Registers(_), 0..=0, 0..=0, |p, _| p.argument(Parser::integer).map(Kind::Registers);
    "LaunchDependents" Kind::LaunchDependents, 0..=0, 0..=0, |_, _| Ok(Kind::LaunchDependents);
    "GridDependencyWait" Kind::GridDependencyWait, 0..=0, 0..=0, |_, _| Ok(Kind::GridDependencyWait);
    "Prefetch" Kind::Prefetch, 0..=0, 1..=1, |_, _| Ok(Kind::Prefetch);
    "GridArrive" Kind::GridArrive(_), 1..=1, 0..=0, |p, k| p.argument(|p| expr(p, k)).map(Kind::GridArrive);
    "GridWait" Kind::GridWait(_), 0..=0, 1..=1, |p, k| p.argument(|p| expr(p, k)).map(Kind::GridWait);
}

pub(crate) fn row_of(kind: &Kind) -> &'static Row {
    let mut rows = ROWS.iter();
    rows.find(|row| row.name == kind.name()).expect("every kind has a row")
}

pub(super) fn kind(p: &mut Parser<'_>, k: &Builder) -> Result<Kind> {
    let at = p.next();
    let name = p.word().unwrap_or_default();
    let found = ROWS.iter().find(|row| match row.name.strip_suffix("+=") {
        Some(stem) => stem == name && p.eat("+="),
        None => row.name == name,
    });
    match found {
        Some(row) => (row.read)(p, k),
        None if name.is_empty() => Err(p.expected("a statement")),
        None => Err(p.fail(at, format!("`{name}` is neither a statement nor a spec"))),
    }
}

pub(super) fn binary(p: &mut Parser<'_>) -> Result<Binary> {
    let mut rows = Binary::ALL.iter();
    let row = rows.find(|row| p.eat_word(row.1) || (row.1.len() == 1 && p.eat(row.1)));
    row.map(|row| row.0)
        .ok_or_else(|| p.expected("a function of two numbers (+, -, *, /, max, min, ...)"))
}

/// `softmax`, `welford`, or a function of two numbers.
pub(super) fn monoid(p: &mut Parser<'_>) -> Result<Monoid> {
    let mut named = [Monoid::Softmax, Monoid::Welford].into_iter();
    let found = named.find(|of| p.eat_word(&of.to_string()));
    found.map_or_else(|| binary(p).map(Monoid::Of), Ok)
}

fn fold(p: &mut Parser<'_>) -> Result<Fold> {
    let monoid = monoid(p)?;
    Ok(Fold { monoid, along: p.after_comma(Parser::dimensions)? })
}

pub(super) fn scan(p: &mut Parser<'_>) -> Result<Scan> {
    let (op, along) = (binary(p)?, p.after_comma(Parser::dimension)?);
    let comma = p.next();
    let exclusive = p.eat(",") && p.eat_word("exclusive");
    if !exclusive {
        p.back(comma);
    }
    Ok(Scan { op, along, exclusive, reverse: p.flag("reverse")? })
}

display! {
    Kind: |kind, f| {
        f.write_str(kind.name())?;
        match kind {
            Kind::Unary(function) => write!(f, "<{function}>"),
            Kind::Binary(function) | Kind::Reduction(function) => write!(f, "<{function}>"),
            Kind::Fused(fused) => write!(f, "{{{fused}}}"),
            Kind::Fold(fold) => write!(f, "<{fold}>"),
            Kind::Scan(scan) => write!(f, "<{scan}>"),
            Kind::Shfl(number) | Kind::Registers(number) => write!(f, "<{number}>"),
            Kind::Init(value) => write!(f, "<{value}>"),
            Kind::Index(value)
            | Kind::Arrive(Some(value))
            | Kind::Wait(value, Scope::Block)
            | Kind::GridArrive(value)
            | Kind::GridWait(value) => write!(f, "<{value}>"),
            Kind::Wait(parity, Scope::Cluster) => write!(f, "<{parity}, cluster>"),
            Kind::Commit(group) => write!(f, "<{group}>"),
            Kind::WaitGroup(group, left, false) => write!(f, "<{group}, {left}>"),
            Kind::WaitGroup(group, left, true) => write!(f, "<{group}, {left}, read>"),
            Kind::Fence(fence) => write!(f, "<{fence}>"),
            _ => Ok(()),
        }
    };
    Monoid: |monoid, f| match monoid {
        Monoid::Of(op) => write!(f, "{op}"),
        Monoid::Softmax => f.write_str("softmax"),
        Monoid::Welford => f.write_str("welford"),
    };
    Fold: |fold, f| write!(f, "{}, {}", fold.monoid, list(&fold.along));
    Scan: |scan, f| {
        write!(f, "{}, {}", scan.op, scan.along)?;
        f.write_str(if scan.exclusive { ", exclusive" } else { "" })?;
        f.write_str(if scan.reverse { ", reverse" } else { "" })
    };
    // As short as reads back: `2`, `0.5`, `1e-30`, `-inf`.
    Number: |number, f| {
        let text = format!("{:?}", number.0);
        f.write_str(text.strip_suffix(".0").unwrap_or(&text))
    };
}
