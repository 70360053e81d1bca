//! What the tests of simulated kernels share: inputs, runs, and the names of faults.

use std::collections::HashSet;

use graphene_ir::arch::{Arch, Feature};
use graphene_ir::atom::{self, Fault};
use graphene_ir::function::{Function, Node};
use graphene_ir::index::{Cond, Expr, Var};
use graphene_ir::kernel::{Array, Kernel, Kind, Operand, Spec, Stmt, TensorId};
use graphene_ir::schedule::dependent;
use graphene_ir::simulate::{Buffer, Inputs, Options, Outcome, simulate};
use graphene_ir::tensor::Scalar;
use graphene_ir::text::{parse, parse_all};
use graphene_ir::verify::verify;

/// The kernels of `tests/atoms/`, which try the atoms: each reads some of its tensors in global memory, and
/// writes every element of others.
pub(crate) fn examples() -> Vec<Kernel> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/atoms");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    let kernels = files.iter().map(|file| {
        let text = std::fs::read_to_string(file).unwrap();
        parse_all(&text).unwrap_or_else(|error| panic!("{}:{error}", file.display()))
    });
    kernels.flatten().collect()
}

/// The one of this name.
pub(crate) fn example(name: &str) -> Kernel {
    let found = examples().into_iter().find(|kernel| kernel.name == name);
    found.unwrap_or_else(|| panic!("no kernel of tests/atoms is called {name}"))
}

/// The parameters that a kernel writes without reading them.
fn outputs(kernel: &Kernel) -> HashSet<TensorId> {
    let mut roots = std::collections::HashMap::new();
    let mut outs = HashSet::new();
    kernel.each_stmt(&mut |stmt| match stmt {
        Stmt::View(id, of, _) => {
            let root = *roots.get(of).unwrap_or(of);
            roots.insert(*id, root);
        }
        // Products and folds read what they add to.
        Stmt::Spec(Spec {
            kind: Kind::MatMul { accumulate: true } | Kind::Reduction(_) | Kind::GridArrive(_),
            ..
        }) => {}
        Stmt::Spec(spec) if spec.body.is_none() => {
            outs.extend(spec.outs.iter().map(|out| *roots.get(&out.tensor).unwrap_or(&out.tensor)));
        }
        _ => {}
    });
    outs
}

/// Inputs for these symbols: element `i` of the `n`-th parameter is `element(n, i)`; what is only
/// written holds nothing.
pub(crate) fn inputs(
    kernel: &Kernel,
    symbols: &[(&str, i64)],
    element: impl Fn(usize, usize) -> f64,
) -> Inputs {
    let outputs = outputs(kernel);
    let value = |expr: &Expr| {
        let symbol = |name: &str| symbols.iter().find(|row| row.0 == name).map(|row| row.1);
        expr.value(&|var| symbol(var.name())).unwrap()
    };
    let mut inputs = Inputs::default();
    inputs.symbols.extend(symbols.iter().map(|&(name, value)| (name.to_owned(), value)));
    for (n, &param) in kernel.params.iter().enumerate() {
        let axes = kernel.tensor(param).view.axes();
        let empty = axes.iter().any(|axis| value(&axis.size) == 0);
        let last: i64 = axes.iter().map(|axis| (value(&axis.size) - 1) * value(&axis.stride)).sum();
        let len = if empty { 0 } else { usize::try_from(last + 1).unwrap() };
        let buffer = if outputs.contains(&param) {
            Buffer::Undefined(len)
        } else {
            Buffer::Data((0..len).map(|i| element(n, i)).collect())
        };
        inputs.buffers.insert(kernel.tensor_name(param).to_owned(), buffer);
    }
    inputs
}

/// The elements of an input.
pub(crate) fn data<'a>(inputs: &'a Inputs, name: &str) -> &'a [f64] {
    match &inputs.buffers[name] {
        Buffer::Data(data) => data,
        Buffer::Undefined(_) => panic!("%{name} is an output"),
    }
}

/// Runs a kernel, warps in turn or in a random order.
pub(crate) fn run(kernel: &Kernel, inputs: &Inputs, seed: Option<u64>) -> Outcome {
    simulate(kernel, inputs, &Options { seed, ..Options::default() }).unwrap()
}

/// In turn, and in this many random orders. Few are enough: what is ordered before what does not depend
/// on who happens to go on (every mutant of these tests that the simulator reports, it reports in turn
/// already), but for what a kernel decides by it.
pub(crate) fn orders(count: u64) -> impl Iterator<Item = Option<u64>> {
    std::iter::once(None).chain((1..=count).map(Some))
}

pub(crate) fn check_clean(name: &str, outcome: &Outcome) {
    let findings: Vec<String> = outcome.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{name}: {findings:#?}");
}

/// The name of a fault's variant.
pub(crate) fn kind(fault: &Fault) -> &'static str {
    match fault {
        Fault::OutOfBounds(_) => "OutOfBounds",
        Fault::Misaligned(_) => "Misaligned",
        Fault::Uninitialised(_) => "Uninitialised",
        Fault::Race(_) => "Race",
        Fault::InFlight(_) => "InFlight",
        Fault::MissingFence(_) => "MissingFence",
        Fault::Deadlock(_) => "Deadlock",
        Fault::WrittenTwice(_) => "WrittenTwice",
        Fault::Barrier(_) => "Barrier",
        Fault::Divergence(_) => "Divergence",
        Fault::Differs(_) => "Differs",
        Fault::Unstable(_) => "Unstable",
        Fault::Invalid(_) => "Invalid",
    }
}

/// x·Φ(x), with Φ from Simpson's rule on the density: right to 1e-12 for |x| up to 16.
pub(crate) fn gelu(x: f64) -> f64 {
    let steps = 2 * (x.abs() * 125.0).ceil() as i32 + 2;
    let width = x / f64::from(steps);
    let density = |i: i32| (-(width * f64::from(i)).powi(2) / 2.0).exp();
    let inner: f64 = (1..steps).map(|i| density(i) * if i % 2 == 0 { 2.0 } else { 4.0 }).sum();
    let integral = (density(0) + inner + density(steps)) * width / 3.0;
    x * (0.5 + integral / (2.0 * std::f64::consts::PI).sqrt())
}

/// A kernel has computed what its outermost spec says: nearly, as its arithmetic is that of its types.
pub(crate) fn check_meaning(name: &str, kernel: &Kernel, inputs: &Inputs, outcome: &Outcome) {
    let number = |expr: &Expr| expr.value(&|var| inputs.symbols.get(var.name()).copied());
    let array = |operand: &Operand, before: bool| {
        let view = &kernel.tensor(operand.tensor).view;
        let buffer = kernel.tensor_name(operand.tensor);
        let element = |offset: usize| match &inputs.buffers[buffer] {
            Buffer::Data(data) if before => data[offset],
            Buffer::Undefined(_) if before => f64::NAN,
            Buffer::Data(_) | Buffer::Undefined(_) => {
                outcome.buffers[buffer][offset].unwrap_or(f64::NAN)
            }
        };
        let leaves = view.leaves();
        let sizes = leaves.iter().map(|leaf| number(&leaf.size).unwrap() as usize);
        let strides: Vec<i64> =
            leaves.iter().map(|leaf| number(&view.stride(leaf)).unwrap()).collect();
        Array::new(&sizes.collect::<Vec<_>>(), |at| {
            let offset: i64 = at.iter().zip(&strides).map(|(&at, stride)| at as i64 * stride).sum();
            element(offset as usize)
        })
    };
    let arrays = |operands: &[Operand], before: bool| {
        operands.iter().map(|operand| array(operand, before)).collect::<Vec<_>>()
    };
    let (ins, old) = (arrays(&kernel.spec.ins, true), arrays(&kernel.spec.outs, true));
    let outs = arrays(&kernel.spec.outs, false);
    let shape = |all: &[Array]| all.first().map_or(Vec::new(), |array| array.shape.clone());
    let meaning = kernel.spec.kind.meaning(&shape(&outs), &shape(&ins));
    let meaning = meaning.unwrap_or_else(|| panic!("{name}: {}", kernel.spec.kind));
    let expected = meaning.values(&ins, &old, &number);
    let expected = expected.unwrap_or_else(|error| panic!("{name}: {error}"));
    for (number, (found, expected)) in outs.iter().zip(&expected).enumerate() {
        for (i, (found, y)) in found.data.iter().zip(&expected.data).enumerate() {
            let near = (found - y).abs() <= 0.03 * (1.0 + y.abs()) || found.is_nan() && y.is_nan();
            assert!(near, "{name}: output {number}, element {i} is {found}, not {y}");
        }
    }
}

/// A kernel is well formed, and reads back.
/// The architectures before Ampere.
pub(crate) const OLDER: [Arch; 2] = [Arch::Sm70, Arch::Sm75];

/// The kernel's architecture has all that its atoms need, and matmuls are by the best atoms that it has.
pub(crate) fn check_features(name: &str, kernel: &Kernel, multiplies: bool) {
    let needs = atom::features(kernel).unwrap();
    assert_eq!(kernel.arch.needs(&needs), Ok(()), "{name}");
    let best = if kernel.arch == Arch::Sm70 { Feature::QuadPairs } else { Feature::MmaK8 };
    assert_eq!(needs.contains(&best), multiplies, "{name}: {needs:?}");
}

pub(crate) fn check_text(name: &str, kernel: &Kernel) {
    for kernel in [kernel, &dependent(kernel.clone())] {
        let findings: Vec<String> = verify(kernel).iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{name}: {findings:#?}");
    }
    assert_eq!(parse(&kernel.to_string()).as_ref(), Ok(kernel), "{name}");
}

/// Whether a comparison holds, given the variables' values.
pub(crate) fn holds(cond: &Cond, of: &dyn Fn(&Var) -> Option<i64>) -> Option<bool> {
    Some(cond.relation.compare(cond.left.value(of)?, cond.right.value(of)?))
}

/// A function's outputs with every step rounded to single precision.
pub(crate) fn single(function: &Function, inputs: &[f64]) -> Vec<f64> {
    let mut values: Vec<f64> = Vec::new();
    for step in function.steps() {
        let operands: Vec<f64> = step.operands().map(|value| values[value.index()]).collect();
        values.push(Scalar::F32.round(step.value(inputs, &operands)));
    }
    function.outputs().iter().map(|output| values[output.index()]).collect()
}
