//! Every atom: its example verifies, reads back, runs clean in any order, and computes what the
//! instruction's manual says.

use std::collections::BTreeSet;

use graphene_ir::atom::{self, Atom};
use graphene_ir::kernel::{Kernel, Stmt};
use graphene_ir::simulate::Inputs;
use graphene_ir::tensor::Scalar;
use graphene_ir::text::parse;
use graphene_ir::verify::verify;

use crate::support::{check_clean, data, gelu, inputs, orders, run};

fn examples() -> impl Iterator<Item = (&'static Atom, Kernel)> {
    atom::all().map(|atom| (atom, (atom.example)().unwrap()))
}

/// Whole numbers, none of them 0, small enough that halves hold sums of a few products.
fn numbers(kernel: &Kernel) -> Inputs {
    inputs(kernel, &[], |n, i| {
        let size = ((7 * i + 5 * n) % 12 + 1) as f64;
        let signed = match kernel.tensor(kernel.params[n]).scalar {
            Scalar::F16 | Scalar::Bf16 | Scalar::F32 | Scalar::I32 | Scalar::I64 => {
                (i / 5 + n).is_multiple_of(2)
            }
            Scalar::U32 | Scalar::U8 | Scalar::Mbar => false,
        };
        if signed { -size } else { size }
    })
}

#[test]
fn examples_use_their_atoms() {
    for (atom, kernel) in examples() {
        let mut used = BTreeSet::new();
        kernel.each_stmt(&mut |stmt| {
            if let Stmt::Spec(spec) = stmt
                && spec.body.is_none()
            {
                used.insert(atom::select(&kernel, spec).unwrap().atom.name);
            }
        });
        assert!(used.contains(atom.name), "the example of {} uses {used:?}", atom.name);
    }
}

#[test]
fn examples_verify_and_read_back() {
    for (atom, kernel) in examples() {
        let findings: Vec<String> = verify(&kernel).iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{}: {findings:#?}", atom.name);
        let text = kernel.to_string();
        assert_eq!(parse(&text).as_ref(), Ok(&kernel), "{}: {text}", atom.name);
    }
}

/// The inputs of an example, and how many elements of its output each of 32 lanes has.
struct Given {
    inputs: Inputs,
    per_lane: usize,
}

impl Given {
    fn at(&self, name: &str, i: usize) -> f64 {
        data(&self.inputs, name)[i]
    }

    /// The same element of the lane that is as far from the last as this one is from the first.
    fn mirrored(&self, name: &str, i: usize) -> f64 {
        let (lane, element) = (i / self.per_lane, i % self.per_lane);
        self.at(name, (31 - lane) * self.per_lane + element)
    }

    /// Likewise; the last lane has none.
    fn mirrored_but_last(&self, name: &str, i: usize) -> f64 {
        if i < self.per_lane { 0.0 } else { self.mirrored(name, i) }
    }

    /// Row `m` of A times column `n` of B, of the depth 16; both are row-major.
    fn product(&self, m: usize, n: usize, columns: usize) -> f64 {
        (0..16).map(|k| self.at("A", 16 * m + k) * self.at("B", columns * k + n)).sum()
    }
}

type Expected = fn(&Given, usize) -> f64;

/// Atoms, the output of their example, and what its elements must be. Fragments are as the PTX
/// manual draws them: a lane has two neighbours `pair` of a matrix's row.
const EXPECTED: &[(&[&str], &str, Expected)] = &[
    (&["ld.global", "ld.global.32", "ld.global.64", "ld.global.128"], "to", |x, i| x.at("from", i)),
    (&["st.global", "st.global.32", "st.global.64", "st.global.128"], "to", |x, i| x.at("from", i)),
    (&["ld.shared", "ld.shared.32", "ld.shared.64", "ld.shared.128"], "to", |x, i| {
        x.mirrored("from", i)
    }),
    (&["st.shared", "st.shared.32", "st.shared.64", "st.shared.128"], "to", |x, i| {
        x.mirrored("from", i)
    }),
    (&["cp.async.4", "cp.async.4.single", "cp.async.8", "cp.async.16"], "to", |x, i| {
        x.mirrored_but_last("from", i)
    }),
    (&["cp.async.commit_group", "cp.async.wait_group"], "to", |x, i| {
        x.mirrored_but_last("from", i)
    }),
    (&["mov", "cvt", "cvt.rn.x2", "cvt.from", "cvt.to"], "after", |x, i| x.at("a", i)),
    (&["mov.constant"], "after", |_, _| 0.5),
    (&["fma.f32", "hfma", "hfma2"], "after", |x, i| {
        x.at("a", i) * x.at("b", i) + x.at("before", i)
    }),
    (&["unary.f32"], "after", |x, i| gelu(x.at("a", i))),
    (&["binary.f32"], "after", |x, i| x.at("a", i) / x.at("b", i)),
    (&["binary.f16x2"], "after", |x, i| x.at("a", i) * x.at("b", i)),
    (&["binary.f16"], "after", |x, i| x.at("a", i) + x.at("b", i)),
    (&["fold.f32"], "after", |x, i| x.at("a", i).max(x.at("before", i))),
    (&["shfl.sync.bfly"], "to", |x, i| x.at("from", i ^ 16)),
    // Column-major.
    (&["hfma.global"], "C", |x, i| {
        let product: f64 =
            (0..4).map(|k| x.at("A", i % 8 + 8 * k) * x.at("B", k + i / 8 * 4)).sum();
        x.at("C", i) + product
    }),
    (&["ldmatrix.x1"], "out", |x, i| {
        let (lane, pair) = (i / 2, i % 2);
        x.at("in", 16 * (lane / 4) + 2 * (lane % 4) + pair)
    }),
    (&["ldmatrix.x2"], "out", |x, i| {
        let (lane, matrix, pair) = (i / 4, i / 2 % 2, i % 2);
        x.at("in", 16 * (lane / 4) + 8 * matrix + 2 * (lane % 4) + pair)
    }),
    (&["ldmatrix.x4"], "out", |x, i| {
        let (lane, m, n, pair) = (i / 8, i / 4 % 2, i / 2 % 2, i % 2);
        x.at("in", 16 * (8 * m + lane / 4) + 8 * n + 2 * (lane % 4) + pair)
    }),
    // A pair is one of a column, and each lane's row gives the address of a column's element.
    (&["ldmatrix.x4.trans"], "out", |x, i| {
        let (lane, pair, m, n) = (i / 8, i / 2 % 2, i / 4 % 2, i % 2);
        x.at("in", 16 * (8 * n + 2 * (lane % 4) + pair) + 8 * m + lane / 4)
    }),
    (&["stmatrix.x4"], "out", |x, i| {
        let (row, column) = (i / 16, i % 16);
        let lane = row % 8 * 4 + column % 8 / 2;
        x.at("in", 8 * lane + row / 8 * 4 + column / 8 * 2 + column % 2)
    }),
    (&["mma.m16n8k16"], "C", |x, i| x.product(i / 8, i % 8, 8) + 0.5),
    (&["mma.m16n8k8", "mma.m16n8k8.tf32"], "C", |x, i| {
        let product: f64 =
            (0..8).map(|k| x.at("A", i / 8 * 8 + k) * x.at("B", 8 * k + i % 8)).sum();
        product + 0.5
    }),
    (&["mma.m8n8k4"], "C", |x, i| {
        let product: f64 =
            (0..4).map(|k| x.at("A", i / 8 * 4 + k) * x.at("B", 8 * k + i % 8)).sum();
        product + 0.5
    }),
    (&["wgmma.m64k16.shared", "wgmma.m64k16.registers"], "C", |x, i| {
        x.product(i / 16, i % 16, 16) + 1.0
    }),
    (&["wgmma.m64k16.shared.set", "wgmma.m64k16.registers.set"], "C", |x, i| {
        x.product(i / 16, i % 16, 16)
    }),
    (&["wgmma.m64k8.tf32.set"], "C", |x, i| {
        (0..8).map(|k| x.at("A", i / 16 * 8 + k) * x.at("B", 16 * k + i % 16)).sum()
    }),
    (&["wgmma.m64k8.tf32"], "C", |x, i| {
        let product: f64 =
            (0..8).map(|k| x.at("A", i / 16 * 8 + k) * x.at("B", 16 * k + i % 16)).sum();
        product + 1.0
    }),
    (&["wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"], "C", |x, i| {
        x.product(i / 16, i % 16, 16) + 1.0
    }),
    (&["mbarrier.init", "mbarrier.arrive", "mbarrier.try_wait.parity"], "out", |x, i| {
        x.mirrored("in", i)
    }),
    // Two blocks; each has what the other read.
    (&["mbarrier.arrive.cluster", "barrier.cluster", "fence.mbarrier_init"], "out", |x, i| {
        x.at("in", 63 - i)
    }),
    (&["ld.shared::cluster", "st.shared::cluster"], "out", |x, i| x.at("in", 63 - i)),
    // Runs of words of every thread.
    (&["st.async.v4.b32", "st.async.v2.b32", "st.async.b32"], "out", |x, i| {
        let n = x.per_lane / 2;
        x.at("in", (63 - i / n) * n + i % n)
    }),
    (&["mbarrier.arrive.expect_tx", "cp.async.bulk.tensor.load"], "out", |x, i| match i / 32 {
        row @ 0..12 => x.at("in", 64 * row + 32 + i % 32),
        _ => 0.0,
    }),
    (&["cp.async.bulk.tensor.store", "fence.proxy.async"], "out", |x, i| x.at("in", i)),
    (&["cp.async.bulk.commit_group", "cp.async.bulk.wait_group"], "out", |x, i| x.at("in", i)),
    (&["bar.sync"], "out", |x, i| x.at("in", 63 - i)),
    (&["bar.warp.sync"], "out", |x, i| x.at("in", 31 - i)),
    (&["red.release.gpu.inc", "ld.acquire.gpu"], "out", |x, i| x.at("in", 63 - i)),
    (&["membar.gl"], "out", |x, i| x.at("in", i % 32)),
    (&["setmaxnreg", "griddepcontrol.launch_dependents"], "out", |x, i| x.at("in", i)),
    (&["prefetch.global.L2"], "out", |x, i| x.at("in", i)),
    (&["griddepcontrol.wait"], "out", |x, i| x.at("in", i)),
];

#[test]
fn examples_run_clean_and_right() {
    let mut rows = 0;
    for (atom, kernel) in examples() {
        // What is said here of an atom is said a second time; what is not, its meaning alone says.
        let own = EXPECTED.iter().find(|row| row.0.contains(&atom.name));
        rows += usize::from(own.is_some());
        let inputs = numbers(&kernel);
        for seed in orders(5) {
            let outcome = run(&kernel, &inputs, seed);
            check_clean(atom.name, &outcome);
            let Some((_, output, expected)) = own else { continue };
            let found = &outcome.buffers[*output];
            let given = Given { inputs: inputs.clone(), per_lane: found.len() / 32 };
            for (i, found) in found.iter().enumerate() {
                let (found, expected) = (found.unwrap_or(f64::NAN), expected(&given, i));
                // Exact, but for functions that round to single precision.
                let near = (found - expected).abs() <= expected.abs() * 2f64.powi(-23) + 1e-11;
                assert!(near, "{}: %{output}[{i}] is {found}, not {expected}", atom.name);
            }
        }
    }
    assert_eq!(rows, EXPECTED.iter().map(|row| row.0.len()).sum::<usize>(), "names of atoms");
}
