//! Templates of rows and elements at real sizes, for Hopper and, as PTX that the driver compiles, for Ampere: within their
//! bounds on inputs with outliers, and how many bytes a second they move.

mod elements;
#[path = "../../../../graphene/tests/it/norms.rs"]
mod norms;
mod rows;

use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::function::near::Near;
use graphene_ir::kernel::Kernel;
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::{Buffer, Stream, compile, compile_ptx};

use crate::data::{Random, decode, encode};
use crate::matmuls::{kernel_error, median};

/// How often a case is sampled.
const SAMPLES: usize = 48;

/// A kernel at one size, and what it is to compute.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) kernel: Box<dyn Fn(Arch) -> graphene_ir::Result<Kernel>>,
    pub(crate) ins: Vec<(String, Scalar, Vec<f64>)>,
    /// Results: name, type and elements; at first of bits that are no number.
    pub(crate) outs: Vec<(String, Scalar, usize)>,
    pub(crate) symbols: Vec<(String, i64)>,
    pub(crate) sample: Sample,
}

/// Some elements of the results: which result, which element, and what it is to be; of the inputs' values.
pub(crate) type Sample = Box<dyn Fn(&Values<'_>, &mut Random) -> Vec<(usize, usize, Near)>>;

/// The inputs' values by their names.
pub(crate) struct Values<'a>(&'a [(String, Scalar, Vec<f64>)]);

impl Values<'_> {
    /// All of an input.
    pub(crate) fn of(&self, name: &str) -> &[f64] {
        let found = self.0.iter().find(|(known, ..)| known == name);
        found.map_or(&[], |(_, _, values)| values)
    }

    /// An element, which is exact.
    pub(crate) fn at(&self, name: &str, place: usize) -> Near {
        (self.of(name)[place], 0.0)
    }
}

/// Every template on both architectures.
pub(crate) fn check(stream: &Stream) -> Result<usize, Error> {
    let mut wrong = 0;
    let mut random = Random(17);
    for make in rows::CASES.iter().chain(elements::CASES) {
        let case = make(&mut random);
        for arch in [Arch::Sm90a, Arch::Sm80] {
            wrong += case.run(stream, arch, &mut random)?;
        }
    }
    Ok(wrong)
}

/// A kernel's image: machine code for Hopper, PTX for what came before.
pub(crate) fn image(
    kernel: &Kernel,
    source: &str,
) -> Result<graphene_runtime::device::Cubin, Error> {
    match kernel.arch {
        Arch::Sm90a => compile(source, kernel.arch, &kernel.name),
        older => compile_ptx(source, older, &kernel.name),
    }
}

impl Case {
    fn run(&self, stream: &Stream, arch: Arch, random: &mut Random) -> Result<usize, Error> {
        let kernel = (self.kernel)(arch).map_err(kernel_error)?;
        let emitted = emit(&kernel).map_err(kernel_error)?;
        let loaded = stream.device().load(&image(&kernel, &emitted.source)?, &emitted.launch)?;
        let mut buffers: Vec<(&str, Buffer)> = Vec::new();
        for (name, scalar, values) in &self.ins {
            buffers.push((name, stream.upload(&encode(values, *scalar))?));
        }
        let first = buffers.len();
        for (name, scalar, len) in &self.outs {
            buffers.push((name, stream.upload(&vec![0xff; len * scalar.bytes() as usize])?));
        }
        let symbols: Vec<(&str, i64)> =
            self.symbols.iter().map(|(name, size)| (name.as_str(), *size)).collect();
        let given: Vec<(&str, &Buffer)> =
            buffers.iter().map(|(name, buffer)| (*name, buffer)).collect();
        let bound = loaded.bind(stream, &given, &symbols)?;
        bound.launch()?;
        stream.synchronize()?;
        let mut found = Vec::new();
        for ((_, buffer), (_, scalar, _)) in buffers[first..].iter().zip(&self.outs) {
            found.push(decode(&buffer.download()?, *scalar));
        }
        let mut worst = 0f64;
        for _ in 0..SAMPLES {
            for (out, place, (value, error)) in (self.sample)(&Values(&self.ins), random) {
                let unit = self.outs[out].1.unit();
                // Subnormal fp16 numbers are multiples of 2⁻²⁴.
                let bound = error + unit * (value.abs() + error) + 2f64.powi(-25);
                let off = (found[out][place] - value).abs();
                let share =
                    if off == 0.0 || found[out][place] == value { 0.0 } else { off / bound };
                worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
            }
        }
        let time = median(stream, || bound.launch())?;
        let bytes: usize = buffers.iter().map(|(_, buffer)| buffer.len()).sum();
        println!(
            "{{\"row\":\"templates\",\"case\":\"{}\",\"arch\":\"{arch}\",\"error_of_bound\":{worst:.4},\
             \"us\":{time:.2},\"gb_s\":{:.0}}}",
            self.name,
            bytes as f64 / time * 1e-3,
        );
        if worst > 1.0 {
            eprintln!("templates: {} for {arch}: {worst} of its bound", self.name);
        }
        Ok(usize::from(worst > 1.0))
    }
}
