//! Small kernels that try atoms. Each reads some of its tensors in global memory and writes the
//! others, so that a simulation and a run on a device can be compared.

use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Group, Kernel, Kind, Number, Operand, TensorId, ThreadsId};
use crate::tensor::{Memory, Scalar, Shape, Tile, View};
use crate::text::parse;

/// A row-major view.
fn packed(sizes: &[i64]) -> View {
    let mut stride = 1;
    let mut shapes: Vec<Shape> = sizes
        .iter()
        .rev()
        .map(|&size| {
            let shape = Shape::Leaf(Expr::from(size), Expr::from(stride));
            stride *= size;
            shape
        })
        .collect();
    shapes.reverse();
    View::buffer(&shapes)
}

/// A kernel of one warp: `body` is given its lanes, each on its own, and the own lane's number.
struct OneWarp {
    builder: Builder,
    warp: ThreadsId,
}

impl OneWarp {
    fn new(arch: Arch) -> Result<OneWarp> {
        let mut builder = Builder::new("example", arch);
        builder.grid("grid", packed(&[1]))?;
        let warp = builder.block("warp", packed(&[32]))?;
        Ok(OneWarp { builder, warp })
    }

    /// A tensor of `n` elements for each lane.
    fn param(&mut self, name: &str, n: i64, scalar: Scalar) -> Result<TensorId> {
        self.builder.param(name, packed(&[32, n]), scalar)
    }

    /// A lane's part of it: `[n]`, or `[]` for one element.
    fn part(&mut self, of: TensorId, name: &str, n: i64, lane: &Expr) -> Result<TensorId> {
        if n == 1 {
            return self.builder.index(of, name, [lane.clone(), Expr::from(0)]);
        }
        let rows = self.builder.tile(of, name, &[Tile::of(1), Tile::of(n)])?;
        self.builder.index(rows, name, [lane.clone(), Expr::from(0)])
    }

    fn allocate(&mut self, name: &str, n: i64, scalar: Scalar) -> Result<TensorId> {
        let sizes: &[i64] = if n == 1 { &[] } else { &[n] };
        self.builder.allocate(name, packed(sizes), scalar, Memory::Registers, None)
    }

    /// Loads or stores, element by element.
    fn copy(&mut self, to: TensorId, from: TensorId, n: i64, lanes: ThreadsId) -> Result<()> {
        for i in 0..n {
            let at = |tensor| if n == 1 { Operand::all(tensor) } else { Operand::at(tensor, [i]) };
            self.builder.spec(Kind::Move, at(to), at(from), lanes)?;
        }
        Ok(())
    }
}

/// An operation on registers: `n` elements of `to`, from as many of each of `count` tensors.
pub(super) fn registers(
    kind: Kind,
    to: Scalar,
    from: Scalar,
    n: i64,
    count: usize,
) -> Result<Kernel> {
    let mut k = OneWarp::new(Arch::Sm80)?;
    let names = ["a", "b"];
    let ins: Vec<TensorId> =
        names[..count].iter().map(|name| k.param(name, n, from)).collect::<Result<_>>()?;
    let (before, after) = (k.param("before", n, to)?, k.param("after", n, to)?);
    let lanes = k.builder.scalar(k.warp, "lanes")?;
    let [lane] = k.builder.indices(k.warp, ["lane"])?;
    let lane = Expr::from(lane);
    let mut operands = Vec::new();
    for (name, tensor) in names.iter().zip(&ins) {
        let part = k.part(*tensor, "part", n, &lane)?;
        let register = k.allocate(&format!("r{name}"), n, from)?;
        k.copy(register, part, n, lanes)?;
        operands.push(register);
    }
    let result = k.allocate("result", n, to)?;
    let part = k.part(before, "part", n, &lane)?;
    k.copy(result, part, n, lanes)?;
    k.builder.spec(kind, result, operands, lanes)?;
    let part = k.part(after, "part", n, &lane)?;
    k.copy(part, result, n, lanes)?;
    let ins: Vec<TensorId> = ins.into_iter().chain([before]).collect();
    k.builder.finish(after, ins)
}

/// Loads and stores of `n` elements at once, through registers, and through shared memory if asked.
pub(super) fn memory(scalar: Scalar, n: i64, through: Memory) -> Result<Kernel> {
    let mut k = OneWarp::new(Arch::Sm80)?;
    let (from, to) = (k.param("from", n, scalar)?, k.param("to", n, scalar)?);
    let lanes = k.builder.scalar(k.warp, "lanes")?;
    let [lane] = k.builder.indices(k.warp, ["lane"])?;
    let lane = Expr::from(lane);
    let register = k.allocate("r", n, scalar)?;
    let source = k.part(from, "source", n, &lane)?;
    k.builder.spec(Kind::Move, register, source, lanes)?;
    if through == Memory::Shared {
        let shared = k.builder.allocate("s", packed(&[32, n]), scalar, Memory::Shared, None)?;
        let own = k.part(shared, "own", n, &lane)?;
        k.builder.spec(Kind::Move, own, register, lanes)?;
        k.builder.spec(Kind::Sync, (), (), k.warp)?;
        // The neighbour's, so that the synchronisation matters.
        let other = (Expr::from(31) - lane.clone()).rem(&Expr::from(32));
        let other = k.part(shared, "other", n, &other)?;
        k.builder.spec(Kind::Move, register, other, lanes)?;
    }
    let target = k.part(to, "target", n, &lane)?;
    k.builder.spec(Kind::Move, target, register, lanes)?;
    k.builder.finish(to, from)
}

/// An asynchronous copy of so many bytes into shared memory.
pub(super) fn cp_async(bytes: i64) -> Result<Kernel> {
    let (scalar, n) = (Scalar::F16, bytes / Scalar::F16.bytes());
    let mut k = OneWarp::new(Arch::Sm80)?;
    let (from, to) = (k.param("from", n, scalar)?, k.param("to", n, scalar)?);
    let shared = k.builder.allocate("s", packed(&[32, n]), scalar, Memory::Shared, None)?;
    let lanes = k.builder.scalar(k.warp, "lanes")?;
    let [lane] = k.builder.indices(k.warp, ["lane"])?;
    let lane = Expr::from(lane);
    let source = k.part(from, "source", n, &lane)?;
    let own = k.part(shared, "own", n, &lane)?;
    k.builder.add(Header::new(Kind::Move, own, source, lanes).async_())?;
    k.builder.spec(Kind::Commit(Group::Copy), (), (), k.warp)?;
    k.builder.spec(Kind::WaitGroup(Group::Copy, 0, false), (), (), k.warp)?;
    k.builder.spec(Kind::Sync, (), (), k.warp)?;
    let other = (Expr::from(31) - lane.clone()).rem(&Expr::from(32));
    let other = k.part(shared, "other", n, &other)?;
    let register = k.allocate("r", n, scalar)?;
    k.copy(register, other, n, lanes)?;
    let target = k.part(to, "target", n, &lane)?;
    k.copy(target, register, n, lanes)?;
    k.builder.finish(to, from)
}

/// An exchange between lanes whose numbers differ in `bits`.
pub(super) fn shuffle(bits: i64) -> Result<Kernel> {
    let mut k = OneWarp::new(Arch::Sm80)?;
    let (from, to) = (k.param("from", 1, Scalar::F32)?, k.param("to", 1, Scalar::F32)?);
    let lanes = k.builder.scalar(k.warp, "lanes")?;
    let [lane] = k.builder.indices(k.warp, ["lane"])?;
    let lane = Expr::from(lane);
    let (a, d) = (k.allocate("a", 1, Scalar::F32)?, k.allocate("d", 1, Scalar::F32)?);
    let part = k.part(from, "part", 1, &lane)?;
    k.copy(a, part, 1, lanes)?;
    k.builder.spec(Kind::Shfl(bits), d, a, k.warp)?;
    let part = k.part(to, "part", 1, &lane)?;
    k.copy(part, d, 1, lanes)?;
    k.builder.finish(to, from)
}

/// A constant in every element.
pub(super) fn constant(value: f64) -> Result<Kernel> {
    registers(Kind::Init(Number(value)), Scalar::F16, Scalar::F16, 1, 0)
}

/// The simple product of the paper's section 5.4 (Figure 8), smaller: column-major, straight from
/// and to global memory.
pub(super) fn figure_8() -> Result<Kernel> {
    parse(
        "kernel figure_8 sm_70 ()
%A:[8,4:1,8].fp16.GL
%B:[4,8:1,4].fp16.GL
%C:[8,8:1,8].fp16.GL
#grid:[1:1].block
#block:[4,8:1,4].thread
%C <- Spec<<<#grid,#block>>>(%A,%B) {
  @m, @n = #block.indices()
  #one:[].thread = #block.scalar()
  for(@k = 0; @k < 4; @k += 1) {
    for(@i = 0; @i < 2; @i += 1) {
      %a:[].fp16.GL = %A[2*@m + @i, @k]
      %b:[].fp16.GL = %B[@k, @n]
      %c:[].fp16.GL = %C[2*@m + @i, @n]
      %c <- MatMul<<<#grid,#one>>>(%a,%b)
    }
  }
}",
    )
}

/// Matrices out of shared memory into registers, as the paper's Figure 1 does.
pub(super) fn ldmatrix(count: i64) -> Result<Kernel> {
    let (shape, tiles) = match count {
        1 => ("[1,2:2,1]", "[1,1:0,0].[1,2:0,1]"),
        2 => ("[2,2:2,1]", "[2,1:2,0].[1,2:0,1]"),
        _ => ("[2,4:4,1]", "[2,2:4,2].[1,2:0,1]"),
    };
    let words = 2 * count;
    parse(&format!(
        "kernel ldmatrix_{count} sm_75 ()
%in:[16,16:16,1].fp16.GL
%out:[32,{words}:{words},1].fp16.GL
#grid:[1:1].block
#warp:[32:1].thread
%out <- Spec<<<#grid,#warp>>>(%in) {{
  @lane = #warp.indices()
  #one:[].thread = #warp.scalar()
  %s:[16,16:16,1].fp16.SH
  for(@i = 0; @i < 8; @i += 1) unroll {{
    %from:[].fp16.GL = %in[(8*@lane + @i)/16, (8*@lane + @i)%16]
    %to:[].fp16.SH = %s[(8*@lane + @i)/16, (8*@lane + @i)%16]
    %r:[].fp16.RF
    %r <- Move<<<#grid,#one>>>(%from)
    %to <- Move<<<#grid,#one>>>(%r)
  }}
  Sync<<<#grid,#warp>>>()
  %d:{shape}.fp16.RF
  #five:[4:8].[8:1].thread = #warp.tile(8)
  #six:[2,2:16,8].[8:1].thread = #five.reshape(0, 2:2, 2:1)
  @group_m, @group_n, @row = #six.indices()
  %7:[2,2:128,8].[8,8:16,1].fp16.SH = %s.tile(8, 8)
  %8:[8,8:16,1].fp16.SH = %7[@group_m, @group_n]
  %9:[8,1:16,0].[1,8:0,1].fp16.SH = %8.tile(1, 8)
  %10:[1,8:0,1].fp16.SH = %9[@row, 0]
  %11:{tiles}.fp16.RF = %d.tile(1, 2)
  %11 <- Move<<<#grid,#warp>>>(%10)
  for(@i = 0; @i < {words}; @i += 1) unroll {{
    %from:[].fp16.RF = %d[@i/{columns}, @i%{columns}]
    %to:[].fp16.GL = %out[@lane, @i]
    %to <- Move<<<#grid,#one>>>(%from)
  }}
}}",
        columns = if count == 4 { 4 } else { 2 },
    ))
}

/// Likewise, transposed.
pub(super) fn ldmatrix_trans() -> Result<Kernel> {
    parse(
        "kernel ldmatrix_trans sm_75 ()
%in:[16,16:16,1].fp16.GL
%out:[32,8:8,1].fp16.GL
#grid:[1:1].block
#warp:[32:1].thread
%out <- Spec<<<#grid,#warp>>>(%in) {
  @lane = #warp.indices()
  #one:[].thread = #warp.scalar()
  %s:[16,16:16,1].fp16.SH
  for(@i = 0; @i < 8; @i += 1) unroll {
    %from:[].fp16.GL = %in[(8*@lane + @i)/16, (8*@lane + @i)%16]
    %to:[].fp16.SH = %s[(8*@lane + @i)/16, (8*@lane + @i)%16]
    %r:[].fp16.RF
    %r <- Move<<<#grid,#one>>>(%from)
    %to <- Move<<<#grid,#one>>>(%r)
  }
  Sync<<<#grid,#warp>>>()
  %d:[4,2:2,1].fp16.RF
  %rows:[16,2:16,8].[1,8:0,1].fp16.SH = %s.tile(1, 8)
  %row:[1,8:0,1].fp16.SH = %rows[@lane%16, @lane/16]
  %pairs:[2,2:4,1].[2,1:2,0].fp16.RF = %d.tile(2, 1)
  %pairs <- Move<<<#grid,#warp>>>(%row)
  for(@i = 0; @i < 8; @i += 1) unroll {
    %from:[].fp16.RF = %d[@i/2, @i%2]
    %to:[].fp16.GL = %out[@lane, @i]
    %to <- Move<<<#grid,#one>>>(%from)
  }
}",
    )
}

macro_rules! later { ($($n:ident)*) => { $(pub(super) fn $n() -> Result<Kernel> { parse("") })* } }
later!(mbarrier mbarrier_cluster bulk_load bulk_store wgmma wgmma_registers bar_sync warp_sync membar setmaxnreg dependent stmatrix mma);
pub(super) fn cluster(_: bool) -> Result<Kernel> {
    parse("")
}
