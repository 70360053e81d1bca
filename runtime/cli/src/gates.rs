//! Gates: conditions on the fused plan.

use crate::args::Gates;
use crate::error::Error;
use crate::report::Gate;
use graphene_fusion::groups::Family;
use graphene_fusion::program::Program;

/// Counts what the gates ask for in the fused program.
///
/// # Errors
/// [`Error::Flag`] for a family that does not exist.
pub(crate) fn check(gates: &Gates, fused: &Program) -> Result<Vec<Gate>, Error> {
    let mut checked = Vec::new();
    for (name, expected) in &gates.assert_fused {
        let family = family(name)?;
        let found = fused.steps().iter().filter(|step| step.family == family).count();
        checked.push(gate(format!("fused {family}"), *expected, found));
    }
    if let Some(expected) = gates.assert_launches {
        let found = fused.steps().len();
        let (gate, holds) = ("launches, at most".to_owned(), found <= expected);
        checked.push(Gate { gate, expected, found, holds });
    }
    Ok(checked)
}

/// Checks the names of the families before anything is compiled.
///
/// # Errors
/// [`Error::Flag`] for a family that does not exist.
pub(crate) fn check_names(gates: &Gates) -> Result<(), Error> {
    gates.assert_fused.iter().try_for_each(|(name, _)| family(name).map(|_| ()))
}

fn gate(gate: String, expected: usize, found: usize) -> Gate {
    Gate { gate, expected, found, holds: expected == found }
}

fn family(name: &str) -> Result<Family, Error> {
    let found = Family::ALL.iter().find(|family| family.name().eq_ignore_ascii_case(name));
    found.copied().ok_or_else(|| {
        let known: Vec<_> = Family::ALL.iter().map(|family| family.name()).collect();
        let known = known.join(", ");
        Error::flag("--assert-fused", format!("`{name}` is no family; they are {known}"))
    })
}
