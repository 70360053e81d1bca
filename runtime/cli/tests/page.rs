//! The page of `--report` in a headless browser: what its scripts drew, and that they asked for nothing.
//!
//! Where there is no Chromium, the rows are reported as ignored.

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

type Outcome = Result<(), Failed>;

/// A test: its name, and what it does with the browser of a name.
type Row = (&'static str, fn(&str) -> Outcome);

/// Names under which Chromium is installed.
const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

fn main() {
    let browser = BROWSERS.into_iter().find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    let name = browser.unwrap_or(BROWSERS[0]);
    let rows: [Row; 4] = [
        ("all_that_the_plan_has_is_drawn", all_is_drawn),
        ("layers_are_drawn_once", layers_are_drawn_once),
        ("plans_that_were_not_run_are_drawn", plans_are_drawn),
        ("names_of_models_are_text", names_are_text),
    ];
    let trial = |(row, test): Row| {
        Trial::test(row, move || test(name)).with_ignored_flag(browser.is_none())
    };
    libtest_mimic::run(&Arguments::from_args(), rows.map(trial).into()).exit();
}

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self, Failed> {
        let name = format!("graphene-page-{name}-{}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0)?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A page as it is written, as a browser shows it, and the report of the same run.
struct Page {
    written: String,
    shown: String,
    report: Value,
}

/// Runs the command on a model, and opens the page that it writes.
fn open(browser: &str, folder: &Folder, model: &str, flags: &[&str]) -> Result<Page, Failed> {
    let page = folder.0.join("page.html");
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or("a path is no text");
    let quick = ["--warmup", "0", "--duration", "0", "--iterations", "2", "--json"];
    let ran = Command::new(env!("CARGO_BIN_EXE_graphene-run"))
        .args([model, "--report", &text(&page)?])
        .args(quick)
        .args(flags)
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()?;
    let report = serde_json::from_slice(&ran.stdout)?;
    let written = std::fs::read_to_string(&page)?;
    let profile = format!("--user-data-dir={}", text(&folder.0.join("profile"))?);
    let Output { stdout, stderr, .. } = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000"])
        .args([profile.as_str(), "--dump-dom", &format!("file://{}", text(&page)?)])
        .output()?;
    let shown = String::from_utf8(stdout)?;
    // What is before the body says how the scripts fared.
    let head = shown.split("<head").next().unwrap_or_default();
    let fine = head.contains("data-ready=\"yes\"") && !head.contains("data-error");
    let log = String::from_utf8_lossy(&stderr);
    ensure(fine, || format!("the scripts did not end well: {head}\n{log}"))?;
    let page = Page { written, shown, report };
    page.asks_for_nothing()?;
    Ok(page)
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Failed::from(what())) }
}

impl Page {
    /// Whether neither what is written nor what scripts made of it names anything to load. What stands in the data and the
    /// scripts' own text is no element; the policy of the page forbids what they might ask for.
    fn asks_for_nothing(&self) -> Outcome {
        let policy = "content=\"default-src 'none';";
        ensure(self.written.contains(policy), || "the page has no policy".to_owned())?;
        for tag in elements(&self.written).chain(elements(&self.shown)) {
            let asks = ["src=", "http:", "https:", "url(", "@import"];
            let found = asks.iter().find(|word| tag.contains(*word)).is_some();
            let named =
                tag.contains("href=") || tag.starts_with("<link") || tag.starts_with("<img");
            ensure(!found && !named, || format!("the page asks for something: {tag}"))?;
        }
        Ok(())
    }

    fn count(&self, attribute: &str) -> usize {
        elements(&self.shown).filter(|tag| tag.contains(&format!(" {attribute}=\""))).count()
    }

    /// What the scripts are given.
    fn data(&self) -> Result<Value, Failed> {
        let (_, data) = self.written.split_once("id=\"data\">").ok_or("there is no data")?;
        let (data, _) = data.split_once("</script>").ok_or("the data does not end")?;
        Ok(serde_json::from_str(data)?)
    }
}

/// The tags of a page, without what stands in scripts.
fn elements(page: &str) -> impl Iterator<Item = &str> {
    let mut rest = page;
    std::iter::from_fn(move || {
        let start = rest.find('<')?;
        let tag = &rest[start..];
        let end = tag.find('>').map_or(tag.len(), |end| end + 1);
        let script = tag.starts_with("<script").then(|| tag.find("</script>")).flatten();
        rest = &tag[script.unwrap_or(end)..];
        Some(&tag[..end])
    })
}

fn len(value: &Value) -> usize {
    value.as_array().map_or(0, Vec::len)
}

fn all_is_drawn(browser: &str) -> Outcome {
    let folder = Folder::new("all")?;
    let page = open(browser, &folder, "zoo:mlp-2x8", &["--batch", "3", "--exec", "fused,library"])?;
    check_counts(&page)?;
    ensure(page.shown.contains("fused agrees with library"), || "no agreement".to_owned())
}

/// As many bars, slices and buffers as the plan has steps and buffers, and as many boxes as are laid out.
fn check_counts(page: &Page) -> Outcome {
    let (data, executors) = (page.data()?, &page.report["executors"]);
    let launches = executors[0]["launches"].as_u64().unwrap_or(0) as usize;
    let slices = (0..len(executors)).map(|i| len(&executors[i]["profile"])).sum::<usize>();
    let picture = &data["picture"];
    let folded = len(&picture["blocks"]) > 0;
    let boxes = &picture[if folded { "folded" } else { "full" }]["boxes"];
    let steps = boxes.as_array().into_iter().flatten();
    let steps = steps.filter(|drawn| drawn["kind"] == "step").count();
    let rows = [
        ("data-bar", launches),
        ("data-slice", slices),
        ("data-buffer", len(&picture["memory"]["buffers"])),
        ("data-node", steps),
    ];
    for (attribute, expected) in rows {
        let found = page.count(attribute);
        ensure(found == expected, || format!("{found} of {attribute}, not {expected}"))?;
    }
    let full = picture["full"]["boxes"].as_array().into_iter().flatten();
    let full = full.filter(|drawn| drawn["kind"] == "step").count();
    ensure(full == launches && launches > 0, || format!("{full} boxes of {launches} launches"))
}

/// The zoo's BERT has two layers: the block of one is drawn, and says so.
fn layers_are_drawn_once(browser: &str) -> Outcome {
    let folder = Folder::new("layers")?;
    let page = open(browser, &folder, "zoo:bert-base-tiny", &["--batch", "2", "--seq", "8"])?;
    check_counts(&page)?;
    let picture = &page.data()?["picture"];
    let block = &picture["blocks"][0];
    let (length, count) = (block["length"].as_u64(), block["count"].as_u64());
    ensure(count == Some(2) && length >= Some(3), || format!("{}", picture["blocks"]))?;
    let of = |drawing: &str| len(&picture[drawing]["boxes"]);
    let saved = (of("full"), of("folded"));
    ensure(saved.0 >= saved.1 + 3, || format!("{saved:?} boxes"))?;
    ensure(page.shown.contains(">×2<"), || "no block says how often it stands there".to_owned())
}

/// A plan for another machine has no times; its graph and arena are drawn.
fn plans_are_drawn(browser: &str) -> Outcome {
    let folder = Folder::new("plans")?;
    let page = open(browser, &folder, "zoo:bert-base-tiny", &["--target", "sm_90a"])?;
    let (nodes, bars) = (page.count("data-node"), page.count("data-bar"));
    ensure(nodes > 0 && bars == 0, || format!("{nodes} nodes, {bars} bars"))?;
    ensure(page.count("data-buffer") > 0, || "no buffers".to_owned())
}

/// A model's name that would be a tag is shown as it is.
fn names_are_text(browser: &str) -> Outcome {
    let folder = Folder::new("names")?;
    let inner = folder.0.join("a<");
    std::fs::create_dir_all(&inner)?;
    let model = inner.join("script><img src=x onerror='document.title=1'>.onnx");
    let fixture = "../../frontend/tests/data/fixtures/mlp-8x64/model.onnx";
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture), &model)?;
    let page = open(browser, &folder, model.to_str().ok_or("a path is no text")?, &[])?;
    ensure(page.count("onerror") == 0, || "a name became an element".to_owned())?;
    let name = "a&lt;/script&gt;&lt;img src=x";
    ensure(page.shown.contains(name), || "the name is not shown".to_owned())
}
