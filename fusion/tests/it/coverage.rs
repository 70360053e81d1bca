//! Templates make kernels of every step of the fixtures, of the zoo's models and of two exports, on every target and in every
//! type.
//!
//! With `EMITTED=FOLDER` the CUDA of all of them is left in that folder, for comparison with what another commit emits (this
//! crate's README).

use crate::{fixtures, kernels::TARGETS, zoo};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_fusion::kernels::{Launch, Refusal, first_alike, launches};
use graphene_fusion::program::StepId;
use graphene_fusion::{Granularity, plan_in};
use graphene_ir::arch::{Arch, Feature};
use graphene_ir::atom;
use graphene_ir::emit::emit;
use graphene_ir::target::Target;
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::rc::Rc;
use std::{env, fs};

/// What is computed in: a model's own elements or others, and whether matmuls of single precision are of TF32.
type Precision = (Option<DType>, bool);

const TYPES: [Precision; 4] =
    [(None, false), (None, true), (Some(DType::F16), false), (Some(DType::BF16), false)];

/// Plans each model for all targets and in all types. Gives the steps that no template takes, and why.
fn refused(suite: &str, models: impl Iterator<Item = (String, Graph)>) -> Vec<String> {
    let mut refused = Vec::new();
    let mut emitted = env::var_os("EMITTED").map(|folder| Emitted::new(folder.into()));
    for (name, graph) in models {
        let everywhere = TARGETS.iter().flat_map(|target| TYPES.map(|types| (target, types)));
        for (target, (elements, tf32)) in everywhere {
            let target = Target { tf32, ..target.parse().unwrap() };
            let hints = Bindings::new();
            let planned = plan_in(&graph, &target, Granularity::Fused, &hints, elements).unwrap();
            let first = first_alike(&planned.program);
            let mut made: Vec<Rc<Result<Vec<Launch>, Refusal>>> = Vec::new();
            for (number, step) in planned.program.steps().iter().enumerate() {
                let place = format!("{name} on {target} in {elements:?} {tf32}: {}", step.name);
                let first = made.get(first[number].index()).cloned();
                let own = || Rc::new(launches(&planned.program, step, &target));
                made.push(first.unwrap_or_else(own));
                match &*made[number] {
                    Ok(launches) => {
                        emitted.iter_mut().for_each(|all| all.add(&place, launches));
                    }
                    Err(refusal) => refused.push(format!("{place}: {refusal}")),
                }
            }
        }
    }
    emitted.iter().for_each(|all| all.finish(suite));
    refused
}

/// What is emitted: a file for each kernel, which is named by its hash, and which kernels each step has.
struct Emitted {
    folder: PathBuf,
    /// Names of kernels that were emitted already, by what they are in text.
    names: HashMap<String, String>,
    index: String,
}

impl Emitted {
    fn new(folder: PathBuf) -> Emitted {
        fs::create_dir_all(&folder).unwrap();
        Emitted { folder, names: HashMap::new(), index: String::new() }
    }

    fn add(&mut self, place: &str, launches: &[Launch]) {
        for (number, launch) in launches.iter().enumerate() {
            let folder = &self.folder;
            let name = self.names.entry(launch.kernel.to_string()).or_insert_with(|| {
                let emitted = emit(&launch.kernel).unwrap();
                // Comments tell of levels, which code does not know.
                let lines = emitted.source.lines();
                let code: Vec<&str> =
                    lines.filter(|line| !line.trim_start().starts_with("//")).collect();
                let text = format!("{}\n/* {:#?} */\n", code.join("\n"), emitted.launch);
                let mut hasher = DefaultHasher::new();
                text.hash(&mut hasher);
                let name = format!("{}-{:016x}.cu", launch.kernel.name, hasher.finish());
                fs::write(folder.join(&name), text).unwrap();
                name
            });
            self.index.push_str(&format!("{place} {number}: {name}\n"));
        }
    }

    fn finish(&self, suite: &str) {
        fs::write(self.folder.join(suite), &self.index).unwrap();
    }
}

#[test]
fn every_step_of_the_fixtures_has_a_kernel() {
    let all = fixtures::ALL.iter().map(|name| (name.to_string(), fixtures::imported(name)));
    assert_eq!(refused("fixtures", all), [""; 0]);
}

#[test]
fn every_step_of_the_zoo_has_a_kernel() {
    assert_eq!(refused("zoo", zoo::imported()), [""; 0]);
}

/// On every GPU that there is a target for, in half and in single precision: all steps have kernels, and so nothing is left to
/// the host. Where there are no tensor cores for a type, threads multiply; there are kernels of each kind that it consists of.
#[test]
fn bert_base_has_kernels_on_every_target() {
    let graph = zoo::named("bert-base");
    for (arch, name) in Arch::ALL {
        for elements in [None, Some(DType::F16)] {
            let (target, hints) = (name.parse().unwrap(), Bindings::new());
            let planned = plan_in(&graph, &target, Granularity::Fused, &hints, elements).unwrap();
            let mut found: BTreeSet<String> = BTreeSet::new();
            let first: BTreeSet<StepId> = first_alike(&planned.program).into_iter().collect();
            for step in first.into_iter().map(|id| planned.program.step(id)) {
                let place = format!("{} on {name} in {elements:?}", step.name);
                let launches = launches(&planned.program, step, &target);
                let launches = launches.unwrap_or_else(|why| panic!("{place}: {why}"));
                assert!(!launches.is_empty(), "{place}");
                for launch in launches {
                    let needs = atom::features(&launch.kernel).unwrap();
                    assert_eq!(arch.needs(&needs), Ok(()), "{place}");
                    let emitted = emit(&launch.kernel).unwrap();
                    let bytes = i64::from(emitted.launch.shared_bytes);
                    assert!(bytes <= arch.shared_memory(), "{place}: {bytes} bytes");
                    found.insert(format!("{} {}", step.family.name(), launch.kernel.name));
                }
            }
            let matmul = match (elements, arch.has(Feature::Wgmma)) {
                (None, _) => "simt",
                (Some(_), true) => "gemm",
                (Some(_), false) => "mma",
            };
            for kind in [&format!("MatMul {matmul}"), "FMHA fmha", "Normalization rows"] {
                assert!(found.contains(kind), "no {kind} on {name} in {elements:?}: {found:?}");
            }
        }
    }
}

/// Steps that are said to be alike have the same launches, and the layers of a model are alike.
#[test]
fn steps_that_are_alike_have_the_same_kernels() {
    let models = ["bert-tiny", "lstm", "fmha"].map(fixtures::imported);
    let exports = ["resnet-18", "llama"].map(zoo::exported);
    let (mut alike, mut steps) = (0, 0);
    for graph in models.into_iter().chain(exports) {
        let half = Some(DType::F16);
        for (target, elements) in [("sm_75", half), ("sm_80", None), ("sm_90a", Some(DType::BF16))]
        {
            let (target, hints) = (target.parse().unwrap(), Bindings::new());
            let planned = plan_in(&graph, &target, Granularity::Fused, &hints, elements).unwrap();
            let program = &planned.program;
            for (id, first) in program.step_ids().zip(first_alike(program)) {
                let [own, others] = [id, first].map(|id| {
                    launches(program, program.step(id), &target)
                        .map_err(|refusal| refusal.to_string())
                });
                assert_eq!(format!("{own:?}"), format!("{others:?}"), "{}", program.step(id).name);
                alike += usize::from(id != first);
                steps += 1;
            }
        }
    }
    assert!(4 * alike > steps && alike < steps, "{alike} of {steps}");
    let planned = plan_in(
        &zoo::named("bert-base"),
        &"sm_90a".parse().unwrap(),
        Granularity::Fused,
        &Bindings::new(),
        Some(DType::F16),
    );
    let first: BTreeSet<StepId> = first_alike(&planned.unwrap().program).into_iter().collect();
    assert!(
        first.len() < 24,
        "{} different steps: those of a layer and around layers",
        first.len()
    );
}

#[test]
fn every_step_of_the_exports_has_a_kernel() {
    let all = ["resnet-18", "llama"].map(|name| (name.to_owned(), zoo::exported(name)));
    assert_eq!(refused("exports", all.into_iter()), [""; 0]);
}
