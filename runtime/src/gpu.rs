//! The executors on a GPU. Fused: every step is one kernel that a template made. Library: a step is one operation, by a
//! call of NVIDIA's libraries where [`routine`] says so, by a kernel of that operation elsewhere.
//!
//! [`Kernels::compile`] makes the kernels of all steps and all their variants, equal ones once; it needs no GPU, and a
//! [`Cache`] keeps machine code for later runs.
//! [`Module::load`] brings them and the weights to the device. [`Module::bind`] chooses variants, lays out one arena, and
//! records all launches as a CUDA graph; it compiles nothing. [`Executable::run`] replays that graph.
//!
//! A [`Module`] is shared: any thread binds it, [in memory of its own](Module::bind_in) and on a stream of its own, and
//! what is bound runs beside what others bound. [`Executable::run_into`] is a request as a server has it, which allocates
//! nothing and waits once.
//!
//! [`Executable::trials`] times other kernels in place of a step's own.
//!
//! Both are one CUDA graph. A step that neither a template nor a library takes is computed on the host in its place there:
//! [`Kernels::on_host`] names it and says why. What a library refuses only when it is bound has no such way out, but for
//! attention.
//!
//! Indices that are inputs are checked on the host, as on the CPU. A kernel cannot refuse: others, computed on the device
//! or in a caller's own memory, are taken for the first or last row where they lie beyond a table; the host refuses them.

pub mod cache;
mod executable;
mod host;
mod library;
mod measure;
mod request;
mod state;
mod trial;

pub use cache::Cache;
pub use executable::{Executable, Io};
pub use library::{Recurrence, Routine, Rows, routine};
pub use request::{In, Out};
pub use trial::Trial;

use crate::cpu;
use crate::device::{Buffer, Cubin, Device, Kernel, compile, compiler};
use crate::error::{Error, Result};
use crate::indices::{Indices, indices};
use crate::threads;
use crate::weight::elements;
use cache::Key;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::kernels::{Launch, Refusal, StepOperand, first_alike, launches};
use graphene_fusion::program::{self, Program, Step, StepId};
use graphene_fusion::view::Mode;
use graphene_ir::arch::Arch;
use graphene_ir::emit::{Emitted, emit};
use graphene_ir::target::Target;
use host::OnHost;
use library::{Libraries, is_left};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The machine code of a program's kernels. It needs no GPU to be made.
pub struct Kernels {
    program: Arc<Program>,
    /// For each step its variants; for a call of a library none, unless a kernel stands ready beside it.
    steps: Vec<Vec<Made>>,
    /// For each step the call that computes it, if one does.
    routines: Vec<Option<Routine>>,
    /// For each step its code for the CPU, if it falls back to that.
    hosts: Vec<Option<OnHost>>,
    /// What they are compiled to, equal ones once.
    images: Vec<(Emitted, Cubin)>,
    /// How many of these an earlier run had compiled.
    cached: usize,
}

/// A variant of a step: which image, and what it is launched with, which steps that are alike share.
#[derive(Clone)]
struct Made {
    image: usize,
    launch: Arc<Launch>,
}

/// A program whose kernels and weights are on a device, once for all that is bound of it. Cloning shares it, and threads
/// may bind it at once.
#[derive(Clone)]
pub struct Module {
    device: Device,
    program: Arc<Program>,
    steps: Arc<[Vec<Loaded>]>,
    /// For each step its call of a library, if it is one.
    calls: Arc<[Option<library::Loaded>]>,
    /// For each step what the host does where no kernel does.
    hosts: Arc<[Option<host::Loaded>]>,
    libraries: Arc<Libraries>,
    /// For each buffer that is a weight its elements.
    weights: Arc<[Option<Buffer>]>,
    /// Which inputs pick rows of tables.
    indices: Arc<[Indices]>,
}

/// A variant of a step on the device.
struct Loaded {
    kernel: Arc<Kernel>,
    launch: Arc<Launch>,
    /// The weights that the launch has one after the other.
    stacks: Vec<Buffer>,
}

impl Kernels {
    /// Makes the kernels of all steps, of the variants that some sizes take, for the target that the program is planned for, and
    /// compiles them for `arch`, which is that target or newer, several at a time; those in the `cache` are read from it, and the
    /// others put there.
    /// `progress` is told how many of how many are compiled, from any thread.
    ///
    /// # Errors
    /// [`Error::At`] around [`Error::Refused`] for a step that not even the host takes, [`Error::MissingLibrary`] without NVRTC
    /// or a library that a step calls, [`Error::Compile`].
    pub fn compile(
        program: Program,
        target: &Target,
        arch: Arch,
        cache: Option<&Cache>,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        let mut program = program;
        let call = |step: &Step| {
            let Some(routine) = routine(&program, step, target) else { return Ok(None) };
            match routine.library().require() {
                Err(missing) if is_left(step) => Err(missing),
                // The step's kernel computes it at all sizes.
                Err(_) => Ok(None),
                Ok(()) => Ok(Some(routine)),
            }
        };
        let routines: Vec<Option<Routine>> =
            program.steps().iter().map(call).collect::<Result<_>>()?;
        let ids: Vec<StepId> = program.step_ids().collect();
        let ours = ids.into_iter().zip(&routines).filter(|(_, routine)| routine.is_none());
        ours.for_each(|(step, _)| program.without_library(step));
        program.without_unreachable();
        // Which NVRTC it is is asked while sources are made: keys of the cache hold it.
        let asked = || cache.map_or(Ok(""), |_| compiler());
        let (asked, made) = thread::scope(|scope| {
            let asked = scope.spawn(asked);
            let made = cpu::on_threads(|| Self::sources(&program, &routines, target));
            (asked.join(), made)
        });
        asked.unwrap_or_else(|panic| resume_unwind(panic))?;
        let made = made?;
        let mut images: Vec<Emitted> = Vec::new();
        let mut known: HashMap<[String; 2], usize> = HashMap::new();
        let mut steps: Vec<Vec<Made>> = Vec::with_capacity(made.len());
        let mut hosts = Vec::with_capacity(made.len());
        for source in made {
            let (variants, host) = match source {
                Source::Kernels(variants) => (variants, None),
                Source::Shared(step) => {
                    hosts.push(None);
                    steps.push(steps[step.index()].clone());
                    continue;
                }
                Source::Host(host) => (Vec::new(), Some(host)),
                Source::Nothing => (Vec::new(), None),
            };
            hosts.push(host);
            let each = |(launch, emitted): (Launch, Emitted)| {
                // What a source asks of its host may differ, such as the windows of tensor maps.
                let key = [emitted.source.clone(), emitted.launch.to_string()];
                let image = *known.entry(key).or_insert_with(|| {
                    images.push(emitted);
                    images.len() - 1
                });
                Made { image, launch: Arc::new(launch) }
            };
            steps.push(variants.into_iter().map(each).collect());
        }
        let (done, all, cached) = (AtomicUsize::new(0), images.len(), AtomicUsize::new(0));
        progress(0, all);
        let compile = |number: usize| {
            let (cubin, known) = compile_once(&images[number], arch, cache)?;
            cached.fetch_add(usize::from(known), Ordering::Relaxed);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
            Ok(cubin)
        };
        let compiled = cpu::on_threads(|| threads::map(images.len(), compile));
        let compiled: Vec<Cubin> = compiled.into_iter().collect::<Result<_>>()?;
        let images = images.into_iter().zip(compiled).collect();
        Ok(Self {
            program: Arc::new(program),
            steps,
            routines,
            hosts,
            images,
            cached: cached.into_inner(),
        })
    }

    /// What all steps' kernels are compiled from, step by step, and code for the CPU where there are none. Of steps that are alike
    /// the first one's are made.
    fn sources(
        program: &Program,
        routines: &[Option<Routine>],
        target: &Target,
    ) -> Result<Vec<Source>> {
        let is_made = |id: StepId| {
            let (step, routine) = (program.step(id), &routines[id.index()]);
            let called = routine.as_ref().is_some_and(|routine| !routine.has_kernel(step));
            !called && !writes_nothing(step)
        };
        let first = first_alike(program);
        // Where no kernel is made for the first one, those like it are on their own.
        let is_own = |id: &StepId| {
            let first = first[id.index()];
            is_made(*id) && (first == *id || !is_made(first))
        };
        let own: Vec<StepId> = program.step_ids().filter(is_own).collect();
        let made = threads::map(own.len(), |i| match made(program, program.step(own[i]), target) {
            Err(Error::Refused(refusal)) => Ok(Err(refusal)),
            other => other.map(Ok),
        });
        let mut made: BTreeMap<StepId, _> = own.into_iter().zip(made).collect();
        let mut refused: BTreeMap<StepId, Refusal> = BTreeMap::new();
        let source = |id: StepId| {
            let (step, first) = (program.step(id), first[id.index()]);
            if !is_made(id) {
                return Ok(Source::Nothing);
            }
            match made.remove(&id).transpose().map_err(|error: Error| error.at(&step.name))? {
                Some(Ok(variants)) => return Ok(Source::Kernels(variants)),
                Some(Err(refusal)) => {
                    refused.insert(id, refusal);
                }
                None => {}
            }
            let Some(refusal) = refused.get(&id).or_else(|| refused.get(&first)) else {
                return Ok(Source::Shared(first));
            };
            match (OnHost::new(step, refusal), &routines[id.index()]) {
                (Some(host), _) => Ok(Source::Host(host)),
                // Beside a call.
                (None, Some(_)) => Ok(Source::Nothing),
                (None, None) => Err(Error::Refused(refusal.clone()).at(&step.name)),
            }
        };
        program.step_ids().map(source).collect()
    }

    /// The steps that fall back to the CPU, by name, and why.
    pub fn on_host(&self) -> impl Iterator<Item = (&str, &str)> {
        let steps = self.program.steps().iter().zip(&self.hosts).zip(&self.routines);
        // Beside a call the host stands ready, as a kernel would.
        let alone = steps.filter(|(_, routine)| routine.is_none());
        alone.filter_map(|((step, host), _)| Some((&*step.name, &*host.as_ref()?.why)))
    }

    /// How many of them came from the cache.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// How many there are, equal ones counted once.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }
}

/// What a step's kernels are compiled from.
enum Source {
    /// Those of its variants.
    Kernels(Vec<(Launch, Emitted)>),
    /// The same kernels as those of an earlier step.
    Shared(StepId),
    /// No kernel: it is computed on the CPU.
    Host(OnHost),
    /// No kernel: a library computes it, or it writes nothing.
    Nothing,
}

/// Whether no element is written, whatever the sizes: what a model makes of a batch of none.
fn writes_nothing(step: &Step) -> bool {
    let none = |mode: &Mode| mode.size.known() == Some(0);
    step.outputs.iter().all(|output| output.view.modes.iter().any(none))
}

/// The kernels of a step's variants.
fn made(program: &Program, step: &Step, target: &Target) -> Result<Vec<(Launch, Emitted)>> {
    let launches = launches(program, step, target)?;
    let emitted = launches.into_iter().map(|launch| {
        let emitted = emit(&launch.kernel)?;
        Ok((launch, emitted))
    });
    emitted.collect()
}

/// The machine code of a kernel, and whether the cache had it.
fn compile_once(emitted: &Emitted, arch: Arch, cache: Option<&Cache>) -> Result<(Cubin, bool)> {
    let entry = cache.map(|cache| Ok::<_, Error>((cache, Key::new(&emitted.source, arch)?)));
    let entry = entry.transpose()?;
    if let Some(cubin) = entry.and_then(|(cache, key)| cache.get(key, arch)) {
        return Ok((cubin, true));
    }
    let cubin = compile(&emitted.source, arch, &emitted.launch.entry)?;
    if let Some((cache, key)) = entry {
        cache.put(key, &cubin);
    }
    Ok((cubin, false))
}

impl Module {
    /// Loads kernels, and brings weights to the device. The program's own are dropped then: the host keeps those alone
    /// that it computes with.
    ///
    /// # Errors
    /// [`Error::At`] around [`Error::Eval`] for a weight that cannot be made; [`Error::Released`]; [`Error::DeviceMemory`],
    /// [`Error::Device`].
    pub fn load(kernels: Kernels, device: &Device) -> Result<Self> {
        Self::load_shown(kernels, device, |_, _| {})
    }

    /// The same; `progress` is told how many of how many bytes of weights are on the device. Those of a library's layers,
    /// which it has in an order of its own, are not counted.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_shown(
        kernels: Kernels,
        device: &Device,
        progress: impl Fn(u64, u64),
    ) -> Result<Self> {
        let Kernels { program, steps, routines, hosts, images, cached: _ } = kernels;
        // The first step that launches a kernel stands for it in errors.
        let first = |image: usize| {
            let of = |variants: &Vec<Made>| variants.iter().any(|made| made.image == image);
            let step = steps.iter().position(of).and_then(|i| program.steps().get(i));
            step.map_or("a kernel of no step", |step| step.name.as_str())
        };
        let load = |(image, (emitted, cubin)): (usize, &(Emitted, Cubin))| {
            let kernel = device.load(cubin, &emitted.launch);
            kernel.map(Arc::new).map_err(|error| error.at(first(image)))
        };
        let loaded: Vec<Arc<Kernel>> =
            images.iter().enumerate().map(load).collect::<Result<_>>()?;
        // Weights come by a stream of their own. When they are there, all streams read them, and none writes.
        let stream = device.stream()?;
        let tensors = cpu::on_threads(|| {
            threads::map(program.buffers().len(), |number| elements(&program.buffers()[number]))
        });
        let tensors: Vec<_> = tensors.into_iter().collect::<Result<_>>()?;
        let read = read_alone(&program, &steps, &routines);
        let all = to_upload(&program, &steps, &tensors, &read);
        let done = Cell::new(0);
        let upload = |bytes: &[u8]| {
            let buffer = stream.upload(bytes)?.into_read_only()?;
            done.set(done.get() + bytes.len() as u64);
            progress(done.get(), all);
            Ok(buffer)
        };
        let weight = |((tensor, read), of): ((&Option<Tensor>, bool), &program::Buffer)| {
            let tensor = tensor.as_ref().filter(|_| read);
            let uploaded: Result<_> = tensor.map(|tensor| upload(tensor.bytes())).transpose();
            uploaded.map_err(|error| error.wanted_for(format_args!("the weight {:?}", of.name)))
        };
        let weights: Vec<_> =
            tensors.iter().zip(read).zip(program.buffers()).map(weight).collect::<Result<_>>()?;
        let mut loaded_steps = Vec::with_capacity(steps.len());
        for (variants, step) in steps.into_iter().zip(program.steps()) {
            let variant = |made: Made| {
                let stacks = made.launch.stacks.iter();
                let stacks = stacks.map(|parts| {
                    let stacked: Result<_> = upload(&stack(parts, step, &tensors)?);
                    stacked.map_err(|error| error.wanted_for("weights one after the other"))
                });
                Ok(Loaded {
                    kernel: Arc::clone(&loaded[made.image]),
                    stacks: stacks.collect::<Result<_>>()?,
                    launch: made.launch,
                })
            };
            let variants = variants.into_iter().map(variant);
            let variants = variants.collect::<Result<_>>().map_err(|error| error.at(&step.name))?;
            loaded_steps.push(variants);
        }
        let libraries = Libraries::open(device, routines.iter().flatten())?;
        let mut calls = Vec::with_capacity(routines.len());
        for (routine, step) in routines.into_iter().zip(program.steps()) {
            let call = routine.map(|routine| libraries.load(&stream, routine, step, &tensors));
            calls.push(call.transpose().map_err(|error| error.at(&step.name))?);
        }
        let hosts = hosts.into_iter().zip(program.steps());
        let hosts = hosts.map(|(host, step)| Some(host?.load(step, &tensors))).collect();
        // What the device has, the host need not keep.
        drop(tensors);
        let mut program = Arc::unwrap_or_clone(program);
        program.release_weights();
        let program = Arc::new(program);
        let (device, steps) = (device.clone(), loaded_steps.into());
        let (calls, libraries) = (calls.into(), Arc::new(libraries));
        let (weights, indices) = (weights.into(), indices(&program).into());
        Ok(Self { device, steps, calls, hosts, libraries, weights, indices, program })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The GPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many of cuBLASLt's matmuls and cuDNN's convolutions, by shape, were timed to be bound: a known shape times none.
    pub fn timed(&self) -> usize {
        self.libraries.timed()
    }

    /// Bytes of all weights on the device.
    pub fn weight_bytes(&self) -> u64 {
        let stacks = self.steps.iter().flatten().flat_map(|variant| &variant.stacks);
        let all = self.weights.iter().flatten().chain(stacks);
        all.map(|buffer| buffer.len() as u64).sum()
    }
}

/// For each buffer whether a launch or a call reads it where it lies: weights that are read only as parts of stacks need
/// not be on the device a second time.
fn read_alone(program: &Program, steps: &[Vec<Made>], routines: &[Option<Routine>]) -> Vec<bool> {
    let mut read = vec![false; program.buffers().len()];
    for ((step, variants), routine) in program.steps().iter().zip(steps).zip(routines) {
        let pointers = variants.iter().flat_map(|made| &made.launch.pointers);
        let inputs = pointers.filter_map(|pointer| match pointer.operand {
            StepOperand::Input(number) => Some(number),
            StepOperand::Output(_) | StepOperand::Stack(_) | StepOperand::Scratch(_) => None,
        });
        let all = if routine.is_some() { step.inputs.len() } else { 0 };
        inputs.chain(0..all).for_each(|number| read[step.inputs[number].buffer.index()] = true);
    }
    read
}

/// Bytes of the weights that are brought to the device.
fn to_upload(
    program: &Program,
    steps: &[Vec<Made>],
    tensors: &[Option<Tensor>],
    read: &[bool],
) -> u64 {
    let bytes = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, |t| t.bytes().len() as u64);
    let alone =
        tensors.iter().zip(read).filter(|(_, read)| **read).map(|(tensor, _)| bytes(tensor));
    let stacked = program.steps().iter().zip(steps).flat_map(|(step, variants)| {
        let parts = variants.iter().flat_map(|made| made.launch.stacks.iter().flatten());
        parts.map(|part| match part {
            StepOperand::Input(number) => bytes(&tensors[step.inputs[*number].buffer.index()]),
            StepOperand::Output(_) | StepOperand::Stack(_) | StepOperand::Scratch(_) => 0,
        })
    });
    alone.chain(stacked).sum()
}

/// Weights one after the other.
fn stack(parts: &[StepOperand], step: &Step, tensors: &[Option<Tensor>]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for part in parts {
        let tensor = match part {
            StepOperand::Input(number) => &tensors[step.inputs[*number].buffer.index()],
            StepOperand::Output(_) | StepOperand::Stack(_) | StepOperand::Scratch(_) => &None,
        };
        let tensor = tensor.as_ref().ok_or(Error::Unsupported { what: "a stack of values" })?;
        bytes.extend_from_slice(tensor.bytes());
    }
    Ok(bytes)
}

/// What threads share, and what goes from one to another, says so here: a field that cannot be shared fails to compile.
const _: () = {
    const fn shared<T: Send + Sync + Clone>() {}
    const fn sent<T: Send>() {}
    shared::<Module>();
    sent::<Executable>();
    sent::<Kernels>();
};

#[cfg(test)]
mod tests {
    use super::{Kernels, Source};
    use graphene_frontend::dim::{Bindings, Dim};
    use graphene_frontend::dtype::DType;
    use graphene_frontend::graph::{Graph, ValueId};
    use graphene_frontend::op::{Binary, Op};
    use graphene_frontend::types::TensorType;
    use graphene_fusion::{Granularity, plan};

    /// Double precision has no kernel, so it falls back to the CPU; an empty operation finds nothing.
    #[test]
    fn steps_without_kernels_are_for_the_host() {
        let made = |size: i64| {
            let mut graph = Graph::new();
            let ty = TensorType::new(DType::F64, vec![Dim::from(size)]);
            let x = graph.add_input("x", ty).expect("a type");
            let sum = graph.add("sum", Op::Binary(Binary::Add), &[Some(x); 2]).expect("a sum");
            graph.add_output("y", sum.value());
            let target = "sm_90a".parse().expect("a target");
            let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new());
            let program = planned.expect("it is planned").program;
            let routines: Vec<_> = program.steps().iter().map(|_| None).collect();
            let steps = Kernels::sources(&program, &routines, &target).expect("the host takes it");
            match &steps[..] {
                [Source::Host(host)] => Some(host.why.clone()),
                [Source::Nothing] => None,
                _ => panic!("one step without a kernel"),
            }
        };
        assert_eq!(made(0), None);
        assert_eq!(made(3).as_deref(), Some("no template computes with f64"));
    }

    /// Steps that are alike share their kernels; of those that fall back to the CPU each has code of its own.
    #[test]
    fn steps_that_are_alike_share_kernels() {
        let made = |dtype: DType| {
            let mut graph = Graph::new();
            let ty = TensorType::new(dtype, vec![Dim::from(3)]);
            let [x, y] = ["x", "y"].map(|name| graph.add_input(name, ty.clone()).expect("a type"));
            let mut sum = |name: &str, inputs: [ValueId; 2]| {
                let sum = graph.add(name, Op::Binary(Binary::Add), &inputs.map(Some));
                sum.expect("a sum").value()
            };
            let first = sum("first", [x, y]);
            let second = sum("second", [first, y]);
            graph.add_output("z", second);
            let target = "sm_90a".parse().expect("a target");
            let planned = plan(&graph, &target, Granularity::PerOp, &Bindings::new());
            let program = planned.expect("it is planned").program;
            Kernels::sources(&program, &[None, None], &target).expect("there are sources")
        };
        let sources = made(DType::F32);
        let [Source::Kernels(kernels), Source::Shared(first)] = &sources[..] else {
            panic!("kernels of the first step, which the second shares")
        };
        assert_eq!((kernels.len(), first.index()), (1, 0));
        assert!(matches!(made(DType::F64)[..], [Source::Host(_), Source::Host(_)]));
    }
}
