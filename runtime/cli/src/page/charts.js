// Families, groups, one run, memory.

const unit = report.device.kind === "cuda" ? "on the GPU" : "on the CPU";

const families = () => {
  const section = find("families");
  const rows = new Map();
  picture.steps.forEach(({ family }, i) => {
    const row = rows.get(family) ?? { steps: [], fused: 0, library: 0 };
    row.steps.push(i);
    row.fused += profile?.[i]?.time_us ?? 0;
    row.library += profile?.[i]?.library_us ?? 0;
    rows.set(family, row);
  });
  const sorted = [...rows].sort((a, b) => b[1].fused - a[1].fused || b[1].steps.length - a[1].steps.length);
  const most = Math.max(...sorted.flatMap(([, row]) => [row.fused, row.library]), 1e-9);
  section.append(el("ul", { class: "rows families" }, sorted.map(([name, row]) =>
    part(el("li", { class: family(name) },
      el("span", { class: "what" }, el("span", { class: "swatch" }), `${name} `, el("span", { class: "quiet" }, `×${row.steps.length}`)),
      profile && bars(row.fused, row.library, most),
      profile && numbers(row.fused, row.library)), row.steps))));
};

const bars = (ours, theirs, most) => el("span", { class: "bars" },
  el("span", { class: "fused", style: `width:${(100 * ours / most).toFixed(2)}%` }),
  theirs > 0 && el("span", { class: "library", style: `width:${(100 * theirs / most).toFixed(2)}%` }));
const numbers = (ours, theirs) => [
  el("span", { class: "number" }, micros(ours)),
  el("span", { class: "number quiet" }, theirs > 0 ? micros(theirs) : "–"),
  el("span", { class: `number ratio ${theirs > 0 && theirs < 0.97 * ours ? "slower" : ""}` }, theirs > 0 ? times(theirs / ours) : "–")];

const groups = () => {
  const section = find("groups");
  const beside = profile?.some(step => step.library_us);
  if (!profile) {
    section.append(el("p", { class: "hint" }, "Nothing was timed: fused execution was planned, not run."));
    return;
  }
  section.append(el("p", { class: "hint" }, "Upper bar and first number: the group ", unit, ". ",
    beside ? "Lower bar and second number: library execution of the same nodes, and how many times as long it takes." : "Library execution was not timed."));
  const most = Math.max(...profile.flatMap(step => [step.time_us, step.library_us ?? 0]), 1e-9);
  const list = el("ol", { class: "rows pane", tabindex: 0, "aria-label": "A group a row. Arrow keys walk along them." });
  const rows = profile.map((step, i) => {
    const { operations, path } = place(step.name);
    return part(el("li", { class: family(step.family), "data-bar": i },
      el("span", { class: "what" }, el("span", { class: "swatch" }), el("span", { class: "place" }, `${i} `),
        operations.length > 40 ? `${operations.slice(0, 39)}…` : operations, " ", el("span", { class: "quiet" }, path)),
      bars(step.time_us, step.library_us ?? 0, most), numbers(step.time_us, step.library_us ?? 0)), [i]);
  });
  const gain = i => (profile[i].library_us ?? profile[i].time_us) - profile[i].time_us;
  const orders = {
    "in order": (a, b) => a - b,
    "longest first": (a, b) => profile[b].time_us - profile[a].time_us,
    "least gain first": (a, b) => gain(a) - gain(b),
  };
  let order = profile.map((_, i) => i);
  const choice = el("select", { "aria-label": "Order of groups" }, Object.keys(orders).map(name => el("option", {}, name)));
  choice.addEventListener("change", () => {
    order = order.sort(orders[choice.value]);
    list.replaceChildren(...order.map(i => rows[i]));
  });
  find("groups-tools").append(choice);
  list.append(...rows);
  section.append(list);
  walkable(list, () => order.map(i => [i]));
};

const timeline = () => {
  const section = find("timeline");
  const lanes = report.executors.filter(entry => entry.profile);
  if (!lanes.length) return section.remove();
  const sum = entry => entry.profile.reduce((sum, step) => sum + step.time_us, 0);
  const end = Math.max(...lanes.map(sum), 1e-9);
  const pane = el("div", { class: "pane time", tabindex: 0, role: "group", "aria-label": "Steps in time. Arrow keys walk along them." });
  const inner = el("div", { class: "wide" });
  for (const entry of lanes) {
    const lane = el("div", { class: "lane" });
    let at = 0;
    entry.profile.forEach((step, i) => {
      const style = `left:${(100 * at / end).toFixed(4)}%;width:${(100 * step.time_us / end).toFixed(4)}%`;
      const title = `${i} ${step.family}, ${micros(at)} + ${micros(step.time_us)}: ${step.name}`;
      const slice = el("div", { class: `slice ${family(step.family)}`, style, title, "data-slice": `${entry.name} ${i}` });
      lane.append(entry === fused ? part(slice, [i]) : slice);
      at += step.time_us;
    });
    const whole = entry.time ? `; a run takes ${micros(entry.time.median_ms * 1e3)}` : "";
    inner.append(el("div", { class: "lane-name" }, `${entry.name} `, el("span", { class: "quiet" },
      `${counted(entry.profile.length, "step", "steps")}, together ${micros(sum(entry))}${whole}`)), lane);
  }
  const axis = el("div", { class: "axis" });
  for (let i = 0; i <= 5; i += 1) axis.append(el("span", { style: `left:${20 * i}%` }, i ? micros(end * i / 5) : "0"));
  inner.append(axis);
  pane.append(inner);
  section.append(pane, el("p", { class: "hint" }, "Steps are timed one by one and laid end to end, so that what overlaps in a run does not here."));
  zoom(find("timeline-tools"), pane, "the timeline");
  if (profile) walkable(pane, () => profile.map((_, i) => [i]));
};

const memory = () => {
  const section = find("memory");
  const map = picture.memory;
  if (!map) return section.remove();
  const steps = picture.steps.length;
  const over = map.lower_bound ? ` (${(100 * map.bytes / map.lower_bound - 100).toFixed(1)} % over it)` : "";
  section.append(el("p", { class: "hint" }, `The arena is ${bytes(map.bytes)}; no arena is smaller than ${bytes(map.lower_bound)}`,
    map.bytes > map.lower_bound ? over : ", so it is the smallest", `. Laid out by ${map.heuristic}. Offsets upwards, steps to the right; the line is what is alive, the dashed one the lower bound.`));
  if (!map.bytes) return;
  const top = value => 1000 - 1000 * value / map.bytes;
  const shape = svg("svg", { viewBox: `0 0 ${steps} 1000`, preserveAspectRatio: "none", "aria-hidden": "true" },
    map.buffers.map((buffer, i) => part(svg("rect", {
      class: `buffer ${family(picture.steps[buffer.step].family)}`, "data-buffer": i, x: buffer.from, width: buffer.to - buffer.from,
      y: top(buffer.offset + buffer.bytes), height: 1000 * buffer.bytes / map.bytes },
    svg("title", {}, `${buffer.name}: ${buffer.dtype}, ${count(buffer.elements)} elements, ${bytes(buffer.bytes)} at ${bytes(buffer.offset)}, of step ${buffer.step}`)), [buffer.step])),
    svg("path", { class: "alive", d: map.alive.map((alive, i) => `${i ? "V" : "M0 "}${top(alive).toFixed(2)}H${i + 1}`).join("") }),
    svg("path", { class: "bound", d: `M0 ${top(map.lower_bound).toFixed(2)}H${steps}` }));
  const pane = el("div", { class: "pane map", tabindex: 0, role: "group", "aria-label": "Buffers over steps. Arrow keys walk along the steps." },
    el("div", { class: "wide" }, shape));
  const scale = el("div", { class: "scale", "aria-hidden": "true" }, [1, 0.75, 0.5, 0.25, 0].map(share =>
    el("span", { style: `top:${100 - 100 * share}%` }, share ? bytes(Math.round(map.bytes * share)) : "0")));
  section.append(el("div", { class: "scaled" }, scale, pane),
    el("div", { class: "axis steps" }, [0, 0.25, 0.5, 0.75, 1].map(share => el("span", { style: `left:${100 * share}%` }, `${Math.round((steps - 1) * share)}`))));
  pane.addEventListener("scroll", () => section.querySelector(".axis").style.visibility = pane.scrollWidth > pane.clientWidth ? "hidden" : "");
  zoom(find("memory-tools"), pane, "the arena");
  walkable(pane, () => picture.steps.map((_, i) => [i]));
};
