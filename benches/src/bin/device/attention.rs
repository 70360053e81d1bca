//! Attention: within its bound on samples of each shape, and how fast it is.

use graphene_ir::emit::emit;
use graphene_ir::kernel::Number;
use graphene_ir::template::fmha::{Fmha, Mask};
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::{Bound, Buffer, Device, compile};

use crate::data::{Random, decode, encode};
use crate::products::{kernel_error, median};

/// The anchors' shapes: batch, heads, queries and keys, elements of a head.
const SHAPES: [[usize; 4]; 8] = [
    [32, 12, 128, 64],
    [32, 12, 384, 64],
    [32, 16, 384, 64],
    [1, 12, 128, 64],
    [8, 16, 2048, 64],
    [32, 16, 384, 128],
    [4, 16, 4096, 128],
    [3, 5, 197, 64],
];

/// Rows that are checked of each.
const SAMPLES: usize = 100;

/// Attention on the device: queries, keys, values and mask on both sides, and the result. All of
/// them lie as `[batch, rows, heads, dim]`.
struct Case {
    fmha: Fmha,
    shape: [usize; 4],
    host: [Vec<f64>; 4],
    buffers: [Buffer; 5],
}

/// The names of [`Case::buffers`].
const NAMES: [&str; 5] = ["Q", "K", "V", "mask", "O"];

impl Case {
    fn new(device: &Device, shape: [usize; 4], random: &mut Random) -> Result<Case, Error> {
        let [batch, heads, rows, dim] = shape;
        let fmha = Fmha {
            head_dim: dim as i64,
            value_dim: dim as i64,
            scale: Number(1.0 / (dim as f64).sqrt()),
            ..Fmha::default()
        };
        let len = batch * heads * rows * dim;
        let [q, k, v] = [(); 3].map(|()| random.normal(len, fmha.scalar, false));
        // As BERT masks what is padded: the last fifth of the keys of every other sequence.
        let padded = |i: usize| i / rows % 2 == 1 && i % rows >= rows - rows / 5;
        let mask: Vec<f64> =
            (0..batch * rows).map(|i| if padded(i) { -10_000.0 } else { 0.0 }).collect();
        let upload = |values: &[f64], scalar| device.upload(&encode(values, scalar));
        let [to_q, to_k, to_v] = [&q, &k, &v].map(|values| upload(values, fmha.scalar));
        let to_mask = upload(&mask, Scalar::F32)?;
        let o = device.upload(&vec![0xff; len * fmha.scalar.bytes() as usize])?;
        let buffers = [to_q?, to_k?, to_v?, to_mask, o];
        Ok(Case { fmha, shape, host: [q, k, v, mask], buffers })
    }

    fn bind(&self, device: &Device) -> Result<Bound, Error> {
        let kernel = self.fmha.kernel().map_err(kernel_error)?;
        let emitted = emit(&kernel).map_err(kernel_error)?;
        let cubin = compile(&emitted.source, kernel.arch, &kernel.name)?;
        let loaded = device.load(&cubin, &emitted.launch)?;
        let [batch, heads, rows, dim] = self.shape.map(|size| size as i64);
        let tiles = batch * heads * ((rows + self.fmha.rows() - 1) / self.fmha.rows());
        let blocks = tiles.min(i64::from(device.properties().multiprocessors));
        let mut symbols = vec![
            ("batch", batch),
            ("heads", heads),
            ("kv_heads", heads),
            ("queries", rows),
            ("keys", rows),
            ("blocks", blocks),
        ];
        for names in [
            ["q_batch", "q_head", "q_row"],
            ["k_batch", "k_head", "k_row"],
            ["v_batch", "v_head", "v_row"],
            ["o_batch", "o_head", "o_row"],
        ] {
            symbols.extend(names.into_iter().zip([rows * heads * dim, dim, heads * dim]));
        }
        let masked = self.fmha.mask != Mask::None;
        if masked {
            symbols.push(("mask_batch", rows));
        }
        let buffers: Vec<(&str, &Buffer)> = NAMES
            .into_iter()
            .zip(&self.buffers)
            .filter(|(name, _)| masked || *name != "mask")
            .collect();
        loaded.bind(&buffers, &symbols)
    }

    /// The largest error as a fraction of its bound, over samples of rows. The bound is that of the
    /// template's test; what is masked by -10 000 has a weight of 0 and no part in it.
    fn error(&self, random: &mut Random) -> Result<f64, Error> {
        let [batch, heads, rows, dim] = self.shape;
        let [q, k, v, mask] = &self.host;
        let found = decode(&self.buffers[4].download()?, self.fmha.scalar);
        let at = |b: usize, row: usize, h: usize| ((b * rows + row) * heads + h) * dim;
        let u = 2f64.powi(-24);
        let half = 2f64.powi(if self.fmha.scalar == Scalar::F16 { -11 } else { -8 });
        let tiles = rows.div_ceil(self.fmha.keys as usize) as f64;
        let mut worst = 0f64;
        for _ in 0..SAMPLES {
            let [b, h, row] = [batch, heads, rows].map(|size| random.within(0, size - 1));
            let from = &q[at(b, row, h)..][..dim];
            let (mut scores, mut reach) = (Vec::new(), 0f64);
            for key in 0..if self.fmha.causal { row + 1 } else { rows } {
                let products = from.iter().zip(&k[at(b, key, h)..][..dim]).map(|(a, b)| a * b);
                let (sum, size) = products.fold((0.0, 0.0), |(s, a), x: f64| (s + x, a + x.abs()));
                let bias = if self.fmha.mask == Mask::None { 0.0 } else { mask[b * rows + key] };
                let score = sum * self.fmha.scale.0;
                if bias == 0.0 {
                    reach = reach.max(score.abs());
                }
                scores.push((score + bias, self.fmha.scale.0 * 4.0 * dim as f64 * u * size));
            }
            let largest = scores.iter().fold(f64::NEG_INFINITY, |most, row| most.max(row.0));
            let summing = 4.0 * rows as f64 * u;
            let common =
                4.0 * u * reach + (tiles + 1.0) * (12.0 * u * reach + 2f64.powi(-22) + 2.0 * u);
            let (mut total, mut total_error) = (0.0, 0.0);
            let mut sums = vec![(0.0, 0.0); dim];
            for (key, (score, error)) in scores.iter().enumerate() {
                let weight = (score - largest).exp();
                total += weight;
                total_error += weight * (error + common + summing);
                for (sum, v) in sums.iter_mut().zip(&v[at(b, key, h)..][..dim]) {
                    sum.0 += weight * v;
                    let relative = error + common + half + summing;
                    sum.1 += (weight * relative + 2f64.powi(-25)) * v.abs();
                }
            }
            for (i, (sum, error)) in sums.into_iter().enumerate() {
                let y: f64 = sum / total;
                let bound = 1.1
                    * ((error + y.abs() * total_error) / total
                        + (3.0 * u + half) * y.abs()
                        + 2f64.powi(-25));
                let share = (found[at(b, row, h) + i] - y).abs() / bound;
                worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
            }
        }
        Ok(worst)
    }
}

/// The tiles that are tried.
fn variants(fmha: &Fmha) -> Vec<Fmha> {
    let wide = fmha.head_dim > 64;
    let with = |consumers, keys, stages| Fmha { consumers, keys, stages, ..fmha.clone() };
    let mut all = vec![with(2, 128, 2), with(1, 128, 2), with(2, 64, 3), with(1, 64, 3)];
    if !wide {
        all.extend([with(3, 128, 2), with(3, 64, 3), with(2, 192, 2), with(3, 96, 3)]);
    }
    let masked = Fmha { mask: Mask::PerKey(Scalar::F32), ..fmha.clone() };
    let causal = Fmha { causal: true, ..fmha.clone() };
    all.extend([masked, causal]);
    all
}

/// Every shape with every variant.
pub(crate) fn check(device: &Device) -> Result<usize, Error> {
    let mut random = Random(13);
    let mut wrong = 0;
    let few = [[2, 3, 197, 64], [1, 2, 96, 128]];
    for shape in if crate::quick() { few.to_vec() } else { SHAPES.to_vec() } {
        let [batch, heads, rows, dim] = shape;
        let mut case = Case::new(device, shape, &mut random)?;
        for fmha in variants(&case.fmha.clone()) {
            case.fmha = fmha;
            let bound = case.bind(device)?;
            case.buffers[4].write(&vec![0xff; batch * heads * rows * dim * 2])?;
            bound.launch()?;
            device.synchronize()?;
            let error = case.error(&mut random)?;
            wrong += usize::from(error > 1.0);
            let time = median(device, || bound.launch())?;
            let products = 4.0 * (batch * heads * rows * rows * dim) as f64;
            let rate = products / time * 1e-6 / if case.fmha.causal { 2.0 } else { 1.0 };
            let Fmha { consumers, keys, stages, causal, mask, .. } = &case.fmha;
            println!(
                "{{\"row\":\"attention\",\"batch\":{batch},\"heads\":{heads},\"rows\":{rows},\
                 \"dim\":{dim},\"consumers\":{consumers},\"keys\":{keys},\"stages\":{stages},\
                 \"causal\":{causal},\"mask\":\"{mask:?}\",\"error_of_bound\":{error:.4},\
                 \"us\":{time:.2},\"tflops\":{rate:.0}}}"
            );
            if error > 1.0 {
                eprintln!("{shape:?} {:?}: {error} of its bound", case.fmha);
            }
        }
    }
    Ok(wrong)
}
