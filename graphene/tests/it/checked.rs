//! Every level is checked: instances of specs with bodies do what their kinds say.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use graphene_ir::simulate::{Options, simulate};

use crate::faults;

/// Specs that do not say what their bodies do: of which kernel (any if it is empty), a part of their text, and what is wrong.
const MISSTATED: &[(&str, &str, &str)] = &[
    (
        "",
        " <- Move<<<#cta, #block>>>(%k_tile",
        "Keys of attention before Hopper lie as [dim, keys] in global memory and as [keys, dim] in a stage: it transposes.",
    ),
    ("", "%scores <- MatMul+=", "So do the keys of its product."),
    (
        "rounded",
        "",
        "Operands are rounded to TF32 before they are multiplied, which no spec around that says.",
    ),
];

/// Kernels of every template do at every level what is said there, and checking that takes no more than three times as long.
#[test]
fn every_level_does_what_it_says() {
    let (mut plain, mut with_levels) = (Duration::ZERO, Duration::ZERO);
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    let (mut checked, mut unchecked) = (0, std::collections::BTreeMap::new());
    for (name, kernel, given) in faults::kernels() {
        for inputs in given {
            let began = Instant::now();
            simulate(&kernel, &inputs, &Options::default()).unwrap();
            plain += began.elapsed();
            let began = Instant::now();
            let options = Options { levels: 1, findings: 1000, ..Options::default() };
            let outcome = simulate(&kernel, &inputs, &options).unwrap();
            with_levels += began.elapsed();
            for (statement, count) in outcome.levels {
                println!("{name}: {} of {count:?}", statement.text);
                checked += count.checked;
                for (why, count) in count.unchecked {
                    *unchecked.entry(why).or_insert(0) += count;
                }
            }
            for finding in outcome.findings {
                let text = &finding.statement.text;
                let says = |row: &(&str, &str, &str)| {
                    (row.0.is_empty() || row.0 == name) && text.contains(row.1)
                };
                match MISSTATED.iter().position(says) {
                    Some(row) => drop(used.insert(row)),
                    None => wrong.push(format!("{name}: {finding}")),
                }
            }
        }
    }
    println!("{checked} instances checked; not: {unchecked:?}");
    println!("{plain:?} without levels, {with_levels:?} with them");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(used.len(), MISSTATED.len(), "all of these say now what they do");
    assert!(checked > 10_000, "{checked}");
    assert!(with_levels < 3 * plain, "{with_levels:?} with levels, {plain:?} without");
}
