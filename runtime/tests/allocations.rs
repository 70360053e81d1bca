//! A run of a bound program allocates nothing once its threads have what they need, on any of them.
//!
//! In a binary of its own: the allocator counts for the whole process. It has no threads but those of the runtime: a test
//! harness that waits for a test on a thread of its own may allocate meanwhile.

#![allow(unsafe_code)]

use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, import};
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use graphene_models::{Options, build};
use graphene_runtime::cpu::{Bound, Module};
use graphene_runtime::{Device, Engine, Input, OutputMut, Port, Profile, RunOptions, Threads};
use libtest_mimic::{Arguments, Failed, Trial};
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's, counting.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Where a cache line begins.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes from a cache line on.
struct Bytes {
    lines: Vec<Line>,
    len: usize,
}

impl Bytes {
    fn new(len: usize) -> Self {
        Self { lines: vec![Line([0; 64]); len.div_ceil(64)], len }
    }

    fn get(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

fn graph(name: &str, decomposed_layer_norm: bool) -> Graph {
    let options = Options { decomposed_layer_norm, ..Options::default() };
    let model = build(name, &options).expect("the zoo has it");
    let imported = import(model.encode(), model.weights(), &ImportOptions::default());
    imported.expect("it imports").graph
}

fn sizes(graph: &Graph, batch: i64, sequence: i64) -> Bindings {
    let mut sizes = Bindings::new();
    for symbol in graph.symbols() {
        let size = if symbol == Symbol::new("batch") { batch } else { sequence };
        sizes.bind(symbol, size).expect("a positive size");
    }
    sizes
}

/// Numbers that are in range as tokens, masks and elements.
fn inputs(graph: &Graph, sizes: &Bindings) -> Vec<Bytes> {
    let types = graph.inputs().iter().map(|id| graph.ty(id.value()));
    let inputs = types.map(|ty| {
        let shape = ty.bound_shape(sizes).expect("its sizes are bound");
        let count: usize = shape.iter().product();
        let mut bytes = Bytes::new(count * ty.dtype.size());
        for (i, element) in bytes.get_mut().chunks_exact_mut(ty.dtype.size()).enumerate() {
            match ty.dtype {
                DType::F32 => {
                    element.copy_from_slice(&(0.01 * (i % 100) as f32 - 0.5).to_ne_bytes());
                }
                DType::Bool => element[0] = 1,
                _ => element[0] = (i % 2) as u8,
            }
        }
        bytes
    });
    inputs.collect()
}

/// The fewest allocations of so many runs, of several times as many, after some that warm up. A thread that is still
/// starting beside them allocates once; what a run allocates shows every time.
fn allocations(bound: &Bound, graph: &Graph, sizes: &Bindings, runs: usize) -> usize {
    let given = inputs(graph, sizes);
    let given: Vec<&[u8]> = given.iter().map(Bytes::get).collect();
    let places = bound.program().outputs().iter().map(|(_, ty)| {
        let shape = ty.bound_shape(sizes).expect("its sizes are bound");
        Bytes::new(shape.iter().product::<usize>() * ty.dtype.size())
    });
    let mut results: Vec<Bytes> = places.collect();
    let mut results: Vec<&mut [u8]> = results.iter_mut().map(Bytes::get_mut).collect();
    let mut arena = Bytes::new(bound.arena_bytes());
    let mut run = || {
        bound.run(arena.get_mut(), &given, &mut results, &mut |_| Ok(())).expect("it runs");
    };
    (0..3).for_each(|_| run());
    let counted = |_| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..runs).for_each(|_| run());
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    (0..3).map(counted).min().expect("there are some")
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // On the main thread.
    arguments.test_threads = Some(1);
    let trials = vec![
        Trial::test("warm_runs_allocate_nothing", || report(&runs_that_allocate())),
        Trial::test("warm_runs_of_contexts_allocate_nothing", || report(&contexts_that_allocate())),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn report(found: &[String]) -> Result<(), Failed> {
    if found.is_empty() { Ok(()) } else { Err(found.join("\n").into()) }
}

/// Models, sizes and numbers of threads whose warm runs allocate.
fn runs_that_allocate() -> Vec<String> {
    let models = [
        ("bert-base-tiny", [(1, 1), (1, 32), (2, 200)]),
        ("albert-base-tiny", [(1, 1), (1, 32), (2, 200)]),
        ("roberta-base-tiny", [(1, 1), (1, 32), (2, 200)]),
        ("mlp", [(1, 1), (7, 1), (300, 1)]),
        ("mlp-gelu-4x128", [(1, 1), (7, 1), (300, 1)]),
        ("lstm", [(1, 5), (2, 17), (8, 40)]),
        ("lstm-tiny", [(1, 5), (2, 17), (8, 40)]),
        ("lstm-cell", [(1, 1), (3, 1), (300, 1)]),
        ("layernorm", [(1, 1), (2, 17), (4, 200)]),
        ("fmha", [(1, 1), (2, 17), (1, 300)]),
    ];
    let mut found = Vec::new();
    for count in [1, 2, 3] {
        let threads = Threads::new(count).expect("so many threads");
        let written_out = models.iter().flat_map(|model| [(model, false), (model, true)]);
        for (&(name, all), decomposed) in written_out {
            let graph = graph(name, decomposed);
            let planned = plan(&graph, &Target::cpu(2), Granularity::Fused, &Bindings::new());
            let module = Module::compile(planned.expect("it is planned").program);
            let module = module.expect("it is compiled");
            for (batch, sequence) in all {
                let sizes = sizes(&graph, batch, sequence);
                let bound = module.bind(&sizes).expect("it is bound");
                let made = threads.run(|| allocations(&bound, &graph, &sizes, 10));
                if made > 0 {
                    let kernels: Vec<_> = bound.kernels().collect();
                    found.push(format!(
                        "{name} {batch}x{sequence} on {count}: {made} in 10 runs of {kernels:?}"
                    ));
                }
            }
        }
    }
    found
}

/// Contexts whose warm runs into memory of the caller's allocate, at sizes as they are and in buckets.
fn contexts_that_allocate() -> Vec<String> {
    let engine = Engine::builder().device(Device::Cpu).threads(2).build().expect("two threads");
    let buckets = Profile::new().buckets("batch", [4]).buckets("sequence", [48]);
    let mut found = Vec::new();
    for profile in [Profile::new(), buckets] {
        let graph = graph("bert-base-tiny", false);
        let sizes = sizes(&graph, 2, 17);
        let given = inputs(&graph, &sizes);
        let model = engine.model().profile(profile).load_graph(graph).expect("it loads");
        let shape = |port: &Port| -> Vec<usize> {
            port.dims().iter().map(|dim| dim.eval(&sizes).expect("bound") as usize).collect()
        };
        let shapes: Vec<_> = model.inputs().iter().map(shape).collect();
        let read = model.inputs().iter().zip(&given).zip(&shapes);
        let read =
            read.map(|((port, bytes), shape)| Input::bytes(port.dtype(), bytes.get(), shape));
        let read: Vec<Input<'_>> = read.collect();
        let memory = model
            .outputs()
            .iter()
            .map(|port| Bytes::new(shape(port).iter().product::<usize>() * port.dtype().size()));
        let mut memory: Vec<Bytes> = memory.collect();
        let written = memory.iter_mut().zip(model.outputs());
        let written = written.map(|(bytes, port)| OutputMut::bytes(port.dtype(), bytes.get_mut()));
        let mut written: Vec<OutputMut<'_>> = written.collect();
        let (mut context, options) = (model.context(), RunOptions::new());
        let mut run = || context.run_into(&read, &mut written, &options).expect("it runs");
        (0..3).for_each(|_| run());
        let counted = |_| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            (0..10).for_each(|_| run());
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        let made = (0..3).map(counted).min().expect("there are some");
        if made > 0 {
            found.push(format!("{made} in 10 runs of a context"));
        }
    }
    found
}
