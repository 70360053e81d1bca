//! Images with more channels, which are zeros, and with channels innermost in memory: each thread brings those of a pixel.
//!
//! Levels:
//!
//! - kernel: images of more channels

use super::Axis;
use crate::schedule::{WIDTH, neighbours, vector};
use crate::template::access::launch;
use crate::{
    Arch, AtLeast, Builder, Expr, Fused, Header, Kernel, Kind, Layout, Operand, Result, Scalar,
    Test, Within, needs,
};

parameters! {
    /// The parameters of a kernel that fills up channels: `[images, read, pixels]` becomes `[images, pixels, made]`.
    /// By default those of the images that models see.
    pub struct Filled {
        /// What elements are.
        pub scalar: Scalar = Scalar::F16,
        /// Channels that are read, and that are made: 16 bytes of them.
        pub channels: [i64; 2] = [3, 8],
        /// What it is compiled for.
        pub arch: Arch = Arch::Sm80,
        /// Threads of a block.
        pub threads: i64 = 256,
    }
}

impl Filled {
    /// The kernel, with symbols `images` and `pixels`.
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
                let from = Operand::at(x, [image.clone(), channel.into(), pixel.clone()]);
                if channel < read { k.move_(to, from)? } else { k.init(to, 0.0)? }
            }
            k.move_(to, channels)
        })?;
        let one = Axis { window: 1, stride: 1, dilation: 1, pad: 0 };
        let channels = one.windows(made.into(), 0.0);
        let filled = Fused::input(0).window(1, channels).merge(2).dims([0, 2, 1].map(Some));
        k.finish_as(Header::new(Kind::Fused(filled), y, x, block))
    }
}
