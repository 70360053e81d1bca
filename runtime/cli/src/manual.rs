//! What is made of the command line's description: the end of its help, the manual page, completions for shells.

use crate::args::Arguments;
use crate::exit::{self, Exit};
use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// What people do most, and how.
const EXAMPLES: [(&str, &str); 7] = [
    (
        "graphene-run model.onnx --batch 8 --seq 128",
        "times fused beside library execution, and compares their outputs",
    ),
    (
        "graphene-run minilm/ --text \"A fine day.\" --text \"Rain again.\"",
        "embeddings or labels of texts, by a folder's tokenizer",
    ),
    ("graphene-run resnet/ --input pixel_values=@cat.png", "labels of an image"),
    ("graphene-run model.onnx --inputs in.npz --save-outputs out.npz", "runs on your own data"),
    ("graphene-run model.onnx --data test_data_set_0", "checks outputs against recorded ones"),
    (
        "graphene-run model.onnx --batch 8 --report page.html",
        "shows the graph, its kernels and their times",
    ),
    (
        "graphene-run zoo:bert-base --target sm_90a --emit cuda",
        "prints the kernels for a GPU, on any machine",
    ),
];

/// The end of the help.
pub(crate) fn after_help() -> String {
    let example = |(command, what): (&str, &str)| format!("  {command}\n      {what}\n");
    format!("Examples:\n{}\n{}", EXAMPLES.map(example).concat(), exit::table())
}

/// What is asked for of the description, and nothing of a model.
pub(crate) fn page(arguments: &Arguments) -> Option<String> {
    if let Some(shell) = arguments.completions {
        let mut script = Vec::new();
        let mut command = Arguments::command();
        let name = command.get_name().to_owned();
        clap_complete::generate(shell, &mut command, name, &mut script);
        return Some(String::from_utf8_lossy(&script).into_owned());
    }
    arguments.man.then(man)
}

/// The manual page, in roff.
fn man() -> String {
    // Its own sections have what stands at the end of the help.
    let command = Arguments::command().after_help("");
    let man = Man::new(command);
    let mut page = Vec::new();
    let sections = [Man::render_title, Man::render_name_section, Man::render_synopsis_section];
    let more = [Man::render_description_section, Man::render_options_section];
    for section in sections.into_iter().chain(more) {
        section(&man, &mut page).expect("memory takes all that is written");
    }
    let mut end = Roff::new();
    end.control("SH", ["EXAMPLES"]);
    for (command, what) in EXAMPLES {
        end.control("TP", []).text([bold(command)]).text([roman(what)]);
    }
    end.control("SH", ["EXIT STATUS"]);
    for exit in Exit::ALL {
        end.control("TP", []).text([bold(exit.code().to_string())]).text([roman(exit.meaning())]);
    }
    String::from_utf8_lossy(&page).into_owned() + &end.render()
}

#[cfg(test)]
mod tests {
    use super::EXAMPLES;
    use crate::args::Arguments;
    use clap::Parser;

    #[test]
    fn examples_are_commands() {
        for (command, _) in EXAMPLES {
            // Texts in quotes are one argument.
            let parts = command.split('"').enumerate();
            let words = parts.flat_map(|(place, part)| match place % 2 {
                0 => part.split_whitespace().collect(),
                _ => vec![part],
            });
            let parsed = Arguments::try_parse_from(words);
            assert!(parsed.is_ok_and(|arguments| arguments.check().is_ok()), "{command}");
        }
    }
}
