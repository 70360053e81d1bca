//! The pages of `--report` in a headless browser: what their scripts drew, what is found and told there, whether it fits a
//! telephone and can be read in both themes, and that they asked for nothing.
//!
//! Where there is no Chromium, the rows are reported as ignored.

mod browser;

use browser::{DESK, Folder, Outcome, Page, SCREENS, ensure, page_of, run, seen, text};
use graphene_frontend::onnx::{
    Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto, encode,
};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Value, json};

/// A test: its name, and what it does with the browser of a name.
type Row = (&'static str, fn(&str) -> Outcome);

const ROWS: [Row; 10] = [
    ("all_that_the_plan_has_is_drawn", all_is_drawn),
    ("layers_are_drawn_once", layers_are_drawn_once),
    ("plans_that_were_not_run_fill_the_page", plans_fill_the_page),
    ("names_of_models_are_text", names_are_text),
    ("steps_are_searched_and_sorted", steps_are_searched_and_sorted),
    ("why_values_are_stored_is_told", stored_values_are_told),
    ("keys_walk_along_steps", keys_walk),
    ("the_table_is_saved_as_the_command_writes_it", the_table_is_saved),
    ("results_are_compared", results_are_compared),
    ("pages_fit_and_can_be_read", pages_can_be_read),
];

fn main() {
    let browser = browser::installed();
    let trial = |(row, test): Row| {
        let run = move || browser.map_or_else(|| Err(Failed::from("no browser")), test);
        Trial::test(row, run).with_ignored_flag(browser.is_none())
    };
    libtest_mimic::run(&Arguments::from_args(), ROWS.map(trial).into()).exit();
}

fn len(value: &Value) -> usize {
    value.as_array().map_or(0, Vec::len)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn strings(value: &Value) -> Vec<&str> {
    list(value).filter_map(Value::as_str).collect()
}

impl Page {
    /// What the scripts are given.
    fn data(&self) -> Result<Value, Failed> {
        let (_, data) = self.written.split_once("id=\"data\">").ok_or("there is no data")?;
        let (data, _) = data.split_once("</script>").ok_or("the data does not end")?;
        Ok(serde_json::from_str(data)?)
    }
}

/// Whether what is written names nothing to load; the policy of the page forbids what its scripts might ask for.
fn asks_for_nothing(page: &str) -> Outcome {
    let policy = "content=\"default-src 'none';";
    ensure(page.contains(policy), || "the page has no policy".to_owned())?;
    for tag in tags(page) {
        let asks = ["src=", "http:", "https:", "url(", "@import", "<link", "<img"];
        let leads = tag.contains("href=") && !tag.contains("href=\"#");
        let found = leads || asks.iter().any(|word| tag.contains(word));
        ensure(!found, || format!("the page asks for something: {tag}"))?;
    }
    Ok(())
}

/// The tags of a page, without what stands in scripts.
fn tags(page: &str) -> impl Iterator<Item = &str> {
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

/// What stands in the column of a name.
fn column<'a>(seen: &'a Value, name: &str) -> Result<Vec<&'a str>, Failed> {
    let heads = strings(&seen["heads"]);
    let at = heads.iter().position(|head| head.trim().starts_with(name));
    let at = at.ok_or_else(|| format!("there is no column {name} among {heads:?}"))?;
    Ok(list(&seen["rows"]).filter_map(|row| row[at].as_str()).collect())
}

fn all_is_drawn(browser: &str) -> Outcome {
    let folder = Folder::new("all")?;
    let page = page_of(&folder, "zoo:mlp-2x8", &["--batch", "3"])?;
    asks_for_nothing(&page.written)?;
    let seen = seen(browser, &folder, &page.written, DESK, json!({}))?;
    check_rows(&page, &seen)?;
    let said = seen["text"].as_str().unwrap_or_default();
    let report = &page.report;
    let shown = [
        "zoo:mlp-2x8".to_owned(),
        "opset 17, by graphene-models".to_owned(),
        report["version"].as_str().unwrap_or_default().to_owned(),
        report["date"].as_str().unwrap_or_default().replace('T', " ").replace('Z', " UTC"),
        report["device"]["name"].as_str().unwrap_or_default().to_owned(),
        report["command"].as_str().unwrap_or_default().to_owned(),
        "batch=3".to_owned(),
        "p50".to_owned(),
        "p99".to_owned(),
        "max error".to_owned(),
        "cosine".to_owned(),
    ];
    for word in shown {
        ensure(!word.is_empty() && said.contains(&word), || format!("{word:?} is not in {said}"))?;
    }
    for share in column(&seen, "Roofline")? {
        let percent = share
            .trim_start_matches("≥ ")
            .split('%')
            .next()
            .and_then(|text| text.trim().parse::<f64>().ok());
        let within = percent.is_some_and(|percent| (0.0..=100.0).contains(&percent));
        ensure(within, || format!("a share of the roofline is {share}"))?;
    }
    Ok(())
}

/// As many rows as the plan has steps, each with its time, and as many boxes in the whole graph.
fn check_rows(page: &Page, seen: &Value) -> Outcome {
    let launches = page.report["executors"][0]["launches"].as_u64().unwrap_or(0) as usize;
    let rows = len(&seen["rows"]);
    ensure(rows == launches && launches > 0, || format!("{rows} rows of {launches} launches"))?;
    let times = column(seen, "Time").or_else(|_| column(seen, "Estimate"))?;
    let timed = times.iter().all(|time| time.ends_with('s'));
    ensure(timed, || format!("steps without times: {times:?}"))?;
    let full = &page.data()?["picture"]["full"]["boxes"];
    let full = list(full).filter(|drawn| drawn["kind"] == "step").count();
    ensure(full == launches, || format!("{full} boxes of {launches} launches"))?;
    check_sections(seen)
}

/// No section is empty, and nothing reads as a mistake of the scripts.
fn check_sections(seen: &Value) -> Outcome {
    for section in list(&seen["sections"]) {
        let (height, text) = (&section["height"], &section["text"]);
        let full = height.as_f64() > Some(40.0) && text.as_u64() > Some(15);
        ensure(full, || format!("a section has nothing in it: {section}"))?;
    }
    let said = seen["text"].as_str().unwrap_or_default();
    for word in ["undefined", "NaN", "null", "Infinity", "[object"] {
        ensure(!said.contains(word), || format!("{word} is in {said}"))?;
    }
    ensure(seen["unnamed"] == 0, || format!("{} controls have no name", seen["unnamed"]))
}

/// The zoo's BERT has two layers: the block of one is drawn, and says so.
fn layers_are_drawn_once(browser: &str) -> Outcome {
    let folder = Folder::new("layers")?;
    let page = page_of(&folder, "zoo:bert-base-tiny", &["--batch", "2", "--seq", "8"])?;
    let seen = seen(browser, &folder, &page.written, DESK, json!({}))?;
    check_rows(&page, &seen)?;
    let picture = &page.data()?["picture"];
    let block = &picture["blocks"][0];
    let (length, count) = (block["length"].as_u64(), block["count"].as_u64());
    ensure(count == Some(2) && length >= Some(3), || format!("{}", picture["blocks"]))?;
    let of = |drawing: &str| len(&picture[drawing]["boxes"]);
    let saved = (of("full"), of("folded"));
    ensure(saved.0 >= saved.1 + 3, || format!("{saved:?} boxes"))?;
    let modules = column(&seen, "Module")?;
    let named = modules.contains(&"encoder.layer.0") && modules.contains(&"pooler");
    ensure(named, || format!("modules {modules:?}"))
}

/// A plan for a device that is absent has estimates, which say that they are some.
fn plans_fill_the_page(browser: &str) -> Outcome {
    let folder = Folder::new("plans")?;
    let page = page_of(&folder, "zoo:bert-base-tiny", &["--target", "sm_90a", "--batch", "4"])?;
    let seen = seen(browser, &folder, &page.written, DESK, json!({}))?;
    check_rows(&page, &seen)?;
    let said = seen["text"].as_str().unwrap_or_default();
    for word in ["Nothing was run", "sm_90a's peak rates", "planned, not run", "Assumed: "] {
        ensure(said.contains(word), || format!("{word:?} is not in {said}"))?;
    }
    let heads = strings(&seen["heads"]);
    let measured = ["Time", "GB/s", "Roofline"].iter().find(|head| heads.contains(head));
    ensure(measured.is_none(), || format!("{measured:?} of what was not run"))?;
    ensure(len(&seen["sections"]) == 6 + 1, || format!("sections {}", seen["sections"]))?;
    let estimates = |executor: usize| -> Vec<f64> {
        let steps = list(&page.report["executors"][executor]["estimate"]);
        steps.filter_map(|step| step["time_us"].as_f64()).collect()
    };
    for executor in [0, 1] {
        let times = estimates(executor);
        let all = times.len() as u64 == page.report["executors"][executor]["launches"];
        ensure(all && times.iter().all(|&time| time > 0.0), || format!("estimates {times:?}"))?;
    }
    Ok(())
}

/// Markup, quotes, what turns the direction of writing, and what a terminal obeys.
const HOSTILE: &str = "</script><img src=x onerror=document.title=1>\"'&<!--\u{202e}\u{2066}\u{1b}";

/// A model whose every name is hostile.
fn hostile() -> Vec<u8> {
    let name = |what: &str| format!("/{what}{HOSTILE}/{what}");
    let dim = |value| Dimension { value: Some(value) };
    let sizes = [DimensionValue::DimParam(name("n")), DimensionValue::DimValue(4)];
    let shape = Some(TensorShapeProto { dim: sizes.map(dim).into() });
    let value = |what: &str| ValueInfoProto {
        name: name(what),
        r#type: Some(TypeProto {
            value: Some(TypeValue::TensorType(TensorTypeProto {
                elem_type: 1,
                shape: shape.clone(),
            })),
        }),
    };
    let node = |op: &str, from: &str, to: &str| NodeProto {
        name: name(op),
        op_type: op.to_owned(),
        input: vec![name(from)],
        output: vec![name(to)],
        ..NodeProto::default()
    };
    let model = ModelProto {
        ir_version: 8,
        producer_name: name("producer"),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 18 }],
        graph: Some(GraphProto {
            input: vec![value("x")],
            output: vec![value("y")],
            node: vec![node("Relu", "x", "h"), node("ReduceSum", "h", "s"), node("Exp", "s", "y")],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    };
    encode(&model).to_vec()
}

/// Names of a model, and its file's, are shown as they are, or as numbers where they would not be seen.
fn names_are_text(browser: &str) -> Outcome {
    let folder = Folder::new("names")?;
    let inner = folder.path("a<");
    std::fs::create_dir_all(&inner)?;
    let model = inner.join("script><img src=x onerror='document.title=1'>\u{202e}.onnx");
    std::fs::write(&model, hostile())?;
    for flags in [&["--batch", "2"][..], &["--batch", "2", "--target", "sm_90a"]] {
        let page = page_of(&folder, text(&model)?, flags)?;
        asks_for_nothing(&page.written)?;
        let hidden = |c: char| c.is_control() && c != '\n' || "\u{202e}\u{2066}".contains(c);
        let found = page.written.chars().find(|&c| hidden(c));
        ensure(found.is_none(), || format!("{found:?} is in the page"))?;
        let seen = seen(browser, &folder, &page.written, DESK, json!({}))?;
        ensure(len(&seen["fileNames"]) == 0, || format!("elements {}", seen["fileNames"]))?;
        let said = seen["text"].as_str().unwrap_or_default();
        let names =
            ["</script><img src=x onerror=document.title=1>\"'&<!--", "\\u{202e}\\u{2066}\\u{1b}"];
        for name in names {
            ensure(said.contains(name), || format!("{name} is not in {said}"))?;
        }
    }
    Ok(())
}

fn steps_are_searched_and_sorted(browser: &str) -> Outcome {
    let folder = Folder::new("search")?;
    let page = page_of(&folder, "zoo:bert-base-tiny", &["--seq", "8"])?;
    let searches = ["layernorm", "LAYER.1 attention", "pooler", "#3", "no such step", ""];
    let asked = json!({"search": searches, "sort": ["Time", "Time", "Family", "#"]});
    let seen = seen(browser, &folder, &page.written, DESK, asked)?;
    let data = page.data()?;
    let steps = len(&data["rows"]);
    let of = |row: &Value, word: &str| row.to_string().to_lowercase().contains(word);
    let with = |words: &[&str]| {
        let has = |row: &&Value| words.iter().all(|word| of(row, word));
        list(&data["rows"]).filter(has).count()
    };
    let expected =
        [with(&["layernorm"]), with(&["layer.1", "attention"]), with(&["pooler"]), 1, 0, steps];
    for ((search, words), expected) in list(&seen["searches"]).zip(searches).zip(expected) {
        let found = len(&search["rows"]);
        // Names of values are searched too: at least what the table has is found.
        let right =
            if expected <= 1 || words.is_empty() { found == expected } else { found >= expected };
        ensure(right && found <= steps, || format!("{words:?}: {search}, not {expected}"))?;
        let said = if words.is_empty() { String::new() } else { format!("{found} of {steps}") };
        ensure(search["said"] == said, || format!("{words:?}: {search}, not {said:?}"))?;
    }
    ensure(len(&seen["searches"][0]["rows"]) < steps, || "all is found".to_owned())?;
    let time = |row: &str| {
        let step = row.parse::<usize>().ok()?;
        data["rows"][step]["time_us"].as_f64()
    };
    let [longest, shortest, families, places] = [0, 1, 2, 3].map(|i| &seen["sorts"][i]);
    let times: Vec<_> = strings(&longest["rows"]).into_iter().filter_map(time).collect();
    let falls = times.len() == steps && times.is_sorted_by(|a, b| a >= b);
    ensure(falls && longest["order"] == "descending", || format!("by time: {times:?}"))?;
    let times: Vec<_> = strings(&shortest["rows"]).into_iter().filter_map(time).collect();
    ensure(times.is_sorted() && shortest["order"] == "ascending", || {
        format!("by time: {times:?}")
    })?;
    let family = |row: &&str| {
        let step = row.parse::<usize>().ok()?;
        data["rows"][step]["family"].as_str().map(str::to_lowercase)
    };
    let names: Vec<_> = strings(&families["rows"]).iter().map(family).collect();
    ensure(names.is_sorted(), || format!("by family: {names:?}"))?;
    let places: Vec<_> =
        strings(&places["rows"]).iter().map(|row| row.parse::<usize>().ok()).collect();
    ensure(places.is_sorted(), || format!("by place: {places:?}"))
}

/// Each value that a step stores for another has a reason in the list, and its arrow tells the same.
fn stored_values_are_told(browser: &str) -> Outcome {
    let folder = Folder::new("stored")?;
    let page = page_of(&folder, "zoo:bert-base-tiny", &["--seq", "8"])?;
    let seen = seen(browser, &folder, &page.written, DESK, json!({"walk": true}))?;
    let stored = &page.data()?["picture"]["stored"];
    let told: u64 = list(&seen["reasons"]).filter_map(Value::as_u64).sum();
    ensure(told as usize == len(stored) && told > 5, || {
        format!("{told} of {} values", len(stored))
    })?;
    ensure(seen["edges"].as_u64() > Some(5), || format!("{} arrows tell why", seen["edges"]))?;
    for what in ["edge", "reason"] {
        let said = seen[what].as_str().unwrap_or_default();
        let why = list(stored).filter_map(|value| value["why"].as_str());
        let found = { why }.any(|why| said.contains(why));
        ensure(found && said.contains("Stored between"), || format!("the {what} says {said:?}"))?;
    }
    Ok(())
}

fn keys_walk(browser: &str) -> Outcome {
    let folder = Folder::new("keys")?;
    let page = page_of(&folder, "zoo:bert-base-tiny", &["--seq", "8"])?;
    let seen = seen(browser, &folder, &page.written, DESK, json!({"walk": true}))?;
    let (walked, name) = (&seen["walked"], &page.data()?["rows"][1]["name"]);
    ensure(strings(&walked["lit"]) == ["1"], || format!("lit rows {}", walked["lit"]))?;
    let dock = walked["dock"].as_str().unwrap_or_default();
    let tells = ["#1", name.as_str().unwrap_or("no name"), "runs on", "Reads and writes"];
    for word in tells {
        ensure(dock.contains(word), || format!("{word:?} is not in {dock:?}"))?;
    }
    ensure(seen["closed"].is_null(), || "Escape does not close what is told".to_owned())?;
    ensure(seen["slash"] == "search", || format!("`/` leads to {}", seen["slash"]))
}

fn the_table_is_saved(browser: &str) -> Outcome {
    let folder = Folder::new("saved")?;
    let path = folder.path("steps.csv");
    let page = page_of(&folder, "zoo:mlp-2x8", &["--csv", text(&path)?])?;
    let seen = seen(browser, &folder, &page.written, DESK, json!({}))?;
    let csv = std::fs::read_to_string(&path)?;
    ensure(seen["csv"] == csv, || format!("{} is saved, {csv} is written", seen["csv"]))?;
    let heads = strings(&seen["heads"]);
    let lines = csv.lines().count();
    ensure(lines == 1 + len(&seen["rows"]), || format!("{lines} lines; {heads:?}"))
}

/// Results of two models of one kind: what both have, what only one has, and in what they differ.
fn results_are_compared(browser: &str) -> Outcome {
    let folder = Folder::new("diff")?;
    let [before, after, written] = ["a.json", "b.json", "diff.html"].map(|name| folder.path(name));
    let (before, after, written) = (text(&before)?, text(&after)?, text(&written)?);
    let quick = ["--warmup", "0", "--duration", "0", "--iterations", "2", "--json", "--profile"];
    let model = "zoo:bert-base-tiny";
    std::fs::write(
        before,
        run(&[&[model, "--seq", "8", "--exec", "fused"][..], &quick].concat())?,
    )?;
    let other = ["zoo:distilroberta-tiny", "--seq", "16", "--exec", "fused"];
    std::fs::write(after, run(&[&other[..], &quick].concat())?)?;
    let diff = run(&["--diff", before, after, "--report", written, "--json"])?;
    let diff: Value = serde_json::from_str(&diff)?;
    let page = std::fs::read_to_string(written)?;
    asks_for_nothing(&page)?;
    let asked = json!({"search": ["new", "layernorm", ""], "sort": ["Difference"]});
    let seen = seen(browser, &folder, &page, DESK, asked)?;
    check_sections(&seen)?;
    let steps = len(&diff["steps"]);
    ensure(len(&seen["rows"]) == steps && steps > 0, || format!("{} rows", len(&seen["rows"])))?;
    let count = |status: &str| list(&diff["steps"]).filter(|step| step["status"] == status).count();
    let (both, new, gone) = (count("both"), count("new"), count("gone"));
    ensure(both + new + gone == steps && new > 0 && gone > 0, || format!("{both}, {new}, {gone}"))?;
    let statuses = column(&seen, "In")?;
    let shown = |status: &str| statuses.iter().filter(|shown| **shown == status).count();
    ensure((shown("new"), shown("gone")) == (new, gone), || format!("{statuses:?}"))?;
    let said = seen["text"].as_str().unwrap_or_default();
    ensure(said.contains("The two differ in model, sizes"), || said.to_owned())
}

/// On a desk and on a telephone, in light and dark colours: nothing sticks out, and text stands out from its ground.
fn pages_can_be_read(browser: &str) -> Outcome {
    let folder = Folder::new("read")?;
    let page = page_of(&folder, "zoo:bert-base-tiny", &["--seq", "8"])?.written;
    let plan = page_of(&folder, "zoo:bert-base-tiny", &["--target", "sm_90a"])?.written;
    let model = folder.path("hostile.onnx");
    std::fs::write(&model, hostile())?;
    let hostile = page_of(&folder, text(&model)?, &["--batch", "2", "--target", "sm_80"])?.written;
    let [before, written] = ["a.json", "diff.html"].map(|name| folder.path(name));
    let quick = ["--warmup", "0", "--duration", "0", "--iterations", "2", "--json", "--profile"];
    std::fs::write(&before, run(&[&["zoo:bert-base-tiny", "--seq", "8"][..], &quick].concat())?)?;
    run(&["--diff", text(&before)?, text(&before)?, "--report", text(&written)?])?;
    let diff = std::fs::read_to_string(&written)?;
    for (name, page) in [("run", &page), ("plan", &plan), ("hostile", &hostile), ("diff", &diff)] {
        for screen in SCREENS {
            let seen = seen(browser, &folder, page, screen, json!({}))?;
            let at = format!("{name} at {screen:?}");
            ensure(seen["dark"] == screen.dark, || format!("{at}: dark is {}", seen["dark"]))?;
            ensure(seen["overflow"] == 0, || {
                format!("{at}: {} sticks out: {}", seen["overflow"], seen["wide"])
            })?;
            ensure(len(&seen["wide"]) == 0, || format!("{at}: sticks out: {}", seen["wide"]))?;
            let faint = &seen["faint"];
            ensure(faint["looked"].as_u64() > Some(50), || format!("{at}: no text: {faint}"))?;
            ensure(len(&faint["found"]) == 0, || format!("{at}: faint: {}", faint["found"]))?;
            // Light, dark, and as the system has it again.
            let expected = json!([false, true, screen.dark]);
            ensure(seen["toggled"] == expected, || format!("{at}: toggled {}", seen["toggled"]))?;
        }
    }
    Ok(())
}
