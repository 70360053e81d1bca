//! Fragments, as the PTX manual draws them: each register of a lane, in the order in which the
//! instruction lists them, and the row and column that it says the register is.

use graphene_ir::fragment::{ALL, Fragment, wgmma_c};
use graphene_ir::layout::Layout;

/// The row and the column of a lane's `i`-th value, which the manual says by formulas.
type Manual = fn(usize, usize) -> [usize; 2];

/// `groupID` and `threadID_in_group` of the manual.
fn groups(lane: usize) -> (usize, usize) {
    (lane >> 2, lane % 4)
}

/// Each fragment, the elements of an operand in the order of the instruction's registers, and the
/// formulas (PTX ISA, "Matrix fragments for mma.m16n8k16" and its like).
const MANUAL: &[(&str, &[&[i64]], Manual)] = &[
    // "mma.m16n8k16": c0 to c3.
    ("MMA_16X8_C", &[&[0, 0], &[0, 1], &[1, 0], &[1, 1]], |lane, i| {
        let (group, thread) = groups(lane);
        [if i < 2 { group } else { group + 8 }, thread * 2 + (i & 1)]
    }),
    // a0 to a7 of 16-bit types.
    (
        "MMA_16X16_A",
        &[
            &[0, 0, 0],
            &[0, 0, 1],
            &[1, 0, 0],
            &[1, 0, 1],
            &[0, 1, 0],
            &[0, 1, 1],
            &[1, 1, 0],
            &[1, 1, 1],
        ],
        |lane, i| {
            let (group, thread) = groups(lane);
            let row = if matches!(i, 0 | 1 | 4 | 5) { group } else { group + 8 };
            [row, thread * 2 + (i & 1) + if i >= 4 { 8 } else { 0 }]
        },
    ),
    // b0 to b3.
    ("MMA_16X8_B", &[&[0, 0], &[0, 1], &[1, 0], &[1, 1]], |lane, i| {
        let (group, thread) = groups(lane);
        [thread * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, group]
    }),
    // "mma.m16n8k8" of 16-bit types: b0 and b1.
    ("MMA_8X8_B", &[&[0], &[1]], |lane, i| {
        let (group, thread) = groups(lane);
        [thread * 2 + i, group]
    }),
    // Of .tf32: a0 to a3, and b0 and b1.
    ("MMA_16X8_A_TF32", &[&[0, 0], &[1, 0], &[0, 1], &[1, 1]], |lane, i| {
        let (group, thread) = groups(lane);
        [if i % 2 == 0 { group } else { group + 8 }, if i < 2 { thread } else { thread + 4 }]
    }),
    ("MMA_8X8_B_TF32", &[&[0], &[1]], |lane, i| {
        let (group, thread) = groups(lane);
        [if i == 0 { thread } else { thread + 4 }, group]
    }),
    // "ldmatrix": a row is four threads' fragments of two elements.
    ("MATRIX_8X8", &[&[0], &[1]], |lane, i| [lane / 4, 2 * (lane % 4) + i]),
    ("MATRIX_8X8_TRANS", &[&[0], &[1]], |lane, i| [2 * (lane % 4) + i, lane / 4]),
    // "mma.m8n8k4" of .f16 with .f32 sums; threads are numbered within their quad pair, where the
    // manual has lanes: X = (lane & 1) + (i & 2), and four further down in the upper quad.
    (
        "QUAD_8X8_C",
        &[&[0, 0], &[0, 1], &[1, 0], &[1, 1], &[0, 2], &[0, 3], &[1, 2], &[1, 3]],
        |thread, i| {
            let row = (thread & 1) + (i & 2) + if thread < 4 { 0 } else { 4 };
            [row, (i & 4) + (thread & 2) + (i & 1)]
        },
    ),
    ("QUAD_8X4_A", &[&[0], &[1], &[2], &[3]], |thread, i| {
        [if thread < 4 { thread % 4 } else { thread % 4 + 4 }, i]
    }),
    ("QUAD_4X8_B", &[&[0], &[1], &[2], &[3]], |thread, i| {
        [i, if thread < 4 { thread % 4 } else { thread % 4 + 4 }]
    }),
    // The same registers by pairs of columns, rows, and columns of a pair.
    (
        "QUAD_8X8_C_PAIRS",
        &[
            &[0, 0, 0],
            &[0, 0, 1],
            &[0, 1, 0],
            &[0, 1, 1],
            &[1, 0, 0],
            &[1, 0, 1],
            &[1, 1, 0],
            &[1, 1, 1],
        ],
        |thread, i| {
            let row = (thread & 1) + (i & 2) + if thread < 4 { 0 } else { 4 };
            [row, (i & 4) + (thread & 2) + (i & 1)]
        },
    ),
    // Of B in rows: a step along K a thread, four columns of it.
    ("QUAD_4X8_B_ROW", &[&[0], &[1], &[2], &[3]], |thread, i| {
        [thread % 4, if thread < 4 { i } else { i + 4 }]
    }),
    // "wgmma", fragment of A: each warp of the four has 16 rows.
    (
        "WGMMA_64X16_A",
        &[
            &[0, 0, 0],
            &[0, 0, 1],
            &[1, 0, 0],
            &[1, 0, 1],
            &[0, 1, 0],
            &[0, 1, 1],
            &[1, 1, 0],
            &[1, 1, 1],
        ],
        |thread, i| {
            let (warp, lane) = (thread / 32, thread % 32);
            let row = 16 * warp + lane / 4 + if i % 4 >= 2 { 8 } else { 0 };
            [row, 2 * (lane % 4) + i % 2 + if i >= 4 { 8 } else { 0 }]
        },
    ),
];

/// The registers are those of the manual, and each element of the tile is held.
fn check_fragment(
    name: &str,
    fragment: &Fragment,
    registers: &[Vec<i64>],
    manual: impl Fn(usize, usize) -> [usize; 2],
) {
    let threads = usize::try_from(fragment.layout().modes()[0].size()).unwrap();
    let values = fragment.layout().modes()[1].modes();
    // Elements are numbered with the first dimension fastest.
    let number = |register: &Vec<i64>| {
        let along = values.iter().zip(register).rev();
        along.fold(0, |number, (mode, at)| number * mode.size() + at) as usize
    };
    let mut places = Vec::new();
    for thread in 0..threads {
        let held = fragment.places(thread);
        assert_eq!(held.len(), registers.len(), "{name}");
        for (i, register) in registers.iter().enumerate() {
            let place = held[number(register)];
            assert_eq!(place, manual(thread, i), "{name}: register {i} of thread {thread}");
            places.push(place);
        }
    }
    places.sort_unstable();
    let last = *places.last().unwrap();
    assert_eq!(places.len(), (last[0] + 1) * (last[1] + 1), "{name}");
    places.dedup();
    assert_eq!(places.len(), threads * registers.len(), "{name}: an element is held twice");
}

#[test]
fn registers_are_the_manuals() {
    let mut checked: Vec<&str> = Vec::new();
    for (name, registers, manual) in MANUAL {
        let fragment = ALL.iter().find(|row| row.0 == *name).unwrap().1;
        let registers: Vec<Vec<i64>> = registers.iter().map(|one| one.to_vec()).collect();
        check_fragment(name, fragment, &registers, manual);
        checked.push(name);
    }
    assert!(ALL.iter().all(|row| checked.contains(&row.0)), "{checked:?}");
    for eights in 1..=32 {
        // "wgmma", fragment of D: d0 to d3 of each eight columns.
        let registers = (0..4 * eights).map(|i| vec![i / 2 % 2, i / 4, i % 2]).collect::<Vec<_>>();
        check_fragment("wgmma_c", wgmma_c(eights).unwrap(), &registers, |thread, i| {
            let (warp, lane) = (thread / 32, thread % 32);
            let row = 16 * warp + lane / 4 + if i % 4 >= 2 { 8 } else { 0 };
            [row, i / 4 * 8 + 2 * (lane % 4) + i % 2]
        });
    }
    assert_eq!((wgmma_c(0), wgmma_c(33)), (None, None));
}

#[test]
fn only_threads_and_values_of_coordinates_are_fragments() {
    let of = |text: &str| Fragment::of(text.parse::<Layout>().unwrap());
    assert!(of("(4,2):(1@0,1@1)").is_some());
    for text in ["4:1@0", "(2,2,2):(1@0,1@1,2@0)", "(4,2):(1@0,1@2)", "(4,2):(-1@0,1@1)"] {
        assert!(of(text).is_none(), "{text}");
    }
}
