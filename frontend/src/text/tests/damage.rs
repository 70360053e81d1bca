//! Damaged text: whatever it says, reading it ends in a graph or an error.

use super::SAMPLES;
use crate::text::{parse, print};

/// A generator of numbers, the same every time (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// One change at a random place: a cut, a repeat, a character or a piece of another sample.
fn damaged(text: &str, numbers: &mut Numbers) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    let at = numbers.below(chars.len() + 1);
    let end = (at + numbers.below(12)).min(chars.len());
    match numbers.below(4) {
        0 => drop(chars.drain(at..end)),
        1 => {
            let piece: Vec<char> = chars[at..end].to_vec();
            chars.splice(at..at, piece);
        }
        2 => {
            let alphabet: Vec<char> = "%@#\"\\`()[]{}<>=:,._-+*/0199999xnaé\n ".chars().collect();
            chars.insert(at, alphabet[numbers.below(alphabet.len())]);
        }
        _ => {
            let other: Vec<char> = SAMPLES[numbers.below(SAMPLES.len())].chars().collect();
            let from = numbers.below(other.len());
            let to = (from + numbers.below(40)).min(other.len());
            chars.splice(at..end, other[from..to].iter().copied());
        }
    }
    chars.into_iter().collect()
}

#[test]
fn damaged_text_is_read_or_refused() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut read, mut refused) = (0, 0);
    for round in 0..6_000 {
        let mut text = SAMPLES[round % SAMPLES.len()].to_owned();
        for _ in 0..=numbers.below(3) {
            text = damaged(&text, &mut numbers);
        }
        match parse(&text, &[]) {
            Ok(graph) => {
                read += 1;
                let printed = print(&graph);
                assert_eq!(parse(&printed.text, &printed.weights).as_ref(), Ok(&graph), "{text}");
            }
            Err(error) => {
                refused += 1;
                assert!(error.line <= text.matches('\n').count() + 1, "{text}");
            }
        }
    }
    assert!(read > 100 && refused > 1_000, "{read} read, {refused} refused");
}

#[test]
fn every_prefix_is_refused_or_read() {
    for text in SAMPLES {
        for (at, _) in text.char_indices() {
            // The text up to its end but for the line break is whole.
            let whole = at + 1 == text.len();
            let last_return = text.rfind("return").unwrap_or(0);
            if !whole && at <= last_return {
                assert!(parse(&text[..at], &[]).is_err(), "{}", &text[..at]);
            } else {
                let _ = parse(&text[..at], &[]);
            }
        }
    }
}
