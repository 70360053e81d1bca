//! A zoo of models, built rather than downloaded.
//!
//! Each model is an ONNX graph as torch's exporter prints it, shape arithmetic included, with weights that
//! are a function of a seed. In reading order: `catalog` has the models by name, `options` what may be
//! chosen about them, `builder` makes nodes with the exporter's names, `blocks`, `attention`,
//! `encoder` and `small` put them together, `weights` computes any range of the weights,
//! `zoo` joins the two, and `write` and `wire` put them into files.
//!
//! ```
//! use graphene_models::{Options, build};
//!
//! let model = build("bert-base-tiny", &Options::default())?;
//! assert_eq!(model.weights().parameters(), 168_128);
//! # Ok::<(), graphene_models::ZooError>(())
//! ```

mod attention;
mod blocks;
mod builder;
mod catalog;
mod encoder;
mod error;
mod options;
mod small;
mod weights;
mod wire;
mod write;
mod zoo;

pub use catalog::names;
pub use error::ZooError;
pub use options::{Activation, NEWEST_OPSET, OLDEST_OPSET, Options, Source};
pub use weights::{Init, Weight, Weights};
pub use write::Storage;
pub use zoo::{ZooModel, build};
