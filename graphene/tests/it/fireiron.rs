//! Fireiron's example: a product decomposed in ten steps, each step's spec as Fireiron writes it.

use expect_test::{expect, expect_file};
use graphene_ir::Result;
use graphene_ir::arch::Arch;
use graphene_ir::build::Builder;
use graphene_ir::index::Expr;
use graphene_ir::kernel::{Kernel, Kind, Number, Operand, Spec, Stmt, TensorId, Test, ThreadsId};
use graphene_ir::layout::{Layout, Tiler};
use graphene_ir::schedule::matmul::{MatMul, epilog, load};
use graphene_ir::schedule::pointwise::number;
use graphene_ir::tensor::{Memory, Scalar, Tensor, View};
use graphene_ir::verify::verify;

/// The tile of a block, of a warp and of a thread.
const BLOCK: [i64; 2] = [128, 128];
const WARP: [i64; 2] = [64, 32];
const THREAD: [i64; 2] = [8, 8];

/// The depth of a step through shared memory.
const DEPTH: i64 = 8;

/// `C[m,n] = A[m,k]·B[k,n]`, row-major, with any sizes: partial tiles are predicated.
fn fireiron(arch: Arch) -> Result<Kernel> {
    let mut k = Builder::new("fireiron", arch);
    let (m, n, depth) = (k.symbol("M")?, k.symbol("N")?, k.symbol("K")?);
    let (m, n, depth) = (Expr::from(m), Expr::from(n), Expr::from(depth));
    let a = k.param("A", Layout::rows([&m, &depth]), Scalar::F32)?;
    let b = k.param("B", Layout::rows([&depth, &n]), Scalar::F32)?;
    let c = k.param("C", Layout::rows([&m, &n]), Scalar::F32)?;
    let tiles = |size: &Expr, tile: i64| size.ceil_div(Expr::from(tile));
    let (rows, columns) = (tiles(&m, BLOCK[0]), tiles(&n, BLOCK[1]));
    let grid = k.grid(
        "grid",
        View::buffer(&[Layout::of(rows.clone(), Expr::from(1)), Layout::of(columns, rows)]),
    )?;
    let block = k.block("block", View::buffer(&[Layout::of(Expr::from(256), Expr::from(1))]))?;
    let kernel = MatMul { c, a, b, threads: block };
    let steps = tiles(&depth, DEPTH);
    k.decompose(kernel.header(), |k| {
        let [row, column] = k.indices(grid, ["block_m", "block_n"])?;
        let own_block = k.index(grid, "own_block", [&row, &column])?;
        k.by(own_block);
        let share = (block, [row.into(), column.into()]);
        tile(k, kernel, BLOCK, false, share, |k, of_block| {
            let own = Own::new(k, block)?;
            let sums = MatMul { c: own.clear(k)?, ..of_block };
            let store = |k: &mut Builder| own.store(k, of_block.c, sums.c);
            epilog(k, sums.header(), |k| own.steps(k, sums, steps), store)
        })
    })?;
    k.finish(Kind::MATMUL, c, [a, b])
}

/// The own thread, and where it stands.
struct Own {
    block: ThreadsId,
    one: ThreadsId,
    thread: Expr,
    warp: ThreadsId,
    lane: ThreadsId,
    warp_at: [Expr; 2],
    lane_at: [Expr; 2],
}

impl Own {
    /// Of a block's threads.
    fn new(k: &mut Builder, block: ThreadsId) -> Result<Own> {
        let one = k.scalar(block, "one")?;
        let [thread] = k.indices(block, ["t"])?;
        let warps = k.tile(block, "warps", &[Tiler::Size(32)])?;
        let warps = k.reshape(warps, "warps", 0, &[&[(2, 1)], &[(4, 2)]])?;
        let lanes = k.reshape(warps, "lanes", 1, &[&[(8, 1)], &[(4, 8)]])?;
        let [warp_m, warp_n, lane_m, lane_n] =
            k.indices(lanes, ["warp_m", "warp_n", "lane_m", "lane_n"])?;
        let warp = k.index(lanes, "warp", [&warp_m, &warp_n])?;
        let lane = k.index(warp, "lane", [&lane_m, &lane_n])?;
        Ok(Own {
            block,
            one,
            thread: thread.into(),
            warp,
            lane,
            warp_at: [warp_m.into(), warp_n.into()],
            lane_at: [lane_m.into(), lane_n.into()],
        })
    }

    /// Steps through shared memory.
    fn steps(&self, k: &mut Builder, sums: MatMul, steps: Expr) -> Result<()> {
        split(k, sums, DEPTH, steps, false, |k, step| {
            let bring = |k: &mut Builder| self.share(k, step.a, step.b);
            load(k, sums.c, self.block, bring, |k, shared| {
                let share = (self.warp, self.warp_at.clone());
                tile(k, shared, WARP, true, share, |k, of_warp| self.warp(k, of_warp))?;
                // The next step's operands go where this step's are.
                k.spec(Kind::Sync, (), (), self.block)
            })
        })
    }

    /// A warp's tile: each thread's, by outer products of a column and a row.
    fn warp(&self, k: &mut Builder, of_warp: MatMul) -> Result<()> {
        let share = (self.lane, self.lane_at.clone());
        tile(k, of_warp, THREAD, true, share, |k, of_thread| {
            split(k, of_thread, 1, DEPTH, true, |k, rank_1| {
                let bring = |k: &mut Builder| self.fetch(k, rank_1.a, rank_1.b);
                load(k, rank_1.c, self.lane, bring, |k, near| self.unroll(k, near))
            })
        })
    }

    /// One multiply-add after the other, element by element of the result, by each thread alone.
    fn unroll(&self, k: &mut Builder, near: MatMul) -> Result<()> {
        self.each(k, |k, [i, j]| {
            let zero = Expr::from(0);
            let a = k.index(near.a, "a", [i.clone(), zero.clone()])?;
            let b = k.index(near.b, "b", [zero, j.clone()])?;
            let c = k.index(near.c, "c", [i, j])?;
            k.add(MatMul { c, a, b, ..near }.header())
        })
    }

    /// A thread's part of the result, all zeros.
    fn clear(&self, k: &mut Builder) -> Result<TensorId> {
        let acc = k.allocate("acc", Layout::rows(THREAD), Scalar::F32, Memory::Registers, None)?;
        self.each(k, |k, at| k.spec(Kind::Init(Number(0.0)), Operand::at(acc, at), (), self.one))?;
        Ok(acc)
    }

    fn each(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, [Expr; 2]) -> Result<()>,
    ) -> Result<()> {
        k.for_("i", 0..THREAD[0], 1, true, |k, i| {
            k.for_("j", 0..THREAD[1], 1, true, |k, j| body(k, [i.into(), j.into()]))
        })
    }

    /// The block's step of both operands in shared memory, zeros beyond their edges.
    fn share(&self, k: &mut Builder, a: TensorId, b: TensorId) -> Result<[TensorId; 2]> {
        let sizes = [[BLOCK[0], DEPTH], [DEPTH, BLOCK[1]]];
        let mut shared = [a, b];
        for (tensor, size) in shared.iter_mut().zip(sizes) {
            let from = *tensor;
            let to = k.allocate("shared", Layout::rows(size), Scalar::F32, Memory::Shared, None)?;
            k.for_("e", 0..size[0] * size[1] / 256, 1, true, |k, e| {
                let linear = self.thread.clone() + Expr::from(e) * 256;
                let columns = Expr::from(size[1]);
                let at = [linear.div(&columns), linear.rem(&columns)];
                let word = number(k, "word", Scalar::F32)?;
                let from = k.index(from, "from", at.clone())?;
                k.spec(Kind::Init(Number(0.0)), word, (), self.one)?;
                k.if_(Test::Inside(from.into()), |k| k.spec(Kind::Move, word, from, self.one))?;
                k.spec(Kind::Move, Operand::at(to, at), word, self.one)
            })?;
            *tensor = to;
        }
        k.spec(Kind::Sync, (), (), self.block)?;
        Ok(shared)
    }

    /// A thread's column of A and row of B in registers.
    fn fetch(&self, k: &mut Builder, a: TensorId, b: TensorId) -> Result<[TensorId; 2]> {
        let mut near = [a, b];
        for (i, tensor) in near.iter_mut().enumerate() {
            let from = *tensor;
            let size = if i == 0 { [THREAD[0], 1] } else { [1, THREAD[1]] };
            let to =
                k.allocate("near", Layout::rows(size), Scalar::F32, Memory::Registers, None)?;
            k.for_("e", 0..THREAD[i], 1, true, |k, e| {
                let zero = Expr::from(0);
                let at = if i == 0 { [Expr::from(e), zero] } else { [zero, Expr::from(e)] };
                let at = |tensor| Operand::at(tensor, at.clone());
                k.spec(Kind::Move, at(to), at(from), self.one)
            })?;
            *tensor = to;
        }
        Ok(near)
    }

    /// A thread's part of the result to global memory, where it lies within.
    fn store(&self, k: &mut Builder, to: TensorId, from: TensorId) -> Result<()> {
        let tiles = k.tile(to, "to_warp", &[Tiler::Size(WARP[0]), Tiler::Size(WARP[1])])?;
        let warp = k.index(tiles, "to_warp", self.warp_at.clone())?;
        let tiles = k.tile(warp, "to_thread", &[Tiler::Size(THREAD[0]), Tiler::Size(THREAD[1])])?;
        let thread = k.index(tiles, "to_thread", self.lane_at.clone())?;
        self.each(k, |k, at| {
            let to = k.index(thread, "to", at.clone())?;
            k.if_(Test::Inside(to.into()), |k| {
                k.spec(Kind::Move, to, Operand::at(from, at), self.one)
            })
        })
    }
}

/// One of the tiles of `[m,n]`: that of these threads, at these coordinates in tiles. A result in registers is not tiled
/// where the threads are: it is each thread's own already.
fn tile(
    k: &mut Builder,
    matmul: MatMul,
    [m, n]: [i64; 2],
    own_result: bool,
    (threads, [row, column]): (ThreadsId, [Expr; 2]),
    body: impl FnOnce(&mut Builder, MatMul) -> Result<()>,
) -> Result<()> {
    let zero = Expr::from(0);
    let a = k.tile(matmul.a, "a", &[Tiler::Size(m), Tiler::Whole])?;
    let a = k.index(a, "a", [row.clone(), zero.clone()])?;
    let b = k.tile(matmul.b, "b", &[Tiler::Whole, Tiler::Size(n)])?;
    let b = k.index(b, "b", [zero, column.clone()])?;
    let c = if own_result {
        matmul.c
    } else {
        let c = k.tile(matmul.c, "c", &[Tiler::Size(m), Tiler::Size(n)])?;
        k.index(c, "c", [row, column])?
    };
    let matmul = MatMul { c, a, b, threads };
    k.decompose(matmul.header(), |k| body(k, matmul))
}

/// Steps of `depth` along K, of which there are `count`.
fn split(
    k: &mut Builder,
    matmul: MatMul,
    depth: i64,
    count: impl Into<Expr>,
    unrolled: bool,
    body: impl FnOnce(&mut Builder, MatMul) -> Result<()>,
) -> Result<()> {
    let a = k.tile(matmul.a, "a", &[Tiler::Whole, Tiler::Size(depth)])?;
    let b = k.tile(matmul.b, "b", &[Tiler::Size(depth), Tiler::Whole])?;
    k.for_("k", Expr::from(0)..count.into(), 1, unrolled, |k, step| {
        let zero = Expr::from(0);
        let a = k.index(a, "a", [zero.clone(), Expr::from(step)])?;
        let b = k.index(b, "b", [Expr::from(step), zero])?;
        let matmul = MatMul { a, b, ..matmul };
        k.decompose(matmul.header(), |k| body(k, matmul))
    })
}

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
    // The text is what other tests and benchmarks run.
    expect_file!["../kernels/fireiron.graphene"].assert_eq(&kernel.to_string());
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
