//! `graphene-opt`: works with layouts and kernels from the command line.
//!
//! Exit codes: 0 fine; 1 output could not be written, or a file not read; 2 usage or notation;
//! 3 the expression has no answer in the algebra, or the kernel is refused.

mod kernel;
mod layout;
mod simulate;
mod svg;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use graphene_ir::arch::Arch;
use graphene_ir::emit::Pass;

/// Works with Graphene's layouts and kernels.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Evaluates layout algebra in CuTe's notation and function names.
    ///
    /// For example: graphene-opt layout 'composition((6,2):(8,2), (4,3):(3,1))'
    Layout {
        /// The expression.
        #[arg(allow_hyphen_values = true)]
        expression: String,
        /// Draws the offsets as a grid into this file; the first mode runs down the rows.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Draws who owns the cells of a column-major grid instead: the layout's first mode counts
        /// threads, its second their values, and its offsets are the cells.
        #[arg(long, value_name = "ROWSxCOLUMNS", requires = "svg", value_parser = svg::grid)]
        owners: Option<[i64; 2]>,
    },
    /// Reads a kernel in text form, and prints it.
    Print {
        /// The file; `-` for standard input.
        file: PathBuf,
    },
    /// Draws a kernel's levels: its specs, each within the one that it decomposes.
    Tree {
        /// The file; `-` for standard input.
        file: PathBuf,
    },
    /// Reports what is wrong with a kernel.
    Verify {
        /// The file; `-` for standard input.
        file: PathBuf,
    },
    /// Prints a kernel as CUDA C++.
    Emit {
        /// The file; `-` for standard input.
        file: PathBuf,
        /// The architecture, if not the kernel's own.
        #[arg(long)]
        arch: Option<Arch>,
        /// Prints what the kernel needs of its host instead.
        #[arg(long)]
        launch: bool,
        /// Stops after a pass, of those that `passes` lists.
        #[arg(long, value_name = "PASS", conflicts_with = "launch", value_parser = kernel::pass)]
        after: Option<&'static Pass>,
    },
    /// Lists the passes from a kernel to its CUDA C++.
    Passes,
    /// Runs a kernel on the CPU, on random inputs, and reports faults and costs.
    Simulate {
        /// The file; `-` for standard input.
        file: PathBuf,
        /// The value of a symbol, such as M=128; once for each.
        #[arg(long, value_name = "NAME=N", value_parser = simulate::size)]
        size: Vec<(String, i64)>,
        /// Chooses the inputs, and the first order in which warps go on.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// How many orders to try, each with a seed one larger.
        #[arg(long, default_value_t = 1)]
        seeds: u64,
    },
}

const INTERNAL: u8 = 1;
const USAGE: u8 = 2;
const ALGEBRA: u8 = 3;

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Layout { expression, svg, owners } => layout::layout(&expression, svg, owners),
        Command::Print { file } => kernel::with(&file, |kernel| print(&kernel.to_string())),
        Command::Tree { file } => kernel::with(&file, |kernel| print(&kernel.tree())),
        Command::Verify { file } => kernel::with(&file, |kernel| kernel::verify(&kernel)),
        Command::Emit { file, arch, launch, after } => {
            kernel::with(&file, |kernel| kernel::emit(kernel, arch, launch, after))
        }
        Command::Passes => print(&kernel::passes()),
        Command::Simulate { file, size, seed, seeds } => {
            kernel::with(&file, |kernel| simulate::simulate(&kernel, size, seed, seeds))
        }
    }
}

/// Prints to standard output. A reader that went away, as `| head` does, is no reason to panic.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(INTERNAL),
    }
}
