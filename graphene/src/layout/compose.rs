//! Functional composition.
//!
//! `R = A o B` means `R(i) = A(B(i))` for every `i` below `size(B)`, with a shape that refines
//! `B`'s. The parts of such an `R` are determined: the part of a mode `s:d` must be the function
//! `c -> A(d*c)`, and the parts must add up. So there is at most one `R` up to merging of modes,
//! and it exists exactly if
//!
//! 1. each `c -> A(d*c)` on `[0,s)` is a layout. Its first mode can only be the longest run that
//!    follows one stride, and that run must divide `s`; then the same holds for the next stride;
//! 2. the offset of every coordinate is the sum of its modes' offsets. It is when adding the
//!    modes' positions never carries from one mode of `A` into the next.
//!
//! Both are decided by the digits of the strides in the mixed radix of `A`'s sizes. Where there
//! are carries, elements are tried one by one (carries may cancel, rarely), up to a limit.

use super::coalesce::continues;
use super::{IntTuple, Layout, Node};
use crate::error::{Error, Result};

/// The work, in elements times modes, spent on trying elements when carries leave it unclear
/// whether there is an answer.
const MAX_WORK: i64 = 1 << 22;

/// What a layout is composed with, divided by or multiplied by: one layout for the whole, or one
/// tiler per mode. A shape stands for the tuple of its leaves with stride 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tiler {
    /// `_`: leaves its mode as it is.
    Whole,
    /// Applies to all coordinates, as one integer.
    Layout(Layout),
    /// Applies to the leading modes, one by one.
    Modes(Vec<Tiler>),
}

impl From<Layout> for Tiler {
    fn from(layout: Layout) -> Tiler {
        Tiler::Layout(layout)
    }
}

impl Tiler {
    /// The tiler that a shape stands for.
    pub fn from_shape(shape: &IntTuple) -> Result<Tiler> {
        shape.check_depth()?;
        match shape {
            IntTuple::Int(size) => Ok(Tiler::Layout(Layout::mode(*size, 1)?)),
            IntTuple::Tuple(parts) => {
                Ok(Tiler::Modes(parts.iter().map(Tiler::from_shape).collect::<Result<_>>()?))
            }
        }
    }
}

/// `a o b` by a tiler: by mode where the tiler is a tuple. Modes of `a` that the tiler does not
/// reach are dropped, as in CuTe.
pub fn composition_by(a: &Layout, b: &Tiler) -> Result<Layout> {
    match b {
        Tiler::Whole => Ok(a.clone()),
        Tiler::Layout(layout) => composition(a, layout),
        Tiler::Modes(tilers) => {
            let modes = a.modes();
            if tilers.len() > modes.len() {
                let (modes, rank) = (tilers.len(), modes.len());
                return Err(Error::Rank { op: "composition", modes, rank });
            }
            Layout::tuple(
                modes
                    .iter()
                    .zip(tilers)
                    .map(|(a, b)| composition_by(a, b))
                    .collect::<Result<_>>()?,
            )
        }
    }
}

/// The layout `R` with `R(i) = A(B(i))` for all `i` below `size(b)`, whose shape refines `b`'s.
/// `a` may be over-run: it continues along its last leaf. Fails if there is no such layout.
pub fn composition(a: &Layout, b: &Layout) -> Result<Layout> {
    let radix = Radix::new(a);
    let mut parts = Vec::new();
    let result = compose_tree(a, &radix, b, &mut parts)?;
    check_sum(a, b, &radix, &parts)?;
    Ok(result)
}

/// One mode of the result: `size` steps of `position` in `A`'s domain, each moving `offset`.
struct Part {
    size: i64,
    position: i64,
    offset: i64,
}

/// A layout as a function on all integers: bounded modes `(size, stride)`, fastest first, and the
/// stride of the last mode, which has no bound.
struct Radix {
    bounded: Vec<(i64, i64)>,
    last: i64,
}

impl Radix {
    fn new(a: &Layout) -> Radix {
        let leaves = a.leaves();
        let mut bounded: Vec<(i64, i64)> = Vec::new();
        let (inner, last) = match leaves.split_last() {
            Some((last, inner)) => (inner, last.1),
            None => (&leaves[..], 0),
        };
        for &(size, stride) in inner.iter().filter(|leaf| leaf.0 != 1) {
            match bounded.last_mut() {
                Some(mode) if continues(*mode, stride) => mode.0 *= size,
                Some(_) | None => bounded.push((size, stride)),
            }
        }
        let mut radix = Radix { bounded, last };
        while let Some(mode) = radix.bounded.pop_if(|mode| continues(*mode, radix.last)) {
            radix.last = mode.1;
        }
        radix
    }

    fn at(&self, position: i64) -> Result<i64> {
        let mut rest = i128::from(position);
        let mut offset: i128 = 0;
        for &(size, stride) in &self.bounded {
            offset += (rest % i128::from(size)) * i128::from(stride);
            rest /= i128::from(size);
        }
        offset += rest * i128::from(self.last);
        i64::try_from(offset).map_err(|_| Error::Overflow)
    }

    /// The digits of a position in the bounded modes, all of its sign.
    fn digits(&self, position: i64) -> impl Iterator<Item = (i64, i64)> {
        let mut rest = position;
        self.bounded.iter().map(move |&(size, _)| {
            let digit = rest % size;
            rest /= size;
            (digit, size)
        })
    }

    /// How many elements may be tried, for a right side of so many modes.
    fn trials(&self, parts: usize) -> i64 {
        i64::try_from(self.bounded.len() + parts + 1).map_or(0, |modes| MAX_WORK / modes)
    }

    /// How many of the first `size` multiples of `position` are at multiples of `offset`, which is
    /// the offset of `position`. None if that is not decided within the limit.
    fn run(&self, size: i64, position: i64, offset: i64) -> Result<Option<i64>> {
        let carry = self
            .digits(position)
            .filter(|(digit, _)| *digit != 0)
            .map(|(digit, radix)| (radix - 1) / digit.abs() + 1)
            .min();
        let Some(carry) = carry else { return Ok(Some(size)) };
        let trials = self.trials(1);
        for count in carry..size.min(carry.saturating_add(trials)) {
            let whole = self.at(position.checked_mul(count).ok_or(Error::Overflow)?)?;
            if i128::from(whole) != i128::from(offset) * i128::from(count) {
                return Ok(Some(count));
            }
        }
        Ok((size - carry <= trials).then_some(size))
    }

    /// The stride that CuTe prints for a mode of size 1, where any would do.
    fn unit_stride(&self, position: i64) -> i64 {
        let mut rest = position.unsigned_abs();
        for &(size, _) in &self.bounded {
            rest = rest.div_ceil(size.unsigned_abs());
        }
        i64::try_from(i128::from(rest) * i128::from(position.signum()) * i128::from(self.last))
            .unwrap_or(0)
    }
}

fn compose_tree(a: &Layout, radix: &Radix, b: &Layout, parts: &mut Vec<Part>) -> Result<Layout> {
    match &b.node {
        Node::Leaf { size, stride } => compose_leaf(a, radix, b, (*size, *stride), parts),
        Node::Tuple(modes) => Layout::tuple(
            modes.iter().map(|mode| compose_tree(a, radix, mode, parts)).collect::<Result<_>>()?,
        ),
    }
}

fn compose_leaf(
    a: &Layout,
    radix: &Radix,
    b: &Layout,
    (size, stride): (i64, i64),
    parts: &mut Vec<Part>,
) -> Result<Layout> {
    if size == 1 {
        return Layout::mode(1, radix.unit_stride(stride));
    }
    let mut modes = Vec::new();
    let (mut rest, mut position) = (size, stride);
    loop {
        let offset = radix.at(position)?;
        let Some(run) = radix.run(rest, position, offset)? else {
            return Err(Error::Undecided { a: Box::new(a.clone()), b: Box::new(b.clone()) });
        };
        if rest % run != 0 {
            return Err(Error::Divisibility { a: Box::new(a.clone()), size, stride, run, rest });
        }
        modes.push((run, offset));
        parts.push(Part { size: run, position, offset });
        rest /= run;
        if rest == 1 {
            return Layout::flat(&modes);
        }
        position = position.checked_mul(run).ok_or(Error::Overflow)?;
    }
}

/// Checks that offsets add up over the parts, condition 2 above.
fn check_sum(a: &Layout, b: &Layout, radix: &Radix, parts: &[Part]) -> Result<()> {
    if never_carries(radix, parts) {
        return Ok(());
    }
    let parts: Vec<&Part> = parts.iter().filter(|part| part.position != 0).collect();
    // Small steps and corners first: they refute most of what is wrong, whatever the size.
    let probes: Vec<Vec<i64>> = parts.iter().map(|part| vec![0, 1, part.size - 1]).collect();
    try_all(a, b, radix, &parts, |part, step| probes[part].get(step).copied())?;
    let total = parts.iter().try_fold(1_i64, |total, part| total.checked_mul(part.size));
    if total.is_none_or(|total| total > radix.trials(parts.len())) {
        return Err(Error::Undecided { a: Box::new(a.clone()), b: Box::new(b.clone()) });
    }
    let sizes: Vec<i64> = parts.iter().map(|part| part.size).collect();
    try_all(a, b, radix, &parts, |part, step| {
        i64::try_from(step).ok().filter(|step| *step < sizes[part])
    })
}

fn never_carries(radix: &Radix, parts: &[Part]) -> bool {
    let one_sign =
        parts.iter().all(|part| part.position >= 0) || parts.iter().all(|part| part.position <= 0);
    let mut sums = vec![0_i128; radix.bounded.len()];
    for part in parts {
        for (sum, (digit, _)) in sums.iter_mut().zip(radix.digits(part.position)) {
            *sum += i128::from(digit.abs()) * i128::from(part.size - 1);
        }
    }
    one_sign && sums.iter().zip(&radix.bounded).all(|(sum, mode)| *sum < i128::from(mode.0))
}

/// Compares the offset of each coordinate with the sum of its parts' offsets, over the product of
/// the coordinates that `choices` lists for each part, as many of them as the limit
/// allows.
fn try_all(
    a: &Layout,
    b: &Layout,
    radix: &Radix,
    parts: &[&Part],
    choices: impl Fn(usize, usize) -> Option<i64>,
) -> Result<()> {
    let mut steps = vec![0_usize; parts.len()];
    for _ in 0..radix.trials(parts.len()) {
        let (mut position, mut sum) = (0_i128, 0_i128);
        for (i, part) in parts.iter().enumerate() {
            let coordinate = i128::from(choices(i, steps[i]).unwrap_or(0));
            position += coordinate * i128::from(part.position);
            sum += coordinate * i128::from(part.offset);
        }
        let position = i64::try_from(position).map_err(|_| Error::Overflow)?;
        let whole = radix.at(position)?;
        if i128::from(whole) != sum {
            let parts = i64::try_from(sum).map_err(|_| Error::Overflow)?;
            return Err(Error::Carry {
                a: Box::new(a.clone()),
                b: Box::new(b.clone()),
                position,
                parts,
                whole,
            });
        }
        let Some(next) = (0..parts.len()).find(|&i| choices(i, steps[i] + 1).is_some()) else {
            return Ok(());
        };
        steps[..next].fill(0);
        steps[next] += 1;
    }
    Ok(())
}
