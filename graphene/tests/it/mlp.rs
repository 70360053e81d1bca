//! Chains of layers in one kernel: right within the bound that their arithmetic implies, clean in any
//! order of warps.

use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Kernel, Unary};
use graphene_ir::simulate::Inputs;
use graphene_ir::template::access::Stride;
use graphene_ir::template::epilogue::{Epilogue, Input, Span};
use graphene_ir::template::matmul::Edges;
use graphene_ir::template::mlp::{Layer, Mlp, Warpgroups};
use graphene_ir::tensor::Scalar;

use crate::error::{Near, SINGLE, propagate, unit};
use crate::index::Random;
use crate::support::{
    OLDER, check_clean, check_features, check_meaning, check_text, data, inputs, orders, run,
};

fn relu(width: i64) -> Layer {
    Layer { width, ..Layer::default() }
}

fn small(mlp: Mlp) -> Mlp {
    Mlp { rows: 32, depth: 16, warps: 2, stages: 3, ..mlp }
}

fn of(width: i64, layers: Vec<Layer>) -> Mlp {
    small(Mlp { width, layers, ..Mlp::default() })
}

/// gelu(x·W + b), then y·W + b + r: the two layers of an encoder.
fn encoder(inner: i64) -> Mlp {
    let first = Layer { epilogue: Epilogue::layer(true, Some(Unary::Gelu), false), ..relu(inner) };
    let second = Layer { epilogue: Epilogue::layer(true, None, true), ..relu(32) };
    of(32, vec![first, second])
}

/// Each result of each layer in double precision, and how far from it the kernel's may be.
///
/// An error e of a layer's input, next to rounding, comes to |W|·e in its sums; those of k products in
/// single precision err by 4k·2⁻²⁴ of their absolute values' sum. The function adds what its steps do.
/// The result is rounded to its type; so is what was read, if the products are of TF32.
fn expected(mlp: &Mlp, rows: usize, given: &Inputs) -> Vec<(Scalar, Vec<Near>)> {
    let seen = |x| if mlp.tf32 { Unary::Tf32.value(x) } else { x };
    // Reading a value that is off by a little may round it the other way.
    let short = if mlp.tf32 { 2f64.powi(-10) } else { 0.0 };
    let mut names = Names::default();
    // X is rounded as rows are.
    let x = Function::identity().rounded(mlp.scalar);
    let x: Vec<f64> = data(given, "X").iter().map(|&value| x.eval(&[value])[0]).collect();
    let mut from = mlp.width as usize;
    let stride = given.symbols.get("X_stride0").map_or(from, |&stride| stride as usize);
    let mut values: Vec<Near> =
        (0..rows * from).map(|at| (x[at / from * stride + at % from], 0.0)).collect();
    let mut results = Vec::new();
    for (l, layer) in mlp.layers.iter().enumerate() {
        let width = layer.width as usize;
        let w = data(given, &names.next("W")).to_vec();
        let operands: Vec<(Input, Vec<f64>)> = layer
            .epilogue
            .operands
            .iter()
            .map(|&input| (input, data(given, &names.next(input.span.name())).to_vec()))
            .collect();
        for time in 0..layer.times as usize {
            let mut outs = vec![Vec::new(); layer.epilogue.outputs.len()];
            for place in 0..rows * width {
                let (row, column) = (place / width, place % width);
                let (mut sum, mut size, mut error) = (0.0, 0.0, 0.0);
                for i in 0..from {
                    let (y, e) = values[row * from + i];
                    let (stride, other) = if layer.transposed { (width, 1) } else { (1, from) };
                    let w = seen(w[time * from * width + i * stride + column * other]);
                    let flips = if e > 0.0 { short * (y.abs() + e) } else { 0.0 };
                    let y = seen(y);
                    sum += y * w;
                    size += (y.abs() + e) * w.abs();
                    error += (e + flips) * w.abs();
                }
                error += 4.0 * from as f64 * SINGLE * size;
                let mut ins: Vec<Near> = vec![(sum, error)];
                for (input, operand) in &operands {
                    let at = match input.span {
                        Span::Row => time * width + column,
                        Span::Column => row,
                        Span::Whole => place,
                        Span::Number => 0,
                    };
                    ins.push((operand[at], 0.0));
                }
                if layer.skip {
                    ins.push(values[place]);
                }
                for (out, near) in outs.iter_mut().zip(propagate(&layer.epilogue.function, &ins)) {
                    out.push(near);
                }
            }
            let scalars = layer.epilogue.outputs.iter().map(|out| out.unwrap_or(mlp.scalar));
            let scalars: Vec<Scalar> = scalars.collect();
            let kept = l + 1 < mlp.layers.len();
            for (i, (out, scalar)) in outs.iter_mut().zip(&scalars).enumerate() {
                let scalar = if kept && i == 0 { mlp.scalar } else { *scalar };
                out.iter_mut().for_each(|(y, e)| *e += unit(scalar) * (y.abs() + *e));
            }
            values.clone_from(&outs[0]);
            if time + 1 == layer.times as usize {
                let given = outs.iter().zip(&scalars).skip(usize::from(kept));
                results.extend(given.map(|(out, scalar)| (*scalar, out.clone())));
            }
        }
        from = width;
    }
    results
}

/// `W`, `W_2`, …
#[derive(Default)]
struct Names(std::collections::HashMap<&'static str, usize>);

impl Names {
    fn next(&mut self, name: &'static str) -> String {
        let count = self.0.entry(name).or_default();
        *count += 1;
        if *count == 1 { name.to_owned() } else { format!("{name}_{count}") }
    }
}

fn check(mlp: &Mlp, rows: usize, random_orders: u64) {
    check_kernel(mlp, &mlp.kernel().unwrap(), rows, random_orders);
}

fn check_kernel(mlp: &Mlp, kernel: &Kernel, rows: usize, random_orders: u64) {
    let name = format!("{mlp:?} {rows}");
    check_text(&name, kernel);
    let mut random = Random::new(5);
    let mut values = |scalar| -> Vec<f64> {
        let one = if scalar == Scalar::F32 { 1 << 20 } else { 1 << 7 };
        (0..65_521).map(|_| random.within(-one, one) as f64 / one as f64).collect()
    };
    let [values, of_x] = [mlp.scalar, mlp.x.unwrap_or(mlp.scalar)].map(&mut values);
    let mut symbols = vec![("M", rows as i64)];
    if mlp.stride == Stride::Symbol {
        symbols.push(("X_stride0", mlp.width + 8));
    }
    let given = inputs(kernel, &symbols, |param, i| {
        // Weights that keep the size of a row's values.
        let name = kernel.tensor_name(kernel.params[param]);
        let values = if name == "X" { &of_x } else { &values };
        values[(10_007 * param + i) % 65_521] * if name.starts_with('W') { 0.25 } else { 1.0 }
    });
    let expected = expected(mlp, rows, &given);
    for seed in orders(random_orders) {
        let outcome = run(kernel, &given, seed);
        check_clean(&format!("{name} {seed:?}"), &outcome);
        let mut names = Names::default();
        for (_, expected) in &expected {
            let result = names.next("Y");
            for (i, (found, (y, bound))) in
                outcome.buffers[&result].iter().zip(expected).enumerate()
            {
                let near = found.is_some_and(|found| (found - y).abs() <= *bound);
                assert!(near, "{name} {seed:?}: {result}[{i}] is {found:?}, not {y} ± {bound}");
            }
        }
        // Copies of rows whose number of chunks is no power of two meet in banks, as do stores of pairs
        // in single precision between two layers.
        let widths = || std::iter::once(mlp.width).chain(mlp.layers.iter().map(|l| l.width));
        check_meaning(&name, kernel, &given, &outcome);
        // Quad pairs read rows eight apart together, whose chunks are in the same banks.
        let meet = mlp.scalar == Scalar::F32 || mlp.arch.multiplies_by_quad_pairs();
        if widths().all(|width| width == 32) && !meet {
            assert_eq!(outcome.costs.total().conflicts, 0, "{name}");
        }
    }
}

fn transposed(mlp: Mlp) -> Mlp {
    let layers = mlp.layers.into_iter().map(|layer| Layer { transposed: true, ..layer });
    Mlp { layers: layers.collect(), ..mlp }
}

#[test]
fn layers_follow_each_other_in_one_kernel() {
    check(&of(32, vec![relu(32)]), 32, 2);
    check(&of(32, vec![relu(32), relu(32), relu(32)]), 40, 5);
    check(&transposed(of(32, vec![relu(32), relu(32)])), 1, 1);
    check(&of(48, vec![relu(96), relu(16), relu(64)]), 35, 2);
    check(&transposed(of(48, vec![relu(96), relu(16), relu(64)])), 70, 2);
    let mixed = Mlp { scalar: Scalar::Bf16, ..of(64, vec![relu(32), relu(128)]) };
    let turned = Layer { transposed: true, ..mixed.layers[0].clone() };
    check(&Mlp { layers: vec![turned, mixed.layers[1].clone()], ..mixed }, 33, 1);
    check(&Mlp { stages: 2, depth: 64, rows: 64, warps: 4, ..encoder(64) }, 70, 1);
    check(&encoder(128), 20, 2);
    check(&Mlp::default(), 70, 0);
    let wide = Mlp { warps: 8, width: 256, layers: vec![relu(256), relu(256)], ..Mlp::default() };
    check(&transposed(wide), 3, 0);
}

#[test]
fn layers_that_are_alike_are_a_loop() {
    check(&small(Mlp::alike(1, relu(32))), 40, 1);
    check(&small(Mlp::alike(4, relu(32))), 40, 5);
    check(&transposed(small(Mlp::alike(3, relu(64)))), 33, 2);
    check(&skipped(), 40, 2);
    // A loop between layers of other widths, deeper and shorter than stages.
    let between = vec![relu(64), Layer { times: 2, ..relu(64) }, relu(32)];
    check(&Mlp { stages: 4, ..of(16, between.clone()) }, 20, 2);
    check(&Mlp { stages: 2, depth: 32, ..of(16, between.clone()) }, 20, 1);
    check(&Mlp { scalar: Scalar::F32, ..of(16, between) }, 36, 1);
}

/// Layers whose inputs are added to their results.
pub(crate) fn skipped() -> Mlp {
    let [sum, bias, own] = [0, 1, 2].map(Function::input);
    let function = (sum + bias).unary(Unary::Relu) + own;
    let epilogue = Epilogue::new(function, [Span::Row]);
    small(Mlp::alike(3, Layer { skip: true, epilogue, ..relu(32) }))
}

/// The same layers of X in single precision, which is rounded to the layers' type, with operands of it and a result.
pub(crate) fn of_single(mut mlp: Mlp) -> Mlp {
    let single = Some(Scalar::F32);
    for layer in &mut mlp.layers {
        layer.epilogue.operands.iter_mut().for_each(|operand| operand.scalar = single);
    }
    if let Some(last) = mlp.layers.last_mut() {
        last.epilogue.outputs[0] = single;
    }
    Mlp { x: single, ..mlp }
}

/// Layers by warpgroups, and for how many rows: of one part and of two, that are alike and that differ, more stages than
/// there are weights, and fewer; rows that fill blocks, and that do not; all of half precision, and what goes in and comes
/// out in single precision.
pub(crate) fn by_warpgroups() -> Vec<(Mlp, Warpgroups, usize)> {
    let whole = |mlp: Mlp| Mlp { rows: 64, ..mlp };
    let of = |stages| Warpgroups { consumers: 1, stages };
    let layer = |width, function: Function, spans: &[Span]| {
        let epilogue = Epilogue::new(function, spans.iter().copied());
        Layer { epilogue, ..relu(width) }
    };
    let [sum, row] = [0, 1].map(Function::input);
    let plain = layer(64, sum.clone(), &[]);
    let tanh = layer(128, (sum + row).unary(Unary::Tanh), &[Span::Row]);
    let mixed = Mlp { width: 128, layers: vec![plain, tanh, relu(192)], ..Mlp::default() };
    let skipped = Mlp { width: 128, layers: wide(skipped().layers), ..skipped() };
    let single = whole(of_single(Mlp::alike(4, relu(128))));
    let result = Mlp { x: None, ..single.clone() };
    let rows = Mlp { layers: mixed.layers.clone(), ..single.clone() };
    vec![
        (single, of(4), 70),
        (result, of(4), 10),
        (rows, of(4), 10),
        (transposed(of_single(Mlp { scalar: Scalar::Bf16, ..mixed.clone() })), of(5), 30),
        (of_single(skipped.clone()), of(4), 20),
        (whole(of_single(Mlp::alike(3, relu(256)))), of(8), 3),
        (whole(Mlp::alike(1, relu(64))), of(2), 70),
        (whole(Mlp::alike(4, relu(64))), of(5), 3),
        (whole(Mlp::alike(4, relu(128))), of(4), 64),
        (whole(transposed(Mlp::alike(3, relu(128)))), Warpgroups { consumers: 2, ..of(5) }, 140),
        (mixed.clone(), of(4), 20),
        (transposed(Mlp { scalar: Scalar::Bf16, ..mixed }), of(5), 30),
        (skipped, of(4), 20),
        (whole(Mlp::alike(3, relu(256))), of(8), 3),
    ]
}

fn wide(layers: Vec<Layer>) -> Vec<Layer> {
    layers.into_iter().map(|layer| Layer { width: 128, ..layer }).collect()
}

#[test]
fn warpgroups_keep_rows_in_registers() {
    for (mlp, by, rows) in by_warpgroups() {
        check_kernel(&mlp, &by.kernel(&mlp).unwrap(), rows, 1);
    }
    // A layer of 128 columns holds four stages.
    let few = Warpgroups { consumers: 1, stages: 3 };
    assert!(few.kernel(&Mlp::alike(3, relu(128))).is_err());
    let mut other = relu(128);
    other.epilogue.operands[0].scalar = Some(Scalar::Bf16);
    let enough = Warpgroups { stages: 8, ..few };
    assert!(enough.kernel(&Mlp::alike(3, other)).is_err());
}

#[test]
fn layers_of_older_architectures_are_right() {
    let widths = of(48, vec![relu(96), relu(16), relu(64)]);
    let single = Mlp { scalar: Scalar::F32, ..widths.clone() };
    for mlp in [widths.clone(), transposed(widths), skipped(), encoder(64), single] {
        for arch in OLDER {
            let (mlp, half) = (Mlp { arch, ..mlp.clone() }, mlp.scalar == Scalar::F16);
            check_features(&format!("{mlp:?}"), &mlp.kernel().unwrap(), half);
            check(&mlp, 32, 0);
            check(&mlp, 35, 1);
        }
    }
}

#[test]
fn single_precision_is_not_rounded() {
    let single = |mlp: Mlp| Mlp { scalar: Scalar::F32, ..mlp };
    check(&single(of(32, vec![relu(32), relu(32)])), 40, 2);
    check(&transposed(single(of(48, vec![relu(96), relu(16), relu(64)]))), 35, 2);
    check(&single(of(48, vec![relu(96), relu(16), relu(64)])), 35, 1);
    check(&single(encoder(64)), 70, 1);
    check(&Mlp { rows: 64, warps: 4, depth: 32, ..single(encoder(128)) }, 70, 0);
    let tf32 = |mlp: Mlp| Mlp { tf32: true, ..single(mlp) };
    check(&tf32(of(32, vec![relu(32), relu(32)])), 40, 1);
    check(&transposed(tf32(of(64, vec![relu(64), relu(32)]))), 40, 1);
}

/// Two results of each layer, one of another type; operands that are columns, or of another type.
pub(crate) fn results() -> Mlp {
    let [sum, row, column] = [0, 1, 2].map(Function::input);
    let first = (sum.clone() + row) * column.clone();
    let function = Function::all([first.clone(), (first - column).unary(Unary::Relu)]);
    let mut epilogue = Epilogue::new(function, [Span::Row, Span::Column]);
    epilogue.outputs[1] = Some(Scalar::F32);
    epilogue.operands[0] = Input { span: Span::Row, scalar: Some(Scalar::F32) };
    let layer = |width| Layer { epilogue: epilogue.clone(), ..relu(width) };
    of(32, vec![layer(48), layer(32)])
}

#[test]
fn layers_give_what_is_asked_for() {
    check(&results(), 40, 2);
    check(&Mlp { scalar: Scalar::F32, ..results() }, 40, 1);
    check(&Mlp { stride: Stride::Symbol, ..encoder(48) }, 40, 1);
    check(&of_single(of(13, vec![relu(35), relu(24)])), 37, 1);
}

#[test]
fn widths_may_be_odd() {
    for scalar in [Scalar::F16, Scalar::F32] {
        let odd = Mlp { scalar, ..of(13, vec![relu(35), relu(24), relu(10)]) };
        check(&odd, 37, 1);
        check(&transposed(odd.clone()), 37, 1);
        check(&Mlp { rows: 16, warps: 4, ..odd }, 17, 1);
        // What is beyond a layer's columns may be no number.
        let inverse = Function::constant(1.0) / (Function::sum() + 4.0).unary(Unary::Abs);
        let epilogue = Epilogue::new(inverse.unary(Unary::Log), [Span::Row]);
        let layers = vec![Layer { epilogue, ..relu(40) }, relu(8)];
        check(&Mlp { scalar, ..of(16, layers) }, 20, 1);
        check(&Mlp { scalar, edges: Edges::Moves, ..encoder(32) }, 37, 1);
    }
}

#[test]
fn blocks_are_found_that_fit() {
    let wide = |scalar, width| Mlp { scalar, ..of(width, vec![relu(width), relu(width)]) };
    for (scalar, width, rows, shared) in [
        (Scalar::F16, 128, 128, 163 << 10),
        (Scalar::F16, 256, 64, 163 << 10),
        (Scalar::F16, 512, 32, 163 << 10),
        (Scalar::F32, 128, 128, 227 << 10),
        (Scalar::F32, 512, 32, 163 << 10),
    ] {
        let mlp = wide(scalar, width).fitting(128, shared).unwrap();
        assert_eq!(mlp.rows, rows, "{mlp:?}");
        let emitted = emit(&mlp.kernel().unwrap()).unwrap();
        assert!(emitted.source.contains("mlp"));
        let [bytes, sums, most] = Mlp::least(scalar, &[width; 3], [true, false]);
        assert!(bytes <= shared && sums <= most, "{mlp:?}");
    }
    assert!(wide(Scalar::F32, 4096).fitting(64, 227 << 10).is_err());
    let [bytes, sums, most] = Mlp::least(Scalar::F16, &[64, 1024, 64], [true, false]);
    assert!(bytes <= 227 << 10 && sums > most);
}

#[test]
fn mlp_parameters_that_no_kernel_has_are_refused() {
    let mlp = encoder(64);
    let first = |layer: Layer| Mlp { layers: vec![layer, relu(32)], ..encoder(64) };
    for mlp in [
        Mlp { width: 0, ..mlp.clone() },
        Mlp { layers: Vec::new(), ..mlp.clone() },
        Mlp { depth: 0, ..mlp.clone() },
        Mlp { depth: 24, ..mlp.clone() },
        Mlp { rows: 0, ..mlp.clone() },
        Mlp { rows: 24, ..mlp.clone() },
        Mlp { warps: 0, ..mlp.clone() },
        Mlp { stages: 1, ..mlp.clone() },
        Mlp { scalar: Scalar::I32, ..mlp.clone() },
        Mlp { x: Some(Scalar::Bf16), ..mlp.clone() },
        Mlp { stride: Stride::Broadcast, ..mlp.clone() },
        first(relu(5000)),
        first(relu(1024)),
        first(Layer { times: 2, ..relu(64) }),
        first(Layer { times: 0, ..relu(64) }),
        first(Layer { skip: true, ..relu(64) }),
        first(Layer { epilogue: Epilogue::new(Function::sum(), []), ..relu(64) }),
        of(32, vec![Layer { times: 2, ..relu(32) }]),
    ] {
        assert!(mlp.kernel().is_err(), "{mlp:?}");
    }
}
