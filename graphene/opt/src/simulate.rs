//! `graphene-opt simulate`: runs a kernel on the CPU.

use std::collections::BTreeMap;
use std::process::ExitCode;

use graphene_ir::index::Expr;
use graphene_ir::kernel::Kernel;
use graphene_ir::simulate::{Buffer, Cost, Inputs, Options, Outcome, simulate as run};

use crate::kernel::{complain, fail};
use crate::{ALGEBRA, USAGE, print};

/// The elements that a tensor may have.
const MAX_LEN: usize = 1 << 28;

/// How many findings to show of one run.
const FINDINGS: usize = 10;

/// Reads `M=128`.
pub(crate) fn size(text: &str) -> Result<(String, i64), String> {
    let parts = text.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
    let (name, value) = parts.ok_or("a size is NAME=N")?;
    Ok((name.trim_start_matches('@').to_owned(), value))
}

/// Runs the kernel in `seeds` orders; prints findings, or else what the first run cost.
pub(crate) fn simulate(
    kernel: &Kernel,
    sizes: Vec<(String, i64)>,
    seed: u64,
    seeds: u64,
) -> ExitCode {
    let inputs = match inputs(kernel, sizes.into_iter().collect(), seed) {
        Ok(inputs) => inputs,
        Err(message) => return fail(USAGE, &message),
    };
    let mut costs = None;
    for order in 0..seeds.max(1) {
        let seed = seed.wrapping_add(order);
        let options = Options { seed: Some(seed), findings: FINDINGS, ..Options::default() };
        match run(kernel, &inputs, &options) {
            Ok(outcome) if outcome.findings.is_empty() => {
                costs.get_or_insert_with(|| report(&outcome));
            }
            Ok(outcome) => {
                for finding in &outcome.findings {
                    complain(&finding.to_string());
                }
                return fail(ALGEBRA, &format!("found with seed {seed}"));
            }
            Err(error) => return fail(ALGEBRA, &error.to_string()),
        }
    }
    print(&costs.unwrap_or_default())
}

/// Random values for what the kernel reads; nothing in what it only writes.
fn inputs(kernel: &Kernel, symbols: BTreeMap<String, i64>, seed: u64) -> Result<Inputs, String> {
    for symbol in &kernel.symbols {
        if !symbols.contains_key(symbol.name()) {
            let name = symbol.name();
            return Err(format!("{symbol} has no value: give one by --size {name}=N"));
        }
    }
    let mut random = seed;
    let mut buffers = BTreeMap::new();
    for &param in &kernel.params {
        let axes = kernel.tensor(param).view.axes();
        let len = axes
            .iter()
            .fold(Expr::from(1), |len, axis| len + (axis.size.clone() - 1) * &axis.stride);
        let len = len.value(&|var| symbols.get(var.name()).copied());
        let len = len.and_then(|len| usize::try_from(len).ok()).filter(|&len| len <= MAX_LEN);
        let name = kernel.tensor_name(param).to_owned();
        let len = len.ok_or_else(|| format!("%{name} has no size up to {MAX_LEN} elements"))?;
        let read = kernel.spec.ins.iter().any(|operand| operand.tensor == param);
        let buffer = if read {
            Buffer::Data((0..len).map(|_| value(&mut random)).collect())
        } else {
            Buffer::Undefined(len)
        };
        buffers.insert(name, buffer);
    }
    Ok(Inputs { symbols, buffers })
}

/// The next of a sequence (SplitMix64): an integer that every type has, and no product overflows.
fn value(random: &mut u64) -> f64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *random;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) % 4) as f64
}

/// A line for each atom of the kernel's text, and one for all.
fn report(outcome: &Outcome) -> String {
    let line = |name: &str, cost: &Cost| {
        format!(
            "{name}: {} times; global {} read, {} written, {} sectors; shared {} read, {} written, \
             {} conflicts\n",
            cost.executions,
            cost.global.read,
            cost.global.written,
            cost.sectors,
            cost.shared.read,
            cost.shared.written,
            cost.conflicts
        )
    };
    let costs = &outcome.costs;
    let lines = costs.statements.iter().map(|cost| {
        let name = format!("statement {} {}", cost.statement, cost.atom);
        line(&name, cost)
    });
    lines.chain([line("all", &costs.total())]).collect()
}
