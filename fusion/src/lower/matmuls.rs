//! Operands of matmuls on a GPU, as its templates take them: which weights are prepacked, and what is copied.

use super::Lowering;
use crate::base::groups::{Executor, Family, Group, GroupId};
use crate::base::program::{BufferKind, Operand};
use crate::base::rebuild::Rebuilt;
use crate::base::view::View;
use crate::families::kernels::{MatMulLayout, WIDTH};
use crate::families::layout::is_view;
use crate::lower::recipes::{recipe_in_order, recipe_of_tf32};
use graphene_frontend::{DType, NodeId, ValueId};
use graphene_ir::arch::Feature;
use graphene_ir::target::Kind;

impl Lowering<'_> {
    /// A weight column by column; of single precision it is rounded to TF32, as matrix units multiply by it.
    pub(super) fn turn(&mut self, value: ValueId) -> Rebuilt<Operand> {
        if let Some(place) = self.reordered.get(&value) {
            return Ok(place.clone());
        }
        let recipe = match self.graph.ty(value).dtype {
            DType::F32 => recipe_of_tf32(self.graph, value)?,
            _ => recipe_in_order(self.graph, value, &[1, 0])?,
        };
        Ok(self.reorder(value, &[1, 0], BufferKind::derived(recipe)))
    }

    fn matmuls(&self, group: &Group) -> Vec<(NodeId, [ValueId; 2])> {
        let operands = |&id: &NodeId| match self.graph.operation(id.value()) {
            (op, &[Some(a), Some(b)]) if op.is_matmul() => Some((id, [a, b])),
            _ => None,
        };
        group.nodes.iter().filter_map(operands).collect()
    }

    /// What matmuls multiply by.
    fn weights(&self, group: &Group) -> Vec<ValueId> {
        self.matmuls(group).into_iter().map(|(_, [_, b])| b).collect()
    }

    /// Weights that one kernel multiplies by, and adds the matmuls of, lie in one order: those that are views are made
    /// anew if others are not.
    pub(super) fn lay_weights_alike(&mut self, group: &Group) -> Rebuilt<()> {
        if group.family != Family::MatMul || self.target.kind == Kind::Cpu {
            return Ok(());
        }
        let mut weights = self.weights(group);
        weights.retain(|weight| self.groups.is_constant(weight.node));
        let views = weights.iter().copied().filter(|&weight| !self.view(weight).is_contiguous());
        let views: Vec<ValueId> = views.collect();
        if views.len() < weights.len() {
            views.into_iter().try_for_each(|weight| self.made(weight).map(drop))?;
        }
        Ok(())
    }

    /// The weights of a group of matmuls to prepack column by column: all or none, and only constant matrices that are read
    /// by matmuls alone. In single precision because Hopper's warpgroups need the depth contiguous; in half precision because
    /// rows that are no multiple of 16 bytes, as of an odd vocabulary, would load element by element, in a library's calls,
    /// too. Of TF32, a weight that is in columns already is not prepacked but cut; any other one is multiplied by warps.
    pub(super) fn weights_to_turn(&self, group: &Group) -> Vec<ValueId> {
        if group.family != Family::MatMul || self.target.kind == Kind::Cpu {
            return Vec::new();
        }
        let weights = self.weights(group);
        let tf32 = self.target.tf32 && self.target.has(Feature::Wgmma);
        let is_to_turn = |&weight: &ValueId| {
            let ty = self.graph.ty(weight);
            let pays = match ty.dtype {
                DType::F32 => tf32,
                DType::F16 | DType::BF16 => self.only_columns_align(weight),
                _ => false,
            };
            let fits = pays && ty.rank() == 2 && self.groups.is_constant(weight.node);
            fits && self.multiplies_only(self.graph.through(weight, is_view))
        };
        if weights.iter().all(is_to_turn) { weights } else { Vec::new() }
    }

    /// Whether the columns of a row-major matrix are a multiple of 16 bytes long, and its rows are not.
    fn only_columns_align(&self, value: ValueId) -> bool {
        let ty = self.graph.ty(value);
        let whole = |size: usize| (size * ty.dtype.size()).is_multiple_of(WIDTH as usize);
        let odd = |sizes: Vec<usize>| matches!(sizes[..], [depth, n] if whole(depth) && !whole(n));
        let odd = ty.known_shape().is_some_and(odd);
        odd && self.view(value).is_contiguous()
    }

    /// Copies what a GPU's matmuls do not take as it lies, or not beside the others that one kernel adds.
    pub(super) fn pack_operands(
        &mut self,
        number: GroupId,
        group: &Group,
        turned: &[ValueId],
    ) -> Rebuilt<()> {
        let template = group.family == Family::MatMul && group.executor == Executor::Template;
        if !template || self.target.kind == Kind::Cpu {
            return Ok(());
        }
        let matmuls = self.matmuls(group);
        let mut sides = Vec::with_capacity(matmuls.len());
        for (id, operands) in &matmuls {
            let shape = &self.graph.ty(id.value()).shape;
            let [a, b] = operands.map(|value| match turned.contains(&value) {
                true => View::ordered(&self.graph.ty(value).shape, &[1, 0]),
                false => self.view(value),
            });
            let taken = MatMulLayout::of([&a, &b], shape).map_or([None; 2], |of| of.turned);
            for (operand, _) in operands.iter().zip(taken).filter(|(_, taken)| taken.is_none()) {
                self.pack(number, group, *operand, turned)?;
            }
            // Packed, both are in rows.
            sides.push([taken[0].unwrap_or(false), taken[1].unwrap_or(true)]);
        }
        for side in 0..2 {
            if sides.iter().any(|taken| taken[side] != sides[0][side]) {
                for (_, operands) in &matmuls {
                    self.pack(number, group, operands[side], turned)?;
                }
            }
        }
        Ok(())
    }

    /// A value in rows without gaps, unless it is a weight that is turned.
    fn pack(
        &mut self,
        number: GroupId,
        group: &Group,
        value: ValueId,
        turned: &[ValueId],
    ) -> Rebuilt<()> {
        if turned.contains(&value) || self.view(value).is_contiguous() {
            return Ok(());
        }
        if self.groups.is_constant(value.node) {
            return self.made(value).map(drop);
        }
        let place = self.place(value)?;
        self.gathered(number, value, place, group.executor).map(drop)
    }

    /// Whether all that read a constant, or a view of it, multiply by it.
    fn multiplies_only(&self, value: ValueId) -> bool {
        let mut uses = self.graph.uses(value.node).into_iter();
        !self.given.contains(&value)
            && uses.all(|(reader, edge)| match self.graph.node(reader).op() {
                op if op.is_matmul() => edge.input == 1,
                op => is_view(op) && self.multiplies_only(reader.value()),
            })
    }
}
