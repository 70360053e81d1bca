//! Rows of tables: sums of the rows that indices say, normalised or not, in any order of warps.

use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::template::gather::{Place, embedding, gather};
use graphene_ir::template::rows::{Norm, Rows};
use graphene_ir::tensor::Scalar;

use crate::error::{Near, SINGLE, propagate, unit};
use crate::rows::normal;
use crate::support::{check_clean, check_text, data, inputs, orders, run};

const F16: Scalar = Scalar::F16;
const WORDS: i64 = 11;
const TYPES: i64 = 2;

fn rows() -> Vec<(Rows, [i64; 2])> {
    let small = |rows: Rows| Rows { threads: 32, teams: 2, held: Some(1), ..rows };
    let words = |index| small(gather(F16, &[Place::Index(index)]));
    let embed = |scalar, index| small(embedding(scalar, index));
    vec![
        (words(Scalar::I64), [7, 64]),
        (words(Scalar::I32), [7, 200]),
        (Rows { vector: 1, held: Some(2), ..words(Scalar::I64) }, [3, 33]),
        (Rows { held: None, ..words(Scalar::I64) }, [3, 520]),
        (small(gather(Scalar::F32, &[Place::Same, Place::Index(Scalar::I64)])), [5, 64]),
        (embed(F16, Scalar::I64), [6, 128]),
        (embed(Scalar::Bf16, Scalar::I32), [9, 72]),
        (Rows { held: None, threads: 64, teams: 1, ..embed(F16, Scalar::I64) }, [6, 1032]),
        (embed(F16, Scalar::I64).fitting(768), [3, 768]),
    ]
}

/// The number of an input's rows, if it is a table.
fn table(input: usize) -> i64 {
    [WORDS, 3, TYPES][input]
}

/// An index: of those of the table, the first negative ones too.
fn index(input: usize, row: usize) -> i64 {
    (row as i64 * 5 + input as i64) % (2 * table(input)) - table(input)
}

#[test]
fn looked_up_rows_are_right_in_any_order() {
    for (template, [count, columns]) in rows() {
        let name = format!("{template:?} {count} {columns}");
        let kernel = template.kernel().unwrap();
        // A table that is no input of its own counts as the words.
        let tables: Vec<(String, i64)> = (0..template.ins.len())
            .filter(|&i| template.places[i] != Place::Same)
            .map(|i| (format!("x{i}_rows"), table(i)))
            .collect();
        let mut symbols = vec![("rows", count), ("columns", columns)];
        symbols.extend(tables.iter().map(|(name, size)| (name.as_str(), *size)));
        let given = inputs(&kernel, &symbols, |param, i| {
            let param = kernel.params[param];
            match kernel.tensor_name(param).strip_prefix('i') {
                Some(input) => index(input.parse().unwrap(), i) as f64,
                None => kernel.tensor(param).scalar.round((i * 37 % 101) as f64 / 16.0 - 3.0),
            }
        });
        for seed in orders(2) {
            let outcome = run(&kernel, &given, seed);
            check_clean(&name, &outcome);
            assert_eq!(outcome.costs.total().conflicts, 0, "{name}");
            for row in 0..count {
                let sums: Vec<Near> = (0..columns)
                    .map(|column| sum(&template, &given, row, column, columns))
                    .collect();
                let normal = normal(&template, &sums);
                for column in 0..columns {
                    let at = usize::try_from(column).unwrap();
                    let line = |name: &str| (data(&given, name)[at], 0.0);
                    let (value, error) = if template.norm == Norm::None {
                        normal[at]
                    } else {
                        let finish = Function::input(0) * Function::input(1) + Function::input(2);
                        propagate(&finish, &[normal[at], line("scale"), line("shift")])[0]
                    };
                    let found =
                        outcome.buffers["y"][usize::try_from(row * columns + column).unwrap()];
                    let bound = error + unit(template.out.scalar) * (value.abs() + error) + SINGLE;
                    let near = found.is_some_and(|found| (found - value).abs() <= bound);
                    assert!(near, "{name} {seed:?}: [{row},{column}] is {found:?}, not {value}");
                }
            }
        }
    }
}

/// The sum of the rows that the inputs have for a row.
fn sum(
    template: &Rows,
    given: &graphene_ir::simulate::Inputs,
    row: i64,
    column: i64,
    columns: i64,
) -> Near {
    let elements: Vec<Near> = (0..template.ins.len())
        .map(|input| {
            let place = match template.places[input] {
                Place::Same => row,
                Place::Repeated => row % table(input),
                Place::Index(_) => {
                    index(input, usize::try_from(row).unwrap()).rem_euclid(table(input))
                }
            };
            let at = usize::try_from(place * columns + column).unwrap();
            (data(given, &format!("x{input}"))[at], 0.0)
        })
        .collect();
    propagate(&template.prologue, &elements)[0]
}

#[test]
fn kernels_verify_read_back_and_become_cuda() {
    for (template, _) in rows() {
        let kernel = template.kernel().unwrap();
        check_text(&format!("{template:?}"), &kernel);
        emit(&kernel).unwrap();
    }
}

/// An index that the table does not have reads its last row.
#[test]
fn indices_beyond_the_table_read_within_it() {
    let kernel = gather(F16, &[Place::Index(Scalar::I64)]).kernel().unwrap();
    let symbols = [("rows", 2), ("columns", 8), ("x0_rows", 3)];
    let given = inputs(&kernel, &symbols, |param, i| {
        if kernel.tensor_name(kernel.params[param]) == "i0" { [3.0, -9.0][i] } else { i as f64 }
    });
    let outcome = run(&kernel, &given, None);
    check_clean("beyond", &outcome);
    let first_and_last = (16..24).chain(0..8).map(|i| Some(f64::from(i)));
    assert_eq!(outcome.buffers["y"], first_and_last.collect::<Vec<_>>());
}
