//! Exit codes: what they mean, and what errors of a code are called in JSON.

/// How the command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// All was done, and all that was compared agrees.
    Fine,
    /// A defect of this program.
    Internal,
    /// The command line, or what it gives the model.
    Usage,
    /// The model.
    Model,
    /// Outputs differ.
    Differ,
    /// A gate failed.
    Gate,
    /// A device or a library of it is missing.
    Device,
    /// The system does not let a file be read or written.
    Io,
    /// Not everything was done in time.
    Timeout,
    /// Ctrl-C.
    Interrupted,
    /// SIGTERM.
    Terminated,
}

impl Exit {
    /// All of them, by code.
    pub(crate) const ALL: [Self; 11] = [
        Self::Fine,
        Self::Internal,
        Self::Usage,
        Self::Model,
        Self::Differ,
        Self::Gate,
        Self::Device,
        Self::Io,
        Self::Timeout,
        Self::Interrupted,
        Self::Terminated,
    ];

    /// The code, the kind of its errors in JSON, and what it means.
    fn row(self) -> (u8, &'static str, &'static str) {
        match self {
            Self::Fine => (0, "fine", "all was done; what was compared agrees"),
            Self::Internal => (1, "internal", "a defect of graphene-run: please report it"),
            Self::Usage => (2, "usage", "flags, sizes or inputs that do not fit the model"),
            Self::Model => (3, "model", "the model is invalid or not supported"),
            Self::Differ => (4, "differ", "outputs differ"),
            Self::Gate => (5, "gate", "a gate failed"),
            Self::Device => (6, "device", "a device or one of its libraries is missing"),
            Self::Io => (7, "io", "a file or stdout cannot be read or written"),
            Self::Timeout => (124, "timeout", "--timeout was over"),
            Self::Interrupted => {
                (130, "interrupted", "Ctrl-C (SIGINT): what was measured by then is printed")
            }
            Self::Terminated => (143, "terminated", "SIGTERM: likewise"),
        }
    }

    /// The code.
    pub(crate) fn code(self) -> u8 {
        self.row().0
    }

    /// What it means.
    pub(crate) fn meaning(self) -> &'static str {
        self.row().2
    }

    /// What errors that end so are called in JSON.
    pub(crate) fn kind(self) -> &'static str {
        self.row().1
    }
}

/// The table of `--help`.
pub(crate) fn table() -> String {
    let row = |exit: Exit| {
        let (code, _, meaning) = exit.row();
        format!("  {code:>3}  {meaning}\n")
    };
    format!("Exit codes:\n{}", Exit::ALL.map(row).concat())
}

#[cfg(test)]
mod tests {
    use super::Exit;

    /// Whoever reads the table in README finds what is meant.
    #[test]
    fn the_readme_has_all_codes() {
        let readme = include_str!("../README.md");
        for exit in Exit::ALL {
            let (code, kind, meaning) = exit.row();
            let row = format!("| {code} | `{kind}` | {meaning} |");
            assert!(readme.contains(&row), "{row}");
        }
        assert!(Exit::ALL.is_sorted_by_key(|exit| exit.code()));
    }
}
