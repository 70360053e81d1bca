//! Functions over strided operands: each element is what the function gives of the elements that
//! the strides say, bit for bit, for all sizes, partial vectors and orders of warps.

use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Binary, Unary};
use graphene_ir::simulate::{Buffer, Inputs};
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::pointwise::Pointwise;
use graphene_ir::tensor::Scalar;

use crate::index::Random;
use crate::support::{check_clean, check_text, data, inputs, orders, run, single};

use Stride::{Broadcast, Packed, Symbol};

fn access(scalar: Scalar, strides: &[Stride]) -> Access {
    Access { scalar, strides: strides.to_vec() }
}

/// A template, its sizes, the values of its strides' symbols, and the number of blocks.
type Row = (Pointwise, &'static [i64], &'static [(&'static str, i64)], i64);

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    let (f16, bf16, f32) = (Scalar::F16, Scalar::Bf16, Scalar::F32);
    let small = Pointwise { threads: 64, ..Pointwise::default() };
    let gelu = Pointwise { function: Function::identity().unary(Unary::Gelu), ..small.clone() };
    let of = |function: Function, ins: &[Access], outs: &[Access], vector| Pointwise {
        function, ins: ins.to_vec(), outs: outs.to_vec(), vector, ..small.clone()
    };
    let line = |scalar| access(scalar, &[Packed]);
    let rows2 = |scalar| access(scalar, &[Packed, Packed]);
    let less = || Function::input(0).binary(Binary::Less, Function::input(1));
    vec![
        (gelu.clone(), &[1024], &[], 1),
        (gelu.clone(), &[1021], &[], 2),
        (gelu.clone(), &[5], &[], 3),
        (gelu.clone(), &[0], &[], 1),
        (Pointwise { vector: 1, ..gelu }, &[133], &[], 1),
        (of(Function::identity(), &[line(f32)], &[line(bf16)], 4), &[257], &[], 2),
        (of(Function::sum(), &[line(f16), line(bf16)], &[line(f32)], 8), &[333], &[], 1),
        (of(less(), &[line(f32), line(f32)], &[line(Scalar::U8)], 4), &[70], &[], 1),
        (of(Function::identity(), &[line(Scalar::I64)], &[line(f32)], 4), &[70], &[], 1),
        // Integers, which wrap where they have fewer bits.
        (Pointwise { numbers: Scalar::I64, ..of(
            Function::all([
                (Function::input(0) * 70_001.0 * 70_001.0).rounded(Scalar::I32) + Function::input(1),
                less().select(-Function::input(0), Function::input(1)),
            ]),
            &[line(Scalar::I64), line(Scalar::U8)], &[line(Scalar::I32), line(Scalar::I64)], 4) }, &[75], &[], 1),
        // A bias of each row, of each column, of all; columns that vectors divide or not.
        (of(Function::sum(), &[rows2(f16), access(f16, &[Broadcast, Packed])], &[rows2(f16)], 8), &[9, 40], &[], 2),
        (of(Function::sum(), &[rows2(f16), access(f32, &[Packed, Broadcast])], &[rows2(f16)], 8), &[9, 40], &[], 2),
        (of(Function::sum(), &[rows2(f16), access(f32, &[Broadcast, Broadcast])], &[rows2(f16)], 1), &[3, 37], &[], 2),
        (of(Function::sum(), &[access(f16, &[Symbol, Packed]), access(f16, &[Symbol, Packed])],
            &[access(f16, &[Symbol, Packed])], 8),
            &[5, 37], &[("x0_stride0", 48), ("x1_stride0", 40), ("y0_stride0", 64)], 1),
        // A transpose, and a selection by bytes.
        (of(Function::identity(), &[access(f16, &[Symbol, Symbol])], &[rows2(f16)], 8),
            &[6, 24], &[("x0_stride0", 1), ("x0_stride1", 6)], 1),
        (of(Function::input(0).select(Function::input(1), f64::NEG_INFINITY),
            &[access(Scalar::U8, &[Broadcast, Packed]), rows2(f16)], &[rows2(f16)], 8), &[4, 32], &[], 1),
        // More axes, more outputs.
        (of(Function::all([Function::sum(), Function::input(0) * Function::input(1)]),
            &[access(bf16, &[Packed, Broadcast, Packed, Packed]), access(bf16, &[Broadcast, Packed, Broadcast, Packed])],
            &[Access::packed(bf16, 4), Access::packed(f32, 4)], 8), &[2, 3, 2, 16], &[], 2),
        (of(Function::sum() + Function::input(2),
            &[Access::rows(f32, 6), Access::packed(f32, 6), access(f32, &[Broadcast; 6])],
            &[Access::packed(f32, 6)], 1), &[2, 1, 3, 2, 2, 5],
            &[("x0_stride0", 200), ("x0_stride1", 7), ("x0_stride2", 60), ("x0_stride3", 25), ("x0_stride4", 11)], 2),
    ]
}

fn symbols((_, sizes, strides, blocks): &Row) -> Vec<(&'static str, i64)> {
    let names = ["N0", "N1", "N2", "N3", "N4", "N5"];
    let sizes = names.into_iter().zip(sizes.iter().copied());
    sizes.chain(strides.iter().copied()).chain([("blocks", *blocks)]).collect()
}

/// Where an element lies, by the operand's strides.
fn place(name: &str, access: &Access, sizes: &[i64], symbols: &[(&str, i64)], at: &[i64]) -> usize {
    let place: i64 = (0..sizes.len())
        .map(|axis| {
            let stride = match access.strides[axis] {
                Broadcast => 0,
                Packed => (axis + 1..sizes.len())
                    .filter(|&later| access.strides[later] != Broadcast)
                    .map(|later| sizes[later])
                    .product(),
                Symbol => {
                    let wanted = format!("{name}_stride{axis}");
                    symbols.iter().find(|row| row.0 == wanted).unwrap().1
                }
            };
            stride * at[axis]
        })
        .sum();
    usize::try_from(place).unwrap()
}

fn check_row(row: &Row) {
    let (template, sizes, ..) = row;
    let symbols = symbols(row);
    let name = format!("{template:?} {symbols:?}");
    let kernel = template.kernel().unwrap();
    let mut random = Random::new(3);
    let values: Vec<f64> = (0..4093).map(|_| random.within(-999, 999) as f64 / 256.0).collect();
    let given = inputs(&kernel, &symbols, |param, i| {
        let scalar = kernel.tensor(kernel.params[param]).scalar;
        let value = values[(1009 * param + i) % 4093];
        scalar.round(if scalar == Scalar::U8 { f64::from(u8::from(value > 0.0)) } else { value })
    });
    let count: i64 = sizes.iter().product();
    for seed in orders(2) {
        let outcome = run(&kernel, &given, seed);
        check_clean(&name, &outcome);
        for linear in 0..count {
            let mut rest = linear;
            let mut at: Vec<i64> = Vec::new();
            for size in sizes.iter().rev() {
                at.insert(0, rest % size);
                rest /= size;
            }
            let elements: Vec<f64> = (0..template.ins.len())
                .map(|i| {
                    let operand = format!("x{i}");
                    let place = place(&operand, &template.ins[i], sizes, &symbols, &at);
                    data(&given, &operand)[place]
                })
                .collect();
            let results = match template.numbers {
                Scalar::F32 => single(&template.function, &elements),
                _ => template.function.eval(&elements),
            };
            for (i, (out, result)) in template.outs.iter().zip(results).enumerate() {
                let operand = format!("y{i}");
                let found = outcome.buffers[&operand][place(&operand, out, sizes, &symbols, &at)];
                let expected = out.scalar.round(result);
                assert_eq!(found, Some(expected), "{name} {seed:?}: %{operand}{at:?}");
            }
        }
    }
}

#[test]
fn elements_are_right_in_any_order() {
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
fn vectors_ask_for_alignment() {
    let kernel = Pointwise::default().kernel().unwrap();
    let emitted = emit(&kernel).unwrap();
    assert!(emitted.source.contains("ld.global.v4"), "{}", emitted.source);
    assert!(emitted.source.contains("st.global.v4"), "{}", emitted.source);
    let conditions: Vec<String> =
        emitted.launch.conditions.iter().map(ToString::to_string).collect();
    let aligned = |name: &str| format!("requires the pointer of %{name} to be a multiple of 16");
    assert_eq!(conditions, [aligned("x0"), aligned("y0")]);
    let single = Pointwise { vector: 1, ..Pointwise::default() }.kernel().unwrap();
    assert!(emit(&single).unwrap().launch.conditions.is_empty());
}

#[test]
fn what_no_kernel_has_is_refused() {
    let good = Pointwise::default;
    for bad in [
        Pointwise { outs: vec![], ..good() },
        Pointwise { ins: vec![Access::packed(Scalar::F16, 2)], ..good() },
        Pointwise { function: Function::sum(), ..good() },
        Pointwise { vector: 0, ..good() },
        Pointwise { threads: 2048, ..good() },
        Pointwise { numbers: Scalar::I64, ..good() },
        Pointwise { numbers: Scalar::F16, ..good() },
    ] {
        assert!(bad.kernel().is_err(), "{bad:?}");
    }
}

/// By a known number, and of numbers that were clamped: both are other instructions than a division and a rounding, from sm_80 on.
#[test]
fn quotients_and_small_roundings_are_exact() {
    // Its reciprocal is a sum of two numbers; such a one some of whose quotients are corrected; one number.
    for divisor in [0.3, 0.026116794, 0.25] {
        check_quotients_and_roundings(divisor);
    }
}

fn check_quotients_and_roundings(divisor: f32) {
    let quotient = || Function::input(0) / f64::from(divisor);
    let (low, high) = (-4_194_304.0, 4_194_304.0);
    let clamped = Function::input(0).binary(Binary::MaxNan, low).binary(Binary::MinNan, high);
    let line = || Access::packed(Scalar::F32, 1);
    let pointwise = Pointwise {
        function: Function::all([quotient(), clamped.unary(Unary::Round)]),
        ins: vec![line()],
        outs: vec![line(), line()],
        vector: 1,
        threads: 64,
        ..Pointwise::default()
    };
    let kernel = pointwise.kernel().unwrap();
    let source = emit(&kernel).unwrap().source;
    assert!(!source.contains("__fdiv_rn") && !source.contains("rintf"), "{source}");
    assert_eq!(source.contains("residual"), divisor == 0.026116794, "{source}");
    let halves = (-9..9).map(|i| f64::from(i) + 0.5);
    let special = [0.0, -0.0, -0.3, 0.3, 4_194_303.5, -4_194_303.5, 1e30, -1e30, 1e-20];
    let ends = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let xs: Vec<f64> = halves.chain(special).chain(ends).map(|x| f64::from(x as f32)).collect();
    let mut inputs = Inputs::default();
    let len = xs.len();
    inputs.symbols.extend([("N0".to_owned(), len as i64), ("blocks".to_owned(), 1)]);
    inputs.buffers.insert("x0".to_owned(), Buffer::Data(xs.clone()));
    for name in ["y0", "y1"] {
        inputs.buffers.insert(name.to_owned(), Buffer::Undefined(len));
    }
    let outcome = run(&kernel, &inputs, None);
    for (at, &x) in xs.iter().enumerate() {
        let [of, rounded] = ["y0", "y1"].map(|name| outcome.buffers[name][at].unwrap() as f32);
        let wanted =
            [x as f32 / divisor, (x as f32).clamp(low as f32, high as f32).round_ties_even()];
        for (found, wanted) in [of, rounded].into_iter().zip(wanted) {
            let same = found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan();
            assert!(same, "{x}: {found} for {wanted}");
        }
    }
    let older = Pointwise { arch: Arch::Sm75, ..pointwise }.kernel().unwrap();
    assert!(emit(&older).unwrap().source.contains("rintf"));
}
