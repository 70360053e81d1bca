//! Convolutions of the library executor beside the CPU: by cuDNN, or where it has no engine by our kernels.

use super::{Failed, Outcome, ensure};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, ConvAttrs, Op, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::{Granularity, plan, plan_in};
use graphene_ir::target::Target;
use graphene_runtime::cpu;
use graphene_runtime::device::Device;
use graphene_runtime::gpu::{Executable, Kernels, Module};

/// A convolution: shapes of the image and of weights, and along all spatial axes strides, dilations, pads before and after.
struct Case {
    name: &'static str,
    x: &'static [usize],
    w: &'static [usize],
    stride: usize,
    dilation: usize,
    pads: [i64; 2],
    group: usize,
    after: After,
}

/// What is added to it and done to the sum.
#[derive(Clone, Copy, PartialEq)]
enum After {
    Nothing,
    Bias,
    Relu,
    BiasRelu,
    Residual,
    BiasResidualRelu,
}

/// A plain one, which the others differ from.
const PLAIN: Case = Case {
    name: "3x3",
    x: &[3, 16, 14, 14],
    w: &[32, 16, 3, 3],
    stride: 1,
    dilation: 1,
    pads: [1, 1],
    group: 1,
    after: After::BiasRelu,
};

const CASES: &[Case] = &[
    PLAIN,
    Case { name: "3x3 alone", after: After::Nothing, ..PLAIN },
    Case { name: "3x3, bias", after: After::Bias, ..PLAIN },
    Case { name: "3x3, relu", after: After::Relu, ..PLAIN },
    Case { name: "3x3, residual", after: After::Residual, ..PLAIN },
    Case { name: "3x3, bias, residual, relu", after: After::BiasResidualRelu, ..PLAIN },
    Case {
        name: "7x7 of 3 channels",
        x: &[2, 3, 32, 40],
        w: &[16, 3, 7, 7],
        stride: 2,
        pads: [3, 3],
        ..PLAIN
    },
    Case { name: "1x1", x: &[4, 64, 7, 7], w: &[128, 64, 1, 1], pads: [0, 0], ..PLAIN },
    Case { name: "odd channels", x: &[2, 5, 9, 11], w: &[7, 5, 3, 3], ..PLAIN },
    Case { name: "groups", x: &[2, 32, 10, 10], w: &[64, 8, 3, 3], group: 4, ..PLAIN },
    Case { name: "depthwise", x: &[2, 32, 15, 15], w: &[32, 1, 3, 3], group: 32, ..PLAIN },
    Case { name: "dilated", dilation: 2, pads: [2, 2], ..PLAIN },
    Case { name: "strided, padded behind", stride: 2, pads: [0, 1], ..PLAIN },
    Case { name: "strided, padded before", stride: 2, pads: [1, 0], ..PLAIN },
    Case { name: "one axis", x: &[2, 16, 50], w: &[24, 16, 5], stride: 2, pads: [2, 2], ..PLAIN },
    Case { name: "causal", x: &[2, 16, 50], w: &[24, 16, 3], dilation: 4, pads: [8, 0], ..PLAIN },
    Case { name: "three axes", x: &[2, 8, 6, 10, 10], w: &[16, 8, 3, 3, 3], ..PLAIN },
    Case {
        name: "three axes, residual",
        x: &[2, 8, 6, 10, 10],
        w: &[16, 8, 3, 3, 3],
        after: After::BiasResidualRelu,
        ..PLAIN
    },
    Case {
        name: "of ResNet-50",
        x: &[8, 64, 56, 56],
        w: &[64, 64, 3, 3],
        after: After::BiasRelu,
        ..PLAIN
    },
    Case {
        name: "the last one of a block of ResNet-50",
        x: &[8, 64, 56, 56],
        w: &[256, 64, 1, 1],
        pads: [0, 0],
        after: After::BiasResidualRelu,
        ..PLAIN
    },
];

/// Types, and how far elements of about one may be off: what rounding to TF32 would be is too far for single precision.
const TYPES: [(Option<DType>, f32); 3] =
    [(None, 1e-4), (Some(DType::F16), 2e-2), (Some(DType::BF16), 1e-1)];

/// Numbers in -1..1 that look random.
fn elements(count: usize, seed: usize, scale: f32) -> Vec<f32> {
    let mut state = seed as u64 * 2 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * scale).collect()
}

fn tensor(shape: &[usize], seed: usize, scale: f32) -> Result<Tensor, Failed> {
    Ok(Tensor::from_vec(shape.to_vec(), elements(shape.iter().product(), seed, scale))?)
}

impl Case {
    /// The shape of the result.
    fn made(&self) -> Vec<usize> {
        let spatial = self.x[2..].iter().zip(&self.w[2..]).map(|(size, window)| {
            let padded = *size as i64 + self.pads.iter().sum::<i64>();
            let reach = ((window - 1) * self.dilation + 1) as i64;
            ((padded - reach) / self.stride as i64 + 1) as usize
        });
        [self.x[0], self.w[0]].into_iter().chain(spatial).collect()
    }

    /// The graph and its inputs.
    fn graph(&self) -> Result<(Graph, Vec<Tensor>), Failed> {
        use After::{Bias, BiasRelu, BiasResidualRelu, Relu, Residual};
        let mut graph = Graph::new();
        let mut inputs = vec![tensor(self.x, 1, 1.0)?];
        let ty = |shape: &[usize]| format!("f32{shape:?}").parse().map_err(|_| "a type");
        let x = graph.add_input("x", ty(self.x)?)?;
        let terms: usize = self.w[1..].iter().product();
        let w = graph.add_constant("w", tensor(self.w, 2, 2.0 / (terms as f32).sqrt())?);
        let mut operands = vec![Some(x), Some(w)];
        if matches!(self.after, Bias | BiasRelu | BiasResidualRelu) {
            operands.push(Some(graph.add_constant("bias", tensor(&self.w[..1], 3, 0.5)?)));
        }
        let axes = self.x.len() - 2;
        let attrs = ConvAttrs {
            strides: vec![self.stride; axes],
            dilations: vec![self.dilation; axes],
            pads_before: vec![self.pads[0]; axes],
            pads_after: vec![self.pads[1]; axes],
            group: self.group,
        };
        let mut y = graph.add("conv", Op::Conv(attrs), &operands)?.value();
        if matches!(self.after, Residual | BiasResidualRelu) {
            let made = self.made();
            let residual = graph.add_input("residual", ty(&made)?)?;
            inputs.push(tensor(&made, 4, 1.0)?);
            y = graph.add("sum", Op::Binary(Binary::Add), &[Some(y), Some(residual)])?.value();
        }
        if matches!(self.after, Relu | BiasRelu | BiasResidualRelu) {
            y = graph.add("relu", Op::Unary(Unary::Relu), &[Some(y)])?.value();
        }
        graph.add_output("y", y);
        Ok((graph, inputs))
    }
}

/// A convolution by weights that are made up.
struct Layer {
    made: usize,
    read: usize,
    window: usize,
    stride: usize,
    group: usize,
}

impl Layer {
    /// Of an image, with a bias and what follows that.
    fn of(
        &self,
        graph: &mut Graph,
        x: ValueId,
        residual: Option<ValueId>,
        relu: bool,
    ) -> Result<ValueId, Failed> {
        let &Layer { made, read, window, stride, group } = self;
        let (pad, terms) = ((window / 2) as i64, read * window * window);
        let w = tensor(&[made, read, window, window], 7, 2.0 / (terms as f32).sqrt())?;
        let w = graph.add_constant("w", w);
        let bias = graph.add_constant("bias", tensor(&[made], 3, 0.5)?);
        let attrs = ConvAttrs {
            strides: vec![stride; 2],
            dilations: vec![1; 2],
            pads_before: vec![pad; 2],
            pads_after: vec![pad; 2],
            group,
        };
        let operands = [Some(x), Some(w), Some(bias)];
        let mut y = graph.add("conv", Op::Conv(attrs), &operands)?.value();
        if residual.is_some() {
            y = graph.add("sum", Op::Binary(Binary::Add), &[Some(y), residual])?.value();
        }
        if relu {
            y = graph.add("relu", Op::Unary(Unary::Relu), &[Some(y)])?.value();
        }
        Ok(y)
    }
}

/// A network of blocks of three convolutions with a residual, the middle one depthwise: in half precision channels are
/// innermost.
fn network() -> Result<(Graph, Vec<Tensor>), Failed> {
    let mut graph = Graph::new();
    let x = graph.add_input("x", "f32[2, 3, 32, 32]".parse().map_err(|_| "a type")?)?;
    let first = Layer { made: 16, read: 3, window: 3, stride: 2, group: 1 };
    let mut value = first.of(&mut graph, x, None, true)?;
    for window in [3, 5, 7] {
        let wide = Layer { made: 64, read: 16, window: 1, stride: 1, group: 1 };
        let spread = Layer { made: 64, read: 1, window, stride: 1, group: 64 };
        let narrow = Layer { made: 16, read: 64, window: 1, stride: 1, group: 1 };
        let y = wide.of(&mut graph, value, None, true)?;
        let y = spread.of(&mut graph, y, None, true)?;
        value = narrow.of(&mut graph, y, Some(value), window == 5)?;
    }
    graph.add_output("y", value);
    Ok((graph, vec![tensor(&[2, 3, 32, 32], 1, 1.0)?]))
}

/// Runs a graph by the library, twice bound, and fused; prints what computed it, and gives what is wrong with it.
/// `sure`: convolutions that cuDNN computes for sure.
fn run(
    device: &Device,
    (name, sure): (&str, usize),
    (graph, inputs): &(Graph, Vec<Tensor>),
    (dtype, tolerance): (Option<DType>, f32),
) -> Result<Vec<String>, Failed> {
    let arch = device.properties().arch().ok_or("no kernels for this GPU")?;
    let (target, none): (Target, _) = (arch.to_string().parse()?, Bindings::new());
    let oracle = plan(graph, &Target::cpu(1), Granularity::PerOp, &none)?.program;
    let expected = cpu::Module::compile(oracle)?.executable(&none)?.run(inputs)?;
    let load = |granularity| -> Result<Module, Failed> {
        let program = plan_in(graph, &target, granularity, &none, dtype)?.program;
        let kernels = Kernels::compile(program, &target, arch, None, &|_, _| {})?;
        Ok(Module::load(kernels, device)?)
    };
    let module = load(Granularity::PerOp)?;
    let mut library = module.bind(&none)?;
    let timed = module.timed();
    let mut wrong = Vec::new();
    let label = format!("{name} {}", dtype.unwrap_or(DType::F32));
    let mut check = |executable: &mut Executable, by: &str| -> Result<f32, Failed> {
        let found = executable.run(inputs)?;
        let (found, expected) = (found[0].as_slice::<f32>()?, expected[0].as_slice::<f32>()?);
        let errors = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let largest = errors.fold(0_f32, |most, e| if e.is_nan() { e } else { most.max(e) });
        let wide = expected.iter().fold(1_f32, |most, x| most.max(x.abs() / 4.0));
        // A NaN is no smaller than the tolerance.
        let close = largest < tolerance * wide;
        if found.len() != expected.len() || !close {
            wrong.push(format!("{label}: {by} is off by {largest}"));
        }
        Ok(largest)
    };
    let error = check(&mut library, "the library")?;
    check(&mut module.bind(&none)?, "the library, bound again,")?;
    let mut fused = load(Granularity::Fused)?.bind(&none)?;
    check(&mut fused, "the fused kernel")?;
    let fastest = |executable: &mut Executable| -> Result<f64, Failed> {
        let times = (0..5).map(|_| executable.time()).collect::<Result<Vec<_>, _>>()?;
        Ok(times.into_iter().fold(f64::INFINITY, f64::min))
    };
    let (time, fused) = (fastest(&mut library)?, fastest(&mut fused)?);
    let by: Vec<&str> = library.steps().map(|(_, by)| by.unwrap_or("none")).collect();
    eprintln!("{label}: by {by:?}, error {error:.1e}, {time:.1} µs (fused {fused:.1})");
    let mut called = 0;
    for (number, (step, _)) in library.steps().enumerate() {
        let Some(bound) = library.convolution(number) else { continue };
        eprintln!("    {}: [{}]; {}", step.name, bound.graphs(), bound.report());
        called += 1;
    }
    library.refusals().iter().for_each(|refusal| eprintln!("    refused: {refusal}"));
    if module.timed() != timed {
        wrong.push(format!("{label}: a second bind timed again"));
    }
    if called < sure {
        wrong.push(format!("{label}: {called} of {sure} are cuDNN's: {:?}", library.refusals()));
    }
    Ok(wrong)
}

/// All cases in three types; what is wrong is told at the end.
pub(super) fn agree_with_the_cpu() -> Outcome {
    let device = Device::open(0)?;
    let mut wrong = Vec::new();
    let mut note = |name: &str, of: (Option<DType>, f32), found: Result<Vec<String>, Failed>| {
        wrong.extend(found.unwrap_or_else(|error| {
            let said = error.message().unwrap_or("no message");
            vec![format!("{name} {}: {said}", of.0.unwrap_or(DType::F32))]
        }));
    };
    for of in TYPES {
        for case in CASES {
            // Of pads that differ no engine is known for sure.
            let sure = usize::from(case.pads[0] == case.pads[1]);
            let found = case.graph().and_then(|graph| run(&device, (case.name, sure), &graph, of));
            note(case.name, of, found);
        }
        // Errors grow from convolution to convolution.
        let looser = (of.0, 4.0 * of.1);
        let found = network().and_then(|graph| run(&device, ("network", 10), &graph, looser));
        note("network", of, found);
    }
    ensure(wrong.is_empty(), wrong.join("\n"))
}
