//! Emission: the paper's figures, and a kernel for each form that text takes.

use expect_test::{Expect, expect};
use graphene_ir::emit::{Emitted, PASSES, after, emit};
use graphene_ir::kernel::Unary;
use graphene_ir::text::parse;

const FIGURE_8: &str = include_str!("../kernels/gemm.graphene");
const FIGURE_1: &str = include_str!("../kernels/figure_1.graphene");

fn emitted(text: &str) -> Emitted {
    let kernel = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    emit(&kernel).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The function without the prelude, and the launch.
fn check(text: &str, function: &Expect, launch: &Expect) {
    let emitted = emitted(text);
    let at = emitted.source.find("extern \"C\"").unwrap();
    function.assert_eq(&emitted.source[at..]);
    launch.assert_eq(&emitted.launch.to_string());
}

/// A kernel of one warp with these parameters and statements.
fn one_warp(arch: &str, symbols: &str, params: &str, body: &str) -> String {
    format!(
        "kernel k {arch} ({symbols})\n{params}\n#grid:[1:1].block\n#warp:[32:1].thread\n\
         %out <- Move<<<#grid, #warp>>>(%in) {{\n@lane = #warp.indices()\n\
         #one:[].thread = #warp.scalar()\n{body}\n}}"
    )
}

fn check_body(symbols: &str, params: &str, body: &str, expected: &Expect) {
    let source = emitted(&one_warp("sm_90a", symbols, params, body)).source;
    let at = source.find("extern \"C\"").unwrap();
    expected.assert_eq(&source[at..]);
}

fn check_refused(params: &str, body: &str, expected: &Expect) {
    let text = one_warp("sm_80", "@N", params, body);
    let kernel = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    expected.assert_eq(&emit(&kernel).unwrap_err().to_string());
}

const VECTORS: &str = "%in:[64:1].fp16.GL\n%out:[64:1].fp16.GL";

/// Section 5.4 prints `C[bid_m*128 + bid_n*131072 + tid_m*8 + tid_n*8192 + m + n*1024]`,
/// `A[bid_m*128 + tid_m*8 + m + k*1024]` and `B[bid_n*131072 + tid_n*8192 + k + n*1024]`.
#[test]
fn figure_8() {
    check(
        FIGURE_8,
        &expect![[r#"
        extern "C" __global__ void __launch_bounds__(256, 1)
        gemm(const half *__restrict__ t1,
             const half *__restrict__ t2,
             half *__restrict__ t3) {
          int bid_m = (int)blockIdx.x%8;
          int bid_n = (int)blockIdx.x/8;
          int tid_m = (int)threadIdx.x%16;
          int tid_n = (int)threadIdx.x/16;
          #pragma unroll 1
          for (int k = 0; k < 1024; k += 1) {
            #pragma unroll
            for (int m = 0; m < 8; m += 1) {
              #pragma unroll
              for (int n = 0; n < 8; n += 1) {
                t3[128*bid_m + 131072*bid_n + m + 1024*n + 8*tid_m + 8192*tid_n] =
                    __hfma(t1[128*bid_m + 1024*k + m + 8*tid_m],
                    t2[131072*bid_n + k + 1024*n + 8192*tid_n], t3[128*bid_m + 131072*bid_n + m + 1024*n
                    + 8*tid_m + 8192*tid_n]);
              }
            }
          }
        }
    "#]],
        &expect![[r#"
        gemm for sm_80
        grid 64, cluster 1, block 256, shared 0
        pointer %1: 1048576 of fp16, read
        pointer %2: 1048576 of fp16, read
        pointer %3: 1048576 of fp16, written
    "#]],
    );
}

/// The figure prints `smem[thr_grp_m * 128 + thr_grp_n * 8 + grp_local_idx * 16]`, in elements.
#[test]
fn figure_1() {
    check(
        FIGURE_1,
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(32, 1)
            figure_1(const half *__restrict__ in,
                     half *__restrict__ out) {
              extern __shared__ __align__(128) unsigned char shared[];
              // %1:[16,16:16,1].fp16.SH
              half *const t1 = (half *)&shared[0];
              const unsigned t1_at = shared_address(&shared[0]);
              int lane = (int)threadIdx.x;
              __align__(16) half t2[8];
              // %1 <- Move<<<#3, #4>>>(%in)
              #pragma unroll
              for (int i = 0; i < 8; i += 1) {
                half r;
                r = in[i + 16*(lane/2) + 8*(lane%2)];
                t1[i + 16*(lane/2) + 8*(lane%2)] = r;
              }
              asm volatile("bar.warp.sync 0xffffffff;" :  :  : "memory");
              // %2 <- Move<<<#3, #4>>>(%1)
              int thr_grp_m = (int)threadIdx.x/16;
              int thr_grp_n = ((int)threadIdx.x/8)%2;
              int grp_local_idx = (int)threadIdx.x%8;
              asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" :
                  "=r"(word(t2[0])), "=r"(word(t2[2])), "=r"(word(t2[4])), "=r"(word(t2[6])) :
                  "r"(t1_at + 32*grp_local_idx + 256*thr_grp_m + 16*thr_grp_n) : "memory");
              #pragma unroll
              for (int i = 0; i < 8; i += 1) {
                out[i + 8*lane] = t2[4*(i/4) + i%4];
              }
            }
        "#]],
        &expect![[r#"
        figure_1 for sm_75
        grid 1, cluster 1, block 32, shared 512
        pointer %in: 256 of fp16, read
        pointer %out: 256 of fp16, written
    "#]],
    );
}

/// What each pass leaves out, and adds: nothing is dropped or moved but by these.
#[test]
fn passes_are_printed() {
    let level = |own: &str, times: i64| {
        format!(
            "%r <- Fused{{%0 + %0}}<<<#grid, #warp>>>(%r) {{\n  @{own}, @lane_of_{own} = #warps.indices()\n  @unread_{own} = {times}*@{own}\n  \
             %s[@{own}] <- Move<<<#grid, #one>>>(%r)\n  %r <- BinaryPointwise<+><<<#grid, #one>>>(%r, %r)\n}}\n"
        )
    };
    let text = format!(
        "kernel k sm_90a ()\n%in:[64:1].fp32.GL\n%out:[64:1].fp32.GL\n#grid:[1:1].block\n#block:[64:1].thread\n\
         %out <- Fused{{8 * %0}}<<<#grid, #block>>>(%in) {{\n  #warps:[2:32].[32:1].thread = #block.tile(32)\n  \
         @own, @lane = #warps.indices()\n  #warp:[32:1].thread = #warps[@own]\n  #one:[].thread = #block.scalar()\n  \
         %s:[2:1].fp32.SH\n  %r:[].fp32.RF\n  %r <- Move<<<#grid, #one>>>(%in[32*@own + @lane])\n  {}{}{}  \
         %out[32*@own + @lane] <- Move<<<#grid, #one>>>(%r)\n}}",
        level("w", 1),
        level("w", 2),
        level("v", 3)
    );
    let kernel = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut before = String::new();
    let mut all = String::new();
    for pass in &PASSES {
        let now = after(&kernel, pass).unwrap();
        let lacks = |text: &str, line: &&str| !text.lines().any(|other| other == *line);
        let gone =
            before.lines().filter(|line| lacks(&now, line)).map(|line| format!("- {line}\n"));
        let new = now.lines().filter(|line| lacks(&before, line)).map(|line| format!("+ {line}\n"));
        all += &format!("{}: {}\n{}", pass.name, pass.does, gone.chain(new).collect::<String>());
        before = now;
    }
    assert_eq!(before, emit(&kernel).unwrap().source);
    expect![[r#"
        lower: statements of C, all of them, with levels as blocks
        + // k: generated by Graphene for sm_90a.
        + 
        + extern "C" __global__ void __launch_bounds__(64, 1)
        + k(const float *__restrict__ in,
        +   float *__restrict__ out) {
        +   int own = warp_index;
        +   int lane = (int)threadIdx.x%32;
        +   float r;
        +   r = in[lane + 32*own];
        +   // %r <- Fused{%0 + %0}<<<#grid, #warp>>>(%r)
        +   {
        +     int w = warp_index;
        +     int lane_of_w = (int)threadIdx.x%32;
        +     int unread_w = w;
        +     s[w] = r;
        +     r = r + r;
        +   }
        +   // %r <- Fused{%0 + %0}<<<#grid, #warp>>>(%r)
        +   {
        +     int w = warp_index;
        +     int lane_of_w = (int)threadIdx.x%32;
        +     int unread_w = 2*w;
        +     s[w] = r;
        +     r = r + r;
        +   }
        +   // %r <- Fused{%0 + %0}<<<#grid, #warp>>>(%r)
        +   {
        +     int v = warp_index;
        +     int lane_of_v = (int)threadIdx.x%32;
        +     int unread_v = 3*v;
        +     s[v] = r;
        +     r = r + r;
        +   }
        +   out[lane + 32*own] = r;
        + }
        scopes: levels whose variables are unlike those around them need no block
        -     int v = warp_index;
        -     int lane_of_v = (int)threadIdx.x%32;
        -     int unread_v = 3*v;
        -     s[v] = r;
        +   int v = warp_index;
        +   int lane_of_v = (int)threadIdx.x%32;
        +   int unread_v = 3*v;
        +   s[v] = r;
        +   r = r + r;
        unused: variables that nothing reads are dropped: some serve only views
        -     int lane_of_w = (int)threadIdx.x%32;
        -     int unread_w = w;
        -     int lane_of_w = (int)threadIdx.x%32;
        -     int unread_w = 2*w;
        -   int lane_of_v = (int)threadIdx.x%32;
        -   int unread_v = 3*v;
        warp: the own warp's number is declared where all lanes are together, if read
        +   const int warp_index = __shfl_sync(0xffffffffu, (int)threadIdx.x/32, 0);
        shared: what is used of shared memory is declared
        +   extern __shared__ __align__(128) unsigned char shared[];
        +   // %s:[2:1].fp32.SH
        +   float *const s = (float *)&shared[0];
        prelude: what CUDA's headers would define is defined, as far as it is named
    "#]]
    .assert_eq(&all);
}

#[test]
fn a_source_is_complete() {
    let source = emitted(FIGURE_8).source;
    let at = source.find("extern \"C\"").unwrap();
    expect![[r#"
        // gemm: generated by Graphene for sm_80.

        struct __align__(2) half {
          unsigned short bits;
          half() = default;
          __device__ half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
          __device__ operator float() const {
            float x;
            asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
            return x;
          }
        };

        __device__ __forceinline__ half __hfma(half a, half b, half c) {
          asm("fma.rn.f16 %0, %1, %2, %0;" : "+h"(c.bits) : "h"(a.bits), "h"(b.bits));
          return c;
        }

    "#]]
    .assert_eq(&source[..at]);
    assert!(!source.contains("#include"));
}

#[test]
fn symbolic_strides_are_multiplied_in_64_bits() {
    check_body(
        "@M, @N",
        "%in:[@M,@N:@N,1].fp32.GL\n%out:[4,@M,8:@M*@N,@N,1].fp32.GL",
        "for(@i = 0; @i < @M; @i += 1) {
           %r:[].fp32.RF
           %r <- Move<<<#grid, #one>>>(%in[@i + 1, @lane])
           %out[3, @i, 5] <- Move<<<#grid, #one>>>(%r)
         }",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(32, 1)
            k(const float *__restrict__ in,
              float *__restrict__ out,
              int M,
              int N) {
              int lane = (int)threadIdx.x;
              #pragma unroll 1
              for (int i = 0; i < M; i += 1) {
                float r;
                r = in[(long long)(i + 1)*N + lane];
                out[(long long)3*M*N + (long long)i*N + 5] = r;
              }
            }
        "#]],
    );
}

/// Section 5.3: a generic spec says what is fused, and becomes what it is made of.
#[test]
fn generic_specs_become_their_bodies() {
    check_body(
        "",
        "%in:[32:1].fp32.GL\n%out:[32:1].fp32.GL",
        "%r:[].fp32.RF
         %r <- Move<<<#grid, #one>>>(%in[@lane])
         %r <- Fused{relu(%0 + %0)}<<<#grid, #one>>>(%r) {
           %twice:[].fp32.RF
           %twice <- BinaryPointwise<+><<<#grid, #one>>>(%r, %r)
           %r <- UnaryPointwise<relu><<<#grid, #one>>>(%twice)
         }
         %out[@lane] <- Move<<<#grid, #one>>>(%r)",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(32, 1)
            k(const float *__restrict__ in,
              float *__restrict__ out) {
              int lane = (int)threadIdx.x;
              float r;
              r = in[lane];
              // %r <- Fused{relu(%0 + %0)}<<<#grid, #one>>>(%r)
              {
                float twice;
                twice = r + r;
                r = twice < 0.0f ? 0.0f : twice;
              }
              out[lane] = r;
            }
        "#]],
    );
}

#[test]
fn large_buffers_are_indexed_in_64_bits() {
    check_body(
        "",
        "%in:[70000,40000:40000,1].fp16.GL\n%out:[64:1].fp16.GL",
        "for(@i = 0; @i < 70000; @i += 1) {
           %r:[].fp16.RF
           %r <- Move<<<#grid, #one>>>(%in[@i, @lane])
         }",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(32, 1)
            k(const half *__restrict__ in) {
              int lane = (int)threadIdx.x;
              #pragma unroll 1
              for (int i = 0; i < 70000; i += 1) {
                half r;
                r = in[(long long)i*40000 + lane];
              }
            }
        "#]],
    );
}

#[test]
fn partial_tiles_are_predicated() {
    check_body(
        "@M",
        "%in:[@M:1].fp16.GL\n%out:[@M:1].fp16.GL",
        "%tiles:[(@M + 31)/32:32].[32:1].fp16.GL = %in.tile(32)
         for(@i = 0; @i < (@M + 31)/32; @i += 1) {
           %tile:[32:1].fp16.GL = %tiles[@i]
           if(inside(%tile[@lane])) {
             %r:[].fp16.RF
             %r <- Move<<<#grid, #one>>>(%tile[@lane])
             %out[32*@i + @lane] <- Move<<<#grid, #one>>>(%r)
           }
           if(inside(%in[0])) { Sync<<<#grid, #warp>>>() }
         }",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(32, 1)
            k(const half *__restrict__ in,
              half *__restrict__ out,
              int M) {
              int lane = (int)threadIdx.x;
              #pragma unroll 1
              for (int i = 0; i < (M + 31)/32; i += 1) {
                if (32*i + lane < M) {
                  half r;
                  r = in[32*i + lane];
                  out[32*i + lane] = r;
                }
                if (0 < M) {
                  asm volatile("bar.warp.sync 0xffffffff;" :  :  : "memory");
                }
              }
            }
        "#]],
    );
}

#[test]
fn rings_and_roles() {
    check(
        "kernel k sm_90a ()
%out:[64:1].fp16.GL
#grid:[1:1].block
#block:[384:1].thread
%out <- Init<0><<<#grid, #block>>>() {
  #one:[].thread = #block.scalar()
  #groups:[3:128].[128:1].thread = #block.tile(128)
  #lanes:[32:1].[12:32].thread = #block.tile(12:32)
  @group, @unused = #groups.indices()
  #own:[128:1].thread = #groups[@group]
  #second:[128:1].thread = #groups[1]
  %full:[4:1].mbar.SH
  ring @r[4]
  ring @once[1]
  role #groups[0] { %full[@r.stage] <- Arrive<<<#grid, #one>>>() }
  role #groups[1..3] { %full[@r.stage] <- Wait<@r.parity><<<#grid, #one>>>() }
  role #lanes[0] { %full[0] <- Arrive<<<#grid, #one>>>() }
  role #own[3] { %full[1] <- Arrive<<<#grid, #one>>>() }
  role #second[0..32] { %full[@once.parity] <- Arrive<<<#grid, #one>>>() }
  role #block[0..384] { %full[3] <- Arrive<<<#grid, #one>>>() }
  advance @r
  advance @once
}",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(384, 1)
            k() {
              extern __shared__ __align__(16) unsigned char shared[];
              // %full:[4:1].mbar.SH
              const unsigned full_at = shared_address(&shared[0]);
              const int warp_index = __shfl_sync(0xffffffffu, (int)threadIdx.x/32, 0);
              int r_stage = 0, r_parity = 0;
              int once_parity = 0;
              if (warp_index < 4) {
                asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :  : "r"(full_at + 8*r_stage) :
                    "memory");
              }
              if (warp_index >= 4) {
                asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], "
                    "%1; @!done bra again; }" :  : "r"(full_at + 8*r_stage), "r"(r_parity) : "memory");
              }
              if ((int)threadIdx.x%32 == 0) {
                asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :  : "r"(full_at) : "memory");
              }
              if ((int)threadIdx.x%128 == 3) {
                asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :  : "r"(full_at + 8) : "memory");
              }
              if (warp_index == 4) {
                asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :  : "r"(full_at + 8*once_parity) :
                    "memory");
              }
              asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :  : "r"(full_at + 24) : "memory");
              if (++r_stage == 4) { r_stage = 0; r_parity ^= 1; }
              once_parity ^= 1;
            }
        "#]],
        &expect![[r#"
            k for sm_90a
            grid 1, cluster 1, block 384, shared 32
        "#]],
    );
}

#[test]
fn swizzles_apply_to_what_they_may_change() {
    check_body(
        "",
        VECTORS,
        "%s:[2:4096].[64,64:64,1].fp16.SH.S<3,4,3>
         %plain:[64:1].fp16.SH
         %r:[].fp16.RF
         %f:[2,4:4,1].fp16.RF
         %pairs:[2,2:4,2].[1,2:0,1].fp16.RF = %f.tile(1, 2)
         for(@i = 0; @i < 2; @i += 1) {
           %t:[64,64:64,1].fp16.SH.S<3,4,3> = %s[@i]
           %r <- Move<<<#grid, #one>>>(%t[@lane, 3])
           %r <- Move<<<#grid, #one>>>(%t[9, 8])
           %r <- Move<<<#grid, #one>>>(%t[0, @lane])
           %r <- Move<<<#grid, #one>>>(%plain[@lane])
           %rows:[64,8:64,8].[1,8:0,1].fp16.SH.S<3,4,3> = %t.tile(1, 8)
           %pairs <- Move<<<#grid, #warp>>>(%rows[@lane, @i])
         }",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(32, 1)
            k() {
              extern __shared__ __align__(1024) unsigned char shared[];
              // %s:[2:4096].[64,64:64,1].fp16.SH.S<3,4,3>
              half *const s = (half *)&shared[0];
              const unsigned s_at = shared_address(&shared[0]);
              // %plain:[64:1].fp16.SH
              half *const plain = (half *)&shared[16384];
              int lane = (int)threadIdx.x;
              half r;
              __align__(16) half f[8];
              #pragma unroll 1
              for (int i = 0; i < 2; i += 1) {
                r = s[4096*i + swizzle<3, 3, 3>(64*lane + 3)];
                r = s[4096*i + 576];
                r = s[4096*i + lane];
                r = plain[lane];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" :
                    "=r"(word(f[0])), "=r"(word(f[2])), "=r"(word(f[4])), "=r"(word(f[6])) :
                    "r"(s_at + swizzle<3, 4, 3>(8208*i + 128*lane)) : "memory");
              }
            }
        "#]],
    );
}

#[test]
fn names_are_those_of_the_text_where_c_has_not_taken_them() {
    check_body(
        "@int",
        "%in:[@int:1].fp16.GL\n%out:[64:1].fp16.GL",
        "%half:[].fp16.RF
         @lane_2 = 2*@lane
         @odd = @lane_2 + 1
         %half <- Move<<<#grid, #one>>>(%in[@odd])
         for(@i = 0; @i < 2; @i += 1) { @odd_2 = @i + 1
           %i:[].fp16.RF
           %i <- Move<<<#grid, #one>>>(%in[@odd_2]) }
         for(@i = 0; @i < 2; @i += 1) { @odd_2 = @i + 2
           %i_2:[].fp16.RF
           %i_2 <- Move<<<#grid, #one>>>(%in[@odd_2]) }",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(32, 1)
            k(const half *__restrict__ in,
              int int_2) {
              int lane = (int)threadIdx.x;
              half half_2;
              int lane_2 = 2*lane;
              int odd = lane_2 + 1;
              half_2 = in[odd];
              #pragma unroll 1
              for (int i = 0; i < 2; i += 1) {
                int odd_2 = i + 1;
                half i_2;
                i_2 = in[odd_2];
              }
              #pragma unroll 1
              for (int i = 0; i < 2; i += 1) {
                int odd_2 = i + 2;
                half i_2_2;
                i_2_2 = in[odd_2];
              }
            }
        "#]],
    );
}

#[test]
fn inputs_of_a_kernel_that_waits_are_not_constant() {
    check(
        &one_warp(
            "sm_90a",
            "",
            VECTORS,
            "%r:[].fp16.RF
             GridDependencyWait<<<#grid, #warp>>>()
             %r <- Move<<<#grid, #one>>>(%in[@lane])
             %out[@lane] <- Move<<<#grid, #one>>>(%r)",
        ),
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(32, 1)
            k(const half *in,
              half *out) {
              int lane = (int)threadIdx.x;
              half r;
              asm volatile("griddepcontrol.wait;" :  :  : "memory");
              r = in[lane];
              out[lane] = r;
            }
        "#]],
        &expect![[r#"
            k for sm_90a
            grid 1, cluster 1, block 32, shared 0
            pointer %in: 64 of fp16, read
            pointer %out: 64 of fp16, written
            waits for its predecessor itself
        "#]],
    );
}

#[test]
fn tensor_maps() {
    check(
        "kernel k sm_90a (@B, @M)
%in:[@B,@M,96:@M*96,96,1].bf16.GL
%out:[@M,@M:1,@M].bf16.GL
#grid:[@B:1].block
#block:[128:1].thread
%out <- Move<<<#grid, #block>>>(%in) {
  @b = #grid.indices()
  #one:[].thread = #block.scalar()
  %s:[128,32:32,1].bf16.SH.S<2,4,3>
  %full:[2:1].mbar.SH
  %tiles:[@B,(@M + 127)/128,3:@M*96,12288,32].[1,128,32:0,96,1].bf16.GL = %in.tile(1, 128, 32)
  %others:[(@M + 63)/64,(@M + 31)/32:64,32*@M].[64,32:1,@M].bf16.GL = %out.tile(64, 32)
  %t:[32,64:64,1].bf16.SH
  role #block[0] {
    %s <- Move<<<#grid, #one>>>(%tiles[@b, 1, 2]) signals %full[1]
    %s <- Move<<<#grid, #one>>>(%tiles[@b, 0, 2]) signals %full[0]
  }
}",
        &expect![[r#"
            extern "C" __global__ void __launch_bounds__(128, 1)
            k(const __grid_constant__ TensorMap in_map,
              int B,
              int M) {
              extern __shared__ __align__(1024) unsigned char shared[];
              // %s:[128,32:32,1].bf16.SH.S<2,4,3>
              const unsigned s_at = shared_address(&shared[0]);
              // %full:[2:1].mbar.SH
              const unsigned full_at = shared_address(&shared[8192]);
              int b = (int)blockIdx.x;
              if ((int)threadIdx.x == 0) {
                asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                    "[%0], [%1, {%3, %4, %5}], [%2];" :  : "r"(s_at), "l"(&in_map), "r"(full_at + 8), "r"(64),
                    "r"(128), "r"(b) : "memory");
                asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                    "[%0], [%1, {%3, %4, %5}], [%2];" :  : "r"(s_at), "l"(&in_map), "r"(full_at), "r"(64),
                    "r"(0), "r"(b) : "memory");
              }
            }
        "#]],
        &expect![[r#"
            k for sm_90a
            grid @B, cluster 1, block 128, shared 12416
            map of %in: [96, @M, @B] of bf16, [192, 192*@M] bytes apart, window [32, 128, 1], swizzle 64
            symbol @B
            symbol @M
            requires the pointer of %in to be a multiple of 16
        "#]],
    );
}

#[test]
fn alignments_are_conditions() {
    let text = one_warp(
        "sm_80",
        "@N",
        "%in:[32,@N:@N,1].fp16.GL\n%out:[32,8:8,1].fp16.GL",
        "%r:[8:1].fp16.RF
         %a:[32,(@N + 7)/8:@N,8].[1,8:0,1].fp16.GL = %in.tile(1, 8)
         %b:[32,1:8,8].[1,8:0,1].fp16.GL = %out.tile(1, 8)
         %r <- Move<<<#grid, #one>>>(%a[@lane, 0])
         %b[@lane, 0] <- Move<<<#grid, #one>>>(%r)",
    );
    expect![[r#"
        k for sm_80
        grid 1, cluster 1, block 32, shared 0
        pointer %in: 32*@N of fp16, read
        pointer %out: 256 of fp16, written
        symbol @N
        requires the pointer of %in to be a multiple of 16
        requires the pointer of %out to be a multiple of 16
        requires 2*@N to be a multiple of 16
    "#]]
    .assert_eq(&emitted(&text).launch.to_string());
}

#[test]
fn refusals() {
    check_refused(
        VECTORS,
        "%r:[8:1].fp16.RF
         for(@i = 0; @i < 8; @i += 1) { %r[@i] <- Move<<<#grid, #one>>>(%in[@i]) }",
        &expect![
            "%r[@i] <- Move<<<#grid, #one>>>(%in[@i]): the register r[@i] depends on @i, which is no counter of an unrolled loop"
        ],
    );
    check_refused(
        VECTORS,
        "%s:[100000:1].fp32.SH",
        &expect!["needs at most 166912 bytes of shared memory a block; got 400000"],
    );
    check_refused(
        VECTORS,
        "%s:[@N:1].fp32.SH",
        &expect!["the size of %s in shared memory is not a constant"],
    );
    check_refused(
        VECTORS,
        "%out <- Move<<<#grid, #warp>>>(%in)",
        &expect!["%out <- Move<<<#grid, #warp>>>(%in): no atom carries this out; near ones: []"],
    );
}

/// The text's own coefficients, in single precision as it computes.
#[test]
fn the_fast_gelu_is_as_exact_as_it_says() {
    let source = emitted(&one_warp(
        "sm_80",
        "",
        "%in:[32:1].fp32.GL\n%out:[32:1].fp32.GL",
        "%r:[].fp32.RF\n%r <- Move<<<#grid, #one>>>(%in[@lane])\n\
         %r <- UnaryPointwise<gelu_half><<<#grid, #one>>>(%r)\n\
         %out[@lane] <- Move<<<#grid, #one>>>(%r)",
    ));
    let body = source.source.split_once("float gelu_half(").unwrap().1;
    let body = body.split_once("\n}\n").unwrap().0;
    let numbers = body.split(|c: char| !(c.is_ascii_digit() || "-.".contains(c)));
    let numbers = numbers.filter(|word| word.len() > 8 && word.contains('.'));
    let coefficients: Vec<f32> = numbers.map(|word| word.parse().unwrap()).collect();
    assert_eq!(coefficients.len(), 6);
    for i in -80_000..=80_000 {
        let x = i as f32 / 8192.0;
        let a = x.abs();
        let power = coefficients.iter().fold(0.0, |p: f32, c| p.mul_add(a, *c));
        let y = (-a).mul_add(power.exp2(), x.max(0.0));
        let exact = Unary::GeluHalf.value(f64::from(x));
        let error = (f64::from(y) - exact).abs();
        assert!(error <= 2f64.powf(-13.7) * exact.abs() + 2f64.powi(-25), "{x}: {y}, {exact}");
    }
}
