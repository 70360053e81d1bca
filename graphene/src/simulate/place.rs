//! Where operands lie: a spec's tensors, compiled to offsets in the machine's memories.

use std::ops::Deref;

use super::formula::{Formula, Scope};
use crate::{Error, Memory, Result, Scalar, Swizzle, Tensor, Threads, View};

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
    pub(super) len: usize,
    /// Its first byte in shared memory.
    pub(super) address: i64,
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

/// The threads that carry out a spec together: how many, the first one, and all relative to it, in order.
#[derive(Debug)]
pub(super) struct Team {
    pub(super) size: i64,
    pub(super) start: Formula,
    pub(super) offsets: Vec<i64>,
}

impl Place {
    /// Compiles an operand that lies in `root`. Fails with [`Error::Shape`] for sizes and strides that are not fixed at launch.
    pub(super) fn of(tensor: &Tensor, root: &Root, align: i64, scope: &Scope) -> Result<Place> {
        let view = &tensor.view;
        let axes = axes_of(view, scope)?;
        let starts = view.start().iter().map(|of| scope.compile(of)).collect::<Result<Vec<_>>>()?;
        let peer = tensor.peer.as_ref().map(|peer| scope.compile(peer)).transpose()?;
        let varying = starts.iter().chain(&peer).any(|formula| formula.varying);
        let (mut reach, mut steps) = (vec![0; axes.len()], vec![0; axes.len()]);
        let (mut dims, mut distances) = (Vec::new(), vec![0]);
        for dim in view.dims() {
            let mut count = 1;
            for leaf in dim.leaves() {
                let size = scope.fixed(&leaf.size)?;
                let mut along = vec![0; axes.len()];
                for (axis, step) in leaf.stride.steps() {
                    along[axis] += scope.fixed(step)?;
                    reach[axis] += (size - 1) * scope.fixed(step)?;
                }
                let apart: i64 = along.iter().zip(&axes).map(|(step, axis)| step * axis.1).sum();
                let moved = |i| distances.iter().map(move |from| from + i * apart);
                distances = (0..size).flat_map(moved).collect();
                let moved = |i| {
                    let from = steps.iter().zip(along.iter().cycle());
                    from.map(move |(from, step)| from + i * step)
                };
                steps = (0..size).flat_map(moved).collect();
                count *= size;
            }
            if count < 0 {
                return Err(Error::Size(count));
            }
            if !dim.size().is(1) {
                dims.push(count);
            }
        }
        Ok(Place {
            root: root.clone(),
            bytes: tensor.scalar.bytes(),
            swizzle: tensor.swizzle,
            peer,
            align,
            varying,
            starts,
            axes,
            reach,
            dims,
            distances,
            steps,
        })
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

    pub(super) fn size(&self) -> i64 {
        self.distances.len() as i64
    }

    /// Whether all of an operand that begins here lies inside of its buffer.
    pub(super) fn is_whole(&self, starts: &[i64]) -> bool {
        let mut axes = starts.iter().zip(&self.axes).zip(&self.reach);
        axes.all(|((start, axis), reach)| *start >= 0 && start + reach < axis.0)
    }

    /// Whether an element of one that begins here does.
    #[cold]
    pub(super) fn is_inside(&self, starts: &[i64], number: usize) -> bool {
        let mut axes = starts.iter().zip(self.steps(number)).zip(&self.axes);
        axes.all(|((start, step), axis)| (0..axis.0).contains(&(start + step)))
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
        Ok(Team { size: offsets.len() as i64, start: scope.compile(&view.offset())?, offsets })
    }
}
