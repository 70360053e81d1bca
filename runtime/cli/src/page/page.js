// The head, and all parts in order.

const head = () => {
  const { model, device, sizes, speedup, compile_ms: compile, agreement, gates, notes } = report;
  const where = device.gpu ? `${device.name}, ${device.gpu.multiprocessors} multiprocessors` : `${device.name}, ${counted(device.threads, "thread", "threads")}, ${device.simd}`;
  const bound = Object.entries(sizes).map(([name, size]) => `${name} ${size}`).join(", ");
  const facts = [bound, fused?.time || library?.time ? where : `planned for ${report.target}`,
    `${counted(model.ops, "operation", "operations")}, ${count(model.parameters)} parameters (${bytes(model.weight_bytes)})`];
  const tile = (label, value, more, verdict) => el("div", { class: `tile ${verdict ?? ""}` },
    el("span", { class: "quiet" }, label), el("strong", {}, value), more && el("span", { class: "quiet" }, more));
  const time = entry => entry?.time && micros(entry.time.median_ms * 1e3);
  const rate = entry => `${digits(entry.time.per_second)} ${entry.time.unit}/s`;
  const tiles = [
    time(fused) && tile("fused", time(fused), rate(fused)),
    time(library) && tile("library", time(library), rate(library)),
    speedup && tile("fused over library", times(speedup), speedup >= 1 ? "as fast" : "as fast: slower", speedup >= 1 ? "good" : "bad"),
    tile("launches", `${picture.steps.length}`, library?.launches ? `library ${library.launches}` : `of ${counted(model.rewritten_ops, "operation", "operations")}`),
    picture.memory && tile("arena", bytes(picture.memory.bytes), `at least ${bytes(picture.memory.lower_bound)}`),
    tile("compiled in", micros(compile.total * 1e3), fused?.built && `${fused.built.kernels} kernels, ${fused.built.cached} cached`),
  ];
  const worst = (entry, field) => Math.max(...entry.outputs.map(output => output[field] ?? 0));
  const verdicts = [
    ...agreement.map(entry => el("li", { class: entry.agrees ? "good" : "bad" }, entry.agrees
      ? `${entry.executor} agrees with ${entry.against}: max error ${worst(entry, "max_error").toExponential(1)}`
      : `${entry.executor} DIFFERS from ${entry.against}`)),
    ...gates.map(gate => el("li", { class: gate.holds ? "good" : "bad" }, `${gate.gate}: expected ${gate.expected}, found ${gate.found}`)),
    ...notes.map(note => el("li", {}, note))];
  find("head").append(el("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")), el("div", { class: "tiles" }, tiles),
    verdicts.length > 0 && el("ul", { class: "verdicts" }, verdicts));
};

head();
families();
groups();
timeline();
memory();
graphTools();
drawGraph();
look.changed.push(aboutStep);
light([]);
// On a narrow screen a graph as wide as the screen is too small to read, on a wide one a small graph too large.
graph.scale = Math.max(0.6, Math.min(1, (find("graph-pane").clientWidth - 4) / graph.size.width));
resize();
// For tests: all of it ran.
document.documentElement.dataset.ready = "yes";
