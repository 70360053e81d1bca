// The data of a run, and the step or stored value that is looked at: lit wherever it stands, and told of in the dock.

const { report, picture, rows } = data;
const executor = name => report.executors.find(entry => entry.name === name);
const fused = executor("fused");
const library = executor("library");
// Steps with times, or else with estimates.
const stepsOf = entry => entry?.profile ?? entry?.estimate;
const estimated = !fused?.profile && Boolean(fused?.estimate);
const timed = rows.some(row => row.time_us !== null);
const about = estimated ? "estimate" : "time";

// What is searched in, by step.
const texts = rows.map(row => {
  const { nodes, reads, writes } = picture.steps[row.step];
  const values = [...reads, ...writes].flatMap(({ name, shape }) => [name, shape]);
  return [`#${row.step}`, row.module, row.family, row.operators, row.kernel, row.types, row.falls_back, row.name, ...nodes, ...values]
    .join(" ").toLowerCase();
});
const found = step => matches(texts[step]);

// Parts of the page that belong to steps, by step.
const parts = new Map();
const part = (made, steps) => {
  made.classList.add("part");
  made.dataset.steps = steps.join(" ");
  for (const step of steps) {
    if (!parts.has(step)) parts.set(step, []);
    parts.get(step).push(made);
  }
  return made;
};
const partSteps = made => made.dataset.steps.split(" ").map(Number);
// Values stored between steps, by the part that shows them.
const edges = new Map();
const edge = (made, stored) => {
  made.classList.add("between");
  edges.set(made, stored);
  return made;
};

const look = { pinned: null, lit: [] };
const light = ({ steps = [], stored = [] } = {}) => {
  for (const made of look.lit) made.classList.remove("lit");
  look.lit = steps.flatMap(step => parts.get(step) ?? []);
  if (stored.length) {
    for (const [made, values] of edges) if (values.some(value => stored.includes(value))) look.lit.push(made);
  }
  for (const made of look.lit) made.classList.add("lit");
  document.body.classList.toggle("picking", steps.length > 0);
};
const pin = (what, from) => {
  look.pinned = what?.steps?.length ? what : null;
  light(look.pinned ?? {});
  tell(look.pinned);
  if (!look.pinned) return;
  // Every other part that scrolls shows the first step too.
  for (const made of look.lit) {
    const pane = made.closest(".pane");
    if (!pane || pane === from || made.classList.contains("between") || partSteps(made)[0] !== what.steps[0]) continue;
    const [inner, outer] = [made.getBoundingClientRect(), pane.getBoundingClientRect()];
    if (inner.top < outer.top + 40 || inner.bottom > outer.bottom) pane.scrollTop += inner.top + inner.height / 2 - outer.top - outer.height / 2;
    if (inner.left < outer.left || inner.right > outer.right) {
      if (!pane.classList.contains("rows")) pane.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
    }
  }
};
const pinStored = (stored, from) => pin({ steps: [...new Set(stored.flatMap(({ from, to }) => [from, to]))], stored }, from);

document.addEventListener("pointerover", event => {
  const over = event.target.closest?.(".part, .between");
  if (!over) return look.lit.length ? light(look.pinned ?? {}) : undefined;
  const stored = edges.get(over);
  light(stored ? { steps: stored.flatMap(({ from, to }) => [from, to]), stored } : { steps: partSteps(over) });
});
document.addEventListener("click", event => {
  const on = event.target.closest?.(".part, .between");
  if (on && edges.has(on)) pinStored(edges.get(on), on.closest(".pane"));
  else if (on) pin({ steps: partSteps(on) }, on.closest(".pane"));
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && look.pinned) pin(null);
});
// Arrow keys walk along the steps of what has the focus; `walk` lists them as they stand there.
const walkable = (pane, walk) => pane.addEventListener("keydown", event => {
  const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  if (!by || event.target !== pane || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const all = walk();
  const now = look.pinned ? all.findIndex(steps => steps.includes(look.pinned.steps[0])) : -1;
  const next = now < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, now + by));
  if (all[next]) pin({ steps: all[next] });
});

// A link to another step.
const toStep = step => el("button", { type: "button", class: "link", "data-to": step }, `#${step} ${picture.steps[step].family}`);
document.addEventListener("click", event => {
  const to = event.target.closest?.("[data-to]");
  if (to) pin({ steps: [Number(to.dataset.to)] });
});

// What one launch for two steps would change, in words.
const gain = stored => stored.gain_us === null || stored.gain_us === undefined ? "" :
  `one launch for both would ${stored.gain_us > 0 ? "gain" : "lose"} ${micros(Math.abs(stored.gain_us))}`;
const because = stored => [stored.why, gain(stored)].filter(Boolean).join("; ");

const valueLine = ({ name, shape, view, from, input, output }) => el("li", {}, el("code", {}, shape), " ", name,
  from.length > 0 && [" from ", from.map((step, i) => [i > 0 && ", ", toStep(step)])],
  input !== null && input !== undefined && el("span", { class: "quiet" }, ", an input"),
  output !== null && output !== undefined && el("span", { class: "quiet" }, ", an output"),
  view && el("span", { class: "quiet" }, `, read as ${view}`));
const storedLine = stored => el("li", {}, toStep(stored.from), " → ", toStep(stored.to), " ", el("code", {}, stored.shape),
  stored.bytes && el("span", { class: "quiet" }, ` ${bytes(stored.bytes)}`), el("div", {}, because(stored)));
const column = (title, ...content) => content.flat().length > 0 && el("div", {}, el("h4", {}, title), content);

const aboutStep = steps => {
  const [first] = steps;
  const { reads, weights, writes, name } = picture.steps[first];
  // Merged operators may have one name.
  const nodes = [...new Set(picture.steps[first].nodes)];
  const row = rows[first];
  const facts = [];
  const fact = (label, value) => value && facts.push(el("dt", {}, label), el("dd", {}, value));
  fact("module", row.module);
  fact("operators", row.operators);
  if (row.time_us !== null) {
    fact(about, [estimated ? "at least " : "", micros(row.time_us), row.share !== null && `, ${percent(row.share)} of all`]);
    fact("library", row.library_us && [micros(row.library_us), ` for the same operators, ${times(row.library_us / row.time_us)} as long`]);
  }
  fact("work", row.bytes !== null && `${bytes(row.bytes)} read and written, ${count(row.flops)}FLOP`);
  fact("rate", row.gbytes_per_s !== null && `${digits(row.gbytes_per_s)} GB/s, ${digits(row.tflops_per_s)} TFLOP/s: ${rooflineText(row)} of what the machine allows by ${row.bound}`);
  fact("limited by", estimated && row.time_us !== null && row.bound);
  fact("kernel", row.kernel);
  fact("runs on", row.falls_back ? el("span", { class: "bad" }, `the CPU: ${row.falls_back}`) : row.runs_on);
  const into = picture.stored.filter(({ to }) => to === first);
  const from = picture.stored.filter(({ from }) => from === first);
  return [
    el("h3", { class: family(row.family) }, swatch(), `#${first} ${row.family} `, el("span", { class: "quiet" },
      steps.length > 1 ? `and ${steps.length - 1} like it: ${steps.slice(1).map(step => `#${step}`).join(", ")}` : name)),
    el("div", { class: "columns" },
      column("Step", el("dl", {}, facts)),
      column("Reads and writes", el("ul", {}, reads.map(valueLine), weights > 0 && el("li", { class: "quiet" }, counted(weights, "weight", "weights")),
        writes.map(value => el("li", { class: "writes" }, "→ ", ...valueLine(value).childNodes)))),
      into.length + from.length > 0 && column("Why it is a step of its own", el("ul", {}, into.map(storedLine), from.map(storedLine))),
      nodes.length > 0 && column(counted(nodes.length, "node", "nodes"), el("ul", { class: "nodes" }, nodes.slice(0, 12).map(node => el("li", {}, node)),
        nodes.length > 12 && el("li", { class: "quiet" }, `and ${nodes.length - 12} more`))))];
};
const aboutStored = stored => [
  el("h3", {}, `Stored between ${picture.steps[stored[0].from].family} and ${picture.steps[stored[0].to].family}`,
    stored.length > 1 && el("span", { class: "quiet" }, ` ${counted(stored.length, "value", "values")}`)),
  el("p", {}, stored[0].why),
  el("ul", { class: "columns" }, stored.slice(0, 48).map(value => el("li", {}, toStep(value.from), " → ", toStep(value.to), " ",
    el("code", {}, value.shape), value.bytes && el("span", { class: "quiet" }, ` ${bytes(value.bytes)}`),
    el("div", {}, gain(value)), el("div", { class: "quiet" }, value.name)))),
  stored.length > 48 && el("p", { class: "hint" }, `and ${stored.length - 48} more`)].filter(Boolean);

const tell = what => {
  const dock = find("dock");
  dock.hidden = !what;
  document.body.classList.toggle("docked", Boolean(what));
  if (!what) return;
  dock.replaceChildren(
    button("×", "Close (Escape)", () => pin(null), { class: "close" }),
    ...(what.stored ? aboutStored(what.stored) : aboutStep(what.steps)));
  dock.scrollTop = 0;
  document.documentElement.style.setProperty("--dock", `${dock.offsetHeight}px`);
};
