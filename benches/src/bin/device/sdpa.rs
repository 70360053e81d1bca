//! Attention by the library executor: cuDNN's graph, from the parts of one projection, beside double precision and beside
//! the kernel that fused execution has.

use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::text::parse;
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::Stream;
use graphene_runtime::gpu::{Executable, Kernels, Module};

use crate::data::{Random, decode, encode};
use crate::matmuls::median;

/// Batch, heads, queries and keys, elements of a head.
const SHAPES: [[usize; 4]; 4] =
    [[32, 12, 384, 64], [7, 12, 93, 64], [8, 16, 512, 128], [3, 4, 29, 16]];

/// Masks: none, one row of keys for each sequence, one for each query too; and causal rows.
const KINDS: [(&str, bool); 4] = [("", false), ("1, 1", false), ("1, s", false), ("1, 1", true)];

/// Rows that are checked of each.
const SAMPLES: usize = 100;

/// A case: its shape, types, and operands as the device has them.
struct Case {
    shape: [usize; 4],
    mask: &'static str,
    causal: bool,
    scalar: Scalar,
    /// `[batch, rows, 3·heads·dim]`
    packed: Vec<f64>,
    /// `[batch, 1, 1 or rows, rows]`, or nothing.
    bias: Vec<f64>,
}

pub(crate) fn check(stream: &Stream) -> Result<usize, Error> {
    let mut random = Random(17);
    let mut wrong = 0;
    for shape in SHAPES {
        for scalar in [Scalar::F16, Scalar::Bf16] {
            for (mask, causal) in KINDS {
                let case = Case::new(shape, mask, causal, scalar, &mut random);
                match case.run(stream, &mut random) {
                    Ok(true) => {}
                    Ok(false) => wrong += 1,
                    Err(error) => {
                        eprintln!("sdpa: {shape:?} {scalar:?} mask [{mask}]: {error}");
                        wrong += 1;
                    }
                }
            }
        }
    }
    Ok(wrong)
}

impl Case {
    fn new(
        shape: [usize; 4],
        mask: &'static str,
        causal: bool,
        scalar: Scalar,
        random: &mut Random,
    ) -> Case {
        let [batch, heads, rows, dim] = shape;
        let packed = random.normal(batch * rows * 3 * heads * dim, scalar, false);
        // The last fifth of the keys of every other sequence is padded; a mask by queries adds a little to some.
        let padded = |b: usize, key: usize| b % 2 == 1 && key >= rows - rows / 5;
        let queries = match mask {
            "" => 0,
            "1, 1" => 1,
            _ => rows,
        };
        let mut bias = Vec::with_capacity(batch * queries * rows);
        for b in 0..batch {
            for query in 0..queries {
                let some = |key: usize| if (query + key).is_multiple_of(3) { 0.5 } else { 0.0 };
                let each = |key| if padded(b, key) { -10_000.0 } else { some(key) };
                bias.extend((0..rows).map(each));
            }
        }
        let bias = decode(&encode(&bias, scalar), scalar);
        Case { shape, mask, causal, scalar, packed, bias }
    }

    fn dtype(&self) -> DType {
        if self.scalar == Scalar::F16 { DType::F16 } else { DType::BF16 }
    }

    /// Attention as exports have it: three slices of a projection, turned, and the result turned back.
    fn graph(&self) -> Graph {
        let [b, h, s, d] = self.shape;
        let (t, all, wide) = (self.dtype(), h * d, 3 * h * d);
        let scale = 1.0 / (d as f32).sqrt();
        let (mask, operand) = match self.mask {
            "" => (String::new(), ""),
            mask => {
                let mask = mask.replace('s', &s.to_string());
                (format!("%1 = Input : {t}[{b}, {mask}, {s}] \"mask\"\n"), ", %1")
            }
        };
        // Numbers of operations follow those of inputs.
        let first = if mask.is_empty() { 1 } else { 2 };
        let mut text = format!("%0 = Input : {t}[{b}, {s}, {wide}] \"packed\"\n{mask}");
        for part in 0..3 {
            let (start, at) = (part * all, first + 3 * part);
            let (reshaped, turned) = (at + 1, at + 2);
            text += &format!(
                "%{at} = Slice(%0) {{axes: [{{axis: 2, start: {start}, len: {all}, step: 1}}]}} : {t}[{b}, {s}, {all}] \"part {part}\"\n\
                 %{reshaped} = Reshape(%{at}) {{shape: [{b}, {s}, {h}, {d}]}} : {t}[{b}, {s}, {h}, {d}] \"heads {part}\"\n\
                 %{turned} = Transpose(%{reshaped}) {{perm: [0, 2, 1, 3]}} : {t}[{b}, {h}, {s}, {d}] \"turned {part}\"\n"
            );
        }
        let [q, k, v, y] = [2, 5, 8, 9].map(|place| first + place);
        let (back, merged) = (y + 1, y + 2);
        let causal = self.causal;
        text += &format!(
            "%{y} = Attention(%{q}, %{k}, %{v}{operand}) {{scale: {scale}, causal: {causal}, softcap: 0, guarded: false}} : {t}[{b}, {h}, {s}, {d}] \"attention\"\n\
             %{back} = Transpose(%{y}) {{perm: [0, 2, 1, 3]}} : {t}[{b}, {s}, {h}, {d}] \"turned back\"\n\
             %{merged} = Reshape(%{back}) {{shape: [{b}, {s}, {all}]}} : {t}[{b}, {s}, {all}] \"merged\"\n\
             return \"y\" = %{merged}\n"
        );
        parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    fn inputs(&self) -> Result<Vec<Tensor>, Error> {
        let [b, h, s, d] = self.shape;
        let tensor = |values: &[f64], shape: Vec<usize>| {
            Tensor::new(self.dtype(), shape, encode(values, self.scalar).into())
        };
        let mut inputs = vec![tensor(&self.packed, vec![b, s, 3 * h * d])?];
        if !self.bias.is_empty() {
            inputs.push(tensor(&self.bias, vec![b, 1, self.bias.len() / (b * s), s])?);
        }
        Ok(inputs)
    }

    /// Runs it both ways; whether the library's result is within its bound, and was cuDNN's.
    fn run(&self, stream: &Stream, random: &mut Random) -> Result<bool, Error> {
        let arch =
            stream.device().properties().arch().ok_or(Error::Unsupported { what: "this GPU" })?;
        let target: Target = arch.to_string().parse()?;
        let graph = self.graph();
        let bound = |granularity| -> Result<Executable, Error> {
            let program = plan(&graph, &target, granularity, &Bindings::new())?.program;
            let kernels = Kernels::compile(program, &target, arch, None, &|_, _| {})?;
            Module::load(kernels, stream.device())?.bind_on(stream, &Bindings::new())
        };
        let (mut library, mut fused) = (bound(Granularity::PerOp)?, bound(Granularity::Fused)?);
        let inputs = self.inputs()?;
        let by: Vec<String> =
            library.steps().map(|(_, by)| by.unwrap_or("none").to_owned()).collect();
        let error = self.error(&library.run(&inputs)?, random);
        let fused_error = self.error(&fused.run(&inputs)?, random);
        let library_us = median(stream, || library.launch_each())?;
        let fused_us = median(stream, || fused.launch_each())?;
        let refusals = library.refusals();
        refusals.iter().for_each(|refusal| eprintln!("sdpa: {refusal}"));
        let right = error <= 1.0 && refusals.is_empty() && by == ["cudnn"];
        let Case { shape: [batch, heads, rows, dim], mask, causal, scalar, .. } = self;
        println!(
            "{{\"row\":\"sdpa\",\"batch\":{batch},\"heads\":{heads},\"rows\":{rows},\"dim\":{dim},\
             \"scalar\":\"{scalar:?}\",\"mask\":\"[{mask}]\",\"causal\":{causal},\
             \"by\":\"{}\",\"error_of_bound\":{error:.4},\"fused_error_of_bound\":{fused_error:.4},\
             \"library_us\":{library_us:.2},\"fused_us\":{fused_us:.2},\"right\":{right}}}",
            by.join(" "),
        );
        Ok(right)
    }

    /// The largest error as a fraction of its bound, over samples of rows: weights and results round to half precision,
    /// and scores, exponentials and sums to single precision.
    fn error(&self, found: &[Tensor], random: &mut Random) -> f64 {
        let [batch, heads, rows, dim] = self.shape;
        let found = decode(found[0].bytes(), self.scalar);
        let (wide, all) = (3 * heads * dim, heads * dim);
        let at = |b: usize, row: usize, part: usize, h: usize| {
            &self.packed[(b * rows + row) * wide + part * all + h * dim..][..dim]
        };
        let queries = self.bias.len() / (batch * rows);
        let bias = |b: usize, row: usize, key: usize| match queries {
            0 => 0.0,
            1 => self.bias[b * rows + key],
            _ => self.bias[(b * rows + row) * rows + key],
        };
        let half = 2f64.powi(if self.scalar == Scalar::F16 { -11 } else { -8 });
        let (u, scale) = (2f64.powi(-24), 1.0 / (dim as f64).sqrt());
        let mut worst = 0f64;
        for _ in 0..SAMPLES {
            let [b, h, row] = [batch, heads, rows].map(|size| random.within(0, size - 1));
            let from = at(b, row, 0, h);
            let keys = if self.causal { row + 1 } else { rows };
            let (mut scores, mut reach) = (Vec::with_capacity(keys), 0f64);
            for key in 0..keys {
                let terms = from.iter().zip(at(b, key, 1, h)).map(|(a, b)| a * b);
                let (sum, size) = terms.fold((0.0, 0.0), |(s, a), x: f64| (s + x, a + x.abs()));
                reach = reach.max(scale * size);
                scores.push(sum * scale + bias(b, row, key));
            }
            let largest = scores.iter().fold(f64::NEG_INFINITY, |most, &score| most.max(score));
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let relative = half + 4.0 * (dim + rows) as f64 * u * (1.0 + reach) + 2f64.powi(-20);
            for i in 0..dim {
                let terms = weights.iter().enumerate().map(|(key, w)| w * at(b, key, 2, h)[i]);
                let (sum, size) = terms.fold((0.0, 0.0), |(s, a), x: f64| (s + x, a + x.abs()));
                let y = sum / total;
                let bound = 1.1 * (2.0 * relative * size / total + half * y.abs()) + 2f64.powi(-24);
                let share = (found[(b * rows + row) * all + h * dim + i] - y).abs() / bound;
                worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
            }
        }
        worst
    }
}
