//! What changes may be reported as, and faults that make no difference, and why.

use std::sync::LazyLock;

use super::sites::Fault;

/// What each change may be reported as: by rules of the verifier, by faults of the simulator, or by bank `Conflicts`.
const NAMES: &[(&str, &str)] = &[
    // What is no longer ordered is a race; with what is asynchronous, an access in flight; if the
    // other comes first, a read of what was not written yet.
    ("delete Sync", "Race InFlight Uninitialised Clusters"),
    ("Sync of the block", "Together"),
    ("Sync of one block", "Uninitialised Clusters"),
    ("delete Fence", "MissingFence Clusters Race"),
    ("delete Commit", "InFlight"),
    ("delete WaitGroup", "InFlight"),
    ("one more pending", "InFlight"),
    ("one less pending", "Atomic"),
    ("flip read", "Atomic"),
    // Who waits for it waits for ever.
    ("delete Arrive", "Deadlock"),
    ("16 bytes more", "Deadlock"),
    ("16 bytes less", "Deadlock InFlight"),
    ("no bytes", "InFlight Uninitialised"),
    ("delete Wait", "Race InFlight Uninitialised Barrier"),
    ("wait for the own block", "MissingFence"),
    ("flip parity", "Race InFlight Uninitialised Deadlock Barrier"),
    // Of a barrier, or of a register.
    ("delete Init", "Barrier Uninitialised"),
    ("count one more", "Deadlock"),
    // A count of 0 is none. Else a phase completes too early: what it guards is in use, its late
    // arrivals count for the next phase, or it passes its waiters by.
    ("count one less", "Barrier Race InFlight Deadlock"),
    ("delete Registers", "Fits"),
    // What blocks count stays behind for the next launch, which only the counter tells.
    ("delete GridArrive", "Deadlock Grid Declared"),
    ("count to one more", ""),
    ("count to one less", "Deadlock"),
    ("delete GridWait", "Race Uninitialised Grid"),
    ("await one more", "Deadlock Race Uninitialised"),
    ("await one less", "Race Uninitialised Grid"),
    ("uneven Registers", "Atomic"),
    ("too few Registers", "Atomic"),
    ("too many Registers", "Atomic"),
    ("more Registers", "Fits"),
    ("complete now", "Atomic"),
    ("complete as a group", "Atomic"),
    ("signal another barrier", "Deadlock Inside Atomic"),
    ("off by a stage", "Race InFlight Deadlock Barrier Uninitialised"),
    ("delete advance", "Race InFlight Uninitialised Deadlock Barrier"),
    ("add a stage", "Inside Deadlock InFlight"),
    ("take a stage", "Race InFlight Uninitialised Deadlock Refused"),
    // Or others do the same as well; of what one thread counts for all, arrivals are too many.
    (
        "remove predicate",
        "Inside InFlight Uninitialised Race WrittenTwice Invalid Deadlock Barrier",
    ),
    ("drop body", "Deadlock Uninitialised Declared Race"),
    ("drop role", "Deadlock Declared InFlight Barrier Fits"),
    // More threads than one at what one alone may do, or more arrivals than are counted, so that a stage is filled while it
    // is read; or two write the same.
    ("widen role up", "Invalid Barrier Deadlock Fits Inside Race InFlight"),
    ("widen role down", "Fits Deadlock Barrier Race InFlight"),
    ("role of all", "Invalid Barrier Deadlock Fits Inside Race"),
    // Nobody does it, or another than who must wait for it.
    ("shift role up", "InFlight Fits Inside Deadlock"),
    ("shift role down", "Deadlock Fits"),
    ("remove swizzle", "Atomic Conflicts"),
    ("narrow swizzle", "Atomic Conflicts"),
];

/// Whether a fault may be reported under a name, if there are names for what was changed.
pub(super) fn is_named(fault: &Fault, name: &str) -> Option<bool> {
    let row = NAMES.iter().find(|row| row.0 == fault.change)?;
    Some(row.1.split(' ').any(|known| known == name))
}

/// Of which kernels (all if there are none), a part of the change and of the line, and why.
#[derive(Debug)]
pub(super) struct Row {
    kernels: Vec<&'static str>,
    change: &'static str,
    line: &'static str,
    why: &'static str,
}

impl Row {
    /// Whether it is about a fault of a kernel.
    pub(super) fn holds(&self, kernel: &str, fault: &Fault) -> bool {
        (self.kernels.is_empty() || self.kernels.contains(&kernel))
            && fault.change.contains(self.change)
            && fault.line.contains(self.line)
    }
}

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/faults/known.txt");
    std::fs::read_to_string(path).unwrap()
});

/// The rows of `known.txt`: below each reason, indented, those that it is the reason of.
static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let (mut why, mut all) = ("", Vec::new());
    for line in TEXT.lines().filter(|line| !line.is_empty()) {
        let mut columns = line.splitn(3, '|').map(str::trim);
        match (columns.next(), columns.next(), columns.next()) {
            (Some(kernels), Some(change), Some(line)) => {
                let kernels = kernels.split(", ").filter(|name| !name.is_empty()).collect();
                all.push(Row { kernels, change, line, why });
            }
            _ => why = line,
        }
    }
    all
});

/// All rows.
pub(super) fn all_rows() -> &'static [Row] {
    &ROWS
}

/// Why a fault makes no difference, by the row that it falls under.
pub(super) fn why(kernel: &str, fault: &Fault) -> Option<&'static str> {
    ROWS.iter().find(|row| row.holds(kernel, fault)).map(|row| row.why)
}
