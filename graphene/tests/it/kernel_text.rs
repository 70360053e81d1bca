//! The text form of kernels: what it prints, that it reads back, and what it refuses.

use expect_test::expect;
use graphene_ir::Result;
use graphene_ir::arch::Arch;
use graphene_ir::build::{Builder, Header};
use graphene_ir::index::{Cond, Expr, Relation, Var};
use graphene_ir::kernel::{
    Fused, Group, Kernel, Kind, Number, Operand, Scope, Stmt, TensorId, ThreadsId,
};
use graphene_ir::layout::{Layout, Swizzle, Tiler};
use graphene_ir::tensor::{Memory, Scalar};
use graphene_ir::text::parse;

use crate::index::{Random, expression, variables};

const LDMATRIX: &str = include_str!("../kernels/ldmatrix.graphene");
const GEMM: &str = include_str!("../kernels/gemm.graphene");
const EVERY_FORM: &str = include_str!("../kernels/every_form.graphene");

fn read(text: &str) -> Kernel {
    parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Every variable's greatest value where it is defined: equality of variables is by name alone.
fn ranges(body: &[Stmt], into: &mut Vec<(String, Option<i64>)>) {
    let mut note = |var: &Var| into.push((var.name().to_owned(), var.max()));
    match body.split_first() {
        None => return,
        Some((stmt, _)) => match stmt {
            Stmt::Indices(vars, _) => vars.iter().for_each(note),
            Stmt::Let(var, _) | Stmt::Value(var, _) => note(var),
            Stmt::Ring(ring) => [ring.stage(), ring.parity()].iter().for_each(note),
            Stmt::For(looped) => {
                note(&looped.var);
                ranges(&looped.body, into);
            }
            Stmt::If(_, body) | Stmt::Role(_, _, _, body) => ranges(body, into),
            Stmt::Spec(spec) => ranges(spec.body.as_deref().unwrap_or_default(), into),
            Stmt::Allocate(_) | Stmt::View(..) | Stmt::Threads(..) | Stmt::Advance(_) => {}
        },
    }
    ranges(&body[1..], into);
}

fn check_round_trip(kernel: &Kernel) {
    let text = kernel.to_string();
    let again = read(&text);
    assert_eq!(again, *kernel, "{text}");
    assert_eq!(again.to_string(), text);
    let of = |kernel: &Kernel| {
        let mut found = Vec::new();
        ranges(kernel.spec.body.as_deref().unwrap(), &mut found);
        found
    };
    assert_eq!(of(&again), of(kernel), "{text}");
}

#[test]
fn texts_read_back() {
    for text in [LDMATRIX, GEMM, EVERY_FORM] {
        let kernel = read(text);
        check_round_trip(&kernel);
        // The files are written as they print, comments and empty lines apart.
        let lines = text.lines().map(|line| line.split("//").next().unwrap().trim_end());
        let plain: String =
            lines.filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect();
        // A stride that may be left out, and operands that have an order of their own.
        let plain = plain.replace("2:4, 4)", "2:4, 4:1)").replace("min(@lane, 3)", "min(3, @lane)");
        assert_eq!(kernel.to_string(), plain);
    }
}

/// The statements of a product whose tiles go through a ring, as on Hopper; not all that it needs.
fn pipelined(stages: i64) -> Result<Kernel> {
    let mut k = Builder::new("gemm", Arch::Sm90a);
    let [m, n, depth] = [k.symbol("M")?, k.symbol("N")?, k.symbol("K")?];
    let a = k.param("A", Layout::rows([&m, &depth]), Scalar::F16)?;
    let b = k.param("B", Layout::rows([&n, &depth]), Scalar::F16)?;
    let c = k.param("C", Layout::rows([&m, &n]), Scalar::F16)?;
    let tiles = |size: &Var| Expr::from(size).ceil_div(Expr::from(128));
    let grid = k.grid("grid", Layout::columns([tiles(&m), tiles(&n)]))?;
    let block = [Layout::of(3, 128)].to_vec();
    let block = k.block("block", [block, Layout::columns([128])])?;
    let [i, j] = k.indices(grid, ["i", "j"])?;
    let swizzle = Some(Swizzle::new(3, 4, 3)?);
    let staged = |k: &mut Builder, name| {
        let tile = [vec![Layout::of(stages, 8192)], Layout::rows([128, 64])];
        k.allocate(name, tile, Scalar::F16, Memory::Shared, swizzle)
    };
    let [s_a, s_b] = [staged(&mut k, "sA")?, staged(&mut k, "sB")?];
    let full = k.allocate("full", [Layout::of(stages, 1)], Scalar::Mbar, Memory::Shared, None)?;
    let ring = k.ring("r", stages)?;
    let one = k.scalar(block, "one")?;
    k.spec(Kind::Init(Number(1.0)), full, (), one)?;
    k.spec(Kind::Sync, (), (), block)?;
    k.role(block, 0..1, |k| {
        k.for_("k", 0.into()..Expr::from(&depth), 64, false, |k, at| {
            let stage = Operand::at(full, [ring.stage()]);
            k.spec(Kind::Arrive(Some(32768.into())), stage.clone(), (), one)?;
            for (from, to, first) in [(a, s_a, &i), (b, s_b, &j)] {
                let tile = k.tile(from, "tiles", &[Tiler::Size(128), Tiler::Size(64)])?;
                let from = Operand::at(tile, [Expr::from(first), Expr::from(at).div(64)]);
                let to = Operand::at(to, [ring.stage()]);
                k.add(Header::new(Kind::Move, to, from, one).signals(stage.clone()))?;
            }
            k.advance(&ring)
        })
    })?;
    k.role(block, 1..3, |k| consume(k, [s_a, s_b, full, c], block, &ring.parity(), (&i, &j)))?;
    let transposed = Fused::input(1).dims([Some(1), Some(0)]);
    k.finish(Kind::Fused(Fused::input(0).matmul(transposed)), c, [a, b])
}

fn consume(
    k: &mut Builder,
    [s_a, s_b, full, c]: [TensorId; 4],
    block: ThreadsId,
    parity: &Var,
    (i, j): (&Var, &Var),
) -> Result<()> {
    let one = k.scalar(block, "one")?;
    let group = k.index(block, "group", [1])?;
    let acc =
        k.allocate("acc", Layout::columns([2, 2, 16]), Scalar::F32, Memory::Registers, None)?;
    k.spec(Kind::Init(Number(0.0)), acc, (), one)?;
    k.spec(Kind::Wait(parity.into(), Scope::Block), full, (), one)?;
    k.add(Header::new(Kind::MATMUL_ADD, acc, [s_a, s_b], group).async_())?;
    k.spec(Kind::Commit(Group::MatMul), (), (), group)?;
    k.spec(Kind::WaitGroup(Group::MatMul, 0, false), (), (), group)?;
    let tiles = k.tile(c, "tiles", &[Tiler::Size(128), Tiler::Size(128)])?;
    let tile = k.index(tiles, "tile", [i, j])?;
    k.decompose(Header::new(Kind::Move, tile, acc, group), |k| {
        let [lane] = k.indices(group, ["lane"])?;
        let quad = k.let_("quad", Expr::from(&lane).div(4))?;
        k.if_(Cond::less(&quad, 8), |k| k.spec(Kind::Move, tile, acc, one))
    })
}

#[test]
fn built_kernels_print_and_read_back() {
    let kernel = pipelined(4).unwrap();
    check_round_trip(&kernel);
    check_round_trip(&pipelined(1).unwrap());
    expect![[r#"
        kernel gemm sm_90a (@M, @N, @K)
        %A:[@M,@K:@K,1].fp16.GL
        %B:[@N,@K:@K,1].fp16.GL
        %C:[@M,@N:@N,1].fp16.GL
        #grid:[(@M + 127)/128,(@N + 127)/128:1,(@M + 127)/128].block
        #block:[3:128].[128:1].thread
        %C <- Fused{matmul(%0, dims(%1, 1, 0))}<<<#grid, #block>>>(%A, %B) {
          @i, @j = #grid.indices()
          %sA:[4:8192].[128,64:64,1].fp16.SH.S<3,4,3>
          %sB:[4:8192].[128,64:64,1].fp16.SH.S<3,4,3>
          %full:[4:1].mbar.SH
          ring @r[4]
          #one:[].thread = #block.scalar()
          %full <- Init<1><<<#grid, #one>>>()
          Sync<<<#grid, #block>>>()
          role #block[0] {
            for(@k = 0; @k < @K; @k += 64) {
              %full[@r.stage] <- Arrive<32768><<<#grid, #one>>>()
              %tiles:[(@M + 127)/128,(@K + 63)/64:128*@K,64].[128,64:@K,1].fp16.GL = %A.tile(128, 64)
              %sA[@r.stage] <- Move<<<#grid, #one>>>(%tiles[@i, @k/64]) signals %full[@r.stage]
              %tiles_2:[(@N + 127)/128,(@K + 63)/64:128*@K,64].[128,64:@K,1].fp16.GL = %B.tile(128, 64)
              %sB[@r.stage] <- Move<<<#grid, #one>>>(%tiles_2[@j, @k/64]) signals %full[@r.stage]
              advance @r
            }
          }
          role #block[1..3] {
            #one_2:[].thread = #block.scalar()
            #group:[128:1].thread = #block[1]
            %acc:[2,2,16:1,2,4].fp32.RF
            %acc <- Init<0><<<#grid, #one_2>>>()
            %full <- Wait<@r.parity><<<#grid, #one_2>>>()
            %acc <- MatMul+=<<<#grid, #group>>>(%sA, %sB) async
            Commit<matmul><<<#grid, #group>>>()
            WaitGroup<matmul, 0><<<#grid, #group>>>()
            %tiles_3:[(@M + 127)/128,(@N + 127)/128:128*@N,128].[128,128:@N,1].fp16.GL = %C.tile(128, 128)
            %tile:[128,128:@N,1].fp16.GL = %tiles_3[@i, @j]
            %tile <- Move<<<#grid, #group>>>(%acc) {
              @lane = #group.indices()
              @quad = @lane/4
              if(@quad < 8) {
                %tile <- Move<<<#grid, #one_2>>>(%acc)
              }
            }
          }
        }
    "#]].assert_eq(&kernel.to_string());
}

/// A kernel that defines the variables of [`variables`] and compares expressions of them.
fn comparing(exprs: Vec<(Expr, Expr)>) -> Kernel {
    fn within(k: &mut Builder, vars: &[Var], conds: Vec<Cond>) -> Result<()> {
        match vars.split_first() {
            Some((var, rest)) => {
                let end = var.max().unwrap() + 1;
                k.for_(var.name(), 0..end, 1, false, |k, _| within(k, rest, conds))
            }
            None => k.if_(conds, |_| Ok(())),
        }
    }
    let relations = [Relation::Less, Relation::AtLeast, Relation::Equal, Relation::Unequal];
    let conds = exprs
        .into_iter()
        .zip(relations.iter().cycle())
        .map(|((left, right), relation)| Cond { left, relation: *relation, right })
        .collect();
    let mut k = Builder::new("comparing", Arch::Sm70);
    let vars = variables();
    let (bounded, symbols): (Vec<Var>, Vec<Var>) =
        vars.into_iter().partition(|var| var.max().is_some());
    for symbol in &symbols {
        k.symbol(symbol.name()).unwrap();
    }
    k.grid("g", [Layout::of(1, 1)]).unwrap();
    k.block("t", [Layout::of(1, 1)]).unwrap();
    within(&mut k, &bounded, conds).unwrap();
    k.finish(Kind::Sync, (), ()).unwrap()
}

#[test]
fn expressions_read_back() {
    let vars = variables();
    let mut random = Random::new(5);
    for _ in 0..100 {
        let exprs = (0..200)
            .map(|_| (expression(&mut random, &vars), expression(&mut random, &vars)))
            .filter(|(a, b)| !a.divides_by_nothing() && !b.divides_by_nothing())
            .collect();
        check_round_trip(&comparing(exprs));
    }
}

#[test]
fn damaged_texts_are_refused_or_read_back() {
    let mut random = Random::new(6);
    let (mut refused, mut accepted) = (0, 0);
    let mut check = |text: &str| match parse(text) {
        Ok(kernel) => {
            accepted += 1;
            check_round_trip(&kernel);
        }
        Err(error) => {
            refused += 1;
            assert!(error.position().is_some_and(|at| at <= text.len()), "{error}");
        }
    };
    let pieces: Vec<&str> = EVERY_FORM.split_inclusive([' ', '\n', ',', '(', ')', '<']).collect();
    for text in [LDMATRIX, GEMM, EVERY_FORM] {
        (0..text.len()).step_by(3).for_each(|end| check(&text[..end]));
        for _ in 0..1000 {
            let mut damaged = text.to_owned();
            for _ in 0..=random.below(2) {
                let at = usize::try_from(random.below(damaged.len() as u64)).unwrap();
                let end = (at + usize::try_from(random.below(6)).unwrap()).min(damaged.len());
                let piece = usize::try_from(random.below(pieces.len() as u64)).unwrap();
                match random.below(4) {
                    0 => damaged.replace_range(at..end, ""),
                    1 => damaged.insert_str(at, pieces[piece]),
                    2 => damaged.replace_range(at..end, pieces[piece]),
                    _ => {
                        let sign = b"0123456789@%#[](){}<>.,:=+-*/ \n_xK"[piece % 34];
                        damaged.replace_range(at..=at, &char::from(sign).to_string());
                    }
                }
            }
            check(&damaged);
        }
    }
    assert!(refused > 4000 && accepted > 300, "{refused} {accepted}");
}

#[test]
fn extreme_texts_are_refused() {
    let deep = |open: &str, close: &str| {
        format!(
            "kernel k sm_70 ()\n#g:[1:1].block\n#t:[1:1].thread\nSync<<<#g, #t>>>() {{{}1{}}}",
            open.repeat(100_000),
            close.repeat(100_000)
        )
    };
    for text in [
        deep("@x = (", ")"),
        deep("if(true) {", "}"),
        deep("if(min(1, ", ")"),
        deep("@x = -", ""),
        deep("%a:[(1,", ")"),
        format!("@x = {}", "(".repeat(100_000)),
        "kernel k sm_70 ()\n%é".to_owned(),
        "\u{a0}kernel".to_owned(),
        String::new(),
    ] {
        assert!(parse(&text).is_err());
    }
    let edge = |value: &str, size: &str| {
        format!(
            "kernel k sm_70 (@n)\n%a:[{size}:{value}].fp16.GL\n#g:[1:1].block\n#t:[1:1].thread\n\
             Sync<<<#g, #t>>>() {{\n  for(@i = 0; @i < -{value}; @i += {value}) {{\n\
             if(@i*{value}*@i + {value} < -{value} - {value}%3*{value}/7) {{\n\
             %b:[].fp16.GL = %a[@i*{value} - @n/{value}]\n}}\n}}\n}}"
        )
    };
    // Whatever becomes of numbers near the limits, nothing overflows.
    for value in ["0", "1", "9223372036854775807", "4611686018427387904", "9223372036854775808"] {
        for size in ["1", "@n", "9223372036854775807", "(2,9223372036854775807)"] {
            drop(parse(&edge(value, size)));
        }
    }
}

/// A kernel of these statements, and the message that refuses it.
fn check_refused(body: &str, message: &str) {
    let text = format!(
        "kernel k sm_90a (@M)\n%A:[64,@M:1,64].fp16.GL\n#g:[@M:1].block\n#t:[4:32].[32:1].thread\n\
         %A <- Move<<<#g, #t>>>(%A) {{\n{body}\n}}\n"
    );
    assert_eq!(parse(&text).unwrap_err().to_string(), message, "{body}");
}

#[test]
fn errors_say_where_and_what() {
    let rows = [
        ("%x <- Move<<<#g, #t>>>(%A)", "6:1: no %x is known here"),
        ("%A <- Move<<<#g, #w>>>(%A)", "6:18: no #w is known here"),
        ("@x = 4*@y", "6:8: no @y is known here"),
        ("advance @r", "6:9: no ring @r is known here"),
        (
            "%b:[2,@M:32,64].[32,1:2,0].fp16.GL = %A.tile(32, 1)",
            "6:4: %b is [2,@M:32,64].[32,1:1,0].fp16.GL, not [2,@M:32,64].[32,1:2,0].fp16.GL",
        ),
        ("#w:[32:1].block = #t[0]", "6:4: #w is [32:1].thread, not [32:1].block"),
        ("%b:[64:1].fp16.GL = %A[0]", "6:1: 1 coordinates or tiles for 2 dimensions"),
        ("%b:[64].fp16.GL", "6:7: expected `:`, found `]`"),
        ("%b:[64:1,2].fp16.SH", "6:4: expected a stride for every size"),
        ("%b:[0:1].fp16.SH", "6:4: a size must be at least 1, not 0"),
        (
            "%b:[64:1].fp17.SH",
            "6:11: expected a scalar type (fp16, bf16, fp32, i32, i64, u32, u8, i8, mbar), found `fp17`",
        ),
        ("%b:[64:1].fp16.GL", "6:1: global memory is a parameter, not allocated"),
        ("%b:[64:1].fp16.RF.S<1,2,3>", "6:1: only shared memory is swizzled"),
        ("%A:[64:1].fp16.SH", "6:1: %A is declared twice"),
        (
            "if(@M < 4) {\n%b:[1:1].u8.SH\n}\n%b <- Init<0><<<#g, #t>>>()",
            "9:1: no %b is known here",
        ),
        ("if(@M < 4) {\n%b:[1:1].u8.SH\n}\n%b:[1:1].u8.SH", "9:1: %b is declared twice"),
        ("@a, @b, @c = #t.indices()", "6:1: expected names in groups of [1, 1]"),
        ("@M = 3", "6:1: @M has a meaning here already"),
        ("@thread = 3", "6:1: @thread has a meaning here already"),
        ("@x = @M - 1", "6:1: @x may be negative: @M - 1; max(0, ...) is not"),
        ("ring @r[0]", "6:6: needs 1 or more stages; got 0"),
        ("role #t[2..5] {\n}", "6:6: no coordinates 2..5 in [4:32].[32:1]"),
        ("for(@i = 0; @j < 4; @i += 1) {\n}", "6:13: expected the counter @i"),
        ("for(@i = 0; @i < 4; @i += 0) {\n}", "6:5: @i does not grow by 0"),
        ("for(@i = 0; @i < @M; @i += 1) unroll {\n}", "6:5: a loop to unroll with the bound @M"),
        ("Arrive<<<#g, #t>>>", "7:1: expected `(`, found `}`"),
        ("Frobnicate<<<#g, #t>>>()", "6:1: `Frobnicate` is neither a statement nor a spec"),
        ("%A <- Init<x><<<#g, #t>>>()", "6:12: expected a number, found `x`"),
        ("Fence<all><<<#g, #t>>>()", "6:7: expected a fence (matmul, proxy, init), found `all`"),
        ("if(@M) {\n}", "6:6: expected a comparison: `<`, `>=`, `==` or `!=`, found `)`"),
        ("// what follows is missing\n@x =", "8:1: expected an expression, found `}`"),
        (
            "#w:[2:1].[2:0].thread = #t.reshape(0, 2:1)",
            "6:1: the new modes do not count 4 elements once each",
        ),
        ("}", "7:1: expected the end of the text, found `}`"),
        ("{", "6:1: expected a statement, found `{`"),
    ];
    for (body, message) in rows {
        check_refused(body, message);
    }
    let heads = [
        (
            "kernel k sm_91 ()",
            "1:10: expected an architecture (sm_70, sm_75, sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120), found `sm_91`",
        ),
        ("kernel 7 sm_70 ()", "1:8: expected the kernel's name, found `7`"),
        ("kernel k sm_70 (@a, @a)", "1:21: @a has a meaning here already"),
        ("kernel k sm_70 ()\n%a:[1:1].u8.SH", "2:4: parameters are in plain global memory, GL"),
        (
            "kernel k sm_70 ()\n#t:[4:2].thread",
            "2:1: [4:2] does not number its elements without gaps",
        ),
        ("kernel k sm_70 ()\n#t:[4:1].thread\n#u:[1:1].thread", "3:1: a kernel has one block"),
        (
            "kernel k sm_70 ()\n#t:[4:1].thread\nSync<<<#t, #t>>>() {}",
            "3:1: a kernel is computed by",
        ),
    ];
    for (text, message) in heads {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn divisions_by_nothing_and_signals_that_are_no_barrier_are_refused() {
    let text = |statement: &str| {
        format!(
            "kernel a sm_90a ()\n%in:[32:1].fp32.GL\n#g:[1:1].block\n#b:[32:1].thread\n\
             Prefetch<<<#g, #b>>>(%in) {{\n  @lane = #b.indices()\n  #one:[].thread = #b.scalar()\n  \
             %s:[4:1].fp32.SH\n  %r:[].fp32.RF\n  {statement}\n}}"
        )
    };
    for (statement, why) in [
        ("%r <- Move<<<#g, #one>>>(%in[@lane/0])", "divides by what is never positive"),
        ("%r <- Move<<<#g, #one>>>(%in[@lane%(-2)])", "divides by what is never positive"),
        ("%r <- Move<<<#g, #one>>>(%in[0]) signals %s[0]", "is not one barrier to signal"),
    ] {
        let error = parse(&text(statement)).unwrap_err().to_string();
        assert!(error.contains(why), "{statement}: {error}");
    }
}
