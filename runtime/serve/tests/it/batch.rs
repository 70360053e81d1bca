//! Requests that run together answer as they do alone.

use crate::harness::{cpu, serve};
use graphene_runtime::{Context, Input, Model, Tensor};
use graphene_serve::{
    BatchConfig, Error, InferRequest, InferResponse, ModelConfig, Server, ServerConfig, Version,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

/// Inputs of these sizes: indices within the vocabulary, masks of ones, other numbers small.
fn request(model: &Model, rows: usize, length: usize, random: &mut Random) -> InferRequest {
    let tensor = |(number, port): (usize, &graphene_runtime::Port)| {
        let shape: Vec<usize> = port
            .dims()
            .iter()
            .enumerate()
            .map(|(axis, dim)| match (dim.known(), axis) {
                (Some(size), _) => size as usize,
                (None, 0) => rows,
                (None, _) => length,
            })
            .collect();
        let count = shape.iter().product();
        let tensor = match port.dtype() {
            graphene_runtime::DType::I64 => {
                let mask = port.name().contains("mask");
                let ids = number == 0;
                let value = |random: &mut Random| {
                    if mask {
                        1
                    } else if ids {
                        random.below(1000) as i64
                    } else {
                        0
                    }
                };
                Tensor::from_vec(shape, (0..count).map(|_| value(random)).collect())
            }
            _ => Tensor::from_vec(
                shape,
                (0..count).map(|_| random.below(1000) as f32 / 500.0 - 1.0).collect(),
            ),
        };
        (port.name().to_owned(), tensor.unwrap())
    };
    let inputs = model.inputs().iter().enumerate().map(tensor).collect();
    InferRequest { inputs, ..InferRequest::default() }
}

/// What a request gives alone, at the sizes and in the row at which the server ran it.
fn alone(context: &mut Context, request: &InferRequest, response: &InferResponse) -> Vec<Vec<u8>> {
    let model = context.model().clone();
    let size = |dim: &str| response.ran.sizes.iter().find(|(name, _)| name == dim).unwrap().1;
    let mut inputs = Vec::new();
    let mut cuts = Vec::new();
    for (port, (_, tensor)) in model.inputs().iter().zip(&request.inputs) {
        let shape: Vec<usize> = port
            .dims()
            .iter()
            .map(|dim| dim.known().map_or_else(|| size(&dim.to_string()), |size| size as usize))
            .collect();
        let element = tensor.dtype().size();
        let mut bytes = vec![0; shape.iter().product::<usize>() * element];
        let width = |shape: &[usize]| element * shape[1..].iter().product::<usize>();
        let (wide, narrow) = (width(&shape), width(tensor.shape()));
        for row in 0..tensor.shape()[0] {
            let at = (response.ran.row + row) * wide;
            bytes[at..at + narrow].copy_from_slice(&tensor.bytes()[row * narrow..][..narrow]);
        }
        inputs.push(Tensor::new(port.dtype(), shape, bytes.into()).unwrap());
    }
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let outputs = context.run(&inputs).unwrap();
    for ((_, whole), (_, given)) in outputs.iter().zip(&response.outputs) {
        let element = whole.dtype().size();
        let width = |shape: &[usize]| element * shape[1..].iter().product::<usize>();
        let (wide, narrow) = (width(whole.shape()), width(given.shape()));
        let mut bytes = Vec::new();
        for row in 0..given.shape()[0] {
            bytes.extend(&whole.bytes()[(response.ran.row + row) * wide..][..narrow]);
        }
        cuts.push(bytes);
    }
    cuts
}

fn together(rows: usize, multiple: usize, contexts: usize) -> ServerConfig {
    let batch =
        BatchConfig { rows, multiple: Some(multiple), padding: 0.5, ..BatchConfig::default() };
    ServerConfig {
        model: ModelConfig { batch, contexts: Some(contexts), ..ModelConfig::default() },
        ..ServerConfig::default()
    }
}

/// As many requests of random sizes at once, each compared with its run alone, bit for bit.
async fn check(models: &str, config: ServerConfig, count: usize, callers: usize) -> usize {
    let server = Server::new(&cpu(), models, config).unwrap();
    let version = server.find_or_only(None).unwrap();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let version = Arc::clone(&version);
            tokio::spawn(async move {
                let mut random = Random(caller as u64 * 7919 + 1);
                let mut answers = Vec::new();
                for _ in 0..count / callers {
                    let (rows, length) = (1 + random.below(3), 1 + random.below(40));
                    let request = request(version.model(), rows, length, &mut random);
                    if random.below(20) == 0 {
                        // A caller that leaves.
                        let wait = Duration::from_micros(random.below(300) as u64);
                        let _ = tokio::time::timeout(wait, version.infer(request)).await;
                        continue;
                    }
                    let response = version.infer(request.clone()).await.unwrap();
                    answers.push((request, response));
                }
                answers
            })
        })
        .collect();
    let mut context = version.model().context().keep(512);
    let (mut compared, mut beside) = (0, 0);
    for task in tasks {
        for (request, response) in task.await.unwrap() {
            let expected = alone(&mut context, &request, &response);
            for ((name, tensor), expected) in response.outputs.iter().zip(&expected) {
                assert_eq!(tensor.bytes(), expected, "{name} of {:?}", response.ran);
            }
            compared += 1;
            let batch = response.ran.sizes.first().map_or(1, |(_, size)| *size);
            beside += usize::from(batch > request.inputs[0].1.shape()[0]);
        }
    }
    assert!(compared > count * 9 / 10, "{compared} were compared");
    beside
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_answer_as_alone() {
    let beside = check("zoo:bert-base-tiny", together(16, 1, 1), 6000, 24).await;
    assert!(beside > 600, "only {beside} ran beside others");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounded_sizes_answer_as_alone() {
    let beside = check("zoo:bert-base-tiny", together(64, 16, 2), 2000, 32).await;
    assert!(beside > 200, "only {beside} ran beside others");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_without_a_length_answer_as_alone() {
    // Most take less time than a thread needs to wake, and run where they are.
    check("zoo:mlp-2x4", together(64, 1, 2), 2000, 32).await;
}

/// A version of bert-base-tiny whose one context is busy for a while, as long as the task is not awaited.
async fn busy(config: ServerConfig) -> (Server, Arc<Version>, tokio::task::JoinHandle<()>) {
    let server = Server::new(&cpu(), "zoo:bert-base-tiny", config).unwrap();
    let version = server.find_or_only(None).unwrap();
    let long = request(version.model(), 64, 500, &mut Random(1));
    let running = Arc::clone(&version);
    let task = tokio::spawn(async move {
        running.infer(long).await.unwrap();
    });
    // It is taken from the queue at once.
    tokio::time::sleep(Duration::from_millis(20)).await;
    (server, version, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_row_fails_alone() {
    let (_server, version, task) = busy(together(64, 1, 1)).await;
    let ask = |id: i64, length: usize| {
        let version = Arc::clone(&version);
        let mut request = request(version.model(), 1, length, &mut Random(3));
        if id != 0 {
            let mut ids = request.inputs[0].1.as_slice::<i64>().unwrap().to_vec();
            ids[length / 2] = id;
            request.inputs[0].1 = Tensor::from_vec(vec![1, length], ids).unwrap();
        }
        tokio::spawn(async move { version.infer(request).await })
    };
    let good: Vec<_> = (0..8).map(|_| ask(0, 24)).collect();
    let bad = ask(-1_000_000, 24);
    let late: Vec<_> = (0..8).map(|_| ask(0, 24)).collect();
    for answer in good.into_iter().chain(late) {
        answer.await.unwrap().unwrap();
    }
    let error = bad.await.unwrap().unwrap_err();
    assert_eq!(error.class().http, 400, "{error}");
    assert!(error.to_string().contains("1000000"), "{error}");
    task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_and_deadlines_are_refused() {
    let mut config = together(1, 1, 1);
    config.limits.queue = 3;
    let (_server, version, task) = busy(config).await;
    let ask = |number: u64, within: Duration| {
        let version = Arc::clone(&version);
        let mut asked = request(version.model(), 1, 8, &mut Random(number));
        asked.deadline = Some(Instant::now() + within);
        tokio::spawn(async move { version.infer(asked).await })
    };
    let minute = Duration::from_secs(60);
    let mut waiting: Vec<_> = (0..3).map(|number| ask(number, minute)).collect();
    while version.waiting() < 3 {
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    let refused = ask(3, minute).await.unwrap().unwrap_err();
    assert_eq!(refused, Error::Busy { name: "bert-base-tiny".to_owned(), waiting: 3 });
    assert_eq!(refused.class().http, 429);
    // One who leaves makes place for another, who does not wait long.
    waiting.pop().unwrap().abort();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let late = ask(4, Duration::from_millis(2)).await.unwrap().unwrap_err();
    assert_eq!((late.class().http, late.to_string().contains("deadline")), (504, true), "{late}");
    for task in waiting {
        task.await.unwrap().unwrap();
    }
    task.await.unwrap();
    ask(5, minute).await.unwrap().unwrap();
    let counted = version.statistics();
    assert_eq!((counted.fail.count, counted.success.count), (2, 4), "{counted:?}");
}

/// A run whose callers have all left ends before its next step, and so does one whose deadline passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_nobody_waits_for_end() {
    let server = Server::new(&cpu(), "zoo:bert-base-tiny", together(64, 1, 1)).unwrap();
    let version = server.find_or_only(None).unwrap();
    let began = Instant::now();
    let whole = version
        .infer(request(version.model(), 64, 500, &mut Random(1)))
        .await
        .unwrap()
        .ran
        .computed;
    for late in [false, true] {
        for _ in 0..4 {
            let mut long = request(version.model(), 64, 500, &mut Random(1));
            if late {
                long.deadline = Some(Instant::now() + whole / 20);
                let refused = version.infer(long).await.unwrap_err();
                assert_eq!(refused.class().http, 504);
            } else {
                let left = tokio::time::timeout(whole / 20, version.infer(long)).await;
                assert!(left.is_err());
            }
        }
    }
    // The next one does not wait for eight whole runs.
    let next = version.infer(request(version.model(), 1, 8, &mut Random(2))).await.unwrap();
    assert!(next.ran.queued < whole, "{next:?} after {:?}", began.elapsed());
}

/// What makes a good request a wrong one.
type Change = Box<dyn Fn(&mut InferRequest)>;

#[tokio::test]
async fn names_and_types_are_checked_before_anything_runs() {
    let running = serve("zoo:bert-base-tiny", ServerConfig::default()).await;
    let version = running.server.find_or_only(None).unwrap();
    let good = request(version.model(), 1, 4, &mut Random(1));
    let first = good.inputs[0].0.clone();
    let floats = Tensor::zeros(graphene_runtime::DType::F32, vec![1, 4]).unwrap();
    let cases: Vec<(&str, Change)> = vec![
        ("has no input \"x\"", Box::new(|request| request.inputs[0].0 = "x".to_owned())),
        ("is missing", Box::new(|request| drop(request.inputs.pop()))),
        ("given twice", Box::new(|request| request.inputs.push(request.inputs[0].clone()))),
        ("has to be i64", Box::new(move |request| request.inputs[0].1 = floats.clone())),
        ("has no output \"y\"", Box::new(|request| request.outputs.push("y".to_owned()))),
        (
            "sequence",
            Box::new(|request| {
                request.inputs[0].1 = Tensor::from_vec(vec![1, 5], vec![0_i64; 5]).unwrap();
            }),
        ),
        (
            "of shape [1, 1, 4]",
            Box::new(|request| {
                request.inputs[0].1 = Tensor::from_vec(vec![1, 1, 4], vec![0_i64; 4]).unwrap();
            }),
        ),
    ];
    for (expected, change) in cases {
        let mut request = good.clone();
        change(&mut request);
        let error = version.infer(request).await.unwrap_err();
        assert_eq!(error.class().http, 400, "{error}");
        let text = error.to_string();
        assert!(text.contains(expected), "{expected:?} in {text:?}");
        assert!(
            text.contains(&first) || text.contains("input") || text.contains("output"),
            "{text}"
        );
    }
    version.infer(good).await.unwrap();
}
