//! Faults that make no difference, and why.

use super::sites::Fault;
use crate::{element_mutants, mutants, sequence_mutants};

/// Of which kernels (all if it is empty), what the change begins with, a part of the line, and why.
type Row = (&'static str, &'static str, &'static str, &'static str);

const BEYOND: &str = "What is beyond the end is not inside: it is neither read nor stored.";
const LEFT_OVER: &str = "No more than 7 are left over of vectors of 8, for which each is asked.";

const ROWS: &[Row] = &[
    ("", "ends late", "for(@e = 0; @e < 7", LEFT_OVER),
    ("", "ends late", "for(@e = 0; @e < 3", "Likewise of 4."),
    ("columns", "ends late", "for(@i = 0; @i < 7; @i += 1) unroll", LEFT_OVER),
    ("parts", "ends late", "for(@i = 0; @i < 7; @i += 1) unroll", LEFT_OVER),
    ("", "ends late", "for(@tile = @begin;", BEYOND),
    ("", "ends late", "for(@tile = @first;", BEYOND),
    ("", "ends late", "for(@chunk = 0;", BEYOND),
    ("last", "ends late", "for(@step = 0;", BEYOND),
    ("again", "ends late", "for(@i = 0; @i < (@columns", BEYOND),
    ("variance", "ends late", "for(@i = 0; @i < (@N1", BEYOND),
    ("softmax", "ends late", "for(@i = 0; @i < (@N1*@N2", BEYOND),
    (
        "transposed",
        "ends late",
        "for(@c = 0;",
        "There is no further channel in its group: nothing is inside.",
    ),
    ("largest", "ends late", "for(@c = 0;", "The same channel once more, whose maximum stays."),
    (
        "mean",
        "ends late",
        "for(@c = 0;",
        "The same channel once more, in the sum and in the count.",
    ),
    (
        "",
        "ends late",
        "for(@i = 0; @i < 1; @i += 1) unroll",
        "What each thread does is done once more.",
    ),
    ("", "ends late", "for(@deep = 0; @deep < 1", "Likewise."),
    ("", "ends late", "for(@piece = 0; @piece < 1", "Likewise."),
    ("", "ends late", "for(@part = 0; @part < 1", "Likewise."),
    (
        "",
        "ends late",
        "for(@kk = 0; @kk < 1; @kk += 1) unroll { %tile:",
        "Likewise, of a copy to registers.",
    ),
    (
        "",
        "remove predicate",
        "if(64*@chunk + @thread_of_block < @N1)",
        "Within it, elements are asked for once more; what comes after the end is part of no sum that is stored.",
    ),
    ("alike", "doubled", "advance @filling #4", "No weights are left to be brought."),
    ("single", "doubled", "advance @filling #4", "Likewise."),
    (
        "",
        "swapped",
        "Sync<<<#grid, #block>>>() #3 <-> if(@step + 1 < @steps)",
        "Of two stages of keys, the next one's was last read before the step's first meeting.",
    ),
    (
        "threads",
        "delete WaitGroup",
        "#1",
        "Threads first read queries in the first step, which waits once more.",
    ),
    ("causal", "delete WaitGroup", "#1", "Likewise."),
    (
        "",
        "stride of a sum",
        "@groups = max(0, (@all_heads",
        "Groups beyond the last have no heads.",
    ),
    ("", "stride of a sum", "@all_heads = @batch*@heads", "Heads beyond the last are not inside."),
    (
        "",
        "stride of a sum",
        "@steps = max(1, (@keys",
        "Tiles beyond the keys have no weight: each of their keys is asked for.",
    ),
    (
        "gru",
        "count to one",
        "#1",
        "A launch's last count ends the round: that is the other statement's.",
    ),
    (
        "",
        "swapped",
        "for(@k = 0; @k < 3; @k += 1) { WaitGroup<copy, 0><<<#grid, #one_4>>>() #1 <-> if(0 < @step)",
        "Products of this step's input need not be there before the former step is waited for.",
    ),
    (
        "",
        "swapped",
        "<- Move<<<#grid, #one>>>(%r) <-> Sync",
        "Nothing in the block reads the result.",
    ),
    (
        "turns",
        "dropped",
        "%factors[@half] <- UnaryPointwise<exp2><<<#grid, #one>>>(%factors[@half]) #1",
        "Before the first tile nothing was summed: the factor is used by nobody.",
    ),
];

/// Why a fault makes no difference, where a row says so; those of the other tests of mutants hold here as well.
pub(super) fn excuse(kernel: &str, fault: &Fault) -> Option<&'static str> {
    let change = if fault.change == "dropped" { "delete" } else { fault.change };
    let told = format!("{change}: {}", fault.line);
    let deleted = format!("{change} {}", fault.line);
    let own = ROWS.iter().find(|(of, change, line, _)| {
        (of.is_empty() || *of == kernel)
            && fault.change.starts_with(change)
            && fault.line.contains(line)
    });
    let mut others = element_mutants::EQUIVALENT.iter().chain(sequence_mutants::known());
    let other = others.find(|(of, part, _)| {
        (of.is_empty() || *of == kernel) && (told.contains(part) || deleted.contains(part))
    });
    own.map(|row| row.3)
        .or_else(|| mutants::excuse(kernel, fault.change, &fault.line))
        .or_else(|| other.map(|row| row.2))
}
