//! Tiles: the variants that a step has by its family and sizes, and what their tiles are.

use crate::base::elements::{is_by_threads, operand_type};
use crate::base::groups::Family;
use crate::base::parameters::{FoldsParameters, MlpParameters, Parameters};
use crate::base::sizes::{ceil, tiles};
use crate::base::variants::{Variant, Variants, When};
use crate::families::attention::variants_of_attention;
use crate::families::calls::{at_least, with_call};
use crate::families::estimates::{Sizes, TILES, Tile, best_tile, best_tiles};
use crate::families::kernels::sums::is_gated;
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, NodeId};
use graphene_frontend::op::Op;
use graphene_ir::arch::Feature;
use graphene_ir::target::{Kind, Target};
use std::collections::BTreeSet;

/// Rows of a block of layers that give each core its weights once, and from how many for each core on.
const ROWS_OF_LAYERS: &[(&str, i64, i64)] =
    &[("wide", 128, 96), ("narrow", 64, 48), ("few", 32, 0)];
/// Those of blocks whose threads multiply, as in single precision: 12 layers of 128 and 64 rows take 40.7 µs on an H200 by
/// blocks of 16 rows, 58.4 by blocks of 32; 4096 rows 65.8 and 60.6.
const ROWS_OF_LAYERS_BY_THREADS: &[(&str, i64, i64)] =
    &[("wide", 128, 96), ("narrow", 64, 48), ("few", 32, 16), ("fewest", 16, 0)];

fn all_rows_of_layers(target: &Target, dtype: DType) -> &'static [(&'static str, i64, i64)] {
    if is_by_threads(target, dtype) { ROWS_OF_LAYERS_BY_THREADS } else { ROWS_OF_LAYERS }
}

/// The rows of a block of layers of so many rows.
pub(crate) fn rows_of_layers(target: &Target, dtype: DType, rows: i64) -> i64 {
    let enough = |of_core: i64| rows >= of_core.saturating_mul(i64::from(target.cores));
    let mut all = all_rows_of_layers(target, dtype).iter();
    all.find(|(_, _, of_core)| enough(*of_core)).map_or(rows, |(_, of_block, _)| *of_block)
}

/// Split-K, where tiles are few: several blocks of a cluster share one.
struct Split {
    /// The name of its variant.
    name: &'static str,
    /// Into how many parts the depth is split.
    parts: i64,
    /// When it pays by warpgroups, and by single threads, where several blocks share a core.
    /// Measured on an H200 and an H100 at BERT's matmuls, whose depths are 768 and 3072, and at those of a Llama, whose depths
    /// are 2048 and 8192: by warpgroups in half precision, by threads in single precision. In half precision on an H200, with
    /// 12 columns of tiles: 24 tiles of a depth of 2048 take 4.6 µs in four parts and 4.3 in two, of 3072 5.2 and 5.5; 48 tiles of
    /// 3072 take 8.2 µs whole and 7.8 in two parts. By threads on an H200, four layers of 256 columns and depth: 1 to 64 rows, which
    /// are 4 or 8 tiles, take 27 to 29 µs whole and 14 to 15 in four parts; 1024 rows, which are 128, 31 whole and 36 in two.
    warpgroups: Pays,
    threads: Pays,
}

struct Pays {
    /// The most tiles for each core.
    tiles: f64,
    /// The least bytes of an operand's depth.
    depth: i64,
}

/// The most kernels of a matmul whose tiles are chosen by estimates.
pub(crate) const MOST_ESTIMATED: usize = 6;

/// The variants that split, of fewest parts first.
const SPLITS: [Split; 2] = [
    Split {
        name: "split2",
        parts: 2,
        warpgroups: Pays { tiles: 0.37, depth: 4096 },
        threads: Pays { tiles: 1.5, depth: 2048 },
    },
    Split {
        name: "split4",
        parts: 4,
        warpgroups: Pays { tiles: 0.19, depth: 5120 },
        threads: Pays { tiles: 0.67, depth: 1024 },
    },
];
/// Kernels of a matmul at most before that of the fewest rows, not counting those for multiples. Of gated ones, and in tiles of 192 columns, there may be one more:
/// then `split2` is left out, and `split4` takes its few rows.
const MOST_BEFORE_LAST: usize = 4;
/// Pixels and output channels of a tile of a convolution whose channels are innermost, by the names of variants.
pub(crate) const TILES_OF_PIXELS: [(&str, [i64; 2]); 4] =
    [("wide", [128, 128]), ("narrow", [64, 64]), ("few", [32, 32]), ("fewest", [16, 16])];
/// The fewest pixels and output channels of a kernel's tile. Variants of fewer (`fewest`) have this one, and split the depth or
/// have more stages.
pub(crate) const LEAST_OF_PIXELS: i64 = 32;

/// Output channels of a group and pixels of a tile of a convolution whose threads multiply, by the names of variants.
pub(crate) const TILES_OF_CHANNELS: [(&str, [i64; 2]); 3] =
    [("wide", [128, 128]), ("narrow", [64, 64]), ("few", [32, 64])];
/// Output channels of a group from which convolutions have tiles: half of the fewest rows that one has.
pub(crate) const TILED: i64 = 8;

/// Operations of the vector units for each element of a matmul, from which warpgroups ping-pong: while one computes
/// what becomes of its sums, another multiplies.
const LONG: f64 = 8.0;
const PING_PONG: &str = "ping-pong";

/// The variants of a convolution whose channels are innermost, of so many pixels and output channels: the largest tiles
/// of which cores have more than one. There is one variant where the pixels are known.
pub(crate) fn variants_of_pixels(target: &Target, pixels: &Dim, made: &Dim) -> Variants {
    if pixels.known().is_some() {
        return Variants::any();
    }
    let [first @ .., (last, _)] = TILES_OF_PIXELS;
    let first = first.into_iter().map(|(name, [rows, columns])| {
        let tiles = &tiles(pixels, rows) * &tiles(made, columns);
        Variant::named(name, When::AtLeast(tiles, enough_tiles_of_pixels(target)))
    });
    Variants::ending(first.collect(), last)
}

/// The variants of a convolution whose threads multiply, and whose pixels are innermost: the largest tiles of which there is one for each
/// core, down to the first that has as many at all sizes.
fn variants_of_channels(target: &Target, body: &Graph) -> Option<Variants> {
    let (id, attrs) = body.nodes().find_map(|(id, node)| match node.op() {
        Op::Conv(attrs) | Op::WideConv(attrs) => Some((id, attrs)),
        _ => None,
    })?;
    let shape = &body.ty(id.value()).shape;
    let group = attrs.group as i64;
    let made = shape[1].known()? / group;
    let by_threads = operand_type(body, id).is_some_and(|of| is_by_threads(target, of));
    if !by_threads || made < TILED {
        return None;
    }
    let pixels = shape[2..].iter().fold(shape[0].clone(), |all, size| &all * size);
    let mut first = Vec::new();
    let [.., (least, _)] = TILES_OF_CHANNELS;
    for (name, [rows, columns]) in tiles_of_channels(made) {
        let tiles = &tiles(&pixels, columns) * &Dim::from(ceil(made, rows) * group);
        match at_least(tiles, i64::from(target.cores)) {
            Some(When::Always) => return Some(Variants::ending(first, name)),
            Some(when) => first.push(Variant::named(name, when)),
            None => {}
        }
    }
    first.retain(|variant| variant.name != least);
    Some(Variants::ending(first, least))
}

/// Those of so many output channels of a group.
fn tiles_of_channels(made: i64) -> impl Iterator<Item = (&'static str, [i64; 2])> {
    TILES_OF_CHANNELS.into_iter().filter(move |(_, [rows, _])| made > rows / 2)
}

/// The blocks of such a convolution without groups, of so many pixels and output channels.
pub(crate) fn blocks_of_channels(target: &Target, pixels: i64, made: i64) -> i64 {
    let tiles = |[rows, columns]: [i64; 2]| ceil(made, rows).saturating_mul(ceil(pixels, columns));
    let mut all = tiles_of_channels(made).map(|(_, tile)| tiles(tile));
    let [.., (_, least)] = TILES_OF_CHANNELS;
    all.find(|tiles| *tiles >= i64::from(target.cores)).unwrap_or(tiles(least))
}

fn enough_tiles_of_pixels(target: &Target) -> i64 {
    i64::from(target.cores) * 3 / 2
}

/// The blocks of a convolution of so many pixels and output channels, by the largest tiles of which there are enough.
pub(crate) fn blocks_of_pixels(target: &Target, pixels: i64, made: i64) -> i64 {
    let tiles = |[rows, columns]: [i64; 2]| ceil(pixels, rows).saturating_mul(ceil(made, columns));
    let mut all = TILES_OF_PIXELS.into_iter().map(|(_, tile)| tiles(tile));
    let enough = all.find(|tiles| *tiles >= enough_tiles_of_pixels(target));
    let least = tiles([LEAST_OF_PIXELS; 2]);
    enough.map_or(least, |tiles| tiles.min(least))
}

/// The variants of a step of this family, that computes this body, on a target; best at the sizes that are planned for.
///
/// - Matmuls by warpgroups, of known columns and depth: the tiles that take least by [estimates](super::estimates) for that many
///   rows, of some shapes that are best together; where tiles are few, parts of the depth as below.
/// - Other matmuls on a GPU: the largest of some tiles ([`MatMuls::tiles`]) of which there are enough to keep the cores busy:
///   `wide`, `narrow`, else `few` rows; a tile lies within one matrix where each has its own B. Where tiles are fewer, four
///   blocks share the depth of one (`split4`), or two (`split2`); see `SPLITS`. Where cores have two tiles, or the
///   matmul is gated or what follows it takes long, warpgroups `ping-pong` rather than share `wide` ones; of very
///   many tiles of a gated one, they share the widest.
/// - Convolutions whose threads multiply: the largest tiles of which there is one for each core: `wide`, `narrow`, else `few`
///   output channels.
/// - Layers on a GPU: blocks of as many rows as leave few cores idle: `wide` ones of 128, `narrow` ones of 64, of `few` rows, or
///   of the `fewest` where threads multiply.
/// - Attention by warpgroups: two of them share a block's keys, and have a `wide` tile of queries. One alone has a
///   `short` one where there are no queries for a second, and a `narrow` one while all of those run at once. Heads of up to 64
///   elements have these by estimates, and three warpgroups a `tall` tile where all tiles attend equally many keys. Where several
///   heads share keys and each has one query, as when tokens are generated, these are one tile (`decode`).
/// - Attention of one query by threads, on any GPU: where heads are few, blocks share the keys of each (`decode8`, `decode2`;
///   `decode1` has one block a head).
/// - Matmuls, reductions and normalisations whose innermost size is a symbol: all their variants for multiples of [`MULTIPLE`], then
///   the same without that condition.
/// - Before them on a GPU, what a `library` computes in less time, if the machine has it: see `calls.rs`.
pub(crate) fn variants(
    target: &Target,
    family: Family,
    body: &Graph,
    sizes: &Bindings,
) -> Variants {
    if target.kind == Kind::Cpu {
        return Variants::any();
    }
    let own = match family {
        Family::MatMul => variants_of_matmuls(target, body, sizes),
        Family::Mlp => variants_of_layers(target, body),
        Family::Fmha => variants_of_attention(target, body),
        Family::Convolution => variants_of_channels(target, body),
        Family::View | Family::Copy | Family::Pointwise | Family::Normalization => None,
        Family::Reduction | Family::Gather | Family::Recurrent | Family::Control => None,
    };
    let symbols = symbols_of_rows(family, body);
    let mut own = own.unwrap_or_else(Variants::any).with_multiples(MULTIPLE, &symbols);
    if let Some(columns) = planned_columns(body, sizes).filter(|_| !symbols.is_empty()) {
        own.0[0].parameters = Some(Parameters::Folds(FoldsParameters { columns }));
    }
    with_call(target, family, body, own)
}

/// The elements of a row, as it is planned, that a normalisation or a reduction goes through.
fn planned_columns(body: &Graph, sizes: &Bindings) -> Option<i64> {
    body.nodes().find_map(|(_, node)| {
        let shape = &body.ty(node.input(0)?).shape;
        let axes = match node.op() {
            Op::Softmax { axis, .. } => &[*axis][..],
            Op::Reduce { axes, .. } => axes,
            _ => return None,
        };
        axes.iter().map(|&axis| &shape[axis]).product::<Dim>().eval(sizes).ok()
    })
}

/// Sizes of which rows are whole vectors of 16 bytes in all types of two bytes or more.
const MULTIPLE: i64 = 8;

/// The symbols that are the innermost size of an input or an output, if multiples of [`MULTIPLE`] have vectorised kernels.
fn symbols_of_rows(family: Family, body: &Graph) -> BTreeSet<Symbol> {
    if !matches!(family, Family::MatMul | Family::Normalization | Family::Reduction) {
        return BTreeSet::new();
    }
    let given = body.inputs().iter().map(|id| id.value());
    let values = given.chain(body.outputs().iter().map(|(_, value)| *value));
    let innermost = values.filter_map(|value| body.ty(value).shape.last());
    innermost.filter_map(Dim::as_symbol).cloned().collect()
}

fn variants_of_matmuls(target: &Target, body: &Graph, planned: &Bindings) -> Option<Variants> {
    let all = rows_of_matmul(body)?;
    let rows = all.iter().product::<Dim>();
    let matmuls = MatMuls::of(target, body)?;
    if let Some(sizes) = matmuls.estimated(target) {
        // A number that divides the rows, where they are several sizes multiplied.
        let known = all.iter().filter_map(Dim::known).filter(|_| matmuls.shared);
        let divisor = known.fold(1_i64, |all, size| all.saturating_mul(size.max(1)));
        let planned = rows.eval(planned).ok();
        return Some(matmuls.variants_by_estimates(target, &sizes, &rows, (divisor, planned)));
    }
    let (first, last) = matmuls.named(target);
    let from = |(name, least)| Variant::named(name, When::AtLeast(rows.clone(), least));
    Some(Variants::ending(first.into_iter().map(from).collect(), last))
}

fn variants_of_layers(target: &Target, body: &Graph) -> Option<Variants> {
    let rows = rows_of_matmul(body)?.iter().product::<Dim>();
    let dtype = body.ty(body.matmuls().first()?.value()).dtype;
    let all = all_rows_of_layers(target, dtype).iter().map(|&(name, of_block, of_core)| {
        let when = match of_core.saturating_mul(i64::from(target.cores)) {
            0 => When::Always,
            least => When::AtLeast(rows.clone(), least),
        };
        Variant { name, when, parameters: Some(Parameters::Mlp(MlpParameters { rows: of_block })) }
    });
    Some(Variants(all.collect()))
}

/// The axes of the rows of the first matmul that its tiles are cut from: those of all matrices where they share B, and of one
/// where each has its own.
fn rows_of_matmul(body: &Graph) -> Option<&[Dim]> {
    let node = body.node(*body.matmuls().first()?);
    let shared = body.ty(node.input(1)?).rank() == 2;
    let (_, rows) = node.outputs()[0].shape.split_last()?;
    Some(&rows[if shared { 0 } else { rows.len() - 1 }..])
}

/// The matmuls of one launch, as far as their tiles are chosen by them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatMuls {
    /// Whether two of one A gate each other, so that a tile has columns of both.
    pub(crate) gated: bool,
    /// Whether all matrices of a batch share B, so that their rows are cut together.
    pub(crate) shared: bool,
    /// The columns of the result, if they are known.
    pub(crate) columns: Option<i64>,
    /// How many matrices have their own B, as far as that is known.
    pub(crate) matrices: i64,
    /// Whether that is all of them.
    pub(crate) counted: bool,
    /// Bytes of an operand's depth, if they are known and it may be split: of one matmul, or of two gated ones.
    pub(crate) depth: Option<i64>,
    /// Whether they are of integers, or of single precision that is not rounded, which single threads multiply.
    pub(crate) by_threads: bool,
    /// Operations of the vector units for each element of what follows.
    pub(crate) follows: f64,
}

impl MatMuls {
    /// Those of a body, if it has any.
    pub(crate) fn of(target: &Target, body: &Graph) -> Option<Self> {
        let matmuls = body.matmuls();
        let follows = body.nodes().map(|(_, node)| node.op().info().work).sum();
        let how = [matmuls.len() == 1, is_gated(body)];
        Self::new(target, body, *matmuls.first()?, how, follows)
    }

    /// Those of which this is the first: it is alone, two gate each other, or several are added.
    pub(crate) fn new(
        target: &Target,
        graph: &Graph,
        first: NodeId,
        [alone, gated]: [bool; 2],
        follows: f64,
    ) -> Option<Self> {
        let (node, made) = (graph.node(first), graph.ty(first.value()));
        let (a, b) = (graph.ty(node.input(0)?), graph.ty(node.input(1)?));
        let shared = b.rank() == 2;
        let splits = (alone || gated) && a.dtype != DType::I32;
        let depth = a.shape.last().and_then(Dim::known).filter(|_| splits);
        let outer = &made.shape[..made.rank().saturating_sub(2)];
        let known = outer.iter().filter_map(Dim::known).filter(|_| !shared);
        Some(Self {
            gated,
            shared,
            columns: made.shape.last().and_then(Dim::known),
            matrices: known.fold(1, |all, n| all.saturating_mul(n.max(1))),
            counted: shared || outer.iter().all(|dim| dim.known().is_some()),
            depth: depth.map(|depth| depth.saturating_mul(a.dtype.size() as i64)),
            by_threads: is_by_threads(target, a.dtype),
            follows,
        })
    }

    /// The columns that tiles are cut from, if they are known.
    fn all_columns(&self) -> Option<i64> {
        self.columns?.checked_mul(if self.gated { 2 } else { 1 })
    }

    fn by_warpgroups(&self, target: &Target) -> bool {
        !self.by_threads && target.has(Feature::Wgmma)
    }

    /// The names of variants, the first ones with the rows from which they are taken, and the last one.
    fn named(&self, target: &Target) -> (Vec<(&'static str, i64)>, &'static str) {
        let mut tiles = self.tiles(target);
        let mut last = tiles.pop().expect("there are tiles of every kind").name;
        let rows = |tile: &Tile| (tile.name, self.rows_for(tile.size, tile.enough));
        let mut first: Vec<(&str, i64)> = tiles.iter().map(rows).collect();
        // Each is taken from so many rows on that the next is not.
        for (name, most_rows) in self.rows_to_split(target).into_iter().rev() {
            first.push((last, most_rows + 1));
            last = name;
        }
        first.truncate(MOST_BEFORE_LAST);
        (first, last)
    }

    /// What their tiles are chosen by, where that is what they are estimated to take.
    fn estimated(&self, target: &Target) -> Option<Sizes> {
        let known = self.counted && !self.gated && self.by_warpgroups(target);
        Some(Sizes {
            matrices: self.matrices,
            columns: self.columns.filter(|_| known)?,
            depth: self.depth?,
            follows: self.follows,
            cores: i64::from(target.cores),
        })
    }

    /// The variant that is estimated to be best for so many rows: one that splits the depth where that pays, else a shape.
    fn best_of_rows(&self, target: &Target, sizes: &Sizes, rows: i64) -> &'static str {
        let split = self.rows_to_split(target).into_iter().find(|(_, most)| rows <= *most);
        split.map_or_else(|| best_tile(sizes, rows).name, |(name, _)| name)
    }

    /// The variants for rows that are a multiple of a number, and planned to be so many.
    fn variants_by_estimates(
        &self,
        target: &Target,
        sizes: &Sizes,
        rows: &Dim,
        (divisor, planned): (i64, Option<i64>),
    ) -> Variants {
        if let Some(rows) = rows.known() {
            return Variants::ending(Vec::new(), self.best_of_rows(target, sizes, rows));
        }
        let splits = self.rows_to_split(target);
        let (shapes, last) = best_tiles(sizes, (divisor, planned), MOST_ESTIMATED - splits.len());
        let split = |(name, most)| Variant::named(name, When::AtMost(rows.clone(), most));
        let shapes = shapes.into_iter().map(|(shape, rows_of)| {
            Variant::named(shape.name, When::Within(rows.clone(), rows_of))
        });
        let first = splits.into_iter().map(split).chain(shapes);
        Variants::ending(first.collect(), last.name)
    }

    /// The blocks of a launch with so many rows of so many matrices, of so many columns: those of all tiles, each in as many
    /// parts as its depth is split into. Of warpgroups that split none there are no more than cores.
    pub(crate) fn blocks(&self, target: &Target, [matrices, rows, columns]: [i64; 3]) -> i64 {
        let name = match self.estimated(target) {
            Some(sizes) => self.best_of_rows(target, &Sizes { matrices, columns, ..sizes }, rows),
            None => {
                let (first, last) = self.named(target);
                first.iter().find(|(_, least)| rows >= *least).map_or(last, |(name, _)| name)
            }
        };
        let tiles = self.tiles(target);
        let of_name = tiles.iter().find(|tile| tile.name == name).or(tiles.last());
        let ([height, width], cluster) =
            of_name.map_or(([1, 1], 1), |tile| (tile.size, tile.cluster));
        let warpgroups = self.by_warpgroups(target);
        // Warps have no wider ones.
        let width = if self.by_threads || warpgroups { width } else { width.min(128) };
        let columns = columns.saturating_mul(if self.gated { 2 } else { 1 });
        let tiles = ceil(rows, height * cluster).saturating_mul(ceil(columns, width));
        let tiles = matrices.saturating_mul(tiles);
        match parts(name) {
            Some(parts) => tiles.saturating_mul(parts),
            None if warpgroups => tiles.min(i64::from(target.cores) / cluster) * cluster,
            None => tiles,
        }
    }

    /// The tiles that matmuls are cut into, largest first, and what ping-pongs before what shares.
    pub(crate) fn tiles(&self, target: &Target) -> Vec<Tile> {
        if self.estimated(target).is_some() {
            return TILES.into();
        }
        let Self { gated, by_threads, .. } = *self;
        let (known, ping_pong) = (self.all_columns(), self.follows >= LONG);
        let (cores, warpgroups) = (i64::from(target.cores), self.by_warpgroups(target));
        let counts_all = self.counted && known.is_some();
        let [wide, narrow, few] = match (by_threads, warpgroups, gated) {
            (true, _, false) => [[128, 64], [64, 64], [32, 64]],
            (true, _, true) => [[128, 64], [64, 64], [32, 128]],
            (false, false, false) => [[128, 128], [64, 64], [16, 64]],
            (false, false, true) => [[128, 128], [64, 128], [16, 128]],
            (false, true, true) => [[128, 128], [64, 128], [64, 128]],
            (false, true, false) => {
                // What leaves least of the last tile idle. Tiles of 192 are nearly as fast as those of 256, and divide work
                // better.
                let idle = |width: i64| known.map_or(0, |n| ceil(n, width) * width - n);
                let columns = match known {
                    Some(n) if n % 192 == 0 => 192,
                    _ => {
                        [256, 192, 128].into_iter().min_by_key(|&width| idle(width)).unwrap_or(256)
                    }
                };
                [[128, columns], [64, 128], [64, 64]]
            }
        };
        // Several blocks share a core, unless each has warpgroups: then the widest pay where most cores have one, and
        // ping-pong where some have two, so that there is something to multiply while results are written. By single
        // threads so many share a core that the last tiles leave others idle, unless there are ten for each; where some of
        // the tiles have not been counted, there may be.
        let (most, several) = (cores * 3 / 4, cores * 2);
        let [enough_wide, enough_narrow] = match (warpgroups, by_threads && counts_all) {
            (true, _) => [most, cores / 2],
            (false, false) => [several, most],
            (false, true) => [cores * 10, several],
        };
        let tile = |name, size, enough| Tile { enough, ..Tile::new(name, size, name == PING_PONG) };
        let mut tiles = match (warpgroups, gated || ping_pong, wide) {
            (true, _, [_, 192]) => {
                vec![tile(PING_PONG, wide, cores + 1), tile("wide", wide, enough_wide)]
            }
            (true, true, _) => vec![tile(PING_PONG, [128, 128], several)],
            (true, false, _) | (false, ..) => vec![tile("wide", wide, enough_wide)],
        };
        if warpgroups && gated {
            // Two blocks, each of which loads one half of B for both: 449 us in each of three runs, where blocks alone took
            // 424 to 480 (4096, 8192, 2048 in fp16 on H100s).
            tiles.insert(0, Tile { cluster: 2, ..tile("wide", [128, 256], cores * 4) });
        }
        tiles.push(tile("narrow", narrow, enough_narrow));
        tiles.push(tile("few", few, 0));
        tiles
    }

    /// The rows from which so large tiles are at least this many: columns and matrices, where their number is known, make some
    /// already.
    fn rows_for(&self, [height, width]: [i64; 2], enough: i64) -> i64 {
        let across = self.all_columns().map_or(1, |n| ceil(n, width)).max(1);
        let beside = across.saturating_mul(self.matrices);
        let tiles = ceil(enough, beside).max(1);
        // The last of them may be partial.
        (tiles - 1) * height + 1
    }

    /// The variants of the smallest tiles that split the depth of a matmul, of most parts first, and the rows up to which each is
    /// better than the one after it.
    fn rows_to_split(&self, target: &Target) -> Vec<(&'static str, i64)> {
        let columns = self.all_columns().filter(|_| self.shared);
        let (Some(depth), Some(columns)) = (self.depth, columns) else { return Vec::new() };
        // Threads split it among the blocks of a cluster.
        let threads = self.by_threads;
        if !target.has(if threads { Feature::Cluster } else { Feature::Wgmma }) {
            return Vec::new();
        }
        let smallest = self.tiles(target).pop().expect("there are tiles of every kind");
        let [height, width] = smallest.size;
        let across = ceil(columns, width).max(1);
        let rows = SPLITS.iter().rev().filter_map(|split| {
            let pays = if threads { &split.threads } else { &split.warpgroups };
            let tiles = (f64::from(target.cores) * pays.tiles) as i64;
            (depth >= pays.depth).then_some((split.name, tiles / across * height))
        });
        let mut rows: Vec<_> = rows.filter(|(_, rows)| *rows > 0).collect();
        // One that is taken up to as many rows as the one with more parts is never the better.
        rows.dedup_by_key(|(_, rows)| *rows);
        rows
    }
}

/// The parts into which a variant of this name splits the depth of a matmul, if it does.
pub(crate) fn parts(name: &str) -> Option<i64> {
    SPLITS.iter().find(|split| split.name == name).map(|split| split.parts)
}
