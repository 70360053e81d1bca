//! Loading in stages, and what a context has bound.

use crate::zoo::{Random, engine, inputs, load, run, source};
use graphene_frontend::dim::Symbol;
use graphene_frontend::onnx::{
    AttributeProto, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
    encode,
};
use graphene_ir::target::Target;
use graphene_runtime::{
    Bindings, Context, Dtype, Engine, Error, ErrorKind, Execution, Given, Imported, Input, Model,
    ModelBuilder, Profile, RequestedSizes, Role, Source, Specialised, Tensor,
};

fn sizes(named: &[(&str, usize)]) -> Bindings {
    let mut sizes = Bindings::new();
    for &(name, size) in named {
        sizes.bind(Symbol::new(name), size as i64).unwrap();
    }
    sizes
}

/// Whatever a host program does with them, from whatever thread.
#[test]
fn what_loads_goes_from_thread_to_thread() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Engine>();
    shared::<Source>();
    shared::<Imported>();
    shared::<ModelBuilder>();
    shared::<Model>();
    shared::<Error>();
    sent::<Context>();
}

#[test]
fn stages_make_what_loading_makes() {
    let engine = engine();
    let source = source("bert-base-tiny");
    let imported = source.import(&Given::default()).unwrap();
    let at = [("batch", 2), ("sequence", 9)];
    let whole = load(&engine, "bert-base-tiny", |model| model);
    let inputs = inputs(&whole, &at, &mut Random(3));
    let expected = run(&mut whole.context(), &inputs).unwrap();
    let builder = engine.model().typical("batch", 2).typical("sequence", 9);
    let planned = builder.plan(&imported.graph).unwrap();
    let steps = planned.program.steps().len();
    let plan = builder.bind(&planned, &sizes(&at)).unwrap();
    let model = builder.compile(planned).unwrap();
    assert_eq!((model.program().steps().len(), model.built()), (steps, None));
    assert_eq!(model.plan(&at).unwrap().to_string(), plan.to_string());
    let found = run(&mut model.context(), &inputs).unwrap();
    for (found, expected) in found.iter().zip(&expected) {
        let result = graphene_frontend::testdata::compare(found, expected, 1e-5, 1e-5).unwrap();
        assert!(result.agrees(), "{result}");
    }
    // By operations there are more launches.
    let library = engine.model().execution(Execution::Library);
    assert!(library.plan(&imported.graph).unwrap().program.steps().len() > steps);
}

#[test]
fn plans_for_other_targets_are_only_looked_at() {
    let engine = engine();
    let graph = source("bert-base-tiny").import(&Given::default()).unwrap().graph;
    let target: Target = "sm_90a".parse().unwrap();
    let builder = engine.model().target(target.clone()).dtype(Dtype::F16);
    assert!(!builder.is_for_engine());
    assert_eq!(builder.planned_for(), target);
    let planned = builder.plan(&graph).unwrap();
    // The engine's memory is not that device's.
    let large = sizes(&[("batch", 1 << 20), ("sequence", 128)]);
    assert!(builder.bind(&planned, &large).is_ok());
    let error = builder.compile(planned).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // Elements that a device has no kernels for are refused before anything is planned.
    for (dtype, text) in [
        (Dtype::F16, "f16 is for GPUs, not for cpu"),
        (Dtype::Tf32, "tf32 is for GPUs that have mma of tf32, not for cpu"),
    ] {
        let error = engine.model().dtype(dtype).plan(&graph).map(drop).unwrap_err();
        assert!(error.to_string().starts_with(text), "{error}");
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unsupported, 706));
    }
}

#[test]
fn what_is_bound_can_be_looked_at() {
    let profile = Profile::new().buckets("batch", [1, 4]).buckets("sequence", [16, 32]);
    let model = load(&engine(), "bert-base-tiny", |model| model.profile(profile));
    let (asked, bucket) = ([("batch", 3), ("sequence", 17)], [("batch", 4), ("sequence", 32)]);
    assert_eq!(model.fit(&asked).unwrap(), sizes(&bucket));
    assert_eq!(model.unpadded("batch"), None);
    let rows = model.combinations(&asked).unwrap();
    let expected = [(1, 16), (1, 32), (4, 16), (4, 32)];
    assert_eq!(rows, expected.map(|(n, s)| sizes(&[("batch", n), ("sequence", s)])));
    let mut context = model.context();
    let steps = model.program().steps().len();
    let bound = context.bind(&asked).unwrap();
    assert_eq!(bound.sizes(), &sizes(&bucket));
    assert_eq!(bound.plan().arena_bytes(), model.footprint(&asked).unwrap().arena);
    assert_eq!((bound.kernels().len(), bound.refusals()), (steps, &[][..]));
    let given = inputs(&model, &asked, &mut Random(4));
    let given: Vec<Input<'_>> = given.iter().map(Input::from).collect();
    let padded = context.padded(&given).unwrap();
    assert!(padded.iter().all(|tensor| tensor.shape() == [4, 32]));
    let ids: Vec<i64> = padded[0].as_slice::<i64>().unwrap().to_vec();
    assert!(ids[17..32].iter().chain(&ids[96..]).all(|&id| id == 0), "{ids:?}");
    let times = context.profile(&given).unwrap();
    assert_eq!(times.len(), steps);
    assert!(times.iter().all(|&seconds| seconds > 0.0 && seconds < 10.0), "{times:?}");
    let error = context.bind(&[("batch", 5), ("sequence", 16)]).unwrap_err();
    assert!(matches!(error, Error::Profile { .. }), "{error}");
}

/// A model of these nodes, which gives `y`; each input is a vector, whose dim is named.
fn vectors(inputs: &[[&str; 2]], node: Vec<NodeProto>) -> Source {
    let value = |name: &str, dim: Option<&str>| {
        let dim = dim.map(|dim| Dimension { value: Some(DimensionValue::DimParam(dim.into())) });
        let shape = TensorShapeProto { dim: dim.into_iter().collect() };
        let ty = TensorTypeProto { elem_type: 1, shape: Some(shape).filter(|s| !s.dim.is_empty()) };
        let r#type = Some(TypeProto { value: Some(TypeValue::TensorType(ty)) });
        ValueInfoProto { name: name.into(), r#type }
    };
    let input = inputs.iter().map(|[name, dim]| value(name, Some(dim))).collect();
    let graph = GraphProto { input, node, output: vec![value("y", None)], ..Default::default() };
    let opset = OperatorSetIdProto { version: 17, ..Default::default() };
    let model = ModelProto { opset_import: vec![opset], graph: Some(graph), ..Default::default() };
    Source::bytes(encode(&model))
}

fn node(op: &str, inputs: [&str; 2], output: &str) -> NodeProto {
    NodeProto {
        name: output.into(),
        op_type: op.into(),
        input: inputs.map(Into::into).to_vec(),
        output: vec![output.into()],
        ..Default::default()
    }
}

/// A sum of two vectors, whose import asks for the sizes of both: they may differ.
fn sum() -> Source {
    vectors(&[["x", "p"], ["z", "q"]], vec![node("Add", ["x", "z"], "y")])
}

#[test]
fn sizes_on_which_shapes_depend_are_asked_for() {
    let source = sum();
    let error = source.import(&Given::default()).map(drop).unwrap_err();
    assert!(matches!(&error, Error::NeedsSize { symbols, .. } if *symbols == ["p", "q"]));
    let declared = source.inputs().unwrap();
    let import = |p: i64, q: i64| {
        let mut sizes = RequestedSizes::default();
        sizes.dim(&declared, "p", p, "the caller")?;
        sizes.dim(&declared, "q", q, "the caller")?;
        source.import(&Given { sizes, ..Default::default() })
    };
    let imported = import(3, 3).unwrap();
    let of = |dim: &str| Specialised::Size(dim.to_owned(), 3);
    assert_eq!(imported.specialised, [of("p"), of("q")]);
    let error = import(3, 4).map(drop).unwrap_err();
    assert!(matches!(&error, Error::Baked { sizes, .. } if sizes == "p=3, q=4"), "{error}");
    assert!(error.to_string().ends_with("; this is so with p=3, q=4"), "{error}");
    let error = import(1 << 60, 1 << 60).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    // The batch is the dim that comes first, unless a name says another.
    let mut sizes = RequestedSizes::default();
    sizes.role(Role::Batch, 4, "a flag");
    sizes.dim(&declared, "p", 3, "an input").unwrap();
    let error = source.import(&Given { sizes, ..Default::default() }).map(drop).unwrap_err();
    let text = "a flag: dimension `p` cannot be 4: it is 3 by an input";
    assert_eq!((error.to_string().as_str(), error.code()), (text, 120));
    // A profile says them as well.
    let profile = Profile::new().exact("p", 3).exact("q", 3);
    let model = engine().model().profile(profile).load_from(&source).unwrap();
    assert_eq!(model.notes().last().map(String::as_str), Some("made for p=3, q=3 alone"));
    assert_eq!(model.dims().count(), 0);
    let x = Tensor::from_vec(vec![3], vec![1.0_f32, 2.0, 3.0]).unwrap();
    let twice = Tensor::from_vec(vec![3], vec![2.0_f32, 4.0, 6.0]).unwrap();
    assert_eq!(run(&mut model.context(), &[x.clone(), x]), Ok(vec![twice]));
}

/// `x[past]` and `z[sequence]` side by side, and `m[total]` added to them: a decoder's mask over a cache.
fn sum_of_dims() -> Source {
    let mut concat = node("Concat", ["x", "z"], "both");
    concat.attribute.push(AttributeProto { name: "axis".into(), r#type: 2, ..Default::default() });
    let inputs = [["x", "past"], ["z", "sequence"], ["m", "total"]];
    vectors(&inputs, vec![concat, node("Add", ["both", "m"], "y")])
}

/// A dim that must be the sum of others is one: the model runs at all sizes, and says which inputs do not fit.
#[test]
fn a_dim_may_be_the_sum_of_others() {
    let source = sum_of_dims();
    let imported = source.import(&Given::default()).unwrap();
    let listed = Specialised::list(&imported.specialised);
    assert_eq!(listed, "total=past + sequence");
    let model = engine().model().load_from(&source).unwrap();
    let mut context = model.context();
    let ones = |count: usize| Tensor::from_vec(vec![count], vec![1.0_f32; count]).unwrap();
    for (past, sequence) in [(5, 3), (1, 1), (8, 1)] {
        let total = past + sequence;
        let y = run(&mut context, &[ones(past), ones(sequence), ones(total)]);
        let twos = Tensor::from_vec(vec![total], vec![2.0_f32; total]).unwrap();
        assert_eq!(y, Ok(vec![twos]));
    }
    let refused = run(&mut context, &[ones(5), ones(3), ones(7)]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Request, "{refused}");
    // Sizes that say otherwise count: one is added to every element.
    let declared = source.inputs().unwrap();
    let mut sizes = RequestedSizes::default();
    for (dim, size) in [("past", 5), ("sequence", 3), ("total", 1)] {
        sizes.dim(&declared, dim, size, "the caller").unwrap();
    }
    let imported = source.import(&Given { sizes, ..Default::default() }).unwrap();
    let listed = Specialised::list(&imported.specialised);
    assert_eq!(listed, "past=5, sequence=3, total=1");
}

#[test]
fn sizes_are_settled_by_role() {
    let graph = source("bert-base-tiny").import(&Given::default()).unwrap().graph;
    let mut requested = RequestedSizes::default();
    let error = requested.settle(&graph).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "the model has dims without a size: `batch`, `sequence`");
    requested.role(Role::Batch, 4, "the caller");
    requested.default_of(Role::Sequence, 128);
    let sizing = requested.settle(&graph).unwrap();
    assert_eq!(sizing.sizes, sizes(&[("batch", 4), ("sequence", 128)]));
    assert_eq!(sizing.asked, sizes(&[("batch", 4)]));
    assert_eq!(sizing.roles.role(&Symbol::new("sequence")), Some(Role::Sequence));
}
