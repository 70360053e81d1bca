//! What all stages share: the types of a plan, and what they ask of a graph.

/// A position in a list as a type of its own, which prints as a sign and the position.
macro_rules! position {
    ($(#[$doc:meta])* $name:ident, $sign:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(u32);

        impl $name {
            /// The one at a position.
            pub fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("a graph has fewer nodes"))
            }

            /// Its position.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($sign, "{}"), self.0)
            }
        }
    };
}

pub(crate) mod constants;
pub mod cost;
pub(crate) mod elements;
pub(crate) mod error;
pub mod groups;
pub(crate) mod parameters;
pub mod program;
pub(crate) mod rebuild;
pub(crate) mod sizes;
pub mod variants;
pub mod verify;
pub mod view;
