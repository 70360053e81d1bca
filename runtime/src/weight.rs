//! What programs read and nobody gives: the model's weights, and those made of them.

use crate::error::{Error, Result};
use graphene_frontend::eval::evaluate;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::{Buffer, BufferKind, Weight};

/// The elements of a buffer that is a weight.
pub(crate) fn elements(buffer: &Buffer) -> Result<Option<Tensor>> {
    match &buffer.kind {
        BufferKind::Weight(Weight::Given(tensor)) => Ok(Some(tensor.clone())),
        BufferKind::Weight(Weight::Made(recipe)) => {
            let made =
                evaluate(recipe, &[]).map_err(|error| Error::from(error).at(&buffer.name))?;
            Ok(made.into_iter().next())
        }
        BufferKind::Input(_) | BufferKind::Output(_) | BufferKind::Intermediate => Ok(None),
    }
}
