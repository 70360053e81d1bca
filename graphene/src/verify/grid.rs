//! Which blocks reach a wait for others of the grid.

use std::collections::{BTreeMap, BTreeSet};

use crate::text::print::list;
use crate::{Agent, Expr, Kernel, Kind, Operand, Spec, Stmt, TensorId, Var};

/// What is wrong, with the number of a spec, counting the kernel's own as 1.
///
/// Blocks that count and await at one counter must all do so, as often as each other: what decides whether, how often and up to
/// which number they do may differ between blocks only as the choice of the counter does.
pub(super) fn check(kernel: &Kernel) -> Vec<(usize, String)> {
    let mut walk = Walk { kernel, specs: 1, differs: BTreeMap::new(), wrong: Vec::new() };
    walk.block(kernel.spec.body.as_deref().unwrap_or_default(), &Differs::new());
    walk.wrong
}

/// By what something differs between blocks.
type Differs = BTreeSet<Cause>;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Coordinate(Var),
    Memory(TensorId),
}

struct Walk<'a> {
    kernel: &'a Kernel,
    specs: usize,
    /// By what each variable differs.
    differs: BTreeMap<Var, Differs>,
    wrong: Vec<(usize, String)>,
}

impl Walk<'_> {
    fn of<'e>(&self, exprs: impl IntoIterator<Item = &'e Expr>) -> Differs {
        let vars = exprs.into_iter().flat_map(Expr::vars);
        vars.filter_map(|var| self.differs.get(&var)).flatten().cloned().collect()
    }

    fn block(&mut self, stmts: &[Stmt], around: &Differs) {
        stmts.iter().for_each(|stmt| self.stmt(stmt, around));
    }

    fn stmt(&mut self, stmt: &Stmt, around: &Differs) {
        match stmt {
            Stmt::Indices(vars, threads) => {
                let threads = self.kernel.threads(*threads);
                for var in vars.iter().filter(|_| threads.agent == Agent::Block) {
                    let own = Cause::Coordinate(var.clone());
                    self.differs.insert(var.clone(), Differs::from([own]));
                }
            }
            Stmt::Let(var, value) => {
                let differs = self.of([value]);
                self.differs.insert(var.clone(), differs);
            }
            Stmt::Value(var, of) => {
                self.differs.insert(var.clone(), Differs::from([Cause::Memory(*of)]));
            }
            Stmt::Spec(spec) => {
                self.specs += 1;
                match &spec.body {
                    Some(body) => self.block(body, around),
                    None => self.atom(spec, around),
                }
            }
            Stmt::For(looped) => {
                let own = self.of([&looped.first, &looped.end, &looped.step]);
                self.differs.insert(looped.var.clone(), own.clone());
                self.block(&looped.body, &(&own | around));
            }
            Stmt::If(test, body) => {
                let conds = self.kernel.conditions(test).unwrap_or_default();
                let own = self.of(conds.iter().flat_map(|cond| [&cond.left, &cond.right]));
                self.block(body, &(&own | around));
            }
            Stmt::Role(_, _, _, body) => self.block(body, around),
            _ => {}
        }
    }

    fn atom(&mut self, spec: &Spec, around: &Differs) {
        let (counter, number): (Option<&Operand>, _) = match &spec.kind {
            Kind::GridArrive(below) => (spec.outs.first(), below),
            Kind::GridWait(count) => (spec.ins.first(), count),
            _ => return,
        };
        let Some(counter) = counter.and_then(|counter| self.kernel.operand(counter).ok()) else {
            return;
        };
        let chosen = self.of(&counter.view.start());
        let decided = around | &self.of([number]);
        let others = decided.difference(&chosen).map(|cause| match cause {
            Cause::Coordinate(var) => var.to_string(),
            Cause::Memory(id) => format!("%{}", self.kernel.tensor_name(*id)),
        });
        let others = list(others);
        if !others.is_empty() {
            let who = format!("blocks that share the counter {counter}");
            let message = format!("{who} may not all reach it: that depends on {others}");
            self.wrong.push((self.specs, message));
        }
    }
}
