//! Imports: few modules of a crate import each other, and the layers of `fusion` import one way.
//!
//! A module is a file. That a module uses those within it is no import: they are its parts. All else is one, also what a part
//! uses of the module that it is in. Tests may import what they want.

use crate::source::{Kind, parts};
use crate::sources;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};

/// How many modules of a crate may import each other, directly or by way of others.
const MOST: &[(&str, usize)] = &[("frontend", 3), ("fusion", 3), ("runtime", 3), ("graphene", 3)];

/// The folders of `fusion`, and which others the modules in each may use.
const LAYERS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("rewrite", &["base"]),
    ("families", &["base"]),
    ("partition", &["base", "rewrite", "families"]),
    ("lower", &["base", "rewrite", "families", "partition"]),
    ("pad", &[]),
];

/// The modules of a crate by their paths, such as `import::ops`, each with those that it imports. The crate's root has no name.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The modules of a crate without its tests, each with its code.
fn modules(folder: &str) -> BTreeMap<String, String> {
    let tests = Regex::new(r"#\[cfg\(test\)\]\s*mod \w+ \{").expect("a pattern");
    let source = format!("{folder}/src/");
    let files = sources().into_iter().filter_map(|(path, text)| {
        let path = path.strip_prefix(&source)?.strip_suffix(".rs")?;
        let mut names: Vec<&str> = path.split('/').collect();
        names.pop_if(|last| matches!(*last, "mod" | "lib" | "main"));
        let code = parts(&text).into_iter().filter(|(kind, _)| *kind == Kind::Code);
        let code: String = code.map(|(_, range)| &text[range]).collect();
        let own = tests.split(&code).next().unwrap_or_default().to_owned();
        (!names.contains(&"tests")).then(|| (names.join("::"), own))
    });
    files.collect()
}

/// What the modules import.
fn imports(modules: &BTreeMap<String, String>) -> Imports {
    let uses = Regex::new(r"\buse\s+([^;]+);").expect("a pattern");
    let renamed = Regex::new(r"\s+as\s+\w+|\s+").expect("a pattern");
    let visible = Regex::new(r"\bpub\(in[^)]*\)").expect("a pattern");
    let paths = Regex::new(r"\b(?:crate|self|super)(?:::\w+)+").expect("a pattern");
    let of = |(module, code): (&String, &String)| {
        let code = visible.replace_all(code, "");
        let used = uses.captures_iter(&code).map(|found| renamed.replace_all(&found[1], "").into());
        let used = used.flat_map(|tree: String| leaves(&tree));
        let named = paths.find_iter(&code).map(|found| found.as_str().to_owned());
        let targets = used.chain(named).filter_map(|path| target(modules, module, &path));
        let others = targets.filter(|target| target != module && !is_within(target, module));
        (module.clone(), others.collect())
    };
    modules.iter().map(of).collect()
}

/// The paths of a tree of `use`, which has no blanks.
fn leaves(tree: &str) -> Vec<String> {
    let Some((lead, inner)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let mut depth = 0;
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    let parts = inner.split(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ',' && depth == 0
    });
    let parts = parts.filter(|part| !part.is_empty()).flat_map(leaves);
    parts.map(|leaf| format!("{lead}{leaf}")).collect()
}

/// The module that a path leads to from another one; `None` for other crates' and for names that are imported.
fn target(modules: &BTreeMap<String, String>, from: &str, path: &str) -> Option<String> {
    let mut place: Vec<&str> = from.split("::").filter(|name| !name.is_empty()).collect();
    let names: Vec<&str> = path.split("::").collect();
    let up = names.iter().take_while(|name| **name == "super").count();
    let skipped = match names[0] {
        "crate" => {
            place.clear();
            1
        }
        "self" => 1,
        "super" => {
            place.truncate(place.len().saturating_sub(up));
            up
        }
        part => {
            let own = [&place[..], &[part]].concat().join("::");
            modules.contains_key(&own).then_some(0)?
        }
    };
    place.extend(&names[skipped..]);
    while !modules.contains_key(&place.join("::")) {
        place.pop()?;
    }
    Some(place.join("::"))
}

fn is_within(module: &str, other: &str) -> bool {
    other.is_empty() || module.strip_prefix(other).is_some_and(|rest| rest.starts_with("::"))
}

/// What a module imports, directly or by way of others.
fn reached<'a>(imports: &'a Imports, from: &'a str) -> BTreeSet<&'a str> {
    let (mut reached, mut pending) = (BTreeSet::new(), vec![from]);
    while let Some(next) = pending.pop() {
        let targets = imports[next].iter().map(String::as_str);
        pending.extend(targets.filter(|target| reached.insert(*target)));
    }
    reached
}

/// The largest set of modules each of which imports all others, directly or by way of others.
fn knot(imports: &Imports) -> BTreeSet<&str> {
    let reached: BTreeMap<&str, _> =
        imports.keys().map(|module| (module.as_str(), reached(imports, module))).collect();
    let knot = |from: &&str| {
        reached[from].iter().copied().filter(|to| reached[to].contains(from)).collect()
    };
    reached.keys().map(knot).max_by_key(BTreeSet::len).unwrap_or_default()
}

/// What is wrong with a crate's imports, if too many modules import each other.
fn complaint(folder: &str, imports: &Imports, most: usize) -> Option<String> {
    let knot = knot(imports);
    let edges = knot.iter().flat_map(|from| {
        let inside = imports[*from].iter().filter(|to| knot.contains(to.as_str()));
        inside.map(move |to| format!("{from} imports {to}"))
    });
    let edges: Vec<String> = edges.take(12).collect();
    let names: Vec<&str> = knot.iter().copied().collect();
    (knot.len() > most).then(|| {
        format!(
            "{folder}: {} modules import each other, of which {most} may: {}; for example\n{}",
            knot.len(),
            names.join(", "),
            edges.join("\n")
        )
    })
}

/// The layer of a module of `fusion`: its folder, or the file at the top that it is.
fn layer(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
}

#[test]
fn few_modules_import_each_other() {
    for &(folder, most) in MOST {
        let imports = imports(&modules(folder));
        assert!(imports.len() > 50, "where are {folder}'s modules? {} were found", imports.len());
        let complaint = complaint(folder, &imports, most);
        assert!(complaint.is_none(), "{}", complaint.unwrap_or_default());
    }
}

#[test]
fn the_layers_of_fusion_import_one_way() {
    let imports = imports(&modules("fusion"));
    let folders = imports.keys().filter(|module| module.contains("::")).map(|module| layer(module));
    let folders: BTreeSet<&str> = folders.collect();
    assert_eq!(folders, LAYERS.iter().map(|row| row.0).collect());
    for (place, (own, may_use)) in LAYERS.iter().enumerate() {
        let before = |other: &&str| LAYERS[..place].iter().any(|row| row.0 == *other);
        assert!(may_use.iter().all(before), "{own} may use layers before it");
        for (module, targets) in imports.iter().filter(|(module, _)| layer(module) == *own) {
            for target in targets {
                let other = layer(target);
                let allowed = other == *own || may_use.contains(&other);
                assert!(
                    allowed,
                    "{module} must not import {other:?}: {own} uses {may_use:?} alone"
                );
            }
        }
    }
}

#[test]
fn imports_are_found() {
    let rows: &[(&str, &str, &[&str])] = &[
        ("a", "use crate::b::{self, c::{Item as Other, other}, d::e};", &["b", "b::c"]),
        (
            "a",
            "use std::fmt; use b::Foreign; fn f() { crate::b::c::g(super::Root) }",
            &["", "b::c"],
        ),
        ("b", "use c::Part; pub use self::c::{Other}; use super::a;", &["a"]),
        ("b::c", "use super::Whole; fn f() { super::super::a::g() }", &["a", "b"]),
        ("b::c", "pub(in crate::a) fn f() {}", &[]),
    ];
    for (module, code, expected) in rows {
        let names = ["", "a", "b", "b::c"];
        let code = |name: &str| if name == *module { *code } else { "" };
        let modules = names.map(|name| (name.to_owned(), code(name).to_owned()));
        let found = &imports(&modules.into())[*module];
        assert!(found.iter().map(String::as_str).eq(expected.iter().copied()), "{found:?}");
    }
}

#[test]
fn knots_are_told_with_their_imports() {
    let rows = [
        ("a", "use crate::b::X;"),
        ("b", "use c::X;"),
        ("b::c", "use crate::d;"),
        ("c", "use crate::a;"),
        ("d", "use super::b;"),
    ];
    let mut modules: BTreeMap<String, String> =
        rows.iter().map(|(name, code)| ((*name).to_owned(), (*code).to_owned())).collect();
    modules.insert(String::new(), "mod a; mod b; mod c; mod d;".to_owned());
    // What `b` uses of its part `b::c` is no import.
    assert_eq!(complaint("crate", &imports(&modules), 1), None);
    modules.insert("b".to_owned(), "use super::c;".to_owned());
    let expected = "crate: 3 modules import each other, of which 2 may: a, b, c; for example\n\
        a imports b\nb imports c\nc imports a";
    assert_eq!(complaint("crate", &imports(&modules), 2).as_deref(), Some(expected));
    assert_eq!(complaint("crate", &imports(&modules), 3), None);
}
