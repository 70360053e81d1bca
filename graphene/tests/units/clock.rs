//! Of `simulate::clock`, whose items are private to the crate.

use super::Clock;

#[test]
fn lanes_that_all_know_become_one() {
    let mut clock = Clock::new(3);
    let mut times = [0; 32];
    times[4] = 7;
    clock.raise_lanes(1, 1 << 4, &times);
    assert!(clock.knows(1, 4, 7) && !clock.knows(1, 5, 7) && !clock.knows(1, 4, 8));
    clock.raise_lanes(1, u32::MAX, &[7; 32]);
    assert!(clock.knows(1, 5, 7));
    assert_eq!(clock.lanes, vec![]);
    assert!(!clock.knows(9, 0, 1));
}

#[test]
fn joining_takes_the_later_times() {
    let (mut a, mut b) = (Clock::new(2), Clock::new(2));
    a.raise(0, 3);
    b.raise(0, 1);
    let mut times = [0; 32];
    times[9] = 5;
    b.raise_lanes(1, 1 << 9, &times);
    a.join(&b);
    assert!(a.knows(0, 0, 3) && a.knows(1, 9, 5) && !a.knows(1, 8, 1));
}
