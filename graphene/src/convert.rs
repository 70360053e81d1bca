//! Conversions, a table of them for each type.

/// Conversions of which each row is the type that is converted, the one that it becomes, and how.
macro_rules! from {
    ($($({$($generics:tt)*})? $from:ty => $to:ty: |$value:pat_param| $made:expr;)*) => {$(
        impl$(<$($generics)*>)? From<$from> for $to {
            fn from($value: $from) -> $to { $made }
        }
    )*};
}

pub(crate) use from;
