//! Inline assembly as CUDA C++ writes it.

/// An `asm volatile` statement: `%0`, `%1`, … are `outs` and then `ins`, each with its constraint.
pub(super) fn asm(text: &str, outs: &[(&str, String)], ins: &[(&str, String)]) -> String {
    let list = |operands: &[(&str, String)]| {
        let all: Vec<String> = operands
            .iter()
            .map(|(constraint, value)| format!("\"{constraint}\"({value})"))
            .collect();
        all.join(", ")
    };
    let outs = list(outs);
    let ins = list(ins);
    format!("asm volatile(\"{text}\" : {outs} : {ins} : \"memory\");")
}

/// `%first, %first+1, …`, in braces.
pub(super) fn group(first: usize, count: usize) -> String {
    let all: Vec<String> = (first..first + count).map(|i| format!("%{i}")).collect();
    format!("{{{}}}", all.join(", "))
}
