//! Small kernels that try atoms. Each reads some of its tensors in global memory and writes the
//! others, so that a simulation and a run on a device can be compared.

use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Group, Kernel, Kind, Operand, TensorId, ThreadsId};
use crate::layout::{Layout, Tiler};
use crate::tensor::{Memory, Scalar};
use crate::text::parse;

/// A kernel of one warp: `body` is given its lanes, each on its own, and the own lane's number.
struct OneWarp {
    builder: Builder,
    warp: ThreadsId,
}

impl OneWarp {
    fn new(arch: Arch) -> Result<OneWarp> {
        let mut builder = Builder::new("example", arch);
        builder.grid("grid", Layout::rows([1]))?;
        let warp = builder.block("warp", Layout::rows([32]))?;
        Ok(OneWarp { builder, warp })
    }

    /// A tensor of `n` elements for each lane.
    fn param(&mut self, name: &str, n: i64, scalar: Scalar) -> Result<TensorId> {
        self.builder.param(name, Layout::rows([32, n]), scalar)
    }

    /// A lane's part of it: `[n]`, or `[]` for one element.
    fn part(&mut self, of: TensorId, name: &str, n: i64, lane: &Expr) -> Result<TensorId> {
        if n == 1 {
            return self.builder.index(of, name, [lane.clone(), Expr::from(0)]);
        }
        let rows = self.builder.tile(of, name, &[Tiler::Size(1), Tiler::Size(n)])?;
        self.builder.index(rows, name, [lane.clone(), Expr::from(0)])
    }

    fn allocate(&mut self, name: &str, n: i64, scalar: Scalar) -> Result<TensorId> {
        let sizes = [1, n];
        let sizes = if n == 1 { &[] } else { &sizes[..] };
        self.builder.allocate(
            name,
            Layout::rows(sizes.iter().copied()),
            scalar,
            Memory::Registers,
            None,
        )
    }

    /// Loads or stores, element by element.
    fn copy(&mut self, to: TensorId, from: TensorId, n: i64, lanes: ThreadsId) -> Result<()> {
        for i in 0..n {
            let at =
                |tensor| if n == 1 { Operand::all(tensor) } else { Operand::at(tensor, [0, i]) };
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
        let shared =
            k.builder.allocate("s", Layout::rows([32, n]), scalar, Memory::Shared, None)?;
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

/// An asynchronous copy of so many bytes into shared memory, of which the last lane has none.
pub(super) fn cp_async(bytes: i64, scalar: Scalar) -> Result<Kernel> {
    let n = bytes / scalar.bytes();
    let mut k = OneWarp::new(Arch::Sm80)?;
    let from = k.builder.param("from", Layout::rows([31, n]), scalar)?;
    let to = k.param("to", n, scalar)?;
    let shared = k.builder.allocate("s", Layout::rows([32, n]), scalar, Memory::Shared, None)?;
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
        1 => ("[1,2:2,1]", "[1,1:2,2].[1,2:0,1]"),
        2 => ("[2,2:2,1]", "[2,1:2,2].[1,2:0,1]"),
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
  (@group_m, @group_n), @row = #six.indices()
  %7:[2,2:128,8].[8,8:16,1].fp16.SH = %s.tile(8, 8)
  %8:[8,8:16,1].fp16.SH = %7[@group_m, @group_n]
  %9:[8,1:16,8].[1,8:0,1].fp16.SH = %8.tile(1, 8)
  %10:[1,8:0,1].fp16.SH = %9[@row, 0]
  %11:{tiles}.fp16.RF = %d.tile(1, 2)
  %11 <- Move<<<#grid,#warp>>>(%10)
  for(@i = 0; @i < {words}; @i += 1) unroll {{
    %from_2:[].fp16.RF = %d[@i/{columns}, @i%{columns}]
    %to_2:[].fp16.GL = %out[@lane, @i]
    %to_2 <- Move<<<#grid,#one>>>(%from_2)
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
  %d:[4,2:1,4].fp16.RF
  %rows:[16,2:16,8].[1,8:0,1].fp16.SH = %s.tile(1, 8)
  %row:[1,8:0,1].fp16.SH = %rows[@lane%16, @lane/16]
  %pairs:[2,2:2,4].[2,1:1,0].fp16.RF = %d.tile(2, 1)
  %pairs <- Move<<<#grid,#warp>>>(%row)
  for(@i = 0; @i < 8; @i += 1) unroll {
    %from_2:[].fp16.RF = %d[@i/2, @i%2]
    %to_2:[].fp16.GL = %out[@lane, @i]
    %to_2 <- Move<<<#grid,#one>>>(%from_2)
  }
}",
    )
}

/// One warp writes shared memory and arrives; the other waits, and reads.
pub(super) fn mbarrier() -> Result<Kernel> {
    parse(
        "kernel mbarrier sm_90a ()
%in:[32:1].fp32.GL
%out:[32:1].fp32.GL
#grid:[1:1].block
#block:[64:1].thread
%out <- Spec<<<#grid,#block>>>(%in) {
  #one:[].thread = #block.scalar()
  #warps:[2:32].[32:1].thread = #block.tile(32)
  @warp, @lane = #warps.indices()
  #warp:[32:1].thread = #warps[@warp]
  %s:[32:1].fp32.SH
  %bar:[1:1].mbar.SH
  role #block[0] {
    %bar[0] <- Init<32><<<#grid,#one>>>()
  }
  Sync<<<#grid,#block>>>()
  %r:[].fp32.RF
  role #warps[0] {
    %r <- Move<<<#grid,#one>>>(%in[@lane])
    %s[@lane] <- Move<<<#grid,#one>>>(%r)
    %bar[0] <- Arrive<<<#grid,#one>>>()
  }
  role #warps[1] {
    %bar[0] <- Wait<0><<<#grid,#warp>>>()
    %r <- Move<<<#grid,#one>>>(%s[31 - @lane])
    %out[@lane] <- Move<<<#grid,#one>>>(%r)
  }
}",
    )
}

/// Two blocks of a cluster: each writes shared memory of the other, and arrives at its barrier.
pub(super) fn mbarrier_cluster() -> Result<Kernel> {
    parse(
        "kernel mbarrier_cluster sm_90a ()
%in:[2,32:32,1].fp32.GL
%out:[2,32:32,1].fp32.GL
#grid:[1:2].[2:1].block
#warp:[32:1].thread
%out <- Spec<<<#grid,#warp>>>(%in) {
  #one:[].thread = #warp.scalar()
  @cluster, @rank = #grid.indices()
  #pair:[2:1].block = #grid[@cluster]
  @lane = #warp.indices()
  %s:[32:1].fp32.SH
  %bar:[1:1].mbar.SH
  role #warp[0] {
    %bar[0] <- Init<32><<<#grid,#one>>>()
    Fence<init><<<#grid,#one>>>()
  }
  Sync<<<#pair,#warp>>>()
  %there:[32:1].fp32.SH.peer(1 - @rank) = %s.peer(1 - @rank)
  %bar_there:[1:1].mbar.SH.peer(1 - @rank) = %bar.peer(1 - @rank)
  %r:[].fp32.RF
  %r <- Move<<<#grid,#one>>>(%in[@rank, @lane])
  %there[@lane] <- Move<<<#grid,#one>>>(%r)
  Fence<cluster><<<#grid,#one>>>()
  %bar_there[0] <- Arrive<<<#grid,#one>>>()
  %bar[0] <- Wait<0><<<#grid,#warp>>>()
  Fence<cluster><<<#grid,#one>>>()
  %r <- Move<<<#grid,#one>>>(%s[31 - @lane])
  %out[@rank, @lane] <- Move<<<#grid,#one>>>(%r)
  Sync<<<#pair,#warp>>>()
}",
    )
}

/// Two blocks of a cluster hand each other so many words of every thread, of which barriers learn.
pub(super) fn st_async(n: i64) -> Result<Kernel> {
    let shape = format!("[2,32:{},{n}].[{n}:1]", 32 * n);
    let bytes = 32 * 4 * n;
    parse(&format!(
        "kernel st_async sm_90a ()
%in:{shape}.i32.GL
%out:{shape}.i32.GL
#grid:[1:2].[2:1].block
#warp:[32:1].thread
%out <- Spec<<<#grid,#warp>>>(%in) {{
  #one:[].thread = #warp.scalar()
  @cluster, @rank = #grid.indices()
  #pair:[2:1].block = #grid[@cluster]
  @lane = #warp.indices()
  %s:[32:{n}].[{n}:1].i32.SH
  %bar:[1:1].mbar.SH
  role #warp[0] {{
    %bar[0] <- Init<1><<<#grid,#one>>>()
    %bar[0] <- Arrive<{bytes}><<<#grid,#one>>>()
    Fence<init><<<#grid,#one>>>()
  }}
  Sync<<<#pair,#warp>>>()
  %there:[32:{n}].[{n}:1].i32.SH.peer(1 - @rank) = %s.peer(1 - @rank)
  %bar_there:[1:1].mbar.SH.peer(1 - @rank) = %bar.peer(1 - @rank)
  %r:[{n}:1].i32.RF
  %r <- Move<<<#grid,#one>>>(%in[@rank, @lane])
  %there[@lane] <- Move<<<#grid,#one>>>(%r) signals %bar_there[0]
  %bar[0] <- Wait<0, cluster><<<#grid,#warp>>>()
  %r <- Move<<<#grid,#one>>>(%s[31 - @lane])
  %out[@rank, @lane] <- Move<<<#grid,#one>>>(%r)
  Sync<<<#pair,#warp>>>()
}}"
    ))
}

/// Two blocks of a cluster exchange words: each stores into the other's shared memory, or loads
/// from it.
pub(super) fn cluster(store: bool) -> Result<Kernel> {
    let (own, other) = if store { ("there", "s") } else { ("s", "there") };
    parse(&format!(
        "kernel exchange sm_90a ()
%in:[2,32:32,1].i32.GL
%out:[2,32:32,1].i32.GL
#grid:[1:2].[2:1].block
#warp:[32:1].thread
%out <- Spec<<<#grid,#warp>>>(%in) {{
  #one:[].thread = #warp.scalar()
  @cluster, @rank = #grid.indices()
  #pair:[2:1].block = #grid[@cluster]
  @lane = #warp.indices()
  %s:[32:1].i32.SH
  %there:[32:1].i32.SH.peer(1 - @rank) = %s.peer(1 - @rank)
  Sync<<<#pair,#warp>>>()
  %r:[].i32.RF
  %r <- Move<<<#grid,#one>>>(%in[@rank, @lane])
  %{own}[@lane] <- Move<<<#grid,#one>>>(%r)
  Sync<<<#pair,#warp>>>()
  %r <- Move<<<#grid,#one>>>(%{other}[31 - @lane])
  %out[@rank, @lane] <- Move<<<#grid,#one>>>(%r)
  Sync<<<#pair,#warp>>>()
}}"
    ))
}

/// A tile comes by a tensor copy, partly from beyond the tensor's edge.
pub(super) fn bulk_load() -> Result<Kernel> {
    parse(
        "kernel bulk_load sm_90a ()
%in:[12,64:64,1].fp16.GL
%out:[16,32:32,1].fp16.GL
#grid:[1:1].block
#block:[32:1].thread
%out <- Spec<<<#grid,#block>>>(%in) {
  #one:[].thread = #block.scalar()
  @lane = #block.indices()
  %s:[16,32:32,1].fp16.SH.S<2,4,3>
  %full:[1:1].mbar.SH
  %tiles:[1,2:1024,32].[16,32:64,1].fp16.GL = %in.tile(16, 32)
  role #block[0] {
    %full[0] <- Init<1><<<#grid,#one>>>()
    Fence<init><<<#grid,#one>>>()
    %full[0] <- Arrive<1024><<<#grid,#one>>>()
    %s <- Move<<<#grid,#one>>>(%tiles[0, 1]) signals %full[0]
  }
  Sync<<<#grid,#block>>>()
  %full[0] <- Wait<0><<<#grid,#block>>>()
  for(@i = 0; @i < 16; @i += 1) {
    %r:[].fp16.RF
    %r <- Move<<<#grid,#one>>>(%s[@i, @lane])
    %out[@i, @lane] <- Move<<<#grid,#one>>>(%r)
  }
}",
    )
}

/// A tile leaves by a tensor copy, which leaves out what is beyond the tensor's edge.
pub(super) fn bulk_store() -> Result<Kernel> {
    parse(
        "kernel bulk_store sm_90a ()
%in:[16,32:32,1].fp16.GL
%out:[12,32:32,1].fp16.GL
#grid:[1:1].block
#block:[32:1].thread
%out <- Spec<<<#grid,#block>>>(%in) {
  #one:[].thread = #block.scalar()
  @lane = #block.indices()
  %s:[16,32:32,1].fp16.SH.S<2,4,3>
  %tiles:[1,1:512,32].[16,32:32,1].fp16.GL = %out.tile(16, 32)
  for(@i = 0; @i < 16; @i += 1) {
    %r:[].fp16.RF
    %r <- Move<<<#grid,#one>>>(%in[@i, @lane])
    %s[@i, @lane] <- Move<<<#grid,#one>>>(%r)
  }
  Fence<proxy><<<#grid,#block>>>()
  Sync<<<#grid,#block>>>()
  role #block[0] {
    %tiles[0, 0] <- Move<<<#grid,#one>>>(%s) async
    Commit<bulk><<<#grid,#one>>>()
    WaitGroup<bulk,0><<<#grid,#one>>>()
  }
}",
    )
}

/// A product of 64×16 by 16×16 by a warpgroup, A from shared memory or from registers, that is added or set.
fn warpgroup_product(product: &str, a: &str, operand: &str) -> Result<Kernel> {
    parse(&format!(
        "kernel wgmma sm_90a ()
%A:[64,16:16,1].bf16.GL
%B:[16,16:16,1].bf16.GL
%C:[64,16:16,1].fp32.GL
#grid:[1:1].block
#block:[128:1].thread
%C <- Spec<<<#grid,#block>>>(%A,%B) {{
  #one:[].thread = #block.scalar()
  @thread_of = #block.indices()
  #warps:[4:32].[32:1].thread = #block.tile(32)
  #parts:[4:32].[4,8:1,4].thread = #warps.reshape(1, 4:1, 8:4)
  @warp, (@quad, @group) = #parts.indices()
  %sA:[64,16:16,1].bf16.SH.S<1,4,3>
  %sB:[16,16:16,1].bf16.SH.S<1,4,3>
  %word:[].bf16.RF
  for(@i = 0; @i < 8; @i += 1) {{
    %word <- Move<<<#grid,#one>>>(%A[(8*@thread_of + @i)/16, (8*@thread_of + @i)%16])
    %sA[(8*@thread_of + @i)/16, (8*@thread_of + @i)%16] <- Move<<<#grid,#one>>>(%word)
  }}
  for(@i = 0; @i < 2; @i += 1) {{
    %word <- Move<<<#grid,#one>>>(%B[(2*@thread_of + @i)/16, (2*@thread_of + @i)%16])
    %sB[(2*@thread_of + @i)/16, (2*@thread_of + @i)%16] <- Move<<<#grid,#one>>>(%word)
  }}
  Fence<proxy><<<#grid,#block>>>()
  Sync<<<#grid,#block>>>()
  {a}
  %acc:[2,2:2,4].[2:1].fp32.RF
  for(@i = 0; @i < 8; @i += 1) unroll {{
    %zero:[2:1].fp32.RF = %acc[@i/2%2, @i/4]
    %zero[@i%2] <- Init<1><<<#grid,#one>>>()
  }}
  %acc <- Fence<matmul><<<#grid,#block>>>()
  %acc <- {product}<<<#grid,#block>>>({operand}, %sB) async
  Commit<matmul><<<#grid,#block>>>()
  %acc <- WaitGroup<matmul,0><<<#grid,#block>>>()
  for(@i = 0; @i < 8; @i += 1) unroll {{
    %from:[2:1].fp32.RF = %acc[@i/2%2, @i/4]
    %C[16*@warp + @group + 8*(@i/2%2), 2*@quad + 8*(@i/4) + @i%2] <- Move<<<#grid,#one>>>(%from[@i%2])
  }}
}}"
    ))
}

/// A product of 64×8 by 8×16 by a warpgroup, of single precision cut to TF32.
pub(super) fn wgmma_tf32(product: &str) -> Result<Kernel> {
    parse(&format!(
        "kernel wgmma_tf32 sm_90a ()
%A:[64,8:8,1].fp32.GL
%B:[8,16:16,1].fp32.GL
%C:[64,16:16,1].fp32.GL
#grid:[1:1].block
#block:[128:1].thread
%C <- Spec<<<#grid,#block>>>(%A,%B) {{
  #one:[].thread = #block.scalar()
  @thread_of = #block.indices()
  #warps:[4:32].[32:1].thread = #block.tile(32)
  #parts:[4:32].[4,8:1,4].thread = #warps.reshape(1, 4:1, 8:4)
  @warp, (@quad, @group) = #parts.indices()
  %sA:[64,8:8,1].fp32.SH.S<1,4,3>
  %sB:[8,16:1,8].fp32.SH.S<1,4,3>
  %word:[].fp32.RF
  for(@i = 0; @i < 4; @i += 1) {{
    %word <- Move<<<#grid,#one>>>(%A[(4*@thread_of + @i)/8, (4*@thread_of + @i)%8])
    %sA[(4*@thread_of + @i)/8, (4*@thread_of + @i)%8] <- Move<<<#grid,#one>>>(%word)
  }}
  %word <- Move<<<#grid,#one>>>(%B[@thread_of/16, @thread_of%16])
  %sB[@thread_of/16, @thread_of%16] <- Move<<<#grid,#one>>>(%word)
  Fence<proxy><<<#grid,#block>>>()
  Sync<<<#grid,#block>>>()
  %acc:[2,2:2,4].[2:1].fp32.RF
  for(@i = 0; @i < 8; @i += 1) unroll {{
    %zero:[2:1].fp32.RF = %acc[@i/2%2, @i/4]
    %zero[@i%2] <- Init<1><<<#grid,#one>>>()
  }}
  %acc <- Fence<matmul><<<#grid,#block>>>()
  %acc <- {product}<<<#grid,#block>>>(%sA, %sB) async
  Commit<matmul><<<#grid,#block>>>()
  %acc <- WaitGroup<matmul,0><<<#grid,#block>>>()
  for(@i = 0; @i < 8; @i += 1) unroll {{
    %from:[2:1].fp32.RF = %acc[@i/2%2, @i/4]
    %C[16*@warp + @group + 8*(@i/2%2), 2*@quad + 8*(@i/4) + @i%2] <- Move<<<#grid,#one>>>(%from[@i%2])
  }}
}}"
    ))
}

/// A product of a warpgroup, A from shared memory.
pub(super) fn wgmma(product: &str) -> Result<Kernel> {
    warpgroup_product(product, "", "%sA")
}

/// A product of a warpgroup, A from registers.
pub(super) fn wgmma_registers(product: &str) -> Result<Kernel> {
    let load = "%a:[2,2:2,4].[2:1].bf16.RF
  for(@i = 0; @i < 8; @i += 1) unroll {
    %pair:[2:1].bf16.RF = %a[@i/2%2, @i/4]
    %pair[@i%2] <- Move<<<#grid,#one>>>(%A[16*@warp + @group + 8*(@i/2%2), 2*@quad + 8*(@i/4) + @i%2])
  }";
    warpgroup_product(product, load, "%a")
}

/// A block's threads exchange words through shared memory.
pub(super) fn bar_sync() -> Result<Kernel> {
    parse(
        "kernel bar_sync sm_70 ()
%in:[64:1].fp32.GL
%out:[64:1].fp32.GL
#grid:[1:1].block
#block:[64:1].thread
%out <- Spec<<<#grid,#block>>>(%in) {
  #one:[].thread = #block.scalar()
  @t = #block.indices()
  %s:[64:1].fp32.SH
  %r:[].fp32.RF
  %r <- Move<<<#grid,#one>>>(%in[@t])
  %s[@t] <- Move<<<#grid,#one>>>(%r)
  Sync<<<#grid,#block>>>()
  %r <- Move<<<#grid,#one>>>(%s[63 - @t])
  %out[@t] <- Move<<<#grid,#one>>>(%r)
}",
    )
}

/// A warp's lanes exchange words through shared memory.
pub(super) fn warp_sync() -> Result<Kernel> {
    parse(
        "kernel warp_sync sm_70 ()
%in:[32:1].fp32.GL
%out:[32:1].fp32.GL
#grid:[1:1].block
#warp:[32:1].thread
%out <- Spec<<<#grid,#warp>>>(%in) {
  #one:[].thread = #warp.scalar()
  @t = #warp.indices()
  %s:[32:1].fp32.SH
  %r:[].fp32.RF
  %r <- Move<<<#grid,#one>>>(%in[@t])
  %s[@t] <- Move<<<#grid,#one>>>(%r)
  Sync<<<#grid,#warp>>>()
  %r <- Move<<<#grid,#one>>>(%s[31 - @t])
  %out[@t] <- Move<<<#grid,#one>>>(%r)
}",
    )
}

/// A fence between two writes.
pub(super) fn membar() -> Result<Kernel> {
    parse(
        "kernel membar sm_70 ()
%in:[32:1].fp32.GL
%out:[2,32:32,1].fp32.GL
#grid:[1:1].block
#warp:[32:1].thread
%out <- Spec<<<#grid,#warp>>>(%in) {
  #one:[].thread = #warp.scalar()
  @t = #warp.indices()
  %r:[].fp32.RF
  %r <- Move<<<#grid,#one>>>(%in[@t])
  %out[0, @t] <- Move<<<#grid,#one>>>(%r)
  Fence<global><<<#grid,#warp>>>()
  %out[1, @t] <- Move<<<#grid,#one>>>(%r)
}",
    )
}

/// One warpgroup gives registers up, the other takes them.
pub(super) fn setmaxnreg() -> Result<Kernel> {
    parse(
        "kernel setmaxnreg sm_90a ()
%in:[256:1].fp32.GL
%out:[256:1].fp32.GL
#grid:[1:1].block
#block:[256:1].thread
%out <- Spec<<<#grid,#block>>>(%in) {
  #one:[].thread = #block.scalar()
  #groups:[2:128].[128:1].thread = #block.tile(128)
  @group, @in_group = #groups.indices()
  #group:[128:1].thread = #groups[@group]
  %r:[].fp32.RF
  role #groups[0] {
    Registers<24><<<#grid,#group>>>()
    %r <- Move<<<#grid,#one>>>(%in[@in_group])
    %out[@in_group] <- Move<<<#grid,#one>>>(%r)
  }
  role #groups[1] {
    Registers<240><<<#grid,#group>>>()
    %r <- Move<<<#grid,#one>>>(%in[128 + @in_group])
    %out[128 + @in_group] <- Move<<<#grid,#one>>>(%r)
  }
}",
    )
}

/// Two warps that wait for each other by a counter in global memory, and exchange through it.
pub(super) fn counter() -> Result<Kernel> {
    parse(
        "kernel counter sm_70 ()
%in:[64:1].fp32.GL
%passed:[64:1].fp32.GL
%counter:[1:1].u32.GL
%out:[64:1].fp32.GL
#grid:[1:1].block
#block:[64:1].thread
%passed, %counter, %out <- Spec<<<#grid,#block>>>(%in) {
  #one:[].thread = #block.scalar()
  #warps:[2:32].[32:1].thread = #block.tile(32)
  @warp, @lane = #warps.indices()
  #warp:[32:1].thread = #warps[@warp]
  @t = #block.indices()
  %r:[].fp32.RF
  %zero:[].u32.RF
  if(@t == 0) {
    %zero <- Init<0><<<#grid,#one>>>()
    %counter[0] <- Move<<<#grid,#one>>>(%zero)
  }
  Sync<<<#grid,#block>>>()
  %r <- Move<<<#grid,#one>>>(%in[@t])
  %passed[@t] <- Move<<<#grid,#one>>>(%r)
  Sync<<<#grid,#warp>>>()
  if(@lane == 0) {
    %counter[0] <- Count<3><<<#grid,#one>>>()
    Await<2><<<#grid,#one>>>(%counter[0])
  }
  Sync<<<#grid,#warp>>>()
  %r <- Move<<<#grid,#one>>>(%passed[63 - @t])
  %out[@t] <- Move<<<#grid,#one>>>(%r)
}",
    )
}

/// A kernel that waits for the one before it, and lets the next one start.
pub(super) fn dependent() -> Result<Kernel> {
    parse(
        "kernel dependent sm_90a ()
%in:[32:1].fp32.GL
%out:[32:1].fp32.GL
#grid:[1:1].block
#warp:[32:1].thread
%out <- Spec<<<#grid,#warp>>>(%in) {
  #one:[].thread = #warp.scalar()
  @t = #warp.indices()
  %r:[].fp32.RF
  Acquire<<<#grid,#warp>>>()
  %r <- Move<<<#grid,#one>>>(%in[@t])
  Release<<<#grid,#warp>>>()
  %out[@t] <- Move<<<#grid,#one>>>(%r)
}",
    )
}

/// A copy of what is asked for before.
pub(super) fn prefetch() -> Result<Kernel> {
    parse(
        "kernel prefetch sm_70 ()
%in:[64:1].fp32.GL
%out:[64:1].fp32.GL
#grid:[1:1].block
#block:[64:1].thread
%out <- Spec<<<#grid,#block>>>(%in) {
  #one:[].thread = #block.scalar()
  @t = #block.indices()
  %r:[].fp32.RF
  if(@t == 0) {
    Prefetch<<<#grid,#one>>>(%in[0])
  }
  %r <- Move<<<#grid,#one>>>(%in[@t])
  %out[@t] <- Move<<<#grid,#one>>>(%r)
}",
    )
}

/// Four matrices of 8×8 out of registers into shared memory.
pub(super) fn stmatrix() -> Result<Kernel> {
    parse(
        "kernel stmatrix sm_90a ()
%in:[32,8:8,1].fp16.GL
%out:[16,16:16,1].fp16.GL
#grid:[1:1].block
#warp:[32:1].thread
%out <- Spec<<<#grid,#warp>>>(%in) {
  @lane = #warp.indices()
  #one:[].thread = #warp.scalar()
  %s:[16,16:16,1].fp16.SH
  %d:[2,4:4,1].fp16.RF
  for(@i = 0; @i < 8; @i += 1) unroll {
    %d[@i/4, @i%4] <- Move<<<#grid,#one>>>(%in[@lane, @i])
  }
  %rows:[16,2:16,8].[1,8:0,1].fp16.SH = %s.tile(1, 8)
  %row:[1,8:0,1].fp16.SH = %rows[8*(@lane/16) + @lane%8, @lane/8%2]
  %pairs:[2,2:4,2].[1,2:0,1].fp16.RF = %d.tile(1, 2)
  %row <- Move<<<#grid,#warp>>>(%pairs)
  Sync<<<#grid,#warp>>>()
  for(@i = 0; @i < 8; @i += 1) {
    %r:[].fp16.RF
    %r <- Move<<<#grid,#one>>>(%s[(8*@lane + @i)/16, (8*@lane + @i)%16])
    %out[(8*@lane + @i)/16, (8*@lane + @i)%16] <- Move<<<#grid,#one>>>(%r)
  }
}",
    )
}

/// A product of 16×16 by 16×8 by a warp.
pub(super) fn mma(scalar: &str) -> Result<Kernel> {
    parse(
        &"kernel mma sm_80 ()
%A:[16,16:16,1].fp16.GL
%B:[16,8:8,1].fp16.GL
%C:[16,8:8,1].fp32.GL
#grid:[1:1].block
#warp:[32:1].thread
%C <- Spec<<<#grid,#warp>>>(%A,%B) {
  #one:[].thread = #warp.scalar()
  #parts:[8:4].[4:1].thread = #warp.tile(4)
  @group, @quad = #parts.indices()
  %a:[2,2:2,4].[2:1].fp16.RF
  %b:[2:2].[2:1].fp16.RF
  %d:[2:2].[2:1].fp32.RF
  for(@i = 0; @i < 8; @i += 1) unroll {
    %pair:[2:1].fp16.RF = %a[@i/2%2, @i/4]
    %pair[@i%2] <- Move<<<#grid,#one>>>(%A[@group + 8*(@i/2%2), 2*@quad + 8*(@i/4) + @i%2])
  }
  for(@i = 0; @i < 4; @i += 1) unroll {
    %pair_2:[2:1].fp16.RF = %b[@i/2]
    %pair_2[@i%2] <- Move<<<#grid,#one>>>(%B[2*@quad + 8*(@i/2) + @i%2, @group])
    %sum:[2:1].fp32.RF = %d[@i/2]
    %sum[@i%2] <- Init<0.5><<<#grid,#one>>>()
  }
  %d <- MatMul<<<#grid,#warp>>>(%a, %b)
  for(@i = 0; @i < 4; @i += 1) unroll {
    %sum_2:[2:1].fp32.RF = %d[@i/2]
    %C[@group + 8*(@i/2), 2*@quad + @i%2] <- Move<<<#grid,#one>>>(%sum_2[@i%2])
  }
}"
        .replace("fp16", scalar),
    )
}
