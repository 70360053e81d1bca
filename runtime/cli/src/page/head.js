// What ran, how fast, and how close its outputs are.

const tile = (label, value, more, kind) => el("div", { class: `tile ${kind ?? ""}` },
  el("span", { class: "quiet" }, label), el("strong", {}, value), more && el("span", { class: "quiet" }, more));

// How fast fused execution is beside library execution, as people say it.
const pace = speedup => {
  const longer = 1 / speedup;
  if (speedup >= 1.095) return [times(speedup), "as fast", "good"];
  if (speedup >= 1.005) return [`${(100 * (speedup - 1)).toFixed(0)} %`, "faster", "good"];
  if (longer < 1.005) return ["equal", "as fast"];
  if (longer < 1.995) return [`${(100 * (longer - 1)).toFixed(0)} %`, "slower", "bad"];
  return [times(longer), "as long", "bad"];
};
// A mark on times that are not steady.
const noisy = entry => {
  const noise = entry.time.noise;
  if (!noise?.noisy) return null;
  const drift = Math.abs(noise.drift) > 0.05 && `later runs were ${(100 * Math.abs(noise.drift)).toFixed(0)} % ${noise.drift > 0 ? "slower" : "faster"}`;
  return tip(el("span", { class: "badge" }, "noisy"), () => [`the middle half of the runs spreads over ${(100 * noise.spread).toFixed(0)} % of the median`, drift]);
};

const tiles = () => {
  const { model, speedup, compile_ms: compile, agreement } = report;
  const rate = entry => `${digits(entry.time.per_second)} ${entry.time.unit}/s`;
  const sum = entry => stepsOf(entry).reduce((sum, step) => sum + (step.time_us ?? 0), 0);
  const guess = entry => entry?.estimate && !entry.time &&
    tile(`${entry.name}, estimated`, `≥ ${micros(sum(entry))}`, `at ${report.target}'s peak rates`, "estimate");
  const worst = Math.max(...agreement.flatMap(entry => entry.outputs.map(output => output.max_error ?? Infinity)));
  const agree = agreement.every(entry => entry.agrees);
  const doubted = agreement.some(entry => entry.outputs.some(output => output.warnings?.length));
  return el("div", { class: "tiles" },
    fused?.time && tile("fused, median", millis(fused.time.median_ms), [rate(fused), noisy(fused)]),
    library?.time && tile("library, median", millis(library.time.median_ms), [rate(library), noisy(library)]),
    speedup && tile("fused beside library", ...pace(speedup)),
    guess(fused), guess(library),
    tile("launches", `${picture.steps.length}`, library?.launches ? `library ${library.launches}` : `of ${counted(model.rewritten_ops, "operation", "operations")}`),
    picture.memory && tile("arena", bytes(picture.memory.bytes), picture.memory.bytes > picture.memory.lower_bound
      ? `lower bound ${bytes(picture.memory.lower_bound)}` : "the smallest possible"),
    agreement.length > 0 && tile("accuracy", agree ? `≤ ${error(Number.isFinite(worst) ? worst : null)}` : "differs",
      !agree ? "outputs are out of tolerance" : doubted ? "largest error; it says little" : "largest error", !agree ? "bad" : doubted ? "" : "good"),
    tile(report.executors.some(entry => entry.time) ? "compiled in" : "planned in", millis(compile.total), fused?.built && `${fused.built.kernels} kernels, ${fused.built.cached} cached`));
};

// Concurrent requests.
const load = () => {
  const all = report.load ?? [];
  if (!all.length) return null;
  const names = [...new Set(all.flatMap(({ latency }) => Object.keys(latency?.percentiles_ms ?? {})))].sort((a, b) => a - b);
  const [{ contexts, rate, arrivals }] = all;
  const how = rate ? `${digits(rate)} requests a second, ${arrivals === "even" ? "at equal distances" : "as a Poisson process"}; times count from when each is due` : "a caller each, who asks again when answered";
  const line = ({ executor, requests, errors, requests_per_s, latency }) => [executor, count(requests), Object.values(errors).reduce((sum, n) => sum + n, 0),
    digits(requests_per_s), percentile(latency?.min_ms), ...names.map(name => percentile(latency?.percentiles_ms[name])), percentile(latency?.max_ms)];
  return [el("h2", {}, "Concurrent requests"), el("p", { class: "hint" }, `${counted(contexts, "context", "contexts")}, ${how}.`),
    scrolling("Concurrent requests", plainTable(["", "requests", "errors", "requests/s", "min", ...names.map(name => `p${name}`), "max"], all.map(line)))];
};

// Executors by their times.
const timesTable = () => {
  const entries = report.executors.filter(entry => entry.time);
  if (!entries.length) return null;
  const names = [...new Set(entries.flatMap(entry => Object.keys(entry.time.percentiles_ms)))].sort((a, b) => a - b);
  const heads = ["", "runs", "min", ...names.map(name => `p${name}`), "max", `${entries[0].time.unit}/s`, "arena"];
  const line = entry => {
    const { runs, min_ms, percentiles_ms, max_ms, per_second } = entry.time;
    return [[entry.name, noisy(entry)], count(runs), millis(min_ms), ...names.map(name => percentile(percentiles_ms[name])),
      millis(max_ms), digits(per_second), entry.memory ? bytes(entry.memory.arena_bytes) : "–"];
  };
  return [el("h2", {}, "Times"), scrolling("Times of executors", plainTable(heads, entries.map(line)))];
};
const percentile = value => value === null || value === undefined ? "–" : millis(value);
const scrolling = (label, table) => el("div", { class: "pane wide-table", tabindex: 0, role: "region", "aria-label": label }, table);
const plainTable = (heads, lines, kinds = []) => el("table", { class: "plain" },
  el("thead", {}, el("tr", {}, heads.map(head => el("th", { scope: "col" }, head)))),
  el("tbody", {}, lines.map((line, i) => el("tr", { class: kinds[i] }, line.map((cell, j) => j ? el("td", {}, cell) : el("th", { scope: "row" }, cell))))));

const accuracy = () => {
  const lines = [], kinds = [];
  for (const entry of report.agreement) {
    for (const output of entry.outputs) {
      lines.push([output.name, `${entry.executor}, ${entry.against}`, output.agrees ? "agrees" : counted(output.mismatches, "mismatch", "mismatches"),
        error(output.max_error), error(output.relative_error), error(output.mean_error), output.cosine === null ? "–" : output.cosine.toFixed(6),
        output.agrees ? "" : output.detail ?? ""]);
      kinds.push(output.agrees ? output.warnings?.length ? "" : "good" : "bad");
    }
  }
  if (!lines.length) return null;
  const heads = ["output", "compared", "", "max error", "of largest", "mean error", "cosine", ""];
  // The last column is for what is odd; mostly nothing is.
  const odd = lines.some(line => line.at(-1));
  const shown = line => odd ? line : line.slice(0, -1);
  return [el("h2", {}, "Accuracy"), scrolling("Accuracy of outputs", plainTable(shown(heads), lines.map(shown), kinds)), warnings()];
};

// Of which outputs agreement says little, and why.
const warnings = () => {
  const all = report.agreement.flatMap(({ outputs }) => outputs.flatMap(({ name, warnings = [] }) =>
    warnings.map(why => el("li", { class: "warn" }, `${name} agrees, which says little: ${why}`))));
  return all.length > 0 && el("ul", { class: "verdicts" }, all);
};

const verdicts = () => {
  const { gates, notes, bisection = [] } = report;
  const all = [
    ...bisection.map(({ executor, against, compared, steps, first }) => el("li", { class: first ? "bad" : "good" }, first
      ? `${executor}: step #${first.step}, ${first.name}, is the first that differs from ${against}: ${first.detail ?? ""}`
      : `${executor}: ${compared} of ${steps} steps were compared, and agree with ${against}`)),
    ...gates.map(gate => el("li", { class: gate.holds ? "good" : "bad" }, `gate ${gate.gate}: expected ${gate.expected}, found ${gate.found}`)),
    // What a plan that was not run is told at the top.
    ...notes.filter(note => note !== `planned for ${report.target}, not run`).map(note => el("li", {}, note))];
  return all.length > 0 && [el("h2", {}, "Notes"), el("ul", { class: "verdicts" }, all)];
};

const facts = () => {
  const { model, device, sizes, assumed = {}, compile_ms: compile } = report;
  const list = el("dl", { class: "facts" });
  const ran = report.agreement.length > 0 || report.bisection?.length > 0 || report.executors.some(entry => entry.time);
  const fact = (name, ...value) => value.some(Boolean) && list.append(el("dt", {}, name), el("dd", {}, value));
  const shape = ({ name, type, shape, source }) => el("div", {}, el("code", {}, `${type.split("[")[0]}[${shape.join(", ")}]`), ` ${name}`,
    source && ran && el("span", { class: "quiet" }, source === "random" ? ` random, seed ${report.seed}` : ` from ${source}`));
  fact("model", `opset ${model.opset}`, model.producer && `, by ${model.producer}`);
  fact("operations", `${model.ops}${model.ops === model.rewritten_ops ? "" : `, ${model.rewritten_ops} after rewriting`}; ` +
    `${count(model.parameters)} parameters, ${bytes(model.weight_bytes)}`);
  fact("sizes", Object.entries(sizes).map(([name, size], i) => [i > 0 && ", ", `${name}=${size}`, name in assumed && el("span", { class: "quiet" }, " assumed")]), model.specialised && `; specialised: ${model.specialised}`);
  fact("dtype", report.dtype);
  fact("inputs", report.inputs.map(shape));
  fact("outputs", report.outputs.map(shape));
  fact("target", report.target, estimated && !fused.time && el("span", { class: "badge" }, "planned, not run"));
  const threads = counted(device.threads, "thread", "threads");
  fact("machine", device.gpu
    ? `${device.name}, ${device.gpu.multiprocessors} multiprocessors, ${bytes(device.gpu.memory_bytes)}; host ${device.gpu.host}, ${threads}`
    : `${device.name}, ${threads}, ${device.simd}`);
  if (report.roof) {
    const { source, tflops_per_s: peaks, gbytes_per_s } = report.roof;
    fact("roof", source === "measured"
      ? `${scaled(peaks.f32 * 1e12, 1000, ["", "k", "M", "G", "T"])}FLOP/s, ${digits(gbytes_per_s)} GB/s from memory, more from caches; measured by this run`
      : `the target's: ${digits(peaks.f32)} TFLOP/s in f32, ${digits(peaks.f16)} in f16, ${digits(gbytes_per_s)} GB/s`);
  }
  for (const { name, on_device: on } of report.executors.filter(entry => entry.on_device)) {
    fact(`${name}, on the GPU`, `${millis(on.run_ms)}; inputs H2D ${millis(on.upload_ms)} (${bytes(on.upload_bytes)}), outputs D2H ${millis(on.download_ms)} (${bytes(on.download_bytes)})`);
  }
  const stages = ["import", "plan", "compile", "bind"].filter(name => compile[name] > 0);
  fact("compilation", stages.map(name => `${name} ${millis(compile[name])}`).join(", "));
  fact("graphene", `${report.version}${report.revision ? ` (${report.revision})` : ""}`);
  fact("date", el("time", { datetime: report.date }, report.date.replace("T", " ").replace("Z", " UTC")));
  fact("command", commandLine(report.command));
  return list;
};

const overview = () => filled(find("overview"), {}, [
  report.error && el("p", { class: "notice failed" }, el("span", { class: "badge" }, "failed"), ` ${report.error.message}: below is what was found before.`),
  report.interrupted && el("p", { class: "notice" }, el("span", { class: "badge" }, "interrupted"), ` By ${report.interrupted}: below is what was measured by then.`),
  tiles(),
  estimated && !fused.time && el("p", { class: "notice" }, el("span", { class: "badge" }, "estimates"),
    ` Nothing was run: ${report.target} is not this machine's device. What stands for times is the least that its rates allow: a step's traffic with memory or its arithmetic, whichever takes longer, and a launch. ${assumed()}`),
  ...cards()]);
const assumed = () => {
  if (!report.rates) return "";
  const { roof: { tflops_per_s: peaks, gbytes_per_s }, launch_us } = report.rates;
  const said = ["f32", "f16"].map(name => `${digits(peaks[name])} TFLOP/s in ${name}`).join(", ");
  return `Assumed: ${said}; ${digits(gbytes_per_s)} GB/s; ${digits(launch_us)} µs a launch.`;
};
// Times and accuracy beside what ran; where there are none, that alone.
const cards = () => {
  const measured = [timesTable(), load(), accuracy()].filter(Boolean);
  const run = [el("h2", {}, measured.length ? "This run" : "This plan"), facts()];
  if (!measured.length) return [el("div", { class: "card in-two" }, run, verdicts())];
  return [el("div", { class: "pair" }, el("div", { class: "card" }, measured, verdicts()), el("div", { class: "card" }, run))];
};
