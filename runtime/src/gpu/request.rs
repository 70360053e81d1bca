//! Requests: bytes or buffers in, bytes or buffers out, and one wait.

use super::Executable;
use crate::device::Buffer;
use crate::error::{Error, Result};
use crate::indices::check;
use std::ops::Range;
use std::thread;
use std::time::Duration;

/// Bytes at multiples of which what goes through the host's memory begins there.
const ALIGNMENT: usize = 256;

/// How often the device is asked in a row before the thread sleeps between two questions, and how long it sleeps.
const QUESTIONS: u32 = 2000;
const SLEEP: Duration = Duration::from_micros(20);

/// An input of a request.
#[derive(Clone, Copy)]
pub enum In<'a> {
    /// Its elements, row-major: copied to the device by way of memory that the device reads at full speed.
    Host(&'a [u8]),
    /// Its elements are the first of this buffer, of any stream of the device: copied on the device to where the program
    /// reads them, behind what was launched on the buffer's stream. Nothing is copied if that is where they are.
    Device(&'a Buffer),
    /// Its elements are where the program reads them: the caller, an earlier request, or an output that is bound to the
    /// same memory left them there. At first they are zeros.
    Kept,
}

/// Where an output of a request goes.
pub enum Out<'a> {
    /// To these bytes, row-major, as many as it has.
    Host(&'a mut [u8]),
    /// To the first bytes of this buffer, of any stream of the device, whose later work waits for it. Nothing is copied if
    /// that is where the program leaves them.
    Device(&'a Buffer),
    /// It stays where the program leaves it, until the next run: [`Executable::output`].
    Kept,
}

impl Executable {
    /// Runs a request: inputs and outputs in the program's order. It waits once, at the end, and allocates nothing on the
    /// device; on the host only what the first, or the largest, request of the stream needs to pass its bytes.
    ///
    /// Indices among the inputs that are given as bytes are looked at first; others are taken for the first or last row
    /// where they lie beyond their table.
    ///
    /// # Errors
    /// [`Error::InputCount`] and [`Error::Mismatch`] for another number of inputs or outputs, [`Error::At`] around
    /// [`Error::Mismatch`] for another number of bytes and around [`Error::Index`] for an index beyond its table,
    /// [`Error::Foreign`] for a buffer of another device; [`Error::At`] around what a step on the host says;
    /// [`Error::Memory`]; [`Error::Device`].
    pub fn run_into(&mut self, inputs: &[In<'_>], outputs: &mut [Out<'_>]) -> Result<()> {
        self.request(inputs, outputs, None)
    }

    /// Likewise; while the device works, `control` is asked again and again whether to go on waiting. Where it says no, so
    /// does this, with its error, and outputs are not given. What was launched runs on nevertheless: the next request of
    /// the stream comes behind it.
    ///
    /// # Errors
    /// Likewise; those of `control`.
    pub fn run_into_while(
        &mut self,
        inputs: &[In<'_>],
        outputs: &mut [Out<'_>],
        control: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.request(inputs, outputs, Some(control))
    }

    fn request(
        &mut self,
        inputs: &[In<'_>],
        outputs: &mut [Out<'_>],
        mut control: Option<&mut dyn FnMut() -> Result<()>>,
    ) -> Result<()> {
        let bytes = self.check_request(inputs, outputs)?;
        if self.given_up {
            match &mut control {
                Some(control) => self.watch(*control)?,
                None => self.stream.synchronize()?,
            }
            // What the host said of a request that was given up is nobody's.
            drop(self.outcomes());
            self.given_up = false;
        }
        let outcome = self.enqueue(bytes, inputs, outputs, control);
        if outcome.is_err() {
            self.given_up = true;
            // Copies may still run, and nobody waits for them before memory is freed. If even this fails, no work runs any
            // more.
            let mut all = self.inputs.iter().chain(&self.outputs).map(|&at| &self.buffers[at]);
            let _ = all.try_for_each(|buffer| self.stream.finish_before_free(buffer));
        }
        outcome
    }

    /// Copies inputs up, launches, copies outputs down, and waits.
    fn enqueue(
        &self,
        bytes: usize,
        inputs: &[In<'_>],
        outputs: &mut [Out<'_>],
        control: Option<&mut dyn FnMut() -> Result<()>>,
    ) -> Result<()> {
        let stream = &self.stream;
        let mut transfer = stream.transfer(bytes)?;
        let mut staged = Staged(0);
        for (input, &at) in inputs.iter().zip(&self.inputs) {
            let buffer = &self.buffers[at];
            match input {
                In::Host(bytes) => {
                    let at = staged.next(bytes.len());
                    transfer.up(at.start, bytes, buffer)?;
                }
                In::Device(from) if !from.is_same(buffer) => {
                    stream.copy(buffer, from, buffer.len())?;
                }
                In::Device(_) | In::Kept => {}
            }
        }
        self.launch_graph()?;
        let first_output = staged;
        for (output, &at) in outputs.iter().zip(&self.outputs) {
            let buffer = &self.buffers[at];
            match output {
                Out::Host(bytes) => {
                    let at = staged.next(bytes.len());
                    transfer.down(at.start, at.len(), buffer)?;
                }
                Out::Device(to) if !to.is_same(buffer) => stream.copy(to, buffer, buffer.len())?,
                Out::Device(_) | Out::Kept => {}
            }
        }
        match control {
            Some(control) => self.watch(control)?,
            None => stream.synchronize()?,
        }
        let came = transfer.finish();
        self.outcomes()?;
        let mut staged = first_output;
        for output in outputs {
            if let Out::Host(bytes) = output {
                let at = staged.next(bytes.len());
                bytes.copy_from_slice(&came[at]);
            }
        }
        Ok(())
    }

    /// Waits for the stream as long as `control` allows it.
    fn watch(&self, control: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let mut asked = 0;
        while !self.stream.is_done()? {
            control()?;
            asked += 1;
            match asked {
                ..QUESTIONS => thread::yield_now(),
                _ => thread::sleep(SLEEP),
            }
        }
        Ok(())
    }

    /// Whether a request is one of the program's at its sizes; the bytes that go by way of the host.
    fn check_request(&self, inputs: &[In<'_>], outputs: &[Out<'_>]) -> Result<usize> {
        let (expected, found) = (self.inputs.len(), inputs.len());
        if expected != found {
            return Err(Error::InputCount { expected, found });
        }
        let (expected, found) = (self.outputs.len(), outputs.len());
        if expected != found {
            return Err(Error::Mismatch { what: "outputs of a request", expected, found });
        }
        let mut staged = Staged(0);
        let named = self.program.inputs().iter().zip(&self.inputs);
        for (input, ((name, _), &at)) in inputs.iter().zip(named) {
            let buffer = &self.buffers[at];
            let (fits, found) = match input {
                In::Host(bytes) => {
                    staged.next(bytes.len());
                    (bytes.len() == buffer.len(), bytes.len())
                }
                In::Device(from) => (from.len() >= buffer.len(), from.len()),
                In::Kept => (true, buffer.len()),
            };
            if !fits {
                let (what, expected) = ("bytes of an input", buffer.len());
                return Err(Error::Mismatch { what, expected, found }.at(name));
            }
        }
        let named = self.program.outputs().iter().zip(&self.outputs);
        for (output, ((name, _), &at)) in outputs.iter().zip(named) {
            let buffer = &self.buffers[at];
            let (fits, found) = match output {
                Out::Host(bytes) => {
                    staged.next(bytes.len());
                    (bytes.len() == buffer.len(), bytes.len())
                }
                Out::Device(to) => (to.len() >= buffer.len(), to.len()),
                Out::Kept => (true, buffer.len()),
            };
            if !fits {
                let (what, expected) = ("bytes of an output", buffer.len());
                return Err(Error::Mismatch { what, expected, found }.at(name));
            }
        }
        check(&self.indices, &self.program, &self.plan, |number| match inputs.get(number)? {
            In::Host(bytes) => Some((self.program.inputs()[number].1.dtype, bytes)),
            In::Device(_) | In::Kept => None,
        })?;
        Ok(staged.0)
    }
}

/// How many bytes of the host's memory are given to inputs and outputs so far.
#[derive(Clone, Copy)]
struct Staged(usize);

impl Staged {
    fn next(&mut self, len: usize) -> Range<usize> {
        let first = self.0;
        self.0 = (first + len).next_multiple_of(ALIGNMENT);
        first..first + len
    }
}
