//! From a tensor graph to a program of launches.
//!
//! The pipeline, one public function a stage:
//!
//! 1. [`rewrite`]: an equal, simpler graph, of one without indices that count (`ranges`); [`convert`] gives it half precision
//!    where that is asked for. On a CPU `integers` computes with bytes what models write between conversions to reals and back;
//!    on a GPU `reals` does so with reals, `split` makes two of a long reduction whose results are few, and two matmuls of one
//!    whose parts are multiplied (`gates`), `rotary` computes each half of rotary embeddings, `resize` makes views of what
//!    grows by whole factors, and `lookups` rows of tables of all that is taken by indices.
//! 2. [`partition`]: every operation into exactly one group. `fusion_graph` sees operations through changes of view, `legal`
//!    says what one launch can compute, [`cost`] what it takes, `candidates` finds all such groups and `cover` chooses.
//! 3. [`lower`]: groups to steps over buffers, read and written through views, each with its [`variants`].
//!
//! Modules are layers, and import one way:
//!
//! | layer | what it knows | what it uses |
//! |---|---|---|
//! | `base` | the types of a plan: groups, programs, views, variants, costs | |
//! | `rewrite` | equal graphs | `base` |
//! | `families` | kinds of launches: their kernels, calls of libraries, layouts and tiles | `base` |
//! | `partition` | which operations share a launch | `base`, `rewrite`, `families` |
//! | `lower` | steps over buffers, and their tuning | all of these |
//!
//! [`tuning`] gives steps parameters that were found by timing. [`library`] is what vendors' libraries compute in one call,
//! where every operation is a launch. [`pad`] says which sizes may be larger than was asked for. [`explain`] says of each
//! value that a step stores for another one why. [`verify`] says what holds between stages. All are pure: no device,
//! clock, file or environment.

mod base;
mod explain;
mod families;
mod lower;
pub mod pad;
mod partition;
mod rewrite;

pub use base::error::FusionError;
pub use base::{cost, groups, program, variants, verify, view};
pub use explain::{Line, explain};
pub use families::library::AttentionBy;
pub use families::{kernels, library};
pub use lower::{lower, tuning};
pub use partition::{Granularity, partition};
pub use rewrite::precision::convert;
pub use rewrite::{Report, Rewritten, egraphs, rewrite, tidy};

use graphene_frontend::{Bindings, DType, Graph};
use graphene_ir::target::{Kind, Target};
use groups::Groups;
use lower::lower_for;
use program::Program;
use rewrite::gates::split_gates;
use rewrite::integers::integer_arithmetic;
use rewrite::lookups;
use rewrite::precision::half_weights;
use rewrite::ranges::without_ranges;
use rewrite::reals::as_reals;
use rewrite::resize::without_resizes;
use rewrite::rotary::split_rotations;
use rewrite::split::split_reductions;

/// A model's way from a graph to a program, each stage kept.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The graph as it was partitioned: rewritten, or only tidied where every operation is a launch on a CPU.
    pub graph: Graph,
    /// What rewriting did.
    pub report: Report,
    /// The groups.
    pub groups: Groups,
    /// The program.
    pub program: Program,
}

/// Plans a graph for a target: rewrites it, partitions it, lowers it. Fused execution is compared with
/// [`Granularity::PerOp`]: there, on a CPU, the operations stay as the model has them; on a GPU they are the recognised
/// ones, as frameworks have them, and attention is as [`library`] says.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation refuses the inputs that it had: a defect of inference.
pub fn plan(
    graph: &Graph,
    target: &Target,
    granularity: Granularity,
    hints: &Bindings,
) -> Result<Planned, FusionError> {
    plan_in(graph, target, granularity, hints, None)
}

/// The same with values of single precision as other elements; see [`convert`].
///
/// # Errors
/// As for [`plan`] and [`convert`].
pub fn plan_in(
    graph: &Graph,
    target: &Target,
    granularity: Granularity,
    hints: &Bindings,
    elements: Option<DType>,
) -> Result<Planned, FusionError> {
    plan_by(graph, target, granularity, hints, elements, AttentionBy::Calls)
}

fn plan_by(
    graph: &Graph,
    target: &Target,
    granularity: Granularity,
    hints: &Bindings,
    elements: Option<DType>,
    attention: AttentionBy,
) -> Result<Planned, FusionError> {
    let Rewritten { mut graph, report } = match (granularity, target.kind) {
        (Granularity::PerOp, Kind::Cpu) => {
            Rewritten { graph: tidy(graph)?, report: Report::default() }
        }
        (_, Kind::Cuda { .. }) => {
            let graph = without_resizes(&half_weights(&without_ranges(graph)?)?)?;
            rewrite(&lookups::as_rows(&graph)?, target, hints)?
        }
        (Granularity::Fused, Kind::Cpu) => rewrite(&without_ranges(graph)?, target, hints)?,
    };
    let fused_on_gpu = granularity == Granularity::Fused && target.kind != Kind::Cpu;
    if fused_on_gpu {
        graph = as_reals(&graph)?;
    }
    if let Some(elements) = elements {
        graph = tidy(&convert(&graph, elements)?)?;
    }
    graph = match (granularity, target.kind) {
        (Granularity::PerOp, Kind::Cpu) => graph,
        (Granularity::PerOp, Kind::Cuda { .. }) => tidy(&library::spelled(&graph, attention)?)?,
        (Granularity::Fused, Kind::Cpu) => integer_arithmetic(graph)?,
        (Granularity::Fused, Kind::Cuda { .. }) => {
            let graph = split_rotations(&split_reductions(&graph, target, hints)?)?;
            tidy(&split_gates(&graph)?)?
        }
    };
    if target.kind != Kind::Cpu {
        graph = with_whole_channels(graph, target, granularity, hints)?;
    }
    let (mut groups, mut program) = arranged(&graph, target, granularity, hints)?;
    if fused_on_gpu {
        let without = library::attention_without_kernel(&program, target);
        if !without.is_empty() {
            graph = tidy(&library::without_attention(&graph, &without)?)?;
            (groups, program) = arranged(&graph, target, granularity, hints)?;
        }
    }
    Ok(Planned { graph, report, groups, program })
}

/// The graph with the channels of images filled up, if convolutions have them innermost then.
fn with_whole_channels(
    graph: Graph,
    target: &Target,
    granularity: Granularity,
    hints: &Bindings,
) -> Result<Graph, FusionError> {
    let Some(filled) = rewrite::channels::filled_up(&graph, target)? else { return Ok(graph) };
    let groups = partition(&filled, target, granularity, hints);
    let innermost = !lower::channels_last::convolutions(&filled, &groups, target).is_empty();
    Ok(if innermost { filled } else { graph })
}

/// Partitions and lowers.
fn arranged(
    graph: &Graph,
    target: &Target,
    granularity: Granularity,
    hints: &Bindings,
) -> Result<(Groups, Program), FusionError> {
    let groups = partition(graph, target, granularity, hints);
    if cfg!(debug_assertions) {
        verify::groups(graph, &groups)?;
    }
    let program = lower_for(graph, &groups, target, (granularity, hints))?;
    if cfg!(debug_assertions) {
        verify::program(&program)?;
    }
    Ok((groups, program))
}

/// The library executor's plan ([`Granularity::PerOp`]) with attention as is said.
///
/// # Errors
/// As for [`plan_in`].
pub fn plan_library(
    graph: &Graph,
    target: &Target,
    hints: &Bindings,
    elements: Option<DType>,
    attention: AttentionBy,
) -> Result<Planned, FusionError> {
    plan_by(graph, target, Granularity::PerOp, hints, elements, attention)
}
