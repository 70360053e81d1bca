//! Covers of small random graphs against all covers.

use super::cover;
use crate::partition::candidates::candidates;
use crate::partition::costs::Costs;
use crate::partition::fusion_graph::FusionGraph;
use crate::partition::legal::family;
use crate::partition::set::{OpId, Set};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, Op, ReduceOp, Unary};
use graphene_frontend::types::TensorType;
use graphene_ir::target::Target;

/// A small reproducible generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// A graph of operations on squares: matmuls, rows, expressions, changes of view and a loner.
fn random_graph(random: &mut Random, operations: usize) -> Graph {
    let mut graph = Graph::new();
    let ty: TensorType = "f32[96, 96]".parse().unwrap();
    let mut values: Vec<ValueId> =
        (0..3).map(|i| graph.add_input(&format!("x{i}"), ty.clone()).unwrap()).collect();
    while values.len() < operations + 3 {
        // What was made last is read most.
        let back = random.below(4).min(values.len() - 1);
        let (a, b) = (values[values.len() - 1 - back], values[random.below(values.len())]);
        let (op, inputs) = match random.below(8) {
            0 | 1 => (Op::Unary(Unary::Exp), vec![a]),
            2 | 3 => (Op::Binary(Binary::Add), vec![a, b]),
            4 => (Op::MatMul, vec![a, values[random.below(3)]]),
            5 => (Op::Softmax { axis: 1, log: false }, vec![a]),
            6 => (Op::Softmax { axis: 0, log: false }, vec![a]),
            _ => (Op::Transpose(vec![1, 0]), vec![a]),
        };
        let inputs: Vec<_> = inputs.into_iter().map(Some).collect();
        values.push(graph.add("node", op, &inputs).unwrap().value());
    }
    graph.add_output("y", values[values.len() - 1]);
    graph
}

/// The least cost over all ways to take candidates one after the other, all that a candidate waits for before it.
fn least(net: &FusionGraph<'_>, groups: &[(Set, f64)]) -> f64 {
    let all = (1_usize << net.len()) - 1;
    let bits = |set: Set| set.iter().fold(0_usize, |bits, op| bits | 1 << op.index());
    let waits = |set: Set| {
        let producers = set.iter().flat_map(|op| net[op].producers.iter().copied());
        producers
            .filter(|&from| !set.contains(from))
            .fold(0_usize, |bits, op| bits | 1 << op.index())
    };
    let groups: Vec<_> = groups.iter().map(|&(set, cost)| (bits(set), waits(set), cost)).collect();
    let mut costs = vec![f64::INFINITY; all + 1];
    costs[0] = 0.0;
    for done in 0..all {
        for &(own, waits, cost) in &groups {
            if done & own == 0 && waits & !done == 0 {
                costs[done | own] = costs[done | own].min(costs[done] + cost);
            }
        }
    }
    costs[all]
}

/// The sets of operations that hang together by what one makes and another reads.
fn connected<'a>(net: &'a FusionGraph<'_>) -> impl Iterator<Item = Set> + 'a {
    let sets = (1_u64..1 << net.len()).map(|mask| {
        let members = (0..net.len() as u32).filter(|i| mask >> i & 1 == 1);
        Set::collect(members.map(OpId)).unwrap()
    });
    sets.filter(|&set| {
        let mut reached = vec![set.first()];
        let mut at = 0;
        while let Some(&op) = reached.get(at) {
            let joined = |other: OpId| {
                net[other].producers.contains(&op) || net[op].producers.contains(&other)
            };
            let new: Vec<_> = set.iter().filter(|&o| joined(o) && !reached.contains(&o)).collect();
            reached.extend(new);
            at += 1;
        }
        reached.len() == set.len()
    })
}

#[test]
fn covers_cost_as_little_as_any() {
    let mut random = Random(1);
    let mut fused = 0;
    for round in 0..300 {
        let graph = random_graph(&mut random, 4 + round % 7);
        for target in ["cpu:2", "sm_90a"] {
            let target: Target = target.parse().unwrap();
            let net = FusionGraph::new(&graph, &target, &Bindings::new());
            let costs = Costs::new(&net);
            let candidates = candidates(&costs);
            let cover = cover(&candidates, net.len());
            assert_eq!((candidates.cut, cover.cut), (0, 0));
            let found: f64 = cover.chosen.iter().map(|candidate| candidate.cost).sum();
            let chosen: Vec<_> = (0..net.len() as u32)
                .flat_map(|i| candidates.of(OpId(i)))
                .map(|candidate| (candidate.set, candidate.cost))
                .collect();
            let best = least(&net, &chosen);
            assert!((found - best).abs() <= 1e-12, "round {round}: {found} for {best}");
            // Of the sets that hang together by values none is missed; siblings only make it cheaper.
            let legal = connected(&net).filter_map(|set| Some((set, family(&net, set).ok()?)));
            let groups: Vec<_> =
                legal.map(|(set, family)| (set, costs.of(set, family).seconds())).collect();
            let least = least(&net, &groups);
            assert!(found <= least + 1e-12, "round {round}: {found} for {least}");
            fused += net.len() - cover.chosen.len();
        }
    }
    assert!(fused > 500, "only {fused} operations were fused");
}

#[test]
fn reductions_wait_for_what_they_need() {
    // The lowest operation's best group waits for one that stands after it.
    let mut graph = Graph::new();
    let ty = TensorType::new(DType::F32, "f32[64, 64]".parse::<TensorType>().unwrap().shape);
    let (x, y) = (graph.add_input("x", ty.clone()).unwrap(), graph.add_input("y", ty).unwrap());
    let exp = graph.add("exp", Op::Unary(Unary::Exp), &[Some(x)]).unwrap().value();
    let matmul = graph.add("product", Op::MatMul, &[Some(y), Some(y)]).unwrap().value();
    let softmax = Op::Softmax { axis: 0, log: false };
    let alone = graph.add("alone", softmax, &[Some(matmul)]).unwrap().value();
    let sum = graph.add("sum", Op::Binary(Binary::Add), &[Some(exp), Some(alone)]).unwrap().value();
    let reduce = Op::Reduce { op: ReduceOp::Sum, axes: vec![1], keep: true };
    let rows = graph.add("rows", reduce, &[Some(sum)]).unwrap().value();
    graph.add_output("rows", rows);
    let target = Target::cpu(2);
    let net = FusionGraph::new(&graph, &target, &Bindings::new());
    let costs = Costs::new(&net);
    let candidates = candidates(&costs);
    let cover = cover(&candidates, net.len());
    let sizes = cover.chosen.iter().map(|candidate| candidate.set.len());
    assert_eq!(sizes.collect::<Vec<_>>(), [1, 1, 3]);
}
