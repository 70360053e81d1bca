// Families, one run, memory.

const sumOf = (steps, key) => steps.reduce((sum, step) => sum + (rows[step][key] ?? 0), 0);

const families = () => {
  const section = find("families");
  const all = new Map();
  rows.forEach(({ family, step }) => all.set(family, [...all.get(family) ?? [], step]));
  const entries = [...all].map(([name, steps]) => ({ name, steps, ours: sumOf(steps, "time_us"), theirs: sumOf(steps, "library_us") }))
    .sort((a, b) => b.ours - a.ours || b.steps.length - a.steps.length);
  const longest = Math.max(...entries.flatMap(({ ours, theirs }) => [ours, theirs]), 1e-9);
  const total = entries.reduce((sum, { ours }) => sum + ours, 0);
  const beside = rows.some(row => row.library_us);
  if (estimated) find("families-title").append(el("span", { class: "badge" }, "estimates"));
  section.append(
    timed ? el("p", { class: "hint" }, el("span", { class: "key fused" }), estimated ? "fused, at least" : "fused",
      beside && [el("span", { class: "key library" }), "library, the same operators"]) : "",
    el("ul", { class: "families" }, entries.map(({ name, steps, ours, theirs }) => {
      const made = part(el("button", { type: "button", class: family(name) },
        el("span", { class: "what" }, swatch(), name, el("span", { class: "quiet" }, ` ×${steps.length}`)),
        timed && [el("span", { class: "bars" }, bar("fused", ours / longest), theirs > 0 && bar("library", theirs / longest)),
          el("span", { class: "number" }, micros(ours)),
          el("span", { class: "number quiet" }, total ? percent(ours / total) : ""),
          beside && el("span", { class: "number" }, theirs > 0 ? ratio(theirs / ours) : "–")]), steps);
      made.addEventListener("click", event => {
        event.stopPropagation();
        searchFor(name);
      });
      return el("li", {}, tip(made, () => [`search for ${name}`]));
    })));
};
const bar = (kind, share) => el("span", { class: kind, style: `width:${(100 * share).toFixed(2)}%` });

const timeline = () => {
  const section = find("timeline");
  const lanes = report.executors.filter(stepsOf);
  if (!lanes.length) return section.remove();
  const length = step => step.time_us ?? 0;
  const sum = entry => stepsOf(entry).reduce((sum, step) => sum + length(step), 0);
  const end = Math.max(...lanes.map(sum), 1e-9);
  const pane = el("div", { class: "pane time", tabindex: 0, role: "group", "aria-label": "Steps in time. Arrow keys walk along them." });
  const inner = el("div", { class: "wide" });
  const ours = [];
  for (const entry of lanes) {
    const lane = el("div", { class: "lane" });
    let at = 0;
    stepsOf(entry).forEach((step, i) => {
      const slice = el("div", { class: `slice ${family(step.family)}`, "data-slice": `${entry.name} ${i}`,
        style: `left:${(100 * at / end).toFixed(4)}%;width:${(100 * length(step) / end).toFixed(4)}%` },
        length(step) / end > 0.01 && el("span", {}, step.family));
      const [from, name] = [at, step.name];
      tip(slice, () => [`#${i} ${step.family}, ${micros(length(step))}, from ${micros(from)}`, name]);
      if (entry === fused) ours.push(part(slice, [i]));
      lane.append(slice);
      at += length(step);
    });
    const steps = stepsOf(entry).length;
    const whole = entry.time ? `; a whole run ${millis(entry.time.median_ms)}` : "";
    inner.append(el("div", { class: "lane-name" }, el("strong", {}, entry.name), el("span", { class: "quiet" },
      ` ${counted(steps, "step", "steps")}, together ${entry.profile ? "" : "at least "}${micros(sum(entry))}${whole}`)), lane);
  }
  const axis = el("div", { class: "axis" });
  for (let i = 0; i <= 4; i += 1) axis.append(el("span", { style: `left:${25 * i}%` }, i ? micros(end * i / 4) : "0"));
  inner.append(axis);
  pane.append(inner);
  if (estimated) find("timeline-title").append(el("span", { class: "badge" }, "estimates"));
  section.append(pane, el("p", { class: "hint" }, estimated
    ? "Each step's least time, end to end."
    : "Steps are timed one by one and stand here end to end: what overlaps in a run does not here."));
  // A name stands in a slice that it fits in.
  const name = () => pane.querySelectorAll(".slice span").forEach(span => {
    span.style.visibility = span.offsetWidth + 12 > span.parentNode.clientWidth ? "hidden" : "";
  });
  zoom(find("timeline-tools"), pane, "the timeline");
  new ResizeObserver(name).observe(inner);
  walkable(pane, () => rows.map((_, i) => [i]));
  search.told.push(() => ours.forEach((slice, i) => slice.classList.toggle("off", !found(i))));
};

// The arena: offsets upwards, steps to the right.
const memory = () => {
  const section = find("memory");
  const map = picture.memory;
  if (!map?.bytes) return section.remove();
  const steps = picture.steps.length;
  const over = map.lower_bound ? ` ${(100 * map.bytes / map.lower_bound - 100).toFixed(1)} % above it;` : "";
  section.append(el("p", { class: "hint" }, `Intermediates share one arena of ${bytes(map.bytes)}. At some step ${bytes(map.lower_bound)} are alive, so none is smaller;`,
    map.bytes > map.lower_bound ? over : " it is the smallest possible;", ` planned by ${map.heuristic}.`),
  el("p", { class: "hint" }, el("span", { class: "key alive" }), "alive", el("span", { class: "key bound" }), "lower bound", el("span", { class: "key block" }), "a buffer, in the colour of the step that writes it"));
  const top = value => 1000 - 1000 * value / map.bytes;
  const shape = svg("svg", { viewBox: `0 0 ${steps} 1000`, preserveAspectRatio: "none", "aria-hidden": "true" },
    map.buffers.map((buffer, i) => tip(part(svg("rect", {
      class: `buffer ${family(picture.steps[buffer.step].family)}`, "data-buffer": i, x: buffer.from, width: buffer.to - buffer.from,
      y: top(buffer.offset + buffer.bytes), height: 1000 * buffer.bytes / map.bytes }), [buffer.step]),
    () => [buffer.name, `${buffer.dtype}, ${count(buffer.elements)} elements, ${bytes(buffer.bytes)} at ${bytes(buffer.offset)}`,
      `written by #${buffer.step} ${picture.steps[buffer.step].family}, alive to the end of #${Math.ceil(buffer.to) - 1}`])),
    svg("path", { class: "alive", d: map.alive.map((alive, i) => `${i ? "V" : "M0 "}${top(alive).toFixed(2)}H${i + 1}`).join("") }),
    svg("path", { class: "bound", d: `M0 ${top(map.lower_bound).toFixed(2)}H${steps}` }));
  const at = share => `left:${100 * share}%`;
  const shares = [0, 0.25, 0.5, 0.75, 1].filter(share => Number.isInteger((steps - 1) * share) || steps > 8);
  const axis = el("div", { class: "axis" }, shares.map(share => el("span", { style: at(share) }, `#${Math.round((steps - 1) * share)}`)));
  const pane = el("div", { class: "pane map", tabindex: 0, role: "group", "aria-label": "Buffers over steps. Arrow keys walk along the steps." },
    el("div", { class: "wide" }, shape, axis));
  const scale = el("div", { class: "scale", "aria-hidden": "true" }, [1, 0.75, 0.5, 0.25, 0].map(share =>
    el("span", { style: `top:${100 - 100 * share}%` }, share ? bytes(Math.round(map.bytes * share)) : "0")));
  section.append(el("div", { class: "scaled" }, scale, pane));
  zoom(find("memory-tools"), pane, "the arena");
  walkable(pane, () => rows.map((_, i) => [i]));
};

// A slider that makes what is in a pane wider.
const zoom = (tools, pane, name) => {
  const slider = el("input", { type: "range", min: 0, max: 5, step: 0.25, value: 0, "aria-label": `Zoom of ${name}` });
  slider.addEventListener("input", () => {
    const middle = (pane.scrollLeft + pane.clientWidth / 2) / pane.scrollWidth;
    pane.style.setProperty("--zoom", 2 ** slider.value);
    pane.scrollLeft = middle * pane.scrollWidth - pane.clientWidth / 2;
  });
  tools.append(el("label", {}, "zoom ", slider));
};
