//! What one thread says for others, between blocks: the order of events that split-K rests on.

use graphene_ir::kernel::Kernel;
use graphene_ir::text::parse;
use graphene_ir::verify::verify;

use crate::support::{check_clean, data, inputs, kind, orders, run};

const ARRIVAL: &str = include_str!("../kernels/arrival.graphene");

fn read(text: &str) -> Kernel {
    let kernel = parse(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(verify(&kernel), []);
    kernel
}

#[test]
fn one_lane_speaks_for_a_warp_that_has_met() {
    let kernel = read(ARRIVAL);
    let given = inputs(&kernel, &[], |_, at| at as f64);
    let words = data(&given, "in");
    for seed in orders(20) {
        let outcome = run(&kernel, &given, seed);
        check_clean("arrival", &outcome);
        let expected: Vec<_> = (0..64).map(|at| Some(words[63 - at])).collect();
        assert_eq!(outcome.buffers["out"], expected);
    }
}

/// Each of these orders another lane's word before the arrival, and that before what the other block reads.
#[test]
fn without_order_it_is_a_race() {
    let given = inputs(&read(ARRIVAL), &[], |_, at| at as f64);
    let fence = "Fence<cluster><<<#grid, #one>>>()\n";
    let meeting = "  Sync<<<#grid, #warp>>>()\n";
    let (before, after) = ARRIVAL.split_once(fence).unwrap();
    let early = before.replace(meeting, &format!("  {fence}{meeting}"));
    for text in [
        ARRIVAL.replace(meeting, ""),
        format!("{before}{after}"),
        format!("{before}{fence}{}", after.replace(fence, "")),
        // One's own fence does not count: the arrival is another thread's.
        format!("{early}{after}"),
    ] {
        assert_ne!(text, ARRIVAL);
        let findings = run(&read(&text), &given, None).findings;
        let kinds: Vec<_> = findings.iter().map(|finding| kind(&finding.fault)).collect();
        assert!(kinds.contains(&"Race") || kinds.contains(&"MissingFence"), "{kinds:?}\n{text}");
    }
}
