//! Kernels for sizes that are multiples of a number. A family is asked with each such symbol times its number in the symbol's
//! place, so that it sees what divides rows and strides; what it says of the launch is read back.

use super::{Launch, Refusal, of_family};
use crate::base::program::{Program, Step};
use crate::base::variants::{Variant, Variants};
use crate::base::view::{Mode, View};
use graphene_frontend::dim::{Dim, DimError, Symbol};
use graphene_ir::target::Target;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Symbols that are multiples, each of its number.
type Multiples = BTreeMap<Symbol, i64>;

/// The launches of a step: one for each of its variants, or one that serves all of them. Variants for multiples have kernels of
/// their own, where there are such; all are right at these sizes.
///
/// # Errors
/// [`Refusal`], for what a library or the host has to compute.
pub fn launches(program: &Program, step: &Step, target: &Target) -> Result<Vec<Launch>, Refusal> {
    let of_multiples = |variant: &&Variant| !variant.when.multiples().is_empty();
    let variants = step.variants.all();
    if !variants.iter().any(|variant| of_multiples(&variant)) {
        return of_family(program, step, target);
    }
    let plain: Vec<Variant> = variants.iter().filter(|of| !of_multiples(of)).cloned().collect();
    let made = of_family(program, &of_variants(step, plain.clone()), target)?;
    let launch = |variant: &Variant| {
        let own = of_multiples(&variant).then(|| vectorised(program, step, variant, target).ok());
        let number = plain.iter().position(|of| of.name == variant.name).unwrap_or(plain.len());
        let plain = || made.get(number).or(made.last()).cloned();
        own.flatten().or_else(plain).ok_or(Refusal::Operation("a step without a launch"))
    };
    variants.iter().map(launch).collect()
}

/// The launch of a variant for multiples.
fn vectorised(
    program: &Program,
    step: &Step,
    variant: &Variant,
    target: &Target,
) -> Result<Launch, Refusal> {
    let multiples = variant.when.multiples();
    let step = of_multiples(step, variant, &multiples)?;
    let launch = of_family(program, &step, target)?.pop();
    let launch = launch.ok_or(Refusal::Operation("a step without a launch"))?;
    Ok(in_symbols(launch, &multiples)?)
}

/// The step with these variants alone.
fn of_variants(step: &Step, variants: Vec<Variant>) -> Step {
    Step { variants: Variants(variants), ..step.clone() }
}

/// The step in this variant alone, with a multiple in place of each of these symbols.
fn of_multiples(step: &Step, variant: &Variant, multiples: &Multiples) -> Result<Step, Refusal> {
    let mut body = (*step.body).clone();
    for (symbol, of) in multiples {
        let multiple = &Dim::symbol(symbol.name()) * &Dim::from(*of);
        let replaced = body.replace(symbol, &multiple);
        body = replaced.map_err(|_| Refusal::Layout("operations that take no such multiples"))?;
    }
    let mut step = Step { body: Arc::new(body), ..of_variants(step, vec![variant.clone()]) };
    let views = step.inputs.iter_mut().chain(&mut step.outputs).map(|operand| &mut operand.view);
    let dims = views.flat_map(|View { offset, modes }| {
        modes.iter_mut().flat_map(|Mode { size, stride }| [size, stride]).chain([offset])
    });
    replace(dims, multiples, |symbol, of| Ok(symbol * of))?;
    Ok(step)
}

/// The launch in the original symbols: each `s` is replaced by `floor(s / number)`.
fn in_symbols(mut launch: Launch, multiples: &Multiples) -> Result<Launch, DimError> {
    let offsets = launch.pointers.iter_mut().map(|pointer| &mut pointer.offset);
    let elements = launch.scratch.iter_mut().map(|scratch| &mut scratch.elements);
    let dims = launch.symbols.iter_mut().chain(offsets).chain(elements);
    replace(dims, multiples, |symbol, of| symbol.floor_div(of))?;
    Ok(launch)
}

/// Replaces each of these symbols in some dims by what is made of it and of its number.
fn replace<'a>(
    dims: impl Iterator<Item = &'a mut Dim>,
    multiples: &Multiples,
    made: impl Fn(&Dim, &Dim) -> Result<Dim, DimError>,
) -> Result<(), DimError> {
    for dim in dims {
        for (symbol, of) in multiples {
            *dim = dim.replace(symbol, &made(&Dim::symbol(symbol.name()), &Dim::from(*of))?)?;
        }
    }
    Ok(())
}
