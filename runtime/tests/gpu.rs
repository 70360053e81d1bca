//! Programs for a GPU: kernels that are kept on disk, and runs where there is a GPU.
//!
//! Each row names what it needs; where that is absent, it is reported as ignored.

#[path = "gpu/convolutions.rs"]
mod convolutions;
#[path = "gpu/engine.rs"]
mod engine;
#[path = "embed/requests.rs"]
#[allow(clippy::unwrap_used)] // Shared with tests of the harness.
mod requests;
#[path = "embed/zoo.rs"]
#[allow(clippy::unwrap_used, dead_code)] // Shared with tests of the harness.
mod zoo;

use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, import};
use graphene_frontend::op::{Binary, Op, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::groups::Family;
use graphene_fusion::kernels::launches;
use graphene_fusion::program::Program;
use graphene_fusion::tuning::{candidates, with_parameters};
use graphene_fusion::{Granularity, plan, plan_in};
use graphene_ir::arch::{Arch, Feature};
use graphene_ir::emit::emit;
use graphene_ir::target::Target;
use graphene_runtime::device::{self, Buffer, Device, Library, Stream, compiler};
use graphene_runtime::gpu::cache::Key;
use graphene_runtime::gpu::{Cache, Executable, In, Io, Kernels, Module, Out, Trial as Tried};
use graphene_runtime::{BoundStep, Error, cpu};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::HashMap;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

type Outcome = Result<(), Failed>;

/// A test: its name, whether it can run here, and what it does.
type Row = (&'static str, bool, fn() -> Outcome);

/// Rows of the input of the program of these tests.
const ROWS: usize = 5;

fn main() {
    let nvrtc = Library::Nvrtc.found();
    let arch = Device::open(0).ok().and_then(|device| device.properties().arch());
    let gpu = nvrtc && arch.is_some();
    let libraries = gpu && Library::CublasLt.found() && Library::Cudnn.found();
    let rows: [Row; 23] = [
        ("compilers_tell_their_build", nvrtc, compilers_tell_their_build),
        ("versions_are_told_of_what_is_found", true, versions_are_told),
        ("kernels_are_compiled_once", nvrtc, kernels_are_compiled_once),
        ("caches_that_take_nothing_do_no_harm", nvrtc, caches_that_take_nothing),
        ("candidates_of_a_search_compile", nvrtc, candidates_compile),
        ("candidates_are_timed_and_compared", gpu, candidates_are_timed),
        ("kept_kernels_run", gpu, kept_kernels_run),
        ("steps_are_seen_and_timed", gpu, steps_are_seen_and_timed),
        ("steps_are_timed_on_their_own_inputs", gpu, steps_are_timed_on_their_own_inputs),
        ("memory_of_callers_is_read_and_written", gpu, memory_of_callers),
        ("steps_on_the_host_run_between_kernels", gpu, steps_on_the_host),
        ("engine::models_agree_with_the_cpu", gpu, engine::models_agree_with_the_cpu),
        ("engine::requests_run_side_by_side", gpu, engine::requests_side_by_side),
        ("engine::weights_are_there_once", gpu, engine::weights_are_there_once),
        ("engine::state_stays", gpu, engine::state_stays),
        ("engine::a_full_gpu_refuses", gpu, engine::a_full_gpu_refuses),
        ("threads_run_and_bind_at_once", gpu, || threads_run_and_bind(Granularity::Fused, 24)),
        ("threads_call_libraries_at_once", libraries, || {
            threads_run_and_bind(Granularity::PerOp, 4)
        }),
        ("convolutions::agree_with_the_cpu", libraries, convolutions::agree_with_the_cpu),
        ("shapes_share_an_arena", gpu, shapes_share_an_arena),
        ("state_stays_on_the_device", gpu, state_stays_on_the_device),
        ("requests_are_checked_and_given_up", gpu, requests_are_given_up),
        ("a_full_gpu_leaves_what_is_bound", gpu, a_full_gpu),
    ];
    let trial = |(name, can, run): Row| Trial::test(name, run).with_ignored_flag(!can);
    libtest_mimic::run(&Arguments::from_args(), rows.map(trial).into()).exit();
}

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("graphene-gpu-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn entries(&self) -> Result<Vec<PathBuf>, Failed> {
        let entries = std::fs::read_dir(&self.0)?.map(|entry| Ok(entry?.path()));
        entries.collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn ensure(holds: bool, what: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(Failed::from(what.into())) }
}

/// `softmax(exp(x)·w)` of rows of 64.
fn graph() -> Result<Graph, Failed> {
    let mut graph = Graph::new();
    let x = graph.add_input("x", "f32[n, 64]".parse().map_err(|_| "a type")?)?;
    let exp = graph.add("exp", Op::Unary(Unary::Exp), &[Some(x)])?.value();
    let elements = (0..64 * 64).map(|i| ((i * 37 % 101) as f32 - 50.0) / 400.0).collect();
    let w = graph.add_constant("w", Tensor::from_vec(vec![64, 64], elements)?);
    let matmul = graph.add("product", Op::MatMul, &[Some(exp), Some(w)])?.value();
    let softmax =
        graph.add("softmax", Op::Softmax { axis: 1, log: false }, &[Some(matmul)])?.value();
    graph.add_output("y", softmax);
    Ok(graph)
}

fn program(target: &Target, granularity: Granularity) -> Result<Program, Failed> {
    Ok(plan(&graph()?, target, granularity, &Bindings::new())?.program)
}

/// The fused program's kernels: those of the library's need its libraries.
fn compile(arch: Arch, cache: Option<&Cache>) -> Result<Kernels, Failed> {
    let target: Target = arch.to_string().parse()?;
    let program = program(&target, Granularity::Fused)?;
    Ok(Kernels::compile(program, &target, arch, cache, &|_, _| {})?)
}

fn versions_are_told() -> Outcome {
    for library in Library::ALL {
        match (library.found(), library.version()) {
            (true, Ok(version)) => {
                let parts = version.split('.').all(|part| part.parse::<u32>().is_ok());
                ensure(parts && version.contains('.'), format!("{library}: {version}"))?;
            }
            (false, Err(Error::MissingLibrary(missing))) if missing == library => {}
            (found, version) => {
                return Err(format!("{library}: found {found}, {version:?}").into());
            }
        }
    }
    Ok(())
}

/// Two builds of one version are two compilers to a cache: its keys hold what NVRTC says of itself.
fn compilers_tell_their_build() -> Outcome {
    let (version, told) = (Library::Nvrtc.version()?, compiler()?);
    let builds = told.contains("Build ID") || told.contains(&format!("V{version}."));
    ensure(told.starts_with(&format!("NVRTC {version}\n")) && builds, told)?;
    let key = |told: &str| Key::with("source", Arch::Sm90a, told);
    ensure(Key::new("source", Arch::Sm90a)? == key(told), "keys hold it")?;
    ensure(key(told) != key(&format!("NVRTC {version}")), "the build counts")
}

fn kernels_are_compiled_once() -> Outcome {
    let folder = Folder::new("once");
    let cache = Cache::new(&folder.0);
    let first = compile(Arch::Sm90a, Some(&cache))?;
    let count = first.len();
    ensure(count >= 3 && first.cached() == 0, format!("{} of {count} known", first.cached()))?;
    let second = compile(Arch::Sm90a, Some(&Cache::new(&folder.0)))?;
    ensure(second.cached() == second.len(), format!("{} of {count} known", second.cached()))?;
    ensure(cache.contents()?.entries == count, "an entry a kernel")?;
    // Without a cache nothing is known; for another architecture nothing is either.
    ensure(compile(Arch::Sm90a, None)?.cached() == 0, "known without a cache")?;
    ensure(compile(Arch::Sm80, Some(&cache))?.cached() == 0, "known for another architecture")?;

    for path in folder.entries()? {
        let mut bytes = std::fs::read(&path)?;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes)?;
    }
    ensure(compile(Arch::Sm90a, Some(&cache))?.cached() == 0, "damaged ones are trusted")?;
    let again = compile(Arch::Sm90a, Some(&cache))?;
    ensure(again.cached() == count, "damaged ones are not replaced")?;
    ensure(cache.warning().is_none(), "there was a warning")
}

fn caches_that_take_nothing() -> Outcome {
    let folder = Folder::new("nothing");
    std::fs::write(&folder.0, "a file")?;
    let cache = Cache::new(folder.0.join("below"));
    let kernels = compile(Arch::Sm90a, Some(&cache));
    std::fs::remove_file(&folder.0)?;
    ensure(kernels?.cached() == 0, "known from nowhere")?;
    ensure(cache.warning().is_some(), "no warning")
}

// ---- What needs a GPU

fn sizes() -> Result<Bindings, Failed> {
    let mut sizes = Bindings::new();
    sizes.bind(Symbol::new("n"), ROWS as i64)?;
    Ok(sizes)
}

fn input() -> Result<Tensor, Failed> {
    let elements = (0..ROWS * 64).map(|i| ((i * 13 % 29) as f32 - 14.0) / 20.0).collect();
    Ok(Tensor::from_vec(vec![ROWS, 64], elements)?)
}

/// What the CPU gives for the input.
fn expected() -> Result<Vec<Tensor>, Failed> {
    let module = cpu::Module::compile(program(&Target::cpu(1), Granularity::PerOp)?)?;
    Ok(module.executable(&sizes()?)?.run(&[input()?])?)
}

fn check(found: &[Tensor], expected: &[Tensor]) -> Outcome {
    for (found, expected) in found.iter().zip(expected) {
        let [found, expected] = [found, expected].map(|tensor| tensor.as_slice::<f32>());
        let (found, expected) = (found?, expected?);
        let errors = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let largest = errors.fold(0_f32, f32::max);
        ensure(found.len() == expected.len() && largest < 1e-5, format!("off by {largest}"))?;
    }
    ensure(found.len() == expected.len(), "another number of outputs")
}

fn module(cache: Option<&Cache>) -> Result<(Module, usize), Failed> {
    module_on(&Device::open(0)?, cache)
}

fn module_on(device: &Device, cache: Option<&Cache>) -> Result<(Module, usize), Failed> {
    let arch = device.properties().arch().ok_or("no kernels for this GPU")?;
    let kernels = compile(arch, cache)?;
    let cached = kernels.cached();
    Ok((Module::load(kernels, device)?, cached))
}

/// A graph's kernels for the GPU that is there.
fn kernels_of(graph: &Graph, granularity: Granularity) -> Result<(Kernels, Device), Failed> {
    let device = Device::open(0)?;
    let arch = device.properties().arch().ok_or("no kernels for this GPU")?;
    let target: Target = arch.to_string().parse()?;
    let program = plan(graph, &target, granularity, &Bindings::new())?.program;
    Ok((Kernels::compile(program, &target, arch, None, &|_, _| {})?, device))
}

fn kept_kernels_run() -> Outcome {
    let folder = Folder::new("run");
    let cache = Cache::new(&folder.0);
    for known in [false, true] {
        let (module, cached) = module(Some(&cache))?;
        ensure((cached > 0) == known, format!("{cached} known"))?;
        check(&module.bind(&sizes()?)?.run(&[input()?])?, &expected()?)?;
    }
    Ok(())
}

fn steps_are_seen_and_timed() -> Outcome {
    let (module, _) = module(None)?;
    let mut executable = module.bind(&sizes()?)?;
    let steps = executable.program().steps().len();
    executable.write(&[input()?])?;
    ensure(executable.time()? > 0.0, "a run takes no time")?;
    let times = executable.time_steps(3, 3)?;
    let timed = times.iter().filter(|&&time| time > 0.0).count();
    ensure((times.len(), timed) == (steps, steps), format!("{times:?}"))?;
    ensure(executable.kernels().all(|kernel| kernel.is_some()), "a step without a kernel")?;
    let mut seen = Vec::new();
    executable.run_inspected(&[input()?], |step, _, _| seen.push(step))?;
    ensure(seen == (0..steps).collect::<Vec<_>>(), format!("{seen:?}"))?;
    executable.launch()?;
    executable.synchronize()?;
    check(&executable.read()?, &expected()?)
}

/// A step that writes over its input does so again in each repetition: those after it are timed on what it makes of the
/// first one nonetheless, and so outputs are right when all have been timed.
fn steps_are_timed_on_their_own_inputs() -> Outcome {
    let mut graph = Graph::new();
    let x = graph.add_input("x", "f32[n, 64]".parse().map_err(|_| "a type")?)?;
    let mut value = x;
    for (name, op) in [("exp", Unary::Exp), ("tanh", Unary::Tanh), ("sqrt", Unary::Sqrt)] {
        value = graph.add(name, Op::Unary(op), &[Some(value)])?.value();
    }
    graph.add_output("y", value);
    let (kernels, device) = kernels_of(&graph, Granularity::PerOp)?;
    let mut executable = Module::load(kernels, &device)?.bind(&sizes()?)?;
    let overwrites = |step: &BoundStep| step.overwritten_by.iter().any(Option::is_some);
    ensure(executable.plan().steps().iter().any(overwrites), "no step writes over its input")?;
    let inputs = [input()?];
    executable.write(&inputs)?;
    executable.time_steps(3, 3)?;
    let y: Vec<f32> = inputs[0].as_slice::<f32>()?.iter().map(|x| x.exp().tanh().sqrt()).collect();
    check(&executable.read()?, &[Tensor::from_vec(vec![ROWS, 64], y)?])
}

/// The graph reads what the caller put into its buffer between two launches, and leaves the output in the caller's.
fn memory_of_callers() -> Outcome {
    let device = Device::open(0)?;
    let (module, _) = module_on(&device, None)?;
    let stream = device.stream()?;
    let bytes = ROWS * 64 * 4;
    let (x, y) = (stream.alloc(bytes)?, stream.alloc(bytes + 16)?);
    let io = Io { inputs: vec![Some(x.clone())], outputs: vec![Some(y.clone())] };
    let mut executable = module.bind_to(&sizes()?, &io)?;
    for inputs in [vec![0; bytes], input()?.bytes().to_vec()] {
        x.write(&inputs)?;
        executable.launch()?;
        executable.synchronize()?;
    }
    let left = y.part(0, bytes)?.download()?;
    let left = Tensor::new(DType::F32, vec![ROWS, 64], left.into())?;
    check(&[left], &expected()?)?;
    let small = Io { outputs: vec![Some(y.part(0, 16)?)], ..Io::default() };
    let error = module.bind_to(&sizes()?, &small).map(drop);
    ensure(matches!(error, Err(Error::At { .. })), format!("{error:?}"))
}

/// Double precision between kernels, and rows of a table of it by indices that a kernel computes: right again and again, an
/// error where an index is beyond the table, and right after that.
fn steps_on_the_host() -> Outcome {
    let mut graph = Graph::new();
    let x = graph.add_input("x", "f32[n]".parse().map_err(|_| "a type")?)?;
    let i = graph.add_input("i", "i64[n]".parse().map_err(|_| "a type")?)?;
    let mut add =
        |name: &str, op, inputs: &[_]| Ok::<_, Failed>(graph.add(name, op, inputs)?.value());
    let cast = |to| Op::Cast { to, saturate: true };
    let exp = add("exp", Op::Unary(Unary::Exp), &[Some(x)])?;
    let wide = add("wide", cast(DType::F64), &[Some(exp)])?;
    let twice = add("twice", Op::Binary(Binary::Add), &[Some(wide); 2])?;
    let narrow = add("narrow", cast(DType::F32), &[Some(twice)])?;
    let y = add("y", Op::Unary(Unary::Neg), &[Some(narrow)])?;
    let even = add("even", Op::Binary(Binary::Add), &[Some(i); 2])?;
    let table = Tensor::from_vec(vec![7, 2], (0..14).map(f64::from).collect())?;
    let table = graph.add_constant("table", table);
    let rows = graph.add("rows", Op::Gather { axis: 0 }, &[Some(table), Some(even)])?.value();
    graph.add_output("y", y);
    graph.add_output("rows", rows);

    let (kernels, device) = kernels_of(&graph, Granularity::Fused)?;
    let on_host: Vec<String> = kernels.on_host().map(|(step, _)| step.to_owned()).collect();
    ensure(on_host.iter().any(|step| step.contains("rows")), format!("{on_host:?}"))?;
    let module = Module::load(kernels, &device)?;
    let mut bindings = Bindings::new();
    bindings.bind(Symbol::new("n"), 3)?;
    let mut executable = module.bind(&bindings)?;
    let mut run = |x: [f32; 3], i: [i64; 3]| -> Result<Result<[Vec<f64>; 2], Error>, Failed> {
        let inputs =
            [Tensor::from_vec(vec![3], x.to_vec())?, Tensor::from_vec(vec![3], i.to_vec())?];
        Ok(match executable.run(&inputs) {
            Ok(outputs) => {
                let y = outputs[0].as_slice::<f32>()?.iter().map(|&y| f64::from(y)).collect();
                Ok([y, outputs[1].as_slice::<f64>()?.to_vec()])
            }
            Err(error) => Err(error),
        })
    };
    for (x, i) in [([0.0, 1.0, -1.0], [0, 1, 3]), ([2.0, 0.5, 3.0], [2, -1, 0])] {
        let right = |found: [Vec<f64>; 2]| -> Outcome {
            for (found, x) in found[0].iter().zip(x) {
                let expected = -2.0 * f64::from(x).exp();
                ensure((found / expected - 1.0).abs() < 1e-5, format!("{found}, not {expected}"))?;
            }
            let rows = i.map(|i: i64| (2 * i).rem_euclid(7) as f64);
            let expected: Vec<f64> =
                rows.iter().flat_map(|row| [2.0 * row, 2.0 * row + 1.0]).collect();
            ensure(found[1] == expected, format!("{:?}, not {expected:?}", found[1]))
        };
        right(run(x, i)??)?;
        let beyond = run(x, [0, 4, 0])?;
        let named = matches!(&beyond, Err(Error::At { error, .. }) if matches!(**error, Error::Index { .. }));
        ensure(named, format!("{beyond:?}"))?;
        right(run(x, i)??)?;
    }
    Ok(())
}

// ---- Requests

/// What threads tell of failures by.
type Told = Result<(), String>;

fn rows(n: usize) -> Result<Bindings, Error> {
    let mut sizes = Bindings::new();
    sizes.bind(Symbol::new("n"), n as i64)?;
    Ok(sizes)
}

/// Elements of so many rows of 64, which are others for each seed.
fn elements(n: usize, seed: usize) -> Vec<u8> {
    let number = |i: usize| (((i * 13 + seed * 7) % 29) as f32 - 14.0) / 20.0;
    (0..n * 64).flat_map(|i| number(i).to_le_bytes()).collect()
}

/// What somebody has who runs requests: a stream, an arena, and shapes that are bound in it.
struct Client {
    module: Module,
    stream: Stream,
    arena: Buffer,
}

impl Client {
    fn new(module: &Module, most: usize) -> Result<Client, Error> {
        let stream = module.device().stream()?;
        let bytes = module.plan(&rows(most)?)?.arena_bytes();
        let arena = stream.alloc(bytes as usize)?;
        Ok(Client { module: module.clone(), stream, arena })
    }

    fn bind(&self, n: usize) -> Result<Executable, Error> {
        self.module.bind_in(&self.stream, &rows(n)?, &self.arena, &Io::default())
    }
}

fn request(executable: &mut Executable, x: &[u8]) -> Result<Vec<u8>, Error> {
    // What is not written is seen.
    let mut y = vec![0xff; x.len()];
    executable.run_into(&[In::Host(x)], &mut [Out::Host(&mut y)])?;
    Ok(y)
}

/// Two threads run two shapes each, over and over, while a third binds ever new ones: all get what one alone gets, to the
/// last bit. Executables are made in one thread and run in another.
fn threads_run_and_bind(granularity: Granularity, shapes: usize) -> Outcome {
    const RUNS: usize = 100;
    let (kernels, device) = kernels_of(&graph()?, granularity)?;
    let module = Module::load(kernels, &device)?;
    let most = 600;
    let alone = Client::new(&module, most)?;
    let sizes = [[5, 130], [64, 301]];
    let seeds = 0..4;
    let mut expected: HashMap<(usize, usize), Vec<u8>> = HashMap::new();
    for n in sizes.into_iter().flatten() {
        let mut executable = alone.bind(n)?;
        for seed in seeds.clone() {
            expected.insert((n, seed), request(&mut executable, &elements(n, seed))?);
        }
        let of_floats = expected[&(n, 0)].as_chunks().0.iter().map(|x| f32::from_le_bytes(*x));
        let sum: f32 = of_floats.sum();
        ensure((sum / n as f32 - 1.0).abs() < 1e-3, format!("rows sum to {}", sum / n as f32))?;
    }
    let expected = &expected;
    let run = |client: Client, mut bound: Vec<(usize, Executable)>| -> Told {
        for round in 0..RUNS {
            for (n, executable) in &mut bound {
                let seed = round % 4;
                let y = request(executable, &elements(*n, seed)).map_err(|e| e.to_string())?;
                if y != expected[&(*n, seed)] {
                    return Err(format!("n={n}, run {round}: others than alone"));
                }
            }
        }
        drop(client);
        Ok(())
    };
    let fresh: Vec<usize> = (0..shapes).map(|i| 7 + 23 * i).collect();
    let bind_new = || -> Result<Vec<(usize, Vec<u8>)>, Error> {
        let client = Client::new(&module, most)?;
        let each = fresh.iter().map(|&n| {
            let y = request(&mut client.bind(n)?, &elements(n, 1))?;
            Ok((n, y))
        });
        each.collect()
    };
    let begun = Instant::now();
    let found = thread::scope(|scope| -> Result<_, Failed> {
        let mut threads = Vec::new();
        for pair in sizes {
            let client = Client::new(&module, most)?;
            let bound = pair.into_iter().map(|n| Ok((n, client.bind(n)?)));
            let bound = bound.collect::<Result<Vec<_>, Error>>()?;
            let run = &run;
            threads.push(scope.spawn(move || run(client, bound)));
        }
        let binding = scope.spawn(bind_new);
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(binding.join().map_err(|_| "the thread that binds panicked")??)
    })?;
    println!("{granularity:?}: {:?} for {RUNS} runs and {shapes} new shapes", begun.elapsed());
    for (n, y) in found {
        let again = request(&mut alone.bind(n)?, &elements(n, 1))?;
        ensure(y == again, format!("n={n}: others than alone"))?;
    }
    Ok(())
}

/// Several shapes have one arena, and what does not fit or is of another stream is refused.
fn shapes_share_an_arena() -> Outcome {
    let (module, _) = module(None)?;
    let client = Client::new(&module, 300)?;
    let mut bound = Vec::new();
    for n in [300, 1, 77] {
        bound.push((n, client.bind(n)?, module.bind(&rows(n)?)?));
    }
    for seed in 0..3 {
        for (n, shared, own) in &mut bound {
            let x = elements(*n, seed);
            let expected = request(own, &x)?;
            ensure(request(shared, &x)? == expected, format!("n={n} is another alone"))?;
        }
    }
    let needed = module.plan(&rows(300)?)?.arena_bytes() as usize;
    if needed > 0 {
        let small = client.arena.part(0, needed - 1)?;
        let error = module.bind_in(&client.stream, &rows(300)?, &small, &Io::default()).err();
        ensure(matches!(error, Some(Error::Mismatch { .. })), format!("{error:?}"))?;
    }
    let other = module.device().stream()?;
    let error = module.bind_in(&other, &rows(1)?, &client.arena, &Io::default()).err();
    ensure(matches!(error, Some(Error::Foreign { .. })), format!("{error:?}"))?;
    let at = |error: &Option<Error>, is: fn(&Error) -> bool| matches!(error, Some(Error::At { error, .. }) if is(error));
    let io = Io { inputs: vec![Some(other.alloc(1 << 10)?)], ..Io::default() };
    let error = module.bind_in(&client.stream, &rows(1)?, &client.arena, &io).err();
    ensure(at(&error, |e| matches!(e, Error::Foreign { .. })), format!("{error:?}"))?;
    // An input in the arena would be written over before it is read.
    let arena = client.stream.alloc(needed + 1024)?;
    let io = Io { inputs: vec![Some(arena.part(0, 256)?)], ..Io::default() };
    let error = module.bind_in(&client.stream, &rows(1)?, &arena, &io).err();
    ensure(at(&error, |e| matches!(e, Error::Unsupported { .. })), format!("{error:?}"))
}

/// `next = s + x`, an element at a time.
fn counter() -> Result<Graph, Failed> {
    let mut graph = Graph::new();
    let ty = || "f32[n, 64]".parse().map_err(|_| "a type");
    let (s, x) = (graph.add_input("s", ty()?)?, graph.add_input("x", ty()?)?);
    let next = graph.add("next", Op::Binary(Binary::Add), &[Some(s), Some(x)])?.value();
    graph.add_output("next", next);
    Ok(graph)
}

/// A state goes from run to run in one buffer, by way of another, and from and to a buffer of another stream.
fn state_stays_on_the_device() -> Outcome {
    let (kernels, device) = kernels_of(&counter()?, Granularity::Fused)?;
    let module = Module::load(kernels, &device)?;
    let (n, bytes) = (ROWS, ROWS * 64 * 4);
    let sizes = rows(n)?;
    let x: Vec<f32> = (0..n * 64).map(|i| (i % 11) as f32).collect();
    let raw: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let times = |found: &[u8], times: f32| {
        let found = found.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let same = found.zip(&x).all(|(found, x)| found == times * x);
        ensure(same, format!("the state is not {times} times the input"))
    };
    // One buffer is the state before and after a run: an element is read where it is written.
    let stream = device.stream()?;
    let state = stream.alloc(bytes)?;
    let io = Io { inputs: vec![Some(state.clone())], outputs: vec![Some(state.clone())] };
    let mut executable = module.bind_to(&sizes, &io)?;
    ensure(executable.stream().is(&stream), "it runs on another stream than its memory's")?;
    state.write(&vec![0; bytes])?;
    for _ in 0..5 {
        executable.run_into(&[In::Kept, In::Host(&raw)], &mut [Out::Kept])?;
    }
    times(&state.download()?, 5.0)?;
    let mut out = vec![0xff; bytes];
    executable.run_into(&[In::Kept, In::Host(&raw)], &mut [Out::Host(&mut out)])?;
    times(&out, 6.0)?;
    // Both inputs in memory of the executable's; the output goes back to where the state came from.
    let mut executable = module.bind(&sizes)?;
    let elsewhere = device.stream()?;
    for home in [executable.stream().clone(), elsewhere] {
        let (state, given) = (home.alloc(bytes)?, home.upload(&raw)?);
        for _ in 0..3 {
            let inputs = [In::Device(&state), In::Device(&given)];
            executable.run_into(&inputs, &mut [Out::Device(&state)])?;
        }
        times(&state.download()?, 3.0)?;
        let kept = executable.output(0).ok_or("an output")?.clone();
        let inputs = [In::Device(&kept), In::Kept];
        executable.run_into(&inputs, &mut [Out::Kept])?;
        times(&kept.download()?, 4.0)?;
    }
    // A matrix product reads elements that it has written over.
    let (kernels, device) = kernels_of(&graph()?, Granularity::PerOp)
        .or_else(|_| kernels_of(&graph()?, Granularity::Fused))?;
    let module = Module::load(kernels, &device)?;
    let one = device.stream()?.alloc(bytes)?;
    let (inner, last) = (one.clone(), one);
    let io = Io { inputs: vec![Some(inner)], outputs: vec![Some(last)] };
    match module.bind_to(&sizes, &io) {
        Err(Error::At { error, .. }) if matches!(*error, Error::Unsupported { .. }) => Ok(()),
        // Where the first step alone reads the input and another writes the output, they may share it.
        Ok(mut executable) => {
            let raw = elements(n, 0);
            let expected = request(&mut module.bind(&sizes)?, &raw)?;
            ensure(request(&mut executable, &raw)? == expected, "one buffer gives another result")
        }
        Err(error) => Err(Failed::from(error.to_string())),
    }
}

/// Requests of another size are refused; one that is given up while the device works does not harm the next.
fn requests_are_given_up() -> Outcome {
    let (module, _) = module(None)?;
    // So much that the device takes longer for a run than the host to launch it.
    let n = 40_000;
    let mut executable = module.bind(&rows(n)?)?;
    let x = elements(n, 2);
    let expected = request(&mut executable, &x)?;
    let mut y = vec![0; x.len()];
    let error = executable.run_into(&[], &mut [Out::Host(&mut y)]).err();
    ensure(
        matches!(error, Some(Error::InputCount { expected: 1, found: 0 })),
        format!("{error:?}"),
    )?;
    let named = |error: &Option<Error>, name: &str| matches!(error, Some(Error::At { place, error }) if place == name && matches!(**error, Error::Mismatch { .. }));
    let error = executable.run_into(&[In::Host(&x[4..])], &mut [Out::Host(&mut y)]).err();
    ensure(named(&error, "x"), format!("{error:?}"))?;
    let error = executable.run_into(&[In::Host(&x)], &mut [Out::Host(&mut y[4..])]).err();
    ensure(named(&error, "y"), format!("{error:?}"))?;
    let mut given_up = 0;
    for round in 0..10 {
        // So that the device is not done before it is asked.
        for _ in 0..500 {
            executable.launch()?;
        }
        let late = Error::Unsupported { what: "a request that is late" };
        let mut asked = 0;
        let mut control = || {
            asked += 1;
            if asked > round { Err(late.clone()) } else { Ok(()) }
        };
        let other = elements(n, round);
        let outputs = &mut [Out::Host(&mut y)];
        let outcome = executable.run_into_while(&[In::Host(&other)], outputs, &mut control);
        given_up += usize::from(outcome == Err(late));
        ensure(request(&mut executable, &x)? == expected, "the next request is another")?;
        executable.run_into_while(&[In::Host(&x)], &mut [Out::Host(&mut y)], &mut || Ok(()))?;
        ensure(y == expected, "a request that is watched is another")?;
    }
    println!("{given_up} of 10 were given up");
    ensure(given_up > 0, "no request was given up")?;
    // It may go while what was given up still runs.
    for _ in 0..500 {
        executable.launch()?;
    }
    let stop = &mut || Err(Error::Unsupported { what: "this" });
    let outcome = executable.run_into_while(&[In::Host(&x)], &mut [Out::Host(&mut y)], stop);
    drop(executable);
    ensure(outcome.is_err(), "the device was done too soon")
}

/// Binding more than the GPU has is an error, which leaves everything else as it was.
fn a_full_gpu() -> Outcome {
    let (module, _) = module(None)?;
    let client = Client::new(&module, 64)?;
    let mut executable = client.bind(64)?;
    let x = elements(64, 3);
    let expected = request(&mut executable, &x)?;
    // More than half of the memory for each of the input and the output.
    let n = module.device().properties().memory / 256 * 2 / 3;
    let error = module.bind(&rows(n)?).err();
    ensure(matches!(error, Some(Error::DeviceMemory { .. })), format!("{error:?}"))?;
    ensure(request(&mut executable, &x)? == expected, "it runs otherwise afterwards")?;
    let mut other = client.bind(33)?;
    let x = elements(33, 3);
    let expected = request(&mut module.bind(&rows(33)?)?, &x)?;
    ensure(request(&mut other, &x)? == expected, "what is bound afterwards is another")
}

/// The zoo's small BERT in half precision for Hopper.
fn fp16_program(target: &Target) -> Result<Program, Failed> {
    let model = graphene_models::build("bert-base-tiny", &graphene_models::Options::default())?;
    let (bytes, (_, weights)) = (model.encode(), model.into_parts());
    let graph = import(bytes, &weights, &ImportOptions::default())?.graph;
    let hints = Bindings::new();
    Ok(plan_in(&graph, target, Granularity::Fused, &hints, Some(DType::F16))?.program)
}

/// The families that are searched, each with the first of its steps.
fn searched(program: &Program) -> impl Iterator<Item = usize> {
    let first = |family| program.steps().iter().position(|step| step.family == family);
    [Family::MatMul, Family::Fmha].into_iter().filter_map(first)
}

/// A sample of what a search tries: emitted as it is there, and compiled for Hopper.
fn candidates_compile() -> Outcome {
    let target: Target = "sm_90a".parse()?;
    let program = fp16_program(&target)?;
    let mut compiled = 0;
    for number in searched(&program) {
        let step = &program.steps()[number];
        let all = candidates(&program, step, &target);
        for parameters in all.iter().step_by((all.len() / 4).max(1)) {
            let step = with_parameters(step, *parameters);
            for launch in launches(&program, &step, &target)? {
                let emitted = emit(&launch.kernel)?;
                let cubin = device::compile(&emitted.source, Arch::Sm90a, &emitted.launch.entry);
                cubin.map_err(|error| format!("{parameters}: {error}"))?;
                compiled += 1;
            }
        }
    }
    ensure(compiled >= 8, format!("{compiled} were compiled"))
}

/// Candidates run on a step's own buffers, and compute what its kernel does.
fn candidates_are_timed() -> Outcome {
    let device = Device::open(0)?;
    let arch = device.properties().arch().ok_or("no architecture")?;
    let target: Target = arch.to_string().parse()?;
    let program = fp16_program(&target)?;
    let kernels = Kernels::compile(program.clone(), &target, arch, None, &|_, _| {})?;
    let mut bindings = Bindings::new();
    bindings.bind(Symbol::new("batch"), 2)?;
    bindings.bind(Symbol::new("sequence"), 64)?;
    let mut executable = Module::load(kernels, &device)?.bind(&bindings)?;
    let ids = |_: &(String, _)| Tensor::from_vec(vec![2, 64], vec![1_i64; 128]);
    let inputs: Vec<Tensor> = program.inputs().iter().map(ids).collect::<Result<_, _>>()?;
    executable.run(&inputs)?;
    for number in searched(&program) {
        let step = &program.steps()[number];
        let all = candidates(&program, step, &target);
        ensure(!all.is_empty() || !arch.has(Feature::Wgmma), format!("none of {}", step.name))?;
        let some = all.iter().step_by((all.len() / 6).max(1));
        let others: Vec<_> = some.map(|&parameters| with_parameters(step, parameters)).collect();
        for tried in executable.trials(number, &others, (&target, arch, None), (3, 3))? {
            let timed = matches!(tried, Tried::Timed(us) if us > 0.0);
            ensure(timed, format!("{}: {tried:?}", step.name))?;
        }
        ensure(executable.time_step(number, 3, 3)? > 0.0, "no time")?;
    }
    Ok(())
}
