//! Interleavings of teams and turns, gone through by loom:
//! `RUSTFLAGS="--cfg graphene_loom" cargo test --release -p graphene-runtime --lib model`.

use super::team::Team;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(1);

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Each part is run once, and what it wrote is there when its section has ended; the worker ends.
#[test]
fn sections_run_each_part_once() {
    check(3, || {
        let team = Arc::new(Team::new(2, true));
        let worker = {
            let team = Arc::clone(&team);
            thread::spawn(move || team.serve(1))
        };
        for _ in 0..2 {
            let parts: [AtomicUsize; 2] = std::array::from_fn(|_| AtomicUsize::new(0));
            team.section(2, &|_, part| {
                parts[part].fetch_add(1, Ordering::Relaxed);
            });
            for part in &parts {
                assert_eq!(settled(part), 1);
            }
        }
        team.quit();
        worker.join().expect("the worker ends");
    });
}

/// Two runs of two sections each, whose sections take turns: no section mixes with another's.
#[test]
fn runs_take_turns_at_the_team() {
    check(2, || {
        let team = Arc::new(Team::new(2, true));
        let led = Arc::new(AtomicUsize::new(0));
        let lead = |team: &Team, led: &AtomicUsize| {
            team.lead.acquire(LONG, || Ok::<_, ()>(())).expect("nobody gives up");
            assert_eq!(led.fetch_add(1, Ordering::Relaxed), 0, "two lead");
            let sum = AtomicUsize::new(0);
            team.section(2, &|_, part| {
                sum.fetch_add(part + 1, Ordering::Relaxed);
            });
            assert_eq!(settled(&sum), 3);
            led.fetch_sub(1, Ordering::Relaxed);
            team.lead.release();
        };
        let worker = {
            let team = Arc::clone(&team);
            thread::spawn(move || team.serve(1))
        };
        let other = {
            let (team, led) = (Arc::clone(&team), Arc::clone(&led));
            thread::spawn(move || lead(&team, &led))
        };
        lead(&team, &led);
        other.join().expect("the other run ends");
        team.quit();
        worker.join().expect("the worker ends");
    });
}

/// Of those that wait for a turn one gives up; the turn still goes to the other.
#[test]
fn a_turn_goes_past_those_that_give_up() {
    check(3, || {
        let team = Arc::new(Team::new(1, true));
        let runs: Vec<_> = [true, false]
            .into_iter()
            .map(|gives_up| {
                let team = Arc::clone(&team);
                thread::spawn(move || {
                    let check = || if gives_up { Err(()) } else { Ok(()) };
                    if team.lead.acquire(LONG, check).is_ok() {
                        team.lead.release();
                    }
                })
            })
            .collect();
        team.lead.acquire(LONG, || Ok::<_, ()>(())).expect("nobody gives up");
        team.lead.release();
        runs.into_iter().for_each(|run| run.join().expect("it ends"));
        assert!(!team.lead.is_awaited());
    });
}

/// A value that nobody changes any more: were the read not ordered behind the writes, loom would also give older ones.
fn settled(value: &AtomicUsize) -> usize {
    value.load(Ordering::Relaxed)
}
