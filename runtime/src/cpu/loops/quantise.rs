//! Quantisation in one pass: numbers scaled, moved, rounded, moved by a zero point and clamped, which a body spells as an
//! operation each.

use super::elements::{Elements, byte};
use super::{Instruction, Loop, Operation, Register, Scalar, Source};
use crate::cpu::kernels::simd::{Kernel, dispatch};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Binary, Unary};
use pulp::Simd;

/// Outputs that may be stored directly: the first ones.
pub(super) const STORED: usize = u64::BITS as usize;

/// Instructions that quantise, those of them that there are in this order: `x` less a zero point, times its scale, at least
/// 0; times factors, plus addends, divided by a scale, rounded, plus a zero point, clamped.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Quantise {
    /// How many instructions they are.
    pub(super) len: usize,
    x: Source,
    minus: f32,
    times: f32,
    floor: f32,
    factors: Option<Source>,
    addends: Option<Source>,
    over: Option<Source>,
    rounds: bool,
    zero: Option<Source>,
    low: f32,
    high: f32,
    pub(super) target: Register,
    /// The output of bytes that takes the result directly, if nothing else reads it.
    pub(super) stored: Option<usize>,
}

impl Quantise {
    /// The quantisation that begins with each instruction of a loop, if one does.
    pub(super) fn all(program: &Loop) -> Vec<Option<Self>> {
        (0..program.instructions.len()).map(|first| Self::at(program, first)).collect()
    }

    fn at(program: &Loop, first: usize) -> Option<Self> {
        let x = *program.instructions[first].sources.first()?;
        let mut made = Self {
            len: 0,
            x,
            minus: 0.0,
            times: 1.0,
            floor: f32::NEG_INFINITY,
            factors: None,
            addends: None,
            over: None,
            rounds: false,
            zero: None,
            low: f32::NEG_INFINITY,
            high: f32::INFINITY,
            target: program.instructions[first].target,
            stored: None,
        };
        let mut value = x;
        for instruction in &program.instructions[first..] {
            let follows = instruction.dtype == DType::F32
                && instruction.stored.is_none()
                && (made.len == 0 || program.is_read_once(first + made.len - 1));
            if !follows || !made.takes(instruction, value) {
                break;
            }
            made.len += 1;
            made.target = instruction.target;
            value = Source::Register(instruction.target);
        }
        if !made.rounds || made.len < 2 || made.low > made.high {
            return None;
        }
        let last = first + made.len - 1;
        let outputs = program.outputs.iter().enumerate();
        let mut given = outputs.filter(|(_, (_, source))| *source == Some(value));
        let fits = made.low >= -128.0 && made.high <= 255.0;
        if fits
            && program.is_given(last)
            && program.readers(last).next().is_none()
            && let (Some((number, (DType::U8 | DType::I8, _))), None) = (given.next(), given.next())
        {
            made.stored = Some(number).filter(|&number| number < STORED);
        }
        Some(made)
    }

    /// Adds an instruction on a value, if it is a next one of a quantisation.
    fn takes(&mut self, instruction: &Instruction, value: Source) -> bool {
        let y = match (&instruction.sources[..], instruction.operation) {
            (&[x], _) if x == value => None,
            (&[x, y], _) if x == value && y != value => Some(y),
            (&[y, x], Operation::Binary(Binary::Add | Binary::Mul)) if x == value && y != value => {
                Some(y)
            }
            _ => return false,
        };
        let number = match y {
            Some(Source::Scalar(Scalar::F32(number))) if !number.is_nan() => Some(number),
            _ => None,
        };
        let unscaled = self.factors.is_none() && self.addends.is_none() && self.over.is_none();
        let fresh = unscaled && self.floor == f32::NEG_INFINITY && self.times == 1.0;
        let unclamped = self.low == f32::NEG_INFINITY && self.high == f32::INFINITY;
        match (self.rounds, instruction.operation, y, number) {
            (false, Operation::Binary(Binary::Sub), _, Some(minus)) if fresh && self.len == 0 => {
                self.minus = minus;
            }
            (false, Operation::Binary(Binary::Mul), _, Some(times)) if fresh => self.times = times,
            (false, Operation::Unary(Unary::Relu), ..) if unscaled => self.floor = 0.0,
            (false, Operation::Binary(Binary::Mul), Some(_), _) if unscaled => self.factors = y,
            (false, Operation::Binary(Binary::Add), Some(_), _)
                if self.addends.is_none() && self.over.is_none() =>
            {
                self.addends = y;
            }
            (false, Operation::Binary(Binary::Div), Some(_), _) if self.over.is_none() => {
                self.over = y;
            }
            (false, Operation::Unary(Unary::Round), ..) => self.rounds = true,
            (true, Operation::Binary(Binary::Add), Some(_), _)
                if unclamped && self.zero.is_none() =>
            {
                self.zero = y;
            }
            (true, Operation::Unary(Unary::Relu), ..) => self.low = self.low.max(0.0),
            (true, Operation::Binary(Binary::Max), _, Some(low)) => self.low = self.low.max(low),
            (true, Operation::Binary(Binary::Min), _, Some(high)) => {
                self.high = self.high.min(high)
            }
            _ => return false,
        }
        true
    }

    /// Quantises a block; `false`, with nothing done, for operands of other kinds than the pass knows.
    pub(super) fn run<'a>(&self, to: To<'_>, block: impl Fn(Source) -> Elements<'a>) -> bool {
        let Elements::F32(x) = block(self.x) else { return false };
        let scalar = |source: Option<Source>| match source.map(&block) {
            None => Some(None),
            Some(Elements::Scalar(Scalar::F32(number))) => Some(Some(number)),
            Some(_) => None,
        };
        let each = |source: Option<Source>| match source.map(&block) {
            None => Some(Operand::None),
            Some(Elements::Scalar(Scalar::F32(number))) => Some(Operand::Same(number)),
            Some(Elements::F32(numbers)) => Some(Operand::Each(numbers)),
            Some(_) => None,
        };
        let (Some(zero), Some(over)) = (scalar(self.zero), scalar(self.over)) else { return false };
        let (Some(factors), Some(addends)) = (each(self.factors), each(self.addends)) else {
            return false;
        };
        let &Self { minus, times, floor, low, high, .. } = self;
        let before = Before { minus, times, floor };
        // Of all numbers this one is no addend to -0 either.
        let after = After { zero: zero.unwrap_or(-0.0), low, high };
        let over = match over.map(|over| Quotient::new(over).filter(|_| after.is_narrow())) {
            Some(None) => return false,
            Some(over) => over,
            None => None,
        };
        dispatch(Pass { x, before, factors, addends, over, after, to });
        true
    }
}

impl Loop {
    /// Whether the next instruction alone reads the result of this one.
    fn is_read_once(&self, at: usize) -> bool {
        self.readers(at).eq([at + 1]) && !self.is_given(at)
    }

    /// Whether an output is the result of an instruction.
    fn is_given(&self, at: usize) -> bool {
        let result = self.instructions[at].target;
        let overwritten = self.instructions[at + 1..].iter().any(|next| next.target == result);
        let mut sources = self.outputs.iter().map(|(_, source)| *source);
        !overwritten && sources.any(|source| source == Some(Source::Register(result)))
    }

    /// The instructions that read the result of another.
    fn readers(&self, at: usize) -> impl Iterator<Item = usize> {
        let result = self.instructions[at].target;
        let later = self.instructions.iter().enumerate().skip(at + 1);
        let mut alive = true;
        later.filter_map(move |(number, instruction)| {
            let reads = alive && instruction.sources.contains(&Source::Register(result));
            alive &= instruction.target != result;
            reads.then_some(number)
        })
    }
}

/// Where quantised numbers go.
pub(super) enum To<'a> {
    Reals(&'a mut [f32]),
    /// As bytes, whether of 0 to 255 or of -128 to 127.
    Bytes(&'a mut [u8]),
}

enum Operand<'a> {
    None,
    Same(f32),
    Each(&'a [f32]),
}

/// Division by one number, each quotient rounded as by an instruction for it.
///
/// Markstein, *Computation of elementary functions on the IBM RISC System/6000 processor* (1990): from a reciprocal that is
/// correctly rounded, and a quotient within a unit in the last place, one step gives the quotient correctly rounded, unless
/// the divisor's fraction is all ones. Another step before brings any first guess so near.
#[derive(Clone, Copy)]
struct Quotient {
    by: f32,
    reciprocal: f32,
}

impl Quotient {
    /// `None` where steps might leave the range of normal numbers.
    fn new(by: f32) -> Option<Self> {
        let fraction = by.to_bits() & 0x007f_ffff;
        let usual = (1e-25..1e25).contains(&by.abs()) && fraction != 0x007f_ffff;
        usual.then(|| Self { by, reciprocal: 1.0 / by })
    }

    /// The quotient of a number, if it is less than 2²⁴ in magnitude and not tiny; else one that rounds and clamps to the
    /// same.
    #[inline(always)]
    fn of<const FMA: bool>(self, x: f32) -> f32 {
        if !FMA {
            return x / self.by;
        }
        let guess = x * self.reciprocal;
        let nearer = (-guess).mul_add(self.by, x).mul_add(self.reciprocal, guess);
        let exact = (-nearer).mul_add(self.by, x).mul_add(self.reciprocal, nearer);
        if guess.abs() < 16_777_216.0 { exact } else { guess }
    }
}

/// What is done with a number before it is scaled.
#[derive(Clone, Copy)]
struct Before {
    minus: f32,
    times: f32,
    floor: f32,
}

impl Before {
    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        let x = (x - self.minus) * self.times;
        if x < self.floor { self.floor } else { x }
    }
}

/// What is done with a scaled number.
#[derive(Clone, Copy)]
struct After {
    zero: f32,
    low: f32,
    high: f32,
}

impl After {
    /// Whether all numbers from 2²⁴ on become one, and all from -2²⁴ down.
    fn is_narrow(self) -> bool {
        [self.zero, self.low, self.high].iter().all(|x| x.abs() < 4_194_304.0)
    }

    /// What is no number stays none.
    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        let x = x.round_ties_even() + self.zero;
        let x = if x < self.low { self.low } else { x };
        if x > self.high { self.high } else { x }
    }
}

struct Pass<'a> {
    x: &'a [f32],
    before: Before,
    factors: Operand<'a>,
    addends: Operand<'a>,
    over: Option<Quotient>,
    after: After,
    to: To<'a>,
}

impl Kernel for Pass<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Self { x, before, factors, addends, over, after, to } = self;
        let scaled = |x: f32| after.of(x);
        match over {
            None => multiplied(x, before, factors, addends, scaled, to),
            Some(over) => {
                let scaled = |x: f32| after.of(over.of::<FMA>(x));
                multiplied(x, before, factors, addends, scaled, to);
            }
        }
    }
}

#[inline(always)]
fn multiplied(
    x: &[f32],
    before: Before,
    factors: Operand<'_>,
    addends: Operand<'_>,
    then: impl Fn(f32) -> f32,
    to: To<'_>,
) {
    match factors {
        Operand::None => added(x, x, |x, _| before.of(x), addends, then, to),
        Operand::Same(factor) => added(x, x, |x, _| before.of(x) * factor, addends, then, to),
        Operand::Each(factors) => added(x, factors, |x, f| before.of(x) * f, addends, then, to),
    }
}

#[inline(always)]
fn added(
    x: &[f32],
    factors: &[f32],
    scaled: impl Fn(f32, f32) -> f32,
    addends: Operand<'_>,
    then: impl Fn(f32) -> f32,
    to: To<'_>,
) {
    match addends {
        Operand::None => written(x, factors, x, |x, f, _| then(scaled(x, f)), to),
        Operand::Same(y) => written(x, factors, x, |x, f, _| then(scaled(x, f) + y), to),
        Operand::Each(each) => written(x, factors, each, |x, f, y| then(scaled(x, f) + y), to),
    }
}

#[inline(always)]
fn written(
    x: &[f32],
    factors: &[f32],
    addends: &[f32],
    function: impl Fn(f32, f32, f32) -> f32,
    to: To<'_>,
) {
    let operands = x.iter().zip(factors).zip(addends);
    match to {
        To::Reals(to) => {
            to.iter_mut().zip(operands).for_each(|(to, ((&x, &f), &y))| *to = function(x, f, y));
        }
        To::Bytes(to) => {
            let each = to.iter_mut().zip(operands);
            each.for_each(|(to, ((&x, &f), &y))| *to = byte(function(x, f, y)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Quotient;

    /// Numbers of every exponent and both signs by divisors of many fractions: what is rounded to a whole number after is the
    /// same, and so are quotients that are not tiny.
    #[test]
    fn quotients_are_rounded_once() {
        let divisors =
            (1..4000).map(|i| f32::from_bits(0x3c00_0000 + i * 0x0001_0f35 % 0x0300_0000));
        for by in
            divisors.chain([1.0 / 3.0, 1e-20, 7e24, f32::MIN_POSITIVE, f32::from_bits(0x3fff_ffff)])
        {
            let Some(quotient) = Quotient::new(by) else { continue };
            for x in
                (0..=u32::MAX).step_by(1 << 22).map(|bits| f32::from_bits(bits ^ by.to_bits() >> 7))
            {
                let (got, want) = (quotient.of::<true>(x), x / by);
                if want.abs() < 16_777_216.0 {
                    assert_eq!(got.round_ties_even(), want.round_ties_even(), "{x:e} / {by:e}");
                    let usual = x.abs() > 1e-30 && want.abs() > 1e-30;
                    assert!(got == want || !usual, "{x:e} / {by:e}");
                } else {
                    let far = got.abs() >= 16_777_215.0
                        && got.is_sign_negative() == want.is_sign_negative();
                    assert!(far || got.is_nan() && want.is_nan(), "{x:e} / {by:e}");
                }
            }
        }
        assert!(Quotient::new(0.0).is_none() && Quotient::new(f32::NAN).is_none());
    }
}
