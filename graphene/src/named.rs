//! Closed sets of values that have names.

/// An enum of which each row is a variant and the name that text has for it, which its documentation ends with.
macro_rules! named {
    (
        $(#[$meta:meta])*
        pub enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type { $($(#[$doc])* #[doc = concat!(" `", $name, "`")] $variant,)* }

        impl $type {
            /// All of them, with their names.
            pub const ALL: [($type, &'static str); [$($name),*].len()] =
                [$(($type::$variant, $name)),*];

            /// The name.
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use named;
