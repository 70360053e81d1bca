//! Bound programs: what they check of a caller's memory, when they stop, and that runs side by side are as one alone.

use crate::check::{Random, module};
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, import};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::Granularity;
use graphene_models::{Options, build};
use graphene_runtime::cpu::{Bound, Executable};
use graphene_runtime::{Error, Threads};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Bytes from a cache line on.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn lines(bytes: usize) -> Vec<Line> {
    vec![Line([0x55; 64]); bytes.div_ceil(64) + 1]
}

fn graph(name: &str) -> Graph {
    let model = build(name, &Options::default()).unwrap();
    import(model.encode(), model.weights(), &ImportOptions::default()).unwrap().graph
}

fn sizes(graph: &Graph, batch: i64, sequence: i64) -> Bindings {
    let mut sizes = Bindings::new();
    for symbol in graph.symbols() {
        let size = if symbol == Symbol::new("batch") { batch } else { sequence };
        sizes.bind(symbol, size).unwrap();
    }
    sizes
}

fn inputs(graph: &Graph, sizes: &Bindings) -> Vec<Tensor> {
    let mut random = Random(3);
    let types = graph.inputs().iter().map(|id| graph.ty(id.value()));
    let tensor = types.map(|ty| random.tensor(ty.dtype, ty.bound_shape(sizes).unwrap()));
    tensor.collect()
}

/// Runs into memory of its own.
fn run(
    bound: &Bound,
    inputs: &[Tensor],
    control: &mut dyn FnMut(usize) -> Result<(), Error>,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut arena = lines(bound.arena_bytes());
    let inputs: Vec<&[u8]> = inputs.iter().map(Tensor::bytes).collect();
    let outputs = bound.program().outputs().iter().map(|(_, ty)| {
        let shape = ty.bound_shape(bound.plan().bindings()).unwrap();
        shape.iter().product::<usize>() * ty.dtype.size()
    });
    let outputs: Vec<usize> = outputs.collect();
    let mut memory: Vec<Vec<Line>> = outputs.iter().map(|&bytes| lines(bytes)).collect();
    let places = memory.iter_mut().zip(&outputs);
    let mut places: Vec<&mut [u8]> =
        places.map(|(lines, &bytes)| &mut bytemuck::cast_slice_mut(lines)[..bytes]).collect();
    bound.run(bytemuck::cast_slice_mut(&mut arena), &inputs, &mut places, control)?;
    Ok(places.iter().map(|bytes| bytes.to_vec()).collect())
}

#[test]
fn runs_side_by_side_are_as_one_alone() {
    // Of long steps, which take turns, and of short ones alone, which do not.
    for (name, batch, sequence) in [("lstm", 4, 30), ("fmha", 1, 300), ("layernorm", 1, 2)] {
        let graph = graph(name);
        let (sizes, module) = (sizes(&graph, batch, sequence), module(&graph, Granularity::Fused));
        let inputs = inputs(&graph, &sizes);
        let bound = module.bind(&sizes).unwrap();
        assert_eq!(bound.is_spread(), name != "layernorm", "{name}");
        assert_eq!(bound.kernels().count(), bound.program().steps().len());
        let threads = Threads::new(3).unwrap();
        let alone = threads.run(|| run(&bound, &inputs, &mut |_| Ok(()))).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let found = threads.run(|| run(&bound, &inputs, &mut |_| Ok(())));
                        assert!(found.unwrap() == alone, "{name}: other bits");
                    }
                });
            }
        });
        let mut executable = Executable::new(module.bind(&sizes).unwrap()).unwrap();
        let found = threads.run(|| executable.run(&inputs)).unwrap();
        assert!(found.iter().zip(&alone).all(|(found, alone)| found.bytes() == alone), "{name}");
    }
}

#[test]
fn control_is_asked_before_each_step_and_ends_a_run() {
    let graph = graph("bert-base-tiny");
    let (sizes, module) = (sizes(&graph, 1, 8), module(&graph, Granularity::Fused));
    let inputs: Vec<Tensor> = inputs(&graph, &sizes)
        .iter()
        .map(|ids| Tensor::from_vec(ids.shape().to_vec(), vec![1_i64; ids.len()]).unwrap())
        .collect();
    let bound = module.bind(&sizes).unwrap();
    let mut asked = Vec::new();
    let mut control = |step| {
        asked.push(step);
        Ok(())
    };
    run(&bound, &inputs, &mut control).unwrap();
    assert_eq!(asked, (0..bound.program().steps().len()).collect::<Vec<_>>());
    let late = Error::Unsupported { what: "more than three steps" };
    let mut control = |step| if step < 3 { Ok(()) } else { Err(late.clone()) };
    assert_eq!(run(&bound, &inputs, &mut control), Err(late.clone()));
}

#[test]
fn waiting_for_others_may_be_ended() {
    let graph = graph("lstm");
    let (sizes, module) = (sizes(&graph, 4, 30), module(&graph, Granularity::Fused));
    let (inputs, bound) = (inputs(&graph, &sizes), module.bind(&sizes).unwrap());
    let threads = Threads::new(2).unwrap();
    let (started, asked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        // One run that does not go on until another, which waits for it, has given up.
        scope.spawn(|| {
            threads.run(|| {
                run(&bound, &inputs, &mut |_| {
                    started.store(1, Ordering::Relaxed);
                    while asked.load(Ordering::Relaxed) < 3 {
                        thread::yield_now();
                    }
                    Ok(())
                })
                .unwrap();
            });
        });
        while started.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let late = Error::Unsupported { what: "more patience" };
        let mut control = |_| match asked.fetch_add(1, Ordering::Relaxed) {
            0..2 => Ok(()),
            _ => Err(late.clone()),
        };
        assert_eq!(threads.run(|| run(&bound, &inputs, &mut control)), Err(late.clone()));
    });
}

#[test]
fn memory_that_does_not_fit_is_refused() {
    let graph = graph("mlp");
    let (sizes, module) = (sizes(&graph, 3, 1), module(&graph, Granularity::Fused));
    let bound = module.bind(&sizes).unwrap();
    let (mut arena, mut x, mut y) = (lines(bound.arena_bytes()), lines(2048), lines(2048));
    let arena: &mut [u8] = bytemuck::cast_slice_mut(&mut arena);
    let [x, y]: [&mut [u8]; 2] = [&mut x, &mut y].map(|lines| bytemuck::cast_slice_mut(lines));
    let whole = 3 * 128 * 4;
    let check = |arena: &mut [u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]]| {
        bound.run(arena, inputs, outputs, &mut |_| Ok(())).map_err(|error| error.to_string())
    };
    assert_eq!(check(arena, &[&x[..whole]], &mut [&mut y[..whole]]), Ok(()));
    assert!(check(arena, &[], &mut [&mut y[..whole]]).is_err());
    assert!(check(arena, &[&x[..whole]], &mut []).is_err());
    assert!(check(arena, &[&x[..whole - 4]], &mut [&mut y[..whole]]).is_err());
    assert!(check(arena, &[&x[1..whole + 1]], &mut [&mut y[..whole]]).is_err());
    assert!(check(arena, &[&x[..whole]], &mut [&mut y[2..whole + 2]]).is_err());
    assert!(check(arena, &[&x[..whole]], &mut [&mut y[..whole + 4]]).is_err());
    if bound.arena_bytes() > 0 {
        assert!(check(&mut [], &[&x[..whole]], &mut [&mut y[..whole]]).is_err());
        assert!(check(&mut arena[4..], &[&x[..whole]], &mut [&mut y[..whole]]).is_err());
    }
}
