//! What is recorded for Prometheus: handles that cost little to write to, and the text that they are read as.
//!
//! Every server has a recorder of its own, so that several live in one process. What [`Statistics`] counts anyhow is
//! copied from there when the text is asked for; only durations and statuses are recorded as they happen.

use crate::error::Error;
use crate::infer::Ran;
use crate::statistics::Statistics;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How a request came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Protocol {
    /// The Open Inference Protocol by HTTP.
    #[default]
    Http,
    /// The Open Inference Protocol by gRPC.
    Grpc,
    /// OpenAI's embeddings.
    OpenAi,
    /// The endpoints of text-embeddings-inference.
    Tei,
}

impl Protocol {
    const ALL: [Self; 4] = [Self::Http, Self::Grpc, Self::OpenAi, Self::Tei];

    /// Its name in labels.
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::OpenAi => "openai",
            Self::Tei => "tei",
        }
    }
}

/// Upper ends of the durations' buckets, in seconds.
const BUCKETS: [f64; 20] = [
    50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0,
    5.0, 10.0, 20.0, 30.0, 60.0,
];

/// How often samples of histograms are put into their buckets where nobody asks for the text: they take memory until then.
const UPKEEP: Duration = Duration::from_secs(5);

/// A row a metric: its name, what it is, and its unit.
const COUNTERS: [(&str, &str, Unit); 5] = [
    ("graphene_requests_total", "Requests by model, version, protocol and status", Unit::Count),
    ("graphene_rows_total", "Rows that ran", Unit::Count),
    ("graphene_batches_total", "Batches that ran", Unit::Count),
    (
        "graphene_batch_positions_total",
        "Positions of the batches that ran, padding included",
        Unit::Count,
    ),
    ("graphene_batch_padding_total", "Positions of these that were padding", Unit::Count),
];

const GAUGES: [(&str, &str, Unit); 5] = [
    ("graphene_running_requests", "Requests that wait or run", Unit::Count),
    ("graphene_batch_padding_ratio", "Padding as a part of all positions", Unit::Count),
    ("graphene_memory_used_bytes", "Memory of the engine in use", Unit::Bytes),
    ("graphene_memory_limit_bytes", "Memory that the engine may use", Unit::Bytes),
    ("graphene_connections", "Open connections", Unit::Count),
];

const HISTOGRAMS: [(&str, &str, Unit); 3] = [
    ("graphene_request_seconds", "From a request's arrival to its answer", Unit::Seconds),
    ("graphene_queue_seconds", "Waiting for a context", Unit::Seconds),
    ("graphene_compute_seconds", "The model, for the batch that a request is of", Unit::Seconds),
];

/// What one server records. Clones record to the same place.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Inner>);

struct Inner {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    connections: Gauge,
}

/// The handles of one version.
pub(crate) struct VersionMetrics {
    inner: Arc<Inner>,
    labels: Vec<Label>,
    answered: [Counter; Protocol::ALL.len()],
    /// By protocol and status; errors are rare enough to be looked up.
    failed: Mutex<BTreeMap<(Protocol, u16), Counter>>,
    running: Gauge,
    whole: Histogram,
    queue: Histogram,
    compute: Histogram,
}

/// Counts up by one until it is dropped.
pub(crate) struct Raised(Gauge);

impl Raised {
    fn new(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

fn metadata() -> Metadata<'static> {
    Metadata::new(module_path!(), Level::INFO, None)
}

impl Inner {
    fn counter(&self, name: &'static str, labels: Vec<Label>) -> Counter {
        self.recorder.register_counter(&Key::from_parts(name, labels), &metadata())
    }

    fn gauge(&self, name: &'static str, labels: Vec<Label>) -> Gauge {
        self.recorder.register_gauge(&Key::from_parts(name, labels), &metadata())
    }

    fn histogram(&self, name: &'static str, labels: Vec<Label>) -> Histogram {
        self.recorder.register_histogram(&Key::from_parts(name, labels), &metadata())
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let builder = PrometheusBuilder::new();
        let recorder = builder.set_buckets(&BUCKETS).expect("there are buckets").build_recorder();
        for (name, what, unit) in COUNTERS {
            recorder.describe_counter(name.into(), Some(unit), what.into());
        }
        for (name, what, unit) in GAUGES {
            recorder.describe_gauge(name.into(), Some(unit), what.into());
        }
        for (name, what, unit) in HISTOGRAMS {
            recorder.describe_histogram(name.into(), Some(unit), what.into());
        }
        let handle = recorder.handle();
        let connections = Key::from_name("graphene_connections");
        let connections = recorder.register_gauge(&connections, &metadata());
        Self(Arc::new(Inner { recorder, handle, connections }))
    }

    /// The handles of a version.
    pub(crate) fn version(&self, name: &str, number: &str) -> VersionMetrics {
        let inner = Arc::clone(&self.0);
        let (model, version) = (name.to_owned(), number.to_owned());
        let labels = vec![Label::new("model", model), Label::new("version", version)];
        let answered = Protocol::ALL.map(|protocol| requests(&inner, &labels, protocol, 200));
        VersionMetrics {
            answered,
            failed: Mutex::default(),
            running: inner.gauge("graphene_running_requests", labels.clone()),
            whole: inner.histogram("graphene_request_seconds", labels.clone()),
            queue: inner.histogram("graphene_queue_seconds", labels.clone()),
            compute: inner.histogram("graphene_compute_seconds", labels.clone()),
            inner,
            labels,
        }
    }

    /// Counts a connection for as long as what it gives lives.
    pub(crate) fn connection(&self) -> Raised {
        Raised::new(&self.0.connections)
    }

    /// Sets what the engine uses.
    pub(crate) fn memory(&self, used: u64, limit: u64) {
        self.0.gauge("graphene_memory_used_bytes", Vec::new()).set(used as f64);
        self.0.gauge("graphene_memory_limit_bytes", Vec::new()).set(limit as f64);
    }

    /// All of it in Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        self.0.handle.render()
    }

    /// Puts the histograms' samples into buckets from time to time until the server goes.
    pub(crate) fn spawn_upkeep(&self) {
        let inner: Weak<Inner> = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                let Some(inner) = inner.upgrade() else { return };
                inner.handle.run_upkeep();
            }
        });
    }
}

fn requests(inner: &Inner, labels: &[Label], protocol: Protocol, status: u16) -> Counter {
    let mut labels = labels.to_vec();
    labels.push(Label::new("protocol", protocol.name()));
    labels.push(Label::new("status", status.to_string()));
    inner.counter("graphene_requests_total", labels)
}

impl VersionMetrics {
    /// Counts a request that waits or runs for as long as what it gives lives.
    pub(crate) fn running(&self) -> Raised {
        Raised::new(&self.running)
    }

    /// Records a request that is answered.
    pub(crate) fn answered(&self, protocol: Protocol, ran: &Ran, whole: Duration) {
        self.answered[protocol as usize].increment(1);
        self.whole.record(whole.as_secs_f64());
        self.queue.record(ran.queued.as_secs_f64());
        self.compute.record(ran.computed.as_secs_f64());
    }

    /// Records a request that is not.
    pub(crate) fn failed(&self, protocol: Protocol, error: &Error) {
        let status = error.class().http;
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || requests(&self.inner, &self.labels, protocol, status);
        failed.entry((protocol, status)).or_insert_with(new).increment(1);
    }

    /// Sets what was counted otherwise.
    pub(crate) fn counted(&self, counted: &Statistics) {
        let set = |name, value| self.inner.counter(name, self.labels.clone()).absolute(value);
        set("graphene_rows_total", counted.inferences);
        set("graphene_batches_total", counted.executions);
        set("graphene_batch_positions_total", counted.positions);
        set("graphene_batch_padding_total", counted.padding);
        let ratio = counted.padding as f64 / counted.positions.max(1) as f64;
        self.inner.gauge("graphene_batch_padding_ratio", self.labels.clone()).set(ratio);
    }
}
