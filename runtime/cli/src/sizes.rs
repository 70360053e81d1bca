//! Sizes for the dynamic dims: what flags and inputs ask for. What comes of it is the runtime's to say.

use crate::args::Sizes;
use crate::error::{Error, Origin};
use crate::inputs::Given;
use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_runtime::{RequestedSizes, Role, Roles, Sizing};

/// Length of a sequence where none is given.
pub(crate) const DEFAULT_SEQUENCE: i64 = 128;
/// Size of a batch where none is given.
const DEFAULT_BATCH: i64 = 1;

/// The sizes that inputs and flags ask for.
///
/// # Errors
/// [`Error::Input`] for an input of another rank than declared, [`Error::Model`] for sizes that conflict,
/// [`Error::UnknownDim`] for a flag that fits no dim.
pub(crate) fn requested(
    declared: &[DeclaredInput],
    flags: &Sizes,
    given: &Given,
) -> Result<RequestedSizes, Error> {
    let mut requested = RequestedSizes::default();
    for DeclaredInput { name, ty } in declared {
        let (Some(ty), Some((tensor, origin))) = (ty, given.get(name)) else { continue };
        if tensor.shape().len() != ty.rank() {
            return Err(misfit(name, ty, tensor, origin));
        }
        requested.shape(ty, tensor.shape(), &format!("input `{name}` from {origin}"))?;
    }
    for (name, size) in &flags.dim {
        let added = requested.dim(declared, name, *size, "--dim");
        added.map_err(|error| match error {
            graphene_runtime::Error::UnknownDim { known, .. } => {
                let roles = Roles::of(declared.iter().filter_map(|input| input.ty.as_ref()));
                unknown("--dim", name, known.iter().map(String::as_str), &roles)
            }
            error => error.into(),
        })?;
    }
    for (role, size, flag) in
        [(Role::Batch, flags.batch, "--batch"), (Role::Sequence, flags.seq, "--seq")]
    {
        size.into_iter().for_each(|size| requested.role(role, size, flag));
    }
    requested.default_of(Role::Batch, DEFAULT_BATCH);
    requested.default_of(Role::Sequence, DEFAULT_SEQUENCE);
    Ok(requested)
}

/// A name of no dim of a model, with the names that there are.
pub(crate) fn unknown<'a>(
    flag: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
    roles: &Roles,
) -> Error {
    let is = |role: Role, name: &str| roles.dim(role).is_some_and(|dim| dim.name() == name);
    let known = known.map(|name| match () {
        () if is(Role::Batch, name) => format!("{name} (--batch)"),
        () if is(Role::Sequence, name) => format!("{name} (--seq)"),
        () => name.to_owned(),
    });
    Error::UnknownDim { flag, name: name.to_owned(), known: known.collect() }
}

/// Whether nobody has asked for the length of the sequence: a shorter one will do where it does not fit.
pub(crate) fn is_free(sizing: &Sizing) -> bool {
    let sequence = sizing.roles.sequence.as_ref();
    sequence.is_some_and(|symbol| sizing.asked.get(symbol).is_none())
}

/// Sizes as text: `batch=8, sequence=128`.
pub(crate) fn sizes_text(bindings: &Bindings) -> String {
    let sizes: Vec<_> = bindings.iter().map(|(symbol, size)| format!("{symbol}={size}")).collect();
    sizes.join(", ")
}

/// Sizes by name.
pub(crate) fn named(bindings: &Bindings) -> Vec<(&str, usize)> {
    let size = |size: i64| usize::try_from(size).unwrap_or(usize::MAX);
    bindings.iter().map(|(symbol, n)| (symbol.name(), size(n))).collect()
}

/// Checks that given tensors have the types that the model asks for under these sizes.
///
/// # Errors
/// [`Error::Input`].
pub(crate) fn check_given(graph: &Graph, given: &Given, bindings: &Bindings) -> Result<(), Error> {
    for &id in graph.inputs() {
        let (name, ty) = (graph.node(id).name(), graph.ty(id.value()));
        let Some((tensor, origin)) = given.get(name) else { continue };
        let shape = ty.bound_shape(bindings);
        let fits = tensor.dtype() == ty.dtype && shape.is_ok_and(|shape| tensor.shape() == shape);
        if !fits {
            return Err(misfit(name, ty, tensor, origin));
        }
    }
    Ok(())
}

/// A given tensor that is not what the model asks for.
fn misfit(name: &str, expected: &TensorType, found: &Tensor, origin: Origin) -> Error {
    let (name, expected) = (name.to_owned(), expected.to_string());
    Error::Input { name, expected, found: format!("{found:?}"), origin }
}
