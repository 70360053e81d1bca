//! Gated matmuls, by each template of matmuls: right within the bound that their arithmetic implies, clean in any order of
//! warps, and their levels say that they are two matmuls of one operand.

use expect_test::expect;
use graphene_ir::arch::Arch;
use graphene_ir::atom::cut_to_tf32;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Kernel, Unary};
use graphene_ir::template::epilogue::{Epilogue, Span};
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::multistage::{By, Multistage};
use graphene_ir::tensor::Scalar;

use crate::products::{Sizes, check_product};
use crate::support::check_text;

/// silu(A·B + bias) * (A·B_2) + R, and its gate alone in single precision.
fn with_operands() -> MatMul {
    let [gate, bias, residual, value] = [0, 1, 2, 3].map(Function::input);
    let gate = (gate + bias).unary(Unary::Silu);
    let function = Function::all([gate.clone() * value + residual, gate]);
    let mut epilogue = Epilogue::new(function, [Span::Row, Span::Whole]);
    epilogue.outputs[1] = Some(Scalar::F32);
    MatMul { epilogue, ..MatMul::gated(Unary::Silu) }
}

/// All that this file tries; each with sizes, and in how many random orders.
fn matmuls() -> Vec<(MatMul, Edges, Sizes, u64)> {
    let swiglu = || MatMul::gated(Unary::Silu);
    let odd = Sizes::of([67, 71, 45], 2);
    let mut rows = vec![
        (swiglu(), Edges::Bulk, Sizes::of([64, 64, 64], 1), 1),
        (swiglu(), Edges::Bulk, Sizes::of([72, 200, 136], 2), 1),
        (swiglu(), Edges::Bulk, Sizes::of([1, 8, 16], 1), 1),
        (swiglu(), Edges::Bulk, Sizes::of([40, 72, 0], 1), 0),
        (MatMul::gated(Unary::Gelu), Edges::Bulk, Sizes::of([72, 72, 72], 1), 0),
        (MatMul { scalar: Scalar::Bf16, ..swiglu() }, Edges::Bulk, Sizes::of([72, 72, 72], 1), 0),
        (swiglu(), Edges::Moves, odd, 1),
        (MatMul { results: Edges::Moves, ..swiglu() }, Edges::Bulk, Sizes::of([40, 37, 72], 1), 1),
        (with_operands(), Edges::Bulk, Sizes::of([72, 136, 72], 1), 1),
        (with_operands(), Edges::Moves, odd, 0),
        (
            MatMul { batched: true, ..with_operands() },
            Edges::Bulk,
            Sizes { batch: 2, ..Sizes::of([40, 72, 72], 1) },
            0,
        ),
    ];
    for (a_transposed, b_transposed) in [(false, true), (true, false), (true, true)] {
        let across = MatMul { a_transposed, b_transposed, ..swiglu() };
        rows.push((across.clone(), Edges::Bulk, Sizes::of([136, 136, 72], 1), 1));
        rows.push((across, Edges::Moves, odd, 0));
    }
    rows
}

fn check(name: &str, matmul: &MatMul, kernel: &Kernel, sizes: Sizes, orders: u64) {
    check_text(name, kernel);
    let single = matmul.scalar == Scalar::F32;
    let seen = |x| match kernel.name.as_str() {
        "gemm" if single => cut_to_tf32(x),
        "mma" if single => Unary::Tf32.value(x),
        _ => x,
    };
    let outcome = check_product(name, matmul, kernel, sizes, orders, seen);
    assert_eq!(outcome.costs.total().conflicts, 0, "{name} {sizes:?}");
}

/// Tiles whose sums are a consumer's own; blocks of two, consumers that ping-pong, parts of K.
#[test]
fn warpgroups_gate() {
    let small = Gemm { columns: 128, stages: 2, consumers: 1, raster: 2, ..Gemm::default() };
    for (matmul, edges, sizes, orders) in matmuls() {
        let gemm = Gemm { matmul, edges, ..small.clone() };
        check(&format!("{gemm:?}"), &gemm.matmul, &gemm.kernel().unwrap(), sizes, orders);
        if !gemm.matmul.a_transposed && !gemm.matmul.b_transposed {
            let matmul = MatMul { scalar: Scalar::F32, ..gemm.matmul.clone() };
            let gemm = Gemm { matmul, ..gemm };
            check(&format!("{gemm:?}"), &gemm.matmul, &gemm.kernel().unwrap(), sizes, 0);
        }
    }
    let matmul = MatMul::gated(Unary::Silu);
    let small = Gemm { matmul: matmul.clone(), ..small };
    let across = Gemm { matmul: MatMul { b_transposed: true, ..matmul }, ..small.clone() };
    let operands = Gemm { matmul: with_operands(), ..small.clone() };
    let ahead = |of: &Gemm| Gemm { weights: true, prefetch: true, ..of.clone() };
    let ping_pong = |of: &Gemm| Gemm { ping_pong: true, consumers: 2, ..of.clone() };
    let several = Sizes::of([136, 136, 136], 2);
    for (gemm, sizes, orders) in [
        (Gemm { columns: 256, consumers: 2, ..small.clone() }, several, 1),
        (Gemm { columns: 256, cluster: 2, ..small.clone() }, several, 1),
        (Gemm { cluster: 2, ..across.clone() }, several, 1),
        (Gemm { strips: 2, ..ping_pong(&small) }, Sizes::of([264, 136, 136], 1), 1),
        (ping_pong(&operands), several, 1),
        (Gemm { strips: 2, ..operands.clone() }, several, 0),
        (ahead(&small), several, 1),
        (ahead(&across), several, 1),
        (Gemm { split: 2, ..ahead(&small) }, Sizes::of([72, 72, 136], 4), 1),
        (Gemm { split: 2, ..operands }, Sizes::of([72, 72, 136], 4), 0),
    ] {
        check(&format!("{gemm:?}"), &gemm.matmul, &gemm.kernel().unwrap(), sizes, orders);
    }
}

#[test]
fn warps_and_threads_gate() {
    let small = Multistage { tile: [32, 128], warps: 2, raster: 2, ..Multistage::mma() };
    let part = By::Threads([4, 8]);
    let simt = Multistage { tile: [32, 64], by: part, depth: 8, ..small.clone() };
    let split = Multistage { split: 2, arch: Arch::Sm90a, ..simt.clone() };
    for (matmul, edges, sizes, orders) in matmuls() {
        let single = MatMul { scalar: Scalar::F32, ..matmul.clone() };
        let with = |of: &Multistage, matmul| Multistage { matmul, edges, ..of.clone() };
        for (template, orders) in [
            (with(&small, matmul.clone()), orders),
            (with(&small, single.clone()), 0),
            (with(&simt, single.clone()), orders),
            (with(&split, single), 0),
        ] {
            let (name, kernel) = (format!("{template:?}"), template.kernel().unwrap());
            check(&name, &template.matmul, &kernel, sizes, orders);
        }
    }
    let matmul = MatMul::gated(Unary::Silu);
    for template in [
        Multistage { matmul: matmul.clone(), ..Multistage::mma() },
        Multistage { matmul: matmul.clone(), tile: [16, 128], ..Multistage::mma() },
    ] {
        let (name, kernel) = (format!("{template:?}"), template.kernel().unwrap());
        check(&name, &template.matmul, &kernel, Sizes::of([136, 136, 72], 1), 0);
    }
    for refused in [
        Multistage { matmul: MatMul { terms: 2, ..matmul.clone() }, ..small.clone() },
        Multistage { matmul: matmul.clone(), tile: [32, 32], warps: 4, ..small },
    ] {
        assert!(refused.kernel().is_err(), "{refused:?}");
    }
    assert!(Gemm { matmul, columns: 192, ..Gemm::default() }.kernel().is_err());
}

#[test]
fn a_gated_matmul_is_a_tree() {
    let matmul = MatMul::gated(Unary::Silu);
    let gemm = Gemm { matmul: matmul.clone(), ..Gemm::default() };
    expect![[r#"
        kernel gemm sm_90a
        %C:[@M, @N].GL <- Fused{silu(matmul(%0, %1)) * matmul(%0, %2)}<<<#grid:[@blocks], #block:[384]>>>(%A:[@M, @K].GL, %B:[@K, @N].GL, %B_2:[@K, @N].GL)
          Init x2, Fence, Sync
          role #warpgroups[0..2]
            Registers
            for(@t = @first; @t < ((@M + 127)/128)*((@N + 127)/128); @t += @blocks)
              %C_tile:[64, 128].GL <- Fused{silu(matmul(%0, %1)) * matmul(%0, %2)}<<<#cta:[], #own:[128]>>>(%A_tile:[64, @K].GL, %B_tile:[@K, 128].GL, %B_tile_2:[@K, 128].GL)
                %of_matrix:[2, 16].[2].RF, %of_matrix_2:[2, 16].[2].RF <- Fused{matmul(%0, %1), matmul(%0, %2)}<<<#cta:[], #own:[128]>>>(%A_tile:[64, @K].GL, %B_tile:[@K, 128].GL, %B_tile_2:[@K, 128].GL)
                  Init
                  for(@k = 0; @k < (@K + 63)/64; @k += 1)
                    Wait
                    %acc:[2, 32].[2].RF <- MatMul+=<<<#cta:[], #own:[128]>>>(%own_a:[64, 64].SH, %b:[64, 256].SH)
                      Fence, MatMul+=, Commit
                    WaitGroup, Arrive
                  WaitGroup, Arrive
                %C_tile_2:[64, 128].GL <- Fused{silu(%0) * %1}<<<#cta:[], #own:[128]>>>(%of_matrix_3:[2, 16].[2].RF, %of_matrix_4:[2, 16].[2].RF)
                  for(@panel = 0; @panel < 2; @panel += 1) unroll
                    WaitGroup, Sync
                    for(@strip = 0; @strip < 4; @strip += 1) unroll
                      %result:[2].RF <- Fused{silu(%0) * %1}<<<#cta:[], #one:[]>>>(%sums:[2].RF, %sums_2:[2].RF)
                        UnaryPointwise, BinaryPointwise, Move
                      Move
                      %result_2:[2].RF <- Fused{silu(%0) * %1}<<<#cta:[], #one:[]>>>(%sums_3:[2].RF, %sums_4:[2].RF)
                        UnaryPointwise, BinaryPointwise, Move
                      Move
                      %result_3:[2].RF <- Fused{silu(%0) * %1}<<<#cta:[], #one:[]>>>(%sums_5:[2].RF, %sums_6:[2].RF)
                        UnaryPointwise, BinaryPointwise, Move
                      Move
                      %result_4:[2].RF <- Fused{silu(%0) * %1}<<<#cta:[], #one:[]>>>(%sums_7:[2].RF, %sums_8:[2].RF)
                        UnaryPointwise, BinaryPointwise, Move
                      Move x2
                    Fence, Sync, Move, Commit
            WaitGroup
          role #warpgroups[2]
            Registers
            role #block[256]
              for(@t = @first; @t < ((@M + 127)/128)*((@N + 127)/128); @t += @blocks)
                for(@k = 0; @k < (@K + 63)/64; @k += 1)
                  Wait, Arrive
                  %sA:[128, 64].SH <- Move<<<#cta:[], #one:[]>>>(%step:[128, 64].GL)
                    Move
                  %of_matrix_5:[64, 128].SH <- Move<<<#cta:[], #one:[]>>>(%step_2:[64, 128].GL)
                    Move
                  %of_matrix_6:[64, 128].SH <- Move<<<#cta:[], #one:[]>>>(%step_3:[64, 128].GL)
                    Move
    "#]].assert_eq(&gemm.kernel().unwrap().tree());
    let mma = Multistage { matmul, ..Multistage::mma() };
    expect![[r#"
        kernel mma sm_80
        %C:[@M, @N].GL <- Fused{silu(matmul(%0, %1)) * matmul(%0, %2)}<<<#grid:[((@N + 63)/64)*((@M + 127)/128)], #block:[128]>>>(%A:[@M, @K].GL, %B:[@K, @N].GL, %B_2:[@K, @N].GL)
          %C_tile:[128, 64].GL <- Fused{silu(matmul(%0, %1)) * matmul(%0, %2)}<<<#cta:[], #block:[128]>>>(%A_tile:[128, @K].GL, %B_tile:[@K, 64].GL, %B_tile_2:[@K, 64].GL)
            %of_matrix:[4, 4].[2].[2].RF, %of_matrix_2:[4, 4].[2].[2].RF <- Fused{matmul(%0, %1), matmul(%0, %2)}<<<#cta:[], #block:[128]>>>(%A_tile:[128, @K].GL, %B_tile:[@K, 64].GL, %B_tile_2:[@K, 64].GL)
              Init x4
              %stage:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile:[128, 32].GL)
                Move
              %of_matrix_3:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_2:[32, 64].GL)
                Move
              %of_matrix_4:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_3:[32, 64].GL)
                Move
              Commit
              %stage_4:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_4:[128, 32].GL)
                Move
              %of_matrix_5:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_5:[32, 64].GL)
                Move
              %of_matrix_6:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_6:[32, 64].GL)
                Move
              Commit
              %stage_7:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_7:[128, 32].GL)
                Move
              %of_matrix_7:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_8:[32, 64].GL)
                Move
              %of_matrix_8:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_9:[32, 64].GL)
                Move
              Commit
              for(@k = 0; @k < (@K + 31)/32; @k += 1)
                WaitGroup, Sync
                %stage_10:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_10:[128, 32].GL)
                  Move
                %of_matrix_9:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_11:[32, 64].GL)
                  Move
                %of_matrix_10:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_12:[32, 64].GL)
                  Move
                Commit
                %acc:[4, 8].[2].[2].RF <- MatMul+=<<<#cta:[], #block:[128]>>>(%a:[128, 32].SH, %b:[32, 128].SH)
                  Move x2, MatMul+= x2
            %C_tile:[128, 64].GL <- Fused{silu(%0) * %1}<<<#cta:[], #block:[128]>>>(%of_matrix:[4, 4].[2].[2].RF, %of_matrix_2:[4, 4].[2].[2].RF)
              for(@some = 0; @some < 1; @some += 1) unroll
                for(@j = 0; @j < 4; @j += 1) unroll
                  for(@i = 0; @i < 4; @i += 1) unroll
                    %result:[2].RF <- Fused{silu(%0) * %1}<<<#cta:[], #one:[]>>>(%pair_4:[2].RF, %pair_3:[2].RF)
                      UnaryPointwise, BinaryPointwise, Move
                    Move x2
                    %result_2:[2].RF <- Fused{silu(%0) * %1}<<<#cta:[], #one:[]>>>(%pair_6:[2].RF, %pair_5:[2].RF)
                      UnaryPointwise, BinaryPointwise, Move
                    Move x2
    "#]].assert_eq(&mma.kernel().unwrap().tree());
}
