//! Threads: each part once, turns, panics.

use super::{
    Threads, Turn, alone, chunks, chunks_mut, count, each, for_each_slot, items_mut, map,
    try_for_each,
};
use crate::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn threads(count: usize) -> Threads {
    Threads::new(count).expect("so many threads can be had")
}

#[test]
fn each_part_is_run_once() {
    for n in [1, 2, 3, 8] {
        threads(n).run(|| {
            assert_eq!(count(), n);
            for parts in [0, 1, 2, 7, 1000] {
                let seen: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                for_each_slot(parts, |slot, part| {
                    assert!(slot < n);
                    seen[part].fetch_add(1, Ordering::Relaxed);
                    // Within a part all is the thread's own.
                    if parts > 1 {
                        assert!(count() == 1);
                    }
                    for_each_slot(3, |slot, _| assert!(slot == 0 || parts == 1));
                });
                assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 1), "{n} {parts}");
            }
        });
    }
    assert_eq!(count(), 1);
}

#[test]
fn slices_are_taken_apart() {
    threads(3).run(|| {
        for (len, size) in [(0, 4), (1, 4), (1000, 7), (64, 64), (5, 0)] {
            let from: Vec<usize> = (0..len).collect();
            let mut to = vec![0; len];
            let mut firsts = vec![0; if size == 0 { 0 } else { len.div_ceil(size) }];
            let parts = (chunks_mut(&mut to, size), chunks(&from, size), items_mut(&mut firsts));
            each(2, parts, |number, (to, from, first)| {
                assert_eq!(from.first(), Some(&(number * size)));
                to.copy_from_slice(from);
                *first = from[0];
            });
            assert!(size == 0 || to == from);
            assert!(firsts.iter().enumerate().all(|(i, &first)| first == i * size));
        }
        assert_eq!(map(100, |i| i * i), (0..100).map(|i| i * i).collect::<Vec<_>>());
    });
}

#[test]
fn the_first_error_of_the_parts_is_given() {
    threads(4).run(|| {
        for _ in 0..100 {
            let found = try_for_each(64, |part| match part % 10 {
                7 => Err(Error::Index { index: part as i64, size: 0 }),
                _ => Ok(()),
            });
            assert_eq!(found, Err(Error::Index { index: 7, size: 0 }));
        }
    });
}

#[test]
fn a_panic_is_carried_to_the_caller() {
    let threads = threads(3);
    for part_of_panic in [0, 1, 50, 99] {
        let result = catch_unwind(AssertUnwindSafe(|| {
            threads.run(|| {
                for_each_slot(100, |_, part| assert!(part != part_of_panic, "part {part}"));
            });
        }));
        let panic = result.expect_err("a part panics");
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains(&format!("part {part_of_panic}")), "{message}");
        assert_eq!(count(), 1);
        // They are as good as before.
        let sum = AtomicUsize::new(0);
        threads.run(|| {
            for_each_slot(10, |_, part| {
                sum.fetch_add(part, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 45);
    }
}

#[test]
fn concurrent_runs_take_the_lock_in_order() {
    let threads = threads(2);
    let leads = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                threads.run(|| {
                    for _ in 0..20 {
                        let mut turn = Turn::take(|| Ok(())).expect("nobody gives up");
                        assert!(!leads.swap(true, Ordering::Relaxed), "two lead");
                        for_each_slot(4, |_, _| thread::yield_now());
                        leads.store(false, Ordering::Relaxed);
                        turn.pass_on(|| Ok(())).expect("nobody gives up");
                    }
                });
            });
        }
    });
}

#[test]
fn a_turn_is_passed_on_after_a_while_and_waiting_may_end() {
    let threads = threads(2);
    let (has, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            threads.run(|| {
                let mut turn = Turn::take(|| Ok(())).expect("nobody gives up");
                has.store(true, Ordering::Relaxed);
                while !done.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                    turn.pass_on(|| Ok(())).expect("nobody gives up");
                }
            });
        });
        while !has.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        threads.run(|| {
            let start = Instant::now();
            let gives_up = Turn::take(|| match start.elapsed() > Duration::from_millis(3) {
                true => Err(Error::Unsupported { what: "more patience" }),
                false => Ok(()),
            });
            assert!(gives_up.is_err());
            // The other one goes on step by step, but lets this one have its turn.
            drop(Turn::take(|| Ok(())).expect("nobody gives up"));
            // Work that is not spread waits for nobody.
            alone(|| for_each_slot(10, |slot, _| assert_eq!(slot, 0)));
        });
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn threads_end_with_the_last_clone() {
    let threads = threads(4);
    let other = threads.clone();
    drop(threads);
    other.run(|| for_each_slot(8, |_, _| ()));
    let team = std::sync::Arc::downgrade(&other.crew.team);
    drop(other);
    assert!(team.upgrade().is_none(), "workers have ended, and let go of what they share");
    assert!(Threads::new(0).is_err());
}
