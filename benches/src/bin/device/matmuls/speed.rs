//! The anchors' shapes beside cuBLASLt, all inside CUDA graphs: bare matmuls, and with what follows them.

use std::rc::Rc;

use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::Unary;
use graphene_ir::template::epilogue::{Epilogue, Span};
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::MatMul;
use graphene_runtime::Error;
use graphene_runtime::device::cublaslt::{
    Activation, BoundGemm, Context, Gemm as LibraryGemm, Matrix, Operands, PackedGemm,
};
use graphene_runtime::device::{Buffer, Kernel, Stream, compile};

use super::{Case, kernel_error, median};
use crate::data::{Random, encode};

/// The shapes of the anchors, `m, n, k`, and whether their epilogues are timed as well; and those that models have, whose
/// weights are the rows of B.
const SHAPES: [([usize; 3], bool, bool); 22] = [
    ([1024, 1024, 2048], true, false),
    ([4096, 1024, 2048], true, false),
    ([4096, 4096, 4096], false, false),
    ([8192, 8192, 8192], false, false),
    ([5376, 5376, 2048], true, false),
    ([12288, 768, 768], true, false),
    ([12288, 2304, 768], true, false),
    ([12288, 3072, 768], true, false),
    ([12288, 768, 3072], true, false),
    ([4096, 3072, 768], true, false),
    ([4096, 768, 3072], true, false),
    ([128, 768, 768], true, false),
    ([128, 3072, 768], true, false),
    ([128, 768, 3072], true, false),
    ([12288, 768, 768], true, true),
    ([12288, 2304, 768], true, true),
    ([12288, 3072, 768], true, true),
    ([12288, 768, 3072], true, true),
    ([651, 768, 768], true, true),
    ([651, 2304, 768], true, true),
    ([651, 3072, 768], true, true),
    ([651, 768, 3072], true, true),
];

/// How many rows there are: so few that tiles leave most of the GPU idle, so many that all have tiles, or between.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    Few,
    Some,
    Many,
}

impl Rows {
    fn of(m: usize) -> Rows {
        match m {
            ..=512 => Rows::Few,
            513..=2048 => Rows::Some,
            _ => Rows::Many,
        }
    }
}

/// Numbers that operands repeat.
pub(super) const POOL: usize = 1_000_003;

/// What follows a matmul.
pub(super) struct Follows {
    pub(super) name: &'static str,
    pub(super) epilogue: Epilogue,
    /// As the library has it.
    bias: bool,
    activation: Option<Activation>,
    residual: bool,
}

pub(super) fn follows() -> [Follows; 6] {
    let row =
        |name, epilogue| Follows { name, epilogue, bias: true, activation: None, residual: false };
    let bias = Epilogue::layer(true, None, false);
    let tanh = Function::gelu_tanh().after(&(Function::input(0) + Function::input(1)));
    let gelu = Some(Activation::GeluTanh);
    [
        Follows { bias: false, ..row("none", Epilogue::default()) },
        row("bias", bias),
        // The library has no other than that by a hyperbolic tangent.
        Follows {
            activation: gelu,
            ..row("bias+gelu", Epilogue::layer(true, Some(Unary::Gelu), false))
        },
        Follows {
            activation: gelu,
            ..row("bias+gelu_half", Epilogue::layer(true, Some(Unary::GeluHalf), false))
        },
        Follows { activation: gelu, ..row("bias+gelu_tanh", Epilogue::new(tanh, [Span::Row])) },
        Follows { residual: true, ..row("bias+residual", Epilogue::layer(true, None, true)) },
    ]
}

/// The tiles that are tried where there are so many rows.
fn tiles(rows: Rows) -> Vec<Gemm> {
    let gemm = Gemm::default();
    let small = Gemm {
        consumers: 1,
        columns: 64,
        stages: 6,
        weights: true,
        prefetch: true,
        ..gemm.clone()
    };
    if rows == Rows::Few {
        return vec![
            small.clone(),
            Gemm { columns: 128, ..small.clone() },
            Gemm { split: 2, ..small.clone() },
            Gemm { split: 4, ..small.clone() },
            Gemm { split: 8, ..small.clone() },
            Gemm { consumers: 2, split: 4, stages: 3, ..small },
        ];
    }
    if rows == Rows::Some {
        let square = Gemm { columns: 128, stages: 5, ..gemm.clone() };
        return vec![
            small.clone(),
            Gemm { split: 2, ..small.clone() },
            Gemm { columns: 128, ..small.clone() },
            Gemm { columns: 128, split: 2, stages: 5, ..small.clone() },
            Gemm { columns: 192, stages: 5, ..small.clone() },
            square.clone(),
            Gemm { split: 2, stages: 4, ..square.clone() },
            Gemm { split: 3, stages: 3, ..square.clone() },
            Gemm { columns: 192, ..gemm },
        ];
    }
    let ping_pong = Gemm { ping_pong: true, strips: 2, ..gemm.clone() };
    let all = [
        gemm.clone(),
        Gemm { columns: 192, ..gemm },
        Gemm { columns: 128, ..ping_pong.clone() },
        Gemm { columns: 192, ..ping_pong },
    ];
    all.iter().flat_map(|gemm| [1, 2].map(|cluster| Gemm { cluster, ..gemm.clone() })).collect()
}

/// A tile's kernel for what follows a matmul.
struct Tried {
    rows: Rows,
    /// Whether B has rows.
    b_transposed: bool,
    follows: usize,
    gemm: Gemm,
    kernel: Kernel,
}

/// Compiles all kernels, on all cores: which has none is said and left out.
fn compiled(stream: &Stream) -> Result<Vec<Tried>, Error> {
    let mut wanted = Vec::new();
    let kinds = SHAPES.iter().map(|&([m, ..], _, b_transposed)| (Rows::of(m), b_transposed));
    let mut seen: Vec<(Rows, bool)> = Vec::new();
    for (rows, b_transposed) in kinds {
        if seen.contains(&(rows, b_transposed)) {
            continue;
        }
        seen.push((rows, b_transposed));
        for gemm in tiles(rows) {
            for (number, follows) in follows().into_iter().enumerate() {
                let epilogue = follows.epilogue;
                let matmul = MatMul { epilogue, b_transposed, ..gemm.matmul.clone() };
                let gemm = Gemm { matmul, ..gemm.clone() };
                let gemm = if gemm.ping_pong { gemm.deepest() } else { gemm };
                wanted.push((rows, b_transposed, number, gemm));
            }
        }
    }
    let one = |gemm: &Gemm| {
        let kernel = gemm.kernel().map_err(kernel_error)?;
        let emitted = emit(&kernel).map_err(kernel_error)?;
        let cubin = compile(&emitted.source, Arch::Sm90a, &kernel.name)?;
        Ok::<_, Error>((cubin, emitted.launch))
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = wanted.len().div_ceil(cores);
    let parts: Vec<_> = std::thread::scope(|scope| {
        let start = |part: &'_ [(Rows, bool, usize, Gemm)]| {
            let gemms: Vec<Gemm> = part.iter().map(|row| row.3.clone()).collect();
            scope.spawn(move || gemms.iter().map(one).collect::<Vec<_>>())
        };
        let threads: Vec<_> = wanted.chunks(share).map(start).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut tried = Vec::new();
    let compiled = parts.into_iter().flat_map(|part| part.unwrap_or_default());
    for ((rows, b_transposed, follows, gemm), compiled) in wanted.into_iter().zip(compiled) {
        match compiled.and_then(|(cubin, launch)| {
            eprintln!("{:?} of {gemm:?}", cubin.log());
            stream.device().load(&cubin, &launch)
        }) {
            Ok(kernel) => tried.push(Tried { rows, b_transposed, follows, gemm, kernel }),
            Err(error) => eprintln!("{gemm:?}: {error}"),
        }
    }
    Ok(tried)
}

/// Every shape by every tile, for everything that follows.
pub(crate) fn speed(stream: &Stream) -> Result<usize, Error> {
    let mut random = Random(11);
    let tried = compiled(stream)?;
    let library = Context::new(stream.device())?;
    let scalar = MatMul::default().scalar;
    let pool = random.normal(POOL, scalar, true);
    let bytes = encode(&pool, scalar);
    let mut wrong = 0;
    for (size, epilogues, b_transposed) in SHAPES {
        let epilogue = Epilogue::layer(true, None, true);
        let matmul = MatMul { epilogue, b_transposed, ..MatMul::default() };
        let mut first = 0;
        let full = Case::of(stream, matmul, size, |len| {
            first = (first + POOL / 7) % POOL;
            let width = scalar.bytes() as usize;
            let values = pool.iter().copied().cycle().skip(first).take(len).collect();
            let mut repeated = Vec::with_capacity((len + POOL) * width);
            repeated.extend_from_slice(&bytes[first * width..]);
            while repeated.len() < len * width {
                repeated.extend_from_slice(&bytes);
            }
            repeated.truncate(len * width);
            (values, repeated)
        })?;
        for (number, follows) in follows().iter().enumerate() {
            if number > 0 && !epilogues {
                continue;
            }
            let case = full.followed(follows);
            let theirs = follows.bind(stream, &library, &full, false)?;
            let wanted = (Rows::of(size[0]), b_transposed, number);
            let tried = tried.iter();
            for tried in tried.filter(|one| (one.rows, one.b_transposed, one.follows) == wanted) {
                wrong += case.timed(stream, tried, follows.name, &theirs, &mut random)?;
            }
        }
    }
    Ok(wrong)
}

impl Follows {
    /// The library's call for it; single precision as TF32 if asked for.
    pub(super) fn bind(
        &self,
        stream: &Stream,
        library: &Context,
        case: &Case,
        tf32: bool,
    ) -> Result<BoundGemm, Error> {
        let [m, n, k] = case.size;
        let MatMul { scalar, a_transposed, b_transposed, .. } = case.matmul;
        let bare =
            PackedGemm { m, n, k, scalar, transpose_a: a_transposed, transpose_b: !b_transposed };
        let added = Matrix { leading: n, transposed: false, apart: 0 };
        let gemm = LibraryGemm {
            bias: self.bias,
            activation: self.activation,
            c: self.residual.then_some(added),
            tf32,
            ..bare.into()
        };
        let [a, b, bias, c] = [0, 1, 2, 3].map(|i| case.ins[i].2.clone());
        let operands = Operands {
            a,
            b,
            c: self.residual.then_some(c),
            d: case.c.clone(),
            bias: self.bias.then_some(bias),
        };
        library.bind(stream, &gemm, operands)
    }
}

impl Case {
    /// The same with what follows, of the operands that there are.
    pub(super) fn followed(&self, follows: &Follows) -> Case {
        let matmul = MatMul { epilogue: follows.epilogue.clone(), ..self.matmul.clone() };
        let names = follows.epilogue.operands.iter().map(|operand| operand.span.name());
        let wanted: Vec<&str> = ["A", "B"].into_iter().chain(names).collect();
        let named = |name: &str| self.ins.iter().find(|row| row.0 == name);
        let ins: Vec<(String, Rc<Vec<f64>>, Buffer)> =
            wanted.into_iter().filter_map(named).cloned().collect();
        Case { matmul, ins, ..self.clone() }
    }

    /// Times a kernel beside the library, and says whether it is wrong.
    fn timed(
        &self,
        stream: &Stream,
        tried: &Tried,
        follows: &str,
        library: &BoundGemm,
        random: &mut Random,
    ) -> Result<usize, Error> {
        let gemm = &tried.gemm;
        let symbols = self.symbols(&self.blocks(stream, gemm));
        let bound = tried.kernel.bind(stream, &self.buffers(), &symbols)?;
        self.spoil()?;
        bound.launch()?;
        stream.synchronize()?;
        let error = self.error(random, |x| x)?;
        // One after the other, twice, so that a clock that falls favours neither.
        let mut ours = median(stream, || bound.launch())?;
        let mut theirs = median(stream, || library.launch())?;
        ours = ours.min(median(stream, || bound.launch())?);
        theirs = theirs.min(median(stream, || library.launch())?);
        let [m, n, k] = self.size;
        let rate = |time: f64| 2.0 * (m * n * k) as f64 / time * 1e-6;
        let Gemm { columns, stages, cluster, raster, ping_pong, split, .. } = gemm;
        println!(
            "{{\"row\":\"speed\",\"follows\":\"{follows}\",\"m\":{m},\"n\":{n},\"k\":{k},\
             \"b_in_rows\":{},\"rows\":{},\"columns\":{columns},\"ping_pong\":{ping_pong},\"stages\":{stages},\
             \"cluster\":{cluster},\"split\":{split},\"raster\":{raster},\
             \"error_of_bound\":{error:.4},\"us\":{ours:.2},\"tflops\":{:.0},\
             \"cublaslt_us\":{theirs:.2},\"cublaslt_tflops\":{:.0},\"ratio\":{:.3}}}",
            self.matmul.b_transposed,
            gemm.rows(),
            rate(ours),
            rate(theirs),
            theirs / ours
        );
        Ok(usize::from(error > 1.0))
    }
}
