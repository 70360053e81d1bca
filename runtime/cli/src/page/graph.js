// The graph: boxes where they were placed, with each repeated block once or all steps; values stored between steps are said
// why on their arrows, and in a list beside them.

const graph = { folded: picture.blocks.length > 0, scale: 1, boxes: new Map() };
const drawn = () => graph.folded ? picture.folded : picture.full;

const boxShape = box => {
  const { x, y, width, height, kind, steps, label, lines } = box;
  if (kind !== "step") {
    const shape = svg("g", { class: `label ${kind}`, transform: `translate(${x} ${y})` },
      svg("rect", { width, height, rx: height / 2 }),
      svg("text", { x: width / 2, y: height / 2 + 4, "text-anchor": "middle" }, label));
    return steps.length ? part(shape, steps) : shape;
  }
  const [first] = steps;
  const step = picture.steps[first];
  const known = steps.every(step => rows[step].time_us !== null);
  const time = known && steps.reduce((sum, step) => sum + rows[step].time_us, 0);
  const falls = steps.some(step => rows[step].falls_back);
  const shape = svg("g", { class: `box ${family(step.family)} ${falls ? "falls" : ""}`, transform: `translate(${x} ${y})`, "data-node": first },
    svg("rect", { width, height, rx: 5 }),
    svg("path", { class: "edge", d: `M5 0H6V${height}H5A5 5 0 0 1 0 ${height - 5}V5A5 5 0 0 1 5 0Z` }),
    svg("text", { class: "name", x: 14, y: 17 }, step.family, svg("tspan", { class: "number" }, ` #${first}`)),
    svg("text", { class: "time", x: width - 8, y: 17, "text-anchor": "end" }, known ? `${estimated ? "≥ " : ""}${micros(time)}` : ""),
    lines.map((line, i) => svg("text", { class: "line", x: 14, y: 35 + i * 15 }, line)));
  tip(shape, () => [step.name, steps.length > 1 && `and ${steps.length - 1} like it`, falls && `falls back to the CPU: ${rows[first].falls_back}`]);
  return part(shape, steps);
};

const storedAlong = ({ from, to }) => {
  const [a, b] = [drawn().boxes[from].steps, drawn().boxes[to].steps];
  return picture.stored.filter(({ from, to }) => a.includes(from) && b.includes(to));
};
const arrowShape = arrow => {
  const { path, value, view } = arrow;
  const stored = storedAlong(arrow);
  const line = svg("path", { class: "line", d: `${path}m-4 -6l4 6l4 -6` });
  const shape = svg("g", { class: `arrow ${view ? "view" : ""} ${stored.some(({ gain_us }) => gain_us > 0) ? "gains" : ""}` },
    svg("path", { class: "hit", d: path }), line);
  tip(shape, () => [value, view && "read through strides: nothing is moved", stored.length > 0 && `stored: ${because(stored[0])}`,
    stored.length > 1 && `and ${stored.length - 1} like it`]);
  if (!stored.length) return shape;
  shape.dataset.stored = stored.length;
  const { x, y } = middle(line, path);
  shape.append(svg("circle", { class: "why", cx: x, cy: y, r: 5 }));
  return edge(shape, stored);
};
// The middle of a path, found on one that is measured and not shown.
const middle = (line, path) => {
  line.setAttribute("d", path);
  const at = line.getPointAtLength(line.getTotalLength() / 2);
  line.setAttribute("d", `${path}m-4 -6l4 6l4 -6`);
  return at;
};

const drawGraph = () => {
  const { width, height, boxes, arrows, frames } = drawn();
  const drawing = find("drawing");
  for (const [step, all] of parts) parts.set(step, all.filter(made => !drawing.contains(made)));
  for (const made of edges.keys()) if (drawing.contains(made)) edges.delete(made);
  graph.size = { width, height };
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.replaceChildren(
    ...frames.map(frame => svg("g", { class: "frame" },
      svg("rect", { x: frame.x, y: frame.y, width: frame.width, height: frame.height, rx: 10 }),
      svg("rect", { class: "badge", x: frame.x - 12, y: frame.y + 12, width: 24 + 7 * frame.label.length, height: 22, rx: 11 }),
      svg("text", { x: frame.x + 3.5 * frame.label.length, y: frame.y + 28, "text-anchor": "middle" }, frame.label))),
    ...arrows.map(arrowShape),
    ...boxes.map(boxShape));
  resize();
  dim();
  light(look.pinned ?? {});
};
// Steps that are searched for stand out.
const dim = () => {
  for (const made of find("drawing").querySelectorAll(".box")) {
    made.classList.toggle("off", !partSteps(made).some(found));
  }
};

const resize = () => {
  const drawing = find("drawing");
  drawing.setAttribute("width", graph.size.width * graph.scale);
  drawing.setAttribute("height", graph.size.height * graph.scale);
};
const rescale = (by, at) => {
  const pane = find("graph-pane");
  const before = graph.scale;
  const fit = Math.min(1.2, (pane.clientWidth - 4) / graph.size.width);
  graph.scale = Math.max(0.1, Math.min(3, by === 0 ? fit : before * by));
  const [ox, oy] = at ?? [pane.clientWidth / 2, pane.clientHeight / 2];
  const [x, y] = [pane.scrollLeft + ox, pane.scrollTop + oy];
  resize();
  pane.scrollLeft = x * graph.scale / before - ox;
  pane.scrollTop = y * graph.scale / before - oy;
};
// A mouse drags the graph, and zooms by its wheel with Ctrl; fingers scroll as everywhere.
const draggable = pane => {
  let held = null;
  pane.addEventListener("pointerdown", event => {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    held = { x: event.clientX + pane.scrollLeft, y: event.clientY + pane.scrollTop, moved: false };
  });
  addEventListener("pointermove", event => {
    if (!held) return;
    const [left, top] = [held.x - event.clientX, held.y - event.clientY];
    held.moved ||= Math.abs(left - pane.scrollLeft) + Math.abs(top - pane.scrollTop) > 4;
    if (held.moved) [pane.scrollLeft, pane.scrollTop] = [left, top];
    pane.classList.toggle("held", held.moved);
  });
  addEventListener("pointerup", () => {
    if (held?.moved) addEventListener("click", event => event.stopPropagation(), { capture: true, once: true });
    setTimeout(() => pane.classList.remove("held"));
    held = null;
  });
  pane.addEventListener("wheel", event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const { left, top } = pane.getBoundingClientRect();
    rescale(event.deltaY < 0 ? 1.15 : 1 / 1.15, [event.clientX - left, event.clientY - top]);
  }, { passive: false });
};

const graphTools = () => {
  const tools = find("graph-tools");
  if (picture.blocks.length) {
    const repeated = picture.blocks.reduce((sum, block) => sum + block.length * block.count, 0);
    const fold = button("", null, () => {
      graph.folded = !graph.folded;
      name();
      drawGraph();
      rescale(0);
    }, { id: "fold" });
    const name = () => fold.textContent = graph.folded ? `Unfold ${repeated} steps` : "Fold repeated blocks";
    name();
    tools.append(fold);
  }
  tools.append(
    button("−", "Smaller", () => rescale(1 / 1.25)),
    button("+", "Larger", () => rescale(1.25)),
    button("Fit", "As wide as there is place", () => rescale(0)));
  const pane = find("graph-pane");
  walkable(pane, () => drawn().boxes.filter(box => box.kind === "step").map(box => box.steps));
  draggable(pane);
  search.told.push(dim);
};

// Why values are stored between steps: alike ones once, those first that a kernel for both would gain most from.
const storedList = () => {
  const list = find("stored");
  if (!picture.stored.length) return list.remove();
  const alike = new Map();
  for (const value of picture.stored) {
    const ends = [value.from, value.to].map(step => picture.steps[step].family);
    const key = JSON.stringify([ends, value.why]);
    if (!alike.has(key)) alike.set(key, { ends, why: value.why, values: [], gain: 0 });
    const entry = alike.get(key);
    entry.values.push(value);
    entry.gain += value.gain_us ?? 0;
  }
  const sorted = [...alike.values()].sort((a, b) => b.gain - a.gain);
  const known = picture.stored.some(({ gain_us }) => gain_us !== null);
  const sum = ({ values, gain }) => {
    if (!known) return null;
    const said = gain > 0 ? `gain ${micros(gain)}` : `lose ${micros(-gain)}`;
    return el("span", { class: `amount ${gain > 0 ? "good" : "quiet"}` }, `one launch for both would ${said}${values.length > 1 ? ", all together" : ""}`);
  };
  const line = entry => {
    const { ends, why, values } = entry;
    const made = el("button", { type: "button", class: "reason", "data-reason": values.length },
      el("span", { class: "ends" }, el("span", { class: family(ends[0]) }, swatch(), ends[0]), " → ", el("span", { class: family(ends[1]) }, swatch(), ends[1]),
        values.length > 1 && el("span", { class: "quiet" }, ` ×${values.length}`)),
      el("span", {}, why), sum(entry));
    return el("li", {}, edge(made, values));
  };
  const total = picture.stored.reduce((sum, { bytes }) => sum + (bytes ?? 0), 0);
  list.append(
    el("h3", {}, "Not fused, and why"),
    el("p", { class: "hint" }, `${counted(picture.stored.length, "value is", "values are")} stored by one step for another, ${bytes(total)} together; ` +
      "dots on the arrows say why, filled ones where one launch for both would gain. Gains are the planner's estimates."),
    el("ul", { class: "pane reasons", tabindex: 0, "aria-label": "Why values are stored" }, sorted.map(line)));
};
