//! A loop run tile by tile gives what it gives whole.

use super::{
    Domain, Elements, ElementsMut, Loop, LoopInput, LoopOutput, Operation, Tile, Workspace,
};
use crate::bind::BoundOperand;
use crate::cpu::kernels::tile::TileMut;
use graphene_frontend::dim::{Bindings, Dim};

use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, Op, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::{Granularity, lower, partition};
use graphene_ir::target::Target;

const ROWS: usize = 5;

/// `y = a·b + r` and `y < a`, where `b` is a row and `r` a column.
fn body(columns: usize) -> Graph {
    let mut graph = Graph::new();
    let mut input = |name, shape: [usize; 2]| {
        let shape = shape.iter().map(|&size| Dim::from(size)).collect();
        graph.add_input(name, TensorType::new(DType::F32, shape)).unwrap()
    };
    let (a, b, r) = (input("a", [ROWS, columns]), input("b", [1, columns]), input("r", [ROWS, 1]));
    let mut add =
        |binary, x, y| graph.add("node", Op::Binary(binary), &[Some(x), Some(y)]).unwrap().value();
    let product = add(Binary::Mul, a, b);
    let sum = add(Binary::Add, product, r);
    let less = add(Binary::Less, sum, a);
    graph.add_output("y", sum);
    graph.add_output("less", less);
    graph
}

fn operand(shape: [usize; 2], strides: [isize; 2]) -> BoundOperand {
    // Any buffer: a domain asks only how it is walked through.
    let graph = body(1);
    let groups = partition(&graph, &Target::cpu(1), Granularity::Fused, &Bindings::new());
    let program = lower(&graph, &groups, &Target::cpu(1), Granularity::Fused).unwrap();
    let buffer = program.steps()[0].inputs[0].buffer;
    BoundOperand { buffer, offset: 0, shape: shape.to_vec(), strides: strides.to_vec() }
}

fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| (((i + seed) * 7919) % 1013) as f32 * 2e-3 - 1.0).collect()
}

/// Runs the loop over rows and columns in tiles, inputs and outputs in the given forms.
fn check_tiles(columns: usize, height: usize, width: usize, scratch: bool) {
    let program = Loop::compile(&body(columns)).unwrap();
    let (a, b, r) = (numbers(ROWS * columns, 1), numbers(columns, 2), numbers(ROWS, 3));
    // `a` lies transposed in memory.
    let a_at = operand([ROWS, columns], [1, ROWS as isize]);
    let (b_at, r_at) = (operand([1, columns], [columns as isize, 1]), operand([ROWS, 1], [1, 1]));
    let element = |row: usize, column: usize| a[column * ROWS + row];
    let bytes = |x| LoopInput::Bytes(bytemuck::cast_slice(x));
    let operands = [Some(&a_at), Some(&b_at), Some(&r_at)];
    let given = if scratch { [None, operands[1], None] } else { operands };
    let domain = Domain::over(&[ROWS, columns], &[0, 1], &given).unwrap();
    let mut workspace = Workspace::default();
    workspace.fit(&program);
    let (mut y, mut less) = (vec![9.0_f32; ROWS * columns], vec![9_u8; ROWS * columns]);
    for row in (0..ROWS).step_by(height) {
        for column in (0..columns).step_by(width) {
            let (rows, width) = (height.min(ROWS - row), width.min(columns - column));
            let tile = Tile { first: row * columns + column, rows, width, pitch: columns };
            let places = (0..rows * width).map(|i| (row + i / width, column + i % width));
            let own: Vec<f32> = places.clone().map(|(row, column)| element(row, column)).collect();
            let mut sums = vec![0.0; rows * width];
            let [_, below] = TileMut::new(&mut less, columns).split_rows(row);
            let [these, _] = below.split_rows(rows);
            let [_, right] = these.split_columns(column);
            let [of_less, _] = right.split_columns(width);
            let of_less = LoopOutput::Rows(of_less);
            let inputs = match scratch {
                true => [
                    LoopInput::Tile(Elements::F32(&own)),
                    bytes(&b),
                    LoopInput::Repeated(Elements::F32(&r[row..]), width),
                ],
                false => [bytes(&a), bytes(&b), bytes(&r)],
            };
            let of_y = match scratch {
                true => LoopOutput::Tile(ElementsMut::F32(&mut sums)),
                false => LoopOutput::Bytes(bytemuck::cast_slice_mut(&mut sums)),
            };
            program.run_tile(&domain, tile, &inputs, &mut [of_y, of_less], &mut workspace);
            places.zip(sums).for_each(|((row, column), sum)| y[row * columns + column] = sum);
        }
    }
    for (i, (y, less)) in y.into_iter().zip(less).enumerate() {
        let (row, column) = (i / columns, i % columns);
        let a = element(row, column);
        let want = a * b[column] + r[row];
        assert_eq!(y, want, "{columns} {height}×{width} {scratch} at {row}, {column}");
        assert_eq!(less, u8::from(want < a), "{columns} {height}×{width} {scratch}");
    }
}

#[test]
fn tiles_cover_the_domain() {
    for columns in [1, 7, 300, 2500] {
        for (height, width) in [(1, columns), (2, columns), (ROWS, columns), (3, 5), (2, 1100)] {
            check_tiles(columns, height, width, false);
            check_tiles(columns, height, width, true);
        }
    }
}

#[test]
fn a_tile_is_overwritten_by_what_is_made_of_it() {
    let mut graph = Graph::new();
    let x = graph.add_input("x", TensorType::new(DType::F16, vec![Dim::from(3000)])).unwrap();
    let third = graph
        .add_constant("third", Tensor::from_vec(vec![], vec![half::f16::from_f32(0.3)]).unwrap());
    let y = graph.add("y", Op::Binary(Binary::Mul), &[Some(x), Some(third)]).unwrap().value();
    graph.add_output("y", y);
    let program = Loop::compile(&graph).unwrap();
    let domain = Domain::over(&[3000], &[0], &[None]).unwrap();
    let mut tile: Vec<f32> = (0..3000).map(|i| i as f32).collect();
    let outputs = &mut [LoopOutput::Tile(ElementsMut::F32(&mut tile))];
    let inputs = [LoopInput::Overwritten(0)];
    let mut workspace = Workspace::default();
    workspace.fit(&program);
    program.run_tile(&domain, Tile::range(0..3000), &inputs, outputs, &mut workspace);
    for (i, y) in tile.into_iter().enumerate() {
        // What is kept for later use is rounded as if stored.
        let want = half::f16::from_f32(i as f32 * half::f16::from_f32(0.3).to_f32()).to_f32();
        assert_eq!(y, want, "{i}");
    }
}

#[test]
fn real_numbers_between_bounds_are_cut_to_bytes() {
    let numbers: Vec<f32> = (-40..4000).map(|i| i as f32 * 0.0703).collect();
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 254.999, 255.0, 256.0];
    let x = Tensor::from_vec(vec![odd.len() + numbers.len()], [&odd, &numbers[..]].concat());
    let x = x.unwrap();
    let mut graph = Graph::new();
    let given = graph.add_input("x", TensorType::of(&x)).unwrap();
    let most = graph.add_constant("most", Tensor::scalar(255.0_f32));
    let relu = graph.add("relu", Op::Unary(Unary::Relu), &[Some(given)]).unwrap().value();
    let least = Op::Binary(Binary::Min);
    let least = graph.add("least", least, &[Some(relu), Some(most)]).unwrap().value();
    let cut = Op::Cast { to: DType::U8, saturate: true };
    let cut = graph.add("cut", cut, &[Some(least)]).unwrap().value();
    graph.add_output("cut", cut);
    let program = Loop::compile(&graph).unwrap();
    let domain = Domain::over(&[x.len()], &[0], &[None]).unwrap();
    let mut bytes = vec![9; x.len()];
    let outputs = &mut [LoopOutput::Bytes(&mut bytes)];
    let mut workspace = Workspace::default();
    workspace.fit(&program);
    let inputs = [LoopInput::Tile(Elements::F32(x.as_slice().unwrap()))];
    program.run_tile(&domain, Tile::range(0..x.len()), &inputs, outputs, &mut workspace);
    assert_eq!(bytes, evaluate(&graph, &[x]).unwrap()[0].bytes());
}

fn unary(graph: &mut Graph, op: Op, x: ValueId) -> ValueId {
    graph.add("y", op, &[Some(x)]).unwrap().value()
}

fn binary(graph: &mut Graph, binary: Binary, x: ValueId, y: ValueId) -> ValueId {
    graph.add("y", Op::Binary(binary), &[Some(x), Some(y)]).unwrap().value()
}

/// A number made a byte and a number again, by a scale and a zero point.
fn through_a_byte(graph: &mut Graph, x: ValueId, scale: f32, zero: f32) -> [ValueId; 2] {
    let with = |graph: &mut Graph, op, x, y| {
        let y = graph.add_constant("c", Tensor::scalar(y));
        binary(graph, op, x, y)
    };
    let y = with(graph, Binary::Div, x, scale);
    let y = unary(graph, Op::Unary(Unary::Round), y);
    let y = with(graph, Binary::Add, y, zero);
    let y = unary(graph, Op::Unary(Unary::Relu), y);
    let y = with(graph, Binary::Min, y, 255.0);
    let byte = unary(graph, Op::Cast { to: DType::U8, saturate: true }, y);
    let y = unary(graph, Op::Cast { to: DType::F32, saturate: true }, byte);
    let y = with(graph, Binary::Sub, y, zero);
    [byte, with(graph, Binary::Mul, y, scale)]
}

/// A GELU between bytes, of numbers less a column's, as it is exported; also the number before the last byte.
fn gelu(graph: &mut Graph) -> [ValueId; 2] {
    let shape = |rows: usize| vec![Dim::from(rows), Dim::from(600)];
    let x = graph.add_input("x", TensorType::new(DType::F32, shape(7))).unwrap();
    let r = graph.add_input("r", TensorType::new(DType::F32, shape(1))).unwrap();
    let x = binary(graph, Binary::Sub, x, r);
    let [_, x] = through_a_byte(graph, x, 0.03, 131.0);
    let root = graph.add_constant("c", Tensor::scalar(std::f32::consts::SQRT_2));
    let y = binary(graph, Binary::Div, x, root);
    let y = unary(graph, Op::Unary(Unary::Erf), y);
    let [_, y] = through_a_byte(graph, y, 0.0078, 128.0);
    let one = graph.add_constant("c", Tensor::scalar(1.0_f32));
    let y = binary(graph, Binary::Add, y, one);
    let y = binary(graph, Binary::Mul, x, y);
    let [byte, _] = through_a_byte(graph, y, 0.015, 3.0);
    [byte, y]
}

/// What a loop makes of numbers, some of which are none, in rows and columns.
fn run(program: &Loop, inputs: &[(&[f32], bool)], bytes: usize) -> Vec<u8> {
    let (rows, columns) = (7, 600);
    let operands: Vec<BoundOperand> = inputs
        .iter()
        .map(|(_, row)| match row {
            true => operand([1, columns], [columns as isize, 1]),
            false => operand([rows, columns], [columns as isize, 1]),
        })
        .collect();
    let operands: Vec<_> = operands.iter().map(Some).collect();
    let domain = Domain::over(&[rows, columns], &[0, 1], &operands).unwrap();
    let inputs: Vec<_> =
        inputs.iter().map(|(x, _)| LoopInput::Bytes(bytemuck::cast_slice(x))).collect();
    let mut y = vec![77; rows * columns * bytes];
    program.run(&domain, &inputs, [&mut y[..]]);
    y
}

/// Many operations between two bytes are looked up; the results are those of the operations, bit for bit but for the sign of
/// zeros, which these have none of.
#[test]
fn functions_of_one_byte_are_looked_up() {
    let mut numbers: Vec<f32> = (0..4200).map(|i| (i - 2100) as f32 * 2.3e-3).collect();
    [numbers[7], numbers[99], numbers[2000]] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let column: Vec<f32> = (0..600).map(|i| (i % 13) as f32 * 0.07).collect();
    for given in [0, 1] {
        let mut graph = Graph::new();
        let y = gelu(&mut graph)[given];
        graph.add_output("y", y);
        let (program, whole) =
            (Loop::compile(&graph).unwrap(), Loop::without_tables(&graph).unwrap());
        let looked_up = |program: &Loop| {
            let operations = program.instructions.iter().map(|own| own.operation);
            operations.filter(|own| matches!(own, Operation::Lookup(_))).count()
        };
        assert_eq!((looked_up(&program), looked_up(&whole)), (1, 0));
        assert!(program.len() * 2 < whole.len(), "{} of {}", program.len(), whole.len());
        assert!(program.chain(0).is_some() && whole.chain(0).is_none());
        let inputs = [(&numbers[..], false), (&column[..], true)];
        let bytes = if given == 0 { 1 } else { 4 };
        assert_eq!(run(&program, &inputs, bytes), run(&whole, &inputs, bytes));
    }
}

/// What is made of two bytes is not, nor what takes fewer operations than a table.
#[test]
fn functions_of_two_bytes_are_not_looked_up() {
    let mut graph = Graph::new();
    let [x, r] = ["x", "r"].map(|name| {
        let ty = TensorType::new(DType::U8, vec![Dim::from(40)]);
        graph.add_input(name, ty).unwrap()
    });
    let [x, r] = [x, r].map(|x| unary(&mut graph, Op::Cast { to: DType::F32, saturate: true }, x));
    let y = binary(&mut graph, Binary::Mul, x, r);
    let y = unary(&mut graph, Op::Unary(Unary::Erf), y);
    graph.add_output("y", y);
    let y = unary(&mut graph, Op::Unary(Unary::Relu), x);
    graph.add_output("y", y);
    assert_eq!(Loop::compile(&graph).unwrap(), Loop::without_tables(&graph).unwrap());
}
