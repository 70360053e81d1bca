//! Of `emit::warps`, whose items are private to the crate.

use super::{WARP, Warps};
use crate::index::{Expr, Var};
use crate::kernel::thread_var;

fn warps() -> Warps {
    Warps { thread: thread_var(384), warp: Var::new("w", Some(11)), lane: Var::new("l", Some(31)) }
}

#[test]
fn what_lanes_share_is_of_their_warp() {
    let warps = warps();
    let (thread, warp) = (Expr::from(&warps.thread), Expr::from(&warps.warp));
    let _by = |n: i64| Expr::from(n);
    assert_eq!(warps.within(&thread.div(128)), warp.div(4));
    assert_eq!(warps.within(&thread.div(32).rem(4)), warp.rem(4));
    let of_lane = thread.div(16).rem(2) + thread.rem(128) * 3;
    assert_eq!(warps.within(&of_lane), of_lane);
    let mixed = thread.div(64) * 8 + thread.rem(4);
    assert_eq!(warps.within(&mixed), warp.div(2) * 8 + thread.rem(4));
    let negative = (thread.clone() - 128).div(128);
    assert_eq!(warps.within(&negative), negative);
}

/// The same number for every thread, of expressions that templates have and others.
#[test]
fn values_stay() {
    let warps = warps();
    for by in 1..200 {
        for modulus in [1, 2, 3, 4, 8, 128] {
            for more in [0, 16, 32, 40] {
                let thread = Expr::from(&warps.thread) + more;
                let expr = thread.div(by).rem(modulus);
                let within = warps.within(&expr);
                for value in 0..384 {
                    let of = |var: &Var| {
                        Some(match var.name() {
                            "w" => value / WARP,
                            "l" => value % WARP,
                            _ => value,
                        })
                    };
                    assert_eq!(within.value(&of), expr.value(&of), "{expr} of thread {value}");
                }
            }
        }
    }
}
