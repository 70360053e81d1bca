//! Expressions over layouts in CuTe's notation, which the command `graphene-opt layout` evaluates: [`expr`].

pub mod expr;
