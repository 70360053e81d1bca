//! What `deploy/` holds is what KServe, an image and the server itself take.

use crate::harness::write_zoo;
use crate::process::{Process, start};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the package.
fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn manifest(name: &str) -> Value {
    serde_saphyr::from_str(&read(&format!("deploy/kserve/{name}.yaml"))).unwrap()
}

/// What of KServe's definition speaks of the manifest; `kserve/cut.py` makes it.
fn schema(name: &str) -> Value {
    serde_json::from_str(&read(&format!("tests/it/kserve/{name}.json"))).unwrap()
}

/// Whether a value is as a schema says; else where it is not.
fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{at}: {what}"));
    let is_of = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        other => panic!("{at}: type {other}"),
    };
    match schema["type"].as_str() {
        Some(name) if !is_of(name) => return wrong(&format!("not of type {name}")),
        None if schema["x-kubernetes-int-or-string"] == true => {
            if !is_of("integer") && !is_of("string") {
                return wrong("neither an integer nor a string");
            }
        }
        Some(_) => {}
        None => panic!("{at}: a schema without a type"),
    }
    if let Some(list) = schema["enum"].as_array()
        && !list.contains(value)
    {
        return wrong("not one of the values that there are");
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_i64(), value.as_i64())
        && number < least
    {
        return wrong(&format!("less than {least}"));
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap();
        if value.get(name).is_none() {
            return wrong(&format!("{name} is missing"));
        }
    }
    for (name, field) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        let named = schema.get("properties").map(|properties| properties.get(name));
        match (named, schema.get("additionalProperties")) {
            (Some(Some(schema)), _) | (_, Some(schema)) => check(schema, field, &at)?,
            (Some(None), None) => {
                return Err(format!("{at}: unknown; run kserve/cut.py if it is new"));
            }
            // Metadata: the definition leaves them to Kubernetes.
            (None, None) => {}
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(&schema["items"], item, &format!("{at}[{index}]"))?;
    }
    Ok(())
}

#[test]
fn manifests_are_what_kserve_reads() {
    for name in ["serving-runtime", "inference-service"] {
        check(&schema(name), &manifest(name), name).unwrap();
    }
    let container = "/spec/containers/0";
    // Mistakes are seen: where, what stands there instead (null: nothing), and what is said.
    let rows: &[(&str, &str, &str, Value, &str)] = &[
        ("serving-runtime", "/spec", "containers", Value::Null, "containers is missing"),
        ("serving-runtime", "/spec", "container", json!([]), "spec.container: unknown"),
        ("serving-runtime", "/spec", "protocolVersions", json!("v2"), "not of type array"),
        ("serving-runtime", "/spec/supportedModelFormats/0", "version", json!(1), "type string"),
        ("serving-runtime", "/spec/supportedModelFormats/0", "priority", json!(0), "less than 1"),
        ("serving-runtime", container, "readinesProbe", json!({}), "readinesProbe: unknown"),
        ("serving-runtime", container, "name", Value::Null, "name is missing"),
        (
            "serving-runtime",
            "/spec/containers/0/readinessProbe/httpGet",
            "port",
            json!(true),
            "neither",
        ),
        ("inference-service", "/spec", "predictor", Value::Null, "predictor is missing"),
        ("inference-service", "/spec/predictor", "minReplicas", json!("2"), "type integer"),
        ("inference-service", "/spec/predictor/model/modelFormat", "name", Value::Null, "missing"),
    ];
    for (name, place, field, instead, expected) in rows {
        let mut wrong = manifest(name);
        let object = wrong.pointer_mut(place).unwrap().as_object_mut().unwrap();
        match instead {
            Value::Null => drop(object.remove(*field).unwrap()),
            other => drop(object.insert((*field).to_owned(), other.clone())),
        }
        let said = check(&schema(name), &wrong, name).unwrap_err();
        assert!(said.contains(expected), "{place} {field}: {said}");
    }
}

#[test]
fn manifests_fit_each_other() {
    let (runtime, service) = (manifest("serving-runtime"), manifest("inference-service"));
    let model = &service["spec"]["predictor"]["model"];
    assert_eq!(model["runtime"], runtime["metadata"]["name"]);
    let format = &runtime["spec"]["supportedModelFormats"][0];
    assert_eq!(model["modelFormat"]["name"], format["name"]);
    assert_eq!(model["modelFormat"]["version"], format["version"]);
    let versions = runtime["spec"]["protocolVersions"].as_array().unwrap();
    assert!(versions.contains(&model["protocolVersion"]));
}

/// The container's arguments without those that say where it is; these are given by their names.
fn arguments(runtime: &Value) -> (Vec<String>, Vec<(String, String)>) {
    let all = runtime["spec"]["containers"][0]["args"].as_array().unwrap();
    let (mut rest, mut addresses) = (Vec::new(), Vec::new());
    for argument in all.iter().map(|argument| argument.as_str().unwrap()) {
        match argument.split_once('=') {
            Some((name @ ("--http" | "--grpc"), address)) => {
                addresses.push((name.to_owned(), address.to_owned()));
            }
            _ => rest.push(argument.to_owned()),
        }
    }
    (rest, addresses)
}

/// The status of an answer.
fn get(process: &Process, path: &str) -> u16 {
    let mut stream = TcpStream::connect(&process.http).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-deploy-{name}"));
    let _ = fs::remove_dir_all(&folder);
    folder
}

#[test]
fn the_container_serves_what_kserve_puts_there() {
    let runtime = manifest("serving-runtime");
    let container = &runtime["spec"]["containers"][0];
    let (arguments, addresses) = arguments(&runtime);
    let http = addresses.iter().find(|(name, _)| name == "--http").unwrap();
    let probes = ["readinessProbe", "livenessProbe"].map(|probe| &container[probe]["httpGet"]);
    for probe in probes {
        assert_eq!(http.1, format!("0.0.0.0:{}", probe["port"]));
    }
    let annotations = &runtime["spec"]["annotations"];
    assert!(http.1.ends_with(annotations["prometheus.kserve.io/port"].as_str().unwrap()));

    // Where the model lies below the place of KServe's, and what it is called.
    for (index, (place, name)) in
        [("", "bert"), ("1", "bert"), ("other", "other"), ("other/3", "other")].iter().enumerate()
    {
        let folder = folder(&index.to_string());
        write_zoo("mlp-2x4", 0, &folder.join(place));
        let replaced: Vec<String> = arguments
            .iter()
            .map(|argument| {
                argument
                    .replace("/mnt/models", folder.to_str().unwrap())
                    .replace("{{.Name}}", "bert")
            })
            .collect();
        let process = start(&replaced.iter().map(|argument| &**argument).collect::<Vec<_>>());
        let metrics = annotations["prometheus.kserve.io/path"].as_str().unwrap().to_owned();
        let paths = probes.map(|probe| probe["path"].as_str().unwrap().to_owned());
        for path in paths.iter().chain([&metrics, &format!("/v2/models/{name}/ready")]) {
            assert_eq!(get(&process, path), 200, "{place:?}: {path}");
        }
    }
}

/// What follows an instruction of the Containerfile, each time that it is there.
fn instructions(name: &str) -> Vec<String> {
    let text = read("deploy/Containerfile");
    let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    lines.map(str::to_owned).collect()
}

/// The list of an instruction in the form of JSON.
fn list(text: &str) -> Vec<String> {
    serde_json::from_str(&text[text.find('[').unwrap()..]).unwrap()
}

#[test]
fn the_image_is_built_of_all_that_the_workspace_needs() {
    let copied: BTreeSet<String> = instructions("COPY")
        .iter()
        .filter(|line| !line.starts_with("--from"))
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    let workspace = read("../../Cargo.toml");
    let members = workspace.lines().find(|line| line.starts_with("members")).unwrap();
    for member in members.split('"').skip(1).step_by(2) {
        let top = member.split('/').next().unwrap();
        assert!(copied.contains(top), "{top} is not copied");
    }
}

#[test]
fn the_image_says_whether_it_is_ready() {
    let entry = list(&instructions("ENTRYPOINT")[0]);
    assert_eq!(entry, ["graphene-serve", "--http", "0.0.0.0:8000", "--grpc", "0.0.0.0:8001"]);
    assert_eq!(instructions("EXPOSE"), ["8000 8001"]);
    let check = list(&instructions("HEALTHCHECK")[0]);
    let process = start(&["zoo:mlp-2x4"]);
    let healthy = |address: &str| {
        let port = address.rsplit(':').next().unwrap();
        let script = check[2].replace("127.0.0.1/8000", &format!("127.0.0.1/{port}"));
        assert_ne!(script, check[2]);
        Command::new(&check[0]).args([&check[1], &script]).output().unwrap().status.success()
    };
    assert!(healthy(&process.http));
    let gone = process.http.clone();
    drop(process);
    assert!(!healthy(&gone));

    // As while models are loaded.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let asked = stream.read(&mut [0; 1024]).unwrap();
        stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").unwrap();
        asked
    });
    assert!(!healthy(&address));
    assert!(answer.join().unwrap() > 0);
}
