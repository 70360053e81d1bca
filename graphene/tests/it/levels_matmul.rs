//! Kernels of matmuls are trees of typed specs: each level says what is computed there, of operands that its reader knows,
//! down to instructions; and levels cost nothing.

use expect_test::expect;
use graphene_ir::emit::emit;
use graphene_ir::kernel::{Kernel, Spec, Stmt, Unary};
use graphene_ir::schedule::dependent;
use graphene_ir::template::conv::{Conv, Convolution};
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::fmha::Fmha;
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::MatMul;
use graphene_ir::template::mlp::{Layer, Mlp};
use graphene_ir::template::multistage::Multistage;
use graphene_ir::template::recurrent::{Direction, Recurrent};
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
    let typed = |spec: &Spec| spec.body.is_none() || spec.kind.meaning(&[], &[]).is_some();
    assert!(typed(&kernel.spec), "{name}: {}", kernel.spec.kind);
    kernel.each_stmt(&mut |stmt| {
        if let Stmt::Spec(spec) = stmt {
            assert!(typed(spec), "{name}: {}", spec.kind);
        }
    });
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
    let few = fmha::few().into_iter();
    let attention =
        attention.chain(few.map(|(fmha, ..)| named(format!("{fmha:?}"), fmha.decode())));
    let recurrent = recurrent::rows().into_iter();
    let recurrent = recurrent.map(|(layer, _)| named(format!("{layer:?}"), layer.kernel()));
    let all = gemms.chain(mmas).chain(simts).chain(convs).chain(last).chain(sliding);
    let all = all.chain(attention).chain(recurrent);
    all.for_each(|(name, kernel)| check_levels(&name, &kernel));
    for mlp in [mlp::results(), mlp::skipped()] {
        check_levels(&format!("{mlp:?}"), &mlp.kernel().unwrap());
    }
    for (mlp, by, _) in mlp::by_warpgroups() {
        check_levels(&format!("{mlp:?} {by:?}"), &by.kernel(&mlp).unwrap());
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
                    Move, WaitGroup, Sync
                    for(@strip = 0; @strip < 4; @strip += 1) unroll
                      Move
                      %result:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%sums:[2].RF, %wide:[2].RF)
                        BinaryPointwise, UnaryPointwise, Move
                      Move
                      %result_2:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%sums_2:[2].RF, %wide:[2].RF)
                        BinaryPointwise, UnaryPointwise, Move
                      Move x2
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
                    Move
                    for(@e = 0; @e < 8; @e += 1) unroll
                      Move
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
              for(@some = 0; @some < 1; @some += 1) unroll
                Init, Move
                for(@j = 0; @j < 8; @j += 1) unroll
                  Move
                  for(@i = 0; @i < 4; @i += 1) unroll
                    %result:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%pair_3:[2].RF, %wide:[2].RF)
                      BinaryPointwise, UnaryPointwise, Move
                    Move x2
                    %result_2:[2].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%pair_4:[2].RF, %wide:[2].RF)
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
              for(@some = 0; @some < 1; @some += 1) unroll
                Init, Move
                for(@j = 0; @j < 8; @j += 1) unroll
                  for(@i = 0; @i < 8; @i += 1) unroll
                    %result:[1].RF <- Fused{gelu(%0 + %1)}<<<#cta:[], #one:[]>>>(%sums:[1].RF, %part_2:[1].RF)
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
          %acc:[4, 8].[2].[2].RF <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); matmul(%1, slice(slice(merge(t0, 2), 0, @product, 1), 2, 128*@n, 128))}<<<#cta:[], #block:[128]>>>(%x:[@images, 2, 32, @in0, @in1].GL, %w_tile:[1, 128, 288].GL)
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
                    %result:[2].RF <- Fused{relu(%0 + %1)}<<<#cta:[], #one:[]>>>(%pair_3:[2].RF, %wide:[2].RF)
                      BinaryPointwise, UnaryPointwise, Move
                    Move x2
                    %result_2:[2].RF <- Fused{relu(%0 + %1)}<<<#cta:[], #one:[]>>>(%pair_4:[2].RF, %wide:[2].RF)
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
                    %result_3:[2].RF <- Fused{relu(%0 + %1)}<<<#cta:[], #one:[]>>>(%pair_9:[2].RF, %wide_2:[2].RF)
                      BinaryPointwise, UnaryPointwise, Move
                    Move x2
                    %result_4:[2].RF <- Fused{relu(%0 + %1)}<<<#cta:[], #one:[]>>>(%pair_10:[2].RF, %wide_2:[2].RF)
                      BinaryPointwise, UnaryPointwise, Move
                    Move x2
    "#]].assert_eq(&Mlp { layers, ..Mlp::default() }.kernel().unwrap().tree());
}

#[test]
fn a_recurrent_layer_is_a_tree() {
    let layer = Recurrent { ragged: true, direction: Direction::Both, ..recurrent::small() };
    expect![[r#"
        kernel recurrent sm_80
        %Y:[@steps, 2, @batch, 16].GL, %Y_h:[2, @batch, 16].GL, %Y_c:[2, @batch, 16].GL <- Fused{t0 = position(slice(slice(%0, 1, 0, 1), 2, 0, 1), 0); t1 = slice(%1, 1, 0, 1); t2 = position(dims(slice(slice(t1, 2, 0, 1), 3, 0, 1), 0, _, _), 0); t3 = select(0, dims(slice(slice(%0, 0, 0, 1), 2, 0, 1), 1, _) + dims(slice(t1, 3, 0, 1), 0, _, 2), 0); t4 = steps(select(position(dims(window(dims(t3, _, 0, 1, 2), 0, 2, 1, 0, 0, 0, 0), 0, 1, 2, 3), 0), t3, t3), @steps, {t0 = dims(%1, _, _, _); t1 = select(%3, index(max(0, @steps - 1)) - t0, t0); t2 = less(t1, dims(%7, 0, _)); t3 = dims(gather(%2, t1), 0, 3, 4); t4 = slice(%6, 1, 0, 1); t5 = dims(slice(%0, 0, 0, 1), 1, 2, 3); t6 = fp16(t5); t7 = slice(%6, 1, 1, 1); t8 = sigmoid(matmul(t3, dims(slice(%4, 1, 2, 1), 0, 3, 2)) + dims(slice(t4, 2, 2, 1), 0, _, 3) + (matmul(t6, dims(slice(%5, 1, 2, 1), 0, 3, 2)) + dims(slice(t7, 2, 2, 1), 0, _, 3))); t9 = dims(slice(%0, 0, 1, 1), 1, 2, 3); t10 = sigmoid(matmul(t3, dims(slice(%4, 1, 0, 1), 0, 3, 2)) + dims(slice(t4, 2, 0, 1), 0, _, 3) + (matmul(t6, dims(slice(%5, 1, 0, 1), 0, 3, 2)) + dims(slice(t7, 2, 0, 1), 0, _, 3))); t11 = tanh(matmul(t3, dims(slice(%4, 1, 3, 1), 0, 3, 2)) + dims(slice(t4, 2, 3, 1), 0, _, 3) + (matmul(t6, dims(slice(%5, 1, 3, 1), 0, 3, 2)) + dims(slice(t7, 2, 3, 1), 0, _, 3))); t12 = t8 * t9 + t10 * t11; t13 = sigmoid(matmul(t3, dims(slice(%4, 1, 1, 1), 0, 3, 2)) + dims(slice(t4, 2, 1, 1), 0, _, 3) + (matmul(t6, dims(slice(%5, 1, 1, 1), 0, 3, 2)) + dims(slice(t7, 2, 1, 1), 0, _, 3))); select(position(%0, 0), select(t2, t12, t9), select(t2, t13 * tanh(t12), t5))}, %0, t2, %1, %2, %3, %4); t5 = dims(slice(t4, 1, 0, 1), 0, 2, 3, 4); select(less(dims(t0, 0, _, _, _), dims(%4, 0, _)), select(t2, gather(t5, index(@steps) - dims(t0, 0)), slice(t5, 0, 1, @steps)), 0), dims(slice(t5, 0, @steps, 1), 1, 2, 3), dims(slice(dims(slice(t4, 1, 1, 1), 0, 2, 3, 4), 0, @steps, 1), 1, 2, 3)}<<<#grid:[2, @parts, 2], #block:[32]>>>(%X:[@steps, @batch, 24].GL, %W:[2, 4, 16, 24].GL, %R:[2, 4, 16, 16].GL, %bias:[2, 2, 4, 16].GL, %lengths:[@batch].GL)
          Move x18, Init x12, Reduction x8
          for(@tile = @part; @tile < (@batch + 15)/16; @tile += @parts)
            Init x3, Move x3
            for(@step = 0; @step < @steps; @step += 1)
              carry %h_tiles:[1, 1, 16, 16].GL, %own:[2, 1].[2].RF, %held:[2, 1].[2].RF as Fused{select(index(@step), %0, 0), %1, %2} = Fused{t0 = select(0, dims(slice(slice(%0, 0, 0, 1), 2, 0, 1), 1, _) + dims(slice(slice(%1, 1, 0, 1), 3, 0, 1), 0, _, 2), 0); t1 = steps(select(position(dims(window(dims(t0, _, 0, 1, 2), 0, 2, 1, 0, 0, 0, 0), 0, 1, 2, 3), 0), t0, t0), @step, {t0 = dims(%1, _, _, _); t1 = select(%3, index(max(0, @steps - 1)) - t0, t0); t2 = less(t1, dims(%7, 0, _)); t3 = dims(gather(%2, t1), 0, 3, 4); t4 = slice(%6, 1, 0, 1); t5 = dims(slice(%0, 0, 0, 1), 1, 2, 3); t6 = fp16(t5); t7 = slice(%6, 1, 1, 1); t8 = sigmoid(matmul(t3, dims(slice(%4, 1, 2, 1), 0, 3, 2)) + dims(slice(t4, 2, 2, 1), 0, _, 3) + (matmul(t6, dims(slice(%5, 1, 2, 1), 0, 3, 2)) + dims(slice(t7, 2, 2, 1), 0, _, 3))); t9 = dims(slice(%0, 0, 1, 1), 1, 2, 3); t10 = sigmoid(matmul(t3, dims(slice(%4, 1, 0, 1), 0, 3, 2)) + dims(slice(t4, 2, 0, 1), 0, _, 3) + (matmul(t6, dims(slice(%5, 1, 0, 1), 0, 3, 2)) + dims(slice(t7, 2, 0, 1), 0, _, 3))); t11 = tanh(matmul(t3, dims(slice(%4, 1, 3, 1), 0, 3, 2)) + dims(slice(t4, 2, 3, 1), 0, _, 3) + (matmul(t6, dims(slice(%5, 1, 3, 1), 0, 3, 2)) + dims(slice(t7, 2, 3, 1), 0, _, 3))); t12 = t8 * t9 + t10 * t11; t13 = sigmoid(matmul(t3, dims(slice(%4, 1, 1, 1), 0, 3, 2)) + dims(slice(t4, 2, 1, 1), 0, _, 3) + (matmul(t6, dims(slice(%5, 1, 1, 1), 0, 3, 2)) + dims(slice(t7, 2, 1, 1), 0, _, 3))); select(position(%0, 0), select(t2, t12, t9), select(t2, t13 * tanh(t12), t5))}, %0, dims(index(@direction), _, _, _), %1, %2, %3, %4); t2 = dims(slice(dims(slice(t1, 1, 0, 1), 0, 2, 3, 4), 0, @step, 1), 1, 2, 3); select(index(@step), fp16(t2), 0), dims(slice(dims(slice(t1, 1, 1, 1), 0, 2, 3, 4), 0, @step, 1), 1, 2, 3), t2}<<<#members_2:[1, 1, 2], #block:[32]>>>(%of_tile:[@steps, 16, 24].GL, %of_tile_2:[1, 4, 16, 24].GL, %of_tile_3:[1, 4, 16, 16].GL, %of_tile_4:[1, 2, 4, 16].GL, %of_tile_5:[16].GL)
              %of_tile_8:[1, 1, 16, 16].GL, %of_tile_9:[1, 1, 16, 16].GL, %of_tile_10:[1, 16, 16].GL, %own:[2, 1].[2].RF, %held:[2, 1].[2].RF <- Fused{t0 = less(index(@now), dims(%3, 0, _)); t1 = slice(%2, 1, 0, 1); t2 = select(index(@step), dims(%5, 1, 2, 3), 0); t3 = slice(%2, 1, 1, 1); t4 = sigmoid(matmul(%4, dims(slice(%0, 1, 1, 1), 0, 3, 2)) + dims(slice(t1, 2, 1, 1), 0, _, 3) + (matmul(t2, dims(slice(%1, 1, 1, 1), 0, 3, 2)) + dims(slice(t3, 2, 1, 1), 0, _, 3))); t5 = sigmoid(matmul(%4, dims(slice(%0, 1, 2, 1), 0, 3, 2)) + dims(slice(t1, 2, 2, 1), 0, _, 3) + (matmul(t2, dims(slice(%1, 1, 2, 1), 0, 3, 2)) + dims(slice(t3, 2, 2, 1), 0, _, 3))); t6 = sigmoid(matmul(%4, dims(slice(%0, 1, 0, 1), 0, 3, 2)) + dims(slice(t1, 2, 0, 1), 0, _, 3) + (matmul(t2, dims(slice(%1, 1, 0, 1), 0, 3, 2)) + dims(slice(t3, 2, 0, 1), 0, _, 3))); t7 = tanh(matmul(%4, dims(slice(%0, 1, 3, 1), 0, 3, 2)) + dims(slice(t1, 2, 3, 1), 0, _, 3) + (matmul(t2, dims(slice(%1, 1, 3, 1), 0, 3, 2)) + dims(slice(t3, 2, 3, 1), 0, _, 3))); t8 = t5 * %6 + t6 * t7; t9 = select(t0, t4 * tanh(t8), %7); t9, select(t0, t9, 0), select(index(max(0, @steps - @step - 1)), old(2), t9), select(t0, t8, %6), t9}<<<#members_2:[1, 1, 2], #block:[32]>>>(%of_tile_2:[1, 4, 16, 24].GL, %of_tile_3:[1, 4, 16, 16].GL, %of_tile_4:[1, 2, 4, 16].GL, %of_tile_5:[16].GL, %of_tile_6:[1, 16, 24].GL, %of_tile_7:[1, 1, 16, 16].GL, %own:[2, 1].[2].RF, %held:[2, 1].[2].RF)
                Move x5, Commit
                for(@k = 0; @k < 1; @k += 1)
                  WaitGroup, Sync, Commit
                  %acc:[1, 4].[2].[2].RF <- MatMul+=<<<#cta:[], #block:[32]>>>(%a:[16, 32].SH, %b:[32, 32].SH)
                    Move x2, MatMul+= x2
                GridWait, Sync, Move, Commit
                for(@k = 0; @k < 1; @k += 1)
                  WaitGroup, Sync, Commit
                  %acc:[1, 4].[2].[2].RF <- MatMul+=<<<#cta:[], #block:[32]>>>(%a_2:[16, 32].SH, %b_2:[32, 32].SH)
                    Move x2, MatMul+= x2
                for(@i = 0; @i < 2; @i += 1) unroll
                  for(@j = 0; @j < 1; @j += 1) unroll
                    %h_2:[2].RF, %next:[2].RF <- Fused{t0 = sigmoid(%2) * %4 + sigmoid(%0) * tanh(%3); sigmoid(%1) * tanh(t0), t0}<<<#cta:[], #one:[]>>>(%pair_5:[2].RF, %pair_6:[2].RF, %pair_7:[2].RF, %pair_8:[2].RF, %own_4:[2].RF)
                      UnaryPointwise x5, BinaryPointwise x4, Move x2
                    Index
                    %given:[2].RF, %held_2:[2].RF, %own_5:[2].RF <- Fused{t0 = less(%0, %1); select(t0, %2, 0), select(t0, %2, %3), select(t0, %4, %5)}<<<#cta:[], #one:[]>>>(%time:[].RF, %own_length_2:[1].RF, %h_2:[2].RF, %held_2:[2].RF, %next:[2].RF, %own_5:[2].RF)
                      BinaryPointwise, Init, Select x3, Move x3
                    Move x6
                Sync, GridArrive
            Move x2
    "#]].assert_eq(&layer.kernel().unwrap().tree());
}
