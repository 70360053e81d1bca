//! Of `simulate::tally`, whose items are private to the crate.

use super::{Span, conflicts, count, sector};

fn spans(address: impl Fn(i64) -> i64, bytes: i64) -> Vec<Span> {
    (0..32).map(|lane| Span { first: address(lane), end: address(lane) + bytes }).collect()
}

#[test]
fn conflicts_by_stride() {
    let rows: [(&str, Vec<Span>, u64); 8] = [
        ("neighbouring words", spans(|l| 4 * l, 4), 0),
        ("one word for all", spans(|_| 0, 4), 0),
        ("neighbouring fp16 numbers", spans(|l| 2 * l, 2), 0),
        ("every second word", spans(|l| 8 * l, 4), 1),
        ("one bank", spans(|l| 128 * l, 4), 31),
        ("neighbouring quadruples", spans(|l| 16 * l, 16), 0),
        ("rows of 128 bytes", spans(|l| 128 * l, 16), 4 * 7),
        ("rows of 144 bytes", spans(|l| 144 * l, 16), 0),
    ];
    for (name, spans, extra) in rows {
        assert_eq!(conflicts(&spans), extra, "{name}");
    }
}

#[test]
fn sectors_by_stride() {
    let sectors = |address: fn(i64) -> i64| {
        count(&mut (0..32).map(|lane| sector(0, address(lane))).collect())
    };
    assert_eq!(sectors(|lane| 4 * lane), 4);
    assert_eq!(sectors(|lane| 4 * lane + 16), 5);
    assert_eq!(sectors(|lane| 64 * lane), 32);
    assert_eq!(sectors(|_| 8), 1);
}
