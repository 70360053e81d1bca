//! From a body of pointwise operations to instructions over registers.

use super::held::{held, integer};
use super::quantise::Quantise;
use super::tables::tables;
use super::{Class, Instruction, Loop, Operation, Register, Scalar, Source};
use crate::cpu::kernels::table::Table;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, Node, ValueId};
use graphene_frontend::op::{Binary, Op};
use std::collections::{BTreeMap, BTreeSet};

impl Loop {
    /// Compiles a body; `None` if an operation that its outputs need, or an element type, has no loop.
    pub(crate) fn compile(body: &Graph) -> Option<Self> {
        let held: BTreeSet<ValueId> = held(body).into_keys().collect();
        let tables = tables(body, &held);
        Self::with_tables(body, held, tables)
    }

    /// The same, with all that a table would have computed.
    pub(super) fn without_tables(body: &Graph) -> Option<Self> {
        Self::with_tables(body, held(body).into_keys().collect(), BTreeMap::new())
    }

    fn with_tables(body: &Graph, held: BTreeSet<ValueId>, tables: Tables) -> Option<Self> {
        let mut compiler = Compiler::new(body, held, tables);
        for (id, node) in body.nodes() {
            // What only a table's operations read is not computed.
            if compiler.last_use.contains_key(&id.value()) {
                compiler.place = id.index();
                compiler.node(id.value(), node)?;
            }
        }
        Some(compiler.finish())
    }

    /// The number of instructions.
    pub(crate) fn len(&self) -> usize {
        self.instructions.len()
    }
}

/// Values that are looked up: the byte that each is a function of, and its table.
type Tables = BTreeMap<ValueId, (ValueId, Table)>;

struct Compiler<'a> {
    body: &'a Graph,
    tables: Tables,
    /// Where each value is.
    sources: BTreeMap<ValueId, Source>,
    /// The last node that reads each value; outputs are read after all.
    last_use: BTreeMap<ValueId, usize>,
    /// Integers that compute in single precision.
    held: BTreeSet<ValueId>,
    free: BTreeMap<Class, Vec<usize>>,
    program: Loop,
    place: usize,
}

impl<'a> Compiler<'a> {
    fn new(body: &'a Graph, held: BTreeSet<ValueId>, tables: Tables) -> Self {
        let mut last_use: BTreeMap<ValueId, usize> =
            body.outputs().iter().map(|&(_, value)| (value, usize::MAX)).collect();
        for (id, node) in body.nodes().rev() {
            if !last_use.contains_key(&id.value()) {
                continue;
            }
            let looked_up = tables.get(&id.value()).map(|(byte, _)| [Some(*byte)]);
            let read = looked_up.as_ref().map_or(node.inputs(), |byte| byte);
            for &value in read.iter().flatten() {
                last_use.entry(value).or_insert(id.index());
            }
        }
        let input = |value: ValueId| {
            let dtype = body.ty(value).dtype;
            let own = Class::of(dtype).unwrap_or(Class::I64);
            (dtype, if held.contains(&value) { Class::F32 } else { own })
        };
        let inputs = body.inputs().iter().map(|id| input(id.value())).collect();
        let program = Loop {
            instructions: Vec::new(),
            inputs,
            outputs: Vec::new(),
            tables: Vec::new(),
            registers: [0; 5],
            quantise: Vec::new(),
        };
        let (sources, free) = (BTreeMap::new(), BTreeMap::new());
        Self { body, tables, sources, last_use, held, free, program, place: 0 }
    }

    fn node(&mut self, value: ValueId, node: &Node) -> Option<()> {
        let own = node.outputs()[0].dtype;
        let is_held = self.held.contains(&value);
        let dtype = if is_held { DType::F32 } else { own };
        if let Some((byte, table)) = self.tables.remove(&value) {
            self.program.tables.push(table);
            let operation = Operation::Lookup(self.program.tables.len() - 1);
            let sources = vec![self.sources[&byte]];
            return self.push(value, dtype, operation, sources, &[byte]);
        }
        let operation = match node.op() {
            Op::Input => {
                let number = self.body.inputs().iter().position(|id| id.value() == value)?;
                self.sources.insert(value, Source::Input(number));
                return Some(());
            }
            Op::Constant(tensor) => {
                self.sources.insert(value, Source::Scalar(Scalar::of(tensor)?));
                return Some(());
            }
            Op::Unary(unary) => Operation::Unary(*unary),
            Op::Binary(binary) => Operation::Binary(*binary),
            Op::Select => Operation::Select,
            Op::Cast { .. } => match node.inputs()[0] {
                Some(x) if self.held.contains(&x) && self.pass_on(x, value, own) => return Some(()),
                Some(x) if is_held && self.body.uses(value.node).is_empty() => {
                    match self.pass_on(x, value, own) {
                        true => return Some(()),
                        false => Operation::Number,
                    }
                }
                Some(x) if is_held && !self.held.contains(&x) => Operation::Number,
                _ => Operation::Cast,
            },
            _ => return None,
        };
        let inputs: Vec<ValueId> = node.inputs().iter().copied().collect::<Option<_>>()?;
        let mut sources: Vec<Source> = inputs.iter().map(|input| self.sources[input]).collect();
        if is_held && matches!(operation, Operation::Binary(_)) {
            sources[1] = Source::Scalar(Scalar::F32(integer(self.body, inputs[1])? as f32));
        }
        // Asked of the node: memcheck takes the comparison of an `Operation`, whose other variants fill more bytes, for one of
        // unset memory.
        if matches!(node.op(), Op::Binary(Binary::Pow)) {
            self.match_exponent(&inputs, &mut sources)?;
        }
        self.push(value, dtype, operation, sources, &inputs)
    }

    /// Adds the instruction that makes a value of others.
    fn push(
        &mut self,
        value: ValueId,
        dtype: DType,
        operation: Operation,
        sources: Vec<Source>,
        inputs: &[ValueId],
    ) -> Option<()> {
        // A result may not overwrite what its instruction reads, so its register is taken before theirs are freed.
        let target = self.allocate(Class::of(dtype)?);
        let is_single = !matches!(operation, Operation::Lookup(_)) || target.class == Class::F32;
        debug_assert!(is_single, "tables have single precision");
        let stored = self.stored(value, self.body.ty(value).dtype);
        self.program.instructions.push(Instruction { operation, dtype, sources, target, stored });
        self.sources.insert(value, Source::Register(target));
        inputs.iter().for_each(|&input| self.release(input));
        Some(())
    }

    /// Makes a value what another one is, if they are the same number: its register becomes the value's.
    fn pass_on(&mut self, from: ValueId, value: ValueId, dtype: DType) -> bool {
        let source = self.sources[&from];
        let last = self.last_use.get(&from) == Some(&self.place);
        if self.stored(value, dtype).is_some() || matches!(source, Source::Register(_)) && !last {
            return false;
        }
        self.sources.insert(value, source);
        true
    }

    /// Converts an exponent of real numbers to the base's class; integers have exponents of any.
    fn match_exponent(&mut self, inputs: &[ValueId], sources: &mut [Source]) -> Option<()> {
        let [base, exponent] = [inputs[0], inputs[1]].map(|v| self.body.ty(v).dtype);
        let class = Class::of(base)?;
        if class == Class::of(exponent)? {
            return Some(());
        }
        let dtype = match class {
            Class::F32 => DType::F32,
            Class::F64 => DType::F64,
            Class::I64 | Class::U64 => return Some(()),
            Class::Bool => return None,
        };
        // This register is not freed: a conversion of an exponent is as rare.
        let target = self.allocate(class);
        self.program.instructions.push(Instruction {
            operation: Operation::Cast,
            dtype,
            sources: vec![sources[1]],
            target,
            stored: None,
        });
        sources[1] = Source::Register(target);
        Some(())
    }

    fn allocate(&mut self, class: Class) -> Register {
        if let Some(index) = self.free.entry(class).or_default().pop() {
            return Register { class, index };
        }
        let count = &mut self.program.registers[class as usize];
        *count += 1;
        Register { class, index: *count - 1 }
    }

    fn release(&mut self, value: ValueId) {
        if let Source::Register(register) = self.sources[&value]
            && self.last_use.get(&value) == Some(&self.place)
        {
            self.last_use.remove(&value);
            self.free.entry(register.class).or_default().push(register.index);
        }
    }

    /// The output that takes a value without a register: f32, read by nothing else.
    fn stored(&self, value: ValueId, dtype: DType) -> Option<usize> {
        let mut given = self.body.outputs().iter().enumerate().filter(|(_, (_, v))| *v == value);
        let (number, _) = given.next()?;
        let alone = given.next().is_none() && self.body.uses(value.node).is_empty();
        (alone && dtype == DType::F32).then_some(number)
    }

    fn finish(mut self) -> Loop {
        for &(_, value) in self.body.outputs() {
            let dtype = self.body.ty(value).dtype;
            let source = match self.stored(value, dtype) {
                Some(_) if matches!(self.sources[&value], Source::Register(_)) => None,
                _ => Some(self.sources[&value]),
            };
            self.program.outputs.push((dtype, source));
        }
        self.program.quantise = Quantise::all(&self.program);
        self.program
    }
}
