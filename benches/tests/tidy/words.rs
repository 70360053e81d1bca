//! Words: the field's terms and plain English, in identifiers, messages and documents.

use crate::source::{Kind, parts};
use crate::{extension, files, read, root};
use regex::Regex;
use std::collections::HashSet;
use std::path::Path;

/// What is read.
const ROOTS: &[&str] = &[
    "CHANGELOG.md",
    "README.md",
    "benches",
    "frontend",
    "fusion",
    "graphene/README.md",
    "graphene/PAPERS.md",
    "graphene/opt/README.md",
    "graphene/src",
    "models",
    "runtime",
];

/// Where a word stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    /// Names in code.
    Identifiers,
    /// String literals outside of tests, and the page of `--report`: what users may see.
    Messages,
    /// Comments, documentation, Markdown.
    Docs,
}
use Scope::{Docs, Identifiers, Messages};

/// Where a word may stand nonetheless.
#[derive(Clone, Copy, Debug)]
enum Where {
    /// In files whose path has this pattern.
    Path(&'static str),
    /// In lines with this pattern.
    Line(&'static str),
}
use Where::{Line, Path as At};

/// A word that a newcomer has to guess at.
struct Word {
    /// A whole identifier in code; a part of a line elsewhere, in small or capital letters.
    not: &'static str,
    scopes: &'static [Scope],
    but: &'static str,
    /// Exceptions, each with its reason.
    unless: &'static [(Where, &'static str)],
}

/// Files about sizes of dims, whose product is a number of elements.
const SIZES: &str = r"^(frontend/src/(dim|tensor|types|eval/walk|infer/movement|import/ops/(einsum|shape|fourier|signal))|fusion/src/(pad/rules/finite|rewrite/rules/layout)|runtime/src/(reach|cpu/kernels/view))\.rs$";

/// Files about arithmetic on elements.
const ELEMENTS: &str = r"^(frontend/src/op/attributes\.rs|fusion/src/rewrite/(rules/norm|tests/rows)\.rs|runtime/(tests/random/|src/cpu/kernels/math\.rs|serve/src/limits\.rs))";

#[rustfmt::skip]
const WORDS: &[Word] = &[
    // Names.
    Word {
        not: r"\w*Products?[A-Z]?\w*|\w+_products?(_\w+)?|products?_\w+|products|PRODUCTS?",
        scopes: &[Identifiers],
        but: "MatMul, Gemm; matmul",
        unless: &[
            (At(r"^frontend/src/dim\.rs$"), "a product of powers of symbols"),
            (At("^graphene/src/layout/"), "CuTe's names"),
        ],
    },
    Word { not: r"\w*[Hh]alves\w*", scopes: &[Identifiers], but: "half, fp16", unless: &[
        (At(r"^frontend/src/import/ops/microsoft\.rs$"), "two halves of a tensor"),
    ] },
    Word { not: r"laid|Laid\w*|(\w+_)?laid_\w+", scopes: &[Identifiers], but: "prepacked", unless: &[] },
    Word { not: r"turns|Turns|TURNS|\w+_turns", scopes: &[Identifiers], but: "ping_pong, interleaved, FairLock", unless: &[
        (At(r"^frontend/src/import/ops/signal\.rs$"), "turns of a circle"),
    ] },
    Word { not: r"rooms?|ROOM\w*|\w+_rooms?|rooms?_\w+|\w*Room", scopes: &[Identifiers], but: "budget, capacity, limit, scratch; evict", unless: &[] },
    Word { not: r"rings?|Rings?|RINGS?|\w+_rings?|rings?_\w+", scopes: &[Identifiers], but: "pipeline, stages", unless: &[
        (Line("crypto::ring"), "the crate"),
        (At("^graphene/src/"), "a statement of kernels in text: `ring @r[4]`"),
    ] },
    Word { not: r"\w*[Ss]ociable", scopes: &[Identifiers], but: "is_fusible", unless: &[] },
    Word { not: "Net", scopes: &[Identifiers], but: "FusionGraph", unless: &[] },
    Word { not: r"\w*[Bb]eneath\w*", scopes: &[Identifiers], but: "view_source", unless: &[] },
    Word { not: r"\w*[Dd]earer", scopes: &[Identifiers], but: "NotProfitable", unless: &[] },
    Word { not: r"speakers?|brought|Teams", scopes: &[Identifiers], but: "elected_warps, residual_tma, cooperative_reduce", unless: &[] },
    // Sentences.
    Word { not: r"\bproducts?\b", scopes: &[Messages, Docs], but: "matmul", unless: &[
        (Line(r"(?i)matrix products?|(outer|dot|inner|cross) products?|sums? of( \w+)? products|running sums|multiply-adds?"), "mathematics"),
        (Line(r"(?i)products? of (the )?(sizes|shapes|dims|powers|symbols|numbers|\w+ sizes|two shapes|at most)"), "a product of sizes"),
        (At(SIZES), "a product of sizes"),
        (At("^graphene/src/layout/"), "CuTe's products of layouts"),
        (Line(r#"sum or (a )?product|let_\("product""#), "what a scan computes; a name in kernels' text"),
        (At(ELEMENTS), "products of elements"),
    ] },
    Word { not: r"\bhalves\b", scopes: &[Messages, Docs], but: "fp16, half precision", unless: &[
        (Line(r"two halves|levels? of halves"), "two parts"),
        (Line(r#"\(., "halves","#), "a register's name in kernels' text"),
    ] },
    Word { not: r"\blaid out\b|\blaid anew\b", scopes: &[Messages, Docs], but: "prepacked", unless: &[] },
    Word { not: r"\bmade weights?\b", scopes: &[Messages, Docs], but: "derived weight, folded weight", unless: &[] },
    Word { not: r"\b(in|by) turns\b", scopes: &[Messages, Docs], but: "interleaved, ping-pong", unless: &[] },
    Word { not: r"\btakes? turns\b", scopes: &[Messages], but: "ping-pong, interleaved", unless: &[] },
    Word { not: r"\broom\b", scopes: &[Messages], but: "memory, budget, capacity", unless: &[] },
    Word { not: r"\b(in|of) the ring\b|\brings? (has|have|of)\b", scopes: &[Messages], but: "pipeline stages", unless: &[] },
    Word { not: r"\bfor the host\b|\bthe host (would )?computes?\b", scopes: &[Messages, Docs], but: "falls back to the CPU", unless: &[] },
    Word { not: r"\bcopies (down|up)\b", scopes: &[Messages, Docs], but: "D2H copy, H2D copy", unless: &[] },
    Word { not: r"\bhow right\b|\bthe way of the data\b", scopes: &[Messages, Docs], but: "accuracy; pipeline", unless: &[] },
    Word { not: r"\b(wavers?|wavering)\b", scopes: &[Messages, Docs], but: "timings are noisy", unless: &[] },
    Word { not: r"\bsociable\b|\bdearer\b", scopes: &[Messages, Docs], but: "fusible; costs more", unless: &[] },
    Word { not: r"\btakes along\b", scopes: &[Messages, Docs], but: "fuses as its epilogue", unless: &[] },
    Word { not: r"\banew\b|\bnot to be had\b|\bside by side\b", scopes: &[Messages], but: "again; cannot be allocated; concurrent, contiguous", unless: &[] },
];

/// A word where it should not be.
#[derive(PartialEq, Eq, Debug)]
struct Finding {
    path: String,
    line: usize,
    found: String,
    but: &'static str,
}

/// The rows of the table, compiled; and which exceptions were used.
struct Checker {
    rows: Vec<(Regex, Vec<(Where, Regex)>)>,
    used: Vec<Vec<bool>>,
    /// Names that no row is about: most of them come often.
    fine: HashSet<String>,
}

impl Checker {
    fn new() -> Self {
        let regex = |pattern: &str| {
            Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"))
        };
        let rows = WORDS.iter().map(|word| {
            // A word of both would be a name in one place and a part of a sentence in another.
            let names = word.scopes.contains(&Identifiers);
            assert!(!names || word.scopes.len() == 1, "{}: names have rows of their own", word.not);
            let not = match names {
                true => regex(&format!("^(?:{})$", word.not)),
                false => regex(&format!("(?i){}", word.not)),
            };
            let unless = word.unless.iter().map(|&(place, _)| match place {
                At(pattern) | Line(pattern) => (place, regex(pattern)),
            });
            (not, unless.collect())
        });
        let used = WORDS.iter().map(|word| vec![false; word.unless.len()]).collect();
        Self { rows: rows.collect(), used, fine: HashSet::new() }
    }

    /// The words of a scope in a piece of a file's line; whether a row is about the piece.
    fn line(
        &mut self,
        scope: Scope,
        (path, number, line): (&str, usize, &str),
        piece: &str,
        findings: &mut Vec<Finding>,
    ) -> bool {
        let mut is_met = false;
        for (row, (word, (not, unless))) in WORDS.iter().zip(&self.rows).enumerate() {
            if !word.scopes.contains(&scope) {
                continue;
            }
            let Some(found) = not.find(piece) else { continue };
            is_met = true;
            let excused = unless.iter().position(|(place, pattern)| match place {
                At(_) => pattern.is_match(path),
                Line(_) => pattern.is_match(line),
            });
            match excused {
                Some(exception) => self.used[row][exception] = true,
                None => findings.push(Finding {
                    path: path.to_owned(),
                    line: number,
                    found: found.as_str().to_owned(),
                    but: word.but,
                }),
            }
        }
        is_met
    }

    /// The words of a file, by what it is.
    fn file(&mut self, path: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
        let pieces = match extension(Path::new(path)) {
            "rs" => parts(text),
            "md" => vec![(Kind::Comment, 0..text.len())],
            _ => vec![(Kind::Text, 0..text.len())],
        };
        let mut number = 1;
        for (kind, range) in pieces {
            let from = text[..range.start].rfind('\n').map_or(0, |end| end + 1);
            // A part has the rest of the line on which the one before ended.
            let mut lines = text[from..].split('\n');
            for piece in text[range].split_inclusive('\n') {
                let whole = lines.next().unwrap_or_default();
                let at = (path, number, whole);
                match kind {
                    Kind::Code => {
                        for name in names(piece) {
                            if !self.fine.contains(name)
                                && !self.line(Identifiers, at, name, &mut findings)
                            {
                                self.fine.insert(name.to_owned());
                            }
                        }
                    }
                    Kind::Text if is_test => {}
                    Kind::Text => {
                        self.line(Messages, at, piece, &mut findings);
                    }
                    Kind::Comment => {
                        self.line(Docs, at, piece, &mut findings);
                    }
                }
                number += usize::from(piece.ends_with('\n'));
            }
        }
        findings
    }
}

/// The names in a piece of code.
fn names(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty())
}

#[test]
fn names_messages_and_documents_use_the_words_of_the_field() {
    let mut checker = Checker::new();
    let mut findings = Vec::new();
    let mut count = 0;
    for path in ROOTS.iter().flat_map(|place| files(&root().join(place))) {
        let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        let is_read = matches!(extension(&path), "rs" | "md" | "js" | "html");
        // Test data are others' words, and this table has to have the words that it looks for.
        if !is_read || name.contains("/data/") || name.starts_with("benches/tests/tidy/") {
            continue;
        }
        count += 1;
        findings.extend(checker.file(&name, &read(&path)));
    }
    assert!(count > 500, "where are the sources? {count} were found");
    let said = |f: &Finding| format!("{}:{}: {:?}; write {}", f.path, f.line, f.found, f.but);
    let said: Vec<String> = findings.iter().map(said).collect();
    assert!(said.is_empty(), "{} words:\n{}", said.len(), said.join("\n"));
    for (word, used) in WORDS.iter().zip(&checker.used) {
        for ((place, reason), used) in word.unless.iter().zip(used) {
            assert!(used, "{}: nothing needs the exception {place:?} ({reason})", word.not);
        }
    }
}

#[test]
fn words_are_found_where_they_count() {
    let code = "let room = 1; // in turns\nfail(\"the product of nothing\");\n/// Laid out.\n";
    /// Where a text stands, the text, and the lines and words that are found.
    type Example<'a> = (&'a str, &'a str, &'a [(usize, &'a str)]);
    let rows: &[Example<'_>] = &[
        ("fusion/src/a.rs", code, &[(1, "room"), (1, "in turns"), (2, "product"), (3, "Laid out")]),
        ("fusion/tests/it/a.rs", "f(\"a product\"); let (net, Net) = x;", &[(1, "Net")]),
        (
            "fusion/src/a.rs",
            "enum Kind { Product, GoodProducts }",
            &[(1, "Product"), (1, "GoodProducts")],
        ),
        ("fusion/src/a.rs", "let n: usize = sizes.iter().product();", &[]),
        (
            "fusion/src/a.rs",
            "fn is_product() { x.products() }",
            &[(1, "is_product"), (1, "products")],
        ),
        ("frontend/src/dim.rs", "type Product = Vec<Atom>;", &[]),
        ("fusion/src/a.rs", "/// A matrix product, and its\n/// product.", &[(2, "product")]),
        ("fusion/src/a.rs", "f(\"two\\\n   lines in turns\")", &[(2, "in turns")]),
        (
            "fusion/README.md",
            "The way of the data\n\n`room` is a name",
            &[(1, "The way of the data")],
        ),
        ("runtime/cli/src/page/a.js", "el(\"Requests side by side\")", &[(1, "side by side")]),
    ];
    for (path, text, expected) in rows {
        let found = Checker::new().file(path, text);
        let found: Vec<_> = found.iter().map(|f| (f.line, f.found.as_str())).collect();
        assert_eq!(found, *expected, "{path}: {text}");
    }
}
