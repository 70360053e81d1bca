//! Another block's shared memory, of the own cluster.

use super::asm::{asm, group};
use super::moves::{bytes, copy, same};
use super::{A, Atom, Code, D, Fits, Site, When, given};
use crate::Feature;

#[rustfmt::skip]
pub(super) const ATOMS: &[Atom] = &[
    st_async("st.async.v4.b32", WORDS, |s| bytes(s, 16).and(tells_its_block(s))).align(&[16, 4]),
    st_async("st.async.v2.b32", WORDS, |s| bytes(s, 8).and(tells_its_block(s))).align(&[8, 4]),
    st_async("st.async.b32", WORD, |s| same(s).and(tells_its_block(s))),
];

const WORD: &str = "[].fp32|i32|u32.SH@ <- Move<<<[]>>>([].fp32|i32|u32.RF) signals";
const WORDS: &str = "[n:1].fp32|i32|u32.SH@ <- Move<<<[]>>>([n:1].fp32|i32|u32.RF) signals";

/// A store of words of which a barrier of the block that they go to learns: who has waited for it in the cluster's scope sees
/// them, without a fence of either (PTX ISA, `st.async`: its complete-tx releases in that scope).
const fn st_async(name: &'static str, pattern: &'static str, when: When) -> Atom {
    let text = |site: &Site<'_>, code: &Code<'_>| {
        let words: Vec<String> = match site.dims(A).is_empty() {
            true => vec![code.word(A, &[])],
            false => (0..site.size("n")).map(|i| code.word(A, &[i])).collect(),
        };
        let first = vec![0; site.dims(D).len()];
        let (vector, list) = match words.len() {
            1 => (String::new(), "%3".to_owned()),
            n => (format!(".v{n}"), group(3, n)),
        };
        let peer = code.peer(D).expect("the pattern asks for a peer's memory");
        let ins = [code.address(D, &first), code.signal(), peer].into_iter().chain(words);
        let ins: Vec<_> = ins.map(|at| ("r", at)).collect();
        let text = format!(
            "{{ .reg .u32 a, b; mapa.shared::cluster.u32 a, %0, %2; \
             mapa.shared::cluster.u32 b, %1, %2; \
             st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.b32 [a], {list}, [b]; }}"
        );
        asm(&text, &[], &ins)
    };
    let needs = &[Feature::Cluster, Feature::Mbarrier];
    Atom::new(name, pattern, copy, text).needs(needs).when(when)
}

fn tells_its_block(site: &Site<'_>) -> Fits {
    given(!site.across_blocks(), "it is for threads of one block")?;
    let there = site.signalled().is_some_and(|barrier| barrier.peer == site.operand(D).peer);
    given(there, "the barrier that it signals is in the block that it writes to")
}
