//! Functional composition.
//!
//! `R = A o B` means `R(i) = A(B(i))` for every `i` below `size(B)`, with a shape that refines `B`'s. A step of `B` along an
//! axis, `d@k`, is one in mode `k` of `A`. The parts of such an `R` are determined: the part of a mode `s:d` must be the function
//! `c -> A(d*c)`, and the parts must add up. So there is at most one `R` up to merging of modes, and it exists exactly if
//!
//! 1. each `c -> A(d*c)` on `[0,s)` is a layout. Its first mode can only be the longest run that
//!    follows one stride, and that run must divide `s`; then the same holds for the next stride;
//! 2. the offset of every coordinate is the sum of its modes' offsets. It is when adding the
//!    modes' positions never carries from one mode of `A` into the next.
//!
//! Both are decided by the digits of the strides in the mixed radix of `A`'s sizes. Where there
//! are carries, elements are tried one by one (carries may cancel, rarely), up to a limit.
//!
//! Of expressions, those that are divided must be constants: all sizes of `A` that `B` reaches, but the last of a mode.

use super::coalesce::{continues, merged, reached};
use super::{Int, IntTuple, Layout, Leaf, Node, Stride};
use crate::{Error, Result, convert::from};

/// The work, in elements times modes, spent on trying elements when carries leave it unclear whether there is an answer.
const MAX_WORK: i64 = 1 << 22;

/// What a layout is composed with, divided by or multiplied by: one layout for the whole, or one tiler per mode.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Tiler {
    /// `_`: leaves its mode as it is.
    Whole,
    /// So many neighbours, of all coordinates as one integer.
    Size(i64),
    /// Applies to all coordinates, as one integer.
    Layout(Layout),
    /// Applies to the leading modes, one by one.
    Modes(Vec<Tiler>),
}

from! {
    Layout => Tiler: |layout| match layout.as_leaf() {
        Some(leaf) if leaf.stride.number() == Some(1) => Tiler::Size(leaf.size),
        _ => Tiler::Layout(layout),
    };
    // A shape's sizes, mode by mode.
    &IntTuple => Tiler: |shape| match shape {
        IntTuple::Int(size) => Tiler::Size(*size),
        IntTuple::Tuple(parts) => Tiler::Modes(parts.iter().map(Tiler::from).collect()),
    };
}

/// `a o b` by a tiler: by mode where the tiler is a tuple. Modes of `a` that the tiler does not reach are dropped, as in CuTe.
pub fn composition_by<I: Int>(a: &Layout<I>, b: &Tiler) -> Result<Layout<I>> {
    match b {
        Tiler::Whole => Ok(a.clone()),
        Tiler::Size(size) => composition(a, &Layout::mode(I::from(*size), I::from(1))?),
        Tiler::Layout(layout) => composition(a, &layout.lift()),
        Tiler::Modes(tilers) => {
            let modes = reached("composition", a, tilers)?.iter().zip(tilers);
            Layout::tuple(modes.map(|(a, b)| composition_by(a, b)).collect::<Result<_>>()?)
        }
    }
}

/// The layout `R` with `R(i) = A(B(i))` for all `i` below `size(b)`, whose shape refines `b`'s.
/// `a` may be over-run: it continues along its last leaf. Fails if there is no such layout.
pub fn composition<I: Int>(a: &Layout<I>, b: &Layout<I>) -> Result<Layout<I>> {
    let domain = Domain::of(a, b)?;
    let mut parts = Vec::new();
    let result = domain.compose(b, &mut parts)?;
    domain.check_sum(&parts)?;
    Ok(result)
}

/// One mode of the result: `size` steps of `position` in `A`'s domain, each moving `offset`.
struct Part<I> {
    size: I,
    position: Stride<I>,
    offset: Stride<I>,
}

/// A layout as a function on all integers: bounded modes, fastest first, and the stride of the last mode, which has no bound.
struct Radix<I> {
    bounded: Vec<(i64, Stride<I>)>,
    last: Stride<I>,
}

impl<I: Int> Radix<I> {
    fn new(a: &Layout<I>) -> Result<Radix<I>> {
        let leaves = a.leaves();
        let Some((last, inner)) = leaves.split_last() else {
            return Ok(Radix { bounded: Vec::new(), last: Stride::zero() });
        };
        let mut bounded = merged(inner)?;
        let mut last = last.stride.clone();
        while let Some(mode) = bounded.pop_if(|mode| continues(mode, &last)) {
            last = mode.stride;
        }
        let fixed = |Leaf { size, stride }: Leaf<I>| match size.constant() {
            Some(size) if size > 0 => Ok((size, stride)),
            Some(size) => Err(Error::Size(size)),
            None => Err(Error::UnknownSize { a: Box::new(a.lift()), size: size.into() }),
        };
        Ok(Radix { bounded: bounded.into_iter().map(fixed).collect::<Result<_>>()?, last })
    }

    fn at(&self, position: &I) -> Result<Stride<I>> {
        let (mut rest, mut offset) = (position.clone(), Stride::zero());
        for (size, stride) in &self.bounded {
            let size = I::from(*size);
            offset = offset.plus(&stride.times(&rest.modulo(&size))?)?;
            rest = rest.over(&size);
        }
        offset.plus(&self.last.times(&rest)?)
    }

    /// The stride that CuTe prints for a mode of size 1, where any would do.
    fn unit_stride(&self, position: &I) -> Result<Stride<I>> {
        let mut rest = position.clone();
        if let Some(known) = position.constant() {
            let over = |rest: u64, (size, _): &(i64, _)| rest.div_ceil(size.unsigned_abs());
            let whole = self.bounded.iter().fold(known.unsigned_abs(), over);
            rest = I::from(i64::try_from(whole).map_or(0, |whole| whole * known.signum()));
        }
        Ok(self.last.times(&rest).unwrap_or_else(|_| Stride::zero()))
    }
}

/// The left side of a composition: what a position is a coordinate of, on the whole and by axes.
struct Domain<'a, I> {
    a: &'a Layout<I>,
    b: &'a Layout<I>,
    /// Those that the right side moves along.
    radices: Vec<(Option<usize>, Radix<I>)>,
}

impl<I: Int> Domain<'_, I> {
    fn of<'a>(a: &'a Layout<I>, b: &'a Layout<I>) -> Result<Domain<'a, I>> {
        let mut radices: Vec<(Option<usize>, Radix<I>)> = Vec::new();
        let leaves = b.leaves();
        for (axis, _) in leaves.iter().flat_map(|leaf| &leaf.stride.terms) {
            if radices.iter().all(|known| known.0 != *axis) {
                radices.push((*axis, Radix::new(a.domain("composition", *axis)?)?));
            }
        }
        Ok(Domain { a, b, radices })
    }

    fn compose(&self, b: &Layout<I>, parts: &mut Vec<Part<I>>) -> Result<Layout<I>> {
        match &b.node {
            Node::Leaf(leaf) => self.compose_leaf(leaf, parts),
            Node::Tuple(modes) => Layout::tuple(
                modes.iter().map(|mode| self.compose(mode, parts)).collect::<Result<_>>()?,
            ),
        }
    }

    fn compose_leaf(&self, b: &Leaf<I>, parts: &mut Vec<Part<I>>) -> Result<Layout<I>> {
        if b.size.equals(1) {
            let unit = self.sum(&b.stride, Radix::unit_stride)?;
            return Layout::mode(I::from(1), unit);
        }
        let mut modes = Vec::new();
        let (mut rest, mut position) = (b.size.clone(), b.stride.clone());
        loop {
            let offset = self.at(&position)?;
            let run = self.run(&rest, &position, &offset)?;
            if !rest.modulo(&run).equals(0) {
                return Err(Error::Divisibility {
                    a: Box::new(self.a.lift()),
                    size: b.size.clone().into(),
                    stride: b.stride.lift(),
                    run: run.into(),
                    rest: rest.into(),
                });
            }
            modes.push(Leaf { size: run.clone(), stride: offset.clone() });
            parts.push(Part { size: run.clone(), position: position.clone(), offset });
            rest = rest.over(&run);
            if rest.equals(1) {
                return Layout::flat(modes);
            }
            position = position.times(&run)?;
        }
    }

    /// What each term of a position gives, together.
    fn sum(
        &self,
        position: &Stride<I>,
        of: impl Fn(&Radix<I>, &I) -> Result<Stride<I>>,
    ) -> Result<Stride<I>> {
        position.terms.iter().try_fold(Stride::zero(), |sum, (axis, by)| {
            match self.radices.iter().find(|radix| radix.0 == *axis) {
                Some((_, radix)) => sum.plus(&of(radix, by)?),
                None => Ok(sum),
            }
        })
    }

    fn at(&self, position: &Stride<I>) -> Result<Stride<I>> {
        self.sum(position, Radix::at)
    }

    /// The digits of a position in all bounded modes, those of a term of its sign.
    fn digits(&self, position: &Stride<I>) -> Result<Vec<i64>> {
        let mut digits = Vec::new();
        for (axis, radix) in &self.radices {
            let by = position.terms.iter().find(|term| term.0 == *axis).map(|term| &term.1);
            let mut rest = match by.map_or(Some(0), Int::constant) {
                Some(rest) => rest,
                None if radix.bounded.is_empty() => continue,
                None => return Err(self.undecided()),
            };
            for (size, _) in &radix.bounded {
                digits.push(rest % size);
                rest /= size;
            }
        }
        Ok(digits)
    }

    fn bounds(&self) -> impl Iterator<Item = i64> {
        self.radices.iter().flat_map(|radix| radix.1.bounded.iter().map(|mode| mode.0))
    }

    /// How many elements may be tried, for a right side of so many modes.
    fn trials(&self, parts: usize) -> i64 {
        i64::try_from(self.bounds().count() + parts + 1).map_or(0, |modes| MAX_WORK / modes)
    }

    /// How many of the first `size` multiples of `position` are at multiples of `offset`, which is
    /// the offset of `position`. Fails if that is not decided within the limit.
    fn run(&self, size: &I, position: &Stride<I>, offset: &Stride<I>) -> Result<I> {
        let digits = self.digits(position)?;
        let digits = digits.into_iter().zip(self.bounds()).filter(|(digit, _)| *digit != 0);
        let carry = digits.map(|(digit, radix)| (radix - 1) / digit.abs() + 1).min();
        let Some(carry) = carry else { return Ok(size.clone()) };
        let limit = carry.saturating_add(self.trials(1));
        let known = size.constant().unwrap_or(i64::MAX);
        for count in (carry..known.min(limit)).map(I::from) {
            let there = self.at(&position.times(&count)?)?;
            if !offset.times(&count).is_ok_and(|straight| straight == there) {
                return Ok(count);
            }
        }
        if known <= limit { Ok(size.clone()) } else { Err(self.undecided()) }
    }

    fn undecided(&self) -> Error {
        Error::Undecided { a: Box::new(self.a.lift()), b: Box::new(self.b.lift()) }
    }

    /// Checks that offsets add up over the parts, condition 2 above.
    fn check_sum(&self, parts: &[Part<I>]) -> Result {
        if self.never_carries(parts)? {
            return Ok(());
        }
        let parts: Vec<&Part<I>> = parts.iter().filter(|part| !part.position.is_zero()).collect();
        let sizes: Option<Vec<i64>> = parts.iter().map(|part| part.size.constant()).collect();
        let Some(sizes) = sizes else { return Err(self.undecided()) };
        // Small steps and corners first: they refute most of what is wrong, whatever the size.
        let probes: Vec<[i64; 3]> = sizes.iter().map(|size| [0, 1, size - 1]).collect();
        self.try_all(&parts, |part, step| probes[part].get(step).copied())?;
        let total = sizes.iter().try_fold(1_i64, |total, size| total.checked_mul(*size));
        if total.is_none_or(|total| total > self.trials(parts.len())) {
            return Err(self.undecided());
        }
        self.try_all(&parts, |part, step| {
            i64::try_from(step).ok().filter(|step| *step < sizes[part])
        })
    }

    fn never_carries(&self, parts: &[Part<I>]) -> Result<bool> {
        let mut sums = vec![0_i128; self.bounds().count()];
        let mut signs = [false; 2];
        for part in parts {
            for (sum, digit) in sums.iter_mut().zip(self.digits(&part.position)?) {
                match (digit, part.size.constant()) {
                    (0, _) => {}
                    (_, Some(size)) => *sum += i128::from(digit.abs()) * i128::from(size - 1),
                    (_, None) => return Ok(false),
                }
            }
            for by in part.position.terms.iter().filter_map(|term| term.1.constant()) {
                signs[usize::from(by > 0)] = true;
            }
        }
        let below = sums.iter().zip(self.bounds()).all(|(sum, size)| *sum < i128::from(size));
        Ok(signs != [true; 2] && below)
    }

    /// Compares the offset of each coordinate with the sum of its parts' offsets, over all combinations of the coordinates that
    /// `choices` lists for each part, as many of them as the limit allows.
    fn try_all(&self, parts: &[&Part<I>], choices: impl Fn(usize, usize) -> Option<i64>) -> Result {
        let mut steps = vec![0_usize; parts.len()];
        for _ in 0..self.trials(parts.len()) {
            let (mut position, mut sum) = (Stride::zero(), Stride::zero());
            for (i, part) in parts.iter().enumerate() {
                let coordinate = I::from(choices(i, steps[i]).unwrap_or(0));
                position = position.plus(&part.position.times(&coordinate)?)?;
                sum = sum.plus(&part.offset.times(&coordinate)?)?;
            }
            let whole = self.at(&position)?;
            if whole != sum {
                return Err(Error::Carry {
                    a: Box::new(self.a.lift()),
                    b: Box::new(self.b.lift()),
                    position: position.lift(),
                    parts: sum.lift(),
                    whole: whole.lift(),
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
}
