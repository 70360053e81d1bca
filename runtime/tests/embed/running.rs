//! Contexts: inputs by name and position, outputs of their own and of the caller's, sizes, buckets, footprints.

use crate::zoo::{Random, engine, inputs, load, run, source};
use graphene_frontend::eval::evaluate;
use graphene_frontend::import::{ImportOptions, import};
use graphene_frontend::testdata::compare;
use graphene_models::{Options, build};
use graphene_runtime::{
    DType, Device, Engine, Error, ErrorKind, Execution, Input, Model, OutputMut, Pool, Profile,
    RunOptions,
};

const fn is_shared<T: Clone + Send + Sync>() {}
const fn is_sent<T: Send>() {}
const _: () = {
    is_shared::<Engine>();
    is_shared::<Model>();
    is_shared::<Pool>();
    is_sent::<graphene_runtime::Context>();
    is_sent::<graphene_runtime::Lease>();
    is_sent::<graphene_runtime::Pending>();
    is_sent::<graphene_runtime::Acquire>();
};

#[test]
fn outputs_are_those_of_the_reference() {
    for execution in [Execution::Fused, Execution::Library] {
        for name in ["bert-base-tiny", "lstm", "mlp-8x64"] {
            let zoo = build(name, &Options::default()).unwrap();
            let graph =
                import(zoo.encode(), zoo.weights(), &ImportOptions::default()).unwrap().graph;
            let model = load(&engine(), name, |model| model.execution(execution));
            let mut context = model.context();
            for (batch, sequence) in [(1, 7), (3, 16), (1, 7)] {
                let sizes: Vec<_> = model
                    .dims()
                    .map(|dim| (dim, if dim == "batch" { batch } else { sequence }))
                    .collect();
                let inputs = inputs(&model, &sizes, &mut Random(3));
                let expected = evaluate(&graph, &inputs).unwrap();
                let found = run(&mut context, &inputs).unwrap();
                for (found, expected) in found.iter().zip(&expected) {
                    let result = compare(found, expected, 1e-3, 1e-4).unwrap();
                    assert!(result.agrees(), "{name} {batch}x{sequence}: {result}");
                }
            }
        }
    }
}

#[test]
fn inputs_and_outputs_go_by_name_and_by_position() {
    let model = load(&engine(), "bert-base-tiny", |model| model);
    let ports: Vec<String> = model.inputs().iter().map(ToString::to_string).collect();
    assert_eq!(ports[0], "input_ids: i64[batch, sequence]");
    let mut context = model.context();
    let (ids, ones, zeros) = ([5_i64, 6, 7], [1_i64; 3], [0_i64; 3]);
    let shape = [1, 3];
    let input = |x| Input::new(x, &shape);
    let ordered = context.run(&[input(&ids), input(&ones), input(&zeros)]).unwrap();
    let named = [
        input(&zeros).named("token_type_ids"),
        input(&ids).named("input_ids"),
        input(&ones).named("attention_mask"),
    ];
    let named = context.run(&named).unwrap();
    assert_eq!(ordered.tensors(), named.tensors());
    let (name, hidden) = named.iter().next().unwrap();
    assert_eq!(hidden.shape(), [1, 3, 64]);
    let mut memory = vec![0.0_f32; 3 * 64];
    let mut wanted = [OutputMut::new(&mut memory).named(name)];
    let all = [input(&ids), input(&ones), input(&zeros)];
    context.run_into(&all, &mut wanted, &RunOptions::new()).unwrap();
    assert_eq!(named.to_vec::<f32>(name).unwrap(), memory);
    // Bytes that no element is aligned to are copied.
    #[expect(
        clippy::useless_vec,
        reason = "memory of the heap is aligned, so that its second byte is not"
    )]
    let mut bytes = vec![0_u8; 8 * 3 + 1];
    bytes[1..].copy_from_slice(bytemuck::cast_slice(&ids));
    let unaligned = Input::bytes(DType::I64, &bytes[1..], &shape);
    let again = context.run(&[unaligned, input(&ones), input(&zeros)]).unwrap();
    assert_eq!(again.tensors(), ordered.tensors());
}

#[test]
fn requests_that_do_not_fit_say_what_is_needed_and_what_was_given() {
    let profile = Profile::new().range("sequence", 1..=32);
    let model = load(&engine(), "bert-base-tiny", |model| model.profile(profile));
    let mut context = model.context();
    let (ids, shape) = ([1_i64; 8], [2, 4]);
    let good = Input::new(&ids, &shape);
    let long = ([1_i64; 33], [1, 33]);
    let long = Input::new(&long.0, &long.1);
    let floats = [0.0_f32; 8];
    let other = Input::new(&ids, &[4, 2]);
    let rows: &[(&[Input<'_>], u16, &str)] = &[
        (&[good, good], 102, "input \"token_type_ids\" (i64[batch, sequence]) is missing"),
        (&[good, good, good, good], 104, "the program takes 3 inputs, but 4 were given"),
        (
            &[good, good, good.named("ids")],
            101,
            "the model has no input \"ids\"; it has input_ids, attention_mask, token_type_ids",
        ),
        (&[good, good.named("input_ids"), good], 103, "input \"input_ids\" is given twice"),
        (
            &[good, Input::new(&floats, &shape), good],
            105,
            "input \"attention_mask\" must be i64[batch, sequence], but is f32[2, 4] in 32 bytes",
        ),
        (
            &[good, Input::new(&ids[1..], &shape), good],
            105,
            "input \"attention_mask\" must be i64[batch, sequence], but is i64[2, 4] in 56 bytes",
        ),
        (
            &[good, other, good],
            107,
            "input \"attention_mask\" has 4 along axis 0, where `batch` is 2 by input \"input_ids\"",
        ),
        (
            &[Input::new(&ids, &[8]), good, good],
            105,
            "input \"input_ids\" must be i64[batch, sequence], but is a tensor of shape [8]",
        ),
        (&[long, long, long], 109, "sequence=33 is not in the model's profile: 1 to 32"),
    ];
    for (inputs, code, text) in rows {
        let error = context.run(inputs).unwrap_err();
        assert_eq!((error.code(), error.to_string().as_str()), (*code, *text));
        assert_eq!(error.kind(), ErrorKind::Request);
    }
    assert!(context.run(&[good, good, good]).is_ok());
    let wild = [1_i64, 1, 1, 9999, 1, 1, 1, 1];
    let error = context.run(&[Input::new(&wild, &shape), good, good]).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Request, 113), "{error}");
    let mut short = [0.0_f32; 3];
    let mut memory = [OutputMut::new(&mut short)];
    let error = context.run_into(&[good, good, good], &mut memory, &RunOptions::new()).unwrap_err();
    assert_eq!(error.code(), 106, "{error}");
    assert!(context.run(&[good, good, good]).is_ok());
}

#[test]
fn buckets_fill_inputs_and_cut_outputs() {
    let profile = Profile::new().buckets("batch", [4, 1]).buckets("sequence", [16, 32]);
    let plain = load(&engine(), "bert-base-tiny", |model| model);
    let bucketed = load(&engine(), "bert-base-tiny", |model| model.profile(profile).warm());
    assert!(bucketed.notes().is_empty(), "{:?}", bucketed.notes());
    let (mut exact, mut context) = (plain.context(), bucketed.context());
    for (batch, sequence, at) in [(1, 16, [1, 16]), (2, 9, [4, 16]), (3, 31, [4, 32])] {
        let sizes = [("batch", batch), ("sequence", sequence)];
        let inputs = inputs(&plain, &sizes, &mut Random(5));
        let expected = run(&mut exact, &inputs).unwrap();
        let views: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
        let found = context.run(&views).unwrap();
        let ran: Vec<i64> = found.sizes().iter().map(|(_, size)| size).collect();
        assert_eq!(ran, at);
        for (found, expected) in found.tensors().iter().zip(&expected) {
            let result = compare(found, expected, 1e-4, 1e-5).unwrap();
            assert!(result.agrees(), "{batch}x{sequence}: {result}");
        }
        let mut memory: Vec<Vec<u8>> =
            expected.iter().map(|tensor| vec![0; tensor.bytes().len()]).collect();
        let mut wanted: Vec<OutputMut<'_>> =
            memory.iter_mut().map(|bytes| OutputMut::bytes(DType::F32, bytes)).collect();
        context.run_into(&views, &mut wanted, &RunOptions::new()).unwrap();
        for (bytes, found) in memory.iter().zip(found.tensors()) {
            assert_eq!(bytes, found.bytes());
        }
    }
    let sizes = [("batch", 5), ("sequence", 4)];
    let error = run(&mut context, &inputs(&plain, &sizes, &mut Random(5))).unwrap_err();
    assert_eq!(error.to_string(), "batch=5 is not in the model's profile: at most 4");
}

#[test]
fn footprints_are_what_contexts_take() {
    let engine = engine();
    let model = load(&engine, "bert-base-tiny", |model| model);
    let weights = engine.memory_used();
    let sizes = [("batch", 2), ("sequence", 33)];
    let footprint = model.footprint(&sizes).unwrap();
    assert_eq!((footprint.weights, footprint.inputs), (weights, 3 * 8 * 2 * 33));
    assert_eq!(engine.memory_used(), weights);
    let mut context = model.context();
    run(&mut context, &inputs(&model, &sizes, &mut Random(1))).unwrap();
    assert_eq!(context.arena_bytes() as u64, footprint.arena);
    assert_eq!(engine.memory_used(), weights + footprint.arena);
    // Smaller requests take no more, and what is dropped is given back.
    run(&mut context, &inputs(&model, &[("batch", 1), ("sequence", 3)], &mut Random(1))).unwrap();
    assert_eq!(engine.memory_used(), weights + footprint.arena);
    drop(context);
    assert_eq!(engine.memory_used(), weights);
    drop(model);
    assert_eq!(engine.memory_used(), 0);
    let error =
        engine.model().profile(Profile::new().exact("rows", 3)).load_from(&source("mlp-8x64"));
    let error = error.unwrap_err();
    assert!(matches!(error, Error::UnknownDim { .. }), "{error}");
}

#[test]
fn what_no_request_can_fit_is_refused_before_any() {
    let engine = engine();
    let (from, to) = (9, 3);
    let empty = [Profile::new().buckets("batch", []), Profile::new().range("batch", from..=to)];
    for profile in empty {
        let loaded = engine.model().profile(profile).load_from(&source("mlp-8x64"));
        let error = loaded.unwrap_err();
        assert!(matches!(error, Error::EmptyProfile { .. }), "{error}");
        assert_eq!((error.kind(), error.code()), (ErrorKind::Request, 124));
    }
    let error = Engine::builder().device(Device::Cpu).threads(100_000).build().unwrap_err();
    assert!(error.to_string().contains("100000 are asked for, and at most 1024"), "{error}");
}
