//! Graphs that failed once, each as small as it could be made.

use crate::build::{Case, Numbers, Random, tensor};
use crate::execute::check;
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::text::parse;

/// What failed, the sizes of symbols, and the graph.
type Row = (&'static str, &'static [(&'static str, i64)], &'static str);

const ROWS: [Row; 12] = [
    (
        "a layer kept one column, which the next one's expressions broadcast",
        &[],
        r#"
%0 = Input : f32[1, 1] "x"
%1 = Constant(-0.5) : f32[1, 1] "w"
%2 = MatMul(%0, %1) : f32[1, 1] "first"
%3 = Constant(-1, 2) : f32[1, 2] "v"
%4 = MatMul(%2, %3) : f32[1, 2] "second"
%5 = Add(%4, %2) : f32[1, 2] "sum"
return "y" = %5
"#,
    ),
    (
        "the same behind a third layer, in fp16",
        &[("n", 3)],
        r#"
symbols n
%0 = Input : f16[n, 1] "x"
%1 = Constant(1.5) : f16[1, 1] "w"
%2 = MatMul(%0, %1) : f16[n, 1] "first"
%3 = Constant(-1, 2) : f16[1, 2] "v"
%4 = MatMul(%2, %3) : f16[n, 2] "second"
%5 = Add(%4, %2) : f16[n, 2] "sum"
%6 = Constant(0.5, -1) : f16[2, 1] "u"
%7 = MatMul(%5, %6) : f16[n, 1] "third"
return "y" = %7
"#,
    ),
    (
        "a shift beyond the width left nothing of the sign",
        &[],
        r#"
%0 = Input : i64[4] "x"
%1 = ShiftRight(%0, %0) : i64[4] "shifted"
return "y" = %1
"#,
    ),
    (
        "attention to no keys was no number",
        &[],
        r#"
%0 = Input : f32[1, 1, 2, 4] "q"
%1 = Input : f32[1, 1, 4, 0] "k"
%2 = Input : f32[1, 1, 0, 3] "v"
%3 = MatMul(%0, %1) : f32[1, 1, 2, 0] "scores"
%4 = Softmax(%3) {axis: 3} : f32[1, 1, 2, 0] "weights"
%5 = MatMul(%4, %2) : f32[1, 1, 2, 3] "y"
return "y" = %5
"#,
    ),
    (
        "expressions of rows without elements divided by their length",
        &[],
        r#"
%0 = Input : f32[7, 0] "x"
%1 = Constant(6) : i64[1] "place"
%2 = Gather(%0, %1) {axis: 0} : f32[1, 0] "row"
%3 = Cos(%2) : f32[1, 0] "cosine"
return "y" = %3
"#,
    ),
    (
        "rows without elements had no statistics",
        &[],
        r#"
%0 = Input : f32[2, 0] "x"
%1 = LayerNorm(%0) {axis: 1, epsilon: 0.001} : f32[2, 0], f32[2, 1], f32[2, 1] "norm"
return "y" = %1, "mean" = %1.1, "inverse" = %1.2
"#,
    ),
    (
        "the reference read what is overwritten as elements of the type written over it",
        &[],
        r#"
%0 = Input : u64[2] "x"
%1 = Input : bool[2] "which"
%2 = Select(%1, %0, %0) : u64[2] "chosen"
%3 = Cast(%2) {to: i64, saturate: true} : i64[2] "cast"
%4 = Select(%1, %3, %3) : i64[2] "again"
return "y" = %4
"#,
    ),
    (
        "infinities became other integers than in the reference",
        &[],
        r#"
%0 = Input : f32[5] "x"
%1 = Constant(1e30, -1e30, 0x7f800000, -5e18, 300) : f32[5] "by"
%2 = Mul(%0, %1) : f32[5] "large"
%3 = Cast(%2) {to: i8, saturate: true} : i8[5] "narrow"
%4 = Cast(%2) {to: i32, saturate: true} : i32[5] "middle"
%5 = Cast(%2) {to: i64, saturate: true} : i64[5] "wide"
return "narrow" = %3, "middle" = %4, "wide" = %5
"#,
    ),
    (
        "what is no number became zero",
        &[],
        r#"
%0 = Input : f32[3] "x"
%1 = Constant(0x7fc00000, 1, 0) : f32[3] "by"
%2 = Mul(%0, %1) : f32[3] "product"
%3 = Shrink(%2) {bias: 0.25, lambda: 0.5} : f32[3] "shrunk"
return "y" = %3
"#,
    ),
    (
        "the reference multiplied an infinite state by peepholes that are not there",
        &[],
        r#"
%0 = Input : f32[1, 2, 1] "x"
%1 = Constant(-0.5, 1, 1, 1) : f32[1, 4, 1] "w"
%2 = Constant(0.5, 0.5, 0.5, 0.5) : f32[1, 4, 1] "r"
%3 = Constant(1, 0xff800000) : f32[1, 2, 1] "state"
%4 = Lstm(%0, %1, %2, _, _, _, %3) {input_forget: false, direction: forward, hidden: 1, activations: [Sigmoid, Tanh, Tanh], clip: none} : f32[1, 1, 2, 1], f32[1, 2, 1], f32[1, 2, 1] "lstm"
return "y" = %4.2
"#,
    ),
    (
        "powers of more than 32 bits were taken for negative ones",
        &[],
        r#"
%0 = Input : i64[3] "x"
%1 = Constant(9223372036854775807, 4294967296, 4294967297) : i64[3] "exponents"
%2 = Pow(%0, %1) : i64[3] "powers"
return "y" = %2
"#,
    ),
    (
        "GELU at minus infinity was its limit in some kernels and no number in others",
        &[],
        r#"
%0 = Input : f16[2] "x"
%1 = Constant(-1e30, 0xff800000) : f32[2] "low"
%2 = Cast(%1) {to: f16, saturate: true} : f16[2] "lowest"
%3 = Min(%0, %2) : f16[2] "either"
%4 = Gelu(%3) : f16[2] "y"
%5 = Cast(%3) {to: f32, saturate: true} : f32[2] "wide"
%6 = Gelu(%5) : f32[2] "z"
%7 = Cast(%3) {to: f64, saturate: true} : f64[2] "wider"
%8 = Gelu(%7) : f64[2] "w"
return "y" = %4, "z" = %6, "w" = %8
"#,
    ),
];

/// Runs all of them on some inputs each.
///
/// # Errors
/// What fails.
pub(crate) fn check_all() -> Result<(), String> {
    for (name, sizes, text) in ROWS {
        let graph = parse(text, &[]).map_err(|error| format!("{name}: {error}"))?;
        let mut bindings = Bindings::new();
        for &(symbol, size) in sizes {
            bindings.bind(Symbol::new(symbol), size).map_err(|error| format!("{name}: {error}"))?;
        }
        for seed in 0..4 {
            let numbers = if seed % 2 == 0 { Numbers::Small } else { Numbers::Whole };
            let types = graph.inputs().iter().map(|id| graph.ty(id.value()));
            let mut random = Random(seed);
            let input = |ty: &graphene_frontend::types::TensorType| {
                let shape = ty.bound_shape(&bindings).map_err(|error| error.to_string())?;
                Ok(tensor(&mut random, ty.dtype, shape, numbers))
            };
            let inputs = types.map(input).collect::<Result<_, String>>()?;
            let case = Case { graph: graph.clone(), inputs, sizes: bindings.clone() };
            check(&[case]).map_err(|failure| format!("{name}: {failure:?}\n{text}"))?;
        }
    }
    Ok(())
}
