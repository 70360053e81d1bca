//! The embedding API on a GPU.

use super::{Failed, Outcome, ensure};
use crate::requests;
use crate::zoo::{Random, inputs, load, run};
use graphene_frontend::graph::Graph;
use graphene_frontend::op::{Binary, Op};
use graphene_runtime::{DType, Device, Engine, ErrorKind, Input, OutputMut, RunOptions, Tensor};
use std::thread;

fn engine() -> Result<Engine, Failed> {
    Ok(Engine::builder().device(Device::Cuda(0)).build()?)
}

/// Several callers, contexts and models on one GPU, callers that leave, deadlines; shapes are bound while others run.
pub(super) fn requests_side_by_side() -> Outcome {
    requests::serve(&engine()?, 10_000);
    Ok(())
}

/// What a GPU gives is what the CPU gives, within what single precision may differ by.
pub(super) fn models_agree_with_the_cpu() -> Outcome {
    let cpu = Engine::builder().device(Device::Cpu).build()?;
    for name in ["bert-base-tiny", "mlp-8x64", "lstm"] {
        let (on_gpu, on_cpu) = (load(&engine()?, name, |m| m), load(&cpu, name, |m| m));
        let sizes: Vec<_> =
            on_cpu.dims().map(|dim| (dim, if dim == "batch" { 3 } else { 17 })).collect();
        let inputs = inputs(&on_cpu, &sizes, &mut Random(2));
        let found = run(&mut on_gpu.context(), &inputs)?;
        for (found, expected) in found.iter().zip(run(&mut on_cpu.context(), &inputs)?) {
            let close = graphene_frontend::testdata::compare(found, &expected, 1e-3, 1e-4)?;
            ensure(close.agrees(), format!("{name}: {close}"))?;
        }
    }
    Ok(())
}

/// Weights are on the GPU once, however many contexts run the model, and a context gives back what it took.
pub(super) fn weights_are_there_once() -> Outcome {
    let engine = engine()?;
    let model = load(&engine, "mlp-16x2048", |model| model);
    let weights = engine.memory_used();
    ensure(weights > 200 << 20, format!("{weights} bytes of weights"))?;
    let inputs = inputs(&model, &[("batch", 32)], &mut Random(2));
    let expected = run(&mut model.context(), &inputs)?;
    let mut contexts: Vec<_> = (0..4).map(|_| model.context()).collect();
    thread::scope(|scope| {
        let calls = contexts.iter_mut().map(|context| scope.spawn(|| run(context, &inputs)));
        for call in calls.collect::<Vec<_>>() {
            let found = call.join().map_err(|_| "a thread panicked")??;
            ensure(found == expected, "another answer beside others")?;
        }
        Ok::<_, Failed>(())
    })?;
    let more = engine.memory_used() - weights;
    ensure(more < 64 << 20, format!("four contexts take {more} bytes"))?;
    drop(contexts);
    ensure(engine.memory_used() == weights, "contexts have not given back what they took")
}

/// A counter that stays on the GPU from run to run.
pub(super) fn state_stays() -> Outcome {
    let mut graph = Graph::new();
    let state = graph.add_input("state", "f32[n]".parse().map_err(|_| "a type")?)?;
    let x = graph.add_input("x", "f32[n]".parse().map_err(|_| "a type")?)?;
    let sum = graph.add("sum", Op::Binary(Binary::Add), &[Some(state), Some(x)])?.value();
    graph.add_output("next", sum);
    let engine = engine()?;
    let model = engine.model().load_graph(graph)?;
    let mut context = model.context();
    let mut now = engine.device_tensor(DType::F32, &[5])?;
    let mut next = engine.device_tensor(DType::F32, &[5])?;
    let (x, shape) = ([1.0_f32, 2.0, 3.0, 4.0, 5.0], [5]);
    for _ in 0..10 {
        let inputs = [Input::device(&now), Input::new(&x, &shape)];
        context.run_into(&inputs, &mut [OutputMut::device(&next)], &RunOptions::new())?;
        std::mem::swap(&mut now, &mut next);
    }
    let expected = Tensor::from_vec(vec![5], x.map(|x| 10.0 * x).to_vec())?;
    ensure(now.download()? == expected, "another state")
}

/// A request that the GPU has no memory for is refused, and the context goes on.
pub(super) fn a_full_gpu_refuses() -> Outcome {
    let engine = Engine::builder().device(Device::Cuda(0)).memory_limit(u64::MAX / 2).build()?;
    let model = load(&engine, "bert-base-tiny", |model| model);
    let mut context = model.context();
    let small = inputs(&model, &[("batch", 2), ("sequence", 16)], &mut Random(2));
    let expected = run(&mut context, &small)?;
    let error = context.bind(&[("batch", 2_000_000), ("sequence", 512)]).err();
    let kind = error.as_ref().map(graphene_runtime::Error::kind);
    ensure(kind == Some(ErrorKind::Limit), format!("{error:?}"))?;
    ensure(engine.health().is_ok(), "the engine is unhealthy")?;
    ensure(run(&mut context, &small)? == expected, "another answer afterwards")?;
    // An index that no kernel would refuse.
    let shape = [1, 2];
    let wild = Input::new(&[5_i64, 99_999], &shape);
    let ones = Input::new(&[1_i64, 1], &shape);
    let error = context.run(&[wild, ones, ones]).err();
    let code = error.as_ref().map(graphene_runtime::Error::code);
    ensure(code == Some(113), format!("{error:?}"))
}
