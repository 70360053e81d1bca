//! Attention, for Hopper and for Ampere: right within the bound that its arithmetic implies, clean in any order of
//! warps, for every parameter; and it reads back.

use graphene_ir::arch::{Arch, Feature};
use graphene_ir::emit::emit;
use graphene_ir::kernel::{Kernel, Number, Unary};
use graphene_ir::simulate::{Buffer, Inputs, Outcome};
use graphene_ir::template::fmha::{Fmha, Mask};
use graphene_ir::tensor::Scalar;

use crate::index::Random;
use crate::support::{
    OLDER, check_clean, check_features, check_meaning, check_text, data, inputs, orders, run,
};

/// How queries, keys, values and the result lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// `[batch, heads, rows, dim]`
    Heads,
    /// `[batch, rows, heads, dim]`
    Rows,
    /// `[batch, rows, 3, heads, dim]`, but for the result: that is as by `Rows`.
    Packed,
}

/// The extents of a problem, and the number of blocks that compute it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    blocks: usize,
    layout: Layout,
    /// The mask's strides count these dimensions: batch, heads, queries.
    masked: [bool; 3],
}

impl Sizes {
    pub(crate) fn of(queries: usize, keys: usize) -> Sizes {
        Sizes {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            queries,
            keys,
            blocks: 1,
            layout: Layout::Heads,
            masked: [true; 3],
        }
    }

    /// Several heads that share keys, of two in a batch.
    pub(crate) fn grouped(queries: usize, keys: usize) -> Sizes {
        Sizes { batch: 2, heads: 4, kv_heads: 2, ..Sizes::of(queries, keys) }
    }

    /// How many scores there are.
    pub(crate) fn scores(&self) -> usize {
        self.batch * self.heads * self.queries * self.keys
    }

    /// The strides of the batch, the heads and the rows.
    fn strides(&self, name: &str, dim: usize) -> [usize; 3] {
        let query = name == "q" || name == "o";
        let (heads, rows) =
            if query { (self.heads, self.queries) } else { (self.kv_heads, self.keys) };
        let packed = if name == "o" { 1 } else { 3 };
        match self.layout {
            Layout::Heads => [heads * rows * dim, rows * dim, dim],
            Layout::Rows => [rows * heads * dim, dim, heads * dim],
            Layout::Packed => [rows * packed * heads * dim, dim, packed * heads * dim],
        }
    }

    fn mask_strides(&self) -> [usize; 3] {
        let Sizes { heads, queries, keys, masked, .. } = *self;
        let row = if masked[2] { keys } else { 0 };
        let head = if masked[2] { queries * keys } else { keys };
        let batch = if masked[1] { heads * head } else { head };
        [if masked[0] { batch } else { 0 }, if masked[1] { head } else { 0 }, row]
    }
}

/// All that is small enough to be tried often.
fn small() -> Fmha {
    Fmha {
        head_dim: 32,
        value_dim: 32,
        consumers: 1,
        keys: 32,
        scale: Number(0.4),
        ..Fmha::default()
    }
}

/// Operands in -1..1 of as many bits as the type has, queries twice that. A mask of bytes lets two
/// of three keys be attended, and where it fills scores with a number, none in every other row; another
/// adds 0, -∞, or something in -4..4.
pub(crate) fn operands(fmha: &Fmha, sizes: Sizes) -> Inputs {
    let Sizes { batch, heads, kv_heads, queries, keys, blocks, .. } = sizes;
    let mut symbols = vec![
        ("batch".to_owned(), batch),
        ("heads".to_owned(), heads),
        ("kv_heads".to_owned(), kv_heads),
        ("queries".to_owned(), queries),
        ("keys".to_owned(), keys),
        ("blocks".to_owned(), blocks),
    ];
    for (name, dim) in operand_dims(fmha) {
        let strides = sizes.strides(name, dim);
        for (of, stride) in ["batch", "head", "row"].into_iter().zip(strides) {
            symbols.push((format!("{name}_{of}"), stride));
        }
    }
    let mask = match fmha.mask {
        Mask::PerKey(_) => [keys, 0, 0],
        Mask::Dense(_) | Mask::None => sizes.mask_strides(),
    };
    for (of, stride) in ["batch", "head", "row"].into_iter().zip(mask) {
        symbols.push((format!("mask_{of}"), stride));
    }
    let symbols: Vec<(&str, i64)> =
        symbols.iter().map(|(name, value)| (name.as_str(), *value as i64)).collect();
    // Of what TF32 rounds there is more than it keeps.
    let half = match fmha.scalar {
        Scalar::F16 => 1 << 10,
        Scalar::F32 if fmha.tf32 => 1 << 14,
        _ => 1 << 7,
    };
    let mut random = Random::new(5);
    let values: Vec<f64> =
        (0..65_521).map(|_| random.within(-half, half) as f64 / half as f64).collect();
    inputs(&fmha.ampere().unwrap(), &symbols, |param, i| {
        let value = values[(10_007 * param + i) % 65_521];
        match (param, fmha.mask) {
            (0, _) => 2.0 * value,
            // Every other row is forbidden all over.
            (4, _) if fmha.fill.0.is_finite() && i / keys % 2 == 1 => 0.0,
            (4, Mask::PerKey(Scalar::U8) | Mask::Dense(Scalar::U8)) => {
                f64::from(u8::from(value < 0.33))
            }
            (4, _) if value < -0.6 => f64::NEG_INFINITY,
            (4, _) if value > 0.6 => 0.0,
            (4, _) => 4.0 * value,
            (_, _) => value,
        }
    })
}

fn operand_dims(fmha: &Fmha) -> [(&'static str, usize); 4] {
    let [head, value] = [fmha.head_dim, fmha.value_dim].map(|dim| dim as usize);
    [("q", head), ("k", head), ("v", value), ("o", value)]
}

/// Each element of the result: where it lies, its value in double precision, and how far from it
/// the kernel's may be.
///
/// With u = 2⁻²⁴ the rounding of single precision, h that of the operands' type (2⁻¹¹ or 2⁻⁸; where
/// it is single precision rounded to TF32, 2⁻¹¹ for weights and u for the result), R the
/// largest of the row's scores and biases by absolute value, and n tiles of keys. (Of R only those
/// count that are less than 110 below the largest: what is further below has a weight of less than
/// 2⁻¹⁵⁸, for which there is 0. Nor does what fills scores where it is the largest: it differs from
/// itself by nothing.)
///
/// - A product of d elements in single precision errs by at most 4d·u of the sum A of their absolute
///   values. It is multiplied by the scale; cap and bias add 4u·R.
///   Where scores count in log₂ of weights, the unit of each is rounded in their place, and that of
///   the bias and its product with it; the exponent is the difference itself.
/// - An exponent is a difference of a score and a maximum in a unit that is itself rounded: 6u·2R.
///   The power of two errs by 2⁻²² of itself. The same holds of each factor by which earlier tiles
///   are rescaled, and that product rounds: 2u. So of a weight w, relative to it, at most
///   ε = scale·4d·u·A + 4u·R + (n + 1)·(12u·R + 2⁻²² + 2u).
/// - For the product with the values, a weight is rounded: h of it, or, of a half that is subnormal,
///   2⁻²⁵. The sum of as many products as there are keys errs by 4·keys·u of the sum of their
///   absolute values; so does the sum L of the weights.
/// - The quotient y of both sums errs by (error of the products + |y|·error of L)/L, and by 3u of y
///   for the reciprocal and the product; it is rounded to the type of the result, or, if it is
///   subnormal, by 2⁻²⁵.
///
/// A tenth more covers products of these errors, which are small.
fn expected(fmha: &Fmha, sizes: Sizes, inputs: &Inputs) -> Vec<(usize, f64, f64)> {
    let seen = |x: &f64| if fmha.tf32 { Unary::Tf32.value(*x) } else { *x };
    let [q, key, value] =
        ["Q", "K", "V"].map(|name| data(inputs, name).iter().map(seen).collect::<Vec<f64>>());
    let u = 2f64.powi(-24);
    let (h, stored, least) = match fmha.scalar {
        Scalar::F16 => (2f64.powi(-11), 2f64.powi(-11), 2f64.powi(-25)),
        Scalar::F32 if fmha.tf32 => (2f64.powi(-11), u, 0.0),
        Scalar::F32 => (u, u, 0.0),
        _ => (2f64.powi(-8), 2f64.powi(-8), 0.0),
    };
    let dims = operand_dims(fmha);
    let at = |which: usize, b: usize, h: usize, row: usize| {
        let [batch, head, rows] = sizes.strides(dims[which].0, dims[which].1);
        b * batch + h * head + row * rows
    };
    let (head_dim, value_dim) = (dims[0].1, dims[2].1);
    let (scale, tiles) = (fmha.scale.0, sizes.keys.div_ceil(fmha.keys as usize) as f64);
    let mut all = Vec::new();
    for row in 0..sizes.batch * sizes.heads * sizes.queries {
        let (bh, query) = (row / sizes.queries, row % sizes.queries);
        let (b, head) = (bh / sizes.heads, bh % sizes.heads);
        let kv = head * sizes.kv_heads / sizes.heads;
        let (mut scores, mut largest, mut reach) = (Vec::new(), f64::NEG_INFINITY, 0f64);
        for t in 0..sizes.keys {
            let (from, to) = (at(0, b, head, query), at(1, b, kv, t));
            let products = (0..head_dim).map(|i| q[from + i] * key[to + i]);
            let (sum, size) = products.fold((0.0, 0.0), |(s, a), x: f64| (s + x, a + x.abs()));
            let score = sum * scale;
            let score = fmha.softcap.map_or(score, |cap| cap.0 * (score / cap.0).tanh());
            let bias = bias(fmha, sizes, inputs, [b, head, query, t]);
            let out = fmha.causal && t > query;
            let filled = bias == f64::NEG_INFINITY && fmha.fill.0.is_finite();
            let score = if filled { fmha.fill.0 } else { score + bias };
            let score = if out { f64::NEG_INFINITY } else { score };
            largest = largest.max(score);
            let size = if filled { 0.0 } else { scale.abs() * size };
            scores.push((score, if filled { 0.0 } else { bias }, 4.0 * head_dim as f64 * u * size));
        }
        for &(score, bias, _) in &scores {
            let near = score > f64::NEG_INFINITY && score > largest - 110.0;
            if near && !(score == largest && score == fmha.fill.0) {
                reach = reach.max(score.abs()).max(bias.abs());
            }
        }
        let common =
            4.0 * u * reach + (tiles + 1.0) * (12.0 * u * reach + 2f64.powi(-22) + 2.0 * u);
        let summing = 4.0 * sizes.keys as f64 * u;
        let (mut total, mut total_error) = (0.0, 0.0);
        let mut weights = Vec::new();
        for (score, _, error) in scores {
            let weight = if score == f64::NEG_INFINITY { 0.0 } else { (score - largest).exp() };
            weights.push((weight, error + common));
            total += weight;
            total_error += weight * (error + common + summing);
        }
        for i in 0..value_dim {
            let (mut sum, mut error) = (0.0, 0.0);
            for (t, (weight, relative)) in weights.iter().enumerate() {
                let v = value[at(2, b, kv, t) + i];
                sum += weight * v;
                error += weight * v.abs() * (relative + h + summing);
                if *weight > 0.0 {
                    error += least * v.abs();
                }
            }
            let y = sum / total;
            let error =
                (error + y.abs() * total_error) / total + (3.0 * u + stored) * y.abs() + least;
            let y = if total == 0.0 && fmha.guarded { 0.0 } else { y };
            let error = if total == 0.0 { 0.0 } else { 1.1 * error };
            all.push((at(3, b, head, query) + i, y, error));
        }
    }
    all
}

/// What is added to a score.
fn bias(fmha: &Fmha, sizes: Sizes, inputs: &Inputs, [b, head, query, key]: [usize; 4]) -> f64 {
    let (scalar, strides) = match fmha.mask {
        Mask::None => return 0.0,
        Mask::PerKey(scalar) => (scalar, [sizes.keys, 0, 0]),
        Mask::Dense(scalar) => (scalar, sizes.mask_strides()),
    };
    let bias = data(inputs, "mask")[b * strides[0] + head * strides[1] + query * strides[2] + key];
    match scalar {
        Scalar::U8 if bias == 0.0 => f64::NEG_INFINITY,
        Scalar::U8 => 0.0,
        // What is in memory is what the type can hold.
        Scalar::Bf16 => bias_as(bias, 16),
        Scalar::F16 => bias_as(bias, 13),
        _ => bias_as(bias, 0),
    }
}

/// Rounded to a type with so many bits less than single precision has.
fn bias_as(bias: f64, less: u32) -> f64 {
    let bits = (bias as f32).to_bits();
    let unit = (1_u32 << less) >> 1;
    let odd = bits >> less & 1;
    let rounded = if less == 0 { bits } else { (bits + unit - 1 + odd) >> less << less };
    if bias.is_infinite() { bias } else { f64::from(f32::from_bits(rounded)) }
}

fn check_attention(fmha: &Fmha, kernel: &Kernel, sizes: Sizes, random_orders: u64) -> Outcome {
    let name = format!("{} {fmha:?} {sizes:?}", kernel.arch);
    let inputs = operands(fmha, sizes);
    let expected = expected(fmha, sizes, &inputs);
    let (mut last, mut worst) = (None, 0f64);
    for seed in orders(random_orders) {
        let outcome = run(kernel, &inputs, seed);
        check_clean(&format!("{name} {seed:?}"), &outcome);
        let found = &outcome.buffers["O"];
        for &(at, y, bound) in &expected {
            let near = found[at].is_some_and(|found| {
                worst = worst.max((found - y).abs() / bound);
                (found - y).abs() <= bound || (found.is_nan() && y.is_nan())
            });
            assert!(near, "{name} {seed:?}: O[{at}] is {:?}, not {y} ± {bound}", found[at]);
        }
        last = Some(outcome);
    }
    println!("{name}: {worst} of the bound");
    let last = last.unwrap();
    check_meaning(&name, kernel, &inputs, &last);
    last
}

/// All parameters that this file tries; each with sizes, and in how many random orders.
pub(crate) fn rows() -> Vec<(Fmha, Sizes, u64)> {
    let small = small();
    let bf16 = Fmha { scalar: Scalar::Bf16, ..small.clone() };
    let two = Fmha { consumers: 2, ..small.clone() };
    let causal = Fmha { causal: true, ..small.clone() };
    let cap = Some(Number(1.5));
    let of = Sizes::of;
    let many = Sizes { batch: 2, heads: 4, kv_heads: 2, blocks: 3, ..of(70, 45) };
    let with = |mask: Mask| Fmha { mask, ..small.clone() };
    let fills = |number: f64, mask: Mask| Fmha { fill: Number(number), ..with(mask) };
    let no_batch = Sizes { masked: [false, true, true], ..many };
    let no_head = Sizes { masked: [true, false, true], ..many };
    let no_row = Sizes { masked: [true, true, false], ..many };
    vec![
        // Exact, partial, smaller than a tile, one of each.
        (small.clone(), of(64, 32), 1),
        (small.clone(), of(128, 96), 1),
        (small.clone(), of(67, 75), 1),
        (small.clone(), of(1, 1), 1),
        (small.clone(), of(5, 33), 1),
        (bf16.clone(), of(67, 75), 1),
        (Fmha { stages: 1, ..small.clone() }, of(64, 96), 1),
        (Fmha { stages: 3, ..small.clone() }, of(65, 130), 1),
        // Many heads, several tiles a block, grouped queries, each layout.
        (small.clone(), many, 2),
        (two.clone(), Sizes { layout: Layout::Rows, ..many }, 2),
        (two.clone(), Sizes { layout: Layout::Packed, ..many }, 3),
        (Fmha { consumers: 3, ..bf16.clone() }, Sizes { blocks: 1, ..of(200, 40) }, 2),
        (Fmha { stages: 1, ..two.clone() }, of(130, 96), 1),
        // Dimensions.
        (Fmha { head_dim: 16, value_dim: 16, ..small.clone() }, of(65, 40), 1),
        (Fmha { head_dim: 64, value_dim: 64, ..small.clone() }, of(65, 40), 1),
        (Fmha { head_dim: 96, value_dim: 96, ..small.clone() }, of(65, 40), 1),
        (Fmha { head_dim: 128, value_dim: 128, keys: 64, ..bf16.clone() }, of(65, 70), 1),
        (Fmha { head_dim: 48, value_dim: 80, ..small.clone() }, of(65, 40), 1),
        (Fmha { head_dim: 32, value_dim: 64, keys: 48, ..small.clone() }, of(65, 100), 1),
        (Fmha::default(), of(130, 200), 1),
        // Dimensions that tiles round up.
        (Fmha { head_dim: 24, value_dim: 40, ..small.clone() }, of(65, 40), 1),
        (Fmha { head_dim: 72, value_dim: 16, ..small.clone() }, of(20, 40), 0),
        // Causal: more keys than queries, fewer, as many; tiles wider and narrower than rows.
        (causal.clone(), of(70, 70), 1),
        (causal.clone(), of(40, 100), 1),
        (causal.clone(), of(150, 40), 1),
        (Fmha { keys: 128, consumers: 2, ..causal.clone() }, of(200, 200), 1),
        (Fmha { consumers: 2, ..causal.clone() }, Sizes { blocks: 2, ..of(300, 300) }, 2),
        (Fmha { consumers: 3, ..causal.clone() }, Sizes { blocks: 2, ..of(400, 400) }, 1),
        (Fmha { mask: Mask::PerKey(Scalar::F32), ..causal.clone() }, many, 1),
        // Scores.
        (Fmha { scale: Number(-0.3), ..small.clone() }, of(65, 40), 0),
        (Fmha { scale: Number(0.0), ..small.clone() }, of(65, 40), 0),
        (Fmha { scale: Number(8.0), ..small.clone() }, of(65, 40), 0),
        (Fmha { softcap: cap, ..small.clone() }, of(65, 40), 1),
        (Fmha { softcap: cap, mask: Mask::PerKey(Scalar::F32), ..causal }, many, 1),
        // Masks.
        (with(Mask::PerKey(Scalar::F32)), many, 3),
        (Fmha { stages: 1, keys: 48, ..with(Mask::PerKey(Scalar::U8)) }, of(70, 150), 1),
        (Fmha { stages: 3, keys: 16, ..with(Mask::PerKey(Scalar::F16)) }, of(20, 70), 1),
        (Fmha { consumers: 2, ..with(Mask::PerKey(Scalar::F32)) }, many, 2),
        (with(Mask::PerKey(Scalar::F16)), many, 1),
        (
            Fmha { stages: 3, keys: 96, consumers: 3, ..with(Mask::PerKey(Scalar::F16)) },
            of(200, 100),
            0,
        ),
        (with(Mask::PerKey(Scalar::U8)), many, 1),
        (Fmha { mask: Mask::PerKey(Scalar::Bf16), ..bf16 }, many, 1),
        (with(Mask::Dense(Scalar::F32)), many, 1),
        (with(Mask::Dense(Scalar::F16)), no_batch, 1),
        (with(Mask::Dense(Scalar::U8)), no_head, 1),
        (with(Mask::Dense(Scalar::U8)), no_row, 1),
        // Scores that become a number, of which there are rows without any other.
        (fills(-1e9, Mask::PerKey(Scalar::U8)), many, 2),
        (fills(f64::from(f32::MIN), Mask::Dense(Scalar::U8)), many, 1),
        (fills(f64::from(f32::MIN), Mask::PerKey(Scalar::U8)), no_row, 1),
        (fills(-65504.0, Mask::Dense(Scalar::U8)), no_row, 0),
        (fills(-0.5, Mask::Dense(Scalar::U8)), no_head, 0),
        (fills(2.5, Mask::PerKey(Scalar::U8)), Sizes { batch: 2, ..of(5, 33) }, 0),
        (Fmha { causal: true, ..fills(f64::from(f32::MIN), Mask::Dense(Scalar::U8)) }, many, 0),
        (Fmha { softcap: cap, ..fills(-1e9, Mask::PerKey(Scalar::U8)) }, many, 0),
        // Rows that may attend nowhere: one key, masked or not.
        (with(Mask::Dense(Scalar::U8)), Sizes { heads: 3, kv_heads: 3, ..of(40, 1) }, 0),
        (
            Fmha { guarded: true, ..with(Mask::Dense(Scalar::U8)) },
            Sizes { heads: 3, kv_heads: 1, ..of(40, 1) },
            1,
        ),
        (Fmha { guarded: true, ..with(Mask::PerKey(Scalar::F32)) }, many, 0),
    ]
}

#[test]
fn attention_verifies_reads_back_and_becomes_cuda() {
    for (fmha, ..) in rows() {
        let kernels = [(fmha.kernel(), "wgmma.mma_async"), (fmha.ampere(), "mma.sync")];
        for (kernel, instruction) in kernels {
            let kernel = kernel.unwrap();
            check_text(&format!("{fmha:?}"), &kernel);
            let source = emit(&kernel).unwrap().source;
            assert!(source.contains(instruction), "{fmha:?}");
        }
    }
}

fn check_rows(kernel_of: impl Fn(&Fmha) -> Kernel) {
    for (fmha, sizes, random_orders) in rows() {
        let outcome = check_attention(&fmha, &kernel_of(&fmha), sizes, random_orders);
        assert_eq!(outcome.costs.total().conflicts, 0, "{fmha:?} {sizes:?}");
    }
}

#[test]
fn attention_is_right_in_any_order() {
    check_rows(|fmha| fmha.kernel().unwrap());
}

/// Keys and values of two heads fit into the 24 MiB for those that are gone through together: three are two groups.
#[test]
fn causal_heads_in_groups_are_right() {
    let fmha = Fmha { causal: true, head_dim: 256, value_dim: 256, keys: 48, ..small() };
    let sizes = Sizes { heads: 3, kv_heads: 3, blocks: 4, ..Sizes::of(70, 8200) };
    check_attention(&fmha, &fmha.kernel().unwrap(), sizes, 1);
}

#[test]
fn attention_for_ampere_is_right_in_any_order() {
    check_rows(|fmha| fmha.ampere().unwrap());
}

/// By Volta's quad pairs, by Turing's instructions, and by threads.
#[test]
fn attention_of_older_architectures_is_right_in_any_order() {
    let halves = rows().into_iter().filter(|row| row.0.scalar == Scalar::F16);
    for (fmha, sizes, random_orders) in halves.filter(|row| row.1.scores() <= 7500) {
        let few = sizes.scores() <= 1000;
        for fmha in [Some(fmha.clone()), few.then(|| single(&fmha))].into_iter().flatten() {
            for arch in OLDER {
                let fmha = Fmha { arch, ..fmha.clone() };
                if fmha.ampere_bytes() > arch.shared_memory().unsigned_abs() {
                    continue;
                }
                let (name, kernel) = (format!("{fmha:?}"), fmha.ampere().unwrap());
                check_text(&name, &kernel);
                check_features(&name, &kernel, fmha.scalar == Scalar::F16);
                check_attention(&fmha, &kernel, sizes, random_orders.min(1));
            }
        }
    }
}

/// The same in single precision.
fn single(fmha: &Fmha) -> Fmha {
    let of = |scalar| if scalar == Scalar::U8 { scalar } else { Scalar::F32 };
    let mask = match fmha.mask {
        Mask::None => Mask::None,
        Mask::PerKey(scalar) => Mask::PerKey(of(scalar)),
        Mask::Dense(scalar) => Mask::Dense(of(scalar)),
    };
    let keys = if fmha.head_dim > 96 { 32 } else { fmha.keys };
    Fmha { scalar: Scalar::F32, mask, keys, ..fmha.clone() }
}

#[test]
fn attention_in_single_precision_is_right_in_any_order() {
    // Single threads' products take long to simulate: no size that only adds more of the same.
    let small = |sizes: &Sizes| sizes.scores() <= 7500;
    let narrow = Fmha { head_dim: 8, value_dim: 12, ..self::small() };
    let product = Fmha { head_dim: 64, value_dim: 64, keys: 64, ..self::small() };
    let rows = rows().into_iter().chain([
        (narrow, Sizes { heads: 2, kv_heads: 2, ..Sizes::of(5, 45) }, 1),
        (product, Sizes::of(65, 70), 1),
    ]);
    let both = |(fmha, sizes, orders): (Fmha, Sizes, u64)| {
        let fmha = single(&fmha);
        [(Fmha { tf32: true, ..fmha.clone() }, sizes, orders), (fmha, sizes, orders)]
    };
    for (fmha, sizes, random_orders) in rows.filter(|row| small(&row.1)).flat_map(both) {
        let random_orders = random_orders.min(1);
        let kernel = fmha.ampere().unwrap();
        check_text(&format!("{fmha:?}"), &kernel);
        let outcome = check_attention(&fmha, &kernel, sizes, random_orders);
        // Rows of fewer than 32 values are too close to be read by columns.
        if !fmha.tf32 || fmha.value_dim % 32 == 0 {
            assert_eq!(outcome.costs.total().conflicts, 0, "{fmha:?} {sizes:?}");
        }
    }
}

/// A mask that adds the least number there is leaves no key out: where it is added to all of a row's
/// scores, they are all the same. -∞ leaves them out.
#[test]
fn the_least_number_is_not_minus_infinity() {
    let sizes = Sizes::of(3, 40);
    let given = [
        (Scalar::F32, f64::from(f32::MIN), false),
        (Scalar::F32, -3e38, false),
        (Scalar::F16, -65504.0, false),
        (Scalar::F32, f64::NEG_INFINITY, true),
        (Scalar::F16, f64::NEG_INFINITY, true),
    ];
    for (scalar, bias, none) in given {
        let masks = [Mask::PerKey(scalar), Mask::Dense(scalar)];
        for fmha in masks.map(|mask| Fmha { mask, ..small() }) {
            let mut inputs = operands(&fmha, sizes);
            // Products that differ by less than the least half's rounding.
            for name in ["Q", "K"] {
                let small = data(&inputs, name).iter().map(|x| x / 1024.0).collect();
                inputs.buffers.insert(name.to_owned(), Buffer::Data(small));
            }
            let biases = vec![bias; data(&inputs, "mask").len()];
            inputs.buffers.insert("mask".to_owned(), Buffer::Data(biases));
            let values = data(&inputs, "V").to_vec();
            for kernel in [fmha.kernel().unwrap(), fmha.ampere().unwrap()] {
                let outcome = run(&kernel, &inputs, None);
                check_clean("the least number", &outcome);
                for (at, found) in outcome.buffers["O"].iter().enumerate() {
                    let column = values.iter().skip(at % 32).step_by(32);
                    let mean: f64 = column.sum::<f64>() / sizes.keys as f64;
                    let found = found.unwrap();
                    let right =
                        if none { found.is_nan() } else { (found - mean).abs() <= 2f64.powi(-11) };
                    assert!(right, "{bias} {fmha:?}: O[{at}] is {found:?}");
                }
            }
        }
    }
}

/// Few queries by threads, a block alone or a cluster for each head; each with sizes, and in how many random orders.
pub(crate) fn few() -> Vec<(Fmha, Sizes, u64)> {
    let alone = Fmha { arch: Arch::Sm80, ..small() }.ahead();
    let two = Fmha { arch: Arch::Sm90a, parts: 2, ..alone.clone() };
    let gpt = Fmha { head_dim: 64, value_dim: 64, scale: Number(0.125), parts: 8, ..two.clone() };
    let gpt = gpt.ahead();
    let with = |mask: Mask| Fmha { mask, ..two.clone() };
    let fills = |number: f64, mask: Mask| Fmha { fill: Number(number), ..with(mask) };
    let (of, single, shared) = (Sizes::of, Sizes::grouped(1, 45), Sizes::grouped(2, 45));
    let no_batch = Sizes { masked: [false, true, true], ..shared };
    let no_row = Sizes { masked: [true, true, false], ..shared };
    vec![
        // No past; fewer keys than a tile, one more; whole tiles for all warps, one more, fewer.
        (alone.clone(), of(1, 1), 1),
        (two.clone(), of(1, 1), 2),
        (alone.clone(), of(1, 33), 1),
        (two.clone(), of(1, 65), 1),
        (gpt.clone(), of(1, 256), 1),
        (gpt.clone(), of(1, 257), 1),
        (gpt.clone(), of(1, 1023), 1),
        (gpt.clone(), of(1, 1024), 0),
        // Several tiles a warp; more warps.
        (alone.clone(), of(1, 600), 1),
        (Fmha { keys: 16, ..two.clone() }, of(1, 300), 1),
        (Fmha { consumers: 3, ..alone.clone() }, of(1, 500), 1),
        (Fmha { consumers: 2, parts: 4, ..two.clone() }, of(1, 500), 1),
        // Many heads, some that share keys, each layout; queries that fill no tile.
        (two.clone(), single, 2),
        (two.clone(), Sizes { layout: Layout::Rows, ..single }, 1),
        (two.clone(), Sizes { layout: Layout::Packed, ..shared }, 1),
        (Fmha { few: 4, ..alone.clone() }.ahead(), of(4, 100), 1),
        (Fmha { few: 3, ..two.clone() }.ahead(), Sizes::grouped(4, 100), 1),
        // Types and dimensions.
        (Fmha { scalar: Scalar::Bf16, ..two.clone() }, of(1, 70), 1),
        (Fmha { scalar: Scalar::F32, ..two.clone() }.ahead(), of(1, 70), 1),
        (Fmha { head_dim: 16, value_dim: 16, ..two.clone() }.ahead(), of(1, 300), 1),
        (Fmha { head_dim: 80, value_dim: 80, ..two.clone() }.ahead(), of(1, 70), 1),
        (Fmha { head_dim: 24, value_dim: 40, ..two.clone() }.ahead(), of(1, 70), 1),
        (Fmha { head_dim: 128, value_dim: 64, ..two.clone() }.ahead(), of(1, 70), 1),
        (Fmha { head_dim: 256, value_dim: 256, ..two.clone() }.ahead(), of(1, 40), 1),
        // Scores.
        (Fmha { scale: Number(-0.3), ..two.clone() }, of(1, 40), 0),
        (Fmha { softcap: Some(Number(1.5)), ..two.clone() }, of(1, 40), 1),
        // Masks.
        (with(Mask::PerKey(Scalar::F32)), shared, 1),
        (with(Mask::PerKey(Scalar::F16)), shared, 0),
        (with(Mask::PerKey(Scalar::U8)), of(1, 150), 1),
        (with(Mask::Dense(Scalar::F32)), shared, 1),
        (with(Mask::Dense(Scalar::F16)), no_batch, 1),
        (with(Mask::Dense(Scalar::U8)), no_row, 1),
        (fills(-1e9, Mask::PerKey(Scalar::U8)), shared, 1),
        (fills(f64::from(f32::MIN), Mask::Dense(Scalar::U8)), shared, 1),
        (fills(2.5, Mask::PerKey(Scalar::U8)), Sizes { batch: 2, ..of(1, 33) }, 0),
        // Rows that may attend nowhere.
        (with(Mask::Dense(Scalar::U8)), Sizes { heads: 3, kv_heads: 3, ..of(2, 1) }, 0),
        (
            Fmha { guarded: true, ..with(Mask::Dense(Scalar::U8)) },
            Sizes { heads: 3, kv_heads: 1, ..of(2, 1) },
            1,
        ),
    ]
}

#[test]
fn attention_of_few_queries_is_right_in_any_order() {
    for (fmha, sizes, random_orders) in few() {
        let kernel = fmha.decode().unwrap();
        check_text(&format!("{fmha:?}"), &kernel);
        let outcome = check_attention(&fmha, &kernel, sizes, random_orders);
        assert_eq!(outcome.costs.total().conflicts, 0, "{fmha:?} {sizes:?}");
    }
}

#[test]
fn attention_of_few_queries_is_for_all_architectures() {
    for (arch, _) in Arch::ALL {
        let alone = Fmha { arch, ..small() }.ahead();
        let kernel = alone.decode().unwrap();
        check_text(arch.name(), &kernel);
        check_attention(&alone, &kernel, Sizes::of(1, 70), 0);
        let clusters = Fmha { parts: 2, ..alone };
        assert_eq!(clusters.decode().is_ok(), arch.has(Feature::Cluster), "{arch}");
    }
}

#[test]
fn what_no_kernel_for_few_queries_has_is_refused() {
    let two = Fmha { arch: Arch::Sm90a, parts: 2, ..small() };
    assert!(two.decode().is_ok() && Fmha { parts: 8, few: 4, ..two.clone() }.decode().is_ok());
    let wide = Fmha { head_dim: 128, value_dim: 128, scalar: Scalar::F32, ..two.clone() }.ahead();
    assert!(wide.decode().is_ok());
    for fmha in [
        Fmha { parts: 0, ..two.clone() },
        Fmha { parts: 9, ..two.clone() },
        Fmha { few: 0, ..two.clone() },
        Fmha { few: 5, ..two.clone() },
        Fmha { causal: true, ..two.clone() },
        Fmha { scalar: Scalar::F32, tf32: true, ..two.clone() },
        Fmha { head_dim: 132, ..wide },
        Fmha { keys: 144, ..two },
    ] {
        assert!(fmha.decode().is_err(), "{fmha:?}");
    }
}

#[test]
fn what_no_kernel_has_is_refused() {
    let refused = [
        Fmha { scalar: Scalar::I32, ..small() },
        Fmha { head_dim: 20, ..small() },
        Fmha { head_dim: 8, ..small() },
        Fmha { value_dim: 272, ..small() },
        Fmha { keys: 0, ..small() },
        Fmha { stages: 0, ..small() },
        Fmha { consumers: 4, ..small() },
        Fmha { scale: Number(f64::NAN), ..small() },
        Fmha { softcap: Some(Number(0.0)), ..small() },
        Fmha { mask: Mask::Dense(Scalar::I32), ..small() },
        Fmha { fill: Number(f64::NAN), ..small() },
        Fmha { fill: Number(f64::INFINITY), ..small() },
        Fmha { fill: Number(-1e39), ..small() },
    ];
    for fmha in refused {
        assert!(fmha.kernel().is_err() && fmha.ampere().is_err(), "{fmha:?}");
    }
    assert!(single(&small()).kernel().is_err());
}
