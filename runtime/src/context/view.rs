//! What a context has bound: where its buffers lie, what computes its steps, and how long each takes.

use super::bound::Entry;
use super::io::Given;
use super::{Context, Input, in_order};
use crate::bind::Plan;
use crate::error::{Error, Result};
#[cfg(feature = "cuda")]
use crate::executor::Bound;
use crate::pad::copy_corner;
use graphene_frontend::dim::Bindings;
use graphene_frontend::tensor::{Tensor, checked_elements};
use std::fmt;
use std::time::{Duration, Instant};

/// Time for which steps on the CPU are timed at most, beyond the first run, and runs at most.
const PROFILING: Duration = Duration::from_millis(500);
const PROFILED_RUNS: usize = 20;
/// Launches of a step on a GPU that are timed together, and how often they are.
#[cfg(feature = "cuda")]
const LAUNCHES: (usize, usize) = (20, 7);

/// A model bound to sizes, in a context; see [`Context::bind`].
pub struct BoundModel<'a> {
    entry: &'a mut Entry,
}

impl<'a> BoundModel<'a> {
    pub(super) fn new(entry: &'a mut Entry) -> Self {
        Self { entry }
    }

    /// The sizes that it is bound to: those of a bucket where requests are padded.
    pub fn sizes(&self) -> &Bindings {
        &self.entry.bindings
    }

    /// Where buffers lie.
    pub fn plan(&self) -> &Plan {
        self.entry.bound.plan()
    }

    /// For each step of the model's [program](crate::Model::program) what computes it: a kernel or a library by its name;
    /// `reference` where the reference evaluator stands in for a kernel, `host` where the host does so for a GPU, `none`
    /// where there is nothing to compute.
    pub fn kernels(&self) -> Vec<&str> {
        self.entry.bound.kernels()
    }

    /// For each step how what computes it on a CPU multiplies, where its name does not tell: `Winograd`, `direct`, `implicit
    /// GEMM`, `GEMM` or `im2col` for convolutions; `packed` for matmuls by weights that were packed when the model was loaded;
    /// the best instructions that may multiply bytes, such as `VNNI`, or numbers of bf16.
    pub fn algorithms(&self) -> Vec<Option<&'static str>> {
        self.entry.bound.algorithms()
    }

    /// What a library has no way to compute at these sizes, with its words: the step's own kernel computes that, or the
    /// host.
    pub fn refusals(&self) -> &[String] {
        self.entry.bound.refusals()
    }

    /// Its launches on a GPU, if the engine is on one: to be timed, or looked at step by step. The inputs are those of the
    /// context's last run at these sizes, until others are written.
    #[cfg(feature = "cuda")]
    pub fn into_gpu(self) -> Option<&'a mut crate::gpu::Executable> {
        match &mut self.entry.bound {
            Bound::Cpu(_) => None,
            Bound::Gpu(executable) => Some(executable),
        }
    }
}

impl fmt::Debug for BoundModel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sizes, arena) = (self.sizes(), self.plan().arena_bytes());
        f.debug_struct("BoundModel").field("sizes", sizes).field("arena", &arena).finish()
    }
}

impl Context {
    /// Runs a request, and gives the seconds that each step of the model's [program](crate::Model::program) takes. On the
    /// CPU they are medians of several runs, where these take half a second in all; on a GPU medians of several launches
    /// of each step by itself, one after the other, and 0 where there is nothing to launch.
    ///
    /// # Errors
    /// As for [`run`](Context::run).
    pub fn profile(&mut self, inputs: &[Input<'_>]) -> Result<Vec<f64>> {
        #[cfg(feature = "cuda")]
        if self.model.module().stages() {
            return self.profile_launches(inputs);
        }
        let steps = self.model.program().steps().len();
        let mut runs: Vec<Vec<Duration>> = Vec::new();
        let start = Instant::now();
        while runs.is_empty() || (runs.len() < PROFILED_RUNS && start.elapsed() < PROFILING) {
            let mut times = vec![Duration::ZERO; steps];
            let mut current: Option<(usize, Instant)> = None;
            let mut clock = |step| {
                // What is asked at a step again waits for other runs: that is no step's time.
                if let Some((before, began)) = current.filter(|(before, _)| *before != step) {
                    times[before] += began.elapsed();
                }
                current = Some((step, Instant::now()));
                Ok(())
            };
            self.run_steps(inputs, Some(&mut clock))?;
            if let Some((last, began)) = current {
                times[last] += began.elapsed();
            }
            runs.push(times);
        }
        let median = |step| {
            let mut times: Vec<Duration> = runs.iter().map(|times| times[step]).collect();
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64()
        };
        Ok((0..steps).map(median).collect())
    }

    #[cfg(feature = "cuda")]
    fn profile_launches(&mut self, inputs: &[Input<'_>]) -> Result<Vec<f64>> {
        // The launches read what this leaves on the device.
        self.run(inputs)?;
        let inputs = in_order(self.model.inputs(), inputs)?;
        let asked = self.asked(&inputs)?;
        let entry = self.entry(&asked.sizes)?;
        let Some(executable) = BoundModel::new(&mut self.bound[entry]).into_gpu() else {
            return Err(Error::Unsupported { what: "launches on a CPU" });
        };
        let times = executable.time_steps(LAUNCHES.0, LAUNCHES.1);
        let times = times.map_err(|error| self.model.engine().noted(error))?;
        Ok(times.into_iter().map(|microseconds| microseconds / 1e6).collect())
    }

    /// The inputs of a request as kernels read them, in the model's order: filled up with zeros to the sizes at which it
    /// runs.
    ///
    /// # Errors
    /// As for [`run`](Context::run) for inputs that are not the model's and sizes beyond its profile;
    /// [`Error::Unsupported`] for inputs on a GPU.
    pub fn padded(&mut self, inputs: &[Input<'_>]) -> Result<Vec<Tensor>> {
        let inputs = in_order(self.model.inputs(), inputs)?;
        let asked = self.asked(&inputs)?;
        let ports = self.model.inputs();
        let sizes = self.model.fitting().fit(&asked.sizes, self.model.solver())?;
        let sizes = self.model.bindings(&sizes)?;
        let padded = inputs.iter().zip(ports).map(|(input, port)| {
            let (shape, width) = (port.ty().bound_shape(&sizes)?, port.dtype().size());
            let bytes = checked_elements(&shape).and_then(|n| n.checked_mul(width));
            let mut filled = vec![0; bytes.ok_or(Error::TooLarge { what: "a padded tensor" })?];
            match input.data {
                Given::Host(given) => {
                    copy_corner((&mut filled, &shape), (given, input.shape), width);
                }
                #[cfg(feature = "cuda")]
                Given::Device(_) => {
                    return Err(Error::Unsupported {
                        what: "a padded request with memory on a GPU",
                    });
                }
            }
            Ok(Tensor::new(port.dtype(), shape, filled.into())?)
        });
        padded.collect()
    }
}
