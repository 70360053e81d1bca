//! Names in C.
//!
//! `%18` becomes `t18`, `@bid_m` `bid_m`, `@r.stage` `r_stage`; what C or the prelude has taken,
//! or another name has become, gets a number behind it.

use std::collections::{BTreeMap, BTreeSet};

use super::warps::{WARP_INDEX, Warps};
use crate::kernel::{block_var, thread_var};
use crate::{Error, Expr, Kernel, Result, Stmt, TensorId, Var, build::free};

/// Words that a tensor or variable cannot have: C++'s, CUDA's, and those of the emitter's texts.
const TAKEN: &str = "alignas alignof and and_eq asm auto bitand bitor bool break case catch char \
    class compl const constexpr const_cast continue decltype default delete do double \
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long \
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public \
    register reinterpret_cast return short signed sizeof static static_assert static_cast struct \
    switch template this throw true try typedef typeid typename union unsigned using virtual void \
    volatile while xor xor_eq threadIdx blockIdx blockDim gridDim warpSize half half2 bfloat16 \
    TensorMap shared swizzle word shared_address warp_index min max";

pub(super) struct Names {
    pub(super) entry: String,
    tensors: BTreeMap<TensorId, String>,
    vars: BTreeMap<String, String>,
    roots: Vec<TensorId>,
    /// What a thread's number is made of, where blocks are several whole warps.
    pub(super) warps: Option<Warps>,
    taken: BTreeSet<String>,
}

impl Names {
    /// Names everything: the function, parameters, symbols, then what statements declare, in order.
    pub(super) fn of(kernel: &Kernel) -> Names {
        let mut names = Names {
            entry: String::new(),
            tensors: BTreeMap::new(),
            vars: BTreeMap::new(),
            roots: kernel.roots(),
            warps: Warps::of(kernel),
            taken: TAKEN.split_whitespace().map(str::to_owned).collect(),
        };
        for (var, index) in [(thread_var(1), "threadIdx"), (block_var(), "blockIdx")] {
            names.vars.insert(var.name().to_owned(), format!("(int){index}.x"));
        }
        if let Some(warps) = &names.warps {
            names.vars.insert(warps.warp.name().to_owned(), WARP_INDEX.to_owned());
        }
        names.entry = names.take(&kernel.name);
        kernel.params.iter().for_each(|&param| names.declare_tensor(kernel, param));
        kernel.symbols.iter().for_each(|symbol| names.declare_var(symbol));
        kernel.each_stmt(&mut |stmt| match stmt {
            Stmt::Allocate(tensor) => names.declare_tensor(kernel, *tensor),
            Stmt::Indices(vars, _) => vars.iter().for_each(|var| names.declare_var(var)),
            Stmt::Let(var, _) | Stmt::Value(var, _) => names.declare_var(var),
            Stmt::Ring(ring) => {
                [ring.stage(), ring.parity()].iter().for_each(|var| names.declare_var(var));
            }
            Stmt::For(of) => names.declare_var(&of.var),
            _ => {}
        });
        names
    }

    pub(super) fn by_warp(&self, expr: &Expr) -> Expr {
        self.warps.as_ref().map_or_else(|| expr.clone(), |warps| warps.within(expr))
    }

    /// The declared tensor whose elements a tensor views.
    pub(super) fn root(&self, tensor: TensorId) -> TensorId {
        self.roots[tensor.0 as usize]
    }

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

    pub(super) fn address(&self, tensor: TensorId) -> Result<String> {
        Ok(self.free(format!("{}_at", self.tensor(tensor)?)))
    }

    fn declare_tensor(&mut self, kernel: &Kernel, tensor: TensorId) {
        let name = self.take(kernel.tensor_name(tensor));
        self.tensors.insert(tensor, name);
    }

    /// Variables of one name are one variable, or in scopes that do not meet.
    fn declare_var(&mut self, var: &Var) {
        if !self.vars.contains_key(var.name()) {
            let name = self.take(var.name());
            self.vars.insert(var.name().to_owned(), name);
        }
    }

    /// The name in C of what has this one, which is then taken.
    fn take(&mut self, name: &str) -> String {
        let name = self.free(identifier(name));
        self.taken.insert(name.clone());
        name
    }

    /// The name, or the first numbered one that is not taken.
    fn free(&self, name: String) -> String {
        free(&name, |name| self.taken.contains(name))
    }
}

/// The name with what C does not allow in it replaced; only tensors begin with a digit.
fn identifier(name: &str) -> String {
    let mut text: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        text.insert(0, 't');
    }
    text
}
