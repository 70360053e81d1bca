//! Weights that a program makes of the model's own, once: merged projections, transposed or scaled matrices.

use crate::base::rebuild::{InPlace, Rebuilt, Regrown};
use graphene_frontend::{Binary, DType, Graph, Op, Tensor, ValueId};

/// The bits of single precision that TF32 has not.
const TF32_CUT: i32 = 0x1fff;

/// The graph, without inputs, whose only output is this constant value.
pub(crate) fn recipe(graph: &Graph, value: ValueId) -> Rebuilt<Graph> {
    let (mut recipe, made) = steps(graph, value)?;
    recipe.add_output("weight", made);
    Ok(recipe)
}

/// The same of the value with its dims in this order.
pub(crate) fn recipe_in_order(graph: &Graph, value: ValueId, order: &[usize]) -> Rebuilt<Graph> {
    let (mut recipe, x) = steps(graph, value)?;
    let mut at = InPlace { graph: &mut recipe, node: graph.node(value.node) };
    let made = at.add(Op::Transpose(order.to_vec()), &[x])?;
    recipe.add_output("weight", made);
    Ok(recipe)
}

/// The same of the value as matrix units want it: a matrix of single precision transposed, and rounded to TF32, to nearest
/// with ties away from 0.
pub(crate) fn recipe_of_tf32(graph: &Graph, value: ValueId) -> Rebuilt<Graph> {
    let (mut recipe, x) = steps(graph, value)?;
    let number = Tensor::scalar::<i32>;
    let half = recipe.add_constant("half of the last bit", number(TF32_CUT / 2 + 1));
    let kept = recipe.add_constant("bits that are kept", number(!TF32_CUT));
    let mut at = InPlace { graph: &mut recipe, node: graph.node(value.node) };
    let bits = at.add(Op::BitCast(DType::I32), &[x])?;
    let up = at.binary(Binary::Add, bits, half)?;
    let cut = at.binary(Binary::BitAnd, up, kept)?;
    let rounded = at.add(Op::BitCast(DType::F32), &[cut])?;
    // What is no number stays none.
    let is_number = at.binary(Binary::Equal, x, x)?;
    let rounded = at.add(Op::Select, &[is_number, rounded, x])?;
    let across = at.add(Op::Transpose(vec![1, 0]), &[rounded])?;
    recipe.add_output("weight", across);
    Ok(recipe)
}

/// The operations that make a constant value, and the value among them.
fn steps(graph: &Graph, value: ValueId) -> Rebuilt<(Graph, ValueId)> {
    let mut recipe = Regrown::default();
    for id in graph.needed([value.node]) {
        recipe.copy(id, graph.node(id))?;
    }
    Ok((recipe.graph, recipe.renamed[&value]))
}
