//! What a result is a result of: the build, the day and the command.

use crate::error::quoted;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The revision of the source, where whoever builds says so in this variable.
pub(crate) const REVISION: Option<&str> = option_env!("GRAPHENE_REVISION");

/// The time now, in UTC: `2026-02-03T14:05:09Z`.
pub(crate) fn date() -> String {
    stamp(OffsetDateTime::now_utc())
}

fn stamp(time: OffsetDateTime) -> String {
    let seconds = time.replace_nanosecond(0).unwrap_or(time);
    seconds.format(&Rfc3339).unwrap_or_default()
}

/// The command line, quoted for a shell.
pub(crate) fn command() -> String {
    let arguments = std::env::args_os().skip(1);
    let arguments = arguments.map(|argument| quoted(&argument.to_string_lossy()));
    std::iter::once("graphene-run".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::stamp;
    use time::OffsetDateTime;

    #[test]
    fn dates_have_no_fractions_of_seconds() {
        let time = OffsetDateTime::from_unix_timestamp_nanos(1_770_127_509_123_456_789).unwrap();
        assert_eq!(stamp(time), "2026-02-03T14:05:09Z");
    }
}
