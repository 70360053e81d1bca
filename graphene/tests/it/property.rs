//! Post-conditions checked on every coordinate, over small layouts enumerated exhaustively.
//!
//! Existence is decided here by search, not by the conditions of the implementation, so that an
//! error where there is an answer fails just as a wrong answer does.

use std::collections::BTreeSet;

use graphene_ir::index::{Expr, Var};
use graphene_ir::layout::{
    Composed, IntTuple, Layout, Outer, Stride, Swizzle, Tiler, blocked_product, coalesce,
    complement, composition, composition_by, crd2idx, flat_divide, flat_product, flatten, idx2crd,
    left_inverse, logical_divide, logical_product, raked_product, right_inverse, tile_to_shape,
    tiled_divide, tiled_product, zipped_divide, zipped_product,
};
use graphene_ir::{Error, Result};

/// All flat layouts of `modes` modes with these sizes and strides.
fn enumerate(modes: usize, sizes: &[i64], strides: &[i64]) -> Vec<Layout> {
    let mut leaves = Vec::new();
    for &size in sizes {
        for &stride in strides {
            leaves.push(Layout::mode(size, stride).unwrap());
        }
    }
    let mut tuples: Vec<Vec<Layout>> = vec![Vec::new()];
    for _ in 0..modes {
        tuples = tuples
            .iter()
            .flat_map(|tuple| {
                leaves.iter().map(move |leaf| [&tuple[..], std::slice::from_ref(leaf)].concat())
            })
            .collect();
    }
    let wrap = |mut tuple: Vec<Layout>| match tuple.len() {
        1 => tuple.remove(0),
        _ => Layout::tuple(tuple).unwrap(),
    };
    tuples.into_iter().map(wrap).collect()
}

/// A mix of ranks, sizes and strides, with nested ones.
fn samples() -> Vec<Layout> {
    let mut layouts = enumerate(1, &[1, 2, 3, 4, 6], &[-1, 0, 1, 2, 3, 4, 6, 12]);
    layouts.extend(enumerate(2, &[1, 2, 3, 4], &[0, 1, 2, 3, 4, 8]));
    layouts.extend(enumerate(3, &[2, 3], &[0, 1, 2, 4, 6]));
    let text =
        ["((2,2),3):((24,2),8)", "(2,(1,6)):(1,(6,2))", "(4,(2,2)):(2,(1,8))", "((4)):((3))"];
    layouts.extend(text.map(|text| text.parse().unwrap()));
    layouts
}

fn ints(list: &[i64]) -> IntTuple {
    IntTuple::Tuple(list.iter().copied().map(IntTuple::Int).collect())
}

fn offsets(layout: &Layout) -> Vec<i64> {
    (0..layout.size()).map(|i| at(layout, i)).collect()
}

/// The offset of a coordinate of a layout whose strides are numbers.
fn at(layout: &Layout, index: i64) -> i64 {
    layout.at(&index).unwrap().number().unwrap()
}

/// Sizes and strides.
fn leaves(layout: &Layout) -> Vec<(i64, i64)> {
    let leaves = layout.leaves().into_iter();
    leaves.map(|leaf| (leaf.size, leaf.stride.number().unwrap())).collect()
}

/// Whether some layout is this function, by trying every size for the first mode.
fn is_layout(table: &[i64]) -> bool {
    table.len() == 1
        || (2..=table.len()).filter(|n| table.len().is_multiple_of(*n)).any(|n| {
            let step = table[1];
            let first = |i: usize| i64::try_from(i % n).unwrap() * step;
            let rest: Vec<i64> = table.iter().step_by(n).copied().collect();
            table.iter().enumerate().all(|(i, &x)| x == first(i) + rest[i / n]) && is_layout(&rest)
        })
}

/// Whether a layout that refines `b` is `i -> a(b(i))`.
fn composable(a: &Layout, b: &Layout) -> bool {
    let tables: Vec<Vec<i64>> = (leaves(b).iter())
        .map(|&(size, stride)| (0..size).map(|c| at(a, stride * c)).collect())
        .collect();
    tables.iter().all(|table| is_layout(table))
        && (0..b.size()).all(|i| {
            let mut rest = usize::try_from(i).unwrap();
            let mut sum = 0;
            for table in &tables {
                sum += table[rest % table.len()];
                rest /= table.len();
            }
            sum == at(a, at(b, i))
        })
}

/// Whether every coordinate of `coarse` is one of `fine`.
fn refines(fine: &IntTuple, coarse: &IntTuple) -> bool {
    match (fine, coarse) {
        (_, IntTuple::Int(size)) => fine.product() == Ok(*size),
        (IntTuple::Tuple(fine), IntTuple::Tuple(coarse)) => {
            fine.len() == coarse.len() && fine.iter().zip(coarse).all(|(f, c)| refines(f, c))
        }
        (IntTuple::Int(_), IntTuple::Tuple(_)) => false,
    }
}

/// Returns whether there is a composition.
fn check_composition(a: &Layout, b: &Layout) -> bool {
    match composition(a, b) {
        Ok(r) => {
            assert!(refines(&r.shape(), &b.shape()), "{a} o {b} = {r}");
            for i in 0..b.size() {
                assert_eq!(at(&r, i), at(a, at(b, i)), "{a} o {b} = {r} at {i}");
            }
            true
        }
        Err(Error::Divisibility { .. } | Error::Carry { .. }) => {
            assert!(!composable(a, b), "{a} o {b} exists");
            false
        }
        Err(error) => panic!("{a} o {b}: {error}"),
    }
}

#[test]
fn compositions() {
    let mut left = enumerate(1, &[1, 4, 6], &[-2, 0, 3]);
    left.extend(enumerate(2, &[1, 2, 3, 4, 6], &[-1, 0, 1, 2, 4]));
    left.extend(enumerate(3, &[2, 3, 4], &[1, 2, 5, 7]));
    let mut right = enumerate(1, &[1, 2, 3, 4, 6, 8, 12], &[-3, -1, 0, 1, 2, 3, 4, 5, 6, 8]);
    right.extend(enumerate(2, &[1, 2, 3, 4], &[-2, 0, 1, 2, 3, 4, 6]));
    let (mut exist, mut fail) = (0, 0);
    for a in &left {
        for b in &right {
            if check_composition(a, b) { exist += 1 } else { fail += 1 }
        }
    }
    assert!(exist > 100_000 && fail > 100_000, "{exist} {fail}");
}

#[test]
fn compositions_by_mode() {
    let tilers = ["2:1", "3:2", "(2,2):(2,1)"].map(|text| text.parse::<Layout>().unwrap());
    for a in samples().iter().filter(|a| a.rank() >= 2) {
        for b in &tilers {
            let parts: Result<Vec<_>> =
                a.modes()[..2].iter().map(|mode| composition(mode, b)).collect();
            let tiler = Tiler::Modes(vec![b.clone().into(), b.clone().into()]);
            assert_eq!(composition_by(a, &tiler), parts.and_then(Layout::tuple));
        }
    }
}

#[test]
fn coalesced_is_the_same_function() {
    for a in samples() {
        let r = coalesce(&a).unwrap();
        assert_eq!(offsets(&r), offsets(&a), "{a} -> {r}");
        assert!(r.depth() <= 1);
        let merged = leaves(&r);
        assert!(merged.len() == 1 || merged.iter().all(|leaf| leaf.0 > 1), "{a} -> {r}");
        assert!(merged.windows(2).all(|w| w[0].0 * w[0].1 != w[1].1), "{a} -> {r}");
        let flat = flatten(&a).unwrap();
        assert_eq!((offsets(&flat), leaves(&flat)), (offsets(&a), leaves(&a)));
        assert!(flat.depth() <= 1);
    }
}

/// The offsets of the repetitions that fill `[0,limit)`, if there are any: the least integer not
/// yet reached can only be the start of the next one.
fn repetitions(tile: &BTreeSet<i64>, limit: i64) -> Option<Vec<i64>> {
    let mut reached = BTreeSet::new();
    let mut starts = Vec::new();
    while let Some(start) = (0..limit).find(|i| !reached.contains(i)) {
        starts.push(start);
        if !tile.iter().all(|offset| reached.insert(start + offset)) {
            return None;
        }
    }
    Some(starts)
}

fn check_complement(a: &Layout, cotarget: i64) {
    let tile: BTreeSet<i64> = offsets(a).into_iter().collect();
    // Modes of stride 0 aside, the layout must be injective.
    let distinct: i64 = leaves(a).iter().filter(|leaf| leaf.1 != 0).map(|leaf| leaf.0).product();
    let injective = i64::try_from(tile.len()) == Ok(distinct);
    let cosize = tile.last().unwrap() + 1;
    match complement(a, &cotarget) {
        Ok(r) => {
            let starts = offsets(&r);
            assert!(injective, "{a}");
            assert!(starts.windows(2).all(|w| w[0] < w[1]), "complement({a},{cotarget}) = {r}");
            let mut reached = BTreeSet::new();
            for start in &starts {
                for offset in &tile {
                    assert!(reached.insert(start + offset), "complement({a},{cotarget}) = {r}");
                }
            }
            let end = i64::try_from(reached.len()).unwrap();
            assert_eq!(reached.last(), Some(&(end - 1)), "complement({a},{cotarget}) = {r}");
            // The starts are the only ones there can be, and no fewer fill the target.
            assert_eq!(repetitions(&tile, end), Some(starts), "complement({a},{cotarget}) = {r}");
            let fills = |end: &i64| {
                let starts = repetitions(&tile, *end).unwrap();
                i64::try_from(starts.len() * tile.len()) == Ok(*end)
            };
            assert_eq!((cotarget..).find(fills), Some(end), "complement({a},{cotarget}) = {r}");
        }
        Err(Error::NoTiling { .. }) => {
            assert!(!injective || repetitions(&tile, 4 * cosize).is_none(), "{a}");
        }
        Err(error) => {
            assert!(matches!(error, Error::NegativeStride { .. }));
            assert!(leaves(a).iter().any(|leaf| leaf.1 < 0 && leaf.0 > 1));
        }
    }
}

#[test]
fn complements() {
    for a in samples() {
        for cotarget in [1, 2, 6, 24, 25, 48] {
            check_complement(&a, cotarget);
        }
        assert_eq!(complement(&a, &0), Err(Error::Size(0)));
    }
}

#[test]
fn inverses() {
    let (mut left, mut largest) = (0, 0);
    for a in samples() {
        let r = right_inverse(&a).unwrap();
        for i in 0..r.size() {
            assert_eq!(at(&a, at(&r, i)), i, "right_inverse({a}) = {r}");
        }
        largest = largest.max(r.size());
        let distinct: BTreeSet<i64> = offsets(&a).into_iter().collect();
        match left_inverse(&a) {
            Ok(l) => {
                left += 1;
                let plain = leaves(&a).iter().all(|leaf| leaf.1 != 0 || leaf.0 == 1);
                for i in 0..a.size() {
                    let offset = at(&a, i);
                    let back = at(&l, offset);
                    assert_eq!(at(&a, back), offset, "left_inverse({a}) = {l}");
                    assert!(!plain || back == i, "left_inverse({a}) = {l}");
                }
            }
            Err(Error::NotInjective { offset, .. }) => {
                assert!(offsets(&a).iter().filter(|x| **x == offset).count() > 1, "{a}");
            }
            Err(Error::NoTiling { .. } | Error::NegativeStride { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        // A compact layout has both inverses, and they agree.
        if distinct.len() == offsets(&a).len()
            && Ok(a.size()) == i64::try_from(distinct.len())
            && distinct.last() == Some(&(a.size() - 1))
            && distinct.first() == Some(&0)
        {
            assert_eq!(left_inverse(&a), Ok(r.clone()), "{a}");
            assert_eq!(r.size(), a.size(), "{a}");
        }
    }
    assert!(left > 100 && largest > 10);
}

#[test]
fn divisions() {
    let tiles = ["1:0", "2:1", "4:2", "2:3", "(2,2):(1,4)", "(2,2):(2,1)", "5:1"];
    let mut exist = 0;
    for a in samples() {
        for tile in tiles.map(|tile| tile.parse::<Layout>().unwrap()) {
            let tiler = Tiler::from(tile.clone());
            let rest = complement(&tile, &a.size()).unwrap();
            let both = Layout::tuple(vec![tile.clone(), rest.clone()]).unwrap();
            let Ok(r) = logical_divide(&a, &tiler) else {
                assert!(!composable(&a, &both), "{a} / {tile}");
                continue;
            };
            exist += 1;
            assert_eq!(r.rank(), 2);
            for j in 0..rest.size() {
                for i in 0..tile.size() {
                    let position = at(&tile, i) + at(&rest, j);
                    assert_eq!(at(&r, i + tile.size() * j), at(&a, position), "{a} / {tile} = {r}");
                }
            }
            // Every element of `a` is in one tile.
            let reached: BTreeSet<i64> = offsets(&both).into_iter().collect();
            assert_eq!(i64::try_from(reached.len()), Ok(both.size()));
            assert!((0..a.size()).all(|i| reached.contains(&i)));
            assert_eq!(zipped_divide(&a, &tiler).as_ref(), Ok(&r));
        }
    }
    assert!(exist > 500, "{exist}");
}

#[test]
fn products() {
    let repeats = ["1:0", "3:1", "4:2", "(2,3):(3,1)", "3:0", "(2,2):(1,4)"];
    let mut exist = 0;
    for a in samples() {
        for b in repeats.map(|repeat| repeat.parse::<Layout>().unwrap()) {
            let cotarget = a.size() * b.cosize();
            let starts = complement(&a, &cotarget);
            let Ok(r) = logical_product(&a, &b.clone().into()) else {
                assert!(starts.is_err() || !composable(&starts.unwrap(), &b), "{a} x {b}");
                continue;
            };
            exist += 1;
            let starts = starts.unwrap();
            assert_eq!(r.modes()[0], a);
            assert!(refines(&r.modes()[1].shape(), &b.shape()), "{a} x {b} = {r}");
            for j in 0..b.size() {
                let start = at(&starts, at(&b, j));
                for i in 0..a.size() {
                    assert_eq!(at(&r, i + a.size() * j), at(&a, i) + start);
                }
            }
            let distinct = |layout: &Layout| offsets(layout).into_iter().collect::<BTreeSet<_>>();
            assert_eq!(distinct(&r).len(), distinct(&a).len() * distinct(&b).len());
            check_ranked(&a, &b, &r);
        }
    }
    assert!(exist > 500, "{exist}");
}

/// Blocked and raked products are the logical product with like modes joined.
fn check_ranked(a: &Layout, b: &Layout, product: &Layout) {
    let rank = a.rank().max(b.rank());
    let size = |layout: &Layout, mode: usize| layout.modes().get(mode).map_or(1, Layout::size);
    let blocked = blocked_product(a, b).unwrap();
    let raked = raked_product(a, b).unwrap();
    assert_eq!((blocked.rank(), raked.rank()), (rank, rank));
    for j in 0..b.size() {
        for i in 0..a.size() {
            let (mut rest_a, mut rest_b) = (i, j);
            let (mut block, mut rake) = (Vec::new(), Vec::new());
            for mode in 0..rank {
                let (x, y) = (rest_a % size(a, mode), rest_b % size(b, mode));
                rest_a /= size(a, mode);
                rest_b /= size(b, mode);
                block.push(IntTuple::Int(x + size(a, mode) * y));
                rake.push(IntTuple::Int(y + size(b, mode) * x));
            }
            let expected = product.at(&(i + a.size() * j));
            assert_eq!(crd2idx(&IntTuple::Tuple(block), &blocked), expected, "{a} {b} {blocked}");
            assert_eq!(crd2idx(&IntTuple::Tuple(rake), &raked), expected, "{a} {b} {raked}");
        }
    }
}

type ByMode = fn(&Layout, &Tiler) -> Result<Layout>;

/// The arrangements of a by-mode operation hold the same modes as the operation itself.
fn check_arrangement(a: &Layout, tiler: &Tiler, tilers: usize, by: [ByMode; 4]) -> bool {
    let [logical, zipped, tiled, flat] = by.map(|f| f(a, tiler));
    let Ok(logical) = logical else {
        assert!(zipped.is_err() && tiled.is_err() && flat.is_err());
        return false;
    };
    let split = &logical.modes()[..tilers];
    let first: Vec<Layout> = split.iter().map(|mode| mode.modes()[0].clone()).collect();
    let mut second: Vec<Layout> = split.iter().map(|mode| mode.modes()[1].clone()).collect();
    second.extend_from_slice(&logical.modes()[tilers..]);
    let tuple = |modes: &[Layout]| Layout::tuple(modes.to_vec()).unwrap();
    let gathered = tuple(&first);
    assert_eq!(zipped, Ok(tuple(&[gathered.clone(), tuple(&second)])));
    // A single mode stays as it is, instead of standing beside others.
    let spread =
        |modes: &[Layout]| if modes.len() == 1 { vec![tuple(modes)] } else { modes.to_vec() };
    assert_eq!(tiled, Ok(tuple(&[&[gathered][..], &spread(&second)].concat())));
    assert_eq!(flat, Ok(tuple(&[spread(&first), spread(&second)].concat())));
    true
}

#[test]
fn arrangements() {
    let shapes = [vec![2, 2], vec![1, 3], vec![2], vec![4, 1]].map(|sizes| ints(&sizes));
    let divide: [ByMode; 4] = [logical_divide, zipped_divide, tiled_divide, flat_divide];
    let product: [ByMode; 4] = [logical_product, zipped_product, tiled_product, flat_product];
    let mut exist = 0;
    for a in samples().iter().filter(|a| a.rank() >= 2) {
        for shape in &shapes {
            let tiler = Tiler::from(shape);
            let tilers = shape.elements().len();
            exist += i32::from(check_arrangement(a, &tiler, tilers, divide));
            exist += i32::from(check_arrangement(a, &tiler, tilers, product));
            if let Ok(zipped) = zipped_divide(a, &tiler) {
                // But that strides of single elements may be others.
                let (tile, whole) = (composition_by(a, &tiler).unwrap(), &zipped.modes()[0]);
                assert_eq!((tile.shape(), offsets(&tile)), (whole.shape(), offsets(whole)));
            }
        }
    }
    assert!(exist > 1000, "{exist}");
}

#[test]
fn shapes_tiled() {
    let block: Layout = "(2,3):(3,1)".parse().unwrap();
    for (target, order) in [
        (vec![4, 9], vec![1, 2]),
        (vec![4, 9], vec![2, 1]),
        (vec![2, 3], vec![1, 2]),
        (vec![6, 6, 5], vec![3, 1, 2]),
    ] {
        let (target, order) = (ints(&target), ints(&order));
        let r = tile_to_shape(&block, &target, Some(&order)).unwrap();
        assert!(refines(&r.shape(), &target), "{r}");
        let distinct: BTreeSet<i64> = offsets(&r).into_iter().collect();
        assert_eq!(i64::try_from(distinct.len()), Ok(r.size()), "{r}");
        assert_eq!(distinct.last(), Some(&(r.size() - 1)), "{r}");
        assert_eq!(composition_by(&r, &Tiler::from(&block.shape())), Ok(block.clone()));
    }
}

#[test]
fn coordinates() {
    for a in samples() {
        for i in 0..a.size() {
            let coord = idx2crd(i, &a).unwrap();
            assert_eq!(crd2idx(&coord, &a), a.at(&i), "{a}");
        }
        assert!(idx2crd(a.size(), &a).is_err() && idx2crd(-1, &a).is_err());
        assert_eq!(a.to_string().parse(), Ok(a));
    }
}

#[test]
fn swizzles() {
    for bits in 0..4 {
        for base in 0..3 {
            for shift in (-5_i64..6).filter(|shift| shift.abs() >= bits) {
                let swizzle = Swizzle::new(bits, base, shift).unwrap();
                let size = 1 << (bits + base + shift.abs());
                let image: Vec<i64> = (0..size).map(|i| swizzle.at(i).unwrap()).collect();
                for (i, &x) in (0_i64..).zip(&image) {
                    assert_eq!(swizzle.at(x), Ok(i), "{swizzle}");
                    // Bit by bit, from the definition.
                    let (from, to) =
                        if shift >= 0 { (base + shift, base) } else { (base, base - shift) };
                    let flips: i64 = (0..bits).map(|b| ((i >> (from + b)) & 1) << (to + b)).sum();
                    assert_eq!(x, i ^ flips, "{swizzle}");
                }
                let layout: Layout = "(4,8):(8,1)".parse().unwrap();
                let (outer, offset) = (Outer::Swizzle(swizzle), Stride::from(3));
                let composed = Composed { outer, offset, layout: layout.clone() };
                let there = composed.crd2idx(&IntTuple::Int(7)).unwrap();
                assert_eq!(there.number(), swizzle.at(3 + at(&layout, 7)).ok());
            }
        }
    }
    assert!(Swizzle::new(3, 0, 2).is_err() && Swizzle::new(-1, 0, 2).is_err());
    assert!(Swizzle::new(3, 57, 3).is_err() && Swizzle::new(0, 0, i64::MIN).is_err());
    assert_eq!(Swizzle::new(1, 0, 1).unwrap().at(-1), Err(Error::NegativeOffset(-1)));
}

/// Coordinates of a box, as a layout of basis strides.
fn identity(sizes: &[i64]) -> Layout {
    let mode = |(axis, size): (usize, &i64)| Layout::mode(*size, Stride::along(axis, 1)).unwrap();
    Layout::tuple(sizes.iter().enumerate().map(mode).collect()).unwrap()
}

/// Layouts of coordinates are layouts of numbers, once the axes have strides: dividing one and
/// then giving it strides is dividing what has them.
#[test]
fn coordinates_become_offsets() {
    let mut exist = 0;
    for a in samples().iter().filter(|a| a.rank() >= 2) {
        let sizes: Vec<i64> = a.modes().iter().map(Layout::size).collect();
        let whole = identity(&sizes);
        for tile in ["2:1", "3:1", "2:2", "(2,2):(1,4)"] {
            let tile = Tiler::from(tile.parse::<Layout>().unwrap());
            let Ok(coordinates) = logical_divide(&whole, &Tiler::Modes(vec![tile])) else {
                continue;
            };
            let Ok(offsets) = composition(a, &coordinates) else { continue };
            exist += 1;
            for i in 0..coordinates.size() {
                let coordinate = coordinates.at(&i).unwrap();
                let mut along = vec![0; sizes.len()];
                coordinate.steps().for_each(|(axis, at)| along[axis] = *at);
                let along = IntTuple::Tuple(along.into_iter().map(IntTuple::Int).collect());
                assert_eq!(crd2idx(&along, a), offsets.at(&i), "{a} o {coordinates} = {offsets}");
            }
        }
    }
    assert!(exist > 300, "{exist}");
}

/// With a symbol for the last size of a layout, division says the same of every value.
#[test]
fn symbols_are_any_size() {
    let n = Var::new("n", None);
    let (mut exist, mut refused) = (0, 0);
    for inner in [vec![], vec![(4, 1)], vec![(2, 1), (4, 2)], vec![(4, 16), (2, 1)], vec![(6, 1)]] {
        let step = if inner.len() == 1 { 64 } else { 8 };
        let with = |last: Expr| {
            let leaves = inner.iter().map(|&(size, stride)| Layout::of(size, stride));
            Layout::tuple(leaves.chain([Layout::of(last, step)]).collect()).unwrap()
        };
        for tile in ["2:1", "4:1", "8:1", "3:1", "16:1", "4:2", "(2,2):(1,4)", "(4,2):(1,16)"] {
            let tiler = Tiler::from(tile.parse::<Layout>().unwrap());
            let divide = |a: &Layout<Expr>| zipped_divide(a, &tiler);
            let Ok(symbolic) = divide(&with(Expr::from(&n))) else {
                refused += 1;
                continue;
            };
            for size in [1, 2, 3, 5, 8] {
                let Ok(known) = divide(&with(Expr::from(size))) else { continue };
                exist += 1;
                let value = |expr: &Expr| expr.value(&|_| Some(size)).unwrap();
                for i in 0..value(&known.size()) {
                    let at = |layout: &Layout<Expr>| {
                        value(&layout.at(&Expr::from(i)).unwrap().number().unwrap())
                    };
                    assert_eq!(at(&symbolic), at(&known), "{symbolic} is {known} at {i}");
                }
                assert_eq!(value(&symbolic.size()), value(&known.size()), "{symbolic}");
            }
        }
    }
    assert!(exist > 80 && refused > 5, "{exist} {refused}");
}
