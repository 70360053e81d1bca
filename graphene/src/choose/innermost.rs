//! Which dimension of each tensor is contiguous: a small boolean programme (Mirage, "Layout
//! Resolution").

/// What it costs that two tensors have these innermost dimensions, as when one is copied to the
/// other: `cost[i][j]` for dimension `i` of `first` and `j` of `second`; `None` where no kernel
/// takes both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// One tensor.
    pub first: usize,
    /// The other one.
    pub second: usize,
    /// The cost, by their dimensions.
    pub cost: Vec<Vec<Option<u64>>>,
}

/// Assignments that the search tries at most.
const TRIED: usize = 100_000;

/// The innermost dimension of each tensor, at the least cost in all; `None` if no assignment fulfils
/// every restriction, or none is found in 100,000 steps.
///
/// `alone[t][d]` is what it costs that dimension `d` of tensor `t` is innermost, `None` where it may
/// not be. In boolean terms: a variable for each dimension of each tensor, exactly one of each
/// tensor's is true, and the cost is linear in the variables and in products of two.
pub fn innermost(alone: &[Vec<Option<u64>>], pairs: &[Pair]) -> Option<Vec<usize>> {
    let mut search = Search { alone, pairs, chosen: Vec::new(), best: None, tried: 0 };
    search.extend(0);
    search.best.map(|(_, chosen)| chosen)
}

struct Search<'a> {
    alone: &'a [Vec<Option<u64>>],
    pairs: &'a [Pair],
    chosen: Vec<usize>,
    best: Option<(u64, Vec<usize>)>,
    tried: usize,
}

impl Search<'_> {
    /// Chooses for the tensors that are left, tensor by tensor, as long as the cost so far is below
    /// the best: costs are not negative.
    fn extend(&mut self, cost: u64) {
        self.tried += 1;
        if self.tried > TRIED || self.best.as_ref().is_some_and(|(least, _)| cost >= *least) {
            return;
        }
        let tensor = self.chosen.len();
        let Some(dims) = self.alone.get(tensor) else {
            self.best = Some((cost, self.chosen.clone()));
            return;
        };
        for dim in 0..dims.len() {
            self.chosen.push(dim);
            if let Some(more) = self.added(tensor) {
                self.extend(cost.saturating_add(more));
            }
            self.chosen.pop();
        }
    }

    /// What the choice for `tensor`, the last one, adds.
    fn added(&self, tensor: usize) -> Option<u64> {
        let mut cost = self.alone[tensor][self.chosen[tensor]]?;
        for pair in self.pairs.iter().filter(|pair| pair.first.max(pair.second) == tensor) {
            let [first, second] = [pair.first, pair.second].map(|tensor| self.chosen[tensor]);
            let both = pair.cost.get(first).and_then(|row| row.get(second)).copied().flatten()?;
            cost = cost.saturating_add(both);
        }
        Some(cost)
    }
}
