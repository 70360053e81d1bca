//! Many requests at once: random shapes of several models, callers that leave, deadlines. Every answer is that of a run by
//! itself at the sizes that it ran at, bit for bit.

use crate::zoo::{Random, inputs, load, run};
use graphene_runtime::{
    Cancel, Engine, ErrorKind, Input, Model, Pool, Profile, Request, RunOptions, Tensor,
};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Threads that make requests.
const CALLERS: usize = 6;

/// A request: the model, its sizes, and the seed of its inputs.
type Key = (usize, usize, usize, u64);

struct Served {
    models: Vec<Model>,
    pools: Vec<Pool>,
    /// Answers of runs by themselves.
    known: Mutex<HashMap<Key, Vec<Tensor>>>,
}

impl Served {
    fn inputs(&self, (model, batch, sequence, seed): Key) -> Vec<Tensor> {
        let model = &self.models[model];
        let size = |dim| (dim, if dim == "batch" { batch } else { sequence });
        let sizes: Vec<_> = model.dims().map(size).collect();
        inputs(model, &sizes, &mut Random(seed))
    }

    /// The answer of a run by itself, in a context of its own.
    fn expected(&self, key: Key) -> Vec<Tensor> {
        if let Some(known) = self.known.lock().unwrap().get(&key) {
            return known.clone();
        }
        let outputs = run(&mut self.models[key.0].context(), &self.inputs(key)).unwrap();
        self.known.lock().unwrap().insert(key, outputs.clone());
        outputs
    }
}

#[test]
fn answers_are_those_of_runs_by_themselves() {
    serve(&crate::zoo::engine(), 10_000);
}

/// So many requests to pools of four models on an engine.
pub(crate) fn serve(engine: &Engine, requests: usize) {
    let buckets = Profile::new().buckets("sequence", [8, 32]).buckets("batch", [1, 2, 4]);
    let models = vec![
        load(engine, "bert-base-tiny", |model| model),
        load(engine, "bert-base-tiny", |model| model.profile(buckets)),
        load(engine, "mlp-8x64", |model| model),
        load(engine, "lstm-cell", |model| model),
    ];
    let pool = |model| Pool::builder(model).contexts(4).queue(CALLERS).keep(3).build().unwrap();
    let pools = models.iter().map(pool).collect();
    let served = Served { models, pools, known: Mutex::default() };
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (served, next, ended) = (&served, &next, &ended);
            scope.spawn(move || {
                let mut random = Random(caller as u64);
                while next.fetch_add(1, Ordering::Relaxed) < requests {
                    if !call(served, &mut random) {
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let ended = ended.into_inner();
    assert!(ended > requests / 50 && ended < requests / 2, "{ended} requests ended early");
    assert!(served.pools.iter().all(|pool| pool.waiting() == 0));
}

/// One request; whether it was answered.
fn call(served: &Served, random: &mut Random) -> bool {
    let model = random.below(4) as usize;
    let (batch, sequence) = (1 + random.below(4) as usize, 1 + random.below(24) as usize);
    let key = (model, batch, sequence, random.below(3));
    let inputs = served.inputs(key);
    let pool = &served.pools[model];
    let mut options = RunOptions::new();
    let (how, cancel) = (random.below(10), Cancel::new());
    if how == 0 {
        options = options.deadline(Instant::now() + Duration::from_micros(random.below(2000)));
    }
    if how == 1 {
        options = options.cancelled_by(&cancel);
    }
    let request =
        || inputs.iter().fold(Request::new(), |request, input| request.input(input.clone()));
    let found = match how {
        1 => match pool.submit(request(), &options) {
            Ok(pending) => {
                thread::yield_now();
                cancel.set();
                pending.wait()
            }
            Err(error) => Err(error),
        },
        // The caller leaves.
        2 => {
            drop(pool.submit(request(), &options));
            return false;
        }
        3 | 4 => pool.submit(request(), &options).and_then(|pending| pending.wait()),
        _ => {
            let views: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
            pool.run(&views, &options)
        }
    };
    match found {
        Ok(found) => {
            let expected = served.expected(key);
            assert_eq!(found.tensors().len(), expected.len());
            for (found, expected) in found.tensors().iter().zip(&expected) {
                assert!(found == expected, "{key:?} at {:?}", found.shape());
            }
            true
        }
        Err(error) => {
            let kind = error.kind();
            let early = matches!(kind, ErrorKind::Cancelled | ErrorKind::Deadline);
            assert!(early || kind == ErrorKind::Busy, "{error}");
            false
        }
    }
}
