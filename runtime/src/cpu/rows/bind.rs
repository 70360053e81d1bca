//! Stages with sizes.

use super::fold::Fold;
use super::{Level, RowProgram, Source, Stage};
use crate::bind::{BoundOperand, BoundStep};
use crate::cpu::kernels::view::{check_size, elements};
use crate::cpu::loops::Domain;
use crate::error::{Error, Result};
use graphene_frontend::dim::Bindings;

/// What binding adds to a [`RowProgram`].
#[derive(Clone, Debug)]
pub(crate) struct BoundRows {
    /// The number of rows.
    pub(super) rows: usize,
    /// Elements of a row.
    pub(super) width: usize,
    /// For each stage how it walks through its inputs, a lookup through its table.
    pub(super) domains: Vec<Domain>,
    /// For each stage that is a lookup how it walks through its indices: one for each row.
    pub(super) indices: Vec<Option<Domain>>,
    /// For each stage that is a norm how its scale and its bias lie.
    pub(super) affine: Vec<[Option<Domain>; 2]>,
}

impl BoundRows {
    /// Gives a program the sizes of a step.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if an operand's shape does not fit the rows; [`Error::TooLarge`].
    pub(crate) fn new(program: &RowProgram, step: &BoundStep, bindings: &Bindings) -> Result<Self> {
        let mut shape = Vec::with_capacity(program.shape.len());
        for dim in &program.shape {
            let size = usize::try_from(dim.eval(bindings)?);
            shape.push(size.map_err(|_| Error::TooLarge { what: "a row" })?);
        }
        let (outer, inner) = shape.split_at(program.axis);
        let (rows, width) = (elements("rows", outer)?, elements("a row", inner)?);
        elements("rows", &shape)?;
        for (output, level) in step.outputs.iter().zip(&program.outputs) {
            let len = if *level == Level::Full { rows * width } else { rows };
            check_size("elements of rows", len, elements("rows", &output.shape)?)?;
        }
        let ones: Vec<usize> = outer.iter().copied().chain(inner.iter().map(|_| 1)).collect();
        let order: Vec<usize> = (0..shape.len()).collect();
        let operand = |source: &Source| match source {
            Source::Input(number) => Some(&step.inputs[*number]),
            Source::Slot(_) => None,
        };
        let domains = program.stages.iter().map(|stage| {
            Ok(match stage {
                Stage::Loop { level, reads, .. } => {
                    let inputs: Vec<Option<&BoundOperand>> = reads.iter().map(operand).collect();
                    let shape = if *level == Level::Full { &shape } else { &ones };
                    Domain::over(shape, &order, &inputs)?
                }
                Stage::Fold { source: (source, _), .. } => {
                    Domain::over(&shape, &order, &[operand(source)])?
                }
                Stage::Lookup { table, indices, .. } => {
                    let (table, indices) = (&step.inputs[*table], &step.inputs[*indices]);
                    check_lookup(&table.shape[1..], inner, &indices.shape, outer)?;
                    let order: Vec<usize> = (0..table.shape.len()).collect();
                    Domain::over(&table.shape, &order, &[Some(table)])?
                }
            })
        });
        let domains = domains.collect::<Result<_>>()?;
        let whole = |number: &usize| {
            let operand = &step.inputs[*number];
            let order: Vec<usize> = (0..operand.shape.len()).collect();
            Domain::over(&operand.shape, &order, &[Some(operand)])
        };
        let order: Vec<usize> = (0..outer.len()).collect();
        let indices = program.stages.iter().map(|stage| match stage {
            Stage::Lookup { indices, .. } => {
                Domain::over(outer, &order, &[Some(&step.inputs[*indices])]).map(Some)
            }
            Stage::Loop { .. } | Stage::Fold { .. } => Ok(None),
        });
        let indices = indices.collect::<Result<_>>()?;
        let affine = program.stages.iter().map(|stage| match stage {
            Stage::Fold { fold: Fold::Norm { scale, bias, .. }, .. } => {
                let [scale, bias] =
                    [scale, bias].map(|place| place.as_ref().map(whole).transpose());
                Ok([scale?, bias?])
            }
            Stage::Lookup { .. } | Stage::Loop { .. } | Stage::Fold { .. } => Ok([None, None]),
        });
        let affine = affine.collect::<Result<_>>()?;
        Ok(Self { rows, width, domains, indices, affine })
    }
}

/// Checks that rows of a table are rows of the domain and that there is an index for each.
fn check_lookup(of: &[usize], inner: &[usize], indices: &[usize], outer: &[usize]) -> Result<()> {
    check_size("rank of a table's rows", inner.len(), of.len())?;
    for (&found, &expected) in of.iter().zip(inner) {
        check_size("size of a table's rows", expected, found)?;
    }
    for (&found, &expected) in indices.iter().rev().zip(outer.iter().rev()) {
        if found != 1 {
            check_size("indices of a lookup", expected, found)?;
        }
    }
    Ok(())
}
