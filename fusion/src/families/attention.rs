//! Attention's variants: by how many warpgroups, and by threads where each head has one query.

use crate::base::parameters::{FmhaParameters, Parameters};
use crate::base::sizes::tiles;
use crate::base::variants::{ANY, Variant, Variants, When};
use crate::families::calls::{at_least, at_most};
use crate::families::estimates::{ATTENTION_LAUNCH, attention_block};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::op::{AttentionAttrs, Op};
use graphene_frontend::types::TensorType;
use graphene_ir::arch::Feature;
use graphene_ir::schedule::Spread;
use graphene_ir::target::Target;
use graphene_ir::template::fmha::Fmha;
use graphene_ir::tensor::Scalar;

/// Queries of a warpgroup of attention.
const QUERIES: i64 = 64;
/// Keys of a tile, most first: those of one and two warpgroups, while registers hold the scores.
const KEYS: [i64; 5] = [128, 112, 96, 80, 64];
/// The variant of attention by one query of each head, of which several share keys.
pub(crate) const DECODE: &str = "decode";
/// The variant of attention by threads of so few keys that tiles of more would be mostly empty.
pub(crate) const FEW_KEYS: &str = "few keys";
/// The most keys of it: those of its tiles.
pub(crate) const KEYS_OF_FEW: i64 = 32;

/// Attention of one query of each head by threads. Blocks of a cluster share the keys of a head, so that few heads keep many
/// cores busy.
pub(crate) struct Decode {
    /// The name of its variant.
    name: &'static str,
    /// How many blocks share a head's.
    pub(crate) parts: i64,
    /// Warps of a block, in fours.
    pub(crate) consumers: i64,
    /// The most heads of keys, of all sequences, for each core.
    heads: f64,
    /// The fewest keys.
    keys: i64,
}

/// Those of clusters, of most parts first. Microseconds on an H200 (`device decode`, fp16, heads of 64 elements), by these and
/// by warpgroups: with 1024 keys 12 heads take 4.9 and 9.4, 48 heads 7.8 and 9.9, 96 heads 11.1 and 11.1, 8 heads of four
/// queries 6.5 and 9.3; 12 heads with 128 keys 2.8 and 3.6.
const DECODES: [Decode; 3] = [
    Decode { name: "decode8", parts: 8, consumers: 1, heads: 0.25, keys: 256 },
    Decode { name: "decode2", parts: 2, consumers: 2, heads: 1.0, keys: 256 },
    Decode { name: "decode1", parts: 1, consumers: 1, heads: 1.0, keys: 1 },
];
/// The one without clusters: not timed.
const DECODE_ALONE: [Decode; 1] =
    [Decode { name: "decode1", parts: 1, consumers: 3, heads: 1.0, keys: 128 }];
/// The most heads that may share keys: a thread multiplies a key by each of their queries.
const HEADS_OF_DECODE: i64 = 4;

/// The variants of attention: see [`variants`](super::tiles::variants).
pub(crate) fn variants_of_attention(target: &Target, body: &Graph) -> Option<Variants> {
    let mut first = variants_of_one_query(target, body).unwrap_or_default();
    first.extend(few_keys(target, body));
    let (attrs, all, mask) = attention(body)?;
    let [TensorType { dtype, shape }, keys, _] = all;
    if *dtype == DType::F32 || !target.has(Feature::Wgmma) {
        return (!first.is_empty()).then(|| Variants::ending(first, ANY));
    }
    let (heads, queries) = (&shape[0] * &shape[1], &shape[2]);
    if heads_of_a_group(body).is_some_and(|group| group != 1) {
        first.push(Variant::named(DECODE, When::AtMost(queries.clone(), 1)));
    }
    // Three warpgroups pay where heads are so small that they have registers for them, and it is not causal.
    let is_small = |ty: &TensorType| ty.shape[3].known().is_some_and(|dim| dim <= 64);
    if all.into_iter().all(is_small) && !attrs.causal {
        // Their tiles have fewest keys where each score has a term of its own.
        let row = mask.and_then(|mask| mask.shape.iter().nth_back(1));
        let few = if row.is_some_and(|row| *row != 1) { 64 } else { 96 };
        first.extend(variants_by_estimates(target, [&heads, queries, &keys.shape[2]], few).0);
        return Some(Variants(first));
    }
    let tiles = &tiles(queries, QUERIES) * &heads;
    let cores = i64::from(target.cores);
    first.push(Variant::named("short", When::AtMost(queries.clone(), QUERIES)));
    first.push(Variant::named("narrow", When::AtMost(tiles.clone(), cores)));
    Some(Variants::ending(first, "wide"))
}

/// Attention by one to three warpgroups, the last of which always applies: each where it is estimated to take least. Where keys
/// are known, each has the tiles of keys that suit it; else there is also a variant of two warpgroups with the smallest tiles,
/// for few keys.
fn variants_by_estimates(target: &Target, [heads, queries, keys]: [&Dim; 3], few: i64) -> Variants {
    let cores = Dim::from(i64::from(target.cores));
    let time = |consumers: i64, of_tile: i64| {
        let blocks = &tiles(queries, QUERIES * consumers) * heads;
        let waves = blocks.ceil_div(&cores).expect("a GPU has multiprocessors");
        let launch = Dim::from(ATTENTION_LAUNCH * (consumers - 1));
        &(&waves * &attention_block([consumers, of_tile], keys)) + &launch
    };
    // Where the number of keys is not known, all times are `None`, and the first tile, the largest, is taken.
    let suits = |consumers: i64| {
        let most = if consumers == 3 { few } else { KEYS[0] };
        let time = |&of_tile: &i64| attention_block([consumers, of_tile], keys).known();
        KEYS.into_iter().filter(|&of_tile| of_tile <= most).min_by_key(time).unwrap_or(few)
    };
    let mut kinds = vec![("narrow", 1, suits(1)), ("tall", 3, suits(3))];
    if keys.known().is_none() {
        kinds.push(("wide of few keys", 2, KEYS[KEYS.len() - 1]));
    }
    kinds.push(("wide", 2, suits(2)));
    let times: Vec<Dim> =
        kinds.iter().map(|&(_, consumers, of_tile)| time(consumers, of_tile)).collect();
    let of_kind = kinds.iter().enumerate().map(|(number, &(name, consumers, keys))| {
        let stages = if consumers == 3 { 3 } else { 2 };
        let parameters = Some(Parameters::Fmha(FmhaParameters { consumers, keys, stages }));
        Variant { name, when: When::Fastest(times[number..].to_vec()), parameters }
    });
    let mut variants = Variants(of_kind.collect());
    if let Ok(least) = variants.choose(&Bindings::new()) {
        variants.0 = vec![variants.0.swap_remove(least)];
    }
    if let Some(last) = variants.0.last_mut() {
        last.when = When::Always;
    }
    variants
}

/// Attention by threads with tiles of more keys, where they pay: of them a lane of four rows reads fewer elements for each
/// multiply-add, and two blocks fit a multiprocessor.
pub(crate) fn with_more_keys(target: &Target, fmha: &Fmha) -> Option<Fmha> {
    let more = Fmha { keys: 64, ..fmha.clone() };
    let pays = more.spread() == Spread::FourRows;
    (pays && 2 * more.ampere_bytes() <= target.shared_memory_per_block).then_some(more)
}

/// Attention of few keys, if others have tiles of more.
fn few_keys(target: &Target, body: &Graph) -> Option<Variant> {
    let (_, [_, keys, values], _) = attention(body)?;
    let (head_dim, value_dim) = (keys.shape[3].known()?, values.shape[3].known()?);
    let fmha = Fmha {
        scalar: Scalar::F32,
        tf32: target.tf32,
        consumers: 1,
        head_dim,
        value_dim,
        ..Fmha::default()
    };
    with_more_keys(target, &fmha).filter(|_| keys.dtype == DType::F32)?;
    Some(Variant::named(FEW_KEYS, at_most(keys.shape[2].clone(), KEYS_OF_FEW)?))
}

/// Attention of one query by threads, at the sizes at which it pays.
fn variants_of_one_query(target: &Target, body: &Graph) -> Option<Vec<Variant>> {
    let group = heads_of_a_group(body)?.known()?;
    let (_, [queries, keys, values], _) = attention(body)?;
    let rows = &queries.shape[2];
    let [batch, heads, count, _] = &keys.shape[..] else { return None };
    // A vector of 16 bytes a lane.
    let widths = [keys, values].map(|ty| Some(ty.shape[3].known()? * ty.dtype.size() as i64));
    let fits = widths.into_iter().all(|bytes| bytes.is_some_and(|bytes| bytes <= 32 * 16));
    // As many queries as keys are a prompt, not one new token.
    if !fits || group > HEADS_OF_DECODE || rows == count {
        return None;
    }
    let one = at_most(rows.clone(), 1)?;
    let variant = |decode: &Decode| {
        let long = at_least(count.clone(), decode.keys)?;
        let few = at_most(batch * heads, decode.most_heads(target))?;
        Some(Variant::named(decode.name, When::all(vec![one.clone(), few, long])))
    };
    Some(decodes(target).iter().filter_map(variant).collect())
}

fn decodes(target: &Target) -> &'static [Decode] {
    if target.has(Feature::Cluster) { &DECODES } else { &DECODE_ALONE }
}

impl Decode {
    fn most_heads(&self, target: &Target) -> i64 {
        (f64::from(target.cores) * self.heads) as i64
    }
}

/// What a variant of this name is on a target, if it is attention of one query by threads.
pub(crate) fn decode_named(target: &Target, name: &str) -> Option<&'static Decode> {
    decodes(target).iter().find(|decode| decode.name == name)
}

/// The blocks of attention by one query of each of `group` times as many heads as have keys, if threads make it.
pub(crate) fn blocks_of_decode(
    target: &Target,
    group: i64,
    [heads, keys]: [i64; 2],
) -> Option<i64> {
    let pays = |of: &&Decode| heads <= of.most_heads(target) && keys >= of.keys;
    let found = decodes(target).iter().find(pays).filter(|_| group <= HEADS_OF_DECODE);
    found.map(|decode| heads * decode.parts)
}

/// The attention of a body: its attributes, and the types of queries, keys and values, all of rank 4, and of its mask.
fn attention(body: &Graph) -> Option<(&AttentionAttrs, [&TensorType; 3], Option<&TensorType>)> {
    body.nodes().find_map(|(_, node)| {
        let Op::Attention(attrs) = node.op() else { return None };
        let ty = |slot: usize| node.input(slot).map(|value| body.ty(value));
        Some((attrs, [ty(0)?, ty(1)?, ty(2)?], ty(3)))
    })
}

/// How many heads of an attention share keys and values, if queries attend all of them.
pub(crate) fn heads_of_a_group(body: &Graph) -> Option<Dim> {
    let (attrs, [queries, keys, _], _) = attention(body)?;
    queries.shape[1].exact_div(&keys.shape[1]).filter(|_| !attrs.causal)
}
