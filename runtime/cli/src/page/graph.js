// The graph: boxes where they were placed, with each repeated block once or all steps.

const graph = { folded: picture.blocks.length > 0, scale: 1 };
const timeOf = steps => {
  if (!profile) return null;
  return steps.reduce((sum, step) => sum + (profile[step]?.time_us ?? 0), 0);
};

const boxShape = box => {
  const { x, y, width, height, kind, steps, label, lines } = box;
  if (kind !== "step") {
    const shape = svg("g", { class: `label ${kind}`, transform: `translate(${x} ${y})` },
      svg("title", {}, label),
      svg("rect", { width, height, rx: height / 2 }),
      svg("text", { x: width / 2, y: height / 2 + 4, "text-anchor": "middle" }, label));
    return steps.length ? part(shape, steps) : shape;
  }
  const step = picture.steps[steps[0]];
  const time = timeOf(steps);
  const shape = svg("g", { class: `box ${family(step.family)}`, transform: `translate(${x} ${y})`, "data-node": steps[0] },
    svg("title", {}, `${step.name}${steps.length > 1 ? `, and ${steps.length - 1} like it` : ""}`),
    svg("rect", { width, height, rx: 5 }),
    svg("path", { class: "edge", d: `M5 0H6V${height}H5A5 5 0 0 1 0 ${height - 5}V5A5 5 0 0 1 5 0Z` }),
    svg("text", { class: "name", x: 14, y: 17 }, step.family),
    svg("text", { class: "time", x: width - 8, y: 17, "text-anchor": "end" }, time === null ? `${steps[0]}` : micros(time)),
    lines.map((line, i) => svg("text", { class: "line", x: 14, y: 35 + i * 15 }, line)));
  return part(shape, steps);
};

const drawGraph = () => {
  const { width, height, boxes, arrows, frames } = graph.folded ? picture.folded : picture.full;
  const drawing = find("drawing");
  for (const [step, all] of parts) parts.set(step, all.filter(made => !drawing.contains(made)));
  graph.size = { width, height };
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.replaceChildren(
    ...frames.map(frame => svg("g", { class: "frame" },
      svg("rect", { x: frame.x, y: frame.y, width: frame.width, height: frame.height, rx: 10 }),
      svg("rect", { class: "badge", x: frame.x - 12, y: frame.y + 12, width: 24 + 7 * frame.label.length, height: 22, rx: 11 }),
      svg("text", { x: frame.x + 3.5 * frame.label.length, y: frame.y + 28, "text-anchor": "middle" }, frame.label))),
    ...arrows.map(({ path, value, view }) => svg("path", { class: view ? "arrow view" : "arrow", d: `${path}m-4 -6l4 6l4 -6` },
      svg("title", {}, view ? `${value}, read through strides: nothing is moved` : value))),
    ...boxes.map(boxShape));
  resize();
  if (look.pinned) light(look.pinned);
};

const resize = () => {
  const drawing = find("drawing");
  drawing.setAttribute("width", graph.size.width * graph.scale);
  drawing.setAttribute("height", graph.size.height * graph.scale);
};
const rescale = by => {
  const pane = find("graph-pane");
  const before = graph.scale;
  graph.scale = Math.max(0.15, Math.min(3, by === 0 ? Math.min(1.2, (pane.clientWidth - 4) / graph.size.width) : before * by));
  const [x, y] = [pane.scrollLeft + pane.clientWidth / 2, pane.scrollTop + pane.clientHeight / 2];
  resize();
  pane.scrollLeft = x * graph.scale / before - pane.clientWidth / 2;
  pane.scrollTop = y * graph.scale / before - pane.clientHeight / 2;
};

const graphTools = () => {
  const tools = find("graph-tools");
  const button = (text, name, act) => {
    const made = el("button", { type: "button", "aria-label": name, title: name }, text);
    made.addEventListener("click", act);
    tools.append(made);
    return made;
  };
  if (picture.blocks.length) {
    const repeated = picture.blocks.reduce((sum, block) => sum + block.length * block.count, 0);
    const fold = button("", "Draw repeated blocks once, or every step", () => {
      graph.folded = !graph.folded;
      name();
      drawGraph();
      rescale(0);
    });
    const name = () => fold.textContent = graph.folded ? `unfold ${repeated} steps` : "fold blocks";
    name();
  }
  button("−", "Smaller", () => rescale(1 / 1.25));
  button("+", "Larger", () => rescale(1.25));
  button("fit", "As wide as the pane", () => rescale(0));
  walkable(find("graph-pane"), () =>
    (graph.folded ? picture.folded : picture.full).boxes.filter(box => box.kind === "step").map(box => box.steps));
};

// What is known of the step that is looked at.
const aboutStep = steps => {
  const about = find("about");
  if (!steps.length) {
    about.replaceChildren(el("p", { class: "hint" }, "Point at a step, or walk along them with arrow keys; a click keeps it."));
    return;
  }
  const [first] = steps;
  const { family: name, name: long, operations, nodes, reads, weights, writes } = picture.steps[first];
  const timed = profile?.[first];
  const facts = [];
  const fact = (label, value) => value && facts.push(el("dt", {}, label), el("dd", {}, value));
  const value = ({ name, shape, view, from, input }) => el("div", {}, el("code", {}, `${shape}`), ` ${name}`,
    from.length ? ` of step ${from.join(", ")}` : input !== null && input !== undefined && ", an input",
    view && el("span", { class: "quiet" }, `, as ${view}`));
  if (timed) {
    const beside = timed.library_us ? `; library ${micros(timed.library_us)} (${times(timed.library_us / timed.time_us)})` : "";
    fact("time", `${micros(timed.time_us)}${beside}, ${(timed.share * 100).toFixed(1)} % of all`);
    fact("rate", `${digits(timed.gbytes_per_s)} GB/s, ${digits(timed.tflops_per_s)} TFLOP/s, ${(timed.roofline * 100).toFixed(0)} % of the roofline`);
    fact("kernel", timed.variant ? `${timed.kernel}, ${timed.variant}` : timed.kernel);
  }
  fact("computes", operations.join(", "));
  fact("reads", [...reads.map(value), weights > 0 && el("div", {}, counted(weights, "weight", "weights"))]);
  fact("writes", writes.map(value));
  fact("nodes", nodes.length > 6 ? `${nodes.slice(0, 6).join(", ")}, and ${nodes.length - 6} more` : nodes.join(", "));
  about.replaceChildren(
    el("h3", { class: family(name) }, el("span", { class: "swatch" }), `${first} ${name} `,
      el("span", { class: "quiet" }, steps.length > 1 ? `and ${steps.length - 1} like it` : place(long).path)),
    el("dl", {}, facts));
};
