//! Steps as boxes with arrows between them.

use super::fold::Block;
use super::{Step, layered};
use serde::Serialize;
use std::collections::BTreeMap;

/// Operations that a box lists at most.
const LISTED: usize = 8;
/// Longer names are cut, in characters.
const NAME: usize = 30;
/// A value that is read this many boxes later stands there by name: no arrow goes that far.
const FAR: usize = 14;
/// An input that more boxes read stands by each of them.
const SHARED: usize = 2;
/// Width of a character of a name.
const CHARACTER: f64 = 6.9;
/// Heights of a name's line and of an operation's.
const LINE: f64 = 24.0;
const OPERATION: f64 = 15.0;
/// About a block's boxes.
const FRAME: f64 = 12.0;

/// A graph with places, in pixels.
#[derive(Serialize, Debug)]
pub(super) struct Drawing {
    width: f64,
    height: f64,
    boxes: Vec<Box>,
    arrows: Vec<Arrow>,
    frames: Vec<Frame>,
}

/// A step, or an input or output.
#[derive(Serialize, Debug)]
struct Box {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    /// `step`, `input`, `output` or `value`, one that is made far above.
    kind: &'static str,
    /// The steps that it stands for: itself in every repeat of its block.
    steps: Vec<usize>,
    /// Its name, unless it is a step's.
    label: String,
    /// Its operations.
    lines: Vec<String>,
}

/// A value that goes from one box to another.
#[derive(Serialize, Debug)]
struct Arrow {
    from: usize,
    to: usize,
    /// The value, with its type and sizes.
    value: String,
    /// Whether it is read through strides: a transpose, slice or split that moves nothing.
    view: bool,
    path: String,
}

/// A block that stands for its repeats.
#[derive(Serialize, Debug)]
struct Frame {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    label: String,
}

/// A graph that is being made.
#[derive(Default)]
struct Sketch {
    boxes: Vec<Box>,
    /// By their ends: a value, and whether it is read through strides.
    arrows: BTreeMap<(usize, usize), (String, bool)>,
    /// How many boxes read each input.
    readers: Vec<usize>,
    /// The box of each input that has one.
    inputs: Vec<Option<usize>>,
    /// The box of each step that has one.
    steps: Vec<Option<usize>>,
}

/// The graph of steps in an order in which they can run, with the first of each block's repeats for all of them.
pub(super) fn draw(
    steps: &[Step],
    order: &[usize],
    blocks: &[Block],
    inputs: &[&str],
    outputs: &[&str],
) -> Drawing {
    let block_of = |place: usize| blocks.iter().find(|b| (b.first..b.end()).contains(&place));
    // The place of the step that stands for that of a place.
    let shown = |place: usize| {
        block_of(place).map_or(place, |block| block.first + (place - block.first) % block.length)
    };
    // For each step the one that stands for it.
    let mut for_it = vec![0; steps.len()];
    order.iter().enumerate().for_each(|(place, &step)| for_it[step] = order[shown(place)]);
    let drawn: Vec<_> = order.iter().enumerate().filter(|(i, _)| shown(*i) == *i).collect();
    let mut sketch = Sketch {
        readers: readers(drawn.iter().map(|&(_, &number)| &steps[number]), inputs.len()),
        inputs: vec![None; inputs.len()],
        steps: vec![None; steps.len()],
        ..Sketch::default()
    };
    for (place, &number) in drawn {
        let step = &steps[number];
        let sources = sketch.sources(step, inputs, &for_it);
        let repeats = match block_of(place) {
            Some(block) => (0..block.count).map(|i| order[place + i * block.length]).collect(),
            None => vec![number],
        };
        let own = sketch.step(step, repeats);
        sketch.steps[number] = Some(own);
        for (source, about) in sources {
            sketch.arrows.entry((source, own)).or_insert(about);
        }
    }
    for (number, step) in steps.iter().enumerate() {
        for value in &step.writes {
            let name = value.output.and_then(|output| outputs.get(output));
            if let (Some(name), Some(from)) = (name, sketch.steps[for_it[number]]) {
                let to = sketch.label("output", name, vec![]);
                sketch.arrows.insert((from, to), (value.shape.clone(), false));
            }
        }
    }
    sketch.finish(blocks, order)
}

/// By how many steps each input is read.
fn readers<'a>(steps: impl Iterator<Item = &'a Step>, inputs: usize) -> Vec<usize> {
    let mut readers = vec![0; inputs];
    for step in steps {
        let mut read: Vec<_> = step.reads.iter().filter_map(|read| read.input).collect();
        read.sort_unstable();
        read.dedup();
        read.iter().for_each(|&input| readers[input] += 1);
    }
    readers
}

impl Sketch {
    /// The boxes that a step reads from, and what.
    fn sources(
        &mut self,
        step: &Step,
        inputs: &[&str],
        for_it: &[usize],
    ) -> Vec<(usize, (String, bool))> {
        let mut sources = Vec::new();
        for read in &step.reads {
            let about = (format!("{} {}", read.name, read.shape), read.view.is_some());
            if let Some(input) = read.input {
                let known = self.inputs[input].filter(|_| self.readers[input] <= SHARED);
                let source = known.unwrap_or_else(|| self.label("input", inputs[input], vec![]));
                self.inputs[input] = Some(source);
                sources.push((source, about));
                continue;
            }
            for &from in &read.from {
                // A later repeat reads from the one before; the first says where that is from.
                let Some(source) = self.steps[for_it[from]] else { continue };
                let far = self.boxes.len() - source > FAR;
                let label = || format!("{} of step {from}", read.name);
                let source = if far { self.label("value", &label(), vec![from]) } else { source };
                sources.push((source, about.clone()));
            }
        }
        sources
    }

    fn step(&mut self, step: &Step, steps: Vec<usize>) -> usize {
        let mut lines = step.operations.clone();
        if lines.len() > LISTED {
            let more = lines.len() - LISTED + 1;
            lines.truncate(LISTED - 1);
            lines.push(format!("{more} more"));
        }
        let last = steps.last().map_or(0, |last| last.to_string().len());
        // Room for the number, and for a time at the right.
        let head = step.family.len() + 2 + last + 10;
        let widest = lines.iter().map(|line| line.chars().count() + 3).max().unwrap_or(0);
        let width = (widest.max(head) as f64 * CHARACTER + 16.0).max(120.0);
        let height = LINE + lines.len() as f64 * OPERATION + 8.0;
        self.add(Box {
            x: 0.0,
            y: 0.0,
            width,
            height,
            kind: "step",
            steps,
            label: String::new(),
            lines,
        })
    }

    fn label(&mut self, kind: &'static str, name: &str, steps: Vec<usize>) -> usize {
        let label = match name.char_indices().nth(NAME) {
            Some((at, _)) => format!("{}…", &name[..at]),
            None => name.to_owned(),
        };
        let width = label.chars().count() as f64 * CHARACTER + 20.0;
        let lines = Vec::new();
        self.add(Box { x: 0.0, y: 0.0, width, height: 22.0, kind, steps, label, lines })
    }

    fn add(&mut self, added: Box) -> usize {
        self.boxes.push(added);
        self.boxes.len() - 1
    }

    fn finish(self, blocks: &[Block], order: &[usize]) -> Drawing {
        let Self { mut boxes, arrows, steps, .. } = self;
        let sizes: Vec<_> = boxes.iter().map(|drawn| (drawn.width, drawn.height)).collect();
        let ends: Vec<_> = arrows.keys().copied().collect();
        let placed = layered::place(&sizes, &ends);
        for (drawn, (x, y)) in boxes.iter_mut().zip(placed.corners) {
            (drawn.x, drawn.y) = (x, y);
        }
        let frames =
            blocks.iter().filter_map(|block| frame(block, order, &boxes, &steps)).collect();
        let arrows = arrows.into_iter().zip(placed.paths);
        let arrow = |(((from, to), (value, view)), path)| Arrow { from, to, value, view, path };
        Drawing {
            width: placed.width,
            height: placed.height,
            boxes,
            arrows: arrows.map(arrow).collect(),
            frames,
        }
    }
}

fn frame(block: &Block, order: &[usize], boxes: &[Box], box_of: &[Option<usize>]) -> Option<Frame> {
    let steps = &order[block.first..block.first + block.length];
    let inside: Vec<&Box> = steps.iter().filter_map(|&step| boxes.get(box_of[step]?)).collect();
    let least = |of: fn(&Box) -> f64| inside.iter().map(|b| of(b)).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&Box) -> f64| inside.iter().map(|b| of(b)).fold(0.0, f64::max);
    let (x, y) = (least(|b| b.x), least(|b| b.y));
    let (right, bottom) = (most(|b| b.x + b.width), most(|b| b.y + b.height));
    (!inside.is_empty()).then(|| Frame {
        x: x - FRAME,
        y: y - FRAME,
        width: right - x + 2.0 * FRAME,
        height: bottom - y + 2.0 * FRAME,
        label: format!("×{}", block.count),
    })
}
