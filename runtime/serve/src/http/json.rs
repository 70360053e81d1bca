//! JSON of requests: values of bounded depth.

use crate::error::{Error, Result};
use serde::Deserialize;

/// Arrays and objects inside each other at most.
const DEPTH: usize = 100;

/// The value that `text`, which is `what` of the request, has.
///
/// # Errors
/// [`Error::Malformed`] for text that is no such value, or is nested deeper than a hundred arrays and objects: wherever it
/// is, so that nothing that reads it, skips it or keeps it as text has to count.
pub(in crate::http) fn parse<'a, T: Deserialize<'a>>(what: &str, text: &'a [u8]) -> Result<T> {
    if is_deeper_than(DEPTH, text) {
        let what = format!("{what} has more than {DEPTH} arrays and objects inside each other");
        return Err(Error::malformed(what));
    }
    serde_json::from_slice(text).map_err(|error| Error::malformed(format!("{what}: {error}")))
}

/// Whether more than `most` arrays and objects of a JSON text are open at a time.
fn is_deeper_than(most: usize, text: &[u8]) -> bool {
    // Few brackets cannot be deep, and are counted at the speed of memory.
    let opened = |byte: &&u8| matches!(**byte, b'[' | b'{');
    if text.iter().filter(opened).count() <= most {
        return false;
    }
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'{' => {
                depth += 1;
                if depth > most {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::is_deeper_than;

    #[test]
    fn depth_is_of_brackets_outside_of_strings() {
        let rows = [
            ("[[1],[2]]", false),
            ("[[[1]]]", true),
            (r#"["[[[", {"]": "\"[[["}]"#, false),
            (r#"{"a": {"b": [1]}}"#, true),
            (r#"["\\", [[1]]]"#, true),
            ("]]]]]][[[", true),
            ("[],[],[],[[]]", false),
        ];
        for (text, deeper) in rows {
            assert_eq!(is_deeper_than(2, text.as_bytes()), deeper, "{text}");
        }
    }
}
