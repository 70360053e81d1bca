//! Tuning: parameters of templates that somebody found to be fast for a step at some sizes, in place of those of its
//! variants.
//!
//! A [`Choice`] is data. [`fingerprint`] says which steps it is for, [`candidates`] what else a step could take, and
//! [`tuned`] gives a program's steps the choices as variants of their own, before all others, that apply at the sizes for
//! which they were found. So kernels are made, kept and bound as those of any variant. Who times candidates is no part of
//! this: all here is pure.

use crate::base::groups::Family;
pub use crate::base::parameters::{
    FmhaParameters, FoldsParameters, GemmParameters, MlpParameters, NoParameters, Parameters,
};
use crate::base::program::{Operand, Program, Step};
use crate::base::variants::Variants;
use crate::families::kernels::launches;
use graphene_frontend::{Op, Symbol};
use graphene_ir::emit::emit;
use graphene_ir::target::Target;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;

/// What was found for a step at some sizes.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// Which steps it is for.
    pub fingerprint: String,
    /// The sizes of the program's symbols.
    pub sizes: BTreeMap<String, i64>,
    /// What to take.
    pub parameters: Parameters,
}

/// What a step computes, of operands that lie as they do, as a number in hexadecimal digits: equal steps have equal ones, in
/// any model, whatever its nodes are called. With TF32 they are others.
pub fn fingerprint(program: &Program, step: &Step, target: &Target) -> String {
    let mut text = step.family.name().to_owned();
    if target.tf32 {
        text.push_str(" of TF32");
    }
    for (id, node) in step.body.nodes() {
        let op = match node.op() {
            Op::Constant(_) => "Constant".to_owned(),
            op => format!("{op:?}"),
        };
        let inputs = node.inputs().iter().map(|value| match value {
            Some(value) => format!("%{}.{}", value.node.index(), value.output),
            None => "-".to_owned(),
        });
        let types: Vec<String> = node.outputs().iter().map(ToString::to_string).collect();
        let inputs: Vec<String> = inputs.collect();
        let _ = writeln!(text, "%{} = {op}({}) {}", id.index(), inputs.join(","), types.join(","));
    }
    for (what, operands) in [("reads", &step.inputs), ("writes", &step.outputs)] {
        for Operand { buffer, view } in operands {
            let buffer = program.buffer(*buffer);
            let _ = writeln!(text, "{what} {} {view} {}", buffer.dtype, buffer.is_weight());
        }
    }
    format!("{:016x}", hash(text.as_bytes()))
}

/// FNV-1a of 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The step as it is with these parameters alone: what a search gives to [`launches`].
pub fn with_parameters(step: &Step, parameters: Parameters) -> Step {
    Step { variants: Variants::only(parameters), ..step.clone() }
}

/// The parameters that a step could take on a target: all of which a kernel can be made that fits; none for families that
/// are not searched, and for targets other than Hopper's.
pub fn candidates(program: &Program, step: &Step, target: &Target) -> Vec<Parameters> {
    let all = match step.family {
        Family::MatMul => matmuls(target, deepest_split(step)),
        Family::Fmha => attentions(),
        _ => Vec::new(),
    };
    let fits = |parameters: &Parameters| has_kernel(program, step, *parameters, target);
    let deepest = |pipelines: &Vec<Parameters>| -> Vec<Parameters> {
        pipelines.iter().copied().filter(fits).take(DEEPEST).collect()
    };
    // Making a kernel takes milliseconds, and there are hundreds.
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let share = all.len().div_ceil(threads).max(1);
    let of_part = |part: &[Vec<Parameters>]| part.iter().flat_map(deepest).collect::<Vec<_>>();
    let of_part = &of_part;
    thread::scope(|scope| {
        let parts = all.chunks(share).map(|part| scope.spawn(move || of_part(part)));
        let parts: Vec<_> = parts.collect();
        let found = parts.into_iter().map(|part| part.join().unwrap_or_else(|e| resume_unwind(e)));
        found.flatten().collect()
    })
}

/// Whether a step has a kernel of these parameters that fits into a block's shared memory.
fn has_kernel(program: &Program, step: &Step, parameters: Parameters, target: &Target) -> bool {
    let made = launches(program, &with_parameters(step, parameters), target);
    let Some(launch) = made.ok().and_then(|launches| launches.into_iter().next()) else {
        return false;
    };
    let limit = target.shared_memory_per_block;
    emit(&launch.kernel).is_ok_and(|emitted| u64::from(emitted.launch.shared_bytes) <= limit)
}

/// Of parameters that differ in their stages alone, so many are tried: a deeper pipeline hides more, and takes only
/// shared memory that nothing else does.
const DEEPEST: usize = 2;

/// Into how many parts the depth of a step's matmuls may be split: each has two stages or more of it, and all of A is
/// one matrix.
fn deepest_split(step: &Step) -> i64 {
    let body = &step.body;
    let depths = body.matmuls().into_iter().map(|id| {
        let types = |place: usize| body.node(id).input(place).map(|v| body.ty(v));
        let (a, b) = (types(0)?, types(1)?);
        a.shape.last()?.known().filter(|_| b.rank() == 2)
    });
    depths.map(|depth| depth.unwrap_or(0) / 128).min().unwrap_or(0).max(1)
}

fn matmuls(target: &Target, most: i64) -> Vec<Vec<Parameters>> {
    let mut all = Vec::new();
    // Rows of a tile by warpgroups that share it, and by those that ping-pong.
    let shapes = [(2, 1, false), (1, 1, false), (1, 2, false), (2, 2, false), (3, 1, false)];
    let ping_pong = [(2, 2, true), (2, 1, true), (3, 1, true)];
    for (consumers, strips, ping_pong) in shapes.into_iter().chain(ping_pong) {
        for columns in [256, 192, 128, 64] {
            // An instruction has its sums in registers, of which there are too few where so many threads share them.
            if consumers == 3 && columns > WIDEST_OF_THREE {
                continue;
            }
            for (cluster, split) in [(1, 1), (2, 1), (1, 2), (1, 4)] {
                let rows = 64 * strips * if ping_pong { 1 } else { consumers };
                // Parts of a depth are for small tiles, of which there are few.
                if split > 1 && (split > most || ping_pong || rows * columns > 128 * 128) {
                    continue;
                }
                // What cannot fit need not be made: a stage is a tile of A and one of B, each 128 bytes deep.
                let fits = |stages: &i64| {
                    let bytes = u64::try_from((rows + columns) * 128 * stages);
                    bytes.is_ok_and(|bytes| bytes <= target.shared_memory_per_block)
                };
                let pipelines = (2..=8).rev().filter(fits).map(|stages| {
                    Parameters::Gemm(GemmParameters {
                        columns,
                        consumers,
                        strips,
                        ping_pong,
                        stages,
                        cluster,
                        split,
                    })
                });
                all.push(pipelines.collect());
            }
        }
    }
    all
}

/// The columns of a matmul's instruction that three consumers' registers hold.
const WIDEST_OF_THREE: i64 = 192;

fn attentions() -> Vec<Vec<Parameters>> {
    let keys = [128, 96, 64, 160, 192, 80, 112, 256];
    let shapes = [2, 1, 3].into_iter().flat_map(|consumers| keys.map(|keys| (consumers, keys)));
    let fit = shapes.filter(|&(consumers, keys)| consumers < 3 || keys <= WIDEST_OF_THREE);
    let pipelines = fit.map(|(consumers, keys)| {
        let pipeline = |stages| Parameters::Fmha(FmhaParameters { consumers, keys, stages });
        [3, 2, 1].map(pipeline).to_vec()
    });
    pipelines.collect()
}

/// The program with these choices: each is the first variant of the steps that it is for, at the sizes that it is for. And
/// those that are left out, since no kernel on the target has their parameters: they were found for other templates.
pub fn tuned<'a>(
    mut program: Program,
    choices: &'a [Choice],
    target: &Target,
) -> (Program, Vec<&'a Choice>) {
    let steps = program.steps.iter();
    let prints: Vec<String> = steps.map(|step| fingerprint(&program, step, target)).collect();
    let mut stale = Vec::new();
    for choice in choices {
        let alike = prints.iter().enumerate().filter(|(_, print)| **print == choice.fingerprint);
        let alike: Vec<usize> = alike.map(|(place, _)| place).collect();
        // Steps of one fingerprint have one kernel.
        let Some(&first) = alike.first() else { continue };
        if !has_kernel(&program, &program.steps[first], choice.parameters, target) {
            stale.push(choice);
            continue;
        }
        for place in alike {
            let sizes = choice.sizes.iter().map(|(name, &size)| (Symbol::new(name), size));
            let step = &mut program.steps[place];
            step.variants = step.variants.with(choice.parameters, sizes.collect());
        }
    }
    (program, stale)
}
