//! Extraction: what is chosen from classes that are made by hand.

use super::left::{Bound, build};
use crate::rewrite::extract::{Choice, Programme, extract};
use crate::rewrite::language::{Head, Terms};
use egg::Id;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use std::collections::BTreeSet;

/// Terms, the classes of those that are roots, and what is chosen for these. Terms that follow each other in one entry
/// are made equal.
fn choose(entries: &[&[&str]]) -> (Terms, Vec<Id>, (Choice, Programme)) {
    let x = Bound::Value { shape: "batch,64", dtype: None, constant: false };
    let lefts = entries.concat();
    let (mut terms, classes) = build(&lefts, &[("x", x)], DType::F32, false);
    let mut classes = classes.into_iter();
    let mut roots = Vec::new();
    for entry in entries {
        let own: Vec<Id> = classes.by_ref().take(entry.len()).collect();
        own.windows(2).for_each(|pair| {
            terms.union(pair[0], pair[1]);
        });
        roots.push(own[0]);
    }
    terms.rebuild();
    let roots: Vec<Id> = roots.into_iter().map(|id| terms.find(id)).collect();
    let extracted = extract(&terms, &roots, &Bindings::new());
    (terms, roots, extracted)
}

/// The names of the operations that are chosen, each as often as it is computed.
fn chosen(entries: &[&[&str]]) -> (Vec<&'static str>, Programme) {
    let (_, roots, (choice, programme)) = choose(entries);
    let (mut pending, mut seen, mut names) = (roots, BTreeSet::new(), Vec::new());
    while let Some(id) = pending.pop() {
        if seen.insert(id) {
            let term = &choice[&id];
            pending.extend(&term.children);
            names.extend(match term.head {
                Head::Op(name) => Some(name),
                _ => None,
            });
        }
    }
    names.sort_unstable();
    (names, programme)
}

#[test]
fn the_cheaper_term_is_chosen() {
    let (names, _) = chosen(&[&["(Exp (Neg ?x))", "(Tanh ?x)"]]);
    assert_eq!(names, ["Tanh"]);
}

#[test]
fn without_alternatives_there_is_no_programme() {
    let (names, programme) = chosen(&[&["(Exp (Neg ?x))"], &["(Neg ?x)"]]);
    assert_eq!(names, ["Exp", "Neg"]);
    assert_eq!(programme, Programme::Needless);
}

#[test]
fn what_two_readers_share_is_paid_once() {
    // Each reader alone is cheaper by its own chain of three, but both by one chain.
    let (names, programme) = chosen(&[
        &["(Tanh (Neg (Exp (Neg ?x))))", "(Erf (Erf (Erf ?x)))"],
        &["(Sqrt (Neg (Exp (Neg ?x))))", "(Sigmoid (Sigmoid (Sigmoid ?x)))"],
    ]);
    assert_eq!(names, ["Exp", "Neg", "Neg", "Sqrt", "Tanh"]);
    assert_eq!(programme, Programme::Solved);
}

#[test]
fn a_term_that_needs_its_own_class_is_never_chosen() {
    let (names, _) = chosen(&[&["(Neg (Neg ?x))", "?x"], &["(Exp (Neg ?x))"]]);
    assert_eq!(names, ["Exp", "Neg"]);
    // Classes that are made of each other, and of two terms beside that cost more than either alone.
    let dear = "(Mul (Exp (Tanh ?x)) (Sqrt (Tanh ?x)))";
    let inverse = format!("(Reciprocal {dear})");
    let (names, _) = chosen(&[&[dear, "(Reciprocal (Erf ?x))"], &[&inverse, "(Erf ?x)"]]);
    assert_eq!(names, ["Erf", "Reciprocal"]);
}

#[test]
fn too_many_alternatives_are_left_to_the_greedy_choice() {
    let chains: Vec<[String; 2]> = (0..21)
        .map(|depth| {
            let mut x = "?x".to_owned();
            (0..depth).for_each(|_| x = format!("(Neg {x})"));
            [format!("(Exp {x})"), format!("(Tanh (Erf {x}))")]
        })
        .collect();
    let entries: Vec<[&str; 2]> = chains.iter().map(|[a, b]| [a.as_str(), b.as_str()]).collect();
    let entries: Vec<&[&str]> = entries.iter().map(|entry| entry.as_slice()).collect();
    let (names, programme) = chosen(&entries);
    assert_eq!(names.iter().filter(|name| **name == "Exp").count(), 21);
    assert_eq!(programme, Programme::GivenUp);
}
