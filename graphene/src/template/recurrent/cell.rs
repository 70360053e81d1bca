//! Cells of recurrent layers: which rows of the weights make a sum, and what becomes of the sums.

use crate::{Function, Result, Unary, needs};

/// A cell, by ONNX's equations. A unit has several sums, and maybe a state of its own in single precision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cell {
    /// For each sum, which gate of the input's weights W and which of the state's weights R is in it, with its bias.
    pub sums: Vec<[Option<i64>; 2]>,
    /// Gates of W, and as many of R.
    pub gates: i64,
    /// Of the sums, and then of the unit's own state, and what is kept: the next hidden state h, and the next own one.
    pub function: Function,
    /// What a unit's own state is.
    pub own: Own,
    /// Whether units read something of each other twice a step: of the sums and the own state, what
    /// they read then in place of h, for the last sum, and what is kept for the function.
    pub reset: Option<Function>,
    /// How many constants a unit has: inputs of the function after all others, such as an LSTM's peepholes.
    pub constants: usize,
}

/// What a unit keeps from step to step, beside the h that all units of the next step read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Own {
    /// Nothing.
    Nothing,
    /// The cell state c.
    Cell,
    /// The hidden state before it was rounded to the type of the results.
    Hidden,
}

impl Cell {
    /// Gates i, o, f, c: with the activations `f` of gates, `g` of the candidate, `h` of the state.
    /// `coupled`: the forget gate is 1 - the input gate.
    pub fn lstm(f: &Function, g: &Function, h: &Function, coupled: bool) -> Cell {
        Cell::lstm_of([f, g, h], coupled, false)
    }

    /// Likewise, with peepholes: gates i, o and f see the cell state, o the next one, times the constants of this order.
    pub fn lstm_with_peepholes(f: &Function, g: &Function, h: &Function, coupled: bool) -> Cell {
        Cell::lstm_of([f, g, h], coupled, true)
    }

    fn lstm_of([f, g, h]: [&Function; 3], coupled: bool, peepholes: bool) -> Cell {
        // What the gates i, o, f are of, given the cell state.
        let seen = |gate, c: &Function| match peepholes {
            true => Function::input(gate) + Function::input(5 + gate) * c.clone(),
            false => Function::input(gate),
        };
        let before = Function::input(4);
        let input = f.after(&seen(0, &before));
        let forget = match coupled {
            true => Function::constant(1.0) - input.clone(),
            false => f.after(&seen(2, &before)),
        };
        let c = forget * before + input * g.after(&Function::input(3));
        let hidden = f.after(&seen(1, &c)) * h.after(&c);
        Cell {
            sums: (0..4).map(|gate| [Some(gate); 2]).collect(),
            gates: 4,
            function: Function::all([hidden, c]),
            own: Own::Cell,
            constants: if peepholes { 3 } else { 0 },
            ..Cell::plain(f)
        }
    }

    /// Gates z, r, h, where the reset gate is applied after the matmul with the state
    /// (`linear_before_reset`): activations `f` of gates and `g` of the candidate.
    pub fn gru(f: &Function, g: &Function) -> Cell {
        let of = |function: &Function, sum| function.after(&Function::input(sum));
        let (update, reset) = (of(f, 0), of(f, 1));
        let candidate = g.after(&(Function::input(2) + reset * Function::input(3)));
        let kept = update.clone() * Function::input(4);
        let next = (Function::constant(1.0) - update) * candidate + kept;
        Cell {
            sums: vec![[Some(0); 2], [Some(1); 2], [Some(2), None], [None, Some(2)]],
            gates: 3,
            function: Function::all([next.clone(), next]),
            own: Own::Hidden,
            ..Cell::plain(f)
        }
    }

    /// Likewise, but that the reset gate is applied to the state before its matmul.
    pub fn gru_reset_first(f: &Function, g: &Function) -> Cell {
        let of = |function: &Function, sum| function.after(&Function::input(sum));
        let [update, own] = [5, 4].map(Function::input);
        let candidate = g.after(&(Function::input(2) + Function::input(3)));
        let kept = update.clone() * own.clone();
        let next = (Function::constant(1.0) - update) * candidate + kept;
        Cell {
            function: Function::all([next.clone(), next]),
            reset: Some(Function::all([of(f, 1) * own, of(f, 0)])),
            ..Cell::gru(f, g)
        }
    }

    /// How often blocks meet in a step.
    pub(super) fn meetings(&self) -> i64 {
        if self.reset.is_some() { 2 } else { 1 }
    }

    /// One gate, whose activation is the state.
    pub fn plain(f: &Function) -> Cell {
        Cell {
            sums: vec![[Some(0); 2]],
            gates: 1,
            function: f.clone(),
            own: Own::Nothing,
            reset: None,
            constants: 0,
        }
    }

    pub(super) fn check(&self) -> Result {
        let own = usize::from(self.own != Own::Nothing);
        let (given, kept) = (self.sums.len() + own, usize::from(self.reset.is_some()));
        let inputs = self.function.inputs() <= given + kept + self.constants;
        let sums = inputs && !self.sums.is_empty();
        needs(sums, "a cell's function of its sums, its own state and its constants", self)?;
        let outputs = self.function.outputs().len() == 1 + own;
        needs(outputs, "a cell's function that gives the next state, and its own one", self)?;
        let two = |f: &Function| f.inputs() <= given && f.outputs().len() == 2;
        let reset = self.reset.iter().all(two) && kept <= own;
        needs(reset, "a reset of the sums and the own state that gives two numbers", self)?;
        let known = |gate: &i64| (0..self.gates).contains(gate);
        needs(self.sums.iter().flatten().flatten().all(known), "sums of known gates", &self.sums)
    }
}

impl Default for Cell {
    /// An LSTM with the usual activations.
    fn default() -> Cell {
        let of = |op| Function::identity().unary(op);
        Cell::lstm(&of(Unary::Sigmoid), &of(Unary::Tanh), &of(Unary::Tanh), false)
    }
}
