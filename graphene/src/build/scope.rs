//! Open scopes, and the names that are known in them.

use super::{Builder, MAX_NESTING, check};
use crate::error::{Error, Result};
use crate::index::Var;
use crate::kernel::{Ring, Stmt, TensorId, ThreadsId};
use crate::tensor::{Tensor, Threads};

/// What a name stands for, and whether its scope is still open.
#[derive(Debug)]
pub(super) struct Name<Id> {
    id: Id,
    open: bool,
}

/// Statements, and what is declared among them.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) stmts: Vec<Stmt>,
    pub(super) vars: Vec<Var>,
    pub(super) rings: Vec<Ring>,
    tensors: Vec<TensorId>,
    threads: Vec<ThreadsId>,
}

impl Builder {
    /// A tensor.
    ///
    /// # Errors
    /// [`Error::Kernel`] if its scope has closed.
    pub fn tensor_of(&self, id: TensorId) -> Result<&Tensor> {
        let (name, tensor) = &self.tensors[id.0 as usize];
        match self.find_tensor(name) {
            Some(_) => Ok(tensor),
            None => Err(Error::Kernel(format!("no %{name} here"))),
        }
    }

    /// A thread or block tensor.
    ///
    /// # Errors
    /// [`Error::Kernel`] if its scope has closed.
    pub fn threads_of(&self, id: ThreadsId) -> Result<&Threads> {
        let (name, threads) = &self.threads[id.0 as usize];
        match self.find_threads(name) {
            Some(_) => Ok(threads),
            None => Err(Error::Kernel(format!("no #{name} here"))),
        }
    }

    pub(crate) fn find_tensor(&self, name: &str) -> Option<TensorId> {
        self.tensor_names.get(name).filter(|name| name.open).map(|name| name.id)
    }

    pub(crate) fn find_threads(&self, name: &str) -> Option<ThreadsId> {
        self.threads_names.get(name).filter(|name| name.open).map(|name| name.id)
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
        body: impl FnOnce(&mut Builder) -> Result<()>,
    ) -> Result<Vec<Stmt>> {
        if self.scopes.len() >= MAX_NESTING {
            return Err(Error::Depth);
        }
        self.scopes.push(Scope { vars, ..Scope::default() });
        let done = body(self);
        let scope = self.scopes.pop().expect("it was opened above");
        for id in scope.tensors {
            let name = &self.tensors[id.0 as usize].0;
            self.tensor_names.get_mut(name).expect("every tensor has its name").open = false;
        }
        for id in scope.threads {
            let name = &self.threads[id.0 as usize].0;
            self.threads_names.get_mut(name).expect("all threads have their name").open = false;
        }
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

    pub(crate) fn is_tensor_taken(&self, name: &str) -> bool {
        self.tensor_names.contains_key(name)
    }

    pub(crate) fn is_threads_taken(&self, name: &str) -> bool {
        self.threads_names.contains_key(name)
    }

    pub(super) fn add_tensor(&mut self, name: &str, tensor: Tensor) -> Result<TensorId> {
        check::word(name)?;
        let name = free(name, |name| self.is_tensor_taken(name));
        let id = TensorId(u32::try_from(self.tensors.len()).map_err(|_| Error::Overflow)?);
        self.tensor_names.insert(name.clone(), Name { id, open: true });
        self.tensors.push((name, tensor));
        self.scope().tensors.push(id);
        Ok(id)
    }

    pub(super) fn add_threads(&mut self, name: &str, threads: Threads) -> Result<ThreadsId> {
        check::word(name)?;
        let name = free(name, |name| self.is_threads_taken(name));
        let id = ThreadsId(u32::try_from(self.threads.len()).map_err(|_| Error::Overflow)?);
        self.threads_names.insert(name.clone(), Name { id, open: true });
        self.threads.push((name, threads));
        self.scope().threads.push(id);
        Ok(id)
    }
}

/// The name, or with the first number appended that makes it free.
fn free(wanted: &str, taken: impl Fn(&str) -> bool) -> String {
    if !taken(wanted) {
        return wanted.to_owned();
    }
    (2_u64..)
        .map(|number| format!("{wanted}_{number}"))
        .find(|name| !taken(name))
        .expect("only finitely many names are taken")
}
