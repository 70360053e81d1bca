//! Of `simulate::memory`, whose items are private to the crate.

use super::{Access, Conflict, Proxy, Runner, Space};
use crate::simulate::clock::Knowledge;
use crate::simulate::runner::Units;

/// The warps of a block of two: units 0 and 1, and eight more that work for them.
fn runners() -> [Runner; 2] {
    [0, 1].map(|warp| {
        let at = |kind: u32| 2 * kind + warp;
        let units = Units { first: 0, warp, copy: at(1), source: at(2), bulk: at(3), matmul: 8 };
        Runner::new((0, warp as usize), (u32::MAX, Vec::new()), units, 9, 0, 0)
    })
}

fn access(runner: &Runner, lane: usize) -> Access<'_> {
    Access {
        runner,
        lane,
        transfers: &[],
        units: (9, 2),
        proxy: Proxy::Generic,
        stamp: runner.now(lane),
        at: runner.index as u32,
    }
}

#[test]
fn updates_go_together_but_not_with_reads() {
    let mut space = Space::new(1, true, false);
    space.fill(0, 1.0);
    let [mut first, mut second] = runners();
    for lane in 0..4 {
        assert_eq!(space.update(0, &access(&first, lane)), None);
        assert_eq!(space.update(0, &access(&second, lane)), None);
    }
    assert_eq!(space.read(0, &access(&second, 0)), Some(Conflict::Race(0)));
    assert_eq!(space.write(0, &access(&second, 0)), Some(Conflict::Twice(0)));
    let mut known = Knowledge::new(9);
    first.publish(u32::MAX, &mut known);
    second.publish(u32::MAX, &mut known);
    second.agree(u32::MAX, &known);
    let mut space = Space::new(1, true, false);
    space.fill(0, 1.0);
    assert_eq!(space.update(0, &access(&first, 0)), None);
    assert_eq!(space.read(0, &access(&second, 0)), None);
    assert_eq!(space.update(0, &access(&first, 0)), Some(Conflict::Race(1)));
}

#[test]
fn a_write_asks_for_all_readers() {
    let mut space = Space::new(1, false, false);
    let [mut first, mut second] = runners();
    assert_eq!(space.read(0, &access(&first, 0)), Some(Conflict::Uninitialised));
    assert_eq!(space.write(0, &access(&first, 0)), None);
    let mut known = Knowledge::new(9);
    first.publish(u32::MAX, &mut known);
    first.agree(u32::MAX, &known);
    second.learn(u32::MAX, &known);
    (first.time, second.time) = (first.time + 1, second.time + 1);
    for lane in 0..32 {
        assert_eq!(space.read(0, &access(&first, lane)), None);
        assert_eq!(space.read(0, &access(&second, lane)), None);
    }
    // Of both warps' lanes, all but one's reads become known.
    let mut known = Knowledge::new(9);
    first.publish(u32::MAX, &mut known);
    second.publish(!(1 << 7), &mut known);
    first.learn(u32::MAX, &known);
    assert_eq!(space.write(0, &access(&first, 0)), Some(Conflict::Race(1)));
}
