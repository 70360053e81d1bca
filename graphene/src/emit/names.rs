//! Names in C.
//!
//! `%18` becomes `t18`, `@bid_m` `bid_m`, `@r.stage` `r_stage`; what C or the prelude has taken,
//! or another name has become, gets a number behind it.

use std::collections::{BTreeMap, BTreeSet};

use super::refuse;
use crate::error::{Error, Result};
use crate::index::Var;
use crate::kernel::{Kernel, Stmt, TensorId};
use crate::tensor::Memory;

/// Words that a tensor or variable cannot have: C++'s, CUDA's, and those of the emitter's texts.
const TAKEN: &str = "alignas alignof and and_eq asm auto bitand bitor bool break case catch char \
    class compl const constexpr const_cast continue decltype default delete do double \
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long \
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public \
    register reinterpret_cast return short signed sizeof static static_assert static_cast struct \
    switch template this throw true try typedef typeid typename union unsigned using virtual void \
    volatile while xor xor_eq threadIdx blockIdx blockDim gridDim warpSize half half2 bfloat16 \
    TensorMap shared swizzle word shared_address min max";

/// The name of the variable that is the own thread's number within its block. No kernel can have
/// declared it.
pub(super) const THREAD: &str = "threadIdx.x";

/// Likewise the own block's within the grid.
pub(super) const BLOCK: &str = "blockIdx.x";

/// The names of what a kernel declares.
#[derive(Debug)]
pub(super) struct Names {
    entry: String,
    registers: BTreeMap<String, String>,
    tensors: BTreeMap<TensorId, String>,
    vars: BTreeMap<String, String>,
    roots: Vec<TensorId>,
    taken: BTreeSet<String>,
}

impl Names {
    /// Names everything: parameters, symbols, then what statements declare, in order.
    pub(super) fn of(kernel: &Kernel) -> Result<Names> {
        let mut names = Names {
            entry: kernel.name.clone(),
            registers: BTreeMap::new(),
            tensors: BTreeMap::new(),
            vars: BTreeMap::new(),
            roots: kernel.roots(),
            taken: TAKEN.split_whitespace().map(str::to_owned).collect(),
        };
        for number in [THREAD, BLOCK] {
            names.vars.insert(number.to_owned(), format!("(int){number}"));
        }
        if identifier(&kernel.name, 'k') != kernel.name || names.taken.contains(&kernel.name) {
            return refuse(format!("`{}` cannot be the name of a function", kernel.name));
        }
        names.taken.insert(kernel.name.clone());
        for &param in &kernel.params {
            names.declare_tensor(kernel, param);
        }
        kernel.symbols.iter().for_each(|symbol| names.declare_var(symbol));
        kernel.each_stmt(&mut |stmt| match stmt {
            Stmt::Allocate(tensor) => names.declare_tensor(kernel, *tensor),
            Stmt::Indices(vars, _) => vars.iter().for_each(|var| names.declare_var(var)),
            Stmt::Let(var, _) => names.declare_var(var),
            Stmt::Ring(ring) => {
                names.declare_var(&ring.stage());
                names.declare_var(&ring.parity());
            }
            Stmt::For(of) => names.declare_var(&of.var),
            Stmt::View(..)
            | Stmt::Threads(..)
            | Stmt::Advance(_)
            | Stmt::Spec(_)
            | Stmt::If(..)
            | Stmt::Role(..) => {}
        });
        Ok(names)
    }

    /// The function's name.
    pub(super) fn entry(&self) -> &str {
        &self.entry
    }

    /// The declared tensor whose elements a tensor views.
    pub(super) fn root(&self, tensor: TensorId) -> TensorId {
        self.roots[tensor.0 as usize]
    }

    /// The name of a declared tensor.
    pub(super) fn tensor(&self, tensor: TensorId) -> Result<&str> {
        let missing = || Error::Emission("a tensor is used that nothing declares".to_owned());
        self.tensors.get(&tensor).map(String::as_str).ok_or_else(missing)
    }

    /// The name of a variable, or what stands for it.
    pub(super) fn var(&self, var: &Var) -> Result<&str> {
        let missing = || Error::Emission(format!("{var} is used, but nothing declares it"));
        self.vars.get(var.name()).map(String::as_str).ok_or_else(missing)
    }

    /// The name of a tensor's `number`-th tensor map.
    pub(super) fn map(&self, tensor: TensorId, number: usize) -> Result<String> {
        let name = self.tensor(tensor)?;
        let number = if number == 0 { String::new() } else { format!("_{}", number + 1) };
        Ok(self.free(format!("{name}_map{number}")))
    }

    /// The name of the address of a tensor in shared memory.
    pub(super) fn address(&self, tensor: TensorId) -> Result<String> {
        Ok(self.free(format!("{}_at", self.tensor(tensor)?)))
    }

    /// Registers of one name are never declared in scopes of which one holds the other, so that
    /// they are of one name in C too. Shared memory is declared once, for the whole function.
    fn declare_tensor(&mut self, kernel: &Kernel, tensor: TensorId) {
        let name = kernel.tensor_name(tensor);
        let register = kernel.tensor(tensor).memory == Memory::Registers;
        let known = self.registers.get(name).filter(|_| register);
        let c = known.cloned().unwrap_or_else(|| self.free(identifier(name, 't')));
        self.taken.insert(c.clone());
        if register {
            self.registers.insert(name.to_owned(), c.clone());
        }
        self.tensors.insert(tensor, c);
    }

    fn declare_var(&mut self, var: &Var) {
        if !self.vars.contains_key(var.name()) {
            let name = self.free(identifier(var.name(), 'v'));
            self.taken.insert(name.clone());
            self.vars.insert(var.name().to_owned(), name);
        }
    }

    /// The name, or the first numbered one that is not taken.
    fn free(&self, name: String) -> String {
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        let mut all = std::iter::once(name.clone()).chain(numbered);
        all.find(|name| !self.taken.contains(name)).expect("there are more numbers than names")
    }
}

/// The name with what C does not allow in it replaced; `first` stands before a digit.
fn identifier(name: &str, first: char) -> String {
    let mut text: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        text.insert(0, first);
    }
    text
}
