//! What an executable's launches are, and how long the device takes for them.

use super::{Executable, library::Call};
use crate::device::Stream;
use crate::error::Result;

impl Executable {
    /// For each step what computes it: `cublaslt`, `cudnn`, `host`, or a kernel by its name; `None` where it has no elements.
    pub fn kernels(&self) -> impl Iterator<Item = Option<&str>> {
        self.launches.iter().map(|launch| launch.as_ref().map(Call::name))
    }

    /// Microseconds on the device of one run of all launches, from the first's beginning to the last's end. Inputs are
    /// those written before.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn time(&mut self) -> Result<f64> {
        let stream = self.stream.clone();
        let time = stream.time(|| self.launch())?;
        self.synchronize().map(|()| time)
    }

    /// For each step the microseconds on the device of one of its launches: of `repeats` launches one after the other
    /// in a CUDA graph of their own, of which the median of `runs` is taken. Steps are timed in the program's order,
    /// each when its inputs are there, as a run of the inputs that were written before makes them: what power a matmul
    /// takes, and so its time, is up to its operands. Only a step that writes over its input reads its own results from
    /// the second repetition on; all before the next one run once more then. 0 where a step has no elements.
    ///
    /// # Errors
    /// [`Error::At`](crate::Error::At) around [`Error::Device`](crate::Error::Device), with the step's name.
    pub fn time_steps(&mut self, repeats: usize, runs: usize) -> Result<Vec<f64>> {
        let mut times = Vec::with_capacity(self.launches.len());
        for (number, (step, launch)) in self.program.steps().iter().zip(&self.launches).enumerate()
        {
            let time = launch.as_ref().map(|launch| time_call(&self.stream, launch, repeats, runs));
            times.push(time.transpose().map_err(|error| error.at(&step.name))?.unwrap_or(0.0));
            // What it made of its own results is not what the next one reads.
            if self.overwrites_input(number) {
                self.arrive(number + 1)?;
            }
        }
        Ok(times)
    }
}

/// Microseconds on the device of one of `repeats` launches, one after the other in a CUDA graph of their own: the median of
/// `runs` of it.
pub(super) fn time_call(stream: &Stream, call: &Call, repeats: usize, runs: usize) -> Result<f64> {
    // What the host does takes no less by repetition, and may take long.
    let repeats = if call.is_host() { 1 } else { repeats.max(1) };
    let graph = stream.capture(|| (0..repeats).try_for_each(|_| call.launch()))?;
    // The first run brings the graph to the device.
    graph.launch()?;
    let one = |_| Ok(stream.time(|| graph.launch())? / repeats as f64);
    let samples: Vec<f64> = (0..runs.max(1)).map(one).collect::<Result<_>>()?;
    call.outcome()?;
    Ok(median(samples))
}

/// The middle of some numbers, the upper one of two; 0 of none.
fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(super::median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(super::median(vec![4.0, 1.0, 3.0, 2.0]), 3.0);
        assert_eq!(super::median(Vec::new()), 0.0);
    }
}
