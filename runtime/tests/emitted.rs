//! NVRTC takes what is emitted: every atom's example, the paper's figures and the templates, for
//! every architecture that they are for. What NVRTC does not compile for is reported as ignored.

use std::sync::Arc;

use graphene_ir::arch::Arch;
use graphene_ir::atom;
use graphene_ir::emit::emit;
use graphene_ir::kernel::Kernel;
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::simt::simt;
use graphene_ir::text::parse;
use graphene_runtime::device::{Library, compile, compiles_for};
use libtest_mimic::{Arguments, Failed, Trial};

const FIGURES: [(&str, &str); 2] = [
    ("figure_1", include_str!("../../graphene/tests/kernels/figure_1.graphene")),
    ("figure_8", include_str!("../../graphene/tests/kernels/gemm.graphene")),
];

type Make = Arc<dyn Fn() -> graphene_ir::Result<Kernel> + Send + Sync>;

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit();
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for atom in atom::all() {
        let exists = |arch: Arch| atom.archs.contains(arch);
        add(&mut trials, atom.name, exists, Arc::new(atom.example));
    }
    for (name, text) in FIGURES {
        add(&mut trials, name, |arch| arch >= Arch::Sm75, Arc::new(move || parse(text)));
    }
    add(&mut trials, "simt", |arch| arch == Arch::Sm80, Arc::new(|| simt(Arch::Sm80)));
    for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
        let gemm = Gemm { a_transposed: a, b_transposed: b, ..Gemm::default() };
        let name = format!("gemm_{}{}", if a { 't' } else { 'n' }, if b { 't' } else { 'n' });
        add(&mut trials, &name, |arch| arch == Arch::Sm90a, Arc::new(move || gemm.kernel()));
    }
    trials
}

/// A trial for each architecture.
fn add(trials: &mut Vec<Trial>, name: &str, exists: impl Fn(Arch) -> bool, make: Make) {
    let nvrtc = Library::Nvrtc.found();
    for (arch, arch_name) in Arch::ALL.into_iter().filter(|row| exists(row.0)) {
        let can = nvrtc && compiles_for(arch).unwrap_or(true);
        let make = Arc::clone(&make);
        let trial = Trial::test(format!("{name}::{arch_name}"), move || check(&*make, arch));
        trials.push(trial.with_ignored_flag(!can));
    }
}

/// The kernel compiles, without a stack: every register has a number that the compiler knows.
fn check(make: &dyn Fn() -> graphene_ir::Result<Kernel>, arch: Arch) -> Result<(), Failed> {
    let mut kernel = make()?;
    kernel.arch = arch;
    let source = emit(&kernel)?.source;
    if source.contains("#include") {
        return Err(Failed::from(format!("it includes what NVRTC may not have:\n{source}")));
    }
    let cubin = compile(&source, arch, "kernel.cu")?;
    let log = cubin.log();
    let clean = log.stack + log.spill_loads + log.spill_stores == 0;
    if clean && !log.serialized_wgmma && !log.setmaxnreg_ignored && !log.text.contains("kernel.cu(")
    {
        Ok(())
    } else {
        Err(Failed::from(format!("{}\n{source}", log.text)))
    }
}
