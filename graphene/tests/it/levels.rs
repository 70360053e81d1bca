//! Levels of kernels: every spec says what it computes, the outermost included, and that is what the kernel
//! computes.

use expect_test::expect;
use graphene_ir::function::Function;
use graphene_ir::index::Expr;
use graphene_ir::kernel::{Array, Binary, Kernel, Kind, Number, Operand, Stmt, Unary};
use graphene_ir::simulate::Buffer;
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::folds::{Folds, Out, Total};
use graphene_ir::template::gather::{Place, embedding, gather};
use graphene_ir::template::parts::{Part, Parts, Source};
use graphene_ir::template::pointwise::Pointwise;
use graphene_ir::template::reduce::Reduce;
use graphene_ir::template::rows::{Norm, Rows};
use graphene_ir::template::scan::Scan;
use graphene_ir::template::transpose::Transpose;
use graphene_ir::tensor::Scalar;

use crate::support::{check_clean, check_text, inputs, run};

const F16: Scalar = Scalar::F16;
const F32: Scalar = Scalar::F32;

/// A kernel's name, the kernel, values of its symbols, and how many levels it has above its atoms.
type Row = (&'static str, Kernel, &'static [(&'static str, i64)], usize);

fn pointwise() -> Vec<Row> {
    let bias = Access { scalar: F16, strides: vec![Stride::Broadcast, Stride::Packed] };
    let biased = Pointwise {
        function: Function::bias_gelu(),
        ins: vec![Access::packed(F16, 2), bias],
        outs: vec![Access::packed(F16, 2)],
        ..Pointwise::default()
    };
    let part = |source, to: Access, vector| Part { source, to, vector };
    let counted = part(Source::Counted, Access::packed(Scalar::I32, 1), 1);
    let parts = vec![
        part(Source::Copied(Access::packed(F16, 2)), Access::packed(F16, 2), 8),
        part(Source::Filled(Number(-1.5)), Access::packed(F32, 1), 4),
        counted,
    ];
    let sizes: &[_] =
        &[("N0_0", 3), ("N0_1", 16), ("N1_0", 9), ("N2_0", 7), ("blocks", 2), ("first2", 5)];
    vec![
        ("pointwise", biased.kernel().unwrap(), &[("N0", 5), ("N1", 24), ("blocks", 2)], 3),
        ("parts", Parts { parts, ..Parts::default() }.kernel().unwrap(), sizes, 2),
        ("transpose", Transpose::default().kernel().unwrap(), &[("rows", 66), ("columns", 70)], 3),
        (
            "transpose of a batch",
            Transpose {
                x: Access::packed(F32, 3),
                y: Access::packed(F32, 3),
                ..Transpose::default()
            }
            .kernel()
            .unwrap(),
            &[("N0", 2), ("rows", 5), ("columns", 66)],
            3,
        ),
    ]
}

fn reductions() -> Vec<Row> {
    let square = Function::identity() * Function::identity();
    let last = Reduce { function: square.clone(), finish: Reduce::mean(), ..Reduce::default() };
    let parts = Reduce { parts: true, out: Access::packed(F32, 1), ..last.clone() };
    let middle = Reduce {
        ins: vec![Access::packed(F16, 3)],
        out: Access::packed(F32, 2),
        op: Binary::Max,
        ..Reduce::default()
    };
    let of = |op, function| Total { op, function, finish: Function::identity() };
    let [x, mean, more] = [0, 2, 3].map(Function::input);
    let difference = x.clone() - mean;
    let two = Folds {
        kept: 2,
        ins: vec![Access::packed(F16, 3), Access::packed(F32, 2)],
        totals: vec![
            Total { finish: Reduce::mean(), ..of(Binary::Add, x * Function::input(1)) },
            of(Binary::Max, difference.clone()),
        ],
        outs: vec![
            Out { function: difference + more.clone(), access: Access::packed(F16, 3) },
            Out { function: more, access: Access::packed(F32, 2) },
        ],
        ..Folds::default()
    };
    let scan = Scan { threads: 32, ..Scan::default() };
    let backward = Scan { exclusive: true, reverse: true, ..scan.clone() };
    let axes: &[_] = &[("N0", 3), ("N1", 50)];
    vec![
        ("rows' means", last.kernel().unwrap(), &[("outer", 6), ("reduced", 304)], 3),
        (
            "means in parts",
            parts.kernel().unwrap(),
            &[("outer", 2), ("reduced", 1104), ("parts", 3)],
            3,
        ),
        (
            "columns' maxima",
            middle.kernel().unwrap(),
            &[("outer", 2), ("reduced", 9), ("inner", 40)],
            2,
        ),
        ("folds", two.kernel().unwrap(), &[("N0", 2), ("N1", 3), ("N2", 37)], 3),
        ("scan", scan.kernel().unwrap(), axes, 3),
        ("scan from the end", backward.kernel().unwrap(), axes, 3),
    ]
}

fn rows() -> Vec<Row> {
    let norm = |norm| Rows {
        norm,
        scale: None,
        shift: None,
        threads: 32,
        teams: 2,
        held: None,
        ..Rows::default()
    };
    let fused = Rows {
        prologue: Function::sum_of_three(),
        ins: vec![Access::packed(F16, 2), Access::packed(F16, 2), Access::line(F16, 2)],
        sum: Some(Access::packed(F16, 2)),
        epilogue: Function::identity().unary(Unary::Silu) * Function::input(1),
        extras: vec![Access::packed(F16, 2)],
        ..Rows::default()
    };
    let again = Rows { held: None, threads: 64, teams: 2, ..fused.clone() };
    let sizes: &[_] = &[("rows", 5), ("columns", 72)];
    let words: &[_] =
        &[("rows", 6), ("columns", 40), ("x0_rows", 4), ("x1_rows", 3), ("x2_rows", 2)];
    let table: &[_] = &[("rows", 5), ("columns", 16), ("x0_rows", 3)];
    vec![
        ("layer normalisation", fused.kernel().unwrap(), sizes, 3),
        ("layer normalisation, read again", again.kernel().unwrap(), sizes, 3),
        ("root mean square", norm(Norm::Rms).kernel().unwrap(), sizes, 3),
        ("softmax", norm(Norm::Softmax).kernel().unwrap(), sizes, 3),
        (
            "softmax in registers",
            Rows { held: Some(1), ..norm(Norm::Softmax) }.kernel().unwrap(),
            sizes,
            3,
        ),
        ("its logarithm", norm(Norm::LogSoftmax).kernel().unwrap(), sizes, 3),
        ("embedding", embedding(F16, Scalar::I64).kernel().unwrap(), words, 3),
        ("gather", gather(F16, &[Place::Index(Scalar::I32)]).kernel().unwrap(), table, 2),
    ]
}

/// How many levels there are: specs within each other that have bodies.
fn depth(stmts: &[Stmt]) -> usize {
    let of = |stmt: &Stmt| match stmt {
        Stmt::Spec(spec) => spec.body.as_ref().map_or(0, |body| 1 + depth(body)),
        other => depth(other.body()),
    };
    stmts.iter().map(of).max().unwrap_or(0)
}

/// The elements of a parameter, as its view has them.
fn array(
    kernel: &Kernel,
    operand: &Operand,
    value: &dyn Fn(&Expr) -> Option<i64>,
    element: impl Fn(usize) -> f64,
) -> Array {
    let axes = kernel.tensor(operand.tensor).view.axes();
    let numbers: Vec<[usize; 2]> = axes
        .iter()
        .map(|axis| [&axis.size, &axis.stride].map(|expr| value(expr).unwrap() as usize))
        .collect();
    let shape: Vec<usize> = numbers.iter().map(|[size, _]| *size).collect();
    Array::new(&shape, |at| {
        element(at.iter().zip(&numbers).map(|(at, [_, stride])| at * stride).sum())
    })
}

/// No spec is any computation; there are so many levels; and the outermost spec says what is computed.
fn check_levels((name, kernel, symbols, levels): &Row) {
    check_text(name, kernel);
    assert_ne!(kernel.spec.kind, Kind::Spec, "{name}");
    kernel.each_stmt(&mut |stmt| {
        let untyped = matches!(stmt, Stmt::Spec(spec) if spec.kind == Kind::Spec);
        assert!(!untyped, "{name}: {}", kernel.tree());
    });
    let found = 1 + depth(kernel.spec.body.as_deref().unwrap());
    assert!(found >= *levels, "{name}: {}", kernel.tree());

    let element = |param: usize, i: usize| ((i * 7 + i / 5 + param * 3) % 9) as f64 / 4.0 - 1.0;
    let mut given = inputs(kernel, symbols, element);
    let value = |expr: &Expr| {
        expr.value(&|var| symbols.iter().find(|row| row.0 == var.name()).map(|row| row.1))
    };
    for (param, &id) in kernel.params.iter().enumerate() {
        let tensor = kernel.tensor(id);
        let buffer = given.buffers.get_mut(kernel.tensor_name(id)).unwrap();
        match buffer {
            Buffer::Data(data) if kernel.spec.outs.contains(&id.into()) => data.fill(0.0),
            Buffer::Data(data) if !tensor.scalar.is_float() => {
                let whole = |(i, x): (usize, &mut f64)| *x = (i * 2 + param) as f64 % 6.0 - 2.0;
                data.iter_mut().enumerate().for_each(whole);
            }
            Buffer::Data(_) | Buffer::Undefined(_) => {}
        }
    }
    let outcome = run(kernel, &given, None);
    check_clean(name, &outcome);
    let spec = &kernel.spec;
    let before = |operand: &Operand| {
        let buffer = &given.buffers[kernel.tensor_name(operand.tensor)];
        array(kernel, operand, &value, |i| match buffer {
            Buffer::Data(data) => data[i],
            Buffer::Undefined(_) => f64::NAN,
        })
    };
    let ins: Vec<Array> = spec.ins.iter().map(before).collect();
    let outs: Vec<Array> = spec.outs.iter().map(before).collect();
    let meaning = spec.kind.meaning(&[], &[]).unwrap();
    let expected = meaning.values(&ins, &outs, &value).unwrap();
    for (out, expected) in spec.outs.iter().zip(expected) {
        let buffer = &outcome.buffers[kernel.tensor_name(out.tensor)];
        let found = array(kernel, out, &value, |i| buffer[i].unwrap());
        for (i, (found, expected)) in found.data.iter().zip(&expected.data).enumerate() {
            let near = (found - expected).abs() <= 4e-3 * expected.abs().max(1.0);
            assert!(near, "{name}: element {i} is {found}, not {expected}\n{}", kernel.tree());
        }
    }
}

#[test]
fn kernels_of_elements_are_typed() {
    pointwise().iter().for_each(check_levels);
}

#[test]
fn kernels_of_reductions_are_typed() {
    reductions().iter().for_each(check_levels);
}

#[test]
fn kernels_of_rows_are_typed() {
    rows().iter().for_each(check_levels);
}

#[test]
fn trees_are_drawn() {
    let kernels: Vec<Row> = [pointwise(), reductions(), rows()].into_iter().flatten().collect();
    let tree = |name: &str| {
        let found = kernels.iter().find(|row| row.0 == name).unwrap();
        found.1.tree()
    };
    expect![[r#""#]].assert_eq(&tree("pointwise"));
    expect![[r#""#]].assert_eq(&tree("transpose"));
    expect![[r#""#]].assert_eq(&tree("rows' means"));
    expect![[r#""#]].assert_eq(&tree("layer normalisation, read again"));
    expect![[r#""#]].assert_eq(&tree("scan"));
}
