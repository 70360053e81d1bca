//! Open scopes, and the names that are known in them.

use std::{collections::BTreeMap, fmt::Display};

use super::{Builder, MAX_NESTING, check};
use crate::{Error, Result, Ring, Stmt, Tensor, TensorId, Threads, ThreadsId, Var, tensor::ViewOp};

/// Tensors of data and of threads, which have the same operations.
pub trait Viewed: Copy {
    type Of: Clone + Display;
    /// What its name begins with in text.
    const SIGIL: char;
    fn numbered(number: usize) -> Self;
    fn number(self) -> usize;
    fn table(k: &Builder) -> &Table<Self::Of>;
    fn table_mut(k: &mut Builder) -> &mut Table<Self::Of>;
    fn apply(of: &Self::Of, op: &ViewOp) -> Result<Self::Of>;
    fn statement(self, of: Self, op: ViewOp) -> Stmt;
}

/// What has been declared of one sort: names are there once, and known while their scopes are open.
#[derive(Debug)]
pub struct Table<T> {
    pub(super) rows: Vec<(String, T)>,
    names: BTreeMap<String, usize>,
    open: Vec<bool>,
}

/// Statements, and what is declared among them.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) stmts: Vec<Stmt>,
    pub(super) vars: Vec<Var>,
    pub(super) rings: Vec<Ring>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { rows: Vec::new(), names: BTreeMap::new(), open: Vec::new() }
    }
}

macro_rules! viewed {
    ($id:ident, $of:ident, $table:ident, $sigil:literal, $stmt:ident) => {
        impl Viewed for $id {
            type Of = $of;
            const SIGIL: char = $sigil;

            fn apply(of: &$of, op: &ViewOp) -> Result<$of> {
                of.apply(op)
            }

            fn numbered(number: usize) -> $id {
                $id(u32::try_from(number).expect("fewer tensors than memory has bytes"))
            }

            fn number(self) -> usize {
                self.0 as usize
            }

            fn table(k: &Builder) -> &Table<$of> {
                &k.$table
            }

            fn table_mut(k: &mut Builder) -> &mut Table<$of> {
                &mut k.$table
            }

            fn statement(self, of: $id, op: ViewOp) -> Stmt {
                Stmt::$stmt(self, of, op)
            }
        }
    };
}

viewed!(TensorId, Tensor, tensors, '%', View);
viewed!(ThreadsId, Threads, threads, '#', Threads);

impl Builder {
    /// A tensor of data, or of threads or blocks. Fails with [`Error::Kernel`] if its scope has closed.
    pub fn tensor_of<V: Viewed>(&self, id: V) -> Result<&V::Of> {
        let table = V::table(self);
        let (name, of) = &table.rows[id.number()];
        check::refuse_if(!table.open[id.number()], format_args!("no {}{name} here", V::SIGIL))?;
        Ok(of)
    }

    pub(crate) fn find<V: Viewed>(&self, name: &str) -> Option<V> {
        let table = V::table(self);
        table.names.get(name).copied().filter(|&number| table.open[number]).map(V::numbered)
    }

    pub(crate) fn is_taken<V: Viewed>(&self, name: &str) -> bool {
        V::table(self).names.contains_key(name)
    }

    pub(super) fn declare<V: Viewed>(&mut self, name: &str, of: V::Of) -> Result<V> {
        check::word(name)?;
        let name = free(name, |name| self.is_taken::<V>(name));
        let table = V::table_mut(self);
        let number = table.rows.len();
        table.names.insert(name.clone(), number);
        table.rows.push((name, of));
        table.open.push(true);
        Ok(V::numbered(number))
    }

    /// Another view of the same elements.
    pub(crate) fn view<V: Viewed>(&mut self, of: V, name: &str, op: ViewOp) -> Result<V> {
        check::op(self, &op)?;
        let view = V::apply(self.tensor_of(of)?, &op)?;
        let id: V = self.declare(name, view)?;
        self.push(id.statement(of, op));
        Ok(id)
    }

    pub(crate) fn find_var(&self, name: &str) -> Option<&Var> {
        self.scopes.iter().flat_map(|scope| &scope.vars).find(|var| var.name() == name)
    }

    pub(crate) fn find_ring(&self, name: &str) -> Option<&Ring> {
        self.scopes.iter().flat_map(|scope| &scope.rings).find(|ring| ring.name == name)
    }

    pub(super) fn scope(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("the kernel's own scope closes when it is finished")
    }

    pub(super) fn push(&mut self, stmt: Stmt) {
        self.scope().stmts.push(stmt);
    }

    pub(super) fn nest(
        &mut self,
        vars: Vec<Var>,
        body: impl FnOnce(&mut Self) -> Result,
    ) -> Result<Vec<Stmt>> {
        if self.scopes.len() >= MAX_NESTING {
            return Err(Error::Depth);
        }
        self.scopes.push(Scope { vars, ..Scope::default() });
        let [tensors, threads] = [self.tensors.open.len(), self.threads.open.len()];
        let done = body(self);
        let scope = self.scopes.pop().expect("it was opened above");
        self.tensors.open[tensors..].fill(false);
        self.threads.open[threads..].fill(false);
        done.map(|()| scope.stmts)
    }

    pub(super) fn add_var(&mut self, name: &str, max: Option<i64>) -> Result<Var> {
        let var = Var::new(&self.free_var(name)?, max);
        self.scope().vars.push(var.clone());
        Ok(var)
    }

    pub(super) fn free_var(&self, name: &str) -> Result<String> {
        check::name(name)?;
        Ok(free(name, |name| self.is_var_taken(name)))
    }

    pub(crate) fn is_var_taken(&self, name: &str) -> bool {
        // The own thread's and block's numbers, which code generation adds.
        ["thread", "block"].contains(&name)
            || self.find_var(name).is_some()
            || self.find_ring(name).is_some()
    }
}

/// The name, or with the first number appended that makes it free.
pub(crate) fn free(wanted: &str, taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u64..).map(|number| format!("{wanted}_{number}"));
    let mut all = std::iter::once(wanted.to_owned()).chain(numbered);
    all.find(|name| !taken(name)).expect("only finitely many names are taken")
}
