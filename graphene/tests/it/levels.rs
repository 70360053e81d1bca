//! Levels of kernels: every spec says what it computes, the outermost included, and that is what the kernel
//! computes.

use expect_test::expect;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Binary, Kernel, Number, Stmt, Unary};
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

use crate::support::{check_clean, check_meaning, check_text, inputs, run};

const F16: Scalar = Scalar::F16;
const F32: Scalar = Scalar::F32;

/// A kernel's name, the kernel, values of its symbols, and how many levels it has above its atoms.
type Row = (&'static str, Kernel, &'static [(&'static str, i64)], usize);

fn pointwise() -> Vec<Row> {
    let bias = Access { scalar: F16, strides: vec![Stride::Broadcast, Stride::Packed] };
    let biased = Pointwise {
        function: Function::sum().unary(Unary::Gelu),
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
        (
            "transpose",
            Transpose { load: 2, store: 2, ..Transpose::default() }.kernel().unwrap(),
            &[("rows", 66), ("columns", 70)],
            3,
        ),
        (
            "transpose of a batch",
            Transpose {
                x: Access::packed(F32, 3),
                y: Access::packed(F32, 3),
                load: 1,
                store: 1,
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
    let means = Reduce { function: square.clone(), finish: Reduce::mean(), ..Reduce::default() };
    let middle = Reduce { out: Access::packed(F32, 2), op: Binary::Max, ..Reduce::default() };
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
    let vectors = Scan { vector: 2, ..backward.clone() };
    let axes: &[_] = &[("N0", 3), ("N1", 50)];
    vec![
        (
            "columns' means",
            means.kernel().unwrap(),
            &[("outer", 2), ("reduced", 9), ("inner", 40)],
            2,
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
        ("scan of vectors from the end", vectors.kernel().unwrap(), axes, 3),
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
        prologue: Function::sum() + Function::input(2),
        ins: vec![Access::packed(F16, 2), Access::packed(F16, 2), Access::line(F16, 2)],
        sum: Some(Access::packed(F16, 2)),
        epilogue: Function::identity().unary(Unary::Silu) * Function::input(1),
        extras: vec![Access::packed(F16, 2)],
        ..Rows::default()
    };
    let again = Rows { held: None, threads: 64, teams: 2, ..fused.clone() };
    let shared = Rows { columns: Some(72), teams: 1, shared: true, ..again.clone() };
    let single = Access::packed(Scalar::F32, 2);
    let in_parts = Rows {
        ins: vec![single.clone()],
        out: single,
        columns: Some(131),
        teams: 1,
        vector: 1,
        ahead: 2,
        shared: true,
        parts: 2,
        ..norm(Norm::LogSoftmax)
    };
    let sizes: &[_] = &[("rows", 5), ("columns", 72)];
    let words: &[_] =
        &[("rows", 6), ("columns", 40), ("x0_rows", 4), ("x1_rows", 3), ("x2_rows", 2)];
    let table: &[_] = &[("rows", 5), ("columns", 16), ("x0_rows", 3)];
    vec![
        ("layer normalisation", fused.kernel().unwrap(), sizes, 3),
        ("layer normalisation, read again", again.kernel().unwrap(), sizes, 3),
        ("layer normalisation, read again from shared memory", shared.kernel().unwrap(), sizes, 3),
        ("root mean square", norm(Norm::Rms).kernel().unwrap(), sizes, 3),
        ("softmax", norm(Norm::Softmax).kernel().unwrap(), sizes, 3),
        (
            "softmax in registers",
            Rows { held: Some(1), ..norm(Norm::Softmax) }.kernel().unwrap(),
            sizes,
            3,
        ),
        ("its logarithm", norm(Norm::LogSoftmax).kernel().unwrap(), sizes, 3),
        ("its logarithm, of a cluster's blocks", in_parts.kernel().unwrap(), &[("rows", 3)], 3),
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

/// No spec is any computation; there are so many levels; and the outermost spec says what is computed.
fn check_levels((name, kernel, symbols, levels): &Row) {
    check_text(name, kernel);
    let found = 1 + depth(kernel.spec.body.as_deref().unwrap());
    assert!(found >= *levels, "{name}: {}", kernel.tree());

    let element = |param: usize, i: usize| ((i * 7 + i / 5 + param * 3) % 9) as f64 / 4.0 - 1.0;
    let mut given = inputs(kernel, symbols, element);
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
    check_meaning(name, kernel, &given, &outcome);
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
    let readme = include_str!("../../README.md");
    let drawn = tree("columns' means");
    assert!(readme.contains(&format!("```\n{drawn}```\n")), "draw it anew:\n{drawn}");
    expect![[r#"
        kernel pointwise sm_90a
        %y0:[@N0, @N1].GL <- Fused{gelu(%0 + %1)}<<<#grid:[@blocks], #block:[256]>>>(%x0:[@N0, @N1].GL, %x1:[@N0, @N1].GL)
          for(@tile = @first; @tile < (@N0*((@N1 + 7)/8) + 255)/256; @tile += @blocks)
            %vector_2:[8].GL <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%vector_3:[8].GL, %vector_4:[8].GL)
              Move x4
              %result:[8].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%wide:[8].RF, %wide_2:[8].RF)
                BinaryPointwise, UnaryPointwise, Move
              Move x2
            for(@e = 0; @e < 7; @e += 1)
              %vector_6:[1].GL <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%vector_7:[1].GL, %vector_8:[1].GL)
                Move x4
                %result_2:[1].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%wide_3:[1].RF, %wide_4:[1].RF)
                  BinaryPointwise, UnaryPointwise, Move
                Move x2
    "#]].assert_eq(&tree("pointwise"));
    expect![[r#"
        kernel transpose sm_90a
        %y:[@columns, @rows].GL <- Fused{dims(%0, 1, 0)}<<<#grid:[((@columns + 63)/64)*((@rows + 63)/64)], #block:[128]>>>(%x:[@rows, @columns].GL)
          %y_tile_2:[64, 64].GL <- Fused{dims(%0, 1, 0)}<<<#cta:[], #block:[128]>>>(%x_tile_2:[64, 64].GL)
            %tile:[64, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%x_tile_2:[64, 64].GL)
              Init, Move x3
            Sync
            %y_tile_2:[64, 64].GL <- Fused{dims(%0, 1, 0)}<<<#cta:[], #block:[128]>>>(%tile:[64, 64].SH)
              Move x4
    "#]].assert_eq(&tree("transpose"));
    expect![[r#"
        kernel reduce sm_90a
        %y:[@outer, @inner].GL <- Fused{dims(fold<+>(%0 * %0, 1), 0, 2) / index(@reduced)}<<<#grid:[@outer*((@inner + 255)/256)], #block:[128]>>>(%x0:[@outer, @reduced, @inner].GL)
          %y_tile_2:[1, 256].GL <- Fused{dims(fold<+>(%0 * %0, 1), 0, 2) / index(@reduced)}<<<#cta:[], #block:[128]>>>(%tile_2:[1, @reduced, 256].GL)
            Init
            for(@chunk = 0; @chunk < (@reduced + 15)/16; @chunk += 1)
              Move
              for(@step = 0; @step < 4; @step += 1) unroll
                Move
                %values:[8].RF <- Fused{%0 * %0}<<<#cta:[], #one:[]>>>(%wide:[8].RF)
                  BinaryPointwise, Move
                Reduction
            for(@i = 0; @i < 7; @i += 1) unroll
              for(@chunk = 0; @chunk < (@reduced + 15)/16; @chunk += 1)
                Move
                for(@step = 0; @step < 4; @step += 1) unroll
                  Move
                  %values_2:[1].RF <- Fused{%0 * %0}<<<#cta:[], #one:[]>>>(%wide_2:[1].RF)
                    BinaryPointwise, Move
                  Reduction
            Move x2, Sync, Reduction
            %result_3:[8].GL <- Fused{%0 / index(@reduced)}<<<#cta:[], #one:[]>>>(%total:[8].RF)
              Index
              %result_4:[8].RF <- Fused{%0 / %1}<<<#cta:[], #one:[]>>>(%total:[8].RF, %count:[].RF)
                BinaryPointwise, Move
              Move x2
            for(@i = 0; @i < 7; @i += 1) unroll
              %result_5:[1].GL <- Fused{%0 / index(@reduced)}<<<#cta:[], #one:[]>>>(%single:[1].RF)
                Index
                %result_6:[1].RF <- Fused{%0 / %1}<<<#cta:[], #one:[]>>>(%single:[1].RF, %count_2:[].RF)
                  BinaryPointwise, Move
                Move x2
    "#]].assert_eq(&tree("columns' means"));
    expect![[r#"
        kernel rows sm_90a
        %sum:[@rows, @columns].GL, %y:[@rows, @columns].GL <- Fused{t0 = %0 + %1 + %2; t1 = (t0 - fold<welford.mean>(t0, 1)) * rsqrt(fold<welford.variance>(t0, 1) + 1e-5) * %3 + %4; t0, silu(t1) * %5}<<<#grid:[(@rows + 1)/2], #block:[128]>>>(%x0:[@rows, @columns].GL, %x1:[@rows, @columns].GL, %x2:[@rows, @columns].GL, %scale:[@rows, @columns].GL, %shift:[@rows, @columns].GL, %e1:[@rows, @columns].GL)
          %own_row_8:[1, @columns].GL, %own_row_16:[1, @columns].GL <- Fused{t0 = %0 + %1 + %2; t1 = (t0 - fold<welford.mean>(t0, 1)) * rsqrt(fold<welford.variance>(t0, 1) + 1e-5) * %3 + %4; t0, silu(t1) * %5}<<<#cta:[], #own_team:[64]>>>(%own_row_2:[1, @columns].GL, %own_row_4:[1, @columns].GL, %own_row_6:[1, @columns].GL, %own_row_10:[1, @columns].GL, %own_row_12:[1, @columns].GL, %own_row_14:[1, @columns].GL)
            %total:[].RF, %own_row_8:[1, @columns].GL <- Fused{t0 = %0 + %1 + %2; fold<+>(t0, 1), t0}<<<#cta:[], #own_team:[64]>>>(%own_row_18:[1, @columns].GL, %own_row_20:[1, @columns].GL, %own_row_22:[1, @columns].GL)
              Init
              for(@chunk = 0; @chunk < (@columns + 4095)/4096; @chunk += 1)
                Move x3
                for(@i = 0; @i < 8; @i += 1) unroll
                  Move x3
                  %row:[8].RF <- Fused{%0 + %1 + %2}<<<#cta:[], #one:[]>>>(%wide:[8].RF, %wide_2:[8].RF, %wide_3:[8].RF)
                    BinaryPointwise x2, Move
                  Move x2
                  %value_3:[8].RF <- Fused{%0}<<<#cta:[], #one:[]>>>(%row:[8].RF)
                    Move
                  Reduction
              %total:[].RF <- Fold<+, 0><<<#cta:[], #own_team:[64]>>>(%total:[].RF)
                Shfl x5, Reduction x6, Move x3, Sync
            Index, BinaryPointwise
            %total_2:[].RF <- Fused{t0 = %0 + %1 + %2; t1 = t0 - fold<+>(t0, 1) / index(@columns); fold<+>(t1 * t1, 1)}<<<#cta:[], #own_team:[64]>>>(%own_row_18:[1, @columns].GL, %own_row_20:[1, @columns].GL, %own_row_22:[1, @columns].GL)
              Init
              for(@chunk = 0; @chunk < (@columns + 4095)/4096; @chunk += 1)
                Move x3
                for(@i = 0; @i < 8; @i += 1) unroll
                  Move x3
                  %row_2:[8].RF <- Fused{%0 + %1 + %2}<<<#cta:[], #one:[]>>>(%wide_4:[8].RF, %wide_5:[8].RF, %wide_6:[8].RF)
                    BinaryPointwise x2, Move
                  %value_6:[8].RF <- Fused{t0 = %0 - %1; t0 * t0}<<<#cta:[], #one:[]>>>(%row_2:[8].RF, %mean:[].RF)
                    BinaryPointwise x2, Move
                  Reduction
              %total_2:[].RF <- Fold<+, 0><<<#cta:[], #own_team:[64]>>>(%total_2:[].RF)
                Shfl x5, Reduction x6, Move x3, Sync
            Index, BinaryPointwise
            %statistic:[1].RF <- Fused{rsqrt(%0 + 1e-5)}<<<#cta:[], #one:[]>>>(%mean_2:[].RF)
              Init, BinaryPointwise, UnaryPointwise, Move
            for(@chunk = 0; @chunk < (@columns + 4095)/4096; @chunk += 1)
              Move x6
              for(@i = 0; @i < 8; @i += 1) unroll
                Move x3
                %row_3:[8].RF <- Fused{%0 + %1 + %2}<<<#cta:[], #one:[]>>>(%wide_7:[8].RF, %wide_8:[8].RF, %wide_9:[8].RF)
                  BinaryPointwise x2, Move
                Move x3
                %result:[8].RF <- Fused{silu((%0 - %4) * %5 * %1 + %2) * %3}<<<#cta:[], #one:[]>>>(%row_3:[8].RF, %wide_10:[8].RF, %wide_11:[8].RF, %wide_12:[8].RF, %mean:[].RF, %statistic:[1].RF)
                  BinaryPointwise x5, UnaryPointwise, Move
                Move x2
    "#]].assert_eq(&tree("layer normalisation, read again"));
    expect![[r#"
        kernel scan sm_80
        %y:[@N0, @N1].GL <- Scan<+, 1><<<#grid:[@N0], #block:[32]>>>(%x:[@N0, @N1].GL)
          %y_row_2:[1, @N1].GL <- Scan<+, 1><<<#cta:[], #block:[32]>>>(%x_row_2:[1, @N1].GL)
            Init
            for(@chunk = 0; @chunk < (@N1 + 31)/32; @chunk += 1)
              carry %carry:[].RF = Fused{fold<+>(slice(%0, 1, 0, min(@N1, 32*@chunk)), 1)}<<<#cta:[], #one:[]>>>(%x_row_2:[1, @N1].GL)
              carry %y_row_2:[1, @N1].GL as Fused{slice(%0, 1, 0, min(@N1, 32*@chunk))} = Fused{slice(scan<+, 1>(%0), 1, 0, min(@N1, 32*@chunk))}<<<#cta:[], #block:[32]>>>(%x_row_2:[1, @N1].GL)
              Init, Move x3
              %total:[].RF <- Scan<+, 0><<<#cta:[], #block:[32]>>>(%total:[].RF)
                Move x11, Sync x6, BinaryPointwise x5
              Init, Move x3, BinaryPointwise x3, Sync
    "#]]
    .assert_eq(&tree("scan"));
}
