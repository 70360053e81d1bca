//! How templates declare their parameters.

/// A struct of which each row is a parameter and its default.
macro_rules! parameters {
    (
        $(#[$meta:meta])*
        pub struct $type:ident {
            $($(#[$doc:meta])* pub $name:ident: $of:ty = $default:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub struct $type { $($(#[$doc])* pub $name: $of,)* }

        impl Default for $type {
            fn default() -> $type {
                $type { $($name: $default,)* }
            }
        }
    };
}
