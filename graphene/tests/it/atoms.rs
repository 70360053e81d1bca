//! Every atom is used by a kernel of `tests/atoms/`; these verify, read back, run clean in any order, and
//! compute what the instructions' manual says.

use std::collections::BTreeSet;

use graphene_ir::atom;
use graphene_ir::kernel::{Kernel, Stmt};
use graphene_ir::simulate::Inputs;
use graphene_ir::tensor::Scalar;

use crate::support::{
    check_clean, check_meaning, check_text, data, examples, gelu, inputs, orders, run,
};

/// Whole numbers, none of them 0, small enough that halves hold sums of a few products.
fn numbers(kernel: &Kernel) -> Inputs {
    inputs(kernel, &[], |n, i| {
        let size = ((7 * i + 5 * n) % 12 + 1) as f64;
        let signed = match kernel.tensor(kernel.params[n]).scalar {
            Scalar::F16 | Scalar::Bf16 | Scalar::F32 => (i / 5 + n).is_multiple_of(2),
            Scalar::I32 | Scalar::I64 | Scalar::I8 => (i / 5 + n).is_multiple_of(2),
            Scalar::U32 | Scalar::U8 | Scalar::Mbar => false,
        };
        if signed { -size } else { size }
    })
}

#[test]
fn every_atom_has_an_example() {
    let mut used = BTreeSet::new();
    for kernel in examples() {
        kernel.each_stmt(&mut |stmt| {
            if let Stmt::Spec(spec) = stmt
                && spec.body.is_none()
            {
                used.insert(atom::select(&kernel, spec).unwrap().atom.name);
            }
        });
    }
    let lacking: Vec<_> = atom::all().filter(|atom| !used.contains(atom.name)).collect();
    assert!(lacking.is_empty(), "no kernel uses {lacking:#?}");
}

#[test]
fn examples_verify_and_read_back() {
    examples().iter().for_each(|kernel| check_text(&kernel.name, kernel));
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

    /// Row `m` of A times column `n` of B, which has so many columns and such a depth; both are row-major.
    fn product(&self, m: usize, n: usize, [columns, depth]: [usize; 2]) -> f64 {
        (0..depth).map(|k| self.at("A", depth * m + k) * self.at("B", columns * k + n)).sum()
    }
}

type Expected = fn(&Given, usize) -> f64;

/// Kernels, an output of each, and what its elements must be. Fragments are as the PTX manual draws them: a
/// lane has two neighbours `pair` of a matrix's row.
const EXPECTED: &[(&[&str], &str, Expected)] = &[
    (&["move_128_fp16", "move_128_fp32", "move_64_fp16", "move_64_fp32"], "to", |x, i| {
        x.mirrored("from", i)
    }),
    (&["move_32_fp16", "move_32_bf16", "move_fp32", "move_fp16", "move_u8"], "to", |x, i| {
        x.mirrored("from", i)
    }),
    (&["cp_async_16", "cp_async_8", "cp_async_4", "cp_async_single"], "to", |x, i| {
        x.mirrored_but_last("from", i)
    }),
    (&["mov", "cvt", "cvt_x2", "cvt_from", "cvt_to", "cvt_integer"], "after", |x, i| x.at("a", i)),
    (&["constant"], "after", |_, _| 0.5),
    (&["index"], "out", |_, i| 3.0 * i as f64 + 1.0),
    (&["multiply_add", "multiply_add_i32", "hfma", "hfma2"], "after", |x, i| {
        x.at("a", i) * x.at("b", i) + x.at("before", i)
    }),
    (&["unary"], "after", |x, i| gelu(x.at("a", i))),
    (&["unary_i64"], "after", |x, i| x.at("a", i).signum()),
    (&["binary"], "after", |x, i| x.at("a", i) / x.at("b", i)),
    (&["binary_i64"], "after", |x, i| x.at("a", i) * x.at("b", i)),
    (&["select"], "out", |x, i| x.at("in", 3 * i + if x.at("in", 3 * i) > 0.0 { 1 } else { 2 })),
    (&["fold"], "after", |x, i| x.at("a", i).max(x.at("before", i))),
    (&["shuffle"], "after", |x, i| x.at("a", i ^ 16)),
    // Column-major.
    (&["figure_8"], "C", |x, i| {
        let product: f64 =
            (0..4).map(|k| x.at("A", i % 8 + 8 * k) * x.at("B", k + i / 8 * 4)).sum();
        x.at("C", i) + product
    }),
    (&["ldmatrix_x1"], "out", |x, i| {
        let (lane, pair) = (i / 2, i % 2);
        x.at("in", 16 * (lane / 4) + 2 * (lane % 4) + pair)
    }),
    (&["ldmatrix_x2"], "out", |x, i| {
        let (lane, matrix, pair) = (i / 4, i / 2 % 2, i % 2);
        x.at("in", 16 * (lane / 4) + 8 * matrix + 2 * (lane % 4) + pair)
    }),
    (&["ldmatrix_x4"], "out", |x, i| {
        let (lane, m, n, pair) = (i / 8, i / 4 % 2, i / 2 % 2, i % 2);
        x.at("in", 16 * (8 * m + lane / 4) + 8 * n + 2 * (lane % 4) + pair)
    }),
    // A pair is one of a column, and each lane's row gives the address of a column's element.
    (&["ldmatrix_trans"], "out", |x, i| {
        let (lane, pair, m, n) = (i / 8, i / 2 % 2, i / 4 % 2, i % 2);
        x.at("in", 16 * (8 * n + 2 * (lane % 4) + pair) + 8 * m + lane / 4)
    }),
    (&["stmatrix"], "out", |x, i| {
        let (row, column) = (i / 16, i % 16);
        let lane = row % 8 * 4 + column % 8 / 2;
        x.at("in", 8 * lane + row / 8 * 4 + column / 8 * 2 + column % 2)
    }),
    (&["mma", "mma_bf16"], "C", |x, i| x.product(i / 8, i % 8, [8, 16]) + 0.5),
    (&["mma_k8", "mma_tf32"], "C", |x, i| x.product(i / 8, i % 8, [8, 8]) + 0.5),
    (&["quad_pairs", "quad_pairs_by_pairs", "quad_pairs_of_rows"], "C", |x, i| {
        x.product(i / 8, i % 8, [8, 4]) + 0.5
    }),
    (&["wgmma", "wgmma_registers"], "C", |x, i| x.product(i / 16, i % 16, [16, 16]) + 1.0),
    (&["wgmma_set", "wgmma_registers_set"], "C", |x, i| x.product(i / 16, i % 16, [16, 16])),
    (&["wgmma_tf32"], "C", |x, i| x.product(i / 16, i % 16, [16, 8]) + 1.0),
    (&["wgmma_tf32_set"], "C", |x, i| x.product(i / 16, i % 16, [16, 8])),
    (&["mbarrier"], "out", |x, i| x.mirrored("in", i)),
    // Two blocks; each has what the other read.
    (&["mbarrier_cluster"], "out", |x, i| x.at("in", 63 - i)),
    // Runs of words of every thread.
    (&["st_async_4", "st_async_2", "st_async_1"], "out", |x, i| {
        let n = x.per_lane / 2;
        x.at("in", (63 - i / n) * n + i % n)
    }),
    (&["bulk_load"], "out", |x, i| match i / 32 {
        row @ 0..12 => x.at("in", 64 * row + 32 + i % 32),
        _ => 0.0,
    }),
    (&["bulk_store"], "out", |x, i| x.at("in", i)),
    (&["bar_sync", "counter"], "out", |x, i| x.at("in", 63 - i)),
    (&["warp_sync"], "out", |x, i| x.at("in", 31 - i)),
    (&["setmaxnreg", "dependent", "prefetch"], "out", |x, i| x.at("in", i)),
];

#[test]
fn examples_run_clean_and_right() {
    for kernel in examples() {
        let name = &kernel.name;
        let own: Vec<_> = EXPECTED.iter().filter(|row| row.0.contains(&name.as_str())).collect();
        assert!(!own.is_empty(), "nothing is said of {name}");
        let inputs = numbers(&kernel);
        for seed in orders(5) {
            let outcome = run(&kernel, &inputs, seed);
            check_clean(name, &outcome);
            check_meaning(name, &kernel, &inputs, &outcome);
            let written = outcome.buffers.values().flatten().all(Option::is_some);
            assert!(written, "{name}: an output has holes");
            for (_, output, expected) in &own {
                let found = &outcome.buffers[*output];
                let given = Given { inputs: inputs.clone(), per_lane: found.len() / 32 };
                for (i, found) in found.iter().enumerate() {
                    let (found, expected) = (found.unwrap_or(f64::NAN), expected(&given, i));
                    // Exact, but for functions that round to single precision.
                    let near = (found - expected).abs() <= expected.abs() * 2f64.powi(-23) + 1e-11;
                    assert!(near, "{name}: %{output}[{i}] is {found}, not {expected}");
                }
            }
        }
    }
}
