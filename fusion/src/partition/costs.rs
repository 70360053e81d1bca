//! Cost: a roofline of a whole group on a target, under planning hints.
//!
//! A launch reads every outside value once, and again where its blocks share values that the last cache does not
//! hold; what it takes only row-major and lies otherwise is copied before it, by a launch of its own; it writes what is
//! read outside of it; matmuls run at the peak rate of their type, all else on the vector units at some operations an
//! element. Fewer blocks than cores leave cores idle. Memory and arithmetic overlap, but not perfectly.

use crate::base::cost::{Cost, LOOP_BLOCK, move_cost, read_time};
use crate::base::elements::{is_by_threads, operand_type};
use crate::base::groups::{Executor, Family};
use crate::base::sizes::ceil;
use crate::base::variants::When;
use crate::families::attention::blocks_of_decode;
use crate::families::calls::matmul_in_single;
use crate::families::layout::takes_views;
use crate::families::library::are_matmul_call;
use crate::families::tiles::rows_of_layers;
use crate::partition::fusion_graph::{FusionGraph, Operation, Role};
use crate::partition::grids::{self, of_items, vector_of};
use crate::partition::legal::TILE_ROWS;
use crate::partition::set::{OpId, Set};
use graphene_frontend::op::{Op, ReduceOp, RnnCell};
use graphene_frontend::{DType, Dim, NodeId, ValueId};
use graphene_ir::arch::Feature;
use graphene_ir::target::{Kind, Precision, Target};
use graphene_ir::template::gemm::ROWS;
use graphene_ir::template::mlp::Warpgroups;
use std::collections::{BTreeSet, HashSet};

/// How many times as long a GPU's warps take for a chain of layers as its warpgroups for matmuls of as few columns, where all
/// cores are busy: 100 to 120 TFLOP/s on an H200 (20 layers of 128, 16384 rows; ConvNeXt's of 96, 384 and 96) and 400 to 500.
const BY_WARPS: f64 = 4.0;
/// Seconds that a block whose threads multiply waits for a stage of its weights beside its arithmetic, and for the next layer of a
/// chain. Measured on an H200: of 128 columns and depth, matmuls of 16, 64 and 1024 rows take 4.0, 4.4 and 4.6 µs, of which 2.6,
/// 3.1 and 3.1 would be the launch and arithmetic; a layer of 16 rows takes 3.4, of 32 4.9, of 64 7.7, of which 1.2, 2.3 and 4.7
/// would be.
const STAGE_BY_THREADS: f64 = 0.17e-6;
const LAYER_BY_THREADS: f64 = 0.8e-6;
/// The depth of a stage, and how many stages a block has at most: of more the depth is split, or tiles are so many that blocks wait
/// beside each other.
const DEPTH_OF_STAGE: f64 = 16.0;
const MOST_STAGES: f64 = 16.0;
/// The fewest rows of a matmul's tile whose threads multiply.
const TILE_BY_THREADS: f64 = 32.0;
/// Rows and columns of a matmul's tile, and of the one for small matmuls on a CPU; rows of queries of attention.
const TILE: f64 = 128.0;
const SMALL_TILE: f64 = 64.0;
/// Side of the square of a matmul that a CPU core keeps in its caches.
const CPU_SQUARE: f64 = 1024.0;
/// Rows that a CPU core takes through a chain of layers: at least where there are few, at most where there are many.
const CPU_ROWS: [f64; 2] = [16.0, 96.0];

/// Bytes that one launch keeps inside, which two hand on through memory.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Kept {
    /// That the later of the two does not read.
    pub(crate) read: f64,
    /// That the earlier one does not write.
    pub(crate) written: f64,
}

pub(crate) struct Costs<'a> {
    pub(crate) net: &'a FusionGraph<'a>,
    target: &'a Target,
    /// For each operation the seconds of its arithmetic on the whole machine.
    work: Vec<f64>,
    /// For each operation its sizes, if it is a matmul.
    matmuls: Vec<Option<MatMul>>,
}

/// Sizes of a matmul; a batch that shares its weights is more rows.
#[derive(Clone, Copy)]
struct MatMul {
    batch: f64,
    m: f64,
    n: f64,
    k: f64,
}

impl<'a> Costs<'a> {
    pub(crate) fn new(net: &'a FusionGraph<'a>) -> Self {
        let work = net.ids().map(|op| work(net, op)).collect();
        let is_matmul = |op: &OpId| net.node(*op).op().is_matmul();
        let matmul = |op: OpId| Some(op).filter(is_matmul).map(|op| matmul(net, &net[op]));
        Self { net, target: net.target, work, matmuls: net.ids().map(matmul).collect() }
    }

    pub(crate) fn of(&self, set: Set, family: Family) -> Cost {
        let mut cost = self.traffic(set.iter(), |op| set.contains(op));
        cost.reread = self.reread(set, family);
        cost.blocks = self.blocks(set, family).max(1.0);
        (cost.copies, cost.copied) = self.copies(set, family);
        cost.launch = self.target.launch_cost * f64::from(1 + cost.copies);
        let cores = f64::from(self.target.cores);
        let filled = (cost.blocks / cores).min(1.0);
        let work = set.iter().map(|op| self.work[op.index()]).sum::<f64>();
        // Where cores have nothing else to do, all wait for each other's layers alike.
        let busy = || self.chain_blocks(set, TILE_ROWS as f64) >= cores;
        let slow = family == Family::Mlp
            && busy()
            && self.has_warpgroups(set)
            && !self.chain_fits_warpgroups(set);
        cost.arithmetic = work / filled * if slow { BY_WARPS } else { 1.0 };
        let own = cost.read + cost.reread + cost.written;
        cost.memory = read_time(self.target, own, cost.blocks);
        if self.is_by_threads(set, family) && !self.is_called(set, family) {
            let waits = self.waits(set, family);
            cost.arithmetic = cost.arithmetic * self.filling(set, family, cost.blocks) + waits;
            // Meanwhile weights come.
            cost.memory = (cost.memory - waits).max(own / self.target.memory_bandwidth);
        }
        cost.memory += 2.0 * cost.copied / self.target.memory_bandwidth;
        cost
    }

    /// Whether warpgroups (`wgmma`) take the operands of a group's matmuls.
    fn has_warpgroups(&self, set: Set) -> bool {
        let half = matches!(self.operand_type(set), Some(DType::F16 | DType::BF16));
        self.target.has(Feature::Wgmma) && half
    }

    /// Whether a GPU's threads multiply the operands of a group's matmuls, not its tensor cores.
    fn is_by_threads(&self, set: Set, family: Family) -> bool {
        self.target.kind != Kind::Cpu
            && matches!(family, Family::MatMul | Family::Mlp)
            && self.operand_type(set).is_some_and(|dtype| is_by_threads(self.target, dtype))
    }

    /// The type of the operands of a group's first matmul, if it has one.
    fn operand_type(&self, set: Set) -> Option<DType> {
        let first = self.net.matmuls(set).next()?;
        operand_type(self.net.graph, self.net[first].node)
    }

    /// Whether what threads would multiply is a call of the library, which is taken to wait for nothing.
    fn is_called(&self, set: Set, family: Family) -> bool {
        let matmul = || self.net.matmuls(set).next().filter(|_| family == Family::MatMul);
        let call = matmul().and_then(|op| {
            let MatMul { m, n, .. } = self.matmuls[op.index()]?;
            let sizes = [m, n].map(|size| Dim::from(size as i64));
            matmul_in_single(self.target, self.net.graph, self.net[op].node, sizes)
        });
        let nodes = || set.iter().map(|op| self.net[op].node).collect::<Vec<_>>();
        call == Some(When::Always) && are_matmul_call(self.net.graph, &nodes())
    }

    /// How many times as many rows as there are blocks whose threads multiply have: their tiles are whole.
    fn filling(&self, set: Set, family: Family, blocks: f64) -> f64 {
        let matmuls = || self.net.matmuls(set).filter_map(|op| self.matmuls[op.index()]);
        let least = |of: MatMul| (of.m / TILE_BY_THREADS).ceil() * TILE_BY_THREADS / of.m.max(1.0);
        match family {
            Family::Mlp => blocks * self.chain_rows(set)[0] / self.chain_blocks(set, 1.0),
            _ => matmuls().map(least).fold(1.0, f64::max),
        }
    }

    /// Seconds that blocks whose threads multiply wait.
    fn waits(&self, set: Set, family: Family) -> f64 {
        let matmuls = || self.net.matmuls(set).filter_map(|op| self.matmuls[op.index()]);
        let stages =
            |of: MatMul| (of.k / DEPTH_OF_STAGE).ceil().min(MOST_STAGES) * STAGE_BY_THREADS;
        match family {
            Family::Mlp => matmuls().map(|of| stages(of) + LAYER_BY_THREADS).sum(),
            _ => matmuls().map(stages).fold(0.0, f64::max),
        }
    }

    /// Whether layers are of widths that warpgroups take.
    fn chain_fits_warpgroups(&self, set: Set) -> bool {
        let matmuls = || self.net.matmuls(set);
        let known = |shape| self.net.known(shape).last().copied().flatten().unwrap_or(1);
        let first = matmuls().next().and_then(|op| self.net.node(op).inputs()[0]);
        let read = first.and_then(|x| self.net.graph.ty(x).shape.last()?.known());
        let widths: Vec<i64> = matmuls().map(|op| known(self.net[op].shape)).chain(read).collect();
        Warpgroups::are_for(&widths)
    }

    /// The cost of two launches' work as one, by what each of them costs: an estimate of what a template would gain that
    /// nobody has. Their arithmetic stays, and their traffic but for the `kept` bytes that stay inside.
    pub(crate) fn joined(&self, from: Cost, to: Cost, kept: Kept) -> Cost {
        let memory = |cost: Cost, kept: f64| {
            let own = cost.read + cost.reread + cost.written + 2.0 * cost.copied;
            if own > 0.0 { cost.memory * (1.0 - (kept / own).min(1.0)) } else { cost.memory }
        };
        Cost {
            read: from.read + (to.read - kept.read).max(0.0),
            reread: from.reread + to.reread,
            copies: from.copies + to.copies,
            copied: from.copied + to.copied,
            written: (from.written - kept.written).max(0.0) + to.written,
            arithmetic: from.arithmetic + to.arithmetic,
            memory: memory(from, kept.written) + memory(to, kept.read),
            launch: from.launch + to.launch - self.target.launch_cost,
            blocks: from.blocks.max(to.blocks),
        }
    }

    /// What stays inside if these operations, and those that read their results, are one launch.
    pub(crate) fn kept(&self, from: &[OpId], to: &[OpId]) -> Kept {
        let both = |op: OpId| from.contains(&op) || to.contains(&op);
        let own = |ops: &[OpId]| self.traffic(ops.iter().copied(), |op| ops.contains(&op));
        let (a, b) = (own(from), own(to));
        let all = self.traffic(from.iter().chain(to).copied(), both);
        Kept { read: a.read + b.read - all.read, written: a.written + b.written - all.written }
    }

    fn traffic(&self, ops: impl Iterator<Item = OpId>, inside: impl Fn(OpId) -> bool) -> Cost {
        let mut cost = Cost::default();
        let mut seen: HashSet<ValueId> = HashSet::new();
        for op in ops {
            let operation = &self.net[op];
            for read in &operation.reads {
                let inner = read.from.is_some_and(&inside);
                if !inner && seen.insert(read.part) {
                    // Of a table as much is read as is found in it.
                    let is_table = operation.family == Family::Gather && read.slot == 0;
                    let most = if is_table { operation.writes[0].bytes } else { f64::INFINITY };
                    cost.read += read.bytes.min(most);
                }
            }
            let stored = operation.writes.iter().filter(|written| written.leaves(&inside));
            cost.written += stored.map(|written| written.bytes).sum::<f64>();
        }
        cost
    }

    /// The values that are copied before the launch, and their bytes. Pointwise operations of larger groups read
    /// through views, and the reference takes values as they lie.
    fn copies(&self, set: Set, family: Family) -> (u32, f64) {
        let alone = set.len() == 1;
        if takes_views(family) || alone && self.net[set.first()].executor == Executor::Reference {
            return (0, 0.0);
        }
        let net = self.net;
        let copied = set.iter().filter(|&op| alone || !matches!(net[op].role, Role::Point { .. }));
        let copied = copied.flat_map(|op| {
            let reads = net[op].reads.iter().filter(|read| !read.row_major);
            reads.map(move |read| net.node(op).inputs()[read.slot].expect("reads are of values"))
        });
        let copied: BTreeSet<ValueId> = copied.collect();
        (copied.len() as u32, copied.iter().fold(0.0, |bytes, &value| bytes + net.bytes(value)))
    }

    pub(crate) fn of_move(&self, id: NodeId) -> Cost {
        let (bytes, ty) = (self.net.bytes(id.value()), self.net.graph.ty(id.value()));
        let elements = bytes / ty.dtype.size() as f64;
        let blocks = match self.target.kind {
            Kind::Cpu => (elements / LOOP_BLOCK).max(1.0),
            Kind::Cuda { .. } => {
                let from = self.net.graph.node(id).inputs()[0].map(|from| self.net.graph.ty(from));
                let row = from.and_then(|from| from.shape.last()?.known()).unwrap_or(1);
                let vector = vector_of(row, ty.dtype.size() as i64);
                let known = ty.shape.iter().all(|dim| dim.known().is_some());
                of_items((ceil(elements as i64, vector), known), self.target) as f64
            }
        };
        Cost { blocks, ..move_cost(self.target, bytes) }
    }

    /// Bytes that blocks read again because they share them, unless the last cache holds them.
    fn reread(&self, set: Set, family: Family) -> f64 {
        let cache = self.target.l2_bytes as f64;
        let uncached = |shared: f64, again: f64| if shared <= cache { 0.0 } else { again };
        match family {
            Family::MatMul => set.iter().map(|op| self.matmul_reread(op, cache)).sum(),
            Family::Mlp => {
                let weights = self.net.matmuls(set).map(|op| self.net[op].reads[1].bytes);
                let weights: f64 = weights.sum();
                let [most, fewest] = self.chain_rows(set).map(|rows| self.chain_blocks(set, rows));
                let blocks = fewest.max(most.min(f64::from(self.target.cores)));
                uncached(weights, weights * (blocks - 1.0))
            }
            Family::Fmha => {
                let operation = &self.net[set.first()];
                let keys = operation.reads.iter().filter(|read| matches!(read.slot, 1 | 2));
                let keys: f64 = keys.map(|read| read.bytes).sum();
                let queries = self.net.sizes(operation.shape).get(2).copied().unwrap_or(1.0);
                uncached(keys, keys * ((queries / TILE).ceil() - 1.0).max(0.0))
            }
            Family::View | Family::Copy | Family::Pointwise | Family::Normalization => 0.0,
            Family::Reduction | Family::Gather | Family::Convolution => 0.0,
            Family::Recurrent | Family::Control => 0.0,
        }
    }

    /// Tiles that run together are a square that shares its rows of A and columns of B.
    fn matmul_reread(&self, op: OpId, cache: f64) -> f64 {
        let Some(MatMul { m, n, .. }) = self.matmuls[op.index()] else { return 0.0 };
        let (a, b) = (self.net[op].reads[0].bytes, self.net[op].reads[1].bytes);
        if a + b <= cache {
            return 0.0;
        }
        let side = match self.target.kind {
            Kind::Cpu => CPU_SQUARE,
            Kind::Cuda { .. } => TILE * f64::from(self.target.cores).sqrt(),
        };
        let again = |length: f64| ((length / side).ceil() - 1.0).max(0.0);
        a * again(n) + b * again(m)
    }

    fn blocks(&self, set: Set, family: Family) -> f64 {
        match (self.target.kind, family) {
            (_, Family::Mlp) => self.chain_blocks(set, self.chain_rows(set)[0]),
            (_, Family::Fmha) => self.attention_blocks(set.first()),
            (Kind::Cuda { .. }, _) => grids::blocks(self.net, set, family) as f64,
            (Kind::Cpu, _) => self.cpu_blocks(set, family),
        }
    }

    fn attention_blocks(&self, op: OpId) -> f64 {
        let net = self.net;
        let sizes = net.sizes(net[op].shape);
        let queries = sizes.get(2).copied().unwrap_or(1.0);
        // One query of each head: blocks share the keys of each, or heads that share keys are one tile of a warpgroup's.
        let half = net[op].dtype != DType::F32;
        let keys = net.read(op, 1).filter(|_| queries == 1.0).map(|keys| net.sizes(keys.shape));
        let all = matches!(net.node(op).op(), Op::Attention(attrs) if !attrs.causal);
        if let (&[batch, heads, ..], Some(&[_, kv_heads, count, _]), true) = (sizes, keys, all) {
            let group = (heads / kv_heads) as i64;
            let of_keys = [(batch * kv_heads) as i64, count as i64];
            if let Some(blocks) = blocks_of_decode(self.target, group, of_keys) {
                return blocks as f64;
            }
        }
        let keys = keys.filter(|_| half && self.target.has(Feature::Wgmma));
        let heads: f64 = keys.unwrap_or(sizes).iter().take(2).product();
        heads * (queries / TILE).ceil()
    }

    /// What a CPU's cores take one after the other.
    fn cpu_blocks(&self, set: Set, family: Family) -> f64 {
        let net = self.net;
        let matmuls = || set.iter().filter_map(|op| self.matmuls[op.index()]);
        let tiles = |side: f64| -> f64 {
            matmuls().map(|p| p.batch * (p.m / side).ceil() * (p.n / side).ceil()).sum()
        };
        let of_rows = matches!(family, Family::Normalization | Family::Reduction);
        let row = set.iter().find_map(|op| net[op].role.row()).filter(|_| of_rows);
        let rows = || row.map(|row| net.sizes(row.full)[..row.first].iter().product());
        match family {
            Family::MatMul if matmuls().next().is_some() => {
                let wide = tiles(TILE);
                if wide < f64::from(self.target.cores) { tiles(SMALL_TILE) } else { wide }
            }
            // Its steps wait for each other.
            Family::Recurrent => f64::from(self.target.cores),
            _ => rows().unwrap_or_else(|| net.elements(net[set.first()].shape) / LOOP_BLOCK),
        }
    }

    /// Blocks of so many rows that go through a chain of layers.
    fn chain_blocks(&self, set: Set, rows: f64) -> f64 {
        let matmuls = set.iter().filter_map(|op| self.matmuls[op.index()]);
        matmuls.map(|p| p.batch * (p.m / rows).ceil()).fold(1.0, f64::max)
    }

    /// Rows that go through a chain of layers together, at least and at most.
    fn chain_rows(&self, set: Set) -> [f64; 2] {
        match self.target.kind {
            Kind::Cpu => CPU_ROWS,
            Kind::Cuda { .. } => {
                let dtype = self.net[set.first()].dtype;
                let rows = rows_of_layers(self.target, dtype, self.chain_blocks(set, 1.0) as i64);
                let warpgroups = self.has_warpgroups(set) && self.chain_fits_warpgroups(set);
                [if warpgroups { rows.max(ROWS) } else { rows } as f64; 2]
            }
        }
    }
}

/// Seconds of an operation's arithmetic on the whole machine.
fn work(net: &FusionGraph<'_>, op: OpId) -> f64 {
    let (operation, target) = (&net[op], net.target);
    let output = net.elements(operation.shape);
    let node = net.node(op);
    let input = |slot: usize| net.read(op, slot).map(|read| net.sizes(read.shape));
    let elements = |slot: usize| input(slot).map_or(0.0, |sizes| sizes.iter().product());
    let size = |slot: usize, axis: usize| {
        input(slot).and_then(|sizes| sizes.get(axis).copied()).unwrap_or(1.0)
    };
    let last = |slot: usize| input(slot).and_then(|sizes| sizes.last().copied()).unwrap_or(1.0);
    let vector = |operations: f64| operations / target.peak.of(Precision::F32);
    let multiplied = operand_type(net.graph, operation.node).unwrap_or(operation.dtype);
    let matmuls =
        |operations: f64| operations / target.peak.of(precision(multiplied, target.single()));
    // Recurrent layers and transposed convolutions never round single precision.
    let whole =
        |operations: f64| operations / target.peak.of(precision(operation.dtype, Precision::F32));
    match node.op() {
        op @ (Op::Unary(_) | Op::Binary(_)) => vector(output * op.info().work),
        Op::MatMul | Op::WideMatMul => matmuls(output * 2.0 * last(0)),
        Op::Softmax { .. } => vector(output * 20.0),
        Op::LayerNorm { .. } | Op::RmsNorm { .. } => vector(output * 8.0),
        Op::Reduce { op: ReduceOp::LogSumExp, .. } => vector(elements(0) * 20.0),
        Op::Reduce { .. } | Op::ArgReduce { .. } | Op::Cumulative { .. } => vector(elements(0)),
        Op::Attention(_) => {
            let scores = elements(0) / last(0).max(1.0) * size(1, 2);
            vector(scores * 20.0) + whole(scores * 2.0 * (last(0) + last(2)))
        }
        Op::Conv(_) | Op::WideConv(_) => matmuls(output * 2.0 * elements(1) / size(1, 0).max(1.0)),
        Op::ConvTranspose { .. } => whole(elements(0) * 2.0 * elements(1) / size(1, 0).max(1.0)),
        Op::Pool(attrs) => vector(output * attrs.kernel.iter().product::<usize>() as f64),
        Op::Rnn(attrs) => {
            let gates = match attrs.cell {
                RnnCell::Lstm { .. } => 4.0,
                RnnCell::Gru { .. } => 3.0,
                RnnCell::Plain => 1.0,
            };
            let rows = elements(0) / last(0).max(1.0);
            whole(rows * 2.0 * gates * size(2, 0) * last(2) * (last(0) + last(2)))
        }
        Op::Input | Op::Constant(_) | Op::Iota(_) | Op::Size(_) => vector(output),
        Op::Select | Op::Cast { .. } | Op::BitCast(_) | Op::Reshape(_) => vector(output),
        Op::Transpose(_) | Op::Expand(_) | Op::Slice(_) | Op::Concat { .. } => vector(output),
        Op::Pad { .. } | Op::Gather { .. } | Op::GatherElements { .. } => vector(output),
        Op::GatherNd { .. } | Op::ScatterElements { .. } | Op::ScatterNd { .. } => vector(output),
        Op::TopK { .. } | Op::NonZero | Op::Resize(_) => vector(output),
        // What a branch or a loop does depends on values.
        Op::If { .. } | Op::Loop { .. } | Op::Scan(_) => 0.0,
    }
}

/// The class of matmuls of such elements, where `single` is that of single precision.
fn precision(dtype: DType, single: Precision) -> Precision {
    match dtype {
        DType::F16 => Precision::F16,
        DType::BF16 => Precision::Bf16,
        DType::F32 => single,
        _ => Precision::F32,
    }
}

fn matmul(net: &FusionGraph<'_>, operation: &Operation) -> MatMul {
    let sizes = net.sizes(operation.shape);
    let (outer, inner) = sizes.split_at(sizes.len().saturating_sub(2));
    let (batch, m, n) = (outer.iter().product::<f64>(), inner[0], inner[1]);
    let read = |slot: usize| operation.reads.get(slot).map(|read| net.sizes(read.shape));
    let k = read(0).and_then(|a| a.last().copied()).unwrap_or(1.0);
    let shares_weights = read(1).is_some_and(|b| b.len() == 2);
    let (batch, m) = if shares_weights { (1.0, batch * m) } else { (batch, m) };
    MatMul { batch, m, n, k }
}
