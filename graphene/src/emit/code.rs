//! Operands as atoms ask for them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::{Names, Prelude, launch::map_of, refuse, small, swizzle::Swizzled};
use crate::launch::{Condition, TensorMap};
use crate::{Completion, Error, Expr, Memory, Result, Scalar, Swizzle, Tensor, TensorId, Var};
use crate::{atom::Site, tensor::Axis};

/// What the body of a kernel turned out to use.
#[derive(Default)]
pub(super) struct Uses {
    pub(super) written: BTreeSet<TensorId>,
    /// Global and shared tensors whose elements are named.
    pub(super) elements: BTreeSet<TensorId>,
    /// Shared tensors whose addresses are taken.
    pub(super) addresses: BTreeSet<TensorId>,
    pub(super) maps: Vec<Map>,
    /// Variables that are read, since a statement has last taken them.
    pub(super) reads: BTreeSet<Var>,
    pub(super) prelude: BTreeSet<Prelude>,
    /// What pointers must be multiples of.
    pub(super) aligned: BTreeMap<TensorId, i64>,
    /// What must hold of symbols.
    pub(super) conditions: Vec<Condition>,
    pub(super) dependent: bool,
    /// What went wrong first in a function that has no result to say so.
    pub(super) error: Option<Error>,
}

pub(super) struct Map {
    pub(super) tensor: TensorId,
    pub(super) name: String,
    pub(super) map: TensorMap,
}

/// What an atom's text can ask for, of one spec.
pub struct Code<'a> {
    pub(super) names: &'a Names,
    pub(super) site: &'a Site<'a>,
    /// Variables whose values the compiler knows once loops are written out.
    pub(super) known: &'a BTreeSet<Var>,
    pub(super) uses: &'a RefCell<Uses>,
}

/// What fails is noted in the uses, and has an empty text.
impl Code<'_> {
    /// An element: an lvalue such as `acc[3]` or `A[64*m + k]`.
    pub fn element(&self, operand: usize, element: &[i64]) -> String {
        self.or_note(self.place(operand, element))
    }

    /// The 32-bit register that begins with an element: an lvalue of type `unsigned`.
    pub fn word(&self, operand: usize, element: &[i64]) -> String {
        self.or_note(self.register_word(operand, element))
    }

    /// The address in shared memory of an element as an `unsigned`, swizzled.
    pub fn address(&self, operand: usize, element: &[i64]) -> String {
        let offset = self.offset(operand, element);
        let tensor = self.site.operand(operand);
        self.or_note(offset.and_then(|offset| self.shared(self.root(operand), tensor, offset)))
    }

    /// The address within the own block's shared memory of the first element, a multiple of 16 bytes, in units of these: as
    /// matrix descriptors have it, in 14 bits.
    pub fn descriptor_start(&self, operand: usize) -> String {
        self.or_note(self.sixteenths(operand))
    }

    /// A pointer to an element in global memory, or a generic one to shared memory.
    pub fn pointer(&self, operand: usize, element: &[i64]) -> String {
        self.or_note(self.place(operand, element).map(|place| format!("&{place}")))
    }

    /// The name of the tensor map of a global operand, and its coordinates from the fastest axis on.
    pub fn tensor_map(&self, operand: usize) -> (String, Vec<String>) {
        self.map(operand).unwrap_or_else(|error| (self.note(error), Vec::new()))
    }

    /// The address of the barrier that the spec signals, within its block's shared memory, as an `unsigned`.
    pub fn signal(&self) -> String {
        self.or_note(self.signalled())
    }

    /// An expression.
    pub fn expr(&self, expr: &Expr) -> String {
        self.or_note(self.render(expr))
    }

    /// The name of what the prelude defines.
    pub fn prelude(&self, part: Prelude) -> &'static str {
        self.uses.borrow_mut().prelude.insert(part);
        part.name()
    }

    /// The rank in its cluster of the block whose shared memory an operand is, if not the own one.
    pub fn peer(&self, operand: usize) -> Option<String> {
        self.site.operand(operand).peer.as_ref().map(|peer| self.expr(peer))
    }

    fn note(&self, error: Error) -> String {
        self.uses.borrow_mut().error.get_or_insert(error);
        String::new()
    }

    fn or_note(&self, text: Result<String>) -> String {
        text.unwrap_or_else(|error| self.note(error))
    }

    fn render(&self, expr: &Expr) -> Result<String> {
        render(expr, self.names, &mut self.uses.borrow_mut().reads)
    }

    fn root(&self, operand: usize) -> TensorId {
        let operand = self.site.spec.operands().nth(operand);
        self.names.root(operand.expect("atoms number the operands that their patterns have").tensor)
    }

    /// The coordinate of an element along each axis of its buffer, and the axis.
    fn axes(&self, operand: usize, element: &[i64]) -> Result<Vec<(Expr, &Axis)>> {
        let Some(steps) = self.site.steps(operand, element) else {
            return refuse("an operand of an instruction has a size that is not a constant");
        };
        let view = &self.site.operand(operand).view;
        let starts = view.start().into_iter().zip(steps).map(|(start, step)| start + step);
        Ok(starts.zip(view.axes()).collect())
    }

    /// An element's distance from its buffer's first one.
    fn offset(&self, operand: usize, element: &[i64]) -> Result<Expr> {
        let axes = self.axes(operand, element)?;
        Ok(axes.into_iter().map(|(at, axis)| at * &axis.stride).sum())
    }

    fn place(&self, operand: usize, element: &[i64]) -> Result<String> {
        let (root, tensor) = (self.root(operand), self.site.operand(operand));
        let name = self.names.tensor(root)?;
        let index = match tensor.memory {
            Memory::Registers => return self.register(operand, element),
            Memory::Shared if tensor.peer.is_some() => {
                return refuse(format!("%{name} of another block has no elements in C"));
            }
            Memory::Shared => self.swizzled(tensor, self.offset(operand, element)?, 1)?,
            Memory::Global => self.global_index(&self.axes(operand, element)?)?,
        };
        self.uses.borrow_mut().elements.insert(root);
        Ok(format!("{name}[{index}]"))
    }

    fn register(&self, operand: usize, element: &[i64]) -> Result<String> {
        let name = self.names.tensor(self.root(operand))?;
        let offset = self.offset(operand, element)?;
        if let Some(var) = offset.vars().iter().rev().find(|var| !self.known.contains(var)) {
            return refuse(format!(
                "the register {name}[{offset}] depends on {var}, which is no counter of an \
                 unrolled loop"
            ));
        }
        match self.site.operand(operand).view.cosize() {
            Some(1) => Ok(name.to_owned()),
            _ => Ok(format!("{name}[{}]", self.render(&offset)?)),
        }
    }

    fn register_word(&self, operand: usize, element: &[i64]) -> Result<String> {
        let tensor = self.site.operand(operand);
        let place = self.register(operand, element)?;
        if tensor.scalar == Scalar::U32 {
            return Ok(place);
        }
        let bytes = tensor.scalar.bytes();
        let offset = self.offset(operand, element)?;
        let fits = tensor.view.cosize().is_some_and(|size| size * bytes >= 4);
        let whole = offset.terms().all(|(_, coefficient)| coefficient * bytes % 4 == 0);
        if tensor.memory != Memory::Registers || !fits || !whole {
            return refuse(format!("no 32-bit register begins with {place}"));
        }
        Ok(format!("{}({place})", self.prelude(Prelude::Word)))
    }

    fn shared(&self, root: TensorId, tensor: &Tensor, offset: Expr) -> Result<String> {
        if tensor.memory != Memory::Shared {
            let name = self.names.tensor(root)?;
            return refuse(format!("%{name} has no address in shared memory"));
        }
        let name = self.names.address(root)?;
        self.uses.borrow_mut().addresses.insert(root);
        if offset.is(0) {
            return Ok(name);
        }
        Ok(format!("{name} + {}", self.swizzled(tensor, offset, tensor.scalar.bytes())?))
    }

    /// The bits of the buffer's address that say which block's it is are left out, and what is added to it is divided here:
    /// so a descriptor's start is one sum, which has no more bits since a block has less than 2¹⁸ bytes.
    fn sixteenths(&self, operand: usize) -> Result<String> {
        let (root, tensor) = (self.root(operand), self.site.operand(operand));
        let offset = self.offset(operand, &vec![0; self.site.dims(operand).len()])?;
        if let (Some(swizzle), None) = (tensor.swizzle, tensor.peer.as_ref())
            && let Swizzled { outside, inside: None } = parted(swizzle, tensor.scalar, &offset)?
        {
            let name = self.names.address(root)?;
            self.uses.borrow_mut().addresses.insert(root);
            let further = self.render(&(outside * tensor.scalar.bytes()).div(16))?;
            return Ok(format!("({name} >> 4 & 0x3fffu) + ({further})"));
        }
        Ok(format!("({}) >> 4 & 0x3fffu", self.shared(root, tensor, offset)?))
    }

    fn signalled(&self) -> Result<String> {
        let Completion::Signals(operand) = &self.site.spec.completion else {
            return refuse("a spec that signals no barrier was asked for one");
        };
        let barrier = self.site.kernel.operand(operand)?;
        self.shared(self.names.root(operand.tensor), &barrier, barrier.view.offset())
    }

    fn map(&self, operand: usize) -> Result<(String, Vec<String>)> {
        let root = self.root(operand);
        let (map, order) = map_of(self.site, operand, self.site.kernel.tensor_name(root))?;
        let start = self.site.operand(operand).view.start();
        let coordinates =
            order.iter().map(|&axis| self.render(&start[axis])).collect::<Result<_>>()?;
        let mut uses = self.uses.borrow_mut();
        if let Some(Map { name, .. }) = uses.maps.iter().find(|known| known.map == map) {
            return Ok((name.clone(), coordinates));
        }
        let number = uses.maps.iter().filter(|known| known.tensor == root).count();
        let name = self.names.map(root, number)?;
        uses.maps.push(Map { tensor: root, name: name.clone(), map });
        Ok((name, coordinates))
    }

    /// An offset in elements as a number of units of which an element has so many, swizzled.
    fn swizzled(&self, tensor: &Tensor, offset: Expr, units: i64) -> Result<String> {
        let text = |expr: Expr| self.render(&(expr * units));
        let Some(swizzle) = tensor.swizzle else { return text(offset) };
        let Swizzled { outside, inside } = parted(swizzle, tensor.scalar, &offset)?;
        let Some(inside) = inside else { return text(outside) };
        let (bits, shift) = (swizzle.bits(), swizzle.shift());
        let base = swizzle.base() - log(tensor.scalar.bytes()) + log(units);
        let (name, inside) = (self.prelude(Prelude::Swizzle), text(inside)?);
        let inside = format!("{name}<{bits}, {base}, {shift}>({inside})");
        Ok(if outside.is(0) { inside } else { format!("{} + {inside}", text(outside)?) })
    }

    /// The index of an element of a global tensor, from its coordinates along the axes. What may not
    /// fit in 32 bits is computed in 64: coordinates do, as the sizes of axes do, but what is multiplied need not.
    fn global_index(&self, axes: &[(Expr, &Axis)]) -> Result<String> {
        let mut narrow = Expr::from(0);
        let mut parts = Vec::new();
        for (at, axis) in axes.iter().filter(|(at, _)| !at.is(0)) {
            let span = (axis.size.clone() - 1).max(0) * &axis.stride;
            let product = at.clone() * &axis.stride;
            let known = axis.stride.constant().is_some();
            if known && (small(&span) || small(&product)) || axis.stride.is(1) {
                narrow = narrow + &product;
            } else {
                parts.push(self.wide_term(at, &axis.stride)?);
            }
        }
        if !narrow.is(0) || parts.is_empty() {
            parts.push(self.render(&narrow)?);
        }
        Ok(parts.join(" + "))
    }

    /// `(long long)(16*m + i)*K`: multiplied from the left, all of it is of 64 bits.
    fn wide_term(&self, at: &Expr, stride: &Expr) -> Result<String> {
        let mut terms = stride.terms();
        let (Some((product, coefficient)), None) = (terms.next(), terms.next()) else {
            let parts = stride.terms().map(|(product, coefficient)| {
                self.wide_term(at, &(Expr::of_factors(product) * coefficient))
            });
            return Ok(parts.collect::<Result<Vec<_>>>()?.join(" + "));
        };
        let factors = product.iter().map(Expr::from).chain([Expr::from(coefficient)]);
        let factors = [at.clone()].into_iter().chain(factors).filter(|factor| !factor.is(1));
        let factors = factors.map(|factor| {
            let (text, factor) = (self.render(&factor)?, self.names.by_warp(&factor));
            Ok(if factor.is_primary() { text } else { format!("({text})") })
        });
        Ok(format!("(long long){}", factors.collect::<Result<Vec<_>>>()?.join("*")))
    }
}

/// An offset in elements, parted by a swizzle that counts bytes.
fn parted(swizzle: Swizzle, scalar: Scalar, offset: &Expr) -> Result<Swizzled> {
    let base = swizzle.base() - log(scalar.bytes());
    Swizzled::of(Swizzle::new(swizzle.bits(), base, swizzle.shift())?, offset)
}

fn log(size: i64) -> i64 {
    i64::from(size.trailing_zeros())
}

/// An expression in C, which reads these variables.
pub(super) fn render(expr: &Expr, names: &Names, reads: &mut BTreeSet<Var>) -> Result<String> {
    let expr = names.by_warp(expr);
    let mut missing = None;
    expr.each_var(&mut |var| {
        missing = missing.take().or(names.var(var).err());
        reads.insert(var.clone());
    });
    let text = expr.render(&|var| names.var(var).unwrap_or_default().to_owned());
    missing.map_or(Ok(text), Err)
}

/// The declaration of a tensor in registers, aligned so that two halves of it are one register.
pub(super) fn declare_registers(tensor: &Tensor, name: &str) -> Result<String> {
    let Some(size) = tensor.view.cosize() else {
        return refuse(format!("the number of registers of {name} is not a constant"));
    };
    let scalar = tensor.scalar.c_name();
    let align = if tensor.scalar.bytes() < 4 && size > 1 { "__align__(16) " } else { "" };
    Ok(match size {
        1 => format!("{scalar} {name};"),
        _ => format!("{align}{scalar} {name}[{size}];"),
    })
}
