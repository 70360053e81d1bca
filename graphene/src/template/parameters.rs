//! How templates declare their parameters.

use std::fmt::Debug;

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

        impl $type {
            /// The numbers among the parameters and the flags that are set, as `columns=128 stages=6 ping_pong`.
            pub fn numbers(&self) -> String {
                $crate::template::parameters::numbers(&[
                    $((stringify!($name), stringify!($of), &self.$name),)*
                ])
            }
        }
    };
}

/// Of parameters by name, type and value, those that are numbers, and flags that are set.
pub(super) fn numbers(all: &[(&str, &str, &dyn Debug)]) -> String {
    let text = |&(name, of, value): &(&str, &str, &dyn Debug)| match (of, format!("{value:?}")) {
        ("bool", value) => (value == "true").then(|| name.to_owned()),
        ("i64" | "Option<i64>" | "[i64; 2]", value) if value != "None" => {
            let value = value.replace("Some", "").replace(", ", "x");
            Some(format!("{name}={}", value.replace(['[', ']', '(', ')'], "")))
        }
        _ => None,
    };
    all.iter().filter_map(text).collect::<Vec<String>>().join(" ")
}
