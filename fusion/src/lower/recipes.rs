//! Weights that a program makes of the model's own, once: merged projections, transposed or scaled matrices.

use crate::base::rebuild::{InPlace, Rebuilt, Regrown};
use graphene_frontend::{Binary, DType, Graph, Op, Tensor, ValueId};

/// The bits of single precision that TF32 has not.
const TF32_CUT: i32 = 0x1fff;

/// The graph, without inputs, whose only output is this constant value.
pub(crate) fn recipe(graph: &Graph, value: ValueId) -> Rebuilt<Graph> {
    recipe_by(graph, value, |_, x| Ok(x))
}

/// The same of the value with its dims in this order.
pub(crate) fn recipe_in_order(graph: &Graph, value: ValueId, order: &[usize]) -> Rebuilt<Graph> {
    recipe_by(graph, value, |mut at, x| at.add(Op::Transpose(order.to_vec()), &[x]))
}

/// The same of the value as matrix units want it: a matrix of single precision transposed, and rounded to TF32, to nearest
/// with ties away from 0.
pub(crate) fn recipe_of_tf32(graph: &Graph, value: ValueId) -> Rebuilt<Graph> {
    recipe_by(graph, value, |mut at, x| {
        let number = Tensor::scalar::<i32>;
        let half = at.graph.add_constant("half of the last bit", number(TF32_CUT / 2 + 1));
        let kept = at.graph.add_constant("bits that are kept", number(!TF32_CUT));
        let bits = at.add(Op::BitCast(DType::I32), &[x])?;
        let up = at.binary(Binary::Add, bits, half)?;
        let cut = at.binary(Binary::BitAnd, up, kept)?;
        let rounded = at.add(Op::BitCast(DType::F32), &[cut])?;
        // What is no number stays none.
        let is_number = at.binary(Binary::Equal, x, x)?;
        let rounded = at.add(Op::Select, &[is_number, rounded, x])?;
        at.add(Op::Transpose(vec![1, 0]), &[rounded])
    })
}

/// The graph whose output is what a function makes of a constant value.
fn recipe_by(
    graph: &Graph,
    value: ValueId,
    of: impl FnOnce(InPlace<'_>, ValueId) -> Rebuilt<ValueId>,
) -> Rebuilt<Graph> {
    let mut recipe = Regrown::default();
    for id in graph.needed([value.node]) {
        recipe.copy(id, graph.node(id))?;
    }
    let x = recipe.renamed[&value];
    let made = of(recipe.at(graph.node(value.node)), x)?;
    recipe.graph.add_output("weight", made);
    Ok(recipe.graph)
}
