//! Loads a model and runs it once: `minimal [MODEL.onnx]`, the zoo's bert-base-tiny where no model is given.

use graphene_runtime::{DType, Dim, Engine, Input, Source, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new()?;
    let model = match std::env::args().nth(1) {
        Some(path) => engine.load(path)?,
        None => {
            let zoo =
                graphene_models::build("bert-base-tiny", &graphene_models::Options::default())?;
            engine.model().load_from(&Source::with_external(zoo.encode(), zoo.weights().clone()))?
        }
    };
    println!("on {} with {} threads", engine.device().name, engine.threads());

    // Ones for token ids, masks and all else; dims that a request may choose become 4.
    let mut inputs = Vec::new();
    for port in model.inputs() {
        println!("input {port}");
        let size = |dim: &Dim| dim.known().map_or(4, |size| size as usize);
        let shape: Vec<usize> = port.dims().iter().map(size).collect();
        let count = shape.iter().product();
        inputs.push(match port.dtype() {
            DType::I64 => Tensor::from_vec(shape, vec![1_i64; count])?,
            DType::I32 => Tensor::from_vec(shape, vec![1_i32; count])?,
            DType::Bool => Tensor::from_bools(shape, vec![true; count])?,
            _ => Tensor::from_vec(shape, vec![1.0_f32; count])?,
        });
    }
    let inputs: Vec<Input> = inputs.iter().map(Input::from).collect();

    let mut context = model.context();
    let outputs = context.run(&inputs)?;
    for (name, tensor) in outputs.iter() {
        println!("output {name}: {tensor:?}");
    }
    println!("{} bytes of intermediates", context.arena_bytes());
    Ok(())
}
