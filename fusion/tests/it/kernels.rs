//! Kernels of steps: each is verified, simulated on the step's own buffers, and compared with the reference evaluation
//! of the step's body.

use crate::launched::emitted;
use crate::sizes;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, Reading, import, read_model};
use graphene_frontend::tensor::{Element, Tensor};
use graphene_frontend::text::{content_hash, parse};
use graphene_fusion::groups::Family;
use graphene_fusion::kernels::{Launch, Refusal, StepOperand, launches};
use graphene_fusion::program::{Operand, Program, Step};
use graphene_fusion::{Granularity, plan};
use graphene_ir::Var;
use graphene_ir::emit::emit;
use graphene_ir::launch::Condition;
use graphene_ir::simulate::{Buffer, Inputs, Options, Outcome, simulate};
use graphene_ir::target::Target;
use graphene_ir::verify::verify;
use half::{bf16, f16};
use std::path::Path;
use std::slice;

pub(crate) const TARGETS: [&str; 2] = ["sm_80", "sm_90a"];

/// Elements of a buffer: small numbers of few bits; indices below 2.
pub(crate) fn elements(dtype: DType, len: usize, seed: usize) -> Vec<f64> {
    let element = |i: usize| {
        let mixed = (i * 7919 + seed * 104_729) % 257;
        match dtype {
            DType::Bool | DType::I32 | DType::I64 | DType::U8 => (mixed % 2) as f64,
            // More than single precision holds.
            DType::U32 => f64::from(u32::MAX - mixed as u32),
            DType::I8 | DType::I16 | DType::U64 => (mixed % 2) as f64,
            _ => (mixed as f64 - 128.0) / 64.0,
        }
    };
    (0..len).map(element).collect()
}

pub(crate) fn tensor(dtype: DType, shape: Vec<usize>, data: &[f64]) -> Tensor {
    fn of<T: Element>(shape: Vec<usize>, data: &[f64], element: impl Fn(f64) -> T) -> Tensor {
        Tensor::from_vec(shape, data.iter().map(|&x| element(x)).collect()).unwrap()
    }
    match dtype {
        DType::F32 => of(shape, data, |x| x as f32),
        DType::F16 => of(shape, data, f16::from_f64),
        DType::BF16 => of(shape, data, bf16::from_f64),
        DType::I32 => of(shape, data, |x| x as i32),
        DType::I64 => of(shape, data, |x| x as i64),
        DType::U8 => of(shape, data, |x| x as u8),
        DType::I8 => of(shape, data, |x| x as i8),
        DType::I16 => of(shape, data, |x| x as i16),
        DType::U64 => of(shape, data, |x| x as u64),
        DType::U32 => of(shape, data, |x| x as u32),
        DType::Bool => Tensor::from_bools(shape, data.iter().map(|&x| x != 0.0).collect()).unwrap(),
        other => panic!("no {other} in these tests"),
    }
}

pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    fn of<T: Element>(tensor: &Tensor, number: impl Fn(T) -> f64) -> Vec<f64> {
        tensor.as_slice::<T>().unwrap().iter().map(|&x| number(x)).collect()
    }
    match tensor.dtype() {
        DType::F32 => of(tensor, |x: f32| x.into()),
        DType::F16 => of(tensor, f16::to_f64),
        DType::BF16 => of(tensor, bf16::to_f64),
        DType::I32 => of(tensor, |x: i32| x.into()),
        DType::I64 => of(tensor, |x: i64| x as f64),
        DType::U8 => of(tensor, |x: u8| x.into()),
        DType::I8 => of(tensor, |x: i8| x.into()),
        DType::I16 => of(tensor, |x: i16| x.into()),
        DType::U64 => of(tensor, |x: u64| x as f64),
        DType::U32 => of(tensor, |x: u32| x.into()),
        DType::Bool => tensor.bytes().iter().map(|&byte| f64::from(byte != 0)).collect(),
        other => panic!("no {other} in these tests"),
    }
}

/// The places of a view's elements in its buffer, in row-major order.
fn places(operand: &Operand, bindings: &Bindings) -> Vec<usize> {
    let mut places = vec![operand.view.offset.eval(bindings).unwrap()];
    for mode in &operand.view.modes {
        let [size, stride] = [&mode.size, &mode.stride].map(|dim| dim.eval(bindings).unwrap());
        places = places.iter().flat_map(|at| (0..size).map(move |i| at + i * stride)).collect();
    }
    places.into_iter().map(|place| usize::try_from(place).unwrap()).collect()
}

fn shape(operand: &Operand, bindings: &Bindings) -> Vec<usize> {
    let size = |dim: &graphene_frontend::dim::Dim| usize::try_from(dim.eval(bindings).unwrap());
    operand.view.shape().iter().map(|dim| size(dim).unwrap()).collect()
}

/// A launch's conditions hold: pointers are aligned, where buffers are, and what has to be is a multiple of a vector.
fn assert_conditions(
    name: &str,
    program: &Program,
    step: &Step,
    launch: &Launch,
    inputs: &Inputs,
    bindings: &Bindings,
) {
    let (kernel, symbol) = (&launch.kernel, |var: &Var| inputs.symbols.get(var.name()).copied());
    for condition in emit(kernel).unwrap().launch.conditions {
        let (value, divisor) = match &condition {
            Condition::Multiple(of, divisor) => (of.value(&symbol).unwrap(), *divisor),
            Condition::Aligned(tensor, divisor) => {
                let at = kernel.params.iter().position(|&own| kernel.tensor_name(own) == tensor);
                let pointer = &launch.pointers[at.unwrap()];
                let operand = match pointer.operand {
                    StepOperand::Input(number) => &step.inputs[number],
                    StepOperand::Output(number) => &step.outputs[number],
                    StepOperand::Stack(_) | StepOperand::Scratch(_) => {
                        assert!(
                            pointer.offset == 0,
                            "{name}: %{tensor} begins where a buffer does"
                        );
                        continue;
                    }
                };
                let bytes = program.buffer(operand.buffer).dtype.size() as i64;
                (pointer.offset.eval(bindings).unwrap() * bytes, *divisor)
            }
        };
        assert_eq!(value % divisor, 0, "{name}: {condition}\n{kernel}");
    }
}

/// Runs a launch in the simulator, which must have nothing against it and count the bytes that plans say the kernel requests;
/// the launch's conditions hold. Gives the elements of the step's inputs, and what came of it.
pub(crate) fn simulated(
    name: &str,
    program: &Program,
    step: &Step,
    launch: &Launch,
    bindings: &Bindings,
) -> (Vec<Vec<f64>>, Outcome) {
    let buffer = |operand: &Operand| &program.buffers()[operand.buffer.index()];
    let data: Vec<Vec<f64>> = step
        .inputs
        .iter()
        .map(|operand| {
            let len = usize::try_from(buffer(operand).elements.eval(bindings).unwrap()).unwrap();
            // Two views of one buffer read the same elements.
            let elements = elements(buffer(operand).dtype, len, operand.buffer.index());
            // Weights of layers that keep the size of their input.
            let weights = step.family == Family::Mlp && operand.view.modes.len() == 2;
            let scale = if weights { 0.125 } else { 1.0 };
            elements.into_iter().map(|x| x * scale).collect()
        })
        .collect();
    let mut inputs = Inputs::default();
    for (symbol, dim) in launch.kernel.symbols.iter().zip(&launch.symbols) {
        inputs.symbols.insert(symbol.name().to_owned(), dim.eval(bindings).unwrap());
    }
    for (&param, pointer) in launch.kernel.params.iter().zip(&launch.pointers) {
        let offset = usize::try_from(pointer.offset.eval(bindings).unwrap()).unwrap();
        let given = match pointer.operand {
            StepOperand::Input(number) => Buffer::Data(data[number][offset..].to_vec()),
            StepOperand::Stack(number) => {
                let parts = launch.stacks[number].iter().flat_map(|operand| match operand {
                    StepOperand::Input(number) => &data[*number],
                    other => panic!("{name}: {other:?} in a stack"),
                });
                Buffer::Data(parts.copied().collect())
            }
            StepOperand::Scratch(number) => {
                let len = launch.scratch[number].elements.eval(bindings).unwrap();
                Buffer::Data(vec![0.0; usize::try_from(len).unwrap()])
            }
            StepOperand::Output(number) => {
                let len = buffer(&step.outputs[number]).elements.eval(bindings).unwrap();
                Buffer::Undefined(usize::try_from(len).unwrap() - offset)
            }
        };
        inputs.buffers.insert(launch.kernel.tensor_name(param).to_owned(), given);
    }
    assert_conditions(name, program, step, launch, &inputs, bindings);
    let outcome = simulate(&launch.kernel, &inputs, &Options::default()).unwrap();
    let findings: Vec<String> = outcome.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{name}: {findings:#?}");
    let stated = launch.at("any", bindings).unwrap().requested(u64::MAX);
    assert_eq!(stated, Some(outcome.costs.total().global), "{name}\n{}", launch.kernel);
    (data, outcome)
}

/// Runs a launch in the simulator and compares each output with the reference: relative to the largest number that there
/// is they may differ by 1e-5, and by a rounding for each operation, to the coarsest type of any result, as the reference
/// rounds them.
pub(crate) fn check(
    name: &str,
    program: &Program,
    step: &Step,
    launch: &Launch,
    bindings: &Bindings,
) {
    let findings = verify(&launch.kernel);
    assert!(findings.is_empty(), "{name}: {findings:?}");
    let (data, outcome) = simulated(name, program, step, launch, bindings);
    let buffer = |operand: &Operand| &program.buffers()[operand.buffer.index()];
    let dense: Vec<Tensor> = step
        .inputs
        .iter()
        .zip(&data)
        .map(|(operand, data)| {
            let read: Vec<f64> = places(operand, bindings).iter().map(|&at| data[at]).collect();
            tensor(buffer(operand).dtype, shape(operand, bindings), &read)
        })
        .collect();
    let expected = evaluate_with(&step.body, &dense, bindings).unwrap();
    let steps = step.body.len() as f64;
    let largest = data.iter().flatten().fold(1.0, |max: f64, x| max.max(x.abs()));
    for (number, operand) in step.outputs.iter().enumerate() {
        // Several parameters may each be a part of it.
        let len = usize::try_from(buffer(operand).elements.eval(bindings).unwrap()).unwrap();
        let mut found: Vec<Option<f64>> = vec![None; len];
        for (&param, pointer) in launch.kernel.params.iter().zip(&launch.pointers) {
            if pointer.operand != StepOperand::Output(number) {
                continue;
            }
            let offset = usize::try_from(pointer.offset.eval(bindings).unwrap()).unwrap();
            let of_part = &outcome.buffers[launch.kernel.tensor_name(param)];
            for (at, written) in of_part.iter().enumerate().filter(|(_, found)| found.is_some()) {
                assert_eq!(found[offset + at], None, "{name}: @{at} is written twice");
                found[offset + at] = *written;
            }
        }
        // The reference rounds what lies between, too, such as values of half precision that become single precision.
        let unit = |dtype: DType| match dtype {
            DType::F16 => 2.0_f64.powi(-10),
            DType::BF16 => 2.0_f64.powi(-7),
            _ => 2.0_f64.powi(-22),
        };
        let made = step.body.nodes().filter(|(_, node)| !node.inputs().is_empty());
        let between = made.flat_map(|(_, node)| node.outputs()).map(|ty| unit(ty.dtype));
        let epsilon = between.fold(unit(buffer(operand).dtype), f64::max);
        for (at, expected) in places(operand, bindings).iter().zip(numbers(&expected[number])) {
            let found = found[*at].unwrap_or_else(|| panic!("{name}: @{at} is not written"));
            let error = (found - expected).abs();
            let allowed = (steps * epsilon + 1e-5) * largest.max(expected.abs());
            let same = found == expected || found.is_nan() && expected.is_nan();
            assert!(same || error <= allowed, "{name}: {found} for {expected} at {at}");
        }
    }
}

/// Plans a graph for targets and checks the kernels of its steps; says which steps no template takes. Matmuls and
/// convolutions are checked of TF32 as well: what buffers hold has no more bits.
pub(crate) fn check_graph(
    name: &str,
    graph: &Graph,
    targets: &[&str],
    sized: &[Bindings],
) -> Vec<(String, Refusal)> {
    let mut refused = Vec::new();
    let both = targets.iter().flat_map(|target| [false, true].map(|tf32| (target, tf32)));
    for (target, tf32) in both {
        let target = Target { tf32, ..target.parse().unwrap() };
        let planned = plan(graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let rounds = |step: &&Step| matches!(step.family, Family::MatMul | Family::Convolution);
        for step in planned.program.steps().iter().filter(|step| !tf32 || rounds(step)) {
            let name = format!(
                "{name} on {target} ({}): {}",
                if tf32 { "tf32" } else { "f32" },
                step.name
            );
            match launches(&planned.program, step, &target) {
                Ok(launches) => {
                    let same =
                        |a: &Launch, b: &Launch| (&a.kernel, &a.symbols) == (&b.kernel, &b.symbols);
                    let first = |at: usize| !launches[..at].iter().any(|l| same(l, &launches[at]));
                    let different = (0..launches.len()).filter(|&at| first(at));
                    for (at, bindings) in
                        different.flat_map(|at| sized.iter().map(move |b| (at, b)))
                    {
                        // One of one query is right for no more, and one of multiples for these alone.
                        let variant = &step.variants.all()[at];
                        let multiples = !variant.when.multiples().is_empty();
                        if !(variant.name.starts_with("decode") || multiples)
                            || variant.when.holds(bindings).unwrap()
                        {
                            check(&name, &planned.program, step, &launches[at], bindings);
                        }
                    }
                }
                Err(refusal) => refused.push((name, refusal)),
            }
        }
    }
    refused
}

/// Checks a graph of one step at some sizes of `b` and `s`.
pub(crate) fn check_text(text: &str) {
    check_on(&TARGETS, text);
}

pub(crate) fn check_on(targets: &[&str], text: &str) {
    let graph = parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let sized = [[1, 1], [2, 3], [3, 64]].map(|[b, s]| sizes(&[("b", b), ("s", s)]));
    let refused = check_graph(text, &graph, targets, &sized);
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn pointwise_groups_are_one_kernel() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f32[b, s, 8] "x"
        %1 = Input : f32[s, 1] "y"
        %2 = Mul(%0, %1) : f32[b, s, 8] "product"
        %3 = Tanh(%2) : f32[b, s, 8] "tanh"
        %4 = Add(%3, %0) : f32[b, s, 8] "sum"
        return "z" = %4
    "#,
    );
}

/// Few elements are spread over all multiprocessors by small blocks; many, or as many as there will be,
/// are taken by large ones, of which there are no more than run at once.
#[test]
fn blocks_are_as_large_as_a_group_wants() {
    let mapped = |size: &str| {
        let symbols = if size.starts_with('b') { "symbols b\n" } else { "" };
        let text = format!(
            "{symbols}%0 = Input : f16[{size}] \"x\"\n%1 = Tanh(%0) : f16[{size}] \"y\"\nreturn \"z\" = %1"
        );
        let graph = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let target: Target = "sm_90a".parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let step = planned.program.steps().first().unwrap();
        let launch = &launches(&planned.program, step, &target).unwrap()[0];
        let launch = emitted(launch, &sizes(&[("b", 4096)]));
        (launch.threads, launch.blocks, target.cores)
    };
    let (threads, blocks, cores) = mapped("8192");
    assert_eq!((threads, blocks), (32, 32));
    assert!(blocks < i64::from(cores));
    let most = i64::from(cores) * 6;
    assert_eq!(mapped("65536, 1024"), (256, most, cores));
    assert_eq!(mapped("b, 1024"), (256, most, cores));
    assert_eq!(mapped("b, 8"), (256, 16, cores));
}

#[test]
fn masks_become_numbers() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : i64[b, s] "mask"
        %1 = Input : f32[b, s] "scores"
        %2 = Cast(%0) {to: bool, saturate: true} : bool[b, s] "bool"
        %3 = Sigmoid(%1) : f32[b, s] "weights"
        %4 = Select(%2, %3, %1) : f32[b, s] "masked"
        return "z" = %4
    "#,
    );
}

#[test]
fn half_precision_is_computed_in_single_precision() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f16[b, 2*s] "x"
        %1 = Input : f16[2*s] "y"
        %2 = Add(%0, %1) : f16[b, 2*s] "sum"
        %3 = Gelu(%2) : f16[b, 2*s] "z"
        %4 = Cast(%3) {to: bf16, saturate: true} : bf16[b, 2*s] "w"
        return "z" = %3, "w" = %4
    "#,
    );
}

/// One query by all warps of a block or a cluster: of the parts of one projection beside what came before, with a mask of
/// keys, or of heads that share keys.
#[test]
fn attention_of_one_query_shares_keys() {
    attention_of_one_query("f16");
}

#[test]
fn attention_of_one_query_shares_keys_in_single_precision() {
    attention_of_one_query("f32");
}

fn attention_of_one_query(scalar: &str) {
    let text = |kv: i64, mask: &str, of_mask: &str| {
        format!(
            r#"
            symbols b, s
            %0 = Input : T[b, 4, 1, 32] "queries"
            %1 = Input : T[b, {kv}, s, 32] "keys"
            %2 = Input : T[b, {kv}, s, 32] "values"
            %3 = Input : {mask} "mask"
            %4 = Attention(%0, %1, %2{of_mask}) {{scale: 0.25, causal: false, softcap: 0, guarded: false}} : T[b, 4, 1, 32] "attention"
            return "y" = %4
        "#
        )
    };
    let sized = [[2, 301], [1, 128], [9, 33]].map(|[b, s]| sizes(&[("b", b), ("s", s)]));
    // Masks and shared heads are tried at one size: several tiles, the last of them partial, rows of odd length.
    for (kv, mask, of_mask, sized) in [
        (4, "T[1]", "", &sized[..]),
        (4, "T[b, 1, 1, s]", ", %3", &sized[..1]),
        (2, "bool[b, 1, 1, s]", ", %3", &sized[..1]),
        (1, "T[b, 4, 1, s]", ", %3", &sized[..1]),
    ] {
        let text = text(kv, mask, of_mask).replace("T[", &format!("{scalar}["));
        let graph = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let refused = check_graph(&text, &graph, &TARGETS, sized);
        assert!(refused.is_empty(), "{refused:?}");
        let target = "sm_90a".parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let variants = planned.program.steps().iter().flat_map(|step| step.variants.all());
        let names: Vec<&str> = variants.map(|variant| variant.name).collect();
        for shared in ["decode8", "decode2", "decode1"] {
            assert!(names.contains(&shared), "{shared} is none of {names:?}");
        }
    }
}

#[test]
fn tiles_of_attention_by_threads_leave_room_for_two_blocks() {
    let text = r#"
        symbols b, s
        %0 = Input : f32[b, 4, s, 64] "queries"
        %1 = Input : f32[b, 4, s, 64] "keys"
        %2 = Input : f32[b, 4, s, 64] "values"
        %3 = Attention(%0, %1, %2) {scale: 0.125, causal: false, softcap: 0, guarded: false} : f32[b, 4, s, 64] "attention"
        return "y" = %3
    "#;
    let graph = parse(text, &[]).unwrap();
    // Of queries, two stages of keys and values, and weights: 64 keys, or 32 where there are few or two blocks would not fit.
    for (target, keys) in [("sm_80", &[32][..]), ("sm_90a", &[32, 64])] {
        let target = target.parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let steps = planned.program.steps().iter();
        let made = steps.flat_map(|step| launches(&planned.program, step, &target).unwrap());
        let bytes: Vec<i64> =
            made.map(|made| emit(&made.kernel).unwrap().launch.shared_bytes.into()).collect();
        let expected = keys.iter().map(|keys| 4 * (64 * 64 + 2 * keys * 128 + 64 * keys));
        assert_eq!(bytes, expected.collect::<Vec<i64>>(), "{target}");
    }
}

#[test]
fn attention_reads_packed_operands_in_place() {
    let text = r#"
        symbols b, s
        %0 = Input : T[b, s, 96] "qkv"
        %1 = Input : bool[b, 1, 1, s] "mask"
        %2 = Slice(%0) {axes: [{axis: 2, start: 0, len: 32, step: 1}]} : T[b, s, 32] "q"
        %3 = Slice(%0) {axes: [{axis: 2, start: 32, len: 32, step: 1}]} : T[b, s, 32] "k"
        %4 = Slice(%0) {axes: [{axis: 2, start: 64, len: 32, step: 1}]} : T[b, s, 32] "v"
        %5 = Reshape(%2) {shape: [b, s, 2, 16]} : T[b, s, 2, 16] "q heads"
        %6 = Reshape(%3) {shape: [b, s, 2, 16]} : T[b, s, 2, 16] "k heads"
        %7 = Reshape(%4) {shape: [b, s, 2, 16]} : T[b, s, 2, 16] "v heads"
        %8 = Transpose(%5) {perm: [0, 2, 1, 3]} : T[b, 2, s, 16] "q turned"
        %9 = Transpose(%6) {perm: [0, 2, 1, 3]} : T[b, 2, s, 16] "k turned"
        %10 = Transpose(%7) {perm: [0, 2, 1, 3]} : T[b, 2, s, 16] "v turned"
        %11 = Attention(%8, %9, %10, %1) {scale: 0.25, causal: false, softcap: 0, guarded: true} : T[b, 2, s, 16] "attention"
        %12 = Transpose(%11) {perm: [0, 2, 1, 3]} : T[b, s, 2, 16] "back"
        %13 = Reshape(%12) {shape: [b, s, 32]} : T[b, s, 32] "merged"
        return "y" = %13
    "#;
    for dtype in ["f16", "f32"] {
        check_text(&text.replace("T[", &format!("{dtype}[")));
    }
}

#[test]
fn heads_are_as_wide_as_vectors_are() {
    let text = r#"
        symbols b, s
        %0 = Input : T[b, 2, s, DIM] "q"
        %1 = Input : T[b, 2, s, DIM] "k"
        %2 = Input : T[b, 2, s, 40] "v"
        %3 = Attention(%0, %1, %2) {scale: 0.25, causal: true, softcap: 0, guarded: false} : T[b, 2, s, 40] "attention"
        return "y" = %3
    "#;
    for (dtype, dim) in [("f16", "24"), ("f32", "8"), ("f32", "12")] {
        check_text(&text.replace("T[", &format!("{dtype}[")).replace("DIM", dim));
    }
}

/// As exports of DistilBERT have it: scores become the least number there is, for all queries alike.
#[test]
fn masks_fill_scores_with_numbers() {
    let text = r#"
        symbols b, s
        %0 = Input : T[b, 2, s, 16] "q"
        %1 = Input : T[b, 2, s, 16] "k"
        %2 = Input : T[b, 2, s, 16] "v"
        %3 = Input : bool[b, MASK] "mask"
        %4 = Attention(%0, %1, %2, %3) {scale: 0.25, causal: false, softcap: 0, guarded: false, fill: FILL} : T[b, 2, s, 16] "attention"
        return "y" = %4
    "#;
    for (dtype, fill) in [("f16", "-65504"), ("f32", "-340282350000000000000000000000000000000")] {
        for mask in ["1, 1, s", "2, s, s"] {
            let text = text.replace("T[", &format!("{dtype}[")).replace("MASK", mask);
            check_text(&text.replace("FILL", fill));
        }
    }
}

#[test]
fn normalisations_take_what_is_before_and_after() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f16[b, s, 48] "x"
        %1 = Input : f16[b, s, 48] "residual"
        %2 = Input : f16[48] "scale"
        %3 = Input : f16[48] "shift"
        %4 = Add(%0, %1) : f16[b, s, 48] "sum"
        %5 = LayerNorm(%4, %2, %3) {axis: 2, epsilon: 0.00001} : f16[b, s, 48], f32[b, s, 1], f32[b, s, 1] "norm"
        %6 = Tanh(%5) : f16[b, s, 48] "tanh"
        return "y" = %6, "sum" = %4
    "#,
    );
}

#[test]
fn normalisations_are_given_in_several_types() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f16[b, s, 48] "x"
        %1 = Input : f16[48] "scale"
        %2 = Input : f16[48] "shift"
        %3 = LayerNorm(%0, %1, %2) {axis: 2, epsilon: 0.00001} : f16[b, s, 48], f32[b, s, 1], f32[b, s, 1] "norm"
        %4 = Cast(%3) {to: f32, saturate: true} : f32[b, s, 48] "single"
        return "y" = %3, "z" = %4
    "#,
    );
}

#[test]
fn softmax_takes_rows_of_any_length() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f32[b, 2, s] "scores"
        %1 = Softmax(%0) {axis: 2} : f32[b, 2, s] "weights"
        return "y" = %1
    "#,
    );
}

#[test]
fn embeddings_are_one_kernel() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : i64[b, s] "ids"
        %1 = Input : i64[b, s] "types"
        %2 = Input : f32[9, 24] "words"
        %3 = Input : f32[2, 24] "kinds"
        %4 = Input : f32[1, s, 24] "positions"
        %5 = Input : f32[24] "scale"
        %6 = Input : f32[24] "shift"
        %7 = Gather(%2, %0) {axis: 0} : f32[b, s, 24] "word"
        %8 = Gather(%3, %1) {axis: 0} : f32[b, s, 24] "kind"
        %9 = Add(%7, %8) : f32[b, s, 24] "sum"
        %10 = Add(%9, %4) : f32[b, s, 24] "placed"
        %11 = LayerNorm(%10, %5, %6) {axis: 2, epsilon: 0.00001} : f32[b, s, 24], f32[b, s, 1], f32[b, s, 1] "norm"
        return "y" = %11
    "#,
    );
}

#[test]
fn tables_have_rows_of_any_rank() {
    for row in ["", ", 6", ", 3, 4", ", 2, 1, 5"] {
        check_text(&format!(
            r#"
            symbols b, s
            %0 = Input : f16[7{row}] "table"
            %1 = Input : i64[b, s] "ids"
            %2 = Gather(%0, %1) {{axis: 0}} : f16[b, s{row}] "rows"
            return "y" = %2
        "#
        ));
    }
}

#[test]
fn rows_of_tables_that_are_read_apart_are_launches_of_their_own() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f16[7, 8] "cosines"
        %1 = Input : f16[7, 8] "sines"
        %2 = Input : i64[b, s] "ids"
        %3 = Gather(%0, %2) {axis: 0} : f16[b, s, 8] "cos"
        %4 = Gather(%1, %2) {axis: 0} : f16[b, s, 8] "sin"
        %5 = Neg(%4) : f16[b, s, 8] "turned"
        return "y" = %3, "z" = %4, "w" = %5
    "#,
    );
}

#[test]
fn matmuls_take_what_follows() {
    for dtype in ["f16", "f32"] {
        check_text(
            &r#"
            symbols b, s
            %0 = Input : T[b, s, 32] "x"
            %1 = Input : T[32, 48] "w"
            %2 = Input : T[48] "bias"
            %3 = Input : T[b, s, 48] "residual"
            %4 = MatMul(%0, %1) : T[b, s, 48] "product"
            %5 = Add(%4, %2) : T[b, s, 48] "biased"
            %6 = Gelu(%5) : T[b, s, 48] "activated"
            %7 = Add(%6, %3) : T[b, s, 48] "sum"
            return "y" = %7
        "#
            .replace('T', dtype),
        );
    }
}

/// A residual in single precision, as exports in half precision keep it: operands of the matmul still come by tensor copies.
#[test]
fn addends_of_another_type_are_read_from_registers() {
    for dtype in ["f16", "bf16"] {
        let text = r#"
            symbols b, s
            %0 = Input : T[b, s, 72] "x"
            %1 = Input : T[72, 48] "w"
            %2 = Input : f32[b, s, 48] "residual"
            %3 = MatMul(%0, %1) : T[b, s, 48] "product"
            %4 = Cast(%3) {to: f32, saturate: true} : f32[b, s, 48] "wide"
            %5 = Add(%4, %2) : f32[b, s, 48] "sum"
            return "y" = %5
        "#
        .replace('T', dtype);
        check_text(&text);
        let (graph, target) = (parse(&text, &[]).unwrap(), "sm_90a".parse().unwrap());
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let [step] = planned.program.steps() else { panic!("{text}: one step") };
        for launch in launches(&planned.program, step, &target).unwrap() {
            let text = emit(&launch.kernel).unwrap().source;
            assert!(text.contains("CUtensorMap"), "{text}");
        }
    }
}

/// Columns of an odd number, as of a vocabulary, are written element by element. Operands still come by tensor copies: weights
/// in rows of that size are prepacked column by column, those of other types stay.
#[test]
fn odd_columns_keep_tensor_copies() {
    let target: Target = "sm_90a".parse().unwrap();
    for dtype in [DType::F16, DType::BF16] {
        let weights = tensor(dtype, vec![72, 43], &elements(dtype, 72 * 43, 7));
        let text = r#"
            symbols b, s
            %0 = Input : T[b, s, 72] "x"
            %1 = Constant(@0 HASH) : T[72, 43] "w"
            %2 = MatMul(%0, %1) : T[b, s, 43] "matmul"
            %3 = Input : f32[b, s, 43] "residual"
            %4 = Cast(%2) {to: f32, saturate: true} : f32[b, s, 43] "wide"
            %5 = Add(%4, %3) : f32[b, s, 43] "sum"
            return "matmul" = %2, "sum" = %5
        "#
        .replace("T[", &format!("{dtype}["))
        .replace("HASH", &format!("{:016x}", content_hash(&weights)));
        let graph = parse(&text, &[weights]).unwrap();
        let sized = [[1, 1], [2, 3], [3, 64]].map(|[b, s]| sizes(&[("b", b), ("s", s)]));
        assert_eq!(check_graph(&text, &graph, &TARGETS, &sized), []);
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let [step] = planned.program.steps() else { panic!("{text}: one step") };
        for launch in launches(&planned.program, step, &target).unwrap() {
            let text = emit(&launch.kernel).unwrap().source;
            let maps = ["A", "B", "C"].map(|name| text.contains(&format!("TensorMap {name}_map")));
            assert_eq!(maps, [true, true, false], "{text}");
        }
    }
}

/// Where blocks have several tiles, warpgroups ping-pong.
#[test]
fn warpgroups_ping_pong_where_that_pays() {
    let text = r#"
        symbols b, s
        %0 = Input : f16[b, s, 768] "x"
        %1 = Input : f16[768, 3072] "w"
        %2 = MatMul(%0, %1) : f16[b, s, 3072] "product"
        %3 = Gelu(%2) : f16[b, s, 3072] "activated"
        return "y" = %3
    "#;
    let target: Target = "sm_90a".parse().unwrap();
    for (text, rows) in [
        (text.to_owned(), [(128, "64x64"), (1024, "128x192"), (16_384, "ping-pong 128x192")]),
        (
            text.replace("Gelu", "Relu").replace("3072", "768"),
            [(128, "64x64"), (1024, "64x128"), (65_536, "ping-pong 128x192")],
        ),
    ] {
        let graph = parse(&text, &[]).unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let [step] = planned.program.steps() else { panic!("{}", planned.program) };
        for (rows, expected) in rows {
            let chosen = step.variants.choose(&sizes(&[("b", 1), ("s", rows)])).unwrap();
            let name = step.variants.all()[chosen].name;
            assert_eq!(name, expected, "{rows}: {}", step.variants);
        }
        let launches = launches(&planned.program, step, &target).unwrap();
        for (variant, launch) in step.variants.all().iter().zip(launches) {
            let ping_pong = launch.kernel.to_string().contains("%turns");
            assert_eq!(ping_pong, variant.name.starts_with("ping-pong"), "{}", variant.name);
        }
    }
}

/// In single precision two blocks share a tile before four do; only on Hopper, of one deep matmul by one B.
#[test]
fn deep_matmuls_of_few_rows_are_split_in_single_precision() {
    let matmul = |rows: &str, k: i64, n: &str, b: &str| {
        let known = n.parse::<i64>().is_ok();
        let symbols = if known { "b, s" } else { "b, n, s" };
        format!(
            "symbols {symbols}\n%0 = Input : f32[{rows}, {k}] \"x\"\n%1 = Input : f32[{b}{k}, {n}] \"w\"\n\
             %2 = MatMul(%0, %1) : f32[{rows}, {n}] \"product\"\nreturn \"y\" = %2\n"
        )
    };
    let unsplit = "wide if b*s >= 13953, narrow if b*s >= 1345, else few";
    let rows = [
        (
            "sm_90a",
            matmul("b, s", 3072, "768", ""),
            "wide if b*s >= 13953, narrow if b*s >= 1345, few if b*s >= 513, split2 if b*s >= 225, else split4",
            vec![1, 1, 1, 2, 4],
        ),
        (
            "sm_90a",
            matmul("b, s", 508, "768", ""),
            "wide if b*s >= 13953, narrow if b*s >= 1345, few if b*s >= 225, else split4",
            vec![1, 1, 1, 4],
        ),
        ("sm_90a", matmul("b, s", 252, "768", ""), unsplit, vec![1; 3]),
        ("sm_80", matmul("b, s", 3072, "768", ""), "", vec![1; 3]),
        // So wide that four parts of one row of tiles are too many, or two.
        (
            "sm_90a",
            matmul("b, s", 3072, "6144", ""),
            "wide if b*s >= 1665, narrow if b*s >= 129, few if b*s >= 65, else split2",
            vec![1, 1, 1, 2],
        ),
        (
            "sm_90a",
            matmul("b, s", 3072, "20480", ""),
            "wide if b*s >= 513, narrow if b*s >= 1, else few",
            vec![1; 3],
        ),
        // Columns, or matrices, that nobody has counted.
        (
            "sm_90a",
            matmul("b, s", 3072, "n", ""),
            "wide if 8 divides n and b*s >= 33665, narrow if 8 divides n and b*s >= 6273, few if 8 divides n, \
             wide if b*s >= 33665, narrow if b*s >= 6273, else few",
            vec![1; 6],
        ),
        (
            "sm_90a",
            matmul("b, s", 3072, "768", "b, "),
            "wide if s >= 2689, narrow if s >= 513, else few",
            vec![1; 3],
        ),
    ];
    for (target, text, expected, parts) in rows {
        let (graph, target) = (parse(&text, &[]).unwrap(), target.parse().unwrap());
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let [step] = planned.program.steps() else { panic!("{}", planned.program) };
        let launches = launches(&planned.program, step, &target).unwrap();
        // A call's kernel, for sizes that the library refuses, is the last one's.
        let calls = usize::from(step.variants.library().is_some());
        let kernels = [launches.first(), launches.last()].map(|launch| &launch.unwrap().kernel);
        assert!(calls == 0 || kernels[0] == kernels[1], "{text}");
        let own = launches[calls..].iter();
        let found = own.map(|launch| emit(&launch.kernel).unwrap().launch.cluster);
        assert_eq!(found.collect::<Vec<u32>>(), parts, "{text}");
        let variants = step.variants.to_string();
        let own = variants.split(", ").skip(calls).collect::<Vec<_>>().join(", ");
        if !expected.is_empty() {
            assert_eq!(own, expected, "{text}");
        }
    }
}

/// Few rows: several blocks share a tile, and ask for its weights before they wait.
#[test]
fn deep_matmuls_of_few_rows_are_split() {
    let text = r#"
        symbols b, s
        %0 = Input : f16[b, s, 2568] "x"
        %1 = Constant(@0 HASH) : f16[2568, 72] "w"
        %2 = MatMul(%0, %1) : f16[b, s, 72] "product"
        return "y" = %2
    "#;
    let weight = Tensor::from_vec(vec![2568, 72], vec![f16::ZERO; 2568 * 72]).unwrap();
    let text = text.replace("HASH", &format!("{:016x}", content_hash(&weight)));
    let graph = parse(&text, &[weight]).unwrap();
    let target: Target = "sm_90a".parse().unwrap();
    let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
    let [step] = planned.program.steps() else { panic!("{}", planned.program) };
    let variants = step.variants.to_string();
    assert!(variants.starts_with("split4 if b*s <= 768, split2 if b*s <= 1536, "), "{variants}");
    let launches = launches(&planned.program, step, &target).unwrap();
    let said = |launch: &Launch, what| launch.kernel.to_string().contains(what);
    let found: Vec<[bool; 3]> = launches
        .iter()
        .map(|launch| ["Prefetch", "peer", "GridDependencyWait"].map(|what| said(launch, what)))
        .collect();
    let expected = step.variants.all().iter().map(|variant| match variant.name {
        "split2" | "split4" => [true; 3],
        name => [name == "64x64", false, true],
    });
    let expected: Vec<[bool; 3]> = expected.collect();
    assert_eq!(found, expected);
    for (launch, rows) in launches.iter().zip([3, 2]) {
        let sizes = sizes(&[("b", rows), ("s", 33)]);
        check("deep", &planned.program, step, launch, &sizes);
    }
}

/// In single precision, where threads multiply, blocks of few rows are 16 high; in half precision 32.
#[test]
fn layers_by_threads_have_the_lowest_blocks() {
    let chain = |dtype: &str| {
        format!(
            "symbols b\n%0 = Input : {dtype}[b, 64] \"x\"\n%1 = Input : {dtype}[64, 64] \"u\"\n\
             %2 = Input : {dtype}[64, 64] \"v\"\n%3 = MatMul(%0, %1) : {dtype}[b, 64] \"first\"\n\
             %4 = Relu(%3) : {dtype}[b, 64] \"hidden\"\n%5 = MatMul(%4, %2) : {dtype}[b, 64] \"second\"\n\
             return \"y\" = %5\n"
        )
    };
    let single = "wide if b >= 10368, narrow if b >= 5184, few if b >= 1728, else fewest";
    let half = "wide if b >= 10368, narrow if b >= 5184, else few";
    for (dtype, variants, rows) in [("f32", single, 16), ("f16", half, 32)] {
        let graph = parse(&chain(dtype), &[]).unwrap();
        let target: Target = "sm_80".parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &sizes(&[("b", 64)])).unwrap();
        let [step] = planned.program.steps() else { panic!("{}", planned.program) };
        assert_eq!(step.variants.to_string(), variants);
        let launches = launches(&planned.program, step, &target).unwrap();
        let launch = launches.last().unwrap();
        let grid = format!("#grid:[(@M + {})/{rows}:1].block", rows - 1);
        assert!(launch.kernel.to_string().contains(&grid), "{}", launch.kernel);
        check(dtype, &planned.program, step, launch, &sizes(&[("b", 37)]));
    }
}

/// Only what no step makes is constant: one operand that an input gives is reason enough to wait for the steps before.
#[test]
fn weights_are_constant_and_nothing_else_is() {
    let weight = Tensor::from_vec(vec![64, 64], vec![f16::ZERO; 64 * 64]).unwrap();
    let constant = format!("Constant(@0 {:016x})", content_hash(&weight));
    for (first, second, expected) in [
        (&*constant, &*constant, true),
        ("Input", "Input", false),
        (&*constant, "Input", false),
        ("Input", &*constant, false),
    ] {
        let text = format!(
            "symbols b\n%0 = Input : f16[b, 64] \"x\"\n%1 = Input : f16[b, 64] \"h\"\n\
             %2 = {first} : f16[64, 64] \"w\"\n%3 = {second} : f16[64, 64] \"u\"\n\
             %4 = MatMul(%0, %2) : f16[b, 64] \"of x\"\n%5 = MatMul(%1, %3) : f16[b, 64] \"of h\"\n\
             %6 = Add(%4, %5) : f16[b, 64] \"sum\"\nreturn \"y\" = %6\n"
        );
        let graph = parse(&text, slice::from_ref(&weight)).unwrap();
        let target: Target = "sm_90a".parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let [step] = planned.program.steps() else { panic!("{}", planned.program) };
        for launch in launches(&planned.program, step, &target).unwrap() {
            let text = launch.kernel.to_string();
            let names = ["%A", "%A_2", "%B", "%B_2"].map(|name| format!("\n{name}:"));
            let line = |name: &String| text.split(&**name).nth(1).unwrap().lines().next().unwrap();
            let found = names.each_ref().map(|name| line(name).ends_with(".const"));
            assert_eq!(found, [false, false, expected, expected], "{text}");
        }
    }
}

/// A result of another type keeps no operand from being copied by tiles.
#[test]
fn matmuls_of_half_precision_become_single_precision() {
    let text = r#"
        symbols b, s
        %0 = Input : f16[b, s, 64] "x"
        %1 = Input : f16[64, 48] "w"
        %2 = Slice(%0) {axes: [{axis: 1, start: 0, len: 1, step: 1}]} : f16[b, 1, 64] "first"
        %3 = Reshape(%2) {shape: [b, 64]} : f16[b, 64] "rows"
        %4 = MatMul(%3, %1) : f16[b, 48] "product"
        %5 = Cast(%4) {to: f32, saturate: true} : f32[b, 48] "single"
        return "y" = %5
    "#;
    check_text(text);
    let graph = parse(text, &[]).unwrap();
    let target: Target = "sm_90a".parse().unwrap();
    let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
    let launches = launches(&planned.program, &planned.program.steps()[0], &target).unwrap();
    assert!(launches.iter().all(|launch| launch.kernel.to_string().contains("signals")));
}

#[test]
fn matmuls_that_are_added_are_one() {
    check_text(
        r#"
        symbols b
        %0 = Input : f32[b, 24] "x"
        %1 = Input : f32[b, 40] "h"
        %2 = Input : f32[24, 36] "w"
        %3 = Input : f32[40, 36] "u"
        %4 = Input : f32[36] "bias"
        %5 = MatMul(%0, %2) : f32[b, 36] "of x"
        %6 = Add(%5, %4) : f32[b, 36] "biased"
        %7 = MatMul(%1, %3) : f32[b, 36] "of h"
        %8 = Add(%6, %7) : f32[b, 36] "sum"
        %9 = Relu(%8) : f32[b, 36] "relu"
        return "y" = %9
    "#,
    );
}

/// Operands of one row or column, in any order of axes, repeated, or of several layouts in one sum: what no template takes
/// as it lies is copied, or stands apart.
#[test]
fn matmuls_of_whatever_lies_have_kernels() {
    for body in [
        // A head for one number, and an outer product.
        "%3 = Slice(%1) {axes: [{axis: 1, start: 0, len: 1, step: 1}]} : E[32, 1] \"column\"\n\
         %4 = MatMul(%0, %3) : E[b, 1] \"y\"",
        "%3 = Slice(%0) {axes: [{axis: 1, start: 0, len: 1, step: 1}]} : E[b, 1] \"first\"\n\
         %4 = MatMul(%3, %2) : E[b, 32] \"y\"",
        // Rows by rows of the same, heads apart.
        "%3 = Reshape(%0) {shape: [b, 4, 8]} : E[b, 4, 8] \"heads\"\n\
         %4 = Transpose(%3) {perm: [0, 2, 1]} : E[b, 8, 4] \"turned\"\n\
         %5 = MatMul(%3, %4) : E[b, 4, 4] \"y\"",
        "%3 = Reshape(%0) {shape: [b, 4, 8]} : E[b, 4, 8] \"heads\"\n\
         %4 = Transpose(%3) {perm: [1, 0, 2]} : E[4, b, 8] \"apart\"\n\
         %5 = Transpose(%3) {perm: [1, 2, 0]} : E[4, 8, b] \"turned\"\n\
         %6 = MatMul(%4, %5) : E[4, b, b] \"y\"",
        // Two matmuls of one input are merged; a part of them is added to a third.
        "%3 = MatMul(%0, %1) : E[b, 32] \"first\"\n%4 = Add(%1, %1) : E[32, 32] \"other\"\n\
         %5 = MatMul(%0, %4) : E[b, 32] \"second\"\n%6 = Relu(%5) : E[b, 32] \"relu\"\n\
         %7 = MatMul(%6, %1) : E[b, 32] \"third\"\n%8 = Add(%3, %7) : E[b, 32] \"y\"",
        // One weight in rows and one in columns, in one sum.
        "%3 = Transpose(%1) {perm: [1, 0]} : E[32, 32] \"turned\"\n\
         %4 = MatMul(%0, %3) : E[b, 32] \"left\"\n%5 = Tanh(%0) : E[b, 32] \"tanh\"\n\
         %6 = MatMul(%5, %1) : E[b, 32] \"right\"\n%7 = Add(%4, %6) : E[b, 32] \"y\"",
    ] {
        for dtype in ["f16", "f32"] {
            let result = body.lines().last().unwrap().split(' ').next().unwrap();
            let text = format!(
                "symbols b\n%0 = Input : E[b, 32] \"x\"\n%1 = Input : E[32, 32] \"w\"\n\
                 %2 = Input : E[1, 32] \"row\"\n{body}\nreturn \"y\" = {result}\n"
            );
            check_text(&text.replace("E[", &format!("{dtype}[")));
        }
    }
}

#[test]
fn matmuls_read_rows_that_are_apart() {
    for dtype in ["f16", "f32"] {
        check_text(
            &r#"
            symbols b, s
            %0 = Input : E[b, s, 32] "x"
            %1 = Input : E[32, 48] "w"
            %2 = Slice(%0) {axes: [{axis: 1, start: 0, len: 1, step: 1}]} : E[b, 1, 32] "first"
            %3 = Reshape(%2) {shape: [b, 32]} : E[b, 32] "rows"
            %4 = MatMul(%3, %1) : E[b, 48] "product"
            %5 = Tanh(%4) : E[b, 48] "tanh"
            return "y" = %5
        "#
            .replace("E[", &format!("{dtype}[")),
        );
    }
}

#[test]
fn integers_stay_whole() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : i64[b, s] "ids"
        %1 = Input : i32[b, s] "counts"
        %2 = Input : i64[1] "pad"
        %3 = Equal(%0, %2) : bool[b, s] "equal"
        %4 = Not(%3) : bool[b, s] "not"
        %5 = Cast(%4) {to: i32, saturate: true} : i32[b, s] "kept"
        %6 = Mul(%1, %5) : i32[b, s] "product"
        %7 = Cast(%6) {to: i64, saturate: true} : i64[b, s] "wide"
        %8 = Add(%7, %2) : i64[b, s] "position"
        return "y" = %8
    "#,
    );
}

/// Copies whose contiguous axis changes go through tiles in shared memory, unless they are of a few columns.
#[test]
fn transposes_are_copied_by_tiles() {
    let rows = [
        ("f16", "b, s, 40", "0, 2, 1", "b, 40, s", "transpose"),
        ("f32", "b, s, 40", "2, 1, 0", "40, s, b", "transpose"),
        ("f16", "33, 70", "1, 0", "70, 33", "transpose"),
        ("bf16", "2, 20, 3, 24", "3, 0, 2, 1", "24, 2, 3, 20", "transpose"),
        ("i8", "64, 36", "1, 0", "36, 64", "transpose"),
        ("i16", "64, 36", "1, 0", "36, 64", "parts"),
        ("i32", "64, 36", "1, 0", "36, 64", "transpose"),
        ("f16", "b, 4, s", "0, 2, 1", "b, s, 4", "pointwise"),
        ("f16", "b, s, 40", "1, 0, 2", "s, b, 40", "pointwise"),
        ("i64", "64, 36", "1, 0", "36, 64", "pointwise"),
    ];
    for (dtype, from, perm, to, kernel) in rows {
        let symbols = if from.contains('s') { "symbols b, s" } else { "" };
        let text = format!(
            r#"
            {symbols}
            %0 = Input : {dtype}[{from}] "x"
            %1 = Transpose(%0) {{perm: [{perm}]}} : {dtype}[{to}] "y"
            return "y" = %1
        "#
        );
        check_text(&text);
        let (graph, target) = (parse(&text, &[]).unwrap(), "sm_90a".parse().unwrap());
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let [step] = planned.program.steps() else { panic!("{text}: one step") };
        let made = launches(&planned.program, step, &target).unwrap();
        assert_eq!(made[0].kernel.name, kernel, "{text}");
    }
}

#[test]
fn joined_tensors_are_one_kernel() {
    for dtype in ["f16", "f32", "i8", "i16", "u64", "bool"] {
        check_text(&format!(
            r#"
            symbols b, s
            %0 = Input : {dtype}[b, 3, 8] "x"
            %1 = Input : {dtype}[b, s, 8] "y"
            %2 = Transpose(%1) {{perm: [0, 2, 1]}} : {dtype}[b, 8, s] "turned"
            %3 = Reshape(%2) {{shape: [b, s, 8]}} : {dtype}[b, s, 8] "seen"
            %4 = Concat(%0, %1, %0, %3) {{axis: 1}} : {dtype}[b, 6 + 2*s, 8] "joined"
            return "z" = %4
        "#
        ));
    }
    check_text(
        r#"
        symbols b, s
        %0 = Input : f16[b, s] "x"
        %1 = Input : f16[b, 5] "y"
        %2 = Concat(%0, %1) {axis: 1} : f16[b, 5 + s] "joined"
        %3 = Concat(%2, %2) {axis: 0} : f16[2*b, 5 + s] "twice"
        return "z" = %3
    "#,
    );
}

#[test]
fn surrounded_tensors_are_one_kernel() {
    let pad = |dtype: &str, before: &str, after: &str, to: &str, more: &str| {
        let attrs = format!("{{mode: constant, before: {before}, after: {after}}}");
        check_text(&format!(
            r#"
            symbols b, s
            %0 = Input : {dtype}[b, s, 6] "x"
            %1 = Input : {dtype}[] "value"
            %2 = Pad(%0{more}) {attrs} : {dtype}[{to}] "y"
            return "z" = %2
        "#
        ));
    };
    pad("f32", "[0, 1, 2]", "[0, 3, 0]", "b, 4 + s, 8", "");
    pad("f16", "[1, 0, 2]", "[1, s, 8]", "2 + b, 2*s, 16", ", %1");
    pad("i64", "[0, 0, -1]", "[0, 2, -2]", "b, 2 + s, 3", ", %1");
    pad("i8", "[0, 0, -1]", "[0, 0, 3]", "b, s, 8", "");
}

#[test]
fn ranges_and_sizes_are_made_on_the_device() {
    check_text("symbols s\n%0 = Iota {size: 3*s} : i64[3*s] \"i\"\nreturn \"z\" = %0\n");
    check_text("symbols b, s\n%0 = Size {size: 7 + b*s} : i64[] \"n\"\nreturn \"z\" = %0\n");
}

/// What a kernel's symbols cannot be, or sizes leave open, is nothing that fails when it is bound.
#[test]
fn parts_that_sizes_leave_open_are_refused() {
    let why = |text: &str| {
        let graph = parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let refused = check_graph(text, &graph, &["sm_90a"], &[]);
        refused.into_iter().map(|(_, refusal)| refusal.in_short()).collect::<Vec<_>>()
    };
    let size = |size: &str| {
        let used = ["b", "s"].into_iter().filter(|symbol| size.contains(symbol));
        let symbols = used.collect::<Vec<_>>().join(", ");
        why(&format!(
            "symbols {symbols}\n%0 = Size {{size: {size}}} : i64[] \"n\"\nreturn \"z\" = %0\n"
        ))
    };
    let negative = "no template for sizes that may be negative, or 2³¹ and more";
    assert_eq!(size("-512 + s"), [negative]);
    assert_eq!(size("50257*b*s"), [negative]);
    assert!(size("b + 3*s").is_empty());
    let cut = |before: &str, to: &str| {
        let attrs = format!("{{mode: constant, before: {before}, after: [0, 4]}}");
        why(&format!(
            r#"
            symbols b, s
            %0 = Input : f32[b, s] "x"
            %1 = Pad(%0) {attrs} : f32[{to}] "y"
            return "z" = %1
        "#
        ))
    };
    assert_eq!(cut("[0, -2]", "b, 2 + s"), ["a cut of more than there may be"]);
    assert!(cut("[0, 2]", "b, 6 + s").is_empty());
}

#[test]
fn bits_of_another_type_are_moved() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : i64[b, s, 4] "x"
        %1 = Transpose(%0) {perm: [1, 0, 2]} : i64[s, b, 4] "turned"
        %2 = BitCast(%1) {to: u64} : u64[s, b, 4] "bits"
        %3 = BitCast(%2) {to: i64} : i64[s, b, 4] "again"
        return "z" = %3
    "#,
    );
}

/// Positions are compared as integers, and what is chosen by that is of single precision: two launches, both of which have
/// kernels.
#[test]
fn masks_of_positions_are_compared_as_integers() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : i64[s, 1] "rows"
        %1 = Input : i64[1, b] "columns"
        %2 = Input : f32[s, b] "x"
        %3 = Input : f32[] "low"
        %4 = Add(%0, %1) : i64[s, b] "sum"
        %5 = LessOrEqual(%1, %4) : bool[s, b] "seen"
        %6 = Select(%5, %2, %3) : f32[s, b] "mask"
        %7 = Exp(%6) : f32[s, b] "exp"
        return "z" = %7
    "#,
    );
}

#[test]
fn matmuls_take_one_number_that_is_not_known_beforehand() {
    for number in ["f32[]", "f32[1]", "f32[1, 1, 1]"] {
        let text = format!(
            r#"
            symbols b, s
            %0 = Input : f32[b, s, 8] "x"
            %1 = Input : f32[8, 16] "w"
            %2 = Input : {number} "number"
            %3 = MatMul(%0, %1) : f32[b, s, 16] "product"
            %4 = Add(%3, %2) : f32[b, s, 16] "sum"
            %5 = Tanh(%4) : f32[b, s, 16] "tanh"
            return "y" = %5
        "#
        );
        check_text(&text);
        let (graph, target) = (parse(&text, &[]).unwrap(), "sm_90a".parse().unwrap());
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        assert_eq!(planned.program.steps().len(), 1, "{}", planned.program);
    }
}

/// Heads of ten have no template: their attention is matmuls and a softmax.
#[test]
fn attention_without_a_template_is_matmuls() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : f32[b, 2, s, 10] "q"
        %1 = Input : f32[b, 2, s, 10] "k"
        %2 = Input : f32[b, 2, s, 10] "v"
        %3 = Transpose(%1) {perm: [0, 1, 3, 2]} : f32[b, 2, 10, s] "turned"
        %4 = MatMul(%0, %3) : f32[b, 2, s, s] "scores"
        %5 = Softmax(%4) {axis: 3} : f32[b, 2, s, s] "weights"
        %6 = MatMul(%5, %2) : f32[b, 2, s, 10] "heads"
        return "y" = %6
    "#,
    );
}

#[test]
fn running_sums_go_along_any_axis() {
    for (axis, dtype) in [(0, "f32"), (1, "i32"), (2, "f16")] {
        let attrs = format!("{{axis: {axis}, exclusive: false, reverse: false}}");
        check_text(&format!(
            r#"
            symbols b, s
            %0 = Input : {dtype}[b, s, 5] "x"
            %1 = CumSum(%0) {attrs} : {dtype}[b, s, 5] "sums"
            return "y" = %1
        "#
        ));
    }
}

/// Checks a layer of 1 to 5 steps.
fn check_layer(targets: &[&str], text: &str) {
    let graph = parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let sized = [[1, 1], [3, 2], [2, 5], [35, 2]].map(|[b, s]| sizes(&[("b", b), ("s", s)]));
    let refused = check_graph(text, &graph, targets, &sized);
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn recurrent_layers_are_one_launch() {
    for dtype in ["f16", "f32"] {
        check_layer(
            &TARGETS,
            &r#"
            symbols b, s
            %0 = Input : T[s, b, 24] "x"
            %1 = Input : T[1, 160, 24] "w"
            %2 = Input : T[1, 160, 40] "r"
            %3 = Input : T[1, 320] "bias"
            %4 = Input : T[1, b, 40] "c0"
            %5 = Lstm(%0, %1, %2, %3, _, _, %4) {input_forget: false, direction: reverse, hidden: 40, activations: [Sigmoid, Tanh, Tanh], clip: none} : T[s, 1, b, 40], T[1, b, 40], T[1, b, 40] "layer"
            return "y" = %5, "c" = %5.2
        "#
            .replace("T[", &format!("{dtype}[")),
        );
        check_layer(
            &["sm_90a"],
            &r#"
            symbols b, s
            %0 = Input : T[s, b, 7] "x"
            %1 = Input : T[2, 33, 7] "w"
            %2 = Input : T[2, 33, 11] "r"
            %3 = Input : T[2, b, 11] "h0"
            %4 = Gru(%0, %1, %2, _, _, %3) {linear_before_reset: true, direction: bidirectional, hidden: 11, activations: [Sigmoid, Tanh, Sigmoid, Tanh], clip: none} : T[s, 2, b, 11], T[2, b, 11] "layer"
            return "h" = %4.1
        "#
            .replace("T[", &format!("{dtype}[")),
        );
        check_layer(
            &["sm_80"],
            &r#"
            symbols b, s
            %0 = Input : T[s, b, 16] "x"
            %1 = Input : T[1, 24, 16] "w"
            %2 = Input : T[1, 24, 24] "r"
            %3 = Rnn(%0, %1, %2) {direction: forward, hidden: 24, activations: [Tanh], clip: none} : T[s, 1, b, 24], T[1, b, 24] "layer"
            return "y" = %3, "h" = %3.1
        "#
            .replace("T[", &format!("{dtype}[")),
        );
    }
}

/// Lengths of 0 and 1, which are those of the indices that there are here.
#[test]
fn layers_of_ragged_sequences_are_one_launch() {
    for dtype in ["f16", "f32"] {
        check_layer(
            &TARGETS,
            &r#"
            symbols b, s
            %0 = Input : T[s, b, 24] "x"
            %1 = Input : T[2, 160, 24] "w"
            %2 = Input : T[2, 160, 40] "r"
            %3 = Input : i32[b] "lengths"
            %4 = Input : T[2, b, 40] "h0"
            %5 = Lstm(%0, %1, %2, _, %3, %4) {input_forget: false, direction: bidirectional, hidden: 40, activations: [Sigmoid, Tanh, Tanh, Sigmoid, Tanh, Tanh], clip: none} : T[s, 2, b, 40], T[2, b, 40], T[2, b, 40] "layer"
            return "y" = %5, "h" = %5.1, "c" = %5.2
        "#
            .replace("T[", &format!("{dtype}[")),
        );
        check_layer(
            &["sm_90a"],
            &r#"
            symbols b, s
            %0 = Input : T[s, b, 7] "x"
            %1 = Input : T[1, 33, 7] "w"
            %2 = Input : T[1, 33, 11] "r"
            %3 = Input : i32[b] "lengths"
            %4 = Gru(%0, %1, %2, _, %3) {linear_before_reset: false, direction: reverse, hidden: 11, activations: [Sigmoid, Tanh], clip: none} : T[s, 1, b, 11], T[1, b, 11] "layer"
            return "h" = %4.1
        "#
            .replace("T[", &format!("{dtype}[")),
        );
    }
}

#[test]
fn peepholes_and_clipped_gates_are_part_of_the_launch() {
    for dtype in ["f16", "f32"] {
        check_layer(
            &["sm_90a"],
            &r#"
            symbols b, s
            %0 = Input : T[s, b, 24] "x"
            %1 = Input : T[1, 160, 24] "w"
            %2 = Input : T[1, 160, 40] "r"
            %3 = Input : i32[b] "lengths"
            %4 = Input : T[1, 120] "peepholes"
            %5 = Lstm(%0, %1, %2, _, %3, _, _, %4) {input_forget: false, direction: forward, hidden: 40, activations: [Sigmoid, Tanh, Tanh], clip: 0.75} : T[s, 1, b, 40], T[1, b, 40], T[1, b, 40] "layer"
            return "y" = %5, "c" = %5.2
        "#
            .replace("T[", &format!("{dtype}[")),
        );
        check_layer(
            &["sm_80"],
            &r#"
            symbols b, s
            %0 = Input : T[s, b, 7] "x"
            %1 = Input : T[2, 44, 7] "w"
            %2 = Input : T[2, 44, 11] "r"
            %3 = Input : T[2, 33] "peepholes"
            %4 = Lstm(%0, %1, %2, _, _, _, _, %3) {input_forget: true, direction: bidirectional, hidden: 11, activations: [Sigmoid, Tanh, Tanh, Sigmoid, Tanh, Tanh], clip: none} : T[s, 2, b, 11], T[2, b, 11], T[2, b, 11] "layer"
            return "y" = %4, "h" = %4.1
        "#
            .replace("T[", &format!("{dtype}[")),
        );
    }
}

#[test]
fn layers_that_no_template_takes_say_why() {
    let text = r#"
        symbols b, s
        %0 = Input : f32[s, b, 4] "x"
        %1 = Input : f32[2, 8, 4] "w"
        %2 = Input : f32[2, 8, 8] "r"
        %3 = Rnn(%0, %1, %2) {direction: bidirectional, hidden: 8, activations: [Tanh, Relu], clip: none} : f32[s, 2, b, 8], f32[2, b, 8] "layer"
        return "y" = %3
    "#;
    let graph = parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let refused = check_graph(text, &graph, &["sm_90a"], &[]);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(refused[0].1, Refusal::Operation("directions with activations of their own"));
}

#[test]
fn the_exported_lstm_is_one_launch() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../frontend/tests/data/fixtures");
    let (model, weights) = read_model(folder.join("lstm/model.onnx"), Reading::Mapped).unwrap();
    let graph = import(model, &weights, &ImportOptions::default()).unwrap().graph;
    let sized = [[1, 3], [5, 2]].map(|[b, t]| sizes(&[("batch", b), ("time", t)]));
    let refused = check_graph("lstm", &graph, &TARGETS, &sized);
    assert!(refused.is_empty(), "{refused:?}");
}

/// What follows a batch of matmuls reads a column of each matmul's own where that is the whole result. Other columns of
/// batches have no kernel: templates read one column for all matmuls.
#[test]
fn columns_of_batches_are_their_own() {
    let text = |batch: &str, ty: &str, [m, k, n]: [i64; 3]| {
        let symbols = if batch == "b" { "symbols b" } else { "" };
        format!(
            r#"
        {symbols}
        %0 = Input : {ty}[{batch}, 1, {m}, {k}] "x"
        %1 = Input : {ty}[{batch}, 1, {k}, {n}] "y"
        %2 = Input : {ty}[{batch}, 1, {m}, 1] "column"
        %3 = MatMul(%0, %1) : {ty}[{batch}, 1, {m}, {n}] "product"
        %4 = Min(%3, %2) : {ty}[{batch}, 1, {m}, {n}] "followed"
        return "z" = %4
    "#
        )
    };
    for (batch, m) in [("b", 1), ("3", 1), ("3", 5)] {
        check_text(&text(batch, "f32", [m, 4, 1]));
    }
    for (batch, ty, sizes) in [("3", "f16", [1, 8, 16]), ("b", "f32", [5, 4, 8])] {
        let graph = parse(&text(batch, ty, sizes), &[]).unwrap();
        for target in TARGETS {
            let target = target.parse().unwrap();
            let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
            let steps = planned.program.steps();
            let [step] = steps else { continue };
            assert!(launches(&planned.program, step, &target).is_err(), "{batch} {ty}");
        }
    }
}

/// Matmuls of a depth of 0 are zeros.
#[test]
fn matmuls_of_no_depth_are_zeros() {
    for ty in ["f16", "f32"] {
        check_text(&format!(
            r#"
        symbols b
        %0 = Input : {ty}[b, 8, 0] "x"
        %1 = Input : {ty}[0, 8] "y"
        %2 = Input : {ty}[b, 8, 8] "r"
        %3 = MatMul(%0, %1) : {ty}[b, 8, 8] "product"
        %4 = Add(%3, %2) : {ty}[b, 8, 8] "sum"
        return "z" = %4
    "#
        ));
    }
}

/// Attention over no keys gives zeros, as matmuls of a depth of 0 do; no kernel of attention computes a softmax of
/// nothing.
#[test]
fn attention_over_no_keys_is_matmuls() {
    let text = r#"
        %0 = Input : f32[1, 1, 1, 8] "q"
        %1 = Input : f32[1, 1, 0, 8] "k"
        %2 = Input : f32[1, 1, 0, 8] "v"
        %3 = Transpose(%1) {perm: [0, 1, 3, 2]} : f32[1, 1, 8, 0] "turned"
        %4 = MatMul(%0, %3) : f32[1, 1, 1, 0] "scores"
        %5 = Softmax(%4) {axis: 3} : f32[1, 1, 1, 0] "weights"
        %6 = MatMul(%5, %2) : f32[1, 1, 1, 8] "attended"
        return "y" = %6
    "#;
    let graph = parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    for target in TARGETS {
        let target = target.parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        for step in planned.program.steps() {
            match launches(&planned.program, step, &target) {
                Ok(made)
                    if step.outputs.iter().all(|of| of.view.shape().iter().all(|d| *d != 0)) =>
                {
                    check("no keys", &planned.program, step, &made[0], &Bindings::new());
                }
                Ok(_) => {}
                // It falls back to the CPU.
                Err(refusal) => assert_eq!(refusal, Refusal::Layout("attention over no keys")),
            }
        }
    }
}

/// Integers that are moved stay what they are, though single precision does not hold them.
#[test]
fn integers_that_are_moved_are_not_rounded() {
    check_text(
        r#"
        symbols b, s
        %0 = Input : u32[b, s, 3] "x"
        %1 = Transpose(%0) {perm: [1, 0, 2]} : u32[s, b, 3] "turned"
        return "y" = %1
    "#,
    );
}

/// Negative numbers wrap, as on a CPU.
#[test]
fn negative_numbers_become_unsigned_by_way_of_signed() {
    for to in ["u8", "u32"] {
        let text = format!(
            r#"
        symbols b, s
        %0 = Input : f32[b, s] "x"
        %1 = Cast(%0) {{to: {to}, saturate: true}} : {to}[b, s] "cast"
        return "y" = %1
    "#
        );
        check_text(&text);
        let graph = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let target: Target = "sm_90a".parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        let step = planned.program.steps().first().unwrap();
        let launch = &launches(&planned.program, step, &target).unwrap()[0];
        let source = emit(&launch.kernel).unwrap().source;
        let signed = if to == "u8" { "(unsigned char)int(" } else { "(unsigned)(long long)" };
        assert!(source.contains(signed), "{source}");
    }
}

/// Symbols of strides are not negative.
#[test]
fn reductions_of_reversed_axes_are_the_hosts() {
    let text = r#"
        %0 = Input : f32[1, 1, 1] "x"
        %1 = Input : f32[1, 6] "y"
        %2 = Slice(%1) {axes: [{axis: 1, start: 5, len: 2, step: -2}]} : f32[1, 2] "reversed"
        %3 = Add(%2, %0) : f32[1, 1, 2] "sum"
        %4 = ReduceMax(%3) {axes: [0, 1, 2], keep: true} : f32[1, 1, 1] "most"
        return "z" = %4
    "#;
    let graph = parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    for target in TARGETS {
        let target = target.parse().unwrap();
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
        for step in planned.program.steps() {
            for launch in launches(&planned.program, step, &target).unwrap_or_default() {
                let negative = |dim: &Dim| dim.eval(&Bindings::new()).unwrap() < 0;
                assert!(!launch.symbols.iter().any(negative), "{}", step.name);
            }
        }
    }
}
