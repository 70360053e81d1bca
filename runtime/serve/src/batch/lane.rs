//! A context of a model's and the memory in which batches are put together.

use super::form::Caps;
use super::layout::{Layout, Measure};
use super::queue::Job;
use super::region::copy_region;
use crate::infer::{InferResponse, Ran};
use crate::statistics::Spent;
use graphene_runtime::{Context, Error, Input, Model, Outputs, Result, Tensor};
use std::time::{Duration, Instant};

/// Shapes that a lane keeps bound.
const KEPT: usize = 512;

/// What takes longer is not run to warm up.
const WARMUP: Duration = Duration::from_secs(1);

/// Lengths that are bound beforehand where that takes long.
const LONGEST: usize = 512;

/// The length that a model is warmed up at.
const TYPICAL: usize = 128;

/// Where batches run, one after the other.
pub(super) struct Lane {
    context: Context,
    /// For each input, where requests' rows lie together. Words, so that elements of all types are aligned.
    inputs: Vec<Vec<u64>>,
}

/// A batch that ran.
pub(super) struct BatchRun {
    /// The sizes of the model's dims.
    pub(super) sizes: Vec<(String, usize)>,
    /// Rows times length, padding included.
    pub(super) positions: usize,
    /// What each job is answered.
    pub(super) answers: Vec<Finished>,
    pub(super) spent: Spent,
}

impl Lane {
    pub(super) fn new(model: &Model) -> Self {
        let inputs = model.inputs().iter().map(|_| Vec::new()).collect();
        Self { context: model.context().keep(KEPT), inputs }
    }

    /// Runs jobs of one kind as one batch.
    ///
    /// # Errors
    /// Those of [`Context::run`], for all of them: nothing is told of any.
    pub(super) fn run(&mut self, layout: &Layout, caps: &Caps, jobs: &[Job]) -> Result<BatchRun> {
        let began = Instant::now();
        let shape = Shape::of(jobs, caps);
        // A request that needs no padding runs from where it lies.
        let whole = match (jobs, &shape) {
            ([job], None) => Some(job),
            ([job], Some(shape)) if shape.is_of(job) => Some(job),
            _ => None,
        };
        let shapes: Vec<Vec<usize>>;
        let inputs: Vec<Input<'_>> = match (whole, &shape) {
            (Some(job), _) => job.inputs().iter().map(Input::from).collect(),
            (None, None) => return Err(Error::Cancelled),
            (None, Some(shape)) => {
                shapes = self.put_together(layout, shape, jobs);
                let ports = jobs[0].inputs().iter().zip(&self.inputs).zip(&shapes);
                ports.map(|((like, words), shape)| input(like, words, shape)).collect()
            }
        };
        let put = Instant::now();
        let outputs = self.context.run_until(&inputs, &mut || wanted(jobs))?;
        let done = Instant::now();
        let sizes =
            outputs.sizes().iter().map(|(symbol, size)| (symbol.name().to_owned(), size as usize));
        let sizes: Vec<(String, usize)> = sizes.collect();
        let mut answers = Vec::with_capacity(jobs.len());
        let mut row = 0;
        for job in jobs {
            let ran = Ran { sizes: sizes.clone(), row, ..Ran::default() };
            answers.push(Finished { outputs: outputs.clone(), is_cut: whole.is_none(), ran });
            row += job.rows();
        }
        let spent = Spent { input: put - began, infer: done - put, output: done.elapsed() };
        let positions = shape.map_or(1, |shape| shape.rows * shape.length);
        Ok(BatchRun { sizes, positions, answers, spent })
    }

    /// Copies the jobs' rows behind each other, zeros beside what is shorter than the batch, and gives the shapes.
    fn put_together(&mut self, layout: &Layout, shape: &Shape, jobs: &[Job]) -> Vec<Vec<usize>> {
        let mut shapes = Vec::with_capacity(self.inputs.len());
        for (number, words) in self.inputs.iter_mut().enumerate() {
            let like = &jobs[0].inputs()[number];
            let element = like.dtype().size();
            let mut whole = like.shape().to_vec();
            whole[0] = shape.rows;
            for &axis in layout.input_lengths(number) {
                whole[axis] = shape.length;
            }
            let row: usize = element * whole[1..].iter().product::<usize>();
            words.clear();
            words.resize((row * shape.rows).div_ceil(8), 0);
            let mut rest: &mut [u8] = bytemuck::cast_slice_mut(words);
            for job in jobs {
                let tensor = &job.inputs()[number];
                let (mine, others) = rest.split_at_mut(row * job.rows());
                let mut target = whole.clone();
                target[0] = job.rows();
                let source = (tensor.bytes(), tensor.shape());
                copy_region(source, (mine, &target), tensor.shape(), element);
                rest = others;
            }
            shapes.push(whole);
        }
        shapes
    }

    /// Runs one row on zeros, so that kernels are loaded when the first request comes, and the largest batch, so that
    /// memory is there; that is bound only where running it takes long. What a model of other dims is asked for is not
    /// known.
    pub(super) fn warm(&mut self, layout: &Layout, caps: &Caps) -> Result<()> {
        let model = self.context.model().clone();
        let dims: Vec<&str> = model.dims().collect();
        let short = caps.length(TYPICAL.min(caps.tokens));
        let rows = caps.rows.min(caps.tokens / short).max(1);
        let sizes = |rows| match (&*dims, layout.batch()) {
            ([], _) => Some(vec![]),
            ([dim], Some(_)) => Some(vec![(*dim, rows)]),
            ([first, second], Some(batch)) => {
                let length = if *first == batch { *second } else { *first };
                Some(vec![(batch, rows), (length, short)])
            }
            _ => None,
        };
        let (Some(one), Some(most)) = (sizes(1), sizes(rows)) else { return Ok(()) };
        self.context.warm(&one)?;
        if let ([_, _], Some(batch), true) = (&*dims, layout.batch(), caps.round_rows) {
            let length = dims.iter().copied().find(|dim| *dim != batch).unwrap_or(batch);
            for (rows, size) in caps.usual(LONGEST) {
                // A length that the model does not take is for no request.
                let _ = self.context.warm(&[(batch, rows), (length, size)]);
            }
        }
        let began = Instant::now();
        self.context.warm(&one)?;
        match began.elapsed() * rows as u32 > WARMUP {
            true => self.context.bind(&most).map(drop),
            false => self.context.warm(&most),
        }
    }
}

/// What a batch is as a whole.
struct Shape {
    rows: usize,
    length: usize,
}

impl Shape {
    /// That of jobs which are measured; `None` for one that runs as it is.
    fn of(jobs: &[Job], caps: &Caps) -> Option<Self> {
        let longest = jobs.iter().filter_map(|job| Some(job.measure()?.length)).max()?;
        let rows = jobs.iter().map(Job::rows).sum();
        Some(Self { rows: caps.batch_rows(rows), length: caps.length(longest) })
    }

    fn is_of(&self, job: &Job) -> bool {
        job.measure().is_some_and(|own| own.rows == self.rows && own.length == self.length)
    }
}

fn input<'a>(like: &Tensor, words: &'a [u64], shape: &'a [usize]) -> Input<'a> {
    let bytes = shape.iter().product::<usize>() * like.dtype().size();
    Input::bytes(like.dtype(), &bytemuck::cast_slice(words)[..bytes], shape)
}

/// Whether anybody still waits for a batch.
fn wanted(jobs: &[Job]) -> Result<()> {
    let now = Instant::now();
    match jobs.iter().all(|job| job.is_left(now)) {
        false => Ok(()),
        true if jobs.iter().any(|job| job.is_late(now)) => Err(Error::Deadline),
        true => Err(Error::Cancelled),
    }
}

/// A batch's outputs, and which rows of them are a request's: whoever waits for these cuts them out, while the lane runs
/// the next batch.
pub(super) struct Finished {
    pub(super) outputs: Outputs,
    /// Whether the request is a part of the batch.
    pub(super) is_cut: bool,
    pub(super) ran: Ran,
}

impl Finished {
    /// The outputs of these numbers by name, of a request of this measure.
    ///
    /// # Errors
    /// None, but for defects.
    pub(super) fn take(
        self,
        layout: &Layout,
        wanted: &[usize],
        measure: Option<&Measure>,
    ) -> Result<InferResponse> {
        let all: Vec<(&str, &Tensor)> = self.outputs.iter().collect();
        let one = |&number: &usize| {
            let (name, tensor) = all[number];
            let tensor = match measure.filter(|_| self.is_cut) {
                None => tensor.clone(),
                Some(own) => cut_out(tensor, own, layout.output_lengths(number), self.ran.row)?,
            };
            Ok((name.to_owned(), tensor))
        };
        let outputs = wanted.iter().map(one).collect::<Result<_>>()?;
        Ok(InferResponse { outputs, ran: self.ran })
    }
}

/// The rows of a request from `row` on, cut to its length.
fn cut_out(tensor: &Tensor, own: &Measure, lengths: &[usize], row: usize) -> Result<Tensor> {
    let mut whole = tensor.shape().to_vec();
    let row_bytes = tensor.bytes().len() / whole[0].max(1);
    let bytes = tensor.shared_bytes().slice(row * row_bytes..(row + own.rows) * row_bytes);
    whole[0] = own.rows;
    let mut shape = whole.clone();
    for &axis in lengths {
        shape[axis] = own.length;
    }
    if shape == whole {
        return Ok(Tensor::new(tensor.dtype(), shape, bytes)?);
    }
    let mut cut = vec![0; tensor.dtype().size() * shape.iter().product::<usize>()];
    copy_region((&bytes, &whole), (&mut cut, &shape), &shape, tensor.dtype().size());
    Ok(Tensor::new(tensor.dtype(), shape, cut.into())?)
}
