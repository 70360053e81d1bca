//! Versions that come and go while requests are answered.

use crate::harness::{cpu, write_zoo};
use graphene_runtime::Tensor;
use graphene_serve::{InferRequest, Server, ServerConfig, State};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// An empty folder of the test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn open(folder: &Path) -> Server {
    let config = ServerConfig { control: true, ..ServerConfig::default() };
    Server::new(&cpu(), folder.to_str().unwrap(), config).unwrap()
}

/// What the model gives for ones: it tells weights of different seeds apart.
async fn answer(server: &Server, name: &str) -> Vec<f32> {
    let version = server.find(name, None).unwrap();
    let x = Tensor::from_vec(vec![1, 4], vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    let request = InferRequest { inputs: vec![("x".to_owned(), x)], ..InferRequest::default() };
    let response = version.infer(request).await.unwrap();
    response.outputs[0].1.as_slice::<f32>().unwrap().to_vec()
}

fn states(server: &Server) -> Vec<String> {
    let text = |state: &State| match state {
        State::Ready => "ready".to_owned(),
        State::Loading => "loading".to_owned(),
        State::Unavailable(why) => format!("unavailable: {why}"),
    };
    server
        .index()
        .iter()
        .map(|entry| format!("{} {} {}", entry.name, entry.version, text(&entry.state)))
        .collect()
}

#[tokio::test]
async fn a_file_that_cannot_be_loaded_takes_no_other_out_of_service() {
    let root = folder("refused");
    fs::create_dir_all(root.join("t")).unwrap();
    fs::write(root.join("t/model.onnx"), "cut off").unwrap();
    let server = Server::open(&cpu(), root.to_str().unwrap(), ServerConfig::default()).unwrap();
    assert!(!server.ready());
    assert!(server.refresh().is_err());
    assert!(!server.ready(), "nothing answers");
    write_zoo("mlp-2x4", 1, &root.join("a"));
    server.refresh().unwrap();
    answer(&server, "a").await;
    assert!(server.ready() && states(&server)[1].starts_with("t 1 unavailable: "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_swapped_and_failures_leave_what_serves() {
    let root = folder("versions");
    write_zoo("mlp-2x4", 1, &root.join("a/1"));
    write_zoo("mlp-2x4", 5, &root.join("b"));
    fs::write(root.join("notes.txt"), "no model").unwrap();
    let server = open(&root);
    assert_eq!(states(&server), ["a 1 ready", "b 1 ready"]);
    let first = answer(&server, "a").await;
    let other = answer(&server, "b").await;
    assert_ne!(first, other);

    // A new version takes the place of the old one, and nothing changes where nothing changed.
    let held = server.find("a", None).unwrap();
    write_zoo("mlp-2x4", 2, &root.join("a/2"));
    server.refresh().unwrap();
    assert_eq!(states(&server), ["a 2 ready", "b 1 ready"]);
    let second = answer(&server, "a").await;
    assert_ne!(first, second);
    assert_eq!(held.number(), "1");
    let again = server.find("a", None).unwrap();
    server.refresh().unwrap();
    assert!(Arc::ptr_eq(&again, &server.find("a", None).unwrap()));
    assert!(server.find("a", Some("2")).is_ok());
    let error = server.find("a", Some("1")).err().unwrap();
    assert_eq!(error.class().http, 404);
    assert!(error.to_string().contains("serves 2"), "{error}");

    // One that fails leaves it, and says why.
    fs::create_dir_all(root.join("a/3")).unwrap();
    fs::write(root.join("a/3/model.onnx"), "no protobuf").unwrap();
    assert!(server.refresh().is_err());
    assert_eq!(answer(&server, "a").await, second);
    let all = states(&server);
    assert!(all[0] == "a 2 ready" && all[1].starts_with("a 3 unavailable: "), "{all:?}");
    assert!(server.ready());
    // It is not tried again until it changes.
    server.refresh().unwrap();
    fs::remove_dir_all(root.join("a/3")).unwrap();
    server.refresh().unwrap();
    assert_eq!(states(&server), ["a 2 ready", "b 1 ready"]);

    // In place: an owned snapshot was served, and what is there now is loaded.
    fs::write(root.join("b/model.onnx"), "cut off").unwrap();
    assert_eq!(answer(&server, "b").await, other);
    assert!(server.refresh().is_err());
    assert_eq!(answer(&server, "b").await, other);
    fs::write(root.join("b/serve.toml"), "[batch]\nrowz = 3").unwrap();
    let error = server.refresh().unwrap_err().to_string();
    assert!(error.contains("serve.toml") && error.contains("rowz"), "{error}");
    write_zoo("mlp-2x4", 6, &root.join("b"));
    fs::write(root.join("b/serve.toml"), "[batch]\nrows = 3").unwrap();
    server.refresh().unwrap();
    assert_ne!(answer(&server, "b").await, other);
    assert_eq!(server.find("b", None).unwrap().batch_rows(), 3);

    // Clients unload and load; a folder that is gone takes its model along.
    server.unload("b").await.unwrap();
    server.refresh().unwrap();
    let error = server.find("b", None).err().unwrap();
    assert_eq!((error.class().http, server.ready()), (503, true), "{error}");
    server.load("b").await.unwrap();
    answer(&server, "b").await;
    assert_eq!(server.load("c").await.unwrap_err().class().http, 404);
    fs::remove_dir_all(root.join("a")).unwrap();
    server.refresh().unwrap();
    assert_eq!(states(&server), ["b 1 ready"]);
    assert_eq!(server.find("a", None).err().unwrap().class().http, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_reloads_lose_no_request_and_no_memory() {
    // In a process of its own: other tests take memory as well.
    const ALONE: &str = "GRAPHENE_RELOADS_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let own = "repository::a_hundred_reloads_lose_no_request_and_no_memory";
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        let ran = test.args(["--exact", own, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = [ran.stdout, ran.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let root = folder("reloads");
    write_zoo("mlp-4x256", 0, &root.join("m/1"));
    let server = open(&root);
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (server, stop, asked) = (server.clone(), Arc::clone(&stop), Arc::clone(&asked));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let version = server.find("m", None).unwrap();
                    let port = &version.model().inputs()[0];
                    let wide = port.dims()[1].known().unwrap() as usize;
                    let x = Tensor::from_vec(vec![3, wide], vec![0.5_f32; 3 * wide]).unwrap();
                    let inputs = vec![(port.name().to_owned(), x)];
                    version
                        .infer(InferRequest { inputs, ..InferRequest::default() })
                        .await
                        .unwrap();
                    asked.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(std::time::Duration::from_micros(300)).await;
                }
            })
        })
        .collect();
    let mut used = Vec::new();
    for seed in 1..=100 {
        write_zoo("mlp-4x256", seed, &root.join("m/1"));
        server.refresh().unwrap();
        if seed == 10 {
            used.push(resident());
        }
    }
    used.push(resident());
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(asked.load(Ordering::Relaxed) > 100, "{asked:?}");
    assert!(used[1] < used[0] + (24 << 20), "{used:?}");
    // The engine has the memory of one version.
    let version = server.find("m", None).unwrap();
    let one = version.model().footprint(&[("batch", 64)]).unwrap();
    let held = server.engine().memory_used();
    assert!(held < 2 * (one.weights + one.arena) + (1 << 20), "{held} of {one:?}");
}

/// Bytes of the process in memory.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}
