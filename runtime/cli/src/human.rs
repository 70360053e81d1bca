//! Numbers as people read them.

use std::time::Duration;

/// Three significant digits with a unit: `12.3 ms`.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        s if s >= 1.0 => format!("{} s", digits(s)),
        s if s >= 1e-3 => format!("{} ms", digits(s * 1e3)),
        s if s >= 1e-6 => format!("{} µs", digits(s * 1e6)),
        s => format!("{:.0} ns", s * 1e9),
    }
}

/// Bytes in decimal units: `438 MB`.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes, &["B", "kB", "MB", "GB", "TB"])
}

/// A count in decimal units: `110 M`.
pub(crate) fn count(count: u64) -> String {
    scaled(count, &["", "k", "M", "G", "T"]).trim_end().to_owned()
}

/// A rate or ratio to three significant digits.
pub(crate) fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.places$}")
}

/// An error's size: `0` or `3.1e-6`.
pub(crate) fn error(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v.is_finite() => format!("{v:.1e}"),
        v => v.to_string(),
    }
}

/// `1 launch`, `2 launches`.
pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn scaled(value: u64, units: &[&str]) -> String {
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < units.len() {
        scaled /= 1e3;
        unit += 1;
    }
    match unit {
        0 => format!("{value} {}", units[0]),
        _ => format!("{} {}", digits(scaled), units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(super::time(Duration::from_micros(12_345)), "12.3 ms");
        assert_eq!(super::time(Duration::from_nanos(1_500)), "1.50 µs");
        assert_eq!(super::time(Duration::from_nanos(7)), "7 ns");
        assert_eq!(super::time(Duration::from_millis(102_000)), "102 s");
        assert_eq!(super::bytes(999), "999 B");
        assert_eq!(super::bytes(438_000_000), "438 MB");
        assert_eq!(super::bytes(999_999), "1.00 MB");
        assert_eq!(super::count(146_624), "147 k");
        assert_eq!(super::count(12), "12");
        assert_eq!(super::error(0.0), "0");
        assert_eq!(super::error(3.14e-6), "3.1e-6");
    }
}
