//! A page in a headless browser.

use libtest_mimic::Failed;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a test says.
pub(crate) type Outcome = Result<(), Failed>;

/// Names under which Chromium is installed.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Flags that make a run short.
const QUICK: [&str; 6] = ["--warmup", "0", "--duration", "0", "--iterations", "2"];

/// A screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// What the system prefers.
    pub(crate) dark: bool,
}

/// A desk's screen in light colours.
pub(crate) const DESK: Screen = Screen { width: 1400, height: 900, dark: false };

/// The screens that every page is looked at on.
pub(crate) const SCREENS: [Screen; 4] = [
    DESK,
    Screen { dark: true, ..DESK },
    Screen { width: 400, height: 800, dark: false },
    Screen { width: 400, height: 800, dark: true },
];

/// The name of the browser that is installed, if one is.
pub(crate) fn installed() -> Option<&'static str> {
    let runs = |name: &&str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    NAMES.into_iter().find(runs)
}

pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Failed::from(what())) }
}

/// A folder of its own, removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Result<Self, Failed> {
        let name = format!("graphene-page-{name}-{}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0)?;
        Ok(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the command shortly, on the CPU; what it prints.
pub(crate) fn run(arguments: &[&str]) -> Result<String, Failed> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graphene-run"));
    let ran = command.args(arguments).env("CUDA_VISIBLE_DEVICES", "").output()?;
    let Output { status, stdout, stderr } = ran;
    let said = String::from_utf8_lossy(&stderr).into_owned();
    ensure(status.success(), || format!("{arguments:?}: {status}: {said}"))?;
    Ok(String::from_utf8(stdout)?)
}

/// A page as it is written, and the report of the same run.
pub(crate) struct Page {
    pub(crate) written: String,
    pub(crate) report: Value,
}

/// Runs the command on a model; the page that it writes.
pub(crate) fn page_of(folder: &Folder, model: &str, flags: &[&str]) -> Result<Page, Failed> {
    let path = folder.path("page.html");
    let arguments = [&[model, "--report", text(&path)?, "--json"], &QUICK[..], flags].concat();
    let report = serde_json::from_str(&run(&arguments)?)?;
    Ok(Page { written: std::fs::read_to_string(&path)?, report })
}

/// A path as text.
pub(crate) fn text(path: &Path) -> Result<&str, Failed> {
    path.to_str().ok_or_else(|| Failed::from("a path is no text"))
}

/// What is seen of a page in a browser on a screen, with what is done there: see `probe.js`.
pub(crate) fn seen(
    browser: &str,
    folder: &Folder,
    page: &str,
    screen: Screen,
    mut asked: Value,
) -> Result<Value, Failed> {
    let Screen { width, height, dark } = screen;
    (asked["width"], asked["height"]) = (json!(width), json!(height));
    // A frame is as narrow as is asked for; a window of the browser is not.
    let inert = |value: &Value| value.to_string().replace('<', "\\u003c");
    let outer = format!(
        "<!doctype html><meta charset=utf-8><meta name=color-scheme content=\"light dark\">\
         <iframe id=frame></iframe><script type=application/json id=asked>{}</script>\
         <script type=application/json id=page>{}</script><script>{}</script>",
        inert(&asked),
        inert(&json!(page)),
        include_str!("probe.js"),
    );
    let path = folder.path("outer.html");
    std::fs::write(&path, outer)?;
    let profile = folder.path("profile");
    let scheme = if dark { "0" } else { "1" };
    let Output { stdout, stderr, .. } = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"])
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--user-data-dir={}", text(&profile)?))
        .args(["--dump-dom", &format!("file://{}", text(&path)?)])
        .output()?;
    let shown = String::from_utf8(stdout)?;
    let found = shown.split_once("data-seen=\"").and_then(|(_, rest)| rest.split_once('"'));
    let Some((found, _)) = found else {
        let log = String::from_utf8_lossy(&stderr);
        return Err(Failed::from(format!("the probe saw nothing\n{log}")));
    };
    let digits: Vec<char> = found.chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16);
    let bytes = digits.chunks(2).map(byte).collect::<Result<Vec<u8>, _>>()?;
    let seen: Value = serde_json::from_slice(&bytes)?;
    let fine = seen["ready"] == "yes" && seen["error"].is_null();
    ensure(fine, || format!("the scripts did not end well: {}", seen["error"]))?;
    ensure(seen["width"] == width, || format!("the page is {} wide", seen["width"]))?;
    Ok(seen)
}
