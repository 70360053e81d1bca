//! `graphene-serve`: see the crate's documentation.

fn main() {}
