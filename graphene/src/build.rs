//! Builds kernels statement by statement: what templates are written with, and what the parser
//! calls, so that the two agree on names, ranges of variables and types of views.
//!
//! [`Kernel`](crate::Error::Kernel) errors say what is not known or not well formed, [`Shape`](crate::Error::Shape) what does
//! not fit its view. After an error the kernel is given up.
//!
//! Statements go to the innermost open scope. What is declared in a scope is known until it closes. Where a wanted name is taken,
//! `_2`, `_3`, … is appended, so that a decomposition can be used more than once.

mod check;
mod header;
mod scope;

use std::ops::Range;

use self::check::refuse_if;
pub use self::header::{Header, Operands};
use self::scope::{Scope, Table};
pub(crate) use self::scope::{Viewed, free};
use crate::{
    Agent, Arch, Binary, Completion, Expr, For, Fused, IntTuple, Kernel, Kind, Layout, Memory,
    Number, Operand, Result, Ring, Scalar, Spec, Stmt, Swizzle, Tensor, TensorId, Test, Threads,
    ThreadsId, Tiler, Unary, Var, View, kernel::Carry, tensor::ViewOp,
};

/// How deep scopes may nest.
pub const MAX_NESTING: usize = 64;

/// A kernel under construction. Symbols, parameters, grid and block come before any statement.
#[derive(Debug)]
pub struct Builder {
    name: String,
    arch: Arch,
    symbols: Vec<Var>,
    tensors: Table<Tensor>,
    threads: Table<Threads>,
    params: Vec<TensorId>,
    grid: Option<ThreadsId>,
    block: Option<ThreadsId>,
    /// Whose specs are that name no blocks, and those that name no threads.
    blocks: Option<ThreadsId>,
    one: Option<ThreadsId>,
    scopes: Vec<Scope>,
}

impl Builder {
    /// A kernel without parameters, grid or block.
    pub fn new(name: &str, arch: Arch) -> Builder {
        Builder {
            name: name.to_owned(),
            arch,
            symbols: Vec::new(),
            tensors: Table::default(),
            threads: Table::default(),
            params: Vec::new(),
            grid: None,
            block: None,
            blocks: None,
            one: None,
            scopes: vec![Scope::default()],
        }
    }

    /// What the kernel is written for.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// An integer given at launch. Fails after statements, or if it is not a name.
    pub fn symbol(&mut self, name: &str) -> Result<Var> {
        check::before_statements(self)?;
        let var = self.add_var(name, None)?;
        self.symbols.push(var.clone());
        Ok(var)
    }

    /// Several integers given at launch. Fails as [`symbol`](Builder::symbol) does.
    pub fn symbols<const N: usize>(&mut self, names: [&str; N]) -> Result<[Var; N]> {
        let all: Vec<Var> = names.iter().map(|name| self.symbol(name)).collect::<Result<_>>()?;
        Ok(all.try_into().expect("there is a variable for every name"))
    }

    /// A tensor in global memory, given at launch. Fails after statements, or if the view is not one of a whole buffer.
    pub fn param(&mut self, name: &str, view: impl Into<View>, of: Scalar) -> Result<TensorId> {
        self.add_param(name, Tensor::new(view.into(), of, Memory::Global))
    }

    /// A parameter that nothing writes which may still run when the kernel starts, as a layer's weights; nor does the kernel.
    pub fn constant(&mut self, name: &str, view: impl Into<View>, of: Scalar) -> Result<TensorId> {
        let tensor = Tensor::new(view.into(), of, Memory::Global);
        self.add_param(name, Tensor { constant: true, ..tensor })
    }

    /// A parameter for the kernel's own use, which is neither input nor output.
    pub fn scratch(&mut self, name: &str, view: impl Into<View>, of: Scalar) -> Result<TensorId> {
        let tensor = Tensor::new(view.into(), of, Memory::Global);
        self.add_param(name, Tensor { scratch: true, ..tensor })
    }

    pub(crate) fn add_param(&mut self, name: &str, tensor: Tensor) -> Result<TensorId> {
        check::before_statements(self)?;
        check::view(self, &tensor.view)?;
        let id = self.declare(name, tensor)?;
        self.params.push(id);
        Ok(id)
    }

    /// The blocks: one level, or clusters and the blocks of one. Fails if there are some already, or the view is not
    /// one of a whole buffer.
    pub fn grid(&mut self, name: &str, view: impl Into<View>) -> Result<ThreadsId> {
        refuse_if(self.grid.is_some(), "a kernel has one grid")?;
        let id = self.launched(name, view.into(), Agent::Block)?;
        (self.grid, self.blocks) = (Some(id), Some(id));
        Ok(id)
    }

    /// The threads of a block. Fails if there are some already, or the view is not one of a whole buffer.
    pub fn block(&mut self, name: &str, view: impl Into<View>) -> Result<ThreadsId> {
        refuse_if(self.block.is_some(), "a kernel has one block")?;
        let id = self.launched(name, view.into(), Agent::Thread)?;
        self.block = Some(id);
        Ok(id)
    }

    fn launched(&mut self, name: &str, view: View, agent: Agent) -> Result<ThreadsId> {
        check::before_statements(self)?;
        check::view(self, &view)?;
        check::numbered(&view)?;
        self.declare(name, Threads { view, agent })
    }

    /// A new tensor in registers or shared memory, which alone may be swizzled. Fails if the view is not one of a whole buffer.
    pub fn allocate(
        &mut self,
        name: &str,
        view: impl Into<View>,
        scalar: Scalar,
        memory: Memory,
        swizzle: Option<Swizzle>,
    ) -> Result<TensorId> {
        let tensor = Tensor { swizzle, ..Tensor::new(view.into(), scalar, memory) };
        check::view(self, &tensor.view)?;
        refuse_if(memory == Memory::Global, "global memory is a parameter, not allocated")?;
        let odd = swizzle.is_some() && memory != Memory::Shared;
        refuse_if(odd, "only shared memory is swizzled")?;
        let id = self.declare(name, tensor)?;
        self.push(Stmt::Allocate(id));
        Ok(id)
    }

    /// Splits each dimension of the outermost level into tiles.
    pub fn tile<V: Viewed>(&mut self, of: V, name: &str, tiles: &[Tiler]) -> Result<V> {
        self.view(of, name, ViewOp::Tile(tiles.to_vec()))
    }

    /// Picks one element of the outermost level.
    pub fn index<V: Viewed>(
        &mut self,
        of: V,
        name: &str,
        coords: impl IntoIterator<Item = impl Into<Expr>>,
    ) -> Result<V> {
        self.view(of, name, ViewOp::Index(IntTuple::list(coords)))
    }

    /// Gives the level at a depth new dimensions, each a list of modes.
    pub fn reshape<V: Viewed>(
        &mut self,
        of: V,
        name: &str,
        depth: usize,
        dims: &[&[(i64, i64)]],
    ) -> Result<V> {
        let dims = dims.iter().map(|modes| Layout::of_modes(modes)).collect::<Result<_>>()?;
        self.view(of, name, ViewOp::Reshape(depth, dims))
    }

    /// Every thread or block on its own.
    pub fn scalar<V: Viewed>(&mut self, of: V, name: &str) -> Result<V> {
        self.view(of, name, ViewOp::Scalar)
    }

    /// The same shared memory of another block of the cluster.
    pub fn peer(&mut self, of: TensorId, name: &str, block: impl Into<Expr>) -> Result<TensorId> {
        self.view(of, name, ViewOp::Peer(block.into()))
    }

    /// The own coordinate in every leaf of threads or blocks, outermost level first. Fails unless there is a name for each.
    pub fn indices<const N: usize>(&mut self, of: ThreadsId, names: [&str; N]) -> Result<[Var; N]> {
        let vars = self.indices_named(of, &names)?;
        Ok(vars.try_into().expect("there is a variable for every name"))
    }

    pub(crate) fn indices_named(&mut self, of: ThreadsId, names: &[&str]) -> Result<Vec<Var>> {
        let view = &self.tensor_of(of)?.view;
        let leaves = view.leaves().into_iter();
        let tops: Vec<Option<i64>> = leaves.map(|leaf| leaf.size.range().1).collect();
        let (leaves, count) = (tops.len(), names.len());
        let differ = leaves != count || count == 0;
        refuse_if(differ, format_args!("{count} names for {leaves} coordinates"))?;
        let maxima = tops.iter().map(|top| top.map(|size| size.saturating_sub(1)));
        let vars = names.iter().zip(maxima).map(|(name, max)| self.add_var(name, max));
        let vars = vars.collect::<Result<Vec<_>>>()?;
        self.push(Stmt::Indices(vars.clone(), of));
        Ok(vars)
    }

    /// A variable with a value. Fails if that may be negative, or uses variables that are not known here.
    pub fn let_(&mut self, name: &str, value: impl Into<Expr>) -> Result<Var> {
        let value = value.into();
        check::expr(self, &value)?;
        check::not_negative(name, &value)?;
        let var = self.add_var(name, value.range().1)?;
        self.push(Stmt::Let(var.clone(), value));
        Ok(var)
    }

    /// A variable with the value of an integer in a register, which must not be negative: an index that memory holds. Nothing is
    /// known of it but that. Fails if the tensor is not one integer in a register of its own.
    pub fn value(&mut self, name: &str, of: TensorId) -> Result<Var> {
        let tensor = self.tensor_of(of)?;
        let own = tensor.view.levels().is_empty() && tensor.view.axes().is_empty();
        let integer = !tensor.scalar.is_float() && tensor.scalar != Scalar::Mbar;
        let fits = own && integer && tensor.memory == Memory::Registers;
        refuse_if(!fits, format_args!("{tensor} is not an integer in a register"))?;
        let var = self.add_var(name, None)?;
        self.push(Stmt::Value(var.clone(), of));
        Ok(var)
    }

    /// A counter of a pipeline's stage and parity, at 0. Fails without stages, or if it is not a name.
    pub fn ring(&mut self, name: &str, stages: i64) -> Result<Ring> {
        refuse_if(stages < 1, format_args!("needs 1 or more stages; got {stages}"))?;
        let ring = Ring { name: self.free_var(name)?, stages };
        let scope = self.scope();
        scope.vars.extend([ring.stage(), ring.parity()]);
        scope.rings.push(ring.clone());
        self.push(Stmt::Ring(ring.clone()));
        Ok(ring)
    }

    /// Moves a ring to its next stage. Fails if it is not known here.
    pub fn advance(&mut self, ring: &Ring) -> Result {
        let known = self.find_ring(&ring.name) == Some(ring);
        refuse_if(!known, format_args!("no ring @{} here", ring.name))?;
        self.push(Stmt::Advance(ring.clone()));
        Ok(())
    }

    /// From here on, specs that name no blocks are by these: as a rule by the own one. At first they are by all.
    pub fn by(&mut self, blocks: ThreadsId) {
        self.blocks = Some(blocks);
    }

    /// A spec without a body: an atom, by the blocks of [`by`](Builder::by).
    pub fn spec(
        &mut self,
        kind: Kind,
        outs: impl Into<Operands>,
        ins: impl Into<Operands>,
        threads: ThreadsId,
    ) -> Result {
        self.add(Header::new(kind, outs, ins, threads))
    }

    /// A spec without a body. Fails for what is not known here, or an index that does not fit its operand.
    pub fn add(&mut self, header: Header) -> Result {
        let spec = self.headed(header)?;
        self.push(Stmt::Spec(spec));
        Ok(())
    }

    /// Every thread of the block on its own. Fails without a block.
    pub fn one(&mut self) -> Result<ThreadsId> {
        if let Some(one) = self.one.filter(|&one| self.tensor_of(one).is_ok()) {
            return Ok(one);
        }
        let block = check::known(self.block, "the kernel has no block yet")?;
        let one = self.scalar(block, "one")?;
        self.one = Some(one);
        Ok(one)
    }

    /// A spec with a body that decomposes it.
    pub fn decompose(&mut self, header: Header, body: impl FnOnce(&mut Self) -> Result) -> Result {
        let spec = self.headed(header)?;
        let body = Some(self.nest(Vec::new(), body)?);
        self.push(Stmt::Spec(Spec { body, ..spec }));
        Ok(())
    }

    fn headed(&mut self, header: Header) -> Result<Spec> {
        let spec = self.with_blocks(header)?;
        check::spec(self, &spec, spec.outs.len())?;
        Ok(spec)
    }

    fn with_blocks(&mut self, header: Header) -> Result<Spec> {
        let blocks = check::known(header.blocks.or(self.blocks), "the kernel has no grid yet")?;
        let threads = header.threads.map_or_else(|| self.one(), Ok)?;
        let Header { mut kind, outs, ins, completion, .. } = header;
        // One expression has one form, that in which its text reads back.
        if let Kind::Fused(fused) = &mut kind {
            *fused = fused.ordered();
        }
        Ok(Spec { kind, outs, ins, blocks, threads, completion, body: None })
    }

    /// What holds at the head of a loop, [which carries](Builder::for_carrying) it; the body is given the counter there, and
    /// says of each what is compared, if that is not the states as they are. Fails as [`add`](Builder::add) does.
    pub fn carry(
        &mut self,
        name: &str,
        (end, step): (&Expr, &Expr),
        body: impl FnOnce(&mut Builder, &Var) -> Result<Vec<(Option<Fused>, Header)>>,
    ) -> Result<Vec<Carry>> {
        let var = For::head(&self.free_var(name)?, end, step);
        let mut all = Vec::new();
        self.nest(vec![var.clone()], |k| {
            for (form, header) in body(k, &var)? {
                let (form, spec) = (form.map(|form| form.ordered()), k.with_blocks(header)?);
                let compared = form.as_ref().map_or(spec.outs.len(), |form| form.outputs().len());
                check::spec(k, &spec, compared)?;
                if let Some(form) = &form {
                    let (states, used) = (spec.outs.len(), form.inputs());
                    refuse_if(used != states, format_args!("{used} states of {states}"))?;
                    form.exprs().into_iter().try_for_each(|value| check::expr(k, value))?;
                }
                all.push(Carry { form, spec });
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// A loop from `first` to below `end`; the body is given the counter. Fails if the counter may be negative or
    /// does not grow, if a loop to unroll has bounds that are not constant, or as the body does.
    pub fn for_(
        &mut self,
        name: &str,
        range: Range<impl Into<Expr>>,
        step: impl Into<Expr>,
        unroll: bool,
        body: impl FnOnce(&mut Builder, &Var) -> Result,
    ) -> Result {
        self.for_carrying(name, range, (step, unroll), Vec::new(), body)
    }

    /// A loop of so many rounds that is written out. Fails as [`for_`](Builder::for_) does.
    pub fn unroll(
        &mut self,
        name: &str,
        count: i64,
        body: impl FnOnce(&mut Builder, &Var) -> Result,
    ) -> Result {
        self.for_(name, 0..count, 1, true, body)
    }

    /// Such a loop in another one. Fails as [`for_`](Builder::for_) does.
    pub fn unroll_both(
        &mut self,
        [(outer, rounds), (inner, of_each)]: [(&str, i64); 2],
        body: impl FnOnce(&mut Builder, [&Var; 2]) -> Result,
    ) -> Result {
        self.unroll(outer, rounds, |k, i| k.unroll(inner, of_each, |k, j| body(k, [i, j])))
    }

    /// A loop, and what [holds at its head](Builder::carry). Fails as [`for_`](Builder::for_) does.
    pub fn for_carrying(
        &mut self,
        name: &str,
        range: Range<impl Into<Expr>>,
        (step, unroll): (impl Into<Expr>, bool),
        carry: Vec<Carry>,
        body: impl FnOnce(&mut Builder, &Var) -> Result,
    ) -> Result {
        let (first, end, step) = (range.start.into(), range.end.into(), step.into());
        for expr in [&first, &end, &step] {
            check::expr(self, expr)?;
            let varies = unroll && expr.constant().is_none();
            refuse_if(varies, format_args!("a loop to unroll with the bound {expr}"))?;
        }
        check::not_negative(name, &first)?;
        let still = step.is(0) || step.range().0 < Some(0);
        refuse_if(still, format_args!("@{name} does not grow by {step}"))?;
        let var = For::counter(&self.free_var(name)?, &end);
        let body = self.nest(vec![var.clone()], |builder| body(builder, &var))?;
        self.push(Stmt::For(For { var, first, end, step, unroll, carry, body }));
        Ok(())
    }

    /// A conditional. Fails for what is not known here, or as the body does.
    pub fn if_(&mut self, test: impl Into<Test>, body: impl FnOnce(&mut Self) -> Result) -> Result {
        let test = test.into();
        match &test {
            Test::All(conds) => conds.iter().try_for_each(|cond| {
                check::expr(self, &cond.left)?;
                check::expr(self, &cond.right)
            })?,
            Test::Inside(operand) => check::operand(self, operand)?,
        }
        let body = self.nest(Vec::new(), body)?;
        self.push(Stmt::If(test, body));
        Ok(())
    }

    /// What only these coordinates of the outermost level's only dimension do. Fails if it lacks them, or as the body does.
    pub fn role(
        &mut self,
        threads: ThreadsId,
        coords: Range<i64>,
        body: impl FnOnce(&mut Builder) -> Result,
    ) -> Result {
        let view = &self.tensor_of(threads)?.view;
        let size = match view.levels().first().map(Layout::modes) {
            Some([dim]) => dim.as_leaf().and_then(|leaf| leaf.size.constant()),
            _ => None,
        };
        let Range { start, end } = coords;
        let outside = start >= end || start < 0 || size.is_none_or(|size| end > size);
        refuse_if(outside, format_args!("no coordinates {start}..{end} in {view}"))?;
        let body = self.nest(Vec::new(), body)?;
        self.push(Stmt::Role(threads, start, end, body));
        Ok(())
    }

    /// The kernel, which computes `outs` from `ins` as its kind says. Fails without grid or block, or for what is no parameter.
    pub fn finish(
        self,
        kind: Kind,
        outs: impl Into<Operands>,
        ins: impl Into<Operands>,
    ) -> Result<Kernel> {
        let block = check::known(self.block, "the kernel has no block")?;
        self.finish_as(Header::new(kind, outs, ins, block))
    }

    pub(crate) fn finish_as(mut self, header: Header) -> Result<Kernel> {
        check::name(&self.name)?;
        self.blocks = self.grid;
        let mut spec = self.headed(header)?;
        let (grid, block) = (spec.blocks, spec.threads);
        let launched = self.grid == Some(grid) && self.block == Some(block);
        refuse_if(!launched, "a kernel is computed by its grid and block")?;
        refuse_if(spec.completion != Completion::Now, "a kernel completes when it has run")?;
        let known = |of: &Operand| self.params.contains(&of.tensor) && of.index.is_empty();
        let known = spec.operands().all(known);
        refuse_if(!known, "a kernel computes on its parameters")?;
        spec.body = self.scopes.pop().map(|scope| scope.stmts);
        let Builder { name, arch, symbols, params, .. } = self;
        let (tensors, threads) = (self.tensors.rows, self.threads.rows);
        Ok(Kernel { name, arch, symbols, tensors, threads, params, grid, block, spec })
    }

    /// A spec of any kind, by every thread of the block on its own: an instruction. Fails as [`add`](Builder::add) does.
    pub fn alone(
        &mut self,
        kind: Kind,
        outs: impl Into<Operands>,
        ins: impl Into<Operands>,
    ) -> Result {
        self.add(Header::alone(kind, outs, ins))
    }

    /// `to = number`
    pub fn init(&mut self, to: impl Into<Operands>, number: f64) -> Result {
        self.alone(Kind::Init(Number(number)), to, ())
    }
}

/// Such instructions, of which each is a kind of spec.
macro_rules! alone {
    ($($doc:literal $name:ident($($op:ident: $type:ty)?) $kind:expr;)*) => {
        impl Builder {$(
            #[doc = $doc]
            pub fn $name(
                &mut self,
                $($op: $type,)?
                to: impl Into<Operands>,
                from: impl Into<Operands>,
            ) -> Result {
                self.alone($kind, to, from)
            }
        )*}
    };
}

alone! {
    "`to = from`" move_() Kind::Move;
    "`to = op(from)`" unary(op: Unary) Kind::Unary(op);
    "`to = op(a, b)`, of `from`, which is both." binary(op: Binary) Kind::Binary(op);
    "`to = op(to, from)`" reduce(op: Binary) Kind::Reduction(op);
    "`to += a·b`, of `from`, which is both." fma() Kind::MATMUL_ADD;
}
