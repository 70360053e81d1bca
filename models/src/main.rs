//! `graphene-models NAME -o FILE`: writes a model of the zoo as ONNX.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use graphene_models::{Activation, Options, Source, Storage, ZooError, build, names};

/// Writes a model of the zoo as ONNX
#[derive(Debug, Parser)]
#[command(name = "graphene-models", version)]
struct Arguments {
    /// Name of the model; --list prints them
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// File to write
    #[arg(short, long, value_name = "FILE", required_unless_present = "list")]
    output: Option<PathBuf>,
    /// Print the names and what they are
    #[arg(long)]
    list: bool,
    /// Seed of the weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of encoder layers, or depth of an MLP
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Width of an MLP, LSTM, LSTM cell or LayerNorm
    #[arg(long, value_name = "N")]
    width: Option<usize>,
    /// Activation of an MLP
    #[arg(long, value_parser = activation())]
    activation: Option<Activation>,
    /// ONNX opset, 11 to 20
    #[arg(long, value_name = "N", default_value_t = 17)]
    opset: i64,
    /// Write LayerNorm as its arithmetic where the opset has it whole
    #[arg(long)]
    decomposed_layer_norm: bool,
    /// Python source that an encoder's graph follows
    #[arg(long, value_parser = source(), default_value_t = Source::default())]
    source: Source,
    /// Put the weights beside the model whatever their size
    #[arg(long)]
    external: bool,
}

fn activation() -> impl TypedValueParser<Value = Activation> {
    let known = PossibleValuesParser::new(Activation::ALL.map(Activation::name));
    known.try_map(|name| {
        Activation::ALL.into_iter().find(|known| known.name() == name).ok_or("no such activation")
    })
}

fn source() -> impl TypedValueParser<Value = Source> {
    let known = PossibleValuesParser::new(Source::ALL.map(Source::name));
    known.try_map(|name| {
        Source::ALL.into_iter().find(|known| known.name() == name).ok_or("no such source")
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        return list();
    }
    let (Some(name), Some(output)) = (&arguments.name, &arguments.output) else {
        // Clap has asked for both unless --list is there.
        return ExitCode::from(2);
    };
    match write(name, output, &arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("graphene-models: {error}");
            ExitCode::from(exit_code(&error))
        }
    }
}

/// 2 for what the caller asked wrongly, 1 for what failed here.
fn exit_code(error: &ZooError) -> u8 {
    match error {
        ZooError::UnknownName { .. }
        | ZooError::Option { .. }
        | ZooError::TooLarge { .. }
        | ZooError::NotAFile(_) => 2,
        ZooError::Write { .. } => 1,
    }
}

fn list() -> ExitCode {
    let width = names().map(|(name, _)| name.len()).max().unwrap_or_default();
    let mut out = std::io::stdout().lock();
    for (name, about) in names() {
        // A reader that has seen enough, such as `head`, is no failure.
        if writeln!(out, "{name:width$}  {about}").is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn write(name: &str, output: &std::path::Path, arguments: &Arguments) -> Result<(), ZooError> {
    let options = Options {
        seed: arguments.seed,
        layers: arguments.layers,
        width: arguments.width,
        activation: arguments.activation,
        opset: arguments.opset,
        decomposed_layer_norm: arguments.decomposed_layer_norm,
        source: arguments.source,
    };
    let model = build(name, &options)?;
    let storage = if arguments.external { Storage::External } else { Storage::Auto };
    let terminal = std::io::stderr().is_terminal();
    let mut shown = None;
    model.write_as(output, storage, &mut |done, total| {
        let percent = done.saturating_mul(100) / total.max(1);
        if terminal && shown != Some(percent) {
            eprint!("\r{name}: {percent:3} % of {} MB", total / 1_000_000);
            shown = Some(percent);
        }
    })?;
    if shown.is_some() {
        eprintln!();
    }
    Ok(())
}
