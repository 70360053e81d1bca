//! The tensors of a convolution's kernel, and where a result's pixels lie in them.

use super::Convolution;
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{TensorId, ThreadsId};
use crate::layout::{Layout, Tiler};
use crate::schedule::pointwise::each;
use crate::schedule::vectors::coordinates;
use crate::template::access::{Stride, product};
use crate::template::epilogue::{Across, Attached, Run, Span};
use crate::template::product::Edges;

/// A kernel's symbols.
pub(super) struct Sizes {
    pub(super) images: Var,
    /// Pixels of a result's image, in all and along each axis.
    pub(super) pixels: Expr,
    pub(super) out: Vec<Expr>,
    /// Those of an image that is read; one axis where all of an image are one.
    seen: Vec<Expr>,
    /// From image to image that is read, unless they are packed.
    stride: Option<Var>,
}

/// What lies outside of the products.
pub(super) struct Outer {
    /// The epilogue's: `[groups, output channels/group]`, or as a result.
    operands: Vec<(Span, TensorId)>,
    /// `[images · groups, output channels/group, pixels]`
    pub(super) results: Vec<TensorId>,
}

impl Convolution {
    pub(super) fn sizes(&self, k: &mut Builder, flat: bool) -> Result<Sizes> {
        let images = k.symbol("images")?;
        let sizes = |k: &mut Builder, name: &str| -> Result<Vec<Expr>> {
            let each = (0..self.axes.len()).map(|axis| k.symbol(&format!("{name}{axis}")));
            each.map(|size| Ok(size?.into())).collect()
        };
        let out = sizes(k, "out")?;
        let pixels = product(&out);
        let seen = if flat { vec![pixels.clone()] } else { sizes(k, "in")? };
        let stride = (self.image == Stride::Symbol).then(|| k.symbol("x_stride0")).transpose()?;
        Ok(Sizes { images, pixels, out, seen, stride })
    }

    /// Declares x: `[images, groups, channels/group, …]`.
    pub(super) fn image(&self, k: &mut Builder, sizes: &Sizes) -> Result<TensorId> {
        let channels = [self.group, self.channels[0] / self.group].map(Expr::from);
        let one: Vec<Expr> = channels.into_iter().chain(sizes.seen.clone()).collect();
        let stride = sizes.stride.as_ref().map_or_else(|| product(&one), Expr::from);
        let images = Layout::of(&sizes.images, stride);
        k.param("x", [vec![images], Layout::rows(one)].concat(), self.scalar)
    }

    /// Declares the epilogue's operands and the results, Y, Y_2, ….
    pub(super) fn outer(&self, k: &mut Builder, sizes: &Sizes) -> Result<Outer> {
        let made = self.channels[1] / self.group;
        let whole = || {
            let images = Expr::from(&sizes.images) * self.group;
            Layout::rows([images, Expr::from(made), sizes.pixels.clone()])
        };
        let mut operands = Vec::new();
        for input in &self.epilogue.operands {
            let (name, view) = match input.span {
                Span::Column | Span::Row => ("bias", Layout::rows([self.group, made])),
                Span::Whole => ("R", whole()),
            };
            let scalar = input.scalar.unwrap_or(self.scalar);
            operands.push((input.span, k.param(name, view, scalar)?));
        }
        let mut results = Vec::new();
        for output in &self.epilogue.outputs {
            results.push(k.param("Y", whole(), output.unwrap_or(self.scalar))?);
        }
        Ok(Outer { operands, results })
    }
}

impl Outer {
    /// What the epilogue reads.
    pub(super) fn ins(&self) -> Vec<TensorId> {
        self.operands.iter().map(|operand| operand.1).collect()
    }

    /// The epilogue in a group: of operands `[groups, output channels/group]` it has the group's.
    pub(super) fn attach(
        &self,
        k: &mut Builder,
        convolution: &Convolution,
        group: &Expr,
        edges: Edges,
    ) -> Result<Attached> {
        let made = convolution.channels[1] / convolution.group;
        let mut operands = Vec::new();
        for &(span, of) in &self.operands {
            let own = match span {
                Span::Column | Span::Row => {
                    let groups = k.tile(of, "groups", &[Tiler::Size(1), Tiler::Whole])?;
                    let own = k.index(groups, "own", [group.clone(), Expr::from(0)])?;
                    k.reshape(own, "own", 0, &[&[(made, 1)]])?
                }
                Span::Whole => of,
            };
            operands.push((span, own));
        }
        let function = convolution.epilogue.function.clone();
        Ok(Attached::new(function, operands, self.results.clone(), edges))
    }
}

/// Where pixels of all images lie in results, which have a matrix for each image and group.
pub(super) struct Images<'a> {
    pub(super) group: Expr,
    pub(super) groups: i64,
    /// Of an image.
    pub(super) pixels: &'a Expr,
}

impl Images<'_> {
    /// Finishes the sums of a run of pixels. Where they are `wide` all of a run are of one image.
    pub(super) fn leave(
        &self,
        k: &mut Builder,
        epilogue: &Attached,
        sums: TensorId,
        run: &Run,
        across: &Across,
        one: ThreadsId,
    ) -> Result<()> {
        if epilogue.wide() {
            let run = self.placed(run, run.column.clone(), run.n);
            return epilogue.leave(k, sums, &run, across, &epilogue.all(), one);
        }
        let singles = k.tile(sums, "singles", &[Tiler::Size(1)])?;
        each(k, run.n, |k, i| {
            let sum = k.index(singles, "sum", [&i])?;
            let run = self.placed(run, run.column.clone() * run.n + i, 1);
            epilogue.leave(k, sum, &run, across, &epilogue.all(), one)
        })
    }

    /// The run of so many pixels that has this number among those of all images.
    fn placed(&self, run: &Run, number: Expr, n: i64) -> Run {
        let runs = self.pixels.div(&Expr::from(n));
        let batch = number.div(&runs) * self.groups + &self.group;
        Run { batch: Some(batch), row: run.row.clone(), column: number.rem(&runs), n }
    }
}

/// A pixel of a result, or a run of them.
pub(super) struct Place {
    pub(super) image: Expr,
    /// Along each spatial axis.
    pub(super) at: Vec<Expr>,
}

impl Place {
    /// The place with this number among those of all images, of these sizes.
    pub(super) fn of(k: &mut Builder, number: &Expr, sizes: &[Expr]) -> Result<Place> {
        let all = product(sizes);
        let image = k.let_("image", number.div(&all))?.into();
        let pixel = Expr::from(k.let_("pixel", number.rem(&all))?);
        let at = coordinates(k, pixel, sizes)?;
        Ok(Place { image, at })
    }
}
