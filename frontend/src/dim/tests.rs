//! Dims against arithmetic on numbers.

use super::{Bindings, Dim, Symbol};

fn dim(text: &str) -> Dim {
    text.parse().unwrap()
}

#[test]
fn canonical_forms_are_equal_values() {
    let rows = [
        ("batch*sequence", "sequence*batch"),
        ("2*(a + 1) - 2", "2*a"),
        ("(a + b)*(a - b)", "a*a - b*b"),
        ("(12*a*b)//(4*a)", "3*b"),
        ("(2*a + 7)//2", "a + 3"),
        ("min(a, a + 1)", "a"),
        ("max(1, a)", "a"),
        ("max(0, a - 1)", "a - 1"),
        ("a - a", "0"),
        ("(-7)//2", "-4"),
        ("7//(-2)", "-4"),
        ("(-7)//(-2)", "3"),
        ("floor(a/2)", "a//2"),
    ];
    for (left, right) in rows {
        assert_eq!(dim(left), dim(right), "{left} = {right}");
    }
}

#[test]
fn text_form_round_trips() {
    for text in ["5", "-a", "a*a*b - 2*a + 1", "floor(a + 1, 2)", "min(512, a)", "`two words` + 1"]
    {
        let parsed = dim(text);
        assert_eq!(dim(&parsed.to_string()), parsed, "{text} prints as {parsed}");
    }
}

#[test]
fn expressions_agree_with_numbers() {
    let texts = [
        "(a*b + 3)//4 + min(a, 7)*b",
        "max(b, a//2) - a*3",
        "(a*a - b)//(b + 1)",
        "((a + 5)//3)*(b - 2)",
        "(6*a + 4*b + 9)//6",
        "min(a, b) + max(a, b)",
    ];
    for (a, b) in (1..9).flat_map(|a| (1..9).map(move |b| (a, b))) {
        let mut bindings = Bindings::new();
        bindings.bind(Symbol::new("a"), a).unwrap();
        bindings.bind(Symbol::new("b"), b).unwrap();
        let expected = [
            (a * b + 3).div_euclid(4) + a.min(7) * b,
            b.max(a / 2) - a * 3,
            (a * a - b).div_euclid(b + 1),
            ((a + 5) / 3) * (b - 2),
            (6 * a + 4 * b + 9) / 6,
            a + b,
        ];
        for (text, expected) in texts.iter().zip(expected) {
            let symbolic = dim(text);
            assert_eq!(symbolic.eval(&bindings), Ok(expected), "{text} at a={a} b={b}");
            assert!(symbolic.lower_bound().is_none_or(|bound| bound <= expected), "{text}");
            assert!(symbolic.upper_bound().is_none_or(|bound| bound >= expected), "{text}");
        }
    }
}

#[test]
fn bad_text_is_an_error() {
    for text in ["", "a +", "1/0", "a//0", "min(a)", "(a", "`a", "99999999999999999999", "a b", "é"]
    {
        assert!(text.parse::<Dim>().is_err(), "{text}");
    }
    assert!("(".repeat(100_000).parse::<Dim>().is_err());
}

#[test]
fn unbound_and_bad_sizes_name_the_symbol() {
    let unbound = dim("a + 1").eval(&Bindings::new()).unwrap_err();
    assert_eq!(unbound.to_string(), "dimension `a` has no size");
    let refused = Bindings::new().bind(Symbol::new("a"), 0).unwrap_err();
    assert_eq!(refused.to_string(), "dimension `a` cannot be 0");
}

#[test]
fn arithmetic_saturates() {
    let huge = Dim::from(i64::MAX);
    assert_eq!(&huge * &Dim::from(2), i64::MAX);
    assert_eq!(&huge + &huge, i64::MAX);
    assert_eq!(Dim::from(i64::MIN).floor_div(&Dim::from(-1)), Ok(Dim::from(i64::MAX)));
}

#[test]
fn expressions_stay_small() {
    let mut square = dim("a + b + 1");
    let mut tower = dim("a");
    let mut halved = dim("a");
    let mut nested = dim("a");
    for _ in 0..100 {
        square = &square * &square;
        tower = &tower * &tower;
    }
    for _ in 0..2_000 {
        halved = (halved + dim("b")).floor_div(&Dim::from(2)).unwrap();
        nested = nested.minimum(&(dim("2*b") - &nested));
    }
    let factors: String = (0..60).map(|i| format!("*(x{i} + y{i})")).collect();
    for large in [square, tower, halved, nested, dim(&factors[1..])] {
        assert!(large.weight() <= super::MAX_WEIGHT);
        assert!(large.to_string().len() < 10_000, "{large}");
    }
}

#[test]
fn equations_make_a_symbol_a_sum_that_cannot_be_one() {
    let solved = |a: &str, b: &str| {
        let all: Vec<_> =
            dim(a).equate(&dim(b)).iter().map(|(s, d)| format!("{s} = {d}")).collect();
        all.join(", ")
    };
    assert_eq!(solved("total", "past + sequence"), "total = past + sequence");
    assert_eq!(solved("total - past", "sequence"), "total = past + sequence");
    assert_eq!(solved("2*a + 1", "b"), "b = 2*a + 1");
    assert_eq!(solved("a + b", "c + 1"), "");
    // What may be one may broadcast; numbers are sizes, not equations; only whole symbols are solved for.
    for (a, b) in [("p", "q"), ("a + b", "7"), ("2*c", "a + b"), ("c*c", "a + b"), ("a", "a + 1")] {
        assert_eq!(solved(a, b), "", "{a} = {b}");
    }
    let sum = dim("past + sequence");
    assert_eq!(
        dim("2*total + min(total, 9)").replace(&Symbol::new("total"), &sum),
        Ok(dim("2*past + 2*sequence + min(past + sequence, 9)"))
    );
}
