//! Which elements registers of several threads hold: a layout `(thread, value) -> coordinates`, which values tell.
//!
//! A register's number is made of digits, those of its dimensions and those of its thread. In a layout each digit moves by a
//! step of its own, so that a few registers whose values few elements have tell all others' elements; where they disagree, most
//! decide.

use super::level::{Array, Level, Unchecked};
use crate::{Kind, kernel};

/// Which elements registers hold.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fragment {
    /// The elements' dimensions.
    pub(super) shape: Vec<usize>,
    pub(super) threads: usize,
    /// Where a thread's values lie among what they are a part of.
    pub(super) values: Vec<i64>,
    /// Of each digit how many there are; the lowest first, and threads' after values'.
    radices: Vec<usize>,
    /// What the first register has, and by how much each digit moves, as far as it is known.
    first: Option<Vec<i64>>,
    steps: Vec<Option<Vec<i64>>>,
    /// Of each register, the number of its element: unknown, or none.
    pub(super) cells: Vec<Option<Option<usize>>>,
}

/// The prime factors of a number, each a digit's.
fn primes(mut number: usize) -> Vec<usize> {
    let mut all = Vec::new();
    while let Some(prime) = (2..=number).find(|&prime| number.is_multiple_of(prime)) {
        all.push(prime);
        number /= prime;
    }
    all
}

/// What most say, each of whom may say several things; nothing if no answer has more votes than any other.
fn most<T: Ord + Clone>(voters: impl Iterator<Item = Vec<T>>) -> Option<T> {
    let each = voters.flat_map(|mut votes| {
        votes.sort_unstable();
        votes.dedup();
        votes
    });
    let mut votes: Vec<T> = each.collect();
    votes.sort_unstable();
    let alike = votes.chunk_by(|a, b| a == b);
    let most = alike.clone().map(<[T]>::len).max()?;
    let mut first = alike.filter(|votes| votes.len() == most);
    first.next().filter(|_| first.next().is_none()).map(|votes| votes[0].clone())
}

pub(super) fn coordinates(shape: &[usize], mut element: usize) -> Vec<i64> {
    let mut at = vec![0; shape.len()];
    for (at, size) in at.iter_mut().zip(shape).rev() {
        (*at, element) = ((element % size) as i64, element / size);
    }
    at
}

/// The distances along each dimension that a packed one is made of.
fn unpack(shape: &[usize], mut packed: i64) -> Vec<i64> {
    let mut distances = vec![0; shape.len()];
    for (distance, &size) in distances.iter_mut().zip(shape).rev() {
        let size = size as i64;
        *distance = (packed + size).rem_euclid(2 * size) - size;
        packed = (packed - *distance) / (2 * size);
    }
    distances
}

/// What threads held together, or why that is not known.
pub(super) type Gathered = Result<kernel::Array, Unchecked>;

impl Fragment {
    /// Nothing is known of an operand's registers yet.
    pub(super) fn new(
        level: &Level<'_>,
        operand: &Array,
        values: Vec<i64>,
        shape: &[usize],
    ) -> Fragment {
        let threads = level.agents();
        let dims = operand.place.dims.iter().map(|&size| size as usize).chain([threads]);
        let radices: Vec<usize> = dims.flat_map(primes).collect();
        let mut fragment = Fragment {
            shape: shape.to_vec(),
            threads,
            values,
            first: None,
            steps: vec![None; radices.len()],
            radices,
            cells: Vec::new(),
        };
        fragment.number();
        let registers = fragment.cells.len();
        if shape.iter().product::<usize>() == 1 {
            fragment.learn(&vec![vec![0]; registers]);
        } else if matches!(level.spec.kind, Kind::Scan(_)) {
            fragment.learn(&(0..registers).map(|at| vec![at]).collect::<Vec<_>>());
        }
        fragment
    }

    /// Whether it is one of these registers and elements.
    pub(super) fn is_of(&self, shape: &[usize], threads: usize, values: &[i64]) -> bool {
        self.shape == shape && self.threads == threads && self.values == values
    }

    pub(super) fn is_complete(&self) -> bool {
        self.first.is_some() && self.steps.iter().all(Option::is_some)
    }

    /// How far a register is from the first one.
    fn moved(&self, register: usize) -> Option<Vec<i64>> {
        let (mut at, mut rest) = (vec![0; self.shape.len()], register);
        for (radix, step) in self.radices.iter().zip(&self.steps) {
            let digit = (rest % radix) as i64;
            rest /= radix;
            if digit > 0 {
                at.iter_mut().zip(step.as_ref()?).for_each(|(at, step)| *at += digit * step);
            }
        }
        Some(at)
    }

    /// Learns of registers which elements each may hold; of those that nothing is known of, none.
    pub(super) fn learn(&mut self, may: &[Vec<usize>]) {
        let told: Vec<usize> = (0..may.len()).filter(|&of| !may[of].is_empty()).collect();
        // The distance of two elements as one number, in which each dimension has room for both signs.
        let pack = |of: usize| {
            let at = coordinates(&self.shape, of).into_iter().zip(&self.shape);
            at.fold(0, |packed, (at, &size)| packed * 2 * size as i64 + at)
        };
        let packed: Vec<i64> = (0..self.shape.iter().product()).map(pack).collect();
        let unpacked = |distance| unpack(&self.shape, distance);
        let (known, mut weight) = ((self.first.clone(), self.steps.clone()), 1);
        for (step, &radix) in self.steps.iter_mut().zip(&self.radices) {
            if step.is_none() {
                let low = told.iter().filter(|&low| low / weight % radix + 1 < radix);
                let distances = low.map(|&low| {
                    let to = || may[low + weight].iter().map(|&to| packed[to]);
                    let from = may[low].iter().map(|&from| packed[from]);
                    from.flat_map(|from| to().map(move |to| to - from)).collect()
                });
                *step = most(distances).map(unpacked);
            }
            weight *= radix;
        }
        if self.first.is_none() {
            self.first = most(told.iter().filter_map(|&register| {
                let moved = self.moved(register)?;
                let less = |&of: &usize| {
                    let at = coordinates(&self.shape, of).into_iter().zip(&moved);
                    at.map(|(at, moved)| at - moved).collect::<Vec<i64>>()
                };
                Some(may[register].iter().map(less).collect())
            }));
        }
        if (&self.first, &self.steps) != (&known.0, &known.1) {
            self.number();
        }
    }

    fn number(&mut self) {
        let cell = |register: usize| {
            let moved = self.moved(register)?;
            let at = self.first.as_ref()?.iter().zip(&moved).map(|(first, moved)| first + moved);
            Some(at.zip(&self.shape).try_fold(0, |element, (at, &size)| {
                (0..size as i64).contains(&at).then_some(element * size + at as usize)
            }))
        };
        self.cells = (0..self.threads * self.values.len()).map(cell).collect();
    }

    /// The elements that some registers hold; those that are known, if they make a box.
    pub(super) fn fill(&self, cells: &[Option<Option<usize>>], held: &[f64]) -> Gathered {
        let mut data = vec![None; self.shape.iter().product()];
        let mut rest: Option<f64> = None;
        let (mut low, mut high) = (self.shape.clone(), vec![0; self.shape.len()]);
        // Of several threads that hold an element, the first is the one that keeps it.
        for (cell, &value) in cells.iter().zip(held).rev() {
            match cell {
                Some(Some(element)) => {
                    data[*element] = Some(value);
                    for (dim, at) in coordinates(&self.shape, *element).into_iter().enumerate() {
                        low[dim] = low[dim].min(at as usize);
                        high[dim] = high[dim].max(at as usize + 1);
                    }
                }
                Some(None) => {}
                // What is not known makes no difference if it is all the same.
                None if rest.is_some_and(|rest| rest.to_bits() != value.to_bits()) => {
                    return Err(Unchecked::Fragment);
                }
                None => rest = Some(value),
            }
        }
        if rest.is_some() {
            if cells.len() < self.cells.len() {
                return Err(Unchecked::Fragment);
            }
            (low, high) = (vec![0; self.shape.len()], self.shape.clone());
        }
        let sizes = low.iter().zip(&high).map(|(low, high)| high.saturating_sub(*low));
        let shape: Vec<usize> = sizes.collect();
        let mut holes = false;
        let array = kernel::Array::new(&shape, |at| {
            let along = at.iter().zip(&low).zip(&self.shape);
            let element = along.fold(0, |element, ((at, low), size)| element * size + at + low);
            let value = data[element].or(rest);
            holes |= value.is_none();
            value.unwrap_or(f64::NAN)
        });
        if holes { Err(Unchecked::Fragment) } else { Ok(array) }
    }
}
