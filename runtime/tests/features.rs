//! What the features `ndarray` and `tracing` add.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use graphene_runtime::{Engine, Error, ErrorKind, Input, Model, Profile, Source};
use ndarray::{Array2, Array3, arr2};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// One test at a time: what a span of one thread asks of its listener, `tracing` keeps for all threads.
static ALONE: Mutex<()> = Mutex::new(());

fn model(profile: Profile) -> Model {
    let zoo = graphene_models::build("mlp-2x4", &graphene_models::Options::default()).unwrap();
    let source = Source::with_external(zoo.encode(), zoo.weights().clone());
    Engine::new().unwrap().model().profile(profile).load_from(&source).unwrap()
}

#[test]
fn arrays_are_inputs_and_outputs() {
    let _alone = ALONE.lock().unwrap();
    let model = model(Profile::new());
    let x = arr2(&[[1.0_f32, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]);
    let outputs = model.context().run(&[Input::array(&x).unwrap()]).unwrap();
    let y = outputs.array::<f32>("y").unwrap();
    assert_eq!(y.shape(), [2, 4]);
    assert_eq!(outputs.to_vec::<f32>("y").unwrap(), y.as_slice().unwrap());
    assert_eq!(outputs.array_view::<f32>("y").unwrap(), y);

    // A view of rows is contiguous, one of columns is not.
    let rows = x.slice(ndarray::s![1.., ..]);
    let second = model.context().run(&[Input::array(&rows).unwrap()]).unwrap();
    assert_eq!(second.array::<f32>("y").unwrap(), y.slice(ndarray::s![1.., ..]).into_dyn());
    let columns = x.slice(ndarray::s![.., ..2]);
    let refused = Input::array(&columns).unwrap_err();
    assert_eq!(refused, Error::NotContiguous { shape: vec![2, 2] });
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Request, 123));
    assert!(Input::array(&x.t()).is_err());
    assert!(Input::array(&Array3::<f32>::zeros((2, 0, 3))).is_ok());

    assert_eq!(outputs.array::<i64>("y").unwrap_err().kind(), ErrorKind::Request);
    assert_eq!(outputs.array::<f32>("z").unwrap_err().code(), 101);
    let _: Array2<f32> = y.into_dimensionality().unwrap();
}

/// Writes down spans as they are made and what is recorded of them.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<String>>>);

impl Listener {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

struct Fields<'a>(&'a Listener);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.note(format!("{field}={value:?}"));
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("graphene_runtime")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.note(span.metadata().name().to_owned());
        span.record(&mut Fields(self));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut Fields(self));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn runs_are_spans() {
    let _alone = ALONE.lock().unwrap();
    let listener = Listener::default();
    tracing::subscriber::with_default(listener.clone(), || {
        let model = model(Profile::new().buckets("batch", [1, 8]));
        let mut context = model.context();
        for batch in [3, 8] {
            context.run(&[Input::new(&vec![0.0_f32; batch * 4], &[batch, 4])]).unwrap();
        }
    });
    let expected = [
        "load",
        "dtype=Model",
        "execution=Fused",
        "run",
        r#"inputs="x: f32[3, 4]""#,
        "bind",
        r#"sizes="batch=8""#,
        r#"sizes="batch=3""#,
        r#"bound="batch=8""#,
        "padded=true",
        "run",
        r#"inputs="x: f32[8, 4]""#,
        r#"sizes="batch=8""#,
        r#"bound="batch=8""#,
        "padded=false",
    ];
    assert_eq!(*listener.0.lock().unwrap(), expected);
}
