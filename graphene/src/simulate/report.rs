//! What a simulation reports: findings, and costs.

use crate::{atom::Fault, convert::display};

/// A fault, and where it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub fault: Fault,
    /// The statement.
    pub statement: Statement,
    /// The other statement, where two do not go together; of what a loop begins with, the spec around it, which made that.
    pub other: Option<Statement>,
    /// The block's number in the grid.
    pub block: i64,
    /// The warp's number in its block.
    pub warp: usize,
    /// The lane, where one is to blame.
    pub lane: Option<usize>,
}

/// A statement of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// How many statements stand before it in the kernel's text, leaving out the kernel's own.
    pub number: usize,
    /// Its first line.
    pub text: String,
}

/// What a simulation cost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Costs {
    /// The costs of each atomic spec.
    pub statements: Vec<Cost>,
}

/// What one atomic spec cost, over all warps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cost {
    /// The statement's number.
    pub statement: usize,
    /// The atom's name.
    pub atom: &'static str,
    /// How often a warp carried it out.
    pub executions: u64,
    /// Phases of accesses to shared memory beyond those that its width needs.
    pub conflicts: u64,
    /// Bytes read from and written to shared memory.
    pub shared: Traffic,
    /// Bytes read from and written to global memory.
    pub global: Traffic,
    /// Sectors of 32 bytes that accesses to global memory touch, counted for each.
    pub sectors: u64,
}

/// Bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

impl Costs {
    /// The sum over all statements.
    pub fn total(&self) -> Cost {
        let mut sum = Cost::default();
        for cost in &self.statements {
            sum.executions += cost.executions;
            sum.conflicts += cost.conflicts;
            sum.sectors += cost.sectors;
            for (sum, cost) in [(&mut sum.shared, cost.shared), (&mut sum.global, cost.global)] {
                sum.read += cost.read;
                sum.written += cost.written;
            }
        }
        sum
    }
}

display! {
    Statement: |statement, f| write!(f, "statement {}: {}", statement.number, statement.text);
    Finding: |Finding { fault, statement, other, block, warp, lane }, f| {
        write!(f, "{fault}; in {statement}; block {block}, warp {warp}")?;
        if let Some(lane) = lane {
            write!(f, ", lane {lane}")?;
        }
        match other {
            Some(other) => write!(f, "; the other is {other}"),
            None => Ok(()),
        }
    };
}
