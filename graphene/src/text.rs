//! The text form of kernels: [`Kernel`](crate::kernel::Kernel) prints it, [`parse`] reads it back to the same kernel.
//!
//! It is the paper's, with strides always written, and with what Hopper adds (see [`kernel`](crate::kernel)):
//!
//! ```text
//! kernel   = "kernel" name arch "(" { @symbol } ")" { param | launched } spec
//! param    = %name ":" type                              in global memory
//! launched = #name ":" type                              the .block and the .thread tensor
//! type     = "[]" { part } | level { "." level } { part }
//! level    = "[" sizes ":" strides "]"                   trees: [4,(2,4):2,(1,8)]
//! part     = ".fp16" ".SH" ".S<3,4,3>" ".peer(" expr ")" ".const" or ".thread", ".block"
//!
//! body     = "{" { stmt } "}"                            what is declared here is known here
//! stmt     = %name ":" type                              Allocate
//!          | %name ":" type "=" %name view
//!          | #name ":" type "=" #name view
//!          | names "=" #name ".indices()"                (@m, @n), @i for [2,2:16,8].[8:1]
//!          | @name "=" expr
//!          | @name "=" %name                             the integer in a register
//!          | "ring" @name "[" stages "]"                 @name.stage and @name.parity
//!          | "advance" @name
//!          | "for(" @k "=" expr ";" @k "<" expr ";" @k "+=" expr ")" [ "unroll" ] { carry } body
//!          | "if(" ( cond { "&&" cond } | "inside(" operand ")" | "true" ) ")" body
//!          | "role" #name "[" coord [ ".." end ] "]" body
//!          | spec
//! view     = "[" coords "]" | ".tile(" tiles ")" | ".reshape(" depth "," dims ")"
//!          | ".scalar()" | ".peer(" expr ")"
//! tile     = "_" | size [ ":" stride ] | "(" sizes "):(" strides ")"
//! spec     = [ operands "<-" ] kind "<<<" #blocks "," #threads ">>>" "(" operands ")"
//!            [ "signals" operand | "async" ] [ body ]
//! carry    = "carry" operands [ "as" "Fused{" … "}" ] "=" kind "<<<" #blocks "," #threads ">>>" "(" operands ")"
//! operand  = %name [ "[" coords "]" ]
//! kind     = name [ "<" parameters ">" ]                 a row of the table in `text/kind.rs`
//!          | "Fused{" { name "=" part ";" } part { "," part } "}"
//! part     = %0 | number | old(0) | index(expr) | of + - * / and of functions of elements: max(a, b), fp16(a)
//!          | matmul(a, b) | fold<+>(a, dims) | fold<softmax.max>(a, dims) | scan<+, dim>(a)
//!          | dims(a, 1, _, 0) | split(a, dim, size) | merge(a, dim) | slice(a, dim, first, count)
//!          | window(a, dim, count, size, stride, dilation, before, fill) | gather(a, indices) | position(a, dim)
//!          | steps(a, count, "{" … "}", b, …)              of %0 the state, %1 the step's number, %2 b, …: the next
//! expr     = C's, of + - * / % min(a, b) max(a, b)
//! ```
//!
//! Comments run from `//` to the end of the line; lines mean nothing else. A `%` that touches what
//! stands before it, or no name behind it, is the remainder; any other opens a tensor's name.
//!
//! The type of a view is printed for the reader. The parser computes it from the operation and
//! refuses another. The ranges of variables are not written: they follow from what defines them.

pub(crate) mod cursor;
mod expr;
mod fused;
pub(crate) mod kind;
mod parse;
pub(crate) mod print;
mod types;

pub use self::parse::{parse, parse_all};
