//! A row that the blocks of a cluster share. Each copies its part to shared memory asynchronously and folds it; the others are
//! sent what that gives, and each folds what all have.

use super::{Norm, Rows};
use crate::schedule::{begin_copy, commit_copies, copy, neighbours, vector, wait_for_copies};
use crate::template::access::Access;
use crate::template::gather::Place;
use crate::template::matmul::line;
use crate::template::rows::row::Row;
use crate::{
    Binary, Builder, Cond, Expr, Feature, Fence, Function, Header, Kind, Layout, Memory, Operand,
    Result, Scalar, Scope, TensorId, ThreadsId,
};

/// Columns from which so many blocks share a row of a softmax: the fastest of 2, 4 and 8 for 256 rows of 16385, 20001, 24001,
/// 32001 and 50257 columns on an H200.
const SHARED_BY: [(i64, i64); 3] = [(7 << 12, 8), (11 << 11, 4), (1 << 14, 2)];
/// The most blocks that every GPU with clusters takes.
pub(super) const MOST: i64 = 8;
/// Bytes of a line, in which memory is read and written.
const LINE: i64 = 128;

/// The blocks of a cluster.
pub(super) struct Blocks {
    pub(super) together: ThreadsId,
    block: ThreadsId,
    /// Which of them the own one is.
    rank: Expr,
    parts: i64,
    /// The number of the own part's first vector in the row, negative where that begins within a line.
    pub(super) first: Expr,
    /// `[fold, part]`: what each block has folded.
    folded: TensorId,
    /// `[fold]`: complete when all of that has come.
    there: TensorId,
}

impl Norm {
    /// How many statistics of a row it needs.
    fn folds(self) -> i64 {
        match self {
            Norm::None => 0,
            Norm::Rms => 1,
            Norm::Layer | Norm::Softmax | Norm::LogSoftmax => 2,
        }
    }
}

impl Rows {
    /// Likewise in parts, where there is such a kernel and it pays: softmax in single precision, of so many columns.
    pub(super) fn in_parts(&self, columns: i64) -> Option<Rows> {
        let softmax = matches!(self.norm, Norm::Softmax | Norm::LogSoftmax);
        let clusters = softmax && self.arch.has(Feature::Cluster);
        let (_, parts) = *SHARED_BY.iter().find(|(least, _)| columns >= *least)?;
        if !clusters || !self.comes_unchanged() {
            return None;
        }
        let (teams, held, shared) = (1, None, true);
        let columns = Some(columns);
        let rows = Rows { columns, threads: 256, teams, held, shared, parts, ..self.clone() };
        // Of chunks that need few registers those that leave least of the last one idle.
        let most = if self.vector == 1 { 8 } else { 4 };
        let of = (most / 2..=most).map(|ahead| Rows { ahead, ..rows.clone() });
        let rows = of.min_by_key(|rows| (rows.padded(), -rows.ahead))?;
        // Beside the row, what warps and blocks fold.
        let bytes = rows.padded() * Scalar::F32.bytes();
        (bytes + 1024 <= rows.arch.shared_memory()).then_some(rows)
    }

    /// Whether what is normalised is an operand of single precision, whose vectors asynchronous copies bring.
    pub(super) fn comes_unchanged(&self) -> bool {
        let own = self.places.iter().all(|place| *place == Place::Same);
        let single = |of: &Access| of.scalar == Scalar::F32 && of.contiguous();
        let plain = matches!(&self.ins[..], [only] if single(only));
        own && plain && self.prologue == Function::identity() && matches!(self.vector, 1 | 2 | 4)
    }

    /// Vectors of a line, where rows in parts begin within one, unless all do alike.
    pub(super) fn line_before(&self) -> i64 {
        let of_line = LINE / Scalar::F32.bytes() / self.vector;
        let packed = self.ins.iter().all(|of| *of == Access::packed(Scalar::F32, 2));
        let apart = self.columns.is_some_and(|columns| columns / self.vector % of_line != 0);
        if self.parts > 1 && packed && apart { of_line } else { 0 }
    }
}

impl Blocks {
    /// Allocates what blocks send, and lets one thread initialise its barriers. `row`: the cluster's.
    pub(super) fn new(
        k: &mut Builder,
        rows: &Rows,
        row: &Expr,
        (together, rank): (ThreadsId, Expr),
        block: ThreadsId,
    ) -> Result<Blocks> {
        let (parts, folds) = (rows.parts, rows.norm.folds());
        let mut first = rank.clone() * (rows.padded() / rows.vector);
        // Whole lines are loaded and stored by as few accesses of warps: so the first warp has what its line has of the row.
        let of_line = rows.line_before();
        if let (1.., Some(columns)) = (of_line, rows.columns) {
            let behind = row.rem(of_line) * (columns / rows.vector % of_line);
            first = first - k.let_("behind", behind.rem(of_line))?;
        }
        let each = Layout::rows([folds, parts]);
        let folded = k.allocate("folded", each, Scalar::F32, Memory::Shared, None)?;
        let there = k.allocate("there", line(folds), Scalar::Mbar, Memory::Shared, None)?;
        k.role(block, 0..1, |k| {
            k.unroll("fold", folds, |k, fold| {
                k.init(Operand::at(there, [fold]), 1.0)?;
                let bytes = Expr::from(parts * Scalar::F32.bytes());
                k.alone(Kind::Arrive(Some(bytes)), Operand::at(there, [fold]), ())
            })?;
            k.alone(Kind::Fence(Fence::Init), (), ())
        })?;
        Ok(Blocks { together, block, rank, parts, first, folded, there })
    }

    /// Of what each block has folded, what all have: of the fold of this number. Every block is sent it, and this one, too.
    pub(super) fn fold(
        &self,
        k: &mut Builder,
        (op, number): (Binary, usize),
        (value, member): (TensorId, &Expr),
    ) -> Result {
        let number = Expr::from(number as i64);
        k.if_(Cond::less(member.clone(), self.parts), |k| {
            let folded = k.peer(self.folded, "folded_there", member.clone())?;
            let there = k.peer(self.there, "all_there", member.clone())?;
            let to = Operand::at(folded, [number.clone(), self.rank.clone()]);
            let there = Operand::at(there, [number.clone()]);
            k.add(Header::alone(Kind::Move, to, value).signals(there))
        })?;
        let there = Operand::at(self.there, [number.clone()]);
        k.spec(Kind::Wait(Expr::from(0), Scope::Cluster), there, (), self.block)?;
        let come = neighbours(k, self.folded, [number, 0.into()], self.parts, "come")?;
        let all = vector(k, "all_folded", self.parts, Scalar::F32)?;
        copy(k, all, come, true)?;
        k.move_(value, Operand::at(all, [0]))?;
        k.unroll("part", self.parts - 1, |k, part| {
            k.reduce(op, value, Operand::at(all, [Expr::from(part) + 1]))
        })
    }
}

impl Row<'_> {
    /// Brings the own block's part of the row to shared memory, and meets the other blocks.
    pub(super) fn bring_part(&self, k: &mut Builder, blocks: &Blocks) -> Result {
        self.chunks(k, |k, some| {
            self.each(k, some, |k, at| {
                let from = self.view(k, &self.ins[0], at)?;
                let Some(shared) = self.shared else { return Ok(()) };
                self.pieces(k, [shared, from], at, |k, [to, from]| begin_copy(k, to, from))
            })
        })?;
        commit_copies(k)?;
        // Every block's barriers are initialised before another block signals them.
        k.add(Header::new(Kind::Sync, (), (), blocks.block).on(blocks.together))?;
        wait_for_copies(k, 0)
    }
}
