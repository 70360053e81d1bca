//! Which threads reach a statement: followed for every thread of the block.

use std::collections::HashMap;

use crate::index::{Cond, Expr, Var};
use crate::kernel::{Ring, thread_var};
use crate::tensor::{Agent, Threads};

/// What a variable is for each thread.
#[derive(Debug, Clone)]
enum Value {
    /// The same for all threads of a block, whatever it is.
    Uniform,
    /// These numbers.
    Each(Vec<i64>),
    /// It may differ by thread in ways that are not followed.
    Varying,
}

/// The threads of a block that are active, and what their variables are.
#[derive(Debug)]
pub(super) struct Group {
    active: Vec<bool>,
    /// Whether a condition that is not followed may have left some out.
    uncertain: bool,
    values: HashMap<Var, Value>,
    /// Of a ring's variables, which statements have advanced it for each thread, as a number: threads
    /// that differ in it may have other stages. And whether some may have been left out before it.
    rings: HashMap<Var, (Vec<u64>, bool)>,
    /// Statements that have advanced a ring.
    advances: u64,
}

impl Group {
    pub(super) fn new(threads: i64) -> Group {
        let values = HashMap::from([(thread_var(threads), Value::Each((0..threads).collect()))]);
        Group {
            active: vec![true; threads.max(0) as usize],
            uncertain: false,
            values,
            rings: HashMap::new(),
            advances: 0,
        }
    }

    pub(super) fn active(&self) -> &[bool] {
        &self.active
    }

    /// Whether an expression may differ among the active threads.
    pub(super) fn varies(&self, expr: &Expr) -> bool {
        match self.value(expr) {
            Value::Uniform => false,
            Value::Varying => true,
            Value::Each(values) => {
                let mut own = values.iter().zip(&self.active).filter(|(_, active)| **active);
                let first = own.next();
                own.any(|value| Some(value) != first)
            }
        }
    }

    fn value(&self, expr: &Expr) -> Value {
        let mut all = Value::Uniform;
        let mut others = false;
        expr.each_var(&mut |var| match (self.values.get(var), &all) {
            (None, _) if self.apart(var) => all = Value::Varying,
            (None | Some(Value::Uniform), _) => others = true,
            (Some(Value::Varying), _) => all = Value::Varying,
            (Some(Value::Each(_)), Value::Varying) => {}
            (Some(Value::Each(_)), _) => all = Value::Each(Vec::new()),
        });
        match all {
            Value::Uniform | Value::Varying => all,
            // A sum of what differs and what is unknown differs in unknown ways.
            Value::Each(_) if others => Value::Varying,
            Value::Each(_) => self.each(expr).map_or(Value::Varying, Value::Each),
        }
    }

    /// Whether a variable is a ring's that active threads have not advanced alike.
    fn apart(&self, var: &Var) -> bool {
        let Some((pasts, _)) = self.rings.get(var) else { return false };
        let mut own = pasts.iter().zip(&self.active).filter(|(_, active)| **active);
        let first = own.next();
        own.any(|past| Some(past.0) != first.map(|first| first.0))
    }

    /// A ring begins, for all active threads alike.
    pub(super) fn ring(&mut self, ring: &Ring) {
        for var in [ring.stage(), ring.parity()] {
            self.rings.insert(var, (vec![0; self.active.len()], self.uncertain));
        }
    }

    /// The active threads advance a ring. What comes of it is followed in the order of the text: of a
    /// loop, within one round.
    pub(super) fn advance(&mut self, ring: &Ring) {
        self.advances += 1;
        for var in [ring.stage(), ring.parity()] {
            let Some((pasts, before)) = self.rings.get_mut(&var) else { continue };
            for (thread, (past, active)) in pasts.iter_mut().zip(&self.active).enumerate() {
                if *active {
                    *past = past.wrapping_mul(1_000_003).wrapping_add(self.advances);
                }
                // Who of them does is not known.
                if self.uncertain && !*before {
                    *past = past.wrapping_add(thread as u64 + 1);
                }
            }
        }
    }

    fn each(&self, expr: &Expr) -> Option<Vec<i64>> {
        (0..self.active.len())
            .map(|thread| {
                expr.value(&|var| match self.values.get(var) {
                    Some(Value::Each(values)) => values.get(thread).copied(),
                    Some(Value::Uniform | Value::Varying) | None => None,
                })
            })
            .collect()
    }

    /// The least value for the active threads, if it follows from their numbers alone.
    pub(super) fn least(&self, expr: &Expr) -> Option<i64> {
        match self.value(expr) {
            Value::Each(values) => {
                let own = values.iter().zip(&self.active).filter(|(_, active)| **active);
                own.map(|(value, _)| *value).min()
            }
            Value::Uniform | Value::Varying => expr.range().0,
        }
    }

    /// The expression, its variables no larger than they are for the active threads.
    pub(super) fn tighten(&self, expr: &Expr) -> Expr {
        let mut vars: Vec<Var> = Vec::new();
        expr.each_var(&mut |var| vars.push(var.clone()));
        vars.iter().fold(expr.clone(), |expr, var| {
            let Some(Value::Each(values)) = self.values.get(var) else { return expr };
            let own = values.iter().zip(&self.active).filter(|(_, active)| **active);
            match own.map(|(value, _)| *value).max() {
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
        self.values.insert(var.clone(), Value::Varying);
    }

    pub(super) fn uniform(&mut self, var: &Var) {
        self.values.insert(var.clone(), Value::Uniform);
    }

    pub(super) fn indices(&mut self, threads: &Threads, vars: &[Var]) {
        if threads.agent == Agent::Block {
            return vars.iter().for_each(|var| self.uniform(var));
        }
        let own = thread_var(self.active.len() as i64);
        for (var, coordinate) in vars.iter().zip(threads.coordinates(&own)) {
            self.define(var, &coordinate);
        }
    }

    /// Keeps the threads for which all conditions hold; gives back what [`widen`](Group::widen)
    /// takes.
    pub(super) fn narrow(&mut self, conds: &[Cond]) -> (Vec<bool>, bool) {
        let before = (self.active.clone(), self.uncertain);
        for cond in conds {
            let difference = cond.left.clone() - &cond.right;
            match self.value(&difference) {
                Value::Uniform => {}
                Value::Varying => self.uncertain = true,
                Value::Each(values) => {
                    for (active, value) in self.active.iter_mut().zip(values) {
                        *active &= cond.relation.compare(value, 0);
                    }
                }
            }
        }
        before
    }

    pub(super) fn widen(&mut self, before: (Vec<bool>, bool)) {
        (self.active, self.uncertain) = before;
    }

    /// Keeps the threads whose coordinate in the outermost level's dimension is in `first..end`.
    pub(super) fn role(&mut self, threads: &Threads, first: i64, end: i64) -> (Vec<bool>, bool) {
        let before = (self.active.clone(), self.uncertain);
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

    /// Whether every active thread is one of these.
    pub(super) fn belong(&self, threads: &Threads) -> Result<(), String> {
        let offsets = offsets(threads).ok_or("a role's threads are not constant")?;
        let first = threads.view.offset();
        let starts = match (self.value(&first), first.constant()) {
            (Value::Each(starts), _) => starts,
            (Value::Uniform | Value::Varying, Some(start)) => vec![start; self.active.len()],
            (Value::Uniform | Value::Varying, None) => {
                return Err("a role's threads depend on what is not followed".to_owned());
            }
        };
        for (thread, &start) in starts.iter().enumerate() {
            if self.active[thread] && !offsets.contains(&(thread as i64 - start)) {
                return Err(format!("thread {thread} is none of the threads of a role it reaches"));
            }
        }
        Ok(())
    }

    /// Whether all threads of every active thread's group are active, and agree on the group.
    pub(super) fn reach(&self, threads: &Threads) -> Result<(), String> {
        let size = threads.view.size().constant();
        if threads.agent == Agent::Block || size == Some(1) {
            return Ok(());
        }
        if self.uncertain {
            return Err("a condition around it may leave some of its threads out".to_owned());
        }
        let offsets = offsets(threads).ok_or("its threads are not constant")?;
        let first = threads.view.offset();
        let starts = match self.value(&first) {
            Value::Each(starts) => starts,
            Value::Uniform => match first.constant() {
                Some(start) => vec![start; self.active.len()],
                None => return Err("its threads depend on what is not followed".to_owned()),
            },
            Value::Varying => return Err("its threads depend on what is not followed".to_owned()),
        };
        for (thread, &start) in starts.iter().enumerate() {
            if !self.active[thread] {
                continue;
            }
            let mut member = false;
            for &offset in &offsets {
                let other = (start + offset) as usize;
                let agrees = self.active.get(other) == Some(&true) && starts[other] == start;
                if !agrees {
                    return Err(format!("thread {thread} reaches it, thread {other} does not"));
                }
                member |= other == thread;
            }
            if !member {
                return Err(format!("thread {thread} reaches it and is none of its threads"));
            }
        }
        Ok(())
    }
}

/// The distances of a group's threads from its first.
fn offsets(threads: &Threads) -> Option<Vec<i64>> {
    let mut all = vec![0];
    for leaf in threads.view.leaves() {
        let (size, stride) = (leaf.size.constant()?, threads.view.stride(leaf).constant()?);
        all = (0..size).flat_map(|i| all.iter().map(move |at| at + i * stride)).collect();
    }
    Some(all)
}
