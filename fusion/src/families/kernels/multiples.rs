//! Kernels for sizes that are multiples of a number. A family is asked with each such symbol times its number in the symbol's
//! place, so that it sees what divides rows and strides; what it says of the launch is read back.

use super::{Launch, Pointer, Refusal, Scratch, of_family};
use crate::base::program::{Operand, Program, Step};
use crate::base::variants::{Variant, Variants};
use crate::base::view::{Mode, View};
use graphene_frontend::dim::{Dim, DimError, Symbol};
use graphene_ir::target::Target;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Symbols that are multiples, each of its number.
type Multiples = BTreeMap<Symbol, i64>;

/// A launch for each variant: of those for multiples their own, of the others those of `made`.
pub(super) fn launches(
    (program, step, target): (&Program, &Step, &Target),
    made: Vec<Launch>,
) -> Result<Vec<Launch>, Refusal> {
    let variants = step.variants.all();
    if variants.iter().all(|variant| variant.when.multiples().is_empty()) {
        return Ok(made);
    }
    let launch = |(number, variant): (usize, &Variant)| {
        let multiples = variant.when.multiples();
        let own = if multiples.is_empty() {
            made.get(number).or(made.last()).cloned()
        } else {
            let step = of_multiples(step, variant, &multiples)?;
            let launch = of_family(program, &step, target)?.pop();
            launch.map(|launch| read_back(launch, &multiples)).transpose()?
        };
        own.ok_or(Refusal::Operation("a step without a launch"))
    };
    variants.iter().enumerate().map(launch).collect()
}

/// The step as it is in this variant alone, with multiples in place of their symbols.
fn of_multiples(step: &Step, variant: &Variant, multiples: &Multiples) -> Result<Step, Refusal> {
    let mut body = (*step.body).clone();
    for (symbol, of) in multiples {
        let multiple = &Dim::symbol(symbol.name()) * &Dim::from(*of);
        let replaced = body.replace(symbol, &multiple);
        body = replaced.map_err(|_| Refusal::Layout("operations that take no such multiples"))?;
    }
    let operands = |operands: &[Operand]| {
        let view = |operand: &Operand| {
            Ok(Operand { view: in_view(&operand.view, multiples)?, ..operand.clone() })
        };
        operands.iter().map(view).collect::<Result<Vec<_>, DimError>>()
    };
    let (inputs, outputs) = (operands(&step.inputs)?, operands(&step.outputs)?);
    let variants = Variants(vec![variant.clone()]);
    Ok(Step { body: Arc::new(body), inputs, outputs, variants, ..step.clone() })
}

fn in_view(view: &View, multiples: &Multiples) -> Result<View, DimError> {
    let replaced = |dim: &Dim| {
        multiples.iter().try_fold(dim.clone(), |dim, (symbol, of)| {
            dim.replace(symbol, &(&Dim::symbol(symbol.name()) * &Dim::from(*of)))
        })
    };
    let mode = |Mode { size, stride }: &Mode| {
        Ok(Mode { size: replaced(size)?, stride: replaced(stride)? })
    };
    let modes = view.modes.iter().map(mode).collect::<Result<_, DimError>>()?;
    Ok(View { offset: replaced(&view.offset)?, modes })
}

/// The launch with symbols as they were: each what it is now by its number.
fn read_back(launch: Launch, multiples: &Multiples) -> Result<Launch, DimError> {
    let back = |dim: &Dim| {
        multiples.iter().try_fold(dim.clone(), |dim, (symbol, of)| {
            dim.replace(symbol, &Dim::symbol(symbol.name()).floor_div(&Dim::from(*of))?)
        })
    };
    let symbols = launch.symbols.iter().map(back).collect::<Result<_, _>>()?;
    let pointer = |Pointer { operand, offset }: &Pointer| {
        Ok(Pointer { operand: *operand, offset: back(offset)? })
    };
    let pointers = launch.pointers.iter().map(pointer).collect::<Result<_, DimError>>()?;
    let scratch = |Scratch { scalar, elements }: &Scratch| {
        Ok(Scratch { scalar: *scalar, elements: back(elements)? })
    };
    let scratch = launch.scratch.iter().map(scratch).collect::<Result<_, DimError>>()?;
    Ok(Launch { symbols, pointers, scratch, ..launch })
}
