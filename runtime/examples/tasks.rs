//! Runs a model from the tasks of an async runtime: `tasks [MODEL.onnx]`, an encoder with `input_ids` and
//! `attention_mask` first, the zoo's bert-base-tiny where no model is given.

use graphene_runtime::{Engine, Pool, Request, RunOptions, Source, Tensor};

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
    let pool = Pool::builder(&model).contexts(2).build()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(async {
        let tasks: Vec<_> = (1..=6)
            .map(|length| {
                let pool = pool.clone();
                runtime.spawn(async move {
                    let of = |value: i64| Tensor::from_vec(vec![1, length], vec![value; length]);
                    let mut request = Request::new().input(of(7)?).input(of(1)?);
                    if pool.model().inputs().len() > 2 {
                        request = request.input(of(0)?);
                    }
                    // The run has threads of its own: this task's thread does other work until it is done.
                    let outputs = pool.submit(request, &RunOptions::new())?.await?;
                    Ok::<_, graphene_runtime::Error>(format!("length {length}: {:?}", outputs[0]))
                })
            })
            .collect();
        for task in tasks {
            println!("{}", task.await??);
        }
        Ok(())
    })
}
