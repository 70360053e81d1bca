//! Traces in the Trace Event Format, which Perfetto and chrome://tracing open.

use crate::progress::Stage;
use crate::report::{Executor, Step};
use graphene_fusion::program::StepId;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A complete event (`X`) or the name of a track (`M`).
#[derive(Serialize)]
struct Event<'a> {
    name: Cow<'a, str>,
    cat: &'static str,
    ph: &'static str,
    pid: u32,
    tid: usize,
    /// Microseconds.
    ts: f64,
    /// Microseconds.
    dur: f64,
    args: BTreeMap<&'static str, Cow<'a, str>>,
}

/// The track of compilation; executors follow.
const STAGES: usize = 1;

/// A trace of the command's stages, and one run of each profiled executor with a slice a step.
pub(crate) fn trace(stages: &[Stage], executors: &[Executor]) -> String {
    let mut events = vec![track(STAGES, "graphene-run")];
    events.extend(stages.iter().map(|stage| Event {
        name: stage.name.into(),
        cat: "stage",
        ph: "X",
        pid: 1,
        tid: STAGES,
        ts: stage.start.as_secs_f64() * 1e6,
        dur: stage.time.as_secs_f64() * 1e6,
        args: BTreeMap::new(),
    }));
    let end = stages.iter().map(|stage| stage.start + stage.time).max().unwrap_or_default();
    for (i, executor) in executors.iter().enumerate() {
        let Some(steps) = &executor.profile else { continue };
        let tid = STAGES + 1 + i;
        events.push(track(tid, executor.name));
        let mut at = end.as_secs_f64() * 1e6;
        for step in steps {
            events.push(slice(step, tid, at));
            at += step.time_us;
        }
    }
    let events = serde_json::to_string(&events);
    let events = events.expect("maps have strings for keys, and nothing else can fail");
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":{events}}}\n")
}

fn track(tid: usize, name: &str) -> Event<'_> {
    Event {
        name: "thread_name".into(),
        cat: "__metadata",
        ph: "M",
        pid: 1,
        tid,
        ts: 0.0,
        dur: 0.0,
        args: BTreeMap::from([("name", name.into())]),
    }
}

fn slice(step: &Step, tid: usize, at: f64) -> Event<'_> {
    let id = StepId::from_index(step.step);
    let args = [
        ("step", id.to_string()),
        ("module", step.module.clone().unwrap_or_default()),
        ("kernel", step.kernel.clone()),
        ("algorithm", step.algorithm.unwrap_or_default().to_owned()),
        ("family", step.family.to_owned()),
        ("bytes", step.bytes.to_string()),
        ("flops", step.flops.to_string()),
    ];
    Event {
        name: format!("{id} {}", step.name).into(),
        cat: "step",
        ph: "X",
        pid: 1,
        tid,
        ts: at,
        dur: step.time_us,
        args: args.map(|(key, value)| (key, value.into())).into(),
    }
}
