//! Binding: sizes for symbols turn a program into a plan of numbers.
//!
//! A [`Plan`] knows for every buffer how large it is and where it lies, and for every operand its offset, shape
//! and strides. It belongs to no device; executors read it.

use crate::error::{Error, Result};
use crate::planner::{Heuristic, Interval, Layout, plan};
use crate::reach::check_reach;
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::infer::InferError;
use graphene_frontend::tensor::MAX_ELEMENTS;
#[cfg(feature = "cpu")]
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::{BufferId, BufferKind, Condition, Operand, Program, Step, StepId};
use std::fmt;
#[cfg(feature = "cpu")]
use std::ops::Range;

/// A program with sizes: where every buffer lies and how every operand reads it.
#[derive(Clone, Debug)]
pub struct Plan {
    bindings: Bindings,
    buffers: Vec<BoundBuffer>,
    steps: Vec<BoundStep>,
    layout: Layout,
}

/// A buffer with its size and place.
#[derive(Clone, Debug)]
pub struct BoundBuffer {
    /// The element type.
    pub dtype: DType,
    /// Its size in elements.
    pub elements: usize,
    /// Where it lies.
    pub place: Place,
}

/// Where a buffer lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The caller's input of this number.
    Input(usize),
    /// The program's weight of this buffer.
    Weight,
    /// The output of this number.
    Output(usize),
    /// In the arena, at this byte.
    Arena(usize),
}

/// An operand with numbers: element `i` lies at `offset + Σ stride·i`, in elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BoundOperand {
    /// The buffer.
    pub buffer: BufferId,
    /// Elements before the first one.
    pub offset: usize,
    /// Elements along each dimension.
    pub shape: Vec<usize>,
    /// Distance between two along each dimension.
    pub strides: Vec<isize>,
}

/// The operands of a step, with numbers.
#[derive(Clone, Debug)]
pub struct BoundStep {
    /// What it reads.
    pub inputs: Vec<BoundOperand>,
    /// What it writes.
    pub outputs: Vec<BoundOperand>,
    /// For each input, the output that overwrites its memory, if one does.
    pub overwritten_by: Vec<Option<usize>>,
    /// Which of the step's variants runs.
    pub variant: usize,
    /// That variant's name, where there are several.
    pub variant_name: Option<&'static str>,
}

impl Plan {
    /// The sizes that it is for.
    pub fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    /// All buffers, as in the program.
    pub fn buffers(&self) -> &[BoundBuffer] {
        &self.buffers
    }

    /// The steps, as in the program.
    pub fn steps(&self) -> &[BoundStep] {
        &self.steps
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> u64 {
        self.layout.total
    }

    /// Whether these are inputs of the program at its sizes.
    #[cfg(feature = "cpu")]
    pub(crate) fn check_inputs(&self, program: &Program, inputs: &[Tensor]) -> Result<()> {
        let expected = program.inputs();
        if inputs.len() != expected.len() {
            return Err(Error::InputCount { expected: expected.len(), found: inputs.len() });
        }
        for ((name, ty), tensor) in expected.iter().zip(inputs) {
            let shape = ty.bound_shape(&self.bindings)?;
            if tensor.dtype() != ty.dtype || tensor.shape() != shape {
                let (expected, found) = (format!("{}{shape:?}", ty.dtype), format!("{tensor:?}"));
                return Err(Error::Input { name: name.clone(), expected, found });
            }
        }
        Ok(())
    }

    /// Bytes of the inputs and of the outputs.
    pub(crate) fn port_bytes(&self) -> (u64, u64) {
        let bytes = |which: fn(Place) -> bool| {
            let buffers = self.buffers.iter().filter(|buffer| which(buffer.place));
            buffers.fold(0_u64, |sum, buffer| sum.saturating_add(buffer.bytes() as u64))
        };
        (bytes(|p| matches!(p, Place::Input(_))), bytes(|p| matches!(p, Place::Output(_))))
    }

    /// Bytes of the arena, the inputs and the outputs; `u64::MAX` if they are more.
    pub fn bytes(&self) -> u64 {
        let outside = |buffer: &&BoundBuffer| match buffer.place {
            Place::Input(_) | Place::Output(_) => true,
            Place::Weight | Place::Arena(_) => false,
        };
        let bytes = self.buffers.iter().filter(outside).map(|buffer| buffer.bytes() as u64);
        bytes.fold(self.layout.total, u64::saturating_add)
    }

    /// The largest sum of intermediates alive at one step, in bytes: no arena is smaller.
    pub fn lower_bound_bytes(&self) -> u64 {
        self.layout.lower_bound
    }

    /// The heuristic whose arena was kept.
    pub fn heuristic(&self) -> Heuristic {
        self.layout.heuristic
    }
}

impl BoundOperand {
    /// The elements of its buffer from the first to the last that it reaches, which it must.
    #[cfg(feature = "cpu")]
    pub(crate) fn span(&self) -> Range<usize> {
        if self.shape.contains(&0) {
            return 0..0;
        }
        let (mut low, mut high) = (self.offset, self.offset);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let reach = (size - 1) * stride.unsigned_abs();
            if stride < 0 { low -= reach } else { high += reach }
        }
        low..high + 1
    }
}

impl BoundBuffer {
    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.elements.saturating_mul(self.dtype.size())
    }
}

/// Gives every symbol of the program its size and lays out the arena.
///
/// # Errors
/// [`Error::Dim`] if a symbol has no size; [`Error::Largest`] if an operation takes its inputs at smaller sizes only,
/// as a slice of a model's table of positions, and [`Error::Infer`] if it does not take them for another reason;
/// [`Error::Negative`] and [`Error::TooLarge`] if a size would be below zero or unreasonably large;
/// [`Error::OutOfBounds`] if a step would reach beyond a buffer.
pub fn bind(program: &Program, bindings: &Bindings) -> Result<Plan> {
    for condition in program.conditions() {
        let refused = |error| misfit(condition, error, bindings).at(&condition.name);
        condition.check(bindings).map_err(refused)?;
    }
    let mut steps = Vec::with_capacity(program.steps().len());
    for step in program.steps() {
        let bound = bind_step(step, bindings).map_err(|error| error.at(&step.name))?;
        steps.push(bound);
    }
    let mut sizes = Vec::with_capacity(program.buffers().len());
    for buffer in program.buffers() {
        let elements =
            size_of(&buffer.elements, bindings).map_err(|error| error.at(&buffer.name))?;
        sizes.push(elements);
    }
    for (step, bound) in program.steps().iter().zip(&steps) {
        check_reaches(bound, &sizes).map_err(|error| error.at(&step.name))?;
    }
    let roots = merge_in_place(program, &mut steps);
    let (layout, offsets) = lay_out(program, &sizes, &roots)?;
    let buffers = program.buffers().iter().zip(&sizes).enumerate();
    let buffers = buffers
        .map(|(i, (buffer, &elements))| BoundBuffer {
            dtype: buffer.dtype,
            elements,
            place: match buffer.kind {
                BufferKind::Input(number) => Place::Input(number),
                BufferKind::Weight(_) => Place::Weight,
                BufferKind::Output(number) => Place::Output(number),
                BufferKind::Intermediate => Place::Arena(offsets[roots[i]]),
            },
        })
        .collect();
    Ok(Plan { bindings: bindings.clone(), buffers, steps, layout })
}

/// As [`bind`], for a device of so many bytes: at sizes that it has no memory for, that is what is wrong with them.
///
/// # Errors
/// As for [`bind`]; [`Error::At`] around [`Error::MemoryLimit`], with the sizes, where a program cannot be bound and its
/// inputs, its outputs and the largest intermediate alone are more than the device has.
#[cfg(feature = "cpu")]
pub(crate) fn bind_on(program: &Program, bindings: &Bindings, limit: u64) -> Result<Plan> {
    bind(program, bindings).map_err(|error| {
        let names_the_largest = match &error {
            Error::At { error, .. } => matches!(**error, Error::Largest { .. }),
            _ => false,
        };
        let needed = least_bytes(program, bindings);
        match names_the_largest || needed <= limit {
            true => error,
            false => {
                let what = "a run at these sizes".to_owned();
                let error = Error::MemoryLimit { what, needed, used: 0, limit };
                error.at(&sizes_text(bindings))
            }
        }
    })
}

/// Sizes as text: `batch=8, sequence=128`.
#[cfg(feature = "cpu")]
pub(crate) fn sizes_text(bindings: &Bindings) -> String {
    let sizes: Vec<_> = bindings.iter().map(|(symbol, size)| format!("{symbol}={size}")).collect();
    sizes.join(", ")
}

/// Bytes of a program's inputs, outputs and largest intermediate, also at sizes at which it cannot be bound; `u64::MAX` if
/// they are more.
#[cfg(feature = "cpu")]
fn least_bytes(program: &Program, bindings: &Bindings) -> u64 {
    let (mut outside, mut largest) = (0_u64, 0);
    for buffer in program.buffers() {
        let elements = buffer.elements.eval(bindings).ok().and_then(|n| u64::try_from(n).ok());
        let bytes = elements.unwrap_or(0).saturating_mul(buffer.dtype.size() as u64);
        match &buffer.kind {
            BufferKind::Input(_) | BufferKind::Output(_) => outside = outside.saturating_add(bytes),
            BufferKind::Intermediate => largest = bytes.max(largest),
            BufferKind::Weight(_) => {}
        }
    }
    outside.saturating_add(largest)
}

/// Why an operation does not take its inputs at these sizes: where one of them is too large for it, how large it may be.
fn misfit(condition: &Condition, error: InferError, bindings: &Bindings) -> Error {
    if !matches!(error, InferError::Exceeds { .. }) {
        return error.into();
    }
    match largest(bindings, |sizes| condition.check(sizes).is_ok()) {
        Some((symbol, size, largest)) => {
            Error::Largest { symbol, size, largest, source: Box::new(error) }
        }
        None => error.into(),
    }
}

/// Of sizes that do not fit, the first that does if it alone is smaller: the symbol, its size, and the largest that fits.
/// What does not fit is taken not to fit at larger sizes either.
pub fn largest(
    bindings: &Bindings,
    fits: impl Fn(&Bindings) -> bool,
) -> Option<(Symbol, i64, i64)> {
    bindings.iter().find_map(|(symbol, size)| {
        let fits_at = |size: i64| {
            let mut sizes = Bindings::new();
            let mut all = bindings.iter().map(|(s, n)| (s, if s == symbol { size } else { n }));
            all.try_for_each(|(s, n)| sizes.fix(s.clone(), n)).is_ok() && fits(&sizes)
        };
        if size <= 1 || !fits_at(1) {
            return None;
        }
        let (mut fitting, mut unfit) = (1, size);
        while unfit - fitting > 1 {
            let middle = fitting + (unfit - fitting) / 2;
            *(if fits_at(middle) { &mut fitting } else { &mut unfit }) = middle;
        }
        Some((symbol.clone(), size, fitting))
    })
}

fn size_of(dim: &Dim, bindings: &Bindings) -> Result<usize> {
    let size = dim.eval(bindings)?;
    if size < 0 {
        return Err(Error::Negative { dim: dim.clone(), size });
    }
    let size = usize::try_from(size).ok().filter(|&size| size <= MAX_ELEMENTS);
    size.ok_or(Error::TooLarge { what: "a buffer" })
}

fn bind_step(step: &Step, bindings: &Bindings) -> Result<BoundStep> {
    let bind = |operand: &Operand| bind_operand(operand, bindings);
    let variant = step.variants.choose(bindings)?;
    let variants = step.variants.all();
    Ok(BoundStep {
        inputs: step.inputs.iter().map(bind).collect::<Result<_>>()?,
        outputs: step.outputs.iter().map(bind).collect::<Result<_>>()?,
        overwritten_by: vec![None; step.inputs.len()],
        variant,
        variant_name: (variants.len() > 1).then(|| variants[variant].name),
    })
}

/// An operand with numbers for its dims.
///
/// # Errors
/// As [`bind`] for symbols and sizes.
pub(crate) fn bind_operand(operand: &Operand, bindings: &Bindings) -> Result<BoundOperand> {
    let modes = &operand.view.modes;
    let stride = |dim: &Dim| {
        isize::try_from(dim.eval(bindings)?).map_err(|_| Error::TooLarge { what: "a stride" })
    };
    let shape: Vec<_> =
        modes.iter().map(|mode| size_of(&mode.size, bindings)).collect::<Result<_>>()?;
    // A view without elements may begin anywhere, before the buffer too.
    let offset = match shape.contains(&0) {
        true => 0,
        false => size_of(&operand.view.offset, bindings)?,
    };
    Ok(BoundOperand {
        buffer: operand.buffer,
        offset,
        shape,
        strides: modes.iter().map(|mode| stride(&mode.stride)).collect::<Result<_>>()?,
    })
}

/// Checks that every operand stays within its buffer.
fn check_reaches(step: &BoundStep, sizes: &[usize]) -> Result<()> {
    for (what, operands) in [("an input", &step.inputs), ("an output", &step.outputs)] {
        for operand in operands {
            let axes = operand.shape.iter().copied().zip(operand.strides.iter().copied());
            check_reach(what, sizes[operand.buffer.index()], operand.offset, axes)?;
        }
    }
    Ok(())
}

/// Lets outputs take the memory of inputs that nobody reads later; each buffer's root holds its memory.
fn merge_in_place(program: &Program, steps: &mut [BoundStep]) -> Vec<usize> {
    let mut last_read = vec![0; program.buffers().len()];
    for (i, step) in program.steps().iter().enumerate() {
        step.inputs.iter().for_each(|operand| last_read[operand.buffer.index()] = i);
    }
    let mut roots: Vec<usize> = (0..program.buffers().len()).collect();
    for (i, (step, bound)) in program.steps().iter().zip(steps).enumerate() {
        let mut taken = vec![false; step.outputs.len()];
        for &(output, input) in &step.in_place {
            let (to, from) =
                (step.outputs[output].buffer.index(), step.inputs[input].buffer.index());
            if last_read[from] == i && !taken[output] && bound.overwritten_by[input].is_none() {
                taken[output] = true;
                bound.overwritten_by[input] = Some(output);
                roots[to] = roots[from];
            }
        }
    }
    roots
}

/// Plans the arena; offsets by root buffer.
fn lay_out(program: &Program, sizes: &[usize], roots: &[usize]) -> Result<(Layout, Vec<usize>)> {
    let mut intervals: Vec<Interval> = Vec::new();
    let mut interval_of = vec![usize::MAX; sizes.len()];
    for (i, step) in program.steps().iter().enumerate() {
        for operand in step.inputs.iter().chain(&step.outputs) {
            let buffer = operand.buffer.index();
            if !matches!(program.buffers()[buffer].kind, BufferKind::Intermediate) {
                continue;
            }
            let size = (sizes[buffer] * program.buffers()[buffer].dtype.size()) as u64;
            let slot = &mut interval_of[roots[buffer]];
            if *slot == usize::MAX {
                *slot = intervals.len();
                intervals.push(Interval { size, first: i, last: i });
            }
            let interval = &mut intervals[*slot];
            interval.size = interval.size.max(size);
            interval.last = i;
        }
    }
    let layout = plan(&intervals)?;
    let offset = |&slot: &usize| layout.offsets.get(slot).map_or(0, |&offset| offset as usize);
    let offsets = interval_of.iter().map(offset).collect();
    Ok((layout, offsets))
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plan")?;
        for (symbol, size) in self.bindings.iter() {
            write!(f, " {symbol}={size}")?;
        }
        let (total, bound) = (self.layout.total, self.layout.lower_bound);
        writeln!(f, " {{")?;
        writeln!(f, "  arena {total} bytes, lower bound {bound}, by {:?}", self.layout.heuristic)?;
        for (i, buffer) in self.buffers.iter().enumerate() {
            write!(f, "  @{i} {}[{}] ", buffer.dtype, buffer.elements)?;
            match buffer.place {
                Place::Input(number) => writeln!(f, "input {number}")?,
                Place::Weight => writeln!(f, "weight")?,
                Place::Output(number) => writeln!(f, "output {number}")?,
                Place::Arena(offset) => writeln!(f, "arena +{offset}")?,
            }
        }
        for (i, step) in self.steps.iter().enumerate() {
            let list = |operands: &[BoundOperand]| {
                operands.iter().map(|o| o.to_string()).collect::<Vec<_>>().join(", ")
            };
            write!(f, "  {}", StepId::from_index(i))?;
            if let Some(variant) = step.variant_name {
                write!(f, " {variant}")?;
            }
            writeln!(f, ": {} -> {}", list(&step.inputs), list(&step.outputs))?;
        }
        writeln!(f, "}}")
    }
}

impl fmt::Display for BoundOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.buffer)?;
        if self.offset != 0 {
            write!(f, "+{}", self.offset)?;
        }
        let modes = self.shape.iter().zip(&self.strides);
        let modes: Vec<_> = modes.map(|(size, stride)| format!("{size}:{stride}")).collect();
        write!(f, "[{}]", modes.join(","))
    }
}
