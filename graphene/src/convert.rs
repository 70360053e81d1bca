//! Conversions, and how values print: tables of them.

/// Conversions of which each row is the type that is converted, the one that it becomes, and how.
macro_rules! from {
    ($($({$($generics:tt)*})? $from:ty => $to:ty: |$value:pat_param| $made:expr;)*) => {$(
        impl$(<$($generics)*>)? From<$from> for $to {
            fn from($value: $from) -> $to { $made }
        }
    )*};
}

/// How values print, of which each row is a type, its value and its formatter, and what writes the one to the other.
macro_rules! display {
    ($($({$($generics:tt)*})? $type:ty: |$value:pat_param, $f:ident| $written:expr;)*) => {$(
        impl$(<$($generics)*>)? std::fmt::Display for $type {
            fn fmt(&self, $f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $value = self;
                $written
            }
        }
    )*};
}

pub(crate) use {display, from};
