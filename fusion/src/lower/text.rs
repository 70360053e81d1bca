//! Groups with the steps that launch them, as text and as a picture.

use crate::base::cost::bytes_text;
use crate::base::groups::{Boundary, Executor, Family, GroupId, Groups, Reason, group_name};
use crate::base::program::{Origin, Program, Step, StepId};
use crate::base::sizes::planning_sizes;
use crate::families::kernels::{Launched, Refusal, Runs, first_alike, runs};
use graphene_frontend::dot::dot;
use graphene_frontend::{Bindings, Graph};
use graphene_ir::simulate::Traffic;
use graphene_ir::target::{Kind, Target};
use std::collections::{BTreeMap, BTreeSet};

/// Steps of warps of a kernel for which it is worth counting what is requested.
const STEPS: u64 = 1 << 21;

impl Groups {
    /// Text: a line a group, with the step of the program that launches it, its family and its operations; `-` stands for the
    /// step of a change of view that moves nothing. Copies that the program makes for a group have lines of their own.
    ///
    /// Below each on a GPU, what is launched at the sizes of the hints, as the kernel has it: its grid, and the bytes that its
    /// threads request of global memory, whatever caches have of them, unless counting them takes long; and the numbers among
    /// its template's parameters. Then what the planner took the group for: an estimate, of traffic with DRAM. Then, for each
    /// group that writes what it reads or reads what it writes, why the two are not one. `target` and `hints` are those of
    /// the plan.
    pub fn print(
        &self,
        graph: &Graph,
        program: &Program,
        target: &Target,
        hints: &Bindings,
    ) -> String {
        let sizes = planning_sizes(graph, hints);
        let mut launches = Launches::new(program, target, &sizes);
        let mut text = String::new();
        for (i, group) in self.groups.iter().enumerate() {
            let id = GroupId::from_index(i);
            let step = program.step_of(id);
            let named = Self::number(program, id);
            let before = launches.copies(Origin::Before(id), &format!("for {named}"), &mut text);
            let name = group_name(graph, &group.nodes);
            text += &format!("{named} {} {name}", group.family);
            text += launches.executor(step, group.executor).suffix();
            if let [first, ..] = &before[..] {
                text += &format!(": {} launches from {first} on", before.len() + 1);
            }
            text.push('\n');
            text += &step.map_or(String::new(), |step| launches.line(step));
            text += &group.cost.map_or(String::new(), |cost| format!("    estimate: {cost}\n"));
            text += &self.neighbours(program, id);
        }
        for (i, (name, _)) in program.outputs().iter().enumerate() {
            launches.copies(Origin::Output(i), &format!("into output {name:?}"), &mut text);
        }
        text
    }

    /// The graph for Graphviz, its operations coloured by family and framed by group, with the program's steps.
    pub fn dot(&self, graph: &Graph, program: &Program) -> String {
        let mut text = dot(graph);
        text.truncate(text.trim_end().trim_end_matches('}').len());
        for (i, group) in self.groups.iter().enumerate().filter(|(_, g)| g.family != Family::View) {
            let colour = group.family.colour();
            let step = Self::number(program, GroupId::from_index(i));
            text += &format!("  subgraph cluster_{i} {{\n    label=\"{step} {}\"; ", group.family);
            text += &format!("fontname=\"Helvetica\"; fontsize=10; color=\"{colour}\";\n");
            for id in &group.nodes {
                let node = id.index();
                text +=
                    &format!("    n{node} [style=\"rounded,filled\", fillcolor=\"{colour}\"];\n");
            }
            text += "  }\n";
        }
        text + "}\n"
    }

    /// A line for each neighbour of a group, why the two are not one launch; none where that was not asked for.
    fn neighbours(&self, program: &Program, id: GroupId) -> String {
        let mut seen = BTreeSet::new();
        let neighbour = |of: &Boundary| match (of.from == id, of.to == id) {
            (true, _) => Some((of.to, "reads it")),
            (_, true) => Some((of.from, "it reads")),
            (false, false) => None,
        };
        let of = self.boundaries.iter().filter(|of| of.reason != Reason::PerOp);
        let of = of.filter_map(|of| Some((neighbour(of)?, of.reason)));
        let lines = of.filter(|row| seen.insert(*row)).map(|((other, how), reason)| {
            format!("    not fused with {} ({how}): {reason}\n", Self::number(program, other))
        });
        lines.collect()
    }

    fn number(program: &Program, id: GroupId) -> String {
        program.step_of(id).map_or("-".to_owned(), |step| step.to_string())
    }
}

struct Launches<'a> {
    program: &'a Program,
    target: &'a Target,
    sizes: &'a Bindings,
    /// For each step the first that is alike, and what those run.
    first: Vec<StepId>,
    run: BTreeMap<StepId, Result<Runs, Refusal>>,
    /// What kernels request at some sizes of theirs: steps share kernels.
    requested: Vec<(Launched, Option<Traffic>)>,
}

impl<'a> Launches<'a> {
    fn new(program: &'a Program, target: &'a Target, sizes: &'a Bindings) -> Self {
        let first = first_alike(program);
        Self { program, target, sizes, first, run: BTreeMap::new(), requested: Vec::new() }
    }

    /// Adds a line for each step of the program that is a copy there for this, and what it launches. Returns the steps.
    fn copies(&mut self, origin: Origin, purpose: &str, text: &mut String) -> Vec<StepId> {
        let steps = self.program.step_ids().zip(self.program.steps());
        let copies: Vec<(StepId, &Step)> =
            steps.filter(|(_, step)| step.origin == origin).collect();
        for &(id, step) in &copies {
            *text += &format!("{id} {} {} {purpose}\n", step.family, step.name);
            *text += &self.line(id);
        }
        copies.into_iter().map(|(id, _)| id).collect()
    }

    /// Who executes a group's step: where that may be a library, whoever its launch turns out to be by.
    fn executor(&mut self, step: Option<StepId>, of_group: Executor) -> Executor {
        let (Executor::Library, Some(step)) = (of_group, step) else { return of_group };
        match self.runs(step) {
            Ok(Runs::Nothing | Runs::Kernel(_)) => Executor::Template,
            Ok(Runs::Call) => Executor::Library,
            Err(_) => Executor::Reference,
        }
    }

    fn runs(&mut self, step: StepId) -> &Result<Runs, Refusal> {
        let &mut Self { program, target, sizes, ref first, ref mut run, .. } = self;
        let first = first[step.index()];
        run.entry(first).or_insert_with(|| runs(program, program.step(first), target, sizes))
    }

    /// A line of what a step launches; none on a CPU.
    fn line(&mut self, step: StepId) -> String {
        if self.target.kind == Kind::Cpu {
            return String::new();
        }
        let what = match self.runs(step).clone() {
            Ok(Runs::Nothing) => "nothing".to_owned(),
            Ok(Runs::Call) => "a call of a library".to_owned(),
            Ok(Runs::Kernel(launched)) => {
                let requested = self.requested(&launched).map(|Traffic { read, written }| {
                    let [read, written] = [read, written].map(|bytes| bytes_text(bytes as f64));
                    format!("; they request {read} and write {written}")
                });
                let requested = requested.unwrap_or_default();
                format!("{launched}{requested}\n    parameters: {}", launched.parameters)
            }
            Err(refusal) => format!("no kernel: {}", refusal.in_short()),
        };
        format!("    launch: {what}\n")
    }

    fn requested(&mut self, launched: &Launched) -> Option<Traffic> {
        let known = self.requested.iter().find(|(known, _)| known == launched);
        let requested = known.map_or_else(|| launched.requested(STEPS), |(_, traffic)| *traffic);
        if known.is_none() {
            self.requested.push((launched.clone(), requested));
        }
        requested
    }
}
