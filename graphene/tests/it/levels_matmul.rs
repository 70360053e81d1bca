//! Kernels of matmuls are trees of typed specs: each level says what is computed there, of operands that its reader knows,
//! down to instructions; and levels cost nothing.

use expect_test::expect;
use graphene_ir::emit::emit;
use graphene_ir::kernel::{Kernel, Kind, Spec, Stmt, Unary};
use graphene_ir::schedule::dependent;
use graphene_ir::template::conv::{Conv, Convolution};
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::fmha::Fmha;
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::MatMul;
use graphene_ir::template::mlp::{Layer, Mlp};
use graphene_ir::template::multistage::Multistage;
use graphene_ir::tensor::Scalar;

use crate::{conv, fmha, gemm, mlp, mma, recurrent, simt};

/// Statements without levels, but for what single threads compute, whose registers have a scope in C.
fn flat(kernel: &Kernel, stmts: &[Stmt]) -> Vec<Stmt> {
    let mut all = Vec::new();
    for stmt in stmts {
        let mut stmt = stmt.clone();
        match &mut stmt {
            Stmt::Spec(Spec { body: Some(body), threads, .. }) => {
                *body = flat(kernel, body);
                if !kernel.threads(*threads).view.size().is(1) {
                    all.append(body);
                    continue;
                }
            }
            Stmt::For(of) => {
                of.carry.clear();
                of.body = flat(kernel, &of.body);
            }
            Stmt::If(_, body) | Stmt::Role(_, _, _, body) => *body = flat(kernel, body),
            _ => {}
        }
        all.push(stmt);
    }
    all
}

/// The CUDA text without comments.
fn code(kernel: &Kernel) -> String {
    let source = emit(kernel).unwrap().source;
    let lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Every spec with a body says what it computes, and none of them is to be seen in CUDA.
fn check_levels(name: &str, kernel: &Kernel) {
    check_bodies(name, kernel, vec![&kernel.spec]);
}

/// Likewise of these specs and those within the kernel's.
fn check_bodies<'k>(name: &str, kernel: &'k Kernel, mut untyped: Vec<&'k Spec>) {
    kernel.each_stmt(&mut |stmt| {
        if let Stmt::Spec(spec @ Spec { body: Some(_), .. }) = stmt {
            untyped.push(spec);
        }
    });
    untyped.retain(|spec| spec.kind == Kind::Steps);
    assert!(untyped.is_empty(), "{name}: {untyped:?}");
    let mut bare = kernel.clone();
    bare.spec.body = kernel.spec.body.as_deref().map(|body| flat(kernel, body));
    assert_eq!(code(kernel), code(&bare), "{name}");
    assert_eq!(code(&dependent(kernel.clone())), code(&dependent(bare)), "{name}");
}

#[test]
fn every_level_is_typed_and_costs_nothing() {
    let named = |name: String, kernel: graphene_ir::Result<Kernel>| (name, kernel.unwrap());
    let gemms =
        gemm::rows().into_iter().map(|(gemm, ..)| named(format!("{gemm:?}"), gemm.kernel()));
    let mmas = mma::rows().into_iter().map(|(mma, ..)| named(format!("{mma:?}"), mma.kernel()));
    let simts =
        simt::rows().into_iter().map(|(simt, ..)| named(format!("{simt:?}"), simt.kernel()));
    let convs =
        conv::rows().into_iter().map(|(conv, ..)| named(format!("{conv:?}"), conv.kernel()));
    let last = conv::channels_last().into_iter();
    let last = last.map(|(conv, _)| named(format!("{conv:?}"), conv.kernel()));
    let sliding = conv::sliding().into_iter();
    let sliding = sliding.map(|(conv, _)| named(format!("{conv:?}"), conv.kernel()));
    let attention = fmha::rows().into_iter().flat_map(|(fmha, ..)| {
        let name = format!("{fmha:?}");
        [named(name.clone(), fmha.kernel()), named(name, fmha.ampere())]
    });
    let all =
        gemms.chain(mmas).chain(simts).chain(convs).chain(last).chain(sliding).chain(attention);
    all.for_each(|(name, kernel)| check_levels(&name, &kernel));
    for mlp in [mlp::results(), mlp::skipped()] {
        check_levels(&format!("{mlp:?}"), &mlp.kernel().unwrap());
    }
    for (mlp, by, _) in mlp::by_warpgroups() {
        check_levels(&format!("{mlp:?} {by:?}"), &mlp.by_warpgroups(by).unwrap());
    }
}

/// No expression says what a recurrent layer computes in all of its steps; of each step one does.
#[test]
fn every_level_of_a_recurrent_layer_is_typed() {
    for (layer, _) in recurrent::rows() {
        let kernel = layer.kernel().unwrap();
        assert_eq!(kernel.spec.kind, Kind::Steps);
        check_bodies(&format!("{layer:?}"), &kernel, Vec::new());
    }
}

fn layer() -> MatMul {
    let epilogue = Epilogue::layer(true, Some(Unary::Gelu), false);
    MatMul { epilogue, ..MatMul::default() }
}

#[test]
fn a_gemm_is_a_tree() {
    let kernel = Gemm { matmul: layer(), ..Gemm::default() }.kernel().unwrap();
    expect![[r#"
        kernel gemm sm_90a
        %C:[@M, @N].GL <- Fused{gelu(matmul(%0, %1) + %2)}<<<#grid:[@blocks], #block:[384]>>>(%A:[@M, @K].GL, %B:[@K, @N].GL, %bias:[@N].GL)
          Init x2, Fence, Sync
          role #warpgroups[0..2]
            Registers
            for(@t = @first; @t < ((@M + 127)/128)*((@N + 255)/256); @t += @blocks)
              %C_tile:[64, 256].GL <- Fused{gelu(matmul(%0, %1) + %2)}<<<#cta:[], #own:[128]>>>(%A_tile:[64, @K].GL, %B_tile:[@K, 256].GL, %bias_tile:[256].GL)
                Move, Commit
                %acc:[2, 32].[2].RF <- MatMul<<<#cta:[], #own:[128]>>>(%A_tile:[64, @K].GL, %B_tile:[@K, 256].GL)
                  Init
                  for(@k = 0; @k < (@K + 63)/64; @k += 1)
                    Wait
                    %acc:[2, 32].[2].RF <- MatMul+=<<<#cta:[], #own:[128]>>>(%own_a:[64, 64].SH, %b:[64, 256].SH)
                      Fence, MatMul+=, Commit
                    WaitGroup, Arrive
                  WaitGroup, Arrive
                WaitGroup, Sync
                %C_tile_2:[64, 256].GL <- Fused{gelu(%0 + %1)}<<<#cta:[], #own:[128]>>>(%strip:[2, 32].[2].RF, %bias_tile_2:[256].GL)
                  for(@panel = 0; @panel < 4; @panel += 1) unroll
                    WaitGroup, Sync
                    for(@strip = 0; @strip < 4; @strip += 1) unroll
                      Move x2
                      %result:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%sums:[2].RF, %wide:[2].RF)
                        BinaryPointwise, UnaryPointwise, Move
                      Move
                      %result_2:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%sums_2:[2].RF, %wide:[2].RF)
                        BinaryPointwise, UnaryPointwise, Move
                      Move x3
                      %result_3:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%sums_3:[2].RF, %wide_2:[2].RF)
                        BinaryPointwise, UnaryPointwise, Move
                      Move
                      %result_4:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%sums_4:[2].RF, %wide_2:[2].RF)
                        BinaryPointwise, UnaryPointwise, Move
                      Move x2
                    Fence, Sync, Move, Commit
            WaitGroup
          role #warpgroups[2]
            Registers
            role #block[256]
              for(@t = @first; @t < ((@M + 127)/128)*((@N + 255)/256); @t += @blocks)
                for(@k = 0; @k < (@K + 63)/64; @k += 1)
                  Wait, Arrive
                  %sA:[128, 64].SH <- Move<<<#cta:[], #one:[]>>>(%step:[128, 64].GL)
                    Move
                  %sB:[64, 256].SH <- Move<<<#cta:[], #one:[]>>>(%step_2:[64, 256].GL)
                    Move
    "#]].assert_eq(&kernel.tree());
    let kernel = Gemm { matmul: layer(), split: 2, cluster: 1, ..Gemm::default() };
    expect![[r#"
        kernel gemm sm_90a
        %C:[@M, @N].GL <- Fused{gelu(matmul(%0, %1) + %2)}<<<#grid:[@clusters].[2], #block:[384]>>>(%A:[@M, @K].GL, %B:[@K, @N].GL, %bias:[@N].GL)
          Init x3, Arrive, Fence x2, Sync
          role #warpgroups[0..2]
            Registers
            for(@t = @cluster; @t < min(@cluster + 1, ((@M + 127)/128)*((@N + 255)/256)); @t += @clusters)
              %C_tile:[64, 256].GL <- Fused{gelu(matmul(%0, %1) + %2)}<<<#together:[2], #own:[128]>>>(%A_tile:[64, @K].GL, %B_tile:[@K, 256].GL, %bias_tile:[256].GL)
                Move, Commit, Init
                for(@k = 0; @k < min(((@K + 63)/64 + 1)/2, max(0, (@K + 63)/64 - @rank*(((@K + 63)/64 + 1)/2))); @k += 1)
                  Wait
                  %acc:[2, 32].[2].RF <- MatMul+=<<<#cta:[], #own:[128]>>>(%own_a:[64, 64].SH, %b:[64, 256].SH)
                    Fence, MatMul+=, Commit
                  WaitGroup, Arrive
                WaitGroup x2, Arrive, Sync, Move x2, Wait, BinaryPointwise
                %C_tile_2:[16, 256].GL <- Fused{gelu(%0 + %1)}<<<#cta:[], #warp:[32]>>>(%strip:[2, 32].[2].RF, %bias_tile_2:[256].GL)
                  for(@panel = 0; @panel < 4; @panel += 1) unroll
                    for(@e = 0; @e < 8; @e += 1) unroll
                      Move x2
                      %result:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%sums_2:[2].RF, %wide:[2].RF)
                        BinaryPointwise, UnaryPointwise, Move
                      Move x2
                      %result_2:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%sums_3:[2].RF, %wide:[2].RF)
                        BinaryPointwise, UnaryPointwise, Move
                      Move x2
          role #warpgroups[2]
            Registers
            role #block[256]
              for(@t = @cluster; @t < min(@cluster + 1, ((@M + 127)/128)*((@N + 255)/256)); @t += @clusters)
                for(@k = @rank*(((@K + 63)/64 + 1)/2); @k < @rank*(((@K + 63)/64 + 1)/2) + min(((@K + 63)/64 + 1)/2, max(0, (@K + 63)/64 - @rank*(((@K + 63)/64 + 1)/2))); @k += 1)
                  Wait, Arrive
                  %sA:[128, 64].SH <- Move<<<#cta:[], #one:[]>>>(%step:[128, 64].GL)
                    Move
                  %sB:[64, 256].SH <- Move<<<#cta:[], #one:[]>>>(%step_2:[64, 256].GL)
                    Move
          Sync
    "#]].assert_eq(&kernel.kernel().unwrap().tree());
}

#[test]
fn matmuls_by_warps_and_threads_are_trees() {
    expect![[r#"
        kernel mma sm_80
        %C:[@M, @N].GL <- Fused{gelu(matmul(%0, %1) + %2)}<<<#grid:[((@M + 127)/128)*((@N + 127)/128)], #block:[128]>>>(%A:[@M, @K].GL, %B:[@K, @N].GL, %bias:[@N].GL)
          %C_tile:[128, 128].GL <- Fused{gelu(matmul(%0, %1) + %2)}<<<#cta:[], #block:[128]>>>(%A_tile:[128, @K].GL, %B_tile:[@K, 128].GL, %bias_tile:[128].GL)
            %acc:[4, 8].[2].[2].RF <- MatMul<<<#cta:[], #block:[128]>>>(%A_tile:[128, @K].GL, %B_tile:[@K, 128].GL)
              Init x4
              %stage:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile:[128, 32].GL)
                Move
              %stage_2:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_2:[32, 128].GL)
                Move
              Commit
              %stage_3:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_3:[128, 32].GL)
                Move
              %stage_4:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_4:[32, 128].GL)
                Move
              Commit
              %stage_5:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_5:[128, 32].GL)
                Move
              %stage_6:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_6:[32, 128].GL)
                Move
              Commit
              for(@k = 0; @k < (@K + 31)/32; @k += 1)
                WaitGroup, Sync
                %stage_7:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_7:[128, 32].GL)
                  Move
                %stage_8:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_8:[32, 128].GL)
                  Move
                Commit
                %acc:[4, 8].[2].[2].RF <- MatMul+=<<<#cta:[], #block:[128]>>>(%a:[128, 32].SH, %b:[32, 128].SH)
                  Move x2, MatMul+= x2
            %C_tile:[128, 128].GL <- Fused{gelu(%0 + %1)}<<<#cta:[], #block:[128]>>>(%acc:[4, 8].[2].[2].RF, %bias_tile:[128].GL)
              for(@j = 0; @j < 8; @j += 1) unroll
                Init, Move x2
                for(@i = 0; @i < 4; @i += 1) unroll
                  %result:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one_2:[]>>>(%pair_3:[2].RF, %wide:[2].RF)
                    BinaryPointwise, UnaryPointwise, Move
                  Move x2
                  %result_2:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one_2:[]>>>(%pair_4:[2].RF, %wide:[2].RF)
                    BinaryPointwise, UnaryPointwise, Move
                  Move x2
    "#]].assert_eq(&Multistage { matmul: layer(), ..Multistage::mma() }.kernel().unwrap().tree());
    let matmul = MatMul { scalar: Scalar::F32, ..layer() };
    expect![[r#"
        kernel simt sm_80
        %C:[@M, @N].GL <- Fused{gelu(matmul(%0, %1) + %2)}<<<#grid:[((@N + 63)/64)*((@M + 127)/128)], #block:[128]>>>(%A:[@M, @K].GL, %B:[@K, @N].GL, %bias:[@N].GL)
          %C_tile:[128, 64].GL <- Fused{gelu(matmul(%0, %1) + %2)}<<<#cta:[], #block:[128]>>>(%A_tile:[128, @K].GL, %B_tile:[@K, 64].GL, %bias_tile:[64].GL)
            %acc:[8, 8].RF <- MatMul<<<#cta:[], #block:[128]>>>(%A_tile:[128, @K].GL, %B_tile:[@K, 64].GL)
              Init
              %stage:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile:[128, 32].GL)
                Move
              %stage_2:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_2:[32, 64].GL)
                Move
              Commit
              %stage_3:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_3:[128, 32].GL)
                Move
              %stage_4:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_4:[32, 64].GL)
                Move
              Commit
              for(@k = 0; @k < (@K + 31)/32; @k += 1)
                WaitGroup, Sync
                %stage_5:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_5:[128, 32].GL)
                  Move
                %stage_6:[32, 64].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_6:[32, 64].GL)
                  Move
                Commit
                %acc:[8, 8].RF <- MatMul+=<<<#cta:[], #block:[128]>>>(%a:[128, 32].SH, %b:[32, 64].SH)
                  Move x2, MatMul+= x2
            %C_tile:[128, 64].GL <- Fused{gelu(%0 + %1)}<<<#cta:[], #block:[128]>>>(%acc:[8, 8].RF, %bias_tile:[64].GL)
              for(@j = 0; @j < 8; @j += 1) unroll
                Init, Move
                for(@i = 0; @i < 8; @i += 1) unroll
                  %result:[1].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one_2:[]>>>(%sums_2:[1].RF, %raw:[1].RF)
                    BinaryPointwise, UnaryPointwise, Move
                  Move
    "#]].assert_eq(&Multistage { matmul, ..Multistage::simt() }.kernel().unwrap().tree());
}

#[test]
fn attention_is_a_tree() {
    let fmha = Fmha { causal: true, ..Fmha::default() };
    expect![[r#"
        kernel fmha sm_90a
        %O:[@batch, @heads, @queries, 64].GL <- Fused{t0 = matmul(split(%0, 1, @heads/max(1, @kv_heads)), dims(%1, 0, 1, _, 2, 3)) * 0.125; t1 = select(less(position(t0, 3) + index(0), position(t0, 4)), -inf, t0); merge(matmul(exp(t1 - fold<softmax.max>(t1, 4)) / fold<softmax.sum>(t1, 4), dims(%2, 0, 1, _, 2, 3)), 1)}<<<#grid:[@blocks], #block:[384]>>>(%Q:[@batch, @heads, @queries, 64].GL, %K:[@batch, @kv_heads, 64, @keys].GL, %V:[@batch, @kv_heads, @keys, 64].GL)
          Init x7, Fence x3, Sync
          role #warpgroups[0..2]
            Registers, Arrive
            for(@round = 0; @round < @rounds; @round += 1)
              %o_tile:[1, 1, 64, 64].GL <- Fused{t0 = matmul(%0, %1) * 0.125; t1 = select(less(position(t0, 2) + index(64*@group + 128*@m), position(t0, 3)), -inf, t0); matmul(exp(t1 - fold<softmax.max>(t1, 3)) / fold<softmax.sum>(t1, 3), %2)}<<<#cta:[], #own:[128]>>>(%q_tile:[1, 1, 64, 64].GL, %k_tile:[1, 1, 64, @keys].GL, %v_tile:[1, 1, @keys, 64].GL)
                Init x3, Wait x3
                %scores:[2, 16].[2].RF <- MatMul<<<#cta:[], #own:[128]>>>(%own_q:[64, 64].SH, %b:[64, 128].SH)
                  Fence, MatMul, MatMul+=, Commit
                Arrive x3, WaitGroup, Init x2
                %scores:[2, 16].[2].RF, %largest:[2].RF, %factors:[2].RF, %sums:[2, 2].RF <- Fused{t0 = max(%1, fold<max>(%0, 1)); t1 = t0 * 0.18033688011112042; t2 = exp2(%0 * 0.18033688011112042 - t1); t3 = exp2(%1 * 0.18033688011112042 - t1); t2, t0, t3, %2 * t3 + dims(fold<+>(split(t2, 1, 8), 1), 0, 2)}<<<#cta:[], #own:[128]>>>(%scores:[2, 16].[2].RF, %largest:[2].RF, %sums:[2, 2].RF)
                  Move x3, Reduction x5, Init, Shfl x2, BinaryPointwise x4, UnaryPointwise x3, MatMul+=
                %weights:[2, 16].[2].RF <- Move<<<#cta:[], #own:[128]>>>(%scores:[2, 16].[2].RF)
                  Move
                for(@step = 1; @step < @steps; @step += 1)
                  carry %largest:[2].RF, %sums:[2, 2].RF, %acc:[2, 8].[2].RF, %factors:[2].RF, %weights:[2, 16].[2].RF as Fused{t0 = fold<+>(%1, 1); max(max(%0 * 0.125, -1e30) + log(t0), -1e30), %2 * %3 / t0, slice(%4, 1, 0, min(128, @keys - min(@keys, max(0, 128*@steps - 128*@step)))) / t0} = Fused{t0 = matmul(%0, slice(%1, 3, min(@keys, max(0, 128*@steps - 128*@step)), @keys - min(@keys, max(0, 128*@steps - 128*@step)))) * 0.125; t1 = select(less(position(t0, 2) + index(64*@group + 128*@m - min(@keys, max(0, 128*@steps - 128*@step))), position(t0, 3)), -inf, t0); t2 = fold<max>(t1, 3); t3 = exp(t1 - t2); t4 = fold<+>(t3, 3); max(max(t2, -1e30) + log(t4), -1e30), matmul(slice(t3, 3, min(128, @keys - min(@keys, max(0, 128*@steps - 128*@step))), @keys - min(128, @keys - min(@keys, max(0, 128*@steps - 128*@step))) - min(@keys, max(0, 128*@steps - 128*@step))), slice(slice(%2, 2, min(@keys, max(0, 128*@steps - 128*@step)), @keys - min(@keys, max(0, 128*@steps - 128*@step))), 2, min(128, @keys - min(@keys, max(0, 128*@steps - 128*@step))), @keys - min(128, @keys - min(@keys, max(0, 128*@steps - 128*@step))) - min(@keys, max(0, 128*@steps - 128*@step)))) / t4, slice(t3, 3, 0, min(128, @keys - min(@keys, max(0, 128*@steps - 128*@step)))) / t4}<<<#cta:[], #own:[128]>>>(%q_tile:[1, 1, 64, 64].GL, %k_tile:[1, 1, 64, @keys].GL, %v_tile:[1, 1, @keys, 64].GL)
                  Wait x2
                  %scores:[2, 16].[2].RF <- MatMul<<<#cta:[], #own:[128]>>>(%own_q_2:[64, 64].SH, %b_3:[64, 128].SH)
                    Fence, MatMul, MatMul+=, Commit
                  Wait, BinaryPointwise
                  %acc:[2, 8].[2].RF <- MatMul+=<<<#cta:[], #own:[128]>>>(%weights:[2, 16].[2].RF, %b_5:[128, 64].SH)
                    Fence, MatMul+=, Commit
                  Arrive x3, WaitGroup, Init
                  %scores:[2, 16].[2].RF, %largest:[2].RF, %factors:[2].RF, %sums:[2, 2].RF <- Fused{t0 = max(%1, fold<max>(%0, 1)); t1 = t0 * 0.18033688011112042; t2 = exp2(%0 * 0.18033688011112042 - t1); t3 = exp2(%1 * 0.18033688011112042 - t1); t2, t0, t3, %2 * t3 + dims(fold<+>(split(t2, 1, 8), 1), 0, 2)}<<<#cta:[], #own:[128]>>>(%scores:[2, 16].[2].RF, %largest:[2].RF, %sums:[2, 2].RF)
                    Move x3, Reduction x5, Init, Shfl x2, BinaryPointwise x4, UnaryPointwise x3, MatMul+=
                  Wait, WaitGroup, Arrive
                  %weights:[2, 16].[2].RF <- Move<<<#cta:[], #own:[128]>>>(%scores:[2, 16].[2].RF)
                    Move
                Wait, BinaryPointwise
                %acc:[2, 8].[2].RF <- MatMul+=<<<#cta:[], #own:[128]>>>(%weights:[2, 16].[2].RF, %b_7:[128, 64].SH)
                  Fence, MatMul+=, Commit
                WaitGroup, Arrive, Reduction x3, Shfl x2, UnaryPointwise, BinaryPointwise
                %o_tile_2:[1, 1, 64, 64].GL <- Move<<<#cta:[], #own:[128]>>>(%acc:[2, 8].[2].RF)
                  WaitGroup, Sync x2, Move x6, Fence, Commit
            WaitGroup
          role #warpgroups[2]
            Registers
            role #block[256]
              for(@round = 0; @round < @rounds; @round += 1)
                Wait, Arrive
                %sQ:[128, 64].SH <- Move<<<#cta:[], #one:[]>>>(%q_tile_2:[1, 1, 128, 64].GL)
                  Move
                Wait, Arrive
                %stage:[64, 128].SH <- Move<<<#cta:[], #one:[]>>>(%k_tile_2:[1, 1, 64, 128].GL)
                  Move
                for(@step = 1; @step < @steps; @step += 1)
                  Wait, Arrive
                  %stage_2:[64, 128].SH <- Move<<<#cta:[], #one:[]>>>(%k_tile_3:[1, 1, 64, 128].GL)
                    Move
                  Wait, Arrive
                  %stage_3:[128, 64].SH <- Move<<<#cta:[], #one:[]>>>(%v_tile_2:[1, 1, 128, 64].GL)
                    Move
                Wait, Arrive
                %stage_4:[128, 64].SH <- Move<<<#cta:[], #one:[]>>>(%v_tile_3:[1, 1, 128, 64].GL)
                  Move
    "#]].assert_eq(&fmha.kernel().unwrap().tree());
    expect![[r#"
        kernel fmha sm_80
        %O:[@batch, @heads, @queries, 64].GL <- Fused{t0 = matmul(split(%0, 1, @heads/max(1, @kv_heads)), dims(%1, 0, 1, _, 2, 3)) * 0.125; t1 = select(less(position(t0, 3) + index(0), position(t0, 4)), -inf, t0); merge(matmul(exp(t1 - fold<softmax.max>(t1, 4)) / fold<softmax.sum>(t1, 4), dims(%2, 0, 1, _, 2, 3)), 1)}<<<#grid:[@blocks], #block:[256]>>>(%Q:[@batch, @heads, @queries, 64].GL, %K:[@batch, @kv_heads, 64, @keys].GL, %V:[@batch, @kv_heads, @keys, 64].GL)
          for(@round = 0; @round < @rounds; @round += 1)
            %o_tile:[1, 1, 128, 64].GL <- Fused{t0 = matmul(%0, %1) * 0.125; t1 = select(less(position(t0, 2) + index(128*@m), position(t0, 3)), -inf, t0); matmul(exp(t1 - fold<softmax.max>(t1, 3)) / fold<softmax.sum>(t1, 3), %2)}<<<#cta:[], #block:[256]>>>(%q_tile:[1, 1, 128, 64].GL, %k_tile:[1, 1, 64, @keys].GL, %v_tile:[1, 1, @keys, 64].GL)
              Sync
              %stage:[128, 64].SH <- Move<<<#cta:[], #block:[256]>>>(%q_tile_2:[1, 1, 128, 64].GL)
                Move
              %stage_2:[128, 64].SH <- Fused{dims(%0, 0, 1, 3, 2)}<<<#cta:[], #block:[256]>>>(%k_tile_2:[1, 1, 64, 128].GL)
                Move
              Commit
              %stage_3:[128, 64].SH <- Move<<<#cta:[], #block:[256]>>>(%v_tile_2:[1, 1, 128, 64].GL)
                Move
              Commit, Init x3, WaitGroup, Sync
              %queries:[2, 8].[2].RF <- Move<<<#cta:[], #block:[256]>>>(%of_block:[128, 64].SH)
                Move
              for(@step = 0; @step < @steps; @step += 1)
                carry %largest:[2].RF, %sums:[2, 2].RF, %acc:[2, 8].[2].RF as Fused{t0 = fold<+>(%1, 1); max(max(%0 * 0.125, -1e30) + log(t0), -1e30), %2 / t0} = Fused{t0 = matmul(%0, slice(%1, 3, min(@keys, max(0, 128*@steps - 128*@step)), @keys - min(@keys, max(0, 128*@steps - 128*@step)))) * 0.125; t1 = select(less(position(t0, 2) + index(128*@m - min(@keys, max(0, 128*@steps - 128*@step))), position(t0, 3)), -inf, t0); t2 = fold<max>(t1, 3); t3 = exp(t1 - t2); t4 = fold<+>(t3, 3); max(max(t2, -1e30) + log(t4), -1e30), matmul(slice(t3, 3, 0, @keys - min(@keys, max(0, 128*@steps - 128*@step))), slice(slice(%2, 2, min(@keys, max(0, 128*@steps - 128*@step)), @keys - min(@keys, max(0, 128*@steps - 128*@step))), 2, 0, @keys - min(@keys, max(0, 128*@steps - 128*@step)))) / t4}<<<#cta:[], #block:[256]>>>(%q_tile:[1, 1, 128, 64].GL, %k_tile:[1, 1, 64, @keys].GL, %v_tile:[1, 1, @keys, 64].GL)
                WaitGroup, Sync
                %stage_4:[128, 64].SH <- Fused{dims(%0, 0, 1, 3, 2)}<<<#cta:[], #block:[256]>>>(%k_tile_3:[1, 1, 64, 128].GL)
                  Move
                Commit, Init
                %scores:[2, 16].[2].RF <- Fused{matmul(%0, dims(%1, 1, 0)) + old(0)}<<<#cta:[], #block:[256]>>>(%queries:[2, 8].[2].RF, %keys:[128, 64].SH)
                  Move, MatMul+=
                Init x2
                %scores:[2, 16].[2].RF, %largest:[2].RF, %factors:[2].RF, %sums:[2, 2].RF <- Fused{t0 = max(%1, fold<max>(%0, 1)); t1 = t0 * 0.18033688011112042; t2 = exp2(%0 * 0.18033688011112042 - t1); t3 = exp2(%1 * 0.18033688011112042 - t1); t2, t0, t3, %2 * t3 + dims(fold<+>(split(t2, 1, 8), 1), 0, 2)}<<<#cta:[], #block:[256]>>>(%scores:[2, 16].[2].RF, %largest:[2].RF, %sums:[2, 2].RF)
                  Move x3, Reduction x5, Init, Shfl x2, BinaryPointwise x4, UnaryPointwise x3, MatMul+=
                %weights:[2, 16].[2].RF <- Move<<<#cta:[], #block:[256]>>>(%scores:[2, 16].[2].RF)
                  Move
                WaitGroup, Sync
                %stage_5:[128, 64].SH <- Move<<<#cta:[], #block:[256]>>>(%v_tile_3:[1, 1, 128, 64].GL)
                  Move
                Commit, BinaryPointwise
                %acc:[2, 8].[2].RF <- Fused{matmul(%0, %1) + old(0)}<<<#cta:[], #block:[256]>>>(%weights:[2, 16].[2].RF, %values:[128, 64].SH)
                  Move, MatMul+=
              Reduction x3, Shfl x2, UnaryPointwise, BinaryPointwise
              %o_tile_2:[1, 1, 128, 64].GL <- Move<<<#cta:[], #block:[256]>>>(%acc:[2, 8].[2].RF)
                Move x2
    "#]].assert_eq(&fmha.ampere().unwrap().tree());
}

#[test]
fn a_convolution_is_a_tree() {
    let convolution = Convolution { group: 2, ..Convolution::default() };
    expect![[r#"
        kernel conv sm_80
        %Y:[2*@images, 32, @out0*@out1].GL <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); merge(dims(split(matmul(%1, merge(t0, 2)), 2, @out0*@out1), 2, 0, 1, 3), 0)}<<<#grid:[2*((@images*@out0*@out1 + 127)/128)], #block:[128]>>>(%x:[@images, 2, 32, @in0, @in1].GL, %w:[2, 32, 288].GL)
          Init x4
          %stage:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile:[1, 128, 32].GL)
            Move
          %words:[16].[2].RF <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); slice(slice(slice(merge(t0, 2), 0, @product, 1), 2, 128*@n, 128), 1, 0, 32)}<<<#cta:[], #block:[128]>>>(%x:[@images, 2, 32, @in0, @in1].GL)
            Init x2, Move x2
          %sX:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%words:[16].[2].RF)
            Move
          Commit
          %stage_3:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_2:[1, 128, 32].GL)
            Move
          %words:[16].[2].RF <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); slice(slice(slice(merge(t0, 2), 0, @product, 1), 2, 128*@n, 128), 1, 32, 32)}<<<#cta:[], #block:[128]>>>(%x:[@images, 2, 32, @in0, @in1].GL)
            Init x2, Move x2
          %sX:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%words:[16].[2].RF)
            Move
          Commit
          %stage_5:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_3:[1, 128, 32].GL)
            Move
          %words:[16].[2].RF <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); slice(slice(slice(merge(t0, 2), 0, @product, 1), 2, 128*@n, 128), 1, 64, 32)}<<<#cta:[], #block:[128]>>>(%x:[@images, 2, 32, @in0, @in1].GL)
            Init x2, Move x2
          %sX:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%words:[16].[2].RF)
            Move
          Commit
          for(@k = 0; @k < 9; @k += 1)
            WaitGroup, Sync
            %stage_7:[128, 32].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_4:[1, 128, 32].GL)
              Move
            %words:[16].[2].RF <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); slice(slice(slice(merge(t0, 2), 0, @product, 1), 2, 128*@n, 128), 1, 32*@step, 32)}<<<#cta:[], #block:[128]>>>(%x:[@images, 2, 32, @in0, @in1].GL)
              Init x2, Move x2
            %acc:[4, 8].[2].[2].RF <- MatMul+=<<<#cta:[], #block:[128]>>>(%a:[128, 32].SH, %b:[32, 128].SH)
              Move x2, MatMul+= x2
            %sX:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%words:[16].[2].RF)
              Move
            Commit
          Move x4
    "#]].assert_eq(&Conv { convolution, ..Conv::default() }.kernel().unwrap().tree());
}

#[test]
fn layers_are_a_tree() {
    let layers = vec![Layer { times: 2, ..Layer::default() }, Layer::default()];
    expect![[r#"
        kernel mlp sm_80
        %Y:[@M, 128].GL <- Fused{t0 = matmul(relu(matmul(%0, merge(slice(%1, 0, 0, 1), 0)) + slice(%2, 0, 0, 1)), merge(slice(%1, 0, 1, 1), 0)); relu(matmul(relu(t0 + slice(%2, 0, 1, 1)), merge(%3, 0)) + %4)}<<<#grid:[(@M + 63)/64], #block:[128]>>>(%X:[@M, 128].GL, %W:[2, 128, 128].GL, %bias:[2, 128].GL, %W_2:[1, 128, 128].GL, %bias_2:[1, 128].GL)
          %Y_tile:[64, 128].GL <- Fused{t0 = matmul(relu(matmul(%0, merge(slice(%1, 0, 0, 1), 0)) + slice(%2, 0, 0, 1)), merge(slice(%1, 0, 1, 1), 0)); relu(matmul(relu(t0 + slice(%2, 0, 1, 1)), merge(%3, 0)) + %4)}<<<#cta:[], #block:[128]>>>(%X_tile:[64, 128].GL, %W:[2, 128, 128].GL, %bias:[2, 128].GL, %W_2:[1, 128, 128].GL, %bias_2:[1, 128].GL)
            %sY_2:[64, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%rows:[64, 128].GL)
              Move
            %stage:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%tile:[1, 32, 128].GL)
              Move
            Commit
            %stage_2:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_2:[1, 32, 128].GL)
              Move
            Commit
            %stage_3:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_3:[1, 32, 128].GL)
              Move
            Commit
            %sY_layer_2:[64, 128].SH <- Fused{t0 = matmul(relu(matmul(%0, merge(slice(%1, 0, 0, 1), 0)) + slice(%2, 0, 0, 1)), merge(slice(%1, 0, 1, 1), 0)); relu(t0 + slice(%2, 0, 1, 1))}<<<#cta:[], #block:[128]>>>(%sY_layer:[64, 128].SH, %W:[2, 128, 128].GL, %bias:[2, 128].GL)
              Init x4
              for(@k = 0; @k < 8; @k += 1)
                WaitGroup, Sync
                %stage_4:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_4:[1, 32, 128].GL)
                  Move
                %stage_5:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_5:[1, 32, 128].GL)
                  Move
                Commit
                %acc:[2, 8].[2].[2].RF <- MatMul+=<<<#cta:[], #block:[128]>>>(%rows_part:[64, 32].SH, %b:[32, 128].SH)
                  Move x2, MatMul+= x2
                Sync
                for(@j = 0; @j < 8; @j += 1) unroll
                  Init, Move x2
                  for(@i = 0; @i < 2; @i += 1) unroll
                    %result:[2].RF <- Fused{relu(%0 + %1)}<<<#cta:[], #one_3:[]>>>(%pair_3:[2].RF, %wide:[2].RF)
                      BinaryPointwise, UnaryPointwise, Move
                    Move x2
                    %result_2:[2].RF <- Fused{relu(%0 + %1)}<<<#cta:[], #one_3:[]>>>(%pair_4:[2].RF, %wide:[2].RF)
                      BinaryPointwise, UnaryPointwise, Move
                    Move x2
                Init x4
            %Y_layer:[64, 128].GL <- Fused{relu(matmul(%0, merge(%1, 0)) + %2)}<<<#cta:[], #block:[128]>>>(%sY_layer_3:[64, 128].SH, %W_2:[1, 128, 128].GL, %bias_2:[1, 128].GL)
              %acc_2:[2, 8].[2].[2].RF <- Fused{matmul(%0, merge(%1, 0))}<<<#cta:[], #block:[128]>>>(%sY_layer_3:[64, 128].SH, %W_2:[1, 128, 128].GL)
                Init x4
                for(@k = 0; @k < 4; @k += 1)
                  WaitGroup, Sync
                  %stage_6:[32, 128].SH <- Move<<<#cta:[], #block:[128]>>>(%tile_8:[1, 32, 128].GL)
                    Move
                  Commit
                  %acc_2:[2, 8].[2].[2].RF <- MatMul+=<<<#cta:[], #block:[128]>>>(%rows_part_2:[64, 32].SH, %b_2:[32, 128].SH)
                    Move x2, MatMul+= x2
              %Y_layer:[64, 128].GL <- Fused{relu(%0 + %1)}<<<#cta:[], #block:[128]>>>(%acc_2:[2, 8].[2].[2].RF, %bias_2:[1, 128].GL)
                for(@j = 0; @j < 8; @j += 1) unroll
                  Init, Move x2
                  for(@i = 0; @i < 2; @i += 1) unroll
                    %result_3:[2].RF <- Fused{relu(%0 + %1)}<<<#cta:[], #one_4:[]>>>(%pair_9:[2].RF, %wide_2:[2].RF)
                      BinaryPointwise, UnaryPointwise, Move
                    Move x2
                    %result_4:[2].RF <- Fused{relu(%0 + %1)}<<<#cta:[], #one_4:[]>>>(%pair_10:[2].RF, %wide_2:[2].RF)
                      BinaryPointwise, UnaryPointwise, Move
                    Move x2
    "#]].assert_eq(&Mlp { layers, ..Mlp::default() }.kernel().unwrap().tree());
}
