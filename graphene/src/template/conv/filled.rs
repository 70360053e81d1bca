//! Images with more channels, which are zeros, and with channels innermost in memory: each thread brings those of a pixel.
//!
//! Levels:
//!
//! - kernel: images of more channels

use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::{AtLeast, Result, Within, needs};
use crate::index::Expr;
use crate::kernel::{Fused, Kernel, Kind, Number, Operand, Test, Window};
use crate::layout::Layout;
use crate::schedule::pointwise::{WIDTH, vector};
use crate::schedule::vectors::neighbours;
use crate::template::access::launch;
use crate::tensor::Scalar;

/// The parameters of a kernel that fills up channels: `[images, read, pixels]` becomes `[images, pixels, made]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Filled {
    /// What elements are.
    pub scalar: Scalar,
    /// Channels that are read, and that are made: 16 bytes of them.
    pub channels: [i64; 2],
    /// What it is compiled for.
    pub arch: Arch,
    /// Threads of a block.
    pub threads: i64,
}

impl Default for Filled {
    /// The images that models see.
    fn default() -> Filled {
        Filled { scalar: Scalar::F16, channels: [3, 8], arch: Arch::Sm80, threads: 256 }
    }
}

impl Filled {
    /// The kernel, with symbols `images` and `pixels`.
    ///
    /// # Errors
    /// [`Error::Constraint`](crate::Error::Constraint) for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        let &Filled { scalar, channels: [read, made], arch, threads } = self;
        AtLeast(1).check("channels", read)?;
        needs(read <= made, "at least as many channels as are read", self.channels)?;
        needs(made * scalar.bytes() == WIDTH, "16 bytes of channels", self.channels)?;
        Within(1, 1024).check("threads", threads)?;
        let mut k = Builder::new("filled", arch);
        let [images, pixels] = k.symbols(["images", "pixels"])?.map(Expr::from);
        let x = Layout::rows([images.clone(), read.into(), pixels.clone()]);
        let x = k.param("x", x, scalar)?;
        let y = Layout::rows([images.clone(), pixels.clone(), made.into()]);
        let y = k.param("y", y, scalar)?;
        let all = images * &pixels;
        let (block, begin) = launch(&mut k, all.ceil_div(threads), threads, "begin")?;
        let [thread] = k.indices(block, ["thread"])?;
        let number = begin * threads + Expr::from(thread);
        let image = Expr::from(k.let_("image", number.div(&pixels))?);
        let pixel = Expr::from(k.let_("pixel", number.rem(&pixels))?);
        let to = neighbours(&mut k, y, [image.clone(), pixel.clone(), 0.into()], made, "to")?;
        k.if_(Test::Inside(to.into()), |k| {
            let channels = vector(k, "channels", made, scalar)?;
            for channel in 0..made {
                let to = Operand::at(channels, [channel]);
                if channel < read {
                    k.move_(to, Operand::at(x, [image.clone(), channel.into(), pixel.clone()]))?;
                } else {
                    k.init(to, 0.0)?;
                }
            }
            k.move_(to, channels)
        })?;
        let fill = Number(0.0);
        let channels =
            Window { count: made.into(), size: 1, stride: 1, dilation: 1, before: 0, fill };
        let filled = Fused::input(0).window(1, channels).merge(2).dims([0, 2, 1].map(Some));
        k.finish_as(Header::new(Kind::Fused(filled), y, x, block))
    }
}
