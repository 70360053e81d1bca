//! What a name of a model stands for while it is imported.

use super::error::OpError;
use crate::graph::ValueId;
use std::borrow::Cow;
use std::rc::Rc;

/// Tensors in order. Nothing of a sequence is in the graph: its operators choose among tensors at import.
pub type Sequence = Rc<[ValueId]>;

/// A value of a model.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A tensor of the graph.
    Tensor(ValueId),
    /// A list of tensors.
    Sequence(Sequence),
    /// What a graph cannot hold, such as texts. Whatever reads it is refused, with this as the reason.
    Unsupported(Cow<'static, str>),
}

impl Value {
    /// The tensors of these values.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] where one is no tensor, which `what` calls it.
    pub(super) fn tensors(values: Vec<Self>, what: &str) -> Result<Vec<ValueId>, OpError> {
        let tensor = |value| {
            match value {
            Self::Tensor(value) => Ok(value),
            Self::Sequence(_) => Err(OpError::Unsupported(
                format!(
                    "{what} is a sequence: lists exist only where the model is written out at import"
                )
                .into(),
            )),
            Self::Unsupported(why) => Err(OpError::Unsupported(format!("{what} {why}").into())),
        }
        };
        values.into_iter().map(tensor).collect()
    }
}

impl From<ValueId> for Value {
    fn from(value: ValueId) -> Self {
        Self::Tensor(value)
    }
}
