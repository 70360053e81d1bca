//! The number of the own warp, where an expression asks no more of the own thread than that.
//!
//! All lanes of a warp have the same one, but the compiler knows it only of what one lane tells all of them. What follows
//! from it alone, such as descriptors and addresses of tensor copies, is then computed once for a warp, in uniform
//! registers, rather than by each lane and brought there (`R2UR`).

use crate::index::{Factor, Op};
use crate::{Expr, Kernel, Var, WARP, kernel::thread_var};

pub(super) const WARP_INDEX: &str = "warp_index";

/// The statement that declares it, where all lanes are together.
pub(super) const DECLARED: &str =
    "const int warp_index = __shfl_sync(0xffffffffu, (int)threadIdx.x/32, 0);";

/// What a thread's number is made of, in a kernel whose blocks are several whole warps.
pub(super) struct Warps {
    thread: Var,
    pub(super) warp: Var,
    lane: Var,
}

impl Warps {
    /// None where a block has parts of warps, or only one.
    pub(super) fn of(kernel: &Kernel) -> Option<Warps> {
        let threads = kernel.block_size().ok().filter(|&all| all > WARP && all % WARP == 0)?;
        Some(Warps {
            thread: thread_var(threads),
            warp: Var::new("warp!", Some(threads / WARP - 1)),
            lane: Var::new("lane!", Some(WARP - 1)),
        })
    }

    /// The warp's number where its first thread has this one.
    pub(super) fn begins(&self, thread: i64) -> Option<i64> {
        (thread % WARP == 0).then_some(thread / WARP)
    }

    /// The same value, by the warp's number where that is enough.
    pub(super) fn within(&self, expr: &Expr) -> Expr {
        if !expr.mentions(&self.thread) {
            return expr.clone();
        }
        let terms = expr.terms().map(|(product, coefficient)| {
            Expr::of_factors(product.iter().map(|factor| self.factor(factor))) * coefficient
        });
        terms.sum()
    }

    fn factor(&self, factor: &Factor) -> Expr {
        match factor {
            Factor::Var(var) => Expr::from(var),
            Factor::Of(op, a, b) => {
                let a = self.within(a);
                let whole = if *op == Op::Div { self.whole(&a, b) } else { None };
                whole.unwrap_or_else(|| op.of(a, self.within(b)))
            }
        }
    }

    /// A quotient by a multiple of a warp's threads, if no lane makes a difference.
    fn whole(&self, a: &Expr, b: &Expr) -> Option<Expr> {
        let warps = b.constant().and_then(|by| self.begins(by))?;
        // C rounds quotients of negative numbers up, so that those of threads and of warps differ.
        if a.range().0 < Some(0) {
            return None;
        }
        let thread = Expr::from(&self.warp) * WARP + &self.lane;
        let quotient = a.substitute(&self.thread, &thread).div(WARP);
        (!quotient.mentions(&self.lane)).then(|| quotient.div(warps))
    }
}

#[cfg(test)]
#[path = "../../tests/units/warps.rs"]
mod tests;
