//! How stages are filled: by tensor copies of one thread, or by moves of single elements, which need not be aligned. And what
//! is done before predecessors are (programmatic dependent launch): a layer's weights, which they have not made, are on
//! their way then.

use super::{Context, Edges, GROUP, PANEL, Place};
use crate::error::MultipleOf;
use crate::schedule::vector;
use crate::template::matmul::{Both, MatMul, tiled};
use crate::template::{fragments::own_group, stage::Side, tiled_mma::By};
use crate::{
    Builder, Cond, Expr, Fence, Header, Kind, Operand, Relation, Result, TensorId, Test, ThreadsId,
    Tiler, Var,
};

/// Loads that a thread issues before it waits for the first.
const LOADS: i64 = 8;

/// What a stage is filled with.
struct Fill<'a> {
    term: usize,
    place: &'a Place,
    /// The step along K.
    step: Expr,
    stage: &'a Var,
    /// Of the first term of the block's first tile, which of its steps that is; of all others, no less than there are stages.
    number: Expr,
    /// What tiles of A and of B are of, in tiles of global memory.
    from: &'a Both,
    full: Operand,
    /// Who fills it.
    threads: ThreadsId,
}

/// A (0) or B (1), and which of its matrices.
type Factor = (usize, usize);

impl Fill<'_> {
    /// The place of the step's tile of A and of B, along both of its dimensions.
    fn at(&self) -> [[&Expr; 2]; 2] {
        [[&self.place.m, &self.step], [&self.step, &self.place.n]]
    }
}

impl Context<'_> {
    /// What the producer warpgroup does.
    pub(super) fn produce(&self, k: &mut Builder) -> Result {
        let (own, _) = own_group(k, self.groups)?;
        if !self.gemm.is_light() {
            k.spec(Kind::Registers(self.gemm.producer_registers()), (), (), own)?;
        }
        if self.gemm.edges == Edges::Moves {
            return self.fill_by_moves(k, own);
        }
        let first = GROUP * self.gemm.consumers;
        k.role(self.block, first..first + 1, |k| self.fill_by_copies(k))
    }

    /// One thread issues tensor copies, box by box.
    fn fill_by_copies(&self, k: &mut Builder) -> Result {
        let (gemm, one) = (self.gemm, k.one()?);
        self.each_stage(k, one, gemm.boxes(), |k, fill| {
            if gemm.has_pdl_prologue() {
                // Of the first stages, B has been asked for already.
                let late = Cond::new(fill.number.clone(), Relation::AtLeast, gemm.stages);
                k.if_(late, |k| {
                    self.expect(k, fill)?;
                    self.bring(k, 1, fill)
                })?;
                return self.bring(k, 0, fill);
            }
            self.expect(k, fill)?;
            self.bring(k, 0, fill)?;
            self.bring(k, 1, fill)
        })
    }

    /// A stage is full when so many bytes have come.
    fn expect(&self, k: &mut Builder, fill: &Fill<'_>) -> Result {
        let gemm = self.gemm;
        let bytes = (gemm.rows() + gemm.columns) * gemm.depth() * gemm.matmul.scalar.bytes();
        k.alone(Kind::Arrive(Some(bytes.into())), fill.full.clone(), ())
    }

    /// Copies the boxes of a step's tile of A (0) or B (1): of a cluster, the own share of B to both blocks.
    fn bring(&self, k: &mut Builder, i: usize, fill: &Fill<'_>) -> Result {
        let (size, box_) = (self.gemm.sizes()[i], self.gemm.boxes()[i]);
        let count = [size[0] / box_[0], size[1] / box_[1]];
        let pair = self.pair.as_ref().filter(|_| i == 1);
        let on = |header: Header| header.on(pair.map(|(pair, _)| *pair));
        let rank = pair.map_or(Expr::from(0), |(_, rank)| rank.clone());
        let each = |count: i64| (0..count).map(Expr::from);
        let own: Vec<[Expr; 2]> = match (i, self.gemm.matmul.b_transposed) {
            (0, _) => each(count[0]).map(|row| [row, 0.into()]).collect(),
            (_, true) => each(count[1]).map(|column| [rank.clone(), column]).collect(),
            (_, false) => vec![[0.into(), rank]],
        };
        fill.from[i].iter().enumerate().try_for_each(|(matrix, &from)| {
            let to = k.index(self.shared[i], "stage", [fill.stage])?;
            let to = k.tile(to, "boxes", &box_.map(Tiler::Size))?;
            let header = self.stage_of(k, (i, matrix), fill)?.signals(fill.full.clone());
            k.decompose(on(header), |k| {
                own.iter().cloned().try_for_each(|[row, column]| {
                    let [m, n] = fill.at()[i].map(Expr::clone);
                    let at = [m * count[0] + &row, n * count[1] + &column];
                    let from = Operand::at(from, fill.place.at(at));
                    let to = Operand::at(to, [row, column + matrix as i64 * count[1]]);
                    k.add(on(Header::alone(Kind::Move, to, from).signals(fill.full.clone())))
                })
            })
        })
    }

    /// Moves a step's tile of a matrix of A or of B to its place in the stage.
    fn stage_of(&self, k: &mut Builder, (i, matrix): Factor, fill: &Fill<'_>) -> Result<Header> {
        let of = &self.declared.terms[fill.term].factors[i];
        let from = tiled(k, of[matrix], "step", self.gemm.sizes()[i])?;
        let from = Operand::at(from, fill.place.at(fill.at()[i].map(Expr::clone)));
        let to = match of.len() {
            1 => Operand::at(self.shared[i], [fill.stage]),
            _ => self.part_of(k, (i, matrix), fill.stage)?.into(),
        };
        Ok(Header::new(Kind::Move, to, from, fill.threads))
    }

    /// Where a matrix's tile lies in a stage.
    fn part_of(&self, k: &mut Builder, (i, matrix): Factor, stage: &Var) -> Result<TensorId> {
        let (matmul, tile) = (&self.gemm.matmul, [self.gemm.rows(), self.gemm.columns]);
        let sides = Side::both(matmul, tile, self.gemm.depth(), By::Warpgroups);
        let to = k.index(self.shared[i], "stage", [stage])?;
        sides[i].part(k, to, matrix)
    }

    /// Fills one stage after the other, for every step of every term, from tiles of so many rows and columns.
    fn each_stage(
        &self,
        k: &mut Builder,
        threads: ThreadsId,
        tiles: [[i64; 2]; 2],
        fill: impl Fn(&mut Builder, &Fill<'_>) -> Result,
    ) -> Result {
        let from = self.declared.in_tiles(k, ["gA", "gB"], tiles)?;
        let state = self.pipeline.begin(k, "filling")?;
        self.each_tile(k, self.first.clone(), self.stride.clone(), |k, t, place| {
            (0..self.steps.len()).try_for_each(|term| {
                let (first, count) = self.own_steps(term);
                k.for_("k", first.clone()..first.clone() + count, 1, false, |k, step| {
                    state.produce(k, threads, |k, full, stage| {
                        let tiles = Expr::from(t) - self.first.clone();
                        let number = match term {
                            0 => tiles * self.gemm.stages + step - first.clone(),
                            _ => self.gemm.stages.into(),
                        };
                        let (step, from) = (step.into(), &from[term]);
                        fill(k, &Fill { term, place, step, stage, number, from, full, threads })
                    })
                })
            })
        })
    }

    /// All threads move elements, [`LOADS`] each at a time, zeros where there are none.
    fn fill_by_moves(&self, k: &mut Builder, own: ThreadsId) -> Result {
        let MatMul { scalar, a_transposed, b_transposed, .. } = self.gemm.matmul;
        let [thread] = k.indices(own, ["mover"])?;
        self.each_stage(k, own, self.gemm.sizes(), |k, fill| {
            let of_side = |i: usize| (0..fill.from[i].len()).map(move |matrix| (i, matrix));
            for (i, matrix) in of_side(0).chain(of_side(1)) {
                let [rows, columns] = self.gemm.sizes()[i];
                MultipleOf(GROUP * LOADS).check("elements of a tile", rows * columns)?;
                let to = self.part_of(k, (i, matrix), fill.stage)?;
                let at = fill.place.at(fill.at()[i].map(Expr::clone));
                let from = k.index(fill.from[i][matrix], "tile", at)?;
                // Neighbouring threads read neighbours along the contiguous side.
                let across = [a_transposed, !b_transposed][i];
                let fast = Expr::from(if across { rows } else { columns });
                let header = self.stage_of(k, (i, matrix), fill)?;
                k.decompose(header, |k| {
                    k.for_("round", 0..rows * columns / (GROUP * LOADS), 1, false, |k, round| {
                        let at = |e: &Var| {
                            let linear = (Expr::from(round) * LOADS + e) * GROUP + &thread;
                            let (slow, fast) = (linear.div(&fast), linear.rem(&fast));
                            if across { [fast, slow] } else { [slow, fast] }
                        };
                        let words = vector(k, "words", LOADS, scalar)?;
                        k.unroll("e", LOADS, |k, e| {
                            let from = k.index(from, "from", self.within(at(e)))?;
                            k.init(Operand::at(words, [e]), 0.0)?;
                            let word = Operand::at(words, [e]);
                            k.if_(Test::Inside(from.into()), |k| k.move_(word, from))
                        })?;
                        k.unroll("e", LOADS, |k, e| {
                            k.move_(Operand::at(to, at(e)), Operand::at(words, [e]))
                        })
                    })
                })?;
            }
            k.spec(Kind::Fence(Fence::Proxy), (), (), own)?;
            k.alone(Kind::Arrive(None), fill.full.clone(), ())
        })
    }

    /// Coordinates within a tile, which may be one of a batch.
    fn within(&self, at: [Expr; 2]) -> Vec<Expr> {
        self.gemm.matmul.batched.then_some(Expr::from(0)).into_iter().chain(at).collect()
    }

    /// Brings what the first stages hold of the block's first tile of B, and asks for the lines of the rest.
    pub(super) fn pdl_prologue(&self, k: &mut Builder) -> Result {
        let gemm = self.gemm;
        if gemm.has_pdl_prologue() {
            let first = GROUP * gemm.consumers;
            let any = Cond::less(self.first.clone(), self.walk.count());
            k.role(self.block, first..first + 1, |k| k.if_(any, |k| self.fill_prologue(k)))?;
        }
        if gemm.prefetch { self.prefetch(k) } else { Ok(()) }
    }

    /// Copies of the first term's B into the first stages, whose barriers expect A as well. Fewer steps fill no more of them.
    fn fill_prologue(&self, k: &mut Builder) -> Result {
        let place = &self.walk.place(k, self.first.clone())?;
        let from = &self.declared.in_tiles(k, ["gA", "gB"], self.gemm.boxes())?[0];
        let threads = k.one()?;
        let (first, steps) = self.own_steps(0);
        let stages = steps.min(self.gemm.stages);
        k.for_("early", Expr::from(0)..stages, 1, false, |k, stage| {
            let full = Operand::at(self.pipeline.full, [stage]);
            let (step, number) = (first.clone() + stage, stage.into());
            let fill = Fill { term: 0, place, step, stage, number, from, full, threads };
            self.expect(k, &fill)?;
            self.bring(k, 1, &fill)
        })
    }

    /// All threads ask for the lines of the block's first tile of B, of each term, with which no stage has begun.
    fn prefetch(&self, k: &mut Builder) -> Result {
        let (gemm, depth, early) = (self.gemm, self.gemm.depth(), self.gemm.has_pdl_prologue());
        let [thread] = k.indices(self.block, ["thread"])?;
        let place = self.walk.place(k, self.first.clone())?;
        let threads = GROUP * (gemm.consumers + 1);
        // A line is 128 bytes: of a column's depth, or of a row's columns.
        let by_rows = gemm.matmul.b_transposed;
        let of_step = if by_rows { depth * (gemm.width() / PANEL) } else { gemm.width() };
        let terms = self.declared.terms.iter().enumerate();
        let mut all =
            terms.flat_map(|(number, term)| term.factors[1].iter().map(move |b| (number, b)));
        all.try_for_each(|(number, &b)| {
            let b = tiled(k, b, "lines", gemm.sizes()[1])?;
            let (first, steps) = self.own_steps(number);
            let begun =
                if early && number == 0 { steps.clone().min(gemm.stages) } else { 0.into() };
            let rounds = ((steps - begun.clone()) * of_step).ceil_div(threads);
            k.for_("round", Expr::from(0)..rounds, 1, false, |k, round| {
                let line = Expr::from(round) * threads + &thread;
                let step = first.clone() + begun.clone() + line.div(of_step);
                let line = line.rem(of_step);
                let tile = k.index(b, "tile", place.at([step, place.n.clone()]))?;
                let at = match by_rows {
                    true => [line.rem(depth), line.div(depth) * PANEL],
                    false => [0.into(), line],
                };
                let first = k.index(tile, "first", self.within(at))?;
                k.if_(Test::Inside(first.into()), |k| k.alone(Kind::Prefetch, (), first))
            })
        })
    }
}
