//! cuBLASLt's matrix products: what the library executor calls, and a peer to measure kernels against.
//!
//! A [`Context`] has the library's state, one workspace for all its matmuls, and the fastest algorithm of every matmul
//! that was ever bound, so that the same shape is timed once.

pub(in crate::device) mod gemm;

pub use gemm::{Gemm, Matrix, PackedGemm};
pub use graphene_fusion::library::Activation;

use super::sys::capture::Used;
use super::sys::cublaslt::{Algorithm, Handle, Matmul as Described, Pointers};
use super::sys::recording::keep;
use super::sys::stream::WORKSPACE;
use super::{Buffer, Device, Stream};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Algorithms that are timed.
const CANDIDATES: usize = 16;

/// Launches of a candidate that are timed together, at most.
const REPEATS: usize = 200;

/// How long a candidate is timed.
#[derive(Clone, Copy)]
struct Pass {
    /// Microseconds that its launches take together, about, where fewer than [`REPEATS`] do.
    microseconds: f64,
    /// How often they are timed; the least counts.
    rounds: usize,
}

/// How long each candidate is timed at first. It is short, for a request waits while a new shape is bound.
const FIRST_PASS: Pass = Pass { microseconds: 1000.0, rounds: 2 };

/// So many of them, the fastest, are timed again so often, in turn.
const FINALISTS: usize = 4;
const FINALS: usize = 2;

/// How long each of these is timed, each time.
const FINAL_PASS: Pass = Pass { microseconds: 2000.0, rounds: 3 };

/// Bytes at multiples of which the library knows of algorithms that need it.
const ALIGNMENT: u64 = 256;

/// The operands of a matmul.
#[derive(Clone)]
pub struct Operands {
    /// A, from its first element.
    pub a: Buffer,
    /// B, from its first element.
    pub b: Buffer,
    /// What is added, from its first element.
    pub c: Option<Buffer>,
    /// The result, from its first element.
    pub d: Buffer,
    /// The row that is added.
    pub bias: Option<Buffer>,
}

impl Operands {
    fn check(&self, stream: &Stream, gemm: &Gemm) -> Result<()> {
        let spans = gemm.spans().ok_or(Error::TooLarge { what: "a matrix of a matmul" })?;
        if (gemm.c.is_some(), gemm.bias) != (self.c.is_some(), self.bias.is_some()) {
            return Err(Error::Unsupported { what: "a matmul with other addends than described" });
        }
        let [a, b, c, d] = spans;
        let given = [("A", Some(&self.a), a), ("B", Some(&self.b), b), ("C", self.c.as_ref(), c)];
        self.d.check_writable()?;
        let last = [("D", Some(&self.d), d), ("the bias", self.bias.as_ref(), gemm.n)];
        for (name, buffer, elements) in given.into_iter().chain(last) {
            let Some(buffer) = buffer else { continue };
            stream.check_own(name, buffer)?;
            let needed = elements as i128 * i128::from(gemm.scalar.bytes());
            if needed > buffer.len() as i128 {
                let tensor = name.to_owned();
                return Err(Error::Short { tensor, needed, bytes: buffer.len() });
            }
        }
        Ok(())
    }

    /// Bytes, up to [`ALIGNMENT`], at multiples of which A, B, C and D begin.
    fn aligned(&self) -> [u32; 4] {
        let of = |buffer: &Buffer| {
            (1_u64 << buffer.pointer().trailing_zeros().min(32)).min(ALIGNMENT) as u32
        };
        let d = of(&self.d);
        [of(&self.a), of(&self.b), self.c.as_ref().map_or(d, of), d]
    }
}

/// The library on a device: its state, and what was the fastest for each matmul. Streams have a workspace each.
pub struct Context {
    handle: Arc<Handle>,
    chosen: Mutex<HashMap<Key, Choice>>,
}

/// A matmul, and at multiples of how many bytes its operands begin.
type Key = (Gemm, [u32; 4]);

/// An algorithm and the microseconds that it took, inside a CUDA graph.
#[derive(Clone, Copy)]
struct Choice {
    algorithm: Algorithm,
    microseconds: f64,
}

impl Context {
    /// Opens the library.
    ///
    /// # Errors
    ///
    /// [`Error::MissingLibrary`] without cuBLASLt; [`Error::Device`].
    pub fn new(device: &Device) -> Result<Context> {
        let handle = Arc::new(Handle::new(device.context())?);
        Ok(Context { handle, chosen: Mutex::default() })
    }

    /// How many matmuls were timed.
    pub fn timed(&self) -> usize {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Binds a matmul to its operands on a stream. Unless an equal one was bound before, the heuristic's first
    /// algorithms are timed on these operands, which overwrites D.
    ///
    /// # Errors
    ///
    /// [`Error::Short`] if a buffer does not hold its matrix, [`Error::Foreign`] if it is of another stream;
    /// [`Error::Unsupported`] for integers, for matmuls of nothing, and where no algorithm is found;
    /// [`Error::Overlap`] if results share elements; [`Error::DeviceMemory`]; [`Error::Device`].
    pub fn bind(&self, stream: &Stream, gemm: &Gemm, operands: Operands) -> Result<BoundGemm> {
        let gemm = gemm.checked()?;
        operands.check(stream, &gemm)?;
        let bias = operands.bias.as_ref().map(Buffer::pointer);
        let described = Described::new(&gemm, bias)?;
        let (handle, workspace) = (self.handle.clone(), stream.shared().workspace()?);
        let key = (gemm, operands.aligned());
        let launched = Launched { described, handle, workspace, gemm, operands };
        let launched = Arc::new(Used::new(stream.shared(), launched));
        let lock = || self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&key).copied();
        let choice = match known {
            Some(choice) => choice,
            None => {
                let choice = fastest(&launched, stream)?;
                // Of two threads that timed it at once, both take the one that came first.
                *lock().entry(key).or_insert(choice)
            }
        };
        Ok(BoundGemm { launched, choice })
    }
}

/// A matmul bound to its buffers, by the fastest algorithm found.
pub struct BoundGemm {
    launched: Arc<Used<Launched>>,
    choice: Choice,
}

/// All of a matmul but its algorithm.
struct Launched {
    described: Described,
    handle: Arc<Handle>,
    /// The stream's.
    workspace: u64,
    gemm: Gemm,
    operands: Operands,
}

impl BoundGemm {
    /// Times the heuristic's first algorithms on the buffers of A, B and C, and keeps the fastest. C is overwritten.
    ///
    /// # Errors
    ///
    /// As for [`Context::new`] and [`Context::bind`].
    pub fn tune(stream: &Stream, matmul: PackedGemm, operands: [&Buffer; 3]) -> Result<BoundGemm> {
        let [a, b, d] = operands.map(Buffer::clone);
        let operands = Operands { a, b, c: None, d, bias: None };
        Context::new(stream.device())?.bind(stream, &matmul.into(), operands)
    }

    /// A context that has timed nothing yet, with this matmul's state of the library.
    pub fn beside(&self) -> Context {
        Context { handle: self.launched.handle.clone(), chosen: Mutex::default() }
    }

    /// What it computes.
    pub fn gemm(&self) -> &Gemm {
        &self.launched.gemm
    }

    /// What it reads and writes.
    pub fn operands(&self) -> &Operands {
        &self.launched.operands
    }

    /// What the algorithm took when it was chosen, inside a CUDA graph.
    pub fn microseconds(&self) -> f64 {
        self.choice.microseconds
    }

    /// Computes D, behind all work of the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn launch(&self) -> Result<()> {
        run(&self.launched, &self.choice.algorithm)
    }
}

fn run(launched: &Arc<Used<Launched>>, algorithm: &Algorithm) -> Result<()> {
    let Launched { described, handle, workspace, operands, .. } = &***launched;
    let Operands { a, b, c, d, bias: _ } = operands;
    let (c, d) = (c.as_ref().unwrap_or(d).pointer(), d.pointer());
    let at = Pointers { a: a.pointer(), b: b.pointer(), c, d };
    keep(launched);
    described.run(handle, launched.stream(), algorithm, at, (*workspace, WORKSPACE))
}

fn fastest(launched: &Arc<Used<Launched>>, stream: &Stream) -> Result<Choice> {
    let aligned = launched.operands.aligned();
    let found = launched.described.algorithms(&launched.handle, WORKSPACE, aligned, CANDIDATES)?;
    let mut timed = Vec::new();
    // The device wakes up on the heuristic's first one, which would seem slower than it is.
    if let Some(first) = found.first() {
        let _ = run(launched, first).and_then(|()| time(launched, stream, first, FIRST_PASS));
    }
    let mut error = Error::Unsupported { what: "a matmul that cuBLASLt has no algorithm for" };
    for algorithm in found {
        // The heuristic may propose what the library then refuses to run. The first run, outside of a recording, also
        // loads what it needs.
        match run(launched, &algorithm)
            .and_then(|()| time(launched, stream, &algorithm, FIRST_PASS))
        {
            Ok(microseconds) => timed.push(Choice { algorithm, microseconds }),
            Err(refused) => error = refused,
        }
    }
    let by_time = |a: &Choice, b: &Choice| a.microseconds.total_cmp(&b.microseconds);
    timed.sort_by(by_time);
    timed.truncate(FINALISTS);
    // The device warms up meanwhile, and slows down: who came first had an advantage.
    for choice in &mut timed {
        choice.microseconds = f64::INFINITY;
    }
    for _ in 0..FINALS {
        for choice in &mut timed {
            if let Ok(again) = time(launched, stream, &choice.algorithm, FINAL_PASS) {
                choice.microseconds = choice.microseconds.min(again);
            }
        }
    }
    timed.into_iter().min_by(by_time).ok_or(error)
}

/// Microseconds of an algorithm inside a CUDA graph: outside of one, small matmuls take as long as their launches.
fn time(
    launched: &Arc<Used<Launched>>,
    stream: &Stream,
    algorithm: &Algorithm,
    pass: Pass,
) -> Result<f64> {
    let once = stream.time(|| run(launched, algorithm))?;
    let repeats = (pass.microseconds / once.max(1.0)).clamp(2.0, REPEATS as f64) as usize;
    let graph = stream.capture(|| (0..repeats).try_for_each(|_| run(launched, algorithm)))?;
    graph.launch()?;
    let mut least = f64::INFINITY;
    for _ in 0..pass.rounds {
        least = least.min(stream.time(|| graph.launch())? / repeats as f64);
    }
    Ok(least)
}
