//! Reductions: right within the bound of sums in single precision, in any order of warps and of
//! blocks.

use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Binary, Unary};
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::reduce::Reduce;
use graphene_ir::tensor::Scalar;

use crate::error::{Near, SINGLE, propagate, unit};
use crate::index::Random;
use crate::support::{check_clean, check_text, data, inputs, orders, run};

const F16: Scalar = Scalar::F16;
const F32: Scalar = Scalar::F32;

/// A template, and the sizes of its axes.
type Row = (Reduce, [i64; 3]);

fn base() -> Reduce {
    Reduce { strands: 2, ..Reduce::default() }
}

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mean = |reduce: Reduce| Reduce { finish: Reduce::mean(), ..reduce };
    for op in [Binary::Add, Binary::Mul, Binary::MaxNan, Binary::MinNan] {
        rows.push((Reduce { op, ..base() }, [2, 9, 24]));
    }
    rows.push((mean(base()), [2, 33, 40]));
    rows.push((mean(Reduce { vector: 1, ..base() }), [2, 1, 5]));
    rows.push((Reduce { vector: 1, ..base() }, [1, 7, 1]));
    rows.push((Reduce { vector: 1, ..base() }, [2, 7, 35]));
    rows.push((Reduce { strands: 1, ..base() }, [1, 5, 520]));
    rows.push((Reduce { ahead: 1, ..base() }, [2, 9, 24]));
    rows.push((Reduce { ahead: 3, ..base() }, [2, 7, 24]));
    rows.push((Reduce { threads: 64, strands: 4, ..base() }, [1, 65, 40]));
    // Rows that are apart.
    rows.push((Reduce { ins: vec![Access::rows(F16, 3)], ..base() }, [2, 5, 72]));
    let squares = Function::identity() * Function::identity();
    let root = Function::identity().unary(Unary::Sqrt);
    rows.push((Reduce { function: squares, finish: root, ..base() }, [3, 19, 48]));
    let product = || Function::input(0) * Function::input(1);
    let by_row =
        Access { scalar: F32, strides: vec![Stride::Packed, Stride::Packed, Stride::Broadcast] };
    rows.push((
        Reduce { function: product(), ins: vec![Access::packed(F16, 3), by_row], ..base() },
        [2, 11, 40],
    ));
    rows
}

/// From row to row of an input whose rows are apart.
fn pitch([_, _, inner]: [i64; 3]) -> i64 {
    inner + 8
}

fn symbols(&(ref template, sizes): &Row) -> Vec<(&'static str, i64)> {
    let names = ["outer", "reduced", "inner"].into_iter().zip(sizes);
    let apart = template.ins[0].strides.contains(&Stride::Symbol);
    let strides = [("x0_stride0", sizes[1] * pitch(sizes)), ("x0_stride1", pitch(sizes))];
    names.chain(strides.into_iter().filter(|_| apart)).collect()
}

fn check_row(row: &Row) {
    let (template, sizes) = row;
    let symbols = symbols(row);
    let name = format!("{template:?} {symbols:?}");
    let kernel = template.kernel().unwrap();
    let [outer, reduced, inner] = *sizes;
    let mut random = Random::new(5);
    // Near 1, so that products stay in range.
    let product = template.op == Binary::Mul;
    let values: Vec<f64> = (0..4093)
        .map(|_| random.within(-512, 512) as f64 / 512.0)
        .map(|value| if product { 1.0 + value / 8.0 } else { value })
        .collect();
    let given = inputs(&kernel, &symbols, |param, i| {
        let written = kernel.tensor_name(kernel.params[param]) == "y";
        let scalar = kernel.tensor(kernel.params[param]).scalar;
        if written { 0.0 } else { scalar.round(values[(1009 * param + i) % 4093]) }
    });
    // From row to row, and from column to column.
    let steps = |access: &Access| match access.strides[..] {
        [_, Stride::Symbol, _] => [pitch(*sizes), 1],
        [.., Stride::Broadcast] => [1, 0],
        _ => [inner, 1],
    };
    for seed in orders(2) {
        let outcome = run(&kernel, &given, seed);
        check_clean(&name, &outcome);
        assert_eq!(outcome.costs.total().conflicts, 0, "{name}");
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let folded: Vec<Near> = (0..reduced)
                .map(|r| {
                    let element = |(n, access): (usize, &Access)| {
                        let [row, column] = steps(access);
                        let at = (o * reduced + r) * row + i * column;
                        (data(&given, &format!("x{n}"))[usize::try_from(at).unwrap()], 0.0)
                    };
                    let ins: Vec<Near> = template.ins.iter().enumerate().map(element).collect();
                    propagate(&template.function, &ins)[0]
                })
                .collect();
            let total = total(template.op, &folded);
            let count = (reduced as f64, 0.0);
            let (value, error) = propagate(&template.finish, &[total, count])[0];
            let at = usize::try_from(o * inner + i).unwrap();
            let found = outcome.buffers["y"][at];
            let bound = error + unit(template.out.scalar) * (value.abs() + error);
            let near = found.is_some_and(|found| (found - value).abs() <= bound);
            assert!(near, "{name} {seed:?}: [{o},{i}] is {found:?}, not {value} ± {bound}");
        }
    }
}

/// The folded values, and how far off. Each element goes through no more than n roundings.
fn total(op: Binary, values: &[Near]) -> Near {
    let n = values.len() as f64;
    let value = values.iter().fold(op.neutral().unwrap(), |total, near| op.value(total, near.0));
    let size: f64 = values.iter().map(|near| near.0.abs()).sum();
    let errors: f64 = values.iter().map(|near| near.1).sum();
    match op {
        Binary::Add => (value, errors + 2.0 * (n + 1.0) * SINGLE * (size + errors)),
        Binary::Mul => {
            let relative: f64 = values.iter().map(|near| near.1 / near.0.abs()).sum();
            (value, value.abs() * (2.0 * relative + 2.0 * n * SINGLE))
        }
        _ => (value, values.iter().map(|near| near.1).fold(0.0, f64::max)),
    }
}

#[test]
fn totals_are_right_in_any_order() {
    rows().iter().for_each(check_row);
}

#[test]
fn kernels_verify_read_back_and_become_cuda() {
    for (template, ..) in rows() {
        let kernel = template.kernel().unwrap();
        check_text(&format!("{template:?}"), &kernel);
        emit(&kernel).unwrap();
    }
}

#[test]
fn what_no_kernel_has_is_refused() {
    for bad in [
        Reduce { op: Binary::Sub, ..base() },
        Reduce { function: Function::sum(), ..base() },
        Reduce { finish: Function::sum() + Function::input(2), ..base() },
        Reduce { out: Access::packed(F16, 3), ..base() },
        Reduce { threads: 16, ..base() },
        Reduce { vector: 0, ..base() },
        Reduce { ahead: 0, ..base() },
    ] {
        assert!(bad.kernel().is_err(), "{bad:?}");
    }
}
