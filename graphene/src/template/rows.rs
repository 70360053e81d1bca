//! Normalisations of rows (Graphene, Figure 13): layer normalisation, root mean square
//! normalisation, softmax and its logarithm, over the last axis of a matrix `[rows, columns]`.
//!
//! The row is that of a *prologue*, a function of some inputs such as a sum with a residual, which may itself be stored; an
//! *epilogue* is applied to the result. A team of threads takes a row: part of a warp, a warp, or all of a block. Each thread has
//! some of the row's vectors of 16 bytes, in registers where they fit; otherwise it computes the prologue again for every pass.
//! Or the blocks of a cluster share a row: each has its part in shared memory, and they exchange what they fold. Several such
//! blocks share a core, so that some load while others store.
//!
//! Statistics are in single precision, in two passes: the mean, then the mean square of the differences.
//!
//! Levels:
//!
//! - kernel: all normalised rows
//!   - tile by a team: a row
//!     - reduction by a team: one of its statistics, of all its elements
//!       - registers by a thread: what is added up, of some elements
//!       - registers by a team: what all threads' parts make
//!     - registers by a thread: of some elements the prologue, or the result; or of the statistics what all elements need
//!
//! Where blocks share a row, its tile and reductions are those of the cluster.
//!
//! - this file: the parameters and the kernel's outline;
//! - `operands`: its tensors, and which kernels there are;
//! - `row`: what each normalisation folds a row into, and how the result goes;
//! - `passes`: how a row comes and is kept, and passes over it;
//! - `shared_by`: a row of a cluster's blocks.

mod operands;
mod passes;
mod row;
mod shared_by;

use self::row::{Row, Source};
use self::shared_by::Blocks;
use super::access::{Access, launch_clusters};
use super::gather::{self, Place};
use crate::choose::ceil;
use crate::schedule::part;
use crate::schedule::together::ThreadGroups;
use crate::{
    Arch, Builder, Expr, Function, Header, Kernel, Kind, Layout, Memory, Number, Result, Scalar,
    TensorId,
};

parameters! {
    /// The parameters of a normalisation. Its symbols are `rows`, `columns` unless that is a constant,
    /// and strides of the operands.
    ///
    /// Operands are, in this order: the prologue's inputs `x0`, `x1`, …; its value `sum`; `scale` and
    /// `shift`; the epilogue's other inputs `e1`, `e2`, …; the results `y`, `y1`, `y2`, ….
    pub struct Rows {
        /// What it is compiled for.
        pub arch: Arch = Arch::Sm90a,
        /// What is computed of a row.
        pub norm: Norm = Norm::Layer,
        /// The columns, if they are not a symbol.
        pub columns: Option<i64> = None,
        /// The prologue: input `i` is `ins[i]`. What is normalised is its value in single precision.
        pub prologue: Function = Function::identity(),
        /// The prologue's inputs.
        pub ins: Vec<Access> = vec![Access::packed(Scalar::F16, 2)],
        /// Which of an input's rows is taken for a row; none: the same of all inputs.
        pub places: Vec<Place> = Vec::new(),
        /// Where the prologue's value is stored, if it is.
        pub sum: Option<Access> = None,
        /// The type of the vector `[columns]` that the normalised value is multiplied by, if it is.
        pub scale: Option<Scalar> = Some(Scalar::F16),
        /// Likewise of the one that is added.
        pub shift: Option<Scalar> = Some(Scalar::F16),
        /// The epilogue: input 0 is the normalised, scaled and shifted value, input `i` is `extras[i - 1]`.
        pub epilogue: Function = Function::identity(),
        /// The epilogue's other inputs.
        pub extras: Vec<Access> = Vec::new(),
        /// The result, the epilogue's first output.
        pub out: Access = Access::packed(Scalar::F16, 2),
        /// The results that its other outputs are.
        pub more: Vec<Access> = Vec::new(),
        /// What is added to the variance or the mean square.
        pub epsilon: Number = Number(1e-5),
        /// Elements of a vector; the columns must be a multiple. 1 for any number and alignment.
        pub vector: i64 = 8,
        /// Threads of a team: a power of two up to 32, or a multiple of 32.
        pub threads: i64 = 32,
        /// Rows, that is teams, of a block.
        pub teams: i64 = 4,
        /// The vectors that each thread holds: as many as a row has at most, divided by the threads.
        /// `None`: each pass goes through the row again, a chunk of vectors at a time.
        pub held: Option<i64> = Some(4),
        /// Vectors of such a chunk that a thread loads before it uses the first of them.
        pub ahead: i64 = 8,
        /// Whether the passes after the first read the prologue's values from shared memory: of known columns, a team a block.
        pub shared: bool = false,
        /// Blocks of a cluster that share a row. Several: rows are of single precision, as they are, and each block's part of
        /// one comes to its shared memory by asynchronous copies.
        pub parts: i64 = 1,
    }
}

/// What is computed of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Norm {
    /// x
    None,
    /// (x - mean)/√(variance + ε)
    Layer,
    /// x/√(mean square + ε)
    Rms,
    /// eˣ/Σeˣ
    Softmax,
    /// ln(eˣ/Σeˣ)
    LogSoftmax,
}

/// Layer normalisation of up to 1024 columns of fp16: a row per warp.
impl Rows {
    /// The threads of a team for rows of so many vectors, and the teams of a block, if threads hold their vectors.
    pub fn teams(vectors: i64) -> [i64; 2] {
        let threads = match vectors {
            ..=32 => (vectors.max(1) as u64).next_power_of_two() as i64,
            33..=96 => 32,
            97..=512 => 128,
            _ => (ceil(vectors, 4 * 32) * 32).min(512),
        };
        [threads, if threads <= 32 { 128 / threads } else { 1 }]
    }

    /// The team and the vectors it holds for this many columns, as measured on Hopper: as long as three vectors a lane
    /// do, a warp or part of one; then 128 threads, and more from four vectors a thread on.
    #[must_use]
    pub fn fitting(self, columns: i64) -> Rows {
        let own = Rows { shared: false, parts: 1, ..self };
        let vectors = ceil(columns, own.vector).max(1);
        let [threads, teams] = Self::teams(vectors);
        let held = ceil(vectors, threads);
        // So many, and what they are computed from, fit the registers of a thread.
        if held * own.vector <= 32 {
            return Rows { threads, teams, held: Some(held), ..own };
        }
        if let Some(rows) = own.in_parts(columns) {
            return rows;
        }
        let (threads, columns) = (1024, Some(columns));
        let rows = Rows { threads, teams: 1, held: None, columns, ..own }.ahead();
        let bytes = rows.padded() * Scalar::F32.bytes();
        // Beside the row, what warps fold.
        let shared = rows.norm != Norm::None && bytes + 1024 <= rows.arch.shared_memory();
        Rows { shared, ..rows }
    }

    /// With as many vectors of a chunk as a thread has registers for.
    #[must_use]
    pub fn ahead(self) -> Rows {
        let registers = |of: &Access| ceil(self.vector * of.scalar.bytes(), 4);
        let each = self.ins.iter().chain(&self.extras).map(registers).sum::<i64>();
        let spare = if self.threads > 512 { 16 } else { 32 };
        Rows { ahead: (spare / each.max(1)).clamp(1, 8), ..self }
    }

    /// Elements of a row, or of a block's part of it, with what the last chunk lacks.
    fn padded(&self) -> i64 {
        let chunk = self.vector * self.threads * self.ahead;
        ceil(self.columns.unwrap_or(0) + self.line_before() * self.vector, chunk * self.parts)
            * chunk
    }

    /// The kernel.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("rows", self.arch);
        let rows = Expr::from(k.symbol("rows")?);
        let columns = match self.columns {
            Some(columns) => Expr::from(columns),
            None => Expr::from(k.symbol("columns")?),
        };
        let operands = self.operands();
        let symbols = operands
            .iter()
            .map(|(name, access)| access.symbols(&mut k, name))
            .collect::<Result<Vec<_>>>()?;
        let mut tables = self.tables(&mut k)?;
        tables.resize(operands.len(), None);
        let mut sources = Vec::new();
        for (((name, access), symbols), table) in operands.iter().zip(&symbols).zip(&tables) {
            let sizes = [table.as_ref().unwrap_or(&rows), &columns].map(Expr::clone);
            let param = access.param(&mut k, name, &sizes, symbols)?;
            sources.push(Source { param, access: access.clone(), row: None });
        }
        let mut indices = self.indices(&mut k, &rows)?;
        indices.resize(operands.len(), None);
        let clusters = (rows.ceil_div(self.teams), self.parts);
        let threads = self.threads * self.teams;
        let (block, first, cluster) = launch_clusters(&mut k, clusters, threads, "first")?;
        let teams = ThreadGroups::new(&mut k, block, self.threads, self.teams)?;
        let row = Expr::from(k.let_("row", first * self.teams + &teams.at[0])?);
        // A row of each operand; of tables the one that is repeated, or all where an index says which.
        let mut own = Vec::new();
        for ((source, table), index) in sources.iter().zip(&tables).zip(&indices) {
            let at = match (table, index) {
                (Some(_), Some(_)) => None,
                (Some(size), None) => Some((1, row.rem(size))),
                (None, _) => Some((1, row.clone())),
            };
            own.push(part(&mut k, source.param, "own_row", &[at, None])?);
        }
        let indices_end = indices.iter().flatten().copied().collect::<Vec<_>>();
        let own_index = [Some((1, row.clone()))];
        let own_indices = indices_end.iter().map(|&of| part(&mut k, of, "own_index", &own_index));
        let own_indices = own_indices.collect::<Result<Vec<_>>>()?;
        let first = self.ins.len();
        let results = first..first + usize::from(self.sum.is_some());
        let outs_from = results.end + self.extras_end();
        let split = |of: &[TensorId], indices: &[TensorId]| {
            let outs = [&of[results.clone()], &of[outs_from..]].concat();
            (outs, [&of[..first], &of[results.end..outs_from], indices].concat())
        };
        let params: Vec<TensorId> = sources.iter().map(|source| source.param).collect();
        let (all_outs, all_ins) = split(&params, &indices_end);
        let (own_outs, own_ins) = split(&own, &own_indices);
        let kind = Kind::Fused(self.meaning(&[], &columns));
        let together = cluster.as_ref().map(|(blocks, _)| *blocks);
        let blocks = cluster.map(|cluster| Blocks::new(&mut k, self, &row, cluster, block));
        let blocks = blocks.transpose()?;
        k.decompose(Header::new(kind, own_outs, own_ins, teams.team).on(together), |k| {
            for (i, table) in tables.iter().enumerate() {
                let Some(size) = table else { continue };
                sources[i].row = Some(match indices[i] {
                    Some(index) => gather::look_up(k, index, &row, size)?,
                    None => k.let_("position", row.rem(size))?.into(),
                });
            }
            let outs = sources.split_off(outs_from);
            let late = sources.split_off(results.end);
            let sum = sources.split_off(first).pop().map(|sum| (sum, own[first]));
            let (ins, columns) = (sources, columns.clone());
            let mut given = Vec::new();
            for source in &ins {
                let at = source.row.as_ref().unwrap_or(&row).clone();
                given.push(part(k, source.param, "own_row", &[Some((1, at)), None])?);
            }
            let template = self;
            let shared = self.shared.then(|| {
                let places = [Layout::of(self.padded(), 1)];
                k.allocate("row", places, Scalar::F32, Memory::Shared, None)
            });
            let (kept, shared) = (None, shared.transpose()?);
            let row = Row {
                template,
                teams,
                row,
                columns,
                ins,
                sum,
                late,
                outs,
                given,
                kept,
                shared,
                blocks,
            };
            row.normalise(k)
        })?;
        if let Some(blocks) = together {
            // A block stays while others may still write there: a rule of all clusters.
            k.add(Header::new(Kind::Sync, (), (), block).on(blocks))?;
        }
        k.finish(Kind::Fused(self.meaning(&tables, &columns)), all_outs, all_ins)
    }
}
