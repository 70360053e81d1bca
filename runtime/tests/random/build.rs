//! A graph under construction, with the elements that its values have: whatever is added fits by its types and has a value.

use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::{evaluate_op, evaluate_with};
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::infer::infer;
use graphene_frontend::op::{Op, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use half::{bf16, f16};

/// A graph with inputs for it and sizes for its symbols.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) graph: Graph,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) sizes: Bindings,
}

/// A small reproducible generator (splitmix64).
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not zero.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True `percent` times of a hundred.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A number in 0..1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// One of some.
    pub(crate) fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// Numbers that a new tensor holds.
#[derive(Clone, Copy)]
pub(crate) enum Numbers {
    /// Between -2 and 2; whole ones for types that are not real.
    Small,
    /// Whole ones between -4 and 4, so that many are equal and most sums are exact.
    Whole,
    /// So small that sums of this many products of them with small ones are small.
    Weights(usize),
    /// Indices of an axis of this size, some counted from the end.
    Indices(usize),
    /// Whole ones below this.
    Lengths(usize),
    /// Also infinities and what is no number; for integers their limits.
    Wild,
}

/// Sizes that cross the tiles of kernels; a few graphs have them.
const WIDE: [usize; 10] = [1, 1, 2, 8, 33, 65, 96, 130, 200, 257];

/// Sizes of dims: ones beside all others, small ones beside large ones, and those about a power of two.
const SIZES: [usize; 24] =
    [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 7, 8, 8, 16, 17, 32, 64];

/// Types of new values, most of them single precision.
const DTYPES: [DType; 24] = [
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::I64,
    DType::Bool,
    DType::I8,
    DType::U8,
    DType::U32,
    DType::U64,
];

/// Values from here on are not tame.
const LARGEST: f64 = 1e4;

pub(crate) struct Build {
    pub(crate) random: Random,
    pub(crate) graph: Graph,
    pub(crate) sizes: Bindings,
    inputs: Vec<Tensor>,
    /// What the inputs hold.
    numbers: Vec<Numbers>,
    values: Vec<(ValueId, Tensor)>,
    /// Symbols that dims of inputs may be; none where all sizes are known.
    symbols: Vec<Dim>,
    /// Most elements of a value.
    most: usize,
    /// Whether sizes of zero occur.
    zeros: bool,
    /// Whether inputs hold numbers that no model has.
    pub(crate) wild: bool,
    /// Whether there are wide ones.
    wide: bool,
    /// Whether all new real values are single precision.
    single: bool,
}

impl Build {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed);
        let mut sizes = Bindings::new();
        let mut symbols = Vec::new();
        if random.chance(35) {
            for name in &["n", "m", "k"][..1 + random.below(3)] {
                let size = random.of(&SIZES) as i64;
                sizes.bind(Symbol::new(name), size).expect("sizes are positive and bound once");
                symbols.push(Dim::symbol(name));
            }
        }
        let most = random.of(&[256, 512, 512, 512, 512, 2048, 2048, 4096, 8192, 70_000]);
        let wild = random.chance(4);
        let wide = most == 70_000 && random.chance(60);
        let (zeros, single) = (random.chance(15), random.chance(50));
        let (graph, inputs, numbers, values) = Default::default();
        Self {
            random,
            graph,
            sizes,
            inputs,
            numbers,
            values,
            symbols,
            most,
            zeros,
            wild,
            wide,
            single,
        }
    }

    /// The graph with some of its values as outputs: those that nothing reads, and some others.
    /// Where there are symbols, also with other sizes, if it has values there.
    pub(crate) fn finish(mut self) -> Vec<Case> {
        let mut read = vec![false; self.values.len()];
        for (_, node) in self.graph.nodes() {
            for input in node.inputs().iter().flatten() {
                let place = self.values.iter().position(|(value, _)| value == input);
                read[place.expect("all values are known")] = true;
            }
        }
        let computed = |value: &ValueId| !self.graph.node(value.node).inputs().is_empty();
        let values = || self.values.iter().map(|(value, _)| *value);
        let mut given: Vec<ValueId> = values()
            .zip(read)
            .filter(|(value, read)| !read && computed(value))
            .map(|(value, _)| value)
            .collect();
        // The last ones, for they are the furthest from the inputs.
        given.drain(..given.len().saturating_sub(4));
        let all: Vec<ValueId> = values().collect();
        while given.is_empty() || self.random.chance(25) {
            given.push(self.random.of(&all));
        }
        for (i, value) in given.into_iter().enumerate() {
            self.graph.add_output(&format!("y{i}"), value);
        }
        let again = self.at_other_sizes();
        let case = Case { graph: self.graph, inputs: self.inputs, sizes: self.sizes };
        std::iter::once(case).chain(again).collect()
    }

    /// The graph with other sizes and inputs for these.
    fn at_other_sizes(&mut self) -> Option<Case> {
        let mut sizes = Bindings::new();
        for symbol in self.graph.symbols() {
            sizes.bind(symbol, self.random.of(&SIZES) as i64).expect("it is bound once");
        }
        if sizes == self.sizes || sizes.iter().next().is_none() {
            return None;
        }
        for (_, node) in self.graph.nodes() {
            for ty in node.outputs() {
                let shape = ty.bound_shape(&sizes).ok()?;
                let elements = shape.iter().fold(1, |n: usize, &size| n.saturating_mul(size));
                if elements > 4 * self.most {
                    return None;
                }
            }
        }
        let mut inputs = Vec::new();
        for (id, numbers) in self.graph.inputs().iter().zip(&self.numbers) {
            let ty = self.graph.ty(id.value());
            let shape = ty.bound_shape(&sizes).ok()?;
            inputs.push(tensor(&mut self.random, ty.dtype, shape, *numbers));
        }
        let graph = self.graph.clone();
        // What is taken from an axis may not be there now, and what was tame grow.
        let outputs = evaluate_with(&graph, &inputs, &sizes).ok()?;
        let fits = self.wild || outputs.iter().all(tame);
        fits.then_some(Case { graph, inputs, sizes })
    }

    pub(crate) fn ty(&self, value: ValueId) -> TensorType {
        self.graph.ty(value).clone()
    }

    pub(crate) fn shape(&self, value: ValueId) -> Vec<Dim> {
        self.graph.ty(value).shape.clone()
    }

    pub(crate) fn rank(&self, value: ValueId) -> usize {
        self.graph.ty(value).rank()
    }

    pub(crate) fn dtype(&self, value: ValueId) -> DType {
        self.graph.ty(value).dtype
    }

    /// What a dim is bound to.
    pub(crate) fn size(&self, dim: &Dim) -> usize {
        dim.eval(&self.sizes).ok().and_then(|size| usize::try_from(size).ok()).unwrap_or(0)
    }

    /// The sizes of a value.
    pub(crate) fn bound(&self, value: ValueId) -> Vec<usize> {
        self.shape(value).iter().map(|dim| self.size(dim)).collect()
    }

    /// The product of all elements of a value that are beyond one.
    pub(crate) fn product(&self, value: ValueId) -> f64 {
        let known = self.values.iter().find(|(known, _)| *known == value);
        known.map_or(1.0, |(_, tensor)| reals(tensor).iter().map(|x| x.abs().max(1.0)).product())
    }

    /// A size, known or not.
    pub(crate) fn dim(&mut self) -> Dim {
        if !self.symbols.is_empty() && self.random.chance(45) {
            return self.random.of(&self.symbols);
        }
        if self.zeros && self.random.chance(12) {
            return Dim::from(0);
        }
        Dim::from(self.known_dim())
    }

    /// A size that is known and not zero.
    pub(crate) fn known_dim(&mut self) -> usize {
        if self.wide { self.random.of(&WIDE) } else { self.random.of(&SIZES) }
    }

    /// A shape of so many dims, within the most elements.
    pub(crate) fn new_shape(&mut self, rank: usize) -> Vec<Dim> {
        let dims = (0..rank).map(|_| self.dim()).collect();
        self.within(dims)
    }

    /// The shape with ones in place of what is too much.
    pub(crate) fn within(&self, mut shape: Vec<Dim>) -> Vec<Dim> {
        let mut elements = 1;
        for dim in &mut shape {
            let size = self.size(dim);
            if elements * size > self.most {
                *dim = Dim::from(1);
            } else {
                elements *= size.max(1);
            }
        }
        shape
    }

    /// One of the values for which `fits` holds, rather a late one.
    pub(crate) fn pick(&mut self, fits: impl Fn(&TensorType) -> bool) -> Option<ValueId> {
        let fitting = self.values.iter().map(|(value, _)| *value);
        let fitting: Vec<_> = fitting.filter(|value| fits(self.graph.ty(*value))).collect();
        let late = self.random.chance(60);
        let from = if late { fitting.len().saturating_sub(3) } else { 0 };
        (!fitting.is_empty()).then(|| self.random.of(&fitting[from..]))
    }

    /// A value of this kind, or a new one of the dtype and a rank.
    pub(crate) fn value(
        &mut self,
        fits: impl Fn(DType) -> bool,
        ranks: std::ops::RangeInclusive<usize>,
    ) -> ValueId {
        // Those of many dims are made of others.
        let (from, to) = (*ranks.start(), (*ranks.end()).min(4));
        if !self.random.chance(8)
            && let Some(value) = self.pick(|ty| fits(ty.dtype) && ranks.contains(&ty.rank()))
        {
            return value;
        }
        let dtype = self.new_dtype(fits);
        let rank = from + self.random.below(to - from + 1);
        let shape = self.new_shape(rank);
        self.input(dtype, shape)
    }

    /// A real value of one of these ranks.
    pub(crate) fn real(&mut self, ranks: std::ops::RangeInclusive<usize>) -> ValueId {
        self.value(DType::is_float, ranks)
    }

    /// A type of new values for which this holds.
    pub(crate) fn new_dtype(&mut self, fits: impl Fn(DType) -> bool) -> DType {
        if self.single && fits(DType::F32) {
            return DType::F32;
        }
        loop {
            let dtype = self.random.of(&DTYPES);
            if fits(dtype) {
                return dtype;
            }
        }
    }

    /// A new input, or now and then a constant.
    pub(crate) fn input(&mut self, dtype: DType, shape: Vec<Dim>) -> ValueId {
        let numbers = match self.random.below(10) {
            _ if self.wild => Numbers::Wild,
            0..4 => Numbers::Whole,
            _ => Numbers::Small,
        };
        let constant = self.random.chance(15);
        self.source(dtype, shape, numbers, constant)
    }

    /// A new weight, as a rule a constant.
    pub(crate) fn weight(&mut self, dtype: DType, shape: Vec<Dim>, terms: usize) -> ValueId {
        let constant = self.random.chance(85);
        self.source(dtype, shape, Numbers::Weights(terms), constant)
    }

    /// New indices of an axis of this size.
    pub(crate) fn indices(&mut self, shape: Vec<Dim>, size: usize) -> ValueId {
        let dtype = self.random.of(&[DType::I64, DType::I64, DType::I32]);
        let constant = self.random.chance(40);
        self.source(dtype, shape, Numbers::Indices(size), constant)
    }

    /// A new value of these numbers: a constant where that is asked for and all sizes are known.
    pub(crate) fn source(
        &mut self,
        dtype: DType,
        shape: Vec<Dim>,
        numbers: Numbers,
        constant: bool,
    ) -> ValueId {
        let sizes: Vec<usize> = shape.iter().map(|dim| self.size(dim)).collect();
        let tensor = tensor(&mut self.random, dtype, sizes, numbers);
        let known = shape.iter().all(|dim| dim.known().is_some());
        let name = format!("x{}", self.values.len());
        let value = match constant && known {
            true => self.graph.add_constant(&name, tensor.clone()),
            false => {
                self.inputs.push(tensor.clone());
                self.numbers.push(numbers);
                let input = self.graph.add_input(&name, TensorType::new(dtype, shape));
                input.expect("sizes are small")
            }
        };
        self.values.push((value, tensor));
        value
    }

    /// A scalar constant.
    pub(crate) fn scalar(&mut self, dtype: DType, number: f64) -> ValueId {
        self.constant(from_reals(dtype, Vec::new(), &[number]))
    }

    /// A constant of these elements.
    pub(crate) fn constant(&mut self, tensor: Tensor) -> ValueId {
        let value = self.graph.add_constant(&format!("x{}", self.values.len()), tensor.clone());
        self.values.push((value, tensor));
        value
    }

    /// Adds an operation if it takes these operands and its results are tame, as a rule.
    pub(crate) fn add(&mut self, op: Op, inputs: &[ValueId]) -> Option<ValueId> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        Some(self.add_node(op, &inputs)?.value())
    }

    /// Adds a unary function.
    pub(crate) fn unary(&mut self, unary: Unary, x: ValueId) -> Option<ValueId> {
        self.add(Op::Unary(unary), &[x])
    }

    /// Adds an operation of which operands may be left out.
    pub(crate) fn add_node(&mut self, op: Op, inputs: &[Option<ValueId>]) -> Option<NodeId> {
        let types: Vec<_> =
            inputs.iter().map(|input| input.map(|value| self.graph.ty(value))).collect();
        let types = infer(&op, &types).ok()?;
        for ty in &types {
            let shape = ty.bound_shape(&self.sizes).ok()?;
            if shape.iter().fold(1, |n: usize, &size| n.saturating_mul(size)) > self.most {
                return None;
            }
        }
        let operand = |value: ValueId| {
            self.values.iter().find(|(known, _)| *known == value).map(|(_, tensor)| tensor)
        };
        let operands: Vec<_> = inputs.iter().map(|input| input.and_then(operand)).collect();
        let results = evaluate_op(&op, &operands, &self.sizes).ok()?;
        let untamed = self.random.chance(2);
        if !untamed && !self.wild && !results.iter().all(tame) {
            return None;
        }
        let name = format!("{}{}", op.name(), self.graph.len());
        let node = self.graph.add(&name, op, inputs).expect("its types were inferred");
        for (output, tensor) in (0..).zip(results) {
            self.values.push((ValueId { node, output }, tensor));
        }
        Some(node)
    }
}

/// Whether all numbers are finite and not large.
fn tame(tensor: &Tensor) -> bool {
    reals(tensor).iter().all(|x| x.abs() < LARGEST)
}

/// The elements as `f64`.
pub(crate) fn reals(tensor: &Tensor) -> Vec<f64> {
    let wide = evaluate_op(
        &Op::Cast { to: DType::F64, saturate: true },
        &[Some(tensor)],
        &Bindings::new(),
    );
    let wide = wide.expect("everything becomes a real number");
    wide[0].as_slice::<f64>().expect("it was made f64").to_vec()
}

/// A tensor of these numbers, as its type has them.
pub(crate) fn from_reals(dtype: DType, shape: Vec<usize>, numbers: &[f64]) -> Tensor {
    let tensor = match dtype {
        DType::F32 => Tensor::from_vec(shape, numbers.iter().map(|&x| x as f32).collect()),
        DType::F16 => Tensor::from_vec(shape, numbers.iter().map(|&x| f16::from_f64(x)).collect()),
        DType::BF16 => {
            Tensor::from_vec(shape, numbers.iter().map(|&x| bf16::from_f64(x)).collect())
        }
        DType::F64 => Tensor::from_vec(shape, numbers.to_vec()),
        DType::I64 => Tensor::from_vec(shape, numbers.iter().map(|&x| x as i64).collect()),
        DType::I32 => Tensor::from_vec(shape, numbers.iter().map(|&x| x as i32).collect()),
        DType::Bool => Tensor::from_bools(shape, numbers.iter().map(|&x| x != 0.0).collect()),
        other => {
            let wide = Tensor::from_vec(shape, numbers.to_vec()).expect("the numbers fit");
            let cast = Op::Cast { to: other, saturate: true };
            let cast = evaluate_op(&cast, &[Some(&wide)], &Bindings::new());
            return cast.expect("everything may be cast").remove(0);
        }
    };
    tensor.expect("there are as many numbers as the shape has")
}

/// A tensor of random numbers.
pub(crate) fn tensor(
    random: &mut Random,
    dtype: DType,
    shape: Vec<usize>,
    numbers: Numbers,
) -> Tensor {
    let n = shape.iter().product();
    let number = |_| match numbers {
        Numbers::Small if dtype.is_float() => random.unit() * 4.0 - 2.0,
        Numbers::Small | Numbers::Whole if dtype == DType::Bool => random.below(2) as f64,
        Numbers::Small | Numbers::Whole => random.below(9) as f64 - 4.0,
        Numbers::Weights(terms) if dtype.is_float() => {
            (random.unit() * 4.0 - 2.0) / (terms.max(1) as f64).sqrt()
        }
        Numbers::Weights(_) => random.below(3) as f64 - 1.0,
        Numbers::Indices(size) => {
            let index = random.below(size.max(1)) as f64;
            if random.chance(20) { index - size.max(1) as f64 } else { index }
        }
        Numbers::Lengths(most) => random.below(most.max(1)) as f64,
        Numbers::Wild => {
            let all = [0.0, -0.0, 1.0, -1.5, 2.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
            all[random.below(all.len())]
        }
    };
    let numbers: Vec<f64> = (0..n).map(number).collect();
    from_reals(dtype, shape, &numbers)
}
