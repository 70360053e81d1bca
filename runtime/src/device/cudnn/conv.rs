//! Convolutions as cuDNN's graphs: with what follows in one graph where an engine has that, or in a second one.
//!
//! Engines know graphs by their very operations. Those for channels innermost in memory compile whatever follows into the
//! convolution; those for rows of pixels know an addend, a bias and ReLU, and an addend must be there, be it times zero.
//! Those are timed beside the convolution alone with a second graph of what follows.

use super::{Context, holds};
use crate::device::sys::capture::Used;
use crate::device::sys::cudnn::Handle;
use crate::device::sys::cudnn::graph::{
    Elements, Graph, Heuristic, Id, Note, Operation, Pack, Place, Plan, Pointwise, Tensor, Way,
    Windows,
};
use crate::device::sys::recording::{Outside, keep};
use crate::device::{Buffer, Stream};
use crate::error::{Error, Result};
use graphene_ir::tensor::Scalar;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Ways of the heuristics' that are timed, for each graph: those of pointwise functions differ little.
const CANDIDATES: usize = 8;
const POINTWISE_CANDIDATES: usize = 2;

/// Bytes of workspace at most that a way may need.
const WORKSPACE: usize = 1 << 30;

/// Bytes at multiples of which operands begin.
const ALIGNMENT: u64 = 16;

/// Bytes at multiples of which a workspace begins behind other intermediates.
const APART: usize = 256;

/// `y = relu(x ∗ w + addend + bias)`, accumulated in f32, of tensors without gaps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// The type of all operands: f32, f16 or bf16.
    pub scalar: Scalar,
    /// Whether f32 is multiplied as TF32, with 10 bits of the fraction.
    pub tf32: bool,
    /// How many images there are.
    pub images: usize,
    /// Channels read and made.
    pub channels: [usize; 2],
    /// Groups of channels.
    pub group: usize,
    /// The spatial axes, one to three.
    pub axes: Vec<Axis>,
    /// Whether channels are innermost in memory, in weights too: else pixels are.
    pub channels_last: bool,
    /// Whether an element for each channel is added.
    pub bias: bool,
    /// Whether a tensor of the result's shape is added.
    pub addend: bool,
    /// Whether ReLU is applied last.
    pub relu: bool,
}

/// A spatial axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Pixels along it.
    pub size: usize,
    /// Elements of the window.
    pub window: usize,
    /// From window to window.
    pub stride: usize,
    /// From element to element of a window.
    pub dilation: usize,
    /// Zeros before the first pixel, and after the last.
    pub pads: [usize; 2],
}

/// The operands of a convolution, from their first elements.
#[derive(Clone)]
pub struct ConvOperands {
    /// `[images, channels read, sizes…]`
    pub x: Buffer,
    /// `[channels made, channels read / group, windows…]`
    pub w: Buffer,
    /// `[channels made]`
    pub bias: Option<Buffer>,
    /// Of the result's shape.
    pub addend: Option<Buffer>,
    /// `[images, channels made, …]`
    pub y: Buffer,
}

/// What a graph computes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// All of it.
    Whole,
    /// All of it, with an addend times zero.
    WholeByAddend,
    /// The convolution without what follows, into memory between the two.
    Alone,
    /// What follows.
    After,
}

/// What a tensor of a graph is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operand {
    X,
    W,
    Bias,
    Addend,
    /// An addend that is multiplied by zero: the memory of the result.
    Unread,
    Y,
    /// What one graph leaves for the next.
    Between,
}

/// A graph, and what its tensors are that are no intermediates.
struct Described {
    tensors: Vec<Tensor>,
    operations: Vec<Operation>,
    operands: Vec<(Operand, Id)>,
}

/// A graph in the fastest way that was found.
#[derive(Clone)]
struct Part {
    stage: Stage,
    plan: Arc<Plan>,
}

/// How a convolution is computed.
pub(super) struct Found {
    parts: Vec<Part>,
    /// What was timed, and what was refused.
    report: String,
}

/// A convolution bound to its buffers.
pub struct Bound(Arc<Used<Launched>>);

struct Launched {
    handle: Arc<Outside<Handle>>,
    parts: Vec<(Arc<Plan>, Pack)>,
    found: Arc<Found>,
    /// Kept as long as the packs point to them.
    _operands: ConvOperands,
    _workspace: Arc<Buffer>,
}

impl Axis {
    /// Pixels of the result along it, with so many zeros around the image.
    fn made(&self, [before, after]: [usize; 2]) -> Option<usize> {
        let reach = self.window.checked_sub(1)?.checked_mul(self.dilation)?.checked_add(1)?;
        let padded = self.size.checked_add(before)?.checked_add(after)?;
        padded.checked_sub(reach)?.checked_div(self.stride)?.checked_add(1)
    }

    /// The axis with as many zeros after the image as before it, if the last windows make no difference: more engines
    /// take that.
    fn with_even_pads(self) -> Axis {
        let even = [self.pads[0]; 2];
        let same = self.made(even) == self.made(self.pads);
        if same { Axis { pads: even, ..self } } else { self }
    }
}

/// Distances of a tensor's dims, in elements, where it has no gaps.
fn packed(sizes: &[i64], channels_last: bool) -> Vec<i64> {
    let (mut strides, mut next) = (vec![1; sizes.len()], 1_i64);
    let inwards = (0..sizes.len()).rev().filter(|dim| !channels_last || *dim != 1);
    for dim in channels_last.then_some(1).into_iter().chain(inwards) {
        strides[dim] = next;
        next = next.saturating_mul(sizes[dim]);
    }
    strides
}

fn numbers(sizes: impl IntoIterator<Item = usize>) -> Result<Vec<i64>> {
    let large = |_| Error::TooLarge { what: "an operand of a convolution by cuDNN" };
    sizes.into_iter().map(|size| i64::try_from(size).map_err(large)).collect()
}

impl Convolution {
    /// Floating-point operations of the convolution itself.
    pub fn operations(&self) -> f64 {
        let made = self.axes.iter().map(|axis| axis.made(axis.pads).unwrap_or(0));
        let windows = self.axes.iter().map(|axis| axis.window);
        let each = [self.images, self.channels[1], self.channels[0] / self.group.max(1)];
        each.into_iter().chain(made).chain(windows).fold(2.0, |all, size| all * size as f64)
    }

    /// As the library has it: of two spatial axes at least, and pads as even as they may be.
    fn normalized(&self) -> Result<Convolution> {
        let none = Error::Unsupported { what: "a convolution of nothing by cuDNN" };
        let [read, made] = self.channels;
        let groups =
            [read, made].iter().all(|channels| channels.checked_rem(self.group) == Some(0));
        if !groups || !(1..=3).contains(&self.axes.len()) {
            return Err(Error::Unsupported { what: "a convolution of such groups or axes" });
        }
        let sizes = self.axes.iter().map(|axis| axis.made(axis.pads).unwrap_or(0));
        if [self.images, read, made].into_iter().chain(sizes).any(|size| size == 0) {
            return Err(none);
        }
        let mut axes: Vec<Axis> = self.axes.iter().map(|axis| axis.with_even_pads()).collect();
        if axes.len() == 1 {
            axes.insert(0, Axis { size: 1, window: 1, stride: 1, dilation: 1, pads: [0; 2] });
        }
        Ok(Convolution { axes, ..self.clone() })
    }

    fn elements(&self) -> Result<Elements> {
        match self.scalar {
            Scalar::F32 => Ok(Elements::F32),
            Scalar::F16 => Ok(Elements::F16),
            Scalar::Bf16 => Ok(Elements::Bf16),
            _ => Err(Error::Unsupported { what: "a convolution of integers by cuDNN" }),
        }
    }

    /// Sizes of x, w and y.
    fn sizes(&self) -> Result<[Vec<i64>; 3]> {
        let [read, made] = self.channels;
        let axes = || self.axes.iter();
        let result = axes().map(|axis| axis.made(axis.pads).unwrap_or(0));
        Ok([
            numbers([self.images, read].into_iter().chain(axes().map(|axis| axis.size)))?,
            numbers([made, read / self.group].into_iter().chain(axes().map(|axis| axis.window)))?,
            numbers([self.images, made].into_iter().chain(result))?,
        ])
    }

    /// What follows the convolution in a graph, with the other operand of each.
    fn tail(&self, stage: Stage) -> Vec<(Pointwise, Option<Operand>)> {
        let unread = stage == Stage::WholeByAddend && !self.addend;
        let all = [
            (self.addend, Pointwise::Add, Some(Operand::Addend)),
            (unread, Pointwise::AddNone, Some(Operand::Unread)),
            (self.bias, Pointwise::Add, Some(Operand::Bias)),
            (self.relu, Pointwise::Relu, None),
        ];
        let some = all.into_iter().filter(|(is, ..)| *is && stage != Stage::Alone);
        some.map(|(_, f, other)| (f, other)).collect()
    }

    fn has_tail(&self) -> bool {
        !self.tail(Stage::Whole).is_empty()
    }

    /// The graphs that compute all of it.
    fn wholes(&self) -> &'static [Stage] {
        match self.bias && self.relu && !self.addend && !self.channels_last {
            true => &[Stage::Whole, Stage::WholeByAddend],
            false => &[Stage::Whole],
        }
    }

    /// What no engine may do: round operands or sums that are to be of single precision, or give another result at each
    /// run; what follows a convolution has no sums. An addend times zero may be NaN to code that is compiled for the graph.
    fn barred(&self, stage: Stage) -> Vec<Note> {
        if stage == Stage::After {
            return Vec::new();
        }
        let mut barred = vec![Note::ReducedPrecisionReduction, Note::Nondeterministic];
        if self.scalar == Scalar::F32 && !self.tf32 {
            barred.extend([Note::TensorCore, Note::DownConvertInputs]);
        }
        if stage == Stage::WholeByAddend {
            barred.push(Note::RuntimeCompilation);
        }
        barred
    }

    /// A graph by tables: which tensors there are, and which operations. What follows a convolution alone takes all pixels
    /// as one row.
    fn described(&self, stage: Stage) -> Result<Described> {
        let elements = self.elements()?;
        let [x, w, y] = self.sizes()?;
        let made = y[1];
        let shape = match stage {
            Stage::After => vec![y[0], made, 1, y[2..].iter().product()],
            Stage::Whole | Stage::WholeByAddend | Stage::Alone => y,
        };
        let mut channels = vec![1; shape.len()];
        channels[1] = made;
        let (mut tensors, mut operations) = (Vec::new(), Vec::new());
        let mut operands = Vec::new();
        let mut tensor = |elements: Elements, sizes: &[i64], of: Option<Operand>| -> Id {
            let (sizes, strides) = (sizes.to_vec(), packed(sizes, self.channels_last));
            let place = if of.is_some() { Place::Device } else { Place::Inside };
            tensors.push(Tensor { elements, sizes, strides, place });
            let id = tensors.len() - 1;
            operands.extend(of.map(|of| (of, id)));
            id
        };
        let tail = self.tail(stage);
        let mut value = match stage {
            Stage::After => tensor(elements, &shape, Some(Operand::Between)),
            Stage::Whole | Stage::WholeByAddend | Stage::Alone => {
                let x = tensor(elements, &x, Some(Operand::X));
                let w = tensor(elements, &w, Some(Operand::W));
                let y = match (stage, tail.is_empty()) {
                    (Stage::Alone, _) => tensor(elements, &shape, Some(Operand::Between)),
                    (_, true) => tensor(elements, &shape, Some(Operand::Y)),
                    (_, false) => tensor(Elements::F32, &shape, None),
                };
                operations.push(Operation::Convolve { windows: self.windows()?, x, w, y });
                y
            }
        };
        for (number, &(f, other)) in tail.iter().enumerate() {
            let b = other.map(|of| {
                let sizes = if of == Operand::Bias { &channels } else { &shape };
                tensor(elements, sizes, Some(of))
            });
            let y = match number + 1 == tail.len() {
                true => tensor(elements, &shape, Some(Operand::Y)),
                false => tensor(Elements::F32, &shape, None),
            };
            operations.push(Operation::Pointwise { f, x: value, b, t: None, y });
            value = y;
        }
        Ok(Described { tensors, operations, operands })
    }

    fn windows(&self) -> Result<Windows> {
        let each = |of: fn(&Axis) -> usize| numbers(self.axes.iter().map(of));
        Ok(Windows {
            strides: each(|axis| axis.stride)?,
            dilations: each(|axis| axis.dilation)?,
            before: each(|axis| axis.pads[0])?,
            after: each(|axis| axis.pads[1])?,
        })
    }

    fn check(&self, stream: &Stream, operands: &ConvOperands) -> Result<()> {
        let ConvOperands { x, w, bias, addend, y } = operands;
        if (self.bias, self.addend) != (bias.is_some(), addend.is_some()) {
            let what = "a convolution with other addends than described";
            return Err(Error::Unsupported { what });
        }
        let [of_x, of_w, of_y] = self.sizes()?;
        let made = [self.channels[1] as i64];
        let all = [
            ("the image", Some(x), &of_x[..]),
            ("the weights", Some(w), &of_w),
            ("the bias", bias.as_ref(), &made),
            ("the addend", addend.as_ref(), &of_y),
            ("the result", Some(y), &of_y),
        ];
        for (name, buffer, sizes) in all {
            let Some(buffer) = buffer else { continue };
            if buffer.pointer() % ALIGNMENT != 0 {
                return Err(Error::Unsupported {
                    what: "a convolution of what is not at 16 bytes",
                });
            }
            let elements = sizes.iter().try_fold(1_i128, |all, &size| all.checked_mul(size.into()));
            let elements = elements.ok_or(Error::TooLarge { what: "an image" })?;
            holds(stream, name, buffer, elements, self.scalar)?;
        }
        y.check_writable()
    }

    /// Bytes of what one graph leaves for the next, up to where the workspace begins.
    fn between(&self) -> Result<usize> {
        let [.., y] = self.sizes()?;
        let large = Error::TooLarge { what: "a convolution's result" };
        let bytes = y.iter().try_fold(self.scalar.bytes(), |all, &size| all.checked_mul(size));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        bytes.and_then(|bytes| bytes.checked_next_multiple_of(APART)).ok_or(large)
    }
}

/// The workspaces of bound convolutions, of which each serves all those of its stream that fit: they come one after the
/// other.
#[derive(Default)]
pub(super) struct Workspaces(Mutex<Vec<Weak<Buffer>>>);

impl Workspaces {
    fn get(&self, stream: &Stream, bytes: usize) -> Result<Arc<Buffer>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|of| of.strong_count() > 0);
        let fits = |of: &Arc<Buffer>| of.len() >= bytes && of.stream().is(stream);
        if let Some(known) = all.iter().filter_map(Weak::upgrade).find(fits) {
            return Ok(known);
        }
        let made = stream.alloc(bytes);
        let made = made.map_err(|error| error.wanted_for("cuDNN's workspace for convolutions"))?;
        let made = Arc::new(made);
        all.push(Arc::downgrade(&made));
        Ok(made)
    }
}

/// Seeks how a convolution is computed the fastest, on its own operands.
struct Search<'a> {
    context: &'a Context,
    stream: &'a Stream,
    handle: &'a Arc<Outside<Handle>>,
    convolution: &'a Convolution,
    operands: &'a ConvOperands,
}

impl Search<'_> {
    fn bind(&self, found: &Arc<Found>) -> Result<Bound> {
        let ConvOperands { x, w, bias, addend, y } = self.operands;
        let apart = |part: &Part| matches!(part.stage, Stage::Alone | Stage::After);
        let between = if found.parts.iter().any(apart) { self.convolution.between()? } else { 0 };
        let most = found.parts.iter().map(|part| part.plan.workspace()).max().unwrap_or(0);
        let bytes = between.checked_add(most).ok_or(Error::TooLarge { what: "a workspace" })?;
        let workspace = self.context.workspaces.get(self.stream, bytes)?;
        let at = |of: Operand| {
            let buffer = match of {
                Operand::X => Some(x),
                Operand::W => Some(w),
                Operand::Bias => bias.as_ref(),
                Operand::Addend => addend.as_ref(),
                Operand::Y | Operand::Unread => Some(y),
                Operand::Between => Some(&*workspace),
            };
            buffer.map(Buffer::pointer)
        };
        let mut parts = Vec::with_capacity(found.parts.len());
        for Part { stage, plan } in &found.parts {
            let operands = self.convolution.described(*stage)?.operands;
            let memories = operands.iter().filter_map(|&(of, id)| Some((id, at(of)?)));
            let memories: Vec<(Id, u64)> = memories.collect();
            let pack = Pack::new(&memories, &[], workspace.pointer() + between as u64)?;
            parts.push((Arc::clone(plan), pack));
        }
        let launched = Launched {
            handle: Arc::clone(self.handle),
            parts,
            found: Arc::clone(found),
            _operands: self.operands.clone(),
            _workspace: workspace,
        };
        let bound = Bound(Arc::new(Used::new(self.stream.shared(), launched)));
        // What the library loads when it is first called cannot be loaded while a graph is recorded.
        bound.launch()?;
        Ok(bound)
    }

    /// Microseconds of the fastest way that computes a stage; the library's fallbacks are tried where its model of time has
    /// none that runs.
    fn fastest(&self, stage: Stage) -> Result<(f64, Part)> {
        let described = self.convolution.described(stage)?;
        let graph = Graph::new(self.handle, &described.tensors, &described.operations)?;
        let barred = self.convolution.barred(stage);
        let most = if stage == Stage::After { POINTWISE_CANDIDATES } else { CANDIDATES };
        let mut best: Option<(f64, Part)> = None;
        let mut refusal = None;
        for heuristic in [Heuristic::Model, Heuristic::Fallback] {
            let ways = graph.ways_by(self.handle, heuristic, most, &barred);
            let ways = ways.unwrap_or_else(|error| {
                refusal.get_or_insert(error);
                Vec::new()
            });
            for way in ways {
                match self.timed(stage, &way) {
                    Ok((time, _)) if best.as_ref().is_some_and(|best| best.0 <= time) => {}
                    Ok(found) => best = Some(found),
                    Err(error) => {
                        refusal.get_or_insert(error);
                    }
                }
            }
            if let Some(best) = best {
                return Ok(best);
            }
        }
        let none = Error::Unsupported { what: "a convolution that cuDNN has no engine for" };
        Err(refusal.unwrap_or(none))
    }

    /// A stage computed in some way, and its microseconds.
    fn timed(&self, stage: Stage, way: &Way) -> Result<(f64, Part)> {
        let plan = way.plan(self.handle)?;
        if plan.workspace() > WORKSPACE {
            let what = "a convolution by cuDNN in more than 1 GiB of workspace";
            return Err(Error::Unsupported { what });
        }
        let part = Part { stage, plan: Arc::new(plan) };
        let found = Found { parts: vec![part.clone()], report: String::new() };
        let bound = self.bind(&Arc::new(found))?;
        Ok((super::time(self.stream, || bound.launch())?, part))
    }

    /// The fastest parts that compute all of it. Where channels are innermost, engines that take all are the faster ones, and
    /// the two graphs are timed only without one.
    fn best(&self) -> Result<Found> {
        let mut best: Option<(f64, Vec<Part>)> = None;
        let mut told = Vec::new();
        let apart: &[Stage] = &[Stage::Alone, Stage::After];
        let wholes = self.convolution.wholes().iter().map(std::slice::from_ref);
        for stages in wholes.chain(self.convolution.has_tail().then_some(apart)) {
            if self.convolution.channels_last && best.is_some() {
                break;
            }
            let (mut time, mut parts) = (0.0, Vec::new());
            for &stage in stages {
                match self.fastest(stage) {
                    Ok((each, part)) => {
                        told.push(format!("{stage:?}: {each:.1} µs"));
                        time += each;
                        parts.push(part);
                    }
                    Err(error) => told.push(format!("{stage:?}: {error}")),
                }
            }
            let complete = parts.len() == stages.len();
            if complete && best.as_ref().is_none_or(|best| time < best.0) {
                best = Some((time, parts));
            }
        }
        let report = told.join("; ");
        match best {
            Some((_, parts)) => Ok(Found { parts, report }),
            None => Err(Error::Device { call: "cuDNN's convolution", status: report }),
        }
    }
}

impl Context {
    /// Binds a convolution to its operands, and runs it. Unless an equal one was bound before, the ways that the library's
    /// heuristics propose are timed on these operands, which overwrites the result.
    ///
    /// # Errors
    ///
    /// [`Error::Short`] if a buffer does not hold its operand, [`Error::Foreign`] if it is of another stream;
    /// [`Error::Unsupported`] for integers, for nothing, and but at multiples of 16 bytes; [`Error::TooLarge`] beyond
    /// what the library counts; [`Error::DeviceMemory`]; [`Error::Device`], also where the library has no engine, with
    /// its words for each graph that was tried.
    pub fn convolution(
        &self,
        stream: &Stream,
        convolution: &Convolution,
        operands: &ConvOperands,
    ) -> Result<Bound> {
        let convolution = &convolution.normalized()?;
        convolution.elements()?;
        convolution.check(stream, operands)?;
        let handle = &stream.shared().cudnn()?;
        let search = Search { context: self, stream, handle, convolution, operands };
        let lock = || self.convolutions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(convolution).cloned();
        // A plan was made with another stream's state of the library, which may refuse it: then it is sought anew.
        if let Some(bound) = known.and_then(|found| search.bind(&found).ok()) {
            return Ok(bound);
        }
        let own = Arc::new(search.best()?);
        // Of two threads that timed it at once, both take the way that came first.
        let first =
            Arc::clone(lock().entry(convolution.clone()).or_insert_with(|| Arc::clone(&own)));
        search.bind(&first).or_else(|_| search.bind(&own))
    }

    /// How many convolutions were timed.
    pub fn timed(&self) -> usize {
        self.convolutions.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Bound {
    /// Computes it, behind all work of the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn launch(&self) -> Result<()> {
        let Launched { handle, parts, .. } = &**self.0;
        keep(&self.0);
        parts.iter().try_for_each(|(plan, pack)| plan.run((handle, self.0.stream()), pack))
    }

    /// Which graphs compute it: `Whole`, or `Alone, After`.
    pub fn graphs(&self) -> String {
        let stages = self.0.found.parts.iter().map(|part| format!("{:?}", part.stage));
        stages.collect::<Vec<_>>().join(", ")
    }

    /// What was timed when it was first bound, and what the library said of graphs that it refused.
    pub fn report(&self) -> &str {
        &self.0.found.report
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, Convolution, Note, Stage, packed};
    use expect_test::{Expect, expect};
    use graphene_ir::tensor::Scalar;

    /// A convolution along one axis of ten pixels, every second one, in two groups.
    fn convolution() -> Convolution {
        Convolution {
            scalar: Scalar::F16,
            tf32: false,
            images: 2,
            channels: [8, 16],
            group: 2,
            axes: vec![Axis { size: 10, window: 3, stride: 2, dilation: 1, pads: [1, 0] }],
            channels_last: false,
            bias: true,
            addend: true,
            relu: true,
        }
    }

    fn check(convolution: &Convolution, stage: Stage, expected: &Expect) {
        let found = convolution.normalized().and_then(|of| of.described(stage));
        let found = found.expect("it is some convolution of reals");
        let mut text = String::new();
        for (id, tensor) in found.tensors.iter().enumerate() {
            let super::Tensor { elements, sizes, strides, place } = tensor;
            text += &format!("{id}: {elements:?} {sizes:?} {strides:?} {place:?}\n");
        }
        for operation in &found.operations {
            text += &format!("{operation:?}\n");
        }
        text += &format!("{:?}\n", found.operands);
        expected.assert_eq(&text);
    }

    #[test]
    fn a_convolution_and_what_follows_is_one_graph() {
        check(
            &convolution(),
            Stage::Whole,
            &expect![[r#"
                0: F16 [2, 8, 1, 10] [80, 10, 10, 1] Device
                1: F16 [16, 4, 1, 3] [12, 3, 3, 1] Device
                2: F32 [2, 16, 1, 5] [80, 5, 5, 1] Inside
                3: F16 [2, 16, 1, 5] [80, 5, 5, 1] Device
                4: F32 [2, 16, 1, 5] [80, 5, 5, 1] Inside
                5: F16 [1, 16, 1, 1] [16, 1, 1, 1] Device
                6: F32 [2, 16, 1, 5] [80, 5, 5, 1] Inside
                7: F16 [2, 16, 1, 5] [80, 5, 5, 1] Device
                Convolve { windows: Windows { strides: [1, 2], dilations: [1, 1], before: [0, 1], after: [0, 1] }, x: 0, w: 1, y: 2 }
                Pointwise { f: Add, x: 2, b: Some(3), t: None, y: 4 }
                Pointwise { f: Add, x: 4, b: Some(5), t: None, y: 6 }
                Pointwise { f: Relu, x: 6, b: None, t: None, y: 7 }
                [(X, 0), (W, 1), (Addend, 3), (Bias, 5), (Y, 7)]
            "#]],
        );
    }

    #[test]
    fn a_graph_may_need_an_addend_times_zero() {
        let convolution = Convolution { addend: false, channels_last: true, ..convolution() };
        check(
            &convolution,
            Stage::WholeByAddend,
            &expect![[r#"
                0: F16 [2, 8, 1, 10] [80, 1, 80, 8] Device
                1: F16 [16, 4, 1, 3] [12, 1, 12, 4] Device
                2: F32 [2, 16, 1, 5] [80, 1, 80, 16] Inside
                3: F16 [2, 16, 1, 5] [80, 1, 80, 16] Device
                4: F32 [2, 16, 1, 5] [80, 1, 80, 16] Inside
                5: F16 [1, 16, 1, 1] [16, 1, 16, 16] Device
                6: F32 [2, 16, 1, 5] [80, 1, 80, 16] Inside
                7: F16 [2, 16, 1, 5] [80, 1, 80, 16] Device
                Convolve { windows: Windows { strides: [1, 2], dilations: [1, 1], before: [0, 1], after: [0, 1] }, x: 0, w: 1, y: 2 }
                Pointwise { f: AddNone, x: 2, b: Some(3), t: None, y: 4 }
                Pointwise { f: Add, x: 4, b: Some(5), t: None, y: 6 }
                Pointwise { f: Relu, x: 6, b: None, t: None, y: 7 }
                [(X, 0), (W, 1), (Unread, 3), (Bias, 5), (Y, 7)]
            "#]],
        );
    }

    #[test]
    fn what_follows_takes_all_pixels_as_one_row() {
        let axis = Axis { size: 4, window: 3, stride: 1, dilation: 1, pads: [1, 1] };
        let volume = Convolution {
            scalar: Scalar::F32,
            group: 1,
            axes: vec![axis; 3],
            addend: false,
            ..convolution()
        };
        check(
            &volume,
            Stage::Alone,
            &expect![[r#"
                0: F32 [2, 8, 4, 4, 4] [512, 64, 16, 4, 1] Device
                1: F32 [16, 8, 3, 3, 3] [216, 27, 9, 3, 1] Device
                2: F32 [2, 16, 4, 4, 4] [1024, 64, 16, 4, 1] Device
                Convolve { windows: Windows { strides: [1, 1, 1], dilations: [1, 1, 1], before: [1, 1, 1], after: [1, 1, 1] }, x: 0, w: 1, y: 2 }
                [(X, 0), (W, 1), (Between, 2)]
            "#]],
        );
        check(
            &volume,
            Stage::After,
            &expect![[r#"
                0: F32 [2, 16, 1, 64] [1024, 64, 64, 1] Device
                1: F32 [1, 16, 1, 1] [16, 1, 1, 1] Device
                2: F32 [2, 16, 1, 64] [1024, 64, 64, 1] Inside
                3: F32 [2, 16, 1, 64] [1024, 64, 64, 1] Device
                Pointwise { f: Add, x: 0, b: Some(1), t: None, y: 2 }
                Pointwise { f: Relu, x: 2, b: None, t: None, y: 3 }
                [(Between, 0), (Bias, 1), (Y, 3)]
            "#]],
        );
    }

    #[test]
    fn tensors_have_no_gaps_in_either_order() {
        assert_eq!(packed(&[2, 3, 4, 5, 6], false), [360, 120, 30, 6, 1]);
        assert_eq!(packed(&[2, 3, 4, 5, 6], true), [360, 1, 90, 18, 3]);
    }

    #[test]
    fn pads_that_make_a_difference_stay() {
        let axis = Axis { size: 8, window: 3, stride: 2, dilation: 1, pads: [0, 1] };
        assert_eq!((axis.made(axis.pads), axis.made([0, 0])), (Some(4), Some(3)));
        assert_eq!(axis.with_even_pads(), axis);
        let even = Axis { pads: [1, 0], ..axis };
        assert_eq!(even.with_even_pads().pads, [1, 1]);
        assert_eq!(Axis { window: 12, ..axis }.made([0, 1]), None);
    }

    #[test]
    fn single_precision_is_not_rounded_unless_asked_for() {
        let barred = |scalar, tf32| {
            let convolution = Convolution { scalar, tf32, ..convolution() };
            convolution.barred(Stage::Whole).contains(&Note::TensorCore)
        };
        let found = [barred(Scalar::F32, false), barred(Scalar::F32, true)];
        assert_eq!((found, barred(Scalar::Bf16, false)), ([true, false], false));
    }

    #[test]
    fn what_is_no_convolution_is_refused() {
        let refused = |of: Convolution| of.normalized().expect_err("it is refused").to_string();
        let groups = Convolution { group: 3, ..convolution() };
        assert_eq!(refused(groups), "a convolution of such groups or axes cannot be run");
        let none = Convolution { images: 0, ..convolution() };
        assert_eq!(refused(none), "a convolution of nothing by cuDNN cannot be run");
        assert_eq!(convolution().operations(), 2.0 * 2.0 * 16.0 * 4.0 * 5.0 * 3.0);
    }
}
