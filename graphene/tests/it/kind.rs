//! Kinds of specs: their text, and what they mean.

use graphene_ir::arch::Arch;
use graphene_ir::build::{Builder, Header};
use graphene_ir::index::Expr;
use graphene_ir::kernel::{Array, Fold, Fused, Kernel, Kind, Monoid, Stmt};
use graphene_ir::layout::Layout;
use graphene_ir::tensor::{Memory, Scalar};
use graphene_ir::text::parse;

/// A kernel of one block, a spec of whose body has the kind that a text says.
fn of_kind(kind: &str, outs: usize, ins: usize) -> graphene_ir::Result<Kernel> {
    let names = |first: usize, count: usize| {
        (first..first + count).map(|i| format!("%r{i}")).collect::<Vec<_>>()
    };
    let registers =
        (0..outs + ins).map(|i| format!("%r{i}:[4,4:4,1].fp32.RF\n")).collect::<String>();
    let (outs, ins) = (names(0, outs), names(outs, ins));
    let arrow = if outs.is_empty() { "" } else { " <- " };
    parse(&format!(
        "kernel k sm_80 (@n)\n#g:[1:1].block\n#b:[32:1].thread\nSync<<<#g, #b>>>() {{\n{registers}\
         {}{arrow}{kind}<<<#g, #b>>>({}) {{\n}}\n}}\n",
        outs.join(", "),
        ins.join(", ")
    ))
}

fn kind_of(kernel: &Kernel) -> Kind {
    let mut found = None;
    kernel.each_stmt(&mut |stmt| {
        if let Stmt::Spec(spec) = stmt {
            found = Some(spec.kind.clone());
        }
    });
    found.unwrap()
}

/// Texts of kinds that compute, with their numbers of operands.
const KINDS: [(&str, usize, usize); 22] = [
    ("Move", 1, 1),
    ("MatMul", 1, 2),
    ("MatMul+=", 1, 2),
    ("Select", 1, 3),
    ("Reduction<max>", 1, 1),
    ("Fold<+, 0, 1>", 1, 1),
    ("Fold<softmax, 1>", 2, 1),
    ("Fold<welford, 1>", 2, 1),
    ("Scan<+, 1>", 1, 1),
    ("Scan<*, 0, exclusive, reverse>", 1, 1),
    ("Fused{gelu(matmul(%0, %1) + %2)}", 1, 3),
    ("Fused{%0 - (%1 - %2) - %0 * (%1 + %2)}", 1, 3),
    ("Fused{t0 = %0 + %1; t0 * sigmoid(t0), t0}", 2, 2),
    ("Fused{t0 = exp(%0 - fold<max>(%0, 1)); t0 / fold<+>(t0, 1)}", 1, 1),
    ("Fused{fold<softmax.max>(%0, 1), fold<softmax.sum>(%0, 0, 1)}", 2, 1),
    ("Fused{scan<+, 0, reverse>(abs(%0))}", 1, 1),
    ("Fused{select(less(position(%0, 1), index(@n)), fp16(%0), -inf)}", 1, 1),
    ("Fused{merge(split(dims(%0, 1, _, 0), 2, 2), 1) + 1e-30}", 1, 1),
    ("Fused{slice(%0, 0, @n, 2) + -0.5}", 1, 1),
    ("Fused{fold<max>(window(%0, 1, 4, 3, 1, 1, 1, -inf), 2)}", 1, 1),
    ("Fused{gather(%0, old(0))}", 1, 1),
    ("Fused{index(@n + 1)}", 1, 0),
];

#[test]
fn kinds_read_back() {
    for (text, outs, ins) in KINDS {
        let kernel = of_kind(text, outs, ins).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(kind_of(&kernel).to_string(), text);
        assert_eq!(parse(&kernel.to_string()), Ok(kernel), "{text}");
    }
}

#[test]
fn other_numbers_of_operands_are_refused() {
    for (text, outs, ins) in KINDS {
        for (outs, ins) in [(outs + 1, ins), (outs, ins + 1)] {
            let error = of_kind(text, outs, ins).unwrap_err().to_string();
            assert!(error.contains(&format!("has not {outs} outputs and {ins} inputs")), "{error}");
        }
    }
    for text in
        ["Fused{}", "Fused{%0 +}", "Fused{huh(%0)}", "Fused{t0}", "Fold<softmax>", "Scan<+>"]
    {
        assert!(of_kind(text, 1, 1).is_err(), "{text}");
    }
}

/// A long chain of functions and one whose parts are used often have texts that are not long.
#[test]
fn deep_expressions_read_back() {
    let mut fused = Fused::input(0);
    for _ in 0..300 {
        fused = fused.clone().binary(graphene_ir::kernel::Binary::Mul, fused);
    }
    let mut k = Builder::new("deep", Arch::Sm80);
    k.grid("g", [Layout::of(1, 1)]).unwrap();
    let block = k.block("b", [Layout::of(32, 1)]).unwrap();
    let x = k.allocate("x", [Layout::of(4, 1)], Scalar::F32, Memory::Registers, None).unwrap();
    k.decompose(Header::new(Kind::Fused(fused), x, x, block), |_| Ok(())).unwrap();
    let kernel = k.finish(Kind::Sync, (), ()).unwrap();
    assert_eq!(parse(&kernel.to_string()), Ok(kernel));
}

fn array(shape: &[usize]) -> Array {
    let mut next = 0.0;
    Array::new(shape, |_| {
        next = (next + 3.0) % 7.0;
        next - 2.0
    })
}

/// What a kind makes of operands of these shapes, whose elements count 1, 4, 0, 3, -1, 2, -2, ….
fn values(text: &str, outs: &[&[usize]], ins: &[&[usize]]) -> Vec<Vec<f64>> {
    let kernel = of_kind(text, outs.len(), ins.len()).unwrap();
    let shape = |shapes: &[&[usize]]| shapes.first().map_or(Vec::new(), |shape| shape.to_vec());
    let meaning = kind_of(&kernel).meaning(&shape(outs), &shape(ins)).unwrap();
    let arrays = |shapes: &[&[usize]]| shapes.iter().map(|shape| array(shape)).collect::<Vec<_>>();
    let number = |expr: &Expr| expr.value(&|_| Some(2));
    let results = meaning.values(&arrays(ins), &arrays(outs), &number).unwrap();
    results.into_iter().map(|array| array.data).collect()
}

#[test]
fn kinds_have_values() {
    type Row =
        (&'static str, &'static [&'static [usize]], &'static [&'static [usize]], &'static [f64]);
    let rows: [Row; 19] = [
        ("Move", &[&[3]], &[&[1, 3]], &[1.0, 4.0, 0.0]),
        ("MatMul", &[&[2, 2]], &[&[2, 3], &[3, 2]], &[1.0, 16.0, 1.0, 13.0]),
        ("MatMul+=", &[&[2, 2]], &[&[2, 3], &[3, 2]], &[2.0, 20.0, 1.0, 16.0]),
        ("MatMul", &[&[2, 1, 1]], &[&[2, 1, 2], &[2, 1]], &[17.0, 12.0]),
        ("Reduction<+>", &[&[2]], &[&[3, 2]], &[1.0 + 0.0, 4.0 + 9.0]),
        ("Fold<+, 1>", &[&[2]], &[&[2, 3]], &[5.0, 4.0]),
        ("Fold<welford, 0>", &[&[], &[]], &[&[4]], &[2.0]),
        ("Fold<softmax, 0>", &[&[], &[]], &[&[3]], &[4.0]),
        ("Scan<+, 1>", &[&[2, 3]], &[&[2, 3]], &[1.0, 5.0, 5.0, 3.0, 2.0, 4.0]),
        ("Scan<+, 0, exclusive, reverse>", &[&[3]], &[&[3]], &[4.0, 0.0, 0.0]),
        ("Fused{%0 + %1}", &[&[2, 2]], &[&[2, 2], &[2]], &[2.0, 8.0, 1.0, 7.0]),
        ("Fused{%0 - fold<max>(%0, 1)}", &[&[2, 2]], &[&[2, 2]], &[-3.0, 0.0, -3.0, 0.0]),
        ("Fused{dims(%0, 1, 0)}", &[&[2, 3]], &[&[3, 2]], &[1.0, 0.0, -1.0, 4.0, 3.0, 2.0]),
        ("Fused{position(%0, 1) + index(@n)}", &[&[1, 3]], &[&[1, 3]], &[2.0, 3.0, 4.0]),
        ("Fused{dims(split(%0, 0, 2), 1, 0)}", &[&[2, 2]], &[&[4]], &[1.0, 0.0, 4.0, 3.0]),
        ("Fused{slice(merge(%0, 0), 0, @n, 1)}", &[&[1]], &[&[2, 2]], &[0.0]),
        (
            "Fused{window(%0, 0, 2, 3, 2, 1, 1, 9)}",
            &[&[2, 3]],
            &[&[4]],
            &[9.0, 1.0, 4.0, 4.0, 0.0, 3.0],
        ),
        ("Fused{gather(%0, %1)}", &[&[2, 1]], &[&[2, 1], &[2]], &[4.0, 4.0]),
        ("Fused{select(%0, old(0), 5)}", &[&[3]], &[&[3]], &[1.0, 4.0, 5.0]),
    ];
    for (text, outs, ins, expected) in rows {
        assert_eq!(values(text, outs, ins)[0], expected, "{text}");
    }
    assert_eq!(values("Fold<welford, 0>", &[&[], &[]], &[&[4]])[1], [2.5]);
    let sum = values("Fold<softmax, 0>", &[&[], &[]], &[&[2]])[1][0];
    assert!((sum - (1.0 + (-3f64).exp())).abs() < 1e-12);
}

#[test]
fn shapes_that_do_not_fit_have_no_values() {
    let fold = Fold { monoid: Monoid::Softmax, along: vec![2] };
    let rows = [
        Fused::input(0).matmul(Fused::input(1)),
        Fused::input(0).fold(&fold, 0),
        Fused::input(2),
        Fused::index(graphene_ir::index::Var::new("n", None)),
        Fused::input(0).dims([Some(5)]),
    ];
    for fused in rows {
        let ins = [array(&[2, 3]), array(&[2, 3])];
        assert!(fused.values(&ins, &[array(&[2, 3])], &Expr::constant).is_err(), "{fused}");
    }
}
