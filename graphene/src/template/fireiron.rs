//! Fireiron's example: a product in single precision by fused multiply-adds, decomposed in ten
//! steps from the kernel down to the instruction.
//!
//! - this file: the decomposition;
//! - `own`: the data movements of a thread.

mod own;

use self::own::Own;
use crate::arch::Arch;
use crate::build::Builder;
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Kernel, Kind, ThreadsId};
use crate::layout::Layout;
use crate::schedule::matmul::{MatMul, Share, epilog, load, split, tile, unroll};
use crate::tensor::{Scalar, View};

/// The tile of a block, of a warp and of a thread.
const BLOCK: [i64; 2] = [128, 128];
const WARP: [i64; 2] = [64, 32];
const THREAD: [i64; 2] = [8, 8];

/// The depth of a step through shared memory.
const DEPTH: i64 = 8;

/// `C[m,n] = A[m,k]·B[k,n]`, row-major, with any sizes: partial tiles are predicated.
///
/// # Errors
/// None are known; those of the builder.
pub fn fireiron(arch: Arch) -> Result<Kernel> {
    let mut k = Builder::new("fireiron", arch);
    let (m, n, depth) = (k.symbol("M")?, k.symbol("N")?, k.symbol("K")?);
    let (m, n, depth) = (Expr::from(m), Expr::from(n), Expr::from(depth));
    let a = k.param("A", Layout::rows([&m, &depth]), Scalar::F32)?;
    let b = k.param("B", Layout::rows([&depth, &n]), Scalar::F32)?;
    let c = k.param("C", Layout::rows([&m, &n]), Scalar::F32)?;
    let tiles = |size: &Expr, tile: i64| size.ceil_div(&Expr::from(tile));
    let (rows, columns) = (tiles(&m, BLOCK[0]), tiles(&n, BLOCK[1]));
    let grid = k.grid(
        "grid",
        View::buffer(&[Layout::of(rows.clone(), Expr::from(1)), Layout::of(columns, rows)]),
    )?;
    let block = k.block("block", View::buffer(&[Layout::of(Expr::from(256), Expr::from(1))]))?;
    let kernel = MatMul { c, a, b, blocks: grid, threads: block };
    let steps = tiles(&depth, DEPTH);
    tile(
        &mut k,
        kernel,
        BLOCK,
        false,
        |k| blocks(k, grid, block),
        |k, of_block| {
            let own = Own::new(k, of_block)?;
            epilog(
                k,
                of_block,
                |k| own.clear(k),
                |k, in_registers| {
                    split(k, in_registers, DEPTH, steps, false, |k, step, _| {
                        load(
                            k,
                            step,
                            |k, a, b| own.share(k, a, b),
                            |k, shared| {
                                tile(
                                    k,
                                    shared,
                                    WARP,
                                    true,
                                    |k| own.warps(k),
                                    |k, of_warp| {
                                        tile(
                                            k,
                                            of_warp,
                                            THREAD,
                                            true,
                                            |k| own.threads(k),
                                            |k, of_thread| {
                                                split(
                                                    k,
                                                    of_thread,
                                                    1,
                                                    DEPTH,
                                                    true,
                                                    |k, rank_1, _| {
                                                        load(
                                                            k,
                                                            rank_1,
                                                            |k, a, b| own.fetch(k, a, b),
                                                            |k, near| unroll(k, near, THREAD),
                                                        )
                                                    },
                                                )
                                            },
                                        )
                                    },
                                )?;
                                // The next step's operands go where this step's are.
                                k.spec(Kind::Sync, (), (), own.block)
                            },
                        )
                    })
                },
                |k, to, from| own.store(k, to, from),
            )
        },
    )?;
    k.finish(Kind::MATMUL, c, [a, b])
}

fn blocks(k: &mut Builder, grid: ThreadsId, block: ThreadsId) -> Result<Share> {
    let [row, column] = k.indices(grid, ["block_m", "block_n"])?;
    let blocks = k.index(grid, "own_block", [&row, &column])?;
    Ok(Share { at: [row.into(), column.into()], blocks, threads: block })
}
