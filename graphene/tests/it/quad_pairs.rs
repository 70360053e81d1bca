//! Volta's products: a whole one by the quad pairs of a warp, and what is no quad pair.

use expect_test::expect;
use graphene_ir::atom;
use graphene_ir::emit::emit;
use graphene_ir::kernel::{Kernel, Kind, Stmt};
use graphene_ir::text::parse;
use graphene_ir::verify::{Rule, verify};

use crate::support::{check_clean, data, inputs, kind, orders, run};

const PRODUCT: &str = include_str!("../kernels/quad_pairs.graphene");

fn product() -> Kernel {
    parse(PRODUCT).unwrap_or_else(|error| panic!("{error}"))
}

/// Whole numbers, so that sums are exact in any order.
fn numbers(param: usize, at: usize) -> f64 {
    ((7 * at + 5 * param) % 13) as f64 - 6.0
}

/// C = A·B of 16×16×16, A by rows, B by columns, each element by the one thread that holds it.
#[test]
fn quad_pairs_multiply() {
    let kernel = product();
    assert_eq!(verify(&kernel), []);
    assert_eq!(parse(&kernel.to_string()).as_ref(), Ok(&kernel));
    let given = inputs(&kernel, &[], numbers);
    let (a, b) = (data(&given, "1"), data(&given, "2"));
    for seed in orders(5) {
        let outcome = run(&kernel, &given, seed);
        check_clean("quad pairs", &outcome);
        for (at, found) in outcome.buffers["3"].iter().enumerate() {
            let (row, column) = (at / 16, at % 16);
            let sum: f64 = (0..16).map(|k| a[16 * row + k] * b[16 * column + k]).sum();
            assert_eq!(*found, Some(sum), "{row}, {column}");
        }
    }
}

#[test]
fn each_step_is_one_instruction() {
    let kernel = product();
    let mut names = Vec::new();
    kernel.each_stmt(&mut |stmt| {
        if let Stmt::Spec(spec) = stmt
            && spec.kind == Kind::MATMUL_ADD
        {
            names.push(atom::select(&kernel, spec).expect("it is an atom").atom.name);
        }
    });
    assert_eq!(names, ["mma.m8n8k4"]);
    let source = emit(&kernel).expect("it is atomic").source;
    let at = source.find("  int pair_m").expect("coordinates are computed");
    let expected = expect![[r#"
          int pair_m = ((int)threadIdx.x/8)%2;
          int pair_n = ((int)threadIdx.x/4)%2;
          int quad = (int)threadIdx.x%4;
          int half_2 = (int)threadIdx.x/16;
          float t15[8];
          #pragma unroll
          for (int i = 0; i < 8; i += 1) {
            t15[4*(i/4) + i%4] = (float)(0.0f);
          }
          #pragma unroll
          for (int k = 0; k < 4; k += 1) {
            __align__(16) half t20[4];
            __align__(16) half t21[4];
            asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(word(t20[0])), "=r"(word(t20[2])) :
                "l"(&t1[64*half_2 + 4*k + 128*pair_m + 16*quad]) : "memory");
            asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(word(t21[0])), "=r"(word(t21[2])) :
                "l"(&t2[64*half_2 + 4*k + 128*pair_n + 16*quad]) : "memory");
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, "
                "%7}, {%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};" : "+f"(t15[0]),
                "+f"(t15[1]), "+f"(t15[4]), "+f"(t15[5]), "+f"(t15[2]), "+f"(t15[3]), "+f"(t15[6]),
                "+f"(t15[7]) : "r"(word(t20[0])), "r"(word(t20[2])), "r"(word(t21[0])),
                "r"(word(t21[2])) : "memory");
          }
          #pragma unroll
          for (int j = 0; j < 8; j += 1) {
            int m = 4*half_2 + 2*(j/4) + quad%2;
            int n = 2*(quad/2) + j%2 + 4*((j/2)%2);
            t3[16*m + n + 128*pair_m + 8*pair_n] = t15[4*(j/4) + j%4];
          }
        }
    "#]];
    expected.assert_eq(&source[at..]);
}

/// The instruction is the warp's: its quad pairs go through it together.
#[test]
fn the_whole_warp_multiplies() {
    let spec = "%15 <- MatMul+=<<<#4, #8>>>(%20, %21)";
    let some = |test: &str| PRODUCT.replace(spec, &format!("if({test}) {{ {spec} }}"));
    for (text, refused) in [
        (some("@pair_m < 2"), false),
        // Of each pair, all threads or none; half of each is refused as it is of any spec.
        (some("@pair_m == 0"), true),
        (some("@half == 0"), true),
    ] {
        let kernel = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let found = verify(&kernel);
        let rule = found.first().map(|finding| finding.rule);
        assert_eq!(rule, refused.then_some(Rule::Together), "{text}: {found:?}");
        let outcome = run(&kernel, &inputs(&kernel, &[], numbers), None);
        let fault = outcome.findings.first().map(|finding| kind(&finding.fault));
        assert_eq!(fault, refused.then_some("Divergence"), "{text}");
    }
}

/// Eight threads that are neighbours, or that begin elsewhere, are no quad pair.
#[test]
fn quad_pairs_are_where_the_instruction_has_them() {
    let neighbours = PRODUCT
        .replace(".[(4,2):(1,16)]", ".[8:1]")
        .replace("[(4,2):(1,16)]", "[8:1]")
        .replace("[2,2:8,4]", "[2,2:16,8]")
        .replace("[4:4]", "[4:8]")
        .replace("(4,2):(1,16)", "8")
        .replace("(@quad, @half)", "@eighth")
        .replace("@quad", "(@eighth%4)")
        .replace("@half", "(@eighth/4)");
    let kernel = parse(&neighbours).unwrap_or_else(|error| panic!("{error}\n{neighbours}"));
    let found: Vec<Rule> = verify(&kernel).iter().map(|finding| finding.rule).collect();
    assert_eq!(found, [Rule::Atomic]);
    // Pairs of lanes 0 to 3 and 16 to 19 of all lanes but the first four.
    let shifted = PRODUCT.replace("#7[@pair_m, @pair_n]", "#7[@pair_m, 1 - @pair_n]");
    let kernel = parse(&shifted).unwrap_or_else(|error| panic!("{error}\n{shifted}"));
    let found: Vec<Rule> = verify(&kernel).iter().map(|finding| finding.rule).collect();
    assert_eq!(found, [Rule::Together]);
}
