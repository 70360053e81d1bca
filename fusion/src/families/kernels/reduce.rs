//! Reductions over any axes, with what is computed before and after; several at once, and normalisations, as totals of
//! rows one after the other.

use super::function::{floats, function};
use super::operand::{Axes, spread};
use super::{Dims, Launch, Made, Refusal, Site, StepOperand, TypedOperand, ensure, made};
use crate::base::parameters::Parameters;
use crate::base::sizes::{ceil, is_multiple};
use crate::base::variants::Variant;
use crate::base::view::{Mode, View};
use crate::families::grids::{COLUMNS, halved, of_columns, of_folds, widest};
use graphene_frontend::dim::Dim;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::{Op, ReduceOp};
use graphene_ir::function::Function;
use graphene_ir::kernel::{Binary, Unary};
use graphene_ir::template::folds::{Folds, Out, Total};
use graphene_ir::template::reduce::Reduce;

/// The launch of a step with functions of the rows of one shape.
pub(super) fn launch(site: &Site<'_>) -> Result<Launch, Refusal> {
    let rows = Rows::new(&site.step.body)?;
    let operands = Operands::new(site, &rows)?;
    match operands.columns(&rows)? {
        Some(launch) => Ok(launch),
        None => operands.folds(&rows),
    }
}

/// What is computed of rows: of the body's inputs, which come first, and of totals after them.
struct Rows<'a> {
    body: &'a Graph,
    /// The shape that has the rows.
    full: &'a [Dim],
    /// For each axis whether it is one of a row's.
    reduced: Vec<bool>,
    totals: Vec<Total>,
    /// For each of the body's outputs.
    outs: Vec<Function>,
}

impl<'a> Rows<'a> {
    fn new(body: &'a Graph) -> Result<Self, Refusal> {
        let of_rows: Vec<(NodeId, Vec<usize>)> =
            body.nodes().filter_map(|(id, node)| Some((id, axes(body, id, node.op())?))).collect();
        let name = body.nodes().last().map_or("nothing", |(_, node)| node.op().name());
        let (first, axes) = of_rows.first().ok_or(Refusal::Operation(name))?;
        let full = &body.ty(operand(body, *first, 0)?).shape;
        let alike = |(id, own): &(NodeId, Vec<usize>)| {
            own == axes && operand(body, *id, 0).is_ok_and(|x| body.ty(x).shape == *full)
        };
        ensure(of_rows.iter().all(alike), Refusal::Layout("rows of several shapes"))?;
        let reduced = (0..full.len()).map(|axis| axes.contains(&axis)).collect();
        let mut rows = Self { body, full, reduced, totals: Vec::new(), outs: Vec::new() };
        let mut made: Vec<(ValueId, Function)> = Vec::new();
        for (id, _) in &of_rows {
            made.push((id.value(), rows.result(*id, &made)?));
        }
        for (_, value) in body.outputs() {
            rows.outs.push(rows.value(*value, &made)?);
        }
        Ok(rows)
    }

    /// The axes of a row, or those that are none of its.
    fn axes(&self, reduced: bool) -> Vec<usize> {
        (0..self.full.len()).filter(|&axis| self.reduced[axis] == reduced).collect()
    }

    /// A value of the body, where some are known.
    fn value(&self, value: ValueId, made: &[(ValueId, Function)]) -> Result<Function, Refusal> {
        let count = self.body.inputs().len();
        let inputs = self.body.inputs().iter().map(|id| id.value());
        let inputs: Vec<ValueId> = inputs.chain(made.iter().map(|known| known.0)).collect();
        let of_rows = function(self.body, &[value], &inputs)?;
        let known = made.iter().map(|known| known.1.clone());
        Ok(of_rows.after(&Function::all((0..count).map(Function::input).chain(known))))
    }

    /// The total of `function` that then becomes `finish`, as an input of functions.
    fn total(&mut self, op: Binary, function: Function, finish: Function) -> Function {
        self.totals.push(Total { op, function, finish });
        Function::input(self.body.inputs().len() + self.totals.len() - 1)
    }

    /// The first result of a function of rows.
    fn result(&mut self, id: NodeId, made: &[(ValueId, Function)]) -> Result<Function, Refusal> {
        let node = self.body.node(id);
        let read = |place: usize| -> Result<Option<Function>, Refusal> {
            let value = node.input(place);
            value.map(|value| self.value(value, made)).transpose()
        };
        let x = read(0)?.ok_or(Refusal::Operation("a reduction of nothing"))?;
        let affine = [read(1)?, read(2)?];
        floats(&[self.body.ty(operand(self.body, id, 0)?).dtype], &[])?;
        let square = |x: &Function| x.clone() * x.clone();
        let sum = Function::identity;
        let scaled = |normal: Function| {
            let [scale, shift] = affine.clone();
            let scaled = scale.map_or(normal.clone(), |scale| normal * scale);
            shift.map_or(scaled.clone(), |shift| scaled + shift)
        };
        Ok(match *node.op() {
            Op::Reduce { op, .. } => match op {
                ReduceOp::Sum => self.total(Binary::Add, x, sum()),
                ReduceOp::Mean => self.total(Binary::Add, x, Reduce::mean()),
                ReduceOp::Prod => self.total(Binary::Mul, x, sum()),
                ReduceOp::Max => self.total(Binary::MaxNan, x, sum()),
                ReduceOp::Min => self.total(Binary::MinNan, x, sum()),
                ReduceOp::L1 => self.total(Binary::Add, x.unary(Unary::Abs), sum()),
                ReduceOp::L2 => {
                    self.total(Binary::Add, square(&x), Function::identity().unary(Unary::Sqrt))
                }
                ReduceOp::SumSquare => self.total(Binary::Add, square(&x), sum()),
                ReduceOp::LogSum => self.total(Binary::Add, x, sum().unary(Unary::Log)),
                ReduceOp::LogSumExp => {
                    let (most, sum) = self.exponents(&x);
                    most + sum.unary(Unary::Log)
                }
            },
            Op::Softmax { log, .. } => {
                let (most, sum) = self.exponents(&x);
                let shifted = x - most;
                if log { shifted - sum.unary(Unary::Log) } else { shifted.unary(Unary::Exp) / sum }
            }
            Op::LayerNorm { epsilon, .. } => {
                let mean = self.total(Binary::Add, x.clone(), Reduce::mean());
                let difference = x - mean;
                let inverse = (Reduce::mean() + f64::from(epsilon)).unary(Unary::Rsqrt);
                let inverse = self.total(Binary::Add, square(&difference), inverse);
                scaled(difference * inverse)
            }
            Op::RmsNorm { epsilon, .. } => {
                let inverse = (Reduce::mean() + f64::from(epsilon)).unary(Unary::Rsqrt);
                let inverse = self.total(Binary::Add, square(&x), inverse);
                scaled(x * inverse)
            }
            ref other => return Err(Refusal::Operation(other.name())),
        })
    }

    /// The largest of a row, 0 if that is infinite, and Σ eˣ about it.
    fn exponents(&mut self, x: &Function) -> (Function, Function) {
        let total = Function::identity;
        let infinite = total().unary(Unary::Abs).binary(Binary::Equal, f64::INFINITY);
        let most = self.total(Binary::MaxNan, x.clone(), infinite.select(0.0, total()));
        let power = (x.clone() - most.clone()).unary(Unary::Exp);
        let sum = self.total(Binary::Add, power, total());
        (most, sum)
    }
}

/// The axes of an operation's rows, if it is a function of rows.
fn axes(body: &Graph, id: NodeId, op: &Op) -> Option<Vec<usize>> {
    let rank = body.ty(operand(body, id, 0).ok()?).shape.len();
    match op {
        Op::Reduce { axes, .. } if !axes.is_empty() => Some(axes.clone()),
        Op::Softmax { axis, .. } => Some(vec![*axis]),
        Op::LayerNorm { axis, .. } | Op::RmsNorm { axis, .. } => Some((*axis..rank).collect()),
        _ => None,
    }
}

fn operand(body: &Graph, id: NodeId, place: usize) -> Result<ValueId, Refusal> {
    body.node(id).input(place).ok_or(Refusal::Operation("a reduction of nothing"))
}

/// A step's operands along the axes of rows and those of columns.
struct Operands<'a> {
    site: &'a Site<'a>,
    /// Inputs, then outputs.
    all: Vec<Of<'a>>,
}

struct Of<'a> {
    own: TypedOperand<'a>,
    /// Along all axes; a row's result repeats along its columns.
    modes: Vec<Mode>,
    /// Whether rows have one of it each.
    of_row: bool,
}

impl<'a> Operands<'a> {
    fn new(site: &'a Site<'a>, rows: &Rows<'_>) -> Result<Self, Refusal> {
        let ins = (0..site.step.inputs.len()).map(StepOperand::Input);
        let outs = (0..site.step.outputs.len()).map(StepOperand::Output);
        let mut all = Vec::new();
        for operand in ins.chain(outs) {
            let own @ TypedOperand { view, .. } = site.operand(operand)?;
            let output = matches!(operand, StepOperand::Output(_));
            let of_row = output && view.shape() != rows.full;
            let of_columns = of_row.then(|| of_rows(view, rows)).transpose()?;
            let modes = spread(of_columns.as_ref().unwrap_or(view), rows.full)?.modes;
            all.push(Of { own, modes, of_row });
        }
        // Of inputs, one at least has all columns.
        let repeats = |of: &Of<'_>| {
            of.modes.iter().zip(&rows.reduced).all(|(mode, reduced)| !reduced || mode.stride == 0)
        };
        let ins = site.step.inputs.len();
        if !all[..ins].iter().all(repeats) {
            for of in &mut all[..ins] {
                of.of_row = repeats(of);
            }
        }
        Ok(Self { site, all })
    }

    /// The axes of a range, those that lie one within the other as one.
    fn merged(&self, axes: &[usize]) -> Axes {
        let pick = |of: &Of<'_>| axes.iter().map(|&axis| of.modes[axis].clone()).collect();
        Axes::merged(&self.all.iter().map(pick).collect::<Vec<Vec<Mode>>>())
    }

    fn launch(&self, made: Made, dims: &Dims) -> Launch {
        self.site.launch(made, dims, self.all.iter().map(|of| of.own.pointer()).collect())
    }

    /// Elements that the operands of the narrowest type have in what a thread moves at once.
    fn most(&self) -> i64 {
        widest(self.all.iter().map(|of| of.own.scalar.bytes()).min().unwrap_or(1))
    }

    /// One reduction over axes that are not innermost in memory: neighbouring columns side by side.
    fn columns(&self, rows: &Rows<'_>) -> Result<Option<Launch>, Refusal> {
        let rank = rows.full.len();
        let count = rows.body.inputs().len();
        let own = rows.axes(true);
        let (first, last) = (own[0], own[own.len() - 1]);
        let ([total], [out], [.., result]) = (&rows.totals[..], &rows.outs[..], &self.all[..])
        else {
            return Ok(None);
        };
        let run = last - first + 1 == own.len();
        let mut after: Vec<usize> = (last + 1..rank).filter(|&axis| rows.full[axis] != 1).collect();
        if after.is_empty() {
            // Of images whose channels are innermost these come before the pixels, all the same.
            after = rows.axes(false);
            after.retain(|&axis| rows.full[axis] != 1 && self.all[0].modes[axis].stride == 1);
        }
        let of_total = (0..count).all(|input| !uses(out, input));
        let all_used = total.function.inputs() == count;
        if !run || after.is_empty() || !of_total || !all_used || !result.of_row {
            return Ok(None);
        }
        let before: Vec<usize> = (0..first).filter(|axis| !after.contains(axis)).collect();
        let parts = [&before, &own, &after].map(|axes| self.merged(axes));
        if parts.iter().any(|part| part.sizes.len() != 1) {
            return Ok(None);
        }
        let [outer, reduced, inner] = &parts;
        let axes = outer.and(reduced).and(inner);
        let names = ["outer", "reduced", "inner"].map(str::to_owned);
        let mut dims: Dims = names.into_iter().zip(axes.sizes.iter().cloned()).collect();
        let ins = self.all[..count].iter().enumerate();
        let ins = ins.map(|(i, of)| axes.access(i, &format!("x{i}"), of.own.scalar, &mut dims));
        let ins = ins.collect();
        let written = axes.along(&[0, 2]).access(count, "y", result.own.scalar, &mut dims);
        let begins = |n: i64| {
            self.all.iter().zip(&axes.strides).all(|(of, strides)| {
                let rows_begin = strides[..2].iter().all(|stride| is_multiple(stride, n));
                strides[2] != 1 || (is_multiple(&of.own.view.offset, n) && rows_begin)
            })
        };
        let vector = halved(self.most(), begins);
        // More strands share what is long.
        let [outer, reduced, inner] = [0, 1, 2].map(|axis| axes.sizes[axis].known());
        let bytes = self.all.iter().map(|of| of.own.scalar.bytes()).max().unwrap_or(4);
        let vector = of_columns([outer, inner], (vector, bytes), self.site.target);
        let strands = if reduced.is_some_and(|rows| rows < 128) { 8 } else { 16 };
        let inputs = (0..count).map(Function::input);
        let finish = out.after(&Function::all(inputs.chain([total.finish.clone()])));
        let template = Reduce {
            arch: self.site.arch,
            op: total.op,
            function: total.function.clone(),
            ins,
            finish,
            out: written,
            vector,
            threads: COLUMNS,
            strands,
            ..Reduce::default()
        };
        Ok(Some(self.launch(made!(template)?, &dims)))
    }

    /// Rows along any axes, a team for each.
    fn folds(&self, rows: &Rows<'_>) -> Result<Launch, Refusal> {
        let count = rows.body.inputs().len();
        let [kept, columns] = [false, true].map(|reduced| self.merged(&rows.axes(reduced)));
        let axes = kept.and(&columns);
        let mut dims = axes.named("N").collect();
        let (mut ins, mut outs) = (Vec::new(), Vec::new());
        for (i, of) in self.all.iter().enumerate() {
            let own = if of.of_row { &kept } else { &axes };
            let Some(output) = i.checked_sub(count) else {
                ins.push(own.access(i, &format!("x{i}"), of.own.scalar, &mut dims));
                continue;
            };
            let access = own.access(i, &format!("y{output}"), of.own.scalar, &mut dims);
            outs.push(Out { function: rows.outs[output].clone(), access });
        }
        let whole: Vec<usize> = (0..self.all.len()).filter(|&i| !self.all[i].of_row).collect();
        let strides = whole.iter().map(|&i| axes.strides[i].clone()).collect();
        let of_elements = Axes { strides, ..axes };
        let offsets: Vec<&Dim> = whole.iter().map(|&i| &self.all[i].own.view.offset).collect();
        let vector = of_elements.vector(&offsets, self.most());
        let length = columns.sizes.iter().product::<Dim>();
        let planned = match self.site.step.variants.all() {
            [Variant { parameters: Some(Parameters::Folds(of)), .. }] => Some(of.columns),
            _ => None,
        };
        let [threads, teams] =
            of_folds(length.known().or(planned).map(|length| ceil(length, vector)));
        let (arch, kept, totals) = (self.site.arch, kept.sizes.len(), rows.totals.clone());
        let template = Folds { arch, kept, ins, totals, outs, vector, threads, teams };
        Ok(self.launch(made!(template)?, &dims))
    }
}

/// A row's result as if each of its columns had it.
fn of_rows(view: &View, rows: &Rows<'_>) -> Result<View, Refusal> {
    let kept = rows.reduced.iter().filter(|reduced| !**reduced).count();
    let ones = view.modes.len() == rows.full.len();
    let other = Refusal::Layout("a result of another shape");
    ensure(ones || view.modes.len() == kept, other.clone())?;
    let mut own = view.modes.iter();
    let modes = rows.full.iter().zip(&rows.reduced).map(|(size, &reduced)| {
        let mode = if ones || !reduced { own.next() } else { None };
        let stride = match mode {
            Some(mode) if !reduced => (mode.size == *size).then(|| mode.stride.clone()),
            mode => mode.is_none_or(|mode| mode.size == 1).then(|| Dim::from(0)),
        };
        Some(Mode { size: size.clone(), stride: stride? })
    });
    Ok(View { offset: view.offset.clone(), modes: modes.collect::<Option<_>>().ok_or(other)? })
}

/// Whether a function has a use for an input.
fn uses(function: &Function, input: usize) -> bool {
    use graphene_ir::function::Step;
    function.steps().iter().any(|step| matches!(step, Step::Input(own) if *own == input))
}
