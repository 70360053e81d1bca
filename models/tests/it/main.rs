//! The crate's integration tests, one module per promise.

// Helpers of tests may unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]

mod command;
mod files;
mod golden;
mod structure;
mod weights;

use graphene_models::{Options, ZooModel, build};

/// The model `name` built with `options`.
fn zoo(name: &str, options: &Options) -> ZooModel {
    build(name, options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// An empty directory of its own for the test `name`.
fn scratch(name: &str) -> std::path::PathBuf {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}
