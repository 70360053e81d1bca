//! Another block's shared memory, of the own cluster.

use super::asm::{asm, group};
use super::moves::{bytes, copy, same};
use super::{Atom, Code, Proxy, Site, When};
use crate::arch::Feature;

/// Destination and source.
const D: usize = 0;
const A: usize = 1;

pub(super) const ATOMS: &[Atom] = &[
    Atom {
        name: "ld.shared::cluster",
        pattern: "[].fp32|i32|u32.RF <- Move<<<[]>>>([].fp32|i32|u32.SH@)",
        needs: &[Feature::Cluster],
        align: &[],
        when: same,
        proxy: Proxy::Generic,
        meaning: copy,
        cuda: |_, code| {
            let ins = [("r", code.address(A, &[])), ("r", peer(code, A))];
            let text = "{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; \
                        ld.shared::cluster.u32 %0, [a]; }";
            asm(text, &[("=r", code.word(D, &[]))], &ins)
        },
    },
    Atom {
        name: "st.shared::cluster",
        pattern: "[].fp32|i32|u32.SH@ <- Move<<<[]>>>([].fp32|i32|u32.RF)",
        needs: &[Feature::Cluster],
        align: &[],
        when: same,
        proxy: Proxy::Generic,
        meaning: copy,
        cuda: |_, code| {
            let address = [("r", code.address(D, &[])), ("r", peer(code, D))];
            let ins = [&address[..], &[("r", code.word(A, &[]))]].concat();
            let text = "{ .reg .u32 a; mapa.shared::cluster.u32 a, %0, %1; \
                        st.shared::cluster.u32 [a], %2; }";
            asm(text, &[], &ins)
        },
    },
    st_async("st.async.v4.b32", WORDS, &[16, 4], |s| words(s, 16)),
    st_async("st.async.v2.b32", WORDS, &[8, 4], |s| words(s, 8)),
    st_async(
        "st.async.b32",
        "[].fp32|i32|u32.SH@ <- Move<<<[]>>>([].fp32|i32|u32.RF) signals",
        &[],
        |s| same(s).and_then(|()| tells_its_block(s)),
    ),
];

const WORDS: &str = "[n:1].fp32|i32|u32.SH@ <- Move<<<[]>>>([n:1].fp32|i32|u32.RF) signals";

/// A store of words of which a barrier of the block that they go to learns: who has waited for it in the cluster's scope sees
/// them, without a fence of either (PTX ISA, `st.async`: its complete-tx releases in that scope).
const fn st_async(
    name: &'static str,
    pattern: &'static str,
    align: &'static [i64],
    when: When,
) -> Atom {
    Atom {
        name,
        pattern,
        needs: &[Feature::Cluster, Feature::Mbarrier],
        align,
        when,
        proxy: Proxy::Generic,
        meaning: copy,
        cuda: |site, code| {
            let words: Vec<String> = match site.dims(A).is_empty() {
                true => vec![code.word(A, &[])],
                false => (0..site.size("n")).map(|i| code.word(A, &[i])).collect(),
            };
            let first = vec![0; site.dims(D).len()];
            let mut ins =
                vec![("r", code.address(D, &first)), ("r", code.signal()), ("r", peer(code, D))];
            let (vector, list) = match words.len() {
                1 => (String::new(), "%3".to_owned()),
                n => (format!(".v{n}"), group(3, n)),
            };
            ins.extend(words.into_iter().map(|word| ("r", word)));
            let text = format!(
                "{{ .reg .u32 a, b; mapa.shared::cluster.u32 a, %0, %2; \
                 mapa.shared::cluster.u32 b, %1, %2; \
                 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.b32 [a], {list}, [b]; }}"
            );
            asm(&text, &[], &ins)
        },
    }
}

/// So many bytes of one type, from one block to another, whose barrier learns of them.
fn words(site: &Site<'_>, wanted: i64) -> std::result::Result<(), &'static str> {
    bytes(site, wanted).and_then(|()| tells_its_block(site))
}

fn tells_its_block(site: &Site<'_>) -> std::result::Result<(), &'static str> {
    if site.across_blocks() {
        return Err("it is for threads of one block");
    }
    if site.signalled().is_some_and(|barrier| barrier.peer == site.operand(D).peer) {
        Ok(())
    } else {
        Err("the barrier that it signals is in the block that it writes to")
    }
}

fn peer(code: &dyn Code, operand: usize) -> String {
    code.peer(operand).expect("the pattern asks for a peer's memory")
}
