//! Other kernels in place of a step's own: whether they compute the same, and how long they take.

use super::executable::launch;
use super::library::Call;
use super::measure::time_call;
use super::{Cache, Executable, Loaded, compile_once, made};
use crate::cpu;
use crate::device::Cubin;
use crate::error::{Error, Result};
use crate::threads;
use graphene_frontend::dtype::DType;
use graphene_fusion::kernels::Launch;
use graphene_fusion::program::Step;
use graphene_ir::arch::Arch;
use graphene_ir::emit::Emitted;
use graphene_ir::target::Target;
use half::{bf16, f16};
use std::sync::Arc;

/// How far elements of two kernels for one step may be apart: over the larger of the two, and over the largest of all.
/// They differ in the order in which they add, in single precision; what is wrong differs by far more.
const APART: [f64; 2] = [0.05, 0.01];

/// What came of a kernel in place of a step's own.
#[derive(Clone, PartialEq, Debug)]
pub enum Trial {
    /// The microseconds of one launch.
    Timed(f64),
    /// It computes something else than the step's own kernel: so many elements of an output.
    Differs(usize),
    /// It was not made or launched, and why.
    Refused(String),
}

/// What a trial is launched with.
type Made = Result<(Launch, Emitted, Cubin)>;

impl Executable {
    /// Times the step of this number as it is, as [`time_steps`](Self::time_steps) does: all before it run first.
    ///
    /// # Errors
    /// [`Error::At`] around [`Error::Device`], with the step's name; [`Error::Unsupported`] where it launches nothing.
    pub fn time_step(&mut self, number: usize, repeats: usize, runs: usize) -> Result<f64> {
        self.arrive(number)?;
        let (step, call) = self.step_and_call(number)?;
        time_call(&self.stream, call, repeats, runs).map_err(|error| error.at(&step.name))
    }

    /// Tries others in place of the step of this number, each one variant of it: they read and write the step's own
    /// buffers. Kernels are made for `target` and compiled for `arch`, several at a time; those in the `cache` are not.
    /// The program's values are not to be read afterwards, until it has run again.
    ///
    /// # Errors
    /// [`Error::At`] around [`Error::Device`], with the step's name, for what a kernel did wrong: after that nothing more
    /// runs on the device.
    pub fn trials(
        &mut self,
        number: usize,
        others: &[Step],
        (target, arch, cache): (&Target, Arch, Option<&Cache>),
        (repeats, runs): (usize, usize),
    ) -> Result<Vec<Trial>> {
        let program = Arc::clone(&self.program);
        let make = |other: &Step| -> Made {
            let mut variants = made(&program, other, target)?;
            let none = Error::Unsupported { what: "a step without a kernel" };
            let (launch, emitted) = variants.pop().ok_or(none)?;
            // Those are prepacked when a module is loaded.
            if !launch.stacks.is_empty() {
                return Err(Error::Unsupported { what: "a trial of stacked weights" });
            }
            let (cubin, _) = compile_once(&emitted, arch, cache)?;
            Ok((launch, emitted, cubin))
        };
        let all = cpu::on_threads(|| threads::map(others.len(), |number| make(&others[number])));
        self.arrive(number)?;
        let (step, own) = self.step_and_call(number)?;
        let named = |error: Error| error.at(&step.name);
        // Parts of a buffer that the step does not write are the same bytes for all.
        self.clear(step).and_then(|()| own.launch()).map_err(named)?;
        // What overwrites its inputs cannot be launched again on the same ones.
        let expected = match self.overwrites_input(number) {
            true => None,
            false => Some(self.results(step).map_err(named)?),
        };
        let mut trials = Vec::with_capacity(all.len());
        for other in all {
            let call = other.and_then(|made| self.bind_trial(step, made));
            trials.push(match call {
                Err(refusal) => Trial::Refused(refusal.to_string()),
                Ok(call) => {
                    let tried = self.attempt(step, &call, expected.as_deref(), (repeats, runs));
                    tried.map_err(named)?
                }
            });
        }
        Ok(trials)
    }

    fn step_and_call(&self, number: usize) -> Result<(&Step, &Call)> {
        let found = self.program.steps().get(number).zip(self.launches.get(number));
        match found {
            Some((step, Some(call))) => Ok((step, call)),
            _ => Err(Error::Unsupported { what: "a trial of a step that launches nothing" }),
        }
    }

    /// Whether the step of this number writes over one of its inputs.
    pub(super) fn overwrites_input(&self, number: usize) -> bool {
        self.plan.steps()[number].overwritten_by.iter().any(Option::is_some)
    }

    /// Runs all steps before one, so that its inputs are there.
    pub(super) fn arrive(&self, number: usize) -> Result<()> {
        (0..number).try_for_each(|before| self.launch_step(before))?;
        self.synchronize()
    }

    fn bind_trial(
        &self,
        step: &Step,
        (given, emitted, cubin): (Launch, Emitted, Cubin),
    ) -> Result<Call> {
        let kernel = Arc::new(self.stream.device().load(&cubin, &emitted.launch)?);
        let loaded = Loaded { kernel, launch: Arc::new(given), stacks: Vec::new() };
        launch(&self.stream, &loaded, step, &self.buffers, self.plan.bindings())
    }

    /// Launches a trial once, and times it if it computes what is expected.
    fn attempt(
        &self,
        step: &Step,
        call: &Call,
        expected: Option<&[Vec<u8>]>,
        (repeats, runs): (usize, usize),
    ) -> Result<Trial> {
        // What it leaves out must not be there from before.
        self.clear(step)?;
        if let Err(refusal) = call.launch() {
            // Of what was not launched, such as a block that has not registers enough, the device knows nothing.
            self.stream.synchronize()?;
            return Ok(Trial::Refused(refusal.to_string()));
        }
        if let Some(expected) = expected {
            let found = self.results(step)?;
            for ((output, found), expected) in step.outputs.iter().zip(&found).zip(expected) {
                let dtype = self.program.buffer(output.buffer).dtype;
                let differ = differing(dtype, found, expected);
                if differ > 0 {
                    return Ok(Trial::Differs(differ));
                }
            }
        }
        time_call(&self.stream, call, repeats, runs).map(Trial::Timed)
    }

    /// Fills a step's outputs with bytes that are no result, unless they lie where its inputs do.
    fn clear(&self, step: &Step) -> Result<()> {
        for output in &step.outputs {
            let shared = step.inputs.iter().any(|input| input.buffer == output.buffer);
            let place = self.plan.buffers()[output.buffer.index()].place;
            let taken = step.inputs.iter().any(|input| {
                let other = &self.plan.buffers()[input.buffer.index()];
                other.place == place
            });
            if !shared && !taken {
                let buffer = &self.buffers[output.buffer.index()];
                buffer.write(&vec![0xff; buffer.len()])?;
            }
        }
        Ok(())
    }

    /// The bytes of a step's outputs, when all that was launched is done.
    fn results(&self, step: &Step) -> Result<Vec<Vec<u8>>> {
        let outputs = step.outputs.iter();
        outputs.map(|output| self.buffers[output.buffer.index()].download()).collect()
    }
}

/// How many elements are farther apart than two kernels for one step may be; all, if their number differs.
fn differing(dtype: DType, found: &[u8], expected: &[u8]) -> usize {
    if found.len() != expected.len() {
        return expected.len().max(1);
    }
    let (Some(found), Some(expected)) = (numbers(dtype, found), numbers(dtype, expected)) else {
        let pairs = found.iter().zip(expected);
        return pairs.filter(|(found, expected)| found != expected).count();
    };
    let finite = expected.iter().filter(|value| value.is_finite());
    let largest = finite.fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let differs = |(a, b): &(&f64, &f64)| {
        let bound = APART[0] * a.abs().max(b.abs()) + APART[1] * largest;
        let near = a.is_finite() && b.is_finite() && (*a - *b).abs() <= bound;
        !(near || a == b || (a.is_nan() && b.is_nan()))
    };
    found.iter().zip(&expected).filter(differs).count()
}

/// The elements of a type with a fraction.
fn numbers(dtype: DType, bytes: &[u8]) -> Option<Vec<f64>> {
    let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    match dtype {
        DType::F32 => {
            let quads = bytes.chunks_exact(4).map(|quad| [quad[0], quad[1], quad[2], quad[3]]);
            Some(quads.map(|quad| f64::from(f32::from_le_bytes(quad))).collect())
        }
        DType::F16 => Some(pairs().map(|pair| f16::from_le_bytes(pair).to_f64()).collect()),
        DType::BF16 => Some(pairs().map(|pair| bf16::from_le_bytes(pair).to_f64()).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{DType, differing, f16};

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect()
    }

    #[test]
    fn kernels_may_round_otherwise_and_not_compute_otherwise() {
        let expected = bytes(&[1.0, -2.0, 0.001, 100.0, f32::NAN]);
        let near = bytes(&[1.01, -2.01, 0.0, 101.0, f32::NAN]);
        assert_eq!(differing(DType::F16, &near, &expected), 0);
        let wrong = bytes(&[1.0, 2.0, f32::NAN, 100.0, 0.0]);
        assert_eq!(differing(DType::F16, &wrong, &expected), 3);
        assert_eq!(differing(DType::F16, &near[2..], &expected), expected.len());
        // Bytes that no kernel has written are not a number.
        assert_eq!(differing(DType::F16, &[0xff; 4], &bytes(&[1.0, 0.0])), 2);
        assert_eq!(differing(DType::I64, &[1, 2, 3], &[1, 2, 4]), 1);
    }
}
