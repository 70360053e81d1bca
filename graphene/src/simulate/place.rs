//! Where operands lie: a spec's tensors, compiled to offsets in the machine's memories.

use std::ops::Deref;

use super::formula::{Formula, Scope};
use crate::{Error, Expr, Layout, Memory, Result, Scalar, Swizzle, Tensor, Threads, View};

/// A tensor that others are views of: memory of its own.
#[derive(Debug, Clone)]
pub(super) struct Root {
    /// Its own number among them.
    pub(super) number: usize,
    pub(super) name: String,
    pub(super) memory: Memory,
    pub(super) scalar: Scalar,
    /// The number of the first of its elements among those of its memory: of all barriers, of a
    /// block's shared elements, of a thread's registers, or of all pointers' elements.
    pub(super) first: usize,
    /// How many elements it has.
    pub(super) len: usize,
    /// Its first byte in shared memory.
    pub(super) address: i64,
    /// Whether any spec writes it.
    pub(super) written: bool,
}

/// An operand of a spec.
#[derive(Debug)]
pub(super) struct Place {
    /// What it is a view of.
    root: Root,
    pub(super) bytes: i64,
    swizzle: Option<Swizzle>,
    /// The rank in its cluster of the block whose memory it is.
    pub(super) peer: Option<Formula>,
    /// What the address of the first element is a multiple of.
    pub(super) align: i64,
    /// Whether lanes differ in where it begins.
    pub(super) varying: bool,
    pub(super) starts: Vec<Formula>,
    /// Sizes and strides of the buffer's axes.
    pub(super) axes: Vec<(i64, i64)>,
    /// How far beyond the start the view reaches along each axis.
    pub(super) reach: Vec<i64>,
    /// The sizes of the dimensions that count.
    pub(super) dims: Vec<i64>,
    /// For each element, first dimension fastest, the distance from the first one.
    pub(super) distances: Vec<i64>,
    /// Likewise the steps along each axis.
    steps: Vec<i64>,
}

impl Deref for Place {
    type Target = Root;

    fn deref(&self) -> &Root {
        &self.root
    }
}

/// The threads that carry out a spec together.
#[derive(Debug)]
pub(super) struct Team {
    /// How many there are.
    pub(super) size: i64,
    /// The first one.
    pub(super) start: Formula,
    /// The others, relative to it, in order.
    pub(super) offsets: Vec<i64>,
}

impl Place {
    /// Compiles an operand that lies in `root`. Fails with [`Error::Shape`] for sizes and strides that are not fixed at launch.
    pub(super) fn of(tensor: &Tensor, root: &Root, align: i64, scope: &Scope) -> Result<Place> {
        let view = &tensor.view;
        let axes = axes_of(view, scope)?;
        let starts: Vec<Formula> =
            view.start().iter().map(|start| scope.compile(start)).collect::<Result<_>>()?;
        let peer = tensor.peer.as_ref().map(|peer| scope.compile(peer)).transpose()?;
        let varying = starts.iter().chain(&peer).any(|formula| formula.varying);
        let mut reach = vec![0; axes.len()];
        for leaf in view.leaves() {
            let size = scope.fixed(&leaf.size)?;
            for (axis, step) in leaf.stride.steps() {
                reach[axis] += (size - 1) * scope.fixed(step)?;
            }
        }
        let mut place = Place {
            root: root.clone(),
            bytes: tensor.scalar.bytes(),
            swizzle: tensor.swizzle,
            peer,
            align,
            varying,
            starts,
            axes,
            reach,
            dims: Vec::new(),
            distances: vec![0],
            steps: Vec::new(),
        };
        place.tabulate(view, scope)?;
        Ok(place)
    }

    fn tabulate(&mut self, view: &View, scope: &Scope) -> Result {
        let axes = self.axes.len();
        let mut steps = vec![0; axes];
        for dim in view.dims().filter(|dim| !dim.size().is(1)) {
            let along = steps_of(dim, axes, scope)?;
            let count = along.len() / axes.max(1);
            self.dims.push(count as i64);
            steps = (0..count)
                .flat_map(|i| {
                    let along = &along[i * axes..(i + 1) * axes];
                    steps.iter().enumerate().map(move |(at, step)| step + along[at % axes])
                })
                .collect();
        }
        let distance =
            |steps: &[i64]| steps.iter().zip(&self.axes).map(|(s, axis)| s * axis.1).sum();
        self.distances =
            if axes == 0 { vec![0] } else { steps.chunks_exact(axes).map(distance).collect() };
        self.steps = steps;
        Ok(())
    }

    /// The number of an element, or `None` for coordinates that the operand does not have.
    #[inline]
    pub(super) fn number(&self, element: &[i64]) -> Option<usize> {
        let (mut number, mut scale) = (0, 1);
        for (at, &size) in self.dims.iter().enumerate() {
            let coordinate = *element.get(at)?;
            if coordinate < 0 || coordinate >= size {
                return None;
            }
            number += coordinate * scale;
            scale *= size;
        }
        (element.len() <= self.dims.len()).then_some(number as usize)
    }

    /// How many elements there are.
    pub(super) fn size(&self) -> i64 {
        self.distances.len() as i64
    }

    /// The steps along the axes from the first element.
    pub(super) fn steps(&self, number: usize) -> &[i64] {
        &self.steps[number * self.axes.len()..(number + 1) * self.axes.len()]
    }

    /// Where in its memory's addresses an element lies, given its offset in the buffer.
    pub(super) fn physical(&self, offset: i64) -> i64 {
        let byte = offset * self.bytes;
        let moved = self.swizzle.and_then(|swizzle| swizzle.at(byte).ok());
        self.address + moved.unwrap_or(byte)
    }
}

/// Sizes and strides of a view's axes. Fails with [`Error::Shape`] if one is not fixed at launch.
pub(super) fn axes_of(view: &View, scope: &Scope) -> Result<Vec<(i64, i64)>> {
    let axes = view.axes().iter();
    axes.map(|axis| Ok((scope.fixed(&axis.size)?, scope.fixed(&axis.stride)?))).collect()
}

/// One more than the largest offset within axes.
pub(super) fn span(axes: &[(i64, i64)]) -> i64 {
    1 + axes.iter().map(|axis| (axis.0 - 1) * axis.1).sum::<i64>()
}

/// For each coordinate of a dimension, the steps along each axis.
fn steps_of(dim: &Layout<Expr>, axes: usize, scope: &Scope) -> Result<Vec<i64>> {
    let leaves = dim.leaves();
    let sizes: Vec<i64> =
        leaves.iter().map(|leaf| scope.fixed(&leaf.size)).collect::<Result<_>>()?;
    let count: i64 = sizes.iter().product();
    let mut steps = vec![0; axes * usize::try_from(count).map_err(|_| Error::Size(count))?];
    let mut apart = 1;
    for (leaf, size) in leaves.iter().zip(&sizes) {
        for (axis, step) in leaf.stride.steps() {
            let step = scope.fixed(step)?;
            for i in 0..count {
                steps[i as usize * axes + axis] += i / apart % size * step;
            }
        }
        apart *= size;
    }
    Ok(steps)
}

impl Team {
    /// The number among them of a thread, which is given relative to the first.
    pub(super) fn rank(&self, offset: i64) -> usize {
        self.offsets.binary_search(&offset).unwrap_or_default()
    }

    /// Compiles the threads or blocks that a tensor reaches. Fails with [`Error::Shape`] for sizes that are not fixed at launch.
    pub(super) fn of(threads: &Threads, scope: &Scope) -> Result<Team> {
        let view = &threads.view;
        let mut offsets = vec![0];
        for leaf in view.leaves() {
            let size = scope.fixed(&leaf.size)?;
            let stride = if size > 1 { scope.fixed(&view.stride(leaf))? } else { 0 };
            let moved = |i| offsets.iter().map(move |offset| offset + i * stride);
            offsets = (0..size).flat_map(moved).collect();
        }
        offsets.sort_unstable();
        let start = scope.compile(&view.offset())?;
        Ok(Team { size: offsets.len() as i64, start, offsets })
    }
}
