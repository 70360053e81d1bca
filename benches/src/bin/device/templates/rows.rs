//! Normalisations, alone, with what is about them, and of embeddings.

use graphene_ir::arch::Arch;
use graphene_ir::function::Function;
use graphene_ir::function::near::Near;
use graphene_ir::template::access::Access;
use graphene_ir::template::gather::{Place, embedding};
use graphene_ir::template::rows::{Norm, Rows};
use graphene_ir::tensor::Scalar;

use super::norms::normal_of;
use super::{Case, Values};
use crate::data::Random;
use crate::near::{By, propagate};

const F16: Scalar = Scalar::F16;
const BF16: Scalar = Scalar::Bf16;
const F32: Scalar = Scalar::F32;

/// BERT's rows and columns, longer ones, a language model's vocabulary, and odd ones.
pub(super) const CASES: &[fn(&mut Random) -> Case] = &[
    |random| normal("layer norm", Norm::Layer, F16, [12288, 768], random),
    |random| normal("layer norm", Norm::Layer, BF16, [4096, 1024], random),
    |random| normal("layer norm", Norm::Layer, F32, [4096, 768], random),
    |random| normal("layer norm", Norm::Layer, F16, [4096, 4096], random),
    |random| normal("RMS norm", Norm::Rms, F16, [4096, 4096], random),
    |random| normal("RMS norm", Norm::Rms, F32, [651, 77], random),
    |random| normal("softmax", Norm::Softmax, F16, [36864, 384], random),
    |random| normal("softmax", Norm::Softmax, F32, [4608, 384], random),
    |random| normal("log softmax", Norm::LogSoftmax, F32, [256, 50257], random),
    residual,
    embedded,
];

/// The template for this type and these columns.
fn fitted(norm: Norm, scalar: Scalar, columns: usize) -> Rows {
    let affine = matches!(norm, Norm::Layer | Norm::Rms).then_some(scalar);
    let vector = 16 / scalar.bytes();
    Rows {
        norm,
        ins: vec![Access::packed(scalar, 2)],
        out: Access::packed(scalar, 2),
        scale: affine,
        shift: affine.filter(|_| norm == Norm::Layer),
        vector: if columns as i64 % vector == 0 { vector } else { 1 },
        ..Rows::default()
    }
    .fitting(columns as i64)
}

/// The case of a template: `row` gives the prologue's values in a row.
fn case(
    name: &str,
    template: Rows,
    [rows, columns]: [usize; 2],
    ins: Vec<(String, Scalar, Vec<f64>)>,
    symbols: &[(&str, i64)],
    row: impl Fn(&Values<'_>, usize) -> Vec<Near> + 'static,
) -> Case {
    let label = format!("{name} {rows}x{columns} {}", template.out.scalar);
    let sizes = [("rows", rows as i64), ("columns", columns as i64)];
    let symbols = sizes.iter().chain(symbols).map(|(name, size)| ((*name).to_owned(), *size));
    let mut outs = vec![("y".to_owned(), template.out.scalar, rows * columns)];
    if let Some(sum) = &template.sum {
        outs.push(("sum".to_owned(), sum.scalar, rows * columns));
    }
    let of = template.clone();
    let [x, scale, shift] = [0, 1, 2].map(Function::input);
    let finish = match (template.scale, template.shift) {
        (Some(_), Some(_)) => x * scale + shift,
        (Some(_), None) => x * scale,
        (None, _) => x,
    };
    Case {
        name: label,
        kernel: Box::new(move |arch: Arch| {
            Rows { arch, ..of.clone() }.fitting(columns as i64).kernel()
        }),
        ins,
        outs,
        symbols: symbols.collect(),
        sample: Box::new(move |values, random| {
            let at = random.within(0, rows - 1);
            let prologue = row(values, at);
            let normal = normal_of(template.norm, template.epsilon.0, &prologue, By::Device);
            let mut all = Vec::new();
            for (column, &normal) in normal.iter().enumerate() {
                let affine =
                    ["scale", "shift"].into_iter().filter(|name| !values.of(name).is_empty());
                let ins: Vec<Near> = std::iter::once(normal)
                    .chain(affine.map(|name| values.at(name, column)))
                    .collect();
                let place = at * columns + column;
                all.push((0, place, propagate(&finish, &ins, By::Device)[0]));
                if template.sum.is_some() {
                    all.push((1, place, prologue[column]));
                }
            }
            all
        }),
    }
}

/// Values of a row's affine operands, near 1 and near 0.
fn affine(template: &Rows, columns: usize, random: &mut Random) -> Vec<(String, Scalar, Vec<f64>)> {
    let operands = [("scale", template.scale), ("shift", template.shift)];
    let given = operands.into_iter().filter_map(|(name, scalar)| Some((name, scalar?)));
    given
        .map(|(name, scalar)| (name.to_owned(), scalar, random.normal(columns, scalar, false)))
        .collect()
}

fn normal(name: &str, norm: Norm, scalar: Scalar, size: [usize; 2], random: &mut Random) -> Case {
    let [rows, columns] = size;
    let template = fitted(norm, scalar, columns);
    let mut ins = vec![("x0".to_owned(), scalar, random.normal(rows * columns, scalar, true))];
    ins.extend(affine(&template, columns, random));
    case(name, template, size, ins, &[], move |values, row| {
        values.of("x0")[row * columns..][..columns].iter().map(|&x| (x, 0.0)).collect()
    })
}

/// A sum with a residual, which is stored too.
fn residual(random: &mut Random) -> Case {
    let size @ [rows, columns] = [12288, 768];
    let template = Rows {
        prologue: Function::sum(),
        ins: vec![Access::packed(F16, 2); 2],
        sum: Some(Access::packed(F16, 2)),
        ..fitted(Norm::Layer, F16, columns)
    };
    let mut ins: Vec<_> = ["x0", "x1"]
        .map(|name| (name.to_owned(), F16, random.normal(rows * columns, F16, true)))
        .into();
    ins.extend(affine(&template, columns, random));
    case("residual and layer norm", template, size, ins, &[], move |values, row| {
        let sum = Function::sum();
        let each = |column: usize| {
            let place = row * columns + column;
            propagate(&sum, &[values.at("x0", place), values.at("x1", place)], By::Device)[0]
        };
        (0..columns).map(each).collect()
    })
}

/// Words, positions and token types of BERT.
fn embedded(random: &mut Random) -> Case {
    const TABLES: [usize; 3] = [30522, 512, 2];
    let size @ [rows, columns] = [32 * 384, 768];
    let template = Rows { ..embedding(F16, Scalar::I64) }.fitting(columns as i64);
    let mut ins = Vec::new();
    for (input, table) in TABLES.into_iter().enumerate() {
        ins.push((format!("x{input}"), F16, random.normal(table * columns, F16, false)));
        if matches!(template.places[input], Place::Index(_)) {
            let index = (0..rows).map(|_| random.within(0, table - 1) as f64).collect();
            ins.push((format!("i{input}"), Scalar::I64, index));
        }
    }
    ins.extend(affine(&template, columns, random));
    let tables =
        [0, 1, 2].map(|input| (["x0_rows", "x1_rows", "x2_rows"][input], TABLES[input] as i64));
    let sum = template.prologue.clone();
    case("embedding and layer norm", template, size, ins, &tables, move |values, row| {
        let places =
            [values.of("i0")[row] as usize, row % TABLES[1], values.of("i2")[row] as usize];
        let each = |column: usize| {
            let of =
                |input: usize| values.at(&format!("x{input}"), places[input] * columns + column);
            propagate(&sum, &[of(0), of(1), of(2)], By::Device)[0]
        };
        (0..columns).map(each).collect()
    })
}
