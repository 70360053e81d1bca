//! Attention: one kernel, whose operands are read as they lie.

use super::operand::{forward, spread};
use super::{
    Dims, Launch, Made, Pointer, Refusal, Site, StepOperand, TypedOperand, WIDTH, by_name, ensure,
    tiles,
};
use crate::base::parameters::{FmhaParameters, Parameters};
use crate::base::sizes::is_multiple;
use crate::base::variants::Variant;
use crate::families::attention::{
    DECODE, Decode, FEW_KEYS, KEYS_OF_FEW, decode_named, heads_of_a_group, with_more_keys,
};
use graphene_frontend::dim::Dim;
use graphene_frontend::op::Op;
use graphene_ir::arch::{Arch, Feature};
use graphene_ir::kernel::Number;
use graphene_ir::template::fmha::{Fmha, Mask};
use graphene_ir::tensor::Scalar;

/// The launches of a step that is one attention, one for each of its variants.
pub(super) fn launches(site: &Site<'_>) -> Result<Vec<Launch>, Refusal> {
    let body = &site.step.body;
    let others = Refusal::Operation("attention with other operations");
    let node = body.only_operation().ok_or(others)?;
    let Op::Attention(attrs) = node.op() else {
        return Err(Refusal::Operation(node.op().name()));
    };
    let computed = "attention over a value that the launch itself computes";
    let read = |place| site.read(node.input(place), computed);
    let operands = [read(0)?, read(1)?, read(2)?, site.operand(StepOperand::Output(0))?];
    let [q, k, v, o] = &operands;
    let mut dims = Dims::new();
    let mut sizes = |of, name| rows(of, name, &mut dims);
    let [q, k, v, _] = [sizes(q, "q")?, sizes(k, "k")?, sizes(v, "v")?, sizes(o, "o")?];
    // A softmax of nothing is no number; matmuls of a depth of 0 are zeros.
    ensure(k[2] != 0, Refusal::Layout("attention over no keys"))?;
    let known = |dim: &Dim| dim.known().ok_or(Refusal::Layout("a head of unknown size"));
    let mut pointers: Vec<Pointer> = operands.iter().map(TypedOperand::pointer).collect();
    let mut mask = Mask::None;
    if let Some(mask_value) = node.input(3) {
        let operand = site.read(Some(mask_value), computed)?;
        mask = mask_of(&operand, &[&q[0], &q[1], &q[2], &k[2]].map(Clone::clone), &mut dims)?;
        pointers.push(operand.pointer());
    }
    let scalar = operands[0].scalar;
    let fmha = Fmha {
        scalar,
        // It runs on newer ones as well.
        arch: if site.arch.has(Feature::CpAsync) { Arch::Sm80 } else { site.arch },
        tf32: scalar == Scalar::F32 && site.target.tf32,
        head_dim: known(&q[3])?,
        value_dim: known(&v[3])?,
        scale: Number(f64::from(attrs.scale)),
        softcap: (attrs.softcap != 0.0).then(|| Number(f64::from(attrs.softcap))),
        mask,
        fill: Number(f64::from(attrs.fill)),
        causal: attrs.causal,
        guarded: attrs.guarded,
        ..Fmha::default()
    };
    let [batch, heads, kv_heads, queries, keys] =
        [&q[0], &q[1], &k[1], &q[2], &k[2]].map(Dim::clone);
    dims.extend(by_name([("batch", batch), ("heads", heads), ("kv_heads", kv_heads)]));
    dims.extend(by_name([("queries", queries), ("keys", keys)]));
    site.launch_each(|variant| {
        let (mut fmha, mut dims) = (fmha.clone(), dims.clone());
        let by_threads = decode_named(site.target, variant.name);
        let of_one = by_threads.is_some() || variant.name == DECODE;
        let group = heads_of_a_group(body).filter(|group| of_one && *group != 1);
        if let Some(group) = &group {
            one_query(&mut fmha, &mut dims, group);
        }
        let made = match by_threads {
            Some(of) => decode(site, (group, of), fmha)?,
            None => tiled(site, variant, fmha, &mut dims)?,
        };
        Ok(site.launch(made, &dims, pointers.clone()))
    })
}

/// One query of each head as rows of one tile, for all heads that share keys: what is from head to head is from row to
/// row. A mask that heads share is one of keys.
fn one_query(fmha: &mut Fmha, dims: &mut Dims, group: &Dim) {
    if let Mask::Dense(scalar) = fmha.mask
        && dims["mask_head"] == 0
    {
        fmha.mask = Mask::PerKey(scalar);
    }
    for of in ["q", "o", "mask"] {
        let [head, row] = ["head", "row"].map(|which| format!("{of}_{which}"));
        if let Some(stride) = dims.get(&head).cloned() {
            dims.insert(head, &stride * group);
            dims.insert(row, stride);
        }
    }
    dims.insert("queries".to_owned(), group.clone());
    dims.insert("heads".to_owned(), dims["kv_heads"].clone());
}

/// One query of each head by threads: of heads that share keys together.
fn decode(
    site: &Site<'_>,
    (group, &Decode { parts, consumers, .. }): (Option<Dim>, &Decode),
    fmha: Fmha,
) -> Result<Made, Refusal> {
    let few = group.and_then(|group| group.known()).unwrap_or(1);
    let fmha = Fmha { arch: site.arch, tf32: false, few, parts, consumers, ..fmha }.ahead();
    Ok((fmha.decode()?, fmha.numbers()))
}

/// By tiles of queries and keys, as a variant has them.
fn tiled(site: &Site<'_>, variant: &Variant, fmha: Fmha, dims: &mut Dims) -> Result<Made, Refusal> {
    let hopper = site.arch.has(Feature::Wgmma) && fmha.scalar != Scalar::F32;
    let fmha = match variant.parameters {
        None => named(site, variant.name, fmha, hopper),
        Some(Parameters::Fmha(FmhaParameters { consumers, keys, stages })) if hopper => {
            Fmha { consumers, keys, stages, ..fmha }
        }
        Some(_) => return Err(Refusal::Operation("attention by other parameters")),
    };
    let [batch, heads, queries] = ["batch", "heads", "queries"].map(|name| dims[name].clone());
    let mut blocks = &(&tiles(&queries, fmha.rows()) * &batch) * &heads;
    if hopper {
        blocks = blocks.minimum(&Dim::from(i64::from(site.target.cores)));
    }
    dims.insert("blocks".to_owned(), blocks.maximum(&Dim::from(1)));
    let ampere = || site.arch.needs(fmha.ampere_features()).and_then(|()| fmha.ampere());
    let kernel = if hopper { fmha.kernel() } else { ampere() };
    Ok((kernel?, fmha.numbers()))
}

/// Attention as the variant of this name has it, with as many keys as fit.
fn named(site: &Site<'_>, name: &str, fmha: Fmha, hopper: bool) -> Fmha {
    let consumers = if hopper && name == "wide" { 2 } else { 1 };
    let most = match (hopper, fmha.scalar) {
        (true, _) => 128,
        (false, Scalar::F32) => KEYS_OF_FEW,
        // What registers lack for wider heads is least with fewer keys.
        (false, _) if fmha.head_dim.max(fmha.value_dim) > 128 => 32,
        (false, _) => 64,
    };
    let mut fmha = Fmha { consumers, keys: most, ..fmha };
    let bytes = |fmha: &Fmha| if hopper { fmha.bytes() } else { fmha.ampere_bytes() };
    // Where it is written for an architecture before the target's, it has no more than that.
    let arch = if hopper { Arch::Sm90a } else { fmha.arch };
    let budget = site.target.shared_memory_per_block.min(arch.shared_memory().unsigned_abs());
    if let Some(more) = with_more_keys(site.target, &fmha).filter(|_| name != FEW_KEYS)
        && bytes(&more) <= budget
    {
        fmha = more;
    }
    while fmha.keys > 16 && bytes(&fmha) > budget {
        fmha.keys -= 16;
    }
    fmha
}

/// The sizes of `[batch, heads, rows, dim]`; strides are symbols of these names. Rows that tensor copies bring begin at
/// multiples of 16 bytes.
fn rows(of: &TypedOperand<'_>, name: &str, dims: &mut Dims) -> Result<Vec<Dim>, Refusal> {
    let TypedOperand { scalar, view, .. } = of;
    let [batch, head, row, element] = &view.modes[..] else {
        return Err(Refusal::Layout("attention of other ranks"));
    };
    forward(&view.modes)?;
    let outer = [("batch", batch), ("head", head), ("row", row)];
    let mut begin = outer.iter().map(|(_, mode)| &mode.stride).chain([&view.offset]);
    let odd = Refusal::Layout("rows that do not begin at multiples of 16 bytes");
    let begins = |dim: &Dim| is_multiple(dim, WIDTH / scalar.bytes());
    ensure(element.stride == 1 && begin.all(begins), odd)?;
    for (of, mode) in outer {
        dims.insert(format!("{name}_{of}"), mode.stride.clone());
    }
    Ok(view.shape())
}

/// How the template reads a mask that broadcasts to this shape.
fn mask_of(of: &TypedOperand<'_>, shape: &[Dim], dims: &mut Dims) -> Result<Mask, Refusal> {
    let (scalar, view) = (of.scalar, spread(of.view, shape)?);
    let [batch, head, row, key] = &view.modes[..] else {
        return Err(Refusal::Layout("a mask of another rank"));
    };
    ensure(key.stride == 1, Refusal::Layout("a mask whose keys are not contiguous"))?;
    dims.insert("mask_batch".to_owned(), batch.stride.clone());
    if head.stride == 0 && row.stride == 0 {
        return Ok(Mask::PerKey(scalar));
    }
    dims.insert("mask_head".to_owned(), head.stride.clone());
    dims.insert("mask_row".to_owned(), row.stride.clone());
    Ok(Mask::Dense(scalar))
}
