//! Runs a model from several threads: `pooled [MODEL.onnx]`, an encoder with `input_ids` and `attention_mask` first, the
//! zoo's bert-base-tiny where no model is given.

use graphene_runtime::{Cancel, Engine, Error, Input, Pool, Profile, RunOptions, Source};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder().threads(2).memory_limit(2 << 30).build()?;
    // Requests run at the smallest of these batches that holds them; the contexts bind four sizes, not eight.
    let profile = Profile::new().buckets("batch", [1, 2, 4, 8]);
    let builder = engine.model().profile(profile);
    let model = match std::env::args().nth(1) {
        Some(path) => builder.load(path)?,
        None => {
            let zoo =
                graphene_models::build("bert-base-tiny", &graphene_models::Options::default())?;
            builder.load_from(&Source::with_external(zoo.encode(), zoo.weights().clone()))?
        }
    };
    let pool = Pool::builder(&model).contexts(2).queue(16).build()?;
    println!("weights: {} bytes, once", engine.memory_used());

    std::thread::scope(|scope| {
        let (pool, model) = (&pool, &model);
        let request = |batch: usize| {
            let (ids, shape) = (vec![7_i64; batch * 4], [batch, 4]);
            let (ones, zeros) = (vec![1_i64; batch * 4], vec![0_i64; batch * 4]);
            let elements = [&ids, &ones, &zeros];
            let inputs: Vec<_> = elements.map(|all| Input::new(all, &shape)).into();
            let options = RunOptions::new().deadline(Instant::now() + Duration::from_secs(30));
            let outputs = pool.run(&inputs[..model.inputs().len()], &options)?;
            Ok::<_, Error>(format!("batch {batch} ran at {:?}: {:?}", outputs.sizes(), outputs[0]))
        };
        let threads: Vec<_> = (1..=8).map(|batch| scope.spawn(move || request(batch))).collect();
        for thread in threads {
            match thread.join().expect("requests give errors, no panics") {
                Ok(line) => println!("{line}"),
                Err(error) => println!("{:?} {}: {error}", error.kind(), error.code()),
            }
        }
    });

    // Who waits for a context may be told to go.
    let cancel = Cancel::new();
    cancel.set();
    let refused = pool.acquire(&RunOptions::new().cancelled_by(&cancel)).err();
    println!(
        "a cancelled request: {}",
        refused.map_or_else(String::new, |error| error.to_string())
    );
    Ok(())
}
