//! Fireiron's example: a product decomposed in ten steps, each step's spec as Fireiron writes it.

use expect_test::expect;
use graphene_ir::arch::Arch;
use graphene_ir::kernel::{Kernel, Kind, Spec, Stmt};
use graphene_ir::template::fireiron::fireiron;
use graphene_ir::tensor::Tensor;
use graphene_ir::verify::verify;

/// `MatMul(m,n,k)(memories of A, B, C)(who)`, the extents of A and B as the block's thread sees
/// them.
fn problem(kernel: &Kernel, spec: &Spec) -> String {
    let tensor = |operand| kernel.operand(operand).expect("the operands fit");
    let (a, b, c) = (tensor(&spec.ins[0]), tensor(&spec.ins[1]), tensor(&spec.outs[0]));
    let extent = |tensor: &Tensor, dim: usize| match tensor.view.levels().first() {
        Some(level) => level.modes()[dim].size().to_string(),
        None => "1".to_owned(),
    };
    let who = match kernel.threads(spec.threads).view.size().constant() {
        Some(1) => "Thread",
        Some(32) => "Warp",
        _ if spec.blocks == kernel.grid => "Kernel",
        _ => "Block",
    };
    format!(
        "MatMul({},{},{})({},{},{})({who})",
        extent(&a, 0),
        extent(&b, 1),
        extent(&a, 1),
        a.memory,
        b.memory,
        c.memory
    )
}

/// The products, each inside of the one before.
fn steps(kernel: &Kernel) -> Vec<String> {
    let mut steps = Vec::new();
    kernel.each_stmt(&mut |stmt| match stmt {
        Stmt::Spec(spec) if spec.kind == Kind::MATMUL_ADD => steps.push(problem(kernel, spec)),
        _ => {}
    });
    steps
}

#[test]
fn a_product_in_ten_steps() {
    let kernel = fireiron(Arch::Sm70).expect("the template builds");
    assert_eq!(verify(&kernel), []);
    expect![[r#"
        MatMul(@M,@N,@K)(GL,GL,GL)(Kernel)
        MatMul(128,128,@K)(GL,GL,GL)(Block)
        MatMul(128,128,@K)(GL,GL,RF)(Block)
        MatMul(128,128,8)(GL,GL,RF)(Block)
        MatMul(128,128,8)(SH,SH,RF)(Block)
        MatMul(64,32,8)(SH,SH,RF)(Warp)
        MatMul(8,8,8)(SH,SH,RF)(Thread)
        MatMul(8,8,1)(SH,SH,RF)(Thread)
        MatMul(8,8,1)(RF,RF,RF)(Thread)
        MatMul(1,1,1)(RF,RF,RF)(Thread)"#]]
    .assert_eq(&steps(&kernel).join("\n"));
}
