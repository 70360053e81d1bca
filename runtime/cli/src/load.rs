//! The model named on the command line, and the table of operators.

use crate::args::Arguments;
use crate::error::Error;
use crate::report;
use graphene_frontend::import::ops;
use graphene_models::build;
use graphene_runtime::{Reading, Source};
use serde::Serialize;

/// The prefix of the zoo's models.
const ZOO: &str = "zoo:";

/// Reads the model that the command line names, or builds it.
///
/// # Errors
/// [`Error::Model`], [`Error::Zoo`].
pub(crate) fn open(arguments: &Arguments) -> Result<Source, Error> {
    let name = arguments.model.as_deref().unwrap_or_default();
    let Some(zoo) = name.strip_prefix(ZOO) else {
        return Ok(Source::open(name, Reading::Mapped)?);
    };
    let options = graphene_models::Options { seed: arguments.data.seed, ..Default::default() };
    let zoo = build(zoo, &options)?;
    let (model, (_, weights)) = (zoo.encode(), zoo.into_parts());
    Ok(Source::with_external(model, weights))
}

/// An operator that is understood.
#[derive(Serialize, Debug)]
struct Operator {
    /// Its domain and name; ONNX's own domain has none.
    name: String,
    /// The first version of its operator set that is.
    since: i64,
}

/// The table of `--list-ops`, as an object of JSON if asked for.
pub(crate) fn operators(json: bool) -> String {
    let mut rows: Vec<_> = ops::rows().map(|row| (row.domain, row.op, row.since)).collect();
    rows.sort_unstable();
    let operator = |&(domain, op, since): &(&str, &str, i64)| {
        let dot = if domain.is_empty() { "" } else { "." };
        Operator { name: format!("{domain}{dot}{op}"), since }
    };
    let operators: Vec<_> = rows.iter().map(operator).collect();
    if json {
        return report::table("operators", &operators);
    }
    let width = operators.iter().map(|operator| operator.name.len()).max().unwrap_or(0);
    let row =
        |Operator { name, since }: &Operator| format!("{name:<width$}  from version {since}\n");
    format!("{} operators; versions are those of their operator set\n", operators.len())
        + &operators.iter().map(row).collect::<String>()
}
