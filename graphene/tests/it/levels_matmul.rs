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
    expect![[""]].assert_eq(&kernel.tree());
    let kernel = Gemm { product: layer(), split: 2, cluster: 1, ..Gemm::default() };
    expect![[""]].assert_eq(&kernel.kernel().unwrap().tree());
}

#[test]
fn matmuls_by_warps_and_threads_are_trees() {
    expect![[""]].assert_eq(&Mma { product: layer(), ..Mma::default() }.kernel().unwrap().tree());
    let product = Product { scalar: Scalar::F32, ..layer() };
    expect![[""]].assert_eq(&Simt { product, ..Simt::default() }.kernel().unwrap().tree());
}

#[test]
fn attention_is_a_tree() {
    let fmha = Fmha { causal: true, ..Fmha::default() };
    expect![[""]].assert_eq(&fmha.kernel().unwrap().tree());
    expect![[""]].assert_eq(&fmha.ampere().unwrap().tree());
}

#[test]
fn a_convolution_is_a_tree() {
    let convolution = Convolution { group: 2, ..Convolution::default() };
    expect![[""]].assert_eq(&Conv { convolution, ..Conv::default() }.kernel().unwrap().tree());
}

#[test]
fn layers_are_a_tree() {
    let layers = vec![Layer { times: 2, ..Layer::default() }, Layer::default()];
    expect![[""]].assert_eq(&Mlp { layers, ..Mlp::default() }.kernel().unwrap().tree());
}
