//! Views of data and threads: the paper's figures, offset for offset, and every element once.

use graphene_ir::Result;
use graphene_ir::index::{Expr, Var};
use graphene_ir::kernel::thread_var;
use graphene_ir::layout::{IntTuple, Layout, Tiler};
use graphene_ir::tensor::{Agent, Memory, Scalar, Tensor, Threads, View, ViewOp};

use crate::index::Random;
use crate::support::holds;

fn tensor(dims: Vec<Layout<Expr>>) -> Tensor {
    Tensor::new(View::buffer(&dims), Scalar::F32, Memory::Global)
}

fn layout(modes: &[(i64, i64)]) -> Layout {
    Layout::of_modes(modes).unwrap()
}

fn tile(modes: &[(i64, i64)]) -> Tiler {
    Tiler::Layout(layout(modes))
}

/// The offset of an element of a view whose levels all have two dimensions.
fn offset(tensor: &Tensor, coords: &[[i64; 2]]) -> i64 {
    let scalar = coords.iter().fold(tensor.clone(), |tensor, coord| {
        tensor.apply(&ViewOp::Index(IntTuple::list(*coord))).unwrap()
    });
    assert!(scalar.view.levels().is_empty());
    scalar.view.offset().constant().unwrap()
}

/// Figure 3: rows of offsets, as the paper draws them.
fn check_grid(tensor: &Tensor, text: &str, rows: &[&[i64]]) {
    assert_eq!(tensor.to_string(), text);
    for (i, row) in (0..).zip(rows) {
        for (j, expected) in (0..).zip(*row) {
            assert_eq!(offset(tensor, &[[i, j]]), *expected, "{text} at {i},{j}");
        }
    }
}

#[test]
fn layouts_of_figure_3() {
    let pair = |a: (i64, i64), b: (i64, i64)| {
        Layout::tuple(vec![Layout::of(a.0, a.1), Layout::of(b.0, b.1)]).unwrap()
    };
    check_grid(
        &tensor(Layout::columns([4, 8])),
        "[4,8:1,4].fp32.GL",
        &[
            &[0, 4, 8, 12, 16, 20, 24, 28],
            &[1, 5, 9, 13, 17, 21, 25, 29],
            &[2, 6, 10, 14, 18, 22, 26, 30],
            &[3, 7, 11, 15, 19, 23, 27, 31],
        ],
    );
    check_grid(
        &tensor(Layout::rows([4, 8])),
        "[4,8:8,1].fp32.GL",
        &[
            &[0, 1, 2, 3, 4, 5, 6, 7],
            &[8, 9, 10, 11, 12, 13, 14, 15],
            &[16, 17, 18, 19, 20, 21, 22, 23],
            &[24, 25, 26, 27, 28, 29, 30, 31],
        ],
    );
    check_grid(
        &tensor(vec![Layout::of(4, 2), pair((2, 1), (4, 8))]),
        "[4,(2,4):2,(1,8)].fp32.GL",
        &[
            &[0, 1, 8, 9, 16, 17, 24, 25],
            &[2, 3, 10, 11, 18, 19, 26, 27],
            &[4, 5, 12, 13, 20, 21, 28, 29],
            &[6, 7, 14, 15, 22, 23, 30, 31],
        ],
    );
    let d = tensor(vec![pair((2, 1), (2, 4)), pair((2, 2), (4, 8))]);
    check_grid(
        &d,
        "[(2,2),(2,4):(1,4),(2,8)].fp32.GL",
        &[
            &[0, 2, 8, 10, 16, 18, 24, 26],
            &[1, 3, 9, 11, 17, 19, 25, 27],
            &[4, 6, 12, 14, 20, 22, 28, 30],
            &[5, 7, 13, 15, 21, 23, 29, 31],
        ],
    );
    // D[0,3] = D[(0,0),(1,1)] = 10
    let [zero, one] = [0, 1].map(|at| IntTuple::Int(Expr::from(at)));
    let both = |a: &IntTuple<Expr>, b: &IntTuple<Expr>| IntTuple::Tuple(vec![a.clone(), b.clone()]);
    let at = d.apply(&ViewOp::Index(vec![both(&zero, &zero), both(&one, &one)])).unwrap();
    assert!(at.view.offset().is(10));
}

/// Figure 4: the tiles of `A:[4,8:1,4]`, each as rows of offsets.
fn check_tiles(modes: [&[(i64, i64)]; 2], text: &str, tiles: [[[i64; 4]; 2]; 4]) {
    let a = tensor(Layout::columns([4, 8]));
    let tiled = a.apply(&ViewOp::Tile(modes.map(tile).to_vec())).unwrap();
    assert_eq!(tiled.to_string(), text);
    for (at, rows) in (0..).zip(tiles) {
        for (i, row) in (0..).zip(rows) {
            for (j, expected) in (0..).zip(row) {
                assert_eq!(offset(&tiled, &[[at / 2, at % 2], [i, j]]), expected, "{text} {at}");
            }
        }
    }
}

#[test]
fn tiles_of_figure_4() {
    check_tiles(
        [&[(2, 1)], &[(4, 1)]],
        "[2,2:2,16].[2,4:1,4].fp32.GL",
        [
            [[0, 4, 8, 12], [1, 5, 9, 13]],
            [[16, 20, 24, 28], [17, 21, 25, 29]],
            [[2, 6, 10, 14], [3, 7, 11, 15]],
            [[18, 22, 26, 30], [19, 23, 27, 31]],
        ],
    );
    check_tiles(
        [&[(2, 2)], &[(4, 1)]],
        "[2,2:1,16].[2,4:2,4].fp32.GL",
        [
            [[0, 4, 8, 12], [2, 6, 10, 14]],
            [[16, 20, 24, 28], [18, 22, 26, 30]],
            [[1, 5, 9, 13], [3, 7, 11, 15]],
            [[17, 21, 25, 29], [19, 23, 27, 31]],
        ],
    );
    check_tiles(
        [&[(2, 2)], &[(2, 1), (2, 4)]],
        "[2,2:1,8].[2,(2,2):2,(4,16)].fp32.GL",
        [
            [[0, 4, 16, 20], [2, 6, 18, 22]],
            [[8, 12, 24, 28], [10, 14, 26, 30]],
            [[1, 5, 17, 21], [3, 7, 19, 23]],
            [[9, 13, 25, 29], [11, 15, 27, 31]],
        ],
    );
}

fn threads(shapes: Vec<Layout<Expr>>) -> Threads {
    Threads { view: View::buffer(&shapes), agent: Agent::Thread }
}

fn check_threads(threads: &Threads, text: &str, coordinates: &[&str]) {
    assert_eq!(threads.to_string(), text);
    let found = threads.coordinates(&thread_var(256));
    assert_eq!(found.iter().map(Expr::to_string).collect::<Vec<_>>(), coordinates);
}

/// Warps of a block of 256 threads, of which the paper's figures show one.
fn warp() -> Threads {
    let warps =
        threads(Layout::columns([256])).apply(&ViewOp::Tile(vec![Tiler::Size(32)])).unwrap();
    let warp = warps.apply(&ViewOp::Index(IntTuple::list([Var::new("w", Some(7))]))).unwrap();
    check_threads(&warp, "[32:1].thread", &["@thread%32"]);
    warp
}

#[test]
fn groups_of_figure_5() {
    let groups = warp().apply(&ViewOp::Tile(vec![Tiler::Size(8)])).unwrap();
    check_threads(&groups, "[4:8].[8:1].thread", &["(@thread/8)%4", "@thread%8"]);
    let square =
        groups.apply(&ViewOp::Reshape(0, vec![layout(&[(2, 2)]), layout(&[(2, 1)])])).unwrap();
    check_threads(
        &square,
        "[2,2:16,8].[8:1].thread",
        &["(@thread/16)%2", "(@thread/8)%2", "@thread%8"],
    );
    let alone = threads(Layout::columns([32])).apply(&ViewOp::Tile(vec![Tiler::Size(8)])).unwrap();
    check_threads(&alone, "[4:8].[8:1].thread", &["@thread/8", "@thread%8"]);
}

#[test]
fn quad_pairs_of_figure_6() {
    let pairs = warp().apply(&ViewOp::Tile(vec![tile(&[(4, 1), (2, 16)])])).unwrap();
    check_threads(
        &pairs,
        "[4:4].[(4,2):(1,16)].thread",
        &["(@thread/4)%4", "@thread%4", "(@thread/16)%2"],
    );
}

#[test]
fn blocks_of_section_5_4() {
    let grid = Threads { view: View::buffer(&Layout::columns([8, 8])), agent: Agent::Block };
    let block = Var::new("block", None);
    let found: Vec<String> = grid.coordinates(&block).iter().map(Expr::to_string).collect();
    assert_eq!(found, ["@block%8", "@block/8"]);
}

/// A tile of up to three modes that divides `size`.
fn any_tile(random: &mut Random, size: i64) -> Tiler {
    let mut modes = Vec::new();
    let mut extent = 1;
    while size % (extent * 2) == 0 && modes.len() < 3 && random.below(3) > 0 {
        let (gap, count) = (1 << random.below(3), 1 << (1 + random.below(2)));
        if size % (extent * gap * count) != 0 {
            break;
        }
        modes.push((count, extent * gap));
        extent *= gap * count;
    }
    match modes.len() {
        0 => Tiler::Whole,
        _ => tile(&modes),
    }
}

/// New dimensions for `size` elements, a power of two, in any order.
fn any_dims(random: &mut Random, size: i64) -> Vec<Layout> {
    let mut dims: Vec<Vec<(i64, i64)>> = vec![vec![]];
    let mut extent = 1;
    while extent < size {
        let count = (1 << (1 + random.below(3))).min(size / extent);
        if random.below(2) == 0 {
            dims.push(Vec::new());
        }
        let last = dims.last_mut().unwrap();
        last.insert(usize::try_from(random.below(last.len() as u64 + 1)).unwrap(), (count, extent));
        extent *= count;
    }
    dims.retain(|modes| !modes.is_empty());
    if random.below(2) == 0 {
        dims.reverse()
    }
    dims.iter().map(|modes| layout(modes)).collect()
}

/// One or more operations on 256 threads that keep all of them.
fn any_threads(random: &mut Random) -> Result<Threads> {
    let mut found =
        threads(Layout::columns([[8, 32], [16, 16], [256, 1]][random.below(3) as usize]));
    for _ in 0..=random.below(3) {
        let level = &found.view.levels()[0];
        let sizes: Vec<i64> =
            level.modes().iter().map(|dim| dim.size().constant().unwrap()).collect();
        let op = match random.below(2) {
            0 => ViewOp::Tile(sizes.iter().map(|size| any_tile(random, *size)).collect()),
            _ => {
                let dims = any_dims(random, sizes.iter().product());
                if dims.is_empty() {
                    continue;
                }
                ViewOp::Reshape(0, dims)
            }
        };
        found = found.apply(&op)?;
    }
    Ok(found)
}

#[test]
fn every_thread_has_its_own_coordinates() {
    let mut random = Random::new(7);
    let own = thread_var(256);
    let mut refused = 0;
    for _ in 0..300 {
        let Ok(found) = any_threads(&mut random) else {
            refused += 1;
            continue;
        };
        let strides: Vec<i64> = found
            .view
            .leaves()
            .iter()
            .map(|leaf| found.view.stride(leaf).constant().unwrap())
            .collect();
        let sizes: Vec<i64> =
            found.view.leaves().iter().map(|leaf| leaf.size.constant().unwrap()).collect();
        assert_eq!(sizes.iter().product::<i64>(), 256, "{found}");
        for thread in 0..256 {
            let mut back = 0;
            for ((coordinate, stride), size) in
                found.coordinates(&own).iter().zip(&strides).zip(&sizes)
            {
                let value = coordinate.value(&|_| Some(thread)).unwrap();
                assert!((0..*size).contains(&value), "{found}: {coordinate} of {thread}");
                back += value * stride;
            }
            assert_eq!(back, thread, "{found}");
        }
    }
    assert!(refused < 150, "{refused}");
}

/// Of an axis of any size, and known or not: whether tiles of any size, and elements and tiles of those,
/// lie within is known of each number.
#[test]
fn what_lies_beyond_an_axis_is_known_to() {
    let n = Var::new("n", None);
    let symbols = [Var::new("i", None), Var::new("j", None)];
    let sizes = (1..=4_i64).flat_map(|size| [(size, Expr::from(size)), (size, Expr::from(&n))]);
    for (size, axis) in sizes {
        for (outer, inner) in (1..=5).flat_map(|outer| (1..=outer).map(move |inner| (outer, inner)))
        {
            if outer % inner != 0 {
                continue;
            }
            let of = tensor(Layout::rows([axis.clone(), Expr::from(3)]));
            let tiled = |of: Tensor, size: i64, at: &Var| {
                let tiles =
                    of.apply(&ViewOp::Tile(vec![Tiler::Size(size), Tiler::Size(1)])).unwrap();
                let at = [Expr::from(at), Expr::from(0)];
                tiles.apply(&ViewOp::Index(IntTuple::list(at))).unwrap()
            };
            let all = tiled(tiled(of, outer, &symbols[0]), inner, &symbols[1]);
            let flat = all.apply(&ViewOp::Reshape(0, vec![layout(&[(inner, 1)])])).unwrap();
            for (i, j) in (0..5).flat_map(|i| (0..outer / inner).map(move |j| (i, j))) {
                let value = |var: &Var| {
                    Some([i, j, size][usize::from(*var == symbols[1]) + 2 * usize::from(*var == n)])
                };
                let last = i * outer + j * inner + inner - 1;
                for view in [&all.view, &flat.view] {
                    let inside = view.inside().iter().all(|cond| holds(cond, &value).unwrap());
                    assert_eq!(inside, last < size, "{view} at {i},{j} of {size}");
                }
            }
        }
    }
}

#[test]
fn what_does_not_count_every_element_is_refused() {
    let block = threads(Layout::columns([32]));
    let reshaped = |dims: &[&[(i64, i64)]]| {
        let dims = dims.iter().map(|modes| Layout::of_modes(modes)).collect::<Result<_>>()?;
        block.apply(&ViewOp::Reshape(0, dims))
    };
    let tiled = |modes: &[(i64, i64)]| {
        block.apply(&ViewOp::Tile(vec![Tiler::Layout(Layout::of_modes(modes)?)]))
    };
    assert!(reshaped(&[&[(4, 1)], &[(8, 4)]]).is_ok());
    for dims in [
        &[&[(4, 1)][..], &[(8, 1)]][..],
        &[&[(4, 2)], &[(8, 4)]],
        &[&[(4, 1)], &[(4, 4)]],
        &[&[(0, 1)], &[(8, 4)]],
        &[&[(2, 100)], &[(16, 1)]],
        &[&[(i64::MAX, 1)], &[(i64::MAX, i64::MAX)]],
        &[&[], &[(32, 1)]],
    ] {
        assert!(reshaped(dims).is_err(), "{dims:?}");
    }
    for modes in [&[(2, 1), (2, 1)][..], &[(0, 1)], &[(2, 0)], &[(-1, 1)], &[]] {
        assert!(tiled(modes).is_err(), "{modes:?}");
    }
    assert!(block.apply(&ViewOp::Tile(vec![Tiler::Size(0)])).is_err());
}
