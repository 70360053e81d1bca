//! Groups with the steps that launch them, as text and as a picture.

use crate::base::groups::{Family, GroupId, Groups, group_name};
use crate::base::program::{Origin, Program, Step, StepId};
use graphene_frontend::dot::dot;
use graphene_frontend::graph::Graph;

impl Groups {
    /// Text: a line a group, with the step of the program that launches it, its family, its operations, and what it costs
    /// under the planning hints; `-` stands for the step of a change of view that moves nothing. Copies that the program
    /// makes for a group have lines of their own.
    pub fn print(&self, graph: &Graph, program: &Program) -> String {
        let mut text = String::new();
        for (i, group) in self.groups.iter().enumerate() {
            let id = GroupId(i as u32);
            let step = Self::number(program, id);
            text += &copies(program, Origin::Before(id), &format!("for {step}"));
            let name = group_name(graph, &group.nodes);
            text += &format!("{step} {} {name}", group.family);
            text += group.executor.suffix();
            text += &group.cost.map_or(String::new(), |cost| format!(": {cost}"));
            text.push('\n');
        }
        for (i, (name, _)) in program.outputs().iter().enumerate() {
            text += &copies(program, Origin::Output(i), &format!("into output {name:?}"));
        }
        text
    }

    /// The graph for Graphviz, its operations coloured by family and framed by group, with the program's steps.
    pub fn dot(&self, graph: &Graph, program: &Program) -> String {
        let mut text = dot(graph);
        text.truncate(text.trim_end().trim_end_matches('}').len());
        for (i, group) in self.groups.iter().enumerate().filter(|(_, g)| g.family != Family::View) {
            let colour = group.family.colour();
            let step = Self::number(program, GroupId(i as u32));
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

    /// The step that launches a group, as text.
    fn number(program: &Program, id: GroupId) -> String {
        program.step_of(id).map_or("-".to_owned(), |step| step.to_string())
    }
}

/// A line for each step of the program that is a copy there for this.
fn copies(program: &Program, origin: Origin, purpose: &str) -> String {
    let steps = program.step_ids().zip(program.steps());
    let copies = steps.filter(|(_, step)| step.origin == origin);
    let line =
        |(id, step): (StepId, &Step)| format!("{id} {} {} {purpose}\n", step.family, step.name);
    copies.map(line).collect()
}
