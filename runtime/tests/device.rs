//! The device layer: what NVRTC compiles, what its log says, and launches where there is a GPU.
//!
//! Each row names what it needs; where that is absent, it is reported as ignored.

use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::{Granularity, plan};
use graphene_ir::arch::{Arch, Feature};
use graphene_ir::index::{Expr, Var};
use graphene_ir::launch::{Condition, Launch, Param, TensorMap};
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::cublaslt::{BoundGemm, PackedGemm};
use graphene_runtime::device::dlpack::{self, DLManagedTensor, DLManagedTensorVersioned};
use graphene_runtime::device::{Cubin, Device, Kernel, Library, Stream, compile, compiles_for};
use graphene_runtime::gpu::Kernels;
use half::{bf16, f16};
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

type Outcome = Result<(), Failed>;

/// A test: its name, whether it can run here, and what it does.
type Row = (&'static str, bool, fn() -> Outcome);

/// Set for a process of this binary that only says whether NVRTC is found.
const PROBE: &str = "GRAPHENE_DEVICE_TEST_PROBE";

/// Set for a process of this binary that loses its GPU by a kernel's fault, and says how it is told.
const LOSE: &str = "GRAPHENE_DEVICE_TEST_LOSE";

/// A block adds 256 elements of `x` to `y`.
const ADD: &str = r#"
extern "C" __global__ void add(float* y, const float* x, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] += x[i];
}"#;

/// `y = 2*y + a`, which begins before its predecessor is done, and waits for it.
const DOUBLE: &str = r#"
extern "C" __global__ void twice(float* y, int n, int a) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = 2.0f * y[i] + a;
}"#;

/// The same without a word of its neighbours, for any GPU.
const PLAIN: &str = r#"
extern "C" __global__ void twice(float* y, int n, int a) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = 2.0f * y[i] + a;
}"#;

/// `y = 2*y + a`, some ten milliseconds later.
const LATE: &str = r#"
extern "C" __global__ void late(float* y, int n, int a) {
  long long from = clock64();
  while (clock64() - from < 20000000) {}
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = 2.0f * y[i] + a;
}"#;

/// Writes where nobody's memory is.
const FAULT: &str = r#"
extern "C" __global__ void fault(float* y, int n) {
  y[(1ll << 44) + n] = 1.0f;
}"#;

/// A block copies a tile of 8 rows of 32 floats, as it lies in shared memory.
const COPY: &str = r#"
struct alignas(64) TensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void copy(const __grid_constant__ TensorMap x, float* tiles) {
  __shared__ alignas(1024) float tile[256];
  __shared__ alignas(8) unsigned long long full;
  unsigned to = __cvta_generic_to_shared(tile), bar = __cvta_generic_to_shared(&full);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(&x), "r"(blockIdx.x % 2 * 32), "r"(blockIdx.x / 2 * 8), "r"(bar)
                 : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
                 " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar) : "memory");
  for (int i = threadIdx.x; i < 256; i += blockDim.x) tiles[blockIdx.x * 256 + i] = tile[i];
}"#;

/// A block says how many blocks its cluster has, which of them it is, and what the last word of 100 KiB keeps.
const CLUSTER: &str = r#"
extern "C" __global__ void cluster(int* said) {
  extern __shared__ int words[];
  unsigned count, rank;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  words[100 * 256 - 1] = blockIdx.x;
  said[blockIdx.x * 3] = count;
  said[blockIdx.x * 3 + 1] = rank;
  said[blockIdx.x * 3 + 2] = words[100 * 256 - 1];
}"#;

/// Matmuls with an addition between them: registers of a matmul in flight are touched.
const SERIAL: &str = r#"
extern "C" __global__ void __launch_bounds__(128) serial(float* y, long long a, long long b, int n) {
  float d[4] = {0, 0, 0, 0};
  asm volatile("wgmma.fence.sync.aligned;");
  for (int i = 0; i < n; i++) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
    d[0] += 1.0f;
  }
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}"#;

fn main() {
    if std::env::var_os(PROBE).is_some() {
        match compile(ADD, Arch::Sm80, "add.cu") {
            Ok(_) => println!("found"),
            Err(error) => println!("{error}"),
        }
        return;
    }
    if std::env::var_os(LOSE).is_some() {
        return println!(
            "{}",
            lose().unwrap_or_else(|error| error.message().unwrap_or_default().to_owned())
        );
    }
    let arguments = Arguments::from_args();
    libtest_mimic::run(&arguments, trials()).exit();
}

fn trials() -> Vec<Trial> {
    let nvrtc = Library::Nvrtc.found();
    let opened = Device::open(0);
    let absent = matches!(opened, Err(Error::MissingLibrary(_) | Error::NoDevice { .. }));
    let gpu = nvrtc && !absent;
    let arch = opened.ok().and_then(|device| device.properties().arch());
    let hopper = gpu && arch.is_some_and(|arch| arch.has(Feature::Tma));
    let lt = Library::CublasLt.found();
    let lost = probe().trim() != "found";
    let dnn = Library::Cudnn.found();
    let rows: [Row; 23] = [
        ("spills_are_read_from_the_log", nvrtc, spills_are_read),
        ("serialized_matmuls_are_read_from_the_log", nvrtc, serialized_matmuls_are_read),
        ("ignored_budgets_are_read_from_the_log", nvrtc, ignored_budgets_are_read),
        ("an_error_carries_the_log", nvrtc, an_error_carries_the_log),
        ("kernels_of_these_tests_compile", nvrtc, kernels_compile),
        ("without_nvrtc_there_is_an_error", lost, without_nvrtc),
        ("without_a_driver_there_is_an_error", !Library::Driver.found(), without_a_driver),
        ("without_cublaslt_there_is_an_error", gpu && !lt, without_cublaslt),
        ("programs_ask_for_cublaslt_before_they_compile", !lt, programs_ask_for_cublaslt),
        ("programs_ask_for_cudnn_before_they_compile", !dnn, programs_ask_for_cudnn),
        ("buffers_keep_their_bytes", !absent, buffers_keep_their_bytes),
        ("a_kernel_adds", gpu, a_kernel_adds),
        ("streams_wait_for_each_other", gpu, streams_wait_for_each_other),
        ("memory_is_freed_behind_its_work", gpu, memory_is_freed_behind_its_work),
        ("a_recording_has_its_own_launches_only", gpu, recordings_are_private),
        ("threads_record_beside_each_other", gpu, threads_record_beside_each_other),
        ("too_much_memory_is_refused", !absent, too_much_memory_is_refused),
        ("tensors_are_lent_and_taken_back", !absent, tensors_are_lent),
        ("a_lost_device_is_told", gpu, a_lost_device_is_told),
        ("a_graph_replays_in_order", hopper, a_graph_replays),
        ("a_tensor_map_copies_tiles", hopper, a_tensor_map_copies),
        ("clusters_have_their_size", hopper, clusters_have_their_size),
        ("cublaslt_multiplies", !absent && lt, cublaslt_multiplies),
    ];
    let compiled = Arch::ALL.map(|(arch, name)| {
        let can = nvrtc && compiles_for(arch).unwrap_or(true);
        let run = move || compiles(arch);
        Trial::test(format!("compiles_for_{name}"), run).with_ignored_flag(!can)
    });
    let rows = rows.map(|(name, can, run)| Trial::test(name, run).with_ignored_flag(!can));
    compiled.into_iter().chain(rows).collect()
}

/// What a process says that does not know where NVRTC is, unless it is where the system keeps libraries.
fn probe() -> String {
    let binary = std::env::current_exe().expect("a running test is a file");
    let output = Command::new(binary).env_remove("LD_LIBRARY_PATH").env(PROBE, "1").output();
    String::from_utf8(output.expect("the test runs again").stdout).expect("it prints text")
}

fn ensure(holds: bool, what: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(Failed::from(what.into())) }
}

// ---- What needs NVRTC

fn compiles(arch: Arch) -> Outcome {
    let cubin = compile(ADD, arch, "add.cu")?;
    let log = cubin.log();
    ensure(cubin.image().starts_with(b"\x7fELF"), "no ELF image")?;
    let clean = log.registers > 0 && log.spill_stores + log.spill_loads + log.stack == 0;
    ensure(clean && !log.serialized_wgmma && !log.setmaxnreg_ignored, log.text.as_str())
}

fn kernels_compile() -> Outcome {
    for source in [DOUBLE, PLAIN, LATE, FAULT, COPY, CLUSTER] {
        let log = compile(source, Arch::Sm90a, "kernel.cu")?.log().clone();
        ensure(log.registers > 0, log.text)?;
    }
    Ok(())
}

fn spills_are_read() -> Outcome {
    let source = r#"
extern "C" __global__ void __launch_bounds__(1024, 2) k(float* y, const float* x) {
  float a[64];
  #pragma unroll
  for (int i = 0; i < 64; i++) a[i] = x[i * 1024 + threadIdx.x];
  #pragma unroll 1
  for (int r = 0; r < 8; r++) {
    #pragma unroll
    for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i * 7 + 3) % 64] + a[(i + 11) % 64];
  }
  #pragma unroll
  for (int i = 0; i < 64; i++) y[i * 1024 + threadIdx.x] = a[i];
}"#;
    let log = compile(source, Arch::Sm80, "spill.cu")?.log().clone();
    // 65536 registers of a multiprocessor, for 2048 threads.
    ensure(log.registers == 32, format!("{} registers", log.registers))?;
    ensure(log.spill_stores > 0 && log.spill_loads > 0 && log.stack > 0, log.text)
}

fn serialized_matmuls_are_read() -> Outcome {
    let log = compile(SERIAL, Arch::Sm90a, "serial.cu")?.log().clone();
    ensure(log.serialized_wgmma && !log.setmaxnreg_ignored, log.text)
}

fn ignored_budgets_are_read() -> Outcome {
    // Without launch bounds, ptxas does not know how many registers a thread begins with.
    for (bounds, ignored) in [("", true), ("__launch_bounds__(384, 1)", false)] {
        let source = format!(
            "extern \"C\" __global__ void {bounds} k(int* y) {{ \
             asm volatile(\"setmaxnreg.dec.sync.aligned.u32 40;\"); y[threadIdx.x] = 1; }}"
        );
        let log = compile(&source, Arch::Sm90a, "budget.cu")?.log().clone();
        ensure(log.setmaxnreg_ignored == ignored && !log.serialized_wgmma, log.text)?;
    }
    Ok(())
}

fn an_error_carries_the_log() -> Outcome {
    let source = "extern \"C\" __global__ void k(float* y) { y[0] = missing; }";
    match compile(source, Arch::Sm80, "broken.cu") {
        Err(Error::Compile { name, arch: Arch::Sm80, log }) if name == "broken.cu" => {
            ensure(log.contains("broken.cu(1)") && log.contains("\"missing\" is undefined"), log)
        }
        other => Err(Failed::from(format!("{other:?}"))),
    }
}

// ---- What needs a library to be absent

fn without_nvrtc() -> Outcome {
    let said = probe();
    let told = said.starts_with("not found") && said.contains("nvidia-cuda-nvrtc-cu12");
    ensure(told, said)
}

fn without_a_driver() -> Outcome {
    match Device::open(0).err() {
        Some(error @ Error::MissingLibrary(Library::Driver)) => {
            ensure(error.to_string().contains("NVIDIA's driver"), error.to_string())
        }
        other => Err(Failed::from(format!("{other:?}"))),
    }
}

fn without_cublaslt() -> Outcome {
    let stream = Device::open(0)?.stream()?;
    let buffer = stream.alloc(1 << 10)?;
    let matmul = matmul(Scalar::F16, false, false, [16, 16, 16]);
    match BoundGemm::tune(&stream, matmul, [&buffer; 3]).err() {
        Some(Error::MissingLibrary(Library::CublasLt)) => Ok(()),
        other => Err(Failed::from(format!("{other:?}"))),
    }
}

/// What compiling a program says where every operation is a launch, before a kernel is made.
fn compiled(text: &str) -> Result<(), Error> {
    let graph = graphene_frontend::text::parse(text, &[]).expect("the text is right");
    let (target, none) = ("sm_90a".parse()?, Bindings::new());
    let program = plan(&graph, &target, Granularity::PerOp, &none)?.program;
    let progress = |_, _| panic!("kernels are made");
    Kernels::compile(program, &target, Arch::Sm90a, None, &progress).map(drop)
}

fn programs_ask_for_cublaslt() -> Outcome {
    let matmul = r#"
        symbols b
        %0 = Input : f16[b, 8] "x"
        %1 = Input : f16[8, 16] "w"
        %2 = MatMul(%0, %1) : f16[b, 16] "y"
        return "y" = %2
    "#;
    match compiled(matmul) {
        Err(error @ Error::MissingLibrary(Library::CublasLt)) => {
            ensure(error.to_string().contains("libcublasLt.so"), error.to_string())
        }
        other => Err(Failed::from(format!("{other:?}"))),
    }
}

fn programs_ask_for_cudnn() -> Outcome {
    let softmax = r#"
        symbols b
        %0 = Input : f32[b, 8] "x"
        %1 = Softmax(%0) {axis: 1} : f32[b, 8] "y"
        return "y" = %1
    "#;
    match compiled(softmax) {
        Err(error @ Error::MissingLibrary(Library::Cudnn)) => {
            ensure(error.to_string().contains("libcudnn.so"), error.to_string())
        }
        other => Err(Failed::from(format!("{other:?}"))),
    }
}

// ---- What needs a GPU

/// A kernel of 256 threads a block on `n` elements of each float tensor, the first of them written.
fn pointwise(entry: &str, arch: Arch, tensors: &[&str], more: &[&str]) -> Launch {
    let n = Var::new("n", Some(1 << 24));
    let pointer = |(index, name): (usize, &&str)| Param::Pointer {
        tensor: (*name).to_owned(),
        scalar: Scalar::F32,
        len: Expr::from(&n),
        written: index == 0,
    };
    let symbols: Vec<Var> =
        [n.clone()].into_iter().chain(more.iter().map(|name| Var::new(name, None))).collect();
    let pointers = tensors.iter().enumerate().map(pointer);
    Launch {
        entry: entry.to_owned(),
        arch,
        params: pointers.chain(symbols.iter().cloned().map(Param::Symbol)).collect(),
        symbols,
        grid: (Expr::from(&n) + 255).div(256),
        cluster: 1,
        block: 256,
        shared_bytes: 0,
        dependent: false,
        cooperative: false,
        conditions: vec![Condition::Aligned(tensors[0].to_owned(), 16)],
    }
}

fn bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
}

fn compile_for(stream: &Stream, source: &str) -> Result<(Arch, Cubin), Failed> {
    let arch = stream.device().properties().arch().ok_or("a GPU of no known architecture")?;
    Ok((arch, compile(source, arch, "kernel.cu")?))
}

fn buffers_keep_their_bytes() -> Outcome {
    let stream = Device::open(0)?.stream()?;
    println!("{:?}", stream.device().properties());
    let content: Vec<u8> = (0..100_003_u32).map(|i| (i % 251) as u8).collect();
    let buffer = stream.upload(&content)?;
    ensure(buffer.download()? == content, "bytes differ")?;
    buffer.write(&[7; 3])?;
    let after = buffer.download()?;
    ensure(after[..3] == [7; 3] && after[3..] == content[3..], "bytes differ after writing some")?;
    ensure(stream.alloc(1000)?.download()? == [0; 1000], "new memory is not zero")?;
    ensure(stream.alloc(0)?.download()?.is_empty(), "an empty buffer is not empty")?;
    ensure(matches!(buffer.write(&[0; 100_004]), Err(Error::Mismatch { .. })), "wrote too much")?;
    let last = Device::open(1 << 20).err();
    ensure(matches!(last, Some(Error::NoDevice { .. })), format!("{last:?}"))
}

fn a_kernel_adds() -> Outcome {
    let stream = Device::open(0)?.stream()?;
    let (arch, cubin) = compile_for(&stream, ADD)?;
    let launch = pointwise("add", arch, &["y", "x"], &[]);
    let kernel = stream.device().load(&cubin, &launch)?;
    let n = 100_001;
    let y = stream.upload(&bytes((0..n).map(|i| i as f32)))?;
    let x = stream.upload(&bytes((0..n).map(|i| 0.5 * i as f32)))?;
    let bound = kernel.bind(&stream, &[("x", &x), ("y", &y)], &[("n", n as i64)])?;
    bound.launch()?;
    let expected: Vec<f32> = (0..n).map(|i| 1.5 * i as f32).collect();
    ensure(floats(&y.download()?) == expected, "the sum is wrong")?;
    let more = kernel.bind(&stream, &[("x", &x), ("y", &y)], &[("n", n as i64 + 1)]).err();
    ensure(matches!(more, Some(Error::Short { .. })), format!("{more:?}"))?;
    let other = Device::open(0)?.stream()?.upload(&bytes([1.0]))?;
    let foreign = kernel.bind(&stream, &[("x", &other), ("y", &y)], &[("n", 1)]).err();
    ensure(matches!(foreign, Some(Error::Foreign { .. })), format!("{foreign:?}"))?;
    let wrong = stream.device().load(&cubin, &pointwise("add", arch, &["y"], &[])).err();
    ensure(matches!(wrong, Some(Error::Parameters { .. })), format!("{wrong:?}"))?;
    let unknown = stream.device().load(&cubin, &pointwise("sub", arch, &["y", "x"], &[])).err();
    ensure(matches!(unknown, Some(Error::Device { .. })), format!("{unknown:?}"))
}

fn a_graph_replays() -> Outcome {
    let stream = Device::open(0)?.stream()?;
    let (arch, cubin) = compile_for(&stream, DOUBLE)?;
    for dependent in [false, true] {
        let launch = Launch { dependent, ..pointwise("twice", arch, &["y"], &["a"]) };
        let kernel = stream.device().load(&cubin, &launch)?;
        let n = 1 << 20;
        let y = stream.upload(&bytes((0..n).map(|i| (i % 7) as f32)))?;
        let steps = [1, 2, 3].map(|a| kernel.bind(&stream, &[("y", &y)], &[("n", n), ("a", a)]));
        let steps = steps.into_iter().collect::<Result<Vec<_>, _>>()?;
        let failing = stream.capture(|| Err(Error::Unsupported { what: "this" })).err();
        ensure(failing == Some(Error::Unsupported { what: "this" }), format!("{failing:?}"))?;
        let graph = stream.capture(|| steps.iter().try_for_each(|step| step.launch()))?;
        let still: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
        ensure(floats(&y.download()?) == still, "capturing ran the kernels")?;
        let time = stream.time(|| (0..3).try_for_each(|_| graph.launch()))?;
        println!("dependent {dependent}: {time:.1} µs for three replays of three launches");
        ensure(time > 0.0 && time < 1e6, format!("{time} µs"))?;
        let run = |y: f32| [1.0, 2.0, 3.0].iter().cycle().take(9).fold(y, |y, a| 2.0 * y + a);
        let expected: Vec<f32> = still.into_iter().map(run).collect();
        ensure(floats(&y.download()?) == expected, "the replays give something else")?;
    }
    Ok(())
}

fn a_tensor_map_copies() -> Outcome {
    let stream = Device::open(0)?.stream()?;
    let (arch, cubin) = compile_for(&stream, COPY)?;
    // 12 rows of 40 floats, 48 apart, in 2×2 tiles of 8×32.
    let value = |row: usize, column: usize| (row * 100 + column) as f32;
    let x = (0..12).flat_map(|row| (0..48).map(move |column| value(row, column)));
    let x = stream.upload(&bytes(x))?;
    for swizzle in [0, 128] {
        let map = TensorMap {
            tensor: "x".to_owned(),
            scalar: Scalar::F32,
            sizes: vec![40.into(), 12.into()],
            strides: vec![192.into()],
            window: vec![32, 8],
            swizzle,
        };
        let mut launch = pointwise("copy", arch, &["tiles"], &[]);
        launch.params = vec![Param::TensorMap(map), launch.params.remove(0)];
        let kernel = stream.device().load(&cubin, &launch)?;
        let tiles = stream.alloc(4 * 256 * 4)?;
        kernel.bind(&stream, &[("x", &x), ("tiles", &tiles)], &[("n", 1024)])?.launch()?;
        let tiles = floats(&tiles.download()?);
        for (tile, row, column) in
            (0..4).flat_map(|t| (0..8).flat_map(move |r| (0..32).map(move |c| (t, r, c))))
        {
            // The swizzle of 128 bytes: the row's number is added, bit by bit, to that of the 16 bytes.
            let chunk = if swizzle == 128 { (column / 4) ^ row } else { column / 4 };
            let found = tiles[tile * 256 + row * 32 + chunk * 4 + column % 4];
            let (i, j) = (tile / 2 * 8 + row, tile % 2 * 32 + column);
            let expected = if i < 12 && j < 40 { value(i, j) } else { 0.0 };
            ensure(found == expected, format!("swizzle {swizzle}, ({i},{j}): {found}"))?;
        }
    }
    Ok(())
}

fn clusters_have_their_size() -> Outcome {
    let stream = Device::open(0)?.stream()?;
    let (arch, cubin) = compile_for(&stream, CLUSTER)?;
    for size in [1_u32, 2, 16] {
        let mut launch = pointwise("cluster", arch, &["said"], &[]);
        launch.params.truncate(1);
        launch.grid = 32.into();
        launch.cluster = size;
        launch.shared_bytes = 100 << 10;
        let kernel = stream.device().load(&cubin, &launch)?;
        let said = stream.alloc(32 * 3 * 4)?;
        kernel.bind(&stream, &[("said", &said)], &[("n", 96)])?.launch()?;
        let said = said.download()?;
        let words: Vec<u32> =
            said.as_chunks().0.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect();
        let expected: Vec<u32> = (0..32).flat_map(|block| [size, block % size, block]).collect();
        ensure(words == expected, format!("clusters of {size}: {words:?}"))?;
    }
    Ok(())
}

/// A kernel on `y` alone, with a number beside it.
fn with_number(stream: &Stream, source: &str, entry: &str) -> Result<Kernel, Failed> {
    let (arch, cubin) = compile_for(stream, source)?;
    Ok(stream.device().load(&cubin, &pointwise(entry, arch, &["y"], &["a"]))?)
}

/// Work on one stream sees what another left, where it waits for that; without, it is refused.
fn streams_wait_for_each_other() -> Outcome {
    let device = Device::open(0)?;
    let (first, second) = (device.stream()?, device.stream()?);
    ensure(device.is(&Device::open(0)?), "a GPU that is opened twice is two")?;
    let n = 1000;
    let late = with_number(&first, LATE, "late")?;
    let (arch, cubin) = compile_for(&first, ADD)?;
    let add = device.load(&cubin, &pointwise("add", arch, &["y", "x"], &[]))?;
    let y = first.upload(&bytes((0..n).map(|i| i as f32)))?;
    let x = second.upload(&bytes((0..n).map(|_| 0.5)))?;
    let foreign = add.bind(&second, &[("y", &y), ("x", &x)], &[("n", n)]).err();
    ensure(matches!(foreign, Some(Error::Foreign { .. })), format!("{foreign:?}"))?;
    let slow = late.bind(&first, &[("y", &y)], &[("n", n), ("a", 3)])?;
    slow.launch()?;
    let there = second.adopt(&y)?;
    add.bind(&second, &[("y", &there), ("x", &x)], &[("n", n)])?.launch()?;
    // The first stream goes on behind the second one, and the last handle goes before its work is done.
    let back = first.adopt(&there)?;
    slow.launch()?;
    drop((y, there));
    let expected: Vec<f32> = (0..n).map(|i| 2.0 * (2.0 * i as f32 + 3.0 + 0.5) + 3.0).collect();
    ensure(floats(&back.download()?) == expected, "one stream did not wait for the other")?;
    // Work of one stream does not hold up that of another.
    slow.launch()?;
    let begun = Instant::now();
    ensure(floats(&x.download()?) == vec![0.5; n as usize], "bytes differ")?;
    let waited = begun.elapsed();
    ensure(!first.is_done()?, format!("reading beside it took {waited:?}"))?;
    Ok(first.synchronize()?)
}

/// Buffers that are dropped while kernels still write them: nobody gets their memory too early, and none is lost.
fn memory_is_freed_behind_its_work() -> Outcome {
    let device = Device::open(0)?;
    let stream = device.stream()?;
    let late = with_number(&stream, LATE, "late")?;
    let (n, len) = (1 << 20, 4 << 20);
    for round in 0..5_i64 {
        let y = stream.alloc(len)?;
        let bound = late.bind(&stream, &[("y", &y)], &[("n", n), ("a", round)])?;
        bound.launch()?;
        drop(y);
        // The kernel keeps its memory: this is other memory, of zeros.
        let z = stream.alloc(len)?;
        drop(bound);
        ensure(z.download()? == vec![0; len], "new memory is not zero")?;
    }
    // What is freed can be had again, many times more than there is.
    let most = device.properties().memory / 4;
    let begun = Instant::now();
    for _ in 0..12 {
        drop(stream.alloc(most)?);
    }
    println!("{:?} for 12 times {most} bytes", begun.elapsed());
    Ok(())
}

/// While one thread records, another uses the same stream and others: nothing of that is in the graph, and all of it runs.
fn recordings_are_private() -> Outcome {
    let device = Device::open(0)?;
    let stream = device.stream()?;
    let n = 4096;
    let kernel = with_number(&stream, PLAIN, "twice")?;
    let y = stream.upload(&bytes((0..n).map(|i| i as f32)))?;
    let z = stream.upload(&bytes((0..n).map(|i| i as f32)))?;
    let step = |a| kernel.bind(&stream, &[("y", &y)], &[("n", n), ("a", a)]);
    let (one, two) = (step(1)?, step(2)?);
    let other = kernel.bind(&stream, &[("y", &z)], &[("n", n), ("a", 5)])?;
    let (ask, asked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel::<Result<(), String>>();
    let beside = || -> Result<(), Error> {
        other.launch()?;
        let fresh = stream.upload(&[7; 1000])?;
        let elsewhere = device.stream()?;
        let more = elsewhere.alloc(1 << 20)?;
        drop(more);
        match fresh.download()? == [7; 1000] && z.download()?[..4] == bytes([5.0])[..] {
            true => Ok(()),
            false => Err(Error::Unsupported { what: "the other thread's work" }),
        }
    };
    let captured = thread::scope(|scope| {
        let (ask, beside) = (ask, &beside);
        scope.spawn(move || {
            if asked.recv().is_ok() {
                // Whoever waits hears of it, or waits no more.
                let _ = tell.send(beside().map_err(|error| error.to_string()));
            }
        });
        let refused = |outcome: Result<(), Error>| match outcome {
            Err(Error::Unsupported { .. }) => Ok(()),
            _ => Err(Error::Unsupported { what: "something that was not refused" }),
        };
        stream.capture(|| {
            one.launch()?;
            ask.send(()).expect("the other thread waits");
            let other = told.recv_timeout(Duration::from_secs(20));
            let fine = matches!(other, Ok(Ok(())));
            println!("beside the recording: {other:?}");
            refused(stream.alloc(16).map(drop))?;
            refused(y.download().map(drop))?;
            refused(y.write(&[0]))?;
            refused(stream.synchronize())?;
            refused(stream.capture(|| Ok(())).map(drop))?;
            refused(device.stream().map(drop))?;
            // What is dropped here goes when the recording has ended, and what was launched the graph keeps.
            let gone = y.clone();
            drop(gone);
            two.launch()?;
            match fine {
                true => Ok(()),
                false => Err(Error::Unsupported { what: "the other thread's work" }),
            }
        })
    });
    let graph = captured?;
    let still: Vec<f32> = (0..n).map(|i| i as f32).collect();
    ensure(floats(&y.download()?) == still, "recording ran the kernels")?;
    drop((one, two));
    graph.launch()?;
    let expected: Vec<f32> = still.iter().map(|y| 2.0 * (2.0 * y + 1.0) + 2.0).collect();
    ensure(floats(&y.download()?) == expected, "the graph is another one")?;
    let once: Vec<f32> = still.iter().map(|z| 2.0 * z + 5.0).collect();
    ensure(floats(&z.download()?) == once, "the other thread's launch is in the graph")
}

/// Threads record, replay, allocate and load at once, each on a stream of its own, and each finds what it computed.
fn threads_record_beside_each_other() -> Outcome {
    let device = Device::open(0)?;
    let work = |thread: i64| -> Result<(), Failed> {
        let stream = device.stream()?;
        let (arch, cubin) = compile_for(&stream, PLAIN)?;
        let launch = pointwise("twice", arch, &["y"], &["a"]);
        for round in 0..20 {
            let kernel = stream.device().load(&cubin, &launch)?;
            let n = 1000 + 64 * thread + round;
            let y = stream.upload(&bytes((0..n).map(|i| (i % 5) as f32)))?;
            let steps = [thread, round, 1];
            let bound = steps.map(|a| kernel.bind(&stream, &[("y", &y)], &[("n", n), ("a", a)]));
            let bound = bound.into_iter().collect::<Result<Vec<_>, _>>()?;
            let graph = stream.capture(|| bound.iter().try_for_each(|step| step.launch()))?;
            drop((kernel, bound));
            graph.launch()?;
            graph.launch()?;
            let run = |y: f32| steps.iter().chain(&steps).fold(y, |y, &a| 2.0 * y + a as f32);
            let expected: Vec<f32> = (0..n).map(|i| run((i % 5) as f32)).collect();
            ensure(floats(&y.download()?) == expected, format!("thread {thread}, round {round}"))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || work(i))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

fn too_much_memory_is_refused() -> Outcome {
    let device = Device::open(0)?;
    let stream = device.stream()?;
    let all = device.properties().memory;
    match stream.alloc(all + (1 << 30)).err() {
        Some(Error::DeviceMemory { bytes, free, total, .. }) => {
            let told = bytes == all + (1 << 30) && free <= total && total >= all / 2;
            ensure(told, format!("{bytes} of {free} free of {total}"))?;
        }
        other => return Err(Failed::from(format!("{other:?}"))),
    }
    // The stream goes on.
    ensure(stream.upload(&[3; 100])?.download()? == [3; 100], "bytes differ")
}

/// A buffer goes to another library and comes back from it as one of another stream: the same memory, freed with the last.
fn tensors_are_lent() -> Outcome {
    let device = Device::open(0)?;
    let (first, second) = (device.stream()?, device.stream()?);
    let content: Vec<u8> = (0..60_u8).collect();
    let buffer = first.upload(&content)?;
    let lent = buffer.part(12, 48)?.export::<DLManagedTensorVersioned>(DType::F32, &[3, 4])?;
    ensure((lent.device().device_type, lent.device().device_id) == (2, 0), "another device")?;
    ensure(lent.host_bytes().is_none(), "the device's memory is read as the host's")?;
    drop(buffer);
    let back = second.import(lent)?;
    ensure(back.len() == 48 && back.download()? == content[12..], "bytes differ")?;
    back.write(&[9; 4])?;
    ensure(back.download()?[..5] == [9, 9, 9, 9, 16], "it cannot be written")?;
    drop(back);
    let small = first.alloc(8)?.export::<DLManagedTensor>(DType::F32, &[3]).err();
    ensure(matches!(small, Some(Error::Mismatch { .. })), format!("{small:?}"))?;
    let host = Tensor::from_vec(vec![1], vec![1.0_f32])?;
    let host = dlpack::export_host::<DLManagedTensor>(&host)?;
    let foreign = second.import(host).err();
    ensure(matches!(foreign, Some(Error::Foreign { .. })), format!("{foreign:?}"))
}

/// Runs a kernel that no GPU forgives, and says what later calls are told.
fn lose() -> Result<String, Failed> {
    let stream = Device::open(0)?.stream()?;
    let (arch, cubin) = compile_for(&stream, FAULT)?;
    let kernel = stream.device().load(&cubin, &pointwise("fault", arch, &["y"], &[]))?;
    let y = stream.alloc(1024)?;
    let bound = kernel.bind(&stream, &[("y", &y)], &[("n", 1)])?;
    bound.launch()?;
    let first = stream.synchronize().err().is_some_and(|error| error.is_sticky());
    let later = stream.alloc(16).err().is_some_and(|error| error.is_sticky());
    // Nothing waits forever for a device that is lost, and nothing panics.
    drop((bound, kernel, y, stream));
    Ok(format!("{first} {later}"))
}

/// In a process of its own, since the GPU is lost to the whole of it.
fn a_lost_device_is_told() -> Outcome {
    let output = Command::new(std::env::current_exe()?).env(LOSE, "1").output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(output.status.success() && said.trim() == "true true", said)
}

// ---- What needs cuBLASLt

fn matmul(scalar: Scalar, a: bool, b: bool, [m, n, k]: [usize; 3]) -> PackedGemm {
    PackedGemm { m, n, k, scalar, transpose_a: a, transpose_b: b }
}

fn cublaslt_multiplies() -> Outcome {
    let stream = Device::open(0)?.stream()?;
    let shape @ [m, n, k] = [64, 48, 32];
    // Small integers: sums are exact in half precision.
    let a = |row: usize, column: usize| ((row * 5 + column * 3) % 5) as f32 - 2.0;
    let b = |row: usize, column: usize| ((row * 2 + column * 7) % 3) as f32 - 1.0;
    let stored = |of: &dyn Fn(usize, usize) -> f32, [rows, columns]: [usize; 2], swap: bool| {
        let (outer, inner) = if swap { (columns, rows) } else { (rows, columns) };
        let at = |i, j| if swap { of(j, i) } else { of(i, j) };
        (0..outer).flat_map(|i| (0..inner).map(move |j| (i, j))).map(|(i, j)| at(i, j)).collect()
    };
    for scalar in [Scalar::F16, Scalar::Bf16] {
        let half = |values: Vec<f32>| -> Vec<u8> {
            let bits = |value: f32| match scalar {
                Scalar::F16 => f16::from_f32(value).to_bits(),
                _ => bf16::from_f32(value).to_bits(),
            };
            values.into_iter().flat_map(|value| bits(value).to_le_bytes()).collect()
        };
        for (swap_a, swap_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let x = stream.upload(&half(stored(&a, [m, k], swap_a)))?;
            let y = stream.upload(&half(stored(&b, [k, n], swap_b)))?;
            let z = stream.alloc(m * n * 2)?;
            let matmul =
                BoundGemm::tune(&stream, matmul(scalar, swap_a, swap_b, shape), [&x, &y, &z])?;
            z.write(&vec![0xff; m * n * 2])?;
            matmul.launch()?;
            let sum = |i, j| (0..k).map(|l| a(i, l) * b(l, j)).sum::<f32>();
            let expected = stored(&sum, [m, n], false);
            let same = z.download()? == half(expected);
            ensure(same, format!("{scalar:?}, transposed {swap_a} {swap_b}"))?;
        }
    }
    Ok(())
}
