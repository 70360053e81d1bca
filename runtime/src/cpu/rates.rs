//! What the machine's cores give at most: arithmetic, and bandwidth by how much memory is read.
//!
//! These are the roofs that steps are held against, so they are measured by loops that do nothing else: multiply-adds on
//! registers, matmuls that stay in the nearest caches, and sums of memory that was just read.

use super::kernels::bf16::{self, PackedBf16};
use super::kernels::int8::{Left, PackedIntegers, To, multiply_tile};
use super::kernels::matmul::{Matrix, Strides};
use super::kernels::simd::{Kernel, dispatch};
use super::kernels::tile::TileMut;
use bytemuck::Zeroable;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Each rate is the best of so many measurements, each about so long.
const ROUNDS: usize = 3;
const TIME: Duration = Duration::from_millis(2);
/// Accumulators, so that multiply-adds overlap: latency times throughput of the widest cores.
const OVERLAP: usize = 12;
/// Bytes that all threads read together: from those of the fastest caches to more than most caches hold.
const FOOTPRINTS: [usize; 6] = [1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];

/// Rates of some threads together.
#[derive(Clone, PartialEq, Debug)]
pub struct Rates {
    /// Operations in single precision a second, a multiply-add being two.
    pub flops: f64,
    /// Those of matmuls by weights of bf16: no fewer.
    pub bf16: f64,
    /// Those of matmuls of bytes by weights of bytes, their sums being integers: no fewer than in single precision.
    pub int8: f64,
    /// Bytes read a second, by how many different ones are read: ascending, and no slower for fewer.
    pub bandwidth: Vec<(u64, f64)>,
}

impl Rates {
    /// Bytes a second from memory, beyond the caches.
    pub fn memory(&self) -> f64 {
        self.bandwidth.last().map_or(f64::INFINITY, |&(_, rate)| rate)
    }
}

/// Measures the rates of so many threads.
pub fn rates(threads: usize) -> Rates {
    let threads = threads.max(1);
    let flops = best(threads, &mut vec![Work::Arithmetic; threads]);
    let matmul = MatMul::new();
    let bf16 = best(threads, &mut vec![Work::Bf16(&matmul); threads]).max(flops);
    let int8 = best(threads, &mut vec![Work::Int8(&matmul); threads]).max(flops);
    let most = FOOTPRINTS.last().copied().unwrap_or(0) / threads / size_of::<f32>();
    let memory: Vec<Vec<f32>> = (0..threads).map(|_| vec![1.0; most]).collect();
    let of = |bytes: usize| {
        let part = (bytes / threads / size_of::<f32>()).max(1);
        let mut parts: Vec<Work<'_>> =
            memory.iter().map(|own| Work::Reading(&own[..part.min(own.len())])).collect();
        (bytes as u64, best(threads, &mut parts))
    };
    let mut bandwidth: Vec<_> = FOOTPRINTS.into_iter().map(of).collect();
    // What is read again of more memory can be read of less as well, however noisy the machine.
    for i in (1..bandwidth.len()).rev() {
        bandwidth[i - 1].1 = bandwidth[i - 1].1.max(bandwidth[i].1);
    }
    Rates { flops, bf16, int8, bandwidth }
}

/// What a thread does over and over.
#[derive(Clone, Copy)]
enum Work<'a> {
    /// Multiply-adds.
    Arithmetic,
    /// Matmuls by weights of bf16.
    Bf16(&'a MatMul),
    /// Matmuls of bytes.
    Int8(&'a MatMul),
    /// Sums of this.
    Reading(&'a [f32]),
}

impl Work<'_> {
    /// Does so much of it; operations done, or bytes read.
    fn run(self, times: usize) -> f64 {
        match self {
            Self::Arithmetic => dispatch(MultiplyAdds(times)),
            Self::Bf16(matmul) => matmul.of_bf16(times),
            Self::Int8(matmul) => matmul.of_bytes(times),
            Self::Reading(memory) => {
                (0..times).for_each(|_| {
                    black_box(dispatch(Sum(black_box(memory))));
                });
                (times * size_of_val(memory)) as f64
            }
        }
    }

    /// How often it is done in about [`TIME`].
    fn times(self) -> usize {
        let mut times = 1;
        loop {
            let start = Instant::now();
            black_box(self.run(times));
            let elapsed = start.elapsed();
            if elapsed * 2 >= TIME || times >= 1 << 30 {
                return times;
            }
            times *= 2;
        }
    }
}

/// What all threads together do a second, at best.
fn best(threads: usize, work: &mut [Work<'_>]) -> f64 {
    let times = work.first().map_or(1, |work| work.times());
    let round = || {
        let barrier = Barrier::new(threads);
        let each = |work: Work<'_>| {
            barrier.wait();
            let start = Instant::now();
            let done = black_box(work.run(times));
            (done, start.elapsed())
        };
        let each = &each;
        let ran: Vec<(f64, Duration)> = thread::scope(|scope| {
            let started: Vec<_> =
                work.iter().map(|&work| scope.spawn(move || each(work))).collect();
            started.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        ran.iter().map(|(done, time)| done / time.as_secs_f64().max(1e-9)).sum::<f64>()
    };
    (0..ROUNDS).map(|_| round()).fold(0.0, f64::max)
}

/// Multiply-adds on registers, so often; operations done.
struct MultiplyAdds(usize);

impl Kernel for MultiplyAdds {
    type Output = f64;

    #[inline(always)]
    fn run<S: pulp::Simd, const FMA: bool>(self, simd: S) -> f64 {
        const INNER: usize = 64;
        let [factor, term] = black_box([0.5, 0.25]).map(|x| simd.splat_f32s(x));
        let mut sums = [term; OVERLAP];
        for _ in 0..self.0 {
            for _ in 0..INNER {
                for sum in &mut sums {
                    *sum = simd.mul_add_e_f32s(*sum, factor, term);
                }
            }
        }
        black_box(sums);
        (self.0 * INNER * OVERLAP * S::F32_LANES * 2) as f64
    }
}

/// A matmul by weights that stay in the nearest caches.
struct MatMul {
    bf16: PackedBf16,
    bytes: PackedIntegers,
}

impl MatMul {
    const SIZES: [usize; 3] = [64, 48, 1024];

    fn new() -> Self {
        let [_, n, k] = Self::SIZES;
        let at = Strides { offset: 0, batch: &[], row: n as isize, column: 1 };
        let bf16 = PackedBf16::new(Matrix { data: &vec![0.5; k * n], at }, k, n);
        // Weights of 8 bits: some units multiply by smaller ones faster.
        let bytes = PackedIntegers::new(Matrix { data: &vec![127; k * n], at }, k, n);
        let whole = "a small matrix is whole";
        Self { bf16: bf16.expect(whole), bytes: bytes.expect(whole) }
    }

    /// That of bytes, so often; operations done.
    fn of_bytes(&self, times: usize) -> f64 {
        let [m, n, k] = Self::SIZES;
        black_box(self.sums_of_bytes(times));
        (times * m * n * k * 2) as f64
    }

    /// Its sums, computed so often.
    fn sums_of_bytes(&self, times: usize) -> Vec<i32> {
        let [m, n, k] = Self::SIZES;
        let (a, mut c) = (vec![5; m * k], vec![0; m * n]);
        let at = Strides { offset: 0, batch: &[], row: k as isize, column: 1 };
        let left = Left::of_bytes(k, Matrix { data: &a, at }, m, 0, false);
        let left = left.expect("a small matrix is whole");
        for _ in 0..times {
            let to = To::Sums(TileMut::new(&mut c, n));
            let done = multiply_tile(left.rows(), &self.bytes, 0, 0, to);
            done.expect("the sizes are those of the matrix");
            black_box(&mut c);
        }
        c
    }

    /// That by weights of bf16, so often; operations done.
    fn of_bf16(&self, times: usize) -> f64 {
        let [m, n, k] = Self::SIZES;
        let (a, mut c) = (vec![0.25; m * k], vec![0.0; m * n]);
        let at = Strides { offset: 0, batch: &[], row: k as isize, column: 1 };
        let a = Matrix { data: &a[..], at };
        let mut memory = vec![bf16::Line::zeroed(); bf16::memory(m, &self.bf16)];
        for _ in 0..times {
            let tile = &mut TileMut::new(&mut c, n);
            let done = bf16::multiply(k, a, &self.bf16, 0, tile, &mut memory);
            done.expect("the sizes are those of the matrix");
            black_box(&mut c);
        }
        (times * m * n * k * 2) as f64
    }
}

/// The sum of some memory, but for a last part that fills no eight vectors.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: pulp::Simd, const FMA: bool>(self, simd: S) -> f32 {
        let (vectors, _) = S::as_simd_f32s(self.0);
        let mut sums = [simd.splat_f32s(0.0); 8];
        let (chunks, _) = vectors.as_chunks::<8>();
        for chunk in chunks {
            for (sum, &x) in sums.iter_mut().zip(chunk) {
                *sum = simd.add_f32s(*sum, x);
            }
        }
        let sum = sums.into_iter().fold(simd.splat_f32s(0.0), |all, sum| simd.add_f32s(all, sum));
        simd.reduce_sum_f32s(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::{MatMul, rates};

    #[test]
    fn matmuls_of_bytes_are_done() {
        let matmul = MatMul::new();
        let [m, n, k] = MatMul::SIZES;
        assert_eq!(matmul.of_bytes(2), (2 * 2 * m * n * k) as f64);
        assert_eq!(matmul.sums_of_bytes(1), vec![5 * 127 * k as i32; m * n]);
    }

    #[test]
    fn less_memory_is_no_slower() {
        let measured = rates(2);
        // A core of today does a billion operations a second, and reads a billion bytes.
        assert!(measured.flops > 1e9 && measured.memory() > 1e9, "{measured:?}");
        assert!(measured.bandwidth.is_sorted_by(|a, b| a.0 < b.0 && a.1 >= b.1), "{measured:?}");
    }
}
