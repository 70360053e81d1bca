//! `ai.onnx.ml`: what scikit-learn's pipelines, gradient boosting and their like export. Everything is expanded into
//! operations of ours, so that it runs wherever they do.
//!
//! Values are those of onnxruntime, whose reading of what ONNX leaves open is what exporters are tested with. Labels are
//! integers: an output of texts is refused where something reads it.

use super::{Row, Run, TensorsFn, ValuesFn};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Reason, Value};
use crate::op::Op;
use crate::tensor::Tensor;

mod features;
mod forest;
mod linear;
mod scores;
mod svm;
mod trees;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    ml("TreeEnsembleRegressor", 1, trees::regressor),
    ml_values("TreeEnsembleClassifier", 1, trees::classifier),
    ml("TreeEnsemble", 5, trees::ensemble),
    ml("LinearRegressor", 1, linear::regressor),
    ml_values("LinearClassifier", 1, linear::classifier),
    ml("SVMRegressor", 1, svm::regressor),
    ml_values("SVMClassifier", 1, svm::classifier),
    ml("ArrayFeatureExtractor", 1, features::extract),
    ml("Binarizer", 1, features::binarize),
    ml("FeatureVectorizer", 1, features::join),
    ml("Imputer", 1, features::impute),
    ml("LabelEncoder", 1, features::encode_labels),
    ml("Normalizer", 1, features::normalize),
    ml("OneHotEncoder", 1, features::one_hot),
    ml("Scaler", 1, features::scale),
    ml("ZipMap", 1, features::zip_map),
];

const DOMAIN: &str = "ai.onnx.ml";

const fn ml(op: &'static str, since: i64, run: TensorsFn) -> Row {
    Row { domain: DOMAIN, op, since, run: Run::Tensors(run) }
}

const fn ml_values(op: &'static str, since: i64, run: ValuesFn) -> Row {
    Row { domain: DOMAIN, op, since, run: Run::Values(run) }
}

/// More classes or targets than any model has.
const MAX_CLASSES: usize = 1 << 16;

/// Samples by features in elements of this type; a single sample may come without a dim for samples.
fn samples(c: &mut Context<'_, '_>, x: ValueId, dtype: DType) -> Result<ValueId, OpError> {
    let x = match c.rank(x) {
        1 => c.unsqueeze(x, &[0])?,
        2 => x,
        rank => {
            return Err(c.invalid(format!(
                "needs an input [samples, features] or [features]; got {rank} dims"
            )));
        }
    };
    c.cast_to(x, dtype)
}

/// A list of numbers that is required.
fn floats<'m>(c: &Context<'_, 'm>, name: &str) -> Result<&'m [f32], OpError> {
    c.floats(name).ok_or_else(|| Reason::MissingAttribute(name.into()).into())
}

/// Numbers as a constant of one dim.
fn list(c: &mut Context<'_, '_>, values: &[f32]) -> Result<ValueId, OpError> {
    let tensor = Tensor::from_vec(vec![values.len()], values.to_vec())?;
    Ok(c.constant(tensor))
}

/// Numbers as a constant of two dims, of which the last is found from their number.
fn table(c: &mut Context<'_, '_>, values: &[f32], rows: usize) -> Result<ValueId, OpError> {
    if rows == 0 || values.len() < rows || !values.len().is_multiple_of(rows) {
        let found = values.len();
        return Err(
            c.invalid(format!("needs numbers for {rows} rows of equal length; got {found}"))
        );
    }
    let tensor = Tensor::from_vec(vec![rows, values.len() / rows], values.to_vec())?;
    Ok(c.constant(tensor))
}

/// The labels of a classifier.
enum Labels<'m> {
    /// Numbers.
    Integers(&'m [i64]),
    /// Texts, of which there are so many.
    Texts(usize),
}

impl<'m> Labels<'m> {
    /// Those of the attributes `classlabels_strings` and one of integers.
    fn of(c: &Context<'_, 'm>, integers: &str) -> Result<Self, OpError> {
        let texts = c.attribute("classlabels_strings").map_or(0, |texts| texts.strings.len());
        let labels = match c.ints(integers) {
            _ if texts > 0 => Self::Texts(texts),
            Some(labels) => Self::Integers(labels),
            None => return Err(Reason::MissingAttribute(integers.into()).into()),
        };
        match labels.len() {
            2..=MAX_CLASSES => Ok(labels),
            count => Err(c.unsupported(format!("a classifier of {count} classes"))),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Integers(labels) => labels.len(),
            Self::Texts(count) => *count,
        }
    }

    /// The labels of classes given by their numbers.
    fn at(&self, c: &mut Context<'_, '_>, class: ValueId) -> Result<Value, OpError> {
        match self {
            Self::Integers(labels) => {
                let labels = Tensor::from_vec(vec![labels.len()], labels.to_vec())?;
                let labels = c.constant(labels);
                Ok(c.add(Op::Gather { axis: 0 }, &[labels, class])?.into())
            }
            Self::Texts(_) => Ok(Value::Unsupported(
                "holds labels that are texts (`classlabels_strings`), and tensors of texts are not supported: \
                 use the scores alone, or export the model with integer labels"
                    .into(),
            )),
        }
    }
}

/// The number of the largest score of each row, the first of equals.
fn largest(c: &mut Context<'_, '_>, scores: ValueId) -> Result<ValueId, OpError> {
    c.add(Op::ArgReduce { largest: true, axis: 1, keep: false, last: false }, &[scores])
}

/// A scalar broadcast to samples and columns.
fn filled(
    c: &mut Context<'_, '_>,
    value: ValueId,
    like: ValueId,
    columns: usize,
) -> Result<ValueId, OpError> {
    let rows = c.shape(like)[0].clone();
    c.expand(value, vec![rows, Dim::from(columns)])
}
