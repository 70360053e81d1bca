//! Which threads reach a statement: followed for every thread of the block.

use std::collections::{HashMap, HashSet};

use super::Held;
use crate::kernel::thread_var;
use crate::{Agent, Cond, Expr, Ring, Threads, Var};

/// What a variable is for each thread: whatever it is, the same for threads of the same class.
#[derive(Debug, Clone)]
struct Value {
    classes: Vec<u64>,
    /// The numbers, if they follow from those of the threads.
    numbers: Option<Vec<i64>>,
}

/// The threads of a block that are active, and what their variables are.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) active: Vec<bool>,
    /// Whether a condition that is not followed may have left some out.
    uncertain: bool,
    /// Threads with the same number here have come through the same conditions and loops.
    paths: Vec<u64>,
    /// None: it may differ by thread in ways that are not followed.
    values: HashMap<Var, Option<Value>>,
    /// Of a ring's variables, which statements have advanced it for each thread, as a number: threads
    /// that differ in it may have other stages. And whether some may have been left out before it.
    rings: HashMap<Var, (Vec<u64>, bool)>,
    /// Which of them are parities.
    pub(super) parities: HashSet<Var>,
    /// Statements that have advanced a ring.
    advances: u64,
}

/// Of a group, what a condition, a role or a loop changes: who is active, whether that is certain, and the paths.
type Before = (Vec<bool>, bool, Vec<u64>);

/// A number that differs, for all that matters, if either of these does.
fn mixed(all: u64, own: u64) -> u64 {
    let mixed = (all ^ own.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ mixed >> 32
}

/// Whether those that are active are not all the same.
fn unlike<T: PartialEq>(all: &[T], active: &[bool]) -> bool {
    let mut own = all.iter().zip(active).filter(|(_, active)| **active).map(|(value, _)| value);
    let first = own.next();
    own.any(|value| Some(value) != first)
}

impl Value {
    fn numbers(all: Vec<i64>) -> Value {
        Value { classes: all.iter().map(|number| *number as u64).collect(), numbers: Some(all) }
    }
}

impl Group {
    pub(super) fn new(threads: i64) -> Group {
        let own = Value::numbers((0..threads).collect());
        let values = HashMap::from([(thread_var(threads), Some(own))]);
        let count = threads.max(0) as usize;
        Group { active: vec![true; count], paths: vec![0; count], values, ..Group::default() }
    }

    fn value(&self, expr: &Expr) -> Option<Value> {
        let (mut numbers, mut unknown, mut varying) = (false, false, false);
        let mut classes = vec![0; self.active.len()];
        let mut mix = |of: &[u64]| {
            classes.iter_mut().zip(of).for_each(|(all, own)| *all = mixed(*all, *own));
        };
        expr.each_var(&mut |var| match (self.values.get(var), self.rings.get(var)) {
            (Some(None), _) => varying = true,
            (Some(Some(value)), _) => {
                *if value.numbers.is_some() { &mut numbers } else { &mut unknown } = true;
                mix(&value.classes);
            }
            (None, Some((pasts, _))) if unlike(pasts, &self.active) => mix(pasts),
            (None, _) => unknown = true,
        });
        let numbers = if numbers && !unknown { self.each(expr) } else { None };
        let alike = || numbers.map_or(Value { classes, numbers: None }, Value::numbers);
        (!varying).then(alike)
    }

    /// A ring begins, for all active threads alike.
    pub(super) fn ring(&mut self, ring: &Ring) {
        self.parities.insert(ring.parity());
        for var in [ring.stage(), ring.parity()] {
            self.rings.insert(var, (vec![0; self.active.len()], self.uncertain));
        }
    }

    /// The active threads advance a ring. What comes of it is followed in the order of the text: of a loop, within one round.
    pub(super) fn advance(&mut self, ring: &Ring) {
        self.advances += 1;
        for var in [ring.stage(), ring.parity()] {
            let Some((pasts, before)) = self.rings.get_mut(&var) else { continue };
            for (thread, (past, active)) in pasts.iter_mut().zip(&self.active).enumerate() {
                if *active {
                    *past = mixed(mixed(*past, self.advances), self.paths[thread]);
                }
                // Who of them does is not known.
                if self.uncertain && !*before {
                    *past = past.wrapping_add(thread as u64 + 1);
                }
            }
        }
    }

    fn each(&self, expr: &Expr) -> Option<Vec<i64>> {
        let number = |var: &Var, thread: usize| {
            self.values.get(var)?.as_ref()?.numbers.as_ref()?.get(thread).copied()
        };
        (0..self.active.len()).map(|thread| expr.value(&|var| number(var, thread))).collect()
    }

    /// The least value for the active threads, if it follows from their numbers alone.
    pub(super) fn least(&self, expr: &Expr) -> Option<i64> {
        match self.value(expr).and_then(|value| value.numbers) {
            Some(numbers) => self.threads().map(|thread| numbers[thread]).min(),
            None => expr.range().0,
        }
    }

    /// The expression, its variables no larger than they are for the active threads.
    pub(super) fn tighten(&self, expr: &Expr) -> Expr {
        expr.vars().iter().fold(expr.clone(), |expr, var| {
            let Some(Some(Value { numbers: Some(values), .. })) = self.values.get(var) else {
                return expr;
            };
            match self.threads().map(|thread| values[thread]).max() {
                Some(max) => expr.substitute(var, &Var::new(var.name(), Some(max)).into()),
                None => expr,
            }
        })
    }

    pub(super) fn define(&mut self, var: &Var, value: &Expr) {
        let value = self.value(value);
        self.values.insert(var.clone(), value);
    }

    pub(super) fn varying(&mut self, var: &Var) {
        self.values.insert(var.clone(), None);
    }

    /// Threads with the same number here have the same value.
    fn alike(&mut self, var: &Var, classes: Vec<u64>) {
        self.values.insert(var.clone(), Some(Value { classes, numbers: None }));
    }

    /// The active threads go through a loop; gives back what [`widen`](Group::widen) takes. Warps may
    /// go through it a different number of times, unless `None`: so may threads of one warp.
    pub(super) fn enter(&mut self, var: &Var, bounds: [&Expr; 3]) -> Option<Before> {
        let before = self.before();
        let mut differ = false;
        for bound in bounds {
            let Value { classes, .. } = self.value(bound)?;
            if unlike(&classes, &self.active) {
                differ = true;
                self.follow(&classes);
            }
        }
        let mut warps = self.paths.chunks(32).zip(self.active.chunks(32));
        let torn = warps.any(|(paths, active)| unlike(paths, active));
        self.alike(var, if differ { self.paths.clone() } else { vec![0; self.active.len()] });
        if differ && torn { None } else { Some(before) }
    }

    /// Threads with different numbers go their own ways.
    fn follow(&mut self, numbers: &[u64]) {
        self.paths.iter_mut().zip(numbers).for_each(|(path, own)| *path = mixed(*path, *own));
    }

    fn before(&self) -> Before {
        (self.active.clone(), self.uncertain, self.paths.clone())
    }

    pub(super) fn indices(&mut self, threads: &Threads, vars: &[Var]) {
        if threads.agent == Agent::Block {
            return vars.iter().for_each(|var| self.alike(var, vec![0; self.active.len()]));
        }
        let own = thread_var(self.active.len() as i64);
        for (var, coordinate) in vars.iter().zip(threads.coordinates(&own)) {
            self.define(var, &coordinate);
        }
    }

    /// Keeps the threads for which all conditions hold; gives back what [`widen`](Group::widen) takes.
    pub(super) fn narrow(&mut self, conds: &[Cond]) -> Before {
        let before = self.before();
        for cond in conds {
            let difference = cond.left.clone() - &cond.right;
            match self.value(&difference) {
                None => self.uncertain = true,
                Some(Value { classes, numbers: None }) => self.follow(&classes),
                Some(Value { numbers: Some(numbers), .. }) => {
                    for (active, number) in self.active.iter_mut().zip(numbers) {
                        *active &= cond.relation.compare(number, 0);
                    }
                }
            }
        }
        before
    }

    pub(super) fn widen(&mut self, before: Before) {
        (self.active, self.uncertain, self.paths) = before;
    }

    /// Keeps the threads whose coordinate in the outermost level's dimension is in `first..end`.
    pub(super) fn role(&mut self, threads: &Threads, first: i64, end: i64) -> Before {
        let before = self.before();
        let own = thread_var(self.active.len() as i64);
        let coordinate = threads.coordinates(&own).into_iter().next();
        match coordinate.and_then(|coordinate| self.each(&coordinate)) {
            Some(values) => {
                for (active, value) in self.active.iter_mut().zip(values) {
                    *active &= (first..end).contains(&value);
                }
            }
            None => self.uncertain = true,
        }
        before
    }

    /// Of a tensor of threads, for each thread the first of its group, and the others' distances from that.
    fn members(&self, threads: &Threads) -> Result<(Vec<i64>, Vec<i64>), String> {
        let offsets = threads.view.offsets().ok_or("its threads are not constant")?;
        let first = threads.view.offset();
        let same = || first.constant().map(|start| vec![start; self.active.len()]);
        let starts = self.value(&first).and_then(|value| value.numbers).or_else(same);
        Ok((starts.ok_or("its threads depend on what is not followed")?, offsets))
    }

    /// The active threads, by their numbers.
    fn threads(&self) -> impl Iterator<Item = usize> {
        (0..self.active.len()).filter(|thread| self.active[*thread])
    }

    /// Whether every active thread is one of these.
    pub(super) fn belong(&self, threads: &Threads) -> Held {
        let (starts, offsets) = self.members(threads)?;
        match self.threads().find(|&own| !offsets.contains(&(own as i64 - starts[own]))) {
            Some(own) => Err(format!("thread {own} is none of the threads of a role it reaches")),
            None => Ok(()),
        }
    }

    /// Whether the threads of every active thread's group are all among the threads `above`. Those that are not
    /// followed are refused where they are [reached](Group::reach).
    pub(super) fn within(&self, threads: &Threads, above: &Threads) -> Held {
        let (Ok(own), Ok(around)) = (self.members(threads), self.members(above)) else {
            return Ok(());
        };
        let ((starts, offsets), (firsts, all)) = (own, around);
        let outside = |&own: &usize| {
            offsets.iter().any(|offset| !all.contains(&(starts[own] + offset - firsts[own])))
        };
        let what = "group not all are threads of the spec around it";
        self.threads().find(outside).map_or(Ok(()), |own| Err(format!("of thread {own}'s {what}")))
    }

    /// Whether all threads of every active thread's group are active, and agree on the group.
    pub(super) fn reach(&self, threads: &Threads) -> Held {
        if threads.agent == Agent::Block || threads.view.size().is(1) {
            return Ok(());
        }
        if self.uncertain {
            return Err("a condition around it may leave some of its threads out".to_owned());
        }
        let (starts, offsets) = self.members(threads)?;
        for thread in self.threads() {
            let others = || offsets.iter().map(|offset| (starts[thread] + offset) as usize);
            let agrees = |other: usize| {
                self.active.get(other) == Some(&true)
                    && starts[other] == starts[thread]
                    && self.paths[other] == self.paths[thread]
            };
            if let Some(other) = others().find(|&other| !agrees(other)) {
                return Err(format!("thread {thread} reaches it, thread {other} does not"));
            }
            if !others().any(|other| other == thread) {
                return Err(format!("thread {thread} reaches it and is none of its threads"));
            }
        }
        Ok(())
    }

    /// Whether all of a warp is active wherever one of its threads is, and has come the same way.
    pub(super) fn whole_warps(&self) -> Held {
        let warps = self.active.chunks(32).zip(self.paths.chunks(32));
        for (warp, (active, paths)) in warps.enumerate() {
            let whole = active.len() == 32 && active.iter().all(|active| *active);
            let together = paths.iter().all(|path| *path == paths[0]);
            if active.contains(&true) && !(whole && together) {
                return Err(format!("only a part of warp {warp} reaches it"));
            }
        }
        Ok(())
    }
}
