//! How the operands of matmuls lie, and whether templates take them so.

use super::Refusal;
use super::operand::Matrix;
use crate::base::view::View;
use graphene_frontend::dim::Dim;

/// How the operands of one matmul lie.
pub(crate) struct MatMulLayout {
    /// A and B, where their rows and columns go on evenly.
    pub(super) matrices: [Option<Matrix>; 2],
    /// The columns of A.
    pub(super) depth: Dim,
    /// From row to row of A, if its rows are not packed.
    pub(super) apart: Option<Dim>,
    /// Whether each matmul has a B of its own.
    pub(super) batched: bool,
    /// Whether A is column-major, and B row-major; nothing of what is neither, as no template takes it.
    pub(crate) turned: [Option<bool>; 2],
}

impl MatMulLayout {
    /// How A and B lie whose matmul has this shape.
    ///
    /// # Errors
    /// [`Refusal::Layout`] for vectors.
    pub(crate) fn of([a, b]: [&View; 2], shape: &[Dim]) -> Result<Self, Refusal> {
        let ([.., _, depth], [of_batch @ .., _, _]) = (&a.modes[..], &b.modes[..]) else {
            return Err(Refusal::Layout("a matmul of vectors"));
        };
        let depth = depth.size.clone();
        let rank = shape.len();
        let (batch, rows, columns) = (&shape[..rank - 2], &shape[rank - 2], &shape[rank - 1]);
        let with = |two: [&Dim; 2]| -> Vec<Dim> { batch.iter().chain(two).cloned().collect() };
        // B is one matrix: all rows of the batch are rows of A.
        let shared = of_batch.iter().all(|mode| mode.stride == 0 || mode.size == 1);
        let b = match shared {
            true => Matrix::of(b, &b.shape(), b.modes.len() - 1),
            false => Matrix::of(b, &with([&depth, columns]), rank - 1),
        };
        let matrices = [Matrix::of(a, &with([rows, &depth]), rank - 1).ok(), b.ok()];
        // Along an axis of one element there is no next.
        let one = Dim::from(1);
        let goes = |stride: &Dim, size: &Dim, by: &Dim| *size == 1 || stride == by;
        let all_rows = batch.iter().fold(rows.clone(), |all, size| &all * size);
        let in_columns = |a: &Matrix| shared && rank == 2 && a.row == one && a.column == *rows;
        let gaps = |a: &Matrix| !in_columns(a) && !goes(&a.row, &all_rows, &depth);
        let [a, b] = matrices
            .each_ref()
            .map(|matrix| matrix.as_ref().filter(|matrix| matrix.period.is_none()));
        let a_turned = a.and_then(|a| match in_columns(a) {
            true => Some(true),
            // A batch has no room for gaps.
            false => (goes(&a.column, &depth, &one) && (shared || !gaps(a))).then_some(false),
        });
        let b_turned = b.and_then(|b| {
            let by_columns = goes(&b.row, &depth, &one) && goes(&b.column, columns, &depth);
            let by_rows = goes(&b.row, &depth, columns) && goes(&b.column, columns, &one);
            if shared && by_columns { Some(false) } else { by_rows.then_some(true) }
        });
        let apart = a.filter(|a| gaps(a)).map(|a| a.row.clone());
        Ok(Self { turned: [a_turned, b_turned], matrices, depth, apart, batched: !shared })
    }
}
