//! .

use super::Atom;

pub(super) const ATOMS: &[Atom] = &[];
