//! Convolutional networks whose channels are innermost in memory.

use crate::kernels::check_graph;
use crate::{graph, sizes};
use graphene_frontend::graph::Graph;
use graphene_fusion::groups::Family;
use graphene_fusion::kernels::launches;
use graphene_fusion::program::{Program, Step};
use graphene_fusion::{Granularity, plan, verify};
use graphene_ir::target::Target;

/// A network as text, and the shapes of its weights.
struct Network {
    text: String,
    weights: Vec<Vec<usize>>,
    values: usize,
    dtype: &'static str,
}

/// A value, and its channels and pixels along each of two axes.
#[derive(Clone, Copy)]
struct Images {
    value: usize,
    channels: usize,
    size: usize,
}

impl Network {
    fn new(dtype: &'static str, channels: usize, size: usize) -> (Network, Images) {
        let text =
            format!("symbols b\n%0 = Input : {dtype}[b, {channels}, {size}, {size}] \"x\"\n");
        let network = Network { text, weights: Vec::new(), values: 1, dtype };
        (network, Images { value: 0, channels, size })
    }

    fn line(&mut self, line: &str) -> usize {
        self.text += &format!("%{} = {line} \"{}\"\n", self.values, self.values);
        self.values += 1;
        self.values - 1
    }

    fn weight(&mut self, shape: &[usize]) -> usize {
        self.weights.push(shape.to_vec());
        let (at, dtype) = (self.weights.len() - 1, self.dtype);
        let given = self.line(&format!("Constant(@{at} _) : f32{shape:?}"));
        match dtype {
            "f32" => given,
            _ => self.line(&format!(
                "Cast(%{given}) {{to: {dtype}, saturate: true}} : {dtype}{shape:?}"
            )),
        }
    }

    fn of(&self, channels: usize, size: usize) -> String {
        format!("{}[b, {channels}, {size}, {size}]", self.dtype)
    }

    fn conv(&mut self, x: Images, made: usize, window: usize, stride: usize) -> Images {
        self.grouped(x, made, window, stride, 1)
    }

    fn grouped(
        &mut self,
        x: Images,
        made: usize,
        window: usize,
        stride: usize,
        group: usize,
    ) -> Images {
        let w = self.weight(&[made, x.channels / group, window, window]);
        let bias = self.weight(&[made]);
        let (pad, size) = (window / 2, (x.size - 1) / stride + 1);
        let (two, ty) = (|n: usize| format!("[{n}, {n}]"), self.of(made, size));
        let value = self.line(&format!(
            "Conv(%{}, %{w}, %{bias}) {{strides: {}, dilations: [1, 1], pads_before: {}, pads_after: {}, group: {group}}} : {ty}",
            x.value, two(stride), two(pad), two(pad)
        ));
        Images { value, channels: made, size }
    }

    fn relu(&mut self, x: Images) -> Images {
        let ty = self.of(x.channels, x.size);
        Images { value: self.line(&format!("Relu(%{}) : {ty}", x.value)), ..x }
    }

    fn add(&mut self, x: Images, y: Images) -> Images {
        let ty = self.of(x.channels, x.size);
        Images { value: self.line(&format!("Add(%{}, %{}) : {ty}", x.value, y.value)), ..x }
    }

    fn times(&mut self, x: Images, scale: Images) -> Images {
        let ty = self.of(x.channels, x.size);
        Images { value: self.line(&format!("Mul(%{}, %{}) : {ty}", x.value, scale.value)), ..x }
    }

    /// The mean of each channel's pixels.
    fn mean(&mut self, x: Images) -> Images {
        let ty = self.of(x.channels, 1);
        let mean = format!("ReduceMean(%{}) {{axes: [2, 3], keep: true}} : {ty}", x.value);
        Images { value: self.line(&mean), size: 1, ..x }
    }

    /// The largest of windows of 3×3.
    fn pool(&mut self, x: Images) -> Images {
        let size = (x.size - 1) / 2 + 1;
        let ty = self.of(x.channels, size);
        let value = self.line(&format!(
            "Pool(%{}) {{kind: max, kernel: [3, 3], strides: [2, 2], dilations: [1, 1], pads_before: [1, 1], pads_after: [1, 1], ceil: false}} : {ty}",
            x.value
        ));
        Images { value, size, ..x }
    }

    /// Two convolutions beside a shortcut, which is a third where shapes differ.
    fn block(&mut self, x: Images, made: usize, stride: usize) -> Images {
        let inner = self.conv(x, made, 3, stride);
        let inner = self.relu(inner);
        let inner = self.conv(inner, made, 3, 1);
        let short = if x.channels == made { x } else { self.conv(x, made, 1, stride) };
        let sum = self.add(inner, short);
        self.relu(sum)
    }

    /// Means of all pixels.
    fn graph(mut self, x: Images) -> Graph {
        let ty = format!("{}[b, {}]", self.dtype, x.channels);
        let mean = format!("ReduceMean(%{}) {{axes: [2, 3], keep: false}} : {ty}", x.value);
        let mean = self.line(&mean);
        let text = format!("{}return \"y\" = %{mean}\n", self.text);
        let weights: Vec<&[usize]> = self.weights.iter().map(Vec::as_slice).collect();
        graph(&text, &weights)
    }
}

fn program(graph: &Graph, target: &Target) -> Program {
    let program = plan(graph, target, Granularity::Fused, &sizes(&[])).unwrap().program;
    verify::program(&program).unwrap();
    program
}

/// The steps that only move elements.
fn copies(program: &Program) -> usize {
    program.steps().iter().filter(|step| step.family == Family::Copy).count()
}

/// The names of the kernels of a program's steps of a family.
fn kernels(program: &Program, family: Family, target: &Target) -> Vec<String> {
    let steps = program.steps().iter().filter(|step| step.family == family);
    steps.map(|step| launches(program, step, target).unwrap()[0].kernel.name.clone()).collect()
}

fn resnet_18(dtype: &'static str) -> Graph {
    let (mut network, x) = Network::new(dtype, 3, 224);
    let x = network.conv(x, 64, 7, 2);
    let x = network.relu(x);
    let mut x = network.pool(x);
    for (made, stride) in [(64, 1), (128, 2), (256, 2), (512, 2)] {
        x = network.block(x, made, stride);
        x = network.block(x, made, 1);
    }
    network.graph(x)
}

#[test]
fn all_of_a_residual_network_has_innermost_channels() {
    for name in ["sm_80", "sm_90a"] {
        let target: Target = name.parse().unwrap();
        let program = program(&resnet_18("f16"), &target);
        // The image's channels are filled up.
        assert_eq!(copies(&program), 1, "{program}");
        assert_eq!(kernels(&program, Family::Copy, &target), ["filled"]);
        let kernels = kernels(&program, Family::Convolution, &target);
        let of = |name: &str| kernels.iter().filter(|kernel| *kernel == name).count();
        let all = of("conv_channels_last") + of("gemm");
        assert_eq!((all, of("pooled"), kernels.len()), (20, 1, 21), "{kernels:?}");
    }
    // Exact single precision is by threads; a CPU has an order of its own.
    let exact: Target = "sm_90a".parse().unwrap();
    assert_eq!(copies(&program(&resnet_18("f32"), &exact)), 0);
    assert_eq!(copies(&program(&resnet_18("f16"), &Target::cpu(2))), 0);
}

#[test]
fn convolutions_of_innermost_channels_have_a_kernel_for_each_number_of_tiles() {
    let (mut network, x) = Network::new("f16", 64, 14);
    let mut x = network.conv(x, 128, 3, 1);
    for _ in 0..4 {
        x = network.conv(x, 128, 3, 1);
    }
    let target: Target = "sm_90a".parse().unwrap();
    let mut program = program(&network.graph(x), &target);
    let is_one = |step: &&Step| step.family == Family::Convolution;
    let id = program.step_ids().zip(program.steps()).find(|(_, step)| is_one(step)).unwrap().0;
    program.without_library(id);
    let step = program.steps().iter().find(is_one).unwrap();
    let launches = launches(&program, step, &target).unwrap();
    assert_eq!(launches.len(), 4, "{program}");
    for (batch, name) in [(1, "fewest"), (16, "few"), (64, "narrow"), (256, "wide")] {
        let variants = &step.variants;
        let chosen = variants.choose(&sizes(&[("b", batch)])).unwrap();
        assert_eq!(variants.all()[chosen].name, name, "{batch}");
    }
}

#[test]
fn convolutions_of_groups_keep_their_order_and_that_of_others() {
    let (mut network, x) = Network::new("f16", 32, 14);
    let mut x = network.conv(x, 32, 1, 1);
    for _ in 0..4 {
        x = network.grouped(x, 32, 3, 1, 4);
        x = network.conv(x, 32, 1, 1);
    }
    let target: Target = "sm_90a".parse().unwrap();
    assert_eq!(copies(&program(&network.graph(x), &target)), 0);
}

/// As in MobileNet: a depthwise convolution, whose results are scaled by what two layers make of their means.
#[test]
fn all_of_a_network_of_depthwise_convolutions_has_innermost_channels() {
    let (mut network, x) = Network::new("f16", 16, 14);
    let mut x = network.conv(x, 16, 3, 2);
    for (made, window, stride) in [(24, 3, 2), (40, 5, 1), (40, 3, 1)] {
        let inner = network.conv(x, 2 * made, 1, 1);
        let inner = network.relu(inner);
        let inner = network.grouped(inner, 2 * made, window, stride, 2 * made);
        let inner = network.relu(inner);
        let mean = network.mean(inner);
        let mean = network.conv(mean, 8, 1, 1);
        let mean = network.relu(mean);
        let scale = network.conv(mean, 2 * made, 1, 1);
        let scaled = network.times(inner, scale);
        x = network.conv(scaled, made, 1, 1);
    }
    let graph = network.graph(x);
    for name in ["sm_80", "sm_90a"] {
        let target: Target = name.parse().unwrap();
        let program = program(&graph, &target);
        assert_eq!(copies(&program), 1, "{program}");
        let kernels = kernels(&program, Family::Convolution, &target);
        let of = |name: &str| kernels.iter().filter(|kernel| *kernel == name).count();
        let all = of("conv_channels_last") + of("gemm");
        assert_eq!((all, of("depthwise"), kernels.len()), (13, 3, 16), "{kernels:?}");
        assert_eq!(self::kernels(&program, Family::Reduction, &target), ["reduce"; 4]);
    }
    let refused = check_graph("depthwise", &graph, &["sm_80", "sm_90a"], &[sizes(&[("b", 2)])]);
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn convolutions_of_innermost_channels_are_one_kernel_each() {
    for dtype in ["f16", "f32"] {
        let (mut network, x) = Network::new(dtype, 3, 13);
        let x = network.conv(x, 32, 3, 1);
        let x = network.pool(x);
        let x = network.relu(x);
        let x = network.conv(x, 40, 3, 2);
        let x = network.block(x, 40, 1);
        let x = network.block(x, 64, 2);
        let graph = network.graph(x);
        let refused = check_graph(dtype, &graph, &["sm_80", "sm_90a"], &[sizes(&[("b", 3)])]);
        assert!(refused.is_empty(), "{refused:?}");
    }
}
