//! Kernels of matmuls are trees of typed specs: each level says what is computed there, of operands that its reader knows,
//! down to instructions; and levels cost nothing.

use expect_test::{Expect, expect};
use graphene_ir::emit::emit;
use graphene_ir::kernel::{Kernel, Kind, Spec, Stmt, Unary};
use graphene_ir::schedule::dependent;
use graphene_ir::template::conv::{Conv, Convolution};
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::fmha::Fmha;
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::mlp::{Layer, Mlp};
use graphene_ir::template::mma::Mma;
use graphene_ir::template::product::Product;
use graphene_ir::template::simt::Simt;
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
            Stmt::For(of) => of.body = flat(kernel, &of.body),
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
    untyped.retain(|spec| spec.kind == Kind::Spec);
    assert!(untyped.is_empty(), "{name}: {untyped:?}");
    let mut bare = kernel.clone();
    bare.spec.body = kernel.spec.body.as_deref().map(|body| flat(kernel, body));
    assert_eq!(code(kernel), code(&bare), "{name}");
    assert_eq!(code(&dependent(kernel.clone())), code(&dependent(bare)), "{name}");
}

/// The levels of a kernel, those of single threads left out.
fn check_tree(kernel: &Kernel, tree: Expect) {
    let text = kernel.to_string();
    let lines = text.lines().filter(|line| line.contains("<<<") && line.ends_with('{'));
    let lines = lines.filter(|line| !line.contains("#one>>>") || line.contains("signals"));
    tree.assert_eq(&lines.collect::<Vec<_>>().join("\n"));
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
    let sliding = conv::sliding().into_iter();
    let sliding = sliding.map(|(conv, _)| named(format!("{conv:?}"), conv.kernel()));
    let attention = fmha::rows().into_iter().flat_map(|(fmha, ..)| {
        let name = format!("{fmha:?}");
        [named(name.clone(), fmha.kernel()), named(name, fmha.ampere())]
    });
    let all = gemms.chain(mmas).chain(simts).chain(convs).chain(sliding).chain(attention);
    all.for_each(|(name, kernel)| check_levels(&name, &kernel));
    for mlp in [mlp::results(), mlp::skipped()] {
        check_levels(&format!("{mlp:?}"), &mlp.kernel().unwrap());
    }
}

/// No expression says what a recurrent layer computes in all of its steps; of each step one does.
#[test]
fn every_level_of_a_recurrent_layer_is_typed() {
    for (layer, _) in recurrent::rows() {
        let kernel = layer.kernel().unwrap();
        assert_eq!(kernel.spec.kind, Kind::Spec);
        check_bodies(&format!("{layer:?}"), &kernel, Vec::new());
    }
}

fn layer() -> Product {
    let epilogue = Epilogue::layer(true, Some(Unary::Gelu), false);
    Product { epilogue, ..Product::default() }
}

#[test]
fn a_gemm_is_a_tree() {
    let kernel = Gemm { product: layer(), ..Gemm::default() }.kernel().unwrap();
    check_tree(
        &kernel,
        expect![[r#"
        %C <- Fused{gelu(matmul(%0, %1) + %2)}<<<#grid, #block>>>(%A, %B, %bias) {
              %C_tile_2 <- Fused{gelu(matmul(%0, %1) + %2)}<<<#cta, #own>>>(%A_tile_2, %B_tile_2, %bias_tile_2) {
                %acc <- MatMul<<<#cta, #own>>>(%A_tile_2, %B_tile_2) {
                    %acc <- MatMul+=<<<#cta, #own>>>(%own_a_2, %b) {
                %C_tile_4 <- Fused{gelu(%0 + %1)}<<<#cta, #own>>>(%strip, %bias_tile_4) {
                  %sA[@filling.stage] <- Move<<<#cta, #one>>>(%step[@m, @k]) signals %full[@filling.stage] {
                  %sB[@filling.stage] <- Move<<<#cta, #one>>>(%step_2[@k, @n]) signals %full[@filling.stage] {"#]],
    );
    let kernel = Gemm { product: layer(), split: 2, cluster: 1, ..Gemm::default() };
    check_tree(
        &kernel.kernel().unwrap(),
        expect![[r#"
        %C <- Fused{gelu(matmul(%0, %1) + %2)}<<<#grid, #block>>>(%A, %B, %bias) {
              %C_tile_2 <- Fused{gelu(matmul(%0, %1) + %2)}<<<#together, #own>>>(%A_tile_2, %B_tile_2, %bias_tile_2) {
                  %acc <- MatMul+=<<<#cta, #own>>>(%own_a_2, %b) {
                  %C_tile_4 <- Fused{gelu(%0 + %1)}<<<#cta, #warp>>>(%strip, %bias_tile_4) {
                  %sA[@filling.stage] <- Move<<<#cta, #one>>>(%step[@m, @k]) signals %full[@filling.stage] {
                  %sB[@filling.stage] <- Move<<<#cta, #one>>>(%step_2[@k, @n]) signals %full[@filling.stage] {"#]],
    );
}

#[test]
fn matmuls_by_warps_and_threads_are_trees() {
    check_tree(
        &Mma { product: layer(), ..Mma::default() }.kernel().unwrap(),
        expect![[r#"
        %C <- Fused{gelu(matmul(%0, %1) + %2)}<<<#grid, #block>>>(%A, %B, %bias) {
          %C_tile_2 <- Fused{gelu(matmul(%0, %1) + %2)}<<<#cta, #block>>>(%A_tile_2, %B_tile_2, %bias_tile_2) {
            %acc <- MatMul<<<#cta, #block>>>(%A_tile_2, %B_tile_2) {
                %stage <- Move<<<#cta, #block>>>(%tile) async {
                %stage_2 <- Move<<<#cta, #block>>>(%tile_2) async {
                %stage_3 <- Move<<<#cta, #block>>>(%tile_3) async {
                %stage_4 <- Move<<<#cta, #block>>>(%tile_4) async {
                %stage_5 <- Move<<<#cta, #block>>>(%tile_5) async {
                %stage_6 <- Move<<<#cta, #block>>>(%tile_6) async {
                  %stage_7 <- Move<<<#cta, #block>>>(%tile_7) async {
                  %stage_8 <- Move<<<#cta, #block>>>(%tile_8) async {
                %acc <- MatMul+=<<<#cta, #block>>>(%a, %b) {
            %C_tile_2 <- Fused{gelu(%0 + %1)}<<<#cta, #block>>>(%acc, %bias_tile_2) {
                  %result <- Fused{gelu(%0 + %1)}<<<#cta, #one_2>>>(%pair_3, %wide) {
                  %result_2 <- Fused{gelu(%0 + %1)}<<<#cta, #one_2>>>(%pair_4, %wide) {"#]],
    );
    let product = Product { scalar: Scalar::F32, ..layer() };
    check_tree(
        &Simt { product, ..Simt::default() }.kernel().unwrap(),
        expect![[r#"
        %C <- Fused{gelu(matmul(%0, %1) + %2)}<<<#grid, #block>>>(%A, %B, %bias) {
          %C_tile_2 <- Fused{gelu(matmul(%0, %1) + %2)}<<<#cta, #block>>>(%A_tile_2, %B_tile_2, %bias_tile_2) {
            %acc <- MatMul<<<#cta, #block>>>(%A_tile_2, %B_tile_2) {
                %stage <- Move<<<#cta, #block>>>(%tile) async {
                %stage_2 <- Move<<<#cta, #block>>>(%tile_2) async {
                %stage_3 <- Move<<<#cta, #block>>>(%tile_3) async {
                %stage_4 <- Move<<<#cta, #block>>>(%tile_4) async {
                  %stage_5 <- Move<<<#cta, #block>>>(%tile_5) async {
                  %stage_6 <- Move<<<#cta, #block>>>(%tile_6) async {
                %acc <- MatMul+=<<<#cta, #block>>>(%a, %b) {
            %C_tile_2 <- Fused{gelu(%0 + %1)}<<<#cta, #block>>>(%acc, %bias_tile_2) {
                  %result <- Fused{gelu(%0 + %1)}<<<#cta, #one_2>>>(%sums_2, %raw) {"#]],
    );
}

#[test]
fn attention_is_a_tree() {
    let fmha = Fmha { causal: true, ..Fmha::default() };
    check_tree(
        &fmha.kernel().unwrap(),
        expect![[r#"
        %O <- Fused{t0 = matmul(split(%0, 1, @heads/max(1, @kv_heads)), dims(%1, 0, 1, _, 2, 3)) * 0.125; t1 = select(less(position(t0, 3) + index(0), position(t0, 4)), -inf, t0); merge(matmul(exp(t1 - fold<softmax.max>(t1, 4)) / fold<softmax.sum>(t1, 4), dims(%2, 0, 1, _, 2, 3)), 1)}<<<#grid, #block>>>(%Q, %K, %V) {
              %o_tile_2 <- Fused{t0 = matmul(%0, %1) * 0.125; t1 = select(less(position(t0, 2) + index(64*@group + 128*@m), position(t0, 3)), -inf, t0); matmul(exp(t1 - fold<softmax.max>(t1, 3)) / fold<softmax.sum>(t1, 3), %2)}<<<#cta, #own>>>(%q_tile_2, %k_tile_2, %v_tile_2) {
                %scores <- MatMul<<<#cta, #own>>>(%own_q_2, %b) {
                  %scores <- MatMul<<<#cta, #own>>>(%own_q_4, %b_3) {
                  %acc <- MatMul+=<<<#cta, #own>>>(%weights, %b_5) {
                %acc <- MatMul+=<<<#cta, #own>>>(%weights, %b_7) {
                %o_rows_2 <- Move<<<#cta, #own>>>(%acc) {
                %sQ <- Move<<<#cta, #one>>>(%q_stage_2) signals %full[0] {
                %stage <- Move<<<#cta, #one>>>(%kv_stage_2) signals %full_2[@filling_k.stage] {
                  %stage_2 <- Move<<<#cta, #one>>>(%kv_stage_4) signals %full_2[@filling_k.stage] {
                  %stage_3 <- Move<<<#cta, #one>>>(%kv_stage_6) signals %full_3[@filling_v.stage] {
                %stage_4 <- Move<<<#cta, #one>>>(%kv_stage_8) signals %full_3[@filling_v.stage] {"#]],
    );
    check_tree(
        &fmha.ampere().unwrap(),
        expect![[r#"
        %O <- Fused{t0 = matmul(split(%0, 1, @heads/max(1, @kv_heads)), dims(%1, 0, 1, _, 2, 3)) * 0.125; t1 = select(less(position(t0, 3) + index(0), position(t0, 4)), -inf, t0); merge(matmul(exp(t1 - fold<softmax.max>(t1, 4)) / fold<softmax.sum>(t1, 4), dims(%2, 0, 1, _, 2, 3)), 1)}<<<#grid, #block>>>(%Q, %K, %V) {
            %o_tile_2 <- Fused{t0 = matmul(%0, %1) * 0.125; t1 = select(less(position(t0, 2) + index(128*@m), position(t0, 3)), -inf, t0); matmul(exp(t1 - fold<softmax.max>(t1, 3)) / fold<softmax.sum>(t1, 3), %2)}<<<#cta, #block>>>(%q_tile_2, %k_tile_2, %v_tile_2) {
              %stage <- Move<<<#cta, #block>>>(%of_stage_2) async {
              %stage_2 <- Move<<<#cta, #block>>>(%of_stage_4) async {
              %stage_3 <- Move<<<#cta, #block>>>(%of_stage_6) async {
                  %stage_4 <- Move<<<#cta, #block>>>(%of_stage_8) async {
                %scores <- MatMul+=<<<#cta, #block>>>(%queries, %keys) {
                  %stage_5 <- Move<<<#cta, #block>>>(%of_stage_11) async {
                %acc <- MatMul+=<<<#cta, #block>>>(%weights, %values) {
              %o_rows_2 <- Move<<<#cta, #block>>>(%acc) {"#]],
    );
}

#[test]
fn a_convolution_is_a_tree() {
    let convolution = Convolution { group: 2, ..Convolution::default() };
    check_tree(
        &Conv { convolution, ..Conv::default() }.kernel().unwrap(),
        expect![[r#"
        %Y <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); merge(dims(split(matmul(%1, merge(t0, 2)), 2, @out0*@out1), 2, 0, 1, 3), 0)}<<<#grid, #block>>>(%x, %w) {
          %stage <- Move<<<#cta, #block>>>(%tile) async {
          %sX[@filling.stage] <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); slice(slice(slice(merge(t0, 2), 0, @product, 1), 2, 128*@n, 128), 1, 0, 32)}<<<#cta, #block>>>(%x) {
          %stage_3 <- Move<<<#cta, #block>>>(%tile_2) async {
          %sX[@filling.stage] <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); slice(slice(slice(merge(t0, 2), 0, @product, 1), 2, 128*@n, 128), 1, 32, 32)}<<<#cta, #block>>>(%x) {
          %stage_5 <- Move<<<#cta, #block>>>(%tile_3) async {
          %sX[@filling.stage] <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); slice(slice(slice(merge(t0, 2), 0, @product, 1), 2, 128*@n, 128), 1, 64, 32)}<<<#cta, #block>>>(%x) {
              %stage_7 <- Move<<<#cta, #block>>>(%tile_4) async {
            %acc <- MatMul+=<<<#cta, #block>>>(%a, %b) {
              %sX[@filling.stage] <- Fused{t0 = merge(merge(merge(dims(window(window(%0, 3, @out0, 3, 1, 1, 1, 0), 4, @out1, 3, 1, 1, 1, 0), 1, 2, 5, 6, 0, 3, 4), 1), 1), 2); slice(slice(slice(merge(t0, 2), 0, @product, 1), 2, 128*@n, 128), 1, 32*@k + 96, 32)}<<<#cta, #block>>>(%x) {"#]],
    );
}

#[test]
fn layers_are_a_tree() {
    let layers = vec![Layer { times: 2, ..Layer::default() }, Layer::default()];
    check_tree(
        &Mlp { layers, ..Mlp::default() }.kernel().unwrap(),
        expect![[r#"
        %Y <- Fused{t0 = matmul(relu(matmul(%0, merge(slice(%1, 0, 0, 1), 0)) + slice(%2, 0, 0, 1)), merge(slice(%1, 0, 1, 1), 0)); relu(matmul(relu(t0 + slice(%2, 0, 1, 1)), merge(%3, 0)) + %4)}<<<#grid, #block>>>(%X, %W, %bias, %W_2, %bias_2) {
          %Y_tile_2 <- Fused{t0 = matmul(relu(matmul(%0, merge(slice(%1, 0, 0, 1), 0)) + slice(%2, 0, 0, 1)), merge(slice(%1, 0, 1, 1), 0)); relu(matmul(relu(t0 + slice(%2, 0, 1, 1)), merge(%3, 0)) + %4)}<<<#cta, #block>>>(%X_tile_2, %W, %bias, %W_2, %bias_2) {
            %sY_2 <- Move<<<#cta, #block>>>(%rows) async {
            %stage <- Move<<<#cta, #block>>>(%tile) async {
            %stage_2 <- Move<<<#cta, #block>>>(%tile_2) async {
            %stage_3 <- Move<<<#cta, #block>>>(%tile_3) async {
            %sY_layer_4 <- Fused{t0 = matmul(relu(matmul(%0, merge(slice(%1, 0, 0, 1), 0)) + slice(%2, 0, 0, 1)), merge(slice(%1, 0, 1, 1), 0)); relu(t0 + slice(%2, 0, 1, 1))}<<<#cta, #block>>>(%sY_layer_2, %W, %bias) {
                  %stage_4 <- Move<<<#cta, #block>>>(%tile_4) async {
                  %stage_5 <- Move<<<#cta, #block>>>(%tile_5) async {
                %acc <- MatMul+=<<<#cta, #block>>>(%rows_part_2, %b) {
            %Y_layer_2 <- Fused{relu(matmul(%0, merge(%1, 0)) + %2)}<<<#cta, #block>>>(%sY_layer_6, %W_2, %bias_2) {
              %acc_2 <- Fused{matmul(%0, merge(%1, 0))}<<<#cta, #block>>>(%sY_layer_6, %W_2) {
                    %stage_6 <- Move<<<#cta, #block>>>(%tile_6) async {
                  %acc_2 <- MatMul+=<<<#cta, #block>>>(%rows_part_4, %b_2) {
              %Y_layer_2 <- Fused{relu(%0 + %1)}<<<#cta, #block>>>(%acc_2, %bias_2) {"#]],
    );
}
