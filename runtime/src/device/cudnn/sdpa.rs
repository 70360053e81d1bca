//! Attention as one of cuDNN's graphs: two matmuls with a softmax between them, which one of its engines computes in
//! one kernel.
//!
//! The engines know the graph by its very operations: the sum of the largest score and of the logarithm of the sum of
//! weights, which training wants, is one of them also where nothing reads it.

use super::{Context, holds};
use crate::device::sys::capture::Used;
use crate::device::sys::cudnn::Handle;
use crate::device::sys::cudnn::graph::{
    Elements, Graph, Id, Operation, Pack, Place, Plan, Pointwise, Reduction, Tensor,
};
use crate::device::sys::recording::{Outside, keep};
use crate::device::{Buffer, Stream};
use crate::error::{Error, Result};
use graphene_ir::tensor::Scalar;
use std::sync::{Arc, PoisonError};

/// Ways of the heuristics' that are timed.
const CANDIDATES: usize = 4;

/// Bytes at multiples of which operands begin.
const ALIGNMENT: u64 = 16;

/// `o = softmax(scale · q·kᵀ + mask) · v`, accumulated in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attention {
    /// The type of all operands: f16 or bf16.
    pub scalar: Scalar,
    /// `[batch, heads, queries, depth]`
    pub q: Strided,
    /// `[batch, groups, keys, depth]`, where heads are a multiple of groups.
    pub k: Strided,
    /// `[batch, groups, keys, columns]`
    pub v: Strided,
    /// Added to scores: `[batch, heads, queries, keys]`, of which all but the last may be one.
    pub mask: Option<Strided>,
    /// `[batch, heads, queries, columns]`
    pub o: Strided,
    /// The bits of the number that scores are multiplied by, so that equal attentions are equal.
    pub scale_bits: u32,
    /// Whether query i attends keys 0..=i only.
    pub causal: bool,
}

/// A tensor of four dims: sizes, and distances in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strided {
    /// Elements along each dim.
    pub sizes: [usize; 4],
    /// From one element along each dim to the next.
    pub strides: [usize; 4],
}

/// The operands of an attention, from their first elements.
#[derive(Clone)]
pub struct Operands {
    /// Queries.
    pub q: Buffer,
    /// Keys.
    pub k: Buffer,
    /// Values.
    pub v: Buffer,
    /// What is added to scores.
    pub mask: Option<Buffer>,
    /// The result.
    pub o: Buffer,
}

/// An attention's graph, and which of its tensors are operands and numbers.
struct Described {
    tensors: Vec<Tensor>,
    operations: Vec<Operation>,
    /// Q, K, V, the mask and O.
    operands: [Option<Id>; 5],
    numbers: Vec<(Id, f32)>,
}

/// An attention bound to its buffers.
pub struct Bound(Arc<Used<Launched>>);

struct Launched {
    handle: Arc<Outside<Handle>>,
    plan: Arc<Plan>,
    pack: Pack,
    /// Kept as long as the pack points to them.
    _operands: Operands,
    _workspace: Buffer,
}

impl Strided {
    /// A row-major tensor.
    pub fn packed(sizes: [usize; 4]) -> Strided {
        let [_, b, c, d] = sizes;
        Strided { sizes, strides: [b * c * d, c * d, d, 1] }
    }

    /// Elements from the first to the last.
    fn span(&self) -> i128 {
        let dims = self.sizes.iter().zip(&self.strides);
        dims.map(|(&size, &stride)| (size as i128 - 1) * stride as i128).sum::<i128>() + 1
    }

    /// Sizes and strides, where what is one has the stride of what it would be one of.
    fn numbers(&self) -> Result<[[i64; 4]; 2]> {
        let large = |_| Error::TooLarge { what: "an operand of attention by cuDNN" };
        let (mut sizes, mut strides) = ([1; 4], [1; 4]);
        for dim in (0..4).rev() {
            sizes[dim] = i64::try_from(self.sizes[dim]).map_err(large)?;
            strides[dim] = match (self.sizes[dim], dim) {
                (1, 0..3) => sizes[dim + 1].saturating_mul(strides[dim + 1]),
                _ => i64::try_from(self.strides[dim]).map_err(large)?,
            };
        }
        Ok([sizes, strides])
    }
}

/// Tensors and operations, one after the other.
#[derive(Default)]
struct Builder {
    tensors: Vec<Tensor>,
    operations: Vec<Operation>,
}

impl Builder {
    fn tensor(&mut self, elements: Elements, [sizes, strides]: [[i64; 4]; 2], place: Place) -> Id {
        let (sizes, strides) = (sizes.to_vec(), strides.to_vec());
        self.tensors.push(Tensor { elements, sizes, strides, place });
        self.tensors.len() - 1
    }

    /// A row-major tensor inside of the graph.
    fn inside(&mut self, elements: Elements, sizes: [i64; 4]) -> Id {
        let [_, b, c, d] = sizes;
        self.tensor(elements, [sizes, [b * c * d, c * d, d, 1]], Place::Inside)
    }

    fn number(&mut self) -> Id {
        self.tensor(Elements::F32, [[1; 4], [1; 4]], Place::Number)
    }

    /// A function of tensors inside of the graph.
    fn point(&mut self, f: Pointwise, inputs: &[Id], elements: Elements, sizes: [i64; 4]) -> Id {
        let y = self.inside(elements, sizes);
        let at = |place: usize| inputs.get(place).copied();
        let (x, b, t) = (inputs[0], at(1), at(2));
        self.operations.push(Operation::Pointwise { f, x, b, t, y });
        y
    }

    fn reduce(&mut self, f: Reduction, x: Id, sizes: [i64; 4]) -> Id {
        let y = self.inside(Elements::F32, sizes);
        self.operations.push(Operation::Reduce { f, x, y });
        y
    }
}

impl Attention {
    /// What scores are multiplied by.
    pub fn scale(&self) -> f32 {
        f32::from_bits(self.scale_bits)
    }

    /// Floating-point operations of both matmuls.
    pub fn operations(&self) -> f64 {
        let [batch, heads, queries, depth] = self.q.sizes;
        let [.., keys, columns] = self.v.sizes;
        let each = [batch, heads, queries, keys].iter().fold(2.0, |all, &size| all * size as f64);
        each * (depth + columns) as f64
    }

    /// The graph by tables: which tensors there are, and which operations.
    fn described(&self) -> Result<Described> {
        let elements = match self.scalar {
            Scalar::F16 => Elements::F16,
            Scalar::Bf16 => Elements::Bf16,
            _ => {
                return Err(Error::Unsupported { what: "cuDNN attention but in fp16 or bf16" });
            }
        };
        let mut graph = Builder::default();
        let g = &mut graph;
        let mut operand = |tensor: &Strided| -> Result<Id> {
            Ok(g.tensor(elements, tensor.numbers()?, Place::Device))
        };
        let (q, v, o) = (operand(&self.q)?, operand(&self.v)?, operand(&self.o)?);
        let mask = self.mask.as_ref().map(&mut operand).transpose()?;
        // Keys are the columns of the first matmul's second operand.
        let [mut sizes, mut strides] = self.k.numbers()?;
        sizes.swap(2, 3);
        strides.swap(2, 3);
        let k = g.tensor(elements, [sizes, strides], Place::Device);
        let ([[batch, heads, queries, _], _], keys) = (self.q.numbers()?, sizes[3]);
        let (full, row) = ([batch, heads, queries, keys], [batch, heads, queries, 1]);
        let float = Elements::F32;
        let mut numbers = Vec::new();
        let mut scores = g.inside(float, full);
        g.operations.push(Operation::MatMul { a: q, b: k, c: scores });
        let scale = g.number();
        numbers.push((scale, self.scale()));
        scores = g.point(Pointwise::Mul, &[scores, scale], float, full);
        if let Some(mask) = mask {
            scores = g.point(Pointwise::Add, &[scores, mask], float, full);
        }
        if self.causal {
            let query = g.point(Pointwise::Index(2), &[scores], Elements::I32, full);
            let key = g.point(Pointwise::Index(3), &[scores], Elements::I32, full);
            let inputs = [query, key];
            let allowed = g.point(Pointwise::GreaterOrEqual, &inputs, Elements::Bool, full);
            let none = g.number();
            numbers.push((none, f32::NEG_INFINITY));
            scores = g.point(Pointwise::Select, &[scores, none, allowed], float, full);
        }
        let most = g.reduce(Reduction::Max, scores, row);
        let below = g.point(Pointwise::Sub, &[scores, most], float, full);
        let weights = g.point(Pointwise::Exp, &[below], float, full);
        let sum = g.reduce(Reduction::Add, weights, row);
        let logarithm = g.point(Pointwise::Log, &[sum], float, row);
        g.point(Pointwise::Add, &[most, logarithm], float, row);
        // The second matmul takes operands of one type.
        let shares = g.point(Pointwise::Div, &[weights, sum], elements, full);
        g.operations.push(Operation::MatMul { a: shares, b: v, c: o });
        let Builder { tensors, operations } = graph;
        let operands = [Some(q), Some(k), Some(v), mask, Some(o)];
        Ok(Described { tensors, operations, operands, numbers })
    }

    fn check(&self, stream: &Stream, operands: &Operands) -> Result<()> {
        let Operands { q, k, v, mask, o } = operands;
        let all =
            [("Q", &self.q, q), ("K", &self.k, k), ("V", &self.v, v), ("the result", &self.o, o)];
        let masks = match (&self.mask, mask) {
            (Some(how), Some(mask)) => Some(("the mask", how, mask)),
            (None, None) => None,
            _ => return Err(Error::Unsupported { what: "attention with another mask than said" }),
        };
        for (name, how, buffer) in all.into_iter().chain(masks) {
            if how.sizes.contains(&0) {
                return Err(Error::Unsupported { what: "attention of nothing by cuDNN" });
            }
            if how.strides[3] != 1 || buffer.pointer() % ALIGNMENT != 0 {
                return Err(Error::Unsupported { what: "attention of what is not at 16 bytes" });
            }
            holds(stream, name, buffer, how.span(), self.scalar)?;
        }
        Ok(())
    }
}

impl Described {
    fn pack(&self, operands: &Operands, workspace: &Buffer) -> Result<Pack> {
        let Operands { q, k, v, mask, o } = operands;
        let buffers = [Some(q), Some(k), Some(v), mask.as_ref(), Some(o)];
        let places = self.operands.iter().zip(buffers);
        let memories: Vec<(Id, u64)> =
            places.filter_map(|(id, buffer)| Some(((*id)?, buffer?.pointer()))).collect();
        Pack::new(&memories, &self.numbers, workspace.pointer())
    }
}

impl Context {
    /// Binds attention to its operands, and runs it. Unless an equal one was bound before, the ways that the library's
    /// heuristics propose are timed on these operands, which overwrites the result.
    ///
    /// # Errors
    ///
    /// [`Error::Short`] if a buffer does not hold its operand, [`Error::Foreign`] if it is of another stream;
    /// [`Error::Unsupported`] but for half precision at multiples of 16 bytes; [`Error::TooLarge`] beyond what the
    /// library counts; [`Error::DeviceMemory`]; [`Error::Device`], also where the library has no engine, with its
    /// words.
    pub fn attention(
        &self,
        stream: &Stream,
        attention: &Attention,
        operands: Operands,
    ) -> Result<Bound> {
        attention.check(stream, &operands)?;
        operands.o.check_writable()?;
        let described = attention.described()?;
        let handle = stream.shared().cudnn()?;
        let lock = || self.attentions.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = |plan: Arc<Plan>| -> Result<Bound> {
            let workspace = stream.alloc(plan.workspace());
            let workspace =
                workspace.map_err(|error| error.wanted_for("cuDNN's workspace for attention"))?;
            let pack = described.pack(&operands, &workspace)?;
            let handle = Arc::clone(&handle);
            let (_operands, _workspace) = (operands.clone(), workspace);
            let launched = Launched { handle, plan, pack, _operands, _workspace };
            let bound = Bound(Arc::new(Used::new(stream.shared(), launched)));
            // What the library loads when it is first called cannot be loaded while a graph is recorded.
            bound.launch()?;
            Ok(bound)
        };
        let known = lock().get(attention).cloned();
        // A plan was made with another stream's state of the library, which may refuse it: then it is sought anew.
        if let Some(found) = known.and_then(|plan| bound(plan).ok()) {
            return Ok(found);
        }
        let graph = Graph::new(&handle, &described.tensors, &described.operations)?;
        let mut best: Option<(f64, Bound)> = None;
        let mut error = Error::Unsupported { what: "attention that cuDNN has no engine for" };
        for way in graph.ways(&handle, CANDIDATES)? {
            let found = way.plan(&handle).and_then(|plan| {
                let bound = bound(Arc::new(plan))?;
                Ok((super::time(stream, || bound.launch())?, bound))
            });
            match found {
                Ok((time, _)) if best.as_ref().is_some_and(|best| best.0 <= time) => {}
                Ok(found) => best = Some(found),
                Err(refused) => error = refused,
            }
        }
        let (_, found) = best.ok_or(error)?;
        let own = &found.0.plan;
        let first = Arc::clone(lock().entry(*attention).or_insert_with(|| Arc::clone(own)));
        // Of two threads that timed it at once, both take the way that came first.
        if Arc::ptr_eq(&first, own) { Ok(found) } else { Ok(bound(first).unwrap_or(found)) }
    }
}

impl Bound {
    /// Computes it, behind all work of the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn launch(&self) -> Result<()> {
        let Launched { handle, plan, pack, .. } = &**self.0;
        keep(&self.0);
        plan.run((handle, self.0.stream()), pack)
    }
}

#[cfg(test)]
mod tests {
    use super::{Attention, Strided};
    use expect_test::expect;
    use graphene_ir::tensor::Scalar;

    /// The graph that cuDNN 9.19 was seen to take for `sm_90`: its operations with their tensors by number.
    #[test]
    fn attention_is_the_graph_that_engines_know() {
        let heads = Strided { sizes: [2, 4, 8, 16], strides: [1536, 16, 192, 1] };
        let mask = Strided { sizes: [2, 1, 1, 8], strides: [8, 0, 0, 1] };
        let attention = Attention {
            scalar: Scalar::F16,
            q: heads,
            k: heads,
            v: heads,
            mask: Some(mask),
            o: Strided { sizes: [2, 4, 8, 16], strides: [512, 16, 64, 1] },
            scale_bits: 0.25_f32.to_bits(),
            causal: true,
        };
        let found = attention.described().expect("it is fp16 or bf16");
        let mut text = String::new();
        for (id, tensor) in found.tensors.iter().enumerate() {
            let super::Tensor { elements, sizes, strides, place } = tensor;
            text += &format!("{id}: {elements:?} {sizes:?} {strides:?} {place:?}\n");
        }
        for operation in &found.operations {
            text += &format!("{operation:?}\n");
        }
        text += &format!("{:?} {:?}\n", found.operands, found.numbers);
        expect![[r#"
            0: F16 [2, 4, 8, 16] [1536, 16, 192, 1] Device
            1: F16 [2, 4, 8, 16] [1536, 16, 192, 1] Device
            2: F16 [2, 4, 8, 16] [512, 16, 64, 1] Device
            3: F16 [2, 1, 1, 8] [8, 8, 8, 1] Device
            4: F16 [2, 4, 16, 8] [1536, 16, 1, 192] Device
            5: F32 [2, 4, 8, 8] [256, 64, 8, 1] Inside
            6: F32 [1, 1, 1, 1] [1, 1, 1, 1] Number
            7: F32 [2, 4, 8, 8] [256, 64, 8, 1] Inside
            8: F32 [2, 4, 8, 8] [256, 64, 8, 1] Inside
            9: I32 [2, 4, 8, 8] [256, 64, 8, 1] Inside
            10: I32 [2, 4, 8, 8] [256, 64, 8, 1] Inside
            11: Bool [2, 4, 8, 8] [256, 64, 8, 1] Inside
            12: F32 [1, 1, 1, 1] [1, 1, 1, 1] Number
            13: F32 [2, 4, 8, 8] [256, 64, 8, 1] Inside
            14: F32 [2, 4, 8, 1] [32, 8, 1, 1] Inside
            15: F32 [2, 4, 8, 8] [256, 64, 8, 1] Inside
            16: F32 [2, 4, 8, 8] [256, 64, 8, 1] Inside
            17: F32 [2, 4, 8, 1] [32, 8, 1, 1] Inside
            18: F32 [2, 4, 8, 1] [32, 8, 1, 1] Inside
            19: F32 [2, 4, 8, 1] [32, 8, 1, 1] Inside
            20: F16 [2, 4, 8, 8] [256, 64, 8, 1] Inside
            MatMul { a: 0, b: 4, c: 5 }
            Pointwise { f: Mul, x: 5, b: Some(6), t: None, y: 7 }
            Pointwise { f: Add, x: 7, b: Some(3), t: None, y: 8 }
            Pointwise { f: Index(2), x: 8, b: None, t: None, y: 9 }
            Pointwise { f: Index(3), x: 8, b: None, t: None, y: 10 }
            Pointwise { f: GreaterOrEqual, x: 9, b: Some(10), t: None, y: 11 }
            Pointwise { f: Select, x: 8, b: Some(12), t: Some(11), y: 13 }
            Reduce { f: Max, x: 13, y: 14 }
            Pointwise { f: Sub, x: 13, b: Some(14), t: None, y: 15 }
            Pointwise { f: Exp, x: 15, b: None, t: None, y: 16 }
            Reduce { f: Add, x: 16, y: 17 }
            Pointwise { f: Log, x: 17, b: None, t: None, y: 18 }
            Pointwise { f: Add, x: 14, b: Some(18), t: None, y: 19 }
            Pointwise { f: Div, x: 16, b: Some(17), t: None, y: 20 }
            MatMul { a: 20, b: 1, c: 2 }
            [Some(0), Some(4), Some(1), Some(3), Some(2)] [(6, 0.25), (12, -inf)]
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn other_elements_than_half_precision_are_refused() {
        let heads = Strided::packed([1, 1, 8, 8]);
        let attention = Attention {
            scalar: Scalar::F32,
            q: heads,
            k: heads,
            v: heads,
            mask: None,
            o: heads,
            scale_bits: 1_f32.to_bits(),
            causal: false,
        };
        assert!(attention.described().is_err());
        assert_eq!(heads.span(), 64);
    }
}
