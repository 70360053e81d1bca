//! Inline assembly as CUDA C++ writes it.

use crate::text::print::list;

/// An `asm volatile` statement: `%0`, `%1`, … are `outs` and then `ins`, each with its constraint.
pub(super) fn asm(text: &str, outs: &[(&str, String)], ins: &[(&str, String)]) -> String {
    let all = |operands: &[(&str, String)]| {
        list(operands.iter().map(|(constraint, value)| format!("\"{constraint}\"({value})")))
    };
    let (outs, ins) = (all(outs), all(ins));
    format!("asm volatile(\"{text}\" : {outs} : {ins} : \"memory\");")
}

/// `%first, %first+1, …`, in braces.
pub(super) fn group(first: usize, count: usize) -> String {
    format!("{{{}}}", list((first..first + count).map(|i| format!("%{i}"))))
}

/// A matmul by a warp (PTX `mma.sync`): the sums, which are added to, and the words of A and of B.
pub(super) fn mma(name: &str, sums: Vec<String>, a: Vec<String>, b: Vec<String>) -> String {
    let (n, left, right) = (sums.len(), a.len(), b.len());
    let sum = group(0, n);
    let text = format!(
        "mma.sync.aligned.{name} {sum}, {}, {}, {sum};",
        group(n, left),
        group(n + left, right)
    );
    let outs: Vec<_> = sums.into_iter().map(|sum| ("+f", sum)).collect();
    let ins: Vec<_> = a.into_iter().chain(b).map(|word| ("r", word)).collect();
    asm(&text, &outs, &ins)
}
