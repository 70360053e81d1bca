//! What normalisations are by definition, and how far a kernel may be from it. Kernels on a device are checked by it too.

use graphene_ir::function::Function;
use graphene_ir::function::near::{Near, SINGLE};
use graphene_ir::kernel::Unary;
use graphene_ir::template::rows::Norm;

use crate::near::{By, propagate};

/// What the elements of a row are off after `n` of them were summed: 2⁻²⁴ of the sum of absolute
/// values for each addition, of which an element goes through no more than n, and once for its own
/// rounding.
pub(crate) fn sum(values: &[Near]) -> Near {
    let n = values.len() as f64;
    let exact = values.iter().map(|near| near.0).sum();
    let size: f64 = values.iter().map(|near| near.0.abs() + near.1).sum();
    (exact, values.iter().map(|near| near.1).sum::<f64>() + (n + 1.0) * SINGLE * size)
}

/// What is stored of a row whose prologue has these values, by the definition of the norm.
///
/// Each step's error follows from those of its operands, as `propagate` has it: the differences from
/// the mean, their squares, the sums, the root. Softmax subtracts the maximum, which is exact to the
/// error of the elements.
pub(crate) fn normal_of(norm: Norm, epsilon: f64, row: &[Near], by: By) -> Vec<Near> {
    let [x, a, b] = [0, 1, 2].map(Function::input);
    let count = (row.len() as f64, 0.0);
    let apply = |function: &Function, inputs: &[Near]| propagate(function, inputs, by)[0];
    let quotient = x.clone() / a.clone();
    let inverse = (x.clone() + epsilon).unary(Unary::Rsqrt);
    let all = |function: &Function, stats: &[Near]| -> Vec<Near> {
        row.iter().map(|&x| apply(function, &[&[x], stats].concat())).collect()
    };
    let square = x.clone() * x.clone();
    match norm {
        Norm::None => row.to_vec(),
        Norm::Layer => {
            let mean = apply(&quotient, &[sum(row), count]);
            let differences = all(&(x.clone() - a.clone()), &[mean]);
            let squares: Vec<Near> = differences.iter().map(|&d| apply(&square, &[d])).collect();
            let variance = apply(&quotient, &[sum(&squares), count]);
            all(&((x - a) * b), &[mean, apply(&inverse, &[variance])])
        }
        Norm::Rms => {
            let squares = all(&square, &[]);
            let mean = apply(&quotient, &[sum(&squares), count]);
            all(&(x * a), &[apply(&inverse, &[mean])])
        }
        Norm::Softmax | Norm::LogSoftmax => {
            let most = row.iter().map(|near| near.0).fold(f64::NEG_INFINITY, f64::max);
            // The elements and their maximum are the kernel's own: rounded, but compared exactly.
            let most = (most, 0.0);
            let power = (x.clone() - a.clone()).unary(Unary::Exp);
            let sum = sum(&all(&power, &[most]));
            if norm == Norm::Softmax {
                let inverse = apply(&x.clone().unary(Unary::Rcp), &[sum]);
                all(&(power * b), &[most, inverse])
            } else {
                let log = apply(&x.clone().unary(Unary::Log), &[sum]);
                all(&(x - a - b), &[most, log])
            }
        }
    }
}
